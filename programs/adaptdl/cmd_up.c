/* `adaptdl up`: a cluster on this machine, in the background. */
#include "cluster.h"
#include "commands.h"
#include "local.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/mem.h"
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NODES = 256,
    SLOTS,
    POLICY,
    INTERVAL,
    LISTEN,
    CONFIG,
    INSECURE,
    PATH_BYTES = 4096,
    WORDS_MAX = 24
};
static const double START_S = 30;

typedef struct start {
    bool listens;           /* --listen was given, or the configuration has it */
    bool nowhere;           /* --listen none */
    char *words[WORDS_MAX]; /* of the command line */
    int count;
    char program[PATH_BYTES], log[PATH_BYTES];
    pid_t pid;
} start;

static void add_word(start *s, const char *word)
{
    if (s->count + 1 < WORDS_MAX)
        s->words[s->count++] = (char *)word;
}

/* Beside this program, else wherever PATH leads. */
static void find_program(start *s)
{
    ssize_t length = readlink("/proc/self/exe", s->program, sizeof s->program - 32);
    if (length > 0) {
        s->program[length] = '\0';
        strcpy(strrchr(s->program, '/') + 1, "adaptdl-sched");
        if (access(s->program, X_OK) == 0)
            return;
    }
    strcpy(s->program, "adaptdl-sched");
}

static void become_scheduler(start *s, int log, int report)
{
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0 && setsid() >= 0 && dup2(null, 0) >= 0 && dup2(log, 1) >= 0 && dup2(log, 2) >= 0)
        execvp(s->program, s->words);
    int why = errno;
    if (write(report, &why, sizeof why) < 0)
        _exit(126);
    _exit(127);
}

static int launch(start *s)
{
    int pipe_fds[2], why = 0, log;
    if (adli_dirs_open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600, &log) != ADL_OK)
        return report_error("up", EXIT_USAGE);
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        close(log);
        return problem("up", EXIT_USAGE, "%s", strerror(errno));
    }
    fflush(stdout);
    s->pid = fork();
    if (s->pid == 0)
        become_scheduler(s, log, pipe_fds[1]);
    close(log);
    close(pipe_fds[1]);
    if (s->pid < 0)
        why = errno;
    else if (read(pipe_fds[0], &why, sizeof why) != sizeof why)
        why = 0; /* closed by exec */
    close(pipe_fds[0]);
    if (why)
        return problem("up", EXIT_USAGE, "%s: %s", s->program, strerror(why));
    return EXIT_DONE;
}

static void print_last_line(const char *log, off_t from)
{
    char tail[2048], *last = tail;
    int fd = open(log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t at = end - from > (off_t)sizeof tail - 1 ? end - (off_t)sizeof tail + 1 : from;
    ssize_t length = fd >= 0 && end > at ? pread(fd, tail, sizeof tail - 1, at) : 0;
    if (fd >= 0)
        close(fd);
    while (length > 0 && tail[length - 1] == '\n')
        length--;
    tail[length > 0 ? length : 0] = '\0';
    if (strrchr(tail, '\n'))
        last = strrchr(tail, '\n') + 1;
    problem("up", EXIT_REFUSED, "the scheduler did not start: %s (its log: %s)",
            *last ? last : "it does not say why", log);
}

/* Does the scheduler answer, and know where its dashboard is? */
static bool is_ready(cluster *k, const start *s)
{
    json_t *answer = NULL;
    if (cluster_look(k, "/api/v1/cluster", 2000) != ADL_OK || k->code != 200 ||
        cluster_parse(k, &answer) != EXIT_DONE)
        return false;
    bool ready = s->nowhere || text_of(answer, "dashboard", NULL);
    json_decref(answer);
    return ready;
}

static int await_ready(cluster *k, start *s, off_t log_from)
{
    double until_s = adli_monotonic_s() + START_S;
    while (adli_monotonic_s() < until_s) {
        int how;
        if (is_ready(k, s))
            return EXIT_DONE;
        if (waitpid(s->pid, &how, WNOHANG) == s->pid) {
            print_last_line(s->log, log_from);
            return EXIT_REFUSED;
        }
        if (interrupted())
            break;
        pause_ms(50);
    }
    kill(s->pid, SIGTERM);
    return problem("up", EXIT_REFUSED, "the scheduler did not answer within %.0f s (its log: %s)",
                   START_S, s->log);
}

/* What `down` drained is used again. */
static int undrain(cluster *k)
{
    return cluster_ask(k, "POST", "/api/v1/cluster/undrain", 0, NULL);
}

static int show_cluster(cluster *k)
{
    json_t *answer = NULL;
    int status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &answer);
    if (status == EXIT_DONE)
        print_cluster(k, answer);
    json_decref(answer);
    return status;
}

/* Somebody answers on the socket. A `down` that was interrupted is undone, or ended when the user wants the
 * cluster to be another. EXIT_DONE with *again: the scheduler has ended, start one. */
