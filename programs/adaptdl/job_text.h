/* Job files that nobody wrote: for `adaptdl submit -- COMMAND`, `adaptdl submit FILE.py` and `adaptdl init`. */
#ifndef ADAPTDL_JOB_TEXT_H
#define ADAPTDL_JOB_TEXT_H

#include "cli.h"

#include "base/buf.h"

/* What a command line says about a job; NULL or 0: nothing. */
typedef struct job_wishes {
    const char *gpus, *cpus, *memory; /* of one replica */
    const char *priority;
    int min_replicas, max_replicas;
    bool has_min;
} job_wishes;

enum { WISH_GPUS = 300, WISH_CPUS, WISH_MEMORY, WISH_MIN, WISH_MAX, WISH_PRIORITY };
#define JOB_WISH_OPTIONS                                                                           \
    {WISH_GPUS, "gpus", "N", "GPUs of one replica", NULL},                                         \
        {WISH_CPUS, "cpus", "N", "cores of one replica (0.5, 500m, 4)", NULL},                     \
        {WISH_MEMORY, "memory", "SIZE", "memory of one replica, such as 4Gi", NULL},               \
        {WISH_MIN, "min-replicas", "N", "while it runs it has at least so many", NULL},            \
        {WISH_MAX, "max-replicas", "N", "it never has more", NULL},                                \
    {                                                                                              \
        WISH_PRIORITY, "priority", "W",                                                            \
            "its weight against other jobs: 2 counts twice, 0.5 half (default 1)", NULL            \
    }

/* Takes one of the options above, checked. EXIT_DONE, or a message was shown. */
int take_wish(cli *c, int option, job_wishes *wishes);

/* The name of a job that runs this program: "train-" of [python3, src/train.py]. */
void name_of_program(char *const *words, int count, char out[60]);

/* Appends a job file (YAML) for the command, with comments when people are to go on from it. */
void put_job_text(adli_buf *out, char *const *words, int count, const job_wishes *wishes,
                  bool comments);

#endif
