/* A process that is killed at ANY instant of a save leaves a checkpoint that loads: the one before or
 * the new one, never neither. Proven by doing it: a child saves under ptrace and is killed with
 * SIGKILL at its first system call, at its second, and so on to the last, before and after each one.
 * Between two system calls a process changes nothing that outlives it, so these are all instants. */
#include "harness.h"

#include "base/mem.h"
#include "checkpoint_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

enum { CANNOT_TRACE = 77, CHILD_FAILED = 78 };

typedef struct scenario {
    int keep_last;
    int level;
    bool async;
    bool from_open; /* the process that is killed is a restarted one, from its very start */
    const char *directory;
} scenario;

static adl_checkpoint *open_with(const scenario *s, bool writer, blob *a, blob *b)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.keep_last = s->keep_last;
    options.compress_level = s->level;
    options.is_writer = writer;
    adl_checkpoint *store;
    if (adl_checkpoint_open(s->directory, &options, &store) != ADL_OK) {
        printf("# open: %s\n", adl_error());
        return NULL;
    }
    if (adl_checkpoint_register(store, "a", &blob_functions, a, NULL) != ADL_OK ||
        adl_checkpoint_register(store, "b", &blob_functions, b, NULL) != ADL_OK) {
        adl_checkpoint_close(store);
        return NULL;
    }
    return store;
}

static void be_traced(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(CANNOT_TRACE);
    raise(SIGSTOP);
}

/* What an earlier crash left, for the restarted process to remove. */
static void leave_half_a_checkpoint(const char *directory)
{
    char path[512];
    snprintf(path, sizeof path, "%s/.tmp-checkpoint-0.3-new-1", directory);
    mkdir(path, 0777);
    strcat(path, "/a.state");
    spill(path, "half", 4);
}

/* Saves seed 1 and seed 2 untraced, then seed 3 with the parent watching. Never returns. */
static void child(const scenario *s)
{
    blob a = {0}, b = {0};
    adl_checkpoint *store = open_with(s, true, &a, &b);
    if (!store)
        _exit(CHILD_FAILED);
    for (unsigned seed = 1; seed <= 3; seed++) {
        if (seed == 3 && s->from_open) {
            adl_checkpoint_close(store);
            leave_half_a_checkpoint(s->directory);
            be_traced();
            if (!(store = open_with(s, true, &a, &b)) ||
                adl_checkpoint_load_all(store, NULL, NULL) != ADL_OK)
                _exit(CHILD_FAILED);
        }
        blob_set(&a, 100 + seed, seed);
        blob_set(&b, 3000, seed);
        if (seed == 3 && !s->from_open)
            be_traced();
        adl_status status = s->async && seed == 3 ? adl_checkpoint_save_async(store)
                                                  : adl_checkpoint_save_all(store);
        if (status == ADL_OK)
            status = adl_checkpoint_flush(store);
        if (status != ADL_OK)
            _exit(CHILD_FAILED);
    }
    _exit(0);
}

/* Lets the child run until its stops number kill_at (entry or exit of a system call, in any of its
 * threads) and kills it there. Returns the stops seen; *exit_status is -1 when it was killed. */
static int trace(pid_t pid, int kill_at, int *exit_status)
{
    int status, stops = 0;
    *exit_status = -1;
    if (waitpid(pid, &status, __WALL) != pid)
        return 0;
    if (WIFEXITED(status)) {
        *exit_status = WEXITSTATUS(status);
        return 0;
    }
    ptrace(PTRACE_SETOPTIONS, pid, NULL,
           (void *)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
    ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    pid_t who;
    while ((who = waitpid(-1, &status, __WALL)) > 0) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (who != pid)
                continue; /* a thread of it */
            if (WIFEXITED(status))
                *exit_status = WEXITSTATUS(status);
            break;
        }
        if (WSTOPSIG(status) == (SIGTRAP | 0x80) && ++stops == kill_at)
            kill(pid, SIGKILL);
        ptrace(PTRACE_SYSCALL, who, NULL, NULL);
    }
    return stops;
}

/* The seed that a fresh process loads, 0 when nothing or a mixture. Nothing may be damaged. */
static unsigned loads(const scenario *s)
{
    blob a = {0}, b = {0};
    adl_checkpoint *store = open_with(s, false, &a, &b);
    if (!store)
        return 0;
    int loaded = 0;
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(store, &info);
    unsigned seed = 0;
    if (adl_checkpoint_load_all(store, &loaded, NULL) == ADL_OK && loaded == 2 && info.damaged == 0)
        seed = (unsigned)(a.length - 100);
    if (seed && (!blob_is(&a, 100 + seed, seed) || !blob_is(&b, 3000, seed)))
        seed = 0;
    adl_checkpoint_close(store);
    free(a.data), free(b.data);
    return seed;
}

/* The restarted process: loads, saves, and leaves a clean directory. */
static void go_on(const scenario *s, unsigned expected)
{
    blob a = {0}, b = {0};
    adl_checkpoint *store = open_with(s, true, &a, &b);
    REQUIRE(store != NULL);
    CHECK_INT(count_entries(s->directory, ".tmp"), 0);
    CHECK_OK(adl_checkpoint_load_all(store, NULL, NULL));
    CHECK(blob_is(&a, 100 + expected, expected));
    blob_set(&a, 104, 4);
    blob_set(&b, 3000, 4);
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);
    CHECK_INT(loads(s), 4);
    CHECK_INT(count_entries(s->directory, ""), s->keep_last);
    free(a.data), free(b.data);
}

/* Returns false when the child came to its end before stop kill_at. *code: see child. */
static bool kill_once(scenario *s, int kill_at, unsigned *seed, int *code)
{
    s->directory = fresh_directory();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        child(s);
    trace(pid, kill_at, code);
    *seed = loads(s);
    if (*code != CANNOT_TRACE)
        go_on(s, *seed);
    remove_tree(s->directory);
    return *code == -1;
}

static void kill_everywhere(scenario s, const char *what)
{
    int kills = 0, old = 0, new = 0, code;
    unsigned seed;
    while (kill_once(&s, kills + 1, &seed, &code)) {
        kills++;
        old += seed == 2;
        new += seed == 3;
        REQUIRE(kills < 5000);
    }
    if (code == CANNOT_TRACE)
        SKIP("ptrace is not permitted here");
    CHECK_INT(code, 0);
    CHECK_INT(seed, 3);
    CHECK(old > 0 && new > 0);
    CHECK_INT(old + new, kills); /* never neither */
    printf("info - %s: killed at %d points: %d loaded the old, %d the new, %d neither\n", what,
           kills, old, new, kills - old - new);
}

TEST(killed_at_every_system_call)
{
    kill_everywhere((scenario){.keep_last = 1}, "save_all, keep 1");
}

TEST(killed_at_every_system_call_keeping_two_compressed)
{
    kill_everywhere((scenario){.keep_last = 2, .level = 1}, "save_all, keep 2, zstd");
}

TEST(killed_at_every_system_call_in_the_background)
{
    kill_everywhere((scenario){.keep_last = 1, .async = true}, "save_async, keep 1");
}

TEST(killed_at_every_system_call_of_a_restart)
{
    kill_everywhere((scenario){.keep_last = 1, .from_open = true},
                    "open, load and save_all, keep 1");
}
