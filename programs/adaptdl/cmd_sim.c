/* `adaptdl sim`: replays workloads through scheduling policies. */
#include "commands.h"
#include "replay.h"

#include "base/file.h"
#include "sim/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIST_MAX = 64, OUTPUT_MAX_BYTES = 1 << 30 };

typedef struct request {
    const char *traces, *cluster, *json, *log, *svg, *snapshot;
    bool policy_given;
    adli_sim_kind kinds[ADL_MAX_TYPES];
    bool pool_given;
    char *policies; /* our copy, cut at the commas */
    const char *policy[LIST_MAX];
    int policy_count;
    adli_sim_setting settings[LIST_MAX];
    int setting_count;
    adli_batch batch;
} request;

static void print_policies(FILE *out)
{
    const char *name, *summary;
    fprintf(out, "\nPolicies and their constants:\n");
    for (int i = 0; (name = adl_policy_list(i, &summary)); i++) {
        adl_policy *policy;
        adl_policy_parameter parameter;
        fprintf(out, "  %-10s %s\n", name, summary);
        if (adl_policy_new(name, &policy) != ADL_OK)
            continue;
        for (int p = 0; adl_policy_get(policy, p, &parameter); p++)
            fprintf(out, "    %s=%g  %s\n", parameter.name, parameter.value, parameter.meaning);
        adl_policy_free(policy);
    }
}

static int parse_number(const char *option, const char *text, double low, double high, bool whole,
                        double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (end == text || *end || errno || !(*out >= low && *out <= high) ||
        (whole && *out != floor(*out)))
        return usage_error("sim", "--%s must be a%s number from %g to %g, not \"%s\"", option,
                           whole ? " whole" : "", low, high, text);
    return EXIT_DONE;
}

static int parse_switch(const char *option, const char *text, bool *out)
{
    *out = strcmp(text, "on") == 0;
    if (!*out && strcmp(text, "off") != 0)
        return usage_error("sim", "--%s must be on or off, not \"%s\"", option, text);
    return EXIT_DONE;
}

static int parse_setting(request *r, char *text)
{
    char *equals = strchr(text, '=');
    if (!equals || r->setting_count == LIST_MAX)
        return usage_error("sim", "--set wants KEY=VALUE, not \"%s\"", text);
    *equals = '\0';
    adli_sim_setting *setting = &r->settings[r->setting_count++];
    setting->parameter = text;
    return parse_number(text, equals + 1, -1e300, 1e300, false, &setting->value);
}

