/* The process's training context: made by adaptdl.torch.init_process_group or
 * adaptdl.collective.initialize, or quietly for a program that only wants checkpoints, or wants them
 * before it meets the other replicas.
 *
 * A forked child (a DataLoader's worker) inherits the memory but not the threads of its parent, and
 * shares its sockets. It must not touch them: everything here asks first whether this is the process
 * that made the context. */
#include "core.h"

#include "train/context.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct {
    adl_context *ctx;
    bool implicit; /* made without being asked for */
    bool alone;    /* implicit, in a job of several: it reads checkpoints, and meets nobody */
    pid_t pid;     /* of the process that made it */
    uint64_t serial;
    bool starting;      /* another thread is in adl_init */
    const char *inside; /* what has exclusive use, or NULL */
    int sharing;        /* collectives under way */
    bool finishing;     /* in adl_finish, where states may still be saved by this thread: */
    pthread_t finisher;
    bool signals;
    struct sigaction before_term; /* what SIGTERM did before */
} the;

uint64_t adlpy_serial(void)
{
    return the.serial;
}

adl_context *adlpy_context_peek(void)
{
    if (!the.ctx || the.pid != getpid())
        return NULL;
    return the.finishing && !pthread_equal(the.finisher, pthread_self()) ? NULL : the.ctx;
}

bool adlpy_alive(uint64_t serial, const char *what)
{
    if (adlpy_context_peek() && the.serial == serial)
        return true;
    if (the.ctx && the.pid != getpid())
        PyErr_Format(PyExc_RuntimeError, "%s: belongs to process %d, this is a fork of it", what,
                     (int)the.pid);
    else
        PyErr_Format(PyExc_RuntimeError, "%s: belongs to a process group that has ended", what);
    return false;
}

bool adlpy_enter(const char *what)
{
    if (the.inside) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: not while %s is under way (in another thread, or around this callback)",
                     what, the.inside);
        return false;
    }
    the.inside = what;
    return true;
}

void adlpy_leave(void)
{
    the.inside = NULL;
}

bool adlpy_inside(void)
{
    return the.inside != NULL;
}

void adlpy_share(void)
{
    the.sharing++;
}

void adlpy_unshare(void)
{
    the.sharing--;
}

/* ---- forks --------------------------------------------------------------------------------------- */

static void ignore(int number)
{
    (void)number;
}

/* SIGTERM ends a worker only when its parent sends it (multiprocessing's terminate): whoever stops the
 * program by a signal to all its processes means the program, which needs its workers until its step
 * ends. */
static void parents_only(int number, siginfo_t *info, void *more)
{
    if (info->si_code > 0 || info->si_pid != getppid())
        return;
    if (the.before_term.sa_flags & SA_SIGINFO) {
        the.before_term.sa_sigaction(number, info, more);
        return;
    }
    sigaction(SIGTERM, &the.before_term, NULL);
    raise(number); /* delivered when this handler returns */
}

/* Handlers, not SIG_IGN, which programs started by the child would inherit. */
static void leave_signals_to_parent(void)
{
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    action.sa_sigaction = parents_only;
    action.sa_flags |= SA_SIGINFO;
    sigaction(SIGTERM, &action, NULL);
}

/* In the child. */
static void after_fork(void)
{
    if (the.ctx && the.signals)
        leave_signals_to_parent();
}

static PyObject *worker_signals(PyObject *self, PyObject *args)
{
    (void)self;
    int parent = 0;
    struct sigaction now;
    if (!PyArg_ParseTuple(args, "|i", &parent))
        return NULL;
    /* A worker has its parent's sockets: while it lives, others do not see that the parent has died. */
    if (parent > 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() != parent)
        return PyErr_SetNone(PyExc_SystemExit), NULL;
    sigaction(SIGTERM, NULL, &now);
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != parents_only)
        the.before_term = now; /* PyTorch's own: leaves quietly when the parent asks */
    leave_signals_to_parent();
    Py_RETURN_NONE;
}

/* ---- exit ----------------------------------------------------------------------------------------- */

static PyObject *context_exit(PyObject *self, PyObject *unused);

/* Registered when there is something to end, not at import: atexit runs the last registered first, and
 * what the states need at the end (torch, CUDA) was imported earlier. */
int adlpy_at_exit(void)
{
    static PyMethodDef method = {"context_exit", context_exit, METH_NOARGS, NULL};
    static bool registered;
    if (registered)
        return 0;
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *function = atexit ? PyCFunction_New(&method, NULL) : NULL;
    PyObject *done = function ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;
    registered = done != NULL;
    Py_XDECREF(done);
    Py_XDECREF(function);
    Py_XDECREF(atexit);
    return registered ? 0 : -1;
}

/* ---- start --------------------------------------------------------------------------------------- */

