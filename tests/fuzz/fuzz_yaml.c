/* Documents from arbitrary bytes: any input gives a value with lines or an error, and a value that
 * was read is written as YAML that reads back equal. What begins with a brace is tried as JSON. */
#include "doc/yaml.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_marks(const json_t *value, const adli_mark *mark)
{
    size_t count = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    if (mark->line < 1 || mark->column < 1 || mark->count != count)
        abort();
    void *iter = json_object_iter((json_t *)value);
    for (size_t i = 0; i < count; i++) {
        bool object = json_is_object(value);
        check_marks(object ? json_object_iter_value(iter) : json_array_get(value, i),
                    &mark->child[i]);
        iter = json_object_iter_next((json_t *)value, iter);
    }
}

static void check_round_trip(const json_t *value)
{
    adli_buf text;
    adli_doc again;
    adli_buf_init(&text, (size_t)64 << 20);
    adl_status status = adli_yaml_write(value, &text);
    if (status != ADL_OK)
        abort();
    status = adli_doc_parse("again", text.data, text.length, ADLI_DOC_YAML, &again);
    if (status != ADL_OK || !json_equal(again.root, value))
        abort();
    adli_doc_fini(&again);
    adli_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_doc doc;
    if (size == 0)
        return 0;
    adli_doc_format format = data[0] == '{' ? ADLI_DOC_JSON : ADLI_DOC_YAML;
    const char *text = (const char *)data;
    adl_status status = adli_doc_parse("fuzz", text, size, format, &doc);
    if (status == ADL_OK) {
        check_marks(doc.root, &doc.mark);
        check_round_trip(doc.root);
    } else if (strncmp(adl_error(), "fuzz:", 5) != 0 || strchr(adl_error(), '\n')) {
        abort(); /* every error names the place, on one line */
    }
    adli_doc_fini(&doc);
    return 0;
}
