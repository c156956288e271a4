/* The adaptive data loader: what is yielded, where, and again after restarts; batch sizes; misuse. */
#include "train_replicas.h"

#include "base/mem.h"
#include "base/rng.h"
#include "train/context.h"
#include "train/loop.h"

enum { N_MAX = 512 };

/* What all replicas together saw. */
typedef struct tally {
    pthread_mutex_t lock;
    int examples, batch_size, epochs, workers;
    bool drop_last;
    int stop_epoch;
    uint64_t stop_at; /* examples consumed in that epoch; UINT64_MAX: never */
    int seen[8][N_MAX], extra;
    int batches;
    uint64_t seeds[4096];
    int seed_count;
} tally;

/* Writes each example's number, and 1000 + it as a label. */
static adl_status fill_numbers(void *user, const adl_fill *fill)
{
    (void)user;
    int32_t *number = fill->part[0];
    double *label = fill->part[1];
    if ((uintptr_t)number % 64 || (uintptr_t)label % 64)
        return adli_fail(ADL_EINVAL, "parts are not aligned");
    for (int i = 0; i < fill->count; i++) {
        number[i] = (int32_t)fill->index[i];
        label[i] = 1000.0 + (double)fill->index[i];
    }
    return ADL_OK;
}

static adl_loader *make_loader(adlt_replica *replica, const tally *sums)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader = NULL;
    options.examples = (size_t)sums->examples;
    options.batch_size = sums->batch_size;
    options.shuffle = true;
    options.drop_last = sums->drop_last;
    options.workers = sums->workers;
    options.part_bytes[0] = sizeof(int32_t);
    options.part_bytes[1] = sizeof(double);
    options.fill = fill_numbers;
    CHECK_OK(adl_loader_new(replica->ctx, &options, &loader));
    return loader;
}

static void count_batch(tally *sums, int epoch, const adl_batch *batch)
{
    const int32_t *number = batch->part[0];
    const double *label = batch->part[1];
    pthread_mutex_lock(&sums->lock);
    sums->batches++;
    sums->extra += batch->extra;
    for (int i = 0; i < batch->size; i++) {
        CHECK_INT(number[i], batch->index[i]);
        CHECK(label[i] == 1000.0 + number[i]);
        if (i < batch->size - batch->extra)
            sums->seen[epoch][number[i]]++;
    }
    if (sums->seed_count < 4096)
        sums->seeds[sums->seed_count++] = batch->seed;
    pthread_mutex_unlock(&sums->lock);
}

static void run_epochs(adlt_replica *replica)
{
    tally *sums = replica->job->user;
    adl_loader *loader = make_loader(replica, sums);
    if (!loader)
        return;
    int replicas = replica->replicas, total = sums->batch_size;
    if (total < replicas)
        total = replicas;
    int local = total / replicas + (replica->rank < total % replicas);
    ADL_EPOCHS (replica->ctx, epoch, sums->epochs) {
        int64_t number = 0;
        ADL_BATCHES (loader, batch) {
            CHECK_INT(batch->number, number++);
            CHECK(batch->size == local || batch->size < local);
            CHECK(batch->optim_step);
            CHECK_INT(adl_loop_local_bsz(adl_loader_loop(loader)), local);
            CHECK_INT(adl_loop_batch_size(adl_loader_loop(loader)), total);
            count_batch(sums, epoch, batch);
            if (epoch == sums->stop_epoch && batch->done >= sums->stop_at)
                adl_stop(replica->ctx);
        }
        CHECK(adl_current_loop(replica->ctx) == NULL);
    }
}

static void expect_once(const tally *sums)
{
    for (int epoch = 0; epoch < sums->epochs; epoch++)
        for (int i = 0; i < sums->examples; i++)
            if (sums->seen[epoch][i] != 1)
                ADLT_FAIL("example %d of epoch %d: seen %d times (n %d, B %d)", i, epoch,
                          sums->seen[epoch][i], sums->examples, sums->batch_size);
}

