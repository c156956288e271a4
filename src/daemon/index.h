/* Finds things by a text. The links are part of the things, so that adding one cannot fail. */
#ifndef ADLI_INDEX_H
#define ADLI_INDEX_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct adli_index_link {
    struct adli_index_link *next;
    uint64_t hash;
    const char *key; /* borrowed */
    void *value;
} adli_index_link;

typedef struct adli_index {
    adli_index_link **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
} adli_index;

ADL_MUST adl_status adli_index_init(adli_index *index);
void adli_index_fini(adli_index *index);
/* key and value must live as long as the link is in the index. Keys must differ. */
void adli_index_add(adli_index *index, adli_index_link *link, const char *key, void *value);
void adli_index_remove(adli_index *index, adli_index_link *link);
/* NULL: there is none. */
void *adli_index_find(const adli_index *index, const char *key);

#endif
