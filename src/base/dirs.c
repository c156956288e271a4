#include "base/dirs.h"

#include "base/buf.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DEPTH_MAX = 64 }; /* open descriptors at a time */

static adl_status make_one(char *path, mode_t mode)
{
    if (mkdir(path, mode) != 0)
        return errno == EEXIST ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return ADL_OK;
    *slash = '\0';
    int parent = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    if (parent < 0)
        return ADL_OK; /* made where we may write and pass, but not read */
    bool synced = fsync(parent) == 0 || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
    int why = errno;
    close(parent);
    return synced ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", path, strerror(why));
}

adl_status adli_dirs_make(const char *path, mode_t mode)
{
    struct stat info;
    adl_status status = ADL_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ADL_OK;
    if (!*path)
        return adli_fail(ADL_EINVAL, "a directory without a name");
    char *copy = adli_strdup(path);
    if (!copy)
        return adli_fail_memory("a path");
    for (char *at = copy + 1; status == ADL_OK && *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        status = make_one(copy, mode);
        *at = '/';
    }
    if (status == ADL_OK)
        status = make_one(copy, mode);
    if (status == ADL_OK && (stat(copy, &info) != 0 || !S_ISDIR(info.st_mode)))
        status = adli_fail(ADL_EIO, "%s: not a directory", path);
    free(copy);
    return status;
}

/* One removal: what is too deep moves up beside the whole and is removed from there later. */
typedef struct removal {
    int top;
    const char *name;
    dev_t device;
    long moved;
    bool (*go_on)(void *user); /* NULL: to the end */
    void *user;
} removal;

static void aside(const removal *r, long i, char out[300])
{
    snprintf(out, 300, "%.200s.deep.%ld", r->name, i);
}

static void remove_below(removal *r, int dir, const char *name, int depth);

static void remove_entries(removal *r, int fd, int depth)
{
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(stream));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_below(r, fd, entry->d_name, depth + 1);
    closedir(stream);
}

static void remove_below(removal *r, int dir, const char *name, int depth)
{
    char deep[300];
    struct stat info;
    if (r->go_on && !r->go_on(r->user))
        return;
    if (unlinkat(dir, name, 0) == 0 || (errno != EISDIR && errno != EPERM))
        return;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0)
        return;
    if (depth >= DEPTH_MAX) {
        aside(r, r->moved, deep);
        r->moved += renameat(dir, name, r->top, deep) == 0;
        return;
    }
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(dir, name, 0700, 0) == 0)
        fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) != 0 || info.st_dev != r->device) {
        close(fd);
        return;
    }
    fchmod(fd, 0700); /* else its entries might not be ours to remove */
    remove_entries(r, fd, depth);
    unlinkat(dir, name, AT_REMOVEDIR);
}

static adl_status is_a_link(const char *path)
{
    return adli_fail(ADL_EINVAL, "%s: is a link, which is not followed", path);
}

adl_status adli_dirs_private(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (S_ISLNK(info.st_mode))
        return is_a_link(path);
    if (info.st_uid != geteuid())
        return adli_fail(ADL_EINVAL,
                         "%s: belongs to user %u, not to us (user %u): what is in it cannot be "
                         "trusted; choose another directory, or: chown -R %u %s",
                         path, (unsigned)info.st_uid, (unsigned)geteuid(), (unsigned)geteuid(),
                         path);
    if (info.st_mode & 022)
        return adli_fail(ADL_EINVAL,
                         "%s: others may write to it; when everything in it is yours: chmod 700 %s",
                         path, path);
    if ((info.st_mode & 077) && chmod(path, 0700) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return ADL_OK;
}

adl_status adli_dirs_enter(const char *path, int *fd)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS};
    *fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (*fd < 0 && (errno == ENOSYS || errno == EPERM))
        *fd = open(path, (int)how.flags | O_NOFOLLOW);
    int why = errno;
    adl_status status = *fd >= 0        ? ADL_OK
                        : why == ELOOP  ? is_a_link(path)
                        : why == ENOENT ? adli_fail(ADL_ENOENT, "%s: %s", path, strerror(why))
                                        : adli_fail(ADL_EIO, "%s: %s", path, strerror(why));
    errno = why;
    return status;
}