TEST(every_example_once_per_epoch_on_any_number_of_replicas)
{
    for (int replicas = 1; replicas <= 4; replicas++)
        for (int workers = 0; workers <= 3; workers += 3) {
            tally sums = {.lock = PTHREAD_MUTEX_INITIALIZER,
                          .examples = 101,
                          .batch_size = 8,
                          .epochs = 3,
                          .stop_epoch = -1,
                          .workers = workers};
            adlt_job job = {.user = &sums};
            adlt_replicas_expect(&job, replicas, run_epochs, 0);
            expect_once(&sums);
            /* Twelve batches of 8 and the rest of 5: on 3 replicas 2 + 2 + 1, on 4 two each. */
            CHECK_INT(sums.batches, 3 * replicas * 13);
            CHECK_INT(sums.extra,
                      replicas == 3 ? 0 : 3 * (replicas - 101 % replicas) % (3 * replicas));
        }
}

TEST(resuming_on_another_number_of_replicas_loses_and_repeats_nothing)
{
    adli_rng rng;
    adli_rng_init(&rng, 5);
    for (int i = 0; i < 25; i++) {
        char *directory = adlt_tempdir();
        tally sums = {.lock = PTHREAD_MUTEX_INITIALIZER, .epochs = 3};
        sums.examples = adli_rng_range(&rng, 1, 200);
        sums.batch_size = adli_rng_range(&rng, 1, 40);
        sums.workers = adli_rng_range(&rng, 0, 2);
        adlt_job job = {.checkpoint = directory, .user = &sums};
        for (int stops = adli_rng_range(&rng, 1, 3); stops >= 0; stops--) {
            sums.stop_epoch = stops ? 3 - stops - 1 : -1;
            sums.stop_at = adli_rng_below(&rng, (uint32_t)sums.examples);
            adlt_replica all[ADLT_REPLICAS_MAX];
            int replicas = adli_rng_range(&rng, 1, 4);
            adlt_replicas_run(&job, replicas, run_epochs, all);
            for (int r = 0; r < replicas; r++)
                CHECK(all[r].code == all[0].code && (all[r].code == 0 || all[r].code == 143));
            job.restarts++;
        }
        expect_once(&sums);
        adlt_tempdir_remove(directory);
    }
}

TEST(drop_last_leaves_out_the_short_batch)
{
    tally sums = {.lock = PTHREAD_MUTEX_INITIALIZER,
                  .examples = 10,
                  .batch_size = 4,
                  .epochs = 1,
                  .stop_epoch = -1,
                  .drop_last = true,
                  .workers = 1};
    adlt_job job = {.user = &sums};
    adlt_replicas_expect(&job, 1, run_epochs, 0);
    CHECK_INT(sums.batches, 2);
    sums.batches = 0;
    sums.batch_size = 40; /* the only batch is kept */
    adlt_replicas_expect(&job, 1, run_epochs, 0);
    CHECK_INT(sums.batches, 1);
}

TEST(seeds_differ_between_batches_epochs_and_replicas)
{
    tally sums = {.lock = PTHREAD_MUTEX_INITIALIZER,
                  .examples = 64,
                  .batch_size = 8,
                  .epochs = 3,
                  .stop_epoch = -1,
                  .workers = 1};
    adlt_job job = {.user = &sums};
    adlt_replicas_expect(&job, 2, run_epochs, 0);
    CHECK_INT(sums.seed_count, 48);
    for (int i = 0; i < sums.seed_count; i++)
        for (int k = 0; k < i; k++)
            CHECK(sums.seeds[i] != sums.seeds[k]);
}

/* Seeds of the fill callback, by replica and worker. */
typedef struct seed_log {
    pthread_mutex_t lock;
    uint64_t seed[4096];
    int count, workers_seen[4];
} seed_log;

static adl_status fill_seed(void *user, const adl_fill *fill)
{
    seed_log *log = user;
    pthread_mutex_lock(&log->lock);
    log->seed[log->count++] = fill->seed;
    if (fill->worker >= 0 && fill->worker < 4)
        log->workers_seen[fill->worker]++;
    pthread_mutex_unlock(&log->lock);
    *(int32_t *)fill->part[0] = 0;
    usleep(200); /* so that every worker gets a turn */
    return ADL_OK;
}

static void run_seeds(adlt_replica *replica)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = 300;
    options.batch_size = 2 * replica->replicas;
    options.workers = 4;
    options.prefetch = 8;
    options.part_bytes[0] = sizeof(int32_t);
    options.fill = fill_seed;
    options.user = replica->job->user;
    REQUIRE_OK(adl_loader_new(replica->ctx, &options, &loader));
    ADL_EPOCHS (replica->ctx, epoch, 2)
        ADL_BATCHES (loader, batch)
            CHECK(batch->part[0] && !batch->part[1]);
}

