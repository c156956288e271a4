/* How a group forms: strangers, impostors, wrong groups, time limits, members that break the protocol,
 * and allocations that fail. */
#include "harness.h"

#include "adaptdl/group.h"
#include "base/mem.h"
#include "comm/handshake.h"
#include "replicas.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

static const char secret[] = "a secret of the job";

/* ---- strangers and impostors while a group forms ---- */

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 30};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    close(fd);
    return -1;
}

static size_t read_all(int fd, uint8_t *out, size_t size)
{
    size_t have = 0;
    ssize_t got;
    while (have < size && (got = recv(fd, out + have, size - have, 0)) > 0)
        have += (size_t)got;
    return have;
}

static void join_only(adlt_replica *r)
{
    NEED_OK(r, adl_group_barrier(r->group));
}

TEST(strangers_do_not_disturb_a_forming_group)
{
    enum { STRANGERS = 150 }; /* more than are let in at a time */
    int listener, port, open_ones[STRANGERS];
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &listener, &port));
    uint8_t huge[ADLI_FRAME_HEADER], noise[4096];
    adli_frame_header(huge, ADLI_HELLO, 0, 0, UINT32_MAX, false);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)(i * 7919 >> 3);
    for (int i = 0; i < STRANGERS; i++) {
        open_ones[i] = dial(port);
        REQUIRE(open_ones[i] >= 0);
        if (i % 4 == 0)
            CHECK(send(open_ones[i], noise, sizeof noise, MSG_NOSIGNAL) > 0);
        else if (i % 4 == 1)
            CHECK(send(open_ones[i], huge, sizeof huge, MSG_NOSIGNAL) > 0);
        else if (i % 4 == 2)
            CHECK(send(open_ones[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) > 0);
    }
    CHECK(adlt_run_threads_on(3, join_only, secret, sizeof secret, listener, port));
    for (int i = 0; i < STRANGERS; i++)
        close(open_ones[i]);
}

/* Runs rank 0 of two replicas in a thread while the test plays the other side. */
typedef struct root_thread {
    adl_group_options options;
    pthread_t thread;
    adl_group *group;
    adl_status status;
    char text[512];
    int port;
} root_thread;

static void *run_root(void *argument)
{
    root_thread *root = argument;
    root->status = adl_group_new(&root->options, &root->group);
    snprintf(root->text, sizeof root->text, "%s", adl_error());
    return NULL;
}

static bool start_root(root_thread *root, int replicas, const char *key, int timeout_ms)
{
    *root = (root_thread){.options = ADL_GROUP_OPTIONS_INIT};
    root->options.replicas = replicas;
    root->options.generation = 5;
    root->options.secret = key;
    root->options.secret_length = key ? strlen(key) : 0;
    root->options.connect_timeout_ms = timeout_ms;
    if (adl_group_listen("127.0.0.1", 0, &root->options.listen_fd, &root->port) != ADL_OK)
        return false;
    return pthread_create(&root->thread, NULL, run_root, root) == 0;
}

static adl_group_options leaf_options(const root_thread *root, int rank, const char *key)
{
    adl_group_options options = root->options;
    options.rank = rank;
    options.master_port = root->port;
    options.listen_fd = -1;
    options.secret = key;
    options.secret_length = key ? strlen(key) : 0;
    options.connect_timeout_ms = 30000;
    return options;
}

