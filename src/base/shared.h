/* A text that several may have at a time: it goes when the last one lets go of it. Any thread. */
#ifndef ADLI_SHARED_H
#define ADLI_SHARED_H

#include "base/buf.h"

#include <stdatomic.h>
#include <stdint.h>

typedef struct adli_shared {
    char *data;
    size_t length;
    uint64_t print; /* of the text, from whoever made it; 0: not known */
    atomic_int holders;
} adli_shared;

/* Takes the buffer's storage over; the caller holds the text. NULL: no memory, and the buffer is as it was. */
adli_shared *adli_shared_take(adli_buf *text);
/* One more holder; NULL is fine. */
adli_shared *adli_shared_hold(adli_shared *text);
/* NULL is fine. */
void adli_shared_drop(adli_shared *text);

#endif
