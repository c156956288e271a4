#include "policy/nsga2.h"

#include <math.h>
#include <stdlib.h>

/* Best first objective first, then best second. */
static int by_objectives(const void *a, const void *b)
{
    const adli_nsga2_rank *x = a, *y = b;
    if (x->first != y->first)
        return x->first > y->first ? -1 : 1;
    if (x->second != y->second)
        return x->second > y->second ? -1 : 1;
    return x->index - y->index;
}

/* Crowding travels in `first` here; see last_front. */
static int by_crowding(const void *a, const void *b)
{
    const adli_nsga2_rank *x = a, *y = b;
    if (x->first != y->first)
        return x->first > y->first ? -1 : 1;
    return x->index - y->index;
}

/* Visited by falling first objective, a point is dominated by exactly those before it whose second
 * objective is not smaller (equal points dominate each other not at all). Within a front the second
 * objective rises, so a front's last member tells whether it dominates the next point, and the
 * fronts that do come before those that do not. last: [count] the last member of each front. Returns
 * the number of fronts. */
static int find_fronts(adli_nsga2_rank *ranks, int count, adli_nsga2_rank *last)
{
    int fronts = 0;
    for (int i = 0; i < count; i++) {
        int low = 0, high = fronts;
        while (low < high) {
            int middle = (low + high) / 2;
            const adli_nsga2_rank *other = &last[middle];
            bool dominated = other->second > ranks[i].second ||
                             (other->second == ranks[i].second && other->first > ranks[i].first);
            if (dominated)
                low = middle + 1;
            else
                high = middle;
        }
        ranks[i].front = low;
        last[low] = ranks[i];
        if (low == fronts)
            fronts++;
    }
    return fronts;
}

/* members: one front, by falling first and so by rising second objective. */
static void find_crowding(adli_nsga2_point *points, const adli_nsga2_rank *members, int count)
{
    double width = members[0].first - members[count - 1].first;
    double height = members[count - 1].second - members[0].second;
    for (int i = 0; i < count; i++) {
        adli_nsga2_point *point = &points[members[i].index];
        point->front = members[i].front;
        if (i == 0 || i == count - 1) {
            point->crowding = INFINITY;
            continue;
        }
        point->crowding = 0;
        if (width > 0)
            point->crowding += (members[i - 1].first - members[i + 1].first) / width;
        if (height > 0)
            point->crowding += (members[i + 1].second - members[i - 1].second) / height;
    }
}

static void last_front(const adli_nsga2_point *points, adli_nsga2_rank *members, int count,
                       int *survivors, int wanted)
{
    for (int i = 0; i < count; i++)
        members[i].first = points[members[i].index].crowding;
    qsort(members, (size_t)count, sizeof *members, by_crowding);
    for (int i = 0; i < wanted; i++)
        survivors[i] = members[i].index;
}

void adli_nsga2_survive(adli_nsga2_point *points, int count, adli_nsga2_rank *ranks, int keep,
                        int *survivors)
{
    adli_nsga2_rank *sorted = ranks + count;
    for (int i = 0; i < count; i++)
        sorted[i] = (adli_nsga2_rank){points[i].first, points[i].second, i, 0};
    qsort(sorted, (size_t)count, sizeof *sorted, by_objectives);
    int fronts = find_fronts(sorted, count, ranks);

    int kept = 0;
    for (int front = 0; front < fronts && kept < keep; front++) {
        int members = 0;
        for (int i = 0; i < count; i++)
            if (sorted[i].front == front)
                ranks[members++] = sorted[i];
        find_crowding(points, ranks, members);
        if (kept + members <= keep) {
            for (int i = 0; i < members; i++)
                survivors[kept++] = ranks[i].index;
        } else {
            last_front(points, ranks, members, survivors + kept, keep - kept);
            kept = keep;
        }
    }
}
