/* YAML and JSON documents: what values mean, where they stand, and everything that is refused. */
#include "doc/yaml.h"

#include "base/mem.h"
#include "base/rng.h"
#include "harness.h"

static adl_status parse(const char *text, adli_doc *doc)
{
    return adli_doc_parse("t.yaml", text, strlen(text), ADLI_DOC_YAML, doc);
}

static adl_status parse_json(const char *text, adli_doc *doc)
{
    return adli_doc_parse("t.json", text, strlen(text), ADLI_DOC_JSON, doc);
}

/* The YAML text means that JSON. */
static void means(const char *yaml, const char *json)
{
    adli_doc doc;
    json_t *wanted = json_loads(json, JSON_DECODE_ANY, NULL);
    REQUIRE(wanted);
    adl_status status = parse(yaml, &doc);
    if (status != ADL_OK)
        ADLT_FAIL("%s: %s", yaml, adl_error());
    else if (!json_equal(doc.root, wanted)) {
        char *got = json_dumps(doc.root, JSON_ENCODE_ANY);
        ADLT_FAIL("%s: got %s, wanted %s", yaml, got, json);
        free(got);
    }
    json_decref(wanted);
    adli_doc_fini(&doc);
}

static void refused(const char *yaml, const char *why)
{
    adli_doc doc;
    adl_status status = parse(yaml, &doc);
    if (status != ADL_EINVAL || !strstr(adl_error(), why))
        ADLT_FAIL("%s: status %d, \"%s\", wanted \"%s\"", yaml, status, adl_error(), why);
    CHECK(!doc.root && !doc.name);
    CHECK(!strchr(adl_error(), '\n'));
    adli_doc_fini(&doc);
}

TEST(scalars_are_those_of_the_core_schema)
{
    means("[true, True, TRUE, false, False, FALSE]", "[true,true,true,false,false,false]");
    means("[null, Null, NULL, ~, ]", "[null,null,null,null]");
    means("[no, yes, on, off, y, n, NO, tRUE, nul]",
          "[\"no\",\"yes\",\"on\",\"off\",\"y\",\"n\",\"NO\",\"tRUE\",\"nul\"]");
    means("[0, 7, -7, +7, 007, 0x1F, 0o17, 9223372036854775807, -9223372036854775808]",
          "[0,7,-7,7,7,31,15,9223372036854775807,-9223372036854775808]");
    means("[1.5, .5, 5., -1.5e3, 1e3, 1E-2, +0.25]", "[1.5,0.5,5.0,-1500.0,1000.0,0.01,0.25]");
    means("[1e, ., -, +, e3, 0x, 0o8, 1_000, 12:30:45, 1.2.3, 0xg, -0x1]",
          "[\"1e\",\".\",\"-\",\"+\",\"e3\",\"0x\",\"0o8\",\"1_000\",\"12:30:45\",\"1.2.3\","
          "\"0xg\",\"-0x1\"]");
    means("['1', \"true\", 'null', \"\"]", "[\"1\",\"true\",\"null\",\"\"]");
    means("a: |\n  12\nb: >-\n  true\n", "{\"a\":\"12\\n\",\"b\":\"true\"}");
    means("[!!str 12, !!int 12, !!float 12, !!bool true, !!null ~, ! 12, !!int '7']",
          "[\"12\",12,12.0,true,null,\"12\",7]");
    means("!!map {a: !!seq [1]}", "{\"a\":[1]}");
    means("1: a\ntrue: b\n? c\n: d\n", "{\"1\":\"a\",\"true\":\"b\",\"c\":\"d\"}");
    means("just text", "\"just text\"");
    means("\xef\xbb\xbf"
          "a: \xc3\xa4\n",
          "{\"a\":\"\xc3\xa4\"}");
    means("---\na: 1\n...\n", "{\"a\":1}");
    means("\"<<\": 1\n\"\": 2", "{\"<<\":1,\"\":2}");
}

TEST(aliases_are_expanded_as_copies)
{
    means("a: &x {b: [1, 2]}\nc: *x\nd: &x 5\ne: *x\n",
          "{\"a\":{\"b\":[1,2]},\"c\":{\"b\":[1,2]},\"d\":5,\"e\":5}");
    adli_doc doc;
    REQUIRE_OK(parse("a: &x {b: 1}\nc: *x\n", &doc));
    json_object_set_new(json_object_get(doc.root, "a"), "b", json_integer(2));
    CHECK_INT(json_integer_value(json_object_get(json_object_get(doc.root, "c"), "b")), 1);
    adli_doc_fini(&doc);
}

