/* What a request line and a few headers say, decoded strictly: path segments, query, credentials, host.
 * Pure functions over strings, so that they can be fuzzed without a server. */
#ifndef ADLI_HTTPD_TARGET_H
#define ADLI_HTTPD_TARGET_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { ADLI_TARGET_SEGMENTS_MAX = 32, ADLI_TARGET_PARAMETERS_MAX = 32, ADLI_TARGET_PARTS_MAX = 4 };

/* Everything points into text. A segment never holds '/', NUL or a control character, and is neither
 * "." nor ".."; all is valid UTF-8. */
typedef struct adli_target {
    char *text;
    char *path; /* decoded, with its slashes: "/dashboard/app.js" */
    int segments, parameters;
    char *segment[ADLI_TARGET_SEGMENTS_MAX];
    size_t segment_at[ADLI_TARGET_SEGMENTS_MAX]; /* where it begins in path */
    char *name[ADLI_TARGET_PARAMETERS_MAX], *value[ADLI_TARGET_PARAMETERS_MAX];
} adli_target;

/* Decodes "/a/b%20c?d=e". EINVAL says what is wrong. Call adli_target_fini whatever the result. */
ADL_MUST adl_status adli_target_parse(adli_target *target, const char *raw);
void adli_target_fini(adli_target *target);
const char *adli_target_query(const adli_target *target, const char *name);

/* Does "/jobs/{}/x" or "/files/" with a final '*' match? parts: what {} and * stand for. */
bool adli_target_match(const adli_target *target, const char *pattern,
                       const char *parts[ADLI_TARGET_PARTS_MAX]);

/* The token in an Authorization header ("Bearer T", or "Basic" with T as password) into out. False:
 * there is none. */
bool adli_target_credentials(const char *header, char *out, size_t size);

/* May this Host header be served? IP addresses, localhost and the names of the list (NULL at the end, or
 * NULL) may: a page of another site whose name was pointed at us may not. */
bool adli_target_host_allowed(const char *host, const char *const *names);
/* Is Origin ("http://h:1") the page's own host? */
bool adli_target_same_origin(const char *origin, const char *host);

/* Replaces, in place, what is not UTF-8 by question marks. */
void adli_target_printable(char *text);

#endif
