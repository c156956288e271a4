/* A heap of numbers in an array, the first in order on top. Inline, so that the order costs no call. */
#ifndef ADLI_POLICY_HEAP_H
#define ADLI_POLICY_HEAP_H

#include <stdbool.h>

/* order[at] goes down to where it belongs; everything below at is a heap already. */
static inline void adli_heap_sift(int *order, int count, int at,
                                  bool (*before)(const void *user, int x, int y), const void *user)
{
    int moved = order[at];
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(user, order[child + 1], order[child]))
            child++;
        if (!before(user, order[child], moved))
            break;
        order[at] = order[child];
    }
    order[at] = moved;
}

#endif
