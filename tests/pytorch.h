/* Reads tests/golden/data/pytorch.bin (tools/dump-pytorch-golden.py), and makes the same inputs as that
 * script. */
#ifndef ADLI_TEST_PYTORCH_H
#define ADLI_TEST_PYTORCH_H

#include "harness.h"

#include "base/buf.h"
#include "base/file.h"

#include <stdint.h>

/* The numbers of one record, as doubles, to be freed; NULL with a failed test when there are none. */
static inline double *golden_get(const char *name, size_t *count)
{
    static adli_buf file;
    if (!file.data) {
        adli_buf_init(&file, 1 << 20);
        if (adli_file_read("tests/golden/data/pytorch.bin", &file) != ADL_OK || file.length < 8 ||
            memcmp(file.data, "ADLGOLD1", 8) != 0) {
            ADLT_FAIL("golden file: %s", adl_error());
            return NULL;
        }
    }
    for (size_t at = 8; at + 4 <= file.length;) {
        uint32_t length, kind, n;
        memcpy(&length, file.data + at, 4);
        const char *key = file.data + at + 4;
        memcpy(&kind, key + length, 4);
        memcpy(&n, key + length + 4, 4);
        const char *data = key + length + 8;
        if (length == strlen(name) && memcmp(key, name, length) == 0) {
            double *out = malloc(n * sizeof *out);
            for (size_t i = 0; i < n; i++) {
                float value;
                memcpy(&value, data + 4 * i, 4);
                if (kind == 1)
                    memcpy(&out[i], data + 8 * i, 8);
                else
                    out[i] = value;
            }
            *count = n;
            return out;
        }
        at = (size_t)(data - file.data) + n * (kind == 1 ? 8 : 4);
    }
    ADLT_FAIL("golden file has no %s", name);
    return NULL;
}

/* The script's fill(). */
static inline void golden_fill(float *out, size_t count, uint32_t seed, float scale)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)i + seed * 7919;
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        x ^= x >> 16;
        out[i] = ((float)(x >> 8) * 0x1p-23f - 1) * scale;
    }
}

/* Largest |got - wanted| as a fraction of the largest |wanted| (of 1 when that is smaller): the right
 * measure for sums of many terms, where single elements may cancel. Infinite when counts differ. */
static inline double golden_error(const char *name, const float *got, size_t count)
{
    size_t wanted_count;
    double *wanted = golden_get(name, &wanted_count), worst = 0, largest = 1;
    if (!wanted || wanted_count != count) {
        ADLT_FAIL("%s: %zu numbers, wanted %zu", name, count, wanted ? wanted_count : 0);
        free(wanted);
        return HUGE_VAL;
    }
    for (size_t i = 0; i < count; i++) {
        double error = fabs(got[i] - wanted[i]);
        worst = error > worst || isnan(error) ? error : worst;
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    free(wanted);
    return worst / largest;
}

#endif
