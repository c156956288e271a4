/* The machines of a run, `adaptdl run --hosts a,b`: who is where, and where rank 0 is found. */
#ifndef ADLI_LAUNCH_HOSTS_H
#define ADLI_LAUNCH_HOSTS_H

#include "base/status.h"

#include <stddef.h>

enum { ADLI_HOSTS_MAX = 256, ADLI_SSH_WORDS = 32, ADLI_HOST_MAX = 256 };

typedef struct adli_hosts {
    char *text; /* names and words, cut at their ends */
    char *name[ADLI_HOSTS_MAX];
    int count;                      /* 0: this machine alone, without ssh */
    char *ssh[ADLI_SSH_WORDS + 1];  /* the command before the host, NULL at its end */
    char master[ADLI_HOST_MAX + 1]; /* where the others find the first one */
} adli_hosts;

/* Reads "a,user@b" and the command to reach them ("ssh -p 2222"; NULL: ssh). EINVAL says which name is wrong. */
ADL_MUST adl_status adli_hosts_init(adli_hosts *hosts, const char *list, const char *ssh);
void adli_hosts_fini(adli_hosts *hosts);
/* Asks ssh what the first name stands for (its configuration may have a HostName) and keeps that as `master`,
 * unless $ADAPTDL_MASTER_ADDR says it. ENOENT: there is no such command; EINVAL: others could not reach it. */
ADL_MUST adl_status adli_hosts_find_master(adli_hosts *hosts);

typedef struct adli_place {
    int host;        /* index */
    int local_rank;  /* among those on the machine, */
    int local_count; /* which are so many */
    int hosts;       /* that have replicas at all */
} adli_place;

/* Replicas are dealt out in blocks, as evenly as can be: neighbours by rank are on the same machine. */
adli_place adli_hosts_place(const adli_hosts *hosts, int rank, int replicas);

#endif
