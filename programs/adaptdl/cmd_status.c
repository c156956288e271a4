/* `adaptdl status` and `adaptdl dashboard`: how the cluster is, and where to look at it. */
#include "commands.h"
#include "kube.h"
#include "local.h"
#include "state.h"
#include "term.h"

#include "base/file.h"
#include "base/mem.h"

#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { OPEN = 256, PATH_BYTES = 4096, URL_BYTES = 1024 };

/* ---- the dashboard's address ---- */

/* The token of the cluster: of a local one from its file, else from the environment. */
static void put_token(const cluster *k, adli_buf *out)
{
    char path[PATH_BYTES], *state = NULL;
    const char *given = getenv("ADAPTDL_TOKEN");
    adli_buf token;
    adli_buf_init(&token, 4096);
    if (k->server.socket_path && state_directory(k, &state) == EXIT_DONE) {
        snprintf(path, sizeof path, "%.4000s/token", state);
        if (adli_file_read(path, &token) == ADL_OK && token.length > 0) {
            token.data[strcspn(token.data, "\r\n")] = '\0';
            given = token.data;
        }
    }
    if (given && *given)
        adli_buf_printf(out, "#token=%s",
                        given); /* the page takes it from there, where it does not stay */
    adli_buf_fini(&token);
    free(state);
}

/* false: the scheduler serves none. */
static bool put_address(const cluster *k, const json_t *answer, adli_buf *out)
{
    const char *url = text_of(answer, "dashboard", k->server.socket_path ? NULL : k->server.url);
    if (!url || k->kube) /* a browser has no credentials for the API server */
        return false;
    adli_buf_puts(out, url);
    put_token(k, out);
    return true;
}

/* ---- status ---- */

static void print_dashboard(const cluster *k, const json_t *answer)
{
    adli_buf address;
    adli_buf_init(&address, URL_BYTES);
    printf("dashboard  ");
    if (put_address(k, answer, &address) && adli_buf_check(&address) == ADL_OK)
        term_line(stdout, address.data);
    else if (k->kube)
        printf("kubectl -n %s port-forward service/%s 8081:api, then https://localhost:8081/",
               k->kube->ns, k->kube->service);
    else
        printf("none: the scheduler listens on no TCP port (see --listen of adaptdl up)");
    putchar('\n');
    adli_buf_fini(&address);
}

void print_cluster(const cluster *k, const json_t *answer)
{
    const json_t *node;
    size_t i;
    int slots = 0;
    json_array_foreach(json_object_get(answer, "nodes"), i, node)
    {
        slots += whole_of(node, "slots");
    }
    size_t nodes = json_array_size(json_object_get(answer, "nodes"));
    printf("cluster of %zu node%s with %d slot%s, policy ", nodes, nodes == 1 ? "" : "s", slots,
           slots == 1 ? "" : "s");
    term_line(stdout, text_of(answer, "policy", "?"));
    if (k->server.socket_path)
        printf("\nsocket     %s\n", k->server.socket_path);
    else
        printf("\nserver     %s\n", k->server.url);
    print_dashboard(k, answer);
}

/* "2 ready, 1 lost" */
static void print_nodes(const json_t *answer)
{
    static const char *const words[] = {"ready", "draining", "lost"};
    size_t counts[3] = {0}, i, used = 0;
    const json_t *node;
    const char *comma = "";
    json_array_foreach(json_object_get(answer, "nodes"), i, node)
    {
        counts[!true_of(node, "ready") ? 2 : true_of(node, "draining") ? 1 : 0]++;
        used += json_array_size(json_object_get(node, "replicas"));
    }
    printf("nodes      ");
    for (i = 0; i < ADLI_COUNT(words); i++)
        if (counts[i]) {
            printf("%s%zu %s", comma, counts[i], words[i]);
            comma = ", ";
        }
    printf("; %zu slot%s in use\n", used, used == 1 ? "" : "s");
}

static void print_jobs(const json_t *answer)
{
    const json_t *counts = json_object_get(answer, "jobs"), *count;
    const char *phase, *comma = "";
    printf("jobs       ");
    json_object_foreach((json_t *)counts, phase, count)
    {
        if (json_integer_value(count) > 0) {
            printf("%s%d ", comma, (int)json_integer_value(count));
            term_line(stdout, phase);
            comma = ", ";
        }
    }
    printf("%s\n", *comma ? "" : "none");
}

