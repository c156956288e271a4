/* The table of nodes: what the backend declares, turned into the numbers that the scheduler counts with.
 * A node keeps its number for as long as it is there, or a job has something on it, and for a minute more, so that
 * people see what became of it; then its place is the next newcomer's, and the table's end is cut off. */
#include "daemon/core_impl.h"

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Kubernetes lets a node take 110 pods when nothing else is said. */
enum { PODS = 0, PODS_DEFAULT = 110, ELSEWHERE = ADL_MAX_RESOURCES - 1 };

static int find_resource(const adli_core *core, const char *name)
{
    for (int r = 0; r < core->resource_count; r++)
        if (strcmp(core->resource_names[r], name) == 0)
            return r;
    return -1;
}

static adl_status add_resource(adli_core *core, const char *name, int at)
{
    core->resource_storage[at] = adli_strdup(name);
    if (!core->resource_storage[at])
        return adli_fail_memory("resources");
    core->resource_names[at] = core->resource_storage[at];
    if (at >= core->resource_count)
        core->resource_count = at + 1;
    return ADL_OK;
}

/* pods, cpu and memory are always there; the last place is what no node declares at all. */
static adl_status name_resources(adli_core *core, const adli_backend_node *nodes, int count)
{
    static const char *const always[] = {"pods", "cpu", "memory"};
    adl_status status = ADL_OK;
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(always); i++)
        if (!core->resource_storage[i])
            status = add_resource(core, always[i], (int)i);
    int used = 0;
    while (used < ELSEWHERE && core->resource_storage[used])
        used++;
    for (int n = 0; n < count; n++)
        for (int r = 0; status == ADL_OK && r < nodes[n].resource_count; r++) {
            const char *name = nodes[n].resource_names[r];
            if (find_resource(core, name) >= 0)
                continue;
            if (used == ELSEWHERE)
                return adli_fail(ADL_EINVAL,
                                 "node %s: resource %s: there are more than %d kinds of resources",
                                 nodes[n].name, name, ELSEWHERE);
            /* places before `used` are taken in order, so the names stay dense */
            core->resource_count = used;
            status = add_resource(core, name, used++);
        }
    if (status == ADL_OK && !core->resource_storage[ELSEWHERE])
        core->resource_storage[ELSEWHERE] = adli_strdup("of another kind");
    if (!core->resource_storage[ELSEWHERE])
        return adli_fail_memory("resources");
    for (int r = used; r <= ELSEWHERE; r++)
        core->resource_names[r] = core->resource_storage[ELSEWHERE];
    core->resource_count = ADL_MAX_RESOURCES;
    return status;
}

static adl_status add_node(adli_core *core, const char *name, int *number)
{
    int at = 0;
    while (at < core->node_count && !core->nodes[at].unused)
        at++;
    if (adli_grow(&core->nodes, &core->node_capacity, (size_t)at + 1, sizeof *core->nodes) != 0)
        return adli_fail_memory("nodes");
    adli_core_node node = {.name = adli_strdup(name), .device_type = adli_strdup("")};
    if (!node.name || !node.device_type) {
        free(node.name);
        free(node.device_type);
        return adli_fail_memory("nodes");
    }
    if (at < core->node_count) {
        free(core->nodes[at].name);
        free(core->nodes[at].device_type);
    } else
        core->node_count++;
    node.gone_s = core->now_s; /* until the backend says otherwise */
    core->nodes[at] = node;
    *number = at;
    return ADL_OK;
}

static int find_node(const adli_core *core, const char *name)
{
    for (int i = 0; i < core->node_count; i++)
        if (!core->nodes[i].unused && strcmp(core->nodes[i].name, name) == 0)
            return i;
    return -1;
}

int adli_core_node_number(adli_core *core, const char *name)
{
    int number = find_node(core, name);
    if (number < 0 && add_node(core, name, &number) != ADL_OK)
        return -1;
    return number;
}

