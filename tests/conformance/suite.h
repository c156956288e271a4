/* What every backend must do (src/backend/backend.h), as tests. A backend takes part with one file that
 * defines adlt_backend; each test_conformance_*.c is then linked with it into a program of its own.
 *
 * Members are shell scripts in pod templates. They find the job's share in $DIR. */
#ifndef ADLI_CONFORMANCE_H
#define ADLI_CONFORMANCE_H

#include "backend/backend.h"

enum { ADLT_RANKS = 8 };

typedef struct adlt_node {
    const char *name;
    int pods, gpus;
} adlt_node;

typedef struct adlt_backend_kind {
    const char *name;
    /* A backend object on the state directory, which may have been used before. */
    adl_status (*make)(const char *state, const adlt_node *nodes, int count, adli_backend **out);
    adl_status (*set_nodes)(adli_backend *backend, const adlt_node *nodes, int count);
    /* How many processes, control groups and the like of that state directory there are now. */
    int (*leftovers)(const char *state);
    /* Makes an empty file of that name in the job's share. */
    void (*touch)(const char *state, const char *uid, const char *name);
    bool has_devices, limits_memory;
    /* Members are processes of this machine: its environment, its files and stopped processes are seen, and what is kept
     * of them stays when they are forgotten. */
    bool here;
    double patience_s; /* for anything to happen; 0: a minute */
    unsigned kill_us;  /* a scheduler that is to be killed lives no longer; 0: 60 ms */
} adlt_backend_kind;

extern const adlt_backend_kind adlt_backend;

/* A backend on a new state directory with the nodes a and b (4 pods, 2 GPUs each). */
typedef struct adlt_site {
    char state[64];
    adli_backend *backend;
    int descriptors; /* open before */
} adlt_site;

/* NULL when that failed (the error text says why). */
adlt_site *adlt_open(void);
/* Lets the object go and makes another one on the same directory. */
adl_status adlt_reopen(adlt_site *site);
/* Removes everything. Returns what is wrong: leftovers, descriptors; NULL when nothing is. Static. */
const char *adlt_close(adlt_site *site);

/* So many members of the script, dealt out to a, b, a, b ... */
adl_status adlt_start(adlt_site *site, const char *uid, int group, int replicas,
                      const char *script);
/* The same with a chance to change the start first; one at a time. */
void adlt_spec(const char *uid, int group, int replicas, const char *script, adli_start *start);
/* A pod template whose container runs the script. more: further members of the container as JSON, beginning with
 * a comma; "" for none. Static: valid until the next call. */
const char *adlt_pod(const char *script, const char *more);
/* Starts member `member` alone, on the node, as that rank of a world of so many. */
adl_status adlt_join(adlt_site *site, const char *uid, int group, int member, const char *node,
                     int rank, int replicas, const char *script);

/* One member now; all zero when there is none. */
adli_member_view adlt_view(adlt_site *site, const char *uid, int group, int member);
/* There is no such group. */
bool adlt_gone(adlt_site *site, const char *uid, int group);
/* Waits, on the backend's events, until all members (-1) or one are in the state; -1: have ended.
 * False after a minute. */
bool adlt_wait(adlt_site *site, const char *uid, int group, int member, int state);

/* The file, at most a few thousand bytes, as a static text; "" when there is none. */
const char *adlt_text(const char *path);
/* A file of the job, by the path that its containers see, likewise. */
const char *adlt_file(adlt_site *site, const char *uid, const char *path);
const char *adlt_log(adlt_site *site, const char *uid, int group, int member);
/* Waits until the text is in the log. False after a minute. */
bool adlt_wait_log(adlt_site *site, const char *uid, int group, int member, const char *text);
/* How often the line is in the text. */
int adlt_lines(const char *text, const char *line);

/* At the beginning and the end of a test: `site` and `backend`. */
#define OPEN()                                                                                     \
    adlt_site *site = adlt_open();                                                                 \
    if (!site) {                                                                                   \
        ADLT_FAIL("%s", adl_error());                                                              \
        return;                                                                                    \
    }                                                                                              \
    adli_backend *backend = site->backend;                                                         \
    (void)backend
#define CLOSE()                                                                                    \
    do {                                                                                           \
        const char *wrong = adlt_close(site);                                                      \
        if (wrong)                                                                                 \
            ADLT_FAIL("%s", wrong);                                                                \
    } while (0)

#endif
