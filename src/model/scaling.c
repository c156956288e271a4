/* What the learning rate is multiplied by when a step uses scale times the initial batch. One rule
 * per line of the table; a new one needs a kind, a name and a case. */
#include "adaptdl/scaling.h"

#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    adl_scaling_kind kind;
} rules[] = {
    {"adascale", ADL_SCALING_ADASCALE}, {"adamscale", ADL_SCALING_ADAMSCALE},
    {"linear", ADL_SCALING_LINEAR},     {"sqrt", ADL_SCALING_SQRT},
    {"legw", ADL_SCALING_LEGW},
};

/* gain(scale) of one group (Johnson et al., "AdaScale SGD", 2020). */
static double adascale(const adl_scaling_input *input)
{
    adl_grad_params grad = {.sqr = fmax(input->grad.sqr, 0), .var = fmax(input->grad.var, 1e-6)};
    return adl_gain(grad, input->scale);
}

/* factor = sqrt(scale) * min(progress / total, 1),
 * total = base_warmup_epochs * scale * data_size / B0
 * (You et al., "Large-Batch Training for LSTM and Beyond", 2019). */
static double legw(const adl_scaling_rule *rule, const adl_scaling_input *input)
{
    double total =
        rule->base_warmup_epochs * input->scale * rule->data_size / input->init_batch_size;
    double warm = total > 0 ? fmin(input->progress / total, 1) : 1;
    return sqrt(input->scale) * warm;
}

static double factor_of(const adl_scaling_rule *rule, const adl_scaling_input *input)
{
    switch (rule->kind) {
    case ADL_SCALING_ADASCALE:
        return adascale(input);
    case ADL_SCALING_ADAMSCALE:
        return pow(adascale(input), rule->power == 0 ? 0.5 : rule->power);
    case ADL_SCALING_LINEAR:
        return input->scale;
    case ADL_SCALING_SQRT:
        return sqrt(input->scale);
    case ADL_SCALING_LEGW:
        return legw(rule, input);
    }
    return 1;
}

double adl_scaling_factor(const adl_scaling_rule *rule, const adl_scaling_input *input)
{
    double factor = factor_of(rule, input);
    return isfinite(factor) && factor >= 0 ? factor : 1;
}

adl_status adl_scaling_check(const adl_scaling_rule *rule)
{
    switch (rule->kind) {
    case ADL_SCALING_ADAMSCALE:
        if (rule->power >= 0 && rule->power <= 1)
            return ADL_OK;
        return adli_fail(ADL_EINVAL, "adamscale: power must be from 0 to 1, not %g", rule->power);
    case ADL_SCALING_LEGW:
        if (!(rule->data_size >= 1) || !isfinite(rule->data_size))
            return adli_fail(ADL_EINVAL, "legw: data_size must be at least 1, not %g",
                             rule->data_size);
        if (!(rule->base_warmup_epochs >= 0) || !isfinite(rule->base_warmup_epochs))
            return adli_fail(ADL_EINVAL, "legw: base_warmup_epochs must be at least 0, not %g",
                             rule->base_warmup_epochs);
        return ADL_OK;
    case ADL_SCALING_ADASCALE:
    case ADL_SCALING_LINEAR:
    case ADL_SCALING_SQRT:
        return ADL_OK;
    }
    return adli_fail(ADL_EINVAL, "unknown scaling rule %d", (int)rule->kind);
}

adl_status adl_scaling_parse(const char *name, adl_scaling_rule *out)
{
    *out = (adl_scaling_rule){0};
    for (size_t i = 0; i < ADLI_COUNT(rules); i++) {
        if (strcmp(rules[i].name, name) != 0)
            continue;
        out->kind = rules[i].kind;
        out->power = rules[i].kind == ADL_SCALING_ADAMSCALE ? 0.5 : 0;
        return ADL_OK;
    }
    return adli_fail(ADL_EINVAL,
                     "unknown scaling rule \"%s\": use adascale, adamscale, linear, sqrt or legw",
                     name);
}
