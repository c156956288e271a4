/* The simulator on the synthetic traces: loading, bad files, determinism, and that the numbers of a
 * run agree with each other. */
#include "harness.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "sim/batch.h"
#include "sim/report.h"

#include <sys/stat.h>
#include <unistd.h>

static const char traces_path[] = "examples/traces";
static const char workload_path[] = "examples/traces/workload-small.csv";

static adli_sim_options options_for(const char *policy)
{
    return (adli_sim_options){.policy = policy,
                              .nodes = 4,
                              .gpus = 4,
                              .interval_s = 60,
                              .rescale_delay_s = 30,
                              .resize_delay_s = -1};
}

static const char *const cheap[] = {"rank", "tiresias", "optimus", "fifo"};

TEST(every_job_of_every_policy_finishes)
{
    adli_traces traces;
    adli_workload workload;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    REQUIRE_OK(adli_workload_load(workload_path, &traces, &workload));
    CHECK_INT(workload.count, 40);
    CHECK_STR(workload.name, "workload-small");
    for (size_t p = 0; p < ADLI_COUNT(cheap); p++) {
        adli_sim_options options = options_for(cheap[p]);
        adli_sim_result result;
        _Atomic int done = 0;
        options.timeline = true;
        REQUIRE_OK(adli_simulate(&workload, &options, &done, &result));
        CHECK_INT(done, 40);
        double sum = 0, used = 0;
        for (int j = 0; j < workload.count; j++) {
            CHECK(result.jobs[j].jct_s > 0 && result.jobs[j].rho > 0);
            sum += result.jobs[j].jct_s;
        }
        CHECK_NEAR(result.avg_jct_s, sum / 40, 1e-9);
        CHECK(result.p50_s <= result.p99_s && result.gpu_util > 0 && result.gpu_util <= 1);
        for (size_t i = 0; i < result.span_count; i++) {
            CHECK(result.spans[i].end_s >= result.spans[i].start_s);
            used += result.spans[i].count * (result.spans[i].end_s - result.spans[i].start_s);
        }
        CHECK_NEAR(used, result.gpu_util * 16 * result.makespan_s, 1e-9);
        adli_sim_result_fini(&result);
    }
    adli_workload_fini(&workload);
    adli_traces_fini(&traces);
}

TEST(the_same_seed_gives_the_same_log_on_any_number_of_threads)
{
    adli_traces traces;
    adli_workload workloads[2];
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    for (int i = 0; i < 2; i++)
        REQUIRE_OK(adli_workload_load(workload_path, &traces, &workloads[i]));
    adli_batch batch[2];
    for (int i = 0; i < 2; i++) {
        batch[i] = (adli_batch){.policies = cheap,
                                .policy_count = 4,
                                .workloads = workloads,
                                .workload_count = 2,
                                .options = options_for(NULL),
                                .threads = 1 + i};
        batch[i].options.log = true;
        REQUIRE_OK(adli_batch_run(&batch[i]));
    }
    for (int i = 0; i < 8; i++) {
        CHECK(batch[0].results[i].log.length > 1000);
        CHECK_STR(batch[0].results[i].log.data, batch[1].results[i].log.data);
    }
    for (int i = 0; i < 2; i++) {
        adli_batch_fini(&batch[i]);
        adli_workload_fini(&workloads[i]);
    }
    adli_traces_fini(&traces);
}

