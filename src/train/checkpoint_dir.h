/* Checkpoints as directories: listing, reading, writing and removing them. Blocking; no state between
 * calls. Every operation that changes the disk goes through a table of functions, so that tests can
 * make each of them fail and can replay a save up to any point. */
#ifndef ADLI_CHECKPOINT_DIR_H
#define ADLI_CHECKPOINT_DIR_H

#include "train/checkpoint_format.h"

#include <sys/types.h>

/* As the system calls of these names (open is openat with O_CLOEXEC; rename stays in one
 * directory). */
typedef struct adli_ckpt_io {
    int (*open)(int dir, const char *name, int flags, unsigned mode);
    int (*mkdir)(int dir, const char *name, unsigned mode);
    ssize_t (*write)(int fd, const void *data, size_t length);
    ssize_t (*pwrite)(int fd, const void *data, size_t length, off_t offset);
    int (*fsync)(int fd);
    int (*close)(int fd);
    int (*rename)(int dir, const char *from, const char *to);
    int (*unlink)(int dir, const char *name, int flags);
    void (*begin)(int fd); /* a hint that the disk may begin with what was written; may be NULL */
} adli_ckpt_io;

extern const adli_ckpt_io adli_ckpt_system_io;

/* fsync of a directory; 0, or -1 with errno. File systems that have no such thing (they say EINVAL) keep
 * their entries safe in another way, or cannot at all. */
int adli_ckpt_sync_directory(const adli_ckpt_io *io, int dir);

typedef struct adli_ckpt_list {
    adli_ckpt_id *ids; /* [count], newest first */
    size_t count, capacity;
} adli_ckpt_list;

void adli_ckpt_list_fini(adli_ckpt_list *list);
bool adli_ckpt_list_has(const adli_ckpt_list *list, adli_ckpt_id id);
ADL_MUST adl_status adli_ckpt_list_add(adli_ckpt_list *list, adli_ckpt_id id);
/* The checkpoints in the directory, complete or not. *out is empty on failure. */
ADL_MUST adl_status adli_ckpt_list_read(int dir, adli_ckpt_list *out);

/* Removes the temporary directories of writers that crashed. EIO when one could not be removed. */
ADL_MUST adl_status adli_ckpt_remove_leftovers(const adli_ckpt_io *io, int dir);

typedef struct adli_ckpt_limits {
    uint64_t max_state_bytes, max_total_bytes;
} adli_ckpt_limits;

/* Everything of one checkpoint. */
typedef struct adli_ckpt_content {
    adli_ckpt_manifest manifest;
    adli_ckpt_value **values; /* [manifest.count], each owned, by name */
} adli_ckpt_content;
void adli_ckpt_content_fini(adli_ckpt_content *content);

/* Reads and verifies one checkpoint. ENOENT: there is no such directory. ECORRUPT: damaged or
 * incomplete; the text names the file. EINVAL: intact, but of another format version or program, or
 * too large. ENOMEM, EIO: could not be read for reasons that say nothing about it. */
ADL_MUST adl_status adli_ckpt_read(int dir, adli_ckpt_id id, const char *program,
                                   const adli_ckpt_limits *limits, adli_ckpt_content *out);

/* One state to be written. */
typedef struct adli_ckpt_item {
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    const unsigned char *data; /* NULL: plan->save has it */
    size_t length;
    size_t state; /* which one it is of plan->save's */
} adli_ckpt_item;

typedef struct adli_ckpt_plan {
    const adli_ckpt_io *io;
    const char *directory;
    const char *program;
    uint64_t generation;
    uint64_t after_sequence; /* the last sequence that this writer used */
    int compress_level;
    int keep_last;
    bool
        leave_old; /* what is to be removed only gets another name: adli_ckpt_remove_old does the rest, which takes long */
    adli_ckpt_limits limits;
    uint64_t data_bytes; /* of the items that have data, which are within the limits */
    /* Hands the state of an item without data to `drain`, when its turn comes. Not with compression. */
    adl_status (*save)(void *user, const adli_ckpt_item *item,
                       adl_status (*drain)(void *, const void *, size_t), void *drain_user);
    void *user;
    const adli_ckpt_list *damaged; /* do not count as kept; removed after the save */
    const adli_ckpt_item *items;   /* [count], by name */
    size_t count;
} adli_ckpt_plan;

typedef struct adli_ckpt_outcome {
    adli_ckpt_id id;
    uint64_t raw_bytes, stored_bytes;
    char warning[512]; /* "" or a line: the save succeeded, but an old checkpoint stays */
    char refusal[512]; /* "" or what plan->save said: no file failed */
    bool old_left;     /* for adli_ckpt_remove_old */
} adli_ckpt_outcome;

/* Writes one checkpoint and then removes those beyond keep_last. On failure nothing that was there
 * before is touched. (One exception in name only: when the last fsync, of the directory, fails, the
 * new checkpoint is complete and visible but may not survive a power failure; the old ones stay.) */
ADL_MUST adl_status adli_ckpt_write(const adli_ckpt_plan *plan, adli_ckpt_outcome *out);
/* Ends the removal that plan->leave_old put off. A failure becomes out->warning; what stays goes at the next open. */
void adli_ckpt_remove_old(const adli_ckpt_plan *plan, adli_ckpt_outcome *out);

#endif
