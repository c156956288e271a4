/* What the files of the server share. One lock, httpd.lock, guards every connection's place in the lists,
 * its state and times; the request itself belongs to whoever has the connection at the moment: its event
 * thread, or the worker it was handed to while suspended. */
#ifndef ADLI_HTTPD_IMPL_H
#define ADLI_HTTPD_IMPL_H

#include "base/clock.h"
#include "httpd/httpd.h"
#include "httpd/limit.h"
#include "httpd/target.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum { DOORS_MAX = 8, HEADERS_MAX = 8, TOKEN_MAX = 256, CODE_CLASSES = 6 };

/* What is refused by us (head.c) is refused in JSON; versions that keep heads otherwise are asked to be strict. */
#if MHD_VERSION >= 0x00097701
#define ADLI_STRICTNESS MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1
#else
#define ADLI_STRICTNESS MHD_OPTION_STRICT_FOR_CLIENT, 0
#endif

typedef struct door door;
typedef struct conn conn;

typedef enum body_kind { BODY_MEMORY, BODY_FILE, BODY_DROPPED } body_kind;
typedef enum answer_kind {
    ANSWER_NONE,
    ANSWER_BYTES,
    ANSWER_SHARED,
    ANSWER_STATIC,
    ANSWER_FD,
    ANSWER_STREAM
} answer_kind;

struct adli_httpd_request {
    conn *conn;
    const char *method;
    bool begun;      /* the headers were looked at */
    const char *uri; /* as it came, where it came; only until then */
    size_t uri_length;
    adli_target target;
    int refusal_code; /* what is wrong with the target; 0: nothing */
    char refusal[96];
    const char *parts[ADLI_TARGET_PARTS_MAX];
    const adli_httpd_route *route;
    char token[TOKEN_MAX];
    double arrived_s, again_s;
    int64_t memo;

    body_kind body_kind;
    int64_t body_max, body_seen;
    adli_buf body;
    int body_fd;
    char body_path[32];

    answer_kind answer;
    int code;
    const char *content_type;
    char *bytes;       /* owned for ANSWER_BYTES */
    adli_shared *text; /* held for ANSWER_SHARED */
    const void *data;  /* of ANSWER_STATIC and ANSWER_SHARED */
    int fd;
    int64_t offset, size;
    adli_httpd_stream stream;
    adli_buf out; /* of the stream, sent up to out_sent */
    size_t out_sent;
    int header_count;
    char *header_names[HEADERS_MAX], *header_values[HEADERS_MAX];
};

typedef enum conn_state {
    CONN_IDLE,    /* no request */
    CONN_HEADERS, /* a request line was read */
    CONN_BODY,
    CONN_WORK,   /* with a worker, suspended */
    CONN_POLL,   /* a handler waits, suspended */
    CONN_ANSWER, /* an answer of known size is being sent */
    CONN_STREAM,
} conn_state;

struct conn {
    door *door;
    struct MHD_Connection *mhd;
    int fd;
    uint64_t client; /* hash of the address; 0 for Unix sockets */
    conn *prev, *next;
    conn_state state;
    double since_s; /* when the state began; of a stream: when it was last up to date */
    int64_t moved;  /* bytes of the body or the answer since then */
    bool known;     /* showed a valid token, or came through a Unix socket */
    bool doomed;    /* its socket was shut down */
    bool suspended; /* by wait: resumed by wake, time, or doom */
    double again_s;
    conn *wait_prev, *wait_next;
    conn *work_next;
    struct adli_httpd_request request;
};

struct door {
    adli_httpd *httpd;
    adli_httpd_listener options; /* its texts are not kept */
    char **hosts;
    char *socket_path;
    uint64_t socket_device, socket_inode;
    bool tcp, tls;
    struct MHD_Daemon *mhd;
    adli_limit *limit;
    int open; /* connections, under lock */
    atomic_bool started;
    char message[256]; /* libmicrohttpd's reason not to start */
};

typedef struct httpd_counters {
    uint64_t by_class[CODE_CLASSES]; /* 2xx at [2] ... */
    uint64_t accepted, refused, evicted, timed_out, rate_limited;
} httpd_counters;

