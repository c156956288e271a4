#include "sched/trust.h"

#include "model/speedup.h"
#include "policy/rank.h"

#include <math.h>
#include <stdio.h>

static const double tolerance = 4, slack_s = 600, least_progress = 0.1, first_distrust = 0.25;
/* Claims this far above what counts are worth a word; honest measurements vary. */
static const double told_from = 3;

void adli_trust_serve(adli_trust *trust, double passed_s, int replicas)
{
    trust->served += passed_s * trust->rate;
    if (trust->most == 0) {
        trust->silent_s += passed_s;
        trust->unclaimed_s += passed_s * replicas;
    }
}

size_t adli_trust_points(adli_trust *trust, adl_profile_point *points, size_t count)
{
    size_t kept = 0;
    trust->most_claimed = 0;
    for (size_t i = 0; i < count; i++) {
        if (points[i].replicas <= trust->most_had)
            points[kept++] = points[i];
        else if (points[i].replicas > trust->most_claimed)
            trust->most_claimed = points[i].replicas;
    }
    return kept;
}

/* At least that of one: there is no honest reason to be slower on more. */
static double present_rate(const adl_job *job, int type, double rate1)
{
    int nodes = job->replicas > 0;
    for (int i = 1; i < job->replicas; i++)
        nodes += job->allocation[i] != job->allocation[i - 1];
    if (nodes == 0)
        return rate1;
    return fmax(adl_speedup_rate(job->model, (adl_shape){nodes, job->replicas, type}), rate1);
}

/* Holds a claimed end against what was served. One that is nothing like those before is a first one again. */
static void compare(adli_trust *trust, double work, double attained_s)
{
    double end = trust->served + work;
    if (tolerance * end < trust->most) {
        trust->silent_s = trust->unclaimed_s = attained_s;
        trust->most = 0;
    }
    trust->most = fmax(trust->most, end);
    double due = trust->served + tolerance * work + slack_s * trust->rate;
    if (trust->due > 0 && trust->served > trust->due) {
        trust->missed++;
        trust->due = due;
    }
    if (trust->due == 0 || due < trust->due)
        trust->due = due;
}

static double distrust(const adli_trust *trust)
{
    return trust->missed > 0 ? fmin(ldexp(first_distrust, trust->missed - 1), 1) : 0;
}

/* Seconds on one device that are taken to be left, whatever it says. */
static double least_left_s(const adli_trust *trust, double attained_s)
{
    double unclaimed_s = trust->silent_s > slack_s ? trust->unclaimed_s : 0;
    return fmax(distrust(trust) * attained_s, first_distrust * unclaimed_s);
}

/* The worst of what there is to say. */
static void doubt(adli_trust *trust, const adl_job *job, double claimed_s, double counted_s)
{
    double claimed = job->model ? adli_speedup_claimed(job->model) : 1;
    trust->doubt[0] = '\0';
    if (counted_s > claimed_s && trust->missed == 0)
        snprintf(
            trust->doubt, sizeof trust->doubt,
            "had %.0f s of devices before it said anything like this: %.0f s of work are taken "
            "to be left, not %.0f s",
            trust->unclaimed_s, counted_s, claimed_s);
    else if (counted_s > claimed_s)
        snprintf(
            trust->doubt, sizeof trust->doubt,
            "said to be done %d times and was not: %.0f s of work are taken to be left, not %.0f s",
            trust->missed, counted_s, claimed_s);
    else if (claimed > told_from)
        snprintf(trust->doubt, sizeof trust->doubt,
                 "claims %.3g times what can be: counted as linear over the smallest measured size",
                 fmin(claimed, 1e9));
    else if (trust->most_claimed > 0)
        snprintf(trust->doubt, sizeof trust->doubt,
                 "claims measurements of %d replicas and never had more than %d",
                 trust->most_claimed, trust->most_had);
}

void adli_trust_weigh(adli_trust *trust, adl_job *view, bool declared, int type)
{
    double rate1 = view->model ? adli_speedup_one(view->model) : 0, claimed_s = 0, counted_s = 0;
    if (rate1 > 0) {
        double work = adli_rank_work(view, rate1, 0), progress = view->progress;
        trust->rate = present_rate(view, type, rate1);
        if (declared)
            compare(trust, work, view->attained_s);
        double counted = fmax(work, least_left_s(trust, view->attained_s) * rate1);
        view->progress = fmax(progress, least_progress * view->attained_s * rate1);
        claimed_s = work / rate1;
        counted_s = counted / rate1;
        if (view->total_work > 0 && (counted > work || view->progress > progress))
            view->total_work = view->progress + counted;
    }
    doubt(trust, view, claimed_s, counted_s);
}
