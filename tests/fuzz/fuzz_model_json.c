/* Any bytes as a question to each of the models: an answer that is JSON and finite, or an error. */
#include "model_json/model_json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(adli_model_question *question, const char *line, size_t length)
{
    adli_buf out;
    json_t *answer = NULL;
    adli_buf_init(&out, 1 << 16);
    if (question(line, length, &out) == ADL_OK) {
        if (adli_json_parse(out.data, out.length, &answer) != ADL_OK ||
            strstr(out.data, "null") != NULL) /* how a number that is not finite is written */
            abort();
    } else if (out.length != 0 || adl_error()[0] == '\0') {
        abort();
    }
    json_decref(answer);
    adli_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data;
    ask(adli_model_evaluate, line, size);
    ask(adli_model_optimize, line, size);
    ask(adli_model_fit, line, size);
    ask(adli_model_speedup, line, size);
    return 0;
}
