/* The size of the cluster. What n nodes are worth is what the policy would do with them: the present ones, best used
 * first, then copies of the template; the others are hidden.
 *
 *   S(n) = sum over jobs of speedup            U(n) = sum over jobs of speedup / replicas x share of the n nodes
 *
 * U falls as n grows, for jobs gain less and less, so the size is found by halving; so does what the last node brings,
 * S(n) - S(n - 1). A policy that is no such function of n gets a size that is good, if not the best. */
#include "adaptdl/sizing.h"

#include "base/mem.h"
#include "base/options.h"
#include "policy/policy.h"
#include "policy/room.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sizer {
    adl_policy *policy;
    const adl_snapshot *snapshot;
    const adl_sizing *sizing;
    int *order;    /* [present] usable nodes: those to be kept longest first */
    int *replicas; /* [node_count] on each now; INT_MAX: one that must stay */
    int present, fixed, most;
    adl_node *nodes; /* [node_count + most] of the pretended snapshot */
    adl_job *jobs;
    int *allocations;
    adl_decision decision;
} sizer;

/* ---- nodes ---- */

static bool usable(const adl_snapshot *snapshot, int node)
{
    for (int r = 0; r < snapshot->resource_count; r++)
        if (snapshot->nodes[node].capacity.amount[r] > 0)
            return true;
    return false;
}

static double price_of(const sizer *s, int node)
{
    const double *prices = s->sizing->prices;
    return prices && node >= 0 && prices[node] > 0 ? prices[node] : s->sizing->node_price;
}

static int keep_order(const void *a, const void *b, void *user)
{
    const sizer *s = user;
    int x = *(const int *)a, y = *(const int *)b;
    if (s->replicas[x] != s->replicas[y])
        return s->replicas[x] > s->replicas[y] ? -1 : 1;
    double cost = price_of(s, x) - price_of(s, y);
    if (cost != 0)
        return cost < 0 ? -1 : 1;
    if (s->snapshot->nodes[x].preemptible != s->snapshot->nodes[y].preemptible)
        return s->snapshot->nodes[x].preemptible ? 1 : -1;
    return x - y;
}

static void order_nodes(sizer *s)
{
    const adl_snapshot *snapshot = s->snapshot;
    for (int j = 0; j < snapshot->job_count; j++)
        for (int i = 0; i < snapshot->jobs[j].replicas; i++) {
            int *count = &s->replicas[snapshot->jobs[j].allocation[i]];
            *count =
                adli_job_pinned(&snapshot->jobs[j]) || *count == INT32_MAX ? INT32_MAX : *count + 1;
        }
    for (int node = 0; node < snapshot->node_count; node++)
        if (usable(snapshot, node)) {
            s->order[s->present++] = node;
            s->fixed += s->replicas[node] == INT32_MAX;
        }
    qsort_r(s->order, (size_t)s->present, sizeof *s->order, keep_order, s);
}

static double cost_of(const sizer *s, int count)
{
    double cost = 0;
    for (int i = 0; i < count; i++)
        cost += price_of(s, i < s->present ? s->order[i] : -1);
    return cost;
}

/* ---- what a size is worth ---- */

/* Jobs as they are without what they have on nodes that are hidden. */
static void hide(sizer *s, int count)
{
    const adl_snapshot *snapshot = s->snapshot;
    memcpy(s->nodes, snapshot->nodes, (size_t)snapshot->node_count * sizeof *s->nodes);
    for (int i = count; i < s->present; i++)
        s->nodes[s->order[i]].capacity = (adl_resources){{0}};
    for (int i = s->present; i < count; i++)
        s->nodes[snapshot->node_count + i - s->present] = *snapshot->template_node;
    int *next = s->allocations;
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        s->jobs[j] = *job;
        s->jobs[j].allocation = next;
        s->jobs[j].replicas = 0;
        for (int i = 0; i < job->replicas; i++)
            if (memcmp(&s->nodes[job->allocation[i]].capacity,
                       &snapshot->nodes[job->allocation[i]].capacity, sizeof(adl_resources)) == 0) {
                *next++ = job->allocation[i];
                s->jobs[j].replicas++;
            }
    }
}

