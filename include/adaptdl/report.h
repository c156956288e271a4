/* Metrics of a job, for people: loss, accuracy, whatever the program measures. On a cluster they are in `adaptdl
 * describe`, `adaptdl top`, the HTTP API, the dashboard's curves and the scheduler's /metrics; elsewhere nothing
 * happens. One call, anywhere in the training loop:
 *
 *     ADL_REPORT(ctx, {"loss", loss}, {"accuracy", right / total});
 *
 * It costs no waiting: values are sent by a thread of its own, together, every two seconds. What was told before the
 * last checkpoint is never lost, and what a killed process told after it is taken back when training goes on from
 * there: curves have neither gaps nor repetitions, and their steps ascend. */
#ifndef ADAPTDL_REPORT_H
#define ADAPTDL_REPORT_H

#include "adaptdl/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_metric {
    const char *name; /* printable UTF-8 of at most 100 bytes, for example "valid/loss" */
    double value;     /* one that is not finite is kept as "no number" */
} adl_metric;

/* Tells of values at a step. step < 0: the number of optimizer steps so far (adl_global_step), or without any
 * the number of the call. Steps of a name ascend: a value for a step at or before the last one takes back what was
 * told from that step on. Rank 0's values count, others are only checked; not collective. A context that was
 * stopped tells nothing. Does not block.
 *   ADL_EINVAL  a name is no name, there are more than 64 of them, or the step is beyond 2^53 */
ADL_API adl_status adl_report(adl_context *ctx, int64_t step, const adl_metric *metrics,
                              size_t count);

#define ADL_REPORT(ctx, ...)                                                                       \
    adl_report((ctx), -1, (const adl_metric[]){__VA_ARGS__},                                       \
               sizeof((const adl_metric[]){__VA_ARGS__}) / sizeof(adl_metric))

#ifdef __cplusplus
}
#endif
#endif
