/* A server that wants to break the plain HTTP client: its answer in two pieces, and a URL. */
#include "http/parse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_url(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), shown[40];
    adli_url url;
    memcpy(text, data, size);
    text[size] = '\0';
    if (adli_url_parse(text, &url) == ADL_OK) {
        adli_http_request request = {.method = "GET", .url = text};
        adli_buf head;
        if (url.path + url.path_length > text + strlen(text) || !*url.host)
            abort();
        adli_buf_init(&head, 1 << 20);
        if (adli_request_head(&url, &request, &head) != ADL_OK || !strstr(head.data, "\r\n\r\n"))
            abort();
        adli_buf_fini(&head);
    }
    adli_url_show(text, shown, sizeof shown);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static adli_answer answer;
    adli_buf body;
    int code = 0;
    if (size < 1)
        return 0;
    size_t cut = data[0] % size;
    read_url(data + 1, size - 1);
    adli_buf_init(&body, 256);
    adli_answer_init(&answer, &body, &code, cut & 1);
    adl_status status = adli_answer_feed(&answer, (const char *)data + 1, cut);
    if (status == ADL_OK)
        status = adli_answer_feed(&answer, (const char *)data + 1 + cut, size - 1 - cut);
    if (status == ADL_OK && !adli_answer_done(&answer))
        status = adli_answer_end(&answer);
    if (status == ADL_OK && (code < 200 || code > 999 || !body.data || body.length > 256))
        abort();
    adli_buf_fini(&body);
    return 0;
}
