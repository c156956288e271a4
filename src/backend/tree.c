#include "backend/tree.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 64 }; /* open descriptors at a time */

static adl_status make_one(char *path)
{
    if (mkdir(path, 0755) != 0)
        return errno == EEXIST ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return ADL_OK;
    *slash = '\0';
    int parent = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (parent < 0 || fsync(parent) != 0) {
        int why = errno;
        if (parent >= 0)
            close(parent);
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(why));
    }
    close(parent);
    return ADL_OK;
}

adl_status adli_tree_make(const char *path)
{
    struct stat info;
    adl_status status = ADL_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ADL_OK;
    char *copy = adli_strdup(path);
    if (!copy)
        return adli_fail_memory("a path");
    for (char *at = copy + 1; status == ADL_OK && *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        status = make_one(copy);
        *at = '/';
    }
    if (status == ADL_OK)
        status = make_one(copy);
    if (status == ADL_OK && (stat(copy, &info) != 0 || !S_ISDIR(info.st_mode)))
        status = adli_fail(ADL_EIO, "%s: not a directory", path);
    free(copy);
    return status;
}

static void remove_below(int top, const char *stem, int dir, const char *name, int depth,
                         long *moved);

static void remove_entries(int top, const char *stem, DIR *stream, int depth, long *moved)
{
    for (struct dirent *entry; (entry = readdir(stream));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_below(top, stem, dirfd(stream), entry->d_name, depth + 1, moved);
}

/* Too deep: the subtree moves up beside the whole and is removed from there later. */
static void move_up(int top, const char *stem, int dir, const char *name, long *moved)
{
    char aside[300];
    snprintf(aside, sizeof aside, "%.200s.deep.%ld", stem, *moved);
    if (renameat(dir, name, top, aside) == 0)
        ++*moved;
}

static void remove_below(int top, const char *stem, int dir, const char *name, int depth,
                         long *moved)
{
    if (unlinkat(dir, name, 0) == 0 || (errno != EISDIR && errno != EPERM))
        return;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0)
        return;
    if (depth >= DEPTH_MAX) {
        move_up(top, stem, dir, name, moved);
        return;
    }
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(dir, name, 0700, 0) == 0)
        fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    fchmod(fd, 0700); /* else its entries might not be ours to remove */
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return;
    }
    remove_entries(top, stem, stream, depth, moved);
    closedir(stream);
    unlinkat(dir, name, AT_REMOVEDIR);
}

void adli_tree_remove(int dir, const char *name)
{
    char aside[300];
    long moved = 0;
    remove_below(dir, name, dir, name, 0, &moved);
    for (long i = 0; i < moved; i++) {
        snprintf(aside, sizeof aside, "%.200s.deep.%ld", name, i);
        remove_below(dir, name, dir, aside, 0, &moved);
    }
}
