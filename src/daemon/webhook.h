/* The admission webhook of the operator: jobs that cannot be are refused while their author is still looking.
 * It is wanted where the cluster has a ValidatingWebhookConfiguration of ours, which also says under what name the
 * API server calls. Certificates are made here, live in memory and the state directory, and are renewed long
 * before they end; who trusts them is told through the configuration's caBundle.
 *
 * Nothing depends on it: what gets past while nobody listens is checked again by the operator. */
#ifndef ADLI_WEBHOOK_H
#define ADLI_WEBHOOK_H

#include "base/buf.h"
#include "kube/kube.h"

typedef struct adli_webhook adli_webhook;

typedef struct adli_webhook_options {
    adli_kube *kube;           /* borrowed, outlives the webhook */
    const char *state_dir;     /* certificate and key are files there */
    const char *listen;        /* "ADDRESS:PORT" */
    const char *configuration; /* name of the ValidatingWebhookConfiguration */
    double life_s;             /* of a certificate; renewed after half of it */
    double look_s;             /* between two looks at the configuration */
} adli_webhook_options;

/* Starts a thread that serves as soon as there is a configuration. The texts are copied. */
ADL_MUST adl_status adli_webhook_new(const adli_webhook_options *options, adli_webhook **out);
/* NULL is harmless. */
void adli_webhook_free(adli_webhook *webhook);

/* ---- its parts ---- */

/* A key and a certificate signed with it, for one host (a name or an IP address), valid from a day ago until life_s
 * from now; as PEM. */
ADL_MUST adl_status adli_webhook_certificate(const char *host, double life_s, adli_buf *certificate,
                                             adli_buf *key);
/* The answer to an AdmissionReview. EINVAL: it is none. Asks the server about the pod template, and lets pass what
 * the server cannot be asked about. */
ADL_MUST adl_status adli_webhook_review(adli_kube *kube, const char *body, size_t length,
                                        adli_buf *out);

#endif
