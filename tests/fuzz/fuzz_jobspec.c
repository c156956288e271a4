/* Job files from arbitrary bytes, as YAML and as JSON: a job that holds what jobspec.h promises,
 * whose canonical JSON gives the same job again, or an error on one line. */
#include "jobspec/jobspec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const adli_jobfile *spec)
{
    if (!!*spec->name == !!*spec->generate_name || (*spec->name && !adli_name_valid(spec->name)) ||
        !adli_name_valid(spec->ns) || !adli_name_valid(spec->container))
        abort();
    if (spec->argc < 1 || !*spec->argv[0] || spec->argv[spec->argc] || spec->min_replicas < 0 ||
        (spec->max_replicas && spec->max_replicas < spec->min_replicas))
        abort();
    for (int i = 0; i < spec->requests.count; i++)
        if (spec->requests.amounts[i] < 0 || strcmp(spec->requests.names[i], "pods") == 0)
            abort();
    for (int i = 0; i < spec->warning_count; i++)
        if (strchr(spec->warnings[i], '\n'))
            abort();
}

static void check_again(const adli_jobfile *spec)
{
    adli_jobfile again;
    if (adli_jobfile_parse("again", spec->json, strlen(spec->json), ADLI_DOC_JSON, &again) !=
            ADL_OK ||
        strcmp(again.json, spec->json) != 0 || again.argc != spec->argc ||
        again.requests.count != spec->requests.count || again.env.count != spec->env.count)
        abort();
    for (int i = 0; i < spec->requests.count; i++)
        if (adli_amounts_get(&again.requests, spec->requests.names[i]) != spec->requests.amounts[i])
            abort();
    adli_jobfile_fini(&again);
}

static void try_format(const char *text, size_t size, adli_doc_format format)
{
    adli_jobfile spec;
    if (adli_jobfile_parse("fuzz", text, size, format, &spec) == ADL_OK) {
        check(&spec);
        check_again(&spec);
    } else if (strncmp(adl_error(), "fuzz:", 5) != 0 || strchr(adl_error(), '\n')) {
        abort();
    }
    adli_jobfile_fini(&spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_format((const char *)data, size, ADLI_DOC_YAML);
    try_format((const char *)data, size, ADLI_DOC_JSON);
    return 0;
}