static void declare(adli_core *core, adli_core_node *node, const adli_backend_node *from)
{
    memset(&node->declared, 0, sizeof node->declared);
    memset(node->known_resource, 0, sizeof node->known_resource);
    for (int r = 0; r < from->resource_count; r++) {
        int at = find_resource(core, from->resource_names[r]);
        int64_t amount = from->resource_amounts[r];
        node->declared.amount[at] = amount < ADL_MAX_AMOUNT ? amount : ADL_MAX_AMOUNT;
        node->known_resource[at] = true;
    }
    if (!node->known_resource[PODS])
        node->declared.amount[PODS] = PODS_DEFAULT;
    for (int r = PODS + 1; r <= PODS + 2; r++) /* cpu and memory: not counted unless declared */
        if (!node->known_resource[r])
            node->declared.amount[r] = ADL_MAX_AMOUNT;
    node->preemptible = from->preemptible;
    node->price = from->price;
    node->addable = from->addable;
}

/* Under lock. Events tell of nodes that come and go. */
static adl_status take_node(adli_core *core, const adli_backend_node *from, double now_s)
{
    int number = find_node(core, from->name);
    bool is_new = number < 0;
    adl_status status = is_new ? add_node(core, from->name, &number) : ADL_OK;
    if (status != ADL_OK)
        return status;
    adli_core_node *node = &core->nodes[number];
    if (strcmp(node->device_type, from->device_type) != 0) {
        char *type = adli_strdup(from->device_type);
        if (!type)
            return adli_fail_memory("nodes");
        free(node->device_type);
        node->device_type = type;
    }
    declare(core, node, from);
    if (core->cluster && node->ready != from->ready)
        adli_core_event(core, now_s, from->ready ? "NodeReady" : "NodeLost", "", "",
                        "node %s is %s", node->name, from->ready ? "ready" : "lost");
    node->ready = from->ready;
    node->there = true;
    return ADL_OK;
}

/* ---- nodes that go ---- */

static bool has(const int *nodes, int count, int number)
{
    for (int i = 0; i < count; i++)
        if (nodes[i] == number)
            return true;
    return false;
}

/* Does a job have something there, or is to? */
static bool in_use(const adli_core *core, int number)
{
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        const adli_row *row = &job->row;
        if (has(row->wanted, row->wanted_count, number) ||
            has(row->placed, row->placed_count, number))
            return true;
        if (!core->cluster || job->number < 0)
            continue;
        const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
        if (has(info->nodes, info->replicas, number) ||
            has(info->placed, info->placed_count, number))
            return true;
    }
    return false;
}

/* Under lock, after all that are there were taken. One that was drained is remembered, should it come back. */
static void lose_nodes(adli_core *core, double now_s)
{
    for (int i = 0; i < core->node_count; i++) {
        adli_core_node *node = &core->nodes[i];
        if (node->there || node->unused)
            continue;
        if (node->ready) {
            node->ready = false;
            node->gone_s = now_s;
            if (core->cluster)
                adli_core_event(core, now_s, "NodeLost", "", "", "node %s is lost", node->name);
        }
        node->unused =
            !node->drained && now_s - node->gone_s >= ADLI_GONE_KEPT_S && !in_use(core, i);
    }
    for (adli_core_node *last; core->node_count > 0; core->node_count--) {
        last = &core->nodes[core->node_count - 1];
        if (!last->unused)
            break;
        free(last->name);
        free(last->device_type);
    }
}

/* What the cluster sees of a node. */
static adl_node seen_node(const adli_core *core, const adli_core_node *node)
{
    static const adl_resources nothing;
    bool drained = node->drained || core->draining;
    return (adl_node){.name = node->name,
                      .device_type = node->device_type,
                      .capacity = node->ready && !drained ? node->declared : nothing,
                      .drained = node->ready && drained ? node->declared : nothing,
                      .preemptible = node->preemptible};
}

static bool same_node(const adl_node *a, const adl_node *b)
{
    return a->name == b->name && a->device_type == b->device_type &&
           a->preemptible == b->preemptible &&
           memcmp(&a->capacity, &b->capacity, sizeof a->capacity) == 0 &&
           memcmp(&a->drained, &b->drained, sizeof a->drained) == 0;
}

/* ---- how many there should be ---- */

bool adli_core_autoscales(const adli_core *core)
{
    return core->config.autoscale.max_nodes > 0;
}

