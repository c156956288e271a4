/* Data parallel: the noise scale against a problem whose statistics are known, clipping, scaling,
 * skipping, saving. */
#include "noise.h"
#include "train_replicas.h"

#include "base/mem.h"
#include "base/rng.h"
#include "train/context.h"
#include "train/dp.h"
#include "train/loop.h"
#include "train/sample.h"

/* ---- a foreign optimizer that only watches ---------------------------------------------------- */

enum { D = 24 << 10, B0 = 16 };

typedef struct watcher {
    float value[D], grad[D];
    adl_param params[2];
    adl_param_group groups[2];
    adl_optim_ops ops;
    int steps, restarts;
    double factor[2]; /* of the last step */
    double norm;      /* of the gradient it was given */
    float divisor;    /* the preconditioner */
    double lr;
} watcher;

static adl_status watch_step(void *self, const double *lr_factor)
{
    watcher *seen = self;
    double sqr = 0;
    seen->steps++;
    for (size_t g = 0; g < seen->ops.group_count; g++)
        seen->factor[g] = lr_factor ? lr_factor[g] : 1;
    for (size_t g = 0; g < seen->ops.group_count; g++)
        for (size_t i = 0; i < seen->params[g].count; i++)
            sqr += (double)seen->params[g].grad[i] * seen->params[g].grad[i];
    seen->norm = sqrt(sqr);
    return ADL_OK;
}

static void watch_zero(void *self)
{
    memset(((watcher *)self)->grad, 0, sizeof((watcher *)self)->grad);
}

static double watch_lr(const void *self, size_t group)
{
    (void)group;
    return ((const watcher *)self)->lr;
}

static void watch_set_lr(void *self, size_t group, double lr)
{
    (void)group;
    ((watcher *)self)->lr = lr;
}

static void watch_precondition(const void *self, size_t group, size_t param, size_t first,
                               size_t count, float *out)
{
    const watcher *seen = self;
    if (group >= 2 || param != 0 || first + count > seen->params[group].count)
        abort();
    for (size_t i = 0; i < count; i++)
        out[i] = seen->divisor;
}

static int64_t watch_steps(const void *self)
{
    return ((const watcher *)self)->steps;
}

static void watch_restart(void *self)
{
    ((watcher *)self)->restarts++;
}

static size_t watch_save_size(const void *self)
{
    (void)self;
    return sizeof(int);
}

static void watch_save(const void *self, void *out)
{
    memcpy(out, &((const watcher *)self)->steps, sizeof(int));
}

static adl_status watch_load(void *self, const void *data, size_t length)
{
    if (length != sizeof(int))
        return adli_fail(ADL_ECORRUPT, "watcher of %zu bytes", length);
    memcpy(&((watcher *)self)->steps, data, sizeof(int));
    return ADL_OK;
}

/* Two groups, of a quarter and three quarters of the values. */
static void watcher_init(watcher *seen)
{
    *seen = (watcher){.divisor = 1, .lr = 0.5};
    seen->params[0] = (adl_param){"a", seen->value, seen->grad, D / 4};
    seen->params[1] = (adl_param){"b", seen->value + D / 4, seen->grad + D / 4, D - D / 4};
    for (int g = 0; g < 2; g++)
        seen->groups[g] = (adl_param_group){&seen->params[g], 1};
    seen->ops = (adl_optim_ops){.size = sizeof(adl_optim_ops),
                                .self = seen,
                                .kind = "watcher",
                                .group_count = 2,
                                .groups = seen->groups,
                                .step = watch_step,
                                .zero_grad = watch_zero,
                                .lr = watch_lr,
                                .set_lr = watch_set_lr,
                                .steps = watch_steps,
                                .restart = watch_restart,
                                .save_size = watch_save_size,
                                .save = watch_save,
                                .load = watch_load};
}

/* ---- the noise scale -------------------------------------------------------------------------- */

