/* Any body as an AdmissionReview, at an API server that does not answer: the answer is JSON and says whose it is. */
#include "base/json.h"
#include "daemon/webhook.h"
#include "kube/config.h"
#include "kube/kube.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char server[] = "http://127.0.0.1:1", ns[] = "default", none[] = "";
    static adli_kube *kube;
    adli_kube_config config = {.server = server,
                               .ca = none,
                               .certificate = none,
                               .key = none,
                               .token = none,
                               .token_file = none,
                               .ns = ns};
    adli_buf out;
    if (!kube && adli_kube_open(&config, &kube) != ADL_OK)
        abort();
    adli_buf_init(&out, 1 << 20);
    if (adli_webhook_review(kube, (const char *)data, size, &out) == ADL_OK) {
        json_t *answer;
        if (adli_json_parse(out.data, out.length, &answer) != ADL_OK)
            abort();
        const json_t *response = json_object_get(answer, "response");
        if (!json_is_string(json_object_get(response, "uid")) ||
            !json_is_boolean(json_object_get(response, "allowed")))
            abort();
        json_decref(answer);
    }
    adli_buf_fini(&out);
    return 0;
}
