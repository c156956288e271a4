#include "base/shared.h"

#include "base/mem.h"

#include <stdlib.h>

adli_shared *adli_shared_take(adli_buf *text)
{
    adli_shared *made = adli_calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->data = text->data;
    made->length = text->length;
    atomic_init(&made->holders, 1);
    *text = (adli_buf){.max = text->max};
    return made;
}

adli_shared *adli_shared_hold(adli_shared *text)
{
    if (text)
        atomic_fetch_add(&text->holders, 1);
    return text;
}

void adli_shared_drop(adli_shared *text)
{
    if (!text || atomic_fetch_sub(&text->holders, 1) > 1)
        return;
    free(text->data);
    free(text);
}
