/* Data sets in memory: getting examples out of them. */
#include "nn/dataset.h"

#include "nn/threads.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_dataset_new(const adl_dataset_info *info, adl_dataset **out)
{
    *out = NULL;
    adl_dataset *set = adli_calloc(1, sizeof *set);
    if (!set)
        return adli_fail_memory("data set");
    set->info = *info;
    bool fits = info->count <= PTRDIFF_MAX / adl_dataset_example_size(set);
    set->pixels = fits ? adli_calloc(info->count, adl_dataset_example_size(set)) : NULL;
    set->labels = fits ? adli_calloc(info->count, 1) : NULL;
    if (!set->pixels || !set->labels) {
        adl_dataset_free(set);
        return adli_fail(ADL_ENOMEM, "out of memory: data set of %zu examples", info->count);
    }
    for (int c = 0; c < ADLI_CHANNELS_MAX; c++)
        set->scale[c] = 1.0f / 255;
    *out = set;
    return ADL_OK;
}

void adl_dataset_free(adl_dataset *set)
{
    if (!set)
        return;
    free(set->pixels);
    free(set->labels);
    free(set);
}

adl_dataset_info adl_dataset_get_info(const adl_dataset *set)
{
    return set->info;
}

static size_t plane(const adl_dataset *set)
{
    return (size_t)set->info.height * (size_t)set->info.width;
}

size_t adl_dataset_example_size(const adl_dataset *set)
{
    return (size_t)set->info.channels * plane(set);
}

void adl_dataset_stats(const adl_dataset *set, double *mean, double *std)
{
    for (int c = 0; c < set->info.channels; c++) {
        uint64_t sum = 0, squares = 0; /* exact: 255^2 * 2^40 pixels fit */
        for (size_t i = 0; i < set->info.count; i++) {
            const uint8_t *at =
                set->pixels + i * adl_dataset_example_size(set) + (size_t)c * plane(set);
            for (size_t k = 0; k < plane(set); k++) {
                sum += at[k];
                squares += (uint64_t)at[k] * at[k];
            }
        }
        double n = (double)set->info.count * (double)plane(set), m = (double)sum / n;
        double variance = (double)squares / n - m * m;
        mean[c] = m / 255;
        std[c] = variance > 0 ? sqrt(variance) / 255 : 0;
    }
}

adl_status adl_dataset_normalize(adl_dataset *set, const double *mean, const double *std)
{
    for (int c = 0; c < set->info.channels; c++)
        if (!isfinite(mean[c]) || !(std[c] > 0) || !isfinite(std[c]))
            return adli_fail(ADL_EINVAL, "data set: channel %d: mean %g, std %g", c, mean[c],
                             std[c]);
    for (int c = 0; c < set->info.channels; c++) {
        set->scale[c] = (float)(1 / (255 * std[c]));
        set->offset[c] = (float)(-mean[c] / std[c]);
    }
    return ADL_OK;
}

ADLI_CLONES static void convert(const uint8_t *from, float scale, float offset, float *to,
                                size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = scale * (float)from[i] + offset;
}

adl_status adl_dataset_get(const adl_dataset *set, size_t index, float *x, int32_t *label)
{
    if (index >= set->info.count)
        return adli_fail(ADL_EINVAL, "data set: example %zu of %zu", index, set->info.count);
    if (label)
        *label = set->labels[index];
    if (!x)
        return ADL_OK;
    const uint8_t *from = set->pixels + index * adl_dataset_example_size(set);
    for (int c = 0; c < set->info.channels; c++)
        convert(from + (size_t)c * plane(set), set->scale[c], set->offset[c],
                x + (size_t)c * plane(set), plane(set));
    return ADL_OK;
}

adl_status adl_dataset_batch(const adl_dataset *set, const size_t *index, size_t count, float *x,
                             int32_t *label)
{
    for (size_t i = 0; i < count; i++) {
        adl_status status =
            adl_dataset_get(set, index[i], x ? x + i * adl_dataset_example_size(set) : NULL,
                            label ? label + i : NULL);
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

const uint8_t *adl_dataset_pixels(const adl_dataset *set, size_t index)
{
    return index < set->info.count ? set->pixels + index * adl_dataset_example_size(set) : NULL;
}
