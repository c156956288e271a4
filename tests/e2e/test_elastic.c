/* Resizing in place, as a user sees it: random histories of `adaptdl run` with real processes that are grown, shrunk,
 * replaced, killed (rank 0 too, new ones while they join) and stopped by SIGSTOP, until the program is finished. Its
 * model is its ledger (helper_elastic.c): every example of every epoch was applied exactly once, and what was learned
 * is what an undisturbed run learns, within the order of sums. In two of three, accumulators count the examples, too.
 *
 *     test_elastic       ADL_ELASTIC_SEQUENCES (10; 4 under sanitizers) histories from ADL_ELASTIC_SEED (1) on;
 *                        ADL_ELASTIC_VERBOSE=1 shows what each run printed */
#include "ledger.h"
#include "train_replicas.h"

#include "base/clock.h"
#include "base/rng.h"
#include "launch/control.h"
#include "launch/launch.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { R_MAX = 4, BATCH = 12, ACTIONS_MAX = 8, PROCESSES_MAX = 512, HANG_S = 300 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEQUENCES = 4 };
#else
enum { SEQUENCES = 10 };
#endif

typedef struct history {
    uint64_t seed;
    adli_rng rng;
    char directory[64], name[64], program[512], launcher[512];
    int epochs, examples, step_us, calls, load_us, join_us, sums, replicas;
    pid_t run;
    pid_t stopped; /* one that goes on some time, if it was not ended before; 0: none */
    double stopped_s;
} history;

static int in_place, went_on, restarts;

/* ---- the run ---- */

/* A file of the same build as this test. */
static void built(const char *name, char *out, size_t size)
{
    char self[400];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(self, '/') = '\0';
    snprintf(out, size, "%s/%s", self, name);
}

static void path_of(const history *one, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", one->directory, name);
}

