/* The Kubernetes client against a server that misbehaves in every way a real one does. */
#include "kube/kube.h"
#include "harness.h"
#include "kube_server.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sys/stat.h>

/* ---- where the server is ---- */

static const char good[] =
    "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
    "clusters:\n- name: c\n  cluster:\n    server: https://10.0.0.1:6443/\n"
    "    certificate-authority-data: UEVN\n"
    "contexts:\n- name: one\n  context: {cluster: c, user: u}\n"
    "- name: two\n  context: {cluster: c, user: t, namespace: mine}\n"
    "- name: three\n  context: {cluster: nowhere, user: t}\n"
    "- name: four\n  context: {cluster: c, user: e}\n"
    "- name: five\n  context: {cluster: c, user: half}\n"
    "users:\n- name: u\n  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}\n"
    "- name: t\n  user: {token: abc}\n- name: e\n  user: {exec: {command: aws}}\n"
    "- name: half\n  user: {client-certificate-data: Q0VSVA==}\n";

static adl_status parse(const char *text, const char *context, adli_kube_config *out)
{
    return adli_kube_config_parse("config", ".", text, strlen(text), context, out);
}

TEST(a_kubeconfig_says_where_and_who)
{
    adli_kube_config config;
    REQUIRE_OK(parse(good, NULL, &config));
    CHECK_STR(config.server, "https://10.0.0.1:6443");
    CHECK_STR(config.ca, "PEM");
    CHECK_STR(config.certificate, "CERT");
    CHECK_STR(config.key, "KEY");
    CHECK_STR(config.ns, "default");
    CHECK_STR(config.token, "");
    adli_kube_config_fini(&config);
    REQUIRE_OK(parse(good, "two", &config));
    CHECK_STR(config.token, "abc");
    CHECK_STR(config.ns, "mine");
    CHECK(!config.insecure);
    adli_kube_config_fini(&config);
}

TEST(a_bad_kubeconfig_is_refused_by_name)
{
    static const char *const bad[][3] = {
        {good, "zero", "no context \"zero\""},
        {good, "three", "no cluster \"nowhere\""},
        {good, "four", "apiVersion"},
        {good, "five", "needed together"},
        {"a: [", "", "config:"},
        {"a: b", "", "current-context"},
        {"current-context: x", "", "contexts"},
        {"contexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: "
         "\"ftp://x\"}}]",
         "x", "expected https://"},
        {"contexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: "
         "\"https://x\", certificate-authority-data: \"%%\"}}]",
         "x", "base64"},
        {"contexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: "
         "\"https://x\", certificate-authority: no-such-file}}]",
         "x", "no-such-file"},
    };
    for (size_t i = 0; i < ADLI_COUNT(bad); i++) {
        adli_kube_config config;
        adl_status status = parse(bad[i][0], bad[i][1], &config);
        if (status == ADL_OK || !strstr(adl_error(), bad[i][2]))
            ADLT_FAIL("case %zu: %s", i, status == ADL_OK ? "taken" : adl_error());
        adli_kube_config_fini(&config);
    }
}

TEST(a_pod_uses_its_service_account)
{
    char directory[] = "/tmp/adl-account-XXXXXX", path[64];
    adli_kube_config config;
    REQUIRE(mkdtemp(directory));
    static const char *const files[][2] = {
        {"token", "abc\n"}, {"ca.crt", "PEM"}, {"namespace", "mine\n"}};
    setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "6443", 1);
    CHECK(adli_kube_config_in_cluster(directory, &config) != ADL_OK);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i][0]);
        FILE *file = fopen(path, "w");
        REQUIRE(file);
        fputs(files[i][1], file);
        fclose(file);
    }
    REQUIRE_OK(adli_kube_config_in_cluster(directory, &config));
    CHECK_STR(config.server, "https://[fd00::1]:6443");
    CHECK_STR(config.ns, "mine");
    CHECK(strstr(config.token_file, "/token"));
    adli_kube_config_fini(&config);
    unsetenv("KUBERNETES_SERVICE_HOST");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i][0]);
        unlink(path);
    }
    rmdir(directory);
}

