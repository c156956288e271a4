#include "array.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void adlpy_array_fini(adlpy_array *array)
{
    free(array->data);
    *array = (adlpy_array){0};
}

static int no_number(const char *name)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be a number, or an array or sequence of numbers",
                     name);
    } else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s: the number is too large", name);
    }
    return -1;
}

static int one_number(PyObject *from, double *out, const char *name)
{
    *out = PyFloat_AsDouble(from);
    return *out == -1 && PyErr_Occurred() ? no_number(name) : 0;
}

static int set_shape(adlpy_array *array, const size_t *shape, int dims, const char *name)
{
    size_t count = 1;
    for (int i = 0; i < dims; i++)
        if (__builtin_mul_overflow(count, shape[i], &count) || count > ADLPY_MAX_ELEMENTS) {
            PyErr_Format(PyExc_ValueError, "%s has more than %zu elements", name,
                         ADLPY_MAX_ELEMENTS);
            return -1;
        }
    array->dims = dims;
    for (int i = 0; i < dims; i++)
        array->shape[i] = shape[i];
    array->count = count;
    array->data = adli_calloc(count, sizeof *array->data);
    if (!array->data)
        PyErr_NoMemory();
    return array->data ? 0 : -1;
}

/* ---- buffers ------------------------------------------------------------------------------------- */

/* The limited API of 3.9 has no Py_buffer, but it has memoryview, whose tobytes gives the elements row
 * by row whatever the strides. */
static double element(const char *at, char format)
{
#define ELEMENT(letter, type)                                                                      \
    case letter: {                                                                                 \
        type value;                                                                                \
        memcpy(&value, at, sizeof value);                                                          \
        return (double)value;                                                                      \
    }
    switch (format) {
        ELEMENT('d', double)
        ELEMENT('f', float)
        ELEMENT('b', signed char)
        ELEMENT('B', unsigned char)
        ELEMENT('h', short)
        ELEMENT('H', unsigned short)
        ELEMENT('i', int)
        ELEMENT('I', unsigned)
        ELEMENT('l', long)
        ELEMENT('L', unsigned long)
        ELEMENT('q', long long)
        ELEMENT('Q', unsigned long long)
    case '?':
        return *at != 0;
    }
#undef ELEMENT
    return NAN;
}

/* The view's format when it is one letter that we know, else 0. */
static char view_format(PyObject *view)
{
    PyObject *format = PyObject_GetAttrString(view, "format");
    PyObject *text = format ? PyUnicode_AsUTF8String(format) : NULL;
    const char *letters = text ? PyBytes_AsString(text) : NULL;
    char known = 0;
    if (letters && *letters == '@')
        letters++;
    if (letters && *letters && !letters[1] && strchr("dfbBhHiIlLqQ?", *letters))
        known = *letters;
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(format);
    return known;
}

static int view_shape(PyObject *view, const char *name, size_t *shape)
{
    PyObject *sizes = PyObject_GetAttrString(view, "shape");
    Py_ssize_t dims = sizes ? PyTuple_Size(sizes) : -1;
    if (dims > ADLPY_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has more than %d dimensions", name, ADLPY_MAX_DIMS);
        dims = -1;
    }
    for (Py_ssize_t i = 0; i < dims; i++)
        shape[i] = PyLong_AsSize_t(PyTuple_GetItem(sizes, i));
    Py_XDECREF(sizes);
    return (int)dims;
}

static int from_view(adlpy_array *array, PyObject *view, char format, const char *name)
{
    size_t shape[ADLPY_MAX_DIMS];
    int dims = view_shape(view, name, shape);
    if (dims < 0 || set_shape(array, shape, dims, name) != 0)
        return -1;
    PyObject *bytes = PyObject_CallMethod(view, "tobytes", NULL);
    char *data;
    Py_ssize_t length;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0) {
        Py_XDECREF(bytes);
        return -1;
    }
    size_t step = array->count ? (size_t)length / array->count : 0;
    for (size_t i = 0; i < array->count; i++)
        array->data[i] = element(data + i * step, format);
    Py_DECREF(bytes);
    return 0;
}

