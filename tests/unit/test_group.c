/* Control collectives: replicas as threads of this process, and as processes where one is killed. */
#include "harness.h"

#include "adaptdl/group.h"
#include "base/mem.h"
#include "replicas.h"

#include <stdatomic.h>
#include <unistd.h>

static const char secret[] = "a secret of the job";

/* ---- processes: first, since ThreadSanitizer cannot follow a fork once there were threads ---- */

static adl_status concatenate(void *context, const void *a, size_t a_length, const void *b,
                              size_t b_length, adl_reduced *out)
{
    (void)context;
    char text[4096];
    int length = snprintf(text, sizeof text, "(%.*s%.*s)", (int)a_length, (const char *)a,
                          (int)b_length, (const char *)b);
    return adl_reduced_set(out, text, (size_t)length);
}

static void typed_ops(adlt_replica *r)
{
    int R = r->replicas;
    double f[3] = {r->rank + 0.5, -r->rank, r->rank == R - 1 ? NAN : 1};
    NEED_OK(r, adl_group_allreduce(r->group, f, 3, ADL_TYPE_F64, ADL_REDUCE_SUM));
    NEED(r, f[0] == R * (R - 1) / 2 + 0.5 * R && f[1] == -R * (R - 1) / 2 && isnan(f[2]));
    double low[2] = {r->rank, r->rank == 0 ? NAN : 1},
           high[2] = {r->rank, r->rank == R - 1 ? NAN : 1};
    NEED_OK(r, adl_group_allreduce(r->group, low, 2, ADL_TYPE_F64, ADL_REDUCE_MIN));
    NEED_OK(r, adl_group_allreduce(r->group, high, 2, ADL_TYPE_F64, ADL_REDUCE_MAX));
    NEED(r, low[0] == 0 && isnan(low[1]) && high[0] == R - 1 && isnan(high[1]));
    int64_t i[2] = {INT64_MAX, r->rank};
    NEED_OK(r, adl_group_allreduce(r->group, i, 2, ADL_TYPE_I64, ADL_REDUCE_SUM));
    NEED(r, (uint64_t)i[0] == (uint64_t)R * INT64_MAX && i[1] == R * (R - 1) / 2);
    int64_t bit = (int64_t)1 << r->rank, min = -r->rank, max = -r->rank, first = 100 + r->rank;
    NEED_OK(r, adl_group_allreduce(r->group, &bit, 1, ADL_TYPE_I64, ADL_REDUCE_OR));
    NEED_OK(r, adl_group_allreduce(r->group, &min, 1, ADL_TYPE_I64, ADL_REDUCE_MIN));
    NEED_OK(r, adl_group_allreduce(r->group, &max, 1, ADL_TYPE_I64, ADL_REDUCE_MAX));
    NEED_OK(r, adl_group_allreduce(r->group, &first, 1, ADL_TYPE_I64, ADL_REDUCE_FIRST));
    NEED(r, bit == (1 << R) - 1 && min == -(R - 1) && max == 0 && first == 100);
    uint8_t bytes[3] = {(uint8_t)(1 << r->rank), 0, 0x80};
    NEED_OK(r, adl_group_allreduce(r->group, bytes, 3, ADL_TYPE_BYTES, ADL_REDUCE_OR));
    NEED(r, bytes[0] == (1 << R) - 1 && bytes[1] == 0 && bytes[2] == 0x80);
    NEED_OK(r, adl_group_allreduce(r->group, NULL, 0, ADL_TYPE_F64, ADL_REDUCE_SUM));
}

