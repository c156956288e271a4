/* Worlds as the store has them, then the lines of PUT /world that members say: what is read makes sense, is written and
 * read again as it is, and no line leads outside of it. The first line is JSON; of the others the first letter says whose
 * it is, "." lets the scheduler act. */
#include "base/buf.h"
#include "sched/worlds.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const nodes[] = {"a", "b", "c"};

static const char *name_of(void *user, int node)
{
    (void)user;
    return nodes[node];
}

static int node_of(void *user, const char *name)
{
    (void)user;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, nodes[i]) == 0)
            return i;
    return -1;
}

static const adli_world_names names = {name_of, node_of, NULL};

static void check(const adli_worlds *worlds)
{
    adli_buf text, again;
    adli_worlds copy;
    if (worlds->last < worlds->generation)
        abort();
    for (int i = 0; i < worlds->next_count; i++)
        if (!adli_worlds_find(worlds, worlds->next[i]))
            abort();
    adli_buf_init(&text, 64 << 20);
    adli_buf_init(&again, 64 << 20);
    adli_worlds_write(worlds, &names, &text);
    adli_worlds_init(&copy);
    if (adli_buf_check(&text) != ADL_OK || adli_worlds_read(text.data, &names, &copy) != ADL_OK)
        abort();
    adli_worlds_write(&copy, &names, &again);
    if (strcmp(text.data, again.data) != 0)
        abort();
    adli_worlds_fini(&copy);
    adli_buf_fini(&text);
    adli_buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_worlds worlds;
    char *text = calloc(size + 1, 1), *save = NULL;
    double now_s = 1;
    if (!text)
        return 0;
    memcpy(text, data, size);
    char *line = strtok_r(text, "\n", &save);
    adli_worlds_init(&worlds);
    if (line && adli_worlds_read(line, &names, &worlds) == ADL_OK) {
        check(&worlds);
        worlds.running = true;
        while ((line = strtok_r(NULL, "\n", &save))) {
            if (*line == '.')
                adli_worlds_act(&worlds, now_s += 7);
            else if (worlds.count > 0)
                adli_worlds_hear(&worlds, worlds.all[(unsigned char)*line % worlds.count], line + 1,
                                 now_s);
        }
        adli_worlds_act(&worlds, now_s + 1000);
    }
    adli_worlds_fini(&worlds);
    free(text);
    return 0;
}
