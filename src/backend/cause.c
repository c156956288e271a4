/* Causes by name. Apart from backend.c: keepers, which are small, need only this. */
#include "backend/backend.h"

#include "base/mem.h"

#include <string.h>

/* As they are in results and in the API. */
static const char *const causes[] = {
    [ADLI_CAUSE_NONE] = "",
    [ADLI_CAUSE_KILLED] = "Killed",
    [ADLI_CAUSE_SILENT] = "Silent",
    [ADLI_CAUSE_NODE_LOST] = "NodeLost",
    [ADLI_CAUSE_LOST] = "Lost",
    [ADLI_CAUSE_OUT_OF_RESOURCES] = "OutOfResources",
    [ADLI_CAUSE_EVICTED] = "Evicted",
    [ADLI_CAUSE_OOM_KILLED] = "OOMKilled",
    [ADLI_CAUSE_CANNOT_RUN] = "CannotRun",
};

const char *adli_cause_name(adli_cause cause)
{
    return causes[cause];
}

adli_cause adli_cause_named(const char *name)
{
    for (size_t i = 0; i < ADLI_COUNT(causes); i++)
        if (strcmp(causes[i], name) == 0)
            return (adli_cause)i;
    return ADLI_CAUSE_NONE;
}
