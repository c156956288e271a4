/* Optimizers: groups of parameters with their options and state, cut into chunks that threads share. */
#include "adaptdl/optim.h"

#include "base/bytes.h"
#include "base/options.h"
#include "nn/optim.h"
#include "nn/threads.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = ADLI_GRAIN };

typedef struct group {
    adl_optim_options options;
    adl_param *params; /* [count]; the copy that groups[] shows */
    float **state[2]; /* [count] arrays of each parameter's elements; NULL when the kind has none */
    size_t count;
    void *block; /* all of state, as allocated */
} group;

/* A run of elements of one parameter. */
typedef struct chunk {
    uint32_t group, param;
    size_t first, count;
} chunk;

struct adl_optim {
    adl_optim_ops ops;
    group *groups;
    adl_param_group *shown; /* [ops.group_count] */
    size_t group_capacity, shown_capacity;
    chunk *chunks;
    size_t chunk_count, chunk_capacity;
    int64_t steps;
};

static const char *const kind_names[] = {"sgd", "adam", "adamw", "adadelta"};

/* How many state arrays the options need. */
static int states_of(const adl_optim_options *options)
{
    return options->kind == ADL_SGD ? (options->momentum != 0 ? 1 : 0) : 2;
}

/* ---- options --------------------------------------------------------------------------------- */

static adl_status check_range(const char *kind, const char *name, double value, double low,
                              double high)
{
    if (value >= low && value < high)
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "%s: %s = %g is not in [%g, %g)", kind, name, value, low, high);
}