/* ---- calls ---- */

typedef struct site {
    adlt_kube_server server;
    adli_kube *kube;
    atomic_int step;
    atomic_int at_once, most; /* requests at a time */
    char seen[3000];          /* of the last request */
} site;

static void make_kube(site *s, const char *token_file)
{
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->server.port);
    adli_kube_config config = {.server = url,
                               .token = (char *)(token_file ? "" : "secret"),
                               .token_file = (char *)token_file};
    CHECK_OK(adli_kube_open(&config, &s->kube));
}

static bool open_site(site *s, void (*answer)(void *user, adlt_kube_request *request))
{
    *s = (site){.server = {.answer = answer}};
    s->server.user = s;
    if (!adlt_kube_server_start(&s->server))
        return false;
    make_kube(s, NULL);
    return s->kube != NULL;
}

static void close_site(site *s)
{
    adli_kube_close(s->kube);
    adlt_kube_server_stop(&s->server);
}

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

static void answer_calls(void *user, adlt_kube_request *request)
{
    site *s = user;
    int step = atomic_fetch_add(&s->step, 1);
    pthread_mutex_lock(&seen_lock); /* a thread to a connection */
    snprintf(s->seen, sizeof s->seen, "%s %s %s %s %s", request->method, request->path,
             request->type, request->authorization, request->body);
    pthread_mutex_unlock(&seen_lock);
    if (strcmp(request->path, "/busy") == 0 && step == 0)
        adlt_kube_answer(request, 429, "Retry-After: 1\r\n", "{}");
    else if (strcmp(request->path, "/busy") == 0 && step == 1)
        adlt_kube_answer(request, 503, "", "not now");
    else if (strcmp(request->path, "/busy") == 0 && step == 2)
        request->hang_up = true;
    else if (strcmp(request->path, "/busy") == 0 && step == 3) {
        adlt_kube_send(request, "HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{\"half\":");
        request->hang_up = true;
    } else if (strcmp(request->path, "/never") == 0)
        adlt_kube_answer(request, 500, "", "{\"message\":\"etcd is away\"}");
    else if (strcmp(request->path, "/silent") == 0)
        adlt_kube_hang(request);
    else if (strcmp(request->path, "/changing") == 0 && step < 3)
        adlt_kube_answer(request, 409, "",
                         "{\"reason\":\"Conflict\",\"message\":\"it was modified\"}");
    else if (strcmp(request->path, "/there") == 0)
        adlt_kube_answer(request, 409, "", "{\"message\":\"it exists\"}");
    else if (strcmp(request->path, "/bad") == 0)
        adlt_kube_answer(request, 422, "", "{\"message\":\"spec.x: Invalid value\"}");
    else if (strcmp(request->path, "/gone") == 0)
        adlt_kube_answer(request, 404, "", "no JSON");
    else if (strcmp(request->path, "/text") == 0)
        adlt_kube_answer(request, 200, "", "not JSON");
    else
        adlt_kube_answer(request, 200, "", "{\"answer\":42}");
}

TEST(calls_carry_token_type_and_body)
{
    site s;
    json_t *out;
    REQUIRE(open_site(&s, answer_calls));
    CHECK_OK(adli_kube_one(s.kube, "PATCH", "/x?a=b", "{\"y\":1}", ADLI_KUBE_APPLY, 0, &out));
    CHECK_STR(s.seen, "PATCH /x?a=b " ADLI_KUBE_APPLY " Bearer secret {\"y\":1}");
    CHECK_INT(json_integer_value(json_object_get(out, "answer")), 42);
    json_decref(out);
    CHECK_OK(adli_kube_one(s.kube, "GET", "/x", NULL, NULL, 0, NULL));
    CHECK_STR(s.seen, "GET /x  Bearer secret ");
    close_site(&s);
}

