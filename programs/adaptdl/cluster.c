#include "cluster.h"

#include "kube.h"

#include "base/json.h"
#include "base/mem.h"
#include "doc/yaml.h"
#include "jobspec/jobspec.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 256 << 20, TIMEOUT_MS = 60000, HTTP_ABSENT = 404, LIST_PAGE = 1000 };

static int open_site(cluster *k, const cli *c, bool local)
{
    site where;
    *k = (cluster){.cli = c, .ns = "default"};
    adli_buf_init(&k->answer, ANSWER_MAX);
    if (c->ns && !adli_name_valid(c->ns))
        return usage_error(c->command->name,
                           "-N %.100s: a namespace consists of a-z, 0-9 and '-', at most 63",
                           c->ns);
    int status = site_choose(c, local, &where);
    if (status == EXIT_DONE && where.kind == SITE_KUBERNETES)
        status = kube_open(k);
    if (status != EXIT_DONE)
        return status;
    if (!k->kube && adli_server_init(&k->server, c->server, c->state, c->ca) != ADL_OK)
        return report_error(c->command->name, EXIT_USAGE);
    if (c->ns)
        snprintf(k->ns, sizeof k->ns, "%s", c->ns);
    if (adli_streams_new(&k->server, &k->streams) != ADL_OK)
        return report_error(c->command->name, EXIT_REFUSED);
    return EXIT_DONE;
}

int cluster_open(cluster *k, const cli *c)
{
    return open_site(k, c, false);
}

int cluster_open_local(cluster *k, const cli *c)
{
    return open_site(k, c, true);
}

int cluster_reach(cluster *k)
{
    return k->kube ? kube_reach(k) : EXIT_DONE;
}

void cluster_close(cluster *k)
{
    adli_streams_free(k->streams);
    kube_close(k->kube);
    adli_server_fini(&k->server);
    adli_buf_fini(&k->answer);
    *k = (cluster){0};
}

static int no_answer(const cluster *k)
{
    const char *command = k->cli->command->name;
    if (k->server.socket_path)
        return problem(
            command, EXIT_NO_CLUSTER,
            "no cluster is running (socket %s does not answer); start one with: adaptdl up",
            k->server.socket_path);
    return problem(command, EXIT_NO_CLUSTER, "%s does not answer (%s); check --server",
                   k->server.url, adl_error());
}

/* The API server answered in the place of the scheduler: it does not know one, or cannot reach it. */
static bool is_of_proxy(const cluster *k, const json_t *answer)
{
    return k->kube && strcmp(text_of(answer, "kind", ""), "Status") == 0;
}

/* The server's own words, from {"error": {"message": ...}}. */
static const char *server_message(const adli_buf *answer, json_t **hold)
{
    *hold = NULL;
    if (answer && answer->data && adli_json_parse(answer->data, answer->length, hold) == ADL_OK) {
        const char *text =
            text_of(json_object_get(*hold, "error"), "message", text_of(*hold, "message", NULL));
        if (text)
            return text;
    }
    return NULL;
}

int cluster_failed(const cluster *k, adl_status status, int code, const adli_buf *answer)
{
    const char *command = k->cli->command->name;
    if (k->told)
        return k->told;
    if (status == ADL_EINTR)
        return EXIT_INTERRUPTED;
    if (status == ADL_ENET)
        return no_answer(k);
    if (status != ADL_OK)
        return report_error(command, status == ADL_EINVAL ? EXIT_USAGE : EXIT_REFUSED);
    json_t *hold;
    const char *text = server_message(answer, &hold);
    char hint[HINT_TEXT];
    int result = EXIT_REFUSED;
    if (is_of_proxy(k, hold))
        result = problem(command, code == 401 || code == 403 ? EXIT_REFUSED : EXIT_NO_CLUSTER,
                         "the AdaptDL scheduler in namespace %s cannot be asked: %s", k->kube->ns,
                         text ? text : "the API server does not say why");
    else if (code == 401 || (code == 403 && !text))
        problem(command, result, "%s (set ADAPTDL_TOKEN to the cluster's token)",
                text ? text : "the scheduler does not allow this");
    else if (code == HTTP_ABSENT)
        result = problem(command, EXIT_ABSENT, "%s%s", text ? text : "there is no such thing",
                         job_hint(k, &k->asked, hint));
    else if (text)
        result = problem(command, code == 400 || code == 413 || code == 415 ? EXIT_USAGE : result,
                         "%s", text);
    else
        problem(command, result, "the scheduler answered with status %d; its log may say why",
                code);
    json_decref(hold);
    return result;
}