TEST(wrong_secrets_are_refused_on_both_sides)
{
    static const struct {
        const char *root, *leaf, *text;
    } cases[] = {
        {"right", "wrong", "its secret is not ours"},
        {"right", NULL, "rank 0 has a secret, the peer has not"},
        {NULL, "wrong", "rank 0 has no secret, the peer has"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        root_thread root;
        REQUIRE(start_root(&root, 2, cases[i].root, 400));
        adl_group_options options = leaf_options(&root, 1, cases[i].leaf);
        adl_group *group;
        CHECK_FAILS(adl_group_new(&options, &group), ADL_EPEER, cases[i].text);
        pthread_join(root.thread, NULL);
        CHECK_INT(root.status, ADL_ETIMEOUT);
        CHECK(strstr(root.text, "1 of 2 replicas did not arrive within 400 ms: 1 (refused last: "
                                "127.0.0.1:"));
        CHECK(strstr(root.text, "secret"));
    }
}

TEST(wrong_group_rank_and_generation_are_refused)
{
    static const struct {
        int rank, replicas;
        uint64_t generation;
        adl_status status;
        const char *text;
    } cases[] = {
        {1, 4, 5, ADL_EPEER, "the group has 3 replicas, rank 1 says 4"},
        {1, 3, 4, ADL_EPEER, "generation 4 is over, this is 5"},
        {1, 3, 6, ADL_ETIMEOUT, "this is still generation 5, not 6"},
    };
    root_thread root;
    REQUIRE(start_root(&root, 3, "key", 30000));
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adl_group_options options = leaf_options(&root, cases[i].rank, "key");
        options.replicas = cases[i].replicas;
        options.generation = cases[i].generation;
        options.connect_timeout_ms = cases[i].status == ADL_ETIMEOUT ? 500 : 30000;
        adl_group *group;
        CHECK_FAILS(adl_group_new(&options, &group), cases[i].status, cases[i].text);
    }
    /* Nothing of that kept the true ones away. */
    root_thread one = {.options = leaf_options(&root, 1, "key")};
    REQUIRE(pthread_create(&one.thread, NULL, run_root, &one) == 0);
    adl_group_options options = leaf_options(&root, 2, "key");
    adl_group *two;
    CHECK_OK(adl_group_new(&options, &two));
    pthread_join(one.thread, NULL);
    pthread_join(root.thread, NULL);
    CHECK_INT(one.status, ADL_OK);
    CHECK_INT(root.status, ADL_OK);
    adl_group_free(two);
    adl_group_free(one.group);
    adl_group_free(root.group);
}

TEST(two_replicas_of_one_rank_are_told_apart)
{
    root_thread root;
    REQUIRE(start_root(&root, 3, NULL, 30000));
    root_thread one = {.options = leaf_options(&root, 1, NULL)}, again = one;
    REQUIRE(pthread_create(&one.thread, NULL, run_root, &one) == 0);
    REQUIRE(pthread_create(&again.thread, NULL, run_root, &again) == 0);
    /* One of them is refused at once, whichever came second. */
    adl_group_options options = leaf_options(&root, 2, NULL);
    usleep(50000);
    adl_group *two;
    CHECK_OK(adl_group_new(&options, &two));
    pthread_join(one.thread, NULL);
    pthread_join(again.thread, NULL);
    pthread_join(root.thread, NULL);
    root_thread *loser = one.status == ADL_OK ? &again : &one;
    CHECK_INT(root.status, ADL_OK);
    CHECK((one.status == ADL_OK) != (again.status == ADL_OK));
    CHECK_INT(loser->status, ADL_EPEER);
    CHECK(strstr(loser->text, "refused: rank 1 is taken by 127.0.0.1:"));
    adl_group_free(two);
    adl_group_free(one.group);
    adl_group_free(again.group);
    adl_group_free(root.group);
}

TEST(a_replica_that_went_away_while_forming_may_come_back)
{
    root_thread root;
    REQUIRE(start_root(&root, 3, NULL, 30000));
    adl_group_options options = leaf_options(&root, 1, NULL);
    options.connect_timeout_ms = 100;
    adl_group *group;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ETIMEOUT,
                "connected, but not all 3 replicas arrived within 100 ms");
    root_thread one = {.options = leaf_options(&root, 1, NULL)};
    REQUIRE(pthread_create(&one.thread, NULL, run_root, &one) == 0);
    options = leaf_options(&root, 2, NULL);
    CHECK_OK(adl_group_new(&options, &group));
    pthread_join(one.thread, NULL);
    pthread_join(root.thread, NULL);
    CHECK_INT(root.status, ADL_OK);
    CHECK_INT(one.status, ADL_OK);
    adl_group_free(group);
    adl_group_free(one.group);
    adl_group_free(root.group);
}

