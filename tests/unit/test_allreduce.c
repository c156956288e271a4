/* Gradient all-reduce over shared memory, over a ring of TCP connections, and over both. */
#include "harness.h"

#include "adaptdl/allreduce.h"
#include "base/rng.h"
#include "comm/kernel.h"
#include "comm/shm.h"
#include "replicas.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

static const char secret[] = "a secret of the job";

/* What every replica of a test uses; set by the test before it starts them. */
static adl_reducer_options options;

static adl_reducer_options make_options(adl_transport transport, adl_wire wire, bool average)
{
    adl_reducer_options made = ADL_REDUCER_OPTIONS_INIT;
    made.transport = transport;
    made.wire = wire;
    made.average = average;
    return made;
}

/* Which host each rank is on, a letter each; NULL: where they really are, all on this one. */
static const char *hosts;

static adl_status new_reducer(adlt_replica *r, adl_reducer **out)
{
    adl_reducer_options mine = options;
    char host[2] = {hosts ? hosts[r->rank] : 'a', '\0'};
    if (hosts)
        mine.host = host;
    return adl_reducer_new(r->group, &mine, out);
}

/* Worlds of several hosts: one replica alone, as many on each, not as many, and in any order. */
static const char *const worlds[] = {"aab", "abb", "aabb", "abab", "abbb", "aabbb", "abacbcb"};

static int with_hosts(const char *world)
{
    hosts = world;
    options.transport = ADL_TRANSPORT_AUTO;
    return (int)strlen(world);
}

static void without_hosts(void)
{
    hosts = NULL;
}

/* ---- processes: first, since ThreadSanitizer cannot follow a fork once there were threads ---- */

/* Arbitrary floats: the bits must be the same on every replica, and close to the true sum. */
static void same_bits(adlt_replica *r)
{
    enum { N = 300007 };
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float *data = malloc(N * sizeof *data);
    double *truth = calloc(N, sizeof *truth), *scale = calloc(N, sizeof *scale);
    for (int rank = 0; rank < r->replicas; rank++) {
        adli_rng rng;
        adli_rng_init(&rng, (uint64_t)rank + 1);
        for (int i = 0; i < N; i++) {
            float x = (float)(adli_rng_unit(&rng) * 2 - 1) * exp2f((float)(i % 40) - 20);
            if (rank == r->rank)
                data[i] = x;
            truth[i] += (double)x / r->replicas;
            scale[i] += fabs((double)x) / r->replicas;
        }
    }
    NEED_OK(r, adl_reducer_allreduce(reducer, data, N));
    double limit = options.wire == ADL_WIRE_F32 ? 4e-7 : r->replicas / 200.0;
    for (int i = 0; i < N; i++)
        NEED(r, fabs(data[i] - truth[i]) <= limit * scale[i]);
    void *first;
    size_t length;
    NEED_OK(r, adl_group_broadcast(r->group, data, N * sizeof *data, &first, &length));
    NEED(r, length == N * sizeof *data && memcmp(first, data, length) == 0);
    free(first);
    free(scale);
    free(truth);
    free(data);
    adl_reducer_free(reducer);
}

TEST(results_are_bit_identical_between_processes)
{
    for (int replicas = 2; replicas <= 4; replicas++) {
        options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, true);
        CHECK(adlt_run_processes(replicas, same_bits, NULL, 0));
        options.transport = ADL_TRANSPORT_TCP;
        CHECK(adlt_run_processes(replicas, same_bits, secret, sizeof secret));
    }
    for (size_t w = 0; w < ADLI_COUNT(worlds); w++) {
        CHECK(adlt_run_processes(with_hosts(worlds[w]), same_bits, secret, sizeof secret));
        without_hosts();
    }
}

static int victim;

