/* Nothing lost and nothing seen twice: random histories of a training job on 1 to 4 real processes,
 * resized, interrupted (SIGINT, SIGTERM) and killed (SIGKILL) at random moments, until it is finished.
 * A ledger, itself a state of the checkpoint, counts how often the surviving model has seen every
 * example of every epoch: exactly once, extra elements apart. Half of the jobs also train a parameter,
 * whose value tells how many optimizer steps it has seen: as many as the ledger.
 *
 *     test_ledger                 ADL_LEDGER_SEQUENCES (500; 60 under sanitizers) histories from
 *                                 ADL_LEDGER_SEED (1) on */
#include "train_replicas.h"

#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { R_MAX = 4, LOADERS = 2, GENERATIONS_MAX = 60, CHILD_TIMEOUT_S = 60, WORKERS = 4 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEQUENCES = 60 };
#else
enum { SEQUENCES = 500 };
#endif

/* One history's program. */
typedef struct plan {
    int examples[LOADERS], batch_size[LOADERS];
    int epochs, workers, step_us;
    bool trains;        /* gradients are averaged too */
    bool drop_restarts; /* the launcher does not count restarts, as on a terminal */
    double save_interval_s;
    char directory[64];
} plan;

/* What is done to one generation of it. */
typedef enum action { LET_RUN, INTERRUPT_ONE, INTERRUPT_ALL, KILL_ONE, KILL_ALL } action;

typedef struct fate {
    action what;
    int victim;   /* rank */
    int number;   /* of the signal */
    int at_step;  /* the victim does it to itself at this step; -1: the parent does, ... */
    int after_us; /* ... so much later */
} fate;

/* Shared with the children: which of them handle signals at present. Before and after that a
 * signal simply ends them, as it should. */
static volatile char *handles_signals; /* [R_MAX] */

typedef struct counts {
    int generations, kills, interrupts, resizes;
} counts;

/* ---- in the child ----------------------------------------------------------------------------- */

typedef struct ledger {
    adl_context *ctx;
    int64_t *seen, *pending; /* [cells] */
    int cells;               /* epochs x (all examples + 1 for extras) per loader */
    int64_t steps;           /* optimizer steps */
} ledger;

static int loader_cells(const plan *job, int loader)
{
    return job->epochs * (job->examples[loader] + 1);
}

static int all_cells(const plan *job)
{
    return loader_cells(job, 0) + loader_cells(job, 1);
}

/* The last cell of a row counts extras. */
static int cell(const plan *job, int loader, int epoch, int example)
{
    int first = loader ? loader_cells(job, 0) : 0;
    return first + epoch * (job->examples[loader] + 1) + example;
}

static adl_status sync_ledger(void *user)
{
    ledger *book = user;
    adl_status status = adl_group_allreduce(adl_context_group(book->ctx), book->pending,
                                            (size_t)book->cells, ADL_TYPE_I64, ADL_REDUCE_SUM);
    for (int i = 0; status == ADL_OK && i < book->cells; i++) {
        book->seen[i] += book->pending[i];
        book->pending[i] = 0;
    }
    return status;
}

static adl_status save_ledger(void *user, adl_sink *sink)
{
    ledger *book = user;
    adl_sink_u64(sink, (uint64_t)book->steps);
    return adl_sink_write(sink, book->seen, (size_t)book->cells * sizeof *book->seen);
}

static adl_status load_ledger(void *user, adl_source *source)
{
    ledger *book = user;
    uint64_t steps;
    adl_status status = adl_source_u64(source, &steps);
    book->steps = (int64_t)steps;
    if (status == ADL_OK)
        status = adl_source_read(source, book->seen, (size_t)book->cells * sizeof *book->seen);
    return status;
}

static const adl_checkpoint_functions ledger_functions = {sizeof ledger_functions, save_ledger,
                                                          load_ledger, sync_ledger};

static bool kills(const fate *end)
{
    return end->what == KILL_ONE || end->what == KILL_ALL;
}

static void hurt_self(const fate *end, int rank, int step)
{
    bool mine = end->victim == rank || end->what == INTERRUPT_ALL || end->what == KILL_ALL;
    if (end->what != LET_RUN && mine && end->at_step == step)
        raise(end->number);
}

/* A parameter that goes up by one with each optimizer step, if all replicas take part. */
typedef struct model {
    float value, grad;
    adl_param param;
    adl_optim *optim;
    adl_dp *dp;
} model;

