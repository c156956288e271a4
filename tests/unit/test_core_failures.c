/* Jobs that fail: which are tried again, and what their users are told. */
#include "core_world.h"

static void write_log(world *w, const char *uid, int group, const char *text, size_t length)
{
    char path[600];
    fake_job_dir(w->fake, uid, path, sizeof path);
    snprintf(path, sizeof path, "%s/jobs/%s/%d.0.log", w->dir, uid, group);
    FILE *file = fopen(path, "w");
    fwrite(text, 1, length, file);
    fclose(file);
}

TEST(failures_are_retried_with_pauses_then_final_with_the_log)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "bad", "  maxRetries: 2\n"));
    char uid[64];
    snprintf(uid, sizeof uid, "%s", uid_of(&w, "bad"));
    double pause_s = 10;
    for (int failure = 1; failure <= 3; failure++) {
        step(&w, 0);
        CHECK_INT(int_of(&w, "bad", "group"), failure);
        static const char log[] = "starting\r\n\x1b[31mTraceback\x1b[0m \xff\xc3\xa9\nlast line\n";
        write_log(&w, uid, failure, log, sizeof log - 1);
        fake_group *group = fake_set(w.fake, uid, ADLI_MEMBER_FAILED, 137);
        REQUIRE(group);
        group->views[0].cause = ADLI_CAUSE_OOM_KILLED;
        step(&w, 1);
        CHECK_INT(int_of(&w, "bad", "failures"), failure);
        CHECK_INT(events_with(&w, "ReplicaFailed"), failure);
        if (failure == 3)
            break;
        CHECK_STR(text_of(&w, "bad", "phase"), "Pending");
        CHECK_STR(text_of(&w, "bad", "reason"), "Retrying");
        step(&w, pause_s - 1);
        CHECK_STR(text_of(&w, "bad", "phase"), "Pending");
        w.now_s += 1;
        pause_s *= 2;
    }
    CHECK_STR(text_of(&w, "bad", "phase"), "Failed");
    CHECK_STR(text_of(&w, "bad", "reason"), "OOMKilled");
    CHECK_STR(text_of(&w, "bad", "message"),
              "replica 0 of 1 (group 3), OOMKilled: ended by signal 9\n"
              "starting\n?[31mTraceback?[0m ?\xc3\xa9\nlast line");
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* The job's present group ends with this output. */
static void fail_with(world *w, const char *uid, int group, const char *log, int exit_code)
{
    write_log(w, uid, group, log, strlen(log));
    REQUIRE(fake_set(w->fake, uid, ADLI_MEMBER_FAILED, exit_code));
    step(w, 1);
}

TEST(hopeless_failures_are_not_tried_again)
{
    static const char trace[] = "Traceback (most recent call last):\n  File \"t.py\", line 1\n%s\n";
    char log[200], uid[64];
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "import", "  maxRetries: 5\n"));
    step(&w, 0);
    snprintf(log, sizeof log, trace, "ModuleNotFoundError: No module named 'trian'");
    fail_with(&w, uid_of(&w, "import"), 1, log, 1);
    CHECK_STR(text_of(&w, "import", "phase"), "Failed");
    CHECK(strstr(text_of(&w, "import", "message"), "; not tried again: an import failed\n"));

    REQUIRE_OK(submit(&w, "same", "  maxRetries: 5\n"));
    snprintf(uid, sizeof uid, "%s", uid_of(&w, "same"));
    static const char *const ends[] = {"ValueError: 1", "KeyError: 'x'", "ValueError: 2",
                                       "ValueError: 3"};
    for (int failure = 1; failure <= 4; failure++) { /* the fourth is as the third */
        step(&w, 0);
        CHECK_INT(int_of(&w, "same", "group"), failure);
        snprintf(log, sizeof log, trace, ends[failure - 1]);
        fail_with(&w, uid, failure, log, 1);
        CHECK_STR(text_of(&w, "same", "phase"), failure == 4 ? "Failed" : "Pending");
        w.now_s += 400;
    }
    CHECK(strstr(text_of(&w, "same", "message"), "with the same traceback before\nTraceback"));

    REQUIRE_OK(submit(&w, "none", "  maxRetries: 5\n"));
    step(&w, 0);
    fake_group *group = fake_set(w.fake, uid_of(&w, "none"), ADLI_MEMBER_FAILED, 127);
    REQUIRE(group);
    group->views[0].cause = ADLI_CAUSE_CANNOT_RUN;
    step(&w, 1);
    CHECK_STR(text_of(&w, "none", "phase"), "Failed");
    CHECK_STR(text_of(&w, "none", "reason"), "CannotRun");
    close_world(&w);
}

TEST(a_start_that_fails_is_a_failure_of_the_job)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    w.fake->start_fails = ADL_EINVAL;
    REQUIRE_OK(submit(&w, "bad", "  maxRetries: 0\n"));
    step(&w, 0);
    step(&w, 1);
    CHECK_STR(text_of(&w, "bad", "phase"), "Failed");
    CHECK_STR(text_of(&w, "bad", "reason"), "CannotStart");
    CHECK(strstr(text_of(&w, "bad", "message"), "made to fail"));
    close_world(&w);
}

