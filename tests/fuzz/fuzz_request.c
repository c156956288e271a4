/* Requests to start a replica from arbitrary bytes: a program with everything around it, or an error. */
#include "launch/remote.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_request request;
    char head[ADLI_REQUEST_HEAD + 1] = "";
    if (size > 0)
        memcpy(head, data, size < sizeof head ? size : sizeof head - 1);
    if (adli_request_length(head) > ADLI_REQUEST_MAX)
        abort();
    char *bytes = malloc(size ? size : 1); /* exactly so long, for the sanitizer to see */
    if (!bytes)
        abort();
    if (size > 0)
        memcpy(bytes, data, size);
    if (adli_request_parse(bytes, size, &request) == ADL_OK) {
        if (!request.argv[0] || !*request.argv[0] || !request.directory || request.local_count < 1)
            abort();
        adli_request_fini(&request);
    } else if (adl_error()[0] == '\0') {
        abort();
    }
    free(bytes);
    return 0;
}
