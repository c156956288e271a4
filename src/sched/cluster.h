/* What the daemon and the simulator can do with a cluster and the public interface does not show. */
#ifndef ADLI_CLUSTER_H
#define ADLI_CLUSTER_H

#include "adaptdl/cluster.h"
#include "sched/pool.h"

/* adl_cluster_new on what jobs learned before (borrowed; NULL: a new pool). */
ADL_MUST adl_status adli_cluster_new(const adl_cluster_options *options, adli_pool *pool,
                                     adl_cluster **out);

/* ---- changing while it runs ---- */

/* The replicas of the present group are at these nodes now, and where they should be (settled) or on their way. ENOMEM:
 * nothing changed. */
ADL_MUST adl_status adli_cluster_follow(adl_cluster *cluster, int job, const int *nodes, int count,
                                        bool settled);
/* Whoever carries out the orders changes the present group in place (on): another allocation is no reason to stop it.
 * resize_cost_s: what that costs, measured; 0: unknown. */
void adli_cluster_in_place(adl_cluster *cluster, int job, bool on, double resize_cost_s);
/* Can so many more replicas of the job start on the node, next to all that is there? */
bool adli_cluster_room(const adl_cluster *cluster, int job, int node, int more);
/* A replica failed, and the others went on. */
void adli_cluster_survived(adl_cluster *cluster, int job, double now_s);
/* May another one? */
bool adli_cluster_may_fail(const adl_cluster *cluster, int job, double now_s);
/* So many replicas from now on, no more and no less; 0: as the policy likes. */
void adli_cluster_pin(adl_cluster *cluster, int job, int replicas);
/* How often the job, or all jobs that ever were, said to be done and was not (sched/trust.h); a scheduler that takes over
 * knows it of before. */
int adli_cluster_missed(const adl_cluster *cluster, int job);
int64_t adli_cluster_misses(const adl_cluster *cluster);
void adli_cluster_set_missed(adl_cluster *cluster, int job, int missed);

#endif
