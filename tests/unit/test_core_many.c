/* The daemon's core beside very many jobs: what it does is counted in jobs looked at, so that work that grows
 * with the square of their number fails here, on any machine. */
#include "core_world.h"
#include "sched/cluster_impl.h"

enum { RUNNING = 4 }; /* places of the cluster */

static int64_t looked_at(const world *w)
{
    return w->core->visits + w->core->looks + w->core->cluster->visits;
}

typedef struct costs {
    int64_t story, idle, report, document;
} costs;

static void submit_all(world *w, int count)
{
    char name[32];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        CHECK_OK(submit(w, name, ""));
        step(w, 1e-3);
    }
}

static void delete_all(world *w, int count)
{
    char name[32];
    for (int i = count; i-- > 0;) {
        snprintf(name, sizeof name, "job-%d", i);
        adli_buf_clear(&w->out);
        CHECK_OK(adli_core_delete(w->core, "default", name, &w->out));
        step(w, 1e-3);
    }
}

/* So many jobs come one by one, four run, the others wait; a round; a new daemon; all go. */
static costs costs_of(int count)
{
    world w;
    costs out = {0};
    CHECK_OK(open_world(&w, 2, RUNNING / 2));
    w.core->config.event_delay_s = 60;
    submit_all(&w, count);
    CHECK_INT(w.core->phases[ADL_RUNNING], RUNNING);
    CHECK_INT(w.core->phases[ADL_PENDING], count - RUNNING);
    int64_t before = looked_at(&w);
    step(&w, 1e-3);
    out.idle = looked_at(&w) - before;
    before = looked_at(&w);
    CHECK_OK(adli_core_hints(w.core, "default", "job-1", good_hints, strlen(good_hints)));
    step(&w, 1e-3);
    out.report = looked_at(&w) - before;
    before = looked_at(&w);
    adli_buf_clear(&w.out);
    CHECK_OK(adli_core_cluster(w.core, &w.out));
    out.document = looked_at(&w) - before;
    step(&w, 61);
    CHECK(w.core->round > 0);
    out.story = looked_at(&w);
    CHECK_OK(reopen(&w));
    w.core->config.event_delay_s = 60;
    step(&w, 1);
    delete_all(&w, count);
    step(&w, 1);
    CHECK(TAILQ_EMPTY(&w.core->jobs));
    CHECK_INT((int)w.core->by_id.count, 0);
    CHECK_INT(w.core->active_count, 0);
    out.story += looked_at(&w);
    close_world(&w);
    return out;
}

TEST(jobs_that_wait_are_not_looked_at)
{
    costs few = costs_of(60), many = costs_of(600);
    CHECK_INT(few.idle, many.idle);
    CHECK_INT(few.report, many.report);
    CHECK_INT(few.document, many.document);
    CHECK(many.idle <= 16 * RUNNING);
    CHECK(many.story <= 11 * few.story);
    printf("# looks at jobs: %lld for 60 jobs, %lld for 600; %lld in a turn without news\n",
           (long long)few.story, (long long)many.story, (long long)many.idle);
}

/* Those that are over cost nothing either, and the oldest go when there are too many. */
TEST(jobs_that_are_over_are_not_looked_at)
{
    world w;
    char name[32];
    int64_t idle[2];
    REQUIRE_OK(open_world(&w, 1, 1));
    w.core->config.store.finished_jobs = 150;
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        REQUIRE_OK(submit(&w, name, ""));
        step(&w, 1);
        fake_set(w.fake, uid_of(&w, name), ADLI_MEMBER_SUCCEEDED, 0);
        step(&w, 1);
        CHECK_STR(text_of(&w, name, "phase"), "Succeeded");
        if (i != 19 && i != 199)
            continue;
        step(&w, 60);
        int64_t before = looked_at(&w);
        step(&w, 1e-3);
        idle[i == 199] = looked_at(&w) - before;
    }
    CHECK_INT(idle[0], idle[1]);
    CHECK_INT((int)w.core->by_id.count, 150);
    CHECK(field(&w, "job-49", "phase") == NULL);
    CHECK_STR(text_of(&w, "job-50", "phase"), "Succeeded");
    CHECK_INT(w.core->phases[ADL_SUCCEEDED], 150);
    CHECK_INT(w.fake->removes, 50);
    close_world(&w);
}

TEST(jobs_are_found_by_name_and_uid_while_they_come_and_go)
{
    world w;
    char name[32];
    REQUIRE_OK(open_world(&w, 1, 1));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        REQUIRE_OK(submit(&w, name, ""));
    }
    step(&w, 1);
    for (int i = 0; i < 300; i += 2) {
        snprintf(name, sizeof name, "job-%d", i);
        adli_buf_clear(&w.out);
        REQUIRE_OK(adli_core_delete(w.core, "default", name, &w.out));
    }
    step(&w, 1);
    step(&w, 1);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        adli_kept_job *job = adli_core_find(w.core, "default", name);
        CHECK((job != NULL) == (i % 2 == 1));
        CHECK(!job || adli_index_find(&w.core->by_uid, job->uid) == job);
    }
    CHECK(!adli_core_find(w.core, "other", "job-1"));
    char longest[400];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    CHECK(!adli_core_find(w.core, "default", longest));
    close_world(&w);
}
