/* The admission webhook: what it says of jobs, the certificates that it makes, and that the API server can call it
 * with nothing but the caBundle that it was given. */
#include "daemon/webhook.h"
#include "harness.h"
#include "kube_server.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/json.h"
#include "base/mem.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#define CONFIGURATION                                                                              \
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/adaptdl-sched"

/* ---- a server: it judges pod templates, and keeps one configuration ---- */

typedef struct site {
    adlt_kube_server server;
    adli_kube *kube;
    pthread_mutex_t lock;
    int code; /* of what is said of pod templates */
    char message[200], asked[2000];
    char url[100]; /* of the configuration; "": there is none */
    char bundle[8000], type[80];
    int patches;
} site;

static void answer_configuration(site *s, adlt_kube_request *request)
{
    char text[9000];
    if (strcmp(request->method, "PATCH") == 0) {
        json_t *patch = json_loads(request->body, 0, NULL);
        const json_t *hook = json_array_get(json_object_get(patch, "webhooks"), 0);
        const char *bundle =
            json_string_value(json_object_get(json_object_get(hook, "clientConfig"), "caBundle"));
        snprintf(s->bundle, sizeof s->bundle, "%s", bundle ? bundle : "");
        snprintf(s->type, sizeof s->type, "%s", request->type);
        s->patches++;
        json_decref(patch);
    }
    snprintf(text, sizeof text,
             "{\"webhooks\":[{\"name\":\"jobs\",\"clientConfig\":{\"url\":\"%s\",\"caBundle\":"
             "\"%s\"}}]}",
             s->url, s->bundle);
    adlt_kube_answer(request, *s->url ? 200 : 404, "", *s->url ? text : "{}");
}

static void answer(void *user, adlt_kube_request *request)
{
    site *s = user;
    char text[400];
    pthread_mutex_lock(&s->lock);
    if (strcmp(request->path, CONFIGURATION) == 0)
        answer_configuration(s, request);
    else if (strcmp(request->path, "/api/v1/namespaces/team/podtemplates?dryRun=All") == 0) {
        snprintf(s->asked, sizeof s->asked, "%s", request->body);
        snprintf(text, sizeof text, "{\"kind\":\"Status\",\"message\":\"%s\"}", s->message);
        adlt_kube_answer(request, s->code, "", text);
    } else
        adlt_kube_answer(request, 404, "", "{}");
    pthread_mutex_unlock(&s->lock);
}

static bool open_client(char *server, char *ca, adli_kube **out)
{
    char none[] = "", ns[] = "default";
    adli_kube_config config = {.server = server,
                               .ca = ca,
                               .certificate = none,
                               .key = none,
                               .token = none,
                               .token_file = none,
                               .ns = ns};
    return adli_kube_open(&config, out) == ADL_OK;
}

static bool open_site(site *s)
{
    char url[64], none[] = "";
    *s = (site){.server = {.answer = answer}, .code = 201};
    s->server.user = s;
    pthread_mutex_init(&s->lock, NULL);
    if (!adlt_kube_server_start(&s->server))
        return false;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->server.port);
    return open_client(url, none, &s->kube);
}

static void close_site(site *s)
{
    adli_kube_close(s->kube);
    adlt_kube_server_stop(&s->server);
}

/* ---- reviews ---- */

#define TEMPLATE                                                                                   \
    "\"template\":{\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":\"i\",\"command\":"      \
    "[\"c\"]}]}}"
#define JOB(spec)                                                                                  \
    "{\"apiVersion\":\"adaptdl.petuum.com/v1\",\"kind\":\"AdaptDLJob\",\"metadata\":{\"name\":"    \
    "\"j\",\"namespace\":\"team\"},\"spec\":{" spec "}}"
#define REVIEW(operation, more)                                                                    \
    "{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\",\"request\":{\"uid\":"   \
    "\"u-1\",\"operation\":\"" operation "\",\"namespace\":\"team\"" more "}}"
#define CREATE(spec) REVIEW("CREATE", ",\"object\":" JOB(spec))