static int parse_policies(request *r, const char *text)
{
    r->policy_given = true;
    free(r->policies);
    r->policy_count = 0;
    r->policies = strdup(text);
    if (!r->policies)
        return usage_error("sim", "out of memory");
    char *rest = NULL;
    for (char *name = strtok_r(r->policies, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (r->policy_count == LIST_MAX)
            return usage_error("sim", "more than %d policies", LIST_MAX);
        r->policy[r->policy_count++] = name;
    }
    return r->policy_count ? EXIT_DONE : usage_error("sim", "--policy names no policy");
}

enum {
    SNAPSHOT = 256,
    TRACES,
    POLICY,
    SET,
    NODES,
    GPUS,
    CLUSTER,
    INTERVAL,
    EVENT,
    POOL,
    LEARNED,
    LONE_GROWS,
    DELAY,
    RESIZE,
    FREE_MOVES,
    HOLD,
    NOISE,
    UNDECLARED,
    INTERFERENCE,
    SEED,
    THREADS,
    JSON,
    LOG,
    SVG,
};

static int parse_option(request *r, int option, char *value)
{
    adli_sim_options *o = &r->batch.options;
    double n = 0;
    int status = EXIT_DONE;
    switch (option) {
    case SNAPSHOT:
        r->snapshot = value;
        return EXIT_DONE;
    case TRACES:
        r->traces = value;
        break;
    case POLICY:
        return parse_policies(r, value);
    case SET:
        return parse_setting(r, value);
    case NODES:
        status = parse_number("nodes", value, 1, 10000, true, &n);
        o->nodes = (int)n;
        break;
    case GPUS:
        status = parse_number("gpus", value, 1, 64, true, &n);
        o->gpus = (int)n;
        break;
    case INTERVAL:
        return parse_number("interval", value, 1, 86400, true, &o->interval_s);
    case EVENT:
        o->event = true;
        break;
    case POOL:
        r->pool_given = true;
        return parse_switch("pool", value, &o->pool);
    case LEARNED:
        o->learned = true;
        break;
    case LONE_GROWS:
        o->lone_grows = true;
        break;
    case FREE_MOVES:
        o->free_moves = true;
        break;
    case HOLD:
        o->hold = true;
        break;
    case DELAY:
        o->recorded_delays = false;
        return parse_number("rescale-delay", value, 0, 86400, false, &o->rescale_delay_s);
    case RESIZE:
        return parse_number("resize-delay", value, 0, 86400, false, &o->resize_delay_s);
    case NOISE:
        return parse_number("noise", value, 0, 5, false, &o->noise);
    case UNDECLARED:
        return parse_number("undeclared", value, 0, 1, false, &o->undeclared);
    case CLUSTER:
        r->cluster = value;
        break;
    case INTERFERENCE:
        return parse_number("interference", value, 0, 1, false, &o->interference);
    case SEED:
        status = parse_number("seed", value, 0, 9007199254740992.0, true, &n);
        o->seed = (uint64_t)n;
        break;
    case THREADS:
        status = parse_number("threads", value, 1, 256, true, &n);
        r->batch.threads = (int)n;
        break;
    case JSON:
        r->json = value;
        break;
    case LOG:
        r->log = value;
        break;
    case SVG:
        r->svg = value;
        break;
    }
    return status;
}

/* -1: go on; else the exit status. */
static int parse_options(request *r, cli *c)
{
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        int status = parse_option(r, option, (char *)c->value);
        if (status != EXIT_DONE)
            return status;
    }
    if (!r->pool_given)
        r->batch.options.pool = r->batch.options.event;
    if (r->snapshot && (cli_count(c) > 0 || r->traces || r->policy_count > 1))
        return usage_error("sim", "--snapshot FILE goes without traces, workloads and a second "
                                  "policy");
    if (r->snapshot)
        return -1;
    if (!r->traces)
        return usage_error("sim", "--traces DIR or --snapshot FILE is missing");
    if (cli_count(c) == 0)
        return usage_error("sim", "no workload given");
    return -1;
}

static void show_progress(int finished, int all)
{
    enum { CELLS = 40 };
    int done = all ? CELLS * finished / all : 0;
    fprintf(stderr, "\r[%.*s%*s] %d/%d jobs", done, "########################################",
            CELLS - done, "", finished, all);
    fflush(stderr);
}

static void clear_progress(void)
{
    fprintf(stderr, "\r%70s\r", "");
}

static adl_status write_log(const request *r)
{
    adli_buf all;
    adli_buf_init(&all, OUTPUT_MAX_BYTES);
    for (int i = 0; i < r->batch.policy_count * r->batch.workload_count; i++)
        adli_buf_append(&all, r->batch.results[i].log.data, r->batch.results[i].log.length);
    adl_status status = adli_buf_check(&all);
    if (status == ADL_OK)
        status = adli_file_write(r->log, all.data, all.length);
    adli_buf_fini(&all);
    return status;
}

