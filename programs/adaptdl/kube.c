/* Finding the cluster of Kubernetes, and reaching the scheduler on it. */
#include "kube.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "jobspec/jobspec.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TOKEN_MAX = 64 << 10, LOGIN_S = 60, ASK_MS = 60000, ANSWER_MAX = 64 << 20 };

static const char ACCOUNT[] = "/var/run/secrets/kubernetes.io/serviceaccount/token";

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- which cluster ---- */

static bool somebody_listens(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return found;
}

/* What says that there is a cluster of Kubernetes; NULL: nothing. */
static const char *sign_of_kubernetes(char out[SITE_WHY])
{
    if (variable("KUBECONFIG")) {
        snprintf(out, SITE_WHY, "KUBECONFIG is set");
        return out;
    }
    if (variable("KUBERNETES_SERVICE_HOST") && access(ACCOUNT, R_OK) == 0) {
        snprintf(out, SITE_WHY, "this is a pod with a service account");
        return out;
    }
    return NULL;
}

static int choose(site *out, site_kind kind, const char *why)
{
    out->kind = kind;
    snprintf(out->why, sizeof out->why, "%.399s", why);
    return EXIT_DONE;
}

/* Nobody said which: a local cluster that is up, else Kubernetes where there are signs of it. */
static int choose_by_itself(bool local, site *out)
{
    adli_server server;
    char sign[SITE_WHY], why[2 * SITE_WHY];
    if (adli_server_init(&server, NULL, NULL, NULL) != ADL_OK)
        return choose(out, SITE_SOCKET, "nothing else is named"); /* its opening tells */
    bool up = somebody_listens(server.socket_path);
    const char *found = local || up ? NULL : sign_of_kubernetes(sign);
    if (up)
        snprintf(why, sizeof why, "a cluster on this machine is up");
    else if (found)
        snprintf(why, sizeof why, "no cluster on this machine is up (%.250s), and %.100s",
                 server.socket_path, found);
    else
        snprintf(why, sizeof why,
                 "nothing else is named (--kubernetes, --server, KUBECONFIG), though none is up");
    adli_server_fini(&server);
    return choose(out, found ? SITE_KUBERNETES : SITE_SOCKET, why);
}

int site_choose(const cli *c, bool local, site *out)
{
    const char *asked = variable("ADAPTDL_KUBERNETES");
    bool flag = asked && strcmp(asked, "0") != 0;
    if ((c->kubernetes || c->context) && (c->server || c->state))
        return usage_error(c->command->name, "--kubernetes and --context do not go with --server "
                                             "and --state: which cluster is meant?");
    if (c->kubernetes || c->context)
        return choose(out, SITE_KUBERNETES,
                      c->context ? "--context says so" : "--kubernetes says so");
    if (c->server)
        return choose(out, strncmp(c->server, "unix:", 5) == 0 ? SITE_SOCKET : SITE_SERVER,
                      "--server says so");
    if (c->state)
        return choose(out, SITE_SOCKET, "--state says so");
    if (flag && !local)
        return choose(out, SITE_KUBERNETES, "ADAPTDL_KUBERNETES is set");
    const char *server = variable("ADAPTDL_SERVER");
    if (server)
        return choose(out, strncmp(server, "unix:", 5) == 0 ? SITE_SOCKET : SITE_SERVER,
                      "ADAPTDL_SERVER is set");
    if (variable("ADAPTDL_STATE"))
        return choose(out, SITE_SOCKET, "ADAPTDL_STATE is set");
    return choose_by_itself(local, out);
}

/* ---- credentials ---- */

static adl_status copy(char **slot, const char *text)
{
    free(*slot);
    *slot = text && *text ? adli_strdup(text) : NULL;
    return !text || !*text || *slot ? ADL_OK : adli_fail_memory("credentials");
}

