/* Worlds that change while a program trains: nobody who stays is stopped, every example is seen once, and what comes
 * out is what an undisturbed run has. */
#include "train_replicas.h"

#include "base/mem.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/regroup.h"
#include "train/vote.h"

#include <math.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { EXAMPLES = 600, BATCH = 12, EPOCHS = 3, D = 64, PLACES = 12, NEW = 8 };

/* One change: when a world is so many steps old, its rank 0 is offered another, of the processes with these ranks in
 * it and new ones (NEW, NEW + 1 ...: each joins once). */
typedef struct change {
    int step, replicas;
    int from[ADLT_REPLICAS_MAX]; /* [replicas] ranks in the world before */
} change;

typedef struct task {
    const change *changes;
    int change_count;
    int joiners; /* processes that wait to join from the start */
    bool calls;  /* the program makes collective calls of its own */
    int dies_at; /* that step of world 0 kills its rank 0; 0: none does */
    bool tears;  /* the first of world 1 dies while it sends its state to one that is behind */
    int sends;   /* calls of its save function there */
    atomic_int large_loads; /* large states that came whole; only where some join */
    int breaks_at;          /* at that step its directory of checkpoints is taken away */
    atomic_bool joined;     /* the new process has the state */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    adl_context *contexts[2 * NEW]; /* under lock; by member */
    atomic_int offered;             /* generation of the last world that was */
    atomic_int seen[EPOCHS][EXAMPLES];
    atomic_int world_steps[PLACES]; /* steps taken in each world, by its rank 0 */
    float result[D];
    adl_grad_params grad;
    double sum; /* of an accumulator */
    int last_replicas;
} task;

/* Tells all processes, as a launcher would. */
static void offer(task *work, adl_context *ctx, const change *next)
{
    int members[ADLT_REPLICAS_MAX];
    adli_world told = {.generation = ctx->world.generation + 1,
                       .replicas = next->replicas,
                       .nodes = 1,
                       .master_addr = (char *)"127.0.0.1",
                       .master_port = adlt_free_port(),
                       .members = members};
    for (int r = 0; r < next->replicas; r++)
        members[r] = next->from[r] >= NEW ? next->from[r] : ctx->world.members[next->from[r]];
    pthread_mutex_lock(&work->lock);
    for (int r = 0; r < next->replicas; r++) /* a new one is offered a world when it is there */
        while (!work->contexts[members[r]])
            pthread_cond_wait(&work->changed, &work->lock);
    for (int m = 0; m < 2 * NEW; m++)
        if (work->contexts[m])
            CHECK_OK(adli_regroup_offer(work->contexts[m], &told));
    atomic_store(&work->offered, (int)told.generation);
    pthread_mutex_unlock(&work->lock);
}

static void note_context(task *work, int member, adl_context *ctx)
{
    pthread_mutex_lock(&work->lock);
    work->contexts[member] = ctx;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
}

/* The gradient of one example is its own, and the same wherever it is computed. */
static void add_gradient(float *grad, size_t example)
{
    for (int k = 0; k < D; k++)
        grad[k] += (float)((example * 7 + (size_t)k * 13) % 31) / 31.0f - 0.3f;
}

/* What the program asks the others outside loops; who joins later gets the same answers. */
static void call_others(adl_context *ctx, int64_t expected)
{
    int64_t value = adl_rank(ctx) == 0 ? expected : -7;
    void *word = NULL;
    size_t length;
    CHECK_OK(adl_group_allreduce(adl_context_group(ctx), &value, 1, ADL_TYPE_I64, ADL_REDUCE_MAX));
    CHECK_INT(value, expected);
    CHECK_OK(adl_group_broadcast(adl_context_group(ctx), "word", 4, &word, &length));
    CHECK_INT(length, 4);
    free(word);
}

/* A state that is sent in world 1 but for its end: what comes before it has arrived. */
static adl_status save_torn(void *user, adl_sink *sink)
{
    adlt_replica *replica = user;
    task *work = replica->job->user;
    change alone = {.replicas = 1, .from = {1}};
    if (replica->ctx->world.generation == 1 && ++work->sends == 2) { /* first for its length */
        note_context(work, replica->ctx->member, NULL);
        offer(work, replica->ctx, &alone);
        return adli_fail(ADL_EIO, "dies on purpose");
    }
    return adl_sink_u32(sink, 7);
}

static adl_status load_torn(void *user, adl_source *source)
{
    uint32_t seven;
    (void)user;
    return adl_source_u32(source, &seven);
}

