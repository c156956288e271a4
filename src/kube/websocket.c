#include "kube/websocket.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

enum { FIN = 0x80, MASKED = 0x80, LENGTH_16 = 126, LENGTH_64 = 127, CONTROL_MAX = 125 };

void adli_ws_key(const unsigned char random[16], char out[ADLI_WS_KEY])
{
    EVP_EncodeBlock((unsigned char *)out, random, 16);
}

void adli_ws_accept(const char key[ADLI_WS_KEY], char out[ADLI_WS_ACCEPT])
{
    char text[ADLI_WS_KEY + 40];
    unsigned char digest[SHA_DIGEST_LENGTH];
    int length = snprintf(text, sizeof text, "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
    SHA1((const unsigned char *)text, (size_t)length, digest);
    EVP_EncodeBlock((unsigned char *)out, digest, sizeof digest);
}

void adli_ws_put(adli_buf *out, int opcode, const void *data, size_t length,
                 const unsigned char mask[4])
{
    unsigned char head[14] = {(unsigned char)(FIN | opcode)};
    size_t used = 2;
    const unsigned char *bytes = data;
    int wide = length < LENGTH_16 ? 0 : length < 65536 ? 2 : 8;
    head[1] = (unsigned char)(MASKED | (wide == 0   ? (int)length
                                        : wide == 2 ? LENGTH_16
                                                    : LENGTH_64));
    for (int i = wide - 1; i >= 0; i--)
        head[used++] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(head + used, mask, 4);
    adli_buf_append(out, (const char *)head, used + 4);
    while (length > 0) {
        char piece[1024];
        size_t count =
            length < sizeof piece ? length : sizeof piece; /* a multiple of 4, or the last */
        for (size_t i = 0; i < count; i++)
            piece[i] = (char)(bytes[i] ^ mask[i % 4]);
        adli_buf_append(out, piece, count);
        bytes += count;
        length -= count;
    }
}

void adli_ws_init(adli_ws_reader *reader)
{
    *reader = (adli_ws_reader){.opcode = 0};
    adli_buf_init(&reader->bytes, 2 * (size_t)ADLI_WS_MESSAGE_MAX);
    adli_buf_init(&reader->message, ADLI_WS_MESSAGE_MAX);
    adli_buf_init(&reader->control, CONTROL_MAX + 1);
}

void adli_ws_fini(adli_ws_reader *reader)
{
    adli_buf_fini(&reader->bytes);
    adli_buf_fini(&reader->message);
    adli_buf_fini(&reader->control);
}

adl_status adli_ws_feed(adli_ws_reader *reader, const char *bytes, size_t count)
{
    if (reader->used > 0) { /* what was taken makes room */
        size_t left = reader->bytes.length - reader->used;
        memmove(reader->bytes.data, reader->bytes.data + reader->used, left);
        reader->bytes.length = left;
        reader->used = 0;
    }
    adli_buf_append(&reader->bytes, bytes, count);
    return adli_buf_check(&reader->bytes);
}

typedef struct frame {
    int opcode;
    bool last;
    const char *data;
    size_t length, whole; /* of the payload; with its head */
} frame;

/* false: it is not complete yet. */
static adl_status read_frame(const adli_ws_reader *reader, frame *out, bool *complete)
{
    size_t left = reader->bytes.length - reader->used, head = 2;
    const unsigned char *at =
        (const unsigned char *)(reader->bytes.data ? reader->bytes.data + reader->used : "");
    *complete = false;
    if (left < 2)
        return ADL_OK;
    uint64_t length = at[1] & 0x7f;
    int wide = length == LENGTH_16 ? 2 : length == LENGTH_64 ? 8 : 0;
    if (at[0] & 0x70 || at[1] & MASKED)
        return adli_fail(ADL_EINVAL, "WebSocket: a frame that no server sends");
    if (left < head + (size_t)wide)
        return ADL_OK;
    if (wide)
        length = 0;
    for (int i = 0; i < wide; i++)
        length = length << 8 | at[head++];
    if (length > ADLI_WS_MESSAGE_MAX)
        return adli_fail(ADL_EINVAL, "WebSocket: a frame of %llu bytes",
                         (unsigned long long)length);
    *out = (frame){.opcode = at[0] & 0xf,
                   .last = at[0] & FIN,
                   .data = (const char *)at + head,
                   .length = (size_t)length,
                   .whole = head + (size_t)length};
    *complete = left >= out->whole;
    return ADL_OK;
}

static adl_status take_control(adli_ws_reader *reader, const frame *f)
{
    if (!f->last || f->length > CONTROL_MAX)
        return adli_fail(ADL_EINVAL, "WebSocket: a control frame that is none");
    adli_buf_clear(&reader->control);
    adli_buf_append(&reader->control, f->data, f->length);
    return adli_buf_check(&reader->control);
}

static adl_status take_data(adli_ws_reader *reader, const frame *f)
{
    if ((f->opcode == 0) == (reader->opcode == 0))
        return adli_fail(ADL_EINVAL, "WebSocket: a message inside of a message");
    if (f->opcode) {
        reader->opcode = f->opcode;
        adli_buf_clear(&reader->message);
    }
    adli_buf_append(&reader->message, f->data, f->length);
    return adli_buf_check(&reader->message);
}

adl_status adli_ws_next(adli_ws_reader *reader, int *opcode, const char **data, size_t *length)
{
    frame f;
    bool complete;
    *opcode = 0;
    for (;;) {
        adl_status status = read_frame(reader, &f, &complete);
        if (status != ADL_OK || !complete)
            return status;
        bool control = f.opcode >= ADLI_WS_CLOSE;
        status = control ? take_control(reader, &f) : take_data(reader, &f);
        reader->used += f.whole;
        if (status != ADL_OK)
            return status;
        if (!control && !f.last)
            continue;
        const adli_buf *text = control ? &reader->control : &reader->message;
        *opcode = control ? f.opcode : reader->opcode;
        *data = text->data ? text->data : "";
        *length = text->length;
        if (!control)
            reader->opcode = 0;
        return ADL_OK;
    }
}
