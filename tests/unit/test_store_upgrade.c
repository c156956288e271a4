/* Databases of earlier versions are upgraded, with what is in them, and only beside a copy of them as they were. */
#include "harness.h"

#include "base/dirs.h"
#include "store/store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEWEST = 3 };

/* What version 1 and 2 of the scheduler made: written down here, because the store's own scripts are what is tested. */
static const char VERSION_1[] =
    "CREATE TABLE jobs("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, ns TEXT NOT NULL,"
    " name TEXT NOT NULL, spec TEXT NOT NULL, token TEXT NOT NULL, secret TEXT NOT NULL,"
    " created_s REAL NOT NULL, phase INTEGER NOT NULL DEFAULT 0, grp INTEGER NOT NULL DEFAULT 0,"
    " failures INTEGER NOT NULL DEFAULT 0, killed INTEGER NOT NULL DEFAULT 0,"
    " deleted INTEGER NOT NULL DEFAULT 0, group_started_s REAL NOT NULL DEFAULT 0,"
    " stop_since_s REAL NOT NULL DEFAULT 0, retry_at_s REAL NOT NULL DEFAULT 0,"
    " wanted TEXT NOT NULL DEFAULT '[]', placed TEXT NOT NULL DEFAULT '[]',"
    " started_s REAL NOT NULL DEFAULT 0, completed_s REAL NOT NULL DEFAULT 0,"
    " reason TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT '',"
    " last_change_s REAL NOT NULL DEFAULT 0, accounted_s REAL NOT NULL DEFAULT 0,"
    " attained_s REAL NOT NULL DEFAULT 0, run_s REAL NOT NULL DEFAULT 0,"
    " active_sum REAL NOT NULL DEFAULT 0, active_weight REAL NOT NULL DEFAULT 0,"
    " hints TEXT NOT NULL DEFAULT '', restart_cost_s REAL NOT NULL DEFAULT 0,"
    " UNIQUE(ns, name));"
    "CREATE TABLE drained(node TEXT PRIMARY KEY) WITHOUT ROWID;"
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL,"
    " type TEXT NOT NULL, job TEXT NOT NULL, message TEXT NOT NULL, fields TEXT NOT NULL);"
    "CREATE INDEX events_by_job ON events(job, seq);"
    "CREATE TABLE rounds(round INTEGER PRIMARY KEY, time_s REAL NOT NULL, duration_s REAL NOT NULL,"
    " jobs INTEGER NOT NULL, changed INTEGER NOT NULL);"
    "CREATE TABLE decisions(seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    " uid TEXT NOT NULL REFERENCES jobs(uid) ON DELETE CASCADE,"
    " round INTEGER NOT NULL, text TEXT NOT NULL);"
    "CREATE INDEX decisions_by_job ON decisions(uid, seq);"
    "CREATE TABLE samples(seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    " uid TEXT NOT NULL REFERENCES jobs(uid) ON DELETE CASCADE, time_s REAL NOT NULL,"
    " phase INTEGER NOT NULL, replicas INTEGER NOT NULL, batch_size REAL, throughput REAL,"
    " efficiency REAL, goodput REAL, progress REAL);"
    "CREATE INDEX samples_by_job ON samples(uid, seq);";
static const char VERSION_2[] =
    "CREATE TABLE reports(uid TEXT NOT NULL REFERENCES jobs(uid) ON DELETE CASCADE,"
    " name TEXT NOT NULL, step INTEGER NOT NULL, time_s REAL NOT NULL, value REAL,"
    " PRIMARY KEY(uid, name, step)) WITHOUT ROWID;"
    "ALTER TABLE jobs ADD COLUMN reports_restart INTEGER NOT NULL DEFAULT -1;";
static const char ROWS[] =
    "INSERT INTO jobs(uid, ns, name, spec, token, secret, created_s, phase, grp, placed, hints,"
    " attained_s) VALUES('u-1', 'default', 'one', '{\"a\":1}', 't', 's', 1234.5, 2, 7, '[\"m\"]',"
    " '{\"h\":2}', 8.25), ('u-2', 'other', 'two', '{\"b\":2}', 't2', 's2', 1235, 0, 0, '[]', '', "
    "0);"
    "INSERT INTO drained VALUES('node-1');"
    "INSERT INTO meta VALUES('key', 'value');"
    "INSERT INTO events VALUES(41, 1, 'JobCreated', 'default/one', 'submitted', '{}');"
    "INSERT INTO rounds VALUES(17, 1, 1, 2, 1);";

static char dir[64], path[96], old[112];

