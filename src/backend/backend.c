/* The registry of backends, and what all of them share. */
#include "backend/backend.h"

#include "base/mem.h"
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const adli_backend_class *const classes[] = {&adli_backend_local, &adli_backend_kubernetes};

const char *adli_backend_list(int index, const char **summary)
{
    if (index < 0 || index >= (int)ADLI_COUNT(classes))
        return NULL;
    if (summary)
        *summary = classes[index]->summary;
    return classes[index]->name;
}

adl_status adli_backend_open(const char *name, const adli_backend_options *options,
                             adli_backend **out)
{
    adli_backend_options own = ADLI_BACKEND_OPTIONS_INIT;
    char names[256] = "";
    *out = NULL;
    adl_status status = adli_options_take("backend", &own, sizeof own, options);
    if (status != ADL_OK)
        return status;
    for (size_t i = 0, used = 0; i < ADLI_COUNT(classes); i++) {
        if (!*name || strcmp(classes[i]->name, name) == 0)
            return classes[i]->open(&own, out);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 classes[i]->name);
    }
    return adli_fail(ADL_EINVAL, "unknown backend \"%s\"; there are: %s", name, names);
}

void adli_opened_fini(adli_opened *opened)
{
    if (opened->fd >= 0)
        close(opened->fd);
    for (size_t i = 0; i < opened->count; i++)
        free(opened->entries[i].name);
    free(opened->entries);
    *opened = (adli_opened){.fd = -1};
}
