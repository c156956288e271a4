/* `adaptdl context`: which cluster commands work on, and why. */
#include "commands.h"
#include "kube.h"
#include "term.h"

#include <string.h>

static int print(const cli *c, const cluster *k, const site *where)
{
    static const char *const kinds[] = {"local", "server", "kubernetes"};
    const adli_kube_config *config = k->kube ? &k->kube->config : NULL;
    json_t *value =
        json_pack("{s:s,s:s,s:s,s:s}", "kind", kinds[where->kind], "why", where->why, "server",
                  config                  ? config->server
                  : k->server.socket_path ? k->server.socket_path
                                          : k->server.url,
                  "namespace", k->ns);
    if (!value)
        return problem("context", EXIT_REFUSED, "out of memory");
    if (config) {
        json_object_set_new(value, "source", json_string(config->source));
        json_object_set_new(value, "context", json_string(config->context));
        json_object_set_new(value, "scheduler",
                            json_sprintf("%s/%s", k->kube->ns, k->kube->service));
    }
    int status = EXIT_DONE;
    if (c->format == FORMAT_JSON || c->format == FORMAT_YAML) {
        status = print_value(c, value);
    } else {
        static const char *const fields[] = {"kind",   "why",       "source",   "context",
                                             "server", "namespace", "scheduler"};
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
            const char *text = text_of(value, fields[i], "");
            if (!*text)
                continue;
            printf("%-10s ", fields[i]);
            term_line(stdout, text);
            putchar('\n');
        }
    }
    json_decref(value);
    return status;
}

static int run_context(cli *c)
{
    int status;
    cluster k;
    site where = {0};
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) > 0)
        return usage_error("context", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = site_choose(c, false, &where);
    if (status == EXIT_DONE)
        status = print(c, &k, &where);
    cluster_close(&k);
    return status;
}

const cli_command command_context = {
    .name = "context",
    .summary = "tell which cluster commands work on, and why",
    .usage = "[OPTIONS]",
    .text =
        "Tells where commands with these options and this environment go: to the cluster on this "
        "machine, to a scheduler that was named, or to Kubernetes; and on Kubernetes from which "
        "file and context that is known, to which server, and where the scheduler is. In order: "
        "--kubernetes and --context; --server; --state; $ADAPTDL_KUBERNETES; $ADAPTDL_SERVER; "
        "$ADAPTDL_STATE; a cluster on this machine that is up; $KUBECONFIG or the service account "
        "of this pod; the cluster on this machine that is not up.",
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_context,
};
