/* Properties that hold for every policy, on thousands of random clusters. When one fails, the
 * snapshot is shrunk before it is printed: jobs, nodes, resources and details are left out as long as
 * the failure stays. `test_policies NAME` runs one test; ADLT_SEED=n makes the property tests look at
 * that one snapshot only. */
#include "harness.h"
#include "snapshots.h"

#include <signal.h>
#include <unistd.h>

enum { MAX_NODES = 24, MAX_JOBS = 40 };

/* ---- crashes and endless loops ---- */

static char doing[128]; /* what to say when a policy never comes back */

static void died(int signal_number)
{
    ssize_t written = write(STDOUT_FILENO, doing, strlen(doing));
    (void)written;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Names the policy and the seed on the way down. A decision takes milliseconds; one that takes
 * minutes is stuck. */
static void watch(const char *policy, uint64_t seed)
{
    snprintf(doing, sizeof doing, "not ok - policies: %s, seed %llu: crashed or stuck\n", policy,
             (unsigned long long)seed);
    static const int signals[] = {SIGALRM, SIGFPE, SIGSEGV, SIGABRT};
    for (size_t i = 0; i < ADLI_COUNT(signals); i++)
        signal(signals[i], died);
    alarm(300);
}

static void watch_no_more(void)
{
    alarm(0);
    snprintf(doing, sizeof doing, "# after the decisions\n");
}

/* ---- policies and their variants ---- */

typedef struct variant {
    const char *policy;
    double form; /* where the policy has such a parameter */
    bool slow;   /* a search: fewer and smaller runs */
} variant;

static bool has_parameter(const char *policy, const char *name)
{
    adl_policy *object;
    adl_policy_parameter parameter;
    bool found = false;
    if (adl_policy_new(policy, &object) != ADL_OK)
        return false;
    for (int i = 0; adl_policy_get(object, i, &parameter); i++)
        found |= strcmp(parameter.name, name) == 0;
    adl_policy_free(object);
    return found;
}

/* Every policy of the list, once per form. Returns how many. */
static int list_variants(variant *out, int max)
{
    int count = 0;
    const char *name;
    for (int i = 0; (name = adl_policy_list(i, NULL)); i++) {
        int forms = has_parameter(name, "form") ? 2 : 1;
        for (int form = 0; form < forms && count < max; form++)
            out[count++] = (variant){name, form, has_parameter(name, "generations")};
    }
    return count;
}

static adl_status set_if_known(adl_policy *policy, const char *name, double value)
{
    adl_policy_parameter parameter;
    for (int i = 0; adl_policy_get(policy, i, &parameter); i++)
        if (strcmp(parameter.name, name) == 0)
            return adl_policy_set(policy, name, value);
    return ADL_OK;
}

static adl_status make_policy(const variant *which, adl_policy **out)
{
    adl_status status = adl_policy_new(which->policy, out);
    if (status == ADL_OK)
        status = set_if_known(*out, "form", which->form);
    if (status == ADL_OK)
        status = set_if_known(*out, "exclusive", 1);
    if (status == ADL_OK)
        status = set_if_known(*out, "population", 16);
    if (status == ADL_OK)
        status = set_if_known(*out, "generations", 8);
    if (status == ADL_OK)
        status = set_if_known(*out, "local", 0.3);
    if (status == ADL_OK)
        status = set_if_known(*out, "states", 100);
    return status;
}

/* ---- the properties ---- */

typedef struct verdict {
    char why[512]; /* "" when all is well */
} verdict;

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(out->why, sizeof out->why, __VA_ARGS__);                                          \
        return;                                                                                    \
    } while (0)

static int nodes_of(const int *nodes, int replicas)
{
    int count = replicas > 0;
    for (int i = 1; i < replicas; i++)
        count += nodes[i] != nodes[i - 1];
    return count;
}

