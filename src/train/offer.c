/* Offers as bytes, little-endian: u32 generation, replicas, nodes, port, then u32 length and address, then u32 members;
 * and as a line of text, as a launcher says it: "GENERATION NODES ADDRESS PORT MEMBER...". They come from others:
 * everything is checked. */
#include "train/regroup.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS_MAX = 255, MEMBERS_MAX = 65535 };

uint8_t *adli_offer_encode(const adli_world *world, size_t *length)
{
    size_t address = strlen(world->master_addr);
    *length = 20 + address + 4 * (size_t)world->replicas;
    uint8_t *bytes = adli_calloc(*length, 1), *at = bytes;
    if (!bytes)
        return NULL;
    at = adli_put(at, world->generation, 4);
    at = adli_put(at, (uint64_t)world->replicas, 4);
    at = adli_put(at, (uint64_t)world->nodes, 4);
    at = adli_put(at, (uint64_t)world->master_port, 4);
    at = adli_put(at, address, 4);
    at = adli_put_bytes(at, world->master_addr, address);
    for (int i = 0; i < world->replicas; i++)
        at = adli_put(at, (uint32_t)world->members[i], 4);
    return bytes;
}

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* Every member once. */
static bool members_differ(const adli_world *world)
{
    size_t count = (size_t)world->replicas;
    int *sorted = adli_memdup(world->members, count, sizeof *sorted);
    bool fine = sorted != NULL;
    if (fine)
        qsort(sorted, count, sizeof *sorted, by_number);
    for (size_t i = 0; fine && i < count; i++)
        fine = sorted[i] >= 0 && (i == 0 || sorted[i] != sorted[i - 1]);
    free(sorted);
    return fine;
}

static bool read_offer(adli_reader *reader, adli_world *out)
{
    uint64_t generation = adli_get(reader, 4), replicas = adli_get(reader, 4);
    uint64_t nodes = adli_get(reader, 4), port = adli_get(reader, 4), length = adli_get(reader, 4);
    if (replicas < 1 || replicas > MEMBERS_MAX || nodes < 1 || nodes > replicas || port > 65535 ||
        length < 1 || length > ADDRESS_MAX)
        return false;
    const uint8_t *address = adli_get_bytes(reader, length);
    if (!address || memchr(address, '\0', length) || adli_reader_left(reader) != 4 * replicas)
        return false;
    *out = (adli_world){.generation = (uint32_t)generation,
                        .rank = -1,
                        .replicas = (int)replicas,
                        .nodes = (int)nodes,
                        .master_port = (int)port,
                        .master_addr = adli_calloc(length + 1, 1),
                        .members = adli_calloc(replicas, sizeof(int))};
    if (!out->master_addr || !out->members)
        return false;
    memcpy(out->master_addr, address, length);
    for (uint64_t i = 0; i < replicas; i++) {
        uint64_t member = adli_get(reader, 4);
        out->members[i] = member > INT_MAX ? -1 : (int)member;
    }
    return members_differ(out);
}

adl_status adli_offer_parse(const void *data, size_t length, adli_world *out)
{
    adli_reader reader = adli_reader_over(data, length);
    *out = (adli_world){0};
    if (read_offer(&reader, out))
        return ADL_OK;
    adli_world_fini(out);
    return adli_fail(ADL_ECORRUPT, "an offer of %zu bytes that makes no sense", length);
}

/* The members at the end of a line. */
static bool read_members(const char *text, adli_world *out)
{
    size_t capacity = 0;
    while (*text && out->replicas < MEMBERS_MAX) {
        char *end;
        long member = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
        if (member < 0 || member > INT_MAX || (*end != ' ' && *end != '\0') ||
            adli_grow(&out->members, &capacity, (size_t)out->replicas + 1, sizeof(int)) != 0)
            return false;
        out->members[out->replicas++] = (int)member;
        text = *end ? end + 1 : end;
    }
    return *text == '\0' && out->replicas > 0 && out->nodes <= out->replicas && members_differ(out);
}

adl_status adli_offer_read(const char *line, adli_world *out)
{
    char address[ADDRESS_MAX + 1];
    unsigned generation, nodes, port;
    int used = 0;
    *out = (adli_world){.rank = -1};
    bool fine =
        strlen(line) < ADLI_OFFER_LINE_MAX &&
        sscanf(line, "%9u %9u %255s %5u %n", &generation, &nodes, address, &port, &used) == 4 &&
        used > 0 && nodes >= 1 && nodes <= MEMBERS_MAX && port <= 65535;
    if (fine) {
        out->generation = generation;
        out->nodes = (int)nodes;
        out->master_port = (int)port;
        out->master_addr = adli_strdup(address);
        fine = out->master_addr && read_members(line + used, out);
    }
    if (fine)
        return ADL_OK;
    adli_world_fini(out);
    return adli_fail(ADL_ECORRUPT, "a world that makes no sense: %.80s", line);
}