TEST(workers_of_all_replicas_get_distinct_seeds)
{
    static seed_log log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adlt_job job = {.user = &log};
    adlt_replicas_expect(&job, 2, run_seeds, 0);
    CHECK_INT(log.count, 2 * 2 * 75);
    for (int i = 0; i < log.count; i++)
        for (int k = 0; k < i; k++)
            CHECK(log.seed[i] != log.seed[k]);
    for (int w = 0; w < 4; w++)
        CHECK(log.workers_seen[w] > 0);
}

static void break_and_return(adlt_replica *replica)
{
    tally sums = {.examples = 40, .batch_size = 4, .workers = 2};
    adl_loader *loader = make_loader(replica, &sums);
    if (!loader)
        return;
    ADL_EPOCHS (replica->ctx, epoch, 2) {
        int runs = 0;
        ADL_BATCHES (loader, batch) {
            if (++runs == 3)
                break;
        }
        CHECK_INT(runs, 3);
        CHECK(adl_current_loop(replica->ctx) == NULL);
        runs = 0;
        ADL_BATCHES (loader, batch) { /* from the start again: it is another loop */
            CHECK_INT(batch->done, 4 * runs);
            runs++;
        }
        CHECK_INT(runs, 10);
    }
}

TEST(a_loop_can_be_left_in_the_middle)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, break_and_return, 0);
    adlt_replicas_expect(&job, 2, break_and_return, 0);
}

/* Three loops over one loader and one over another, per epoch; the stop comes in the second. */
typedef struct ordinals {
    int runs[2][4]; /* batches by start and loop */
    int start;
} ordinals;

static void run_ordinals(adlt_replica *replica)
{
    ordinals *log = replica->job->user;
    tally sums = {.examples = 20, .batch_size = 4, .workers = 1};
    adl_loader *one = make_loader(replica, &sums), *two = make_loader(replica, &sums);
    if (!one || !two)
        return;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        for (int loop = 0; loop < 4; loop++)
            ADL_BATCHES (loop == 3 ? two : one, batch) {
                if (replica->rank == 0)
                    log->runs[log->start][loop]++;
                if (log->start == 0 && loop == 1 && batch->done == 8)
                    adl_stop(replica->ctx);
            }
}

TEST(finished_loops_of_an_epoch_are_skipped)
{
    char *directory = adlt_tempdir();
    ordinals log = {0};
    adlt_job job = {.checkpoint = directory, .user = &log};
    adlt_replicas_expect(&job, 1, run_ordinals, 143);
    job.restarts = 1;
    log.start = 1;
    adlt_replicas_expect(&job, 1, run_ordinals, 0);
    static const int wanted[2][4] = {{5, 3, 0, 0}, {0, 2, 5, 5}};
    for (int start = 0; start < 2; start++)
        for (int loop = 0; loop < 4; loop++)
            CHECK_INT(log.runs[start][loop], wanted[start][loop]);
    adlt_tempdir_remove(directory);
}

static void outside(adlt_replica *replica)
{
    tally sums = {.examples = 20, .batch_size = 4};
    adl_loader *loader = make_loader(replica, &sums);
    ADL_BATCHES (loader, batch)
        ADLT_FAIL("%s", "a batch outside an epoch");
    CHECK_INT(adl_context_status(replica->ctx), ADL_ESTATE);
    CHECK(strstr(adl_context_error(replica->ctx), "loader-0: a loop over data outside an epoch"));
}

static void overlap(adlt_replica *replica)
{
    tally sums = {.examples = 20, .batch_size = 4};
    adl_loader *one = make_loader(replica, &sums), *two = make_loader(replica, &sums);
    int runs = 0;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (one, a) {
            runs++;
            ADL_BATCHES (two, b)
                ADLT_FAIL("%s", "a batch inside another loop");
        }
    CHECK_INT(runs, 1);
    CHECK(strstr(adl_context_error(replica->ctx),
                 "loader-1: a loop over data inside the loop over loader-0"));
}

static adl_status fill_fails(void *user, const adl_fill *fill)
{
    (void)user;
    return fill->index[0] == 8 ? adli_fail(ADL_EIO, "image 8: truncated") : ADL_OK;
}

