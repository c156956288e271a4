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