TEST(what_is_refused_is_named_with_its_line)
{
    refused("a: 1\nb: 2\na: 3\n", "t.yaml:3: key \"a\" appears twice");
    refused("a: 1\n'a': 3\n", "t.yaml:2: key \"a\" appears twice");
    refused("a: 1\n---\nb: 1\n", "t.yaml:2: a second document");
    refused("", "t.yaml:1: the document is empty");
    refused("# only a comment\n", "the document is empty");
    refused("x: &a 1\nb:\n  <<: *a\n", "t.yaml:3: merge keys (<<)");
    refused("a: !!binary aGk=\n", "t.yaml:1: tag tag:yaml.org,2002:binary");
    refused("a: 1\nb: !python/object:os.system {}\n", "t.yaml:2: tag !python/object:os.system");
    refused("a: !!map [1]\n", "t.yaml:1: tag tag:yaml.org,2002:map");
    refused("a: !!int x\n", "\"x\" does not agree with its tag !!int");
    refused("a: !!bool 'yes'\n", "does not agree with its tag !!bool");
    refused("\n\na: *b\n", "t.yaml:3: alias *b: there is no anchor &b above");
    refused("a: &a\n  b: *a\n", "t.yaml:2: alias *a: it would contain itself");
    refused("&a [1, [2, *a]]", "alias *a: it would contain itself");
    refused("a: &a {b: &b {c: *a, d: *b}}", "it would contain itself");
    refused("a: 1\nb: 9223372036854775808\n", "t.yaml:2: 9223372036854775808: the number is out");
    refused("[-9223372036854775809]", "out of range");
    refused("[0xffffffffffffffffff]", "out of range");
    refused("[1e999]", "out of range");
    refused("[.inf]", "out of range");
    refused("[-.INF]", "out of range");
    refused("[.nan]", "out of range");
    refused("a: \"x\\0y\"\n", "t.yaml:1: a string with a NUL byte");
    refused("\"x\\0y\": 1\n", "a string with a NUL byte");
    refused("? [1, 2]\n: 3\n", "t.yaml:1: a key must be");
    refused("a: &x 1\n*x : 2\n", "a key must be");
    refused("&x a: 1\n", "a key cannot have an anchor");
    refused("?\n: 1\n", "an empty key");
    refused("a: [1, 2\nb: 3\n", "t.yaml:2: not YAML");
    refused("a:\n\tb: 1\n", "t.yaml:2: not YAML");
    refused("a: 'x\n", "not YAML");
    refused("a: 1\n  b: 2\n", "t.yaml:2: not YAML");
    refused("a: 1\nb: \xff\xfe\n", "t.yaml:2: not YAML text: ");
    refused("a: \xed\xa0\x80\n", "not YAML text");
    refused("a: \xc0\xaf\n", "not YAML text");
    refused("a: \x01\n", "not YAML text: control characters");
    refused("\xff\xfe"
            "a\0",
            "not YAML text");
    refused("a: 1\n\"b\nc\": 1\n", "t.yaml");
}

/* Ten lines that stand for 10^9 strings; and a few that stand for gigabytes. */
TEST(bombs_are_refused)
{
    char text[4096];
    size_t used = (size_t)snprintf(text, sizeof text, "a0: &a0 [lol, lol]\n");
    for (int i = 1; i <= 9; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s*a%d", j ? "," : "", i - 1);
        used += (size_t)snprintf(text + used, sizeof text - used, "]\n");
    }
    refused(text, "with its aliases expanded the document has more than");

    size_t megabyte = 1 << 20;
    char *big = malloc(megabyte + 4096);
    REQUIRE(big);
    strcpy(big, "a: &a ");
    memset(big + 6, 'x', megabyte);
    strcpy(big + 6 + megabyte, "\nb: [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n");
    refused(big, "t.yaml:2: with its aliases expanded");
    free(big);
}

