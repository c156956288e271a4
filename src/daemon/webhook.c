/* The webhook's thread: looks at the configuration, serves under the name that it has, renews the certificate, and
 * keeps the caBundle as it must be, whoever changes it. */
#include "daemon/webhook.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "httpd/httpd.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4200, PEM_SIZE = 64 << 10, REVIEW_MAX = 8 << 20, HOST_SIZE = 256 };

struct adli_webhook {
    adli_webhook_options options;
    char *state_dir, *listen, *configuration;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool stopping;
    pthread_t thread;
    /* the thread's own */
    adli_httpd *httpd; /* NULL: nothing is served */
    char host[HOST_SIZE];
    adli_buf certificate, previous; /* PEM; what was served before is trusted until the next one */
    double renew_s;                 /* monotonic */
    char trouble[300];              /* what was said of it already */
};

/* ---- requests ---- */

static adli_httpd_verdict on_validate(void *user, adli_httpd_request *request)
{
    const adli_webhook *w = user;
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    adli_buf out;
    adli_buf_init(&out, PEM_SIZE);
    if (adli_webhook_review(w->options.kube, body, length, &out) == ADL_OK)
        adli_httpd_answer_take(request, 200, "application/json", &out);
    else
        adli_httpd_answer_error(request, 400, "%s", adl_error());
    adli_buf_fini(&out);
    return ADLI_HTTPD_DONE;
}

static const adli_httpd_route routes[] = {{.method = "POST",
                                           .path = "/validate",
                                           .doors = 1,
                                           .body_max = REVIEW_MAX,
                                           .slow = true,
                                           .handle = on_validate}};

/* ---- the certificate, served ---- */

static adl_status put_file(const adli_webhook *w, const char *name, const adli_buf *text,
                           char path[PATH_SIZE])
{
    int fd = -1;
    snprintf(path, PATH_SIZE, "%s/%s", w->state_dir, name);
    unlink(path);
    adl_status status = adli_dirs_open(path, O_WRONLY | O_CREAT | O_EXCL, 0600, &fd);
    if (status == ADL_OK && write(fd, text->data, text->length) != (ssize_t)text->length)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

static adl_status open_door(adli_webhook *w, const adli_buf *key)
{
    char cert_path[PATH_SIZE], key_path[PATH_SIZE];
    const char *const hosts[] = {w->host, NULL};
    adli_httpd_options options = {
        .routes = routes, .route_count = ADLI_COUNT(routes), .user = w, .workers = 4};
    adl_status status = put_file(w, "webhook.crt", &w->certificate, cert_path);
    if (status == ADL_OK)
        status = put_file(w, "webhook.key", key, key_path);
    if (status == ADL_OK)
        status = adli_httpd_new(&options, &w->httpd);
    if (status != ADL_OK)
        return status;
    adli_httpd_listener listener = {.id = 0,
                                    .address = w->listen,
                                    .tls_cert = cert_path,
                                    .tls_key = key_path,
                                    .hosts = hosts,
                                    .limits = ADLI_HTTPD_LIMITS};
    status = adli_httpd_listen(w->httpd, &listener, NULL);
    unlink(key_path); /* it was read */
    return status;
}

static void close_door(adli_webhook *w)
{
    adli_httpd_free(w->httpd);
    w->httpd = NULL;
}

static adl_status renew(adli_webhook *w, const char *host)
{
    adli_buf fresh, key;
    adli_buf_init(&fresh, PEM_SIZE);
    adli_buf_init(&key, PEM_SIZE);
    adl_status status = adli_webhook_certificate(host, w->options.life_s, &fresh, &key);
    if (status == ADL_OK) {
        adli_buf_fini(&w->previous);
        w->previous = w->certificate;
        w->certificate = fresh;
        adli_buf_init(&fresh, PEM_SIZE);
        snprintf(w->host, sizeof w->host, "%s", host);
        close_door(w);
        status = open_door(w, &key);
    }
    if (status == ADL_OK) {
        w->renew_s = adli_monotonic_s() + w->options.life_s / 2;
        adli_say(ADL_LOG_INFO, "the webhook serves %s for %s", w->listen, host);
    } else
        close_door(w);
    if (key.data)
        explicit_bzero(key.data, key.length);
    adli_buf_fini(&key);
    adli_buf_fini(&fresh);
    return status;
}

/* ---- the configuration ---- */

/* What the server calls: "NAME.NAMESPACE.svc" for a service, the URL's host otherwise. */
static adl_status called_host(const json_t *client, char out[HOST_SIZE])
{
    const json_t *service = json_object_get(client, "service");
    const char *name = json_string_value(json_object_get(service, "name")),
               *ns = json_string_value(json_object_get(service, "namespace")),
               *url = json_string_value(json_object_get(client, "url"));
    int length = -1;
    if (name && ns)
        length = snprintf(out, HOST_SIZE, "%s.%s.svc", name, ns);
    else if (url && strncmp(url, "https://", 8) == 0) {
        const char *host = url + 8;
        bool six = *host == '[';
        length = snprintf(out, HOST_SIZE, "%.*s", (int)strcspn(host + six, six ? "]" : ":/"),
                          host + six);
    }
    return length > 0 && length < HOST_SIZE
               ? ADL_OK
               : adli_fail(ADL_EINVAL, "its clientConfig names no service and no https URL");
}

/* Both certificates in base64, as one text. */
static char *bundle(const adli_webhook *w)
{
    size_t length = w->certificate.length + w->previous.length;
    char *pem = adli_calloc(length + 1, 1), *text = adli_calloc(length * 2 + 8, 1);
    if (pem && text) {
        memcpy(pem, w->certificate.data, w->certificate.length);
        if (w->previous.length)
            memcpy(pem + w->certificate.length, w->previous.data, w->previous.length);
        EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)pem, (int)length);
    }
    free(pem);
    return text;
}

