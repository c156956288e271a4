/* sia: the policy of the SOSP'23 paper (Jayaram Subramanya et al., "Sia: Heterogeneity-aware,
 * goodput-optimized ML-cluster scheduling"), to compare with. A job's options are (device type, n),
 * n = 1, 2, 4 ... up to a node, then whole nodes of the type; it keeps to one type. Minimised is
 *
 *   sum over jobs of  (r * G(t, n))^p  of the option that it has, lambda_n if it has none
 *   G = goodput / the least goodput of the job's options
 *   r = max(age - restarts * D, 0) / (age + D), D what a restart costs; 1 for the present option, for a
 *       job that has none, and for one younger than D
 *
 * with p = -0.5, lambda_n = 1.1, terms rounded to 0.01 as in the published artifact, by an exact
 * algorithm (choice.c). Of equally good solutions it takes one with most jobs as they are. A job that
 * reported nothing may have one replica of any type. What jobs have left to do plays no part. */
#include "policy/choice.h"
#include "policy/types.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { P, LAMBDA, RESTART, STATES };

static const adli_policy_param params[] = {
    [P] = {"p", -0.5, -10, -0.01, "exponent of the goodput: the lower, the fairer"},
    [LAMBDA] = {"lambda_n", 1.1, 0, 1000, "what a job without replicas counts"},
    [RESTART] = {"restart_cost_s", 30, 0, 1e6,
                 "restart cost of a job that has not measured its own"},
    [STATES] = {"states", 20000, 1, 1e6,
                "ways to share the cluster that are kept in sight; exact where there are no more"},
    {0}};

typedef struct sia {
    const adl_snapshot *snapshot;
    const double *params;
    adli_types types;
    adli_choice_option *options;
    int *replicas, *type; /* of each option */
    size_t count, capacity, replicas_capacity, type_capacity;
    int64_t *requests; /* [job_count][resource_count] */
    int64_t *room;     /* [types][resource_count] */
} sia;

static adl_status add(sia *s, int job, int type, int n, double goodput)
{
    size_t need = s->count + 1;
    if (adli_grow(&s->options, &s->capacity, need, sizeof *s->options) != 0 ||
        adli_grow(&s->replicas, &s->replicas_capacity, need, sizeof *s->replicas) != 0 ||
        adli_grow(&s->type, &s->type_capacity, need, sizeof *s->type) != 0)
        return adli_fail_memory("options");
    s->options[s->count] =
        (adli_choice_option){.value = goodput, .job = job, .pool = type, .count = n};
    s->replicas[s->count] = n;
    s->type[s->count++] = type;
    return ADL_OK;
}

/* The sizes of a job on a type, with their goodputs: the grid, and what it has or must have. */
static adl_status list_type(sia *s, int j, int type, int present)
{
    const adl_job *job = &s->snapshot->jobs[j];
    adli_sizes sizes = adli_types_sizes(&s->types, job, type, present == type);
    adl_status status = ADL_OK;
    for (int n; status == ADL_OK && (n = adli_sizes_next(&sizes)) > 0;) {
        if (!job->model && n > sizes.least && n != job->replicas)
            break;
        adl_shape shape = {(n + sizes.node - 1) / sizes.node, n, type};
        double goodput = job->model ? adl_speedup_get(job->model, shape) : 1;
        if (goodput > 0)
            status = add(s, j, type, n, goodput);
    }
    return status;
}

/* What a change costs the job: r. */
static double factor(const sia *s, const adl_job *job)
{
    double cost_s = adli_job_change_cost(job, ADLI_RESIZES, s->params[RESTART]);
    double age_s = s->snapshot->now_s - job->submit_s;
    if (job->replicas == 0 || age_s < cost_s || !(age_s + cost_s > 0))
        return 1;
    return fmax(age_s - job->restarts * cost_s, 0) / (age_s + cost_s);
}

/* From goodputs to values: what the option saves against having none, in hundredths; a bit more for the
 * present one, so little that all jobs' together are less than a hundredth. */