/* A synthetic problem: the gradient of one example is G + e, tr cov(e) = B0 * var, so that a batch of B0
 * has |G|^2 = sqr and tr(Sigma) = var. */
typedef struct problem {
    int replicas, accum_steps;
    double sqr, var;
    int steps;
    float divisor;     /* of the preconditioner, and the gradient is as much larger */
    double loss_scale; /* likewise */
    bool flat, hook;
    adl_grad_params found;
} problem;

static void make_gradient(watcher *seen, const problem *task, const adl_batch *batch, adli_rng *rng)
{
    double times = task->divisor * task->loss_scale;
    double mean_sqr = task->sqr / D, spread_sqr = task->var * B0 / D / batch->size;
    for (int i = 0; i < D; i += 16) { /* uneven over the parameters: sampling must not mind */
        double slope = 2.0 * (i + 7.5) / D;
        float mean = (float)(times * sqrt(mean_sqr * slope));
        float spread = (float)(times * sqrt(spread_sqr * (2 - slope)));
        for (int k = i; k < i + 16; k++)
            seen->grad[k] = mean + spread * adlt_noise(rng);
    }
}

static void run_problem(adlt_replica *replica)
{
    problem *task = replica->job->user;
    watcher *seen = malloc(sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader *loader;
    adl_dp *dp;
    adli_rng rng;
    watcher_init(seen);
    adli_rng_init(&rng, (uint64_t)(100 + replica->rank));
    if (task->divisor != 1) {
        seen->ops.precondition = watch_precondition;
        seen->divisor = task->divisor;
        seen->steps = 5; /* the preconditioner counts from here on */
    }
    options.optim = &seen->ops;
    options.bucket_bytes = 1024;
    if (task->flat)
        options.flat_grads = seen->grad, options.flat_count = D;
    data.examples = (size_t)(task->steps * B0);
    data.batch_size = B0;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    adl_dp_set_loss_scale(dp, task->loss_scale);
    if (task->accum_steps) { /* as if the model had chosen so: twice the batch in micro-batches */
        adl_loop *loop = adl_loader_loop(loader);
        REQUIRE_OK(adl_loader_autoscale(loader, 4 * B0, 0, B0, true));
        loop->local_bsz = 2 * B0 / replica->replicas / (task->accum_steps + 1);
        loop->accum_steps = task->accum_steps;
        loop->decided_replicas = replica->replicas;
    }
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            make_gradient(seen, task, batch, &rng);
            if (task->hook)
                for (size_t p = 2; p > 0; p--)
                    CHECK_OK(adl_dp_grad_ready(dp, p - 1));
            CHECK_OK(adl_dp_step(dp));
        }
    if (replica->rank == 0)
        task->found = adl_dp_grad_params(dp);
    CHECK_INT(adl_dp_skipped(dp), 0);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

static void solve(problem task)
{
    if (task.divisor == 0)
        task.divisor = 1;
    if (task.loss_scale == 0)
        task.loss_scale = 1;
    adlt_job job = {.user = &task};
    adlt_replicas_expect(&job, task.replicas, run_problem, 0);
    if (fabs(task.found.sqr / task.sqr - 1) > 0.05 || fabs(task.found.var / task.var - 1) > 0.05)
        ADLT_FAIL(
            "%d replicas, %d accumulation steps: |G|^2 %.4g for %.4g, tr(Sigma) %.4g for %.4g",
            task.replicas, task.accum_steps, task.found.sqr, task.sqr, task.found.var, task.var);
    printf("info - %d replicas x %d: |G|^2 off by %+.1f %%, tr(Sigma) by %+.1f %%\n", task.replicas,
           task.accum_steps + 1, 100 * (task.found.sqr / task.sqr - 1),
           100 * (task.found.var / task.var - 1));
}

TEST(noise_scale_is_found_on_one_two_and_four_replicas)
{
    solve((problem){.replicas = 1, .sqr = 2, .var = 3, .steps = 300});
    solve((problem){.replicas = 2, .sqr = 2, .var = 3, .steps = 300, .flat = true});
    solve((problem){.replicas = 4, .sqr = 0.5, .var = 5, .steps = 300, .hook = true});
}

/* 16 on 3 replicas are 6 + 5 + 5, on 7 they are 3 + 3 and five times 2. */
TEST(noise_scale_is_found_when_batches_are_dealt_out_unevenly)
{
    solve((problem){.replicas = 3, .sqr = 2, .var = 3, .steps = 300});
    solve((problem){.replicas = 7, .sqr = 0.5, .var = 5, .steps = 300, .hook = true});
    solve((problem){.replicas = 3, .sqr = 2, .var = 3, .steps = 300, .divisor = 7, .flat = true});
}

TEST(noise_scale_is_found_with_accumulation)
{
    solve((problem){.replicas = 1, .accum_steps = 3, .sqr = 2, .var = 3, .steps = 300});
    solve(
        (problem){.replicas = 2, .accum_steps = 1, .sqr = 2, .var = 3, .steps = 300, .hook = true});
    solve(
        (problem){.replicas = 4, .accum_steps = 1, .sqr = 1, .var = 8, .steps = 300, .flat = true});
}

TEST(noise_scale_of_preconditioned_and_of_scaled_gradients)
{
    solve((problem){.replicas = 1, .sqr = 2, .var = 3, .steps = 300, .divisor = 7});
    solve((problem){.replicas = 2, .sqr = 2, .var = 3, .steps = 300, .divisor = 7, .hook = true});
    solve((problem){.replicas = 1, .sqr = 2, .var = 3, .steps = 300, .loss_scale = 1024});
    solve((problem){.replicas = 2, .sqr = 2, .var = 3, .steps = 300, .loss_scale = 1024});
}

/* ---- scaling, clipping, skipping -------------------------------------------------------------- */

/* One process on a problem with a batch of `times` the initial one. */
typedef struct scaled {
    int times;
    const char *kind;
    const adl_scaling_rule *rule;
    double clip_norm;
    int nan_every, rank_of_nan, expected_steps;
    int grow_at; /* pass after which the batch doubles */
    bool diverge;
} scaled;

static int warned;

static void count_warned(void *user, adl_log_level level, const char *line)
{
    (void)user;
    if (level == ADL_LOG_WARNING && strstr(line, "not finite"))
        __atomic_add_fetch(&warned, 1, __ATOMIC_SEQ_CST);
}

static void check_step(const scaled *task, const adl_dp *dp, const watcher *seen)
{
    adl_grad_params grad = adl_dp_grad_params(dp);
    const adl_loop *loop = dp->ctx->current;
    double gain = adl_dp_gain(dp), accum_scale = adl_meter_accum_scale(dp->meter),
           scale = accum_scale * adl_meter_accum_count(dp->meter);
    CHECK_NEAR(accum_scale, dp->ctx->world.replicas * loop->local_bsz / (double)B0, 1e-12);
    CHECK_NEAR(gain, adl_gain(grad, scale), 1e-12);
    CHECK_NEAR(adl_dp_predict_gain(dp, scale), gain, 1e-12);
    bool adam_scale = task->kind && strcmp(task->kind, "adam") == 0;
    for (size_t g = 0; g < 2; g++) {
        adl_scaling_input input = {adl_noise_group_params(adl_meter_noise(dp->meter), g), scale, 0,
                                   B0};
        adl_scaling_rule usual = {.kind =
                                      adam_scale ? ADL_SCALING_ADAMSCALE : ADL_SCALING_ADASCALE};
        const adl_scaling_rule *rule = task->rule ? task->rule : &usual;
        CHECK_NEAR(seen->factor[g], adl_scaling_factor(rule, &input), 1e-12);
        CHECK(seen->factor[g] == adl_dp_lr_factor(dp, g));
    }
    if (task->clip_norm > 0)
        CHECK(seen->norm <= task->clip_norm / sqrt(gain) * (1 + 1e-5));
}

static void run_scaled(adlt_replica *replica)
{
    scaled *task = replica->job->user;
    watcher *seen = malloc(sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    problem source = {.sqr = 2, .var = 30, .divisor = 1, .loss_scale = 1};
    adl_loader *loader;
    adl_dp *dp;
    adli_rng rng;
    int steps = 0, clipped = 0;
    watcher_init(seen);
    adli_rng_init(&rng, (uint64_t)replica->rank);
    if (task->kind)
        seen->ops.kind = task->kind;
    replica->ctx->options.log = count_warned;
    options.optim = &seen->ops;
    options.rule = task->rule;
    options.clip_norm = task->clip_norm;
    data.examples = B0 * 256;
    data.batch_size = B0;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    adl_loop *loop = adl_loader_loop(loader);
    REQUIRE_OK(adl_loader_autoscale(loader, 1 << 20, 0, 0, true));
    loop->local_bsz = B0 * task->times / replica->replicas / 2;
    loop->accum_steps = 1;
    loop->decided_replicas = replica->replicas;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            make_gradient(seen, &source, batch, &rng);
            bool bad = task->nan_every && steps % task->nan_every == task->nan_every - 1;
            if ((bad || task->diverge) && replica->rank == task->rank_of_nan)
                seen->grad[D - 1] = NAN;
            int before = seen->steps;
            if (adl_dp_step(dp) != ADL_OK)
                break;
            steps++;
            if (seen->steps > before) {
                check_step(task, dp, seen);
                clipped += task->clip_norm > 0 &&
                           seen->norm > task->clip_norm / sqrt(adl_dp_gain(dp)) * (1 - 1e-5);
            }
            CHECK(seen->lr == 0.5); /* the rate itself is never touched */
        }
    if (task->clip_norm > 0)
        CHECK(clipped > 10);
    if (task->nan_every && !task->diverge)
        CHECK(adl_dp_skipped(dp) > 0 && adl_dp_skipped(dp) < steps);
    if (!task->diverge) {
        CHECK(isfinite(adl_dp_progress(dp)) && adl_dp_progress(dp) >= 256);
        CHECK_NEAR(adl_dp_grad_params(dp).var, 30, 0.15);
    }
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(the_rate_is_scaled_by_the_rule_for_the_step)
{
    static const adl_scaling_rule linear = {.kind = ADL_SCALING_LINEAR},
                                  root = {.kind = ADL_SCALING_SQRT};
    scaled tasks[] = {{.times = 4},
                      {.times = 4, .kind = "adam"},
                      {.times = 8, .rule = &linear},
                      {.times = 2, .rule = &root}};
    for (size_t i = 0; i < ADLI_COUNT(tasks); i++) {
        adlt_job job = {.user = &tasks[i]};
        adlt_replicas_expect(&job, 1 + (int)i % 2, run_scaled, 0);
    }
}

TEST(clipping_keeps_its_share_of_steps_at_any_scale)
{
    /* The typical norm at the initial batch is sqrt(2 + 30): about half the steps are clipped, at
     * every scale. */
    for (int times = 2; times <= 8; times *= 2) {
        scaled task = {.times = times, .clip_norm = sqrt(32)};
        adlt_job job = {.user = &task};
        adlt_replicas_expect(&job, 1, run_scaled, 0);
        adlt_replicas_expect(&job, 2, run_scaled, 0);
    }
}

TEST(gradients_that_are_not_finite_are_skipped_by_all)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        scaled task = {.times = 2, .nan_every = 9, .rank_of_nan = replicas - 1};
        adlt_job job = {.user = &task};
        warned = 0;
        adlt_replicas_expect(&job, replicas, run_scaled, 0);
        CHECK_INT(warned, 1);
        task.diverge = true; /* nothing but NaN: an error, not an endless loop */
        adlt_replicas_expect(&job, replicas, run_scaled, 1);
    }
}

