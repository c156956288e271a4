#include "train/table.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

void adli_table_fini(adli_table *table)
{
    free(table->entries);
    *table = (adli_table){0};
}

void adli_table_clear(adli_table *table)
{
    table->count = 0;
}

/* The first place whose key is not before `key`. */
static size_t place_of(const adli_table *table, const char *key)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(table->entries[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_at(const adli_table *table, size_t place, const char *key)
{
    return place < table->count && strcmp(table->entries[place].key, key) == 0;
}

adli_table_entry *adli_table_find(const adli_table *table, const char *key)
{
    size_t place = place_of(table, key);
    return is_at(table, place, key) ? &table->entries[place] : NULL;
}

adl_status adli_table_entry_of(adli_table *table, const char *key, adli_table_entry **out)
{
    size_t length = strlen(key);
    if (length < 1 || length > ADL_ACCUMULATOR_KEY_MAX)
        return adli_fail(ADL_EINVAL, "key \"%.80s\": must have 1 to %d bytes", key,
                         ADL_ACCUMULATOR_KEY_MAX);
    size_t place = place_of(table, key);
    if (!is_at(table, place, key)) {
        if (table->count >= ADL_ACCUMULATOR_KEYS)
            return adli_fail(ADL_EINVAL, "key \"%s\": there are %d already", key,
                             ADL_ACCUMULATOR_KEYS);
        if (adli_grow(&table->entries, &table->capacity, table->count + 1,
                      sizeof *table->entries) != 0)
            return adli_fail_memory("accumulator");
        adli_table_entry *at = &table->entries[place];
        memmove(at + 1, at, (table->count - place) * sizeof *at);
        *at = (adli_table_entry){.value = 0};
        memcpy(at->key, key, length + 1);
        table->count++;
    }
    *out = &table->entries[place];
    return ADL_OK;
}

void adli_table_remove(adli_table *table, const char *key)
{
    size_t place = place_of(table, key);
    if (!is_at(table, place, key))
        return;
    adli_table_entry *at = &table->entries[place];
    memmove(at, at + 1, (table->count - place - 1) * sizeof *at);
    table->count--;
}

adl_status adli_table_add(adli_table *to, const adli_table *from)
{
    for (size_t i = 0; i < from->count; i++) {
        adli_table_entry *entry;
        adl_status status = adli_table_entry_of(to, from->entries[i].key, &entry);
        if (status != ADL_OK)
            return status;
        entry->value += from->entries[i].value;
    }
    return ADL_OK;
}

adl_status adli_table_copy(adli_table *to, const adli_table *from)
{
    adli_table_clear(to);
    return adli_table_add(to, from);
}

void adli_table_pack(const adli_table *table, adli_buf *out)
{
    uint32_t count = (uint32_t)table->count;
    adli_buf_append(out, &count, sizeof count);
    for (size_t i = 0; i < table->count; i++) {
        const adli_table_entry *entry = &table->entries[i];
        uint32_t length = (uint32_t)strlen(entry->key);
        adli_buf_append(out, &length, sizeof length);
        adli_buf_append(out, entry->key, length);
        adli_buf_append(out, &entry->value, sizeof entry->value);
    }
}

adl_status adli_table_unpack(adli_table *table, const void *data, size_t length)
{
    const char *at = data, *end = at + length;
    uint32_t count, size;
    adli_table_clear(table);
    if (length < sizeof count)
        return adli_fail(ADL_ECORRUPT, "table: too short");
    memcpy(&count, at, sizeof count);
    at += sizeof count;
    for (uint32_t i = 0; i < count; i++) {
        char key[ADL_ACCUMULATOR_KEY_MAX + 1] = "";
        adli_table_entry *entry;
        if ((size_t)(end - at) < sizeof size)
            return adli_fail(ADL_ECORRUPT, "table: too short");
        memcpy(&size, at, sizeof size);
        at += sizeof size;
        if (size < 1 || size > ADL_ACCUMULATOR_KEY_MAX ||
            (size_t)(end - at) < size + sizeof entry->value || memchr(at, '\0', size))
            return adli_fail(ADL_ECORRUPT, "table: key %u is damaged", i);
        memcpy(key, at, size);
        adl_status status = adli_table_entry_of(table, key, &entry);
        if (status != ADL_OK)
            return status;
        if (table->count != i + 1)
            return adli_fail(ADL_ECORRUPT, "table: key %s twice", key);
        memcpy(&entry->value, at + size, sizeof entry->value);
        at += size + sizeof entry->value;
    }
    return at == end ? ADL_OK
                     : adli_fail(ADL_ECORRUPT, "table: %zu bytes too many", (size_t)(end - at));
}