int cluster_parse(const cluster *k, json_t **out)
{
    if (adli_json_parse(k->answer.data, k->answer.length, out) == ADL_OK)
        return EXIT_DONE;
    return problem(k->cli->command->name, EXIT_REFUSED,
                   "the answer is not what a scheduler says: %s", adl_error());
}

/* Once more with new credentials, where the old ones have ended meanwhile. */
static adl_status exchange(cluster *k, const adli_stream_request *request)
{
    adl_status status =
        adli_stream_exchange(k->streams, request, interrupted, &k->answer, &k->code);
    if (status == ADL_OK && k->code == 401 && k->kube && kube_renew(k))
        status = adli_stream_exchange(k->streams, request, interrupted, &k->answer, &k->code);
    return status;
}

int cluster_request(cluster *k, const adli_stream_request *request, int accept, json_t **out)
{
    if (out)
        *out = NULL;
    if (k->kube && strcmp(request->method, "GET") != 0)
        return kube_write(k, request, out);
    int ready = cluster_reach(k);
    if (ready != EXIT_DONE)
        return ready;
    adl_status status = exchange(k, request);
    if (status != ADL_OK || (k->code >= 400 && k->code != accept))
        return cluster_failed(k, status, k->code, &k->answer);
    return out && k->code < 400 ? cluster_parse(k, out) : EXIT_DONE;
}

int cluster_ask(cluster *k, const char *method, const char *path, int accept, json_t **out)
{
    adli_stream_request request = {.method = method, .path = path, .timeout_ms = TIMEOUT_MS};
    return cluster_request(k, &request, accept, out);
}

int cluster_list(cluster *k, const char *query, json_t **out)
{
    char path[PATH_TEXT], next[64] = "";
    *out = NULL;
    do {
        json_t *page = NULL;
        snprintf(path, sizeof path, "/api/v1/jobs?%s%slimit=%d%s%s", query, *query ? "&" : "",
                 LIST_PAGE, *next ? "&continue=" : "", next);
        int status = cluster_ask(k, "GET", path, 410, &page);
        if (status == EXIT_DONE && k->code == 410) { /* another scheduler than a page ago */
            json_decref(*out);
            *out = NULL;
            next[0] = '\0';
            continue;
        }
        if (status != EXIT_DONE) {
            json_decref(*out);
            *out = NULL;
            return status;
        }
        snprintf(next, sizeof next, "%s", text_of(page, "continue", ""));
        json_object_del(page, "continue");
        if (!*out) {
            *out = page;
            continue;
        }
        json_array_extend(json_object_get(*out, "items"), json_object_get(page, "items"));
        json_decref(page);
    } while (*next || !*out);
    return EXIT_DONE;
}

adl_status cluster_look(cluster *k, const char *path, int timeout_ms)
{
    adli_stream_request request = {.method = "GET", .path = path, .timeout_ms = timeout_ms};
    if (k->kube && (k->told = kube_reach(k)) != EXIT_DONE)
        return adli_fail(ADL_EIO, "the scheduler cannot be asked");
    return exchange(k, &request);
}

/* ---- jobs ---- */

