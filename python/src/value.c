/* Python values to bytes and back (the format is in wire.h). Instances of other classes than Python's plain ones
 * travel as plain data under the name of their class, if adaptdl._values knows how; other subclasses as the type
 * that they extend. */
#include "core.h"

#include "wire.h"

#include <stdlib.h>

enum { VALUE_MAX = 1 << 30 }; /* bytes; the group's own limit is lower */

/* ---- encoding ------------------------------------------------------------------------------------ */

static int put_value(adli_buf *out, PyObject *value, int depth);

static int put_bytes(adli_buf *out, char tag, const void *data, size_t length)
{
    adli_buf_append(out, &tag, 1);
    adlpy_wire_u64(out, length);
    adli_buf_append(out, data, length);
    return 0;
}

/* A bytes object, taken. */
static int put_object(adli_buf *out, char tag, PyObject *bytes)
{
    char *data;
    Py_ssize_t length;
    int result = -1;
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &length) == 0)
        result = put_bytes(out, tag, data, (size_t)length);
    Py_XDECREF(bytes);
    return result;
}

static int put_double(adli_buf *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    adlpy_wire_u64(out, bits);
    return 0;
}

static int put_int(adli_buf *out, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (!overflow) {
        adli_buf_append(out, "i", 1);
        adlpy_wire_u64(out, (uint64_t)number);
        return 0;
    }
    PyObject *bits = PyObject_CallMethod(value, "bit_length", NULL);
    long length = bits ? PyLong_AsLong(bits) : -1;
    Py_XDECREF(bits);
    if (length < 0)
        return -1;
    PyObject *to_bytes = PyObject_GetAttrString(value, "to_bytes");
    PyObject *args = Py_BuildValue("(ls)", length / 8 + 1, "little");
    PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
    PyObject *bytes = to_bytes && args && keywords ? PyObject_Call(to_bytes, args, keywords) : NULL;
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(to_bytes);
    return put_object(out, 'I', bytes);
}

/* Lists, tuples and sets. */
static int put_items(adli_buf *out, char tag, PyObject *value, int depth)
{
    PyObject *items = PySequence_List(value); /* others may change the original meanwhile */
    Py_ssize_t count = items ? PyList_Size(items) : -1;
    adli_buf_append(out, &tag, 1);
    adlpy_wire_u64(out, (uint64_t)count);
    int result = count < 0 ? -1 : 0;
    for (Py_ssize_t i = 0; result == 0 && i < count; i++)
        result = put_value(out, PyList_GetItem(items, i), depth + 1);
    Py_XDECREF(items);
    return result;
}

static int put_dict(adli_buf *out, PyObject *value, int depth)
{
    PyObject *items = PyDict_Items(value);
    Py_ssize_t count = items ? PyList_Size(items) : -1;
    adli_buf_append(out, "m", 1);
    adlpy_wire_u64(out, (uint64_t)count);
    int result = count < 0 ? -1 : 0;
    for (Py_ssize_t i = 0; result == 0 && i < count; i++) {
        PyObject *pair = PyList_GetItem(items, i);
        result = put_value(out, PyTuple_GetItem(pair, 0), depth + 1);
        if (result == 0)
            result = put_value(out, PyTuple_GetItem(pair, 1), depth + 1);
    }
    Py_XDECREF(items);
    return result;
}

/* An attribute of a module that is loaded already, or NULL without an exception. */
static PyObject *loaded(const char *module, const char *name)
{
    PyObject *modules = PySys_GetObject("modules");
    PyObject *found = modules ? PyDict_GetItemString(modules, module) : NULL;
    PyObject *attribute = found ? PyObject_GetAttrString(found, name) : NULL;
    PyErr_Clear();
    return attribute;
}

static bool is_a(PyObject *value, const char *module, const char *name)
{
    PyObject *type = loaded(module, name);
    int result = type && PyType_Check(type) ? PyObject_IsInstance(value, type) : 0;
    Py_XDECREF(type);
    PyErr_Clear();
    return result > 0;
}

/* dtype.kind and dtype.itemsize of something of NumPy's, if it is of a kind that can travel. */
static int element_type(PyObject *array, char *kind, int *bytes)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    PyObject *letter = dtype ? PyObject_GetAttrString(dtype, "kind") : NULL;
    PyObject *size = dtype ? PyObject_GetAttrString(dtype, "itemsize") : NULL;
    PyObject *text = letter ? PyUnicode_AsUTF8String(letter) : NULL;
    const char *first = text ? PyBytes_AsString(text) : NULL;
    *bytes = size ? (int)PyLong_AsLong(size) : -1;
    *kind = first ? *first : '?';
    int result = PyErr_Occurred() ? -1 : 0;
    if (result == 0 && !adlpy_wire_element(*kind, *bytes)) {
        PyErr_Format(PyExc_TypeError, "arrays of %S cannot be sent to other replicas", dtype);
        result = -1;
    }
    Py_XDECREF(text);
    Py_XDECREF(size);
    Py_XDECREF(letter);
    Py_XDECREF(dtype);
    return result;
}

