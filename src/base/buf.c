#include "base/buf.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void adli_buf_init(adli_buf *buf, size_t max)
{
    *buf = (adli_buf){.max = max};
}

void adli_buf_fini(adli_buf *buf)
{
    free(buf->data);
    *buf = (adli_buf){0};
}

void adli_buf_clear(adli_buf *buf)
{
    buf->length = 0;
    buf->status = ADL_OK;
    if (buf->data)
        buf->data[0] = '\0';
}

/* Makes room for `more` bytes and a NUL; 0 when there is. */
static int reserve(adli_buf *buf, size_t more)
{
    if (buf->status != ADL_OK)
        return -1;
    if (more > buf->max || buf->length > buf->max - more ||
        adli_grow(&buf->data, &buf->capacity, buf->length + more + 1, 1) != 0) {
        buf->status = ADL_ENOMEM;
        return -1;
    }
    return 0;
}

void adli_buf_append(adli_buf *buf, const void *data, size_t length)
{
    if (reserve(buf, length) != 0)
        return;
    if (length)
        memcpy(buf->data + buf->length, data, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
}

void adli_buf_puts(adli_buf *buf, const char *text)
{
    adli_buf_append(buf, text, strlen(text));
}

void adli_buf_printf(adli_buf *buf, const char *format, ...)
{
    va_list args, again;
    size_t room = buf->status == ADL_OK && buf->capacity ? buf->capacity - buf->length : 0;
    if (room > buf->max - buf->length + 1)
        room = buf->max - buf->length + 1;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(room ? buf->data + buf->length : NULL, room, format, args);
    va_end(args);
    if (length < 0) {
        buf->status = ADL_EINVAL;
    } else if ((size_t)length < room) {
        buf->length += (size_t)length;
    } else if (reserve(buf, (size_t)length) == 0) {
        vsnprintf(buf->data + buf->length, (size_t)length + 1, format, again);
        buf->length += (size_t)length;
    } else if (room) {
        buf->data[buf->length] = '\0';
    }
    va_end(again);
}

void adli_buf_double(adli_buf *buf, double value)
{
    if (!isfinite(value)) {
        adli_buf_puts(buf, "null");
        return;
    }
    if (value == 0 && signbit(value)) { /* "-0" is read as an integer, which has no sign then */
        adli_buf_puts(buf, "-0.0");
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(long long)value) {
        adli_buf_printf(buf, "%lld", (long long)value); /* what %.15g gives, sooner */
        return;
    }
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    adli_buf_puts(buf, text);
}

void adli_buf_json(adli_buf *buf, const char *text)
{
    adli_buf_puts(buf, "\"");
    for (const char *at = text; *at;) {
        const char *plain = at;
        while (*at && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
            at++;
        adli_buf_append(buf, plain, (size_t)(at - plain));
        if (*at == '"' || *at == '\\')
            adli_buf_printf(buf, "\\%c", *at++);
        else if (*at)
            adli_buf_printf(buf, "\\u%04x", (unsigned char)*at++);
    }
    adli_buf_puts(buf, "\"");
}

adl_status adli_buf_check(const adli_buf *buf)
{
    if (buf->status == ADL_OK)
        return ADL_OK;
    return adli_fail(buf->status, "text would pass %zu bytes, or no memory for it", buf->max);
}
