/* `adaptdl nodes`, `drain` and `undrain`. */
#include "cluster.h"
#include "commands.h"
#include "term.h"

#include "jobspec/jobspec.h"
#include "jobspec/quantity.h"

#include <string.h>

static const char *state_of(const json_t *node)
{
    if (!true_of(node, "ready"))
        return "Lost";
    return true_of(node, "draining") ? "Draining" : "Ready";
}

static void put_resources(term_table *table, const json_t *node)
{
    const json_t *all = json_object_get(node, "resources"), *amount;
    const char *name;
    adli_buf text;
    adli_buf_init(&text, 1000);
    json_object_foreach((json_t *)all, name, amount)
    {
        char quantity[32];
        if (json_is_integer(amount) && strcmp(name, "pods") != 0)
            adli_buf_printf(
                &text, "%s%s=%s", text.length ? " " : "", name,
                adli_resource_print(name, json_integer_value(amount), quantity, sizeof quantity));
    }
    table_put(table, "%s", text.length ? text.data : "-");
    adli_buf_fini(&text);
}

/* The jobs on the node, each once with its number of replicas. */
static void put_jobs(term_table *table, const json_t *node)
{
    const json_t *replicas = json_object_get(node, "replicas");
    adli_buf text;
    adli_buf_init(&text, 1500);
    for (size_t i = 0; i < json_array_size(replicas); i++) {
        const char *job = text_of(json_array_get(replicas, i), "job", "?");
        int count = 0;
        bool earlier = false;
        for (size_t r = 0; r < json_array_size(replicas); r++) {
            bool same = strcmp(text_of(json_array_get(replicas, r), "job", "?"), job) == 0;
            earlier |= same && r < i;
            count += same;
        }
        if (!earlier)
            adli_buf_printf(&text, "%s%s x%d", text.length ? ", " : "", job, count);
    }
    table_put(table, "%s", text.length ? text.data : "-");
    adli_buf_fini(&text);
}

static void print_nodes(const cli *c, const json_t *nodes)
{
    static const char *const heads[] = {"Name", "Status", "Slots",     "Used",
                                        "Spot", "Type",   "Resources", "Jobs"};
    bool wide = c->format == FORMAT_WIDE;
    term_table table;
    size_t i;
    const json_t *node;
    table_init(&table, wide ? 8 : 4, heads);
    table.phase_column = 1;
    json_array_foreach((json_t *)nodes, i, node)
    {
        table_put(&table, "%s", text_of(node, "name", "-"));
        table_put(&table, "%s", state_of(node));
        table_put(&table, "%d", whole_of(node, "slots"));
        table_put(&table, "%zu", json_array_size(json_object_get(node, "replicas")));
        if (!wide)
            continue;
        table_put(&table, "%s", true_of(node, "preemptible") ? "yes" : "no");
        const char *type = text_of(node, "deviceType", "");
        table_put(&table, "%s", *type ? type : "-");
        put_resources(&table, node);
        put_jobs(&table, node);
    }
    table_print(&table, stdout);
    table_fini(&table);
}

static int run_nodes(cli *c)
{
    int status;
    json_t *answer = NULL;
    cluster k;
    size_t i;
    const json_t *node;
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) > 0)
        return usage_error("nodes", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = cluster_ask(&k, "GET", "/api/v1/nodes", 0, &answer);
    const json_t *items = json_object_get(answer, "items");
    if (status == EXIT_DONE && (c->format == FORMAT_JSON || c->format == FORMAT_YAML)) {
        status = print_value(c, answer);
    } else if (status == EXIT_DONE && c->format == FORMAT_NAME) {
        json_array_foreach((json_t *)items, i, node)
        {
            term_line(stdout, text_of(node, "name", ""));
            putchar('\n');
        }
    } else if (status == EXIT_DONE) {
        print_nodes(c, items);
    }
    json_decref(answer);
    cluster_close(&k);
    return status;
}

const cli_command command_nodes = {
    .name = "nodes",
    .summary = "list the nodes of the cluster",
    .usage = "[OPTIONS]",
    .text = "Lists the nodes: name, state, slots and how many replicas use them. With -o wide also "
            "their resources and jobs.",
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_nodes,
};

/* ---- drain and undrain ---- */

static int await_empty(cluster *k, const char *name)
{
    for (;;) {
        json_t *answer = NULL, *node;
        size_t i, left = 0;
        int status = cluster_ask(k, "GET", "/api/v1/nodes", 0, &answer);
        json_array_foreach(json_object_get(answer, "items"), i, node)
        {
            if (strcmp(text_of(node, "name", ""), name) == 0)
                left = json_array_size(json_object_get(node, "replicas"));
        }
        json_decref(answer);
        if (status != EXIT_DONE || left == 0)
            return status;
        pause_ms(200);
    }
}

/* Names of Kubernetes' nodes may have dots. */
static bool valid_node(const cluster *k, const char *name)
{
    size_t length = strlen(name);
    return adli_name_valid(name) ||
           (k->kube && length > 0 && length <= 253 && name[0] != '.' && name[0] != '-' &&
            strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == length);
}

static int drain(cli *c, const char *verb, const char *done)
{
    bool wait = false;
    char path[PATH_TEXT];
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        wait = true;
    }
    const char *name = cli_argument(c, 0);
    if (!name || cli_count(c) > 1)
        return usage_error(verb, "expected the name of one node");
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE && !valid_node(&k, name))
        status = usage_error(
            verb, "node \"%.80s\": a name consists of a-z, 0-9 and '-', at most 63 characters",
            name);
    snprintf(path, sizeof path, "/api/v1/nodes/%s/%s", name, verb);
    if (status == EXIT_DONE)
        status = cluster_ask(&k, "POST", path, 0, NULL);
    if (status == EXIT_DONE && wait)
        status = await_empty(&k, name);
    if (status == EXIT_DONE)
        printf("%s %s\n", name, done);
    cluster_close(&k);
    return status;
}

static int run_drain(cli *c)
{
    return drain(c, "drain", "drained");
}

static int run_undrain(cli *c)
{
    return drain(c, "undrain", "undrained");
}

static const cli_option drain_options[] = {
    {256, "wait", NULL, "until no replica is left there", NULL},
    {0},
};

const cli_command command_drain = {
    .name = "drain",
    .summary = "move the jobs off a node",
    .usage = "[--wait] NODE",
    .text =
        "Moves the replicas of a node elsewhere: their jobs save a checkpoint first. Nothing is "
        "started there until adaptdl undrain.",
    .options = drain_options,
    .arguments = COMPLETE_NODE,
    .flags = CLI_CLUSTER,
    .run = run_drain,
};

const cli_command command_undrain = {
    .name = "undrain",
    .summary = "let a drained node be used again",
    .usage = "NODE",
    .text = "Lets a node that was drained be used again.",
    .arguments = COMPLETE_NODE,
    .flags = CLI_CLUSTER,
    .run = run_undrain,
};
