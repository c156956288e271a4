/* Stands between the operator and a real API server and spoils what goes through, so that faults come when they should.
 *
 *     helper_proxy UPSTREAM-PORT LOG PID-FILE KIND N     prints its own port on 127.0.0.1
 *
 * Upstream is plain HTTP on 127.0.0.1 (kubectl proxy). One request to a connection. Requests are counted, and written to
 * LOG, but for those of leases, which come by the clock; "killed" is a line of it, too.
 *     none     nothing is spoiled
 *     before   the process of PID-FILE is killed when the Nth request comes, which goes nowhere
 *     after    it is killed when the Nth request was answered, without the answer
 *     429      every Nth request is answered with that
 *     409      every Nth request that writes is
 *     410      every Nth watch is, and every watch is cut after two seconds
 *     slow     every request waits for N milliseconds */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 64 << 10, CUT_MS = 2000 };

static int upstream, log_fd;
static const char *pid_file, *kind;
static long every;
static atomic_long requests, writes, watches;

typedef struct request {
    char head[HEAD_MAX];
    size_t length, head_length; /* what was read, and where the head ends */
    bool lease, write, watch;
    long number;
} request;

static bool is(const char *what)
{
    return strcmp(kind, what) == 0;
}

static bool send_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        data += sent;
        length -= (size_t)sent;
    }
    return true;
}

static bool read_head(int fd, request *r)
{
    char *end = NULL;
    while (!end && r->length < sizeof r->head - 1) {
        ssize_t got = recv(fd, r->head + r->length, sizeof r->head - 1 - r->length, 0);
        if (got <= 0)
            return false;
        r->length += (size_t)got;
        r->head[r->length] = '\0';
        end = strstr(r->head, "\r\n\r\n");
    }
    r->head_length = end ? (size_t)(end - r->head) : 0;
    return end != NULL;
}

static void classify(request *r)
{
    char line[1024];
    int length = (int)strcspn(r->head, "\r");
    r->lease = memmem(r->head, (size_t)length, "/leases", 7) != NULL;
    r->watch = memmem(r->head, (size_t)length, "watch=", 6) != NULL;
    r->write = strncmp(r->head, "GET ", 4) != 0;
    if (r->lease)
        return;
    r->number = atomic_fetch_add(&requests, 1) + 1;
    int size =
        snprintf(line, sizeof line, "%ld %.*s\n", r->number, length < 900 ? length : 900, r->head);
    if (write(log_fd, line, (size_t)size) != size)
        abort();
}

static void kill_it(void)
{
    char text[32] = "";
    int fd = open(pid_file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
        abort();
    close(fd);
    if (kill((pid_t)atol(text), SIGKILL) != 0 || write(log_fd, "killed\n", 7) != 7)
        abort();
}

static void refuse(int fd, int code, const char *reason)
{
    char body[256], head[256];
    int size = snprintf(body, sizeof body,
                        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\","
                        "\"code\":%d,\"reason\":\"%s\",\"message\":\"spoiled on its way\"}",
                        code, reason);
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
                          "Connection: close\r\nContent-Length: %d\r\n\r\n",
                          code, reason, size);
    if (send_all(fd, head, (size_t)length))
        send_all(fd, body, (size_t)size);
}

/* True: it was answered, or nobody waits for an answer any more. */
static bool spoil(int fd, const request *r)
{
    if (is("slow"))
        usleep((useconds_t)every * 1000);
    if (is("before") && r->number == every) {
        kill_it();
        return true;
    }
    if (is("429") && r->number % every == 0) {
        refuse(fd, 429, "TooManyRequests");
        return true;
    }
    if (is("409") && r->write && (atomic_fetch_add(&writes, 1) + 1) % every == 0) {
        refuse(fd, 409, "Conflict");
        return true;
    }
    if (is("410") && r->watch && (atomic_fetch_add(&watches, 1) + 1) % every == 0) {
        refuse(fd, 410, "Expired");
        return true;
    }
    return false;
}

static int connect_upstream(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)upstream)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Bytes both ways until one side is done. mute: what comes back is not passed on. */
static void pass(int client, int server, int limit_ms, bool mute)
{
    char chunk[16384];
    struct pollfd both[] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    while (poll(both, 2, limit_ms) > 0)
        for (int i = 0; i < 2; i++) {
            if (!both[i].revents)
                continue;
            ssize_t got = recv(both[i].fd, chunk, sizeof chunk, 0);
            if (got <= 0 || (!(i == 1 && mute) && !send_all(both[1 - i].fd, chunk, (size_t)got)))
                return;
        }
}

static void forward(int client, const request *r)
{
    static const char close_it[] = "\r\nConnection: close";
    bool last = is("after") && r->number == every;
    int server = connect_upstream();
    if (server < 0)
        return;
    if (send_all(server, r->head, r->head_length) &&
        send_all(server, close_it, sizeof close_it - 1) &&
        send_all(server, r->head + r->head_length, r->length - r->head_length))
        pass(client, server, is("410") && r->watch ? CUT_MS : -1, last);
    if (last)
        kill_it();
    close(server);
}

static void *serve(void *data)
{
    int client = (int)(long)data;
    request *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    if (read_head(client, r)) {
        classify(r);
        if (r->lease || !spoil(client, r))
            forward(client, r);
    }
    free(r);
    shutdown(client, SHUT_RDWR);
    close(client);
    return NULL;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    if (argc != 6 || atol(argv[5]) < 1) {
        fprintf(stderr, "Usage: helper_proxy UPSTREAM-PORT LOG PID-FILE KIND N\n");
        return 2;
    }
    upstream = atoi(argv[1]);
    log_fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    pid_file = argv[3];
    kind = argv[4];
    every = atol(argv[5]);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (log_fd < 0 || door < 0 || bind(door, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(door, 64) != 0 || getsockname(door, (struct sockaddr *)&at, &size) != 0) {
        perror("helper_proxy");
        return 1;
    }
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int client = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 && pthread_create(&thread, NULL, serve, (void *)(long)client) == 0)
            pthread_detach(thread);
    }
}
