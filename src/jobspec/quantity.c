/* A quantity is a decimal number times a power of ten or of 1024. The number is kept as its digits
 * with a decimal point: powers of ten move the point, powers of 1024 multiply,
 *   value = (integer + fraction) x 2^b = integer x 2^b + ceil(fraction x 2^b)
 * and the fraction is multiplied digit by digit from the last one, x = (x + digit x 2^b) / 10,
 * remembering whether anything was left over. Every intermediate value fits 128 bits, so nothing is
 * ever rounded but the end. */
#include "jobspec/quantity.h"

#include "adaptdl/policy.h"
#include "doc/doc.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 64, EXPONENT_MAX = 1000 };

typedef unsigned __int128 wide;

typedef struct number {
    char digits[TEXT_MAX]; /* '0' .. '9', without the point */
    int count;
    int point;  /* digits before the point; may be negative or more than count */
    int binary; /* times 2^binary */
} number;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The digits and the point; *text moves past them. False when there are no digits. */
static bool read_digits(const char **text, number *out)
{
    bool point = false;
    for (; is_digit(**text) || (**text == '.' && !point); (*text)++) {
        if (**text == '.')
            point = true;
        else {
            out->digits[out->count++] = **text;
            out->point += !point;
        }
    }
    return out->count > 0;
}

/* e3, E-2: moves the point. */
static bool read_exponent(const char *text, number *out)
{
    bool negative = text[1] == '-';
    text += 1 + (text[1] == '-' || text[1] == '+');
    if (!is_digit(*text))
        return false;
    int exponent = 0;
    for (; is_digit(*text); text++)
        if (exponent <= EXPONENT_MAX) /* beyond that it is too large or next to nothing anyway */
            exponent = exponent * 10 + (*text - '0');
    out->point += negative ? -exponent : exponent;
    return *text == '\0';
}

static bool read_suffix(const char *text, number *out)
{
    static const struct {
        char text[3];
        int ten, two;
    } suffixes[] = {{"", 0, 0},    {"n", -9, 0},  {"u", -6, 0},  {"m", -3, 0},
                    {"k", 3, 0},   {"M", 6, 0},   {"G", 9, 0},   {"T", 12, 0},
                    {"P", 15, 0},  {"E", 18, 0},  {"Ki", 0, 10}, {"Mi", 0, 20},
                    {"Gi", 0, 30}, {"Ti", 0, 40}, {"Pi", 0, 50}, {"Ei", 0, 60}};
    for (size_t i = 0; i < ADLI_COUNT(suffixes); i++) {
        if (strcmp(text, suffixes[i].text) == 0) {
            out->point += suffixes[i].ten;
            out->binary = suffixes[i].two;
            return true;
        }
    }
    return (*text == 'e' || *text == 'E') && read_exponent(text, out);
}

static int digit_at(const number *n, int index)
{
    return index >= 0 && index < n->count ? n->digits[index] - '0' : 0;
}

/* False on overflow. */
static bool evaluate(const number *n, int64_t *out, bool *exact)
{
    wide factor = (wide)1 << n->binary, whole = 0, part = 0;
    bool rest = false;
    int first = 0; /* leading zeros mean nothing, however far the point is to the right */
    while (first < n->count && n->digits[first] == '0')
        first++;
    for (int i = first; first < n->count && i < n->point; i++) {
        whole = whole * 10 + (wide)digit_at(n, i);
        if (whole > INT64_MAX)
            return false;
    }
    for (int i = n->count - 1; i >= n->point; i--) {
        part += (wide)digit_at(n, i) * factor;
        rest |= part % 10 != 0;
        part /= 10;
        if (i < 0 && part == 0)
            break; /* only zeros from here to the point */
    }
    whole = whole * factor + part + rest;
    if (whole > INT64_MAX)
        return false;
    *out = (int64_t)whole;
    *exact = !rest;
    return true;
}

adl_status adli_quantity_parse(const char *text, int scale, int64_t *out, bool *exact)
{
    number n = {0};
    char shown[48];
    bool is_exact = true;
    const char *at = text;
    bool negative = *at == '-';
    if (*at == '-' || *at == '+')
        at++;
    if (strlen(at) >= TEXT_MAX || !read_digits(&at, &n) || !read_suffix(at, &n))
        return adli_fail(ADL_EINVAL, "\"%s\" is not a quantity (such as 2, 500m, 1.5, 8Gi, 2e3)",
                         adli_show(text, shown, sizeof shown));
    n.point += scale;
    if (!evaluate(&n, out, &is_exact))
        return adli_fail(ADL_EINVAL, "quantity \"%s\" is too large",
                         adli_show(text, shown, sizeof shown));
    if (negative && *out != 0)
        return adli_fail(ADL_EINVAL, "quantity \"%s\" is negative",
                         adli_show(text, shown, sizeof shown));
    if (exact)
        *exact = is_exact;
    return ADL_OK;
}

static bool is_size(const char *name)
{
    return strcmp(name, "memory") == 0 || strcmp(name, "ephemeral-storage") == 0 ||
           strncmp(name, "hugepages-", 10) == 0;
}

adl_status adli_resource_parse(const char *name, const char *text, int64_t *out)
{
    bool cpu = strcmp(name, "cpu") == 0, exact;
    adl_status status = adli_quantity_parse(text, cpu ? 3 : 0, out, &exact);
    if (status != ADL_OK)
        return status;
    char shown[48];
    if (!exact && !cpu && !is_size(name))
        return adli_fail(ADL_EINVAL, "\"%s\" must be a whole number",
                         adli_show(text, shown, sizeof shown));
    if (*out > ADL_MAX_AMOUNT)
        return adli_fail(ADL_EINVAL, "quantity \"%s\" is too large",
                         adli_show(text, shown, sizeof shown));
    return ADL_OK;
}

const char *adli_resource_print(const char *name, int64_t amount, char *out, size_t size)
{
    const char *suffix = "";
    static const char binary[][3] = {"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    if (strcmp(name, "cpu") == 0) {
        if (amount % 1000)
            suffix = "m";
        else
            amount /= 1000;
    } else if (is_size(name)) {
        for (size_t i = 0; i < ADLI_COUNT(binary) && amount != 0 && amount % 1024 == 0; i++) {
            amount /= 1024;
            suffix = binary[i];
        }
    }
    snprintf(out, size, "%" PRId64 "%s", amount, suffix);
    return out;
}

/* A domain and a name: "example.com/thing". */
static bool has_domain(const char *name)
{
    const char *slash = strchr(name, '/');
    size_t length = strlen(name);
    if (!slash || slash == name || !slash[1] || strchr(slash + 1, '/') || length > 253)
        return false;
    for (const char *at = name; *at; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || is_digit(*at);
        bool upper = at > slash && *at >= 'A' && *at <= 'Z';
        bool edge = at == name || at[1] == '\0' || at + 1 == slash || at == slash + 1;
        bool inner = *at == '-' || *at == '.' || (at > slash && *at == '_');
        if (at != slash && !letter && !upper && !(inner && !edge))
            return false;
    }
    return true;
}

bool adli_resource_name_valid(const char *name, const char **suggestion)
{
    static const char *const standard[] = {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"};
    if (suggestion)
        *suggestion = NULL;
    for (size_t i = 0; i < ADLI_COUNT(standard); i++)
        if (strcmp(name, standard[i]) == 0)
            return true;
    if (has_domain(name) || (strncmp(name, "hugepages-", 10) == 0 && name[10]))
        return true;
    if (suggestion)
        *suggestion = adli_nearest(name, standard, ADLI_COUNT(standard));
    return false;
}
