/* Saving in the background: the caller may go on changing, loading and removing states while the
 * store's thread writes what they were. The file operations are held at a gate, so that "while it is
 * being written" is a fact and not a matter of timing. Run under ThreadSanitizer too. */
#include "harness.h"

#include "base/mem.h"
#include "checkpoint_fixture.h"
#include "train/checkpoint_store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;  /* a write waits */
    bool waiting; /* one does */
    int fail;     /* errno for every write that passes, 0: none */
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, 0};

static ssize_t gated_write(int fd, const void *data, size_t length)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.closed) {
        gate.waiting = true;
        pthread_cond_broadcast(&gate.changed);
        pthread_cond_wait(&gate.changed, &gate.lock);
    }
    gate.waiting = false;
    int fail = gate.fail;
    pthread_mutex_unlock(&gate.lock);
    if (fail) {
        errno = fail;
        return -1;
    }
    return write(fd, data, length);
}

static void set_gate(bool closed, int fail)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    gate.fail = fail;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void wait_at_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.waiting)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static adl_checkpoint *open_gated(const char *directory, log_lines *lines)
{
    static adli_ckpt_io io;
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.log = lines ? log_line : NULL;
    options.log_user = lines;
    adl_checkpoint *store = NULL;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        return NULL;
    io = adli_ckpt_system_io;
    io.write = gated_write;
    adli_checkpoint_set_io(store, &io);
    return store;
}

static bool add(adl_checkpoint *store, const char *name, blob *b, adl_checkpoint_state **state)
{
    return adl_checkpoint_register(store, name, &blob_functions, b, state) == ADL_OK;
}

static bool is_saved(const char *directory, const char *name, size_t length, unsigned seed)
{
    adl_checkpoint *store;
    adl_checkpoint_state *state;
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    blob b = {0};
    bool found = false, same = false;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        return false;
    if (add(store, name, &b, &state) && adl_checkpoint_load_state(store, state, &found) == ADL_OK &&
        found)
        same = blob_is(&b, length, seed);
    adl_checkpoint_close(store);
    free(b.data);
    return same;
}

TEST(the_copy_is_what_is_written)
{
    const char *directory = fresh_directory();
    blob b = blob_of(5000, 1);
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "b", &b, NULL));
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    CHECK(!adl_checkpoint_due(store, 0));
    set_gate(true, 0);
    CHECK_OK(adl_checkpoint_save_async(store));
    wait_at_gate();
    adl_checkpoint_get_info(store, &info);
    CHECK(info.busy && info.saves_ok == 0);
    CHECK(!adl_checkpoint_due(store, 1000)); /* it would have to wait */
    memset(b.data, 0xee, b.length);
    blob_set(&b, 100, 2);
    CHECK_INT(count_entries(directory, "checkpoint-"), 0);
    set_gate(false, 0);
    CHECK_OK(adl_checkpoint_flush(store));
    adl_checkpoint_get_info(store, &info);
    CHECK(!info.busy && info.saves_ok == 1);
    CHECK(adl_checkpoint_due(store, 1001));
    CHECK(is_saved(directory, "b", 5000, 1));
    CHECK_OK(adl_checkpoint_save_all(store)); /* a save in the foreground after one in the back */
    CHECK(is_saved(directory, "b", 100, 2));
    adl_checkpoint_close(store);
    free(b.data);
    remove_tree(directory);
}

static void *open_gate_later(void *unused)
{
    (void)unused;
    wait_at_gate();
    set_gate(false, 0);
    return NULL;
}

TEST(a_second_save_waits_for_the_first)
{
    const char *directory = fresh_directory();
    blob b = blob_of(5000, 1);
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "b", &b, NULL));
    pthread_t opener;
    set_gate(true, 0);
    CHECK_OK(adl_checkpoint_save_async(store));
    wait_at_gate();
    REQUIRE(pthread_create(&opener, NULL, open_gate_later, NULL) == 0);
    blob_set(&b, 6000, 2);
    CHECK_OK(adl_checkpoint_save_async(store)); /* returns only once the first is on disk */
    pthread_join(opener, NULL);
    CHECK(exists(directory, "checkpoint-0.1"));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(exists(directory, "checkpoint-0.1") && exists(directory, "checkpoint-0.2"));
    CHECK(is_saved(directory, "b", 6000, 2));
    adl_checkpoint_close(store);
    free(b.data);
    remove_tree(directory);
}

