/* A policy asks "how much faster with R replicas?" millions of times per decision, about a few
 * hundred different (N, R). T_network tells N > 1 from N == 1 and nothing else about N, so the
 * answers fit in two rows over R, filled as they are asked for. */
#include "adaptdl/speedup.h"

#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

/* One (N > 1, R): filled when local_bsz is not 0; FORBIDDEN when no batch size is allowed there. */
typedef struct memo_entry {
    double goodput, speedup, rate;
    int local_bsz, accum_steps;
} memo_entry;

enum { FORBIDDEN = -1 };

/* Mean of log(measured / modelled) at one replica count. */
typedef struct residual {
    double log_replicas, mean;
} residual;

struct adl_speedup {
    bool known;
    int max_replicas;
    adl_goodput model;
    adl_batch_limits limits;
    double base;            /* goodput of one replica */
    memo_entry (*memo)[2];  /* [max_replicas + 1][N > 1] */
    residual *residuals[2]; /* [N > 1]: by ascending replicas */
    size_t residual_count[2];
};

/* Wilder ratios than exp(50) are not measurements; the limit keeps every rate finite. */
#define MAX_RESIDUAL 50.0

/* ---- measured against modelled step times ---- */

static int by_replicas(const void *a, const void *b)
{
    double x = ((const residual *)a)->log_replicas, y = ((const residual *)b)->log_replicas;
    return (x > y) - (x < y);
}

static bool usable(const adl_profile_point *point)
{
    return point->nodes >= 1 && point->replicas >= point->nodes && isfinite(point->local_bsz) &&
           point->local_bsz >= 1 && isfinite(point->optim_time_s) && point->optim_time_s > 0;
}

/* Sorts rows and joins those of one replica count into their mean. Returns how many are left. */
static size_t join(residual *rows, size_t count)
{
    size_t kept = 0;
    qsort(rows, count, sizeof *rows, by_replicas);
    for (size_t i = 0; i < count;) {
        double sum = 0;
        size_t first = i;
        for (; i < count && rows[i].log_replicas == rows[first].log_replicas; i++)
            sum += rows[i].mean;
        rows[kept++] = (residual){rows[first].log_replicas, sum / (double)(i - first)};
    }
    return kept;
}

static adl_status measure(adl_speedup *speedup, const adl_profile_point *profile, size_t count)
{
    for (int multi = 0; multi < 2; multi++) {
        residual *rows = adli_calloc(count, sizeof *rows);
        if (!rows)
            return adli_fail_memory("profile of a job");
        speedup->residuals[multi] = rows;
        size_t used = 0;
        for (size_t i = 0; i < count; i++) {
            const adl_profile_point *point = &profile[i];
            if (!usable(point) || (point->nodes > 1) != multi)
                continue;
            double modelled =
                adl_optim_time(&speedup->model.perf, adl_shape_of(point->nodes, point->replicas),
                               point->local_bsz);
            double value = log(point->optim_time_s) - log(modelled);
            rows[used++] =
                (residual){log(point->replicas), fmin(fmax(value, -MAX_RESIDUAL), MAX_RESIDUAL)};
        }
        speedup->residual_count[multi] = join(rows, used);
    }
    return ADL_OK;
}

/* Linear in log R between profiled counts, constant outside; of the other kind where there is none. */
static double residual_at(const adl_speedup *speedup, bool multi, int replicas)
{
    const residual *rows = speedup->residuals[multi];
    size_t count = speedup->residual_count[multi];
    double x = log(replicas);
    if (count == 0)
        return speedup->residual_count[!multi] ? residual_at(speedup, !multi, replicas) : 0;
    if (x <= rows[0].log_replicas)
        return rows[0].mean;
    for (size_t i = 1; i < count; i++) {
        const residual *low = &rows[i - 1], *high = &rows[i];
        if (x <= high->log_replicas)
            return low->mean + (high->mean - low->mean) * (x - low->log_replicas) /
                                   (high->log_replicas - low->log_replicas);
    }
    return rows[count - 1].mean;
}

/* ---- the memo ---- */

static bool within(const adl_speedup *speedup, adl_shape shape)
{
    return shape.nodes >= 1 && shape.replicas >= shape.nodes &&
           shape.replicas <= speedup->max_replicas;
}

