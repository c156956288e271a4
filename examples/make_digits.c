/* Writes generated digits as the four files of MNIST, for programs that read those (examples/pytorch)
 * on machines that do not have the real ones:
 *     make_digits DIRECTORY [TRAINING [TEST]]      numbers of images, default 6000 and 1000 */
#include "adaptdl/adaptdl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SIDE = 28, MOST = 1000000 };

static void put_be32(FILE *file, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        putc((int)(value >> shift & 0xff), file);
}

static FILE *create(const char *directory, const char *part, const char *kind)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s-%s-ubyte", directory, part, kind) >= (int)sizeof path)
        return NULL;
    FILE *file = fopen(path, "wb");
    if (!file)
        fprintf(stderr, "make_digits: %s: %s\n", path, strerror(errno));
    return file;
}

static int write_part(const char *directory, const char *part, uint32_t count, uint64_t seed)
{
    int failed = 1;
    adl_dataset *digits = NULL;
    FILE *images = create(directory, part, "images-idx3");
    FILE *labels = create(directory, part, "labels-idx1");
    if (!images || !labels)
        goto out;
    if (adl_dataset_digits(count, seed, &digits) != ADL_OK) {
        fprintf(stderr, "make_digits: %s\n", adl_error());
        goto out;
    }
    put_be32(images, 2051);
    put_be32(images, count);
    put_be32(images, SIDE);
    put_be32(images, SIDE);
    put_be32(labels, 2049);
    put_be32(labels, count);
    for (uint32_t i = 0; i < count; i++) {
        int32_t label;
        if (adl_dataset_get(digits, i, NULL, &label) != ADL_OK)
            goto out;
        fwrite(adl_dataset_pixels(digits, i), 1, (size_t)SIDE * SIDE, images);
        putc(label, labels);
    }
    failed = 0;
out:
    adl_dataset_free(digits);
    if (labels && fclose(labels) != 0)
        failed = 1;
    if (images && fclose(images) != 0)
        failed = 1;
    return failed;
}

static uint32_t number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    return end != text && !*end && value > 0 && value <= MOST ? (uint32_t)value : 0;
}

int main(int argc, char **argv)
{
    uint32_t training = argc > 2 ? number(argv[2]) : 6000;
    uint32_t test = argc > 3 ? number(argv[3]) : 1000;
    if (argc < 2 || argc > 4 || argv[1][0] == '-' || training == 0 || test == 0) {
        fprintf(stderr, "Usage: make_digits DIRECTORY [TRAINING [TEST]], 1 to %d images each\n",
                MOST);
        return 2;
    }
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "make_digits: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    if (write_part(argv[1], "train", training, 1) || write_part(argv[1], "t10k", test, 2))
        return 1;
    printf("make_digits: %s has %u training and %u test images\n", argv[1], training, test);
    return 0;
}
