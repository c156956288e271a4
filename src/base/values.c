/* Parameters and buffers by name, so that a model file fits the network that it was made from and is
 * refused by name for any other. */
#include "base/values.h"

#include "base/bytes.h"
#include "base/status.h"

static const uint64_t MAGIC = 0x0131746e6c6461; /* "adlnt1", version 1 */

static size_t entries(const adl_param_group *lists, size_t count)
{
    size_t sum = 0;
    for (size_t g = 0; g < count; g++)
        sum += lists[g].count;
    return sum;
}

size_t adli_values_size(const adl_param_group *lists, size_t count)
{
    size_t size = 2 * sizeof(uint64_t);
    for (size_t g = 0; g < count; g++)
        for (size_t i = 0; i < lists[g].count; i++)
            size += 2 * sizeof(uint64_t) + strlen(lists[g].params[i].name) +
                    lists[g].params[i].count * sizeof(float);
    return size;
}

static uint8_t *save_entry(uint8_t *at, const adl_param *param)
{
    size_t length = strlen(param->name);
    at = adli_put_u64(at, length);
    at = adli_put_bytes(at, param->name, length);
    at = adli_put_u64(at, param->count);
    return adli_put_bytes(at, param->value, param->count * sizeof(float));
}

void adli_values_save(const adl_param_group *lists, size_t count, void *out)
{
    uint8_t *at = adli_put_u64(out, MAGIC);
    at = adli_put_u64(at, entries(lists, count));
    for (size_t g = 0; g < count; g++)
        for (size_t i = 0; i < lists[g].count; i++)
            at = save_entry(at, &lists[g].params[i]);
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

adl_status adli_values_load(const adl_param_group *lists, size_t count, const void *data,
                            size_t length)
{
    for (int copy = 0; copy <= 1; copy++) { /* look at all of it before changing anything */
        adli_reader reader = adli_reader_over(data, length);
        uint64_t magic = adli_get_u64(&reader), number = adli_get_u64(&reader);
        if (reader.bad || magic != MAGIC)
            return adli_fail(ADL_ECORRUPT, "saved network: not one of this version");
        if (number != entries(lists, count))
            return adli_fail(ADL_ECORRUPT, "saved network: %llu entries, this network has %zu",
                             (unsigned long long)number, entries(lists, count));
        for (size_t g = 0; g < count; g++)
            for (size_t i = 0; i < lists[g].count; i++) {
                adl_status status = load_entry(&reader, &lists[g].params[i], copy);
                if (status != ADL_OK)
                    return status;
            }
        if (adli_reader_left(&reader) != 0)
            return adli_fail(ADL_ECORRUPT, "saved network: %zu bytes too many",
                             adli_reader_left(&reader));
    }
    return ADL_OK;
}