/* The response; NULL: there was none. */
static json_t *review(site *s, const char *text, json_t **keep)
{
    adli_buf out;
    adli_buf_init(&out, 1 << 16);
    *keep = NULL;
    if (adli_webhook_review(s->kube, text, strlen(text), &out) == ADL_OK)
        *keep = json_loadb(out.data, out.length, 0, NULL);
    adli_buf_fini(&out);
    return json_object_get(*keep, "response");
}

static void check_review(site *s, const char *text, bool allowed, const char *words)
{
    json_t *keep;
    const json_t *response = review(s, text, &keep);
    const char *message =
        json_string_value(json_object_get(json_object_get(response, "status"), "message"));
    CHECK_STR(json_string_value(json_object_get(response, "uid")), "u-1");
    if (json_is_true(json_object_get(response, "allowed")) != allowed)
        ADLT_FAIL("%s: %s", text, message ? message : "allowed");
    if (words && (!message || !strstr(message, words)))
        ADLT_FAIL("%s: \"%s\" lacks \"%s\"", text, message ? message : "", words);
    json_decref(keep);
}

TEST(a_good_job_is_let_in_and_its_template_was_shown_to_the_server)
{
    site s;
    REQUIRE(open_site(&s));
    check_review(&s, CREATE("\"minReplicas\":1,\"maxReplicas\":2," TEMPLATE), true, NULL);
    json_t *asked = json_loads(s.asked, 0, NULL);
    CHECK_STR(json_string_value(json_object_get(asked, "kind")), "PodTemplate");
    json_t *wanted = json_loads("{" TEMPLATE "}", 0, NULL);
    CHECK(json_equal(json_object_get(asked, "template"), json_object_get(wanted, "template")));
    json_decref(wanted);
    json_decref(asked);
    close_site(&s);
}

TEST(a_bad_job_is_refused_in_words)
{
    site s;
    REQUIRE(open_site(&s));
    check_review(&s, CREATE("\"minReplicas\":3,\"maxReplicas\":2," TEMPLATE), false, "maxReplicas");
    check_review(&s, CREATE("\"minReplicas\":1"), false, "containers");
    check_review(&s, CREATE("\"priority\":-1," TEMPLATE), false, "priority");
    CHECK_STR(s.asked, ""); /* the server was not bothered with them */
    s.code = 422;
    snprintf(s.message, sizeof s.message,
             "PodTemplate \\\"\\\" is invalid: template.spec.volumes[0].name: Required value");
    check_review(&s, CREATE(TEMPLATE), false,
                 "spec.template: template.spec.volumes[0].name: Required value");
    s.code = 400;
    snprintf(s.message, sizeof s.message, "unknown field spec.x");
    check_review(&s, CREATE(TEMPLATE), false, "unknown field spec.x");
    close_site(&s);
}

TEST(what_the_server_cannot_be_asked_is_let_in_with_a_warning)
{
    site s;
    json_t *keep;
    REQUIRE(open_site(&s));
    s.code = 403;
    snprintf(s.message, sizeof s.message, "podtemplates is forbidden");
    const json_t *response = review(&s, CREATE(TEMPLATE), &keep);
    CHECK(json_is_true(json_object_get(response, "allowed")));
    const char *warning =
        json_string_value(json_array_get(json_object_get(response, "warnings"), 0));
    CHECK(warning && strstr(warning, "forbidden"));
    json_decref(keep);
    close_site(&s);
}

TEST(a_spec_does_not_change_and_all_else_may)
{
    site s;
    REQUIRE(open_site(&s));
    check_review(&s,
                 REVIEW("UPDATE",
                        ",\"object\":" JOB(
                            "\"maxReplicas\":3," TEMPLATE) ",\"oldObject\""
                                                           ":" JOB("\"maxReplicas\":2," TEMPLATE)),
                 false, "spec is immutable");
    check_review(&s, REVIEW("UPDATE", ",\"object\":" JOB(TEMPLATE) ",\"oldObject\":" JOB(TEMPLATE)),
                 true, NULL);
    check_review(&s, REVIEW("DELETE", ""), true, NULL);
    close_site(&s);
}

