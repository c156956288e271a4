/* What a training program measures over time (adl_report), as it waits in a replica, lies in a checkpoint and
 * travels to the scheduler: names, and values of them at steps. One document for all three, so that one parser
 * reads what comes from files and what comes from the network.
 *
 * Steps of a name ascend. A value for a step at or before the last one takes back everything from that step on:
 * whoever trains a stretch again (after a restart without a checkpoint, or in a second run) tells of it again, and
 * the curve is that of the run that counts. */
#ifndef ADLI_MEASURES_H
#define ADLI_MEASURES_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ADLI_MEASURES_NAMES = 64,
    ADLI_MEASURES_NAME_MAX = 100,  /* bytes */
    ADLI_MEASURES_POINTS = 4096,   /* that wait to be sent */
    ADLI_MEASURES_BYTES = 4 << 20, /* of a document: names with every byte escaped, and more */
};
#define ADLI_MEASURES_STEP_MAX ((int64_t)1 << 53)

typedef struct adli_measures_point {
    int name;
    int64_t step;
    double time_s; /* since 1970 */
    double value;  /* NAN: it was no finite number */
} adli_measures_point;

typedef struct adli_measures {
    char *names[ADLI_MEASURES_NAMES];
    int64_t last[ADLI_MEASURES_NAMES]; /* step of each name; -1: none */
    int name_count;
    bool whole;                  /* these are all the names there are */
    adli_measures_point *points; /* in the order they were told */
    size_t count, capacity;
    size_t held; /* the first so many are on their way: neither thinned out nor taken back */
    int restart; /* of the replicas that tell (ADAPTDL_NUM_RESTARTS) */
} adli_measures;

void adli_measures_fini(adli_measures *report);

/* Its number; a new name is added. EINVAL: it is no name, or one too many. */
ADL_MUST adl_status adli_measures_name(adli_measures *report, const char *name, int *out);
/* Adds a value, at the end. When too many wait, every second one of each name goes. ENOMEM. */
ADL_MUST adl_status adli_measures_add(adli_measures *report, int name, int64_t step, double time_s,
                                      double value);
/* Forgets the points that are held. */
void adli_measures_sent(adli_measures *report);

/* {"restart":0,"whole":true,"last":{NAME:STEP},"points":[{"name","step","time","value"}]}. last: as JSON, in the
 * place of the report's own (NULL) or left out (""). count: only the first so many points. */
ADL_MUST adl_status adli_measures_json(const adli_measures *report, const char *last, size_t count,
                                       adli_buf *out);
/* The part of it under "last". */
void adli_measures_last(const adli_measures *report, adli_buf *out);
/* Reads the document; unknown fields are passed over. *has_last: there was a "last". EINVAL names what is wrong;
 * *out is to be finished only after ADL_OK. */
ADL_MUST adl_status adli_measures_parse(const char *text, size_t length, adli_measures *out,
                                        bool *has_last);

#endif
