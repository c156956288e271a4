/* The scheduler daemon is killed with SIGKILL, again and again: at random moments under a load of real
 * jobs, and at every write of its store in turn. Afterwards every job that was submitted is there exactly
 * once and has succeeded, no replica was started twice, and no process is left.
 *
 *     test_sched_kill     ADL_KILLS (200; 40 under sanitizers) random kills from ADL_KILL_SEED (1) on */
#include "cluster.h"

#include "base/clock.h"
#include "base/rng.h"

#include <sys/time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 40, SWEEP_STRIDE = 7 };
#else
enum { KILLS = 200, SWEEP_STRIDE = 1 };
#endif
enum { JOBS_MAX = 400, AT_WORK = 6, LINES_MAX = 100000, WORKERS = 4 };

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* ---- the ledger ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lines of the ledger that start with `prefix`; *twice: how many came more than once. */
static int ledger_lines(const char *path, const char *prefix, int *twice)
{
    static char *lines[LINES_MAX];
    int count = 0;
    char *line = NULL;
    size_t size = 0;
    FILE *file = fopen(path, "r");
    while (file && count < LINES_MAX && getline(&line, &size, file) > 0)
        if (strncmp(line, prefix, strlen(prefix)) == 0)
            lines[count++] = strdup(line);
    if (file)
        fclose(file);
    free(line);
    qsort(lines, (size_t)count, sizeof *lines, by_text);
    *twice = 0;
    for (int i = 1; i < count; i++)
        if (strcmp(lines[i], lines[i - 1]) == 0) {
            printf("# twice: %s", lines[i]);
            ++*twice;
        }
    for (int i = 0; i < count; i++)
        free(lines[i]);
    return count;
}

/* ---- jobs ---- */

typedef struct load {
    cluster c;
    adli_rng rng;
    char ledger[128];
    int submitted; /* confirmed: job-0 ... */
    int kills, early, submissions_again;
} load;

static const char *const flags[] = {
    "--nodes", "2", "--slots", "2", "--config", "tests/data/quick.yaml", NULL};

/* The blow falls in the middle of whatever is going on. */
static volatile pid_t victim;

static void strike(int number)
{
    (void)number;
    if (victim > 0)
        kill(victim, SIGKILL);
}

static void strike_after(pid_t daemon, int us)
{
    struct sigaction action = {.sa_handler = strike};
    struct itimerval timer = {.it_value = {us / 1000000, us % 1000000 + 1}};
    victim = daemon;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* True when the job is known to be in: 201, or 409 after an answer that got lost. */
static bool submit_next(load *l)
{
    char text[1024];
    snprintf(text, sizeof text,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: job-%d}\n"
             "spec:\n  minReplicas: %d\n  maxReplicas: %d\n  maxRetries: 0\n  template:\n    "
             "spec:\n      containers:\n"
             "      - name: main\n        command: [%s, %s, '%d', '%d']\n",
             l->submitted, adli_rng_range(&l->rng, 0, 2), adli_rng_range(&l->rng, 2, 4),
             cluster_program("helpers/helper_job"), l->ledger, adli_rng_range(&l->rng, 3, 8),
             adli_rng_range(&l->rng, 1, 12));
    int code = cluster_code(&l->c, "POST", "/api/v1/jobs", text);
    l->submissions_again += code == 409;
    if (code != 0 && code != 201 && code != 409)
        ADLT_FAIL("job-%d: %d", l->submitted, code);
    return code == 201 || code == 409;
}

/* Jobs that are not over; -1 when nobody answers. *failed: those that failed. */
static int unfinished(load *l, int *all, int *failed)
{
    json_t *root = cluster_json(&l->c, "/api/v1/jobs"), *job;
    size_t i;
    int count = root ? 0 : -1;
    *all = *failed = 0;
    json_array_foreach(json_object_get(root, "items"), i, job)
    {
        const char *phase = json_string_value(json_object_get(job, "phase"));
        ++*all;
        *failed += strcmp(phase, "Failed") == 0;
        if (strcmp(phase, "Failed") == 0 && !adlt_failed)
            ADLT_FAIL("%s: %s", json_string_value(json_object_get(job, "name")),
                      json_string_value(json_object_get(job, "message")));
        count += strcmp(phase, "Failed") != 0 && strcmp(phase, "Succeeded") != 0;
    }
    json_decref(root);
    return count;
}

