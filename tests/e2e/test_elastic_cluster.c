/* Resizing in place on a real local cluster: a job that is pinned to other sizes, whose replicas are killed (rank 0 too,
 * new ones while they join) or stopped, and whose scheduler is killed in between, applies every example of every epoch
 * exactly once (helper_elastic.c: its model is its ledger), and is not restarted for any of it. What it learns is what
 * one process learns alone.
 *
 *     ADL_ELASTIC_CLUSTER=N   N random histories (3) from ADL_ELASTIC_SEED (1) on; a few minutes for 20;
 *                             `make test-elastic` runs 100 */
#include "cluster.h"
#include "harness.h"
#include "ledger.h"

#include "base/clock.h"
#include "base/rng.h"

#include <sys/wait.h>

enum { WAIT_S = 300, PIDS_MAX = 256, BATCH = 12 };

typedef struct plan {
    int epochs, examples, step_us, load_us;
} plan;

static bool start_daemon(cluster *c)
{
    static char path[128];
    const char *const flags[] = {"--nodes",  "2",  "--slots",   "2",
                                 "--config", path, "--verbose", NULL};
    snprintf(path, sizeof path, "%s/config.yaml", c->state);
    cluster_spawn(c, NULL, flags);
    return cluster_ready(c, 30000);
}

static bool open_cluster(cluster *c)
{
    char path[128];
    if (!cluster_new(c))
        return false;
    snprintf(path, sizeof path, "%s/config.yaml", c->state);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fputs("intervalSeconds: 1\neventDelaySeconds: 0.1\n", file);
    fclose(file);
    return start_daemon(c);
}

static void close_cluster(cluster *c)
{
    int left = 1;
    CHECK_INT(cluster_end(c, SIGTERM), 0);
    for (int i = 0; i < 600 && (left = cluster_processes(c, i == 599)) > 0; i++)
        usleep(100000);
    CHECK_INT(left, 0);
    cluster_free(c);
}

static bool submit(cluster *c, const plan *job)
{
    char text[1024];
    snprintf(text, sizeof text,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: ledger}\n"
             "spec:\n  maxReplicas: 4\n  maxRetries: 50\n  template:\n    spec:\n"
             "      terminationGracePeriodSeconds: 5\n      containers:\n      - name: main\n"
             "        env: [{name: ADAPTDL_PEER_TIMEOUT, value: '2'}]\n"
             "        command: [%s, epochs=%d, examples=%d, batch=%d, step_us=%d, load_us=%d]\n",
             cluster_program("helpers/helper_elastic"), job->epochs, job->examples, BATCH,
             job->step_us, job->load_us);
    return cluster_code(c, "POST", "/api/v1/jobs", text) == 201;
}

static int scale(cluster *c, int replicas)
{
    char path[128];
    if (replicas > 0)
        snprintf(path, sizeof path, "/api/v1/jobs/default/ledger/scale?replicas=%d", replicas);
    else
        snprintf(path, sizeof path, "/api/v1/jobs/default/ledger/scale?auto=1");
    return cluster_code(c, "POST", path, "");
}

static json_t *job_now(cluster *c)
{
    return cluster_json(c, "/api/v1/jobs/default/ledger");
}

static int number_of(cluster *c, const char *field)
{
    json_t *job = job_now(c);
    int value = (int)json_integer_value(json_object_get(job, field));
    json_decref(job);
    return value;
}

static bool is_over(cluster *c, const char **phase)
{
    static char text[32];
    json_t *job = job_now(c);
    const char *now = json_string_value(json_object_get(job, "phase"));
    snprintf(text, sizeof text, "%s", now ? now : "");
    json_decref(job);
    *phase = text;
    return strcmp(text, "Succeeded") == 0 || strcmp(text, "Failed") == 0;
}

