/* What a run shows: the replicas' lines with their ranks, the launcher's own lines, and on a terminal
 * a last line that says how things are. */
#ifndef ADLI_LAUNCH_OUTPUT_H
#define ADLI_LAUNCH_OUTPUT_H

#include "launch/replica.h"

typedef struct adli_output {
    bool terminal; /* standard error is one: show the last line */
    bool quiet;
    bool shown;
    char state[160]; /* of the last line */
} adli_output;

void adli_output_init(adli_output *output, bool quiet);

/* Reads what is there and prints whole lines; at the end of the stream, or when flush, also the rest.
 * false: the stream is at its end (and closed). */
bool adli_output_pump(adli_output *output, adli_stream *stream, int rank, bool to_stderr);

/* A line of the launcher's own, on standard error. */
void adli_output_say(adli_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, also when quiet. */
void adli_output_fail(adli_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The last line on a terminal; nothing elsewhere. */
void adli_output_state(adli_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Takes it away. */
void adli_output_clear(adli_output *output);

#endif