/* A little work for the daemon, until it is dead. */
static void disturb(load *l)
{
    while (!cluster_ended(&l->c)) {
        int all, failed;
        switch (adli_rng_below(&l->rng, 6)) {
        case 0:
            cluster_code(&l->c, "POST", "/api/v1/nodes/node-1/drain", "");
            break;
        case 1:
            cluster_code(&l->c, "POST", "/api/v1/nodes/node-1/undrain", "");
            break;
        default:
            if (l->submitted < JOBS_MAX && unfinished(l, &all, &failed) < AT_WORK && submit_next(l))
                l->submitted++;
        }
        usleep(2000);
    }
}

static void wait_for_all(load *l, double timeout_s)
{
    int all = 0, failed = 0, left = -1;
    cluster_code(&l->c, "POST", "/api/v1/nodes/node-1/undrain", "");
    for (double end_s = adli_monotonic_s() + timeout_s; left != 0 && adli_monotonic_s() < end_s;) {
        left = unfinished(l, &all, &failed);
        usleep(50000);
    }
    CHECK_INT(left, 0);
    CHECK_INT(failed, 0);
    CHECK_INT(all, l->submitted);
}

/* What must hold when all jobs are over and the daemon was ended in order. */
static void check_end(load *l)
{
    int twice_started, twice_done;
    int starts = ledger_lines(l->ledger, "start ", &twice_started);
    int done = ledger_lines(l->ledger, "done ", &twice_done);
    CHECK_INT(twice_started, 0);
    CHECK_INT(twice_done, 0);
    CHECK_INT(done, l->submitted);
    CHECK_INT(cluster_end(&l->c, SIGTERM), 0);
    int left = cluster_processes(&l->c, false);
    for (int i = 0; i < 600 && left > 0; i++) {
        usleep(100000);
        left = cluster_processes(&l->c, i == 599);
    }
    CHECK_INT(left, 0);
    printf("info - %d kills of the daemon (%d before it served), %d jobs, %d replicas started, "
           "%d submissions answered only the second time\n",
           l->kills, l->early, l->submitted, starts, l->submissions_again);
}

TEST(killed_at_random_moments)
{
    load l = {0};
    REQUIRE(cluster_new(&l.c));
    adli_rng_init(&l.rng, (uint64_t)setting("ADL_KILL_SEED", 1));
    snprintf(l.ledger, sizeof l.ledger, "%s/ledger", l.c.state);
    int kills = setting("ADL_KILLS", KILLS);
    while (l.kills < kills && !adlt_failed) {
        cluster_spawn(&l.c, NULL, flags);
        if (adli_rng_below(&l.rng, 8) == 0) {
            usleep((useconds_t)adli_rng_range(&l.rng, 0, 60000));
            l.early += !cluster_ready(&l.c, 0);
            cluster_end(&l.c, SIGKILL);
        } else {
            REQUIRE(cluster_ready(&l.c, 20000));
            strike_after(l.c.daemon, adli_rng_range(&l.rng, 0, 300000));
            disturb(&l);
            victim = 0;
            cluster_end(&l.c, 0);
            CHECK(WIFSIGNALED(l.c.status) && WTERMSIG(l.c.status) == SIGKILL); /* never by itself */
        }
        l.kills++;
    }
    victim = 0;
    cluster_spawn(&l.c, NULL, flags);
    REQUIRE(cluster_ready(&l.c, 20000));
    wait_for_all(&l, 120);
    check_end(&l);
    cluster_free(&l.c);
}

/* ---- every write ---- */

/* A job that says when it starts, goes on until it is told to end, and is moved once: node-0 is drained. */
static void script(const load *l, char *out, size_t size)
{
    snprintf(
        out, size,
        "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: job-0}\n"
        "spec:\n  maxRetries: 0\n  template:\n    spec:\n      containers:\n"
        "      - name: main\n        command:\n        - sh\n        - -c\n        - |\n"
        "          echo start $ADAPTDL_JOB_ID $ADAPTDL_NUM_RESTARTS $ADAPTDL_REPLICA_RANK >>%s\n"
        "          trap 'exit 143' TERM\n"
        "          while [ ! -e %s/go ]; do sleep 0.01; done\n"
        "          echo done $ADAPTDL_JOB_ID >>%s\n",
        l->ledger, l->c.state, l->ledger);
}

static bool job_is(load *l, const char *phase, const char *node)
{
    json_t *job = cluster_json(&l->c, "/api/v1/jobs/default/job-0");
    const char *now = json_string_value(json_object_get(job, "phase"));
    const char *where = json_string_value(json_array_get(json_object_get(job, "allocation"), 0));
    bool is = now && strcmp(now, phase) == 0 && (!node || (where && strcmp(node, where) == 0));
    json_decref(job);
    return is;
}

