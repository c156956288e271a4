/* The Kubernetes backend in the conformance suite, on a server in memory whose kubelet runs nothing: of the suite
 * test_conformance_names.c is for it. */
#include "conformance/suite.h"

#include "fake_kube.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static adlt_fake fake;
static bool running;

static bool start_server(const char *state, const adlt_node *nodes, int count)
{
    char path[128];
    if (running)
        return true;
    if (!adlt_fake_start(&fake))
        return false;
    for (int i = 0; i < count; i++) {
        char where[64], text[128];
        adlt_fake_node(&fake, nodes[i].name);
        snprintf(where, sizeof where, "/api/v1/nodes/%s", nodes[i].name);
        snprintf(text, sizeof text, "{\"status\":{\"allocatable\":{\"pods\":\"%d\"}}}",
                 nodes[i].pods);
        adlt_fake_put(&fake, where, text);
    }
    adlt_kubelet_start(&fake);
    snprintf(path, sizeof path, "%s/kubeconfig", state);
    FILE *file = fopen(path, "we");
    if (file) {
        fprintf(file,
                "{\"current-context\":\"c\",\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":"
                "\"k\"}}],\"clusters\":[{\"name\":\"k\",\"cluster\":{\"server\":\"http://"
                "127.0.0.1:%d\"}}]}",
                fake.server.port);
        fclose(file);
    }
    setenv("KUBECONFIG", path, 1);
    running = true;
    return true;
}

static adl_status make(const char *state, const adlt_node *nodes, int count, adli_backend **out)
{
    adli_backend_options options = ADLI_BACKEND_OPTIONS_INIT;
    if (!start_server(state, nodes, count))
        return adli_fail(ADL_EIO, "the server in memory does not start");
    options.state_dir = state;
    return adli_backend_kubernetes.open(&options, out);
}

static adl_status set_nodes(adli_backend *backend, const adlt_node *nodes, int count)
{
    (void)backend, (void)nodes, (void)count;
    return adli_fail(ADL_ESTATE, "its nodes come by themselves");
}

/* The server goes with the last object. */
static int leftovers(const char *state)
{
    (void)state;
    int left = running ? adlt_fake_count(&fake, "pods/") + adlt_fake_count(&fake, "secrets/") : 0;
    if (running && left == 0) {
        adlt_kubelet_stop(&fake);
        adlt_fake_stop(&fake);
        running = false;
    }
    return left;
}

static void touch(const char *state, const char *uid, const char *name)
{
    (void)state, (void)uid, (void)name;
}

const adlt_backend_kind adlt_backend = {.name = "kubernetes",
                                        .make = make,
                                        .set_nodes = set_nodes,
                                        .leftovers = leftovers,
                                        .touch = touch};
