/* The values of a model as bytes: what adl_net_save makes and model files hold.
 *   u64 magic, u64 entries, then for each: u64 name length, name, u64 count, count floats. */
#ifndef ADLI_VALUES_H
#define ADLI_VALUES_H

#include "adaptdl/param.h"

/* Bytes that adli_values_save fills for these lists, one after another. */
size_t adli_values_size(const adl_param_group *lists, size_t count);
void adli_values_save(const adl_param_group *lists, size_t count, void *out);
/* Checks everything before it changes anything: ECORRUPT names the entry that does not fit. */
ADL_MUST adl_status adli_values_load(const adl_param_group *lists, size_t count, const void *data,
                                     size_t length);

#endif
