/* The jobs' files. Paths come from strangers and the files were made by jobs, so the kernel is told to stay
 * below the job's directory whatever links there are (openat2, Linux 5.6); where it cannot, links are not
 * followed at all. */
#include "backend/local/impl.h"

#include "base/dirs.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ENTRIES_MAX = 100000 };
enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

adl_status adli_local_job_dir(const local *self, const char *uid, const char *which, char *out,
                              size_t size)
{
    adl_status status = adli_member_check(uid, 1);
    if (status != ADL_OK)
        return status;
    if (snprintf(out, size, "%s/jobs/%s/%s", self->state_dir, uid, which) >= (int)size)
        return adli_fail(ADL_EINVAL, "%s: too long", self->state_dir);
    status = adli_dirs_make(out, 0755);
    int dir = -1;
    if (status == ADL_OK)
        status = adli_dirs_enter(out, &dir); /* it may be a link, which is not followed */
    if (dir >= 0)
        close(dir);
    return status;
}

adl_status adli_local_put_source(void *opaque, const char *uid, const char *folder)
{
    char to[PATH_MAX];
    adl_status status = adli_local_job_dir(opaque, uid, "source", to, sizeof to);
    if (status != ADL_OK || rename(folder, to) == 0)
        return status;
    if (errno == ENOTEMPTY || errno == EEXIST) { /* replaced */
        status = adli_dirs_remove(AT_FDCWD, to);
        if (status != ADL_OK || rename(folder, to) == 0)
            return status;
    }
    return adli_fail(ADL_EIO, "%s: %s", to, strerror(errno));
}

adl_status adli_local_copy_source(void *opaque, const char *uid, const char *folder)
{
    char from[PATH_MAX];
    adl_status status = adli_local_job_dir(opaque, uid, "source", from, sizeof from);
    return status == ADL_OK ? adli_dirs_copy(from, folder) : status;
}

adl_status adli_local_open_log(void *opaque, const char *uid, int number, int which, int *fd)
{
    const local *self = opaque;
    char path[PATH_MAX], name[48];
    struct stat info;
    *fd = -1;
    adl_status status = adli_member_check(uid, number);
    if (status != ADL_OK)
        return status;
    snprintf(path, sizeof path, "%s/jobs/%s/logs", self->state_dir, uid);
    snprintf(name, sizeof name, "%d-%d.log", number, which);
    int dir = adli_local_enter(path);
    *fd = dir >= 0 ? openat(dir, name, OPEN_FLAGS | O_NOFOLLOW) : -1;
    int why = errno;
    if (dir >= 0)
        close(dir);
    if (*fd < 0)
        return adli_fail(why == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: log of group %d, member %d: %s",
                         uid, number, which, strerror(why));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode))
        return ADL_OK;
    close(*fd);
    *fd = -1;
    return adli_fail(ADL_EIO, "%s: log of group %d, member %d: not a file", uid, number, which);
}

/* ---- files and directories ---- */

/* Component by component, following no link. Changes path. */
static int open_walking(int dir, char *path)
{
    int fd = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    char *save = NULL;
    for (char *word = strtok_r(path, "/", &save); word && fd >= 0;
         word = strtok_r(NULL, "/", &save)) {
        int next = -1;
        if (strcmp(word, "..") == 0)
            errno = EXDEV;
        else
            next = openat(fd, word, OPEN_FLAGS | O_NOFOLLOW);
        int reason = errno;
        close(fd);
        errno = reason;
        fd = next;
    }
    return fd;
}

