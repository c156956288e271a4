/* What libmicrohttpd cannot read it refuses by itself, with a page of HTML, and asks nobody. But it queues that page as any
 * program would, by calling MHD_queue_response, and the dynamic linker gives it the first function of that name: the
 * one below. What comes through there was not queued by us, and goes out as an error in JSON like all others. Where the
 * library does not let itself be overruled (linked with -Bsymbolic) its own page is sent as before. A first line without a
 * blank it does not refuse, but hangs up on. docs/adr/0320. */
#include "httpd/impl.h"

#include <dlfcn.h>
#include <stdio.h>

typedef enum MHD_Result (*queue_function)(struct MHD_Connection *, unsigned, struct MHD_Response *);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static queue_function library_queue;

static void find_queue(void)
{
    *(void **)&library_queue = dlsym(RTLD_NEXT, "MHD_queue_response");
}

enum MHD_Result adli_queue(struct MHD_Connection *mhd, unsigned code, struct MHD_Response *response)
{
    pthread_once(&once, find_queue);
    return library_queue ? library_queue(mhd, code, response) : MHD_NO;
}

static void say_why(const door *d, unsigned code, char *message, size_t size)
{
    int most = d->options.limits.header_bytes;
    switch (code) {
    case MHD_HTTP_CONTENT_TOO_LARGE:
        snprintf(message, size, "the body, or a chunk of it, is larger than any that is read");
        break;
    case MHD_HTTP_URI_TOO_LONG:
        snprintf(message, size, "the request line is too long: at most about %d bytes", most);
        break;
    case MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE:
        snprintf(message, size, "the headers are too large: at most about %d bytes", most);
        break;
    case MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED:
        snprintf(message, size, "only HTTP/1.0 and HTTP/1.1 are understood");
        break;
    case MHD_HTTP_INTERNAL_SERVER_ERROR:
    case MHD_HTTP_SERVICE_UNAVAILABLE:
        snprintf(message, size, "no memory for the request");
        break;
    default:
        snprintf(message, size, "not an HTTP request, or a malformed line, length or chunk in it");
    }
}

/* The same in JSON; NULL: no memory. */
static struct MHD_Response *make_refusal(const conn *c, unsigned code)
{
    char message[128];
    adli_buf text;
    say_why(c->door, code, message, sizeof message);
    adli_error_text(&text, (int)code, message);
    struct MHD_Response *response =
        text.status == ADL_OK
            ? MHD_create_response_from_buffer(text.length, text.data, MHD_RESPMEM_MUST_COPY)
            : NULL;
    adli_buf_fini(&text);
    if (!response)
        return NULL;
    MHD_add_response_header(response, "Content-Type", "application/json");
    MHD_add_response_header(response, "Connection", "close");
    const char *const *extra = c->door->httpd->options.extra;
    for (; extra && extra[0]; extra += 2)
        MHD_add_response_header(response, extra[0], extra[1]);
    return response;
}

/* Called by the library alone. Another program's connections have no conn, and their answers pass. */
__attribute__((visibility("default"))) enum MHD_Result
MHD_queue_response(struct MHD_Connection *mhd, unsigned code, struct MHD_Response *response)
{
    conn *c = adli_conn_of(mhd);
    struct MHD_Response *ours = c && code >= 400 ? make_refusal(c, code) : NULL;
    if (!ours)
        return adli_queue(mhd, code, response);
    enum MHD_Result result = adli_queue(mhd, code, ours);
    MHD_destroy_response(ours);
    adli_conn_counted(c, (int)code);
    return result;
}
