/* Files of the log directory. A file is written beside its place, made safe on disk and renamed, so
 * that a kill or a power cut leaves the old one or the new one. */
#include "runner/runner.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES_MAX = 4096, COPY_BYTES_MAX = 1 << 20 };

static adl_status put_all(int fd, const char *path, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t wrote = write(fd, data, length);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return adli_fail(ADL_EIO, "%s: %s", path, strerror(wrote ? errno : ENOSPC));
        data += wrote;
        length -= (size_t)wrote;
    }
    return ADL_OK;
}

/* Opens the file beside the place of path; its name goes into buf. */
static adl_status open_beside(const char *path, adli_buf *buf, int *fd)
{
    adli_buf_init(buf, PATH_BYTES_MAX);
    adli_buf_printf(buf, "%s.tmp.%ld", path, (long)getpid());
    *fd = -1;
    adl_status status = adli_buf_check(buf);
    if (status != ADL_OK)
        return status;
    *fd = open(buf->data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd >= 0 ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
}

/* Puts what was written in its place, or removes it when status says so. Frees buf. */
static adl_status move_there(const char *path, adli_buf *buf, int fd, adl_status status)
{
    if (status == ADL_OK && fsync(fd) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) != 0 && status == ADL_OK)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (status == ADL_OK && rename(buf->data, path) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (status != ADL_OK && fd >= 0)
        unlink(buf->data);
    adli_buf_fini(buf);
    return status;
}

adl_status adli_write_safely(const char *path, const void *data, size_t length)
{
    adli_buf beside;
    int fd;
    adl_status status = open_beside(path, &beside, &fd);
    if (status == ADL_OK)
        status = put_all(fd, path, data, length);
    return move_there(path, &beside, fd, status);
}

adl_status adli_append_safely(const char *path, const void *data, size_t length)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    adl_status status = put_all(fd, path, data, length);
    if (status == ADL_OK && fsync(fd) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (close(fd) != 0 && status == ADL_OK)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return status;
}

static adl_status copy_all(int from_fd, const char *from, int to_fd, const char *to)
{
    char *piece = adli_calloc(1, COPY_BYTES_MAX);
    adl_status status = piece ? ADL_OK : adli_fail_memory("copy of a model");
    for (ssize_t got = 1; status == ADL_OK && got > 0;) {
        got = read(from_fd, piece, COPY_BYTES_MAX);
        if (got < 0)
            status = adli_fail(ADL_EIO, "%s: %s", from, strerror(errno));
        else
            status = put_all(to_fd, to, piece, (size_t)got);
    }
    free(piece);
    return status;
}

adl_status adli_copy_safely(const char *from, const char *to)
{
    adli_buf beside;
    int from_fd = open(from, O_RDONLY | O_CLOEXEC), to_fd;
    if (from_fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", from, strerror(errno));
    adl_status status = open_beside(to, &beside, &to_fd);
    if (status == ADL_OK)
        status = copy_all(from_fd, from, to_fd, to);
    close(from_fd);
    return move_there(to, &beside, to_fd, status);
}

adl_status adli_runner_path(const adl_runner *runner, adli_buf *buf, const char *folder,
                            const char *name)
{
    adli_buf_init(buf, PATH_BYTES_MAX - 64);
    adli_buf_printf(buf, "%s/%s", runner->logdir, folder);
    if (name)
        adli_buf_printf(buf, "/%s", name);
    adl_status status = adli_buf_check(buf);
    if (status != ADL_OK)
        adli_buf_fini(buf);
    return status;
}

void adli_put_number(adli_buf *buf, double value)
{
    if (isnan(value)) {
        adli_buf_puts(buf, "nan");
    } else if (isinf(value)) {
        adli_buf_puts(buf, value > 0 ? "inf" : "-inf");
    } else {
        size_t before = buf->length;
        adli_buf_double(buf, value);
        if (buf->status == ADL_OK && !strpbrk(buf->data + before, ".e"))
            adli_buf_puts(buf, ".0");
    }
}