TEST(a_token_that_is_renewed_is_read_from_its_file)
{
    site s;
    char path[] = "/tmp/adl-token-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, "fresh\n", 6) == 6);
    REQUIRE(open_site(&s, answer_calls));
    adli_kube_close(s.kube);
    make_kube(&s, path);
    CHECK_OK(adli_kube_one(s.kube, "GET", "/x", NULL, NULL, 0, NULL));
    CHECK_STR(s.seen, "GET /x  Bearer fresh ");
    close_site(&s);
    close(fd);
    unlink(path);
}

TEST(a_busy_server_is_asked_again)
{
    site s;
    adli_kube_call call = {.method = "GET", .path = "/busy", .time_s = 60};
    REQUIRE(open_site(&s, answer_calls));
    adli_kube_do(s.kube, &call, 1);
    CHECK_INT(call.code, 200);
    CHECK_STR(call.answer.data, "{\"answer\":42}"); /* nothing of the half answer */
    CHECK(atomic_load(&s.step) >= 5);
    CHECK(adli_kube_requests(s.kube) >= 4); /* libcurl itself asks again on a connection it had */
    adli_kube_call_fini(&call);
    close_site(&s);
}

TEST(what_meets_another_change_is_asked_again)
{
    static const char *const methods[] = {"PATCH", "POST"};
    site s;
    for (int i = 0; i < 2; i++) {
        REQUIRE(open_site(&s, answer_calls));
        CHECK_OK(adli_kube_one(s.kube, methods[i], "/changing", "{}", NULL, 0, NULL));
        CHECK_INT(atomic_load(&s.step), 4);
        close_site(&s);
    }
    REQUIRE(open_site(&s, answer_calls)); /* a PUT would never be taken */
    CHECK_FAILS(adli_kube_one(s.kube, "PUT", "/changing", "{}", NULL, 0, NULL), ADL_ESTATE,
                "it was modified");
    CHECK_INT(atomic_load(&s.step), 1);
    close_site(&s);
}

enum { MANY = 400 };

static void answer_many(void *user, adlt_kube_request *request)
{
    site *s = user;
    int now = atomic_fetch_add(&s->at_once, 1) + 1, most = atomic_load(&s->most);
    while (now > most && !atomic_compare_exchange_weak(&s->most, &most, now))
        ;
    usleep(20000); /* so that there are several */
    atomic_fetch_sub(&s->at_once, 1);
    adlt_kube_answer(request, 200, "", "{}");
}

TEST(many_calls_go_some_at_a_time)
{
    site s = {0};
    static adli_kube_call calls[MANY];
    REQUIRE(open_site(&s, answer_many));
    for (int i = 0; i < MANY; i++)
        calls[i] = (adli_kube_call){.method = "GET", .path = "/many"};
    adli_kube_do(s.kube, calls, MANY);
    for (int i = 0; i < MANY; i++) {
        CHECK_INT(calls[i].code, 200);
        adli_kube_call_fini(&calls[i]);
    }
    CHECK(atomic_load(&s.most) > 1);
    CHECK(atomic_load(&s.most) <= 64);
    close_site(&s);
}

TEST(refusals_are_told_in_the_servers_words)
{
    site s;
    REQUIRE(open_site(&s, answer_calls));
    CHECK_FAILS(adli_kube_one(s.kube, "POST", "/there", "{}", NULL, 0, NULL), ADL_ESTATE,
                "POST /there: it exists");
    CHECK_OK(adli_kube_one(s.kube, "POST", "/there", "{}", NULL, 409, NULL));
    CHECK_FAILS(adli_kube_one(s.kube, "POST", "/bad", "{}", NULL, 0, NULL), ADL_EINVAL,
                "spec.x: Invalid value");
    CHECK_FAILS(adli_kube_one(s.kube, "GET", "/gone", NULL, NULL, 0, NULL), ADL_ENOENT, "HTTP 404");
    json_t *out;
    CHECK_FAILS(adli_kube_one(s.kube, "GET", "/text", NULL, NULL, 0, &out), ADL_EIO, "GET /text");
    CHECK_INT(adli_kube_requests(s.kube), 5); /* none of these is tried again */
    close_site(&s);
}