static void check_job(const adl_snapshot *s, const adl_decision *d, int index, verdict *out)
{
    const adl_job *job = &s->jobs[index];
    const adl_job_decision *now = &d->jobs[index];
    bool pinned = !job->preemptible && job->replicas > 0;
    if (now->replicas < 0)
        REFUSE("%s: %d replicas", job->name, now->replicas);
    for (int i = 0; i < now->replicas; i++)
        if (now->nodes[i] < 0 || now->nodes[i] >= s->node_count ||
            (i > 0 && now->nodes[i] < now->nodes[i - 1]))
            REFUSE("%s: nodes[%d] = %d is no node, or out of order", job->name, i, now->nodes[i]);
    bool same = now->replicas == job->replicas &&
                (job->replicas == 0 ||
                 memcmp(now->nodes, job->allocation, (size_t)job->replicas * sizeof(int)) == 0);
    if (pinned && (!same || now->reason != ADL_REASON_PINNED))
        REFUSE("%s is pinned, but moved (reason %d)", job->name, now->reason);
    for (int i = 1; i < now->replicas && !same; i++)
        if (strcmp(s->nodes[now->nodes[i]].device_type, s->nodes[now->nodes[0]].device_type) != 0)
            REFUSE("%s: on %s and %s", job->name, s->nodes[now->nodes[0]].device_type,
                   s->nodes[now->nodes[i]].device_type);
    if (!pinned && now->replicas > 0 &&
        (now->replicas < job->min_replicas || now->replicas > job->max_replicas))
        REFUSE("%s: %d replicas, wants %d to %d", job->name, now->replicas, job->min_replicas,
               job->max_replicas);
    bool none = now->reason == ADL_REASON_SUSPENDED || now->reason == ADL_REASON_WAITING ||
                now->reason == ADL_REASON_IMPOSSIBLE;
    if (none != (now->replicas == 0) || (now->reason == ADL_REASON_KEPT && !same))
        REFUSE("%s: reason %d with %d replicas", job->name, now->reason, now->replicas);
    if (!(now->speedup >= 0 && now->speedup < 1e9 && now->restart_cost >= 0 &&
          now->restart_cost <= 1 && now->next_gain >= 0 && now->next_gain < 1e12 &&
          isfinite(now->rival_gain)))
        REFUSE("%s: speedup %g, restart cost %g, next gain %g, rival gain %g", job->name,
               now->speedup, now->restart_cost, now->next_gain, now->rival_gain);
    if (now->next_replicas != 0 &&
        (now->next_replicas <= now->replicas || now->next_replicas > job->max_replicas))
        REFUSE("%s: next size %d after %d", job->name, now->next_replicas, now->replicas);
    if (now->rival < -1 || now->rival >= s->job_count || now->rival == index)
        REFUSE("%s: rival %d", job->name, now->rival);
}

static void check_nodes(const adl_snapshot *s, const adl_decision *d, verdict *out)
{
    for (int node = 0; node < s->node_count; node++) {
        int64_t used[ADL_MAX_RESOURCES] = {0};
        int distributed = 0;
        for (int j = 0; j < s->job_count; j++) {
            const adl_job_decision *now = &d->jobs[j];
            int here = 0;
            for (int i = 0; i < now->replicas; i++)
                here += now->nodes[i] == node;
            for (int r = 0; r < s->resource_count; r++)
                used[r] += here * s->jobs[j].request.amount[r];
            distributed += here > 0 && nodes_of(now->nodes, now->replicas) > 1;
        }
        for (int r = 0; r < s->resource_count; r++)
            if (used[r] > s->nodes[node].capacity.amount[r])
                REFUSE("%s: %lld of %lld %s used", s->nodes[node].name, (long long)used[r],
                       (long long)s->nodes[node].capacity.amount[r], s->resource_names[r]);
        if (distributed > 1)
            REFUSE("%s: %d distributed jobs", s->nodes[node].name, distributed);
    }
}

