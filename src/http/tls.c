#include "http/tls.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct adli_trust {
    SSL_CTX *context;
};

struct adli_tls {
    SSL *ssl;
};

static adl_status fail_openssl(const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    return adli_fail(ADL_ENET, "%s: %s", what, reason ? reason : "no reason given");
}

/* ---- the certificates to trust ---- */

/* OpenSSL looks where it was configured to, which for a library that was linked into a wheel is another
 * system than this. These are the bundles of Debian, Fedora, openSUSE, and Alpine and BSD. */
static void load_system(SSL_CTX *context)
{
    static const char *const bundles[] = {
        "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
        "/var/lib/ca-certificates/ca-bundle.pem", "/etc/ssl/cert.pem"};
    SSL_CTX_set_default_verify_paths(context);
    if (getenv("SSL_CERT_FILE") || getenv("SSL_CERT_DIR"))
        return;
    for (size_t i = 0; i < ADLI_COUNT(bundles); i++)
        if (access(bundles[i], R_OK) == 0 && SSL_CTX_load_verify_file(context, bundles[i]) == 1)
            return;
}

adl_status adli_trust_new(adli_trust **out)
{
    const char *file = getenv("ADAPTDL_CA");
    *out = NULL;
    ERR_clear_error();
    adli_trust *trust = adli_calloc(1, sizeof *trust);
    if (!trust)
        return adli_fail_memory("certificates");
    trust->context = SSL_CTX_new(TLS_client_method());
    adl_status status = trust->context ? ADL_OK : fail_openssl("TLS");
    if (status == ADL_OK && file && *file) {
        if (SSL_CTX_load_verify_file(trust->context, file) != 1)
            status = adli_fail(ADL_EINVAL, "ADAPTDL_CA=%s: holds no certificates to trust", file);
    } else if (status == ADL_OK) {
        load_system(trust->context);
    }
    ERR_clear_error();
    if (status != ADL_OK) {
        adli_trust_free(trust);
        return status;
    }
    SSL_CTX_set_min_proto_version(trust->context, TLS1_2_VERSION);
    SSL_CTX_set_verify(trust->context, SSL_VERIFY_PEER, NULL);
    *out = trust;
    return ADL_OK;
}

void adli_trust_free(adli_trust *trust)
{
    if (!trust)
        return;
    SSL_CTX_free(trust->context);
    free(trust);
}

/* ---- the socket below: OpenSSL's own writes without MSG_NOSIGNAL ---- */

static int socket_of(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

static int write_socket(BIO *bio, const char *data, int length)
{
    ssize_t sent = send(socket_of(bio), data, (size_t)length, MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static int read_socket(BIO *bio, char *data, int length)
{
    ssize_t got = recv(socket_of(bio), data, (size_t)length, 0);
    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    else if (got == 0)
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)got;
}

static long control_socket(BIO *bio, int command, long number, void *pointer)
{
    (void)number, (void)pointer;
    if (command == BIO_CTRL_EOF)
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_method(void)
{
    BIO_METHOD *made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (made && BIO_meth_set_write(made, write_socket) && BIO_meth_set_read(made, read_socket) &&
        BIO_meth_set_ctrl(made, control_socket))
        method = made;
}

/* ---- a connection ---- */

/* Whom the certificate must be for. */
static int expect_host(SSL *ssl, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

adl_status adli_tls_new(adli_trust *trust, int fd, const char *host, adli_tls **out)
{
    *out = NULL;
    ERR_clear_error();
    pthread_once(&once, make_method);
    adli_tls *tls = adli_calloc(1, sizeof *tls);
    if (!tls)
        return adli_fail_memory("TLS");
    BIO *bio = method ? BIO_new(method) : NULL;
    tls->ssl = SSL_new(trust->context);
    if (!bio || !tls->ssl || !expect_host(tls->ssl, host)) {
        BIO_free(bio);
        adli_tls_free(tls);
        return fail_openssl("TLS");
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    SSL_set_connect_state(tls->ssl);
    *out = tls;
    return ADL_OK;
}

void adli_tls_free(adli_tls *tls)
{
    if (!tls)
        return;
    SSL_free(tls->ssl);
    free(tls);
}

/* What a failed read or write of OpenSSL's means. */
static ssize_t sort_out(adli_tls *tls, int result, short *events)
{
    int why = errno, error = SSL_get_error(tls->ssl, result);
    long verified = SSL_get_verify_result(tls->ssl);
    *events = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = EAGAIN;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return -1;
    adl_status ignored;
    if (verified != X509_V_OK)
        ignored = adli_fail(ADL_ENET, "the server's certificate is not trusted: %s",
                            X509_verify_cert_error_string(verified));
    else if (error == SSL_ERROR_SYSCALL)
        ignored = adli_fail(ADL_ENET, "TLS: %s", strerror(why));
    else
        ignored = fail_openssl("TLS");
    (void)ignored;
    errno = EPROTO;
    return -1;
}

ssize_t adli_tls_send(adli_tls *tls, const void *data, size_t length, short *events)
{
    size_t sent = 0;
    ERR_clear_error();
    int result = SSL_write_ex(tls->ssl, data, length, &sent);
    return result == 1 ? (ssize_t)sent : sort_out(tls, result, events);
}

ssize_t adli_tls_receive(adli_tls *tls, void *data, size_t length, short *events)
{
    size_t got = 0;
    ERR_clear_error();
    int result = SSL_read_ex(tls->ssl, data, length, &got);
    return result == 1 ? (ssize_t)got : sort_out(tls, result, events);
}