TEST(states_may_come_and_go_while_it_is_written)
{
    const char *directory = fresh_directory();
    blob a = blob_of(3000, 1), b = blob_of(4000, 2), got = {0};
    adl_checkpoint_state *state_a, *state_b;
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "a", &a, &state_a) && add(store, "pending", &b, &state_b));
    CHECK_OK(adl_checkpoint_save_all(store));
    adl_checkpoint_close(store);

    store = open_gated(directory, NULL); /* both values are pending now */
    REQUIRE(store && add(store, "a", &a, &state_a));
    set_gate(true, 0);
    CHECK_OK(adl_checkpoint_save_async(store));
    wait_at_gate();
    adl_checkpoint_unregister(store, state_a);
    bool found = false;
    CHECK(add(store, "pending", &got, &state_b));
    CHECK_OK(adl_checkpoint_load_state(store, state_b, &found)); /* the writer is reading it */
    CHECK(found && blob_is(&got, 4000, 2));
    CHECK_OK(adl_checkpoint_forget(store, "a"));
    CHECK_OK(adl_checkpoint_offer(store, "c", "cc", 2));
    set_gate(false, 0);
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(is_saved(directory, "a", 3000, 1) && is_saved(directory, "pending", 4000, 2));
    CHECK_OK(adl_checkpoint_save_async(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(!is_saved(directory, "a", 3000, 1) && is_saved(directory, "pending", 4000, 2));
    adl_checkpoint_close(store);
    free(a.data), free(b.data), free(got.data);
    remove_tree(directory);
}

TEST(a_failure_in_the_background_is_reported_once)
{
    const char *directory = fresh_directory();
    blob b = blob_of(100, 1);
    log_lines lines = {0};
    adl_checkpoint *store = open_gated(directory, &lines);
    REQUIRE(store && add(store, "b", &b, NULL));
    CHECK_OK(adl_checkpoint_save_all(store));
    set_gate(false, ENOSPC);
    CHECK_OK(adl_checkpoint_save_async(store)); /* the step goes on */
    CHECK_FAILS(adl_checkpoint_flush(store), ADL_EIO, "b.state: write: No space left on device");
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK_INT(lines.count, 1);
    CHECK(strstr(lines.text, "saving a checkpoint failed"));
    CHECK_INT(count_entries(directory, ""), 1); /* nothing left of the failed one */
    CHECK(is_saved(directory, "b", 100, 1));
    CHECK_OK(adl_checkpoint_save_async(store));
    set_gate(false, 0);
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    while (adl_checkpoint_get_info(store, &info), info.busy)
        usleep(100);
    blob_set(&b, 100, 2);
    CHECK_OK(adl_checkpoint_save_async(store)); /* space is back; a good save ends the matter */
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(is_saved(directory, "b", 100, 2));
    set_gate(false, EIO);
    CHECK_OK(adl_checkpoint_save_async(store));
    int before = lines.count;
    adl_checkpoint_close(store); /* waits, and tells the log at least */
    CHECK_INT(lines.count, before + 1);
    set_gate(false, 0);
    free(b.data);
    remove_tree(directory);
}

TEST(close_waits_for_the_writing)
{
    const char *directory = fresh_directory();
    blob b = blob_of(3 << 20, 4);
    for (int i = 0; i < 20; i++) {
        adl_checkpoint *store = open_gated(directory, NULL);
        REQUIRE(store && add(store, "b", &b, NULL));
        blob_set(&b, 1 << 16, (unsigned)i);
        CHECK_OK(adl_checkpoint_save_async(store));
        adl_checkpoint_close(store);
        CHECK(is_saved(directory, "b", 1 << 16, (unsigned)i));
    }
    free(b.data);
    remove_tree(directory);
}

typedef struct reading {
    const char *directory;
    atomic_bool stop;
    atomic_int opens, good;
} reading;

static void *read_all_the_time(void *argument)
{
    reading *r = argument;
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    log_lines lines = {0};
    options.log = log_line;
    options.log_user = &lines;
    while (!r->stop) {
        adl_checkpoint *store;
        blob a = {0}, b = {0};
        r->opens++;
        if (adl_checkpoint_open(r->directory, &options, &store) != ADL_OK) {
            printf("# reader: %s\n", adl_error());
            continue;
        }
        /* both states are of one checkpoint: the same bytes */
        r->good += add(store, "a", &a, NULL) && add(store, "b", &b, NULL) &&
                   adl_checkpoint_load_all(store, NULL, NULL) == ADL_OK && a.length == b.length &&
                   a.length > 0 && memcmp(a.data, b.data, a.length) == 0 && lines.count == 0;
        adl_checkpoint_close(store);
        free(a.data), free(b.data);
    }
    return NULL;
}

/* A replica that starts while the writer is saving and removing: it always finds a complete
 * checkpoint and never takes one that is being removed for a damaged one. */
TEST(readers_never_see_half_a_checkpoint)
{
    enum { ENOUGH = 150 };
    const char *directory = fresh_directory();
    blob a = blob_of(2000, 1), b = blob_of(2000, 1);
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "a", &a, NULL) && add(store, "b", &b, NULL));
    store->options.keep_last = 1;
    CHECK_OK(adl_checkpoint_save_all(store));
    static reading r;
    r.directory = directory;
    pthread_t reader;
    REQUIRE(pthread_create(&reader, NULL, read_all_the_time, &r) == 0);
    int saves = 0;
    for (; saves < ENOUGH || r.opens < ENOUGH; saves++) {
        blob_set(&a, 2000 + (size_t)saves % 7, (unsigned)saves);
        blob_set(&b, 2000 + (size_t)saves % 7, (unsigned)saves);
        CHECK_OK(adl_checkpoint_save_async(store));
    }
    r.stop = true;
    pthread_join(reader, NULL);
    CHECK_INT(r.good, r.opens);
    printf("info - %d opens during %d saves\n", r.opens, saves);
    adl_checkpoint_close(store);
    free(a.data), free(b.data);
    remove_tree(directory);
}

