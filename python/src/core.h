/* What the files of the extension share: exceptions, the process's training context, and the rules
 * that keep the interpreter alive.
 *
 * Rules.
 * - The interpreter's lock (GIL) is released around every call of the library that may block, or that
 *   may wait for the library's threads (adl_group_free, adl_finish, adl_loop_step ...): reductions
 *   written in Python run on such a thread and need the lock. ADLPY_UNLOCKED does it.
 * - Callbacks from the library take the lock themselves (PyGILState_Ensure).
 * - The context and all that hangs on it (loops, epochs, data parallel, the store) belong to one thread
 *   at a time: adlpy_enter before, adlpy_leave after. Control collectives may be called from any thread:
 *   adlpy_share and adlpy_unshare.
 * - Pointers to what the context owns die with it: keep adlpy_serial() beside them and ask adlpy_alive
 *   before each use. This also catches forked children.
 * - CPython's limited API of 3.9 only. */
#ifndef ADLPY_CORE_H
#define ADLPY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "adaptdl/context.h"
#include "adaptdl/goodput.h"
#include "adaptdl/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ADLPY_UNLOCKED(statement)                                                                  \
    do {                                                                                           \
        Py_BEGIN_ALLOW_THREADS statement;                                                          \
        Py_END_ALLOW_THREADS                                                                       \
    } while (0)

/* For PyMethodDef: a function with keyword arguments. */
#define ADLPY_KEYWORDS(function)                                                                   \
    (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static inline PyObject *adlpy_ref(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}

/* ---- failures (raise.c) -------------------------------------------------------------------------- */

/* Raises the exception for a failure with the thread's adl_error() as its text: EINVAL ValueError,
 * ESTATE RuntimeError, ENOMEM MemoryError, ETIMEOUT TimeoutError, EPEER and ENET ConnectionError, EIO
 * OSError, ENOENT LookupError, ECORRUPT RuntimeError, EINTR SystemExit(143). When a Python callback has
 * failed underneath (a State's save, say), its own exception is raised instead. Always NULL. */
PyObject *adlpy_raise(adl_status status);
/* None for ADL_OK, else adlpy_raise. */
PyObject *adlpy_none(adl_status status);

/* In a callback from the library, lock held, a Python exception set: takes the exception away, keeps it
 * for adlpy_raise, and returns a status with its text as adl_error(). */
adl_status adlpy_callback_failed(void);
/* The same with "what: " before the text (NULL: nothing), keeping the exception in *exception (a reference
 * or NULL, replaced). */
adl_status adlpy_callback_status(const char *what, PyObject **exception);
/* Forgets an exception that was kept. Call before a library call whose callbacks may fail. */
void adlpy_callback_forget(void);

/* ---- the process's context (context.c) ------------------------------------------------------------ */

/* What may differ from the environment. NULL and -1 stand for the variable's value. */
typedef struct adlpy_start {
    const char *master_addr;
    int master_port, rank, replicas;
    bool signals;        /* handle SIGTERM and SIGINT from now on */
    const char *program; /* identity in checkpoints, or NULL */
} adlpy_start;
#define ADLPY_START_INIT                                                                           \
    {                                                                                              \
        .master_port = -1, .rank = -1, .replicas = -1                                              \
    }

/* Starts the context: blocks, lock released, until all replicas have arrived. 0, or -1 with an
 * exception; RuntimeError when it was started already. The states of checkpoint.State join it. It is
 * finished when the interpreter exits, if nobody does so earlier. */
int adlpy_context_start(const adlpy_start *start);

/* The context, or NULL with an exception. When none was started, one is made that handles no signals; in a
 * job of several replicas it is alone: it reads what was saved, and rank 0 may save. */
adl_context *adlpy_context(void);
/* The same for what needs the other replicas: RuntimeError where adlpy_context would be alone. */
adl_context *adlpy_context_joined(void);
/* The environment of the context that was started, with its present world; false when none was. */
bool adlpy_context_env(adl_env *out, unsigned *generation);
/* The context that was started, or NULL with RuntimeError. For what needs adlpy_context_start. */
adl_context *adlpy_context_started(void);
/* The context, or NULL, without an exception and without making one. */
adl_context *adlpy_context_peek(void);

/* adl_finish. *code is the exit code, -1 when there was no context. 0, or -1 with an exception. */
int adlpy_context_finish(int *code);

/* Changes with each context, never 0. */
uint64_t adlpy_serial(void);
/* Is the context of that serial number still there, in this process? If not, raises RuntimeError with
 * "<what>: ..." and returns false. */
bool adlpy_alive(uint64_t serial, const char *what);

/* Exclusive use of the context by this call: false with RuntimeError when another thread is inside, or
 * this one is (from a callback). */
bool adlpy_enter(const char *what);
void adlpy_leave(void);
/* Is a call under way? */
bool adlpy_inside(void);
/* The context stays there until adlpy_unshare; collectives only. */
void adlpy_share(void);
void adlpy_unshare(void);

/* ---- models (goodput.c) -------------------------------------------------------------------------- */

/* The parameters as a tuple of floats. A new reference, or NULL with an exception. */
PyObject *adlpy_perf(const adl_perf_params *from);

/* ---- values (value.c) ---------------------------------------------------------------------------- */

/* None, bool, int, float, str, bytes, list, tuple, dict, set and NumPy arrays as bytes, and back; no
 * pickle. New references; NULL with TypeError (naming the type) or ValueError. */
PyObject *adlpy_value_encode(PyObject *value);
PyObject *adlpy_value_decode(const void *data, size_t length);

/* ---- the parts of the module ---------------------------------------------------------------------- */

/* Adds a table of functions, and a type, to the module. 0, or -1 with an exception. */
int adlpy_add_functions(PyObject *module, PyMethodDef *functions);
int adlpy_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type);

/* Each part's own: 0, or -1 with an exception. */
int adlpy_context_setup(PyObject *module);
int adlpy_env_setup(PyObject *module);
int adlpy_states_setup(PyObject *module);
int adlpy_group_setup(PyObject *module);
int adlpy_goodput_setup(PyObject *module);
int adlpy_hints_setup(PyObject *module);
int adlpy_value_setup(PyObject *module);
int adlpy_metrics_setup(PyObject *module);
int adlpy_policy_setup(PyObject *module);
int adlpy_report_setup(PyObject *module);
int adlpy_worlds_setup(PyObject *module);
/* In torch_*.c; may be absent. */
int adlpy_torch_setup(PyObject *module) __attribute__((weak));

/* Makes sure that the interpreter's end is an orderly one. 0, or -1 with an exception. */
int adlpy_at_exit(void);
/* The interpreter ends: frees the groups of adaptdl.reducer that are still open. */
void adlpy_groups_exit(void);
/* The states of checkpoint.State join a context that was made. Lock held. */
adl_status adlpy_states_attach(adl_context *ctx);
/* The context is about to go. */
void adlpy_states_detach(void);
/* What the store calls a state of that name. EINVAL: it is no name. */
ADL_MUST adl_status adlpy_state_name(const char *label, char *out);
/* Takes over a checkpoint of the original package, when the context has read none of its own. Lock held. */
ADL_MUST adl_status adlpy_original_adopt(adl_context *ctx);

#endif
