/* IDX pairs and gzip: any bytes are either refused or become a set whose examples can be read. The
 * input is one file or two: the first two bytes (big-endian) say where the labels begin. */
#include "nn/dataset.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const adl_dataset *set)
{
    adl_dataset_info info = adl_dataset_get_info(set);
    float *x = malloc(adl_dataset_example_size(set) * sizeof *x);
    for (size_t i = 0; x && i < info.count && i < 8; i++) {
        int32_t label;
        if (adl_dataset_get(set, i, x, &label) != ADL_OK || label < 0 || label >= info.classes)
            abort();
    }
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t cut = ((size_t)data[0] << 8 | data[1]);
    data += 2;
    size -= 2;
    if (cut > size)
        cut = size;
    adli_buf images;
    adli_buf_init(&images, 1 << 20);
    adli_buf_append(&images, data, cut);
    adl_dataset *set;
    if (adli_gunzip("images", &images) == ADL_OK &&
        adli_idx_parse("images", (const uint8_t *)images.data, images.length, "labels", data + cut,
                       size - cut, &set) == ADL_OK) {
        read_all(set);
        adl_dataset_free(set);
    }
    adli_buf_fini(&images);
    return 0;
}
