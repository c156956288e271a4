#include "train/transfer.h"

#include "adaptdl/epoch.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "train/checkpoint_store.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far a replica is. As bytes: u32 has, u32 ended, u64 applied, i64 epoch, i64 loops, name. */
typedef struct standing {
    bool has;         /* the state */
    bool ended;       /* the pass over the data is over */
    uint64_t applied; /* steps */
    int64_t epoch, loops;
    char loop[ADL_CHECKPOINT_NAME_MAX + 1];
} standing;

enum {
    STANDING_BYTES = 32 + ADL_CHECKPOINT_NAME_MAX + 1,
    AHEAD = 4, /* broadcasts under way at a time: one is made, sent, checked and loaded each */
};
static const uint64_t no_more = UINT64_MAX;

static standing own_standing(const adl_context *ctx)
{
    const adl_loop *loop = ctx->current;
    standing own = {.has = !ctx->joining, .applied = ctx->applied, .epoch = adl_current_epoch(ctx)};
    if (!loop)
        return own;
    own.ended = loop->at_end;
    own.loops = loop->seen_loops;
    snprintf(own.loop, sizeof own.loop, "%s", loop->name);
    return own;
}

static void encode(const standing *own, uint8_t *out)
{
    memset(out, 0, STANDING_BYTES);
    uint8_t *at = adli_put(out, own->has, 4);
    at = adli_put(at, own->ended, 4);
    at = adli_put_u64(at, own->applied);
    at = adli_put_u64(at, (uint64_t)own->epoch);
    at = adli_put_u64(at, (uint64_t)own->loops);
    adli_put_bytes(at, own->loop, strlen(own->loop));
}

static standing decode(const uint8_t *data)
{
    adli_reader reader = adli_reader_over(data, STANDING_BYTES);
    standing out = {.has = adli_get(&reader, 4) != 0};
    out.ended = adli_get(&reader, 4) != 0;
    out.applied = adli_get_u64(&reader);
    out.epoch = (int64_t)adli_get_u64(&reader);
    out.loops = (int64_t)adli_get_u64(&reader);
    memcpy(out.loop, adli_get_bytes(&reader, sizeof out.loop), sizeof out.loop);
    out.loop[sizeof out.loop - 1] = '\0';
    return out;
}

/* What is the same on all replicas, from what all have said. */
typedef struct outlook {
    standing first; /* rank 0 */
    bool needed;    /* some replica lacks the state */
    bool joins;     /* and one of them has not been in a world before */
    bool lacking;   /* this one does */
} outlook;

static adl_status judge(adl_context *ctx, const standing *all, outlook *out)
{
    const standing *first = &all[0];
    *out = (outlook){.first = *first};
    for (int r = 0; r < ctx->world.replicas; r++) {
        const standing *one = &all[r];
        bool behind = one->has && one->applied < first->applied;
        if (!first->has || (one->has && one->applied > first->applied))
            return adli_fail(ADL_ESTATE, "rank %d is ahead of rank 0", r);
        if (behind && (one->epoch != first->epoch || one->loops != first->loops ||
                       strcmp(one->loop, first->loop) != 0))
            return adli_fail(ADL_ESTATE,
                             "rank %d is a step behind in %s, rank 0 in another loop over %s", r,
                             one->loop, first->loop);
        out->needed |= behind || !one->has;
        out->joins |= !one->has;
        if (r == ctx->world.rank)
            out->lacking = behind || !one->has;
    }
    return ADL_OK;
}

static adl_status compare(adl_context *ctx, outlook *out)
{
    uint8_t own[STANDING_BYTES];
    standing mine = own_standing(ctx);
    size_t replicas = (size_t)ctx->world.replicas;
    size_t *offsets = adli_calloc(replicas + 1, sizeof *offsets);
    standing *all = adli_calloc(replicas, sizeof *all);
    void *gathered = NULL;
    encode(&mine, own);
    adl_status status = offsets && all ? ADL_OK : adli_fail_memory("a world");
    if (status == ADL_OK)
        status = adl_group_allgather(ctx->group, own, sizeof own, &gathered, offsets);
    for (size_t r = 0; status == ADL_OK && r < replicas; r++) {
        if (offsets[r + 1] - offsets[r] != STANDING_BYTES)
            status = adli_fail(ADL_EPEER, "rank %zu says how far it is in %zu bytes", r,
                               offsets[r + 1] - offsets[r]);
        else
            all[r] = decode((const uint8_t *)gathered + offsets[r]);
    }
    if (status == ADL_OK)
        status = judge(ctx, all, out);
    free(gathered);
    free(all);
    free(offsets);
    return status;
}

/* ---- rank 0 ------------------------------------------------------------------------------------ */

/* Broadcasts that were begun, the oldest first. */
typedef struct flow {
    adl_context *ctx;
    adl_future *ahead[AHEAD];
    int count;
    adl_future *held; /* whose bytes are being read; receivers only */
} flow;