static void die(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float *data = calloc(2000000, sizeof *data);
    adl_status status = ADL_OK;
    for (int i = 0; i < 1000 && status == ADL_OK; i++) {
        if (r->rank == victim && i == 3) { /* in the middle of a bucket */
            NEED_OK(r, adl_reducer_start(reducer, data, 2000000, NULL, 0, NULL));
            usleep(1000);
            adlt_signal_me(false);
        }
        status = adl_reducer_start(reducer, data, 2000000, NULL, 0, NULL);
        if (status == ADL_OK)
            status = adl_reducer_wait_all(reducer, 60000);
    }
    char text[32];
    snprintf(text, sizeof text, "rank %d died", victim);
    NEED_FAILS(r, status, ADL_EPEER, text);
    NEED_FAILS(r, adl_reducer_allreduce(reducer, data, 10), ADL_EPEER, text);
    adl_reducer_free(reducer);
    free(data);
}

/* Segments of this process that have a name. */
static int count_segments(void)
{
    char prefix[64];
    int count = 0;
    int length = snprintf(prefix, sizeof prefix, "adaptdl-allreduce-%d-", (int)getpid());
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += strncmp(entry->d_name, prefix, (size_t)length) == 0;
    if (dir)
        closedir(dir);
    return count;
}

TEST(a_killed_replica_is_named_by_all_others)
{
    adli_shm_sweep();
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        for (int replicas = 2; replicas <= 4; replicas++) {
            for (victim = 0; victim < replicas; victim++) {
                options = make_options((adl_transport)transport, ADL_WIRE_F32, false);
                CHECK(adlt_run_processes(replicas, die, NULL, 0));
            }
        }
    }
    options = make_options(ADL_TRANSPORT_AUTO, ADL_WIRE_F32, false);
    for (victim = 0; victim < 5; victim++) {
        CHECK(adlt_run_processes(with_hosts("abbab"), die, NULL, 0));
        without_hosts();
    }
    CHECK_INT(adli_shm_sweep(), 0); /* of the dead, nothing is left */
}

/* ---- kernels ---- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

TEST(bfloat16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        {0x3f800000, 0x3f80}, /* 1 */
        {0x3f808000, 0x3f80}, /* a tie, down to even */
        {0x3f818000, 0x3f82}, /* a tie, up to even */
        {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0xbf808001, 0xbf81},
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00000001, 0x0000},
        {0x00008001, 0x0001}, /* subnormal */
        {0x7f7fffff, 0x7f80}, /* the largest float rounds to infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7fc00000, 0x7fc0},
        {0x7f800001, 0x7fc0}, /* a NaN whose upper half alone would be infinity */
        {0xffffffff, 0xffff},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++)
        CHECK_INT(adli_bf16_of(float_of(cases[i].in)), cases[i].out);
    CHECK(adli_bf16_to(0x3f80) == 1.0f && isnan(adli_bf16_to(0x7fc0)));
}

enum { KERNEL_N = 1003 };

TEST(fast_kernels_give_the_same_bits_as_plain_ones)
{
    const adli_kernels *fast = adli_kernels_get(), *plain = adli_kernels_plain();
    static float x[KERNEL_N], y[KERNEL_N], a[KERNEL_N], b[KERNEL_N], c[KERNEL_N], d[KERNEL_N];
    static uint16_t h[KERNEL_N], k[KERNEL_N];
    adli_rng rng;
    adli_rng_init(&rng, 7);
    for (int i = 0; i < KERNEL_N; i++) { /* any bits at all, NaNs included */
        x[i] = float_of((uint32_t)adli_rng_u64(&rng));
        y[i] = float_of((uint32_t)adli_rng_u64(&rng));
    }
    plain->to_bf16(h, x, KERNEL_N);
    fast->to_bf16(k, x, KERNEL_N);
    CHECK(memcmp(h, k, sizeof h) == 0);
    plain->from_bf16(a, h, KERNEL_N);
    fast->from_bf16(b, h, KERNEL_N);
    CHECK(memcmp(a, b, sizeof a) == 0);
    memcpy(b, x, sizeof b);
    fast->round_bf16(b, KERNEL_N);
    CHECK(memcmp(a, b, sizeof a) == 0);
    for (int i = 0; i < KERNEL_N; i++) { /* the payload of a NaN may depend on operand order */
        x[i] = isfinite(x[i]) ? x[i] : 1;
        y[i] = isfinite(y[i]) ? y[i] : 1;
    }
    for (int round = 0; round < 5; round++) {
        const adli_kernels *both[2] = {plain, fast};
        float *outs[2][2] = {{a, c}, {b, d}};
        for (int v = 0; v < 2; v++) {
            float *out = outs[v][0], *copy = outs[v][1];
            memcpy(out, x, sizeof x);
            memset(copy, 0, sizeof c);
            switch (round) {
            case 0:
                both[v]->add(out, y, KERNEL_N);
                break;
            case 1:
                both[v]->add_bf16(out, h, 0);
                both[v]->scale(out, 0.3f, KERNEL_N);
                break;
            case 2:
                both[v]->divide(out, 3, KERNEL_N);
                break;
            case 3:
                both[v]->sum2(out, copy, y, 0.5f, KERNEL_N);
                CHECK(memcmp(out, copy, sizeof a) == 0);
                break;
            default:
                both[v]->to_bf16(h, y, KERNEL_N);
                both[v]->add_bf16(out, h, KERNEL_N);
            }
        }
        CHECK(memcmp(a, b, sizeof a) == 0 && memcmp(c, d, sizeof c) == 0);
    }
}