TEST(a_forked_child_does_not_wait_for_a_thread_it_does_not_have)
{
    const char *directory = fresh_directory();
    blob b = blob_of(1000, 1);
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "b", &b, NULL));
    set_gate(true, 0);
    CHECK_OK(adl_checkpoint_save_async(store));
    wait_at_gate();
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        adl_checkpoint_close(store);
        _exit(0);
    }
    int status = -1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    set_gate(false, 0);
    CHECK_OK(adl_checkpoint_flush(store));
    adl_checkpoint_close(store);
    CHECK(is_saved(directory, "b", 1000, 1));
    free(b.data);
    remove_tree(directory);
}

static volatile sig_atomic_t signal_count;
static pthread_t signal_thread;

static void on_signal(int number)
{
    (void)number;
    signal_thread = pthread_self();
    signal_count++;
}

TEST(signals_do_not_reach_the_writing_thread)
{
    const char *directory = fresh_directory();
    blob b = blob_of(1000, 1);
    adl_checkpoint *store = open_gated(directory, NULL);
    REQUIRE(store && add(store, "b", &b, NULL));
    struct sigaction action = {.sa_handler = on_signal}, old;
    sigaction(SIGTERM, &action, &old);
    set_gate(true, 0);
    CHECK_OK(adl_checkpoint_save_async(store));
    wait_at_gate();
    for (int i = 0; i < 50; i++)
        kill(getpid(), SIGTERM);
    CHECK(signal_count == 50 && pthread_equal(signal_thread, pthread_self()));
    set_gate(false, 0);
    CHECK_OK(adl_checkpoint_flush(store));
    adl_checkpoint_close(store);
    sigaction(SIGTERM, &old, NULL);
    free(b.data);
    remove_tree(directory);
}

/* Every page of the range is in memory. */
static bool resident(const unsigned char *data, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *start = (unsigned char *)((uintptr_t)data / page * page);
    size_t pages = ((size_t)(data + bytes - start) + page - 1) / page;
    unsigned char *in = calloc(pages, 1);
    bool all = in && mincore(start, pages * page, in) == 0;
    for (size_t i = 0; i < pages && all; i++)
        all = in[i] & 1;
    free(in);
    return all;
}

TEST(memory_for_the_first_save_is_made_ready_before)
{
    enum { BYTES = 3 << 20 };
    const char *directory = fresh_directory();
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    adl_checkpoint *store;
    adl_checkpoint_state *state, *other;
    blob b = blob_of(BYTES, 1), c = blob_of(100, 2);
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    REQUIRE(add(store, "big", &b, &state) && add(store, "other", &c, &other));
    adl_checkpoint_expect(store, state, BYTES);
    CHECK(!adl_checkpoint_due(store, 1000)); /* the interval begins */
    CHECK_OK(adl_checkpoint_flush(store));   /* nothing was saved, but the thread is done */
    REQUIRE(store->save.copies_count == 2);
    const unsigned char *data = store->save.copies[0].data;
    REQUIRE(data && store->save.copies[0].capacity >= BYTES);
    CHECK(resident(data, BYTES));
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    CHECK_OK(adl_checkpoint_get_info(store, &info));
    CHECK(info.saves_ok == 0 && !info.busy);
    adl_checkpoint_info bare = {0};
    CHECK_FAILS(adl_checkpoint_get_info(store, &bare), ADL_EINVAL, "adl_checkpoint_info: size");
    CHECK_OK(adl_checkpoint_save_async(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK(store->save.copies[0].data == data); /* the same memory was used */
    adl_checkpoint_close(store);
    REQUIRE_OK(adl_checkpoint_open(directory, &options, &store));
    REQUIRE(add(store, "big", &b, &state));
    bool found;
    CHECK_OK(adl_checkpoint_load_state(store, state, &found));
    CHECK(found && state->expected == BYTES); /* what was loaded is expected again */
    adl_checkpoint_close(store);
    free(b.data);
    free(c.data);
    remove_tree(directory);
}
