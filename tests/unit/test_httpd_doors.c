/* Where the HTTP server layer listens: Unix sockets, addresses, certificates. */
#include "httpd_site.h"

#include "base/file.h"
#include "httpd/impl.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

TEST(unix_sockets)
{
    char path[64], deep[300];
    struct stat info;
    site s;
    adli_httpd *other = NULL;
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    snprintf(path, sizeof path, "/tmp/adl-httpd-%d.sock", (int)getpid());
    adli_httpd_listener listener = {.id = 1, .socket_path = path, .limits = LIMITS};
    REQUIRE_OK(adli_httpd_new(&options, &s.httpd));
    REQUIRE_OK(adli_httpd_listen(s.httpd, &listener, NULL));
    CHECK_INT(stat(path, &info), 0);
    CHECK_INT(info.st_mode & 0777, 0600);
    int fd = adlt_connect_unix(path);
    adlt_answer answer = adlt_exchange(fd, "GET", "/hello", "Origin: http://x\r\n", NULL, 0);
    CHECK_INT(answer.code, 200);
    adlt_answer_free(&answer);
    answer = adlt_exchange(fd, "GET", "/p/a/b", "", NULL, 0); /* not at this door */
    CHECK_INT(answer.code, 404);
    adlt_answer_free(&answer);
    close(fd);
    REQUIRE_OK(adli_httpd_new(&options, &other));
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "another server listens");
    adli_httpd_free(s.httpd);
    CHECK_INT(access(path, F_OK), -1);
    /* What a killed server leaves behind is replaced. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    CHECK_OK(adli_httpd_listen(other, &listener, NULL));
    memset(deep, 'd', sizeof deep - 1);
    deep[0] = '/';
    deep[sizeof deep - 1] = '\0';
    listener.socket_path = deep;
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "107 characters");
    listener.socket_path = "/tmp";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "no socket");
    adli_httpd_free(other);
}

/* Connections that were shut down and whose event thread has not looked yet are no reason to keep others out, nor to
 * shut down one more for each that comes. */
TEST(those_on_their_way_out_make_room)
{
    enum { MOST = 10, LEAVING = 64 };
    adli_httpd httpd = {.lock = PTHREAD_MUTEX_INITIALIZER};
    door d = {.httpd = &httpd, .tcp = true};
    conn conns[MOST + LEAVING + 1] = {0};
    d.options.limits.connections = MOST;
    for (int i = 0; i < MOST + LEAVING + 1; i++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        close(pair[1]);
        conns[i] = (conn){.door = &d, .fd = pair[0], .state = CONN_IDLE, .since_s = i, .client = 1};
    }
    int open = 0;
    for (; open < MOST + LEAVING; open++) { /* one that comes, each time, and no event thread */
        CHECK(adli_conn_admit(&d, 1));
        conns[open].next = httpd.first;
        httpd.first = &conns[open];
        d.open++;
        CHECK_INT(httpd.counters.evicted, open < MOST ? 0 : open - MOST + 1);
        CHECK(open < MOST || conns[open - MOST].doomed);
    }
    CHECK(!adli_conn_admit(&d, 1)); /* these are no few any more */
    CHECK_INT(httpd.counters.refused, 1);
    httpd.first = &conns[MOST - 1]; /* the last MOST of them went */
    for (int i = 0; i < MOST; i++)
        conns[i].doomed = true;
    d.open = MOST;
    CHECK(adli_conn_admit(&d, 1)); /* all are on their way */
    CHECK_INT(httpd.counters.evicted, LEAVING);
    for (int i = 0; i < MOST + LEAVING + 1; i++)
        close(conns[i].fd);
}

TEST(bad_addresses_and_certificates)
{
    site s;
    adli_httpd *other = NULL;
    adli_httpd_limits limits = no_rate();
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    adli_httpd_listener listener = {.limits = LIMITS};
    char taken[32];
    REQUIRE(start(&s, &limits));
    REQUIRE_OK(adli_httpd_new(&options, &other));
    const char *bad[] = {"",    "localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999",
                         ":80", "[::1]80",   "[::1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        listener.address = bad[i];
        CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "expected ADDR:PORT");
    }
    snprintf(taken, sizeof taken, "127.0.0.1:%d", s.port);
    listener.address = taken;
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "in use");
    listener.address = "127.0.0.1:0";
    listener.tls_cert = "/nonexistent/cert.pem";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "both");
    listener.tls_key = "/etc/hostname";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ENOENT, "/nonexistent/cert.pem");
    listener.tls_cert = "/etc/hostname";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "no PEM certificate");
    adli_httpd_free(other);
    adli_httpd_free(s.httpd);
}

/* A key and its self-signed certificate as PEM files. */
static bool make_pair(const char *cert_path, const char *key_path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    FILE *cert_file = fopen(cert_path, "w"), *key_file = fopen(key_path, "w");
    bool good = key && cert && cert_file && key_file;
    if (good) {
        X509_set_version(cert, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
        X509_gmtime_adj(X509_getm_notBefore(cert), 0);
        X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
        X509_set_pubkey(cert, key);
        X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                   (const unsigned char *)"localhost", -1, -1, 0);
        X509_set_issuer_name(cert, X509_get_subject_name(cert));
        good = X509_sign(cert, key, EVP_sha256()) && PEM_write_X509(cert_file, cert) &&
               PEM_write_PrivateKey(key_file, key, NULL, NULL, 0, NULL, NULL);
    }
    if (cert_file)
        fclose(cert_file);
    if (key_file)
        fclose(key_file);
    X509_free(cert);
    EVP_PKEY_free(key);
    return good;
}

TEST(certificates_and_keys)
{
    char dir[] = "/tmp/adl-tls-XXXXXX", paths[4][64];
    adli_httpd *httpd = NULL;
    site s = {0};
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    REQUIRE(mkdtemp(dir));
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%d.pem", dir, i);
    REQUIRE(make_pair(paths[0], paths[1]) && make_pair(paths[2], paths[3]));
    REQUIRE_OK(adli_httpd_new(&options, &httpd));
    adli_httpd_listener listener = {
        .address = "127.0.0.1:0", .tls_cert = paths[0], .tls_key = paths[3], .limits = LIMITS};
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL,
                "not the key of certificate");
    listener.tls_key = paths[0];
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL, "no PEM private key");
    CHECK_OK(adli_file_write(paths[3], "", 0));
    listener.tls_key = paths[3];
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL, "empty");
    listener.tls_key = paths[1];
    CHECK_OK(adli_httpd_listen(httpd, &listener, &s.port));
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 0); /* not without TLS */
    adli_httpd_free(httpd);
    for (int i = 0; i < 4; i++)
        unlink(paths[i]);
    rmdir(dir);
}
