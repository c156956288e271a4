/* Hints and discovery against a server on loopback. */
#include "http_server.h"
#include "train_replicas.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "train/context.h"
#include "train/hints.h"
#include "train/loop.h"

/* ---- the document ----------------------------------------------------------------------------- */

TEST(the_document_has_every_field_of_the_specification)
{
    adl_profile_point points[] = {{1, 1, 64, 0.25, 0.5, 0}, {2, 4, 32, 0.125, 0.75, 0}};
    adli_metrics_view view = {.facts = {.init_batch_size = 64,
                                        .batch_size = 128,
                                        .max_batch_size = 1028,
                                        .min_local = 32,
                                        .max_local = 128,
                                        .accumulation = true,
                                        .lone_grows = true,
                                        .examples = 60000,
                                        .epoch = 3,
                                        .target_epochs = 14},
                              .fitted = true,
                              .have_grad = true,
                              .perf = {0.1, 0.01, 0.2, 0.02, 0.3, 0.03, 1.5},
                              .grad = {2.5, 7.5},
                              .progress = 1234.5,
                              .elapsed_s = 60.25,
                              .max_profiled_replicas = 4,
                              .points = points,
                              .count = 2};
    adli_buf json;
    adli_buf_init(&json, 1 << 16);
    REQUIRE_OK(adli_hints_json(&view, &json));
    CHECK_STR(json.data,
              "{\"initBatchSize\":64,\"localBszBounds\":[32,128],\"globalBatchSize\":128,"
              "\"maxBatchSize\":1028,\"maxProfiledReplicas\":4,\"gradientAccumulation\":true,"
              "\"loneReplicaGrows\":true,"
              "\"gradParams\":{\"norm\":2.5,\"var\":7.5},\"perfParams\":{\"alpha_c\":0.1,"
              "\"beta_c\":0.01,\"alpha_n\":0.2,\"beta_n\":0.02,\"alpha_r\":0.3,"
              "\"beta_r\":0.03,\"gamma\":1.5},\"progress\":1234.5,\"epoch\":3,"
              "\"targetEpochs\":14,\"iterationsPerEpoch\":937.5,\"elapsed\":60.25,"
              "\"profile\":[{\"nodes\":1,\"replicas\":1,\"localBsz\":64,\"accumTime\":0.25,"
              "\"optimTime\":0.5},{\"nodes\":2,\"replicas\":4,\"localBsz\":32,"
              "\"accumTime\":0.125,\"optimTime\":0.75}]}");
    json_t *parsed = NULL;
    CHECK_OK(adli_json_parse(json.data, json.length, &parsed));
    json_decref(parsed);
    adli_buf_clear(&json);
    view.facts.min_local = view.facts.max_local = view.facts.max_batch_size =
        0; /* no autoscaling */
    view.fitted = view.have_grad = view.facts.accumulation = false;
    REQUIRE_OK(adli_hints_json(&view, &json));
    CHECK(strstr(json.data, "\"localBszBounds\":null") &&
          strstr(json.data, "\"maxBatchSize\":null"));
    CHECK(!strstr(json.data, "perfParams") && !strstr(json.data, "gradParams"));
    adli_buf_fini(&json);
}

/* ---- the thread ------------------------------------------------------------------------------- */

typedef struct supervisor {
    pthread_mutex_t lock;
    char last[1 << 16];
    int puts, bad;
    int code; /* to answer with */
} supervisor;

static int take_hints(void *user, const adlt_request *request, char *answer, size_t capacity)
{
    supervisor *seen = user;
    (void)answer, (void)capacity;
    pthread_mutex_lock(&seen->lock);
    if (strcmp(request->method, "PUT") == 0 && strcmp(request->path, "/hints/team/job-7") == 0) {
        seen->puts++;
        snprintf(seen->last, sizeof seen->last, "%s", request->body);
    } else {
        seen->bad++;
    }
    int code = seen->code;
    pthread_mutex_unlock(&seen->lock);
    return code;
}

static int put_count(supervisor *seen)
{
    pthread_mutex_lock(&seen->lock);
    int puts = seen->puts;
    pthread_mutex_unlock(&seen->lock);
    return puts;
}

static int warnings, told;

static void count_warnings(void *user, adl_log_level level, const char *line)
{
    (void)user;
    if (level == ADL_LOG_WARNING && strstr(line, "hints not sent"))
        __atomic_add_fetch(&warnings, 1, __ATOMIC_SEQ_CST);
    if (strstr(line, "T0KEN"))
        __atomic_add_fetch(&told, 1, __ATOMIC_SEQ_CST);
}

