/* The event writer. A record is built completely before it joins the buffer, and the buffer keeps
 * what the disk did not take, so that the file only ever has whole records followed by at most a part
 * of one that the next flush completes. Readers (TensorBoard reads while we write) stop at such a
 * part and try again later. */
#include "adaptdl/tensorboard.h"
#include "train/tensorboard_encode.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PATH_BYTES_MAX = 4096,
    HOST_MAX = 64,
    LIMITS_MAX = 1600, /* bucket limits: -DBL_MAX, 774 negative, 0, 774 positive, DBL_MAX */
    MESSAGE_MAX = ADL_TENSORBOARD_TEXT_MAX + (64 << 10),
};

/* Field numbers of event.proto, summary.proto, tensor.proto and histogram.proto. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_STATUS = 1,
    SESSION_START = 1,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_HISTOGRAM = 5,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_STRING = 8,
    SHAPE_DIM = 2,
    DIM_SIZE = 1,
    HISTOGRAM_MIN = 1,
    HISTOGRAM_MAX = 2,
    HISTOGRAM_NUM = 3,
    HISTOGRAM_SUM = 4,
    HISTOGRAM_SUM_SQUARES = 5,
    HISTOGRAM_LIMITS = 6,
    HISTOGRAM_COUNTS = 7,
    DTYPE_STRING = 7,
};

struct adl_tensorboard {
    adl_tensorboard_options options;
    char path[PATH_BYTES_MAX];
    int fd;
    uint64_t written_bytes, dropped;
    adli_buf unwritten;
    adli_buf part, value, summary, event, record; /* of the message being built, inside out */
    size_t limit_count;
    double limits[LIMITS_MAX];
    double counts[LIMITS_MAX];
};

/* ---- opening and closing ---------------------------------------------------------------------- */

static adl_status create_file(adl_tensorboard *writer, const char *logdir, double wall_time_s)
{
    char host[HOST_MAX + 1] = "";
    if (writer->options.host)
        snprintf(host, sizeof host, "%s", writer->options.host);
    else if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    if (!host[0] || strchr(host, '/') || !adli_utf8_valid(host))
        return adli_fail(ADL_EINVAL, "event file: host name \"%s\"", host);
    enum { TRIES = 1000 };
    for (int i = 0; i < TRIES; i++) {
        snprintf(writer->path, sizeof writer->path, "%s/events.out.tfevents.%010lld.%s.%ld.%d",
                 logdir, (long long)wall_time_s, host, (long)getpid(), i);
        writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (writer->fd >= 0)
            return ADL_OK;
        if (errno != EEXIST)
            break;
    }
    return adli_fail(ADL_EIO, "%s: %s", writer->path, strerror(errno));
}

/* TensorFlow's default buckets (tensorflow/core/lib/histogram): +-1e-12 * 1.1^k up to 1e20. */
static void fill_limits(adl_tensorboard *writer)
{
    double positive[LIMITS_MAX / 2] = {0};
    size_t count = 0, at = 0;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1)
        positive[count++] = limit;
    double *limits = writer->limits;
    limits[at++] = -DBL_MAX;
    for (size_t i = count; i-- > 0;)
        limits[at++] = -positive[i];
    limits[at++] = 0;
    for (size_t i = 0; i < count; i++)
        limits[at++] = positive[i];
    limits[at++] = DBL_MAX;
    writer->limit_count = at;
}

static adl_status take_options(const adl_tensorboard_options *given, adl_tensorboard_options *out)
{
    *out = (adl_tensorboard_options)ADL_TENSORBOARD_OPTIONS_INIT;
    adl_status status = adli_options_take("adl_tensorboard_options", out, sizeof *out, given);
    if (status != ADL_OK)
        return status;
    if (out->host && strlen(out->host) > HOST_MAX)
        return adli_fail(ADL_EINVAL, "tensorboard option host: longer than %d bytes", HOST_MAX);
    return ADL_OK;
}

static void free_writer(adl_tensorboard *writer)
{
    if (writer->fd >= 0)
        close(writer->fd);
    adli_buf_fini(&writer->record);
    adli_buf_fini(&writer->event);
    adli_buf_fini(&writer->summary);
    adli_buf_fini(&writer->value);
    adli_buf_fini(&writer->part);
    adli_buf_fini(&writer->unwritten);
    free(writer);
}

