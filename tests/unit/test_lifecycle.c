/* The life of a job, transition by transition, and a random walk that must never lose a replica. */
#include "harness.h"

#include "base/rng.h"
#include "sched/lifecycle.h"

static const adli_rules rules = {.grace_s = 30, .max_retries = 2, .retry_pause_s = 10};

static adli_action step(adli_life *life, adli_observed seen, double now_s)
{
    return adli_lifecycle(life, &seen, &rules, now_s);
}

TEST(a_job_starts_runs_and_succeeds)
{
    adli_life life = {0};
    CHECK_INT(step(&life, (adli_observed){0}, 0), ADLI_NOTHING);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2}, 1), ADLI_START);
    CHECK_INT(life.phase, ADLI_STARTING);
    CHECK_INT(life.group, 1);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2}, 1), ADLI_NOTHING); /* not seen yet */
    CHECK_INT(life.phase, ADLI_STARTING);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2, .started = 2, .alive = 2, .ready = 1}, 2),
              ADLI_NOTHING);
    CHECK_INT(life.phase, ADLI_STARTING);
    step(&life, (adli_observed){.wanted = 2, .started = 2, .alive = 2, .ready = 2}, 3);
    CHECK_INT(life.phase, ADLI_RUNNING);
    CHECK_INT(
        step(&life,
             (adli_observed){.wanted = 2, .started = 2, .alive = 1, .ready = 2, .succeeded = 1}, 4),
        ADLI_NOTHING);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2, .started = 2, .succeeded = 2}, 5),
              ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_SUCCEEDED);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2}, 6), ADLI_NOTHING);
    CHECK_STR(adli_phase_name(life.phase), "Succeeded");
}

TEST(a_changed_allocation_stops_and_starts_again)
{
    adli_life life = {.phase = ADLI_RUNNING, .group = 1};
    adli_observed seen = {.wanted = 4, .moved = true, .started = 2, .alive = 2, .ready = 2};
    CHECK_INT(step(&life, seen, 100), ADLI_TERMINATE);
    CHECK_INT(life.phase, ADLI_STOPPING);
    CHECK_INT(step(&life, seen, 129), ADLI_NOTHING);
    CHECK_INT(step(&life, seen, 130), ADLI_KILL);
    CHECK_INT(step(&life, seen, 131), ADLI_NOTHING);
    seen.alive = 0;
    seen.interrupted = 2;
    CHECK_INT(step(&life, seen, 132), ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_PENDING);
    CHECK_INT(life.failures, 0);
    CHECK_INT(step(&life, (adli_observed){.wanted = 4}, 132), ADLI_START);
    CHECK_INT(life.group, 2);
}

TEST(an_interrupted_replica_is_not_a_failure)
{
    adli_life life = {.phase = ADLI_RUNNING, .group = 1};
    adli_observed seen = {.wanted = 2, .started = 2, .alive = 1, .ready = 2, .interrupted = 1};
    CHECK_INT(step(&life, seen, 0), ADLI_TERMINATE);
    seen.alive = 0;
    seen.interrupted = 2;
    CHECK_INT(step(&life, seen, 1), ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_PENDING);
    CHECK_INT(life.failures, 0);
    CHECK_INT(step(&life, (adli_observed){.wanted = 2}, 1), ADLI_START);
}

TEST(pauses_stop_growing)
{
    const adli_rules patient = {.grace_s = 30, .max_retries = 100, .retry_pause_s = 10};
    adli_life life = {.phase = ADLI_RUNNING, .group = 1, .failures = 40};
    adli_observed failed = {.wanted = 1, .started = 1, .failed = 1};
    CHECK_INT(adli_lifecycle(&life, &failed, &patient, 1000), ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_PENDING);
    CHECK_NEAR(life.retry_at_s, 1300, 1e-9);
}

TEST(failures_are_retried_with_growing_pauses_then_final)
{
    adli_life life = {0};
    double now_s = 0, pause_s = 10;
    for (int failure = 1; failure <= 3; failure++) {
        CHECK_INT(step(&life, (adli_observed){.wanted = 1}, now_s), ADLI_START);
        CHECK_INT(step(&life, (adli_observed){.wanted = 1, .started = 1, .failed = 1}, now_s),
                  ADLI_CLEAN);
        CHECK_INT(life.failures, failure);
        if (failure == 3)
            break;
        CHECK_INT(life.phase, ADLI_PENDING);
        CHECK_INT(step(&life, (adli_observed){.wanted = 1}, now_s + pause_s - 1), ADLI_NOTHING);
        now_s += pause_s;
        pause_s *= 2;
    }
    CHECK_INT(life.phase, ADLI_FAILED);
}

TEST(a_job_that_finishes_while_being_stopped_has_succeeded)
{
    adli_life life = {.phase = ADLI_STOPPING, .group = 1};
    CHECK_INT(step(&life, (adli_observed){.moved = true, .started = 2, .succeeded = 2}, 1),
              ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_SUCCEEDED);
}

TEST(deletion_ends_it_from_any_phase)
{
    adli_life life = {0};
    CHECK_INT(step(&life, (adli_observed){.deleted = true}, 0), ADLI_CLEAN);
    CHECK_INT(life.phase, ADLI_FAILED);
    life = (adli_life){.phase = ADLI_RUNNING, .group = 1};
    CHECK_INT(
        step(&life, (adli_observed){.deleted = true, .started = 1, .alive = 1, .ready = 1}, 0),
        ADLI_TERMINATE);
}

/* A backend that does what it is told, with random delays, deaths and changes of mind: replicas must
 * never be started while others are alive, and the walk must come to an end. */
TEST(random_walks_never_overlap_groups)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        adli_rng rng;
        adli_rng_init(&rng, seed);
        adli_life life = {0};
        adli_observed seen = {0};
        for (int t = 0; t < 200 && !adli_life_over(&life); t++) {
            if (adli_rng_below(&rng, 10) == 0) {
                seen.wanted = adli_rng_range(&rng, 0, 4);
                seen.moved = true;
            }
            if (seen.alive > 0 && adli_rng_below(&rng, 3) == 0) {
                int fate = adli_rng_range(&rng, 0, 5);
                seen.alive--;
                seen.failed += fate == 0;
                seen.interrupted += fate == 1;
                seen.succeeded += fate > 1;
            }
            if (seen.ready < seen.alive)
                seen.ready++;
            adli_action action = step(&life, seen, t);
            if (action == ADLI_START) {
                CHECK(seen.alive == 0 && seen.started == 0);
                seen = (adli_observed){
                    .wanted = seen.wanted, .started = seen.wanted, .alive = seen.wanted};
            } else if (action == ADLI_KILL) {
                seen.interrupted += seen.alive;
                seen.alive = 0;
            } else if (action == ADLI_CLEAN) {
                CHECK(seen.alive == 0);
                seen = (adli_observed){.wanted = seen.wanted};
            }
            CHECK(life.failures <= rules.max_retries + 1);
        }
    }
}