static adl_status make_model(adl_context *ctx, model *one)
{
    adl_optim_options sgd = ADL_SGD_INIT(1);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    *one = (model){.param = {"steps", &one->value, &one->grad, 1}};
    adl_status status = adl_optim_new(&one->param, 1, &sgd, &one->optim);
    if (status != ADL_OK)
        return status;
    options.optim = adl_optim_get_ops(one->optim);
    options.rule = &(adl_scaling_rule){.kind = ADL_SCALING_LINEAR};
    return adl_dp_new(ctx, &options, &one->dp);
}

/* One step; the rule multiplies the rate by the scale, so the gradient is divided by it. */
static void train_step(adl_context *ctx, model *one, const plan *job, ledger *book)
{
    int batch = adl_loop_batch_size(adl_current_loop(ctx));
    one->grad = -(float)job->batch_size[0] / (float)batch;
    if (adl_dp_step(one->dp) == ADL_OK)
        book->steps++;
}

/* The training program. Exit codes beyond 0, 1 and 143 are complaints. */
static int train(const plan *job, const fate *end, adl_context *ctx)
{
    ledger book = {.ctx = ctx, .cells = all_cells(job)};
    adl_loader *loader[LOADERS];
    adl_accumulator *stats;
    model one = {0};
    int step = 0;
    book.seen = adli_calloc((size_t)book.cells, sizeof *book.seen);
    book.pending = adli_calloc((size_t)book.cells, sizeof *book.pending);
    if (adl_state(ctx, "ledger", &ledger_functions, &book, NULL) != ADL_OK ||
        adl_accumulator_new(ctx, "stats", &stats) != ADL_OK ||
        (job->trains && make_model(ctx, &one) != ADL_OK))
        return adl_group_check(adl_context_group(ctx)) == ADL_OK ? 71 : 1;
    for (int i = 0; i < LOADERS; i++) {
        adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
        options.examples = (size_t)job->examples[i];
        options.batch_size = job->batch_size[i];
        options.shuffle = i == 0;
        options.workers = job->workers;
        if (adl_loader_new(ctx, &options, &loader[i]) != ADL_OK)
            return 72;
    }
    int wrong = 0;
    ADL_EPOCHS (ctx, epoch, job->epochs)
        for (int i = 0; i < LOADERS; i++) {
            ADL_BATCHES (loader[i], batch) {
                hurt_self(end, adl_rank(ctx), step++);
                if (job->step_us)
                    usleep((useconds_t)job->step_us);
                int own = batch->size - batch->extra;
                for (int k = 0; k < own; k++)
                    book.pending[cell(job, i, epoch, (int)batch->index[k])]++;
                book.pending[cell(job, i, epoch, job->examples[i])] += batch->extra;
                adl_accumulator_add(stats, "examples", own);
                if (job->trains && i == 0)
                    train_step(ctx, &one, job, &book);
            }
            ADL_SYNCHRONIZED (stats) { /* replayed after a restart: the same number again */
                wrong |= adl_accumulator_get(stats, "examples") != job->examples[i];
                adl_accumulator_clear(stats);
            }
        }
    if (job->trains && !adl_stopped(ctx))
        wrong |= fabs(one.value - (double)book.steps) > 1e-3 * (double)book.steps;
    handles_signals[adl_rank(ctx)] = 0; /* adl_finish puts the old handlers back */
    int code = adl_finish(ctx);
    adl_optim_free(one.optim);
    free(book.seen);
    free(book.pending);
    return wrong ? 73 : code;
}

static int run_replica(const plan *job, const fate *end, int restarts, int rank, int replicas,
                       int fd, int port)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    env.checkpoint_path = job->directory;
    env.rank = rank;
    env.replicas = replicas;
    env.master_addr = "127.0.0.1";
    env.master_port = port;
    env.restarts = restarts;
    options.env = &env;
    options.program = "ledger";
    options.log = getenv("ADL_LEDGER_VERBOSE") ? adl_log_stderr : NULL;
    options.checkpoint_interval_s = job->save_interval_s;
    options.listen_fd = rank == 0 ? fd : -1;
    options.connect_timeout_ms = 1000 * CHILD_TIMEOUT_S;
    adl_status status = adl_init(&options, &ctx);
    handles_signals[rank] = status == ADL_OK;
    if (status == ADL_OK)
        return train(job, end, ctx);
    if (status != ADL_EINTR)
        fprintf(stderr, "rank %d: %s\n", rank, adl_error());
    return status == ADL_ECORRUPT || status == ADL_EINVAL ? 74 : adl_exit_code(status);
}

/* ---- in the parent ---------------------------------------------------------------------------- */

