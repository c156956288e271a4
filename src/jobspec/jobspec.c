/* The outer half of a job file: what it is called and how the scheduler may treat it. The inner
 * half, the pod template, is in pod.c. */
#include "jobspec/jobspec.h"

#include "base/mem.h"
#include "jobspec/collect.h"
#include "jobspec/pod.h"

#include <stdlib.h>
#include <string.h>

enum {
    LABELS_MAX = 256,
    LABEL_MAX = 63,
    LABEL_KEY_MAX = 253 + 1 + LABEL_MAX,
    ANNOTATION_MAX = 256 * 1024,
    RETRIES_MAX = 1000000,
};

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool adli_name_valid(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return length > 0 && length <= ADLI_NAME_MAX && !name[length] && name[0] != '-' &&
           name[length - 1] != '-';
}

/* Letters and digits at both ends, - _ . inside; of at most LABEL_MAX bytes. */
static bool label_valid(const char *text, size_t length)
{
    if (length == 0 || length > LABEL_MAX || !is_alnum(text[0]) || !is_alnum(text[length - 1]))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!is_alnum(text[i]) && !strchr("-_.", text[i]))
            return false;
    return true;
}

/* [domain/]name */
static bool label_key_valid(const char *key)
{
    const char *slash = strchr(key, '/'), *name = slash ? slash + 1 : key;
    if (slash) {
        size_t length = (size_t)(slash - key);
        if (length == 0 || length > 253 || !is_alnum(key[0]) || !is_alnum(slash[-1]) ||
            strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-.") != length)
            return false;
    }
    return label_valid(name, strlen(name));
}

/* ---- metadata ---- */

static adl_status read_labels(const adli_field *metadata, const char *key, bool annotations,
                              adli_pairs *out)
{
    adli_field field = adli_field_get(metadata, key);
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_object(&field);
    if (status == ADL_OK && adli_field_count(&field) > LABELS_MAX)
        status = adli_field_fail(&field, "has %zu entries, at most %d are allowed",
                                 adli_field_count(&field), LABELS_MAX);
    for (size_t i = 0; i < adli_field_count(&field) && status == ADL_OK; i++) {
        adli_field entry = adli_field_at(&field, i);
        const char *value;
        if (!label_key_valid(entry.key))
            return adli_field_fail(&entry,
                                   "a key is [domain/]name, the name of at most %d "
                                   "letters, digits and inner - _ .",
                                   LABEL_MAX);
        status = adli_field_text(&entry, annotations ? ANNOTATION_MAX : LABEL_MAX, &value);
        if (status == ADL_OK && !annotations && *value && !label_valid(value, strlen(value)))
            status = adli_field_fail(&entry, "a label's value has letters, digits and inner - _ .");
        if (status == ADL_OK)
            status = adli_pairs_set(out, entry.key, value);
    }
    return status;
}

static adl_status read_name(const adli_field *metadata, const char *key, char **out)
{
    adli_field field = adli_field_get(metadata, key);
    const char *text;
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_text(&field, ADLI_NAME_MAX, &text);
    if (status == ADL_OK && !adli_name_valid(text))
        status = adli_field_fail(&field, "must be lower-case letters, digits and inner -, as in "
                                         "\"my-job-1\"");
    return status == ADL_OK ? adli_keep(out, text) : status;
}

/* A prefix: valid once something follows it. */
static adl_status read_generate_name(const adli_field *metadata, char **out)
{
    adli_field field = adli_field_get(metadata, "generateName");
    char whole[ADLI_NAME_MAX + 2];
    const char *text;
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_text(&field, ADLI_NAME_MAX - ADLI_GENERATED, &text);
    if (status != ADL_OK)
        return status;
    size_t length = strlen(text);
    memcpy(whole, text, length);
    memcpy(whole + length, "x", 2);
    if (length == 0 || !adli_name_valid(whole))
        return adli_field_fail(&field, "must be lower-case letters, digits and -, as in "
                                       "\"my-job-\"");
    return adli_keep(out, text);
}

/* Job files that were stored when nobody read it may have anything there: only a text counts. */
static adl_status read_uid(const adli_field *metadata, adli_jobfile *out)
{
    adli_field field = adli_field_get(metadata, "uid");
    if (!json_is_string(field.value))
        return adli_field_given(&field) ? adli_warn(out, &field, "ignored: not a text") : ADL_OK;
    return adli_keep(&out->uid, json_string_value(field.value));
}

static adl_status read_metadata(const adli_field *root, adli_jobfile *out)
{
    static const char *const known[] = {
        "name", "generateName", "namespace", "labels", "annotations", "uid",
        /* Kubernetes' own: */
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
        "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink"};
    adli_field metadata = adli_field_get(root, "metadata");
    adl_status status = adli_members_check(out, &metadata, known, 6, ADLI_COUNT(known));
    if (status == ADL_OK)
        status = read_uid(&metadata, out);
    if (status == ADL_OK)
        status = read_name(&metadata, "name", &out->name);
    if (status == ADL_OK && !*out->name)
        status = read_generate_name(&metadata, &out->generate_name);
    if (status == ADL_OK && !*out->name && !*out->generate_name)
        status = adli_field_fail(&metadata, "needs a name or a generateName");
    if (status == ADL_OK)
        status = read_name(&metadata, "namespace", &out->ns);
    if (status == ADL_OK)
        status = read_labels(&metadata, "labels", false, &out->labels);
    if (status == ADL_OK)
        status = read_labels(&metadata, "annotations", true, &out->annotations);
    return status;
}

/* ---- spec ---- */

static adl_status read_count(const adli_field *spec, const char *key, int low, int high, int *out)
{
    adli_field field = adli_field_get(spec, key);
    int64_t value;
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_int(&field, low, high, &value);
    if (status == ADL_OK)
        *out = (int)value;
    return status;
}

static adl_status read_suspend(const adli_field *spec, int *out)
{
    static const char *const words[] = {"when-better", "last-resort", "never"};
    adli_field field = adli_field_get(spec, "suspend");
    const char *text;
    char shown[64];
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_text(&field, 256, &text);
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(words); i++)
        if (strcmp(text, words[i]) == 0) {
            *out = (int)i;
            return ADL_OK;
        }
    return status != ADL_OK
               ? status
               : adli_field_fail(&field, "must be when-better, last-resort or never, not \"%s\"",
                                 adli_show(text, shown, sizeof shown));
}

