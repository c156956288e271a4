/* An AdmissionReview and its answer. A new job is checked as the scheduler will, and its pods by the API server
 * itself: a PodTemplate with the job's template, asked for as a dry run. */
#include "daemon/webhook.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "daemon/operator_impl.h"
#include "jobspec/jobspec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20, NAME_MAX_BYTES = 63 };
static const double ask_s = 4; /* less than the server waits for us */

typedef struct verdict {
    bool refused;
    char message[1000]; /* why, or what could not be looked at; "" */
} verdict;

static void refuse(verdict *v, const char *message)
{
    v->refused = true;
    snprintf(v->message, sizeof v->message, "%s", message);
}

/* It becomes part of a path, and who calls us may be anybody in the cluster. */
static bool namespace_fine(const char *ns)
{
    size_t length = ns ? strlen(ns) : 0;
    return length > 0 && length <= NAME_MAX_BYTES &&
           strspn(ns, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

/* ---- as the scheduler sees it ---- */

static void check_job(const json_t *object, verdict *v)
{
    adli_jobfile spec = {0};
    adli_buf file;
    adli_buf_init(&file, FILE_MAX);
    adl_status status = adli_job_file(object, &file);
    if (status == ADL_OK)
        status = adli_jobfile_parse("job", file.data, file.length, ADLI_DOC_JSON, &spec);
    if (status == ADL_EINVAL) {
        const char *text = adl_error();
        const char *after = strncmp(text, "job:1: ", 7) == 0 ? text + 7 : text; /* its one line */
        refuse(v, after);
    }
    adli_jobfile_fini(&spec);
    adli_buf_fini(&file);
}

/* ---- as the server sees its pods ---- */

static char *pod_template(const json_t *object)
{
    json_t *template = json_object_get(json_object_get(object, "spec"), "template");
    json_t *asked = json_pack("{s:s,s:s,s:{s:s},s:O}", "apiVersion", "v1", "kind", "PodTemplate",
                              "metadata", "generateName", "adaptdl-check-", "template", template);
    char *body = asked ? json_dumps(asked, JSON_COMPACT) : NULL;
    json_decref(asked);
    return body;
}

/* The server's own words about it, without those about the object that we made up. */
static void say_refusal(const adli_kube_call *call, verdict *v)
{
    json_t *answer = NULL;
    const char *text = NULL;
    if (adli_json_parse(call->answer.data, call->answer.length, &answer) == ADL_OK)
        text = json_string_value(json_object_get(answer, "message"));
    const char *colon = text ? strstr(text, "is invalid: ") : NULL;
    char message[900];
    snprintf(message, sizeof message, "spec.template: %s",
             colon  ? colon + strlen("is invalid: ")
             : text ? text
                    : "the API server refuses it");
    refuse(v, message);
    json_decref(answer);
}

static void check_pods(adli_kube *kube, const char *ns, const json_t *object, verdict *v)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/podtemplates?dryRun=All", ns);
    char *body = pod_template(object);
    adli_kube_call call = {.method = "POST", .path = path, .body = body, .time_s = ask_s};
    if (body)
        adli_kube_do(kube, &call, 1);
    if (call.code == 400 || call.code == 422)
        say_refusal(&call, v);
    else if (body && (call.code < 200 || call.code > 299)) {
        adl_status unasked = adli_kube_check(&call, "the pod template could not be checked");
        snprintf(v->message, sizeof v->message, "%s",
                 unasked == ADL_OK ? "the pod template could not be checked" : adl_error());
    }
    adli_kube_call_fini(&call);
    free(body);
}

static void check_change(const json_t *request, verdict *v)
{
    const json_t *now = json_object_get(json_object_get(request, "object"), "spec"),
                 *before = json_object_get(json_object_get(request, "oldObject"), "spec");
    if (before && !json_equal(now, before))
        refuse(v, "spec is immutable: delete the job and create another");
}

/* ---- the answer ---- */

static void write_answer(adli_buf *out, const char *uid, const verdict *v)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "apiVersion", "admission.k8s.io/v1");
    adli_jw_text(out, "kind", "AdmissionReview");
    adli_jw_open(out, "response", '{');
    adli_jw_text(out, "uid", uid);
    adli_jw_bool(out, "allowed", !v->refused);
    if (v->refused) {
        adli_jw_open(out, "status", '{');
        adli_jw_int(out, "code", 422);
        adli_jw_text(out, "reason", "Invalid");
        adli_jw_text(out, "message", v->message);
        adli_jw_close(out, '}');
    } else if (*v->message) {
        adli_jw_open(out, "warnings", '[');
        adli_jw_text(out, NULL, v->message);
        adli_jw_close(out, ']');
    }
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
}

adl_status adli_webhook_review(adli_kube *kube, const char *body, size_t length, adli_buf *out)
{
    json_t *review = NULL;
    verdict v = {0};
    adl_status status = adli_json_parse(body, length, &review);
    if (status != ADL_OK)
        return status;
    const json_t *request = json_object_get(review, "request"),
                 *object = json_object_get(request, "object");
    const char *uid = json_string_value(json_object_get(request, "uid")),
               *operation = json_string_value(json_object_get(request, "operation")),
               *ns = json_string_value(json_object_get(request, "namespace"));
    if (!uid || strlen(uid) > 128 || !operation)
        status = adli_fail(ADL_EINVAL, "no AdmissionReview: request.uid or request.operation is "
                                       "missing");
    else if (strcmp(operation, "CREATE") == 0 && json_is_object(object)) {
        check_job(object, &v);
        if (!v.refused && namespace_fine(ns))
            check_pods(kube, ns, object, &v);
    } else if (strcmp(operation, "UPDATE") == 0)
        check_change(request, &v);
    if (status == ADL_OK) {
        adli_status_clean(v.message);
        write_answer(out, uid, &v);
        status = adli_buf_check(out);
    }
    json_decref(review);
    return status;
}
