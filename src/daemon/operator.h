/* The scheduler as a Kubernetes operator: jobs are the AdaptDLJobs of the API server, which is also where
 * everything that must survive is kept. The core stays as it is: its store is filled from the server's objects
 * at the start, whatever it is about to commit is written to the server first, and its members are pods.
 *
 * One of several leads, by a Lease; who loses it stops at once with all that it does. */
#ifndef ADLI_OPERATOR_H
#define ADLI_OPERATOR_H

#include "daemon/core.h"

typedef struct adli_operator adli_operator;

typedef struct adli_operator_options {
    const char *state_dir;
    const struct adli_config *config;
    /* While it waits to lead: true ends that, with EINTR. */
    bool (*interrupted)(void *user);
    /* The lead is lost, see daemon.h; may be NULL. */
    void (*lost)(void *user);
    void *user;
} adli_operator_options;

/* Waits until it leads, then fills STATE/jobs.sqlite anew from the server. */
ADL_MUST adl_status adli_operator_new(const adli_operator_options *options, adli_operator **out);
adli_backend *adli_operator_backend(adli_operator *op);
const adli_core_mirror *adli_operator_mirror(adli_operator *op);
/* Jobs come and go from here on. */
ADL_MUST adl_status adli_operator_follow(adli_operator *op, adli_core *core);
/* Where replicas find us, for a door that listens on the port. */
void adli_operator_url(const adli_operator *op, int port, char *out, size_t size);
/* The door for people, whom the API server lets through to us: what they show is a token that the Secret
 * adaptdl-sched-token holds and that is made when there is none. Certificate and key are files. */
typedef struct adli_operator_door {
    char token[129], certificate[4200], key[4200];
} adli_operator_door;
ADL_MUST adl_status adli_operator_door_open(adli_operator *op, adli_operator_door *out);
/* The door is open: the key's file is not needed any more. */
void adli_operator_door_served(const adli_operator_door *door);
/* No more jobs come; before the core stops. */
void adli_operator_unfollow(adli_operator *op);
/* Gives the lead away. After the core is gone. NULL is harmless. */
void adli_operator_free(adli_operator *op);

#endif
