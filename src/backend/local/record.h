/* Small files that are there whole or not at all: fields "name=value" with NUL between them and a
 * checksum as the last field. Written under another name, synced and then put in place, so that neither a
 * kill nor a power cut leaves half of one. */
#ifndef ADLI_LOCAL_RECORD_H
#define ADLI_LOCAL_RECORD_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { ADLI_RECORD_MAX_BYTES = 1 << 20 };

/* FNV-1a, 64 bit. */
uint64_t adli_record_sum(const void *data, size_t length);

void adli_record_put(adli_buf *buf, const char *name, const char *value);
void adli_record_put_int(adli_buf *buf, const char *name, int64_t value);

/* Puts the fields in buf into dir/name, durably. exclusive: ESTATE when the file exists already (it is
 * left alone), else it is replaced. */
ADL_MUST adl_status adli_record_write(int dir, const char *name, const adli_buf *buf,
                                      bool exclusive);

/* Appends the fields of dir/name to buf, without the checksum. ENOENT; ECORRUPT: not as written. */
ADL_MUST adl_status adli_record_read(int dir, const char *name, adli_buf *buf);

/* The next field from *at on: its value, or NULL at the end or when its name is another. */
const char *adli_record_next(const adli_buf *buf, size_t *at, const char *name);
ADL_MUST adl_status adli_record_next_int(const adli_buf *buf, size_t *at, const char *name,
                                         int64_t *out);

#endif