static pid_t start(const plan *job, const fate *end, int restarts, int rank, int replicas, int fd,
                   int port)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(CHILD_TIMEOUT_S); /* a hang becomes a failure */
        if (rank != 0 && fd >= 0)
            close(fd);
        fclose(stdout);
        _exit(run_replica(job, end, restarts, rank, replicas, fd, port));
    }
    return pid;
}

/* The parent's part of a fate. */
static void strike(const fate *end, const pid_t *pids, int replicas)
{
    if (end->what == LET_RUN || end->at_step >= 0)
        return;
    usleep((useconds_t)end->after_us);
    bool all = end->what == INTERRUPT_ALL || end->what == KILL_ALL;
    for (int r = 0; r < replicas; r++)
        if (all || r == end->victim)
            kill(pids[r], end->number);
}

/* Waits for one generation. A replica that does not finish ends the others, as a launcher does.
 * Returns 0 (all finished), 143 (stopped in order, or before it began), 1 (something died), or a
 * complaint. */
static int wait_all(pid_t *pids, int replicas, const fate *end)
{
    int left = replicas, finished = 0, stopped = 0, complaint = 0, early_deaths = 0;
    int launcher = 0; /* signal that it sends to the others */
    while (left > 0) {
        int status, r = 0;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0)
            return 75;
        while (r < replicas && pids[r] != pid)
            r++;
        if (r == replicas)
            continue;
        pids[r] = 0;
        left--;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        finished += WIFEXITED(status) && code == 0;
        stopped += WIFEXITED(status) && code == 143;
        if (WIFEXITED(status) && code != 0 && code != 1 && code != 143)
            complaint = code;
        int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        bool early = (number == SIGINT || number == SIGTERM) && !handles_signals[r];
        if (number && !early && !(number == SIGKILL && (kills(end) || launcher == SIGKILL)))
            complaint = 1000 + number;
        early_deaths += early;
        if (WIFSIGNALED(status)) /* there is nothing left to agree on with the others */
            launcher = SIGKILL;
        else if (code != 0 && launcher == 0)
            launcher = SIGTERM;
        for (int k = 0; launcher && k < replicas; k++)
            if (pids[k])
                kill(pids[k], launcher);
    }
    if (complaint)
        return complaint;
    if (finished == replicas)
        return 0;
    return finished + stopped == replicas || early_deaths ? 143 : 1;
}

static fate choose_fate(adli_rng *rng, int generation, int replicas)
{
    fate end = {.what = (action)adli_rng_range(rng, INTERRUPT_ONE, KILL_ALL), .at_step = -1};
    if (adli_rng_below(rng, 10) == 0 || generation >= GENERATIONS_MAX / 2)
        end.what = LET_RUN; /* it has to come to an end some time */
    end.victim = (int)adli_rng_below(rng, (uint32_t)replicas);
    end.number = kills(&end) ? SIGKILL : adli_rng_below(rng, 2) ? SIGINT : SIGTERM;
    if (adli_rng_below(rng, 2))
        end.at_step = adli_rng_range(rng, 0, 20);
    end.after_us = adli_rng_range(rng, 0, adli_rng_below(rng, 2) ? 5000 : 25000);
    return end;
}

static plan choose_plan(adli_rng *rng)
{
    plan job = {.epochs = adli_rng_range(rng, 1, 4), .workers = adli_rng_range(rng, 0, 2)};
    for (int i = 0; i < LOADERS; i++) {
        job.examples[i] = adli_rng_range(rng, 1, i ? 30 : 100);
        job.batch_size[i] = adli_rng_range(rng, 1, 12);
    }
    job.step_us = adli_rng_range(rng, 0, 300);
    job.trains = adli_rng_below(rng, 2);
    job.drop_restarts = adli_rng_below(rng, 4) == 0;
    job.save_interval_s = adli_rng_below(rng, 3) ? 0.001 * adli_rng_range(rng, 1, 10) : 0;
    strcpy(job.directory, adlt_tempdir());
    return job;
}

