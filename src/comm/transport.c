/* How replicas agree on a transport: each tells what it was asked for and which machine it is on. On one
 * machine they share memory; on several they share it within each and form rings between them; where a
 * segment cannot be opened by all who should, one ring of all replicas it is. */
#include "comm/ring.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What must be the same everywhere, and the machine: replicas of one machine may share memory. */
typedef struct facts {
    uint8_t transport, wire, average, unprotected;
    uint64_t shm_bytes;
    char machine[ADL_HOST_MAX + 1], host[64]; /* which it is, and its name for people */
} facts;

static void gather_facts(const adl_reducer_options *o, facts *out)
{
    memset(out, 0, sizeof *out); /* the padding travels too */
    out->transport = (uint8_t)o->transport;
    out->wire = (uint8_t)o->wire;
    out->average = o->average;
    out->unprotected = o->unprotected_data;
    out->shm_bytes = o->shm_bytes;
    gethostname(out->host, sizeof out->host - 1);
    if (o->host) {
        snprintf(out->machine, sizeof out->machine, "%s", o->host);
        return;
    }
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && !fgets(out->machine, sizeof out->machine, file))
        out->machine[0] = '\0';
    if (file)
        fclose(file);
}

static adl_status compare_facts(const facts *first, const facts *other, int rank)
{
    if (first->transport == other->transport && first->wire == other->wire &&
        first->average == other->average && first->unprotected == other->unprotected &&
        first->shm_bytes == other->shm_bytes)
        return ADL_OK;
    return adli_fail(ADL_EINVAL,
                     "reducer: replicas disagree: rank 0 has transport %d, wire %d, average %d, "
                     "unprotected %d, shm_bytes %" PRIu64 ", rank %d has %d, %d, %d, %d, %" PRIu64,
                     first->transport, first->wire, first->average, first->unprotected,
                     first->shm_bytes, rank, other->transport, other->wire, other->average,
                     other->unprotected, other->shm_bytes);
}

/* Which host this rank is on, among those of the ranks before it; a machine without a name is alone. */
static int host_among(const facts *all, const int *host_of, int rank, int hosts)
{
    for (int before = 0; before < rank; before++) {
        if (all[rank].machine[0] && strcmp(all[before].machine, all[rank].machine) == 0)
            return host_of[before];
    }
    return hosts;
}

/* host_of[replicas] and the number of hosts. all[replicas] is everyone's facts. */
static adl_status exchange_facts(adl_reducer *reducer, facts *all, int *host_of, int *hosts)
{
    facts mine;
    uint8_t *told;
    size_t *offsets;
    gather_facts(&reducer->options, &mine);
    adl_status status = adli_reducer_gather(reducer, &mine, sizeof mine, &told, &offsets);
    *hosts = 0;
    for (int rank = 0; status == ADL_OK && rank < reducer->replicas; rank++) {
        if (offsets[rank + 1] - offsets[rank] != sizeof mine) {
            status = adli_fail(ADL_EPEER, "reducer: rank %d is of another version", rank);
            break;
        }
        memcpy(&all[rank], told + offsets[rank], sizeof mine);
        all[rank].machine[ADL_HOST_MAX] = all[rank].host[sizeof mine.host - 1] = '\0';
        status = compare_facts(&all[0], &all[rank], rank);
        host_of[rank] = host_among(all, host_of, rank, *hosts);
        *hosts += host_of[rank] == *hosts;
    }
    free(told);
    free(offsets);
    return status;
}

static adl_status fail_apart(const facts *all, const int *host_of)
{
    int other = 0;
    while (host_of[other] == 0)
        other++;
    return adli_fail(ADL_ENET, "reducer: no shared memory: rank 0 is on %.63s, rank %d on %.63s",
                     all[0].host, other, all[other].host);
}

/* ADL_OK: `kind` is what it is now, and there may be a transport. A full /dev/shm is no reason to give up. */
static adl_status take_if_made(adl_reducer *reducer, adl_status made, adl_transport kind)
{
    if (made != ADL_OK)
        return adl_group_check(reducer->group);
    reducer->kind = kind;
    return ADL_OK;
}

static adl_status use_ring(adl_reducer *reducer, const adli_circle *all)
{
    adli_ring *ring;
    adl_status status = adli_ring_new(reducer, all, &ring);
    reducer->transport = ring ? &ring->base : NULL;
    reducer->kind = ADL_TRANSPORT_TCP;
    return status;
}

static adl_status choose(adl_reducer *reducer, facts *all, int *host_of, int *ranks)
{
    adl_transport wanted = reducer->options.transport;
    adli_circle everyone = {reducer->replicas, reducer->rank, ranks};
    int hosts;
    adl_status status = exchange_facts(reducer, all, host_of, &hosts);
    for (int rank = 0; rank < reducer->replicas; rank++)
        ranks[rank] = rank;
    if (status == ADL_OK && wanted == ADL_TRANSPORT_SHM && hosts > 1)
        status = fail_apart(all, host_of);
    if (status != ADL_OK)
        return status;
    if (wanted == ADL_TRANSPORT_SHM) {
        reducer->kind = ADL_TRANSPORT_SHM;
        return adli_shm_new(reducer, &everyone, &reducer->transport);
    }
    if (wanted == ADL_TRANSPORT_AUTO && hosts == 1)
        status = take_if_made(reducer, adli_shm_new(reducer, &everyone, &reducer->transport),
                              ADL_TRANSPORT_SHM);
    else if (wanted == ADL_TRANSPORT_AUTO && hosts < reducer->replicas)
        status = take_if_made(reducer, adli_tiers_new(reducer, host_of, &reducer->transport),
                              ADL_TRANSPORT_TIERS);
    if (status == ADL_OK && !reducer->transport)
        status = use_ring(reducer, &everyone);
    return status;
}

adl_status adli_reducer_choose(adl_reducer *reducer)
{
    size_t replicas = (size_t)reducer->replicas;
    facts *all = adli_calloc(replicas, sizeof *all);
    int *numbers = adli_calloc(2 * replicas, sizeof *numbers);
    adl_status status =
        adli_reducer_agree(reducer, all && numbers ? ADL_OK : adli_fail_memory("a reducer"));
    if (status == ADL_OK)
        status = choose(reducer, all, numbers, numbers + replicas);
    free(all);
    free(numbers);
    return status;
}
