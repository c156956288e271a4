/* Metrics of jobs in the scheduler: kept and bounded, taken back when replicas go on from an earlier step, and the
 * same after a restart of the daemon. */
#include "core_world.h"

#include "measures/measures.h"

#include <math.h>

static adl_status tell(world *w, const char *body)
{
    return adli_core_reports(w->core, "default", "train", body, strlen(body));
}

/* A document with values of "loss" at steps first .. last, each its step. */
static adl_status tell_steps(world *w, int restart, const char *last_known, int first, int last)
{
    adli_buf body;
    adli_buf_init(&body, 4 << 20);
    adli_buf_printf(&body, "{\"restart\":%d,%s\"points\":[", restart, last_known);
    for (int i = first; i <= last; i++)
        adli_buf_printf(&body, "%s{\"name\":\"loss\",\"step\":%d,\"time\":%d,\"value\":%d}",
                        i > first ? "," : "", i, i, i);
    adli_buf_puts(&body, "]}");
    adl_status status = tell(w, body.data);
    adli_buf_fini(&body);
    return status;
}

/* The steps of a curve as text: "1 2 3"; "" when there is none. */
static const char *steps_of(world *w, const char *name, int points)
{
    static char text[1 << 16];
    json_t *root, *curve;
    size_t i;
    text[0] = '\0';
    adli_buf_clear(&w->out);
    if (adli_core_curves(w->core, "default", "train", points, &w->out) != ADL_OK ||
        adli_json_parse(w->out.data, w->out.length, &root) != ADL_OK)
        return adl_error();
    json_array_foreach(json_object_get(root, "items"), i, curve)
    {
        size_t k;
        json_t *step;
        if (strcmp(json_string_value(json_object_get(curve, "name")), name) != 0)
            continue;
        json_array_foreach(json_object_get(curve, "steps"), k, step)
        {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s%d", k ? " " : "",
                     (int)json_integer_value(step));
        }
    }
    json_decref(root);
    return text;
}

static double newest(world *w, const char *name, const char *key)
{
    const json_t *metric = json_object_get(field(w, "train", "metrics"), name);
    return metric ? json_number_value(json_object_get(metric, key)) : NAN;
}

static bool exports(world *w, const char *line)
{
    adli_buf_clear(&w->out);
    return adli_core_metrics(w->core, &w->out) == ADL_OK && strstr(w->out.data, line);
}

static void begin(world *w)
{
    REQUIRE_OK(open_world(w, 1, 4));
    REQUIRE_OK(submit(w, "train", ""));
    step(w, 0);
}

TEST(values_are_kept_shown_and_exported)
{
    world w;
    begin(&w);
    CHECK_INT(json_object_size(field(&w, "train", "metrics")), 0);
    REQUIRE_OK(tell(&w, "{\"restart\":0,\"points\":["
                        "{\"name\":\"valid/loss\",\"step\":5,\"time\":1,\"value\":0.5},"
                        "{\"name\":\"a \\\"b\\\"\",\"step\":6,\"time\":1e300,\"value\":null}]}"));
    REQUIRE_OK(tell_steps(&w, 0, "", 1, 3));
    CHECK_NEAR(newest(&w, "loss", "value"), 3, 0);
    CHECK_NEAR(newest(&w, "valid/loss", "step"), 5, 0);
    CHECK_NEAR(newest(&w, "valid/loss", "value"), 0.5, 0);
    CHECK(newest(&w, "a \"b\"", "time") < 1e100); /* nobody's clock is ahead of ours */
    CHECK(exports(&w, "adaptdl_job_metric{job=\"default/train\",metric=\"valid/loss\"} 0.5\n"));
    CHECK(exports(&w, "adaptdl_job_metric{job=\"default/train\",metric=\"a \\\"b\\\"\"} NaN\n"));
    CHECK(exports(&w, "adaptdl_job_metric_step{job=\"default/train\",metric=\"loss\"} 3\n"));
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3");
    CHECK_FAILS(tell(&w, "{}"), ADL_EINVAL, "restart");
    CHECK_FAILS(adli_core_reports(w.core, "default", "none", "{\"restart\":0,\"points\":[]}", 25),
                ADL_ENOENT, "default/none");
    adli_buf_clear(&w.out);
    CHECK_FAILS(adli_core_curves(w.core, "default", "none", 10, &w.out), ADL_ENOENT,
                "default/none");
    REQUIRE_OK(reopen(&w)); /* another daemon knows them */
    CHECK_NEAR(newest(&w, "loss", "value"), 3, 0);
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3");
    close_world(&w);
}

