/* Collective calls as values: are two the same, what do they read like, and how two typed arrays are
 * reduced. Pure. */
#ifndef ADLI_COMM_CALL_H
#define ADLI_COMM_CALL_H

#include "adaptdl/group.h"
#include "comm/frame.h"

enum { ADLI_CALL_TEXT = 128 };

size_t adli_type_bytes(adl_type type);
/* Can this type be reduced so? The text says why not. */
ADL_MUST adl_status adli_call_check(adl_type type, adl_reduce reduce);
/* The number apart. */
bool adli_call_same(const adli_call *a, const adli_call *b);
/* "allreduce sum f64[3]", "reduce \"accumulator\"", "barrier" */
void adli_call_text(const adli_call *call, char out[ADLI_CALL_TEXT]);
/* sum[count] = reduce(sum, value), element by element. The arrays need not be aligned. */
void adli_call_reduce(adl_type type, adl_reduce reduce, uint8_t *sum, const uint8_t *value,
                      size_t count);

#endif
