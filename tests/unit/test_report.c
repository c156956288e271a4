/* Metrics of a job on their way to the scheduler: the document, what waits, what a checkpoint keeps, and how a
 * curve comes out that is killed in between. */
#include "http_server.h"
#include "runner_model.h"

#include "adaptdl/report.h"

#include "base/mem.h"
#include "measures/measures.h"
#include "train/context.h"

#include <math.h>

/* ---- the document ---- */

static void add(adli_measures *report, const char *name, int64_t step, double value)
{
    int number;
    REQUIRE_OK(adli_measures_name(report, name, &number));
    REQUIRE_OK(adli_measures_add(report, number, step, 5, value));
}

TEST(a_document_comes_back)
{
    adli_measures report = {.restart = 3, .whole = true}, again;
    bool has_last = false;
    adli_buf json;
    adli_buf_init(&json, ADLI_MEASURES_BYTES);
    add(&report, "loss", 1, 0.5);
    add(&report, "valid/accuracy \"\xc3\xa9\"", 1, NAN);
    add(&report, "loss", 7, -INFINITY);
    REQUIRE_OK(adli_measures_json(&report, NULL, report.count, &json));
    CHECK_STR(
        json.data,
        "{\"restart\":3,\"whole\":true,\"last\":{\"loss\":7,\"valid/accuracy \\\"\xc3\xa9\\\"\":1},"
        "\"points\":[{\"name\":\"loss\",\"step\":1,\"time\":5,\"value\":0.5},"
        "{\"name\":\"valid/accuracy \\\"\xc3\xa9\\\"\",\"step\":1,\"time\":5,\"value\":null},"
        "{\"name\":\"loss\",\"step\":7,\"time\":5,\"value\":null}]}");
    REQUIRE_OK(adli_measures_parse(json.data, json.length, &again, &has_last));
    CHECK(has_last && again.whole);
    CHECK_INT(again.restart, 3);
    CHECK_INT(again.count, 3);
    CHECK_INT(again.last[0], 7);
    CHECK(again.points[0].value == 0.5 && isnan(again.points[2].value));
    adli_measures_fini(&again);
    adli_buf_clear(&json);
    REQUIRE_OK(adli_measures_json(&report, "", 1, &json));
    REQUIRE_OK(adli_measures_parse(json.data, json.length, &again, &has_last));
    CHECK(!has_last);
    CHECK_INT(again.count, 1);
    adli_measures_fini(&again);
    adli_measures_fini(&report);
    adli_buf_fini(&json);
}

TEST(documents_that_make_no_sense_are_refused_by_name)
{
    static const char *const bad[][2] = {
        {"[]", "restart"},
        {"{\"points\":[]}", "restart"},
        {"{\"restart\":-1,\"points\":[]}", "restart"},
        {"{\"restart\":0}", "points"},
        {"{\"restart\":0,\"points\":[3]}", "points[0]"},
        {"{\"restart\":0,\"points\":[{\"name\":\"\",\"step\":1,\"time\":1,\"value\":1}]}", "name"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\\n\",\"step\":1,\"time\":1,\"value\":1}]}",
         "printable"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\",\"step\":-1,\"time\":1,\"value\":1}]}",
         "step"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\",\"step\":1.5,\"time\":1,\"value\":1}]}",
         "step"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\",\"step\":1,\"value\":1}]}", "time"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\",\"step\":1,\"time\":1}]}", "value"},
        {"{\"restart\":0,\"points\":[{\"name\":\"a\",\"step\":1,\"time\":1,\"value\":\"x\"}]}",
         "value"},
        {"{\"restart\":0,\"last\":[],\"points\":[]}", "last"},
        {"{\"restart\":0,\"last\":{\"a\":\"b\"},\"points\":[]}", "last"},
        {"{\"restart\":0,\"whole\":1,\"points\":[]}", "whole"},
    };
    for (size_t i = 0; i < ADLI_COUNT(bad); i++) {
        adli_measures report;
        bool has_last;
        CHECK_FAILS(adli_measures_parse(bad[i][0], strlen(bad[i][0]), &report, &has_last),
                    ADL_EINVAL, bad[i][1]);
    }
}