static void check_decision(const adlt_world *world, const adl_decision *d, verdict *out)
{
    const adl_snapshot *s = &world->snapshot;
    char text[256];
    if (d->job_count != s->job_count)
        REFUSE("%d jobs decided of %d", d->job_count, s->job_count);
    for (int j = 0; j < s->job_count && !out->why[0]; j++)
        check_job(s, d, j, out);
    if (!out->why[0])
        check_nodes(s, d, out);
    if (out->why[0])
        return;
    int most = s->template_node ? (s->node_count > 0 ? 2 * s->node_count : 1) : s->node_count;
    if (d->desired_nodes < 0 || d->desired_nodes > most ||
        (!s->template_node && d->desired_nodes != s->node_count))
        REFUSE("%d nodes desired, there are %d", d->desired_nodes, s->node_count);
    for (int j = 0; j < s->job_count; j++)
        if (!adl_decision_explain(s, d, j, text, sizeof text)[0] || strlen(text) >= sizeof text)
            REFUSE("%s: no explanation", s->jobs[j].name);
    adlt_world applied;
    adlt_world_select(&applied, world, NULL, NULL, NULL);
    adlt_world_apply(&applied, d);
    if (adl_snapshot_check(&applied.snapshot) != ADL_OK)
        snprintf(out->why, sizeof out->why, "applied: %s", adl_error());
    adlt_world_fini(&applied);
}

static bool same_decision(const adl_decision *a, const adl_decision *b)
{
    bool same = a->job_count == b->job_count && a->desired_nodes == b->desired_nodes;
    for (int j = 0; same && j < a->job_count; j++)
        same = a->jobs[j].replicas == b->jobs[j].replicas &&
               a->jobs[j].reason == b->jobs[j].reason &&
               (a->jobs[j].replicas == 0 || memcmp(a->jobs[j].nodes, b->jobs[j].nodes,
                                                   (size_t)a->jobs[j].replicas * sizeof(int)) == 0);
    return same;
}

/* A predicate on worlds: why is "" when the world is fine. */
typedef void judge(const adlt_world *world, const void *context, verdict *out);

static void judge_policy(const adlt_world *world, const void *context, verdict *out)
{
    const variant *which = context;
    adl_policy *policies[2] = {NULL, NULL};
    adl_decision decisions[2] = {{0}, {0}};
    out->why[0] = 0;
    for (int i = 0; i < 2 && !out->why[0]; i++)
        if (make_policy(which, &policies[i]) != ADL_OK ||
            adl_policy_decide(policies[i], &world->snapshot, &decisions[i]) != ADL_OK)
            snprintf(out->why, sizeof out->why, "fails: %s", adl_error());
    if (!out->why[0])
        check_decision(world, &decisions[0], out);
    if (!out->why[0] && !same_decision(&decisions[0], &decisions[1]))
        snprintf(out->why, sizeof out->why, "two decisions for one snapshot");
    for (int i = 0; i < 2; i++) {
        adl_decision_fini(&decisions[i]);
        adl_policy_free(policies[i]);
    }
}

/* ---- shrinking ---- */

typedef struct shrinker {
    adlt_world world;
    judge *is_bad;
    const void *context;
    verdict last;
} shrinker;

/* Goes over to the smaller world if it is a legal snapshot and fails too. */
static bool adopt(shrinker *s, adlt_world *smaller)
{
    verdict now = {""};
    if (smaller->snapshot.resource_count > 0 && adl_snapshot_check(&smaller->snapshot) == ADL_OK)
        s->is_bad(smaller, s->context, &now);
    adlt_world *loser = now.why[0] ? &s->world : smaller;
    adlt_world_fini(loser);
    if (!now.why[0])
        return false;
    s->world = *smaller;
    s->world.snapshot.template_node =
        s->world.snapshot.template_node ? &s->world.template_node : NULL;
    s->last = now;
    return true;
}

