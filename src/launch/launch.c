/* The life of a run. One loop observes the replicas, lets adli_lifecycle decide what becomes of them, as the
 * scheduler does, carries that out, and waits for signals, lines, control connections and ends of replicas.
 * Two things are the launcher's own: CTRL-C means what deleting a job means there, and so does a replica that
 * was stopped by somebody else. */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "launch/control.h"
#include "launch/output.h"
#include "launch/replica.h"
#include "sched/lifecycle.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECRET_BYTES = 16, TICK_MS = 1000, PORT_FIRST = 20000, PORT_LAST = 32000 };

typedef struct run {
    const adli_launch_options *options;
    char name[128];
    adli_hosts hosts;
    adli_output output;
    adli_control control;
    int signals; /* signalfd */
    sigset_t handled, before;
    adl_life life;
    adl_rules rules;
    bool stop;             /* asked to, by whom it may be */
    int replicas, wanted;  /* now, and at the next start */
    adli_replica *replica; /* [replicas]; NULL: none are there */
    adli_end *ends;        /* [replicas] */
    int alive;
    bool reported; /* why the present replicas failed */
    int failed_code;
    int port_fd, port; /* of rank 0, and what holds it */
    char secret[2 * SECRET_BYTES + 1];
    double started_s;
    struct pollfd *wait; /* [2 + 2 replicas] */
    size_t wait_capacity;
} run;

static bool can_listen(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return can;
}

/* Holds the port against other launchers, by a name of the kernel's that goes away with this process. The port
 * itself stays free: programs that listen on it without SO_REUSEADDR could not if it were bound here. */
