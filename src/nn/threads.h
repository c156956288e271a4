/* The one thread pool: OpenMP's, which oneDNN uses too, so that the two never compete. Loops of ours
 * run in parts of at least ADLI_GRAIN floats. */
#ifndef ADLI_NN_THREADS_H
#define ADLI_NN_THREADS_H

#include "adaptdl/nn.h"

#include <signal.h>
#include <stddef.h>

/* Keeps signals that have handlers away from the calling thread until pthread_sigmask restores `before`, and from the pool's
 * for good. oneDNN's matrix products let the stack pointer walk over their scratch memory (seen with 2.6.3): what the
 * kernel puts there for a handler lands in whatever lies below on the heap. */
void adli_shield(sigset_t *before);

enum { ADLI_GRAIN = 16384 };

/* Part `i` of `parts` equal ones of 0 .. count-1, cut at multiples of 16. */
static inline void adli_part(size_t count, size_t parts, size_t i, size_t *first, size_t *end)
{
    size_t lines = (count + 15) / 16;
    *first = lines * i / parts * 16;
    *end = lines * (i + 1) / parts * 16;
    if (*end > count)
        *end = count;
}

/* In how many parts to cut a loop over `count` floats. */
static inline size_t adli_parts(size_t count)
{
    size_t most = (size_t)adl_nn_threads(), parts = count / ADLI_GRAIN;
    return parts < 1 ? 1 : parts > most ? most : parts;
}

/* Kernels are compiled for several generations of processors and chosen when the program starts.
 * Sanitizers and clang get the plain one: their run-time support is not ready that early. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ADLI_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ADLI_CLONES
#endif

#endif
