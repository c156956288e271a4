/* CIFAR-10 records: any bytes are either refused or become examples with labels below 10. */
#include "nn/dataset.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (adli_cifar10_check("file", data, size) != ADL_OK)
        return 0;
    adl_dataset_info info = {
        .count = size / ADLI_CIFAR_RECORD, .channels = 3, .height = 32, .width = 32, .classes = 10};
    adl_dataset *set;
    if (adli_dataset_new(&info, &set) != ADL_OK)
        return 0;
    adli_cifar10_copy(data, size, set, 0);
    static float x[3072];
    for (size_t i = 0; i < info.count; i++) {
        int32_t label;
        if (adl_dataset_get(set, i, x, &label) != ADL_OK || label < 0 || label > 9 ||
            adl_dataset_pixels(set, i)[0] != data[i * ADLI_CIFAR_RECORD + 1])
            abort();
    }
    adl_dataset_free(set);
    return 0;
}
