#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static adl_status read_stream(FILE *file, const char *path, adli_buf *buf)
{
    char chunk[1 << 16];
    size_t got;
    while ((got = fread(chunk, 1, sizeof chunk, file)) > 0) {
        adli_buf_append(buf, chunk, got);
        if (buf->status != ADL_OK)
            return adli_fail(ADL_EINVAL, "%s: larger than the limit of %zu bytes", path, buf->max);
    }
    if (ferror(file))
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    adli_buf_append(buf, "", 0);
    return adli_buf_check(buf);
}

adl_status adli_file_read(const char *path, adli_buf *buf)
{
    if (strcmp(path, "-") == 0)
        return read_stream(stdin, "standard input", buf);
    FILE *file = fopen(path, "rb");
    if (!file)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", path, strerror(errno));
    adl_status status = read_stream(file, path, buf);
    fclose(file);
    return status;
}

static adl_status write_stream(FILE *file, const char *path, const void *data, size_t length)
{
    if ((length && fwrite(data, 1, length, file) != length) || fflush(file) != 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return ADL_OK;
}

adl_status adli_file_write(const char *path, const void *data, size_t length)
{
    if (strcmp(path, "-") == 0)
        return write_stream(stdout, "standard output", data, length);
    adli_buf temporary;
    adli_buf_init(&temporary, 4096);
    adli_buf_printf(&temporary, "%s.tmp.%ld", path, (long)getpid());
    adl_status status = adli_buf_check(&temporary);
    if (status != ADL_OK)
        goto out;
    FILE *file = fopen(temporary.data, "wb");
    if (!file) {
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
        goto out;
    }
    status = write_stream(file, path, data, length);
    if (fclose(file) != 0 && status == ADL_OK)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (status == ADL_OK && rename(temporary.data, path) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (status != ADL_OK)
        unlink(temporary.data);
out:
    adli_buf_fini(&temporary);
    return status;
}