static void broken_data(adlt_replica *replica)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    int runs = 0;
    options.name = "train";
    options.examples = 20;
    options.batch_size = 4;
    options.part_bytes[0] = 1;
    options.fill = fill_fails;
    REQUIRE_OK(adl_loader_new(replica->ctx, &options, &loader));
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch)
            runs++;
    CHECK_INT(runs, 2);
    CHECK_INT(adl_context_status(replica->ctx), ADL_EIO);
    CHECK_STR(adl_context_error(replica->ctx), "train: filling a batch: image 8: truncated");
}

TEST(misuse_and_broken_data_stop_the_context)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, outside, 1);
    adlt_replicas_expect(&job, 1, overlap, 1);
    adlt_replicas_expect(&job, 1, broken_data, 1);
}

static void bad_options(adlt_replica *replica)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = 0, options.batch_size = 4;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "0 examples");
    options.examples = 10, options.batch_size = 0;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "batches of 0");
    options.batch_size = 4, options.workers = -1;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "workers is -1");
    options.workers = 1, options.prefetch = 0;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "prefetch is 0");
    options.prefetch = 1, options.part_bytes[0] = 4;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "no fill function");
    options.part_bytes[0] = 0, options.size = 0;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &loader), ADL_EINVAL, "size");
    options.size = sizeof options, options.name = "data";
    CHECK_OK(adl_loader_new(replica->ctx, &options, &loader));
    adl_loader *again;
    CHECK_FAILS(adl_loader_new(replica->ctx, &options, &again), ADL_ESTATE, "data");
    CHECK_FAILS(adl_loader_autoscale(loader, 3, 0, 0, false), ADL_EINVAL, "max_batch_size 3");
    CHECK_FAILS(adl_loader_autoscale(loader, 8, 5, 0, false), ADL_EINVAL, "min_local 5");
    CHECK_FAILS(adl_loader_autoscale(loader, 8, 0, 3, false), ADL_EINVAL, "max_local 3");
    CHECK_OK(adl_loader_autoscale(loader, 8, 4, 4, false));
    CHECK_OK(adl_loader_autoscale(loader, 8, 0, 0, true));
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch)
            CHECK(batch->size > 0);
    CHECK(strstr(adl_context_error(replica->ctx), "no training step was taken"));
}

TEST(options_are_checked_by_name)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, bad_options, 1);
}

static void grown_data(adlt_replica *replica)
{
    tally sums = {.examples = *(int *)replica->job->user, .batch_size = 4};
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = (size_t)sums.examples;
    options.batch_size = 4;
    adl_status status = adl_loader_new(replica->ctx, &options, &loader);
    if (sums.examples == 20) {
        CHECK_OK(status);
    } else {
        CHECK_INT(status, ADL_EINVAL);
        CHECK(strstr(adl_error(), "the checkpoint is of 20 examples, the data set has 21"));
        adl_context_fail(replica->ctx, status);
    }
}

TEST(a_checkpoint_of_another_data_set_is_refused)
{
    char *directory = adlt_tempdir();
    int examples = 20;
    adlt_job job = {.checkpoint = directory, .user = &examples};
    adlt_replicas_expect(&job, 1, grown_data, 0);
    examples = 21;
    adlt_replicas_expect(&job, 1, grown_data, 1);
    adlt_tempdir_remove(directory);
}

/* ---- autoscaling, with statistics given by the test ------------------------------------------- */

/* Pretends to be a model that was measured: fast in large batches, or not. */
static void pretend(adl_context *ctx, double beta_c, double var)
{
    pthread_mutex_lock(&ctx->metrics.lock);
    ctx->metrics.perf = (adl_perf_params){1.0, beta_c, 0.1, 0.01, 0.1, 0.01, 1.5};
    ctx->metrics.fitted = true;
    pthread_mutex_unlock(&ctx->metrics.lock);
    adli_metrics_gradient(&ctx->metrics, (adl_grad_params){1, var}, true,
                          adli_metrics_progress(&ctx->metrics));
}

/* As adl_dp_step would: one unit of progress each. */
static void step_progress(adl_context *ctx, double gain)
{
    CHECK_OK(adli_loop_trains(ctx->current));
    adli_metrics_gradient(&ctx->metrics, ctx->metrics.grad, true,
                          adli_metrics_progress(&ctx->metrics) + gain);
}

