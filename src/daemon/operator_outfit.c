/* What an administrator adds to the pods of all jobs: resources where a job names none, and changes (JSON patches). They
 * are made to the template when the job arrives, so that the scheduler counts what the pods will ask for. What the
 * scheduler itself puts into pods comes later, and stays. */
#include "daemon/operator_impl.h"

#include "base/json.h"
#include "base/json_patch.h"
#include "config/config.h"

#include <string.h>

static adl_status read_one(const char *name, const char *text, bool patch, json_t **out)
{
    *out = NULL;
    if (!*text)
        return ADL_OK;
    adl_status status = adli_json_parse(text, strlen(text), out);
    if (status == ADL_OK && patch)
        status = adli_json_patch_check(*out);
    else if (status == ADL_OK && !json_is_object(*out))
        status = adli_fail(ADL_EINVAL, "expected an object with requests and limits");
    return status == ADL_OK ? ADL_OK : adli_fail(ADL_EINVAL, "%s: %s", name, adl_error());
}

adl_status adli_outfit_init(adli_outfit *outfit, const adli_config *config)
{
    adl_status status = read_one("kubernetes.defaultResources", config->kubernetes.resources, false,
                                 &outfit->resources);
    if (status == ADL_OK)
        status = read_one("kubernetes.podPatch", config->kubernetes.pod_patch, true, &outfit->pod);
    if (status == ADL_OK)
        status = read_one("kubernetes.containerPatch", config->kubernetes.container_patch, true,
                          &outfit->container);
    return status;
}

void adli_outfit_fini(adli_outfit *outfit)
{
    json_decref(outfit->resources);
    json_decref(outfit->pod);
    json_decref(outfit->container);
    *outfit = (adli_outfit){0};
}

/* A container that asks for anything at all means what it says. */
static void give_resources(const adli_outfit *outfit, json_t *container)
{
    const json_t *own = json_object_get(container, "resources");
    if (outfit->resources && json_is_object(container) &&
        json_object_size(json_object_get(own, "requests")) == 0 &&
        json_object_size(json_object_get(own, "limits")) == 0)
        json_object_set_new(container, "resources", json_deep_copy(outfit->resources));
}

adl_status adli_outfit_dress(const adli_outfit *outfit, json_t *template)
{
    const json_t *containers = json_object_get(json_object_get(template, "spec"), "containers");
    adl_status status = ADL_OK;
    size_t i;
    json_t *container;
    give_resources(outfit, json_array_get(containers, 0));
    json_array_foreach(containers, i, container)
    {
        if (status == ADL_OK && outfit->container)
            status = adli_json_patch(container, outfit->container);
    }
    if (status != ADL_OK)
        return adli_fail(ADL_EINVAL, "kubernetes.containerPatch: %s", adl_error());
    if (outfit->pod && adli_json_patch(template, outfit->pod) != ADL_OK)
        return adli_fail(ADL_EINVAL, "kubernetes.podPatch: %s", adl_error());
    return ADL_OK;
}
