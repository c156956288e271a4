/* Job files: kind AdaptDLJob, the same file that Kubernetes takes, read and checked into a plain
 * struct. docs/jobs.md describes every field. What belongs to Kubernetes alone is listed in
 * warnings; what nobody knows is an error that names line and field and suggests the nearest known
 * one. Threads: none of this is shared. Nothing blocks but adli_jobfile_load, on its file. */
#ifndef ADLI_JOBSPEC_H
#define ADLI_JOBSPEC_H

#include "doc/doc.h"

#define ADLI_JOB_API_VERSION "adaptdl.petuum.com/v1"
#define ADLI_JOB_KIND        "AdaptDLJob"

enum {
    ADLI_JOB_FILE_MAX = 1 << 20, /* bytes of a job file */
    ADLI_NAME_MAX = 63,          /* a DNS label */
    ADLI_GENERATED = 5,          /* characters that generateName gets */
    ADLI_RESOURCES_MAX = 8,      /* kinds of resources, as ADL_MAX_RESOURCES */
    ADLI_REPLICAS_MAX = 10000,
};

#define ADLI_PRIORITY_LOW  0.01
#define ADLI_PRIORITY_HIGH 100.0

/* "name" and "value": a label, an annotation, a variable. */
typedef struct adli_pair {
    char *name, *value;
} adli_pair;

typedef struct adli_pairs {
    adli_pair *items;
    size_t count, capacity;
} adli_pairs;

/* Amounts by name: "cpu" in thousandths, "memory" in bytes, others in pieces (quantity.h). */
typedef struct adli_amounts {
    int count;
    char *names[ADLI_RESOURCES_MAX];
    int64_t amounts[ADLI_RESOURCES_MAX];
} adli_amounts;

/* All texts are the struct's own. */
typedef struct adli_jobfile {
    char *name;          /* "" when generate_name is used */
    char *generate_name; /* "" when name is given; the server adds ADLI_GENERATED characters */
    char *ns;            /* "default" when not given */
    char *uid;           /* "" when not given; as it stands: who takes it checks it */
    adli_pairs labels, annotations;

    int min_replicas; /* 0 */
    int max_replicas; /* 0: no limit of its own */
    bool preemptible; /* true */
    double priority;  /* 1 */
    int suspend;      /* 0 when-better, 1 last-resort, 2 never */
    int max_retries;  /* -1: not given, the daemon's */
    double grace_s;   /* terminationGracePeriodSeconds; -1: not given, the daemon's */

    char *container; /* name of the main container */
    char *image;     /* "" when not given */
    char **argv;     /* [argc], then NULL: command and args, $(NAME) replaced from env */
    int argc;
    int command_count;     /* how many of argv come from command; the rest are args */
    adli_pairs env;        /* in order, each name once, $(NAME) replaced */
    char *working_dir;     /* "" when not given; else absolute */
    adli_amounts requests; /* of one replica; what is only in limits is here too. Never "pods" */
    adli_amounts limits;

    char **warnings; /* [warning_count] one line each: "spec.template.spec.volumes: ignored here" */
    int warning_count;
    char *
        json; /* what was submitted: compact, keys sorted, NUL-terminated; parses to the same job */
} adli_jobfile;

/* Reads and checks a job file of length bytes. source names it in messages. On failure (EINVAL)
 * *out is empty, and adli_jobfile_fini harmless. */
ADL_MUST adl_status adli_jobfile_parse(const char *source, const char *text, size_t length,
                                       adli_doc_format format, adli_jobfile *out);
ADL_MUST adl_status adli_jobfile_load(const char *path, adli_jobfile *out);
ADL_MUST adl_status adli_jobfile_from_doc(const adli_doc *doc, adli_jobfile *out);
void adli_jobfile_fini(adli_jobfile *spec);

/* A lower-case DNS label: [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 63. */
bool adli_name_valid(const char *name);
/* The request for a resource; 0 when there is none. */
int64_t adli_amounts_get(const adli_amounts *amounts, const char *name);

#endif
