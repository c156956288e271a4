/* Sinks and sources: what a state's save and load callbacks see of the checkpoint. Both are plain
 * memory, so that a save callback costs one copy and a load callback never sees a byte whose checksum
 * was not verified. Between replicas (transfer.c) both are streams: a state goes from one memory to
 * another in pieces, and there is no second copy of a large one on either side. */
#include "train/checkpoint_format.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void adli_sink_init(adl_sink *sink, uint64_t max)
{
    *sink = (adl_sink){.max = max};
}

void adli_sink_clear(adl_sink *sink)
{
    sink->length = 0;
    sink->status = ADL_OK;
}

void adli_sink_fini(adl_sink *sink)
{
    free(sink->data);
    *sink = (adl_sink){0};
}

/* In pieces, as they lie: nothing is copied, and whoever receives them needs no more room than for one. */
static adl_status hand_over(adl_sink *sink, const unsigned char *data, size_t length)
{
    for (size_t at = 0, piece; at < length && sink->status == ADL_OK; at += piece) {
        piece = length - at < ADLI_PIECE_BYTES ? length - at : ADLI_PIECE_BYTES;
        sink->status = sink->drain(sink->drain_user, data + at, piece);
        sink->drained += piece;
    }
    return sink->status;
}

adl_status adli_sink_flush(adl_sink *sink)
{
    if (sink->status == ADL_OK && sink->length > 0) {
        size_t length = sink->length;
        sink->length = 0;
        return hand_over(sink, sink->data, length);
    }
    return sink->status;
}

static adl_status drain(adl_sink *sink, const unsigned char *data, size_t length)
{
    adl_status status = adli_sink_flush(sink);
    return status == ADL_OK ? hand_over(sink, data, length) : status;
}

bool adli_sink_skip(adl_sink *sink, size_t length)
{
    if (!sink->drain || !sink->counts || sink->status != ADL_OK)
        return false;
    sink->drained += length;
    return true;
}

adl_status adl_sink_reserve(adl_sink *sink, size_t length, void **out)
{
    *out = NULL;
    if (sink->status != ADL_OK)
        return adli_fail(sink->status, "an earlier write failed");
    if (sink->drain && sink->length + length > ADLI_PIECE_BYTES && adli_sink_flush(sink) != ADL_OK)
        return sink->status;
    if (length > sink->max || sink->length > sink->max - length) {
        sink->status = ADL_ENOMEM;
        return adli_fail(ADL_ENOMEM, "larger than the limit of %llu bytes",
                         (unsigned long long)sink->max);
    }
    /* at least one byte, so that the data of an empty state is a valid pointer */
    if (adli_grow(&sink->data, &sink->capacity, sink->length + length + 1, 1) != 0) {
        sink->status = ADL_ENOMEM;
        return adli_fail_memory("the copy of a state");
    }
    *out = sink->data + sink->length;
    sink->length += length;
    return ADL_OK;
}

adl_status adl_sink_write(adl_sink *sink, const void *data, size_t length)
{
    void *to;
    if (sink->drain && length >= ADLI_PIECE_BYTES && sink->status == ADL_OK)
        return drain(sink, data, length);
    adl_status status = adl_sink_reserve(sink, length, &to);
    if (status == ADL_OK && length)
        memcpy(to, data, length);
    return status;
}

adl_status adl_sink_u32(adl_sink *sink, uint32_t value)
{
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    return adl_sink_write(sink, bytes, sizeof bytes);
}

adl_status adl_sink_u64(adl_sink *sink, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    return adl_sink_write(sink, bytes, sizeof bytes);
}

adl_status adl_sink_f64(adl_sink *sink, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return adl_sink_u64(sink, bits);
}

adl_status adl_sink_text(adl_sink *sink, const char *text)
{
    size_t length = strlen(text);
    if (length > UINT32_MAX)
        return adli_fail(sink->status = ADL_EINVAL, "text of %zu bytes", length);
    adl_status status = adl_sink_u32(sink, (uint32_t)length);
    return status == ADL_OK ? adl_sink_write(sink, text, length) : status;
}