/* Waits until so many replicas train, and no other ones are there. */
static bool wait_size(cluster *c, int replicas)
{
    for (double end_s = adli_monotonic_s() + WAIT_S; adli_monotonic_s() < end_s; usleep(20000)) {
        const char *phase;
        json_t *job = job_now(c);
        int ready = (int)json_integer_value(json_object_get(job, "readyReplicas"));
        int all = (int)json_integer_value(json_object_get(job, "replicas"));
        const char *now = json_string_value(json_object_get(job, "phase"));
        bool there = now && strcmp(now, "Running") == 0 && ready == replicas && all == replicas;
        json_decref(job);
        if (there)
            return true;
        if (is_over(c, &phase))
            break;
    }
    printf("# it never had %d replicas\n", replicas);
    return false;
}

static void share_path(cluster *c, const char *name, char *out, size_t size)
{
    json_t *job = job_now(c);
    const char *uid = json_string_value(json_object_get(job, "uid"));
    snprintf(out, size, "%s/jobs/%s/share/%s", c->state, uid ? uid : "", name);
    json_decref(job);
}

/* The processes of helper_elastic that live, as they started; those that are there and those that joined. */
static int list_processes(cluster *c, pid_t *out, int *joined)
{
    char path[256], line[128], link[64], target[512];
    int count = 0;
    *joined = 0;
    share_path(c, "starts", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && count < PIDS_MAX && fgets(line, sizeof line, file)) {
        int member, restart, joins;
        long pid;
        *joined += strstr(line, "joined") != NULL;
        if (sscanf(line, "%d %d %ld %d", &member, &restart, &pid, &joins) != 4)
            continue;
        snprintf(link, sizeof link, "/proc/%ld/exe", pid);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strstr(target, "helper_elastic"))
            out[count++] = (pid_t)pid;
    }
    if (file)
        fclose(file);
    return count;
}

static bool wait_joined(cluster *c, int least)
{
    pid_t pids[PIDS_MAX];
    int joined = 0;
    for (double end_s = adli_monotonic_s() + WAIT_S; adli_monotonic_s() < end_s; usleep(10000)) {
        list_processes(c, pids, &joined);
        if (joined >= least)
            return true;
    }
    printf("# only %d have joined\n", joined);
    return false;
}

/* The first replica trains, and the scheduler has heard that it can change its size meanwhile: before, a change is a
 * restart. Only the log says so. */
static bool wait_able(cluster *c)
{
    char path[128];
    bool heard = false;
    snprintf(path, sizeof path, "%s/daemon.log", c->state);
    for (double end_s = adli_monotonic_s() + WAIT_S; !heard && adli_monotonic_s() < end_s;) {
        char *line = NULL;
        size_t size = 0;
        FILE *file = fopen(path, "r");
        while (file && !heard && getline(&line, &size, file) > 0)
            heard = strstr(line, "member 0: able") != NULL;
        if (file)
            fclose(file);
        free(line);
        usleep(10000);
    }
    return heard && wait_joined(c, 1);
}

/* Sends the signal to the oldest (first) or the newest process. */
static void hurt(cluster *c, int number, bool newest)
{
    pid_t pids[PIDS_MAX];
    int joined, count = list_processes(c, pids, &joined);
    if (count > 0)
        kill(pids[newest ? count - 1 : 0], number);
}

static int count_events(cluster *c, const char *text)
{
    int found = 0;
    adlt_answer answer =
        cluster_ask(c, "GET", "/api/v1/events?job=default/ledger&limit=1000", NULL);
    for (const char *at = answer.body; at && (at = strstr(at, text)); at++)
        found++;
    adlt_answer_free(&answer);
    return found;
}

static bool wait_events(cluster *c, const char *text, int least)
{
    for (double end_s = adli_monotonic_s() + WAIT_S; adli_monotonic_s() < end_s; usleep(20000))
        if (count_events(c, text) >= least)
            return true;
    printf("# fewer than %d events \"%s\"\n", least, text);
    return false;
}