static void byte_ops(adlt_replica *r)
{
    void *out;
    size_t length, offsets[9];
    char text[64];
    snprintf(text, sizeof text, "from %d", r->rank);
    NEED_OK(r, adl_group_broadcast(r->group, text, strlen(text), &out, &length));
    NEED(r, length == 6 && memcmp(out, "from 0", 6) == 0);
    free(out);
    /* Rank r sends r bytes, so rank 0 sends none. */
    NEED_OK(r, adl_group_allgather(r->group, "abcdefgh", (size_t)r->rank, &out, offsets));
    for (int rank = 0; rank < r->replicas; rank++) {
        NEED(r, offsets[rank + 1] - offsets[rank] == (size_t)rank);
        NEED(r, memcmp((char *)out + offsets[rank], "abcdefgh", (size_t)rank) == 0);
    }
    free(out);
    static const char *const wanted[] = {"", "0", "(01)", "((01)2)", "(((01)2)3)"};
    text[0] = (char)('0' + r->rank);
    NEED_OK(r,
            adl_group_reduce(r->group, "concatenate", text, 1, concatenate, NULL, &out, &length));
    NEED(r, length == strlen(wanted[r->replicas]) && memcmp(out, wanted[r->replicas], length) == 0);
    free(out);
    NEED_OK(r, adl_group_barrier(r->group));
}

static void large_values(adlt_replica *r)
{
    size_t count = 400000; /* 3.2 MB: more than any socket buffer takes at once */
    double *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (double)i * (r->rank + 1);
    NEED_OK(r, adl_group_allreduce(r->group, values, count, ADL_TYPE_F64, ADL_REDUCE_SUM));
    double factor = r->replicas * (r->replicas + 1) / 2;
    for (size_t i = 0; i < count; i++)
        NEED(r, values[i] == (double)i * factor);
    free(values);
}

static void all_ops(adlt_replica *r)
{
    typed_ops(r);
    byte_ops(r);
    large_values(r);
    NEED(r, adl_group_rank(r->group) == r->rank && adl_group_replicas(r->group) == r->replicas);
    NEED_OK(r, adl_group_close(r->group, 60000));
}

TEST(every_operation_between_processes)
{
    CHECK(adlt_run_processes(3, all_ops, secret, sizeof secret));
}

static int victim;
static bool stop_instead; /* SIGSTOP: alive for the kernel, silent for us */

static void die(adlt_replica *r)
{
    NEED_OK(r, adl_group_barrier(r->group));
    adl_future *futures[10];
    int64_t one = 1;
    if (r->rank == victim) {
        usleep(20000);
        adlt_signal_me(stop_instead);
        return;
    }
    for (int i = 0; i < 10; i++)
        NEED_OK(r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM,
                                             &futures[i]));
    char text[32];
    snprintf(text, sizeof text, "rank %d died", victim);
    for (int i = 0; i < 10; i++) {
        NEED_FAILS(r, adl_future_wait(futures[i], 60000, NULL, NULL), ADL_EPEER, text);
        adl_future_free(futures[i]);
    }
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_EPEER, text);
    NEED_FAILS(r, adl_group_close(r->group, 1000), ADL_EPEER, text);
    NEED(r, adl_group_failed_rank(r->group) == victim);
    NEED(r, adl_group_peer(r->group, victim) == ADL_PEER_DEAD);
}

TEST(a_killed_replica_is_named_by_all_others)
{
    stop_instead = false;
    for (int replicas = 2; replicas <= 4; replicas++) {
        for (victim = 0; victim < replicas; victim++)
            CHECK(adlt_run_processes(replicas, die, victim % 2 ? secret : NULL, sizeof secret));
    }
}

TEST(a_silent_replica_is_named_by_all_others)
{
    stop_instead = true;
    adlt_peer_timeout_ms = 2500;
    for (victim = 0; victim < 3; victim++)
        CHECK(adlt_run_processes(3, die, NULL, 0));
    adlt_peer_timeout_ms = ADLT_PEER_TIMEOUT_MS;
}

/* ---- one replica ---- */

