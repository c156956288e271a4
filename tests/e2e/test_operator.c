/* The operator as a process, on an API server in memory that kills it whenever the test likes: jobs come, run
 * and end, nothing is started twice and nothing is lost. */
#include "cluster.h"
#include "fake_kube.h"

#include "base/clock.h"

#define JOBS   "/apis/adaptdl.petuum.com/v1/namespaces/default/adaptdljobs"
#define LEASES "/apis/coordination.k8s.io/v1/namespaces/default/leases"
#define LEASE  LEASES "/adaptdl-sched"
#define UID(n) "0000000" #n "-0000-0000-0000-000000000000"

/* Requests about the Lease, as the server met them. Times are of its clock, under its lock. */
typedef struct lease_log {
    char holder[160];                 /* who renewed it */
    double renewed_s;                 /* when the last renewal came in */
    int looks;                        /* since that was done, by whoever waits */
    double first_s, last_s, before_s; /* the first look, the last one and that before it */
    double taken_s;                   /* another holder came in: nothing is noted any more */
} lease_log;

typedef struct site {
    adlt_fake fake; /* the first field */
    lease_log lease;
    cluster sched;
    char kubeconfig[128];
    const char *config; /* more of it; NULL: nothing */
    /* the fault */
    /* Which of the requests that change something kills the operator; 0: none. */
    atomic_int nth;
    bool after;      /* once it is done */
    atomic_int seen; /* such requests */
    atomic_bool killed;
} site;

static bool write_kubeconfig(site *s)
{
    snprintf(s->kubeconfig, sizeof s->kubeconfig, "%s/kubeconfig", s->sched.state);
    FILE *file = fopen(s->kubeconfig, "w");
    if (!file)
        return false;
    fprintf(
        file,
        "current-context: c\nclusters: [{name: c, cluster: {server: \"http://127.0.0.1:%d\"}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\n",
        s->fake.server.port);
    fclose(file);
    setenv("KUBECONFIG", s->kubeconfig, 1);
    return true;
}

static site *open_site(void)
{
    site *s = calloc(1, sizeof *s);
    if (!s || !cluster_new(&s->sched) || !adlt_fake_start(&s->fake) || !write_kubeconfig(s))
        return NULL;
    adlt_fake_node(&s->fake, "a");
    adlt_fake_node(&s->fake, "b");
    adlt_kubelet_start(&s->fake);
    return s;
}

static void start_sched(site *s)
{
    char config[128];
    snprintf(config, sizeof config, "%s/config.yaml", s->sched.state);
    FILE *file = fopen(config, "w");
    if (file) {
        fputs("intervalSeconds: 1\nretryPauseSeconds: 0.1\nkubernetes: {listen: \"127.0.0.1:0\", "
              "supervisorUrl: \"http://10.0.0.1:8080\"}\n",
              file);
        fputs(s->config ? s->config : "", file);
        fclose(file);
    }
    const char *const flags[] = {"--config", config, "--backend", "kubernetes", NULL};
    cluster_spawn(&s->sched, NULL, flags);
}

static void kill_sched(site *s, int signal)
{
    int status;
    if (s->sched.daemon > 0) {
        kill(s->sched.daemon, signal);
        waitpid(s->sched.daemon, &status, 0);
    }
    close(s->sched.ready_fd);
    s->sched.daemon = 0;
}

static void close_site(site *s)
{
    if (s->sched.daemon)
        kill_sched(s, SIGTERM);
    adlt_kubelet_stop(&s->fake);
    adlt_fake_stop(&s->fake);
    cluster_free(&s->sched);
    free(s);
}

/* more: after the spec. */
static void submit_invalid(site *s, const char *name, const char *uid, const char *more)
{
    char text[600];
    snprintf(text, sizeof text,
             "{\"metadata\":{\"name\":\"%s\",\"uid\":\"%s\"},\"spec\":{\"minReplicas\":5,"
             "\"maxReplicas\":2,\"template\":{\"spec\":{\"containers\":[{\"name\":\"m\"}]}}}%s}",
             name, uid, more);
    adlt_fake_put(&s->fake, JOBS, text);
}

