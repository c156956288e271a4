/* Servers and how they are addressed, and exchanges that stream: over Unix sockets, several at a
 * time, with bodies from files, and with servers that break off. */
#include "harness.h"
#include "http_server.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "client/server.h"
#include "client/stream.h"

#include <fcntl.h>
#include <sys/un.h>

/* ---- addresses ---- */

static void clear_environment(void)
{
    static const char *const names[] = {"ADAPTDL_SERVER", "ADAPTDL_STATE", "ADAPTDL_TOKEN",
                                        "ADAPTDL_CA", "XDG_STATE_HOME"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    setenv("HOME", "/home/me", 1);
}

TEST(the_state_directory)
{
    char *path;
    clear_environment();
    REQUIRE_OK(adli_state_dir(NULL, &path));
    CHECK(strcmp(path, "/home/me/.local/state/adaptdl") == 0);
    free(path);
    setenv("XDG_STATE_HOME", "/var/s", 1);
    REQUIRE_OK(adli_state_dir(NULL, &path));
    CHECK(strcmp(path, "/var/s/adaptdl") == 0);
    free(path);
    setenv("ADAPTDL_STATE", "/tmp/x//", 1);
    REQUIRE_OK(adli_state_dir("", &path));
    CHECK(strcmp(path, "/tmp/x") == 0);
    free(path);
    REQUIRE_OK(adli_state_dir("rel", &path));
    CHECK(path[0] == '/' && strcmp(path + strlen(path) - 4, "/rel") == 0);
    free(path);
    clear_environment();
    unsetenv("HOME");
    CHECK_FAILS(adli_state_dir(NULL, &path), ADL_EINVAL, "set HOME or ADAPTDL_STATE");
    CHECK(!path);
}

TEST(addresses_of_servers)
{
    adli_server server;
    char path[200];
    clear_environment();
    REQUIRE_OK(adli_server_init(&server, NULL, NULL, NULL));
    CHECK(strcmp(server.socket_path, "/home/me/.local/state/adaptdl/adaptdl.sock") == 0);
    CHECK(!server.token && !server.ca_file);
    adli_server_fini(&server);
    setenv("ADAPTDL_SERVER", "https://host:1234/", 1);
    setenv("ADAPTDL_TOKEN", "abc", 1);
    setenv("ADAPTDL_CA", "/ca.pem", 1);
    REQUIRE_OK(adli_server_init(&server, NULL, NULL, NULL));
    CHECK(!server.socket_path && strcmp(server.url, "https://host:1234") == 0);
    CHECK(strcmp(server.token, "abc") == 0 && strcmp(server.ca_file, "/ca.pem") == 0);
    adli_server_fini(&server);
    REQUIRE_OK(adli_server_init(&server, NULL, "/st", "/other.pem")); /* --state wins */
    CHECK(strcmp(server.socket_path, "/st/adaptdl.sock") == 0);
    CHECK(strcmp(server.ca_file, "/other.pem") == 0);
    adli_server_fini(&server);
    REQUIRE_OK(adli_server_init(&server, "unix:/a/b.sock", "/st", NULL));
    CHECK(strcmp(server.socket_path, "/a/b.sock") == 0);
    adli_server_fini(&server);
    CHECK_FAILS(adli_server_init(&server, "host:80", NULL, NULL), ADL_EINVAL, "expected unix:PATH");
    CHECK_FAILS(adli_server_init(&server, "unix:", NULL, NULL), ADL_EINVAL, "no path");
    CHECK_FAILS(adli_server_init(&server, "http://", NULL, NULL), ADL_EINVAL, "http://HOST:PORT");
    CHECK_FAILS(adli_server_init(&server, "http://u:p@h", NULL, NULL), ADL_EINVAL, "HOST:PORT");
    snprintf(path, sizeof path, "unix:/%0120d", 1);
    CHECK_FAILS(adli_server_init(&server, path, NULL, NULL), ADL_EINVAL, "longer than 107 bytes");
    setenv("ADAPTDL_TOKEN", "a\r\nX: y", 1);
    CHECK_FAILS(adli_server_init(&server, "http://h", NULL, NULL), ADL_EINVAL, "one line");
    CHECK(!server.url);
    clear_environment();
}

/* ---- a server ---- */

/* Raw answers, since the small server of the other tests does not stream. One thread for each
 * connection: exchanges overlap. */
typedef struct raw_server {
    int fd;
    char path[100];
    adli_server address;
    pthread_t thread;
    atomic_bool ending;
    pthread_mutex_t lock;
    char seen[4096]; /* the last request's head */
} raw_server;

typedef struct connection {
    raw_server *server;
    int fd;
} connection;

static void say(int fd, const char *text)
{
    size_t length = strlen(text);
    while (length > 0) {
        ssize_t done = send(fd, text, length, MSG_NOSIGNAL);
        if (done <= 0)
            return;
        text += done;
        length -= (size_t)done;
    }
}

static void chunk(int fd, const char *text)
{
    char head[32];
    snprintf(head, sizeof head, "%zx\r\n", strlen(text));
    say(fd, head);
    say(fd, text);
    say(fd, "\r\n");
}

static void answer(connection *c, const char *path, const char *body)
{
    static const char chunked[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    if (strcmp(path, "/plain") == 0) {
        say(c->fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    } else if (strcmp(path, "/slow") == 0) { /* until the server ends */
        say(c->fd, chunked);
        for (int i = 0; !atomic_load(&c->server->ending); i++) {
            chunk(c->fd, "tick\n");
            usleep(10000);
        }
    } else if (strcmp(path, "/three") == 0) {
        say(c->fd, chunked);
        chunk(c->fd, "one ");
        usleep(20000);
        chunk(c->fd, "two ");
        usleep(20000);
        chunk(c->fd, "three");
        say(c->fd, "0\r\n\r\n");
    } else if (strcmp(path, "/broken") == 0) {
        say(c->fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
    } else if (strcmp(path, "/directory") == 0) {
        say(c->fd, "HTTP/1.1 200 OK\r\nx-adaptdl-directory: 1\r\nContent-Length: 2\r\n\r\n{}");
    } else if (strcmp(path, "/refused") == 0) {
        say(c->fd, "HTTP/1.1 409 X\r\nContent-Length: 2\r\n\r\nno");
    } else if (strcmp(path, "/redirect") == 0) {
        say(c->fd, "HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    } else if (strcmp(path, "/count") == 0) {
        char text[32];
        snprintf(text, sizeof text, "%zu", strlen(body));
        char head[200];
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(text), text);
        say(c->fd, head);
    } else if (strcmp(path, "/nonsense") == 0) {
        say(c->fd, "this is not HTTP at all\r\n\r\n");
    }
}

static void *serve(void *user)
{
    connection c = *(connection *)user;
    enum { CAPACITY = 4 << 20 };
    char *buf = calloc(CAPACITY, 1);
    size_t used = 0;
    char path[128] = "";
    free(user);
    if (adlt_server_read(c.fd, buf, &used, CAPACITY, 0)) {
        char *body = strstr(buf, "\r\n\r\n") + 4;
        const char *length = strcasestr(buf, "Content-Length:");
        size_t want = length && length < body ? strtoul(length + 15, NULL, 10) : 0;
        pthread_mutex_lock(&c.server->lock);
        snprintf(c.server->seen, sizeof c.server->seen, "%.*s", (int)(body - buf), buf);
        pthread_mutex_unlock(&c.server->lock);
        sscanf(buf, "%*s %127s", path);
        if (strcmp(path, "/too-large") == 0) { /* whoever sends more finds the pipe broken */
            shutdown(c.fd, SHUT_RD);
            usleep(20000);
            say(c.fd, "HTTP/1.1 413 X\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large");
            path[0] = '\0';
        } else if (strstr(c.server->seen, "Expect: 100-continue")) {
            say(c.fd, "HTTP/1.1 100 Continue\r\n\r\n");
        }
        if (path[0] && adlt_server_read(c.fd, buf, &used, CAPACITY, (size_t)(body - buf) + want))
            answer(&c, path, body);
    }
    close(c.fd);
    free(buf);
    return NULL;
}

static void *accept_all(void *user)
{
    raw_server *server = user;
    pthread_t threads[64];
    int count = 0;
    while (!atomic_load(&server->ending)) {
        struct pollfd wait = {server->fd, POLLIN, 0};
        if (poll(&wait, 1, 20) <= 0 || count == 64)
            continue;
        connection *c = malloc(sizeof *c);
        *c = (connection){server, accept(server->fd, NULL, NULL)};
        pthread_create(&threads[count++], NULL, serve, c);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return NULL;
}

static bool begin(raw_server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(server, 0, sizeof *server);
    pthread_mutex_init(&server->lock, NULL);
    snprintf(server->path, sizeof server->path, "/tmp/adl-stream-%ld.sock", (long)getpid());
    snprintf(address.sun_path, sizeof address.sun_path, "%s", server->path);
    unlink(server->path);
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char text[120];
    snprintf(text, sizeof text, "unix:%s", server->path);
    setenv("ADAPTDL_TOKEN", "secret", 1);
    return bind(server->fd, (struct sockaddr *)&address, sizeof address) == 0 &&
           listen(server->fd, 16) == 0 &&
           pthread_create(&server->thread, NULL, accept_all, server) == 0 &&
           adli_server_init(&server->address, text, NULL, NULL) == ADL_OK;
}

static void end(raw_server *server)
{
    atomic_store(&server->ending, true);
    pthread_join(server->thread, NULL);
    close(server->fd);
    unlink(server->path);
    adli_server_fini(&server->address);
    pthread_mutex_destroy(&server->lock);
}

static adl_status collect(void *user, const char *data, size_t length)
{
    adli_buf_append(user, data, length);
    return adli_buf_check(user);
}

static adl_status get(adli_streams *set, const char *path, adli_buf *out, int *code)
{
    adli_stream_request request = {.method = "GET", .path = path, .timeout_ms = 10000};
    return adli_stream_exchange(set, &request, NULL, out, code);
}

TEST(exchanges_over_a_socket)
{
    raw_server server;
    adli_streams *set;
    adli_buf out;
    int code;
    REQUIRE(begin(&server));
    REQUIRE_OK(adli_streams_new(&server.address, &set));
    adli_buf_init(&out, 1000);
    REQUIRE_OK(get(set, "/plain", &out, &code));
    CHECK(code == 200 && strcmp(out.data, "hello") == 0);
    pthread_mutex_lock(&server.lock);
    CHECK(strstr(server.seen, "Authorization: Bearer secret\r\n") &&
          strstr(server.seen, "Host: localhost"));
    pthread_mutex_unlock(&server.lock);
    REQUIRE_OK(get(set, "/refused", &out, &code));
    CHECK(code == 409 && strcmp(out.data, "no") == 0);
    REQUIRE_OK(get(set, "/redirect", &out, &code)); /* not followed */
    CHECK(code == 302);
    CHECK_FAILS(get(set, "/broken", &out, &code), ADL_ENET, "GET /broken");
    CHECK_FAILS(get(set, "/nonsense", &out, &code), ADL_ENET, "GET /nonsense");
    adli_buf small;
    adli_buf_init(&small, 3);
    CHECK_FAILS(get(set, "/plain", &small, &code), ADL_EINVAL, "larger than 3 bytes");
    adli_buf_fini(&small);
    adli_stream_request slow = {.method = "GET", .path = "/slow", .timeout_ms = 100};
    adli_buf_init(&small, 1 << 20);
    CHECK_FAILS(adli_stream_exchange(set, &slow, NULL, &small, &code), ADL_ETIMEOUT, "/slow");
    adli_buf_fini(&small);
    adli_buf_fini(&out);
    adli_streams_free(set);
    end(&server);
}

TEST(bodies_from_memory_and_from_files)
{
    raw_server server;
    adli_streams *set;
    adli_buf out;
    int code;
    char path[] = "/tmp/adl-body-XXXXXX";
    char *text = malloc(1000001);
    REQUIRE(begin(&server));
    REQUIRE_OK(adli_streams_new(&server.address, &set));
    adli_buf_init(&out, 1000);
    memset(text, 'x', 1000000);
    text[1000000] = '\0';
    int fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, text, 1000000) == 1000000);
    unlink(path);
    adli_stream_request request = {.method = "POST",
                                   .path = "/count",
                                   .body_fd = fd,
                                   .body_bytes = 1000000,
                                   .content_type = "application/x-tar",
                                   .timeout_ms = 20000};
    CHECK_OK(adli_stream_exchange(set, &request, NULL, &out, &code));
    CHECK(code == 200 && out.data && strcmp(out.data, "1000000") == 0);
    pthread_mutex_lock(&server.lock);
    CHECK(strstr(server.seen, "POST /count") &&
          strstr(server.seen, "Content-Type: application/x-tar"));
    pthread_mutex_unlock(&server.lock);
    request.path = "/too-large";
    CHECK_OK(adli_stream_exchange(set, &request, NULL, &out, &code));
    CHECK(code == 413 && out.data && strcmp(out.data, "too large") == 0);
    request = (adli_stream_request){.method = "POST",
                                    .path = "/count",
                                    .body = "12345",
                                    .body_length = 5,
                                    .content_type = "application/yaml",
                                    .timeout_ms = 20000};
    CHECK_OK(adli_stream_exchange(set, &request, NULL, &out, &code));
    CHECK(out.data && strcmp(out.data, "5") == 0);
    request = (adli_stream_request){.method = "POST", .path = "/count", .timeout_ms = 20000};
    CHECK_OK(adli_stream_exchange(set, &request, NULL, &out, &code));
    CHECK(out.data && strcmp(out.data, "0") == 0);
    request = (adli_stream_request){.method = "POST",
                                    .path = "/count",
                                    .body_fd = fd,
                                    .body_bytes = 1000001,
                                    .timeout_ms = 20000};
    CHECK_FAILS(adli_stream_exchange(set, &request, NULL, &out, &code), ADL_ENET, "/count");
    close(fd);
    free(text);
    adli_buf_fini(&out);
    adli_streams_free(set);
    end(&server);
}

TEST(several_streams_at_a_time)
{
    raw_server server;
    adli_streams *set;
    adli_stream *slow, *three, *directory;
    adli_buf one, two;
    int code;
    REQUIRE(begin(&server));
    REQUIRE_OK(adli_streams_new(&server.address, &set));
    adli_buf_init(&one, 1 << 20);
    adli_buf_init(&two, 1 << 20);
    adli_stream_request request = {.method = "GET", .path = "/slow", .data = collect, .user = &one};
    REQUIRE_OK(adli_stream_open(set, &request, &slow));
    request =
        (adli_stream_request){.method = "GET", .path = "/three", .data = collect, .user = &two};
    REQUIRE_OK(adli_stream_open(set, &request, &three));
    while (!adli_stream_over(three) || one.length < 20)
        REQUIRE_OK(adli_streams_step(set, 10, -1));
    CHECK_OK(adli_stream_result(three, &code));
    CHECK(code == 200 && strcmp(two.data, "one two three") == 0);
    CHECK(!adli_stream_over(slow) && strncmp(one.data, "tick\ntick\n", 10) == 0);
    adli_stream_close(three);
    request =
        (adli_stream_request){.method = "GET", .path = "/directory", .data = collect, .user = &two};
    REQUIRE_OK(adli_stream_open(set, &request, &directory));
    while (!adli_stream_over(directory))
        REQUIRE_OK(adli_streams_step(set, 10, -1));
    CHECK(adli_stream_is_directory(directory) && !adli_stream_is_directory(slow));
    adli_streams_free(set); /* closes what is open */
    adli_buf_fini(&one);
    adli_buf_fini(&two);
    end(&server);
}

static adl_status refuse(void *user, const char *data, size_t length)
{
    (void)user, (void)data, (void)length;
    return adli_fail(ADL_EIO, "the disk is full");
}

static bool yes(void)
{
    return true;
}

TEST(a_receiver_may_refuse_and_a_user_may_cancel)
{
    raw_server server;
    adli_streams *set;
    adli_buf out;
    int code;
    REQUIRE(begin(&server));
    REQUIRE_OK(adli_streams_new(&server.address, &set));
    adli_buf_init(&out, 1000);
    adli_stream_request request = {
        .method = "GET", .path = "/three", .data = refuse, .timeout_ms = 10000};
    CHECK_FAILS(adli_stream_exchange(set, &request, NULL, &out, &code), ADL_EIO,
                "the disk is full");
    request = (adli_stream_request){
        .method = "GET", .path = "/refused", .data = refuse, .timeout_ms = 10000};
    CHECK_OK(adli_stream_exchange(set, &request, NULL, &out, &code)); /* an error's body is kept */
    CHECK(code == 409 && strcmp(out.data, "no") == 0);
    request = (adli_stream_request){.method = "GET", .path = "/slow"};
    CHECK_FAILS(adli_stream_exchange(set, &request, yes, &out, &code), ADL_EINTR, "cancelled");
    adli_buf_fini(&out);
    adli_streams_free(set);
    end(&server);
}

TEST(nobody_listens)
{
    adli_server server;
    adli_streams *set;
    adli_buf out;
    int code;
    clear_environment();
    REQUIRE_OK(adli_server_init(&server, "unix:/tmp/adl-none.sock", NULL, NULL));
    REQUIRE_OK(adli_streams_new(&server, &set));
    adli_buf_init(&out, 1000);
    CHECK_FAILS(get(set, "/plain", &out, &code), ADL_ENET, "GET /plain");
    CHECK(code == 0);
    adli_buf_fini(&out);
    adli_streams_free(set);
    adli_server_fini(&server);
}