/* ---- results ---- */

/* Element i of rank r in bucket b: small integers, so that sums are exact in any order, and averages
 * over 1, 2 and 4 too. */
static float element(int rank, size_t i, int bucket)
{
    return (float)((int)((i * 7 + (size_t)bucket * 13) % 31) - 15) * (float)(rank + 1);
}

static float expected(int replicas, size_t i, int bucket, bool average)
{
    float sum = element(0, i, bucket) * (float)(replicas * (replicas + 1) / 2);
    return average ? sum / (float)replicas : sum;
}

static const size_t sizes[] = {0,          1,      2,    3,    5,      15,     16,
                               17,         1000,   8192, 8193, 70001,  131072, 131073,
                               2 * 131072, 500009, 4,    63,   262145, 600000, 7};

static bool equal_enough(float got, float wanted)
{
    if (options.wire == ADL_WIRE_F32)
        return got == wanted;
    /* 8 bits: one rounding for each hop of a ring, at most 4. */
    return fabsf(got - wanted) <= fabsf(wanted) * 4 / 256.0f + 0.25f;
}

static void reduce_sizes(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    adl_transport wanted = hosts ? ADL_TRANSPORT_TIERS : options.transport;
    NEED(r, adl_reducer_transport(reducer) == (r->replicas == 1 ? ADL_TRANSPORT_NONE : wanted));
    float *data = malloc(600000 * sizeof *data);
    for (size_t s = 0; s < ADLI_COUNT(sizes); s++) {
        for (size_t i = 0; i < sizes[s]; i++)
            data[i] = element(r->rank, i, (int)s);
        NEED_OK(r, adl_reducer_allreduce(reducer, data, sizes[s]));
        for (size_t i = 0; i < sizes[s]; i++)
            NEED(r, equal_enough(data[i], expected(r->replicas, i, (int)s, options.average)));
    }
    free(data);
    adl_reducer_free(reducer);
}

TEST(sums_and_averages_of_all_sizes)
{
    int runs = 0;
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        for (int wire = ADL_WIRE_F32; wire <= ADL_WIRE_BF16; wire++) {
            for (int replicas = 1; replicas <= 4; replicas++) {
                bool average = replicas == 1 || replicas == 4 || wire == ADL_WIRE_BF16;
                options = make_options((adl_transport)transport, (adl_wire)wire, average);
                CHECK(adlt_run_threads(replicas, reduce_sizes, replicas % 2 ? secret : NULL,
                                       sizeof secret));
                runs++;
            }
        }
    }
    printf("info - %d combinations of transport, wire type and replicas, %zu sizes each\n", runs,
           ADLI_COUNT(sizes));
}