TEST(what_is_no_review_is_an_error)
{
    site s;
    adli_buf out;
    REQUIRE(open_site(&s));
    adli_buf_init(&out, 1 << 16);
    CHECK(adli_webhook_review(s.kube, "{", 1, &out) != ADL_OK);
    CHECK_FAILS(adli_webhook_review(s.kube, "{}", 2, &out), ADL_EINVAL, "request.uid");
    CHECK_FAILS(adli_webhook_review(s.kube, "[1]", 3, &out), ADL_EINVAL, "request.uid");
    /* a name of a namespace that would be another path is not asked about */
    json_t *keep;
    const json_t *response = review(&s,
                                    "{\"request\":{\"uid\":\"u\",\"operation\":\"CREATE\","
                                    "\"namespace\":\"../x\",\"object\":" JOB(TEMPLATE) "}}",
                                    &keep);
    CHECK(json_is_true(json_object_get(response, "allowed")));
    CHECK_INT(atomic_load(&s.server.requests), 0);
    json_decref(keep);
    adli_buf_fini(&out);
    close_site(&s);
}

/* ---- certificates ---- */

static X509 *read_certificate(const adli_buf *pem)
{
    BIO *bio = BIO_new_mem_buf(pem->data, (int)pem->length);
    X509 *x509 = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    return x509;
}

TEST(a_certificate_is_for_one_host)
{
    adli_buf certificate, key;
    adli_buf_init(&certificate, 1 << 16);
    adli_buf_init(&key, 1 << 16);
    REQUIRE_OK(adli_webhook_certificate("a.b.svc", 90 * 86400.0, &certificate, &key));
    X509 *x509 = read_certificate(&certificate);
    REQUIRE(x509);
    int days, seconds;
    CHECK_INT(X509_check_host(x509, "a.b.svc", 0, 0, NULL), 1);
    CHECK_INT(X509_check_host(x509, "x.b.svc", 0, 0, NULL), 0);
    CHECK(ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(x509), X509_get0_notAfter(x509)));
    CHECK_INT(days, 91);
    CHECK(strstr(key.data, "PRIVATE KEY"));
    X509_free(x509);
    adli_buf_fini(&certificate);
    adli_buf_init(&certificate, 1 << 16);
    REQUIRE_OK(adli_webhook_certificate("10.1.2.3", 60, &certificate, &key));
    x509 = read_certificate(&certificate);
    CHECK_INT(X509_check_ip_asc(x509, "10.1.2.3", 0), 1);
    X509_free(x509);
    CHECK_FAILS(adli_webhook_certificate("a,DNS:b", 60, &certificate, &key), ADL_EINVAL, "a,DNS:b");
    CHECK_FAILS(adli_webhook_certificate("", 60, &certificate, &key), ADL_EINVAL, "host");
    adli_buf_fini(&certificate);
    adli_buf_fini(&key);
}

/* ---- all of it ---- */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&address, length) != 0)
        return 0;
    getsockname(fd, (struct sockaddr *)&address, &length);
    close(fd);
    return ntohs(address.sin_port);
}

/* Until the configuration has been patched so often; its bundle, decoded. */
static bool wait_bundle(site *s, int patches, char *pem, size_t size)
{
    for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s; usleep(5000)) {
        pthread_mutex_lock(&s->lock);
        bool there = s->patches >= patches && strlen(s->bundle) / 4 * 3 < size;
        if (there) {
            int length = EVP_DecodeBlock((unsigned char *)pem, (unsigned char *)s->bundle,
                                         (int)strlen(s->bundle));
            pem[length > 0 ? length : 0] = 0;
        }
        pthread_mutex_unlock(&s->lock);
        if (there)
            return true;
    }
    return false;
}