typedef struct worth {
    double brings, utility; /* S(n), U(n) */
} worth;

static double share_of(const adl_snapshot *snapshot, const double *total, const adl_job *job)
{
    double share = 0;
    for (int r = 0; r < snapshot->resource_count; r++)
        if (total[r] > 0)
            share = fmax(share, (double)job->request.amount[r] / total[r]);
    return share;
}

static worth sum_up(const adl_snapshot *snapshot, const adl_decision *decision)
{
    double total[ADL_MAX_RESOURCES] = {0};
    worth sum = {0, 0};
    for (int node = 0; node < snapshot->node_count; node++)
        for (int r = 0; r < snapshot->resource_count; r++)
            total[r] += (double)snapshot->nodes[node].capacity.amount[r];
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job_decision *now = &decision->jobs[j];
        if (now->replicas == 0)
            continue;
        sum.brings += now->speedup;
        sum.utility += now->speedup * share_of(snapshot, total, &snapshot->jobs[j]);
    }
    return sum;
}

static adl_status evaluate(sizer *s, int count, worth *out)
{
    adl_snapshot pretended = *s->snapshot;
    *out = (worth){0, 0};
    if (count == 0)
        return ADL_OK;
    hide(s, count);
    pretended.nodes = s->nodes;
    pretended.node_count += count > s->present ? count - s->present : 0;
    pretended.jobs = s->jobs;
    pretended.template_node = NULL; /* it is among the nodes: the policy need not think of size */
    adl_status status = adl_policy_decide(s->policy, &pretended, &s->decision);
    if (status == ADL_OK)
        *out = sum_up(&pretended, &s->decision);
    return status;
}

/* ---- the size ---- */

/* So many that each job could run, if alone: else those that need more would wait for ever. */
static int least_nodes(const sizer *s)
{
    const adl_snapshot *snapshot = s->snapshot;
    int least = 0;
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        int left = job->min_replicas > 1 ? job->min_replicas : 1, nodes = 0;
        for (; left > 0 && nodes < s->most; nodes++) {
            const adl_node *node =
                nodes < s->present ? &snapshot->nodes[s->order[nodes]] : snapshot->template_node;
            int fit = node ? adli_resources_fit(snapshot, &node->capacity, job) : 0;
            if (fit == 0 && nodes >= s->present)
                break;
            left -= fit;
        }
        if (left <= 0 && nodes > least)
            least = nodes;
    }
    return least;
}

/* The size between low and high whose utility is nearest to the middle of the range. */
static adl_status by_utility(sizer *s, int low, int high, worth present, int *out)
{
    const adl_sizing *sizing = s->sizing;
    double middle = (sizing->low_utility + sizing->high_utility) / 2;
    worth at, below;
    *out = s->present;
    if (s->present >= low && s->present <= high && s->present > 0 &&
        present.utility >= sizing->low_utility && present.utility <= sizing->high_utility)
        return ADL_OK;
    adl_status status = ADL_OK;
    int from = low, to = high;
    while (status == ADL_OK && from < to) { /* the first with a utility of at most the middle */
        int half = from + (to - from) / 2;
        status = evaluate(s, half, &at);
        if (at.utility > middle)
            from = half + 1;
        else
            to = half;
    }
    *out = from;
    if (status != ADL_OK || from == low)
        return status;
    status = evaluate(s, from, &at);
    if (status == ADL_OK)
        status = evaluate(s, from - 1, &below);
    if (status == ADL_OK && fabs(below.utility - middle) < fabs(at.utility - middle) - 1e-6)
        --*out;
    return status;
}

/* The largest between low and high whose last node brings enough for its price. */
static adl_status by_cost(sizer *s, int low, int high, int *out)
{
    int first = low > 1 ? low : 1, from = first, to = high;
    worth least, at, below;
    adl_status status = evaluate(s, first, &least);
    double enough = s->sizing->low_utility * least.brings / fmax(cost_of(s, first), 1e-9);
    while (status == ADL_OK && from < to) {
        int half = from + (to - from + 1) / 2;
        status = evaluate(s, half, &at);
        if (status == ADL_OK)
            status = evaluate(s, half - 1, &below);
        double price = price_of(s, half <= s->present ? s->order[half - 1] : -1);
        if (at.brings - below.brings >= enough * price && at.brings > below.brings)
            from = half;
        else
            to = half - 1;
    }
    *out = from < high ? from : high;
    return status;
}

