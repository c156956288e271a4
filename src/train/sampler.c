/* The order of a pass is a Fisher-Yates shuffle from a seed of (seed, epoch, pass), kept as 32-bit
 * numbers: random access for the worker threads, 4 bytes per example. */
#include "adaptdl/sampler.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

#include <stdlib.h>

struct adl_sampler {
    size_t n;
    bool shuffle, shuffled;
    uint64_t seed;
    uint32_t *order; /* [n], NULL without shuffle */
    int epoch;       /* whose order is there ... */
    uint64_t pass;
    size_t base; /* index % n */
    int rank, replicas;
    size_t deal;  /* examples of one step, when they do not divide evenly; 0: they do */
    size_t mine;  /* of them */
    size_t steps; /* whole ones, when dealt */
    size_t length;
};

adl_status adl_sampler_new(size_t n, bool shuffle, uint64_t seed, adl_sampler **out)
{
    *out = NULL;
    if (n < 1 || n > UINT32_MAX)
        return adli_fail(ADL_EINVAL, "sampler: %zu examples, must be from 1 to 2^32 - 1", n);
    adl_sampler *sampler = adli_calloc(1, sizeof *sampler);
    if (sampler && shuffle)
        sampler->order = adli_calloc(n, sizeof *sampler->order);
    if (!sampler || (shuffle && !sampler->order)) {
        adl_sampler_free(sampler);
        return adli_fail_memory("sampler");
    }
    sampler->n = n;
    sampler->shuffle = shuffle;
    sampler->seed = seed;
    *out = sampler;
    return adl_sampler_seek(sampler, 0, 0, 0, 1);
}

void adl_sampler_free(adl_sampler *sampler)
{
    if (sampler)
        free(sampler->order);
    free(sampler);
}

static void shuffle_order(adl_sampler *sampler, int epoch, uint64_t pass)
{
    /* Each number is mixed in on its own, so that (epoch 1, pass 0) and (0, 1) have nothing in
     * common. */
    uint64_t state = sampler->seed;
    state = adli_splitmix64(&state) ^ (uint64_t)epoch;
    state = adli_splitmix64(&state) ^ pass;
    adli_rng rng;
    adli_rng_init(&rng, adli_splitmix64(&state));
    for (size_t i = 0; i < sampler->n; i++)
        sampler->order[i] = (uint32_t)i;
    for (size_t i = sampler->n - 1; i > 0; i--) {
        size_t j = adli_rng_below(&rng, (uint32_t)i + 1);
        uint32_t swap = sampler->order[i];
        sampler->order[i] = sampler->order[j];
        sampler->order[j] = swap;
    }
    sampler->epoch = epoch;
    sampler->pass = pass;
    sampler->shuffled = true;
}

adl_status adl_sampler_seek(adl_sampler *sampler, int epoch, uint64_t index, int rank, int replicas)
{
    if (replicas < 1 || rank < 0 || rank >= replicas)
        return adli_fail(ADL_EINVAL, "sampler: rank %d of %d replicas", rank, replicas);
    uint64_t pass = index / sampler->n;
    if (sampler->shuffle &&
        !(sampler->shuffled && sampler->epoch == epoch && sampler->pass == pass))
        shuffle_order(sampler, epoch, pass);
    sampler->base = (size_t)(index % sampler->n);
    sampler->rank = rank;
    sampler->replicas = replicas;
    sampler->deal = 0;
    size_t left = sampler->n - sampler->base, each = (size_t)replicas;
    sampler->length = left / each + (left % each != 0);
    return ADL_OK;
}

void adl_sampler_deal(adl_sampler *sampler, size_t total)
{
    size_t each = (size_t)sampler->replicas, rank = (size_t)sampler->rank;
    size_t left = sampler->n - sampler->base;
    if (total < each || total % each == 0)
        return;
    sampler->deal = total;
    sampler->mine = total / each + (rank < total % each);
    sampler->steps = left / total;
    size_t rest = left % total, of_rest = rest / each + (rank < rest % each);
    sampler->length = sampler->steps * sampler->mine + (rest > 0 && of_rest == 0 ? 1 : of_rest);
}

/* Where in the order the j-th element of this replica is; beyond the end: the extra one. */
static size_t place_of(const adl_sampler *sampler, size_t j)
{
    size_t each = (size_t)sampler->replicas, first = sampler->base + (size_t)sampler->rank;
    if (!sampler->deal)
        return first + j * each;
    size_t step = j / sampler->mine < sampler->steps ? j / sampler->mine : sampler->steps;
    return first + step * sampler->deal + (j - step * sampler->mine) * each;
}

size_t adl_sampler_length(const adl_sampler *sampler)
{
    return sampler->length;
}

size_t adl_sampler_get(const adl_sampler *sampler, size_t j)
{
    size_t place = place_of(sampler, j);
    if (place >= sampler->n) /* the extra element: from the start of the order */
        place = (size_t)sampler->rank % sampler->n;
    return sampler->order ? sampler->order[place] : place;
}

bool adl_sampler_padded(const adl_sampler *sampler)
{
    return sampler->length > 0 && place_of(sampler, sampler->length - 1) >= sampler->n;
}