/* Leaves out one job (what 0), node (1) or resource (2). */
static bool leave_out(shrinker *s, int what, int index)
{
    bool masks[3][64];
    adlt_world smaller;
    memset(masks, true, sizeof masks);
    masks[what][index] = false;
    adlt_world_select(&smaller, &s->world, masks[0], masks[1], masks[2]);
    return adopt(s, &smaller);
}

enum { DETAILS = 8 };

/* Makes one detail of a job simpler; false when it is simple already. */
static bool simplify(adl_job *job, int detail)
{
    adl_job before = *job;
    switch (detail) {
    case 0:
        job->model = NULL;
        break;
    case 1:
        job->min_replicas = 0;
        break;
    case 2:
        if (job->max_replicas / 2 >= (job->min_replicas > 1 ? job->min_replicas : 1) &&
            job->max_replicas / 2 >= job->replicas)
            job->max_replicas /= 2;
        break;
    case 3:
        job->preemptible = true;
        break;
    case 4:
        job->step_time_s = NULL;
        break;
    case 5:
        job->restarts = 0;
        job->restart_cost_s = 0;
        break;
    case 6:
        job->fixed_replicas = job->max_profiled = 0;
        break;
    default:
        job->total_work = job->progress = job->mean_active = 0;
    }
    return memcmp(&before, job, sizeof before) != 0;
}

static bool shrink_job(shrinker *s, int index)
{
    adlt_world smaller;
    bool progress = false;
    for (int detail = 0; detail < DETAILS; detail++) {
        adlt_world_select(&smaller, &s->world, NULL, NULL, NULL);
        if (simplify(&smaller.jobs[index], detail))
            progress |= adopt(s, &smaller);
        else
            adlt_world_fini(&smaller);
    }
    if (s->world.jobs[index].replicas > 0) {
        adlt_world_select(&smaller, &s->world, NULL, NULL, NULL);
        adlt_world_allocate(&smaller, index, NULL, 0);
        progress |= adopt(s, &smaller);
    }
    return progress;
}

/* Shrinks a failing world until nothing can be left out; s->world is then the result. */
static void shrink(shrinker *s, const adlt_world *failing, judge *is_bad, const void *context)
{
    s->is_bad = is_bad;
    s->context = context;
    s->last = (verdict){""};
    adlt_world_select(&s->world, failing, NULL, NULL, NULL);
    for (bool progress = true; progress;) {
        progress = false;
        for (int what = 0; what < 3; what++) {
            const adl_snapshot *now = &s->world.snapshot;
            int count = what == 0   ? now->job_count
                        : what == 1 ? now->node_count
                                    : now->resource_count;
            for (int i = count - 1; i >= 0; i--)
                progress |= leave_out(s, what, i);
        }
        for (int i = 0; i < s->world.snapshot.job_count; i++)
            progress |= shrink_job(s, i);
    }
}

static void report(const char *name, uint64_t seed, const verdict *first, const adlt_world *world,
                   judge *is_bad, const void *context)
{
    shrinker s;
    shrink(&s, world, is_bad, context);
    printf("# %s, seed %llu: %s\n# smallest snapshot that fails (%s):\n", name,
           (unsigned long long)seed, first->why, s.last.why[0] ? s.last.why : first->why);
    adlt_world_print(&s.world);
    adlt_world_fini(&s.world);
}

static void judge_artificial(const adlt_world *world, const void *context, verdict *out)
{
    bool job = false, node = false;
    for (int i = 0; i < world->snapshot.job_count; i++)
        job |= !strcmp(world->jobs[i].name, "job-3") && world->jobs[i].model == NULL;
    for (int i = 0; i < world->snapshot.node_count; i++)
        node |= !strcmp(world->nodes[i].name, "node-2");
    (void)context;
    snprintf(out->why, sizeof out->why, "%s", job && node ? "job-3 and node-2" : "");
}

