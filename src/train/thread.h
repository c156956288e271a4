/* Threads of the runtime itself. They take no signals: the program's handlers run on the program's
 * own threads, whose system calls expect it. */
#ifndef ADLI_TRAIN_THREAD_H
#define ADLI_TRAIN_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

static inline adl_status adli_thread_start(pthread_t *thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? ADL_OK
                      : adli_fail(ADL_ENOMEM, "cannot start a thread: %s", strerror(error));
}

#endif
