/* The soak: many short training jobs of different kinds through a cluster of two nodes with two slots each,
 * while replicas, keepers and the daemon itself are killed with SIGKILL at random moments, nodes are
 * drained, and clients come and go. In the end all jobs have succeeded with the right result and nothing
 * is left: no process, descriptor, file, control group or port.
 *
 *     soak_cluster     ADL_SOAK_JOBS (200; 20 under sanitizers) jobs, random from ADL_SOAK_SEED (1)
 *
 * The daemon is killed during the first part only; the second part is run by one daemon, whose
 * descriptors, threads and memory are then compared with what it had at the beginning. */
#include "leaks.h"
#include "train_job.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/shm.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JOBS = 20, SANITIZED = 1 };
#else
enum { JOBS = 200, SANITIZED = 0 };
#endif
enum {
    JOBS_MAX = 1000,
    PAYLOAD_BYTES = 2 << 20,
    STREAMS = 6,
    WARM_UP = 4,
    GROWTH_KIB_MAX = 16384,
    STUCK_S = 180,
    CALM_S = 15
};

typedef enum event { KILL_REPLICA, KILL_KEEPER, KILL_DAEMON, DRAIN, UNDRAIN, STREAM, EVENTS } event;

typedef struct soak {
    cluster c;
    adli_rng rng;
    char mark[128], temporary[96], directory[96];
    int jobs, submitted, finished, failed;
    train_job plans[JOBS_MAX];
    bool with_files[JOBS_MAX]; /* submitted with the command line, from a directory */
    pid_t submitter;           /* the command line at work; 0: none */
    int uploads, interrupted_uploads;
    bool daemon_may_die;
    int drained; /* node, -1: none */
    double next_s[EVENTS];
    int counts[EVENTS];
    int streams[STREAMS]; /* descriptors, -1: none */
    int most_cgroups;
    long restarts, failures, crashes, starts, grown, shrunk;
} soak;

/* Seconds between two of them, on average. */
static const double every_s[EVENTS] = {[KILL_REPLICA] = 1.7, [KILL_KEEPER] = 2.3, [KILL_DAEMON] = 3,
                                       [DRAIN] = 9,          [UNDRAIN] = 2,       [STREAM] = 0.7};

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* ---- the cluster ---- */

static bool start_daemon(soak *s)
{
    static char config[128];
    const char *const flags[] = {"--nodes", "2", "--slots", "2", "--config", config, NULL};
    snprintf(config, sizeof config, "%s/config.yaml", s->c.state);
    cluster_spawn(&s->c, NULL, flags);
    if (cluster_ready(&s->c, 30000))
        return true;
    ADLT_FAIL("the daemon does not start; its log is %s/daemon.log", s->c.state);
    return false;
}

/* Cheap restarts, as these jobs last seconds, not hours; and no pauses, as they are doubled with every
 * failure, up to minutes for a job that takes many of the kills. */
static bool prepare(soak *s)
{
    static const char config[] = "intervalSeconds: 0.5\neventDelaySeconds: 0.2\n"
                                 "retryPauseSeconds: 0\nhistorySeconds: 1\n"
                                 "policy:\n  parameters: {restart_cost_s: 0.3}\n";
    char path[128];
    if (!cluster_new(&s->c))
        return false;
    snprintf(path, sizeof path, "%s/config.yaml", s->c.state);
    FILE *file = fopen(path, "w");
    if (!file || fputs(config, file) < 0 || fclose(file) != 0)
        return false;
    snprintf(s->temporary, sizeof s->temporary, "%s.tmp", s->c.state);
    snprintf(s->directory, sizeof s->directory, "%s.job", s->c.state);
    snprintf(s->mark, sizeof s->mark, "ADL_SOAK_MARK=%s", s->c.state);
    setenv("ADL_SOAK_MARK", s->c.state, 1);
    setenv("TMPDIR", s->temporary, 1);
    return mkdir(s->temporary, 0700) == 0;
}

