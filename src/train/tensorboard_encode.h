/* The bytes of an event file: protobuf messages (only the few that TensorBoard reads) in TFRecord
 * frames. Encoding appends to an adli_buf, which remembers the first failure. */
#ifndef ADLI_TENSORBOARD_ENCODE_H
#define ADLI_TENSORBOARD_ENCODE_H

#include "base/buf.h"

#include <stdint.h>

/* CRC-32C (Castagnoli; RFC 3720, appendix B.4). */
uint32_t adli_crc32c(const void *data, size_t length);
/* TFRecord's: ((crc >> 15) | (crc << 17)) + 0xa282ead8, so that the sum of a record that itself holds
 * sums is not weak. */
uint32_t adli_crc32c_masked(const void *data, size_t length);

/* One field of a message. */
void adli_pb_varint(adli_buf *buf, int field, uint64_t value);
void adli_pb_double(adli_buf *buf, int field, double value);
void adli_pb_float(adli_buf *buf, int field, float value);
void adli_pb_bytes(adli_buf *buf, int field, const void *data, size_t length);
void adli_pb_text(adli_buf *buf, int field, const char *text);
/* A repeated double, packed. */
void adli_pb_doubles(adli_buf *buf, int field, const double *values, size_t count);

/* length (8 bytes), its masked sum, the data, its masked sum. */
void adli_tfrecord(adli_buf *buf, const void *data, size_t length);

#endif
