/* Answers as gzip, for clients over TCP that say they read it: JSON with thousands of jobs shrinks to a tenth. Whoever comes
 * through the Unix socket is on this machine, where copying is cheaper. What is larger than a page is sent as it is: an event
 * thread must not compute for long. */
#include "httpd/impl.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

enum { LEAST = 1024, MOST = 1 << 20, GZIP_WINDOW = 15 + 16, MEM_LEVEL = 8 };

/* "gzip" or "*" in the list, and not with q=0. */
bool adli_accepts_gzip(const char *accept)
{
    while (accept && *accept) {
        accept += strspn(accept, " \t,");
        size_t length = strcspn(accept, ",");
        size_t word = strcspn(accept, " \t;,");
        bool named =
            (word == 4 && strncasecmp(accept, "gzip", 4) == 0) || (word == 1 && accept[0] == '*');
        const char *q = named ? memmem(accept, length, "q=", 2) : NULL;
        if (named)
            return !q || strtod(q + 2, NULL) > 0;
        accept += length;
    }
    return false;
}

static bool squeeze(const char *in, size_t size, adli_buf *out)
{
    z_stream z = {0};
    if (deflateInit2(&z, 1, Z_DEFLATED, GZIP_WINDOW, MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    size_t bound = deflateBound(&z, size);
    out->data = adli_calloc(bound, 1);
    z.next_in = (unsigned char *)in;
    z.avail_in = (unsigned)size;
    z.next_out = (unsigned char *)out->data;
    z.avail_out = (unsigned)bound;
    bool done = out->data && deflate(&z, Z_FINISH) == Z_STREAM_END && z.total_out < size;
    out->length = z.total_out;
    deflateEnd(&z);
    return done;
}

void adli_request_squeeze(adli_httpd_request *request)
{
    if (!request->conn->door->tcp || request->size < LEAST || request->size > MOST ||
        !request->content_type || strcmp(request->content_type, "application/json") != 0)
        return;
    adli_httpd_set_header(request, "Vary", "Accept-Encoding");
    adli_buf out = {0};
    if (adli_accepts_gzip(adli_httpd_header(request, "Accept-Encoding")) &&
        squeeze(request->text ? request->text->data : request->bytes, (size_t)request->size,
                &out)) {
        free(request->bytes);
        adli_shared_drop(request->text);
        request->text = NULL;
        request->answer = ANSWER_BYTES;
        request->bytes = out.data;
        request->size = (int64_t)out.length;
        adli_httpd_set_header(request, "Content-Encoding", "gzip");
        out.data = NULL;
    }
    free(out.data);
}
