/* Workload files from arbitrary bytes: any input gives a workload or an error, nothing else. */
#include "sim/trace.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static adli_traces traces;
    if (traces.count == 0 && adli_traces_load("examples/traces", &traces) != ADL_OK)
        abort();
    adli_workload workload;
    if (adli_workload_parse("fuzz.csv", (const char *)data, size, &traces, &workload) == ADL_OK) {
        if (workload.count < 1 || !workload.name)
            abort();
        adli_workload_fini(&workload);
    } else if (adl_error()[0] == '\0') {
        abort();
    }
    return 0;
}