int cluster_job_name(cluster *k, const char *text, job_name *out)
{
    const char *slash = strchr(text, '/'), *ns = k->ns;
    size_t length = slash ? (size_t)(slash - text) : strlen(ns);
    const char *name = slash ? slash + 1 : text;
    if (length < sizeof out->ns && strlen(name) < sizeof out->name) {
        snprintf(out->ns, sizeof out->ns, "%.*s", (int)length, slash ? text : ns);
        snprintf(out->name, sizeof out->name, "%s", name);
        k->asked = *out;
        if (adli_name_valid(out->ns) && adli_name_valid(out->name))
            return EXIT_DONE;
    }
    return usage_error(
        k->cli->command->name,
        "job \"%.80s%s\": a name consists of a-z, 0-9 and '-', at most 63 characters", text,
        strlen(text) > 80 ? "..." : "");
}

const char *job_hint(const cluster *k, const job_name *job, char out[HINT_TEXT])
{
    char path[PATH_TEXT];
    adli_stream_request request = {.method = "GET", .path = path, .timeout_ms = TIMEOUT_MS};
    adli_buf answer;
    json_t *jobs = NULL;
    int code = 0;
    *out = '\0';
    if (!*job->name)
        return out;
    snprintf(path, sizeof path, "/api/v1/jobs?namespace=%s&fields=name&limit=1000", job->ns);
    adli_buf_init(&answer, ANSWER_MAX);
    if (adli_stream_exchange(k->streams, &request, interrupted, &answer, &code) == ADL_OK &&
        code == 200 && adli_json_parse(answer.data, answer.length, &jobs) == ADL_OK) {
        const json_t *items = json_object_get(jobs, "items");
        size_t count = json_array_size(items);
        const char **names = adli_calloc(count, sizeof *names);
        for (size_t i = 0; names && i < count; i++)
            names[i] = text_of(json_array_get(items, i), "name", "");
        if (names)
            did_you_mean(job->name, names, count, "", out);
        free(names);
    }
    json_decref(jobs);
    adli_buf_fini(&answer);
    return out;
}

const char *job_path(const job_name *job, const char *rest, char *out)
{
    snprintf(out, PATH_TEXT, "/api/v1/jobs/%s/%s%s", job->ns, job->name, rest);
    return out;
}

void put_encoded(adli_buf *out, const char *text)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    for (; *text; text++) {
        if (strchr(plain, *text))
            adli_buf_append(out, text, 1);
        else
            adli_buf_printf(out, "%%%02X", (unsigned)(unsigned char)*text);
    }
}

bool phase_over(const char *phase)
{
    return strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
}

/* ---- answers ---- */

int print_value(const cli *c, const json_t *value)
{
    int result = EXIT_DONE;
    if (c->format == FORMAT_JSON) {
        if (json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_ENCODE_ANY) != 0)
            return problem(c->command->name, EXIT_USAGE, "cannot write the output");
        putchar('\n');
        return EXIT_DONE;
    }
    adli_buf text;
    adli_buf_init(&text, ANSWER_MAX);
    if (adli_yaml_write(value, &text) != ADL_OK)
        result = report_error(c->command->name, EXIT_REFUSED);
    else
        fwrite(text.data, 1, text.length, stdout);
    adli_buf_fini(&text);
    return result;
}

const char *text_of(const json_t *object, const char *field, const char *absent)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : absent;
}

double number_of(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

int whole_of(const json_t *object, const char *field)
{
    double number = number_of(object, field);
    return number >= -2e9 && number <= 2e9 ? (int)number : 0;
}

bool true_of(const json_t *object, const char *field)
{
    return json_is_true(json_object_get(object, field));
}

/* ---- CTRL-C ---- */

static volatile sig_atomic_t signalled;

static void note_signal(int number)
{
    (void)number;
    signalled = 1;
}

void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART}; /* for stdio */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

bool interrupted(void)
{
    return signalled;
}

void pause_ms(int milliseconds)
{
    poll(NULL, 0, milliseconds);
}
