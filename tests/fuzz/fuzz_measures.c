/* Any bytes as metrics of a job, from a replica or a checkpoint: refused with a text, or written in a form that reads
 * back the same. */
#include "measures/measures.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_measures report, again;
    bool has_last;
    adli_buf first, second;
    adli_buf_init(&first, ADLI_MEASURES_BYTES);
    adli_buf_init(&second, ADLI_MEASURES_BYTES);
    if (adli_measures_parse((const char *)data, size, &report, &has_last) == ADL_OK) {
        if (adli_measures_json(&report, NULL, report.count, &first) != ADL_OK ||
            adli_measures_parse(first.data, first.length, &again, &has_last) != ADL_OK ||
            adli_measures_json(&again, NULL, again.count, &second) != ADL_OK ||
            strcmp(first.data, second.data) != 0)
            abort();
        adli_measures_fini(&again);
        adli_measures_fini(&report);
    } else if (adl_error()[0] == '\0')
        abort();
    adli_buf_fini(&second);
    adli_buf_fini(&first);
    return 0;
}