static int affordable(const sizer *s, int high)
{
    int count = 0;
    while (count < high && cost_of(s, count + 1) <= s->sizing->budget * (1 + 1e-9))
        count++;
    return count;
}

static adl_status choose(sizer *s, adl_sized *out)
{
    const adl_sizing *sizing = s->sizing;
    int high = s->most, low = sizing->min_nodes, least = least_nodes(s);
    bool priced = sizing->budget > 0 && cost_of(s, s->present + 1) > 0;
    worth present;
    if (priced)
        high = affordable(s, high);
    low = low > least ? low : least;
    low = low > s->fixed ? low : s->fixed;
    low = low < high ? low : high;
    high = high > low ? high : low;
    adl_status status = evaluate(s, s->present < s->most ? s->present : s->most, &present);
    out->utility = present.utility;
    if (status != ADL_OK)
        return status;
    status = priced ? by_cost(s, low, high, &out->desired)
                    : by_utility(s, low, high, present, &out->desired);
    if (out->desired < low)
        out->desired = low;
    return status;
}

/* What the chosen size, its last node and one more bring. */
static adl_status describe(sizer *s, adl_sized *out)
{
    worth here, less = {0, 0}, more = {0, 0};
    adl_status status = evaluate(s, out->desired, &here);
    if (status == ADL_OK && out->desired > 0)
        status = evaluate(s, out->desired - 1, &less);
    bool could = out->desired < s->present || s->snapshot->template_node;
    if (status == ADL_OK && could)
        status = evaluate(s, out->desired + 1, &more);
    out->brings = here.brings;
    out->last = here.brings - less.brings;
    out->next = could ? fmax(more.brings - here.brings, 0) : 0;
    out->cost = cost_of(s, out->desired);
    return status;
}

/* Is there a job that fits on none of the nodes? */
static bool homeless(const adl_snapshot *snapshot)
{
    for (int j = 0; j < snapshot->job_count; j++)
        if (!adli_could_hold(snapshot, &snapshot->jobs[j], true))
            return true;
    return false;
}

/* ---- all together ---- */

static adl_status check(const adl_sizing *sizing)
{
    if (sizing->min_nodes < 0 || sizing->max_nodes < sizing->min_nodes)
        return adli_fail(ADL_EINVAL, "sizing: from %d to %d nodes", sizing->min_nodes,
                         sizing->max_nodes);
    if (!(sizing->low_utility >= 0) || !(sizing->high_utility >= sizing->low_utility) ||
        !(sizing->high_utility <= 1))
        return adli_fail(ADL_EINVAL, "sizing: utility from %g to %g is no range within 0 and 1",
                         sizing->low_utility, sizing->high_utility);
    if (!(sizing->budget >= 0) || !isfinite(sizing->budget) || !(sizing->node_price >= 0) ||
        !isfinite(sizing->node_price))
        return adli_fail(ADL_EINVAL, "sizing: a budget of %g, a price of %g", sizing->budget,
                         sizing->node_price);
    return ADL_OK;
}

static adl_status prepare(sizer *s)
{
    const adl_snapshot *snapshot = s->snapshot;
    size_t nodes = (size_t)snapshot->node_count, jobs = (size_t)snapshot->job_count, replicas = 0;
    for (int j = 0; j < snapshot->job_count; j++)
        replicas += (size_t)snapshot->jobs[j].replicas;
    s->order = adli_calloc(nodes + 1, sizeof *s->order);
    s->replicas = adli_calloc(nodes + 1, sizeof *s->replicas);
    s->jobs = adli_calloc(jobs + 1, sizeof *s->jobs);
    s->allocations = adli_calloc(replicas + 1, sizeof *s->allocations);
    if (!s->order || !s->replicas || !s->jobs || !s->allocations)
        return adli_fail_memory("sizes");
    order_nodes(s);
    int most = s->sizing->max_nodes;
    if (!snapshot->template_node && most > s->present) /* nobody knows what would come */
        most = s->present;
    s->most = most > s->fixed ? most : s->fixed;
    s->nodes = adli_calloc(nodes + (size_t)s->most + 2, sizeof *s->nodes);
    return s->nodes ? ADL_OK : adli_fail_memory("sizes");
}