TEST(time_is_limited)
{
    site s;
    adli_kube_call calls[] = {{.method = "GET", .path = "/never", .time_s = 1},
                              {.method = "GET", .path = "/silent", .time_s = 1},
                              {.method = "GET", .path = "/x", .max_bytes = 4}};
    REQUIRE(open_site(&s, answer_calls));
    adli_kube_do(s.kube, calls, 3);
    CHECK(calls[0].code == 500 || calls[0].code == 0); /* 0: its last try took too long */
    CHECK_FAILS(adli_kube_check(&calls[0], "it"), ADL_EIO,
                calls[0].code ? "it: etcd is away" : "it: ");
    CHECK_INT(calls[1].code, 0);
    CHECK_FAILS(adli_kube_check(&calls[1], "it"), ADL_EIO, "it: ");
    CHECK_FAILS(adli_kube_check(&calls[2], "it"), ADL_EIO, "too long");
    for (int i = 0; i < 3; i++)
        adli_kube_call_fini(&calls[i]);
    close_site(&s);
}

TEST(nobody_at_the_address_is_told)
{
    site s;
    adli_kube_call call = {.method = "GET", .path = "/x", .time_s = 0.5};
    REQUIRE(open_site(&s, answer_calls));
    adlt_kube_server_stop(&s.server);
    adli_kube_do(s.kube, &call, 1);
    CHECK_FAILS(adli_kube_check(&call, "GET /x"), ADL_EIO, "GET /x: ");
    adli_kube_call_fini(&call);
    adli_kube_close(s.kube);
}

/* ---- watches ---- */

/* What a watch told, as one text: "[" begin, name or "-name", "]" complete, "!" trouble. */
typedef struct told {
    pthread_mutex_t lock;
    char text[2048];
} told;

static void tell(told *t, const char *mark, const char *name)
{
    pthread_mutex_lock(&t->lock);
    size_t used = strlen(t->text);
    snprintf(t->text + used, sizeof t->text - used, "%s%s ", mark, name);
    pthread_mutex_unlock(&t->lock);
}

static void on_begin(void *user)
{
    tell(user, "[", "");
}

static void on_object(void *user, const json_t *object, bool gone)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(object, "metadata"), "name"));
    tell(user, gone ? "-" : "", name ? name : "?");
}

static void on_complete(void *user)
{
    tell(user, "]", "");
}

static void on_trouble(void *user, const char *text)
{
    (void)text;
    tell(user, "!", "");
}

static const adli_kube_watch_ops ops = {on_begin, on_object, on_complete, on_trouble};

static bool wait_for(told *t, const char *text)
{
    bool found = false;
    for (double until_s = adli_monotonic_s() + 60; !found && adli_monotonic_s() < until_s;) {
        pthread_mutex_lock(&t->lock);
        found = strstr(t->text, text) != NULL;
        pthread_mutex_unlock(&t->lock);
        usleep(2000);
    }
    return found;
}

#define EVENT(type, name, version)                                                                 \
    "{\"type\":\"" type "\",\"object\":{\"metadata\":{\"name\":\"" name                            \
    "\",\"resourceVersion\":\"" version "\"}}}\n"
#define ERROR(code) "{\"type\":\"ERROR\",\"object\":{\"code\":" code ",\"message\":\"too old\"}}\n"