static adl_status write_version(adl_tensorboard *writer, double wall_time_s);

adl_status adl_tensorboard_open(const char *logdir, double wall_time_s,
                                const adl_tensorboard_options *options, adl_tensorboard **out)
{
    *out = NULL;
    adl_tensorboard_options taken;
    adl_status status = take_options(options, &taken);
    if (status != ADL_OK)
        return status;
    if (!isfinite(wall_time_s) || wall_time_s < 0 || wall_time_s > 1e11)
        return adli_fail(ADL_EINVAL, "event file: time %g", wall_time_s);
    if (!*logdir || strlen(logdir) >= PATH_BYTES_MAX - 256)
        return adli_fail(ADL_EINVAL, "log directory: a path of %zu bytes", strlen(logdir));
    adl_tensorboard *writer = adli_calloc(1, sizeof *writer);
    if (!writer)
        return adli_fail_memory("an event writer");
    writer->options = taken;
    writer->fd = -1;
    adli_buf_init(&writer->unwritten, taken.max_unwritten);
    adli_buf *messages[] = {&writer->part, &writer->value, &writer->summary, &writer->event,
                            &writer->record};
    for (size_t i = 0; i < ADLI_COUNT(messages); i++)
        adli_buf_init(messages[i], MESSAGE_MAX);
    fill_limits(writer);
    if ((status = adli_dirs_make(logdir, 0777)) != ADL_OK ||
        (status = create_file(writer, logdir, wall_time_s)) != ADL_OK ||
        (status = write_version(writer, wall_time_s)) != ADL_OK) {
        free_writer(writer);
        return status;
    }
    writer->options.host = NULL; /* the caller's string may go away */
    *out = writer;
    return ADL_OK;
}

adl_status adl_tensorboard_close(adl_tensorboard *writer)
{
    if (!writer)
        return ADL_OK;
    adl_status status = adl_tensorboard_flush(writer);
    free_writer(writer);
    return status;
}

const char *adl_tensorboard_path(const adl_tensorboard *writer)
{
    return writer->path;
}

uint64_t adl_tensorboard_dropped(const adl_tensorboard *writer)
{
    return writer->dropped;
}

/* ---- the buffer ------------------------------------------------------------------------------- */

adl_status adl_tensorboard_flush(adl_tensorboard *writer)
{
    adli_buf *buf = &writer->unwritten;
    adl_status status = ADL_OK;
    size_t done = 0;
    while (done < buf->length) {
        ssize_t wrote = write(writer->fd, buf->data + done, buf->length - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            status = adli_fail(ADL_EIO, "%s: %s", writer->path,
                               wrote ? strerror(errno) : "nothing written");
            break;
        }
        done += (size_t)wrote;
    }
    if (done)
        memmove(buf->data, buf->data + done, buf->length - done);
    buf->length -= done;
    writer->written_bytes += done;
    return status;
}

/* writer->event becomes a record in the buffer. */
static adl_status add_record(adl_tensorboard *writer)
{
    adli_buf *buf = &writer->unwritten, *record = &writer->record;
    adli_buf_clear(record);
    adli_tfrecord(record, writer->event.data, writer->event.length);
    adl_status status = adli_buf_check(record);
    uint64_t size = writer->written_bytes + buf->length + record->length;
    if (status == ADL_OK && writer->options.max_file_size && size > writer->options.max_file_size)
        status = adli_fail(ADL_ENOMEM, "%s: the file would pass %llu bytes", writer->path,
                           (unsigned long long)writer->options.max_file_size);
    if (status == ADL_OK && record->length > buf->max - buf->length) {
        status = adl_tensorboard_flush(writer);
        if (record->length > buf->max - buf->length)
            status = adli_fail(ADL_ENOMEM, "%s: more than %zu bytes wait to be written",
                               writer->path, buf->max);
        else
            status = ADL_OK;
    }
    if (status == ADL_OK) {
        adli_buf_append(buf, record->data, record->length);
        status = adli_buf_check(buf);
        buf->status = ADL_OK; /* nothing was appended: the next event may fit */
    }
    if (status != ADL_OK) {
        writer->dropped++;
        return status;
    }
    return buf->length >= writer->options.buffer_bytes ? adl_tensorboard_flush(writer) : ADL_OK;
}

