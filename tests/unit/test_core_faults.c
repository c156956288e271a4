/* The daemon's core when things go wrong: the daemon is replaced, the store or memory fails, the clock goes
 * back, many threads call at once. */
#include "core_world.h"

TEST(a_new_daemon_takes_over)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 3));
    REQUIRE_OK(submit(&w, "runs", ""));
    REQUIRE_OK(submit(&w, "ends", ""));
    REQUIRE_OK(submit(&w, "dies", ""));
    step(&w, 0);
    step(&w, 1);
    CHECK_INT(w.fake->starts, 3);
    char ends[64];
    snprintf(ends, sizeof ends, "%s", uid_of(&w, "ends"));
    adli_core_free(w.core);
    w.core = NULL;
    fake_set(w.fake, ends, ADLI_MEMBER_SUCCEEDED, 0);
    REQUIRE_OK(open_core(&w));
    CHECK_STR(text_of(&w, "runs", "phase"), "Running");
    fake_set(w.fake, uid_of(&w, "dies"), ADLI_MEMBER_INTERRUPTED, 143);
    step(&w, 1);
    step(&w, 2);
    CHECK_STR(text_of(&w, "ends", "phase"), "Succeeded");
    CHECK_STR(text_of(&w, "runs", "phase"), "Running");
    CHECK_INT(int_of(&w, "runs", "group"), 1);
    CHECK_INT(int_of(&w, "dies", "group"), 2);
    CHECK_INT(int_of(&w, "dies", "failures"), 0);
    CHECK_INT(w.fake->starts, 4);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* The daemon died right after a start, and the node is drained before the next one has looked: the group
 * is there and must be stopped, not taken for one that never was. */
TEST(a_group_that_is_starting_is_taken_over)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    w.fake->auto_ready = w.fake->obedient = false;
    REQUIRE_OK(submit(&w, "job", ""));
    step(&w, 0);
    CHECK_STR(text_of(&w, "job", "phase"), "Starting");
    REQUIRE_OK(reopen(&w));
    REQUIRE_OK(adli_core_drain(w.core, "node-0", true, &w.out));
    step(&w, 1);
    CHECK_STR(text_of(&w, "job", "phase"), "Stopping");
    CHECK_INT(w.fake->groups[0].terms, 1);
    CHECK_INT(w.fake->starts, 1);
    fake_set(w.fake, uid_of(&w, "job"), ADLI_MEMBER_SUCCEEDED, 0);
    step(&w, 1);
    CHECK_STR(text_of(&w, "job", "phase"), "Succeeded");
    CHECK_INT(w.fake->starts, 1);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* A commit that fails changes nothing: not what callers see, not what runs. */
