/* A policy asks "how much faster with R replicas?" millions of times per decision, about a few
 * hundred different (N, R). T_network tells N > 1 from N == 1 and nothing else about N, so the
 * answers fit in two rows over R, filled as they are asked for. */
#include "adaptdl/speedup.h"

#include "base/mem.h"
#include "base/status.h"
#include "model/speedup.h"

#include <math.h>
#include <stdlib.h>

/* One (N > 1, R): key is 0 until it is filled; local_bsz 0 when no batch size is allowed there. */
typedef struct memo_entry {
    double goodput, rate;
    unsigned key;
    int local_bsz, accum_steps;
} memo_entry;

/* Up to this many replicas every shape has an entry of its own; beyond, shapes share them, and what is
 * pushed out is computed again. */
enum { MEMO_BITS = 8, MEMO_SIZE = 1 << MEMO_BITS };

/* Mean of log(measured / modelled) at one replica count. */
typedef struct residual {
    double log_replicas, mean;
} residual;

/* What one replica counts for: at the smallest measured size, and most below it. */
typedef struct unit {
    double each, most;
} unit;

typedef struct type_memo {
    memo_entry *answers; /* its own memo, or that of the type it is projected from, */
    double ratio; /* and by what those are multiplied: 1, or the ratio of speeds; 0: cannot be */
    bool known;   /* has a model of its own */
    adl_goodput model;
    adl_batch_limits limits;
    memo_entry *memo;
    residual *residuals[2]; /* [N > 1]: by ascending replicas */
    size_t residual_count[2];
    double speed;
    int measured; /* the smallest size that was; 0: the rates are not bounded */
    unit rate, goodput;
    adl_profile_point *profile; /* as it was given: for whoever writes the memo down */
    size_t profile_count;
} type_memo;

