/* The configuration as a file with comments, and as the table of docs/config.md. */
#include "doc/yaml.h"
#include "config/table.h"
#include "jobspec/quantity.h"

static void print_number(const adli_constant *c, double value, adli_buf *out)
{
    char text[32];
    if (c->kind == ADLI_BOOL)
        adli_buf_puts(out, value != 0 ? "true" : "false");
    else if (c->kind == ADLI_BYTES)
        adli_buf_puts(out, adli_resource_print("memory", (int64_t)value, text, sizeof text));
    else
        adli_buf_double(out, value);
}

static void print_parameters(const adli_config *config, adli_buf *out)
{
    adli_buf_puts(out, "{");
    for (size_t i = 0; i < config->parameter_count; i++) {
        adli_buf_puts(out, i ? ", " : "");
        adli_yaml_text(config->parameters[i].name, out);
        adli_buf_puts(out, ": ");
        adli_buf_double(out, config->parameters[i].value);
    }
    adli_buf_puts(out, "}");
}

static void print_node(const adli_node_spec *node, adli_buf *out)
{
    char text[32];
    adli_buf_puts(out, "\n- name: ");
    adli_yaml_text(node->name, out);
    adli_buf_puts(out, "\n  deviceType: ");
    adli_yaml_text(node->device_type, out);
    adli_buf_printf(out, "\n  preemptible: %s\n  resources: {",
                    node->preemptible ? "true" : "false");
    for (int i = 0; i < node->resources.count; i++)
        adli_buf_printf(out, "%s%s: %s", i ? ", " : "", node->resources.names[i],
                        adli_resource_print(node->resources.names[i], node->resources.amounts[i],
                                            text, sizeof text));
    adli_buf_puts(out, "}");
}

/* Those of a nodesFile are in that file. */
static void print_nodes(const adli_config *config, adli_buf *out)
{
    size_t count = *config->nodes_file ? 0 : config->nodes.count;
    for (size_t i = 0; i < count; i++)
        print_node(&config->nodes.items[i], out);
    if (count == 0)
        adli_buf_puts(out, " []");
}

static void print_value(const adli_constant *c, const adli_config *config, adli_buf *out)
{
    if (c->kind != ADLI_NODES)
        adli_buf_puts(out, " ");
    switch (c->kind) {
    case ADLI_TEXT:
        adli_yaml_text(*(char *const *)adli_constant_value(c, config), out);
        break;
    case ADLI_PARAMETERS:
        print_parameters(config, out);
        break;
    case ADLI_NODES:
        print_nodes(config, out);
        break;
    case ADLI_BOOL:
    case ADLI_INT:
    case ADLI_BYTES:
    case ADLI_NUMBER:
        print_number(c, adli_constant_get(c, config), out);
        break;
    }
}

static bool has_range(const adli_constant *c)
{
    return c->kind == ADLI_INT || c->kind == ADLI_BYTES || c->kind == ADLI_NUMBER;
}

static void print_range(const adli_constant *c, adli_buf *out)
{
    print_number(c, c->low, out);
    adli_buf_puts(out, " to ");
    print_number(c, c->high, out);
}

static void print_comment(const adli_constant *c, const char *indent, adli_buf *out)
{
    adli_buf_printf(out, "%s# %s", indent, c->meaning);
    if (has_range(c)) {
        adli_buf_puts(out, " (");
        print_range(c, out);
        adli_buf_puts(out, ")");
    }
}

adl_status adli_config_print(const adli_config *config, adli_buf *out)
{
    adli_buf_puts(out, "# Configuration of adaptdl-sched. Every field may be left out.\n");
    for (size_t i = 0; i < ADLI_CONSTANTS; i++) {
        const adli_constant *c = &adli_constants[i];
        const char *indent = *c->section ? "  " : "";
        if (adli_constant_first(i))
            adli_buf_puts(out, "\n");
        if (adli_constant_first(i) && *c->section)
            adli_buf_printf(out, "%s:\n", c->section);
        print_comment(c, indent, out);
        adli_buf_printf(out, "\n%s%s:", indent, c->name);
        print_value(c, config, out);
        adli_buf_puts(out, "\n");
    }
    return adli_buf_check(out);
}

static void print_default(const adli_constant *c, adli_buf *out)
{
    switch (c->kind) {
    case ADLI_TEXT:
        adli_buf_puts(out, "empty");
        break;
    case ADLI_PARAMETERS:
    case ADLI_NODES:
        adli_buf_puts(out, "none");
        break;
    case ADLI_BOOL:
    case ADLI_INT:
    case ADLI_BYTES:
    case ADLI_NUMBER:
        print_number(c, c->usual, out);
        break;
    }
}

adl_status adli_config_document(adli_buf *out)
{
    adli_buf_puts(out, "| field | default | range | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < ADLI_CONSTANTS; i++) {
        const adli_constant *c = &adli_constants[i];
        adli_buf_printf(out, "| `%s%s%s` | ", c->section, *c->section ? "." : "", c->name);
        print_default(c, out);
        adli_buf_puts(out, " | ");
        if (has_range(c))
            print_range(c, out);
        adli_buf_printf(out, " | %s |\n", c->meaning);
    }
    return adli_buf_check(out);
}