static int read_env(const adlpy_start *start, adl_env *env)
{
    adl_status status = adli_env_load(env);
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    if (start->master_addr)
        env->master_addr = start->master_addr;
    if (start->master_port >= 0)
        env->master_port = start->master_port;
    if (start->rank >= 0)
        env->rank = start->rank;
    if (start->replicas >= 0) {
        if (env->nodes > start->replicas)
            env->nodes = start->replicas;
        env->replicas = start->replicas;
    }
    if (env->nodes == 0)
        env->nodes = env->replicas;
    return 0;
}

static int make(const adlpy_start *start, bool implicit)
{
    adl_options options = ADL_OPTIONS_INIT;
    adl_env env;
    adl_context *ctx = NULL;
    adl_status status;
    if (read_env(start, &env) != 0 || adlpy_at_exit() != 0)
        return -1;
    bool alone = implicit && env.replicas > 1;
    if (alone) { /* what was saved can be read before the others are there */
        options.reads_only = env.rank > 0;
        env.rank = 0;
        env.replicas = env.nodes = 1;
        env.supervisor_url = NULL;
    }
    options.env = &env;
    options.program = start->program;
    /* Also without: while the replicas come together a signal must be able to end the waiting. */
    options.handle_signals = start->signals || env.replicas > 1;
    sigaction(SIGTERM, NULL, &the.before_term);
    the.starting = true;
    ADLPY_UNLOCKED({
        status = adl_init(&options, &ctx);
        if (status == ADL_OK && !start->signals)
            adli_signals_remove(ctx);
    });
    the.starting = false;
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    the.ctx = ctx;
    the.implicit = implicit;
    the.alone = alone;
    the.signals = start->signals;
    the.pid = getpid();
    the.serial++;
    adlpy_callback_forget();
    status = adlpy_original_adopt(ctx);
    if (status == ADL_OK)
        status = adlpy_states_attach(ctx);
    if (status == ADL_OK)
        return 0;
    PyObject *type, *value, *trace;
    adlpy_raise(adl_context_fail(ctx, status));
    PyErr_Fetch(&type, &value, &trace);
    adlpy_context_finish(NULL);
    PyErr_Restore(type, value, trace);
    return -1;
}

/* A context that nobody asked for makes way, or becomes the one that is asked for now. */
static int replace_implicit(const adlpy_start *start)
{
    adl_env env;
    if (read_env(start, &env) != 0)
        return -1;
    if (env.replicas == 1 && env.rank == 0 && !start->program) {
        sigaction(SIGTERM, NULL, &the.before_term);
        adl_status status = start->signals ? adli_signals_install(the.ctx) : ADL_OK;
        if (status != ADL_OK) {
            adlpy_raise(status);
            return -1;
        }
        the.signals = start->signals;
        the.implicit = false;
        return 1;
    }
    adli_fail(ADL_ESTATE, "replaced");
    adl_context_fail(the.ctx, ADL_EINTR); /* not to be saved: it is not the training's end */
    return adlpy_context_finish(NULL) == 0 ? 0 : -1;
}

int adlpy_context_start(const adlpy_start *start)
{
    if (the.starting || (the.finishing && the.pid == getpid()) ||
        (adlpy_context_peek() && !the.implicit)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "already initialized; call adaptdl.collective.teardown() first");
        return -1;
    }
    if (the.ctx && the.pid != getpid()) {
        the.ctx = NULL; /* the parent's: its memory stays, its threads are not here */
        the.inside = NULL;
        the.sharing = 0;
        the.finishing = false;
        adlpy_states_detach();
    }
    if (the.ctx) {
        int replaced = replace_implicit(start);
        if (replaced != 0)
            return replaced < 0 ? -1 : 0;
    }
    return make(start, false);
}

adl_context *adlpy_context_started(void)
{
    adl_context *ctx = adlpy_context_peek();
    if (ctx && !the.implicit)
        return ctx;
    PyErr_SetString(PyExc_RuntimeError,
                    "not initialized: call adaptdl.torch.init_process_group() or "
                    "adaptdl.collective.initialize() first");
    return NULL;
}

adl_context *adlpy_context(void)
{
    adlpy_start start = ADLPY_START_INIT;
    if (adlpy_context_peek())
        return the.ctx;
    if (the.ctx || the.starting) {
        PyErr_SetString(PyExc_RuntimeError,
                        the.starting    ? "another thread is initializing"
                        : the.finishing ? "another thread is leaving the process group"
                                        : "this process is a fork of the one that was initialized");
        return NULL;
    }
    return make(&start, true) == 0 ? the.ctx : NULL;
}

adl_context *adlpy_context_joined(void)
{
    adl_context *ctx = adlpy_context_peek();
    adl_env env;
    adlpy_start start = ADLPY_START_INIT;
    if (ctx)
        return the.alone ? adlpy_context_started() : ctx;
    if (read_env(&start, &env) != 0)
        return NULL;
    return env.replicas > 1 ? adlpy_context_started() : adlpy_context();
}

bool adlpy_context_env(adl_env *out, unsigned *generation)
{
    if (!adlpy_context_peek() || the.implicit)
        return false;
    const adli_world *world = &the.ctx->world;
    *out = *adl_context_env(the.ctx);
    out->rank = world->rank;
    out->replicas = world->replicas;
    out->nodes = world->nodes;
    out->master_addr = world->master_addr;
    out->master_port = world->master_port;
    *generation = world->generation;
    return true;
}

