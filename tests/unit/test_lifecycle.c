/* The life of a job, transition by transition, and a random walk that must never lose a replica. */
#include "harness.h"

#include "base/rng.h"
#include "sched/lifecycle.h"

static const adl_rules rules = {.grace_s = 30, .max_retries = 2, .retry_pause_s = 10};

static adl_action step(adl_life *life, adl_observed seen, double now_s)
{
    return adli_lifecycle(life, &seen, &rules, now_s);
}

TEST(a_job_starts_runs_and_succeeds)
{
    adl_life life = {0};
    CHECK_INT(step(&life, (adl_observed){0}, 0), ADL_NOTHING);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2}, 1), ADL_START);
    CHECK_INT(life.phase, ADL_STARTING);
    CHECK_INT(life.group, 1);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2}, 1), ADL_NOTHING); /* not seen yet */
    CHECK_INT(life.phase, ADL_STARTING);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2, .started = 2, .alive = 2, .ready = 1}, 2),
              ADL_NOTHING);
    CHECK_INT(life.phase, ADL_STARTING);
    step(&life, (adl_observed){.wanted = 2, .started = 2, .alive = 2, .ready = 2}, 3);
    CHECK_INT(life.phase, ADL_RUNNING);
    CHECK_INT(
        step(&life,
             (adl_observed){.wanted = 2, .started = 2, .alive = 1, .ready = 2, .succeeded = 1}, 4),
        ADL_NOTHING);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2, .started = 2, .succeeded = 2}, 5), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_SUCCEEDED);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2}, 6), ADL_NOTHING);
    CHECK_STR(adl_phase_name(life.phase), "Succeeded");
}

TEST(a_changed_allocation_stops_and_starts_again)
{
    adl_life life = {.phase = ADL_RUNNING, .group = 1};
    adl_observed seen = {.wanted = 4, .moved = true, .started = 2, .alive = 2, .ready = 2};
    CHECK_INT(step(&life, seen, 100), ADL_TERMINATE);
    CHECK_INT(life.phase, ADL_STOPPING);
    CHECK_INT(step(&life, seen, 129), ADL_NOTHING);
    CHECK_INT(step(&life, seen, 130), ADL_KILL);
    CHECK_INT(step(&life, seen, 131), ADL_NOTHING);
    seen.alive = 0;
    seen.interrupted = 2;
    CHECK_INT(step(&life, seen, 132), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_PENDING);
    CHECK_INT(life.failures, 0);
    CHECK_INT(step(&life, (adl_observed){.wanted = 4}, 132), ADL_START);
    CHECK_INT(life.group, 2);
}

TEST(an_interrupted_replica_is_not_a_failure)
{
    adl_life life = {.phase = ADL_RUNNING, .group = 1};
    adl_observed seen = {.wanted = 2, .started = 2, .alive = 1, .ready = 2, .interrupted = 1};
    CHECK_INT(step(&life, seen, 0), ADL_TERMINATE);
    seen.alive = 0;
    seen.interrupted = 2;
    CHECK_INT(step(&life, seen, 1), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_PENDING);
    CHECK_INT(life.failures, 0);
    CHECK_INT(step(&life, (adl_observed){.wanted = 2}, 1), ADL_START);
}

TEST(pauses_stop_growing)
{
    const adl_rules patient = {.grace_s = 30, .max_retries = 100, .retry_pause_s = 10};
    adl_life life = {.phase = ADL_RUNNING, .group = 1, .failures = 40};
    adl_observed failed = {.wanted = 1, .started = 1, .failed = 1};
    CHECK_INT(adli_lifecycle(&life, &failed, &patient, 1000), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_PENDING);
    CHECK_NEAR(life.retry_at_s, 1300, 1e-9);
}

TEST(failures_are_retried_with_growing_pauses_then_final)
{
    adl_life life = {0};
    double now_s = 0, pause_s = 10;
    for (int failure = 1; failure <= 3; failure++) {
        CHECK_INT(step(&life, (adl_observed){.wanted = 1}, now_s), ADL_START);
        CHECK_INT(step(&life, (adl_observed){.wanted = 1, .started = 1, .failed = 1}, now_s),
                  ADL_CLEAN);
        CHECK_INT(life.failures, failure);
        if (failure == 3)
            break;
        CHECK_INT(life.phase, ADL_PENDING);
        CHECK_INT(step(&life, (adl_observed){.wanted = 1}, now_s + pause_s - 1), ADL_NOTHING);
        now_s += pause_s;
        pause_s *= 2;
    }
    CHECK_INT(life.phase, ADL_FAILED);
}

TEST(what_is_hopeless_is_not_tried_again)
{
    adl_life life = {.phase = ADL_RUNNING, .group = 1};
    adl_observed seen = {.wanted = 2, .started = 2, .alive = 1, .failed = 1, .hopeless = true};
    CHECK_INT(step(&life, seen, 1), ADL_TERMINATE); /* its peer may still save */
    seen.alive = 0;
    seen.interrupted = 1;
    CHECK_INT(step(&life, seen, 2), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_FAILED);
    CHECK_INT(life.failures, 1);
    life = (adl_life){.phase = ADL_RUNNING, .group = 1}; /* without a failure it says nothing */
    CHECK_INT(step(&life, (adl_observed){.started = 1, .interrupted = 1, .hopeless = true}, 1),
              ADL_CLEAN);
    CHECK_INT(life.phase, ADL_PENDING);
}

