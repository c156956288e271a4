/* The state machine of worlds, without processes: who is started, offered a world, ended, and when only a restart
 * helps. Every history is played twice: once as it is, once with the machine written down and read again after each
 * step, as a scheduler that is killed all the time. */
#include "harness.h"

#include "sched/worlds.h"

#include <string.h>

static adli_worlds worlds;
static double now_s;
static bool killed; /* write and read after each step */
static int free_room;

static const char *name_of(void *user, int node)
{
    (void)user;
    return node == 0 ? "a" : node == 1 ? "b" : "c";
}

static int node_of(void *user, const char *name)
{
    (void)user;
    return name[0] - 'a';
}

static const adli_world_names names = {name_of, node_of, NULL};

static bool has_room(void *user, int node, int more)
{
    (void)user;
    (void)node;
    return more <= free_room;
}

static void set_up(const int *nodes, int count)
{
    adli_worlds_fini(&worlds);
    now_s = 1000;
    free_room = 100;
    for (int i = 0; i < count; i++)
        CHECK(adli_worlds_add(&worlds, ADLI_ROLE_IN, i, nodes[i]) != NULL);
    CHECK_OK(adli_worlds_want(&worlds, nodes, count));
    worlds.running = true;
    worlds.patience_s = 2;
    worlds.room = has_room;
    for (int i = 0; i < count; i++)
        CHECK(adli_worlds_hear(&worlds, worlds.all[i], "able", now_s));
}

/* The scheduler is killed and another one reads what it wrote. */
static void survive(void)
{
    adli_worlds again;
    adli_buf text;
    if (!killed)
        return;
    adli_worlds_init(&again);
    adli_buf_init(&text, 1 << 20);
    adli_worlds_write(&worlds, &names, &text);
    CHECK_OK(adli_buf_check(&text));
    CHECK_OK(adli_worlds_read(text.data, &names, &again));
    CHECK_OK(adli_worlds_want(&again, worlds.wanted, worlds.wanted_count));
    again.running = worlds.running;
    again.deadly = worlds.deadly;
    again.patience_s = 2;
    again.room = has_room;
    adli_world_note *notes = worlds.notes; /* are told before anything else is done */
    again.notes = notes;
    again.note_count = worlds.note_count;
    again.note_capacity = worlds.note_capacity;
    again.deaths = worlds.deaths;
    worlds.notes = NULL;
    adli_worlds_fini(&worlds);
    worlds = again;
    adli_buf_fini(&text);
}

static void act(void)
{
    adli_worlds_act(&worlds, now_s);
    survive();
}

static void say(int member, const char *line)
{
    adli_member *from = adli_worlds_find(&worlds, member);
    CHECK(from != NULL);
    if (from)
        CHECK(adli_worlds_hear(&worlds, from, line, now_s));
    survive();
    act();
}

static void end(int member, adli_gone how)
{
    adli_worlds_find(&worlds, member)->gone = how;
    act();
}

static void want(const int *nodes, int count)
{
    CHECK_OK(adli_worlds_want(&worlds, nodes, count));
    act();
}

static void started(int member)
{
    adli_member *one = adli_worlds_find(&worlds, member);
    CHECK(one && one->start);
    if (one)
        one->start = false;
}

