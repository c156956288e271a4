/* Where a Kubernetes API server is and how it knows us: from a kubeconfig, or from the service account of
 * the pod that we run in. */
#ifndef ADLI_KUBE_CONFIG_H
#define ADLI_KUBE_CONFIG_H

#include "base/buf.h"

#include <stdbool.h>

/* Texts are the struct's own, "" where there is none. PEM texts, not names of files. */
typedef struct adli_kube_config {
    char *server; /* "https://10.0.0.1:6443", without a slash at the end */
    char *ca, *certificate, *key;
    char *token, *token_file; /* the file is read again as it is renewed */
    char *ns;                 /* "default" when nothing else is said */
    char **exec;     /* a program that tells the rest, with its arguments and NULL; NULL: none */
    char **exec_env; /* "NAME=VALUE" and NULL, for it */
    char *hint;      /* how to install it */
    char *source;    /* where all this is from: a file, or the service account */
    char *context;   /* of that file; "" */
    bool insecure;   /* the server's certificate is not checked: only when the kubeconfig says so */
} adli_kube_config;

/* The kubeconfig that was named, else $KUBECONFIG (the first file of the list that exists), else the service
 * account of this pod, else ~/.kube/config. context: NULL or "": the current one. ENOENT: there is none of
 * these; EINVAL names file, line and field. */
ADL_MUST adl_status adli_kube_config_find(const char *path, const char *context,
                                          adli_kube_config *out);
/* A kubeconfig of length bytes. directory: where names of files in it begin. */
ADL_MUST adl_status adli_kube_config_parse(const char *source, const char *directory,
                                           const char *text, size_t length, const char *context,
                                           adli_kube_config *out);
/* The service account whose files are in the directory. */
ADL_MUST adl_status adli_kube_config_in_cluster(const char *directory, adli_kube_config *out);
/* Asks the program that the user's entry names for a token or a certificate (ExecCredential of
 * client.authentication.k8s.io), where there is one; never through a shell. Blocks for at most limit_s. EINVAL,
 * EIO or ETIMEOUT name the program. */
ADL_MUST adl_status adli_kube_config_login(adli_kube_config *config, double limit_s);
void adli_kube_config_fini(adli_kube_config *config);

#endif
