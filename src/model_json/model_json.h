/* Questions to the models as JSON objects, answers as JSON lines: what `adaptdl model` speaks.
 * Apart from the models, which do no I/O, and from the program, so that tests and the fuzzer can
 * call it. */
#ifndef ADLI_MODEL_JSON_H
#define ADLI_MODEL_JSON_H

#include "adaptdl/goodput.h"
#include "base/buf.h"
#include "base/json.h"

/* Appends the answer to one line (length bytes, without its newline) to out. On failure out is as
 * it was and adl_error() names the field. */
typedef adl_status adli_model_question(const char *line, size_t length, adli_buf *out);

/* perf, grad, init, N, R, m, s -> throughput, efficiency, goodput */
ADL_MUST adl_status adli_model_evaluate(const char *line, size_t length, adli_buf *out);
/* perf, grad, init, N, R and limits -> goodput, m, s */
ADL_MUST adl_status adli_model_optimize(const char *line, size_t length, adli_buf *out);
/* N, R, m, accum_time, optim_time (arrays) -> params, objective, used, rejected */
ADL_MUST adl_status adli_model_fit(const char *line, size_t length, adli_buf *out);
/* as optimize, perf may be null -> speedup */
ADL_MUST adl_status adli_model_speedup(const char *line, size_t length, adli_buf *out);

/* The fields perf (7 numbers), grad (2) and init of an object, checked. */
ADL_MUST adl_status adli_model_read(const json_t *object, adl_goodput *out);
/* max_batch_size, min_m, max_m and accumulation: each may be absent or null. */
ADL_MUST adl_status adli_model_read_limits(const json_t *object, adl_batch_limits *out);

#endif
