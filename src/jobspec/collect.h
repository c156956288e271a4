/* Small owned collections that job files, node files and configurations are read into. */
#ifndef ADLI_COLLECT_H
#define ADLI_COLLECT_H

#include "base/buf.h"
#include "jobspec/jobspec.h"

/* Replaces *slot by a copy of text. */
ADL_MUST adl_status adli_keep(char **slot, const char *text);

/* Appends a copy; a name that is there already gets the new value. */
ADL_MUST adl_status adli_pairs_set(adli_pairs *pairs, const char *name, const char *value);
const char *adli_pairs_get(const adli_pairs *pairs, const char *name); /* NULL: there is none */
void adli_pairs_fini(adli_pairs *pairs);

/* Adds or replaces; the caller has checked that there is room. */
ADL_MUST adl_status adli_amounts_set(adli_amounts *amounts, const char *name, int64_t amount);
void adli_amounts_fini(adli_amounts *amounts);
/* Reads a mapping of resource names to quantities, at most `most` of them. pods: whether "pods" may
 * be one. */
ADL_MUST adl_status adli_amounts_read(const adli_field *field, int most, bool pods,
                                      adli_amounts *out);

/* Kubernetes' $(NAME): replaced by the variable's value, left alone when there is no such variable;
 * $$ is a dollar. Returns the length of the result, whether or not out could take it. */
size_t adli_expand(const char *text, const adli_pairs *variables, adli_buf *out);

#endif
