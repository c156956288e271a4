#include "base/json.h"

#include <math.h>
#include <stdint.h>

adl_status adli_json_parse(const char *text, size_t length, json_t **out)
{
    json_error_t error;
    *out = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return adli_fail(ADL_EINVAL, "not JSON (column %d): %s", error.column, error.text);
    return ADL_OK;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

static adl_status find(const json_t *object, const char *field, const json_t **out)
{
    if (!json_is_object(object))
        return adli_fail(ADL_EINVAL, "expected an object with field \"%s\", got %s", field,
                         object ? type_name(object) : "nothing");
    *out = json_object_get(object, field);
    if (!*out)
        return adli_fail(ADL_EINVAL, "field \"%s\" is missing", field);
    return ADL_OK;
}

adl_status adli_json_number(const json_t *value, const char *name, double *out)
{
    if (!json_is_number(value))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be a number, not %s", name,
                         type_name(value));
    *out = json_number_value(value);
    if (!isfinite(*out))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be finite", name);
    return ADL_OK;
}

adl_status adli_json_double(const json_t *object, const char *field, double *out)
{
    const json_t *value;
    adl_status status = find(object, field, &value);
    return status == ADL_OK ? adli_json_number(value, field, out) : status;
}

adl_status adli_json_int(const json_t *object, const char *field, int low, int high, int *out)
{
    double number;
    adl_status status = adli_json_double(object, field, &number);
    if (status != ADL_OK)
        return status;
    if (number != floor(number) || number < low || number > high)
        return adli_fail(ADL_EINVAL, "field \"%s\" must be a whole number from %d to %d, not %g",
                         field, low, high, number);
    *out = (int)number;
    return ADL_OK;
}

adl_status adli_json_bool(const json_t *object, const char *field, bool *out)
{
    const json_t *value;
    adl_status status = find(object, field, &value);
    if (status != ADL_OK)
        return status;
    if (!json_is_boolean(value))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be true or false, not %s", field,
                         type_name(value));
    *out = json_is_true(value);
    return ADL_OK;
}

adl_status adli_json_array(const json_t *object, const char *field, size_t max, const json_t **out)
{
    adl_status status = find(object, field, out);
    if (status != ADL_OK)
        return status;
    if (!json_is_array(*out))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be an array, not %s", field,
                         type_name(*out));
    if (json_array_size(*out) > max)
        return adli_fail(ADL_EINVAL, "field \"%s\" has %zu elements, at most %zu are allowed",
                         field, json_array_size(*out), max);
    return ADL_OK;
}

adl_status adli_json_doubles(const json_t *object, const char *field, size_t count, double *out)
{
    const json_t *array;
    adl_status status = adli_json_array(object, field, SIZE_MAX, &array);
    if (status != ADL_OK)
        return status;
    if (json_array_size(array) != count)
        return adli_fail(ADL_EINVAL, "field \"%s\" must have %zu numbers, not %zu", field, count,
                         json_array_size(array));
    for (size_t i = 0; i < count && status == ADL_OK; i++)
        status = adli_json_number(json_array_get(array, i), field, &out[i]);
    return status;
}