TEST(what_waits_is_bounded_and_steps_ascend)
{
    adli_measures report = {0};
    for (int i = 0; i < 5 * ADLI_MEASURES_POINTS; i++)
        add(&report, i % 2 ? "a" : "b", i, i);
    CHECK(report.count <= ADLI_MEASURES_POINTS);
    CHECK_INT(report.points[0].step, 0); /* where each begins is never lost */
    CHECK_INT(report.points[1].step, 1);
    CHECK_INT(report.points[report.count - 1].step, 5 * ADLI_MEASURES_POINTS - 1);
    add(&report, "a", 3, 0.25); /* taken back, of this name alone */
    for (size_t i = 0; i + 1 < report.count; i++)
        CHECK(report.points[i].name != report.points[report.count - 1].name ||
              report.points[i].step < 3);
    CHECK_INT(report.last[1], 3);
    CHECK(report.last[0] > 3);
    report.held = report.count; /* on its way: stays as it is */
    size_t held = report.held;
    add(&report, "a", 1, 1);
    CHECK_INT(report.count, held + 1);
    adli_measures_sent(&report);
    CHECK_INT(report.count, 1);
    CHECK_INT(report.points[0].step, 1);
    adli_measures_fini(&report);
}

/* ---- a context ---- */

typedef struct scheduler {
    pthread_mutex_t lock;
    int code, puts;
    char path[1024], first[4096], last[4096];
    char all[1 << 16]; /* bodies, one a line */
} scheduler;

static int take(void *user, const adlt_request *request, char *answer, size_t capacity)
{
    scheduler *seen = user;
    snprintf(answer, capacity, "{\"status\":\"ok\"}");
    pthread_mutex_lock(&seen->lock);
    int code = seen->code;
    if (strncmp(request->path, "/reports/", 9) == 0 && code == 200) {
        snprintf(seen->path, sizeof seen->path, "%.1000s", request->path);
        if (seen->puts++ == 0)
            snprintf(seen->first, sizeof seen->first, "%.4000s", request->body);
        snprintf(seen->last, sizeof seen->last, "%.4000s", request->body);
        size_t used = strlen(seen->all);
        snprintf(seen->all + used, sizeof seen->all - used, "%s\n", request->body);
    }
    pthread_mutex_unlock(&seen->lock);
    return code;
}

static void answer_with(scheduler *seen, int code)
{
    pthread_mutex_lock(&seen->lock);
    seen->code = code;
    pthread_mutex_unlock(&seen->lock);
}

static int warnings;

static void count_warnings(void *user, adl_log_level level, const char *line)
{
    (void)user;
    if (level == ADL_LOG_WARNING && strstr(line, "metrics not sent"))
        __atomic_add_fetch(&warnings, 1, __ATOMIC_SEQ_CST);
}

/* port 0: no scheduler. */
static adl_context *start_job(int port, const char *checkpoint, int restarts)
{
    char url[64];
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx = NULL;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", port);
    env.supervisor_url = port ? url : NULL;
    env.job_id = "team/job-7";
    env.checkpoint_path = checkpoint;
    env.restarts = restarts;
    options.env = &env;
    options.handle_signals = false;
    options.log = count_warnings;
    CHECK_OK(adl_init(&options, &ctx));
    return ctx;
}

TEST(values_are_sent_and_the_last_ones_at_the_end)
{
    static scheduler seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, NULL, 2);
    REQUIRE(ctx);
    CHECK_OK(ADL_REPORT(ctx, {"loss", 0.5}, {"accuracy", 0.25}));
    CHECK_OK(ADL_REPORT(ctx, {"loss", 0.375}));
    adl_metric third = {"loss", 0.125};
    CHECK_OK(adl_report(ctx, 40, &third, 1));
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK_STR(seen.path, "/reports/team/job-7");
    CHECK(strstr(seen.all, "\"restart\":2"));
    CHECK(!strstr(seen.all, "\"last\"")); /* there was no checkpoint */
    CHECK(strstr(seen.all, "\"name\":\"loss\",\"step\":0,"));
    CHECK(strstr(seen.all, "\"name\":\"accuracy\",\"step\":0,"));
    CHECK(strstr(seen.all, "\"name\":\"loss\",\"step\":1,"));
    CHECK(strstr(seen.last, "\"step\":40,"));
    CHECK(strstr(seen.last, "\"value\":0.125}"));
}

TEST(mistakes_are_named_and_nothing_happens_without_a_scheduler)
{
    adl_context *ctx = start_job(0, NULL, 0);
    REQUIRE(ctx);
    adl_metric metrics[70];
    char names[70][8];
    for (int i = 0; i < 70; i++) {
        snprintf(names[i], sizeof names[i], "m%d", i);
        metrics[i] = (adl_metric){names[i], i};
    }
    CHECK_FAILS(adl_report(ctx, 1, metrics, 70), ADL_EINVAL, "at most 64");
    CHECK_OK(adl_report(ctx, 1, metrics, 64));
    CHECK_FAILS(adl_report(ctx, 1, metrics + 64, 1), ADL_EINVAL, "m64");
    CHECK_FAILS(adl_report(ctx, INT64_MAX, metrics, 1), ADL_EINVAL, "2^53");
    CHECK_FAILS(ADL_REPORT(ctx, {"", 1}), ADL_EINVAL, "name");
    CHECK_FAILS(ADL_REPORT(ctx, {"a\tb", 1}), ADL_EINVAL, "printable");
    CHECK_FAILS(ADL_REPORT(ctx, {NULL, 1}), ADL_EINVAL, "name");
    CHECK_INT(adl_finish(ctx), 0);
}

