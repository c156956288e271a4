/* Gradient statistics (adaptdl/meter.h) for adaptdl.torch.gradient_noise_scale. */
#include "torch.h"

#include "adaptdl/meter.h"
#include "train/context.h"

#include <math.h>
#include <stdlib.h>

typedef struct meter_object {
    adlpy_handle handle;
    adl_meter *meter;
    size_t groups;
} meter_object;

static int meter_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    meter_object *self = (meter_object *)object;
    static char *names[] = {"name", "groups", NULL};
    const char *name;
    Py_ssize_t groups;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sn", names, &name, &groups))
        return -1;
    if (groups < 1) {
        PyErr_SetString(PyExc_ValueError, "groups must be at least 1");
        return -1;
    }
    adl_context *ctx = adlpy_context_started();
    if (!ctx || !adlpy_enter("a meter"))
        return -1;
    adl_status status = adl_meter_new(ctx, name, (size_t)groups, &self->meter);
    adlpy_leave();
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    self->groups = (size_t)groups;
    self->handle.serial = adlpy_serial();
    return 0;
}

static PyObject *meter_begin(PyObject *object, PyObject *unused)
{
    (void)unused;
    adl_meter_pass pass;
    if (!adlpy_handle_enter(object, "backward"))
        return NULL;
    adl_status status = adl_meter_begin(((meter_object *)object)->meter, &pass);
    adlpy_leave();
    if (status != ADL_OK)
        return adlpy_raise(status);
    return Py_BuildValue("(NiNNd)", PyBool_FromLong(pass.optim_step), pass.micro,
                         PyBool_FromLong(pass.single), PyBool_FromLong(pass.new_batch),
                         pass.weight);
}

static PyObject *meter_step(PyObject *object, PyObject *unused)
{
    (void)unused;
    adl_meter_shape shape;
    if (!adlpy_handle_enter(object, "step"))
        return NULL;
    adl_status status;
    ADLPY_UNLOCKED(status = adl_meter_step(((meter_object *)object)->meter, &shape));
    adlpy_leave();
    if (status == ADL_EPEER && adlpy_context_peek()->lost)
        return adlpy_ref(Py_None);
    if (status != ADL_OK)
        return adlpy_raise(status);
    return Py_BuildValue("(dNN)", shape.scale, PyBool_FromLong(shape.measured),
                         PyBool_FromLong(shape.restart));
}

static PyObject *meter_norms(PyObject *object, PyObject *args)
{
    meter_object *self = (meter_object *)object;
    PyObject *local, *total, *passes, *result = NULL;
    double loss_scale, *values[3] = {NULL, NULL, NULL};
    if (!PyArg_ParseTuple(args, "OOOd", &local, &total, &passes, &loss_scale))
        return NULL;
    bool fine =
        (values[0] = adlpy_read_doubles(local, self->groups, "local")) &&
        (values[1] = adlpy_read_doubles(total, self->groups, "total")) &&
        (passes == Py_None || (values[2] = adlpy_read_doubles(passes, self->groups, "passes")));
    if (fine && adlpy_handle_enter(object, "norms")) {
        adl_status status;
        ADLPY_UNLOCKED(
            status = adl_meter_norms(self->meter, values[0], values[1], values[2], loss_scale));
        adlpy_leave();
        result = adlpy_none(status);
    }
    for (int i = 0; i < 3; i++)
        free(values[i]);
    return result;
}

static PyObject *meter_pair(PyObject *object, PyObject *args)
{
    meter_object *self = (meter_object *)object;
    PyObject *pair, *result = NULL;
    double loss_scale, *values = NULL;
    if (!PyArg_ParseTuple(args, "Od", &pair, &loss_scale))
        return NULL;
    if (pair != Py_None && !(values = adlpy_read_doubles(pair, 3 * self->groups, "pair")))
        return NULL;
    if (adlpy_handle_enter(object, "norms")) {
        adl_status status = adl_meter_pair(self->meter, values, loss_scale);
        adlpy_leave();
        result = adlpy_none(status);
    }
    free(values);
    return result;
}