TEST(a_store_that_cannot_be_written)
{
    world w;
    adli_store_fault(ADLI_FAULT_NONE, 0, 0);
    REQUIRE_OK(open_world(&w, 1, 2));
    REQUIRE_OK(submit(&w, "before", ""));
    adli_store_fault(ADLI_FAULT_FULL, 1, INT64_MAX);
    CHECK_FAILS(submit(&w, "after", ""), ADL_EIO, "jobs.sqlite");
    CHECK(field(&w, "after", "phase") == NULL);
    CHECK_FAILS(adli_core_delete(w.core, "default", "before", &w.out), ADL_EIO, "jobs.sqlite");
    CHECK(json_is_false(field(&w, "before", "deleted")));
    CHECK_FAILS(adli_core_drain(w.core, "node-0", true, &w.out), ADL_EIO, "jobs.sqlite");
    CHECK_FAILS(adli_core_hints(w.core, "default", "before", good_hints, strlen(good_hints)),
                ADL_EIO, "jobs.sqlite");
    CHECK(json_is_null(field(&w, "before", "train")));
    step(&w, 0);
    step(&w, 1);
    CHECK_STR(text_of(&w, "before", "phase"), "Pending");
    CHECK_INT(w.fake->starts, 0);
    adli_store_fault(ADLI_FAULT_NONE, 0, 0);
    step(&w, 1);
    step(&w, 1);
    CHECK_STR(text_of(&w, "before", "phase"), "Running");
    CHECK_INT(w.fake->starts, 1);
    CHECK_OK(submit(&w, "after", ""));
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* One operation after the other fails, once each: the job goes its way all the same. */
TEST(every_write_may_fail_once)
{
    int failures = 0;
    adli_store_fault(ADLI_FAULT_NONE, 0, 0);
    for (int64_t nth = 1;; nth++) {
        world w;
        REQUIRE_OK(open_world(&w, 1, 1));
        int64_t before = adli_store_operations();
        adli_store_fault(nth % 2 ? ADLI_FAULT_EIO : ADLI_FAULT_FULL, nth, 1);
        for (int i = 0; i < 3 && submit(&w, "job", "") == ADL_EIO; i++)
            failures++;
        for (int i = 0; i < 6; i++)
            step(&w, 1);
        fake_set(w.fake, uid_of(&w, "job"), ADLI_MEMBER_SUCCEEDED, 0);
        for (int i = 0; i < 4; i++)
            step(&w, 1);
        CHECK_STR(text_of(&w, "job", "phase"), "Succeeded");
        CHECK_INT(w.fake->starts, 1);
        CHECK_INT(w.fake->broken, 0);
        int64_t used = adli_store_operations() - before;
        adli_store_fault(ADLI_FAULT_NONE, 0, 0);
        close_world(&w);
        if (adlt_failed || nth > used)
            break;
    }
    printf("info - every write of a job's life failed once, %d submissions were refused\n",
           failures);
}

/* Any allocation may fail: an error or a delay, never a crash, a loss or a second start. */
TEST(every_allocation_may_fail)
{
    int64_t most = 1, points = 0;
    for (int64_t nth = 1; nth <= most && !adlt_failed; nth++, points++) {
        world w;
        REQUIRE_OK(open_world(&w, 1, 2));
        int64_t before = adli_mem_count();
        adli_mem_fail_at(nth);
        adl_status status = submit(&w, "job", "");
        CHECK(status == ADL_OK || status == ADL_ENOMEM || status == ADL_EIO);
        for (int i = 0; i < 3; i++)
            step(&w, 1);
        status = adli_core_hints(w.core, "default", "job", good_hints, strlen(good_hints));
        adli_buf_clear(&w.out);
        status = adli_core_cluster(w.core, &w.out);
        for (int i = 0; i < 3; i++)
            step(&w, 61);
        adli_mem_fail_at(0);
        most = adli_mem_count() - before;
        adli_buf_fini(&w.out); /* it remembers its failure */
        adli_buf_init(&w.out, 16 << 20);
        if (field(&w, "job", "phase") == NULL)
            CHECK_OK(submit(&w, "job", ""));
        for (int i = 0; i < 3; i++)
            step(&w, 61);
        CHECK_STR(text_of(&w, "job", "phase"), "Running");
        CHECK_INT(w.fake->broken, 0);
        close_world(&w);
    }
    printf("info - %lld allocations failed in turn\n", (long long)points);
}

TEST(metrics_are_there)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "job", ""));
    step(&w, 0);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_metrics(w.core, &w.out));
    CHECK(strstr(w.out.data, "\nadaptdl_job_replicas{job=\"default/job\"} 1\n"));
    fake_set(w.fake, uid_of(&w, "job"), ADLI_MEMBER_SUCCEEDED, 0);
    step(&w, 20);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_metrics(w.core, &w.out));
    CHECK(!strstr(w.out.data, "adaptdl_job_replicas{"));
    CHECK(strstr(w.out.data, "\njob_submission_count 1\n"));
    CHECK(strstr(w.out.data, "\nadaptdl_sched_job_submission_count 1\n"));
    CHECK(strstr(w.out.data, "\nadaptdl_sched_job_completion_time_sum{status=\"Succeeded\"} 20\n"));
    CHECK(strstr(w.out.data, "\nadaptdl_sched_job_completion_time_count{status=\"Failed\"} 0\n"));
    CHECK(strstr(w.out.data, "\njob_completion_time_bucket{status=\"Succeeded\",le=\"10\"} 0\n"));
    CHECK(strstr(w.out.data, "\njob_completion_time_bucket{status=\"Succeeded\",le=\"60\"} 1\n"));
    CHECK(strstr(w.out.data, "\njob_completion_time_sum{status=\"Succeeded\"} 20\n"));
    CHECK(strstr(w.out.data, "\nadaptdl_jobs{phase=\"Succeeded\"} 1\n"));
    CHECK(strstr(w.out.data, "\nadaptdl_resource_total{resource=\"pods\"} 1\n"));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_cluster(w.core, &w.out));
    json_t *root;
    REQUIRE_OK(adli_json_parse(w.out.data, w.out.length, &root));
    CHECK_INT(json_integer_value(json_object_get(json_object_get(root, "jobs"), "Succeeded")), 1);
    json_decref(root);
    close_world(&w);
}