/* Reads the ledger from the final checkpoint and checks every cell. */
static bool check_ledger(const plan *job)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint *store;
    adl_checkpoint_state *state;
    bool found = false, good = true;
    ledger book = {.cells = all_cells(job)};
    options.is_writer = false;
    options.program = "ledger";
    book.seen = adli_calloc((size_t)book.cells, sizeof *book.seen);
    if (adl_checkpoint_open(job->directory, &options, &store) != ADL_OK ||
        adl_checkpoint_register(store, "ledger", &ledger_functions, &book, &state) != ADL_OK ||
        adl_checkpoint_load_state(store, state, &found) != ADL_OK || !found) {
        ADLT_FAIL("no ledger in %s: %s", job->directory, adl_error());
        return false;
    }
    for (int i = 0; i < LOADERS; i++)
        for (int epoch = 0; epoch < job->epochs; epoch++)
            for (int k = 0; k <= job->examples[i] && good; k++) {
                int64_t seen = book.seen[cell(job, i, epoch, k)];
                bool extra = k == job->examples[i]; /* only the last step of a pass has extras */
                good = extra ? seen <= R_MAX - 1 : seen == 1;
                if (!good)
                    ADLT_FAIL("loader %d, epoch %d, %s %d of %d: seen %lld times (%s)", i, epoch,
                              extra ? "extras" : "example", k, job->examples[i], (long long)seen,
                              job->directory);
            }
    adl_checkpoint_close(store);
    free(book.seen);
    return good;
}

static bool one_sequence(uint64_t seed, counts *sums)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    plan job = choose_plan(&rng);
    int outcome = -1, before = 0;
    for (int g = 0; outcome != 0 && g < GENERATIONS_MAX; g++) {
        int replicas = adli_rng_range(&rng, 1, R_MAX), fd = -1, port = 0;
        fate end = choose_fate(&rng, g, replicas);
        pid_t pids[R_MAX];
        if (replicas > 1 && adl_group_listen("127.0.0.1", 0, &fd, &port) != ADL_OK) {
            ADLT_FAIL("%s", adl_error());
            return false;
        }
        for (int r = 0; r < replicas; r++)
            handles_signals[r] = 0;
        for (int r = 0; r < replicas; r++)
            pids[r] = start(&job, &end, job.drop_restarts ? 0 : g, r, replicas, fd, port);
        if (fd >= 0)
            close(fd);
        strike(&end, pids, replicas);
        outcome = wait_all(pids, replicas, &end);
        sums->generations++;
        sums->kills += end.what == KILL_ONE ? 1 : end.what == KILL_ALL ? replicas : 0;
        sums->interrupts += end.what == INTERRUPT_ONE || end.what == INTERRUPT_ALL;
        sums->resizes += before && before != replicas;
        before = replicas;
        if (outcome > 143 || (outcome > 1 && outcome < 143) || (outcome == 1 && !kills(&end))) {
            ADLT_FAIL("seed %llu, generation %d: %d replicas, fate %d: outcome %d (%s)",
                      (unsigned long long)seed, g, replicas, end.what, outcome, job.directory);
            return false;
        }
    }
    if (outcome != 0)
        ADLT_FAIL("seed %llu: not finished", (unsigned long long)seed);
    if (outcome != 0 || !check_ledger(&job))
        return false;
    adlt_tempdir_remove(job.directory);
    return true;
}

static int setting(const char *variable, int otherwise)
{
    const char *value = getenv(variable);
    return value ? atoi(value) : otherwise;
}

/* The histories mostly wait (for the disk, for each other): several at a time. Each worker has a page
 * of shared memory for itself and its children. */
typedef struct worker {
    counts sums;
    int done;
    volatile char handles_signals[R_MAX];
} worker;

static void run_worker(worker *self, int number, uint64_t seed, int sequences)
{
    handles_signals = self->handles_signals;
    for (int i = number; i < sequences; i += WORKERS) {
        if (!one_sequence(seed + (uint64_t)i, &self->sums))
            _exit(1);
        self->done++;
    }
    _exit(0);
}

TEST(every_example_of_every_epoch_exactly_once)
{
    int sequences = setting("ADL_LEDGER_SEQUENCES", SEQUENCES), done = 0, status;
    uint64_t seed = (uint64_t)setting("ADL_LEDGER_SEED", 1);
    counts sums = {0};
    pid_t pids[WORKERS];
    worker *workers = mmap(NULL, WORKERS * sizeof *workers, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(workers != MAP_FAILED);
    fflush(stdout);
    for (int w = 0; w < WORKERS; w++)
        if ((pids[w] = fork()) == 0)
            run_worker(&workers[w], w, seed, sequences);
    for (int w = 0; w < WORKERS; w++) {
        waitpid(pids[w], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        done += workers[w].done;
        sums.generations += workers[w].sums.generations;
        sums.resizes += workers[w].sums.resizes;
        sums.interrupts += workers[w].sums.interrupts;
        sums.kills += workers[w].sums.kills;
    }
    CHECK_INT(done, sequences);
    munmap(workers, WORKERS * sizeof *workers);
    printf("info - %d sequences: %d starts, %d changes of size, %d interrupts, %d kills\n", done,
           sums.generations, sums.resizes, sums.interrupts, sums.kills);
}
