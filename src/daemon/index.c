#include "daemon/index.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_BUCKETS = 64 };

adl_status adli_index_init(adli_index *index)
{
    *index = (adli_index){.bucket_count = FIRST_BUCKETS};
    index->buckets = adli_calloc(FIRST_BUCKETS, sizeof *index->buckets);
    return index->buckets ? ADL_OK : adli_fail_memory("index");
}

void adli_index_fini(adli_index *index)
{
    free(index->buckets);
    *index = (adli_index){0};
}

static adli_index_link **bucket_of(const adli_index *index, uint64_t hash)
{
    return &index->buckets[hash & (index->bucket_count - 1)];
}

/* Without memory the chains grow instead. */
static void widen(adli_index *index)
{
    adli_index wide = {.bucket_count = 2 * index->bucket_count, .count = index->count};
    wide.buckets = adli_calloc(wide.bucket_count, sizeof *wide.buckets);
    if (!wide.buckets)
        return;
    for (size_t i = 0; i < index->bucket_count; i++)
        for (adli_index_link *link = index->buckets[i], *next; link; link = next) {
            adli_index_link **to = bucket_of(&wide, link->hash);
            next = link->next;
            link->next = *to;
            *to = link;
        }
    free(index->buckets);
    *index = wide;
}

void adli_index_add(adli_index *index, adli_index_link *link, const char *key, void *value)
{
    if (index->count >= index->bucket_count)
        widen(index);
    *link = (adli_index_link){.hash = XXH3_64bits(key, strlen(key)), .key = key, .value = value};
    adli_index_link **to = bucket_of(index, link->hash);
    link->next = *to;
    *to = link;
    index->count++;
}

void adli_index_remove(adli_index *index, adli_index_link *link)
{
    for (adli_index_link **at = bucket_of(index, link->hash); *at; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            index->count--;
            return;
        }
}

void *adli_index_find(const adli_index *index, const char *key)
{
    uint64_t hash = XXH3_64bits(key, strlen(key));
    for (const adli_index_link *link = *bucket_of(index, hash); link; link = link->next)
        if (link->hash == hash && strcmp(link->key, key) == 0)
            return link->value;
    return NULL;
}
