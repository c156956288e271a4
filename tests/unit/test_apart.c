/* Replicas that are not at the same step: each is told where the others are, at the next boundary, whatever they
 * do meanwhile. Nothing is saved of what they did apart. */
#include "train_replicas.h"

#include "train/context.h"
#include "train/vote.h"

static adl_loader *loader_of(adl_context *ctx, const char *name, int examples)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader = NULL;
    options.name = name;
    options.examples = (size_t)examples;
    options.batch_size = 8;
    CHECK_OK(adl_loader_new(ctx, &options, &loader));
    return loader;
}

static void check_told(adlt_replica *replica, const char *zero, const char *one)
{
    const char *text = adl_context_error(replica->ctx);
    CHECK(adl_context_status(replica->ctx) != ADL_OK);
    if (!strstr(text, "have run apart") || !strstr(text, zero) || !strstr(text, one))
        ADLT_FAIL("rank %d is told \"%s\", wanted \"%s\" and \"%s\"", replica->rank, text, zero,
                  one);
}

/* Rank 1 breaks out of the first epoch's loop at its fourth batch. */
static void leave_early(adlt_replica *replica)
{
    adl_loader *train = loader_of(replica->ctx, "train", 400);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 3)
        ADL_BATCHES (train, batch)
            if (++batches == 4 && replica->rank == 1)
                break;
    CHECK_INT(batches, 5); /* one step after the one that was mixed */
    check_told(replica, "rank 0 is in epoch 0, in loop 1 over train at 32",
               "rank 1 is in epoch 1, in loop 1 over train at 0");
}

TEST(a_replica_in_another_epoch_is_named)
{
    char *directory = adlt_tempdir();
    adlt_job job = {.checkpoint = directory};
    adlt_replicas_expect(&job, 2, leave_early, 1);
    CHECK_INT(rmdir(directory), 0); /* nothing was saved */
}

/* Rank 2 goes on to the validation while the others train. */
static void other_loop(adlt_replica *replica)
{
    adl_loader *train = loader_of(replica->ctx, "train", 400);
    adl_loader *valid = loader_of(replica->ctx, "valid", 100);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 1) {
        ADL_BATCHES (train, batch)
            if (++batches == 2 && replica->rank == 2)
                break;
        ADL_BATCHES (valid, batch)
            batches++;
    }
    CHECK_INT(batches, 3);
    check_told(replica, "over train at 16", "rank 2 is in epoch 0, in loop 1 over valid at 0");
}

TEST(a_replica_in_another_loop_is_named)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 3, other_loop, 1);
}

/* The collective calls of the program differ after the boundary: that is only a consequence. */
static void other_calls(adlt_replica *replica)
{
    adl_loader *train = loader_of(replica->ctx, "train", 400);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 2)
        ADL_BATCHES (train, batch) {
            int64_t value = 1;
            if (epoch == 1) {
                adl_status status = adl_group_barrier(adl_context_group(replica->ctx));
                CHECK_INT(status, ADL_EINVAL);
                adl_context_fail(replica->ctx, status);
            } else if (batches >= 3) {
                adl_status status = adl_group_allreduce(adl_context_group(replica->ctx), &value, 1,
                                                        ADL_TYPE_I64, ADL_REDUCE_SUM);
                CHECK_INT(status, ADL_EINVAL);
                adl_context_fail(replica->ctx, status);
            }
            if (++batches == 3 && replica->rank == 1)
                break;
        }
    check_told(replica, "rank 0 is in epoch 0, in loop 1 over train at 24",
               "rank 1 is in epoch 1, in loop 1 over train at 0");
}

TEST(calls_that_do_not_match_are_explained_by_the_boundary)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 2, other_calls, 1);
}

