/* Who leads: the holder of a Lease, renewed every other second. A Lease that has not moved for its whole
 * duration, by our own clock, is free: nobody's clock has to agree with another's. Somebody else leads at most DURATION_S
 * and two looks after the last renewal, and what the requests take: within 15 s. */
#include "daemon/operator_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/utc.h"
#include "daemon/core_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Whoever cannot renew stops before anybody else may begin: no request goes on for longer than LIMIT_S after the last
 * renewal was sent; what is left until DURATION_S is for clocks of a busy machine that ring late. */
enum { DURATION_S = 12, LIMIT_S = 9, RENEW_MS = 2000, LOOK_MS = 500, EXIT_LOST = 75 };
enum { LONGEST_S = 60 }; /* that another may say */
static const double call_s = 4, least_s = 0.1;

struct adli_lease {
    adli_kube *kube;
    char ns[64], name[64], holder[128], path[ADLI_OPERATOR_PATH], collection[ADLI_OPERATOR_PATH];
    /* as it was last seen */
    char seen[256], version[64]; /* version: as it was last renewed; "": to be asked for */
    double seen_s;
    double renewed_s; /* before the request that did it; 0: it was never ours */
    int transitions;
    void (*lost)(void *user);
    void *user;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool stopping, running;
    pthread_t thread;
};

static json_t *make(const adli_lease *lease, const char *holder, const char *version)
{
    char now[ADLI_UTC_SIZE];
    struct timespec when;
    clock_gettime(CLOCK_REALTIME, &when);
    adli_utc_text(&when, 6, now);
    json_t *object =
        json_pack("{s:s,s:s,s:{s:s,s:s},s:{s:s,s:i,s:s,s:i}}", "apiVersion",
                  "coordination.k8s.io/v1", "kind", "Lease", "metadata", "name", lease->name,
                  "namespace", lease->ns, "spec", "holderIdentity", holder, "leaseDurationSeconds",
                  DURATION_S, "renewTime", now, "leaseTransitions", lease->transitions);
    if (object && version)
        json_object_set_new(json_object_get(object, "metadata"), "resourceVersion",
                            json_string(version));
    return object;
}

static double left_s(const adli_lease *lease)
{
    return lease->renewed_s > 0 ? lease->renewed_s + LIMIT_S - adli_monotonic_s() : call_s;
}

