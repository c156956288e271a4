/* Forming a group while the caller goes on with something else: adl_group_new on a thread of its own. A thread, and
 * not steps that the caller takes, because the caller looks once in a training step, and a handshake of several
 * messages would take as many steps. */
#include "comm/group_impl.h"

#include "base/mem.h"
#include "base/options.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct adl_forming {
    adl_group_options options; /* strings are copies */
    char *master_addr;
    void *secret;
    bool (*asked)(void *context); /* the caller's cancelled() */
    void *asked_context;
    _Atomic bool cancelled, done;
    pthread_t thread;
    /* The outcome; written before done. */
    adl_group *group;
    adl_status status;
    char text[ADLI_TEXT_MAX + 1];
};

static bool is_cancelled(void *user)
{
    adl_forming *forming = user;
    return atomic_load(&forming->cancelled) ||
           (forming->asked && forming->asked(forming->asked_context));
}

static void *form(void *user)
{
    adl_forming *forming = user;
    forming->status = adl_group_new(&forming->options, &forming->group);
    if (forming->status != ADL_OK)
        snprintf(forming->text, sizeof forming->text, "%s", adl_error());
    atomic_store(&forming->done, true);
    return NULL;
}

static void free_forming(adl_forming *forming)
{
    if (!forming)
        return;
    free(forming->master_addr);
    if (forming->secret)
        adli_wipe(forming->secret, forming->options.secret_length);
    free(forming->secret);
    free(forming);
}

static adl_status copy_options(adl_forming *forming, const adl_group_options *given)
{
    adl_group_options *options = &forming->options;
    *options = *given;
    const char *master_addr = options->master_addr;
    const void *secret = options->secret;
    if (master_addr)
        options->master_addr = forming->master_addr = adli_strdup(master_addr);
    if (secret)
        options->secret = forming->secret = adli_memdup(secret, options->secret_length, 1);
    if ((master_addr && !forming->master_addr) || (secret && !forming->secret))
        return adli_fail_memory("a group");
    forming->asked = options->cancelled;
    forming->asked_context = options->cancel_context;
    options->cancelled = is_cancelled;
    options->cancel_context = forming;
    return ADL_OK;
}

adl_status adl_group_begin(const adl_group_options *given, adl_forming **out)
{
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    *out = NULL;
    adl_status status = adli_options_take("adl_group_options", &options, sizeof options, given);
    if (status != ADL_OK)
        return status;
    adl_forming *forming = adli_calloc(1, sizeof *forming);
    status = forming ? copy_options(forming, &options) : adli_fail_memory("a group");
    if (status == ADL_OK)
        status = adli_thread_start(&forming->thread, "adl-form", form, forming);
    if (status == ADL_OK) {
        *out = forming;
        return ADL_OK;
    }
    if (options.listen_fd >= 0) /* taken over in any case */
        close(options.listen_fd);
    free_forming(forming);
    return status;
}

bool adl_group_test(const adl_forming *forming)
{
    return atomic_load(&forming->done);
}

adl_status adl_group_finish(adl_forming *forming, adl_group **out)
{
    pthread_join(forming->thread, NULL);
    *out = forming->group;
    adl_status status = forming->status;
    if (status != ADL_OK)
        status = adli_fail(status, "%s", forming->text);
    free_forming(forming);
    return status;
}

void adl_group_cancel(adl_forming *forming)
{
    adl_group *group;
    if (!forming)
        return;
    atomic_store(&forming->cancelled, true);
    if (adl_group_finish(forming, &group) == ADL_OK)
        adl_group_free(group);
}