static adl_context *start_job(int port, double interval_s)
{
    char url[64];
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx = NULL;
    snprintf(url, sizeof url, "http://job:T0KEN@127.0.0.1:%d/", port);
    env.supervisor_url = url;
    env.job_id = "team/job-7";
    options.env = &env;
    options.handle_signals = false;
    options.hints_interval_s = interval_s;
    options.log = count_warnings;
    CHECK_OK(adl_init(&options, &ctx));
    return ctx;
}

/* Trains (with made-up progress) until the condition holds. */
static void train_until(adl_context *ctx, bool (*done)(void *), void *user)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = 1000000;
    options.batch_size = 10;
    REQUIRE_OK(adl_loader_new(ctx, &options, &loader));
    ADL_EPOCHS (ctx, epoch, 2)
        ADL_BATCHES (loader, batch) {
            CHECK_OK(adli_loop_trains(ctx->current));
            adli_metrics_gradient(&ctx->metrics, (adl_grad_params){1, 2}, true,
                                  adli_metrics_progress(&ctx->metrics) + 1);
            usleep(300);
            if (done(user))
                return;
        }
}

static bool three_puts(void *user)
{
    return put_count(user) >= 3;
}

TEST(rank_0_reports_periodically)
{
    static supervisor seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take_hints, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, 0.02);
    REQUIRE(ctx != NULL);
    train_until(ctx, three_puts, &seen);
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK_INT(seen.bad, 0);
    CHECK_INT(warnings, 0);
    json_t *root = NULL;
    double progress;
    int value;
    REQUIRE_OK(adli_json_parse(seen.last, strlen(seen.last), &root));
    CHECK_OK(adli_json_int(root, "initBatchSize", 10, 10, &value));
    CHECK_OK(adli_json_int(root, "maxProfiledReplicas", 1, 1, &value));
    CHECK_OK(adli_json_int(root, "targetEpochs", 2, 2, &value));
    CHECK_OK(adli_json_double(root, "progress", &progress));
    CHECK(progress > 1);
    CHECK(json_is_object(json_object_get(root, "perfParams"))); /* fitted by the thread */
    CHECK_INT(json_array_size(json_object_get(root, "profile")), 1);
    json_decref(root);
}

/* A loop whose batch size adapts: what it reports of its single replica. */
static bool reported_growth(bool autoscales, bool original)
{
    supervisor seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take_hints, .user = &seen};
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    json_t *root = NULL;
    bool grows = false;
    options.examples = 100;
    options.batch_size = 10;
    if (!adlt_server_start(&server))
        ADLT_FAIL("no server");
    adl_context *ctx = start_job(server.port, 3600);
    ctx->env.original_rule = original;
    CHECK_OK(adl_loader_new(ctx, &options, &loader));
    if (autoscales)
        CHECK_OK(adl_loader_autoscale(loader, 40, 0, 40, false));
    int epochs = 0;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            CHECK_OK(adli_loop_trains(ctx->current));
            adli_metrics_gradient(&ctx->metrics, (adl_grad_params){1, 2}, true,
                                  adli_metrics_progress(&ctx->metrics) + 1);
            epochs++;
        }
    CHECK(epochs > 0);
    CHECK_INT(adl_finish(ctx), 0); /* reports */
    adlt_server_stop(&server);
    CHECK_INT(seen.puts, 1);
    CHECK_OK(adli_json_parse(seen.last, strlen(seen.last), &root));
    CHECK_OK(adli_json_bool(root, "loneReplicaGrows", &grows));
    json_decref(root);
    return grows;
}

TEST(a_job_says_whether_its_single_replica_grows)
{
    CHECK(reported_growth(true, false));
    CHECK(!reported_growth(true, true)); /* ADAPTDL_BATCH_RULE=original */
    CHECK(!reported_growth(false, false));
}

static bool warned(void *user)
{
    (void)user;
    return __atomic_load_n(&warnings, __ATOMIC_SEQ_CST) > 0;
}

static bool some_steps(void *user)
{
    return ++*(int *)user > 400;
}

TEST(a_job_that_ends_has_a_last_word)
{
    static supervisor seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 200};
    adlt_server server = {.answer = take_hints, .user = &seen};
    int steps = 0;
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, 3600);
    REQUIRE(ctx != NULL);
    train_until(ctx, some_steps, &steps);
    CHECK_INT(put_count(&seen), 0);
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK_INT(put_count(&seen), 1);
    CHECK(strstr(seen.last, "\"progress\"") != NULL);
}

/* One, and the job's token, which is part of the address, is not in it. */
TEST(a_supervisor_that_is_away_is_one_warning)
{
    static supervisor seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .code = 500};
    adlt_server server = {.answer = take_hints, .user = &seen};
    REQUIRE(adlt_server_start(&server));
    warnings = 0;
    adl_context *ctx = start_job(server.port, 0.01);
    REQUIRE(ctx != NULL);
    train_until(ctx, three_puts, &seen); /* refused, and then not there at all */
    CHECK_INT(adl_finish(ctx), 0);
    adlt_server_stop(&server);
    CHECK_INT(warnings, 1);
    warnings = 0;
    ctx = start_job(server.port, 0.01);
    REQUIRE(ctx != NULL);
    train_until(ctx, warned, NULL);
    CHECK_INT(adl_finish(ctx), 0);
    CHECK_INT(warnings, 1);
    CHECK_INT(told, 0);
}

