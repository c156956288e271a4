/* The daemon's configuration and the declaration of nodes: defaults, what is read, every field
 * wrong in turn, what is printed, and that docs/config.md says the same. */
#include "config/config.h"

#include "base/file.h"
#include "base/mem.h"
#include "harness.h"
#include "config/table.h"

#include <sys/stat.h>
#include <unistd.h>

static adl_status parse(const char *text, adli_config *out)
{
    return adli_config_parse("c.yaml", text, strlen(text), ADLI_DOC_YAML, out);
}

static void refused(const char *text, const char *why)
{
    adli_config config;
    adl_status status = parse(text, &config);
    if (status != ADL_EINVAL || !strstr(adl_error(), why))
        ADLT_FAIL("%s: status %d, \"%s\", wanted \"%s\"", text, status, adl_error(), why);
    CHECK(!config.source && !config.listen);
    adli_config_fini(&config);
}

TEST(defaults_are_the_documented_ones)
{
    adli_config config;
    REQUIRE_OK(adli_config_defaults(&config));
    CHECK(config.interval_s == 60 && config.event_delay_s == 1 && config.start_at_once);
    CHECK(config.grace_s == 30 && config.max_retries == 3 && config.retry_pause_s == 5);
    CHECK_STR(config.listen, "");
    CHECK_STR(config.policy, "");
    CHECK_INT(config.limits.max_body_bytes, 1 << 20);
    CHECK_INT(config.nodes.count, 0);
    adli_config_fini(&config);
    REQUIRE_OK(parse("{}", &config));
    CHECK(config.interval_s == 60);
    CHECK_STR(config.source, "c.yaml");
    adli_config_fini(&config);
}

static const char full[] = "policy:\n"
                           "  name: rank\n"
                           "  parameters: {hy: 0.06, p: 0.5}\n"
                           "intervalSeconds: 10\n"
                           "eventDelaySeconds: 0.5\n"
                           "startAtOnce: false\n"
                           "graceSeconds: 3\n"
                           "maxRetries: 0\n"
                           "retryPauseSeconds: 0.25\n"
                           "listen: '[::1]:8080'\n"
                           "tokenFile: /etc/token\n"
                           "tls: {certificate: c.pem, key: k.pem}\n"
                           "limits:\n"
                           "  maxBodyBytes: 2Mi\n"
                           "  maxUploadBytes: 1Gi\n"
                           "  maxHeaderBytes: 8192\n"
                           "  maxConnections: 17\n"
                           "  requestsPerSecond: 2.5\n"
                           "  burst: 9\n"
                           "  idleSeconds: 5\n"
                           "store:\n"
                           "  events: 500\n"
                           "  decisionsPerJob: 5\n"
                           "  samplesPerJob: 6\n"
                           "  finishedJobs: 7\n"
                           "historySeconds: 2\n"
                           "useSeconds: 7\n"
                           "nodes:\n"
                           "- name: a\n"
                           "  deviceType: a100\n"
                           "  preemptible: true\n"
                           "  resources: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 2, pods: 4}\n"
                           "- name: b\n";

TEST(every_field_is_read)
{
    adli_config c;
    REQUIRE_OK(parse(full, &c));
    CHECK_STR(c.policy, "rank");
    REQUIRE(c.parameter_count == 2);
    CHECK_STR(c.parameters[0].name, "hy");
    CHECK(c.parameters[0].value == 0.06 && c.parameters[0].line == 3);
    CHECK(c.interval_s == 10 && c.event_delay_s == 0.5 && !c.start_at_once && c.grace_s == 3);
    CHECK(c.max_retries == 0 && c.retry_pause_s == 0.25 && c.history_s == 2);
    CHECK(c.use_s == 7);
    CHECK_STR(c.listen, "[::1]:8080");
    CHECK_STR(c.token_file, "/etc/token");
    CHECK_STR(c.tls_certificate, "c.pem");
    CHECK_STR(c.tls_key, "k.pem");
    CHECK(c.limits.max_body_bytes == 2 << 20 && c.limits.max_upload_bytes == 1 << 30 &&
          c.limits.max_header_bytes == 8192 && c.limits.max_connections == 17);
    CHECK(c.limits.requests_per_second == 2.5 && c.limits.burst == 9 && c.limits.idle_s == 5);
    CHECK(c.store.events == 500 && c.store.decisions_per_job == 5 && c.store.samples_per_job == 6 &&
          c.store.finished_jobs == 7);
    REQUIRE(c.nodes.count == 2);
    const adli_node_spec *node = &c.nodes.items[0];
    CHECK_STR(node->name, "a");
    CHECK_STR(node->device_type, "a100");
    CHECK(node->preemptible && node->resources.count == 4);
    CHECK_INT(adli_amounts_get(&node->resources, "cpu"), 4000);
    CHECK_INT(adli_amounts_get(&node->resources, "memory"), 8LL << 30);
    CHECK_INT(adli_amounts_get(&node->resources, "nvidia.com/gpu"), 2);
    CHECK_INT(adli_amounts_get(&node->resources, "pods"), 4);
    CHECK_INT(adli_amounts_get(&c.nodes.items[1].resources, "pods"), 1);
    adli_config_fini(&c);
}

