#include "sched/lifecycle.h"

const char *adl_phase_name(adl_phase phase)
{
    static const char *const names[] = {"Pending",  "Starting",  "Running",
                                        "Stopping", "Succeeded", "Failed"};
    return names[phase];
}

/* Doubling ends here, unless the first pause is longer already: a job with many retries should not wait
 * for days. */
enum { LONGEST_PAUSE_S = 300 };

adli_fate adli_fate_of(int exit_code)
{
    return exit_code == 0                ? ADLI_FATE_SUCCEEDED
           : exit_code == ADLI_EXIT_LEFT ? ADLI_FATE_LEFT
                                         : ADLI_FATE_DIED;
}

/* A peer's end is felt at once where a connection breaks, and after a time-out where it does not. The other way
 * round there is only what it takes to notice an end and write it down on a busy machine. */
static const double felt_s = 10, noticed_s = 1;
/* A machine that has vanished closes no connection: that is felt by time-outs alone. */
static const double missed_s = 30;

static bool explains(const adl_life *life, const adli_end *left, const adli_end *died)
{
    double since_s = left->ended_s > 0 && died->ended_s > 0 ? died->ended_s - left->ended_s : -1e9;
    bool stopping = life->phase == ADL_STOPPING;
    if (left->fate == ADLI_FATE_TAKEN) {
        /* its loss may be noticed long after it. One that the others lost because it was silent ends only when we
         * stop them for that; one that is lost much later in the stopping is no reason for it. */
        bool first = stopping && died->ended_s > 0 && died->ended_s < life->stop_since_s &&
                     left->ended_s >= life->stop_since_s;
        return since_s < missed_s && (!first || since_s > -felt_s);
    }
    if (left->fate != ADLI_FATE_LEFT)
        return false;
    if (stopping && died->ended_s >= life->stop_since_s) /* all were asked */
        return since_s > -felt_s && since_s < felt_s;
    /* it died before we asked anyone: then one that left because we asked is no reason */
    bool unasked = !stopping || left->ended_s < life->stop_since_s;
    return unasked && since_s > -noticed_s && since_s < felt_s;
}

bool adli_end_failed(const adl_life *life, const adli_end *ends, int count, int which)
{
    if (ends[which].fate != ADLI_FATE_DIED)
        return ends[which].fate == ADLI_FATE_BROKEN;
    for (int i = 0; i < count; i++)
        if (explains(life, &ends[i], &ends[which]))
            return false;
    return true;
}

adl_observed adli_observe_ends(const adl_life *life, const adli_end *ends, int count)
{
    adl_observed seen = {.started = count};
    for (int i = 0; i < count; i++) {
        adli_fate fate = ends[i].fate;
        bool failed = adli_end_failed(life, ends, count, i);
        seen.alive += fate <= ADLI_FATE_READY;
        /* one that succeeded was ready; the group may run on without it */
        seen.ready += fate == ADLI_FATE_READY || fate == ADLI_FATE_SUCCEEDED;
        seen.succeeded += fate == ADLI_FATE_SUCCEEDED;
        seen.failed += failed;
        seen.interrupted += fate > ADLI_FATE_SUCCEEDED && !failed;
    }
    return seen;
}

static adl_action stop(adl_life *life, double now_s)
{
    life->phase = ADL_STOPPING;
    life->stop_since_s = now_s;
    life->killed = false;
    return ADL_TERMINATE;
}

/* Nothing of the group is alive: where does the job go from here? */
static adl_action group_over(adl_life *life, const adl_observed *seen, const adl_rules *rules,
                             double now_s)
{
    if (seen->started > 0 && seen->succeeded == seen->started) {
        life->phase = ADL_SUCCEEDED;
        return ADL_CLEAN;
    }
    life->phase = ADL_PENDING;
    life->retry_at_s = now_s;
    if (seen->interrupted > 0 && !seen->moved)
        life->retry_at_s = now_s + rules->interrupted_pause_s;
    if (seen->failed > 0) {
        if (rules->forgive_s > 0 && now_s - life->started_s >= rules->forgive_s)
            life->failures = 0;
        double pause_s = rules->retry_pause_s;
        for (int i = 0; i < life->failures && pause_s < LONGEST_PAUSE_S; i++)
            pause_s = pause_s * 2 < LONGEST_PAUSE_S ? pause_s * 2 : LONGEST_PAUSE_S;
        life->retry_at_s = now_s + pause_s;
        if (++life->failures > rules->max_retries || seen->hopeless)
            life->phase = ADL_FAILED;
    }
    return ADL_CLEAN;
}

adl_action adli_lifecycle(adl_life *life, const adl_observed *seen, const adl_rules *rules,
                          double now_s)
{
    switch (life->phase) {
    case ADL_PENDING:
        if (seen->deleted) {
            life->phase = ADL_FAILED;
            return ADL_CLEAN;
        }
        if (seen->wanted == 0 || now_s < life->retry_at_s)
            return ADL_NOTHING;
        life->phase = ADL_STARTING;
        life->group++;
        life->started_s = now_s;
        return ADL_START;
    case ADL_STARTING:
    case ADL_RUNNING:
        if (seen->started == 0) /* asked for, not seen yet */
            return seen->deleted || seen->moved ? stop(life, now_s) : ADL_NOTHING;
        if (seen->alive == 0)
            return group_over(life, seen, rules, now_s);
        if (seen->deleted || seen->moved || seen->failed > 0 || seen->interrupted > 0)
            return stop(life, now_s);
        if (seen->ready == seen->started)
            life->phase = ADL_RUNNING;
        return ADL_NOTHING;
    case ADL_STOPPING:
        if (seen->alive == 0)
            return group_over(life, seen, rules, now_s);
        if (life->killed || now_s - life->stop_since_s < rules->grace_s)
            return ADL_NOTHING;
        life->killed = true;
        return ADL_KILL;
    case ADL_SUCCEEDED:
    case ADL_FAILED:
        break;
    }
    return ADL_NOTHING;
}