static memo_entry compute(const adl_speedup *speedup, bool multi, int replicas)
{
    adl_batch_choice choice;
    if (adl_goodput_optimize(&speedup->model, &speedup->limits,
                             adl_shape_of(multi ? 2 : 1, replicas), &choice) != ADL_OK)
        return (memo_entry){.local_bsz = FORBIDDEN};
    return (memo_entry){
        .goodput = choice.goodput,
        .speedup = choice.goodput / speedup->base,
        .rate = choice.goodput / speedup->model.init_batch_size *
                exp(-residual_at(speedup, multi, replicas)),
        .local_bsz = choice.local_bsz,
        .accum_steps = choice.accum_steps,
    };
}

static const memo_entry *look_up(adl_speedup *speedup, adl_shape shape)
{
    static const memo_entry nothing = {.local_bsz = FORBIDDEN};
    if (!within(speedup, shape))
        return &nothing;
    memo_entry *entry = &speedup->memo[shape.replicas][shape.nodes > 1];
    if (entry->local_bsz == 0)
        *entry = compute(speedup, shape.nodes > 1, shape.replicas);
    return entry;
}

/* The goodput that counts as a speedup of 1: one replica's. Where one replica cannot hold the
 * initial batch, the fewest that can count as that many. */
static adl_status find_base(adl_speedup *speedup)
{
    adl_batch_choice choice;
    double init = speedup->model.init_batch_size, most = floor(speedup->limits.max_local_bsz);
    double fewest = most >= 1 && !speedup->limits.accumulation ? ceil(init / most) : 1;
    int replicas = (int)fmin(fmax(fewest, 1), speedup->max_replicas);
    adl_status status =
        adl_goodput_optimize(&speedup->model, &speedup->limits, adl_shape_of(1, replicas), &choice);
    speedup->base = choice.goodput / replicas;
    return status;
}

static adl_status fill(adl_speedup *speedup, const adl_goodput *model,
                       const adl_batch_limits *limits, const adl_profile_point *profile,
                       size_t profile_count)
{
    speedup->known = true;
    speedup->model = *model;
    speedup->limits = limits ? *limits : (adl_batch_limits){0};
    adl_status status = find_base(speedup);
    if (status != ADL_OK)
        return status;
    speedup->memo = adli_calloc((size_t)speedup->max_replicas + 1, sizeof *speedup->memo);
    if (!speedup->memo)
        return adli_fail_memory("speedup memo");
    return profile_count > 0 ? measure(speedup, profile, profile_count) : ADL_OK;
}

adl_status adl_speedup_new(const adl_goodput *model, const adl_batch_limits *limits,
                           const adl_profile_point *profile, size_t profile_count, int max_replicas,
                           adl_speedup **out)
{
    *out = NULL;
    if (max_replicas < 1)
        return adli_fail(ADL_EINVAL, "max_replicas must be at least 1, not %d", max_replicas);
    adl_speedup *speedup = adli_calloc(1, sizeof *speedup);
    if (!speedup)
        return adli_fail_memory("speedup of a job");
    speedup->max_replicas = max_replicas;
    if (model) {
        adl_status status = fill(speedup, model, limits, profile, profile ? profile_count : 0);
        if (status != ADL_OK) {
            adl_speedup_free(speedup);
            return status;
        }
    }
    *out = speedup;
    return ADL_OK;
}

void adl_speedup_free(adl_speedup *speedup)
{
    if (!speedup)
        return;
    free(speedup->residuals[1]);
    free(speedup->residuals[0]);
    free(speedup->memo);
    free(speedup);
}

/* ---- questions ---- */

static double linear(const adl_speedup *speedup, adl_shape shape)
{
    return within(speedup, shape) ? shape.replicas : 0;
}

double adl_speedup_get(adl_speedup *speedup, adl_shape shape)
{
    return speedup->known ? look_up(speedup, shape)->speedup : linear(speedup, shape);
}

double adl_speedup_rate(adl_speedup *speedup, adl_shape shape)
{
    return speedup->known ? look_up(speedup, shape)->rate : linear(speedup, shape);
}

adl_batch_choice adl_speedup_choice(adl_speedup *speedup, adl_shape shape)
{
    if (!speedup->known)
        return (adl_batch_choice){0};
    const memo_entry *entry = look_up(speedup, shape);
    if (entry->local_bsz == FORBIDDEN)
        return (adl_batch_choice){0};
    return (adl_batch_choice){entry->goodput, entry->local_bsz, entry->accum_steps};
}

bool adl_speedup_known(const adl_speedup *speedup)
{
    return speedup->known;
}
