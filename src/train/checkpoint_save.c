/* Saving: sync on every replica, and then either here or on the store's own thread the writing. For the
 * thread, and the compressor, every state is copied in memory first; the copies are kept from save to
 * save, so that a step that triggers a background save pays for one memcpy and, after the first time, no
 * page faults. What is written here goes from the program's memory to the files. Old checkpoints are
 * taken apart by the thread after a save: that takes a file system as long as half of the writing. */
#include "train/checkpoint_store.h"

#include "base/mem.h"
#include "base/options.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_save_init(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    if (pthread_mutex_init(&save->lock, NULL) != 0)
        return adli_fail_memory("a lock");
    if (pthread_cond_init(&save->changed, NULL) != 0) {
        pthread_mutex_destroy(&save->lock);
        return adli_fail_memory("a condition");
    }
    return ADL_OK;
}

static void free_retired(adl_checkpoint *store)
{
    while (store->retired) {
        adli_ckpt_value *value = store->retired;
        store->retired = value->next;
        adli_ckpt_value_fini(value);
        free(value);
    }
}

void adli_save_fini(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    if (save->started) {
        pthread_mutex_lock(&save->lock);
        save->quit = true;
        pthread_cond_broadcast(&save->changed);
        pthread_mutex_unlock(&save->lock);
        pthread_join(save->thread, NULL);
    }
    adli_save_reap(store); /* a failure that nobody flushed goes to log */
    free_retired(store);
    for (size_t i = 0; i < save->copies_count; i++)
        adli_sink_fini(&save->copies[i]);
    free(save->copies);
    free(save->items);
    pthread_cond_destroy(&save->changed);
    pthread_mutex_destroy(&save->lock);
}

/* ---- the thread ------------------------------------------------------------------------------- */

static void perform(adli_save *save)
{
    save->status = adli_ckpt_write(&save->plan, &save->outcome);
    const char *error = save->outcome.refusal[0] ? save->outcome.refusal : adl_error();
    snprintf(save->error, sizeof save->error, "%s", save->status == ADL_OK ? "" : error);
}

/* Memory for the copies, every page of it touched: page faults cost as much as copying twice. The sizes
 * that are expected are in items. */
static void warm(adli_save *save)
{
    for (size_t i = 0; i < save->warm_count; i++) {
        adl_sink *sink = &save->copies[i];
        size_t bytes = save->items[i].length;
        if (bytes > sink->max || sink->capacity > bytes ||
            adli_grow(&sink->data, &sink->capacity, bytes + 1, 1) != 0)
            continue;
        memset(sink->data, 0, bytes);
    }
}