static void answer_watch(void *user, adlt_kube_request *request)
{
    site *s = user;
    bool watch = strstr(request->path, "watch=1");
    snprintf(s->seen, sizeof s->seen, "%s", request->path);
    if (!watch && strstr(request->path, "continue=p%2F2")) {
        adlt_kube_answer(request, 200, "",
                         "{\"metadata\":{\"resourceVersion\":\"10\"},"
                         "\"items\":[{\"metadata\":{\"name\":\"b\"}}]}");
        return;
    }
    if (!watch) {
        adlt_kube_answer(request, 200, "",
                         "{\"metadata\":{\"resourceVersion\":\"9\",\"continue\":\"p/2\"},"
                         "\"items\":[{\"metadata\":{\"name\":\"a\"}}]}");
        return;
    }
    int step = atomic_fetch_add(&s->step, 1);
    const char *from = strstr(request->path, "resourceVersion=");
    if (step == 0 && strcmp(from, "resourceVersion=10") == 0) {
        adlt_kube_stream(request);
        adlt_kube_piece(request, EVENT("ADDED", "c", "11") "{\"type\":\"MODI");
        adlt_kube_piece(request, "FIED\",\"object\":{\"metadata\":{\"name\":\"a\","
                                 "\"resourceVersion\":\"12\"}}}\n");
        adlt_kube_piece(request, EVENT("DELETED", "b", "13") EVENT("BOOKMARK", "", "20"));
        adlt_kube_piece(request, ""); /* the server ends it, as it does every few minutes */
    } else if (step == 1 && strcmp(from, "resourceVersion=20") == 0) {
        adlt_kube_stream(request);
        adlt_kube_piece(request, EVENT("ADDED", "d", "21"));
        request->hang_up = true; /* in the middle */
    } else if (step == 2 && strcmp(from, "resourceVersion=21") == 0) {
        adlt_kube_stream(request);
        adlt_kube_piece(request, "this is no event\n");
        adlt_kube_hang(request);
    } else if (step == 3 && strcmp(from, "resourceVersion=21") == 0)
        adlt_kube_answer(request, 500, "", "{}");
    else if (step == 4 && strcmp(from, "resourceVersion=21") == 0) {
        adlt_kube_stream(request);
        adlt_kube_piece(request, ERROR("410"));
        adlt_kube_hang(request);
    } else if (step == 5 && strcmp(from, "resourceVersion=10") == 0)
        adlt_kube_answer(request, 410, "", "{}");
    else if (step == 6 && strcmp(from, "resourceVersion=10") == 0) {
        adlt_kube_stream(request);
        adlt_kube_piece(request, EVENT("ADDED", "z", "30"));
        adlt_kube_hang(request);
    } else
        adlt_kube_answer(request, 400, "", "{}");
}

TEST(a_watch_survives_everything)
{
    site s;
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adli_kube_watch *watch;
    REQUIRE(open_site(&s, answer_watch));
    REQUIRE_OK(adli_kube_watch_new(s.kube, "/api/v1/pods", "labelSelector=x", &ops, &t, &watch));
    CHECK(wait_for(&t, "z "));
    CHECK_STR(t.text, "[ a b ] c a -b d ! ! ! [ a b ] [ a b ] z ");
    adli_kube_watch_stats stats = adli_kube_watch_look(watch);
    CHECK_INT(stats.lists, 3);
    CHECK_INT(stats.watches, 7);
    CHECK_INT(stats.events, 5);
    CHECK_INT(stats.bookmarks, 1);
    CHECK_INT(stats.failures, 3);
    CHECK(strstr(s.seen, "/api/v1/pods?labelSelector=x&watch=1&allowWatchBookmarks=true&"));
    adli_kube_watch_free(watch); /* in the middle of a stream */
    close_site(&s);
}

static void answer_lists(void *user, adlt_kube_request *request)
{
    site *s = user;
    int step = atomic_fetch_add(&s->step, 1);
    if (step == 0)
        adlt_kube_answer(request, 429, "Retry-After: 1\r\n", "{}");
    else if (step == 1)
        adlt_kube_answer(request, 200, "", "{\"items\":3}");
    else if (step == 2)
        adlt_kube_answer(request, 200, "",
                         "{\"metadata\":{\"continue\":\"old\"},\"items\":[{\"metadata\":{}}]}");
    else if (strstr(request->path, "continue=old"))
        adlt_kube_answer(request, 410, "", "{}"); /* from the first page again */
    else if (!strstr(request->path, "watch=1"))
        adlt_kube_answer(request, 200, "",
                         "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}");
    else
        adlt_kube_hang(request);
}

