/* The inside of an elastic loop: what is saved, and where in a step the program is. */
#ifndef ADLI_TRAIN_LOOP_H
#define ADLI_TRAIN_LOOP_H

#include "adaptdl/loop.h"

struct adl_loop {
    adl_context *ctx;
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    size_t examples;
    int batch_size;
    bool autoscale;
    int max_batch_size, min_local, max_local; /* of autoscaling; 0: open */
    bool accumulation;
    bool anywhere; /* also outside the epochs */
    adl_checkpoint_state *state;

    /* Saved: the place in the interrupted loop, which loops of which epoch are done, the choice. */
    uint64_t index, end_index;
    int done_epoch, done_loops;
    int done_outside; /* loops outside the epochs, over the whole job */
    int local_bsz, accum_steps;
    int decided_replicas; /* the choice was made by the model for so many; 0: not yet */

    /* This run of the program. */
    int seen_epoch, seen_loops; /* loops begun in an epoch, skipped ones included */
    int seen_outside;           /* likewise outside the epochs */
    size_t saved_examples;      /* when the checkpoint was made; 0: not known */
    bool entered;
    bool finished;       /* enough progress */
    bool in_step;        /* between step and commit */
    bool ready;          /* the boundary of the next batch is behind us */
    bool regroups;       /* whoever goes over it calls adl_loop_ready */
    bool stale;          /* the world has changed since the pass was planned */
    bool at_end;         /* the pass is over, but perhaps not for all: see adli_loop_passed */
    bool voided;         /* the last step was not applied */
    bool step_applied;   /* an optimizer has taken its step in the present batch */
    uint64_t step_index; /* where the present optimizer step began */
    int deal;      /* examples that all replicas together take at a time: R local_bsz, or a batch
                      * size that does not divide by R; local_bsz is then this replica's share */
    int size;      /* of the present batch; local_bsz, or less at the end of a pass */
    int step_deal; /* what all replicas together take with it, when dealt unevenly */
    bool whole;    /* it is as large as can be, on every replica */
    double weight; /* of this replica's mean in the mean over all examples, times R: 1 when even */
    bool optim_step; /* it ends in an optimizer step */
    int accumulated; /* batches since the last optimizer step */
    bool dp_stepped; /* adl_dp_step was called in this pass */
    bool trained;    /* in this loop */
    double wanted;   /* progress at which an autoscaled loop is over */
    bool unprofiled; /* the present batch */
    bool choice_warned;
    int leaning; /* the last time another size was better, and not taken yet: 1 larger, -1 smaller */
    bool chosen;              /* the sizes were chosen at this boundary */
    int64_t since;            /* optimizer steps since they were */
    double considered_s;      /* when, on rank 0 */
    int warm_bsz, warm_accum; /* sizes whose first step is over; 0: none */
    double step_start_s, sync_s;

    /* Sums of accumulators that the others do not know (sums.h). */
    bool rewinds;  /* its batches may come again from the mark on, as long as it does not train */
    bool mark_due; /* it has begun, and nothing was shared yet */
    bool brought;  /* from before the loop */
    bool carried;  /* from steps that are over */
    bool late;     /* some replica's were, at some step: they are shared at each boundary */
    bool torn;     /* a scope was entered in the middle of a batch */
    uint64_t mark_index, mark_applied;
    double mark_s;
};

/* A place that was not read from a checkpoint of this library's. done_outside and done_loops count loops over
 * this loader, done_epoch is -1 for none. */
typedef struct adli_loop_place {
    uint64_t index, end_index;
    int done_epoch, done_loops, done_outside;
} adli_loop_place;
void adli_loop_restore(adl_loop *loop, const adli_loop_place *place);

/* The examples that all replicas together consume with the present batch: not the extra ones at the end of
 * a pass. */
size_t adli_loop_consumed(const adl_loop *loop);
/* Chooses local_bsz and accum_steps for the pass that begins. Collective when autoscaling. */
ADL_MUST adl_status adli_loop_choose(adl_loop *loop);
/* In the middle of a pass, at a boundary: after so many steps the sizes are chosen anew; when they are others, the rest of
 * the pass is stale. */
ADL_MUST adl_status adli_loop_reconsider(adl_loop *loop);
/* The last batch of the pass was committed. Waits until all replicas have; *again: the pass is not over, its rest is to
 * be planned anew. false: the context was stopped. */
bool adli_loop_passed(adl_loop *loop, bool *again);
/* The world was lost: what is not applied has not happened. */
void adli_loop_void(adl_loop *loop);
/* The state is now that of a replica that was a step ahead, and at the end of the pass, maybe. */
void adli_loop_overtaken(adl_loop *loop, bool ended);
/* A data-parallel step in this loop: it becomes the training loop. */
ADL_MUST adl_status adli_loop_trains(adl_loop *loop);

#endif
