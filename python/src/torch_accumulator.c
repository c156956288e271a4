/* Named sums over replicas and restarts, for adaptdl.torch.Accumulator. They are Python values (numbers, arrays,
 * tensors, whatever can be added), so this is not the library's accumulator, which sums doubles; the modes and the
 * replay after a restart are the same (adaptdl/accumulator.h tells them).
 *
 * Three dicts: `pending`, what this replica has added; `results`, what all replicas agree on; and, while a scope is
 * replayed after a restart, a copy of what it saw the first time. Values travel and are saved by value.c. */
#include "torch.h"

#include "adaptdl/epoch.h"
#include "train/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTSIDE_EPOCHS = -1 };

/* *at = with, whose reference is taken; the old one is given up last, as anything may run then. */
static void replace(PyObject **at, PyObject *with)
{
    PyObject *old = *at;
    *at = with;
    Py_XDECREF(old);
}

typedef struct sums_object {
    adlpy_handle handle;
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    PyObject *pending, *results;
    PyObject *visible; /* in a scope: results, or what is replayed */
    PyObject *history; /* list of (epoch, dict): what scopes outside data loops saw on entry */
    PyObject *failure; /* an exception of the merging, on rank 0 */
    adl_checkpoint_state *state;
    int epoch; /* in which it was made */
    int seen_epoch, seen, seen_outside, depth;
    bool restored, freed;
} sums_object;

/* ---- adding ---------------------------------------------------------------------------------------- */

static PyObject *copied(PyObject *value, const char *how)
{
    PyObject *copy = PyImport_ImportModule("copy");
    PyObject *result = copy ? PyObject_CallMethod(copy, how, "(O)", value) : NULL;
    Py_XDECREF(copy);
    return result;
}

/* A first amount: 0 + value, so that what the program does with its array later is not seen here. Lists, texts and
 * counters, which cannot be added to 0, are copied. */
static PyObject *first_amount(PyObject *value, bool minus)
{
    PyObject *zero = PyLong_FromLong(0);
    PyObject *sum = !zero   ? NULL
                    : minus ? PyNumber_Subtract(zero, value)
                            : PyNumber_Add(zero, value);
    Py_XDECREF(zero);
    if (!sum && !minus && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        sum = copied(value, "copy");
    }
    return sum;
}

/* Tensors are summed as numbers: without the graph that they are the end of. */
static PyObject *detached(PyObject *value)
{
    if (!PyObject_HasAttrString(value, "requires_grad"))
        return adlpy_ref(value);
    return PyObject_CallMethod(value, "detach", NULL);
}

/* dict[key] += value, or -=. */
static int accumulate(PyObject *dict, PyObject *key, PyObject *value, bool minus)
{
    PyObject *old = PyDict_GetItemWithError(dict, key), *sum = NULL; /* borrowed */
    if (!old && PyErr_Occurred())
        return -1;
    PyObject *amount = detached(value);
    if (!amount)
        return -1;
    if (!old)
        sum = first_amount(amount, minus);
    else
        sum = minus ? PyNumber_Subtract(old, amount) : PyNumber_Add(old, amount);
    Py_DECREF(amount);
    int result = sum ? PyDict_SetItem(dict, key, sum) : -1;
    Py_XDECREF(sum);
    return result;
}

static int add_all(PyObject *to, PyObject *from)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(from, &at, &key, &value)) {
        Py_INCREF(key);
        Py_INCREF(value);
        int result = accumulate(to, key, value, false);
        Py_DECREF(value);
        Py_DECREF(key);
        if (result != 0)
            return -1;
    }
    return 0;
}

/* A dict that a peer has sent. */
static PyObject *dict_of(const void *data, size_t length)
{
    PyObject *value = adlpy_value_decode(data, length);
    if (value && !PyDict_Check(value)) {
        PyErr_SetString(PyExc_ValueError, "a peer sent sums that are no dict");
        Py_CLEAR(value);
    }
    return value;
}

/* For the library, on rank 0: the sums of two replicas. */
static adl_status merge(void *user, const void *a, size_t a_length, const void *b, size_t b_length,
                        adl_reduced *out)
{
    sums_object *self = user;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *sum = dict_of(a, a_length), *more = sum ? dict_of(b, b_length) : NULL, *bytes = NULL;
    char *data;
    Py_ssize_t length;
    adl_status status;
    if (more && add_all(sum, more) == 0)
        bytes = adlpy_value_encode(sum);
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &length) == 0)
        status = adl_reduced_set(out, data, (size_t)length);
    else
        status = adlpy_callback_status(self->name, &self->failure);
    Py_XDECREF(bytes);
    Py_XDECREF(more);
    Py_XDECREF(sum);
    PyGILState_Release(lock);
    return status;
}