TEST(another_version_is_named)
{
    root_thread root;
    REQUIRE(start_root(&root, 2, NULL, 500));
    uint8_t bytes[ADLI_FRAME_HEADER + 600];
    adli_frame_header(bytes, ADLI_HELLO, 0, 0, 0, false);
    bytes[4] = 2;
    int fd = dial(root.port);
    REQUIRE(fd >= 0 && send(fd, bytes, ADLI_FRAME_HEADER, MSG_NOSIGNAL) == ADLI_FRAME_HEADER);
    size_t have = read_all(fd, bytes, sizeof bytes), need;
    close(fd);
    adli_frame frame;
    CHECK_OK(adli_frame_parse(bytes, have, 600, &frame, &need));
    REQUIRE(need <= have && frame.type == ADLI_REFUSE);
    adli_failure failure;
    CHECK_OK(adli_failure_parse(frame.payload, frame.length, &failure));
    CHECK_STR(failure.text, "protocol version 2, ours is 1");
    pthread_join(root.thread, NULL);
    CHECK_INT(root.status, ADL_ETIMEOUT);
    CHECK(strstr(root.text, "protocol version 2, ours is 1"));
}

typedef struct impostor {
    int listener;
    const uint8_t *bytes;
    size_t length;
} impostor;

static void *answer_nonsense(void *argument)
{
    impostor *self = argument;
    struct pollfd entry = {.fd = self->listener, .events = POLLIN};
    poll(&entry, 1, 30000);
    int fd = accept(self->listener, NULL, NULL);
    send(fd, self->bytes, self->length, MSG_NOSIGNAL);
    uint8_t rest[256];
    read_all(fd, rest, sizeof rest); /* until the other side hangs up */
    close(fd);
    return NULL;
}

TEST(a_master_that_is_something_else_is_an_error_at_once)
{
    uint8_t other_version[ADLI_FRAME_HEADER], challenge[ADLI_FRAME_HEADER + 64] = {0};
    adli_frame_header(other_version, ADLI_REFUSE, 0, 0, 0, false);
    other_version[4] = 9;
    adli_frame_header(challenge, ADLI_CHALLENGE, 0, 0, 64, false);
    const struct {
        const void *bytes;
        size_t length;
        adl_status status;
        const char *text;
    } cases[] = {
        {"SSH-2.0-OpenSSH_9.2\r\n", 21, ADL_ENET, "not our protocol"},
        {other_version, sizeof other_version, ADL_EPEER, "protocol version 9, ours is 1"},
        {challenge, sizeof challenge, ADL_EPEER, "its secret is not ours"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        impostor other = {.bytes = cases[i].bytes, .length = cases[i].length};
        adl_group_options options = ADL_GROUP_OPTIONS_INIT;
        options.rank = 1;
        options.replicas = 2;
        options.secret = "key";
        options.secret_length = 3;
        REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &other.listener, &options.master_port));
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, answer_nonsense, &other) == 0);
        adl_group *group;
        char text[64];
        snprintf(text, sizeof text, "rank 0 at 127.0.0.1:%d: ", options.master_port);
        CHECK_FAILS(adl_group_new(&options, &group), cases[i].status, cases[i].text);
        CHECK(strstr(adl_error(), text));
        pthread_join(thread, NULL);
        close(other.listener);
    }
}

/* ---- time-outs of forming ---- */

TEST(an_unreachable_master_is_named)
{
    int listener;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.rank = 1;
    options.replicas = 2;
    options.connect_timeout_ms = 150;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &listener, &options.master_port));
    close(listener); /* a port that nobody listens on */
    adl_group *group;
    char text[96];
    snprintf(text, sizeof text, "rank 0 at 127.0.0.1:%d: not reached within 150 ms",
             options.master_port);
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ETIMEOUT, text);
    CHECK(strstr(adl_error(), "Connection refused"));
    options.master_addr = "no-such-host.invalid";
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ETIMEOUT, "rank 0 at no-such-host.invalid:");
}