static PyObject *meter_factors(PyObject *object, PyObject *args)
{
    meter_object *self = (meter_object *)object;
    const char *name;
    double scale;
    adl_scaling_rule rule;
    double power = 0, warmup = 0, data_size = 0;
    if (!PyArg_ParseTuple(args, "sd|ddd", &name, &scale, &power, &warmup, &data_size) ||
        !adlpy_handle_alive(object, "scale_lr"))
        return NULL;
    adl_status status = adl_scaling_parse(name, &rule);
    if (status != ADL_OK)
        return adlpy_raise(status);
    if (power > 0)
        rule.power = power;
    rule.base_warmup_epochs = warmup;
    rule.data_size = data_size;
    status = adl_scaling_check(&rule);
    if (status != ADL_OK)
        return adlpy_raise(status);
    PyObject *list = PyList_New((Py_ssize_t)self->groups);
    for (size_t g = 0; list && g < self->groups; g++) {
        PyObject *value = PyFloat_FromDouble(adl_meter_factor(self->meter, &rule, g, scale));
        if (!value)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)g, value);
    }
    return list;
}

static PyObject *meter_advance(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!adlpy_handle_alive(object, "step"))
        return NULL;
    adl_meter_advance(((meter_object *)object)->meter);
    return adlpy_ref(Py_None);
}

static PyObject *meter_gain(PyObject *object, PyObject *value)
{
    double scale = PyFloat_AsDouble(value);
    if (PyErr_Occurred() || !adlpy_handle_alive(object, "gain"))
        return NULL;
    if (!(scale > 0 && isfinite(scale)))
        return PyErr_Format(PyExc_ValueError, "gain: the scale must be above 0, not %R", value);
    return PyFloat_FromDouble(
        adl_noise_gain(adl_meter_noise(((meter_object *)object)->meter), scale));
}

enum { SQR, VAR, ACCUM_SCALE, ACCUM_COUNT, STEPS, PROGRESS, BIASED, SQRS, VARS };

static PyObject *group_values(const meter_object *self, bool var)
{
    PyObject *list = PyList_New((Py_ssize_t)self->groups);
    for (size_t g = 0; list && g < self->groups; g++) {
        adl_grad_params grad = adl_noise_group_params(adl_meter_noise(self->meter), g);
        PyObject *value = PyFloat_FromDouble(var ? grad.var : grad.sqr);
        if (!value)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)g, value);
    }
    return list;
}

static PyObject *meter_get(PyObject *object, void *which)
{
    meter_object *self = (meter_object *)object;
    if (!adlpy_handle_alive(object, "gradient statistics"))
        return NULL;
    const adl_noise *noise = adl_meter_noise(self->meter);
    switch ((intptr_t)which) {
    case SQR:
        return PyFloat_FromDouble(adl_noise_params(noise).sqr);
    case VAR:
        return PyFloat_FromDouble(adl_noise_params(noise).var);
    case ACCUM_SCALE:
        return PyFloat_FromDouble(adl_meter_accum_scale(self->meter));
    case ACCUM_COUNT:
        return PyLong_FromLong(adl_meter_accum_count(self->meter));
    case STEPS:
        return PyLong_FromLongLong(adl_meter_steps(self->meter));
    case PROGRESS:
        return PyFloat_FromDouble(adl_noise_progress(noise));
    case BIASED:
        return PyBool_FromLong(adl_noise_biased(noise));
    default:
        return group_values(self, (intptr_t)which == VARS);
    }
}

static int meter_set_progress(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    double progress = value ? PyFloat_AsDouble(value) : -1;
    if (PyErr_Occurred() || !adlpy_handle_alive(object, "set_progress"))
        return -1;
    if (!(progress >= 0 && isfinite(progress))) {
        PyErr_SetString(PyExc_ValueError, "progress must be a number of at least 0");
        return -1;
    }
    adl_meter_set_progress(((meter_object *)object)->meter, progress);
    return 0;
}

static int meter_set_accum_scale(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    double scale = value ? PyFloat_AsDouble(value) : -1;
    if (PyErr_Occurred() || !adlpy_handle_alive(object, "set_accum_scale"))
        return -1;
    if (!(scale > 0 && isfinite(scale))) {
        PyErr_SetString(PyExc_ValueError, "accum_scale must be above 0");
        return -1;
    }
    adl_meter_set_accum_scale(((meter_object *)object)->meter, scale);
    return 0;
}

