/* Optimizers and learning-rate schedules over plain arrays, with PyTorch's update rules and defaults.
 * The data-parallel wrapper works through adl_optim_ops, which a foreign optimizer can fill too. */
#ifndef ADAPTDL_OPTIM_H
#define ADAPTDL_OPTIM_H

#include "adaptdl/param.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what the data-parallel wrapper needs of any optimizer ----------------------------------- */

/* What is not marked optional must be there: adl_dp_new, adl_schedule_new and adl_runner_new refuse an
 * optimizer without it, by name. All functions are called from one thread at a time. */
typedef struct adl_optim_ops {
    size_t size;      /* sizeof(adl_optim_ops) */
    void *self;       /* first argument of every function; borrowed */
    const char *kind; /* "sgd", "adam", "adamw", "adadelta", a foreign name or NULL; borrowed */
    size_t group_count;
    const adl_param_group *groups; /* [group_count], constant while the optimizer lives; borrowed */

    /* One update from the present gradients. Group g uses learning rate lr(g) * lr_factor[g] for this
     * step only; lr_factor NULL means 1 for all. */
    adl_status (*step)(void *self, const double *lr_factor);
    /* Optional: fills every gradient with zero. Nothing here calls it. */
    void (*zero_grad)(void *self);

    double (*lr)(const void *self, size_t group);
    /* Optional: needed by a schedule (adl_schedule_new). */
    void (*set_lr)(void *self, size_t group, double lr);

    /* Optional: adaptive optimizers (Adam, AdamW). out[i] = sqrt(v_hat[first + i]) + eps for
     * 0 <= i < count, of parameter `param` of group `group`; v_hat is the bias-corrected second
     * moment. Only meaningful when steps > 0 (before that out is filled with 1). */
    void (*precondition)(const void *self, size_t group, size_t param, size_t first, size_t count,
                         float *out);
    /* Optional, but needed with precondition: steps taken since the start or the last restart. */
    int64_t (*steps)(const void *self);
    /* Optional: first and second moments times (1 - beta^0) / (1 - beta^steps), i.e. zero, and
     * steps = 0: done when the batch scale changes. */
    void (*restart)(void *self);

    /* The whole state (moments, steps, learning rates) as bytes: save fills save_size bytes; load
     * checks everything first and refuses (ECORRUPT) what does not fit these groups. Parameters
     * themselves are not part of it. */
    size_t (*save_size)(const void *self);
    void (*save)(const void *self, void *out);
    adl_status (*load)(void *self, const void *data, size_t length);
} adl_optim_ops;

/* ---- our optimizers -------------------------------------------------------------------------- */

typedef enum adl_optim_kind {
    ADL_SGD,
    ADL_ADAM,
    ADL_ADAMW,
    ADL_ADADELTA,
} adl_optim_kind;

/* Start from one of the _INIT macros and change fields; each kind reads only its own. */
typedef struct adl_optim_options {
    size_t size; /* sizeof(adl_optim_options) */
    adl_optim_kind kind;
    double lr;
    double weight_decay; /* all; AdamW: decoupled */
    double momentum;     /* SGD */
    double dampening;    /* SGD */
    bool nesterov;       /* SGD; needs momentum > 0 and dampening 0 */
    double beta1, beta2; /* Adam, AdamW */
    double rho;          /* Adadelta */
    double eps;          /* Adam, AdamW, Adadelta */
} adl_optim_options;

#define ADL_SGD_INIT(rate)                                                                         \
    {                                                                                              \
        .size = sizeof(adl_optim_options), .kind = ADL_SGD, .lr = (rate)                           \
    }
#define ADL_ADAM_INIT                                                                              \
    {                                                                                              \
        .size = sizeof(adl_optim_options), .kind = ADL_ADAM, .lr = 1e-3, .beta1 = 0.9,             \
        .beta2 = 0.999, .eps = 1e-8                                                                \
    }
#define ADL_ADAMW_INIT                                                                             \
    {                                                                                              \
        .size = sizeof(adl_optim_options), .kind = ADL_ADAMW, .lr = 1e-3, .beta1 = 0.9,            \
        .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2                                          \
    }
#define ADL_ADADELTA_INIT                                                                          \
    {                                                                                              \
        .size = sizeof(adl_optim_options), .kind = ADL_ADADELTA, .lr = 1.0, .rho = 0.9,            \
        .eps = 1e-6                                                                                \
    }

typedef struct adl_optim adl_optim;

/* An optimizer over one group. The list is copied, the arrays and names in it are borrowed and must
 * outlive the optimizer. EINVAL names the option that is out of range, as PyTorch would. *out is
 * freed with adl_optim_free. */
