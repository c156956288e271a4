#include "launch/control.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 256, CLIENT_TIMEOUT_MS = 1000, ANSWER_TIMEOUT_MS = 10000 };

/* The directory, made with access for this user alone; one that another user made is refused. */
static adl_status runtime_directory(adli_buf *path)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    struct stat info;
    if (base && *base && stat(base, &info) == 0)
        adli_buf_printf(path, "%s/adaptdl", base);
    else
        adli_buf_printf(path, "/tmp/adaptdl-%ld", (long)getuid());
    adl_status status = adli_buf_check(path);
    if (status != ADL_OK)
        return status;
    if (mkdir(path->data, 0700) != 0 && errno != EEXIST)
        return adli_fail(ADL_EIO, "%s: %s", path->data, strerror(errno));
    if (lstat(path->data, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid() ||
        (info.st_mode & 022))
        return adli_fail(ADL_EIO, "%s: is not a directory of this user alone", path->data);
    return ADL_OK;
}

static adl_status socket_address(const char *name, adli_buf *path, struct sockaddr_un *address)
{
    const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (!*name || name[0] == '.' || strspn(name, allowed) != strlen(name))
        return adli_fail(ADL_EINVAL,
                         "run \"%s\": names consist of letters, digits, '.', '_' and '-'", name);
    adl_status status = runtime_directory(path);
    if (status != ADL_OK)
        return status;
    adli_buf_printf(path, "/%s.sock", name);
    status = adli_buf_check(path);
    if (status != ADL_OK)
        return status;
    if (path->length >= sizeof address->sun_path)
        return adli_fail(ADL_EINVAL, "run \"%s\": the name is too long", name);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path->data, path->length + 1);
    return ADL_OK;
}

static adl_status connect_to(const char *name, const struct sockaddr_un *address, int *fd)
{
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return adli_fail(ADL_EIO, "socket: %s", strerror(errno));
    if (connect(*fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return ADL_OK;
    close(*fd);
    return adli_fail(ADL_ENOENT, "run \"%s\": there is none of that name", name);
}

adl_status adli_control_open(adli_control *control, const char *name)
{
    struct sockaddr_un address;
    int other;
    control->fd = -1;
    adli_buf_init(&control->path, 4096);
    adl_status status = socket_address(name, &control->path, &address);
    if (status != ADL_OK)
        return status;
    if (connect_to(name, &address, &other) == ADL_OK) {
        close(other);
        return adli_fail(ADL_ESTATE, "run \"%s\": there is one of that name already", name);
    }
    unlink(control->path.data); /* left by one that was killed */
    control->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control->fd < 0 || bind(control->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(control->fd, 8) != 0)
        return adli_fail(ADL_EIO, "%s: %s", control->path.data, strerror(errno));
    return ADL_OK;
}

void adli_control_close(adli_control *control)
{
    if (control->fd >= 0) {
        close(control->fd);
        unlink(control->path.data);
    }
    control->fd = -1;
    adli_buf_fini(&control->path);
}

/* Reads up to a newline, which is cut off. */
static bool read_line(int fd, int timeout_ms, adli_buf *line)
{
    for (;;) {
        char byte;
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, timeout_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || recv(fd, &byte, 1, 0) != 1)
            return false;
        if (byte == '\n')
            break;
        adli_buf_append(line, &byte, 1);
        if (line->status != ADL_OK)
            return false;
    }
    adli_buf_append(line, "", 0);
    return line->status == ADL_OK;
}

void adli_control_serve(adli_control *control, bool (*adopt)(void *user, const char *line, int fd),
                        void (*answer)(void *user, const char *line, adli_buf *out), void *user)
{
    int fd = accept4(control->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    adli_buf line, out;
    adli_buf_init(&line, LINE_MAX_BYTES);
    adli_buf_init(&out, 4096);
    bool heard = read_line(fd, CLIENT_TIMEOUT_MS, &line);
    if (heard && adopt(user, line.data, fd)) {
        fd = -1;
    } else if (heard) {
        answer(user, line.data, &out);
        adli_buf_puts(&out, "\n");
        if (adli_buf_check(&out) == ADL_OK && send(fd, out.data, out.length, MSG_NOSIGNAL) < 0) {
            /* The client has gone away: its loss. */
        }
    }
    adli_buf_fini(&out);
    adli_buf_fini(&line);
    if (fd >= 0)
        close(fd);
}

adl_status adli_control_ask(const char *name, const char *line, adli_buf *answer)
{
    struct sockaddr_un address;
    adli_buf path, text;
    int fd = -1;
    adli_buf_init(&path, 4096);
    adli_buf_init(&text, LINE_MAX_BYTES);
    adli_buf_printf(&text, "%s\n", line);
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = socket_address(name, &path, &address);
    if (status == ADL_OK)
        status = connect_to(name, &address, &fd);
    if (status == ADL_OK && (send(fd, text.data, text.length, MSG_NOSIGNAL) < 0 ||
                             !read_line(fd, ANSWER_TIMEOUT_MS, answer)))
        status = adli_fail(ADL_EIO, "run \"%s\": does not answer", name);
    if (fd >= 0)
        close(fd);
    adli_buf_fini(&text);
    adli_buf_fini(&path);
    return status;
}
