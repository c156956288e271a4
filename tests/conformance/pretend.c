/* The backend of docs/tutorial-backend.md in the conformance suite: tests/cli/tutorials.sh builds the two together. It
 * runs nothing and keeps everything in memory, so of the suite test_conformance_names.c is for it. */
#include "conformance/suite.h"

#include "jobspec/nodes.h"

#include <stdlib.h>

extern const adli_backend_class adli_backend_pretend;

static adl_status make(const char *state, const adlt_node *nodes, int count, adli_backend **out)
{
    adli_backend_options options = ADLI_BACKEND_OPTIONS_INIT;
    adli_node_spec items[8] = {0};
    for (int i = 0; i < count; i++)
        items[i].name = (char *)nodes[i].name;
    adli_nodes declared = {.items = items, .count = (size_t)count};
    options.state_dir = state;
    options.nodes = &declared;
    setenv("ADAPTDL_PRETEND_S", "1000", 1);
    return adli_backend_pretend.open(&options, out);
}

static adl_status set_nodes(adli_backend *backend, const adlt_node *nodes, int count)
{
    (void)backend, (void)nodes, (void)count;
    return adli_fail(ADL_ESTATE, "its nodes do not change");
}

static int leftovers(const char *state)
{
    (void)state;
    return 0;
}

static void touch(const char *state, const char *uid, const char *name)
{
    (void)state, (void)uid, (void)name;
}

const adlt_backend_kind adlt_backend = {.name = "pretend",
                                        .make = make,
                                        .set_nodes = set_nodes,
                                        .leftovers = leftovers,
                                        .touch = touch};