/* Does the next thing that the history of the one job needs; false when it is over. */
static bool drive(load *l, int *stage, const char *text)
{
    char go[128];
    int code;
    switch (*stage) {
    case 0:
        code = cluster_code(&l->c, "POST", "/api/v1/jobs", text);
        if (code != 0 && code != 201 && code != 409)
            ADLT_FAIL("submitted: %d", code);
        *stage += code == 201 || code == 409;
        break;
    case 1:
        *stage += job_is(l, "Running", "node-0");
        break;
    case 2:
        *stage += cluster_code(&l->c, "POST", "/api/v1/nodes/node-0/drain", "") == 200;
        break;
    case 3:
        *stage += job_is(l, "Running", "node-1");
        break;
    case 4:
        snprintf(go, sizeof go, "%s/go", l->c.state);
        close(open(go, O_WRONLY | O_CREAT, 0644));
        ++*stage;
        break;
    case 5:
        *stage += job_is(l, "Succeeded", NULL);
        break;
    default:
        return false;
    }
    return true;
}

/* Runs the whole history once, with a daemon that dies at its nth write. Returns whether it died. */
static bool sweep_one(int64_t nth, bool torn)
{
    load l = {0};
    char number[32], text[1024];
    int stage = 0, twice;
    bool died = false;
    if (!cluster_new(&l.c)) {
        ADLT_FAIL("no directory");
        return false;
    }
    snprintf(l.ledger, sizeof l.ledger, "%s/ledger", l.c.state);
    snprintf(number, sizeof number, "%lld", (long long)nth);
    script(&l, text, sizeof text);
    const char *const first[] = {torn ? "torn" : "kill", number, NULL};
    char normal[512];
    snprintf(normal, sizeof normal, "%s", l.c.program);
    snprintf(l.c.program, sizeof l.c.program, "%s", cluster_program("helpers/helper_sched"));
    cluster_spawn(&l.c, first, flags);
    double end_s = adli_monotonic_s() + 60;
    for (bool more = true; more && adli_monotonic_s() < end_s;) {
        if (cluster_ended(&l.c)) {
            if (died)
                break; /* the one without a fault must not end */
            died = true;
            snprintf(l.c.program, sizeof l.c.program, "%s", normal);
            cluster_spawn(&l.c, NULL, flags);
            cluster_ready(&l.c, 20000);
        }
        more = drive(&l, &stage, text);
        usleep(3000);
    }
    if (stage < 6)
        ADLT_FAIL("write %lld (%s): stuck at stage %d; state %s", (long long)nth, first[0], stage,
                  l.c.state);
    int starts = ledger_lines(l.ledger, "start ", &twice);
    /* a group may be stopped before its first line */
    if (twice != 0 || starts < 1 || ledger_lines(l.ledger, "done ", &twice) != 1)
        ADLT_FAIL("write %lld (%s): %d starts, %d twice", (long long)nth, first[0], starts, twice);
    cluster_end(&l.c, SIGTERM);
    int left = 1;
    for (int i = 0; i < 600 && (left = cluster_processes(&l.c, i == 599)) > 0; i++)
        usleep(100000);
    if (left)
        ADLT_FAIL("write %lld (%s): %d processes are left", (long long)nth, first[0], left);
    cluster_free(&l.c);
    return died;
}

/* Every WORKERS-th point, from the given one on. Returns how many there were. */
static int sweep(int first, int stride)
{
    int points = 0;
    for (int64_t nth = first; !adlt_failed && sweep_one(nth, (nth / stride) % 2); nth += stride)
        points++;
    return points;
}

TEST(killed_at_every_write)
{
    int stride = setting("ADL_SWEEP_STRIDE", SWEEP_STRIDE), points = 0, fds[2];
    REQUIRE(pipe(fds) == 0);
    for (int i = 0; i < WORKERS; i++)
        if (fork() == 0) { /* the daemons wait for most of the time, not for the processor */
            int found = sweep(1 + i * stride, WORKERS * stride);
            ssize_t put = write(fds[1], &found, sizeof found);
            _exit(adlt_failed || put != sizeof found);
        }
    for (int i = 0; i < WORKERS; i++) {
        int status = 1, found = 0;
        CHECK(read(fds[0], &found, sizeof found) == sizeof found);
        wait(&status);
        CHECK_INT(status, 0);
        points += found;
    }
    close(fds[0]);
    close(fds[1]);
    CHECK(points >= 60 / stride);
    printf("info - killed at %d points of the writes of a job's life, before a write or in its "
           "middle\n",
           points);
}
