/* TensorBoard's event files for Python. Needs no context: a file of its own. */
#include "torch.h"

#include "adaptdl/tensorboard.h"
#include "train/tensorboard_cut.h"

typedef struct events_object {
    PyObject_HEAD adl_tensorboard *writer; /* NULL once closed */
} events_object;

static int events_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    events_object *self = (events_object *)object;
    static char *names[] = {"logdir", "wall_time", NULL};
    PyObject *path = NULL;
    double wall_time;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&d", names, PyUnicode_FSConverter, &path,
                                     &wall_time))
        return -1;
    adl_tensorboard *made;
    adl_status status = adl_tensorboard_open(PyBytes_AsString(path), wall_time, NULL, &made);
    Py_DECREF(path);
    if (status != ADL_OK) {
        adlpy_raise(status);
        return -1;
    }
    adl_tensorboard_close(self->writer);
    self->writer = made;
    return 0;
}

static void events_dealloc(PyObject *object)
{
    adl_tensorboard_close(((events_object *)object)->writer);
    adlpy_handle_dealloc(object);
}

static adl_tensorboard *writer_of(PyObject *object)
{
    adl_tensorboard *writer = ((events_object *)object)->writer;
    if (!writer)
        PyErr_SetString(PyExc_ValueError, "event file: it is closed");
    return writer;
}

static PyObject *events_scalar(PyObject *object, PyObject *args)
{
    const char *tag;
    double value, wall_time;
    long long step;
    adl_tensorboard *writer = writer_of(object);
    if (!writer || !PyArg_ParseTuple(args, "sdLd", &tag, &value, &step, &wall_time))
        return NULL;
    return adlpy_none(adl_tensorboard_scalar(writer, tag, value, step, wall_time));
}

static PyObject *events_text(PyObject *object, PyObject *args)
{
    const char *tag, *text;
    double wall_time;
    long long step;
    adl_tensorboard *writer = writer_of(object);
    if (!writer || !PyArg_ParseTuple(args, "ssLd", &tag, &text, &step, &wall_time))
        return NULL;
    return adlpy_none(adl_tensorboard_text(writer, tag, text, step, wall_time));
}

static PyObject *events_flush(PyObject *object, PyObject *unused)
{
    (void)unused;
    adl_tensorboard *writer = writer_of(object);
    return writer ? adlpy_none(adl_tensorboard_flush(writer)) : NULL;
}

static PyObject *events_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    events_object *self = (events_object *)object;
    adl_status status = adl_tensorboard_close(self->writer);
    self->writer = NULL;
    return adlpy_none(status);
}

static PyObject *events_path(PyObject *object, void *unused)
{
    (void)unused;
    adl_tensorboard *writer = writer_of(object);
    return writer ? PyUnicode_DecodeFSDefault(adl_tensorboard_path(writer)) : NULL;
}

static PyMethodDef methods[] = {
    {"scalar", events_scalar, METH_VARARGS,
     "scalar(tag, value, step, wall_time, /)\n--\n\nOne number."},
    {"text", events_text, METH_VARARGS, "text(tag, text, step, wall_time, /)\n--\n\nMarkdown."},
    {"flush", events_flush, METH_NOARGS, "flush()\n--\n\nWrites what is buffered."},
    {"close", events_close, METH_NOARGS, "close()\n--\n\nMay be called twice."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"path", events_path, NULL, "The file's path.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, adlpy_handle_new},
    {Py_tp_init, events_init},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "EventWriter(logdir, wall_time)\n--\n\nA file of events for TensorBoard."},
    {0, NULL}};
static PyType_Spec spec = {"adaptdl._core.EventWriter", sizeof(events_object), 0,
                           Py_TPFLAGS_DEFAULT, slots};

static PyObject *events_cut(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *path = NULL;
    long long batch, epoch;
    if (!PyArg_ParseTuple(args, "O&LL", PyUnicode_FSConverter, &path, &batch, &epoch))
        return NULL;
    adl_status status = adli_events_cut(PyBytes_AsString(path),
                                        &(adli_events_from){.batch = batch, .epoch = epoch});
    Py_DECREF(path);
    return adlpy_none(status);
}

static PyMethodDef functions[] = {
    {"events_cut", events_cut, METH_VARARGS,
     "events_cut(path, batch, epoch, /)\n--\n\nTakes events of these steps and later ones out of a "
     "file: of tags that end in /batch, and of others."},
    {NULL, NULL, 0, NULL},
};

int adlpy_runner_events_setup(PyObject *module)
{
    static PyObject *type;
    if (adlpy_add_functions(module, functions) != 0)
        return -1;
    return adlpy_add_type(module, "EventWriter", &spec, &type);
}
