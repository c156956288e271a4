/* What the scheduler's API lets one change, changed at the API server. The scheduler on a cluster takes no orders: jobs
 * are objects, nodes are the cluster's, and the rights are those of whoever asks. */
#include "kube.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SUFFIX = 5, KNOWN_TRIES = 40, KNOWN_PAUSE_MS = 250, NAME_MAX_BYTES = 63 };

static const char MERGE[] = "application/merge-patch+json";

/* ---- making jobs ---- */

/* As the API server ends a generateName; ours, so that claims can be named by it. */
static void put_suffix(char out[SUFFIX + 1])
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    unsigned char random[SUFFIX] = {0};
    if (getrandom(random, sizeof random, 0) != SUFFIX)
        memcpy(random, &(int){rand()}, sizeof(int));
    for (int i = 0; i < SUFFIX; i++)
        out[i] = letters[random[i] % (sizeof letters - 1)];
    out[SUFFIX] = '\0';
}

int kube_settle(cluster *k, json_t *job)
{
    json_t *metadata = json_object_get(job, "metadata");
    if (!metadata)
        json_object_set_new(job, "metadata", metadata = json_object());
    const char *prefix = text_of(metadata, "generateName", NULL);
    char suffix[SUFFIX + 1], name[NAME_MAX_BYTES + 1];
    if (!text_of(metadata, "namespace", NULL))
        json_object_set_new(metadata, "namespace", json_string(k->ns));
    if (text_of(metadata, "name", NULL))
        return EXIT_DONE;
    if (!prefix)
        return problem(k->cli->command->name, EXIT_USAGE,
                       "the job has neither metadata.name nor metadata.generateName");
    put_suffix(suffix);
    snprintf(name, sizeof name, "%.*s%s", NAME_MAX_BYTES - SUFFIX, prefix, suffix);
    json_object_del(metadata, "generateName");
    json_object_set_new(metadata, "name", json_string(name));
    return EXIT_DONE;
}

/* The claim that a volume of ours names; NULL: the job has no such volume. */
static json_t *claim_source(const json_t *job)
{
    const json_t *template = json_object_get(json_object_get(job, "spec"), "template"), *volume;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(template, "spec"), "volumes"), i, volume)
    {
        if (strcmp(text_of(volume, "name", ""), KUBE_CLAIM_VOLUME) == 0)
            return json_object_get(volume, "persistentVolumeClaim");
    }
    return NULL;
}

/* The claim for checkpoints and shared files. */
static json_t *make_claim(const json_t *job, const char *claim)
{
    const json_t *notes = json_object_get(json_object_get(job, "metadata"), "annotations");
    const char *class = text_of(notes, KUBE_CLAIM_CLASS, NULL);
    json_t *object = json_pack("{s:s,s:s,s:{s:s},s:{s:[s],s:{s:{s:s}}}}", "apiVersion", "v1",
                               "kind", "PersistentVolumeClaim", "metadata", "name", claim, "spec",
                               "accessModes", "ReadWriteMany", "resources", "requests", "storage",
                               text_of(notes, KUBE_CLAIM_SIZE, "1Gi"));
    if (class)
        json_object_set_new(json_object_get(object, "spec"), "storageClassName",
                            json_string(class));
    return object;
}

/* Belongs to the job, and goes with it. */
static int create_owned(cluster *k, const json_t *job, json_t *object)
{
    const json_t *of = json_object_get(job, "metadata");
    const char *name = text_of(of, "name", "");
    bool map = strcmp(text_of(object, "kind", ""), "ConfigMap") == 0;
    json_t *metadata = json_object_get(object, "metadata");
    char path[PATH_TEXT];
    json_object_set_new(metadata, "labels", json_pack("{s:s}", "adaptdl/job", name));
    json_object_set_new(metadata, "ownerReferences",
                        json_pack("[{s:s,s:s,s:s,s:s}]", "apiVersion", "adaptdl.petuum.com/v1",
                                  "kind", "AdaptDLJob", "name", name, "uid",
                                  text_of(of, "uid", "")));
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/%s", text_of(of, "namespace", ""),
             map ? "configmaps" : "persistentvolumeclaims");
    return kube_ask(k, "POST", path, object, NULL, 0, NULL);
}