/* A new node will be as the largest of those that there are, or were. */
static void remember_usual(adli_core *core)
{
    const adli_core_node *usual = NULL;
    for (int i = 0; i < core->node_count; i++) {
        const adli_core_node *node = &core->nodes[i];
        if (node->ready && !node->unused && node->addable &&
            (!usual || node->declared.amount[PODS + 1] > usual->declared.amount[PODS + 1]))
            usual = node;
    }
    if (usual)
        core->usual_node = (adl_node){.name = "a new node",
                                      .device_type = core->usual_node.device_type,
                                      .capacity = usual->declared};
    if (!core->usual_node.device_type)
        core->usual_node.device_type = "";
}

static adl_status choose_size(adli_core *core)
{
    size_t count = core->node_count > 0 ? (size_t)core->node_count : 1;
    if (!adli_core_autoscales(core))
        return ADL_OK;
    if (adli_grow(&core->prices, &core->price_capacity, count, sizeof *core->prices) != 0)
        return adli_fail_memory("nodes");
    for (int i = 0; i < core->node_count; i++)
        core->prices[i] = core->nodes[i].price;
    remember_usual(core);
    adl_sizing sizing = ADL_SIZING_INIT;
    sizing.min_nodes = core->config.autoscale.min_nodes;
    sizing.max_nodes = core->config.autoscale.max_nodes;
    sizing.low_utility = core->config.autoscale.low_utility;
    sizing.high_utility = core->config.autoscale.high_utility;
    sizing.node_price = core->config.autoscale.node_price;
    sizing.budget = core->config.autoscale.budget;
    sizing.prices = core->prices;
    return adl_cluster_set_sizing(core->cluster, &sizing,
                                  core->usual_node.name ? &core->usual_node : NULL);
}

/* Hands the table to the cluster when it says something new, or anyway. */
static adl_status hand_over(adli_core *core, bool anyway, double now_s)
{
    if (adli_grow(&core->sched_nodes, &core->sched_capacity,
                  core->node_count > 0 ? (size_t)core->node_count : 1,
                  sizeof *core->sched_nodes) != 0)
        return adli_fail_memory("nodes");
    bool changed = core->sched_count != core->node_count || core->held != core->draining;
    for (int i = 0; i < core->node_count; i++) {
        adl_node node = seen_node(core, &core->nodes[i]);
        changed |= i >= core->sched_count || !same_node(&node, &core->sched_nodes[i]);
        core->sched_nodes[i] = node;
    }
    core->sched_count = core->node_count;
    core->held = core->draining;
    core->placeless |= changed;
    if (!core->cluster || (!changed && !anyway))
        return ADL_OK;
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->active, stage)
    {
        adl_cluster_set_request(core->cluster, job->number, adli_core_request(core, job));
    }
    adli_core_touch_active(core); /* what was said of them may not be true any more */
    int withdrawn;
    adl_status status =
        adl_cluster_set_nodes(core->cluster, core->resource_names, core->resource_count,
                              core->sched_nodes, core->node_count, now_s, &withdrawn);
    return status == ADL_OK ? choose_size(core) : status;
}

adl_resources adli_core_request(const adli_core *core, const adli_kept_job *job)
{
    adl_resources request = {.amount = {[PODS] = 1}};
    for (int r = 0; r < job->spec.requests.count; r++) {
        int at = find_resource(core, job->spec.requests.names[r]);
        int64_t amount = job->spec.requests.amounts[r];
        if (at >= 0)
            request.amount[at] = amount;
        else if (amount > 0)
            request.amount[ELSEWHERE] = 1;
    }
    return request;
}

bool adli_core_fits(const adli_core *core, const adli_kept_job *job, bool drained, char *why,
                    size_t size)
{
    const adli_amounts *requests = &job->spec.requests;
    for (int r = 0; r < requests->count; r++)
        if (requests->amounts[r] > 0 && find_resource(core, requests->names[r]) < 0) {
            snprintf(why, size, "a replica asks for %s %lld; no node has any", requests->names[r],
                     (long long)requests->amounts[r]);
            return false;
        }
    adl_node *nodes =
        adli_calloc(core->node_count > 0 ? (size_t)core->node_count : 1, sizeof *nodes);
    if (!nodes)
        return true;
    int count = 0;
    for (int i = 0; i < core->node_count; i++)
        if (core->nodes[i].ready && (drained || !core->nodes[i].drained))
            nodes[count++] =
                (adl_node){.name = core->nodes[i].name, .capacity = core->nodes[i].declared};
    adl_resources request = adli_core_request(core, job);
    bool fits = adl_fits_ever(core->resource_names, core->resource_count, nodes, count, &request,
                              job->spec.min_replicas, why, size);
    free(nodes);
    return fits;
}

