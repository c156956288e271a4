/* A log of collective calls from rank 0: what is accepted can be told on, and replays as what it was told on as. */
#include "base/status.h"
#include "train/replay.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_replay *log = NULL, *again = NULL;
    size_t length, told_length;
    if (adli_replay_new(&log) != ADL_OK || adli_replay_new(&again) != ADL_OK)
        abort();
    if (adli_replay_take(log, data, size) == ADL_OK) {
        uint8_t *bytes = adli_replay_encode(log, &length);
        if (!bytes || adli_replay_take(again, bytes, length) != ADL_OK)
            abort();
        uint8_t *told = adli_replay_encode(again, &told_length);
        if (!told || told_length != length || memcmp(told, bytes, length) != 0)
            abort();
        free(told);
        free(bytes);
    }
    adli_replay_free(again);
    adli_replay_free(log);
    return 0;
}
