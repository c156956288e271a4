/* `adaptdl tensorboard` on Kubernetes: each is a Deployment, a Service and a claim of the same name. Jobs mount the claim
 * (submit --tensorboard); the Deployment reads it. */
#include "kube.h"
#include "kube_submit.h"

#include "jobspec/jobspec.h"
#include "term.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_TEXT = 100, PORT = 6006, PARTS = 3 };

/* Group and kind, in the order of their making. */
static const char *const COLLECTIONS[PARTS][2] = {
    {"api/v1", "persistentvolumeclaims"}, {"apis/apps/v1", "deployments"}, {"api/v1", "services"}};

static void collection_path(const cluster *k, int part, char out[PATH_TEXT])
{
    snprintf(out, PATH_TEXT, "/%s/namespaces/%s/%s", COLLECTIONS[part][0], k->ns,
             COLLECTIONS[part][1]);
}

/* "adaptdl-tensorboard-NAME" */
static int full_name(const char *name, char out[NAME_TEXT])
{
    snprintf(out, NAME_TEXT, "adaptdl-tensorboard-%.63s", name);
    if (adli_name_valid(name) && strlen(out) <= 63)
        return EXIT_DONE;
    return usage_error("tensorboard",
                       "TensorBoard \"%.80s\": a name consists of a-z, 0-9 and '-', at most 43 "
                       "characters on Kubernetes",
                       name);
}

static json_t *make_metadata(const char *full, const char *name)
{
    return json_pack("{s:s,s:{s:s}}", "name", full, "labels", "adaptdl/tensorboard", name);
}

static json_t *make_claim(const char *full, const char *name, const char *class)
{
    json_t *claim =
        json_pack("{s:s,s:s,s:o,s:{s:[s],s:{s:{s:s}}}}", "apiVersion", "v1", "kind",
                  "PersistentVolumeClaim", "metadata", make_metadata(full, name), "spec",
                  "accessModes", "ReadWriteMany", "resources", "requests", "storage", "1Gi");
    if (class)
        json_object_set_new(json_object_get(claim, "spec"), "storageClassName", json_string(class));
    return claim;
}

static json_t *make_deployment(const char *full, const char *name, const char *image)
{
    json_t *container = json_pack(
        "{s:s,s:s,s:[s,s,s,s,s,s],s:[{s:i}],s:{s:{s:i},s:i},s:[{s:s,s:s,s:b}]}", "name",
        "tensorboard", "image", image, "command", "tensorboard", "--logdir", "/adaptdl/tensorboard",
        "--bind_all", "--port", "6006", "ports", "containerPort", PORT, "readinessProbe",
        "tcpSocket", "port", PORT, "periodSeconds", 2, "volumeMounts", "name", "logs", "mountPath",
        "/adaptdl/tensorboard", "readOnly", 1);
    json_t *pod = json_pack("{s:{s:{s:s}},s:{s:[o],s:b,s:[{s:s,s:{s:s}}]}}", "metadata", "labels",
                            "adaptdl/tensorboard", name, "spec", "containers", container,
                            "automountServiceAccountToken", 0, "volumes", "name", "logs",
                            "persistentVolumeClaim", "claimName", full);
    return json_pack("{s:s,s:s,s:o,s:{s:i,s:{s:{s:s}},s:o}}", "apiVersion", "apps/v1", "kind",
                     "Deployment", "metadata", make_metadata(full, name), "spec", "replicas", 1,
                     "selector", "matchLabels", "adaptdl/tensorboard", name, "template", pod);
}

static json_t *make_service(const char *full, const char *name)
{
    return json_pack("{s:s,s:s,s:o,s:{s:{s:s},s:[{s:s,s:i}]}}", "apiVersion", "v1", "kind",
                     "Service", "metadata", make_metadata(full, name), "spec", "selector",
                     "adaptdl/tensorboard", name, "ports", "name", "http", "port", PORT);
}

static int delete_parts(cluster *k, const char *full, int *found)
{
    int status = EXIT_DONE;
    char path[PATH_TEXT], collection[PATH_TEXT];
    *found = 0;
    for (int i = PARTS - 1; i >= 0 && status == EXIT_DONE; i--) {
        json_t *options = json_pack("{s:s}", "propagationPolicy", "Background");
        collection_path(k, i, collection);
        snprintf(path, sizeof path, "%.300s/%s", collection, full);
        status = kube_ask(k, "DELETE", path, options, NULL, 404, NULL);
        *found += status == EXIT_DONE && k->code != 404;
        json_decref(options);
    }
    return status;
}

