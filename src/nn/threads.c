#include "nn/threads.h"

#include "base/status.h"

#include <pthread.h>
#include <unistd.h>

/* Declared here and not by <omp.h>: clang has no such header without its own OpenMP, and it is GCC's
 * library, the one that oneDNN is linked to, that is meant. */
extern void omp_set_num_threads(int threads);
extern int omp_get_max_threads(void);

adl_status adl_nn_set_threads(int threads)
{
    if (threads < 0 || threads > 1024)
        return adli_fail(ADL_EINVAL, "threads: %d is not in 0 .. 1024", threads);
    if (threads == 0) {
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        threads = processors < 1 ? 1 : processors > 1024 ? 1024 : (int)processors;
    }
    omp_set_num_threads(threads);
    return ADL_OK;
}

int adl_nn_threads(void)
{
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer does not see the barriers of libgomp, and what oneDNN's threads do would look
     * like races. Everything here asks for the number of threads first, so this makes it one. */
    omp_set_num_threads(1);
#endif
    return omp_get_max_threads();
}

static void block(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

void adli_shield(sigset_t *before)
{
    static _Thread_local int shielded; /* threads of this thread's pool */
    block(before);
    int threads = adl_nn_threads();
    if (threads <= shielded)
        return;
    shielded = threads;
#pragma omp parallel /* those that are made for it inherit it, those that were there do not */
    block(NULL);
}
