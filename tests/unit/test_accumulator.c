/* The accumulator: two modes, sums over replicas and restarts, replay. */
#include "train_replicas.h"

#include "base/buf.h"
#include "base/rng.h"
#include "train/table.h"

static const adlt_job plain = {0};

static void two_modes(adlt_replica *replica)
{
    adl_accumulator *stats;
    REQUIRE_OK(adl_accumulator_new(replica->ctx, "stats", &stats));
    adl_accumulator_add(stats, "loss", 1.5 * (replica->rank + 1));
    adl_accumulator_add(stats, "loss", 1);
    adl_accumulator_subtract(stats, "other", 2);
    if (replica->rank == 0)
        adl_accumulator_add(stats, "rank0", 7); /* updates may differ */
    CHECK_INT(adl_accumulator_count(stats), 0); /* reads as empty */
    CHECK(!adl_accumulator_has(stats, "loss") && adl_accumulator_get(stats, "loss") == 0);
    CHECK(adl_accumulator_key(stats, 0) == NULL);
    int entered = 0, n = replica->replicas;
    ADL_SYNCHRONIZED (stats) {
        entered++;
        CHECK_INT(adl_accumulator_count(stats), 3);
        CHECK_STR(adl_accumulator_key(stats, 0), "loss");
        CHECK_STR(adl_accumulator_key(stats, 2), "rank0");
        CHECK(adl_accumulator_key(stats, 3) == NULL);
        CHECK(adl_accumulator_get(stats, "loss") == 1.5 * n * (n + 1) / 2 + n);
        CHECK(adl_accumulator_get(stats, "other") == -2.0 * n);
        CHECK(adl_accumulator_get(stats, "rank0") == 7);
        CHECK_OK(adl_accumulator_set(stats, "mean", 0.5));
        CHECK_OK(adl_accumulator_add(stats, "mean", 0.5));
        ADL_SYNCHRONIZED (stats) /* a scope in a scope just runs */
            CHECK(adl_accumulator_get(stats, "mean") == 1);
        CHECK_OK(adl_accumulator_remove(stats, "other"));
        CHECK(!adl_accumulator_has(stats, "other"));
    }
    CHECK_INT(entered, 1);
    CHECK_INT(adl_accumulator_count(stats), 0);
    adl_accumulator_add(stats, "mean", 1);
    ADL_SYNCHRONIZED (stats) { /* what was kept is still there, plus what was added */
        CHECK(adl_accumulator_get(stats, "mean") == 1 + n);
        CHECK(adl_accumulator_get(stats, "rank0") == 7);
        CHECK_OK(adl_accumulator_clear(stats));
        break;
    }
    ADL_SYNCHRONIZED (stats)
        CHECK_INT(adl_accumulator_count(stats), 0);
}

TEST(two_modes_on_one_two_and_four_replicas)
{
    adlt_replicas_expect(&plain, 1, two_modes, 0);
    adlt_replicas_expect(&plain, 2, two_modes, 0);
    adlt_replicas_expect(&plain, 4, two_modes, 0);
}

