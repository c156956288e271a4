/* dev tool: gap to DP bound */
#include "snapshots.h"
#include "policy/policy.h"
#include "policy/pollux.h"
#include "base/clock.h"
static double value_of(const adl_snapshot *s, int j, int n, int r, bool kept)
{
    const adl_job *job = &s->jobs[j];
    double f = 1;
    if (!kept) {
        double c = 30, age = fmax(s->now_s - job->submit_s, 0);
        f = fmax(age - job->restarts * c, 0) / (age + c);
    }
    double tot = 0;
    for (int i = 0; i < s->node_count; i++)
        tot += (double)s->nodes[i].capacity.amount[0];
    double sp = r > 0 ? adli_job_speedup(job, n, r) : 0;
    return 1 / (sp * f / tot * s->node_count + 1e-3);
}
static double objective(const adl_snapshot *s, const adl_decision *d)
{
    double sum = 0;
    for (int j = 0; j < s->job_count; j++) {
        const adl_job_decision *x = &d->jobs[j];
        const adl_job *job = &s->jobs[j];
        int n = 0;
        for (int k = 0; k < x->replicas; k++)
            n += k == 0 || x->nodes[k] != x->nodes[k - 1];
        bool kept =
            x->replicas == job->replicas &&
            (x->replicas == 0 || !memcmp(x->nodes, job->allocation, sizeof(int) * x->replicas));
        sum += value_of(s, j, n, x->replicas, kept);
    }
    return s->job_count / sum;
}
static double bound(const adl_snapshot *s, int dev)
{
    int C = s->node_count * dev;
    double *a = calloc(C + 1, 8), *b = calloc(C + 1, 8);
    for (int j = 0; j < s->job_count; j++) {
        const adl_job *job = &s->jobs[j];
        int kn = 0;
        for (int k = 0; k < job->replicas; k++)
            kn += k == 0 || job->allocation[k] != job->allocation[k - 1];
        for (int c = 0; c <= C; c++) {
            b[c] = INFINITY;
        }
        for (int r = 0; r <= job->max_replicas && r <= C; r++) {
            double v = r == 0 ? 1000 : value_of(s, j, r <= dev ? 1 : 2, r, false);
            if (r >= 2 && r <= dev)
                v = fmin(v, value_of(s, j, 2, r, false));
            if (r == job->replicas && r > 0)
                v = fmin(v, value_of(s, j, kn, r, true));
            for (int c = r; c <= C; c++) {
                double w = a[c - r] + v;
                if (w < b[c])
                    b[c] = w;
            }
        }
        double *t = a;
        a = b;
        b = t;
    }
    double m = INFINITY;
    for (int c = 0; c <= C; c++)
        m = fmin(m, a[c]);
    free(a);
    free(b);
    return s->job_count / m;
}
int main(int argc, char **argv)
{
    int nodes = 16, dev = 4, jobs = argc > 1 ? atoi(argv[1]) : 40;
    int rounds = argc > 2 ? atoi(argv[2]) : 10;
    double gens = argc > 3 ? atof(argv[3]) : 100;
    double local = argc > 4 ? atof(argv[4]) : 0.2;
    double pop = argc > 5 ? atof(argv[5]) : 100;
    for (int w = 0; w < (getenv("ONE") ? 1 : 3); w++) {
        adli_rng rng;
        adli_rng_init(&rng, 100 + w);
        adlt_world world;
        adlt_world_uniform(&world, &rng, nodes, dev, jobs);
        adl_policy *p;
        if (adl_policy_new("pollux", &p))
            return 1;
        if (adl_policy_set(p, "generations", gens) || adl_policy_set(p, "local", local) ||
            adl_policy_set(p, "population", pop))
            return 1;
        adl_decision d = {0};
        double worst = 0, mean = 0, tt = 0;
        for (int r = 0; r < rounds; r++) {
            world.snapshot.seed = r;
            double t = adli_thread_cpu_s();
            if (adl_policy_decide(p, &world.snapshot, &d)) {
                printf("%s\n", adl_error());
                return 1;
            }
            t = adli_thread_cpu_s() - t;
            tt += t;
            double o = objective(&world.snapshot, &d), b = bound(&world.snapshot, dev);
            if (argc > 6)
                printf("round %d obj %.6f bound %.6f gap %.4f%% %.1f ms\n", r, o, b,
                       100 * (1 - o / b), t * 1e3);
            mean += 1 - o / b;
            if (1 - o / b > worst)
                worst = 1 - o / b;
            adlt_world_apply(&world, &d);
            world.snapshot.now_s += 60;
            for (int j = 0; j < jobs; j++) {
                adl_job *job = &world.jobs[j];
                job->attained_s += 60 * job->replicas;
                if (job->replicas > 0 && (!job->model || adli_rng_below(&rng, 10) == 0)) {
                    adl_speedup_free(job->model);
                    job->model = adlt_random_model(&rng, 64);
                    int m = 2 * job->max_profiled;
                    job->max_replicas = m < 1 ? 1 : m > 64 ? 64 : m;
                }
                if (adli_rng_below(&rng, 40) == 0) { /* replaced by a new job */
                    adl_speedup_free(job->model);
                    job->model = NULL;
                    job->max_profiled = 0;
                    job->max_replicas = 1;
                    job->submit_s = world.snapshot.now_s - 60 * adli_rng_unit(&rng);
                    job->restarts = 0;
                    job->attained_s = 0;
                    adlt_world_allocate(&world, j, NULL, 0);
                    snprintf(world.job_names[j], 32, "job-%d-%d", j, r);
                }
            }
        }
        printf("world %d: gap mean %.4f%% worst %.4f%%, %.2f ms\n", w, 100 * mean / rounds,
               100 * worst, 1e3 * tt / rounds);
        adl_decision_fini(&d);
        adl_policy_free(p);
        adlt_world_fini(&world);
    }
}
