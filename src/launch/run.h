/* The inside of a run, shared by launch.c (its life) and worlds.c (which of its processes train together). */
#ifndef ADLI_LAUNCH_RUN_H
#define ADLI_LAUNCH_RUN_H

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/replica.h"
#include "sched/lifecycle.h"

#include <poll.h>
#include <signal.h>

enum { ADLI_SECRET_BYTES = 16 };

/* The worlds of a run (worlds.c). The present one is its members in the order of ranks. */
typedef struct adli_worlds {
    uint32_t generation; /* of the present world */
    uint32_t last;       /* that was opened; more than generation while one is on offer */
    int *next;           /* [next_count] members of the one on offer, by rank */
    int next_count;
    int port, port_fd; /* of the one on offer; -1: none */
    double since_s;    /* when it was opened, or a member was lost */
    bool broken;       /* the present world has lost a member, the others wait */
    bool mends;        /* the one on offer is without those that were lost */
    bool refused;      /* a resize in place is not possible: restart */
    bool resized;      /* the present world was entered because of a resize, not of a death */
    uint32_t paused;   /* the world that rank 0 has told the pause of; 0: none, or it was said */
    double pause_s;
    int replaced; /* the rank that is to become another process; -1: none */
    int failures; /* newcomers in a row that died before they had joined */
    int unformed; /* times that a member said so of a world that mends, since the last that was entered */
} adli_worlds;

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
    int next_member;      /* numbers are never used again */
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
} adli_run;

/* launch.c */
/* Starts a process of that rank, at the end of `all`; joins: others are training already. */
ADL_MUST adl_status adli_run_start_one(adli_run *self, int rank, int replicas, bool joins);
/* A port for rank 0 and what holds it against other launchers. */
ADL_MUST adl_status adli_run_reserve_port(int *port, int *fd);

/* worlds.c */
/* A run that was started anew. */
void adli_worlds_begin(adli_run *self);
void adli_worlds_fini(adli_run *self);
/* Carries on what is to be done about sizes and deaths. Between observations. */
void adli_worlds_act(adli_run *self);
/* Can all that are in the world go on in another one? */
bool adli_worlds_able(const adli_run *self);
/* Does the run have to be restarted to get its size? */
bool adli_worlds_moved(const adli_run *self);
/* Is this end dealt with here: one that left on purpose, or a death that the others survive? */
bool adli_worlds_handles(const adli_run *self, const adli_replica *replica);
/* A line from the control socket that makes its connection a replica's. */
bool adli_worlds_adopt(void *run, const char *line, int fd);
/* What has come from a replica. */
void adli_worlds_hear(adli_run *self, adli_replica *replica);

#endif
