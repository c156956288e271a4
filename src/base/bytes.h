/* Little-endian numbers in byte arrays: a writer over storage that is known to be large enough, and a
 * reader that remembers when it ran past the end instead of doing so. */
#ifndef ADLI_BYTES_H
#define ADLI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint8_t *adli_put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static inline uint8_t *adli_put_bytes(uint8_t *at, const void *data, size_t length)
{
    if (length)
        memcpy(at, data, length);
    return at + length;
}

static inline uint8_t *adli_put_u64(uint8_t *at, uint64_t value)
{
    return adli_put(at, value, 8);
}

static inline uint8_t *adli_put_double(uint8_t *at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return adli_put(at, bits, 8);
}

typedef struct adli_reader {
    const uint8_t *at, *end;
    bool bad; /* something was missing; every later value is 0 */
} adli_reader;

static inline adli_reader adli_reader_over(const void *data, size_t length)
{
    const uint8_t *bytes = data;
    return (adli_reader){bytes, bytes + length, false};
}

static inline size_t adli_reader_left(const adli_reader *reader)
{
    return (size_t)(reader->end - reader->at);
}

/* The next bytes in place, or NULL. */
static inline const uint8_t *adli_get_bytes(adli_reader *reader, size_t length)
{
    if (reader->bad || adli_reader_left(reader) < length) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *here = reader->at;
    reader->at += length;
    return here;
}

static inline uint64_t adli_get(adli_reader *reader, int bytes)
{
    const uint8_t *here = adli_get_bytes(reader, (size_t)bytes);
    uint64_t value = 0;
    for (int i = 0; here && i < bytes; i++)
        value |= (uint64_t)here[i] << (8 * i);
    return value;
}

static inline uint64_t adli_get_u64(adli_reader *reader)
{
    return adli_get(reader, 8);
}

static inline double adli_get_double(adli_reader *reader)
{
    uint64_t bits = adli_get(reader, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
