/* Whoever opens worlds. Under a launcher: each replica holds a connection to it (ADAPTDL_WORLD_SOCKET), on which lines
 * of text are spoken. On a cluster: the scheduler (ADAPTDL_SUPERVISOR_URL with ADAPTDL_MEMBER), to which the same lines
 * go by PUT /world/{namespace}/{name}, and whose worlds come by GET, a long poll (docs/api.md).
 *
 *     replica -> opener                             opener -> replica
 *     member N            its first line            world G NODES ADDRESS PORT MEMBER...   the next world
 *     able                its loops can regroup      drop G               nothing comes of worlds up to G
 *     ready               a newcomer waits to join
 *     entered G           it is in world G
 *     paused G SECONDS    rank 0: no step was under way for so long
 *     refused G WHY       rank 0: world G does not come to be
 *     lost G STEPS MEMBER world G has lost a member (-1: not known which); so many steps were applied
 *     unformed G          the group of world G, which was to be without the lost, did not form here
 *
 * What was said is said again to a scheduler that was restarted. With its answers it may ask for checkpoints: "saves" is how
 * many it has asked for. */
#ifndef ADLI_TRAIN_OPENER_H
#define ADLI_TRAIN_OPENER_H

#include "adaptdl/context.h"

typedef struct adli_opener adli_opener;

struct adli_opener {
    void (*say)(adli_opener *self, const char *line);
    void (*stop)(adli_opener *self); /* frees it */
};

/* Begins to listen, if the environment names somebody. */
ADL_MUST adl_status adli_opener_start(adl_context *ctx);
void adli_opener_stop(adl_context *ctx);
/* Does nothing without one. The owner's thread. */
void adli_opener_say(adl_context *ctx, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* opener_http.c: the scheduler. */
ADL_MUST adl_status adli_opener_over_http(adl_context *ctx, adli_opener **out);

#endif