static adli_sim_result simulated(const adli_workload *workload, adli_sim_options options)
{
    adli_sim_result result;
    if (adli_simulate(workload, &options, NULL, &result) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    return result;
}

/* Rounds by event come sooner, jobs learn from each other, restarts cost what they are said to. */
TEST(the_switches_of_the_world_do_what_they_say)
{
    adli_traces traces;
    adli_workload workload;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    REQUIRE_OK(adli_workload_load(workload_path, &traces, &workload));
    adli_sim_options options = options_for("rank");
    adli_sim_result plain = simulated(&workload, options);
    options.event = true;
    adli_sim_result event = simulated(&workload, options);
    CHECK(event.rounds > plain.rounds && event.p50_s < plain.p50_s);
    options.pool = true;
    adli_sim_result pool = simulated(&workload, options);
    CHECK(pool.restarts_per_job < event.restarts_per_job);
    options.learned = true;
    adli_sim_result learned = simulated(&workload, options);
    CHECK(learned.restarts_per_job < pool.restarts_per_job);
    options.learned = false;
    options.resize_delay_s = 0;
    adli_sim_result in_place = simulated(&workload, options);
    CHECK(in_place.avg_jct_s < pool.avg_jct_s);
    options.rescale_delay_s = 0;
    adli_sim_result free_of_charge = simulated(&workload, options);
    CHECK(free_of_charge.avg_jct_s < in_place.avg_jct_s);
    options = options_for("rank");
    options.resize_delay_s = 1; /* also with a round a minute: it used to lengthen the tail there */
    adli_sim_result cheap_changes = simulated(&workload, options);
    CHECK(cheap_changes.avg_jct_s < 0.98 * plain.avg_jct_s);
    CHECK(cheap_changes.makespan_s < plain.makespan_s);
    options = options_for("rank");
    options.noise = 0.5;
    adli_sim_result noisy = simulated(&workload, options);
    CHECK(noisy.avg_jct_s != plain.avg_jct_s);
    options.seed = 1;
    adli_sim_result other = simulated(&workload, options);
    CHECK(other.avg_jct_s != noisy.avg_jct_s);
    options = options_for("rank");
    options.lone_grows = true;
    adli_sim_result grows = simulated(&workload, options);
    CHECK(grows.avg_jct_s != plain.avg_jct_s);
    adli_sim_result *all[] = {&plain, &event,          &pool,  &learned,       &in_place,
                              &noisy, &free_of_charge, &other, &cheap_changes, &grows};
    for (size_t i = 0; i < ADLI_COUNT(all); i++)
        adli_sim_result_fini(all[i]);
    adli_workload_fini(&workload);
    adli_traces_fini(&traces);
}

/* All of a job elsewhere is two changes in place, never dearer than a restart. */
TEST(a_move_costs_two_changes_or_a_restart)
{
    adli_sim_options options = options_for("rank");
    adli_app app = {0};
    options.rescale_delay_s = 30;
    options.resize_delay_s = 4;
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_RESTARTS), 30, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_RESIZES), 4, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_MOVES), 8, 0);
    options.resize_delay_s = 20;
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_MOVES), 30, 0);
    options.resize_delay_s = -1;
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_RESIZES), 30, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, &app, ADLI_SIM_MOVES), 30, 0);
}

TEST(reports_are_readable)
{
    adli_traces traces;
    adli_workload workload;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    REQUIRE_OK(adli_workload_load(workload_path, &traces, &workload));
    adli_batch batch = {.policies = cheap,
                        .policy_count = 2,
                        .workloads = &workload,
                        .workload_count = 1,
                        .options = options_for(NULL),
                        .threads = 2};
    batch.options.timeline = true;
    REQUIRE_OK(adli_batch_run(&batch));
    adli_buf text;
    adli_buf_init(&text, 1 << 24);
    adli_report_json(&batch, &text);
    json_t *root = NULL;
    REQUIRE_OK(adli_json_parse(text.data, text.length, &root));
    json_t *first = json_array_get(json_object_get(root, "policies"), 0);
    json_t *run = json_array_get(json_object_get(first, "workloads"), 0);
    double average, mean;
    CHECK_OK(adli_json_double(first, "mean_avg_jct", &mean));
    CHECK_OK(adli_json_double(run, "avg_jct", &average));
    CHECK_NEAR(average, mean, 1e-12);
    CHECK_INT(json_object_size(json_object_get(run, "jcts")), 40);
    json_decref(root);
    adli_buf_clear(&text);
    adli_report_table(&batch, &text);
    CHECK(strstr(text.data, "relative to rank"));
    adli_buf_clear(&text);
    CHECK_OK(adli_report_svg(&batch, &text));
    CHECK(strstr(text.data, "</svg>"));
    adli_buf_fini(&text);
    adli_batch_fini(&batch);
    adli_workload_fini(&workload);
    adli_traces_fini(&traces);
}

