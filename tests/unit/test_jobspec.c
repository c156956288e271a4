/* Job files: what is read, every field wrong in turn, what is ignored with a warning, and files
 * made to harm. */
#include "jobspec/jobspec.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "doc/yaml.h"
#include "harness.h"
#include "jobspec/collect.h"

#include <ctype.h>
#include <unistd.h>

static adl_status parse(const char *text, adli_jobfile *out)
{
    return adli_jobfile_parse("job.yaml", text, strlen(text), ADLI_DOC_YAML, out);
}

static void refused(const char *text, const char *why)
{
    adli_jobfile spec;
    adl_status status = parse(text, &spec);
    if (status != ADL_EINVAL || !strstr(adl_error(), why) || strchr(adl_error(), '\n'))
        ADLT_FAIL("%s: status %d, \"%s\", wanted \"%s\"", text, status, adl_error(), why);
    CHECK(!spec.name && !spec.argv);
    adli_jobfile_fini(&spec);
}

/* A whole job, one field a line: the line, the field's path in messages, and values that are wrong
 * for it, separated by '|' ("-" alone: the field is left out; "=" alone: the line is not touched).
 * */
static const struct line {
    const char *text, *path, *wrong;
} lines[] = {
    {"apiVersion: adaptdl.petuum.com/v1", "apiVersion",
     "v1|1|[a]|{a: b}|true|''|-|adaptdl.petuum.com/v2"},
    {"kind: AdaptDLJob", "kind", "Job|1|[a]|{}|false|''|-|adaptdljob"},
    {"metadata:", "metadata", "1|text|[a]|true|{}|-"},
    {"  name: my-job", "metadata.name",
     "1|true|[a]|{a: b}|A|a_b|a.b|a/b|../a|-a|a-|''|a b|\"a\\n\"|\"a\\0b\"|\xc3\xa4|"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    {"  namespace: team-a", "metadata.namespace", "1|[]|{}|A|a/b|a.b|''|-a|.|.."},
    {"  labels:", "metadata.labels", "1|text|[a]|true"},
    {"    app.example.com/part: one", "metadata.labels[\"app.example.com/part\"]",
     "1|true|[a]|{}|a b|-a|a-|/|~|"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    {"  annotations:", "metadata.annotations", "1|text|[a]|true"},
    {"    note: any text, really", "metadata.annotations.note", "1|true|[a]|{}|~"},
    {"spec:", "spec", "1|text|[a]|true|-"},
    {"  minReplicas: 1", "spec.minReplicas", "-1|1.5|one|'1'|[1]|{}|true|10001|1e3"},
    {"  maxReplicas: 4", "spec.maxReplicas", "0|-1|1.5|many|'4'|[1]|{}|true|10001"},
    {"  preemptible: false", "spec.preemptible", "1|0|no|'true'|[]|{}"},
    {"  priority: 2.5", "spec.priority", "0|-1|101|high|'2'|[1]|{}|true"},
    {"  suspend: last-resort", "spec.suspend", "1|sometimes|Never|''|[]|{}|true"},
    {"  maxRetries: 2", "spec.maxRetries", "-1|1.5|two|'2'|[1]|{}|true"},
    {"  template:", "spec.template", "1|text|[a]|true|-"},
    {"    spec:", "spec.template.spec", "1|text|[a]|true"},
    {"      terminationGracePeriodSeconds: 7", "spec.template.spec.terminationGracePeriodSeconds",
     "-1|1.5|text|'7'|[]|{}|true|100000"},
    {"      containers:", "spec.template.spec.containers",
     "1|text|{a: b}|true|[]|-|[{},{},{},{},{},{},{},{},{}]"},
    {"      - name: main", "spec.template.spec.containers[0].name", "1|[a]|{}|A|a/b|''|true"},
    {"        image: example.com/x:1", "spec.template.spec.containers[0].image", "1|[a]|{}|true"},
    {"        workingDir: /root", "spec.template.spec.containers[0].workingDir",
     "1|[a]|{}|relative|''|../x|\"/a\\0b\""},
    {"        command:", "spec.template.spec.containers[0].command",
     "1|text|{a: b}|true|[1]|[[a]]|[{}]|[~]|[true]|['']|[\"a\\0b\"]"},
    {"        - python3", "spec.template.spec.containers[0].command", "="},
    {"        args:", "spec.template.spec.containers[0].args",
     "1|text|{a: b}|true|[1]|[[a]]|[{}]|[~]|[a, 2.5]"},
    {"        - x.py", "spec.template.spec.containers[0].args", "="},
    {"        env:", "spec.template.spec.containers[0].env",
     "1|text|{a: b}|true|[1]|[text]|[{value: a}]|[{name: 1}]|[{name: ''}]|[{name: 'a=b'}]|[{name: "
     "'a b'}]|[{name: 1a}]|[{name: A, value: 1}]|[{name: A, value: true}]|[{name: A, value: [a]}]|"
     "[{name: A, valueFrom: {fieldRef: {}}}]|[{name: A, vlaue: b}]|[{name: \"a\\0b\"}]"},
    {"        - name: DATA", "spec.template.spec.containers[0].env[0].name", "1|[]|{}|a=b|''|true"},
    {"          value: /data", "spec.template.spec.containers[0].env[0].value", "1|1.5|true|[]|{}"},
    {"        resources:", "spec.template.spec.containers[0].resources", "1|text|[a]|true"},
    {"          requests:", "spec.template.spec.containers[0].resources.requests",
     "1|text|[a]|true|{gpu: 1}|{pods: 2}|{cpus: 1}|{a.b/a: 1, a.b/b: 1, a.b/c: 1, a.b/d: 1, a.b/e: "
     "1, "
     "a.b/f: 1, a.b/g: 1, a.b/h: 1}"},
    {"            cpu: 500m", "spec.template.spec.containers[0].resources.requests.cpu",
     "lots|-1|-0.5|1x|[]|{}|true|1e30|''|~|3|9E"},
    {"            nvidia.com/gpu: 1",
     "spec.template.spec.containers[0].resources.requests[\"nvidia.com/gpu\"]",
     "1.5|500m|-1|[]|text|1Ei"},
    {"          limits:", "spec.template.spec.containers[0].resources.limits",
     "1|text|[a]|true|{gpu: 1}|{cpu: lots}"},
    {"            cpu: 2", "spec.template.spec.containers[0].resources.limits.cpu", "lots|-1|[]|~"},
    {"            memory: 1.5Gi", "spec.template.spec.containers[0].resources.limits.memory",
     "lots|-1|[]|1GiB|9Ei"},
};

static size_t indent_of(const char *text)
{
    size_t indent = strspn(text, " ");
    return text[indent] == '-' ? indent + 2 : indent;
}

/* The job with one line's value replaced (and what was below it left out); NULL: as it is. */
static void build(size_t changed, const char *value, adli_buf *out)
{
    adli_buf_clear(out);
    bool skipping = false;
    for (size_t i = 0; i < ADLI_COUNT(lines); i++) {
        const char *text = lines[i].text;
        if (skipping && i > changed && indent_of(text) > indent_of(lines[changed].text))
            continue;
        skipping = false;
        if (value && i == changed) {
            const char *colon = strchr(text, ':');
            if (strcmp(value, "-") != 0)
                adli_buf_printf(out, "%.*s: %s\n", (int)(colon - text), text, value);
            else
                adli_buf_puts(out, "# left out\n");
            skipping = colon[1] == '\0';
            continue;
        }
        adli_buf_printf(out, "%s\n", text);
    }
}

TEST(a_whole_job_is_read)
{
    adli_buf text;
    adli_jobfile s;
    adli_buf_init(&text, 1 << 16);
    build(0, NULL, &text);
    REQUIRE_OK(parse(text.data, &s));
    CHECK_STR(s.name, "my-job");
    CHECK_STR(s.generate_name, "");
    CHECK_STR(s.ns, "team-a");
    CHECK_STR(adli_pairs_get(&s.labels, "app.example.com/part"), "one");
    CHECK_STR(adli_pairs_get(&s.annotations, "note"), "any text, really");
    CHECK(s.min_replicas == 1 && s.max_replicas == 4 && !s.preemptible && s.max_retries == 2);
    CHECK(s.grace_s == 7);
    CHECK_STR(s.container, "main");
    CHECK_STR(s.image, "example.com/x:1");
    CHECK_STR(s.working_dir, "/root");
    REQUIRE(s.argc == 2 && !s.argv[2]);
    CHECK_STR(s.argv[0], "python3");
    CHECK_STR(s.argv[1], "x.py");
    CHECK_INT(s.command_count, 1);
    CHECK_STR(adli_pairs_get(&s.env, "DATA"), "/data");
    CHECK_INT(adli_amounts_get(&s.requests, "cpu"), 500);
    CHECK_INT(adli_amounts_get(&s.limits, "cpu"), 2000);
    CHECK_INT(adli_amounts_get(&s.requests, "nvidia.com/gpu"), 1);
    CHECK_INT(adli_amounts_get(&s.requests, "memory"), 3LL << 29); /* from its limit */
    CHECK_INT(adli_amounts_get(&s.limits, "nvidia.com/gpu"), 0);
    CHECK_INT(s.warning_count, 0);
    static const char start[] =
        "{\"apiVersion\":\"adaptdl.petuum.com/v1\",\"kind\":\"AdaptDLJob\",";
    CHECK(strncmp(s.json, start, strlen(start)) == 0);
    adli_jobfile again;
    REQUIRE_OK(adli_jobfile_parse("job.json", s.json, strlen(s.json), ADLI_DOC_JSON, &again));
    CHECK_STR(again.json, s.json);
    CHECK_INT(adli_amounts_get(&again.requests, "memory"), 3LL << 29);
    adli_jobfile_fini(&again);
    adli_jobfile_fini(&s);
    adli_buf_fini(&text);
}

/* What the daemon stores is read again after a restart: numbers must not move. */
TEST(canonical_json_gives_the_same_job)
{
    static const char *const amounts[] = {"0.1", "0.30000000000000004", "1e-9", "2.0", "1e3", "7",
                                          "0.7"};
    for (size_t i = 0; i < ADLI_COUNT(amounts); i++) {
        char text[512];
        adli_jobfile one, two;
        snprintf(text, sizeof text,
                 "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: a}\n"
                 "status: [1.7976931348623157e308, 5e-324, -0.0, \"\\x01\\u2028\"]\n"
                 "spec: {template: {spec: {containers: [{name: m, command: [x], resources: "
                 "{requests: {cpu: %s}}}]}}}\n",
                 amounts[i]);
        REQUIRE_OK(parse(text, &one));
        REQUIRE_OK(adli_jobfile_parse("j", one.json, strlen(one.json), ADLI_DOC_JSON, &two));
        CHECK_STR(two.json, one.json);
        CHECK_INT(adli_amounts_get(&two.requests, "cpu"), adli_amounts_get(&one.requests, "cpu"));
        adli_jobfile_fini(&one);
        adli_jobfile_fini(&two);
    }
}

TEST(the_seed_job_is_read)
{
    adli_jobfile s;
    REQUIRE_OK(parse("apiVersion: adaptdl.petuum.com/v1\n"
                     "kind: AdaptDLJob\n"
                     "metadata:\n"
                     "  generateName: hello-world-\n"
                     "spec:\n"
                     "  template:\n"
                     "    spec:\n"
                     "      containers:\n"
                     "      - name: main\n"
                     "        command:\n"
                     "        - python3\n"
                     "        - /root/hello_world.py\n",
                     &s));
    CHECK_STR(s.name, "");
    CHECK_STR(s.generate_name, "hello-world-");
    CHECK_STR(s.ns, "default");
    CHECK(s.min_replicas == 0 && s.max_replicas == 0 && s.preemptible && s.max_retries == -1);
    CHECK(s.grace_s == -1 && s.argc == 2 && s.requests.count == 0 && s.warning_count == 0);
    adli_jobfile_fini(&s);
}

/* The message begins with the line and names the field, or one inside it. */
static bool names(const char *error, size_t line, const char *path)
{
    char start[512];
    snprintf(start, sizeof start, "job.yaml:%zu: %s", line, path);
    size_t length = strlen(start);
    return strncmp(error, start, length) == 0 && strchr(":.[", error[length]);
}

static void try_value(size_t i, const char *value, adli_buf *text)
{
    adli_jobfile spec;
    build(i, value, text);
    /* The line of what is left out is that of its parent. */
    size_t line = i + 1;
    if (strcmp(value, "-") == 0)
        for (line = i; line > 0 && indent_of(lines[line - 1].text) >= indent_of(lines[i].text);)
            line--;
    if (line == 0) /* of the document: its first line that is not a comment */
        line = i == 0 ? 2 : 1;
    adl_status status = parse(text->data, &spec);
    if (status != ADL_EINVAL || !names(adl_error(), line, lines[i].path))
        ADLT_FAIL("%s := %s: status %d, %s", lines[i].path, value, status,
                  status ? adl_error() : "taken");
    adli_jobfile_fini(&spec);

    /* The same document as JSON: the same field is named. */
    adli_doc doc;
    if (adli_doc_parse("job.yaml", text->data, text->length, ADLI_DOC_YAML, &doc) != ADL_OK)
        return; /* NUL: not even a document */
    char *json = json_dumps(doc.root, JSON_INDENT(1));
    REQUIRE(json);
    status = adli_jobfile_parse("job.json", json, strlen(json), ADLI_DOC_JSON, &spec);
    if (status != ADL_EINVAL || !strstr(adl_error(), lines[i].path))
        ADLT_FAIL("%s := %s as JSON: %s", lines[i].path, value, adl_error());
    adli_jobfile_fini(&spec);
    free(json);
    adli_doc_fini(&doc);
}

TEST(every_field_wrong_in_turn)
{
    adli_buf text;
    int tried = 0;
    adli_buf_init(&text, 1 << 16);
    for (size_t i = 0; i < ADLI_COUNT(lines); i++) {
        char values[1024];
        snprintf(values, sizeof values, "%s", lines[i].wrong);
        if (strcmp(values, "=") == 0)
            continue;
        for (char *rest = values, *value; (value = strsep(&rest, "|"));) {
            if (strstr(value, "\\0"))
                continue; /* refused before fields are looked at: see below */
            try_value(i, value, &text);
            tried++;
        }
    }
    printf("info - %d wrong values in %zu fields, each named with line and field\n", tried,
           ADLI_COUNT(lines));
    adli_buf_fini(&text);
}

/* Misspelt names, everywhere that a name can stand. */
TEST(every_name_misspelt_in_turn)
{
    adli_buf text;
    int tried = 0;
    adli_buf_init(&text, 1 << 16);
    for (size_t i = 0; i < ADLI_COUNT(lines); i++) {
        const char *colon = strchr(lines[i].text, ':');
        if (!colon || strstr(lines[i].path, "labels[") || strstr(lines[i].path, "annotations.") ||
            strchr(lines[i].text, '/') || strstr(lines[i].path, "limits.") ||
            strstr(lines[i].path, "requests."))
            continue;
        adli_buf_clear(&text);
        for (size_t j = 0; j < ADLI_COUNT(lines); j++)
            adli_buf_printf(&text, "%.*s%s%s\n", (int)(colon - lines[i].text),
                            j == i ? lines[i].text : "", j == i ? "x" : "",
                            j == i ? colon : lines[j].text);
        char line[32], name[64];
        const char *key = lines[i].text + indent_of(lines[i].text);
        snprintf(line, sizeof line, "job.yaml:%zu: ", i + 1);
        snprintf(name, sizeof name, "did you mean \"%.*s\"?", (int)(colon - key), key);
        refused(text.data, line);
        refused(text.data, name);
        tried++;
    }
    CHECK(tried > 20);
    printf("info - %d misspelt names\n", tried);
    adli_buf_fini(&text);
}

#define HEAD "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: a}\n"
#define MAIN HEAD "spec: {template: {spec: {containers: [{name: main, "

TEST(what_fields_say_together)
{
    refused(HEAD "spec:\n  minReplicas: 5\n  maxReplicas: 4\n",
            "job.yaml:6: spec.maxReplicas: must be at least minReplicas, 5, not 4");
    refused(
        "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {namespace: a}\nspec: {}\n",
        "job.yaml:3: metadata: needs a name or a generateName");
    static const char *const prefixes[] = {
        "''", "A",  "\'-\'",
        "a_", "a/", "5.",
        "[]", "7",  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < ADLI_COUNT(prefixes); i++) {
        char text[256];
        snprintf(
            text, sizeof text,
            "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata:\n  generateName: %s\n",
            prefixes[i]);
        refused(text, "job.yaml:4: metadata.generateName: ");
    }
    refused(MAIN "image: x}]}}}\n",
            "containers[0].command: on the local cluster there is no image, so "
            "spec.template.spec.containers[0].command must say what to run");
    refused(MAIN "command: [], args: []}]}}}\n", "there is no image");
    refused(MAIN "command: [a], envFrom: [{}]}]}}}\n", "containers[0].envFrom: the local cluster");
    refused(MAIN "command: [a], env: [{name: A, valueFrom: {}}]}]}}}\n",
            "containers[0].env[0].valueFrom: the local cluster has no secrets");
    refused(MAIN "command: [a], resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}]}}}\n",
            "resources.requests.cpu: must be at most the limit, 1500m");
    refused("a: \"x\\0y\"\n", "job.yaml:1: a string with a NUL byte");
    refused("[]", "job.yaml:1: the document: expected a mapping, got a list");
    refused("~", "the document: expected a mapping, got null");
    adli_jobfile s;
    REQUIRE_OK(parse(MAIN "args: [echo, hi], image: ~}]}}}\n", &s));
    CHECK(s.argc == 2 && s.command_count == 0 && s.warning_count == 1);
    CHECK(strstr(s.warnings[0], "containers[0].command: is missing: args are run as the command"));
    adli_jobfile_fini(&s);
}

TEST(what_only_kubernetes_has_is_ignored_and_said)
{
    adli_jobfile s;
    REQUIRE_OK(
        parse("apiVersion: adaptdl.petuum.com/v1\n"
              "kind: AdaptDLJob\n"
              "metadata: {name: a, uid: x, creationTimestamp: ~, generation: 3}\n"
              "status: {phase: Running}\n"
              "spec:\n"
              "  template:\n"
              "    metadata: {labels: {a: b}}\n"
              "    spec:\n"
              "      volumes: []\n"
              "      nodeSelector: {a: b}\n"
              "      tolerations: []\n"
              "      containers:\n"
              "      - {name: main, command: [x], imagePullPolicy: Always, volumeMounts: []}\n"
              "      - {name: side, image: y, anything: goes}\n",
              &s));
    CHECK_STR(s.uid, "x");
    static const char *const wanted[] = {
        "metadata.generation: ignored here",
        "status: ignored here",
        "spec.template.metadata: ignored here",
        "spec.template.spec.volumes: ignored here",
        "spec.template.spec.nodeSelector: ignored here",
        "spec.template.spec.tolerations: ignored here",
        "spec.template.spec.containers[0].imagePullPolicy: ignored here",
        "spec.template.spec.containers[0].volumeMounts: ignored here",
        "spec.template.spec.containers[1]: ignored here: only the first container runs"};
    CHECK_INT(s.warning_count, ADLI_COUNT(wanted));
    for (size_t i = 0; i < ADLI_COUNT(wanted); i++) {
        bool there = false;
        for (int j = 0; j < s.warning_count && !there; j++)
            there = strcmp(s.warnings[j], wanted[i]) == 0;
        if (!there)
            ADLT_FAIL("no warning \"%s\"", wanted[i]);
    }
    adli_jobfile_fini(&s);
}

TEST(variables_are_replaced_as_kubernetes_does)
{
    adli_jobfile s;
    REQUIRE_OK(
        parse(MAIN "command: [sh, -c, 'echo $(A) $(B) $$(A) $(NO) $HOME $( $x $(A'],"
                   "args: ['$(B)$(B)', '$'], env: [{name: A, value: 'x'}, {name: B, value: "
                   "'$(A)-$(C)'}, {name: C, value: c}, {name: A, value: 'y$$'}, {name: E}]}]}}}\n",
              &s));
    CHECK_STR(s.argv[2], "echo y$ x-$(C) $(A) $(NO) $HOME $( $x $(A");
    CHECK_STR(s.argv[3], "x-$(C)x-$(C)");
    CHECK_STR(s.argv[4], "$");
    CHECK_INT(s.env.count, 4);
    CHECK_STR(adli_pairs_get(&s.env, "A"), "y$");
    CHECK_STR(adli_pairs_get(&s.env, "E"), "");
    adli_jobfile_fini(&s);
}

/* ---- files made to harm ---- */

static char *filled(const char *before, char c, size_t count, const char *after)
{
    char *text = malloc(strlen(before) + count + strlen(after) + 1);
    if (!text)
        abort();
    strcpy(text, before);
    memset(text + strlen(before), c, count);
    strcpy(text + strlen(before) + count, after);
    return text;
}

TEST(large_files_and_long_strings)
{
    char *text = filled(MAIN "command: ['", 'x', 10 << 20, "']}]}}}\n");
    refused(text, "job.yaml: 10485");
    char path[] = "/tmp/adl-job-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    adli_jobfile s;
    CHECK_OK(adli_file_write(path, text, strlen(text)));
    CHECK_FAILS(adli_jobfile_load(path, &s), ADL_EINVAL, "larger than the limit of 1048576 bytes");
    CHECK(strstr(adl_error(), path));
    unlink(path);
    CHECK_FAILS(adli_jobfile_load("/nowhere/job.yaml", &s), ADL_ENOENT, "/nowhere/job.yaml");
    free(text);
    text = filled(MAIN "command: ['", 'x', 200000, "']}]}}}\n");
    refused(text, "containers[0].command[0]: is 200000 bytes long, at most 131071 are allowed");
    free(text);
    text = filled(MAIN "command: [a], env: [{name: A, value: '", 'x', 131070, "'}]}]}}}\n");
    refused(text, "containers[0].env[0].value: is 131070 bytes long, at most 131069");
    free(text);
    text =
        filled(MAIN "command: ['$(A)$(A)'], env: [{name: A, value: '", 'x', 100000, "'}]}]}}}\n");
    refused(text, "containers[0].command[0]: is 200000 bytes long with its $(NAME) replaced");
    free(text);
    text = filled(MAIN "env: [{name: A, value: '", 'x', 100000,
                  "'}], command: ['$(A)','$(A)','$(A)','$(A)','$(A)','$(A)','$(A)','$(A)','$(A)',"
                  "'$(A)','$(A)']}]}}}\n");
    refused(text, "containers[0]: command, args and env are 1200");
    free(text);
}

TEST(bombs_cycles_and_depth)
{
    char *wide = filled(HEAD "status: [&x ", 'x', 800000,
                        ",*x,*x,*x,*x,*x,*x,*x,*x,*x,*x,*x]\n"
                        "spec: {template: {spec: {containers: [{name: main, command: [a]}]}}}\n");
    refused(wide, "job.yaml:1: the document: is 9600");
    free(wide);
    adli_buf text;
    adli_buf_init(&text, 1 << 20);
    adli_buf_puts(&text, HEAD "x0: &x0 [a,a,a,a,a,a,a,a,a,a]\n");
    for (int i = 1; i < 20; i++)
        adli_buf_printf(&text, "x%d: &x%d [*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d]\n", i,
                        i, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    refused(text.data, "job.yaml:9: with its aliases expanded");
    refused(HEAD "spec: &s\n  template: *s\n", "job.yaml:5: alias *s: it would contain itself");
    adli_buf_clear(&text);
    adli_buf_puts(&text, HEAD "spec: ");
    for (int i = 0; i < 1000; i++)
        adli_buf_puts(&text, "{template: ");
    refused(text.data, "job.yaml:4: nested more than 64 deep");
    refused(HEAD "spec: {template: \xff}\n", "job.yaml:4: not YAML text");
    refused(HEAD "---\n" HEAD, "job.yaml:4: a second document");
    adli_buf_fini(&text);
    adli_jobfile s;
    REQUIRE_OK(parse(HEAD "spec: {template: {spec: {containers: [{name: main, command: &c [a, b], "
                          "args: *c}]}}}\n",
                     &s));
    CHECK_INT(s.argc, 4);
    adli_jobfile_fini(&s);
}

TEST(too_many_of_anything)
{
    adli_buf text;
    adli_jobfile s;
    adli_buf_init(&text, 1 << 20);
    adli_buf_puts(&text, MAIN "command: [");
    for (int i = 0; i < 4097; i++)
        adli_buf_puts(&text, "a,");
    adli_buf_puts(&text, "]}]}}}\n");
    refused(text.data, "command: has 4097 strings, at most 4096 are allowed");
    adli_buf_clear(&text);
    adli_buf_puts(&text, MAIN "command: [a], env: [");
    for (int i = 0; i < 1001; i++)
        adli_buf_printf(&text, "{name: A%d},", i);
    adli_buf_puts(&text, "]}]}}}\n");
    refused(text.data, "env: has 1001 variables, at most 1000 are allowed");
    adli_buf_clear(&text);
    adli_buf_puts(&text,
                  "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata:\n  name: a\n"
                  "  labels:\n");
    for (int i = 0; i < 257; i++)
        adli_buf_printf(&text, "    l%d: x\n", i);
    refused(text.data, "job.yaml:5: metadata.labels: has 257 entries, at most 256");
    adli_buf_fini(&text);
    CHECK_OK(parse(MAIN "command: [a]}, {}, {}, {}, {}, {}, {}, {}]}}}\n", &s));
    CHECK_INT(s.warning_count, 7);
    adli_jobfile_fini(&s);
}

TEST(names_and_labels)
{
    static const char *const good[] = {"a", "a-b", "0", "a1", "x--y"};
    static const char *const bad[] = {"",    "-",  "a-",  "A",   "a.b",
                                      "a/b", "..", "a_b", "a b", "\xc3\xa4"};
    for (size_t i = 0; i < ADLI_COUNT(good); i++)
        CHECK(adli_name_valid(good[i]));
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK(!adli_name_valid(bad[i]));
    static const char *const keys[] = {"'a/b/c'", "'/a'",  "'a/'",     "-a", "a-",
                                       "'A.b/c'", "'a b'", "'-a.b/c'", "''"};
    for (size_t i = 0; i < ADLI_COUNT(keys); i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata:\n  name: a\n"
                 "  labels:\n    %s: x\n",
                 keys[i]);
        refused(text, "job.yaml:6: metadata.labels");
    }
}

static void *counted_malloc(size_t size)
{
    return adli_calloc(size, 1);
}

TEST(any_allocation_may_fail)
{
    adli_buf text;
    int failures = 0;
    adli_buf_init(&text, 1 << 16);
    build(0, NULL, &text);
    adli_buf_puts(&text, "status: {}\n");
    json_set_alloc_funcs(counted_malloc, free);
    for (int64_t nth = 1;; nth++) {
        adli_jobfile spec;
        adli_mem_fail_at(nth);
        adl_status status = parse(text.data, &spec);
        adli_mem_fail_at(0);
        adli_jobfile_fini(&spec);
        if (status == ADL_OK)
            break;
        failures++;
        if (status != ADL_ENOMEM)
            ADLT_FAIL("allocation %d: status %d, %s", (int)nth, status, adl_error());
        REQUIRE(nth < 2000);
    }
    json_set_alloc_funcs(malloc, free);
    adli_buf_fini(&text);
    printf("info - %d allocations failed in turn\n", failures);
}