static adl_status write_results(const request *r)
{
    adl_status status = ADL_OK;
    adli_buf text;
    adli_buf_init(&text, OUTPUT_MAX_BYTES);
    adli_report_table(&r->batch, &text);
    status = adli_buf_check(&text);
    if (status == ADL_OK && !(r->json && strcmp(r->json, "-") == 0))
        fputs(text.data, stdout);
    if (status == ADL_OK && r->json) {
        adli_buf_clear(&text);
        adli_report_json(&r->batch, &text);
        status = adli_buf_check(&text);
        if (status == ADL_OK)
            status = adli_file_write(r->json, text.data, text.length);
    }
    if (status == ADL_OK && r->svg) {
        adli_buf_clear(&text);
        status = adli_report_svg(&r->batch, &text);
        if (status == ADL_OK)
            status = adli_file_write(r->svg, text.data, text.length);
    }
    if (status == ADL_OK && r->log)
        status = write_log(r);
    adli_buf_fini(&text);
    return status;
}

static adl_status load_traces(request *r, adli_traces *traces)
{
    adli_sim_options *o = &r->batch.options;
    if (!r->cluster)
        return adli_traces_load(r->traces, traces);
    const char *types[ADL_MAX_TYPES];
    adl_status status = adli_sim_kinds_load(r->cluster, r->kinds, &o->kind_count);
    if (status != ADL_OK)
        return status;
    for (int t = 0; t < o->kind_count; t++)
        types[t] = r->kinds[t].type;
    o->kinds = r->kinds;
    return adli_traces_load_types(r->traces, types, o->kind_count, traces);
}

static adl_status simulate(request *r, char **paths, int count)
{
    adli_batch *batch = &r->batch;
    adli_traces traces;
    adl_status status = load_traces(r, &traces);
    if (status != ADL_OK)
        return status;
    adli_workload *workloads = calloc((size_t)count, sizeof *workloads);
    if (!workloads)
        status = adli_fail(ADL_ENOMEM, "out of memory: workloads");
    for (int i = 0; i < count && status == ADL_OK; i++)
        status = adli_workload_load(paths[i], &traces, &workloads[i]);
    if (status == ADL_OK) {
        bool terminal = isatty(STDERR_FILENO);
        batch->workloads = workloads;
        batch->workload_count = count;
        batch->progress = terminal ? show_progress : NULL;
        status = adli_batch_run(batch);
        if (terminal)
            clear_progress();
    }
    if (status == ADL_OK)
        status = write_results(r);
    adli_batch_fini(batch);
    for (int i = 0; workloads && i < count; i++)
        adli_workload_fini(&workloads[i]);
    free(workloads);
    adli_traces_fini(&traces);
    return status;
}

/* Wrong policies and constants are told before hours of simulation, not after. */
static adl_status check_policies(const request *r)
{
    adl_status status = ADL_OK;
    for (int i = 0; i < r->policy_count && status == ADL_OK; i++) {
        adl_policy *policy = NULL;
        status = adl_policy_new(r->policy[i], &policy);
        for (int k = 0; k < r->setting_count && status == ADL_OK; k++)
            status = adl_policy_set(policy, r->settings[k].parameter, r->settings[k].value);
        adl_policy_free(policy);
    }
    return status;
}

static int run_sim(cli *c)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    request r = {.policy = {adl_policy_list(0, NULL)}, .policy_count = 1};
    r.batch.threads = cores > 0 ? (int)cores : 1;
    r.batch.options = (adli_sim_options){.nodes = 16,
                                         .gpus = 4,
                                         .interval_s = 60,
                                         .rescale_delay_s = 30,
                                         .resize_delay_s = -1,
                                         .recorded_delays = true};
    int exit_status = parse_options(&r, c);
    if (exit_status < 0 && r.snapshot) {
        exit_status = replay(r.snapshot, r.policy_given ? r.policy[0] : NULL, r.settings,
                             r.setting_count, r.json);
    } else if (exit_status < 0) {
        r.batch.policies = r.policy;
        r.batch.policy_count = r.policy_count;
        r.batch.options.settings = r.settings;
        r.batch.options.setting_count = r.setting_count;
        r.batch.options.log = r.log != NULL;
        r.batch.options.timeline = r.svg != NULL;
        adl_status status = check_policies(&r);
        if (status == ADL_OK)
            status = simulate(&r, c->argv + c->first, cli_count(c));
        exit_status = status == ADL_OK ? EXIT_DONE : report_error("sim", EXIT_USAGE);
    }
    free(r.policies);
    return exit_status;
}

