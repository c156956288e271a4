/* The inside of the data-parallel wrapper. Gradients lie in one block (`flat`): the network's own,
 * or a copy. The block is cut into buckets, from its end to its start, because backward makes the
 * last layer's gradients first. */
#ifndef ADLI_TRAIN_DP_H
#define ADLI_TRAIN_DP_H

#include "adaptdl/dp.h"
#include "adaptdl/meter.h"

/* One parameter and where its gradient lies. */
typedef struct adli_place {
    const adl_param *param;
    size_t group, index; /* in the optimizer's terms */
    size_t offset;       /* in the block */
    size_t kept;         /* where in `before` what is kept of it begins */
    size_t bucket;
    bool ready; /* its gradient of this batch was seen to */
} adli_place;

/* A span of the block that is reduced in one go. */
typedef struct adli_dp_bucket {
    size_t offset, count;
    size_t params, waiting; /* in it, and not ready yet */
    double *norms;          /* [groups]: mean square norms of this replica, then of all (extra) */
} adli_dp_bucket;

struct adl_dp {
    adl_context *ctx;
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    adl_dp_options options;
    adl_scaling_rule rule;
    const adl_optim_ops *optim; /* the caller's, or ops */
    adl_optim_ops ops;          /* the table of a caller of an older version */
    size_t groups, params;
    adli_place *places; /* [params], in the order of groups */
    adli_dp_bucket *buckets;
    size_t bucket_count, buckets_started;
    double *bucket_norms; /* [bucket_count][groups] */
    float *flat;
    size_t flat_count, kept;
    bool own_flat;
    adl_reducer *reducer; /* NULL with one replica */

    /* This optimizer step. */
    uint64_t loop_serial, batch_serial; /* the loop that `sum` belongs to, the batch in hand */
    int accumulated;                    /* micro-gradients in sum */
    float *sum;                         /* [flat_count], made when accumulation begins */
    float *before; /* [kept], of the first of a pair of single gradients; made when needed */
    bool have_before;
    uint64_t pairs;    /* begun so far: which part of the gradient the present one is about */
    bool in_batch;     /* the first gradient of this batch was seen to */
    bool whole;        /* every batch so far had the nominal size: statistics make sense */
    bool precondition; /* norms are of gradients divided by the optimizer's preconditioner */
    double *local, *total, *factors; /* [groups] */
    double *pair;                    /* [groups][3]: |g|^2, |h|^2 and |g - h|^2 of a pair */

    adl_meter *meter; /* what becomes of the norms; saved with the rest */
    double loss_scale, gain;
    int skipped_in_a_row;
};

ADL_MUST adl_status adli_dp_register(adl_dp *dp, bool *found);
/* The parameters and buffers of rank 0 for everyone. */
ADL_MUST adl_status adli_dp_share(adl_dp *dp);

#endif