/* A scheduler that is away: one warning, and what waits is sent when it is back, once. */
TEST(what_could_not_be_sent_waits)
{
    static scheduler seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 503};
    adlt_server server = {.answer = take, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    warnings = 0;
    adl_context *ctx = start_job(server.port, NULL, 0);
    REQUIRE(ctx);
    CHECK_OK(ADL_REPORT(ctx, {"loss", 1}));
    while (__atomic_load_n(&warnings, __ATOMIC_SEQ_CST) == 0)
        usleep(1000);
    CHECK_OK(ADL_REPORT(ctx, {"loss", 2}));
    answer_with(&seen, 200);
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK_INT(warnings, 1);
    const char *first = strstr(seen.all, "\"step\":0,");
    CHECK(first && !strstr(first + 1, "\"step\":0,"));
    CHECK(strstr(seen.all, "\"step\":1,"));
}

/* Killed: what was told before the checkpoint is sent by the next process, if it was not sent; what was told
 * after it is taken back by "last". */
TEST(a_checkpoint_keeps_what_was_told)
{
    static scheduler away = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 503};
    static scheduler seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take, .user = &away};
    char dir[] = "/tmp/adl-report-XXXXXX", command[128];
    REQUIRE(mkdtemp(dir));
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, dir, 0);
    REQUIRE(ctx);
    adl_metric loss = {"loss", 0.5}, late = {"late", 3};
    CHECK_OK(adl_report(ctx, 10, &loss, 1));
    CHECK_OK(adl_report(ctx, 11, &loss, 1));
    REQUIRE_OK(adli_save_now(ctx));
    CHECK_OK(adl_report(ctx, 12, &loss, 1)); /* is lost with the process */
    CHECK_OK(adl_report(ctx, 12, &late, 1));
    adl_context_failf(ctx, ADL_EIO, "killed");
    CHECK_INT(adl_finish(ctx), 1);
    adlt_server_stop(&server);
    server = (adlt_server){.answer = take, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    ctx = start_job(server.port, dir, 1);
    REQUIRE(ctx);
    CHECK_OK(adl_report(ctx, 12, &loss, 1));
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK(strstr(seen.first, "\"restart\":1,\"whole\":true,\"last\":{\"loss\":11},"));
    CHECK(strstr(seen.first, "\"step\":10,") && strstr(seen.first, "\"step\":11,"));
    CHECK(strstr(seen.all, "\"step\":12,"));
    CHECK(!strstr(seen.all, "late"));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    CHECK_INT(system(command), 0);
}

TEST(a_stopped_context_tells_nothing)
{
    static scheduler seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, NULL, 0);
    REQUIRE(ctx);
    adl_context_failf(ctx, ADL_EINTR, "asked to");
    CHECK_OK(ADL_REPORT(ctx, {"loss", 1})); /* of an epoch that was cut short */
    CHECK_INT(adl_finish(ctx), 143);
    adlt_server_stop(&server);
    CHECK_INT(seen.puts, 0);
}

/* Every epoch of a run, whatever sends them when; what is under way at the end is sent once more, and the scheduler keeps a
 * step once (test_core_reports). */
TEST(the_runner_reports_its_epochs)
{
    static scheduler seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take, .user = &seen};
    tiny model;
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, NULL, 0);
    REQUIRE(ctx && tiny_init(&model));
    adl_runner_options options = tiny_options(ctx, &model);
    options.topk[0] = 1;
    CHECK_OK(adl_runner_train(ctx, &options));
    CHECK_INT(adl_finish(ctx), 0);
    tiny_fini(&model);
    adlt_server_stop(&server);
    static const char *const names[] = {"train/loss", "valid/loss", "valid/accuracy01", "lr"};
    for (size_t i = 0; i < ADLI_COUNT(names); i++)
        for (int epoch = 1; epoch <= 3; epoch++) {
            char point[64];
            snprintf(point, sizeof point, "{\"name\":\"%s\",\"step\":%d,", names[i], epoch);
            int times = occurrences(seen.all, point);
            CHECK(times == 1 || times == 2);
        }
}