TEST(one_replica_needs_no_sockets_and_no_threads)
{
    int fds = adlt_count_fds(), tasks = adlt_count_threads(1);
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    adl_group *group;
    REQUIRE_OK(adl_group_new(&options, &group));
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
    double x[2] = {1.5, -2};
    CHECK_OK(adl_group_allreduce(group, x, 2, ADL_TYPE_F64, ADL_REDUCE_SUM));
    CHECK(x[0] == 1.5 && x[1] == -2);
    void *out;
    size_t length, offsets[2];
    CHECK_OK(adl_group_broadcast(group, "abc", 3, &out, &length));
    CHECK(length == 3 && memcmp(out, "abc", 3) == 0);
    free(out);
    CHECK_OK(adl_group_broadcast(group, NULL, 0, &out, &length));
    CHECK(length == 0 && out);
    free(out);
    CHECK_OK(adl_group_allgather(group, "xy", 2, &out, offsets));
    CHECK(offsets[0] == 0 && offsets[1] == 2 && memcmp(out, "xy", 2) == 0);
    free(out);
    CHECK_OK(adl_group_barrier(group));
    CHECK_OK(adl_group_close(group, 0));
    CHECK_FAILS(adl_group_barrier(group), ADL_ESTATE, "barrier: the group was closed");
    adl_group_free(group);
}

TEST(options_are_checked)
{
    static const struct {
        int rank, replicas, port, peer_ms;
        const char *text;
    } cases[] = {
        {0, 0, 1, 5000, "0 replicas"},     {2, 2, 1, 5000, "rank 2 of 2"},
        {-1, 2, 1, 5000, "rank -1"},       {1, 2, 0, 5000, "port 0"},
        {1, 2, 70000, 5000, "port 70000"}, {1, 2, 9, 99, "peer_timeout_ms 99"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adl_group_options options = ADL_GROUP_OPTIONS_INIT;
        options.rank = cases[i].rank;
        options.replicas = cases[i].replicas;
        options.master_port = cases[i].port;
        options.peer_timeout_ms = cases[i].peer_ms;
        adl_group *group = (adl_group *)&options;
        CHECK_FAILS(adl_group_new(&options, &group), ADL_EINVAL, cases[i].text);
        CHECK(!group);
    }
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    adl_group *group;
    options.size = sizeof options + 8;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_EINVAL, "this library knows");
    options = (adl_group_options)ADL_GROUP_OPTIONS_INIT;
    REQUIRE_OK(adl_group_new(&options, &group));
    double x = 1;
    CHECK_FAILS(adl_group_allreduce(group, &x, 1, ADL_TYPE_F64, ADL_REDUCE_OR), ADL_EINVAL,
                "or of f64");
    CHECK_FAILS(adl_group_allreduce(group, &x, 1, ADL_TYPE_BYTES, ADL_REDUCE_SUM), ADL_EINVAL,
                "sum of bytes");
    CHECK_FAILS(adl_group_allreduce(group, &x, SIZE_MAX / 4, ADL_TYPE_F64, ADL_REDUCE_SUM),
                ADL_EINVAL, "the limit is");
    adl_group_free(group);
}

/* ---- all operations ---- */

TEST(every_operation_with_1_to_4_replicas)
{
    CHECK(adlt_run_threads(2, all_ops, NULL, 0)); /* a sanitizer may add a thread at the first */
    int fds = adlt_count_fds(), tasks = adlt_count_threads(1);
    for (int replicas = 1; replicas <= 4; replicas++) {
        CHECK(adlt_run_threads(replicas, all_ops, NULL, 0));
        CHECK(adlt_run_threads(replicas, all_ops, secret, sizeof secret));
    }
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
}

/* ---- futures ---- */

enum { STREAM = 300 };