/* No room for a process, or a machine too busy to start one in time: the group waits for the rest of it. */
TEST(a_start_for_which_there_is_no_room_now_is_no_try)
{
    static const adl_status later[] = {ADL_ENOMEM, ADL_ETIMEOUT};
    for (int i = 0; i < 2; i++) {
        world w;
        REQUIRE_OK(open_world(&w, 1, 1));
        w.fake->start_fails = later[i];
        REQUIRE_OK(submit(&w, "waits", "  maxRetries: 0\n"));
        step(&w, 0);
        step(&w, 1);
        step(&w, 10);
        CHECK_STR(text_of(&w, "waits", "phase"), "Starting");
        CHECK_INT(int_of(&w, "waits", "failures"), 0);
        w.fake->start_fails = ADL_OK;
        step(&w, 0.1); /* too soon */
        CHECK_INT(w.fake->starts, 0);
        step(&w, 30);
        CHECK_INT(w.fake->starts, 1);
        step(&w, 1);
        CHECK_STR(text_of(&w, "waits", "phase"), "Running");
        CHECK_INT(int_of(&w, "waits", "group"), 1);
        CHECK_INT(events_with(&w, "ReplicaFailed"), 0);
        CHECK_INT(w.fake->broken, 0);
        close_world(&w);
    }
}

/* What cannot be read cannot be watched: it is ended, and the job goes on from its checkpoint. */
TEST(a_group_that_cannot_be_observed_is_ended)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "torn", "  maxRetries: 0\n"));
    step(&w, 0);
    CHECK_STR(text_of(&w, "torn", "phase"), "Running");
    w.fake->observe_fails = ADL_ECORRUPT;
    step(&w, 1);
    w.fake->observe_fails = ADL_OK;
    CHECK(w.fake->groups[0].forgotten);
    step(&w, 30);
    CHECK_STR(text_of(&w, "torn", "phase"), "Running");
    CHECK_INT(int_of(&w, "torn", "group"), 2);
    CHECK_INT(int_of(&w, "torn", "failures"), 0);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* Whichever is seen first. */
TEST(replicas_that_miss_a_lost_one_have_not_failed)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    REQUIRE_OK(submit(&w, "pair", "  minReplicas: 2\n"));
    for (int turn = 0; turn < 2; turn++) {
        step(&w, 1);
        step(&w, 1);
        REQUIRE(w.fake->group_count == turn + 1);
        fake_group *group = &w.fake->groups[turn];
        group->views[turn].state = ADLI_MEMBER_INTERRUPTED;
        group->views[turn].cause = ADLI_CAUSE_LOST;
        group->views[1 - turn].state = ADLI_MEMBER_FAILED;
        group->views[1 - turn].exit_code = 1;
        fake_ring(w.fake);
        step(&w, 1);
        CHECK_INT(int_of(&w, "pair", "failures"), 0);
    }
    CHECK_INT(events_with(&w, "ReplicaFailed"), 0);
    CHECK_INT(events_with(&w, "ReplicaLost"), 2); /* once each */
    step(&w, 1);
    step(&w, 1);
    REQUIRE(w.fake->group_count == 3);
    fake_group *group = &w.fake->groups[2]; /* too little memory is its own fault nevertheless */
    group->views[0].state = ADLI_MEMBER_INTERRUPTED;
    group->views[0].cause = ADLI_CAUSE_LOST;
    group->views[1].state = ADLI_MEMBER_FAILED;
    group->views[1].cause = ADLI_CAUSE_OOM_KILLED;
    step(&w, 1);
    CHECK_INT(int_of(&w, "pair", "failures"), 1);
    CHECK(events_with(&w, "OOMKilled") > 0);
    close_world(&w);
}

/* PyTorch aborts when a peer goes while its process group is being formed. */
TEST(a_peer_that_left_is_no_try)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    REQUIRE_OK(submit(&w, "pair", "  minReplicas: 2\n"));
    double now_s = adli_core_now(w.core);
    for (int turn = 0; turn < 2; turn++) {
        step(&w, 1);
        step(&w, 1);
        REQUIRE(w.fake->group_count == turn + 1);
        fake_group *group = &w.fake->groups[turn];
        now_s = adli_core_now(w.core);
        group->views[turn] = (adli_member_view){
            .state = ADLI_MEMBER_INTERRUPTED, .exit_code = 143, .ended_s = now_s};
        group->views[1 - turn] = (adli_member_view){
            .state = ADLI_MEMBER_FAILED, .exit_code = 134, .ended_s = now_s + 0.5};
        fake_ring(w.fake);
        step(&w, 1);
        CHECK_INT(int_of(&w, "pair", "failures"), 0);
    }
    CHECK_INT(events_with(&w, "ReplicaFailed"), 0);
    step(&w, 1);
    step(&w, 1);
    REQUIRE(w.fake->group_count == 3);
    fake_group *group = &w.fake->groups[2]; /* the other way round it is one */
    now_s = adli_core_now(w.core);
    group->views[0] =
        (adli_member_view){.state = ADLI_MEMBER_FAILED, .exit_code = 1, .ended_s = now_s};
    step(&w, 1);
    group->views[1] = (adli_member_view){
        .state = ADLI_MEMBER_INTERRUPTED, .exit_code = 143, .ended_s = now_s + 2};
    step(&w, 1);
    CHECK_INT(int_of(&w, "pair", "failures"), 1);
    close_world(&w);
}
