/* Saved networks, optimizers and schedules: any bytes are refused or loaded, and what was loaded is
 * saved as the same bytes, but for schedules of the first version, which are saved in the second. The first
 * byte says which of the three it is. */
#include "adaptdl/nn.h"
#include "adaptdl/optim.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static adl_net *net;
static adl_optim *optim;
static adl_schedule *schedule;

static void make(void)
{
    size_t count;
    adl_optim_options options = ADL_ADAM_INIT;
    if (adl_net_new(ADL_SHAPE(1, 4, 4), &net) != ADL_OK)
        abort();
    adl_net_conv2d(net, "c", &(adl_conv2d){.out = 2, .kernel = 3});
    adl_net_batch_norm2d(net, "n", NULL);
    if (adl_net_build(net, 1) != ADL_OK)
        abort();
    const adl_param *params = adl_net_params(net, &count);
    if (adl_optim_new(params, count, &options, &optim) != ADL_OK ||
        adl_schedule_new(adl_optim_get_ops(optim),
                         &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                 .kind = ADL_COSINE_LR,
                                                 .t_max = 5},
                         &schedule) != ADL_OK)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t out[4096];
    size_t saved = 0;
    if (!net)
        make();
    if (size < 1)
        return 0;
    uint8_t which = data[0] % 3;
    data++;
    size--;
    if (which == 0 && adl_net_load(net, data, size) == ADL_OK) {
        adl_net_save(net, out);
        saved = adl_net_save_size(net);
    } else if (which == 1 && adl_optim_load(optim, data, size) == ADL_OK) {
        adl_optim_save(optim, out);
        saved = adl_optim_save_size(optim);
    } else if (which == 2 && adl_schedule_load(schedule, data, size) == ADL_OK) {
        adl_schedule_save(schedule, out);
        saved = adl_schedule_save_size(schedule);
        if (data[4] == 1 && adl_schedule_load(schedule, out, saved) == ADL_OK)
            return 0;
    } else
        return 0;
    if (saved != size || memcmp(out, data, size) != 0)
        abort();
    return 0;
}
