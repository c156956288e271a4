/* How does the libmicrohttpd that this process runs with keep the head of a request? It may be another one than it was
 * compiled with. So a few heads are sent through it, from a socket pair, before the first client comes: if the walk of head.c
 * takes the clean one and none of the dirty ones, it is what is used. Otherwise the library may be strict by itself:
 * then it refuses the dirty ones. If it is neither, a connection serves one request and is closed, so that whatever was hidden
 * behind a request is never read as another one. */
#include "httpd/impl.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct probe {
    adli_head head;
    bool seen, clean; /* the library took it; the walk did */
} probe;

static atomic_int trust = HEAD_ONCE;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool tried;

static void *on_uri(void *user, const char *uri, struct MHD_Connection *mhd)
{
    probe *p = user;
    (void)mhd;
    p->head.uri = uri;
    p->head.uri_length = strlen(uri);
    return p;
}

static enum MHD_Result on_access(void *user, struct MHD_Connection *mhd, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_size, void **context)
{
    probe *p = user;
    (void)url, (void)upload, (void)upload_size, (void)context;
    p->head.mhd = mhd;
    p->head.method = method;
    p->head.version = version;
    p->seen = true;
    p->clean = adli_head_clean(&p->head);
    return MHD_NO;
}

/* False: it could not be tried. */
static bool try_head(const char *text, size_t size, probe *p)
{
    enum { TURNS = 16 };
    struct sockaddr_un nobody = {.sun_family = AF_UNIX};
    int ends[2];
    *p = (probe){0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return false;
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_access, p,
                         MHD_OPTION_URI_LOG_CALLBACK, on_uri, p, ADLI_STRICTNESS, MHD_OPTION_END);
    bool good = daemon && write(ends[1], text, size) == (ssize_t)size;
    if (!daemon)
        close(ends[0]);
    else /* the descriptor is the daemon's from here on, whatever comes */
        good = MHD_add_connection(daemon, ends[0], (const struct sockaddr *)&nobody,
                                  sizeof nobody) == MHD_YES &&
               good;
    for (int i = 0; i < TURNS && good && !p->seen; i++)
        good = MHD_run(daemon) == MHD_YES;
    if (daemon)
        MHD_stop_daemon(daemon);
    close(ends[1]);
    return good;
}

void adli_head_learn(void)
{
    static const char clean[] = "GET /a?b HTTP/1.1\r\nHost: a\r\nX:  b\r\nY:\r\n\r\n";
    static const struct {
        const char *text;
        size_t size;
    } dirty[] = {
#define DIRTY(text) {text, sizeof text - 1}
        DIRTY("GET / HTTP/1.1\nHost: a\r\n\r\n"),
        DIRTY("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        DIRTY("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
    };
    probe p;
    pthread_mutex_lock(&lock);
    bool good = !tried && try_head(clean, sizeof clean - 1, &p) && p.seen;
    if (good) {
        bool walked = p.clean, strict = true;
        for (size_t i = 0; i < ADLI_COUNT(dirty) && good; i++) {
            good = try_head(dirty[i].text, dirty[i].size, &p);
            walked &= !(p.seen && p.clean);
            strict &= !p.seen;
        }
        if (good)
            atomic_store(&trust, walked ? HEAD_WALK : strict ? HEAD_STRICT : HEAD_ONCE);
        tried = good;
    }
    pthread_mutex_unlock(&lock);
}

head_trust adli_head_trust(void)
{
    return (head_trust)atomic_load(&trust);
}

void adli_head_assume(head_trust assumed)
{
    atomic_store(&trust, assumed);
}
