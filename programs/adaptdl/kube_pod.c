#include "kube_pod.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 300, LIFE_S = 3600, EXEC_S = 30 };
static const double START_S = 300;

int kube_job(cluster *k, const job_name *job, json_t **out)
{
    char path[PATH_TEXT], hint[HINT_TEXT];
    snprintf(path, sizeof path, KUBE_JOBS "/%s", job->ns, job->name);
    int status = kube_ask(k, "GET", path, NULL, NULL, 404, out);
    if (status == EXIT_DONE && !*out)
        status = problem(k->cli->command->name, EXIT_ABSENT, "there is no job %s/%s%s", job->ns,
                         job->name, job_hint(k, job, hint));
    return status;
}

/* ---- a pod for a while ---- */

static bool is_below(const char *path, const char *directory)
{
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The mount that the path is on: the deepest. */
static const json_t *find_mount(const json_t *container, const char *path)
{
    const json_t *mount, *found = NULL;
    size_t i, longest = 0;
    json_array_foreach(json_object_get(container, "volumeMounts"), i, mount)
    {
        const char *at = text_of(mount, "mountPath", "");
        if (*at && is_below(path, at) && strlen(at) >= longest) {
            found = mount;
            longest = strlen(at);
        }
    }
    return found;
}

static const json_t *find_volume(const json_t *spec, const char *name)
{
    const json_t *volume;
    size_t i;
    json_array_foreach(json_object_get(spec, "volumes"), i, volume)
    {
        if (strcmp(text_of(volume, "name", ""), name) == 0)
            return volume;
    }
    return NULL;
}

static void keep(json_t *to, const json_t *from, const char *const *names)
{
    for (; *names; names++)
        if (json_object_get(from, *names))
            json_object_set(to, *names, json_object_get(from, *names));
}

/* What lets it start, and read what the job wrote: where its image is from, who it is, which nodes it bears. */
static json_t *make_pod(const json_t *job, const char *name, const json_t *spec,
                        const json_t *container, const json_t *volume, const json_t *mount)
{
    static const char *const of_pod[] = {"imagePullSecrets",   "securityContext",  "tolerations",
                                         "serviceAccountName", "runtimeClassName", NULL};
    static const char *const of_container[] = {"securityContext", "imagePullPolicy", NULL};
    const json_t *metadata = json_object_get(job, "metadata");
    const char *other = getenv("ADAPTDL_CP_IMAGE");
    json_t *main = json_pack("{s:s,s:s,s:[s,s],s:{s:{s:s,s:s}},s:[O]}", "name", "files", "image",
                             other && *other ? other : text_of(container, "image", ""), "command",
                             "sleep", "3600", "resources", "requests", "cpu", "10m", "memory",
                             "16Mi", "volumeMounts", mount);
    keep(main, container, of_container);
    json_t *inner = json_pack("{s:[o],s:[O],s:s,s:i,s:i,s:b}", "containers", main, "volumes",
                              volume, "restartPolicy", "Never", "activeDeadlineSeconds", LIFE_S,
                              "terminationGracePeriodSeconds", 0, "enableServiceLinks", 0);
    keep(inner, spec, of_pod);
    return json_pack("{s:s,s:s,s:{s:s,s:{s:s},s:[{s:s,s:s,s:s,s:s}]},s:o}", "apiVersion", "v1",
                     "kind", "Pod", "metadata", "name", name, "labels", "adaptdl-files", "true",
                     "ownerReferences", "apiVersion", "adaptdl.petuum.com/v1", "kind", "AdaptDLJob",
                     "name", text_of(metadata, "name", ""), "uid", text_of(metadata, "uid", ""),
                     "spec", inner);
}

/* Why it does not run yet, in the cluster's words; "" when it is on its way. */
static const char *trouble(const json_t *status)
{
    const json_t *waiting = json_object_get(
        json_object_get(json_array_get(json_object_get(status, "containerStatuses"), 0), "state"),
        "waiting");
    const char *reason = text_of(waiting, "reason", "");
    bool bad = strstr(reason, "Err") || strstr(reason, "BackOff") || strstr(reason, "Invalid");
    return bad ? text_of(waiting, "message", reason) : "";
}

static int await_pod(cluster *k, const kube_helper *helper)
{
    char path[PATH_TEXT];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods/%s", helper->ns, helper->name);
    for (double until_s = adli_monotonic_s() + START_S;;) {
        json_t *pod = NULL;
        int status = kube_ask(k, "GET", path, NULL, NULL, 0, &pod);
        const json_t *is = json_object_get(pod, "status");
        const char *phase = text_of(is, "phase", ""), *why = trouble(is);
        bool runs = strcmp(phase, "Running") == 0, late = adli_monotonic_s() > until_s;
        if (status == EXIT_DONE && !runs && (*why || late || phase_over(phase)))
            status = problem(k->cli->command->name, EXIT_REFUSED,
                             "the pod %s that is to read the files does not run: %s", helper->name,
                             *why   ? why
                             : late ? "the time is up"
                                    : phase);
        json_decref(pod);
        if (status != EXIT_DONE || runs)
            return status;
        if (interrupted())
            return EXIT_INTERRUPTED;
        pause_ms(LOOK_MS);
    }
}

int kube_helper_start(cluster *k, const json_t *job, const char *path, kube_helper *out)
{
    const json_t *template = json_object_get(json_object_get(job, "spec"), "template");
    const json_t *spec = json_object_get(template, "spec"),
                 *metadata = json_object_get(job, "metadata");
    const json_t *container = json_array_get(json_object_get(spec, "containers"), 0);
    const json_t *mount = find_mount(container, path);
    const json_t *volume = mount ? find_volume(spec, text_of(mount, "name", "")) : NULL;
    const char *name = text_of(metadata, "name", "");
    char collection[PATH_TEXT];
    snprintf(out->ns, sizeof out->ns, "%s", text_of(metadata, "namespace", ""));
    snprintf(out->name, sizeof out->name, "%.40s-files-%08x", name,
             (unsigned)(adli_monotonic_s() * 1e6));
    snprintf(out->container, sizeof out->container, "files");
    if (!volume || !json_object_get(volume, "persistentVolumeClaim")) {
        out->name[0] = '\0';
        return problem(k->cli->command->name, EXIT_ABSENT,
                       "%s of job %s/%s is on no claim, and went with its pods", path, out->ns,
                       name);
    }
    json_t *pod = make_pod(job, out->name, spec, container, volume, mount);
    snprintf(collection, sizeof collection, "/api/v1/namespaces/%s/pods", out->ns);
    int status = pod ? kube_ask(k, "POST", collection, pod, NULL, 0, NULL)
                     : problem(k->cli->command->name, EXIT_REFUSED, "out of memory");
    json_decref(pod);
    return status == EXIT_DONE ? await_pod(k, out) : status;
}

void kube_helper_end(cluster *k, const kube_helper *helper)
{
    char path[PATH_TEXT];
    if (!*helper->name)
        return;
    json_t *options = json_pack("{s:i}", "gracePeriodSeconds", 0);
    char *body = options ? json_dumps(options, 0) : NULL;
    adli_buf answer;
    int code;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods/%s", helper->ns, helper->name);
    adli_stream_request request = {.method = "DELETE",
                                   .path = path,
                                   .body = body,
                                   .body_length = body ? strlen(body) : 0,
                                   .content_type = "application/json",
                                   .timeout_ms = 10000};
    adli_buf_init(&answer, 1 << 20);
    /* also after CTRL-C; should it fail, the pod ends by itself and goes with the job */
    (void)!adli_stream_exchange(k->kube->streams, &request, NULL, &answer, &code);
    adli_buf_fini(&answer);
    free(body);
    json_decref(options);
}

int kube_exec_begin(cluster *k, const char *ns, const char *pod, const char *container,
                    const char *const *words, bool in, bool tty, adli_kube_exec **out)
{
    adli_buf path;
    adli_buf_init(&path, 1 << 20);
    adli_kube_exec_path(&path, ns, pod, container, words, in, tty);
    adl_status status = adli_buf_check(&path);
    if (status == ADL_OK)
        status = adli_kube_exec_open(&k->kube->config, path.data, EXEC_S, out);
    adli_buf_fini(&path);
    if (status == ADL_OK)
        return EXIT_DONE;
    return report_error(k->cli->command->name, status == ADL_ENOENT ? EXIT_ABSENT
                                               : status == ADL_ENET ? EXIT_NO_CLUSTER
                                                                    : EXIT_REFUSED);
}
