/* A peer that wants to break the decoder of Python values: every token of a message, nested as value.c
 * does it. What is accepted must lie within the message. The half that needs Python is fuzzed by
 * tests/python/test_core_values.py. */
#include "../../python/src/wire.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static adl_status walk(adli_reader *reader, int depth, const uint8_t *begin)
{
    adlpy_token token;
    if (depth > ADLPY_WIRE_DEPTH)
        return adli_fail(ADL_EINVAL, "too deep");
    adl_status status = adlpy_wire_next(reader, &token);
    if (status != ADL_OK)
        return status;
    const uint8_t *bytes = token.data;
    if (bytes &&
        (bytes < begin || bytes > reader->end || token.length > (size_t)(reader->end - bytes)))
        abort();
    uint64_t items = token.tag == 'm' ? 2 * token.count : token.count;
    if (items > adli_reader_left(reader))
        abort();
    for (uint64_t i = 0; i < items && status == ADL_OK; i++)
        status = walk(reader, depth + 1, begin);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_reader reader;
    adl_status status = adlpy_wire_begin(data, size, &reader);
    if (status == ADL_OK)
        status = walk(&reader, 0, data);
    if (status == ADL_OK && (adlpy_wire_end(&reader) == ADL_OK) != (reader.at == reader.end))
        abort();
    return 0;
}
