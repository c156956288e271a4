#include "base/json_write.h"

#include <string.h>

void adli_jw_spaced(adli_buf *out)
{
    out->spaced = true;
}

static void begin(adli_buf *out, const char *key)
{
    if (out->length > 0 && !strchr("{[:,\n", out->data[out->length - 1]))
        adli_buf_puts(out, out->spaced ? ", " : ",");
    if (!key)
        return;
    adli_buf_json(out, key);
    adli_buf_puts(out, out->spaced ? ": " : ":");
}

void adli_jw_open(adli_buf *out, const char *key, char bracket)
{
    begin(out, key);
    adli_buf_append(out, &bracket, 1);
}

void adli_jw_close(adli_buf *out, char bracket)
{
    adli_buf_append(out, &bracket, 1);
}

void adli_jw_text(adli_buf *out, const char *key, const char *text)
{
    begin(out, key);
    if (text)
        adli_buf_json(out, text);
    else
        adli_buf_puts(out, "null");
}

void adli_jw_number(adli_buf *out, const char *key, double value)
{
    begin(out, key);
    adli_buf_double(out, value);
}

void adli_jw_int(adli_buf *out, const char *key, long long value)
{
    begin(out, key);
    adli_buf_printf(out, "%lld", value);
}

void adli_jw_bool(adli_buf *out, const char *key, bool value)
{
    adli_jw_raw(out, key, value ? "true" : "false");
}

void adli_jw_raw(adli_buf *out, const char *key, const char *json)
{
    begin(out, key);
    adli_buf_puts(out, json);
}
