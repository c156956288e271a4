/* How good a pollux decision is, computed from the formula and not from the policy's own tables: its
 * first objective, the best there is (small clusters), and a bound on it (any uniform cluster). */
#ifndef ADLI_OPTIMUM_H
#define ADLI_OPTIMUM_H

#include "snapshots.h"

static inline int adlt_distinct(const int *nodes, int replicas)
{
    int count = replicas > 0;
    for (int i = 1; i < replicas; i++)
        count += nodes[i] != nodes[i - 1];
    return count;
}

/* 1 / (scaled speedup + 1e-3) of one job, with 30 s per restart where it does not say. */
static inline double adlt_loss(const adl_snapshot *s, int index, int nodes, int replicas, bool kept)
{
    const adl_job *job = &s->jobs[index];
    double cost = job->restart_cost_s > 0 ? job->restart_cost_s : 30, share = 0;
    double age = fmax(s->now_s - job->submit_s, 0);
    double factor = kept ? 1 : fmax(age - job->restarts * cost, 0) / (age + cost);
    for (int r = 0; r < s->resource_count; r++) {
        double total = 0;
        for (int n = 0; n < s->node_count; n++)
            total += (double)s->nodes[n].capacity.amount[r];
        if (total > 0)
            share = fmax(share, (double)job->request.amount[r] / total);
    }
    double speedup = 0;
    if (replicas > 0)
        speedup =
            job->model ? adl_speedup_get(job->model, adl_shape_of(nodes, replicas)) : replicas;
    return 1 / (speedup * factor * share * s->node_count + 1e-3);
}

/* The harmonic mean over jobs of (scaled speedup + 1e-3). */
static inline double adlt_objective(const adl_snapshot *s, const adl_decision *d)
{
    double sum = 0;
    for (int j = 0; j < s->job_count; j++) {
        const adl_job *job = &s->jobs[j];
        const adl_job_decision *now = &d->jobs[j];
        bool kept = now->replicas == job->replicas &&
                    (job->replicas == 0 ||
                     memcmp(now->nodes, job->allocation, (size_t)job->replicas * sizeof(int)) == 0);
        sum += adlt_loss(s, j, adlt_distinct(now->nodes, now->replicas), now->replicas, kept);
    }
    return s->job_count / sum;
}

/* ---- every allocation there is ---- */

enum { ADLT_BRUTE_NODES = 4 };

typedef struct adlt_brute {
    const adl_snapshot *s;
    adl_resources left[ADLT_BRUTE_NODES];
    bool distributed[ADLT_BRUTE_NODES];
    double best; /* least sum of losses */
} adlt_brute;

static inline void adlt_brute_job(adlt_brute *b, int index, double sum);

/* Goes on with the row, if it is one that the job may have. */
static inline void adlt_brute_row(adlt_brute *b, int index, double sum, const int *row)
{
    const adl_job *job = &b->s->jobs[index];
    int replicas = 0, nodes = 0, present[ADLT_BRUTE_NODES] = {0};
    for (int i = 0; i < job->replicas; i++)
        present[job->allocation[i]]++;
    for (int n = 0; n < b->s->node_count; n++) {
        replicas += row[n];
        nodes += row[n] > 0;
    }
    bool kept = memcmp(row, present, (size_t)b->s->node_count * sizeof *row) == 0;
    bool pinned = !job->preemptible && job->replicas > 0;
    if (pinned ? !kept
               : replicas > job->max_replicas || (replicas > 0 && replicas < job->min_replicas))
        return;
    for (int n = 0; n < b->s->node_count; n++)
        if (row[n] > 0 && nodes > 1 && b->distributed[n])
            return;
    for (int n = 0; n < b->s->node_count; n++)
        b->distributed[n] ^= row[n] > 0 && nodes > 1;
    adlt_brute_job(b, index + 1, sum + adlt_loss(b->s, index, nodes, replicas, kept));
    for (int n = 0; n < b->s->node_count; n++)
        b->distributed[n] ^= row[n] > 0 && nodes > 1;
}

