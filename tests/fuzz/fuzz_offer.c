/* Offers of another world, from rank 0: what is accepted makes sense and encodes to the same bytes again. */
#include "base/status.h"
#include "train/regroup.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_offer offer;
    size_t length;
    if (adli_offer_parse(data, size, &offer) != ADL_OK)
        return 0;
    uint8_t *again = adli_offer_encode(&offer, &length);
    if (!again || length != size || memcmp(again, data, size) != 0)
        abort();
    bool first = false;
    for (int i = 0; i < offer.count; i++) {
        if (offer.ranks[i] < -1 || offer.ranks[i] >= offer.world.replicas)
            abort();
        first |= offer.ranks[i] == 0;
    }
    if (!first)
        abort();
    free(again);
    adli_offer_fini(&offer);
    return 0;
}
