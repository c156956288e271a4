/* What the files behind adaptdl.torch share. Each type here is a handle on something that the context
 * owns: it remembers the context's serial number, and a handle whose context has ended only raises. */
#ifndef ADLPY_TORCH_H
#define ADLPY_TORCH_H

#include "core.h"

/* A handle: the object's memory starts with this. */
typedef struct adlpy_handle {
    PyObject_HEAD uint64_t serial; /* of the context; 0: __init__ was not called */
} adlpy_handle;

/* Checks the handle and takes the context for a call: NULL with an exception, else call
 * adlpy_leave at the end. */
adl_context *adlpy_handle_enter(PyObject *self, const char *what);
/* The same without exclusive use, for reading. */
bool adlpy_handle_alive(PyObject *self, const char *what);

/* Raises what stopped the context: SystemExit(143) when it was interrupted (1 when the checkpoint could
 * not be written), else its failure. Always NULL. */
PyObject *adlpy_raise_stopped(adl_context *ctx);

/* A list of floats; and back, into new memory of exactly `count` (free). NULL with an exception. */
PyObject *adlpy_doubles(const double *values, size_t count, size_t stride);
double *adlpy_read_doubles(PyObject *sequence, size_t count, const char *what);

/* Allocation and freeing for types made from a spec. */
PyObject *adlpy_handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void adlpy_handle_dealloc(PyObject *self);

int adlpy_loop_setup(PyObject *module);
int adlpy_meter_setup(PyObject *module);
int adlpy_kernels_setup(PyObject *module);
int adlpy_sampler_setup(PyObject *module);
int adlpy_accumulator_setup(PyObject *module);
int adlpy_world_setup(PyObject *module);
/* Behind adaptdl.dl. */
int adlpy_runner_meter_setup(PyObject *module);
int adlpy_runner_events_setup(PyObject *module);

#endif
