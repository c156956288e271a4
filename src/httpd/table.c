/* The connections: who is in, who waits for what, who has had enough time. libmicrohttpd's own time limit
 * is one of silence, which a client that sends a byte a second never meets; here every state has a
 * deadline. What is beyond it gets its socket shut down, which its event thread sees and cleans up. The
 * notification that a connection is closed comes before its descriptor is, so a descriptor in the list is
 * always ours to shut down. */
#include "httpd/impl.h"

#include "base/mem.h"

#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <xxhash.h>

static const double REAP_EVERY_S = 1, PROBE_EVERY_S = 2, TICK_MIN_S = 0.02;
static const double BYTES_PER_S_MIN = 16384;
enum { LEAVING_MAX = 64 };

uint64_t adli_client_hash(const struct sockaddr *address)
{
    const unsigned char *bytes;
    size_t length;
    if (address && address->sa_family == AF_INET) {
        bytes = (const unsigned char *)&((const struct sockaddr_in *)address)->sin_addr;
        length = 4;
    } else if (address && address->sa_family == AF_INET6) {
        bytes = (const unsigned char *)&((const struct sockaddr_in6 *)address)->sin6_addr;
        length = 8;
    } else {
        return 0;
    }
    uint64_t hash = XXH3_64bits(bytes, length);
    return hash ? hash : 1;
}

adl_status adli_conn_add(door *d, struct MHD_Connection *mhd, conn **out)
{
    adli_httpd *httpd = d->httpd;
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *address =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    conn *c = *out = adli_calloc(1, sizeof *c);
    if (!c)
        return adli_fail_memory("connection");
    c->door = d;
    c->mhd = mhd;
    c->fd = fd ? fd->connect_fd : -1;
    c->known = !d->tcp;
    c->client = d->tcp && address ? adli_client_hash(address->client_addr) : 0;
    c->since_s = adli_monotonic_s();
    c->request.conn = c;
    c->request.body_fd = c->request.fd = -1;
    pthread_mutex_lock(&httpd->lock);
    c->next = httpd->first;
    if (c->next)
        c->next->prev = c;
    httpd->first = c;
    d->open++;
    httpd->counters.accepted++;
    pthread_mutex_unlock(&httpd->lock);
    return ADL_OK;
}

static void unlink_waiter(adli_httpd *httpd, conn *c)
{
    if (c->wait_prev)
        c->wait_prev->wait_next = c->wait_next;
    else
        httpd->wait_first = c->wait_next;
    if (c->wait_next)
        c->wait_next->wait_prev = c->wait_prev;
    c->wait_prev = c->wait_next = NULL;
}

void adli_conn_remove(conn *c)
{
    adli_httpd *httpd = c->door->httpd;
    pthread_mutex_lock(&httpd->lock);
    if (c->suspended)
        unlink_waiter(httpd, c);
    if (c->prev)
        c->prev->next = c->next;
    else
        httpd->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->door->open--;
    pthread_mutex_unlock(&httpd->lock);
    adli_request_reset(&c->request);
    free(c);
}

/* Under lock. */
static void resume(adli_httpd *httpd, conn *c)
{
    unlink_waiter(httpd, c);
    c->suspended = false;
    c->since_s = adli_monotonic_s();
    c->moved = 0;
    MHD_resume_connection(c->mhd);
}

/* Under lock. */
static void doom(adli_httpd *httpd, conn *c)
{
    if (c->doomed || c->state == CONN_WORK)
        return;
    c->doomed = true;
    shutdown(c->fd, SHUT_RDWR);
    if (c->suspended)
        resume(httpd, c);
}

/* Who gives way to a newcomer? A stranger (nobody knows what it will send, if anything) before a client with
 * a token, which is only disturbed between two requests. Among equals the one that has waited longest. */
static bool gives_way(const conn *c)
{
    switch (c->state) {
    case CONN_IDLE:
    case CONN_HEADERS:
        return true;
    case CONN_BODY:
    case CONN_ANSWER:
        return !c->known;
    case CONN_WORK:
    case CONN_POLL:
    case CONN_STREAM:
        break;
    }
    return false;
}