static inline void adlt_brute_node(adlt_brute *b, int index, double sum, int node, int *row)
{
    const adl_job *job = &b->s->jobs[index];
    if (node == b->s->node_count) {
        adlt_brute_row(b, index, sum, row);
        return;
    }
    adl_resources before = b->left[node];
    for (row[node] = 0;; row[node]++) {
        bool fits = true;
        adlt_brute_node(b, index, sum, node + 1, row);
        for (int r = 0; r < b->s->resource_count; r++) {
            b->left[node].amount[r] -= job->request.amount[r];
            fits &= b->left[node].amount[r] >= 0;
        }
        if (!fits || row[node] == job->max_replicas)
            break;
    }
    b->left[node] = before;
}

static inline void adlt_brute_job(adlt_brute *b, int index, double sum)
{
    int row[ADLT_BRUTE_NODES] = {0};
    if (sum >= b->best)
        return;
    if (index == b->s->job_count)
        b->best = sum;
    else
        adlt_brute_node(b, index, sum, 0, row);
}

/* The best objective of all allocations; for a handful of nodes and jobs. */
static inline double adlt_best(const adl_snapshot *s)
{
    adlt_brute b = {.s = s, .best = HUGE_VAL};
    for (int n = 0; n < s->node_count; n++)
        b.left[n] = s->nodes[n].capacity;
    adlt_brute_job(&b, 0, 0);
    return s->job_count / b.best;
}

/* ---- a bound ---- */

/* No decision does better on a cluster of adlt_world_uniform: every job may have any size up to its
 * maximum, on one node if one could hold it, and only the number of devices is shared. By dynamic
 * programming over the jobs; loss[d]: the least with d devices. */
static inline double adlt_bound(const adl_snapshot *s)
{
    int node_size = (int)s->nodes[0].capacity.amount[0], devices = s->node_count * node_size;
    double *loss = calloc((size_t)devices + 1, sizeof *loss);
    double *next = calloc((size_t)devices + 1, sizeof *next);
    for (int j = 0; j < s->job_count; j++) {
        const adl_job *job = &s->jobs[j];
        for (int d = 0; d <= devices; d++)
            next[d] = HUGE_VAL;
        for (int n = 0; n <= job->max_replicas && n <= devices; n++) {
            double least = adlt_loss(s, j, n <= node_size ? 1 : 2, n, false);
            if (n > 1)
                least = fmin(least, adlt_loss(s, j, 2, n, false));
            if (n == job->replicas)
                least = fmin(least, adlt_loss(s, j, adlt_distinct(job->allocation, n), n, true));
            for (int d = n; d <= devices; d++)
                next[d] = fmin(next[d], loss[d - n] + least);
        }
        double *swap = loss;
        loss = next;
        next = swap;
    }
    double least = HUGE_VAL;
    for (int d = 0; d <= devices; d++)
        least = fmin(least, loss[d]);
    free(next);
    free(loss);
    return s->job_count / least;
}

/* ---- a day in the life ---- */

/* One minute later: running jobs have trained, some report new numbers, some are done and replaced by
 * new ones. For uniform worlds. */
static inline void adlt_world_tick(adlt_world *world, adli_rng *rng, int round)
{
    int devices = world->snapshot.node_count * (int)world->nodes[0].capacity.amount[0];
    world->snapshot.now_s += 60;
    world->snapshot.seed++;
    for (int j = 0; j < world->snapshot.job_count; j++) {
        adl_job *job = &world->jobs[j];
        job->attained_s += 60 * job->replicas;
        if (job->replicas > 0 && (!job->model || adli_rng_below(rng, 10) == 0)) {
            int most = 2 * job->max_profiled;
            job->max_replicas = most < 1 ? 1 : most < devices ? most : devices;
            adl_speedup_free(job->model);
            job->model = adlt_random_model(rng, devices);
        }
        if (adli_rng_below(rng, 40) == 0) {
            adl_speedup_free(job->model);
            adlt_world_allocate(world, j, NULL, 0);
            snprintf(world->job_names[j], ADLT_NAME, "job-%d-%d", j, round);
            *job = (adl_job){.name = world->job_names[j],
                             .request = job->request,
                             .max_replicas = 1,
                             .preemptible = true,
                             .submit_s = world->snapshot.now_s - 60 * adli_rng_unit(rng)};
        }
    }
}

#endif
