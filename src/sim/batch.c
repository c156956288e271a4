#include "sim/batch.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ERROR_SIZE = 1024, THREADS_MAX = 256 };

typedef struct pool {
    adli_batch *batch;
    _Atomic int next; /* task to be taken */
    _Atomic int finished_jobs;
    _Atomic int live; /* threads that still work */
    pthread_mutex_t lock;
    adl_status status; /* of the first failure, guarded by lock */
    char error[ERROR_SIZE];
} pool;

static void fail(pool *p, adl_status status)
{
    pthread_mutex_lock(&p->lock);
    if (p->status == ADL_OK) {
        p->status = status;
        snprintf(p->error, sizeof p->error, "%s", adl_error());
    }
    pthread_mutex_unlock(&p->lock);
    p->next = p->batch->policy_count * p->batch->workload_count; /* no more tasks */
}

static void *work(void *argument)
{
    pool *p = argument;
    const adli_batch *batch = p->batch;
    int all = batch->policy_count * batch->workload_count, task;
    while ((task = p->next++) < all) {
        adli_sim_options options = batch->options;
        options.policy = batch->policies[task / batch->workload_count];
        adl_status status = adli_simulate(&batch->workloads[task % batch->workload_count], &options,
                                          &p->finished_jobs, &batch->results[task]);
        if (status != ADL_OK)
            fail(p, status);
    }
    p->live--;
    return NULL;
}

static void watch(pool *p, int all_jobs)
{
    const struct timespec pause = {0, 100000000};
    while (p->live > 0) {
        nanosleep(&pause, NULL);
        p->batch->progress(p->finished_jobs, all_jobs);
    }
}

adl_status adli_batch_run(adli_batch *batch)
{
    int tasks = batch->policy_count * batch->workload_count, all_jobs = 0, started = 0;
    int wanted = batch->threads < tasks ? batch->threads : tasks;
    pthread_t threads[THREADS_MAX];
    pool p = {.batch = batch, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (int i = 0; i < batch->workload_count; i++)
        all_jobs += batch->policy_count * batch->workloads[i].count;
    batch->results = adli_calloc((size_t)tasks, sizeof *batch->results);
    if (!batch->results)
        return adli_fail_memory("simulation results");
    wanted = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    p.live = wanted;
    while (started < wanted && pthread_create(&threads[started], NULL, work, &p) == 0)
        started++;
    p.live -= wanted - started;
    if (started == 0) {
        p.live = 1;
        work(&p); /* no threads to be had: do it here */
    }
    if (batch->progress)
        watch(&p, all_jobs);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&p.lock);
    if (p.status == ADL_OK)
        return ADL_OK;
    adli_batch_fini(batch);
    return adli_fail(p.status, "%s", p.error);
}

void adli_batch_fini(adli_batch *batch)
{
    for (int i = 0; batch->results && i < batch->policy_count * batch->workload_count; i++)
        adli_sim_result_fini(&batch->results[i]);
    free(batch->results);
    batch->results = NULL;
}
