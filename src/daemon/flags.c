#include "daemon/flags.h"

#include "adli_version.h"
#include "base/mem.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum flag {
    FLAG_STATE = 256,
    FLAG_CONFIG,
    FLAG_NODES,
    FLAG_SLOTS,
    FLAG_NODES_FILE,
    FLAG_BACKEND,
    FLAG_POLICY,
    FLAG_INTERVAL,
    FLAG_SOCKET,
    FLAG_LISTEN,
    FLAG_TOKEN_FILE,
    FLAG_TLS_CERT,
    FLAG_TLS_KEY,
    FLAG_BACKGROUND,
    FLAG_FOREGROUND,
    FLAG_LOG,
    FLAG_READY_FD,
    FLAG_PRINT_CONFIG,
    FLAG_INSECURE,
    FLAG_PLACEHOLDER,
    FLAG_VERBOSE,
    FLAG_HELP,
    FLAG_VERSION,
};

static const struct {
    const char *name, *value; /* value NULL: a switch */
    int flag;
    const char *help;
} table[] = {
    {"state", "DIR", FLAG_STATE,
     "where everything is kept (default $ADAPTDL_STATE, $XDG_STATE_HOME/adaptdl,\n"
     "                        ~/.local/state/adaptdl)"},
    {"config", "FILE", FLAG_CONFIG, "configuration, YAML (docs/config.md)"},
    {"nodes", "N", FLAG_NODES,
     "declare N nodes, node-0, node-1 ... (default: this machine as one)"},
    {"slots", "N", FLAG_SLOTS, "replicas that each of them takes (default 1)"},
    {"nodes-file", "FILE", FLAG_NODES_FILE,
     "declare the nodes of this YAML file; SIGHUP reads it again"},
    {"backend", "NAME", FLAG_BACKEND,
     "what runs the replicas: local (default), or kubernetes: then this is the operator"},
    {"policy", "NAME", FLAG_POLICY, "scheduling policy (adaptdl sim --help lists them)"},
    {"interval", "SECONDS", FLAG_INTERVAL, "between allocation rounds (default 60)"},
    {"socket", "PATH", FLAG_SOCKET, "Unix socket of the API (default DIR/adaptdl.sock)"},
    {"listen", "ADDR:PORT", FLAG_LISTEN, "serve the API and the dashboard over TCP too"},
    {"token-file", "FILE", FLAG_TOKEN_FILE, "token for TCP (default DIR/token, made when missing)"},
    {"insecure", NULL, FLAG_INSECURE, "allow --listen on a public address without a certificate"},
    {"tls-cert", "FILE", FLAG_TLS_CERT, "certificate for TCP, PEM"},
    {"tls-key", "FILE", FLAG_TLS_KEY, "its key, PEM"},
    {"daemonize", NULL, FLAG_BACKGROUND,
     "go to the background once everything is served; prints \"ready ADDRESS\""},
    {"foreground", NULL, FLAG_FOREGROUND, "stay in the foreground (the default)"},
    {"log", "FILE", FLAG_LOG, "log of --daemonize (default DIR/daemon.log)"},
    {"verbose", NULL, FLAG_VERBOSE,
     "or -v: log rounds, phases and requests too (or $ADAPTDL_LOG=debug, docs/operations.md)"},
    {"ready-fd", "N", FLAG_READY_FD, "write \"ready ADDRESS\" to this descriptor when serving"},
    {"print-config", NULL, FLAG_PRINT_CONFIG, "print the configuration with all flags applied"},
    {"placeholder", NULL, FLAG_PLACEHOLDER,
     "do nothing until SIGTERM: what a placeholder pod runs (docs/kubernetes.md)"},
    {"help", NULL, FLAG_HELP, "show this"},
    {"version", NULL, FLAG_VERSION, "show the version"},
};

