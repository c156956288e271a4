/* What the local cluster consists of: nodes declared by number, in a YAML file, or found on this
 * machine.
 *   nodes:
 *   - name: gpu-0
 *     deviceType: a100
 *     preemptible: true
 *     resources: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 2, pods: 4} */
#ifndef ADLI_NODES_H
#define ADLI_NODES_H

#include "doc/doc.h"
#include "jobspec/jobspec.h"

enum { ADLI_NODES_MAX = 1000, ADLI_SLOTS_MAX = 10000, ADLI_NODE_FILE_MAX = 1 << 20 };

typedef struct adli_node_spec {
    char *name;        /* a DNS label, unique */
    char *device_type; /* "" when not given */
    bool preemptible;
    adli_amounts resources; /* always with "pods": how many replicas it takes */
} adli_node_spec;

typedef struct adli_nodes {
    adli_node_spec *items;
    size_t count, capacity;
} adli_nodes;

/* Each gives at least one node and at most ADLI_RESOURCES_MAX kinds of resources in all, or fails
 * with *out empty. */

/* node-0, node-1 ... with pods: slots each and nothing else declared. */
ADL_MUST adl_status adli_nodes_uniform(int nodes, int slots, adli_nodes *out);
ADL_MUST adl_status adli_nodes_load(const char *path, adli_nodes *out);
/* From a list of nodes inside a document. */
ADL_MUST adl_status adli_nodes_read(const adli_field *list, adli_nodes *out);
/* This machine as one node, node-0: the cores that this process may use (affinity, cgroup quota),
 * memory (or the cgroup's limit), NVIDIA devices; pods: one for each device, else for each core.
 * root is "" but in tests, which put a machine's files below another directory. */
ADL_MUST adl_status adli_nodes_detect(const char *root, adli_nodes *out);
ADL_MUST adl_status adli_nodes_copy(const adli_nodes *from, adli_nodes *out);
void adli_nodes_fini(adli_nodes *nodes);

#endif
