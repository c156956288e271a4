/* The pod template of a job file. Everything that Kubernetes knows there is in the tables below;
 * the first entries of each are what the local cluster uses. */
#include "jobspec/pod.h"

#include "base/mem.h"
#include "jobspec/collect.h"
#include "jobspec/quantity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRING_MAX = 128 * 1024 - 1, /* Linux' limit on one argument or variable */
    ARGUMENTS_MAX = 4096,
    VARIABLES_MAX = 1000,
    TOTAL_MAX = 1 << 20, /* all arguments and variables: half of what execve takes */
    WARNINGS_MAX = 100,
    CONTAINERS_MAX = 8,
    GRACE_MAX_S = 86400,
};

adl_status adli_warn(adli_jobfile *spec, const adli_field *field, const char *text)
{
    char path[256], line[512];
    if (spec->warning_count == WARNINGS_MAX)
        return ADL_OK;
    char **grown = adli_realloc(spec->warnings, (size_t)spec->warning_count + 1, sizeof *grown);
    if (!grown)
        return adli_fail_memory("a warning");
    spec->warnings = grown;
    snprintf(line, sizeof line, "%s: %s", adli_field_path(field, path, sizeof path), text);
    grown[spec->warning_count] = adli_strdup(line);
    if (!grown[spec->warning_count])
        return adli_fail_memory("a warning");
    spec->warning_count++;
    return ADL_OK;
}

adl_status adli_members_check(adli_jobfile *spec, const adli_field *object,
                              const char *const *known, size_t used, size_t count)
{
    adl_status status = adli_field_object(object);
    if (status == ADL_OK)
        status = adli_field_known(object, known, count);
    for (size_t i = used; i < count && status == ADL_OK; i++) {
        adli_field field = adli_field_get(object, known[i]);
        if (adli_field_given(&field))
            status = adli_warn(spec, &field, "ignored here");
    }
    return status;
}

/* ---- command, args, env ---- */

static bool variable_name_valid(const char *name)
{
    size_t length =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    return length > 0 && length <= 255 && !name[length] && !(name[0] >= '0' && name[0] <= '9');
}

/* text with its $(NAME) replaced, as a new string of at most max bytes. */
static adl_status expanded(const adli_field *field, const char *text, const adli_pairs *variables,
                           size_t max, char **out)
{
    adli_buf buf;
    adli_buf_init(&buf, max);
    size_t length = adli_expand(text, variables, &buf);
    if (buf.status == ADL_OK) {
        *out = buf.data;
        return ADL_OK;
    }
    adli_buf_fini(&buf);
    if (length > max)
        return adli_field_fail(field,
                               "is %zu bytes long with its $(NAME) replaced, at most %zu "
                               "are allowed",
                               length, max);
    return adli_fail_memory("a text");
}

static adl_status read_variable(const adli_field *entry, adli_jobfile *out)
{
    static const char *const known[] = {"name", "value", "valueFrom"};
    const char *name, *value = "";
    char *text = NULL;
    adl_status status = adli_members_check(out, entry, known, 3, 3);
    if (status != ADL_OK)
        return status;
    adli_field name_field = adli_field_get(entry, "name");
    adli_field value_field = adli_field_get(entry, "value");
    adli_field from = adli_field_get(entry, "valueFrom");
    status = adli_field_text(&name_field, 255, &name);
    if (status == ADL_OK && !variable_name_valid(name))
        status = adli_field_fail(&name_field, "a variable's name has letters, digits, _ . - and "
                                              "does not start with a digit");
    if (status == ADL_OK && adli_field_given(&from))
        status = adli_field_fail(&from, "the local cluster has no secrets, config maps or pod "
                                        "fields to take a value from: give a value");
    if (status == ADL_OK && adli_field_given(&value_field))
        status = adli_field_text(&value_field, STRING_MAX - strlen(name) - 1, &value);
    if (status == ADL_OK)
        status = expanded(&value_field, value, &out->env, STRING_MAX - strlen(name) - 1, &text);
    if (status == ADL_OK)
        status = adli_pairs_set(&out->env, name, text);
    free(text);
    return status;
}

