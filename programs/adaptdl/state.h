/* The state directory of the local cluster, for the commands that use it beside the scheduler. */
#ifndef ADAPTDL_STATE_H
#define ADAPTDL_STATE_H

#include "cluster.h"

/* The directory that holds the socket, on the heap. EXIT_USAGE with a message when the scheduler
 * is not reached through one. */
int state_directory(const cluster *k, char **out);

/* The log directory of a TensorBoard that was created. */
int tensorboard_directory(const cluster *k, const char *name, char **out);

#endif
