/* pollux: the genetic policy of the OSDI'21 paper (Qiao et al., "Pollux: Co-adaptive Cluster
 * Scheduling for Goodput-Optimized Deep Learning"), in its two published forms.
 *
 * The paper's form maximises the harmonic mean over jobs of (scaled speedup + 1e-3), a power mean with
 * p = -1 that leaves nobody without, with the cluster's utility as the second objective; the
 * solution best by the first one wins. The seeds' form maximises the sum of scaled speedups against
 * the number of nodes in use, with virtual nodes to grow into, and says how large the cluster should
 * be. Worths and factors: pollux_problem.c; the search: pollux_search.c. */
#include "policy/pollux.h"

static const adli_policy_param params[] = {
    {"form", 0, 0, 1, "0: the paper's (harmonic mean); 1: the seeds' (sum, auto-scaling)"},
    {"population", 100, 2, 10000, "solutions kept"},
    {"generations", 100, 0, 100000, "rounds of the search"},
    {"local", 0.05, 0, 1, "share of the children made by local improvement"},
    {"restart_cost_s", 30, 0, 86400, "paper's form: seconds a restart costs jobs that do not say"},
    {"change_penalty", 0.1, 0, 1, "seeds' form: share of the speedup that a moved job loses"},
    {"low_utility", 0.35, 0, 1, "seeds' form: below this utility the cluster shrinks"},
    {"high_utility", 0.65, 0, 1, "seeds' form: above this utility the cluster grows"},
    {0},
};

static adli_pollux_options read_options(const double *values)
{
    return (adli_pollux_options){
        .form = values[0] < 0.5 ? ADLI_POLLUX_PAPER : ADLI_POLLUX_SEEDS,
        .population = (int)values[1],
        .generations = (int)values[2],
        .local = values[3],
        .restart_cost_s = values[4],
        .change_penalty = values[5],
        .low_utility = values[6],
        .high_utility = values[7],
    };
}

/* ---- seeds' form: which solution, and how large a cluster ---- */

static double share_within(const adl_snapshot *snapshot, const adl_job *job, const double *totals)
{
    double share = 0;
    for (int r = 0; r < snapshot->resource_count; r++)
        if (totals[r] > 0)
            share = fmax(share, (double)job->request.amount[r] / totals[r]);
    return share;
}

/* Utility of the first `size` nodes: sum over jobs of (speedup / replicas) x the share of those
 * nodes' resources that the job has. */
static double utility_of(const adli_pollux_problem *problem, const adli_genome *genome, int size)
{
    const adl_snapshot *snapshot = problem->snapshot;
    double totals[ADL_MAX_RESOURCES] = {0}, utility = 0;
    for (int node = 0; node < size; node++) {
        int real = problem->node_of[node];
        const adl_node *view = real < 0 ? snapshot->template_node : &snapshot->nodes[real];
        for (int r = 0; r < snapshot->resource_count; r++)
            totals[r] += (double)view->capacity.amount[r];
    }
    for (int j = 0; j < problem->job_count; j++) {
        const adl_job *job = &snapshot->jobs[problem->jobs[j].index];
        int replicas = 0, nodes = genome->start[j + 1] - genome->start[j];
        for (int i = genome->start[j]; i < genome->start[j + 1]; i++)
            replicas += genome->cells[i].count;
        if (replicas > 0)
            utility +=
                adli_job_speedup(
                    job,
                    (adl_shape){nodes, replicas,
                                adli_row_type(problem, genome->cells + genome->start[j], nodes)}) *
                share_within(snapshot, job, totals);
    }
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        if (!adli_job_pinned(job))
            continue;
        int nodes = 1;
        for (int i = 1; i < job->replicas; i++)
            nodes += job->allocation[i] != job->allocation[i - 1];
        int type = problem->type_of[problem->position[job->allocation[0]]];
        utility += adli_job_speedup(job, (adl_shape){nodes, job->replicas, type}) *
                   share_within(snapshot, job, totals);
    }
    return utility;
}

/* The best by the first objective among those that use at most `limit` nodes; -1: none. */
static int best_within(const adli_pollux_search *search, int limit)
{
    int best = -1;
    for (int i = 0; i < search->alive; i++)
        if (search->genomes[i].size <= limit &&
            (best < 0 || search->points[i].first > search->points[best].first))
            best = i;
    return best;
}

/* The present size while the utility of all present nodes is in the range, else the size whose
 * utility is closest to the middle; the larger of equals, so that jobs which speed up linearly get
 * what they can use. */
