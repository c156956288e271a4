/* What a job is told at its start by a scheduler that has seen jobs of its kind: a fitted step-time model
 * and gradient statistics. Others measured more than this job will for a while, so batch sizes are chosen by
 * that model, from the first one on, as long as the job's own measurements do not contradict it. */
#include "train/metrics.h"

#include "base/json.h"
#include "base/status.h"
#include "model/perf.h"

#include <math.h>
#include <string.h>

static adl_status read_prior(const json_t *root, adl_goodput *out)
{
    const json_t *grad = json_object_get(root, "gradParams");
    const json_t *perf = json_object_get(root, "perfParams");
    adl_status status = adli_json_double(root, "initBatchSize", &out->init_batch_size);
    if (status == ADL_OK)
        status = adli_json_double(grad, "norm", &out->grad.sqr);
    if (status == ADL_OK)
        status = adli_json_double(grad, "var", &out->grad.var);
    for (int i = 0; i < ADLI_PERF_COUNT && status == ADL_OK; i++) {
        double value;
        status = adli_json_double(perf, adli_perf_names[i], &value);
        if (status == ADL_OK)
            adli_perf_set(&out->perf, i, value);
    }
    return status == ADL_OK ? adl_goodput_check(out) : status;
}

adl_status adli_metrics_prior(adli_metrics *metrics, const char *text)
{
    json_t *root = NULL;
    adl_goodput prior = {0};
    adl_status status = adli_json_parse(text, strlen(text), &root);
    if (status == ADL_OK)
        status = read_prior(root, &prior);
    json_decref(root);
    if (status != ADL_OK)
        return adli_wrap(status, "ADAPTDL_PRIOR");
    pthread_mutex_lock(&metrics->lock);
    metrics->prior = prior;
    metrics->has_prior = true;
    pthread_mutex_unlock(&metrics->lock);
    return ADL_OK;
}

bool adli_prior_holds(const adl_perf_params *perf, const adl_profile_point *points, size_t count)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        adl_shape shape = adl_shape_of(points[i].nodes, points[i].replicas);
        double modelled_s = adl_optim_time(perf, shape, points[i].local_bsz);
        double off = log(points[i].optim_time_s) - log(modelled_s);
        sum += off;
        squares += off * off;
    }
    double n = count > 0 ? (double)count : 1, mean = sum / n;
    double spread = sqrt(fmax(squares / n - mean * mean, 0));
    return fabs(mean) <= adli_most_off && spread <= adli_most_spread; /* false for NaN */
}