static void *write_loop(void *argument)
{
    adli_save *save = argument;
    pthread_mutex_lock(&save->lock);
    for (;;) {
        while (save->phase != ADLI_SAVE_REQUESTED && !save->quit)
            pthread_cond_wait(&save->changed, &save->lock);
        if (save->phase != ADLI_SAVE_REQUESTED)
            break; /* what was requested is written before quitting */
        save->phase = ADLI_SAVE_WRITING;
        pthread_mutex_unlock(&save->lock);
        if (save->job == ADLI_JOB_WARM)
            warm(save);
        else if (save->job == ADLI_JOB_REMOVE)
            adli_ckpt_remove_old(&save->plan, &save->outcome);
        else
            perform(save);
        pthread_mutex_lock(&save->lock);
        save->phase = save->job == ADLI_JOB_WARM ? ADLI_SAVE_IDLE : ADLI_SAVE_DONE;
        pthread_cond_broadcast(&save->changed);
    }
    pthread_mutex_unlock(&save->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static bool start_thread(adli_save *save)
{
    sigset_t all, old;
    if (save->started)
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    save->started = pthread_create(&save->thread, NULL, write_loop, save) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return save->started;
}

static void request(adli_save *save, adli_save_job job)
{
    pthread_mutex_lock(&save->lock);
    save->job = job;
    save->phase = ADLI_SAVE_REQUESTED;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
}

/* ---- the outcome ------------------------------------------------------------------------------ */

static void warn(adl_checkpoint *store)
{
    if (store->save.outcome.warning[0])
        adli_checkpoint_log(store, "%s", store->save.outcome.warning);
    store->save.outcome.warning[0] = '\0';
}

static void account(adl_checkpoint *store)
{
    const adli_save *save = &store->save;
    adl_checkpoint_info *info = &store->info;
    info->last_status = save->status;
    if (save->outcome.id.sequence > store->last_sequence)
        store->last_sequence = save->outcome.id.sequence;
    if (save->status != ADL_OK) {
        info->saves_failed++;
        snprintf(info->last_error, sizeof info->last_error, "%.255s", save->error);
        adli_checkpoint_log(store, "saving a checkpoint failed: %s", save->error);
        return;
    }
    info->saves_ok++;
    info->raw_bytes = save->outcome.raw_bytes;
    info->stored_bytes = save->outcome.stored_bytes;
    adli_ckpt_id_name(save->outcome.id, info->saved);
    warn(store);
}

void adli_save_reap(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    pthread_mutex_lock(&save->lock);
    bool finished = save->phase == ADLI_SAVE_DONE;
    if (finished)
        save->phase = ADLI_SAVE_IDLE;
    bool idle = save->phase == ADLI_SAVE_IDLE;
    pthread_mutex_unlock(&save->lock);
    if (finished && save->job == ADLI_JOB_REMOVE) {
        warn(store);
    } else if (finished) {
        account(store);
        store->unreported = save->status;
        memcpy(store->unreported_error, save->error, sizeof store->unreported_error);
    }
    if (idle)
        free_retired(store);
}

static bool is_busy(adl_checkpoint *store)
{
    pthread_mutex_lock(&store->save.lock);
    bool busy = store->save.phase != ADLI_SAVE_IDLE && store->save.job == ADLI_JOB_WRITE;
    pthread_mutex_unlock(&store->save.lock);
    return busy;
}

static bool is_idle(adl_checkpoint *store)
{
    pthread_mutex_lock(&store->save.lock);
    bool idle = store->save.phase == ADLI_SAVE_IDLE;
    pthread_mutex_unlock(&store->save.lock);
    return idle;
}

static void wait_until_idle(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    pthread_mutex_lock(&save->lock);
    while (save->phase == ADLI_SAVE_REQUESTED || save->phase == ADLI_SAVE_WRITING)
        pthread_cond_wait(&save->changed, &save->lock);
    pthread_mutex_unlock(&save->lock);
    adli_save_reap(store);
}

/* ---- the copy --------------------------------------------------------------------------------- */

/* All of them, even when one fails: the collectives inside stay in step with the other replicas. */
static adl_status sync_all(adl_checkpoint *store)
{
    adl_status first = ADL_OK;
    char text[512] = "";
    store->calling = true;
    for (size_t i = 0; i < store->states_count; i++) {
        adl_checkpoint_state *state = store->states[i];
        adl_status status = state->functions.sync ? state->functions.sync(state->user) : ADL_OK;
        if (status != ADL_OK && first == ADL_OK) {
            first = status;
            snprintf(text, sizeof text, "state \"%s\": sync: %.300s", state->name, adl_error());
        }
    }
    store->calling = false;
    return first == ADL_OK ? ADL_OK : adli_fail(first, "%s", text);
}

static adl_status make_room(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    size_t items = store->states_count + store->pending_count;
    if (adli_grow(&save->items, &save->items_capacity, items, sizeof *save->items) != 0 ||
        adli_grow(&save->copies, &save->copies_capacity, store->states_count,
                  sizeof *save->copies) != 0)
        return adli_fail_memory("the copies of the states");
    while (save->copies_count < store->states_count)
        adli_sink_init(&save->copies[save->copies_count++], store->options.max_state_bytes);
    return ADL_OK;
}

/* Has a state write itself into its sink. */
static adl_status pour(adl_checkpoint *store, size_t index)
{
    const adl_checkpoint_state *state = store->states[index];
    adl_sink *sink = &store->save.copies[index];
    adli_sink_clear(sink);
    store->calling = true;
    adl_status status = state->functions.save(state->user, sink);
    store->calling = false;
    if (status == ADL_OK && sink->drain && sink->status == ADL_OK)
        status = adli_sink_flush(sink);
    else if (status == ADL_OK && sink->status != ADL_OK)
        status = adli_fail(sink->status, "%zu bytes did not fit", sink->length);
    return status == ADL_OK ? status : adli_wrap(status, "state \"%s\": save", state->name);
}

static adl_status copy_state(adl_checkpoint *store, size_t index, adli_ckpt_item *item)
{
    const adl_sink *sink = &store->save.copies[index];
    adl_status status = pour(store, index);
    item->data = sink->data ? sink->data : (const unsigned char *)"";
    item->length = sink->length;
    return status;
}

/* Of adli_ckpt_plan. */
static adl_status stream_state(void *user, const adli_ckpt_item *item,
                               adl_status (*drain)(void *, const void *, size_t), void *drain_user)
{
    adl_checkpoint *store = user;
    adl_sink *sink = &store->save.copies[item->state];
    sink->drain = drain;
    sink->drain_user = drain_user;
    adl_status status = pour(store, item->state);
    sink->drain = NULL;
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const adli_ckpt_item *)a)->name, ((const adli_ckpt_item *)b)->name);
}