/* Each constant of the table gets values of every wrong type, and numbers outside its range; the
 * error names the line, 3, and the field. */
TEST(every_field_wrong_in_turn)
{
    static const char *const wrong[] = {"[1]",  "{a: 1}", "text",        "'1'",
                                        "7",    "7.5",    "true",        "-1e9",
                                        "1e12", "[[]]",   "[{name: A}]", "{a: text}"};
    int errors = 0, accepted = 0;
    for (size_t i = 0; i < ADLI_CONSTANTS; i++) {
        const adli_constant *c = &adli_constants[i];
        int of_this = 0;
        for (size_t j = 0; j < ADLI_COUNT(wrong); j++) {
            char text[512], field[128];
            adli_config config;
            if (*c->section)
                snprintf(text, sizeof text, "# one\n%s:\n  %s: %s\n", c->section, c->name,
                         wrong[j]);
            else
                snprintf(text, sizeof text, "# one\n# two\n%s: %s\n", c->name, wrong[j]);
            snprintf(field, sizeof field, "c.yaml:3: %s%s%s", c->section, *c->section ? "." : "",
                     c->name);
            adl_status status = parse(text, &config);
            bool expected = status == ADL_EINVAL && strstr(adl_error(), field);
            bool elsewhere = status == ADL_EINVAL && strstr(adl_error(), "go together");
            if (status != ADL_OK && !expected && !elsewhere &&
                !(status == ADL_ENOENT && strcmp(c->name, "nodesFile") == 0))
                ADLT_FAIL("%s: %s, wanted %s", text, adl_error(), field);
            errors += expected;
            of_this += expected;
            accepted += status == ADL_OK;
            adli_config_fini(&config);
        }
        if (of_this < 6)
            ADLT_FAIL("%s.%s refuses only %d of %zu values", c->section, c->name, of_this,
                      ADLI_COUNT(wrong));
    }
    printf("info - %d wrong values named with line and field, %d right ones taken\n", errors,
           accepted);
}

TEST(mistakes_are_named)
{
    refused("intervalSecond: 5\n", "c.yaml:1: intervalSecond: unknown field; did you mean "
                                   "\"intervalSeconds\"?");
    refused("limits:\n  maxBodyByte: 5\n", "c.yaml:2: limits.maxBodyByte: unknown field; did you "
                                           "mean \"maxBodyBytes\"?");
    refused("- 1\n", "c.yaml:1: the document: expected a mapping, got a list");
    refused("limits: 5\n", "c.yaml:1: limits: expected a mapping, got a number");
    refused("intervalSeconds: 0\n", "c.yaml:1: intervalSeconds: must be from 0.1 to 86400, not 0");
    refused("listen: 8080\n",
            "listen: expected a string, got a number (in quotes it would be one)");
    static const char *const listen[] = {
        "localhost", ":80", "a:b",        "a:99999", "::1:80",  "a b:1",
        "[]:1",      "a:",  "http://a:1", "a:-1",    "a:123456"};
    for (size_t i = 0; i < ADLI_COUNT(listen); i++) {
        char text[64];
        snprintf(text, sizeof text, "listen: '%s'\n", listen[i]);
        refused(text, "is not ADDRESS:PORT");
    }
    refused("tls: {key: x}\n", "c.yaml:1: tls: certificate and key go together");
    refused("policy: {parameters: {a: x}}\n",
            "policy.parameters.a: expected a number, got a string");
    refused("limits: {maxBodyBytes: 1}\n", "limits.maxBodyBytes: must be from 1024 to");
    refused("limits: {maxBodyBytes: 1Ti}\n",
            "limits.maxBodyBytes: must be from 1Ki to 1Gi, not 1Ti");
    refused("limits: {maxBodyBytes: 1x}\n", "limits.maxBodyBytes: \"1x\" is not a quantity");
    refused("nodes: [{name: a}]\nnodesFile: x\n", "c.yaml:2: nodesFile: give either");
    adli_config config;
    CHECK_FAILS(parse("nodesFile: /nowhere/nodes.yaml\n", &config), ADL_ENOENT,
                "/nowhere/nodes.yaml");
    CHECK_FAILS(adli_config_load("/nowhere/c.yaml", &config), ADL_ENOENT, "/nowhere/c.yaml");
}

