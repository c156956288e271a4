/* Learning-rate schedules in closed form: the rate is a function of t and of the rate at t = 0, so a
 * schedule's state is those two. */
#include "adaptdl/optim.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

struct adl_schedule {
    const adl_optim_ops *ops;
    adl_schedule_options options; /* milestones is our copy */
    int *milestones;
    double *base; /* [groups] lr0 */
    size_t groups;
    int64_t t;
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
    bool has_gamma = options->kind != ADL_COSINE_LR;
    if ((unsigned)options->kind > ADL_COSINE_LR)
        return adli_fail(ADL_EINVAL, "schedule: unknown kind %d", (int)options->kind);
    if (has_gamma && !(options->gamma > 0 && options->gamma < HUGE_VAL))
        return adli_fail(ADL_EINVAL, "schedule: gamma = %g is not above 0", options->gamma);
    if (options->kind == ADL_STEP_LR && options->step_size < 1)
        return adli_fail(ADL_EINVAL, "step schedule: step_size %d is below 1", options->step_size);
    if (options->kind == ADL_COSINE_LR && options->t_max < 1)
        return adli_fail(ADL_EINVAL, "cosine schedule: t_max %d is below 1", options->t_max);
    if (options->kind == ADL_COSINE_LR && !(options->eta_min >= 0 && options->eta_min < HUGE_VAL))
        return adli_fail(ADL_EINVAL, "cosine schedule: eta_min = %g", options->eta_min);
    return options->kind == ADL_MULTI_STEP_LR ? check_milestones(options) : ADL_OK;
}

static double rate(const adl_schedule *schedule, double base)
{
    const adl_schedule_options *o = &schedule->options;
    double t = (double)schedule->t;
    int64_t drops = 0;
    switch (o->kind) {
    case ADL_STEP_LR:
        return base * pow(o->gamma, (double)(schedule->t / o->step_size));
    case ADL_MULTI_STEP_LR:
        for (size_t i = 0; i < o->milestone_count; i++)
            drops += schedule->milestones[i] <= schedule->t;
        return base * pow(o->gamma, (double)drops);
    case ADL_EXPONENTIAL_LR:
        return base * pow(o->gamma, t);
    case ADL_COSINE_LR:
        break;
    }
    return o->eta_min + (base - o->eta_min) * (1 + cos(M_PI * t / o->t_max)) / 2;
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
    adl_schedule_options filled = *options;
    if (filled.gamma == 0 && (filled.kind == ADL_STEP_LR || filled.kind == ADL_MULTI_STEP_LR))
        filled.gamma = 0.1;
    adl_status status = check(&filled);
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

int64_t adl_schedule_time(const adl_schedule *schedule)
{
    return schedule->t;
}

/* u64 magic, u64 t, u64 groups, f64 lr0 of each. */
static const uint64_t MAGIC = 0x01636c6461; /* "adlc", version 1 */

size_t adl_schedule_save_size(const adl_schedule *schedule)
{
    return 3 * sizeof(uint64_t) + schedule->groups * sizeof(double);
}

void adl_schedule_save(const adl_schedule *schedule, void *out)
{
    uint8_t *at = adli_put_u64(out, MAGIC);
    at = adli_put_u64(at, (uint64_t)schedule->t);
    at = adli_put_u64(at, schedule->groups);
    for (size_t i = 0; i < schedule->groups; i++)
        at = adli_put_double(at, schedule->base[i]);
}

adl_status adl_schedule_load(adl_schedule *schedule, const void *data, size_t length)
{
    adli_reader reader = adli_reader_over(data, length);
    if (length != adl_schedule_save_size(schedule) || adli_get_u64(&reader) != MAGIC)
        return adli_fail(ADL_ECORRUPT, "saved schedule: not one of this version for %zu groups",
                         schedule->groups);
    uint64_t t = adli_get_u64(&reader);
    if (t > INT64_MAX / 2 || adli_get_u64(&reader) != schedule->groups)
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
    schedule->t = (int64_t)t;
    apply(schedule);
    return ADL_OK;
}
