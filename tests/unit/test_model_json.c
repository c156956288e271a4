/* The JSON questions where the command line cannot reach: full buffers and failing allocations. */
#include "harness.h"

#include "base/mem.h"
#include "model_json/model_json.h"

#define MODEL                                                                                      \
    "\"perf\": [0.1, 0.01, 0.2, 0.02, 0.05, 0.01, 1.5], \"grad\": [0.01, 0.5], \"init\": 128"

static const struct {
    adli_model_question *ask;
    const char *line;
} questions[] = {
    {adli_model_evaluate, "{" MODEL ", \"N\": 1, \"R\": 4, \"m\": 64, \"s\": 0}"},
    {adli_model_optimize, "{" MODEL ", \"N\": 1, \"R\": 4, \"max_batch_size\": 4096}"},
    {adli_model_fit, "{\"N\": [1, 1], \"R\": [1, 2], \"m\": [64, 128], \"accum_time\": [0.1, 0.2], "
                     "\"optim_time\": [0.1, 0.3]}"},
    {adli_model_speedup, "{" MODEL ", \"N\": 2, \"R\": 8, \"max_batch_size\": 4096}"},
};

TEST(a_full_buffer_is_an_error_and_stays_as_it_was)
{
    for (size_t i = 0; i < ADLI_COUNT(questions); i++) {
        adli_buf out;
        adli_buf_init(&out, 12);
        adli_buf_puts(&out, "before");
        CHECK_FAILS(questions[i].ask(questions[i].line, strlen(questions[i].line), &out),
                    ADL_ENOMEM, "12 bytes");
        CHECK_INT(out.length, 6);
        adli_buf_fini(&out);
    }
}

TEST(every_allocation_may_fail)
{
    int failures = 0;
    for (size_t i = 0; i < ADLI_COUNT(questions); i++) {
        const char *line = questions[i].line;
        for (int64_t nth = 1;; nth++) {
            adli_buf out;
            adli_buf_init(&out, 1 << 12);
            adli_mem_fail_at(nth);
            int64_t before = adli_mem_count();
            adl_status status = questions[i].ask(line, strlen(line), &out);
            bool reached = adli_mem_count() - before >= nth;
            adli_mem_fail_at(0);
            CHECK(reached == (status == ADL_ENOMEM));
            adli_buf_fini(&out);
            if (!reached) {
                CHECK(status == ADL_OK);
                break;
            }
            failures++;
        }
    }
    printf("info - %d allocations failed in turn\n", failures);
    CHECK(failures > 8);
}

TEST(nested_too_deep_is_refused)
{
    enum { DEPTH = 100000 };
    char *line = adli_calloc(DEPTH + 1, 1);
    adli_buf out;
    REQUIRE(line);
    memset(line, '[', DEPTH);
    adli_buf_init(&out, 64);
    CHECK_FAILS(adli_model_fit(line, DEPTH, &out), ADL_EINVAL, "not JSON");
    adli_buf_fini(&out);
    free(line);
}
