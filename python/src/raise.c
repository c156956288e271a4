/* From adl_status to Python exceptions, and from exceptions in callbacks to adl_status and back. */
#include "core.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* The exception of the last callback that failed, and how its text begins. The library carries the text
 * only; a failure with that text in it is this exception's. (One that the library survived, of a save in
 * the background, stays here until the next.) */
static PyObject *kept;
static char kept_text[256];

void adlpy_callback_forget(void)
{
    Py_CLEAR(kept);
}

/* "ValueError: text", as far as that can be had. */
static void describe(PyObject *type, PyObject *value, char *out, size_t capacity)
{
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *whole = name ? PyUnicode_FromFormat("%U: %V", name, text, "?") : NULL;
    PyObject *bytes = whole ? PyUnicode_AsEncodedString(whole, "utf-8", "replace") : NULL;
    const char *data = bytes ? PyBytes_AsString(bytes) : NULL;
    PyErr_Clear();
    snprintf(out, capacity, "%s", data ? data : "an exception");
    for (char *at = out; *at; at++) /* messages are one line */
        if (*at == '\n' || *at == '\r')
            *at = ' ';
    Py_XDECREF(bytes);
    Py_XDECREF(whole);
    Py_XDECREF(text);
    Py_XDECREF(name);
}

adl_status adlpy_callback_status(const char *what, PyObject **exception)
{
    PyObject *type, *value, *trace;
    char text[512];
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace && value)
        PyException_SetTraceback(value, trace);
    describe(type, value, text, sizeof text);
    adl_status status = PyErr_GivenExceptionMatches(type, PyExc_MemoryError)  ? ADL_ENOMEM
                        : PyErr_GivenExceptionMatches(type, PyExc_ValueError) ? ADL_EINVAL
                        : PyErr_GivenExceptionMatches(type, PyExc_TypeError)  ? ADL_EINVAL
                        : PyErr_GivenExceptionMatches(type, PyExc_OSError)    ? ADL_EIO
                                                                              : ADL_ESTATE;
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XDECREF(*exception);
    *exception = value;
    return adli_fail(status, "%s%s%s", what ? what : "", what ? ": " : "", text);
}

adl_status adlpy_callback_failed(void)
{
    adl_status status = adlpy_callback_status(NULL, &kept);
    snprintf(kept_text, sizeof kept_text, "%s", adl_error());
    return status;
}

static PyObject *exception_for(adl_status status)
{
    switch (status) {
    case ADL_EINVAL:
        return PyExc_ValueError;
    case ADL_ENOMEM:
        return PyExc_MemoryError;
    case ADL_EIO:
        return PyExc_OSError;
    case ADL_ENOENT:
        return PyExc_LookupError;
    case ADL_ENET:
    case ADL_EPEER:
        return PyExc_ConnectionError;
    case ADL_ETIMEOUT:
        return PyExc_TimeoutError;
    default:
        return PyExc_RuntimeError;
    }
}

PyObject *adlpy_raise(adl_status status)
{
    if (kept && strstr(adl_error(), kept_text)) {
        PyErr_SetObject((PyObject *)Py_TYPE(kept), kept);
        Py_CLEAR(kept);
        return NULL;
    }
    if (status == ADL_EINTR) {
        PyObject *code = PyLong_FromLong(adl_exit_code(status));
        if (code)
            PyErr_SetObject(PyExc_SystemExit, code);
        Py_XDECREF(code);
        return NULL;
    }
    /* A message may quote bytes of a peer or a file that are no UTF-8. */
    const char *message = *adl_error() ? adl_error() : adl_status_text(status);
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    if (text)
        PyErr_SetObject(exception_for(status), text);
    Py_XDECREF(text);
    return NULL;
}

PyObject *adlpy_none(adl_status status)
{
    if (status != ADL_OK)
        return adlpy_raise(status);
    return adlpy_ref(Py_None);
}
