/* Nodes as people declare them. */
#include "jobspec/nodes.h"

#include "base/mem.h"
#include "jobspec/collect.h"
#include "jobspec/node_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void adli_nodes_fini(adli_nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++) {
        free(nodes->items[i].name);
        free(nodes->items[i].device_type);
        adli_amounts_fini(&nodes->items[i].resources);
    }
    free(nodes->items);
    *nodes = (adli_nodes){0};
}

adl_status adli_nodes_add(adli_nodes *nodes, const char *name, const char *device_type,
                          bool preemptible, adli_node_spec **out)
{
    if (adli_grow(&nodes->items, &nodes->capacity, nodes->count + 1, sizeof *nodes->items) != 0)
        return adli_fail_memory("a node");
    adli_node_spec *node = &nodes->items[nodes->count++];
    *node = (adli_node_spec){.preemptible = preemptible};
    *out = node;
    adl_status status = adli_keep(&node->name, name);
    return status == ADL_OK ? adli_keep(&node->device_type, device_type) : status;
}

adl_status adli_nodes_uniform(int nodes, int slots, adli_nodes *out)
{
    *out = (adli_nodes){0};
    if (nodes < 1 || nodes > ADLI_NODES_MAX)
        return adli_fail(ADL_EINVAL, "nodes: must be from 1 to %d, not %d", ADLI_NODES_MAX, nodes);
    if (slots < 1 || slots > ADLI_SLOTS_MAX)
        return adli_fail(ADL_EINVAL, "slots: must be from 1 to %d, not %d", ADLI_SLOTS_MAX, slots);
    adl_status status = ADL_OK;
    for (int i = 0; i < nodes && status == ADL_OK; i++) {
        char name[32];
        adli_node_spec *node;
        snprintf(name, sizeof name, "node-%d", i);
        status = adli_nodes_add(out, name, "", false, &node);
        if (status == ADL_OK)
            status = adli_amounts_set(&node->resources, "pods", slots);
    }
    if (status != ADL_OK)
        adli_nodes_fini(out);
    return status;
}

adl_status adli_node_default_pods(adli_amounts *resources)
{
    for (int i = 0; i < resources->count; i++)
        if (strcmp(resources->names[i], "pods") == 0)
            return ADL_OK;
    int64_t devices = adli_amounts_get(resources, "nvidia.com/gpu");
    int64_t cores = adli_amounts_get(resources, "cpu") / 1000;
    int64_t pods = devices > 0 ? devices : cores > 0 ? cores : 1;
    return adli_amounts_set(resources, "pods", pods < ADLI_SLOTS_MAX ? pods : ADLI_SLOTS_MAX);
}

static adl_status read_resources(const adli_field *node, adli_amounts *out)
{
    adli_field resources = adli_field_get(node, "resources");
    adl_status status = ADL_OK;
    if (adli_field_given(&resources)) {
        adli_field pods = adli_field_get(&resources, "pods");
        int most = ADLI_RESOURCES_MAX - !adli_field_given(&pods);
        status = adli_amounts_read(&resources, most, true, out);
        int64_t count = adli_amounts_get(out, "pods");
        if (status == ADL_OK && adli_field_given(&pods) && (count < 1 || count > ADLI_SLOTS_MAX))
            status = adli_field_fail(&pods, "must be from 1 to %d", ADLI_SLOTS_MAX);
    }
    return status == ADL_OK ? adli_node_default_pods(out) : status;
}