/* ---- jobs ---- */

static train_job choose_job(soak *s)
{
    adli_rng *rng = &s->rng;
    train_job job = {.epochs = adli_rng_range(rng, 1, 4),
                     .examples = adli_rng_range(rng, 10, 120),
                     .batch = adli_rng_range(rng, 2, 16),
                     .step_us = adli_rng_range(rng, 0, 3000),
                     .example_us = adli_rng_range(rng, 2000, 20000),
                     .crash = -1,
                     .retries = 1000};
    if (adli_rng_below(rng, 5) == 0)
        job.epochs *= 4; /* worth more than one replica */
    if (adli_rng_below(rng, 6) == 0)
        job.crash = adli_rng_range(rng, 0, 4);
    if (adli_rng_below(rng, 5) == 0)
        job.children = adli_rng_range(rng, 1, 3);
    if (adli_rng_below(rng, 5) == 0)
        job.min_replicas = 2;
    if (adli_rng_below(rng, 2) == 0)
        job.max_replicas = adli_rng_range(rng, job.min_replicas ? job.min_replicas : 1, 4);
    job.pinned = adli_rng_below(rng, 6) == 0;
    return job;
}

static bool kill_daemon(soak *s);

/* A directory with a job file and something to send. */
static bool write_directory(soak *s, const char *text)
{
    static char payload[PAYLOAD_BYTES];
    char path[160];
    mkdir(s->directory, 0700);
    snprintf(path, sizeof path, "%s/adaptdljob.yaml", s->directory);
    FILE *file = fopen(path, "w");
    bool good = file && fputs(text, file) >= 0;
    if (file)
        good = fclose(file) == 0 && good;
    snprintf(path, sizeof path, "%s/payload", s->directory);
    file = fopen(path, "w");
    good = good && file && fwrite(payload, sizeof payload, 1, file) == 1;
    return file && fclose(file) == 0 && good;
}

/* With the command line, in the background; now and then the daemon dies meanwhile. */
static void start_submitter(soak *s, const char *text)
{
    char log[128];
    if (!write_directory(s, text)) {
        ADLT_FAIL("%s cannot be written", s->directory);
        return;
    }
    snprintf(log, sizeof log, "%s/submit.log", s->c.state);
    s->submitter = fork();
    if (s->submitter == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(out, 1);
        dup2(out, 2);
        execl(cluster_program("bin/adaptdl"), "adaptdl", "submit", s->directory, "--state",
              s->c.state, (char *)NULL);
        _exit(127);
    }
    s->uploads++;
    if (s->daemon_may_die && adli_rng_below(&s->rng, 2)) {
        usleep((useconds_t)adli_rng_range(&s->rng, 0, 40000));
        siginfo_t over = {0};
        waitid(P_PID, (id_t)s->submitter, &over, WEXITED | WNOHANG | WNOWAIT);
        s->interrupted_uploads += over.si_pid == 0;
        s->counts[KILL_DAEMON] += kill_daemon(s);
    }
}

/* Waits for the command line. It may have failed though the job is in: its answer got lost. */
static void look_at_submitter(soak *s)
{
    char path[64];
    int status;
    if (waitpid(s->submitter, &status, WNOHANG) != s->submitter)
        return;
    s->submitter = 0;
    snprintf(path, sizeof path, "/api/v1/jobs/default/soak-%03d", s->submitted);
    int code = cluster_code(&s->c, "GET", path, NULL);
    if (code != 200 && status == 0)
        ADLT_FAIL("soak-%03d: submitted, but not there (%d)", s->submitted, code);
    s->submitted += code == 200;
}