static void submit(site *s, const char *name, const char *uid)
{
    char text[600];
    snprintf(text, sizeof text,
             "{\"apiVersion\":\"adaptdl.petuum.com/v1\",\"kind\":\"AdaptDLJob\",\"metadata\":"
             "{\"name\":\"%s\",\"uid\":\"%s\"},\"spec\":{\"minReplicas\":2,\"maxReplicas\":2,"
             "\"template\":{\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":\"i\","
             "\"env\":[{\"name\":\"P\",\"valueFrom\":{\"fieldRef\":{\"fieldPath\":"
             "\"metadata.name\"}}}],\"resources\":{\"requests\":{\"cpu\":\"3\"}}}]}}}}",
             name, uid);
    adlt_fake_put(&s->fake, JOBS, text);
}

static void read_status(site *s, const char *name, const char *field, char *out, size_t size)
{
    char path[200];
    snprintf(path, sizeof path, JOBS "/%s", name);
    json_t *job = adlt_fake_get(&s->fake, path);
    const char *text = json_string_value(json_object_get(json_object_get(job, "status"), field));
    snprintf(out, size, "%s", text ? text : "");
    json_decref(job);
}

/* False after two minutes, or when the operator was killed by the fault (unless that is awaited). */
static bool wait_phase(site *s, const char *name, const char *phase)
{
    char now[64];
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s;) {
        read_status(s, name, "phase", now, sizeof now);
        if (strcmp(now, phase) == 0)
            return true;
        if (atomic_load(&s->killed))
            return false;
        usleep(5000);
    }
    return false;
}

static bool wait_none(site *s, const char *prefix)
{
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s;) {
        if (adlt_fake_count(&s->fake, prefix) == 0)
            return true;
        usleep(5000);
    }
    return false;
}

/* How many objects under the prefix have the text somewhere. */
static int count_with(site *s, const char *prefix, const char *text)
{
    const char *key;
    json_t *object;
    int count = 0;
    pthread_mutex_lock(&s->fake.lock);
    json_object_foreach(s->fake.objects, key, object)
    {
        char *whole = strncmp(key, prefix, strlen(prefix)) == 0 ? json_dumps(object, 0) : NULL;
        count += whole && strstr(whole, text);
        free(whole);
    }
    pthread_mutex_unlock(&s->fake.lock);
    return count;
}

TEST(a_job_runs_and_its_status_tells)
{
    site *s = open_site();
    REQUIRE(s);
    submit(s, "one", UID(1));
    start_sched(s);
    CHECK(wait_phase(s, "one", "Running"));
    json_t *job = adlt_fake_get(&s->fake, JOBS "/one"), *status = json_object_get(job, "status");
    CHECK_INT(json_integer_value(json_object_get(status, "replicas")), 2);
    CHECK_INT(json_integer_value(json_object_get(status, "readyReplicas")), 2);
    CHECK_INT(json_integer_value(json_object_get(status, "group")), 1);
    CHECK_INT(json_array_size(json_object_get(status, "allocation")),
              2); /* 3 of 4 cpus: one each */
    CHECK_INT(json_array_size(json_object_get(status, "conditions")), 4);
    json_decref(job);
    CHECK_INT(count_with(s, "events/default/one.", "\"note\": \"starts on 2"), 1);
    CHECK_INT(adlt_fake_count(&s->fake, "leases/default/adaptdl-sched"), 1);
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_phase(s, "one", "Succeeded"));
    adlt_fake_remove(&s->fake, JOBS "/one");
    CHECK(wait_none(s, "pods/"));
    CHECK(wait_none(s, "secrets/default/adaptdl-0"));
    close_site(s);
}

TEST(a_job_that_cannot_be_is_told_why)
{
    char message[200];
    site *s = open_site();
    REQUIRE(s);
    submit_invalid(s, "bad", UID(2), "");
    /* the operator was killed before it could say so */
    submit_invalid(s, "late", UID(3), ",\"status\":{\"phase\":\"Pending\",\"scheduler\":{}}");
    start_sched(s);
    CHECK(wait_phase(s, "bad", "Failed"));
    read_status(s, "bad", "reason", message, sizeof message);
    CHECK_STR(message, "InvalidSpec");
    read_status(s, "bad", "message", message, sizeof message);
    CHECK(strstr(message, "maxReplicas"));
    CHECK(wait_phase(s, "late", "Failed"));
    read_status(s, "late", "reason", message, sizeof message);
    CHECK_STR(message, "InvalidSpec");
    close_site(s);
}