static adl_status read_spec(const adli_field *root, adli_jobfile *out)
{
    static const char *const known[] = {"minReplicas", "maxReplicas", "preemptible", "maxRetries",
                                        "priority",    "suspend",     "template"};
    adli_field spec = adli_field_get(root, "spec");
    adl_status status = adli_members_check(out, &spec, known, ADLI_COUNT(known), ADLI_COUNT(known));
    if (status == ADL_OK)
        status = read_count(&spec, "minReplicas", 0, ADLI_REPLICAS_MAX, &out->min_replicas);
    if (status == ADL_OK)
        status = read_count(&spec, "maxReplicas", 1, ADLI_REPLICAS_MAX, &out->max_replicas);
    if (status == ADL_OK)
        status = read_count(&spec, "maxRetries", 0, RETRIES_MAX, &out->max_retries);
    adli_field most = adli_field_get(&spec, "maxReplicas");
    if (status == ADL_OK && out->max_replicas && out->max_replicas < out->min_replicas)
        status = adli_field_fail(&most, "must be at least minReplicas, %d, not %d",
                                 out->min_replicas, out->max_replicas);
    adli_field preemptible = adli_field_get(&spec, "preemptible");
    if (status == ADL_OK && adli_field_given(&preemptible))
        status = adli_field_bool(&preemptible, &out->preemptible);
    adli_field priority = adli_field_get(&spec, "priority");
    if (status == ADL_OK && adli_field_given(&priority))
        status =
            adli_field_double(&priority, ADLI_PRIORITY_LOW, ADLI_PRIORITY_HIGH, &out->priority);
    if (status == ADL_OK)
        status = read_suspend(&spec, &out->suspend);
    adli_field template = adli_field_get(&spec, "template");
    return status == ADL_OK ? adli_pod_read(&template, out) : status;
}

static adl_status expect_text(const adli_field *root, const char *key, const char *wanted)
{
    adli_field field = adli_field_get(root, key);
    const char *text;
    char shown[64];
    adl_status status = adli_field_text(&field, 256, &text);
    if (status == ADL_OK && strcmp(text, wanted) != 0)
        status = adli_field_fail(&field, "must be %s, not \"%s\"", wanted,
                                 adli_show(text, shown, sizeof shown));
    return status;
}

static int take_json(const char *data, size_t length, void *user)
{
    adli_buf_append(user, data, length);
    return 0;
}

/* The one text that stands for a job: keys sorted, no spaces. What is stored must be readable again, so
 * it is held to the limit of job files too. */
