/* A job as the one text that stands for it: JSON without spaces, keys sorted, every number as the
 * shortest decimal that reads back equal. It is what the daemon stores and reads again, so nothing
 * may change on the way. */
#include "jobspec/canonical.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static adl_status write_object(const json_t *object, adli_buf *out)
{
    size_t count = json_object_size(object), i = 0;
    const char **keys = adli_calloc(count, sizeof *keys);
    if (!keys)
        return adli_fail_memory("a job as JSON");
    for (void *iter = json_object_iter((json_t *)object); iter;
         iter = json_object_iter_next((json_t *)object, iter))
        keys[i++] = json_object_iter_key(iter);
    qsort(keys, count, sizeof *keys, compare_keys);
    adl_status status = ADL_OK;
    adli_buf_puts(out, "{");
    for (i = 0; i < count && status == ADL_OK; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_buf_json(out, keys[i]);
        adli_buf_puts(out, ":");
        status = adli_canonical(json_object_get(object, keys[i]), out);
    }
    adli_buf_puts(out, "}");
    free(keys);
    return status;
}

static adl_status write_array(const json_t *array, adli_buf *out)
{
    adl_status status = ADL_OK;
    adli_buf_puts(out, "[");
    for (size_t i = 0; i < json_array_size(array) && status == ADL_OK; i++) {
        adli_buf_puts(out, i ? "," : "");
        status = adli_canonical(json_array_get(array, i), out);
    }
    adli_buf_puts(out, "]");
    return status;
}

static void write_real(double value, adli_buf *out)
{
    size_t start = out->length;
    adli_buf_double(out, value);
    if (out->status == ADL_OK && !strpbrk(out->data + start, ".e"))
        adli_buf_puts(out, ".0"); /* or it would read back as an integer */
}

adl_status adli_canonical(const json_t *value, adli_buf *out)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return write_object(value, out);
    case JSON_ARRAY:
        return write_array(value, out);
    case JSON_STRING:
        adli_buf_json(out, json_string_value(value));
        break;
    case JSON_INTEGER:
        adli_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        write_real(json_real_value(value), out);
        break;
    case JSON_TRUE:
        adli_buf_puts(out, "true");
        break;
    case JSON_FALSE:
        adli_buf_puts(out, "false");
        break;
    case JSON_NULL:
        adli_buf_puts(out, "null");
        break;
    }
    return adli_buf_check(out);
}
