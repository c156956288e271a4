/* Who runs a replica, and what became of it. A member's name is a file, MEMBER.claim in its group's
 * directory; whoever makes that file runs the replica, and nobody else ever will. The file appears
 * locked (flock) and stays so for as long as its keeper lives: that lock, not a process number, is the
 * sign of life. MEMBER.result says how it ended.
 *
 *   no claim                      nobody has started it
 *   claim, locked                 its keeper lives ('c': starting, 'r': running)
 *   claim, not locked, result     it ended
 *   claim, not locked, no result  its keeper was killed: whoever sees that gets the lock, ends what is
 *                                 left and writes the result "Lost" */
#ifndef ADLI_LOCAL_CLAIM_H
#define ADLI_LOCAL_CLAIM_H

#include "backend/backend.h"

#include <signal.h>
#include <sys/types.h>

/* How a replica ended. */
typedef struct adli_result {
    adli_member_state state;
    int exit_code;
    adli_cause cause;
    char message[160];
    double ended_s; /* seconds since 1970; 0: unknown */
} adli_result;

/* Makes the claim for this process. *fd holds the lock until it is closed. ESTATE: somebody has it. */
ADL_MUST adl_status adli_claim_take(int dir, int member, int *fd);
/* The replica runs. */
void adli_claim_ready(int fd);

typedef enum adli_claim_state {
    ADLI_CLAIM_NONE,
    ADLI_CLAIM_STARTING,
    ADLI_CLAIM_RUNNING,
    ADLI_CLAIM_DEAD, /* not locked: by then the result, if there is one, can be read */
} adli_claim_state;

/* *keeper: its process while STARTING or RUNNING. *fd: for DEAD the lock, to be closed; else -1. */
adli_claim_state adli_claim_look(int dir, int member, pid_t *keeper, int *fd);

/* Who made the claim, whether it lives or not, without touching the lock; 0: nobody has. */
pid_t adli_claim_keeper(int dir, int member, unsigned long long *born);

/* When whoever made the claim was born (adli_procs_born): nothing of the replica is older. */
unsigned long long adli_claim_born(int fd);

/* Sends the signal to the keeper if it lives; safe against process numbers that were given to another. */
void adli_claim_signal(int dir, int member, int number);

/* What the signals tell a keeper. */
#define ADLI_KEEPER_TERMINATE SIGTERM
#define ADLI_KEEPER_KILL      SIGUSR1
#define ADLI_KEEPER_NODE_LOST SIGUSR2

ADL_MUST adl_status adli_result_write(int dir, int member, const adli_result *result);
ADL_MUST adl_status adli_result_read(int dir, int member, adli_result *out);
/* Fills a result. format may be NULL. */
void adli_result_set(adli_result *out, adli_member_state state, int exit_code, adli_cause cause,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
