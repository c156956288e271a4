/* Control collectives on Python values: the types Group (a group of its own, for adaptdl.reducer) and
 * Operation (one allreduce under way), and the functions of the process group for adaptdl.collective.
 *
 * A reduction function in Python runs on rank 0, on a thread of the group, with the interpreter's lock;
 * so everything here that waits does so without the lock. Waiting is cut into slices, between which
 * Python may handle its signals: CTRL-C ends a wait. */
#include "core.h"

#include "adaptdl/group.h"
#include "train/context.h"

#include <string.h>
#include <unistd.h>

enum { SLICE_MS = 100, CLOSE_TIMEOUT_MS = 30000 };

static PyObject *group_type, *operation_type;

/* ---- operations ---------------------------------------------------------------------------------- */

typedef struct operation {
    PyObject head;
    adl_future *future;
    PyObject *function; /* called by the group's thread until the operation has finished */
    PyObject *failure;  /* the exception it raised, on rank 0 */
    PyObject *result;
    pid_t pid;
    bool waiting;           /* a thread is in result() */
    struct operation *next; /* while the group may still call */
} operation;

/* Operations that the library knows, each with a reference of its own: a program may drop one before it
 * has finished. */
static operation *started;

/* c = function(a, b), for the library. */
static adl_status reduce(void *user, const void *a, size_t a_length, const void *b, size_t b_length,
                         adl_reduced *out)
{
    operation *self = user;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *left = adlpy_value_decode(a, a_length);
    PyObject *right = left ? adlpy_value_decode(b, b_length) : NULL;
    PyObject *value =
        right ? PyObject_CallFunctionObjArgs(self->function, left, right, NULL) : NULL;
    PyObject *bytes = value ? adlpy_value_encode(value) : NULL;
    char *data;
    Py_ssize_t length;
    adl_status status;
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &length) == 0)
        status = adl_reduced_set(out, data, (size_t)length);
    else
        status = adlpy_callback_status("reduce_fn", &self->failure); /* result() raises it */
    Py_XDECREF(bytes);
    Py_XDECREF(value);
    Py_XDECREF(right);
    Py_XDECREF(left);
    PyGILState_Release(lock);
    return status;
}

/* Takes the operation from the list: the library has no more use for it. */
static void settle(operation *self)
{
    operation **at = &started;
    while (*at && *at != self)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = self->next;
    self->next = NULL;
    Py_CLEAR(self->function);
    Py_DECREF(self);
}

static void settle_finished(void)
{
    for (operation *at = started, *next; at; at = next) {
        next = at->next;
        if (at->pid != getpid() || (!at->waiting && adl_future_done(at->future))) {
            settle(at);
            next = started; /* destructors run Python, which may have started others */
        }
    }
}

static operation *start(adl_group *group, PyObject *value, PyObject *function)
{
    char *data;
    Py_ssize_t length;
    adl_status status;
    if (!PyCallable_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "reduce_fn must be a function of two values");
        return NULL;
    }
    settle_finished();
    PyObject *bytes = adlpy_value_encode(value);
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0) {
        Py_XDECREF(bytes);
        return NULL;
    }
    operation *self = PyObject_New(operation, (PyTypeObject *)operation_type);
    if (!self) {
        Py_DECREF(bytes);
        return NULL;
    }
    self->future = NULL;
    self->failure = self->result = NULL;
    self->function = adlpy_ref(function);
    self->pid = getpid();
    self->waiting = false;
    self->next = NULL;
    ADLPY_UNLOCKED(status = adl_group_reduce_async(group, "python", data, (size_t)length, reduce,
                                                   self, &self->future));
    Py_DECREF(bytes);
    if (status != ADL_OK) {
        adlpy_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    self->next = started;
    started = self;
    Py_INCREF(self);
    return self;
}

/* Waits in slices. False with an exception: a signal handler raised one. */
static bool wait_for(adl_future *future, adl_status *status, const void **data, size_t *length)
{
    bool done;
    do {
        done = adl_future_done(future); /* then the status is the operation's own */
        ADLPY_UNLOCKED(*status = adl_future_wait(future, SLICE_MS, data, length));
        if (PyErr_CheckSignals() != 0)
            return false;
    } while (*status == ADL_ETIMEOUT && !done);
    return true;
}

static PyObject *operation_result(PyObject *object, PyObject *unused)
{
    (void)unused;
    operation *self = (operation *)object;
    const void *data;
    size_t length;
    adl_status status;
    if (self->result)
        return adlpy_ref(self->result);
    if (self->waiting || self->pid != getpid()) {
        PyErr_SetString(PyExc_RuntimeError, self->waiting
                                                ? "another thread waits for this result"
                                                : "the operation was started by another process");
        return NULL;
    }
    self->waiting = true;
    bool waited = wait_for(self->future, &status, &data, &length);
    self->waiting = false;
    if (!waited)
        return NULL;
    if (status == ADL_OK)
        self->result = adlpy_value_decode(data, length);
    else if (self->failure)
        PyErr_SetObject((PyObject *)Py_TYPE(self->failure), self->failure);
    else
        adlpy_raise(status);
    settle(self);
    return adlpy_ref(self->result);
}

