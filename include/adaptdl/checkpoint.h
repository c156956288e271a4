/* Checkpoints: the named states of a training program, saved so that a crash at any instant leaves
 * the last complete checkpoint loadable. docs/checkpoints.md has the on-disk format and the proof.
 *
 *     adl_checkpoint *store;
 *     adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
 *     options.restarts = 3, options.program = "resnet50-v2", options.is_writer = rank == 0;
 *     adl_checkpoint_open("/ckpt/job-1", &options, &store);   reads the newest complete checkpoint
 *     adl_checkpoint_register(store, "model", &functions, model, &state);
 *     adl_checkpoint_load_state(store, state, &found);        at any time after the start
 *     each step: if the replicas agree that adl_checkpoint_due(store, now_s) was true on the writer:
 *                adl_checkpoint_save_async(store);            waits for the copy only
 *     at SIGTERM: adl_checkpoint_save_all(store);             on disk when it returns
 *     adl_checkpoint_close(store);
 *
 * Directories: each checkpoint is DIR/checkpoint-<generation>.<sequence>. The generation is the
 * number of restarts, or the highest generation already in DIR when that is more, so that what is
 * saved last is always the newest; the sequence counts the saves of one generation, from 1. The
 * newest is the one of the highest generation, then of the highest sequence: a process of an earlier
 * generation that is still alive cannot overtake its successor.
 *
 * Threads: a store belongs to one thread at a time. It starts one thread of its own at the first
 * adl_checkpoint_save_async, or adl_checkpoint_due of a writer; callbacks, the log function included, run only on the thread that
 * called into the store. Nothing here installs signal handlers; the store's thread blocks all
 * signals. */
#ifndef ADAPTDL_CHECKPOINT_H
#define ADAPTDL_CHECKPOINT_H

#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_checkpoint adl_checkpoint;
typedef struct adl_checkpoint_state adl_checkpoint_state;

#define ADL_CHECKPOINT_NAME_MAX 80 /* bytes of a state's name, without the NUL */

/* ---- what a state's callbacks write to and read from ------------------------------------------ */

/* Where a save callback puts its bytes: memory of the store, reused from save to save. ENOMEM when
 * there is no memory or the state would pass max_state_bytes; the save then fails as a whole, also
 * when the callback ignores it. */
typedef struct adl_sink adl_sink;
ADL_API adl_status adl_sink_write(adl_sink *sink, const void *data, size_t length);
/* length more bytes to be filled in by the caller before the next call on the sink (a copy from a
 * device can go straight there). *out is NULL on failure. */
ADL_API ADL_MUST adl_status adl_sink_reserve(adl_sink *sink, size_t length, void **out);
/* Little-endian numbers, and text as a 32-bit length and its bytes, with no NUL. */
ADL_API adl_status adl_sink_u32(adl_sink *sink, uint32_t value);
ADL_API adl_status adl_sink_u64(adl_sink *sink, uint64_t value);
ADL_API adl_status adl_sink_f64(adl_sink *sink, double value);
ADL_API adl_status adl_sink_text(adl_sink *sink, const char *text);

/* What a load callback reads: one state's bytes, already checked against their checksum. Reading
 * past the end is ECORRUPT, and nothing is consumed. */
typedef struct adl_source adl_source;
ADL_API size_t adl_source_remaining(const adl_source *source);
ADL_API ADL_MUST adl_status adl_source_read(adl_source *source, void *out, size_t length);
/* The next length bytes without a copy; valid until the callback returns. Not aligned. */
ADL_API ADL_MUST adl_status adl_source_view(adl_source *source, size_t length, const void **out);
ADL_API ADL_MUST adl_status adl_source_u32(adl_source *source, uint32_t *out);
ADL_API ADL_MUST adl_status adl_source_u64(adl_source *source, uint64_t *out);
ADL_API ADL_MUST adl_status adl_source_f64(adl_source *source, double *out);
/* Text that fits into out with its NUL (capacity bytes); longer, or with a NUL inside: ECORRUPT. */
ADL_API ADL_MUST adl_status adl_source_text(adl_source *source, char *out, size_t capacity);

/* ---- the store -------------------------------------------------------------------------------- */

