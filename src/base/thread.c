#include "base/thread.h"

#include <signal.h>
#include <string.h>

adl_status adli_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument)
{
    /* The program's handlers run on the program's threads; faults stay ours. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int failure = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0)
        return adli_fail(ADL_ENOMEM, "cannot start thread %s: %s", name, strerror(failure));
    pthread_setname_np(*out, name);
    return ADL_OK;
}

adl_status adli_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int failure = pthread_condattr_init(&attributes);
    if (failure == 0) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        failure = pthread_cond_init(cond, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    return failure == 0 ? ADL_OK
                        : adli_fail(ADL_ENOMEM, "pthread_cond_init: %s", strerror(failure));
}

struct timespec adli_deadline(int timeout_ms)
{
    struct timespec when;
    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += timeout_ms / 1000;
    when.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (when.tv_nsec >= 1000000000) {
        when.tv_nsec -= 1000000000;
        when.tv_sec++;
    }
    return when;
}