/* A clock that is set back must not confuse the order of submission. */
TEST(a_clock_that_goes_back)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 4));
    REQUIRE_OK(submit(&w, "first", ""));
    w.now_s -= 3600;
    REQUIRE_OK(submit(&w, "second", ""));
    step(&w, 1);
    CHECK_STR(text_of(&w, "second", "phase"), "Running");
    REQUIRE_OK(reopen(&w));
    step(&w, 1);
    CHECK_STR(text_of(&w, "first", "phase"), "Running");
    CHECK_INT(w.fake->starts, 2);
    close_world(&w);
}

/* Many callers while the controller runs: for ThreadSanitizer, and nothing may get lost. */
typedef struct caller {
    world *w;
    int number;
    pthread_t thread;
} caller;

static void *call(void *user)
{
    caller *c = user;
    world *w = c->w;
    adli_buf out;
    adli_buf_init(&out, 16 << 20);
    for (int i = 0; i < 10; i++) {
        char name[32], text[512];
        snprintf(name, sizeof name, "t%d-%d", c->number, i);
        snprintf(text, sizeof text,
                 "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: %s}\n"
                 "spec: {template: {spec: {containers: [{name: m, command: [a]}]}}}\n",
                 name);
        CHECK_OK(adli_core_submit(w->core, text, strlen(text), true, false, NULL, &out));
        CHECK_OK(adli_core_hints(w->core, "default", name, good_hints, strlen(good_hints)));
        adli_buf_clear(&out);
        int64_t seq = 0;
        CHECK_OK(adli_core_jobs(w->core, &(adli_list_query){0}, &out));
        CHECK_OK(adli_core_cluster(w->core, &out));
        CHECK_OK(adli_core_metrics(w->core, &out));
        CHECK_OK(adli_core_events(w->core, NULL, NULL, 10, &seq, &out));
        CHECK_OK(adli_core_drain(w->core, "node-1", i % 2, &out));
        CHECK_OK(adli_core_history(w->core, "default", name, &out));
        CHECK_OK(adli_core_decisions(w->core, "default", name, 5, &out));
        adli_log_state state;
        CHECK_OK(adli_core_log_state(w->core, "default", name, &state));
        if (adli_core_discover(w->core, "default", name, 0, &out) == ADL_OK)
            adli_buf_clear(&out);
        if (i % 3 == 0)
            CHECK_OK(adli_core_delete(w->core, "default", name, &out));
        adli_buf_clear(&out);
    }
    adli_buf_fini(&out);
    return NULL;
}

static _Atomic int woken;

static void woke(void *user)
{
    (void)user;
    woken++;
}

TEST(callers_from_many_threads)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 4));
    w.core->clock = (double (*)(void *))test_clock;
    adli_core_listen(w.core, woke, NULL);
    REQUIRE_OK(adli_core_start(w.core));
    caller callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i] = (caller){.w = &w, .number = i};
        pthread_create(&callers[i].thread, NULL, call, &callers[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(callers[i].thread, NULL);
    adli_core_stop(w.core);
    for (int i = 0; i < 4; i++)
        step(&w, 1);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_jobs(w.core, &(adli_list_query){0}, &w.out));
    int count = 0;
    for (const char *at = w.out.data; (at = strstr(at, "\"uid\":")); at++)
        count++;
    CHECK_INT(count, 4 * 6); /* four of ten were deleted */
    CHECK(woken > 0);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}
