/* `adaptdl exec`: a program beside a replica, in its directory and with its environment. A replica of the local
 * cluster is a process of this machine: it is found by the mark that its keeper gives it, and /proc tells the rest. */
#include "commands.h"
#include "kube_pod.h"
#include "state.h"

#include "proc/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANK = 256, RANKS_MAX = 10000, PATH_BYTES = 4096, ENVIRONMENT_MAX = 16 << 20 };

static const char KEEPER[] = "adaptdl-keeper";

/* The environment of a process. adli_buf_fini. */
static bool read_environment(const char *pid, adli_buf *out)
{
    char path[64];
    ssize_t got;
    struct stat info;
    snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    adli_buf_clear(out);
    if (fd >= 0 && (fstat(fd, &info) != 0 || info.st_uid != geteuid())) {
        close(fd); /* another user's, whatever it claims to be */
        return false;
    }
    while (fd >= 0) {
        char piece[4096];
        got = read(fd, piece, sizeof piece);
        if (got <= 0)
            break;
        adli_buf_append(out, piece, (size_t)got);
    }
    if (fd >= 0)
        close(fd);
    return out->length > 0 && adli_buf_check(out) == ADL_OK;
}

static const char *next_variable(const adli_buf *environment, const char *at)
{
    const char *next = at ? at + strlen(at) + 1 : environment->data;
    return next && next < environment->data + environment->length ? next : NULL;
}

static const char *value_of(const adli_buf *environment, const char *name)
{
    size_t length = strlen(name);
    for (const char *v = next_variable(environment, NULL); v; v = next_variable(environment, v))
        if (strncmp(v, name, length) == 0 && v[length] == '=')
            return v + length + 1;
    return NULL;
}

/* Did the keeper start it, not another process of the job? */
static bool is_kept(const char *pid)
{
    char path[64], text[512];
    int above = 0;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || sscanf(end + 1, " %*c %d", &above) != 1)
        return false;
    snprintf(path, sizeof path, "/proc/%d/exe", above);
    got = readlink(path, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    const char *slash = strrchr(text, '/');
    return slash &&
           strncmp(slash + 1, KEEPER, sizeof KEEPER - 1) == 0; /* " (deleted)" may follow */
}

static bool is_replica(const adli_buf *environment, const char *pid, const char *prefix, int rank)
{
    const char *mark = value_of(environment, ADLI_REPLICA_MARK);
    const char *which = value_of(environment, "ADAPTDL_REPLICA_RANK");
    return mark && strncmp(mark, prefix, strlen(prefix)) == 0 && which && atoi(which) == rank &&
           is_kept(pid);
}

/* The replica's process into pid, its environment into *environment. */
static bool find_replica(const char *prefix, int rank, char pid[32], adli_buf *environment)
{
    DIR *proc = opendir("/proc");
    bool found = false;
    for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]) ||
            !read_environment(entry->d_name, environment))
            continue;
        found = is_replica(environment, entry->d_name, prefix, rank);
        snprintf(pid, 32, "%.31s", entry->d_name);
    }
    if (proc)
        closedir(proc);
    return found;
}

/* Does not return but when it fails. */
static int become(const char *pid, const adli_buf *environment, char **words)
{
    static char shell[] = "sh", *usual[] = {NULL, NULL};
    char path[64];
    const char *own = getenv("SHELL");
    snprintf(path, sizeof path, "/proc/%s/cwd", pid);
    if (chdir(path) != 0)
        return problem("exec", EXIT_PROBLEM, "the directory of process %s: %s", pid,
                       strerror(errno));
    clearenv();
    for (const char *v = next_variable(environment, NULL); v; v = next_variable(environment, v))
        if (strchr(v, '=') &&
            strncmp(v, ADLI_REPLICA_MARK "=", sizeof ADLI_REPLICA_MARK) != 0 && /* it is none */
            putenv((char *)v) != 0)
            return problem("exec", EXIT_PROBLEM, "its environment: %s", strerror(errno));
    if (!words[0]) {
        usual[0] = own && *own ? (char *)own : shell;
        words = usual;
    }
    execvp(words[0], words);
    return problem("exec", errno == ENOENT ? 127 : 126, "%s: %s", words[0], strerror(errno));
}

