/* Which processes of a job train together, and how that changes without stopping those that stay: one state machine
 * for `adaptdl run` and for the scheduler. Pure: what was observed and what members say goes in, with the time; who is
 * to be started and ended, and which world is on offer, is found in it afterwards.
 *
 * Another number, or other nodes, is reached by another world: new processes are started first, and when they wait at
 * their first epoch the next world is offered to all who are in the one or the other; the members cross to it by
 * themselves and say so. When a member dies, the others say that they have lost it; when all who are left have said
 * it, a world without the dead one is offered. What does not work out so ends in a restart, which is the life-cycle's
 * affair (adli_worlds_restart).
 *
 * What members say (train/opener.h has the lines):
 *     able, ready, entered G, paused G SECONDS, refused G WHY, lost G STEPS MEMBER, unformed G
 * Saying something twice is harmless: whoever has lost the scheduler says all again. */
#ifndef ADLI_SCHED_WORLDS_H
#define ADLI_SCHED_WORLDS_H

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What a process is to the present world. */
typedef enum adli_role {
    ADLI_ROLE_IN,
    ADLI_ROLE_NEW,  /* not in it yet */
    ADLI_ROLE_OUT,  /* not in it any more: it leaves */
    ADLI_ROLE_DEAD, /* it died, and the others go on */
} adli_role;

/* How a process is gone, as far as the others are concerned. */
typedef enum adli_gone {
    ADLI_GONE_NOT,
    ADLI_GONE_KILLED, /* killed or taken, and nobody had asked it to stop */
    ADLI_GONE_LEFT,   /* exit 143 */
    ADLI_GONE_ITSELF, /* what a program decides, and what it fails of, is not for the others to survive */
} adli_gone;

typedef struct adli_member {
    int number; /* among all processes of the group; never used again */
    int rank;   /* in the world; of a new one: about the one that it will have */
    int node;
    adli_role role;
    void *user; /* the owner's */

    /* observed: set by the owner */
    adli_gone gone;
    bool taken;   /* it is gone, and that was not its own doing */
    bool stopped; /* by SIGSTOP */
    bool away;    /* its connection has ended; only where there is one */

    /* said */
    bool able;        /* it goes on when the world changes */
    bool ready;       /* a new one: it waits to join */
    bool lost;        /* it waits for a world without one that was lost */
    uint64_t applied; /* steps, when it lost the world */
    uint32_t lost_in; /* that world */
    uint32_t entered; /* the last world it was in */
    bool named;       /* as the one that was lost, by others */

    bool told;     /* its death is known to people */
    bool unwanted; /* a new one that was ended before it had joined */
    bool replaced; /* it is to become another process, at the same place */

    /* for the owner */
    bool start; /* it is to be started; the owner clears it */
    bool kill;  /* it is to be ended, if it lives */
} adli_member;

typedef enum adli_world_news {
    ADLI_NEWS_RESIZED, /* paused seconds */
    ADLI_NEWS_WENT_ON, /* without one that died; paused seconds */
    ADLI_NEWS_DIED,    /* member: the others go on */
    ADLI_NEWS_NEW_DIED,
    ADLI_NEWS_GAVE_UP, /* new ones die again and again: it stays as it is, or is restarted */
    ADLI_NEWS_KILLED,  /* member: stopped, or does not answer */
    ADLI_NEWS_RESTART, /* text: why it cannot go on in place */
} adli_world_news;

typedef struct adli_world_note {
    adli_world_news news;
    const adli_member *member;
    double seconds;
    char text[160];
} adli_world_note;

