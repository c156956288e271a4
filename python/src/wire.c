#include "wire.h"

#include <string.h>

adl_status adlpy_wire_begin(const void *data, size_t length, adli_reader *out)
{
    *out = adli_reader_over(data, length);
    if (adli_get(out, 1) != ADLPY_WIRE_VERSION)
        return adli_fail(ADL_EINVAL, "a peer sent a value of another format");
    return ADL_OK;
}

static adl_status complete(const adli_reader *reader)
{
    if (reader->bad)
        return adli_fail(ADL_EINVAL, "a peer sent a value that ends too early");
    return ADL_OK;
}

static adl_status take_bytes(adli_reader *reader, uint64_t length, adlpy_token *out)
{
    out->data = adli_get_bytes(reader, (size_t)length);
    out->length = (size_t)length;
    return complete(reader);
}

/* Of a class; the instance's data follows as one item. */
static adl_status take_name(adli_reader *reader, adlpy_token *out)
{
    adl_status status = take_bytes(reader, adli_get_u64(reader), out);
    out->count = 1;
    if (adli_reader_left(reader) == 0)
        reader->bad = true;
    return status == ADL_OK ? complete(reader) : status;
}

int adlpy_wire_element(char kind, int bytes)
{
    switch (kind) {
    case 'b':
        return bytes == 1;
    case 'i':
    case 'u':
        return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    case 'f':
        return bytes == 2 || bytes == 4 || bytes == 8;
    case 'c':
        return bytes == 8 || bytes == 16;
    }
    return 0;
}

static adl_status take_array(adli_reader *reader, adlpy_token *out)
{
    out->kind = (char)adli_get(reader, 1);
    out->item_bytes = (int)adli_get(reader, 1);
    out->dims = (int)adli_get(reader, 1);
    if (reader->bad)
        return complete(reader);
    if (!adlpy_wire_element(out->kind, out->item_bytes) || out->dims > ADLPY_WIRE_DIMS)
        return adli_fail(ADL_EINVAL, "a peer sent an array of an unknown type");
    uint64_t total = (uint64_t)out->item_bytes;
    for (int i = 0; i < out->dims; i++) {
        out->shape[i] = adli_get_u64(reader);
        if (out->shape[i] > INT64_MAX || __builtin_mul_overflow(total, out->shape[i], &total))
            return adli_fail(ADL_EINVAL, "a peer sent an array that is too large");
    }
    return take_bytes(reader, total, out);
}

adl_status adlpy_wire_next(adli_reader *reader, adlpy_token *out)
{
    *out = (adlpy_token){0};
    out->tag = (char)adli_get(reader, 1);
    if (reader->bad)
        return complete(reader);
    switch (out->tag) {
    case 'N':
    case 'T':
    case 'F':
        return ADL_OK;
    case 'i':
        out->integer = (int64_t)adli_get_u64(reader);
        return complete(reader);
    case 'd':
        out->real = adli_get_double(reader);
        return complete(reader);
    case 'c':
        out->real = adli_get_double(reader);
        out->imaginary = adli_get_double(reader);
        return complete(reader);
    case 'I':
    case 's':
    case 'b':
    case 'y':
        return take_bytes(reader, adli_get_u64(reader), out);
    case 'o':
        return take_name(reader, out);
    case 'l':
    case 't':
    case 'S':
    case 'Z':
    case 'm':
        out->count = adli_get_u64(reader);
        /* Each item has a tag, so a count beyond what is left is a lie. */
        if (out->count > adli_reader_left(reader) / (out->tag == 'm' ? 2 : 1))
            reader->bad = true;
        return complete(reader);
    case 'a':
    case 'g':
    case 'u':
        return take_array(reader, out);
    }
    return adli_fail(ADL_EINVAL, "a peer sent a value of an unknown kind (%d)", out->tag);
}

adl_status adlpy_wire_end(const adli_reader *reader)
{
    size_t left = adli_reader_left(reader);
    return left ? adli_fail(ADL_EINVAL, "a peer sent %zu bytes after a value", left) : ADL_OK;
}

void adlpy_wire_u64(adli_buf *out, uint64_t value)
{
    uint8_t bytes[8];
    adli_put_u64(bytes, value);
    adli_buf_append(out, bytes, sizeof bytes);
}
