#include "sim/report.h"

#include "base/json_write.h"

#include <stdio.h>
#include <string.h>

/* The columns of a row, in order; the mean row has the mean of each. */
enum { COLUMNS = 10 };

static void row_of(const adli_sim_result *r, double row[COLUMNS])
{
    const double values[COLUMNS] = {
        r->avg_jct_s,        r->p50_s,          r->p99_s,          r->makespan_s,
        r->restarts_per_job, r->worst_ftf,      100 * r->gpu_util, r->decision_median_ms,
        r->decision_p95_ms,  r->decision_max_ms};
    memcpy(row, values, sizeof values);
}

static void print_row(adli_buf *out, const char *name, const double row[COLUMNS])
{
    adli_buf_printf(out, "%-16.16s %9.1f %9.1f %9.1f %9.0f %9.2f %9.2f %7.1f %9.3f %9.3f %9.3f\n",
                    name, row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8],
                    row[9]);
}

double adli_report_mean(const adli_batch *batch, int policy)
{
    double sum = 0;
    for (int w = 0; w < batch->workload_count; w++)
        sum += adli_batch_result(batch, policy, w)->avg_jct_s;
    return sum / batch->workload_count;
}

static void print_policy(const adli_batch *batch, int policy, adli_buf *out)
{
    double mean[COLUMNS] = {0}, row[COLUMNS];
    adli_buf_printf(out, "policy %s\n", batch->policies[policy]);
    adli_buf_printf(out, "%-16s %9s %9s %9s %9s %9s %9s %7s %9s %9s %9s\n", "workload", "avg JCT s",
                    "median s", "p99 s", "makespan", "restarts", "worst FTF", "GPU %", "decide ms",
                    "p95", "max");
    for (int w = 0; w < batch->workload_count; w++) {
        row_of(adli_batch_result(batch, policy, w), row);
        print_row(out, batch->workloads[w].name, row);
        for (int c = 0; c < COLUMNS; c++)
            mean[c] += row[c] / batch->workload_count;
    }
    print_row(out, "mean", mean);
}

static void print_ratios(const adli_batch *batch, adli_buf *out)
{
    adli_buf_printf(out, "\naverage JCT relative to %s\n%-16s", batch->policies[0], "workload");
    for (int p = 0; p < batch->policy_count; p++)
        adli_buf_printf(out, " %10s", batch->policies[p]);
    for (int w = 0; w < batch->workload_count; w++) {
        adli_buf_printf(out, "\n%-16.16s", batch->workloads[w].name);
        for (int p = 0; p < batch->policy_count; p++)
            adli_buf_printf(out, " %10.3f",
                            adli_batch_result(batch, p, w)->avg_jct_s /
                                adli_batch_result(batch, 0, w)->avg_jct_s);
    }
    adli_buf_printf(out, "\n%-16s", "mean");
    for (int p = 0; p < batch->policy_count; p++)
        adli_buf_printf(out, " %10.3f", adli_report_mean(batch, p) / adli_report_mean(batch, 0));
    adli_buf_puts(out, "\n");
}

void adli_report_table(const adli_batch *batch, adli_buf *out)
{
    for (int p = 0; p < batch->policy_count; p++) {
        if (p > 0)
            adli_buf_puts(out, "\n");
        print_policy(batch, p, out);
    }
    if (batch->policy_count > 1)
        print_ratios(batch, out);
}

static void json_workload(const adli_workload *workload, const adli_sim_result *r, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", workload->name);
    adli_jw_number(out, "avg_jct", r->avg_jct_s);
    adli_jw_number(out, "p50", r->p50_s);
    adli_jw_number(out, "p99", r->p99_s);
    adli_jw_number(out, "makespan", r->makespan_s);
    adli_jw_number(out, "worst_ftf", r->worst_ftf);
    adli_jw_number(out, "restarts_per_job", r->restarts_per_job);
    adli_jw_number(out, "gpu_util", r->gpu_util);
    adli_jw_open(out, "decision_ms", '{');
    adli_jw_number(out, "median", r->decision_median_ms);
    adli_jw_number(out, "p95", r->decision_p95_ms);
    adli_jw_number(out, "max", r->decision_max_ms);
    adli_jw_close(out, '}');
    adli_jw_open(out, "jcts", '{');
    for (int j = 0; j < workload->count; j++)
        adli_jw_number(out, workload->jobs[j].name, r->jobs[j].jct_s);
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
}

static void json_policy(const adli_batch *batch, int policy, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "policy", batch->policies[policy]);
    adli_jw_number(out, "mean_avg_jct", adli_report_mean(batch, policy));
    adli_jw_open(out, "workloads", '[');
    for (int w = 0; w < batch->workload_count; w++)
        json_workload(&batch->workloads[w], adli_batch_result(batch, policy, w), out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

void adli_report_json(const adli_batch *batch, adli_buf *out)
{
    bool several = batch->policy_count > 1;
    if (several) {
        adli_jw_open(out, NULL, '{');
        adli_jw_open(out, "policies", '[');
    }
    for (int p = 0; p < batch->policy_count; p++)
        json_policy(batch, p, out);
    if (several) {
        adli_jw_close(out, ']');
        adli_jw_close(out, '}');
    }
    adli_buf_puts(out, "\n");
}
