#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t fail_at;
static _Atomic int64_t asked;

static int refuse(void)
{
    int64_t now = atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed) + 1;
    return now == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

void adli_mem_fail_at(int64_t nth)
{
    fail_at = nth > 0 ? asked + nth : 0;
}

int64_t adli_mem_count(void)
{
    return asked;
}

void *adli_calloc(size_t count, size_t size)
{
    size_t bytes; /* calloc checks too, but sanitizers make that fatal */
    if (__builtin_mul_overflow(count, size, &bytes) || refuse())
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *adli_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || refuse())
        return NULL;
    return realloc(old, bytes ? bytes : 1);
}

void *adli_memdup(const void *data, size_t count, size_t size)
{
    void *copy = adli_calloc(count, size);
    if (copy && count)
        memcpy(copy, data, count * size);
    return copy;
}

char *adli_strdup(const char *text)
{
    return adli_memdup(text, strlen(text) + 1, 1);
}

int adli_grow(void *array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity)
        return 0;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    if (wanted < need)
        wanted = need;
    void *old;
    memcpy(&old, array, sizeof old); /* array is a T **, whatever T is */
    void *grown = adli_realloc(old, wanted, size);
    if (!grown)
        return -1;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return 0;
}
