/* Any JSON as a pod and as a node of the cluster: views whose texts and numbers are within their bounds. */
#include "backend/k8s/view.h"
#include "base/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_amounts(const adli_k8s_amounts *amounts)
{
    if (amounts->count < 0 || amounts->count > ADLI_NODE_RESOURCES_MAX)
        abort();
    for (int i = 0; i < amounts->count; i++)
        if (!amounts->names[i] || amounts->amounts[i] < 0)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root;
    adli_k8s_pod_view pod;
    adli_k8s_node_view node;
    if (adli_json_parse((const char *)data, size, &root) != ADL_OK)
        return 0;
    if (adli_k8s_read_pod(root, &pod)) {
        check_amounts(&pod.requests);
        if (pod.ours && (pod.group < 1 || pod.view.member < 0 || strlen(pod.uid) > 63))
            abort();
        if (pod.stuck && !pod.view.message[0])
            abort();
    }
    if (adli_k8s_read_node(root, &node)) {
        check_amounts(&node.allocatable);
        if (!*node.hostname || (node.lost && node.schedulable))
            abort();
    }
    json_decref(root);
    return 0;
}