/* The first status is refused, as when a right of ours comes late. */
static int refuse_once(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    (void)method;
    return !done && strstr(path, "/status") && atomic_fetch_add(&s->seen, 1) == 0 ? 403 : 0;
}

TEST(a_refusal_of_ours_is_no_fault_of_the_job)
{
    site *s = open_site();
    REQUIRE(s);
    s->fake.hook = refuse_once;
    s->fake.hook_user = s;
    submit(s, "one", UID(8));
    start_sched(s);
    CHECK(wait_phase(s, "one", "Running"));
    CHECK(atomic_load(&s->seen) > 1);
    close_site(s);
}

/* All but the first status of a job are refused as such. */
static int refuse_odd(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    (void)method;
    return !done && strstr(path, "/odd/status") && atomic_fetch_add(&s->seen, 1) > 0 ? 422 : 0;
}

TEST(a_status_that_is_refused_stops_nobody_else)
{
    site *s = open_site();
    REQUIRE(s);
    s->fake.hook = refuse_odd;
    s->fake.hook_user = s;
    submit(s, "odd", UID(8));
    start_sched(s);
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s;) {
        if (adlt_fake_count(&s->fake, "pods/default/odd-") == 2)
            break;
        usleep(5000);
    }
    CHECK_INT(adlt_fake_count(&s->fake, "pods/default/odd-"), 2);
    atomic_store(&s->fake.let_end, 1);
    submit(s, "one", UID(9));
    CHECK(wait_phase(s, "one", "Succeeded"));
    close_site(s);
}

/* Somebody else changes the job all the time, after its first status and until there is an nth. */
static int conflict_on(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    bool of_job = !done && strcmp(method, "PATCH") == 0 && strstr(path, "/one/status");
    return of_job && atomic_load(&s->nth) == 0 && atomic_fetch_add(&s->seen, 1) > 0
               ? ADLT_FAKE_CONFLICT
               : 0;
}

TEST(what_conflicts_could_not_be_written_is_not_acted_on)
{
    site *s = open_site();
    REQUIRE(s);
    s->fake.hook = conflict_on;
    s->fake.hook_user = s;
    submit(s, "one", UID(8));
    start_sched(s);
    for (double until_s = adli_monotonic_s() + 120;
         atomic_load(&s->seen) < 16 && adli_monotonic_s() < until_s;)
        usleep(5000);
    CHECK(atomic_load(&s->seen) >= 16); /* four commits, with their three tries more */
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 0);
    atomic_store(&s->nth, 1);
    CHECK(wait_phase(s, "one", "Running"));
    close_site(s);
}

/* The server's seconds do not say in which order jobs of the same second were taken. */
TEST(jobs_of_one_second_are_taken_over_in_their_order)
{
    site *s = open_site();
    REQUIRE(s);
    start_sched(s);
    submit(s, "first", UID(9));
    CHECK(wait_phase(s, "first", "Running"));
    submit(s, "second", UID(1)); /* there is no room for both */
    CHECK(wait_phase(s, "second", "Pending"));
    kill_sched(s, SIGKILL);
    adlt_fake_put(&s->fake, LEASE, "{\"spec\":{\"holderIdentity\":\"\"}}");
    start_sched(s);
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_phase(s, "first", "Succeeded"));
    CHECK(wait_phase(s, "second", "Succeeded"));
    close_site(s);
}

TEST(a_deleted_job_gives_way_to_another_of_its_name)
{
    site *s = open_site();
    REQUIRE(s);
    start_sched(s);
    submit(s, "one", UID(3));
    CHECK(wait_phase(s, "one", "Running"));
    adlt_fake_remove(&s->fake, JOBS "/one");
    submit(s, "one", UID(4));
    CHECK(wait_phase(s, "one", "Running"));
    CHECK(wait_none(s, "pods/default/one-" UID(3)));
    CHECK_INT(adlt_fake_count(&s->fake, "pods/default/one-" UID(4)), 2);
    close_site(s);
}