TEST(workloads_are_checked)
{
    const struct {
        const char *rows, *message;
    } cases[] = {
        {"", "no jobs below the header"},
        {"a,1,unknown-app,1,128\n", "w.csv:2: field \"application\": no traces of application "
                                    "\"unknown-app\""},
        {"a,-5,language,1,128\n", "field \"time\": -5 is less than 0"},
        {"a,1,language,0,128\n", "field \"num_replicas\""},
        {"a,1,language,1,x\n", "field \"batch_size\": \"x\" is not a number"},
        {"a,1,language,1,4\n", "less than the smallest validated, 32"},
        {"a,1,language,1,100000\n", "more than the largest validated, 1024"},
        {",1,language,1,128\n", "field \"name\""},
        {"a,1,language,1,128\na,2,language,1,128\n", "two jobs are called \"a\""},
    };
    adli_traces traces;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        char text[512];
        adli_workload workload;
        snprintf(text, sizeof text, "name,time,application,num_replicas,batch_size\n%s",
                 cases[i].rows);
        CHECK_FAILS(adli_workload_parse("w.csv", text, strlen(text), &traces, &workload),
                    ADL_EINVAL, cases[i].message);
    }
    adli_traces_fini(&traces);
}

enum { ROUNDS_MAX = 100000 };

/* When decisions were made, from the log. */
static int round_times(const adli_sim_result *result, double times[ROUNDS_MAX])
{
    static const char key[] = ",\"time\":";
    int count = 0;
    for (const char *at = result->log.data; (at = strstr(at, key)) && count < ROUNDS_MAX; at++)
        times[count++] = strtod(at + sizeof key - 1, NULL);
    CHECK_INT(count, result->rounds);
    return count;
}

static bool decided_at(const double *times, int count, double when_s)
{
    for (int i = 0; i < count; i++)
        if (times[i] == when_s)
            return true;
    return false;
}

