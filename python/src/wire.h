/* Values on the wire: a tag, then what the tag needs. Plain data only, by design: whatever a peer sends
 * becomes a number, a text or a container of those, or an error; nothing in it names code. Values of other classes
 * are plain data under a name, which the receiver looks up among the classes that it knows (adaptdl._values). This half
 * knows bytes, value.c knows Python; so this one can be fuzzed alone.
 *
 *   value  = 'N' | 'T' | 'F'                 None, True, False
 *          | 'i' int64                       8 bytes, as all numbers little-endian
 *          | 'I' size bytes                  an integer of any size, two's complement
 *          | 'd' float64 | 'c' float64 float64
 *          | 's' size UTF-8 | 'b' size bytes | 'y' size bytes      str, bytes, bytearray
 *          | 'l' count value*  | 't' count value*                  list, tuple
 *          | 'S' count value*  | 'Z' count value*                  set, frozenset
 *          | 'm' count (value value)*                              dict
 *          | 'a' array | 'g' array | 'u' array      NumPy array, NumPy scalar, torch tensor
 *          | 'o' size UTF-8 value                                   an instance of the class of that name
 *   array  = kind itemsize ndim dims data    one byte each, then ndim sizes, then the elements
 *   size, count, dims = uint64
 *   message = 0x01 value                     the first byte is the format's version
 *
 * Containers are nested at most ADLPY_WIRE_DEPTH deep. */
#ifndef ADLPY_WIRE_H
#define ADLPY_WIRE_H

#include "base/buf.h"
#include "base/bytes.h"

#include <stdint.h>

enum { ADLPY_WIRE_VERSION = 1, ADLPY_WIRE_DEPTH = 64, ADLPY_WIRE_DIMS = 32 };

typedef struct adlpy_token {
    char tag;
    int64_t integer;
    double real, imaginary;
    const void *data; /* of texts, bytes, names, big integers and arrays; in the message */
    size_t length;
    uint64_t count; /* of items, pairs of a dict */
    char kind;      /* of an array: b, i, u, f, c */
    int item_bytes, dims;
    uint64_t shape[ADLPY_WIRE_DIMS];
} adlpy_token;

/* Starts reading a message. EINVAL: another version, or nothing at all. */
ADL_MUST adl_status adlpy_wire_begin(const void *data, size_t length, adli_reader *out);
/* The next token. A container's items follow as tokens of their own; there are at least `count` bytes
 * left for them. EINVAL: not a value. */
ADL_MUST adl_status adlpy_wire_next(adli_reader *reader, adlpy_token *out);
/* EINVAL when something is left. */
ADL_MUST adl_status adlpy_wire_end(const adli_reader *reader);

/* A size, a count, or the bits of a number. */
void adlpy_wire_u64(adli_buf *out, uint64_t value);
/* Is kind and item_bytes an element type that NumPy and we know? */
int adlpy_wire_element(char kind, int item_bytes);

#endif