ADL_API ADL_MUST adl_status adl_optim_new(const adl_param *params, size_t count,
                                          const adl_optim_options *options, adl_optim **out);
ADL_API void adl_optim_free(adl_optim *optim);
/* One more group with its own options, of the same kind. Only before the first step (ESTATE). */
ADL_API ADL_MUST adl_status adl_optim_add_group(adl_optim *optim, const adl_param *params,
                                                size_t count, const adl_optim_options *options);
/* The functions of this optimizer, filled in; valid as long as it lives, until the next add_group. */
ADL_API const adl_optim_ops *adl_optim_get_ops(const adl_optim *optim);

/* Shorthands for the functions of the same name in adl_optim_get_ops. step is computed on
 * adl_nn_threads() threads; the result does not depend on their number. */
ADL_API ADL_MUST adl_status adl_optim_step(adl_optim *optim, const double *lr_factor);
ADL_API void adl_optim_zero_grad(adl_optim *optim);
ADL_API double adl_optim_lr(const adl_optim *optim, size_t group);
ADL_API void adl_optim_set_lr(adl_optim *optim, size_t group, double lr);
/* Momentum of SGD, beta1 of Adam and AdamW, 0 of Adadelta: what logs show. */
ADL_API double adl_optim_momentum(const adl_optim *optim, size_t group);
ADL_API int64_t adl_optim_steps(const adl_optim *optim);
ADL_API void adl_optim_restart(adl_optim *optim);
ADL_API size_t adl_optim_save_size(const adl_optim *optim);
ADL_API void adl_optim_save(const adl_optim *optim, void *out);
ADL_API ADL_MUST adl_status adl_optim_load(adl_optim *optim, const void *data, size_t length);

/* ---- learning-rate schedules ----------------------------------------------------------------- */

typedef enum adl_schedule_kind {
    ADL_STEP_LR,          /* lr0 * gamma^floor(t / step_size) */
    ADL_MULTI_STEP_LR,    /* lr0 * gamma^(number of milestones <= t) */
    ADL_EXPONENTIAL_LR,   /* lr0 * gamma^t */
    ADL_COSINE_LR,        /* eta_min + (lr0 - eta_min) * (1 + cos(pi t / t_max)) / 2 */
    ADL_WARMUP_COSINE_LR, /* lr0 * (t + 1) / warmup while t + 1 < warmup, then the cosine from there
                           * to eta_min at t_max, which is where it stays */
} adl_schedule_kind;

/* t counts calls of adl_schedule_step, usually epochs; or it is set (adl_schedule_at), by what the
 * training has done so far: adl_dp_progress counts steps of the initial batch size, whatever the
 * batch size is, so that a schedule by it is the same for one replica and for many. */
typedef struct adl_schedule_options {
    size_t size; /* sizeof(adl_schedule_options), set by the _INIT macro */
    adl_schedule_kind kind;
    double gamma;          /* step, multi-step (0 = 0.1), exponential */
    int step_size;         /* step, >= 1 */
    const int *milestones; /* multi-step: increasing, >= 0; copied */
    size_t milestone_count;
    int t_max;      /* cosine, warm-up and cosine: >= 1 */
    double eta_min; /* both */
    int warmup;     /* warm-up and cosine: 0 .. t_max - 1 */
} adl_schedule_options;

#define ADL_SCHEDULE_OPTIONS_INIT                                                                  \
    {                                                                                              \
        .size = sizeof(adl_schedule_options)                                                       \
    }

typedef struct adl_schedule adl_schedule;

/* A schedule at t = 0 whose lr0 are the optimizer's present learning rates. ops is borrowed and must
 * outlive the schedule. EINVAL names the option that is wrong. */
ADL_API ADL_MUST adl_status adl_schedule_new(const adl_optim_ops *ops,
                                             const adl_schedule_options *options,
                                             adl_schedule **out);
ADL_API void adl_schedule_free(adl_schedule *schedule);
/* t += 1, and every group's learning rate is set accordingly. */
ADL_API void adl_schedule_step(adl_schedule *schedule);
ADL_API int64_t adl_schedule_time(const adl_schedule *schedule);
/* t is this from now on (0 <= t < 2^53; others are ignored), and the learning rates are set. */
ADL_API void adl_schedule_at(adl_schedule *schedule, double t);
/* t and the lr0 of every group as bytes; load also sets the learning rates. */
ADL_API size_t adl_schedule_save_size(const adl_schedule *schedule);
ADL_API void adl_schedule_save(const adl_schedule *schedule, void *out);
ADL_API ADL_MUST adl_status adl_schedule_load(adl_schedule *schedule, const void *data,
                                              size_t length);

#ifdef __cplusplus
}
#endif
#endif