typedef struct adli_worlds {
    adli_member **all; /* [count] those in the world by rank, then the others */
    size_t count, capacity;
    int replicas; /* of the present world */
    int next_member;
    int *wanted; /* [wanted_count] nodes */
    int wanted_count;
    size_t wanted_capacity;

    uint32_t generation; /* of the present world */
    uint32_t last;       /* that was opened; more than generation while one is on offer */
    uint32_t entered;    /* the last that became the present one */
    uint32_t dropped;    /* nothing is to come of worlds up to this one */
    int *next;           /* [next_count] members of the one on offer, by rank */
    int next_count;
    char address[64]; /* of its rank 0; the owner's to set when `opened` */
    int port;
    double since_s;   /* when it was opened, a member was lost, or a new one started */
    double cramped_s; /* since when there is no room for new ones; 0: there is */
    bool broken;      /* the present world has lost a member, the others wait */
    bool mends;       /* the one on offer is without those that were lost */
    bool refused;     /* a change in place is not possible: restart */
    bool resized;     /* the present world was entered because of a resize, not of a death */
    uint32_t paused;  /* the world that rank 0 has told the pause of; 0: none, or it was said */
    double pause_s;
    int failures; /* new ones in a row that died before they had joined */
    int unformed; /* times that a member said so of a world that mends, since the last that was entered */

    /* set by the owner */
    bool running;  /* the group is whole and nobody wants it to stop */
    bool stopping; /* it is being stopped */
    bool deadly;   /* no death of one's own making is survived any more */
    double
        patience_s; /* how long one that others have lost may take to say so itself; 0: as long as anyone */
    bool (*room)(void *user, int node, int more); /* may so many more start there? NULL: yes */
    void *user;

    /* for the owner, who clears them */
    bool opened;    /* the one on offer is new: it needs a port, and has to be said */
    bool withdrawn; /* `dropped` has to be said */
    int deaths;     /* of their own making that the others survive, since the owner looked */
    adli_world_note *notes; /* [note_count] */
    size_t note_count, note_capacity;
} adli_worlds;

void adli_worlds_init(adli_worlds *worlds);
void adli_worlds_fini(adli_worlds *worlds);

/* One more process; NULL: no memory. */
adli_member *adli_worlds_add(adli_worlds *worlds, adli_role role, int rank, int node);
adli_member *adli_worlds_find(const adli_worlds *worlds, int number);
/* Where it should be; ENOMEM: as before. */
ADL_MUST adl_status adli_worlds_want(adli_worlds *worlds, const int *nodes, int count);

/* A line from a member. false: not understood. */
bool adli_worlds_hear(adli_worlds *worlds, adli_member *from, const char *line, double now_s);
/* Carries on what is to be done about sizes and deaths. After observations. */
void adli_worlds_act(adli_worlds *worlds, double now_s);
/* Nothing in place any more, for this reason. */
void adli_worlds_refuse(adli_worlds *worlds, const char *why);

/* Is there a world that not all have entered yet? */
static inline bool adli_worlds_on_offer(const adli_worlds *worlds)
{
    return worlds->last > worlds->generation;
}
/* Can all that are in the world go on in another one? */
bool adli_worlds_able(const adli_worlds *worlds);
/* Is the present world where it should be? */
bool adli_worlds_settled(const adli_worlds *worlds);
/* Must the group be stopped and started again to get there? */
bool adli_worlds_restart(const adli_worlds *worlds);
/* Why, in words; NULL: for no reason that people should know. */
extern const char adli_worlds_cannot[];
const char *adli_worlds_why(const adli_worlds *worlds);
/* Is this end dealt with here: one that left on purpose, or a death that the others survive? */
bool adli_worlds_handles(const adli_worlds *worlds, const adli_member *member);
/* When it wants to act at the latest, though nothing happens. */
double adli_worlds_deadline(const adli_worlds *worlds);

/* ---- worlds_json.c: for a scheduler that is killed and goes on ---- */

/* How nodes are written. */
typedef struct adli_world_names {
    const char *(*name)(void *user, int node);
    int (*node)(void *user, const char *name); /* -1: no memory, or no name */
    void *user;
} adli_world_names;

void adli_worlds_write(const adli_worlds *worlds, const adli_world_names *names, adli_buf *out);
/* Into worlds that were initialized. ECORRUPT. */
ADL_MUST adl_status adli_worlds_read(const char *text, const adli_world_names *names,
                                     adli_worlds *worlds);

#endif
