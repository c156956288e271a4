/* What is left of removed jobs. A job's tree may have millions of files, and whoever removes it is the scheduler's only
 * thread: so the tree is moved aside, which takes no longer for a large one, and a thread of its own takes it apart. What
 * an ended process leaves there goes when the next one starts.
 *
 *   STATE/jobs/.trash/UID.N   beside the jobs: on the same file system, wherever that is */
#include "backend/local/impl.h"

#include "base/dirs.h"
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 1000 }; /* that one uid may have there */

static bool go_on(void *user)
{
    trash *t = user;
    if (t->removing)
        t->removing(t->removing_user);
    return !atomic_load(&t->stop);
}

/* Removes what is there; how much of it is still there. */
static size_t empty_once(local *self)
{
    char path[PATH_MAX];
    size_t left = 0;
    snprintf(path, sizeof path, "%s/jobs/%s", self->state_dir, ADLI_LOCAL_TRASH);
    int dir = adli_local_enter(path); /* a link leads to what is not ours to remove */
    DIR *stream = dir >= 0 ? fdopendir(dir) : NULL;
    if (dir >= 0 && !stream)
        close(dir);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            left +=
                adli_dirs_remove_while(dirfd(stream), entry->d_name, go_on, &self->trash) != ADL_OK;
    if (stream)
        closedir(stream);
    return left;
}

/* Again while that helps: of a removal that was cut short, one part may be in the way of another. */
static void empty(local *self)
{
    size_t before = SIZE_MAX, left = empty_once(self);
    while (left > 0 && left < before && !atomic_load(&self->trash.stop)) {
        before = left;
        left = empty_once(self);
    }
}

static void *work(void *user)
{
    local *self = user;
    trash *t = &self->trash;
    pthread_mutex_lock(&t->lock);
    while (t->news) {
        t->news = false;
        pthread_mutex_unlock(&t->lock);
        empty(self);
        pthread_mutex_lock(&t->lock);
    }
    t->running = false;
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void adli_local_empty_trash(local *self)
{
    trash *t = &self->trash;
    pthread_mutex_lock(&t->lock);
    bool idle = !t->running;
    t->news = t->running = true;
    pthread_mutex_unlock(&t->lock);
    if (!idle)
        return;
    if (t->joinable)
        pthread_join(t->thread, NULL);
    t->joinable = adli_thread_start(&t->thread, "trash", work, self) == ADL_OK;
    if (!t->joinable) /* then here: a disk may be full of it */
        work(self);
}

bool adli_local_trash(int dir, const char *name)
{
    char to[ADLI_UID_BYTES + 32];
    int failure = EEXIST;
    mkdirat(dir, ADLI_LOCAL_TRASH, 0700); /* mostly it is there */
    int bin = openat(dir, ADLI_LOCAL_TRASH, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (bin < 0)
        return adli_dirs_remove(dir, name) == ADL_OK;
    for (int n = 0; n < NAMES_MAX && (failure == EEXIST || failure == ENOTEMPTY); n++) {
        snprintf(to, sizeof to, "%.*s.%d", ADLI_UID_BYTES, name, n);
        failure = renameat(dir, name, bin, to) == 0 ? 0 : errno;
    }
    close(bin);
    if (failure != 0 && failure != ENOENT)
        adli_dirs_remove(dir, name);
    return failure == 0;
}

void adli_local_trash_fini(local *self)
{
    atomic_store(&self->trash.stop, true);
    if (self->trash.joinable)
        pthread_join(self->trash.thread, NULL);
    pthread_mutex_destroy(&self->trash.lock);
}