/* The difference estimator must not stumble over a NaN for longer than a step. */
static void run_single_nan(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    problem source = {.sqr = 2, .var = 3, .divisor = 1, .loss_scale = 1};
    adl_loader *loader;
    adl_dp *dp;
    adli_rng rng;
    watcher_init(seen);
    adli_rng_init(&rng, 1);
    options.optim = &seen->ops;
    data.examples = B0 * 300 + 1; /* and a short batch at the end */
    data.batch_size = B0;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    ADL_EPOCHS (replica->ctx, epoch, 2)
        ADL_BATCHES (loader, batch) {
            make_gradient(seen, &source, batch, &rng);
            if (batch->number == 20)
                seen->grad[7] = INFINITY;
            if (batch->number == 100 ||
                batch->number == 101) /* pairs are about it at one turn in eight */
                seen->grad[D / 4 + 5 * ADLI_SAMPLE_CHUNK] = NAN;
            CHECK_OK(adl_dp_step(dp));
        }
    CHECK_INT(adl_dp_skipped(dp), 6);
    CHECK_INT(seen->steps, 602 - 6);
    CHECK_INT(dp->kept, D / 4 + 3 * ADLI_SAMPLE_CHUNK); /* of 18 chunks in the large one */
    CHECK_NEAR(adl_dp_grad_params(dp).sqr, 2, 0.05);
    CHECK_NEAR(adl_dp_grad_params(dp).var, 3, 0.05);
    CHECK_NEAR(adl_dp_progress(dp), 602 - 6, 1e-9);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(one_process_skips_only_the_step_that_is_not_finite)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_single_nan, 0);
}

