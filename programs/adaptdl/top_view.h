/* One picture of the cluster for `adaptdl top`. */
#ifndef ADAPTDL_TOP_VIEW_H
#define ADAPTDL_TOP_VIEW_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct top_size {
    int width, height; /* height 0: as high as it gets */
    bool colours;
} top_size;

/* Which job has which letter, from picture to picture: it keeps it as long as it is shown. Start with {0}. */
typedef struct top_letters {
    char (*owners)[40]; /* [count] uids */
    size_t count, capacity;
} top_letters;
void top_letters_fini(top_letters *letters);

/* Appends the picture, lines ended by "\n". state and jobs: the scheduler's answers for /cluster
 * and /jobs. */
void top_draw(adli_buf *out, const json_t *state, const json_t *jobs, const top_size *size,
              top_letters *letters);

#endif
