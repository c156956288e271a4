/* UTF-8 of others, checked in one place. What may be shown where is each caller's own rule on code
 * points. */
#ifndef ADLI_UTF8_H
#define ADLI_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The character at text, of at most `left` bytes: its length, and its code point in *code (may be NULL).
 * 0: none begins there. Overlong forms, surrogates and what is beyond U+10FFFF are none (RFC 3629). NUL
 * is a character of one byte, and never part of another. */
size_t adli_utf8_decode(const char *text, size_t left, uint32_t *code);

/* Is all of a NUL-terminated text UTF-8? */
bool adli_utf8_valid(const char *text);

#endif