static adl_status keep_json(const adli_field *root, char **out)
{
    adli_buf text;
    adli_buf_init(&text, (size_t)ADLI_DOC_EXPANDED_MAX * 8);
    adl_status status = ADL_OK;
    if (json_dump_callback(root->value, take_json, &text, JSON_COMPACT | JSON_SORT_KEYS) != 0)
        status = adli_fail_memory("a job as JSON");
    if (status == ADL_OK)
        status = adli_buf_check(&text);
    if (status == ADL_OK && text.length > ADLI_JOB_FILE_MAX)
        status = adli_field_fail(root, "is %zu bytes long as JSON, at most %d are allowed",
                                 text.length, ADLI_JOB_FILE_MAX);
    if (status == ADL_OK)
        *out = text.data;
    else
        adli_buf_fini(&text);
    return status;
}

static adl_status defaults(adli_jobfile *out)
{
    *out = (adli_jobfile){.preemptible = true, .priority = 1, .max_retries = -1, .grace_s = -1};
    char **const texts[] = {&out->name,      &out->generate_name, &out->uid,
                            &out->container, &out->image,         &out->working_dir};
    adl_status status = adli_keep(&out->ns, "default");
    for (size_t i = 0; i < ADLI_COUNT(texts) && status == ADL_OK; i++)
        status = adli_keep(texts[i], "");
    return status;
}

adl_status adli_jobfile_from_doc(const adli_doc *doc, adli_jobfile *out)
{
    static const char *const known[] = {"apiVersion", "kind", "metadata", "spec", "status"};
    adli_field root = adli_doc_root(doc);
    adl_status status = defaults(out);
    if (status == ADL_OK)
        status = adli_members_check(out, &root, known, 4, ADLI_COUNT(known));
    if (status == ADL_OK)
        status = expect_text(&root, "apiVersion", ADLI_JOB_API_VERSION);
    if (status == ADL_OK)
        status = expect_text(&root, "kind", ADLI_JOB_KIND);
    if (status == ADL_OK)
        status = read_metadata(&root, out);
    if (status == ADL_OK)
        status = read_spec(&root, out);
    if (status == ADL_OK)
        status = keep_json(&root, &out->json);
    if (status != ADL_OK)
        adli_jobfile_fini(out);
    return status;
}

adl_status adli_pod_parse(const char *source, const char *json, size_t length, adli_jobfile *out)
{
    adli_doc doc;
    *out = (adli_jobfile){0};
    adl_status status = adli_doc_parse(source, json, length, ADLI_DOC_JSON, &doc);
    if (status != ADL_OK)
        return status;
    adli_field root = adli_doc_root(&doc);
    status = defaults(out);
    if (status == ADL_OK)
        status = adli_pod_read(&root, out);
    adli_doc_fini(&doc);
    if (status != ADL_OK)
        adli_jobfile_fini(out);
    return status;
}

adl_status adli_jobfile_parse(const char *source, const char *text, size_t length,
                              adli_doc_format format, adli_jobfile *out)
{
    adli_doc doc;
    *out = (adli_jobfile){0};
    if (length > ADLI_JOB_FILE_MAX)
        return adli_fail(ADL_EINVAL, "%s: %zu bytes long, at most %d are allowed", source, length,
                         ADLI_JOB_FILE_MAX);
    adl_status status = adli_doc_parse(source, text, length, format, &doc);
    if (status != ADL_OK)
        return status;
    status = adli_jobfile_from_doc(&doc, out);
    adli_doc_fini(&doc);
    return status;
}

adl_status adli_jobfile_load(const char *path, adli_jobfile *out)
{
    adli_doc doc;
    *out = (adli_jobfile){0};
    adl_status status = adli_doc_load(path, ADLI_JOB_FILE_MAX, &doc);
    if (status != ADL_OK)
        return status;
    status = adli_jobfile_from_doc(&doc, out);
    adli_doc_fini(&doc);
    return status;
}

void adli_jobfile_fini(adli_jobfile *spec)
{
    char *const texts[] = {spec->name,      spec->generate_name, spec->ns,          spec->uid,
                           spec->container, spec->image,         spec->working_dir, spec->json};
    for (size_t i = 0; i < ADLI_COUNT(texts); i++)
        free(texts[i]);
    adli_pairs_fini(&spec->labels);
    adli_pairs_fini(&spec->annotations);
    adli_pairs_fini(&spec->env);
    adli_amounts_fini(&spec->requests);
    adli_amounts_fini(&spec->limits);
    for (int i = 0; i < spec->argc; i++)
        free(spec->argv[i]);
    free(spec->argv);
    for (int i = 0; i < spec->warning_count; i++)
        free(spec->warnings[i]);
    free(spec->warnings);
    *spec = (adli_jobfile){0};
}
