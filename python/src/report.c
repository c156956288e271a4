/* adaptdl.report: metrics of the job. */
#include "core.h"

#include "adaptdl/report.h"

#include "base/mem.h"

#include <stdlib.h>

/* The items {UTF-8: float} of a dict as metrics whose names are borrowed from it; NULL with an exception. */
static adl_metric *read_metrics(PyObject *dict, size_t *count)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    adl_metric *metrics = adli_calloc((size_t)PyDict_Size(dict), sizeof *metrics);
    if (!metrics)
        PyErr_NoMemory();
    for (*count = 0; metrics && PyDict_Next(dict, &at, &key, &value); ++*count) {
        char *name = NULL;
        PyBytes_AsStringAndSize(key, &name, NULL); /* refuses a NUL */
        metrics[*count] = (adl_metric){name, name ? PyFloat_AsDouble(value) : 0};
        if (PyErr_Occurred()) {
            free(metrics);
            return NULL;
        }
    }
    return metrics;
}

static PyObject *report(PyObject *self, PyObject *args)
{
    (void)self;
    long long step;
    PyObject *dict;
    size_t count;
    if (!PyArg_ParseTuple(args, "LO!", &step, &PyDict_Type, &dict))
        return NULL;
    adl_metric *metrics = read_metrics(dict, &count);
    adl_context *ctx = metrics ? adlpy_context() : NULL;
    PyObject *result = NULL;
    if (ctx && adlpy_enter("adaptdl.report")) {
        adl_status status = adl_report(ctx, step, metrics, count);
        adlpy_leave();
        result = adlpy_none(status);
    }
    free(metrics);
    return result;
}

static PyMethodDef functions[] = {
    {"report", report, METH_VARARGS,
     "report(step, metrics, /)\n--\n\nadl_report; step -1: that of the training loop."},
    {NULL, NULL, 0, NULL},
};

int adlpy_report_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
