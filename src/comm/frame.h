/* What travels between replicas. A connection carries frames and nothing else; numbers are
 * little-endian:
 *
 *     offset  size
 *          0     4  magic "ADLC"
 *          4     2  version of the protocol (ADLI_PROTOCOL)
 *          6     2  type (adli_frame_type)
 *          8     8  generation of the group; 0 during the handshake
 *         16     8  sequence: 0, 1, 2 ... in each direction of each connection
 *         24     4  length of the payload, at most the receiver's limit
 *         28     4  length of the MAC: 0 or 32
 *         32     n  payload
 *     32 + n  0/32  MAC: HMAC-SHA256 under the direction's session key, over header and payload
 *
 * A connection begins with a handshake, in which a group with a secret authenticates both sides:
 *
 *     connecting                       accepting
 *     HELLO who, nonce a          ->
 *                                 <-   CHALLENGE nonce b, HMAC(secret, "server" HELLO b)
 *     PROOF HMAC(secret, "client" HELLO b) ->
 *                                 <-   WELCOME when all have arrived, or REFUSE code, text
 *
 * After PROOF every frame carries a MAC; the two session keys are HMAC(secret, "up" HELLO b) and
 * HMAC(secret, "down" HELLO b). Since both nonces are in the keys and the sequence is under the MAC,
 * nothing can be replayed, reordered or reflected. Without a secret the proofs are zero and the MACs
 * are absent.
 *
 * Every function here is pure: bytes in, a struct of numbers and borrowed pointers out. Nothing that
 * was received is executed or trusted beyond its declared meaning. tests/fuzz/fuzz_frame.c feeds
 * these functions. */
#ifndef ADLI_COMM_FRAME_H
#define ADLI_COMM_FRAME_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ADLI_PROTOCOL = 1,
    ADLI_FRAME_HEADER = 32,
    ADLI_MAC_BYTES = 32,
    ADLI_NONCE_BYTES = 32,
    ADLI_TEXT_MAX = 480,      /* bytes of error text in a frame */
    ADLI_HANDSHAKE_MAX = 512, /* payload limit until the peer is known */
    ADLI_NAME_MAX = 63,       /* bytes of a reduction's name */
};

typedef enum adli_frame_type {
    ADLI_HELLO = 1,
    ADLI_CHALLENGE = 2,
    ADLI_PROOF = 3,
    ADLI_WELCOME = 4,
    ADLI_REFUSE = 5,
    ADLI_HEARTBEAT = 6, /* empty: still here */
    ADLI_CALL = 7,      /* leaf to root: one replica's part of a collective */
    ADLI_RESULT = 8,    /* root to leaf */
    ADLI_FAILED = 9,    /* the group is broken: adli_failure */
    ADLI_GOODBYE = 10,  /* empty: the sender leaves in order */
    ADLI_LEFT = 11,     /* root to leaf: another replica said goodbye */
    ADLI_BUCKET = 12,   /* ring: what the following data belong to */
    ADLI_EXTRA = 13,    /* ring: the doubles of one replica */
    ADLI_DATA = 14,     /* ring: elements of one slice */
    ADLI_FRAME_TYPES = 15,
} adli_frame_type;

typedef struct adli_frame {
    adli_frame_type type;
    uint64_t generation, sequence;
    const uint8_t *payload; /* [length], borrowed */
    size_t length;
    size_t mac_length; /* 0 or ADLI_MAC_BYTES, right behind the payload */
} adli_frame;

/* Writes the 32 bytes of a header. */
void adli_frame_header(uint8_t *out, adli_frame_type type, uint64_t generation, uint64_t sequence,
                       size_t length, bool with_mac);

/* Looks at the first `have` bytes of a stream. *need is the number of bytes that can be decided
 * upon next: when it is at most have, *out is a frame of that many bytes; else more must be read.
 * ADL_ENET: this is no frame (the text says why); ADL_EPEER: it is one of another version. */
ADL_MUST adl_status adli_frame_parse(const uint8_t *bytes, size_t have, size_t max_payload,
                                     adli_frame *out, size_t *need);

