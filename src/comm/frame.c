#include "comm/frame.h"

#include "adaptdl/allreduce.h"
#include "base/bytes.h"

#include <inttypes.h>

static const uint8_t magic[4] = {'A', 'D', 'L', 'C'};

void adli_frame_header(uint8_t *out, adli_frame_type type, uint64_t generation, uint64_t sequence,
                       size_t length, bool with_mac)
{
    out = adli_put_bytes(out, magic, sizeof magic);
    out = adli_put(out, ADLI_PROTOCOL, 2);
    out = adli_put(out, type, 2);
    out = adli_put(out, generation, 8);
    out = adli_put(out, sequence, 8);
    out = adli_put(out, length, 4);
    adli_put(out, with_mac ? ADLI_MAC_BYTES : 0, 4);
}

/* Refused as early as it can be: one wrong byte of magic is enough. */
static adl_status check_start(const uint8_t *bytes, size_t have)
{
    size_t known = have < sizeof magic ? have : sizeof magic;
    if (known && memcmp(bytes, magic, known) != 0)
        return adli_fail(ADL_ENET, "not our protocol (first byte 0x%02x)", bytes[0]);
    if (have < 6)
        return ADL_OK;
    int version = bytes[4] | bytes[5] << 8;
    if (version != ADLI_PROTOCOL)
        return adli_fail(ADL_EPEER, "protocol version %d, ours is %d", version, ADLI_PROTOCOL);
    return ADL_OK;
}

adl_status adli_frame_parse(const uint8_t *bytes, size_t have, size_t max_payload, adli_frame *out,
                            size_t *need)
{
    *need = ADLI_FRAME_HEADER;
    adl_status status = check_start(bytes, have);
    if (status != ADL_OK || have < ADLI_FRAME_HEADER)
        return status;
    adli_reader reader = adli_reader_over(bytes + 6, ADLI_FRAME_HEADER - 6);
    unsigned type = (unsigned)adli_get(&reader, 2);
    *out = (adli_frame){.type = (adli_frame_type)type};
    out->generation = adli_get(&reader, 8);
    out->sequence = adli_get(&reader, 8);
    out->length = adli_get(&reader, 4);
    out->mac_length = adli_get(&reader, 4);
    if (type < ADLI_HELLO || type >= ADLI_FRAME_TYPES)
        return adli_fail(ADL_ENET, "a frame of unknown type %u", type);
    if (out->length > max_payload)
        return adli_fail(ADL_ENET, "a frame of %zu bytes, the limit is %zu", out->length,
                         max_payload);
    if (out->mac_length != 0 && out->mac_length != ADLI_MAC_BYTES)
        return adli_fail(ADL_ENET, "a frame with a MAC of %zu bytes", out->mac_length);
    out->payload = bytes + ADLI_FRAME_HEADER;
    *need = ADLI_FRAME_HEADER + out->length + out->mac_length;
    return ADL_OK;
}

static adl_status bad_payload(const char *what, size_t length)
{
    return adli_fail(ADL_ENET, "a malformed %s frame of %zu bytes", what, length);
}

void adli_hello_encode(const adli_hello *hello, uint8_t out[ADLI_HELLO_BYTES])
{
    out = adli_put(out, hello->purpose, 1);
    out = adli_put(out, hello->keyed, 1);
    out = adli_put(out, 0, 2);
    out = adli_put(out, hello->rank, 4);
    out = adli_put(out, hello->replicas, 4);
    out = adli_put(out, hello->generation, 8);
    out = adli_put(out, hello->token, 8);
    adli_put_bytes(out, hello->nonce, ADLI_NONCE_BYTES);
}

adl_status adli_hello_parse(const uint8_t *payload, size_t length, adli_hello *out)
{
    if (length != ADLI_HELLO_BYTES)
        return bad_payload("hello", length);
    adli_reader reader = adli_reader_over(payload, length);
    out->purpose = (adli_purpose)adli_get(&reader, 1);
    out->keyed = adli_get(&reader, 1) != 0;
    adli_get(&reader, 2);
    out->rank = (uint32_t)adli_get(&reader, 4);
    out->replicas = (uint32_t)adli_get(&reader, 4);
    out->generation = adli_get(&reader, 8);
    out->token = adli_get(&reader, 8);
    memcpy(out->nonce, adli_get_bytes(&reader, ADLI_NONCE_BYTES), ADLI_NONCE_BYTES);
    return ADL_OK;
}

void adli_text_clean(char *out, size_t size, const void *text, size_t length)
{
    const unsigned char *bytes = text;
    size_t kept = length < size - 1 ? length : size - 1;
    for (size_t i = 0; i < kept; i++)
        out[i] = bytes[i] < 0x20 || bytes[i] == 0x7f ? '?' : (char)bytes[i];
    out[kept] = '\0';
}

