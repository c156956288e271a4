/* Whoever opens worlds, for replicas on threads of a test (train_replicas.h, adlt_job.world_socket): when one of them has
 * died and the others have all said so, they are told of a world of their own. */
#ifndef ADLI_TEST_WORLDS_H
#define ADLI_TEST_WORLDS_H

#include "train_replicas.h"

#include <sys/socket.h>
#include <sys/un.h>

typedef struct adlt_worlds {
    int replicas;
    int victim; /* member; -1: nobody dies */
    char directory[64], path[96];
    int listens;
    pthread_t threads[ADLT_REPLICAS_MAX];
    pthread_mutex_t lock;
    int fd[ADLT_REPLICAS_MAX];                     /* under lock; by member */
    unsigned long long applied[ADLT_REPLICAS_MAX]; /* likewise, when it has lost its world */
    int lost;                                      /* how many have */
} adlt_worlds;

/* One that is ahead is the first. */
static inline void adlt_worlds_open(adlt_worlds *self)
{
    char line[256];
    int first = -1, length;
    for (int m = 0; m < self->replicas; m++)
        if (m != self->victim && (first < 0 || self->applied[m] > self->applied[first]))
            first = m;
    length = snprintf(line, sizeof line, "world 1 1 127.0.0.1 %d %d", adlt_free_port(), first);
    for (int m = 0; m < self->replicas; m++)
        if (m != self->victim && m != first)
            length += snprintf(line + length, sizeof line - (size_t)length, " %d", m);
    for (int m = 0; m < self->replicas; m++)
        if (m != self->victim)
            CHECK(dprintf(self->fd[m], "%s\n", line) == length + 1);
}

/* One replica's lines, until it ends. */
static inline void *adlt_worlds_hear(void *user)
{
    adlt_worlds *self = user;
    int fd = accept(self->listens, NULL, NULL), member = -1;
    FILE *lines = fd >= 0 ? fdopen(fd, "r") : NULL;
    char line[256];
    while (lines && fgets(line, sizeof line, lines)) {
        unsigned long long applied;
        unsigned generation;
        pthread_mutex_lock(&self->lock);
        if (sscanf(line, "member %d", &member) == 1)
            self->fd[member] = fd;
        if (sscanf(line, "lost %u %llu", &generation, &applied) == 2 && generation == 0) {
            self->applied[member] = applied;
            if (++self->lost == self->replicas - 1)
                adlt_worlds_open(self);
        }
        pthread_mutex_unlock(&self->lock);
    }
    if (lines)
        fclose(lines);
    return NULL;
}

/* Before the replicas; self->path is the socket. */
static inline void adlt_worlds_start(adlt_worlds *self, int replicas, int victim)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *self = (adlt_worlds){.replicas = replicas, .victim = victim};
    strcpy(self->directory, adlt_tempdir());
    snprintf(self->path, sizeof self->path, "%s/worlds", self->directory);
    strcpy(address.sun_path, self->path);
    self->listens = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(self->listens, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(self->listens, replicas) != 0)
        ADLT_FAIL("%s: no socket", self->path);
    pthread_mutex_init(&self->lock, NULL);
    for (int r = 0; r < replicas; r++)
        pthread_create(&self->threads[r], NULL, adlt_worlds_hear, self);
}

/* When the replicas have ended. */
static inline void adlt_worlds_stop(adlt_worlds *self)
{
    for (int r = 0; r < self->replicas; r++)
        pthread_join(self->threads[r], NULL);
    close(self->listens);
    pthread_mutex_destroy(&self->lock);
    adlt_tempdir_remove(self->directory);
}

#endif
