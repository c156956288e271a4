/* Watches: all objects of a kind, page by page, then every change of them as a line of a stream that never
 * ends. A stream that breaks is taken up where it was, by the version of the last change or bookmark; when
 * the server does not remember that far back (410) all objects are listed again. */
#include "kube/impl.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 500, PAGE_S = 60, STREAM_S = 290, BODY_MAX = 64 << 20, TEXT_MAX = 4096 };

struct adli_kube_watch {
    adli_kube *kube;
    char *path, *query;
    adli_kube_watch_ops ops;
    void *user;
    adli_transfer transfer;
    bool listing, begun;
    char version[64]; /* of the last that was told */
    adli_buf next;    /* where the next page begins; "" at the first */
    adli_buf text;    /* a page, or the line that is not whole yet */
    int page;         /* objects to a page */
    bool gone;        /* the version is too old */
    bool broken;      /* what came is no event */
    int failures;
    adli_kube_watch_stats stats;
};

static void set_version(adli_kube_watch *watch, const json_t *metadata)
{
    const char *version = json_string_value(json_object_get(metadata, "resourceVersion"));
    if (version && strlen(version) < sizeof watch->version)
        strcpy(watch->version, version);
}

static void begin_next(adli_kube_watch *watch, double in_s);

static void tell_trouble(adli_kube_watch *watch, int code, const char *failure)
{
    char text[300];
    if (code && code != 200)
        snprintf(text, sizeof text, "%s: HTTP %d", watch->path, code);
    else
        snprintf(text, sizeof text, "%s: %.200s", watch->path, failure);
    watch->stats.failures++;
    if (watch->ops.trouble)
        watch->ops.trouble(watch->user, text);
}

/* ---- reading ---- */

/* A whole number that no integer of ours holds becomes one with an exponent, which is never longer. */
static char *soften_number(char *at)
{
    char *end = at + (*at == '-'), small[32];
    while (isdigit((unsigned char)*end))
        end++;
    errno = 0;
    strtoll(at, NULL, 10);
    if (errno != ERANGE || *end == '.' || *end == 'e' || *end == 'E') {
        while (isalnum((unsigned char)*end) || *end == '.' || *end == '+' || *end == '-')
            end++;
        return end;
    }
    double value = strtod(at, NULL);
    if (value > 1e300 || value < -1e300)
        value = value > 0 ? 1e300 : -1e300;
    int length = snprintf(small, sizeof small, "%.9e", value);
    memcpy(at, small, (size_t)length);
    memset(at + length, ' ', (size_t)(end - at - length));
    return end;
}

/* Objects of others may hold what is JSON and yet nothing to our parser: NUL in a text, integers without end. One of
 * them must not hide all the rest. */
static void soften(char *text)
{
    bool quoted = false;
    for (char *at = text; *at;) {
        if (quoted && at[0] == '\\' && at[1]) {
            if (strncmp(at + 1, "u0000", 5) == 0)
                memcpy(at + 1, "ufffd", 5);
            at += 2;
        } else if (!quoted && (*at == '-' || isdigit((unsigned char)*at)))
            at = soften_number(at);
        else {
            quoted ^= *at == '"';
            at++;
        }
    }
}

static bool parse(char *text, size_t length, json_t **out)
{
    if (adli_json_parse(text, length, out) == ADL_OK)
        return true;
    soften(text);
    return adli_json_parse(text, length, out) == ADL_OK;
}

/* ---- pages ---- */

static void list_again(adli_kube_watch *watch)
{
    watch->listing = true;
    watch->begun = watch->gone = false;
    watch->version[0] = 0;
    adli_buf_clear(&watch->next);
}

