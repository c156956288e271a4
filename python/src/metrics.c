/* What the context has measured, for adaptdl.torch._metrics: the profile of step times, the model fitted to it,
 * gradient statistics and progress. */
#include "core.h"

#include "base/mem.h"
#include "train/context.h"
#include "train/metrics.h"

#include <stdlib.h>
#include <string.h>

/* Another step of a program that measures on its own. */
static PyObject *metrics_step(PyObject *self, PyObject *args)
{
    (void)self;
    int nodes, replicas, local_bsz, optim;
    double step_s, sync_s;
    adl_context *ctx = adlpy_context();
    if (!ctx ||
        !PyArg_ParseTuple(args, "iiipdd", &nodes, &replicas, &local_bsz, &optim, &step_s, &sync_s))
        return NULL;
    if (nodes < 1 || replicas < nodes || local_bsz < 1 || !(step_s >= 0) || !(sync_s >= 0))
        return PyErr_Format(PyExc_ValueError,
                            "a step of %d examples on %d replicas and %d nodes cannot be",
                            local_bsz, replicas, nodes);
    return adlpy_none(
        adli_metrics_step(&ctx->metrics, nodes, replicas, local_bsz, optim != 0, step_s, sync_s));
}

/* Lock held: a copy, so that no Python runs while the library's threads wait. */
static adli_profile_entry *copy_entries(adli_metrics *metrics, size_t *count)
{
    pthread_mutex_lock(&metrics->lock);
    *count = metrics->count;
    adli_profile_entry *copy = adli_calloc(*count ? *count : 1, sizeof *copy);
    if (copy && *count)
        memcpy(copy, metrics->entries, *count * sizeof *copy);
    pthread_mutex_unlock(&metrics->lock);
    return copy;
}

static int put_entry(PyObject *dict, const adli_profile_entry *entry)
{
    PyObject *key = Py_BuildValue("(iii)", entry->nodes, entry->replicas, entry->local_bsz);
    PyObject *value = Py_BuildValue("{sdsLsdsdsL}", "accum_step_time", entry->accum_s,
                                    "accum_count", (long long)entry->accum_count, "optim_step_time",
                                    entry->optim_s, "optim_sync_time", entry->sync_s, "optim_count",
                                    (long long)entry->optim_count);
    int result = key && value ? PyDict_SetItem(dict, key, value) : -1;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

static PyObject *metrics_profile(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    size_t count;
    if (!ctx)
        return NULL;
    adli_profile_entry *entries = copy_entries(&ctx->metrics, &count);
    PyObject *dict = entries ? PyDict_New() : PyErr_NoMemory();
    for (size_t i = 0; dict && i < count; i++)
        if (put_entry(dict, &entries[i]) != 0)
            Py_CLEAR(dict);
    free(entries);
    return dict;
}

static PyObject *metrics_fit(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    adl_status status;
    if (!ctx)
        return NULL;
    ADLPY_UNLOCKED(status = adli_metrics_fit(&ctx->metrics));
    return adlpy_none(status);
}

/* (perf_params or None, grad_params or None, progress, (initial, max, min local, max local,
 * accumulation), most replicas profiled). */
static PyObject *metrics_look(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    adli_metrics_view view;
    if (!ctx)
        return NULL;
    adl_status status = adli_metrics_look(&ctx->metrics, 0, &view);
    if (status != ADL_OK)
        return adlpy_raise(status);
    free(view.points);
    const adli_job_facts *facts = &view.facts;
    PyObject *times = view.fitted ? adlpy_perf(&view.perf) : adlpy_ref(Py_None);
    PyObject *grad =
        view.have_grad ? Py_BuildValue("(dd)", view.grad.sqr, view.grad.var) : adlpy_ref(Py_None);
    return Py_BuildValue("(NNd(iiiiOO)i)", times, grad, view.progress, facts->init_batch_size,
                         facts->max_batch_size, facts->min_local, facts->max_local,
                         facts->accumulation ? Py_True : Py_False,
                         facts->lone_grows ? Py_True : Py_False, view.max_profiled_replicas);
}

static PyObject *metrics_gradient(PyObject *self, PyObject *args)
{
    (void)self;
    adl_grad_params grad;
    int known;
    double progress;
    adl_context *ctx = adlpy_context();
    if (!ctx || !PyArg_ParseTuple(args, "ddpd", &grad.sqr, &grad.var, &known, &progress))
        return NULL;
    adli_metrics_gradient(&ctx->metrics, grad, known != 0, progress);
    return adlpy_ref(Py_None);
}

static PyObject *metrics_sizes(PyObject *self, PyObject *args)
{
    (void)self;
    adl_context *ctx = adlpy_context();
    int accumulation;
    if (!ctx)
        return NULL;
    adli_job_facts facts = ctx->metrics.facts; /* only this thread writes them */
    if (!PyArg_ParseTuple(args, "iiiip", &facts.init_batch_size, &facts.max_batch_size,
                          &facts.min_local, &facts.max_local, &accumulation))
        return NULL;
    facts.accumulation = accumulation != 0;
    adli_metrics_facts(&ctx->metrics, &facts);
    return adlpy_ref(Py_None);
}

/* Has the program been asked to stop? */
static PyObject *stop_wanted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context_peek();
    return PyBool_FromLong(ctx && (adl_context_status(ctx) == ADL_EINTR || adli_stop_wanted(ctx)));
}

static PyMethodDef functions[] = {
    {"metrics_step", metrics_step, METH_VARARGS,
     "metrics_step(nodes, replicas, local_bsz, optim, step_s, sync_s, /)\n--\n\nOne more step."},
    {"metrics_profile", metrics_profile, METH_NOARGS,
     "metrics_profile()\n--\n\n{(nodes, replicas, local_bsz): sums of times}"},
    {"metrics_fit", metrics_fit, METH_NOARGS, "metrics_fit()\n--\n\nIf there is something new."},
    {"metrics_look", metrics_look, METH_NOARGS,
     "metrics_look()\n--\n\nModel, gradient, progress, batch sizes, replicas."},
    {"metrics_gradient", metrics_gradient, METH_VARARGS,
     "metrics_gradient(sqr, var, known, progress, /)\n--\n\nStatistics of the program's own."},
    {"metrics_sizes", metrics_sizes, METH_VARARGS,
     "metrics_sizes(initial, max, min_local, max_local, accumulation, /)\n--\n\nBatch sizes."},
    {"stop_wanted", stop_wanted, METH_NOARGS, "stop_wanted()\n--\n\nHas a signal arrived?"},
    {NULL, NULL, 0, NULL},
};

int adlpy_metrics_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
