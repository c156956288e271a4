/* Learning-rate schedules in closed form: the rate is a function of t and of the rate at t = 0, so a
 * schedule's state is those two. */
#include "adaptdl/optim.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

struct adl_schedule {
    const adl_optim_ops *ops;
    adl_schedule_options options; /* milestones is our copy */
    int *milestones;
    double *base; /* [groups] lr0 */
    size_t groups;
    double t;
};

static adl_status check_milestones(const adl_schedule_options *options)
{
    if (options->milestone_count > 0 && !options->milestones)
        return adli_fail(ADL_EINVAL, "multi-step schedule: milestones is NULL");
    for (size_t i = 0; i < options->milestone_count; i++)
        if (options->milestones[i] < 0 ||
            (i > 0 && options->milestones[i] <= options->milestones[i - 1]))
            return adli_fail(ADL_EINVAL, "multi-step schedule: milestone %zu (%d) must be above %d",
                             i, options->milestones[i], i > 0 ? options->milestones[i - 1] : -1);
    return ADL_OK;
}

static adl_status check(const adl_schedule_options *options)
{
    bool cosine = options->kind == ADL_COSINE_LR || options->kind == ADL_WARMUP_COSINE_LR;
    if ((unsigned)options->kind > ADL_WARMUP_COSINE_LR)
        return adli_fail(ADL_EINVAL, "schedule: unknown kind %d", (int)options->kind);
    if (!cosine && !(options->gamma > 0 && options->gamma < HUGE_VAL))
        return adli_fail(ADL_EINVAL, "schedule: gamma = %g is not above 0", options->gamma);
    if (options->kind == ADL_STEP_LR && options->step_size < 1)
        return adli_fail(ADL_EINVAL, "step schedule: step_size %d is below 1", options->step_size);
    if (cosine && options->t_max < 1)
        return adli_fail(ADL_EINVAL, "cosine schedule: t_max %d is below 1", options->t_max);
    if (cosine && !(options->eta_min >= 0 && options->eta_min < HUGE_VAL))
        return adli_fail(ADL_EINVAL, "cosine schedule: eta_min = %g", options->eta_min);
    if (options->kind == ADL_WARMUP_COSINE_LR &&
        (options->warmup < 0 || options->warmup >= options->t_max))
        return adli_fail(ADL_EINVAL, "warm-up schedule: warmup %d is not between 0 and t_max %d",
                         options->warmup, options->t_max);
    return options->kind == ADL_MULTI_STEP_LR ? check_milestones(options) : ADL_OK;
}

/* Half a wave from base at share 0 to eta_min at share 1. */
static double cosine_rate(double base, double eta_min, double share)
{
    return eta_min + (base - eta_min) * (1 + cos(M_PI * share)) / 2;
}

static double warmup_rate(const adl_schedule_options *o, double base, double t)
{
    if (t + 1 < o->warmup)
        return base * (t + 1) / o->warmup;
    double start = o->warmup > 0 ? o->warmup - 1 : 0; /* where the rate is base */
    return cosine_rate(base, o->eta_min, fmin((t - start) / (o->t_max - start), 1));
}

static double rate(const adl_schedule *schedule, double base)
{
    const adl_schedule_options *o = &schedule->options;
    double t = schedule->t;
    int drops = 0;
    switch (o->kind) {
    case ADL_STEP_LR:
        return base * pow(o->gamma, floor(t / o->step_size));
    case ADL_MULTI_STEP_LR:
        for (size_t i = 0; i < o->milestone_count; i++)
            drops += schedule->milestones[i] <= t;
        return base * pow(o->gamma, drops);
    case ADL_EXPONENTIAL_LR:
        return base * pow(o->gamma, t);
    case ADL_COSINE_LR:
        return cosine_rate(base, o->eta_min, t / o->t_max);
    case ADL_WARMUP_COSINE_LR:
        break;
    }
    return warmup_rate(o, base, t);
}

static void apply(const adl_schedule *schedule)
{
    for (size_t i = 0; i < schedule->groups; i++)
        schedule->ops->set_lr(schedule->ops->self, i, rate(schedule, schedule->base[i]));
}