TEST(going_back_takes_back)
{
    world w;
    begin(&w);
    REQUIRE_OK(tell_steps(&w, 0, "", 1, 6));
    REQUIRE_OK(tell_steps(&w, 0, "", 4, 5)); /* the same replicas, or a document sent twice */
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5");
    REQUIRE_OK(tell_steps(&w, 0, "", 7, 7));
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5 7");
    close_world(&w);
}

/* Killed after step 6, the checkpoint knows steps up to 4 of loss and none of late. */
TEST(a_restart_rewinds_to_the_checkpoint)
{
    world w;
    begin(&w);
    REQUIRE_OK(tell_steps(&w, 0, "", 1, 6));
    REQUIRE_OK(tell(&w, "{\"restart\":0,\"points\":[{\"name\":\"late\",\"step\":6,\"time\":1,"
                        "\"value\":1}]}"));
    REQUIRE_OK(tell(&w, "{\"restart\":1,\"whole\":true,\"last\":{\"loss\":4},\"points\":[]}"));
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4");
    CHECK_STR(steps_of(&w, "late", 1000), "");
    CHECK_NEAR(newest(&w, "loss", "value"), 4, 0);
    CHECK(isnan(newest(&w, "late", "value")));
    REQUIRE_OK(tell_steps(&w, 1, "\"whole\":true,\"last\":{\"loss\":4},", 5, 8)); /* sent again */
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5 6 7 8");
    REQUIRE_OK(tell_steps(&w, 0, "", 2, 2)); /* the dead one's, late */
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5 6 7 8");
    REQUIRE_OK(reopen(&w)); /* another daemon knows who told last */
    REQUIRE_OK(tell_steps(&w, 0, "", 2, 2));
    REQUIRE_OK(tell_steps(&w, 1, "\"whole\":true,\"last\":{\"loss\":4},", 9, 9));
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5 6 7 8 9");
    /* one that does not know all names takes back only what it names */
    REQUIRE_OK(tell(&w, "{\"restart\":2,\"whole\":false,\"last\":{\"x\":4},\"points\":[]}"));
    CHECK_STR(steps_of(&w, "loss", 1000), "1 2 3 4 5 6 7 8 9");
    close_world(&w);
}

TEST(curves_are_bounded)
{
    world w;
    begin(&w);
    for (int i = 0; i < 5; i++)
        REQUIRE_OK(tell_steps(&w, 0, "", 700 * i, 700 * i + 699));
    const char *steps = steps_of(&w, "loss", 10000);
    int count = 1, before = -1;
    for (const char *p = steps; *p; p++)
        count += *p == ' ';
    CHECK(count > 400 && count <= 1000);
    CHECK(strncmp(steps, "0 ", 2) == 0 && strcmp(strrchr(steps, ' '), " 3499") == 0);
    for (char *p = (char *)steps; *p;) {
        int now = (int)strtol(p, &p, 10);
        CHECK(now > before);
        before = now;
    }
    steps = steps_of(&w, "loss", 10);
    count = 1;
    for (const char *p = steps; *p; p++)
        count += *p == ' ';
    CHECK(count <= 10 && count >= 5 && strcmp(strrchr(steps, ' '), " 3499") == 0);
    for (int i = 0; i <= ADLI_MEASURES_NAMES; i++) {
        char body[200];
        snprintf(
            body, sizeof body,
            "{\"restart\":0,\"points\":[{\"name\":\"m%d\",\"step\":1,\"time\":1,\"value\":1}]}", i);
        if (i + 1 < ADLI_MEASURES_NAMES)
            CHECK_OK(tell(&w, body));
        else
            CHECK_FAILS(tell(&w, body), ADL_EINVAL, "at most 64 metrics");
    }
    CHECK_INT(json_object_size(field(&w, "train", "metrics")), ADLI_MEASURES_NAMES);
    close_world(&w);
}