static int put_shape(adli_buf *out, PyObject *array)
{
    PyObject *shape = PyObject_GetAttrString(array, "shape");
    Py_ssize_t dims = shape ? PyTuple_Size(shape) : -1;
    int result = dims < 0 ? -1 : 0;
    char byte = (char)dims;
    if (dims > ADLPY_WIRE_DIMS) {
        PyErr_Format(PyExc_TypeError, "arrays of more than %d dimensions cannot be sent",
                     ADLPY_WIRE_DIMS);
        result = -1;
    }
    if (result == 0)
        adli_buf_append(out, &byte, 1);
    for (Py_ssize_t i = 0; result == 0 && i < dims; i++) {
        unsigned long long size = PyLong_AsUnsignedLongLong(PyTuple_GetItem(shape, i));
        result = PyErr_Occurred() ? -1 : 0;
        adlpy_wire_u64(out, size);
    }
    Py_XDECREF(shape);
    return result;
}

/* Something with NumPy's dtype, shape and tobytes. */
static int put_array(adli_buf *out, char tag, PyObject *array)
{
    char kind;
    int item;
    if (element_type(array, &kind, &item) != 0)
        return -1;
    char head[3] = {tag, kind, (char)item};
    adli_buf_append(out, head, sizeof head);
    if (put_shape(out, array) != 0)
        return -1;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    PyObject *order = dtype ? PyObject_CallMethod(dtype, "newbyteorder", "s", "<") : NULL;
    PyObject *little = order ? PyObject_CallMethod(array, "astype", "O", order) : NULL;
    PyObject *bytes = little ? PyObject_CallMethod(little, "tobytes", NULL) : NULL;
    char *data;
    Py_ssize_t length;
    int result = -1;
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &length) == 0) {
        adli_buf_append(out, data, (size_t)length);
        result = 0;
    }
    Py_XDECREF(bytes);
    Py_XDECREF(little);
    Py_XDECREF(order);
    Py_XDECREF(dtype);
    return result;
}

static int put_tensor(adli_buf *out, PyObject *tensor)
{
    PyObject *detached = PyObject_CallMethod(tensor, "detach", NULL);
    PyObject *here = detached ? PyObject_CallMethod(detached, "cpu", NULL) : NULL;
    PyObject *array = here ? PyObject_CallMethod(here, "numpy", NULL) : NULL;
    int result = array ? put_array(out, 'u', array) : -1;
    Py_XDECREF(array);
    Py_XDECREF(here);
    Py_XDECREF(detached);
    return result;
}

/* A value of a class of its own, as adaptdl._values.dump has it: 1 when it was written, 0 when its class is not
 * known there, -1 with an exception. */
static int put_instance(adli_buf *out, PyObject *value, int depth)
{
    PyObject *module = PyImport_ImportModule("adaptdl._values");
    PyObject *pair = module ? PyObject_CallMethod(module, "dump", "(O)", value) : NULL, *name,
             *data;
    int result = pair == Py_None ? 0 : -1;
    if (pair && pair != Py_None && PyArg_ParseTuple(pair, "UO", &name, &data) &&
        put_object(out, 'o', PyUnicode_AsUTF8String(name)) == 0 &&
        put_value(out, data, depth + 1) == 0)
        result = 1;
    Py_XDECREF(pair);
    Py_XDECREF(module);
    return result;
}

