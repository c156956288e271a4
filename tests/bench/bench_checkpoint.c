/* How fast checkpoints are written, and how long a training step waits for one, side by side with the
 * least that could be done: writing the same bytes to files with write and fsync, and copying them
 * with memcpy. Everything is interleaved in one run on one disk, and the medians of the rounds are
 * compared.
 *
 *     bench_checkpoint [DIRECTORY [MEGABYTES [ROUNDS]]]     default: build, 256, 5 */
#include "adaptdl/checkpoint.h"
#include "base/clock.h"
#include "base/rng.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATES = 8, ROUNDS_MAX = 64 };

typedef struct tensor {
    float *data; /* [length / 4] */
    size_t length;
} tensor;

typedef struct series {
    double seconds[ROUNDS_MAX];
    int count;
} series;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ADL_OK) {                                                                    \
            fprintf(stderr, "bench_checkpoint: %s: %s\n", #call, adl_error());                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(series *s)
{
    qsort(s->seconds, (size_t)s->count, sizeof s->seconds[0], by_value);
    return s->seconds[s->count / 2];
}

static void add(series *s, double seconds)
{
    if (s->count < ROUNDS_MAX)
        s->seconds[s->count++] = seconds;
}

static adl_status tensor_save(void *user, adl_sink *sink)
{
    const tensor *t = user;
    return adl_sink_write(sink, t->data, t->length);
}

static adl_status tensor_load(void *user, adl_source *source)
{
    tensor *t = user;
    return adl_source_read(source, t->data, t->length);
}

/* Normal deviates, as weights are: they compress by a few percent only. */
static void fill(tensor *t, uint64_t seed)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    for (size_t i = 0; i < t->length / 4; i++)
        t->data[i] = (float)(0.05 * sqrt(-2 * log(1 - adli_rng_unit(&rng))) *
                             cos(6.283185307179586 * adli_rng_unit(&rng)));
}

/* The least: the same bytes, as many files, write and fsync. */
static double plain_write(const char *directory, const tensor *tensors)
{
    char path[600];
    double start = adli_monotonic_s();
    for (int i = 0; i < STATES; i++) {
        snprintf(path, sizeof path, "%s/plain-%d", directory, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        const char *data = (const char *)tensors[i].data;
        for (size_t at = 0; at < tensors[i].length;) {
            ssize_t wrote = write(fd, data + at, tensors[i].length - at);
            if (wrote <= 0) {
                perror(path);
                exit(1);
            }
            at += (size_t)wrote;
        }
        if (fsync(fd) != 0 || close(fd) != 0) {
            perror(path);
            exit(1);
        }
    }
    double taken = adli_monotonic_s() - start;
    for (int i = 0; i < STATES; i++) {
        snprintf(path, sizeof path, "%s/plain-%d", directory, i);
        unlink(path);
    }
    return taken;
}

static double plain_copy(const tensor *tensors, char *to)
{
    double start = adli_monotonic_s();
    for (int i = 0; i < STATES; i++) {
        memcpy(to, tensors[i].data, tensors[i].length);
        to += tensors[i].length;
    }
    return adli_monotonic_s() - start;
}

static adl_checkpoint *open_store(const char *directory, tensor *tensors, int level)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint_functions functions = {sizeof functions, tensor_save, tensor_load, NULL};
    options.compress_level = level;
    options.keep_last = 1;
    adl_checkpoint *store;
    MUST(adl_checkpoint_open(directory, &options, &store));
    for (int i = 0; i < STATES; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor-%d", i);
        adl_checkpoint_state *state;
        MUST(adl_checkpoint_register(store, name, &functions, &tensors[i], &state));
        adl_checkpoint_expect(store, state, tensors[i].length);
    }
    return store;
}

/* As with plain writing, what was there before is removed outside the clock. */
static double save(adl_checkpoint *store)
{
    double start = adli_monotonic_s();
    MUST(adl_checkpoint_save_all(store));
    double taken = adli_monotonic_s() - start;
    MUST(adl_checkpoint_flush(store));
    return taken;
}

/* Only the stall; the writing is waited for outside the clock. */
static double stall(adl_checkpoint *store)
{
    double start = adli_monotonic_s();
    MUST(adl_checkpoint_save_async(store));
    double taken = adli_monotonic_s() - start;
    MUST(adl_checkpoint_flush(store));
    return taken;
}

static double load(const char *directory, tensor *tensors)
{
    double start = adli_monotonic_s();
    adl_checkpoint *store = open_store(directory, tensors, 0);
    int loaded;
    MUST(adl_checkpoint_load_all(store, &loaded, NULL));
    double taken = adli_monotonic_s() - start;
    adl_checkpoint_close(store);
    if (loaded != STATES)
        exit(1);
    return taken;
}

static void report(const char *what, double seconds, double bytes, double than, const char *whom)
{
    printf("%-34s %8.1f ms %8.0f MB/s", what, 1e3 * seconds, bytes / seconds / 1e6);
    if (than > 0)
        printf("   %5.2f x %s", seconds / than, whom);
    printf("\n");
}

typedef struct bench {
    char directory[512], raw_directory[560], packed_directory[560];
    tensor tensors[STATES];
    size_t total_bytes;
    char *copy; /* [total_bytes] */
    adl_checkpoint *raw, *packed;
    double first_stall, first_copy;
    series plain, saves, packs, copies, stalls, pack_stalls, loads;
} bench;

static void set_up(bench *b, const char *root, size_t megabytes)
{
    size_t length = megabytes / STATES << 20;
    snprintf(b->directory, sizeof b->directory, "%.400s/bench-checkpoint-XXXXXX", root);
    if (!mkdtemp(b->directory)) {
        perror(b->directory);
        exit(1);
    }
    snprintf(b->raw_directory, sizeof b->raw_directory, "%s/raw", b->directory);
    snprintf(b->packed_directory, sizeof b->packed_directory, "%s/zstd", b->directory);
    b->total_bytes = STATES * length;
    b->copy = calloc(b->total_bytes, 1);
    for (int i = 0; i < STATES; i++) {
        b->tensors[i] = (tensor){calloc(length, 1), length};
        if (!b->copy || !b->tensors[i].data) {
            fprintf(stderr, "bench_checkpoint: no memory\n");
            exit(1);
        }
        fill(&b->tensors[i], (uint64_t)i);
    }
    b->raw = open_store(b->raw_directory, b->tensors, 0);
    b->packed = open_store(b->packed_directory, b->tensors, 1);
    plain_copy(b->tensors, b->copy);
    /* As in a training program: memory for the copies is made ready as the first interval begins. */
    (void)adl_checkpoint_due(b->raw, 0);
    MUST(adl_checkpoint_flush(b->raw));
    b->first_copy = plain_copy(b->tensors, b->copy);
    b->first_stall = stall(b->raw);
    stall(b->packed);
}

/* The disk remembers what was done to it a moment ago: so plain and ours take turns in going first. */
static void one_round(bench *b, bool plain_first)
{
    if (plain_first)
        add(&b->plain, plain_write(b->directory, b->tensors));
    add(&b->saves, save(b->raw));
    if (!plain_first)
        add(&b->plain, plain_write(b->directory, b->tensors));
    add(&b->packs, save(b->packed));
    add(&b->copies, plain_copy(b->tensors, b->copy));
    add(&b->stalls, stall(b->raw));
    add(&b->pack_stalls, stall(b->packed));
    add(&b->loads, load(b->raw_directory, b->tensors));
}

static void report_all(bench *b)
{
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    adl_checkpoint_get_info(b->packed, &info);
    double bytes = (double)b->total_bytes, base = median(&b->plain), memory = median(&b->copies);
    report("plain write + fsync", base, bytes, 0, "");
    report("save_all", median(&b->saves), bytes, base, "plain write + fsync");
    report("save_all, zstd level 1", median(&b->packs), bytes, base, "plain write + fsync");
    printf("%-34s %8.3f of the bytes\n", "   zstd stores",
           (double)info.stored_bytes / (double)info.raw_bytes);
    report("memcpy of the same bytes", memory, bytes, 0, "");
    report("save_async: first stall", b->first_stall, bytes, b->first_copy,
           "the memcpy just before");
    report("save_async: stall", median(&b->stalls), bytes, memory, "memcpy");
    report("save_async, zstd: stall", median(&b->pack_stalls), bytes, memory, "memcpy");
    printf("%-34s %8.3f of plain write + fsync\n", "   a step waits", median(&b->stalls) / base);
    report("open, verify and load (cached)", median(&b->loads), bytes, memory, "memcpy");
}

static void tear_down(bench *b)
{
    adl_checkpoint_close(b->raw);
    adl_checkpoint_close(b->packed);
    for (int i = 0; i < STATES; i++)
        free(b->tensors[i].data);
    free(b->copy);
    nftw(b->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int main(int argc, char **argv)
{
    static bench b;
    const char *root = argc > 1 ? argv[1] : "build";
    long megabytes = argc > 2 ? atol(argv[2]) : 256, rounds = argc > 3 ? atol(argv[3]) : 5;
    if (megabytes < STATES || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "bench_checkpoint: at least %d MB, 1 .. %d rounds\n", STATES, ROUNDS_MAX);
        return 2;
    }
    set_up(&b, root, (size_t)megabytes);
    for (long i = 0; i < rounds; i++)
        one_round(&b, i % 2 == 0);
    printf("checkpoint: %zu MiB in %d states, median of %ld rounds, in %s\n", b.total_bytes >> 20,
           STATES, rounds, root);
    report_all(&b);
    tear_down(&b);
    return 0;
}
