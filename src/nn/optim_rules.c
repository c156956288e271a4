/* The update rules, element by element, in PyTorch's order of operations; each is one pass over memory
 * where PyTorch makes one pass per operation. Every operation is rounded on its own (no fused
 * multiply-add), so the result is the same on every processor and for any number of threads. */
#include "nn/optim.h"

#include "nn/threads.h"

#include <math.h>

/* d = g + wd p;  p -= lr d */
ADLI_CLONES void adli_rule_sgd(const adli_update *u, float *restrict p, const float *restrict g,
                               float *a, float *b, size_t count)
{
    (void)a;
    (void)b;
    float lr = u->lr, wd = u->weight_decay;
    for (size_t i = 0; i < count; i++)
        p[i] -= lr * (g[i] + wd * p[i]);
}

/* d = g + wd p;  m = d at the first step, else momentum m + (1 - dampening) d;
 * p -= lr (nesterov ? d + momentum m : m) */
ADLI_CLONES void adli_rule_sgd_momentum(const adli_update *u, float *restrict p,
                                        const float *restrict g, float *restrict m, float *b,
                                        size_t count)
{
    (void)b;
    float lr = u->lr, wd = u->weight_decay, momentum = u->momentum;
    float old = u->first ? 0 : momentum, fresh = u->first ? 1 : u->undampened;
    if (u->nesterov)
        for (size_t i = 0; i < count; i++) {
            float d = g[i] + wd * p[i];
            m[i] = old * m[i] + fresh * d;
            p[i] -= lr * (d + momentum * m[i]);
        }
    else
        for (size_t i = 0; i < count; i++) {
            m[i] = old * m[i] + fresh * (g[i] + wd * p[i]);
            p[i] -= lr * m[i];
        }
}

/* Adam: d = g + wd p, shrink = 1. AdamW: d = g, shrink = 1 - lr wd.
 * m = beta1 m + (1 - beta1) d;  v = beta2 v + (1 - beta2) d^2;
 * p = shrink p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps) */
ADLI_CLONES void adli_rule_adam(const adli_update *u, float *restrict p, const float *restrict g,
                                float *restrict m, float *restrict v, size_t count)
{
    float wd = u->weight_decay, shrink = u->shrink, eps = u->eps, step_size = u->step_size;
    float beta1 = u->beta1, one1 = u->one_beta1, beta2 = u->beta2, one2 = u->one_beta2;
    float root = u->root_correction2;
    for (size_t i = 0; i < count; i++) {
        float d = g[i] + wd * p[i];
        float mi = beta1 * m[i] + one1 * d, vi = beta2 * v[i] + one2 * d * d;
        m[i] = mi;
        v[i] = vi;
        p[i] = shrink * p[i] - step_size * (mi / (sqrtf(vi) / root + eps));
    }
}

/* d = g + wd p;  s = rho s + (1 - rho) d^2;  delta = sqrt(t + eps) / sqrt(s + eps) * d;
 * t = rho t + (1 - rho) delta^2;  p -= lr delta */
ADLI_CLONES void adli_rule_adadelta(const adli_update *u, float *restrict p,
                                    const float *restrict g, float *restrict s, float *restrict t,
                                    size_t count)
{
    float lr = u->lr, wd = u->weight_decay, eps = u->eps, rho = u->rho, one = u->one_rho;
    for (size_t i = 0; i < count; i++) {
        float d = g[i] + wd * p[i];
        float si = rho * s[i] + one * d * d;
        float delta = sqrtf(t[i] + eps) / sqrtf(si + eps) * d;
        s[i] = si;
        t[i] = rho * t[i] + one * delta * delta;
        p[i] -= lr * delta;
    }
}

ADLI_CLONES void adli_precondition(const float *v, float root_correction2, float eps, float *out,
                                   size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = sqrtf(v[i]) / root_correction2 + eps;
}
