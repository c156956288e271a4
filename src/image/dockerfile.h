/* The text of a Dockerfile as a list of instructions, and the small languages inside them: words
 * with quotes and variables, and JSON lists. */
#ifndef ADLI_IMAGE_DOCKERFILE_H
#define ADLI_IMAGE_DOCKERFILE_H

#include "image/words.h"

#include <stdbool.h>

enum { ADLI_DOCKERFILE_MAX_BYTES = 1 << 20, ADLI_DOCKERFILE_LINES_MAX = 10000 };

typedef struct adli_instruction {
    int line;
    char name[16];   /* in capitals */
    char *arguments; /* continued lines joined, comments between them gone */
    bool document;   /* a here-document followed; its text is skipped */
} adli_instruction;

/* Start with {0}. */
typedef struct adli_dockerfile {
    const char *path; /* for messages; borrowed */
    adli_instruction *list;
    size_t count, capacity;
    char escape; /* '\\', or what "# escape=" says */
} adli_dockerfile;

/* EINVAL: "path:line: what". Call adli_dockerfile_fini whatever the result. */
ADL_MUST adl_status adli_dockerfile_parse(adli_dockerfile *file, const char *path, const char *text,
                                          size_t length);
void adli_dockerfile_fini(adli_dockerfile *file);

/* EINVAL with "path:line: " before the message. */
adl_status adli_dockerfile_fail(const adli_dockerfile *file, const adli_instruction *at,
                                const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The words of a text: quotes and escapes undone, $NAME, ${NAME}, ${NAME:-word} and ${NAME:+word}
 * replaced. variables: "NAME=value"; unknown ones are empty. */
ADL_MUST adl_status adli_dockerfile_words(const adli_dockerfile *file, const adli_instruction *at,
                                          const char *text, const adli_words *variables,
                                          adli_words *out);
/* The same without cutting at spaces: one word. */
ADL_MUST adl_status adli_dockerfile_word(const adli_dockerfile *file, const adli_instruction *at,
                                         const char *text, const adli_words *variables,
                                         adli_words *out);
/* A JSON list of texts. *is_list is false, and out empty, when the text is anything else. */
ADL_MUST adl_status adli_dockerfile_list(const char *text, adli_words *out, bool *is_list);

#endif