static int hold_port(int port)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "adaptdl-port-%d", port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* A port for rank 0, below those that the system hands out for connections. */
static adl_status reserve_port(run *self)
{
    uint32_t random = (uint32_t)getpid();
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random ^= (uint32_t)(1e6 * adli_monotonic_s());
    for (int i = 0; i <= PORT_LAST - PORT_FIRST; i++) {
        self->port = PORT_FIRST + (int)((random + (uint32_t)i) % (PORT_LAST - PORT_FIRST + 1));
        self->port_fd = can_listen(self->port) ? hold_port(self->port) : -1;
        if (self->port_fd >= 0)
            return ADL_OK;
    }
    return adli_fail(ADL_EIO, "no free port in %d .. %d", PORT_FIRST, PORT_LAST);
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

static void end_generation(run *self)
{
    for (int r = 0; r < self->replicas && self->replica; r++)
        adli_replica_fini(&self->replica[r]);
    free(self->replica);
    free(self->ends);
    self->replica = NULL;
    self->ends = NULL;
    if (self->port_fd >= 0)
        close(self->port_fd);
    self->port_fd = -1;
}

/* Waits for what was started when a start failed halfway. */
static void abandon(run *self)
{
    for (int r = 0; r < self->replicas; r++) {
        adli_ward *ward = &self->replica[r].ward;
        adli_ward_kill(ward);
        if (ward->id > 0)
            waitpid(ward->id, NULL, 0);
    }
}

static adl_status start_generation(run *self)
{
    int restarts = self->life.group - 1;
    self->replicas = self->wanted;
    self->replica = adli_calloc((size_t)self->replicas, sizeof *self->replica);
    self->ends = adli_calloc((size_t)self->replicas, sizeof *self->ends);
    if (!self->replica || !self->ends ||
        adli_grow(&self->wait, &self->wait_capacity, 2 + 2 * (size_t)self->replicas,
                  sizeof *self->wait) != 0)
        return adli_fail_memory("replicas");
    for (int r = 0; r < self->replicas; r++)
        self->replica[r].out.fd = self->replica[r].err.fd = -1;
    adl_status status = reserve_port(self);
    if (status == ADL_OK)
        status = make_secret(self);
    adli_replica_env env = {self->replicas, restarts,    self->port, self->options->checkpoint,
                            self->secret,   &self->hosts};
    for (int r = 0; r < self->replicas && status == ADL_OK; r++)
        status = adli_replica_start(&self->replica[r], r, self->options->argv, &env);
    if (status != ADL_OK) {
        abandon(self);
        return status;
    }
    for (int r = 0; r < self->replicas; r++)
        adli_say(ADL_LOG_DEBUG, "replica %d is process %d", r, (int)self->replica[r].ward.id);
    self->alive = self->replicas;
    self->reported = false;
    self->failed_code = 0;
    const char *plural = self->replicas == 1 ? "" : "s";
    if (restarts == 0)
        adli_say(ADL_LOG_INFO, "%s: started %d replica%s", self->name, self->replicas, plural);
    else
        adli_say(ADL_LOG_INFO, "%s: restart %d on %d replica%s", self->name, restarts,
                 self->replicas, plural);
    return ADL_OK;
}

static void kill_all(run *self)
{
    for (int r = 0; self->replica && r < self->replicas; r++)
        adli_ward_kill(&self->replica[r].ward);
}

/* Collects those that have ended. */
static void reap(run *self)
{
    int status;
    double now_s = adli_monotonic_s();
    for (pid_t id; (id = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
        for (int r = 0; self->replica && r < self->replicas; r++)
            adli_ward_note(&self->replica[r].ward, id, status, now_s);
    for (int r = 0; self->replica && r < self->replicas; r++) {
        adli_replica *replica = &self->replica[r];
        if (adli_ward_is_silent(&replica->ward)) {
            adli_say(ADL_LOG_ERROR, "replica %d was stopped and cannot answer: killed", r);
            adli_ward_kill(&replica->ward);
        }
        if (replica->over || !adli_ward_over(&replica->ward))
            continue;
        kill(-replica->ward.id, SIGKILL); /* what it left behind in its group */
        replica->over = true;
        self->alive--;
    }
}

static adli_end end_of(const adli_replica *replica)
{
    const adli_ward *ward = &replica->ward;
    adli_end end = {ADLI_FATE_READY, ward->ended_s};
    int code = adli_ward_code(ward);
    if (replica->over)
        end.fate = ward->silent                            ? ADLI_FATE_TAKEN
                   : ward->killed && code == 128 + SIGKILL ? ADLI_FATE_LEFT
                                                           : adli_fate_of(code);
    return end;
}

/* The first failure is reported. Among several at once, one that was killed explains the others, which only
 * lost a peer. */
static void report(run *self)
{
    const adli_replica *culprit = NULL;
    char fate[128];
    for (int r = 0; r < self->replicas; r++) {
        const adli_replica *replica = &self->replica[r];
        if (adli_end_failed(&self->life, self->ends, self->replicas, r) &&
            (!culprit || (WIFSIGNALED(replica->ward.status) && !WIFSIGNALED(culprit->ward.status))))
            culprit = replica;
    }
    if (!culprit || self->reported)
        return;
    self->reported = true;
    self->failed_code = adli_ward_code(&culprit->ward);
    adli_say(ADL_LOG_ERROR, "replica %d %s", culprit->rank,
             adli_replica_fate(culprit, fate, sizeof fate));
}

static adl_observed observe(run *self)
{
    adl_observed seen = {0};
    if (self->replica) {
        for (int r = 0; r < self->replicas; r++) {
            const adli_replica *replica = &self->replica[r];
            self->ends[r] = end_of(replica);
            if (self->ends[r].fate == ADLI_FATE_LEFT && !replica->ward.asked &&
                !replica->ward.killed)
                self->stop = true; /* somebody else has stopped it: all must go */
        }
        seen = adli_observe_ends(&self->life, self->ends, self->replicas);
        report(self);
        if (seen.failed == 0) /* or it has turned out to be a consequence */
            self->failed_code = 0;
        seen.moved = self->wanted != self->replicas;
    }
    seen.wanted = self->wanted;
    seen.deleted = self->stop;
    return seen;
}

static void on_signals(run *self)
{
    struct signalfd_siginfo info;
    while (read(self->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGCHLD)
            continue; /* reap looks at every round */
        if (number == SIGINT && self->stop) {
            adli_say(ADL_LOG_INFO, "got SIGINT again: killing %d replicas", self->alive);
            kill_all(self);
            continue;
        }
        adli_say(ADL_LOG_INFO, "got %s: passing it on, waiting for checkpoints",
                 number == SIGINT   ? "SIGINT"
                 : number == SIGHUP ? "SIGHUP"
                                    : "SIGTERM");
        self->stop = true;
    }
}

static const char *phase_text(const run *self)
{
    if (self->life.phase != ADL_STOPPING)
        return "running";
    return self->stop ? "stopping" : self->reported ? "failing" : "changing size";
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
    adli_say(ADL_LOG_INFO, "%s: from %d to %d replicas, %s", self->name, self->wanted, wanted, how);
    self->wanted = wanted;
}

static void on_control(void *user, const char *line, adli_buf *out)
{
    run *self = user;
    char *end = NULL;
    if (strcmp(line, "status") == 0) {
        adli_buf_printf(out, "%s: %s, %d replicas, %d restarts", self->name, phase_text(self),
                        self->replicas, self->life.group - 1);
        return;
    }
    long wanted = strncmp(line, "scale ", 6) == 0 ? strtol(line + 6, &end, 10) : 0;
    bool forced = end && strcmp(end, " force") == 0;
    if (wanted < 1 || wanted > ADLI_LAUNCH_REPLICAS_MAX || (*end != '\0' && !forced))
        adli_buf_puts(out, "error: not understood");
    else if (self->stop)
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
    int replicas = self->replica ? self->replicas : 0;
    for (int r = 0; r < replicas; r++) { /* poll ignores those at their end (-1) */
        wait[count++] = (struct pollfd){self->replica[r].out.fd, POLLIN, 0};
        wait[count++] = (struct pollfd){self->replica[r].err.fd, POLLIN, 0};
    }
    if (poll(wait, (nfds_t)count, TICK_MS) <= 0)
        return;
    for (int r = 0; r < replicas; r++) {
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
    for (int r = 0; self->replica && r < self->replicas; r++) {
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

static void show_state(run *self)
{
    int elapsed = (int)(adli_monotonic_s() - self->started_s);
    adli_output_state(&self->output, "%s: %s, %d of %d replicas, %d restarts, %d:%02d:%02d",
                      self->name, phase_text(self), self->alive, self->replicas,
                      self->life.group - 1, elapsed / 3600, elapsed / 60 % 60, elapsed % 60);
}

static adl_status act(run *self, adl_action action)
{
    switch (action) {
    case ADL_START:
        return start_generation(self);
    case ADL_TERMINATE:
        for (int r = 0; self->replica && r < self->replicas; r++)
            adli_ward_ask(&self->replica[r].ward);
        break;
    case ADL_KILL:
        adli_say(ADL_LOG_ERROR, "%d replicas did not leave within %g s: killed", self->alive,
                 self->rules.grace_s);
        kill_all(self);
        break;
    case ADL_CLEAN:
        drain(self);
        adli_output_clear(&self->output);
        end_generation(self);
        break;
    case ADL_NOTHING:
        wait_round(self);
        reap(self);
        if (self->replica)
            show_state(self);
        break;
    }
    return ADL_OK;
}

/* Until there is nothing more to start. */
static adl_status run_all(run *self, int *exit_code)
{
    adl_status status = ADL_OK;
    while (status == ADL_OK && !adl_life_over(&self->life)) {
        adl_observed seen = observe(self);
        status = act(self, adli_lifecycle(&self->life, &seen, &self->rules, adli_monotonic_s()));
    }
    if (status != ADL_OK)
        return status;
    if (self->life.failures > self->rules.max_retries && self->rules.max_retries > 0)
        adli_say(ADL_LOG_ERROR, "%s: failed %d times, giving up", self->name, self->life.failures);
    *exit_code = self->life.phase == ADL_SUCCEEDED ? 0
                 : self->failed_code               ? self->failed_code
                                                   : ADLI_EXIT_LEFT;
    return ADL_OK;
}

static adl_status check(const adli_launch_options *options)
{
    if (options->replicas < 1 || options->replicas > ADLI_LAUNCH_REPLICAS_MAX)
        return adli_fail(ADL_EINVAL, "%d replicas: must be from 1 to %d", options->replicas,
                         ADLI_LAUNCH_REPLICAS_MAX);
    if (options->max_restarts < 0)
        return adli_fail(ADL_EINVAL, "%d restarts: must not be negative", options->max_restarts);
    struct stat info;
    const char *directory =
        options->hosts ? NULL : options->checkpoint; /* it is rank 0's to make */
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
                .rules = {.grace_s = options->grace_s, .max_retries = options->max_restarts},
                .port_fd = -1,
                .signals = -1,
                .control.fd = -1,
                .started_s = adli_monotonic_s()};
    *exit_code = 1;
    adl_status status = check(options);
    if (status != ADL_OK)
        return status;
    status = adli_hosts_init(&self.hosts, options->hosts, options->ssh);
    if (status == ADL_OK)
        status = adli_hosts_find_master(&self.hosts);
    if (status != ADL_OK) {
        adli_hosts_fini(&self.hosts);
        return status;
    }
    name_run(&self);
    adli_output_init(&self.output, options->level);
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
    int reaped = 0; /* what shells leave behind is ours to ask, and to wait for */
    prctl(PR_GET_CHILD_SUBREAPER, &reaped);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (status == ADL_OK)
        status = run_all(&self, exit_code);
    prctl(PR_SET_CHILD_SUBREAPER, reaped);
    end_generation(&self);
    free(self.wait);
    adli_hosts_fini(&self.hosts);
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
