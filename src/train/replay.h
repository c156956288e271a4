/* The log of collective calls. A replica that joins late runs the program from its first line, and meets calls that
 * the others have made before: outside the epochs, or in the present epoch outside the loops over data. All replicas
 * got the same bytes then; they are kept here, and the one that joins is answered with them, in order, until it has
 * caught up. Calls in loops are not in it: whoever is in a loop makes them with the others.
 *
 * The log is bounded. One that ran over cannot be replayed: nobody joins then, and the job is restarted instead. */
#ifndef ADLI_TRAIN_REPLAY_H
#define ADLI_TRAIN_REPLAY_H

#include "comm/tap.h"

enum { ADLI_REPLAY_OUTSIDE = -1 }; /* an epoch's number: none */

typedef struct adli_replay adli_replay;

ADL_MUST adl_status adli_replay_new(adli_replay **out);
void adli_replay_free(adli_replay *log);

/* Adds a result of that epoch. Any thread. */
void adli_replay_add(adli_replay *log, int epoch, const adli_call *call, const void *data,
                     size_t length);
/* Epochs before this one are over: what was called in them will not be called again. */
void adli_replay_forget(adli_replay *log, int epoch);
/* A place in it, and what was called since then is forgotten: whoever joins passes over that part of the program. */
size_t adli_replay_mark(adli_replay *log);
void adli_replay_cut(adli_replay *log, size_t mark);
/* Did it run over? */
bool adli_replay_full(adli_replay *log);

/* As bytes, to free; NULL: out of memory, or it ran over. */
uint8_t *adli_replay_encode(adli_replay *log, size_t *length);
/* Takes the log of another, to be replayed from its start. ECORRUPT: these bytes are no log. */
ADL_MUST adl_status adli_replay_take(adli_replay *log, const void *data, size_t length);

/* Is there something left to replay? */
bool adli_replay_left(adli_replay *log);
/* The result of the next call (free), which must be this one. EINVAL: another was made in its place. */
ADL_MUST adl_status adli_replay_next(adli_replay *log, const adli_call *call, uint8_t **data,
                                     size_t *length);

#endif
