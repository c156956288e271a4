/* What the helper programs are told on their command lines: name=number words. */
#ifndef ADLI_TEST_WORDS_H
#define ADLI_TEST_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct adlt_word {
    const char *name;
    int *value;
} adlt_word;

/* False: a word that is not among them, or no number is given. */
static bool adlt_read_words(int argc, char **argv, const adlt_word *words, size_t count)
{
    for (int i = 1; i < argc; i++) {
        size_t known = 0, length = strcspn(argv[i], "=");
        while (known < count &&
               (strncmp(words[known].name, argv[i], length) != 0 || words[known].name[length]))
            known++;
        if (known == count || !argv[i][length])
            return false;
        *words[known].value = atoi(argv[i] + length + 1);
    }
    return true;
}

#endif