static PyObject *operation_done(PyObject *object, PyObject *unused)
{
    (void)unused;
    operation *self = (operation *)object;
    return PyBool_FromLong(self->pid == getpid() && adl_future_done(self->future));
}

static void operation_free(PyObject *object)
{
    operation *self = (operation *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->pid == getpid()) /* in a fork its lock may be held for ever */
        adl_future_free(self->future);
    Py_XDECREF(self->function);
    Py_XDECREF(self->failure);
    Py_XDECREF(self->result);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)type, (void)args, (void)keywords;
    PyErr_SetString(PyExc_TypeError, "operations are made by allreduce_async");
    return NULL;
}

static PyMethodDef operation_methods[] = {
    {"result", operation_result, METH_NOARGS,
     "result()\n--\n\nWaits for the reduced value and returns it."},
    {"done", operation_done, METH_NOARGS,
     "done()\n--\n\nHas the operation finished, well or badly? Does not wait."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot operation_slots[] = {
    {Py_tp_doc, "An allreduce that is under way."},
    {Py_tp_new, operation_new},
    {Py_tp_dealloc, operation_free},
    {Py_tp_methods, operation_methods},
    {0, NULL},
};

static PyType_Spec operation_spec = {"adaptdl._core.Operation", sizeof(operation), 0,
                                     Py_TPFLAGS_DEFAULT, operation_slots};

static PyObject *start_and_wait(adl_group *group, PyObject *value, PyObject *function)
{
    operation *self = start(group, value, function);
    if (!self)
        return NULL;
    PyObject *result = operation_result((PyObject *)self, NULL);
    Py_DECREF(self);
    return result;
}

static PyObject *broadcast(adl_group *group, PyObject *value)
{
    char *data = NULL;
    const void *sent;
    Py_ssize_t length = 0;
    size_t sent_length;
    adl_future *future;
    adl_status status;
    PyObject *bytes = NULL, *result = NULL;
    if (adl_group_rank(group) == 0) {
        bytes = adlpy_value_encode(value);
        if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0) {
            Py_XDECREF(bytes);
            return NULL;
        }
    }
    ADLPY_UNLOCKED(status = adl_group_broadcast_async(group, data, (size_t)length, &future));
    Py_XDECREF(bytes);
    if (status != ADL_OK)
        return adlpy_raise(status);
    if (wait_for(future, &status, &sent, &sent_length))
        result = status == ADL_OK ? adlpy_value_decode(sent, sent_length) : adlpy_raise(status);
    adl_future_free(future);
    return result;
}

/* ---- groups of their own ------------------------------------------------------------------------- */

typedef struct group_object {
    PyObject head;
    adl_group *group; /* NULL: closed */
    pid_t pid;
    int users; /* calls under way, of any thread */
    struct group_object *next;
} group_object;

static group_object *groups; /* open ones, to be closed before the interpreter goes */

static bool interrupted(void *unused)
{
    (void)unused;
    PyGILState_STATE lock = PyGILState_Ensure();
    bool raised = PyErr_Occurred() || PyErr_CheckSignals() != 0;
    PyGILState_Release(lock);
    return raised;
}

static void group_forget(group_object *self)
{
    group_object **at = &groups;
    while (*at && *at != self)
        at = &(*at)->next;
    if (*at)
        *at = self->next;
}

static PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "replicas", "root_host", "root_port", NULL};
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    const char *host = NULL;
    adl_env env;
    adl_group *group = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iizi", names, &options.rank,
                                     &options.replicas, &host, &options.master_port))
        return NULL;
    adl_status status = adli_env_load(&env);
    if (status != ADL_OK)
        return adlpy_raise(status);
    if (adlpy_at_exit() != 0)
        return NULL;
    if (host && strcmp(host, "0.0.0.0") != 0)
        options.master_addr = host;
    options.secret = env.job_secret;
    options.secret_length = env.job_secret ? strlen(env.job_secret) : 0;
    options.generation = (uint64_t)env.restarts;
    options.cancelled = interrupted;
    ADLPY_UNLOCKED(status = adl_group_new(&options, &group));
    if (PyErr_Occurred()) { /* of a signal handler */
        if (group)
            ADLPY_UNLOCKED(adl_group_free(group));
        return NULL;
    }
    if (status != ADL_OK)
        return adlpy_raise(status);
    group_object *self = PyObject_New(group_object, type);
    if (!self) {
        ADLPY_UNLOCKED(adl_group_free(group));
        return NULL;
    }
    self->group = group;
    self->pid = getpid();
    self->users = 0;
    self->next = groups;
    groups = self;
    return (PyObject *)self;
}

/* Its adl_group for one call, to be given back by group_leave; NULL with an exception. */
static adl_group *group_enter(group_object *self)
{
    if (self->group && self->pid == getpid()) {
        Py_INCREF(self);
        self->users++;
        return self->group;
    }
    PyErr_SetString(PyExc_RuntimeError,
                    self->group ? "the group belongs to another process" : "the group is closed");
    return NULL;
}

