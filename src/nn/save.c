/* A network's parameters and buffers as bytes:
 *   u64 magic, u64 entries, then for each: u64 name length, name, u64 count, count floats.
 * Parameters come first, then buffers, in the order of the description. */
#include "base/bytes.h"
#include "nn/net.h"

static const uint64_t MAGIC = 0x0131746e6c6461; /* "adlnt1", version 1 */

/* Entry i of parameters and buffers taken as one list. */
static const adl_param *entry(const adl_net *net, size_t i)
{
    return i < net->params.count ? &net->params.list[i] : &net->buffers.list[i - net->params.count];
}

static size_t entries(const adl_net *net)
{
    return net->built ? net->params.count + net->buffers.count : 0;
}

size_t adl_net_save_size(const adl_net *net)
{
    size_t size = 2 * sizeof(uint64_t);
    for (size_t i = 0; i < entries(net); i++)
        size += 2 * sizeof(uint64_t) + strlen(entry(net, i)->name) +
                entry(net, i)->count * sizeof(float);
    return size;
}

void adl_net_save(const adl_net *net, void *out)
{
    uint8_t *at = adli_put_u64(out, MAGIC);
    at = adli_put_u64(at, entries(net));
    for (size_t i = 0; i < entries(net); i++) {
        const adl_param *param = entry(net, i);
        size_t length = strlen(param->name);
        at = adli_put_u64(at, length);
        at = adli_put_bytes(at, param->name, length);
        at = adli_put_u64(at, param->count);
        at = adli_put_bytes(at, param->value, param->count * sizeof(float));
    }
}

/* Checks the next entry against param; copies the floats when copy is set. */
static adl_status load_entry(adli_reader *reader, const adl_param *param, bool copy)
{
    size_t length = strlen(param->name);
    uint64_t got = adli_get_u64(reader);
    const uint8_t *name = got == length ? adli_get_bytes(reader, length) : NULL;
    if (!name || memcmp(name, param->name, length) != 0)
        return adli_fail(ADL_ECORRUPT, "saved network: where %s should be is another entry",
                         param->name);
    uint64_t count = adli_get_u64(reader);
    if (!reader->bad && count != param->count)
        return adli_fail(ADL_ECORRUPT,
                         "saved network: %s has %llu elements, this network's has %zu", param->name,
                         (unsigned long long)count, param->count);
    const uint8_t *data = adli_get_bytes(reader, param->count * sizeof(float));
    if (!data)
        return adli_fail(ADL_ECORRUPT, "saved network: ends within %s", param->name);
    if (copy)
        memcpy(param->value, data, param->count * sizeof(float));
    return ADL_OK;
}

adl_status adl_net_load(adl_net *net, const void *data, size_t length)
{
    if (!net->built)
        return adli_fail(ADL_ESTATE, "network is not built yet");
    for (int copy = 0; copy <= 1; copy++) { /* look at all of it before changing anything */
        adli_reader reader = adli_reader_over(data, length);
        uint64_t magic = adli_get_u64(&reader), count = adli_get_u64(&reader);
        if (reader.bad || magic != MAGIC)
            return adli_fail(ADL_ECORRUPT, "saved network: not one of this version");
        if (count != entries(net))
            return adli_fail(ADL_ECORRUPT, "saved network: %llu entries, this network has %zu",
                             (unsigned long long)count, entries(net));
        for (size_t i = 0; i < entries(net); i++) {
            adl_status status = load_entry(&reader, entry(net, i), copy);
            if (status != ADL_OK)
                return status;
        }
        if (adli_reader_left(&reader) != 0)
            return adli_fail(ADL_ECORRUPT, "saved network: %zu bytes too many",
                             adli_reader_left(&reader));
    }
    return ADL_OK;
}