/* Of these jobs, with the time from one decision to the next where nothing happens. */
static adli_sim_result by_event(const adli_traces *traces, const char *rows, double interval_s,
                                double times[ROUNDS_MAX])
{
    adli_workload workload;
    char text[512];
    adli_sim_options options = options_for("rank");
    options.event = options.log = true;
    options.interval_s = interval_s;
    snprintf(text, sizeof text, "name,time,application,num_replicas,batch_size\n%s", rows);
    if (adli_workload_parse("w", text, strlen(text), traces, &workload) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    adli_sim_result result = simulated(&workload, options);
    round_times(&result, times);
    adli_workload_fini(&workload);
    return result;
}

/* The world is looked at every 10 seconds; with rounds a day apart, what is decided in between has each a reason. */
TEST(each_kind_of_event_asks_for_a_decision)
{
    static double times[ROUNDS_MAX];
    enum { DAY = 86400 };
    adli_traces traces;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    /* alone: it came, and it measured 1, 2 ... replicas, each after a restart of 30 s */
    adli_sim_result alone = by_event(&traces, "a,1,vision-large,1,128\n", DAY, times);
    CHECK(times[0] == 10);
    CHECK(alone.rounds >= 3 && times[2] < 300);
    CHECK(alone.jobs[0].restarts >= 2);
    double last_s = times[alone.rounds - 1], finish_s = 1 + alone.jobs[0].jct_s;
    CHECK(finish_s - last_s > 900); /* all sizes measured: nothing more happens */
    /* one that comes then */
    char rows[128];
    double comes_s = 10 * floor(last_s / 10) + 505;
    snprintf(rows, sizeof rows, "a,1,vision-large,1,128\nb,%g,vision-small,1,128\n", comes_s);
    adli_sim_result two = by_event(&traces, rows, DAY, times);
    CHECK(decided_at(times, two.rounds, comes_s + 5));
    CHECK(!decided_at(times, two.rounds, comes_s - 5));
    /* and the end of whichever is done first: the other gets what it had */
    double ends_s = fmin(1 + two.jobs[0].jct_s, comes_s + two.jobs[1].jct_s);
    CHECK(decided_at(times, two.rounds, 10 * ceil(ends_s / 10)));
    /* where nothing happens a decision is made after the interval, at the latest */
    adli_sim_result often = by_event(&traces, "a,1,vision-large,1,128\n", 300, times);
    for (int i = 1; i < often.rounds; i++)
        CHECK(times[i] - times[i - 1] <= 300);
    CHECK(1 + often.jobs[0].jct_s - times[often.rounds - 1] <= 300);
    CHECK(often.rounds > alone.rounds);
    adli_sim_result_fini(&often);
    adli_sim_result_fini(&two);
    adli_sim_result_fini(&alone);
    adli_traces_fini(&traces);
}

static void write_text(const char *directory, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    CHECK_OK(adli_file_write(path, text, strlen(text)));
}

static const char placements[] = "placement,local_bsz,step_time,sync_time\n1,8,1,0.1\n1,16,2,0.1"
                                 "\n2,8,1.2,0.3\n12,8,1.4,0.5\n44,16,2.5,0.5\n";
static const char scalability[] =
    "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,8,8,1.5,0.5\n8,8,16,3,0.5\n";
static const char validation[] = "progress,iteration,grad_sqr,grad_var\n100,100,1,2\n200,200,1,3\n";

/* What files beside the measurements say of an application: its limits by size, what changes cost it. */
TEST(an_application_has_limits_and_costs_of_its_own)
{
    char root[] = "/tmp/adl-traces-XXXXXX", command[128];
    REQUIRE(mkdtemp(root));
    for (int i = 0; i < 2; i++) {
        char app[64];
        snprintf(app, sizeof app, "%s/%s", root, i ? "other" : "demo");
        REQUIRE(mkdir(app, 0700) == 0);
        write_text(app, "placements.csv", placements);
        write_text(app, "scalability.csv", scalability);
        write_text(app, "validation-64.csv", validation);
    }
    write_text(root, "applications.csv", "application,restart_s,resize_s\ndemo,100,3\n");
    write_text(root, "limits.csv",
               "application,replicas,max_local_bsz\ndemo,1,16\ndemo,4,9\nnone,1,1\ndemo,8,5\n");
    adli_traces traces;
    REQUIRE_OK(adli_traces_load(root, &traces));
    REQUIRE(traces.count == 2);
    const adli_app *demo = &traces.apps[0], *other = &traces.apps[1];
    CHECK_STR(demo->name, "demo");
    static const int limits[][2] = {{1, 16}, {2, 9}, {4, 9}, {5, 5}, {8, 5}, {64, 5}};
    for (size_t i = 0; i < ADLI_COUNT(limits); i++) {
        CHECK_INT(adli_app_max_local(demo, limits[i][0]), limits[i][1]);
        CHECK_INT(adli_app_max_local(other, limits[i][0]), other->max_local);
    }
    int local_bsz, accum_steps; /* 64 on 4: no more than 9 at a time */
    adli_app_split(demo, 64, 4, &local_bsz, &accum_steps);
    CHECK_INT(local_bsz, 8);
    CHECK_INT(accum_steps, 1);
    adli_sim_options options = options_for("rank");
    options.resize_delay_s = 7;
    options.recorded_delays = true;
    CHECK_NEAR(adli_sim_delay_s(&options, demo, ADLI_SIM_RESTARTS), 100, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, demo, ADLI_SIM_RESIZES), 3, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, demo, ADLI_SIM_MOVES), 6, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, other, ADLI_SIM_RESTARTS), 30, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, other, ADLI_SIM_RESIZES), 7, 0);
    options.recorded_delays = false; /* --rescale-delay was given */
    CHECK_NEAR(adli_sim_delay_s(&options, demo, ADLI_SIM_RESTARTS), 30, 0);
    CHECK_NEAR(adli_sim_delay_s(&options, demo, ADLI_SIM_RESIZES), 7, 0);
    adli_traces_fini(&traces);
    static const char *const bad[][3] = {
        {"limits.csv", "application,replicas,max_local_bsz\ndemo,4,9\ndemo,4,8\n",
         "limits.csv:3: field \"replicas\": 4 is not more than in the row before"},
        {"limits.csv", "application,replicas,max_local_bsz\ndemo,0,9\n", "limits.csv:2"},
        {"limits.csv", "application,replicas\ndemo,1\n", "max_local_bsz"},
        {"applications.csv", "application,resize_s\ndemo,-1\n", "field \"resize_s\""},
    };
    for (size_t i = 0; i < ADLI_COUNT(bad); i++) {
        write_text(root, bad[i][0], bad[i][1]);
        CHECK_FAILS(adli_traces_load(root, &traces), ADL_EINVAL, bad[i][2]);
        write_text(root, bad[i][0], "application,replicas,max_local_bsz\n");
    }
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_INT(system(command), 0);
}

