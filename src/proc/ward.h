/* A program that we started as our child, in a process group of its own: how it is asked to stop, and when it
 * is over. Keepers and the launcher watch their replicas by this.
 *
 * A request to stop is for the program alone. Its children (workers that load data, say) are its own to stop,
 * and it needs them until it has saved. Two things complicate that:
 *   - a shell dies of the request without passing it on; then it is for what the shell had started, which has
 *     become our child, since we are a subreaper (PR_SET_CHILD_SUBREAPER; the caller's to set);
 *   - a program that somebody stopped (SIGSTOP) cannot answer: there is nothing to wait for. */
#ifndef ADLI_WARD_H
#define ADLI_WARD_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct adli_ward {
    pid_t id; /* of the program, and of its process group; 0: never started */
    bool asked, killed;
    bool stopped; /* by SIGSTOP or the like */
    bool silent;  /* killed for that */
    bool ended;   /* the program has; see adli_ward_over */
    int status;   /* of waitpid, once ended */
    double ended_s;
    pid_t *told; /* [told_count] what was left by shells that died when they were asked to stop */
    size_t told_count, told_capacity;
} adli_ward;

/* Frees what it remembers; the program stays as it is. */
void adli_ward_fini(adli_ward *ward);

/* SIGTERM to the program. */
void adli_ward_ask(adli_ward *ward);
/* SIGKILL to its process group. */
void adli_ward_kill(adli_ward *ward);

/* A child of ours has changed: what waitpid(WUNTRACED | WCONTINUED) said, to each ward. */
void adli_ward_note(adli_ward *ward, pid_t id, int status, double now_s);
/* It was asked to stop and cannot answer: to be killed. Says so once. */
bool adli_ward_is_silent(adli_ward *ward);

/* The program has ended and, if that was because it was asked to, its process group as well. */
bool adli_ward_over(const adli_ward *ward);

/* The exit code as shells have it: 128 + N for signal N. */
int adli_ward_code(const adli_ward *ward);

#endif
