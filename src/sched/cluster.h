/* What the daemon and the simulator can do with a cluster and the public interface does not show. */
#ifndef ADLI_CLUSTER_H
#define ADLI_CLUSTER_H

#include "adaptdl/cluster.h"
#include "sched/pool.h"

/* adl_cluster_new on what jobs learned before (borrowed; NULL: a new pool). */
ADL_MUST adl_status adli_cluster_new(const adl_cluster_options *options, adli_pool *pool,
                                     adl_cluster **out);

#endif
