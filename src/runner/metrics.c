/* Metrics: for each name three sums over batches and replicas, w = sum of weights, s1 = sum of w v and
 * s2 = sum of w v^2, in an accumulator that outlives restarts. From them
 *     mean = s1 / w,   std = sqrt((s2 - s1^2 / w) / (w - 1)),
 * the mean weighted by examples (not a mean of means) and the spread of the batches around it. */
#include "runner/runner.h"

#include "base/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A metric's sums are "NAME w", "NAME 1" and "NAME 2": a blank is in no metric's name. */
enum { KEY_BYTES = ADL_ACCUMULATOR_KEY_MAX + 8 };

adl_status adli_check_metric_name(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length > ADL_RUNNER_NAME_MAX)
        return adli_fail(ADL_EINVAL, "metric \"%.60s\": a name of %zu bytes, 1 .. %d are allowed",
                         name ? name : "", length, ADL_RUNNER_NAME_MAX);
    for (const char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("_-./:@", *at))
            return adli_fail(ADL_EINVAL, "metric \"%s\": the character '%c' is not allowed in it",
                             name, *at);
    return ADL_OK;
}

static adl_status add(adl_accumulator *sums, const char *name, double value, double weight)
{
    const struct {
        const char *suffix;
        double amount;
    } parts[] = {{" w", weight}, {" 1", weight * value}, {" 2", weight * value * value}};
    adl_status status = ADL_OK;
    size_t length = strlen(name);
    char key[KEY_BYTES];
    memcpy(key, name, length);
    for (size_t i = 0; i < ADLI_COUNT(parts) && status == ADL_OK; i++) {
        memcpy(key + length, parts[i].suffix, sizeof " w");
        status = adl_accumulator_add(sums, key, parts[i].amount);
    }
    return status;
}

int adli_count_topk(const float *out, const int32_t *label, int size, int width, int k)
{
    int correct = 0;
    for (int b = 0; b < size; b++) {
        const float *row = out + (size_t)b * (size_t)width;
        int before = 0; /* values that come before the label's; the first one counts among equals */
        if (label[b] < 0 || label[b] >= width)
            continue;
        float own = row[label[b]];
        for (int i = 0; i < width; i++)
            before += row[i] > own || (i < label[b] && row[i] == own);
        correct += before < k && !isnan(own);
    }
    return correct;
}

/* An example that another replica has too is trained on by both, and counts where it is not extra. */
adl_status adli_runner_count(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    adl_accumulator *sums = runner->loader->sums;
    const void *target = runner->batch->part[options->target_part];
    int own = runner->batch->size - runner->batch->extra;
    double loss = runner->loss;
    adl_status status = ADL_OK;
    if (own == 0)
        return ADL_OK;
    if (own < runner->size)
        status = options->loss(options->loss_user, runner->out, target, own, options->model.width,
                               &loss, NULL);
    if (status == ADL_OK)
        status = add(sums, "loss", loss, own);
    for (int i = 0; i < ADL_RUNNER_TOPK_MAX && options->topk[i] && status == ADL_OK; i++) {
        char name[16];
        int correct =
            adli_count_topk(runner->out, target, own, options->model.width, options->topk[i]);
        snprintf(name, sizeof name, "accuracy%02d", options->topk[i]);
        status = add(sums, name, (double)correct / own, own);
    }
    return status;
}

static adl_status set(adli_table *table, const char *name, const char *suffix, double value)
{
    char key[KEY_BYTES];
    adli_table_entry *entry;
    snprintf(key, sizeof key, "%s%s", name, suffix);
    adl_status status = adli_table_entry_of(table, key, &entry);
    if (status == ADL_OK)
        entry->value = value;
    return status;
}

/* One metric out of its three sums. */
static adl_status derive(const adl_accumulator *sums, const char *name, adli_table *out)
{
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "%s w", name);
    double w = adl_accumulator_get(sums, key);
    snprintf(key, sizeof key, "%s 1", name);
    double s1 = adl_accumulator_get(sums, key);
    snprintf(key, sizeof key, "%s 2", name);
    double s2 = adl_accumulator_get(sums, key);
    double spread = w > 1 ? (s2 - s1 * s1 / w) / (w - 1) : 0;
    adl_status status = set(out, name, "", s1 / w);
    if (status == ADL_OK && strcmp(name, "loss") == 0)
        status = set(out, name, "/mean", s1 / w);
    if (status == ADL_OK)
        status = set(out, name, "/std", spread < 0 ? 0 : sqrt(spread)); /* NaN stays NaN */
    return status;
}

