/* Any bytes as a replica's report: refused with a text, or kept in a form that reads back, and numbers made
 * of it that are finite or unknown. */
#include "base/json.h"
#include "daemon/core_impl.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(adli_hints_data *hints)
{
    int nodes[] = {0, 0, 1, 1};
    adli_kept_job job = {.hints = *hints};
    job.row.placed = nodes;
    for (job.row.placed_count = 0; job.row.placed_count <= 4; job.row.placed_count++) {
        adli_core_train(&job);
        if (isinf(job.train.throughput) || isinf(job.train.goodput) ||
            job.train.efficiency > 1 + 1e-9)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_hints_data hints, again;
    adli_buf kept;
    adli_buf_init(&kept, 8 << 20);
    if (adli_hints_parse((const char *)data, size, &hints, &kept) == ADL_OK) {
        use(&hints);
        if (adli_hints_parse(kept.data, kept.length, &again, NULL) != ADL_OK)
            abort();
        adli_hints_fini(&again);
        adli_hints_fini(&hints);
    } else if (adl_error()[0] == '\0')
        abort();
    adli_buf_fini(&kept);
    return 0;
}