static bool offered(int count, const int *members)
{
    if (!adli_worlds_on_offer(&worlds) || worlds.next_count != count)
        return false;
    for (int i = 0; i < count; i++)
        if (worlds.next[i] != members[i])
            return false;
    return true;
}
#define OFFERED(...)                                                                               \
    offered((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static bool noted(adli_world_news news)
{
    for (size_t i = 0; i < worlds.note_count; i++)
        if (worlds.notes[i].news == news)
            return true;
    return false;
}

/* New ones of a size that is not wanted any more are still there when others are started: ranks are below the number of
 * replicas all the same, or the others refuse theirs. */
static void newcomers_that_are_ended_have_no_rank(void)
{
    set_up((int[]){0}, 1);
    want((int[]){0, 0, 1}, 3);
    started(1);
    started(2);
    want((int[]){0}, 1);
    CHECK(adli_worlds_find(&worlds, 1)->unwanted && adli_worlds_find(&worlds, 2)->unwanted);
    want((int[]){0, 0, 1}, 3);
    started(3);
    started(4);
    CHECK_INT(adli_worlds_find(&worlds, 3)->rank, 1);
    CHECK_INT(adli_worlds_find(&worlds, 4)->rank, 2);
}

static void grows_and_shrinks(void)
{
    set_up((int[]){0}, 1);
    want((int[]){0, 0, 1}, 3);
    started(1);
    started(2);
    CHECK(!adli_worlds_on_offer(&worlds) && !adli_worlds_restart(&worlds));
    say(1, "ready");
    CHECK(!adli_worlds_on_offer(&worlds)); /* not all of them */
    say(2, "ready");
    CHECK(OFFERED(0, 1, 2));
    CHECK(worlds.last == 1 && worlds.generation == 0);
    say(0, "entered 1");
    say(2, "entered 1");
    CHECK(adli_worlds_on_offer(&worlds));
    say(1, "entered 1");
    CHECK(!adli_worlds_on_offer(&worlds) && worlds.replicas == 3 && worlds.generation == 1);
    say(0, "paused 1 0.04");
    CHECK(noted(ADLI_NEWS_RESIZED) && worlds.notes[worlds.note_count - 1].seconds == 0.04);
    CHECK(adli_worlds_settled(&worlds));
    /* away from node 0, but for one that has the state */
    want((int[]){0, 1}, 2);
    CHECK(OFFERED(0, 2));
    say(0, "entered 2");
    say(2, "entered 2");
    CHECK(worlds.replicas == 2 && adli_worlds_find(&worlds, 1)->role == ADLI_ROLE_OUT);
    end(1, ADLI_GONE_LEFT);
    CHECK(adli_worlds_handles(&worlds, adli_worlds_find(&worlds, 1)));
    CHECK(adli_worlds_settled(&worlds) && !adli_worlds_restart(&worlds));
    want((int[]){0, 1, 1}, 3);
    started(3); /* numbers are not used again */
    CHECK(worlds.next_member == 4);
}

/* To other nodes altogether: one leads the new ones there, and leaves then. */
static void moves_in_two_changes(void)
{
    set_up((int[]){0, 0}, 2);
    want((int[]){1, 1, 2}, 3);
    for (int i = 2; i <= 4; i++)
        started(i);
    say(2, "ready");
    say(4, "ready");
    CHECK(!adli_worlds_on_offer(&worlds) && !adli_worlds_restart(&worlds));
    say(3, "ready");
    CHECK(OFFERED(0, 2, 3, 4));
    for (int i = 4; i >= 0; i--)
        if (i != 1)
            say(i, "entered 1");
    CHECK(worlds.generation == 1 && adli_worlds_find(&worlds, 1)->role == ADLI_ROLE_OUT);
    CHECK(OFFERED(2, 3, 4) && !adli_worlds_settled(&worlds));
    end(1, ADLI_GONE_LEFT);
    for (int i = 2; i <= 4; i++)
        say(i, "entered 2");
    CHECK(worlds.replicas == 3 && adli_worlds_find(&worlds, 0)->role == ADLI_ROLE_OUT);
    end(0, ADLI_GONE_LEFT);
    CHECK(adli_worlds_handles(&worlds, adli_worlds_find(&worlds, 0)));
    CHECK(adli_worlds_settled(&worlds) && !adli_worlds_restart(&worlds) && worlds.deaths == 0);

    /* the one that leads dies: the new ones have the state by then, and go on */
    set_up((int[]){0}, 1);
    want((int[]){1, 2}, 2);
    started(1);
    started(2);
    say(1, "ready");
    say(2, "ready");
    CHECK(OFFERED(0, 1, 2));
    for (int i = 0; i <= 2; i++)
        say(i, "entered 1");
    CHECK(OFFERED(1, 2));
    end(0, ADLI_GONE_KILLED);
    say(1, "lost 1 5 0");
    say(2, "lost 1 5 0");
    CHECK(OFFERED(1, 2) && worlds.last == 3);
    say(1, "entered 3");
    say(2, "entered 3");
    CHECK(adli_worlds_settled(&worlds) && !adli_worlds_restart(&worlds));

    /* it dies before, alone: nobody has the state */
    set_up((int[]){0}, 1);
    want((int[]){1}, 1);
    started(1);
    end(0, ADLI_GONE_KILLED);
    CHECK(!adli_worlds_handles(&worlds, adli_worlds_find(&worlds, 0)));
}

static void goes_on_without_the_dead(void)
{
    set_up((int[]){0, 0, 0}, 3);
    end(0, ADLI_GONE_KILLED); /* rank 0 */
    CHECK(adli_worlds_handles(&worlds, adli_worlds_find(&worlds, 0)));
    CHECK(noted(ADLI_NEWS_DIED) && worlds.deaths == 1 && !adli_worlds_on_offer(&worlds));
    say(1, "lost 0 7 0");
    CHECK(!adli_worlds_on_offer(&worlds));
    say(2, "lost 0 8 0");
    CHECK(OFFERED(2, 1)); /* the one that is ahead is first */
    say(2, "entered 1");
    say(1, "entered 1");
    CHECK(worlds.replicas == 2 && adli_worlds_find(&worlds, 0)->role == ADLI_ROLE_DEAD);
    started(3); /* its place is filled again */
    CHECK(!adli_worlds_restart(&worlds));
    /* and one that dies when no more may */
    worlds.deadly = true;
    end(1, ADLI_GONE_KILLED);
    CHECK(!adli_worlds_handles(&worlds, adli_worlds_find(&worlds, 1)));
}

static void ends_who_is_silent(void)
{
    set_up((int[]){0, 0, 0}, 3);
    say(0, "lost 0 5 2");
    say(1, "lost 0 5 2");
    CHECK(!adli_worlds_find(&worlds, 2)->kill);
    CHECK(adli_worlds_deadline(&worlds) < now_s + 3);
    now_s += 3;
    act();
    CHECK(adli_worlds_find(&worlds, 2)->kill && !adli_worlds_on_offer(&worlds));
    end(2, ADLI_GONE_KILLED);
    CHECK(OFFERED(0, 1));
}

static void tries_newcomers_again_three_times(void)
{
    set_up((int[]){0}, 1);
    want((int[]){0, 0}, 2);
    started(1);
    end(1, ADLI_GONE_KILLED); /* before it was ready */
    CHECK(noted(ADLI_NEWS_NEW_DIED));
    started(2);
    say(2, "ready");
    CHECK(OFFERED(0, 2));
    end(2, ADLI_GONE_ITSELF); /* while it joins */
    CHECK(worlds.dropped == 1);
    say(0, "refused 1 it was taken back");
    CHECK(!adli_worlds_on_offer(&worlds) && !adli_worlds_restart(&worlds));
    started(3);
    CHECK(!noted(ADLI_NEWS_GAVE_UP));
    end(3, ADLI_GONE_KILLED);
    CHECK(noted(ADLI_NEWS_GAVE_UP));
    CHECK(worlds.replicas == 1 && !worlds.broken);
}

static void restarts_when_nothing_else_helps(void)
{
    set_up((int[]){0, 0}, 2);
    free_room = 1;
    want((int[]){1, 1},
         2); /* nobody who has the state stays, and there is no room for all beside them */
    CHECK(adli_worlds_restart(&worlds) && noted(ADLI_NEWS_RESTART) && worlds.count == 2);
    want(NULL, 0);
    CHECK(adli_worlds_restart(&worlds));

    set_up((int[]){0, 0}, 2);
    worlds.all[1]->able = false; /* a program that cannot */
    want((int[]){0}, 1);
    CHECK(adli_worlds_restart(&worlds) && !adli_worlds_on_offer(&worlds));

    set_up((int[]){0}, 1);
    want((int[]){0, 0}, 2);
    say(1, "ready");
    say(0, "refused 1 the log ran over");
    CHECK(adli_worlds_restart(&worlds) && noted(ADLI_NEWS_RESTART));

    set_up((int[]){0, 0}, 2); /* all die at once */
    adli_worlds_find(&worlds, 0)->gone = ADLI_GONE_KILLED;
    end(1, ADLI_GONE_KILLED);
    CHECK(!adli_worlds_handles(&worlds, worlds.all[0]));

    set_up((int[]){0}, 1); /* they do not cross */
    want((int[]){0, 0}, 2);
    say(1, "ready");
    now_s = adli_worlds_deadline(&worlds);
    act();
    CHECK(adli_worlds_restart(&worlds));
}

/* One replica is done before the other: that is no reason to begin again, but another allocation still is. */
static void ends_one_by_one(void)
{
    for (int able = 0; able < 2; able++) {
        set_up((int[]){0, 1}, 2);
        worlds.all[0]->able = worlds.all[1]->able = able;
        end(0, ADLI_GONE_ITSELF);
        CHECK(!adli_worlds_restart(&worlds) && !adli_worlds_on_offer(&worlds));
        end(1, ADLI_GONE_ITSELF);
        CHECK(!adli_worlds_restart(&worlds) && worlds.deaths == 0);
    }
    set_up((int[]){0, 0}, 2);
    worlds.all[0]->able = worlds.all[1]->able = false;
    end(0, ADLI_GONE_ITSELF);
    want((int[]){1}, 1);
    CHECK(adli_worlds_restart(&worlds));
}

static void waits_for_room(void)
{
    set_up((int[]){0}, 1);
    free_room = 0;
    want((int[]){0, 1}, 2);
    CHECK(worlds.count == 1 && !adli_worlds_restart(&worlds));
    free_room = 1;
    act();
    started(1);
    set_up((int[]){0}, 1);
    free_room = 0;
    want((int[]){0, 1}, 2);
    now_s = adli_worlds_deadline(&worlds);
    act();
    CHECK(adli_worlds_restart(&worlds));
}

static void those_who_finish_are_not_replaced(void)
{
    set_up((int[]){0, 0}, 2);
    end(1, ADLI_GONE_ITSELF);
    CHECK(adli_worlds_settled(&worlds) && !adli_worlds_restart(&worlds));
    CHECK(worlds.count == 2 && !adli_worlds_handles(&worlds, worlds.all[1]));
    want((int[]){0, 0, 0}, 3); /* the others are about to finish, too */
    CHECK(worlds.count == 2 && !adli_worlds_on_offer(&worlds));
}

static void hears_things_twice(void)
{
    set_up((int[]){0, 0}, 2);
    end(1, ADLI_GONE_KILLED);
    say(0, "lost 0 5 1");
    say(0, "lost 0 5 1");
    CHECK(OFFERED(0) && worlds.last == 1);
    say(0, "entered 1");
    say(0, "entered 1");
    say(0, "entered 77"); /* never offered */
    say(0, "lost 0 5 1"); /* late */
    CHECK(!worlds.broken && worlds.last == 1);
    CHECK(!adli_worlds_hear(&worlds, worlds.all[0], "what", now_s));
    CHECK(!adli_worlds_hear(&worlds, worlds.all[0], "", now_s));
}

TEST(what_is_no_world_is_refused)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"generation\":2,\"last\":1,\"dropped\":0,\"nextMember\":0,\"replicas\":0,\"port\":0,"
        "\"failures\":0,\"unformed\":0,\"next\":[],\"members\":[]}",
        "{\"generation\":0,\"last\":1,\"dropped\":0,\"nextMember\":0,\"replicas\":0,\"port\":0,"
        "\"failures\":0,\"unformed\":0,\"next\":[5],\"members\":[]}",
        "{\"generation\":-1,\"last\":1}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        adli_worlds read;
        adli_worlds_init(&read);
        CHECK(adli_worlds_read(texts[i], &names, &read) != ADL_OK);
        adli_worlds_fini(&read);
    }
}

static void play(void)
{
    grows_and_shrinks();
    newcomers_that_are_ended_have_no_rank();
    moves_in_two_changes();
    goes_on_without_the_dead();
    ends_who_is_silent();
    tries_newcomers_again_three_times();
    restarts_when_nothing_else_helps();
    ends_one_by_one();
    waits_for_room();
    those_who_finish_are_not_replaced();
    hears_things_twice();
}

TEST(a_world_follows_from_what_is_seen_and_said)
{
    killed = false;
    play();
    adli_worlds_fini(&worlds);
}

TEST(a_scheduler_may_be_killed_after_every_step)
{
    killed = true;
    play();
    adli_worlds_fini(&worlds);
}
