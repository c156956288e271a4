/* The elastic sampler for Python. It needs no context. */
#include "torch.h"

#include "adaptdl/sampler.h"

typedef struct sampler_object {
    PyObject_HEAD adl_sampler *sampler;
} sampler_object;

static int sampler_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    sampler_object *self = (sampler_object *)object;
    static char *names[] = {"examples", "shuffle", "seed", NULL};
    Py_ssize_t examples;
    int shuffle;
    unsigned long long seed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "np|K", names, &examples, &shuffle, &seed))
        return -1;
    adl_sampler *made;
    adl_status status =
        adl_sampler_new(examples < 0 ? 0 : (size_t)examples, shuffle != 0, seed, &made);
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    adl_sampler_free(self->sampler);
    self->sampler = made;
    return 0;
}

static void sampler_dealloc(PyObject *object)
{
    adl_sampler_free(((sampler_object *)object)->sampler);
    adlpy_handle_dealloc(object);
}

static adl_sampler *sampler_of(PyObject *object)
{
    adl_sampler *sampler = ((sampler_object *)object)->sampler;
    if (!sampler)
        PyErr_SetString(PyExc_RuntimeError, "sampler: it was not initialized");
    return sampler;
}

static PyObject *sampler_seek(PyObject *object, PyObject *args)
{
    adl_sampler *sampler = sampler_of(object);
    int epoch, rank, replicas;
    unsigned long long index;
    PyObject *place;
    Py_ssize_t deal = 0;
    if (!sampler || !PyArg_ParseTuple(args, "iOii|n", &epoch, &place, &rank, &replicas, &deal))
        return NULL;
    index = PyLong_AsUnsignedLongLong(place); /* the format K would not check */
    if (PyErr_Occurred())
        return NULL;
    adl_status status = adl_sampler_seek(sampler, epoch, index, rank, replicas);
    if (status != ADL_OK)
        return adlpy_raise(status);
    adl_sampler_deal(sampler, deal > 0 ? (size_t)deal : 0);
    return PyLong_FromSize_t(adl_sampler_length(sampler));
}

static PyObject *sampler_take(PyObject *object, PyObject *args)
{
    adl_sampler *sampler = sampler_of(object);
    Py_ssize_t first, count;
    if (!sampler || !PyArg_ParseTuple(args, "nn", &first, &count))
        return NULL;
    Py_ssize_t length = (Py_ssize_t)adl_sampler_length(sampler);
    if (first < 0 || count < 0 || first > length)
        return PyErr_Format(PyExc_IndexError, "sampler: %zd of %zd elements", first, length);
    if (count > length - first)
        count = length - first;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *value = PyLong_FromSize_t(adl_sampler_get(sampler, (size_t)(first + i)));
        if (!value)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, value);
    }
    return list;
}

static PyObject *sampler_padded(PyObject *object, void *unused)
{
    (void)unused;
    adl_sampler *sampler = sampler_of(object);
    return sampler ? PyBool_FromLong(adl_sampler_padded(sampler)) : NULL;
}

static PyMethodDef methods[] = {
    {"seek", sampler_seek, METH_VARARGS,
     "seek(epoch, index, rank, replicas, deal=0, /)\n--\n\nGoes there; how many elements follow."},
    {"take", sampler_take, METH_VARARGS, "take(first, count, /)\n--\n\nA list of them."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"padded", sampler_padded, NULL, "Is the last one another replica's too?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, adlpy_handle_new},
    {Py_tp_init, sampler_init},
    {Py_tp_dealloc, sampler_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Sampler(examples, shuffle, seed=0)\n--\n\nWhich example comes next."},
    {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.Sampler", sizeof(sampler_object), 0, Py_TPFLAGS_DEFAULT,
                           slots};

int adlpy_sampler_setup(PyObject *module)
{
    static PyObject *type;
    return adlpy_add_type(module, "Sampler", &spec, &type);
}
