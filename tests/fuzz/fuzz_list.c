/* What a client may say about a list of jobs, from arbitrary bytes, to a core with a few jobs. Lines: fields, continue,
 * label, namespace, Accept-Encoding; the first byte is the limit. Whatever is taken gives JSON with no more jobs than
 * were asked for, and what its "continue" says is taken again. */
#define CORE_WORLD_BENCH
#include "core_world.h"

#include "httpd/impl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 5, JOBS = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static world the_world;

static void close_it(void)
{
    close_world(&the_world);
}

static world *a_world(void)
{
    world *w = &the_world;
    if (w->core)
        return w;
    atexit(close_it);
    if (open_world(w, 1, 1) != ADL_OK)
        abort();
    for (int i = 0; i < JOBS; i++) {
        char name[16];
        snprintf(name, sizeof name, "job-%d", i);
        if (submit(w, name, "") != ADL_OK)
            abort();
    }
    return w;
}

static void check_answer(world *w, const adli_list_query *query)
{
    json_t *root = NULL;
    int64_t after;
    if (adli_json_parse(w->out.data, w->out.length, &root) != ADL_OK)
        abort();
    size_t count = json_array_size(json_object_get(root, "items"));
    if (count > JOBS || (query->limit > 0 && count > (size_t)query->limit))
        abort();
    const char *more = json_string_value(json_object_get(root, "continue"));
    if (more && adli_list_continue(w->core, more, &after) != ADL_OK)
        abort();
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world *w = a_world();
    char *text = size > 0 ? malloc(size) : NULL, *rest = text;
    const char *lines[LINES];
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    for (int i = 0; i < LINES; i++) {
        const char *line = rest ? strsep(&rest, "\n") : "";
        lines[i] = *line ? line : NULL;
    }
    adli_list_query query = {
        .fields = lines[0], .label = lines[2], .ns = lines[3], .limit = data[0] % (JOBS + 2)};
    if (lines[1] && adli_list_continue(w->core, lines[1], &query.after) != ADL_OK)
        query.after = 0;
    adli_accepts_gzip(lines[4]);
    adli_buf_clear(&w->out);
    if (adli_core_jobs(w->core, &query, &w->out) == ADL_OK)
        check_answer(w, &query);
    else if (adl_error()[0] == '\0')
        abort();
    free(text);
    return 0;
}
