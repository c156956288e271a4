/* What a resize and a death cost, as the replicas themselves see it, in place and with stop and restart:
 *
 *     bench_elastic [BUILD [ROUNDS [PROGRAM ARGUMENTS...]]]     default: build/release, 3, itself as MNIST
 *
 * Runs a training program under `adaptdl run`, scales it from 1 to 2 and back, and kills one of two, ROUNDS times
 * each; once as it is, and once with BENCH_RESTART set, for which the program drops ADAPTDL_WORLD_SOCKET, so that it
 * can't be resized in place. Every process appends to BENCH_STEPS/PID a line "B TIME RANK REPLICAS RESTARTS" when a step
 * begins and one with E when it has ended (seconds since 1970). From these:
 *   pause      from the end of the last step of the old world to the beginning of the first of the new one
 *   decision   from calling `adaptdl scale` to the beginning of the first step of the new world
 *   death      from the kill to the beginning of the next step, noticing included (ADAPTDL_PEER_TIMEOUT=1)
 * "start of a process" is a fresh one by itself, from its start to its first step. Medians. */
#include "adaptdl/dataset.h"
#include "adaptdl/train.h"
#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, CLASSES = 10, ROUNDS_MAX = 32, WAIT_S = 120 };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the training program ---------------------------------------------------------------------- */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ADL_OK) {                                                                    \
            fprintf(stderr, "bench_elastic: %s: %s\n", #call, adl_error());                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void note(int fd, char what, const adl_context *ctx)
{
    char line[96];
    int length = snprintf(line, sizeof line, "%c %.6f %d %d %d\n", what, now_s(), adl_rank(ctx),
                          adl_replicas(ctx), adl_context_env(ctx)->restarts);
    if (write(fd, line, (size_t)length) != length)
        exit(1);
}

static adl_status fill_images(void *user, const adl_fill *fill)
{
    return adl_dataset_batch(user, fill->index, (size_t)fill->count, fill->part[0], fill->part[1]);
}

/* The tutorial's network. */
static adl_net *make_net(void)
{
    adl_net *net;
    MUST(adl_net_new(ADL_SHAPE(1, 28, 28), &net));
    adl_net_conv2d(net, "conv1", &(adl_conv2d){.out = 32, .kernel = 3});
    adl_net_relu(net);
    adl_net_conv2d(net, "conv2", &(adl_conv2d){.out = 64, .kernel = 3});
    adl_net_relu(net);
    adl_net_max_pool2d(net, 2, 0);
    adl_net_flatten(net);
    adl_net_linear(net, "fc1", &(adl_linear){.out = 128});
    adl_net_relu(net);
    adl_net_linear(net, "fc2", &(adl_linear){.out = CLASSES});
    adl_net_log_softmax(net);
    MUST(adl_net_build(net, 1));
    return net;
}

static void take_steps(adl_context *ctx, adl_net *net, adl_dp *dp, adl_loader *loader, int fd)
{
    static float dlogp[BATCH * CLASSES];
    const float *logp;
    double loss;
    ADL_EPOCHS (ctx, epoch, 100000)
        ADL_BATCHES (loader, batch) {
            note(fd, 'B', ctx);
            MUST(adl_net_forward(net, batch->part[0], batch->size,
                                 &(adl_pass){.train = true, .seed = batch->seed}, &logp));
            MUST(adl_loss_nll(logp, batch->part[1], batch->size, CLASSES, ADL_MEAN, &loss, dlogp));
            MUST(adl_net_backward(net, dlogp, NULL, ADL_GRAD_SET));
            if (adl_dp_step(dp) == ADL_OK)
                note(fd, 'E', ctx);
        }
}

static int train(void)
{
    adl_loader_options load = ADL_LOADER_OPTIONS_INIT;
    adl_optim_options rates = ADL_ADADELTA_INIT;
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    adl_context *ctx;
    adl_dataset *set;
    adl_optim *optim;
    adl_loader *loader;
    adl_dp *dp;
    size_t count;
    char path[600];
    if (getenv("BENCH_RESTART"))
        unsetenv("ADAPTDL_WORLD_SOCKET");
    snprintf(path, sizeof path, "%.500s/%d", getenv("BENCH_STEPS"), (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    MUST(adl_nn_set_threads(1));
    MUST(adl_init(NULL, &ctx));
    MUST(adl_dataset_digits(6000, 1, &set));
    adl_net *net = make_net();
    const adl_param *params = adl_net_params(net, &count);
    MUST(adl_optim_new(params, count, &rates, &optim));
    parallel.optim = adl_optim_get_ops(optim);
    adl_net_flat(net, NULL, &parallel.flat_grads, &parallel.flat_count);
    MUST(adl_dp_new(ctx, &parallel, &dp));
    adl_net_set_hook(net, adl_dp_hook, dp);
    load.examples = adl_dataset_get_info(set).count;
    load.batch_size = BATCH;
    load.shuffle = load.drop_last = true;
    load.part_bytes[0] = adl_dataset_example_size(set) * sizeof(float);
    load.part_bytes[1] = sizeof(int32_t);
    load.fill = fill_images;
    load.user = set;
    MUST(adl_loader_new(ctx, &load, &loader));
    take_steps(ctx, net, dp, loader, fd);
    int code = adl_finish(ctx);
    adl_optim_free(optim);
    adl_net_free(net);
    adl_dataset_free(set);
    return code;
}

/* ---- what the processes have written ----------------------------------------------------------- */

typedef struct event {
    char what;
    double at_s;
    int rank, replicas, restarts, pid;
} event;

typedef struct events {
    event *all;
    size_t count, capacity;
} events;

static void read_one(events *to, const char *path, int pid)
{
    event one = {.pid = pid};
    FILE *file = fopen(path, "re");
    char line[128];
    while (file && fgets(line, sizeof line, file)) {
        if (!strchr(line, '\n') || sscanf(line, "%c %lf %d %d %d", &one.what, &one.at_s, &one.rank,
                                          &one.replicas, &one.restarts) != 5)
            continue;
        if (to->count == to->capacity) {
            to->capacity = to->capacity ? 2 * to->capacity : 4096;
            to->all = realloc(to->all, to->capacity * sizeof *to->all);
            if (!to->all)
                exit(1);
        }
        to->all[to->count++] = one;
    }
    if (file)
        fclose(file);
}

static void read_events(events *to, const char *directory)
{
    char path[800];
    to->count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%.500s/%.200s", directory, entry->d_name);
        if (entry->d_name[0] != '.')
            read_one(to, path, atoi(entry->d_name));
    }
    if (dir)
        closedir(dir);
}

/* The first step that begins after a moment, with so many replicas (0: any) of a start after this one. */
static const event *first_after(const events *of, double after_s, int replicas, int restarts)
{
    const event *found = NULL;
    for (size_t i = 0; i < of->count; i++) {
        const event *one = &of->all[i];
        if (one->what == 'B' && one->at_s > after_s && one->restarts >= restarts &&
            (replicas == 0 || one->replicas == replicas) && (!found || one->at_s < found->at_s))
            found = one;
    }
    return found;
}

static const event *last_end(const events *of, double before_s, int replicas)
{
    const event *found = NULL;
    for (size_t i = 0; i < of->count; i++) {
        const event *one = &of->all[i];
        if (one->what == 'E' && one->at_s < before_s && one->replicas == replicas &&
            (!found || one->at_s > found->at_s))
            found = one;
    }
    return found;
}

/* ---- the driver -------------------------------------------------------------------------------- */

typedef struct series {
    double seconds[ROUNDS_MAX];
    int count;
} series;

typedef struct bench {
    char root[256], steps[300], checkpoint[300], name[64], adaptdl[512];
    const char *const *program; /* NULL-terminated */
    bool restarts;              /* stop and restart */
    pid_t run;
    events seen;
    series grow, shrink, decide, death;
} bench;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(series *s)
{
    qsort(s->seconds, (size_t)s->count, sizeof s->seconds[0], by_value);
    return s->count ? s->seconds[s->count / 2] : -1;
}

static void add(series *to, double seconds)
{
    if (to->count < ROUNDS_MAX)
        to->seconds[to->count++] = seconds;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void stop_run(bench *b)
{
    if (b->run > 0) {
        kill(b->run, SIGTERM);
        waitpid(b->run, NULL, 0);
    }
    b->run = 0;
}

static void give_up(bench *b, const char *what)
{
    fprintf(stderr, "bench_elastic: %s did not happen within %d s\n", what, WAIT_S);
    stop_run(b);
    nftw(b->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    exit(1);
}

static const event *wait_step(bench *b, double after_s, int replicas, int restarts,
                              const char *what)
{
    for (double end_s = now_s() + WAIT_S; now_s() < end_s; usleep(50000)) {
        read_events(&b->seen, b->steps);
        const event *found = first_after(&b->seen, after_s, replicas, restarts);
        if (found)
            return found;
    }
    give_up(b, what);
    return NULL;
}

static pid_t spawn(const char *const *arguments)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; fd++)
        dup2(null, fd);
    execvp(arguments[0], (char *const *)(uintptr_t)arguments);
    _exit(127);
}

static void start_run(bench *b)
{
    const char *arguments[64] = {b->adaptdl, "run",          "-q",          "-n",
                                 "1",        "--name",       b->name,       "--max-restarts",
                                 "1000",     "--checkpoint", b->checkpoint, "--"};
    int count = 12;
    for (int i = 0; b->program[i] && count < 63; i++)
        arguments[count++] = b->program[i];
    b->run = spawn(arguments);
}

static double scale(bench *b, const char *replicas)
{
    const char *arguments[] = {b->adaptdl, "scale", b->name, replicas, NULL};
    double at_s = now_s();
    int status;
    pid_t child = spawn(arguments);
    if (waitpid(child, &status, 0) != child || status != 0)
        give_up(b, "adaptdl scale");
    return at_s;
}

/* A little training in between, so that nothing of the last change is still under way. */
static int settle(bench *b, int replicas, int restarts)
{
    const event *first = wait_step(b, now_s(), replicas, restarts, "training");
    usleep(700000);
    return wait_step(b, first->at_s + 0.5, replicas, restarts, "training")->restarts;
}

static void measure_pause(bench *b, int from, int to, int restarts, series *pauses)
{
    double at_s = scale(b, to == 2 ? "2" : "1");
    event first = *wait_step(b, at_s, to, restarts, "a resize");
    const event *last = last_end(&b->seen, first.at_s, from);
    if (last)
        add(pauses, first.at_s - last->at_s);
    if (to == 2)
        add(&b->decide, first.at_s - at_s);
}

/* One of two, rank 0 and rank 1 in turn. */
static void measure_death(bench *b, int victim, int restarts)
{
    read_events(&b->seen, b->steps);
    const event *latest = NULL;
    for (size_t i = 0; i < b->seen.count; i++) {
        const event *one = &b->seen.all[i];
        if (one->rank == victim && one->replicas == 2 && (!latest || one->at_s > latest->at_s))
            latest = one;
    }
    if (!latest)
        give_up(b, "a victim");
    double at_s = now_s();
    kill(latest->pid, SIGKILL);
    const event *first = b->restarts ? wait_step(b, at_s, 0, restarts + 1, "a restart")
                                     : wait_step(b, at_s, 1, restarts, "going on without it");
    add(&b->death, first->at_s - at_s);
}

static void run_all(bench *b, int rounds)
{
    int restarts = 0;
    start_run(b);
    for (int i = 0; i < rounds; i++) {
        restarts = settle(b, 1, restarts);
        measure_pause(b, 1, 2, restarts, &b->grow);
        restarts = settle(b, 2, restarts);
        measure_death(b, i % 2, restarts);
        restarts = settle(b, 2, restarts); /* its place is filled again */
        measure_pause(b, 2, 1, restarts, &b->shrink);
    }
    stop_run(b);
}

/* A process by itself, from its start to its first step. */
static double start_of_process(bench *b)
{
    double at_s = now_s();
    pid_t child = spawn(b->program);
    double first_s = wait_step(b, at_s, 1, 0, "a first step")->at_s;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return first_s - at_s;
}

static void set_up(bench *b, const char *build, const char *const *program, bool restarts)
{
    *b = (bench){.program = program, .restarts = restarts};
    snprintf(b->root, sizeof b->root, "%.200s/bench-elastic-XXXXXX", build);
    if (!mkdtemp(b->root)) {
        perror(b->root);
        exit(1);
    }
    snprintf(b->steps, sizeof b->steps, "%.250s/steps", b->root);
    snprintf(b->checkpoint, sizeof b->checkpoint, "%.250s/checkpoint", b->root);
    snprintf(b->adaptdl, sizeof b->adaptdl, "%.400s/bin/adaptdl", build);
    snprintf(b->name, sizeof b->name, "bench-elastic-%d-%d", (int)getpid(), restarts);
    if (mkdir(b->steps, 0777) != 0)
        exit(1);
    setenv("BENCH_STEPS", b->steps, 1);
    setenv("ADAPTDL_PEER_TIMEOUT", "1", 1);
    if (restarts)
        setenv("BENCH_RESTART", "1", 1);
}

static void row(const char *what, double in_place_s, double restart_s, const char *goal)
{
    printf("%-46s %8.3f s %10.3f s %8.1f   %s\n", what, in_place_s, restart_s,
           restart_s / in_place_s, goal);
}

int main(int argc, char **argv)
{
    static bench ways[2];
    series starts = {.count = 0};
    const char *self[] = {argv[0], "--train", NULL};
    if (argc > 1 && strcmp(argv[1], "--train") == 0)
        return train();
    const char *build = argc > 1 ? argv[1] : "build/release";
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    const char *const *program = argc > 3 ? (const char *const *)(argv + 3) : self;
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    for (int way = 0; way < 2; way++) {
        set_up(&ways[way], build, program, way == 1);
        for (int i = 0; way == 0 && i < rounds; i++)
            add(&starts, start_of_process(&ways[way]));
        nftw(ways[way].steps, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        if (mkdir(ways[way].steps, 0777) != 0)
            return 1;
        run_all(&ways[way], rounds);
        nftw(ways[way].root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    bench *a = &ways[0], *r = &ways[1];
    double start_s = median(&starts);
    printf("%-46s %10s %12s %8s   %s\n", "median of the rounds", "in place", "restart", "times",
           "goal for MNIST in place (ResNet-18)");
    row("pause, 1 -> 2", median(&a->grow), median(&r->grow), "< 0.1 s (0.5 s)");
    row("pause, 2 -> 1", median(&a->shrink), median(&r->shrink), "< 0.1 s (0.5 s)");
    row("death of one of two, until the next step", median(&a->death), median(&r->death),
        "< 1.5 s (2 s)");
    row("decision -> first step in the new world, 1 -> 2", median(&a->decide), median(&r->decide),
        "start of a process + 0.2 s (import torch + 1 s)");
    printf(
        "start of a process by itself, to its first step %7.3f s; the decision took %+.3f s more\n",
        start_s, median(&a->decide) - start_s);
    return 0;
}