static bool take_page(adli_kube_watch *watch)
{
    json_t *root = NULL;
    size_t i;
    const json_t *item;
    if (!watch->text.data || !parse(watch->text.data, watch->text.length, &root) ||
        !json_is_array(json_object_get(root, "items"))) {
        json_decref(root);
        return false;
    }
    if (!watch->begun)
        watch->ops.begin(watch->user);
    watch->begun = true;
    const json_t *metadata = json_object_get(root, "metadata"),
                 *items = json_object_get(root, "items");
    json_array_foreach(items, i, item)
    {
        watch->ops.object(watch->user, item, false);
    }
    const char *next = json_string_value(json_object_get(metadata, "continue"));
    adli_buf_clear(&watch->next);
    if (next)
        adli_buf_puts(&watch->next, next);
    if (watch->next.status != ADL_OK) { /* without it this would look like the last page */
        list_again(watch);
        json_decref(root);
        return false;
    }
    if (watch->next.length == 0) {
        set_version(watch, metadata);
        watch->listing = false;
        watch->begun = false;
        watch->stats.lists++;
        watch->ops.complete(watch->user);
    }
    json_decref(root);
    return true;
}

static void page_done(adli_kube_watch *watch, int code, const char *failure, double retry_s)
{
    if (code == 200 && watch->text.status == ADL_OK && take_page(watch)) {
        watch->failures = 0;
        begin_next(watch, 0);
        return;
    }
    bool fits = watch->text.status == ADL_OK;
    if (code == 410) /* the pages took too long */
        list_again(watch);
    if (!fits && watch->page > 1)
        watch->page /= 2;
    tell_trouble(watch, code,
                 !fits         ? "a page is too long"
                 : code == 200 ? "the list is not readable"
                               : failure);
    begin_next(watch, adli_kube_pause_s(watch->kube, watch->failures++, retry_s));
}

/* ---- the stream ---- */

static void take_error(adli_kube_watch *watch, const json_t *status)
{
    const char *message = json_string_value(json_object_get(status, "message"));
    if (json_integer_value(json_object_get(status, "code")) == 410)
        watch->gone = true;
    else
        tell_trouble(watch, 0, message ? message : "an error without words");
    watch->broken = true;
}

static void take_line(adli_kube_watch *watch, char *line, size_t length)
{
    json_t *root = NULL;
    if (length == 0)
        return;
    if (!parse(line, length, &root)) {
        watch->broken = true;
        return;
    }
    const char *type = json_string_value(json_object_get(root, "type"));
    const json_t *object = json_object_get(root, "object");
    const json_t *metadata = json_object_get(object, "metadata");
    if (!type || !json_is_object(object))
        watch->broken = true;
    else if (strcmp(type, "ERROR") == 0)
        take_error(watch, object);
    else if (strcmp(type, "BOOKMARK") == 0) {
        watch->stats.bookmarks++;
        set_version(watch, metadata);
    } else {
        watch->stats.events++;
        watch->ops.object(watch->user, object, strcmp(type, "DELETED") == 0);
        set_version(watch, metadata);
    }
    if (!watch->broken)
        watch->failures = 0;
    json_decref(root);
}

static bool on_data(adli_transfer *transfer, const char *bytes, size_t count)
{
    adli_kube_watch *watch = transfer->user;
    long code = 0;
    curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &code);
    if (watch->listing || code != 200) {
        adli_buf_append(&watch->text, bytes, count);
        return watch->text.status == ADL_OK;
    }
    while (count > 0 && !watch->broken) {
        const char *end = memchr(bytes, '\n', count);
        size_t part = end ? (size_t)(end - bytes) : count;
        adli_buf_append(&watch->text, bytes, part);
        if (watch->text.status != ADL_OK)
            return false;
        if (end) {
            take_line(watch, watch->text.data, watch->text.length);
            adli_buf_clear(&watch->text);
        }
        bytes += part + (end != NULL);
        count -= part + (end != NULL);
    }
    return !watch->broken;
}

static void stream_done(adli_kube_watch *watch, int code, const char *failure, double retry_s)
{
    bool gone = watch->gone || code == 410;
    bool ended = !gone && !watch->broken && code == 200; /* as it does every few minutes */
    if (ended) {
        begin_next(watch, 0);
        return;
    }
    if (gone)
        list_again(watch);
    else
        tell_trouble(watch, code, watch->broken ? "the stream is not readable" : failure);
    begin_next(watch, adli_kube_pause_s(watch->kube, watch->failures++, retry_s));
}

