/* Opening the checkpoint on many replicas at once. Rank 0 chooses (the newest complete one) and the
 * others load exactly that one, so that a checkpoint that only one of them can read, or one that is
 * written meanwhile by a straggler, cannot split the job. Replicas that do not see the directory at
 * all (no shared file system) are sent what rank 0 has read. */
#include "train/context.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 16 << 20 }; /* of a state, per broadcast */

static void log_line(void *user, const char *line)
{
    adli_log(user, ADL_LOG_WARNING, "%s", line);
}

static adl_checkpoint_options store_options(adl_context *ctx)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.keep_last = ctx->options.checkpoint_keep;
    options.restarts = ctx->env.restarts;
    options.program = ctx->options.program;
    options.is_writer = ctx->world.rank == 0 && !ctx->options.reads_only;
    options.interval_s = ctx->options.checkpoint_interval_s;
    options.log = log_line;
    options.log_user = ctx;
    return options;
}

/* Can files be made there? Better asked now than after an hour of training. */
static adl_status probe(const char *path)
{
    adli_buf name;
    adli_buf_init(&name, 4096);
    adli_buf_printf(&name, "%s/.probe-XXXXXX", path);
    adl_status status = adli_buf_check(&name);
    int fd = status == ADL_OK ? mkstemp(name.data) : -1;
    if (fd >= 0) {
        close(fd);
        unlink(name.data);
    } else if (status == ADL_OK) {
        status = adli_fail(ADL_EIO, "ADAPTDL_CHECKPOINT_PATH=%s: cannot be written: %s", path,
                           strerror(errno));
    }
    adli_buf_fini(&name);
    return status;
}

static adl_status open_rank0(adl_context *ctx)
{
    adl_checkpoint_options options = store_options(ctx);
    adl_status status = adl_checkpoint_open(ctx->env.checkpoint_path, &options, &ctx->store);
    if (status != ADL_OK)
        return status;
    return ctx->env.checkpoint_path && options.is_writer ? probe(ctx->env.checkpoint_path) : ADL_OK;
}

/* What rank 0 tells the others: whether it went well, and what it loaded or what was wrong. */
typedef struct verdict {
    int32_t status;
    int32_t saves; /* has it a place for checkpoints? */
    char text[ADLI_ERROR_MAX];
} verdict;

static adl_status share_verdict(adl_context *ctx, verdict *told)
{
    void *data = NULL;
    size_t length = 0;
    adl_status status = adl_group_broadcast(ctx->group, told, sizeof *told, &data, &length);
    if (status == ADL_OK && length != sizeof *told)
        status = adli_fail(ADL_EPEER, "rank 0 sent a verdict of %zu bytes", length);
    if (status == ADL_OK)
        memcpy(told, data, sizeof *told);
    told->text[sizeof told->text - 1] = '\0';
    free(data);
    return status;
}

/* Loads the checkpoint of that name; *missing when this replica cannot. */
static adl_status open_follower(adl_context *ctx, const char *loaded, bool *missing)
{
    adl_checkpoint_options options = store_options(ctx);
    options.only = *loaded ? loaded : "none";
    *missing = !ctx->env.checkpoint_path && *loaded;
    adl_status status = ADL_ENOENT;
    if (!*missing)
        status = adl_checkpoint_open(ctx->env.checkpoint_path, &options, &ctx->store);
    if (status == ADL_OK || status == ADL_ENOMEM)
        return status;
    *missing = *loaded != '\0';
    options.only = "none";
    return adl_checkpoint_open(NULL, &options, &ctx->store);
}

/* One pending value of rank 0 for those that miss it, in pieces. data is NULL on the others, where
 * the value is put together. */