static void flow_fini(flow *self)
{
    adl_future_free(self->held);
    for (int i = 0; i < self->count; i++)
        adl_future_free(self->ahead[i]);
    *self = (flow){.ctx = self->ctx};
}

static adl_status begin(flow *self, const void *data, size_t length)
{
    adl_status status =
        adl_group_broadcast_async(self->ctx->group, data, length, &self->ahead[self->count]);
    self->count += status == ADL_OK;
    return status;
}

/* Waits for the oldest, and holds it. */
static adl_status end_oldest(flow *self, const void **data, size_t *length)
{
    adl_future_free(self->held);
    self->held = self->ahead[0];
    self->count--;
    memmove(self->ahead, self->ahead + 1, (size_t)self->count * sizeof self->ahead[0]);
    return adl_future_wait(self->held, -1, data, length);
}

static adl_status broadcast(void *user, const void *data, size_t length)
{
    flow *self = user;
    adl_status status = self->count == AHEAD ? end_oldest(self, NULL, NULL) : ADL_OK;
    return status == ADL_OK ? begin(self, data, length) : status;
}

/* The others have begun so many more than they needed. */
static adl_status end_broadcasts(flow *self)
{
    adl_status status = ADL_OK;
    for (int i = 1; status == ADL_OK && i < AHEAD; i++)
        status = broadcast(self, "", 0);
    while (status == ADL_OK && self->count > 0)
        status = end_oldest(self, NULL, NULL);
    return status;
}

static adl_status count_only(void *user, const void *data, size_t length)
{
    (void)user, (void)data, (void)length;
    return ADL_OK;
}

static adl_status send_head(flow *out, const char *name, uint64_t length)
{
    uint8_t head[8 + ADL_CHECKPOINT_NAME_MAX + 1] = {0};
    adli_put_bytes(adli_put_u64(head, length), name, strlen(name));
    return broadcast(out, head, sizeof head);
}

/* Runs a state's save function into a drain. */
static adl_status pour(flow *out, const adl_checkpoint_state *state,
                       adl_status (*drain)(void *, const void *, size_t), uint64_t *length)
{
    adl_context *ctx = out->ctx;
    adl_sink sink;
    adli_sink_init(&sink, ctx->store->options.max_state_bytes);
    sink.drain = drain;
    sink.drain_user = out;
    sink.counts = drain == count_only;
    sink.sent = true;
    ctx->store->calling = true;
    adl_status status = state->functions.save(state->user, &sink);
    ctx->store->calling = false;
    if (status == ADL_OK)
        status = adli_sink_flush(&sink);
    *length = sink.drained;
    adli_sink_fini(&sink);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "state \"%s\": save", state->name);
}

/* Twice through the save function: for its length, which nothing is copied for, then for its bytes. */
static adl_status send_state(flow *out, const adl_checkpoint_state *state)
{
    uint64_t length, sent;
    adl_status status = pour(out, state, count_only, &length);
    if (status == ADL_OK)
        status = send_head(out, state->name, length);
    if (status == ADL_OK)
        status = pour(out, state, broadcast, &sent);
    if (status == ADL_OK && sent != length)
        status = adli_fail(ADL_ESTATE, "state \"%s\": %llu bytes, then %llu", state->name,
                           (unsigned long long)length, (unsigned long long)sent);
    return status;
}

static adl_status send_pending(flow *out, const adli_ckpt_value *value)
{
    adl_sink sink;
    adli_sink_init(&sink, UINT64_MAX);
    sink.drain = broadcast;
    sink.drain_user = out;
    adl_status status = send_head(out, value->name, value->length);
    if (status == ADL_OK)
        status = adl_sink_write(&sink, value->data, value->length);
    if (status == ADL_OK)
        status = adli_sink_flush(&sink);
    adli_sink_fini(&sink);
    return status;
}

/* What is not a state: does the job save, and, for one that joins, what has the program called. */
static adl_status send_rest(flow *out, bool joins)
{
    adl_context *ctx = out->ctx;
    size_t length = 0;
    uint8_t saves = ctx->saves;
    uint8_t *log = joins ? adli_replay_encode(ctx->replay, &length) : NULL;
    adl_status status = log || !joins
                            ? broadcast(out, &saves, 1)
                            : adli_fail(ADL_ESTATE, "the log of collective calls ran over");
    if (status == ADL_OK)
        status = broadcast(out, log ? log : (const uint8_t *)"", length);
    free(log);
    return status;
}

