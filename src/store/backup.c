/* Copies of the database: while it is in use, back again, and out of a file that was deleted under us. SQLite's
 * own online backup does the copying, so that a copy is always one state of the whole. */
#include "store/store_impl.h"

#include "base/dirs.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES_A_STEP = 256, BUSY_TRIES = 1000, BUSY_PAUSE_MS = 20 };

static adl_status failed(const char *path, sqlite3 *db, const char *what)
{
    return adli_fail(ADL_EIO, "%s: %s: %s", path, what, db ? sqlite3_errmsg(db) : "no memory");
}

/* Into a file of our own that must not exist yet. */
static adl_status copy_to(sqlite3 *from, const char *to)
{
    sqlite3 *db = NULL;
    int fd, code = SQLITE_OK, tries = 0;
    adl_status status = adli_dirs_open(to, O_RDWR | O_CREAT | O_EXCL, 0600, &fd);
    if (status != ADL_OK)
        return status;
    close(fd);
    /* Without NOFOLLOW, which refuses a link anywhere in the name: the file itself is one that we made. */
    if (sqlite3_open_v2(to, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        status = failed(to, db, "open");
    sqlite3_backup *backup =
        status == ADL_OK ? sqlite3_backup_init(db, "main", from, "main") : NULL;
    if (status == ADL_OK && !backup)
        status = failed(to, db, "copy");
    while (status == ADL_OK && code != SQLITE_DONE && tries < BUSY_TRIES) {
        code = sqlite3_backup_step(backup, PAGES_A_STEP);
        if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
            sqlite3_sleep(BUSY_PAUSE_MS);
            tries++;
        } else if (code != SQLITE_OK && code != SQLITE_DONE) {
            break;
        }
    }
    sqlite3_backup_finish(backup);
    if (status == ADL_OK && code != SQLITE_DONE)
        status = failed(to, db, "copy");
    /* A single file, without a log beside it. */
    if (status == ADL_OK &&
        sqlite3_exec(db, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL) != SQLITE_OK)
        status = failed(to, db, "settings");
    sqlite3_close(db);
    if (status != ADL_OK)
        unlink(to);
    return status;
}

/* Copies beside `to` first, so that `to` is whole or not there. */
static adl_status replace_by_copy(sqlite3 *from, const char *to)
{
    char beside[PATH_MAX];
    if (snprintf(beside, sizeof beside, "%s.partial", to) >= (int)sizeof beside)
        return adli_fail(ADL_EINVAL, "%s: the name is too long", to);
    unlink(beside);
    adl_status status = copy_to(from, beside);
    if (status == ADL_OK && rename(beside, to) != 0) {
        status = adli_fail(ADL_EIO, "%s: %s", to, strerror(errno));
        unlink(beside);
    }
    return status;
}

/* Opens a database of ours that is sound, to read from it. */
static adl_status open_sound(const char *path, adli_store *store)
{
    int64_t version = 0;
    struct stat info;
    if (stat(path, &info) != 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", path, strerror(errno));
    *store = (adli_store){.path = (char *)path};
    if (sqlite3_open_v2(path, &store->writer, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        return failed(path, store->writer, "open");
    adl_status status = adli_store_check_ours(store, &version);
    if (status == ADL_OK && version == 0)
        status = adli_fail(ADL_ECORRUPT, "%s: an empty database", path);
    return status;
}

adl_status adli_store_backup(const char *path, const char *to, bool overwrite)
{
    adli_store from = {0};
    struct stat info;
    if (!overwrite && lstat(to, &info) == 0)
        return adli_fail(ADL_ESTATE, "%s: exists already", to);
    adl_status status = open_sound(path, &from);
    if (status == ADL_OK)
        status = replace_by_copy(from.writer, to);
    sqlite3_close(from.writer);
    return status;
}

/* The database with its log, under another name. */
static adl_status set_aside(const char *path, const char *aside)
{
    static const char *const parts[] = {"-wal", "-shm", ""};
    char from[PATH_MAX], to[PATH_MAX];
    if (access(path, F_OK) != 0)
        return ADL_OK;
    for (size_t i = 0; i < ADLI_COUNT(parts); i++) {
        if (snprintf(from, sizeof from, "%s%s", path, parts[i]) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s%s", aside, parts[i]) >= (int)sizeof to)
            return adli_fail(ADL_EINVAL, "%s: the name is too long", path);
        if (rename(from, to) == 0)
            continue;
        if (errno != ENOENT)
            return adli_fail(ADL_EIO, "%s: %s", from, strerror(errno));
        unlink(to); /* the log of an earlier one would be taken for this one's */
    }
    return ADL_OK;
}

adl_status adli_store_restore(const char *from, const char *path)
{
    adli_store source = {0};
    char fresh[PATH_MAX], aside[PATH_MAX];
    if (snprintf(fresh, sizeof fresh, "%s.restored", path) >= (int)sizeof fresh ||
        snprintf(aside, sizeof aside, "%s.before-restore", path) >= (int)sizeof aside)
        return adli_fail(ADL_EINVAL, "%s: the name is too long", path);
    adl_status status = open_sound(from, &source);
    if (status == ADL_OK)
        status = replace_by_copy(source.writer, fresh);
    sqlite3_close(source.writer);
    if (status == ADL_OK)
        status = set_aside(path, aside);
    if (status == ADL_OK && rename(fresh, path) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return status;
}

bool adli_store_present(const adli_store *store)
{
    struct stat info;
    if (lstat(store->path, &info) != 0)
        return errno != ENOENT;
    return info.st_ino == store->inode && info.st_dev == store->device;
}

adl_status adli_store_rescue(adli_store *store, const char *to)
{
    pthread_mutex_lock(&store->read_lock);
    adl_status status = replace_by_copy(store->reader, to);
    pthread_mutex_unlock(&store->read_lock);
    return status;
}

/* New pages go to the write-ahead log first, which is begun anew when they are in the database: it has room
 * beyond its end. On it, unlike the database, SQLite has no locks that closing our descriptor would drop. */
void adli_store_hold(adli_store *store, int64_t bytes)
{
    char path[4096 + 8];
    if (snprintf(path, sizeof path, "%s-wal", store->path) >= (int)sizeof path)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) != 0)
        errno = 0; /* it has what it has */
    close(fd);
}
