/* Votes of a step boundary from a peer: what is accepted encodes to the same bytes again and can be told. */
#include "train/vote.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_vote vote;
    uint8_t again[ADLI_VOTE_MAX];
    if (adli_vote_parse(data, size, &vote) != ADL_OK)
        return 0;
    if (adli_vote_encode(&vote, again) != size || memcmp(again, data, size) != 0)
        abort();
    if ((adli_vote_check(&vote) != ADL_OK) != vote.apart)
        abort();
    return 0;
}
