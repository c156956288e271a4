/* Optimizers and schedules against 20-step trajectories that PyTorch computed (tolerance 1e-6 of the
 * largest value), and the interface that the data-parallel wrapper uses. */
#include "pytorch.h"

#include "adaptdl/nn.h"
#include "adaptdl/optim.h"
#include "base/mem.h"

#define TOLERANCE 1e-6
enum { A = 37, B = 5, STEPS = 20 };

typedef struct fixture {
    float a[A], b[B], da[A], db[B];
    adl_param params[2];
} fixture;

static void fixture_init(fixture *f)
{
    golden_fill(f->a, A, 1, 1);
    golden_fill(f->b, B, 2, 1);
    f->params[0] = (adl_param){"a", f->a, f->da, A};
    f->params[1] = (adl_param){"b", f->b, f->db, B};
}

static void set_grads(fixture *f, int step)
{
    float scale = 0.5f + 0.25f * (float)(step % 5);
    golden_fill(f->da, A, 100 + (uint32_t)step, scale);
    golden_fill(f->db, B, 200 + (uint32_t)step, scale);
}

/* Two groups, the second at a third of the rate. */
static adl_optim *make(fixture *f, const adl_optim_options *options)
{
    adl_optim *optim;
    adl_optim_options small = *options;
    small.lr /= 3;
    if (adl_optim_new(&f->params[0], 1, options, &optim) != ADL_OK ||
        adl_optim_add_group(optim, &f->params[1], 1, &small) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    return optim;
}

static void follow(const char *name, const adl_optim_options *options)
{
    fixture f;
    fixture_init(&f);
    adl_optim *optim = make(&f, options);
    float history[STEPS * (A + B)];
    char key[64];
    for (int step = 0; step < STEPS; step++) {
        set_grads(&f, step);
        CHECK_OK(adl_optim_step(optim, NULL));
        memcpy(history + step * (A + B), f.a, sizeof f.a);
        memcpy(history + step * (A + B) + A, f.b, sizeof f.b);
    }
    snprintf(key, sizeof key, "optim.%s", name);
    double error = golden_error(key, history, STEPS * (A + B));
    if (!(error <= TOLERANCE))
        ADLT_FAIL("%s differs by %g", key, error);
    const adl_optim_ops *ops = adl_optim_get_ops(optim);
    CHECK_INT(ops->steps(ops->self), STEPS);
    CHECK((ops->precondition != NULL) == (strncmp(name, "adam", 4) == 0));
    if (ops->precondition) {
        float out[A];
        snprintf(key, sizeof key, "optim.%s.precondition", name);
        ops->precondition(ops->self, 0, 0, 0, 10, out); /* in two pieces, as a caller may */
        ops->precondition(ops->self, 0, 0, 10, A - 10, out + 10);
        error = golden_error(key, out, A);
        if (!(error <= TOLERANCE))
            ADLT_FAIL("%s differs by %g", key, error);
    }
    adl_optim_free(optim);
}

TEST(sgd)
{
    adl_optim_options o = ADL_SGD_INIT(0.1);
    follow("sgd", &o);
    o.weight_decay = 0.01;
    follow("sgd_decay", &o);
    o.momentum = 0.9;
    o.dampening = 0.2;
    follow("sgd_momentum", &o);
    o = (adl_optim_options)ADL_SGD_INIT(0.1);
    o.momentum = 0.9;
    o.nesterov = true;
    follow("sgd_nesterov", &o);
}

TEST(adam)
{
    adl_optim_options o = ADL_ADAM_INIT;
    o.lr = 0.01;
    follow("adam", &o);
    o.beta1 = 0.8;
    o.beta2 = 0.99;
    o.weight_decay = 0.05;
    follow("adam_decay", &o);
}

TEST(adamw)
{
    adl_optim_options o = ADL_ADAMW_INIT;
    o.lr = 0.01;
    follow("adamw", &o);
    o.lr = 0.02;
    o.weight_decay = 0.2;
    follow("adamw_decay", &o);
}

TEST(adadelta)
{
    adl_optim_options o = ADL_ADADELTA_INIT;
    follow("adadelta", &o);
    o.lr = 0.7;
    o.rho = 0.8;
    o.eps = 1e-5;
    o.weight_decay = 0.02;
    follow("adadelta_decay", &o);
}

/* A factor for one step is the same as that rate for one step, and the rate is as before after it. */
TEST(learning_rate_factor)
{
    static const adl_optim_options kinds[] = {ADL_SGD_INIT(0.1), ADL_ADAM_INIT, ADL_ADAMW_INIT,
                                              ADL_ADADELTA_INIT};
    for (size_t k = 0; k < ADLI_COUNT(kinds); k++) {
        fixture f, g;
        fixture_init(&f);
        fixture_init(&g);
        adl_optim *with = make(&f, &kinds[k]), *without = make(&g, &kinds[k]);
        double factor[2] = {2, 0.5}, lr0 = adl_optim_lr(with, 0), lr1 = adl_optim_lr(with, 1);
        for (int step = 0; step < 3; step++) {
            set_grads(&f, step);
            set_grads(&g, step);
            CHECK_OK(adl_optim_step(with, step == 1 ? factor : NULL));
            adl_optim_set_lr(without, 0, step == 1 ? 2 * lr0 : lr0);
            adl_optim_set_lr(without, 1, step == 1 ? 0.5 * lr1 : lr1);
            CHECK_OK(adl_optim_step(without, NULL));
            CHECK(adl_optim_lr(with, 0) == lr0);
        }
        CHECK(memcmp(f.a, g.a, sizeof f.a) == 0 && memcmp(f.b, g.b, sizeof f.b) == 0);
        adl_optim_free(with);
        adl_optim_free(without);
    }
}

/* After a restart Adam continues as a fresh one would from the present parameters. */
TEST(restart)
{
    adl_optim_options o = ADL_ADAM_INIT;
    fixture f, g;
    fixture_init(&f);
    adl_optim *optim = make(&f, &o);
    const adl_optim_ops *ops = adl_optim_get_ops(optim);
    for (int step = 0; step < 7; step++) {
        set_grads(&f, step);
        CHECK_OK(ops->step(ops->self, NULL));
    }
    REQUIRE(ops->restart != NULL);
    ops->restart(ops->self);
    CHECK_INT(ops->steps(ops->self), 0);
    float ones[A];
    ops->precondition(ops->self, 0, 0, 0, A, ones);
    CHECK(ones[0] == 1 && ones[A - 1] == 1);
    fixture_init(&g);
    adl_optim *fresh = make(&g, &o);
    memcpy(g.a, f.a, sizeof g.a);
    memcpy(g.b, f.b, sizeof g.b);
    for (int step = 7; step < 12; step++) {
        set_grads(&f, step);
        set_grads(&g, step);
        CHECK_OK(adl_optim_step(optim, NULL));
        CHECK_OK(adl_optim_step(fresh, NULL));
    }
    CHECK(memcmp(f.a, g.a, sizeof f.a) == 0 && memcmp(f.b, g.b, sizeof f.b) == 0);
    adl_optim_free(optim);
    adl_optim_free(fresh);
}

TEST(zero_grad)
{
    adl_optim_options o = ADL_SGD_INIT(1);
    fixture f;
    fixture_init(&f);
    adl_optim *optim = make(&f, &o);
    set_grads(&f, 0);
    adl_optim_zero_grad(optim);
    for (int i = 0; i < A; i++)
        CHECK(f.da[i] == 0);
    CHECK(f.db[B - 1] == 0);
    adl_optim_free(optim);
}

/* Saved after 6 steps and loaded into a new optimizer, the next 6 steps are the same bytes; damaged or
 * foreign bytes are refused and leave the optimizer as it was. */
static void save_and_load(const adl_optim_options *options)
{
    fixture f, g;
    fixture_init(&f);
    adl_optim *optim = make(&f, options);
    for (int step = 0; step < 6; step++) {
        set_grads(&f, step);
        CHECK_OK(adl_optim_step(optim, NULL));
    }
    adl_optim_set_lr(optim, 1, 0.123);
    size_t size = adl_optim_save_size(optim);
    char *bytes = malloc(size + 1), *same = malloc(size);
    adl_optim_save(optim, bytes);
    fixture_init(&g);
    adl_optim *other = make(&g, options);
    memcpy(g.a, f.a, sizeof g.a);
    memcpy(g.b, f.b, sizeof g.b);
    adl_optim_save(other, same);
    for (size_t cut = 0; cut < size; cut += 7)
        CHECK(adl_optim_load(other, bytes, cut) == ADL_ECORRUPT);
    bytes[size] = 0;
    CHECK_FAILS(adl_optim_load(other, bytes, size + 1), ADL_ECORRUPT, "too many");
    for (size_t at = 0; at < 32; at++) { /* every byte of the header but the step count */
        if (at >= 16 && at < 24)
            continue;
        bytes[at] ^= 0x41;
        CHECK(adl_optim_load(other, bytes, size) == ADL_ECORRUPT);
        bytes[at] ^= 0x41;
    }
    char *untouched = malloc(size);
    adl_optim_save(other, untouched);
    CHECK(memcmp(same, untouched, size) == 0);
    CHECK_OK(adl_optim_load(other, bytes, size));
    CHECK(adl_optim_lr(other, 1) == 0.123);
    CHECK_INT(adl_optim_steps(other), 6);
    for (int step = 6; step < 12; step++) {
        set_grads(&f, step);
        set_grads(&g, step);
        CHECK_OK(adl_optim_step(optim, NULL));
        CHECK_OK(adl_optim_step(other, NULL));
    }
    CHECK(memcmp(f.a, g.a, sizeof f.a) == 0 && memcmp(f.b, g.b, sizeof f.b) == 0);
    adl_optim_free(optim);
    adl_optim_free(other);
    free(bytes);
    free(same);
    free(untouched);
}

TEST(state)
{
    adl_optim_options kinds[] = {ADL_SGD_INIT(0.1), ADL_SGD_INIT(0.1), ADL_ADAM_INIT,
                                 ADL_ADAMW_INIT, ADL_ADADELTA_INIT};
    kinds[1].momentum = 0.9;
    for (size_t k = 0; k < ADLI_COUNT(kinds); k++)
        save_and_load(&kinds[k]);
}

TEST(wrong_options)
{
    float x[4] = {0}, d[4] = {0};
    adl_param param = {"x", x, d, 4};
    adl_optim *optim;
    adl_optim_options o = ADL_ADAM_INIT;
    o.beta2 = 1;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "adam: beta2");
    CHECK(optim == NULL);
    o = (adl_optim_options)ADL_ADAM_INIT;
    o.lr = -1;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "lr = -1");
    o.lr = NAN;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "lr");
    o = (adl_optim_options)ADL_SGD_INIT(1);
    o.nesterov = true;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "nesterov");
    o = (adl_optim_options)ADL_ADADELTA_INIT;
    o.rho = 1.5;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "rho");
    o.size = 0;
    CHECK_FAILS(adl_optim_new(&param, 1, &o, &optim), ADL_EINVAL, "size");
    o = (adl_optim_options)ADL_SGD_INIT(1);
    CHECK_FAILS(adl_optim_new(&param, 0, &o, &optim), ADL_EINVAL, "without parameters");
    REQUIRE_OK(adl_optim_new(&param, 1, &o, &optim));
    adl_optim_options adam = ADL_ADAM_INIT;
    CHECK_FAILS(adl_optim_add_group(optim, &param, 1, &adam), ADL_EINVAL, "kind adam");
    CHECK_OK(adl_optim_step(optim, NULL));
    CHECK_FAILS(adl_optim_add_group(optim, &param, 1, &o), ADL_ESTATE, "first step");
    adl_optim_free(optim);
}