TEST(a_replica_that_goes_with_its_node_is_told)
{
    site *s = open_site();
    REQUIRE(s);
    submit(s, "one", UID(3));
    start_sched(s);
    CHECK(wait_phase(s, "one", "Running"));
    adlt_fake_node(&s->fake, "c");
    adlt_fake_remove(&s->fake, "/api/v1/nodes/b");
    bool again = false;
    for (double until_s = adli_monotonic_s() + 120; !again && adli_monotonic_s() < until_s;
         usleep(5000)) {
        json_t *job = adlt_fake_get(&s->fake, JOBS "/one"),
               *status = json_object_get(job, "status");
        again = json_integer_value(json_object_get(status, "group")) == 2 &&
                strcmp(json_string_value(json_object_get(status, "phase")), "Running") == 0;
        json_decref(job);
    }
    CHECK(again);
    CHECK_INT(count_with(s, "events/default/one.", "node b is lost"), 1);
    close_site(s);
}

/* A report of a job that has a replica on each of two nodes. */
static const char report[] =
    "{\"initBatchSize\":64,\"localBszBounds\":[16,64],\"globalBatchSize\":128,"
    "\"maxBatchSize\":1024,\"maxProfiledReplicas\":2,\"gradientAccumulation\":true,"
    "\"gradParams\":{\"norm\":1.0,\"var\":100.0},\"perfParams\":{\"alpha_c\":0.1,"
    "\"beta_c\":0.01,\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,\"beta_r\":0.001,"
    "\"gamma\":1.5},\"progress\":100,\"profile\":["
    "{\"nodes\":2,\"replicas\":2,\"localBsz\":64,\"accumTime\":0.74,\"optimTime\":0.75}]}";

/* What it learned is with the API server only: its database is made anew. */
TEST(what_jobs_have_learned_outlives_the_operator)
{
    site *s = open_site();
    REQUIRE(s);
    submit(s, "one", UID(1));
    start_sched(s);
    CHECK(wait_phase(s, "one", "Running"));
    CHECK_INT(count_with(s, "pods/default/one-", "ADAPTDL_PRIOR"), 0);
    CHECK_INT(cluster_code(&s->sched, "PUT", "/hints/default/one", report), 200);
    bool kept = false;
    for (double until_s = adli_monotonic_s() + 120; !kept && adli_monotonic_s() < until_s;
         usleep(5000))
        kept = count_with(s, "configmaps/default/adaptdl-sched-pool", "default i") == 1;
    CHECK(kept);
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_phase(s, "one", "Succeeded"));
    kill_sched(s, SIGKILL);
    adlt_fake_put(&s->fake, LEASE, "{\"spec\":{\"holderIdentity\":\"\"}}");
    adlt_fake_remove(&s->fake, JOBS "/one"); /* nor from its status */
    atomic_store(&s->fake.let_end, 0);
    start_sched(s);
    submit(s, "two", UID(2)); /* of the same image, and so of the same application */
    CHECK(wait_phase(s, "two", "Running"));
    CHECK_INT(count_with(s, "pods/default/two-", "ADAPTDL_PRIOR"), 2);
    close_site(s);
}

static int count_renewals(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    if (done && strcmp(method, "PUT") == 0 && strstr(path, "/leases/"))
        atomic_fetch_add(&s->seen, 1);
    return 0;
}

/* The clock of what is started next is set ten years ahead. */
static void set_clock_ahead(const cluster *of)
{
#ifndef __SANITIZE_ADDRESS__ /* whose own library wants to be the first */
    char path[160];
    snprintf(path, sizeof path, "%s/clock", of->state);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%d\n", 10 * 365 * 86400);
        fclose(file);
    }
    setenv("FAKE_CLOCK", path, 1);
    setenv("LD_PRELOAD", cluster_program("helpers/fake_clock.so"), 1);
#else
    (void)of;
#endif
}

static void note_look(lease_log *log)
{
    double now_s = adli_monotonic_s();
    if (log->taken_s > 0)
        return;
    log->before_s = log->last_s;
    log->last_s = now_s;
    if (log->looks++ == 0)
        log->first_s = now_s;
}

/* Whether it is a renewal. */
static bool note_holder(lease_log *log, const char *body)
{
    char holder[160];
    json_t *object = json_loads(body, 0, NULL);
    const char *text =
        json_string_value(json_object_get(json_object_get(object, "spec"), "holderIdentity"));
    snprintf(holder, sizeof holder, "%s", text ? text : "");
    json_decref(object);
    if (log->taken_s > 0)
        return false;
    if (*log->holder && strcmp(holder, log->holder) != 0) {
        log->taken_s = adli_monotonic_s();
        return false;
    }
    memcpy(log->holder, holder, sizeof holder);
    log->renewed_s = adli_monotonic_s();
    return true;
}