TEST(sums_over_hosts_that_have_some_replicas_each)
{
    for (int wire = ADL_WIRE_F32; wire <= ADL_WIRE_BF16; wire++) {
        for (size_t w = 0; w < ADLI_COUNT(worlds); w++) {
            options = make_options(ADL_TRANSPORT_AUTO, (adl_wire)wire, w % 2);
            options.shm_bytes = w == 5 ? 200 << 10 : 0; /* many chunks */
            CHECK(adlt_run_threads(with_hosts(worlds[w]), reduce_sizes, secret, sizeof secret));
            options.average = true;
            CHECK(adlt_run_threads(with_hosts(worlds[w]), same_bits, NULL, 0));
            without_hosts();
        }
    }
}

static void no_tiers(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    NEED(r, adl_reducer_transport(reducer) == ADL_TRANSPORT_TCP);
    float x = 1;
    NEED_OK(r, adl_reducer_allreduce(reducer, &x, 1));
    NEED(r, x == (float)r->replicas);
    adl_reducer_free(reducer);
}

TEST(hosts_with_one_replica_each_or_without_memory_form_one_ring)
{
    options = make_options(ADL_TRANSPORT_AUTO, ADL_WIRE_F32, false);
    CHECK(adlt_run_threads(with_hosts("abc"), no_tiers, NULL, 0));
    options.shm_bytes = 1000; /* too little */
    CHECK(adlt_run_threads(with_hosts("aabb"), no_tiers, NULL, 0));
    without_hosts();
}

TEST(small_shared_memory_means_small_chunks)
{
    options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, false);
    options.shm_bytes = 200 << 10;
    CHECK(adlt_run_threads(4, reduce_sizes, NULL, 0));
    CHECK(adlt_run_threads(3, reduce_sizes, NULL, 0));
}

TEST(a_ring_without_macs_works_too)
{
    options = make_options(ADL_TRANSPORT_TCP, ADL_WIRE_F32, true);
    options.unprotected_data = true;
    CHECK(adlt_run_threads(2, reduce_sizes, secret, sizeof secret));
}

TEST(results_are_bit_identical)
{
    for (int replicas = 2; replicas <= 4; replicas++) {
        options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, true);
        CHECK(adlt_run_threads(replicas, same_bits, NULL, 0));
        options.wire = ADL_WIRE_BF16;
        CHECK(adlt_run_threads(replicas, same_bits, NULL, 0));
        options.transport = ADL_TRANSPORT_TCP;
        CHECK(adlt_run_threads(replicas, same_bits, NULL, 0));
        options.wire = ADL_WIRE_F32;
        CHECK(adlt_run_threads(replicas, same_bits, secret, sizeof secret));
    }
}

/* ---- buckets in the background ---- */

enum { BUCKETS = 40 };

static void many_buckets(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    static const size_t lengths[] = {10, 100000, 0, 9000, 1};
    float *data[BUCKETS];
    double extra[BUCKETS][3];
    uint64_t tickets[BUCKETS];
    for (int b = 0; b < BUCKETS; b++) {
        size_t n = lengths[b % 5];
        data[b] = malloc((n + 1) * sizeof(float));
        for (size_t i = 0; i < n; i++)
            data[b][i] = element(r->rank, i, b);
        for (int i = 0; i < 3; i++)
            extra[b][i] = r->rank + b * 0.5 + i;
        NEED_OK(r, adl_reducer_start(reducer, data[b], n, extra[b], (size_t)(b % 4), &tickets[b]));
    }
    int R = r->replicas;
    NEED_OK(r, adl_reducer_wait(reducer, tickets[7], -1));
    NEED(r, adl_reducer_done(reducer, tickets[3]));
    NEED_OK(r, adl_reducer_wait(reducer, tickets[2], 0));
    NEED_OK(r, adl_reducer_wait_all(reducer, -1));
    for (int b = 0; b < BUCKETS; b++) {
        for (size_t i = 0; i < lengths[b % 5]; i++)
            NEED(r, data[b][i] == expected(R, i, b, options.average));
        for (int i = 0; i < 3; i++) {
            double mine = r->rank + b * 0.5 + i, sum = R * (b * 0.5 + i) + R * (R - 1) / 2;
            NEED(r, extra[b][i] == (i < b % 4 ? sum : mine));
        }
        free(data[b]);
    }
    double norms[2] = {r->rank, 1};
    NEED_OK(r, adl_reducer_allreduce_f64(reducer, norms, 2));
    NEED(r, norms[0] == R * (R - 1) / 2 && norms[1] == R);
    NEED(r, adl_reducer_wait_seconds(reducer) >= 0);
    NEED_FAILS(r, adl_reducer_wait(reducer, 1000, 0), ADL_EINVAL, "bucket 1000 was never started");
    adl_reducer_free(reducer);
}

