/* Named sums over replicas and restarts, for adaptdl.torch.Accumulator. */
#include "torch.h"

#include "adaptdl/accumulator.h"

#include <string.h>

typedef struct sums_object {
    adlpy_handle handle;
    adl_accumulator *sums; /* NULL once freed */
    int depth;
} sums_object;

static int sums_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    sums_object *self = (sums_object *)object;
    static char *names[] = {"name", NULL};
    const char *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s", names, &name))
        return -1;
    adl_context *ctx = adlpy_context();
    if (!ctx || !adlpy_enter("an accumulator"))
        return -1;
    adl_status status = adl_accumulator_new(ctx, name, &self->sums);
    adlpy_leave();
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    self->handle.serial = adlpy_serial();
    return 0;
}

static adl_context *enter(PyObject *object)
{
    if (((adlpy_handle *)object)->serial && !((sums_object *)object)->sums) {
        PyErr_SetString(PyExc_RuntimeError, "accumulator: its epoch is over");
        return NULL;
    }
    return adlpy_handle_enter(object, "an accumulator");
}

/* Keys that the library would refuse are refused here: there it stops the context. */
static bool good_key(const char *key)
{
    size_t length = strlen(key);
    if (length >= 1 && length <= ADL_ACCUMULATOR_KEY_MAX)
        return true;
    PyErr_Format(PyExc_ValueError, "accumulator: a key of %zu bytes; at most %d are allowed",
                 length, ADL_ACCUMULATOR_KEY_MAX);
    return false;
}

static PyObject *sums_add(PyObject *object, PyObject *args)
{
    const char *key;
    double amount;
    if (!PyArg_ParseTuple(args, "sd", &key, &amount) || !good_key(key) || !enter(object))
        return NULL;
    adl_status status = adl_accumulator_add(((sums_object *)object)->sums, key, amount);
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *sums_set(PyObject *object, PyObject *args)
{
    const char *key;
    double value;
    adl_status status = ADL_ESTATE;
    if (!PyArg_ParseTuple(args, "sd", &key, &value) || !good_key(key) || !enter(object))
        return NULL;
    if (((sums_object *)object)->depth > 0)
        status = adl_accumulator_set(((sums_object *)object)->sums, key, value);
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *sums_remove(PyObject *object, PyObject *args)
{
    const char *key;
    adl_status status = ADL_ESTATE;
    if (!PyArg_ParseTuple(args, "s", &key) || !good_key(key) || !enter(object))
        return NULL;
    if (((sums_object *)object)->depth > 0)
        status = adl_accumulator_remove(((sums_object *)object)->sums, key);
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *sums_items(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!enter(object))
        return NULL;
    const adl_accumulator *sums = ((sums_object *)object)->sums;
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < adl_accumulator_count(sums); i++) {
        const char *key = adl_accumulator_key(sums, i);
        PyObject *value = PyFloat_FromDouble(adl_accumulator_get(sums, key));
        if (!value || PyDict_SetItemString(dict, key, value) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    adlpy_leave();
    return dict;
}

static PyObject *sums_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    adl_context *ctx = enter(object);
    if (!ctx)
        return NULL;
    adl_accumulator *entered;
    ADLPY_UNLOCKED(entered = adl_accumulator_enter(self->sums));
    self->depth += entered != NULL;
    PyObject *result = entered ? adlpy_ref(Py_None) : adlpy_raise_stopped(ctx);
    adlpy_leave();
    return result;
}

static PyObject *sums_leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    adl_accumulator *scope = self->sums;
    if (self->depth > 0 && scope && adlpy_context_peek() && adlpy_serial() == self->handle.serial) {
        self->depth--;
        adl_accumulator_leave(&scope);
    }
    return adlpy_ref(Py_None);
}

static PyObject *sums_free(PyObject *object, PyObject *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    if (self->sums && self->depth == 0 && adlpy_context_peek() &&
        adlpy_serial() == self->handle.serial && adlpy_enter("an accumulator")) {
        adl_accumulator_free(self->sums);
        self->sums = NULL;
        adlpy_leave();
    }
    PyErr_Clear();
    return adlpy_ref(Py_None);
}

static PyObject *sums_restored(PyObject *object, void *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    if (!self->sums || !adlpy_handle_alive(object, "an accumulator"))
        return PyErr_Occurred() ? NULL : adlpy_ref(Py_False);
    return PyBool_FromLong(adl_accumulator_restored(self->sums));
}

static PyObject *sums_alive(PyObject *object, void *unused)
{
    (void)unused;
    sums_object *self = (sums_object *)object;
    return PyBool_FromLong(self->sums && adlpy_context_peek() &&
                           adlpy_serial() == self->handle.serial);
}

static PyMethodDef methods[] = {
    {"add", sums_add, METH_VARARGS, "add(key, amount, /)\n--\n\nWorks in both modes."},
    {"set", sums_set, METH_VARARGS, "set(key, value, /)\n--\n\nInside the scope."},
    {"remove", sums_remove, METH_VARARGS, "remove(key, /)\n--\n\nInside the scope."},
    {"items", sums_items, METH_NOARGS, "items()\n--\n\nA dict; empty outside the scope."},
    {"enter", sums_enter, METH_NOARGS, "enter()\n--\n\nSums over the replicas."},
    {"leave", sums_leave, METH_NOARGS, "leave()\n--\n\nLeaves the scope."},
    {"free", sums_free, METH_NOARGS, "free()\n--\n\nLater checkpoints are without it."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"restored", sums_restored, NULL, "Was it in the checkpoint?", NULL},
    {"alive", sums_alive, NULL, "Is its context still there?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {{Py_tp_new, adlpy_handle_new},
                              {Py_tp_init, sums_init},
                              {Py_tp_dealloc, adlpy_handle_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, properties},
                              {Py_tp_doc, "Sums(name)\n--\n\nNamed sums over all replicas."},
                              {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.Sums", sizeof(sums_object), 0, Py_TPFLAGS_DEFAULT, slots};

int adlpy_accumulator_setup(PyObject *module)
{
    static PyObject *type;
    return adlpy_add_type(module, "Sums", &spec, &type);
}