static adl_status send_value(adl_context *ctx, const char *name, const char *data, size_t length,
                             bool missing)
{
    char *whole = missing ? adli_calloc(length, 1) : NULL;
    adl_status status = missing && !whole ? adli_fail_memory(name) : ADL_OK;
    for (size_t at = 0; at < length; at += PIECE_BYTES) {
        size_t piece = length - at < PIECE_BYTES ? length - at : PIECE_BYTES, got_length;
        void *got = NULL;
        adl_status sent = adl_group_broadcast(ctx->group, data ? data + at : NULL, data ? piece : 0,
                                              &got, &got_length);
        if (sent == ADL_OK && got_length != piece)
            sent = adli_fail(ADL_EPEER, "rank 0 sent %zu bytes of %s instead of %zu", got_length,
                             name, piece);
        if (sent == ADL_OK && whole)
            memcpy(whole + at, got, piece);
        free(got);
        if (sent != ADL_OK) {
            status = sent;
            break;
        }
    }
    if (status == ADL_OK && missing)
        status = adl_checkpoint_offer(ctx->store, name, whole, length);
    free(whole);
    return status;
}

typedef struct value_head {
    uint64_t length; /* UINT64_MAX: no more values */
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
} value_head;

static adl_status share_values(adl_context *ctx, bool missing)
{
    for (int i = 0;; i++) {
        const char *name = "";
        const void *data = NULL;
        size_t length = 0, got_length;
        value_head head = {.length = UINT64_MAX}, *got = NULL;
        if (ctx->world.rank == 0 &&
            adl_checkpoint_pending(ctx->store, i, &name, &data, &length) == ADL_OK) {
            head.length = length;
            snprintf(head.name, sizeof head.name, "%s", name);
        }
        adl_status status =
            adl_group_broadcast(ctx->group, &head, sizeof head, (void **)&got, &got_length);
        if (status == ADL_OK && got_length != sizeof head)
            status = adli_fail(ADL_EPEER, "rank 0 sent a head of %zu bytes", got_length);
        if (status == ADL_OK)
            head = *got;
        free(got);
        head.name[sizeof head.name - 1] = '\0';
        if (status != ADL_OK || head.length == UINT64_MAX)
            return status;
        status = send_value(ctx, head.name, data, head.length, missing);
        if (status != ADL_OK)
            return status;
    }
}

/* A process that joins gets the states from the others' memory; no checkpoint is read. */
static adl_status open_joining(adl_context *ctx)
{
    adl_checkpoint_options options = store_options(ctx);
    options.only = "none";
    options.is_writer = false;
    if (ctx->env.checkpoint_path &&
        adl_checkpoint_open(ctx->env.checkpoint_path, &options, &ctx->store) == ADL_OK)
        return ADL_OK;
    return adl_checkpoint_open(NULL, &options, &ctx->store);
}

adl_status adli_resume(adl_context *ctx)
{
    verdict told = {0};
    adl_status status = ADL_OK;
    bool missing = false;
    if (ctx->joining)
        return open_joining(ctx);
    if (ctx->world.rank == 0) {
        adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
        told.status = open_rank0(ctx);
        told.saves = ctx->env.checkpoint_path && !ctx->options.reads_only;
        if (told.status == ADL_OK)
            adl_checkpoint_get_info(ctx->store, &info);
        snprintf(told.text, sizeof told.text, "%s",
                 told.status == ADL_OK ? info.loaded : adl_error());
    }
    status = share_verdict(ctx, &told);
    ctx->saves = told.saves != 0;
    if (status == ADL_OK && told.status != ADL_OK)
        return adli_fail((adl_status)told.status, "%s", told.text);
    if (status == ADL_OK && ctx->world.rank != 0)
        status = open_follower(ctx, told.text, &missing);
    if (status != ADL_OK)
        return status;
    int64_t any_missing = missing;
    status = adl_group_allreduce(ctx->group, &any_missing, 1, ADL_TYPE_I64, ADL_REDUCE_OR);
    if (status == ADL_OK && any_missing)
        status = share_values(ctx, missing);
    if (status == ADL_OK && ctx->world.rank == 0 && *told.text)
        adli_log(ctx, ADL_LOG_INFO, "resuming from %s in %s", told.text, ctx->env.checkpoint_path);
    return status;
}
