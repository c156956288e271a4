/* The adaptive data loader: batches of a data set, shuffled, divided among the replicas, filled ahead
 * of time by worker threads, and resumed after a restart at the very example.
 *
 *     adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
 *     options.examples = 60000;
 *     options.batch_size = 64;                       over all replicas together
 *     options.shuffle = true;
 *     options.part_bytes[0] = 784 * sizeof(float);   of one example
 *     options.part_bytes[1] = sizeof(int32_t);
 *     options.fill = fill_images, options.user = &set;
 *     adl_loader *train;
 *     if (adl_loader_new(ctx, &options, &train) != ADL_OK) ...
 *
 *     ADL_EPOCHS (ctx, epoch, 14) {
 *         ADL_BATCHES (train, batch) {
 *             forward(batch->part[0], batch->part[1], batch->size) ...
 *         }
 *     } */
#ifndef ADAPTDL_LOADER_H
#define ADAPTDL_LOADER_H

#include "adaptdl/loop.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_loader adl_loader;

#define ADL_PARTS_MAX 4 /* arrays a batch may consist of: images, labels ... */

/* What a fill callback is asked for. */
typedef struct adl_fill {
    const size_t *index; /* [count]: which examples */
    int count;
    void *const *part; /* [parts]: where to, part_bytes[p] * count bytes each, 64-byte aligned */
    int worker;        /* 0 .. workers - 1 */
    uint64_t seed;     /* for augmentation: another one for each replica, worker and batch */
} adl_fill;

/* Fills one batch. Called by the worker threads, several at a time. A failure (with its adl_error
 * text) stops the context when the batch's turn comes. */
typedef adl_status (*adl_fill_fn)(void *user, const adl_fill *fill);

typedef struct adl_loader_options {
    size_t size;      /* sizeof(adl_loader_options), set by the _INIT macro */
    const char *name; /* see adl_loop_new; NULL: "loader-<ordinal>" */
    size_t examples;  /* in the data set */
    int batch_size;   /* total over all replicas */
    bool shuffle;     /* another order in each pass */
    bool drop_last;   /* leave out a pass's last batch when it is smaller than the others, unless it
                       * would be the only one */
    int workers;      /* threads that fill batches; 0: the calling thread does */
    int prefetch;     /* batches filled ahead, at least 1, with workers */
    uint64_t seed;    /* of the order and of adl_fill.seed */
    size_t part_bytes[ADL_PARTS_MAX]; /* bytes of one example in each part; 0 ends the list */
    adl_fill_fn fill;                 /* NULL: batches have indices only */
    void *user;
} adl_loader_options;

#define ADL_LOADER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(adl_loader_options), .workers = 1, .prefetch = 2                            \
    }

/* One batch of this replica; owned by the loader, valid until the next one. */
typedef struct adl_batch {
    int size;            /* examples in it */
    int extra;           /* of these, how many at the end also go to another replica (0 or 1), so
                          * that all have equally many: leave them out of exact statistics */
    const size_t *index; /* [size] */
    void *part[ADL_PARTS_MAX];
    uint64_t done;   /* examples that all replicas together had consumed in this loop before */
    int64_t number;  /* batches before this one, in this run of the loop */
    uint64_t seed;   /* for dropout and the like: another one for each replica, epoch and batch */
    bool optim_step; /* does this batch end in an optimizer step (false: gradient accumulation)? */
    adl_loader *loader;
} adl_batch;

/* The options are copied; user is borrowed. Belongs to the context. EINVAL names the option. */
ADL_API ADL_MUST adl_status adl_loader_new(adl_context *ctx, const adl_loader_options *options,
                                           adl_loader **out);

/* See adl_loop_autoscale. */
ADL_API ADL_MUST adl_status adl_loader_autoscale(adl_loader *loader, int max_batch_size,
                                                 int min_local, int max_local, bool accumulation);

/* Runs the body for each batch of one loop over the data, with `adl_batch *batch`. The loop may be
 * left by break, return or goto: it then counts as finished. */
#define ADL_BATCHES(loader, batch)                                                                 \
    for (adl_batch * batch __attribute__((cleanup(adl_loader_leave))) = NULL;                      \
         adl_loader_next((loader), &batch);)

/* What the macro is made of. next: *batch == NULL begins a loop; the present batch counts as consumed;
 * false: the loop is over (or never began, or the context was stopped) and *batch is NULL. leave ends
 * the loop of a batch before its time and sets it to NULL; NULL is fine. Both block for data and for
 * the other replicas. */
ADL_API bool adl_loader_next(adl_loader *loader, adl_batch **batch);
ADL_API void adl_loader_leave(adl_batch **batch);

/* Position, sizes and so on: adl_loop_index(adl_loader_loop(loader)) ... */
ADL_API adl_loop *adl_loader_loop(adl_loader *loader);
/* Examples in the data set. */
ADL_API size_t adl_loader_examples(const adl_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
