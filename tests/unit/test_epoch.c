/* The loop over epochs: what is yielded, when it counts as finished, and after a restart. */
#include "train_replicas.h"

static const adlt_job alone = {0};

static void count_to_three(adlt_replica *replica)
{
    int wanted = 0;
    CHECK_INT(adl_current_epoch(replica->ctx), -1);
    ADL_EPOCHS (replica->ctx, epoch, 3) {
        CHECK_INT(epoch, wanted);
        CHECK_INT(adl_current_epoch(replica->ctx), epoch);
        CHECK_INT(adl_finished_epochs(replica->ctx), epoch);
        wanted++;
        if (epoch == 1)
            continue;
    }
    CHECK_INT(wanted, 3);
    CHECK_INT(adl_current_epoch(replica->ctx), -1);
    ADL_EPOCHS (replica->ctx, epoch, 5)
        CHECK_INT(epoch, wanted++);
    CHECK_INT(wanted, 5);
    ADL_EPOCHS (replica->ctx, epoch, 2)
        ADLT_FAIL("epoch %d again", epoch);
    CHECK_INT(adl_finished_epochs(replica->ctx), 5);
}

TEST(two_loops_continue_counting)
{
    adlt_replicas_expect(&alone, 1, count_to_three, 0);
}

static int return_in_epoch(adl_context *ctx)
{
    ADL_EPOCHS (ctx, epoch, 10) {
        if (epoch == 4)
            return epoch;
    }
    return -1;
}

static void leave_in_every_way(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    int runs = 0;
    ADL_EPOCHS (ctx, epoch, 10) {
        runs++;
        if (epoch == 2)
            break;
    }
    CHECK_INT(runs, 3);
    CHECK_INT(adl_finished_epochs(ctx), 3);
    CHECK_INT(adl_current_epoch(ctx), -1);
    CHECK_INT(return_in_epoch(ctx), 4);
    CHECK_INT(adl_finished_epochs(ctx), 5);
    ADL_EPOCHS (ctx, epoch, 10) {
        if (epoch == 6)
            goto out;
    }
out:
    CHECK_INT(adl_finished_epochs(ctx), 7);
    CHECK_INT(adl_current_epoch(ctx), -1);
}

TEST(an_epoch_is_finished_however_its_body_is_left)
{
    adlt_replicas_expect(&alone, 1, leave_in_every_way, 0);
}

static void nest(adlt_replica *replica)
{
    int inner = 0, outer = 0;
    ADL_EPOCHS (replica->ctx, epoch, 3) {
        outer++;
        ADL_EPOCHS (replica->ctx, again, 3)
            inner++;
        CHECK_INT(adl_current_epoch(replica->ctx), 0);
    }
    CHECK_INT(inner, 0);
    CHECK_INT(outer, 1);
    CHECK_INT(adl_context_status(replica->ctx), ADL_ESTATE);
    CHECK(strstr(adl_context_error(replica->ctx), "inside another one"));
}

TEST(nested_loops_are_an_error)
{
    adlt_replicas_expect(&alone, 1, nest, 1);
}

static void stop_in_epoch(adlt_replica *replica)
{
    ADL_EPOCHS (replica->ctx, epoch, 5) {
        if (epoch == 2) {
            adli_fail(ADL_EIO, "no more");
            CHECK_INT(adl_context_fail(replica->ctx, ADL_EIO), ADL_EIO);
        }
        CHECK(epoch <= 2);
    }
    CHECK_INT(adl_finished_epochs(replica->ctx), 2); /* a stop does not finish an epoch */
    ADL_EPOCHS (replica->ctx, epoch, 9)
        ADLT_FAIL("epoch %d on a stopped context", epoch);
}

TEST(a_stopped_context_runs_no_epochs)
{
    adlt_replicas_expect(&alone, 1, stop_in_epoch, 1);
}

static void run_until_two(adlt_replica *replica)
{
    ADL_EPOCHS (replica->ctx, epoch, 2)
        CHECK(epoch < 2);
}

static void run_until_four(adlt_replica *replica)
{
    int wanted = 2;
    ADL_EPOCHS (replica->ctx, epoch, 4)
        CHECK_INT(epoch, wanted++);
    CHECK_INT(wanted, 4);
}

static void nothing_left(adlt_replica *replica)
{
    ADL_EPOCHS (replica->ctx, epoch, 4)
        ADLT_FAIL("epoch %d again", epoch);
}

TEST(finished_epochs_are_skipped_after_a_restart)
{
    char *directory = adlt_tempdir();
    adlt_job job = {.checkpoint = directory};
    adlt_replicas_expect(&job, 1, run_until_two, 0);
    job.restarts = 1;
    adlt_replicas_expect(&job, 2, run_until_four, 0);
    adlt_replicas_expect(&job, 3, nothing_left, 0); /* restarts not counted: as on a terminal */
    adlt_tempdir_remove(directory);
}
