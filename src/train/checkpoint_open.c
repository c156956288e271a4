/* Opening: which of the checkpoints in the directory is the newest complete one, reading it as a
 * whole, and the options that say otherwise. */
#include "train/checkpoint_store.h"

#include "base/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static adl_status check_options(const adl_checkpoint_options *options)
{
    if (options->keep_last < 1)
        return adli_fail(ADL_EINVAL, "checkpoint option keep_last: %d, at least 1 is needed",
                         options->keep_last);
    if (options->compress_level < 0 || options->compress_level > 19)
        return adli_fail(ADL_EINVAL, "checkpoint option compress_level: %d is not 0 .. 19",
                         options->compress_level);
    if (options->restarts < 0)
        return adli_fail(ADL_EINVAL, "checkpoint option restarts: %d is negative",
                         options->restarts);
    if (!(options->interval_s >= 0))
        return adli_fail(ADL_EINVAL, "checkpoint option interval_s: %g is negative",
                         options->interval_s);
    if (options->program && strlen(options->program) > ADLI_CKPT_PROGRAM_MAX)
        return adli_fail(ADL_EINVAL, "checkpoint option program: longer than %d bytes",
                         ADLI_CKPT_PROGRAM_MAX);
    adli_ckpt_id id;
    if (options->only && strcmp(options->only, "none") != 0 &&
        !adli_ckpt_id_parse(options->only, &id))
        return adli_fail(ADL_EINVAL,
                         "checkpoint option only: \"%s\" is not the name of a checkpoint",
                         options->only);
    return ADL_OK;
}

adl_status adli_checkpoint_take_options(const adl_checkpoint_options *given,
                                        adl_checkpoint_options *out)
{
    *out = (adl_checkpoint_options)ADL_CHECKPOINT_OPTIONS_INIT;
    adl_status status = adli_options_take("adl_checkpoint_options", out, sizeof *out, given);
    return status == ADL_OK ? check_options(out) : status;
}

static void take_pending(adl_checkpoint *store, adli_ckpt_content *content)
{
    adli_ckpt_id_name(content->manifest.id, store->info.loaded);
    store->pending = content->values;
    store->pending_count = store->pending_capacity = content->manifest.count;
    content->values = NULL;
}