static void answer_and_note(void *user, adlt_kube_request *request)
{
    site *s = user;
    bool of_lease = strstr(request->path, "/leases"), renewal = false;
    if (of_lease) {
        pthread_mutex_lock(&s->fake.lock);
        if (strcmp(request->method, "GET") == 0)
            note_look(&s->lease);
        else
            renewal = note_holder(&s->lease, request->body);
        pthread_mutex_unlock(&s->fake.lock);
    }
    adlt_fake_answer(&s->fake, request);
    if (renewal) {
        pthread_mutex_lock(&s->fake.lock);
        s->lease.looks = 0;
        pthread_mutex_unlock(&s->fake.lock);
    }
}

static int lease_number(site *s, const char *field)
{
    json_t *lease = adlt_fake_get(&s->fake, LEASE);
    json_int_t number = json_integer_value(json_object_get(json_object_get(lease, "spec"), field));
    json_decref(lease);
    return (int)number;
}

/* It was taken when it had lapsed, as seen by whoever waited: not before, and not after many more looks. However busy the
 * machine is: what is compared is when requests came in, and each followed from the one before. One may have had no
 * answer, and is allowed its time. */
static void check_taken(const site *s, int declared_s)
{
    const lease_log *log = &s->lease;
    enum { CALL_S = 5 };
    CHECK(log->taken_s > 0);
    CHECK(log->taken_s - log->renewed_s > declared_s);
    CHECK(log->looks < 3 || log->before_s - log->first_s <= declared_s + CALL_S);
}

/* Whose clock is ahead by years must wait as well: a Lease lapses by time that passes. */
TEST(a_second_operator_waits_and_takes_over)
{
    site *s = open_site();
    cluster other;
    REQUIRE(s && cluster_new(&other));
    s->fake.server.answer = answer_and_note;
    start_sched(s);
    submit(s, "one", UID(5));
    CHECK(wait_phase(s, "one", "Running"));
    int declared_s = lease_number(s, "leaseDurationSeconds");
    CHECK(declared_s + 2 <= 15); /* two looks, half a second each, and the requests */
    cluster first = s->sched;
    s->sched = other;
    set_clock_ahead(&other);
    start_sched(s);
    unsetenv("LD_PRELOAD");
    s->fake.hook = count_renewals;
    s->fake.hook_user = s;
    for (double until_s = adli_monotonic_s() + 120;
         atomic_load(&s->seen) < 3 && adli_monotonic_s() < until_s;)
        usleep(5000);
    CHECK(atomic_load(&s->seen) >= 3); /* the other has looked meanwhile */
    CHECK(waitpid(first.daemon, NULL, WNOHANG) == 0);
    CHECK_INT(lease_number(s, "leaseTransitions"), 1);
    submit(s, "two", UID(6));
    kill(first.daemon, SIGKILL);
    waitpid(first.daemon, NULL, 0);
    double died_s = adli_monotonic_s();
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_phase(s, "one", "Succeeded"));
    printf("info - the other led after %.1f s\n", s->lease.taken_s - died_s);
    check_taken(s, declared_s);
    CHECK_INT(lease_number(s, "leaseTransitions"), 2);
    CHECK(wait_phase(s, "two", "Succeeded"));
    close(first.ready_fd);
    first.daemon = 0;
    cluster_free(&first);
    close_site(s);
}

TEST(a_lease_lasts_as_long_as_its_holder_says)
{
    site *s = open_site();
    REQUIRE(s);
    adlt_fake_put(&s->fake, LEASES,
                  "{\"metadata\":{\"name\":\"adaptdl-sched\"},\"spec\":{\"holderIdentity\":\"old\","
                  "\"leaseDurationSeconds\":14,\"renewTime\":\"2026-01-01T00:00:00.000000Z\"}}");
    snprintf(s->lease.holder, sizeof s->lease.holder, "old");
    s->lease.renewed_s = adli_monotonic_s();
    s->fake.server.answer = answer_and_note;
    start_sched(s);
    submit(s, "one", UID(5));
    CHECK(wait_phase(s, "one", "Running"));
    check_taken(s, 14);
    close_site(s);
}

