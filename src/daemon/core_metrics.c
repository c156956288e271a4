/* Prometheus text format, version 0.0.4: what an operator needs to see. */
#include "daemon/core_impl.h"

#include "adli_version.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>

static void family(adli_buf *out, const char *name, const char *kind, const char *help)
{
    adli_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void put(adli_buf *out, const char *name, const char *labels, double value)
{
    adli_buf_printf(out, "%s%s ", name, labels);
    adli_buf_double(out, value);
    adli_buf_puts(out, "\n");
}

static void single(adli_buf *out, const char *name, const char *kind, const char *help,
                   double value)
{
    family(out, name, kind, help);
    put(out, name, "", value);
}

/* A label's value: backslash, quote and newline escaped. */
static void put_label(adli_buf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\\' || *text == '"')
            adli_buf_printf(out, "\\%c", *text);
        else if (*text == '\n')
            adli_buf_puts(out, "\\n");
        else
            adli_buf_append(out, text, 1);
}

/* The original's names: with its program's prefix, as its dashboards have them, and without, as its client library named
 * them. Its summary had no buckets; sum and count are the same. */
static const char *const prefixes[] = {"adaptdl_sched_", ""};

static void put_submissions(adli_buf *out, const adli_counters *counters)
{
    for (int p = 0; p < (int)ADLI_COUNT(prefixes); p++) {
        char name[64];
        snprintf(name, sizeof name, "%sjob_submission_count", prefixes[p]);
        single(out, name, "counter", "Jobs submitted.", (double)counters->submitted);
    }
}

static void put_completions_as(adli_buf *out, const char *name, const adli_counters *counters)
{
    static const char *const status[] = {"Succeeded", "Failed"};
    family(out, name, "histogram", "Seconds from submission to the end, by how jobs ended.");
    for (int s = 0; s < 2; s++) {
        for (int b = 0; b < ADLI_COMPLETION_BOUNDS; b++)
            adli_buf_printf(out, "%s_bucket{status=\"%s\",le=\"%g\"} %lld\n", name, status[s],
                            adli_completion_bounds[b],
                            (long long)counters->completion_buckets[s][b]);
        adli_buf_printf(out, "%s_bucket{status=\"%s\",le=\"+Inf\"} %lld\n", name, status[s],
                        (long long)counters->completed[s]);
        adli_buf_printf(out, "%s_sum{status=\"%s\"} ", name, status[s]);
        adli_buf_double(out, counters->completed_s[s]);
        adli_buf_printf(out, "\n%s_count{status=\"%s\"} %lld\n", name, status[s],
                        (long long)counters->completed[s]);
    }
}

static void put_completions(adli_buf *out, const adli_counters *counters)
{
    for (int p = 0; p < (int)ADLI_COUNT(prefixes); p++) {
        char name[64];
        snprintf(name, sizeof name, "%sjob_completion_time", prefixes[p]);
        put_completions_as(out, name, counters);
    }
}

static void put_jobs(adli_buf *out, const adli_core *core)
{
    int wanted = 0, placed = 0, ready = 0;
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        wanted += job->row.wanted_count;
        placed += job->row.placed_count;
        ready +=
            job->row.placed_count > 0 && job->view_group == job->row.life.group ? job->ready : 0;
    }
    family(out, "adaptdl_jobs", "gauge", "Jobs by phase.");
    for (int i = 0; i < ADLI_PHASES; i++)
        adli_buf_printf(out, "adaptdl_jobs{phase=\"%s\"} %d\n", adl_phase_name((adl_phase)i),
                        core->phases[i]);
    single(out, "adaptdl_replicas_wanted", "gauge", "Replicas of all allocations.", wanted);
    single(out, "adaptdl_replicas_started", "gauge", "Replicas of the present groups.", placed);
    single(out, "adaptdl_replicas_ready", "gauge", "Replicas that run.", ready);
}

