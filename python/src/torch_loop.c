/* Epochs and loops over data for Python's iterators. Misuse (nested loops) is asked about before the
 * library is called: in C it stops the context, in Python it is an exception after which the program may
 * go on. Loops outside the epochs are allowed here. */
#include "torch.h"

#include "adaptdl/epoch.h"
#include "train/loop.h"

#include <limits.h>

/* ---- epochs -------------------------------------------------------------------------------------- */

typedef struct epochs_object {
    adlpy_handle handle;
    adl_epochs loop;
    bool inside;
} epochs_object;

static int epochs_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    epochs_object *self = (epochs_object *)object;
    static char *names[] = {"until", NULL};
    int until;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &until))
        return -1;
    adl_context *ctx = adlpy_context();
    if (!ctx)
        return -1;
    if (adl_current_epoch(ctx) >= 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "a loop over epochs inside another one (in epoch %d): overlapping epoch loops",
                     adl_current_epoch(ctx));
        return -1;
    }
    self->handle.serial = adlpy_serial();
    self->loop = adl_epochs_begin(ctx, until);
    return 0;
}

/* Its number, or None. A new process meets the others here. */
static PyObject *next_epoch(epochs_object *self, adl_context *ctx)
{
    bool more;
    adlpy_callback_forget();
    ADLPY_UNLOCKED(more = adl_epochs_next(&self->loop));
    if (adl_stopped(ctx))
        return adlpy_raise_stopped(ctx);
    if (!more || !adl_epochs_enter(&self->loop))
        return adlpy_ref(Py_None);
    self->inside = true;
    return PyLong_FromLong(self->loop.number);
}

static PyObject *epochs_next(PyObject *object, PyObject *unused)
{
    (void)unused;
    epochs_object *self = (epochs_object *)object;
    adl_context *ctx = adlpy_handle_enter(object, "epochs");
    if (!ctx)
        return NULL;
    PyObject *result = NULL;
    if (adl_stopped(ctx))
        result = adlpy_raise_stopped(ctx);
    else if (!self->inside && adl_current_epoch(ctx) >= 0)
        PyErr_Format(PyExc_RuntimeError, "overlapping epoch loops (in epoch %d)",
                     adl_current_epoch(ctx));
    else
        result = next_epoch(self, ctx);
    adlpy_leave();
    return result;
}

static PyObject *epochs_leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    epochs_object *self = (epochs_object *)object;
    if (self->inside && adlpy_context_peek() && adlpy_serial() == self->handle.serial)
        adl_epochs_leave(&self->loop);
    self->inside = false;
    return adlpy_ref(Py_None);
}

static PyMethodDef epochs_methods[] = {
    {"next", epochs_next, METH_NOARGS, "next()\n--\n\nEnters the next epoch: its number, or None."},
    {"leave", epochs_leave, METH_NOARGS, "leave()\n--\n\nThe epoch's body was left."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot epochs_slots[] = {{Py_tp_new, adlpy_handle_new},
                                     {Py_tp_init, epochs_init},
                                     {Py_tp_dealloc, adlpy_handle_dealloc},
                                     {Py_tp_methods, epochs_methods},
                                     {Py_tp_doc, "Epochs(until)\n--\n\nThe loop over epochs."},
                                     {0, NULL}};
static PyType_Spec epochs_spec = {"adaptdl._core.Epochs", sizeof(epochs_object), 0,
                                  Py_TPFLAGS_DEFAULT, epochs_slots};

static PyObject *current_epoch(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    int epoch = ctx ? adl_current_epoch(ctx) : -1;
    return epoch < 0 ? adlpy_ref(Py_None) : PyLong_FromLong(epoch);
}

static PyObject *finished_epochs(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    return ctx ? PyLong_FromLong(adl_finished_epochs(ctx)) : NULL;
}

/* ---- loops --------------------------------------------------------------------------------------- */

typedef struct loop_object {
    adlpy_handle handle;
    adl_loop *loop;
    size_t examples;
} loop_object;

static int loop_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    loop_object *self = (loop_object *)object;
    static char *names[] = {"name", "batch_size", NULL};
    const char *name;
    int batch_size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "si", names, &name, &batch_size))
        return -1;
    adl_context *ctx = adlpy_context_joined();
    if (!ctx || !adlpy_enter("a data loader"))
        return -1;
    /* Without a length as yet: a saved place is taken over whatever the length was. */
    adl_status status = adl_loop_new(ctx, name, 0, batch_size, &self->loop);
    adlpy_leave();
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    adl_loop_anywhere(self->loop);
    self->handle.serial = adlpy_serial();
    return 0;
}

