/* `adaptdl run --as-replica`: the far end of a replica on another machine (remote.h). Starts what the request on
 * its standard input says and watches it as the launcher would; no person calls it. */
#ifndef ADLI_LAUNCH_AGENT_H
#define ADLI_LAUNCH_AGENT_H

/* Reads the request and runs the program to its end. The result is its exit code, 128 + N for signal N; 126 or 127
 * when it could not be started, which standard error says. */
int adli_agent_run(void);

#endif
