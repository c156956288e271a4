/* A table of named numbers, sorted by name: what accumulators add up, exchange and save. */
#ifndef ADLI_TRAIN_TABLE_H
#define ADLI_TRAIN_TABLE_H

#include "adaptdl/accumulator.h"
#include "base/buf.h"

typedef struct adli_table_entry {
    char key[ADL_ACCUMULATOR_KEY_MAX + 1];
    double value;
} adli_table_entry;

typedef struct adli_table {
    adli_table_entry *entries; /* sorted by key */
    size_t count, capacity;
} adli_table;

void adli_table_fini(adli_table *table);
void adli_table_clear(adli_table *table);
/* NULL when there is none. */
adli_table_entry *adli_table_find(const adli_table *table, const char *key);
/* The entry of that key, made with 0 if need be. EINVAL: key empty or too long. */
ADL_MUST adl_status adli_table_entry_of(adli_table *table, const char *key, adli_table_entry **out);
void adli_table_remove(adli_table *table, const char *key);
/* to[key] += from[key] for every key of from. */
ADL_MUST adl_status adli_table_add(adli_table *to, const adli_table *from);
ADL_MUST adl_status adli_table_copy(adli_table *to, const adli_table *from);

/* As bytes: u32 count, then for each u32 length, key, f64. unpack replaces the table and takes
 * nothing on trust; it returns ECORRUPT and an unspecified table for bytes that pack cannot make. */
void adli_table_pack(const adli_table *table, adli_buf *out);
ADL_MUST adl_status adli_table_unpack(adli_table *table, const void *data, size_t length);

#endif
