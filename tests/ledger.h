/* What helper_elastic.c leaves at its end: its ledger, and the weights that it learned. */
#ifndef ADLT_LEDGER_H
#define ADLT_LEDGER_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { ADLT_LEDGER_WEIGHTS = 32 };

typedef struct adlt_ledger {
    int replicas; /* at the end */
    long long steps;
    double loss;
    int cells, wrong; /* of which so many are not 1 */
    float weights[ADLT_LEDGER_WEIGHTS];
} adlt_ledger;

/* Of the job that shares the directory; false: it has written none, or not a whole one. */
static inline bool adlt_ledger_read(const char *directory, adlt_ledger *out)
{
    char path[512];
    double count;
    int weights = 0;
    *out = (adlt_ledger){0};
    snprintf(path, sizeof path, "%s/weights", directory);
    FILE *file = fopen(path, "r");
    while (file && weights < ADLT_LEDGER_WEIGHTS && fscanf(file, "%f", &out->weights[weights]) == 1)
        weights++;
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "%s/ledger", directory);
    file = fopen(path, "r");
    if (!file)
        return false;
    bool good = fscanf(file, "replicas %d steps %lld loss %lf", &out->replicas, &out->steps,
                       &out->loss) == 3;
    for (; good && fscanf(file, "%lf", &count) == 1; out->cells++)
        out->wrong += fabs(count - 1) > 1e-3;
    fclose(file);
    return good && weights == ADLT_LEDGER_WEIGHTS;
}

/* Has it learned the same, within the order of sums? */
static inline bool adlt_ledger_close(const adlt_ledger *a, const adlt_ledger *b)
{
    return fabs(a->loss - b->loss) <= 1e-3 * (1 + fabs(b->loss));
}

/* To the bit? */
static inline bool adlt_ledger_same(const adlt_ledger *a, const adlt_ledger *b)
{
    return memcmp(a->weights, b->weights, sizeof a->weights) == 0;
}

#endif
