/* Protobuf's wire format and TFRecord's framing, as far as event files need them: a dependency on
 * either library would be larger than this. */
#include "train/tensorboard_encode.h"

#include "base/bytes.h"

#include <string.h>

/* Four bits at a time: events are tens of bytes long, and 16 numbers can be checked by eye. The entry
 * i is the CRC of the nibble i, polynomial 0x82f63b78 (reflected). */
static const uint32_t nibbles[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t adli_crc32c(const void *data, size_t length)
{
    const unsigned char *at = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < length; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ nibbles[crc & 15];
        crc = (crc >> 4) ^ nibbles[crc & 15];
    }
    return ~crc;
}

uint32_t adli_crc32c_masked(const void *data, size_t length)
{
    uint32_t crc = adli_crc32c(data, length);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put_le(adli_buf *buf, uint64_t value, int bytes)
{
    uint8_t out[8];
    adli_put(out, value, bytes);
    adli_buf_append(buf, out, (size_t)bytes);
}

static void put_varint(adli_buf *buf, uint64_t value)
{
    unsigned char out[10];
    size_t length = 0;
    do {
        out[length++] = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
    adli_buf_append(buf, out, length);
}

/* Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes. */
static void put_key(adli_buf *buf, int field, int wire_type)
{
    put_varint(buf, (uint64_t)field << 3 | (uint64_t)wire_type);
}

void adli_pb_varint(adli_buf *buf, int field, uint64_t value)
{
    put_key(buf, field, 0);
    put_varint(buf, value);
}

static void put_double(adli_buf *buf, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_le(buf, bits, 8);
}

void adli_pb_double(adli_buf *buf, int field, double value)
{
    put_key(buf, field, 1);
    put_double(buf, value);
}

void adli_pb_float(adli_buf *buf, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(buf, field, 5);
    put_le(buf, bits, 4);
}

void adli_pb_bytes(adli_buf *buf, int field, const void *data, size_t length)
{
    put_key(buf, field, 2);
    put_varint(buf, length);
    adli_buf_append(buf, data, length);
}

void adli_pb_text(adli_buf *buf, int field, const char *text)
{
    adli_pb_bytes(buf, field, text, strlen(text));
}

void adli_pb_doubles(adli_buf *buf, int field, const double *values, size_t count)
{
    put_key(buf, field, 2);
    put_varint(buf, 8 * count);
    for (size_t i = 0; i < count; i++)
        put_double(buf, values[i]);
}

void adli_tfrecord(adli_buf *buf, const void *data, size_t length)
{
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    adli_buf_append(buf, prefix, sizeof prefix);
    put_le(buf, adli_crc32c_masked(prefix, sizeof prefix), 4);
    adli_buf_append(buf, data, length);
    put_le(buf, adli_crc32c_masked(data, length), 4);
}
