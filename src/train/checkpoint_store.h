/* The store behind adl_checkpoint, shared by checkpoint.c (states and loading), checkpoint_open.c
 * and checkpoint_save.c (copying, and the thread that writes). */
#ifndef ADLI_CHECKPOINT_STORE_H
#define ADLI_CHECKPOINT_STORE_H

#include "train/checkpoint_dir.h"

#include <pthread.h>

struct adl_checkpoint_state {
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    adl_checkpoint_functions functions;
    void *user;
    size_t expected; /* bytes that it will probably save; 0: not known */
    bool idle_sync;  /* its sync function puts nothing together: no replica has a part of its own */
};

/* The life of a save: idle -> requested (by the caller) -> writing -> done (by the thread) -> idle (by
 * the caller, who takes the outcome). Guarded by lock; all else in a save belongs to the thread while
 * it is requested or writing, and to the caller otherwise. */
typedef enum adli_save_phase {
    ADLI_SAVE_IDLE,
    ADLI_SAVE_REQUESTED,
    ADLI_SAVE_WRITING,
    ADLI_SAVE_DONE
} adli_save_phase;

/* What is requested: a save, or something that a save is better off without. */
typedef enum adli_save_job {
    ADLI_JOB_WRITE,
    ADLI_JOB_WARM,  /* memory for the first one */
    ADLI_JOB_REMOVE /* old checkpoints, after one */
} adli_save_job;

typedef struct adli_save {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started; /* is there a thread? */
    bool quit;
    adli_save_phase phase;
    adli_save_job job;
    adli_ckpt_plan plan;
    adli_ckpt_item *items; /* plan.items */
    size_t items_capacity;
    adl_sink *copies; /* [copies_count]; copies[i] holds the i-th registered state, by name */
    size_t copies_count, copies_capacity;
    size_t warm_count; /* copies to be made ready */
    adli_ckpt_outcome outcome;
    adl_status status;
    char error[512];
} adli_save;

struct adl_checkpoint {
    adl_checkpoint_options options;
    char *directory; /* NULL: no checkpoints */
    char program[ADLI_CKPT_PROGRAM_MAX + 1];
    const adli_ckpt_io *io;
    long pid; /* who opened it: a forked child has no thread */
    uint64_t generation, last_sequence;
    adli_ckpt_list damaged;

    adl_checkpoint_state **states; /* [states_count], by name */
    size_t states_count, states_capacity;
    adli_ckpt_value **pending; /* [pending_count], by name */
    size_t pending_count, pending_capacity;
    adli_ckpt_value
        *retired; /* no longer pending, but the save that is being written may use them */

    bool calling;     /* inside a callback */
    bool due_started; /* the interval runs since due_s */
    double due_s;
    adl_status unreported; /* of a background save, for flush */
    char unreported_error[512];
    adli_save save;
    adl_checkpoint_info info;
};

/* checkpoint.c */
void adli_checkpoint_log(adl_checkpoint *store, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
adl_checkpoint_state *adli_checkpoint_find(adl_checkpoint *store, const char *name);
/* ESTATE when a callback calls back into the store. */
ADL_MUST adl_status adli_checkpoint_guard(const adl_checkpoint *store, const char *function);

/* checkpoint_open.c */
/* Checked options, of any version of the struct: what the caller's does not have keeps its default. */
ADL_MUST adl_status adli_checkpoint_take_options(const adl_checkpoint_options *given,
                                                 adl_checkpoint_options *out);
/* Creates the directory, removes leftovers (the writer) and reads the checkpoint: pending, generation,
 * damaged and info.loaded. */
ADL_MUST adl_status adli_checkpoint_read_directory(adl_checkpoint *store);
/* Makes the directory if need be, and what is saved from now on newer than anything in it. */
ADL_MUST adl_status adli_checkpoint_prepare_directory(adl_checkpoint *store);

/* checkpoint_save.c */
ADL_MUST adl_status adli_save_init(adl_checkpoint *store);
void adli_save_fini(adl_checkpoint *store); /* waits for the thread */
/* Takes the outcome of a finished background save, if there is one. Never blocks. */
void adli_save_reap(adl_checkpoint *store);

/* Everybody syncs, as before a save. */
ADL_MUST adl_status adli_checkpoint_sync(adl_checkpoint *store);
/* Another replica writes from now on, or this one; not while a save is under way here. A store that had no directory
 * gets this one (NULL: none). On failure nobody writes here. */
ADL_MUST adl_status adli_checkpoint_set_writer(adl_checkpoint *store, bool is_writer,
                                               const char *directory);

/* Tests only: another table of file operations, before the first save. */
void adli_checkpoint_set_io(adl_checkpoint *store, const adli_ckpt_io *io);

#endif