typedef struct adl_checkpoint_options {
    size_t size;         /* sizeof, for later versions of the library */
    int keep_last;       /* complete checkpoints kept, at least 1 */
    int compress_level;  /* zstd level 1 .. 19, or 0: no compression */
    int restarts;        /* how often the job was restarted, >= 0 */
    const char *program; /* identity, at most 255 bytes; NULL or "": not checked. A checkpoint that
                          * was saved under another identity is refused. */
    bool is_writer;      /* rank 0: the one replica that writes */
    double interval_s;   /* for adl_checkpoint_due; 0: never due */
    /* Load exactly this checkpoint ("checkpoint-3.7"), not the newest: how the other replicas follow
     * the writer's choice (adl_checkpoint_info.loaded). "none": load nothing. NULL: the newest
     * complete one. */
    const char *only;
    /* When there are checkpoints and every one is damaged: false: open fails with ECORRUPT; true:
     * start from nothing. Damaged ones are removed after the next good save. */
    bool ignore_damage;
    uint64_t max_state_bytes; /* one state, saving and loading */
    uint64_t max_total_bytes; /* all states together */
    /* One line about something that went wrong and was survived: a damaged checkpoint that was passed
     * over (names the file), a background save that failed. Called on the caller's thread, from
     * within a call on the store. May be NULL. */
    void (*log)(void *log_user, const char *line);
    void *log_user;
} adl_checkpoint_options;

#define ADL_CHECKPOINT_OPTIONS_INIT                                                                \
    {                                                                                              \
        .size = sizeof(adl_checkpoint_options), .keep_last = 2, .is_writer = true,                 \
        .interval_s = 60.0, .max_state_bytes = UINT64_C(1) << 38,                                  \
        .max_total_bytes = UINT64_C(1) << 40                                                       \
    }

/* Opens the checkpoints in directory and reads the newest complete one into memory; its states wait
 * there ("pending") until a state of their name is loaded. Blocks for the reading.
 *
 * directory == NULL: there are no checkpoints; every call works and stores nothing. A writer creates
 * the directory (not its parents) and removes what crashed writers left half-written; for a reader
 * a directory that does not exist is empty. A checkpoint that is truncated, bit-flipped or
 * incomplete is reported to log by name and passed over. options == NULL: the defaults.
 *
 * EINVAL: wrong options; the newest checkpoint is of another program, of another format version, or
 * beyond the size limits (it is intact, so an older one is no substitute). ENOENT: `only` does not
 * exist. ECORRUPT: see ignore_damage; or `only` is damaged. EIO: the directory cannot be created or
 * read. ENOMEM. *out is NULL on failure. Close it with adl_checkpoint_close. */
ADL_API ADL_MUST adl_status adl_checkpoint_open(const char *directory,
                                                const adl_checkpoint_options *options,
                                                adl_checkpoint **out);

/* Waits for a save in the background (its failure goes to log: flush first to have it as a status),
 * then frees the store and its states. NULL is fine. */
ADL_API void adl_checkpoint_close(adl_checkpoint *store);

/* A state's callbacks. Each returns ADL_OK or a failure (its error text is passed on with the state's
 * name before it). load and sync may be NULL: nothing to do. None may call into the store. */
typedef struct adl_checkpoint_functions {
    size_t size; /* sizeof */
    /* Writes the state. Writer only. */
    adl_status (*save)(void *user, adl_sink *sink);
    /* Reads the state back. Bytes that it leaves unread make the load fail with ECORRUPT. */
    adl_status (*load)(void *user, adl_source *source);
    /* Makes the writer's copy the one to save (sums over replicas ...). Runs on all replicas. */
    adl_status (*sync)(void *user);
} adl_checkpoint_functions;

/* Adds a state. functions is copied, user must outlive the state. Does not load: see
 * adl_checkpoint_load_state. EINVAL: a name that is empty, longer than ADL_CHECKPOINT_NAME_MAX, or
 * has a slash, "..", or a control character; no save. ESTATE: the name is taken. The state belongs to
 * the store; *out (may be NULL when the handle is not needed) is NULL on failure. */
ADL_API ADL_MUST adl_status adl_checkpoint_register(adl_checkpoint *store, const char *name,
                                                    const adl_checkpoint_functions *functions,
                                                    void *user, adl_checkpoint_state **out);

/* A hint that the state will be about so many bytes: memory for its copy is made ready by the store's
 * thread, once adl_checkpoint_due is asked for the first time, so that the first save in the background
 * waits no longer than later ones. A state that was loaded expects the size that it had then. */
ADL_API void adl_checkpoint_expect(adl_checkpoint *store, adl_checkpoint_state *state,
                                   size_t bytes);