/* How jobs that are not over train, as far as they have told. */
static void put_trained(adli_buf *out, const adli_core *core)
{
    static const char *const names[][2] = {
        {"adaptdl_job_replicas", "Replicas of a job's present group."},
        {"adaptdl_job_restarts", "How often a job was started again."},
        {"adaptdl_job_batch_size", "A job's batch size, of all its replicas."},
        {"adaptdl_job_throughput", "Examples a second."},
        {"adaptdl_job_goodput", "Examples a second, times how much each of them counts."},
        {"adaptdl_job_speedup", "Goodput, relative to one replica."},
    };
    for (int kind = 0; kind < (int)ADLI_COUNT(names); kind++) {
        const adli_kept_job *job;
        family(out, names[kind][0], "gauge", names[kind][1]);
        TAILQ_FOREACH(job, &core->jobs, all)
        {
            const adli_train_info *train = &job->train;
            bool known = job->hints.known;
            int group = job->row.life.group;
            double values[] = {job->row.placed_count,
                               group > 0 ? group - 1 : 0,
                               known && job->hints.batch_size > 0 ? job->hints.batch_size : NAN,
                               known ? train->throughput : NAN,
                               known ? train->goodput : NAN,
                               known ? train->speedup : NAN};
            if (adl_life_over(&job->row.life) || !isfinite(values[kind]))
                continue;
            adli_buf_printf(out, "%s{job=\"", names[kind][0]);
            put_label(out, job->id);
            adli_buf_puts(out, "\"} ");
            adli_buf_double(out, values[kind]);
            adli_buf_puts(out, "\n");
        }
    }
}

/* The newest values of what unfinished jobs measure. */
static void put_measured(adli_buf *out, const adli_core *core, const char *name, const char *help,
                         bool steps)
{
    const adli_kept_job *job;
    family(out, name, "gauge", help);
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        for (int i = 0; i < job->series_count && !adl_life_over(&job->row.life); i++) {
            const adli_store_value *end = &job->series[i].end;
            adli_buf_printf(out, "%s{job=\"", name);
            put_label(out, job->id);
            adli_buf_puts(out, "\",metric=\"");
            put_label(out, job->series[i].name);
            adli_buf_puts(out, "\"} ");
            if (steps)
                adli_buf_printf(out, "%lld", (long long)end->step);
            else if (isfinite(end->value))
                adli_buf_double(out, end->value);
            else
                adli_buf_puts(out, "NaN");
            adli_buf_puts(out, "\n");
        }
    }
}

/* What the replicas use that run. */
static void put_used(adli_buf *out, const adli_core *core)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        [ADLI_USE_CPU] = {"adaptdl_replica_cpu_seconds_total", "counter",
                          "Processor time of a replica since its start."},
        [ADLI_USE_MEMORY] = {"adaptdl_replica_memory_bytes", "gauge", "Memory of a replica."},
        [ADLI_USE_GPU] = {"adaptdl_replica_gpus_busy", "gauge",
                          "GPUs that a replica keeps busy; 0.5: one for half of the time."},
        [ADLI_USE_GPU_MEMORY] = {"adaptdl_replica_gpu_memory_bytes", "gauge",
                                 "GPU memory of a replica."},
    };
    for (int kind = 0; kind < (int)ADLI_COUNT(families); kind++) {
        const adli_kept_job *job;
        family(out, families[kind].name, families[kind].kind, families[kind].help);
        TAILQ_FOREACH(job, &core->placed, placed)
        {
            for (int rank = 0; rank < job->row.placed_count; rank++) {
                double value = adli_job_use(job, rank, (adli_use_kind)kind);
                if (!isfinite(value))
                    continue;
                adli_buf_printf(out, "%s{job=\"", families[kind].name);
                put_label(out, job->id);
                adli_buf_printf(out, "\",rank=\"%d\"} ", rank);
                adli_buf_double(out, value);
                adli_buf_puts(out, "\n");
            }
        }
    }
}