static bool before(const conn *c, const conn *other)
{
    return !other || (c->known != other->known ? !c->known : c->since_s <= other->since_s);
}

/* Room for one more among the door's connections, or those of one client (not 0)? Under lock. */
static bool make_room(door *d, uint64_t client, int most)
{
    int open = 0, doomed = 0;
    conn *first = NULL;
    for (conn *c = d->httpd->first; c; c = c->next) {
        if (c->door != d || (client && c->client != client))
            continue;
        open++;
        doomed += c->doomed;
        if (!c->doomed && gives_way(c) && before(c, first))
            first = c;
    }
    /* Those on their way out hold descriptors until their event threads get to them; a few too many are tolerated
     * meanwhile. */
    if (open < most || (open - doomed < most && doomed <= LEAVING_MAX))
        return true;
    if (!first || doomed >= LEAVING_MAX)
        return false;
    doom(d->httpd, first);
    d->httpd->counters.evicted++;
    return true;
}

bool adli_conn_admit(door *d, uint64_t client)
{
    adli_httpd *httpd = d->httpd;
    const adli_httpd_limits *limits = &d->options.limits;
    int per_ip = limits->connections_per_ip;
    pthread_mutex_lock(&httpd->lock);
    bool admit = !client || per_ip <= 0 || d->open < per_ip || make_room(d, client, per_ip);
    if (admit && d->open >= limits->connections)
        admit = make_room(d, 0, limits->connections);
    httpd->counters.refused += !admit;
    pthread_mutex_unlock(&httpd->lock);
    return admit;
}

void adli_conn_known(conn *c)
{
    pthread_mutex_lock(&c->door->httpd->lock);
    c->known = true;
    pthread_mutex_unlock(&c->door->httpd->lock);
}

void adli_conn_state(conn *c, conn_state state, int64_t moved)
{
    adli_httpd *httpd = c->door->httpd;
    double now_s = adli_monotonic_s();
    pthread_mutex_lock(&httpd->lock);
    c->state = state;
    c->since_s = now_s;
    c->moved = moved;
    pthread_mutex_unlock(&httpd->lock);
}

void adli_conn_moved(conn *c, int64_t bytes)
{
    pthread_mutex_lock(&c->door->httpd->lock);
    c->moved += bytes;
    pthread_mutex_unlock(&c->door->httpd->lock);
}

void adli_conn_counted(conn *c, int code)
{
    pthread_mutex_lock(&c->door->httpd->lock);
    c->door->httpd->counters.by_class[code / 100 % CODE_CLASSES]++;
    pthread_mutex_unlock(&c->door->httpd->lock);
}

uint64_t adli_httpd_generation(adli_httpd *httpd)
{
    pthread_mutex_lock(&httpd->lock);
    uint64_t generation = httpd->generation;
    pthread_mutex_unlock(&httpd->lock);
    return generation;
}

bool adli_conn_doomed(conn *c)
{
    pthread_mutex_lock(&c->door->httpd->lock);
    bool doomed = c->doomed;
    pthread_mutex_unlock(&c->door->httpd->lock);
    return doomed;
}

bool adli_conn_wait(conn *c, conn_state state, uint64_t generation, double again_s)
{
    adli_httpd *httpd = c->door->httpd;
    pthread_mutex_lock(&httpd->lock);
    bool waits = httpd->generation == generation && !c->doomed && !atomic_load(&httpd->ending);
    if (waits) {
        c->state = state;
        c->suspended = true;
        c->again_s = again_s;
        c->wait_next = httpd->wait_first;
        if (c->wait_next)
            c->wait_next->wait_prev = c;
        httpd->wait_first = c;
        MHD_suspend_connection(c->mhd);
        if (again_s < httpd->tick_s)
            pthread_cond_signal(&httpd->tick);
    }
    pthread_mutex_unlock(&httpd->lock);
    return waits;
}