static int open_below(int dir, char *path)
{
    struct open_how how = {.flags = OPEN_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
        return (int)fd;
    return open_walking(dir, path);
}

/* "/adaptdl/share/x" -> "share" and "x". */
static const char *split(const char *path, const char **rest)
{
    static const char *const roots[] = {"share", "checkpoint"};
    if (strncmp(path, "/adaptdl/", 9) != 0)
        return NULL;
    for (size_t i = 0; i < ADLI_COUNT(roots); i++) {
        size_t length = strlen(roots[i]);
        if (strncmp(path + 9, roots[i], length) != 0 ||
            (path[9 + length] && path[9 + length] != '/'))
            continue;
        *rest = path + 9 + length;
        while (**rest == '/')
            (*rest)++;
        return roots[i];
    }
    return NULL;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_entry(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static adl_status read_directory(const char *path, int dir, adli_opened *out)
{
    struct dirent **names = NULL;
    adl_status status = ADL_OK;
    int count = scandirat(dir, ".", &names, is_entry, by_name);
    if (count < 0)
        return adli_fail(ADL_EIO, "%.200s: cannot be read: %s", path, strerror(errno));
    int taken = count < ENTRIES_MAX ? count : ENTRIES_MAX;
    out->directory = true;
    out->entries = adli_calloc(taken > 0 ? (size_t)taken : 1, sizeof *out->entries);
    for (int i = 0; i < count; i++) {
        struct stat info;
        adli_entry *entry = out->entries ? &out->entries[out->count] : NULL;
        if (entry && i < taken && status == ADL_OK &&
            fstatat(dir, names[i]->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
            *entry = (adli_entry){.name = adli_strdup(names[i]->d_name),
                                  .size = S_ISDIR(info.st_mode) ? 0 : (int64_t)info.st_size,
                                  .directory = S_ISDIR(info.st_mode)};
            if (entry->name)
                out->count++;
            else
                status = adli_fail_memory("a directory");
        }
        free(names[i]);
    }
    free(names);
    return out->entries ? status : adli_fail_memory("a directory");
}

static adl_status cannot_open(const char *path)
{
    bool outside = errno == EXDEV || errno == ELOOP;
    adl_status status = errno == ENOENT || errno == ENOTDIR ? ADL_ENOENT
                        : outside || errno == EACCES        ? ADL_ESTATE
                        : errno == ENAMETOOLONG             ? ADL_EINVAL
                                                            : ADL_EIO;
    return adli_fail(status, "%.200s: %s", path,
                     outside ? "leads out of the job's directory" : strerror(errno));
}

static adl_status look_at(const char *path, int fd, adli_opened *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return cannot_open(path);
    if (S_ISDIR(info.st_mode))
        return read_directory(path, fd, out);
    if (!S_ISREG(info.st_mode))
        return adli_fail(ADL_EINVAL, "%.200s: neither a file nor a directory", path);
    out->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    out->size = (int64_t)info.st_size;
    return out->fd >= 0 ? ADL_OK : cannot_open(path);
}

/* The directory that the job knows as /adaptdl/WHICH. The job may have put a link in its place. -1, with errno. */
static int open_root(const local *self, const char *uid, const char *which)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/jobs/%s", self->state_dir, uid) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int job = adli_local_enter(path);
    if (job < 0)
        return -1;
    struct stat info;
    int root = openat(job, which, O_PATH | O_CLOEXEC | O_NOFOLLOW), reason = errno;
    if (root >= 0 && (fstat(root, &info) != 0 || !S_ISDIR(info.st_mode))) {
        reason = ELOOP;
        close(root);
        root = -1;
    }
    close(job);
    errno = reason;
    return root;
}

adl_status adli_local_open_file(void *opaque, const char *uid, const char *path, adli_opened *out)
{
    char relative[PATH_MAX];
    const char *rest = NULL;
    *out = (adli_opened){.fd = -1};
    const char *which = strlen(path) < sizeof relative ? split(path, &rest) : NULL;
    if (!which)
        return adli_fail(ADL_EINVAL,
                         "path=%.100s: expected /adaptdl/share/... or /adaptdl/checkpoint/...",
                         path);
    adl_status status = adli_member_check(uid, 1);
    if (status != ADL_OK)
        return status;
    strcpy(relative, rest);
    int dir = open_root(opaque, uid, which);
    if (dir < 0 && errno == ENOENT && !*rest) { /* nothing of the job was started yet */
        out->directory = true;
        return ADL_OK;
    }
    int fd = dir < 0 ? -1 : open_below(dir, relative);
    status = fd < 0 ? cannot_open(path) : look_at(path, fd, out);
    if (fd >= 0)
        close(fd);
    if (dir >= 0)
        close(dir);
    if (status != ADL_OK)
        adli_opened_fini(out);
    return status;
}