/* Service accounts' tokens are in a file. */
static adl_status copy_token(const adli_kube_config *config, char **slot)
{
    if (*config->token || !*config->token_file)
        return copy(slot, config->token);
    adli_buf text;
    adli_buf_init(&text, TOKEN_MAX);
    adl_status status = adli_file_read(config->token_file, &text);
    if (status == ADL_OK && text.data)
        text.data[strcspn(text.data, " \r\n")] = '\0';
    if (status == ADL_OK)
        status = copy(slot, text.data);
    adli_buf_fini(&text);
    return status;
}

static adl_status copy_credentials(const adli_kube_config *config, adli_server *server)
{
    server->insecure = config->insecure;
    adl_status status = copy_token(config, &server->token);
    if (status == ADL_OK)
        status = copy(&server->ca, config->ca);
    if (status == ADL_OK)
        status = copy(&server->certificate, config->certificate);
    return status == ADL_OK ? copy(&server->key, config->key) : status;
}

bool kube_renew(cluster *k)
{
    kube *there = k->kube;
    if (!there->config.exec && !*there->config.token_file)
        return false;
    return adli_kube_config_login(&there->config, LOGIN_S) == ADL_OK &&
           copy_credentials(&there->config, &there->server) == ADL_OK &&
           copy_credentials(&there->config, &k->server) == ADL_OK;
}

/* ---- the scheduler there ---- */

/* "NAMESPACE" or "NAMESPACE/SERVICE". */
static int name_scheduler(const cluster *k, kube *there)
{
    const char *given = variable("ADAPTDL_SCHEDULER");
    const char *slash = given ? strchr(given, '/') : NULL;
    snprintf(there->ns, sizeof there->ns, "%.*s", slash ? (int)(slash - given) : 63,
             given ? given : "adaptdl");
    snprintf(there->service, sizeof there->service, "%s", slash ? slash + 1 : "adaptdl-supervisor");
    if (adli_name_valid(there->ns) && adli_name_valid(there->service))
        return EXIT_DONE;
    return problem(k->cli->command->name, EXIT_USAGE,
                   "ADAPTDL_SCHEDULER=%.100s: expected the scheduler's NAMESPACE or "
                   "NAMESPACE/SERVICE",
                   given);
}

char *kube_decode(const char *base64)
{
    size_t length = base64 ? strlen(base64) : 0;
    char *clear = length > 0 && length % 4 == 0 ? adli_calloc(length + 4, 1) : NULL;
    if (!clear)
        return NULL;
    if (EVP_DecodeBlock((unsigned char *)clear, (const unsigned char *)base64, (int)length) > 0)
        return clear;
    free(clear);
    return NULL;
}

static int no_scheduler(const cluster *k)
{
    const kube *there = k->kube;
    return problem(k->cli->command->name, EXIT_NO_CLUSTER,
                   "there is no AdaptDL scheduler in namespace %s of %s; install it with: helm "
                   "install adaptdl charts/adaptdl-sched --namespace adaptdl --create-namespace "
                   "(ADAPTDL_SCHEDULER names another namespace)",
                   there->ns, there->server.url);
}

/* The token of the scheduler is in a Secret: who may read it may ask. */
static int fetch_token(cluster *k)
{
    char path[PATH_TEXT];
    json_t *secret = NULL;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets/adaptdl-sched-token", k->kube->ns);
    int status = kube_ask(k, "GET", path, NULL, NULL, 404, &secret);
    if (status == EXIT_DONE && !secret)
        return no_scheduler(k);
    char *token = kube_decode(text_of(json_object_get(secret, "data"), "token", NULL));
    if (status == EXIT_DONE && token && !strpbrk(token, " \r\n")) {
        k->server.own_token = token;
        token = NULL;
    } else if (status == EXIT_DONE)
        status = problem(k->cli->command->name, EXIT_REFUSED,
                         "secret %s/adaptdl-sched-token holds no token", k->kube->ns);
    free(token);
    json_decref(secret);
    return status;
}

