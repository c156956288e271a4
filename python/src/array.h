/* Numbers in and out of Python, one or many: scalars, nested sequences, and whatever has the buffer
 * protocol (NumPy's arrays, array.array), broadcast against each other by NumPy's rules. Results are
 * floats and ints when every input was a scalar, else NumPy arrays, or nested lists where NumPy is not
 * installed. */
#ifndef ADLPY_ARRAY_H
#define ADLPY_ARRAY_H

#include "core.h"

enum { ADLPY_MAX_DIMS = 8 };

/* The most elements of an argument or a result: a typing error should not eat the machine. */
#define ADLPY_MAX_ELEMENTS ((size_t)1 << 26)

typedef struct adlpy_array {
    int dims; /* 0: a scalar */
    size_t shape[ADLPY_MAX_DIMS];
    size_t count; /* product of the shape */
    double *data; /* [count], row by row */
} adlpy_array;

/* Reads an argument. -1 with TypeError or ValueError, which name it. Free with adlpy_array_fini. */
int adlpy_array_init(adlpy_array *array, PyObject *from, const char *name);
void adlpy_array_fini(adlpy_array *array);

/* The common shape of several arrays, in *out without data; -1 with ValueError when there is none. */
int adlpy_array_broadcast(adlpy_array *const *arrays, size_t count, adlpy_array *out);
/* Element number `index` (row by row in shape) of array, repeated as broadcasting says. */
double adlpy_array_at(const adlpy_array *array, const adlpy_array *shape, size_t index);

/* The result for Python: data[shape->count], whole: as integers. */
PyObject *adlpy_array_result(const adlpy_array *shape, const double *data, bool whole);

#endif