/* Everybody's pending sums into the results. Collective; the lock is held. ADL_EINVAL with a Python exception kept
 * when a value could not travel. */
static adl_status synchronize(sums_object *self, adl_context *ctx)
{
    PyObject *bytes = adlpy_value_encode(self->pending), *sum = NULL;
    char *data = NULL, name[64];
    Py_ssize_t length = 0;
    void *reduced = NULL;
    size_t reduced_length = 0;
    adl_status status;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0) {
        Py_XDECREF(bytes);
        return adlpy_callback_failed();
    }
    snprintf(name, sizeof name, "accumulator %.40s", self->name);
    ctx->quiet++; /* a process that joins has the results by the state */
    ADLPY_UNLOCKED(status = adl_group_reduce(adl_context_group(ctx), name, data, (size_t)length,
                                             merge, self, &reduced, &reduced_length));
    ctx->quiet--;
    Py_DECREF(bytes);
    Py_CLEAR(self->failure);
    if (status == ADL_OK) {
        sum = dict_of(reduced, reduced_length);
        if (!sum || add_all(self->results, sum) != 0)
            status = adlpy_callback_failed();
        else
            PyDict_Clear(self->pending);
    }
    Py_XDECREF(sum);
    free(reduced);
    return status;
}

/* ---- the checkpoint ---------------------------------------------------------------------------------- */

/* One of an epoch that is over does not come back, and replicas that have joined since do not have it. */
static adl_status sync_state(void *user)
{
    sums_object *self = user;
    if (self->epoch != OUTSIDE_EPOCHS && self->epoch < adlpy_context_peek()->finished_epochs)
        return ADL_OK;
    PyGILState_STATE lock = PyGILState_Ensure();
    adl_status status = synchronize(self, adlpy_context_peek());
    PyGILState_Release(lock);
    return status;
}

static adl_status save_state(void *user, adl_sink *sink)
{
    sums_object *self = user;
    adl_status status = ADL_OK;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *both = PyTuple_New(2), *bytes = NULL;
    char *data;
    Py_ssize_t length;
    if (both) {
        PyTuple_SetItem(both, 0, adlpy_ref(self->results));
        PyTuple_SetItem(both, 1, adlpy_ref(self->history));
        bytes = adlpy_value_encode(both);
    }
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0)
        status = adlpy_callback_failed();
    else
        ADLPY_UNLOCKED(status = adl_sink_write(sink, data, (size_t)length));
    Py_XDECREF(bytes);
    Py_XDECREF(both);
    PyGILState_Release(lock);
    return status;
}

/* (results, history) as they were saved: -1 with ValueError when it is something else. */
static int take(sums_object *self, PyObject *both)
{
    PyObject *results = NULL, *history = NULL;
    bool fine = PyTuple_Check(both) && PyArg_ParseTuple(both, "OO", &results, &history) &&
                PyDict_Check(results) && PyList_Check(history);
    for (Py_ssize_t i = 0; fine && i < PyList_Size(history); i++) {
        PyObject *entry = PyList_GetItem(history, i);
        fine = PyTuple_Check(entry) && PyTuple_Size(entry) == 2 &&
               PyLong_Check(PyTuple_GetItem(entry, 0)) && PyDict_Check(PyTuple_GetItem(entry, 1));
    }
    if (!fine) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "accumulator %s: what was saved is no accumulator",
                     self->name);
        return -1;
    }
    Py_INCREF(results);
    Py_INCREF(history);
    replace(&self->results, results);
    replace(&self->history, history);
    self->restored = true;
    return 0;
}

static adl_status load_state(void *user, adl_source *source)
{
    sums_object *self = user;
    size_t length = adl_source_remaining(source);
    const void *data = "";
    adl_status status = length ? adl_source_view(source, length, &data) : ADL_OK;
    if (status != ADL_OK)
        return status;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *both = adlpy_value_decode(data, length);
    if (!both || take(self, both) != 0)
        status = adlpy_callback_failed();
    Py_XDECREF(both);
    PyGILState_Release(lock);
    return status;
}

/* The context does not free it: it is Python's. */
static void keep(void *object)
{
    (void)object;
}

static bool unshared(const void *object)
{
    const sums_object *self = object;
    PyGILState_STATE lock = PyGILState_Ensure();
    bool some = self->pending && PyDict_Size(self->pending) > 0;
    PyGILState_Release(lock);
    return some;
}