static adl_status derive_all(const adl_accumulator *sums, adli_table *out)
{
    adl_status status = ADL_OK;
    for (size_t i = 0; i < adl_accumulator_count(sums) && status == ADL_OK; i++) {
        char name[ADL_ACCUMULATOR_KEY_MAX + 1];
        snprintf(name, sizeof name, "%s", adl_accumulator_key(sums, i));
        char *blank = strchr(name, ' ');
        if (!blank || strcmp(blank, " w") != 0)
            continue;
        *blank = '\0';
        status = derive(sums, name, out);
    }
    return status;
}

static adl_status set_rates(const adl_runner *runner, adli_table *out)
{
    adl_status status = set(out, "lr", "", adl_runner_lr(runner));
    return status == ADL_OK ? set(out, "momentum", "", runner->options.momentum) : status;
}

adl_status adli_runner_collect(adl_runner *runner, size_t loader)
{
    adl_accumulator *sums = runner->loaders[loader].sums;
    adli_table *out = &runner->current[loader];
    adl_status status = adl_context_status(runner->ctx);
    adli_table_clear(out);
    ADL_SYNCHRONIZED (sums) {
        status = derive_all(sums, out);
        if (status == ADL_OK && !runner->loaders[loader].infer)
            status = set_rates(runner, out);
        adl_accumulator_clear(sums);
    }
    return status == ADL_OK ? adl_context_status(runner->ctx) : status;
}

adl_status adli_runner_epoch_rates(adl_runner *runner)
{
    return set_rates(runner, &runner->current[runner->loader_count]);
}

adl_status adl_runner_metric(adl_runner *runner, const char *name, double value, double weight)
{
    adl_status status = adli_check_metric_name(name);
    if (status == ADL_OK && runner->ending)
        return set(&runner->current[runner->loader_count], name, "", value);
    if (status == ADL_OK && !runner->batch)
        status = adli_fail(ADL_ESTATE, "metric %s: only batch_end and epoch_end may add one", name);
    if (status == ADL_OK && !(weight >= 0 && weight < HUGE_VAL))
        status = adli_fail(ADL_EINVAL, "metric %s: a weight of %g", name, weight);
    return status == ADL_OK ? add(runner->loader->sums, name, value, weight) : status;
}

size_t adli_runner_table(const adl_runner *runner, const char *key)
{
    size_t t = 0;
    while (t < runner->state.table_count && strcmp(runner->state.tables[t].key, key) != 0)
        t++;
    return t;
}

/* "a, b, c" for messages. */
static void list_names(const adli_table *table, adli_buf *buf)
{
    for (size_t i = 0; i < table->count; i++)
        adli_buf_printf(buf, "%s%s", i ? ", " : "", table->entries[i].key);
    if (table->count == 0)
        adli_buf_puts(buf, "none");
}

adl_status adl_runner_get(const adl_runner *runner, const char *key, const char *name, double *out)
{
    size_t t = adli_runner_table(runner, key);
    if (t == runner->state.table_count)
        return adli_fail(ADL_ENOENT, "there is no loader \"%s\"", key);
    const adli_table *table = &runner->current[t];
    const adli_table_entry *entry = adli_table_find(table, name);
    if (!entry && strcmp(name, "accuracy") == 0)
        entry = adli_table_find(table, "accuracy01");
    if (entry) {
        *out = entry->value;
        return ADL_OK;
    }
    adli_buf names;
    adli_buf_init(&names, 4096);
    list_names(table, &names);
    adl_status status =
        adli_fail(ADL_ENOENT, "nobody computes the metric \"%s\" of loader %s; there are: %s", name,
                  key, adli_buf_check(&names) == ADL_OK ? names.data : "?");
    adli_buf_fini(&names);
    return status;
}
