/* The dashboard's files (web/), embedded in the program so that the daemon is one file and serves the
 * page that belongs to its API. The server hands them out without asking for a token: they hold no data,
 * and it is the page that asks the user for one. */
#ifndef ADLI_WEB_H
#define ADLI_WEB_H

#include <stdbool.h>
#include <stddef.h>

/* The page needs nothing else: no inline script or style, nothing from another host. To be sent as
 * Content-Security-Policy with every file, with X-Content-Type-Options: nosniff, Referrer-Policy:
 * no-referrer and Cache-Control: no-cache (the ETag makes that cheap). */
#define ADLI_WEB_CSP                                                                               \
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "            \
    "object-src 'none'"

typedef struct adli_web_file {
    const unsigned char *data; /* [length] */
    size_t length;
    const char *content_type; /* "text/html; charset=utf-8" */
    const char *etag;         /* with its quotes; changes with every byte of the file */
} adli_web_file;

/* The file that is served at path: "/" is the page (index.html), "/dashboard/NAME" any other file of
 * web/. False, and *out
 * untouched, when there is none; the path is compared, never opened. Everything in *out is static. Any
 * thread, never blocks. */
bool adli_web_asset(const char *path, adli_web_file *out);

#endif
