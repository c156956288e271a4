/* Parameters as plain arrays: what networks expose, optimizers update and the data-parallel wrapper
 * averages. Code that has its own tensors fills these structs and uses the same machinery. */
#ifndef ADAPTDL_PARAM_H
#define ADAPTDL_PARAM_H

#include "adaptdl/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_param {
    const char *name; /* unique in its list, "conv1.weight"; borrowed */
    float *value;     /* [count], row-major over the parameter's own shape; borrowed */
    float *grad;      /* [count], same order; borrowed */
    size_t count;
} adl_param;

/* Parameters that share their optimizer's options (and their noise statistics). Borrowed arrays. */
typedef struct adl_param_group {
    const adl_param *params; /* [count] */
    size_t count;
} adl_param_group;

#ifdef __cplusplus
}
#endif
#endif
