/* One job attacks the others with nothing but its own token: invented measurements and "nearly done", through the door that
 * replicas report at, into the scheduler as it is. */
#include "core_world.h"
#include "http_client.h"

#include "adaptdl/goodput.h"
#include "daemon/api.h"
#include "model/perf.h"

enum { HONEST = 3, ODD = HONEST, JOBS, NODES = 4, SLOTS = 4, SIZES = NODES * SLOTS + 1 };
enum { MINUTES = 90 };

static const char *const names[JOBS] = {"one", "two", "three", "odd"};
static const adl_goodput usual = {{0.01, 0.01, 0.4, 0.01, 0.2, 0.01, 1.2}, {1, 1000}, 64};
static const adl_goodput linear = {{1e-9, 0.01, 1e-9, 1e-9, 1e-9, 1e-9, 1}, {1, 1e6}, 64};
static const adl_batch_limits limits = {4096, 16, 256, .accumulation = true};

typedef struct site {
    world w;
    adli_api *api;
    int port;
    double progress[JOBS];
    adl_profile_point points[JOBS][SIZES];
    int point_count[JOBS];
    double served_s[JOBS];
    int idle[JOBS], most_idle[JOBS]; /* minutes in a row without replicas, after it had some */
} site;

static void open_site(site *s)
{
    *s = (site){.port = 0};
    REQUIRE_OK(open_world(&s->w, NODES, SLOTS));
    adli_api_options options = {.core = s->w.core,
                                .replica_listen = "127.0.0.1:0",
                                .upload_dir = s->w.dir,
                                .limits = ADLI_HTTPD_LIMITS};
    REQUIRE_OK(adli_api_new(&options, &s->api));
    s->port = adli_api_replica_port(s->api);
    for (int j = 0; j < JOBS; j++)
        REQUIRE_OK(submit(&s->w, names[j], ""));
}

static void close_site(site *s)
{
    adli_api_free(s->api);
    close_world(&s->w);
}

/* As a replica does it. The answer's code. */
static int put_hints(site *s, int job, int token_of, const char *body)
{
    char headers[128], path[64];
    adli_core *core = s->w.core;
    pthread_mutex_lock(&core->lock);
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n",
             adli_core_find(core, "default", names[token_of])->token);
    pthread_mutex_unlock(&core->lock);
    snprintf(path, sizeof path, "/hints/default/%s", names[job]);
    return adlt_code(s->port, "PUT", path, headers, body, NULL);
}

static int shape_of(site *s, int job, adl_shape *shape)
{
    const adli_row *row = &adli_core_find(s->w.core, "default", names[job])->row;
    int nodes = row->placed_count > 0;
    for (int i = 1; i < row->placed_count; i++)
        nodes += row->placed[i] != row->placed[i - 1];
    *shape = adl_shape_of(nodes, row->placed_count);
    return row->placed_count;
}

/* Trains for a minute and adds what it measured to what it knows. */
static void train(site *s, int job, const adl_goodput *truth)
{
    adl_batch_choice choice;
    adl_shape shape;
    if (shape_of(s, job, &shape) == 0)
        return;
    REQUIRE_OK(adl_goodput_optimize(truth, &limits, shape, &choice));
    s->progress[job] += 60 * choice.goodput / truth->init_batch_size;
    adl_profile_point *points = s->points[job];
    for (int i = 0; i < s->point_count[job]; i++)
        if (points[i].replicas == shape.replicas)
            return;
    points[s->point_count[job]++] =
        (adl_profile_point){.nodes = shape.nodes,
                            .replicas = shape.replicas,
                            .local_bsz = choice.local_bsz,
                            .accum_time_s = 0.5,
                            .optim_time_s = adl_optim_time(&truth->perf, shape, choice.local_bsz)};
}

static void report_truth(site *s, int job, const adl_goodput *truth, double work)
{
    adli_buf body;
    int most = 1;
    train(s, job, truth);
    if (s->point_count[job] == 0)
        return;
    const adl_perf_params *perf = &truth->perf;
    adli_buf_init(&body, 1 << 16);
    adli_buf_printf(&body,
                    "{\"initBatchSize\":64,\"localBszBounds\":[16,256],\"maxBatchSize\":4096,"
                    "\"gradientAccumulation\":true,\"gradParams\":{\"norm\":%g,\"var\":%g},"
                    "\"perfParams\":{",
                    truth->grad.sqr, truth->grad.var);
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adli_buf_printf(&body, "%s\"%s\":%g", i ? "," : "", adli_perf_names[i],
                        adli_perf_get(perf, i));
    adli_buf_puts(&body, "},\"profile\":[");
    for (int i = 0; i < s->point_count[job]; i++) {
        const adl_profile_point *p = &s->points[job][i];
        most = p->replicas > most ? p->replicas : most;
        adli_buf_printf(&body,
                        "%s{\"nodes\":%d,\"replicas\":%d,\"localBsz\":%g,\"accumTime\":%g,"
                        "\"optimTime\":%g}",
                        i ? "," : "", p->nodes, p->replicas, p->local_bsz, p->accum_time_s,
                        p->optim_time_s);
    }
    adli_buf_printf(&body,
                    "],\"maxProfiledReplicas\":%d,\"progress\":%.17g,\"iterationsPerEpoch\":100,"
                    "\"epoch\":0,\"targetEpochs\":%d}",
                    most, s->progress[job], (int)(work / 100) + 1);
    REQUIRE_OK(adli_buf_check(&body));
    CHECK_INT(put_hints(s, job, job, body.data), 200);
    adli_buf_fini(&body);
}