typedef enum adli_purpose {
    ADLI_PURPOSE_CONTROL = 1,
    ADLI_PURPOSE_RING = 2,
} adli_purpose;

/* Who connects. */
typedef struct adli_hello {
    adli_purpose purpose;
    bool keyed; /* has a secret */
    uint32_t rank, replicas;
    uint64_t generation;
    uint64_t token; /* which ring; 0 for control */
    uint8_t nonce[ADLI_NONCE_BYTES];
} adli_hello;
enum { ADLI_HELLO_BYTES = 28 + ADLI_NONCE_BYTES };

void adli_hello_encode(const adli_hello *hello, uint8_t out[ADLI_HELLO_BYTES]);
ADL_MUST adl_status adli_hello_parse(const uint8_t *payload, size_t length, adli_hello *out);

/* Why a connection is refused, for the program on the other side. */
typedef enum adli_refusal {
    ADLI_REFUSED = 1,     /* for good */
    ADLI_REFUSED_OLD = 2, /* the acceptor is of an older generation; its successor may come soon */
} adli_refusal;

/* REFUSE and FAILED. `code` is an adli_refusal or an adl_status, `rank` who is to blame. The text is
 * cut to ADLI_TEXT_MAX and, when parsed, freed of anything unprintable. */
typedef struct adli_failure {
    int32_t code;
    int32_t rank; /* -1: nobody in particular */
    char text[ADLI_TEXT_MAX + 1];
} adli_failure;
enum { ADLI_FAILURE_MAX = 8 + ADLI_TEXT_MAX };

/* Returns the number of bytes written, at most ADLI_FAILURE_MAX. */
size_t adli_failure_encode(const adli_failure *failure, uint8_t out[ADLI_FAILURE_MAX]);
ADL_MUST adl_status adli_failure_parse(const uint8_t *payload, size_t length, adli_failure *out);

/* A collective call: what must be the same on every replica. */
typedef enum adli_call_kind {
    ADLI_CALL_ALLREDUCE = 1,
    ADLI_CALL_REDUCE = 2,
    ADLI_CALL_BROADCAST = 3,
    ADLI_CALL_ALLGATHER = 4,
    ADLI_CALL_BARRIER = 5,
} adli_call_kind;

typedef struct adli_call {
    uint64_t number; /* 0, 1, 2 ... in the order of calls */
    adli_call_kind kind;
    uint8_t type, reduce;         /* ALLREDUCE: adl_type, adl_reduce */
    uint64_t count;               /* ALLREDUCE: elements */
    char name[ADLI_NAME_MAX + 1]; /* REDUCE */
} adli_call;
enum { ADLI_CALL_MAX = 20 + ADLI_NAME_MAX };

size_t adli_call_encode(const adli_call *call, uint8_t out[ADLI_CALL_MAX]);
/* The value is what follows; an ALLREDUCE has exactly the bytes that its count and type say. */
ADL_MUST adl_status adli_call_parse(const uint8_t *payload, size_t length, adli_call *out,
                                    const uint8_t **value, size_t *value_length);

/* The answer to a call: a value, or a failure of this call alone with its text. */
typedef struct adli_result {
    uint64_t number;
    int32_t status; /* adl_status */
    const uint8_t *value;
    size_t length;
} adli_result;
enum { ADLI_RESULT_HEAD = 12 };

void adli_result_encode(const adli_result *result, uint8_t out[ADLI_RESULT_HEAD]);
ADL_MUST adl_status adli_result_parse(const uint8_t *payload, size_t length, adli_result *out);

/* Ring: the header of one bucket. */
typedef struct adli_bucket_head {
    uint64_t number;
    uint64_t elements;
    uint32_t extra_count;
} adli_bucket_head;
enum { ADLI_BUCKET_BYTES = 20 };

void adli_bucket_encode(const adli_bucket_head *head, uint8_t out[ADLI_BUCKET_BYTES]);
ADL_MUST adl_status adli_bucket_parse(const uint8_t *payload, size_t length, adli_bucket_head *out);

/* Copies text for people: cut to fit, control characters replaced. */
void adli_text_clean(char *out, size_t size, const void *text, size_t length);

#endif