static void stream(adlt_replica *r)
{
    adl_future *futures[STREAM];
    for (int i = 0; i < STREAM; i++) {
        int64_t value = i * 10 + r->rank;
        if (i % 3 == 0)
            NEED_OK(r, adl_group_broadcast_async(r->group, &value, sizeof value, &futures[i]));
        else
            NEED_OK(r, adl_group_allreduce_async(r->group, &value, 1, ADL_TYPE_I64,
                                                 i % 3 == 1 ? ADL_REDUCE_MAX : ADL_REDUCE_SUM,
                                                 &futures[i]));
    }
    int R = r->replicas;
    for (int i = STREAM - 1; i >= 0; i--) { /* the last one first: all others are done then */
        const void *data;
        size_t length;
        int64_t value, wanted = i * 10;
        if (i % 3 == 1)
            wanted += R - 1;
        else if (i % 3 == 2)
            wanted = R * wanted + R * (R - 1) / 2;
        NEED_OK(r, adl_future_wait(futures[i], -1, &data, &length));
        NEED(r, length == 8);
        memcpy(&value, data, 8);
        NEED(r, value == wanted);
        if (i > 0)
            NEED(r, adl_future_done(futures[i - 1]));
        adl_future_free(futures[i]);
    }
}

TEST(futures_finish_in_order)
{
    CHECK(adlt_run_threads(4, stream, NULL, 0));
    CHECK(adlt_run_threads(2, stream, secret, sizeof secret));
}

static void forgotten_futures(adlt_replica *r)
{
    for (int i = 0; i < 50; i++) {
        adl_future *future;
        int64_t one = 1;
        NEED_OK(
            r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM, &future));
        adl_future_free(future);
    }
    int64_t one = 1;
    NEED_OK(r, adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM));
    NEED(r, one == r->replicas);
}

TEST(a_future_may_be_freed_before_its_end)
{
    CHECK(adlt_run_threads(3, forgotten_futures, NULL, 0));
}

static _Atomic int release;

static void late_partner(adlt_replica *r)
{
    adl_future *future;
    int64_t one = 1;
    if (r->rank == 1) {
        while (!release)
            usleep(1000);
        NEED_OK(r, adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM));
        return;
    }
    NEED_OK(r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM, &future));
    NEED(r, !adl_future_done(future));
    NEED_FAILS(r, adl_future_wait(future, 20, NULL, NULL), ADL_ETIMEOUT, "allreduce sum i64[1]");
    release = 1;
    const void *data;
    NEED_OK(r, adl_future_wait(future, -1, &data, NULL));
    NEED_OK(r, adl_future_wait(future, 0, &data, NULL)); /* again */
    adl_future_free(future);
}

TEST(waiting_has_a_time_limit)
{
    release = 0;
    CHECK(adlt_run_threads(2, late_partner, NULL, 0));
}

static void outlived_by_a_future(adlt_replica *r)
{
    adl_future *future;
    int64_t one = 1;
    if (r->rank == 1) {
        while (!release)
            usleep(1000);
        return;
    }
    NEED_OK(r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM, &future));
    adl_group_free(r->group);
    r->group = NULL;
    NEED_FAILS(r, adl_future_wait(future, -1, NULL, NULL), ADL_ESTATE, "the group was freed");
    adl_future_free(future);
    release = 1;
}

TEST(a_group_may_be_freed_before_its_futures)
{
    release = 0;
    CHECK(adlt_run_threads(2, outlived_by_a_future, NULL, 0));
}

static void too_many_pending(adlt_replica *r)
{
    adl_future *futures[1024], *more;
    int64_t one = 1;
    if (r->rank == 1) {
        while (!release)
            usleep(1000);
        for (int i = 0; i < 1025; i++)
            NEED_OK(r, adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_MAX));
        return;
    }
    for (int i = 0; i < 1024; i++)
        NEED_OK(r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_MAX,
                                             &futures[i]));
    NEED_FAILS(r, adl_group_allreduce_async(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_MAX, &more),
               ADL_ESTATE, "1024 calls are pending");
    release = 1;
    for (int i = 0; i < 1024; i++) {
        NEED_OK(r, adl_future_wait(futures[i], -1, NULL, NULL));
        adl_future_free(futures[i]);
    }
    NEED_OK(r, adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_MAX));
}

TEST(the_number_of_pending_calls_is_limited)
{
    release = 0;
    CHECK(adlt_run_threads(2, too_many_pending, NULL, 0));
}

/* ---- callbacks ---- */

