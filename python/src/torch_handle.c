/* Handles on what the context owns, and the part of the module that adaptdl.torch is made of. */
#include "torch.h"

#include "base/status.h"
#include "train/context.h"

#include <stdlib.h>
#include <string.h>

PyObject *adlpy_handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0); /* zeroed */
}

void adlpy_handle_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

bool adlpy_handle_alive(PyObject *self, const char *what)
{
    uint64_t serial = ((adlpy_handle *)self)->serial;
    if (serial == 0) {
        PyErr_Format(PyExc_RuntimeError, "%s: it was not initialized", what);
        return false;
    }
    return adlpy_alive(serial, what);
}

adl_context *adlpy_handle_enter(PyObject *self, const char *what)
{
    if (!adlpy_handle_alive(self, what) || !adlpy_enter(what))
        return NULL;
    adlpy_callback_forget();
    return adlpy_context_peek();
}

PyObject *adlpy_raise_stopped(adl_context *ctx)
{
    adl_status status = adl_context_status(ctx);
    if (status == ADL_EINTR && ctx->save_failed) {
        PyObject *code = PyLong_FromLong(1);
        if (code)
            PyErr_SetObject(PyExc_SystemExit, code);
        Py_XDECREF(code);
        return NULL;
    }
    return adlpy_raise(adli_fail(status, "%s", adl_context_error(ctx)));
}

PyObject *adlpy_doubles(const double *values, size_t count, size_t stride)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *value = PyFloat_FromDouble(values[i * stride]);
        if (!value)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, value);
    }
    return list;
}

double *adlpy_read_doubles(PyObject *sequence, size_t count, const char *what)
{
    Py_ssize_t length = PySequence_Size(sequence);
    if (length < 0)
        return NULL;
    if ((size_t)length != count) {
        PyErr_Format(PyExc_ValueError, "%s: %zd numbers, expected %zu", what, length, count);
        return NULL;
    }
    double *values = malloc((count ? count : 1) * sizeof *values);
    if (!values) {
        PyErr_NoMemory();
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, (Py_ssize_t)i);
        values[i] = item ? PyFloat_AsDouble(item) : -1;
        Py_XDECREF(item);
        if (PyErr_Occurred()) {
            free(values);
            return NULL;
        }
    }
    return values;
}

/* A failure before training began: nothing is saved, and the other replicas are told. */
static PyObject *context_abandon(PyObject *self, PyObject *args)
{
    (void)self;
    const char *why;
    if (!PyArg_ParseTuple(args, "s", &why))
        return NULL;
    adl_context *ctx = adlpy_context_peek();
    if (ctx)
        adl_context_failf(ctx, ADL_ESTATE, "%s", why);
    return adlpy_context_finish(NULL) == 0 ? adlpy_ref(Py_None) : NULL;
}

/* Gradients that could not be averaged: what the library knows of the other replicas. */
static PyObject *context_reason(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    if (!ctx || (!adli_boundary_apart(ctx) && adl_group_check(adl_context_group(ctx)) == ADL_OK))
        return adlpy_ref(Py_None);
    return PyUnicode_DecodeUTF8(adl_error(), (Py_ssize_t)strlen(adl_error()), "replace");
}

static PyMethodDef functions[] = {
    {"context_abandon", context_abandon, METH_VARARGS,
     "context_abandon(why, /)\n--\n\nEnds the context without saving."},
    {"context_reason", context_reason, METH_NOARGS,
     "context_reason()\n--\n\nWhy the other replicas are not with this one, as far as is known, or "
     "None."},
    {NULL, NULL, 0, NULL},
};

int adlpy_torch_setup(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        adlpy_loop_setup,         adlpy_meter_setup,         adlpy_kernels_setup,
        adlpy_sampler_setup,      adlpy_accumulator_setup,   adlpy_world_setup,
        adlpy_runner_meter_setup, adlpy_runner_events_setup,
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i](module) != 0)
            return -1;
    return adlpy_add_functions(module, functions);
}
