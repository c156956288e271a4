/* Logging in by a program: what EKS, GKE and others have in the place of a token. The kubeconfig names it with its
 * arguments; it is run as it stands there, without a shell, and prints an ExecCredential. */
#include "kube/config.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MAX = 1 << 20, ENV_MAX = 4096 };

extern char **environ;

static bool is_set_again(char *const *more, const char *variable)
{
    size_t length = strcspn(variable, "=") + 1;
    for (; more && *more; more++)
        if (strncmp(*more, variable, length) == 0)
            return true;
    return false;
}

/* Ours, with what the kubeconfig adds and what the program is to know. The texts are others' or info. */
static char **make_environment(const adli_kube_config *config, char *info)
{
    size_t count = 0, used = 0;
    while (count < ENV_MAX && environ[count])
        count++;
    for (char **more = config->exec_env; more && *more; more++)
        count++;
    char **all = adli_calloc(count + 2, sizeof(char *));
    for (size_t i = 0; all && i < ENV_MAX && environ[i]; i++)
        if (!is_set_again(config->exec_env, environ[i]) &&
            strncmp(environ[i], "KUBERNETES_EXEC_INFO=", 21) != 0)
            all[used++] = environ[i];
    for (char **more = config->exec_env; all && more && *more; more++)
        all[used++] = *more;
    if (all)
        all[used] = info;
    return all;
}

/* 0, or what is wrong. */
static int start(const adli_kube_config *config, int out, pid_t *id)
{
    static char info[] = "KUBERNETES_EXEC_INFO={\"apiVersion\":\"client.authentication.k8s.io/v1\","
                         "\"kind\":\"ExecCredential\",\"spec\":{\"interactive\":false}}";
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    char **environment = make_environment(config, info);
    if (!environment)
        return ENOMEM;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setpgroup(&how, 0); /* so that what it started can be ended with it */
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int why = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (why == 0)
        why = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (why == 0)
        why = posix_spawnp(id, config->exec[0], &files, &how, config->exec, environment);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    free(environment);
    return why;
}

/* What it prints until it closes its output. */
static adl_status read_all(const char *program, int fd, double until_s, adli_buf *out)
{
    for (;;) {
        struct pollfd wait = {fd, POLLIN, 0};
        char piece[4096];
        double left_s = until_s - adli_monotonic_s();
        int ready = left_s > 0 ? poll(&wait, 1, (int)fmin(left_s * 1e3 + 1, 1e6)) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return adli_fail(ADL_ETIMEOUT, "%s, which logs in to the cluster, takes too long",
                             program);
        ssize_t got = read(fd, piece, sizeof piece);
        if (got == 0)
            return adli_buf_check(out);
        if (got < 0 && errno != EINTR)
            return adli_fail(ADL_EIO, "%s: %s", program, strerror(errno));
        adli_buf_append(out, piece, got > 0 ? (size_t)got : 0);
        explicit_bzero(piece, sizeof piece);
    }
}

static adl_status await_end(const char *program, pid_t id, double until_s)
{
    int status = 0;
    pid_t got;
    while ((got = waitpid(id, &status, WNOHANG)) == 0 && adli_monotonic_s() < until_s)
        poll(NULL, 0, 5);
    if (got == 0) {
        kill(-id, SIGKILL);
        waitpid(id, &status, 0);
        return adli_fail(ADL_ETIMEOUT, "%s, which logs in to the cluster, takes too long", program);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return ADL_OK;
    return adli_fail(ADL_EIO, "%s, which logs in to the cluster, failed (%s %d)", program,
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static adl_status run(const adli_kube_config *config, double limit_s, adli_buf *out)
{
    const char *program = config->exec[0];
    int fds[2];
    pid_t id = 0;
    double until_s = adli_monotonic_s() + limit_s;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return adli_fail(ADL_EIO, "%s: %s", program, strerror(errno));
    int why = start(config, fds[1], &id);
    close(fds[1]);
    if (why) {
        close(fds[0]);
        return adli_fail(ADL_EINVAL, "%s, which logs in to the cluster: %s%s%.500s", program,
                         strerror(why), config->hint && *config->hint ? "; " : "",
                         config->hint ? config->hint : "");
    }
    adl_status status = read_all(program, fds[0], until_s, out);
    close(fds[0]);
    if (status != ADL_OK) {
        kill(-id, SIGKILL);
        waitpid(id, &why, 0);
        return status;
    }
    return await_end(program, id, until_s);
}

static adl_status keep(char **slot, const json_t *status, const char *field)
{
    const char *text = json_string_value(json_object_get(status, field));
    char *copy = adli_strdup(text ? text : "");
    if (!copy)
        return adli_fail_memory("credentials");
    free(*slot);
    *slot = copy;
    return ADL_OK;
}

static adl_status take(adli_kube_config *config, const adli_buf *text)
{
    static const char group[] = "client.authentication.k8s.io/";
    json_t *root = NULL;
    const char *program = config->exec[0];
    if (adli_json_parse(text->data ? text->data : "", text->length, &root) != ADL_OK)
        return adli_wrap(ADL_EINVAL, "%s, which logs in to the cluster, prints no ExecCredential",
                         program);
    const char *kind = json_string_value(json_object_get(root, "kind")),
               *version = json_string_value(json_object_get(root, "apiVersion"));
    const json_t *found = json_object_get(root, "status");
    adl_status status = ADL_OK;
    if (!kind || strcmp(kind, "ExecCredential") != 0 || !version ||
        strncmp(version, group, sizeof group - 1) != 0)
        status = adli_fail(ADL_EINVAL,
                           "%s, which logs in to the cluster, prints no ExecCredential of %sv1",
                           program, group);
    if (status == ADL_OK)
        status = keep(&config->token, found, "token");
    if (status == ADL_OK)
        status = keep(&config->certificate, found, "clientCertificateData");
    if (status == ADL_OK)
        status = keep(&config->key, found, "clientKeyData");
    if (status == ADL_OK &&
        (strpbrk(config->token, "\r\n") || !*config->certificate != !*config->key ||
         (!*config->token && !*config->certificate)))
        status = adli_fail(ADL_EINVAL,
                           "%s, which logs in to the cluster, gives neither a token nor a "
                           "certificate with its key",
                           program);
    json_decref(root);
    return status;
}

adl_status adli_kube_config_login(adli_kube_config *config, double limit_s)
{
    adli_buf text;
    if (!config->exec)
        return ADL_OK;
    adli_buf_init(&text, ANSWER_MAX);
    adl_status status = run(config, limit_s, &text);
    if (status == ADL_OK)
        status = take(config, &text);
    if (text.data)
        explicit_bzero(text.data, text.length);
    adli_buf_fini(&text);
    return status;
}