/* The place of an interrupted loop as another package has saved it. */
static PyObject *loop_restore(PyObject *object, PyObject *args)
{
    unsigned long long index, end_index;
    adli_loop_place place;
    if (!PyArg_ParseTuple(args, "KKiii", &index, &end_index, &place.done_epoch, &place.done_loops,
                          &place.done_outside) ||
        !adlpy_handle_alive(object, "a data loader"))
        return NULL;
    place.index = index;
    place.end_index = end_index;
    adli_loop_restore(((loop_object *)object)->loop, &place);
    return adlpy_ref(Py_None);
}

static PyObject *loop_free(PyObject *object, PyObject *unused)
{
    (void)unused;
    loop_object *self = (loop_object *)object;
    adl_context *ctx = adlpy_context_peek();
    if (self->loop && ctx && adlpy_serial() == self->handle.serial &&
        adl_current_loop(ctx) != self->loop && adlpy_enter("a data loader")) {
        adl_loop_free(self->loop);
        self->loop = NULL;
        self->handle.serial = 0;
        adlpy_leave();
    }
    PyErr_Clear();
    return adlpy_ref(Py_None);
}

static PyObject *loop_autoscale(PyObject *object, PyObject *args)
{
    int max_batch_size, min_local, max_local, accumulation;
    if (!PyArg_ParseTuple(args, "iiip", &max_batch_size, &min_local, &max_local, &accumulation) ||
        !adlpy_handle_enter(object, "autoscale_batch_size"))
        return NULL;
    adl_status status = adl_loop_autoscale(((loop_object *)object)->loop, max_batch_size, min_local,
                                           max_local, accumulation != 0);
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *begin(loop_object *self, adl_context *ctx)
{
    bool run = false;
    adl_loop *current = adl_current_loop(ctx);
    if (adl_stopped(ctx))
        return adlpy_raise_stopped(ctx);
    if (current)
        return PyErr_Format(PyExc_RuntimeError, "%s: overlapping data loader loops (inside %s)",
                            adl_loop_name(self->loop), adl_loop_name(current));
    adl_loop_set_examples(self->loop, self->examples);
    adl_status status;
    adlpy_callback_forget();
    ADLPY_UNLOCKED(status = adl_loop_begin(self->loop, &run));
    if (status != ADL_OK)
        return adlpy_raise_stopped(ctx);
    return PyBool_FromLong(run);
}

/* begin(examples): as long as the data is now. */
static PyObject *loop_begin(PyObject *object, PyObject *args)
{
    Py_ssize_t examples;
    if (!PyArg_ParseTuple(args, "n", &examples))
        return NULL;
    if (examples < 0)
        return PyErr_Format(PyExc_ValueError, "examples must not be negative");
    ((loop_object *)object)->examples = (size_t)examples;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    PyObject *result = begin((loop_object *)object, ctx);
    adlpy_leave();
    return result;
}

static PyObject *loop_choose(PyObject *object, PyObject *unused)
{
    (void)unused;
    loop_object *self = (loop_object *)object;
    int local_bsz = 0, accum_steps = 0;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    adl_status status;
    ADLPY_UNLOCKED(status = adl_loop_pass(self->loop, &local_bsz, &accum_steps));
    PyObject *result = status == ADL_OK ? PyLong_FromLong(local_bsz) : adlpy_raise_stopped(ctx);
    adlpy_leave();
    return result;
}

static PyObject *loop_batches(PyObject *object, PyObject *drop_last)
{
    int drop = PyObject_IsTrue(drop_last);
    if (drop < 0 || !adlpy_handle_alive(object, "a data loader"))
        return NULL;
    return PyLong_FromLongLong(adl_loop_batches(((loop_object *)object)->loop, drop != 0));
}

enum { GO, PLAN, PASSED };

/* To the boundary of the next batch, whatever has become of the world there. -1: stopped. */
static int stand_ready(adl_loop *loop, bool passed, bool follows)
{
    bool again;
    for (;;) {
        if (passed || loop->finished || loop->at_end) {
            if (!adli_loop_passed(loop, &again))
                return -1;
            return again ? PLAN : PASSED;
        }
        if (!follows)
            return GO; /* adl_loop_step has the boundary then */
        if (!adl_loop_ready(loop, &again))
            return -1;
        if (!again)
            return GO;
        if (!loop->at_end)
            return PLAN;
    }
}

static PyObject *loop_advance(PyObject *object, PyObject *args)
{
    loop_object *self = (loop_object *)object;
    int passed, follows, what;
    if (!PyArg_ParseTuple(args, "pp", &passed, &follows))
        return NULL;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    adlpy_callback_forget();
    ADLPY_UNLOCKED(what = stand_ready(self->loop, passed != 0, follows != 0));
    PyObject *result = what >= 0 ? PyLong_FromLong(what) : adlpy_raise_stopped(ctx);
    adlpy_leave();
    return result;
}

static PyObject *loop_step(PyObject *object, PyObject *args)
{
    loop_object *self = (loop_object *)object;
    int size, last;
    if (!PyArg_ParseTuple(args, "ip", &size, &last))
        return NULL;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    bool run;
    ADLPY_UNLOCKED(run = adl_loop_step(self->loop, size, last != 0));
    PyObject *result = run ? adlpy_ref(Py_None) : adlpy_raise_stopped(ctx);
    adlpy_leave();
    return result;
}

static PyObject *loop_commit(PyObject *object, PyObject *unused)
{
    (void)unused;
    loop_object *self = (loop_object *)object;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    bool more = adl_loop_commit(self->loop, adli_loop_consumed(self->loop));
    PyObject *result = adl_stopped(ctx) ? adlpy_raise_stopped(ctx) : PyBool_FromLong(more);
    adlpy_leave();
    return result;
}

static PyObject *loop_more(PyObject *object, PyObject *unused)
{
    (void)unused;
    adl_context *ctx = adlpy_handle_enter(object, "a data loader");
    if (!ctx)
        return NULL;
    bool more = adl_loop_more(((loop_object *)object)->loop);
    PyObject *result = adl_stopped(ctx) ? adlpy_raise_stopped(ctx) : PyBool_FromLong(more);
    adlpy_leave();
    return result;
}

static PyObject *loop_end(PyObject *object, PyObject *unused)
{
    (void)unused;
    loop_object *self = (loop_object *)object;
    if (self->loop && adlpy_context_peek() && adlpy_serial() == self->handle.serial)
        adl_loop_end(self->loop);
    return adlpy_ref(Py_None);
}

static PyObject *loop_train(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!adlpy_handle_enter(object, "train"))
        return NULL;
    adl_status status = adl_loop_train(((loop_object *)object)->loop);
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *loop_rewinds(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!adlpy_handle_alive(object, "a data loader"))
        return NULL;
    ((loop_object *)object)->loop->rewinds = true;
    return adlpy_ref(Py_None);
}