/* In once it is known to be: 201, or 409 after an answer that got lost with the daemon. */
static void submit_next(soak *s)
{
    char text[1024], name[32];
    train_job *job = &s->plans[s->submitted];
    if (s->submitter) {
        look_at_submitter(s);
        return;
    }
    if (job->epochs == 0) {
        *job = choose_job(s);
        s->with_files[s->submitted] = adli_rng_below(&s->rng, 4) == 0;
    }
    snprintf(name, sizeof name, "soak-%03d", s->submitted);
    train_job_file(job, name, text, sizeof text);
    if (s->with_files[s->submitted]) {
        start_submitter(s, text);
        return;
    }
    int code = cluster_code(&s->c, "POST", "/api/v1/jobs", text);
    if (code == 201 || code == 409)
        s->submitted++;
    else if (code != 0)
        ADLT_FAIL("%s: answered %d", name, code);
}

/* Counts the jobs that are over; false when nobody answers. */
static bool count_finished(soak *s)
{
    size_t i;
    json_t *root = cluster_json(&s->c, "/api/v1/jobs"), *job;
    if (!root)
        return false;
    s->finished = s->failed = 0;
    json_array_foreach(json_object_get(root, "items"), i, job)
    {
        const char *phase = json_string_value(json_object_get(job, "phase"));
        bool failed = strcmp(phase, "Failed") == 0;
        s->finished += failed || strcmp(phase, "Succeeded") == 0;
        s->failed += failed;
        if (failed)
            ADLT_FAIL("%s: Failed: %s", json_string_value(json_object_get(job, "name")),
                      json_string_value(json_object_get(job, "message")));
    }
    json_decref(root);
    return true;
}

/* ---- what happens to it ---- */

typedef struct victim {
    soak *s;
    process_kind kind;
    int found, pidfd;
} victim;

/* One of all, each as likely: the nth takes the place of those before it with probability 1/n. */
static void consider(void *user, long pid, int pidfd)
{
    victim *v = user;
    if (process_kind_of(pid) != v->kind || adli_rng_below(&v->s->rng, (uint32_t)++v->found) != 0)
        return;
    if (v->pidfd >= 0)
        close(v->pidfd);
    v->pidfd = dup(pidfd);
}

static bool kill_one(soak *s, process_kind kind)
{
    victim v = {s, kind, 0, -1};
    processes_marked(&s->c, s->mark, consider, &v);
    if (v.pidfd < 0)
        return false;
    bool killed = syscall(SYS_pidfd_send_signal, v.pidfd, SIGKILL, NULL, 0) == 0;
    close(v.pidfd);
    return killed;
}

static bool kill_daemon(soak *s)
{
    if (cluster_ended(&s->c)) {
        ADLT_FAIL("the daemon ended by itself; its log is %s/daemon.log", s->c.state);
        return false;
    }
    cluster_end(&s->c, SIGKILL);
    return start_daemon(s);
}

static bool set_drained(soak *s, int node, bool drain)
{
    char path[64];
    snprintf(path, sizeof path, "/api/v1/nodes/node-%d/%s", node, drain ? "drain" : "undrain");
    return cluster_code(&s->c, "POST", path, "") == 200;
}

/* A client that follows events or a log, and leaves without a word. */
static bool change_stream(soak *s)
{
    int *fd = &s->streams[adli_rng_below(&s->rng, STREAMS)];
    char request[256], rest[4096];
    if (*fd >= 0) {
        while (recv(*fd, rest, sizeof rest, MSG_DONTWAIT) > 0)
            ;
        close(*fd);
        *fd = -1;
        return false;
    }
    if (s->submitted == 0 || (*fd = adlt_connect_unix(s->c.socket)) < 0)
        return false;
    if (adli_rng_below(&s->rng, 2))
        snprintf(request, sizeof request,
                 "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n");
    else
        snprintf(request, sizeof request,
                 "GET /api/v1/jobs/default/soak-%03d/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n",
                 adli_rng_range(&s->rng, 0, s->submitted - 1));
    return adlt_send(*fd, request, strlen(request));
}