/* Removes a state: later checkpoints are without it (unless its old value is still pending). NULL is
 * fine. A save in the background keeps its copy. */
ADL_API void adl_checkpoint_unregister(adl_checkpoint *store, adl_checkpoint_state *state);

/* Gives the state its value from the checkpoint that was read at open. *found (may be NULL) is false
 * when the checkpoint has no state of that name, or it was loaded before: the state keeps its
 * initial value. When load fails, so does this, and the value stays pending. */
ADL_API ADL_MUST adl_status adl_checkpoint_load_state(adl_checkpoint *store,
                                                      adl_checkpoint_state *state, bool *found);

/* adl_checkpoint_load_state for every registered state, in order of name; stops at the first failure.
 * *loaded and *absent (may be NULL) count those found and not found; the names of the absent ones
 * go to log, when there was a checkpoint. */
ADL_API ADL_MUST adl_status adl_checkpoint_load_all(adl_checkpoint *store, int *loaded,
                                                    int *absent);

/* Saves everything and returns when it is safe on disk. All replicas call it: sync of every state
 * runs on each, in order of name (all of them, even when one fails), then the writer calls every save
 * and writes. Pending values that nobody has loaded yet are carried over. A save in the background
 * is waited for first. On failure (disk full, read-only or vanished directory, a failing callback)
 * the previous checkpoint is untouched, and the next save may well succeed. */
ADL_API ADL_MUST adl_status adl_checkpoint_save_all(adl_checkpoint *store);

/* The same, but returns once the states are copied into memory; the store's thread compresses and
 * writes. When the previous save is still being written, this waits for it first (ask
 * adl_checkpoint_due, which says false meanwhile, to never wait). A failure of the writing is
 * reported by adl_checkpoint_flush, by adl_checkpoint_get_info, and to log at the next call. */
ADL_API ADL_MUST adl_status adl_checkpoint_save_async(adl_checkpoint *store);

/* Waits for the save in the background and returns its result; without one, ADL_OK, or the failure of
 * the last background save if nothing reported it as a status yet. */
ADL_API ADL_MUST adl_status adl_checkpoint_flush(adl_checkpoint *store);

/* Is it time for a periodic save? The first call starts the interval, and so does each call that says
 * true. False while a save is being written. Never blocks. Only the writer's answer counts: share it
 * with the other replicas before acting on it. */
ADL_API bool adl_checkpoint_due(adl_checkpoint *store, double now_s);

typedef struct adl_checkpoint_info {
    size_t size;       /* set to sizeof before the call */
    char loaded[64];   /* the checkpoint that was read at open, "" when none */
    char saved[64];    /* the last one written by this store, "" when none */
    int damaged;       /* checkpoints passed over at open */
    int pending;       /* values read at open that nobody has loaded */
    bool busy;         /* a save is being written */
    uint64_t saves_ok; /* written completely */
    uint64_t saves_failed;
    uint64_t raw_bytes;    /* of the last good save: the states ... */
    uint64_t stored_bytes; /* ... and the files */
    adl_status last_status;
    char last_error[256]; /* of the last failed save, "" when none failed */
} adl_checkpoint_info;
#define ADL_CHECKPOINT_INFO_INIT                                                                   \
    {                                                                                              \
        .size = sizeof(adl_checkpoint_info)                                                        \
    }

/* Fills info. Never blocks. EINVAL: its size is not one that this library knows; with the _INIT macro it is. */
ADL_API adl_status adl_checkpoint_get_info(adl_checkpoint *store, adl_checkpoint_info *info);

/* ---- for runtimes without a shared directory, and for tools ------------------------------------ */

/* The pending value number index (0 .. pending-1, in order of name), borrowed until the next call on
 * the store; ENOENT past the end. With adl_checkpoint_offer on the other side, the writer can send
 * what it read to replicas that see another disk. */
ADL_API ADL_MUST adl_status adl_checkpoint_pending(adl_checkpoint *store, int index,
                                                   const char **name, const void **data,
                                                   size_t *length);
/* Adds (or replaces) a pending value; data is copied. */
ADL_API ADL_MUST adl_status adl_checkpoint_offer(adl_checkpoint *store, const char *name,
                                                 const void *data, size_t length);
/* Drops the pending value of that name, so that later checkpoints no longer carry it. ENOENT when
 * there is none. */
ADL_API ADL_MUST adl_status adl_checkpoint_forget(adl_checkpoint *store, const char *name);

#ifdef __cplusplus
}
#endif
#endif
