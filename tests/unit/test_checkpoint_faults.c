/* A disk that says no: every file operation of a save fails in turn, with every error that disks and
 * networks give, once or for good. Whatever fails: the call says so, the last good checkpoint stays
 * loadable, and the next save works when the disk does. Then the same with a real full and a real
 * read-only file system. */
#include "harness.h"

#include "base/mem.h"
#include "checkpoint_fixture.h"
#include "train/checkpoint_store.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

static struct {
    int calls;   /* so far */
    int fail_at; /* this call fails, 0: none */
    bool stay;   /* and all later ones */
    int error;
    size_t most;      /* a write writes at most this much, 0: all */
    int interrupts;   /* this many writes fail with EINTR first */
    const char *last; /* the operation that failed */
} fault;

static bool faulty(const char *operation)
{
    fault.calls++;
    if (fault.fail_at &&
        (fault.stay ? fault.calls >= fault.fail_at : fault.calls == fault.fail_at)) {
        if (fault.calls == fault.fail_at)
            fault.last = operation;
        errno = fault.error;
        return true;
    }
    return false;
}

static int faulty_open(int dir, const char *name, int flags, unsigned mode)
{
    return faulty("open") ? -1 : adli_ckpt_system_io.open(dir, name, flags, mode);
}

static int faulty_mkdir(int dir, const char *name, unsigned mode)
{
    return faulty("mkdir") ? -1 : adli_ckpt_system_io.mkdir(dir, name, mode);
}

static bool interrupted(void)
{
    if (fault.interrupts <= 0)
        return false;
    fault.interrupts--;
    errno = EINTR;
    return true;
}

static ssize_t faulty_write(int fd, const void *data, size_t length)
{
    if (interrupted() || faulty("write"))
        return -1;
    return write(fd, data, fault.most && length > fault.most ? fault.most : length);
}

static ssize_t faulty_pwrite(int fd, const void *data, size_t length, off_t offset)
{
    if (interrupted() || faulty("pwrite"))
        return -1;
    return pwrite(fd, data, fault.most && length > fault.most ? fault.most : length, offset);
}

static int faulty_fsync(int fd)
{
    return faulty("fsync") ? -1 : fsync(fd);
}

static int faulty_close(int fd)
{
    bool fails = faulty("close");
    int saved = errno;
    close(fd); /* the descriptor is gone either way */
    errno = saved;
    return fails ? -1 : 0;
}

static int faulty_rename(int dir, const char *from, const char *to)
{
    return faulty("rename") ? -1 : adli_ckpt_system_io.rename(dir, from, to);
}

static int faulty_unlink(int dir, const char *name, int flags)
{
    return faulty("unlink") ? -1 : unlinkat(dir, name, flags);
}

static const adli_ckpt_io faulty_io = {faulty_open,   faulty_mkdir,  faulty_write,
                                       faulty_pwrite, faulty_fsync,  faulty_close,
                                       faulty_rename, faulty_unlink, NULL};

typedef struct pair {
    blob a, b;
} pair;

static adl_checkpoint *open_pair(const char *directory, pair *p, int level, log_lines *lines)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.keep_last = 1; /* so that a save removes something */
    options.compress_level = level;
    options.log = lines ? log_line : NULL;
    options.log_user = lines;
    adl_checkpoint *store;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        return NULL;
    if (adl_checkpoint_register(store, "a", &blob_functions, &p->a, NULL) != ADL_OK ||
        adl_checkpoint_register(store, "b", &blob_functions, &p->b, NULL) != ADL_OK) {
        adl_checkpoint_close(store);
        return NULL;
    }
    return store;
}

static void set_pair(pair *p, unsigned seed)
{
    blob_set(&p->a, 200 + seed, seed);
    blob_set(&p->b, 30000, seed);
}

/* The seed of what a fresh reader loads; 0 when it finds nothing or a mixture. */
static unsigned loads(const char *directory)
{
    adl_checkpoint_options options = ADL_CHECKPOINT_OPTIONS_INIT;
    options.is_writer = false;
    log_lines lines = {0};
    options.log = log_line;
    options.log_user = &lines;
    adl_checkpoint *store;
    pair p = {{0}, {0}};
    unsigned seed = 0;
    int loaded = 0;
    if (adl_checkpoint_open(directory, &options, &store) != ADL_OK)
        return 0;
    if (adl_checkpoint_register(store, "a", &blob_functions, &p.a, NULL) == ADL_OK &&
        adl_checkpoint_register(store, "b", &blob_functions, &p.b, NULL) == ADL_OK &&
        adl_checkpoint_load_all(store, &loaded, NULL) == ADL_OK && loaded == 2 && lines.count == 0)
        seed = (unsigned)(p.a.length - 200);
    if (seed && (!blob_is(&p.a, 200 + seed, seed) || !blob_is(&p.b, 30000, seed)))
        seed = 0;
    adl_checkpoint_close(store);
    free(p.a.data), free(p.b.data);
    return seed;
}

