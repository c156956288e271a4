/* What replicas have added to their accumulators, on its way: a table for each that has something. Pure: bytes in, bytes
 * out. */
#ifndef ADLI_TRAIN_BUNDLE_H
#define ADLI_TRAIN_BUNDLE_H

#include "adaptdl/checkpoint.h"
#include "adaptdl/group.h"
#include "train/table.h"

typedef struct adli_bundle_item {
    char name[ADL_CHECKPOINT_NAME_MAX + 1]; /* of the accumulator */
    adli_table table;
} adli_bundle_item;

typedef struct adli_bundle {
    bool late; /* some of it was added after a step */
    adli_bundle_item *items;
    size_t count, capacity;
} adli_bundle;

void adli_bundle_fini(adli_bundle *bundle);
/* Adds what the bytes say. EPEER, ECORRUPT: they make no sense, and the bundle is unspecified. */
ADL_MUST adl_status adli_bundle_add(adli_bundle *bundle, const void *data, size_t length);

/* Bytes for it: begin, then put each table; adli_buf_check at the end. begin initializes the buffer. */
void adli_bundle_begin(adli_buf *out, bool late);
void adli_bundle_put(adli_buf *out, const char *name, const adli_table *table);
/* All of a bundle. */
void adli_bundle_pack(const adli_bundle *bundle, adli_buf *out);
/* An adl_reduce_fn. */
ADL_MUST adl_status adli_bundle_merge(void *unused, const void *a, size_t a_length, const void *b,
                                      size_t b_length, adl_reduced *out);

#endif
