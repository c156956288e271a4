/* Reading configurations, driven by the table of constants. */
#include "config/config.h"

#include "base/mem.h"
#include "jobspec/collect.h"
#include "config/table.h"
#include "jobspec/quantity.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- defaults, copies ---- */

adl_status adli_config_defaults(adli_config *out)
{
    *out = (adli_config){0};
    adl_status status = adli_keep(&out->source, "");
    for (size_t i = 0; i < ADLI_CONSTANTS && status == ADL_OK; i++) {
        if (adli_constants[i].kind == ADLI_TEXT)
            status = adli_keep(adli_constant_slot(&adli_constants[i], out), "");
        else
            adli_constant_put(&adli_constants[i], out, adli_constants[i].usual);
    }
    if (status != ADL_OK)
        adli_config_fini(out);
    return status;
}

void adli_config_fini(adli_config *config)
{
    free(config->source);
    for (size_t i = 0; i < ADLI_CONSTANTS; i++)
        if (adli_constants[i].kind == ADLI_TEXT)
            free(*(char **)adli_constant_slot(&adli_constants[i], config));
    free(config->parameters);
    adli_nodes_fini(&config->nodes);
    *config = (adli_config){0};
}

adl_status adli_config_copy(const adli_config *from, adli_config *out)
{
    adl_status status = adli_config_defaults(out);
    if (status != ADL_OK)
        return status;
    status = adli_keep(&out->source, from->source);
    for (size_t i = 0; i < ADLI_CONSTANTS && status == ADL_OK; i++) {
        const adli_constant *c = &adli_constants[i];
        if (c->kind == ADLI_TEXT)
            status =
                adli_keep(adli_constant_slot(c, out), *(char *const *)adli_constant_value(c, from));
        else
            adli_constant_put(c, out, adli_constant_get(c, from));
    }
    if (status == ADL_OK)
        status = adli_nodes_copy(&from->nodes, &out->nodes);
    if (status == ADL_OK && from->parameter_count > 0) {
        out->parameters =
            adli_memdup(from->parameters, from->parameter_count, sizeof *from->parameters);
        out->parameter_count = out->parameter_capacity = from->parameter_count;
        if (!out->parameters)
            status = adli_fail_memory("a configuration");
    }
    if (status != ADL_OK)
        adli_config_fini(out);
    return status;
}

/* ---- reading ---- */

static adl_status read_bytes(const adli_constant *c, const adli_field *field, int64_t *out)
{
    const char *text;
    if (!json_is_string(field->value))
        return adli_field_int(field, (int64_t)c->low, (int64_t)c->high, out);
    adl_status status = adli_field_text(field, 64, &text);
    if (status == ADL_OK && adli_quantity_parse(text, 0, out, NULL) != ADL_OK)
        status = adli_field_fail(field, "%s", adl_error());
    if (status == ADL_OK && ((double)*out < c->low || (double)*out > c->high)) {
        char low[32], high[32];
        status = adli_field_fail(field, "must be from %s to %s, not %s",
                                 adli_resource_print("memory", (int64_t)c->low, low, sizeof low),
                                 adli_resource_print("memory", (int64_t)c->high, high, sizeof high),
                                 text);
    }
    return status;
}

static adl_status read_parameters(const adli_field *field, adli_config *out)
{
    adl_status status = adli_field_object(field);
    if (status == ADL_OK && adli_field_count(field) > ADLI_CONFIG_PARAMETERS_MAX)
        status = adli_field_fail(field, "has %zu entries, at most %d are allowed",
                                 adli_field_count(field), ADLI_CONFIG_PARAMETERS_MAX);
    for (size_t i = 0; i < adli_field_count(field) && status == ADL_OK; i++) {
        adli_field entry = adli_field_at(field, i);
        adli_config_parameter *parameter;
        if (adli_grow(&out->parameters, &out->parameter_capacity, out->parameter_count + 1,
                      sizeof *out->parameters) != 0)
            return adli_fail_memory("a configuration");
        parameter = &out->parameters[out->parameter_count];
        *parameter = (adli_config_parameter){.line = entry.mark->line};
        if (strlen(entry.key) >= sizeof parameter->name)
            return adli_field_fail(&entry, "there is no constant with such a long name");
        memcpy(parameter->name, entry.key, strlen(entry.key) + 1);
        status = adli_field_double(&entry, -1e300, 1e300, &parameter->value);
        out->parameter_count += status == ADL_OK;
    }
    return status;
}

/* An empty list is as good as none. */
static adl_status read_nodes(const adli_field *field, adli_config *out)
{
    adl_status status = adli_field_array(field, 0, ADLI_NODES_MAX, "nodes");
    if (status != ADL_OK || adli_field_count(field) == 0)
        return status;
    return adli_nodes_read(field, &out->nodes);
}

static adl_status check_listen(const adli_field *field, const char *text)
{
    const char *colon = strrchr(text, ':');
    const char *digits = colon ? colon + 1 : "";
    size_t host = colon ? (size_t)(colon - text) : 0;
    bool brackets = host > 2 && text[0] == '[' && text[host - 1] == ']';
    bool inner = host > 0 && memchr(text, ':', host); /* an IPv6 address needs its brackets */
    long port = strtol(digits, NULL, 10);
    bool good = host > 0 && (brackets || (!inner && text[0] != '[')) && *digits &&
                strlen(digits) <= 5 && !digits[strspn(digits, "0123456789")] && port <= 65535 &&
                text[strcspn(text, " \t\n/")] == '\0';
    if (good || !*text)
        return ADL_OK;
    char shown[64];
    return adli_field_fail(field, "\"%s\" is not ADDRESS:PORT, as in 127.0.0.1:8080 or [::1]:8080",
                           adli_show(text, shown, sizeof shown));
}

