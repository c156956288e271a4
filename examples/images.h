/* What the image examples share: the command line, loaders of images, and the way from main to the runner
 * and back. */
#ifndef EXAMPLES_IMAGES_H
#define EXAMPLES_IMAGES_H

#include "adaptdl/dataset.h"
#include "adaptdl/runner.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    CLASSES = 10,
    MAX_LOCAL = 128, /* examples in a replica's batch with --autoscale */
    TEST_BATCH = 250,
};

typedef struct settings {
    const char *data;       /* directory of the real files; NULL: generated images */
    const char *logdir;     /* for CSV files, events and models; NULL: none */
    int epochs, batch_size; /* batch over all replicas together */
    int examples;           /* how many to generate */
    int threads;            /* of each replica; 0: one per processor */
    double lr, gamma;       /* learning rate, and its factor in the schedule */
    bool autoscale;         /* let the runtime choose larger batches */
} settings;

enum { NUMBER_MAX = 10000000 };

/* A whole number from 1 to NUMBER_MAX into *out. */
static inline bool parse_int(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > NUMBER_MAX)
        return false;
    *out = (int)value;
    return true;
}

static inline bool parse_double(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out > 0 && *out < 1e6;
}

static inline void print_help(const char *program, const char *files, const settings *set)
{
    printf("Usage: %s [OPTIONS]\n\n"
           "Trains on generated images or real ones, alone or as a replica of `adaptdl run`.\n\n"
           "  --data DIR        %s\n"
           "  --examples N      images to generate without --data (default %d)\n"
           "  --epochs N        passes over the images (default %d)\n"
           "  --batch-size N    images in a step, over all replicas together (default %d)\n"
           "  --lr X            learning rate (default %g)\n"
           "  --gamma X         what the schedule multiplies it by (default %g)\n"
           "  --logdir DIR      CSV files, TensorBoard events and the best models go there\n"
           "  --threads N       threads of this replica (default: one per processor)\n"
           "  --autoscale       let the batch size grow where that trains faster\n"
           "  --help            this text\n\n"
           "Exit status: 0 finished, 143 interrupted, 1 failed, 2 called wrongly.\n",
           program, files, set->examples, set->epochs, set->batch_size, set->lr, set->gamma);
}

static inline bool take_option(int option, settings *set)
{
    switch (option) {
    case 'd':
        set->data = optarg;
        return true;
    case 'o':
        set->logdir = optarg;
        return true;
    case 'a':
        set->autoscale = true;
        return true;
    case 'l':
        return parse_double(optarg, &set->lr);
    case 'g':
        return parse_double(optarg, &set->gamma);
    case 'e':
        return parse_int(optarg, &set->epochs);
    case 'b':
        return parse_int(optarg, &set->batch_size);
    case 'n':
        return parse_int(optarg, &set->examples);
    default:
        return parse_int(optarg, &set->threads);
    }
}

/* Reads the command line into *set, which holds the defaults. `files` says what --data expects.
 * -1: go on; otherwise the exit code, and what there is to say was printed. */
static inline int parse_options(int argc, char **argv, const char *program, const char *files,
                                settings *set)
{
    static const struct option options[] = {{"data", required_argument, NULL, 'd'},
                                            {"logdir", required_argument, NULL, 'o'},
                                            {"epochs", required_argument, NULL, 'e'},
                                            {"batch-size", required_argument, NULL, 'b'},
                                            {"lr", required_argument, NULL, 'l'},
                                            {"gamma", required_argument, NULL, 'g'},
                                            {"examples", required_argument, NULL, 'n'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"autoscale", no_argument, NULL, 'a'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const settings defaults = *set;
    int option, which;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, &which)) != -1) {
        if (option == 'h') {
            print_help(program, files, &defaults);
            return 0;
        }
        if (option == '?' || option == ':') {
            fprintf(stderr, "%s: option %s %s (see: %s --help)\n", program, argv[optind - 1],
                    option == '?' ? "is unknown" : "needs a value", program);
            return 2;
        }
        if (!take_option(option, set)) {
            fprintf(stderr, "%s: --%s %s: not a number in its range (see: %s --help)\n", program,
                    options[which].name, optarg, program);
            return 2;
        }
    }
    if (optind == argc)
        return -1;
    fprintf(stderr, "%s: unexpected argument %s (see: %s --help)\n", program, argv[optind],
            program);
    return 2;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        adl_status try_status = (call);                                                            \
        if (try_status != ADL_OK)                                                                  \
            return try_status;                                                                     \
    } while (0)