/* Every registered state, copied or to be streamed, and every pending value of a name that nobody has registered, by
 * name. */
static adl_status plan_all(adl_checkpoint *store, bool stream)
{
    adli_save *save = &store->save;
    uint64_t total = 0;
    size_t count = 0;
    adl_status status = make_room(store);
    if (status != ADL_OK)
        return status;
    for (; count < store->states_count; count++) {
        adli_ckpt_item *item = &save->items[count];
        *item = (adli_ckpt_item){.state = count};
        memcpy(item->name, store->states[count]->name, sizeof item->name);
        if (!stream && (status = copy_state(store, count, item)) != ADL_OK)
            return status;
        total += item->length;
    }
    for (size_t i = 0; i < store->pending_count; i++) {
        const adli_ckpt_value *value = store->pending[i];
        if (adli_checkpoint_find(store, value->name))
            continue;
        adli_ckpt_item *item = &save->items[count++];
        *item = (adli_ckpt_item){.data = value->data, .length = value->length};
        memcpy(item->name, value->name, sizeof item->name);
        total += value->length;
    }
    if (total > store->options.max_total_bytes || count > ADLI_CKPT_STATES_MAX)
        return adli_fail(ADL_ENOMEM, "%zu states of %llu bytes: the limit is %llu bytes", count,
                         (unsigned long long)total,
                         (unsigned long long)store->options.max_total_bytes);
    if (count)
        qsort(save->items, count, sizeof *save->items, by_name);
    save->plan = (adli_ckpt_plan){
        .io = store->io,
        .directory = store->directory,
        .program = store->program,
        .generation = store->generation,
        .after_sequence = store->last_sequence,
        .compress_level = store->options.compress_level,
        .keep_last = store->options.keep_last,
        .leave_old = stream,
        .limits = {store->options.max_state_bytes, store->options.max_total_bytes},
        .data_bytes = total,
        .save = stream ? stream_state : NULL,
        .user = store,
        .damaged = &store->damaged,
        .items = save->items,
        .count = count,
    };
    return ADL_OK;
}

adl_status adli_checkpoint_sync(adl_checkpoint *store)
{
    adl_status status = adli_checkpoint_guard(store, "adli_checkpoint_sync");
    return status == ADL_OK ? sync_all(store) : status;
}

adl_status adli_checkpoint_set_writer(adl_checkpoint *store, bool is_writer, const char *directory)
{
    bool begins = is_writer && !store->options.is_writer;
    store->options.is_writer = is_writer && (store->directory || directory);
    if (!begins || !store->options.is_writer)
        return ADL_OK;
    if (!store->directory && !(store->directory = adli_strdup(directory)))
        return adli_fail_memory("a checkpoint store");
    adl_status status = adli_checkpoint_prepare_directory(store);
    store->options.is_writer = status == ADL_OK;
    return status;
}

