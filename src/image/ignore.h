/* .dockerignore: which files of a directory are left out. The rules are Docker's: one pattern a
 * line, "#" comments, "*", "?" and "[...]" within a component, "**" for any number of
 * components, "!" takes a file back in; the last pattern that matches the file or a directory
 * above it decides. */
#ifndef ADLI_IMAGE_IGNORE_H
#define ADLI_IMAGE_IGNORE_H

#include "image/words.h"

#include <stdbool.h>

/* Start with {0}. */
typedef struct adli_ignore {
    adli_words patterns; /* cleaned; "!" first where it stood */
    bool exceptions; /* some start with "!": then a directory that is left out must be searched */
} adli_ignore;

ADL_MUST adl_status adli_ignore_parse(adli_ignore *ignore, const char *text, size_t length);
void adli_ignore_fini(adli_ignore *ignore);

/* path: relative to the directory, without "." and ".." */
bool adli_ignore_match(const adli_ignore *ignore, const char *path);

#endif
