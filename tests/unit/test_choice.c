/* The exact choice of one option per job: against trying everything on small problems, within its own
 * bounds on large ones. */
#include "harness.h"

#include "base/mem.h"
#include "base/rng.h"
#include "policy/choice.h"

#include <math.h>

enum { JOBS = 7, OPTIONS = 4, POOLS = 3, KINDS = 2 };

typedef struct world {
    adli_choice_option options[JOBS * OPTIONS];
    int64_t requests[JOBS * KINDS], room[POOLS * KINDS];
    adli_choice_problem problem;
} world;

static void make(world *w, uint64_t seed)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    *w = (world){0};
    int jobs = adli_rng_range(&rng, 0, JOBS), pools = adli_rng_range(&rng, 1, POOLS);
    size_t count = 0;
    for (int j = 0; j < jobs; j++)
        for (int o = adli_rng_range(&rng, 0, OPTIONS); o > 0; o--)
            w->options[count++] = (adli_choice_option){
                .value = adli_rng_range(&rng, 1, 120) + (adli_rng_below(&rng, 4) ? 0 : 0.05),
                .job = j,
                .pool = adli_rng_range(&rng, 0, pools - 1),
                .count = adli_rng_range(&rng, 1, 8)};
    for (int i = 0; i < JOBS * KINDS; i++)
        w->requests[i] = adli_rng_below(&rng, 2) ? 1 : adli_rng_range(&rng, 0, 3);
    for (int i = 0; i < POOLS * KINDS; i++)
        w->room[i] = adli_rng_range(&rng, 0, 20);
    w->problem = (adli_choice_problem){.options = w->options,
                                       .option_count = count,
                                       .job_count = jobs,
                                       .pool_count = pools,
                                       .resource_count = KINDS,
                                       .requests = w->requests,
                                       .room = w->room};
}

/* The best of all choices for the jobs from this one on. */
static double try_all(const adli_choice_problem *p, int job, size_t option, int64_t *room)
{
    if (job == p->job_count)
        return 0;
    size_t next = option;
    while (next < p->option_count && p->options[next].job == job)
        next++;
    double best = try_all(p, job + 1, next, room);
    for (size_t o = option; o < next; o++) {
        int64_t *mine = room + p->options[o].pool * KINDS;
        const int64_t *asks = p->requests + job * KINDS;
        bool fits = true;
        for (int r = 0; r < KINDS; r++)
            fits &= mine[r] >= asks[r] * p->options[o].count;
        for (int r = 0; r < KINDS; r++)
            mine[r] -= asks[r] * p->options[o].count;
        if (fits)
            best = fmax(best, p->options[o].value + try_all(p, job + 1, next, room));
        for (int r = 0; r < KINDS; r++)
            mine[r] += asks[r] * p->options[o].count;
    }
    return best;
}

/* Is it a choice at all, within the room, and worth what it says? */
static void check_legal(const adli_choice_problem *p, const int *taken, double value)
{
    double sum = 0;
    for (int pool = 0; pool < p->pool_count; pool++)
        for (int r = 0; r < p->resource_count; r++) {
            int64_t used = 0;
            for (int j = 0; j < p->job_count; j++)
                if (taken[j] >= 0 && p->options[taken[j]].pool == pool)
                    used += p->options[taken[j]].count * p->requests[j * p->resource_count + r];
            CHECK(used <= p->room[pool * p->resource_count + r]);
        }
    for (int j = 0; j < p->job_count; j++) {
        sum += taken[j] >= 0 ? p->options[taken[j]].value : 0;
        CHECK(taken[j] < 0 || p->options[taken[j]].job == j);
    }
    CHECK_NEAR(sum + 1, value + 1, 1e-9);
}

TEST(it_is_as_good_as_trying_everything)
{
    int full = 0;
    for (uint64_t seed = 1; seed <= 3000 && !adlt_failed; seed++) {
        world w;
        int taken[JOBS];
        adli_choice_result result;
        make(&w, seed);
        REQUIRE_OK(adli_choice_solve(&w.problem, taken, &result));
        int64_t room[POOLS * KINDS];
        memcpy(room, w.room, sizeof room);
        double best = try_all(&w.problem, 0, 0, room);
        check_legal(&w.problem, taken, result.value);
        CHECK(result.exact);
        CHECK_NEAR(result.value + 1, best + 1, 1e-9);
        double all = 0; /* without limits */
        for (int j = 0; j < w.problem.job_count; j++) {
            double most = 0;
            for (size_t o = 0; o < w.problem.option_count; o++)
                if (w.options[o].job == j)
                    most = fmax(most, w.options[o].value);
            all += most;
        }
        full += best < all - 1e-9;
    }
    printf("info - %d of 3000 problems have less room than is asked for\n", full);
    CHECK(full > 1000);
}

/* 60 jobs of 15 options on three types, as on the published cluster: the dynamic programme must stay
 * small, and where it may not, the answer stays legal and within its bound. */
TEST(large_problems_stay_small)
{
    enum { MANY = 60, SIZES = 15 };
    static const int64_t room[] = {24, 24, 16};
    size_t most = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        adli_choice_option options[MANY * SIZES];
        int64_t requests[MANY];
        int taken[MANY];
        adli_rng rng;
        adli_rng_init(&rng, seed);
        for (int j = 0; j < MANY; j++) {
            double scale = 0.3 + adli_rng_unit(&rng);
            requests[j] = 1;
            for (int o = 0; o < SIZES; o++) {
                int n = 1 << (o % 5);
                double speed = pow(n, 0.4 * scale) * (1 + o / 5 * adli_rng_unit(&rng));
                options[j * SIZES + o] =
                    (adli_choice_option){.value = round(110 - 100 / sqrt(speed)) + 0.001,
                                         .job = j,
                                         .pool = o / 5,
                                         .count = n};
            }
        }
        adli_choice_problem problem = {options, MANY * SIZES, MANY, 3, 1, requests, room, 0};
        adli_choice_result result, beam;
        REQUIRE_OK(adli_choice_solve(&problem, taken, &result));
        check_legal(&problem, taken, result.value);
        CHECK(result.exact);
        most = result.states > most ? result.states : most;
        problem.states_max = 4;
        REQUIRE_OK(adli_choice_solve(&problem, taken, &beam));
        check_legal(&problem, taken, beam.value);
        CHECK(beam.value <= result.value + 1e-9 && beam.bound >= result.value - 1e-9);
    }
    printf("info - %zu states at most\n", most);
    CHECK(most < 5000000);
}

TEST(no_memory_is_an_error)
{
    world w;
    int taken[JOBS];
    adli_choice_result result;
    make(&w, 12);
    adl_status status = ADL_ENOMEM;
    int nth = 1;
    for (; status == ADL_ENOMEM && nth < 500; nth++) {
        adli_mem_fail_at(nth);
        status = adli_choice_solve(&w.problem, taken, &result);
        adli_mem_fail_at(0);
    }
    CHECK_OK(status);
    CHECK(nth > 10);
}
