/* The daemon's flags: on top of the configuration file, one table for reading and for --help. */
#ifndef ADLI_DAEMON_FLAGS_H
#define ADLI_DAEMON_FLAGS_H

#include "base/buf.h"
#include "config/config.h"

typedef struct adli_flags {
    adli_config config;
    char *state_dir, *socket; /* NULL: the default */
    char *nodes_file, *config_file;
    int nodes, slots; /* 0: not given */
    bool background;
    bool placeholder; /* there is nothing to do */
    int verbose;      /* how many -v */
    int ready_fd;     /* -1: none */
    char *log_path;   /* in the background */
    adli_buf text;    /* what --help, --version or --print-config want printed; else empty */
} adli_flags;

/* Reads the configuration file too. On failure (EINVAL names the flag) *out is still to be freed. */
ADL_MUST adl_status adli_flags_read(int argc, char **argv, adli_flags *out);
/* The nodes as the flags and files say now: those of SIGHUP. None declared: this machine. */
ADL_MUST adl_status adli_flags_nodes(const adli_flags *flags, adli_nodes *out);
void adli_flags_fini(adli_flags *flags);

#endif