static adl_status read_env(const adli_field *container, adli_jobfile *out)
{
    adli_field env = adli_field_get(container, "env");
    adli_field from = adli_field_get(container, "envFrom");
    if (adli_field_given(&from))
        return adli_field_fail(&from, "the local cluster has no secrets or config maps to take "
                                      "variables from: list them in env");
    if (!adli_field_given(&env))
        return ADL_OK;
    adl_status status = adli_field_array(&env, 0, VARIABLES_MAX, "variables");
    for (size_t i = 0; i < adli_field_count(&env) && status == ADL_OK; i++) {
        adli_field entry = adli_field_at(&env, i);
        status = read_variable(&entry, out);
    }
    return status;
}

/* Appends the list under key to argv. */
static adl_status read_arguments(const adli_field *container, const char *key, adli_jobfile *out)
{
    adli_field list = adli_field_get(container, key);
    if (!adli_field_given(&list))
        return ADL_OK;
    adl_status status = adli_field_array(&list, 0, ARGUMENTS_MAX, "strings");
    if (status != ADL_OK)
        return status;
    size_t count = adli_field_count(&list), had = (size_t)out->argc;
    char **argv = adli_realloc(out->argv, had + count + 1, sizeof *argv);
    if (!argv)
        return adli_fail_memory("a command");
    out->argv = argv;
    argv[had] = NULL;
    for (size_t i = 0; i < count && status == ADL_OK; i++) {
        adli_field item = adli_field_at(&list, i);
        const char *text;
        status = adli_field_text(&item, STRING_MAX, &text);
        if (status == ADL_OK)
            status = expanded(&item, text, &out->env, STRING_MAX, &argv[out->argc]);
        if (status == ADL_OK && out->argc == 0 && !*argv[0])
            status = adli_field_fail(&item, "is empty; it should be the program to run");
        if (argv[out->argc])
            argv[++out->argc] = NULL;
    }
    return status;
}

static adl_status read_command(const adli_field *container, adli_jobfile *out)
{
    adl_status status = read_arguments(container, "command", out);
    out->command_count = out->argc;
    if (status == ADL_OK)
        status = read_arguments(container, "args", out);
    if (status != ADL_OK)
        return status;
    adli_field command = adli_field_get(container, "command");
    if (out->argc == 0)
        return adli_field_fail(&command, "on the local cluster there is no image, so "
                                         "spec.template.spec.containers[0].command must say what "
                                         "to run");
    if (out->command_count == 0)
        status = adli_warn(out, &command,
                           "is missing: args are run as the command, for there is "
                           "no image here whose entry point could take them");
    size_t total = 0;
    for (int i = 0; i < out->argc; i++)
        total += strlen(out->argv[i]) + 1;
    for (size_t i = 0; i < out->env.count; i++)
        total += strlen(out->env.items[i].name) + strlen(out->env.items[i].value) + 2;
    if (status == ADL_OK && total > TOTAL_MAX)
        return adli_field_fail(container,
                               "command, args and env are %zu bytes long together, at "
                               "most %d are allowed",
                               total, TOTAL_MAX);
    return status;
}

/* ---- resources ---- */

/* What is limited but not requested is requested too; a request is at most the limit. */
static adl_status join_limits(const adli_field *resources, adli_jobfile *out)
{
    adl_status status = ADL_OK;
    adli_field requests = adli_field_get(resources, "requests");
    for (int i = 0; i < out->limits.count && status == ADL_OK; i++) {
        const char *name = out->limits.names[i];
        int64_t limit = out->limits.amounts[i];
        adli_field request = adli_field_get(&requests, name);
        if (!adli_field_given(&request)) {
            if (out->requests.count == ADLI_RESOURCES_MAX - 1)
                return adli_field_fail(resources, "more than %d kinds of resources",
                                       ADLI_RESOURCES_MAX - 1);
            status = adli_amounts_set(&out->requests, name, limit);
        } else if (adli_amounts_get(&out->requests, name) > limit) {
            char text[32];
            return adli_field_fail(&request, "must be at most the limit, %s",
                                   adli_resource_print(name, limit, text, sizeof text));
        }
    }
    return status;
}

static adl_status read_resources(const adli_field *container, adli_jobfile *out)
{
    static const char *const known[] = {"requests", "limits", "claims"};
    adli_field resources = adli_field_get(container, "resources");
    if (!adli_field_given(&resources))
        return ADL_OK;
    adl_status status = adli_members_check(out, &resources, known, 2, ADLI_COUNT(known));
    adli_field requests = adli_field_get(&resources, "requests");
    adli_field limits = adli_field_get(&resources, "limits");
    if (status == ADL_OK && adli_field_given(&requests))
        status = adli_amounts_read(&requests, ADLI_RESOURCES_MAX - 1, false, &out->requests);
    if (status == ADL_OK && adli_field_given(&limits))
        status = adli_amounts_read(&limits, ADLI_RESOURCES_MAX - 1, false, &out->limits);
    return status == ADL_OK ? join_limits(&resources, out) : status;
}

