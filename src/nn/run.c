/* Forward and backward: point the plan at the caller's arrays and go through a tape. */
#include "nn/plan.h"
#include "nn/threads.h"

#include <pthread.h>

static adl_status run_tape(const adli_tape *tape, const adli_run *run)
{
    adl_status status = ADL_OK;
    sigset_t before;
    adli_shield(&before);
    for (size_t i = 0; i < tape->count && status == ADL_OK; i++)
        status = tape->actions[i].run(&tape->actions[i], run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

adl_status adl_net_forward(adl_net *net, const float *x, int batch, const adl_pass *pass,
                           const float **out)
{
    static const adl_pass evaluation = {.train = false};
    *out = NULL;
    if (!net->built)
        return adli_fail(ADL_ESTATE, "network is not built yet");
    if (batch < 1)
        return adli_fail(ADL_EINVAL, "network: batch of %d", batch);
    if (!pass)
        pass = &evaluation;
    net->can_backward = false;
    adli_net_plan *plan;
    adl_status status = adli_net_plan_get(net, batch, pass, &plan);
    if (status != ADL_OK)
        return status;
    adli_point(plan, ADLI_AT_X, x);
    net->seed = pass->seed;
    adli_run run = {.net = net, .seed = pass->seed};
    status = run_tape(&plan->forward, &run);
    if (status != ADL_OK)
        return status;
    net->can_backward = pass->train;
    *out = adli_data(&plan->output);
    return ADL_OK;
}

adl_status adl_net_backward(adl_net *net, const float *dout, float *dx, adl_grad_mode mode)
{
    if (!net->can_backward)
        return adli_fail(ADL_ESTATE, "network: backward without a training forward before it");
    adli_net_plan *plan = net->plans[0];
    if ((dx != NULL) != plan->input_grad)
        return adli_fail(ADL_ESTATE, "network: dx is %s but forward %s input_grad",
                         dx ? "wanted" : "NULL", dx ? "did not say" : "said");
    net->can_backward = false;
    adli_point(plan, ADLI_AT_DOUT, dout);
    adli_point(plan, ADLI_AT_DX, dx);
    adli_run run = {.net = net, .seed = net->seed, .mode = mode};
    return run_tape(&plan->backward, &run);
}
