/* What replicas use: rates from times, what readers see of it, and what is never shown (other groups', dead ones'). */
#include "core_world.h"

#include <math.h>

static double cpu_s[FAKE_REPLICAS]; /* what the backend tells of each member */
static int looks, asked;

static void tell_use(void *self, adli_member_use *uses, int count)
{
    (void)self;
    looks++;
    asked = count;
    for (int i = 0; i < count; i++) {
        uses[i].cpu_s = cpu_s[uses[i].member];
        uses[i].memory_bytes = 1000 * (uses[i].member + 1);
        uses[i].gpus = uses[i].member == 1 ? 0.5 : NAN;
        uses[i].gpu_memory_bytes = uses[i].member == 1 ? 77 : -1;
    }
}

static const json_t *use_of(world *w, int place)
{
    return json_array_get(field(w, "train", "use"), (size_t)place);
}

static double number(const json_t *use, const char *key)
{
    const json_t *value = json_object_get(use, key);
    return value ? json_number_value(value) : NAN;
}

static bool exports(world *w, const char *line)
{
    adli_buf_clear(&w->out);
    return adli_core_metrics(w->core, &w->out) == ADL_OK && strstr(w->out.data, line);
}

static void begin(world *w, const char *more)
{
    memset(cpu_s, 0, sizeof cpu_s);
    looks = asked = 0;
    REQUIRE_OK(open_world(w, 1, 4));
    w->fake->ops.use = tell_use;
    w->fake->auto_ready = true;
    REQUIRE_OK(submit(w, "train", more));
    step(w, 0);
    step(w, 1);
}

TEST(use_is_shown_per_replica)
{
    world w;
    begin(&w, "  minReplicas: 2\n  maxReplicas: 2\n");
    CHECK_STR(text_of(&w, "train", "phase"), "Running");
    CHECK_INT(json_array_size(field(&w, "train", "use")), 0);
    cpu_s[0] = 10;
    cpu_s[1] = 20;
    adli_core_sample_use(w.core, 100);
    CHECK_INT(asked, 2);
    REQUIRE(json_array_size(field(&w, "train", "use")) == 2);
    CHECK(isnan(number(use_of(&w, 0), "cpus"))); /* nothing to compare with yet */
    CHECK_NEAR(number(use_of(&w, 0), "memoryBytes"), 1000, 0);
    cpu_s[0] = 15;
    cpu_s[1] = 19; /* a child that nobody waited for took its time with it */
    adli_core_sample_use(w.core, 110);
    CHECK_NEAR(number(use_of(&w, 0), "cpus"), 0.5, 1e-9);
    CHECK_NEAR(number(use_of(&w, 1), "cpus"), 0, 0);
    CHECK_NEAR(number(use_of(&w, 1), "rank"), 1, 0);
    CHECK_NEAR(number(use_of(&w, 1), "gpus"), 0.5, 0);
    CHECK_NEAR(number(use_of(&w, 1), "gpuMemoryBytes"), 77, 0);
    CHECK(!json_object_get(use_of(&w, 0), "gpus")); /* absent, not null */
    CHECK(!json_object_get(use_of(&w, 0), "gpuMemoryBytes"));
    CHECK(exports(&w, "adaptdl_replica_cpu_seconds_total{job=\"default/train\",rank=\"0\"} 15\n"));
    CHECK(exports(&w, "adaptdl_replica_memory_bytes{job=\"default/train\",rank=\"1\"} 2000\n"));
    CHECK(exports(&w, "adaptdl_replica_gpus_busy{job=\"default/train\",rank=\"1\"} 0.5\n"));
    CHECK(exports(&w, "adaptdl_replica_gpu_memory_bytes{job=\"default/train\",rank=\"1\"} 77\n"));
    CHECK(!exports(&w, "adaptdl_replica_gpus_busy{job=\"default/train\",rank=\"0\"}"));
    close_world(&w);
}

TEST(what_is_not_there_any_more_is_not_shown)
{
    world w;
    begin(&w, "  minReplicas: 2\n  maxReplicas: 2\n");
    adli_core_sample_use(w.core, 100);
    cpu_s[0] = NAN; /* it could not be found just now */
    adli_core_sample_use(w.core, 110);
    REQUIRE(json_array_size(field(&w, "train", "use")) == 1);
    CHECK_NEAR(number(use_of(&w, 0), "rank"), 1, 0);
    cpu_s[0] = 1;
    fake_group *group = fake_find(w.fake, uid_of(&w, "train"), 1);
    REQUIRE(group);
    group->views[0].state = ADLI_MEMBER_SUCCEEDED; /* done before the other */
    group->views[0].exit_code = 0;
    step(&w, 1);
    adli_core_sample_use(w.core, 120);
    CHECK_INT(asked, 1);
    REQUIRE(json_array_size(field(&w, "train", "use")) == 1);
    CHECK_NEAR(number(use_of(&w, 0), "rank"), 1, 0);
    group->views[1].state = ADLI_MEMBER_INTERRUPTED; /* the job starts again */
    group->views[1].cause = ADLI_CAUSE_LOST;
    for (int i = 0; i < 5; i++)
        step(&w, 10);
    CHECK_INT(int_of(&w, "train", "group"), 2);
    CHECK_INT(json_array_size(field(&w, "train", "use")), 0); /* not the old group's */
    adli_core_sample_use(w.core, 130);
    REQUIRE(json_array_size(field(&w, "train", "use")) == 2);
    CHECK(isnan(number(use_of(&w, 0), "cpus")));
    close_world(&w);
}

TEST(nothing_that_runs_nothing_to_look_at)
{
    world w;
    begin(&w, "");
    fake_group *group = fake_find(w.fake, uid_of(&w, "train"), 1);
    REQUIRE(group);
    group->views[0].state = ADLI_MEMBER_SUCCEEDED;
    group->views[0].exit_code = 0;
    step(&w, 1);
    adli_core_sample_use(w.core, 100);
    CHECK_INT(looks, 0);
    w.fake->ops.use = NULL; /* a backend that cannot tell */
    adli_core_sample_use(w.core, 110);
    close_world(&w);
}

TEST(the_thread_samples_until_it_is_stopped)
{
    world w;
    begin(&w, "");
    w.core->config.use_s = 0.001;
    REQUIRE_OK(adli_core_start(w.core));
    for (int i = 0; i < 60000 && json_array_size(field(&w, "train", "use")) == 0; i++)
        usleep(1000);
    CHECK_INT(json_array_size(field(&w, "train", "use")), 1);
    adli_core_stop(w.core);
    int before = looks;
    usleep(20000);
    CHECK_INT(looks, before);
    close_world(&w);
}