static const adli_owned_ops owned = {.free = keep, .unshared = unshared};

static adl_status attach(sums_object *self, adl_context *ctx)
{
    char state[ADL_CHECKPOINT_NAME_MAX + 32];
    adl_checkpoint_functions functions = {sizeof functions, save_state, load_state, sync_state};
    adl_checkpoint *store = adl_context_store(ctx);
    snprintf(state, sizeof state, "adaptdl.sums.%s", self->name);
    adl_status status = adl_checkpoint_register(store, state, &functions, self, &self->state);
    if (status == ADL_OK)
        status = adl_checkpoint_load_state(store, self->state, NULL);
    if (status == ADL_OK)
        status = adli_context_own(ctx, self, &owned);
    if (status != ADL_OK) {
        adl_checkpoint_unregister(store, self->state);
        self->state = NULL;
    }
    return status;
}

/* ---- the object -------------------------------------------------------------------------------------- */

static int sums_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    sums_object *self = (sums_object *)object;
    static char *names[] = {"name", "initial", "epoch", NULL};
    const char *name;
    PyObject *initial;
    int epoch = OUTSIDE_EPOCHS;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!|i", names, &name, &PyDict_Type, &initial,
                                     &epoch))
        return -1;
    if (self->handle.serial) {
        PyErr_SetString(PyExc_RuntimeError, "accumulator: it was initialized");
        return -1;
    }
    adl_context *ctx = adlpy_context_joined();
    if (!ctx)
        return -1;
    snprintf(self->name, sizeof self->name, "%s", name);
    self->epoch = epoch;
    self->seen_epoch = OUTSIDE_EPOCHS;
    replace(&self->pending, PyDict_New());
    replace(&self->results, PyDict_Copy(initial));
    replace(&self->history, PyList_New(0));
    if (!self->pending || !self->results || !self->history || !adlpy_enter("an accumulator"))
        return -1;
    adlpy_callback_forget();
    adl_status status;
    ADLPY_UNLOCKED(status = attach(self, ctx));
    adlpy_leave();
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    self->handle.serial = adlpy_serial();
    return 0;
}

static bool present(sums_object *self)
{
    return self->handle.serial && !self->freed && adlpy_context_peek() &&
           adlpy_serial() == self->handle.serial;
}

static adl_context *enter(PyObject *object)
{
    if (((sums_object *)object)->freed) {
        PyErr_SetString(PyExc_RuntimeError, "accumulator: its epoch is over");
        return NULL;
    }
    return adlpy_handle_enter(object, "an accumulator");
}

static PyObject *sums_add(PyObject *object, PyObject *args)
{
    sums_object *self = (sums_object *)object;
    PyObject *key, *value;
    int minus;
    if (!PyArg_ParseTuple(args, "OOp", &key, &value, &minus) || !enter(object))
        return NULL;
    int result = accumulate(self->visible ? self->visible : self->pending, key, value, minus != 0);
    adlpy_leave();
    return result == 0 ? adlpy_ref(Py_None) : NULL;
}

/* Finished epochs are never run again: what they saw is not needed any more. */
static int forget_finished(sums_object *self, adl_context *ctx)
{
    PyObject *kept = PyList_New(0);
    for (Py_ssize_t i = 0; kept && i < PyList_Size(self->history); i++) {
        PyObject *entry = PyList_GetItem(self->history, i);
        long epoch = PyLong_AsLong(PyTuple_GetItem(entry, 0));
        if ((epoch == OUTSIDE_EPOCHS || epoch >= ctx->finished_epochs) &&
            PyList_Append(kept, entry) != 0)
            Py_CLEAR(kept);
    }
    if (!kept || PyErr_Occurred()) {
        Py_XDECREF(kept);
        return -1;
    }
    replace(&self->history, kept);
    return 0;
}

/* What the scope of that number in that epoch saw before a restart; borrowed, NULL when it is a new one. */
static PyObject *find_moment(sums_object *self, int epoch, int ordinal)
{
    for (Py_ssize_t i = 0; i < PyList_Size(self->history); i++) {
        PyObject *entry = PyList_GetItem(self->history, i);
        if (PyLong_AsLong(PyTuple_GetItem(entry, 0)) == epoch && ordinal-- == 0)
            return PyTuple_GetItem(entry, 1);
    }
    return NULL;
}

static int next_ordinal(sums_object *self, int epoch)
{
    if (epoch == OUTSIDE_EPOCHS)
        return self->seen_outside++;
    if (self->seen_epoch != epoch) {
        self->seen_epoch = epoch;
        self->seen = 0;
    }
    return self->seen++;
}

