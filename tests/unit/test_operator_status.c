/* The status of a job as the operator writes it: texts of any origin must not make the server refuse it. */
#include "daemon/operator_impl.h"
#include "harness.h"

#include "base/json.h"

#include <math.h>

static void check_message(const char *message, const char *wanted)
{
    adli_store_job row = {
        .uid = "u", .ns = "n", .name = "j", .created_s = 1, .reason = "", .message = message};
    adli_status_more more = {.batch_size = NAN, .goodput = NAN, .speedup = NAN};
    adli_buf out;
    json_t *root = NULL;
    adli_buf_init(&out, 1 << 20);
    adli_status_write(&row, &more, &out);
    REQUIRE_OK(adli_buf_check(&out));
    REQUIRE_OK(adli_json_parse(out.data, out.length, &root));
    CHECK_STR(json_string_value(json_object_get(json_object_get(root, "status"), "message")),
              wanted);
    json_decref(root);
    adli_buf_fini(&out);
}

TEST(any_message_becomes_one_that_the_server_takes)
{
    check_message("plain \"quoted\" \\ text", "plain \"quoted\" \\ text");
    check_message("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    check_message("cut \xe2\x82", "cut ??");            /* in the middle of a character */
    check_message("a\xff\x80z", "a??z");                /* never one */
    check_message("del\x7f nel\xc2\x85", "del? nel??"); /* not for YAML */
    check_message("bom\xef\xbb\xbf", "bom???");
    check_message("a\nb", "a\nb"); /* escaped */
}

/* A job that was changed in place goes on in its world under another operator. */
TEST(a_status_is_read_back_as_it_was_written)
{
    static const char world[] = "{\"generation\":3,\"members\":[{\"number\":0}]}";
    adli_store_job row = {.uid = "u",
                          .ns = "n",
                          .name = "j",
                          .created_s = 1.5,
                          .phase = 2,
                          .group = 3,
                          .failures = 1,
                          .wanted = "[\"a\",\"b\"]",
                          .placed = "[\"a\"]",
                          .reason = "",
                          .message = "",
                          .world = world,
                          .resized = "resized in place, paused 0.10 s",
                          .resize_cost_s = 0.25};
    adli_status_more more = {.batch_size = NAN, .goodput = NAN, .speedup = NAN};
    adli_store_job read;
    adli_buf out;
    json_t *root = NULL, *keep = NULL;
    adli_buf_init(&out, 1 << 20);
    adli_status_write(&row, &more, &out);
    REQUIRE_OK(adli_json_parse(out.data, out.length, &root));
    REQUIRE(adli_status_read(root, &read, &keep));
    CHECK_STR(read.world, world);
    CHECK_STR(read.resized, row.resized);
    CHECK_NEAR(read.resize_cost_s, 0.25, 0);
    CHECK_STR(read.wanted, row.wanted);
    CHECK_INT(read.group, 3);
    json_decref(keep);
    json_decref(root);
    adli_buf_clear(&out);
    row.world = row.resized = "";
    row.resize_cost_s = 0;
    adli_status_write(&row, &more, &out);
    REQUIRE_OK(adli_json_parse(out.data, out.length, &root));
    REQUIRE(adli_status_read(root, &read, &keep));
    CHECK_STR(read.world, "");
    CHECK_STR(read.resized, "");
    json_decref(keep);
    json_decref(root);
    adli_buf_fini(&out);
}
