/* Other replicas while the program runs: what adaptdl.torch._world asks the library when torch.distributed's group has
 * to follow the job's (src/train/regroup.h). */
#include "torch.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "train/context.h"
#include "train/regroup.h"
#include "train/replay.h"

#include <stdlib.h>
#include <time.h>

static PyObject *joining(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const adl_context *ctx = adlpy_context_peek();
    return PyBool_FromLong(ctx && ctx->joining);
}

static PyObject *recovers(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const adl_context *ctx = adlpy_context_peek();
    return PyBool_FromLong(ctx && ctx->recovers);
}

static PyObject *lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const adl_context *ctx = adlpy_context_peek();
    return PyBool_FromLong(ctx && ctx->lost);
}

static PyObject *unlogged(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    if (ctx)
        adli_regroup_unlogged(ctx);
    return adlpy_ref(Py_None);
}

/* Until the group shows that it has failed, for so long at most. */
static adl_status look(adl_context *ctx, double patience_s)
{
    double until_s = adli_monotonic_s() + patience_s;
    adl_status status;
    while ((status = adl_group_check(ctx->group)) == ADL_OK && adli_monotonic_s() < until_s) {
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    return status;
}

static PyObject *void_step(PyObject *self, PyObject *args)
{
    (void)self;
    double patience_s;
    adl_context *ctx = adlpy_context_peek();
    if (!PyArg_ParseTuple(args, "d", &patience_s))
        return NULL;
    if (!ctx || !ctx->recovers)
        return PyBool_FromLong(0);
    if (!adlpy_enter("backward"))
        return NULL;
    adl_status status = ADL_OK;
    if (!ctx->lost)
        ADLPY_UNLOCKED(status = look(ctx, patience_s));
    bool is_void = adli_lost(ctx, status);
    adlpy_leave();
    return PyBool_FromLong(is_void);
}

/* For another thread. The lock is held and nobody is in the library, so the owner is elsewhere, and waits. */
static PyObject *peers_lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    bool gone = ctx && !adlpy_inside() && ctx->recovers && adl_group_check(ctx->group) == ADL_EPEER;
    return PyBool_FromLong(gone);
}

static PyObject *hurry(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    return PyBool_FromLong(ctx && !adlpy_inside() && adli_regroup_hurry(ctx));
}

/* Rank 0 tells the others a number. Not in the log of the program's calls. */
static adl_status tell_all(adl_context *ctx, uint32_t *number)
{
    uint8_t bytes[4];
    void *got = NULL;
    size_t length = 0;
    adli_put(bytes, *number, 4);
    ctx->quiet++;
    adl_status status = adl_group_broadcast(ctx->group, bytes, sizeof bytes, &got, &length);
    ctx->quiet--;
    if (status == ADL_OK && length == sizeof bytes) {
        adli_reader reader = adli_reader_over(got, length);
        *number = (uint32_t)adli_get(&reader, 4);
    }
    free(got);
    return status;
}

static PyObject *tell(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned number;
    adl_context *ctx = adlpy_context_started();
    if (!ctx || !PyArg_ParseTuple(args, "I", &number) || !adlpy_enter("init_process_group"))
        return NULL;
    uint32_t told = number;
    adl_status status = ADL_OK;
    if (!ctx->lost)
        ADLPY_UNLOCKED(status = tell_all(ctx, &told));
    bool is_lost = ctx->lost || (status != ADL_OK && adli_lost(ctx, status));
    adlpy_leave();
    if (is_lost)
        return adlpy_ref(Py_None);
    return status == ADL_OK ? PyLong_FromUnsignedLong(told)
                            : adlpy_raise(adl_context_fail(ctx, status));
}

/* A process that has still to join the others does so here, and has their states then. */
static PyObject *join(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_started();
    if (!ctx)
        return NULL;
    if (!ctx->joining)
        return adlpy_ref(Py_None);
    if (!adlpy_enter("joining"))
        return NULL;
    adl_status status;
    adlpy_callback_forget();
    ADLPY_UNLOCKED(status = adl_context_fail(ctx, adli_join(ctx)));
    adlpy_leave();
    return status == ADL_OK ? adlpy_ref(Py_None) : adlpy_raise_stopped(ctx);
}

