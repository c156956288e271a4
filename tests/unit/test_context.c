/* Life of a context: signals, saving in the background and at the end, failures of replicas, and
 * everything that can be wrong with a checkpoint directory. */
#include "train_replicas.h"

#include "train/context.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Runs body in a child process, so that real signals can be sent. Its exit status as from wait. */
static int in_child(void (*body)(void))
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(99);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static char log_text[4096];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_log(void *user, adl_log_level level, const char *line)
{
    (void)user;
    pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%d %s\n", level, line);
    pthread_mutex_unlock(&log_lock);
}

static bool log_has(const char *text)
{
    pthread_mutex_lock(&log_lock);
    bool has = strstr(log_text, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return has;
}

static char directory[64];

/* One process, with signals. */
static adl_status start(adl_context **ctx)
{
    static adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    env.checkpoint_path = *directory ? directory : NULL;
    options.env = &env;
    options.log = keep_log;
    log_text[0] = '\0';
    return adl_init(&options, ctx);
}

static adl_loader *numbers(adl_context *ctx, int examples)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader = NULL;
    options.examples = (size_t)examples;
    options.batch_size = 1;
    CHECK_OK(adl_loader_new(ctx, &options, &loader));
    return loader;
}

/* Ends with 143 when everything was as it should be. */
static void signal_once(int number)
{
    adl_context *ctx;
    if (start(&ctx) != ADL_OK)
        _exit(90);
    adl_loader *loader = numbers(ctx, 100);
    int steps = 0;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch)
            if (++steps == 10) {
                raise(number);
                while (!log_has("got SIG")) /* said at once, by another thread */
                    usleep(1000);
            }
    if (steps != 10 || adl_context_status(ctx) != ADL_EINTR)
        _exit(91);
    if (!log_has(number == SIGINT ? "got SIGINT" : "got SIGTERM"))
        _exit(92);
    if (*directory && !log_has("saved checkpoint-0.1"))
        _exit(93);
    _exit(adl_finish(ctx));
}

static void signal_int(void)
{
    signal_once(SIGINT);
}

static void signal_term(void)
{
    signal_once(SIGTERM);
}

TEST(one_signal_saves_and_ends_with_143)
{
    strcpy(directory, adlt_tempdir());
    int status = in_child(signal_int);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 143);
    adlt_tempdir_remove(directory);
    strcpy(directory, adlt_tempdir());
    status = in_child(signal_term);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 143);
    adlt_tempdir_remove(directory);
    directory[0] = '\0'; /* nowhere to save: still 143 */
    status = in_child(signal_int);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 143);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/* As code that computes and has the stack pointer somewhere in the heap for a while. */
static void signal_while_the_stack_is_elsewhere(void)
{
    enum { ROOM = 1 << 16, FILL = 0x11 };
    adl_context *ctx;
    char *block = malloc(2 * ROOM);
    directory[0] = '\0';
    if (!block || start(&ctx) != ADL_OK)
        _exit(90);
    memset(block, FILL, 2 * ROOM);
    long result = SYS_tgkill, self = syscall(SYS_gettid);
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %[there], %%rsp\n\tsyscall\n\tmov %%rbx, %%rsp"
                     : "+a"(result)
                     : "D"((long)getpid()), "S"(self), "d"((long)SIGTERM), [there] "r"(block + ROOM)
                     : "rbx", "rcx", "r11", "cc", "memory");
    for (int i = 0; i < 2 * ROOM; i++)
        if (block[i] != FILL)
            _exit(91);
    _exit(result == 0 && adli_signals_received() ? 0 : 92);
}

TEST(a_signal_leaves_alone_what_the_stack_pointer_points_to)
{
    CHECK_INT(in_child(signal_while_the_stack_is_elsewhere), 0);
}
#endif

static void interrupt_twice(void)
{
    adl_context *ctx;
    directory[0] = '\0';
    if (start(&ctx) != ADL_OK)
        _exit(90);
    raise(SIGINT);
    raise(SIGINT);
    _exit(91); /* not reached */
}

TEST(a_second_sigint_kills_at_once)
{
    int status = in_child(interrupt_twice);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}

static volatile sig_atomic_t own_handler_called;

static void own_handler(int number)
{
    (void)number;
    own_handler_called++;
}

static void handlers_put_back(void)
{
    adl_context *one, *two;
    signal(SIGTERM, own_handler);
    directory[0] = '\0';
    if (start(&one) != ADL_OK || start(&two) != ADL_OK)
        _exit(90);
    raise(SIGTERM);
    if (own_handler_called || !adli_stop_wanted(one) || !adli_stop_wanted(two))
        _exit(91);
    adl_finish(one);
    if (!adli_stop_wanted(two))
        _exit(92);
    adl_finish(two);
    raise(SIGTERM);
    if (own_handler_called != 1)
        _exit(93);
    if (start(&one) != ADL_OK || adli_stop_wanted(one)) /* a new context starts clean */
        _exit(94);
    _exit(adl_finish(one));
}

