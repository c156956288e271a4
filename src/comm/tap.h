/* Who listens to the calls of a group. A replica that joins a job late walks through the program from its first line
 * and meets collective calls that the others have made long ago: whoever owns the group keeps the results of those
 * (train/replay.h), and answers them. */
#ifndef ADLI_COMM_TAP_H
#define ADLI_COMM_TAP_H

#include "comm/call.h"

typedef struct adli_tap {
    void *user;
    /* The caller's thread, before a call. *answered: it is over, with this result (heap memory, taken). A failure is
     * the call's. */
    adl_status (*answer)(void *user, adl_group *group, const adli_call *call, bool *answered,
                         uint8_t **data, size_t *length);
    /* The caller's thread: is the result to be recorded? With which mark? */
    bool (*wants)(void *user, int *mark);
    /* Any thread, in the order of the calls: the result of a call that succeeded. */
    void (*record)(void *user, int mark, const adli_call *call, const void *data, size_t length);
} adli_tap;

/* Before the group's first call. The tap outlives the group. */
void adli_group_set_tap(adl_group *group, const adli_tap *tap);

#endif
