/* Running out of memory anywhere in the training runtime: the nth allocation fails, for every n, from
 * adl_init to adl_finish. Each time there is a failure with a reason, or none at all; nothing crashes
 * and (under ASan) nothing leaks. */
#include "train_replicas.h"

#include "base/mem.h"

#include <sys/stat.h>

enum { ALLOCATIONS_MAX = 2000 };

static adl_status fill(void *user, const adl_fill *job)
{
    (void)user;
    memset(job->part[0], 0, (size_t)job->count * sizeof(float));
    return ADL_OK;
}

/* A small training program; false when something before the loops failed. */
static adl_status run(adl_context *ctx, adl_optim *optim, float *grad)
{
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader *loader;
    adl_accumulator *stats;
    adl_dp *dp;
    data.examples = 12;
    data.batch_size = 4;
    data.shuffle = true;
    data.part_bytes[0] = sizeof(float);
    data.fill = fill;
    options.optim = adl_optim_get_ops(optim);
    adl_status status = adl_loader_new(ctx, &data, &loader);
    if (status == ADL_OK)
        status = adl_loader_autoscale(loader, 8, 0, 4, true);
    if (status == ADL_OK)
        status = adl_accumulator_new(ctx, "stats", &stats);
    if (status == ADL_OK)
        status = adl_dp_new(ctx, &options, &dp);
    if (status != ADL_OK)
        return adl_context_fail(ctx, status);
    ADL_EPOCHS (ctx, epoch, 2) {
        ADL_BATCHES (loader, batch) {
            *grad = (float)batch->number;
            adl_dp_step(dp);
            adl_accumulator_add(stats, "count", batch->size);
        }
        ADL_SYNCHRONIZED (stats)
            adl_accumulator_clear(stats);
    }
    return adl_context_status(ctx);
}

TEST(any_allocation_may_fail)
{
    char *directory = adlt_tempdir();
    float value = 0, grad = 0;
    adl_param param = {"w", &value, &grad, 1};
    adl_optim_options sgd = ADL_SGD_INIT(0.1);
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_optim *optim;
    int nth = 0, failures = 0;
    int64_t asked;
    env.checkpoint_path = directory;
    options.env = &env;
    options.log = NULL;
    REQUIRE_OK(adl_optim_new(&param, 1, &sgd, &optim));
    do {
        adl_context *ctx = NULL;
        int64_t before = adli_mem_count();
        adli_mem_fail_at(++nth);
        adl_status status = adl_init(&options, &ctx);
        CHECK((status == ADL_OK) == (ctx != NULL));
        if (ctx) {
            status = run(ctx, optim, &grad);
            bool told = adl_context_status(ctx) == status && (status == ADL_OK || *adl_error());
            CHECK(told);
            adl_finish(ctx);
        }
        failures += status != ADL_OK;
        asked = adli_mem_count() - before;
        adli_mem_fail_at(0);
        adlt_tempdir_remove(directory);
        CHECK_INT(mkdir(directory, 0700), 0);
    } while (asked >= nth && nth < ALLOCATIONS_MAX); /* until there is no nth one */
    CHECK(failures > 20);
    CHECK(nth < ALLOCATIONS_MAX);
    printf("info - %d allocations made to fail, %d of them fatal\n", nth - 1, failures);
    adl_optim_free(optim);
    adlt_tempdir_remove(directory);
}
