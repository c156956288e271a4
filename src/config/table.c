/* Every constant of the daemon: its name, default, range and meaning. */
#include "config/table.h"

#define AT(member) offsetof(adli_config, member)
#define KI         1024.0
#define MI         (1024.0 * 1024.0)
#define GI         (1024.0 * 1024.0 * 1024.0)

/* In the order in which they are printed; the members of a section stand together. */
const adli_constant adli_constants[ADLI_CONSTANTS] = {
    {"policy", "name", ADLI_TEXT, AT(policy), 0, 64, 0,
     "who decides on allocations; empty: the default one; docs/policies.md"},
    {"policy", "parameters", ADLI_PARAMETERS, 0, 0, 0, 0,
     "the policy's own constants by name, such as {hy: 0.1}; docs/policies.md"},
    {"", "backend", ADLI_TEXT, AT(backend), 0, 64, 0,
     "what runs replicas: local (as processes on this machine; also when empty) or kubernetes; "
     "docs/backend.md"},
    {"", "intervalSeconds", ADLI_NUMBER, AT(interval_s), 0.1, 86400, 60,
     "between two rounds in which all jobs are re-optimised"},
    {"", "eventDelaySeconds", ADLI_NUMBER, AT(event_delay_s), 0, 3600, 1,
     "rounds that events ask for (a job ended, a node came) are at least this far apart"},
    {"", "startAtOnce", ADLI_BOOL, AT(start_at_once), 0, 1, 1,
     "a new job that fits somewhere starts without waiting for a round"},
    {"", "shareModels", ADLI_BOOL, AT(share_models), 0, 1, 1,
     "jobs of one application learn from each other what they measured; docs/policies.md"},
    {"", "graceSeconds", ADLI_NUMBER, AT(grace_s), 0, 86400, 30,
     "from SIGTERM to SIGKILL, for jobs without terminationGracePeriodSeconds"},
    {"", "maxRetries", ADLI_INT, AT(max_retries), 0, 1000000, 3,
     "how often a job that failed by itself is tried again, for jobs without maxRetries"},
    {"", "retryPauseSeconds", ADLI_NUMBER, AT(retry_pause_s), 0, 86400, 5,
     "before the first retry; doubled with every further one, up to 300"},
    {"", "listen", ADLI_TEXT, AT(listen), 0, 280, 0,
     "ADDRESS:PORT or [ADDRESS]:PORT for the API over TCP; empty: the Unix socket only"},
    {"", "listenInsecure", ADLI_BOOL, AT(listen_insecure), 0, 1, 0,
     "listen on addresses that other machines reach without TLS: tokens and data can be read on "
     "the way"},
    {"", "tokenFile", ADLI_TEXT, AT(token_file), 0, 4000, 0,
     "file with the token that TCP clients must send; empty: STATE/token, made at the first start"},
    {"", "namespaceUsers", ADLI_TEXT, AT(namespace_users), 0, 4000, 0,
     "NAMESPACE=USER, ...: whose processes the jobs of each namespace are, where root runs the "
     "scheduler; jobs of others are refused. Empty: all are the scheduler's own; "
     "docs/security.md"},
    {"tls", "certificate", ADLI_TEXT, AT(tls_certificate), 0, 4000, 0,
     "PEM file; with it the API over TCP is HTTPS"},
    {"tls", "key", ADLI_TEXT, AT(tls_key), 0, 4000, 0, "PEM file of the certificate's private key"},
    {"limits", "maxBodyBytes", ADLI_BYTES, AT(limits.max_body_bytes), KI, GI, MI,
     "the largest request"},
    {"limits", "maxUploadBytes", ADLI_BYTES, AT(limits.max_upload_bytes), KI, 1024 * GI, 256 * MI,
     "the largest job with its files"},
    {"limits", "maxHeaderBytes", ADLI_BYTES, AT(limits.max_header_bytes), KI, MI, 16 * KI,
     "the largest header of a request"},
    {"limits", "maxConnections", ADLI_INT, AT(limits.max_connections), 1, 100000, 1000,
     "open at one time; further ones are refused"},
    {"limits", "requestsPerSecond", ADLI_NUMBER, AT(limits.requests_per_second), 0, 1e6, 1000,
     "of one client address, in the long run; 0: no limit"},
    {"limits", "burst", ADLI_INT, AT(limits.burst), 1, 1000000, 2000,
     "requests that one client may send at once before requestsPerSecond holds"},
    {"limits", "idleSeconds", ADLI_NUMBER, AT(limits.idle_s), 1, 3600, 30,
     "a connection on which nothing moves is closed"},
    {"limits", "maxLogBytes", ADLI_BYTES, AT(limits.max_log_bytes), 0, 1024 * GI, 64 * MI,
     "kept of each replica's output, and of daemon.log: the oldest is removed; 0: all is kept"},
    {"limits", "reserveBytes", ADLI_BYTES, AT(limits.reserve_bytes), 0, GI, 16 * MI,
     "of the disk, held in STATE/reserve and given back when the disk is full, so that jobs can "
     "be deleted"},
    {"store", "events", ADLI_INT, AT(store.events), 100, 10000000, 10000, "events kept, in all"},
    {"store", "decisionsPerJob", ADLI_INT, AT(store.decisions_per_job), 1, 100000, 200,
     "decisions kept for each job"},
    {"store", "samplesPerJob", ADLI_INT, AT(store.samples_per_job), 1, 1000000, 2000,
     "samples of its history kept for each job"},
    {"store", "finishedJobs", ADLI_INT, AT(store.finished_jobs), 0, 1000000, 1000,
     "finished jobs kept; the oldest are removed, with their files"},
    {"", "historySeconds", ADLI_NUMBER, AT(history_s), 0.1, 86400, 5,
     "between two samples of a running job's history"},
    {"", "useSeconds", ADLI_NUMBER, AT(use_s), 0, 86400, 5,
     "between two looks at the processor time, memory and GPUs that replicas use; where a look is "
     "dear, longer; 0: "
     "none"},
    {"kubernetes", "namespace", ADLI_TEXT, AT(kubernetes.ns), 0, 63, 0,
     "the operator sees jobs of this namespace only; empty: of all"},
    {"kubernetes", "listen", ADLI_TEXT, AT(kubernetes.listen), 0, 280, 0,
     "ADDRESS:PORT where pods reach the operator; empty: 0.0.0.0:8080"},
    {"kubernetes", "supervisorUrl", ADLI_TEXT, AT(kubernetes.supervisor), 0, 500, 0,
     "what pods are told to reach it by; empty: the service adaptdl-supervisor of its namespace"},
    {"kubernetes", "webhookListen", ADLI_TEXT, AT(kubernetes.webhook), 0, 280, 0,
     "ADDRESS:PORT where the API server reaches the admission webhook; empty: 0.0.0.0:8443"},
    {"kubernetes", "apiListen", ADLI_TEXT, AT(kubernetes.api), 0, 280, 0,
     "ADDRESS:PORT where the API server's proxy reaches the read API, for `adaptdl` on the "
     "cluster; "
     "empty: nowhere"},
    {"kubernetes", "tokens", ADLI_BOOL, AT(kubernetes.tokens), 0, 1, 1,
     "replicas must show the token of their job to report; false: whoever reaches the door may "
     "report for any, for clients that know no tokens"},
    {"kubernetes", "defaultResources", ADLI_TEXT, AT(kubernetes.resources), 0, 4000, 0,
     "JSON: requests and limits of a job's first container where it names none"},
    {"kubernetes", "podPatch", ADLI_TEXT, AT(kubernetes.pod_patch), 0, 16000, 0,
     "JSON: a JSON patch (add, replace, remove, test) to the pod template of every job"},
    {"kubernetes", "containerPatch", ADLI_TEXT, AT(kubernetes.container_patch), 0, 16000, 0,
     "JSON: one to each of its containers, before that"},
    {"autoscale", "maxNodes", ADLI_INT, AT(autoscale.max_nodes), 0, 1000, 0,
     "the most nodes that there should be, where the backend can have some added; 0: as many as "
     "there are; docs/kubernetes.md"},
    {"autoscale", "minNodes", ADLI_INT, AT(autoscale.min_nodes), 0, 1000, 0,
     "the fewest, whether there are jobs or not"},
    {"autoscale", "lowUtility", ADLI_NUMBER, AT(autoscale.low_utility), 0, 1, 0.35,
     "the number of nodes is left as it is while they are at least so well used"},
    {"autoscale", "highUtility", ADLI_NUMBER, AT(autoscale.high_utility), 0, 1, 0.65,
     "and at most so well"},
    {"autoscale", "nodePrice", ADLI_NUMBER, AT(autoscale.node_price), 0, 1e6, 0,
     "of a node per hour, where the node itself does not say (label adaptdl/price-per-hour)"},
    {"autoscale", "budget", ADLI_NUMBER, AT(autoscale.budget), 0, 1e9, 0,
     "for all nodes per hour: as many as it pays for, as long as each brings enough for its price; "
     "0: by their use alone"},
    {"autoscale", "image", ADLI_TEXT, AT(autoscale.image), 0, 500, 0,
     "of placeholder pods, with /bin/adaptdl-sched; empty: the operator's own"},
    {"autoscale", "nodeSelector", ADLI_TEXT, AT(autoscale.selector), 0, 500, 0,
     "KEY=VALUE,...: labels of the nodes that may be added"},
    {"", "nodesFile", ADLI_TEXT, AT(nodes_file), 0, 4000, 0,
     "YAML file with a list of nodes, as below; read once, at the start"},
    {"", "nodes", ADLI_NODES, AT(nodes), 0, 0, 0,
     "the nodes of the local cluster; without them and without nodesFile: this machine, one node"},
};

void adli_constant_put(const adli_constant *c, adli_config *config, double value)
{
    switch (c->kind) {
    case ADLI_BOOL:
        *(bool *)adli_constant_slot(c, config) = value != 0;
        break;
    case ADLI_INT:
        *(int *)adli_constant_slot(c, config) = (int)value;
        break;
    case ADLI_BYTES:
        *(int64_t *)adli_constant_slot(c, config) = (int64_t)value;
        break;
    case ADLI_NUMBER:
        *(double *)adli_constant_slot(c, config) = value;
        break;
    case ADLI_TEXT:
    case ADLI_PARAMETERS:
    case ADLI_NODES:
        break;
    }
}

double adli_constant_get(const adli_constant *c, const adli_config *config)
{
    const void *at = adli_constant_value(c, config);
    switch (c->kind) {
    case ADLI_BOOL:
        return *(const bool *)at;
    case ADLI_INT:
        return *(const int *)at;
    case ADLI_BYTES:
        return (double)*(const int64_t *)at; /* at most 2^40: exact */
    case ADLI_NUMBER:
        return *(const double *)at;
    case ADLI_TEXT:
    case ADLI_PARAMETERS:
    case ADLI_NODES:
        break;
    }
    return 0;
}
