/* The part of NSGA-II (Deb et al., 2002) that knows nothing about the problem: who dominates whom,
 * who lies in a crowd, who survives, who becomes a parent. Two objectives, both maximised, which
 * makes the sorting O(n log n). */
#ifndef ADLI_NSGA2_H
#define ADLI_NSGA2_H

#include <stdbool.h>

typedef struct adli_nsga2_point {
    double first, second; /* the objectives; finite */
    int front;            /* 0: nobody dominates it */
    double crowding;      /* distance to its neighbours on the front; INFINITY at the ends */
} adli_nsga2_point;

/* Scratch of the sort, one per point. */
typedef struct adli_nsga2_rank {
    double first, second;
    int index, front;
} adli_nsga2_rank;

/* Chooses `keep` (<= count) survivors and writes their front and crowding: whole fronts, best first,
 * and of the last one those that stand most alone. survivors: [keep] indices into points, fronts in
 * order; ranks: [2 * count] scratch. Ties go to the smaller index, so that the result depends on
 * nothing but the input. */
void adli_nsga2_survive(adli_nsga2_point *points, int count, adli_nsga2_rank *ranks, int keep,
                        int *survivors);

/* The order of the tournament: the better front, then the less crowded. */
static inline bool adli_nsga2_wins(const adli_nsga2_point *a, const adli_nsga2_point *b)
{
    return a->front != b->front ? a->front < b->front : a->crowding > b->crowding;
}

#endif
