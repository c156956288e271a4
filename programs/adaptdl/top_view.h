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

/* Appends the picture, lines ended by "\n". state and jobs: the scheduler's answers for /cluster
 * and /jobs. */
void top_draw(adli_buf *out, const json_t *state, const json_t *jobs, const top_size *size);

#endif