/* As the API server would: it knows the URL and the bundle, nothing else. The code of the answer. */
static int call_webhook(const site *s, char *pem, const char *body, adli_buf *out)
{
    char server[100];
    adli_kube *kube = NULL;
    snprintf(server, sizeof server, "%.*s", (int)(strlen(s->url) - strlen("/validate")), s->url);
    adli_kube_call call = {.method = "POST", .path = "/validate", .body = body, .time_s = 30};
    if (!open_client(server, pem, &kube))
        return -1;
    adli_kube_do(kube, &call, 1);
    adli_buf_append(out, call.answer.data, call.answer.length);
    adli_kube_call_fini(&call);
    adli_kube_close(kube);
    return call.code;
}

static void check_called(const site *s, char *pem)
{
    adli_buf out;
    adli_buf_init(&out, 1 << 16);
    int code = call_webhook(s, pem, CREATE("\"minReplicas\":3,\"maxReplicas\":2," TEMPLATE), &out);
    CHECK_INT(code, 200);
    CHECK(out.data && strstr(out.data, "\"allowed\":false"));
    adli_buf_fini(&out);
}

static bool begin(site *s, char *directory, double life_s, adli_webhook **out)
{
    static char listen[64];
    int port = free_port();
    if (!mkdtemp(directory) || !open_site(s) || port == 0)
        return false;
    snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    snprintf(s->url, sizeof s->url, "https://127.0.0.1:%d/validate", port);
    adli_webhook_options options = {.kube = s->kube,
                                    .state_dir = directory,
                                    .listen = listen,
                                    .configuration = "adaptdl-sched",
                                    .life_s = life_s,
                                    .look_s = 0.05};
    return adli_webhook_new(&options, out) == ADL_OK;
}

static void end(site *s, const char *directory, adli_webhook *webhook)
{
    adli_webhook_free(webhook);
    close_site(s);
    CHECK_OK(adli_dirs_remove(AT_FDCWD, directory));
}

TEST(the_server_calls_with_the_bundle_it_was_given)
{
    char directory[] = "/tmp/adl-webhook-XXXXXX", pem[8000], path[64];
    site s;
    adli_webhook *webhook = NULL;
    struct stat info;
    REQUIRE(begin(&s, directory, 3600, &webhook));
    REQUIRE(wait_bundle(&s, 1, pem, sizeof pem));
    CHECK_STR(s.type, ADLI_KUBE_STRATEGIC);
    check_called(&s, pem);
    snprintf(path, sizeof path, "%s/webhook.key", directory);
    CHECK(stat(path, &info) != 0); /* the key is in memory only */
    /* somebody takes the bundle away: it comes back */
    pthread_mutex_lock(&s.lock);
    *s.bundle = 0;
    pthread_mutex_unlock(&s.lock);
    REQUIRE(wait_bundle(&s, 2, pem, sizeof pem));
    check_called(&s, pem);
    /* the configuration is deleted: nobody listens any more */
    char url[100];
    memcpy(url, s.url, sizeof url);
    pthread_mutex_lock(&s.lock);
    *s.url = 0;
    pthread_mutex_unlock(&s.lock);
    int port = atoi(strrchr(url, ':') + 1), connected = 0;
    for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s; usleep(5000)) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        connected = connect(fd, (struct sockaddr *)&address, sizeof address);
        close(fd);
        if (connected != 0)
            break;
    }
    CHECK(connected != 0);
    end(&s, directory, webhook);
}

TEST(a_certificate_is_renewed_before_it_ends)
{
    char directory[] = "/tmp/adl-webhook-XXXXXX", first[8000], second[8000];
    site s;
    adli_webhook *webhook = NULL;
    REQUIRE(begin(&s, directory, 4, &webhook));
    REQUIRE(wait_bundle(&s, 1, first, sizeof first));
    REQUIRE(wait_bundle(&s, 2, second, sizeof second));
    /* the new one, and the one before for whoever has not heard of it yet */
    CHECK(strstr(second, first));
    CHECK(strlen(second) > strlen(first));
    end(&s, directory, webhook);
}
