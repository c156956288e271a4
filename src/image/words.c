#include "image/words.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_words_add(adli_words *words, const char *text, size_t length)
{
    if (adli_grow(&words->list, &words->capacity, words->count + 2, sizeof *words->list) != 0)
        return adli_fail_memory("list of words");
    char *copy = adli_calloc(length + 1, 1);
    if (!copy)
        return adli_fail_memory("word");
    memcpy(copy, text, length);
    words->list[words->count++] = copy;
    words->list[words->count] = NULL;
    return ADL_OK;
}

void adli_words_clear(adli_words *words)
{
    for (size_t i = 0; i < words->count; i++)
        free(words->list[i]);
    words->count = 0;
    if (words->list)
        words->list[0] = NULL;
}

void adli_words_fini(adli_words *words)
{
    adli_words_clear(words);
    free(words->list);
    *words = (adli_words){0};
}

static size_t find(const adli_words *words, const char *name, size_t length)
{
    size_t i = 0;
    while (i < words->count &&
           (strncmp(words->list[i], name, length) != 0 || words->list[i][length] != '='))
        i++;
    return i;
}

adl_status adli_words_set(adli_words *words, const char *name, const char *value)
{
    size_t length = strlen(name), at = find(words, name, length);
    size_t whole = length + 1 + strlen(value);
    char *text = adli_calloc(whole + 1, 1);
    if (!text)
        return adli_fail_memory("variable");
    snprintf(text, whole + 1, "%s=%s", name, value);
    if (at < words->count) {
        free(words->list[at]);
        words->list[at] = text;
        return ADL_OK;
    }
    adl_status status = adli_words_add(words, text, whole);
    free(text);
    return status;
}

const char *adli_words_get(const adli_words *words, const char *name, size_t name_length)
{
    size_t at = find(words, name, name_length);
    return at < words->count ? words->list[at] + name_length + 1 : NULL;
}
