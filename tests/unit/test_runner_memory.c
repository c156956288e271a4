/* Running out of memory anywhere in the runner: the nth allocation fails, for every n. Each time there is
 * a failure with a reason, or a warning, or nothing; nothing crashes and (under ASan) nothing leaks. */
#include "runner_model.h"

#include "base/mem.h"

enum { ALLOCATIONS_MAX = 4000 };

static adl_status quiet(void *user, adl_runner *runner)
{
    (void)user;
    return adl_runner_metric(runner, "mine", 1, 1);
}

TEST(any_allocation_of_the_runner_may_fail)
{
    char directory[] = "/dev/shm/adl-test-XXXXXX", logs[128], ck[128]; /* memory: many fsyncs */
    adl_runner_callback callback = {.name = "quiet", .batch_end = quiet};
    int failures = 0;
    int64_t asked = 0, nth = 0;
    REQUIRE(mkdtemp(directory));
    snprintf(logs, sizeof logs, "%s/logs", directory);
    snprintf(ck, sizeof ck, "%s/ck", directory);
    do {
        adl_env env = ADL_ENV_INIT;
        adl_options options = ADL_OPTIONS_INIT;
        adl_context *ctx;
        tiny model;
        env.checkpoint_path = ck;
        options.env = &env;
        options.log = NULL;
        REQUIRE(tiny_init(&model));
        REQUIRE_OK(adl_init(&options, &ctx));
        adl_runner_options runner = tiny_options(ctx, &model);
        runner.logdir = logs;
        runner.topk[0] = 1;
        runner.callbacks = &callback;
        runner.callback_count = 1;
        runner.hparams = "{}";
        int64_t before = adli_mem_count();
        adli_mem_fail_at(++nth);
        adl_status status = adl_runner_train(ctx, &runner);
        bool told = status == adl_context_status(ctx) && (status == ADL_OK || *adl_error());
        CHECK(told);
        failures += status != ADL_OK;
        asked = adli_mem_count() - before;
        adli_mem_fail_at(0);
        adl_finish(ctx);
        tiny_fini(&model);
        adlt_tempdir_remove(directory);
        REQUIRE(mkdir(directory, 0700) == 0);
    } while (asked >= nth && nth < ALLOCATIONS_MAX); /* until there is no nth one */
    CHECK(failures > 20);
    CHECK(nth < ALLOCATIONS_MAX);
    printf("info - %lld allocations made to fail, %d of them fatal\n", (long long)nth - 1,
           failures);
    adlt_tempdir_remove(directory);
}
