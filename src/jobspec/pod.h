/* The pod template of a job file: what becomes processes here, and what only Kubernetes has. */
#ifndef ADLI_POD_H
#define ADLI_POD_H

#include "jobspec/jobspec.h"

/* spec.template into out. */
ADL_MUST adl_status adli_pod_read(const adli_field *template, adli_jobfile *out);

/* A template by itself, as JSON: what a job's backend gets. Only what the template says is filled in, with the
 * defaults of a job file; *out is to be freed by adli_jobfile_fini, also after EINVAL. */
ADL_MUST adl_status adli_pod_parse(const char *source, const char *json, size_t length,
                                   adli_jobfile *out);

/* known[count] are all the members that the object may have; the first `used` are read by us, a
 * warning tells that each of the others is ignored. */
ADL_MUST adl_status adli_members_check(adli_jobfile *spec, const adli_field *object,
                                       const char *const *known, size_t used, size_t count);
/* Adds "path: text" to the warnings. */
ADL_MUST adl_status adli_warn(adli_jobfile *spec, const adli_field *field, const char *text);

#endif
