/* A directory and what is below it, once more. Files may be anybody's: no link is followed, and what is neither a file
 * nor a directory is left out. */
#include "base/dirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 200, PIECE = 1 << 16 };

static adl_status failed(const char *name)
{
    return adli_fail(ADL_EIO, "%s: %s", name, strerror(errno));
}

static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t put = write(fd, data, length);
        if (put < 0 && errno != EINTR)
            return false;
        data += put > 0 ? put : 0;
        length -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

static adl_status copy_file(int from, int to_dir, const char *name, mode_t mode)
{
    char piece[PIECE];
    adl_status status = ADL_OK;
    int to =
        openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
    if (to < 0)
        return failed(name);
    for (ssize_t got; status == ADL_OK && (got = read(from, piece, sizeof piece)) != 0;)
        if (got < 0 ? errno != EINTR : !write_all(to, piece, (size_t)got))
            status = failed(name);
    if (close(to) != 0 && status == ADL_OK)
        status = failed(name);
    return status;
}

static adl_status copy_entries(int from, int to, int depth);

static adl_status copy_entry(int from_dir, int to_dir, const char *name, int depth)
{
    struct stat info;
    adl_status status = ADL_OK;
    int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0) /* a link, a socket, gone meanwhile, or not ours to read */
        return errno == ELOOP || errno == ENXIO || errno == ENOENT ? ADL_OK : failed(name);
    if (fstat(from, &info) != 0) {
        status = failed(name);
    } else if (S_ISREG(info.st_mode)) {
        status = copy_file(from, to_dir, name, info.st_mode);
    } else if (S_ISDIR(info.st_mode) && depth < DEPTH_MAX) {
        int to = mkdirat(to_dir, name, 0755) == 0
                     ? openat(to_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                     : -1;
        status = to >= 0 ? copy_entries(from, to, depth + 1) : failed(name);
        if (to >= 0)
            close(to);
    }
    close(from);
    return status;
}

static adl_status copy_entries(int from, int to, int depth)
{
    int again = fcntl(from, F_DUPFD_CLOEXEC, 0);
    DIR *stream = again >= 0 ? fdopendir(again) : NULL;
    adl_status status = ADL_OK;
    if (!stream) {
        status = failed("directory");
        if (again >= 0)
            close(again);
        return status;
    }
    for (struct dirent *entry; status == ADL_OK && (entry = readdir(stream));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = copy_entry(from, to, entry->d_name, depth);
    closedir(stream);
    return status;
}

adl_status adli_dirs_copy(const char *from, const char *to)
{
    int source = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int target = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    adl_status status = source < 0   ? failed(from)
                        : target < 0 ? failed(to)
                                     : copy_entries(source, target, 0);
    if (source >= 0)
        close(source);
    if (target >= 0)
        close(target);
    return status;
}
