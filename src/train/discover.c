/* Finding rank 0 through the supervisor: GET {supervisor}/discover/{namespace}/{name}/{group} waits at
 * the server until the job's replicas have addresses and answers with their list, in rank order.
 * 408 means "not yet, ask again". */
#include "train/context.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/http.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_TIMEOUT_MS = 60000, ANSWER_MAX = 1 << 20, RETRY_FIRST_MS = 20, RETRY_MAX_MS = 1000 };

static adl_status first_address(const adli_buf *answer, int replicas, char **address)
{
    json_t *list = NULL;
    adl_status status = adli_json_parse(answer->data, answer->length, &list);
    if (status != ADL_OK)
        return status;
    const char *text = json_string_value(json_array_get(list, 0));
    if (!json_is_array(list) || (int)json_array_size(list) != replicas || !text || !*text)
        status = adli_fail(ADL_EINVAL, "expected a list of %d addresses", replicas);
    else if (!(*address = adli_strdup(text)))
        status = adli_fail_memory("address");
    json_decref(list);
    return status;
}

static void pause_ms(int ms)
{
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* One question; *again when the answer was "not yet", or there was nobody to answer: a supervisor that
 * is being restarted must not fail the jobs that start meanwhile. */
static adl_status ask(adl_context *ctx, adli_http *http, const char *url, adli_buf *answer,
                      bool *again, char **address)
{
    adli_http_request request = {.method = "GET",
                                 .url = url,
                                 .timeout_ms = POLL_TIMEOUT_MS,
                                 .cancelled = adli_give_up,
                                 .cancel_context = ctx};
    int code;
    adl_status status = adli_http_exchange(http, &request, answer, &code);
    *again = status == ADL_ENET || status == ADL_ETIMEOUT ||
             (status == ADL_OK && (code == 408 || code >= 500));
    if (status != ADL_OK)
        return status;
    if (code != 200)
        return adli_fail(ADL_ENET, "GET %s: the supervisor answered %d", url, code);
    status = first_address(answer, ctx->world.replicas, address);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "GET %s", url);
}

adl_status adli_discover(adl_context *ctx, char **address)
{
    adli_http *http = NULL;
    adli_buf url, answer;
    *address = NULL;
    adli_buf_init(&url, 4096);
    adli_buf_init(&answer, ANSWER_MAX);
    const char *base = ctx->env.supervisor_url;
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/')
        length--;
    adli_buf_printf(&url, "%.*s/discover/%s/%d", (int)length, base, ctx->env.job_id,
                    ctx->env.restarts);
    adl_status status = adli_buf_check(&url);
    if (status == ADL_OK)
        status = adli_http_new(&http);
    double give_up_s = adli_monotonic_s() + ctx->options.connect_timeout_ms / 1000.0;
    bool again = status == ADL_OK;
    for (int wait_ms = RETRY_FIRST_MS; again;) {
        status = ask(ctx, http, url.data, &answer, &again, address);
        if (!again)
            break;
        if (adli_give_up(ctx))
            status = adli_fail(ADL_EINTR, "interrupted while looking for rank 0");
        else if (adli_monotonic_s() >= give_up_s)
            status = adli_wrap(ADL_ETIMEOUT, "rank 0 was not found within %d s",
                               ctx->options.connect_timeout_ms / 1000);
        else {
            pause_ms(wait_ms);
            wait_ms = wait_ms * 2 < RETRY_MAX_MS ? wait_ms * 2 : RETRY_MAX_MS;
            continue;
        }
        break;
    }
    adli_http_free(http);
    adli_buf_fini(&url);
    adli_buf_fini(&answer);
    return status;
}
