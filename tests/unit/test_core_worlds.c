/* The scheduler opens worlds: a job that is pinned to other sizes, whose members die, and whose scheduler is another one
 * after every step, with a backend that only pretends and replicas that only say so. */
#include "core_world.h"

static bool reopens; /* another scheduler after every step */

static void turn(world *w)
{
    step(w, 0.1);
    if (!reopens)
        return;
    REQUIRE_OK(reopen(w));
    step(w, 0.1);
}

static void say(world *w, int member, const char *line)
{
    char body[256];
    snprintf(body, sizeof body, "{\"restarts\":0,\"member\":%d,\"says\":[\"%s\"]}", member, line);
    CHECK_OK(adli_core_say(w->core, "default", "job", body, strlen(body)));
    turn(w);
}

static void pin(world *w, int replicas)
{
    adli_buf_clear(&w->out);
    CHECK_OK(adli_core_pin(w->core, "default", "job", replicas, &w->out));
    w->now_s += 60;
    turn(w);
    turn(w);
}

static fake_group *group(world *w)
{
    return fake_find(w->fake, uid_of(w, "job"), 1);
}

/* What GET /world answers: the members on offer as "0,1"; "" when nothing is new after that one. */
static const char *offer(world *w, int after)
{
    static char text[256];
    adli_world_asked asked = {.after = after, .dropped = UINT32_MAX, .restarts = 0};
    adli_buf_clear(&w->out);
    *text = '\0';
    adl_status status = adli_core_world(w->core, "default", "job", &asked, &w->out);
    if (status != ADL_OK)
        return status == ADL_ETIMEOUT ? "" : "failed";
    const char *at = strstr(w->out.data, "\"members\":[");
    if (at && strstr(w->out.data, "\"open\":true"))
        snprintf(text, sizeof text, "%.*s", (int)strcspn(at + 11, "]"), at + 11);
    return text;
}

static bool open_job(world *w)
{
    if (open_world(w, 2, 2) != ADL_OK)
        return false;
    w->fake->ops.meet = fake_meet;
    w->fake->auto_ready = true;
    bool fine = submit(w, "job", "  maxRetries: 3\n") == ADL_OK;
    step(w, 0);
    step(w, 1);
    say(w, 0, "able");
    return fine && strcmp(text_of(w, "job", "phase"), "Running") == 0;
}

static void history(void)
{
    world w;
    REQUIRE(open_job(&w));
    pin(&w, 2);
    CHECK_INT(group(&w)->replicas, 2); /* a member was started, nobody was stopped */
    CHECK_INT(group(&w)->terms, 0);
    CHECK_STR(offer(&w, 0), "");
    say(&w, 1, "ready");
    CHECK_STR(offer(&w, 0), "0,1");
    CHECK(strstr(w.out.data, "\"port\":4711"));
    say(&w, 0, "entered 1");
    say(&w, 1, "entered 1");
    say(&w, 0, "paused 1 0.25");
    CHECK_STR(text_of(&w, "job", "lastResize"), "resized in place, paused 0.25 s");
    CHECK_INT(int_of(&w, "job", "readyReplicas"), 2);
    CHECK_INT(int_of(&w, "job", "pinned"), 2);
    CHECK_INT(events_with(&w, "2 replicas now: resized in place"), 1);

    group(&w)->views[0].state = ADLI_MEMBER_FAILED; /* rank 0 is killed */
    group(&w)->views[0].exit_code = 137;
    turn(&w);
    CHECK_STR(text_of(&w, "job", "phase"), "Running");
    say(&w, 1, "lost 1 40 0");
    CHECK_STR(offer(&w, 1), "1");
    say(&w, 1, "entered 2");
    say(&w, 1, "paused 2 0.5");
    CHECK_INT(int_of(&w, "job", "failures"), 1);
    turn(&w);
    CHECK_INT(group(&w)->replicas, 3); /* its place is filled again */
    CHECK_INT(group(&w)->views[2].member, 2);
    say(&w, 2, "ready");
    CHECK_STR(offer(&w, 2), "1,2");
    say(&w, 1, "entered 3");
    say(&w, 2, "entered 3");

    pin(&w, 1);
    CHECK_STR(offer(&w, 3), "1");
    say(&w, 1, "entered 4");
    group(&w)->views[2].state = ADLI_MEMBER_INTERRUPTED; /* it left */
    group(&w)->views[2].exit_code = 143;
    turn(&w);
    CHECK_STR(text_of(&w, "job", "phase"), "Running");
    CHECK_INT(int_of(&w, "job", "replicas"), 1);
    CHECK_INT(int_of(&w, "job", "restarts"), 0);
    CHECK_INT(w.fake->broken, 0);

    group(&w)->views[1].state = ADLI_MEMBER_SUCCEEDED;
    group(&w)->views[1].exit_code = 0;
    turn(&w);
    CHECK_STR(text_of(&w, "job", "phase"), "Succeeded");
    close_world(&w);
}

