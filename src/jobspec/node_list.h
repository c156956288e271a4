/* What declaring and detecting nodes share. */
#ifndef ADLI_NODE_LIST_H
#define ADLI_NODE_LIST_H

#include "jobspec/nodes.h"

/* A node without resources at the end of the list; *out is valid until the next call. On failure
 * the list is still good for adli_nodes_fini. */
ADL_MUST adl_status adli_nodes_add(adli_nodes *nodes, const char *name, const char *device_type,
                                   bool preemptible, adli_node_spec **out);
/* Where "pods" is not declared: one for each GPU, else for each whole core, else 1. */
ADL_MUST adl_status adli_node_default_pods(adli_amounts *resources);

#endif
