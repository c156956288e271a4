/* The inside of a run, shared by launch.c (its life) and worlds.c (which of its processes train together). */
#ifndef ADLI_LAUNCH_RUN_H
#define ADLI_LAUNCH_RUN_H

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/replica.h"
#include "sched/lifecycle.h"
#include "sched/worlds.h"

#include <poll.h>
#include <signal.h>

enum { ADLI_SECRET_BYTES = 16 };

typedef struct adli_run {
    const adli_launch_options *options;
    char name[128];
    adli_hosts hosts;
    adli_output output;
    adli_control control;
    int signals; /* signalfd */
    sigset_t handled, before;
    adl_life life;
    adl_rules rules;
    bool stop;            /* asked to, by whom it may be */
    int replicas, wanted; /* in the present world, and at the next start */
    adli_replica **all; /* [count] those in the world by rank, then the others; 0: none are there */
    size_t count, capacity;
    adli_end *ends; /* [count] */
    size_t ends_capacity;
    bool reported; /* why the present replicas failed */
    int failed_code;
    int port_fd, port; /* of rank 0, and what holds it */
    char secret[2 * ADLI_SECRET_BYTES + 1];
    double started_s;
    struct pollfd *wait; /* [2 + 3 count] */
    size_t wait_capacity;
    adli_worlds worlds;
    int next_port_fd; /* what holds the port of the world on offer; -1: none is */
} adli_run;

/* launch.c */
/* Starts the process of that member, at the end of `all`; joins: others are training already. */
ADL_MUST adl_status adli_run_start_one(adli_run *self, adli_member *as, int replicas, bool joins);
/* A port for rank 0 and what holds it against other launchers. */
ADL_MUST adl_status adli_run_reserve_port(int *port, int *fd);

/* worlds.c */
/* Nothing of it is left. */
void adli_run_end_worlds(adli_run *self);
/* Lets sched/worlds.h know what is to be known. */
void adli_run_see(adli_run *self);
/* Carries on what is to be done about sizes and deaths. Between observations. */
void adli_run_act(adli_run *self);
/* A line from the control socket that makes its connection a replica's. */
bool adli_run_adopt(void *run, const char *line, int fd);
/* What has come from a replica. */
void adli_run_hear(adli_run *self, adli_replica *replica);

#endif
