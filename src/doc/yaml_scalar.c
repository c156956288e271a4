/* Tag resolution of the core schema (YAML 1.2.2, section 10.3.2), word for word. */
#include "doc/yaml_scalar.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_digits(const char *at)
{
    return at + strspn(at, "0123456789");
}

static bool is_integer(const char *text)
{
    const char *first = text + (*text == '-' || *text == '+'), *end = skip_digits(first);
    return end > first && *end == '\0';
}

/* [-+]? ( . digits | digits [ . digits? ] ) [ (e|E) [-+]? digits ] */
static bool is_float(const char *text)
{
    const char *at = text + (*text == '-' || *text == '+');
    const char *whole = skip_digits(at);
    const char *part = *whole == '.' ? skip_digits(whole + 1) : whole;
    if (whole == at && part <= whole + 1)
        return false;
    if (*part == 'e' || *part == 'E') {
        const char *digits = part + 1 + (part[1] == '-' || part[1] == '+');
        part = skip_digits(digits);
        if (part == digits)
            return false;
    }
    return *part == '\0';
}

static bool is_special(const char *text)
{
    static const char *const words[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    bool sign = *text == '-' || *text == '+';
    for (size_t i = 0; i < ADLI_COUNT(words); i++)
        if (strcmp(text + (sign && i < 3), words[i]) == 0)
            return true;
    return false;
}

static adli_scalar integer_of(const char *text, int base, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, base);
    *out = value;
    return errno == ERANGE ? ADLI_SCALAR_RANGE : ADLI_SCALAR_INT;
}

adli_scalar adli_yaml_resolve(const char *text, int64_t *integer, double *real)
{
    static const struct {
        const char *text;
        adli_scalar kind;
    } words[] = {
        {"", ADLI_SCALAR_NULL},       {"~", ADLI_SCALAR_NULL},     {"null", ADLI_SCALAR_NULL},
        {"Null", ADLI_SCALAR_NULL},   {"NULL", ADLI_SCALAR_NULL},  {"true", ADLI_SCALAR_TRUE},
        {"True", ADLI_SCALAR_TRUE},   {"TRUE", ADLI_SCALAR_TRUE},  {"false", ADLI_SCALAR_FALSE},
        {"False", ADLI_SCALAR_FALSE}, {"FALSE", ADLI_SCALAR_FALSE}};
    for (size_t i = 0; i < ADLI_COUNT(words); i++)
        if (strcmp(text, words[i].text) == 0)
            return words[i].kind;
    if (is_integer(text))
        return integer_of(text, 10, integer);
    if (text[0] == '0' && text[1] == 'x' && text[2] &&
        text[2 + strspn(text + 2, "0123456789abcdefABCDEF")] == '\0')
        return integer_of(text + 2, 16, integer);
    if (text[0] == '0' && text[1] == 'o' && text[2] &&
        text[2 + strspn(text + 2, "01234567")] == '\0')
        return integer_of(text + 2, 8, integer);
    if (is_float(text)) {
        *real = strtod(text, NULL);
        return isfinite(*real) ? ADLI_SCALAR_FLOAT : ADLI_SCALAR_RANGE;
    }
    return is_special(text) ? ADLI_SCALAR_RANGE : ADLI_SCALAR_TEXT;
}
