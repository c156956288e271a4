/* Allocation with overflow checks, and a switch that makes the nth allocation fail so that tests can
 * walk every out-of-memory path. */
#ifndef ADLI_MEM_H
#define ADLI_MEM_H

#include <stddef.h>
#include <stdint.h>

#define ADLI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Zeroed storage for count objects; NULL when there is none or the product overflows. A count of 0
 * gives a unique pointer, so NULL always means failure. Free with free(). */
void *adli_calloc(size_t count, size_t size) __attribute__((malloc));
void *adli_realloc(void *old, size_t count, size_t size);
char *adli_strdup(const char *text) __attribute__((malloc));
void *adli_memdup(const void *data, size_t count, size_t size) __attribute__((malloc));

/* Grows *array (of elements of the given size) so that it holds at least `need`; doubles. Returns 0,
 * or -1 with *array untouched. */
int adli_grow(void *array, size_t *capacity, size_t need, size_t size);

/* Tests only: the nth allocation from now (1 = the next) fails, once; 0 switches it off. */
void adli_mem_fail_at(int64_t nth);
/* Tests only: how many allocations were asked for so far. */
int64_t adli_mem_count(void);

#endif