size_t adl_source_remaining(const adl_source *source)
{
    return source->remaining;
}

static adl_status check_left(const adl_source *source, size_t length)
{
    if (length > source->remaining)
        return adli_fail(ADL_ECORRUPT, "%zu bytes wanted where %zu are left", length,
                         source->remaining);
    return ADL_OK;
}

/* length bytes of a stream, which has as many. */
static adl_status read_stream(adl_source *source, unsigned char *out, size_t length)
{
    while (length > 0) {
        adl_status status = ADL_OK;
        if (source->buffered == 0)
            status = source->refill(source->refill_user, &source->at, &source->buffered);
        if (status == ADL_OK && source->buffered > source->remaining)
            status = adli_fail(ADL_EPEER, "a state is longer than it was said to be");
        if (status != ADL_OK)
            return status;
        size_t piece = length < source->buffered ? length : source->buffered;
        memcpy(out, source->at, piece);
        out += piece;
        length -= piece;
        source->at += piece;
        source->buffered -= piece;
        source->remaining -= piece;
    }
    return ADL_OK;
}

/* Puts together what lies in several pieces. */
static adl_status view_stream(adl_source *source, size_t length, const void **out)
{
    if (adli_grow(&source->gathered, &source->gathered_capacity, length + 1, 1) != 0)
        return adli_fail_memory("a part of a state");
    adl_status status = read_stream(source, source->gathered, length);
    *out = status == ADL_OK ? source->gathered : NULL;
    return status;
}

adl_status adl_source_view(adl_source *source, size_t length, const void **out)
{
    *out = NULL;
    adl_status status = check_left(source, length);
    if (status == ADL_OK && source->refill)
        return view_stream(source, length, out);
    if (status != ADL_OK)
        return status;
    *out = source->at;
    source->at += length;
    source->remaining -= length;
    return ADL_OK;
}

adl_status adl_source_read(adl_source *source, void *out, size_t length)
{
    const void *from;
    adl_status status = check_left(source, length);
    if (status == ADL_OK && source->refill)
        return read_stream(source, out, length);
    if (status == ADL_OK)
        status = adl_source_view(source, length, &from);
    if (status == ADL_OK && length)
        memcpy(out, from, length);
    return status;
}

adl_status adl_source_u32(adl_source *source, uint32_t *out)
{
    unsigned char bytes[4];
    adl_status status = adl_source_read(source, bytes, sizeof bytes);
    if (status != ADL_OK)
        return status;
    *out = 0;
    for (int i = 0; i < 4; i++)
        *out |= (uint32_t)bytes[i] << (8 * i);
    return ADL_OK;
}

adl_status adl_source_u64(adl_source *source, uint64_t *out)
{
    unsigned char bytes[8];
    adl_status status = adl_source_read(source, bytes, sizeof bytes);
    if (status != ADL_OK)
        return status;
    *out = 0;
    for (int i = 0; i < 8; i++)
        *out |= (uint64_t)bytes[i] << (8 * i);
    return ADL_OK;
}

adl_status adl_source_f64(adl_source *source, double *out)
{
    uint64_t bits;
    adl_status status = adl_source_u64(source, &bits);
    if (status == ADL_OK)
        memcpy(out, &bits, sizeof bits);
    return status;
}

adl_status adl_source_text(adl_source *source, char *out, size_t capacity)
{
    adl_source before = *source;
    uint32_t length;
    const void *text = NULL;
    adl_status status = adl_source_u32(source, &length);
    if (status != ADL_OK)
        return status;
    if (length >= capacity)
        status = adli_fail(ADL_ECORRUPT, "text of %u bytes where at most %zu fit", length,
                           capacity ? capacity - 1 : 0);
    else
        status = adl_source_view(source, length, &text);
    if (status == ADL_OK && memchr(text, '\0', length))
        status = adli_fail(ADL_ECORRUPT, "text with a zero byte inside");
    if (status != ADL_OK) {
        if (!source->refill) /* a stream does not go back */
            *source = before;
        return status;
    }
    memcpy(out, text, length);
    out[length] = '\0';
    return ADL_OK;
}
