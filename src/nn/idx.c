/* IDX files (MNIST): big-endian 32-bit header fields, then bytes.
 *   images: magic 2051, count, rows, columns;  labels: magic 2049, count. */
#include "nn/dataset.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>
#include <stdbool.h>
#include <unistd.h>
#include <zlib.h>

enum {
    IMAGES_MAGIC = 2051,
    LABELS_MAGIC = 2049,
    IMAGES_HEADER = 16,
    LABELS_HEADER = 8,
    SIDE_MAX = 4096,
    CLASSES = 10
};
static const size_t FILE_MAX = (size_t)1 << 30; /* bytes, after decompression */

static uint32_t be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static adl_status check_header(const char *name, const uint8_t *data, size_t length, size_t header,
                               uint32_t magic)
{
    if (length < header)
        return adli_fail(ADL_EINVAL, "%s: %zu bytes, the header alone has %zu", name, length,
                         header);
    if (be32(data) != magic)
        return adli_fail(ADL_EINVAL, "%s: magic number is %u, must be %u", name, be32(data), magic);
    if (be32(data + 4) == 0)
        return adli_fail(ADL_EINVAL, "%s: number of items is 0", name);
    return ADL_OK;
}

static adl_status check_size(const char *name, size_t length, size_t header, uint64_t body)
{
    if (body == length - header)
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "%s: size is %zu bytes, the header says %llu", name, length,
                     (unsigned long long)(header + body));
}

static adl_status check_side(const char *name, const char *field, uint32_t side)
{
    if (side >= 1 && side <= SIDE_MAX)
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "%s: number of %s is %u, must be 1 .. %d", name, field, side,
                     SIDE_MAX);
}

adl_status adli_idx_parse(const char *images_name, const uint8_t *images, size_t images_length,
                          const char *labels_name, const uint8_t *labels, size_t labels_length,
                          adl_dataset **out)
{
    *out = NULL;
    adl_status status =
        check_header(images_name, images, images_length, IMAGES_HEADER, IMAGES_MAGIC);
    if (status != ADL_OK)
        return status;
    uint32_t count = be32(images + 4), rows = be32(images + 8), columns = be32(images + 12);
    status = check_side(images_name, "rows", rows);
    if (status == ADL_OK)
        status = check_side(images_name, "columns", columns);
    if (status == ADL_OK)
        status =
            check_size(images_name, images_length, IMAGES_HEADER, (uint64_t)count * rows * columns);
    if (status == ADL_OK)
        status = check_header(labels_name, labels, labels_length, LABELS_HEADER, LABELS_MAGIC);
    if (status == ADL_OK && be32(labels + 4) != count)
        status = adli_fail(ADL_EINVAL, "%s: number of items is %u, but %s has %u", labels_name,
                           be32(labels + 4), images_name, count);
    if (status == ADL_OK)
        status = check_size(labels_name, labels_length, LABELS_HEADER, count);
    adl_dataset_info info = {.count = count,
                             .channels = 1,
                             .height = (int)rows,
                             .width = (int)columns,
                             .classes = CLASSES};
    for (size_t i = 0; i < count && status == ADL_OK; i++)
        if (labels[LABELS_HEADER + i] >= info.classes)
            info.classes = labels[LABELS_HEADER + i] + 1;
    if (status == ADL_OK)
        status = adli_dataset_new(&info, out);
    if (status != ADL_OK)
        return status;
    memcpy((*out)->pixels, images + IMAGES_HEADER, images_length - IMAGES_HEADER);
    memcpy((*out)->labels, labels + LABELS_HEADER, count);
    return ADL_OK;
}

/* Inflates all of `from` into `to`; zlib's own word for what is wrong. */
static adl_status inflate_all(const char *name, const adli_buf *from, adli_buf *to)
{
    z_stream stream = {.next_in = (Bytef *)from->data, .avail_in = (uInt)from->length};
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK)
        return adli_fail_memory("decompression");
    unsigned char chunk[1 << 15];
    int result = Z_OK;
    adl_status status = ADL_OK;
    while (result != Z_STREAM_END && status == ADL_OK) {
        stream.next_out = chunk;
        stream.avail_out = sizeof chunk;
        result = inflate(&stream, Z_NO_FLUSH);
        if (result != Z_OK && result != Z_STREAM_END)
            status = adli_fail(ADL_EINVAL, "%s: gzip data: %s", name,
                               stream.msg ? stream.msg : "ends too early");
        else {
            adli_buf_append(to, chunk, sizeof chunk - stream.avail_out);
            if (to->status != ADL_OK)
                status = adli_fail(ADL_EINVAL, "%s: more than %zu bytes when decompressed", name,
                                   to->max);
        }
    }
    if (status == ADL_OK && stream.avail_in > 0)
        status = adli_fail(ADL_EINVAL, "%s: %u bytes follow the gzip data", name, stream.avail_in);
    inflateEnd(&stream);
    return status;
}

adl_status adli_gunzip(const char *name, adli_buf *buf)
{
    if (buf->length < 2 || (uint8_t)buf->data[0] != 0x1f || (uint8_t)buf->data[1] != 0x8b)
        return ADL_OK;
    adli_buf plain;
    adli_buf_init(&plain, buf->max);
    adl_status status = inflate_all(name, buf, &plain);
    if (status != ADL_OK) {
        adli_buf_fini(&plain);
        return status;
    }
    adli_buf_fini(buf);
    *buf = plain;
    return ADL_OK;
}

static adl_status read_plain(const char *path, adli_buf *buf)
{
    adl_status status = adli_file_read(path, buf);
    return status == ADL_OK ? adli_gunzip(path, buf) : status;
}

adl_status adl_dataset_idx(const char *images_path, const char *labels_path, adl_dataset **out)
{
    *out = NULL;
    adli_buf images, labels;
    adli_buf_init(&images, FILE_MAX);
    adli_buf_init(&labels, FILE_MAX);
    adl_status status = read_plain(images_path, &images);
    if (status == ADL_OK)
        status = read_plain(labels_path, &labels);
    if (status == ADL_OK)
        status = adli_idx_parse(images_path, (const uint8_t *)images.data, images.length,
                                labels_path, (const uint8_t *)labels.data, labels.length, out);
    adli_buf_fini(&images);
    adli_buf_fini(&labels);
    return status;
}

/* directory/name, or directory/name.gz when only that exists. */
static adl_status find(const char *directory, const char *name, adli_buf *path)
{
    adli_buf_init(path, 4096);
    adli_buf_printf(path, "%s/%s", directory, name);
    adl_status status = adli_buf_check(path);
    if (status != ADL_OK || access(path->data, F_OK) == 0)
        return status;
    size_t plain_length = path->length;
    adli_buf_puts(path, ".gz");
    status = adli_buf_check(path);
    if (status == ADL_OK && access(path->data, F_OK) != 0) {
        path->data[plain_length] = '\0';
        status = adli_fail(ADL_ENOENT, "%s: no such file (nor %s.gz)", path->data, path->data);
    }
    return status;
}

adl_status adl_dataset_mnist(const char *directory, adl_dataset_part part, adl_dataset **out)
{
    *out = NULL;
    bool train = part == ADL_TRAIN;
    adli_buf images, labels = {0};
    adl_status status =
        find(directory, train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", &images);
    if (status == ADL_OK)
        status =
            find(directory, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", &labels);
    if (status == ADL_OK)
        status = adl_dataset_idx(images.data, labels.data, out);
    adli_buf_fini(&images);
    adli_buf_fini(&labels);
    return status;
}
