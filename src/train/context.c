/* A context's life: from the environment to a group of replicas with an open checkpoint, and back to
 * an exit code. */
#include "train/context.h"

#include "base/clock.h"
#include "base/mask.h"
#include "base/mem.h"
#include "base/options.h"
#include "train/opener.h"
#include "train/regroup.h"
#include "train/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLOSE_TIMEOUT_MS = 30000 };
static const double give_up_after_s = 1;

void adli_log(adl_context *ctx, adl_log_level level, const char *format, ...)
{
    if (!ctx->options.log)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    adli_print_masked(line, sizeof line, format, args);
    va_end(args);
    ctx->options.log(ctx->options.log_user, level, line);
}

adl_status adli_context_own(adl_context *ctx, void *object, const adli_owned_ops *ops)
{
    adli_owned *entry = adli_calloc(1, sizeof *entry);
    if (!entry) {
        ops->free(object);
        return adli_fail_memory("context");
    }
    *entry = (adli_owned){.object = object, .ops = ops, .before = ctx->last_owned};
    *(ctx->last_owned ? &ctx->last_owned->next : &ctx->first_owned) = entry;
    ctx->last_owned = entry;
    return ADL_OK;
}

void adli_context_drop(adl_context *ctx, void *object)
{
    adli_owned *entry = ctx->last_owned;
    while (entry && entry->object != object)
        entry = entry->before;
    if (!entry)
        return;
    *(entry->before ? &entry->before->next : &ctx->first_owned) = entry->next;
    *(entry->next ? &entry->next->before : &ctx->last_owned) = entry->before;
    entry->ops->free(object);
    free(entry);
}

adl_status adli_state(adl_context *ctx, const char *name, const adl_checkpoint_functions *functions,
                      void *user, bool *found)
{
    adl_checkpoint_state *state;
    adl_status status = adl_checkpoint_register(ctx->store, name, functions, user, &state);
    if (status != ADL_OK)
        return status;
    status = adl_checkpoint_load_state(ctx->store, state, found);
    if (status != ADL_OK)
        adl_checkpoint_unregister(ctx->store, state);
    return status;
}

adl_status adl_state(adl_context *ctx, const char *name, const adl_checkpoint_functions *functions,
                     void *user, bool *found)
{
    if (strncmp(name, "adaptdl.", 8) == 0)
        return adli_fail(ADL_EINVAL, "state %s: names starting with \"adaptdl.\" are the library's",
                         name);
    return adli_state(ctx, name, functions, user, found);
}

static adl_status save_metrics(void *user, adl_sink *sink)
{
    return adli_metrics_save(user, sink, adli_monotonic_s());
}

static adl_status load_metrics(void *user, adl_source *source)
{
    return adli_metrics_load(user, source);
}

bool adli_give_up(void *user)
{
    adl_context *ctx = user;
    double now_s = adli_monotonic_s();
    if (!adli_stop_wanted(ctx))
        return false;
    if (ctx->stop_seen_s == 0)
        ctx->stop_seen_s = now_s;
    return now_s - ctx->stop_seen_s >= give_up_after_s;
}

/* ---- calls of the program, kept and replayed ---- */

static adl_status answer_call(void *user, adl_group *group, const adli_call *call, bool *answered,
                              uint8_t **data, size_t *length)
{
    adl_context *ctx = user;
    if (ctx->quiet > 0 || ctx->current || ctx->status != ADL_OK)
        return ADL_OK;
    if (ctx->joining) { /* a call before the first epoch: the others have made it */
        adl_status status = adl_context_fail(ctx, adli_join(ctx));
        if (status != ADL_OK)
            return status;
    }
    if (adli_replay_left(ctx->replay)) {
        *answered = true;
        adl_status status = adli_replay_next(ctx->replay, call, data, length);
        *answered = status == ADL_OK;
        return status;
    }
    if (group != ctx->alone)
        return ADL_OK;
    return adli_fail(ADL_ESTATE, "a collective call on a group that is no more: ask "
                                 "adl_context_group for the present one");
}

static bool wants_call(void *user, int *mark)
{
    const adl_context *ctx = user;
    *mark = ctx->in_epoch ? ctx->finished_epochs : ADLI_REPLAY_OUTSIDE;
    return ctx->quiet == 0 && !ctx->current;
}

static void record_call(void *user, int mark, const adli_call *call, const void *data,
                        size_t length)
{
    adl_context *ctx = user;
    adli_replay_add(ctx->replay, mark, call, data, length);
}

/* A process that joins a running job is a group of its own until a world has it. */
static adl_status stand_alone(adl_context *ctx)
{
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    return adl_group_new(&options, &ctx->group);
}