/* ---- containers ---- */

static adl_status read_names(const adli_field *container, adli_jobfile *out)
{
    adli_field name = adli_field_get(container, "name");
    adli_field image = adli_field_get(container, "image");
    adli_field workdir = adli_field_get(container, "workingDir");
    const char *text;
    adl_status status = adli_field_text(&name, ADLI_NAME_MAX, &text);
    if (status == ADL_OK && !adli_name_valid(text))
        status = adli_field_fail(&name, "must be lower-case letters, digits and inner -");
    if (status == ADL_OK)
        status = adli_keep(&out->container, text);
    if (status == ADL_OK && adli_field_given(&image)) {
        status = adli_field_text(&image, 1024, &text);
        if (status == ADL_OK)
            status = adli_keep(&out->image, text);
    }
    if (status == ADL_OK && adli_field_given(&workdir)) {
        status = adli_field_text(&workdir, 4000, &text);
        if (status == ADL_OK && text[0] != '/')
            status = adli_field_fail(&workdir, "must be an absolute path");
        if (status == ADL_OK)
            status = adli_keep(&out->working_dir, text);
    }
    return status;
}

static adl_status read_container(const adli_field *container, adli_jobfile *out)
{
    static const char *const known[] = {
        "name", "image", "command", "args", "env", "envFrom", "workingDir", "resources",
        /* Kubernetes' own: */
        "imagePullPolicy", "lifecycle", "livenessProbe", "ports", "readinessProbe", "resizePolicy",
        "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce",
        "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices",
        "volumeMounts"};
    adl_status status = adli_members_check(out, container, known, 8, ADLI_COUNT(known));
    if (status == ADL_OK)
        status = read_names(container, out);
    if (status == ADL_OK)
        status = read_env(container, out);
    if (status == ADL_OK)
        status = read_command(container, out);
    return status == ADL_OK ? read_resources(container, out) : status;
}

static adl_status read_containers(const adli_field *pod, adli_jobfile *out)
{
    adli_field containers = adli_field_get(pod, "containers");
    adl_status status = adli_field_array(&containers, 1, CONTAINERS_MAX, "containers");
    if (status != ADL_OK)
        return status;
    adli_field first = adli_field_at(&containers, 0);
    status = read_container(&first, out);
    for (size_t i = 1; i < adli_field_count(&containers) && status == ADL_OK; i++) {
        adli_field other = adli_field_at(&containers, i);
        status = adli_field_object(&other);
        if (status == ADL_OK)
            status = adli_warn(out, &other, "ignored here: only the first container runs");
    }
    return status;
}

static adl_status read_pod(const adli_field *pod, adli_jobfile *out)
{
    static const char *const known[] = {
        "containers", "terminationGracePeriodSeconds",
        /* Kubernetes' own: */
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig",
        "dnsPolicy", "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC",
        "hostNetwork", "hostPID", "hostUsers", "hostname", "imagePullSecrets", "initContainers",
        "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority",
        "priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy",
        "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount",
        "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
        "tolerations", "topologySpreadConstraints", "volumes"};
    adl_status status = adli_members_check(out, pod, known, 2, ADLI_COUNT(known));
    adli_field grace = adli_field_get(pod, "terminationGracePeriodSeconds");
    if (status == ADL_OK && adli_field_given(&grace)) {
        int64_t seconds;
        status = adli_field_int(&grace, 0, GRACE_MAX_S, &seconds);
        out->grace_s = status == ADL_OK ? (double)seconds : -1;
    }
    return status == ADL_OK ? read_containers(pod, out) : status;
}

adl_status adli_pod_read(const adli_field *template, adli_jobfile *out)
{
    static const char *const known[] = {"spec", "metadata"};
    adl_status status = adli_members_check(out, template, known, 1, ADLI_COUNT(known));
    adli_field pod = adli_field_get(template, "spec");
    return status == ADL_OK ? read_pod(&pod, out) : status;
}