static bool writes(const adl_checkpoint *store)
{
    return store->options.is_writer && store->directory;
}

/* What both ways of saving begin with: everybody syncs, the writer copies, unless it streams. A failure is counted. */
static adl_status prepare(adl_checkpoint *store, const char *function, bool stream)
{
    adl_status status = adli_checkpoint_guard(store, function);
    if (status != ADL_OK)
        return status;
    status = sync_all(store);
    if (!writes(store))
        return status;
    wait_until_idle(store);
    if (status == ADL_OK)
        status = plan_all(store, stream);
    if (status != ADL_OK) {
        store->save.status = status;
        store->save.outcome = (adli_ckpt_outcome){0};
        snprintf(store->save.error, sizeof store->save.error, "%s", adl_error());
        account(store);
        return adli_fail(status, "%s", store->save.error);
    }
    return ADL_OK;
}

/* ---- the public calls ------------------------------------------------------------------------- */

static adl_status write_here(adl_checkpoint *store)
{
    perform(&store->save);
    account(store);
    store->unreported = ADL_OK;
    if (store->save.outcome.old_left) {
        if (start_thread(&store->save))
            request(&store->save, ADLI_JOB_REMOVE);
        else
            adli_ckpt_remove_old(&store->save.plan, &store->save.outcome);
    }
    if (store->save.status != ADL_OK)
        return adli_fail(store->save.status, "%s", store->save.error);
    return ADL_OK;
}

adl_status adl_checkpoint_save_all(adl_checkpoint *store)
{
    adl_status status = prepare(store, __func__, store->options.compress_level == 0);
    return status == ADL_OK && writes(store) ? write_here(store) : status;
}

adl_status adl_checkpoint_save_async(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    adl_status status = prepare(store, __func__, false);
    if (status != ADL_OK || !writes(store))
        return status;
    if (!start_thread(save))
        return write_here(store); /* late is better than never */
    request(save, ADLI_JOB_WRITE);
    return ADL_OK;
}

adl_status adl_checkpoint_flush(adl_checkpoint *store)
{
    adl_status status = adli_checkpoint_guard(store, __func__);
    if (status != ADL_OK)
        return status;
    wait_until_idle(store);
    status = store->unreported;
    store->unreported = ADL_OK;
    return status == ADL_OK ? ADL_OK : adli_fail(status, "%s", store->unreported_error);
}

void adl_checkpoint_expect(adl_checkpoint *store, adl_checkpoint_state *state, size_t bytes)
{
    (void)store;
    state->expected = bytes;
}

/* The first interval has begun: there is time to make memory ready for the save at its end. */
static void begin_warming(adl_checkpoint *store)
{
    adli_save *save = &store->save;
    bool any = false;
    if (!is_idle(store) || make_room(store) != ADL_OK)
        return; /* a save makes its memory itself, and says what it lacks */
    save->warm_count = store->states_count;
    for (size_t i = 0; i < store->states_count; i++) {
        save->items[i].length = store->states[i]->expected;
        any |= store->states[i]->expected > 0;
    }
    if (!any || !start_thread(save))
        return;
    request(save, ADLI_JOB_WARM);
}

bool adl_checkpoint_due(adl_checkpoint *store, double now_s)
{
    adli_save_reap(store);
    if (!writes(store) || store->options.interval_s <= 0 || !isfinite(now_s))
        return false;
    if (!store->due_started) {
        store->due_started = true;
        store->due_s = now_s;
        begin_warming(store);
    }
    if (now_s - store->due_s < store->options.interval_s || is_busy(store))
        return false;
    store->due_s = now_s;
    return true;
}

adl_status adl_checkpoint_get_info(adl_checkpoint *store, adl_checkpoint_info *info)
{
    adli_save_reap(store);
    adl_checkpoint_info full = store->info;
    full.pending = (int)store->pending_count;
    full.busy = is_busy(store);
    return adli_options_give("adl_checkpoint_info", info, &full, sizeof full);
}