TEST(missing_ranks_are_named)
{
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.replicas = 4;
    options.connect_timeout_ms = 50;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
    adl_group *group;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ETIMEOUT,
                "rank 0: 3 of 4 replicas did not arrive within 50 ms: 1, 2, 3");
}

TEST(a_port_in_use_is_named)
{
    int listener;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.replicas = 2;
    options.connect_timeout_ms = 100;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &listener, &options.master_port));
    adl_group *group;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ENET, "Address already in use");
    close(listener);
}

/* However long the others are waited for. */
TEST(a_port_that_stays_in_use_is_given_up)
{
    int listener;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.replicas = 2;
    options.connect_timeout_ms = 3600000;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &listener, &options.master_port));
    adl_group *group;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_ENET,
                "Address already in use (still after 5000 ms)");
    close(listener);
}

static bool cancel_now(void *context)
{
    return ++*(int *)context > 3;
}

TEST(forming_can_be_cancelled)
{
    int asked = 0;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.replicas = 2;
    options.cancelled = cancel_now;
    options.cancel_context = &asked;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
    adl_group *group;
    CHECK_FAILS(adl_group_new(&options, &group), ADL_EINTR, "cancelled");
}

/* ---- in the background ---- */

TEST(a_group_forms_while_its_members_do_something_else)
{
    char secret_text[] = "key", address[] = "127.0.0.1";
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    adl_forming *forming[3];
    adl_group *groups[3] = {NULL};
    int port, fds = adlt_count_fds(), tasks = adlt_count_threads(1);
    options.replicas = 3;
    options.master_addr = address;
    options.secret = secret_text;
    options.secret_length = 3;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, &port));
    for (int rank = 0; rank < 3; rank++) {
        options.rank = rank;
        options.master_port = port;
        REQUIRE_OK(adl_group_begin(&options, &forming[rank]));
        options.listen_fd = -1;
        if (rank == 1) /* one is missing: nobody blocks, nobody has formed */
            CHECK(!adl_group_test(forming[0]) && !adl_group_test(forming[1]));
    }
    memset(secret_text, 'x', 3), memset(address, 'x', 9); /* they were copied */
    for (int rank = 0; rank < 3; rank++) {
        while (!adl_group_test(forming[rank]))
            usleep(1000);
        REQUIRE_OK(adl_group_finish(forming[rank], &groups[rank]));
        CHECK_INT(adl_group_rank(groups[rank]), rank);
    }
    adl_future *sums[3];
    for (int rank = 0; rank < 3; rank++) {
        int64_t one = 1;
        REQUIRE_OK(adl_group_allreduce_async(groups[rank], &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM,
                                             &sums[rank]));
    }
    for (int rank = 0; rank < 3; rank++) {
        const void *sum;
        REQUIRE_OK(adl_future_wait(sums[rank], 30000, &sum, NULL));
        CHECK(memcmp(sum, &(int64_t){3}, 8) == 0);
        adl_future_free(sums[rank]);
    }
    for (int rank = 2; rank >= 0; rank--)
        adl_group_free(groups[rank]);
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
}