/* Consecutive gradients that are nearly opposite: the squared norm of their mean is next to nothing, and
 * comes out below zero by rounding. */
static void run_opposite(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader *loader;
    adl_dp *dp;
    adli_rng rng;
    watcher_init(seen);
    adli_rng_init(&rng, 1);
    options.optim = &seen->ops;
    data.examples = B0 * 200;
    data.batch_size = B0;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            for (int i = 0; i < D; i++)
                seen->grad[i] = batch->number % 2 ? -seen->grad[i] * (1 + 1e-5f * adlt_noise(&rng))
                                                  : adlt_noise(&rng);
            CHECK_OK(adl_dp_step(dp));
        }
    CHECK_INT(seen->steps, 200);
    CHECK(adl_dp_grad_params(dp).sqr < 1e-3 * adl_dp_grad_params(dp).var);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(opposite_gradients_do_not_end_training)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_opposite, 0);
}

/* Adam's moments are restarted when the scale changes, and only then; or not at all. */
static void run_growing(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader *loader;
    adl_dp *dp;
    watcher_init(seen);
    options.optim = &seen->ops;
    data.examples = 100;
    data.batch_size = 10;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    adl_loop *loop = adl_loader_loop(loader);
    REQUIRE_OK(adl_loader_autoscale(loader, 100, 0, 100, false));
    loop->decided_replicas = 1;
    replica->ctx->env.keep_moments = *(const bool *)replica->job->user;
    static const int sizes[] = {10, 10, 20, 20, 10}, restarts[] = {0, 0, 1, 1, 2};
    for (int epoch_number = 0; epoch_number < 5; epoch_number++) {
        loop->local_bsz = loop->min_local = loop->max_local = sizes[epoch_number]; /* no choice */
        loop->max_batch_size = sizes[epoch_number];
        ADL_EPOCHS (replica->ctx, epoch, epoch_number + 1)
            ADL_BATCHES (loader, batch) {
                for (int i = 0; i < D; i++)
                    seen->grad[i] = (float)(1 + (i * batch->number) % 3);
                CHECK_OK(adl_dp_step(dp));
            }
        CHECK_INT(seen->restarts, replica->ctx->env.keep_moments ? 0 : restarts[epoch_number]);
    }
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(moments_are_restarted_when_the_scale_changes_unless_they_are_kept)
{
    static const bool kept[] = {true, false};
    for (int i = 0; i < 2; i++) {
        adlt_job job = {.user = (void *)&kept[i]};
        adlt_replicas_expect(&job, 1, run_growing, 0);
    }
}

/* ---- misuse, several wrappers, other checkpoints ---------------------------------------------- */

static void never(const void *self, size_t group, size_t param, size_t first, size_t count,
                  float *out)
{
    (void)self, (void)group, (void)param, (void)first, (void)count, (void)out;
    abort();
}

/* Each function that must be there is missed by name. */
static void check_required(adl_context *ctx, adl_dp_options *options, adl_optim_ops *ops)
{
    const adl_optim_ops whole = *ops;
    adl_dp *dp;
    ops->step = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no step");
    *ops = whole;
    ops->lr = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no lr");
    *ops = whole;
    ops->save_size = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no save_size");
    *ops = whole;
    ops->save = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no save");
    *ops = whole;
    ops->load = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no load");
    *ops = whole;
    ops->group_count = 0;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "the optimizer has no group_count");
    *ops = whole;
    ops->size = 7;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "adl_optim_ops: size is 7");
    *ops = whole;
    ops->precondition = never;
    ops->steps = NULL;
    CHECK_FAILS(adl_dp_new(ctx, options, &dp), ADL_EINVAL, "has precondition, but not steps");
    *ops = whole;
}