adl_status adli_dirs_open(const char *path, int flags, mode_t mode, int *fd)
{
    struct stat info;
    *fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode);
    if (*fd < 0 && errno == ELOOP)
        return is_a_link(path);
    if (*fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", path, strerror(errno));
    adl_status status = ADL_OK;
    if (fstat(*fd, &info) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = adli_fail(ADL_EINVAL, "%s: is no plain file", path);
    else if (info.st_uid != geteuid() || (info.st_mode & 022))
        status = adli_fail(ADL_EINVAL,
                           "%s: was made by another user, or others may write to it: remove it, or "
                           "when its content is yours: chown %u %s && chmod 600 %s",
                           path, (unsigned)geteuid(), path, path);
    if (status != ADL_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static adl_status remove_entry(int dir, const char *name, bool (*go_on)(void *user), void *user)
{
    char deep[300];
    struct stat info;
    if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", name, strerror(errno));
    removal r = {dir, name, info.st_dev, 0, go_on, user};
    remove_below(&r, dir, name, 0);
    for (long i = 0; i < r.moved; i++) {
        aside(&r, i, deep);
        remove_below(&r, dir, deep, 0);
    }
    if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) == 0)
        return adli_fail(ADL_EIO, "%s: not all of it could be removed", name);
    return ADL_OK;
}

adl_status adli_dirs_remove_while(int dir, const char *path, bool (*go_on)(void *user), void *user)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return remove_entry(dir, path, go_on, user);
    char *above = strndup(path, (size_t)(slash - path) + 1);
    int parent = above ? openat(dir, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int why = errno;
    adl_status status = ADL_OK;
    if (parent >= 0)
        status = remove_entry(parent, slash + 1, go_on, user);
    else if (why != ENOENT)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(why));
    if (parent >= 0)
        close(parent);
    free(above);
    return status;
}

adl_status adli_dirs_remove(int dir, const char *path)
{
    return adli_dirs_remove_while(dir, path, NULL, NULL);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The buffer's text becomes the caller's. */
static adl_status take_text(adli_buf *buf, char **out)
{
    adl_status status = adli_buf_check(buf);
    *out = NULL;
    if (status == ADL_OK) {
        *out = buf->data;
        *buf = (adli_buf){0};
    }
    adli_buf_fini(buf);
    return status;
}

adl_status adli_absolute(const char *path, char **out)
{
    char here[PATH_MAX];
    adli_buf buf;
    *out = NULL;
    if (path[0] != '/' && !getcwd(here, sizeof here))
        return adli_fail(ADL_EIO, "the present directory: %s", strerror(errno));
    adli_buf_init(&buf, PATH_MAX);
    if (path[0] != '/')
        adli_buf_printf(&buf, "%s/", here);
    adli_buf_puts(&buf, path);
    while (buf.length > 1 && buf.data[buf.length - 1] == '/')
        buf.data[--buf.length] = '\0';
    return take_text(&buf, out);
}

adl_status adli_state_dir(const char *given, char **out)
{
    const char *state = given && *given ? given : variable("ADAPTDL_STATE");
    const char *xdg = variable("XDG_STATE_HOME"), *home = variable("HOME");
    adli_buf path;
    *out = NULL;
    if (state)
        return adli_absolute(state, out);
    adli_buf_init(&path, PATH_MAX);
    if (xdg && xdg[0] == '/')
        adli_buf_printf(&path, "%s/adaptdl", xdg);
    else if (home && home[0] == '/')
        adli_buf_printf(&path, "%s/.local/state/adaptdl", home);
    else
        return adli_fail(ADL_EINVAL, "no state directory: set HOME or ADAPTDL_STATE");
    return take_text(&path, out);
}
