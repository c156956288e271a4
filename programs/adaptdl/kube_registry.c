/* The registry that the chart can install: how this machine pushes to it, and how nodes pull from it. Both know it as
 * localhost:PORT, nodes by the port that every node leads to its service, this machine by a port that kubectl leads there
 * through the API server. Who may push is who may read the Secret with its password and forward a port to its pod. */
#include "kube_submit.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READY_TRIES = 600, READY_PAUSE_MS = 50, SAID = 1024 };

static const char POD[] = "pod/adaptdl-registry-0";

/* "localhost:32000", the only registry in the text of a docker configuration. */
static bool take_host(const char *text, kube_registry *out)
{
    json_error_t error;
    json_t *root = json_loads(text, 0, &error), *auths = json_object_get(root, "auths");
    const char *host = json_object_iter_key(json_object_iter(auths));
    int port = 0, end = 0;
    bool good = json_object_size(auths) == 1 && sscanf(host, "localhost:%d%n", &port, &end) == 1 &&
                host[end] == '\0' && port > 0 && port < 65536;
    if (good) {
        snprintf(out->host, sizeof out->host, "localhost:%d", port);
        out->port = port;
        out->auths = json_incref(auths);
    }
    json_decref(root);
    return good;
}

int kube_registry_find(cluster *k, kube_registry *out)
{
    char path[PATH_TEXT];
    json_t *secret = NULL;
    *out = (kube_registry){0};
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets/" KUBE_REGISTRY, k->kube->ns);
    int status = kube_ask(k, "GET", path, NULL, NULL, 404, &secret);
    const char *config = text_of(json_object_get(secret, "data"), ".dockerconfigjson", NULL);
    char *text = kube_decode(config);
    if (status == EXIT_DONE && secret && (!text || !take_host(text, out)))
        status =
            problem("submit", EXIT_REFUSED,
                    "secret %s/" KUBE_REGISTRY " does not say where a registry is", k->kube->ns);
    if (status == EXIT_DONE && secret && !(out->config = adli_strdup(config)))
        status = problem("submit", EXIT_REFUSED, "out of memory");
    free(text);
    json_decref(secret);
    return status;
}

/* ---- a port here that leads there ---- */

static void lead(const cluster *k, int port, int said)
{
    char ports[40], context[PATH_TEXT];
    snprintf(ports, sizeof ports, "%d:5000", port);
    snprintf(context, sizeof context, "--context=%.400s", k->kube->config.context);
    bool named = *k->kube->config.context != '\0'; /* not in a pod */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(said, 1);
    dup2(said, 2);
    execlp("kubectl", "kubectl", "-n", k->kube->ns, "port-forward", POD, ports,
           named ? context : (char *)NULL, (char *)NULL);
    dprintf(2, "kubectl: %s", strerror(errno));
    _exit(127);
}

/* Until it says that it listens. false: it ended before, or says nothing for long. */
static bool leads(pid_t *id, int said, char text[SAID])
{
    for (int i = 0; i < READY_TRIES; i++) {
        bool ended = waitpid(*id, NULL, WNOHANG) == *id;
        ssize_t got = pread(said, text, SAID - 1, 0);
        text[got > 0 ? got : 0] = '\0';
        if (ended) {
            *id = 0;
            return false;
        }
        if (strstr(text, "Forwarding from"))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_MS * 1000000L}, NULL);
    }
    return false;
}

/* ---- its password, for the programs that push ---- */

static json_t *users_config(const char *directory)
{
    char path[PATH_TEXT];
    snprintf(path, sizeof path, "%.400s/config.json", directory);
    json_t *config = json_load_file(path, 0, NULL);
    if (!json_is_object(config)) {
        json_decref(config);
        config = json_object();
    }
    return config;
}

/* What the user's docker is told stays (where its daemon is), but for who it is to registries: that is ours. podman and
 * buildah read the same file. */
static int write_auth(kube_registry *r)
{
    char user[PATH_TEXT], from[PATH_TEXT], to[PATH_TEXT];
    const char *given = getenv("DOCKER_CONFIG"), *home = getenv("HOME");
    snprintf(r->directory, sizeof r->directory, "/tmp/adaptdl-push-XXXXXX");
    if (!mkdtemp(r->directory)) {
        r->directory[0] = '\0';
        return problem("submit", EXIT_USAGE, "a temporary directory: %s", strerror(errno));
    }
    if (given && *given)
        snprintf(user, sizeof user, "%.400s", given);
    else
        snprintf(user, sizeof user, "%.400s/.docker", home ? home : "");
    json_t *config = users_config(user);
    json_object_del(config, "credsStore");
    json_object_del(config, "credHelpers");
    json_object_set(config, "auths", r->auths);
    snprintf(from, sizeof from, "%.400s/contexts", user);
    snprintf(to, sizeof to, "%s/contexts", r->directory);
    bool good = symlink(from, to) == 0;
    snprintf(to, sizeof to, "%s/config.json", r->directory);
    good = good && json_dump_file(config, to, 0) == 0;
    json_decref(config);
    if (!good)
        return problem("submit", EXIT_USAGE, "%s: %s", to, strerror(errno));
    return setenv("DOCKER_CONFIG", r->directory, 1) == 0 && setenv("REGISTRY_AUTH_FILE", to, 1) == 0
               ? EXIT_DONE
               : problem("submit", EXIT_REFUSED, "out of memory");
}

int kube_registry_open(cluster *k, kube_registry *r)
{
    char text[SAID] = "";
    int said = memfd_create("kubectl", MFD_CLOEXEC);
    if (said < 0 || (r->forward = fork()) < 0) {
        r->forward = 0;
        if (said >= 0)
            close(said);
        return problem("submit", EXIT_PROBLEM, "kubectl: %s", strerror(errno));
    }
    if (r->forward == 0)
        lead(k, r->port, said);
    bool good = leads(&r->forward, said, text);
    close(said);
    text[strcspn(text, "\n")] = '\0';
    if (!good)
        return problem("submit", EXIT_PROBLEM,
                       "the cluster's registry is not reached: kubectl port-forward %s %d: %s", POD,
                       r->port, *text ? text : "says nothing");
    return write_auth(r);
}

void kube_registry_close(kube_registry *r)
{
    char path[PATH_TEXT];
    if (r->forward > 0) {
        kill(r->forward, SIGTERM);
        while (waitpid(r->forward, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (*r->directory) {
        snprintf(path, sizeof path, "%s/config.json", r->directory);
        unlink(path);
        snprintf(path, sizeof path, "%s/contexts", r->directory);
        unlink(path);
        rmdir(r->directory);
    }
    json_decref(r->auths);
    free(r->config);
    *r = (kube_registry){0};
}

/* In the job's namespace, for its pods; the scheduler's has it already. */
int kube_registry_share(cluster *k, const char *ns, const char *config)
{
    char path[PATH_TEXT];
    if (strcmp(ns, k->kube->ns) == 0)
        return EXIT_DONE;
    json_t *secret =
        json_pack("{s:s,s:s,s:{s:s},s:s,s:{s:s}}", "apiVersion", "v1", "kind", "Secret", "metadata",
                  "name", KUBE_REGISTRY, "type", "kubernetes.io/dockerconfigjson", "data",
                  ".dockerconfigjson", config);
    snprintf(path, sizeof path,
             "/api/v1/namespaces/%s/secrets/" KUBE_REGISTRY "?fieldManager=adaptdl&force=true", ns);
    int status = kube_ask(k, "PATCH", path, secret, ADLI_KUBE_APPLY, 0, NULL);
    json_decref(secret);
    return status;
}