static adl_status refuse_twos(void *context, const void *a, size_t a_length, const void *b,
                              size_t b_length, adl_reduced *out)
{
    (void)context;
    if (b_length == 1 && *(const char *)b == '2')
        return adli_fail(ADL_ECORRUPT, "I do not like '%c'", *(const char *)b);
    return adl_reduced_set(out, a, a_length);
}

static void failing_callback(adlt_replica *r)
{
    char digit = (char)('0' + r->rank);
    void *out;
    size_t length;
    NEED_FAILS(r, adl_group_reduce(r->group, "picky", &digit, 1, refuse_twos, NULL, &out, &length),
               ADL_ECORRUPT, "reduce \"picky\" on rank 0: I do not like '2'");
    NEED(r, !out);
    digit = 'x'; /* only that call failed */
    NEED_OK(r, adl_group_reduce(r->group, "picky", &digit, 1, refuse_twos, NULL, &out, &length));
    NEED(r, length == 1 && *(char *)out == 'x');
    free(out);
}

TEST(a_failing_callback_fails_its_call_on_every_replica)
{
    CHECK(adlt_run_threads(3, failing_callback, NULL, 0));
}

static adl_status slow_sum(void *context, const void *a, size_t a_length, const void *b,
                           size_t b_length, adl_reduced *out)
{
    (void)b;
    (void)b_length;
    usleep(*(int *)context * 1000);
    return adl_reduced_set(out, a, a_length);
}

static void slow_callback(adlt_replica *r)
{
    int sleep_ms = 3 * r->peer_timeout_ms;
    void *out;
    size_t length;
    NEED_OK(r, adl_group_reduce(r->group, "slow", "x", 1, slow_sum, &sleep_ms, &out, &length));
    free(out);
    NEED_OK(r, adl_group_barrier(r->group));
}

TEST(a_slow_callback_does_not_stop_the_heartbeats)
{
    adlt_peer_timeout_ms = 2500;
    CHECK(adlt_run_threads(2, slow_callback, NULL, 0));
    adlt_peer_timeout_ms = ADLT_PEER_TIMEOUT_MS;
}

/* ---- disagreement ---- */

static int disagreement;

static void disagree(adlt_replica *r)
{
    static const char *const texts[] = {
        "calls allreduce sum f64[2], rank 2 calls allreduce sum f64[3]",
        "calls allreduce sum f64[2], rank 2 calls allreduce sum i64[2]",
        "calls allreduce sum f64[2], rank 2 calls allreduce max f64[2]",
        "calls allreduce sum f64[2], rank 2 calls barrier",
        "calls allreduce sum f64[2], rank 2 calls reduce \"other\"",
    };
    double x[3] = {1, 2, 3};
    adl_status status;
    NEED_OK(r, adl_group_barrier(r->group));
    bool odd = r->rank == 2;
    void *out = NULL;
    size_t length;
    if (odd && disagreement == 3)
        status = adl_group_barrier(r->group);
    else if (odd && disagreement == 4)
        status = adl_group_reduce(r->group, "other", x, 8, concatenate, NULL, &out, &length);
    else
        status = adl_group_allreduce(r->group, x, odd && disagreement == 0 ? 3 : 2,
                                     odd && disagreement == 1 ? ADL_TYPE_I64 : ADL_TYPE_F64,
                                     odd && disagreement == 2 ? ADL_REDUCE_MAX : ADL_REDUCE_SUM);
    NEED(r, x[0] == 1 && x[1] == 2 && x[2] == 3);
    NEED_FAILS(r, status, ADL_EINVAL, texts[disagreement]);
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_EINVAL, "replicas disagree on call 1");
    NEED_FAILS(r, adl_group_check(r->group), ADL_EINVAL, "replicas disagree on call 1");
}

TEST(calls_that_differ_fail_everywhere_and_name_both)
{
    for (disagreement = 0; disagreement < 5; disagreement++)
        CHECK(adlt_run_threads(3, disagree, NULL, 0));
}

/* ---- leaving ---- */

static int leaver;