TEST(a_list_that_fails_is_made_again)
{
    site s;
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adli_kube_watch *watch;
    REQUIRE(open_site(&s, answer_lists));
    REQUIRE_OK(adli_kube_watch_new(s.kube, "/x", "", &ops, &t, &watch));
    CHECK(wait_for(&t, "]"));
    CHECK_STR(t.text, "! ! [ ? ! [ ] ");
    CHECK_OK(adli_kube_one(s.kube, "GET", "/x", NULL, NULL, 0, NULL)); /* beside the stream */
    adli_kube_watch_free(watch);
    close_site(&s);
}

#define ODD "\"odd\\u0000\":\"\\u0000 \\\\u0000\",\"big\":-100000000000000000000,\"n\":7"

static void on_odd(void *user, const json_t *object, bool gone)
{
    on_object(user, object, gone);
    if (json_integer_value(json_object_get(object, "n")) == 7 &&
        json_real_value(json_object_get(object, "big")) == -1e20)
        tell(user, "odd", "");
}

static void answer_odd(void *user, adlt_kube_request *request)
{
    (void)user;
    if (!strstr(request->path, "watch=1")) {
        adlt_kube_answer(request, 200, "",
                         "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":{"
                         "\"name\":\"a\"}," ODD "},{\"metadata\":{\"name\":\"b\"}}]}");
        return;
    }
    adlt_kube_stream(request);
    adlt_kube_piece(request, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"c\","
                             "\"resourceVersion\":\"2\"}," ODD "}}\n");
    adlt_kube_piece(request, EVENT("ADDED", "z", "3"));
    adlt_kube_hang(request);
}

TEST(an_object_with_odd_values_does_not_hide_the_others)
{
    static const adli_kube_watch_ops odd_ops = {on_begin, on_odd, on_complete, on_trouble};
    site s;
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adli_kube_watch *watch;
    REQUIRE(open_site(&s, answer_odd));
    REQUIRE_OK(adli_kube_watch_new(s.kube, "/x", "", &odd_ops, &t, &watch));
    CHECK(wait_for(&t, "z "));
    CHECK_STR(t.text, "[ a odd b ] c odd z ");
    adli_kube_watch_free(watch);
    close_site(&s);
}

/* A page of 500 is longer than is taken, one of 250 goes on at a place whose name is. */
static void answer_long(void *user, adlt_kube_request *request)
{
    site *s = user;
    adli_buf page;
    if (strstr(request->path, "watch=1")) {
        adlt_kube_hang(request);
        return;
    }
    adli_buf_init(&page, 80 << 20);
    adli_buf_puts(&page, "{\"metadata\":{\"resourceVersion\":\"1\",\"continue\":\"");
    if (strstr(request->path, "limit=250") && atomic_fetch_add(&s->step, 1) == 0)
        for (int i = 0; i < 1000; i++)
            adli_buf_puts(&page, "0123456789");
    adli_buf_puts(&page, "\"},\"items\":[{\"metadata\":{\"name\":\"a\"}}],\"x\":\"");
    for (int i = 0; i < 65 << 10 && strstr(request->path, "limit=500"); i++)
        adli_buf_printf(&page, "%01024d", i);
    adli_buf_puts(&page, "\"}");
    adlt_kube_answer(request, 200, "", page.data ? page.data : "");
    adli_buf_fini(&page);
}

TEST(pages_that_are_too_long_become_shorter)
{
    site s;
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adli_kube_watch *watch;
    REQUIRE(open_site(&s, answer_long));
    REQUIRE_OK(adli_kube_watch_new(s.kube, "/x", "", &ops, &t, &watch));
    CHECK(wait_for(&t, "]"));
    CHECK_STR(t.text, "! [ a ! [ a ] "); /* too long; no end of the list; all of it */
    adli_kube_watch_free(watch);
    close_site(&s);
}

TEST(a_client_with_a_watch_that_waits_is_closed_at_once)
{
    site s;
    told t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    adli_kube_watch *watches[8];
    REQUIRE(open_site(&s, answer_lists));
    for (int i = 0; i < 8; i++)
        REQUIRE_OK(adli_kube_watch_new(s.kube, "/x", "", &ops, &t, &watches[i]));
    for (int i = 0; i < 8; i++)
        adli_kube_watch_free(watches[i]);
    close_site(&s);
}
