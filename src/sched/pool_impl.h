/* What the files of the pool share. */
#ifndef ADLI_POOL_IMPL_H
#define ADLI_POOL_IMPL_H

#include "sched/pool.h"

/* Whoever taught what was loaded. Members count from 1. */
enum { ADLI_POOL_TEACHER_GONE = 0 };

typedef struct adli_pool_point {
    adl_profile_point at; /* times as they would be for a job with delta 0 */
    double measured_s;    /* its optim_time_s as it was measured */
    uint64_t by;          /* the member that measured it */
} adli_pool_point;

/* The points of one (R, multi) together. */
typedef struct adli_pool_bin {
    adl_profile_point at; /* one of them */
    double residual;      /* mean log(measured / modelled) */
    int count;
} adli_pool_bin;

/* What is known on one device type. */
typedef struct adli_pool_type {
    adl_batch_limits limits; /* of jobs on it: how much a device holds differs by type */
    bool has_limits;
    uint64_t limits_by; /* the member whose they are */
    adli_pool_point *points;
    size_t count, capacity;
    size_t oldest; /* next to be replaced when full */
    bool stale;    /* points changed since the fit */
    bool fitted;
    adl_perf_params fit;
    adli_pool_bin *bins;
    size_t bin_count, bin_capacity;
    int max_profiled;
} adli_pool_type;

/* One application with one set of batch limits. */
typedef struct adli_pool_entry {
    char *application;
    double init_batch_size;
    adl_batch_limits limits;
    adl_grad_params grad; /* of the first report */
    bool has_grad;
    uint64_t grad_by; /* the member whose they are */
    adli_pool_type types[ADL_MAX_TYPES];
    double work_sum; /* progress at completion of those that finished */
    int finished;
    int members;
    uint64_t version; /* grows with every change */
    /* What jobs that have not reported yet know: all of them the same, and there may be very many. NULL: not made. */
    adl_speedup *common;
    uint64_t common_version; /* of version, for so many replicas */
    int common_most;
    uint64_t used; /* when it was last heard of */
} adli_pool_entry;

struct adli_pool {
    bool shares;
    char *types[ADL_MAX_TYPES]; /* names of device types */
    int type_count;
    adli_pool_entry **entries;
    size_t count, capacity;
    uint64_t clock; /* counts events; names members and versions */
};

struct adli_pool_member {
    char *application;
    uint64_t id;
    adli_pool_entry *entry;                    /* NULL: it knows only itself */
    bool heard;                                /* it has reported */
    bool alone;                                /* it left */
    adl_goodput model;                         /* as last reported */
    adl_batch_limits limits;                   /* as last reported */
    adl_batch_limits limits_on[ADL_MAX_TYPES]; /* by type, where it has been */
    bool has_limits[ADL_MAX_TYPES];
    double speeds[ADL_MAX_TYPES];
    adl_profile_point *points; /* its own */
    size_t count, capacity;
    size_t reported; /* points of the last report, usable or not */
    uint64_t version;
};

/* An application that is not there yet; *out is NULL when there is no room for it. */
ADL_MUST adl_status adli_pool_entry_new(adli_pool *pool, const char *application, double init,
                                        const adl_batch_limits *limits, adli_pool_entry **out);
/* May the point be learned from? */
bool adli_pool_usable(const adl_profile_point *point);
/* Forgets every application and device type. No member may be attached to one. */
void adli_pool_clear(adli_pool *pool);
/* The member learns from this entry (NULL: from none) from now on. */
void adli_pool_attach(adli_pool *pool, adli_pool_member *member, adli_pool_entry *entry);
/* What has changed in an entry must be fitted again before it is used. */
void adli_pool_touch(adli_pool *pool, adli_pool_entry *entry, int type);
/* Do the job's measurements fit no delta? Then it parts. */
bool adli_pool_contradicts(const adli_pool_member *member);
void adli_pool_part(adli_pool *pool, adli_pool_member *member);
/* Brings the fit up to date. */
ADL_MUST adl_status adli_pool_fit(adli_pool_type *on);
double adli_pool_delta(const adli_pool_type *on, const adli_pool_member *member, int type);

#endif