bool adli_core_fits_more(const adli_core *core, const adli_kept_job *job)
{
    char why[256];
    int present = 0, most = core->config.autoscale.max_nodes;
    for (int i = 0; i < core->node_count; i++)
        present += core->nodes[i].ready;
    if (present >= most)
        return false;
    if (!core->usual_node.name) /* the first one will tell */
        return true;
    adl_node *nodes = adli_calloc((size_t)most, sizeof *nodes);
    for (int i = 0; nodes && i < most; i++)
        nodes[i] = core->usual_node;
    adl_resources request = adli_core_request(core, job);
    bool fits = !nodes || adl_fits_ever(core->resource_names, core->resource_count, nodes, most,
                                        &request, job->spec.min_replicas, why, sizeof why);
    free(nodes);
    return fits;
}

adl_status adli_core_refresh_nodes(adli_core *core, bool anyway)
{
    const adli_backend_node *nodes;
    int count;
    double now_s = adli_core_now(core);
    adl_status status = core->backend->ops->nodes(core->backend->self, &nodes, &count);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&core->lock);
    status = name_resources(core, nodes, count);
    for (int i = 0; i < core->node_count; i++)
        core->nodes[i].there = false;
    for (int i = 0; status == ADL_OK && i < count; i++)
        status = take_node(core, &nodes[i], now_s);
    if (status == ADL_OK)
        lose_nodes(core, now_s);
    /* in any case: the cluster must not see names that are gone */
    adl_status handed = hand_over(core, anyway, now_s);
    pthread_mutex_unlock(&core->lock);
    return status == ADL_OK ? handed : status;
}

bool adli_core_sized_text(const adli_core *core, char *text, size_t size)
{
    const adl_sized *sized = adl_cluster_sized(core->cluster);
    adl_sizing sizing = ADL_SIZING_INIT;
    if (!sized)
        return false;
    sizing.low_utility = core->config.autoscale.low_utility;
    sizing.high_utility = core->config.autoscale.high_utility;
    sizing.budget = core->config.autoscale.budget;
    adl_sized_explain(&sizing, sized, text, size);
    return true;
}

void adli_core_want_nodes(adli_core *core, double now_s)
{
    int desired = adl_cluster_decision(core->cluster)->desired_nodes;
    const adl_sized *sized = adl_cluster_sized(core->cluster);
    char text[300];
    for (int i = 0; !sized && i < core->node_count; i++) /* policies count those that are gone */
        desired -= !core->nodes[i].there;
    if (sized && core->active_count == 0)
        desired = core->config.autoscale.min_nodes;
    desired = desired > 0 ? desired : 0;
    if (sized && desired != core->desired_nodes) {
        adli_buf fields;
        adli_buf_init(&fields, FIELDS_MAX);
        adli_jw_int(&fields, "desired", desired);
        if (core->active_count > 0)
            adli_core_sized_text(core, text, sizeof text);
        else
            snprintf(text, sizeof text, "%d nodes wanted: there are no jobs", desired);
        adli_core_event(core, now_s, "ClusterScaled", "", fields.data, "%s", text);
        adli_buf_fini(&fields);
    }
    core->desired_nodes = desired;
}

