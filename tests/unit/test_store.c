/* The store: rows come back as they went in, transactions hold or leave nothing, files that are not ours
 * stay as they are, and a process killed at any write leaves a store that opens. */
#include "harness.h"

#include "base/mem.h"
#include "store/store.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], path[96];

static bool make_dir(void)
{
    strcpy(dir, "/tmp/adl-store-XXXXXX");
    if (!mkdtemp(dir))
        return false;
    snprintf(path, sizeof path, "%s/jobs.sqlite", dir);
    return true;
}

static int remove_entry(const char *name, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(name);
}

static void remove_dir(void)
{
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static adl_status add(adli_store *store, const char *uid, const char *name)
{
    adli_store_job job = {.uid = uid,
                          .ns = "default",
                          .name = name,
                          .spec = "{\"a\":1}",
                          .token = "t",
                          .secret = "s",
                          .created_s = 1234.5};
    adli_store_begin(store);
    adli_store_add_job(store, &job);
    return adli_store_commit(store);
}

static adl_status count_job(void *user, const adli_store_job *job)
{
    (void)job;
    ++*(int *)user;
    return ADL_OK;
}

static int job_count(adli_store *store)
{
    int count = 0;
    CHECK_OK(adli_store_jobs(store, count_job, &count));
    return count;
}

static adl_status check_job(void *user, const adli_store_job *job)
{
    ++*(int *)user;
    CHECK_STR(job->uid, "u-1");
    CHECK_STR(job->ns, "default");
    CHECK_STR(job->name, "one");
    CHECK_STR(job->spec, "{\"a\":1}");
    CHECK_NEAR(job->created_s, 1234.5, 0);
    CHECK_INT(job->phase, 3);
    CHECK_INT(job->group, 7);
    CHECK_INT(job->failures, 2);
    CHECK(job->killed && job->asked == ADLI_ASKED_DELETE);
    CHECK_NEAR(job->group_started_s, 1, 0);
    CHECK_NEAR(job->stop_since_s, 2, 0);
    CHECK_NEAR(job->retry_at_s, 3, 0);
    CHECK_STR(job->wanted, "[\"n\"]");
    CHECK_STR(job->placed, "[\"m\"]");
    CHECK_NEAR(job->started_s, 4, 0);
    CHECK_NEAR(job->completed_s, 5, 0);
    CHECK_STR(job->reason, "Why");
    CHECK_STR(job->message, "because \xc3\xa9");
    CHECK_NEAR(job->account.last_change_s, 6, 0);
    CHECK_NEAR(job->account.accounted_s, 7, 0);
    CHECK_NEAR(job->account.attained_s, 8.25, 0);
    CHECK_NEAR(job->account.run_s, 9, 0);
    CHECK_NEAR(job->account.active_sum, 10, 0);
    CHECK_NEAR(job->account.active_weight, 11, 0);
    CHECK_STR(job->hints, "{\"h\":2}");
    CHECK_NEAR(job->restart_cost_s, 12, 0);
    return ADL_OK;
}

TEST(rows_come_back)
{
    adli_store *store;
    REQUIRE(make_dir());
    REQUIRE_OK(adli_store_open(path, &store));
    REQUIRE_OK(add(store, "u-1", "one"));
    adli_store_job job = {.uid = "u-1", .phase = 3, .group = 7, .failures = 2, .killed = true};
    job.group_started_s = 1;
    job.stop_since_s = 2;
    job.retry_at_s = 3;
    job.wanted = "[\"n\"]";
    job.placed = "[\"m\"]";
    job.started_s = 4;
    job.completed_s = 5;
    job.reason = "Why";
    job.message = "because \xc3\xa9";
    job.account.last_change_s = 6;
    job.account.accounted_s = 7;
    job.account.attained_s = 8.25;
    job.account.run_s = 9;
    job.account.active_sum = 10;
    job.account.active_weight = 11;
    adli_store_begin(store);
    adli_store_save_job(store, &job);
    adli_store_hints(store, "u-1", "{\"h\":2}", 12);
    adli_store_mark(store, "u-1", ADLI_ASKED_DELETE);
    adli_store_drain(store, "node-1", true);
    adli_store_set(store, "key", "value");
    REQUIRE_OK(adli_store_commit(store));
    adli_store_close(store);

    struct stat info;
    REQUIRE(stat(path, &info) == 0);
    CHECK_INT(info.st_mode & 0777, 0600); /* tokens are in it */
    REQUIRE_OK(adli_store_open(path, &store));
    int count = 0;
    CHECK_OK(adli_store_jobs(store, check_job, &count));
    CHECK_INT(count, 1);
    char value[16];
    CHECK_OK(adli_store_get(store, "key", value, sizeof value));
    CHECK_STR(value, "value");
    CHECK_OK(adli_store_get(store, "other", value, sizeof value));
    CHECK_STR(value, "");
    adli_buf spec;
    adli_buf_init(&spec, 100);
    CHECK_OK(adli_store_spec(store, "u-1", &spec));
    CHECK_STR(spec.data, "{\"a\":1}");
    CHECK_FAILS(adli_store_spec(store, "u-2", &spec), ADL_ENOENT, "u-2");
    adli_buf_fini(&spec);
    adli_store_close(store);
    remove_dir();
}

TEST(a_failed_transaction_leaves_nothing)
{
    adli_store *store;
    REQUIRE(make_dir());
    REQUIRE_OK(adli_store_open(path, &store));
    REQUIRE_OK(add(store, "u-1", "one"));
    adli_store_begin(store);
    adli_store_event(store, 1, "Test", "", "in a transaction that fails", "");
    adli_store_job same = {.uid = "u-2", .ns = "default", .name = "one", .created_s = 1};
    adli_store_add_job(store, &same);
    adli_store_set(store, "key", "value");
    CHECK_FAILS(adli_store_commit(store), ADL_EIO, "jobs.sqlite");
    char value[16];
    CHECK_OK(adli_store_get(store, "key", value, sizeof value));
    CHECK_STR(value, "");
    CHECK_INT(adli_store_look(store).last_event, 0);
    CHECK_INT(adli_store_look(store).failed_commits, 1);
    adli_store_begin(store);
    adli_store_set(store, "key", "value");
    adli_store_rollback(store);
    CHECK_OK(adli_store_get(store, "key", value, sizeof value));
    CHECK_STR(value, "");
    CHECK_INT(job_count(store), 1);
    adli_store_close(store);
    remove_dir();
}

static void count_sample(void *user, const adli_store_sample *sample)
{
    ++*(int *)user;
    CHECK_NEAR(sample->batch_size, 64, 0);
    CHECK(isnan(sample->goodput));
}

TEST(logs_are_kept_in_numbers)
{
    adli_store *store;
    REQUIRE(make_dir());
    REQUIRE_OK(adli_store_open(path, &store));
    REQUIRE_OK(add(store, "u-1", "one"));
    REQUIRE_OK(add(store, "u-2", "two"));
    adli_store_sample sample = {.phase = 2, .replicas = 1, .batch_size = 64, .goodput = NAN};
    adli_store_begin(store);
    for (int i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof text, "{\"n\":%d}", i);
        adli_store_event(store, i, "Test", i % 2 ? "default/one" : "", "text", "\"more\":1");
        adli_store_decision(store, "u-1", i, text);
        adli_store_decision(store, "u-2", i, text);
        adli_store_add_sample(store, "u-1", &sample);
        adli_store_round(store, i, i, 0.1, 2, 0);
    }
    adli_store_prune(store, &(adli_store_limits){10, 10, 5, 7});
    REQUIRE_OK(adli_store_commit(store));
    adli_buf out;
    adli_buf_init(&out, 1 << 20);
    int64_t seq = 0;
    CHECK_OK(adli_store_events(store, "", 3, &seq, &out));
    CHECK_INT(seq, 43);
    CHECK(strstr(out.data, "{\"seq\":41,\"time\":40,\"type\":\"Test\",\"job\":null,\"message\":"
                           "\"text\",\"more\":1}\n"));
    CHECK_OK(adli_store_events(store, "default/one", 100, &seq, &out));
    CHECK_INT(seq, 50);
    adli_buf_clear(&out);
    CHECK_OK(adli_store_decisions(store, "u-1", 100, &out));
    CHECK_STR(out.data, "{\"n\":49},{\"n\":48},{\"n\":47},{\"n\":46},{\"n\":45}");
    adli_buf_clear(&out);
    CHECK_OK(adli_store_decisions(store, NULL, 3, &out));
    CHECK_STR(out.data, "{\"n\":49},{\"n\":49},{\"n\":48}");
    int samples = 0;
    CHECK_OK(adli_store_samples(store, "u-1", count_sample, &samples));
    CHECK_INT(samples, 7);
    adli_store_begin(store);
    adli_store_remove_job(store, "u-1");
    REQUIRE_OK(adli_store_commit(store));
    adli_buf_clear(&out);
    CHECK_OK(adli_store_decisions(store, "u-1", 3, &out));
    CHECK_INT(out.length, 0);
    adli_buf_fini(&out);
    adli_store_close(store);
    /* numbers go on after a restart, even when all events were pruned */
    REQUIRE_OK(adli_store_open(path, &store));
    CHECK_INT(adli_store_look(store).last_event, 50);
    CHECK_INT(adli_store_look(store).last_round, 49);
    adli_store_close(store);
    remove_dir();
}