static adl_status read_node(const adli_field *field, adli_nodes *out)
{
    static const char *const known[] = {"name", "deviceType", "preemptible", "resources"};
    const char *name = "", *type = "";
    bool preemptible = false;
    adl_status status = adli_field_object(field);
    if (status == ADL_OK)
        status = adli_field_known(field, known, ADLI_COUNT(known));
    adli_field name_field = adli_field_get(field, "name");
    if (status == ADL_OK)
        status = adli_field_text(&name_field, ADLI_NAME_MAX, &name);
    if (status == ADL_OK && !adli_name_valid(name))
        status = adli_field_fail(&name_field, "must be lower-case letters, digits and inner -");
    for (size_t i = 0; i < out->count && status == ADL_OK; i++)
        if (strcmp(out->items[i].name, name) == 0)
            status = adli_field_fail(&name_field, "there is a node \"%s\" already", name);
    adli_field type_field = adli_field_get(field, "deviceType");
    if (status == ADL_OK && adli_field_given(&type_field))
        status = adli_field_text(&type_field, ADLI_NAME_MAX, &type);
    adli_field preemptible_field = adli_field_get(field, "preemptible");
    if (status == ADL_OK && adli_field_given(&preemptible_field))
        status = adli_field_bool(&preemptible_field, &preemptible);
    adli_node_spec *node;
    if (status == ADL_OK)
        status = adli_nodes_add(out, name, type, preemptible, &node);
    return status == ADL_OK ? read_resources(field, &node->resources) : status;
}

/* The policies count with ADLI_RESOURCES_MAX kinds in all. */
static adl_status check_kinds(const adli_field *list, const adli_nodes *nodes)
{
    const char *kinds[ADLI_RESOURCES_MAX];
    int count = 0;
    for (size_t i = 0; i < nodes->count; i++) {
        const adli_amounts *resources = &nodes->items[i].resources;
        for (int j = 0; j < resources->count; j++) {
            int k = 0;
            while (k < count && strcmp(kinds[k], resources->names[j]) != 0)
                k++;
            if (k == ADLI_RESOURCES_MAX) {
                adli_field node = adli_field_at(list, i);
                return adli_field_fail(&node,
                                       "the nodes have more than %d kinds of resources in "
                                       "all",
                                       ADLI_RESOURCES_MAX);
            }
            if (k == count)
                kinds[count++] = resources->names[j];
        }
    }
    return ADL_OK;
}

adl_status adli_nodes_read(const adli_field *list, adli_nodes *out)
{
    *out = (adli_nodes){0};
    adl_status status = adli_field_array(list, 1, ADLI_NODES_MAX, "nodes");
    for (size_t i = 0; i < adli_field_count(list) && status == ADL_OK; i++) {
        adli_field node = adli_field_at(list, i);
        status = read_node(&node, out);
    }
    if (status == ADL_OK)
        status = check_kinds(list, out);
    if (status != ADL_OK)
        adli_nodes_fini(out);
    return status;
}

adl_status adli_nodes_load(const char *path, adli_nodes *out)
{
    static const char *const known[] = {"nodes"};
    adli_doc doc;
    *out = (adli_nodes){0};
    adl_status status = adli_doc_load(path, ADLI_NODE_FILE_MAX, &doc);
    if (status != ADL_OK)
        return status;
    adli_field root = adli_doc_root(&doc);
    status = adli_field_object(&root);
    if (status == ADL_OK)
        status = adli_field_known(&root, known, 1);
    adli_field list = adli_field_get(&root, "nodes");
    if (status == ADL_OK)
        status = adli_nodes_read(&list, out);
    adli_doc_fini(&doc);
    return status;
}

adl_status adli_nodes_copy(const adli_nodes *from, adli_nodes *out)
{
    *out = (adli_nodes){0};
    adl_status status = ADL_OK;
    for (size_t i = 0; i < from->count && status == ADL_OK; i++) {
        const adli_node_spec *node = &from->items[i];
        adli_node_spec *copy;
        status = adli_nodes_add(out, node->name, node->device_type, node->preemptible, &copy);
        for (int j = 0; j < node->resources.count && status == ADL_OK; j++)
            status = adli_amounts_set(&copy->resources, node->resources.names[j],
                                      node->resources.amounts[j]);
    }
    if (status != ADL_OK)
        adli_nodes_fini(out);
    return status;
}
