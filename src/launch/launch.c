/* The life of a run. One loop waits for signals, lines, control connections and ends of replicas;
 * `phase` says what the run is up to:
 *   RUNNING   replicas are at work
 *   RESIZING  SIGTERM was sent because their number is to change; they start again when all are gone
 *   STOPPING  the user asked to stop; nothing is started again
 *   FAILING   one has failed; the others are ended, then all start again if restarts are left */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "launch/control.h"
#include "launch/output.h"
#include "launch/replica.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { INTERRUPTED = 143, SECRET_BYTES = 16, TICK_MS = 1000 };

typedef enum phase { RUNNING, RESIZING, STOPPING, FAILING } phase;

typedef struct run {
    const adli_launch_options *options;
    char name[128];
    adli_output output;
    adli_control control;
    int signals; /* signalfd */
    sigset_t handled, before;
    phase phase;
    int replicas, wanted;  /* now, and at the next start */
    adli_replica *replica; /* [replicas] */
    int alive;
    int restarts, failures;
    int port_fd, port;
    char secret[2 * SECRET_BYTES + 1];
    double started_s, kill_at_s; /* kill_at 0: not planned */
    int failed_code;             /* exit code for the first failure */
    struct pollfd *wait;         /* [2 + 2 replicas] */
} run;

/* A port that stays ours: bound, but not listening, so that rank 0 (which binds with SO_REUSEADDR too)
 * can listen on it and nobody else is given it. */
