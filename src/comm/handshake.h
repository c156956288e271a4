/* How two replicas come to trust each other (the exchange is in frame.h), and the two sides that
 * drive it without blocking: a dialer, which connects to one replica and retries, and an acceptor,
 * which takes connections and sorts replicas from strangers. A caller steps them and sleeps in poll
 * between steps; a group's rank 0 runs an acceptor, the other ranks a dialer, a ring both. */
#ifndef ADLI_COMM_HANDSHAKE_H
#define ADLI_COMM_HANDSHAKE_H

#include "comm/conn.h"

#include <poll.h>

/* Who we are; the pointers are borrowed. */
typedef struct adli_identity {
    adli_purpose purpose;
    int rank, replicas;
    uint64_t generation, token;
    const void *secret; /* NULL: none */
    size_t secret_length;
} adli_identity;

typedef struct adli_handshake {
    uint8_t hello[ADLI_HELLO_BYTES];
    uint8_t nonce[ADLI_NONCE_BYTES]; /* the acceptor's */
} adli_handshake;

/* The connecting side: send HELLO; given CHALLENGE, check it, send PROOF and protect the connection. */
ADL_MUST adl_status adli_handshake_hello(adli_handshake *state, const adli_identity *self,
                                         adli_conn *conn);
ADL_MUST adl_status adli_handshake_prove(adli_handshake *state, const adli_identity *self,
                                         adli_conn *conn, const adli_frame *challenge);
/* The accepting side: given HELLO, send CHALLENGE; given PROOF, check it and protect. */
ADL_MUST adl_status adli_handshake_challenge(adli_handshake *state, const adli_identity *self,
                                             adli_conn *conn, const adli_frame *hello);
ADL_MUST adl_status adli_handshake_check(adli_handshake *state, const adli_identity *self,
                                         adli_conn *conn, const adli_frame *proof);

typedef enum adli_dial_state {
    ADLI_DIAL_WAITING,    /* for retry_at */
    ADLI_DIAL_CONNECTING, /* fd */
    ADLI_DIAL_GREETING,   /* HELLO is sent */
    ADLI_DIAL_PROVEN,     /* PROOF is sent */
    ADLI_DIAL_WELCOME,    /* done: conn is the caller's to take (set it to NULL) */
} adli_dial_state;

typedef struct adli_dialer {
    const adli_identity *self;
    int to_rank;
    const char *host; /* borrowed */
    int port;
    adli_dial_state state;
    struct addrinfo *addresses, *next;
    int fd;
    adli_conn *conn;
    adli_handshake handshake;
    int64_t retry_at_ms, attempt_ends_ms;
    int backoff_ms;
    char last[256]; /* why the last attempt failed */
} adli_dialer;

void adli_dialer_init(adli_dialer *dialer, const adli_identity *self, int to_rank, const char *host,
                      int port);
void adli_dialer_fini(adli_dialer *dialer);
/* Does what can be done now. A failure is final; what may pass is retried. */
ADL_MUST adl_status adli_dialer_step(adli_dialer *dialer);
/* What to sleep on; lowers *wake_ms to when the next step is due at the latest. */
struct pollfd adli_dialer_poll(const adli_dialer *dialer, int64_t *wake_ms);
/* ADL_ETIMEOUT with what was known last. */
adl_status adli_dialer_timeout(const adli_dialer *dialer, int waited_ms);

typedef struct adli_guest adli_guest;

typedef struct adli_acceptor {
    const adli_identity *self;
    int listener;
    adli_conn **peers; /* [replicas], borrowed: filled with who has arrived */
    bool *expected;    /* [replicas]: which ranks are let in */
    int missing;
    adli_guest *guests; /* [guest_count]: not known yet */
    size_t guest_count, guest_capacity;
    char last[256]; /* who was refused last and why */
} adli_acceptor;

/* Takes the listener over, also when it fails. Ranks are added with adli_acceptor_expect. */
ADL_MUST adl_status adli_acceptor_init(adli_acceptor *acceptor, const adli_identity *self,
                                       int listener, adli_conn **peers);
void adli_acceptor_expect(adli_acceptor *acceptor, int rank);
void adli_acceptor_fini(adli_acceptor *acceptor);
/* Accepts, refuses and admits what can be now. Fails only for reasons of our own. */
ADL_MUST adl_status adli_acceptor_step(adli_acceptor *acceptor);
/* At most adli_acceptor_poll_max entries into out; returns how many. */
size_t adli_acceptor_poll_max(const adli_acceptor *acceptor);
size_t adli_acceptor_poll(const adli_acceptor *acceptor, struct pollfd *out);
/* Tells everyone who has arrived that all have. */
ADL_MUST adl_status adli_acceptor_welcome(adli_acceptor *acceptor);
/* Tells everyone who waits that it will not come to be. */
void adli_acceptor_refuse_all(adli_acceptor *acceptor, const char *why);
/* ADL_ETIMEOUT with the missing ranks. */
adl_status adli_acceptor_timeout(const adli_acceptor *acceptor, int waited_ms);

#endif
