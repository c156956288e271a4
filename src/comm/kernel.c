/* Each loop is written once and compiled twice on x86-64: for every CPU, and for those with AVX2. The
 * choice is made at run time by hand, because target_clones resolves before a sanitizer is ready. */
#include "comm/kernel.h"

#define BODY static inline __attribute__((always_inline)) void

BODY add_body(float *restrict sum, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

BODY add_bf16_body(float *restrict sum, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += adli_bf16_to(x[i]);
}

BODY sum2_body(float *restrict x, float *restrict copy, const float *restrict other, float scale,
               size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = (x[i] + other[i]) * scale;
        x[i] = sum;
        copy[i] = sum;
    }
}

BODY scale_body(float *x, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

BODY divide_body(float *x, float divisor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] /= divisor;
}

BODY to_bf16_body(uint16_t *restrict out, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = adli_bf16_of(x[i]);
}

BODY from_bf16_body(float *restrict out, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = adli_bf16_to(x[i]);
}

BODY round_bf16_body(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = adli_bf16_to(adli_bf16_of(x[i]));
}

#define INSTANCE(suffix, attribute)                                                                \
    attribute static void add_##suffix(float *sum, const float *x, size_t n)                       \
    {                                                                                              \
        add_body(sum, x, n);                                                                       \
    }                                                                                              \
    attribute static void add_bf16_##suffix(float *sum, const uint16_t *x, size_t n)               \
    {                                                                                              \
        add_bf16_body(sum, x, n);                                                                  \
    }                                                                                              \
    attribute static void sum2_##suffix(float *x, float *copy, const float *other, float scale,    \
                                        size_t n)                                                  \
    {                                                                                              \
        sum2_body(x, copy, other, scale, n);                                                       \
    }                                                                                              \
    attribute static void scale_##suffix(float *x, float scale, size_t n)                          \
    {                                                                                              \
        scale_body(x, scale, n);                                                                   \
    }                                                                                              \
    attribute static void divide_##suffix(float *x, float divisor, size_t n)                       \
    {                                                                                              \
        divide_body(x, divisor, n);                                                                \
    }                                                                                              \
    attribute static void to_bf16_##suffix(uint16_t *out, const float *x, size_t n)                \
    {                                                                                              \
        to_bf16_body(out, x, n);                                                                   \
    }                                                                                              \
    attribute static void from_bf16_##suffix(float *out, const uint16_t *x, size_t n)              \
    {                                                                                              \
        from_bf16_body(out, x, n);                                                                 \
    }                                                                                              \
    attribute static void round_bf16_##suffix(float *x, size_t n)                                  \
    {                                                                                              \
        round_bf16_body(x, n);                                                                     \
    }                                                                                              \
    static const adli_kernels kernels_##suffix = {                                                 \
        add_##suffix,    add_bf16_##suffix, sum2_##suffix,      scale_##suffix,                    \
        divide_##suffix, to_bf16_##suffix,  from_bf16_##suffix, round_bf16_##suffix,               \
    };

INSTANCE(plain, )
#ifdef __x86_64__
INSTANCE(avx2, __attribute__((target("avx2"))))
#endif

const adli_kernels *adli_kernels_plain(void)
{
    return &kernels_plain;
}

const adli_kernels *adli_kernels_get(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return &kernels_avx2;
#endif
    return &kernels_plain;
}