static void start_run(history *one)
{
    char words[8][32], replicas[16], checkpoint[128], log[128];
    snprintf(words[0], 32, "epochs=%d", one->epochs);
    snprintf(words[1], 32, "examples=%d", one->examples);
    snprintf(words[2], 32, "step_us=%d", one->step_us);
    snprintf(words[3], 32, "calls=%d", one->calls);
    snprintf(words[4], 32, "load_us=%d", one->load_us);
    snprintf(words[5], 32, "batch=%d", BATCH);
    snprintf(words[6], 32, "sums=%d", one->sums);
    snprintf(words[7], 32, "join_us=%d", one->join_us);
    snprintf(replicas, sizeof replicas, "%d", one->replicas);
    path_of(one, "checkpoint", checkpoint, sizeof checkpoint);
    path_of(one, "log", log, sizeof log);
    one->run = fork();
    if (one->run != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    setenv("ADAPTDL_SHARE_PATH", one->directory, 1);
    setenv("ADAPTDL_PEER_TIMEOUT", "2", 1);
    execl(one->launcher, one->launcher, "run", "-v", "-n", replicas, "--name", one->name,
          "--checkpoint", checkpoint, "--max-restarts", "100", "--", one->program, words[0],
          words[1], words[2], words[3], words[4], words[5], words[6], words[7], (char *)NULL);
    _exit(127);
}

static bool run_over(history *one, int *status)
{
    return waitpid(one->run, status, WNOHANG) == one->run;
}

static void show_log(const history *one)
{
    char path[128], line[512];
    path_of(one, "log", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        fprintf(stderr, "| %s", line);
    if (file)
        fclose(file);
}

static int count_in_log(const history *one, const char *text)
{
    char path[128], line[512];
    int found = 0;
    path_of(one, "log", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        found += strstr(line, text) != NULL;
    if (file)
        fclose(file);
    return found;
}

/* ---- what is done to it ---- */

/* Is it still one of the run's? Numbers of processes are used again. */
static bool is_ours(const history *one, long pid)
{
    char link[64], target[512];
    snprintf(link, sizeof link, "/proc/%ld/exe", pid);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return strcmp(target, one->program) == 0;
}

/* The processes that have started so far, in order; those of which nothing is left apart. least: 1: those alone that were
 * started to join; 0: all. */
static int list_started(const history *one, int least, pid_t *out)
{
    char path[128], line[128];
    int count = 0;
    path_of(one, "starts", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && count < PROCESSES_MAX && fgets(line, sizeof line, file)) {
        int member, restart, joins, fields;
        long pid;
        fields = sscanf(line, "%d %d %ld %d", &member, &restart, &pid, &joins);
        if (fields == 4 && joins >= least && is_ours(one, pid))
            out[count++] = (pid_t)pid;
    }
    if (file)
        fclose(file);
    return count;
}

static int list_processes(const history *one, pid_t *out)
{
    return list_started(one, 0, out);
}

static void ask(const history *one, const char *line)
{
    adli_buf answer;
    adli_buf_init(&answer, 4096);
    if (adli_control_ask(one->name, line, &answer) != ADL_OK) {
        /* it is over, or has not begun to listen */
    }
    adli_buf_fini(&answer);
}

static void hurt(history *one, int number, bool newest)
{
    pid_t pids[PROCESSES_MAX];
    int count = list_processes(one, pids);
    if (count < 2) /* nobody would notice that the only one is stopped */
        return;
    pid_t victim = pids[newest ? count - 1 : adli_rng_range(&one->rng, 0, count - 1)];
    kill(victim, number);
    if (number == SIGSTOP) {
        one->stopped = victim;
        one->stopped_s = adli_monotonic_s();
    }
}

static void act(history *one)
{
    char line[64];
    switch (adli_rng_below(&one->rng, 8)) {
    case 0:
    case 1:
    case 2:
        snprintf(line, sizeof line, "scale %d", adli_rng_range(&one->rng, 1, R_MAX));
        ask(one, line);
        break;
    case 3:
        snprintf(line, sizeof line, "replace %d", adli_rng_range(&one->rng, 0, R_MAX - 1));
        ask(one, line);
        break;
    case 4:
    case 5:
        hurt(one, SIGKILL, false);
        break;
    case 6: /* a new one, while it joins or soon after */
        snprintf(line, sizeof line, "scale %d", R_MAX);
        ask(one, line);
        usleep((useconds_t)adli_rng_range(&one->rng, 0, 60000));
        hurt(one, SIGKILL, true);
        break;
    default:
        if (!one->stopped)
            hurt(one, SIGSTOP, false);
        break;
    }
}

/* Has a process begun to train? */
static bool trains(const history *one)
{
    char path[128], line[128];
    bool found = false;
    path_of(one, "starts", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        found |= strstr(line, "joined") != NULL;
    if (file)
        fclose(file);
    return found;
}

/* Until it is over; false: it hangs. One history in five is disturbed while it starts, too. */
static bool disturb(history *one, int actions, int *status)
{
    double start_s = adli_monotonic_s();
    bool begun = adli_rng_below(&one->rng, 5) == 0;
    while (!run_over(one, status)) {
        if (adli_monotonic_s() - start_s > HANG_S)
            return false;
        if (one->stopped && adli_monotonic_s() - one->stopped_s > 6) {
            if (is_ours(one, one->stopped))
                kill(one->stopped, SIGCONT);
            one->stopped = 0;
        }
        usleep((useconds_t)adli_rng_range(&one->rng, 1000, begun && actions > 0 ? 400000 : 20000));
        begun = begun || trains(one);
        if (begun && actions-- > 0)
            act(one);
    }
    return true;
}

/* ---- what comes of it ---- */

/* As many replicas and members at the end as at the start: nothing has happened to the world. */
static bool same_world(const history *one)
{
    return !count_in_log(one, "resized in place") && !count_in_log(one, "going on without it") &&
           !count_in_log(one, ": restart ");
}

/* plain: what was learned without disturbances; NULL: that is this. exact: on as many replicas, so to the bit. */
static bool judge(const history *one, int status, const adlt_ledger *plain, bool exact)
{
    adlt_ledger end;
    long long steps = (long long)one->epochs * ((one->examples + BATCH - 1) / BATCH);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        ADLT_FAIL("seed %llu: the run ended with status %#x", (unsigned long long)one->seed,
                  (unsigned)status);
        return false;
    }
    if (!adlt_ledger_read(one->directory, &end) || end.cells != one->epochs * one->examples) {
        ADLT_FAIL("seed %llu: no ledger", (unsigned long long)one->seed);
        return false;
    }
    if (end.wrong || end.steps != steps)
        ADLT_FAIL("seed %llu: %d examples were not applied once, %lld steps instead of %lld",
                  (unsigned long long)one->seed, end.wrong, end.steps, steps);
    else if (plain && !adlt_ledger_close(&end, plain))
        ADLT_FAIL("seed %llu: %.6f was learned, %.6f without disturbances",
                  (unsigned long long)one->seed, end.loss, plain->loss);
    else if (plain && exact && !adlt_ledger_same(&end, plain))
        ADLT_FAIL("seed %llu: other weights than without disturbances, in their last bits",
                  (unsigned long long)one->seed);
    else
        return true;
    return false;
}

static void choose(history *one, uint64_t seed)
{
    *one = (history){.seed = seed};
    adli_rng_init(&one->rng, seed);
    one->epochs = adli_rng_range(&one->rng, 1, 5);
    one->examples = adli_rng_range(&one->rng, 200, 900);
    one->step_us = adli_rng_range(&one->rng, 2000, 30000);
    one->calls = (int)adli_rng_below(&one->rng, 2);
    one->load_us = adli_rng_range(&one->rng, 0, 100000);
    one->replicas = adli_rng_range(&one->rng, 1, R_MAX);
    one->sums = (int)adli_rng_below(&one->rng, 3);
    strcpy(one->directory, adlt_tempdir());
    snprintf(one->name, sizeof one->name, "elastic-%ld-%llu", (long)getpid(),
             (unsigned long long)seed);
    built("helpers/helper_elastic", one->program, sizeof one->program);
    built("bin/adaptdl", one->launcher, sizeof one->launcher);
}

static void end_run(history *one)
{
    int status;
    kill(one->run, SIGTERM);
    waitpid(one->run, &status, 0);
}

/* The same program with nothing done to it: what it learns. */
static bool undisturbed(const history *like, int replicas, adlt_ledger *out)
{
    history one = *like;
    int status = 0;
    strcpy(one.directory, adlt_tempdir());
    one.step_us = one.load_us = 0;
    one.replicas = replicas;
    strcat(one.name, "-plain");
    start_run(&one);
    bool over = disturb(&one, 0, &status);
    if (!over) {
        ADLT_FAIL("seed %llu: undisturbed, not finished within %d s", (unsigned long long)one.seed,
                  HANG_S);
        end_run(&one);
    }
    bool good = over && judge(&one, status, NULL, false) && adlt_ledger_read(one.directory, out);
    adlt_tempdir_remove(one.directory);
    return good;
}

static bool one_history(uint64_t seed)
{
    history one;
    int status = 0;
    adlt_ledger plain;
    choose(&one, seed);
    if (!undisturbed(&one, 1, &plain))
        return false;
    start_run(&one);
    bool good = disturb(&one, adli_rng_range(&one.rng, 1, ACTIONS_MAX), &status);
    if (!good) {
        ADLT_FAIL("seed %llu: not finished within %d s", (unsigned long long)seed, HANG_S);
        end_run(&one);
    } else {
        good = judge(&one, status, &plain, false);
    }
    in_place += count_in_log(&one, "resized in place");
    went_on += count_in_log(&one, "going on without it");
    restarts += count_in_log(&one, ": restart ");
    if (!good || getenv("ADL_ELASTIC_VERBOSE"))
        show_log(&one);
    adlt_tempdir_remove(one.directory);
    return good;
}

static long setting(const char *name, long usual)
{
    const char *text = getenv(name);
    return text ? atol(text) : usual;
}

TEST(what_is_resized_killed_and_stopped_applies_every_example_once)
{
    long sequences = setting("ADL_ELASTIC_SEQUENCES", SEQUENCES);
    uint64_t seed = (uint64_t)setting("ADL_ELASTIC_SEED", 1);
    long failed = 0;
    for (long i = 0; i < sequences && failed < 3; i++)
        failed += !one_history(seed + (uint64_t)i);
    fprintf(stderr, "%ld histories: %d resized in place, %d deaths survived, %d restarts\n",
            sequences, in_place, went_on, restarts);
    CHECK(sequences < 10 || in_place + went_on > 0);
}

/* ---- nothing comes of it ---- */

/* Until so many new processes are there that have not joined. */
static bool wait_newcomers(history *one, int count, pid_t *newest)
{
    pid_t pids[PROCESSES_MAX];
    int status;
    for (double end_s = adli_monotonic_s() + HANG_S; adli_monotonic_s() < end_s; usleep(5000)) {
        int found = list_started(one, 1, pids);
        *newest = found > 0 ? pids[found - 1] : 0;
        if (found == count)
            return true;
        if (run_over(one, &status))
            break;
    }
    ADLT_FAIL("there never were %d new processes", count);
    return false;
}

/* Two replicas are to become three, and do not. */
static bool grow_in_vain(history *one)
{
    pid_t newest;
    ask(one, "scale 3");
    if (!wait_newcomers(one, 1, &newest))
        return false;
    if (adli_rng_below(&one->rng, 2)) { /* killed: another one is started */
        int died = count_in_log(one, "before it had joined");
        kill(newest, SIGKILL);
        for (double end_s = adli_monotonic_s() + HANG_S;
             count_in_log(one, "before it had joined") == died && adli_monotonic_s() < end_s;)
            usleep(5000);
    }
    ask(one, "scale 2"); /* taken back */
    return wait_newcomers(one, 0, &newest);
}

/* At the end, a growth that is taken back at any moment: when new replicas join is up to them. */
static void grow_and_shrink(history *one)
{
    ask(one, "scale 3");
    usleep((useconds_t)adli_rng_range(&one->rng, 0, 60000));
    ask(one, "scale 2");
}

static void run_in_vain(uint64_t seed, bool joins)
{
    history one;
    adlt_ledger plain;
    int status = 0;
    choose(&one, seed);
    one.replicas = 2;
    one.epochs = 2;
    one.examples = 600;
    one.step_us = 20000;
    one.load_us = 0;
    one.join_us = joins ? 0 : 100000000; /* never, unless it is told to end */
    REQUIRE(undisturbed(&one, 2, &plain));
    start_run(&one);
    while (!trains(&one) && !run_over(&one, &status))
        usleep(5000);
    for (int i = 0; i < 2; i++)
        if (joins)
            grow_and_shrink(&one);
        else
            CHECK(grow_in_vain(&one));
    bool over = disturb(&one, 0, &status), same = same_world(&one);
    CHECK(over && (same || joins));
    if (over)
        judge(&one, status, &plain, same);
    else
        end_run(&one);
    if (adlt_failed || getenv("ADL_ELASTIC_VERBOSE"))
        show_log(&one);
    adlt_tempdir_remove(one.directory);
}

TEST(a_world_that_stays_as_it_was_learns_the_same_to_the_bit)
{
    uint64_t seed = (uint64_t)setting("ADL_ELASTIC_SEED", 1);
    for (uint64_t i = 0; i < 2; i++)
        run_in_vain(seed + i, false);
    run_in_vain(seed, true);
}