static void bad_calls(adlt_replica *replica)
{
    adl_accumulator *stats, *again;
    char longer[ADL_ACCUMULATOR_KEY_MAX + 2];
    memset(longer, 'k', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    REQUIRE_OK(adl_accumulator_new(replica->ctx, "stats", &stats));
    CHECK_FAILS(adl_accumulator_new(replica->ctx, "stats", &again), ADL_ESTATE, "stats");
    CHECK(again == NULL);
    CHECK_FAILS(adl_accumulator_add(stats, longer, 1), ADL_EINVAL, "accumulator stats: key");
    CHECK_FAILS(adl_accumulator_add(stats, "", 1), ADL_EINVAL, "key \"\"");
    CHECK_FAILS(adl_accumulator_set(stats, "x", 1), ADL_ESTATE, "set outside a scope");
    CHECK_FAILS(adl_accumulator_remove(stats, "x"), ADL_ESTATE, "remove outside a scope");
    CHECK_FAILS(adl_accumulator_clear(stats), ADL_ESTATE, "clear outside a scope");
    CHECK(strstr(adl_context_error(replica->ctx), "key")); /* the first failure counts */
    ADL_SYNCHRONIZED (stats)
        ADLT_FAIL("%s", "a scope on a stopped context");
}

TEST(misuse_stops_the_context)
{
    adlt_replicas_expect(&plain, 1, bad_calls, 1);
}

/* One epoch with two data loops and a scope after each; stops in the loop and at the batch that
 * `stop_at` names, and writes down what the scopes saw. */
typedef struct script {
    int stop_loop, stop_batch;
    double first[2], second[2]; /* [epoch] */
    int scopes;
} script;

static void run_script(adlt_replica *replica)
{
    script *plan = replica->job->user;
    adl_accumulator *stats;
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader[2];
    options.examples = 24;
    options.batch_size = 4;
    REQUIRE_OK(adl_accumulator_new(replica->ctx, "stats", &stats));
    for (int i = 0; i < 2; i++)
        REQUIRE_OK(adl_loader_new(replica->ctx, &options, &loader[i]));
    ADL_EPOCHS (replica->ctx, epoch, 2) {
        if (replica->rank == 0)
            adl_accumulator_add(stats, "before", 1); /* run again after a restart */
        for (int i = 0; i < 2; i++) {
            ADL_BATCHES (loader[i], batch) {
                adl_accumulator_add(stats, i ? "b" : "a", batch->size - batch->extra);
                if (epoch == 1 && i == plan->stop_loop &&
                    batch->done == 4 * (uint64_t)plan->stop_batch)
                    adl_stop(replica->ctx);
            }
            ADL_SYNCHRONIZED (stats) {
                if (replica->rank == 0) {
                    plan->scopes++;
                    *(i ? &plan->second[epoch] : &plan->first[epoch]) =
                        adl_accumulator_get(stats, "a") + 100 * adl_accumulator_get(stats, "b") +
                        10000 * adl_accumulator_get(stats, "before");
                }
                adl_accumulator_clear(stats); /* also what the replay must not undo */
            }
        }
    }
}

static void check_script(int stop_loop, int stop_batch, int before, int after)
{
    char *directory = adlt_tempdir();
    script plan = {.stop_loop = stop_loop, .stop_batch = stop_batch};
    adlt_job job = {.checkpoint = directory, .user = &plan};
    adlt_replicas_expect(&job, before, run_script, 143);
    CHECK(plan.first[0] == 10024 && plan.second[0] == 2400);
    CHECK(plan.first[1] == (stop_loop == 0 ? 0 : 10024) && plan.second[1] == 0);
    plan = (script){.stop_loop = -1};
    job.restarts = 1;
    adlt_replicas_expect(&job, after, run_script, 0);
    /* A scope that was entered before the stop is replayed, and what was added again on the way to it
     * is not counted again. Before the first data loop nothing protects the program from itself. */
    CHECK(plan.first[1] == (stop_loop == 0 ? 20024 : 10024));
    CHECK(plan.second[1] == 2400);
    CHECK_INT(plan.scopes, 2);
    adlt_tempdir_remove(directory);
}

TEST(sums_survive_restarts_and_scopes_are_replayed)
{
    for (int loop = 0; loop < 2; loop++)
        for (int batch = 0; batch < 5; batch += 2)
            check_script(loop, batch, 1, 1);
    check_script(0, 2, 2, 1);
    check_script(1, 2, 1, 2);
    check_script(1, 0, 4, 3);
}

TEST(tables_keep_order_and_refuse_damage)
{
    adli_rng rng;
    adli_table table = {0}, back = {0};
    adli_buf packed;
    adli_rng_init(&rng, 3);
    adli_buf_init(&packed, 1 << 20);
    for (int i = 0; i < 500; i++) {
        char key[32];
        adli_table_entry *entry;
        snprintf(key, sizeof key, "key-%d", adli_rng_range(&rng, 0, 99));
        REQUIRE_OK(adli_table_entry_of(&table, key, &entry));
        entry->value += i;
    }
    for (size_t i = 1; i < table.count; i++)
        CHECK(strcmp(table.entries[i - 1].key, table.entries[i].key) < 0);
    adli_table_pack(&table, &packed);
    REQUIRE_OK(adli_table_unpack(&back, packed.data, packed.length));
    CHECK_INT(back.count, table.count);
    for (size_t i = 0; i < table.count; i++)
        CHECK(strcmp(back.entries[i].key, table.entries[i].key) == 0 &&
              back.entries[i].value == table.entries[i].value);
    for (size_t cut = 0; cut < packed.length; cut++) {
        char *copy = malloc(cut + 1); /* exact, so that a read past it is seen by ASan */
        memcpy(copy, packed.data, cut);
        CHECK_INT(adli_table_unpack(&back, copy, cut), ADL_ECORRUPT);
        free(copy);
    }
    for (int i = 0; i < 20000; i++) { /* damage must not crash; it may well look like a table */
        size_t at = adli_rng_below(&rng, (uint32_t)packed.length);
        char old = packed.data[at];
        packed.data[at] = (char)adli_rng_u64(&rng);
        adl_status status = adli_table_unpack(&back, packed.data, packed.length);
        CHECK(status == ADL_OK || status == ADL_ECORRUPT);
        packed.data[at] = old;
    }
    adli_buf_fini(&packed);
    adli_table_fini(&back);
    adli_table_fini(&table);
}