/* ---- sequences ----------------------------------------------------------------------------------- */

/* Something with a length and items: not texts and dicts, nor arrays and tensors of no dimension, whose
 * len() fails. Tensors are mappings to the interpreter, so PySequence_Check does not do. */
static bool is_sequence(PyObject *object)
{
    if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object) ||
        PyDict_Check(object) || !PyObject_HasAttrString(object, "__getitem__"))
        return false;
    Py_ssize_t length = PyObject_Size(object);
    PyErr_Clear();
    return length >= 0;
}

static PyObject *item_at(PyObject *object, Py_ssize_t index)
{
    PyObject *key = PyLong_FromSsize_t(index);
    PyObject *item = key ? PyObject_GetItem(object, key) : NULL;
    Py_XDECREF(key);
    return item;
}

/* Finds the shape along the first elements. */
static int sequence_shape(PyObject *from, size_t *shape, const char *name)
{
    PyObject *at = adlpy_ref(from);
    int dims = 0;
    while (at && is_sequence(at)) {
        Py_ssize_t length = PyObject_Size(at);
        if (length < 0 || dims == ADLPY_MAX_DIMS) {
            if (length >= 0)
                PyErr_Format(PyExc_ValueError, "%s is nested deeper than %d", name, ADLPY_MAX_DIMS);
            Py_DECREF(at);
            return -1;
        }
        shape[dims++] = (size_t)length;
        PyObject *first = length > 0 ? item_at(at, 0) : NULL;
        Py_DECREF(at);
        at = first;
    }
    Py_XDECREF(at);
    return PyErr_Occurred() ? -1 : dims;
}

static int fill(const adlpy_array *array, PyObject *from, int depth, size_t *at, const char *name)
{
    if (depth == array->dims) {
        if (*at >= array->count)
            return -1;
        return one_number(from, &array->data[(*at)++], name);
    }
    Py_ssize_t length = is_sequence(from) ? PyObject_Size(from) : -1;
    if (length < 0 || (size_t)length != array->shape[depth]) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s: its rows differ in length", name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = item_at(from, i);
        int result = item ? fill(array, item, depth + 1, at, name) : -1;
        Py_XDECREF(item);
        if (result != 0)
            return -1;
    }
    return 0;
}

static int from_sequence(adlpy_array *array, PyObject *from, const char *name)
{
    size_t shape[ADLPY_MAX_DIMS], at = 0;
    int dims = sequence_shape(from, shape, name);
    if (dims < 0 || set_shape(array, shape, dims, name) != 0)
        return -1;
    return fill(array, from, 0, &at, name);
}

int adlpy_array_init(adlpy_array *array, PyObject *from, const char *name)
{
    *array = (adlpy_array){0};
    int result;
    PyObject *view = NULL;
    if (PyLong_Check(from) || PyFloat_Check(from)) {
        result = set_shape(array, NULL, 0, name) == 0 ? one_number(from, array->data, name) : -1;
    } else if (!PyBytes_Check(from) && !PyByteArray_Check(from) &&
               (view = PyMemoryView_FromObject(from)) != NULL && view_format(view)) {
        result = from_view(array, view, view_format(view), name);
    } else {
        PyErr_Clear(); /* no buffer */
        result = is_sequence(from)                      ? from_sequence(array, from, name)
                 : set_shape(array, NULL, 0, name) == 0 ? one_number(from, array->data, name)
                                                        : -1;
    }
    Py_XDECREF(view);
    if (result != 0) {
        adlpy_array_fini(array);
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s changed while it was read", name);
    }
    return result;
}

/* ---- broadcasting -------------------------------------------------------------------------------- */