static PyObject *loop_add_sync(PyObject *object, PyObject *value)
{
    double seconds = PyFloat_AsDouble(value);
    if (PyErr_Occurred() || !adlpy_handle_alive(object, "a data loader"))
        return NULL;
    if (seconds > 0)
        adl_loop_add_sync(((loop_object *)object)->loop, seconds);
    return adlpy_ref(Py_None);
}

static PyObject *loop_set_sizes(PyObject *object, PyObject *args)
{
    int local_bsz, accum_steps;
    if (!PyArg_ParseTuple(args, "ii", &local_bsz, &accum_steps) ||
        !adlpy_handle_alive(object, "a data loader"))
        return NULL;
    adl_status status = adl_loop_set_sizes(((loop_object *)object)->loop, local_bsz, accum_steps);
    return adlpy_none(status);
}

static PyObject *loop_no_profile(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!adlpy_handle_alive(object, "a data loader"))
        return NULL;
    adl_loop_no_profile(((loop_object *)object)->loop);
    return adlpy_ref(Py_None);
}

/* ---- what a loop knows --------------------------------------------------------------------------- */

static PyObject *loop_alive(PyObject *object, void *unused)
{
    (void)unused;
    uint64_t serial = ((adlpy_handle *)object)->serial;
    return PyBool_FromLong(serial && adlpy_context_peek() && adlpy_serial() == serial);
}