static void leave_early(adlt_replica *r)
{
    NEED_OK(r, adl_group_barrier(r->group));
    if (r->rank == leaver) {
        adl_group_free(r->group);
        r->group = NULL;
        return;
    }
    char text[32];
    snprintf(text, sizeof text, "rank %d left the group", leaver);
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_EPEER, text);
    NEED(r, adl_group_peer(r->group, leaver) == ADL_PEER_LEFT);
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_EPEER, text);
}

TEST(a_replica_that_left_is_told_from_one_that_died)
{
    for (leaver = 0; leaver < 3; leaver++)
        CHECK(adlt_run_threads(3, leave_early, NULL, 0));
}

static void close_with_pending_calls(adlt_replica *r)
{
    adl_future *futures[20];
    int64_t value = 1;
    for (int i = 0; i < 20; i++)
        NEED_OK(r, adl_group_allreduce_async(r->group, &value, 1, ADL_TYPE_I64, ADL_REDUCE_SUM,
                                             &futures[i]));
    NEED_OK(r, adl_group_close(r->group, 60000));
    for (int i = 0; i < 20; i++) {
        NEED(r, adl_future_done(futures[i]));
        NEED_OK(r, adl_future_wait(futures[i], 0, NULL, NULL));
        adl_future_free(futures[i]);
    }
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_ESTATE, "closed");
}

TEST(close_finishes_what_is_pending)
{
    CHECK(adlt_run_threads(4, close_with_pending_calls, secret, sizeof secret));
}

static void close_alone(adlt_replica *r)
{
    if (r->rank == 0) {
        while (!release)
            usleep(1000);
        return;
    }
    NEED_FAILS(r, adl_group_close(r->group, 50), ADL_ETIMEOUT, "rank 0 did not leave within 50 ms");
    release = 1;
}

TEST(close_has_a_time_limit)
{
    release = 0;
    CHECK(adlt_run_threads(2, close_alone, NULL, 0));
}

static void give_up(adlt_replica *r)
{
    NEED_OK(r, adl_group_barrier(r->group));
    char text[64];
    snprintf(text, sizeof text, "rank %d gave up: the disk is on fire", leaver);
    if (r->rank == leaver) {
        adl_group_abort(r->group, "the disk is on fire");
        NEED_FAILS(r, adl_group_barrier(r->group), ADL_ESTATE, text);
        return;
    }
    NEED_FAILS(r, adl_group_barrier(r->group), ADL_EPEER, text);
    NEED(r, adl_group_failed_rank(r->group) == leaver);
}

TEST(giving_up_tells_the_others_why)
{
    for (leaver = 0; leaver < 3; leaver++)
        CHECK(adlt_run_threads(3, give_up, NULL, 0));
}

/* ---- heartbeats ---- */

static void idle(adlt_replica *r)
{
    NEED_OK(r, adl_group_barrier(r->group));
    usleep((unsigned)r->peer_timeout_ms * 3000);
    NEED_OK(r, adl_group_barrier(r->group));
}

TEST(heartbeats_keep_an_idle_group_alive)
{
    adlt_peer_timeout_ms = 2500;
    CHECK(adlt_run_threads(3, idle, secret, sizeof secret));
    adlt_peer_timeout_ms = ADLT_PEER_TIMEOUT_MS;
}

/* ---- no memory ---- */

static void call_without_memory(adlt_replica *r)
{
    for (int i = 0; i < 200; i++) {
        int64_t one = 1;
        adl_status status = adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM);
        if (status != ADL_OK)
            return; /* this one, or another, had none; nobody may hang or crash */
        NEED(r, one == r->replicas);
        if (r->rank == 0 && i == 50)
            adli_mem_fail_at(r->extra);
    }
}

TEST(running_out_of_memory_in_a_call_ends_it_everywhere)
{
    for (int nth = 1; nth <= 8; nth++) {
        adlt_extra = nth;
        CHECK(adlt_run_threads(3, call_without_memory, NULL, 0));
        adli_mem_fail_at(0);
    }
}