TEST(failures_are_shrunk)
{
    int shrunk = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        adlt_world world;
        verdict why;
        adlt_world_random(&world, seed, MAX_NODES, MAX_JOBS);
        judge_artificial(&world, NULL, &why);
        if (why.why[0]) {
            shrinker s;
            shrink(&s, &world, judge_artificial, NULL);
            CHECK_INT(s.world.snapshot.job_count, 1);
            CHECK_INT(s.world.snapshot.node_count, 1);
            CHECK_INT(s.world.snapshot.resource_count, 1);
            CHECK_STR(s.world.jobs[0].name, "job-3");
            CHECK_INT(s.world.jobs[0].replicas, 0);
            adlt_world_fini(&s.world);
            shrunk++;
        }
        adlt_world_fini(&world);
    }
    CHECK(shrunk > 3);
}

/* ---- random snapshots ---- */

static int one_seed(uint64_t *seed, int snapshots)
{
    const char *text = getenv("ADLT_SEED");
    *seed = text ? strtoull(text, NULL, 10) : 1;
    return text ? 1 : snapshots;
}

TEST(random_worlds_are_legal)
{
    long replicas = 0, pinned = 0, distributed = 0, jobs = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        adlt_world world;
        adlt_world_random(&world, seed, MAX_NODES, MAX_JOBS);
        CHECK_OK(adl_snapshot_check(&world.snapshot));
        jobs += world.snapshot.job_count;
        for (int j = 0; j < world.snapshot.job_count; j++) {
            const adl_job *job = &world.jobs[j];
            replicas += job->replicas;
            pinned += job->replicas > 0 && !job->preemptible;
            distributed += nodes_of(job->allocation, job->replicas) > 1;
        }
        adlt_world_fini(&world);
    }
    CHECK(jobs > 5000 && replicas > 2000 && pinned > 300 && distributed > 300);
    printf("info - 500 worlds: %ld jobs, %ld replicas, %ld pinned and %ld distributed jobs\n", jobs,
           replicas, pinned, distributed);
}

TEST(every_policy_decides_within_the_rules)
{
    variant variants[32];
    int count = list_variants(variants, 32);
    uint64_t first;
    CHECK(count >= 5);
    for (int v = 0; v < count; v++) {
        int failures = 0, snapshots = one_seed(&first, variants[v].slow ? 1200 : 8000);
        for (int i = 0; i < snapshots && failures < 3; i++) {
            adlt_world world;
            verdict why;
            if ((first + (uint64_t)i) % 3 == 2)
                adlt_world_random_types(&world, first + (uint64_t)i, MAX_NODES, MAX_JOBS);
            else
                adlt_world_random(&world, first + (uint64_t)i, MAX_NODES, MAX_JOBS);
            watch(variants[v].policy, first + (uint64_t)i);
            judge_policy(&world, &variants[v], &why);
            if (why.why[0]) {
                failures++;
                report(variants[v].policy, first + (uint64_t)i, &why, &world, judge_policy,
                       &variants[v]);
                ADLT_FAIL("%s, seed %llu: %s", variants[v].policy,
                          (unsigned long long)(first + (uint64_t)i), why.why);
            }
            adlt_world_fini(&world);
        }
        printf("info - %s%s: %d snapshots\n", variants[v].policy,
               variants[v].form > 0 ? " form 1" : "", snapshots);
    }
    watch_no_more();
}

/* Another policy, or an operator, may have left a present where distributed jobs share nodes. Those
 * that adapt put that right. */
TEST(nodes_shared_by_distributed_jobs_are_cleared)
{
    variant variants[32];
    int count = list_variants(variants, 32);
    long shared = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        adlt_world world;
        adlt_world_random(&world, seed, 8, MAX_JOBS);
        adlt_world_crowd(&world, seed);
        CHECK_OK(adl_snapshot_check(&world.snapshot));
        for (int v = 0; v < count; v++) {
            adl_policy *policy;
            verdict why;
            REQUIRE_OK(adl_policy_new(variants[v].policy, &policy));
            bool adapts = adl_policy_adapts(policy);
            adl_policy_free(policy);
            if (!adapts)
                continue;
            watch(variants[v].policy, seed);
            judge_policy(&world, &variants[v], &why);
            if (why.why[0]) {
                report(variants[v].policy, seed, &why, &world, judge_policy, &variants[v]);
                ADLT_FAIL("%s, seed %llu: %s", variants[v].policy, (unsigned long long)seed,
                          why.why);
            }
        }
        for (int j = 0; j < world.snapshot.job_count; j++)
            shared += nodes_of(world.jobs[j].allocation, world.jobs[j].replicas) > 1;
        adlt_world_fini(&world);
        if (adlt_failed)
            break;
    }
    watch_no_more();
    CHECK(adlt_failed || shared > 300);
}