static adl_status form_group(adl_context *ctx)
{
    if (ctx->joining)
        return stand_alone(ctx);
    if (ctx->env.supervisor_url && ctx->world.replicas > 1) {
        char *discovered = NULL;
        adl_status status = adli_discover(ctx, &discovered);
        if (status != ADL_OK)
            return status;
        adli_world_take_master(&ctx->world, discovered);
    }
    adl_group_options options = adli_world_group(ctx, &ctx->world);
    options.listen_fd = ctx->options.listen_fd;
    return adl_group_new(&options, &ctx->group);
}

static adl_status check_options(const adl_options *options)
{
    if (!(options->checkpoint_interval_s >= 0))
        return adli_fail(ADL_EINVAL, "adl_options: checkpoint_interval_s must not be negative");
    if (options->checkpoint_keep < 1)
        return adli_fail(ADL_EINVAL, "adl_options: checkpoint_keep must be at least 1");
    if (!(options->hints_interval_s > 0))
        return adli_fail(ADL_EINVAL, "adl_options: hints_interval_s must be above 0");
    return ADL_OK;
}

static adl_status start(adl_context *ctx, const adl_options *options)
{
    adl_env env;
    adl_status status = check_options(options);
    if (status == ADL_OK && !options->env)
        status = adl_env_read(&env);
    if (status == ADL_OK)
        status = adli_env_copy_new(options->env ? options->env : &env, &ctx->env, &ctx->env_copy);
    if (status == ADL_OK)
        status = adli_env_check(&ctx->env);
    if (status == ADL_OK)
        status = adli_world_init(&ctx->world, &ctx->env);
    ctx->joining = ctx->env.joins;
    ctx->member = ctx->env.world_socket || ctx->env.joins ? ctx->env.member : ctx->env.rank;
    atomic_store(&ctx->several, ctx->world.replicas > 1);
    if (ctx->env.hints_interval_s > 0)
        ctx->options.hints_interval_s = ctx->env.hints_interval_s;
    if (ctx->env.connect_timeout_s > 0)
        ctx->options.connect_timeout_ms = 1000 * ctx->env.connect_timeout_s;
    if (ctx->env.checkpoint_interval_s != 0)
        ctx->options.checkpoint_interval_s =
            ctx->env.checkpoint_interval_s > 0 ? ctx->env.checkpoint_interval_s : 0;
    if (ctx->env.peer_timeout_s > 0)
        ctx->options.peer_timeout_ms = 1000 * ctx->env.peer_timeout_s;
    ctx->tap = (adli_tap){ctx, answer_call, wants_call, record_call};
    ctx->quiet = 1; /* until the program has the context */
    if (status == ADL_OK)
        status = adli_regrouping_new(&ctx->regrouping);
    if (status == ADL_OK)
        status = adli_replay_new(&ctx->replay);
    if (status == ADL_OK)
        status = adli_opener_start(ctx);
    if (status == ADL_OK)
        adli_metrics_on(&ctx->metrics, ctx->env.device_type ? ctx->env.device_type : "");
    if (status == ADL_OK && ctx->env.prior &&
        adli_metrics_prior(&ctx->metrics, ctx->env.prior) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "%s; it is not used", adl_error());
    if (status == ADL_OK && options->handle_signals)
        status = adli_signals_install(ctx);
    if (status == ADL_OK)
        status = form_group(ctx);
    if (status == ADL_OK)
        adli_group_set_tap(ctx->group, &ctx->tap);
    if (status == ADL_OK)
        status = adli_resume(ctx);
    if (status == ADL_OK)
        status = adli_epoch_register(ctx);
    if (status == ADL_OK)
        status = adli_steps_register(ctx);
    adl_checkpoint_functions functions = {sizeof functions, save_metrics, load_metrics, NULL};
    if (status == ADL_OK)
        status = adli_state(ctx, "adaptdl.metrics", &functions, &ctx->metrics, NULL);
    if (status == ADL_OK)
        status = adli_reports_start(ctx);
    if (status == ADL_OK && ctx->world.rank == 0 && ctx->env.supervisor_url && !ctx->joining)
        status = adli_hints_start(ctx);
    ctx->quiet = 0;
    return status;
}

/* Frees everything; the group's goodbye is sent by adl_group_free. */
static void free_context(adl_context *ctx)
{
    adli_hints_stop(ctx);
    adli_reports_stop(ctx);
    adli_opener_stop(ctx);
    while (ctx->last_owned)
        adli_context_drop(ctx, ctx->last_owned->object);
    adl_future_free(ctx->agreed);
    adl_future_free(ctx->sums_on_way);
    adli_regrouping_free(ctx->regrouping);
    adl_checkpoint_close(ctx->store);
    adl_group_free(ctx->group);
    adl_group_free(ctx->former);
    adl_group_free(ctx->alone);
    adli_replay_free(ctx->replay);
    adli_signals_remove(ctx);
    adli_metrics_fini(&ctx->metrics);
    adli_world_fini(&ctx->world);
    adli_env_copy_free(ctx->env_copy);
    free(ctx);
}