static adl_status send_all(adl_context *ctx, bool joins)
{
    adl_checkpoint *store = ctx->store;
    flow out = {.ctx = ctx};
    adl_status status = send_rest(&out, joins);
    for (size_t i = 0; status == ADL_OK && i < store->states_count; i++)
        status = send_state(&out, store->states[i]);
    for (size_t i = 0; status == ADL_OK && i < store->pending_count; i++)
        if (!adli_checkpoint_find(store, store->pending[i]->name))
            status = send_pending(&out, store->pending[i]);
    if (status == ADL_OK)
        status = send_head(&out, "", no_more);
    if (status == ADL_OK)
        status = end_broadcasts(&out);
    flow_fini(&out);
    return status;
}

/* ---- the others -------------------------------------------------------------------------------- */

/* What rank 0 broadcasts next, until the next call. More are begun, so that it does not wait for what is done here. */
static adl_status receive(void *user, const unsigned char **data, size_t *length)
{
    flow *in = user;
    const void *bytes = NULL;
    adl_status status = ADL_OK;
    while (status == ADL_OK && in->count < AHEAD)
        status = begin(in, NULL, 0);
    if (status == ADL_OK)
        status = end_oldest(in, &bytes, length);
    *data = bytes;
    return status;
}

static adl_status skip(adl_source *source)
{
    adl_status status = ADL_OK;
    while (status == ADL_OK && source->remaining > 0) {
        status = source->buffered
                     ? ADL_OK
                     : source->refill(source->refill_user, &source->at, &source->buffered);
        if (status == ADL_OK && source->buffered > source->remaining)
            status = adli_fail(ADL_EPEER, "a state is longer than it was said to be");
        if (status != ADL_OK)
            return status;
        source->remaining -= source->buffered;
        source->buffered = 0;
    }
    return status;
}

/* A state that nobody has registered yet waits for whoever does. */
static adl_status keep(adl_context *ctx, const char *name, adl_source *source)
{
    const void *data;
    size_t length = source->remaining;
    adl_status status = adl_source_view(source, length, &data);
    return status == ADL_OK ? adl_checkpoint_offer(ctx->store, name, data, length) : status;
}

static adl_status load(adl_context *ctx, const char *name, adl_source *source)
{
    adl_checkpoint *store = ctx->store;
    const adl_checkpoint_state *state = adli_checkpoint_find(store, name);
    ctx->loading = true;
    if (!state)
        return keep(ctx, name, source);
    if (!state->functions.load)
        return skip(source);
    store->calling = true;
    adl_status status = state->functions.load(state->user, source);
    store->calling = false;
    if (status == ADL_OK && source->remaining)
        status = adli_fail(ADL_ECORRUPT, "%zu bytes were not read", source->remaining);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "state \"%s\": load", name);
}

static adl_status receive_rest(flow *in, bool lacking)
{
    const unsigned char *data;
    size_t length;
    adl_context *ctx = in->ctx;
    adl_status status = receive(in, &data, &length);
    if (status == ADL_OK && length != 1)
        return adli_fail(ADL_EPEER, "rank 0 sent %zu bytes in place of one", length);
    bool saves = status == ADL_OK && data[0] != 0;
    if (status == ADL_OK)
        status = receive(in, &data, &length);
    if (status == ADL_OK && lacking && ctx->joining) {
        ctx->saves = saves;
        status = adli_replay_take(ctx->replay, data, length);
    }
    return status;
}

static adl_status receive_all(adl_context *ctx, bool lacking)
{
    flow in = {.ctx = ctx};
    const unsigned char *data;
    size_t length;
    adl_status status = receive_rest(&in, lacking);
    while (status == ADL_OK && (status = receive(&in, &data, &length)) == ADL_OK) {
        char name[ADL_CHECKPOINT_NAME_MAX + 1];
        adli_reader reader = adli_reader_over(data, length);
        adl_source source = {
            .remaining = adli_get_u64(&reader), .refill = receive, .refill_user = &in};
        const uint8_t *text = adli_get_bytes(&reader, sizeof name);
        if (!text || adli_reader_left(&reader) || text[sizeof name - 1]) {
            status = adli_fail(ADL_EPEER, "rank 0 sent a head of %zu bytes", length);
            break;
        }
        memcpy(name, text, sizeof name);
        if (source.remaining == no_more)
            break;
        status = lacking ? load(ctx, name, &source) : skip(&source);
        free(source.gathered);
    }
    while (status == ADL_OK && in.count > 0)
        status = end_oldest(&in, NULL, NULL);
    flow_fini(&in);
    return status;
}

adl_status adli_transfer(adl_context *ctx)
{
    outlook seen;
    adl_status status = compare(ctx, &seen);
    if (status != ADL_OK || !seen.needed)
        return status;
    status = ctx->world.rank == 0 ? send_all(ctx, seen.joins) : receive_all(ctx, seen.lacking);
    if (status != ADL_OK || !seen.lacking)
        return status;
    ctx->loading = false; /* all of it is here */
    ctx->applied = seen.first.applied;
    if (!ctx->joining)
        adli_loop_overtaken(ctx->current, seen.first.ended);
    return ADL_OK;
}
