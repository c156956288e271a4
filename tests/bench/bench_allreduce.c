/* Time of one all-reduce between local processes: bench_allreduce [--replicas R]
 * [--transport auto|shm|tcp] [--wire f32|bf16] [--secret] BYTES... Prints "TRANSPORT BYTES MEDIAN_US MEMCPY_US
 * CPU_US" for each size, as rank 0 sees it (the processor time is that of one all-reduce, its own
 * process alone); tools/bench-allreduce puts it beside Gloo.
 *
 * With --rank R --master ADDRESS --port P [--host NAME] it is one of the processes and starts no others;
 * tests/bench/bench_hosts.sh runs it so on several hosts. */
#include "adaptdl/allreduce.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct setup {
    int replicas, port, listen_fd, rank;
    const char *master;
    bool secret;
    adl_reducer_options options;
    size_t bytes[32];
    int sizes;
} setup;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static int rounds_for(size_t bytes)
{
    size_t rounds = ((size_t)1 << 29) / (bytes + ((size_t)1 << 18));
    return rounds < 11 ? 11 : (int)rounds;
}

static double time_memcpy(float *to, const float *from, size_t bytes)
{
    double times[2048];
    int rounds = rounds_for(bytes);
    for (int i = 0; i < rounds; i++) {
        double start_s = adli_monotonic_s();
        memcpy(to, from, bytes);
        times[i] = adli_monotonic_s() - start_s;
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    return median(times, rounds);
}

static int fail(const char *what)
{
    fprintf(stderr, "bench_allreduce: %s: %s\n", what, adl_error());
    return 1;
}

static double processor_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int measure(adl_reducer *reducer, adl_group *group, size_t bytes)
{
    static const char *const names[] = {
        [ADL_TRANSPORT_SHM] = "shm", [ADL_TRANSPORT_TCP] = "tcp", [ADL_TRANSPORT_TIERS] = "tiers"};
    double times[2048];
    int rounds = rounds_for(bytes), warm_up = rounds / 10 + 2, bad = 0;
    float *data = calloc(1, bytes), *other = calloc(1, bytes);
    double cpu_s = 0;
    for (int i = -warm_up; i < rounds && !bad; i++) {
        if (i == 0)
            cpu_s = processor_s();
        double start_s = adli_monotonic_s();
        if (adl_reducer_allreduce(reducer, data, bytes / sizeof *data) != ADL_OK)
            bad = fail("allreduce");
        if (i >= 0)
            times[i] = adli_monotonic_s() - start_s;
    }
    cpu_s = processor_s() - cpu_s;
    if (adl_group_barrier(group) != ADL_OK)
        bad = fail("barrier");
    memset(other, 1, bytes);
    if (!bad && adl_group_rank(group) == 0)
        printf("%s %zu %.2f %.2f %.2f\n", names[adl_reducer_transport(reducer)], bytes,
               1e6 * median(times, rounds), 1e6 * time_memcpy(other, data, bytes),
               1e6 * cpu_s / rounds);
    if (adl_group_barrier(group) != ADL_OK)
        bad = fail("barrier");
    fflush(stdout);
    free(data);
    free(other);
    return bad;
}

static int run_replica(const setup *s, int rank)
{
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.rank = rank;
    options.replicas = s->replicas;
    options.master_port = s->port;
    options.master_addr = s->master ? s->master : options.master_addr;
    options.listen_fd = rank == 0 && !s->master ? s->listen_fd : -1;
    options.secret = s->secret ? "bench" : NULL;
    options.secret_length = s->secret ? 5 : 0;
    adl_group *group = NULL;
    adl_reducer *reducer = NULL;
    int bad = 0;
    if (adl_group_new(&options, &group) != ADL_OK)
        bad = fail("group");
    else if (adl_reducer_new(group, &s->options, &reducer) != ADL_OK)
        bad = fail("reducer");
    for (int i = 0; i < s->sizes && !bad; i++)
        bad = measure(reducer, group, s->bytes[i]);
    adl_reducer_free(reducer);
    adl_group_free(group);
    return bad;
}

static int parse(int argc, char **argv, setup *s)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--secret") == 0)
            s->secret = true;
        else if (strcmp(argv[i], "--replicas") == 0 && ++i)
            s->replicas = atoi(value);
        else if (strcmp(argv[i], "--transport") == 0 && ++i)
            s->options.transport = strcmp(value, "tcp") == 0   ? ADL_TRANSPORT_TCP
                                   : strcmp(value, "shm") == 0 ? ADL_TRANSPORT_SHM
                                                               : ADL_TRANSPORT_AUTO;
        else if (strcmp(argv[i], "--rank") == 0 && ++i)
            s->rank = atoi(value);
        else if (strcmp(argv[i], "--master") == 0 && ++i)
            s->master = value;
        else if (strcmp(argv[i], "--port") == 0 && ++i)
            s->port = atoi(value);
        else if (strcmp(argv[i], "--host") == 0 && ++i)
            s->options.host = value;
        else if (strcmp(argv[i], "--wire") == 0 && ++i)
            s->options.wire = strcmp(value, "bf16") == 0 ? ADL_WIRE_BF16 : ADL_WIRE_F32;
        else if (atoll(argv[i]) > 0 && s->sizes < 32)
            s->bytes[s->sizes++] = (size_t)atoll(argv[i]) / 4 * 4;
        else {
            fprintf(stderr, "bench_allreduce: what is %s?\n", argv[i]);
            return 1;
        }
    }
    return s->replicas < 1 || s->sizes == 0;
}

int main(int argc, char **argv)
{
    setup s = {.replicas = 2, .options = ADL_REDUCER_OPTIONS_INIT};
    int bad = parse(argc, argv, &s);
    if (bad)
        return 2;
    if (s.master)
        return run_replica(&s, s.rank);
    if (adl_group_listen("127.0.0.1", 0, &s.listen_fd, &s.port) != ADL_OK)
        return fail("listen");
    for (int rank = 1; rank < s.replicas; rank++) {
        if (fork() == 0) {
            close(s.listen_fd);
            _exit(run_replica(&s, rank));
        }
    }
    bad = run_replica(&s, 0);
    for (int status; wait(&status) > 0;)
        bad |= status != 0;
    return bad != 0;
}