adl_status adl_init(const adl_options *given, adl_context **out)
{
    adl_options own = ADL_OPTIONS_INIT;
    const adl_options *options = &own;
    *out = NULL;
    adl_status status = adli_options_take("adl_options", &own, sizeof own, given);
    if (status != ADL_OK)
        return status;
    adl_context *ctx = adli_calloc(1, sizeof *ctx);
    if (!ctx)
        return adli_fail_memory("context");
    ctx->options = *options;
    adli_metrics_init(&ctx->metrics, adli_monotonic_s());
    status = start(ctx, options);
    if (status != ADL_OK) {
        char why[ADLI_ERROR_MAX];
        snprintf(why, sizeof why, "%s", adl_error());
        if (ctx->group)
            adl_group_abort(ctx->group, why);
        free_context(ctx);
        return adli_fail(status, "%s", why);
    }
    *out = ctx;
    return ADL_OK;
}

int adl_exit_code(adl_status status)
{
    return status == ADL_OK ? 0 : status == ADL_EINTR ? 143 : 1;
}

int adl_finish(adl_context *ctx)
{
    ctx->quiet++;
    if (ctx->status == ADL_OK && ctx->joining) /* a program without a loop over epochs */
        adl_context_fail(ctx, adli_fail(ADL_EINTR, "left before it had joined the others"));
    if (ctx->status == ADL_OK)
        adl_context_fail(ctx, adli_boundary_last(ctx));
    if (ctx->status == ADL_OK && ctx->saves) {
        adl_status saved = adli_save_now(ctx);
        if (saved != ADL_OK) {
            adli_wrap(saved, "the last checkpoint could not be saved");
            adl_context_fail(ctx, saved);
        }
    }
    int code = adl_exit_code(ctx->status);
    if (ctx->status == ADL_OK || ctx->status == ADL_EINTR) {
        if (ctx->save_failed)
            code = 1;
        /* A replica that is slower, or died after the last step, takes nothing from this one. */
        if (!ctx->left && adl_group_close(ctx->group, CLOSE_TIMEOUT_MS) != ADL_OK)
            adli_log(ctx, ADL_LOG_WARNING, "leaving the other replicas: %s", adl_error());
    } else {
        adli_log(
            ctx, ADL_LOG_ERROR, "%s%s", ctx->error,
            adli_stop_wanted(ctx) && ctx->env.checkpoint_path
                ? " (asked to stop, but no checkpoint was saved: the replicas are not together)"
                : "");
        adl_group_abort(ctx->group, ctx->error);
    }
    free_context(ctx);
    return code;
}

int adl_rank(const adl_context *ctx)
{
    return ctx->world.rank;
}

int adl_replicas(const adl_context *ctx)
{
    return ctx->world.replicas;
}

const adl_env *adl_context_env(const adl_context *ctx)
{
    return &ctx->env;
}

adl_group *adl_context_group(adl_context *ctx)
{
    return ctx->group;
}

adl_checkpoint *adl_context_store(adl_context *ctx)
{
    return ctx->store;
}

adl_status adl_context_status(const adl_context *ctx)
{
    return ctx->status;
}

const char *adl_context_error(const adl_context *ctx)
{
    return ctx->error;
}

bool adl_stopped(const adl_context *ctx)
{
    return ctx->status != ADL_OK;
}

adl_status adl_context_fail(adl_context *ctx, adl_status status)
{
    if (status == ADL_OK || ctx->status != ADL_OK)
        return status;
    snprintf(ctx->error, sizeof ctx->error, "%s", adl_error());
    ctx->status = status;
    /* Replicas that are not at the same step make calls that do not match, or lose each other: what
     * the last boundary says of them explains the rest. */
    if ((status == ADL_EINVAL || status == ADL_EPEER) && adli_boundary_apart(ctx)) {
        snprintf(ctx->error, sizeof ctx->error, "%s", adl_error());
        ctx->status = ADL_ESTATE;
    }
    return ctx->status;
}

adl_status adl_context_failf(adl_context *ctx, adl_status status, const char *format, ...)
{
    char text[ADLI_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return adl_context_fail(ctx, adli_fail(status, "%s", text));
}

void adl_stop(adl_context *ctx)
{
    atomic_store(&ctx->stop_wanted, true);
}

void adl_save(adl_context *ctx)
{
    atomic_store(&ctx->save_wanted, true);
}
