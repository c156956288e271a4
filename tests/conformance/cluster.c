/* The Kubernetes backend in the conformance suite, on a real cluster (tests/k8s/conformance.sh): the suite's nodes a and b
 * are the two that ADLT_NODES names, and a job's directory is one of this machine, which is theirs as well. Each state
 * directory has a namespace of its own. */
#include "conformance/suite.h"

#include "backend/k8s/k8s.h"
#include "base/mem.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 256 };

static adli_backend *real, mapped;
static adli_backend_ops ops;
static char state_dir[64], space[64];

static adl_status open_kube(adli_kube **out)
{
    adli_kube_config config;
    *out = NULL;
    adl_status status = adli_kube_config_find(NULL, NULL, &config);
    if (status == ADL_OK)
        status = adli_kube_open(&config, out);
    adli_kube_config_fini(&config);
    return status;
}

/* Where pods may be made: once its default service account is there. */
static adl_status make_namespace(void)
{
    char body[160], path[PATH_SIZE];
    adli_kube *kube;
    json_t *account = NULL;
    adl_status status = open_kube(&kube);
    snprintf(body, sizeof body, "{\"metadata\":{\"name\":\"%s\"}}", space);
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/serviceaccounts/default", space);
    if (status == ADL_OK)
        status = adli_kube_one(kube, "POST", "/api/v1/namespaces", body, NULL, 409, NULL);
    for (int i = 0; status == ADL_OK && !account && i < 600; i++, usleep(100000))
        status = adli_kube_one(kube, "GET", path, NULL, NULL, 404, &account);
    json_decref(account);
    adli_kube_close(kube);
    return status;
}

static void share_of(const char *uid, const char *more, char out[PATH_SIZE])
{
    snprintf(out, PATH_SIZE, "%s/share/%s%s", state_dir, uid, more);
}

static const char *node_of(const char *name)
{
    static char names[2][64];
    const char *both = getenv("ADLT_NODES");
    if (!both || sscanf(both, "%63s %63s", names[0], names[1]) != 2)
        return name;
    return strcmp(name, "a") == 0 ? names[0] : strcmp(name, "b") == 0 ? names[1] : name;
}

/* The suite's pods have no image and no volume. Their shells are not the first processes of their machines, which
 * would take no signal. */
static char *dress(const char *pod, const char *uid)
{
    const char *image = getenv("ADLT_BUSYBOX");
    char share[PATH_SIZE];
    json_t *template = json_loads(pod, 0, NULL), *spec = json_object_get(template, "spec"),
           *main = json_array_get(json_object_get(spec, "containers"), 0);
    share_of(uid, "", share);
    json_object_update_new(main, json_pack("{s:s,s:s,s:[{s:s,s:s}]}", "image",
                                           image ? image : "k8s.local/busybox:1", "imagePullPolicy",
                                           "IfNotPresent", "volumeMounts", "name", "share",
                                           "mountPath", "/adaptdl/share"));
    json_object_update_new(spec,
                           json_pack("{s:b,s:b,s:[{s:s,s:{s:s,s:s}}]}", "shareProcessNamespace", 1,
                                     "automountServiceAccountToken", 0, "volumes", "name", "share",
                                     "hostPath", "path", share, "type", "DirectoryOrCreate"));
    char *text = json_dumps(template, JSON_COMPACT);
    json_decref(template);
    return text;
}

static adl_status start(void *self, const adli_start *given)
{
    adli_start all = *given;
    adli_member_start members[ADLT_RANKS];
    char *pod = dress(given->pod, given->uid);
    for (int i = 0; i < given->count && i < ADLT_RANKS; i++) {
        members[i] = given->members[i];
        members[i].node = node_of(members[i].node);
    }
    all.members = members;
    all.pod = pod ? pod : given->pod;
    adl_status status = real->ops->start(self, &all);
    free(pod);
    return status;
}

static adl_status open_file(void *self, const char *uid, const char *path, adli_opened *out)
{
    static const char under[] = "/adaptdl/share/";
    char where[PATH_SIZE];
    struct stat info;
    *out = (adli_opened){.fd = -1};
    if (strncmp(path, under, strlen(under)) != 0)
        return real->ops->open_file(self, uid, path, out);
    share_of(uid, path + strlen(under) - 1, where);
    out->fd = open(where, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0 || fstat(out->fd, &info) != 0)
        return adli_fail(ADL_ENOENT, "%s", where);
    out->size = info.st_size;
    return ADL_OK;
}

static void remove_job(void *self, const char *uid)
{
    char share[PATH_SIZE], command[PATH_SIZE + 16];
    real->ops->remove(self, uid);
    share_of(uid, "", share);
    snprintf(command, sizeof command, "rm -rf %s", share);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", share);
}

static adl_status make(const char *state, const adlt_node *nodes, int count, adli_backend **out)
{
    adli_k8s_options options = ADLI_K8S_OPTIONS_INIT;
    (void)nodes, (void)count;
    adl_status status = ADL_OK;
    if (strcmp(state_dir, state) != 0) {
        snprintf(state_dir, sizeof state_dir, "%s", state);
        snprintf(space, sizeof space, "conform-%s", state + strlen(state) - 6);
        for (char *c = space; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        status = make_namespace();
    }
    options.ns = space;
    if (status == ADL_OK)
        status = adli_k8s_new(&options, &real);
    if (status != ADL_OK)
        return status;
    ops = *real->ops;
    ops.start = start;
    ops.open_file = open_file;
    ops.remove = remove_job;
    mapped = (adli_backend){.ops = &ops, .self = real->self};
    *out = &mapped;
    return ADL_OK;
}

static adl_status set_nodes(adli_backend *backend, const adlt_node *nodes, int count)
{
    (void)backend, (void)nodes, (void)count;
    return adli_fail(ADL_ESTATE, "its nodes come by themselves");
}

static int count_in(adli_kube *kube, const char *kind)
{
    char path[PATH_SIZE];
    json_t *list = NULL;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/%s", space, kind);
    if (adli_kube_one(kube, "GET", path, NULL, NULL, 0, &list) != ADL_OK)
        return 1;
    int count = (int)json_array_size(json_object_get(list, "items"));
    json_decref(list);
    return count;
}

/* The namespace goes with its last object. */
static int leftovers(const char *state)
{
    char path[PATH_SIZE];
    adli_kube *kube;
    (void)state;
    if (open_kube(&kube) != ADL_OK)
        return 1;
    int left = count_in(kube, "pods") + count_in(kube, "secrets");
    snprintf(path, sizeof path, "/api/v1/namespaces/%s", space);
    if (left == 0 && adli_kube_one(kube, "DELETE", path, NULL, NULL, 404, NULL) != ADL_OK)
        left = 1;
    adli_kube_close(kube);
    return left;
}

static void touch(const char *state, const char *uid, const char *name)
{
    char path[PATH_SIZE];
    (void)state;
    share_of(uid, "/", path);
    strncat(path, name, sizeof path - strlen(path) - 1);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
}

const adlt_backend_kind adlt_backend = {.name = "kubernetes",
                                        .make = make,
                                        .set_nodes = set_nodes,
                                        .leftovers = leftovers,
                                        .touch = touch,
                                        .patience_s = 300,
                                        .kill_us = 6000000};
