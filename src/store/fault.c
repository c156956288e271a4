/* Faults on purpose: a layer between SQLite and the file system that counts operations and makes chosen
 * ones fail, or kills the process there. It is in the way only after adli_store_fault was called. */
#include "store/store_impl.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct fault_file {
    sqlite3_file base;
    sqlite3_file *real; /* behind this struct */
} fault_file;

static sqlite3_vfs shim;
static sqlite3_vfs *below;
static atomic_int kind;
static atomic_llong first, last; /* operations that fail, counted from 1 */
static atomic_llong operations;

/* Only a write can be torn. */
static adli_store_fault_kind strike(bool writes)
{
    long long now = atomic_fetch_add(&operations, 1) + 1;
    adli_store_fault_kind what = (adli_store_fault_kind)atomic_load(&kind);
    if (what == ADLI_FAULT_NONE || now < atomic_load(&first) || now > atomic_load(&last))
        return ADLI_FAULT_NONE;
    if (what == ADLI_FAULT_KILL || (what == ADLI_FAULT_TORN && !writes))
        kill(getpid(), SIGKILL);
    return what;
}

#define REAL(file) (((fault_file *)(file))->real)

static int fault_write(sqlite3_file *file, const void *data, int length, sqlite3_int64 at)
{
    switch (strike(true)) {
    case ADLI_FAULT_TORN:
        REAL(file)->pMethods->xWrite(REAL(file), data, length / 2, at);
        kill(getpid(), SIGKILL);
        return SQLITE_IOERR_WRITE;
    case ADLI_FAULT_EIO:
        return SQLITE_IOERR_WRITE;
    case ADLI_FAULT_FULL:
        return SQLITE_FULL;
    default:
        return REAL(file)->pMethods->xWrite(REAL(file), data, length, at);
    }
}

static int fault_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return strike(false) ? SQLITE_IOERR_TRUNCATE
                         : REAL(file)->pMethods->xTruncate(REAL(file), size);
}

static int fault_sync(sqlite3_file *file, int flags)
{
    return strike(false) ? SQLITE_IOERR_FSYNC : REAL(file)->pMethods->xSync(REAL(file), flags);
}

static int fault_close(sqlite3_file *file)
{
    return REAL(file)->pMethods->xClose(REAL(file));
}

static int fault_read(sqlite3_file *file, void *data, int length, sqlite3_int64 at)
{
    return REAL(file)->pMethods->xRead(REAL(file), data, length, at);
}

static int fault_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return REAL(file)->pMethods->xFileSize(REAL(file), size);
}

static int fault_lock(sqlite3_file *file, int level)
{
    return REAL(file)->pMethods->xLock(REAL(file), level);
}

static int fault_unlock(sqlite3_file *file, int level)
{
    return REAL(file)->pMethods->xUnlock(REAL(file), level);
}

static int fault_reserved(sqlite3_file *file, int *out)
{
    return REAL(file)->pMethods->xCheckReservedLock(REAL(file), out);
}

static int fault_control(sqlite3_file *file, int op, void *argument)
{
    return REAL(file)->pMethods->xFileControl(REAL(file), op, argument);
}

static int fault_sector(sqlite3_file *file)
{
    return REAL(file)->pMethods->xSectorSize(REAL(file));
}

static int fault_traits(sqlite3_file *file)
{
    return REAL(file)->pMethods->xDeviceCharacteristics(REAL(file));
}

static int fault_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **out)
{
    return REAL(file)->pMethods->xShmMap(REAL(file), page, size, extend, out);
}

static int fault_shm_lock(sqlite3_file *file, int offset, int count, int flags)
{
    return REAL(file)->pMethods->xShmLock(REAL(file), offset, count, flags);
}

static void fault_shm_barrier(sqlite3_file *file)
{
    REAL(file)->pMethods->xShmBarrier(REAL(file));
}

static int fault_shm_unmap(sqlite3_file *file, int delete)
{
    return REAL(file)->pMethods->xShmUnmap(REAL(file), delete);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2, /* no xFetch: all I/O comes through here */
    .xClose = fault_close,
    .xRead = fault_read,
    .xWrite = fault_write,
    .xTruncate = fault_truncate,
    .xSync = fault_sync,
    .xFileSize = fault_size,
    .xLock = fault_lock,
    .xUnlock = fault_unlock,
    .xCheckReservedLock = fault_reserved,
    .xFileControl = fault_control,
    .xSectorSize = fault_sector,
    .xDeviceCharacteristics = fault_traits,
    .xShmMap = fault_shm_map,
    .xShmLock = fault_shm_lock,
    .xShmBarrier = fault_shm_barrier,
    .xShmUnmap = fault_shm_unmap,
};

static int fault_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out)
{
    (void)vfs;
    fault_file *ours = (fault_file *)file;
    ours->real = (sqlite3_file *)(ours + 1);
    int code = below->xOpen(below, name, ours->real, flags, out);
    if (code == SQLITE_OK)
        ours->base.pMethods = &methods;
    else
        ours->base.pMethods = NULL;
    return code;
}

static int fault_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs;
    return strike(false) ? SQLITE_IOERR_DELETE : below->xDelete(below, name, sync);
}

const char *adli_store_vfs(void)
{
    return below ? shim.zName : NULL;
}

void adli_store_fault(adli_store_fault_kind what, int64_t nth, int64_t count)
{
    if (!below) {
        below = sqlite3_vfs_find(NULL);
        shim = *below;
        shim.zName = "adl-fault";
        shim.szOsFile = (int)sizeof(fault_file) + below->szOsFile;
        shim.xOpen = fault_open;
        shim.xDelete = fault_delete;
        sqlite3_vfs_register(&shim, 0);
    }
    long long now = atomic_load(&operations);
    atomic_store(&kind, ADLI_FAULT_NONE);
    atomic_store(&first, now + nth);
    atomic_store(&last, count < INT64_MAX - now - nth ? now + nth + count - 1 : INT64_MAX);
    atomic_store(&kind, (int)what);
}

int64_t adli_store_operations(void)
{
    return atomic_load(&operations);
}