/* Nothing while there is room. */
static void print_disk(const json_t *answer)
{
    const json_t *disk = json_object_get(answer, "disk");
    const char *state = text_of(disk, "state", "ok");
    bool full = strcmp(state, "full") == 0;
    if (!full && strcmp(state, "low") != 0)
        return;
    printf("disk       %s: %.0f of %.0f MiB free%s\n", full ? "full" : "almost full",
           number_of(disk, "freeBytes") / (1 << 20), number_of(disk, "sizeBytes") / (1 << 20),
           full ? "; new jobs are refused, \"adaptdl delete\" makes room" : "");
}

static void print_status(const cluster *k, const json_t *answer)
{
    char span[TIME_TEXT], next[TIME_TEXT];
    double now_s = number_of(answer, "now");
    print_cluster(k, answer);
    print_nodes(answer);
    print_jobs(answer);
    print_disk(answer);
    printf("rounds     %d, the next in %s\nversion    ", whole_of(answer, "round"),
           term_span(number_of(answer, "nextRound") - now_s, next));
    term_line(stdout, text_of(answer, "version", "?"));
    printf(", up for %s\n", term_span(now_s - number_of(answer, "started"), span));
    if (true_of(answer, "draining"))
        printf(
            "\"adaptdl down\" was interrupted: nothing is started. To end it: adaptdl down; to go "
            "on: adaptdl up\n");
}

/* ---- the commands ---- */

static int ask_cluster(cluster *k, const cli *c, json_t **answer)
{
    int status = cluster_open(k, c);
    return status == EXIT_DONE ? cluster_ask(k, "GET", "/api/v1/cluster", 0, answer) : status;
}

static int run_status(cli *c)
{
    int status;
    cluster k;
    json_t *answer = NULL;
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) > 0)
        return usage_error("status", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    status = ask_cluster(&k, c, &answer);
    if (status == EXIT_DONE && (c->format == FORMAT_JSON || c->format == FORMAT_YAML))
        status = print_value(c, answer);
    else if (status == EXIT_DONE)
        print_status(&k, answer);
    json_decref(answer);
    cluster_close(&k);
    return status;
}

const cli_command command_status = {
    .name = "status",
    .summary = "say how the cluster is and where its dashboard is",
    .usage = "[OPTIONS]",
    .text =
        "Shows whether a cluster answers, its nodes and jobs in numbers, the dashboard's address "
        "with the token, and when the next round is.",
    .exits = "0 it answers, 5 no cluster answers.",
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_status,
};

static int open_browser(const char *address)
{
    const char *browser = getenv("BROWSER");
    pid_t pid;
    int how = 0;
    if (!browser || !*browser)
        browser = "xdg-open";
    char *words[] = {(char *)browser, (char *)address, NULL};
    fflush(stdout);
    int why = posix_spawnp(&pid, browser, NULL, NULL, words, environ);
    if (why)
        return problem("dashboard", EXIT_PROBLEM, "%s: %s; open the address in a browser yourself",
                       browser, strerror(why));
    if (waitpid(pid, &how, 0) != pid || how != 0)
        return problem("dashboard", EXIT_PROBLEM,
                       "%s has failed; open the address in a browser yourself", browser);
    return EXIT_DONE;
}

static int run_dashboard(cli *c)
{
    bool open = false;
    cluster k;
    json_t *answer = NULL;
    adli_buf address;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        open = true;
    }
    if (cli_count(c) > 0)
        return usage_error("dashboard", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    adli_buf_init(&address, URL_BYTES);
    int status = ask_cluster(&k, c, &answer);
    if (status == EXIT_DONE && !put_address(&k, answer, &address))
        status = problem("dashboard", EXIT_PROBLEM,
                         "the scheduler listens on no TCP port; adaptdl up --listen 127.0.0.1:0 "
                         "makes it do so");
    else if (status == EXIT_DONE && adli_buf_check(&address) != ADL_OK)
        status = report_error("dashboard", EXIT_REFUSED);
    if (status == EXIT_DONE) {
        term_line(stdout, address.data);
        putchar('\n');
        status = open ? open_browser(address.data) : EXIT_DONE;
    }
    adli_buf_fini(&address);
    json_decref(answer);
    cluster_close(&k);
    return status;
}

static const cli_option dashboard_options[] = {
    {OPEN, "open", NULL, "open it, with $BROWSER, else xdg-open", NULL},
    {0},
};

const cli_command command_dashboard = {
    .name = "dashboard",
    .summary = "print the dashboard's address, or open it",
    .usage = "[--open]",
    .text =
        "Prints the address of the dashboard with the cluster's token, which the page needs once "
        "and does not leave in the address.",
    .options = dashboard_options,
    .examples = "adaptdl dashboard --open",
    .flags = CLI_CLUSTER,
    .run = run_dashboard,
};