TEST(forming_in_the_background_fails_and_is_cancelled)
{
    int fds = adlt_count_fds(), tasks = adlt_count_threads(1);
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    adl_forming *forming;
    adl_group *group;
    options.replicas = 2;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
    REQUIRE_OK(adl_group_begin(&options, &forming));
    adl_group_cancel(forming); /* nobody came: it does not wait for the five minutes */
    options.connect_timeout_ms = 100;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
    REQUIRE_OK(adl_group_begin(&options, &forming));
    CHECK_FAILS(adl_group_finish(forming, &group), ADL_ETIMEOUT, "1 of 2 replicas did not arrive");
    CHECK(group == NULL);
    options.replicas = 1; /* one that has formed is freed */
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
    REQUIRE_OK(adl_group_begin(&options, &forming));
    while (!adl_group_test(forming))
        usleep(1000);
    adl_group_cancel(forming);
    adl_group_cancel(NULL);
    options.size = 0;
    CHECK_FAILS(adl_group_begin(&options, &forming), ADL_EINVAL, "size is 0");
    for (int nth = 1; nth < 8; nth++) {
        options = (adl_group_options)ADL_GROUP_OPTIONS_INIT;
        options.master_addr = "127.0.0.1";
        options.secret = "key";
        options.secret_length = 3;
        REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &options.listen_fd, NULL));
        adli_mem_fail_at(nth);
        if (adl_group_begin(&options, &forming) == ADL_OK &&
            adl_group_finish(forming, &group) == ADL_OK)
            adl_group_free(group);
        adli_mem_fail_at(0);
    }
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
}

/* ---- a member that breaks the protocol ---- */

/* Plays rank 1 of two, by the internals, up to the welcome. */
static adli_conn *play_rank_1(const root_thread *root, const char *key)
{
    adli_identity self = {
        .purpose = ADLI_PURPOSE_CONTROL,
        .rank = 1,
        .replicas = 2,
        .generation = 5,
        .secret = key,
        .secret_length = key ? strlen(key) : 0,
    };
    adli_dialer dialer;
    adli_dialer_init(&dialer, &self, 0, "127.0.0.1", root->port);
    adl_status status = ADL_OK;
    while (status == ADL_OK && dialer.state != ADLI_DIAL_WELCOME) {
        status = adli_dialer_step(&dialer);
        usleep(1000);
    }
    adli_conn *conn = dialer.conn;
    dialer.conn = NULL;
    adli_dialer_fini(&dialer);
    return conn;
}

TEST(a_member_that_breaks_the_protocol_is_named)
{
    uint8_t huge[ADLI_FRAME_HEADER], skip[ADLI_FRAME_HEADER], old[ADLI_FRAME_HEADER];
    uint8_t call[ADLI_FRAME_HEADER + 3] = {0}, hello[ADLI_FRAME_HEADER];
    adli_frame_header(huge, ADLI_CALL, 5, 2, 0x7fffffff, false);
    adli_frame_header(skip, ADLI_HEARTBEAT, 5, 7, 0, false);
    adli_frame_header(old, ADLI_HEARTBEAT, 4, 2, 0, false);
    adli_frame_header(call, ADLI_CALL, 5, 2, 3, false);
    adli_frame_header(hello, ADLI_RESULT, 5, 2, 0, false);
    const struct {
        const void *bytes;
        size_t length;
        const char *text;
    } cases[] = {
        {"what?", 5, "rank 1 died: it sent not our protocol"},
        {huge, sizeof huge, "rank 1 died: it sent a frame of 2147483647 bytes, the limit is"},
        {skip, sizeof skip, "rank 1 died: it sent frame number 7, expected 2"},
        {old, sizeof old, "rank 1 died: it sent a frame of generation 4, ours is 5"},
        {call, sizeof call, "rank 1 died: it sent a malformed call frame"},
        {hello, sizeof hello, "rank 1 died: it sent an unexpected frame of type 8"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        root_thread root;
        REQUIRE(start_root(&root, 2, NULL, 30000));
        adli_conn *conn = play_rank_1(&root, NULL);
        REQUIRE(conn);
        pthread_join(root.thread, NULL);
        REQUIRE(root.status == ADL_OK);
        CHECK(send(conn->fd, cases[i].bytes, cases[i].length, MSG_NOSIGNAL) > 0);
        CHECK_FAILS(adl_group_barrier(root.group), ADL_EPEER, cases[i].text);
        adl_group_free(root.group);
        adli_conn_free(conn);
    }
}

TEST(a_frame_that_was_tampered_with_is_refused)
{
    root_thread root;
    REQUIRE(start_root(&root, 2, "key", 30000));
    adli_conn *conn = play_rank_1(&root, "key");
    REQUIRE(conn);
    pthread_join(root.thread, NULL);
    REQUIRE(root.status == ADL_OK);
    /* A heartbeat that is right in everything but one bit of its MAC. */
    uint8_t frame[ADLI_FRAME_HEADER + ADLI_MAC_BYTES];
    adli_frame_header(frame, ADLI_HEARTBEAT, 5, conn->sent, 0, true);
    adli_part part = {frame, ADLI_FRAME_HEADER};
    CHECK_OK(adli_mac_of(conn->tx, &part, 1, frame + ADLI_FRAME_HEADER));
    frame[sizeof frame - 1] ^= 1;
    CHECK(send(conn->fd, frame, sizeof frame, MSG_NOSIGNAL) > 0);
    CHECK_FAILS(adl_group_barrier(root.group), ADL_EPEER, "rank 1 died: it sent a frame whose MAC");
    adl_group_free(root.group);
    adli_conn_free(conn);
}

/* ---- several groups ---- */

static void *form_again(void *argument)
{
    adlt_replica *r = argument;
    for (uint64_t generation = 1; generation <= 5; generation++) {
        adl_group_options options = ADL_GROUP_OPTIONS_INIT;
        options.rank = r->rank;
        options.replicas = 3;
        options.master_port = r->port;
        options.generation = generation;
        options.connect_timeout_ms = 60000;
        adl_group *next;
        if (adl_group_new(&options, &next) != ADL_OK) {
            adlt_replica_fail(r, __LINE__, "adl_group_new");
            return NULL;
        }
        int64_t one = 1;
        /* The old one is still there and still works. */
        if (r->group && adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM))
            adlt_replica_fail(r, __LINE__, "the group before");
        adl_group_free(r->group);
        r->group = next;
    }
    int64_t one = 1;
    if (adl_group_allreduce(r->group, &one, 1, ADL_TYPE_I64, ADL_REDUCE_SUM) || one != 3)
        adlt_replica_fail(r, __LINE__, "the last group");
    adl_group_free(r->group);
    return NULL;
}