/* One save with call number fail_at failing. Returns false when the save made fewer calls. */
static bool save_with_fault(int fail_at, bool stay, int error, int level, bool async, int *failed,
                            int *lost)
{
    const char *directory = fresh_directory();
    pair p = {{0}, {0}};
    log_lines lines = {0};
    adl_checkpoint *store = open_pair(directory, &p, level, &lines);
    set_pair(&p, 1);
    CHECK_OK(adl_checkpoint_save_all(store));
    adli_checkpoint_set_io(store, &faulty_io);
    set_pair(&p, 2);
    memset(&fault, 0, sizeof fault);
    fault.fail_at = fail_at, fault.stay = stay, fault.error = error;
    adl_status status = async ? adl_checkpoint_save_async(store) : adl_checkpoint_save_all(store);
    if (status == ADL_OK)
        status = adl_checkpoint_flush(store); /* in the foreground: until what is old is removed */
    bool reached = fault.calls >= fail_at;
    fault.fail_at = 0;
    unsigned now = loads(directory);
    *lost += now != 1 && now != 2;
    if (status == ADL_OK) {
        CHECK_INT(now, 2);
        CHECK(!reached || lines.count == 1 || strcmp(fault.last, "close") == 0);
    } else {
        CHECK(status == ADL_EIO && strstr(adl_error(), strerror(error)));
        CHECK(strstr(adl_error(), directory));
        CHECK(now == 1 || now == 2); /* 2: only the fsync of the parent failed */
        CHECK(now == 1 || strcmp(fault.last, "fsync") == 0);
        CHECK_INT(lines.count, 1);
        (*failed)++;
    }
    set_pair(&p, 3);
    CHECK_OK(adl_checkpoint_save_all(store)); /* training went on, and so does saving */
    CHECK_INT(loads(directory), 3);
    adl_checkpoint_close(store);
    store = open_pair(directory, &p, level, NULL);
    CHECK_INT(count_entries(directory, ".tmp"), 0);
    CHECK_OK(adl_checkpoint_save_all(store));
    CHECK_OK(adl_checkpoint_flush(store));
    CHECK_INT(count_entries(directory, ""), 1); /* what could not be removed then is removed now */
    adl_checkpoint_close(store);
    free(p.a.data), free(p.b.data);
    remove_tree(directory);
    return reached;
}

TEST(every_operation_fails_with_every_error)
{
    static const int errors[] = {ENOSPC, EIO, EROFS, EDQUOT, ESTALE};
    int injected = 0, failed = 0, lost = 0;
    for (int mode = 0; mode < 6; mode++)
        for (size_t e = 0; e < ADLI_COUNT(errors); e++) {
            int at = 1;
            while (save_with_fault(at, mode % 2, errors[e], mode / 2 == 1, mode / 2 == 2, &failed,
                                   &lost)) {
                injected++;
                at++;
            }
            CHECK(at > 25); /* 2 states and a manifest: it has at least that many operations */
        }
    printf("info - %d faults injected, %d failed saves, %d checkpoints lost\n", injected, failed,
           lost);
    CHECK_INT(lost, 0);
    CHECK(failed > injected / 2);
}

TEST(short_and_interrupted_writes_are_completed)
{
    for (size_t most = 1; most <= 64; most *= 8) {
        const char *directory = fresh_directory();
        pair p = {{0}, {0}};
        adl_checkpoint *store = open_pair(directory, &p, 0, NULL);
        adli_checkpoint_set_io(store, &faulty_io);
        set_pair(&p, 1);
        memset(&fault, 0, sizeof fault);
        fault.most = most, fault.interrupts = 50;
        CHECK_OK(adl_checkpoint_save_all(store));
        CHECK_INT(fault.interrupts, 0);
        fault.most = 0;
        CHECK_INT(loads(directory), 1);
        adl_checkpoint_close(store);
        free(p.a.data), free(p.b.data);
        remove_tree(directory);
    }
}

TEST(a_vanished_directory_is_reported)
{
    const char *directory = fresh_directory();
    pair p = {{0}, {0}};
    log_lines lines = {0};
    adl_checkpoint *store = open_pair(directory, &p, 0, &lines);
    set_pair(&p, 1);
    CHECK_OK(adl_checkpoint_save_all(store));
    remove_tree(directory);
    CHECK_FAILS(adl_checkpoint_save_all(store), ADL_EIO, directory);
    CHECK(strstr(adl_error(), "No such file") && lines.count == 1);
    CHECK(!exists(directory, "")); /* it may have been a mount point: not ours to create anew */
    CHECK(mkdir(directory, 0777) == 0);
    CHECK_OK(adl_checkpoint_save_all(store)); /* it is back */
    CHECK_INT(loads(directory), 1);
    adl_checkpoint_close(store);
    free(p.a.data), free(p.b.data);
    remove_tree(directory);
}

/* In a child with a mount namespace of its own; 77 when there can be none. */
static int on_a_real_full_disk(const char *directory)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return 77;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", directory, "tmpfs", 0, "size=256k") != 0)
        return 77;
    pair p = {{0}, {0}};
    adl_checkpoint *store = open_pair(directory, &p, 0, NULL);
    set_pair(&p, 1);
    if (!store || adl_checkpoint_save_all(store) != ADL_OK)
        return 1;
    blob_set(&p.b, 300000, 2);
    if (adl_checkpoint_save_all(store) != ADL_EIO || !strstr(adl_error(), "No space left"))
        return 2;
    if (loads(directory) != 1 || count_entries(directory, "") != 1)
        return 3;
    set_pair(&p, 3); /* smaller again: there is room, because the failed save cleaned up */
    if (adl_checkpoint_save_all(store) != ADL_OK || loads(directory) != 3)
        return 4;
    if (mount("none", directory, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
        return 77;
    if (adl_checkpoint_save_async(store) != ADL_OK || adl_checkpoint_flush(store) != ADL_EIO ||
        !strstr(adl_error(), "Read-only"))
        return 5;
    adl_checkpoint_close(store);
    store = open_pair(directory, &p, 0, NULL); /* a restart can still load */
    if (!store || loads(directory) != 3)
        return 6;
    adl_checkpoint_close(store);
    free(p.a.data), free(p.b.data);
    return 0;
}

TEST(a_real_full_and_a_real_read_only_file_system)
{
    const char *directory = fresh_directory();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(on_a_real_full_disk(directory));
    int status = -1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    remove_tree(directory);
    REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SKIP("a file system cannot be mounted here");
    CHECK_INT(WEXITSTATUS(status), 0);
}