static int remember(sums_object *self, int epoch)
{
    PyObject *copy = copied(self->results, "deepcopy");
    PyObject *entry = copy ? Py_BuildValue("(iN)", epoch, copy) : NULL;
    int result = entry ? PyList_Append(self->history, entry) : -1;
    Py_XDECREF(entry);
    return result;
}

/* The dict of a scope that begins: new reference, or NULL with a status or an exception. */
static PyObject *begin(sums_object *self, adl_context *ctx, adl_status *status)
{
    int epoch = adl_current_epoch(ctx); /* OUTSIDE_EPOCHS when there is none */
    *status = ADL_OK;
    if (adl_current_loop(ctx)) { /* code in loops is not run again */
        *status = synchronize(self, ctx);
        return *status == ADL_OK ? adlpy_ref(self->results) : NULL;
    }
    if (forget_finished(self, ctx) != 0)
        return NULL;
    PyObject *then = find_moment(self, epoch, next_ordinal(self, epoch));
    if (then) {
        /* What was added on the way here was added, and counted, the first time already. */
        PyDict_Clear(self->pending);
        return copied(then, "deepcopy");
    }
    *status = synchronize(self, ctx);
    if (*status != ADL_OK || remember(self, epoch) != 0)
        return NULL;
    return adlpy_ref(self->results);
}

static PyObject *sums_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    adl_context *ctx = enter(object);
    adl_status status = ADL_OK;
    if (!ctx)
        return NULL;
    adlpy_callback_forget();
    if (adl_stopped(ctx)) {
        adlpy_leave();
        return adlpy_raise_stopped(ctx);
    }
    if (self->depth == 0)
        replace(&self->visible, begin(self, ctx, &status));
    adlpy_leave();
    if (!self->visible)
        return PyErr_Occurred() ? NULL : adlpy_raise(status);
    self->depth++;
    return adlpy_ref(self->visible);
}

static PyObject *sums_leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    if (self->depth > 0 && --self->depth == 0)
        Py_CLEAR(self->visible);
    return adlpy_ref(Py_None);
}

static void leave_store(sums_object *self)
{
    if (!present(self) || !self->state)
        return;
    adl_checkpoint_unregister(adl_context_store(adlpy_context_peek()), self->state);
    adli_context_drop(adlpy_context_peek(), self);
    self->state = NULL;
}

static PyObject *sums_free(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    if (present(self) && self->depth == 0 && adlpy_enter("an accumulator")) {
        leave_store(self);
        self->freed = true;
        adlpy_leave();
    }
    PyErr_Clear();
    return adlpy_ref(Py_None);
}

static void sums_dealloc(PyObject *object)
{
    sums_object *self = (sums_object *)object;
    leave_store(self);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->results);
    Py_CLEAR(self->visible);
    Py_CLEAR(self->history);
    Py_CLEAR(self->failure);
    adlpy_handle_dealloc(object);
}

/* What another package has saved. */
static PyObject *sums_restore(PyObject *object, PyObject *both)
{
    if (!enter(object))
        return NULL;
    int result = take((sums_object *)object, both);
    adlpy_leave();
    return result == 0 ? adlpy_ref(Py_None) : NULL;
}

static PyObject *sums_restored(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((sums_object *)object)->restored);
}

static PyObject *sums_alive(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(present((sums_object *)object));
}

static PyMethodDef methods[] = {
    {"add", sums_add, METH_VARARGS, "add(key, amount, minus, /)\n--\n\nWorks in both modes."},
    {"enter", sums_enter, METH_NOARGS,
     "enter()\n--\n\nSums over the replicas: the dict of the scope, to be read and changed."},
    {"leave", sums_leave, METH_NOARGS, "leave()\n--\n\nLeaves the scope."},
    {"free", sums_free, METH_NOARGS, "free()\n--\n\nLater checkpoints are without it."},
    {"restore", sums_restore, METH_O,
     "restore((results, [(epoch, results), ...]), /)\n--\n\nTakes them over; epoch -1: outside."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"restored", sums_restored, NULL, "Was it in the checkpoint?", NULL},
    {"alive", sums_alive, NULL, "Is its context still there?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, adlpy_handle_new},
    {Py_tp_init, sums_init},
    {Py_tp_dealloc, sums_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Sums(name, initial, epoch=-1)\n--\n\nNamed sums over all replicas."},
    {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.Sums", sizeof(sums_object), 0, Py_TPFLAGS_DEFAULT, slots};

int adlpy_accumulator_setup(PyObject *module)
{
    static PyObject *type;
    return adlpy_add_type(module, "Sums", &spec, &type);
}
