/* Sums of accumulators from a peer: what is accepted packs to bytes that mean the same, and twice is twice. */
#include "train/bundle.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(const adli_bundle *a, const adli_bundle *b)
{
    bool equal = a->late == b->late && a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++)
        equal = strcmp(a->items[i].name, b->items[i].name) == 0 &&
                a->items[i].table.count == b->items[i].table.count;
    return equal;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_bundle once = {0}, again = {0};
    adli_buf packed;
    if (adli_bundle_add(&once, data, size) == ADL_OK) {
        adli_bundle_pack(&once, &packed);
        if (adli_buf_check(&packed) != ADL_OK ||
            adli_bundle_add(&again, packed.data, packed.length) != ADL_OK || !same(&once, &again))
            abort();
        if (adli_bundle_add(&again, packed.data, packed.length) != ADL_OK || !same(&once, &again))
            abort();
        adli_buf_fini(&packed);
    }
    adli_bundle_fini(&again);
    adli_bundle_fini(&once);
    return 0;
}