TEST(nodes_wrong_in_turn)
{
    refused("nodes:\n- {}\n", "c.yaml:2: nodes[0].name: is missing");
    refused("nodes:\n- name: a\n- name: a\n", "c.yaml:3: nodes[1].name: there is a node \"a\"");
    refused("nodes:\n- name: a/b\n", "nodes[0].name: must be lower-case");
    refused("nodes:\n- 5\n", "c.yaml:2: nodes[0]: expected a mapping, got a number");
    refused("nodes:\n- name: a\n  size: 5\n", "c.yaml:3: nodes[0].size: unknown field");
    refused("nodes:\n- name: a\n  preemptible: 1\n",
            "c.yaml:3: nodes[0].preemptible: expected true");
    refused("nodes:\n- name: a\n  deviceType: [1]\n",
            "c.yaml:3: nodes[0].deviceType: expected a str");
    refused("nodes:\n- name: a\n  resources: 4\n",
            "c.yaml:3: nodes[0].resources: expected a mapping");
    refused("nodes:\n- name: a\n  resources:\n    cpus: 4\n",
            "c.yaml:4: nodes[0].resources.cpus: unknown resource; did you mean \"cpu\"?");
    refused("nodes:\n- name: a\n  resources:\n    cpu: lots\n",
            "c.yaml:4: nodes[0].resources.cpu: \"lots\" is not a quantity");
    refused("nodes:\n- name: a\n  resources:\n    cpu: -1\n", "quantity \"-1\" is negative");
    refused("nodes:\n- name: a\n  resources:\n    pods: 0\n",
            "nodes[0].resources.pods: must be from");
    refused("nodes:\n- name: a\n  resources:\n    memory: true\n",
            "resources.memory: expected a quan");
    refused("nodes:\n- name: a\n  resources: {a.b/a: 1, a.b/b: 1, a.b/c: 1, a.b/d: 1, a.b/e: 1}\n"
            "- name: b\n  resources: {a.b/f: 1, a.b/g: 1, a.b/h: 1}\n",
            "c.yaml:4: nodes[1]: the nodes have more than 8 kinds");
}

TEST(nodes_by_number_and_by_file)
{
    adli_nodes nodes;
    REQUIRE_OK(adli_nodes_uniform(2, 3, &nodes));
    CHECK_INT(nodes.count, 2);
    CHECK_STR(nodes.items[1].name, "node-1");
    CHECK_INT(nodes.items[1].resources.count, 1);
    CHECK_INT(adli_amounts_get(&nodes.items[1].resources, "pods"), 3);
    adli_nodes_fini(&nodes);
    CHECK_FAILS(adli_nodes_uniform(0, 1, &nodes), ADL_EINVAL, "nodes: must be from 1");
    CHECK_FAILS(adli_nodes_uniform(1, 0, &nodes), ADL_EINVAL, "slots: must be from 1");
    char path[] = "/tmp/adl-nodes-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    const char *text = "nodes:\n- name: g\n  resources: {nvidia.com/gpu: 2, cpu: 7500m}\n"
                       "- name: c\n  resources: {cpu: 3.5}\n";
    CHECK_OK(adli_file_write(path, text, strlen(text)));
    REQUIRE_OK(adli_nodes_load(path, &nodes));
    CHECK_INT(adli_amounts_get(&nodes.items[0].resources, "pods"), 2);
    CHECK_INT(adli_amounts_get(&nodes.items[1].resources, "pods"), 3);
    adli_nodes_fini(&nodes);
    CHECK_OK(adli_file_write(path, "node: []\n", 9));
    CHECK_FAILS(adli_nodes_load(path, &nodes), ADL_EINVAL, ":1: node: unknown field; did you mean");
    CHECK_OK(adli_file_write(path, "{}\n", 3));
    CHECK_FAILS(adli_nodes_load(path, &nodes), ADL_EINVAL, "nodes: is missing");
    CHECK_OK(adli_file_write(path, "nodes: []\n", 10));
    CHECK_FAILS(adli_nodes_load(path, &nodes), ADL_EINVAL, "nodes: has 0 nodes, at least 1");
    unlink(path);
}

/* ---- a machine made of files ---- */

static char machine[64];

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", machine, name);
    for (char *at = path + strlen(machine) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    CHECK_OK(adli_file_write(path, text, strlen(text)));
}

static int64_t found(const char *resource)
{
    adli_nodes nodes;
    if (adli_nodes_detect(machine, &nodes) != ADL_OK)
        return -1;
    CHECK_INT(nodes.count, 1);
    CHECK_STR(nodes.items[0].name, "node-0");
    int64_t amount = adli_amounts_get(&nodes.items[0].resources, resource);
    adli_nodes_fini(&nodes);
    return amount;
}