TEST(buckets_in_the_background)
{
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        for (int replicas = 1; replicas <= 4; replicas++) {
            options = make_options((adl_transport)transport, ADL_WIRE_F32, replicas != 3);
            CHECK(adlt_run_threads(replicas, many_buckets, NULL, 0));
        }
    }
    for (size_t w = 0; w < ADLI_COUNT(worlds); w++) {
        options = make_options(ADL_TRANSPORT_AUTO, ADL_WIRE_F32, w % 2);
        CHECK(adlt_run_threads(with_hosts(worlds[w]), many_buckets, NULL, 0));
        without_hosts();
    }
}

static _Atomic int release;

static void limits(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float x[3] = {1, 1, 1};
    double e[1] = {0};
    if (r->rank == 1) {
        while (!release)
            usleep(1000);
        for (int i = 0; i < 2; i++)
            NEED_OK(r, adl_reducer_allreduce(reducer, &x[i], 1));
    } else {
        uint64_t ticket;
        NEED_FAILS(r, adl_reducer_start(reducer, x, 1, e, 513, NULL), ADL_EINVAL, "513 doubles");
        NEED_FAILS(r, adl_reducer_start(reducer, NULL, 1, e, 0, NULL), ADL_EINVAL, "without data");
        NEED_OK(r, adl_reducer_start(reducer, &x[0], 1, NULL, 0, &ticket));
        NEED_OK(r, adl_reducer_start(reducer, &x[1], 1, NULL, 0, NULL));
        NEED_FAILS(r, adl_reducer_start(reducer, &x[2], 1, NULL, 0, NULL), ADL_ESTATE,
                   "2 buckets are pending");
        NEED_FAILS(r, adl_reducer_wait(reducer, ticket, 20), ADL_ETIMEOUT, "bucket 1 is not");
        release = 1;
        NEED_OK(r, adl_reducer_wait_all(reducer, -1));
        NEED(r, x[0] == 2 && x[1] == 2 && x[2] == 1);
    }
    adl_reducer_free(reducer);
}

TEST(limits_are_kept_and_waiting_has_a_time_limit)
{
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        release = 0;
        options = make_options((adl_transport)transport, ADL_WIRE_F32, false);
        options.max_pending = 2;
        CHECK(adlt_run_threads(2, limits, NULL, 0));
    }
}

/* ---- disagreement and endings ---- */

static void disagree(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float *data = calloc(50000, sizeof *data);
    size_t n = r->rank == 1 ? 40000 : 50000;
    NEED_FAILS(r, adl_reducer_allreduce(reducer, data, n), ADL_EINVAL, "40000");
    NEED(r, strstr(adl_error(), "rank 1") && strstr(adl_error(), "50000"));
    NEED_FAILS(r, adl_reducer_allreduce(reducer, data, 10), ADL_EINVAL, "replicas disagree");
    NEED_OK(r, adl_group_barrier(r->group));
    adl_reducer_free(reducer);
    free(data);
}

TEST(buckets_that_differ_fail_everywhere_and_name_both)
{
    for (int replicas = 2; replicas <= 4; replicas++) {
        options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, false);
        CHECK(adlt_run_threads(replicas, disagree, NULL, 0));
        options.transport = ADL_TRANSPORT_TCP;
        CHECK(adlt_run_threads(replicas, disagree, NULL, 0));
    }
    for (size_t w = 0; w < ADLI_COUNT(worlds); w++) {
        CHECK(adlt_run_threads(with_hosts(worlds[w]), disagree, NULL, 0));
        without_hosts();
    }
}

