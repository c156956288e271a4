/* The head of a request, byte by byte. libmicrohttpd is lenient: a bare LF ends a line, what follows a NUL is not seen,
 * a folded line is glued to the one before. A proxy may read all of these otherwise, and whoever gets a request past
 * it speaks as another client. What the library hands out does not show them, but it points into the head as it came,
 * where only the ends of lines and names were overwritten with NULs: a head without surprises is exactly
 *
 *     METHOD NUL URI NUL VERSION NUL NUL (NAME NUL blanks VALUE NUL NUL)* NUL NUL
 *
 * and anything else is refused. That is how versions up to 0.9.76 of the library keep a head; later ones keep it otherwise,
 * and are strict themselves when asked to be. Which one it is gets tried out (probe.c), not read off a number.
 * docs/adr/0241, 0320. */
#include "httpd/impl.h"

#include <string.h>
#include <strings.h>

typedef struct walk {
    const char *at, *end; /* what comes next; NULL: not as it should be */
    int hosts, lengths, encodings;
    bool coded;         /* in another way than in chunks */
    bool control, name; /* a control character; a bad name */
    bool clean;         /* nothing but that */
} walk;

static bool is_nul(const walk *w, int count)
{
    if (!w->at || w->end - w->at < count)
        return false;
    for (int i = 0; i < count; i++)
        if (w->at[i])
            return false;
    return true;
}

/* A name is a token (RFC 9110, 5.6.2). */
static bool is_name(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 127 || strchr("\"(),/:;<=>?@[\\]{}", c))
            return false;
    }
    return size > 0;
}

static void step_over(walk *w, const char *key, size_t key_size, const char *value,
                      size_t value_size)
{
    if (!w->at)
        return;
    if (key != w->at || w->end - key < (ptrdiff_t)key_size) {
        w->at = NULL;
        return;
    }
    w->at += key_size;
    bool clean = is_nul(w, 1);
    for (w->at += clean; clean && w->at < w->end && (*w->at == ' ' || *w->at == '\t');)
        w->at++;
    if (!clean || (value_size > 0 && value != w->at) || w->end - w->at < (ptrdiff_t)value_size) {
        w->at = NULL;
        return;
    }
    w->at += value_size;
    w->at = is_nul(w, 2) ? w->at + 2 : NULL;
}

static enum MHD_Result note_header(void *user, enum MHD_ValueKind kind, const char *key,
                                   size_t key_size, const char *value, size_t value_size)
{
    walk *w = user;
    (void)kind;
    w->hosts += strcasecmp(key, "Host") == 0;
    w->lengths += strcasecmp(key, "Content-Length") == 0;
    bool encoding = strcasecmp(key, "Transfer-Encoding") == 0;
    w->encodings += encoding;
    w->coded |= encoding && strcasecmp(value ? value : "", "chunked") != 0;
    w->name |= !is_name(key, key_size);
    for (size_t i = 0; i < value_size; i++)
        w->control |= ((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 127;
    step_over(w, key, key_size, value, value_size);
    return MHD_YES;
}

/* The request line, and where the first header is. */
static void begin_walk(const adli_head *head, walk *w)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(head->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *uri = head->method + strlen(head->method) + 1;
    if (!info || head->uri != uri || head->version != uri + head->uri_length + 1)
        return;
    w->end = head->method + info->header_size;
    w->at = head->version + strlen(head->version);
    w->at = is_nul(w, 2) ? w->at + 2 : NULL;
}

static walk walk_over(const adli_head *head)
{
    walk w = {0};
    begin_walk(head, &w);
    MHD_get_connection_values_n(head->mhd, MHD_HEADER_KIND, note_header, &w);
    w.clean = w.at && is_nul(&w, 2) && w.at + 2 == w.end;
    return w;
}

bool adli_head_clean(const adli_head *head)
{
    return walk_over(head).clean;
}

const char *adli_head_wrong(const adli_head *head)
{
    walk w = walk_over(head);
    return w.hosts > 1                                                        ? "more than one Host"
           : w.hosts == 0 && strcmp(head->version, MHD_HTTP_VERSION_1_1) == 0 ? "no Host"
           : w.lengths > 1            ? "more than one Content-Length"
           : w.encodings > 1          ? "more than one Transfer-Encoding"
           : w.lengths && w.encodings ? "both Content-Length and Transfer-Encoding"
           : w.coded                  ? "a Transfer-Encoding that is not chunked"
           : w.encodings && strcmp(head->version, MHD_HTTP_VERSION_1_1) != 0
               ? "a Transfer-Encoding before HTTP/1.1"
           : !is_name(head->method, strlen(head->method)) ? "a method with characters that none has"
           : w.name    ? "a header's name has characters that none has"
           : w.control ? "a control character in the headers"
           : w.clean || adli_head_trust() != HEAD_WALK
               ? NULL
               : "a line of the head that is not ended by CR LF, is folded, or has a NUL";
}