/* A folder with one good application, then each file made wrong in turn. */
TEST(traces_are_checked)
{
    const struct {
        const char *file, *text, *message;
    } cases[] = {
        {"placements.csv", "placement,local_bsz,step_time\n", "field \"sync_time\": the column"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n", "no rows"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n1x,8,1,0\n", "no placement"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n10,8,1,0\n", "digits 1 to 9"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,-1,0\n",
         "placements.csv:2: field \"step_time\": -1 is less"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,1,2\n",
         "field \"sync_time\": 2 is not less than the step time"},
        {"placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,1,0\n1,8,1,0\n",
         "appears twice"},
        {"scalability.csv", NULL, "scalability.csv: No such file"},
        {"scalability.csv", "", "scalability.csv:1: empty"},
        {"scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,2,8,1,0\n",
         "field \"num_replicas\": 2 is less than 4"},
        {"validation-64.csv", NULL, "no validation-<batch size>.csv"},
        {"validation-64.csv", "progress,iteration,grad_sqr,grad_var\n100,1,1,word\n",
         "validation-64.csv:2: field \"grad_var\""},
        {"validation-64.csv", "progress,iteration,grad_sqr,grad_var\n100,1,1,1\n50,2,1,1\n",
         "field \"progress\": 50 is not more"},
    };
    char root[] = "/tmp/adl-traces-XXXXXX", app[64];
    REQUIRE(mkdtemp(root));
    snprintf(app, sizeof app, "%s/demo", root);
    REQUIRE(mkdir(app, 0700) == 0);
    adli_traces traces;
    CHECK_FAILS(adli_traces_load("/nonexistent", &traces), ADL_ENOENT, "/nonexistent");
    CHECK_FAILS(adli_traces_load(root, &traces), ADL_ENOENT, "no folder in it has");
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        write_text(app, "placements.csv", placements);
        write_text(app, "scalability.csv", scalability);
        write_text(app, "validation-64.csv", validation);
        REQUIRE_OK(adli_traces_load(root, &traces));
        CHECK_INT(traces.apps[0].epochs, 2);
        adli_traces_fini(&traces);
        char path[512];
        snprintf(path, sizeof path, "%s/%s", app, cases[i].file);
        if (cases[i].text)
            write_text(app, cases[i].file, cases[i].text);
        else
            unlink(path);
        adl_status status = adli_traces_load(root, &traces);
        CHECK(status == ADL_EINVAL || status == ADL_ENOENT);
        if (!strstr(adl_error(), cases[i].message))
            ADLT_FAIL("\"%s\" lacks \"%s\"", adl_error(), cases[i].message);
    }
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_INT(system(command), 0);
}

TEST(a_job_that_can_never_run_ends_the_simulation)
{
    static const char text[] =
        "name,time,application,num_replicas,batch_size\nbig,1,language,99,128\n";
    adli_traces traces;
    adli_workload workload;
    adli_sim_result result;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    REQUIRE_OK(adli_workload_parse("w", text, sizeof text - 1, &traces, &workload));
    adli_sim_options options = options_for("tiresias");
    options.nodes = 1;
    options.gpus = 1;
    adl_status status = adli_simulate(&workload, &options, NULL, &result);
    if (status == ADL_OK) /* the policy cut it down to what there is */
        adli_sim_result_fini(&result);
    else
        CHECK_FAILS(status, ADL_ESTATE, "never starts job \"big\"");
    adli_workload_fini(&workload);
    adli_traces_fini(&traces);
}

/* Every allocation of a whole simulation fails once: an error, no crash, no leak. */
TEST(running_out_of_memory_is_reported)
{
    static const char text[] = "name,time,application,num_replicas,batch_size\n"
                               "a,1,vision-small,2,512\nb,70,vision-small,2,512\n";
    adli_traces traces;
    REQUIRE_OK(adli_traces_load(traces_path, &traces));
    int tried = 0;
    for (int nth = 1;; nth += 1 + nth / 20, tried++) {
        adli_workload workload;
        adli_sim_result result;
        adli_sim_options options = options_for("rank");
        int64_t before = adli_mem_count();
        adli_mem_fail_at(nth);
        adl_status status = adli_workload_parse("w", text, sizeof text - 1, &traces, &workload);
        bool loaded = status == ADL_OK;
        if (loaded)
            status = adli_simulate(&workload, &options, NULL, &result);
        adli_mem_fail_at(0);
        bool reached = adli_mem_count() - before >= nth;
        CHECK_INT(status, reached ? ADL_ENOMEM : ADL_OK);
        if (status == ADL_OK)
            adli_sim_result_fini(&result);
        if (loaded)
            adli_workload_fini(&workload);
        if (!reached)
            break;
    }
    printf("info - %d allocations made to fail\n", tried);
    CHECK(tried > 50);
    adli_traces_fini(&traces);
}