static void other_options(adlt_replica *r)
{
    adl_reducer *reducer;
    adl_reducer_options mine = options;
    mine.wire = r->rank == 2 ? ADL_WIRE_BF16 : ADL_WIRE_F32;
    NEED_FAILS(r, adl_reducer_new(r->group, &mine, &reducer), ADL_EINVAL,
               "replicas disagree: rank 0 has transport 0, wire 0");
    NEED(r, !reducer);
    mine = options;
    if (r->rank == 1)
        mine.wire = (adl_wire)9;
    NEED_FAILS(r, adl_reducer_new(r->group, &mine, &reducer), ADL_EINVAL,
               "rank 1: reducer: unknown wire type 9");
    mine = options;
    mine.transport = ADL_TRANSPORT_SHM;
    mine.shm_bytes = 1000;
    NEED_FAILS(r, adl_reducer_new(r->group, &mine, &reducer), ADL_EINVAL,
               "1000 bytes of shared memory");
    mine.transport = ADL_TRANSPORT_AUTO; /* then TCP it is */
    NEED_OK(r, adl_reducer_new(r->group, &mine, &reducer));
    NEED(r, adl_reducer_transport(reducer) == ADL_TRANSPORT_TCP);
    adl_reducer_free(reducer);
    mine.shm_bytes = 0;
    NEED_OK(r, adl_reducer_new(r->group, &mine, &reducer));
    NEED(r, adl_reducer_transport(reducer) == ADL_TRANSPORT_SHM);
    adl_reducer_free(reducer);
}

TEST(replicas_agree_on_options_and_transport)
{
    options = make_options(ADL_TRANSPORT_AUTO, ADL_WIRE_F32, false);
    CHECK(adlt_run_threads(3, other_options, NULL, 0));
}

static int leaver;

static void leave_early(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float x[2] = {1, 2};
    NEED_OK(r, adl_reducer_allreduce(reducer, x, 2));
    if (r->rank == leaver) {
        adl_reducer_free(reducer);
        NEED_OK(r, adl_group_barrier(r->group));
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "rank %d gave up its reducer", leaver);
    NEED_FAILS(r, adl_reducer_allreduce(reducer, x, 2), ADL_EPEER, text);
    NEED_OK(r, adl_group_barrier(r->group)); /* the group is as it was */
    adl_reducer_free(reducer);
}

TEST(a_reducer_that_is_freed_early_ends_the_others)
{
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        for (leaver = 0; leaver < 3; leaver++) {
            options = make_options((adl_transport)transport, ADL_WIRE_F32, false);
            CHECK(adlt_run_threads(3, leave_early, NULL, 0));
        }
    }
    for (leaver = 0; leaver < 5; leaver++) {
        CHECK(adlt_run_threads(with_hosts("abbab"), leave_early, NULL, 0));
        without_hosts();
    }
}

static void free_while_busy(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float *data = calloc(1000000, sizeof *data);
    if (r->rank == 0) { /* rank 1 never joins in */
        for (int i = 0; i < 3; i++)
            NEED_OK(r, adl_reducer_start(reducer, data, 1000000, NULL, 0, NULL));
        usleep(20000);
        adl_reducer_free(reducer);
    }
    NEED_OK(r, adl_group_barrier(r->group));
    if (r->rank == 1)
        adl_reducer_free(reducer);
    free(data);
}

TEST(a_busy_reducer_can_be_freed)
{
    for (int transport = ADL_TRANSPORT_SHM; transport <= ADL_TRANSPORT_TCP; transport++) {
        options = make_options((adl_transport)transport, ADL_WIRE_F32, false);
        CHECK(adlt_run_threads(2, free_while_busy, NULL, 0));
    }
}

/* ---- what is left behind ---- */

