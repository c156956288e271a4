/* At most one option for each of many jobs, so that the sum of their values is as large as it can be and
 * no resource is used twice: the multiple-choice knapsack that policies with a published objective leave
 * to a solver. Exact; docs/adr/0190 says how, and why no library does it. */
#ifndef ADLI_CHOICE_H
#define ADLI_CHOICE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct adli_choice_option {
    double value; /* > 0; of taking it instead of none */
    int job;      /* options of one job are next to each other, jobs ascending */
    int pool;     /* the row of resources that it takes from */
    int count;    /* how many times its job's request */
} adli_choice_option;

typedef struct adli_choice_problem {
    const adli_choice_option *options;
    size_t option_count;
    int job_count, pool_count, resource_count;
    const int64_t *requests; /* [job_count][resource_count] */
    const int64_t *room;     /* [pool_count][resource_count] */
    size_t states_max; /* states kept per step; 0: 20000; fewer where there are very many options */
} adli_choice_problem;

typedef struct adli_choice_result {
    double value;
    double bound;  /* no solution is worth more than this */
    size_t states; /* looked at */
    bool exact; /* false: states_max was reached, and what was furthest from the bound left out */
} adli_choice_result;

/* taken: [job_count], index of the job's option, -1: none. ENOMEM. */
ADL_MUST adl_status adli_choice_solve(const adli_choice_problem *problem, int *taken,
                                      adli_choice_result *result);

#endif
