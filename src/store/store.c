/* The connections, the schema, transactions. WAL with synchronous=FULL: a commit that was answered
 * survives loss of power, and readers do not wait for it. */
#include "store/store_impl.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUSY_MS = 10000, APPLICATION_ID = 0x41444c31 /* "ADL1" */ };

/* Version n of the schema is what the first n scripts make. A script is never changed once released. */
static const char *const migrations[] = {
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
    "CREATE INDEX samples_by_job ON samples(uid, seq);",
    "CREATE TABLE reports(uid TEXT NOT NULL REFERENCES jobs(uid) ON DELETE CASCADE,"
    " name TEXT NOT NULL, step INTEGER NOT NULL, time_s REAL NOT NULL, value REAL,"
    " PRIMARY KEY(uid, name, step)) WITHOUT ROWID;"
    "ALTER TABLE jobs ADD COLUMN reports_restart INTEGER NOT NULL DEFAULT -1;",
    "ALTER TABLE jobs ADD COLUMN world TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN resized TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN resize_cost_s REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN pin INTEGER NOT NULL DEFAULT 0;",
};

adl_status adli_store_failed(const adli_store *store, sqlite3 *db, const char *what)
{
    int code = sqlite3_errcode(db) & 0xff;
    adl_status status = code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ADL_ECORRUPT
                        : code == SQLITE_NOMEM                          ? ADL_ENOMEM
                                                                        : ADL_EIO;
    int system = sqlite3_system_errno(db);
    return adli_fail(status, "%s: %s: %s%s%s", store->path, what, sqlite3_errmsg(db),
                     system ? ", " : "", system ? strerror(system) : "");
}

static adl_status execute(adli_store *store, sqlite3 *db, const char *sql, const char *what)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return adli_store_failed(store, db, what);
    return ADL_OK;
}

static adl_status ask_number(adli_store *store, sqlite3 *db, const char *sql, int64_t *out)
{
    sqlite3_stmt *stmt = NULL;
    adl_status status = ADL_OK;
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_ROW)
        status = adli_store_failed(store, db, sql);
    else
        *out = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return status;
}

