/* What every backend must do (src/backend/backend.h), as tests. A backend takes part with one file that
 * defines adlt_backend; each test_conformance_*.c is then linked with it into a program of its own.
 *
 * Replicas are shell scripts. They find the job's directory in $DIR. */
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
    bool has_devices, limits_memory;
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

/* replicas of the script, ranks dealt out to a, b, a, b ... */
adl_status adlt_start(adlt_site *site, const char *uid, int group, int replicas,
                      const char *script);
/* The same with a chance to change the spec first. */
void adlt_spec(adlt_site *site, const char *uid, int group, int replicas, const char *script,
               adli_group_spec *spec);

/* One replica now; all zero when there is none. */
adli_replica_view adlt_view(adlt_site *site, const char *uid, int group, int rank);
/* There is no such group. */
bool adlt_gone(adlt_site *site, const char *uid, int group);
/* Waits, on the backend's events, until all replicas (rank -1) or one are in the state; -1: have ended.
 * False after a minute. */
bool adlt_wait(adlt_site *site, const char *uid, int group, int rank, int state);

/* The file, at most a few thousand bytes, as a static text; "" when there is none. */
const char *adlt_text(const char *path);
const char *adlt_log(adlt_site *site, const char *uid, int group, int rank);
/* Waits until the text is in the log. False after a minute. */
bool adlt_wait_log(adlt_site *site, const char *uid, int group, int rank, const char *text);
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
