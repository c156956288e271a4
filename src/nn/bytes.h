/* Little-endian bytes in and out for checkpoints. A reader never passes its end: it remembers that it
 * would have, and gives zeros. */
#ifndef ADLI_NN_BYTES_H
#define ADLI_NN_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored as they lie in memory");

static inline char *adli_put(char *at, const void *data, size_t bytes)
{
    if (bytes)
        memcpy(at, data, bytes);
    return at + bytes;
}

static inline char *adli_put_u64(char *at, uint64_t value)
{
    return adli_put(at, &value, sizeof value);
}

static inline char *adli_put_double(char *at, double value)
{
    return adli_put(at, &value, sizeof value);
}

typedef struct adli_reader {
    const char *at;
    size_t left;
    bool short_of; /* something was asked for past the end */
} adli_reader;

/* The next bytes, or NULL. */
static inline const char *adli_take(adli_reader *reader, size_t bytes)
{
    if (bytes > reader->left) {
        reader->short_of = true;
        reader->left = 0;
        return NULL;
    }
    const char *at = reader->at;
    reader->at += bytes;
    reader->left -= bytes;
    return at;
}

static inline uint64_t adli_take_u64(adli_reader *reader)
{
    uint64_t value = 0;
    const char *at = adli_take(reader, sizeof value);
    if (at)
        memcpy(&value, at, sizeof value);
    return value;
}

static inline double adli_take_double(adli_reader *reader)
{
    double value = 0;
    const char *at = adli_take(reader, sizeof value);
    if (at)
        memcpy(&value, at, sizeof value);
    return value;
}

#endif