static const cli_option sim_options[] = {
    {TRACES, "traces", "DIR", "applications, a folder each (docs/simulator.md has the format)",
     COMPLETE_DIR},
    {SNAPSHOT, "snapshot", "FILE",
     "decide one round again that adaptdl explain --save wrote down (docs/snapshots.md)",
     COMPLETE_FILE},
    {POLICY, "policy", "NAME[,...]", "one policy, or several to compare (default: rank)",
     "rank pollux tiresias optimus fifo"},
    {SET, "set", "KEY=VALUE", "change a constant of the policy; may be repeated", NULL},
    {NODES, "nodes", "N", "nodes of the cluster (default 16)", NULL},
    {GPUS, "gpus", "N", "GPUs on each node (default 4)", NULL},
    {CLUSTER, "cluster", "FILE", "nodes of several device types (device_type,nodes,gpus)",
     COMPLETE_FILE},
    {INTERVAL, "interval", "S", "seconds between decisions (default 60)", NULL},
    {EVENT, "event", NULL,
     "as the daemon works: decide also when a job came, ended or measured a new size", NULL},
    {POOL, "pool", "on|off",
     "jobs of one application learn from each other (default: with --event)", "on off"},
    {LEARNED, "learned", NULL,
     "all that a replay before taught them is known from the first second", NULL},
    {LONE_GROWS, "lone-grows", NULL,
     "one replica's batch may grow without accumulation, as our runtime's (default: the original's "
     "rule)",
     NULL},
    {DELAY, "rescale-delay", "S",
     "seconds that a restart costs (default: what applications.csv says, else 30)", NULL},
    {RESIZE, "resize-delay", "S",
     "the same for a job that keeps one of its nodes (default: no less)", NULL},
    {FREE_MOVES, "free-moves", NULL, "other nodes of the same type and shape cost nothing", NULL},
    {HOLD, "hold", NULL, "a job that starts is left alone until it runs", NULL},
    {NOISE, "noise", "SIGMA", "jobs of one application differ by log-normal factors", NULL},
    {UNDECLARED, "undeclared", "X", "share, 0 to 1, of the jobs that declare no work (default 0)",
     NULL},
    {INTERFERENCE, "interference", "X",
     "slowdown, 0 to 1, of distributed jobs sharing a node (default 0)", NULL},
    {SEED, "seed", "N", "for policies that draw random numbers (default 0)", NULL},
    {THREADS, "threads", "N", "simulations at the same time (default: all cores)", NULL},
    {JSON, "json", "FILE", "the results for scripts; - is standard output", COMPLETE_FILE},
    {LOG, "log", "FILE", "one JSON object per decision", COMPLETE_FILE},
    {SVG, "svg", "FILE", "devices over time and the distribution of completion times",
     COMPLETE_FILE},
    {0},
};

const cli_command command_sim = {
    .name = "sim",
    .summary = "replay recorded workloads through scheduling policies",
    .usage = "--traces DIR [OPTIONS] WORKLOAD.csv ...\n--snapshot FILE [--policy NAME] [--set "
             "KEY=VALUE] [--json FILE]",
    .text = "Replays recorded jobs through a scheduling policy and prints what became of them.",
    .options = sim_options,
    .exits = "0 done, 1 a snapshot was decided otherwise than it was then, 2 wrong usage or bad "
             "input (one line says what and where).",
    .examples = "adaptdl sim --traces examples/traces --nodes 4 --policy rank,fifo "
                "examples/traces/workload-small.csv",
    .arguments = COMPLETE_FILE,
    .more = print_policies,
    .run = run_sim,
};