static adl_status check_sgd(const adl_optim_options *o)
{
    adl_status status = check_range("sgd", "momentum", o->momentum, 0, HUGE_VAL);
    if (status == ADL_OK)
        status = check_range("sgd", "dampening", o->dampening, -HUGE_VAL, HUGE_VAL);
    if (status == ADL_OK && o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        status = adli_fail(ADL_EINVAL, "sgd: nesterov needs momentum above 0 and dampening 0");
    return status;
}

static adl_status check_options(const adl_optim_options *o)
{
    if ((unsigned)o->kind > ADL_ADADELTA)
        return adli_fail(ADL_EINVAL, "optimizer options: unknown kind %d", (int)o->kind);
    const char *kind = kind_names[o->kind];
    adl_status status = check_range(kind, "lr", o->lr, 0, HUGE_VAL);
    if (status == ADL_OK)
        status = check_range(kind, "weight_decay", o->weight_decay, 0, HUGE_VAL);
    if (status != ADL_OK || o->kind == ADL_SGD)
        return status == ADL_OK ? check_sgd(o) : status;
    status = check_range(kind, "eps", o->eps, 0, HUGE_VAL);
    if (status == ADL_OK && o->kind == ADL_ADADELTA)
        return check_range(kind, "rho", o->rho, 0, 1.0000000000000002);
    if (status == ADL_OK)
        status = check_range(kind, "beta1", o->beta1, 0, 1);
    return status == ADL_OK ? check_range(kind, "beta2", o->beta2, 0, 1) : status;
}

/* ---- making ---------------------------------------------------------------------------------- */

static void group_fini(group *g)
{
    free(g->params);
    free(g->state[0]);
    free(g->state[1]);
    free(g->block);
}

static adl_status group_init(group *g, const adl_param *params, size_t count,
                             const adl_optim_options *options)
{
    *g = (group){.options = *options, .count = count};
    size_t floats = 0;
    for (size_t i = 0; i < count; i++)
        floats += (params[i].count + 15) / 16 * 16;
    g->params = adli_memdup(params, count, sizeof *params);
    int states = states_of(options);
    if (states > 0)
        g->block = adli_calloc((size_t)states * floats + 16, sizeof(float));
    for (int s = 0; s < states; s++)
        g->state[s] = adli_calloc(count, sizeof(float *));
    if (!g->params || (states > 0 && (!g->block || !g->state[0])) || (states > 1 && !g->state[1])) {
        group_fini(g);
        return adli_fail_memory("optimizer");
    }
    float *at = (float *)(((uintptr_t)g->block + 63) & ~(uintptr_t)63);
    for (int s = 0; s < states; s++)
        for (size_t i = 0; i < count; i++) {
            g->state[s][i] = at;
            at += (params[i].count + 15) / 16 * 16;
        }
    return ADL_OK;
}

static adl_status add_chunks(adl_optim *optim, uint32_t which)
{
    const group *g = &optim->groups[which];
    for (size_t i = 0; i < g->count; i++)
        for (size_t first = 0; first < g->params[i].count; first += CHUNK) {
            size_t left = g->params[i].count - first;
            if (adli_grow(&optim->chunks, &optim->chunk_capacity, optim->chunk_count + 1,
                          sizeof *optim->chunks) != 0)
                return adli_fail_memory("optimizer");
            optim->chunks[optim->chunk_count++] =
                (chunk){which, (uint32_t)i, first, left < CHUNK ? left : CHUNK};
        }
    return ADL_OK;
}

adl_status adl_optim_add_group(adl_optim *optim, const adl_param *params, size_t count,
                               const adl_optim_options *given)
{
    adl_optim_options own = {.size = sizeof own};
    const adl_optim_options *options = &own;
    adl_status status = adli_options_take("adl_optim_options", &own, sizeof own, given);
    if (status == ADL_OK)
        status = check_options(options);
    if (status != ADL_OK)
        return status;
    size_t n = optim->ops.group_count;
    if (n > 0 && options->kind != optim->groups[0].options.kind)
        return adli_fail(ADL_EINVAL, "optimizer: a group of kind %s in an optimizer of kind %s",
                         kind_names[options->kind], optim->ops.kind);
    if (optim->steps > 0)
        return adli_fail(ADL_ESTATE, "optimizer: group added after the first step");
    if (count == 0)
        return adli_fail(ADL_EINVAL, "optimizer: a group without parameters");
    if (adli_grow(&optim->groups, &optim->group_capacity, n + 1, sizeof *optim->groups) != 0 ||
        adli_grow(&optim->shown, &optim->shown_capacity, n + 1, sizeof *optim->shown) != 0)
        return adli_fail_memory("optimizer");
    size_t chunks = optim->chunk_count;
    status = group_init(&optim->groups[n], params, count, options);
    if (status == ADL_OK && (status = add_chunks(optim, (uint32_t)n)) != ADL_OK) {
        group_fini(&optim->groups[n]);
        optim->chunk_count = chunks;
    }
    if (status != ADL_OK)
        return status;
    optim->shown[n] = (adl_param_group){optim->groups[n].params, count};
    optim->ops.groups = optim->shown;
    optim->ops.group_count = n + 1;
    return ADL_OK;
}

/* ---- stepping -------------------------------------------------------------------------------- */

static adli_update update_of(const adl_optim_options *o, double lr, int64_t step)
{
    adli_update u = {.lr = (float)lr,
                     .weight_decay = (float)o->weight_decay,
                     .eps = (float)o->eps,
                     .momentum = (float)o->momentum,
                     .undampened = (float)(1 - o->dampening),
                     .nesterov = o->nesterov,
                     .first = step == 1,
                     .beta1 = (float)o->beta1,
                     .one_beta1 = (float)(1 - o->beta1),
                     .beta2 = (float)o->beta2,
                     .one_beta2 = (float)(1 - o->beta2),
                     .shrink = 1,
                     .rho = (float)o->rho,
                     .one_rho = (float)(1 - o->rho)};
    if (o->kind == ADL_ADAM || o->kind == ADL_ADAMW) {
        u.step_size = (float)(lr / (1 - pow(o->beta1, (double)step)));
        u.root_correction2 = (float)sqrt(1 - pow(o->beta2, (double)step));
    }
    if (o->kind == ADL_ADAMW) {
        u.shrink = (float)(1 - lr * o->weight_decay);
        u.weight_decay = 0;
    }
    return u;
}

static adli_rule *rule_of(const adl_optim_options *o)
{
    switch (o->kind) {
    case ADL_SGD:
        return o->momentum != 0 ? adli_rule_sgd_momentum : adli_rule_sgd;
    case ADL_ADAM:
    case ADL_ADAMW:
        return adli_rule_adam;
    case ADL_ADADELTA:
        break;
    }
    return adli_rule_adadelta;
}

static void run_chunk(const adl_optim *optim, const chunk *c, const adli_update *updates)
{
    const group *g = &optim->groups[c->group];
    const adl_param *param = &g->params[c->param];
    float *a = g->state[0] ? g->state[0][c->param] + c->first : NULL;
    float *b = g->state[1] ? g->state[1][c->param] + c->first : NULL;
    rule_of (&g->options)(&updates[c->group], param->value + c->first, param->grad + c->first, a, b,
                          c->count);
}

adl_status adl_optim_step(adl_optim *optim, const double *lr_factor)
{
    adli_update *updates = adli_calloc(optim->ops.group_count, sizeof *updates);
    if (!updates)
        return adli_fail_memory("optimizer step");
    for (size_t i = 0; i < optim->ops.group_count; i++) {
        const adl_optim_options *o = &optim->groups[i].options;
        updates[i] = update_of(o, o->lr * (lr_factor ? lr_factor[i] : 1), optim->steps + 1);
    }
#pragma omp parallel for schedule(static) if (optim->chunk_count > 1)
    for (size_t i = 0; i < optim->chunk_count; i++)
        run_chunk(optim, &optim->chunks[i], updates);
    optim->steps++;
    free(updates);
    return ADL_OK;
}

void adl_optim_zero_grad(adl_optim *optim)
{
    for (size_t i = 0; i < optim->ops.group_count; i++)
        for (size_t k = 0; k < optim->groups[i].count; k++)
            memset(optim->groups[i].params[k].grad, 0,
                   optim->groups[i].params[k].count * sizeof(float));
}

double adl_optim_lr(const adl_optim *optim, size_t group_index)
{
    return group_index < optim->ops.group_count ? optim->groups[group_index].options.lr : NAN;
}

double adl_optim_momentum(const adl_optim *optim, size_t group_index)
{
    if (group_index >= optim->ops.group_count)
        return NAN;
    const adl_optim_options *options = &optim->groups[group_index].options;
    return options->kind == ADL_SGD        ? options->momentum
           : options->kind == ADL_ADADELTA ? 0
                                           : options->beta1;
}

void adl_optim_set_lr(adl_optim *optim, size_t group_index, double lr)
{
    if (group_index < optim->ops.group_count)
        optim->groups[group_index].options.lr = lr;
}

int64_t adl_optim_steps(const adl_optim *optim)
{
    return optim->steps;
}

static bool is_adam(const adl_optim *optim)
{
    adl_optim_kind kind = optim->groups[0].options.kind;
    return kind == ADL_ADAM || kind == ADL_ADAMW;
}

void adl_optim_restart(adl_optim *optim)
{
    if (!is_adam(optim))
        return;
    for (size_t i = 0; i < optim->ops.group_count; i++)
        for (size_t k = 0; k < optim->groups[i].count; k++)
            for (int s = 0; s < 2; s++)
                memset(optim->groups[i].state[s][k], 0,
                       optim->groups[i].params[k].count * sizeof(float));
    optim->steps = 0;
}

/* ---- state as bytes -------------------------------------------------------------------------- */

/* u64 magic, u64 kind, u64 steps, u64 groups, then per group: f64 lr, u64 states, u64 parameters, and
 * per parameter: u64 count, then `states` arrays of count floats. */
static const uint64_t MAGIC = 0x01706f6c6461; /* "adlop", version 1 */

size_t adl_optim_save_size(const adl_optim *optim)
{
    size_t size = 4 * sizeof(uint64_t);
    for (size_t i = 0; i < optim->ops.group_count; i++) {
        const group *g = &optim->groups[i];
        size += sizeof(double) + 2 * sizeof(uint64_t);
        for (size_t k = 0; k < g->count; k++)
            size += sizeof(uint64_t) +
                    (size_t)states_of(&g->options) * g->params[k].count * sizeof(float);
    }
    return size;
}

void adl_optim_save(const adl_optim *optim, void *out)
{
    uint8_t *at = adli_put_u64(out, MAGIC);
    at = adli_put_u64(at, (uint64_t)optim->groups[0].options.kind);
    at = adli_put_u64(at, (uint64_t)optim->steps);
    at = adli_put_u64(at, optim->ops.group_count);
    for (size_t i = 0; i < optim->ops.group_count; i++) {
        const group *g = &optim->groups[i];
        int states = states_of(&g->options);
        at = adli_put_double(at, g->options.lr);
        at = adli_put_u64(at, (uint64_t)states);
        at = adli_put_u64(at, g->count);
        for (size_t k = 0; k < g->count; k++) {
            at = adli_put_u64(at, g->params[k].count);
            for (int s = 0; s < states; s++)
                at = adli_put_bytes(at, g->state[s][k], g->params[k].count * sizeof(float));
        }
    }
}

static adl_status load_group(adl_optim *optim, size_t index, adli_reader *reader, bool copy)
{
    group *g = &optim->groups[index];
    uint64_t states = (uint64_t)states_of(&g->options);
    double lr = adli_get_double(reader);
    if (!(lr >= 0 && lr < HUGE_VAL))
        return adli_fail(ADL_ECORRUPT, "saved optimizer: group %zu: learning rate %g", index, lr);
    if (adli_get_u64(reader) != states || adli_get_u64(reader) != g->count)
        return adli_fail(ADL_ECORRUPT, "saved optimizer: group %zu has another make-up", index);
    for (size_t k = 0; k < g->count; k++) {
        size_t count = g->params[k].count;
        if (adli_get_u64(reader) != count)
            return adli_fail(ADL_ECORRUPT, "saved optimizer: %s of group %zu has another size",
                             g->params[k].name ? g->params[k].name : "a parameter", index);
        for (uint64_t s = 0; s < states; s++) {
            const uint8_t *data = adli_get_bytes(reader, count * sizeof(float));
            if (!data)
                return adli_fail(ADL_ECORRUPT, "saved optimizer: ends within group %zu", index);
            if (copy)
                memcpy(g->state[s][k], data, count * sizeof(float));
        }
    }
    if (copy)
        g->options.lr = lr;
    return ADL_OK;
}

adl_status adl_optim_load(adl_optim *optim, const void *data, size_t length)
{
    for (int copy = 0; copy <= 1; copy++) { /* look at all of it before changing anything */
        adli_reader reader = adli_reader_over(data, length);
        uint64_t magic = adli_get_u64(&reader), kind = adli_get_u64(&reader);
        uint64_t steps = adli_get_u64(&reader), groups = adli_get_u64(&reader);
        if (reader.bad || magic != MAGIC)
            return adli_fail(ADL_ECORRUPT, "saved optimizer: not one of this version");
        if (kind != (uint64_t)optim->groups[0].options.kind || steps > INT64_MAX)
            return adli_fail(ADL_ECORRUPT, "saved optimizer: not one of kind %s", optim->ops.kind);
        if (groups != optim->ops.group_count)
            return adli_fail(ADL_ECORRUPT, "saved optimizer: %llu groups, this one has %zu",
                             (unsigned long long)groups, optim->ops.group_count);
        for (size_t i = 0; i < optim->ops.group_count; i++) {
            adl_status status = load_group(optim, i, &reader, copy);
            if (status != ADL_OK)
                return status;
        }
        if (adli_reader_left(&reader) != 0)
            return adli_fail(ADL_ECORRUPT, "saved optimizer: %zu bytes too many",
                             adli_reader_left(&reader));
        if (copy)
            optim->steps = (int64_t)steps;
    }
    return ADL_OK;
}

/* ---- as adl_optim_ops ------------------------------------------------------------------------ */

static adl_status ops_step(void *self, const double *lr_factor)
{
    return adl_optim_step(self, lr_factor);
}

static void ops_zero_grad(void *self)
{
    adl_optim_zero_grad(self);
}

static double ops_lr(const void *self, size_t group_index)
{
    return adl_optim_lr(self, group_index);
}

static void ops_set_lr(void *self, size_t group_index, double lr)
{
    adl_optim_set_lr(self, group_index, lr);
}

static void ops_precondition(const void *self, size_t group_index, size_t param, size_t first,
                             size_t count, float *out)
{
    const adl_optim *optim = self;
    const group *g = &optim->groups[group_index];
    if (optim->steps == 0) {
        for (size_t i = 0; i < count; i++)
            out[i] = 1;
        return;
    }
    adli_update u = update_of(&g->options, g->options.lr, optim->steps);
    adli_precondition(g->state[1][param] + first, u.root_correction2, u.eps, out, count);
}

static int64_t ops_steps(const void *self)
{
    return adl_optim_steps(self);
}

static void ops_restart(void *self)
{
    adl_optim_restart(self);
}

static size_t ops_save_size(const void *self)
{
    return adl_optim_save_size(self);
}

static void ops_save(const void *self, void *out)
{
    adl_optim_save(self, out);
}

static adl_status ops_load(void *self, const void *data, size_t length)
{
    return adl_optim_load(self, data, length);
}

const adl_optim_ops *adl_optim_get_ops(const adl_optim *optim)
{
    return &optim->ops;
}

adl_status adl_optim_new(const adl_param *params, size_t count, const adl_optim_options *options,
                         adl_optim **out)
{
    *out = NULL;
    adl_optim *optim = adli_calloc(1, sizeof *optim);
    if (!optim)
        return adli_fail_memory("optimizer");
    adl_status status = adl_optim_add_group(optim, params, count, options);
    if (status != ADL_OK) {
        adl_optim_free(optim);
        return status;
    }
    optim->ops = (adl_optim_ops){.size = sizeof(adl_optim_ops),
                                 .self = optim,
                                 .kind = kind_names[options->kind],
                                 .group_count = 1,
                                 .groups = optim->shown,
                                 .step = ops_step,
                                 .zero_grad = ops_zero_grad,
                                 .lr = ops_lr,
                                 .set_lr = ops_set_lr,
                                 .steps = ops_steps,
                                 .save_size = ops_save_size,
                                 .save = ops_save,
                                 .load = ops_load};
    if (is_adam(optim)) {
        optim->ops.precondition = ops_precondition;
        optim->ops.restart = ops_restart;
    }
    *out = optim;
    return ADL_OK;
}

void adl_optim_free(adl_optim *optim)
{
    if (!optim)
        return;
    for (size_t i = 0; i < optim->ops.group_count; i++)
        group_fini(&optim->groups[i]);
    free(optim->groups);
    free(optim->shown);
    free(optim->chunks);
    free(optim);
}