static bool is_gone(int dir, adli_ckpt_id id)
{
    char name[ADLI_CKPT_DIR_NAME_MAX];
    struct stat info;
    adli_ckpt_id_name(id, name);
    return fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

/* The newest complete checkpoint of the list. *again: one vanished under our hands, because the
 * writer of this very moment has saved a newer one and removed it; the list is out of date. */
static adl_status load_from_list(adl_checkpoint *store, int dir, const adli_ckpt_list *list,
                                 bool *again)
{
    adli_ckpt_limits limits = {store->options.max_state_bytes, store->options.max_total_bytes};
    *again = false;
    for (size_t i = 0; i < list->count; i++) {
        adli_ckpt_content content;
        adl_status status = adli_ckpt_read(dir, list->ids[i], store->program, &limits, &content);
        if (status == ADL_OK) {
            take_pending(store, &content);
            adli_ckpt_content_fini(&content);
            return ADL_OK;
        }
        if (status != ADL_ECORRUPT && status != ADL_ENOENT)
            return status;
        if (is_gone(dir, list->ids[i])) {
            *again = true;
            return ADL_OK;
        }
        adli_checkpoint_log(store, "checkpoint is damaged and passed over: %s", adl_error());
        store->info.damaged++;
        if ((status = adli_ckpt_list_add(&store->damaged, list->ids[i])) != ADL_OK)
            return status;
    }
    if (list->count && !store->options.ignore_damage)
        return adli_fail(ADL_ECORRUPT,
                         "all %zu checkpoints are damaged (ignore_damage would start "
                         "from nothing); the last one looked at: %s",
                         list->count, adl_error());
    return ADL_OK;
}

/* What is saved from now on must be newer than anything that is there. */
static void choose_generation(adl_checkpoint *store, const adli_ckpt_list *list)
{
    store->generation = (uint64_t)store->options.restarts;
    if (list->count && list->ids[0].generation > store->generation)
        store->generation = list->ids[0].generation;
}

static adl_status load_newest(adl_checkpoint *store, int dir)
{
    enum { TRIES = 16 };
    for (int i = 0; i < TRIES; i++) {
        adli_ckpt_list list;
        bool again;
        adl_status status = adli_ckpt_list_read(dir, &list);
        if (status != ADL_OK)
            return status;
        choose_generation(store, &list);
        status = load_from_list(store, dir, &list, &again);
        adli_ckpt_list_fini(&list);
        if (status != ADL_OK || !again)
            return status;
        adli_ckpt_list_fini(&store->damaged);
        store->info.damaged = 0;
    }
    return adli_fail(ADL_EIO, "checkpoints vanish faster than they can be read");
}

static adl_status load_only(adl_checkpoint *store, int dir)
{
    adli_ckpt_limits limits = {store->options.max_state_bytes, store->options.max_total_bytes};
    adli_ckpt_content content;
    adli_ckpt_list list;
    adli_ckpt_id id;
    adl_status status = adli_ckpt_list_read(dir, &list);
    if (status != ADL_OK)
        return status;
    choose_generation(store, &list);
    adli_ckpt_list_fini(&list);
    if (!adli_ckpt_id_parse(store->options.only, &id))
        return ADL_OK; /* "none" */
    status = adli_ckpt_read(dir, id, store->program, &limits, &content);
    if (status != ADL_OK)
        return status;
    take_pending(store, &content);
    adli_ckpt_content_fini(&content);
    return ADL_OK;
}

/* A directory that is new has to survive a power failure like what is saved in it. */
static adl_status sync_parent(const adl_checkpoint *store)
{
    char parent[4096];
    int length = snprintf(parent, sizeof parent, "%s/..", store->directory);
    int fd = length < (int)sizeof parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return adli_fail(ADL_EIO, "%s/..: %s", store->directory, strerror(errno));
    adl_status status = ADL_OK;
    if (adli_ckpt_sync_directory(store->io, fd) != 0)
        status = adli_fail(ADL_EIO, "%s/..: fsync: %s", store->directory, strerror(errno));
    close(fd);
    return status;
}

static adl_status create_directory(const adl_checkpoint *store)
{
    if (mkdir(store->directory, 0777) == 0)
        return sync_parent(store);
    if (errno != EEXIST)
        return adli_fail(ADL_EIO, "%s: %s", store->directory, strerror(errno));
    return ADL_OK;
}

adl_status adli_checkpoint_read_directory(adl_checkpoint *store)
{
    const char *path = store->directory, *only = store->options.only;
    adl_status status = store->options.is_writer ? create_directory(store) : ADL_OK;
    if (status != ADL_OK)
        return status;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 && errno == ENOENT && (!only || strcmp(only, "none") == 0))
        return ADL_OK; /* a reader that is here before the writer */
    if (dir < 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", path, strerror(errno));
    if (store->options.is_writer && adli_ckpt_remove_leftovers(store->io, dir) != ADL_OK)
        adli_checkpoint_log(store, "%s: %s", path, adl_error());
    status = only ? load_only(store, dir) : load_newest(store, dir);
    close(dir);
    return status == ADL_OK ? status : adli_wrap(status, "%s", path);
}

adl_status adli_checkpoint_prepare_directory(adl_checkpoint *store)
{
    adli_ckpt_list list;
    adl_status status = create_directory(store);
    if (status != ADL_OK)
        return status;
    int dir = open(store->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return adli_fail(ADL_EIO, "%s: %s", store->directory, strerror(errno));
    status = adli_ckpt_list_read(dir, &list);
    if (status == ADL_OK) {
        choose_generation(store, &list);
        adli_ckpt_list_fini(&list);
    }
    close(dir);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "%s", store->directory);
}
