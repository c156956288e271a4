/* What rank 0 tells the scheduler, as JSON, and the thread that sends it. */
#ifndef ADLI_TRAIN_HINTS_H
#define ADLI_TRAIN_HINTS_H

#include "base/buf.h"
#include "train/metrics.h"

/* The document of PUT {supervisor}/hints/{namespace}/{name}. */
ADL_MUST adl_status adli_hints_json(const adli_metrics_view *view, adli_buf *out);

#endif
