/* A cluster of Kubernetes as people meet it, in memory: the fake API server, an operator on it as a process, the API
 * server's proxy to the operator, and `adaptdl` as they would run it. */
#ifndef ADLT_PEOPLE_H
#define ADLT_PEOPLE_H

#include "cluster.h"
#include "fake_kube.h"

#include "base/clock.h"

#include <curl/curl.h>

#define JOBS "/apis/adaptdl.petuum.com/v1/namespaces/default/adaptdljobs"

typedef struct people {
    adlt_fake fake;
    cluster sched;
    char kubeconfig[128], home[128];
    int api_port;            /* of the operator's door for people */
    char authorization[200]; /* what the API server was last shown */
    /* Answers in the place of the fake when it returns true. */
    bool (*special)(struct people *p, adlt_kube_request *request);
    int code;
    char said[1 << 16]; /* what adaptdl said last, both streams */
} people;

typedef struct relay {
    adlt_kube_request *request;
    CURL *easy;
    bool begun;
} relay;

static inline void relay_begin(relay *r)
{
    long code = 502;
    char head[120];
    if (r->begun)
        return;
    r->begun = true;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &code);
    snprintf(head, sizeof head, "HTTP/1.1 %ld X\r\nTransfer-Encoding: chunked\r\n\r\n", code);
    adlt_kube_send(r->request, head);
}

static inline size_t relay_data(char *data, size_t size, size_t count, void *user)
{
    relay *r = user;
    char *piece = strndup(data, size * count);
    relay_begin(r);
    adlt_kube_piece(r->request, piece);
    free(piece);
    return r->request->hang_up ? 0 : size * count;
}

