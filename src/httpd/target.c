#include "httpd/target.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_clean(const char *text)
{
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return false;
    return adli_utf8_valid(text);
}

void adli_target_printable(char *text)
{
    for (char *at = text; *at;) {
        size_t length = adli_utf8_decode(at, 4, NULL);
        if (length == 0)
            *at = '?';
        at += length ? length : 1;
    }
}

/* %XX in place. False: bad escapes, control characters, not UTF-8. */
static bool decode(char *text, bool plus_is_space)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        if (*in == '%') {
            int high = hex_digit(in[1]), low = high < 0 ? -1 : hex_digit(in[2]);
            if (low < 0 || (high == 0 && low == 0))
                return false;
            *out++ = (char)(high * 16 + low);
            in += 2;
        } else {
            *out++ = plus_is_space && *in == '+' ? ' ' : *in;
        }
    }
    *out = '\0';
    return is_clean(text);
}

static adl_status parse_path(adli_target *url, char *raw)
{
    char *out = url->path;
    for (char *next = raw; next;) {
        char *segment = next;
        next = strchr(segment, '/');
        if (next)
            *next++ = '\0';
        if (!decode(segment, false))
            return adli_fail(ADL_EINVAL, "path: bad escape or character");
        if (strchr(segment, '/') || !strcmp(segment, ".") || !strcmp(segment, ".."))
            return adli_fail(ADL_EINVAL, "path: \".\", \"..\" and escaped slashes are not served");
        if (url->segments == ADLI_TARGET_SEGMENTS_MAX)
            return adli_fail(ADL_EINVAL, "path: more than %d segments", ADLI_TARGET_SEGMENTS_MAX);
        *out++ = '/';
        url->segment[url->segments] = segment;
        url->segment_at[url->segments++] = (size_t)(out - url->path);
        out = stpcpy(out, segment);
    }
    if (url->segments == 1 && !*url->segment[0])
        url->segments = 0;
    return ADL_OK;
}

static adl_status parse_query(adli_target *url, char *raw)
{
    for (char *next = raw; next;) {
        char *name = next;
        next = strchr(name, '&');
        if (next)
            *next++ = '\0';
        if (!*name)
            continue;
        if (url->parameters == ADLI_TARGET_PARAMETERS_MAX)
            return adli_fail(ADL_EINVAL, "query: more than %d parameters",
                             ADLI_TARGET_PARAMETERS_MAX);
        char *value = strchr(name, '=');
        if (value)
            *value++ = '\0';
        else
            value = name + strlen(name);
        if (!decode(name, true) || !decode(value, true))
            return adli_fail(ADL_EINVAL, "query: bad escape or character");
        url->name[url->parameters] = name;
        url->value[url->parameters++] = value;
    }
    return ADL_OK;
}

adl_status adli_target_parse(adli_target *url, const char *raw)
{
    size_t length = strlen(raw);
    *url = (adli_target){0};
    if (raw[0] != '/')
        return adli_fail(ADL_EINVAL, "path: does not begin with a slash");
    url->text = adli_calloc(2, length + 1);
    if (!url->text)
        return adli_fail_memory("path");
    memcpy(url->text, raw, length);
    url->path = url->text + length + 1;
    char *query = strchr(url->text, '?');
    if (query)
        *query++ = '\0';
    adl_status status = parse_path(url, url->text + 1);
    return status == ADL_OK ? parse_query(url, query) : status;
}

void adli_target_fini(adli_target *url)
{
    free(url->text);
    *url = (adli_target){0};
}

const char *adli_target_query(const adli_target *url, const char *name)
{
    for (int i = 0; i < url->parameters; i++)
        if (strcmp(url->name[i], name) == 0)
            return url->value[i];
    return NULL;
}

bool adli_target_match(const adli_target *url, const char *pattern,
                       const char *parts[ADLI_TARGET_PARTS_MAX])
{
    int found = 0, i = 0;
    for (int p = 0; p < ADLI_TARGET_PARTS_MAX; p++)
        parts[p] = "";
    for (const char *at = pattern; *at == '/' && at[1]; i++) {
        const char *word = at + 1;
        size_t length = strcspn(word, "/");
        at = word + length;
        if (length == 1 && *word == '*') {
            parts[found] = i < url->segments ? url->path + url->segment_at[i] : "";
            return true;
        }
        if (i == url->segments)
            return false;
        const char *segment = url->segment[i];
        if (length == 2 && memcmp(word, "{}", 2) == 0) {
            if (!*segment || found == ADLI_TARGET_PARTS_MAX - 1)
                return false;
            parts[found++] = segment;
        } else if (strlen(segment) != length || memcmp(segment, word, length) != 0) {
            return false;
        }
    }
    return i == url->segments;
}

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* RFC 4648, padding optional. -1: not base64, or too long. */
static int base64_decode(const char *text, char *out, size_t size)
{
    size_t used = 0;
    uint32_t bits = 0;
    int count = 0;
    for (; *text && *text != '=' && *text != ' '; text++) {
        int digit = base64_digit(*text);
        if (digit < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit;
        count += 6;
        if (count >= 8) {
            count -= 8;
            if (used + 1 >= size)
                return -1;
            out[used++] = (char)(bits >> count);
        }
    }
    if (text[strspn(text, "= ")])
        return -1;
    out[used] = '\0';
    return (int)used;
}

bool adli_target_credentials(const char *header, char *out, size_t size)
{
    if (strncasecmp(header, "Bearer ", 7) == 0) {
        const char *token = header + 7 + strspn(header + 7, " ");
        size_t length = strcspn(token, " ");
        if (length == 0 || length >= size || token[length + strspn(token + length, " ")])
            return false;
        memcpy(out, token, length);
        out[length] = '\0';
        return true;
    }
    if (strncasecmp(header, "Basic ", 6) != 0)
        return false;
    int length = base64_decode(header + 6 + strspn(header + 6, " "), out, size);
    char *colon = length < 0 ? NULL : memchr(out, ':', (size_t)length);
    if (!colon || memchr(out, '\0', (size_t)length))
        return false;
    memmove(out, colon + 1, strlen(colon + 1) + 1);
    return *out != '\0';
}

bool adli_target_host_allowed(const char *host, const char *const *names)
{
    char name[256];
    struct in6_addr address;
    bool bracket = host[0] == '[';
    const char *start = host + bracket;
    size_t length = strcspn(start, bracket ? "]" : ":");
    if (length == 0 || length >= sizeof name || (bracket && start[length] != ']'))
        return false;
    const char *port = start + length + bracket;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")]))
        return false;
    memcpy(name, start, length);
    name[length] = '\0';
    if (bracket)
        return inet_pton(AF_INET6, name, &address) == 1;
    if (inet_pton(AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0)
        return true;
    for (; names && *names; names++)
        if (strcmp(*names, "*") == 0 || strcasecmp(name, *names) == 0)
            return true;
    return false;
}

bool adli_target_same_origin(const char *origin, const char *host)
{
    const char *rest = strncasecmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncasecmp(origin, "https://", 8) == 0 ? origin + 8
                                                                 : NULL;
    return rest && strcasecmp(rest, host) == 0;
}
