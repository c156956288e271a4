/* A job is given its token inside of an address (ADAPTDL_SUPERVISOR_URL is http://job:TOKEN@HOST), since that is what HTTP
 * clients in any language understand. An error that names the address would carry the token into logs, which more people
 * read than may speak for the job. So errors and log lines pass through here, all of them: no caller has to remember. */
#include "base/mask.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char STARS[] = "***";

/* The end of "job:TOKEN" before its @; NULL: there is none. cut: the text goes on, and is not all here. */
static char *user_end(char *start, bool cut)
{
    size_t length = strcspn(start, "/?# \t\r\n\"'<>");
    char *at = NULL;
    for (size_t i = 0; i < length; i++)
        if (start[i] == '@')
            at = start + i;
    if (at || start[length] || !cut)
        return at;
    /* Only a host and its port are sure to be no secret. */
    const char *colon = memchr(start, ':', length);
    return colon && *start != '[' && strspn(colon + 1, "0123456789") < strlen(colon + 1)
               ? start + length
               : NULL;
}

static void mask(char *text, bool cut)
{
    for (char *at = text; (at = strstr(at, "://")); at += 3) {
        char *end = user_end(at + 3, cut);
        if (!end)
            continue;
        size_t room = (size_t)(end - at) - 3, stars = strlen(STARS);
        stars = stars < room ? stars : room;
        memcpy(at + 3, STARS, stars);
        memmove(at + 3 + stars, end, strlen(end) + 1);
    }
}

void adli_mask(char *text)
{
    mask(text, false);
}

void adli_print_masked(char *text, size_t size, const char *format, va_list args)
{
    mask(text, vsnprintf(text, size, format, args) >= (int)size);
}