static void put_help(adli_buf *out)
{
    adli_buf_puts(out, "adaptdl-sched - the scheduler daemon, with its cluster on this machine\n\n"
                       "Usage: adaptdl-sched [OPTIONS]\n\nOptions:\n");
    for (size_t i = 0; i < ADLI_COUNT(table); i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        adli_buf_printf(out, "  %-21s %s\n", left, table[i].help);
    }
    adli_buf_puts(
        out,
        "\nSIGTERM stops the daemon and leaves the jobs running; the next one takes them over.\n"
        "Exit status: 0 done, 1 it could not go on, 2 wrong usage or configuration.\n");
}

static adl_status set_text(char **to, const char *text)
{
    char *copy = adli_strdup(text);
    if (!copy)
        return adli_fail_memory("option");
    free(*to);
    *to = copy;
    return ADL_OK;
}

static adl_status read_int(const char *flag, const char *text, int low, int high, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return adli_fail(ADL_EINVAL, "--%s: expected a whole number from %d to %d, got \"%.40s\"",
                         flag, low, high, text);
    *out = (int)value;
    return ADL_OK;
}

static adl_status read_interval(const char *text, double *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0.1 && value <= 86400))
        return adli_fail(ADL_EINVAL,
                         "--interval: expected seconds from 0.1 to 86400, got \"%.40s\"", text);
    *out = value;
    return ADL_OK;
}

static adl_status apply(adli_flags *flags, int flag, const char *value)
{
    adli_config *config = &flags->config;
    switch (flag) {
    case FLAG_STATE:
        return set_text(&flags->state_dir, value);
    case FLAG_CONFIG:
        return ADL_OK; /* read before all others */
    case FLAG_NODES:
        return read_int("nodes", value, 1, ADLI_NODES_MAX, &flags->nodes);
    case FLAG_SLOTS:
        return read_int("slots", value, 1, ADLI_SLOTS_MAX, &flags->slots);
    case FLAG_NODES_FILE:
        return set_text(&flags->nodes_file, value);
    case FLAG_BACKEND:
        return set_text(&config->backend, value);
    case FLAG_POLICY:
        return set_text(&config->policy, value);
    case FLAG_INTERVAL:
        return read_interval(value, &config->interval_s);
    case FLAG_SOCKET:
        return set_text(&flags->socket, value);
    case FLAG_LISTEN:
        return set_text(&config->listen, value);
    case FLAG_TOKEN_FILE:
        return set_text(&config->token_file, value);
    case FLAG_INSECURE:
        config->listen_insecure = true;
        return ADL_OK;
    case FLAG_PLACEHOLDER:
        flags->placeholder = true;
        return ADL_OK;
    case FLAG_TLS_CERT:
        return set_text(&config->tls_certificate, value);
    case FLAG_TLS_KEY:
        return set_text(&config->tls_key, value);
    case FLAG_BACKGROUND:
        flags->background = true;
        return ADL_OK;
    case FLAG_VERBOSE:
        flags->verbose++;
        return ADL_OK;
    case FLAG_LOG:
        return set_text(&flags->log_path, value);
    case FLAG_READY_FD:
        return read_int("ready-fd", value, 1, 65535, &flags->ready_fd);
    default:
        return ADL_OK;
    }
}

/* Calls each flag with apply. With only >= 0, just that one. */
static adl_status walk(adli_flags *flags, int argc, char **argv, int only, const char **found)
{
    struct option options[ADLI_COUNT(table) + 1] = {0};
    for (size_t i = 0; i < ADLI_COUNT(table); i++)
        options[i] = (struct option){
            table[i].name, table[i].value ? required_argument : no_argument, NULL, table[i].flag};
    adl_status status = ADL_OK;
    optind = 0;
    opterr = 0;
    for (int flag;
         status == ADL_OK && (flag = getopt_long(argc, argv, "v", options, NULL)) != -1;) {
        if (flag == 'v')
            flag = FLAG_VERBOSE;
        if (flag == '?')
            return adli_fail(ADL_EINVAL, "option %s is unknown or lacks its value",
                             argv[optind - 1]);
        if (only < 0)
            status = apply(flags, flag, optarg);
        else if (flag == only)
            *found = optarg ? optarg : "";
    }
    if (status == ADL_OK && optind < argc)
        return adli_fail(ADL_EINVAL, "\"%.80s\" is no option", argv[optind]);
    return status;
}

