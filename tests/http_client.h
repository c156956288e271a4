/* A raw HTTP client for tests of servers: bytes out, bytes in, nothing clever. Every read has a limit of
 * 20 s, so that a server that hangs fails a test instead of blocking it. */
#ifndef ADLI_TEST_HTTP_CLIENT_H
#define ADLI_TEST_HTTP_CLIENT_H

#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct adlt_answer {
    int code;   /* 0: none came */
    char *text; /* head and body as they came, NUL-terminated */
    size_t length;
    char *body; /* into text; chunks are not put together unless adlt_get did */
    size_t body_length;
} adlt_answer;

static inline int adlt_connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline int adlt_connect(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline bool adlt_send(int fd, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        ssize_t done = send(fd, at, length, MSG_NOSIGNAL);
        if (done <= 0)
            return false;
        at += done;
        length -= (size_t)done;
    }
    return true;
}

/* One read, appended; false at the end or after 20 s of silence. */
static inline bool adlt_read_more(int fd, adlt_answer *answer)
{
    struct pollfd wait = {fd, POLLIN, 0};
    char piece[65536];
    if (poll(&wait, 1, 20000) <= 0)
        return false;
    ssize_t got = recv(fd, piece, sizeof piece, 0);
    if (got <= 0)
        return false;
    answer->text = realloc(answer->text, answer->length + (size_t)got + 1);
    memcpy(answer->text + answer->length, piece, (size_t)got);
    answer->length += (size_t)got;
    answer->text[answer->length] = '\0';
    return true;
}

/* Reads until text has come in. */
static inline bool adlt_read_until(int fd, adlt_answer *answer, const char *text)
{
    while (!answer->text || !strstr(answer->text, text))
        if (!adlt_read_more(fd, answer))
            return false;
    return true;
}

static inline void adlt_unchunk(adlt_answer *answer)
{
    char *in = answer->body, *out = answer->body;
    for (;;) {
        char *end;
        size_t size = strtoul(in, &end, 16);
        if (end == in || size == 0)
            break;
        in = end + 2;
        memmove(out, in, size);
        out += size;
        in += size + 2;
    }
    *out = '\0';
    answer->body_length = (size_t)(out - answer->body);
}

/* Reads one answer: by Content-Length, chunks, or to the end of the connection. */
static inline adlt_answer adlt_read_answer(int fd, bool head_only)
{
    adlt_answer answer = {0};
    if (!adlt_read_until(fd, &answer, "\r\n\r\n"))
        return answer;
    size_t head = (size_t)(strstr(answer.text, "\r\n\r\n") + 4 - answer.text);
    const char *length = strcasestr(answer.text, "\r\nContent-Length:");
    bool chunked = strcasestr(answer.text, "\r\nTransfer-Encoding: chunked") != NULL;
    sscanf(answer.text, "HTTP/1.%*d %d", &answer.code);
    if (head_only || answer.code == 304 || answer.code == 100) {
        ;
    } else if (length && length < answer.text + head) {
        size_t whole = head + strtoul(length + 17, NULL, 10);
        while (answer.length < whole && adlt_read_more(fd, &answer))
            ;
    } else if (chunked) {
        while (!strstr(answer.text + head - 2, "\r\n0\r\n\r\n") && adlt_read_more(fd, &answer))
            ;
    } else {
        while (adlt_read_more(fd, &answer))
            ;
    }
    answer.body = answer.text + head;
    answer.body_length = answer.length - head;
    if (chunked && !head_only)
        adlt_unchunk(&answer);
    return answer;
}

static inline void adlt_answer_free(adlt_answer *answer)
{
    free(answer->text);
    *answer = (adlt_answer){0};
}

/* One request on a connection that stays open. headers: "A: b\r\n" ... or "". */
static inline adlt_answer adlt_exchange(int fd, const char *method, const char *path,
                                        const char *headers, const char *body, size_t length)
{
    char head[4096];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path,
                     headers);
    if (body)
        n += snprintf(head + n, sizeof head - (size_t)n, "Content-Length: %zu\r\n", length);
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    adlt_send(fd, head, (size_t)n);
    if (body)
        adlt_send(fd, body, length);
    return adlt_read_answer(fd, strcmp(method, "HEAD") == 0);
}

/* One request on a connection of its own. */
static inline adlt_answer adlt_once(int port, const char *method, const char *path,
                                    const char *headers, const char *body)
{
    int fd = adlt_connect(port);
    adlt_answer answer = {0};
    if (fd < 0)
        return answer;
    answer = adlt_exchange(fd, method, path, headers, body, body ? strlen(body) : 0);
    close(fd);
    return answer;
}

/* Code of the answer; its body must contain `text` (NULL: anything), or -1. */
static inline int adlt_code(int port, const char *method, const char *path, const char *headers,
                            const char *body, const char *text)
{
    adlt_answer answer = adlt_once(port, method, path, headers, body);
    int code = answer.code;
    if (code && text && !strstr(answer.text, text)) {
        printf("# %s %s: %s\n", method, path, answer.text);
        code = -1;
    }
    adlt_answer_free(&answer);
    return code;
}

/* Bytes as they are, then everything that comes back until the server closes. */
static inline adlt_answer adlt_raw(int port, const void *data, size_t length, bool half_close)
{
    adlt_answer answer = {0};
    int fd = adlt_connect(port);
    if (fd < 0)
        return answer;
    adlt_send(fd, data, length);
    if (half_close)
        shutdown(fd, SHUT_WR);
    while (adlt_read_more(fd, &answer))
        ;
    if (answer.text)
        sscanf(answer.text, "HTTP/1.%*d %d", &answer.code);
    close(fd);
    return answer;
}

static inline int adlt_open_files(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

/* Room for `need` descriptors; false when the system does not allow so many. */
static inline bool adlt_raise_files(rlim_t need)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < need && limit.rlim_max >= need) {
        limit.rlim_cur = need;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur >= need;
}

#endif
