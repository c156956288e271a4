/* Event files, read back by a reader that shares no code with the writer: a CRC computed bit by bit,
 * and a protobuf decoder that knows only the wire format. tests/cli/tensorboard.sh asks the real
 * TensorBoard. */
#include "harness.h"

#include "adaptdl/tensorboard.h"
#include "base/mem.h"
#include "checkpoint_fixture.h"
#include "train/tensorboard_cut.h"
#include "train/tensorboard_encode.h"

#include <float.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- an independent reader -------------------------------------------------------------------- */

static uint32_t slow_crc32c(const unsigned char *data, size_t length)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static uint32_t slow_masked(const unsigned char *data, size_t length)
{
    uint32_t crc = slow_crc32c(data, length);
    return (uint32_t)(((uint64_t)crc << 17 | crc >> 15) + 0xa282ead8u);
}

static uint64_t le(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

typedef struct slice {
    const unsigned char *at;
    size_t length;
} slice;

/* The next record's data; at == NULL at the end or when a sum is wrong. */
static slice next_record(slice *file)
{
    slice none = {NULL, 0};
    if (file->length < 12 || le(file->at + 8, 4) != slow_masked(file->at, 8))
        return none;
    uint64_t length = le(file->at, 8);
    if (length > file->length - 16)
        return none;
    slice data = {file->at + 12, length};
    if (le(data.at + length, 4) != slow_masked(data.at, length))
        return none;
    file->at += length + 16;
    file->length -= length + 16;
    return data;
}

static bool take_varint(slice *s, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; s->length && shift < 64; shift += 7) {
        unsigned char byte = *s->at++;
        s->length--;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The content of the first such field: for numbers its bytes, otherwise what the length covers. */
static slice find(slice message, unsigned field)
{
    uint64_t key, value;
    while (take_varint(&message, &key)) {
        slice content = message;
        switch (key & 7) {
        case 0:
            if (!take_varint(&message, &value))
                return (slice){NULL, 0};
            content.length = (size_t)(message.at - content.at);
            break;
        case 1:
            content.length = 8;
            message.at += 8, message.length -= 8;
            break;
        case 5:
            content.length = 4;
            message.at += 4, message.length -= 4;
            break;
        default:
            if (!take_varint(&message, &value) || value > message.length)
                return (slice){NULL, 0};
            content = (slice){message.at, value};
            message.at += value, message.length -= value;
        }
        if (key >> 3 == field)
            return content;
    }
    return (slice){NULL, 0};
}

static double as_double(slice s)
{
    uint64_t bits = s.length == 8 ? le(s.at, 8) : UINT64_MAX;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float as_float(slice s)
{
    uint32_t bits = s.length == 4 ? (uint32_t)le(s.at, 4) : UINT32_MAX;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int64_t as_int(slice s)
{
    uint64_t value = 0;
    return take_varint(&s, &value) ? (int64_t)value : INT64_MIN;
}

static bool is_text(slice s, const char *text)
{
    return s.at && s.length == strlen(text) && memcmp(s.at, text, s.length) == 0;
}

/* Event -> summary -> value */
static slice value_of(slice event)
{
    return find(find(event, 5), 1);
}

/* ---- tests ------------------------------------------------------------------------------------ */

TEST(crc32c_of_rfc_3720)
{
    unsigned char data[48];
    memset(data, 0, 32);
    CHECK(adli_crc32c(data, 32) == 0x8a9136aau);
    memset(data, 0xff, 32);
    CHECK(adli_crc32c(data, 32) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)i;
    CHECK(adli_crc32c(data, 32) == 0x46dd794eu);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)(31 - i);
    CHECK(adli_crc32c(data, 32) == 0x113fdb5cu);
    static const unsigned char read_command[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
        0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    CHECK(adli_crc32c(read_command, 48) == 0xd9963a56u);
    CHECK(adli_crc32c("123456789", 9) == 0xe3069283u);
    CHECK(adli_crc32c("", 0) == 0);
    for (size_t length = 0; length <= sizeof data; length++)
        CHECK(adli_crc32c(data, length) == slow_crc32c(data, length) &&
              adli_crc32c_masked(data, length) == slow_masked(data, length));
}

TEST(events_read_back)
{
    const char *directory = fresh_directory();
    char logdir[300];
    snprintf(logdir, sizeof logdir, "%s/runs/a/", directory);
    adl_tensorboard *writer;
    REQUIRE_OK(adl_tensorboard_open(logdir, 1700000000.5, NULL, &writer));
    CHECK(strstr(adl_tensorboard_path(writer), "/events.out.tfevents.1700000000."));
    CHECK_OK(adl_tensorboard_scalar(writer, "Loss/train", 0.1, 7, 1700000001.25));
    CHECK_OK(adl_tensorboard_scalar(writer, "nan", NAN, 0, 2));
    CHECK_OK(adl_tensorboard_scalar(writer, "n\xc3\xa9gatif", -1e300, -3, 2));
    CHECK_OK(adl_tensorboard_text(writer, "note", "**bold**", INT64_MAX, 3));
    char path[4096];
    snprintf(path, sizeof path, "%s", adl_tensorboard_path(writer));
    CHECK_OK(adl_tensorboard_close(writer));
    slice file;
    unsigned char *data = slurp(path, &file.length);
    file.at = data;
    slice event = next_record(&file);
    CHECK(is_text(find(event, 3), "brain.Event:2") && as_double(find(event, 1)) == 1700000000.5);
    event = next_record(&file);
    CHECK(as_double(find(event, 1)) == 1700000001.25 && as_int(find(event, 2)) == 7);
    CHECK(is_text(find(value_of(event), 1), "Loss/train"));
    CHECK(as_float(find(value_of(event), 2)) == 0.1f);
    event = next_record(&file);
    CHECK(as_int(find(event, 2)) == 0 && isnan(as_float(find(value_of(event), 2))));
    event = next_record(&file);
    CHECK(as_int(find(event, 2)) == -3 && as_float(find(value_of(event), 2)) == -INFINITY);
    event = next_record(&file);
    slice value = value_of(event), tensor = find(value, 8);
    CHECK(as_int(find(event, 2)) == INT64_MAX && is_text(find(value, 1), "note"));
    CHECK(as_int(find(tensor, 1)) == 7 && as_int(find(find(find(tensor, 2), 2), 1)) == 1);
    CHECK(is_text(find(tensor, 8), "**bold**"));
    CHECK(is_text(find(find(find(value, 9), 1), 1), "text"));
    CHECK(next_record(&file).at == NULL && file.length == 0);
    free(data);
    remove_tree(directory);
}

TEST(histograms_read_back)
{
    const char *directory = fresh_directory();
    adl_tensorboard *writer;
    REQUIRE_OK(adl_tensorboard_open(directory, 1, NULL, &writer));
    double values[] = {0,    0.5,   0.5, -2,       1e-13,   -1e-13,
                       1e25, -1e25, NAN, INFINITY, DBL_MAX, -DBL_MAX};
    CHECK_OK(adl_tensorboard_histogram(writer, "h", values, ADLI_COUNT(values), 1, 1));
    CHECK_FAILS(adl_tensorboard_histogram(writer, "h", values, 0, 1, 1), ADL_EINVAL, "none of 0");
    CHECK_FAILS(adl_tensorboard_histogram(writer, "h", values + 8, 2, 1, 1), ADL_EINVAL,
                "none of 2 values is finite");
    char path[4096];
    snprintf(path, sizeof path, "%s", adl_tensorboard_path(writer));
    CHECK_OK(adl_tensorboard_close(writer));
    slice file;
    unsigned char *data = slurp(path, &file.length);
    file.at = data;
    next_record(&file);
    slice histogram = find(value_of(next_record(&file)), 5);
    CHECK(as_double(find(histogram, 1)) == -DBL_MAX && as_double(find(histogram, 2)) == DBL_MAX);
    CHECK(as_double(find(histogram, 3)) == 10);
    slice limits = find(histogram, 6), counts = find(histogram, 7);
    REQUIRE(limits.length == counts.length && limits.length % 8 == 0 && limits.length > 0);
    double total = 0, previous = -INFINITY;
    for (size_t i = 0; i < limits.length; i += 8) {
        double limit = as_double((slice){limits.at + i, 8});
        double count = as_double((slice){counts.at + i, 8}), wanted = 0;
        for (size_t j = 0; j < ADLI_COUNT(values); j++)
            if (isfinite(values[j])) /* the last bucket has its upper limit, too */
                wanted += values[j] >= previous && (values[j] < limit || limit == DBL_MAX);
        CHECK(limit > previous && count == wanted);
        previous = limit, total += count;
    }
    CHECK(total == 10 && previous == DBL_MAX);
    CHECK(limits.length / 8 < 40); /* runs of empty buckets are one */
    free(data);
    remove_tree(directory);
}

TEST(bad_events_are_refused)
{
    const char *directory = fresh_directory();
    adl_tensorboard *writer;
    adl_tensorboard_options options = ADL_TENSORBOARD_OPTIONS_INIT;
    options.size = 1;
    CHECK_FAILS(adl_tensorboard_open(directory, 1, &options, &writer), ADL_EINVAL, "size is 1");
    options.size = sizeof options;
    options.host = "a/b";
    CHECK_FAILS(adl_tensorboard_open(directory, 1, &options, &writer), ADL_EINVAL, "a/b");
    CHECK_FAILS(adl_tensorboard_open(directory, NAN, NULL, &writer), ADL_EINVAL, "time");
    CHECK_FAILS(adl_tensorboard_open("", 1, NULL, &writer), ADL_EINVAL, "log directory");
    CHECK_FAILS(adl_tensorboard_open("/proc/none/x", 1, NULL, &writer), ADL_EIO, "/proc/none");
    CHECK(writer == NULL && adl_tensorboard_close(NULL) == ADL_OK);
    options.host = "node-1";
    options.max_file_size = 2000;
    REQUIRE_OK(adl_tensorboard_open(directory, 1, &options, &writer));
    CHECK(strstr(adl_tensorboard_path(writer), ".0000000001.node-1."));
    adl_tensorboard *second; /* the same second, process and host: another file */
    REQUIRE_OK(adl_tensorboard_open(directory, 1, &options, &second));
    CHECK(strcmp(adl_tensorboard_path(writer), adl_tensorboard_path(second)) != 0);
    CHECK_OK(adl_tensorboard_close(second));
    char *tag = calloc(1, ADL_TENSORBOARD_TEXT_MAX + 2);
    memset(tag, 't', ADL_TENSORBOARD_TEXT_MAX + 1);
    CHECK_FAILS(adl_tensorboard_scalar(writer, "", 1, 1, 1), ADL_EINVAL, "tag of 0 bytes");
    CHECK_FAILS(adl_tensorboard_scalar(writer, tag, 1, 1, 1), ADL_EINVAL, "1 .. 1024");
    CHECK_FAILS(adl_tensorboard_scalar(writer, "\xff", 1, 1, 1), ADL_EINVAL, "UTF-8");
    CHECK_FAILS(adl_tensorboard_scalar(writer, "a", 1, 1, NAN), ADL_EINVAL, "time");
    CHECK_FAILS(adl_tensorboard_text(writer, "a", tag, 1, 1), ADL_EINVAL, "longer than 1048576");
    CHECK_FAILS(adl_tensorboard_text(writer, "a", "\xc3", 1, 1), ADL_EINVAL, "UTF-8");
    CHECK_INT(adl_tensorboard_dropped(writer), 0);
    int kept = 0;
    while (adl_tensorboard_scalar(writer, "a", 1, 1, 1) == ADL_OK && kept < 1000)
        kept++;
    CHECK(kept > 30 && kept < 100 && strstr(adl_error(), "would pass 2000 bytes"));
    CHECK_INT(adl_tensorboard_dropped(writer), 1);
    CHECK_OK(adl_tensorboard_close(writer));
    free(tag);
    remove_tree(directory);
}

static int count_records(const char *path, bool *whole)
{
    slice file;
    unsigned char *data = slurp(path, &file.length);
    file.at = data;
    int count = 0;
    while (next_record(&file).at)
        count++;
    *whole = file.length == 0;
    free(data);
    return count;
}

/* A file size limit stands for a full disk: write fails half-way through a record. */
TEST(a_full_disk_loses_nothing_that_fits_the_buffer)
{
    const char *directory = fresh_directory();
    struct rlimit old, small;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, SIG_IGN);
    adl_tensorboard_options options = ADL_TENSORBOARD_OPTIONS_INIT;
    options.buffer_bytes = 1, options.max_unwritten = 4000;
    adl_tensorboard *writer;
    REQUIRE_OK(adl_tensorboard_open(directory, 1, &options, &writer));
    small = (struct rlimit){500, old.rlim_max};
    int events = 1, failures = 0, refused = 0;
    bool whole;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    for (int i = 0; i < 200; i++) {
        adl_status status = adl_tensorboard_scalar(writer, "loss", i, i, i);
        events += status != ADL_ENOMEM;
        refused += status == ADL_ENOMEM;
        failures += status == ADL_EIO;
        CHECK(status == ADL_OK || status == ADL_EIO || status == ADL_ENOMEM);
    }
    CHECK(failures > 20 && refused > 20);
    CHECK_INT(adl_tensorboard_dropped(writer), refused);
    CHECK(adl_tensorboard_flush(writer) == ADL_EIO);
    count_records(adl_tensorboard_path(writer), &whole);
    CHECK(!whole); /* it did stop inside a record */
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_OK(adl_tensorboard_flush(writer));
    CHECK_OK(adl_tensorboard_scalar(writer, "loss", 1, 1, 1));
    CHECK_INT(count_records(adl_tensorboard_path(writer), &whole), events + 1);
    CHECK(whole);
    CHECK_OK(adl_tensorboard_close(writer));
    signal(SIGXFSZ, SIG_DFL);
    remove_tree(directory);
}

TEST(no_memory_is_an_error_and_no_more)
{
    const char *directory = fresh_directory();
    int failures = 0;
    for (int64_t nth = 1;; nth++) {
        adl_tensorboard *writer;
        double values[] = {1, 2, 3};
        adli_mem_fail_at(nth);
        int64_t before = adli_mem_count();
        adl_status status = adl_tensorboard_open(directory, 1, NULL, &writer);
        int good = 0;
        if (status == ADL_OK) {
            good += adl_tensorboard_text(writer, "text", "some text", 1, 1) == ADL_OK;
            good += adl_tensorboard_histogram(writer, "h", values, 3, 1, 1) == ADL_OK;
            good += adl_tensorboard_scalar(writer, "s", 1, 1, 1) == ADL_OK;
            char path[4096];
            bool whole;
            snprintf(path, sizeof path, "%s", adl_tensorboard_path(writer));
            CHECK_INT(adl_tensorboard_dropped(writer), 3 - good);
            CHECK_OK(adl_tensorboard_close(writer));
            CHECK_INT(count_records(path, &whole), 1 + good);
            CHECK(whole);
        } else {
            CHECK(status == ADL_ENOMEM && writer == NULL);
        }
        bool hit = adli_mem_count() - before >= nth;
        adli_mem_fail_at(0);
        if (!hit) {
            CHECK_INT(good, 3);
            break;
        }
        failures++;
    }
    CHECK(failures >= 6);
    remove_tree(directory);
}

/* Three epochs of two batches, and the file's records: 1 for the version, 3 for each epoch. */
static void write_epochs(const char *directory, char *path, size_t size)
{
    adl_tensorboard *writer;
    CHECK_OK(adl_tensorboard_open(directory, 1, NULL, &writer));
    for (int epoch = 1; epoch <= 3; epoch++) {
        for (int b = 1; b >= 0; b--)
            CHECK_OK(adl_tensorboard_scalar(writer, "loss/batch", 1, 20 * epoch - 10 * b, 1));
        CHECK_OK(adl_tensorboard_scalar(writer, "loss/epoch", 1, epoch, 1));
    }
    snprintf(path, size, "%s", adl_tensorboard_path(writer));
    CHECK_OK(adl_tensorboard_close(writer));
}

TEST(what_is_run_again_is_cut_off)
{
    const char *directory = fresh_directory();
    const struct {
        adli_events_from from;
        int records; /* 0: the file is gone */
    } cases[] = {
        {{.batch = 61, .epoch = 4}, 10}, /* nothing */
        {{.batch = 60, .epoch = 3}, 8},  /* the last batch and its epoch */
        {{.batch = 61, .epoch = 3}, 9},  /* the epoch */
        {{.batch = 50, .epoch = 3}, 7},  {{.batch = 21, .epoch = 2}, 4},
        {{.batch = 10, .epoch = 1}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[4096];
        bool whole = true;
        write_epochs(directory, path, sizeof path);
        CHECK_OK(adli_events_cut(path, &cases[i].from));
        CHECK(cases[i].records > 0 || access(path, F_OK) != 0);
        if (cases[i].records > 0)
            CHECK_INT(count_records(path, &whole), cases[i].records);
        CHECK(whole);
    }
    remove_tree(directory);
}

TEST(a_torn_event_is_cut_off)
{
    const char *directory = fresh_directory();
    char path[4096];
    bool whole;
    write_epochs(directory, path, sizeof path);
    struct stat about;
    CHECK(stat(path, &about) == 0 && truncate(path, about.st_size - 3) == 0);
    CHECK_OK(adli_events_cut(path, &(adli_events_from){.batch = 1000, .epoch = 1000}));
    CHECK_INT(count_records(path, &whole), 9);
    CHECK(whole);
    CHECK(adli_events_cut("/nonexistent/events", &(adli_events_from){0}) == ADL_ENOENT);
    CHECK(strstr(adl_error(), "/nonexistent/events"));
    remove_tree(directory);
}
