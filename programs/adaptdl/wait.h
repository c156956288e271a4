/* Waiting for a job; used by wait and submit. */
#ifndef ADAPTDL_WAIT_H
#define ADAPTDL_WAIT_H

#include "cluster.h"

typedef enum wait_goal { WAIT_SUCCEEDED, WAIT_RUNNING, WAIT_DELETED } wait_goal;

/* Until the job has reached the goal, or never will, or the monotonic clock passes deadline_s.
 * The exit status of `adaptdl wait`, with its message; seen: the job's output was shown, and is left out of it. */
int wait_for(cluster *k, const job_name *job, wait_goal goal, double deadline_s, bool seen);

#endif