TEST(this_machine_is_found)
{
    strcpy(machine, "");
    int64_t cores = found("cpu");
    CHECK(cores > 0 && found("memory") > 1 << 20 && found("pods") >= 1);

    strcpy(machine, "/tmp/adl-machine-XXXXXX");
    REQUIRE(mkdtemp(machine));
    cores = found("cpu"); /* affinity only */
    CHECK(cores >= 1000 && cores % 1000 == 0);
    put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n");
    CHECK_INT(found("memory"), 1000 * 1024);
    CHECK_INT(found("pods"), cores / 1000);

    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/memory.max", "4096\n");
    CHECK_INT(found("cpu"), 500);
    CHECK_INT(found("pods"), 1);
    CHECK_INT(found("memory"), 4096);

    put("proc/self/cgroup", "4:cpu,cpuacct:/x\n5:memory:/y\n");
    put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "25000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n");
    CHECK_INT(found("cpu"), 250);
    CHECK_INT(found("memory"), 8192);

    put("proc/driver/nvidia/gpus/0000:01", "");
    CHECK_INT(found("nvidia.com/gpu"), 0); /* the machine's, not ours */
    put("dev/nvidiactl", "");
    CHECK_INT(found("nvidia.com/gpu"), 1);
    put("dev/nvidia0", "");
    put("dev/nvidia11", "");
    put("dev/nvidia-uvm", "");
    put("dev/nvidia1x", "");
    CHECK_INT(found("nvidia.com/gpu"), 2);
    CHECK_INT(found("pods"), 2);

    put("proc/self/cgroup", "nonsense\n:::\n0::\n");
    put("proc/meminfo", "MemTotal: lots\n");
    CHECK(found("cpu") > 0);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", machine);
    CHECK_INT(system(command), 0);
}

/* ---- printing ---- */

static void prints_back(const char *text)
{
    adli_config first, second, copy;
    adli_buf one, two, three;
    adli_buf_init(&one, 1 << 20);
    adli_buf_init(&two, 1 << 20);
    adli_buf_init(&three, 1 << 20);
    REQUIRE_OK(parse(text, &first));
    CHECK_OK(adli_config_print(&first, &one));
    REQUIRE_OK(parse(one.data, &second));
    CHECK_OK(adli_config_print(&second, &two));
    CHECK_STR(two.data, one.data);
    REQUIRE_OK(adli_config_copy(&first, &copy));
    CHECK_STR(copy.source, "c.yaml");
    CHECK_OK(adli_config_print(&copy, &three));
    CHECK_STR(three.data, one.data);
    adli_config_fini(&first);
    adli_config_fini(&second);
    adli_config_fini(&copy);
    adli_buf_fini(&one);
    adli_buf_fini(&two);
    adli_buf_fini(&three);
}

TEST(what_is_printed_reads_back)
{
    prints_back("{}");
    prints_back(full);
    prints_back("tokenFile: \"a\\tb: #\\u0085\\u2028 x\"\npolicy: {name: 'no'}\n");
}

TEST(the_documentation_says_the_same)
{
    adli_buf text, fields;
    adli_buf_init(&text, 1 << 20);
    adli_buf_init(&fields, 1 << 20);
    REQUIRE_OK(adli_config_document(&fields));
    REQUIRE_OK(adli_file_read("docs/config.md", &text));
    if (!strstr(text.data, fields.data))
        ADLT_FAIL("docs/config.md should have this table:\n%s", fields.data);
    adli_buf_fini(&text);
    adli_buf_fini(&fields);
}

static void *counted_malloc(size_t size)
{
    return adli_calloc(size, 1);
}

TEST(any_allocation_may_fail)
{
    json_set_alloc_funcs(counted_malloc, free);
    int failures = 0;
    for (int64_t nth = 1;; nth++) {
        adli_config config, copy = {0};
        adli_buf out;
        adli_buf_init(&out, 1 << 20);
        adli_mem_fail_at(nth);
        adl_status status = parse(full, &config);
        if (status == ADL_OK)
            status = adli_config_copy(&config, &copy);
        if (status == ADL_OK)
            status = adli_config_print(&copy, &out);
        adli_mem_fail_at(0);
        adli_config_fini(&config);
        adli_config_fini(&copy);
        adli_buf_fini(&out);
        if (status == ADL_OK)
            break;
        failures++;
        CHECK_INT(status, ADL_ENOMEM);
        REQUIRE(nth < 2000);
    }
    json_set_alloc_funcs(malloc, free);
    printf("info - %d allocations failed in turn\n", failures);
}