/* Large enough to be cut into chunks: any number of threads gives the same bytes. */
TEST(threads_do_not_matter)
{
    enum { N = 100003 };
    int before = adl_nn_threads();
    float *value[2], *grad = malloc(N * sizeof *grad);
    golden_fill(grad, N, 3, 1);
    for (int t = 0; t < 2; t++) {
        value[t] = malloc(N * sizeof(float));
        golden_fill(value[t], N, 4, 1);
        adl_param param = {"x", value[t], grad, N};
        adl_optim_options o = ADL_ADADELTA_INIT;
        adl_optim *optim;
        CHECK_OK(adl_nn_set_threads(t == 0 ? 1 : 3));
        REQUIRE_OK(adl_optim_new(&param, 1, &o, &optim));
        for (int step = 0; step < 3; step++)
            CHECK_OK(adl_optim_step(optim, NULL));
        adl_optim_free(optim);
    }
    CHECK(memcmp(value[0], value[1], N * sizeof(float)) == 0);
    CHECK_OK(adl_nn_set_threads(before));
    free(value[0]);
    free(value[1]);
    free(grad);
}

TEST(memory_runs_out)
{
    fixture f;
    fixture_init(&f);
    adl_optim_options o = ADL_ADAM_INIT;
    int failures = 0;
    for (int nth = 1;; nth++) {
        adl_optim *optim;
        adli_mem_fail_at(nth);
        adl_status status = adl_optim_new(f.params, 2, &o, &optim);
        if (status == ADL_OK)
            status = adl_optim_add_group(optim, f.params, 2, &o);
        if (status == ADL_OK)
            status = adl_optim_step(optim, NULL);
        adli_mem_fail_at(0);
        adl_optim_free(optim);
        if (status == ADL_OK)
            break;
        CHECK_INT(status, ADL_ENOMEM);
        failures++;
    }
    CHECK(failures >= 8);
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void schedule_case(const char *name, const adl_schedule_options *options)
{
    float x[1] = {0}, d[1] = {0};
    adl_param param = {"x", x, d, 1};
    adl_optim_options o = ADL_SGD_INIT(0.4);
    adl_optim *optim, *other;
    adl_schedule *schedule, *loaded;
    char key[64];
    size_t count;
    REQUIRE_OK(adl_optim_new(&param, 1, &o, &optim));
    REQUIRE_OK(adl_optim_new(&param, 1, &o, &other));
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(optim), options, &schedule));
    adl_optim_set_lr(other, 0, 77); /* load must replace what was seen here */
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(other), options, &loaded));
    snprintf(key, sizeof key, "schedule.%s", name);
    double *wanted = golden_get(key, &count);
    REQUIRE(wanted && count == 13);
    for (size_t t = 0; t < count; t++) {
        CHECK_NEAR(adl_optim_lr(optim, 0), wanted[t], 1e-12);
        char bytes[64];
        REQUIRE(adl_schedule_save_size(schedule) <= sizeof bytes);
        adl_schedule_save(schedule, bytes);
        CHECK_OK(adl_schedule_load(loaded, bytes, adl_schedule_save_size(schedule)));
        CHECK(adl_optim_lr(other, 0) == adl_optim_lr(optim, 0));
        CHECK_INT(adl_schedule_time(loaded), t);
        CHECK(adl_schedule_load(loaded, bytes, adl_schedule_save_size(schedule) - 1) ==
              ADL_ECORRUPT);
        bytes[0] ^= 1;
        CHECK(adl_schedule_load(loaded, bytes, adl_schedule_save_size(schedule)) == ADL_ECORRUPT);
        adl_schedule_step(schedule);
    }
    free(wanted);
    adl_schedule_free(schedule);
    adl_schedule_free(loaded);
    adl_optim_free(optim);
    adl_optim_free(other);
}

