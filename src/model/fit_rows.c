#include "model/fit_rows.h"

#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

/* A pass shorter than a nanosecond or longer than thirty years was not measured. */
#define TIME_MIN_S 1e-9
#define TIME_MAX_S 1e9
#define BSZ_MAX    1e9

static bool within(double value, double low, double high)
{
    return value >= low && value <= high; /* false for NaN */
}

bool adli_fit_usable(const adl_profile_point *point)
{
    return point->nodes >= 1 && point->replicas >= point->nodes && point->local_bsz > 0 &&
           within(point->local_bsz, 0, BSZ_MAX) &&
           within(point->accum_time_s, TIME_MIN_S, TIME_MAX_S) &&
           within(point->optim_time_s, TIME_MIN_S, TIME_MAX_S);
}

static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

/* By m, then N > 1, then R; then by the times, so that the order of the points cannot change even
 * the last bit of a sum. */
static int by_configuration(const void *left, const void *right)
{
    const adl_profile_point *a = left, *b = right;
    int order = compare(a->local_bsz, b->local_bsz);
    if (order == 0)
        order = (a->nodes > 1) - (b->nodes > 1);
    if (order == 0)
        order = compare(a->replicas, b->replicas);
    if (order == 0)
        order = compare(a->accum_time_s, b->accum_time_s);
    return order ? order : compare(a->optim_time_s, b->optim_time_s);
}

static int by_key(const void *left, const void *right)
{
    int a = ((const adli_network_row *)left)->key, b = ((const adli_network_row *)right)->key;
    return (a > b) - (a < b);
}

static adli_network_row network_of(const adl_profile_point *point)
{
    bool multi = point->nodes > 1;
    return (adli_network_row){
        .key = multi ? -point->replicas : point->replicas,
        .alpha = multi                 ? ALPHA_N
                 : point->replicas > 1 ? ALPHA_R
                                       : NO_NETWORK,
        .beyond = fmax((double)point->replicas - 2, 1e-8),
    };
}

static void collect_networks(adli_fit_rows *rows)
{
    adli_network_row *network = rows->network;
    for (size_t i = 0; i < rows->point_count; i++)
        network[i] = network_of(&rows->points[i]);
    qsort(network, rows->point_count, sizeof *network, by_key);
    for (size_t i = 0; i < rows->point_count; i++)
        if (i == 0 || network[i].key != network[rows->network_count - 1].key)
            network[rows->network_count++] = network[i];
}

static size_t find_network(const adli_fit_rows *rows, const adl_profile_point *point)
{
    adli_network_row key = network_of(point);
    const adli_network_row *found =
        bsearch(&key, rows->network, rows->network_count, sizeof key, by_key);
    return (size_t)(found - rows->network);
}

/* Welford's update of a mean; returns what the point adds to the sum of squares around it. */
static double join(double value, double *weight, double *mean)
{
    double delta = value - *mean;
    *weight += 1;
    *mean += delta / *weight;
    return delta * (value - *mean);
}

static void collect_times(adli_fit_rows *rows)
{
    adli_accum_row *accum = NULL;
    adli_optim_row *optim = NULL;
    for (size_t i = 0; i < rows->point_count; i++) {
        const adl_profile_point *point = &rows->points[i];
        size_t network = find_network(rows, point);
        bool new_bsz = !accum || accum->bsz != point->local_bsz;
        if (new_bsz) {
            accum = &rows->accum[rows->accum_count++];
            *accum = (adli_accum_row){.bsz = point->local_bsz};
        }
        if (new_bsz || optim->network != network) {
            optim = &rows->optim[rows->optim_count++];
            *optim = (adli_optim_row){.accum = rows->accum_count - 1, .network = network};
        }
        rows->accum_spread += join(log(point->accum_time_s), &accum->weight, &accum->log_time);
        rows->optim_spread += join(log(point->optim_time_s), &optim->weight, &optim->log_time);
    }
}

adl_status adli_fit_rows_init(adli_fit_rows *rows, const adl_profile_point *points, size_t count)
{
    *rows = (adli_fit_rows){
        .points = adli_calloc(count, sizeof *rows->points),
        .accum = adli_calloc(count, sizeof *rows->accum),
        .network = adli_calloc(count, sizeof *rows->network),
        .optim = adli_calloc(count, sizeof *rows->optim),
    };
    if (!rows->points || !rows->accum || !rows->network || !rows->optim)
        return adli_fail_memory("points of a fit");
    for (size_t i = 0; i < count; i++)
        if (adli_fit_usable(&points[i]))
            rows->points[rows->point_count++] = points[i];
    qsort(rows->points, rows->point_count, sizeof *rows->points, by_configuration);
    collect_networks(rows);
    collect_times(rows);
    return ADL_OK;
}

void adli_fit_rows_fini(adli_fit_rows *rows)
{
    free(rows->optim);
    free(rows->network);
    free(rows->accum);
    free(rows->points);
}
