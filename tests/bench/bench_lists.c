/* Many jobs: how long a page of the list takes while eight clients list, and a report beside them, and how fast the whole list
 * comes. bench_lists HOST PORT TOKEN SECONDS [PORT of a server with the same bytes at /jobs.json]. tests/bench/bench_lists.sh
 * starts what it needs. */
#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTERS = 8, SAMPLES_MAX = 1 << 20 };

static const char *token;
static struct sockaddr_in server;
static atomic_bool over;

typedef struct client {
    pthread_t thread;
    const char *request;
    double pause_s;
    double *samples_ms;
    size_t count;
    long long bytes;
} client;

static int dial(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = server;
    if (port)
        to.sin_port = htons((uint16_t)port);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* One exchange on a connection that stays; the length of its body. */
static long long exchange(int fd, const char *request, char *buf, size_t size)
{
    size_t have = 0;
    char *end = NULL;
    if (write(fd, request, strlen(request)) < 0)
        return -1;
    while (!end) {
        ssize_t got = read(fd, buf + have, size - 1 - have);
        if (got <= 0)
            return -1;
        have += (size_t)got;
        buf[have] = '\0';
        end = strstr(buf, "\r\n\r\n");
    }
    const char *length = strcasestr(buf, "\r\nContent-Length:");
    long long body = length ? atoll(length + 17) : 0, seen = (long long)have - (end + 4 - buf);
    bool fine = strncmp(buf, "HTTP/1.1 200", 12) == 0;
    while (seen < body) {
        ssize_t got = read(fd, buf, size);
        if (got <= 0)
            return -1;
        seen += got;
    }
    return fine ? body : -1;
}

static void *run(void *user)
{
    enum { SIZE = 1 << 20 };
    client *c = user;
    char *buf = malloc(SIZE);
    int fd = dial(0);
    while (buf && !atomic_load(&over) && c->count < SAMPLES_MAX) {
        double before_s = adli_monotonic_s();
        long long bytes = exchange(fd, c->request, buf, SIZE);
        if (bytes < 0) {
            fprintf(stderr, "bench_lists: a request failed\n");
            exit(1);
        }
        c->bytes += bytes;
        c->samples_ms[c->count++] = 1000 * (adli_monotonic_s() - before_s);
        if (c->pause_s > 0)
            usleep((useconds_t)(1e6 * c->pause_s));
    }
    close(fd);
    free(buf);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, client *clients, int count, double seconds)
{
    size_t total = 0;
    double *all = malloc(sizeof *all * SAMPLES_MAX);
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < clients[i].count && total < SAMPLES_MAX; j++)
            all[total++] = clients[i].samples_ms[j];
    qsort(all, total, sizeof *all, by_size);
    if (total > 0)
        printf("  %-44s %8.0f /s   p50 %7.2f ms   p99 %7.2f ms\n", what, (double)total / seconds,
               all[total / 2], all[total * 99 / 100]);
    free(all);
}

static void crowd(const char *list, const char *hints, double seconds)
{
    client clients[LISTERS + 1] = {0};
    for (int i = 0; i <= LISTERS; i++) {
        clients[i].request = i < LISTERS ? list : hints;
        clients[i].pause_s = i < LISTERS ? 0.05 : 0.01; /* people and programs that look often */
        clients[i].samples_ms = malloc(sizeof(double) * SAMPLES_MAX / 16);
        pthread_create(&clients[i].thread, NULL, run, &clients[i]);
    }
    usleep((useconds_t)(1e6 * seconds));
    atomic_store(&over, true);
    for (int i = 0; i <= LISTERS; i++)
        pthread_join(clients[i].thread, NULL);
    show("a page of 100 jobs, eight listers", clients, LISTERS, seconds);
    show("a report beside them", clients + LISTERS, 1, seconds);
    for (int i = 0; i <= LISTERS; i++)
        free(clients[i].samples_ms);
}

static double whole(const char *what, int port, const char *request, double seconds)
{
    enum { SIZE = 1 << 20 };
    char *buf = malloc(SIZE);
    int fd = dial(port), count = 0;
    long long bytes = 0;
    double began_s = adli_monotonic_s(), now_s;
    do {
        long long got = exchange(fd, request, buf, SIZE);
        if (got < 0) {
            fprintf(stderr, "bench_lists: %s failed\n", what);
            exit(1);
        }
        bytes += got;
        count++;
    } while ((now_s = adli_monotonic_s()) < began_s + seconds);
    printf("  %-44s %8.1f /s   %7.1f MB each   %7.0f MB/s\n", what, count / (now_s - began_s),
           (double)bytes / count / 1e6, (double)bytes / 1e6 / (now_s - began_s));
    close(fd);
    free(buf);
    return count / (now_s - began_s);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    token = argv[3];
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[2]));
    inet_pton(AF_INET, argv[1], &server.sin_addr);
    double seconds = atof(argv[4]);
    static const char body[] =
        "{\"initBatchSize\":32,\"localBszBounds\":[8,64],\"globalBatchSize\":64,\"maxBatchSize\":"
        "512,"
        "\"maxProfiledReplicas\":1,\"gradParams\":{\"norm\":0.5,\"var\":1.5},\"perfParams\":{"
        "\"alpha_c\":0.1,\"beta_c\":0.01,\"alpha_n\":0.1,\"beta_n\":0.01,\"alpha_r\":0.1,"
        "\"beta_r\":0.01,\"gamma\":1.5}}";
    char page[512], all[512], hints[2048], same[128];
    static const char format[] =
        "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n";
    snprintf(page, sizeof page, format, "/api/v1/jobs?limit=100", token);
    snprintf(all, sizeof all, format, "/api/v1/jobs", token);
    snprintf(hints, sizeof hints,
             "PUT /hints/default/job-0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             token, sizeof body - 1, body);
    snprintf(same, sizeof same, "GET /jobs.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
    crowd(page, hints, seconds);
    double ours = whole("the whole list", 0, all, seconds);
    if (argc > 5) {
        double theirs = whole("the same bytes by nginx", atoi(argv[5]), same, seconds);
        printf("  the whole list is %.2f times as fast as nginx\n", ours / theirs);
    }
    return 0;
}