TEST(schedules)
{
    static const int milestones[] = {2, 5, 6};
    schedule_case("step", &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                  .kind = ADL_STEP_LR,
                                                  .step_size = 3,
                                                  .gamma = 0.5});
    schedule_case("multi_step", &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                        .kind = ADL_MULTI_STEP_LR,
                                                        .milestones = milestones,
                                                        .milestone_count = 3,
                                                        .gamma = 0.3});
    schedule_case("exponential", &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                         .kind = ADL_EXPONENTIAL_LR,
                                                         .gamma = 0.9});
    schedule_case("cosine", &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                    .kind = ADL_COSINE_LR,
                                                    .t_max = 8,
                                                    .eta_min = 0.01});
}

TEST(wrong_schedules)
{
    static const int wrong[] = {3, 3};
    float x[1] = {0}, d[1] = {0};
    adl_param param = {"x", x, d, 1};
    adl_optim_options o = ADL_SGD_INIT(0.4);
    adl_optim *optim;
    adl_schedule *schedule;
    REQUIRE_OK(adl_optim_new(&param, 1, &o, &optim));
    const adl_optim_ops *ops = adl_optim_get_ops(optim);
    CHECK_FAILS(adl_schedule_new(ops,
                                 &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                         .kind = ADL_STEP_LR},
                                 &schedule),
                ADL_EINVAL, "step_size 0");
    CHECK_FAILS(adl_schedule_new(ops,
                                 &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                         .kind = ADL_EXPONENTIAL_LR},
                                 &schedule),
                ADL_EINVAL, "gamma");
    CHECK_FAILS(adl_schedule_new(ops,
                                 &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                         .kind = ADL_COSINE_LR},
                                 &schedule),
                ADL_EINVAL, "t_max");
    CHECK_FAILS(adl_schedule_new(ops,
                                 &(adl_schedule_options){.size = sizeof(adl_schedule_options),
                                                         .kind = ADL_MULTI_STEP_LR,
                                                         .milestones = wrong,
                                                         .milestone_count = 2},
                                 &schedule),
                ADL_EINVAL, "milestone 1 (3) must be above 3");
    CHECK_FAILS(adl_schedule_new(ops, &(adl_schedule_options){.kind = ADL_COSINE_LR, .t_max = 8},
                                 &schedule),
                ADL_EINVAL, "adl_schedule_options");
    /* from before there was a warm-up: what lies behind is not read */
    adl_schedule_options older = {.size = offsetof(adl_schedule_options, warmup),
                                  .kind = ADL_WARMUP_COSINE_LR,
                                  .t_max = 8,
                                  .warmup = 9};
    REQUIRE_OK(adl_schedule_new(ops, &older, &schedule));
    adl_schedule_free(schedule);
    older.size = sizeof older;
    CHECK_FAILS(adl_schedule_new(ops, &older, &schedule), ADL_EINVAL, "warmup 9");
    CHECK(schedule == NULL);
    adl_optim_free(optim);
}