/* Is it of one of Python's plain types, and not of a subclass? */
static bool is_plain(PyObject *value)
{
    static PyTypeObject *const types[] = {&PyLong_Type,    &PyFloat_Type,    &PyComplex_Type,
                                          &PyUnicode_Type, &PyBytes_Type,    &PyByteArray_Type,
                                          &PyList_Type,    &PyTuple_Type,    &PyDict_Type,
                                          &PySet_Type,     &PyFrozenSet_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (Py_TYPE(value) == types[i])
            return true;
    return false;
}

static int put_other(adli_buf *out, PyObject *value)
{
    if (is_a(value, "numpy", "ndarray"))
        return put_array(out, 'a', value);
    if (is_a(value, "numpy", "generic"))
        return put_array(out, 'g', value);
    if (is_a(value, "torch", "Tensor"))
        return put_tensor(out, value);
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__qualname__");
    if (name)
        PyErr_Format(
            PyExc_TypeError,
            "%S cannot be sent to other replicas: use None, bool, int, float, complex, str, "
            "bytes, list, tuple, dict, set, NumPy arrays and tensors of numbers, named tuples and "
            "dataclasses, or tell adaptdl.collective.register how",
            name);
    Py_XDECREF(name);
    return -1;
}

static int put_value(adli_buf *out, PyObject *value, int depth)
{
    if (!value)
        return -1;
    if (depth > ADLPY_WIRE_DEPTH) {
        PyErr_Format(PyExc_ValueError,
                     "values nested deeper than %d, or in themselves, cannot be sent",
                     ADLPY_WIRE_DEPTH);
        return -1;
    }
    if (adli_buf_check(out) != ADL_OK) {
        PyErr_SetString(PyExc_ValueError, "the value is too large to be sent to other replicas");
        return -1;
    }
    if (value == Py_None || value == Py_True || value == Py_False) {
        adli_buf_append(out, value == Py_None ? "N" : value == Py_True ? "T" : "F", 1);
        return 0;
    }
    int written = is_plain(value) ? 0 : put_instance(out, value, depth);
    if (written != 0)
        return written < 0 ? -1 : 0;
    if (PyLong_Check(value))
        return put_int(out, value);
    if (PyFloat_Check(value)) {
        adli_buf_append(out, "d", 1);
        return put_double(out, PyFloat_AsDouble(value));
    }
    if (PyComplex_Check(value)) {
        adli_buf_append(out, "c", 1);
        put_double(out, PyComplex_RealAsDouble(value));
        return put_double(out, PyComplex_ImagAsDouble(value));
    }
    if (PyUnicode_Check(value))
        return put_object(out, 's', PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass"));
    if (PyBytes_Check(value))
        return put_object(out, 'b', adlpy_ref(value));
    if (PyByteArray_Check(value))
        return put_object(out, 'y', PyBytes_FromObject(value));
    if (PyList_Check(value) || PyTuple_Check(value))
        return put_items(out, PyList_Check(value) ? 'l' : 't', value, depth);
    if (PyDict_Check(value))
        return put_dict(out, value, depth);
    if (PyObject_TypeCheck(value, &PySet_Type) || PyObject_TypeCheck(value, &PyFrozenSet_Type))
        return put_items(out, PyObject_TypeCheck(value, &PySet_Type) ? 'S' : 'Z', value, depth);
    return put_other(out, value);
}

PyObject *adlpy_value_encode(PyObject *value)
{
    adli_buf out;
    PyObject *result = NULL;
    char version = ADLPY_WIRE_VERSION;
    adli_buf_init(&out, VALUE_MAX);
    adli_buf_append(&out, &version, 1);
    if (put_value(&out, value, 0) == 0) {
        adl_status status = adli_buf_check(&out);
        result = status == ADL_OK ? PyBytes_FromStringAndSize(out.data, (Py_ssize_t)out.length)
                                  : adlpy_raise(status);
    }
    adli_buf_fini(&out);
    return result;
}

/* ---- decoding ------------------------------------------------------------------------------------ */

static PyObject *get_value(adli_reader *reader, int depth);

static PyObject *get_int(const adlpy_token *token)
{
    PyObject *from_bytes = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes");
    PyObject *args = Py_BuildValue("(y#s)", token->data, (Py_ssize_t)token->length, "little");
    PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
    PyObject *value =
        from_bytes && args && keywords ? PyObject_Call(from_bytes, args, keywords) : NULL;
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(from_bytes);
    return value;
}

/* After a failed insertion: a list as a key is the peer's fault, not a type error of this program. */
static void unhashable(void)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError))
        return;
    PyErr_Clear();
    PyErr_SetString(PyExc_ValueError, "a peer sent a dict or set with an unhashable key");
}

