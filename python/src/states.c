/* Python's checkpoint.State objects as states of the checkpoint store. The registry outlives contexts:
 * a State may be made before the process group, and joins every context that is made later.
 *
 * A state's save writes into an io.BytesIO, whose bytes go to the store; load reads from another. The
 * store checks names and checksums, writes atomically, and carries over values that nobody loaded. */
#include "core.h"

#include "base/file.h"
#include "base/mem.h"
#include "train/checkpoint_format.h"
#include "train/checkpoint_store.h"
#include "train/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    PyObject *state;
    char *label;                            /* the name that it was given */
    char name[ADL_CHECKPOINT_NAME_MAX + 1]; /* in the store */
    adl_checkpoint_state *handle;           /* in the present context's store, or NULL */
    bool taken;     /* what the store read at its start was loaded, or is old */
    bool idle_sync; /* its sync is the one that does nothing */
    PyObject *
        counted; /* what it saved when its length was asked for, for the call that follows; or NULL */
    struct entry *next;
} entry;

static entry *entries;
static bool sending; /* save is called for another replica, not for a checkpoint */

static entry *find_name(const char *name)
{
    entry *at = entries;
    while (at && strcmp(at->label, name) != 0)
        at = at->next;
    return at;
}

static entry *find_state(PyObject *state)
{
    for (entry *at = entries; at; at = at->next)
        if (at->state == state)
            return at;
    PyErr_SetString(PyExc_ValueError, "not a checkpoint.State, or its __init__ was not called with "
                                      "a name: call super().__init__(name)");
    return NULL;
}

/* ---- callbacks ----------------------------------------------------------------------------------- */

static PyObject *new_file(const void *data, size_t length)
{
    PyObject *io = PyImport_ImportModule("io");
    PyObject *file = NULL;
    if (io && data)
        file = PyObject_CallMethod(io, "BytesIO", "y#", (const char *)data, (Py_ssize_t)length);
    else if (io)
        file = PyObject_CallMethod(io, "BytesIO", NULL);
    Py_XDECREF(io);
    return file;
}

/* The bytes that the state's save wrote; NULL with an exception. */
static PyObject *saved_bytes(PyObject *state)
{
    PyObject *file = new_file(NULL, 0), *bytes = NULL;
    PyObject *done = file ? PyObject_CallMethod(state, "save", "O", file) : NULL;
    if (done)
        bytes = PyObject_CallMethod(file, "getvalue", NULL);
    Py_XDECREF(done);
    Py_XDECREF(file);
    if (bytes && !PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "the state's file was replaced");
        Py_CLEAR(bytes);
    }
    return bytes;
}

static int load_bytes(PyObject *state, const void *data, size_t length)
{
    PyObject *file = new_file(data, length);
    PyObject *done = file ? PyObject_CallMethod(state, "load", "O", file) : NULL;
    Py_XDECREF(file);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* A state that is sent to another replica is asked twice, for its length and for its bytes, and saving a large model
 * takes its time. */
static adl_status save_state(void *user, adl_sink *sink)
{
    entry *self = user;
    adl_status status = ADL_OK;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *bytes = sink->sent && !sink->counts ? self->counted : NULL;
    if (!bytes) {
        Py_CLEAR(self->counted);
        sending = sink->sent;
        bytes = saved_bytes(self->state);
        sending = false;
    }
    self->counted = NULL;
    char *data = NULL;
    Py_ssize_t length = 0;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &length) != 0)
        status = adlpy_callback_failed();
    else
        ADLPY_UNLOCKED(status = adl_sink_write(sink, data, (size_t)length));
    if (status == ADL_OK && sink->counts) {
        self->counted = bytes;
        bytes = NULL;
    }
    Py_XDECREF(bytes);
    PyGILState_Release(lock);
    return status;
}

static adl_status load_state(void *user, adl_source *source)
{
    entry *self = user;
    size_t length = adl_source_remaining(source);
    const void *data = "";
    adl_status status = length ? adl_source_view(source, length, &data) : ADL_OK;
    if (status != ADL_OK)
        return status;
    PyGILState_STATE lock = PyGILState_Ensure();
    if (load_bytes(self->state, data, length) != 0)
        status = adlpy_callback_failed();
    PyGILState_Release(lock);
    return status;
}

