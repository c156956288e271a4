/* Event files are written in the order of steps, so that what has to go is at the end. A record is, little-endian, u64
 * length, u32 checksum, the event, u32 checksum; the event is a message of Protocol Buffers, of which two fields matter:
 * 2, the step, and 5, the summary, with the tag in field 1 of its field 1. A record that is cut off (its writer was
 * killed) is not wanted, nor is what follows it. */
#include "train/tensorboard_cut.h"

#include "base/bytes.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 12, TAIL_BYTES = 4, WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct field {
    uint64_t number, value; /* of a varint */
    adli_reader bytes;
} field;

static uint64_t get_varint(adli_reader *reader)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint64_t byte = adli_get(reader, 1);
        value |= (byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    reader->bad = true;
    return 0;
}

/* The message's next field; false at its end, or where it makes no sense. */
static bool next_field(adli_reader *reader, field *out)
{
    if (reader->bad || adli_reader_left(reader) == 0)
        return false;
    uint64_t key = get_varint(reader), length = 0;
    *out = (field){.number = key >> 3, .bytes = adli_reader_over(reader->at, 0)};
    switch (key & 7) {
    case WIRE_VARINT:
        out->value = get_varint(reader);
        return !reader->bad;
    case WIRE_64:
        length = 8;
        break;
    case WIRE_32:
        length = 4;
        break;
    case WIRE_BYTES:
        length = get_varint(reader);
        break;
    default:
        return false;
    }
    const void *bytes = length <= adli_reader_left(reader) ? adli_get_bytes(reader, length) : NULL;
    if (bytes)
        out->bytes = adli_reader_over(bytes, length);
    return bytes && !reader->bad;
}

static bool ends_in_batch(adli_reader tag)
{
    static const char suffix[] = "/batch";
    size_t length = adli_reader_left(&tag), wanted = sizeof suffix - 1;
    const uint8_t *text = adli_get_bytes(&tag, length);
    return length >= wanted && memcmp(text + length - wanted, suffix, wanted) == 0;
}

static bool about_batches(adli_reader summary)
{
    field value, part;
    while (next_field(&summary, &value))
        while (value.number == 1 && next_field(&value.bytes, &part))
            if (part.number == 1 && ends_in_batch(part.bytes))
                return true;
    return false;
}

/* *says: it has a summary. */
static bool wanted(adli_reader event, const adli_events_from *from, bool *says)
{
    int64_t step = 0;
    bool batch = false;
    field part;
    *says = false;
    while (next_field(&event, &part)) {
        if (part.number == 2)
            step = (int64_t)part.value;
        if (part.number == 5) {
            *says = true;
            batch = about_batches(part.bytes);
        }
    }
    return !*says || step < (batch ? from->batch : from->epoch);
}

size_t adli_events_wanted(const void *data, size_t length, const adli_events_from *from,
                          size_t *events)
{
    adli_reader reader = adli_reader_over(data, length);
    size_t kept = 0;
    *events = 0;
    while (adli_reader_left(&reader) >= HEAD_BYTES) {
        bool says;
        uint64_t size = adli_get_u64(&reader);
        adli_get(&reader, 4);
        if (size > SIZE_MAX - TAIL_BYTES || size + TAIL_BYTES > adli_reader_left(&reader))
            break;
        const void *event = adli_get_bytes(&reader, size);
        adli_get(&reader, TAIL_BYTES);
        if (!wanted(adli_reader_over(event, size), from, &says))
            break;
        *events += says;
        kept = length - adli_reader_left(&reader);
    }
    return kept;
}

static adl_status cut(int fd, const char *path, const adli_events_from *from)
{
    struct stat about;
    size_t kept = 0, events = 0;
    if (fstat(fd, &about) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    size_t length = (size_t)about.st_size;
    void *data = length ? mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (data == MAP_FAILED)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (data) {
        kept = adli_events_wanted(data, length, from, &events);
        munmap(data, length);
    }
    int failed = events == 0 ? unlink(path) : kept < length ? ftruncate(fd, (off_t)kept) : 0;
    return failed ? adli_fail(ADL_EIO, "%s: %s", path, strerror(errno)) : ADL_OK;
}

adl_status adli_events_cut(const char *path, const adli_events_from *from)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", path, strerror(errno));
    adl_status status = cut(fd, path, from);
    close(fd);
    return status;
}