/* A million times as fast on two as on one, and one step from its end. */
static const char greed[] =
    "{\"initBatchSize\":64,\"localBszBounds\":[64,256],\"maxBatchSize\":65536,"
    "\"gradParams\":{\"norm\":1,\"var\":1e9},\"perfParams\":{\"alpha_c\":1e-9,\"beta_c\":1e-9,"
    "\"alpha_n\":1e-9,\"beta_n\":1e-9,\"alpha_r\":1e-9,\"beta_r\":1e-9,\"gamma\":1},"
    "\"profile\":[{\"nodes\":1,\"replicas\":1,\"localBsz\":64,\"accumTime\":1,\"optimTime\":1},"
    "{\"nodes\":1,\"replicas\":2,\"localBsz\":64,\"accumTime\":1e-6,\"optimTime\":1e-6}],"
    "\"maxProfiledReplicas\":1024,\"progress\":1e6,\"iterationsPerEpoch\":1,\"epoch\":1000000,"
    "\"targetEpochs\":1000001}";

static void run(site *s, bool lies)
{
    open_site(s);
    for (int minute = 0; minute < MINUTES && !adlt_failed; minute++) {
        for (int j = 0; j < HONEST; j++)
            report_truth(s, j, &usual, 1e6 + 1e5 * j);
        if (lies)
            CHECK_INT(put_hints(s, ODD, ODD, greed), 200);
        else /* the longer it runs, the longer it will */
            report_truth(s, ODD, &linear, 2 * s->progress[ODD] + 1000);
        step(&s->w, 60);
        for (int j = 0; j < JOBS; j++) {
            adl_shape shape;
            int replicas = shape_of(s, j, &shape);
            s->served_s[j] += 60 * replicas;
            s->idle[j] = replicas > 0 || s->served_s[j] == 0 ? 0 : s->idle[j] + 1;
            s->most_idle[j] = s->idle[j] > s->most_idle[j] ? s->idle[j] : s->most_idle[j];
        }
    }
}

/* What the last round had to say of the odd job's report. */
static bool doubt_of(site *s, char *out, size_t size)
{
    const adli_kept_job *job = adli_core_find(s->w.core, "default", names[ODD]);
    const char *doubt = adl_cluster_job(s->w.core->cluster, job->number)->doubt;
    snprintf(out, size, "%s", doubt ? doubt : "");
    return doubt != NULL;
}

TEST(a_lying_job_with_its_own_token_leaves_the_others_what_an_honest_one_does)
{
    site s, beside;
    run(&beside, false);
    run(&s, true);
    for (int j = 0; j < JOBS; j++)
        printf("info - %s: %.0f device-s, at most %d minutes without; beside an honest one %.0f, "
               "%d\n",
               names[j], s.served_s[j], s.most_idle[j], beside.served_s[j], beside.most_idle[j]);
    for (int j = 0; j < HONEST; j++) {
        CHECK(s.served_s[j] > 0);
        /* but for what one device does while it is caught three times */
        CHECK(s.served_s[j] >= 0.8 * beside.served_s[j] - 3 * 10 * 60);
        CHECK(s.most_idle[j] <= beside.most_idle[j] + 30);
    }
    CHECK(events_with(&s.w, "Round") > 0);
    adli_buf_clear(&s.w.out);
    CHECK_OK(adli_core_decisions(s.w.core, "default", names[ODD], 1, &s.w.out));
    CHECK(s.w.out.data && strstr(s.w.out.data, "its report is not believed"));
    CHECK_INT(put_hints(&s, 0, ODD, greed), 403); /* of another job it says nothing */
    /* The next scheduler believes it no more than this one did, at its first look. */
    adli_api_free(s.api);
    s.api = NULL;
    char before[200] = "";
    CHECK(doubt_of(&s, before, sizeof before) && strstr(before, "times and was not"));
    REQUIRE_OK(reopen(&s.w));
    step(&s.w, 60);
    char after[200] = "";
    CHECK(doubt_of(&s, after, sizeof after) && strstr(after, "times and was not"));
    CHECK_INT(atoi(after + strcspn(after, "0123456789")),
              atoi(before + strcspn(before, "0123456789")));
    close_site(&beside);
    close_site(&s);
}