static int never_answer(void *user, const adlt_request *request, char *answer, size_t capacity)
{
    (void)user, (void)request, (void)answer, (void)capacity;
    return -1;
}

TEST(a_supervisor_that_hangs_blocks_neither_steps_nor_the_end)
{
    adlt_server server = {.answer = never_answer};
    int steps = 0;
    REQUIRE(adlt_server_start(&server));
    adl_context *ctx = start_job(server.port, 0.005);
    REQUIRE(ctx != NULL);
    train_until(ctx, some_steps, &steps);
    CHECK(steps > 400 &&
          atomic_load(&server.requests) == 1); /* still waiting for the first answer */
    CHECK_INT(adl_finish(ctx), 0);             /* would take 20 s if it waited for it */
    adlt_server_stop(&server);
}

/* ---- discovery -------------------------------------------------------------------------------- */

typedef struct directory {
    atomic_int asked;
    int busy;           /* so many times "not yet" */
    const char *answer; /* then this */
    int code;
} directory;

static int discover(void *user, const adlt_request *request, char *answer, size_t capacity)
{
    directory *plan = user;
    if (strcmp(request->path, "/discover/team/job-7/3") != 0)
        return 404;
    if (atomic_fetch_add(&plan->asked, 1) < plan->busy)
        return 408;
    snprintf(answer, capacity, "%s", plan->answer);
    return plan->code;
}

static adl_status start_discovering(int port, int rank, int master_port, int listen_fd,
                                    adl_context **ctx)
{
    char url[64];
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    env.supervisor_url = url;
    env.job_id = "team/job-7";
    env.restarts = 3;
    env.rank = rank;
    env.replicas = env.nodes = 2;
    env.master_addr = "192.0.2.1"; /* wrong: the supervisor knows better */
    env.master_port = master_port;
    options.env = &env;
    options.handle_signals = false;
    options.log = NULL;
    options.connect_timeout_ms = 10000;
    options.listen_fd = listen_fd;
    return adl_init(&options, ctx);
}

typedef struct peer {
    int port, master_port, fd, code;
} peer;

static void *run_rank_0(void *user)
{
    peer *self = user;
    adl_context *ctx;
    adl_status status = start_discovering(self->port, 0, self->master_port, self->fd, &ctx);
    self->code = status == ADL_OK ? adl_finish(ctx) : 1;
    return NULL;
}

TEST(rank_0_is_discovered_after_408)
{
    directory plan = {.busy = 3, .answer = "[\"127.0.0.1\", \"127.0.0.2\"]", .code = 200};
    adlt_server server = {.answer = discover, .user = &plan};
    peer zero;
    pthread_t thread;
    adl_context *ctx;
    REQUIRE(adlt_server_start(&server));
    zero.port = server.port;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &zero.fd, &zero.master_port));
    pthread_create(&thread, NULL, run_rank_0, &zero);
    adl_status status = start_discovering(server.port, 1, zero.master_port, -1, &ctx);
    CHECK_OK(status);
    if (status == ADL_OK)
        CHECK_INT(adl_finish(ctx), 0);
    pthread_join(thread, NULL);
    CHECK_INT(zero.code, 0);
    CHECK_INT(atomic_load(&plan.asked), 3 + 2);
    adlt_server_stop(&server);
}

TEST(wrong_answers_are_reported)
{
    static const struct {
        int code;
        const char *answer, *text;
        adl_status status;
    } cases[] = {
        {404, "", "answered 404", ADL_ENET},
        {200, "not json", "not JSON", ADL_EINVAL},
        {200, "[]", "a list of 2 addresses", ADL_EINVAL},
        {200, "[\"a\"]", "a list of 2 addresses", ADL_EINVAL},
        {200, "[1, 2]", "a list of 2 addresses", ADL_EINVAL},
        {200, "{\"a\": 1}", "a list of 2 addresses", ADL_EINVAL},
        {200, "\"ab\"", "not JSON", ADL_EINVAL},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        directory plan = {.answer = cases[i].answer, .code = cases[i].code};
        adlt_server server = {.answer = discover, .user = &plan};
        adl_context *ctx;
        REQUIRE(adlt_server_start(&server));
        CHECK_FAILS(start_discovering(server.port, 1, 9, -1, &ctx), cases[i].status, cases[i].text);
        adlt_server_stop(&server);
    }
}