/* ---- end ----------------------------------------------------------------------------------------- */

int adlpy_context_finish(int *code)
{
    adl_context *ctx = adlpy_context_peek();
    int result = -1;
    if (code)
        *code = -1;
    if (!ctx)
        return 0;
    if (the.sharing > 0) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a collective");
        return -1;
    }
    if (!adlpy_enter("finishing"))
        return -1;
    adlpy_callback_forget();
    the.finishing = true;
    the.finisher = pthread_self();
    ADLPY_UNLOCKED(result = adl_finish(ctx));
    the.finishing = false;
    the.ctx = NULL;
    the.signals = the.implicit = the.alone = false;
    adlpy_states_detach();
    adlpy_leave();
    if (code)
        *code = result;
    return 0;
}

static PyObject *context_start(PyObject *self, PyObject *args, PyObject *keywords)
{
    (void)self;
    static char *names[] = {"master_addr", "master_port", "replica_rank", "num_replicas", "signals",
                            "program",     NULL};
    adlpy_start start = ADLPY_START_INIT;
    PyObject *port = Py_None, *rank = Py_None, *replicas = Py_None;
    int signals = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|zOOOpz", names, &start.master_addr, &port,
                                     &rank, &replicas, &signals, &start.program))
        return NULL;
    const struct {
        PyObject *from;
        const char *name;
        int least, most;
        int *to;
    } numbers[] = {{port, "master_port", 0, 65535, &start.master_port},
                   {rank, "replica_rank", 0, 1 << 20, &start.rank},
                   {replicas, "num_replicas", 1, 1 << 20, &start.replicas}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].from == Py_None)
            continue;
        PyObject *whole = PyNumber_Index(numbers[i].from);
        if (!whole)
            return NULL;
        int overflow = 0;
        long value = PyLong_AsLongAndOverflow(whole, &overflow);
        Py_DECREF(whole);
        if (overflow || value < numbers[i].least || value > numbers[i].most)
            return PyErr_Format(PyExc_ValueError, "%s must be from %d to %d", numbers[i].name,
                                numbers[i].least, numbers[i].most);
        *numbers[i].to = (int)value;
    }
    start.signals = signals != 0;
    return adlpy_context_start(&start) == 0 ? adlpy_ref(Py_None) : NULL;
}

static PyObject *context_finish(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    int code;
    if (!adlpy_context_started() || adlpy_context_finish(&code) != 0)
        return NULL;
    return PyLong_FromLong(code);
}

/* The interpreter ends. A program that died of an exception has not finished its training: the other
 * replicas are told, and no last checkpoint is made of a state nobody knows. */
static PyObject *context_exit(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    adlpy_groups_exit();
    if (!ctx)
        return adlpy_ref(Py_None);
    PyObject *died = PySys_GetObject("last_type");
    if (the.implicit) {
        adli_fail(ADL_EINTR, "exit");
        adl_context_fail(ctx, ADL_EINTR); /* it only saves when asked */
    } else if (died && died != Py_None) {
        PyObject *name = PyObject_GetAttrString(died, "__name__");
        PyObject *bytes = name ? PyUnicode_AsUTF8String(name) : NULL;
        adl_context_failf(ctx, ADL_ESTATE, "the program ended with %s",
                          bytes ? PyBytes_AsString(bytes) : "an exception");
        Py_XDECREF(bytes);
        Py_XDECREF(name);
        PyErr_Clear();
    }
    return adlpy_context_finish(NULL) == 0 ? adlpy_ref(Py_None) : NULL;
}

static PyObject *context_state(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const char *text = !adlpy_context_peek() ? "none" : the.implicit ? "implicit" : "started";
    return PyUnicode_FromString(text);
}

static PyMethodDef functions[] = {
    {"context_start", ADLPY_KEYWORDS(context_start),
     "context_start(master_addr=None, master_port=None, replica_rank=None, num_replicas=None, "
     "signals=False, program=None)\n--\n\nStarts the process's context."},
    {"context_finish", context_finish, METH_NOARGS,
     "context_finish()\n--\n\nEnds it; the exit code of the training."},
    {"worker_signals", worker_signals, METH_VARARGS,
     "worker_signals(parent=0, /)\n--\n\nIn a worker process: SIGINT and SIGTERM are for the "
     "program "
     "alone. It ends with its parent, if that is given."},
    {"context_exit", context_exit, METH_NOARGS,
     "context_exit()\n--\n\nWhat happens when the interpreter ends."},
    {"context_state", context_state, METH_NOARGS,
     "context_state()\n--\n\n\"none\", \"implicit\" or \"started\"."},
    {NULL, NULL, 0, NULL},
};

int adlpy_context_setup(PyObject *module)
{
    static bool hooked;
    if (!hooked && pthread_atfork(NULL, NULL, after_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    hooked = true;
    return adlpy_add_functions(module, functions);
}