struct adl_speedup {
    int holders;
    int first; /* the first type with a model; -1: none */
    int max_replicas;
    double base;    /* goodput of one replica of the first type */
    bool scattered; /* entries by a hash of their key */
    size_t type_count, memo_size;
    bool bounded;
    double claimed;   /* see adli_speedup_claimed */
    type_memo *types; /* [type_count] */
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

static adl_status measure(type_memo *on, const adl_type_model *known, int type)
{
    size_t count = known->profile ? known->profile_count : 0;
    for (int multi = 0; multi < 2 && count > 0; multi++) {
        residual *rows = adli_calloc(count, sizeof *rows);
        if (!rows)
            return adli_fail_memory("profile of a job");
        on->residuals[multi] = rows;
        size_t used = 0;
        for (size_t i = 0; i < count; i++) {
            const adl_profile_point *point = &known->profile[i];
            if (!usable(point) || (point->nodes > 1) != multi || point->type != type)
                continue;
            adl_shape shape = adl_shape_of(point->nodes, point->replicas);
            double modelled = adl_optim_time(&on->model.perf, shape, point->local_bsz);
            double value = log(point->optim_time_s) - log(modelled);
            rows[used++] =
                (residual){log(point->replicas), fmin(fmax(value, -MAX_RESIDUAL), MAX_RESIDUAL)};
        }
        on->residual_count[multi] = join(rows, used);
    }
    return ADL_OK;
}

/* Linear in log R between profiled counts, constant outside; of the other kind where there is none. */
static double residual_at(const type_memo *on, bool multi, int replicas)
{
    const residual *rows = on->residuals[multi];
    size_t count = on->residual_count[multi];
    double x = log(replicas);
    if (count == 0)
        return on->residual_count[!multi] ? residual_at(on, !multi, replicas) : 0;
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

/* Only what can be had at all is bounded from below. */
static double bound(const unit *of, int measured, int replicas, double value)
{
    if (measured == 0 || !(value > 0))
        return value;
    if (replicas > measured)
        return fmin(value, ADLI_LEEWAY * replicas * of->each);
    return fmin(fmax(value, replicas * of->each / ADLI_LEEWAY), ADLI_LEEWAY * replicas * of->most);
}

static memo_entry claim(const type_memo *on, bool multi, int replicas)
{
    adl_batch_choice choice;
    adl_shape shape = adl_shape_of(multi ? 2 : 1, replicas);
    if (adl_goodput_optimize(&on->model, &on->limits, shape, &choice) != ADL_OK)
        return (memo_entry){0};
    return (memo_entry){
        .goodput = choice.goodput,
        .rate = choice.goodput / on->model.init_batch_size * exp(-residual_at(on, multi, replicas)),
        .local_bsz = choice.local_bsz,
        .accum_steps = choice.accum_steps,
    };
}

static memo_entry compute(const type_memo *on, bool multi, int replicas)
{
    memo_entry entry = claim(on, multi, replicas);
    entry.rate = bound(&on->rate, on->measured, replicas, entry.rate);
    entry.goodput = bound(&on->goodput, on->measured, replicas, entry.goodput);
    return entry;
}

/* Apart, so that a look at what is there needs few registers and no stack. */
static __attribute__((noinline)) const memo_entry *ask(const adl_speedup *speedup, size_t type,
                                                       unsigned key, memo_entry *entry)
{
    const type_memo *on = &speedup->types[type];
    *entry = compute(on->known ? on : &speedup->types[speedup->first], key & 1, (int)(key / 2));
    entry->key = key;
    return entry;
}

/* The answer for a shape; *ratio: by which its goodput and rate are to be multiplied. */
static inline const memo_entry *look_up(const adl_speedup *speedup, adl_shape shape, double *ratio)
{
    static const memo_entry nothing;
    size_t type = speedup->type_count == 1 ? 0 : (size_t)shape.type;
    *ratio = 0;
    if (!within(speedup, shape) || type >= speedup->type_count)
        return &nothing;
    const type_memo *on = &speedup->types[type];
    *ratio = on->ratio;
    unsigned key = 2 * (unsigned)shape.replicas + (shape.nodes > 1);
    memo_entry *entry =
        &on->answers[speedup->scattered ? key * 0x9e3779b1u >> (32 - MEMO_BITS) : key];
    return entry->key == key ? entry : ask(speedup, type, key, entry);
}

/* The fewest replicas that can hold the initial batch. */
static int fewest_for_init(const type_memo *on, int max_replicas)
{
    double init = on->model.init_batch_size, most = floor(on->limits.max_local_bsz);
    double fewest = most >= 1 && !on->limits.accumulation ? ceil(init / most) : 1;
    return (int)fmin(fmax(fewest, 1), max_replicas);
}

/* The goodput that counts as a speedup of 1: one replica's. Where one replica cannot hold the
 * initial batch, the fewest that can count as that many. */
static adl_status find_base(adl_speedup *speedup)
{
    adl_batch_choice choice;
    const type_memo *on = &speedup->types[speedup->first];
    int replicas = fewest_for_init(on, speedup->max_replicas);
    adl_status status =
        adl_goodput_optimize(&on->model, &on->limits, adl_shape_of(1, replicas), &choice);
    speedup->base = choice.goodput / replicas;
    return status;
}

static adl_status fill(adl_speedup *speedup, const adl_type_model *types)
{
    const adl_type_model *first = &types[speedup->first];
    adl_status status = ADL_OK;
    for (size_t t = 0; t < speedup->type_count && status == ADL_OK; t++) {
        type_memo *on = &speedup->types[t];
        on->known = types[t].model != NULL;
        on->speed = types[t].speed;
        on->ratio = on->known ? 1 : first->speed > 0 ? fmax(types[t].speed, 0) / first->speed : 0;
        if (!on->known)
            continue;
        on->model = *types[t].model;
        on->limits = types[t].limits ? *types[t].limits : (adl_batch_limits){0};
        status = (int)t == speedup->first ? find_base(speedup) : adl_goodput_check(&on->model);
        if (status != ADL_OK)
            return status;
        on->memo = adli_calloc(speedup->memo_size, sizeof *on->memo);
        if (!on->memo)
            return adli_fail_memory("speedup memo");
        on->profile_count = types[t].profile ? types[t].profile_count : 0;
        if (on->profile_count > 0) {
            on->profile = adli_memdup(types[t].profile, on->profile_count, sizeof *on->profile);
            if (!on->profile)
                return adli_fail_memory("profile of a job");
        }
        status = measure(on, &types[t], (int)t);
    }
    for (size_t t = 0; t < speedup->type_count; t++)
        speedup->types[t].answers =
            speedup->types[speedup->types[t].known ? (int)t : speedup->first].memo;
    return status;
}

adl_status adl_speedup_new_types(const adl_type_model *types, size_t type_count, int max_replicas,
                                 adl_speedup **out)
{
    *out = NULL;
    if (max_replicas < 1)
        return adli_fail(ADL_EINVAL, "max_replicas must be at least 1, not %d", max_replicas);
    if (type_count < 1 || type_count > ADL_MAX_TYPES)
        return adli_fail(ADL_EINVAL, "%zu device types; 1 to %d are possible", type_count,
                         ADL_MAX_TYPES);
    adl_speedup *speedup = adli_calloc(1, sizeof *speedup);
    if (!speedup)
        return adli_fail_memory("speedup of a job");
    *speedup = (adl_speedup){
        .holders = 1, .first = -1, .max_replicas = max_replicas, .type_count = type_count};
    speedup->scattered = max_replicas >= MEMO_SIZE / 2;
    speedup->memo_size = speedup->scattered ? MEMO_SIZE : 2 * (size_t)max_replicas + 2;
    for (size_t t = type_count; t-- > 0;)
        speedup->first = types[t].model ? (int)t : speedup->first;
    adl_status status = ADL_OK;
    if (speedup->first >= 0) {
        speedup->types = adli_calloc(type_count, sizeof *speedup->types);
        status = speedup->types ? fill(speedup, types) : adli_fail_memory("speedup of a job");
    }
    if (status != ADL_OK) {
        adl_speedup_free(speedup);
        return status;
    }
    *out = speedup;
    return ADL_OK;
}

adl_status adl_speedup_new(const adl_goodput *model, const adl_batch_limits *limits,
                           const adl_profile_point *profile, size_t profile_count, int max_replicas,
                           adl_speedup **out)
{
    const adl_type_model only = {model, limits, profile, profile_count, 0};
    return adl_speedup_new_types(&only, 1, max_replicas, out);
}

/* The smallest size that can be had and was measured, else the smallest at all. */
static memo_entry smallest(const type_memo *on, int max_replicas, int *size)
{
    memo_entry entry = {0};
    const adl_profile_point *best = NULL;
    for (size_t i = 0; i < on->profile_count; i++) {
        const adl_profile_point *point = &on->profile[i];
        if (!usable(point) || point->replicas > max_replicas ||
            (best && (point->replicas > best->replicas ||
                      (point->replicas == best->replicas && point->nodes >= best->nodes))))
            continue;
        memo_entry there = claim(on, point->nodes > 1, point->replicas);
        if (!(there.rate > 0))
            continue;
        best = point;
        entry = there;
    }
    *size = best ? best->replicas : fewest_for_init(on, max_replicas);
    return best ? entry : claim(on, false, *size);
}

static unit unit_of(double there, int size, double alone)
{
    double each = there / size;
    return (unit){each, fmax(each / ADLI_LEEWAY, alone)};
}

/* How far the claims at measured sizes are above what counts. */
static double excess(const type_memo *on, int max_replicas)
{
    double most = 1;
    for (size_t i = 0; i < on->profile_count; i++) {
        const adl_profile_point *point = &on->profile[i];
        if (!usable(point) || point->replicas > max_replicas)
            continue;
        double rate = claim(on, point->nodes > 1, point->replicas).rate;
        double counts = bound(&on->rate, on->measured, point->replicas, rate);
        most = counts > 0 ? fmax(most, fmax(rate / counts, counts / rate)) : most;
    }
    return most;
}

void adli_speedup_bound(adl_speedup *speedup)
{
    speedup->bounded = true;
    speedup->claimed = 1;
    for (size_t t = 0; speedup->types && t < speedup->type_count; t++) {
        type_memo *on = &speedup->types[t];
        const type_memo *first = &speedup->types[speedup->first];
        if (!on->known)
            continue;
        int size;
        memo_entry least = smallest(on, speedup->max_replicas, &size), one = claim(on, false, 1);
        if (!(least.rate > 0))
            continue;
        on->rate = unit_of(least.rate, size, one.rate);
        on->goodput = unit_of(least.goodput, size, one.goodput);
        if (first->measured > 0) {
            on->rate.each = fmin(on->rate.each, ADLI_TYPES_APART * first->rate.each);
            on->rate.most = fmin(on->rate.most, ADLI_TYPES_APART * first->rate.most);
            on->goodput.each = fmin(on->goodput.each, ADLI_TYPES_APART * first->goodput.each);
            on->goodput.most = fmin(on->goodput.most, ADLI_TYPES_APART * first->goodput.most);
        }
        on->measured = size;
        speedup->claimed = fmax(speedup->claimed, excess(on, speedup->max_replicas));
    }
    if (speedup->first >= 0 && speedup->types[speedup->first].measured > 0)
        speedup->base =
            fmax(speedup->base, speedup->types[speedup->first].goodput.each / ADLI_LEEWAY);
}

bool adli_speedup_bounded(const adl_speedup *speedup)
{
    return speedup->bounded;
}

double adli_speedup_one(const adl_speedup *speedup)
{
    return speedup->first >= 0 ? speedup->types[speedup->first].rate.most : 0;
}

double adli_speedup_claimed(const adl_speedup *speedup)
{
    return speedup->bounded ? speedup->claimed : 1;
}

adl_speedup *adli_speedup_share(adl_speedup *speedup)
{
    speedup->holders++;
    return speedup;
}

void adl_speedup_free(adl_speedup *speedup)
{
    if (!speedup || --speedup->holders > 0)
        return;
    for (size_t t = 0; speedup->types && t < speedup->type_count; t++) {
        free(speedup->types[t].residuals[1]);
        free(speedup->types[t].residuals[0]);
        free(speedup->types[t].memo);
        free(speedup->types[t].profile);
    }
    free(speedup->types);
    free(speedup);
}

/* ---- questions ---- */

static double linear(const adl_speedup *speedup, adl_shape shape)
{
    return within(speedup, shape) ? shape.replicas : 0;
}

double adl_speedup_get(adl_speedup *speedup, adl_shape shape)
{
    double ratio;
    if (speedup->first < 0)
        return linear(speedup, shape);
    double goodput = look_up(speedup, shape, &ratio)->goodput;
    return ratio * (goodput / speedup->base);
}

double adl_speedup_rate(adl_speedup *speedup, adl_shape shape)
{
    double ratio;
    if (speedup->first < 0)
        return linear(speedup, shape);
    double rate = look_up(speedup, shape, &ratio)->rate;
    return ratio * rate;
}

adl_batch_choice adl_speedup_choice(adl_speedup *speedup, adl_shape shape)
{
    double ratio;
    if (speedup->first < 0)
        return (adl_batch_choice){0};
    const memo_entry *entry = look_up(speedup, shape, &ratio);
    if (!(ratio > 0))
        return (adl_batch_choice){0};
    return (adl_batch_choice){ratio * entry->goodput, entry->local_bsz, entry->accum_steps};
}

bool adl_speedup_type(const adl_speedup *speedup, size_t type, adl_type_model *out)
{
    *out = (adl_type_model){0};
    if (type >= speedup->type_count)
        return false;
    if (!speedup->types)
        return true;
    const type_memo *on = &speedup->types[type];
    out->speed = on->speed;
    if (on->known) {
        out->model = &on->model;
        out->limits = &on->limits;
        out->profile = on->profile;
        out->profile_count = on->profile_count;
    }
    return true;
}

int adl_speedup_max_replicas(const adl_speedup *speedup)
{
    return speedup->max_replicas;
}

bool adl_speedup_known(const adl_speedup *speedup)
{
    return speedup->first >= 0;
}
