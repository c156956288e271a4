/* A scheduler of one's own in a page: the library decides who gets what, this program pretends to run it. Two
 * machines of two devices, three jobs, one of which reports how fast it is. */
#include "adaptdl/cluster.h"
#include "adaptdl/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

static void must(adl_status status)
{
    if (status == ADL_OK)
        return;
    fprintf(stderr, "schedule: %s\n", adl_error());
    exit(1);
}

/* Replicas start and stop at once here; a real executor tells what it sees when it sees it. */
static void carry_out(adl_cluster *cluster, adl_orders orders, double now_s)
{
    while (orders.count > 0) {
        for (size_t i = 0; i < orders.count; i++) {
            const adl_order *order = &orders.items[i];
            int had = adl_cluster_job(cluster, order->job)->placed_count;
            adl_observed seen = {.started = had, .interrupted = had};
            if (order->action == ADL_START) {
                printf("%4.0f s  start %s on %d\n", now_s, (const char *)order->user,
                       order->replicas);
                seen = (adl_observed){.started = had, .alive = had, .ready = had};
            } else if (order->action == ADL_TERMINATE || order->action == ADL_KILL)
                printf("%4.0f s  stop %s\n", now_s, (const char *)order->user);
            if (order->action != ADL_CLEAN)
                adl_cluster_observe(cluster, order->job, &seen, now_s);
        }
        must(adl_cluster_advance(cluster, now_s, &orders));
    }
}

int main(void)
{
    static const char *const resources[] = {"gpu"}, *const names[] = {"small", "large", "late"};
    const adl_node nodes[] = {{.name = "a", .device_type = "", .capacity = {{2}}},
                              {.name = "b", .device_type = "", .capacity = {{2}}}};
    adl_policy *policy;
    adl_cluster *cluster;
    must(adl_policy_new("rank", &policy));
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = resources,
                                   .resource_count = 1,
                                   .nodes = nodes,
                                   .node_count = 2,
                                   .policy = policy,
                                   .rules = {.grace_s = 30, .max_retries = 3}};
    must(adl_cluster_new(&options, &cluster));
    int jobs[3];
    for (int i = 0; i < 3; i++) {
        adl_job_spec spec = {.size = sizeof spec,
                             .name = names[i],
                             .request = {{1}},
                             .max_replicas = 4,
                             .preemptible = true,
                             .submit_s = i,
                             .user = (void *)names[i]};
        must(adl_cluster_submit(cluster, &spec, &jobs[i]));
    }
    adl_job_report report = {.size = sizeof report,
                             .has_model = true,
                             .model = {{0.1, 0.01, 0.01, 0.001, 0.01, 0.001, 1.5}, {1, 100}, 64},
                             .limits = {.max_batch_size = 1024, .max_local_bsz = 64},
                             .max_profiled = 1,
                             .total_work = 1e5,
                             .epoch_work = 1e3,
                             .restart_cost_s = 5};
    for (int round = 1; round <= 3; round++) {
        adl_orders orders;
        must(adl_cluster_round(cluster, 60 * round, &orders));
        carry_out(cluster, orders, 60 * round);
        must(adl_cluster_report(cluster, jobs[1], &report));
        report.progress += 100;
    }
    char text[256];
    for (int i = 0; i < 3; i++)
        printf("%s %s\n", names[i],
               adl_decision_explain(adl_cluster_snapshot(cluster), adl_cluster_decision(cluster), i,
                                    text, sizeof text));
    adl_cluster_free(cluster);
    adl_policy_free(policy);
    return 0;
}
