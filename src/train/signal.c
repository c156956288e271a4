/* SIGTERM and SIGINT: the one process-wide thing of the runtime. The handler only sets a flag, which
 * the contexts look at between steps, and writes a byte to a pipe, so that a thread can say what is
 * going to happen while a long step is still running. */
#include "train/context.h"

#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct listener {
    adl_context *ctx;
    struct listener *next;
} listener;

static atomic_int received;        /* how many signals of either kind */
static atomic_int interrupts;      /* how many SIGINT */
static int pipe_fds[2] = {-1, -1}; /* made once and kept: a handler may still be writing to it */

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER; /* installing and removing, as a whole */
static struct sigaction before_int, before_term;
static pthread_t watcher;
static char stack[1 << 16]; /* of the handlers, on the thread that installs them */
static bool stack_lent;
static pthread_t stack_user;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list */
static listener *listeners;

bool adli_signals_received(void)
{
    return atomic_load_explicit(&received, memory_order_relaxed) > 0;
}

static void handle(int number)
{
    int saved = errno;
    atomic_fetch_add(&received, 1);
    if (number == SIGINT && atomic_fetch_add(&interrupts, 1) > 0) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT); /* delivered when this handler returns */
    }
    char byte = (char)number;
    if (write(pipe_fds[1], &byte, 1) < 0) {
        /* A full pipe means that the watcher has been told often enough. */
    }
    errno = saved;
}

/* Only what is certain: with several replicas there is a checkpoint only if all of them reach the next
 * step boundary, and one that was lost may be why this signal came. What was saved is said then. */
static const char *plan(const adl_context *ctx)
{
    if (!ctx->env.checkpoint_path)
        return "finishing the step (ADAPTDL_CHECKPOINT_PATH is not set: nothing is saved)";
    if (atomic_load(&ctx->several))
        return "stopping after the step, with a checkpoint if all replicas are still there";
    return "finishing the step and saving a checkpoint";
}

static void tell(int number)
{
    pthread_mutex_lock(&lock);
    for (listener *at = listeners; at; at = at->next)
        adli_log(at->ctx, ADL_LOG_INFO, "got %s: %s, then exiting; CTRL-C again to exit at once",
                 number == SIGINT ? "SIGINT" : "SIGTERM", plan(at->ctx));
    pthread_mutex_unlock(&lock);
}

/* Ends at a byte of 0. Handlers may run here: a thread that computes may have shut them out (nn/threads.h). */
static void *watch(void *unused)
{
    (void)unused;
    char number = 0;
    bool told = false;
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
    while (read(pipe_fds[0], &number, 1) == 1 && number != 0) {
        if (!told)
            tell(number);
        told = true;
    }
    return NULL;
}

static adl_status make_pipe(void)
{
    int fds[2];
    if (pipe_fds[0] >= 0)
        return ADL_OK;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return adli_fail(ADL_EIO, "signals: cannot make a pipe: %s", strerror(errno));
    if (fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) { /* a handler must not block */
        close(fds[0]);
        close(fds[1]);
        return adli_fail(ADL_EIO, "signals: %s", strerror(errno));
    }
    pipe_fds[0] = fds[0];
    pipe_fds[1] = fds[1];
    return ADL_OK;
}

/* Libraries that compute may use the stack pointer for something else for a while (nn/threads.h; PyTorch has the same
 * oneDNN): a handler's frame must not be put where it points to. */
static void lend_stack(void)
{
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack}, present;
    if (stack_lent || sigaltstack(NULL, &present) != 0 || !(present.ss_flags & SS_DISABLE))
        return;
    stack_user = pthread_self();
    stack_lent = sigaltstack(&own, NULL) == 0;
}

static void take_stack_back(void)
{
    stack_t none = {.ss_flags = SS_DISABLE}, present;
    if (stack_lent && pthread_equal(stack_user, pthread_self()) &&
        sigaltstack(NULL, &present) == 0 &&
        (present.ss_sp != (void *)stack || sigaltstack(&none, NULL) == 0))
        stack_lent = false;
}

static adl_status install(void)
{
    adl_status status = make_pipe();
    if (status == ADL_OK)
        status = adli_thread_start(&watcher, "adl-signals", watch, NULL);
    if (status != ADL_OK)
        return status;
    received = interrupts = 0;
    lend_stack();
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_int);
    sigaction(SIGTERM, &action, &before_term);
    return ADL_OK;
}

static void uninstall(void)
{
    sigaction(SIGINT, &before_int, NULL);
    sigaction(SIGTERM, &before_term, NULL);
    take_stack_back();
    while (write(pipe_fds[1], "", 1) < 0 && (errno == EAGAIN || errno == EINTR))
        sched_yield();
    pthread_join(watcher, NULL);
    received = interrupts = 0;
}

adl_status adli_signals_install(adl_context *ctx)
{
    listener *entry = adli_calloc(1, sizeof *entry);
    if (!entry)
        return adli_fail_memory("signals");
    pthread_mutex_lock(&life);
    adl_status status = listeners ? ADL_OK : install();
    if (status == ADL_OK) {
        pthread_mutex_lock(&lock);
        *entry = (listener){ctx, listeners};
        listeners = entry;
        pthread_mutex_unlock(&lock);
        ctx->signals = true;
    } else {
        free(entry);
    }
    pthread_mutex_unlock(&life);
    return status;
}

void adli_signals_remove(adl_context *ctx)
{
    if (!ctx->signals)
        return;
    pthread_mutex_lock(&life);
    pthread_mutex_lock(&lock);
    listener **at = &listeners;
    while ((*at)->ctx != ctx)
        at = &(*at)->next;
    listener *gone = *at;
    *at = gone->next;
    free(gone);
    pthread_mutex_unlock(&lock);
    ctx->signals = false;
    if (!listeners)
        uninstall();
    pthread_mutex_unlock(&life);
}