TEST(size_depth_and_number_are_limited)
{
    size_t length = 17 << 20;
    char *text = malloc(length + 1);
    REQUIRE(text);
    memset(text, ' ', length);
    memcpy(text, "a: 1", 4);
    text[length] = '\0';
    refused(text, "t.yaml:1: 17825792 bytes long");
    memset(text, '[', 100);
    text[100] = '\0';
    refused(text, "nested more than 64 deep");
    memset(text, '[', 100000);
    text[100000] = '\0';
    refused(text, "nested more than 64 deep");
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    text[128] = '\0';
    adli_doc doc;
    CHECK_OK(parse(text, &doc));
    adli_doc_fini(&doc);
    CHECK_OK(parse_json(text, &doc));
    adli_doc_fini(&doc);
    for (int i = 0; i < 200001; i++)
        memcpy(text + 2 * i, "1,", 2);
    memmove(text + 1, text, 400002);
    text[0] = '[';
    memcpy(text + 400002, "]", 2);
    refused(text, "more than 200000 values");
    CHECK_FAILS(parse_json(text, &doc), ADL_EINVAL, "more than 200000 values");
    free(text);

    char *anchors = malloc(64 * 1100);
    REQUIRE(anchors);
    size_t used = 0;
    for (int i = 0; i < 1001; i++)
        used += (size_t)sprintf(anchors + used, "k%d: &a%d 1\n", i, i);
    refused(anchors, "t.yaml:1001: more than 1000 anchors");
    free(anchors);
}

/* The same places whether YAML or JSON. */
static void check_places(const adli_doc *doc)
{
    adli_field root = adli_doc_root(doc), spec = adli_field_get(&root, "spec");
    CHECK_INT(spec.mark->line, 3);
    adli_field list = adli_field_get(&spec, "list");
    CHECK_INT(list.mark->line, 4);
    adli_field second = adli_field_at(&list, 1), deep = adli_field_get(&second, "deep.er");
    CHECK_INT(deep.mark->line, 6);
    char path[64];
    CHECK_STR(adli_field_path(&deep, path, sizeof path), "spec.list[1][\"deep.er\"]");
    CHECK_STR(adli_field_path(&root, path, sizeof path), "the document");
    adli_field flag = adli_field_get(&spec, "flag"), none = adli_field_get(&spec, "none");
    adli_field absent = adli_field_get(&none, "absent");
    CHECK_INT(flag.mark->line, 8);
    CHECK(!adli_field_given(&none) && !adli_field_given(&absent));
    CHECK_INT(none.mark->line, 9);
    CHECK(adli_field_fail(&absent, "x%d", 1) == ADL_EINVAL);
    CHECK(strstr(adl_error(), ":9: spec.none.absent: x1"));
}

TEST(every_value_has_its_line)
{
    adli_doc doc;
    REQUIRE_OK(parse("# a comment\na: 1\nspec:\n  list:\n  - 1\n  - deep.er: [1,\n      2]\n"
                     "  flag: true\n  none: ~\n  more: true\n",
                     &doc));
    check_places(&doc);
    adli_doc_fini(&doc);
    REQUIRE_OK(
        parse_json("{\n\"a\": 1.5e3,\n\"spec\": {\n \"list\":\n [\n 1, {\"deep.er\": [1,\n 2]}],\n"
                   "\"flag\": true,\n\"none\":null, \"e\\\"s\\\\\": {}, \"l\": [ ]\n}}",
                   &doc));
    check_places(&doc);
    adli_doc_fini(&doc);
}

TEST(json_is_checked_the_same_way)
{
    adli_doc doc;
    CHECK_FAILS(parse_json("{\"a\": 1,\n\"a\": 2}", &doc), ADL_EINVAL, "t.json:2: not JSON");
    CHECK_FAILS(parse_json("{\"a\": 1,\n}", &doc), ADL_EINVAL, "t.json:2: not JSON");
    CHECK_FAILS(parse_json("", &doc), ADL_EINVAL, "t.json:1: not JSON");
    CHECK_FAILS(parse_json("{\"a\": \"x\\u0000\"}", &doc), ADL_EINVAL, "t.json:1: not JSON");
    CHECK_FAILS(parse_json("{} {}", &doc), ADL_EINVAL, "t.json:1: not JSON");
    CHECK_FAILS(parse_json("[\"\xff\"]", &doc), ADL_EINVAL, "t.json:1: not JSON");
    REQUIRE_OK(parse_json("[\"\\ud83d\\ude00\"]", &doc));
    CHECK_STR(json_string_value(json_array_get(doc.root, 0)), "\xf0\x9f\x98\x80");
    adli_doc_fini(&doc);
    char deep[201];
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    deep[200] = '\0';
    CHECK_FAILS(parse_json(deep, &doc), ADL_EINVAL, "nested more than 64 deep");
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    deep[130] = '\0';
    CHECK_FAILS(parse_json(deep, &doc), ADL_EINVAL, "nested more than 64 deep");
    CHECK_FAILS(parse(deep, &doc), ADL_EINVAL, "nested more than 64 deep");
}