static adl_status read_text(const adli_constant *c, const adli_field *field, adli_config *out)
{
    const char *text;
    adl_status status = adli_field_text(field, (size_t)c->high, &text);
    if (status == ADL_OK && c->offset == offsetof(adli_config, listen))
        status = check_listen(field, text);
    return status == ADL_OK ? adli_keep(adli_constant_slot(c, out), text) : status;
}

static adl_status read_constant(const adli_constant *c, const adli_field *field, adli_config *out)
{
    int64_t integer;
    double number;
    bool flag;
    adl_status status = ADL_OK;
    switch (c->kind) {
    case ADLI_TEXT:
        return read_text(c, field, out);
    case ADLI_PARAMETERS:
        return read_parameters(field, out);
    case ADLI_NODES:
        return read_nodes(field, out);
    case ADLI_BOOL:
        status = adli_field_bool(field, &flag);
        number = status == ADL_OK && flag;
        break;
    case ADLI_INT:
        status = adli_field_int(field, (int64_t)c->low, (int64_t)c->high, &integer);
        number = status == ADL_OK ? (double)integer : 0;
        break;
    case ADLI_BYTES:
        status = read_bytes(c, field, &integer);
        number = status == ADL_OK ? (double)integer : 0;
        break;
    default:
        status = adli_field_double(field, c->low, c->high, &number);
        break;
    }
    if (status == ADL_OK)
        adli_constant_put(c, out, number);
    return status;
}

/* The names that may stand in a section, or at the top, where sections count once. */
static size_t names_in(const char *section, const char **names)
{
    size_t count = 0;
    for (size_t i = 0; i < ADLI_CONSTANTS; i++) {
        const adli_constant *c = &adli_constants[i];
        bool first = adli_constant_first(i);
        if (strcmp(c->section, section) == 0)
            names[count++] = c->name;
        else if (!*section && first)
            names[count++] = c->section;
    }
    return count;
}

static adl_status read_all(const adli_field *root, adli_config *out)
{
    const char *names[ADLI_CONSTANTS];
    adl_status status = adli_field_object(root);
    if (status == ADL_OK)
        status = adli_field_known(root, names, names_in("", names));
    adli_field section = *root;
    for (size_t i = 0; i < ADLI_CONSTANTS && status == ADL_OK; i++) {
        const adli_constant *c = &adli_constants[i];
        bool first = adli_constant_first(i);
        if (first && *c->section) {
            section = adli_field_get(root, c->section);
            if (adli_field_given(&section))
                status = adli_field_object(&section);
            if (adli_field_given(&section) && status == ADL_OK)
                status = adli_field_known(&section, names, names_in(c->section, names));
        }
        adli_field field = adli_field_get(*c->section ? &section : root, c->name);
        if (status == ADL_OK && adli_field_given(&field))
            status = read_constant(c, &field, out);
    }
    return status;
}

static adl_status read_config(const adli_doc *doc, adli_config *out)
{
    adli_field root = adli_doc_root(doc);
    adl_status status = adli_config_defaults(out);
    if (status == ADL_OK)
        status = adli_keep(&out->source, doc->name);
    if (status == ADL_OK)
        status = read_all(&root, out);
    adli_field tls = adli_field_get(&root, "tls");
    if (status == ADL_OK && !*out->tls_certificate != !*out->tls_key)
        status = adli_field_fail(&tls, "certificate and key go together");
    adli_field sizes = adli_field_get(&root, "autoscale");
    bool scales = out->autoscale.max_nodes > 0;
    if (status == ADL_OK && scales && out->autoscale.min_nodes > out->autoscale.max_nodes)
        status = adli_field_fail(&sizes, "minNodes %d is above maxNodes %d",
                                 out->autoscale.min_nodes, out->autoscale.max_nodes);
    if (status == ADL_OK && scales && out->autoscale.low_utility > out->autoscale.high_utility)
        status = adli_field_fail(&sizes, "lowUtility is above highUtility");
    adli_field file = adli_field_get(&root, "nodesFile");
    if (status == ADL_OK && *out->nodes_file) {
        if (out->nodes.count > 0)
            status = adli_field_fail(&file, "give either nodes or nodesFile");
        else
            status = adli_nodes_load(out->nodes_file, &out->nodes);
    }
    if (status != ADL_OK)
        adli_config_fini(out);
    return status;
}

adl_status adli_config_parse(const char *source, const char *text, size_t length,
                             adli_doc_format format, adli_config *out)
{
    adli_doc doc;
    *out = (adli_config){0};
    if (length > ADLI_CONFIG_FILE_MAX)
        return adli_fail(ADL_EINVAL, "%s: %zu bytes long, at most %d are allowed", source, length,
                         ADLI_CONFIG_FILE_MAX);
    adl_status status = adli_doc_parse(source, text, length, format, &doc);
    if (status != ADL_OK)
        return status;
    status = read_config(&doc, out);
    adli_doc_fini(&doc);
    return status;
}

adl_status adli_config_load(const char *path, adli_config *out)
{
    adli_doc doc;
    *out = (adli_config){0};
    adl_status status = adli_doc_load(path, ADLI_CONFIG_FILE_MAX, &doc);
    if (status != ADL_OK)
        return status;
    status = read_config(&doc, out);
    adli_doc_fini(&doc);
    return status;
}
