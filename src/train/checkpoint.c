/* The store: which states there are, and the values that were read for them at open. Those wait
 * ("pending") for states that are registered later, and are carried over into new checkpoints as long
 * as nobody has asked for them: a crash before a late registration then loses nothing. */
#include "train/checkpoint_store.h"

#include "base/mask.h"
#include "base/mem.h"
#include "base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void adli_checkpoint_log(adl_checkpoint *store, const char *format, ...)
{
    if (!store->options.log)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    adli_print_masked(line, sizeof line, format, args);
    va_end(args);
    store->options.log(store->options.log_user, line);
}

adl_status adli_checkpoint_guard(const adl_checkpoint *store, const char *function)
{
    if (store->calling)
        return adli_fail(ADL_ESTATE, "%s: called from a state's callback", function);
    return ADL_OK;
}

void adli_checkpoint_set_io(adl_checkpoint *store, const adli_ckpt_io *io)
{
    store->io = io;
}

adl_status adl_checkpoint_open(const char *directory, const adl_checkpoint_options *options,
                               adl_checkpoint **out)
{
    *out = NULL;
    adl_checkpoint_options taken;
    adl_status status = adli_checkpoint_take_options(options, &taken);
    if (status != ADL_OK)
        return status;
    adl_checkpoint *store = adli_calloc(1, sizeof *store);
    if (!store)
        return adli_fail_memory("a checkpoint store");
    store->options = taken;
    store->io = &adli_ckpt_system_io;
    store->pid = (long)getpid();
    snprintf(store->program, sizeof store->program, "%s", taken.program ? taken.program : "");
    if ((status = adli_save_init(store)) != ADL_OK) {
        free(store);
        return status;
    }
    if (directory && !(store->directory = adli_strdup(directory)))
        status = adli_fail_memory("a checkpoint store");
    else if (directory)
        status = adli_checkpoint_read_directory(store);
    /* the caller's strings may go away now */
    store->options.program = store->options.only = NULL;
    if (status != ADL_OK) {
        char text[1024];
        snprintf(text, sizeof text, "%s", adl_error());
        adl_checkpoint_close(store);
        return adli_fail(status, "%s", text);
    }
    *out = store;
    return ADL_OK;
}

static void free_values(adl_checkpoint *store)
{
    for (size_t i = 0; i < store->pending_count; i++) {
        adli_ckpt_value_fini(store->pending[i]);
        free(store->pending[i]);
    }
    free(store->pending);
}

void adl_checkpoint_close(adl_checkpoint *store)
{
    if (!store)
        return;
    /* In a forked child the writing thread does not exist, and its locks may be held for ever. The
     * memory is the parent's affair. */
    if (store->pid != (long)getpid())
        return;
    adli_save_fini(store);
    free_values(store);
    for (size_t i = 0; i < store->states_count; i++)
        free(store->states[i]);
    free(store->states);
    adli_ckpt_list_fini(&store->damaged);
    free(store->directory);
    free(store);
}

/* ---- states ----------------------------------------------------------------------------------- */

