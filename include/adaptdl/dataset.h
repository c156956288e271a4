/* Labelled image sets in memory: MNIST and CIFAR-10 files, and generated images for when there are
 * none. Pixels are kept as bytes and normalised on the way out. A set does not change once made
 * (except by adl_dataset_normalize), so that any number of threads may read it. */
#ifndef ADAPTDL_DATASET_H
#define ADAPTDL_DATASET_H

#include "adaptdl/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_dataset adl_dataset;

typedef struct adl_dataset_info {
    size_t count;                /* examples */
    int channels, height, width; /* of each */
    int classes;                 /* labels are 0 .. classes-1 */
} adl_dataset_info;

/* An IDX pair as MNIST has it: images (magic 2051) and labels (magic 2049), plain or compressed by
 * gzip (recognised by content). Every header field and the exact size are checked: ENOENT, EIO, or
 * EINVAL naming file and field. Blocks on files. *out is freed with adl_dataset_free. */
ADL_API ADL_MUST adl_status adl_dataset_idx(const char *images_path, const char *labels_path,
                                            adl_dataset **out);
/* MNIST in a directory by its usual names (train-images-idx3-ubyte, t10k-..., also with .gz). */
typedef enum adl_dataset_part {
    ADL_TRAIN,
    ADL_TEST,
} adl_dataset_part;
ADL_API ADL_MUST adl_status adl_dataset_mnist(const char *directory, adl_dataset_part part,
                                              adl_dataset **out);
/* CIFAR-10 binary batches: 3073-byte records, a label below 10 and 3 x 32 x 32 pixels, in one or more
 * files. EINVAL names the file and the record. */
ADL_API ADL_MUST adl_status adl_dataset_cifar10_files(const char *const *paths, size_t path_count,
                                                      adl_dataset **out);
/* A directory with data_batch_1.bin .. data_batch_5.bin and test_batch.bin. */
ADL_API ADL_MUST adl_status adl_dataset_cifar10(const char *directory, adl_dataset_part part,
                                                adl_dataset **out);

/* Generated: digits drawn with strokes (1 x 28 x 28, 10 classes) under random affine and elastic
 * distortion, thickness, blur, clutter and noise. Example i is a pure function of (seed, i): the same
 * bytes everywhere. Harder than a linear model can do, easy for a small convolutional network. */
ADL_API ADL_MUST adl_status adl_dataset_digits(size_t count, uint64_t seed, adl_dataset **out);
/* Generated colour images (3 x 32 x 32, 10 classes: shapes and textures of random colour, place, size
 * and background). Same rules. */
ADL_API ADL_MUST adl_status adl_dataset_shapes(size_t count, uint64_t seed, adl_dataset **out);

ADL_API void adl_dataset_free(adl_dataset *set);
ADL_API adl_dataset_info adl_dataset_get_info(const adl_dataset *set);
/* Floats in one example: channels * height * width. */
ADL_API size_t adl_dataset_example_size(const adl_dataset *set);

/* Mean and standard deviation of every channel over the set, pixels counted as 0 .. 1. Arrays of
 * `channels`. */
ADL_API void adl_dataset_stats(const adl_dataset *set, double *mean, double *std);
/* From now on examples are (pixel / 255 - mean[c]) / std[c]; before, pixel / 255. Arrays of
 * `channels`; EINVAL when a std is not above 0. Not while other threads read the set. */
ADL_API ADL_MUST adl_status adl_dataset_normalize(adl_dataset *set, const double *mean,
                                                  const double *std);

/* One example into x: [channels][height][width] and *label (either may be NULL). EINVAL for an index
 * past the end. */
ADL_API ADL_MUST adl_status adl_dataset_get(const adl_dataset *set, size_t index, float *x,
                                            int32_t *label);
/* Examples index[0 .. count-1] into x: [count][channels][height][width] and label: [count]. */
ADL_API ADL_MUST adl_status adl_dataset_batch(const adl_dataset *set, const size_t *index,
                                              size_t count, float *x, int32_t *label);
/* The stored bytes of one example, [channels][height][width]; NULL past the end. Borrowed. */
ADL_API const uint8_t *adl_dataset_pixels(const adl_dataset *set, size_t index);

#ifdef __cplusplus
}
#endif
#endif