static void put_file(const char *name, const void *data, size_t length)
{
    FILE *file = fopen(name, "w");
    fwrite(data, 1, length, file);
    fclose(file);
}

static size_t get_file(const char *name, char *data, size_t size)
{
    FILE *file = fopen(name, "r");
    size_t got = file ? fread(data, 1, size, file) : 0;
    if (file)
        fclose(file);
    return got;
}

static void run_sql(const char *sql)
{
    sqlite3 *db;
    CHECK_INT(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

TEST(files_that_are_not_ours_are_left_alone)
{
    adli_store *store;
    static char before[1 << 20], after[1 << 20];
    REQUIRE(make_dir());
    put_file(path, "this is no database, but somebody's diary, and longer than a header is\n", 70);
    CHECK_FAILS(adli_store_open(path, &store), ADL_ECORRUPT, path);
    CHECK(store == NULL);
    CHECK_INT(get_file(path, after, sizeof after), 70);
    remove(path);
    run_sql("CREATE TABLE music(title TEXT)");
    size_t length = get_file(path, before, sizeof before);
    CHECK_FAILS(adli_store_open(path, &store), ADL_ECORRUPT, "not a scheduler's");
    CHECK_INT(get_file(path, after, sizeof after), length);
    CHECK(memcmp(before, after, length) == 0);
    remove(path);
    REQUIRE_OK(adli_store_open(path, &store));
    adli_store_close(store);
    run_sql("PRAGMA user_version=1000");
    CHECK_FAILS(adli_store_open(path, &store), ADL_ECORRUPT, "of version 1000");
    CHECK_FAILS(adli_store_open("/nonexistent/jobs.sqlite", &store), ADL_ENOENT, "/nonexistent");
    CHECK_FAILS(adli_store_open("/", &store), ADL_EIO, "/");
    remove_dir();
}

/* Pages in the middle are damaged: said at once, not found out later. */
TEST(damage_is_found)
{
    adli_store *store;
    REQUIRE(make_dir());
    REQUIRE_OK(adli_store_open(path, &store));
    for (int i = 0; i < 200; i++) {
        char uid[16];
        snprintf(uid, sizeof uid, "u-%d", i);
        REQUIRE_OK(add(store, uid, uid));
    }
    adli_store_close(store);
    int fd = open(path, O_RDWR);
    off_t size = lseek(fd, 0, SEEK_END);
    int refused = 0, tried = 0;
    for (off_t at = 4096; at < size; at += 4096, tried++) {
        char page[64], garbage[64];
        memset(garbage, 0xa5, sizeof garbage);
        REQUIRE(pread(fd, page, sizeof page, at) == sizeof page);
        REQUIRE(pwrite(fd, garbage, sizeof garbage, at) == sizeof garbage);
        adl_status status = adli_store_open(path, &store);
        refused += status == ADL_ECORRUPT && strstr(adl_error(), path) != NULL;
        adli_store_close(store);
        REQUIRE(pwrite(fd, page, sizeof page, at) == sizeof page);
    }
    close(fd);
    CHECK_INT(refused, tried);
    CHECK(tried > 5);
    REQUIRE_OK(adli_store_open(path, &store));
    CHECK_INT(job_count(store), 200);
    adli_store_close(store);
    remove_dir();
}

enum { KILL_JOBS = 12 };

/* Adds jobs until it is killed; says on the pipe which were answered for. */
static void add_until_killed(int fd, adli_store_fault_kind kind, int64_t nth)
{
    adli_store *store;
    adli_store_fault(kind, nth, 1);
    if (adli_store_open(path, &store) != ADL_OK)
        _exit(1);
    for (int i = 0; i < KILL_JOBS; i++) {
        char uid[16];
        snprintf(uid, sizeof uid, "u-%d", i);
        if (add(store, uid, uid) == ADL_OK && write(fd, "j", 1) != 1)
            _exit(2);
    }
    adli_store_close(store);
    _exit(0);
}

/* Whatever the moment: what was answered for is there, nothing is half there. */
TEST(killed_at_every_write)
{
    int points = 0, lost_answers = 0;
    bool killed = true;
    for (int64_t nth = 1; killed && !adlt_failed; nth++, points++) {
        int fds[2], status, answered = 0;
        char byte;
        REQUIRE(make_dir() && pipe(fds) == 0);
        pid_t child = fork();
        if (child == 0)
            add_until_killed(fds[1], nth % 2 ? ADLI_FAULT_KILL : ADLI_FAULT_TORN, nth);
        close(fds[1]);
        while (read(fds[0], &byte, 1) == 1)
            answered++;
        close(fds[0]);
        REQUIRE(waitpid(child, &status, 0) == child);
        killed = WIFSIGNALED(status);
        CHECK(killed || WEXITSTATUS(status) == 0);
        adli_store *store;
        REQUIRE_OK(adli_store_open(path, &store));
        int there = job_count(store);
        CHECK(there == answered || there == answered + 1);
        lost_answers += there > answered;
        adli_store_close(store);
        remove_dir();
    }
    CHECK(points > 50);
    printf("info - killed at %d writes; %d times the job was there and the answer was not\n",
           points, lost_answers);
}

/* Every operation fails in turn, once: refused or done, never in between. */
TEST(every_write_may_fail)
{
    int refused = 0;
    adli_store_fault(ADLI_FAULT_NONE, 0, 0);
    for (int64_t nth = 1; !adlt_failed; nth++) {
        adli_store *store;
        REQUIRE(make_dir());
        REQUIRE_OK(adli_store_open(path, &store));
        int64_t before = adli_store_operations();
        adli_store_fault(nth % 2 ? ADLI_FAULT_EIO : ADLI_FAULT_FULL, nth, 1);
        int answered = 0;
        for (int i = 0; i < KILL_JOBS; i++) {
            char uid[16];
            snprintf(uid, sizeof uid, "u-%d", i);
            adl_status status = add(store, uid, uid);
            CHECK(status == ADL_OK || status == ADL_EIO);
            answered += status == ADL_OK;
            refused += status != ADL_OK;
            CHECK_INT(job_count(store), answered);
        }
        bool past = adli_store_operations() - before < nth;
        adli_store_fault(ADLI_FAULT_NONE, 0, 0);
        adli_store_close(store);
        REQUIRE_OK(adli_store_open(path, &store));
        CHECK_INT(job_count(store), answered);
        adli_store_close(store);
        remove_dir();
        if (past)
            break;
    }
    CHECK(refused > 10);
    printf("info - %d commits were refused\n", refused);
}

static void *read_often(void *user)
{
    adli_store *store = user;
    adli_buf out;
    adli_buf_init(&out, 16 << 20);
    for (int i = 0; i < 200; i++) {
        int64_t seq = 0;
        adli_buf_clear(&out);
        CHECK_OK(adli_store_events(store, "", 100, &seq, &out));
        job_count(store);
    }
    adli_buf_fini(&out);
    return NULL;
}

static void *write_often(void *user)
{
    adli_store *store = user;
    for (int i = 0; i < 50; i++) {
        adli_store_begin(store);
        adli_store_event(store, i, "Test", "", "", "");
        CHECK_OK(adli_store_commit(store));
    }
    return NULL;
}

TEST(readers_and_writers_together)
{
    adli_store *store;
    pthread_t threads[4];
    REQUIRE(make_dir());
    REQUIRE_OK(adli_store_open(path, &store));
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, i % 2 ? read_often : write_often, store);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(adli_store_look(store).last_event, 100);
    adli_store_close(store);
    remove_dir();
}