/* Which nodes jobs may have: fewer than there are, where the cluster is to shrink. */
static adl_status decide(sizer *s, const adl_sized *sized, adl_decision *decision)
{
    adl_snapshot seen = *s->snapshot;
    adl_node *shown = NULL;
    if (sized->desired < s->present) {
        hide(s, sized->desired);
        shown = s->nodes;
        seen.nodes = shown;
        seen.jobs = s->jobs;
        seen.template_node = NULL;
    }
    adl_status status = adl_policy_decide(s->policy, &seen, decision);
    for (int j = 0; shown && status == ADL_OK && j < seen.job_count; j++) {
        /* as compared with what the job really has */
        adl_job_decision *now = &decision->jobs[j];
        const adl_job *job = &s->snapshot->jobs[j];
        if (job->replicas == s->jobs[j].replicas)
            continue;
        now->reason = now->replicas == 0              ? ADL_REASON_SUSPENDED
                      : now->replicas < job->replicas ? ADL_REASON_SHRANK
                      : now->replicas > job->replicas ? ADL_REASON_GREW
                                                      : ADL_REASON_MOVED;
    }
    return status;
}

adl_status adl_sizing_decide(adl_policy *policy, const adl_snapshot *snapshot,
                             const adl_sizing *given, adl_decision *decision, adl_sized *sized)
{
    adl_sizing sizing = ADL_SIZING_INIT;
    *sized = (adl_sized){0};
    decision->job_count = 0;
    adl_status status = adli_options_take("sizing", &sizing, sizeof sizing, given);
    if (status == ADL_OK)
        status = check(&sizing);
    if (status != ADL_OK)
        return status;
    sizer s = {.policy = policy, .snapshot = snapshot, .sizing = &sizing};
    status = prepare(&s);
    sized->present = sized->desired = s.present;
    if (status == ADL_OK && snapshot->job_count == 0)
        sized->desired = sizing.min_nodes > s.fixed ? sizing.min_nodes : s.fixed;
    else if (status == ADL_OK && s.present == 0 && !snapshot->template_node)
        sized->desired = sizing.max_nodes > 0 ? 1 : 0;
    else if (status == ADL_OK)
        status = choose(&s, sized);
    if (status == ADL_OK && !snapshot->template_node && homeless(snapshot) &&
        sized->desired <= s.present && s.present < sizing.max_nodes)
        sized->desired = s.present + 1; /* nobody knows yet what it will be */
    if (status == ADL_OK && snapshot->job_count > 0 && s.most > 0 &&
        (snapshot->template_node || sized->desired <= s.present))
        status = describe(&s, sized);
    if (status == ADL_OK)
        status = decide(&s, sized, decision);
    decision->desired_nodes = sized->desired;
    adl_decision_fini(&s.decision);
    free(s.nodes);
    free(s.allocations);
    free(s.jobs);
    free(s.replicas);
    free(s.order);
    return status;
}

const char *adl_sized_explain(const adl_sizing *sizing, const adl_sized *sized, char *text,
                              size_t size)
{
    int used = snprintf(text, size, "%d node%s wanted, %d there", sized->desired,
                        sized->desired == 1 ? "" : "s", sized->present);
    size_t at = used > 0 ? (size_t)used : 0;
    if (at < size && sizing->budget > 0 && sized->cost > 0)
        used = snprintf(text + at, size - at,
                        ": they cost %.4g of %.4g per hour; the last brings %.2f, %.3g for 1 per "
                        "hour, one more would bring %.2f",
                        sized->cost, sizing->budget, sized->last,
                        sized->last * sized->desired / sized->cost, sized->next);
    else if (at < size && sized->brings > 0)
        used = snprintf(text + at, size - at,
                        ": utility %.2f (%.2f to %.2f is right); the last brings %.2f, one more "
                        "would bring %.2f",
                        sized->utility, sizing->low_utility, sizing->high_utility, sized->last,
                        sized->next);
    (void)used;
    return text;
}