/* The one that is ahead has no boundary left to be told at: the end of the program is one. */
static void at_the_end(adlt_replica *replica)
{
    adl_loader *train = loader_of(replica->ctx, "train", 32);
    adl_loader *valid = loader_of(replica->ctx, "valid", 8);
    ADL_EPOCHS (replica->ctx, epoch, 1) {
        ADL_BATCHES (train, batch)
            if (batch->done == 16 && replica->rank == 1)
                break;
        if (replica->rank == 1)
            ADL_BATCHES (valid, batch)
                ;
    }
}

TEST(the_end_of_the_program_is_a_boundary_too)
{
    char *directory = adlt_tempdir();
    adlt_job job = {.checkpoint = directory};
    adlt_replicas_expect(&job, 2, at_the_end, 1);
    CHECK_INT(rmdir(directory), 0);
}

/* Rank 0, who writes the checkpoints, leaves the last epoch early: its checkpoint would say that all is done. */
static void first_leaves(adlt_replica *replica)
{
    adl_loader *train = loader_of(replica->ctx, "train", 400);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (train, batch)
            if (++batches == 4 && replica->rank == 0)
                break;
    if (replica->rank > 0)
        check_told(replica, "rank 0 is outside the epochs after 1 of them",
                   "in epoch 0, in loop 1 over train at 32");
}

TEST(nothing_is_saved_when_the_first_replica_ends_early)
{
    char *directory = adlt_tempdir();
    adlt_job job = {.checkpoint = directory};
    adlt_replicas_expect(&job, 2, first_leaves, 1);
    CHECK_INT(rmdir(directory), 0);
}

/* All agree at the boundary before batch 4 to act at the next one, and rank 0 goes to another. */
static void leave_before_acting(adlt_replica *replica)
{
    void (*ask)(adl_context *) = *(void (**)(adl_context *))replica->job->user;
    adl_loader *train = loader_of(replica->ctx, "train", 400);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 3)
        ADL_BATCHES (train, batch) {
            if (++batches == 3)
                ask(replica->ctx);
            if (batches == 4 && replica->rank == 0)
                break;
        }
    CHECK_INT(batches, 4);
    check_told(replica, "rank 0 is in epoch 1, in loop 1 over train at 0",
               "in epoch 0, in loop 1 over train at 32");
}

TEST(nothing_is_saved_or_stopped_when_replicas_part_before_they_act)
{
    void (*asks[])(adl_context *) = {adl_stop, adl_save};
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        char *directory = adlt_tempdir();
        adlt_job job = {.checkpoint = directory, .user = &asks[i]};
        adlt_replicas_expect(&job, 2, leave_before_acting, 1);
        CHECK_INT(rmdir(directory), 0);
    }
}

/* ---- votes as bytes ---- */

static const adli_vote both = {
    .wishes = ADLI_WISH_SAVE,
    .apart = true,
    .first = {.rank = 0, .epoch = 3, .loops = 2, .index = 1 << 20, .loop = "train"},
    .other = {.rank = 65534, .epoch = -1, .index = UINT64_MAX, .loop = ""}};

TEST(a_vote_comes_back_from_its_bytes)
{
    uint8_t bytes[ADLI_VOTE_MAX];
    adli_vote again;
    size_t length = adli_vote_encode(&both, bytes);
    REQUIRE_OK(adli_vote_parse(bytes, length, &again));
    CHECK_INT(again.wishes, both.wishes);
    CHECK(again.apart);
    CHECK(memcmp(&again.first, &both.first, sizeof again.first) == 0);
    CHECK(memcmp(&again.other, &both.other, sizeof again.other) == 0);
    CHECK_FAILS(adli_vote_check(&again), ADL_ESTATE, "rank 65534 is outside the epochs");
    for (size_t cut = 0; cut < length; cut++)
        CHECK_INT(adli_vote_parse(bytes, cut, &again), ADL_EPEER);
    bytes[4] = 1; /* one place, and then more bytes */
    CHECK_FAILS(adli_vote_parse(bytes, length, &again), ADL_EPEER, "make no sense");
    memset(bytes + 4, 0xff, 4);
    CHECK_INT(adli_vote_parse(bytes, length, &again), ADL_EPEER);
}