static void run_misuse(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_dp *dp, *again;
    watcher_init(seen);
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "there is no optimizer");
    options.optim = &seen->ops;
    options.name = "";
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "needs a name");
    options.name = "model";
    options.clip_norm = -1;
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "clip_norm");
    options.clip_norm = NAN;
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "clip_norm");
    options.clip_norm = 0;
    adl_scaling_rule legw = {.kind = ADL_SCALING_LEGW}; /* without a data size */
    options.rule = &legw;
    CHECK_INT(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL);
    options.rule = NULL;
    float *kept = seen->params[0].grad;
    seen->params[0].grad = NULL;
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "no name, value or gradient");
    seen->params[0].grad = kept;
    const adl_param_group *groups = seen->ops.groups;
    seen->ops.groups = NULL;
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &dp), ADL_EINVAL, "the optimizer has no groups");
    seen->ops.groups = groups;
    check_required(replica->ctx, &options, &seen->ops);
    seen->ops.kind = NULL; /* a foreign optimizer need not have a name */
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    CHECK_INT(dp->rule.kind, ADL_SCALING_ADASCALE);
    CHECK_FAILS(adl_dp_new(replica->ctx, &options, &again), ADL_ESTATE, "adaptdl.dp.model");
    CHECK(again == NULL);
    CHECK_FAILS(adl_dp_step(dp), ADL_ESTATE, "outside a loop over data");
    CHECK_INT(adl_context_status(replica->ctx), ADL_ESTATE);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