void adli_core_scale(adli_core *core)
{
    if (core->desired_nodes == core->told_nodes)
        return;
    if (core->backend->ops->scale(core->backend->self, core->desired_nodes) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%d nodes: %s", core->desired_nodes, adl_error());
    core->told_nodes = core->desired_nodes;
}

adl_status adli_core_drain(adli_core *core, const char *name, bool drain, adli_buf *out)
{
    double now_s = adli_core_now(core);
    pthread_mutex_lock(&core->changes);
    pthread_mutex_lock(&core->lock);
    int number = find_node(core, name);
    bool change = number >= 0 && core->nodes[number].drained != drain;
    pthread_mutex_unlock(&core->lock);
    adl_status status = ADL_OK;
    if (number < 0)
        status = adli_fail(ADL_ENOENT, "no node %.63s", name);
    else if (!drain && core->draining) /* changed under `changes` only */
        status = adli_fail(ADL_ESTATE, "node %.63s: " ADLI_DRAINING, name);
    if (status == ADL_OK && change) {
        char message[128];
        snprintf(message, sizeof message, "node %.63s is %s", name,
                 drain ? "drained: its replicas go elsewhere" : "in use again");
        adli_core_make_room(core);
        adli_store_begin(core->store);
        adli_store_drain(core->store, name, drain);
        adli_store_event(core->store, now_s, drain ? "NodeDrained" : "NodeUndrained", "", message,
                         "");
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        number = find_node(core, name); /* it may have gone meanwhile, for good */
        if (number >= 0) {
            core->nodes[number].drained = drain;
            status = adli_nodes_json(core, number, out);
        } else
            status = adli_fail(ADL_ENOENT, "no node %.63s", name);
        pthread_mutex_unlock(&core->lock);
        adli_core_wake(core);
    }
    pthread_mutex_unlock(&core->changes);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_load_draining(adli_core *core)
{
    char value[8];
    adl_status status = adli_store_get(core->store, "draining", value, sizeof value);
    core->draining = strcmp(value, "1") == 0;
    return status;
}

void adli_core_end_drain(adli_core *core)
{
    for (int j = -1; (j = adl_cluster_busy(core->cluster, j)) >= 0;)
        if (adl_cluster_job(core->cluster, j)->placed_count > 0)
            return; /* it was interrupted: the next scheduler goes on with it */
    pthread_mutex_lock(&core->changes);
    if (core->draining) {
        adli_store_begin(core->store);
        adli_store_set(core->store, "draining", "0");
        if (adli_store_commit(core->store) != ADL_OK)
            adli_say(ADL_LOG_WARNING, "the nodes stay drained: %s", adl_error());
    }
    pthread_mutex_unlock(&core->changes);
}

/* The next line of *at, cut off; NULL: no more. */
static char *next_line(char **at)
{
    char *line = *at, *end = line ? strchr(line, '\n') : NULL;
    if (!line || !*line)
        return NULL;
    *at = end ? end + 1 : NULL;
    if (end)
        *end = '\0';
    return line;
}

adl_status adli_core_take_old_drain(adli_core *core)
{
    char path[4096];
    adli_buf names;
    snprintf(path, sizeof path, "%s/drained-by-down", core->state_dir);
    adli_buf_init(&names, 1 << 20);
    adl_status status = adli_file_read(path, &names);
    if (status != ADL_OK) { /* nearly always: there is none */
        adli_buf_fini(&names);
        return status == ADL_ENOENT ? ADL_OK : status;
    }
    adli_store_begin(core->store);
    char *at = names.data;
    for (char *name; (name = next_line(&at));) {
        adli_store_drain(core->store, name, false);
        for (int n = 0; n < core->node_count; n++)
            if (strcmp(core->nodes[n].name, name) == 0)
                core->nodes[n].drained = false;
    }
    status = adli_store_commit(core->store);
    adli_buf_fini(&names);
    if (status == ADL_OK && unlink(path) != 0)
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return status;
}

/* Called by the controller it tells that what was decided before is done and published: whoever is answered
 * then sees every replica that could still be started. */
static void turn_over(void *unused)
{
    (void)unused;
}

adl_status adli_core_drain_all(adli_core *core, bool drain, adli_buf *out)
{
    double now_s = adli_core_now(core);
    adl_status status = ADL_OK;
    pthread_mutex_lock(&core->changes);
    if (core->draining != drain) { /* changed under `changes` only */
        adli_core_make_room(core);
        adli_store_begin(core->store);
        adli_store_set(core->store, "draining", drain ? "1" : "0");
        adli_store_event(core->store, now_s, drain ? "ClusterDrained" : "ClusterUndrained", "",
                         drain ? "all nodes are drained: jobs save a checkpoint and wait"
                               : "the nodes are in use again",
                         "");
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        core->draining = drain;
        pthread_mutex_unlock(&core->lock);
    }
    pthread_mutex_unlock(&core->changes);
    if (status != ADL_OK)
        return status;
    adli_core_call(core, turn_over, NULL);
    return adli_core_cluster(core, out);
}

adl_status adli_core_nodes(adli_core *core, adli_buf *out)
{
    pthread_mutex_lock(&core->lock);
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "items", '[');
    adl_status status = adli_nodes_json(core, -1, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    pthread_mutex_unlock(&core->lock);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
