/* Metrics of a loop over data for adaptdl.dl: the mean of each, weighted by examples, and its deviation,
 * over all replicas and over restarts. Three sums make them, kept by an accumulator:
 *
 *     W = sum w      S = sum w v      Q = sum w v^2
 *     mean = S / W   std = sqrt((Q - S^2 / W) / (W - 1)),   0 when there is one example */
#include "torch.h"

#include "adaptdl/accumulator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES (ADL_ACCUMULATOR_KEY_MAX - 1) /* a letter goes before it */

typedef struct metrics_object {
    adlpy_handle handle;
    adl_accumulator *sums; /* NULL once freed */
} metrics_object;

static int metrics_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    metrics_object *self = (metrics_object *)object;
    static char *names[] = {"name", NULL};
    const char *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s", names, &name))
        return -1;
    adl_context *ctx = adlpy_context();
    if (!ctx || !adlpy_enter("metrics"))
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

static bool enter(PyObject *object)
{
    if (((adlpy_handle *)object)->serial && !((metrics_object *)object)->sums) {
        PyErr_SetString(PyExc_RuntimeError, "metrics: their loop is over");
        return false;
    }
    return adlpy_handle_enter(object, "metrics") != NULL;
}

static PyObject *metrics_add(PyObject *object, PyObject *args)
{
    const char *name;
    double value, weight;
    if (!PyArg_ParseTuple(args, "sdd", &name, &value, &weight))
        return NULL;
    size_t length = strlen(name);
    if (length < 1 || length > NAME_MAX_BYTES)
        return PyErr_Format(PyExc_ValueError,
                            "metric '%s': its name has %zu bytes, at most %d are allowed", name,
                            length, NAME_MAX_BYTES);
    if (!(weight > 0) || isinf(weight))
        return PyErr_Format(PyExc_ValueError, "metric '%s': a weight must be above 0", name);
    if (!enter(object))
        return NULL;
    const double amounts[] = {weight, weight * value, weight * value * value};
    char key[ADL_ACCUMULATOR_KEY_MAX + 1];
    adl_status status = ADL_OK;
    for (int i = 0; i < 3 && status == ADL_OK; i++) {
        snprintf(key, sizeof key, "%c%s", "WSQ"[i], name);
        status = adl_accumulator_add(((metrics_object *)object)->sums, key, amounts[i]);
    }
    adlpy_leave();
    return adlpy_none(status);
}

/* (mean, std) of the metric of that name, inside the scope. */
static PyObject *moments(const adl_accumulator *sums, const char *name)
{
    char key[ADL_ACCUMULATOR_KEY_MAX + 1];
    double found[3];
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%c%s", "WSQ"[i], name);
        found[i] = adl_accumulator_get(sums, key);
    }
    double w = found[0], mean = found[1] / w;
    double rest = found[2] - found[1] * mean; /* rounding may take it below 0 */
    double std = w > 1 && (rest > 0 || isnan(rest)) ? sqrt(rest / (w - 1)) : 0;
    return Py_BuildValue("(dd)", mean, std);
}

static PyObject *metrics_compute(PyObject *object, PyObject *unused)
{
    (void)unused;
    metrics_object *self = (metrics_object *)object;
    if (!enter(object))
        return NULL;
    adl_accumulator *scope;
    ADLPY_UNLOCKED(scope = adl_accumulator_enter(self->sums));
    PyObject *dict = scope ? PyDict_New() : adlpy_raise_stopped(adlpy_context_peek());
    for (size_t i = 0; scope && dict && i < adl_accumulator_count(scope); i++) {
        const char *key = adl_accumulator_key(scope, i);
        if (key[0] != 'W')
            continue;
        PyObject *pair = moments(scope, key + 1);
        if (!pair || PyDict_SetItemString(dict, key + 1, pair) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(pair);
    }
    if (scope)
        ADLPY_UNLOCKED(adl_accumulator_leave(&scope));
    adlpy_leave();
    return dict;
}

static PyObject *metrics_free(PyObject *object, PyObject *unused)
{
    (void)unused;
    metrics_object *self = (metrics_object *)object;
    if (self->sums && adlpy_handle_enter(object, "metrics")) {
        adl_accumulator_free(self->sums);
        self->sums = NULL;
        adlpy_leave();
    }
    PyErr_Clear(); /* its context is gone, and it with it */
    return adlpy_ref(Py_None);
}

static PyMethodDef methods[] = {
    {"add", metrics_add, METH_VARARGS,
     "add(name, value, weight, /)\n--\n\nA value that stands for so many examples."},
    {"compute", metrics_compute, METH_NOARGS,
     "compute()\n--\n\n{name: (mean, std)} over all replicas; all of them call it."},
    {"free", metrics_free, METH_NOARGS, "free()\n--\n\nLater checkpoints are without them."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {{Py_tp_new, adlpy_handle_new},
                              {Py_tp_init, metrics_init},
                              {Py_tp_dealloc, adlpy_handle_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_doc, "Metrics(name)\n--\n\nWeighted means over all replicas."},
                              {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.Metrics", sizeof(metrics_object), 0, Py_TPFLAGS_DEFAULT,
                           slots};

int adlpy_runner_meter_setup(PyObject *module)
{
    static PyObject *type;
    return adlpy_add_type(module, "Metrics", &spec, &type);
}