struct adli_httpd {
    adli_httpd_options options;
    pthread_mutex_t lock;
    pthread_cond_t tick; /* the ticker should look earlier, or end */
    pthread_t ticker;
    bool ticking;
    door doors[DOORS_MAX];
    int door_count;
    conn *first;      /* all connections */
    conn *wait_first; /* those suspended by wait */
    uint64_t generation;
    double tick_s; /* when the ticker looks next */
    atomic_bool ending;
    bool halted; /* the threads end */
    httpd_counters counters;

    struct work_class {
        adli_httpd *httpd;
        pthread_cond_t there;
        conn *first, *last;
    } classes[ADLI_HTTPD_CLASSES]; /* [route.slow - 1] */
    pthread_t *workers;
    int worker_count;
};

/* ---- table.c: connections, waiting, deadlines ---- */
adl_status adli_conn_add(door *d, struct MHD_Connection *mhd, conn **out);
void adli_conn_remove(conn *c);
/* May one more connection of this address come in? At a limit another one gives way. */
bool adli_conn_admit(door *d, uint64_t client);
void adli_conn_state(conn *c, conn_state state, int64_t moved);
void adli_conn_known(conn *c);
void adli_conn_moved(conn *c, int64_t bytes);
/* One more answer with this code. */
void adli_conn_counted(conn *c, int code);
uint64_t adli_httpd_generation(adli_httpd *httpd);
/* Suspends the connection unless something was woken since `generation` was read; then false, and the
 * caller looks again. */
bool adli_conn_wait(conn *c, conn_state state, uint64_t generation, double again_s);
bool adli_conn_doomed(conn *c);
void *adli_httpd_tick(void *httpd);
/* Waits until no request is under way, at most for seconds. */
void adli_httpd_drain(adli_httpd *httpd, double seconds);
/* Hash of an address: IPv4, or the /64 of IPv6; 0 for others. */
uint64_t adli_client_hash(const struct sockaddr *address);

/* ---- work.c: worker threads ---- */
adl_status adli_work_start(adli_httpd *httpd);
void adli_work_stop(adli_httpd *httpd);
/* Suspends the connection and queues it; false when the server is ending. */
bool adli_work_push(conn *c);

/* ---- head.c ---- */
typedef struct adli_head {
    struct MHD_Connection *mhd;
    const char *method, *uri, *version; /* where the library has them */
    size_t uri_length;
} adli_head;
/* What is wrong with the head, or could be read in two ways; NULL: nothing. */
const char *adli_head_wrong(const adli_head *head);
/* Every byte of it is where it should be. */
bool adli_head_clean(const adli_head *head);

/* ---- probe.c: what the library does with heads ---- */
typedef enum head_trust {
    HEAD_ONCE,   /* anything: a connection is good for one request */
    HEAD_WALK,   /* keeps them so that head.c can walk over them */
    HEAD_STRICT, /* refuses by itself what head.c would */
} head_trust;
/* Finds out, once. */
void adli_head_learn(void);
head_trust adli_head_trust(void);
/* For tests. */
void adli_head_assume(head_trust assumed);

/* ---- refuse.c: what libmicrohttpd refuses by itself ---- */
/* The library's MHD_queue_response; the name itself is what the library calls. */
enum MHD_Result adli_queue(struct MHD_Connection *mhd, unsigned code,
                           struct MHD_Response *response);

/* ---- request.c ---- */
/* The body of an error; initializes it. */
void adli_error_text(adli_buf *body, int code, const char *message);
void adli_request_reset(adli_httpd_request *request);
/* Hands the answer to libmicrohttpd. */
enum MHD_Result adli_request_send(adli_httpd_request *request);
/* squeeze.c: bytes become gzip where the client wants that and it pays. */
void adli_request_squeeze(adli_httpd_request *request);
bool adli_accepts_gzip(const char *accept);
/* Runs the handler until it has answered or waits. */
enum MHD_Result adli_request_dispatch(adli_httpd_request *request);

/* ---- exchange.c: the callbacks of libmicrohttpd ---- */
conn *adli_conn_of(struct MHD_Connection *mhd);
enum MHD_Result adli_on_access(void *user, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_size, void **context);
void *adli_on_uri(void *user, const char *uri, struct MHD_Connection *mhd);
void adli_on_completed(void *user, struct MHD_Connection *mhd, void **context,
                       enum MHD_RequestTerminationCode why);
void adli_on_connection(void *user, struct MHD_Connection *mhd, void **context,
                        enum MHD_ConnectionNotificationCode what);
enum MHD_Result adli_on_accept(void *user, const struct sockaddr *address, socklen_t length);

#endif