static void close_streams(soak *s)
{
    for (int i = 0; i < STREAMS; i++) {
        if (s->streams[i] >= 0)
            close(s->streams[i]);
        s->streams[i] = -1;
    }
}

static bool happen(soak *s, event what)
{
    switch (what) {
    case KILL_REPLICA:
        return kill_one(s, KIND_REPLICA);
    case KILL_KEEPER:
        return kill_one(s, KIND_KEEPER);
    case KILL_DAEMON:
        return s->daemon_may_die && kill_daemon(s);
    case DRAIN:
        if (s->drained >= 0)
            return false;
        s->drained = adli_rng_range(&s->rng, 0, 1);
        return set_drained(s, s->drained, true);
    case UNDRAIN:
        if (s->drained < 0 || !set_drained(s, s->drained, false))
            return false;
        s->drained = -1;
        return true;
    case STREAM:
        return change_stream(s);
    case EVENTS:
        break;
    }
    return false;
}

/* Those whose time has come; the times between two of a kind are exponentially distributed. */
static void disturb(soak *s)
{
    for (int what = 0; what < EVENTS && !adlt_failed; what++) {
        double now_s = adli_monotonic_s();
        if (now_s < s->next_s[what])
            continue;
        if (s->next_s[what] > 0)
            s->counts[what] += happen(s, (event)what);
        s->next_s[what] = now_s - every_s[what] * log(1 - adli_rng_unit(&s->rng));
    }
}

/* Until so many jobs are submitted and done. Jobs come in bursts: at times they have to share, at times
 * there is room to grow. */
static void run(soak *s, int jobs, bool disturbed)
{
    int burst = 0, low = 0, last = -1;
    double moved_s = adli_monotonic_s(), look_s = 0;
    while (!adlt_failed && s->finished < jobs) {
        double now_s = adli_monotonic_s();
        /* A job that takes all the kills does not get to its next checkpoint: when none has ended for a while,
         * those that are there are left alone until one has. */
        bool calm = now_s - moved_s > CALM_S;
        if (calm && s->drained >= 0 && set_drained(s, s->drained, false))
            s->drained = -1;
        if (disturbed && !calm)
            disturb(s);
        if (now_s >= look_s) {
            count_finished(s);
            look_s = now_s + 0.2;
        }
        int waiting = s->submitted - s->finished;
        if (burst == 0 && waiting <= low) {
            burst = adli_rng_range(&s->rng, 1, adli_rng_below(&s->rng, 2) ? 2 : 10);
            low = adli_rng_range(&s->rng, 0, 5);
        }
        if (burst > 0 && s->submitted < jobs) {
            int before = s->submitted;
            submit_next(s);
            burst -= s->submitted > before;
            if (s->submitter)
                usleep(5000);
        } else
            usleep(20000);
        if (s->finished != last) {
            last = s->finished;
            moved_s = now_s;
        } else if (now_s - moved_s > STUCK_S)
            ADLT_FAIL("no job has ended for %d s: %d of %d submitted", STUCK_S, s->finished,
                      s->submitted);
        if (disturbed && s->most_cgroups == 0)
            s->most_cgroups = cgroups_of(&s->c);
    }
    if (s->drained >= 0 && set_drained(s, s->drained, false))
        s->drained = -1;
    close_streams(s);
}

/* ---- what must hold in the end ---- */

/* Of the groups only the number of the last is kept. */
static void check_groups(const char *name, const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "forgotten") != 0)
            ADLT_FAIL("%s: %s is left in %s", name, entry->d_name, path);
    if (dir)
        closedir(dir);
}

