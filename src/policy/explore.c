#include "policy/explore.h"

#include <limits.h>
#include <math.h>

int adli_explore_batch_cap(const adl_batch_limits *limits)
{
    double least = limits->min_local_bsz > 0 ? limits->min_local_bsz : 1;
    double most = floor(limits->max_batch_size / least);
    return limits->max_batch_size > 0 && most < INT_MAX ? (int)fmax(most, 1) : 0;
}

int adli_explore_most(int profiled, int batch_cap, int min, int max)
{
    int most = profiled > INT_MAX / 2 ? INT_MAX : profiled > 0 ? 2 * profiled : 1;
    if (max > 0 && most > max)
        most = max;
    if (batch_cap > 0 && most > batch_cap)
        most = batch_cap;
    return most > min ? most : min;
}