TEST(groups_follow_each_other_on_one_port)
{
    int listener, port;
    REQUIRE_OK(adl_group_listen("127.0.0.1", 0, &listener, &port));
    close(listener);
    adlt_replica replicas[3] = {0};
    for (int rank = 0; rank < 3; rank++) {
        replicas[rank].rank = rank;
        replicas[rank].port = port;
        REQUIRE(pthread_create(&replicas[rank].thread, NULL, form_again, &replicas[rank]) == 0);
    }
    for (int rank = 0; rank < 3; rank++) {
        pthread_join(replicas[rank].thread, NULL);
        if (replicas[rank].failure[0])
            ADLT_FAIL("%s", replicas[rank].failure);
    }
}

/* ---- no memory ---- */

TEST(running_out_of_memory_while_forming_is_an_error)
{
    int fds = adlt_count_fds(), tasks = adlt_count_threads(1), failures = 0, formed = 0;
    for (int nth = 1; nth <= 40; nth++) {
        root_thread root;
        adli_mem_fail_at(0);
        REQUIRE(start_root(&root, 2, "key", 150));
        adl_group_options options = leaf_options(&root, 1, "key");
        options.connect_timeout_ms = 150;
        adli_mem_fail_at(nth);
        adl_group *group;
        adl_status status = adl_group_new(&options, &group);
        pthread_join(root.thread, NULL);
        CHECK((status == ADL_OK) == (group != NULL));
        CHECK((root.status == ADL_OK) == (root.group != NULL));
        failures += status == ADL_ENOMEM || root.status == ADL_ENOMEM;
        formed += status == ADL_OK && root.status == ADL_OK;
        adli_mem_fail_at(0);
        adl_group_free(group);
        adl_group_free(root.group);
    }
    CHECK(failures > 5);
    printf("info - 40 formations with a failing allocation: %d out of memory, %d formed\n",
           failures, formed);
    CHECK_INT(adlt_count_fds(), fds);
    CHECK_INT(adlt_count_threads(tasks), tasks);
}
