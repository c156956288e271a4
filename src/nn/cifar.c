/* CIFAR-10 binary files: records of one label byte and 3 x 32 x 32 pixels, red plane first. There is no
 * header, so what can be checked is the size and every label. */
#include "nn/dataset.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { PIXELS = 3 * 32 * 32, CLASSES = 10 };
static const size_t FILE_MAX = (size_t)1 << 30;

adl_status adli_cifar10_check(const char *name, const uint8_t *data, size_t length)
{
    if (length == 0 || length % ADLI_CIFAR_RECORD != 0)
        return adli_fail(ADL_EINVAL, "%s: size is %zu bytes, not a multiple of the record's %d",
                         name, length, ADLI_CIFAR_RECORD);
    for (size_t i = 0; i < length / ADLI_CIFAR_RECORD; i++)
        if (data[i * ADLI_CIFAR_RECORD] >= CLASSES)
            return adli_fail(ADL_EINVAL, "%s: label of record %zu is %d, must be below %d", name, i,
                             data[i * ADLI_CIFAR_RECORD], CLASSES);
    return ADL_OK;
}

void adli_cifar10_copy(const uint8_t *data, size_t length, adl_dataset *set, size_t first)
{
    for (size_t i = 0; i < length / ADLI_CIFAR_RECORD; i++) {
        set->labels[first + i] = data[i * ADLI_CIFAR_RECORD];
        memcpy(set->pixels + (first + i) * PIXELS, data + i * ADLI_CIFAR_RECORD + 1, PIXELS);
    }
}

adl_status adl_dataset_cifar10_files(const char *const *paths, size_t path_count, adl_dataset **out)
{
    *out = NULL;
    if (path_count == 0)
        return adli_fail(ADL_EINVAL, "CIFAR-10: no files given");
    adl_dataset_info info = {.channels = 3, .height = 32, .width = 32, .classes = CLASSES};
    adli_buf *files = adli_calloc(path_count, sizeof *files);
    if (!files)
        return adli_fail_memory("CIFAR-10 files");
    adl_status status = ADL_OK;
    for (size_t i = 0; i < path_count && status == ADL_OK; i++) {
        adli_buf_init(&files[i], FILE_MAX);
        status = adli_file_read(paths[i], &files[i]);
        if (status == ADL_OK)
            status = adli_cifar10_check(paths[i], (const uint8_t *)files[i].data, files[i].length);
        info.count += files[i].length / ADLI_CIFAR_RECORD;
    }
    if (status == ADL_OK)
        status = adli_dataset_new(&info, out);
    size_t first = 0;
    for (size_t i = 0; i < path_count && status == ADL_OK; i++) {
        adli_cifar10_copy((const uint8_t *)files[i].data, files[i].length, *out, first);
        first += files[i].length / ADLI_CIFAR_RECORD;
    }
    for (size_t i = 0; i < path_count; i++)
        adli_buf_fini(&files[i]);
    free(files);
    return status;
}

adl_status adl_dataset_cifar10(const char *directory, adl_dataset_part part, adl_dataset **out)
{
    *out = NULL;
    size_t count = part == ADL_TRAIN ? 5 : 1;
    adli_buf paths[5];
    const char *names[5];
    adl_status status = ADL_OK;
    for (size_t i = 0; i < count; i++) {
        adli_buf_init(&paths[i], 4096);
        if (part == ADL_TRAIN)
            adli_buf_printf(&paths[i], "%s/data_batch_%zu.bin", directory, i + 1);
        else
            adli_buf_printf(&paths[i], "%s/test_batch.bin", directory);
        if (status == ADL_OK)
            status = adli_buf_check(&paths[i]);
        names[i] = paths[i].data;
    }
    if (status == ADL_OK)
        status = adl_dataset_cifar10_files(names, count, out);
    for (size_t i = 0; i < count; i++)
        adli_buf_fini(&paths[i]);
    return status;
}