static adl_status meet_all(adl_context *ctx)
{
    int64_t none = 0;
    ctx->quiet++;
    adl_status status = adl_group_allreduce(ctx->group, &none, 1, ADL_TYPE_I64, ADL_REDUCE_OR);
    ctx->quiet--;
    return status;
}

/* Returns when all have called. Not in the log: one that joins later does not call. */
static PyObject *meet(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_started();
    if (!ctx || !adlpy_enter("a meeting of all replicas"))
        return NULL;
    adl_status status;
    ADLPY_UNLOCKED(status = meet_all(ctx));
    adlpy_leave();
    return status == ADL_OK ? adlpy_ref(Py_None) : adlpy_raise(adl_context_fail(ctx, status));
}

static PyObject *calls_mark(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const adl_context *ctx = adlpy_context_peek();
    return PyLong_FromSize_t(ctx ? adli_replay_mark(ctx->replay) : 0);
}

static PyObject *calls_cut(PyObject *self, PyObject *mark)
{
    (void)self;
    const adl_context *ctx = adlpy_context_peek();
    size_t place = PyLong_AsSize_t(mark);
    if (PyErr_Occurred())
        return NULL;
    if (ctx)
        adli_replay_cut(ctx->replay, place);
    return adlpy_ref(Py_None);
}

/* What is held, once for each time; not even the interpreter's end frees it. */
static PyObject *held;

static PyObject *hold(PyObject *self, PyObject *object)
{
    (void)self;
    if (!held && !(held = PyList_New(0)))
        return NULL;
    return PyList_Append(held, object) == 0 ? adlpy_ref(Py_None) : NULL;
}

static PyObject *release(PyObject *self, PyObject *object)
{
    (void)self;
    for (Py_ssize_t i = held ? PyList_Size(held) : 0; i-- > 0;)
        if (PyList_GetItem(held, i) == object)
            return PySequence_DelItem(held, i) == 0 ? adlpy_ref(Py_None) : NULL;
    return adlpy_ref(Py_None); /* never held, or released already */
}

static PyMethodDef functions[] = {
    {"joining", joining, METH_NOARGS,
     "joining()\n--\n\nHas this process still to join the others?"},
    {"recovers", recovers, METH_NOARGS,
     "recovers()\n--\n\nCan the loss of a replica be survived here?"},
    {"lost", lost, METH_NOARGS, "lost()\n--\n\nIs the present step void, for want of a replica?"},
    {"unlogged", unlogged, METH_NOARGS,
     "unlogged()\n--\n\nThe program has made collective calls elsewhere."},
    {"void_step", void_step, METH_VARARGS,
     "void_step(patience, /)\n--\n\nHas a replica been lost? Then the step is void."},
    {"peers_lost", peers_lost, METH_NOARGS,
     "peers_lost()\n--\n\nThe same, asked by another thread; nothing comes of it."},
    {"hurry", hurry, METH_NOARGS,
     "hurry()\n--\n\nTells the launcher of a loss, where the program itself cannot."},
    {"tell", tell, METH_VARARGS,
     "tell(number, /)\n--\n\nThat of rank 0; None when a replica was lost."},
    {"join", join, METH_NOARGS,
     "join()\n--\n\nA process that has still to join the others does so here."},
    {"meet", meet, METH_NOARGS,
     "meet()\n--\n\nReturns when all replicas have called; one that joins later does not."},
    {"calls_mark", calls_mark, METH_NOARGS,
     "calls_mark()\n--\n\nA place in the log of collective calls."},
    {"calls_cut", calls_cut, METH_O,
     "calls_cut(mark, /)\n--\n\nWhat was called since is passed over by whoever joins."},
    {"hold", hold, METH_O, "hold(object, /)\n--\n\nIt is not freed before release."},
    {"release", release, METH_O, "release(object, /)\n--\n\nAfter hold."},
    {NULL, NULL, 0, NULL},
};

int adlpy_world_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
