#include "backend/local/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUM_BYTES = 4 + 16 + 1 }; /* "sum=", 16 digits, NUL */

uint64_t adli_record_sum(const void *data, size_t length)
{
    const unsigned char *bytes = data;
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

void adli_record_put(adli_buf *buf, const char *name, const char *value)
{
    adli_buf_printf(buf, "%s=%s", name, value);
    adli_buf_append(buf, "", 1);
}

void adli_record_put_int(adli_buf *buf, const char *name, int64_t value)
{
    adli_buf_printf(buf, "%s=%" PRId64, name, value);
    adli_buf_append(buf, "", 1);
}

static int write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t put = write(fd, data, length);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        data += put;
        length -= (size_t)put;
    }
    return 0;
}

static int write_synced(int dir, const char *name, const adli_buf *buf)
{
    char sum[SUM_BYTES];
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    snprintf(sum, sizeof sum, "sum=%016" PRIx64, adli_record_sum(buf->data, buf->length));
    int bad = write_all(fd, buf->data, buf->length) || write_all(fd, sum, sizeof sum) || fsync(fd);
    int why = errno;
    close(fd);
    errno = why;
    return bad ? -1 : 0;
}

adl_status adli_record_write(int dir, const char *name, const adli_buf *buf, bool exclusive)
{
    char temporary[96];
    adl_status status = adli_buf_check(buf);
    if (status != ADL_OK)
        return status;
    snprintf(temporary, sizeof temporary, "%s.tmp.%ld", name, (long)getpid());
    int bad = write_synced(dir, temporary, buf);
    if (!bad)
        bad =
            exclusive ? linkat(dir, temporary, dir, name, 0) : renameat(dir, temporary, dir, name);
    int why = errno;
    if (bad || exclusive)
        unlinkat(dir, temporary, 0);
    if (bad)
        return adli_fail(exclusive && why == EEXIST ? ADL_ESTATE : ADL_EIO, "%s: %s", name,
                         strerror(why));
    if (fsync(dir) != 0)
        return adli_fail(ADL_EIO, "%s: %s", name, strerror(errno));
    return ADL_OK;
}

static adl_status read_whole(int dir, const char *name, adli_buf *buf)
{
    char chunk[4096];
    ssize_t got;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", name, strerror(errno));
    while ((got = read(fd, chunk, sizeof chunk)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        adli_buf_append(buf, chunk, (size_t)got);
    }
    int why = errno;
    close(fd);
    return got < 0 ? adli_fail(ADL_EIO, "%s: %s", name, strerror(why)) : adli_buf_check(buf);
}

adl_status adli_record_read(int dir, const char *name, adli_buf *buf)
{
    char sum[SUM_BYTES];
    adl_status status = read_whole(dir, name, buf);
    if (status != ADL_OK)
        return status;
    if (buf->length < SUM_BYTES)
        return adli_fail(ADL_ECORRUPT, "%s: too short", name);
    buf->length -= SUM_BYTES;
    snprintf(sum, sizeof sum, "sum=%016" PRIx64, adli_record_sum(buf->data, buf->length));
    if (memcmp(buf->data + buf->length, sum, sizeof sum) != 0)
        return adli_fail(ADL_ECORRUPT, "%s: damaged", name);
    return ADL_OK;
}

const char *adli_record_next(const adli_buf *buf, size_t *at, const char *name)
{
    size_t length = strlen(name);
    if (*at >= buf->length)
        return NULL;
    const char *field = buf->data + *at;
    const char *end = memchr(field, '\0', buf->length - *at);
    if (!end || (size_t)(end - field) <= length || memcmp(field, name, length) != 0 ||
        field[length] != '=')
        return NULL;
    *at = (size_t)(end - buf->data) + 1;
    return field + length + 1;
}

adl_status adli_record_next_int(const adli_buf *buf, size_t *at, const char *name, int64_t *out)
{
    char *end;
    const char *text = adli_record_next(buf, at, name);
    errno = 0;
    *out = text ? strtoll(text, &end, 10) : 0;
    if (!text || errno || end == text || *end)
        return adli_fail(ADL_ECORRUPT, "%s: not there or not a number", name);
    return ADL_OK;
}