static PyMethodDef methods[] = {
    {"begin", meter_begin, METH_NOARGS,
     "begin()\n--\n\nA backward pass: (optim_step, micro, single, new_batch, weight)."},
    {"step", meter_step, METH_NOARGS,
     "step()\n--\n\n(scale, measured, restart) of the step; None: it is void."},
    {"norms", meter_norms, METH_VARARGS,
     "norms(local, total, passes, loss_scale, /)\n--\n\nOf the oldest step without."},
    {"pair", meter_pair, METH_VARARGS, "pair(values, loss_scale, /)\n--\n\nOf a single gradient."},
    {"factors", meter_factors, METH_VARARGS,
     "factors(rule, scale, power=0, warmup=0, data_size=0, /)\n--\n\nOn the learning rates."},
    {"advance", meter_advance, METH_NOARGS, "advance()\n--\n\nThe optimizer has stepped."},
    {"gain", meter_gain, METH_O, "gain(scale, /)\n--\n\nOf the summed statistics."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"sqr", meter_get, NULL, "|G|^2", (void *)SQR},
    {"var", meter_get, NULL, "tr(Sigma)", (void *)VAR},
    {"sqrs", meter_get, NULL, "|G|^2 of each group", (void *)SQRS},
    {"vars", meter_get, NULL, "tr(Sigma) of each group", (void *)VARS},
    {"accum_scale", meter_get, meter_set_accum_scale, "R m / B0", (void *)ACCUM_SCALE},
    {"accum_count", meter_get, NULL, "micro-gradients of the last step", (void *)ACCUM_COUNT},
    {"steps", meter_get, NULL, "since moments were restarted", (void *)STEPS},
    {"progress", meter_get, meter_set_progress, "scale-invariant iterations", (void *)PROGRESS},
    {"biased", meter_get, NULL, "from single gradients?", (void *)BIASED},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, adlpy_handle_new},
    {Py_tp_init, meter_init},
    {Py_tp_dealloc, adlpy_handle_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Meter(name, groups)\n--\n\nGradient statistics of one wrapper."},
    {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.Meter", sizeof(meter_object), 0, Py_TPFLAGS_DEFAULT,
                           slots};

/* The estimator alone, without a context: tests compare it with the rest. */
static PyObject *noise_of(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *steps;
    int groups;
    if (!PyArg_ParseTuple(args, "iO", &groups, &steps))
        return NULL;
    adl_noise *noise = NULL;
    adl_status status = groups < 1 ? ADL_EINVAL : adl_noise_new((size_t)groups, &noise);
    if (status != ADL_OK)
        return adlpy_raise(status);
    PyObject *result = NULL;
    Py_ssize_t count = PySequence_Size(steps);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        PyObject *step = PySequence_GetItem(steps, i), *local, *total;
        double scale, *values[2] = {NULL, NULL};
        int micro;
        if (step && PyTuple_Check(step) &&
            PyArg_ParseTuple(step, "OOid", &local, &total, &micro, &scale) &&
            (values[0] = adlpy_read_doubles(local, (size_t)groups, "local")) &&
            (values[1] = adlpy_read_doubles(total, (size_t)groups, "total"))) {
            status = micro > 1
                         ? adl_noise_update(noise, values[0], values[1], micro, scale, 1, NULL)
                         : adl_noise_update_pair(noise, values[0], values[1], scale, 1, NULL);
            if (status != ADL_OK)
                adlpy_raise(status);
        } else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "steps are tuples (local, total, count, scale)");
        }
        free(values[0]);
        free(values[1]);
        Py_XDECREF(step);
    }
    adl_grad_params grad = adl_noise_params(noise);
    if (!PyErr_Occurred())
        result = Py_BuildValue("(dd)", grad.sqr, grad.var);
    adl_noise_free(noise);
    return result;
}

static PyMethodDef functions[] = {
    {"noise_of", noise_of, METH_VARARGS,
     "noise_of(groups, steps, /)\n--\n\n(|G|^2, tr(Sigma)) after steps of (local, total, count, "
     "scale)."},
    {NULL, NULL, 0, NULL},
};

int adlpy_meter_setup(PyObject *module)
{
    static PyObject *type;
    return adlpy_add_functions(module, functions) == 0
               ? adlpy_add_type(module, "Meter", &spec, &type)
               : -1;
}
