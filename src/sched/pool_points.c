/* The points of an application: fitted, compared with a job's own, and taken back when a job does not belong. */
#include "sched/pool_impl.h"

#include "base/mem.h"
#include "model/perf.h"

#include <math.h>

void adli_pool_touch(adli_pool *pool, adli_pool_entry *entry, int type)
{
    entry->types[type].stale = true;
    entry->version = ++pool->clock;
}

/* The residual of one point against the fit. */
static double log_ratio(const adl_perf_params *fit, const adl_profile_point *point)
{
    adl_shape shape = adl_shape_of(point->nodes, point->replicas);
    return log(point->optim_time_s) - log(adl_optim_time(fit, shape, point->local_bsz));
}

/* Mean residuals by (R, multi): few, so a linear search is enough. */
static adli_pool_bin *bin_of(const adli_pool_type *on, const adl_profile_point *point)
{
    for (size_t i = 0; i < on->bin_count; i++)
        if (on->bins[i].at.replicas == point->replicas &&
            (on->bins[i].at.nodes > 1) == (point->nodes > 1))
            return &on->bins[i];
    return NULL;
}

static adl_status fill_bins(adli_pool_type *on)
{
    if (adli_grow(&on->bins, &on->bin_capacity, on->count, sizeof *on->bins) != 0)
        return adli_fail_memory("pool of models");
    on->bin_count = 0;
    for (size_t i = 0; i < on->count; i++) {
        const adl_profile_point *point = &on->points[i].at;
        adli_pool_bin *bin = bin_of(on, point);
        if (!bin) {
            bin = &on->bins[on->bin_count++];
            *bin = (adli_pool_bin){.at = *point};
        }
        bin->residual += (log_ratio(&on->fit, point) - bin->residual) / ++bin->count;
    }
    return ADL_OK;
}

adl_status adli_pool_fit(adli_pool_type *on)
{
    if (!on->stale)
        return ADL_OK;
    on->fitted = false;
    on->stale = false;
    on->bin_count = 0;
    on->max_profiled = 0;
    if (on->count == 0)
        return ADL_OK;
    adl_profile_point points[ADLI_POOL_POINTS_MAX];
    for (size_t i = 0; i < on->count; i++) {
        points[i] = on->points[i].at;
        if (points[i].replicas > on->max_profiled)
            on->max_profiled = points[i].replicas;
    }
    adl_fit_result result;
    adl_status status = adl_fit(points, on->count, &result);
    if (status == ADL_OK) {
        on->fit = result.perf;
        status = fill_bins(on);
    }
    on->fitted = status == ADL_OK;
    on->stale = status != ADL_OK;
    return status;
}

/* delta(job) on a type and how far its points are from it (root mean square). Returns how many points
 * it has there. */
static int compare(const adli_pool_type *on, const adli_pool_member *member, int type,
                   double *delta, double *spread)
{
    double sum = 0, squares = 0;
    int used = 0;
    for (size_t i = 0; on->fitted && i < member->count; i++) {
        const adl_profile_point *point = &member->points[i];
        if (point->type != type)
            continue;
        const adli_pool_bin *bin = bin_of(on, point);
        double off = log_ratio(&on->fit, point) - (bin ? bin->residual : 0);
        sum += off;
        squares += off * off;
        used++;
    }
    *delta = used ? sum / used : 0;
    *spread = used ? sqrt(fmax(squares / used - *delta * *delta, 0)) : 0;
    return used;
}

double adli_pool_delta(const adli_pool_type *on, const adli_pool_member *member, int type)
{
    double delta, spread;
    compare(on, member, type, &delta, &spread);
    return delta;
}

/* ---- who does not belong ---- */

static void take_back(adli_pool *pool, adli_pool_entry *entry, uint64_t id)
{
    for (int t = 0; t < ADL_MAX_TYPES; t++) {
        adli_pool_type *on = &entry->types[t];
        size_t kept = 0;
        for (size_t i = 0; i < on->count; i++)
            if (on->points[i].by != id)
                on->points[kept++] = on->points[i];
        bool limits = on->has_limits && on->limits_by == id;
        if (kept == on->count && !limits)
            continue;
        on->count = kept;
        on->has_limits &= !limits;
        adli_pool_touch(pool, entry, t);
    }
    if (entry->has_grad && entry->grad_by == id) {
        entry->has_grad = false; /* the next report brings them */
        entry->version = ++pool->clock;
    }
}

/* Are all points of others than this one the work of a single one? */
static bool one_other(const adli_pool_entry *entry, uint64_t besides, uint64_t *other)
{
    bool found = false;
    for (int t = 0; t < ADL_MAX_TYPES; t++)
        for (size_t i = 0; i < entry->types[t].count; i++) {
            uint64_t by = entry->types[t].points[i].by;
            if (by == besides)
                continue;
            if (found && by != *other)
                return false;
            *other = by;
            found = true;
        }
    return found;
}

/* It goes; and where the pool is the work of one single
 * other job, nobody can say which of the two is the odd one, so that one's points go too. */
void adli_pool_part(adli_pool *pool, adli_pool_member *member)
{
    adli_pool_entry *entry = member->entry;
    uint64_t other = 0;
    bool single = one_other(entry, member->id, &other);
    take_back(pool, entry, member->id);
    if (single)
        take_back(pool, entry, other);
    member->alone = true;
    adli_pool_attach(pool, member, NULL);
    member->version = ++pool->clock;
}

bool adli_pool_contradicts(const adli_pool_member *member)
{
    for (int t = 0; t < ADL_MAX_TYPES; t++) {
        double delta, spread;
        int used = compare(&member->entry->types[t], member, t, &delta, &spread);
        if (used > 0 && (fabs(delta) > adli_most_off || (used > 2 && spread > adli_most_spread)))
            return true;
    }
    return false;
}
