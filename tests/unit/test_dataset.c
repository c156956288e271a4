/* Readers against good files and every way of being wrong we could think of; generators: the same
 * bytes for the same seed, and as hard as they should be. */
#include "harness.h"

#include "adaptdl/dataset.h"
#include "adaptdl/nn.h"
#include "adaptdl/optim.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/dataset.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static char directory[64];

/* A file of this test in a temporary directory that is removed at the end; static text. */
static const char *path_of(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    if (!directory[0]) {
        strcpy(directory, "/tmp/adl-dataset-XXXXXX");
        if (!mkdtemp(directory))
            ADLT_FAIL("mkdtemp");
    }
    snprintf(path, 128, "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t length)
{
    CHECK_OK(adli_file_write(path_of(name), data, length));
}

static void write_gzip(const char *name, const void *data, size_t length)
{
    gzFile file = gzopen(path_of(name), "wb");
    CHECK(file && gzwrite(file, data, (unsigned)length) == (int)length);
    gzclose(file);
}

enum { COUNT = 3, ROWS = 4, COLUMNS = 5, PIXELS = COUNT * ROWS * COLUMNS };
static uint8_t images[16 + PIXELS + 1], labels[8 + COUNT + 1];

static void make_idx(void)
{
    static const uint8_t image_header[16] = {0, 0, 8, 3,    0, 0, 0, COUNT,
                                             0, 0, 0, ROWS, 0, 0, 0, COLUMNS};
    static const uint8_t label_header[8] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    memcpy(images, image_header, 16);
    memcpy(labels, label_header, 8);
    for (int i = 0; i < PIXELS; i++)
        images[16 + i] = (uint8_t)(i * 4);
    for (int i = 0; i < COUNT; i++)
        labels[8 + i] = (uint8_t)(9 - i);
}

static void check_good(adl_dataset *set)
{
    REQUIRE(set != NULL);
    adl_dataset_info info = adl_dataset_get_info(set);
    CHECK(info.count == COUNT && info.channels == 1 && info.height == ROWS);
    CHECK(info.width == COLUMNS && info.classes == 10);
    float x[2 * ROWS * COLUMNS];
    int32_t label[2];
    size_t index[2] = {2, 0};
    CHECK_OK(adl_dataset_batch(set, index, 2, x, label));
    CHECK(label[0] == 7 && label[1] == 9);
    CHECK_NEAR(x[0], 2 * 20 * 4 / 255.0, 1e-6);
    CHECK(x[20] == 0);
    CHECK_NEAR(x[39], 19 * 4 / 255.0, 1e-6);
    index[1] = 3;
    CHECK_FAILS(adl_dataset_batch(set, index, 2, x, label), ADL_EINVAL, "example 3 of 3");
    CHECK(adl_dataset_pixels(set, 3) == NULL && adl_dataset_pixels(set, 1)[0] == 80);
    adl_dataset_free(set);
}

TEST(idx_files)
{
    adl_dataset *set;
    make_idx();
    write_file("images", images, 16 + PIXELS);
    write_file("labels", labels, 8 + COUNT);
    CHECK_OK(adl_dataset_idx(path_of("images"), path_of("labels"), &set));
    check_good(set);
    write_gzip("images.gz", images, 16 + PIXELS);
    CHECK_OK(adl_dataset_idx(path_of("images.gz"), path_of("labels"), &set));
    check_good(set);
    write_file("train-images-idx3-ubyte", images, 16 + PIXELS);
    write_gzip("train-labels-idx1-ubyte.gz", labels, 8 + COUNT);
    path_of("");
    CHECK_OK(adl_dataset_mnist(directory, ADL_TRAIN, &set));
    check_good(set);
    CHECK_FAILS(adl_dataset_mnist(directory, ADL_TEST, &set), ADL_ENOENT, "t10k-images-idx3-ubyte");
    CHECK(set == NULL);
    CHECK_FAILS(adl_dataset_idx(path_of("none"), path_of("labels"), &set), ADL_ENOENT, "/none");
    CHECK_FAILS(adl_dataset_idx(directory, path_of("labels"), &set), ADL_EIO, directory);
}

static adl_status parse(size_t image_bytes, size_t label_bytes, adl_dataset **set)
{
    return adli_idx_parse("I", images, image_bytes, "L", labels, label_bytes, set);
}

/* One byte of the arrays changed for one call. */
#define CHECK_BYTE(array, at, value, text)                                                         \
    do {                                                                                           \
        make_idx();                                                                                \
        (array)[at] = (value);                                                                     \
        CHECK_FAILS(parse(16 + PIXELS, 8 + COUNT, &set), ADL_EINVAL, text);                        \
        CHECK(set == NULL);                                                                        \
    } while (0)

TEST(idx_wrong_fields)
{
    adl_dataset *set;
    for (int i = 0; i < 4; i++) {
        make_idx();
        CHECK_BYTE(images, i, (uint8_t)(images[i] + 1), "I: magic number is");
        make_idx();
        CHECK_BYTE(labels, i, (uint8_t)(labels[i] + 1), "L: magic number is");
    }
    CHECK_BYTE(images, 7, 0, "I: number of items is 0");
    CHECK_BYTE(images, 7, COUNT + 1, "I: size is 76 bytes, the header says 96");
    CHECK_BYTE(images, 7, COUNT - 1, "I: size is 76 bytes, the header says 56");
    CHECK_BYTE(images, 4, 255, "I: size is 76 bytes");
    CHECK_BYTE(images, 11, 0, "I: number of rows is 0");
    CHECK_BYTE(images, 11, ROWS + 1, "I: size is 76 bytes");
    CHECK_BYTE(images, 8, 255, "I: number of rows is 42781");
    CHECK_BYTE(images, 15, 0, "I: number of columns is 0");
    CHECK_BYTE(images, 15, COLUMNS - 1, "I: size is 76 bytes");
    CHECK_BYTE(images, 12, 1, "I: number of columns is 16777221");
    CHECK_BYTE(labels, 7, COUNT + 1, "L: number of items is 4, but I has 3");
    CHECK_BYTE(labels, 7, 0, "L: number of items is 0");
    make_idx();
    images[4] = images[8] = images[12] = 0xff; /* the product passes 64 bits */
    CHECK(parse(16 + PIXELS, 8 + COUNT, &set) == ADL_EINVAL);
}

TEST(idx_wrong_sizes)
{
    adl_dataset *set;
    make_idx();
    for (size_t length = 0; length < 16 + PIXELS; length++)
        CHECK_FAILS(parse(length, 8 + COUNT, &set), ADL_EINVAL, "I: ");
    CHECK_FAILS(parse(16 + PIXELS + 1, 8 + COUNT, &set), ADL_EINVAL, "I: size is 77");
    for (size_t length = 0; length < 8 + COUNT; length++)
        CHECK_FAILS(parse(16 + PIXELS, length, &set), ADL_EINVAL, "L: ");
    CHECK_FAILS(parse(16 + PIXELS, 8 + COUNT + 1, &set), ADL_EINVAL, "L: size is 12");
    CHECK_OK(parse(16 + PIXELS, 8 + COUNT, &set));
    adl_dataset_free(set);
    labels[8] = 61; /* letters: more than ten classes */
    CHECK_OK(parse(16 + PIXELS, 8 + COUNT, &set));
    CHECK_INT(adl_dataset_get_info(set).classes, 62);
    adl_dataset_free(set);
}

TEST(gzip_damage)
{
    adl_dataset *set;
    make_idx();
    write_file("labels", labels, 8 + COUNT);
    write_gzip("good.gz", images, 16 + PIXELS);
    adli_buf good;
    adli_buf_init(&good, 1 << 16);
    REQUIRE_OK(adli_file_read(path_of("good.gz"), &good));
    for (size_t length = 2; length < good.length; length++) {
        write_file("cut.gz", good.data, length);
        CHECK_FAILS(adl_dataset_idx(path_of("cut.gz"), path_of("labels"), &set), ADL_EINVAL,
                    "cut.gz: gzip data");
    }
    good.data[good.length - 6] ^= 1; /* the checksum */
    write_file("sum.gz", good.data, good.length);
    CHECK_FAILS(adl_dataset_idx(path_of("sum.gz"), path_of("labels"), &set), ADL_EINVAL,
                "incorrect data check");
    good.data[good.length - 6] ^= 1;
    adli_buf_append(&good, "x", 1);
    write_file("more.gz", good.data, good.length);
    CHECK_FAILS(adl_dataset_idx(path_of("more.gz"), path_of("labels"), &set), ADL_EINVAL,
                "1 bytes follow");
    adli_buf_fini(&good);

    size_t zeros = 1 << 20; /* a small file that would be large */
    char *data = calloc(zeros, 1);
    write_gzip("bomb.gz", data, zeros);
    adli_buf small;
    adli_buf_init(&small, 4096);
    REQUIRE_OK(adli_file_read(path_of("bomb.gz"), &small));
    CHECK_FAILS(adli_gunzip("bomb.gz", &small), ADL_EINVAL, "more than 4096 bytes");
    adli_buf_fini(&small);
    free(data);
}

TEST(cifar_files)
{
    enum { RECORDS = 3 };
    static uint8_t data[RECORDS * 3073];
    adl_dataset *set;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (int i = 0; i < RECORDS; i++)
        data[i * 3073] = (uint8_t)(i + 4);
    write_file("data_batch_1.bin", data, sizeof data);
    write_file("test_batch.bin", data, 2 * 3073);
    path_of("");
    CHECK_OK(adl_dataset_cifar10(directory, ADL_TEST, &set));
    REQUIRE(set != NULL);
    CHECK_INT(adl_dataset_get_info(set).count, 2);
    adl_dataset_free(set);
    CHECK_FAILS(adl_dataset_cifar10(directory, ADL_TRAIN, &set), ADL_ENOENT, "data_batch_2.bin");
    const char *paths[2] = {path_of("data_batch_1.bin"), path_of("test_batch.bin")};
    CHECK_OK(adl_dataset_cifar10_files(paths, 2, &set));
    REQUIRE(set != NULL);
    adl_dataset_info info = adl_dataset_get_info(set);
    CHECK(info.count == 5 && info.channels == 3 && info.height == 32 && info.classes == 10);
    static float x[3072];
    int32_t label;
    CHECK_OK(adl_dataset_get(set, 4, x, &label));
    CHECK_INT(label, 5);
    for (int i = 0; i < 3072; i++)
        CHECK(fabsf(x[i] - (float)data[3073 + 1 + i] / 255) < 1e-6f);
    adl_dataset_free(set);

    for (int i = 0; i < RECORDS; i++) {
        data[i * 3073] = 10;
        char text[64];
        snprintf(text, sizeof text, "F: label of record %d is 10", i);
        CHECK_FAILS(adli_cifar10_check("F", data, sizeof data), ADL_EINVAL, text);
        data[i * 3073] = 1;
    }
    for (size_t length = 0; length < sizeof data; length += 439)
        if (length % 3073 != 0 || length == 0)
            CHECK_FAILS(adli_cifar10_check("F", data, length), ADL_EINVAL, "F: size is");
    CHECK_FAILS(adl_dataset_cifar10_files(paths, 0, &set), ADL_EINVAL, "no files");
}

TEST(normalisation)
{
    adl_dataset *set;
    REQUIRE_OK(adl_dataset_shapes(300, 5, &set));
    double mean[3], std[3], again_mean[3] = {0}, again_square[3] = {0};
    adl_dataset_stats(set, mean, std);
    CHECK_OK(adl_dataset_normalize(set, mean, std));
    static float x[3072];
    for (size_t i = 0; i < 300; i++) {
        CHECK_OK(adl_dataset_get(set, i, x, NULL));
        for (int k = 0; k < 3072; k++) {
            again_mean[k / 1024] += x[k] / (300.0 * 1024);
            again_square[k / 1024] += x[k] * x[k] / (300.0 * 1024);
        }
    }
    for (int c = 0; c < 3; c++) {
        CHECK(fabs(again_mean[c]) < 1e-4);
        CHECK_NEAR(again_square[c], 1, 1e-4);
    }
    std[1] = 0;
    CHECK_FAILS(adl_dataset_normalize(set, mean, std), ADL_EINVAL, "channel 1");
    mean[0] = NAN;
    CHECK_FAILS(adl_dataset_normalize(set, mean, std), ADL_EINVAL, "channel 0");
    adl_dataset_free(set);
}

static uint64_t hash_of(const adl_dataset *set)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    adl_dataset_info info = adl_dataset_get_info(set);
    for (size_t i = 0; i < info.count; i++) {
        int32_t label = 0;
        CHECK_OK(adl_dataset_get(set, i, NULL, &label));
        hash = (hash ^ (uint64_t)label) * 1099511628211u;
        for (size_t k = 0; k < adl_dataset_example_size(set); k++)
            hash = (hash ^ adl_dataset_pixels(set, i)[k]) * 1099511628211u;
    }
    return hash;
}

#define CHECK_HASH(got, wanted)                                                                    \
    do {                                                                                           \
        uint64_t hash = (got);                                                                     \
        if (hash != (wanted))                                                                      \
            ADLT_FAIL("hash is 0x%llx", (unsigned long long)hash);                                 \
    } while (0)

/* The very bytes are pinned: a generator that changes would silently change every benchmark and
 * example that uses it. */
TEST(generated_bytes)
{
    adl_dataset *a, *b, *c;
    REQUIRE_OK(adl_dataset_digits(500, 1, &a));
    REQUIRE_OK(adl_dataset_digits(200, 1, &b));
    REQUIRE_OK(adl_dataset_digits(200, 2, &c));
    CHECK(memcmp(adl_dataset_pixels(a, 0), adl_dataset_pixels(b, 0), 200 * 784) == 0);
    CHECK(hash_of(b) != hash_of(c));
    CHECK_HASH(hash_of(a), 0x3c8e68f3624525ccu);
    adl_dataset_free(a);
    adl_dataset_free(b);
    adl_dataset_free(c);
    REQUIRE_OK(adl_dataset_shapes(500, 1, &a));
    CHECK_HASH(hash_of(a), 0x1a5748ad565cbe6au);
    adl_dataset_free(a);
    CHECK_FAILS(adl_dataset_digits(0, 1, &a), ADL_EINVAL, "count is 0");
    CHECK_FAILS(adl_dataset_shapes(0, 1, &a), ADL_EINVAL, "count is 0");
    CHECK_FAILS(adl_dataset_digits((size_t)1 << 60, 1, &a), ADL_ENOMEM, "data set of");
}

TEST(generated_classes)
{
    for (int which = 0; which < 2; which++) {
        adl_dataset *set;
        int counts[10] = {0};
        if (which == 0)
            REQUIRE_OK(adl_dataset_digits(5000, 3, &set));
        else
            REQUIRE_OK(adl_dataset_shapes(5000, 3, &set));
        for (size_t i = 0; i < 5000; i++) {
            int32_t label;
            CHECK_OK(adl_dataset_get(set, i, NULL, &label));
            REQUIRE(label >= 0 && label < 10);
            counts[label]++;
        }
        for (int k = 0; k < 10; k++)
            CHECK(abs(counts[k] - 500) < 5 * 22); /* five standard deviations */
        adl_dataset_free(set);
    }
}

/* Trains with Adam and gives the accuracy on the test set in percent. */
static double train(adl_net *net, const adl_dataset *set, const adl_dataset *test, int steps)
{
    enum { BATCH = 64 };
    static float x[BATCH * 784], dout[BATCH * 10];
    int32_t label[BATCH];
    size_t index[BATCH], count, correct = 0;
    const adl_param *params = adl_net_params(net, &count);
    adl_optim_options options = ADL_ADAM_INIT;
    adl_optim *optim;
    adli_rng rng;
    adli_rng_init(&rng, 1);
    CHECK_OK(adl_optim_new(params, count, &options, &optim));
    for (int step = 0; step < steps; step++) {
        const float *out;
        double loss;
        adl_optim_set_lr(optim, 0, 1e-3 * (step < steps * 2 / 3 ? 1 : 0.3));
        for (int i = 0; i < BATCH; i++)
            index[i] = adli_rng_below(&rng, (uint32_t)adl_dataset_get_info(set).count);
        CHECK_OK(adl_dataset_batch(set, index, BATCH, x, label));
        CHECK_OK(adl_net_forward(net, x, BATCH, &(adl_pass){.train = true}, &out));
        CHECK_OK(adl_loss_cross_entropy(out, label, BATCH, 10, ADL_MEAN, &loss, dout));
        CHECK_OK(adl_net_backward(net, dout, NULL, ADL_GRAD_SET));
        CHECK_OK(adl_optim_step(optim, NULL));
    }
    adl_optim_free(optim);
    size_t total = adl_dataset_get_info(test).count;
    for (size_t at = 0; at < total; at += BATCH) {
        size_t n = total - at < BATCH ? total - at : BATCH;
        const float *out;
        for (size_t i = 0; i < n; i++)
            index[i] = at + i;
        CHECK_OK(adl_dataset_batch(test, index, n, x, label));
        CHECK_OK(adl_net_forward(net, x, (int)n, NULL, &out));
        correct += (size_t)adl_count_correct(out, label, (int)n, 10);
    }
    return 100.0 * (double)correct / (double)total;
}

/* Digits: too hard for a linear model, not for a small convolutional network. */
TEST(digits_difficulty)
{
    adl_dataset *set, *test;
    adl_net *linear, *conv;
    const double mean = 0.1, std = 0.2;
    CHECK_OK(adl_nn_set_threads(1));
    REQUIRE_OK(adl_dataset_digits(20000, 1, &set));
    REQUIRE_OK(adl_dataset_digits(3000, 2, &test));
    CHECK_OK(adl_dataset_normalize(set, &mean, &std));
    CHECK_OK(adl_dataset_normalize(test, &mean, &std));
    CHECK_OK(adl_net_new(ADL_SHAPE(1, 28, 28), &linear));
    adl_net_flatten(linear);
    adl_net_linear(linear, NULL, &(adl_linear){.out = 10});
    CHECK_OK(adl_net_build(linear, 1));
    double linear_accuracy = train(linear, set, test, 1500);
    CHECK(linear_accuracy > 60 && linear_accuracy < 95);
    CHECK_OK(adl_net_new(ADL_SHAPE(1, 28, 28), &conv));
    adl_net_conv2d(conv, NULL, &(adl_conv2d){.out = 16, .kernel = 5});
    adl_net_relu(conv);
    adl_net_max_pool2d(conv, 2, 0);
    adl_net_conv2d(conv, NULL, &(adl_conv2d){.out = 32, .kernel = 5});
    adl_net_relu(conv);
    adl_net_max_pool2d(conv, 2, 0);
    adl_net_flatten(conv);
    adl_net_linear(conv, NULL, &(adl_linear){.out = 64});
    adl_net_relu(conv);
    adl_net_linear(conv, NULL, &(adl_linear){.out = 10});
    CHECK_OK(adl_net_build(conv, 1));
    double conv_accuracy = train(conv, set, test, 1600);
    CHECK(conv_accuracy >= 99);
    printf("info - generated digits: linear model %.2f %%, small convolutional network %.2f %%\n",
           linear_accuracy, conv_accuracy);
    adl_net_free(linear);
    adl_net_free(conv);
    adl_dataset_free(set);
    adl_dataset_free(test);
}

/* The real data set, when tools/get-mnist has been run. */
TEST(real_mnist)
{
    adl_dataset *set;
    if (adl_dataset_mnist("data/mnist", ADL_TRAIN, &set) == ADL_ENOENT)
        SKIP("no data/mnist (tools/get-mnist)");
    REQUIRE(set != NULL);
    double mean, std;
    CHECK_INT(adl_dataset_get_info(set).count, 60000);
    adl_dataset_stats(set, &mean, &std);
    CHECK_NEAR(mean, 0.1307, 1e-3); /* the numbers everybody normalises MNIST with */
    CHECK_NEAR(std, 0.3081, 1e-3);
    adl_dataset_free(set);
}

TEST(memory_runs_out)
{
    make_idx();
    write_file("images", images, 16 + PIXELS);
    write_gzip("labels.gz", labels, 8 + COUNT);
    int failures = 0;
    for (int nth = 1;; nth++, failures++) {
        adl_dataset *set;
        adli_mem_fail_at(nth);
        adl_status status = adl_dataset_idx(path_of("images"), path_of("labels.gz"), &set);
        adli_mem_fail_at(0);
        adl_dataset_free(set);
        if (status == ADL_OK)
            break;
        CHECK(set == NULL);
    }
    CHECK(failures >= 5);
}

TEST(clean_up)
{
    char command[128];
    if (!directory[0])
        return;
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_INT(system(command), 0);
}
