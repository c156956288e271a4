/* Offers as bytes, little-endian: u32 generation, replicas, nodes, port, then u32 length and address, then u32 count
 * and i32 ranks. They come from rank 0, which has them from a scheduler: everything is checked. */
#include "train/regroup.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { ADDRESS_MAX = 255, COUNT_MAX = 65535 };

void adli_offer_fini(adli_offer *offer)
{
    adli_world_fini(&offer->world);
    free(offer->ranks);
    offer->ranks = NULL;
}

uint8_t *adli_offer_encode(const adli_offer *offer, size_t *length)
{
    const adli_world *world = &offer->world;
    size_t address = strlen(world->master_addr);
    *length = 24 + address + 4 * (size_t)offer->count;
    uint8_t *bytes = adli_calloc(*length, 1), *at = bytes;
    if (!bytes)
        return NULL;
    at = adli_put(at, world->generation, 4);
    at = adli_put(at, (uint64_t)world->replicas, 4);
    at = adli_put(at, (uint64_t)world->nodes, 4);
    at = adli_put(at, (uint64_t)world->master_port, 4);
    at = adli_put(at, address, 4);
    at = adli_put_bytes(at, world->master_addr, address);
    at = adli_put(at, (uint64_t)offer->count, 4);
    for (int i = 0; i < offer->count; i++)
        at = adli_put(at, (uint32_t)offer->ranks[i], 4);
    return bytes;
}

/* Every rank once at most, all within the next world, and its first member among those who stay. */
static bool ranks_fit(const adli_offer *offer)
{
    bool first = false, *seen = adli_calloc((size_t)offer->world.replicas, sizeof *seen);
    bool fine = seen != NULL;
    for (int i = 0; fine && i < offer->count; i++) {
        int rank = offer->ranks[i];
        fine = rank >= -1 && rank < offer->world.replicas && (rank < 0 || !seen[rank]);
        if (fine && rank >= 0)
            seen[rank] = true;
        first |= rank == 0;
    }
    free(seen);
    return fine && first;
}

static bool read_offer(adli_reader *reader, adli_offer *out)
{
    uint64_t generation = adli_get(reader, 4), replicas = adli_get(reader, 4);
    uint64_t nodes = adli_get(reader, 4), port = adli_get(reader, 4), length = adli_get(reader, 4);
    if (replicas < 1 || replicas > COUNT_MAX || nodes < 1 || nodes > replicas || port > 65535 ||
        length < 1 || length > ADDRESS_MAX)
        return false;
    const uint8_t *address = adli_get_bytes(reader, length);
    uint64_t count = adli_get(reader, 4);
    if (!address || memchr(address, '\0', length) || count < 1 || count > COUNT_MAX ||
        adli_reader_left(reader) != 4 * count)
        return false;
    out->world = (adli_world){.generation = (uint32_t)generation,
                              .replicas = (int)replicas,
                              .nodes = (int)nodes,
                              .master_port = (int)port,
                              .master_addr = adli_calloc(length + 1, 1)};
    out->count = (int)count;
    out->ranks = adli_calloc(count, sizeof *out->ranks);
    if (!out->world.master_addr || !out->ranks)
        return false;
    memcpy(out->world.master_addr, address, length);
    for (uint64_t i = 0; i < count; i++)
        out->ranks[i] = (int)(int32_t)adli_get(reader, 4);
    return ranks_fit(out);
}

adl_status adli_offer_parse(const void *data, size_t length, adli_offer *out)
{
    adli_reader reader = adli_reader_over(data, length);
    *out = (adli_offer){0};
    if (read_offer(&reader, out))
        return ADL_OK;
    adli_offer_fini(out);
    return adli_fail(ADL_ECORRUPT, "an offer of %zu bytes that makes no sense", length);
}
