/* What an administrator adds to the pods of all jobs, and the JSON patches that it is written in. */
#include "harness.h"

#include "base/json.h"
#include "base/json_patch.h"
#include "config/config.h"
#include "daemon/operator_impl.h"

#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text)
{
    json_t *root = NULL;
    if (adli_json_parse(text, strlen(text), &root) != ADL_OK)
        abort();
    return root;
}

static bool becomes(const char *document, const char *patch, const char *wanted)
{
    json_t *root = parse(document), *change = parse(patch), *other = parse(wanted);
    bool same = adli_json_patch(root, change) == ADL_OK && json_equal(root, other);
    json_decref(root);
    json_decref(change);
    json_decref(other);
    return same;
}

static void check_refused(const char *document, const char *patch, const char *why)
{
    json_t *root = parse(document), *change = parse(patch);
    CHECK_INT(adli_json_patch(root, change), ADL_EINVAL);
    CHECK(strstr(adl_error(), why));
    json_decref(root);
    json_decref(change);
}

TEST(patches_change_what_they_name)
{
    CHECK(becomes("{}", "[]", "{}"));
    CHECK(becomes("{\"a\":1}", "[{\"op\":\"add\",\"path\":\"/b\",\"value\":{\"c\":[]}}]",
                  "{\"a\":1,\"b\":{\"c\":[]}}"));
    CHECK(becomes("{\"l\":[1,2]}",
                  "[{\"op\":\"add\",\"path\":\"/l/-\",\"value\":3},"
                  "{\"op\":\"add\",\"path\":\"/l/0\",\"value\":0},"
                  "{\"op\":\"remove\",\"path\":\"/l/1\"}]",
                  "{\"l\":[0,2,3]}"));
    CHECK(becomes("{\"a/b\":{\"~\":1}}",
                  "[{\"op\":\"test\",\"path\":\"/a~1b/~0\",\"value\":1},"
                  "{\"op\":\"replace\",\"path\":\"/a~1b/~0\",\"value\":2}]",
                  "{\"a/b\":{\"~\":2}}"));
    CHECK(becomes("{\"a\":[{\"b\":1}]}", "[{\"op\":\"remove\",\"path\":\"/a/0/b\"}]",
                  "{\"a\":[{}]}"));
}

TEST(patches_that_cannot_be_are_told)
{
    check_refused("{}", "{}", "expected a list");
    check_refused("{}", "[{\"op\":\"move\",\"path\":\"/a\"}]", "op \"move\"");
    check_refused("{}", "[{\"op\":\"add\",\"path\":\"a\",\"value\":1}]", "path \"a\"");
    check_refused("{}", "[{\"op\":\"add\",\"path\":\"/a\"}]", "value is missing");
    check_refused("{}", "[{\"op\":\"remove\",\"path\":\"/a\"}]", "remove /a: is no such place");
    check_refused("{}", "[{\"op\":\"replace\",\"path\":\"/a\",\"value\":1}]", "no such place");
    check_refused("{}", "[{\"op\":\"add\",\"path\":\"/a/b\",\"value\":1}]", "no such place");
    check_refused("{\"a\":1}", "[{\"op\":\"test\",\"path\":\"/a\",\"value\":2}]", "something else");
    static const char *const places[] = {"/l/2", "/l/01", "/l/x", "/l/-1", "/l/"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char patch[100];
        snprintf(patch, sizeof patch, "[{\"op\":\"add\",\"path\":\"%s\",\"value\":1}]", places[i]);
        check_refused("{\"l\":[1]}", patch, "no such place");
    }
}

/* A template, dressed as these fields of the configuration say. */
static json_t *dress(const char *resources, const char *pod, const char *container,
                     const char *text, adl_status wanted)
{
    adli_config config = {0};
    adli_outfit outfit = {0};
    config.kubernetes.resources = (char *)(uintptr_t)resources;
    config.kubernetes.pod_patch = (char *)(uintptr_t)pod;
    config.kubernetes.container_patch = (char *)(uintptr_t)container;
    json_t *template = parse(text);
    adl_status status = adli_outfit_init(&outfit, &config);
    if (status == ADL_OK)
        status = adli_outfit_dress(&outfit, template);
    CHECK_INT(status, wanted);
    adli_outfit_fini(&outfit);
    return template;
}

TEST(a_job_that_names_no_resources_gets_them)
{
    static const char usual[] = "{\"requests\":{\"cpu\":2}}";
    json_t *bare = dress(usual, "", "", "{\"spec\":{\"containers\":[{},{}]}}", ADL_OK),
           *own = dress(usual, "", "",
                        "{\"spec\":{\"containers\":[{\"resources\":{\"limits\":{\"x\":1}}}]}}",
                        ADL_OK),
           *wanted =
               parse("{\"spec\":{\"containers\":[{\"resources\":{\"requests\":{\"cpu\":2}}},{}]}}"),
           *same = parse("{\"spec\":{\"containers\":[{\"resources\":{\"limits\":{\"x\":1}}}]}}");
    CHECK(json_equal(bare, wanted));
    CHECK(json_equal(own, same));
    json_decref(bare);
    json_decref(own);
    json_decref(wanted);
    json_decref(same);
}

TEST(patches_reach_the_template_and_each_container)
{
    json_t *dressed = dress(
               "", "[{\"op\":\"add\",\"path\":\"/metadata\",\"value\":{\"labels\":{\"t\":\"a\"}}}]",
               "[{\"op\":\"add\",\"path\":\"/imagePullPolicy\",\"value\":\"Always\"}]",
               "{\"spec\":{\"containers\":[{\"name\":\"m\"},{\"name\":\"n\"}]}}", ADL_OK),
           *wanted = parse("{\"metadata\":{\"labels\":{\"t\":\"a\"}},\"spec\":{\"containers\":["
                           "{\"name\":\"m\",\"imagePullPolicy\":\"Always\"},"
                           "{\"name\":\"n\",\"imagePullPolicy\":\"Always\"}]}}");
    CHECK(json_equal(dressed, wanted));
    json_decref(dressed);
    json_decref(wanted);
}

TEST(what_is_wrong_is_named)
{
    static const char template[] = "{\"spec\":{\"containers\":[{}]}}";
    static const char removes[] = "[{\"op\":\"remove\",\"path\":\"/a\"}]";
    json_decref(dress("[]", "", "", template, ADL_EINVAL));
    CHECK(strstr(adl_error(), "kubernetes.defaultResources: expected an object"));
    json_decref(dress("", "{", "", template, ADL_EINVAL));
    CHECK(strstr(adl_error(), "kubernetes.podPatch: "));
    json_decref(dress("", removes, "", template, ADL_EINVAL));
    CHECK(strstr(adl_error(), "kubernetes.podPatch: operation 0: remove /a"));
    json_decref(dress("", "", removes, template, ADL_EINVAL));
    CHECK(strstr(adl_error(), "kubernetes.containerPatch: operation 0: remove /a"));
    json_decref(dress("", "", "", "{}", ADL_OK)); /* what it lacks others tell */
}