/* What a run is made of. */
typedef struct images {
    adl_context *ctx;
    adl_dataset *train_set, *test_set;
    adl_net *net;
    adl_optim *optim;
    adl_schedule *schedule;
} images;

static inline adl_status fill_images(void *user, const adl_fill *fill)
{
    return adl_dataset_batch((const adl_dataset *)user, fill->index, (size_t)fill->count,
                             (float *)fill->part[0], (int32_t *)fill->part[1]);
}

/* Batches of images (part 0: [size][channels][height][width] floats) and labels (part 1: [size]),
 * shuffled. The set is borrowed. */
static inline adl_status image_loader(adl_context *ctx, const char *name, adl_dataset *set,
                                      int batch_size, bool drop_last, adl_loader **out)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    options.name = name;
    options.examples = adl_dataset_get_info(set).count;
    options.batch_size = batch_size;
    options.shuffle = true;
    options.drop_last = drop_last;
    options.part_bytes[0] = adl_dataset_example_size(set) * sizeof(float);
    options.part_bytes[1] = sizeof(int32_t);
    options.fill = fill_images;
    options.user = set;
    return adl_loader_new(ctx, &options, out);
}

/* Builds the network that was described, with its optimizer and schedule. */
static inline adl_status finish_model(images *run, const settings *set, adl_optim_options *optim,
                                      const adl_schedule_options *schedule)
{
    size_t count;
    TRY(adl_net_build(run->net, 1));
    const adl_param *params = adl_net_params(run->net, &count);
    optim->lr = set->lr;
    TRY(adl_optim_new(params, count, optim, &run->optim));
    return adl_schedule_new(adl_optim_get_ops(run->optim), schedule, &run->schedule);
}

/* Fills in what both programs give the runner: normalised images of both sets (mean and std of each
 * channel), the model, how long, where to. */
static inline adl_status image_loaders(images *run, const settings *set, const double *mean,
                                       const double *std, int max_batch_size,
                                       adl_runner_options *options)
{
    adl_loader *train, *test;
    TRY(adl_dataset_normalize(run->train_set, mean, std));
    TRY(adl_dataset_normalize(run->test_set, mean, std));
    TRY(image_loader(run->ctx, "train", run->train_set, set->batch_size, true, &train));
    TRY(image_loader(run->ctx, "test", run->test_set, TEST_BATCH, false, &test));
    if (set->autoscale)
        TRY(adl_loader_autoscale(train, max_batch_size, set->batch_size / 2, MAX_LOCAL, false));
    options->loaders[0] = (adl_runner_loader){"train", train};
    options->loaders[1] = (adl_runner_loader){"valid", test};
    adl_runner_net(options, run->net, run->optim, run->schedule);
    options->epochs = set->epochs;
    options->topk[0] = 1;
    options->logdir = set->logdir;
    return ADL_OK;
}

/* main: the command line, a context, training, and the exit code. */
static inline int image_program(int argc, char **argv, const char *program, const char *files,
                                settings *set, adl_status (*train)(images *, const settings *))
{
    adl_options options = ADL_OPTIONS_INIT;
    images run = {0};
    int done = parse_options(argc, argv, program, files, set);
    if (done >= 0)
        return done;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines at once, also into a pipe */
    options.program = program;
    adl_status status = set->threads ? adl_nn_set_threads(set->threads) : ADL_OK;
    if (status == ADL_OK)
        status = adl_init(&options, &run.ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "%s: %s\n", program, adl_error());
        return adl_exit_code(status);
    }
    adl_context_fail(run.ctx,
                     train(&run, set)); /* a failure stops the context: adl_finish says why */
    int code = adl_finish(run.ctx);
    adl_schedule_free(run.schedule);
    adl_optim_free(run.optim);
    adl_net_free(run.net);
    adl_dataset_free(run.test_set);
    adl_dataset_free(run.train_set);
    return code;
}

#endif