TEST(handlers_are_put_back_and_two_contexts_share_the_flag)
{
    int status = in_child(handlers_put_back);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void not_asked(void)
{
    adl_context *ctx;
    adl_options options = ADL_OPTIONS_INIT;
    adl_env env = ADL_ENV_INIT;
    options.env = &env;
    options.handle_signals = false;
    if (adl_init(&options, &ctx) != ADL_OK)
        _exit(90);
    raise(SIGTERM);
    _exit(91); /* not reached: nobody asked for a handler */
}

TEST(no_handlers_without_being_asked)
{
    int status = in_child(not_asked);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* ---- saving ----------------------------------------------------------------------------------- */

typedef struct own_state {
    int value, stop_at;
} own_state;

static adl_status save_own(void *user, adl_sink *sink)
{
    return adl_sink_u32(sink, (uint32_t)((own_state *)user)->value);
}

static adl_status load_own(void *user, adl_source *source)
{
    uint32_t value;
    adl_status status = adl_source_u32(source, &value);
    if (status == ADL_OK)
        ((own_state *)user)->value = (int)value;
    return status;
}

static const adl_checkpoint_functions own_functions = {sizeof own_functions, save_own, load_own,
                                                       NULL};

/* Counts steps in a state of its own; stops where the job says. */
static void count_steps(adlt_replica *replica)
{
    own_state state = {.stop_at = *(int *)replica->job->user};
    CHECK_FAILS(adl_state(replica->ctx, "adaptdl.mine", &own_functions, &state, NULL), ADL_EINVAL,
                "adaptdl.");
    REQUIRE_OK(adl_state(replica->ctx, "mine", &own_functions, &state, NULL));
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = 400;
    options.batch_size = 4;
    REQUIRE_OK(adl_loader_new(replica->ctx, &options, &loader));
    ADL_EPOCHS (replica->ctx, epoch, 2)
        ADL_BATCHES (loader, batch) {
            CHECK_INT(state.value, epoch * 100 + (int)batch->done / 4);
            if (++state.value == state.stop_at && replica->rank == replica->replicas - 1)
                adl_stop(replica->ctx); /* one replica is enough */
        }
    if (!adl_stopped(replica->ctx))
        CHECK_INT(state.value, 200);
    /* The state must outlive adl_finish's last save. */
    replica->code = adl_finish(replica->ctx);
    replica->ctx = NULL;
    pthread_exit(NULL);
}

TEST(states_of_the_program_are_saved_at_the_same_step)
{
    strcpy(directory, adlt_tempdir());
    int stop_at = 70;
    adlt_job job = {.checkpoint = directory, .user = &stop_at, .program = "test"};
    adlt_replicas_expect(&job, 2, count_steps, 143);
    job.restarts = 1;
    stop_at = 130;
    adlt_replicas_expect(&job, 1, count_steps, 143);
    job.restarts = 2;
    stop_at = -1;
    adlt_replicas_expect(&job, 4, count_steps, 0);
    job.program = "another";
    adlt_replica all[2];
    adlt_replicas_run(&job, 2, count_steps, all);
    for (int r = 0; r < 2; r++) {
        CHECK_INT(all[r].started, ADL_EINVAL);
        CHECK(strstr(all[r].error, "test") && strstr(all[r].error, "another"));
    }
    adlt_tempdir_remove(directory);
}

static void save_often(adlt_replica *replica)
{
    adl_loader *loader = numbers(replica->ctx, 200);
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            if (batch->number % 20 == 0 && replica->rank == 0)
                adl_save(replica->ctx);
            usleep(500);
        }
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(adl_context_store(replica->ctx), &info);
    if (replica->rank == 0)
        CHECK(info.saves_ok + (info.busy ? 1 : 0) >= *(uint64_t *)replica->job->user);
    CHECK_INT(info.saves_failed, 0);
}

TEST(checkpoints_are_saved_in_the_background)
{
    strcpy(directory, adlt_tempdir());
    uint64_t wanted = 5; /* on demand */
    adlt_job job = {.checkpoint = directory, .user = &wanted};
    adlt_replicas_expect(&job, 2, save_often, 0);
    adlt_tempdir_remove(directory);
    strcpy(directory, adlt_tempdir());
    wanted = 9; /* and by the clock */
    job.save_interval_s = 0.001;
    adlt_replicas_expect(&job, 1, save_often, 0);
    adlt_tempdir_remove(directory);
}

/* ---- what can be wrong ------------------------------------------------------------------------ */

static void nothing(adlt_replica *replica)
{
    (void)replica;
}

static void expect_refusal(const char *path, adl_status wanted, const char *text)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        adlt_job job = {.checkpoint = path};
        adlt_replica all[2];
        adlt_replicas_run(&job, replicas, nothing, all);
        for (int r = 0; r < replicas; r++) {
            CHECK_INT(all[r].started, wanted);
            CHECK_INT(all[r].code, 1);
            if (!strstr(all[r].error, text))
                ADLT_FAIL("\"%s\" does not say \"%s\"", all[r].error, text);
        }
    }
}