/* A state of more pieces than are sent at a time, as a block that is made in the sink and as one that lies elsewhere. */
enum { LARGE = (7 << 20) + 3 };

static unsigned char large_byte(size_t i)
{
    return (unsigned char)(i * 31 + (i >> 11));
}

static adl_status save_large(void *user, adl_sink *sink)
{
    void *room;
    (void)user;
    adl_status status = adl_sink_reserve(sink, LARGE, &room);
    unsigned char *bytes = room;
    for (size_t i = 0; status == ADL_OK && i < LARGE; i++)
        bytes[i] = large_byte(i);
    unsigned char *elsewhere = status == ADL_OK ? malloc(LARGE) : NULL;
    if (elsewhere) {
        memcpy(elsewhere, bytes, LARGE);
        status = adl_sink_write(sink, elsewhere, LARGE);
    }
    free(elsewhere);
    return status;
}

static adl_status load_large(void *user, adl_source *source)
{
    adlt_replica *replica = user;
    task *work = replica->job->user;
    const void *block;
    size_t wrong = adl_source_remaining(source) != (size_t)2 * LARGE;
    for (int part = 0; part < 2; part++) {
        adl_status status = adl_source_view(source, LARGE, &block);
        if (status != ADL_OK)
            return status;
        for (size_t i = 0; i < LARGE; i++)
            wrong += ((const unsigned char *)block)[i] != large_byte(i);
    }
    work->large_loads += wrong == 0;
    return wrong ? adli_fail(ADL_ECORRUPT, "%zu bytes are wrong", wrong) : ADL_OK;
}

/* The first replica is gone; the others are offered a world of their own. */
static void die(adlt_replica *replica)
{
    task *work = replica->job->user;
    change alone = {.replicas = work->tears ? 2 : 1, .from = {1, 2}};
    note_context(work, replica->ctx->member, NULL);
    offer(work, replica->ctx, &alone);
    adl_context_failf(replica->ctx, ADL_EIO, "dies on purpose");
}

/* Steps take no time here, a group does: without a pause the training would be over before the others have formed it. */
static void wait_formed(task *work, adl_context *ctx)
{
    if (adl_rank(ctx) != 0)
        return;
    while (adli_regroup_wishes(ctx) & ADLI_WISH_WAIT)
        usleep(200);
    if (atomic_load(&work->offered) > (int)ctx->world.generation)
        usleep(20000);
}

static void train(adlt_replica *replica)
{
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    float *value = calloc(2 * D, sizeof *value), *grad = value + D;
    adl_param param = {"w", value, grad, D};
    adl_optim_options sgd = ADL_SGD_INIT(0.01);
    adl_optim *optim = NULL;
    adl_dp *dp = NULL;
    adl_loader *loader = NULL;
    adl_accumulator *sums = NULL;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    ctx->recovers = true;
    note_context(work, ctx->member, ctx);
    CHECK_OK(adl_optim_new(&param, 1, &sgd, &optim));
    options.optim = adl_optim_get_ops(optim);
    data.examples = EXAMPLES;
    data.batch_size = BATCH;
    data.shuffle = true;
    if (work->calls)
        call_others(ctx, 11);
    CHECK_OK(adl_loader_new(ctx, &data, &loader));
    CHECK_OK(adl_dp_new(ctx, &options, &dp));
    CHECK_OK(adl_accumulator_new(ctx, "sums", &sums));
    adl_checkpoint_functions torn = {sizeof torn, save_torn, load_torn, NULL};
    if (work->tears)
        CHECK_OK(adl_state(ctx, "torn", &torn, replica, NULL));
    adl_checkpoint_functions large = {sizeof large, save_large, load_large, NULL};
    if (work->joiners > 0)
        CHECK_OK(adl_state(ctx, "large", &large, replica, NULL));
    int age = 0;
    uint32_t seen_world = 0;
    ADL_EPOCHS (ctx, epoch, EPOCHS) {
        if (work->calls)
            call_others(ctx, 100 + epoch);
        ADL_BATCHES (loader, batch) {
            uint32_t world = ctx->world.generation;
            age = world == seen_world ? age + 1 : 0;
            seen_world = world;
            if (adl_rank(ctx) == 0 && (int)world < work->change_count &&
                age == work->changes[world].step)
                offer(work, ctx, &work->changes[world]);
            wait_formed(work, ctx);
            if (work->breaks_at && world == 0 && age == work->breaks_at && adl_rank(ctx) == 0) {
                adlt_tempdir_remove(replica->job->checkpoint);
                adl_save(ctx);
            }
            if (work->dies_at && world == 0 && age == work->dies_at && adl_rank(ctx) == 0) {
                die(replica);
                break;
            }
            if (work->tears && world == 0 && age == 5 && ctx->member == 1)
                ctx->applied++; /* the other will be found behind */
            memset(grad, 0, D * sizeof *grad);
            for (int i = 0; i < batch->size; i++)
                add_gradient(grad, batch->index[i]);
            for (int k = 0; k < D; k++)
                grad[k] = grad[k] / (float)batch->size + 0.1f * value[k];
            int64_t steps = adl_global_step(ctx);
            CHECK_OK(adl_dp_step(dp));
            if (ctx->lost)
                continue; /* the batch comes again */
            CHECK_INT(adl_global_step(ctx), steps);
            for (int i = 0; i < batch->size; i++)
                atomic_fetch_add(&work->seen[epoch][batch->index[i]], 1);
            if (adl_rank(ctx) == 0)
                atomic_fetch_add(&work->world_steps[world], 1);
        }
        if (work->calls && !adl_stopped(ctx))
            call_others(ctx, 200 + epoch);
    }
    if (adl_rank(ctx) == 0 && !adl_stopped(ctx)) {
        memcpy(work->result, value, sizeof work->result);
        work->grad = adl_dp_grad_params(dp);
        work->last_replicas = adl_replicas(ctx);
        CHECK_INT(adl_global_step(ctx), EPOCHS * EXAMPLES / BATCH);
    }
    note_context(work, ctx->member, NULL);
    replica->code = adl_finish(ctx);
    adl_optim_free(optim);
    free(value);
    pthread_exit(NULL);
}

