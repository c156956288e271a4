/* Workload files: which job came when, and what its user asked for. */
#include "sim/trace.h"

#include "base/csv.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME, TIME, APPLICATION, REPLICAS, BATCH, COLUMNS };

static const char *const columns[COLUMNS] = {"name", "time", "application", "num_replicas",
                                             "batch_size"};

static const adli_app *find_app(const adli_traces *traces, const char *name)
{
    for (int i = 0; i < traces->count; i++)
        if (strcmp(traces->apps[i].name, name) == 0)
            return &traces->apps[i];
    return NULL;
}

static adl_status read_job(const adli_csv *csv, const adli_traces *traces, adli_work *job)
{
    const char *name = adli_csv_text(csv, NAME), *app = adli_csv_text(csv, APPLICATION);
    if (name[0] == '\0' || strlen(name) > 63)
        return adli_csv_fail(csv, NAME, "must have 1 to 63 characters");
    adl_status status = adli_csv_double(csv, TIME, 0, 1e9, &job->submit_s);
    if (status != ADL_OK)
        return status;
    job->app = find_app(traces, app);
    if (!job->app)
        return adli_csv_fail(csv, APPLICATION, "no traces of application \"%.40s\"", app);
    status = adli_csv_int(csv, REPLICAS, 1, 100000, &job->replicas);
    if (status == ADL_OK)
        status = adli_csv_int(csv, BATCH, 1, 1000000000, &job->batch_size);
    if (status == ADL_OK && job->batch_size > job->app->max_batch)
        status = adli_csv_fail(csv, BATCH, "%d is more than the largest validated, %d",
                               job->batch_size, job->app->max_batch);
    if (status == ADL_OK && job->batch_size < job->app->init_batch)
        status = adli_csv_fail(csv, BATCH, "%d is less than the smallest validated, %d",
                               job->batch_size, job->app->init_batch);
    if (status != ADL_OK)
        return status;
    job->name = adli_strdup(name);
    return job->name ? ADL_OK : adli_fail_memory("workload");
}

static int by_name(const void *a, const void *b)
{
    const adli_work *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static adl_status check_names(const adli_workload *workload, const char *file)
{
    const adli_work **sorted = adli_calloc((size_t)workload->count, sizeof *sorted);
    adl_status status = sorted ? ADL_OK : adli_fail_memory("workload");
    for (int i = 0; sorted && i < workload->count; i++)
        sorted[i] = &workload->jobs[i];
    if (sorted)
        qsort(sorted, (size_t)workload->count, sizeof *sorted, by_name);
    for (int i = 1; status == ADL_OK && i < workload->count; i++)
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            status = adli_fail(ADL_EINVAL, "%s: field \"name\": two jobs are called \"%s\"", file,
                               sorted[i]->name);
    free(sorted);
    return status;
}

/* By time; rows of the same second stay in the file's order. */
static int by_time(const void *a, const void *b)
{
    const adli_work *x = a, *y = b;
    if (x->submit_s != y->submit_s)
        return x->submit_s > y->submit_s ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

static adl_status read_jobs(adli_csv *csv, const adli_traces *traces, adli_workload *workload)
{
    size_t capacity = 0;
    bool more = false;
    adl_status status;
    while ((status = adli_csv_next(csv, &more)) == ADL_OK && more) {
        size_t count = (size_t)workload->count;
        if (adli_grow(&workload->jobs, &capacity, count + 1, sizeof *workload->jobs) != 0)
            return adli_fail_memory("workload");
        workload->jobs[count] = (adli_work){.order = workload->count};
        status = read_job(csv, traces, &workload->jobs[count]);
        if (status != ADL_OK)
            return status;
        workload->count++;
    }
    if (status == ADL_OK && workload->count == 0)
        status = adli_fail(ADL_EINVAL, "%s: no jobs below the header", csv->name);
    return status;
}

/* "dir/workload-1.csv" -> "workload-1" */
static char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = adli_strdup(slash ? slash + 1 : path);
    char *dot = name ? strrchr(name, '.') : NULL;
    if (dot && dot != name)
        *dot = '\0';
    return name;
}

static adl_status finish(adli_csv *csv, adl_status status, const adli_traces *traces,
                         adli_workload *workload)
{
    if (status == ADL_OK)
        status = read_jobs(csv, traces, workload);
    if (status == ADL_OK)
        status = check_names(workload, csv->name);
    if (status == ADL_OK && !(workload->name = base_name(csv->name)))
        status = adli_fail_memory("workload");
    adli_csv_close(csv);
    if (status == ADL_OK)
        qsort(workload->jobs, (size_t)workload->count, sizeof *workload->jobs, by_time);
    else
        adli_workload_fini(workload);
    return status;
}

adl_status adli_workload_load(const char *path, const adli_traces *traces, adli_workload *workload)
{
    adli_csv csv;
    *workload = (adli_workload){0};
    adl_status status = adli_csv_open(&csv, path, columns, COLUMNS, COLUMNS);
    return finish(&csv, status, traces, workload);
}

adl_status adli_workload_parse(const char *name, const char *text, size_t length,
                               const adli_traces *traces, adli_workload *workload)
{
    adli_csv csv;
    *workload = (adli_workload){0};
    adl_status status = adli_csv_open_text(&csv, name, text, length, columns, COLUMNS, COLUMNS);
    return finish(&csv, status, traces, workload);
}

void adli_workload_fini(adli_workload *workload)
{
    for (int i = 0; i < workload->count; i++)
        free(workload->jobs[i].name);
    free(workload->jobs);
    free(workload->name);
    *workload = (adli_workload){0};
}