TEST(a_job_that_finishes_while_being_stopped_has_succeeded)
{
    adl_life life = {.phase = ADL_STOPPING, .group = 1};
    CHECK_INT(step(&life, (adl_observed){.moved = true, .started = 2, .succeeded = 2}, 1),
              ADL_CLEAN);
    CHECK_INT(life.phase, ADL_SUCCEEDED);
}

TEST(deletion_ends_it_from_any_phase)
{
    adl_life life = {0};
    CHECK_INT(step(&life, (adl_observed){.deleted = true}, 0), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_FAILED);
    life = (adl_life){.phase = ADL_RUNNING, .group = 1};
    CHECK_INT(step(&life, (adl_observed){.deleted = true, .started = 1, .alive = 1, .ready = 1}, 0),
              ADL_TERMINATE);
}

/* How many of the ends count as failures. */
static int failures_of(const adl_life *life, int count, const adli_end *ends)
{
    adl_observed seen = adli_observe_ends(life, ends, count);
    CHECK_INT(seen.started, count);
    CHECK_INT(seen.alive + seen.succeeded + seen.interrupted + seen.failed, count);
    return seen.failed;
}

#define FAILURES(life, ...)                                                                        \
    failures_of(life, (int)(sizeof((adli_end[]){__VA_ARGS__}) / sizeof(adli_end)),                 \
                (adli_end[]){__VA_ARGS__})

TEST(what_follows_from_a_lost_peer_is_no_failure)
{
    const adl_life running = {.phase = ADL_RUNNING, .group = 1};
    const adli_end ready = {ADLI_FATE_READY, 0}, died = {ADLI_FATE_DIED, 100};
    CHECK_INT(FAILURES(&running, ready, died), 1);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_SUCCEEDED, 99}, died), 1);
    /* taken from the others, whenever that was noticed */
    CHECK_INT(FAILURES(&running, died, {ADLI_FATE_TAKEN, 0}), 0);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_TAKEN, 120}, died, died), 0);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_TAKEN, 80}, died), 0);
    /* but not what happens long after */
    CHECK_INT(FAILURES(&running, {ADLI_FATE_TAKEN, 60}, died), 1);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_TAKEN, 60}, {ADLI_FATE_TAKEN, 95}, died), 0);
    /* nor what happened before, and made us stop the one that was then lost */
    const adl_life stopping = {.phase = ADL_STOPPING, .group = 1, .stop_since_s = 101};
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_TAKEN, 114}, died), 1);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_TAKEN, 102}, died), 0); /* it was silent */
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_TAKEN, 100.5}, died), 0);
    /* stopped by somebody else a moment before; noticed in whichever order */
    CHECK_INT(FAILURES(&running, {ADLI_FATE_LEFT, 97}, died, ready), 0);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_LEFT, 100.4}, died), 0);
    /* long before, long after, or nobody knows: not the reason */
    CHECK_INT(FAILURES(&running, {ADLI_FATE_LEFT, 60}, died), 1);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_LEFT, 105}, died), 1);
    CHECK_INT(FAILURES(&running, {ADLI_FATE_LEFT, 0}, died), 1);
    /* of its own making, whatever the others do */
    CHECK_INT(FAILURES(&running, {ADLI_FATE_TAKEN, 99}, {ADLI_FATE_BROKEN, 100}), 1);
}

TEST(asked_to_stop_replicas_may_miss_each_other)
{
    const adl_life stopping = {.phase = ADL_STOPPING, .group = 1, .stop_since_s = 50};
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_LEFT, 51}, {ADLI_FATE_DIED, 51.2}), 0);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_LEFT, 56}, {ADLI_FATE_DIED, 51}), 0);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_LEFT, 51}, {ADLI_FATE_DIED, 75}), 1);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_DIED, 51}), 1); /* nobody to miss */
    /* it died first, that is why the other was asked to stop: a failure it is and stays */
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_DIED, 49.9}, {ADLI_FATE_LEFT, 50.2}), 1);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_DIED, 49.9}, {ADLI_FATE_LEFT, 49.5}), 0);
    CHECK_INT(FAILURES(&stopping, {ADLI_FATE_DIED, 0}, {ADLI_FATE_LEFT, 50.2}), 1);
}

/* A backend that does what it is told, with random delays, deaths and changes of mind: replicas must
 * never be started while others are alive, and the walk must come to an end. */
TEST(random_walks_never_overlap_groups)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        adli_rng rng;
        adli_rng_init(&rng, seed);
        adl_life life = {0};
        adl_observed seen = {0};
        for (int t = 0; t < 200 && !adl_life_over(&life); t++) {
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
            adl_action action = step(&life, seen, t);
            if (action == ADL_START) {
                CHECK(seen.alive == 0 && seen.started == 0);
                seen = (adl_observed){
                    .wanted = seen.wanted, .started = seen.wanted, .alive = seen.wanted};
            } else if (action == ADL_KILL) {
                seen.interrupted += seen.alive;
                seen.alive = 0;
            } else if (action == ADL_CLEAN) {
                CHECK(seen.alive == 0);
                seen = (adl_observed){.wanted = seen.wanted};
            }
            CHECK(life.failures <= rules.max_retries + 1);
        }
    }
}
