/* The client's thread: it runs transfers on libcurl, and calls their owners. */
#include "kube/impl.h"

#include "adli_version.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { TOKEN_MAX = 64 << 10, TOKEN_AGE_S = 30, CONNECT_S = 10, LONGEST_POLL_MS = 60000 };

static const double pause_first_s = 0.2, pause_most_s = 30;

const char *adli_kube_namespace(const adli_kube *kube)
{
    return kube->config.ns;
}

int64_t adli_kube_requests(const adli_kube *kube)
{
    return atomic_load(&kube->requests);
}

adl_status adli_kube_url(const adli_kube *kube, const char *path, char **out)
{
    size_t size = strlen(kube->config.server) + strlen(path) + 1;
    *out = adli_calloc(size, 1);
    if (!*out)
        return adli_fail_memory("request");
    snprintf(*out, size, "%s%s", kube->config.server, path);
    return ADL_OK;
}

static double chance(adli_kube *kube)
{
    uint64_t x = kube->random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    kube->random = x;
    return (double)(x >> 11) / 9007199254740992.0;
}

double adli_kube_pause_s(adli_kube *kube, int failures, double retry_s)
{
    double pause_s = fmin(pause_most_s, pause_first_s * exp2(fmin(failures, 20)));
    pause_s *= 0.5 + chance(kube);
    return retry_s >= 0 ? fmax(pause_s, fmin(retry_s, 2 * pause_most_s)) : pause_s;
}

/* ---- one transfer ---- */

static size_t on_data(char *bytes, size_t size, size_t count, void *user)
{
    adli_transfer *transfer = user;
    return transfer->data(transfer, bytes, size * count) ? size * count : 0;
}

/* Service accounts' tokens are renewed in their file. */
static const char *token_of(adli_kube *kube)
{
    if (!*kube->config.token_file)
        return kube->config.token;
    if (kube->token && adli_monotonic_s() - kube->token_s < TOKEN_AGE_S)
        return kube->token;
    adli_buf text;
    adli_buf_init(&text, TOKEN_MAX);
    if (adli_file_read(kube->config.token_file, &text) == ADL_OK && text.data) {
        text.data[strcspn(text.data, " \r\n")] = 0;
        free(kube->token);
        kube->token = text.data;
        kube->token_s = adli_monotonic_s();
    } else
        adli_buf_fini(&text);
    return kube->token ? kube->token : kube->config.token;
}

static void add_header(adli_transfer *transfer, const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 3;
    char *line = adli_calloc(size, 1);
    if (!line)
        return;
    snprintf(line, size, "%s: %s", name, value);
    struct curl_slist *more = curl_slist_append(transfer->headers, line);
    transfer->headers = more ? more : transfer->headers;
    explicit_bzero(line, size);
    free(line);
}

static void set_blob(CURL *easy, CURLoption option, char *text)
{
    struct curl_blob blob = {.data = text, .len = strlen(text), .flags = CURL_BLOB_NOCOPY};
    if (*text)
        curl_easy_setopt(easy, option, &blob);
}

static void set_trust(adli_kube *kube, CURL *easy)
{
    adli_kube_config *config = &kube->config;
    set_blob(easy, CURLOPT_CAINFO_BLOB, config->ca);
    if (*config->ca) /* and nobody whom the machine trusts besides */
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    set_blob(easy, CURLOPT_SSLCERT_BLOB, config->certificate);
    set_blob(easy, CURLOPT_SSLKEY_BLOB, config->key);
    if (config->insecure) {
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static void set_body(adli_transfer *transfer, CURL *easy)
{
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, transfer->method);
    if (!transfer->body)
        return;
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(transfer->body));
    add_header(transfer, "Content-Type", transfer->type ? transfer->type : "application/json");
    add_header(transfer, "Expect", "");
}

