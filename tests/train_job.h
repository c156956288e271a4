/* Jobs of tests/helpers/helper_train.c on a test's cluster: their files, and what must be true when they are
 * over. */
#ifndef ADLT_TRAIN_JOB_H
#define ADLT_TRAIN_JOB_H

#include "cluster.h"

typedef struct train_job {
    int epochs, examples, batch, step_us, example_us;
    int crash, children;            /* as helper_train has them; crash -1: never */
    int min_replicas, max_replicas; /* max 0: no limit */
    bool pinned;                    /* not preemptible */
    int retries;
} train_job;

/* What became of it. */
typedef struct train_end {
    int starts, groups; /* replicas, groups of them */
    int grown, shrunk;  /* groups that were larger, smaller than the one before */
    int most;           /* replicas at one time */
} train_end;

static inline void train_job_file(const train_job *job, const char *name, char *out, size_t size)
{
    char most[64] = "";
    if (job->max_replicas > 0)
        snprintf(most, sizeof most, "  maxReplicas: %d\n", job->max_replicas);
    snprintf(out, size,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: %s}\n"
             "spec:\n  minReplicas: %d\n%s  preemptible: %s\n  maxRetries: %d\n  template:\n"
             "    spec:\n      terminationGracePeriodSeconds: 5\n      containers:\n"
             "      - name: main\n        command: [%s, epochs=%d, examples=%d, batch=%d,\n"
             "          step_us=%d, example_us=%d, crash=%d, children=%d]\n",
             name, job->min_replicas, most, job->pinned ? "false" : "true", job->retries,
             cluster_program("helpers/helper_train"), job->epochs, job->examples, job->batch,
             job->step_us, job->example_us, job->crash, job->children);
}

/* SHARE/ledger: every example of every epoch exactly once, and a parameter that has seen every step. */
static inline bool train_job_check_ledger(const train_job *job, const char *name, const char *share)
{
    char path[512];
    unsigned long long steps = 0;
    double value = 0;
    snprintf(path, sizeof path, "%s/ledger", share);
    FILE *file = fopen(path, "r");
    bool good = file && fscanf(file, "steps %llu value %lf\n", &steps, &value) == 2;
    if (!good)
        ADLT_FAIL("%s: no ledger in %s", name, share);
    int most = job->batch + 3; /* a batch is rounded up to a multiple of the replicas */
    if (good &&
        (value != (double)steps || (int)steps < job->epochs * ((job->examples + most - 1) / most)))
        ADLT_FAIL("%s: %llu steps, but the model has seen %.1f", name, steps, value);
    for (int i = 0; good && i < job->epochs * job->examples; i++) {
        long long seen = -1;
        good = fscanf(file, "%lld", &seen) == 1 && seen == 1;
        if (!good)
            ADLT_FAIL("%s: epoch %d, example %d: seen %lld times", name, i / job->examples,
                      i % job->examples, seen);
    }
    if (file)
        fclose(file);
    return good && !adlt_failed;
}

/* SHARE/starts: no member was started twice. Fills *out: sizes as they were when members started, so those that some
 * left by are not among them. */
static inline void train_job_check_starts(const char *name, const char *share, train_end *out)
{
    enum { GROUPS = 512, RANKS = 16 };
    static unsigned char seen[GROUPS][RANKS];
    static int sizes[GROUPS];
    int group, rank, replicas, last = 0;
    char path[512];
    memset(seen, 0, sizeof seen);
    memset(sizes, 0, sizeof sizes);
    *out = (train_end){0};
    snprintf(path, sizeof path, "%s/starts", share);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%d %d %d\n", &group, &rank, &replicas) == 3) {
        if (group < 0 || group >= GROUPS || rank < 0 || rank >= RANKS || seen[group][rank]++)
            ADLT_FAIL("%s: restart %d, member %d started twice", name, group, rank);
        else
            sizes[group] = replicas;
        out->starts++;
        out->most = replicas > out->most ? replicas : out->most;
    }
    if (file)
        fclose(file);
    for (int g = 0; g < GROUPS; g++) {
        if (sizes[g] == 0)
            continue;
        out->groups++;
        out->grown += last > 0 && sizes[g] > last;
        out->shrunk += last > 0 && sizes[g] < last;
        out->most = sizes[g] > out->most ? sizes[g] : out->most;
        last = sizes[g];
    }
}

#endif
