#include "submit_job.h"

#include "base/mem.h"
#include "jobspec/jobspec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A container as Kubernetes reads it: command stands for ENTRYPOINT, args for CMD. */
typedef struct editor {
    json_t *root, *metadata, *container;
    bool changed;
} editor;

static json_t *member(json_t *object, const char *field)
{
    json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

/* An empty list counts as none; what is no list is left for the check to complain about. */
static bool has_list(json_t *object, const char *field)
{
    json_t *value = member(object, field);
    return value && (!json_is_array(value) || json_array_size(value) > 0);
}

/* A field that is something else than a list: the check of the file is to say so. */
static bool is_wrong(json_t *object, const char *field)
{
    json_t *value = member(object, field);
    return value && !json_is_array(value);
}

static void set_new(editor *e, json_t *object, const char *field, json_t *value)
{
    if (object && json_object_set_new(object, field, value) == 0)
        e->changed = true;
    else if (!object)
        json_decref(value);
}

/* words end with NULL, or after count. */
static void append_words(json_t *list, const char *const *words, size_t count)
{
    for (size_t i = 0; words && i < count && words[i]; i++)
        json_array_append_new(list, json_string(words[i]));
}

/* Variables of the image and --tensorboard, unless the job sets them itself. They come first, so
 * that the job's own may refer to them. */
static void add_variable(editor *e, json_t *first, const char *name, size_t length,
                         const char *value)
{
    json_t *own = member(e->container, "env"), *entry;
    size_t i;
    json_array_foreach(own, i, entry)
    {
        const char *there = json_string_value(json_object_get(entry, "name"));
        if (there && strlen(there) == length && memcmp(there, name, length) == 0)
            return;
    }
    json_array_append_new(first, json_pack("{s:s%, s:s}", "name", name, length, "value", value));
}

static void edit_env(editor *e, const job_edits *edits)
{
    static const char logs[] = "ADAPTDL_TENSORBOARD_LOGDIR";
    json_t *first = json_array(), *own = member(e->container, "env");
    for (size_t i = 0; edits->image && edits->image->env[i]; i++) {
        const char *equals = strchr(edits->image->env[i], '=');
        add_variable(e, first, edits->image->env[i], (size_t)(equals - edits->image->env[i]),
                     equals + 1);
    }
    if (edits->tensorboard)
        add_variable(e, first, logs, sizeof logs - 1, edits->tensorboard);
    if (json_array_size(first) == 0) {
        json_decref(first);
        return;
    }
    if (json_is_array(own))
        json_array_extend(first, own);
    set_new(e, e->container, "env", first);
}

static adl_status edit_command(editor *e, const char *source, const job_edits *edits)
{
    const adli_image_config *image = edits->image;
    const char *const *words = (const char *const *)edits->arguments;
    size_t count = (size_t)edits->argument_count;
    json_t *command = json_array();
    if (has_list(e->container, "command")) {
        append_words(command, words, count);
        if (count > 0)
            set_new(e, e->container, "args", command);
        else
            json_decref(command);
        return ADL_OK;
    }
    append_words(command, image ? image->entrypoint : NULL, SIZE_MAX);
    if (count > 0)
        append_words(command, words, count);
    else if (has_list(e->container, "args"))
        json_array_extend(command, member(e->container, "args"));
    else if (image && image->cmd)
        append_words(command, image->cmd, SIZE_MAX);
    if (json_array_size(command) == 0) {
        json_decref(command);
        return adli_fail(ADL_EINVAL,
                         "%s: the container has no command, and there is no ENTRYPOINT or CMD in a "
                         "Dockerfile",
                         source);
    }
    json_object_del(e->container, "args");
    set_new(e, e->container, "command", command);
    return ADL_OK;
}

/* resources.KIND.name = amount */
static void set_resource(editor *e, const char *kind, const char *name, const char *amount)
{
    if (!amount)
        return;
    json_t *resources = member(e->container, "resources");
    if (!resources)
        set_new(e, e->container, "resources", resources = json_object());
    json_t *amounts = member(resources, kind);
    if (!amounts && json_is_object(resources))
        set_new(e, resources, kind, amounts = json_object());
    if (json_is_object(amounts))
        set_new(e, amounts, name, json_string(amount));
}

static void apply_wishes(editor *e, json_t *spec, const job_wishes *wishes)
{
    if (wishes->has_min)
        set_new(e, spec, "minReplicas", json_integer(wishes->min_replicas));
    if (wishes->max_replicas)
        set_new(e, spec, "maxReplicas", json_integer(wishes->max_replicas));
    if (wishes->priority)
        set_new(e, spec, "priority", json_real(strtod(wishes->priority, NULL)));
    set_resource(e, "requests", "cpu", wishes->cpus);
    set_resource(e, "requests", "memory", wishes->memory);
    set_resource(e, "limits", "nvidia.com/gpu", wishes->gpus);
}

static adl_status apply(editor *e, const char *source, const job_edits *edits)
{
    json_t *spec = json_object_get(e->root, "spec");
    json_t *pod = json_object_get(json_object_get(spec, "template"), "spec");
    e->metadata = json_object_get(e->root, "metadata");
    e->container = json_array_get(json_object_get(pod, "containers"), 0);
    if (!json_is_object(e->container))
        return ADL_OK; /* the check below says what is missing */
    if (!e->metadata && (edits->name || edits->ns)) {
        e->metadata = json_object();
        set_new(e, e->root, "metadata", e->metadata);
    }
    if (edits->name) {
        json_object_del(e->metadata, "generateName");
        set_new(e, e->metadata, "name", json_string(edits->name));
    }
    if (edits->ns)
        set_new(e, e->metadata, "namespace", json_string(edits->ns));
    apply_wishes(e, spec, &edits->wishes);
    if (edits->image && edits->image->workdir && !member(e->container, "workingDir"))
        set_new(e, e->container, "workingDir", json_string(edits->image->workdir));
    if (!is_wrong(e->container, "env"))
        edit_env(e, edits);
    if (is_wrong(e->container, "command") || is_wrong(e->container, "args"))
        return ADL_OK;
    return edit_command(e, source, edits);
}

/* What is checked: the file as it stands, for messages with lines; when the edits are what makes it
 * complete, the result. */
static adl_status check(const adli_doc *doc, const char *edited, void (*note)(const char *line))
{
    adli_jobfile spec;
    char what[300];
    adl_status status = adli_jobfile_from_doc(doc, &spec);
    if (status != ADL_OK && edited) {
        char first[1000];
        snprintf(first, sizeof first, "%s", adl_error());
        snprintf(what, sizeof what, "%.200s (as edited)", doc->name);
        if (adli_jobfile_parse(what, edited, strlen(edited), ADLI_DOC_JSON, &spec) == ADL_OK)
            status = ADL_OK;
        else
            return adli_fail(ADL_EINVAL, "%s", first);
    }
    if (status != ADL_OK)
        return status;
    for (int i = 0; i < spec.warning_count; i++)
        note(spec.warnings[i]);
    adli_jobfile_fini(&spec);
    return ADL_OK;
}

adl_status job_prepare(const char *source, const char *text, size_t length, const job_edits *edits,
                       void (*note)(const char *line), adli_buf *out, bool *yaml)
{
    size_t end = strlen(source);
    bool json = end > 5 && strcmp(source + end - 5, ".json") == 0;
    adli_doc doc;
    editor e = {0};
    char *edited = NULL;
    adl_status status =
        adli_doc_parse(source, text, length, json ? ADLI_DOC_JSON : ADLI_DOC_YAML, &doc);
    if (status != ADL_OK)
        return status;
    e.root = json_deep_copy(doc.root);
    status = e.root ? apply(&e, source, edits) : adli_fail_memory("job");
    if (status == ADL_OK && e.changed && !(edited = json_dumps(e.root, JSON_COMPACT)))
        status = adli_fail_memory("job");
    if (status == ADL_OK)
        status = check(&doc, edited, note);
    if (status == ADL_OK) {
        *yaml = !edited && !json;
        adli_buf_append(out, edited ? edited : text, edited ? strlen(edited) : length);
        status = adli_buf_check(out);
    }
    free(edited);
    json_decref(e.root);
    adli_doc_fini(&doc);
    return status;
}