/* All of them, or neither them nor the job, which would wait for them for ever. */
static int create_all(cluster *k, const json_t *job, json_t *objects)
{
    const json_t *metadata = json_object_get(job, "metadata");
    int status = EXIT_DONE;
    char path[PATH_TEXT];
    for (size_t i = 0; i < json_array_size(objects) && status == EXIT_DONE; i++)
        status = create_owned(k, job, json_array_get(objects, i));
    if (status == EXIT_DONE)
        return EXIT_DONE;
    snprintf(path, sizeof path, KUBE_JOBS "/%s", text_of(metadata, "namespace", ""),
             text_of(metadata, "name", ""));
    kube_ask(k, "DELETE", path, NULL, NULL, 404, NULL);
    return status;
}

/* As the scheduler describes it, once it has seen it; what is known otherwise. */
static json_t *describe(cluster *k, const json_t *job, bool dry_run)
{
    const json_t *metadata = json_object_get(job, "metadata");
    job_name name;
    char path[PATH_TEXT];
    snprintf(name.ns, sizeof name.ns, "%s", text_of(metadata, "namespace", ""));
    snprintf(name.name, sizeof name.name, "%s", text_of(metadata, "name", ""));
    for (int i = 0; i < KNOWN_TRIES && !dry_run && !interrupted(); i++) {
        json_t *seen = NULL;
        if (cluster_look(k, job_path(&name, "", path), 10000) != ADL_OK || k->told)
            break;
        if (k->code < 400 && cluster_parse(k, &seen) == EXIT_DONE)
            return seen;
        if (k->code != 404)
            break;
        pause_ms(KNOWN_PAUSE_MS);
    }
    k->told = 0; /* the job was made, whatever became of that */
    return json_pack("{s:s,s:s,s:s,s:s}", "namespace", name.ns, "name", name.name, "uid",
                     text_of(metadata, "uid", ""), "phase", "Pending");
}

int kube_create(cluster *k, json_t *job, json_t *objects, bool dry_run, json_t **out)
{
    json_t *made = NULL, *source = claim_source(job);
    char path[PATH_TEXT], claim[NAME_MAX_BYTES + 20];
    const json_t *metadata = json_object_get(job, "metadata");
    *out = NULL;
    json_object_set_new(job, "apiVersion", json_string("adaptdl.petuum.com/v1"));
    json_object_set_new(job, "kind", json_string("AdaptDLJob"));
    snprintf(claim, sizeof claim, "adaptdl-%s", text_of(metadata, "name", ""));
    if (source) {
        json_object_set_new(source, "claimName", json_string(claim));
        json_array_append_new(objects, make_claim(job, claim));
    }
    snprintf(path, sizeof path, KUBE_JOBS "?fieldValidation=Strict&fieldManager=adaptdl%s",
             text_of(metadata, "namespace", ""), dry_run ? "&dryRun=All" : "");
    int status = kube_ask(k, "POST", path, job, NULL, 0, &made);
    if (status == EXIT_DONE && !dry_run)
        status = create_all(k, made, objects);
    if (status == EXIT_DONE)
        *out = describe(k, made, dry_run);
    json_decref(made);
    return status;
}

static int rerun(cluster *k, const job_name *name, json_t **out)
{
    char path[PATH_TEXT], prefix[80];
    json_t *old = NULL, *answer = NULL;
    snprintf(path, sizeof path, KUBE_JOBS "/%s", name->ns, name->name);
    int status = kube_ask(k, "GET", path, NULL, NULL, 0, &old);
    if (status != EXIT_DONE)
        return status;
    const json_t *metadata = json_object_get(old, "metadata");
    snprintf(prefix, sizeof prefix, "%s-", name->name);
    json_t *fresh = json_pack("{s:{s:s,s:s},s:O}", "metadata", "generateName", prefix, "namespace",
                              name->ns, "spec", json_object_get(old, "spec"));
    json_t *kept = json_object();
    static const char *const notes[] = {KUBE_CLAIM_SIZE, KUBE_CLAIM_CLASS};
    for (size_t i = 0; i < ADLI_COUNT(notes); i++)
        json_object_set(kept, notes[i],
                        json_object_get(json_object_get(metadata, "annotations"), notes[i]));
    json_object_set_new(json_object_get(fresh, "metadata"), "annotations", kept);
    json_t *objects = json_array();
    status = fresh ? kube_settle(k, fresh)
                   : problem(k->cli->command->name, EXIT_REFUSED, "out of memory");
    if (status == EXIT_DONE)
        status = kube_create(k, fresh, objects, false, &answer);
    json_decref(objects);
    json_decref(fresh);
    json_decref(old);
    if (out)
        *out = answer;
    else
        json_decref(answer);
    return status;
}