static void run_autoscale(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 200, .batch_size = 10};
    adl_loader *loader = make_loader(replica, &sums);
    if (!loader)
        return;
    adl_loop *loop = adl_loader_loop(loader);
    REQUIRE_OK(adl_loader_autoscale(loader, 80, 0, 40, false));
    ctx->env.original_rule = true;
    ADL_EPOCHS (ctx, epoch, 3) {
        int steps = 0;
        if (epoch == 1)
            pretend(ctx, 1e-4, 1e6); /* large batches cost nothing and lose nothing */
        ADL_BATCHES (loader, batch) {
            bool scaled = epoch > 0 && replica->replicas > 1; /* one cannot without accumulation */
            CHECK_INT(adl_loop_batch_size(loop), scaled ? 80 : replica->replicas == 4 ? 12 : 10);
            step_progress(ctx, adl_loop_batch_size(loop) / 10.0);
            steps++;
        }
        /* One pass at the initial size is 200 / 10 = 20 iterations of progress. */
        CHECK(adli_metrics_progress(&ctx->metrics) >= 20 * (epoch + 1));
        CHECK(adli_metrics_progress(&ctx->metrics) < 20 * (epoch + 1) + 8);
        CHECK(steps >= 2);
    }
}

TEST(a_pass_ends_by_progress_and_the_model_chooses)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_autoscale, 0);
    adlt_replicas_expect(&job, 2, run_autoscale, 0);
    adlt_replicas_expect(&job, 4, run_autoscale, 0);
}

/* 4 = 2 + 1 + 1 would be below the bound of 2; one of 3 cannot be kept, and then the batch stays as it is. */
static void run_lower_bound(adlt_replica *replica)
{
    tally sums = {.examples = 60, .batch_size = 4};
    adl_loader *loader = make_loader(replica, &sums);
    int bound = *(const int *)replica->job->user;
    REQUIRE_OK(adl_loader_autoscale(loader, 8, bound, 0, false));
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            CHECK_INT(batch->size, bound == 2 || replica->rank == 0 ? 2 : 1);
            break;
        }
}

TEST(no_replica_gets_less_than_the_lower_bound_where_it_fits)
{
    for (int bound = 1; bound <= 3; bound++) {
        adlt_job job = {.user = &bound};
        adlt_replicas_expect(&job, 3, run_lower_bound, 0);
    }
}

static void run_indivisible(adlt_replica *replica)
{
    tally sums = {.examples = 60, .batch_size = 10};
    adl_loader *loader = make_loader(replica, &sums);
    bool original = *(const bool *)replica->job->user;
    REQUIRE(loader != NULL);
    replica->ctx->env.original_rule = original;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            CHECK_INT(batch->size, original || replica->rank < 2 ? 3 : 2);
            CHECK_INT(adl_loop_batch_size(adl_loader_loop(loader)), original ? 12 : 10);
        }
}

TEST(a_batch_that_does_not_divide_is_kept_and_rounded_up_by_the_original_rule)
{
    for (int original = 0; original <= 1; original++) {
        bool rule = original;
        adlt_job job = {.user = &rule};
        adlt_replicas_expect(&job, 4, run_indivisible, 0);
    }
}

static void run_slow_progress(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 20, .batch_size = 10};
    int seen[20] = {0}, steps = 0;
    adl_loader *loader = make_loader(replica, &sums);
    REQUIRE_OK(adl_loader_autoscale(loader, 40, 0, 0, false));
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            for (int i = 0; i < batch->size; i++)
                seen[batch->index[i]]++;
            CHECK_INT(batch->done, 10 * steps);
            steps++;
            step_progress(ctx, 0.25);
        }
    CHECK_INT(steps, 8); /* four passes over the data */
    for (int i = 0; i < 20; i++)
        CHECK_INT(seen[i], 4);
}

TEST(the_data_may_be_gone_over_more_than_once)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_slow_progress, 0);
}

/* A slow constant part and a large noise scale: large batches are best. */
static const char prior[] = "{\"initBatchSize\":8,\"gradParams\":{\"norm\":0.01,\"var\":10},"
                            "\"perfParams\":{\"alpha_c\":0.1,"
                            "\"beta_c\":0.001,\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,"
                            "\"beta_r\":0.001,\"gamma\":1.5}}";