static void on_done(adli_transfer *transfer, int code, const char *failure, double retry_s)
{
    adli_kube_watch *watch = transfer->user;
    if (watch->listing)
        page_done(watch, code, failure, retry_s);
    else
        stream_done(watch, code, failure, retry_s);
}

/* ---- what is asked ---- */

static void put_query(adli_kube_watch *watch, adli_buf *out)
{
    adli_buf_printf(out, "%s?%s%s", watch->path, watch->query, *watch->query ? "&" : "");
    if (!watch->listing) {
        adli_buf_printf(out,
                        "watch=1&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%s",
                        STREAM_S, watch->version);
        return;
    }
    adli_buf_printf(out, "limit=%d", watch->page);
    if (watch->next.length > 0) {
        char *safe = curl_easy_escape(NULL, watch->next.data, (int)watch->next.length);
        adli_buf_printf(out, "&continue=%s", safe ? safe : "");
        curl_free(safe);
    }
}

static void begin_next(adli_kube_watch *watch, double in_s)
{
    adli_buf path;
    char *url = NULL;
    adli_buf_init(&path, 64 << 10);
    put_query(watch, &path);
    if (adli_buf_check(&path) == ADL_OK && adli_kube_url(watch->kube, path.data, &url) == ADL_OK) {
        free(watch->transfer.url);
        watch->transfer.url = url;
    } else
        in_s = 1; /* no memory: the request before is made again, and answered alike */
    adli_buf_fini(&path);
    adli_buf_clear(&watch->text);
    watch->text.status = ADL_OK;
    watch->gone = watch->broken = false;
    watch->transfer.limit_s = watch->listing ? PAGE_S : STREAM_S + 30;
    watch->stats.watches += !watch->listing;
    adli_kube_begin(watch->kube, &watch->transfer, in_s);
}

adl_status adli_kube_watch_new(adli_kube *kube, const char *path, const char *query,
                               const adli_kube_watch_ops *ops, void *user, adli_kube_watch **out)
{
    *out = NULL;
    adli_kube_watch *watch = adli_calloc(1, sizeof *watch);
    if (!watch)
        return adli_fail_memory("watch");
    *watch = (adli_kube_watch){.kube = kube,
                               .path = adli_strdup(path),
                               .query = adli_strdup(query),
                               .ops = *ops,
                               .user = user,
                               .page = PAGE,
                               .listing = true};
    watch->transfer =
        (adli_transfer){.method = "GET", .data = on_data, .done = on_done, .user = watch};
    adli_buf_init(&watch->next, TEXT_MAX);
    adli_buf_init(&watch->text, BODY_MAX);
    adl_status status = watch->path && watch->query ? adli_kube_url(kube, "", &watch->transfer.url)
                                                    : adli_fail_memory("watch");
    if (status != ADL_OK) {
        adli_kube_watch_free(watch);
        return status;
    }
    pthread_mutex_lock(&kube->lock);
    begin_next(watch, 0);
    pthread_mutex_unlock(&kube->lock);
    *out = watch;
    return ADL_OK;
}

void adli_kube_watch_free(adli_kube_watch *watch)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->kube->lock);
    adli_kube_drop(watch->kube, &watch->transfer);
    pthread_mutex_unlock(&watch->kube->lock);
    adli_buf_fini(&watch->next);
    adli_buf_fini(&watch->text);
    free(watch->transfer.url);
    free(watch->path);
    free(watch->query);
    free(watch);
}

adli_kube_watch_stats adli_kube_watch_look(adli_kube_watch *watch)
{
    pthread_mutex_lock(&watch->kube->lock);
    adli_kube_watch_stats stats = watch->stats;
    pthread_mutex_unlock(&watch->kube->lock);
    return stats;
}
