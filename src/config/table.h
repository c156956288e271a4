/* The configuration's constants as a table, for what reads, prints and documents them. */
#ifndef ADLI_CONFIG_TABLE_H
#define ADLI_CONFIG_TABLE_H

#include "config/config.h"

#include <string.h>

typedef enum adli_constant_kind {
    ADLI_TEXT,
    ADLI_BOOL,
    ADLI_INT,
    ADLI_BYTES,
    ADLI_NUMBER,
    ADLI_PARAMETERS,
    ADLI_NODES,
} adli_constant_kind;

typedef struct adli_constant {
    const char *section; /* "" at the top */
    const char *name;
    adli_constant_kind kind;
    size_t offset;    /* in adli_config */
    double low, high; /* of a text: high is its longest length */
    double usual;
    const char *meaning;
} adli_constant;

enum { ADLI_CONSTANTS = 50 };
extern const adli_constant adli_constants[ADLI_CONSTANTS];

static inline void *adli_constant_slot(const adli_constant *c, adli_config *config)
{
    return (char *)config + c->offset;
}

static inline const void *adli_constant_value(const adli_constant *c, const adli_config *config)
{
    return (const char *)config + c->offset;
}

/* Booleans and numbers of all kinds; nothing happens (0) for the others. */
void adli_constant_put(const adli_constant *c, adli_config *config, double value);
double adli_constant_get(const adli_constant *c, const adli_config *config);

/* Is it the first one of its section, or at the top? */
static inline bool adli_constant_first(size_t i)
{
    const char *section = adli_constants[i].section;
    return i == 0 || strcmp(adli_constants[i - 1].section, section) != 0;
}

#endif