/* ---- sequences ---- */

/* Writes the decision for a selection back to the world it was taken from. */
static void apply_to_origin(adlt_world *origin, const adlt_world *part, const adl_decision *d)
{
    for (int j = 0; j < part->snapshot.job_count; j++) {
        const adl_job_decision *now = &d->jobs[j];
        int *nodes = calloc((size_t)now->replicas + 1, sizeof *nodes);
        adl_job *job = &origin->jobs[part->job_from[j]];
        for (int i = 0; i < now->replicas; i++)
            nodes[i] = part->node_from[now->nodes[i]];
        job->restarts += now->reason != ADL_REASON_KEPT && now->replicas > 0;
        adlt_world_allocate(origin, part->job_from[j], nodes, now->replicas);
        free(nodes);
    }
}

/* Jobs and nodes come and go; a job that goes leaves its resources. */
static void churn(adlt_world *world, bool *jobs, bool *nodes, adli_rng *rng)
{
    for (int j = 0; j < world->snapshot.job_count; j++)
        if (adli_rng_below(rng, 6) == 0) {
            jobs[j] = !jobs[j];
            adlt_world_allocate(world, j, NULL, 0);
        }
    for (int n = 0; n < world->snapshot.node_count; n++)
        if (adli_rng_below(rng, 20) == 0)
            nodes[n] = !nodes[n];
    for (int j = 0; j < world->snapshot.job_count; j++)
        for (int i = 0; i < world->jobs[j].replicas; i++)
            if (!nodes[world->jobs[j].allocation[i]])
                adlt_world_allocate(world, j, NULL, 0);
    world->snapshot.now_s += 60;
    world->snapshot.seed = adli_rng_u64(rng);
    for (int j = 0; j < world->snapshot.job_count; j++)
        world->jobs[j].attained_s += 60 * world->jobs[j].replicas;
}

/* Two objects of one policy see the same history and must agree, round after round. */
static bool run_sequence(const variant *which, uint64_t seed, int rounds)
{
    bool jobs[MAX_JOBS], nodes[MAX_NODES], fine = true;
    adl_policy *policies[2] = {NULL, NULL};
    adl_decision decisions[2] = {{0}, {0}};
    adlt_world world, part;
    adli_rng rng;
    adli_rng_init(&rng, seed);
    if (seed % 3 == 2)
        adlt_world_random_types(&world, seed, MAX_NODES, MAX_JOBS);
    else
        adlt_world_random(&world, seed, MAX_NODES, MAX_JOBS);
    memset(jobs, true, sizeof jobs);
    memset(nodes, true, sizeof nodes);
    for (int i = 0; i < 2; i++)
        fine &= make_policy(which, &policies[i]) == ADL_OK;
    watch(which->policy, seed);
    for (int round = 0; round < rounds && fine; round++) {
        verdict why = {""};
        adlt_world_select(&part, &world, jobs, nodes, NULL);
        for (int i = 0; i < 2 && !why.why[0]; i++)
            if (adl_policy_decide(policies[i], &part.snapshot, &decisions[i]) != ADL_OK)
                snprintf(why.why, sizeof why.why, "fails: %s", adl_error());
        if (!why.why[0])
            check_decision(&part, &decisions[0], &why);
        if (!why.why[0] && !same_decision(&decisions[0], &decisions[1]))
            snprintf(why.why, sizeof why.why, "two decisions for one history");
        fine = !why.why[0];
        if (fine)
            apply_to_origin(&world, &part, &decisions[0]);
        else {
            printf("# %s, sequence %llu, round %d: %s\n", which->policy, (unsigned long long)seed,
                   round, why.why);
            adlt_world_print(&part);
        }
        adlt_world_fini(&part);
        churn(&world, jobs, nodes, &rng);
    }
    for (int i = 0; i < 2; i++) {
        adl_decision_fini(&decisions[i]);
        adl_policy_free(policies[i]);
    }
    adlt_world_fini(&world);
    return fine;
}