static bool start(adli_kube *kube, adli_transfer *transfer)
{
    CURL *easy = transfer->easy = curl_easy_init();
    if (!easy)
        return false;
    const char *token = token_of(kube);
    char bearer[16] = "Bearer ";
    adli_buf value;
    adli_buf_init(&value, TOKEN_MAX + sizeof bearer);
    adli_buf_printf(&value, "%s%s", bearer, token);
    if (*token && value.data)
        add_header(transfer, "Authorization", value.data);
    adli_buf_fini(&value);
    add_header(transfer, "Accept", "application/json");
    set_trust(kube, easy);
    set_body(transfer, easy);
    transfer->failure[0] = 0;
    curl_easy_setopt(easy, CURLOPT_URL, transfer->url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "adaptdl/" ADLI_VERSION);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L);
    curl_easy_setopt(easy, CURLOPT_ACCEPT_ENCODING, "gzip");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 15L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, transfer->limit_s);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->failure);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
    atomic_fetch_add(&kube->requests, 1);
    return curl_multi_add_handle(kube->multi, easy) == CURLM_OK;
}

static void let_go(adli_kube *kube, adli_transfer *transfer)
{
    if (transfer->easy) {
        curl_multi_remove_handle(kube->multi, transfer->easy);
        curl_easy_cleanup(transfer->easy);
    }
    curl_slist_free_all(transfer->headers);
    transfer->easy = NULL;
    transfer->headers = NULL;
}

void adli_kube_begin(adli_kube *kube, adli_transfer *transfer, double in_s)
{
    transfer->due_s = adli_monotonic_s() + in_s;
    transfer->queued = true;
    TAILQ_INSERT_TAIL(&kube->waiting, transfer, link);
    curl_multi_wakeup(kube->multi);
}

/* ---- the loop ---- */

/* Under lock. */
static void finish(adli_kube *kube, adli_transfer *transfer, CURLcode result)
{
    long code = 0;
    curl_off_t retry = 0;
    char failure[CURL_ERROR_SIZE] = "";
    if (result == CURLE_OK && transfer->easy) {
        curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &code);
        curl_easy_getinfo(transfer->easy, CURLINFO_RETRY_AFTER, &retry);
    } else
        snprintf(failure, sizeof failure, "%s",
                 transfer->failure[0] ? transfer->failure : curl_easy_strerror(result));
    TAILQ_REMOVE(&kube->active, transfer, link);
    let_go(kube, transfer);
    transfer->queued = false;
    transfer->done(transfer, (int)code, failure, retry > 0 ? (double)retry : -1);
}

/* Under lock: lets go of what nobody wants any more. */
static void drop_some(adli_kube *kube, struct adli_transfers *list)
{
    for (adli_transfer *transfer = TAILQ_FIRST(list), *next; transfer; transfer = next) {
        next = TAILQ_NEXT(transfer, link);
        if (!transfer->dropped)
            continue;
        TAILQ_REMOVE(list, transfer, link);
        let_go(kube, transfer);
        transfer->queued = transfer->dropped = false;
        pthread_cond_broadcast(&kube->news);
    }
}

/* Under lock: starts what is due. Returns how many milliseconds the next one may wait for. */
static int start_due(adli_kube *kube)
{
    double now_s = adli_monotonic_s(), next_s = now_s + LONGEST_POLL_MS / 1e3;
    adli_transfer *transfer, *next;
    for (transfer = TAILQ_FIRST(&kube->waiting); transfer; transfer = next) {
        next = TAILQ_NEXT(transfer, link);
        if (transfer->due_s > now_s) {
            next_s = fmin(next_s, transfer->due_s);
            continue;
        }
        TAILQ_REMOVE(&kube->waiting, transfer, link);
        TAILQ_INSERT_TAIL(&kube->active, transfer, link);
        if (!start(kube, transfer)) {
            finish(kube, transfer, CURLE_OUT_OF_MEMORY);
            return 100;
        }
    }
    return (int)ceil((next_s - now_s) * 1e3);
}

