/* The operator beside very many jobs: what it does is counted in jobs looked at, so that work that grows with the
 * square of their number fails here, on any machine. The server knows no job's status (404): a job whose object is
 * gone has nothing to be told. */
#include "core_world.h"
#include "daemon/operator_impl.h"
#include "kube_server.h"

#include "adaptdl/life.h"
#include "base/mem.h"
#include "base/thread.h"

#include <math.h>

typedef struct site {
    world w;
    adlt_kube_server server;
    atomic_int refusals; /* that are still to come */
    adli_operator op;
} site;

static void answer(void *user, adlt_kube_request *request)
{
    bool refused = atomic_fetch_sub(&((site *)user)->refusals, 1) > 0;
    adlt_kube_answer(request, refused ? 403 : 404, "", "{}");
}

static adl_status open_site(site *s)
{
    char url[64], none[] = "";
    adli_kube_config config = {.server = url,
                               .ca = none,
                               .certificate = none,
                               .key = none,
                               .token = none,
                               .token_file = none,
                               .ns = none};
    adl_status status = open_world(&s->w, 1, 1);
    s->server = (adlt_kube_server){.answer = answer, .user = s};
    s->op = (adli_operator){.config = &s->w.config};
    atomic_store(&s->refusals, 0);
    if (status == ADL_OK && !adlt_kube_server_start(&s->server))
        status = adli_fail(ADL_EIO, "server");
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->server.port);
    if (status == ADL_OK)
        status = adli_kube_open(&config, &s->op.kube);
    if (status == ADL_OK)
        status = adli_operator_jobs_init(&s->op);
    adli_operator_mirror_init(&s->op);
    s->op.core = s->w.core;
    return status;
}

static void close_site(site *s)
{
    adli_operator_jobs_fini(&s->op);
    free(s->op.calls);
    adli_kube_close(s->op.kube);
    adlt_kube_server_stop(&s->server);
    close_world(&s->w);
}

static void watched(site *s, int number, bool gone)
{
    char name[32], uid[32];
    snprintf(name, sizeof name, "job-%d", number);
    snprintf(uid, sizeof uid, "uid-%d", number);
    json_t *object = json_pack("{s:{s:s,s:s,s:s},s:{s:{s:{s:[{s:s,s:[s,s]}]}}}}", "metadata",
                               "name", name, "namespace", "default", "uid", uid, "spec", "template",
                               "spec", "containers", "name", "main", "command", "sleep", "1");
    adli_operator_job_ops.object(&s->op, object, gone);
    json_decref(object);
}

static bool settled(site *s)
{
    pthread_mutex_lock(&s->op.lock);
    adli_operator_job *job;
    bool all = true;
    TAILQ_FOREACH(job, &s->op.jobs, link)
    {
        all = all && job->taken && !job->gone;
    }
    pthread_mutex_unlock(&s->op.lock);
    return all;
}

/* The thread, from news that are there until there is nothing to be done. */
static void feed(site *s)
{
    s->op.stopping = false;
    CHECK_OK(adli_thread_start(&s->op.thread, "jobs", adli_operator_feed, &s->op));
    for (int i = 0; i < 60000 && !settled(s); i++)
        usleep(10000);
    CHECK(settled(s));
    pthread_mutex_lock(&s->op.lock);
    s->op.stopping = true;
    pthread_cond_broadcast(&s->op.news);
    pthread_mutex_unlock(&s->op.lock);
    pthread_join(s->op.thread, NULL);
}

static int64_t seen(site *s)
{
    int64_t visits = s->op.visits;
    s->op.visits = 0;
    return visits;
}

typedef struct costs {
    int64_t come, known, mirrored, owners, go;
} costs;

static costs costs_of(int count)
{
    static site s;
    costs out;
    char uid[32], name[32];
    CHECK_OK(open_site(&s));
    for (int i = 0; i < count; i++)
        watched(&s, i, false);
    feed(&s);
    out.come = seen(&s);
    for (int i = 0; i < count; i++)
        watched(&s, i, false);
    out.known = seen(&s);
    for (int i = 0; i < count; i++) {
        snprintf(uid, sizeof uid, "uid-%d", i);
        snprintf(name, sizeof name, "job-%d", i);
        adli_store_job row = {.uid = uid, .ns = "default", .name = name, .phase = ADL_PENDING};
        s.op.mirror.put(&s.op, &row, &(adli_mirrored){.batch_size = NAN});
        CHECK_INT(s.op.call_count, 2); /* a status and an event */
        CHECK_OK(s.op.mirror.commit(&s.op));
    }
    out.mirrored = seen(&s);
    for (int i = 0; i < count; i++) {
        adli_k8s_owner owner;
        snprintf(uid, sizeof uid, "uid-%d", i);
        CHECK_OK(adli_operator_owner(&s.op, uid, &owner));
        free(owner.pod);
    }
    out.owners = seen(&s);
    for (int i = 0; i < count; i++)
        watched(&s, i, true);
    feed(&s);
    out.go = seen(&s);
    CHECK(TAILQ_EMPTY(&s.op.jobs));
    CHECK_INT(s.op.by_uid.count, 0);
    close_site(&s);
    return out;
}

TEST(news_of_a_job_look_at_no_other)
{
    costs few = costs_of(40), many = costs_of(400);
    CHECK_INT(many.come, 10 * few.come);
    CHECK_INT(many.known, 10 * few.known);
    CHECK_INT(many.mirrored, 10 * few.mirrored);
    CHECK_INT(many.owners, 10 * few.owners);
    CHECK_INT(many.go, 10 * few.go);
    CHECK(many.come <= 2 * 400);
    printf("# looks at 400 jobs: %lld as they come, %lld as they are mirrored, %lld as they go\n",
           (long long)many.come, (long long)many.mirrored, (long long)many.go);
}

/* Those that could not be told of are tried again later and hold up nobody; a relist shows who is gone. */
TEST(jobs_that_are_refused_come_again)
{
    static site s;
    REQUIRE_OK(open_site(&s));
    atomic_store(&s.refusals, 3);
    for (int i = 0; i < 10; i++)
        watched(&s, i, false);
    feed(&s);
    CHECK_INT(s.server.requests, 13);
    for (int i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%d", i);
        CHECK(adli_core_find(s.w.core, "default", name) != NULL);
    }
    /* one that is gone while it waits for its next try is not tried again */
    atomic_store(&s.refusals, 1);
    watched(&s, 10, false);
    watched(&s, 11, true);
    watched(&s, 10, true);
    adli_operator_job_ops.begin(&s.op);
    for (int i = 0; i < 5; i++)
        watched(&s, i, false);
    adli_operator_job_ops.complete(&s.op);
    feed(&s);
    CHECK_INT(s.server.requests, 13);
    CHECK_INT(s.op.by_uid.count, 5);
    CHECK(adli_operator_find(&s.op, "uid-4") && !adli_operator_find(&s.op, "uid-5"));
    close_site(&s);
}
