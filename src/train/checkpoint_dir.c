/* The directory that holds the checkpoints: what is in it, and taking things out of it. A checkpoint
 * is never removed in place: it is renamed to a temporary name first, so that a crash half-way
 * through a removal leaves no checkpoint that looks damaged. */
#include "train/checkpoint_dir.h"
#include "train/checkpoint_write.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int system_open(int dir, const char *name, int flags, unsigned mode)
{
    return openat(dir, name, flags | O_CLOEXEC, mode);
}

static int system_mkdir(int dir, const char *name, unsigned mode)
{
    return mkdirat(dir, name, mode);
}

static int system_rename(int dir, const char *from, const char *to)
{
    return renameat(dir, from, dir, to);
}

/* Whatever it says, fsync will say again. */
static void system_begin(int fd)
{
    (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

const adli_ckpt_io adli_ckpt_system_io = {
    .open = system_open,
    .mkdir = system_mkdir,
    .write = write,
    .pwrite = pwrite,
    .fsync = fsync,
    .close = close,
    .rename = system_rename,
    .unlink = unlinkat,
    .begin = system_begin,
};

void adli_ckpt_list_fini(adli_ckpt_list *list)
{
    free(list->ids);
    *list = (adli_ckpt_list){0};
}

bool adli_ckpt_list_has(const adli_ckpt_list *list, adli_ckpt_id id)
{
    for (size_t i = 0; i < list->count; i++)
        if (adli_ckpt_id_compare(list->ids[i], id) == 0)
            return true;
    return false;
}

adl_status adli_ckpt_list_add(adli_ckpt_list *list, adli_ckpt_id id)
{
    if (adli_grow(&list->ids, &list->capacity, list->count + 1, sizeof *list->ids) != 0)
        return adli_fail_memory("a list of checkpoints");
    list->ids[list->count++] = id;
    return ADL_OK;
}

/* A stream of the directory's entries with a position of its own. */
static DIR *open_entries(int dir)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (!entries && fd >= 0)
        close(fd);
    return entries;
}

static int newest_first(const void *a, const void *b)
{
    return -adli_ckpt_id_compare(*(const adli_ckpt_id *)a, *(const adli_ckpt_id *)b);
}

adl_status adli_ckpt_list_read(int dir, adli_ckpt_list *out)
{
    *out = (adli_ckpt_list){0};
    adl_status status = ADL_OK;
    DIR *entries = open_entries(dir);
    if (!entries)
        return adli_fail(ADL_EIO, "listing checkpoints: %s", strerror(errno));
    struct dirent *entry;
    adli_ckpt_id id;
    while (status == ADL_OK && (errno = 0, entry = readdir(entries)))
        if (adli_ckpt_id_parse(entry->d_name, &id))
            status = adli_ckpt_list_add(out, id);
    if (status == ADL_OK && errno)
        status = adli_fail(ADL_EIO, "listing checkpoints: %s", strerror(errno));
    closedir(entries);
    if (status != ADL_OK)
        adli_ckpt_list_fini(out);
    else if (out->count)
        qsort(out->ids, out->count, sizeof *out->ids, newest_first);
    return status;
}

int adli_ckpt_sync_directory(const adli_ckpt_io *io, int dir)
{
    if (io->fsync(dir) == 0 || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
        return 0;
    return -1;
}

int adli_ckpt_remove_tree(const adli_ckpt_io *io, int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (!entries) {
        int saved = errno;
        if (fd >= 0)
            close(fd);
        errno = saved;
        return -1;
    }
    int failed = 0;
    struct dirent *entry;
    while ((entry = readdir(entries)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            io->unlink(fd, entry->d_name, 0) != 0 && !failed)
            failed = errno;
    closedir(entries);
    if (io->unlink(dir, name, AT_REMOVEDIR) != 0 && !failed)
        failed = errno;
    errno = failed;
    return failed ? -1 : 0;
}

/* Of a checkpoint that is being removed. */
#define OLD_SUFFIX "-old"

static bool ends_with(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

/* Directories that are nobody's, of those whose names end so; `whose` is for the error. */
static adl_status remove_temporary(const adli_ckpt_io *io, int dir, const char *suffix,
                                   const char *whose)
{
    DIR *entries = open_entries(dir);
    if (!entries)
        return adli_fail(ADL_EIO, "listing checkpoints: %s", strerror(errno));
    adl_status status = ADL_OK;
    struct dirent *entry;
    while ((entry = readdir(entries)))
        if (strncmp(entry->d_name, ADLI_CKPT_TEMPORARY, strlen(ADLI_CKPT_TEMPORARY)) == 0 &&
            ends_with(entry->d_name, suffix) && adli_ckpt_remove_tree(io, dir, entry->d_name) != 0)
            status = adli_fail(ADL_EIO, "%s: cannot remove %s: %s", entry->d_name, whose,
                               strerror(errno));
    closedir(entries);
    return status;
}

adl_status adli_ckpt_remove_leftovers(const adli_ckpt_io *io, int dir)
{
    return remove_temporary(io, dir, "", "what a crashed writer left");
}

void adli_ckpt_remove_old(const adli_ckpt_plan *plan, adli_ckpt_outcome *out)
{
    int dir = plan->io->open(AT_FDCWD, plan->directory, O_RDONLY | O_DIRECTORY, 0);
    adl_status status = dir < 0 ? adli_fail(ADL_EIO, "%s: %s", plan->directory, strerror(errno))
                                : remove_temporary(plan->io, dir, OLD_SUFFIX, "an old checkpoint");
    if (status != ADL_OK)
        snprintf(out->warning, sizeof out->warning, "%.500s", adl_error());
    if (dir >= 0)
        plan->io->close(dir);
    out->old_left = false;
}

static int remove_checkpoint(const adli_ckpt_plan *plan, int dir, adli_ckpt_id id, bool *left)
{
    const adli_ckpt_io *io = plan->io;
    char name[ADLI_CKPT_DIR_NAME_MAX], away[ADLI_CKPT_DIR_NAME_MAX + 32];
    adli_ckpt_id_name(id, name);
    snprintf(away, sizeof away, ADLI_CKPT_TEMPORARY_FORMAT OLD_SUFFIX, name);
    if (io->rename(dir, name, away) != 0) {
        if (errno == ENOENT)
            return 0;
        /* the remains of an earlier attempt */
        if (adli_ckpt_remove_tree(io, dir, away) != 0 || io->rename(dir, name, away) != 0)
            return -1;
    }
    *left |= plan->leave_old;
    return plan->leave_old ? 0 : adli_ckpt_remove_tree(io, dir, away);
}

void adli_ckpt_prune(const adli_ckpt_plan *plan, int dir, adli_ckpt_outcome *out)
{
    adli_ckpt_list list;
    if (adli_ckpt_list_read(dir, &list) != ADL_OK) {
        snprintf(out->warning, sizeof out->warning, "old checkpoints stay: %.400s", adl_error());
        return;
    }
    int kept = 0;
    for (size_t i = 0; i < list.count; i++) {
        adli_ckpt_id id = list.ids[i];
        bool keep = !adli_ckpt_list_has(plan->damaged, id) && kept < plan->keep_last;
        kept += keep;
        if (!keep && remove_checkpoint(plan, dir, id, &out->old_left) != 0) {
            char name[ADLI_CKPT_DIR_NAME_MAX];
            adli_ckpt_id_name(id, name);
            snprintf(out->warning, sizeof out->warning, "%s: cannot be removed: %s", name,
                     strerror(errno));
        }
    }
    adli_ckpt_list_fini(&list);
}
