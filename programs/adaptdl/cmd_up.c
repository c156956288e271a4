/* `adaptdl up` and `adaptdl down`: a cluster on this machine, in the background. There is no
 * file with a process number that could be stale: whoever listens on the socket is the
 * scheduler. */
#include "cluster.h"
#include "commands.h"
#include "state.h"
#include "term.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NODES = 256,
    SLOTS,
    POLICY,
    INTERVAL,
    LISTEN,
    CONFIG,
    JOBS,
    PATH_BYTES = 4096,
    WORDS_MAX = 24
};
static const double START_S = 30, STOP_S = 60;

/* ---- who listens ---- */

/* The process behind the socket; 0: nobody. */
static pid_t listener(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        peer.pid = 0;
    close(fd);
    return peer.pid;
}

/* Opens the cluster, which must be one on this machine. */
static int open_local(cluster *k, const cli *c, char **state)
{
    int status = cluster_open(k, c);
    *state = NULL;
    return status == EXIT_DONE ? state_directory(k, state) : status;
}

/* ---- up ---- */

typedef struct start {
    bool listens, configured; /* --listen, --config were given */
    char *words[WORDS_MAX];   /* of the command line */
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

static void become_scheduler(start *s, int report)
{
    int null = open("/dev/null", O_RDONLY);
    int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (null >= 0 && log >= 0 && setsid() >= 0 && dup2(null, 0) >= 0 && dup2(log, 1) >= 0 &&
        dup2(log, 2) >= 0)
        execvp(s->program, s->words);
    int why = errno;
    if (write(report, &why, sizeof why) < 0)
        _exit(126);
    _exit(127);
}

static int launch(start *s)
{
    int pipe_fds[2], why = 0;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return problem("up", EXIT_USAGE, "%s", strerror(errno));
    fflush(stdout);
    s->pid = fork();
    if (s->pid == 0)
        become_scheduler(s, pipe_fds[1]);
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
    int fd = open(log, O_RDONLY | O_CLOEXEC);
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

static int await_ready(cluster *k, start *s, off_t log_from)
{
    double until_s = adli_monotonic_s() + START_S;
    while (adli_monotonic_s() < until_s) {
        int how;
        if (cluster_look(k, "/healthz", 2000) == ADL_OK && k->code == 200)
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

/* Nodes that `down` drained are used again. */
static void undrain(cluster *k, const char *state)
{
    char path[PATH_BYTES], *rest = NULL;
    adli_buf names;
    snprintf(path, sizeof path, "%.4000s/drained-by-down", state);
    adli_buf_init(&names, 1 << 20);
    if (adli_file_read(path, &names) == ADL_OK) {
        for (char *name = strtok_r(names.data, "\n", &rest); name;
             name = strtok_r(NULL, "\n", &rest)) {
            char request[PATH_TEXT];
            snprintf(request, sizeof request, "/api/v1/nodes/%.63s/undrain", name);
            cluster_ask(k, "POST", request, 404, NULL);
        }
        unlink(path);
    }
    adli_buf_fini(&names);
}

/* The page takes the token from its address, where it does not stay. */
static void print_dashboard(const char *url, const char *state)
{
    char path[PATH_BYTES];
    adli_buf token;
    adli_buf_init(&token, 4096);
    snprintf(path, sizeof path, "%.4000s/token", state);
    printf("dashboard  ");
    term_line(stdout, url);
    if (adli_file_read(path, &token) == ADL_OK && token.length > 0) {
        token.data[strcspn(token.data, "\r\n")] = '\0';
        printf("#token=");
        term_line(stdout, token.data);
    }
    printf("\n");
    adli_buf_fini(&token);
}

static int print_cluster(cluster *k, const char *state)
{
    json_t *answer = NULL, *node;
    size_t i;
    int slots = 0;
    int status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &answer);
    if (status != EXIT_DONE)
        return status;
    json_array_foreach(json_object_get(answer, "nodes"), i, node)
    {
        slots += whole_of(node, "slots");
    }
    size_t nodes = json_array_size(json_object_get(answer, "nodes"));
    printf("cluster of %zu node%s with %d slot%s, policy ", nodes, nodes == 1 ? "" : "s", slots,
           slots == 1 ? "" : "s");
    term_line(stdout, text_of(answer, "policy", "?"));
    printf("\nsocket     %s\n", k->server.socket_path);
    if (text_of(answer, "dashboard", NULL))
        print_dashboard(text_of(answer, "dashboard", ""), state);
    json_decref(answer);
    return EXIT_DONE;
}

static int bring_up(cluster *k, start *s, const char *state)
{
    struct stat seen;
    if (listener(k->server.socket_path))
        return problem("up", EXIT_REFUSED,
                       "a cluster is running already (socket %s); stop it with: adaptdl down",
                       k->server.socket_path);
    if (adli_dirs_make(state, 0700) != ADL_OK)
        return report_error("up", EXIT_USAGE);
    snprintf(s->log, sizeof s->log, "%.4000s/daemon.log", state);
    off_t log_from = stat(s->log, &seen) == 0 ? seen.st_size : 0;
    find_program(s);
    s->words[0] = s->program;
    add_word(s, "--state");
    add_word(s, state);
    if (!s->listens && !s->configured) {
        add_word(s, "--listen");
        add_word(s, "127.0.0.1:0");
    }
    s->words[s->count] = NULL;
    int status = launch(s);
    if (status == EXIT_DONE)
        status = await_ready(k, s, log_from);
    if (status == EXIT_DONE)
        undrain(k, state);
    return status == EXIT_DONE ? print_cluster(k, state) : status;
}

/* The options go to the scheduler as they are, once they are known to be numbers where they must
 * be. */
static int take_option(cli *c, int option, start *s)
{
    static const char *const names[] = {"--nodes",    "--slots",  "--policy",
                                        "--interval", "--listen", "--config"};
    int whole;
    double number;
    if ((option == NODES && !cli_whole(c->value, 1, 1000, &whole)) ||
        (option == SLOTS && !cli_whole(c->value, 1, 10000, &whole)))
        return usage_error("up", "%s %s: must be a number from 1 on", names[option - NODES],
                           c->value);
    if (option == INTERVAL && !cli_number(c->value, 0.01, 86400, &number))
        return usage_error("up", "--interval %s: must be a number of seconds", c->value);
    if (option == CONFIG && access(c->value, R_OK) != 0)
        return problem("up", EXIT_USAGE, "%s: %s", c->value, strerror(errno));
    s->listens |= option == LISTEN;
    s->configured |= option == CONFIG;
    if (option == LISTEN && strcmp(c->value, "none") == 0)
        return EXIT_DONE;
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
    int status = open_local(&k, c, &state);
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
     "(default: 127.0.0.1:0, or as the configuration says)",
     NULL},
    {CONFIG, "config", "FILE", "configuration file (docs/config.md)", COMPLETE_FILE},
    {0},
};

const cli_command command_up = {
    .name = "up",
    .summary = "start a cluster on this machine, in the background",
    .usage = "[OPTIONS]",
    .text =
        "Starts the scheduler, adaptdl-sched, in the background and waits until it is ready. Jobs "
        "that were there when it was stopped go on. Prints the socket and the dashboard's address, "
        "which carries the token (it is in the file token, too). Its log is daemon.log in the "
        "state "
        "directory.",
    .options = up_options,
    .examples = "adaptdl up\nadaptdl up --nodes 2 --slots 2 --interval 10",
    .flags = CLI_CLUSTER,
    .run = run_up,
};

/* ---- down ---- */

/* POST drain to the nodes that have (or have not) replicas. */
static int drain_some(cluster *k, const json_t *nodes, bool used)
{
    int status = EXIT_DONE;
    for (size_t i = 0; i < json_array_size(nodes) && status == EXIT_DONE; i++) {
        const json_t *node = json_array_get(nodes, i);
        char request[PATH_TEXT];
        if (used != (json_array_size(json_object_get(node, "replicas")) > 0))
            continue;
        snprintf(request, sizeof request, "/api/v1/nodes/%.63s/drain", text_of(node, "name", ""));
        status = cluster_ask(k, "POST", request, 404, NULL);
    }
    return status;
}

/* All nodes; their names are kept for the next `up`. Empty ones first, so that no job moves there. */
static int drain_nodes(cluster *k, const char *state)
{
    char path[PATH_BYTES];
    json_t *answer = NULL, *node;
    size_t i;
    adli_buf names;
    adli_buf_init(&names, 1 << 20);
    snprintf(path, sizeof path, "%.4000s/drained-by-down", state);
    if (adli_file_read(path, &names) != ADL_OK) /* of a `down` that did not end */
        adli_buf_clear(&names);
    int status = cluster_ask(k, "GET", "/api/v1/nodes", 0, &answer);
    const json_t *nodes = json_object_get(answer, "items");
    json_array_foreach((json_t *)nodes, i, node)
    {
        if (!true_of(node, "draining"))
            adli_buf_printf(&names, "%s\n", text_of(node, "name", ""));
    }
    if (status == EXIT_DONE &&
        adli_file_write(path, names.data ? names.data : "", names.length) != ADL_OK)
        status = report_error("down", EXIT_USAGE);
    if (status == EXIT_DONE)
        status = drain_some(k, nodes, false);
    if (status == EXIT_DONE)
        status = drain_some(k, nodes, true);
    json_decref(answer);
    adli_buf_fini(&names);
    return status;
}

static int await_idle(cluster *k)
{
    bool told = false;
    for (;; pause_ms(100)) {
        json_t *answer = NULL;
        int status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &answer);
        const json_t *jobs = json_object_get(answer, "jobs");
        int busy =
            whole_of(jobs, "Starting") + whole_of(jobs, "Running") + whole_of(jobs, "Stopping");
        json_decref(answer);
        if (status != EXIT_DONE || busy == 0)
            return status;
        if (!told)
            fprintf(stderr, "adaptdl down: %d job%s saving a checkpoint ...\n", busy,
                    busy == 1 ? " is" : "s are");
        told = true;
    }
}

static int await_exit(pid_t pid)
{
    double until_s = adli_monotonic_s() + STOP_S;
    while (adli_monotonic_s() < until_s) {
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return EXIT_DONE;
        pause_ms(50);
    }
    return problem("down", EXIT_TIMEOUT, "the scheduler (process %ld) has not ended after %.0f s",
                   (long)pid, STOP_S);
}

static int take_down(cluster *k, const char *state, bool stop_jobs)
{
    pid_t pid = listener(k->server.socket_path);
    if (pid <= 1)
        return problem("down", EXIT_NO_CLUSTER, "no cluster is running (socket %s does not answer)",
                       k->server.socket_path);
    int status = stop_jobs ? drain_nodes(k, state) : EXIT_DONE;
    if (status == EXIT_DONE && stop_jobs)
        status = await_idle(k);
    if (status != EXIT_DONE)
        return status;
    if (kill(pid, SIGTERM) != 0 && errno != ESRCH)
        return problem("down", EXIT_REFUSED, "process %ld: %s", (long)pid, strerror(errno));
    status = await_exit(pid);
    if (status == EXIT_DONE)
        printf("stopped\n");
    return status;
}

static int run_down(cli *c)
{
    bool stop_jobs = true;
    char *state = NULL;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        stop_jobs = strcmp(c->value, "stop") == 0;
        if (!stop_jobs && strcmp(c->value, "leave") != 0)
            return usage_error("down", "--jobs %s: must be stop or leave", c->value);
    }
    if (cli_count(c) > 0)
        return usage_error("down", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    int status = open_local(&k, c, &state);
    if (status == EXIT_DONE)
        status = take_down(&k, state, stop_jobs);
    free(state);
    cluster_close(&k);
    return status;
}

static const cli_option down_options[] = {
    {JOBS, "jobs", "HOW",
     "stop: they save a checkpoint and go on at the next up (default); leave: their "
     "replicas go on running",
     "stop leave"},
    {0},
};

const cli_command command_down = {
    .name = "down",
    .summary = "stop the cluster on this machine",
    .usage = "[--jobs stop|leave]",
    .text = "Stops the scheduler. No job is lost: adaptdl up goes on with all of them.",
    .options = down_options,
    .flags = CLI_CLUSTER,
    .run = run_down,
};
