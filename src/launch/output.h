/* What a run shows: the replicas' lines with their ranks, the launcher's own lines, and on a terminal
 * a last line that says how things are. */
#ifndef ADLI_LAUNCH_OUTPUT_H
#define ADLI_LAUNCH_OUTPUT_H

#include "base/log.h"
#include "launch/replica.h"

typedef struct adli_output {
    bool terminal; /* standard error is one: show the last line */
    bool shown;
    char state[160]; /* of the last line */
} adli_output;

/* Lines of that level on, of adli_say, are the launcher's own from now on. */
void adli_output_init(adli_output *output, adl_log_level level);

/* Reads what is there and prints whole lines; at the end of the stream, or when flush, also the rest.
 * false: the stream is at its end (and closed). */
bool adli_output_pump(adli_output *output, adli_stream *stream, int rank, bool to_stderr);

/* The last line on a terminal; nothing elsewhere. */
void adli_output_state(adli_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Takes it away. */
void adli_output_clear(adli_output *output);

#endif
