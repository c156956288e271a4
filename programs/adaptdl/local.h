/* The scheduler on this machine, as a process. */
#ifndef ADAPTDL_LOCAL_H
#define ADAPTDL_LOCAL_H

#include "cluster.h"

#include <sys/types.h>

/* Opens the cluster, which must be one on this machine. *state: its directory, to be freed. */
int local_open(cluster *k, const cli *c, char **state);
/* The process behind the socket; 0: nobody. */
pid_t local_listener(const cluster *k);
/* Prints what the scheduler says of itself (/cluster): nodes, policy, socket, dashboard. */
void print_cluster(const cluster *k, const json_t *answer);
/* Stops it; with stop_jobs, once its jobs have saved a checkpoint. EXIT_DONE, or a message was
 * shown. */
int take_down(cluster *k, bool stop_jobs);

#endif
