/* `adaptdl sim --snapshot`. */
#ifndef ADAPTDL_REPLAY_H
#define ADAPTDL_REPLAY_H

#include "sim/simulate.h"

/* Decides a saved round again and prints it; policy NULL: the one that decided it then. json: a file for the
 * decision, "-" standard output, NULL: none. */
int replay(const char *path, const char *policy, const adli_sim_setting *settings,
           int setting_count, const char *json);

#endif