TEST(messages_are_one_line_and_suggest)
{
    static const char *const known[] = {"minReplicas", "maxReplicas", "template"};
    char out[16];
    CHECK_STR(adli_nearest("minreplica", known, 3), "minReplicas");
    CHECK_STR(adli_nearest("tmplate", known, 3), "template");
    CHECK(!adli_nearest("colour", known, 3));
    CHECK(!adli_nearest("", known, 3));
    CHECK_STR(adli_show("a\nb\x7f\xff\xc2\x85z", out, sizeof out), "a?b????z");
    CHECK_STR(adli_show("0123456789abcdefg", out, sizeof out), "0123456789ab...");
    CHECK_STR(adli_show("0123456789a\xf0\x9f\x98\x80", out, sizeof out), "0123456789a...");
    adli_doc doc;
    REQUIRE_OK(parse("a: 1\n\"b\\nc\\x1b\": 2\n", &doc));
    adli_field root = adli_doc_root(&doc);
    CHECK_FAILS(adli_field_known(&root, known, 3), ADL_EINVAL, "t.yaml:1: a: unknown field");
    adli_field odd = adli_field_at(&root, 1);
    CHECK(adli_field_fail(&odd, "odd") == ADL_EINVAL && !strchr(adl_error(), '\n'));
    adli_doc_fini(&doc);
}

/* ---- writing ---- */

static void written(const char *json, const char *yaml)
{
    adli_buf out;
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    REQUIRE(value);
    adli_buf_init(&out, 4096);
    CHECK_OK(adli_yaml_write(value, &out));
    CHECK_STR(out.data, yaml);
    means(out.data, json);
    adli_buf_fini(&out);
    json_decref(value);
}

TEST(yaml_is_written_for_people)
{
    written("{\"a\":{\"b\":[1,{\"c\":true,\"d\":[\"x\",\"y z\"]},[1,[2]],{},[]]},\"e\":null}",
            "a:\n  b:\n  - 1\n  - c: true\n    d:\n    - x\n    - y z\n  - - 1\n    - - 2\n"
            "  - {}\n  - []\ne: null\n");
    written("[\"no\",\"1\",\"a: b\",\"a #b\",\" a\",\"\",\"null\",\"-\",\"x:\",\"it's\",\"1.5\"]",
            "- \"no\"\n- \"1\"\n- \"a: b\"\n- \"a #b\"\n- \" a\"\n- \"\"\n- \"null\"\n- \"-\"\n"
            "- \"x:\"\n- \"it's\"\n- \"1.5\"\n");
    written("{\"log\":\"one\\n  two\\n\\nthree\",\"b\":\"x\\n\",\"c\":\"\\nx\",\"d\":\"x\\n\\n\"}",
            "log: |-\n  one\n    two\n\n  three\nb: |\n  x\nc: \"\\nx\"\nd: \"x\\n\\n\"\n");
    written("[1.0,1e300,-0.5]", "- 1.0\n- 1e+300\n- -0.5\n");
    written("\"text\"", "text\n");
    written("{}", "{}\n");
}