TEST(warm_up_and_cosine_by_any_time)
{
    float value = 0, grad = 0;
    adl_param param = {"w", &value, &grad, 1};
    adl_optim_options sgd = ADL_SGD_INIT(0.8);
    adl_schedule_options options = {.size = sizeof(adl_schedule_options),
                                    .kind = ADL_WARMUP_COSINE_LR,
                                    .warmup = 4,
                                    .t_max = 103,
                                    .eta_min = 0.1};
    adl_optim *optim;
    adl_schedule *schedule, *again, *none;
    unsigned char bytes[64];
    REQUIRE_OK(adl_optim_new(&param, 1, &sgd, &optim));
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(optim), &options, &schedule));
    for (int t = 0; t < 3; t++, adl_schedule_step(schedule))
        CHECK_NEAR(adl_optim_lr(optim, 0), 0.2 * (t + 1), 1e-12);
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.8, 1e-12); /* t = 3: the top */
    adl_schedule_at(schedule, 53);                  /* half the way from 3 to 103 */
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.1 + 0.7 / 2, 1e-12);
    adl_schedule_at(schedule, 0.5);
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.8 * 1.5 / 4, 1e-12);
    adl_schedule_at(schedule, 500);
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.1, 1e-12);
    adl_schedule_at(schedule, NAN); /* ignored */
    adl_schedule_at(schedule, -1);
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.1, 1e-12);
    adl_schedule_at(schedule, 28.25);
    double rate = adl_optim_lr(optim, 0);
    CHECK_INT(adl_schedule_time(schedule), 28);
    REQUIRE(adl_schedule_save_size(schedule) <= sizeof bytes);
    adl_schedule_save(schedule, bytes);
    adl_optim_set_lr(optim, 0, 0.8);
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(optim), &options, &again));
    CHECK_OK(adl_schedule_load(again, bytes, adl_schedule_save_size(again)));
    CHECK(adl_optim_lr(optim, 0) == rate);
    options.warmup = 103;
    CHECK_FAILS(adl_schedule_new(adl_optim_get_ops(optim), &options, &none), ADL_EINVAL,
                "warmup 103 is not between 0 and t_max 103");
    adl_optim_ops fixed = *adl_optim_get_ops(optim);
    fixed.set_lr = NULL;
    options.warmup = 0;
    CHECK_FAILS(adl_schedule_new(&fixed, &options, &none), ADL_EINVAL,
                "schedule: the optimizer has no set_lr");
    adl_schedule_free(again);
    adl_schedule_free(schedule);
    adl_optim_free(optim);
}

/* What was saved before times could be fractions: u64 magic, u64 t, u64 groups, f64 rates. */
TEST(an_older_schedule_is_read)
{
    float value = 0, grad = 0;
    adl_param param = {"w", &value, &grad, 1};
    adl_optim_options sgd = ADL_SGD_INIT(0.5);
    adl_schedule_options options = {
        .size = sizeof(adl_schedule_options), .kind = ADL_EXPONENTIAL_LR, .gamma = 0.5};
    uint64_t bytes[4] = {0x01636c6461, 3, 1, 0};
    double rate = 0.8;
    adl_optim *optim;
    adl_schedule *schedule;
    memcpy(&bytes[3], &rate, sizeof rate);
    REQUIRE_OK(adl_optim_new(&param, 1, &sgd, &optim));
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(optim), &options, &schedule));
    CHECK_OK(adl_schedule_load(schedule, bytes, sizeof bytes));
    CHECK_INT(adl_schedule_time(schedule), 3);
    CHECK_NEAR(adl_optim_lr(optim, 0), 0.1, 1e-12);
    adl_schedule_free(schedule);
    adl_optim_free(optim);
}
