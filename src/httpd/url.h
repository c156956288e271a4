/* What a request line and a few headers say, decoded strictly: path segments, query, credentials, host.
 * Pure functions over strings, so that they can be fuzzed without a server. */
#ifndef ADLI_HTTPD_URL_H
#define ADLI_HTTPD_URL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { ADLI_URL_SEGMENTS_MAX = 32, ADLI_URL_PARAMETERS_MAX = 32, ADLI_URL_PARTS_MAX = 4 };

/* Everything points into text. A segment never holds '/', NUL or a control character, and is neither
 * "." nor ".."; all is valid UTF-8. */
typedef struct adli_url {
    char *text;
    char *path; /* decoded, with its slashes: "/dashboard/app.js" */
    int segments, parameters;
    char *segment[ADLI_URL_SEGMENTS_MAX];
    size_t segment_at[ADLI_URL_SEGMENTS_MAX]; /* where it begins in path */
    char *name[ADLI_URL_PARAMETERS_MAX], *value[ADLI_URL_PARAMETERS_MAX];
} adli_url;

/* Decodes "/a/b%20c?d=e". EINVAL says what is wrong. Call adli_url_fini whatever the result. */
ADL_MUST adl_status adli_url_parse(adli_url *url, const char *raw);
void adli_url_fini(adli_url *url);
const char *adli_url_query(const adli_url *url, const char *name);

/* Does "/jobs/{}/x" or "/files/" with a final '*' match? parts: what {} and * stand for. */
bool adli_url_match(const adli_url *url, const char *pattern,
                    const char *parts[ADLI_URL_PARTS_MAX]);

/* The token in an Authorization header ("Bearer T", or "Basic" with T as password) into out. False:
 * there is none. */
bool adli_url_credentials(const char *header, char *out, size_t size);

/* May this Host header be served? IP addresses, localhost and the names of the list (NULL at the end, or
 * NULL) may: a page of another site whose name was pointed at us may not. */
bool adli_url_host_allowed(const char *host, const char *const *names);
/* Is Origin ("http://h:1") the page's own host? */
bool adli_url_same_origin(const char *origin, const char *host);

/* Replaces, in place, what is not UTF-8 by question marks. */
void adli_url_printable(char *text);

#endif