static void check_job(soak *s, json_t *job)
{
    const char *name = json_string_value(json_object_get(job, "name"));
    const char *uid = json_string_value(json_object_get(job, "uid"));
    int number = -1;
    char path[256];
    train_end end;
    if (sscanf(name, "soak-%d", &number) != 1 || number < 0 || number >= s->jobs) {
        ADLT_FAIL("job %s was never submitted", name);
        return;
    }
    const train_job *plan = &s->plans[number];
    snprintf(path, sizeof path, "%s/jobs/%s/share", s->c.state, uid);
    train_job_check_ledger(plan, name, path);
    train_job_check_starts(name, path, &end);
    if (end.most > 4 || (plan->max_replicas && end.most > plan->max_replicas))
        ADLT_FAIL("%s had %d replicas", name, end.most);
    char crashed[288];
    snprintf(crashed, sizeof crashed, "%s/crashed", path);
    if (access(crashed, F_OK) == 0) {
        s->crashes++;
        if (end.groups < 2)
            ADLT_FAIL("%s crashed and was not started again", name);
    }
    struct stat info;
    snprintf(path, sizeof path, "%s/jobs/%s/source/workspace/payload", s->c.state, uid);
    if (s->with_files[number] && (stat(path, &info) != 0 || info.st_size != PAYLOAD_BYTES))
        ADLT_FAIL("%s: its files are not there", name);
    snprintf(path, sizeof path, "%s/jobs/%s/groups", s->c.state, uid);
    check_groups(name, path);
    s->restarts += json_integer_value(json_object_get(job, "restarts"));
    s->failures += json_integer_value(json_object_get(job, "failures"));
    s->starts += end.starts;
    s->grown += end.grown;
    s->shrunk += end.shrunk;
}

static void check_results(soak *s)
{
    size_t i;
    json_t *root = cluster_json(&s->c, "/api/v1/jobs"), *job;
    CHECK_INT(json_array_size(json_object_get(root, "items")), s->jobs);
    json_array_foreach(json_object_get(root, "items"), i, job) check_job(s, job);
    json_decref(root);
}

static void check_holdings(soak *s, const holdings *early)
{
    holdings late = holdings_settled(s->c.daemon);
    printf("info - daemon after %d jobs and after %d: descriptors %d, %d; threads %d, %d; memory "
           "%ld, %ld KiB\n",
           WARM_UP, s->jobs - s->jobs * 3 / 5, early->files, late.files, early->threads,
           late.threads, early->memory_kib, late.memory_kib);
    CHECK(late.files <= early->files);
    CHECK(late.threads <= early->threads);
    CHECK(SANITIZED || late.memory_kib <= early->memory_kib + GROWTH_KIB_MAX);
}

static void delete_all(soak *s)
{
    char path[64];
    size_t left = 1;
    for (int i = 0; i < s->jobs; i++) {
        snprintf(path, sizeof path, "/api/v1/jobs/default/soak-%03d", i);
        CHECK_INT(cluster_code(&s->c, "DELETE", path, NULL), 202);
    }
    for (int i = 0; i < 1200 && left > 0; i++) {
        json_t *root = cluster_json(&s->c, "/api/v1/jobs");
        left = json_array_size(json_object_get(root, "items"));
        json_decref(root);
        usleep(100000);
    }
    CHECK_INT(left, 0);
}

static void show_process(void *user, long pid, int pidfd)
{
    (void)user, (void)pidfd;
    char path[64], program[512];
    snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    printf("# process %ld is left: %s\n", pid, program);
}

