/* Layout, little-endian: u32 wishes, u32 places (1, or 2 when apart), then for each place u32 rank, i64 epoch,
 * i64 loops, u64 index, u32 length of the loop's name, name. */
#include "train/vote.h"

#include "base/bytes.h"
#include "base/status.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static uint8_t *put_place(uint8_t *at, const adli_step_place *place)
{
    size_t length = strlen(place->loop);
    at = adli_put(at, (uint64_t)place->rank, 4);
    at = adli_put_u64(at, (uint64_t)place->epoch);
    at = adli_put_u64(at, (uint64_t)place->loops);
    at = adli_put_u64(at, place->index);
    at = adli_put(at, length, 4);
    return adli_put_bytes(at, place->loop, length);
}

size_t adli_vote_encode(const adli_vote *vote, uint8_t out[ADLI_VOTE_MAX])
{
    uint8_t *at = adli_put(out, vote->wishes, 4);
    at = adli_put(at, vote->apart ? 2 : 1, 4);
    at = put_place(at, &vote->first);
    if (vote->apart)
        at = put_place(at, &vote->other);
    return (size_t)(at - out);
}

static bool get_place(adli_reader *reader, adli_step_place *out)
{
    uint64_t rank = adli_get(reader, 4);
    *out = (adli_step_place){.rank = (int)(rank & INT_MAX)};
    out->epoch = (int64_t)adli_get_u64(reader);
    out->loops = (int64_t)adli_get_u64(reader);
    out->index = adli_get_u64(reader);
    uint64_t length = adli_get(reader, 4);
    if (rank > INT_MAX || length >= sizeof out->loop)
        return false;
    const uint8_t *name = adli_get_bytes(reader, length);
    if (!name)
        return false;
    memcpy(out->loop, name, length);
    return memchr(name, '\0', length) == NULL;
}

adl_status adli_vote_parse(const void *data, size_t length, adli_vote *out)
{
    adli_reader reader = adli_reader_over(data, length);
    *out = (adli_vote){.wishes = (uint32_t)adli_get(&reader, 4)};
    uint64_t places = adli_get(&reader, 4);
    out->apart = places == 2;
    bool good = (places == 1 || places == 2) && get_place(&reader, &out->first) &&
                (!out->apart || get_place(&reader, &out->other));
    if (!good || adli_reader_left(&reader) > 0)
        return adli_fail(ADL_EPEER, "a step boundary of %zu bytes that make no sense", length);
    return ADL_OK;
}

static bool same_place(const adli_step_place *a, const adli_step_place *b)
{
    return a->epoch == b->epoch && a->loops == b->loops && a->index == b->index &&
           strcmp(a->loop, b->loop) == 0;
}

adl_status adli_vote_merge(void *unused, const void *a, size_t a_length, const void *b,
                           size_t b_length, adl_reduced *out)
{
    (void)unused;
    adli_vote sum, next;
    uint8_t bytes[ADLI_VOTE_MAX];
    adl_status status = adli_vote_parse(a, a_length, &sum);
    if (status == ADL_OK)
        status = adli_vote_parse(b, b_length, &next);
    if (status != ADL_OK)
        return status;
    sum.wishes |= next.wishes;
    if (!sum.apart && !same_place(&sum.first, &next.first)) {
        sum.apart = true;
        sum.other = next.first;
    }
    return adl_reduced_set(out, bytes, adli_vote_encode(&sum, bytes));
}

static const char *describe(const adli_step_place *place, char *out, size_t size)
{
    if (place->epoch < 0 && !place->loop[0])
        snprintf(out, size, "rank %d is outside the epochs after %" PRId64 " of them", place->rank,
                 place->loops);
    else if (place->epoch < 0)
        snprintf(out, size, "rank %d is outside the epochs, in %s at %" PRIu64, place->rank,
                 place->loop, place->index);
    else
        snprintf(out, size,
                 "rank %d is in epoch %" PRId64 ", in loop %" PRId64 " over %s at %" PRIu64,
                 place->rank, place->epoch, place->loops, place->loop, place->index);
    return out;
}

adl_status adli_vote_check(const adli_vote *vote)
{
    char first[160], other[160];
    if (!vote->apart)
        return ADL_OK;
    return adli_fail(
        ADL_ESTATE,
        "the replicas have run apart: %s, %s; all must take the same steps (did one leave its "
        "loop early?)",
        describe(&vote->first, first, sizeof first), describe(&vote->other, other, sizeof other));
}
