/* Learning-rate scaling rules: the factor applied to the learning rate for one step at
 * scale = B / B0. Pure. */
#ifndef ADAPTDL_SCALING_H
#define ADAPTDL_SCALING_H

#include "adaptdl/goodput.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum adl_scaling_kind {
    ADL_SCALING_ADASCALE,  /* gain(scale) of the group, var >= 1e-6, sqr >= 0 */
    ADL_SCALING_ADAMSCALE, /* AdaScale ^ power (0.5 by default); default for Adam and AdamW */
    ADL_SCALING_LINEAR,    /* scale */
    ADL_SCALING_SQRT,      /* sqrt(scale) */
    ADL_SCALING_LEGW, /* sqrt(scale) * min(progress / total, 1), a warm-up that grows with scale */
} adl_scaling_kind;

typedef struct adl_scaling_rule {
    adl_scaling_kind kind;
    double power;              /* AdamScale; 0 means 0.5 */
    double base_warmup_epochs; /* LEGW */
    double data_size;          /* LEGW: examples in the data set */
} adl_scaling_rule;

typedef struct adl_scaling_input {
    adl_grad_params grad;   /* the group's statistics */
    double scale;           /* B / B0 */
    double progress;        /* scale-invariant iterations so far (LEGW) */
    double init_batch_size; /* B0 (LEGW) */
} adl_scaling_input;

/* EINVAL when the rule's own numbers are wrong (LEGW without a data size, unknown kind). */
ADL_API ADL_MUST adl_status adl_scaling_check(const adl_scaling_rule *rule);
/* The factor; the rule is taken to be checked. Always finite and >= 0: 1 where the input makes no
 * sense. */
ADL_API double adl_scaling_factor(const adl_scaling_rule *rule, const adl_scaling_input *input);
/* "adascale", "adamscale", "linear", "sqrt", "legw" to a rule with defaults; EINVAL lists the
 * names. */
ADL_API ADL_MUST adl_status adl_scaling_parse(const char *name, adl_scaling_rule *out);

#ifdef __cplusplus
}
#endif
#endif