static void *run(void *user)
{
    adli_kube *kube = user;
    pthread_mutex_lock(&kube->lock);
    while (!kube->stopping) {
        drop_some(kube, &kube->waiting);
        drop_some(kube, &kube->active);
        int wait_ms = start_due(kube), running, left;
        curl_multi_perform(kube->multi, &running);
        for (CURLMsg *message; (message = curl_multi_info_read(kube->multi, &left));) {
            adli_transfer *transfer = NULL;
            if (message->msg != CURLMSG_DONE)
                continue;
            CURLcode result = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
            finish(kube, transfer, result);
            wait_ms = 0; /* its owner may have more */
        }
        pthread_mutex_unlock(&kube->lock);
        curl_multi_poll(kube->multi, NULL, 0, wait_ms, NULL);
        pthread_mutex_lock(&kube->lock);
    }
    pthread_mutex_unlock(&kube->lock);
    return NULL;
}

/* libcurl's handles are the thread's, also while it waits without the lock. */
void adli_kube_drop(adli_kube *kube, adli_transfer *transfer)
{
    if (!transfer->queued)
        return;
    transfer->dropped = true;
    curl_multi_wakeup(kube->multi);
    while (transfer->dropped)
        pthread_cond_wait(&kube->news, &kube->lock);
}

/* ---- coming and going ---- */

static adl_status copy_config(const adli_kube_config *from, adli_kube_config *to)
{
    const char *const texts[] = {from->server, from->ca,         from->certificate, from->key,
                                 from->token,  from->token_file, from->ns};
    char **const slots[] = {&to->server, &to->ca,         &to->certificate, &to->key,
                            &to->token,  &to->token_file, &to->ns};
    for (size_t i = 0; i < ADLI_COUNT(texts); i++)
        if (!(*slots[i] = adli_strdup(texts[i] ? texts[i] : "")))
            return adli_fail_memory("client");
    to->insecure = from->insecure;
    return ADL_OK;
}

adl_status adli_kube_open(const adli_kube_config *config, adli_kube **out)
{
    *out = NULL;
    if (config->exec) /* what it gives ends after minutes */
        return adli_fail(ADL_EINVAL,
                         "%s: a program that logs in is for people; the scheduler needs a service "
                         "account, a token or a client certificate",
                         config->source ? config->source : "kubeconfig");
    adli_kube *kube = adli_calloc(1, sizeof *kube);
    if (!kube)
        return adli_fail_memory("client");
    TAILQ_INIT(&kube->waiting);
    TAILQ_INIT(&kube->active);
    pthread_mutex_init(&kube->lock, NULL);
    if (getrandom(&kube->random, sizeof kube->random, 0) < 0 || kube->random == 0)
        kube->random = 88172645463325252u;
    adl_status status = adli_cond_init(&kube->news);
    if (status == ADL_OK)
        status = copy_config(config, &kube->config);
    if (status == ADL_OK) {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        kube->multi = curl_multi_init();
        status = kube->multi ? ADL_OK : adli_fail_memory("client");
    }
    if (status == ADL_OK) {
        curl_multi_setopt(kube->multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX);
        status = adli_thread_start(&kube->thread, "kube", run, kube);
        kube->running = status == ADL_OK;
    }
    if (status == ADL_OK)
        *out = kube;
    else
        adli_kube_close(kube);
    return status;
}

void adli_kube_close(adli_kube *kube)
{
    if (!kube)
        return;
    pthread_mutex_lock(&kube->lock);
    kube->stopping = true;
    if (kube->multi)
        curl_multi_wakeup(kube->multi);
    pthread_mutex_unlock(&kube->lock);
    if (kube->running)
        pthread_join(kube->thread, NULL);
    if (kube->multi)
        curl_multi_cleanup(kube->multi);
    pthread_cond_destroy(&kube->news);
    pthread_mutex_destroy(&kube->lock);
    if (kube->token)
        explicit_bzero(kube->token, strlen(kube->token));
    free(kube->token);
    adli_kube_config_fini(&kube->config);
    free(kube);
}