/* Lists grow item by item: the count is a peer's claim. */
static PyObject *get_items(adli_reader *reader, const adlpy_token *token, int depth)
{
    PyObject *list = PyList_New(0), *result = NULL;
    for (uint64_t i = 0; list && i < token->count; i++) {
        PyObject *item = get_value(reader, depth + 1);
        if (!item || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    if (!list || token->tag == 'l')
        return list;
    result = token->tag == 't'   ? PyList_AsTuple(list)
             : token->tag == 'S' ? PySet_New(list)
                                 : PyFrozenSet_New(list);
    Py_DECREF(list);
    if (!result)
        unhashable();
    return result;
}

static PyObject *get_dict(adli_reader *reader, const adlpy_token *token, int depth)
{
    PyObject *dict = PyDict_New();
    for (uint64_t i = 0; dict && i < token->count; i++) {
        PyObject *key = get_value(reader, depth + 1);
        PyObject *value = key ? get_value(reader, depth + 1) : NULL;
        if (!value) {
            Py_CLEAR(dict);
        } else if (PyDict_SetItem(dict, key, value) != 0) {
            unhashable();
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
        Py_XDECREF(key);
    }
    return dict;
}

static PyObject *shape_of(const adlpy_token *token)
{
    PyObject *shape = PyTuple_New(token->dims);
    for (int i = 0; shape && i < token->dims; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(token->shape[i]);
        if (!size || PyTuple_SetItem(shape, i, size) != 0)
            Py_CLEAR(shape);
    }
    return shape;
}

/* numpy.frombuffer(bytearray(data), dtype).reshape(shape): writable, of the machine's byte order. */
static PyObject *get_array(const adlpy_token *token)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *dtype = PyUnicode_FromFormat("<%c%d", token->kind, token->item_bytes);
    PyObject *data = PyByteArray_FromStringAndSize(token->data, (Py_ssize_t)token->length);
    PyObject *shape = shape_of(token), *flat = NULL, *array = NULL;
    if (numpy && dtype && data && shape && token->length > 0)
        flat = PyObject_CallMethod(numpy, "frombuffer", "OO", data, dtype);
    else if (numpy && dtype && data && shape)
        flat = PyObject_CallMethod(numpy, "zeros", "iO", 0, dtype); /* frombuffer wants bytes */
    if (flat)
        array = PyObject_CallMethod(flat, "reshape", "(O)", shape);
    Py_XDECREF(flat);
    Py_XDECREF(shape);
    Py_XDECREF(data);
    Py_XDECREF(dtype);
    Py_XDECREF(numpy);
    if (!array || token->tag == 'a')
        return array;
    PyObject *result = NULL;
    if (token->tag == 'g') {
        PyObject *whole = PyTuple_New(0);
        result = whole ? PyObject_GetItem(array, whole) : NULL;
        Py_XDECREF(whole);
    } else {
        PyObject *torch = PyImport_ImportModule("torch");
        result = torch ? PyObject_CallMethod(torch, "from_numpy", "O", array) : NULL;
        Py_XDECREF(torch);
    }
    Py_DECREF(array);
    return result;
}

static PyObject *get_instance(adli_reader *reader, const adlpy_token *token, int depth)
{
    PyObject *name = PyUnicode_DecodeUTF8(token->data, (Py_ssize_t)token->length, "strict");
    PyObject *data = name ? get_value(reader, depth + 1) : NULL;
    PyObject *module = data ? PyImport_ImportModule("adaptdl._values") : NULL;
    PyObject *value = module ? PyObject_CallMethod(module, "load", "OO", name, data) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(data);
    Py_XDECREF(name);
    return value;
}

static PyObject *get_value(adli_reader *reader, int depth)
{
    adlpy_token token;
    if (depth > ADLPY_WIRE_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "a peer sent a value that is nested too deep");
        return NULL;
    }
    adl_status status = adlpy_wire_next(reader, &token);
    if (status != ADL_OK)
        return adlpy_raise(status);
    switch (token.tag) {
    case 'N':
        return adlpy_ref(Py_None);
    case 'T':
    case 'F':
        return PyBool_FromLong(token.tag == 'T');
    case 'i':
        return PyLong_FromLongLong(token.integer);
    case 'I':
        return get_int(&token);
    case 'd':
        return PyFloat_FromDouble(token.real);
    case 'c':
        return PyComplex_FromDoubles(token.real, token.imaginary);
    case 's':
        return PyUnicode_DecodeUTF8(token.data, (Py_ssize_t)token.length, "surrogatepass");
    case 'b':
        return PyBytes_FromStringAndSize(token.data, (Py_ssize_t)token.length);
    case 'y':
        return PyByteArray_FromStringAndSize(token.data, (Py_ssize_t)token.length);
    case 'm':
        return get_dict(reader, &token, depth);
    case 'o':
        return get_instance(reader, &token, depth);
    case 'a':
    case 'g':
    case 'u':
        return get_array(&token);
    default:
        return get_items(reader, &token, depth);
    }
}

PyObject *adlpy_value_decode(const void *data, size_t length)
{
    adli_reader reader;
    adl_status status = adlpy_wire_begin(data, length, &reader);
    if (status != ADL_OK)
        return adlpy_raise(status);
    PyObject *value = get_value(&reader, 0);
    if (value && (status = adlpy_wire_end(&reader)) != ADL_OK) {
        Py_CLEAR(value);
        adlpy_raise(status);
    }
    return value;
}

static PyObject *value_encode(PyObject *self, PyObject *value)
{
    (void)self;
    return adlpy_value_encode(value);
}

static PyObject *value_decode(PyObject *self, PyObject *bytes)
{
    (void)self;
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &data, &length) != 0)
        return NULL;
    return adlpy_value_decode(data, (size_t)length);
}

static PyMethodDef functions[] = {
    {"value_encode", value_encode, METH_O,
     "value_encode(value, /)\n--\n\nThe bytes that collectives send for a value."},
    {"value_decode", value_decode, METH_O, "value_decode(data, /)\n--\n\nThe value of such bytes."},
    {NULL, NULL, 0, NULL},
};

int adlpy_value_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