static void run_prior(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 64, .batch_size = 8};
    adl_loader *loader = make_loader(replica, &sums);
    REQUIRE_OK(adl_loader_autoscale(loader, 64, 0, 64, true));
    CHECK_FAILS(adli_metrics_prior(&ctx->metrics, "{}"), ADL_EINVAL, "ADAPTDL_PRIOR");
    CHECK_FAILS(adli_metrics_prior(&ctx->metrics, "nonsense"), ADL_EINVAL, "ADAPTDL_PRIOR");
    REQUIRE_OK(adli_metrics_prior(&ctx->metrics, prior));
    int first = 0;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            first = first ? first : batch->size * (adl_loader_loop(loader)->accum_steps + 1);
            step_progress(ctx, 10);
        }
    CHECK(first > 16); /* nothing was measured yet, and the initial batch size is 8 */
    /* measurements that contradict it, not merely a slower machine, end its say */
    adl_goodput model;
    adl_profile_point points[2] = {{1, 1, 8, 0.5, 0.54, 0}, {1, 1, 64, 0.8, 0.82, 0}};
    REQUIRE(adli_metrics_goodput(&ctx->metrics, 8, &model));
    CHECK(adli_prior_holds(&model.perf, points, 2)); /* five times slower */
    points[0].optim_time_s = 0.002;
    CHECK(!adli_prior_holds(&model.perf, points, 2));
    points[0].optim_time_s = NAN;
    CHECK(!adli_prior_holds(&model.perf, points, 2));
}

TEST(the_first_batch_size_is_chosen_by_what_others_measured)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_prior, 0);
}

static void run_threshold(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 64, .batch_size = 8};
    adl_loader *loader = make_loader(replica, &sums);
    adl_loop *loop = adl_loader_loop(loader);
    REQUIRE_OK(adl_loader_autoscale(loader, 64, 0, 64, true));
    ctx->env.original_rule = true;
    pretend(ctx, 1e-2, 20);
    loop->entered = true; /* choose without going through a loop */
    CHECK_OK(adli_loop_choose(loop));
    int first_bsz = loop->local_bsz, first_accum = loop->accum_steps;
    adl_goodput model;
    adl_batch_limits limits = {64, 0, 64, true, false};
    adl_batch_choice best;
    CHECK(adli_metrics_goodput(&ctx->metrics, 8, &model));
    REQUIRE_OK(adl_goodput_optimize(&model, &limits, adl_shape_of(1, 1), &best));
    CHECK_INT(first_bsz, best.local_bsz); /* the first decision is adopted as it is */
    CHECK_INT(first_accum, best.accum_steps);
    /* A present choice within 5 % of the best stays ... */
    double present;
    int near = best.local_bsz, far = 0;
    for (int m = best.local_bsz; m >= 4; m--)
        if (adl_goodput_evaluate(&model, adl_shape_of(1, 1), m, best.accum_steps, &present) ==
            ADL_OK) {
            if (best.goodput < 1.05 * present)
                near = m;
            else if (!far)
                far = m;
        }
    REQUIRE(near < best.local_bsz && far > 0);
    loop->local_bsz = near;
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, near);
    /* ... one that is worse than that does not ... */
    loop->local_bsz = far;
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, best.local_bsz);
    /* ... nor one that was made for another number of replicas. */
    loop->local_bsz = near;
    loop->decided_replicas = 3;
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, best.local_bsz);
    loop->entered = false;
}

TEST(a_choice_is_replaced_only_by_one_that_is_five_percent_better)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_threshold, 0);
}

/* A single replica, without accumulation: to twice the size when that is better by 5 %, twice in a row. */
static void run_steady(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 64, .batch_size = 8};
    adl_loader *loader = make_loader(replica, &sums);
    adl_loop *loop = adl_loader_loop(loader);
    REQUIRE_OK(adl_loader_autoscale(loader, 64, 0, 64, false));
    CHECK_OK(adli_loop_choose(loop)); /* nothing is measured */
    CHECK_INT(loop->local_bsz, 8);
    pretend(ctx, 1e-2, 20); /* noisy gradients, a slow constant part: larger is better */
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, 8); /* once is not enough */
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, 16);
    for (int i = 0; i < 8; i++)
        CHECK_OK(adli_loop_choose(loop));
    int most = loop->local_bsz;
    CHECK(most > 32);
    pretend(ctx, 1e-2, 1e-9); /* for once it looks as if there were no noise */
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, most);
    pretend(ctx, 1e-2, 20);
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, most);
    pretend(ctx, 1e-2, 1e-9);
    CHECK_OK(adli_loop_choose(loop));
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, most / 2); /* by half at most */
    ctx->env.original_rule = true;        /* it keeps its size there */
    loop->decided_replicas = 0;
    pretend(ctx, 1e-2, 20);
    CHECK_OK(adli_loop_choose(loop));
    CHECK_INT(loop->local_bsz, 8);
}