static task *new_task(void)
{
    task *work = calloc(1, sizeof *work);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    return work;
}

/* Processes that join: on threads of their own, from the start. */
static void start_joiner(const adlt_job *job, void (*body)(adlt_replica *), adlt_replica *out,
                         int number)
{
    *out = (adlt_replica){.job = job, .body = body};
    out->env = (adl_env)ADL_ENV_INIT;
    out->env.replicas = 2;
    out->env.rank = 1;
    out->env.member = NEW + number;
    out->env.joins = true;
    out->env.checkpoint_path = job->checkpoint;
    out->env.world_socket = job->world_socket;
    out->options = (adl_options)ADL_OPTIONS_INIT;
    out->options.env = &out->env;
    out->options.handle_signals = false;
    out->options.log = getenv("ADL_TEST_VERBOSE") ? adl_log_stderr : NULL;
    out->options.peer_timeout_ms = 20000;
    pthread_create(&out->thread, NULL, adlt_replica_run, out);
}

/* exits: codes by starting rank, then those of who joins. */
static void run_in(task *work, int replicas, const int *exits, const char *checkpoint)
{
    adlt_job job = {.user = work, .checkpoint = checkpoint};
    adlt_replica all[ADLT_REPLICAS_MAX], joiners[NEW];
    for (int i = 0; i < work->joiners; i++)
        start_joiner(&job, train, &joiners[i], i);
    adlt_replicas_run(&job, replicas, train, all);
    for (int i = 0; i < work->joiners; i++)
        pthread_join(joiners[i].thread, NULL);
    for (int r = 0; r < replicas + work->joiners; r++) {
        const adlt_replica *one = r < replicas ? &all[r] : &joiners[r - replicas];
        if (one->code != exits[r])
            ADLT_FAIL("process %d ended with %d, wanted %d: %s", r, one->code, exits[r],
                      one->error);
    }
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < EXAMPLES; i++)
            if (work->seen[e][i] != 1) {
                ADLT_FAIL("epoch %d: example %d was seen %d times", e, i, (int)work->seen[e][i]);
                return;
            }
}

static void run(task *work, int replicas, const int *exits)
{
    run_in(work, replicas, exits, NULL);
}

static void check_same(const task *work)
{
    task *alone = new_task();
    run(alone, 1, (int[]){0});
    for (int k = 0; k < D; k++)
        CHECK_NEAR(work->result[k], alone->result[k], 1e-5);
    free(alone);
}

TEST(replicas_leave_and_change_places_and_the_others_go_on)
{
    static const change changes[] = {{7, 3, {0, 1, 2}}, /* the last one leaves */
                                     {3, 2, {2, 0}},    /* rank 0 becomes rank 1, 1 leaves */
                                     {20, 2, {1, 0}},   /* they change places */
                                     {1, 1, {1}}};      /* rank 0 leaves the other alone */
    task *work = new_task();
    work->changes = changes;
    work->change_count = 4;
    run(work, 4, (int[]){143, 143, 0, 143});
    CHECK_INT(work->last_replicas, 1);
    for (int world = 0; world < 5; world++)
        CHECK(work->world_steps[world] > 0);
    check_same(work);
    free(work);
}