size_t adli_failure_encode(const adli_failure *failure, uint8_t out[ADLI_FAILURE_MAX])
{
    size_t text = strlen(failure->text);
    uint8_t *at = adli_put(out, (uint32_t)failure->code, 4);
    at = adli_put(at, (uint32_t)failure->rank, 4);
    adli_put_bytes(at, failure->text, text);
    return 8 + text;
}

adl_status adli_failure_parse(const uint8_t *payload, size_t length, adli_failure *out)
{
    if (length < 8 || length > ADLI_FAILURE_MAX)
        return bad_payload("failure", length);
    adli_reader reader = adli_reader_over(payload, length);
    out->code = (int32_t)(uint32_t)adli_get(&reader, 4);
    out->rank = (int32_t)(uint32_t)adli_get(&reader, 4);
    adli_text_clean(out->text, sizeof out->text, reader.at, adli_reader_left(&reader));
    return ADL_OK;
}

size_t adli_call_encode(const adli_call *call, uint8_t out[ADLI_CALL_MAX])
{
    size_t name = strlen(call->name);
    uint8_t *at = adli_put(out, call->number, 8);
    at = adli_put(at, call->kind, 1);
    at = adli_put(at, call->type, 1);
    at = adli_put(at, call->reduce, 1);
    at = adli_put(at, name, 1);
    at = adli_put(at, call->count, 8);
    adli_put_bytes(at, call->name, name);
    return 20 + name;
}

static bool call_fits(const adli_call *call, size_t value_length)
{
    if (call->kind < ADLI_CALL_ALLREDUCE || call->kind > ADLI_CALL_BARRIER)
        return false;
    if (call->kind == ADLI_CALL_BARRIER)
        return value_length == 0;
    if (call->kind != ADLI_CALL_ALLREDUCE)
        return true;
    size_t element = call->type == ADL_TYPE_BYTES ? 1 : 8;
    return call->type <= ADL_TYPE_BYTES && call->reduce <= ADL_REDUCE_FIRST &&
           value_length % element == 0 && call->count == value_length / element;
}

adl_status adli_call_parse(const uint8_t *payload, size_t length, adli_call *out,
                           const uint8_t **value, size_t *value_length)
{
    adli_reader reader = adli_reader_over(payload, length);
    *out = (adli_call){.number = adli_get(&reader, 8)};
    out->kind = (adli_call_kind)adli_get(&reader, 1);
    out->type = (uint8_t)adli_get(&reader, 1);
    out->reduce = (uint8_t)adli_get(&reader, 1);
    size_t name_length = adli_get(&reader, 1);
    out->count = adli_get(&reader, 8);
    const uint8_t *name = adli_get_bytes(&reader, name_length);
    if (reader.bad || name_length > ADLI_NAME_MAX)
        return bad_payload("call", length);
    adli_text_clean(out->name, sizeof out->name, name, name_length);
    *value = reader.at;
    *value_length = adli_reader_left(&reader);
    return call_fits(out, *value_length) ? ADL_OK : bad_payload("call", length);
}

void adli_result_encode(const adli_result *result, uint8_t out[ADLI_RESULT_HEAD])
{
    adli_put(adli_put(out, result->number, 8), (uint32_t)result->status, 4);
}

adl_status adli_result_parse(const uint8_t *payload, size_t length, adli_result *out)
{
    adli_reader reader = adli_reader_over(payload, length);
    out->number = adli_get(&reader, 8);
    out->status = (int32_t)(uint32_t)adli_get(&reader, 4);
    if (reader.bad || out->status > 0 || out->status < ADL_EINTR)
        return bad_payload("result", length);
    out->value = reader.at;
    out->length = adli_reader_left(&reader);
    return ADL_OK;
}

void adli_bucket_encode(const adli_bucket_head *head, uint8_t out[ADLI_BUCKET_BYTES])
{
    out = adli_put(out, head->number, 8);
    out = adli_put(out, head->elements, 8);
    adli_put(out, head->extra_count, 4);
}

adl_status adli_bucket_parse(const uint8_t *payload, size_t length, adli_bucket_head *out)
{
    if (length != ADLI_BUCKET_BYTES)
        return bad_payload("bucket", length);
    adli_reader reader = adli_reader_over(payload, length);
    out->number = adli_get(&reader, 8);
    out->elements = adli_get(&reader, 8);
    out->extra_count = (uint32_t)adli_get(&reader, 4);
    return ADL_OK;
}