static void run_sql(const char *sql)
{
    sqlite3 *db;
    CHECK_INT(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    CHECK_INT(sqlite3_close(db), SQLITE_OK);
}

static bool make_database(int version)
{
    char seal[128];
    strcpy(dir, "/tmp/adl-upgrade-XXXXXX");
    if (!mkdtemp(dir))
        return false;
    snprintf(path, sizeof path, "%s/jobs.sqlite", dir);
    snprintf(old, sizeof old, "%s.v%d", path, version);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    run_sql("PRAGMA journal_mode=WAL");
    run_sql(VERSION_1);
    if (version == 2)
        run_sql(VERSION_2);
    run_sql(ROWS);
    snprintf(seal, sizeof seal, "PRAGMA application_id=%d; PRAGMA user_version=%d", 0x41444c31,
             version);
    run_sql(seal);
    return true;
}

static int put_row(void *user, int count, char **values, char **names)
{
    (void)names;
    for (int i = 0; i < count; i++)
        adli_buf_printf(user, "%s|", values[i] ? values[i] : "");
    adli_buf_puts(user, "\n");
    return 0;
}

/* The version, the schema and the jobs that are in the file. */
static adli_buf dump(const char *file)
{
    static const char *const questions[] = {
        "PRAGMA user_version", "SELECT type, name, sql FROM sqlite_master ORDER BY type, name",
        "SELECT * FROM jobs ORDER BY seq", "SELECT * FROM events", "PRAGMA integrity_check"};
    adli_buf out;
    sqlite3 *db;
    adli_buf_init(&out, 1 << 20);
    CHECK_INT(sqlite3_open_v2(file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++)
        CHECK_INT(sqlite3_exec(db, questions[i], put_row, &out, NULL), SQLITE_OK);
    sqlite3_close(db);
    return out;
}

static adl_status check_job(void *user, const adli_store_job *job)
{
    if (++*(int *)user == 2) {
        CHECK_STR(job->uid, "u-2");
        return ADL_OK;
    }
    CHECK_STR(job->uid, "u-1");
    CHECK_STR(job->name, "one");
    CHECK_STR(job->spec, "{\"a\":1}");
    CHECK_STR(job->token, "t");
    CHECK_STR(job->placed, "[\"m\"]");
    CHECK_STR(job->hints, "{\"h\":2}");
    CHECK_NEAR(job->created_s, 1234.5, 0);
    CHECK_NEAR(job->account.attained_s, 8.25, 0);
    CHECK_INT(job->phase, 2);
    CHECK_INT(job->group, 7);
    return ADL_OK;
}

static void check_store(adli_store *store)
{
    char value[16];
    int count = 0;
    CHECK_OK(adli_store_jobs(store, check_job, &count));
    CHECK_INT(count, 2);
    CHECK_OK(adli_store_get(store, "key", value, sizeof value));
    CHECK_STR(value, "value");
    CHECK_INT(adli_store_look(store).last_event, 41);
    CHECK_INT(adli_store_look(store).last_round, 17);
    adli_store_job job = {.uid = "u-1", .phase = 3, .group = 8};
    adli_store_begin(store);
    adli_store_save_job(store, &job);
    CHECK_OK(adli_store_commit(store));
}

/* Is the file as it was? */
static void check_same(const char *file, adli_buf *before)
{
    adli_buf now = dump(file);
    CHECK_STR(now.data, before->data);
    adli_buf_fini(&now);
}

static void upgrade_from(int version)
{
    adli_store *store;
    struct stat info;
    char wanted[16];
    REQUIRE(make_database(version));
    adli_buf before = dump(path);
    REQUIRE_OK(adli_store_open(path, &store));
    check_store(store);
    adli_store_close(store);
    CHECK(stat(old, &info) == 0 && (info.st_mode & 0777) == 0600); /* tokens are in it */
    check_same(old, &before);
    adli_buf after = dump(path);
    snprintf(wanted, sizeof wanted, "%d|\n", NEWEST);
    CHECK(strncmp(after.data, wanted, strlen(wanted)) == 0);
    CHECK(remove(old) == 0);
    REQUIRE_OK(adli_store_open(path, &store)); /* nothing is left to upgrade */
    adli_store_close(store);
    CHECK(access(old, F_OK) != 0);
    adli_buf_fini(&before);
    adli_buf_fini(&after);
    adli_dirs_remove(AT_FDCWD, dir);
}

TEST(a_database_of_version_1_is_upgraded)
{
    upgrade_from(1);
}

TEST(a_database_of_version_2_is_upgraded)
{
    upgrade_from(2);
}

/* The last of a script's statements fails: none of them holds, and the copy is there as well. */
TEST(an_upgrade_that_fails_leaves_the_old_database)
{
    adli_store *store;
    REQUIRE(make_database(2));
    run_sql("ALTER TABLE jobs ADD COLUMN pin TEXT NOT NULL DEFAULT 'somebody was here'");
    adli_buf before = dump(path);
    for (int i = 0; i < 2; i++) { /* again: the copy of the first time is in nobody's way */
        CHECK_FAILS(adli_store_open(path, &store), ADL_EIO, "duplicate column name: pin");
        CHECK(!store);
        check_same(path, &before);
        check_same(old, &before);
    }
    run_sql("ALTER TABLE jobs DROP COLUMN pin");
    REQUIRE_OK(adli_store_open(path, &store));
    check_store(store);
    adli_store_close(store);
    adli_buf_fini(&before);
    adli_dirs_remove(AT_FDCWD, dir);
}

TEST(without_a_copy_there_is_no_upgrade)
{
    adli_store *store;
    REQUIRE(make_database(1));
    REQUIRE(mkdir(old, 0700) == 0);
    adli_buf before = dump(path);
    CHECK_FAILS(adli_store_open(path, &store), ADL_EIO, old);
    CHECK(!store);
    check_same(path, &before);
    adli_buf_fini(&before);
    adli_dirs_remove(AT_FDCWD, dir);
}