static void check_joining(bool calls)
{
    static const change changes[] = {{7, 2, {0, NEW}},                 /* one joins one */
                                     {5, 4, {1, NEW + 1, 0, NEW + 2}}, /* two more, others move */
                                     {40, 2, {1, 3}},                  /* two who joined stay */
                                     {9, 3, {0, 1, NEW + 3}}};
    task *work = new_task();
    work->changes = changes;
    work->change_count = 4;
    work->joiners = 4;
    work->calls = calls;
    run(work, 1, (int[]){143, 143, 0, 0, 0});
    CHECK_INT(work->last_replicas, 3);
    CHECK_INT(work->large_loads, 4);
    for (int world = 0; world < 5; world++)
        CHECK(work->world_steps[world] > 0);
    check_same(work);
    free(work);
}

TEST(new_processes_join_and_get_the_state)
{
    check_joining(false);
}

TEST(who_joins_is_told_what_the_program_has_called_before)
{
    check_joining(true);
}

TEST(the_death_of_rank_0_voids_a_step_and_the_other_goes_on)
{
    task *work = new_task();
    work->dies_at = 20;
    run(work, 2, (int[]){1, 0});
    CHECK_INT(work->last_replicas, 1);
    CHECK(work->world_steps[1] > 100);
    check_same(work);
    free(work);
}

/* It has part of the state of one step and part of another's: it must not go on alone. */
TEST(one_whose_state_arrived_in_part_does_not_go_on)
{
    task *work = new_task();
    adlt_job job = {.user = work};
    adlt_replica all[ADLT_REPLICAS_MAX];
    work->dies_at = 20;
    work->tears = true;
    adlt_replicas_run(&job, 3, train, all);
    CHECK_INT(work->sends, 2);
    for (int r = 0; r < 3; r++)
        CHECK_INT(all[r].code, 1);
    CHECK_INT(work->world_steps[2], 0);
    free(work);
}

TEST(a_failed_save_does_not_stop_a_world_that_changes_its_writer)
{
    static const change changes[] = {{30, 1, {1}}};
    char *directory = adlt_tempdir();
    task *work = new_task();
    work->changes = changes;
    work->change_count = 1;
    work->breaks_at = 5;
    run_in(work, 2, (int[]){143, 0}, directory);
    adl_checkpoint *store = NULL;
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    CHECK_OK(adl_checkpoint_open(directory, NULL, &store)); /* the new writer made it again */
    adl_checkpoint_get_info(store, &info);
    CHECK(info.loaded[0] != '\0');
    adl_checkpoint_close(store);
    adlt_tempdir_remove(directory);
    free(work);
}

/* A launcher that hears nothing: who connects to it can go on after a death, if its loop says so. */
static int open_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, path);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fd, ADLT_REPLICAS_MAX) == 0);
    return fd;
}

/* Rank 0 is gone as soon as the new process has the state, which then is about to hear its batch size from it. */
static void lose_first(adlt_replica *replica)
{
    static const change grown = {2, 2, {0, NEW}}, left = {0, 1, {1}};
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    adl_loop *loop = NULL;
    bool run = false, again = true;
    int local_bsz, accum_steps, steps = 0;
    note_context(work, ctx->member, ctx);
    CHECK_OK(adl_loop_new(ctx, "data", EXAMPLES, BATCH, &loop));
    CHECK_OK(adl_loop_autoscale(loop, BATCH, 0, 0, false));
    ADL_EPOCHS (ctx, epoch, 1) {
        if (ctx->member == NEW)
            atomic_store(&work->joined, true);
        CHECK_OK(adl_loop_begin(loop, &run));
        while (adl_loop_index(loop) < EXAMPLES) {
            if (again && ctx->member == 0 && ctx->world.generation == 1) {
                while (!atomic_load(&work->joined))
                    usleep(200);
                note_context(work, 0, NULL);
                offer(work, ctx, &left);
                adl_context_failf(ctx, ADL_EIO, "dies on purpose");
                break;
            }
            if (again && adl_loop_pass(loop, &local_bsz, &accum_steps) != ADL_OK)
                break;
            if (!adl_loop_ready(loop, &again))
                break;
            if (again)
                continue;
            if (!adl_loop_step(loop, local_bsz, false))
                break;
            if (ctx->member == 0 && steps++ == 3)
                offer(work, ctx, &grown);
            wait_formed(work, ctx);
            CHECK(adl_loop_commit(loop, adli_loop_consumed(loop)));
        }
        adl_loop_end(loop);
    }
    if (!adl_stopped(ctx))
        CHECK_INT(ctx->world.generation, 2);
    note_context(work, ctx->member, NULL);
}

