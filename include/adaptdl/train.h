/* Everything a training program needs, and what ties our own networks (nn.h, optim.h) to the
 * data-parallel wrapper, which knows parameters and functions only. examples/mnist.c is a whole
 * program. */
#ifndef ADAPTDL_TRAIN_H
#define ADAPTDL_TRAIN_H

#include "adaptdl/accumulator.h"
#include "adaptdl/context.h"
#include "adaptdl/dp.h"
#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"
#include "adaptdl/nn.h"
#include "adaptdl/optim.h"
#include "adaptdl/report.h"
#include "adaptdl/steps.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline size_t adl_saved_schedule_size(const void *self)
{
    return adl_schedule_save_size((const adl_schedule *)self);
}
static inline void adl_saved_schedule_save(const void *self, void *out)
{
    adl_schedule_save((const adl_schedule *)self, out);
}
static inline adl_status adl_saved_schedule_load(void *self, const void *data, size_t length)
{
    return adl_schedule_load((adl_schedule *)self, data, length);
}
/* A schedule as something to save with the model. */
static inline adl_saved adl_saved_schedule(adl_schedule *schedule)
{
    adl_saved saved = {schedule, adl_saved_schedule_size, adl_saved_schedule_save,
                       adl_saved_schedule_load};
    return saved;
}

/* Data parallel training of a network: as adl_dp_new, with the network's buffers and gradients, the
 * optimizer and the schedule (may be NULL) filled into a copy of options (NULL: the defaults), and
 * the network's hook set, so that gradients travel during backward. The optimizer has the network's
 * parameters as its only group. */
static inline ADL_MUST adl_status adl_dp_net(adl_context *ctx, adl_net *net, adl_optim *optim,
                                             adl_schedule *schedule, const adl_dp_options *options,
                                             adl_dp **out)
{
    adl_dp_options filled = ADL_DP_OPTIONS_INIT;
    if (options)
        filled = *options;
    filled.optim = adl_optim_get_ops(optim);
    filled.buffers = adl_net_buffers(net, &filled.buffer_count);
    adl_net_flat(net, NULL, &filled.flat_grads, &filled.flat_count);
    if (schedule)
        filled.saved[0] = adl_saved_schedule(schedule);
    adl_status status = adl_dp_new(ctx, &filled, out);
    if (status == ADL_OK)
        adl_net_set_hook(net, adl_dp_hook, *out);
    return status;
}

#ifdef __cplusplus
}
#endif
#endif