static PyObject *group_leave(group_object *self, PyObject *result)
{
    self->users--;
    Py_DECREF(self);
    return result;
}

static PyObject *group_allreduce_async(PyObject *object, PyObject *args)
{
    PyObject *value, *function;
    adl_group *group;
    if (!PyArg_ParseTuple(args, "OO", &value, &function) ||
        !(group = group_enter((group_object *)object)))
        return NULL;
    return group_leave((group_object *)object, (PyObject *)start(group, value, function));
}

static PyObject *group_allreduce(PyObject *object, PyObject *args)
{
    PyObject *value, *function;
    adl_group *group;
    if (!PyArg_ParseTuple(args, "OO", &value, &function) ||
        !(group = group_enter((group_object *)object)))
        return NULL;
    return group_leave((group_object *)object, start_and_wait(group, value, function));
}

static PyObject *group_broadcast(PyObject *object, PyObject *value)
{
    adl_group *group = group_enter((group_object *)object);
    return group ? group_leave((group_object *)object, broadcast(group, value)) : NULL;
}

static PyObject *group_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    group_object *self = (group_object *)object;
    if (!self->group || self->pid != getpid())
        return adlpy_ref(Py_None);
    if (self->users > 0) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a collective of this group");
        return NULL;
    }
    adl_group *group = self->group;
    adl_status status;
    self->group = NULL;
    group_forget(self);
    ADLPY_UNLOCKED({
        status = adl_group_close(group, CLOSE_TIMEOUT_MS);
        adl_group_free(group);
    });
    settle_finished();
    return adlpy_none(status);
}

static void group_free(PyObject *object)
{
    group_object *self = (group_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    group_forget(self);
    if (self->group && self->pid == getpid())
        ADLPY_UNLOCKED(adl_group_free(self->group));
    PyObject_Free(object);
    Py_DECREF(type);
}

void adlpy_groups_exit(void)
{
    for (group_object *at = groups; at; at = groups) {
        groups = at->next;
        adl_group *group = at->group;
        at->group = NULL;
        if (group && at->pid == getpid() && at->users == 0)
            ADLPY_UNLOCKED(adl_group_free(group));
    }
    settle_finished();
}

static PyMethodDef group_methods[] = {
    {"allreduce", group_allreduce, METH_VARARGS,
     "allreduce(value, reduce_fn, /)\n--\n\nThe value reduced over all replicas."},
    {"allreduce_async", group_allreduce_async, METH_VARARGS,
     "allreduce_async(value, reduce_fn, /)\n--\n\nStarts one; an Operation."},
    {"broadcast", group_broadcast, METH_O, "broadcast(value, /)\n--\n\nRank 0's value."},
    {"close", group_close, METH_NOARGS, "close()\n--\n\nLeaves, when all others do."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_doc,
     "Group(rank, replicas, root_host, root_port)\n--\n\nReplicas that talk to each other."},
    {Py_tp_new, group_new},
    {Py_tp_dealloc, group_free},
    {Py_tp_methods, group_methods},
    {0, NULL},
};

static PyType_Spec group_spec = {"adaptdl._core.Group", sizeof(group_object), 0, Py_TPFLAGS_DEFAULT,
                                 group_slots};

/* ---- the process group --------------------------------------------------------------------------- */

static adl_group *process_enter(void)
{
    adl_context *ctx = adlpy_context_started();
    if (!ctx)
        return NULL;
    adlpy_share();
    return adl_context_group(ctx);
}

static PyObject *process_leave(PyObject *result)
{
    adlpy_unshare();
    return result;
}

static PyObject *process_allreduce(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *value, *function;
    adl_group *group;
    if (!PyArg_ParseTuple(args, "OO", &value, &function) || !(group = process_enter()))
        return NULL;
    return process_leave(start_and_wait(group, value, function));
}

static PyObject *process_allreduce_async(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *value, *function;
    adl_group *group;
    if (!PyArg_ParseTuple(args, "OO", &value, &function) || !(group = process_enter()))
        return NULL;
    return process_leave((PyObject *)start(group, value, function));
}

static PyObject *process_broadcast(PyObject *self, PyObject *value)
{
    (void)self;
    adl_group *group = process_enter();
    return group ? process_leave(broadcast(group, value)) : NULL;
}

static PyMethodDef functions[] = {
    {"allreduce", process_allreduce, METH_VARARGS,
     "allreduce(value, reduce_fn, /)\n--\n\nGroup.allreduce of the process group."},
    {"allreduce_async", process_allreduce_async, METH_VARARGS,
     "allreduce_async(value, reduce_fn, /)\n--\n\nGroup.allreduce_async of the process group."},
    {"broadcast", process_broadcast, METH_O,
     "broadcast(value, /)\n--\n\nGroup.broadcast of the process group."},
    {NULL, NULL, 0, NULL},
};

int adlpy_group_setup(PyObject *module)
{
    if (adlpy_add_type(module, "Operation", &operation_spec, &operation_type) != 0 ||
        adlpy_add_type(module, "Group", &group_spec, &group_type) != 0)
        return -1;
    return adlpy_add_functions(module, functions);
}
