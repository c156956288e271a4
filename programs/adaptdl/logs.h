/* Following a job's output; used by logs and submit. */
#ifndef ADAPTDL_LOGS_H
#define ADAPTDL_LOGS_H

#include "cluster.h"

typedef struct logs_options {
    bool follow, all_ranks;
    int group; /* 0: the server's choice */
    int rank;
    int tail; /* -1: all */
} logs_options;

/* Prints the output. When following: until the job ends. EXIT_DONE, or a message was shown. */
int logs_print(cluster *k, const job_name *job, const logs_options *options);
/* The same on Kubernetes: from the pods, through the API server. */
int kube_logs(cluster *k, const job_name *job, const logs_options *options);

#endif
