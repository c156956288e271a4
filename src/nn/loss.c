/* Losses and their gradients. Sums are kept in double, so that the loss of a large batch is as good as
 * that of a small one. */
#include "adaptdl/nn.h"
#include "base/status.h"

#include <math.h>

static adl_status check(const char *loss, int batch, int width, adl_reduction reduction)
{
    if (batch < 1 || width < 1)
        return adli_fail(ADL_EINVAL, "%s: batch of %d rows of %d", loss, batch, width);
    if (reduction != ADL_MEAN && reduction != ADL_SUM)
        return adli_fail(ADL_EINVAL, "%s: unknown reduction %d", loss, (int)reduction);
    return ADL_OK;
}

static adl_status check_labels(const char *loss, const int32_t *label, int batch, int classes)
{
    for (int b = 0; b < batch; b++)
        if (label[b] < 0 || label[b] >= classes)
            return adli_fail(ADL_EINVAL, "%s: label %d of row %d is not in 0 .. %d", loss, label[b],
                             b, classes - 1);
    return ADL_OK;
}

adl_status adl_loss_nll(const float *logp, const int32_t *label, int batch, int classes,
                        adl_reduction reduction, double *loss, float *dout)
{
    adl_status status = check("nll loss", batch, classes, reduction);
    if (status == ADL_OK)
        status = check_labels("nll loss", label, batch, classes);
    if (status != ADL_OK)
        return status;
    double weight = reduction == ADL_MEAN ? 1.0 / batch : 1, sum = 0;
    for (int b = 0; b < batch; b++)
        sum -= logp[(size_t)b * (size_t)classes + (size_t)label[b]];
    *loss = sum * weight;
    if (!dout)
        return ADL_OK;
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < classes; i++)
            dout[(size_t)b * (size_t)classes + (size_t)i] = i == label[b] ? (float)-weight : 0;
    return ADL_OK;
}

/* loss = log(sum(exp(x))) - x[label]; d loss / d x = softmax(x) - onehot(label). */
adl_status adl_loss_cross_entropy(const float *logits, const int32_t *label, int batch, int classes,
                                  adl_reduction reduction, double *loss, float *dout)
{
    adl_status status = check("cross-entropy loss", batch, classes, reduction);
    if (status == ADL_OK)
        status = check_labels("cross-entropy loss", label, batch, classes);
    if (status != ADL_OK)
        return status;
    double weight = reduction == ADL_MEAN ? 1.0 / batch : 1, sum = 0;
    for (int b = 0; b < batch; b++) {
        const float *row = logits + (size_t)b * (size_t)classes;
        double most = row[0];
        for (int i = 1; i < classes; i++)
            most = row[i] > most ? row[i] : most;
        double total = exp(row[0] - most);
        for (int i = 1; i < classes; i++)
            total += exp(row[i] - most);
        sum += most + log(total) - row[label[b]];
        if (!dout)
            continue;
        float *to = dout + (size_t)b * (size_t)classes; /* may be row itself */
        for (int i = 0; i < classes; i++)
            to[i] = (float)(weight * (exp(row[i] - most) / total - (i == label[b])));
    }
    *loss = sum * weight;
    return ADL_OK;
}

adl_status adl_loss_mse(const float *out, const float *target, int batch, int features,
                        adl_reduction reduction, double *loss, float *dout)
{
    adl_status status = check("mse loss", batch, features, reduction);
    if (status != ADL_OK)
        return status;
    size_t count = (size_t)batch * (size_t)features;
    double weight = reduction == ADL_MEAN ? 1.0 / (double)count : 1, sum = 0;
    for (size_t i = 0; i < count; i++) {
        double error = (double)out[i] - target[i];
        sum += error * error;
        if (dout)
            dout[i] = (float)(2 * weight * error);
    }
    *loss = sum * weight;
    return ADL_OK;
}

int adl_count_correct(const float *out, const int32_t *label, int batch, int classes)
{
    int correct = 0;
    for (int b = 0; b < batch; b++) {
        const float *row = out + (size_t)b * (size_t)classes;
        int best = 0;
        for (int i = 1; i < classes; i++)
            if (row[i] > row[best])
                best = i;
        correct += best == label[b];
    }
    return correct;
}