static adl_status set_urls(cluster *k)
{
    kube *there = k->kube;
    char url[2 * PATH_TEXT];
    snprintf(url, sizeof url, "%.400s/api/v1/namespaces/%s/services/https:%s:api/proxy",
             there->config.server, there->ns, there->service);
    adl_status status = copy(&there->server.url, there->config.server);
    return status == ADL_OK ? copy(&k->server.url, url) : status;
}

int kube_open(cluster *k)
{
    const char *command = k->cli->command->name;
    kube *there = k->kube = adli_calloc(1, sizeof *there);
    if (!there)
        return problem(command, EXIT_REFUSED, "out of memory");
    int status = name_scheduler(k, there);
    if (status != EXIT_DONE)
        return status;
    if (adli_kube_config_find(NULL, k->cli->context, &there->config) != ADL_OK)
        return report_error(command, EXIT_USAGE);
    if (adli_kube_config_login(&there->config, LOGIN_S) != ADL_OK)
        return report_error(command, EXIT_REFUSED);
    if (set_urls(k) != ADL_OK || copy_credentials(&there->config, &there->server) != ADL_OK ||
        copy_credentials(&there->config, &k->server) != ADL_OK ||
        adli_streams_new(&there->server, &there->streams) != ADL_OK)
        return report_error(command, EXIT_REFUSED);
    snprintf(k->ns, sizeof k->ns, "%s", there->config.ns);
    return EXIT_DONE;
}

int kube_reach(cluster *k)
{
    return k->server.own_token ? EXIT_DONE : fetch_token(k);
}

void kube_close(kube *there)
{
    if (!there)
        return;
    adli_streams_free(there->streams);
    adli_server_fini(&there->server);
    adli_kube_config_fini(&there->config);
    free(there);
}

/* ---- exchanges with the API server ---- */

int kube_failed(const cluster *k, adl_status status, int code, const adli_buf *answer)
{
    const char *command = k->cli->command->name;
    json_t *said = NULL;
    if (status == ADL_EINTR)
        return EXIT_INTERRUPTED;
    if (status == ADL_ENET || status == ADL_ETIMEOUT)
        return problem(command, EXIT_NO_CLUSTER, "the API server %s does not answer (%s)",
                       k->kube->server.url, adl_error());
    if (status != ADL_OK)
        return report_error(command, EXIT_REFUSED);
    if (answer && answer->data)
        said = json_loadb(answer->data, answer->length, 0, NULL);
    const char *text = text_of(said, "message", NULL);
    int result = code == 404 ? EXIT_ABSENT : code == 400 || code == 422 ? EXIT_USAGE : EXIT_REFUSED;
    if (text)
        problem(command, result, "%s%s", text,
                code == 401 ? " (the API server does not know you: are your credentials too old?)"
                            : "");
    else
        problem(command, result, "the API server answered with status %d", code);
    json_decref(said);
    return result;
}

int kube_ask(cluster *k, const char *method, const char *path, const json_t *body, const char *type,
             int accept, json_t **out)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    adli_stream_request request = {.method = method,
                                   .path = path,
                                   .body = text,
                                   .body_length = text ? strlen(text) : 0,
                                   .content_type = type ? type : "application/json",
                                   .accept = "application/json",
                                   .timeout_ms = ASK_MS};
    if (out)
        *out = NULL;
    adl_status status = body && !text ? adli_fail_memory("request") : ADL_OK;
    for (int i = 0; i < 2 && status == ADL_OK; i++) {
        status =
            adli_stream_exchange(k->kube->streams, &request, interrupted, &k->answer, &k->code);
        if (status != ADL_OK || k->code != 401 || i > 0 || !kube_renew(k))
            break;
    }
    free(text);
    if (status != ADL_OK || (k->code >= 400 && k->code != accept))
        return kube_failed(k, status, k->code, &k->answer);
    return out && k->code < 400 ? cluster_parse(k, out) : EXIT_DONE;
}
