/* A stream of frames from someone who wants to break us: every parser of frame.h, frame by frame, as a
 * connection would call them, and what was parsed must encode to the same bytes again. */
#include "comm/call.h"
#include "comm/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const void *a, const void *b, size_t length)
{
    if (memcmp(a, b, length) != 0)
        abort();
}

static void parse_payload(const adli_frame *frame)
{
    const uint8_t *payload = frame->payload, *value;
    size_t length = frame->length, value_length;
    union {
        adli_hello hello;
        adli_failure failure;
        adli_call call;
        adli_result result;
        adli_bucket_head bucket;
    } out;
    uint8_t again[ADLI_FAILURE_MAX];
    char text[ADLI_CALL_TEXT];
    if (adli_hello_parse(payload, length, &out.hello) == ADL_OK) {
        adli_hello_encode(&out.hello, again);
        same(again + 4, payload + 4, length - 4); /* before that: a flag and two bytes to spare */
    }
    if (adli_failure_parse(payload, length, &out.failure) == ADL_OK) {
        if (strlen(out.failure.text) > ADLI_TEXT_MAX || strpbrk(out.failure.text, "\n\r\x1b"))
            abort();
        if (adli_failure_encode(&out.failure, again) > length)
            abort();
    }
    if (adli_call_parse(payload, length, &out.call, &value, &value_length) == ADL_OK) {
        if (value < payload || value + value_length != payload + length)
            abort();
        adli_call_text(&out.call, text);
        if (adli_call_encode(&out.call, again) > length)
            abort();
    }
    if (adli_result_parse(payload, length, &out.result) == ADL_OK) {
        adli_result_encode(&out.result, again);
        same(again, payload, ADLI_RESULT_HEAD);
    }
    if (adli_bucket_parse(payload, length, &out.bucket) == ADL_OK) {
        adli_bucket_encode(&out.bucket, again);
        same(again, payload, ADLI_BUCKET_BYTES);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    while (at < size) {
        adli_frame frame;
        size_t need;
        adl_status status = adli_frame_parse(data + at, size - at, 1 << 16, &frame, &need);
        if (status != ADL_OK)
            return 0;
        if (need > size - at) {
            if (need > ADLI_FRAME_HEADER + (1 << 16) + ADLI_MAC_BYTES)
                abort();
            return 0;
        }
        uint8_t header[ADLI_FRAME_HEADER];
        adli_frame_header(header, frame.type, frame.generation, frame.sequence, frame.length,
                          frame.mac_length != 0);
        same(header, data + at, sizeof header);
        parse_payload(&frame);
        at += need;
    }
    return 0;
}