TEST(decisions_follow_each_other)
{
    variant variants[32];
    int count = list_variants(variants, 32), sequences = 0;
    uint64_t first;
    for (int v = 0; v < count; v++) {
        int wanted = one_seed(&first, variants[v].slow ? 60 : 300);
        for (int i = 0; i < wanted; i++, sequences++)
            if (!run_sequence(&variants[v], first + (uint64_t)i, 12)) {
                ADLT_FAIL("%s, sequence %llu", variants[v].policy,
                          (unsigned long long)(first + (uint64_t)i));
                break;
            }
    }
    watch_no_more();
    printf("info - %d sequences of 12 rounds\n", sequences);
}

TEST(no_memory_is_an_error_and_nothing_more)
{
    variant variants[32];
    int count = list_variants(variants, 32);
    long points = 0;
    for (int v = 0; v < count; v++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            adlt_world world;
            adl_status status = ADL_ENOMEM;
            if (seed % 2)
                adlt_world_random_types(&world, seed, 8, 12);
            else
                adlt_world_random(&world, seed, 8, 12);
            for (int nth = 1; status == ADL_ENOMEM && nth < 1000; nth++, points++) {
                adl_policy *policy;
                adl_decision decision = {0};
                REQUIRE_OK(make_policy(&variants[v], &policy));
                adli_mem_fail_at(nth);
                status = adl_policy_decide(policy, &world.snapshot, &decision);
                adli_mem_fail_at(0);
                if (status == ADL_ENOMEM)
                    CHECK_INT(decision.job_count, 0);
                CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
                CHECK_INT(decision.job_count, world.snapshot.job_count);
                adl_decision_fini(&decision);
                adl_policy_free(policy);
            }
            CHECK_OK(status);
            adlt_world_fini(&world);
        }
    printf("info - %ld allocations failed in turn\n", points);
}

/* ---- parameters ---- */

TEST(parameters_keep_to_their_ranges)
{
    const char *name;
    for (int i = 0; (name = adl_policy_list(i, NULL)); i++) {
        adl_policy *policy;
        adl_policy_parameter parameter;
        REQUIRE_OK(adl_policy_new(name, &policy));
        CHECK_STR(adl_policy_name(policy), name);
        for (int k = 0; adl_policy_get(policy, k, &parameter); k++) {
            CHECK(parameter.value >= parameter.low && parameter.value <= parameter.high);
            CHECK(parameter.meaning && parameter.meaning[0]);
            CHECK_OK(adl_policy_set(policy, parameter.name, parameter.low));
            CHECK_FAILS(adl_policy_set(policy, parameter.name, NAN), ADL_EINVAL, parameter.name);
            CHECK_FAILS(adl_policy_set(policy, parameter.name, 2 * fabs(parameter.high) + 1),
                        ADL_EINVAL, parameter.name);
            adl_policy_parameter now;
            CHECK(adl_policy_get(policy, k, &now) && now.value == parameter.low);
        }
        CHECK_FAILS(adl_policy_set(policy, "no such thing", 1), ADL_EINVAL, "no such thing");
        adl_policy_free(policy);
    }
    adl_policy *none;
    CHECK_FAILS(adl_policy_new("no such policy", &none), ADL_EINVAL, "no such policy");
    CHECK(none == NULL);
}