static adl_status reserve_port(run *self)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    self->port_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (self->port_fd < 0 ||
        setsockopt(self->port_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(self->port_fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(self->port_fd, (struct sockaddr *)&address, &length) != 0)
        return adli_fail(ADL_EIO, "no port for rank 0: %s", strerror(errno));
    self->port = ntohs(address.sin_port);
    return ADL_OK;
}

static adl_status make_secret(run *self)
{
    unsigned char bytes[SECRET_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return adli_fail(ADL_EIO, "no random numbers: %s", strerror(errno));
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(self->secret + 2 * i, 3, "%02x", bytes[i]);
    return ADL_OK;
}

static void signal_all(run *self, int number)
{
    for (int r = 0; r < self->replicas; r++)
        adli_replica_signal(&self->replica[r], number);
}

static void end_generation(run *self)
{
    for (int r = 0; r < self->replicas && self->replica; r++)
        adli_replica_fini(&self->replica[r]);
    free(self->replica);
    free(self->wait);
    self->replica = NULL;
    self->wait = NULL;
    if (self->port_fd >= 0)
        close(self->port_fd);
    self->port_fd = -1;
}

/* Waits for what was started when a start failed halfway. */
static void abandon(run *self)
{
    signal_all(self, SIGKILL);
    for (int r = 0; r < self->replicas; r++)
        if (self->replica[r].pid > 0)
            waitpid(self->replica[r].pid, NULL, 0);
}

static adl_status start_generation(run *self)
{
    self->replicas = self->wanted;
    self->replica = adli_calloc((size_t)self->replicas, sizeof *self->replica);
    self->wait = adli_calloc((size_t)(2 + 2 * self->replicas), sizeof *self->wait);
    if (!self->replica || !self->wait)
        return adli_fail_memory("replicas");
    for (int r = 0; r < self->replicas; r++)
        self->replica[r].out.fd = self->replica[r].err.fd = -1;
    adl_status status = reserve_port(self);
    if (status == ADL_OK)
        status = make_secret(self);
    adli_replica_env env = {self->replicas, self->restarts, self->port, self->options->checkpoint,
                            self->secret};
    for (int r = 0; r < self->replicas && status == ADL_OK; r++)
        status = adli_replica_start(&self->replica[r], r, self->options->argv, &env);
    if (status != ADL_OK) {
        abandon(self);
        return status;
    }
    self->alive = self->replicas;
    self->phase = RUNNING;
    self->kill_at_s = 0;
    if (self->restarts == 0)
        adli_output_say(&self->output, "%s: started %d replica%s", self->name, self->replicas,
                        self->replicas == 1 ? "" : "s");
    else
        adli_output_say(&self->output, "%s: restart %d on %d replica%s", self->name, self->restarts,
                        self->replicas, self->replicas == 1 ? "" : "s");
    return ADL_OK;
}

/* Asks all replicas to leave; those that do not within the grace period are killed. */
static void ask_to_leave(run *self, phase why, int number)
{
    self->phase = why;
    signal_all(self, number);
    if (self->kill_at_s == 0)
        self->kill_at_s = adli_monotonic_s() + self->options->grace_s;
}

static void on_failure(run *self, const adli_replica *replica)
{
    char fate[128];
    adli_output_fail(&self->output, "replica %d %s", replica->rank,
                     adli_replica_fate(replica->status, fate, sizeof fate));
    self->failures++;
    self->failed_code = WIFSIGNALED(replica->status) ? 128 + WTERMSIG(replica->status)
                                                     : WEXITSTATUS(replica->status);
    ask_to_leave(self, FAILING, SIGTERM);
}

/* Is this an end that nobody asked for? Being stopped by SIGTERM before it handles signals counts as
 * leaving when asked. */
static bool failed(const run *self, int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != INTERRUPTED;
    bool asked = self->phase == RESIZING || self->phase == STOPPING;
    return !(asked && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT));
}

/* Collects those that have ended. Among several at once, one that was killed explains the others,
 * which only lost a peer. */
static void reap(run *self)
{
    adli_replica *culprit = NULL;
    bool left = false;
    for (int r = 0; r < self->replicas; r++) {
        adli_replica *replica = &self->replica[r];
        if (replica->ended || waitpid(replica->pid, &replica->status, WNOHANG) != replica->pid)
            continue;
        kill(-replica->pid, SIGKILL); /* what it left behind in its group */
        replica->ended = true;
        self->alive--;
        left |= WIFEXITED(replica->status) && WEXITSTATUS(replica->status) == INTERRUPTED;
        if (failed(self, replica->status) &&
            (!culprit || (WIFSIGNALED(replica->status) && !WIFSIGNALED(culprit->status))))
            culprit = replica;
    }
    if (culprit && self->phase != FAILING) {
        bool stopping = self->phase == STOPPING;
        on_failure(self, culprit);
        if (stopping) /* reported, but not started again */
            self->phase = STOPPING;
    } else if (left && self->phase == RUNNING) { /* stopped by somebody else: all must go */
        ask_to_leave(self, STOPPING, SIGTERM);
    }
}

static void on_signals(run *self)
{
    struct signalfd_siginfo info;
    while (read(self->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGCHLD)
            continue; /* reap looks at every round */
        adli_output_say(&self->output, "got %s: passing it on, waiting for checkpoints",
                        number == SIGINT   ? "SIGINT"
                        : number == SIGHUP ? "SIGHUP"
                                           : "SIGTERM");
        self->failed_code = 0;
        ask_to_leave(self, STOPPING, number == SIGINT ? SIGINT : SIGTERM);
    }
}

static const char *phase_text(phase at)
{
    static const char *const texts[] = {"running", "changing size", "stopping", "failing"};
    return texts[at];
}

/* Do the replicas have a place for checkpoints, as far as the launcher can tell? */
static bool saves(const run *self)
{
    const char *path =
        self->options->checkpoint ? self->options->checkpoint : getenv("ADAPTDL_CHECKPOINT_PATH");
    return path && *path;
}

static void resize(run *self, int wanted, adli_buf *out)
{
    const char *how = saves(self) ? "waiting for a checkpoint" : "from the first step again";
    adli_buf_printf(out, "%s: from %d to %d replicas", self->name, self->wanted, wanted);
    adli_output_say(&self->output, "%s: from %d to %d replicas, %s", self->name, self->wanted,
                    wanted, how);
    self->wanted = wanted;
    if (self->phase == RUNNING)
        ask_to_leave(self, RESIZING, SIGTERM);
}

static void on_control(void *user, const char *line, adli_buf *out)
{
    run *self = user;
    char *end = NULL;
    if (strcmp(line, "status") == 0) {
        adli_buf_printf(out, "%s: %s, %d replicas, %d restarts", self->name,
                        phase_text(self->phase), self->replicas, self->restarts);
        return;
    }
    long wanted = strncmp(line, "scale ", 6) == 0 ? strtol(line + 6, &end, 10) : 0;
    bool forced = end && strcmp(end, " force") == 0;
    if (wanted < 1 || wanted > ADLI_LAUNCH_REPLICAS_MAX || (*end != '\0' && !forced))
        adli_buf_puts(out, "error: not understood");
    else if (self->phase == STOPPING)
        adli_buf_puts(out, "error: the run is being stopped");
    else if (wanted == self->wanted)
        adli_buf_printf(out, "%s: %d replicas already", self->name, self->wanted);
    else if (!forced && !saves(self))
        adli_buf_puts(out, "error: it saves no checkpoints (run --checkpoint DIR), so it would "
                           "start again from the first step; scale --force does it anyway");
    else
        resize(self, (int)wanted, out);
}

/* Waits for something to happen, and deals with lines and connections. */
static void wait_round(run *self)
{
    struct pollfd *wait = self->wait;
    int count = 2;
    wait[0] = (struct pollfd){self->signals, POLLIN, 0};
    wait[1] = (struct pollfd){self->control.fd, POLLIN, 0};
    for (int r = 0; r < self->replicas; r++) { /* poll ignores those at their end (-1) */
        wait[count++] = (struct pollfd){self->replica[r].out.fd, POLLIN, 0};
        wait[count++] = (struct pollfd){self->replica[r].err.fd, POLLIN, 0};
    }
    if (poll(wait, (nfds_t)count, TICK_MS) <= 0)
        return;
    for (int r = 0; r < self->replicas; r++) {
        adli_replica *replica = &self->replica[r];
        if (wait[2 + 2 * r].revents)
            adli_output_pump(&self->output, &replica->out, r, false);
        if (wait[3 + 2 * r].revents)
            adli_output_pump(&self->output, &replica->err, r, true);
    }
    if (wait[0].revents)
        on_signals(self);
    if (wait[1].revents)
        adli_control_serve(&self->control, on_control, self);
}

/* Prints what is left in the pipes of those that are gone. */
static void drain(run *self)
{
    for (int r = 0; r < self->replicas; r++) {
        adli_replica *replica = &self->replica[r];
        for (int i = 0; i < 2; i++) {
            adli_stream *stream = i ? &replica->err : &replica->out;
            struct pollfd wait = {stream->fd, POLLIN, 0};
            /* A descendant that escaped from the group may hold the pipe open: no waiting for it. */
            while (stream->fd >= 0 && poll(&wait, 1, 0) > 0 &&
                   adli_output_pump(&self->output, stream, r, i))
                ;
        }
    }
}

static void run_generation(run *self)
{
    while (self->alive > 0) {
        wait_round(self);
        reap(self);
        double now_s = adli_monotonic_s();
        if (self->kill_at_s > 0 && now_s >= self->kill_at_s && self->alive > 0) {
            adli_output_fail(&self->output, "%d replicas did not leave within %g s: killed",
                             self->alive, self->options->grace_s);
            signal_all(self, SIGKILL);
            self->kill_at_s = 0;
        }
        int elapsed = (int)(now_s - self->started_s);
        adli_output_state(&self->output, "%s: %s, %d of %d replicas, %d restarts, %d:%02d:%02d",
                          self->name, phase_text(self->phase), self->alive, self->replicas,
                          self->restarts, elapsed / 3600, elapsed / 60 % 60, elapsed % 60);
    }
    drain(self);
    adli_output_clear(&self->output);
}

static bool all_finished(const run *self)
{
    for (int r = 0; r < self->replicas; r++)
        if (!WIFEXITED(self->replica[r].status) || WEXITSTATUS(self->replica[r].status) != 0)
            return false;
    return true;
}

/* Generations until there is nothing more to start. */
static adl_status run_all(run *self, int *exit_code)
{
    for (;;) {
        adl_status status = start_generation(self);
        if (status != ADL_OK)
            return status;
        run_generation(self);
        bool finished = all_finished(self);
        phase how = self->phase;
        end_generation(self);
        *exit_code = finished ? 0 : self->failed_code ? self->failed_code : INTERRUPTED;
        if (finished || how == STOPPING)
            return ADL_OK;
        if (how == FAILING && self->failures > self->options->max_restarts) {
            if (self->options->max_restarts > 0)
                adli_output_fail(&self->output, "%s: failed %d times, giving up", self->name,
                                 self->failures);
            return ADL_OK;
        }
        self->failed_code = 0;
        self->restarts++;
    }
}

static adl_status check(const adli_launch_options *options)
{
    if (options->replicas < 1 || options->replicas > ADLI_LAUNCH_REPLICAS_MAX)
        return adli_fail(ADL_EINVAL, "%d replicas: must be from 1 to %d", options->replicas,
                         ADLI_LAUNCH_REPLICAS_MAX);
    if (options->max_restarts < 0)
        return adli_fail(ADL_EINVAL, "%d restarts: must not be negative", options->max_restarts);
    struct stat info;
    const char *directory = options->checkpoint;
    if (directory && mkdir(directory, 0777) != 0 && errno != EEXIST)
        return adli_fail(ADL_EIO, "checkpoint directory %s: %s", directory, strerror(errno));
    if (directory && (stat(directory, &info) != 0 || !S_ISDIR(info.st_mode)))
        return adli_fail(ADL_EIO, "checkpoint directory %s: is not a directory", directory);
    return ADL_OK;
}

static void name_run(run *self)
{
    const char *program = strrchr(self->options->argv[0], '/');
    program = program ? program + 1 : self->options->argv[0];
    if (self->options->name)
        snprintf(self->name, sizeof self->name, "%s", self->options->name);
    else
        snprintf(self->name, sizeof self->name, "%.64s-%ld", program, (long)getpid());
    for (char *at = self->name; *at && !self->options->name; at++)
        if (strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == 0)
            *at = '-';
}

adl_status adli_launch(const adli_launch_options *options, int *exit_code)
{
    run self = {.options = options,
                .wanted = options->replicas,
                .port_fd = -1,
                .signals = -1,
                .control.fd = -1,
                .started_s = adli_monotonic_s()};
    *exit_code = 1;
    adl_status status = check(options);
    if (status != ADL_OK)
        return status;
    name_run(&self);
    adli_output_init(&self.output, options->quiet);
    sigemptyset(&self.handled);
    sigaddset(&self.handled, SIGINT);
    sigaddset(&self.handled, SIGTERM);
    sigaddset(&self.handled, SIGHUP);
    sigaddset(&self.handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &self.handled, &self.before);
    self.signals = signalfd(-1, &self.handled, SFD_NONBLOCK | SFD_CLOEXEC);
    if (self.signals < 0)
        status = adli_fail(ADL_EIO, "signalfd: %s", strerror(errno));
    if (status == ADL_OK)
        status = adli_control_open(&self.control, self.name);
    if (status == ADL_OK)
        status = run_all(&self, exit_code);
    end_generation(&self);
    adli_control_close(&self.control);
    if (self.signals >= 0)
        close(self.signals);
    sigprocmask(SIG_SETMASK, &self.before, NULL);
    return status;
}

adl_status adli_launch_scale(const char *name, int replicas, bool force, adli_buf *answer)
{
    char line[64] = "status";
    if (replicas < 0 || replicas > ADLI_LAUNCH_REPLICAS_MAX)
        return adli_fail(ADL_EINVAL, "%d replicas: must be from 1 to %d", replicas,
                         ADLI_LAUNCH_REPLICAS_MAX);
    if (replicas > 0)
        snprintf(line, sizeof line, "scale %d%s", replicas, force ? " force" : "");
    adl_status status = adli_control_ask(name, line, answer);
    if (status == ADL_OK && strncmp(answer->data, "error: ", 7) == 0)
        status = adli_fail(ADL_ESTATE, "run \"%s\": %s", name, answer->data + 7);
    return status;
}