static void set_values(sia *s, int j, size_t first)
{
    const adl_job *job = &s->snapshot->jobs[j];
    int present = adli_types_present(&s->types, job);
    double least = HUGE_VAL, r = factor(s, job);
    size_t kept = first;
    for (size_t o = first; o < s->count; o++)
        least = fmin(least, s->options[o].value);
    for (size_t o = first; o < s->count; o++) {
        bool same = s->type[o] == present && s->replicas[o] == job->replicas;
        double gain = s->options[o].value / least * (same ? 1 : r);
        double term = round(100 * fmin(pow(fmax(gain, 1e-12), s->params[P]), 1e6));
        double value = round(100 * s->params[LAMBDA]) - term;
        value += same ? 0.5 / (s->snapshot->job_count + 1) : 0;
        if (!(value > 0))
            continue;
        s->options[kept] = s->options[o];
        s->options[kept].value = value;
        s->replicas[kept] = s->replicas[o];
        s->type[kept++] = s->type[o];
    }
    s->count = kept;
}

static adl_status prepare(sia *s)
{
    const adl_snapshot *snapshot = s->snapshot;
    size_t jobs = (size_t)snapshot->job_count, kinds = (size_t)snapshot->resource_count;
    s->requests = adli_calloc(jobs * kinds, sizeof *s->requests);
    s->room = adli_calloc((size_t)s->types.count * kinds, sizeof *s->room);
    adl_status status = s->requests && s->room ? ADL_OK : adli_fail_memory("options");
    for (int t = 0; status == ADL_OK && t < s->types.count; t++)
        for (size_t r = 0; r < kinds; r++)
            s->room[(size_t)t * kinds + r] = s->types.total[t].amount[r];
    for (int j = 0; status == ADL_OK && j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        int present = adli_types_present(&s->types, job);
        size_t first = s->count;
        for (size_t r = 0; r < kinds; r++) {
            s->requests[(size_t)j * kinds + r] = job->request.amount[r];
            for (int i = 0; i < job->replicas && adli_job_pinned(job); i++)
                s->room[(size_t)s->types.of_node[job->allocation[i]] * kinds + r] -=
                    job->request.amount[r];
        }
        for (int t = 0; t < s->types.count && status == ADL_OK && !adli_job_pinned(job); t++)
            status = list_type(s, j, t, present);
        set_values(s, j, first);
    }
    return status;
}

static adl_status choose(sia *s, int *taken)
{
    adli_choice_result result;
    const adli_choice_problem problem = {.options = s->options,
                                         .option_count = s->count,
                                         .job_count = s->snapshot->job_count,
                                         .pool_count = s->types.count,
                                         .resource_count = s->snapshot->resource_count,
                                         .requests = s->requests,
                                         .room = s->room,
                                         .states_max = (size_t)s->params[STATES]};
    return adli_choice_solve(&problem, taken, &result);
}

static adl_status decide(adli_plan *plan)
{
    size_t jobs = (size_t)plan->snapshot->job_count;
    sia s = {.snapshot = plan->snapshot, .params = plan->params};
    adli_typed_size *sizes = adli_calloc(jobs, sizeof *sizes);
    int *taken = adli_calloc(jobs, sizeof *taken);
    adl_status status = sizes && taken ? adli_types_init(&s.types, plan->snapshot)
                                       : adli_fail_memory("sizes of jobs");
    if (status == ADL_OK)
        status = prepare(&s);
    if (status == ADL_OK)
        status = choose(&s, taken);
    for (size_t j = 0; j < jobs && status == ADL_OK; j++) {
        const adl_job *job = &plan->snapshot->jobs[j];
        if (adli_job_pinned(job))
            sizes[j] = (adli_typed_size){adli_types_present(&s.types, job), job->replicas, false};
        else if (taken[j] >= 0)
            sizes[j] = (adli_typed_size){s.type[taken[j]], s.replicas[taken[j]], false};
    }
    if (status == ADL_OK)
        status = adli_types_pack(plan, &s.types, sizes);
    adli_types_fini(&s.types);
    free(s.room);
    free(s.requests);
    free(s.type);
    free(s.replicas);
    free(s.options);
    free(taken);
    free(sizes);
    return status;
}

const adli_policy_class adli_policy_sia = {
    .name = "sia",
    .summary = "goodput to the power of -1/2, solved exactly; device types (SOSP'23)",
    .params = params,
    .adapts = true,
    .decide = decide,
};