/* The second renewal is done, and nobody hears of it. */
static int lose_answer(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    bool renewal = done && strcmp(method, "PUT") == 0 && strstr(path, "/leases/");
    return renewal && atomic_fetch_add(&s->seen, 1) == 1 ? 503 : 0;
}

TEST(a_renewal_whose_answer_is_lost_is_no_loss_of_the_lead)
{
    site *s = open_site();
    REQUIRE(s);
    s->fake.hook = lose_answer;
    s->fake.hook_user = s;
    start_sched(s);
    bool led = true;
    for (double until_s = adli_monotonic_s() + 120;
         led && atomic_load(&s->seen) < 4 && adli_monotonic_s() < until_s; usleep(5000))
        led = waitpid(s->sched.daemon, NULL, WNOHANG) == 0;
    CHECK(led);
    CHECK(atomic_load(&s->seen) >= 4);
    if (!led)
        s->sched.daemon = 0;
    close_site(s);
}

/* Those of the lease are refused while there is an nth. */
static int refuse_leases(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    (void)method;
    return !done && strstr(path, "/leases") && atomic_load(&s->nth) > 0 ? 503 : 0;
}

static bool wait_said(site *s, const char *text, int times)
{
    char path[96], line[512];
    snprintf(path, sizeof path, "%s/daemon.log", s->sched.state);
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s; usleep(20000)) {
        FILE *file = fopen(path, "r");
        int found = 0;
        while (file && fgets(line, sizeof line, file))
            found += strstr(line, text) != NULL;
        if (file)
            fclose(file);
        if (found >= times)
            return true;
    }
    return false;
}

TEST(who_loses_the_lead_stops_and_waits_to_lead_again)
{
    site *s = open_site();
    REQUIRE(s);
    s->fake.hook = refuse_leases;
    s->fake.hook_user = s;
    submit(s, "one", UID(5));
    start_sched(s);
    CHECK(wait_phase(s, "one", "Running"));
    atomic_store(&s->nth, 1);
    CHECK(wait_said(s, "does not lead any more", 1));
    CHECK(wait_said(s, "waits to lead", 1));
    atomic_store(&s->fake.let_end, 1);
    atomic_store(&s->nth, 0);
    CHECK(wait_phase(s, "one", "Succeeded"));
    CHECK(waitpid(s->sched.daemon, NULL, WNOHANG) == 0); /* the process is the same */
    CHECK(wait_said(s, "serves unix:", 2));
    json_t *lease = adlt_fake_get(&s->fake, LEASE), *job = adlt_fake_get(&s->fake, JOBS "/one");
    CHECK_INT(
        json_integer_value(json_object_get(json_object_get(lease, "spec"), "leaseTransitions")), 2);
    CHECK_INT(json_integer_value(json_object_get(json_object_get(job, "status"), "group")), 1);
    json_decref(lease);
    json_decref(job);
    submit(s, "two", UID(6));
    CHECK(wait_phase(s, "two", "Succeeded"));
    int status;
    kill(s->sched.daemon, SIGTERM);
    waitpid(s->sched.daemon, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    s->sched.daemon = 0;
    close_site(s);
}

/* ---- killed at every request ---- */

/* Once. The server's threads may be here while the test still starts the operator, or has buried it already:
 * then there is no process of that number, and 0 would be all of the test's own. */
static void strike(site *s)
{
    pid_t pid = s->sched.daemon;
    if (atomic_exchange(&s->nth, 0) == 0)
        return;
    if (pid > 0)
        kill(pid, SIGKILL);
    atomic_store(&s->killed, true); /* the test makes sure of it */
}

static int kill_at(void *user, const char *method, const char *path, bool done)
{
    site *s = user;
    (void)method;
    if (strstr(path, "/leases")) /* those come all the time */
        return 0;
    if (!done && atomic_fetch_add(&s->seen, 1) + 1 == atomic_load(&s->nth) && !s->after) {
        strike(s);
        return 503; /* it did not come through */
    }
    if (done && s->after && atomic_load(&s->seen) == atomic_load(&s->nth))
        strike(s);
    return 0;
}

/* A job from its coming to its end, with one kill; the number of requests that it took without. */
static int live_with_a_kill(int nth, bool after)
{
    site *s = open_site();
    const char *key;
    json_t *times;
    if (!s)
        return -1;
    atomic_store(&s->nth, nth);
    s->after = after;
    s->fake.hook = kill_at;
    s->fake.hook_user = s;
    submit(s, "one", UID(7));
    start_sched(s);
    bool running = wait_phase(s, "one", "Running");
    if (running)
        atomic_store(&s->fake.let_end, 1);
    bool over = running && wait_phase(s, "one", "Succeeded");
    if (atomic_load(&s->killed)) {
        kill_sched(s, SIGKILL);
        /* whoever held the lease is dead: it is free at once */
        adlt_fake_put(&s->fake, LEASE, "{\"spec\":{\"holderIdentity\":\"\"}}");
        atomic_store(&s->killed, false);
        start_sched(s);
        if (!running)
            running = over || wait_phase(s, "one", "Running");
        atomic_store(&s->fake.let_end, 1);
        over = wait_phase(s, "one", "Succeeded");
    }
    if (!over) {
        char command[200];
        printf("info - killed at %d%s:\n", nth, after ? ", done" : "");
        snprintf(command, sizeof command, "tail -n 20 %s/daemon.log", s->sched.state);
        fflush(stdout);
        if (system(command) != 0)
            printf("info - no log\n");
    }
    CHECK(over);
    json_object_foreach(s->fake.made, key, times)
    {
        if (strncmp(key, "pods/", 5) == 0 && json_integer_value(times) != 1)
            ADLT_FAIL("killed at %d: %s was made %d times", nth, key,
                      (int)json_integer_value(times));
    }
    int requests = atomic_load(&s->seen);
    close_site(s);
    return requests;
}

TEST(killed_at_any_request_it_goes_on)
{
    int whole = live_with_a_kill(0, false);
    CHECK(whole > 5);
    for (int nth = 1; nth <= whole && !adlt_failed; nth++)
        for (int after = 0; after < 2 && !adlt_failed; after++)
            live_with_a_kill(nth, after);
    printf("info - killed before and after each of %d requests\n", whole);
}

/* ---- a cluster that grows and shrinks ---- */

#define HOLDERS "pods/default/adaptdl-placeholder-"

static bool wait_holders(site *s, int count)
{
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s;) {
        if (adlt_fake_count(&s->fake, HOLDERS) == count)
            return true;
        usleep(5000);
    }
    printf("info - %d placeholders\n", adlt_fake_count(&s->fake, HOLDERS));
    return false;
}

