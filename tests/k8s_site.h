/* The Kubernetes backend on an API server in memory, for jobs of the namespace "mine": one site at a time. */
#ifndef ADLT_K8S_SITE_H
#define ADLT_K8S_SITE_H

#include "backend/k8s/impl.h"
#include "base/clock.h"
#include "fake_kube.h"
#include "harness.h"

#include <poll.h>

typedef struct site {
    adlt_fake fake;
    adli_kube *kube;
    adli_backend *backend;
    const char *only;
    double stuck_s;
} site;

static const char pod_text[] =
    "{\"metadata\":{\"labels\":{\"mine\":\"yes\"}},\"spec\":{\"nodeSelector\":{\"disk\":\"ssd\"},"
    "\"containers\":[{\"name\":\"main\",\"image\":\"i\",\"command\":[\"x\"],\"env\":[{\"name\":"
    "\"A\",\"value\":\"$(B)\"},{\"name\":\"MINE\",\"value\":\"lost\"},{\"name\":\"KEPT\","
    "\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"metadata.name\"}}}]},{\"name\":\"side\"}]}}";

static inline adl_status owner(void *user, const char *uid, adli_k8s_owner *out)
{
    (void)user;
    *out = (adli_k8s_owner){.ns = "mine", .name = "hello"};
    if (strcmp(uid, "gone") == 0)
        return adli_fail(ADL_ENOENT, "the job was deleted");
    out->pod = strdup(pod_text);
    return ADL_OK;
}

static inline adl_status reopen(site *s)
{
    adli_k8s_options options = ADLI_K8S_OPTIONS_INIT;
    options.kube = s->kube;
    options.owner = owner;
    options.stuck_s = s->stuck_s > 0 ? s->stuck_s : 1e9;
    options.grace_s = 45;
    options.only = s->only;
    if (s->backend)
        s->backend->ops->free(s->backend->self);
    return adli_k8s_new(&options, &s->backend);
}

static inline site *open_site(void)
{
    static site s;
    char url[64];
    s = (site){0};
    if (!adlt_fake_start(&s.fake))
        return NULL;
    adlt_fake_node(&s.fake, "a");
    adlt_fake_node(&s.fake, "b");
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s.fake.server.port);
    adli_kube_config config = {.server = url};
    if (adli_kube_open(&config, &s.kube) != ADL_OK || reopen(&s) != ADL_OK) {
        printf("info - %s\n", adl_error());
        return NULL;
    }
    return &s;
}

static inline void close_site(site *s)
{
    s->backend->ops->free(s->backend->self);
    adli_kube_close(s->kube);
    adlt_fake_stop(&s->fake);
}

static inline adl_status start(site *s, const char *uid, int group, int replicas)
{
    static const char *const env[] = {"MINE=has $(none)", "ADAPTDL_JOB_SECRET=s3cret",
                                      "ADAPTDL_SUPERVISOR_URL=http://job:t0ken@h",
                                      "ADAPTDL_REPLICA_RANK=99", NULL};
    static const char *const defaults[] = {"A=no", "D=yes", NULL};
    static const adli_member_start members[] = {{0, 0, "a"}, {1, 1, "b"}, {2, 2, "b"}};
    adli_start spec = ADLI_START_INIT;
    spec.uid = uid;
    spec.group = group;
    spec.members = members;
    spec.count = spec.replicas = replicas;
    spec.nodes = replicas > 1 ? 2 : 1;
    spec.env = env;
    spec.defaults = defaults;
    return s->backend->ops->start(s->backend->self, &spec);
}

static inline adli_member_view view(site *s, const char *uid, int group, int member)
{
    adli_member_view views[8] = {0};
    int count;
    if (s->backend->ops->observe(s->backend->self, uid, group, views, 8, &count) == ADL_OK)
        for (int i = 0; i < count; i++)
            if (views[i].member == member)
                return views[i];
    return (adli_member_view){.member = -1};
}

static inline bool wait_state(site *s, const char *uid, int group, int member,
                              adli_member_state state)
{
    for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s;) {
        adli_member_view now = view(s, uid, group, member);
        if (now.member == member && now.state == state)
            return true;
        struct pollfd wait = {s->backend->ops->event_fd(s->backend->self), POLLIN, 0};
        poll(&wait, 1, 100);
        s->backend->ops->drain_events(s->backend->self);
    }
    return false;
}

/* Of the first group of job "u". */
#define POD(n) "/api/v1/namespaces/mine/pods/hello-u-1-" #n

#endif