/* A step in another loop makes that one the training loop. */
static void run_two_loaders(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_loader *one, *two;
    adl_dp *dp;
    watcher_init(seen);
    options.optim = &seen->ops;
    data.examples = 8;
    data.batch_size = 4;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &one));
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &two));
    REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp));
    int steps = 0;
    ADL_EPOCHS (replica->ctx, epoch, 2) {
        ADL_BATCHES (one, batch) {
            CHECK_OK(adl_dp_step(dp));
            CHECK(adl_loop_training(adl_loader_loop(one)) &&
                  !adl_loop_training(adl_loader_loop(two)));
        }
        ADL_BATCHES (two, batch) {
            CHECK_OK(adl_dp_step(dp));
            CHECK(adl_loop_training(adl_loader_loop(two)) &&
                  !adl_loop_training(adl_loader_loop(one)));
            steps++;
        }
    }
    CHECK_INT(steps, 4);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(misuse_is_an_error_with_a_reason)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_misuse, 1);
}

TEST(two_training_loaders_take_turns)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_two_loaders, 0);
}

/* Two wrappers, as in a GAN, trained in one loop; the saved steps of each come back. */
static void run_two_wrappers(adlt_replica *replica)
{
    watcher *seen = malloc(2 * sizeof *seen);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    adl_dp *dp[2];
    int epochs = *(int *)replica->job->user, before = replica->job->restarts ? 5 : 0;
    data.examples = 20;
    data.batch_size = 4;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    for (int i = 0; i < 2; i++) {
        adl_dp_options options = ADL_DP_OPTIONS_INIT;
        watcher_init(&seen[i]);
        options.name = i ? "discriminator" : "generator";
        options.optim = &seen[i].ops;
        REQUIRE_OK(adl_dp_new(replica->ctx, &options, &dp[i]));
        CHECK_INT(seen[i].steps, i ? 2 * before : before);
        CHECK(fabs(adl_dp_progress(dp[i]) - seen[i].steps) < 1e-6);
    }
    CHECK(replica->ctx->primary == dp[0]->meter);
    ADL_EPOCHS (replica->ctx, epoch, epochs)
        ADL_BATCHES (loader, batch)
            for (int i = 0; i < 3; i++) { /* the discriminator twice */
                adl_dp *which = dp[i > 0];
                memset(seen[i > 0].grad, 0, sizeof seen->grad);
                seen[i > 0].grad[0] = 1;
                CHECK_OK(adl_dp_step(which));
            }
    CHECK_INT(seen[0].steps, 5 * epochs);
    CHECK_INT(seen[1].steps, 10 * epochs);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(several_wrappers_by_name)
{
    char *directory = adlt_tempdir();
    int epochs = 1;
    adlt_job job = {.checkpoint = directory, .user = &epochs};
    adlt_replicas_expect(&job, 2, run_two_wrappers, 0);
    epochs = 2;
    job.restarts = 1;
    adlt_replicas_expect(&job, 2, run_two_wrappers, 0);
    adlt_tempdir_remove(directory);
}

/* A checkpoint of another model. */
static void run_other_model(adlt_replica *replica)
{
    watcher *seen = malloc(sizeof *seen);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_dp *dp;
    watcher_init(seen);
    int variant = *(int *)replica->job->user;
    if (variant == 1)
        seen->params[0].count = 7;
    else if (variant == 2)
        seen->params[1].name = "c";
    else if (variant == 3)
        seen->ops.group_count = 1;
    options.optim = &seen->ops;
    adl_status status = adl_dp_new(replica->ctx, &options, &dp);
    static const char *const texts[] = {"", "a of 6144 values where this model has a of 7",
                                        "b of 18432 values where this model has c of 18432",
                                        "2 parameters, this model has 1"};
    CHECK_INT(status, variant == 0 ? ADL_OK : ADL_ECORRUPT);
    if (variant && !strstr(adl_error(), texts[variant]))
        ADLT_FAIL("\"%s\" lacks \"%s\"", adl_error(), texts[variant]);
    adl_context_fail(replica->ctx, status);
    replica->code = adl_finish(replica->ctx);
    free(seen);
    pthread_exit(NULL);
}

TEST(a_checkpoint_of_another_model_is_refused)
{
    char *directory = adlt_tempdir();
    int variant = 0;
    adlt_job job = {.checkpoint = directory, .user = &variant};
    adlt_replicas_expect(&job, 1, run_other_model, 0);
    for (variant = 1; variant <= 3; variant++)
        adlt_replicas_expect(&job, 1, run_other_model, 1);
    adlt_tempdir_remove(directory);
}
