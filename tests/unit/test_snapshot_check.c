/* Snapshots that make no sense are refused before a policy sees them, and the text names what is wrong. */
#include "harness.h"
#include "snapshots.h"

/* One thing wrong with node-1 or job-1. */
static void spoil(adlt_world *world, int what)
{
    static const int backwards[] = {1, 0}, outside[] = {0, 7};
    adl_job *job = &world->jobs[1];
    adl_node *node = &world->nodes[1];
    double *const times[] = {&job->submit_s,       &job->last_change_s, &job->attained_s,
                             &job->run_s,          &job->mean_active,   &job->restart_cost_s,
                             &job->progress,       &job->total_work,    &job->epoch_work,
                             &job->remaining_steps};
    int *const counts[] = {&job->restarts, &job->max_profiled, &job->fixed_replicas};
    if (what < 10)
        *times[what] = what % 2 ? NAN : INFINITY;
    else if (what < 13)
        *counts[what - 10] = -1;
    switch (what) {
    case 13:
        node->capacity.amount[1] = -1;
        break;
    case 14:
        world->template_node.capacity.amount[0] = -1;
        break;
    case 15:
        job->request.amount[1] = -1;
        break;
    case 16:
        job->request = (adl_resources){{0}};
        break;
    case 17:
        job->min_replicas = -1;
        break;
    case 18:
        job->max_replicas = 0;
        break;
    case 19:
        job->min_replicas = job->max_replicas + 1;
        break;
    case 20:
        adlt_world_allocate(world, 1, backwards, 2);
        break;
    case 21:
        adlt_world_allocate(world, 1, outside, 2);
        break;
    case 22:
        node->capacity.amount[0] = 0; /* job-1 is there */
        break;
    case 23:
        job->allocation = NULL; /* with 2 replicas */
        break;
    case 24:
        node->capacity.amount[0] = INT64_MAX;
        break;
    case 25:
        job->request.amount[0] = INT64_MAX;
        break;
    }
}

TEST(snapshot_check_names_what_is_wrong)
{
    for (int what = 0; what < 26; what++) {
        bool node = what == 13 || what == 22 || what == 24;
        const char *name = what == 14 ? "template" : node ? "node-1" : "job-1";
        static const int here[] = {1, 1};
        adlt_world world;
        adlt_world_init(&world, 3, 3, 2);
        for (int i = 0; i < 3; i++) {
            world.nodes[i].capacity = (adl_resources){{4, 100}};
            world.jobs[i].request = (adl_resources){{1, 10}};
            world.jobs[i].max_replicas = 4;
        }
        world.template_node.capacity = (adl_resources){{4, 100}};
        world.snapshot.template_node = &world.template_node;
        adlt_world_allocate(&world, 1, here, 2);
        CHECK_OK(adl_snapshot_check(&world.snapshot));
        spoil(&world, what);
        adl_status status = adl_snapshot_check(&world.snapshot);
        if (status != ADL_EINVAL || !strstr(adl_error(), name))
            ADLT_FAIL("error %d: status %s, text \"%s\"", what, adl_status_text(status),
                      adl_error());
        adlt_world_fini(&world);
    }
}

TEST(snapshot_check_refuses_impossible_counts)
{
    adlt_world world;
    adlt_world_init(&world, 1, 1, 1);
    world.nodes[0].capacity.amount[0] = 1;
    world.jobs[0].request.amount[0] = 1;
    world.jobs[0].max_replicas = 1;
    adl_snapshot s = world.snapshot;
    s.resource_count = 0;
    CHECK_FAILS(adl_snapshot_check(&s), ADL_EINVAL, "0 kinds of resources");
    s.resource_count = ADL_MAX_RESOURCES + 1;
    CHECK_FAILS(adl_snapshot_check(&s), ADL_EINVAL, "9 kinds of resources");
    s = world.snapshot;
    s.node_count = -1;
    CHECK_FAILS(adl_snapshot_check(&s), ADL_EINVAL, "negative");
    s = world.snapshot;
    s.job_count = -1;
    CHECK_FAILS(adl_snapshot_check(&s), ADL_EINVAL, "negative");
    s = world.snapshot;
    s.now_s = NAN;
    CHECK_FAILS(adl_snapshot_check(&s), ADL_EINVAL, "not finite");
    world.nodes[0].name = NULL;
    CHECK_FAILS(adl_snapshot_check(&world.snapshot), ADL_EINVAL, "node has no name");
    world.nodes[0].name = "n";
    world.jobs[0].name = NULL;
    CHECK_FAILS(adl_snapshot_check(&world.snapshot), ADL_EINVAL, "job has no name");
    adlt_world_fini(&world);
}