static int create(cluster *k, const char *name, const char *full)
{
    const char *image = getenv("ADAPTDL_TENSORBOARD_IMAGE"),
               *class = getenv("ADAPTDL_TENSORBOARD_STORAGE_CLASS");
    char path[PATH_TEXT];
    int status = EXIT_DONE, found;
    json_t *parts[PARTS] = {
        make_claim(full, name, class && *class ? class : NULL),
        make_deployment(full, name, image && *image ? image : "tensorflow/tensorflow:2.18.0"),
        make_service(full, name)};
    for (int i = 0; i < PARTS; i++) {
        collection_path(k, i, path);
        if (status == EXIT_DONE && i == 0) {
            status = kube_ask(k, "POST", path, parts[i], NULL, 409, NULL);
            if (status == EXIT_DONE && k->code == 409)
                status = problem("tensorboard", EXIT_REFUSED,
                                 "%s: there is a TensorBoard of that name already", name);
        } else if (status == EXIT_DONE) {
            status = kube_ask(k, "POST", path, parts[i], NULL, 0, NULL);
            if (status != EXIT_DONE)
                delete_parts(k, full, &found);
        }
        json_decref(parts[i]);
    }
    if (status == EXIT_DONE)
        printf("%s created; use it with: adaptdl submit --tensorboard %s\n", name, name);
    return status;
}

static int list(cluster *k)
{
    char path[PATH_TEXT];
    json_t *answer = NULL, *item;
    size_t i;
    snprintf(path, sizeof path,
             "/apis/apps/v1/namespaces/%s/deployments?labelSelector=adaptdl/tensorboard", k->ns);
    int status = kube_ask(k, "GET", path, NULL, NULL, 0, &answer);
    json_array_foreach(json_object_get(answer, "items"), i, item)
    {
        const json_t *labels = json_object_get(json_object_get(item, "metadata"), "labels");
        term_line(stdout, text_of(labels, "adaptdl/tensorboard", "?"));
        putchar('\n');
    }
    json_decref(answer);
    return status;
}

static int delete_named(cluster *k, const char *name, const char *full)
{
    int found, status = delete_parts(k, full, &found);
    if (status == EXIT_DONE && found == 0)
        return problem("tensorboard", EXIT_ABSENT, "there is no TensorBoard %s", name);
    if (status == EXIT_DONE)
        printf("%s deleted\n", name);
    return status;
}

/* kubectl has what a browser needs: a port here that leads there. */
static int proxy(cluster *k, const char *name, const char *full, int port)
{
    char path[PATH_TEXT], service[NAME_TEXT + 10], ports[40], context[PATH_TEXT];
    json_t *there = NULL;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/services/%s", k->ns, full);
    int status = kube_ask(k, "GET", path, NULL, NULL, 404, &there);
    if (status == EXIT_DONE && !there)
        status =
            problem("tensorboard", EXIT_ABSENT,
                    "there is no TensorBoard %s; create it with: adaptdl tensorboard create %s",
                    name, name);
    json_decref(there);
    if (status != EXIT_DONE)
        return status;
    snprintf(service, sizeof service, "service/%s", full);
    snprintf(ports, sizeof ports, "%d:%d", port, PORT);
    snprintf(context, sizeof context, "--context=%.400s", k->kube->config.context);
    printf("Proxying to TensorBoard instance %s at http://localhost:%d\n", name, port);
    fflush(stdout);
    bool named = *k->kube->config.context != '\0'; /* not in a pod */
    execlp("kubectl", "kubectl", "-n", k->ns, "port-forward", service, ports,
           named ? context : (char *)NULL, (char *)NULL);
    return problem("tensorboard", EXIT_PROBLEM, "kubectl, which leads a port there: %s",
                   strerror(errno));
}

int kube_tensorboard(cluster *k, const char *verb, const char *name, int port)
{
    char full[NAME_TEXT];
    if (!name)
        return list(k);
    int status = full_name(name, full);
    if (status != EXIT_DONE)
        return status;
    if (strcmp(verb, "create") == 0)
        return create(k, name, full);
    return strcmp(verb, "delete") == 0 ? delete_named(k, name, full) : proxy(k, name, full, port);
}
