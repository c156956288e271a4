/* Any bytes as a saved pool: refused with a text, or read, and then what is written reads back the same. */
#include "sched/pool.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(adli_pool *pool, adli_buf *text)
{
    adli_pool_member *member;
    adl_speedup *model;
    if (adli_pool_join(pool, "a", &member) != ADL_OK || adli_pool_save(pool, text) != ADL_OK)
        abort();
    if (adli_pool_version(pool, member) > 0 &&
        adli_pool_model(pool, member, 2, 16, &model) == ADL_OK) {
        double rate = adl_speedup_rate(model, adl_shape_of(1, 1));
        if (!(rate >= 0))
            abort();
        adl_speedup_free(model);
    }
    adli_pool_leave(pool, member);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_pool *pool, *again;
    adli_buf text;
    adli_buf_init(&text, 64 << 20);
    if (adli_pool_new(true, &pool) != ADL_OK || adli_pool_new(true, &again) != ADL_OK)
        abort();
    if (adli_pool_load(pool, (const char *)data, size) == ADL_OK) {
        use(pool, &text);
        if (adli_pool_load(again, text.data, text.length) != ADL_OK)
            abort();
    } else if (adl_error()[0] == '\0')
        abort();
    adli_buf_fini(&text);
    adli_pool_free(again);
    adli_pool_free(pool);
    return 0;
}