static void put_nodes(adli_buf *out, const adli_core *core)
{
    int all = 0, ready = 0, draining = 0;
    adl_resources taken = {{0}};
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->placed, placed)
    {
        adl_resources request = adli_core_request(core, job);
        for (int r = 0; r < core->resource_count; r++)
            taken.amount[r] += job->row.placed_count * request.amount[r];
    }
    for (int n = 0; n < core->node_count; n++) {
        all += !core->nodes[n].unused;
        bool drained = core->nodes[n].drained || core->draining;
        ready += core->nodes[n].ready && !drained;
        draining += drained;
    }
    family(out, "adaptdl_nodes", "gauge", "Nodes by state.");
    adli_buf_printf(out, "adaptdl_nodes{state=\"ready\"} %d\n", ready);
    adli_buf_printf(out, "adaptdl_nodes{state=\"draining\"} %d\n", draining);
    adli_buf_printf(out, "adaptdl_nodes{state=\"all\"} %d\n", all);
    for (int used = 0; used < 2; used++) {
        const char *name = used ? "adaptdl_resource_used" : "adaptdl_resource_total";
        family(out, name, "gauge",
               used ? "What replicas have of a resource (cpu in thousandths, memory in bytes)."
                    : "What ready nodes have of a resource.");
        for (int r = 0; r < core->resource_count; r++) {
            bool known = false;
            double sum = 0;
            for (int n = 0; n < core->node_count; n++) {
                known |= core->nodes[n].known_resource[r];
                if (!used && core->nodes[n].known_resource[r] && core->nodes[n].ready)
                    sum += (double)core->nodes[n].declared.amount[r];
            }
            if (used)
                sum = (double)taken.amount[r];
            if (!known)
                continue;
            adli_buf_printf(out, "%s{resource=\"", name);
            put_label(out, core->resource_names[r]);
            adli_buf_puts(out, "\"} ");
            adli_buf_double(out, sum);
            adli_buf_puts(out, "\n");
        }
    }
}

adl_status adli_core_metrics(adli_core *core, adli_buf *out)
{
    double now_s = adli_core_now(core);
    adli_store_stats stats = adli_store_look(core->store);
    int64_t left, size;
    adli_room_state room = adli_core_room(core, &left, &size);
    pthread_mutex_lock(&core->lock);
    const adli_counters *counters = &core->counters;
    family(out, "adaptdl_build_info", "gauge", "1; the version and the policy are labels.");
    adli_buf_printf(out, "adaptdl_build_info{version=\"%s\",policy=\"%s\"} 1\n", ADLI_VERSION,
                    adl_policy_name(core->policy));
    single(out, "adaptdl_uptime_seconds", "gauge", "Since the daemon started.",
           now_s - core->opened_s);
    put_submissions(out, counters);
    put_completions(out, counters);
    put_jobs(out, core);
    put_trained(out, core);
    put_measured(out, core, "adaptdl_job_metric", "What a job measured last (adaptdl.report).",
                 false);
    put_measured(out, core, "adaptdl_job_metric_step", "The step at which it did.", true);
    put_used(out, core);
    put_nodes(out, core);
    single(out, "adaptdl_jobs_removed_total", "counter", "Jobs deleted, or pruned when finished.",
           (double)counters->deleted);
    single(out, "adaptdl_restarts_total", "counter", "Groups started after the first of a job.",
           (double)counters->restarts);
    single(out, "adaptdl_failures_total", "counter", "Groups that failed for their own reasons.",
           (double)counters->failures);
    single(out, "adaptdl_hints_total", "counter", "Reports of replicas.", (double)counters->hints);
    family(out, "adaptdl_round_seconds", "summary", "Allocation rounds.");
    put(out, "adaptdl_round_seconds_sum", "", counters->rounds_s);
    put(out, "adaptdl_round_seconds_count", "", (double)counters->rounds);
    pthread_mutex_unlock(&core->lock);
    family(out, "adaptdl_store_commit_seconds", "summary", "Commits of the store.");
    put(out, "adaptdl_store_commit_seconds_sum", "", stats.commit_s);
    put(out, "adaptdl_store_commit_seconds_count", "", (double)stats.commits);
    single(out, "adaptdl_store_failures_total", "counter", "Commits that failed.",
           (double)stats.failed_commits);
    single(out, "adaptdl_disk_free_bytes", "gauge", "Free on the disk of the state directory.",
           (double)left);
    single(out, "adaptdl_disk_full", "gauge", "1: new jobs are refused, the disk is full.",
           room == ADLI_ROOM_FULL);
    if (core->mirror.requests)
        single(out, "adaptdl_api_server_requests_total", "counter",
               "Requests to the Kubernetes API server.",
               (double)core->mirror.requests(core->mirror.user));
    single(out, "adaptdl_events_total", "counter", "Events since the store was made.",
           (double)stats.last_event);
    return adli_buf_check(out);
}
