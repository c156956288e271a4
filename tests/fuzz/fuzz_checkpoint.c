/* The checkpoint reader over arbitrary bytes. No fuzzer guesses a 128-bit checksum, so with bit 1 of
 * the first byte the checksums are made right first, and what lies behind them is reached. Bit 0: a
 * manifest, otherwise a state's file. */
#include "train/checkpoint_format.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { MAX_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What load callbacks do with a value. */
static void read_fields(const unsigned char *data, size_t length)
{
    adl_source source = {.at = data, .remaining = length};
    uint32_t small;
    uint64_t large;
    double number;
    char text[16];
    const void *view;
    adl_status status = ADL_OK;
    while (status == ADL_OK && source.remaining) {
        switch (*source.at & 7) {
        case 0:
            status = adl_source_u32(&source, &small);
            break;
        case 1:
            status = adl_source_u64(&source, &large);
            break;
        case 2:
            status = adl_source_f64(&source, &number);
            break;
        case 3:
            status = adl_source_text(&source, text, sizeof text);
            break;
        default:
            status = adl_source_view(&source, *source.at, &view);
            break;
        }
    }
}

static void set_sum(unsigned char *at, const void *data, size_t length)
{
    adli_ckpt_sum sum = adli_ckpt_sum_of(data, length);
    memcpy(at, sum.bytes, sizeof sum.bytes);
}

static void fuzz_manifest(unsigned char *file, size_t length, bool mend)
{
    if (mend && length >= ADLI_CKPT_MANIFEST_PREFIX) {
        uint64_t body = length - ADLI_CKPT_MANIFEST_PREFIX;
        memcpy(file, "ADLCKPT", 8);
        memcpy(file + 16, &body, 8);
        unsigned char *rest = malloc(length);
        memcpy(rest, file, 24);
        memcpy(rest + 24, file + 40, length - 40);
        set_sum(file + 24, rest, length - 16);
        free(rest);
    }
    adli_ckpt_manifest manifest;
    if (adli_ckpt_manifest_parse(file, length, &manifest) == ADL_OK) {
        adl_sink again;
        adli_sink_init(&again, ADLI_CKPT_MANIFEST_MAX);
        /* there is one way to write a manifest: what was read is written as it was */
        if (adli_ckpt_manifest_encode(&manifest, &again) != ADL_OK || again.length != length ||
            memcmp(again.data, file, length) != 0)
            abort();
        adli_sink_fini(&again);
    }
    adli_ckpt_manifest_fini(&manifest);
}

static void mend_state(unsigned char *file, size_t length)
{
    if (length < ADLI_CKPT_HEADER_FIXED)
        return;
    memcpy(file, "ADLSTATE", 8);
    size_t name = file[16] % (ADL_CHECKPOINT_NAME_MAX + 1), head = ADLI_CKPT_HEADER_FIXED + name;
    if (length < head + ADLI_CKPT_SUM_BYTES)
        return;
    unsigned char *payload = file + head + ADLI_CKPT_SUM_BYTES;
    uint64_t stored = length - head - ADLI_CKPT_SUM_BYTES, raw;
    memcpy(file + 32, &stored, 8);
    set_sum(file + 56, payload, stored);
    memcpy(&raw, file + 24, 8);
    if (file[12] == ADLI_CKPT_RAW) {
        memcpy(file + 24, &stored, 8);
        set_sum(file + 40, payload, stored);
    } else if (raw <= MAX_BYTES) {
        unsigned char *unpacked = malloc(raw + 1);
        size_t got = ZSTD_decompress(unpacked, raw, payload, stored);
        set_sum(file + 40, unpacked, ZSTD_isError(got) ? 0 : got);
        free(unpacked);
    }
    set_sum(file + head, file, head);
}

static void fuzz_state(unsigned char *file, size_t length, bool mend)
{
    adli_ckpt_header header;
    adli_ckpt_value value;
    if (mend)
        mend_state(file, length);
    if (adli_ckpt_state_parse_take(file, length, MAX_BYTES, &header, &value) != ADL_OK) {
        free(file);
        return;
    }
    char name[ADLI_CKPT_FILE_NAME_MAX];
    adli_ckpt_file_name(value.name, name);
    if (strchr(name, '/') || strlen(name) >= sizeof name)
        abort();
    read_fields(value.data, value.length);
    adli_ckpt_value_fini(&value);
}

static void fuzz_name(const uint8_t *data, size_t length)
{
    char text[ADLI_CKPT_DIR_NAME_MAX] = "", again[ADLI_CKPT_DIR_NAME_MAX];
    adli_ckpt_id id;
    memcpy(text, data, length);
    if (!adli_ckpt_id_parse(text, &id))
        return;
    adli_ckpt_id_name(id, again);
    if (strcmp(text, again) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t length = size - 1;
    if (length < ADLI_CKPT_DIR_NAME_MAX)
        fuzz_name(data + 1, length);
    unsigned char *file = malloc(length); /* exact, so that the sanitizer sees a byte too many */
    if (!file)
        return 0;
    memcpy(file, data + 1, length);
    if (data[0] & 1) {
        fuzz_manifest(file, length, data[0] & 2);
        free(file);
    } else {
        fuzz_state(file, length, data[0] & 2);
    }
    return 0;
}
