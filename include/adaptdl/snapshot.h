/* Snapshots as JSON: a decision that can be taken again on another machine, on another day. The daemon writes
 * the snapshot of its last round (`adaptdl explain --save`), `adaptdl sim --snapshot` and the bindings read
 * it; docs/snapshots.md has the fields. What is written and read gives the same decision, to the last bit of
 * every number.
 *
 * Functions that give text give it on the heap, ended by a zero, for free(). Pure; any thread. */
#ifndef ADAPTDL_SNAPSHOT_H
#define ADAPTDL_SNAPSHOT_H

#include "adaptdl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The latest version. What is written has the first that knows all of its fields; a reader takes all of them. */
enum { ADL_SNAPSHOT_VERSION = 3 };

/* A snapshot with all that it points to, and what it was decided by. */
typedef struct adl_record adl_record;

/* EINVAL says what is wrong and where: a later version, an unknown field (but for those whose name begins with
 * "x-": notes), a snapshot that adl_snapshot_check refuses. */
ADL_API ADL_MUST adl_status adl_record_parse(const char *text, size_t length, adl_record **out);
ADL_API void adl_record_free(adl_record *record);
/* Borrowed, as are the texts in it. */
ADL_API const adl_snapshot *adl_record_snapshot(const adl_record *record);
/* A new policy: the one that is named (NULL: the one that decided, or the default) with the constants that it
 * had then. */
ADL_API ADL_MUST adl_status adl_record_policy(const adl_record *record, const char *name,
                                              adl_policy **out);
/* The first job whose nodes are not what was decided then; -1: none, or no decision was written down. */
ADL_API int adl_record_difference(const adl_record *record, const adl_decision *decision);
ADL_API bool adl_record_decided(const adl_record *record);

/* policy and decision may be NULL. A job's step_time_s is written as a table up to its max_replicas. ENOMEM. */
ADL_API ADL_MUST adl_status adl_snapshot_write(const adl_snapshot *snapshot,
                                               const adl_policy *policy,
                                               const adl_decision *decision, char **text);
/* {"desiredNodes": n, "jobs": [...]}: nodes, reason, figures and one sentence for every job. */
ADL_API ADL_MUST adl_status adl_decision_write(const adl_snapshot *snapshot,
                                               const adl_decision *decision, char **text);
/* "grew" ... */
ADL_API const char *adl_reason_name(adl_reason reason);

/* For bindings: a snapshot as JSON in, the decision as JSON out. policy NULL: as the snapshot says. */
ADL_API ADL_MUST adl_status adl_decide_text(adl_policy *policy, const char *text, size_t length,
                                            char **answer);

#ifdef __cplusplus
}
#endif
#endif