/* ---- ending jobs ---- */

static int delete_job(cluster *k, const job_name *name, json_t **out)
{
    char path[PATH_TEXT], hint[HINT_TEXT];
    json_t *gone = NULL, *options = json_pack("{s:s}", "propagationPolicy", "Background");
    snprintf(path, sizeof path, KUBE_JOBS "/%s", name->ns, name->name);
    int status = kube_ask(k, "DELETE", path, options, NULL, 404, &gone);
    json_decref(options);
    if (status == EXIT_DONE && k->code == 404)
        return problem(k->cli->command->name, EXIT_ABSENT, "there is no job %s/%s%s", name->ns,
                       name->name, job_hint(k, name, hint));
    const char *uid = text_of(json_object_get(gone, "details"), "uid",
                              text_of(json_object_get(gone, "metadata"), "uid", ""));
    if (status == EXIT_DONE && out)
        *out = json_pack("{s:s,s:s,s:s}", "namespace", name->ns, "name", name->name, "uid", uid);
    json_decref(gone);
    return status;
}

static int delete_jobs(cluster *k, const char *ns, json_t **out)
{
    char path[PATH_TEXT];
    json_t *list = NULL, *options = json_pack("{s:s}", "propagationPolicy", "Background");
    json_t *names = json_array();
    const json_t *item;
    size_t i;
    snprintf(path, sizeof path, KUBE_JOBS, ns);
    int status = kube_ask(k, "GET", path, NULL, NULL, 0, &list);
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        char id[160];
        snprintf(id, sizeof id, "%s/%s", ns,
                 text_of(json_object_get(item, "metadata"), "name", "?"));
        json_array_append_new(names, json_string(id));
    }
    if (status == EXIT_DONE && i > 0)
        status = kube_ask(k, "DELETE", path, options, NULL, 0, NULL);
    if (status == EXIT_DONE && out)
        *out = json_pack("{s:O}", "items", names);
    json_decref(names);
    json_decref(options);
    json_decref(list);
    return status;
}

/* ---- nodes ---- */

static int cordon(cluster *k, const char *node, bool off)
{
    char path[PATH_TEXT];
    json_t *patch = json_pack("{s:{s:b}}", "spec", "unschedulable", off);
    snprintf(path, sizeof path, "/api/v1/nodes/%.253s?fieldManager=adaptdl", node);
    int status = kube_ask(k, "PATCH", path, patch, MERGE, 0, NULL);
    json_decref(patch);
    return status;
}

/* ---- which of them ---- */

static int cannot(const cluster *k, const char *verb)
{
    if (strcmp(verb, "cancel") == 0)
        return problem("cancel", EXIT_REFUSED,
                       "on Kubernetes a job cannot be stopped and kept; adaptdl delete stops it "
                       "and removes it with its claim");
    return problem(k->cli->command->name, EXIT_REFUSED,
                   "on Kubernetes jobs cannot be changed once they are made, so there is no %s",
                   k->cli->command->name);
}

int kube_write(cluster *k, const adli_stream_request *request, json_t **out)
{
    job_name name = {.ns = ""};
    char verb[32] = "", node[256] = "", ns[64] = "";
    const char *path = request->path;
    bool post = strcmp(request->method, "POST") == 0;
    int parts = sscanf(path, "/api/v1/jobs/%63[^/]/%63[^/?]/%31[^?]", name.ns, name.name, verb);
    if (parts == 2 && !post)
        return delete_job(k, &name, out);
    if (parts == 3 && strcmp(verb, "rerun") == 0)
        return rerun(k, &name, out);
    if (!post && sscanf(path, "/api/v1/jobs?namespace=%63s", ns) == 1)
        return delete_jobs(k, ns, out);
    if (sscanf(path, "/api/v1/nodes/%255[^/]/%31s", node, verb) == 2)
        return cordon(k, node, strcmp(verb, "drain") == 0);
    return cannot(k, verb);
}