int adlpy_array_broadcast(adlpy_array *const *arrays, size_t count, adlpy_array *out)
{
    *out = (adlpy_array){.count = 1};
    for (size_t k = 0; k < count; k++)
        if (arrays[k]->dims > out->dims)
            out->dims = arrays[k]->dims;
    for (int i = 0; i < out->dims; i++) {
        out->shape[i] = 1;
        for (size_t k = 0; k < count; k++) {
            int own = i - (out->dims - arrays[k]->dims); /* shapes are aligned at the right */
            size_t size = own < 0 ? 1 : arrays[k]->shape[own];
            if (size == 1 || size == out->shape[i])
                continue;
            if (out->shape[i] != 1) {
                PyErr_Format(PyExc_ValueError,
                             "the arguments' shapes do not fit together: %zu elements against %zu",
                             size, out->shape[i]);
                return -1;
            }
            out->shape[i] = size;
        }
        if (__builtin_mul_overflow(out->count, out->shape[i], &out->count) ||
            out->count > ADLPY_MAX_ELEMENTS) {
            PyErr_Format(PyExc_ValueError, "the result would have more than %zu elements",
                         ADLPY_MAX_ELEMENTS);
            return -1;
        }
    }
    return 0;
}

double adlpy_array_at(const adlpy_array *array, const adlpy_array *shape, size_t index)
{
    size_t offset = 0, stride = 1;
    for (int i = shape->dims - 1, own = array->dims - 1; own >= 0; i--, own--) {
        size_t at = index % shape->shape[i];
        index /= shape->shape[i];
        if (array->shape[own] != 1)
            offset += at * stride;
        stride *= array->shape[own];
    }
    return array->data[offset];
}

/* ---- results ------------------------------------------------------------------------------------- */

static PyObject *number(double value, bool whole)
{
    return whole ? PyLong_FromDouble(value) : PyFloat_FromDouble(value);
}

static PyObject *nested(const adlpy_array *shape, int depth, const double **at, bool whole)
{
    if (depth == shape->dims)
        return number(*(*at)++, whole);
    PyObject *list = PyList_New((Py_ssize_t)shape->shape[depth]);
    for (size_t i = 0; list && i < shape->shape[depth]; i++) {
        PyObject *item = nested(shape, depth + 1, at, whole);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *to_numpy(PyObject *numpy, const adlpy_array *shape, const double *data, bool whole)
{
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(shape->count * 8));
    PyObject *sizes = PyTuple_New(shape->dims), *flat = NULL, *result = NULL;
    for (int i = 0; sizes && i < shape->dims; i++) {
        PyObject *size = PyLong_FromSize_t(shape->shape[i]);
        if (!size || PyTuple_SetItem(sizes, i, size) != 0)
            Py_CLEAR(sizes);
    }
    if (bytes && sizes) {
        char *out = PyByteArray_AsString(bytes);
        for (size_t i = 0; i < shape->count; i++) {
            int64_t integer = whole ? (int64_t)data[i] : 0;
            memcpy(out + 8 * i, whole ? (const void *)&integer : &data[i], 8);
        }
        flat = shape->count
                   ? PyObject_CallMethod(numpy, "frombuffer", "Os", bytes, whole ? "i8" : "f8")
                   : PyObject_CallMethod(numpy, "zeros", "is", 0, whole ? "i8" : "f8");
    }
    if (flat)
        result = PyObject_CallMethod(flat, "reshape", "(O)", sizes);
    Py_XDECREF(flat);
    Py_XDECREF(sizes);
    Py_XDECREF(bytes);
    return result;
}

PyObject *adlpy_array_result(const adlpy_array *shape, const double *data, bool whole)
{
    if (shape->dims == 0)
        return number(*data, whole);
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy && PyErr_ExceptionMatches(PyExc_ImportError)) {
        PyErr_Clear();
        return nested(shape, 0, &data, whole);
    }
    PyObject *result = numpy ? to_numpy(numpy, shape, data, whole) : NULL;
    Py_XDECREF(numpy);
    return result;
}
