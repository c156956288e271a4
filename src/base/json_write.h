/* JSON out, piece by piece into a buffer. Commas come by themselves: a value gets one before it
 * unless it is the first of its list, object or line, which the byte before it tells. */
#ifndef ADLI_JSON_WRITE_H
#define ADLI_JSON_WRITE_H

#include "base/buf.h"

#include <stdbool.h>

/* From here on with a space after each comma and colon, for what people read. */
void adli_jw_spaced(adli_buf *out);
/* bracket: '{' or '['. key, here and below: NULL in a list and at the top. */
void adli_jw_open(adli_buf *out, const char *key, char bracket);
/* bracket: '}' or ']'. */
void adli_jw_close(adli_buf *out, char bracket);

/* NULL is null. */
void adli_jw_text(adli_buf *out, const char *key, const char *text);
/* The shortest decimal that reads back equal; null when it is not finite. */
void adli_jw_number(adli_buf *out, const char *key, double value);
void adli_jw_int(adli_buf *out, const char *key, long long value);
void adli_jw_bool(adli_buf *out, const char *key, bool value);
/* json: a value that is JSON already. */
void adli_jw_raw(adli_buf *out, const char *key, const char *json);

#endif
