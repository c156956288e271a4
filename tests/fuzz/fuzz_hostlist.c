/* Slurm's lists of machines from arbitrary bytes: a name that fits, or an error. */
#include "train/env.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char host[64];
    char *list = malloc(size + 1);
    if (!list)
        abort();
    if (size > 0)
        memcpy(list, data, size);
    list[size] = '\0';
    if (adli_env_first_host(list, host, sizeof host) == ADL_OK) {
        if (host[0] == '\0' || strlen(host) >= sizeof host || strpbrk(host, "[]"))
            abort();
    } else if (adl_error()[0] == '\0') {
        abort();
    }
    free(list);
    return 0;
}
