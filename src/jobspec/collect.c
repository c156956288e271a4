/* What the readers of job files, node files and configurations have in common. */
#include "jobspec/collect.h"

#include "base/mem.h"
#include "jobspec/quantity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_keep(char **slot, const char *text)
{
    char *copy = adli_strdup(text);
    if (!copy)
        return adli_fail_memory("a text");
    free(*slot);
    *slot = copy;
    return ADL_OK;
}

static adli_pair *find_pair(const adli_pairs *pairs, const char *name)
{
    for (size_t i = 0; i < pairs->count; i++)
        if (strcmp(pairs->items[i].name, name) == 0)
            return &pairs->items[i];
    return NULL;
}

const char *adli_pairs_get(const adli_pairs *pairs, const char *name)
{
    const adli_pair *pair = find_pair(pairs, name);
    return pair ? pair->value : NULL;
}

adl_status adli_pairs_set(adli_pairs *pairs, const char *name, const char *value)
{
    adli_pair *pair = find_pair(pairs, name);
    if (pair)
        return adli_keep(&pair->value, value);
    if (adli_grow(&pairs->items, &pairs->capacity, pairs->count + 1, sizeof *pairs->items) != 0)
        return adli_fail_memory("a list of names and values");
    adli_pair fresh = {adli_strdup(name), adli_strdup(value)};
    if (!fresh.name || !fresh.value) {
        free(fresh.name);
        free(fresh.value);
        return adli_fail_memory("a list of names and values");
    }
    pairs->items[pairs->count++] = fresh;
    return ADL_OK;
}

void adli_pairs_fini(adli_pairs *pairs)
{
    for (size_t i = 0; i < pairs->count; i++) {
        free(pairs->items[i].name);
        free(pairs->items[i].value);
    }
    free(pairs->items);
    *pairs = (adli_pairs){0};
}

int64_t adli_amounts_get(const adli_amounts *amounts, const char *name)
{
    for (int i = 0; i < amounts->count; i++)
        if (strcmp(amounts->names[i], name) == 0)
            return amounts->amounts[i];
    return 0;
}

adl_status adli_amounts_set(adli_amounts *amounts, const char *name, int64_t amount)
{
    int i = 0;
    while (i < amounts->count && strcmp(amounts->names[i], name) != 0)
        i++;
    if (i == amounts->count) {
        amounts->names[i] = adli_strdup(name);
        if (!amounts->names[i])
            return adli_fail_memory("a resource");
        amounts->count++;
    }
    amounts->amounts[i] = amount;
    return ADL_OK;
}

void adli_amounts_fini(adli_amounts *amounts)
{
    for (int i = 0; i < amounts->count; i++)
        free(amounts->names[i]);
    *amounts = (adli_amounts){0};
}

static adl_status read_amount(const adli_field *field, int64_t *out)
{
    char number[32];
    adli_buf shortest;
    const char *text = number;
    adl_status status = ADL_OK;
    if (json_is_integer(field->value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(field->value));
    } else if (json_is_real(field->value)) {
        adli_buf_init(&shortest, sizeof number - 1);
        adli_buf_double(&shortest, json_real_value(field->value));
        status = adli_buf_check(&shortest);
        if (status == ADL_OK)
            memcpy(number, shortest.data, shortest.length + 1);
        adli_buf_fini(&shortest);
    } else if (json_is_string(field->value)) {
        status = adli_field_text(field, 256, &text);
    } else {
        return adli_field_fail(field, "expected a quantity (such as 2, 500m, 1.5, 8Gi)");
    }
    if (status == ADL_OK) {
        status = adli_resource_parse(field->key, text, out);
        if (status == ADL_EINVAL)
            status = adli_field_fail(field, "%s", adl_error());
    }
    return status;
}

adl_status adli_amounts_read(const adli_field *field, int most, bool pods, adli_amounts *out)
{
    adl_status status = adli_field_object(field);
    if (status == ADL_OK && adli_field_count(field) > (size_t)most)
        status = adli_field_fail(field, "has %zu kinds of resources, at most %d are allowed",
                                 adli_field_count(field), most);
    for (size_t i = 0; i < adli_field_count(field) && status == ADL_OK; i++) {
        adli_field member = adli_field_at(field, i);
        const char *near;
        int64_t amount;
        bool is_pods = strcmp(member.key, "pods") == 0;
        if (is_pods && !pods)
            return adli_field_fail(&member, "every replica is one pod; this cannot be set");
        if (!is_pods && !adli_resource_name_valid(member.key, &near))
            return adli_field_fail(&member,
                                   "unknown resource%s%s%s (one of your own needs a "
                                   "domain, such as example.com/licence)",
                                   near ? "; did you mean \"" : "", near ? near : "",
                                   near ? "\"?" : "");
        status = read_amount(&member, &amount);
        if (status == ADL_OK)
            status = adli_amounts_set(out, member.key, amount);
    }
    return status;
}

/* The variable named between "$(" at text and ")" at end; NULL when there is none. */
static const char *variable_at(const char *text, const char *end, const adli_pairs *variables)
{
    char name[256];
    size_t length = (size_t)(end - text) - 2;
    if (length >= sizeof name)
        return NULL;
    memcpy(name, text + 2, length);
    name[length] = '\0';
    return adli_pairs_get(variables, name);
}

size_t adli_expand(const char *text, const adli_pairs *variables, adli_buf *out)
{
    size_t total = 0;
    adli_buf_append(out, "", 0);
    while (*text) {
        const char *piece = text, *end = text[1] == '(' ? strchr(text, ')') : NULL;
        size_t taken = strcspn(text, "$"), length = taken;
        if (taken == 0 && text[1] == '$') {
            taken = 2;
            length = 1;
        } else if (taken == 0 && end) {
            const char *value = variable_at(text, end, variables);
            taken = length = (size_t)(end - text) + 1;
            if (value) {
                piece = value;
                length = strlen(value);
            }
        } else if (taken == 0) {
            taken = length = 1;
        }
        adli_buf_append(out, piece, length);
        total += length;
        text += taken;
    }
    return total;
}
