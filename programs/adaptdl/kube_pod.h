/* Pods of jobs: those that are there, and one of our own for a while that sees a job's volume. */
#ifndef ADAPTDL_KUBE_POD_H
#define ADAPTDL_KUBE_POD_H

#include "kube.h"

#include "kube/exec.h"

/* The object of the job. EXIT_DONE, or a message was shown. */
int kube_job(cluster *k, const job_name *job, json_t **out);

typedef struct kube_helper {
    char ns[64], name[80], container[64];
} kube_helper;

/* A pod with the job's image that sees the volume which is mounted at, or above, the path, and does nothing; it belongs
 * to the job and ends by itself after an hour. Waits until it runs. */
int kube_helper_start(cluster *k, const json_t *job, const char *path, kube_helper *out);
/* It is not needed any more. */
void kube_helper_end(cluster *k, const kube_helper *helper);

/* Begins a program in a pod. */
int kube_exec_begin(cluster *k, const char *ns, const char *pod, const char *container,
                    const char *const *words, bool in, bool tty, adli_kube_exec **out);

/* A program (NULL: a shell) in the container of a replica, with our streams. Its exit status. */
int kube_exec(cluster *k, const job_name *job, int rank, char *const *words);

/* The files of a job that the path names, to dest ("-": standard output). The exit status of `adaptdl cp`. */
int kube_cp(cluster *k, const job_name *job, const char *remote, const char *dest);

#endif
