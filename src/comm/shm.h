/* A segment of POSIX shared memory that cannot be left behind: it has a name only while the replicas
 * map it. A process that is killed in that moment does leave the name; since its creator holds a lock
 * on it that dies with the process, the next one to create a segment finds and removes it. */
#ifndef ADLI_COMM_SHM_H
#define ADLI_COMM_SHM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { ADLI_SHM_NAME = 64 };

typedef struct adli_shm {
    int fd;        /* open as long as the name is needed */
    uint8_t *base; /* [bytes]; NULL: none */
    size_t bytes;
    char name[ADLI_SHM_NAME]; /* "" once it was unlinked, and for who only opened it */
} adli_shm;

/* A new segment of zeros with its memory set aside (so that a full file system is an error now and
 * not a signal later). */
ADL_MUST adl_status adli_shm_create(size_t bytes, adli_shm *out);
ADL_MUST adl_status adli_shm_open(const char *name, size_t bytes, adli_shm *out);
/* Removes the name and closes the file; the memory lives on until the last one unmaps it. */
void adli_shm_unlink(adli_shm *shm);
void adli_shm_fini(adli_shm *shm);
/* Removes segments whose creator is dead; returns how many. */
int adli_shm_sweep(void);

#endif
