/* Checkpoints of the original package: adaptdl._original reads them, and what it found becomes part of a context
 * that has read no checkpoint of its own. */
#include "core.h"

#include "train/context.h"

#include <string.h>

static adl_status offer(adl_context *ctx, PyObject *name, PyObject *bytes)
{
    char stored[ADL_CHECKPOINT_NAME_MAX + 1], *data;
    Py_ssize_t length;
    PyObject *label = PyUnicode_AsEncodedString(name, "utf-8", "surrogateescape");
    const char *text = label ? PyBytes_AsString(label) : NULL;
    adl_status status = ADL_OK;
    if (!text || PyBytes_AsStringAndSize(bytes, &data, &length) != 0)
        status = adlpy_callback_failed();
    if (status == ADL_OK)
        status = adlpy_state_name(text, stored);
    if (status == ADL_OK)
        status = adl_checkpoint_offer(adl_context_store(ctx), stored, data, (size_t)length);
    Py_XDECREF(label);
    return status;
}

static adl_status take(adl_context *ctx, PyObject *found)
{
    PyObject *states, *name, *bytes;
    Py_ssize_t at = 0;
    int epoch;
    if (!PyArg_ParseTuple(found, "iO!", &epoch, &PyDict_Type, &states))
        return adlpy_callback_failed();
    adl_status status = ADL_OK;
    while (status == ADL_OK && PyDict_Next(states, &at, &name, &bytes))
        status = offer(ctx, name, bytes);
    if (status == ADL_OK) {
        ctx->finished_epochs = epoch;
        ctx->progress_due = -1; /* by the epochs, when the first loop begins */
    }
    return status;
}

adl_status adlpy_original_adopt(adl_context *ctx)
{
    const char *path = adl_context_env(ctx)->checkpoint_path;
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    if (!path)
        return ADL_OK;
    adl_checkpoint_get_info(adl_context_store(ctx), &info);
    PyObject *module = PyImport_ImportModule("adaptdl._original");
    PyObject *where = module ? PyUnicode_DecodeFSDefault(path) : NULL;
    PyObject *found = where ? PyObject_CallMethod(module, "adopt", "Os", where, info.loaded) : NULL;
    adl_status status = ADL_OK;
    if (!found)
        status = adlpy_callback_failed();
    else if (found != Py_None)
        status = take(ctx, found);
    Py_XDECREF(found);
    Py_XDECREF(where);
    Py_XDECREF(module);
    return status;
}