/* ---- events ----------------------------------------------------------------------------------- */

static adl_status write_version(adl_tensorboard *writer, double wall_time_s)
{
    adli_buf_clear(&writer->event);
    adli_pb_double(&writer->event, EVENT_WALL_TIME, wall_time_s);
    adli_pb_text(&writer->event, EVENT_FILE_VERSION, "brain.Event:2");
    adl_status status = adli_buf_check(&writer->event);
    return status == ADL_OK ? add_record(writer) : status;
}

/* Starts writer->value with its tag. */
static adl_status begin_value(adl_tensorboard *writer, const char *tag)
{
    size_t length = strnlen(tag, ADL_TENSORBOARD_TAG_MAX + 1);
    adl_status status = ADL_OK;
    if (length == 0 || length > ADL_TENSORBOARD_TAG_MAX)
        status = adli_fail(ADL_EINVAL, "tag of %zu bytes, 1 .. %d are allowed", length,
                           ADL_TENSORBOARD_TAG_MAX);
    else if (!adli_utf8_valid(tag)) /* a reader would refuse the whole record */
        status = adli_fail(ADL_EINVAL, "tag is not UTF-8");
    adli_buf_clear(&writer->value);
    adli_buf_clear(&writer->part);
    if (status == ADL_OK)
        adli_pb_text(&writer->value, VALUE_TAG, tag);
    return status;
}

/* Event { wall_time, step, Summary { writer->value } }. */
static adl_status end_value(adl_tensorboard *writer, int64_t step, double wall_time_s)
{
    if (!isfinite(wall_time_s))
        return adli_fail(ADL_EINVAL, "event: time %g", wall_time_s);
    adl_status status = adli_buf_check(&writer->part);
    if (status == ADL_OK)
        status = adli_buf_check(&writer->value);
    if (status == ADL_OK) {
        adli_buf_clear(&writer->summary);
        adli_pb_bytes(&writer->summary, SUMMARY_VALUE, writer->value.data, writer->value.length);
        status = adli_buf_check(&writer->summary);
    }
    if (status == ADL_OK) {
        adli_buf_clear(&writer->event);
        adli_pb_double(&writer->event, EVENT_WALL_TIME, wall_time_s);
        adli_pb_varint(&writer->event, EVENT_STEP, (uint64_t)step);
        adli_pb_bytes(&writer->event, EVENT_SUMMARY, writer->summary.data, writer->summary.length);
        status = adli_buf_check(&writer->event);
    }
    if (status != ADL_OK) {
        writer->dropped++;
        return status;
    }
    return add_record(writer);
}

adl_status adl_tensorboard_scalar(adl_tensorboard *writer, const char *tag, double value,
                                  int64_t step, double wall_time_s)
{
    adl_status status = begin_value(writer, tag);
    if (status != ADL_OK)
        return status;
    adli_pb_float(&writer->value, VALUE_SIMPLE, (float)value);
    return end_value(writer, step, wall_time_s);
}

adl_status adl_tensorboard_restart(adl_tensorboard *writer, int64_t step, double wall_time_s)
{
    if (!isfinite(wall_time_s))
        return adli_fail(ADL_EINVAL, "event: time %g", wall_time_s);
    adli_buf_clear(&writer->part);
    adli_buf_clear(&writer->event);
    adli_pb_varint(&writer->part, SESSION_STATUS, SESSION_START);
    adl_status status = adli_buf_check(&writer->part);
    if (status != ADL_OK)
        return status;
    adli_pb_double(&writer->event, EVENT_WALL_TIME, wall_time_s);
    adli_pb_varint(&writer->event, EVENT_STEP, (uint64_t)step);
    adli_pb_bytes(&writer->event, EVENT_SESSION_LOG, writer->part.data, writer->part.length);
    status = adli_buf_check(&writer->event);
    return status == ADL_OK ? add_record(writer) : status;
}