TEST(rank_0_dies_before_the_first_batch_of_one_that_has_joined)
{
    char path[96], *directory = adlt_tempdir();
    task *work = new_task();
    adlt_job job = {.user = work, .world_socket = path};
    adlt_replica first, joiner;
    snprintf(path, sizeof path, "%s/worlds", directory);
    int fd = open_socket(path);
    start_joiner(&job, lose_first, &joiner, 0);
    adlt_replicas_run(&job, 1, lose_first, &first);
    pthread_join(joiner.thread, NULL);
    CHECK_INT(first.code, 1);
    CHECK_INT(joiner.code, 0);
    close(fd);
    adlt_tempdir_remove(directory);
    free(work);
}

/* Nobody listens where the next world is said to be: the present one goes on. */
static void offer_nowhere(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_loader *loader = NULL;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    data.examples = 4000;
    data.batch_size = 4;
    ctx->options.connect_timeout_ms = 300;
    CHECK_OK(adl_loader_new(ctx, &data, &loader));
    int steps = 0;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            if (steps++ == 3 && replica->rank == 0) {
                int members[] = {0, 1, 2}; /* a third one that never comes */
                adli_world next = {.generation = 1,
                                   .replicas = 3,
                                   .nodes = 1,
                                   .master_addr = (char *)"127.0.0.1",
                                   .master_port = adlt_free_port(),
                                   .members = members};
                CHECK_OK(adli_regroup_offer(ctx, &next));
            }
            while (steps == 10 && replica->rank == 0 && adli_regroup_wishes(ctx) & ADLI_WISH_WAIT)
                usleep(1000); /* until the waiting for it has ended */
        }
    CHECK_INT(steps, 1000);
    CHECK_INT(ctx->world.generation, 0);
    CHECK_INT(adl_replicas(ctx), 2);
}

TEST(a_world_that_does_not_come_to_be_is_dropped)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 2, offer_nowhere, 0);
}

/* ---- offers as bytes ---- */

static adli_world example_offer(int *members)
{
    return (adli_world){.generation = 7,
                        .replicas = 3,
                        .nodes = 1,
                        .master_addr = (char *)"node-1",
                        .master_port = 4711,
                        .members = members};
}

static void check_offer(const adli_world *heard)
{
    CHECK_INT(heard->generation, 7);
    CHECK_INT(heard->replicas, 3);
    CHECK_INT(heard->nodes, 1);
    CHECK_INT(heard->master_port, 4711);
    CHECK(strcmp(heard->master_addr, "node-1") == 0);
    CHECK_INT(adli_world_rank(heard, 0), 2);
    CHECK_INT(adli_world_rank(heard, 7), -1);
}

TEST(offers_are_checked)
{
    int members[3] = {5, 12, 0};
    adli_world told = example_offer(members), heard;
    size_t length;
    uint8_t *bytes = adli_offer_encode(&told, &length);
    REQUIRE_OK(adli_offer_parse(bytes, length, &heard));
    check_offer(&heard);
    adli_world_fini(&heard);
    for (size_t cut = 0; cut < length; cut++)
        CHECK_INT(adli_offer_parse(bytes, cut, &heard), ADL_ECORRUPT);
    free(bytes);
    members[2] = 5; /* twice */
    bytes = adli_offer_encode(&told, &length);
    CHECK_FAILS(adli_offer_parse(bytes, length, &heard), ADL_ECORRUPT, "makes no sense");
    free(bytes);
}

TEST(offers_are_read_from_lines)
{
    adli_world heard;
    REQUIRE_OK(adli_offer_read("7 1 node-1 4711 5 12 0", &heard));
    check_offer(&heard);
    adli_world_fini(&heard);
    static const char *const wrong[] = {"",
                                        "7",
                                        "7 1 node-1 4711",
                                        "7 1 node-1 4711 ",
                                        "7 1 node-1 4711 5 5",
                                        "7 1 node-1 4711 5 -1",
                                        "7 1 node-1 4711 5 x",
                                        "7 4 node-1 4711 5 12 0",
                                        "7 0 node-1 4711 5",
                                        "7 1 node-1 70000 5",
                                        "7 1 node-1 4711 99999999999"};
    for (size_t i = 0; i < ADLI_COUNT(wrong); i++)
        CHECK_FAILS(adli_offer_read(wrong[i], &heard), ADL_ECORRUPT, "makes no sense");
}