static void end_process(void *user, long pid, int pidfd)
{
    (void)user, (void)pid;
    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

/* What is left of jobs that were deleted goes behind everybody's back. */
static void wait_for_empty_trash(const soak *s)
{
    char path[128];
    int left = 1;
    snprintf(path, sizeof path, "%s/jobs/.trash", s->c.state);
    for (int i = 0; i < 1200 && (left = adlt_entries(path)) > 0; i++)
        usleep(100000);
    CHECK_INT(left, 0);
}

/* With the daemon gone. */
static void check_leftovers(soak *s)
{
    char path[128];
    int left = 1, port = atoi(database_ask(&s->c, "SELECT value FROM meta WHERE key = "
                                                  "'supervisor-port'"));
    for (int i = 0; i < 600 && (left = processes_marked(&s->c, s->mark, NULL, NULL)) > 0; i++)
        usleep(100000);
    if (left)
        processes_marked(&s->c, s->mark, show_process, NULL);
    CHECK_INT(left, 0);
    CHECK_INT(cgroups_of(&s->c), 0);
    CHECK_INT(adlt_entries(s->temporary), 0);
    snprintf(path, sizeof path, "%s/uploads", s->c.state);
    CHECK_INT(adlt_entries(path), 0);
    snprintf(path, sizeof path, "%s/incoming", s->c.state);
    CHECK_INT(adlt_entries(path), 0);
    snprintf(path, sizeof path, "%s/jobs", s->c.state);
    CHECK_INT(adlt_entries(path), 1); /* the trash, which is empty */
    CHECK(access(s->c.socket, F_OK) != 0);
    CHECK(port > 0);
    int fd = adlt_connect(port);
    CHECK(fd < 0);
    CHECK_STR(database_ask(&s->c, "PRAGMA integrity_check"), "ok");
    CHECK_STR(database_ask(&s->c, "SELECT count(*) FROM jobs"), "0");
    CHECK_STR(database_ask(&s->c, "SELECT count(*) FROM pragma_foreign_key_check"), "0");
}

TEST(many_jobs_and_many_kills)
{
    static soak s = {.drained = -1, .daemon_may_die = true};
    int seed = setting("ADL_SOAK_SEED", 1);
    double begin_s = adli_monotonic_s();
    s.jobs = setting("ADL_SOAK_JOBS", JOBS);
    REQUIRE(s.jobs > 2 * WARM_UP && s.jobs <= JOBS_MAX);
    memset(s.streams, -1, sizeof s.streams);
    adli_rng_init(&s.rng, (uint64_t)seed);
    printf("info - %d jobs, seed %d\n", s.jobs, seed);
    REQUIRE(prepare(&s));

    int part = s.jobs * 3 / 5;
    holdings early = {0};
    if (start_daemon(&s))
        run(&s, part, true);
    s.daemon_may_die = false;
    if (!adlt_failed && kill_daemon(&s)) {
        run(&s, part + WARM_UP, false);
        early = holdings_settled(s.c.daemon);
    }
    run(&s, s.jobs, true);
    if (!adlt_failed) {
        check_holdings(&s, &early);
        check_results(&s);
    }
    if (!adlt_failed) {
        delete_all(&s);
        wait_for_empty_trash(&s);
        CHECK_STR(database_ask(&s.c, "PRAGMA integrity_check"), "ok");
        CHECK_INT(cluster_end(&s.c, SIGTERM), 0);
        check_leftovers(&s);
    }
    printf("info - %d of %d jobs succeeded; %d kills of replicas, %d of keepers, %d of the daemon; "
           "%d drains, %d clients, %d uploads (daemon killed during %d)\n",
           s.finished - s.failed, s.jobs, s.counts[KILL_REPLICA], s.counts[KILL_KEEPER],
           s.counts[KILL_DAEMON], s.counts[DRAIN], s.counts[STREAM], s.uploads,
           s.interrupted_uploads);
    printf("info - %ld jobs crashed by themselves; %ld restarts, %ld after failures; %ld replicas "
           "started; grown %ld times, shrunk %ld times; %d control groups at a time; %.0f s\n",
           s.crashes, s.restarts, s.failures, s.starts, s.grown, s.shrunk, s.most_cgroups,
           adli_monotonic_s() - begin_s);
    if (adlt_failed)
        processes_marked(&s.c, s.mark, end_process, NULL);
    adli_shm_sweep(); /* of replicas that died while they met */
    cluster_free(&s.c);
    rmdir(s.temporary);
    nftw(s.directory, cluster_remove_entry, 4, FTW_DEPTH | FTW_PHYS);
}
