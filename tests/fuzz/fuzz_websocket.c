/* Bytes of a server that is none: the reader of WebSockets takes them in pieces, and refuses or waits. */
#include "kube/websocket.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_ws_reader reader;
    size_t piece = size > 0 ? (size_t)data[0] % 16 + 1 : 1;
    size_t seen = 0;
    adli_ws_init(&reader);
    for (size_t at = 1; at < size; at += piece) {
        size_t count = size - at < piece ? size - at : piece, length = 0;
        const char *bytes = NULL;
        int opcode = 1;
        adl_status status = adli_ws_feed(&reader, (const char *)data + at, count);
        while (status == ADL_OK && opcode) {
            status = adli_ws_next(&reader, &opcode, &bytes, &length);
            for (size_t i = 0; status == ADL_OK && opcode && i < length; i++)
                seen += (unsigned char)bytes[i]; /* all of it can be read */
        }
        if (status != ADL_OK)
            break;
    }
    if (seen == SIZE_MAX)
        abort(); /* so that nobody leaves the reading out */
    adli_ws_fini(&reader);
    return 0;
}
