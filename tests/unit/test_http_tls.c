/* HTTPS: the client against a server of OpenSSL's whose certificates are made here, good and bad. */
#include "harness.h"

#include "http/http.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- certificates ------------------------------------------------------------------------------ */

typedef struct identity {
    X509 *certificate;
    EVP_PKEY *key;
} identity;

static void add_extension(X509 *certificate, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
}

/* Signed by itself, for `names`, valid until `days` from now. */
static identity make_identity(const char *names, int days)
{
    identity made = {X509_new(), EVP_EC_gen("P-256")};
    X509 *certificate = made.certificate;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -86400 * 30);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400L * days);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)"a test", -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    X509_set_pubkey(certificate, made.key);
    add_extension(certificate, NID_subject_alt_name, names);
    add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE");
    X509_sign(certificate, made.key, EVP_sha256());
    return made;
}

static void free_identity(identity *id)
{
    X509_free(id->certificate);
    EVP_PKEY_free(id->key);
}

/* The certificate becomes the only one that is trusted, by way of a file in memory. */
static void trust(const identity *id)
{
    static int file = -1;
    char path[64];
    BIO *text = BIO_new(BIO_s_mem());
    char *data;
    PEM_write_bio_X509(text, id->certificate);
    long length = BIO_get_mem_data(text, &data);
    if (file >= 0)
        close(file);
    file = memfd_create("certificates", MFD_CLOEXEC);
    REQUIRE(file >= 0 && write(file, data, (size_t)length) == length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    setenv("ADAPTDL_CA", path, 1);
    BIO_free(text);
}

/* ---- the server -------------------------------------------------------------------------------- */

typedef enum behaviour { ANSWER, NO_TLS, CUT, SILENT } behaviour;

typedef struct server {
    int fd, port;
    behaviour behaviour;
    SSL_CTX *context;
    pthread_t thread;
    atomic_bool ending;
    char seen[4096]; /* the request; looked at once the thread has ended */
} server;

static void serve(server *s, int fd)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    static const char endless[] = "HTTP/1.1 200 OK\r\n\r\nhel";
    if (s->behaviour == NO_TLS) {
        ssize_t sent = send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL);
        (void)sent;
        return;
    }
    while (s->behaviour == SILENT && !atomic_load(&s->ending))
        usleep(2000);
    if (s->behaviour == SILENT)
        return;
    SSL *ssl = SSL_new(s->context);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1) {
        int used = 0, got;
        while (!strstr(s->seen, "\r\n\r\nbody") &&
               (got = SSL_read(ssl, s->seen + used, (int)sizeof s->seen - 1 - used)) > 0)
            used += got;
        if (s->behaviour == CUT) /* no length, and no good-bye either */
            SSL_write(ssl, endless, sizeof endless - 1);
        else if (SSL_write(ssl, answer, sizeof answer - 1) > 0)
            SSL_shutdown(ssl);
    }
    SSL_free(ssl);
}

static void *run(void *user)
{
    server *s = user;
    int fd = accept(s->fd, NULL, NULL);
    if (fd >= 0) {
        serve(s, fd);
        close(fd);
    }
    return NULL;
}

static void start(server *s, const identity *id, behaviour how)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    *s = (server){.behaviour = how, .context = SSL_CTX_new(TLS_server_method())};
    REQUIRE(SSL_CTX_use_certificate(s->context, id->certificate) == 1 &&
            SSL_CTX_use_PrivateKey(s->context, id->key) == 1);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(s->fd, (struct sockaddr *)&address, length) == 0 && listen(s->fd, 4) == 0);
    getsockname(s->fd, (struct sockaddr *)&address, &length);
    s->port = ntohs(address.sin_port);
    REQUIRE(pthread_create(&s->thread, NULL, run, s) == 0);
}

static void stop(server *s)
{
    atomic_store(&s->ending, true);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    SSL_CTX_free(s->context);
}

/* One exchange with a fresh client; the answer's text, or the failure's, into `text`. */
static adl_status ask(const server *s, const char *host, int timeout_ms, char *text)
{
    adli_http *http;
    adli_buf answer;
    int code = 0;
    char url[128];
    adli_buf_init(&answer, 1000);
    snprintf(url, sizeof url, "https://%s:%d/x", host, s->port);
    adli_http_request request = {
        .method = "PUT", .url = url, .body = "body", .body_length = 4, .timeout_ms = timeout_ms};
    adl_status status = adli_http_new(&http);
    if (status == ADL_OK)
        status = adli_http_exchange(http, &request, &answer, &code);
    snprintf(text, 1000, "%s", status == ADL_OK ? answer.data : adl_error());
    adli_http_free(http);
    adli_buf_fini(&answer);
    return status;
}

/* ---- tests ------------------------------------------------------------------------------------- */

TEST(a_trusted_server_is_talked_to)
{
    identity id = make_identity("DNS:localhost,IP:127.0.0.1", 30);
    char text[1000], host[32];
    server s;
    trust(&id);
    for (int i = 0; i < 2; i++) { /* by its name, and by its address */
        const char *name = i == 0 ? "localhost" : "127.0.0.1";
        start(&s, &id, ANSWER);
        CHECK_OK(ask(&s, name, 60000, text));
        stop(&s);
        CHECK_STR(text, "hello");
        snprintf(host, sizeof host, "Host: %s:%d\r\n", name, s.port);
        CHECK(strncmp(s.seen, "PUT /x HTTP/1.1\r\n", 17) == 0 && strstr(s.seen, host));
    }
    free_identity(&id);
}

TEST(an_untrusted_server_is_not_talked_to)
{
    static const struct {
        const char *names, *why;
        int days;
        bool known;
    } cases[] = {
        {"DNS:localhost", "self-signed", 30, false},
        {"DNS:elsewhere.example", "hostname mismatch", 30, true},
        {"IP:127.0.0.9", "hostname mismatch", 30, true},
        {"DNS:localhost", "expired", -1, true},
    };
    identity other = make_identity("DNS:localhost", 30);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        identity id = make_identity(cases[i].names, cases[i].days);
        char text[1000];
        server s;
        trust(cases[i].known ? &id : &other);
        start(&s, &id, ANSWER);
        CHECK(ask(&s, "localhost", 60000, text) == ADL_ENET);
        stop(&s);
        if (!strstr(text, "is not trusted") || !strstr(text, cases[i].why))
            ADLT_FAIL("case %zu: %s", i, text);
        CHECK_STR(s.seen, ""); /* it never saw the request */
        free_identity(&id);
    }
    free_identity(&other);
}

TEST(broken_servers_are_failures)
{
    identity id = make_identity("DNS:localhost", 30);
    char text[1000];
    server s;
    trust(&id);
    start(&s, &id, NO_TLS);
    CHECK(ask(&s, "localhost", 60000, text) == ADL_ENET);
    stop(&s);
    CHECK(strstr(text, "TLS: wrong version") != NULL);
    start(&s, &id, CUT); /* the body has no length: only TLS can tell that it was cut */
    CHECK(ask(&s, "localhost", 60000, text) == ADL_ENET);
    stop(&s);
    CHECK(strstr(text, "unexpected eof") != NULL);
    start(&s, &id, SILENT);
    CHECK(ask(&s, "localhost", 200, text) == ADL_ETIMEOUT);
    stop(&s);
    setenv("ADAPTDL_CA", "/dev/null", 1);
    start(&s, &id, ANSWER);
    CHECK(ask(&s, "localhost", 60000, text) == ADL_EINVAL);
    stop(&s);
    CHECK(strstr(text, "ADAPTDL_CA=/dev/null: holds no certificates") != NULL);
    free_identity(&id);
}
