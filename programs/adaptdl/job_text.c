#include "job_text.h"

#include "jobspec/jobspec.h"
#include "jobspec/quantity.h"

#include <ctype.h>
#include <string.h>

static int take_amount(const char *command, const char *option, const char *resource,
                       const char *text, const char **out)
{
    int64_t amount;
    if (adli_resource_parse(resource, text, &amount) != ADL_OK)
        return usage_error(command, "--%s %s: %s", option, text, adl_error());
    *out = text;
    return EXIT_DONE;
}

int take_wish(cli *c, int option, job_wishes *wishes)
{
    const char *command = c->command->name;
    double number;
    switch (option) {
    case WISH_GPUS:
        return take_amount(command, "gpus", "nvidia.com/gpu", c->value, &wishes->gpus);
    case WISH_CPUS:
        return take_amount(command, "cpus", "cpu", c->value, &wishes->cpus);
    case WISH_MEMORY:
        return take_amount(command, "memory", "memory", c->value, &wishes->memory);
    case WISH_MIN:
        wishes->has_min = true;
        if (!cli_whole(c->value, 0, ADLI_REPLICAS_MAX, &wishes->min_replicas))
            return usage_error(command, "--min-replicas %s: must be from 0 to %d", c->value,
                               ADLI_REPLICAS_MAX);
        return EXIT_DONE;
    case WISH_MAX:
        if (!cli_whole(c->value, 1, ADLI_REPLICAS_MAX, &wishes->max_replicas))
            return usage_error(command, "--max-replicas %s: must be from 1 to %d", c->value,
                               ADLI_REPLICAS_MAX);
        return EXIT_DONE;
    case WISH_PRIORITY:
        if (!cli_number(c->value, ADLI_PRIORITY_LOW, ADLI_PRIORITY_HIGH, &number))
            return usage_error(command, "--priority %s: must be from %g to %g", c->value,
                               ADLI_PRIORITY_LOW, ADLI_PRIORITY_HIGH);
        wishes->priority = c->value;
        break;
    }
    return EXIT_DONE;
}

/* The program's own file: of an interpreter the script that it is given. */
static const char *own_file(char *const *words, int count)
{
    for (int i = 1; i < count; i++) {
        size_t length = strlen(words[i]);
        if (length > 3 && strcmp(words[i] + length - 3, ".py") == 0)
            return words[i];
    }
    return words[0];
}

void name_of_program(char *const *words, int count, char out[60])
{
    const char *file = own_file(words, count), *slash = strrchr(file, '/');
    size_t used = 0;
    for (const char *p = slash ? slash + 1 : file; *p && *p != '.' && used < 50; p++) {
        bool plain = isalnum((unsigned char)*p) && (unsigned char)*p < 128;
        if (plain)
            out[used++] = (char)tolower((unsigned char)*p);
        else if (used > 0 && out[used - 1] != '-')
            out[used++] = '-';
    }
    if (used == 0) {
        memcpy(out, "job", 3);
        used = 3;
    }
    if (out[used - 1] != '-')
        out[used++] = '-';
    out[used] = '\0';
}

static void put_resources(adli_buf *out, const job_wishes *wishes)
{
    if (!wishes->cpus && !wishes->memory && !wishes->gpus)
        return;
    adli_buf_puts(out, "        resources:\n");
    if (wishes->cpus || wishes->memory)
        adli_buf_printf(out, "          requests: {%s%s%s%s%s}\n", wishes->cpus ? "cpu: " : "",
                        wishes->cpus ? wishes->cpus : "",
                        wishes->cpus && wishes->memory ? ", " : "",
                        wishes->memory ? "memory: " : "", wishes->memory ? wishes->memory : "");
    if (wishes->gpus)
        adli_buf_printf(out, "          limits: {nvidia.com/gpu: %s}\n", wishes->gpus);
}

void put_job_text(adli_buf *out, char *const *words, int count, const job_wishes *wishes,
                  bool comments)
{
    char name[60];
    name_of_program(words, count, name);
    if (comments)
        adli_buf_puts(out, "# A job for adaptdl: adaptdl submit DIR. Every field: docs/jobs.md\n");
    adli_buf_printf(out,
                    "apiVersion: " ADLI_JOB_API_VERSION "\nkind: " ADLI_JOB_KIND
                    "\nmetadata:\n  generateName: %s\nspec:\n",
                    name);
    if (wishes->has_min)
        adli_buf_printf(out, "  minReplicas: %d\n", wishes->min_replicas);
    if (wishes->max_replicas)
        adli_buf_printf(out, "  maxReplicas: %d\n", wishes->max_replicas);
    else if (comments)
        adli_buf_puts(out, "  # maxReplicas: 4     # it grows as far as that pays\n");
    if (wishes->priority)
        adli_buf_printf(out, "  priority: %s\n", wishes->priority);
    adli_buf_puts(out, "  template:\n    spec:\n      containers:\n      - name: main\n"
                       "        command: [");
    for (int i = 0; i < count; i++) {
        adli_buf_puts(out, i ? ", " : "");
        adli_buf_json(out, words[i]);
    }
    adli_buf_puts(out, "]\n");
    put_resources(out, wishes);
    if (comments && !wishes->cpus && !wishes->memory && !wishes->gpus)
        adli_buf_puts(out, "        # resources:       # of one replica\n"
                           "        #   requests: {cpu: 1, memory: 1Gi}\n"
                           "        #   limits: {nvidia.com/gpu: 1}\n");
}