TEST(a_job_changes_while_it_runs)
{
    reopens = false;
    history();
}

TEST(and_so_it_does_with_another_scheduler_after_every_step)
{
    reopens = true;
    history();
}

/* Its node is drained: a member on the other one is led there, and the first leaves. */
static void moves(void)
{
    world w;
    REQUIRE(open_job(&w));
    char node[64];
    snprintf(node, sizeof node, "%s",
             json_string_value(json_array_get(field(&w, "job", "allocation"), 0)));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain(w.core, node, true, &w.out));
    w.now_s += 60;
    turn(&w);
    turn(&w);
    CHECK_INT(group(&w)->replicas, 2);
    CHECK_INT(group(&w)->terms, 0);
    say(&w, 1, "ready");
    CHECK_STR(offer(&w, 0), "0,1");
    say(&w, 0, "entered 1");
    say(&w, 1, "entered 1");
    CHECK_STR(offer(&w, 1), "1");
    say(&w, 1, "entered 2");
    say(&w, 1, "paused 2 0.1");
    group(&w)->views[0].state = ADLI_MEMBER_INTERRUPTED; /* it left */
    group(&w)->views[0].exit_code = 143;
    turn(&w);
    CHECK_STR(text_of(&w, "job", "phase"), "Running");
    CHECK_INT(int_of(&w, "job", "replicas"), 1);
    CHECK_INT(int_of(&w, "job", "restarts"), 0);
    CHECK_INT(group(&w)->terms, 0);
    CHECK_STR(text_of(&w, "job", "lastResize"), "resized in place, paused 0.10 s");
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

TEST(a_job_moves_to_another_node_while_it_runs)
{
    reopens = false;
    moves();
}

TEST(and_so_it_moves_with_another_scheduler_after_every_step)
{
    reopens = true;
    moves();
}

TEST(a_job_that_cannot_is_restarted_and_told_why)
{
    world w;
    reopens = false;
    REQUIRE_OK(open_world(&w, 2, 2));
    w.fake->ops.meet = fake_meet;
    w.fake->auto_ready = w.fake->obedient = true;
    REQUIRE_OK(submit(&w, "job", ""));
    step(&w, 0);
    step(&w, 1);
    pin(&w, 2);
    step(&w, 1);
    CHECK_INT(int_of(&w, "job", "restarts"), 1);
    CHECK_INT(int_of(&w, "job", "replicas"), 2);
    CHECK_STR(text_of(&w, "job", "lastResize"),
              "restarted: its program cannot change its size while it runs");
    close_world(&w);
}

TEST(new_members_that_die_end_in_a_restart)
{
    world w;
    reopens = false;
    REQUIRE(open_job(&w));
    w.fake->obedient = true;
    pin(&w, 2);
    for (int i = 1; i <= 3; i++) {
        fake_group *now = group(&w);
        CHECK_INT(now->replicas, i + 1);
        now->views[i].state = ADLI_MEMBER_FAILED;
        now->views[i].exit_code = 1;
        turn(&w);
        turn(&w);
    }
    step(&w, 1);
    CHECK_INT(int_of(&w, "job", "restarts"), 1);
    CHECK_INT(int_of(&w, "job", "failures"), 0);
    CHECK_STR(text_of(&w, "job", "lastResize"), "restarted: new replicas end before they join");
    close_world(&w);
}

TEST(pins_are_checked_and_what_replicas_say_too)
{
    world w;
    reopens = false;
    REQUIRE(open_job(&w));
    adli_buf_clear(&w.out);
    CHECK_FAILS(adli_core_pin(w.core, "default", "none", 2, &w.out), ADL_ENOENT, "none");
    static const char *const bodies[] = {"",
                                         "{}",
                                         "[]",
                                         "{\"restarts\":0,\"member\":0,\"says\":7}",
                                         "{\"restarts\":0,\"member\":0,\"says\":[\"\"]}",
                                         "{\"restarts\":-1,\"member\":0,\"says\":[]}"};
    for (size_t i = 0; i < ADLI_COUNT(bodies); i++)
        CHECK(adli_core_say(w.core, "default", "job", bodies[i], strlen(bodies[i])) != ADL_OK);
    say(&w, 77, "ready"); /* nobody */
    say(&w, 0, "entered 9");
    say(&w, 0, "what");
    CHECK_STR(offer(&w, 0), "");
    CHECK_STR(text_of(&w, "job", "phase"), "Running");
    close_world(&w);
}
