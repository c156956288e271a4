/* Training speed of the tutorial's network: ours. tools/bench-mnist runs this and the same thing in
 * PyTorch (bench_mnist_torch.py) in turns.
 *
 *   bench_mnist --write DIR          generated digits as IDX files (12800 to train, 2000 to test)
 *   bench_mnist DIR THREADS STEPS    trains on DIR's first examples and prints one line
 */
#include "adaptdl/dataset.h"
#include "adaptdl/nn.h"
#include "adaptdl/optim.h"
#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, WARMUP = 5, TRAIN = 12800, TEST_COUNT = 2000 };

static void die(void)
{
    fprintf(stderr, "bench_mnist: %s\n", adl_error());
    exit(1);
}

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != ADL_OK)                                                                      \
            die();                                                                                 \
    } while (0)

static void put_be32(adli_buf *buf, uint32_t value)
{
    unsigned char bytes[4] = {(unsigned char)(value >> 24), (unsigned char)(value >> 16),
                              (unsigned char)(value >> 8), (unsigned char)value};
    adli_buf_append(buf, bytes, 4);
}

static void write_part(const char *directory, const char *part, size_t count, uint64_t seed)
{
    adl_dataset *set;
    DO(adl_dataset_digits(count, seed, &set));
    adli_buf images, labels;
    adli_buf_init(&images, 1 << 28);
    adli_buf_init(&labels, 1 << 28);
    put_be32(&images, 2051);
    put_be32(&images, (uint32_t)count);
    put_be32(&images, 28);
    put_be32(&images, 28);
    put_be32(&labels, 2049);
    put_be32(&labels, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        int32_t label;
        DO(adl_dataset_get(set, i, NULL, &label));
        unsigned char byte = (unsigned char)label;
        adli_buf_append(&images, adl_dataset_pixels(set, i), 28 * 28);
        adli_buf_append(&labels, &byte, 1);
    }
    DO(adli_buf_check(&images));
    DO(adli_buf_check(&labels));
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", directory, part);
    DO(adli_file_write(path, images.data, images.length));
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", directory, part);
    DO(adli_file_write(path, labels.data, labels.length));
    adli_buf_fini(&images);
    adli_buf_fini(&labels);
    adl_dataset_free(set);
}

static adl_net *tutorial_network(void)
{
    adl_net *net;
    DO(adl_net_new(ADL_SHAPE(1, 28, 28), &net));
    adl_net_conv2d(net, "conv1", &(adl_conv2d){.out = 32, .kernel = 3});
    adl_net_relu(net);
    adl_net_conv2d(net, "conv2", &(adl_conv2d){.out = 64, .kernel = 3});
    adl_net_relu(net);
    adl_net_max_pool2d(net, 2, 0);
    adl_net_dropout(net, 0.25);
    adl_net_flatten(net);
    adl_net_linear(net, "fc1", &(adl_linear){.out = 128});
    adl_net_relu(net);
    adl_net_dropout(net, 0.5);
    adl_net_linear(net, "fc2", &(adl_linear){.out = 10});
    adl_net_log_softmax(net);
    DO(adl_net_build(net, 1));
    return net;
}

typedef struct part_times {
    double forward_s, backward_s, optimizer_s;
} part_times;

static double train(adl_net *net, adl_optim *optim, const adl_dataset *set, int first, int steps,
                    part_times *times)
{
    static float x[BATCH * 28 * 28], dout[BATCH * 10];
    int32_t label[BATCH];
    size_t index[BATCH];
    double loss = 0;
    for (int step = first; step < first + steps; step++) {
        for (size_t i = 0; i < BATCH; i++)
            index[i] = ((size_t)step * BATCH + i) % adl_dataset_get_info(set).count;
        double start = adli_monotonic_s();
        DO(adl_dataset_batch(set, index, BATCH, x, label));
        const float *out;
        adl_pass pass = {.train = true, .seed = (uint64_t)step};
        DO(adl_net_forward(net, x, BATCH, &pass, &out));
        DO(adl_loss_nll(out, label, BATCH, 10, ADL_MEAN, &loss, dout));
        double forward = adli_monotonic_s();
        DO(adl_net_backward(net, dout, NULL, ADL_GRAD_SET));
        double backward = adli_monotonic_s();
        DO(adl_optim_step(optim, NULL));
        times->forward_s += forward - start;
        times->backward_s += backward - forward;
        times->optimizer_s += adli_monotonic_s() - backward;
    }
    return loss;
}

static double accuracy(adl_net *net, const adl_dataset *set)
{
    static float x[500 * 28 * 28];
    int32_t label[500];
    size_t index[500], count = adl_dataset_get_info(set).count, correct = 0;
    for (size_t at = 0; at < count; at += 500) {
        size_t n = count - at < 500 ? count - at : 500;
        for (size_t i = 0; i < n; i++)
            index[i] = at + i;
        const float *out;
        DO(adl_dataset_batch(set, index, n, x, label));
        DO(adl_net_forward(net, x, (int)n, NULL, &out));
        correct += (size_t)adl_count_correct(out, label, (int)n, 10);
    }
    return 100.0 * (double)correct / (double)count;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        write_part(argv[2], "train", TRAIN, 1);
        write_part(argv[2], "t10k", TEST_COUNT, 2);
        return 0;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: bench_mnist --write DIR | DIR THREADS STEPS\n");
        return 2;
    }
    int steps = atoi(argv[3]);
    adl_dataset *set, *test;
    const double mean = 0.1307, std = 0.3081;
    DO(adl_nn_set_threads(atoi(argv[2])));
    DO(adl_dataset_mnist(argv[1], ADL_TRAIN, &set));
    DO(adl_dataset_mnist(argv[1], ADL_TEST, &test));
    DO(adl_dataset_normalize(set, &mean, &std));
    DO(adl_dataset_normalize(test, &mean, &std));
    adl_net *net = tutorial_network();
    size_t count;
    const adl_param *params = adl_net_params(net, &count);
    adl_optim_options options = ADL_ADADELTA_INIT;
    adl_optim *optim;
    DO(adl_optim_new(params, count, &options, &optim));
    part_times times = {0};
    train(net, optim, set, 0, WARMUP, &times);
    times = (part_times){0};
    double cpu = adli_clock_of(CLOCK_PROCESS_CPUTIME_ID);
    double loss = train(net, optim, set, WARMUP, steps, &times);
    cpu = adli_clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    double ms = 1e3 / steps, total = times.forward_s + times.backward_s + times.optimizer_s;
    printf("ms_per_step %.3f cpu %.3f forward %.3f backward %.3f optimizer %.3f loss %.4f "
           "accuracy %.2f\n",
           ms * total, ms * cpu, ms * times.forward_s, ms * times.backward_s,
           ms * times.optimizer_s, loss, accuracy(net, test));
    adl_optim_free(optim);
    adl_net_free(net);
    adl_dataset_free(set);
    adl_dataset_free(test);
    return 0;
}
