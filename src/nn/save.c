/* A network's parameters and buffers as bytes (base/values.h): parameters first, then buffers, in the
 * order of the description. */
#include "base/values.h"
#include "nn/net.h"

enum { LISTS = 2 };

static void lists_of(const adl_net *net, adl_param_group out[LISTS])
{
    out[0] = (adl_param_group){net->params.list, net->built ? net->params.count : 0};
    out[1] = (adl_param_group){net->buffers.list, net->built ? net->buffers.count : 0};
}

size_t adl_net_save_size(const adl_net *net)
{
    adl_param_group lists[LISTS];
    lists_of(net, lists);
    return adli_values_size(lists, LISTS);
}

void adl_net_save(const adl_net *net, void *out)
{
    adl_param_group lists[LISTS];
    lists_of(net, lists);
    adli_values_save(lists, LISTS, out);
}

adl_status adl_net_load(adl_net *net, const void *data, size_t length)
{
    adl_param_group lists[LISTS];
    if (!net->built)
        return adli_fail(ADL_ESTATE, "network is not built yet");
    lists_of(net, lists);
    return adli_values_load(lists, LISTS, data, length);
}