/* What one process learns that nothing is done to. */
static bool learn_alone(cluster *c, const plan *job, adlt_ledger *out)
{
    char share[128], epochs[32], examples[32], batch[32];
    const char *program = cluster_program("helpers/helper_elastic");
    int status = -1;
    snprintf(share, sizeof share, "%s/alone", c->state);
    snprintf(epochs, sizeof epochs, "epochs=%d", job->epochs);
    snprintf(examples, sizeof examples, "examples=%d", job->examples);
    snprintf(batch, sizeof batch, "batch=%d", BATCH);
    if (mkdir(share, 0755) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        setenv("ADAPTDL_SHARE_PATH", share, 1);
        execl(program, program, epochs, examples, batch, (char *)NULL);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 &&
           adlt_ledger_read(share, out);
}

/* It ends well, everything was applied once, and what was learned is what one process learns. */
static bool check_end(cluster *c, const plan *job)
{
    char path[256];
    const char *phase = "";
    adlt_ledger end, alone;
    for (double end_s = adli_monotonic_s() + WAIT_S; adli_monotonic_s() < end_s; usleep(20000))
        if (is_over(c, &phase))
            break;
    CHECK_STR(phase, "Succeeded");
    share_path(c, "", path, sizeof path);
    CHECK(adlt_ledger_read(path, &end));
    CHECK_INT(end.cells, job->epochs * job->examples);
    CHECK_INT(end.wrong, 0);
    CHECK_INT((int)end.steps, job->epochs * ((job->examples + BATCH - 1) / BATCH));
    if (!adlt_failed) {
        CHECK(learn_alone(c, job, &alone));
        CHECK(adlt_ledger_close(&end, &alone));
    }
    return !adlt_failed;
}

TEST(a_job_grows_and_shrinks_without_a_restart)
{
    cluster c;
    const plan job = {.epochs = 4, .examples = 1200, .step_us = 15000};
    REQUIRE(open_cluster(&c));
    REQUIRE(submit(&c, &job));
    REQUIRE(wait_able(&c));
    CHECK_INT(scale(&c, 3), 202);
    REQUIRE(wait_size(&c, 3));
    CHECK_INT(scale(&c, 5), 400); /* its file says at most 4 */
    CHECK_INT(scale(&c, 1), 202);
    REQUIRE(wait_size(&c, 1));
    CHECK_INT(scale(&c, 2), 202);
    REQUIRE(wait_size(&c, 2));
    CHECK_INT(number_of(&c, "pinned"), 2);
    json_t *now = job_now(&c);
    const char *how = json_string_value(json_object_get(now, "lastResize"));
    CHECK(how && strstr(how, "resized in place, paused"));
    json_decref(now);
    CHECK(wait_events(&c, "resized in place, paused", 3));
    CHECK_INT(scale(&c, 0), 202);
    check_end(&c, &job);
    CHECK_INT(number_of(&c, "restarts"), 0);
    close_cluster(&c);
}

TEST(deaths_are_survived_and_places_filled_again)
{
    cluster c;
    const plan job = {.epochs = 6, .examples = 1200, .step_us = 15000, .load_us = 100000};
    REQUIRE(open_cluster(&c));
    REQUIRE(submit(&c, &job));
    REQUIRE(wait_able(&c));
    CHECK_INT(scale(&c, 3), 202);
    REQUIRE(wait_size(&c, 3));
    hurt(&c, SIGKILL, true);
    REQUIRE(wait_joined(&c, 4));
    REQUIRE(wait_size(&c, 3));
    hurt(&c, SIGKILL, false); /* rank 0 */
    REQUIRE(wait_joined(&c, 5));
    REQUIRE(wait_size(&c, 3));
    hurt(&c, SIGSTOP, true); /* silent: it is killed, and replaced */
    REQUIRE(wait_joined(&c, 6));
    REQUIRE(wait_size(&c, 3));
    CHECK(wait_events(&c, "went on without it", 3));
    check_end(&c, &job);
    CHECK_INT(number_of(&c, "restarts"), 0);
    CHECK(number_of(&c, "failures") >= 2);
    close_cluster(&c);
}

TEST(new_replicas_and_the_scheduler_may_be_killed_meanwhile)
{
    cluster c;
    const plan job = {.epochs = 5, .examples = 1200, .step_us = 15000, .load_us = 400000};
    REQUIRE(open_cluster(&c));
    REQUIRE(submit(&c, &job));
    REQUIRE(wait_able(&c));
    pid_t pids[PIDS_MAX];
    int joined;
    CHECK_INT(scale(&c, 2), 202);
    while (list_processes(&c, pids, &joined) < 2)
        usleep(5000);
    hurt(&c, SIGKILL, true);   /* while it joins */
    REQUIRE(wait_size(&c, 2)); /* another one has */
    CHECK_INT(scale(&c, 3), 202);
    while (list_processes(&c, pids, &joined) < 3)
        usleep(5000);
    cluster_end(&c, SIGKILL); /* while a replica joins */
    REQUIRE(start_daemon(&c));
    REQUIRE(wait_size(&c, 3));
    CHECK_INT(number_of(&c, "pinned"), 3);
    cluster_end(&c, SIGKILL);
    hurt(&c, SIGKILL, true); /* nobody is there to be told */
    usleep(300000);
    REQUIRE(start_daemon(&c));
    REQUIRE(wait_size(&c, 3));
    check_end(&c, &job);
    CHECK_INT(number_of(&c, "restarts"), 0);
    close_cluster(&c);
}

/* ---- random histories ---- */

/* One is silent, for less than its peers take to lose it or for more: they go on without it. Nobody loses the only one. */
static void stop_for_a_while(cluster *c, adli_rng *rng)
{
    pid_t pids[PIDS_MAX];
    int joined;
    hurt(c, SIGSTOP, adli_rng_below(rng, 2));
    usleep((useconds_t)adli_rng_range(rng, 500000, 6000000));
    for (int i = list_processes(c, pids, &joined) - 1; i >= 0; i--)
        kill(pids[i], SIGCONT);
}

static void act(cluster *c, adli_rng *rng)
{
    switch (adli_rng_below(rng, 8)) {
    case 0:
    case 1:
    case 2:
        scale(c, adli_rng_range(rng, 1, 4));
        break;
    case 3:
        hurt(c, SIGKILL, false);
        break;
    case 4:
        hurt(c, SIGKILL, true);
        break;
    case 5:
        scale(c, 4);
        usleep((useconds_t)adli_rng_range(rng, 0, 300000));
        hurt(c, SIGKILL, true);
        break;
    case 6:
        stop_for_a_while(c, rng);
        break;
    default:
        cluster_end(c, SIGKILL);
        usleep((useconds_t)adli_rng_range(rng, 0, 500000));
        CHECK(start_daemon(c));
        break;
    }
}

static bool one_history(uint64_t seed, int *restarts, int *in_place)
{
    cluster c;
    adli_rng rng;
    const char *phase;
    adli_rng_init(&rng, seed);
    plan job = {.epochs = adli_rng_range(&rng, 3, 6),
                .examples = adli_rng_range(&rng, 900, 1800),
                .step_us = adli_rng_range(&rng, 10000, 20000),
                .load_us = adli_rng_range(&rng, 0, 200000)};
    int actions = adli_rng_range(&rng, 2, 7);
    if (!open_cluster(&c) || !submit(&c, &job) || !wait_able(&c)) {
        ADLT_FAIL("seed %llu: it could never be resized in place", (unsigned long long)seed);
        return false;
    }
    for (; actions > 0 && !is_over(&c, &phase) && !adlt_failed; actions--) {
        act(&c, &rng);
        usleep((useconds_t)adli_rng_range(&rng, 100000, 1500000));
    }
    bool good = check_end(&c, &job);
    if (!good)
        printf("# seed %llu\n", (unsigned long long)seed);
    *restarts += number_of(&c, "restarts");
    *in_place += count_events(&c, "resized in place, paused");
    close_cluster(&c);
    return good;
}

TEST(random_histories_apply_every_example_once)
{
    const char *many = getenv("ADL_ELASTIC_CLUSTER"), *first = getenv("ADL_ELASTIC_SEED");
    int restarts = 0, in_place = 0, histories = many ? atoi(many) : 3;
    uint64_t seed = first ? (uint64_t)atoll(first) : 1;
    for (int i = 0; i < histories && one_history(seed + (uint64_t)i, &restarts, &in_place); i++)
        ;
    printf("info - %d histories: %d resized in place, %d restarts\n", histories, in_place,
           restarts);
    CHECK(histories < 10 || in_place > 0);
}
