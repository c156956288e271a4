/* What a job reports is a claim, and a job that says that it is fast and nearly done gets more. So what the scheduler saw
 * itself bounds what counts of a claim; a job whose claims come true never notices. Together with adli_speedup_bound,
 * which keeps claimed rates linear, no report buys more than an honest job with the same history could have.
 *
 *   served   the work that it could have done with what it was given, as fast as it says it is: the integral of rate'(n)
 *   due      the least that served + 4 * claimed work + 600 s * rate'(n) ever was: at this it must be over
 *   missed   how often served passed due; the next claim then sets another
 *   most   the most that served + claimed work ever was: a claim of less than a quarter of it is a first claim again
 *   unclaimed  the service that it had before it first claimed an end; 0 when that was within 600 s
 *   work'  = max(claimed work, d * attained * rate'(1), unclaimed * rate'(1) / 4),
 *            d = 0, 1/4, 1/2, 1 ... with 0, 1, 2, 3 ... missed
 *   progress' = max(claimed progress, attained * rate'(1) / 10): the guard against unfairness can't be told that all the
 *              service was for nothing
 *   measured sizes: none that it was never given */
#ifndef ADLI_TRUST_H
#define ADLI_TRUST_H

#include "adaptdl/policy.h"

typedef struct adli_trust {
    double rate; /* of its present replicas, as it claims and we count it; 0: unknown */
    double served, due, most;
    double silent_s,
        unclaimed_s; /* how long it ran, and its service in device-seconds, before it first claimed an end */
    int missed;
    int most_had;     /* replicas at once */
    int most_claimed; /* of the sizes that it says it measured, when that is more */
    char doubt[200];  /* one line for people; "": nothing to say */
} adli_trust;

/* It had so many replicas for so long. */
void adli_trust_serve(adli_trust *trust, double passed_s, int replicas);
/* The round's view of the job, as it claims to be, becomes what counts of it. declared: its work is what it said
 * itself; type: that it is on. */
void adli_trust_weigh(adli_trust *trust, adl_job *view, bool declared, int type);
/* The measurements of sizes that it has had, moved to the front: how many. */
size_t adli_trust_points(adli_trust *trust, adl_profile_point *points, size_t count);

#endif
