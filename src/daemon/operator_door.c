/* The door for people. They come through the API server's proxy, which keeps the Authorization header for itself and
 * says nothing about who asks. So who may read the Secret with our token may read what we know: the cluster's own
 * rights decide. The proxy checks no certificate; ours, made anew at each start, keeps the token from being read on
 * its way. */
#include "daemon/operator_impl.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "daemon/core_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEM_SIZE = 64 << 10, TOKEN_LEAST = 16, TOKEN_MOST = 128 };
static const double LIFE_S = 10 * 365 * 86400.0; /* nobody looks at it */

static adl_status make_secret(adli_operator *op, const char *collection, const char *name,
                              const char *field, const char *fresh)
{
    char text[4 * TOKEN_MOST] = "";
    EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)fresh, (int)strlen(fresh));
    json_t *secret = json_pack("{s:s,s:s,s:{s:s,s:s},s:s,s:{s:s}}", "apiVersion", "v1", "kind",
                               "Secret", "metadata", "name", name, "namespace", op->ns, "type",
                               "Opaque", "data", field, text);
    char *body = secret ? json_dumps(secret, JSON_COMPACT) : NULL;
    adl_status status = body ? adli_kube_one(op->kube, "POST", collection, body, NULL, 409, NULL)
                             : adli_fail_memory("secret");
    if (body)
        explicit_bzero(body, strlen(body));
    free(body);
    json_decref(secret);
    return status;
}

static adl_status decode(const char *base64, char *text, size_t size)
{
    size_t length = strlen(base64);
    unsigned char *clear = adli_calloc(length + 4, 1);
    int got = clear && length % 4 == 0
                  ? EVP_DecodeBlock(clear, (const unsigned char *)base64, (int)length)
                  : -1;
    adl_status status = got >= 0 && strlen((char *)clear) < size ? ADL_OK : ADL_ECORRUPT;
    if (status == ADL_OK)
        snprintf(text, size, "%s", (char *)clear);
    if (clear)
        explicit_bzero(clear, length);
    free(clear);
    return status;
}

/* A field of a Secret of ours; when there is no such Secret, one is made with this value first. */
static adl_status secret_text(adli_operator *op, const char *name, const char *field,
                              const char *fresh, char *text, size_t size)
{
    char collection[ADLI_OPERATOR_PATH], path[ADLI_OPERATOR_PATH + 80];
    json_t *secret;
    text[0] = '\0';
    snprintf(collection, sizeof collection, "/api/v1/namespaces/%s/secrets", op->ns);
    snprintf(path, sizeof path, "%s/%.64s", collection, name);
    adl_status status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 404, &secret);
    if (status == ADL_OK && !secret) {
        status = make_secret(op, collection, name, field, fresh);
        if (status == ADL_OK)
            status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 0, &secret);
    }
    if (status == ADL_OK) {
        const json_t *data = json_object_get(secret, "data");
        const char *value = json_string_value(json_object_get(data, field));
        if (value && decode(value, text, size) != ADL_OK)
            status = adli_fail(ADL_ECORRUPT, "secret %s/%s: its field %s is not readable", op->ns,
                               name, field);
    }
    json_decref(secret);
    return status;
}

static adl_status put_file(const char *path, const adli_buf *text)
{
    int fd = -1;
    unlink(path);
    adl_status status = adli_dirs_open(path, O_WRONLY | O_CREAT | O_EXCL, 0600, &fd);
    if (status == ADL_OK && write(fd, text->data, text->length) != (ssize_t)text->length)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

static adl_status put_certificate(const adli_operator *op, adli_operator_door *door)
{
    adli_buf certificate, key;
    adli_buf_init(&certificate, PEM_SIZE);
    adli_buf_init(&key, PEM_SIZE);
    snprintf(door->certificate, sizeof door->certificate, "%.4000s/api.crt", op->state_dir);
    snprintf(door->key, sizeof door->key, "%.4000s/api.key", op->state_dir);
    adl_status status = adli_webhook_certificate("adaptdl-supervisor", LIFE_S, &certificate, &key);
    if (status == ADL_OK)
        status = put_file(door->certificate, &certificate);
    if (status == ADL_OK)
        status = put_file(door->key, &key);
    if (key.data)
        explicit_bzero(key.data, key.length);
    adli_buf_fini(&key);
    adli_buf_fini(&certificate);
    return status;
}

adl_status adli_operator_door_open(adli_operator *op, adli_operator_door *out)
{
    char fresh[65];
    *out = (adli_operator_door){.token = ""};
    adl_status status = adli_random_hex(fresh, sizeof fresh);
    if (status == ADL_OK)
        status =
            secret_text(op, "adaptdl-sched-token", "token", fresh, out->token, sizeof out->token);
    if (status == ADL_OK && (strlen(out->token) < TOKEN_LEAST || strpbrk(out->token, " \t\r\n")))
        status = adli_fail(ADL_ECORRUPT,
                           "secret %s/adaptdl-sched-token: its token must be one word of at least "
                           "%d characters; without the secret one is made",
                           op->ns, TOKEN_LEAST);
    return status == ADL_OK ? put_certificate(op, out) : status;
}

void adli_operator_door_served(const adli_operator_door *door)
{
    unlink(door->key);
}
