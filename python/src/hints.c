/* PUT of a JSON document to the supervisor, for adaptdl.sched_hints. The training runtime reports by
 * itself (src/train/hints.c); this is for programs that report on their own. */
#include "core.h"

#include "base/mask.h"
#include "http/http.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 4096 };

static PyObject *http_put(PyObject *self, PyObject *args)
{
    (void)self;
    const char *url, *body;
    Py_ssize_t length;
    int timeout_ms, code = 0;
    if (!PyArg_ParseTuple(args, "sy#i", &url, &body, &length, &timeout_ms))
        return NULL;
    if (timeout_ms < 1) {
        PyErr_SetString(PyExc_ValueError, "timeout_ms must be at least 1");
        return NULL;
    }
    adli_http_request request = {.method = "PUT",
                                 .url = url,
                                 .body = body,
                                 .body_length = (size_t)length,
                                 .timeout_ms = timeout_ms};
    adli_http *http = NULL;
    adli_buf answer;
    adl_status status;
    adli_buf_init(&answer, ANSWER_MAX);
    ADLPY_UNLOCKED({
        status = adli_http_new(&http);
        if (status == ADL_OK)
            status = adli_http_exchange(http, &request, &answer, &code);
        adli_http_free(http);
    });
    PyObject *result = NULL;
    if (status == ADL_OK)
        result = Py_BuildValue(
            "iN", code, PyUnicode_DecodeUTF8(answer.data, (Py_ssize_t)answer.length, "replace"));
    else
        adlpy_raise(status);
    adli_buf_fini(&answer);
    return result;
}

static PyObject *masked(PyObject *self, PyObject *args)
{
    (void)self;
    const char *given;
    if (!PyArg_ParseTuple(args, "s", &given))
        return NULL;
    char *copy = strdup(given);
    if (!copy)
        return PyErr_NoMemory();
    adli_mask(copy);
    PyObject *result = PyUnicode_FromString(copy);
    free(copy);
    return result;
}

static PyMethodDef functions[] = {
    {"masked", masked, METH_VARARGS,
     "masked(text, /)\n--\n\nThe text without the user and password of addresses in it."},
    {"http_put", http_put, METH_VARARGS,
     "http_put(url, body, timeout_ms, /)\n--\n\nSends JSON bytes; the answer's code and text."},
    {NULL, NULL, 0, NULL},
};

int adlpy_hints_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