TEST(a_checkpoint_path_that_cannot_be_used_is_refused_at_the_start)
{
    expect_refusal("/nonexistent/parent/ckpt", ADL_EIO, "/nonexistent/parent/ckpt");
    expect_refusal("/proc", ADL_EIO, "/proc");
    char file[] = "/tmp/adl-test-XXXXXX";
    int fd = mkstemp(file);
    close(fd);
    expect_refusal(file, ADL_EIO, file);
    unlink(file);
}

/* Damages every file below the directory. */
static int damage_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)walk;
    if (kind != FTW_F || info->st_size == 0)
        return 0;
    int fd = open(path, O_RDWR);
    char byte;
    if (fd >= 0 && pread(fd, &byte, 1, info->st_size / 2) == 1) {
        byte ^= 0x10;
        CHECK_INT(pwrite(fd, &byte, 1, info->st_size / 2), 1);
    }
    close(fd);
    return 0;
}

TEST(damaged_checkpoints_are_reported_not_followed)
{
    strcpy(directory, adlt_tempdir());
    int stop_at = 10;
    adlt_job job = {.checkpoint = directory, .user = &stop_at};
    adlt_replicas_expect(&job, 1, count_steps, 143);
    nftw(directory, damage_one, 8, FTW_PHYS);
    expect_refusal(directory, ADL_ECORRUPT, "checkpoint-0.1");
    adlt_tempdir_remove(directory);
}

/* The directory goes away while training: reported, not fatal; at the end it is. */
static void vanish(adlt_replica *replica)
{
    adl_loader *loader = numbers(replica->ctx, 60);
    int batches = 0;
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            if (batch->number == 5 && replica->rank == 0) {
                adlt_tempdir_remove(directory);
                int fd = open(directory, O_CREAT | O_WRONLY, 0600); /* a file in its place */
                close(fd);
            }
            if (batch->number % 10 == 9)
                adl_save(replica->ctx);
            batches++;
        }
    CHECK_INT(batches, 60 / replica->replicas);
    CHECK_INT(adl_context_status(replica->ctx), ADL_OK);
}

TEST(a_directory_that_vanishes_does_not_kill_training)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        strcpy(directory, adlt_tempdir());
        adlt_job job = {.checkpoint = directory};
        adlt_replicas_expect(&job, replicas, vanish, 1);
        unlink(directory);
    }
}

/* A replica that fails takes the others with it, and they say why. */
static void one_fails(adlt_replica *replica)
{
    adl_loader *loader = numbers(replica->ctx, 1000);
    ADL_EPOCHS (replica->ctx, epoch, 1)
        ADL_BATCHES (loader, batch)
            if (replica->rank == 1 && batch->number == 20) {
                adli_fail(ADL_EIO, "image 7 is not there");
                adl_context_fail(replica->ctx, ADL_EIO);
            }
    CHECK_INT(adl_context_status(replica->ctx), replica->rank == 1 ? ADL_EIO : ADL_EPEER);
    CHECK(strstr(adl_context_error(replica->ctx), "image 7 is not there"));
}

TEST(a_failing_replica_ends_all_with_its_reason)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 3, one_fails, 1);
}

/* Replicas that do not see the directory are sent what rank 0 read. */
static void *run_blind(void *user)
{
    adlt_replica *replica = user;
    replica->started = adl_init(&replica->options, &replica->ctx);
    if (replica->started != ADL_OK)
        return NULL;
    own_state state = {0};
    bool found = false;
    CHECK_OK(adl_state(replica->ctx, "mine", &own_functions, &state, &found));
    CHECK(found);
    CHECK_INT(state.value, 10);
    CHECK_INT(adl_finished_epochs(replica->ctx), 0);
    replica->code = adl_finish(replica->ctx);
    return NULL;
}