enum { BACK, INDEX, END, BATCH, LOCAL, ACCUM, OPTIM, TRAINING, OUTSIDE, DEAL };

static PyObject *loop_get(PyObject *object, void *which)
{
    if (!adlpy_handle_alive(object, "a data loader"))
        return NULL;
    adl_loop *loop = ((loop_object *)object)->loop;
    switch ((intptr_t)which) {
    case BACK: { /* no batch before it comes again */
        uint64_t began = loop->accumulated > 0 ? loop->step_index : loop->index;
        bool goes_back = loop->rewinds && !loop->trained && loop->mark_index < began;
        return PyLong_FromUnsignedLongLong(goes_back ? loop->mark_index : began);
    }
    case INDEX:
        return PyLong_FromUnsignedLongLong(adl_loop_index(loop));
    case END:
        return PyLong_FromUnsignedLongLong(adl_loop_end_index(loop));
    case BATCH:
        return PyLong_FromLong(adl_loop_batch_size(loop));
    case LOCAL:
        return PyLong_FromLong(adl_loop_local_bsz(loop));
    case ACCUM:
        return PyLong_FromLong(adl_loop_accum_steps(loop));
    case OPTIM:
        return PyBool_FromLong(adl_loop_optim_step(loop));
    case DEAL:
        return PyLong_FromLong(loop->deal);
    case OUTSIDE:
        return PyLong_FromLong(adl_loop_outside(loop));
    default:
        return PyBool_FromLong(adl_loop_training(loop));
    }
}

static int loop_set(PyObject *object, PyObject *value, void *which)
{
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "cannot be deleted");
        return -1;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred() || !adlpy_handle_alive(object, "a data loader"))
        return -1;
    if ((intptr_t)which == INDEX)
        adl_loop_set_index(((loop_object *)object)->loop, number);
    else
        adl_loop_set_end(((loop_object *)object)->loop, number);
    return 0;
}