static adl_status check_sound(adli_store *store)
{
    sqlite3_stmt *stmt = NULL;
    adl_status status = ADL_OK;
    if (sqlite3_prepare_v2(store->writer, "PRAGMA quick_check(1)", -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_ROW)
        status = adli_store_failed(store, store->writer, "check");
    else if (strcmp(adli_store_column(stmt, 0), "ok") != 0)
        status =
            adli_fail(ADL_ECORRUPT, "%s: damaged: %.150s", store->path, adli_store_column(stmt, 0));
    sqlite3_finalize(stmt);
    return status;
}

adl_status adli_store_check_ours(adli_store *store, int64_t *version)
{
    int64_t tables = 0, id = 0;
    sqlite3 *db = store->writer;
    adl_status status = ask_number(store, db, "SELECT count(*) FROM sqlite_master", &tables);
    if (status == ADL_OK)
        status = ask_number(store, db, "PRAGMA application_id", &id);
    if (status == ADL_OK)
        status = ask_number(store, db, "PRAGMA user_version", version);
    if (status != ADL_OK)
        return status;
    if (id != APPLICATION_ID && (tables > 0 || id != 0 || *version != 0))
        return adli_fail(ADL_ECORRUPT, "%s: a database, but not a scheduler's", store->path);
    if (*version < 0 || *version > (int64_t)ADLI_COUNT(migrations))
        return adli_fail(
            ADL_ECORRUPT,
            "%s: of version %lld, this program knows versions up to %zu; use a newer one",
            store->path, (long long)*version, ADLI_COUNT(migrations));
    return *version > 0 ? check_sound(store) : ADL_OK;
}

static adl_status migrate(adli_store *store, int64_t version)
{
    adl_status status = ADL_OK;
    for (size_t v = (size_t)version; status == ADL_OK && v < ADLI_COUNT(migrations); v++) {
        char seal[128];
        snprintf(seal, sizeof seal, "PRAGMA application_id=%d; PRAGMA user_version=%zu",
                 APPLICATION_ID, v + 1);
        status = execute(store, store->writer, "BEGIN EXCLUSIVE", "begin");
        if (status == ADL_OK)
            status = execute(store, store->writer, migrations[v], "schema");
        if (status == ADL_OK)
            status = execute(store, store->writer, seal, "schema version");
        if (status == ADL_OK)
            status = execute(store, store->writer, "COMMIT", "commit of the schema");
        if (status != ADL_OK)
            sqlite3_exec(store->writer, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

/* A schema of an older version is changed only when a copy of the file as it was lies beside it. */
static adl_status keep_old(adli_store *store, int64_t version)
{
    char old[PATH_MAX];
    if (version == 0 || version == (int64_t)ADLI_COUNT(migrations))
        return ADL_OK;
    if (snprintf(old, sizeof old, "%s.v%lld", store->path, (long long)version) >= (int)sizeof old)
        return adli_fail(ADL_EINVAL, "%s: the name is too long", store->path);
    adl_status status = adli_store_backup(store->path, old, true);
    if (status == ADL_OK)
        adli_say(ADL_LOG_INFO, "%s: is upgraded from version %lld; as it was: %s", store->path,
                 (long long)version, old);
    return status;
}

static adl_status open_db(adli_store *store, int flags, sqlite3 **db)
{
    int code = sqlite3_open_v2(store->path, db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
                               adli_store_vfs());
    if (!*db)
        return adli_fail_memory("database");
    if (code != SQLITE_OK)
        return adli_store_failed(store, *db, "open");
    sqlite3_extended_result_codes(*db, 1);
    sqlite3_busy_timeout(*db, BUSY_MS);
    return ADL_OK;
}

static adl_status open_all(adli_store *store)
{
    int64_t version = 0;
    adl_status status = open_db(store, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &store->writer);
    if (status == ADL_OK && sqlite3_db_readonly(store->writer, "main") == 1)
        status = adli_fail(ADL_EIO, "%s: cannot be written", store->path);
    if (status == ADL_OK)
        status = adli_store_check_ours(store, &version);
    if (status == ADL_OK)
        status = execute(store, store->writer,
                         "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
                         "PRAGMA cache_size=-32768; PRAGMA wal_autocheckpoint=500; PRAGMA "
                         "journal_size_limit=16777216",
                         "settings");
    if (status == ADL_OK)
        status = keep_old(store, version);
    if (status == ADL_OK)
        status = migrate(store, version);
    if (status == ADL_OK)
        status = open_db(store, SQLITE_OPEN_READONLY, &store->reader);
    if (status == ADL_OK)
        status =
            ask_number(store, store->writer,
                       "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name='events'),0)",
                       &store->stats.last_event);
    if (status == ADL_OK)
        status = ask_number(store, store->writer, "SELECT coalesce(max(round),0) FROM rounds",
                            &store->stats.last_round);
    return status;
}

/* Tokens are in it: for its owner only. SQLite gives its other files the same mode. Closed before SQLite
 * opens it, since closing any descriptor of a file drops the process's locks on it. */
static adl_status create_private(adli_store *store)
{
    struct stat info;
    int fd;
    adl_status status = adli_dirs_open(store->path, O_RDWR | O_CREAT, 0600, &fd);
    if (status != ADL_OK)
        return status;
    if (fstat(fd, &info) == 0) {
        store->device = info.st_dev;
        store->inode = info.st_ino;
    }
    close(fd);
    return ADL_OK;
}

adl_status adli_store_open(const char *path, adli_store **out)
{
    *out = NULL;
    adli_store *store = adli_calloc(1, sizeof *store);
    if (!store)
        return adli_fail_memory("store");
    pthread_mutex_init(&store->write_lock, NULL);
    pthread_mutex_init(&store->read_lock, NULL);
    pthread_mutex_init(&store->stats_lock, NULL);
    store->path = adli_strdup(path);
    adl_status status = store->path ? create_private(store) : adli_fail_memory("store");
    if (status == ADL_OK)
        status = open_all(store);
    if (status != ADL_OK) {
        adli_store_close(store);
        store = NULL;
    }
    *out = store;
    return status;
}

void adli_store_close(adli_store *store)
{
    if (!store)
        return;
    for (int i = 0; i < STMT_COUNT; i++)
        sqlite3_finalize(store->stmts[i]);
    sqlite3_close(store->reader);
    sqlite3_close(store->writer);
    pthread_mutex_destroy(&store->stats_lock);
    pthread_mutex_destroy(&store->read_lock);
    pthread_mutex_destroy(&store->write_lock);
    free(store->path);
    free(store);
}

static void remember(adli_store *store, adl_status status)
{
    if (store->failed != ADL_OK)
        return;
    store->failed = status;
    snprintf(store->failure, sizeof store->failure, "%s", adl_error());
}

void adli_store_begin(adli_store *store)
{
    pthread_mutex_lock(&store->write_lock);
    store->failed = ADL_OK;
    store->new_event = store->new_round = 0;
    adl_status status = execute(store, store->writer, "BEGIN IMMEDIATE", "begin");
    if (status != ADL_OK)
        remember(store, status);
}

static void end(adli_store *store, bool committed, double took_s)
{
    pthread_mutex_lock(&store->stats_lock);
    adli_store_stats *stats = &store->stats;
    if (committed) {
        stats->commits++;
        stats->commit_s += took_s;
        if (store->new_event)
            stats->last_event = store->new_event;
        if (store->new_round)
            stats->last_round = store->new_round;
    } else
        stats->failed_commits++;
    pthread_mutex_unlock(&store->stats_lock);
    pthread_mutex_unlock(&store->write_lock);
}

adl_status adli_store_commit(adli_store *store)
{
    double from_s = adli_monotonic_s();
    adl_status status = store->failed;
    if (status == ADL_OK)
        status = execute(store, store->writer, "COMMIT", "commit");
    else
        adli_fail(status, "%s", store->failure);
    if (status != ADL_OK && !sqlite3_get_autocommit(store->writer))
        sqlite3_exec(store->writer, "ROLLBACK", NULL, NULL, NULL);
    end(store, status == ADL_OK, adli_monotonic_s() - from_s);
    return status;
}

void adli_store_rollback(adli_store *store)
{
    if (!sqlite3_get_autocommit(store->writer))
        sqlite3_exec(store->writer, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&store->write_lock);
}

sqlite3_stmt *adli_store_stmt(adli_store *store, adli_stmt which)
{
    if (store->failed != ADL_OK)
        return NULL;
    sqlite3_stmt **stmt = &store->stmts[which];
    if (!*stmt && sqlite3_prepare_v3(store->writer, adli_store_sql[which], -1,
                                     SQLITE_PREPARE_PERSISTENT, stmt, NULL) != SQLITE_OK)
        remember(store, adli_store_failed(store, store->writer, adli_store_sql[which]));
    return *stmt;
}

void adli_store_run(adli_store *store, sqlite3_stmt *stmt)
{
    if (!stmt)
        return;
    if (sqlite3_step(stmt) != SQLITE_DONE)
        remember(store, adli_store_failed(store, store->writer, "write"));
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

sqlite3_stmt *adli_store_ask(adli_store *store, const char *sql, adl_status *status)
{
    sqlite3_stmt *stmt = NULL;
    *status = ADL_OK;
    if (sqlite3_prepare_v2(store->reader, sql, -1, &stmt, NULL) != SQLITE_OK)
        *status = adli_store_failed(store, store->reader, sql);
    return stmt;
}

void adli_store_text(sqlite3_stmt *stmt, int at, const char *text)
{
    if (stmt)
        sqlite3_bind_text(stmt, at, text ? text : "", -1, SQLITE_STATIC);
}

const char *adli_store_column(sqlite3_stmt *stmt, int at)
{
    const char *text = (const char *)sqlite3_column_text(stmt, at);
    return text ? text : "";
}

adli_store_stats adli_store_look(adli_store *store)
{
    pthread_mutex_lock(&store->stats_lock);
    adli_store_stats stats = store->stats;
    pthread_mutex_unlock(&store->stats_lock);
    return stats;
}