void adli_httpd_wake(adli_httpd *httpd)
{
    pthread_mutex_lock(&httpd->lock);
    httpd->generation++;
    while (httpd->wait_first)
        resume(httpd, httpd->wait_first);
    pthread_mutex_unlock(&httpd->lock);
}

static double deadline_s(const conn *c)
{
    const adli_httpd_limits *limits = &c->door->options.limits;
    double by_size_s = limits->body_s + (double)c->moved / BYTES_PER_S_MIN;
    switch (c->state) {
    case CONN_IDLE:
        return c->since_s + limits->idle_s;
    case CONN_HEADERS:
        return c->since_s + limits->header_s;
    case CONN_BODY:
    case CONN_ANSWER:
        return c->since_s + by_size_s;
    case CONN_STREAM:
        if (c->suspended)
            return INFINITY;
        return c->since_s + (c->request.stream.live ? limits->catch_up_s : by_size_s);
    case CONN_WORK:
    case CONN_POLL:
        break;
    }
    return INFINITY;
}

/* Under lock. */
static void reap(adli_httpd *httpd, double now_s)
{
    for (conn *c = httpd->first; c; c = c->next)
        if (!c->doomed && now_s > deadline_s(c)) {
            doom(httpd, c);
            httpd->counters.timed_out++;
        }
}

/* A suspended connection is not watched by its event thread: one whose client has hung up would be kept
 * until there is something to send. A client that has closed only its sending side gets ordinary answers,
 * but no stream and no long poll. Under lock. */
static void probe(adli_httpd *httpd)
{
    for (conn *next, *c = httpd->wait_first; c; c = next) {
        struct pollfd look = {c->fd, POLLRDHUP, 0};
        next = c->wait_next;
        if (poll(&look, 1, 0) > 0)
            doom(httpd, c);
    }
}

/* Resumes those whose time has come; when the next one's comes. Under lock. */
static double resume_due(adli_httpd *httpd, double now_s)
{
    double first_s = INFINITY;
    for (conn *next, *c = httpd->wait_first; c; c = next) {
        next = c->wait_next;
        if (c->again_s <= now_s)
            resume(httpd, c);
        else
            first_s = fmin(first_s, c->again_s);
    }
    return first_s;
}

void *adli_httpd_tick(void *user)
{
    adli_httpd *httpd = user;
    double reap_s = 0, probe_s = 0;
    pthread_mutex_lock(&httpd->lock);
    while (!httpd->halted) {
        double now_s = adli_monotonic_s();
        double next_s = resume_due(httpd, now_s);
        if (now_s >= reap_s) {
            reap(httpd, now_s);
            reap_s = now_s + REAP_EVERY_S;
        }
        if (now_s >= probe_s) {
            probe(httpd);
            probe_s = now_s + PROBE_EVERY_S;
        }
        httpd->tick_s = fmax(fmin(next_s, reap_s), now_s + TICK_MIN_S);
        struct timespec until = {(time_t)httpd->tick_s,
                                 (long)((httpd->tick_s - floor(httpd->tick_s)) * 1e9)};
        pthread_cond_timedwait(&httpd->tick, &httpd->lock, &until);
    }
    pthread_mutex_unlock(&httpd->lock);
    return NULL;
}

void adli_httpd_drain(adli_httpd *httpd, double seconds)
{
    double until_s = adli_monotonic_s() + seconds;
    for (bool busy = true; busy && adli_monotonic_s() < until_s;) {
        busy = false;
        pthread_mutex_lock(&httpd->lock);
        for (const conn *c = httpd->first; c; c = c->next)
            busy |= c->state != CONN_IDLE && !c->doomed;
        pthread_mutex_unlock(&httpd->lock);
        struct timespec pause = {0, 5000000};
        if (busy)
            nanosleep(&pause, NULL);
    }
    pthread_mutex_lock(&httpd->lock);
    for (conn *c = httpd->first; c; c = c->next)
        doom(httpd, c);
    pthread_mutex_unlock(&httpd->lock);
}