static bool exists(const char *name)
{
    int fd = shm_open(name, O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

TEST(segments_of_dead_processes_are_swept)
{
    adli_shm alive;
    char dead[ADLI_SHM_NAME] = "";
    int ends[2], status = 0;
    REQUIRE_OK(adli_shm_create(8192, &alive));
    CHECK_INT(count_segments(), 1);
    REQUIRE(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { /* dies with a segment that still has its name */
        adli_shm mine;
        close(alive.fd); /* or the lock would live on in this process */
        if (adli_shm_create(4096, &mine) == ADL_OK && exists(mine.name) &&
            write(ends[1], mine.name, sizeof mine.name) == sizeof mine.name)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    REQUIRE(read(ends[0], dead, sizeof dead) == sizeof dead);
    adli_shm_sweep();
    CHECK(!exists(dead));
    CHECK(exists(alive.name)); /* ours was left alone */
    adli_shm_fini(&alive);
    CHECK_INT(count_segments(), 0);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_segment_that_does_not_fit_is_refused)
{
    adli_shm shm;
    CHECK_FAILS(adli_shm_create((size_t)1 << 50, &shm), ADL_EIO, "posix_fallocate");
    CHECK_FAILS(adli_shm_open("/adaptdl-no-such-segment", 4096, &shm), ADL_EIO, "shm_open");
}

static void nothing(adlt_replica *r)
{
    adl_reducer *reducer;
    NEED_OK(r, new_reducer(r, &reducer));
    float x = 1;
    NEED_OK(r, adl_reducer_allreduce(reducer, &x, 1));
    adl_reducer_free(reducer);
}

TEST(nothing_is_left_behind)
{
    options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, false);
    CHECK(adlt_run_threads(3, nothing, NULL, 0));
    int fds = adlt_count_fds(), tasks = adlt_count_threads(1);
    for (int i = 0; i < 5; i++) {
        options = make_options(i % 2 ? ADL_TRANSPORT_SHM : ADL_TRANSPORT_TCP, ADL_WIRE_F32, false);
        CHECK(adlt_run_threads(3, nothing, secret, sizeof secret));
        CHECK(adlt_run_threads(with_hosts("aab"), nothing, secret, sizeof secret));
        without_hosts();
    }
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
    CHECK_INT(count_segments(), 0);
}

/* ---- no memory ---- */

static _Atomic int without_memory;

static void build_without_memory(adlt_replica *r)
{
    adl_reducer *reducer;
    if (adl_group_barrier(r->group) != ADL_OK) { /* some may be in it when the trap is set */
        without_memory++;
        return;
    }
    if (r->rank == 1)
        adli_mem_fail_at(r->extra);
    adl_status status = new_reducer(r, &reducer);
    NEED(r, (status == ADL_OK) == (reducer != NULL));
    float x = 1;
    if (status == ADL_OK)
        status = adl_reducer_allreduce(reducer, &x, 1);
    without_memory += status != ADL_OK;
    adl_reducer_free(reducer);
}

/* Until the allocation that fails comes after the work is done. One run without a failure does not show
 * that: another thread's allocation may slip in as the trap is set. */
static void fail_each_allocation(int replicas, const char *what)
{
    int nth = 0;
    without_memory = 0;
    for (int fine = 0; fine < 3 && nth < 500;) {
        int before = without_memory;
        adlt_extra = ++nth;
        CHECK(adlt_run_threads(replicas, build_without_memory, NULL, 0));
        adli_mem_fail_at(0);
        fine = without_memory > before ? 0 : fine + 1;
    }
    CHECK(nth > 20 && nth < 500);
    printf("info - %s: %d failing allocations, %d replicas saw an error\n", what, nth,
           without_memory);
}

TEST(running_out_of_memory_while_building_is_an_error_everywhere)
{
    options = make_options(ADL_TRANSPORT_SHM, ADL_WIRE_F32, false);
    fail_each_allocation(2, "shared memory");
    options.transport = ADL_TRANSPORT_TCP;
    fail_each_allocation(2, "ring");
    fail_each_allocation(with_hosts("bbaa"), "both");
    without_hosts();
}
