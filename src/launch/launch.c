/* The life of a run. One loop observes the replicas, lets adli_lifecycle decide what becomes of them, as the
 * scheduler does, carries that out, and waits for signals, lines, control connections and ends of replicas.
 * Two things are the launcher's own: CTRL-C means what deleting a job means there, and so does a replica that
 * was stopped by somebody else. */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "launch/run.h"

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

enum { TICK_MS = 1000, PORT_FIRST = 20000, PORT_LAST = 32000 };

typedef adli_run run;

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

/* Below those that the system hands out for connections. */
adl_status adli_run_reserve_port(int *port, int *fd)
{
    uint32_t random = (uint32_t)getpid();
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random ^= (uint32_t)(1e6 * adli_monotonic_s());
    for (int i = 0; i <= PORT_LAST - PORT_FIRST; i++) {
        *port = PORT_FIRST + (int)((random + (uint32_t)i) % (PORT_LAST - PORT_FIRST + 1));
        *fd = can_listen(*port) ? hold_port(*port) : -1;
        if (*fd >= 0)
            return ADL_OK;
    }
    return adli_fail(ADL_EIO, "no free port in %d .. %d", PORT_FIRST, PORT_LAST);
}

static adl_status make_secret(run *self)
{
    unsigned char bytes[ADLI_SECRET_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return adli_fail(ADL_EIO, "no random numbers: %s", strerror(errno));
    for (int i = 0; i < ADLI_SECRET_BYTES; i++)
        snprintf(self->secret + 2 * i, 3, "%02x", bytes[i]);
    return ADL_OK;
}

static void end_generation(run *self)
{
    for (size_t i = 0; i < self->count; i++) {
        adli_replica_fini(self->all[i]);
        free(self->all[i]);
    }
    self->count = 0;
    if (self->port_fd >= 0)
        close(self->port_fd);
    self->port_fd = -1;
    adli_run_end_worlds(self);
}

/* Nothing of the generation may live on: what was started when a start failed halfway, and those that were about to
 * join or to leave when the others ended. */
static void abandon(run *self)
{
    for (size_t i = 0; i < self->count; i++) {
        adli_ward *ward = &self->all[i]->ward;
        adli_ward_kill(ward);
        if (ward->id > 0 && !ward->ended)
            waitpid(ward->id, NULL, 0);
    }
}

adl_status adli_run_start_one(run *self, adli_member *as, int replicas, bool joins)
{
    size_t count = self->count + 1;
    if (adli_grow(&self->all, &self->capacity, count, sizeof *self->all) != 0 ||
        adli_grow(&self->ends, &self->ends_capacity, count, sizeof *self->ends) != 0 ||
        adli_grow(&self->wait, &self->wait_capacity, 2 + 3 * count, sizeof *self->wait) != 0)
        return adli_fail_memory("replicas");
    adli_replica *replica = adli_calloc(1, sizeof *replica);
    if (!replica)
        return adli_fail_memory("replicas");
    adli_replica_env env = {.replicas = replicas,
                            .restarts = self->life.group - 1,
                            .port = self->port,
                            .checkpoint = self->options->checkpoint,
                            .secret = self->secret,
                            .hosts = &self->hosts,
                            .socket = self->hosts.count ? NULL : self->control.path.data,
                            .member = as->number,
                            .joins = joins};
    adl_status status = adli_replica_start(replica, as->rank, self->options->argv, &env);
    if (status != ADL_OK) {
        free(replica);
        return status;
    }
    replica->as = as;
    as->user = replica;
    self->all[self->count++] = replica;
    adli_say(ADL_LOG_DEBUG, "replica %d is process %d", as->rank, (int)replica->ward.id);
    return ADL_OK;
}

static adl_status start_generation(run *self)
{
    int restarts = self->life.group - 1;
    adl_status status = adli_run_reserve_port(&self->port, &self->port_fd);
    if (status == ADL_OK)
        status = make_secret(self);
    for (int r = 0; r < self->wanted && status == ADL_OK; r++) {
        adli_member *as = adli_worlds_add(&self->worlds, ADLI_ROLE_IN, r, 0);
        status =
            as ? adli_run_start_one(self, as, self->wanted, false) : adli_fail_memory("replicas");
    }
    if (status != ADL_OK) {
        abandon(self);
        return status;
    }
    self->replicas = self->wanted;
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
    for (size_t i = 0; i < self->count; i++)
        adli_ward_kill(&self->all[i]->ward);
}

static int alive(const run *self)
{
    int count = 0;
    for (size_t i = 0; i < self->count; i++)
        count += !self->all[i]->over;
    return count;
}

/* Collects those that have ended. */
static void reap(run *self)
{
    int status;
    double now_s = adli_monotonic_s();
    for (pid_t id; (id = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
        for (size_t i = 0; i < self->count; i++)
            adli_ward_note(&self->all[i]->ward, id, status, now_s);
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *replica = self->all[i];
        if (adli_ward_is_silent(&replica->ward)) {
            adli_say(ADL_LOG_ERROR, "replica %d was stopped and cannot answer: killed",
                     replica->rank);
            adli_ward_kill(&replica->ward);
        }
        if (replica->over || !adli_ward_over(&replica->ward))
            continue;
        kill(-replica->ward.id, SIGKILL); /* what it left behind in its group */
        replica->over = true;
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
static void report(run *self, adli_replica *const *ended, int count)
{
    adli_replica *culprit = NULL;
    char fate[128];
    for (int i = 0; i < count; i++) {
        adli_replica *replica = ended[i];
        if (adli_end_failed(&self->life, self->ends, count, i) &&
            (!culprit || (WIFSIGNALED(replica->ward.status) && !WIFSIGNALED(culprit->ward.status))))
            culprit = replica;
    }
    if (!culprit || self->reported)
        return;
    self->reported = true;
    self->failed_code = adli_ward_code(&culprit->ward);
    if (!culprit->as->told)
        adli_say(ADL_LOG_ERROR, "replica %d %s", culprit->rank,
                 adli_replica_fate(culprit, fate, sizeof fate));
    culprit->as->told = true;
}

/* Those whose ends count, first those in the world, by rank. */
static int list_ends(run *self, adli_replica **out)
{
    int count = 0;
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *replica = self->all[i];
        if (adli_worlds_handles(&self->worlds, replica->as))
            continue;
        adli_end end = end_of(replica);
        if (end.fate == ADLI_FATE_LEFT && !replica->ward.asked && !replica->ward.killed)
            self->stop = true; /* somebody else has stopped it: all must go */
        self->ends[count] = end;
        out[count++] = replica;
    }
    return count;
}

static adl_observed observe(run *self)
{
    adl_observed seen = {0};
    adli_replica **ended = adli_calloc(self->count + 1, sizeof(adli_replica *));
    adli_run_see(self);
    if (self->count > 0 && ended) {
        int count = list_ends(self, ended);
        seen = adli_observe_ends(&self->life, self->ends, count);
        report(self, ended, count);
        if (seen.failed == 0) /* or it has turned out to be a consequence */
            self->failed_code = 0;
        seen.moved = adli_worlds_restart(&self->worlds);
    }
    free(ended);
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
            adli_say(ADL_LOG_INFO, "got SIGINT again: killing %d replicas", alive(self));
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
    const char *how = adli_worlds_able(&self->worlds) ? "in place"
                      : saves(self)                   ? "waiting for a checkpoint"
                                                      : "from the first step again";
    adli_buf_printf(out, "%s: from %d to %d replicas", self->name, self->wanted, wanted);
    adli_say(ADL_LOG_INFO, "%s: from %d to %d replicas, %s", self->name, self->wanted, wanted, how);
    self->wanted = wanted;
}

/* Another process in the place of one: what a move to another machine is on several. */
static void replace(run *self, const char *text, adli_buf *out)
{
    char *end;
    long rank = strtol(text, &end, 10);
    if (end == text || *end != '\0' || rank < 0 || rank >= self->replicas)
        adli_buf_printf(out, "error: there is no replica %.20s", text);
    else if (!adli_worlds_settled(&self->worlds) || self->replicas < 2 ||
             !adli_worlds_able(&self->worlds))
        adli_buf_puts(out, "error: it cannot be replaced now");
    else {
        self->all[rank]->as->replaced = true;
        adli_buf_printf(out, "%s: replica %ld is replaced", self->name, rank);
    }
}

static void on_control(void *user, const char *line, adli_buf *out)
{
    run *self = user;
    char *end = NULL;
    if (strncmp(line, "replace ", 8) == 0) {
        replace(self, line + 8, out);
        return;
    }
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
    else if (!forced && !saves(self) && !adli_worlds_able(&self->worlds))
        adli_buf_puts(out, "error: it saves no checkpoints (run --checkpoint DIR), so it would "
                           "start again from the first step; scale --force does it anyway");
    else
        resize(self, (int)wanted, out);
}

/* Waits for something to happen, and deals with lines and connections. */
static void wait_round(run *self)
{
    struct pollfd *wait = self->wait;
    size_t count = self->count;
    wait[0] = (struct pollfd){self->signals, POLLIN, 0};
    wait[1] = (struct pollfd){self->control.fd, POLLIN, 0};
    for (size_t i = 0; i < count; i++) { /* poll ignores those at their end (-1) */
        wait[2 + 3 * i] = (struct pollfd){self->all[i]->out.fd, POLLIN, 0};
        wait[3 + 3 * i] = (struct pollfd){self->all[i]->err.fd, POLLIN, 0};
        wait[4 + 3 * i] = (struct pollfd){self->all[i]->link.fd, POLLIN, 0};
    }
    if (poll(wait, (nfds_t)(2 + 3 * count), TICK_MS) <= 0)
        return;
    for (size_t i = 0; i < count; i++) {
        adli_replica *replica = self->all[i];
        if (wait[2 + 3 * i].revents)
            adli_output_pump(&self->output, &replica->out, replica->rank, false);
        if (wait[3 + 3 * i].revents)
            adli_output_pump(&self->output, &replica->err, replica->rank, true);
    }
    for (size_t i = 0; i < count; i++) { /* the order of replicas may change */
        int fd = wait[4 + 3 * i].fd;
        for (size_t k = 0; wait[4 + 3 * i].revents && k < self->count; k++)
            if (fd >= 0 && self->all[k]->link.fd == fd) {
                adli_run_hear(self, self->all[k]);
                break;
            }
    }
    if (wait[0].revents)
        on_signals(self);
    if (wait[1].revents)
        adli_control_serve(&self->control, adli_run_adopt, on_control, self);
}

/* Prints what is left in the pipes of those that are gone. */
static void drain(run *self)
{
    for (size_t k = 0; k < self->count; k++) {
        adli_replica *replica = self->all[k];
        for (int i = 0; i < 2; i++) {
            adli_stream *stream = i ? &replica->err : &replica->out;
            struct pollfd wait = {stream->fd, POLLIN, 0};
            /* A descendant that escaped from the group may hold the pipe open: no waiting for it. */
            while (stream->fd >= 0 && poll(&wait, 1, 0) > 0 &&
                   adli_output_pump(&self->output, stream, replica->rank, i))
                ;
        }
    }
}

static void show_state(run *self)
{
    int elapsed = (int)(adli_monotonic_s() - self->started_s);
    adli_output_state(&self->output, "%s: %s, %d of %d replicas, %d restarts, %d:%02d:%02d",
                      self->name, phase_text(self), alive(self), self->replicas,
                      self->life.group - 1, elapsed / 3600, elapsed / 60 % 60, elapsed % 60);
}

static adl_status act(run *self, adl_action action)
{
    switch (action) {
    case ADL_START:
        return start_generation(self);
    case ADL_TERMINATE:
        for (size_t i = 0; i < self->count; i++)
            adli_ward_ask(&self->all[i]->ward);
        break;
    case ADL_KILL:
        adli_say(ADL_LOG_ERROR, "%d replicas did not leave within %g s: killed", alive(self),
                 self->rules.grace_s);
        kill_all(self);
        break;
    case ADL_CLEAN:
        abandon(self);
        drain(self);
        adli_output_clear(&self->output);
        end_generation(self);
        break;
    case ADL_NOTHING:
        wait_round(self);
        reap(self);
        adli_run_act(self);
        if (self->count > 0)
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
    const char *whole = self->options->program ? self->options->program : self->options->argv[0];
    const char *program = strrchr(whole, '/');
    program = program ? program + 1 : whole;
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
                .next_port_fd = -1,
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
    free(self.all);
    free(self.ends);
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
