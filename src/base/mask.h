/* Messages without secrets: what stands before the @ of an address in them is not shown. */
#ifndef ADLI_MASK_H
#define ADLI_MASK_H

#include <stdarg.h>
#include <stddef.h>

/* Of "http://job:TOKEN@host", "job:TOKEN" becomes three stars, wherever in the text, which is never longer than before. */
void adli_mask(char *text);
/* vsnprintf, masked. Of an address that is cut off for want of room, what may be the beginning of a password goes too. */
__attribute__((format(printf, 3, 0))) void adli_print_masked(char *text, size_t size,
                                                             const char *format, va_list args);

#endif