adl_status adl_schedule_new(const adl_optim_ops *ops, const adl_schedule_options *options,
                            adl_schedule **out)
{
    *out = NULL;
    adl_schedule_options filled = {.size = sizeof filled};
    adl_status status = adli_options_take("adl_schedule_options", &filled, sizeof filled, options);
    if (status != ADL_OK)
        return status;
    if (!ops->lr || !ops->set_lr)
        return adli_fail(ADL_EINVAL, "schedule: the optimizer has no %s",
                         ops->lr ? "set_lr" : "lr");
    if (filled.gamma == 0 && (filled.kind == ADL_STEP_LR || filled.kind == ADL_MULTI_STEP_LR))
        filled.gamma = 0.1;
    status = check(&filled);
    if (status != ADL_OK)
        return status;
    adl_schedule *schedule = adli_calloc(1, sizeof *schedule);
    if (!schedule)
        return adli_fail_memory("schedule");
    *schedule = (adl_schedule){.ops = ops, .options = filled, .groups = ops->group_count};
    schedule->base = adli_calloc(ops->group_count, sizeof *schedule->base);
    schedule->milestones =
        filled.kind == ADL_MULTI_STEP_LR
            ? adli_memdup(filled.milestones, filled.milestone_count, sizeof *schedule->milestones)
            : NULL;
    if (!schedule->base || (filled.kind == ADL_MULTI_STEP_LR && !schedule->milestones)) {
        adl_schedule_free(schedule);
        return adli_fail_memory("schedule");
    }
    schedule->options.milestones = schedule->milestones;
    for (size_t i = 0; i < schedule->groups; i++)
        schedule->base[i] = ops->lr(ops->self, i);
    apply(schedule); /* a milestone may be 0 */
    *out = schedule;
    return ADL_OK;
}

void adl_schedule_free(adl_schedule *schedule)
{
    if (!schedule)
        return;
    free(schedule->base);
    free(schedule->milestones);
    free(schedule);
}

void adl_schedule_step(adl_schedule *schedule)
{
    schedule->t++;
    apply(schedule);
}

void adl_schedule_at(adl_schedule *schedule, double t)
{
    if (!(t >= 0 && t < 0x1p53))
        return;
    schedule->t = t;
    apply(schedule);
}

int64_t adl_schedule_time(const adl_schedule *schedule)
{
    return (int64_t)schedule->t;
}

/* u64 magic, f64 t (version 1: u64), u64 groups, f64 lr0 of each. */
static const uint64_t MAGIC = 0x02636c6461, MAGIC_1 = 0x01636c6461; /* "adlc", version */

size_t adl_schedule_save_size(const adl_schedule *schedule)
{
    return 3 * sizeof(uint64_t) + schedule->groups * sizeof(double);
}

void adl_schedule_save(const adl_schedule *schedule, void *out)
{
    uint8_t *at = adli_put_u64(out, MAGIC);
    at = adli_put_double(at, schedule->t);
    at = adli_put_u64(at, schedule->groups);
    for (size_t i = 0; i < schedule->groups; i++)
        at = adli_put_double(at, schedule->base[i]);
}

adl_status adl_schedule_load(adl_schedule *schedule, const void *data, size_t length)
{
    adli_reader reader = adli_reader_over(data, length);
    uint64_t magic = adli_get_u64(&reader);
    if (length != adl_schedule_save_size(schedule) || (magic != MAGIC && magic != MAGIC_1))
        return adli_fail(ADL_ECORRUPT, "saved schedule: not one of this version for %zu groups",
                         schedule->groups);
    double t = magic == MAGIC ? adli_get_double(&reader) : (double)adli_get_u64(&reader);
    if (!(t >= 0 && t < 0x1p53) || adli_get_u64(&reader) != schedule->groups)
        return adli_fail(ADL_ECORRUPT, "saved schedule: time or number of groups is wrong");
    adli_reader again = reader;
    for (size_t i = 0; i < schedule->groups; i++) {
        double base = adli_get_double(&again);
        if (!(base >= 0 && base < HUGE_VAL))
            return adli_fail(ADL_ECORRUPT, "saved schedule: learning rate %g of group %zu", base,
                             i);
    }
    for (size_t i = 0; i < schedule->groups; i++)
        schedule->base[i] = adli_get_double(&reader);
    schedule->t = t;
    apply(schedule);
    return ADL_OK;
}