static inline int relay_ends(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const relay *r = user;
    char byte;
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(&r->request->server->ending) ||
           recv(r->request->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* As the API server: the path behind "/proxy", without Authorization, whoever's certificate that is. */
static inline void people_proxy(people *p, adlt_kube_request *request)
{
    char url[2200], token[240];
    if (p->api_port == 0 ||
        !strstr(request->path, "/services/https:adaptdl-supervisor:api/proxy/")) {
        adlt_kube_answer(request, 503, "",
                         "{\"kind\":\"Status\",\"message\":\"no endpoints available\"}");
        return;
    }
    relay r = {.request = request, .easy = curl_easy_init()};
    snprintf(url, sizeof url, "https://127.0.0.1:%d%s", p->api_port,
             strstr(request->path, "/proxy/") + 6);
    snprintf(token, sizeof token, "X-Adaptdl-Token: %s", request->own_token);
    struct curl_slist *headers = curl_slist_append(NULL, token);
    headers = curl_slist_append(headers, "Host: api.cluster.example:6443");
    curl_easy_setopt(r.easy, CURLOPT_URL, url);
    curl_easy_setopt(r.easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(r.easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(r.easy, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(r.easy, CURLOPT_WRITEFUNCTION, relay_data);
    curl_easy_setopt(r.easy, CURLOPT_WRITEDATA, &r);
    curl_easy_setopt(r.easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(r.easy, CURLOPT_XFERINFOFUNCTION, relay_ends);
    curl_easy_setopt(r.easy, CURLOPT_XFERINFODATA, &r);
    if (curl_easy_perform(r.easy) == CURLE_OK) {
        relay_begin(&r);
        adlt_kube_piece(request, "");
    } else
        request->hang_up = true;
    curl_slist_free_all(headers);
    curl_easy_cleanup(r.easy);
}

static inline void people_answer(void *user, adlt_kube_request *request)
{
    people *p = user;
    pthread_mutex_lock(&p->fake.lock);
    snprintf(p->authorization, sizeof p->authorization, "%s", request->authorization);
    pthread_mutex_unlock(&p->fake.lock);
    if (p->special && p->special(p, request))
        return;
    if (strstr(request->path, "/services/") && strstr(request->path, "/proxy"))
        people_proxy(p, request);
    else if (strstr(request->path, "dryRun=All"))
        adlt_kube_answer(request, 201, "", request->body);
    else
        adlt_fake_answer(&p->fake, request);
}

/* user: the user's entry in the kubeconfig, as YAML in one line; "" for none. */
static inline bool people_kubeconfig(people *p, const char *user)
{
    snprintf(p->kubeconfig, sizeof p->kubeconfig, "%s/kubeconfig", p->sched.state);
    FILE *file = fopen(p->kubeconfig, "w");
    if (!file)
        return false;
    fprintf(
        file,
        "current-context: c\nclusters: [{name: c, cluster: {server: \"http://127.0.0.1:%d\"}}]\n"
        "users: [{name: u, user: {%s}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}},\n"
        "  {name: other, context: {cluster: c, user: u, namespace: elsewhere}}]\n",
        p->fake.server.port, user);
    return fclose(file) == 0;
}

/* The port that the operator tells of; 0: it does not. */
static inline int people_port(people *p)
{
    char path[128], line[400];
    int port = 0;
    snprintf(path, sizeof path, "%s/daemon.log", p->sched.state);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "the read API is at port ");
        if (at)
            port = atoi(at + 24);
    }
    if (file)
        fclose(file);
    return port;
}

static inline people *people_open(void)
{
    people *p = calloc(1, sizeof *p);
    if (!p || !cluster_new(&p->sched) || !adlt_fake_start(&p->fake))
        return NULL;
    p->fake.server.answer = people_answer;
    p->fake.server.user = p;
    snprintf(p->home, sizeof p->home, "%s/home", p->sched.state);
    adlt_fake_node(&p->fake, "a");
    adlt_fake_node(&p->fake, "b");
    adlt_kubelet_start(&p->fake);
    return people_kubeconfig(p, "") ? p : NULL;
}

static inline bool people_start_sched(people *p)
{
    char config[128];
    snprintf(config, sizeof config, "%s/config.yaml", p->sched.state);
    FILE *file = fopen(config, "w");
    if (!file)
        return false;
    fputs("intervalSeconds: 1\nretryPauseSeconds: 0.1\nkubernetes: {listen: \"127.0.0.1:0\", "
          "apiListen: \"127.0.0.1:0\", supervisorUrl: \"http://10.0.0.1:8080\"}\n",
          file);
    fclose(file);
    setenv("KUBECONFIG", p->kubeconfig, 1);
    const char *const flags[] = {"--config", config, "--backend", "kubernetes", NULL};
    cluster_spawn(&p->sched, NULL, flags);
    unsetenv("KUBECONFIG");
    if (!cluster_ready(&p->sched, 120000))
        return false;
    p->api_port = people_port(p);
    return p->api_port > 0;
}

static inline void people_close(people *p)
{
    if (p->sched.daemon > 0)
        cluster_end(&p->sched, SIGTERM);
    adlt_kubelet_stop(&p->fake);
    adlt_fake_stop(&p->fake);
    cluster_free(&p->sched);
    free(p);
}

/* Runs `adaptdl` with these words, of a shell, in a home without anything. Returns the exit status; p->said is all
 * that it said. */
static inline int people_run(people *p, const char *words)
{
    char line[4096];
    size_t used = 0;
    snprintf(line, sizeof line,
             "env -u ADAPTDL_SERVER -u ADAPTDL_STATE -u ADAPTDL_KUBERNETES HOME=%s XDG_STATE_HOME= "
             "no_proxy=127.0.0.1 KUBECONFIG=%s ADAPTDL_SCHEDULER=default COLUMNS=200 timeout 120 "
             "%s %s 2>&1",
             p->home, p->kubeconfig, cluster_program("bin/adaptdl"), words);
    FILE *file = popen(line, "r");
    p->said[0] = '\0';
    while (file && used < sizeof p->said - 1) {
        size_t got = fread(p->said + used, 1, sizeof p->said - 1 - used, file);
        if (got == 0)
            break;
        used += got;
    }
    p->said[used] = '\0';
    int status = file ? pclose(file) : -1;
    return p->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The exit status, and what must be in its words. */
#define CHECK_RUN(p, words, status, text)                                                          \
    do {                                                                                           \
        CHECK_INT(people_run(p, words), status);                                                   \
        if (!strstr((p)->said, text))                                                              \
            fprintf(stderr, "adaptdl %s said: %s\n", words, (p)->said);                            \
        CHECK(strstr((p)->said, text));                                                            \
    } while (0)

#endif