static int desired_size(const adli_pollux_search *search, const adli_pollux_options *options)
{
    const adli_pollux_problem *problem = search->problem;
    int present = best_within(search, problem->real_count), best = -1;
    double middle = (options->low_utility + options->high_utility) / 2, best_distance = HUGE_VAL;
    if (present >= 0 && problem->real_count > 0) {
        double utility = utility_of(problem, &search->genomes[present], problem->real_count);
        if (utility >= options->low_utility && utility <= options->high_utility)
            return problem->real_count;
    }
    for (int i = 0; i < search->alive; i++) {
        const adli_genome *genome = &search->genomes[i];
        if (genome->size == 0 || search->points[i].front > 0)
            continue;
        double distance = fabs(utility_of(problem, genome, genome->size) - middle);
        bool equal = fabs(distance - best_distance) <= 1e-6;
        if (best < 0 || (!equal && distance < best_distance) ||
            (equal && genome->size > search->genomes[best].size)) {
            best = i;
            best_distance = distance;
        }
    }
    return best < 0 ? problem->real_count : search->genomes[best].size;
}

static int choose(adli_plan *plan, const adli_pollux_search *search,
                  const adli_pollux_options *options)
{
    int real = search->problem->real_count, limit = real;
    if (options->form == ADLI_POLLUX_PAPER)
        return search->best;
    if (plan->snapshot->template_node) {
        plan->desired_nodes = plan->snapshot->job_count > 0 ? desired_size(search, options) : 0;
        limit = plan->desired_nodes < real ? plan->desired_nodes : real;
    }
    int best = best_within(search, limit);
    return best >= 0 ? best : best_within(search, real);
}

/* ---- the answer ---- */

static void place_pinned(adli_plan *plan)
{
    for (int j = 0; j < plan->snapshot->job_count; j++) {
        const adl_job *job = &plan->snapshot->jobs[j];
        for (int i = 0; adli_job_pinned(job) && i < job->replicas; i++)
            adli_plan_place(plan, j, job->allocation[i], 1);
    }
}

/* The next larger size that would make the job faster, on one node if one could hold it. */
static void explain_next(adl_job_decision *now, const adli_pollux_problem *problem,
                         const adli_pollux_job *job, int nodes, int replicas)
{
    const adl_job *view = &problem->snapshot->jobs[job->index];
    double here = replicas > 0 ? adli_job_speedup(view, adl_shape_of(nodes, replicas)) : 0;
    int largest = 0;
    for (int node = 0; node < problem->node_count; node++)
        if (job->capacity[node] > largest)
            largest = job->capacity[node];
    for (int next = replicas < job->min ? job->min : replicas + 1; next <= job->max; next++) {
        double there = adli_job_speedup(view, adl_shape_of(next <= largest ? 1 : 2, next));
        if (there <= here * (1 + 1e-9))
            continue;
        now->next_replicas = next;
        now->next_gain = here > 0 ? there / here : there;
        return;
    }
}

static void place_open(adli_plan *plan, const adli_pollux_problem *problem,
                       const adli_genome *genome)
{
    for (int j = 0; j < problem->job_count; j++) {
        const adli_pollux_job *job = &problem->jobs[j];
        const adl_job *view = &plan->snapshot->jobs[job->index];
        adl_job_decision *now = &plan->jobs[job->index];
        const adli_cell *row = genome->cells + genome->start[j];
        int count = genome->start[j + 1] - genome->start[j], replicas = 0;
        for (int i = 0; i < count; i++) {
            adli_plan_place(plan, job->index, problem->node_of[row[i].node], row[i].count);
            replicas += row[i].count;
        }
        bool moved = !adli_row_equal(row, count, job->base, job->base_count);
        if (moved && count > 0 && (view->replicas > 0 || view->restarts > 0))
            now->restart_cost = 1 - job->factor;
        explain_next(now, problem, job, count, replicas);
    }
}

static adl_status decide(adli_plan *plan)
{
    adli_pollux_memory *memory = plan->state;
    adli_pollux_options options = read_options(plan->params);
    adli_pollux_problem problem;
    adli_pollux_search search;
    adl_status status = adli_pollux_problem_init(&problem, plan->snapshot, &options);
    if (status != ADL_OK)
        return status;
    status = adli_pollux_search_init(&search, &problem, &options, plan->snapshot->seed);
    if (status != ADL_OK)
        goto out_problem;
    status = adli_pollux_recall(memory, &search);
    if (status != ADL_OK)
        goto out;
    adli_pollux_search_run(&search);
    place_pinned(plan);
    place_open(plan, &problem, &search.genomes[choose(plan, &search, &options)]);
    status = adli_pollux_remember(memory, &search);
out:
    adli_pollux_search_fini(&search);
out_problem:
    adli_pollux_problem_fini(&problem);
    return status;
}

static void fini(void *state)
{
    adli_pollux_memory_fini(state);
}

const adli_policy_class adli_policy_pollux = {
    .name = "pollux",
    .summary = "genetic search for goodput and fairness (OSDI'21)",
    .params = params,
    .state_size = sizeof(adli_pollux_memory),
    .fini = fini,
    .adapts = true,
    .decide = decide,
};