static PyMethodDef loop_methods[] = {
    {"autoscale", loop_autoscale, METH_VARARGS,
     "autoscale(max_batch_size, min_local, max_local, accumulation, /)\n--\n\n0: no bound."},
    {"begin", loop_begin, METH_VARARGS,
     "begin(examples, /)\n--\n\nEnters; False: done before a restart."},
    {"restore", loop_restore, METH_VARARGS,
     "restore(index, end_index, done_epoch, done_loops, done_outside, /)\n--\n\nGoes there."},
    {"free", loop_free, METH_NOARGS, "free()\n--\n\nLater checkpoints are without it."},
    {"choose", loop_choose, METH_NOARGS, "choose()\n--\n\nA pass begins: the local batch size."},
    {"batches", loop_batches, METH_O,
     "batches(drop_last, /)\n--\n\nHow many the rest of the pass has."},
    {"advance", loop_advance, METH_VARARGS,
     "advance(passed, follows, /)\n--\n\nBefore each batch: 0 when it can be run, 1 when the rest "
     "of the pass is "
     "to be planned anew, 2 when the pass is over. passed: it had no more batches. follows: other "
     "replicas "
     "are no hindrance."},
    {"step", loop_step, METH_VARARGS,
     "step(size, last_of_pass, /)\n--\n\nA step boundary; raises SystemExit(143) to stop."},
    {"commit", loop_commit, METH_NOARGS, "commit()\n--\n\nA batch was consumed; False: enough."},
    {"more", loop_more, METH_NOARGS, "more()\n--\n\nIs another pass needed?"},
    {"end", loop_end, METH_NOARGS, "end()\n--\n\nLeaves the loop."},
    {"train", loop_train, METH_NOARGS, "train()\n--\n\nMakes this the training loop."},
    {"rewinds", loop_rewinds, METH_NOARGS,
     "rewinds()\n--\n\nAs long as it does not train its batches may come again, more than one."},
    {"add_sync", loop_add_sync, METH_O, "add_sync(seconds, /)\n--\n\nTime waited for gradients."},
    {"set_sizes", loop_set_sizes, METH_VARARGS,
     "set_sizes(local_bsz, accum_steps, /)\n--\n\nUntil the next pass."},
    {"no_profile", loop_no_profile, METH_NOARGS, "no_profile()\n--\n\nNot the present batch."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef loop_properties[] = {
    {"alive", loop_alive, NULL, "Is its context still there?", NULL},
    {"back", loop_get, NULL, "Where the loop goes on at the earliest if a replica dies.",
     (void *)BACK},
    {"index", loop_get, loop_set, "Examples consumed in this loop.", (void *)INDEX},
    {"end_index", loop_get, loop_set, "Where the loop ends; moves the index along.", (void *)END},
    {"batch_size", loop_get, NULL, "Total batch size.", (void *)BATCH},
    {"deal", loop_get, NULL, "What all replicas take at a time.", (void *)DEAL},
    {"local_bsz", loop_get, NULL, "Local batch size.", (void *)LOCAL},
    {"accum_steps", loop_get, NULL, "Accumulation steps.", (void *)ACCUM},
    {"optim_step", loop_get, NULL, "Does this batch end in a step?", (void *)OPTIM},
    {"training", loop_get, NULL, "Is it the training loop?", (void *)TRAINING},
    {"outside", loop_get, NULL, "Loops begun outside the epochs.", (void *)OUTSIDE},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot loop_slots[] = {
    {Py_tp_new, adlpy_handle_new},
    {Py_tp_init, loop_init},
    {Py_tp_dealloc, adlpy_handle_dealloc},
    {Py_tp_methods, loop_methods},
    {Py_tp_getset, loop_properties},
    {Py_tp_doc, "Loop(name, batch_size)\n--\n\nOne elastic loop over data."},
    {0, NULL}};
static PyType_Spec loop_spec = {"adaptdl._core.Loop", sizeof(loop_object), 0, Py_TPFLAGS_DEFAULT,
                                loop_slots};

static PyObject *check_bounds(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    int batch_size, max_batch_size, min_local, max_local;
    if (!PyArg_ParseTuple(args, "siiii", &name, &batch_size, &max_batch_size, &min_local,
                          &max_local))
        return NULL;
    return adlpy_none(
        adl_loop_check_bounds(name, batch_size, max_batch_size, min_local, max_local));
}

static PyObject *save_soon(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    if (!ctx)
        return NULL;
    adl_save(ctx);
    return adlpy_ref(Py_None);
}

static PyObject *stop_soon(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    if (!ctx)
        return NULL;
    adl_stop(ctx);
    return adlpy_ref(Py_None);
}

static PyMethodDef functions[] = {
    {"current_epoch", current_epoch, METH_NOARGS, "current_epoch()\n--\n\nNone outside."},
    {"finished_epochs", finished_epochs, METH_NOARGS, "finished_epochs()\n--\n\nSo far."},
    {"save_soon", save_soon, METH_NOARGS,
     "save_soon()\n--\n\nA checkpoint at the next step, in the background."},
    {"stop_soon", stop_soon, METH_NOARGS, "stop_soon()\n--\n\nAs if SIGTERM had arrived."},
    {"check_bounds", check_bounds, METH_VARARGS,
     "check_bounds(name, batch_size, max_batch_size, min_local, max_local, /)\n--\n\nValueError."},
    {NULL, NULL, 0, NULL},
};

int adlpy_loop_setup(PyObject *module)
{
    static PyObject *epochs, *loop;
    if (adlpy_add_functions(module, functions) != 0 ||
        adlpy_add_type(module, "Epochs", &epochs_spec, &epochs) != 0)
        return -1;
    return adlpy_add_type(module, "Loop", &loop_spec, &loop);
}