/* The start of the marks of the job's present group. */
static int mark_of(cluster *k, const char *text, adli_buf *out)
{
    job_name name;
    char path[PATH_TEXT], *state = NULL;
    json_t *job = NULL;
    int status = state_directory(k, &state);
    if (status == EXIT_DONE)
        status = cluster_job_name(k, text, &name);
    if (status == EXIT_DONE)
        status = cluster_ask(k, "GET", job_path(&name, "", path), 0, &job);
    if (status == EXIT_DONE && whole_of(job, "replicas") == 0)
        status = problem("exec", EXIT_PROBLEM, "job %s/%s is %s: it has no replica now", name.ns,
                         name.name, text_of(job, "phase", "?"));
    char *real = state ? realpath(state, NULL) : NULL;
    if (status == EXIT_DONE && !real)
        status = problem("exec", EXIT_USAGE, "%s: %s", state, strerror(errno));
    if (status == EXIT_DONE)
        adli_buf_printf(out, "%s/jobs/%s/groups/%d/", real, text_of(job, "uid", "?"),
                        whole_of(job, "group"));
    json_decref(job);
    free(real);
    free(state);
    return status;
}

static int run_exec(cli *c)
{
    int rank = 0;
    char pid[32];
    cluster k;
    adli_buf mark, environment;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (!cli_whole(c->value, 0, RANKS_MAX - 1, &rank))
            return usage_error("exec", "--rank %s: must be a number from 0 on", c->value);
    }
    if (cli_count(c) == 0)
        return usage_error("exec", "beside which job?");
    int more = c->first + 1;
    if (c->argv[more] && strcmp(c->argv[more], "--") == 0)
        more++;
    adli_buf_init(&mark, PATH_BYTES);
    adli_buf_init(&environment, ENVIRONMENT_MAX);
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE && k.kube) {
        job_name name;
        status = cluster_job_name(&k, cli_argument(c, 0), &name);
        if (status == EXIT_DONE)
            status = kube_exec(&k, &name, rank, c->argv + more);
        cluster_close(&k);
        adli_buf_fini(&environment);
        adli_buf_fini(&mark);
        return status;
    }
    if (status == EXIT_DONE)
        status = mark_of(&k, cli_argument(c, 0), &mark);
    cluster_close(&k);
    if (status == EXIT_DONE && !find_replica(mark.data, rank, pid, &environment))
        status = problem("exec", EXIT_ABSENT, "rank %d of %s does not run on this machine", rank,
                         cli_argument(c, 0));
    if (status == EXIT_DONE)
        status = become(pid, &environment, c->argv + more);
    adli_buf_fini(&environment);
    adli_buf_fini(&mark);
    return status;
}

static const cli_option exec_options[] = {
    {RANK, "rank", "R", "beside this replica (default 0)", NULL},
    {0},
};

const cli_command command_exec = {
    .name = "exec",
    .summary = "run a shell, or another program, beside a replica",
    .usage = "[--rank R] JOB [-- PROGRAM [ARGUMENTS]]",
    .text =
        "Runs a program, or $SHELL, in the directory and with the environment of a replica of the "
        "local cluster, beside it: to look at its files, its environment, its process. On "
        "Kubernetes "
        "it is run in the replica's container, sh when none is named.",
    .options = exec_options,
    .exits = "that of the program; 4 there is no such job or rank, 127 no such program.",
    .examples = "adaptdl exec mnist-x7k2p\nadaptdl exec --rank 1 mnist-x7k2p -- ls -l",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER | CLI_FIRST,
    .run = run_exec,
};
