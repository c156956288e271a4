/* Any bytes as a saved snapshot: an error with a text, or a snapshot that is written, read and written alike. */
#include "adaptdl/snapshot.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *write_down(const adl_record *record)
{
    char *text;
    if (adl_snapshot_write(adl_record_snapshot(record), NULL, NULL, &text) != ADL_OK)
        abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adl_record *record, *again;
    if (adl_record_parse((const char *)data, size, &record) != ADL_OK) {
        if (adl_error()[0] == '\0')
            abort();
        return 0;
    }
    char *first = write_down(record);
    if (adl_record_parse(first, strlen(first), &again) != ADL_OK)
        abort();
    char *second = write_down(again);
    if (strcmp(first, second) != 0)
        abort();
    const adl_snapshot *snapshot = adl_record_snapshot(again);
    int64_t work = (int64_t)snapshot->job_count * (snapshot->node_count + 1);
    for (int j = 0; j < snapshot->job_count; j++)
        work += snapshot->jobs[j].max_replicas;
    if (work < 2000) { /* whatever it says, it is decided */
        char *answer = NULL;
        adl_policy *policy = NULL;
        if (adl_policy_new("rank", &policy) != ADL_OK ||
            adl_decide_text(policy, first, strlen(first), &answer) != ADL_OK)
            abort();
        free(answer);
        adl_policy_free(policy);
    }
    free(first);
    free(second);
    adl_record_free(record);
    adl_record_free(again);
    return 0;
}
