/* Every byte of a checkpoint is covered by a checksum, and the checksums form a chain: the manifest's
 * own sum covers each file's header sum, and a header covers the sum of its payload. So one intact
 * manifest vouches for the whole checkpoint, and a file that belongs to another checkpoint is noticed
 * as surely as a flipped bit. */
#include "train/checkpoint_format.h"

#include "base/bytes.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

static const char state_magic[8] = {'A', 'D', 'L', 'S', 'T', 'A', 'T', 'E'};
static const char manifest_magic[8] = {'A', 'D', 'L', 'C', 'K', 'P', 'T', '\0'};

adli_ckpt_sum adli_ckpt_sum_of(const void *data, size_t length)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, length));
    adli_ckpt_sum sum;
    memcpy(sum.bytes, canonical.digest, sizeof sum.bytes);
    return sum;
}

static bool same_sum(const adli_ckpt_sum *a, const adli_ckpt_sum *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* ---- names ------------------------------------------------------------------------------------ */

int adli_ckpt_id_compare(adli_ckpt_id a, adli_ckpt_id b)
{
    if (a.generation != b.generation)
        return a.generation < b.generation ? -1 : 1;
    return (a.sequence > b.sequence) - (a.sequence < b.sequence);
}

void adli_ckpt_id_name(adli_ckpt_id id, char out[ADLI_CKPT_DIR_NAME_MAX])
{
    snprintf(out, ADLI_CKPT_DIR_NAME_MAX, "checkpoint-%llu.%llu", (unsigned long long)id.generation,
             (unsigned long long)id.sequence);
}

/* At most 18 digits, which is less than 2^63: the next sequence never overflows. */
static const char *parse_digits(const char *text, uint64_t *out)
{
    *out = 0;
    int digits = 0;
    for (; *text >= '0' && *text <= '9'; text++, digits++)
        if (digits < 18)
            *out = *out * 10 + (uint64_t)(*text - '0');
    return digits >= 1 && digits <= 18 ? text : NULL;
}

bool adli_ckpt_id_parse(const char *name, adli_ckpt_id *out)
{
    static const char prefix[] = "checkpoint-";
    char again[ADLI_CKPT_DIR_NAME_MAX];
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *at = parse_digits(name + sizeof prefix - 1, &out->generation);
    if (!at || *at != '.' || !(at = parse_digits(at + 1, &out->sequence)) || *at)
        return false;
    adli_ckpt_id_name(*out, again);
    return strcmp(name, again) == 0; /* no leading zeros: one name for each id */
}

adl_status adli_ckpt_name_check(const char *name)
{
    size_t length = strlen(name);
    if (length == 0)
        return adli_fail(ADL_EINVAL, "state name is empty");
    if (length > ADL_CHECKPOINT_NAME_MAX)
        return adli_fail(ADL_EINVAL, "state name of %zu bytes is longer than %d: \"%.32s...\"",
                         length, ADL_CHECKPOINT_NAME_MAX, name);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return adli_fail(ADL_EINVAL, "state name has the control character %d at %zu",
                             (unsigned char)name[i], i);
    if (strchr(name, '/') || strstr(name, ".."))
        return adli_fail(ADL_EINVAL, "state name \"%s\" has a slash or \"..\"", name);
    return ADL_OK;
}

void adli_ckpt_file_name(const char *name, char out[ADLI_CKPT_FILE_NAME_MAX])
{
    static const char hex[] = "0123456789ABCDEF";
    char *to = out;
    for (const char *at = name; *at; at++) {
        unsigned char c = (unsigned char)*at;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '-' || (c == '.' && at != name);
        if (plain) {
            *to++ = (char)c;
        } else {
            *to++ = '%';
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    memcpy(to, ".state", sizeof ".state");
}
_Static_assert(3 * ADL_CHECKPOINT_NAME_MAX + sizeof ".state" <= ADLI_CKPT_FILE_NAME_MAX,
               "an escaped name fits");

/* ---- one state's file ------------------------------------------------------------------------- */

size_t adli_ckpt_header_bytes(const char *name)
{
    return ADLI_CKPT_HEADER_FIXED + strlen(name) + ADLI_CKPT_SUM_BYTES;
}

void adli_ckpt_header_encode(adli_ckpt_header *header, unsigned char *out)
{
    size_t name_length = strlen(header->name);
    unsigned char *at = adli_put_bytes(out, state_magic, sizeof state_magic);
    at = adli_put(at, ADLI_CKPT_VERSION, 4);
    at = adli_put(at, (uint64_t)header->codec, 4);
    at = adli_put(at, name_length, 4);
    at = adli_put(at, 0, 4);
    at = adli_put(at, header->raw_length, 8);
    at = adli_put(at, header->stored_length, 8);
    at = adli_put_bytes(at, header->raw_sum.bytes, ADLI_CKPT_SUM_BYTES);
    at = adli_put_bytes(at, header->stored_sum.bytes, ADLI_CKPT_SUM_BYTES);
    at = adli_put_bytes(at, header->name, name_length);
    header->header_sum = adli_ckpt_sum_of(out, (size_t)(at - out));
    adli_put_bytes(at, header->header_sum.bytes, ADLI_CKPT_SUM_BYTES);
}

static adl_status parse_header(const unsigned char *file, size_t length, adli_ckpt_header *out)
{
    adl_source source = {.at = file, .remaining = length};
    char magic[8];
    uint32_t version, codec, name_length, reserved;
    *out = (adli_ckpt_header){0};
    if (adl_source_read(&source, magic, sizeof magic) != ADL_OK ||
        adl_source_u32(&source, &version) != ADL_OK || adl_source_u32(&source, &codec) != ADL_OK ||
        adl_source_u32(&source, &name_length) != ADL_OK ||
        adl_source_u32(&source, &reserved) != ADL_OK ||
        adl_source_u64(&source, &out->raw_length) != ADL_OK ||
        adl_source_u64(&source, &out->stored_length) != ADL_OK ||
        adl_source_read(&source, out->raw_sum.bytes, ADLI_CKPT_SUM_BYTES) != ADL_OK ||
        adl_source_read(&source, out->stored_sum.bytes, ADLI_CKPT_SUM_BYTES) != ADL_OK)
        return adli_fail(ADL_ECORRUPT, "truncated header of %zu bytes", length);
    if (memcmp(magic, state_magic, sizeof magic) != 0)
        return adli_fail(ADL_ECORRUPT, "not a state file (wrong magic)");
    if (name_length > ADL_CHECKPOINT_NAME_MAX)
        return adli_fail(ADL_ECORRUPT, "name of %u bytes in the header", name_length);
    if (adl_source_read(&source, out->name, name_length) != ADL_OK ||
        adl_source_read(&source, out->header_sum.bytes, ADLI_CKPT_SUM_BYTES) != ADL_OK)
        return adli_fail(ADL_ECORRUPT, "truncated header of %zu bytes", length);
    adli_ckpt_sum sum = adli_ckpt_sum_of(file, ADLI_CKPT_HEADER_FIXED + name_length);
    if (!same_sum(&sum, &out->header_sum))
        return adli_fail(ADL_ECORRUPT, "checksum of the header is wrong");
    if (version != ADLI_CKPT_VERSION || codec > ADLI_CKPT_ZSTD || reserved != 0 ||
        strlen(out->name) != name_length || adli_ckpt_name_check(out->name) != ADL_OK)
        return adli_fail(ADL_ECORRUPT, "header has impossible fields");
    out->codec = (adli_ckpt_codec)codec;
    if (out->stored_length != source.remaining)
        return adli_fail(ADL_ECORRUPT, "%zu bytes of payload where the header says %llu",
                         source.remaining, (unsigned long long)out->stored_length);
    if (out->codec == ADLI_CKPT_RAW &&
        (out->raw_length != out->stored_length || !same_sum(&out->raw_sum, &out->stored_sum)))
        return adli_fail(ADL_ECORRUPT, "header has impossible fields");
    return ADL_OK;
}

static adl_status decompress(const adli_ckpt_header *header, const unsigned char *payload,
                             adli_ckpt_value *out)
{
    unsigned char *raw = adli_calloc((size_t)header->raw_length, 1);
    if (!raw)
        return adli_fail_memory("a state that is read");
    size_t got =
        ZSTD_decompress(raw, (size_t)header->raw_length, payload, (size_t)header->stored_length);
    adl_status status = ADL_OK;
    if (ZSTD_isError(got))
        status = adli_fail(ADL_ECORRUPT, "decompression: %s", ZSTD_getErrorName(got));
    else if (got != header->raw_length)
        status = adli_fail(ADL_ECORRUPT, "%zu bytes after decompression instead of %llu", got,
                           (unsigned long long)header->raw_length);
    if (status == ADL_OK) {
        adli_ckpt_sum sum = adli_ckpt_sum_of(raw, got);
        if (!same_sum(&sum, &header->raw_sum))
            status = adli_fail(ADL_ECORRUPT, "checksum after decompression is wrong");
    }
    if (status != ADL_OK) {
        free(raw);
        return status;
    }
    out->storage = raw;
    out->data = raw;
    return ADL_OK;
}

adl_status adli_ckpt_state_parse_take(unsigned char *file, size_t length, uint64_t max_bytes,
                                      adli_ckpt_header *header, adli_ckpt_value *out)
{
    *out = (adli_ckpt_value){0};
    adl_status status = parse_header(file, length, header);
    if (status != ADL_OK)
        return status;
    const unsigned char *payload = file + adli_ckpt_header_bytes(header->name);
    adli_ckpt_sum sum = adli_ckpt_sum_of(payload, (size_t)header->stored_length);
    if (!same_sum(&sum, &header->stored_sum))
        return adli_fail(ADL_ECORRUPT, "checksum of the payload is wrong");
    if (header->raw_length > max_bytes || header->raw_length > SIZE_MAX)
        return adli_fail(ADL_EINVAL, "state of %llu bytes is larger than the limit of %llu",
                         (unsigned long long)header->raw_length, (unsigned long long)max_bytes);
    if (header->codec == ADLI_CKPT_RAW) {
        out->storage = file;
        out->data = payload;
    } else {
        if ((status = decompress(header, payload, out)) != ADL_OK)
            return status;
        free(file);
    }
    out->length = (size_t)header->raw_length;
    memcpy(out->name, header->name, sizeof out->name);
    return ADL_OK;
}

void adli_ckpt_value_fini(adli_ckpt_value *value)
{
    free(value->storage);
    *value = (adli_ckpt_value){0};
}

/* ---- the manifest ----------------------------------------------------------------------------- */

/* The manifest's sum: over the 24 bytes before it and the body after it. */
static adl_status manifest_sum(const void *prefix, const void *body, size_t length,
                               adli_ckpt_sum *out)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return adli_fail_memory("a checksum");
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, prefix, ADLI_CKPT_MANIFEST_PREFIX - ADLI_CKPT_SUM_BYTES);
    XXH3_128bits_update(state, body, length);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(out->bytes, canonical.digest, sizeof out->bytes);
    XXH3_freeState(state);
    return ADL_OK;
}

adl_status adli_ckpt_manifest_encode(const adli_ckpt_manifest *manifest, adl_sink *sink)
{
    size_t start = sink->length;
    void *prefix;
    adl_status status = adl_sink_reserve(sink, ADLI_CKPT_MANIFEST_PREFIX, &prefix);
    if (status != ADL_OK)
        return status;
    /* The sink remembers the first failure, which the last call reports. */
    adl_sink_u64(sink, manifest->id.generation);
    adl_sink_u64(sink, manifest->id.sequence);
    adl_sink_text(sink, manifest->program);
    status = adl_sink_u32(sink, (uint32_t)manifest->count);
    for (size_t i = 0; i < manifest->count; i++) {
        const adli_ckpt_entry *entry = &manifest->entries[i];
        adl_sink_text(sink, entry->name);
        adl_sink_u64(sink, entry->file_bytes);
        status = adl_sink_write(sink, entry->header_sum.bytes, ADLI_CKPT_SUM_BYTES);
    }
    if (status != ADL_OK)
        return status;
    unsigned char *at = sink->data + start, *body = at + ADLI_CKPT_MANIFEST_PREFIX;
    size_t body_length = sink->length - start - ADLI_CKPT_MANIFEST_PREFIX;
    at = adli_put_bytes(at, manifest_magic, sizeof manifest_magic);
    at = adli_put(at, ADLI_CKPT_VERSION, 4);
    at = adli_put(at, 0, 4);
    at = adli_put(at, body_length, 8);
    adli_ckpt_sum sum;
    if ((status = manifest_sum(sink->data + start, body, body_length, &sum)) != ADL_OK)
        return status;
    adli_put_bytes(at, sum.bytes, sizeof sum.bytes);
    return ADL_OK;
}

/* The part that no format version changes: magic, version, lengths, checksum. Leaves source at the
 * body. */
static adl_status parse_prefix(adl_source *source)
{
    const unsigned char *start = source->at;
    size_t length = source->remaining;
    char magic[8];
    uint32_t version, reserved;
    uint64_t body_length;
    adli_ckpt_sum stored, sum;
    if (adl_source_read(source, magic, sizeof magic) != ADL_OK ||
        adl_source_u32(source, &version) != ADL_OK || adl_source_u32(source, &reserved) != ADL_OK ||
        adl_source_u64(source, &body_length) != ADL_OK ||
        adl_source_read(source, stored.bytes, sizeof stored.bytes) != ADL_OK)
        return adli_fail(ADL_ECORRUPT, "truncated manifest of %zu bytes", length);
    if (memcmp(magic, manifest_magic, sizeof magic) != 0)
        return adli_fail(ADL_ECORRUPT, "not a manifest (wrong magic)");
    if (body_length != source->remaining)
        return adli_fail(ADL_ECORRUPT, "manifest of %zu bytes where %llu are announced",
                         source->remaining, (unsigned long long)body_length);
    adl_status status = manifest_sum(start, source->at, source->remaining, &sum);
    if (status != ADL_OK)
        return status;
    if (!same_sum(&sum, &stored))
        return adli_fail(ADL_ECORRUPT, "checksum of the manifest is wrong");
    if (version != ADLI_CKPT_VERSION)
        return adli_fail(ADL_EINVAL, "format version %u, this library reads version %d", version,
                         ADLI_CKPT_VERSION);
    if (reserved != 0)
        return adli_fail(ADL_ECORRUPT, "manifest has impossible fields");
    return ADL_OK;
}

static adl_status parse_entries(adl_source *source, adli_ckpt_manifest *out)
{
    enum { ENTRY_BYTES_MIN = 4 + 1 + 8 + ADLI_CKPT_SUM_BYTES };
    uint32_t count;
    adl_status status = adl_source_u32(source, &count);
    if (status != ADL_OK)
        return status;
    if (count > ADLI_CKPT_STATES_MAX || count > source->remaining / ENTRY_BYTES_MIN)
        return adli_fail(ADL_ECORRUPT, "%u states in %zu bytes of manifest", count,
                         source->remaining);
    if (!(out->entries = adli_calloc(count, sizeof *out->entries)))
        return adli_fail_memory("the manifest");
    for (; out->count < count; out->count++) {
        adli_ckpt_entry *entry = &out->entries[out->count];
        if ((status = adl_source_text(source, entry->name, sizeof entry->name)) != ADL_OK ||
            (status = adl_source_u64(source, &entry->file_bytes)) != ADL_OK ||
            (status = adl_source_read(source, entry->header_sum.bytes, ADLI_CKPT_SUM_BYTES)))
            return status;
        if (adli_ckpt_name_check(entry->name) != ADL_OK ||
            (out->count && strcmp(entry[-1].name, entry->name) >= 0))
            return adli_fail(ADL_ECORRUPT, "manifest has impossible or repeated names");
    }
    return ADL_OK;
}

adl_status adli_ckpt_manifest_parse(const void *data, size_t length, adli_ckpt_manifest *out)
{
    *out = (adli_ckpt_manifest){0};
    adl_source source = {.at = data, .remaining = length};
    adl_status status = parse_prefix(&source);
    if (status != ADL_OK)
        return status;
    if ((status = adl_source_u64(&source, &out->id.generation)) != ADL_OK ||
        (status = adl_source_u64(&source, &out->id.sequence)) != ADL_OK ||
        (status = adl_source_text(&source, out->program, sizeof out->program)) != ADL_OK ||
        (status = parse_entries(&source, out)) != ADL_OK)
        return adli_wrap(status, "manifest");
    if (source.remaining)
        return adli_fail(ADL_ECORRUPT, "%zu bytes after the manifest", source.remaining);
    return ADL_OK;
}

void adli_ckpt_manifest_fini(adli_ckpt_manifest *manifest)
{
    free(manifest->entries);
    *manifest = (adli_ckpt_manifest){0};
}