static int meet_running(cluster *k, const start *s, bool *again)
{
    json_t *answer = NULL;
    int status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &answer);
    bool draining = true_of(answer, "draining");
    if (status == EXIT_DONE && !draining) {
        print_cluster(k, answer);
        status = problem("up", EXIT_REFUSED,
                         "a cluster is running already (socket %s); stop it with: adaptdl down%s",
                         k->server.socket_path,
                         s->count > 1 ? "; the options that were given change nothing" : "");
    }
    json_decref(answer);
    if (status != EXIT_DONE)
        return status;
    *again = s->count > 1;
    fprintf(stderr, "adaptdl up: an interrupted \"adaptdl down\" is %s\n",
            *again ? "ended first, for the options that were given" : "undone");
    if (*again)
        return take_down(k, true);
    status = undrain(k);
    return status == EXIT_DONE ? show_cluster(k) : status;
}

static int bring_up(cluster *k, start *s, const char *state)
{
    struct stat seen;
    bool again = false;
    if (local_listener(k)) {
        int status = meet_running(k, s, &again);
        if (status != EXIT_DONE || !again)
            return status;
    }
    if (adli_dirs_make(state, 0700) != ADL_OK)
        return report_error("up", EXIT_USAGE);
    snprintf(s->log, sizeof s->log, "%.4000s/daemon.log", state);
    off_t log_from = stat(s->log, &seen) == 0 ? seen.st_size : 0;
    find_program(s);
    s->words[0] = s->program;
    add_word(s, "--state");
    add_word(s, state);
    if (!s->listens) {
        add_word(s, "--listen");
        add_word(s, "127.0.0.1:0");
    }
    s->words[s->count] = NULL;
    int status = launch(s);
    if (status == EXIT_DONE)
        status = await_ready(k, s, log_from);
    if (status == EXIT_DONE)
        status = undrain(k);
    return status == EXIT_DONE ? show_cluster(k) : status;
}

/* Does the configuration say where to listen? One that is wrong is the scheduler's to complain about. */
static bool config_listens(const char *path)
{
    adli_config config;
    bool listens = adli_config_load(path, &config) != ADL_OK || *config.listen;
    adli_config_fini(&config);
    return listens;
}

/* The options go to the scheduler as they are, once they are known to be numbers where they must
 * be. */
static int take_option(cli *c, int option, start *s)
{
    static const char *const names[] = {"--nodes",    "--slots",  "--policy",
                                        "--interval", "--listen", "--config"};
    int whole;
    double number;
    if (option == 'v' || option == INSECURE) {
        add_word(s, option == 'v' ? "--verbose" : "--insecure");
        return EXIT_DONE;
    }
    if ((option == NODES && !cli_whole(c->value, 1, 1000, &whole)) ||
        (option == SLOTS && !cli_whole(c->value, 1, 10000, &whole)))
        return usage_error("up", "%s %s: must be a number from 1 on", names[option - NODES],
                           c->value);
    if (option == INTERVAL && !cli_number(c->value, 0.01, 86400, &number))
        return usage_error("up", "--interval %s: must be a number of seconds", c->value);
    if (option == CONFIG && access(c->value, R_OK) != 0)
        return problem("up", EXIT_USAGE, "%s: %s", c->value, strerror(errno));
    s->listens |= option == LISTEN || (option == CONFIG && config_listens(c->value));
    if (option == LISTEN && strcmp(c->value, "none") == 0) {
        s->nowhere = true;
        return EXIT_DONE;
    }
    add_word(s, names[option - NODES]);
    add_word(s, c->value);
    return EXIT_DONE;
}

static int run_up(cli *c)
{
    start s = {.count = 1};
    char *state = NULL;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        int status = take_option(c, option, &s);
        if (status != EXIT_DONE)
            return status;
    }
    if (cli_count(c) > 0)
        return usage_error("up", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    int status = local_open(&k, c, &state);
    if (status == EXIT_DONE)
        status = bring_up(&k, &s, state);
    free(state);
    cluster_close(&k);
    return status;
}

static const cli_option up_options[] = {
    {NODES, "nodes", "N", "nodes to pretend (default: one, this machine)", NULL},
    {SLOTS, "slots", "M", "replicas that each node takes (default: one for each core or GPU)",
     NULL},
    {POLICY, "policy", "NAME", "scheduling policy (default: rank)",
     "rank pollux tiresias optimus fifo"},
    {INTERVAL, "interval", "S", "seconds between allocation rounds (default 60)", NULL},
    {LISTEN, "listen", "ADDR:PORT",
     "where to serve the dashboard and the API on TCP, with a token; port 0: any; none: nowhere "
     "(default: as the configuration says, else 127.0.0.1:0)",
     NULL},
    {INSECURE, "insecure", NULL, "allow --listen on a public address without TLS", NULL},
    {CONFIG, "config", "FILE", "configuration file (docs/config.md)", COMPLETE_FILE},
    {'v', "verbose", NULL, "log more (or set ADAPTDL_LOG: debug, info, warning, error, off)", NULL},
    {0},
};

const cli_command command_up = {
    .name = "up",
    .summary = "start a cluster on this machine, in the background",
    .usage = "[OPTIONS]",
    .text =
        "Starts the scheduler, adaptdl-sched, in the background and waits until it is ready. Jobs "
        "that were there when it was stopped go on. Prints the socket and the dashboard's address, "
        "which carries the token (it is in the file token, too; adaptdl status and adaptdl "
        "dashboard show it again). Its log is daemon.log in the state directory.",
    .options = up_options,
    .examples = "adaptdl up\nadaptdl up --nodes 2 --slots 2 --interval 10",
    .flags = CLI_CLUSTER,
    .run = run_up,
};