static adl_status sync_state(void *user)
{
    entry *self = user;
    PyGILState_STATE lock = PyGILState_Ensure();
    self->taken = true; /* the next load is from this save on */
    PyObject *done = PyObject_CallMethod(self->state, "sync", NULL);
    adl_status status = done ? ADL_OK : adlpy_callback_failed();
    Py_XDECREF(done);
    PyGILState_Release(lock);
    return status;
}

static adl_status attach(adl_context *ctx, entry *self)
{
    adl_checkpoint_functions functions = {sizeof functions, save_state, load_state, sync_state};
    adl_status status = adl_checkpoint_register(adl_context_store(ctx), self->name, &functions,
                                                self, &self->handle);
    if (status == ADL_OK)
        self->handle->idle_sync = self->idle_sync;
    return status;
}

adl_status adlpy_states_attach(adl_context *ctx)
{
    for (entry *at = entries; at; at = at->next) {
        adl_status status = attach(ctx, at);
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

void adlpy_states_detach(void)
{
    for (entry *at = entries; at; at = at->next) {
        at->handle = NULL;
        at->taken = false;
    }
}

/* ---- functions ----------------------------------------------------------------------------------- */

/* What the store calls a state. A name that is longer than the store's are, or looks like one of the library's
 * own, is kept as its beginning and a checksum of the whole; what no store could keep is an error. */
adl_status adlpy_state_name(const char *label, char *out)
{
    size_t length = strlen(label);
    bool reserved = strncmp(label, "adaptdl.", 8) == 0;
    if (length <= ADL_CHECKPOINT_NAME_MAX && !reserved) {
        memcpy(out, label, length + 1);
        return adli_ckpt_name_check(out);
    }
    adli_ckpt_sum sum = adli_ckpt_sum_of(label, length);
    size_t kept = ADL_CHECKPOINT_NAME_MAX - 2 * ADLI_CKPT_SUM_BYTES - 2;
    while (kept > 0 && kept < length && ((unsigned char)label[kept] & 0xc0) == 0x80)
        kept--; /* not in the middle of a character */
    size_t at = (size_t)snprintf(out, ADL_CHECKPOINT_NAME_MAX + 1, "~%.*s~", (int)kept, label);
    for (size_t i = 0; i < ADLI_CKPT_SUM_BYTES; i++)
        at += (size_t)snprintf(out + at, ADL_CHECKPOINT_NAME_MAX + 1 - at, "%02x", sum.bytes[i]);
    return adli_ckpt_name_check(out);
}

static void free_entry(entry *gone)
{
    Py_XDECREF(gone->state);
    free(gone->label);
    free(gone);
}

static PyObject *state_add(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *state;
    const char *name;
    int idle_sync;
    if (!PyArg_ParseTuple(args, "Osp", &state, &name, &idle_sync))
        return NULL;
    if (find_name(name))
        return PyErr_Format(PyExc_ValueError,
                            "state \"%s\" exists already: give each State a name of its own", name);
    entry *added = adli_calloc(1, sizeof *added);
    if (added)
        added->label = adli_strdup(name);
    if (!added || !added->label) {
        free(added);
        return PyErr_NoMemory();
    }
    added->idle_sync = idle_sync != 0;
    adl_status status = adlpy_state_name(name, added->name);
    adl_context *ctx = adlpy_context_peek();
    if (status == ADL_OK && ctx) {
        if (!adlpy_enter("State")) {
            free_entry(added);
            return NULL;
        }
        status = attach(ctx, added);
        adlpy_leave();
    }
    if (status != ADL_OK) {
        free_entry(added);
        return adlpy_raise(status);
    }
    added->state = adlpy_ref(state);
    added->next = entries;
    entries = added;
    return adlpy_ref(Py_None);
}

static PyObject *state_remove(PyObject *self, PyObject *state)
{
    (void)self;
    entry *gone = find_state(state), **at = &entries;
    if (!gone || !adlpy_enter("removing a state"))
        return NULL;
    if (gone->handle && adlpy_context_peek())
        adl_checkpoint_unregister(adl_context_store(adlpy_context_peek()), gone->handle);
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    adlpy_leave();
    free_entry(gone);
    return adlpy_ref(Py_None);
}

/* A value that the context's store no longer has, because it was loaded before or saved since: from the
 * newest checkpoint on disk. */
static adl_status reload(adl_context *ctx, entry *self, bool *found)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint *store = NULL;
    const char *name, *path = adl_context_env(ctx)->checkpoint_path;
    const void *data;
    size_t length;
    *found = false;
    if (!path)
        return ADL_OK;
    options.is_writer = false;
    adl_status status = adl_checkpoint_flush(adl_context_store(ctx));
    (void)status; /* when that save failed, the one before it is the newest */
    status = adl_checkpoint_open(path, &options, &store);
    for (int i = 0; status == ADL_OK && !*found; i++) {
        if (adl_checkpoint_pending(store, i, &name, &data, &length) != ADL_OK)
            break;
        *found = strcmp(name, self->name) == 0;
    }
    if (*found) {
        PyGILState_STATE lock = PyGILState_Ensure();
        if (load_bytes(self->state, length ? data : "", length) != 0)
            status = adlpy_callback_failed();
        PyGILState_Release(lock);
    }
    adl_checkpoint_close(store);
    return status;
}

static adl_status load(adl_context *ctx, entry *self, bool *found)
{
    if (self->taken)
        return reload(ctx, self, found);
    adl_status status = adl_checkpoint_load_state(adl_context_store(ctx), self->handle, found);
    self->taken = status == ADL_OK && *found;
    return status;
}

static PyObject *state_load(PyObject *self, PyObject *state)
{
    (void)self;
    adl_context *ctx = find_state(state) ? adlpy_context() : NULL;
    if (!ctx || !adlpy_enter("load_state"))
        return NULL;
    entry *mine = find_state(state); /* again: others may have run while the context was made */
    bool found = false;
    adl_status status = ADL_OK;
    if (!mine) {
        adlpy_leave();
        return NULL;
    }
    adlpy_callback_forget();
    ADLPY_UNLOCKED(status = load(ctx, mine, &found));
    adlpy_leave();
    if (status != ADL_OK)
        return adlpy_raise(status);
    return PyBool_FromLong(found);
}

static PyObject *states_sending(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(sending);
}

static PyObject *states_save(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_context *ctx = adlpy_context();
    if (!ctx || !adlpy_enter("save_all_states"))
        return NULL;
    adl_status status;
    adlpy_callback_forget();
    ADLPY_UNLOCKED(status = adli_save_now(ctx));
    adlpy_leave();
    return adlpy_none(status);
}

static PyObject *state_write(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *state, *path = NULL;
    if (!PyArg_ParseTuple(args, "OO&", &state, PyUnicode_FSConverter, &path))
        return NULL;
    entry *mine = find_state(state);
    char *name = mine ? adli_strdup(mine->label) : NULL, *data; /* save may change the list */
    PyObject *bytes = name ? saved_bytes(state) : NULL, *result = NULL;
    Py_ssize_t length;
    if (bytes && PyBytes_AsStringAndSize(bytes, &data, &length) == 0) {
        adli_buf file;
        adl_status status;
        adli_buf_init(&file, 8192);
        adli_buf_printf(&file, "%s/%s", PyBytes_AsString(path), name);
        status = adli_buf_check(&file);
        if (status == ADL_OK)
            ADLPY_UNLOCKED(status = adli_file_write(file.data, data, (size_t)length));
        adli_buf_fini(&file);
        result = adlpy_none(status);
    }
    if (mine && !name)
        PyErr_NoMemory();
    free(name);
    Py_XDECREF(bytes);
    Py_XDECREF(path);
    return result;
}

static PyMethodDef functions[] = {
    {"state_add", state_add, METH_VARARGS,
     "state_add(state, name, idle_sync, /)\n--\n\nRegisters a State; its sync may do nothing."},
    {"state_remove", state_remove, METH_O, "state_remove(state, /)\n--\n\nForgets a State."},
    {"state_load", state_load, METH_O,
     "state_load(state, /)\n--\n\nCalls state.load with the saved bytes; was there something?"},
    {"states_sending", states_sending, METH_NOARGS,
     "states_sending()\n--\n\nIn a State's save: is it for another replica, not for a checkpoint?"},
    {"states_save", states_save, METH_NOARGS,
     "states_save()\n--\n\nSaves a checkpoint of everything, on all replicas."},
    {"state_write", state_write, METH_VARARGS,
     "state_write(state, directory, /)\n--\n\nWrites one state to a file of its name."},
    {NULL, NULL, 0, NULL},
};

int adlpy_states_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