adl_status adli_flags_nodes(const adli_flags *flags, adli_nodes *out)
{
    *out = (adli_nodes){0};
    if (flags->nodes > 0 || flags->slots > 0)
        return adli_nodes_uniform(flags->nodes > 0 ? flags->nodes : 1,
                                  flags->slots > 0 ? flags->slots : 1, out);
    if (flags->nodes_file)
        return adli_nodes_load(flags->nodes_file, out);
    adl_status status = ADL_OK;
    if (flags->config_file) { /* it may have changed */
        adli_config config;
        status = adli_config_load(flags->config_file, &config);
        if (status == ADL_OK && config.nodes.count > 0)
            status = adli_nodes_copy(&config.nodes, out);
        adli_config_fini(&config);
    }
    return status == ADL_OK && out->count == 0 ? adli_nodes_detect("", out) : status;
}

static adl_status settle(adli_flags *flags)
{
    bool counted = flags->nodes > 0 || flags->slots > 0;
    if (counted && flags->nodes_file)
        return adli_fail(ADL_EINVAL,
                         "--nodes-file cannot be used together with --nodes or --slots");
    if (!*flags->config.tls_certificate != !*flags->config.tls_key)
        return adli_fail(ADL_EINVAL, "--tls-cert and --tls-key are needed together");
    if (counted || flags->nodes_file) {
        adli_nodes nodes;
        adl_status status = adli_flags_nodes(flags, &nodes);
        if (status != ADL_OK)
            return status;
        adli_nodes_fini(&flags->config.nodes);
        flags->config.nodes = nodes;
    }
    return ADL_OK;
}

static adl_status read_all(adli_flags *flags, int argc, char **argv)
{
    const char *config = NULL, *asked = NULL;
    adl_status status = walk(flags, argc, argv, FLAG_HELP, &asked);
    if (status == ADL_OK && asked) {
        put_help(&flags->text);
        return adli_buf_check(&flags->text);
    }
    if (status == ADL_OK)
        status = walk(flags, argc, argv, FLAG_VERSION, &asked);
    if (status == ADL_OK && asked) {
        adli_buf_puts(&flags->text, "adaptdl-sched " ADLI_VERSION "\n");
        return adli_buf_check(&flags->text);
    }
    if (status == ADL_OK)
        status = walk(flags, argc, argv, FLAG_CONFIG, &config);
    if (status == ADL_OK)
        status = config ? adli_config_load(config, &flags->config)
                        : adli_config_defaults(&flags->config);
    if (status == ADL_OK && config)
        status = set_text(&flags->config_file, config);
    if (status == ADL_OK)
        status = walk(flags, argc, argv, -1, NULL);
    if (status == ADL_OK)
        status = settle(flags);
    if (status == ADL_OK)
        status = walk(flags, argc, argv, FLAG_PRINT_CONFIG, &asked);
    if (status == ADL_OK && asked)
        status = adli_config_print(&flags->config, &flags->text);
    return status;
}

adl_status adli_flags_read(int argc, char **argv, adli_flags *out)
{
    *out = (adli_flags){.ready_fd = -1};
    adli_buf_init(&out->text, 1 << 20);
    return read_all(out, argc, argv);
}

void adli_flags_fini(adli_flags *flags)
{
    adli_config_fini(&flags->config);
    adli_buf_fini(&flags->text);
    free(flags->state_dir);
    free(flags->socket);
    free(flags->nodes_file);
    free(flags->config_file);
    free(flags->log_path);
}