TEST(a_single_replica_grows_and_shrinks_steadily)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_steady, 0);
}

/* In the middle of a pass: every example is there once all the same. */
static void run_reconsider(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 512, .batch_size = 8};
    adl_loader *loader = make_loader(replica, &sums);
    adl_loop *loop = adl_loader_loop(loader);
    int seen[512] = {0}, sizes = 0, last = 0;
    REQUIRE_OK(adl_loader_autoscale(loader, 64, 0, 64, false));
    ctx->env.batch_steps = 2;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            sizes += adl_loop_batch_size(loop) != last;
            last = adl_loop_batch_size(loop);
            for (int i = 0; i < batch->size; i++)
                seen[batch->index[i]]++;
            CHECK_OK(adli_loop_trains(loop));
            pretend(ctx, 1e-2, 20);
            loop->considered_s = 0; /* as if a second had gone by */
            step_progress(ctx, 0.01);
            if (adl_loop_index(loop) + (uint64_t)last >= 512)
                step_progress(ctx, 100);
        }
    CHECK(sizes > 1 && last > 8);
    for (int i = 0; i < 512; i++)
        CHECK_INT(seen[i], replica->rank == 0 && replica->replicas == 1 ? 1 : seen[i]);
}

TEST(the_batch_size_is_reconsidered_in_the_middle_of_a_pass)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_reconsider, 0);
    adlt_replicas_expect(&job, 2, run_reconsider, 0);
}

/* Accumulation: boundaries and the end of a pass. */
static void run_accumulation(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 50, .batch_size = 4};
    adl_loader *loader = make_loader(replica, &sums);
    adl_loop *loop = adl_loader_loop(loader);
    int steps = 0, optim = 0;
    REQUIRE_OK(adl_loader_autoscale(loader, 48, 0, 4, true));
    loop->local_bsz = 4, loop->accum_steps = 2; /* as if chosen before */
    loop->decided_replicas = 1;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            steps++;
            CHECK_INT(batch->optim_step, steps % 3 == 0 || steps == 13); /* 13 batches in a pass */
            optim += batch->optim_step;
            CHECK_INT(adl_loop_accum_steps(loop), 2);
            CHECK_OK(adli_loop_trains(loop));
            if (batch->optim_step)
                step_progress(ctx, steps == 13 ? 100 : 0.1);
        }
    CHECK_INT(steps, 13);
    CHECK_INT(optim, 5);
}

TEST(no_gradient_is_left_over_at_the_end_of_a_pass)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_accumulation, 0);
}

/* What is profiled: not the first step, not short batches, accumulation apart. */
static void run_profile(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    tally sums = {.examples = 50, .batch_size = 8};
    adl_loader *train = make_loader(replica, &sums), *valid = make_loader(replica, &sums);
    ADL_EPOCHS (ctx, epoch, 2) {
        ADL_BATCHES (train, batch)
            CHECK_OK(adli_loop_trains(ctx->current));
        ADL_BATCHES (valid, batch)
            CHECK(!adl_loop_training(adl_loader_loop(valid)));
    }
    REQUIRE(ctx->metrics.count == 1);
    const adli_profile_entry *entry = &ctx->metrics.entries[0];
    CHECK_INT(entry->nodes, replica->env.nodes);
    CHECK_INT(entry->replicas, replica->replicas);
    CHECK_INT(entry->local_bsz, 8 / replica->replicas);
    int full = 2 * 6; /* of 7 steps an epoch the last is short */
    CHECK_INT(entry->optim_count, full - 1);
    CHECK_INT(entry->accum_count, 0);
    CHECK(entry->optim_s > 0 && entry->sync_s == 0);
    CHECK_INT(ctx->metrics.facts.init_batch_size, 8);
    CHECK_INT(ctx->metrics.facts.examples, 50);
    CHECK_INT(ctx->metrics.facts.target_epochs, 2);
}

TEST(the_training_loader_is_profiled)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, run_profile, 0);
    adlt_replicas_expect(&job, 2, run_profile, 0);
}
