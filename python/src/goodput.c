/* The goodput model for adaptdl.goodput. Each function reads its arguments as arrays, broadcasts them,
 * and asks the library for each element. */
#include "array.h"

#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"
#include "adaptdl/scaling.h"
#include "base/mem.h"
#include "model/perf.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "(perf_params, grad_params, init_batch_size)" of a GoodputFunction. */
static int read_model(PyObject *model, adl_goodput *out)
{
    PyObject *perf;
    if (!PyTuple_Check(model)) {
        PyErr_SetString(PyExc_TypeError, "the model must be a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(model, "O!(dd)d;expected PerfParams, GradParams and a batch size",
                          &PyTuple_Type, &perf, &out->grad.sqr, &out->grad.var,
                          &out->init_batch_size))
        return -1;
    if (PyTuple_Size(perf) != ADLI_PERF_COUNT) {
        PyErr_Format(PyExc_TypeError, "PerfParams must be %d numbers, not %zd", ADLI_PERF_COUNT,
                     PyTuple_Size(perf));
        return -1;
    }
    for (int i = 0; i < ADLI_PERF_COUNT && !PyErr_Occurred(); i++)
        adli_perf_set(&out->perf, i, PyFloat_AsDouble(PyTuple_GetItem(perf, i)));
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *adlpy_perf(const adl_perf_params *from)
{
    PyObject *perf = PyTuple_New(ADLI_PERF_COUNT);
    for (int i = 0; i < ADLI_PERF_COUNT && perf; i++) /* a NULL in it is found by Python */
        PyTuple_SetItem(perf, i, PyFloat_FromDouble(adli_perf_get(from, i)));
    return perf;
}

static PyObject *goodput_check(PyObject *self, PyObject *model)
{
    (void)self;
    adl_goodput goodput;
    return read_model(model, &goodput) == 0 ? adlpy_none(adl_goodput_check(&goodput)) : NULL;
}

/* A whole number that fits an int; the library says what else is wrong with it. */
static int whole(double value, const char *name, int *out)
{
    if (!(value >= INT_MIN && value <= INT_MAX) || value != floor(value)) {
        char text[40];
        snprintf(text, sizeof text, "%.17g", value);
        PyErr_Format(PyExc_ValueError, "%s must be a whole number, not %s", name, text);
        return -1;
    }
    *out = (int)value;
    return 0;
}

/* ---- evaluate, throughput, efficiency ------------------------------------------------------------ */

static int evaluate_one(const adl_goodput *model, char what, const double *x, double *out)
{
    int nodes, replicas, steps;
    adl_status status;
    if (what == 'e') {
        status = adl_efficiency(model, x[0], out);
    } else {
        if (whole(x[0], "num_nodes", &nodes) != 0 || whole(x[1], "num_replicas", &replicas) != 0 ||
            whole(x[3], "accum_steps", &steps) != 0)
            return -1;
        status = what == 't'
                     ? adl_throughput(model, adl_shape_of(nodes, replicas), x[2], steps, out)
                     : adl_goodput_evaluate(model, adl_shape_of(nodes, replicas), x[2], steps, out);
    }
    if (status != ADL_OK)
        adlpy_raise(status);
    return status == ADL_OK ? 0 : -1;
}

/* goodput_evaluate(model, "g" | "t" | "e", arguments...) */
static PyObject *goodput_evaluate(PyObject *self, PyObject *args)
{
    (void)self;
    static const char *const names[] = {"num_nodes", "num_replicas", "atomic_bsz", "accum_steps"};
    adl_goodput model;
    adlpy_array input[4] = {{0}}, shape, *inputs[4] = {&input[0], &input[1], &input[2], &input[3]};
    PyObject *given, *from[4] = {NULL}, *result = NULL;
    const char *what;
    double *out = NULL;
    if (!PyArg_ParseTuple(args, "OsO|OOO", &given, &what, &from[0], &from[1], &from[2], &from[3]) ||
        read_model(given, &model) != 0)
        return NULL;
    size_t count = *what == 'e' ? 1 : 4;
    if (!strchr("gte", *what) || (*what != 'e' && !from[3]))
        return PyErr_Format(PyExc_TypeError, "goodput_evaluate: bad arguments");
    bool fine = true;
    for (size_t k = 0; k < count && fine; k++)
        fine = adlpy_array_init(&input[k], from[k], *what == 'e' ? "batch_size" : names[k]) == 0;
    if (fine && adlpy_array_broadcast(inputs, count, &shape) == 0) {
        out = adli_calloc(shape.count, sizeof *out);
        fine = out != NULL;
        if (!fine)
            PyErr_NoMemory();
        for (size_t i = 0; fine && i < shape.count; i++) {
            double x[4];
            for (size_t k = 0; k < count; k++)
                x[k] = adlpy_array_at(&input[k], &shape, i);
            fine = evaluate_one(&model, *what, x, &out[i]) == 0;
        }
        if (fine)
            result = adlpy_array_result(&shape, out, false);
    }
    free(out);
    for (size_t k = 0; k < count; k++)
        adlpy_array_fini(&input[k]);
    return result;
}

/* ---- optimize ------------------------------------------------------------------------------------ */

static int optimize_all(const adl_goodput *model, const adl_batch_limits *limits,
                        const adlpy_array *nodes, const adlpy_array *replicas,
                        const adlpy_array *shape, double *goodput, double *bsz, double *steps)
{
    for (size_t i = 0; i < shape->count; i++) {
        adl_batch_choice choice;
        int n, r;
        if (whole(adlpy_array_at(nodes, shape, i), "num_nodes", &n) != 0 ||
            whole(adlpy_array_at(replicas, shape, i), "num_replicas", &r) != 0)
            return -1;
        adl_status status = adl_goodput_optimize(model, limits, adl_shape_of(n, r), &choice);
        if (status != ADL_OK) {
            adlpy_raise(status);
            return -1;
        }
        goodput[i] = choice.goodput;
        bsz[i] = choice.local_bsz;
        steps[i] = choice.accum_steps;
    }
    return 0;
}

static PyObject *goodput_optimize(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *given, *from_nodes, *from_replicas, *result = NULL;
    adl_goodput model;
    adl_batch_limits limits = {0};
    int accumulation;
    adlpy_array nodes, replicas = {0}, shape;
    if (!PyArg_ParseTuple(args, "OOOdddp", &given, &from_nodes, &from_replicas,
                          &limits.max_batch_size, &limits.min_local_bsz, &limits.max_local_bsz,
                          &accumulation) ||
        read_model(given, &model) != 0 || adlpy_array_init(&nodes, from_nodes, "num_nodes") != 0)
        return NULL;
    limits.accumulation = accumulation != 0;
    adlpy_array *inputs[] = {&nodes, &replicas};
    double *out = NULL;
    if (adlpy_array_init(&replicas, from_replicas, "num_replicas") == 0 &&
        adlpy_array_broadcast(inputs, 2, &shape) == 0) {
        size_t n = shape.count;
        out = adli_calloc(n, 3 * sizeof *out);
        if (!out)
            PyErr_NoMemory();
        else if (optimize_all(&model, &limits, &nodes, &replicas, &shape, out, out + n,
                              out + 2 * n) == 0)
            result = Py_BuildValue("NNN", adlpy_array_result(&shape, out, false),
                                   adlpy_array_result(&shape, out + n, true),
                                   adlpy_array_result(&shape, out + 2 * n, true));
    }
    free(out);
    adlpy_array_fini(&replicas);
    adlpy_array_fini(&nodes);
    return result;
}

/* ---- fit ----------------------------------------------------------------------------------------- */

enum { FIT_INPUTS = 5 };

static PyObject *fit(adlpy_array *inputs, const adlpy_array *shape)
{
    adl_profile_point *points = adli_calloc(shape->count, sizeof *points);
    adl_fit_result fitted;
    if (!points)
        return PyErr_NoMemory();
    for (size_t i = 0; i < shape->count; i++) {
        adl_profile_point *point = &points[i];
        if (whole(adlpy_array_at(&inputs[0], shape, i), "num_nodes", &point->nodes) != 0 ||
            whole(adlpy_array_at(&inputs[1], shape, i), "num_replicas", &point->replicas) != 0) {
            free(points);
            return NULL;
        }
        point->local_bsz = adlpy_array_at(&inputs[2], shape, i);
        point->accum_time_s = adlpy_array_at(&inputs[3], shape, i);
        point->optim_time_s = adlpy_array_at(&inputs[4], shape, i);
    }
    adl_status status;
    ADLPY_UNLOCKED(status = adl_fit(points, shape->count, &fitted));
    free(points);
    if (status != ADL_OK)
        return adlpy_raise(status);
    return adlpy_perf(&fitted.perf);
}

static PyObject *goodput_fit(PyObject *self, PyObject *args)
{
    (void)self;
    static const char *const names[FIT_INPUTS] = {"num_nodes", "num_replicas", "atomic_bsz",
                                                  "accum_step_time", "optim_step_time"};
    PyObject *from[FIT_INPUTS], *result = NULL;
    adlpy_array inputs[FIT_INPUTS] = {{0}}, *list[FIT_INPUTS], shape;
    if (!PyArg_ParseTuple(args, "OOOOO", &from[0], &from[1], &from[2], &from[3], &from[4]))
        return NULL;
    bool fine = true;
    for (int k = 0; k < FIT_INPUTS && fine; k++) {
        list[k] = &inputs[k];
        fine = adlpy_array_init(&inputs[k], from[k], names[k]) == 0;
    }
    if (fine && adlpy_array_broadcast(list, FIT_INPUTS, &shape) == 0)
        result = fit(inputs, &shape);
    for (int k = 0; k < FIT_INPUTS; k++)
        adlpy_array_fini(&inputs[k]);
    return result;
}

/* ---- scaling rules on given statistics ------------------------------------------------------------- */

static PyObject *factors(const adl_scaling_rule *rule, adl_scaling_input input,
                         adlpy_array *const *grad, const adlpy_array *shape)
{
    double *values = adli_calloc(shape->count ? shape->count : 1, sizeof *values);
    if (!values)
        return PyErr_NoMemory();
    for (size_t i = 0; i < shape->count; i++) {
        input.grad.sqr = adlpy_array_at(grad[0], shape, i);
        input.grad.var = adlpy_array_at(grad[1], shape, i);
        values[i] = adl_scaling_factor(rule, &input);
    }
    PyObject *result = adlpy_array_result(shape, values, false);
    free(values);
    return result;
}

static PyObject *scaling_factors(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    PyObject *sqr, *var, *result = NULL;
    adl_scaling_input input = {0};
    adl_scaling_rule rule;
    double power = 0, warmup = 0, data_size = 0;
    adlpy_array arrays[2] = {{0}}, *list[2] = {&arrays[0], &arrays[1]}, shape;
    if (!PyArg_ParseTuple(args, "sdOOdd|ddd", &name, &input.scale, &sqr, &var, &input.progress,
                          &input.init_batch_size, &power, &warmup, &data_size))
        return NULL;
    adl_status status = adl_scaling_parse(name, &rule);
    if (power > 0)
        rule.power = power;
    rule.base_warmup_epochs = warmup;
    rule.data_size = data_size;
    if (status == ADL_OK)
        status = adl_scaling_check(&rule);
    if (status != ADL_OK)
        return adlpy_raise(status);
    if (adlpy_array_init(&arrays[0], sqr, "raw_sqr_avg") == 0 &&
        adlpy_array_init(&arrays[1], var, "raw_var_avg") == 0 &&
        adlpy_array_broadcast(list, 2, &shape) == 0)
        result = factors(&rule, input, list, &shape);
    adlpy_array_fini(&arrays[0]);
    adlpy_array_fini(&arrays[1]);
    return result;
}

static PyMethodDef functions[] = {
    {"scaling_factors", scaling_factors, METH_VARARGS,
     "scaling_factors(rule, scale, sqr, var, progress, init_batch_size, power=0, warmup=0, "
     "data_size=0, /)\n--\n\nOn the learning rates."},
    {"goodput_check", goodput_check, METH_O,
     "goodput_check(model, /)\n--\n\nRaises ValueError when a parameter is out of range."},
    {"goodput_evaluate", goodput_evaluate, METH_VARARGS,
     "goodput_evaluate(model, what, /, *arguments)\n--\n\n\"g\" goodput, \"t\" throughput, \"e\" "
     "efficiency."},
    {"goodput_optimize", goodput_optimize, METH_VARARGS,
     "goodput_optimize(model, num_nodes, num_replicas, max_batch_size, min_bsz, max_bsz, "
     "accumulation, /)\n--\n\nGoodput, atomic batch size and accumulation steps."},
    {"goodput_fit", goodput_fit, METH_VARARGS,
     "goodput_fit(num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time, /)\n--\n\n"
     "The seven parameters."},
    {NULL, NULL, 0, NULL},
};

int adlpy_goodput_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
