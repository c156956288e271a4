/* What the tests of the daemon's core share: a core with a backend that only pretends and a clock that the
 * test moves. */
#ifndef TESTS_CORE_WORLD_H
#define TESTS_CORE_WORLD_H

#ifndef CORE_WORLD_BENCH /* a benchmark has no tests and a main of its own */
#include "harness.h"
#endif

#include "base/json.h"
#include "daemon/core_impl.h"
#include "fake_backend.h"

#include <ftw.h>

typedef struct world {
    char dir[64];
    fake_backend *fake;
    adli_config config;
    adli_core *core;
    double now_s;
    adli_buf out;
    bool known; /* what was submitted last was there already */
} world;

static inline double test_clock(void *user)
{
    return ((world *)user)->now_s;
}

static inline adl_status open_core(world *w)
{
    adli_core_options options = {.state_dir = w->dir,
                                 .backend = &w->fake->backend,
                                 .config = &w->config,
                                 .supervisor_url = "http://127.0.0.1:1234"};
    adl_status status = adli_core_new(&options, &w->core);
    if (status == ADL_OK)
        adli_core_set_clock(w->core, test_clock, w);
    return status;
}

static inline int remove_entry(const char *path, const struct stat *info, int kind,
                               struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static inline void close_world(world *w)
{
    adli_core_free(w->core);
    if (w->fake)
        fake_free(w->fake);
    adli_config_fini(&w->config);
    adli_buf_fini(&w->out);
    nftw(w->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline adl_status open_world(world *w, int nodes, int slots)
{
    *w = (world){.dir = "/tmp/adl-core-XXXXXX", .now_s = 4e9};
    adli_buf_init(&w->out, 16 << 20);
    if (!mkdtemp(w->dir))
        return adli_fail(ADL_EIO, "mkdtemp");
    w->fake = fake_new(w->dir, nodes, slots);
    adl_status status = adli_config_defaults(&w->config);
    w->config.event_delay_s = 0;
    w->config.history_s = 5;
    w->config.retry_pause_s = 10;
    return status == ADL_OK ? open_core(w) : status;
}

/* Another daemon takes over. */
static inline adl_status reopen(world *w)
{
    adli_core_free(w->core);
    w->core = NULL;
    return open_core(w);
}

static inline void step(world *w, double passed_s)
{
    w->now_s += passed_s;
    adli_core_step(w->core);
}

static inline adl_status submit_text(world *w, const char *text)
{
    adli_buf_clear(&w->out);
    return adli_core_submit(w->core, text, strlen(text), true, false, &w->known, &w->out);
}

static inline adl_status submit(world *w, const char *name, const char *more)
{
    char text[2048];
    snprintf(text, sizeof text,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: %s}\n"
             "spec:\n%s  template: {spec: {containers: [{name: main, command: [sleep, '1']}]}}\n",
             name, more);
    return submit_text(w, text);
}

/* A member of the job as JSON says it; borrowed until the next call. */
static inline const json_t *field(world *w, const char *name, const char *key)
{
    static json_t *root;
    json_decref(root);
    root = NULL;
    adli_buf_clear(&w->out);
    if (adli_core_job(w->core, "default", name, &w->out) != ADL_OK)
        return NULL;
    if (adli_json_parse(w->out.data, w->out.length, &root) != ADL_OK)
        return NULL;
    return json_object_get(root, key);
}

static inline const char *text_of(world *w, const char *name, const char *key)
{
    const char *text = json_string_value(field(w, name, key));
    return text ? text : "(none)";
}

static inline int int_of(world *w, const char *name, const char *key)
{
    return (int)json_number_value(field(w, name, key));
}

static inline const char *uid_of(world *w, const char *name)
{
    static char uid[64];
    snprintf(uid, sizeof uid, "%s", text_of(w, name, "uid"));
    return uid;
}

/* How often the text is in the events. */
static inline int events_with(world *w, const char *text)
{
    adli_buf events;
    adli_buf_init(&events, 16 << 20);
    int64_t seq = 0;
    int count = 0;
    for (int64_t before = -1; seq != before;) {
        before = seq;
        if (adli_core_events(w->core, NULL, NULL, 1000, &seq, &events) != ADL_OK)
            count = -1000;
    }
    for (const char *at = events.data; at && (at = strstr(at, text)); at++)
        count++;
    adli_buf_fini(&events);
    return count;
}

static const char good_hints[] __attribute__((unused)) =
    "{\"initBatchSize\":64,\"localBszBounds\":[16,64],\"globalBatchSize\":128,"
    "\"maxBatchSize\":1024,\"maxProfiledReplicas\":1,\"gradientAccumulation\":true,"
    "\"gradParams\":{\"norm\":1.0,\"var\":100.0},\"perfParams\":{\"alpha_c\":0.1,"
    "\"beta_c\":0.01,\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,\"beta_r\":0.001,"
    "\"gamma\":1.5},\"progress\":100,\"epoch\":1,\"targetEpochs\":10,"
    "\"iterationsPerEpoch\":100,\"elapsed\":60,\"surprise\":{\"x\":1}}";

#endif
