/* Layout: u8 late, then for each accumulator u32 length, name, u32 length, table (table.h). */
#include "train/bundle.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { BUNDLE_MAX = 64 << 20 };

void adli_bundle_fini(adli_bundle *self)
{
    for (size_t i = 0; i < self->count; i++)
        adli_table_fini(&self->items[i].table);
    free(self->items);
}

static adl_status item_of(adli_bundle *self, const char *name, size_t length,
                          adli_bundle_item **out)
{
    for (size_t i = 0; i < self->count; i++)
        if (strlen(self->items[i].name) == length &&
            memcmp(self->items[i].name, name, length) == 0) {
            *out = &self->items[i];
            return ADL_OK;
        }
    if (adli_grow(&self->items, &self->capacity, self->count + 1, sizeof *self->items) != 0)
        return adli_fail_memory("sums");
    *out = &self->items[self->count++];
    **out = (adli_bundle_item){0};
    memcpy((*out)->name, name, length);
    return ADL_OK;
}

void adli_bundle_put(adli_buf *out, const char *name, const adli_table *table)
{
    uint32_t length = (uint32_t)strlen(name), size = 0;
    adli_buf_append(out, &length, sizeof length);
    adli_buf_append(out, name, length);
    size_t place = out->length;
    adli_buf_append(out, &size, sizeof size);
    adli_table_pack(table, out);
    if (adli_buf_check(out) != ADL_OK)
        return; /* whoever sends it says so */
    size = (uint32_t)(out->length - place - sizeof size);
    memcpy(out->data + place, &size, sizeof size);
}

/* Adds what the bytes say. */
adl_status adli_bundle_add(adli_bundle *self, const void *data, size_t length)
{
    adli_reader reader = adli_reader_over(data, length);
    adli_table more = {0};
    adl_status status = ADL_OK;
    self->late |= adli_get(&reader, 1) != 0;
    while (status == ADL_OK && !reader.bad && adli_reader_left(&reader) > 0) {
        adli_bundle_item *to = NULL;
        size_t name_length = adli_get(&reader, 4);
        const char *name = name_length > 0 && name_length <= ADL_CHECKPOINT_NAME_MAX
                               ? (const char *)adli_get_bytes(&reader, name_length)
                               : NULL;
        size_t size = adli_get(&reader, 4);
        const void *table = adli_get_bytes(&reader, size);
        if (name && table && !memchr(name, '\0', name_length))
            status = adli_table_unpack(&more, table, size);
        else
            reader.bad = true;
        if (reader.bad)
            break;
        if (status == ADL_OK)
            status = item_of(self, name, name_length, &to);
        if (status == ADL_OK)
            status = adli_table_add(&to->table, &more);
    }
    adli_table_fini(&more);
    if (status == ADL_OK && reader.bad)
        status = adli_fail(ADL_EPEER, "sums of %zu bytes that make no sense", length);
    return status;
}

void adli_bundle_begin(adli_buf *out, bool late)
{
    uint8_t first = late;
    adli_buf_init(out, BUNDLE_MAX);
    adli_buf_append(out, &first, 1);
}

void adli_bundle_pack(const adli_bundle *self, adli_buf *out)
{
    adli_bundle_begin(out, self->late);
    for (size_t i = 0; i < self->count; i++)
        adli_bundle_put(out, self->items[i].name, &self->items[i].table);
}

adl_status adli_bundle_merge(void *unused, const void *a, size_t a_length, const void *b,
                             size_t b_length, adl_reduced *out)
{
    (void)unused;
    adli_bundle sum = {0};
    adli_buf packed;
    adl_status status = adli_bundle_add(&sum, a, a_length);
    if (status == ADL_OK)
        status = adli_bundle_add(&sum, b, b_length);
    adli_bundle_pack(&sum, &packed);
    if (status == ADL_OK)
        status = adli_buf_check(&packed);
    if (status == ADL_OK)
        status = adl_reduced_set(out, packed.data, packed.length);
    adli_buf_fini(&packed);
    adli_bundle_fini(&sum);
    return status;
}
