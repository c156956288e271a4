/* Arbitrary bytes to a real server through a Unix socket, in two pieces: whatever comes, the connection
 * ends and the next one is served, and what is refused is refused in JSON. This drives libmicrohttpd's parser together with our callbacks. */
#include "httpd/httpd.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static adli_httpd *httpd;
static char path[64];

static adli_httpd_verdict echo(void *user, adli_httpd_request *request)
{
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    (void)user;
    adli_httpd_set_header(request, "X-Part", adli_httpd_part(request, 0));
    adli_httpd_answer(request, 200, "text/plain", body, length);
    return ADLI_HTTPD_DONE;
}

static void check(void *user, adli_httpd_request *request, const adli_httpd_route *route)
{
    const char *token = adli_httpd_token(request);
    (void)user;
    if (route->access && (!token || !adli_httpd_secret_equal(token, "secret")))
        adli_httpd_answer_error(request, 401, "token");
}

static void stop(void)
{
    adli_httpd_free(httpd);
}

static void start(void)
{
    static const adli_httpd_route routes[] = {
        {"GET", "/a/{}", 1, 0, 0, false, echo},
        {"PUT", "/a/{}", 1, 0, 1000, false, echo},
        {"POST", "/slow/{}", 1, 0, 1000, true, echo},
        {"GET", "/secret/*", 1, 1, 0, false, echo},
    };
    adli_httpd_options options = {.routes = routes, .route_count = 4, .check = check};
    adli_httpd_listener listener = {.socket_path = path, .limits = ADLI_HTTPD_LIMITS};
    snprintf(path, sizeof path, "/tmp/adl-fuzz-%d.sock", (int)getpid());
    if (adli_httpd_new(&options, &httpd) != ADL_OK ||
        adli_httpd_listen(httpd, &listener, NULL) != ADL_OK)
        abort();
    atexit(stop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[4096];
    if (!httpd)
        start();
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        abort();
    size_t half = size ? data[0] % size : 0;
    if (send(fd, data, half, MSG_NOSIGNAL) >= 0 &&
        send(fd, data + half, size - half, MSG_NOSIGNAL) >= 0)
        shutdown(fd, SHUT_WR);
    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = poll(&wait, 1, 60000);
        if (ready < 0 && errno == EINTR) /* by the fuzzer's own clock */
            continue;
        if (ready <= 0)
            abort(); /* neither an answer nor an end */
        ssize_t got = recv(fd, answer, sizeof answer, 0);
        if (got <= 0)
            break;
        if (got > 9 && memcmp(answer, "HTTP/1.1 4", 10) == 0 &&
            !memmem(answer, (size_t)got, "application/json", 16))
            abort(); /* a refusal in other words than ours */
    }
    close(fd);
    return 0;
}