/* A tensor of one string, marked for the text plugin. */
adl_status adl_tensorboard_text(adl_tensorboard *writer, const char *tag, const char *text,
                                int64_t step, double wall_time_s)
{
    static const unsigned char shape[] = {SHAPE_DIM << 3 | 2, 2, DIM_SIZE << 3 | 0, 1};
    adl_status status = begin_value(writer, tag);
    if (status != ADL_OK)
        return status;
    size_t length = strnlen(text, ADL_TENSORBOARD_TEXT_MAX + 1);
    if (length > ADL_TENSORBOARD_TEXT_MAX)
        return adli_fail(ADL_EINVAL, "text \"%.64s\": longer than %d bytes", tag,
                         ADL_TENSORBOARD_TEXT_MAX);
    if (!adli_utf8_valid(text))
        return adli_fail(ADL_EINVAL, "text \"%.64s\" is not UTF-8", tag);
    adli_buf *part = &writer->part;
    adli_pb_varint(part, TENSOR_DTYPE, DTYPE_STRING);
    adli_pb_bytes(part, TENSOR_SHAPE, shape, sizeof shape);
    adli_pb_bytes(part, TENSOR_STRING, text, length);
    if ((status = adli_buf_check(part)) == ADL_OK) {
        adli_pb_bytes(&writer->value, VALUE_TENSOR, part->data, part->length);
        static const char plugin[] = {PLUGIN_NAME << 3 | 2, 4, 't', 'e', 'x', 't'};
        adli_buf_clear(part);
        adli_pb_bytes(part, METADATA_PLUGIN, plugin, sizeof plugin);
        if (part->status == ADL_OK)
            adli_pb_bytes(&writer->value, VALUE_METADATA, part->data, part->length);
    }
    return end_value(writer, step, wall_time_s);
}

/* The first limit above value: limits[i - 1] <= value < limits[i]. */
static size_t bucket_of(const adl_tensorboard *writer, double value)
{
    size_t low = 0, high = writer->limit_count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (writer->limits[middle] > value)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Runs of empty buckets become one, as TensorFlow does it. limits and counts are [LIMITS_MAX]; returns
 * how many are used. */
static size_t compress_buckets(const adl_tensorboard *writer, double *limits, double *counts)
{
    size_t used = 0;
    for (size_t i = 0; i < writer->limit_count; used++) {
        limits[used] = writer->limits[i];
        counts[used] = writer->counts[i++];
        while (counts[used] == 0 && i < writer->limit_count && writer->counts[i] == 0)
            limits[used] = writer->limits[i++];
    }
    return used;
}

adl_status adl_tensorboard_histogram(adl_tensorboard *writer, const char *tag, const double *values,
                                     size_t count, int64_t step, double wall_time_s)
{
    adl_status status = begin_value(writer, tag);
    if (status != ADL_OK)
        return status;
    double low = INFINITY, high = -INFINITY, sum = 0, squares = 0, used = 0;
    memset(writer->counts, 0, sizeof writer->counts);
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]))
            continue;
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
        sum += values[i];
        squares += values[i] * values[i];
        used++;
        writer->counts[bucket_of(writer, values[i])]++;
    }
    if (used == 0)
        return adli_fail(ADL_EINVAL, "histogram \"%.64s\": none of %zu values is finite", tag,
                         count);
    double limits[LIMITS_MAX], counts[LIMITS_MAX];
    size_t buckets = compress_buckets(writer, limits, counts);
    adli_buf *part = &writer->part;
    adli_pb_double(part, HISTOGRAM_MIN, low);
    adli_pb_double(part, HISTOGRAM_MAX, high);
    adli_pb_double(part, HISTOGRAM_NUM, used);
    adli_pb_double(part, HISTOGRAM_SUM, sum);
    adli_pb_double(part, HISTOGRAM_SUM_SQUARES, squares);
    adli_pb_doubles(part, HISTOGRAM_LIMITS, limits, buckets);
    adli_pb_doubles(part, HISTOGRAM_COUNTS, counts, buckets);
    if (part->status == ADL_OK)
        adli_pb_bytes(&writer->value, VALUE_HISTOGRAM, part->data, part->length);
    return end_value(writer, step, wall_time_s);
}