static json_t *random_value(adli_rng *rng, int depth)
{
    static const char *const pieces[] = {"a",
                                         "b",
                                         " ",
                                         "\n",
                                         ":",
                                         "#",
                                         "-",
                                         "\t",
                                         "\"",
                                         "'",
                                         "\\",
                                         "{",
                                         "[",
                                         "\xc3\xa4",
                                         "\xc2\x85",
                                         "\xe2\x80\xa8",
                                         "\xef\xbb\xbf",
                                         "\xf0\x9f\x98\x80",
                                         "\x7f",
                                         "\x01",
                                         "0",
                                         "1",
                                         ".",
                                         "e",
                                         "~",
                                         "true",
                                         "no",
                                         "null",
                                         "|",
                                         ">",
                                         "&",
                                         "*",
                                         "!",
                                         "%",
                                         "@",
                                         "`",
                                         "?",
                                         ",",
                                         "---",
                                         "...",
                                         "\r"};
    int kind = (int)adli_rng_below(rng, depth > 5 ? 6 : 8);
    char text[4096] = "";
    json_t *value;
    switch (kind) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(adli_rng_below(rng, 2));
    case 2:
        return json_integer((json_int_t)adli_rng_u64(rng));
    case 3:
        return json_real(ldexp(adli_rng_unit(rng) - 0.5, adli_rng_range(rng, -60, 60)));
    case 4:
    case 5:
        for (int i = adli_rng_range(rng, 0, 12); i > 0; i--)
            strcat(text, pieces[adli_rng_below(rng, ADLI_COUNT(pieces))]);
        return json_string(text);
    case 6:
        value = json_array();
        for (int i = adli_rng_range(rng, 0, 5); i > 0; i--)
            json_array_append_new(value, random_value(rng, depth + 1));
        return value;
    default:
        value = json_object();
        for (int i = adli_rng_range(rng, 0, 5); i > 0; i--) {
            text[0] = '\0';
            bool longer = adli_rng_below(rng, 50) == 0;
            for (int j = adli_rng_range(rng, 0, longer ? 900 : 6); j > 0; j--)
                strcat(text, pieces[adli_rng_below(rng, ADLI_COUNT(pieces))]);
            json_object_set_new(value, text, random_value(rng, depth + 1));
        }
        return value;
    }
}

TEST(what_is_written_reads_back_equal)
{
    const char *count_text = getenv("ADL_YAML_ROUNDS");
    int rounds = count_text ? atoi(count_text) : 20000, collections = 0;
    adli_rng rng;
    adli_rng_init(&rng, 4);
    for (int i = 0; i < rounds && !adlt_failed; i++) {
        json_t *value = random_value(&rng, 0);
        adli_doc doc = {0};
        adli_buf out;
        adli_buf_init(&out, 1 << 22);
        CHECK_OK(adli_yaml_write(value, &out));
        adl_status status = parse(out.data, &doc);
        if (status != ADL_OK || !json_equal(doc.root, value)) {
            char *wanted = json_dumps(value, JSON_ENCODE_ANY);
            ADLT_FAIL("round %d: %s: %s does not read back from: %s", i, adl_error(), wanted,
                      out.data);
            free(wanted);
        }
        collections += json_is_object(value) || json_is_array(value);
        adli_doc_fini(&doc);
        adli_buf_fini(&out);
        json_decref(value);
    }
    printf("info - %d values written and read, %d of them collections\n", rounds, collections);
}

/* ---- memory ---- */

static void *counted_malloc(size_t size)
{
    return adli_calloc(size, 1);
}

TEST(any_allocation_may_fail)
{
    static const char yaml[] =
        "a: &x {b: [1, 2.5, text]}\nc: *x\n? d\n: |\n  lines\n  more\ne: [~]\n";
    static const char json[] = "{\"a\": {\"b\": [1, 2.5, \"text\"]}, \"c\": [null]}";
    json_set_alloc_funcs(counted_malloc, free);
    int failures = 0;
    for (int format = 0; format < 2; format++) {
        const char *text = format == ADLI_DOC_YAML ? yaml : json;
        for (int64_t nth = 1;; nth++) {
            adli_doc doc;
            adli_mem_fail_at(nth);
            adl_status status = adli_doc_parse("t", text, strlen(text), format, &doc);
            adli_mem_fail_at(0);
            adli_doc_fini(&doc);
            if (status == ADL_OK)
                break;
            failures++;
            /* jansson reports some of its own failures as errors of the text */
            CHECK(status == ADL_ENOMEM || (format == ADLI_DOC_JSON && status == ADL_EINVAL));
            REQUIRE(nth < 1000);
        }
    }
    json_set_alloc_funcs(malloc, free);
    printf("info - %d allocations failed in turn\n", failures);
}