static adl_status tell_bundle(adli_webhook *w, const char *path, const json_t *hooks,
                              const char *wanted)
{
    size_t i;
    const json_t *hook;
    json_t *list = json_array();
    json_array_foreach(hooks, i, hook)
    {
        const json_t *has = json_object_get(json_object_get(hook, "clientConfig"), "caBundle");
        if (json_is_string(has) && strcmp(json_string_value(has), wanted) == 0)
            continue;
        json_array_append_new(list,
                              json_pack("{s:O,s:{s:s}}", "name", json_object_get(hook, "name"),
                                        "clientConfig", "caBundle", wanted));
    }
    json_t *patch = json_array_size(list) ? json_pack("{s:O}", "webhooks", list) : NULL;
    char *body = patch ? json_dumps(patch, JSON_COMPACT) : NULL;
    adl_status status =
        body ? adli_kube_one(w->options.kube, "PATCH", path, body, ADLI_KUBE_STRATEGIC, 0, NULL)
             : ADL_OK;
    free(body);
    json_decref(patch);
    json_decref(list);
    return status;
}

static adl_status look(adli_webhook *w)
{
    char path[PATH_SIZE], host[HOST_SIZE];
    json_t *object = NULL;
    snprintf(path, sizeof path,
             "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/%s",
             w->configuration);
    adl_status status = adli_kube_one(w->options.kube, "GET", path, NULL, NULL, 404, &object);
    if (status != ADL_OK || !object) { /* not to be had now, or not wanted */
        if (status == ADL_OK)
            close_door(w);
        return status;
    }
    const json_t *hooks = json_object_get(object, "webhooks");
    status = called_host(json_object_get(json_array_get(hooks, 0), "clientConfig"), host);
    if (status == ADL_OK &&
        (!w->httpd || strcmp(host, w->host) != 0 || adli_monotonic_s() >= w->renew_s))
        status = renew(w, host);
    char *wanted = status == ADL_OK ? bundle(w) : NULL;
    if (status == ADL_OK)
        status = wanted ? tell_bundle(w, path, hooks, wanted) : adli_fail_memory("caBundle");
    free(wanted);
    json_decref(object);
    return status;
}

/* ---- life ---- */

static void *live(void *user)
{
    adli_webhook *w = user;
    for (;;) {
        adl_status status = look(w);
        if (status != ADL_OK && strcmp(w->trouble, adl_error()) != 0) {
            snprintf(w->trouble, sizeof w->trouble, "%s", adl_error());
            adli_say(ADL_LOG_WARNING, "the webhook %s: %s", w->configuration, w->trouble);
        } else if (status == ADL_OK)
            *w->trouble = 0;
        double wait_s =
            w->httpd ? fmin(w->options.look_s, w->options.life_s / 4) : w->options.look_s;
        struct timespec until = adli_deadline((int)(fmax(wait_s, 0.05) * 1000));
        pthread_mutex_lock(&w->lock);
        while (!w->stopping && pthread_cond_timedwait(&w->news, &w->lock, &until) == 0)
            ;
        bool stopping = w->stopping;
        pthread_mutex_unlock(&w->lock);
        if (stopping)
            return NULL;
    }
}

static void destroy(adli_webhook *w)
{
    close_door(w);
    adli_buf_fini(&w->certificate);
    adli_buf_fini(&w->previous);
    free(w->state_dir);
    free(w->listen);
    free(w->configuration);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

adl_status adli_webhook_new(const adli_webhook_options *options, adli_webhook **out)
{
    *out = NULL;
    adli_webhook *w = adli_calloc(1, sizeof *w);
    if (!w)
        return adli_fail_memory("webhook");
    w->options = *options;
    adli_buf_init(&w->certificate, PEM_SIZE);
    adli_buf_init(&w->previous, PEM_SIZE);
    pthread_mutex_init(&w->lock, NULL);
    adl_status status = adli_cond_init(&w->news);
    w->state_dir = adli_strdup(options->state_dir);
    w->listen = adli_strdup(options->listen);
    w->configuration = adli_strdup(options->configuration);
    if (status == ADL_OK && (!w->state_dir || !w->listen || !w->configuration))
        status = adli_fail_memory("webhook");
    if (status == ADL_OK)
        status = adli_thread_start(&w->thread, "webhook", live, w);
    if (status == ADL_OK)
        *out = w;
    else
        destroy(w);
    return status;
}

void adli_webhook_free(adli_webhook *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    destroy(w);
}
