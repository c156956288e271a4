/* The checkpoint's bytes: names, headers, manifest and checksums, with no file operation, so that the
 * fuzzer and the tests can feed it anything. docs/checkpoints.md shows the layout. */
#ifndef ADLI_CHECKPOINT_FORMAT_H
#define ADLI_CHECKPOINT_FORMAT_H

#include "adaptdl/checkpoint.h"
#include "base/status.h"

enum {
    ADLI_CKPT_VERSION = 1,
    ADLI_CKPT_SUM_BYTES = 16,
    ADLI_CKPT_PROGRAM_MAX = 255,
    ADLI_CKPT_STATES_MAX = 1 << 16,
    ADLI_CKPT_HEADER_FIXED = 72,    /* before the name */
    ADLI_CKPT_MANIFEST_PREFIX = 40, /* before the body; the same in every format version */
    ADLI_CKPT_MANIFEST_MAX = 16 << 20,
    ADLI_CKPT_DIR_NAME_MAX = 64,   /* "checkpoint-3.7" and its NUL */
    ADLI_CKPT_FILE_NAME_MAX = 256, /* an escaped name, ".state" and the NUL */
    ADLI_PIECE_BYTES = 1 << 20,    /* of a state that is streamed to another replica */
};
#define ADLI_CKPT_MANIFEST_NAME "MANIFEST"

/* XXH3-128, in its canonical (big-endian) form. */
typedef struct adli_ckpt_sum {
    unsigned char bytes[ADLI_CKPT_SUM_BYTES];
} adli_ckpt_sum;

adli_ckpt_sum adli_ckpt_sum_of(const void *data, size_t length);

/* A growing buffer with a limit; the first failure stays in status. With drain it holds a piece at most (and what was
 * reserved at once): what is written goes on from there, large arrays without a copy. */
struct adl_sink {
    unsigned char *data;
    size_t length, capacity;
    uint64_t max;
    adl_status status;
    adl_status (*drain)(void *user, const void *data, size_t length);
    void *drain_user;
    uint64_t drained;
    bool counts; /* with drain: only lengths matter, the bytes may be left out */
    bool sent;   /* to another replica: it is in no checkpoint */
};
void adli_sink_init(adl_sink *sink, uint64_t max);
void adli_sink_clear(adl_sink *sink); /* keeps the memory */
void adli_sink_fini(adl_sink *sink);
/* True: the sink only counts, and has counted these bytes; they need not be made. */
bool adli_sink_skip(adl_sink *sink, size_t length);
/* Hands over what is left in a sink that drains. */
ADL_MUST adl_status adli_sink_flush(adl_sink *sink);

/* Bytes in memory; or, with refill, a stream of which `buffered` bytes are there and more come when they are wanted. */
struct adl_source {
    const unsigned char *at;
    size_t remaining; /* of all */
    size_t buffered;  /* a stream's, at `at` */
    /* The next piece, valid until the one after it. */
    adl_status (*refill)(void *user, const unsigned char **data, size_t *length);
    void *refill_user;
    unsigned char
        *gathered; /* a stream's: what adl_source_view has put together; the owner frees it */
    size_t gathered_capacity;
};

/* Which checkpoint: ordered by generation, then sequence. */
typedef struct adli_ckpt_id {
    uint64_t generation, sequence;
} adli_ckpt_id;

int adli_ckpt_id_compare(adli_ckpt_id a, adli_ckpt_id b);
/* "checkpoint-3.7"; false for anything that adli_ckpt_id_name would not have written. */
bool adli_ckpt_id_parse(const char *name, adli_ckpt_id *out);
void adli_ckpt_id_name(adli_ckpt_id id, char out[ADLI_CKPT_DIR_NAME_MAX]);

/* EINVAL for a state's name that is not allowed. */
ADL_MUST adl_status adli_ckpt_name_check(const char *name);
/* The file of a (checked) name: bytes other than letters, digits, '_', '-' and '.' become %XX, as
 * does a leading dot; ".state" is added. */
void adli_ckpt_file_name(const char *name, char out[ADLI_CKPT_FILE_NAME_MAX]);

typedef enum adli_ckpt_codec { ADLI_CKPT_RAW = 0, ADLI_CKPT_ZSTD = 1 } adli_ckpt_codec;

/* The header of one state's file; its bytes are followed by stored_length bytes of payload. */
typedef struct adli_ckpt_header {
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    adli_ckpt_codec codec;
    uint64_t raw_length, stored_length;
    adli_ckpt_sum raw_sum, stored_sum;
    adli_ckpt_sum header_sum; /* of the header's bytes before it; set by encode and parse */
} adli_ckpt_header;

enum { ADLI_CKPT_HEADER_MAX = ADLI_CKPT_HEADER_FIXED + ADL_CHECKPOINT_NAME_MAX + 16 };
size_t adli_ckpt_header_bytes(const char *name);
/* Writes adli_ckpt_header_bytes(header->name) bytes. */
void adli_ckpt_header_encode(adli_ckpt_header *header, unsigned char *out);

/* One state read back. data points into storage, which the caller frees. */
typedef struct adli_ckpt_value {
    struct adli_ckpt_value *next; /* for lists of values to be freed later */
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    void *storage;
    const unsigned char *data;
    size_t length;
} adli_ckpt_value;
void adli_ckpt_value_fini(adli_ckpt_value *value);

/* Reads a whole state file. ECORRUPT when any byte is wrong, missing or too many; EINVAL when it is
 * intact but larger than max_bytes; ENOMEM. Takes file on success (storage is either file itself or
 * a new block, and then file was freed); on failure the caller still owns it and *out is empty. */
ADL_MUST adl_status adli_ckpt_state_parse_take(unsigned char *file, size_t length,
                                               uint64_t max_bytes, adli_ckpt_header *header,
                                               adli_ckpt_value *out);

typedef struct adli_ckpt_entry {
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    uint64_t file_bytes;
    adli_ckpt_sum header_sum; /* the header holds the payload's */
} adli_ckpt_entry;

typedef struct adli_ckpt_manifest {
    adli_ckpt_id id;
    char program[ADLI_CKPT_PROGRAM_MAX + 1];
    adli_ckpt_entry *entries; /* [count], by name; owned */
    size_t count;
} adli_ckpt_manifest;

/* Appends the manifest's bytes to sink. */
ADL_MUST adl_status adli_ckpt_manifest_encode(const adli_ckpt_manifest *manifest, adl_sink *sink);
/* ECORRUPT when any byte is wrong, missing or too many; EINVAL when it is intact but of another format
 * version; ENOMEM. Free with adli_ckpt_manifest_fini, also after a failure. */
ADL_MUST adl_status adli_ckpt_manifest_parse(const void *data, size_t length,
                                             adli_ckpt_manifest *out);
void adli_ckpt_manifest_fini(adli_ckpt_manifest *manifest);

#endif