TEST(replicas_without_the_directory_are_sent_its_contents)
{
    strcpy(directory, adlt_tempdir());
    int stop_at = 10, fd, port;
    adlt_job job = {.checkpoint = directory, .user = &stop_at};
    adlt_replicas_expect(&job, 1, count_steps, 143);
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &fd, &port));
    adlt_replica all[3] = {0};
    static const char *const paths[3] = {directory, NULL, "/nonexistent/elsewhere"};
    for (int r = 0; r < 3; r++) {
        all[r].env = (adl_env)ADL_ENV_INIT;
        all[r].env.rank = r, all[r].env.replicas = 3, all[r].env.nodes = 3;
        all[r].env.master_addr = "127.0.0.1", all[r].env.master_port = port;
        all[r].env.checkpoint_path = paths[r];
        all[r].options = (adl_options)ADL_OPTIONS_INIT;
        all[r].options.env = &all[r].env;
        all[r].options.handle_signals = false, all[r].options.log = NULL;
        all[r].options.listen_fd = r == 0 ? fd : -1;
        pthread_create(&all[r].thread, NULL, run_blind, &all[r]);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(all[r].thread, NULL);
        CHECK_INT(all[r].started, ADL_OK);
    }
    CHECK_INT(all[0].code, 0);
    adlt_tempdir_remove(directory);
}

TEST(an_unreachable_master_and_a_rank_taken_twice_are_reported)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    int fd, port;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &fd, &port));
    close(fd); /* nobody listens there now */
    options.env = &env, options.log = NULL, options.handle_signals = false;
    options.connect_timeout_ms = 300;
    env.rank = 1, env.replicas = env.nodes = 2;
    env.master_addr = "127.0.0.1", env.master_port = port;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_ETIMEOUT, "127.0.0.1");
    CHECK_INT(adl_exit_code(ADL_ETIMEOUT), 1);
    env.rank = 0;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_ETIMEOUT, "1"); /* rank 1 did not arrive */
}

static void *run_twin(void *user)
{
    adlt_replica *replica = user;
    replica->started = adl_init(&replica->options, &replica->ctx);
    if (replica->started == ADL_OK)
        replica->code = adl_finish(replica->ctx);
    else
        snprintf(replica->error, sizeof replica->error, "%s", adl_error());
    return NULL;
}

TEST(two_replicas_with_one_rank)
{
    adlt_replica all[3] = {0};
    int fd, port;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &fd, &port));
    static const int ranks[3] = {0, 1, 1}; /* of three: rank 2 never comes */
    for (int r = 0; r < 3; r++) {
        all[r].env = (adl_env)ADL_ENV_INIT;
        all[r].env.rank = ranks[r], all[r].env.replicas = 3, all[r].env.nodes = 3;
        all[r].env.master_addr = "127.0.0.1", all[r].env.master_port = port;
        all[r].options = (adl_options)ADL_OPTIONS_INIT;
        all[r].options.env = &all[r].env;
        all[r].options.handle_signals = false, all[r].options.log = NULL;
        all[r].options.connect_timeout_ms = 1500;
        all[r].options.listen_fd = r == 0 ? fd : -1;
        pthread_create(&all[r].thread, NULL, run_twin, &all[r]);
    }
    int taken = 0;
    for (int r = 0; r < 3; r++) {
        pthread_join(all[r].thread, NULL);
        CHECK(all[r].started != ADL_OK);
        taken += r > 0 && all[r].started == ADL_EPEER && strstr(all[r].error, "rank 1") != NULL;
    }
    CHECK(taken >= 1); /* the second of the two was told so */
}

TEST(the_environment_goes_before_the_program)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    options.env = &env;
    options.handle_signals = false;
    options.checkpoint_interval_s = 12;
    options.peer_timeout_ms = 1234;
    REQUIRE_OK(adl_init(&options, &ctx));
    CHECK(ctx->options.checkpoint_interval_s == 12 && ctx->options.peer_timeout_ms == 1234);
    adl_finish(ctx);
    env = (adl_env){.master_addr = "0.0.0.0", .replicas = 1, .nodes = 1};
    REQUIRE_OK(adl_init(&options, &ctx));
    CHECK(ctx->options.checkpoint_interval_s == 12);
    adl_finish(ctx);
    env.checkpoint_interval_s = -1;
    env.peer_timeout_s = 9;
    REQUIRE_OK(adl_init(&options, &ctx));
    CHECK(ctx->options.checkpoint_interval_s == 0 && ctx->options.peer_timeout_ms == 9000);
    adl_finish(ctx);
}

/* What was compiled before reads_only came says all the rest, with a size that ends there. */
TEST(options_without_the_newest_member)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    options.size = offsetof(adl_options, reads_only);
    options.env = &env;
    options.handle_signals = false;
    options.checkpoint_keep = 7;
    options.log = NULL;
    options.reads_only = true; /* beyond the size */
    REQUIRE_OK(adl_init(&options, &ctx));
    CHECK(!ctx->options.handle_signals && !ctx->options.log && !ctx->options.reads_only);
    CHECK_INT(ctx->options.checkpoint_keep, 7);
    adl_finish(ctx);
}
