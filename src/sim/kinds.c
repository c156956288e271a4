/* Clusters of several device types, from a table. */
#include "sim/simulate.h"

#include "base/csv.h"

#include <string.h>

adl_status adli_sim_kinds_load(const char *path, adli_sim_kind kinds[ADL_MAX_TYPES], int *count)
{
    static const char *const columns[] = {"device_type", "nodes", "gpus"};
    adli_csv csv;
    bool more = false;
    *count = 0;
    adl_status status = adli_csv_open(&csv, path, columns, 3, 3);
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more) {
        const char *type = adli_csv_text(&csv, 0);
        if (*count == ADL_MAX_TYPES) {
            status = adli_csv_fail(&csv, 0, "more than %d device types", ADL_MAX_TYPES);
            break;
        }
        adli_sim_kind *kind = &kinds[*count];
        if (type[0] == '\0' || strlen(type) >= sizeof kind->type || strchr(type, '/'))
            status = adli_csv_fail(&csv, 0, "must have 1 to %zu characters, none of them a slash",
                                   sizeof kind->type - 1);
        for (int i = 0; i < *count && status == ADL_OK; i++)
            if (strcmp(kinds[i].type, type) == 0)
                status = adli_csv_fail(&csv, 0, "\"%s\" is there twice", type);
        if (status == ADL_OK)
            status = adli_csv_int(&csv, 1, 1, 10000, &kind->nodes);
        if (status == ADL_OK)
            status = adli_csv_int(&csv, 2, 1, 64, &kind->gpus);
        if (status == ADL_OK) {
            strcpy(kind->type, type);
            ++*count;
        }
    }
    if (status == ADL_OK && *count == 0)
        status = adli_fail(ADL_EINVAL, "%s: no device types below the header", path);
    adli_csv_close(&csv);
    return status;
}
