/* A list of texts that ends with NULL. */
#ifndef ADLI_IMAGE_WORDS_H
#define ADLI_IMAGE_WORDS_H

#include "base/status.h"

#include <stddef.h>

/* Start with {0}. */
typedef struct adli_words {
    char **list; /* [count], then NULL; NULL while there is none */
    size_t count, capacity;
} adli_words;

ADL_MUST adl_status adli_words_add(adli_words *words, const char *text, size_t length);
void adli_words_clear(adli_words *words);
void adli_words_fini(adli_words *words);

/* "NAME=value" lists: sets the value of NAME, in place when it is there. */
ADL_MUST adl_status adli_words_set(adli_words *words, const char *name, const char *value);
/* The value of NAME (of name_length bytes); NULL when it is not there. */
const char *adli_words_get(const adli_words *words, const char *name, size_t name_length);

#endif