/* The place of name in the sorted states; *found says whether it is there. */
static size_t state_place(const adl_checkpoint *store, const char *name, bool *found)
{
    size_t low = 0, high = store->states_count;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(store->states[middle]->name, name);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

adl_checkpoint_state *adli_checkpoint_find(adl_checkpoint *store, const char *name)
{
    bool found;
    size_t place = state_place(store, name, &found);
    return found ? store->states[place] : NULL;
}

static adl_status take_functions(const adl_checkpoint_functions *given, const char *name,
                                 adl_checkpoint_functions *out)
{
    *out = (adl_checkpoint_functions){.size = sizeof *out};
    adl_status status = adli_options_take("adl_checkpoint_functions", out, sizeof *out, given);
    if (status != ADL_OK)
        return adli_wrap(status, "state \"%s\"", name);
    if (!out->save)
        return adli_fail(ADL_EINVAL, "state \"%s\": no save function", name);
    return ADL_OK;
}

adl_status adl_checkpoint_register(adl_checkpoint *store, const char *name,
                                   const adl_checkpoint_functions *functions, void *user,
                                   adl_checkpoint_state **out)
{
    adl_checkpoint_functions taken;
    bool found;
    if (out)
        *out = NULL;
    adl_status status = adli_checkpoint_guard(store, __func__);
    if (status != ADL_OK || (status = adli_ckpt_name_check(name)) != ADL_OK ||
        (status = take_functions(functions, name, &taken)) != ADL_OK)
        return status;
    size_t place = state_place(store, name, &found);
    if (found)
        return adli_fail(ADL_ESTATE, "state \"%s\": the name is taken", name);
    if (store->states_count >= ADLI_CKPT_STATES_MAX)
        return adli_fail(ADL_ENOMEM, "state \"%s\": there are %d states already", name,
                         ADLI_CKPT_STATES_MAX);
    if (adli_grow(&store->states, &store->states_capacity, store->states_count + 1,
                  sizeof *store->states) != 0)
        return adli_fail_memory("a state");
    adl_checkpoint_state *state = adli_calloc(1, sizeof *state);
    if (!state)
        return adli_fail_memory("a state");
    snprintf(state->name, sizeof state->name, "%s", name);
    state->functions = taken;
    state->user = user;
    memmove(&store->states[place + 1], &store->states[place],
            (store->states_count - place) * sizeof *store->states);
    store->states[place] = state;
    store->states_count++;
    if (out)
        *out = state;
    return ADL_OK;
}

void adl_checkpoint_unregister(adl_checkpoint *store, adl_checkpoint_state *state)
{
    if (!state)
        return;
    bool found;
    size_t place = state_place(store, state->name, &found);
    if (!found || store->states[place] != state)
        return;
    store->states_count--;
    memmove(&store->states[place], &store->states[place + 1],
            (store->states_count - place) * sizeof *store->states);
    free(state);
}

/* ---- pending values --------------------------------------------------------------------------- */

static size_t pending_place(const adl_checkpoint *store, const char *name, bool *found)
{
    size_t place = 0;
    int order = 1;
    while (place < store->pending_count && (order = strcmp(store->pending[place]->name, name)) < 0)
        place++;
    *found = place < store->pending_count && order == 0;
    return place;
}

/* The value is no longer pending. A save that is being written may still be reading it, so it is
 * freed when none is. */
static void retire(adl_checkpoint *store, size_t place)
{
    adli_ckpt_value *value = store->pending[place];
    store->pending_count--;
    memmove(&store->pending[place], &store->pending[place + 1],
            (store->pending_count - place) * sizeof *store->pending);
    value->next = store->retired;
    store->retired = value;
    adli_save_reap(store);
}

adl_status adl_checkpoint_pending(adl_checkpoint *store, int index, const char **name,
                                  const void **data, size_t *length)
{
    if (index < 0 || (size_t)index >= store->pending_count)
        return adli_fail(ADL_ENOENT, "pending value %d of %zu", index, store->pending_count);
    *name = store->pending[index]->name;
    *data = store->pending[index]->data;
    *length = store->pending[index]->length;
    return ADL_OK;
}

adl_status adl_checkpoint_offer(adl_checkpoint *store, const char *name, const void *data,
                                size_t length)
{
    bool found;
    adl_status status = adli_ckpt_name_check(name);
    if (status != ADL_OK)
        return status;
    if (length > store->options.max_state_bytes || store->pending_count >= ADLI_CKPT_STATES_MAX)
        return adli_fail(ADL_EINVAL, "state \"%s\": %zu bytes, or too many states", name, length);
    if (adli_grow(&store->pending, &store->pending_capacity, store->pending_count + 1,
                  sizeof *store->pending) != 0)
        return adli_fail_memory("a pending value");
    adli_ckpt_value *value = adli_calloc(1, sizeof *value);
    void *copy = adli_memdup(data, length, 1);
    if (!value || !copy) {
        free(copy);
        free(value);
        return adli_fail_memory("a pending value");
    }
    snprintf(value->name, sizeof value->name, "%s", name);
    value->storage = copy;
    value->data = copy;
    value->length = length;
    size_t place = pending_place(store, name, &found);
    if (found)
        retire(store, place);
    memmove(&store->pending[place + 1], &store->pending[place],
            (store->pending_count - place) * sizeof *store->pending);
    store->pending[place] = value;
    store->pending_count++;
    return ADL_OK;
}

adl_status adl_checkpoint_forget(adl_checkpoint *store, const char *name)
{
    bool found;
    size_t place = pending_place(store, name, &found);
    if (!found)
        return adli_fail(ADL_ENOENT, "no pending value \"%.*s\"", ADL_CHECKPOINT_NAME_MAX, name);
    retire(store, place);
    return ADL_OK;
}

/* ---- loading ---------------------------------------------------------------------------------- */

adl_status adl_checkpoint_load_state(adl_checkpoint *store, adl_checkpoint_state *state,
                                     bool *found)
{
    bool is_pending;
    if (found)
        *found = false;
    adl_status status = adli_checkpoint_guard(store, __func__);
    if (status != ADL_OK)
        return status;
    size_t place = pending_place(store, state->name, &is_pending);
    if (!is_pending)
        return ADL_OK;
    const adli_ckpt_value *value = store->pending[place];
    adl_source source = {.at = value->data, .remaining = value->length};
    if (state->functions.load) {
        store->calling = true;
        status = state->functions.load(state->user, &source);
        store->calling = false;
        if (status == ADL_OK && source.remaining)
            status = adli_fail(ADL_ECORRUPT, "%zu of %zu bytes were not read", source.remaining,
                               value->length);
        if (status != ADL_OK)
            return adli_wrap(status, "state \"%s\": load", state->name);
    }
    state->expected = value->length;
    retire(store, place);
    if (found)
        *found = true;
    return ADL_OK;
}

adl_status adl_checkpoint_load_all(adl_checkpoint *store, int *loaded, int *absent)
{
    int counts[2] = {0, 0}; /* [found] */
    adl_status status = ADL_OK;
    for (size_t i = 0; status == ADL_OK && i < store->states_count; i++) {
        bool found;
        status = adl_checkpoint_load_state(store, store->states[i], &found);
        counts[found] += status == ADL_OK;
        if (status == ADL_OK && !found && store->info.loaded[0])
            adli_checkpoint_log(store, "%s has no state \"%s\": it keeps its initial value",
                                store->info.loaded, store->states[i]->name);
    }
    if (loaded)
        *loaded = counts[1];
    if (absent)
        *absent = counts[0];
    return status;
}
