/* Whoever opens worlds: the launcher, to which each replica holds a connection (ADAPTDL_WORLD_SOCKET). Lines of text:
 *
 *     replica -> launcher                           launcher -> replica
 *     member N            its first line            world G NODES ADDRESS PORT MEMBER...   the next world
 *     able                its loops can regroup      drop G               nothing comes of worlds up to G
 *     ready               a newcomer waits to join
 *     entered G           it is in world G
 *     paused G SECONDS    rank 0: no step was under way for so long
 *     refused G WHY       rank 0: world G does not come to be
 *     lost G STEPS MEMBER world G has lost a member (-1: not known which); so many steps were applied
 *     unformed G          the group of world G, which was to be without the lost, did not form here
 */
#ifndef ADLI_TRAIN_OPENER_H
#define ADLI_TRAIN_OPENER_H

#include "adaptdl/context.h"

typedef struct adli_opener adli_opener;

/* Connects and begins to listen, if the environment names a socket. */
ADL_MUST adl_status adli_opener_start(adl_context *ctx);
void adli_opener_stop(adl_context *ctx);
/* Does nothing without one. The owner's thread. */
void adli_opener_say(adl_context *ctx, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
