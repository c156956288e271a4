/* The scheduler goes and comes back, politely or not, alone or in company: nothing is lost and nothing
 * runs twice. */
#include "base/rng.h"
#include "conformance/suite.h"
#include "harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each run of a replica leaves a line "GROUP RANK" in the job's file. */
#define COUNTED "echo $G $ADAPTDL_REPLICA_RANK >>$DIR/runs; "

static int runs(adlt_site *site, const char *uid, int group, int rank)
{
    char line[32];
    snprintf(line, sizeof line, "%d %d", group, rank);
    return adlt_lines(adlt_file(site, uid, "/adaptdl/share/runs"), line);
}

static adl_status start_counted(adlt_site *site, const char *uid, int group, int replicas,
                                const char *then)
{
    char script[256];
    snprintf(script, sizeof script, "G=%d; " COUNTED "%s", group, then);
    return adlt_start(site, uid, group, replicas, script);
}

static int count(const char *variable, int usual)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : usual;
}

static void note_group(void *user, const char *uid, int group)
{
    (void)uid;
    *(int *)user |= 1 << group;
}

TEST(what_runs_is_found_again)
{
    int seen = 0;
    OPEN();
    CHECK_OK(start_counted(site, "job", 1, 2, "while [ ! -e $DIR/go ]; do sleep 0.02; done"));
    CHECK_OK(start_counted(site, "job", 2, 1, "exit 5"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    for (int i = 0; i < 3; i++)
        REQUIRE_OK(adlt_reopen(site));
    site->backend->ops->list(site->backend->self, note_group, &seen);
    CHECK_INT(seen, 1 << 1 | 1 << 2);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK_OK(start_counted(site, "job", 1, 2, "exit 0")); /* runs already: nothing */
    adlt_backend.touch(site->state, "job", "go");
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK(adlt_wait(site, "job", 2, -1, ADLI_MEMBER_FAILED));
    CHECK_INT(adlt_view(site, "job", 2, 0).exit_code, 5);
    CHECK_INT(runs(site, "job", 1, 0) + runs(site, "job", 1, 1), 2);
    CLOSE();
}

TEST(what_ended_meanwhile_is_known)
{
    OPEN();
    CHECK_OK(start_counted(site, "job", 1, 1, "exit 9"));
    CHECK_OK(start_counted(site, "late", 1, 1, "sleep 0.3"));
    site->backend->ops->free(site->backend->self);
    site->backend = NULL;
    usleep(500000);
    REQUIRE_OK(adlt_reopen(site));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_FAILED));
    CHECK(adlt_wait(site, "late", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK_INT(adlt_view(site, "job", 1, 0).exit_code, 9);
    CHECK_INT(runs(site, "job", 1, 0), 1);
    CLOSE();
}

TEST(a_new_object_can_stop_what_an_old_one_started)
{
    OPEN();
    CHECK_OK(adlt_start(site, "soft", 1, 1,
                        "trap 'exit 143' TERM; echo up; while :; do sleep 0.02; done"));
    CHECK_OK(adlt_start(site, "hard", 1, 1, "trap '' TERM; echo up; sleep 1000"));
    CHECK(adlt_wait_log(site, "soft", 1, 0, "up") && adlt_wait_log(site, "hard", 1, 0, "up"));
    REQUIRE_OK(adlt_reopen(site));
    site->backend->ops->stop(site->backend->self, "soft", 1, ADLI_ALL_MEMBERS, false);
    site->backend->ops->stop(site->backend->self, "hard", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "soft", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK(adlt_wait(site, "hard", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "soft", 1, 0).exit_code, 143);
    CHECK_INT(adlt_view(site, "hard", 1, 0).cause, ADLI_CAUSE_KILLED);
    CLOSE();
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, adl_error());
    _exit(1);
}

/* Starts the same group from its own backend object; for a process of its own. */
static void start_from_here(adlt_site *site, int group)
{
    site->backend = NULL;
    if (adlt_reopen(site) != ADL_OK || start_counted(site, "job", group, 3, "exit 0") != ADL_OK)
        die("start");
    _exit(0);
}

TEST(two_that_start_the_same_group_start_it_once)
{
    int rounds = count("ADLT_RACES", 20), twice = 0, never = 0;
    OPEN();
    for (int group = 1; group <= rounds; group++) {
        pid_t children[3];
        for (int i = 0; i < 3; i++)
            if ((children[i] = fork()) == 0)
                start_from_here(site, group);
        for (int i = 0; i < 3; i++) {
            int status = 0;
            CHECK(waitpid(children[i], &status, 0) == children[i]);
            CHECK_INT(status, 0);
        }
        CHECK(adlt_wait(site, "job", group, -1, ADLI_MEMBER_SUCCEEDED));
        for (int rank = 0; rank < 3; rank++) {
            twice += runs(site, "job", group, rank) > 1;
            never += runs(site, "job", group, rank) < 1;
        }
    }
    CHECK_INT(twice, 0);
    CHECK_INT(never, 0);
    printf("info - %d groups of 3, each started by 3 processes at a time: %d ran twice\n", rounds,
           twice);
    CLOSE();
}

/* A scheduler that starts, stops and forgets groups from `group` on until it is killed. */
static void busy_scheduler(adlt_site *site, int group)
{
    site->backend = NULL;
    if (adlt_reopen(site) != ADL_OK)
        die("open");
    for (;; group++) {
        if (start_counted(site, "job", group, 2, group % 3 ? "exit 0" : "sleep 1000") != ADL_OK)
            die("start");
        if (group % 3 == 0)
            site->backend->ops->stop(site->backend->self, "job", group, ADLI_ALL_MEMBERS,
                                     group % 2);
        if (!adlt_wait(site, "job", group, -1, -1))
            die("wait");
        if (group % 4 == 0)
            site->backend->ops->forget(site->backend->self, "job", group);
    }
}

static void note_last(void *user, const char *uid, int group)
{
    (void)uid;
    if (group > *(int *)user)
        *(int *)user = group;
}

/* After a kill: whatever is there can be brought to its end, and nothing ran twice. Returns how many
 * replicas of the last groups were found unfinished. */
static int settle(adlt_site *site, int first, int last)
{
    int unfinished = 0;
    for (int group = first; group <= last; group++) {
        adli_member_view views[2];
        int size;
        if (site->backend->ops->observe(site->backend->self, "job", group, views, 2, &size) !=
            ADL_OK)
            continue; /* forgotten, or never planned */
        for (int rank = 0; rank < size; rank++)
            unfinished += views[rank].state <= ADLI_MEMBER_READY;
        CHECK_OK(start_counted(site, "job", group, 2, group % 3 ? "exit 0" : "sleep 1000"));
        if (group % 3 == 0)
            site->backend->ops->stop(site->backend->self, "job", group, ADLI_ALL_MEMBERS, true);
        CHECK(adlt_wait(site, "job", group, -1, -1));
        for (int rank = 0; rank < 2; rank++) {
            adli_member_view view = adlt_view(site, "job", group, rank);
            int ran = runs(site, "job", group, rank);
            CHECK(ran <= 1);
            CHECK(view.state != ADLI_MEMBER_FAILED);
            if (view.state == ADLI_MEMBER_SUCCEEDED)
                CHECK_INT(ran, 1);
            if (group % 3)
                CHECK_INT(view.state, ADLI_MEMBER_SUCCEEDED);
        }
        site->backend->ops->forget(site->backend->self, "job", group);
    }
    return unfinished;
}

TEST(a_killed_scheduler_loses_and_repeats_nothing)
{
    int kills = count("ADLT_KILLS", 60), unfinished = 0, group = 1;
    adli_rng rng;
    adli_rng_init(&rng, 4);
    OPEN();
    for (int i = 0; i < kills && !adlt_failed; i++) {
        int last = group, status;
        pid_t child = fork();
        if (child == 0)
            busy_scheduler(site, group);
        usleep(adli_rng_below(&rng, adlt_backend.kill_us ? adlt_backend.kill_us : 60000));
        kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        REQUIRE_OK(adlt_reopen(site));
        site->backend->ops->list(site->backend->self, note_last, &last);
        unfinished += settle(site, group, last);
        group = last + 2; /* the kill may have come when last + 1 was just forgotten */
    }
    printf("info - %d kills over %d groups of 2, %d replicas unfinished at a kill\n", kills, group,
           unfinished);
    site->backend->ops->remove(site->backend->self, "job"); /* with what the kills left half done */
    CLOSE();
}