/* One call, as long as there is time. *answer: its JSON, NULL where there is none (404). */
static adl_status ask(adli_lease *lease, adli_kube_call *call, json_t **answer)
{
    double left = left_s(lease);
    json_error_t error;
    *answer = NULL;
    if (left < least_s)
        return adli_fail(ADL_ETIMEOUT, "lease: not renewed in %d s", LIMIT_S);
    call->time_s = left < call_s ? left : call_s;
    adli_kube_do(lease->kube, call, 1);
    adl_status status = call->code == 404 && !call->body ? ADL_OK : adli_kube_check(call, "lease");
    if (status == ADL_OK && call->code != 404) {
        *answer = json_loads(call->answer.data ? call->answer.data : "", 0, &error);
        status = *answer ? ADL_OK : adli_fail(ADL_EIO, "lease: %s", error.text);
    }
    adli_kube_call_fini(call);
    return status;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static const char *version_of(const json_t *object)
{
    return text(json_object_get(object, "metadata"), "resourceVersion");
}

/* version NULL: it is new. ESTATE: somebody else was faster. */
static adl_status put(adli_lease *lease, const char *holder, const char *version)
{
    json_t *object = make(lease, holder, version);
    json_t *answer = NULL;
    char *body = object ? json_dumps(object, JSON_COMPACT) : NULL;
    adli_kube_call call = {.method = version ? "PUT" : "POST",
                           .path = version ? lease->path : lease->collection,
                           .body = body};
    adl_status status = body ? ask(lease, &call, &answer) : adli_fail_memory("lease");
    snprintf(lease->version, sizeof lease->version, "%s", version_of(answer));
    json_decref(answer);
    free(body);
    json_decref(object);
    return status;
}

static adl_status take(adli_lease *lease, const char *version, bool *ours)
{
    double now_s = adli_monotonic_s();
    adl_status status = put(lease, lease->holder, version);
    *ours = status == ADL_OK;
    if (*ours)
        lease->renewed_s = now_s;
    return status;
}

/* Its holder may be of another version, and stop later than we would: a Lease lasts as long as it says. */
static int lasts_s(const json_t *spec)
{
    json_int_t said = json_integer_value(json_object_get(spec, "leaseDurationSeconds"));
    return said > DURATION_S && said <= LONGEST_S ? (int)said : DURATION_S;
}

/* Makes it ours when it is ours already, nobody's, or has not moved for too long; once we have led, another's is lost
 * for ever. *ours tells. ESTATE: it is ours but has moved, by a request of ours whose answer was lost. */
static adl_status look(adli_lease *lease, bool *ours)
{
    adli_kube_call call = {.method = "GET", .path = lease->path};
    json_t *object;
    char seen[256], version[64];
    *ours = false;
    adl_status status = ask(lease, &call, &object);
    if (status != ADL_OK)
        return status;
    const json_t *spec = json_object_get(object, "spec");
    const char *holder = text(spec, "holderIdentity");
    snprintf(version, sizeof version, "%s", version_of(object));
    snprintf(seen, sizeof seen, "%.120s %.60s", holder, text(spec, "renewTime"));
    if (strcmp(seen, lease->seen) != 0) {
        memcpy(lease->seen, seen, sizeof seen);
        lease->seen_s = adli_monotonic_s();
    }
    bool mine = strcmp(holder, lease->holder) == 0;
    bool led = lease->renewed_s > 0;
    bool lapsed = !*holder || adli_monotonic_s() - lease->seen_s > lasts_s(spec);
    if (!object || mine || (lapsed && !led)) {
        lease->transitions =
            (int)json_integer_value(json_object_get(spec, "leaseTransitions")) + !mine;
        status = take(lease, object ? version : NULL, ours);
        status = status == ADL_ESTATE && !mine ? ADL_OK : status;
    }
    json_decref(object);
    return status;
}

/* Nobody but us changes what is ours: it is looked at when that turns out not to be so. */
static adl_status renew(adli_lease *lease, bool *ours)
{
    char version[64];
    memcpy(version, lease->version, sizeof version);
    adl_status status = *version ? take(lease, version, ours) : ADL_ESTATE;
    return status == ADL_ESTATE || status == ADL_ENOENT ? look(lease, ours) : status;
}

static void wait_ms(adli_lease *lease, int ms)
{
    struct timespec until = adli_deadline(ms);
    if (!lease->stopping)
        pthread_cond_timedwait(&lease->news, &lease->lock, &until);
}

_Noreturn static void lose(const adli_lease *lease)
{
    adli_say(ADL_LOG_ERROR, "does not lead any more, and stops");
    if (lease->lost)
        lease->lost(lease->user);
    _exit(EXIT_LOST);
}

static void *keep(void *user)
{
    adli_lease *lease = user;
    bool ours = true;
    pthread_mutex_lock(&lease->lock);
    while (!lease->stopping) {
        wait_ms(lease, ours ? RENEW_MS : LOOK_MS);
        if (lease->stopping)
            break;
        pthread_mutex_unlock(&lease->lock);
        if (left_s(lease) < least_s) /* we were stopped meanwhile */
            lose(lease);
        adl_status status = renew(lease, &ours);
        pthread_mutex_lock(&lease->lock);
        bool taken = status == ADL_OK && !ours;
        if (!ours)
            adli_say(ADL_LOG_WARNING, "the lead could not be renewed: %s",
                     taken ? lease->seen : adl_error());
        if (taken || left_s(lease) < least_s)
            lose(lease);
    }
    pthread_mutex_unlock(&lease->lock);
    return NULL;
}

static adl_status acquire(adli_lease *lease, const adli_operator_options *options)
{
    bool ours = false, told = false;
    while (!ours) {
        if (options->interrupted && options->interrupted(options->user))
            return adli_fail(ADL_EINTR, "ended before it led");
        adl_status status = look(lease, &ours);
        if (status == ADL_EINVAL) /* we may not */
            return status;
        if (!ours && !told)
            adli_say(ADL_LOG_INFO, "waits to lead: %s",
                     status == ADL_OK ? lease->seen : adl_error());
        told = true;
        pthread_mutex_lock(&lease->lock);
        if (!ours)
            wait_ms(lease, LOOK_MS);
        pthread_mutex_unlock(&lease->lock);
    }
    return ADL_OK;
}

adl_status adli_lease_new(adli_kube *kube, const char *ns, const char *name,
                          const adli_operator_options *options, adli_lease **out)
{
    char host[64] = "", random[17];
    *out = NULL;
    adli_lease *lease = adli_calloc(1, sizeof *lease);
    if (!lease)
        return adli_fail_memory("lease");
    lease->kube = kube;
    lease->lost = options->lost;
    lease->user = options->user;
    pthread_mutex_init(&lease->lock, NULL);
    gethostname(host, sizeof host - 1);
    adl_status status = adli_cond_init(&lease->news);
    if (status == ADL_OK)
        status = adli_random_hex(random, sizeof random);
    if (status == ADL_OK) {
        snprintf(lease->ns, sizeof lease->ns, "%s", ns);
        snprintf(lease->name, sizeof lease->name, "%s", name);
        snprintf(lease->holder, sizeof lease->holder, "%s-%s", host, random);
        snprintf(lease->collection, sizeof lease->collection,
                 "/apis/coordination.k8s.io/v1/namespaces/%s/leases", ns);
        snprintf(lease->path, sizeof lease->path,
                 "/apis/coordination.k8s.io/v1/namespaces/%s/leases/%s", ns, name);
        status = acquire(lease, options);
    }
    if (status == ADL_OK) {
        status = adli_thread_start(&lease->thread, "lease", keep, lease);
        lease->running = status == ADL_OK;
    }
    if (status == ADL_OK)
        *out = lease;
    else
        adli_lease_free(lease);
    return status;
}

void adli_lease_free(adli_lease *lease)
{
    if (!lease)
        return;
    pthread_mutex_lock(&lease->lock);
    lease->stopping = true;
    pthread_cond_broadcast(&lease->news);
    pthread_mutex_unlock(&lease->lock);
    if (lease->running) {
        pthread_join(lease->thread, NULL);
        json_t *object;
        if (adli_kube_one(lease->kube, "GET", lease->path, NULL, NULL, 0, &object) == ADL_OK) {
            const char *version = text(json_object_get(object, "metadata"), "resourceVersion"),
                       *holder = text(json_object_get(object, "spec"), "holderIdentity");
            if (strcmp(holder, lease->holder) == 0 && put(lease, "", version) != ADL_OK)
                adli_say(ADL_LOG_WARNING, "the lead was not given away: %s", adl_error());
            json_decref(object);
        }
    }
    pthread_cond_destroy(&lease->news);
    pthread_mutex_destroy(&lease->lock);
    free(lease);
}