/* As an autoscaler does for a placeholder that found no node. */
static void add_node(site *s, const char *name, const char *holder)
{
    char path[200], text[100];
    adlt_fake_node(&s->fake, name);
    snprintf(path, sizeof path, "/api/v1/namespaces/default/pods/adaptdl-placeholder-%s", holder);
    snprintf(text, sizeof text,
             "{\"spec\":{\"nodeName\":\"%s\"},\"status\":{\"phase\":\"Running\"}}", name);
    adlt_fake_put(&s->fake, path, text);
}

TEST(nodes_are_asked_for_from_none_and_let_go)
{
    char reason[64] = "";
    site *s = open_site();
    REQUIRE(s);
    s->config = "autoscale: {maxNodes: 3, image: own}\n";
    adlt_fake_remove(&s->fake, "/api/v1/nodes/a");
    adlt_fake_remove(&s->fake, "/api/v1/nodes/b");
    start_sched(s);
    submit(s, "hello", UID(1)); /* two replicas, a node each */
    CHECK(wait_phase(s, "hello", "Pending"));
    CHECK(wait_holders(s, 1)); /* nobody knows yet what a node is */
    for (double until_s = adli_monotonic_s() + 120; adli_monotonic_s() < until_s;) {
        read_status(s, "hello", "reason", reason, sizeof reason);
        if (strcmp(reason, "WaitingForNodes") == 0)
            break;
        usleep(5000);
    }
    CHECK_STR(reason, "WaitingForNodes");
    add_node(s, "a", "0");
    CHECK(wait_holders(s, 3)); /* two are needed; with three they are not all in use */
    add_node(s, "b", "1");
    CHECK(wait_phase(s, "hello", "Running"));
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_phase(s, "hello", "Succeeded"));
    CHECK(wait_holders(s, 0));
    close_site(s);
}
