#include "httpd/listen.h"

#include "base/file.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024, PEM_MAX = 1 << 20 };

/* Is anybody listening? A refused connection is what a dead server leaves behind. */
static bool is_alive(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true;
    bool alive = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
                 (errno != ECONNREFUSED && errno != ENOENT);
    close(fd);
    return alive;
}

static adl_status bind_unix(int fd, const struct sockaddr_un *address)
{
    struct stat there;
    const char *path = address->sun_path;
    if (lstat(path, &there) == 0) {
        if (!S_ISSOCK(there.st_mode))
            return adli_fail(ADL_ESTATE, "%s: exists and is no socket", path);
        if (is_alive(address))
            return adli_fail(ADL_ESTATE, "%s: another server listens there", path);
        unlink(path);
    }
    /* The mode of the socket before bind is that of its file: there is no moment when it is wider. */
    if (fchmod(fd, 0600) != 0 || bind(fd, (const struct sockaddr *)address, sizeof *address) != 0 ||
        chmod(path, 0600) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (listen(fd, BACKLOG) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return ADL_OK;
}

adl_status adli_listen_unix(const char *path, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *fd = -1;
    if (strlen(path) >= sizeof address.sun_path)
        return adli_fail(ADL_EINVAL,
                         "%s: a socket's path may have %zu characters at most, this has %zu", path,
                         sizeof address.sun_path - 1, strlen(path));
    strcpy(address.sun_path, path);
    int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket_fd < 0)
        return adli_fail(ADL_EIO, "%s: socket: %s", path, strerror(errno));
    adl_status status = bind_unix(socket_fd, &address);
    if (status == ADL_OK)
        *fd = socket_fd;
    else
        close(socket_fd);
    return status;
}

/* "[a]:b" or "a:b" into host and port. */
static adl_status split(const char *address, char *host, size_t host_size, char *port)
{
    bool bracket = address[0] == '[';
    const char *start = address + bracket, *end = strchr(start, bracket ? ']' : ':');
    const char *colon = end ? end + bracket : NULL;
    char *rest = NULL;
    long number = colon && *colon == ':' && colon[1] ? strtol(colon + 1, &rest, 10) : -1;
    if (!end || end == start || (size_t)(end - start) >= host_size || number < 0 ||
        number > 65535 || *rest)
        return adli_fail(ADL_EINVAL, "address \"%s\": expected ADDR:PORT or [ADDR6]:PORT", address);
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    snprintf(port, 8, "%ld", number);
    return ADL_OK;
}

static adl_status bind_tcp(const struct addrinfo *info, const char *address, int *fd)
{
    int one = 1;
    *fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return adli_fail(ADL_EIO, "%s: socket: %s", address, strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (info->ai_family == AF_INET6)
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(*fd, info->ai_addr, info->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0)
        return ADL_OK;
    int reason = errno;
    close(*fd);
    *fd = -1;
    return adli_fail(reason == EADDRINUSE ? ADL_ESTATE : ADL_EIO, "%s: %s", address,
                     strerror(reason));
}

adl_status adli_listen_tcp(const char *address, int *fd, int *port)
{
    char host[256], service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info = NULL;
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    *fd = -1;
    adl_status status = split(address, host, sizeof host, service);
    if (status != ADL_OK)
        return status;
    int failure = getaddrinfo(host, service, &hints, &info);
    if (failure != 0)
        return adli_fail(ADL_EINVAL, "%s: %s", address, gai_strerror(failure));
    status = bind_tcp(info, address, fd);
    freeaddrinfo(info);
    if (status != ADL_OK)
        return status;
    getsockname(*fd, (struct sockaddr *)&bound, &length);
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    return ADL_OK;
}

/* A key with a pass phrase is refused: a daemon has nobody to ask. */
static int no_pass_phrase(char *buf, int size, int writing, void *user)
{
    (void)buf, (void)size, (void)writing, (void)user;
    return -1;
}

static adl_status check_pair(const char *cert_path, const char *key_path, const adli_buf *cert,
                             const adli_buf *key)
{
    BIO *cert_bio = BIO_new_mem_buf(cert->data, (int)cert->length);
    BIO *key_bio = BIO_new_mem_buf(key->data, (int)key->length);
    X509 *x509 = cert_bio ? PEM_read_bio_X509(cert_bio, NULL, no_pass_phrase, NULL) : NULL;
    EVP_PKEY *pkey = key_bio ? PEM_read_bio_PrivateKey(key_bio, NULL, no_pass_phrase, NULL) : NULL;
    adl_status status = ADL_OK;
    if (!x509)
        status = adli_fail(ADL_EINVAL, "%s: no PEM certificate in it", cert_path);
    else if (!pkey)
        status =
            adli_fail(ADL_EINVAL, "%s: no PEM private key without pass phrase in it", key_path);
    else if (X509_check_private_key(x509, pkey) != 1)
        status = adli_fail(ADL_EINVAL, "%s: not the key of certificate %s", key_path, cert_path);
    EVP_PKEY_free(pkey);
    X509_free(x509);
    BIO_free(key_bio);
    BIO_free(cert_bio);
    return status;
}

adl_status adli_listen_tls(const char *cert_path, const char *key_path, adli_buf *cert,
                           adli_buf *key)
{
    adli_buf_init(cert, PEM_MAX);
    adli_buf_init(key, PEM_MAX);
    if (!cert_path || !key_path)
        return adli_fail(ADL_EINVAL, "TLS needs both a certificate and a key");
    adl_status status = adli_file_read(cert_path, cert);
    if (status == ADL_OK)
        status = adli_file_read(key_path, key);
    if (status == ADL_OK && (cert->length == 0 || key->length == 0))
        status = adli_fail(ADL_EINVAL, "%s: empty", cert->length ? key_path : cert_path);
    return status == ADL_OK ? check_pair(cert_path, key_path, cert, key) : status;
}
