/* Scheduling policies for adaptdl.policy: a snapshot as JSON in, a decision as JSON out. All that decides is in
 * the library; a Policy object is one of its policies with what it remembers from round to round. */
#include "core.h"

#include "adaptdl/snapshot.h"
#include "policy/explore.h"

#include <stdlib.h>

typedef struct policy_object {
    PyObject_HEAD adl_policy *policy;
    bool busy; /* a thread decides with it */
} policy_object;

static PyObject *policy_type;

/* parameters: a dict of numbers, or None. */
static int set_parameters(adl_policy *policy, PyObject *parameters)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (parameters == Py_None)
        return 0;
    if (!PyDict_Check(parameters)) {
        PyErr_SetString(PyExc_TypeError, "parameters must be a dict of numbers by name");
        return -1;
    }
    while (PyDict_Next(parameters, &at, &key, &value)) {
        PyObject *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8String(key) : NULL;
        double number = name ? PyFloat_AsDouble(value) : 0;
        if (!name && !PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "parameters must be a dict of numbers by name");
        adl_status status = ADL_OK;
        if (!PyErr_Occurred()) {
            status = adl_policy_set(policy, PyBytes_AsString(name), number);
            if (status != ADL_OK)
                adlpy_raise(status);
        }
        Py_XDECREF(name);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *policy_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "parameters", NULL};
    const char *name;
    PyObject *parameters = Py_None;
    adl_policy *policy;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|O:Policy", names, &name, &parameters))
        return NULL;
    adl_status status = adl_policy_new(name, &policy);
    if (status != ADL_OK)
        return adlpy_raise(status);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    policy_object *self = NULL;
    if (set_parameters(policy, parameters) == 0)
        self = (policy_object *)allocate(type, 0);
    if (!self) {
        adl_policy_free(policy);
        return NULL;
    }
    self->policy = policy;
    return (PyObject *)self;
}

static void policy_free(PyObject *object)
{
    policy_object *self = (policy_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    adl_policy_free(self->policy);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *answer_of(adl_status status, char *answer)
{
    if (status != ADL_OK)
        return adlpy_raise(status);
    PyObject *text = PyUnicode_FromString(answer);
    free(answer);
    return text;
}

static PyObject *policy_decide(PyObject *object, PyObject *args)
{
    policy_object *self = (policy_object *)object;
    const char *text;
    Py_ssize_t length;
    char *answer = NULL;
    adl_status status;
    if (!PyArg_ParseTuple(args, "s#:decide", &text, &length))
        return NULL;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread decides with this policy");
        return NULL;
    }
    self->busy = true;
    ADLPY_UNLOCKED(status = adl_decide_text(self->policy, text, (size_t)length, &answer));
    self->busy = false;
    return answer_of(status, answer);
}

static PyObject *decide_alone(PyObject *self, PyObject *args)
{
    const char *text;
    Py_ssize_t length;
    char *answer = NULL;
    adl_status status;
    (void)self;
    if (!PyArg_ParseTuple(args, "s#:decide", &text, &length))
        return NULL;
    ADLPY_UNLOCKED(status = adl_decide_text(NULL, text, (size_t)length, &answer));
    return answer_of(status, answer);
}

static PyObject *most_replicas(PyObject *self, PyObject *args)
{
    int profiled, min, max;
    adl_batch_limits limits = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "iddii:policy_most", &profiled, &limits.max_batch_size,
                          &limits.min_local_bsz, &min, &max))
        return NULL;
    return PyLong_FromLong(adli_explore_most(profiled, adli_explore_batch_cap(&limits), min, max));
}

static PyObject *list_policies(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyObject *list = PyList_New(0);
    const char *name;
    for (int i = 0; list && (name = adl_policy_list(i, NULL)); i++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyList_Append(list, text) != 0)
            Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"decide", policy_decide, METH_VARARGS, "decide(snapshot, /)\n--\n\nJSON in, JSON out."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)policy_new},
    {Py_tp_dealloc, (void *)policy_free},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Policy(name, parameters=None)\n--\n\nA scheduling policy of the library."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "adaptdl._core.Policy",
                           .basicsize = sizeof(policy_object),
                           .flags = Py_TPFLAGS_DEFAULT,
                           .slots = slots};

static PyMethodDef functions[] = {
    {"policy_decide", decide_alone, METH_VARARGS,
     "policy_decide(snapshot, /)\n--\n\nThe decision of the policy that the snapshot names."},
    {"policy_most", most_replicas, METH_VARARGS,
     "policy_most(profiled, max_batch_size, min_local_bsz, min, max, /)\n--\n\n"
     "How many replicas a job may have that was measured on so many."},
    {"policy_list", list_policies, METH_NOARGS, "policy_list()\n--\n\nThe default comes first."},
    {NULL, NULL, 0, NULL},
};

int adlpy_policy_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions) == 0
               ? adlpy_add_type(module, "Policy", &spec, &policy_type)
               : -1;
}
