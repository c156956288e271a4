/* Simulation results as a table for people, JSON for scripts, and SVG. All append to a buffer. */
#ifndef ADLI_REPORT_H
#define ADLI_REPORT_H

#include "sim/batch.h"

/* Mean over workloads of the average completion time. */
double adli_report_mean(const adli_batch *batch, int policy);

/* A table per policy, a row per workload and the mean; with several policies also the ratios of their
 * averages to the first one's. */
void adli_report_table(const adli_batch *batch, adli_buf *out);
/* One object, or {"policies": [...]} for several. */
void adli_report_json(const adli_batch *batch, adli_buf *out);
/* Devices over time, coloured by job, for each policy on the first workload; and the distributions of
 * completion times. */
ADL_MUST adl_status adli_report_svg(const adli_batch *batch, adli_buf *out);

#endif
