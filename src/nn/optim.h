/* The update rules: one function a kind over a run of elements, and the numbers of one step. */
#ifndef ADLI_NN_OPTIM_H
#define ADLI_NN_OPTIM_H

#include <stdbool.h>
#include <stddef.h>

/* Constants of one step of one group, rounded to float once, where PyTorch does. */
typedef struct adli_update {
    float lr, weight_decay, eps;
    float momentum, undampened; /* SGD: 1 - dampening */
    bool nesterov, first;       /* SGD: no momentum buffer yet */
    float beta1, one_beta1, beta2, one_beta2, step_size, root_correction2; /* Adam */
    float shrink;                                                          /* AdamW: 1 - lr * wd */
    float rho, one_rho;                                                    /* Adadelta */
} adli_update;

/* p: parameters, g: gradients, a and b: the two state arrays of the kind; count elements each. */
typedef void adli_rule(const adli_update *u, float *p, const float *g, float *a, float *b,
                       size_t count);
adli_rule adli_rule_sgd, adli_rule_sgd_momentum, adli_rule_adam, adli_rule_adadelta;

/* out = sqrt(v) / root_correction2 + eps */
void adli_precondition(const float *v, float root_correction2, float eps, float *out, size_t count);

#endif
