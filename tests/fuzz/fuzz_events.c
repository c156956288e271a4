/* Event files: what is kept is a beginning of the file, all of it is wanted, and of a file that was cut nothing more is. */
#include "train/tensorboard_cut.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const adli_events_from from = {.batch = 100, .epoch = 3}, all = {INT64_MAX, INT64_MAX};
    size_t events, again, every;
    size_t kept = adli_events_wanted(data, size, &from, &events);
    if (kept > size || adli_events_wanted(data, kept, &from, &again) != kept || again != events)
        abort();
    if (adli_events_wanted(data, size, &all, &every) < kept || every < events)
        abort();
    return 0;
}
