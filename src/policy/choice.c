/* The exact solution of a multiple-choice knapsack of several resources, in three steps:
 *
 *   1. Prices u >= 0 of the resources by subgradient descent on the Lagrangian dual
 *        L(u) = u . room + sum over jobs of max(0, max over its options of value - u . use),
 *      which is above every solution's value, and a good solution by taking what pays at those prices.
 *   2. An option whose loss against the best of its job brings L(u) below that solution is left out.
 *   3. Dynamic programming over the jobs that still have a choice: a state is what is left of each
 *      resource, of two ways to one state the better is kept, and a state whose value, with its room at
 *      prices u and all later jobs at their best, is not above the best known solution is dropped.
 *
 * Step 3 alone would be exact; steps 1 and 2 make it small. */
#include "policy/choice.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DESCENT_STEPS = 120,
    STATES_MAX = 20000,
    STATES_LEAST = 64,
    LOOKS_MAX = 20000000,
    ROWS_MAX = 128
};

/* A resource of a pool that can be short. */
typedef struct row {
    int pool, resource;
    double room, price;
} row;

/* How a state of some step came to be. */
typedef struct trace {
    size_t parent;
    int option; /* -1: none */
} trace;

typedef struct states {
    int64_t *left; /* [count][rows] */
    double *value;
    size_t *trace;
    size_t count, left_capacity, value_capacity, trace_capacity;
} states;

typedef struct solver {
    const adli_choice_problem *problem;
    size_t *first; /* [job_count + 1] */
    row *rows;
    int row_count;
    double *use;     /* [option_count][rows] */
    double *reduced; /* [option_count] value - u . use */
    double *best;    /* [job_count] the largest of them, 0 at least */
    bool *out;       /* [option_count] cannot be in a better solution */
    bool *none_out;  /* [job_count] nor can none */
    double *room;    /* [rows] scratch */
    int *order;      /* [job_count] scratch */
    int *taken;      /* the best solution so far */
    int *trial;      /* [job_count] */
    double value, bound;
    double *price; /* [rows] those of the bound */
    trace *traces;
    size_t trace_count, trace_capacity;
    states now, next;
    size_t *slots; /* of states of the next step, by what is left */
    size_t slot_count;
    size_t looked_at;
    bool exact;
} solver;

/* Two ways that differ by less are worth the same. */
static const double tiny = 1e-9;

/* ---- which resources can be short ---- */

static int64_t asked(const adli_choice_problem *p, int job, int resource)
{
    return p->requests[job * p->resource_count + resource];
}

/* Could all jobs together ask for more of it than there is? */
static bool scarce(const solver *s, int pool, int resource)
{
    const adli_choice_problem *p = s->problem;
    double sum = 0;
    for (int j = 0; j < p->job_count; j++) {
        int most = 0;
        for (size_t o = s->first[j]; o < s->first[j + 1]; o++)
            if (p->options[o].pool == pool && p->options[o].count > most)
                most = p->options[o].count;
        sum += (double)most * (double)asked(p, j, resource);
    }
    return sum > (double)p->room[pool * p->resource_count + resource];
}

/* Is there always enough of row a where there is enough of row b of the same pool? */
static bool implied(const solver *s, const row *a, const row *b)
{
    const adli_choice_problem *p = s->problem;
    bool stricter = a > b;
    for (int j = 0; j < p->job_count; j++) {
        double x = (double)asked(p, j, a->resource) * b->room;
        double y = (double)asked(p, j, b->resource) * a->room;
        if (x > y || (asked(p, j, a->resource) > 0 && asked(p, j, b->resource) == 0))
            return false;
        stricter |= x < y;
    }
    return stricter; /* of two that are alike the first stays */
}

static void find_rows(solver *s)
{
    const adli_choice_problem *p = s->problem;
    int count = 0;
    for (int pool = 0; pool < p->pool_count; pool++)
        for (int r = 0; r < p->resource_count; r++)
            if (scarce(s, pool, r))
                s->rows[count++] = (row){pool, r, (double)p->room[pool * p->resource_count + r], 0};
    bool *dropped = s->out; /* not in use yet, and longer than there are rows: see set_up */
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            if (a != b && s->rows[a].pool == s->rows[b].pool && !dropped[b])
                dropped[a] |= implied(s, &s->rows[a], &s->rows[b]);
    for (int a = 0; a < count; a++)
        if (!dropped[a])
            s->rows[s->row_count++] = s->rows[a];
    memset(dropped, 0, (size_t)count * sizeof *dropped);
}

static double *use_of(const solver *s, size_t option)
{
    return s->use + option * (size_t)s->row_count;
}

static void fill_use(solver *s)
{
    const adli_choice_problem *p = s->problem;
    for (size_t o = 0; o < p->option_count; o++)
        for (int r = 0; r < s->row_count; r++) {
            const adli_choice_option *option = &p->options[o];
            const row *on = &s->rows[r];
            int64_t one = option->pool == on->pool ? asked(p, option->job, on->resource) : 0;
            use_of(s, o)[r] = (double)option->count * (double)one;
        }
}

/* ---- prices, and a good solution ---- */

/* L(u), and in s->room what is left of each row when every job takes what pays most. */
static double dual(solver *s, const double *price)
{
    double sum = 0;
    for (int r = 0; r < s->row_count; r++) {
        sum += price[r] * s->rows[r].room;
        s->room[r] = s->rows[r].room;
    }
    for (int j = 0; j < s->problem->job_count; j++) {
        size_t best = s->problem->option_count;
        s->best[j] = 0;
        for (size_t o = s->first[j]; o < s->first[j + 1]; o++) {
            double reduced = s->problem->options[o].value;
            for (int r = 0; r < s->row_count; r++)
                reduced -= price[r] * use_of(s, o)[r];
            s->reduced[o] = reduced;
            if (reduced > s->best[j]) {
                s->best[j] = reduced;
                best = o;
            }
        }
        sum += s->best[j];
        for (int r = 0; best < s->problem->option_count && r < s->row_count; r++)
            s->room[r] -= use_of(s, best)[r];
    }
    return sum;
}

static bool fits(const solver *s, size_t option, int instead_of)
{
    for (int r = 0; r < s->row_count; r++)
        if (use_of(s, option)[r] >
            s->room[r] + (instead_of >= 0 ? use_of(s, (size_t)instead_of)[r] : 0))
            return false;
    return true;
}

static void exchange(solver *s, int job, int option)
{
    for (int r = 0; r < s->row_count; r++)
        s->room[r] += (s->trial[job] >= 0 ? use_of(s, (size_t)s->trial[job])[r] : 0) -
                      (option >= 0 ? use_of(s, (size_t)option)[r] : 0);
    s->trial[job] = option;
}

static int by_best(const void *a, const void *b, void *user)
{
    const double *best = user;
    int i = *(const int *)a, j = *(const int *)b;
    return best[i] != best[j] ? (best[i] > best[j] ? -1 : 1) : i - j;
}

/* What pays most at the present prices, as far as there is room, then whatever more fits. */
static void round_off(solver *s)
{
    int count = s->problem->job_count;
    for (int r = 0; r < s->row_count; r++)
        s->room[r] = s->rows[r].room;
    for (int j = 0; j < count; j++) {
        s->order[j] = j;
        s->trial[j] = -1;
    }
    qsort_r(s->order, (size_t)count, sizeof *s->order, by_best, s->best);
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < count; i++) {
            int j = s->order[i], now = s->trial[j], to = now;
            double most = now < 0     ? 0
                          : turn == 0 ? s->reduced[now]
                                      : s->problem->options[now].value;
            for (size_t o = s->first[j]; o < s->first[j + 1]; o++) {
                double worth = turn == 0 ? s->reduced[o] : s->problem->options[o].value;
                if (worth > most && fits(s, o, now)) {
                    most = worth;
                    to = (int)o;
                }
            }
            if (to != now)
                exchange(s, j, to);
        }
    double value = 0;
    for (int j = 0; j < count; j++)
        value += s->trial[j] >= 0 ? s->problem->options[s->trial[j]].value : 0;
    if (value > s->value) {
        s->value = value;
        memcpy(s->taken, s->trial, (size_t)count * sizeof *s->taken);
    }
}

/* Subgradient descent with Polyak's steps towards the best solution known. */
static void descend(solver *s)
{
    double *price = s->price + s->row_count; /* the second half: where the descent is */
    double scale = 1;
    s->bound = HUGE_VAL;
    for (int step = 0, stale = 0; step < DESCENT_STEPS; step++) {
        double bound = dual(s, price), norm = 0;
        stale = bound < s->bound - tiny ? 0 : stale + 1;
        if (bound < s->bound) {
            s->bound = bound;
            memcpy(s->price, price, (size_t)s->row_count * sizeof *price);
        }
        if (stale == 8) {
            scale /= 2;
            stale = 0;
        }
        for (int r = 0; r < s->row_count; r++) { /* shares of a row, so that units do not matter */
            double slope = s->room[r] / fmax(s->rows[r].room, 1);
            norm += price[r] > 0 || slope < 0 ? slope * slope : 0;
        }
        if (step % 10 == 0)
            round_off(s);
        if (!(norm > 0) || bound - s->value < tiny)
            break;
        (void)dual(s, price); /* round_off used s->room */
        for (int r = 0; r < s->row_count; r++) {
            double unit = fmax(s->rows[r].room, 1), slope = s->room[r] / unit;
            price[r] = fmax(0, price[r] - scale * (bound - s->value) / norm * slope / unit);
        }
    }
    s->bound = fmin(s->bound, dual(s, s->price));
    round_off(s);
    (void)dual(s, s->price);
}

/* ---- what is left to decide ---- */

static void leave_out(solver *s)
{
    for (int j = 0; j < s->problem->job_count; j++) {
        s->none_out[j] = s->bound - s->best[j] <= s->value + tiny;
        for (size_t o = s->first[j]; o < s->first[j + 1]; o++)
            s->out[o] = s->bound - (s->best[j] - s->reduced[o]) <= s->value + tiny;
    }
}

static uint64_t hash(const int64_t *left, int rows)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int r = 0; r < rows; r++) {
        h = (h ^ (uint64_t)left[r]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

static adl_status add_state(solver *s, const int64_t *left, double value, size_t parent, int option)
{
    states *to = &s->next;
    size_t rows = (size_t)s->row_count, bytes = rows * sizeof *left;
    size_t at = hash(left, s->row_count) & (s->slot_count - 1), state;
    for (; (state = s->slots[at]) != SIZE_MAX; at = (at + 1) & (s->slot_count - 1))
        if (memcmp(to->left + state * rows, left, bytes) == 0)
            break;
    if (state != SIZE_MAX && to->value[state] >= value)
        return ADL_OK;
    if (state == SIZE_MAX) {
        state = to->count;
        /* one more, as there may be no rows at all */
        if (adli_grow(&to->left, &to->left_capacity, (state + 1) * rows + 1, sizeof *left) != 0 ||
            adli_grow(&to->value, &to->value_capacity, state + 1, sizeof *to->value) != 0 ||
            adli_grow(&to->trace, &to->trace_capacity, state + 1, sizeof *to->trace) != 0)
            return adli_fail_memory("states of a choice");
        memcpy(to->left + state * rows, left, bytes);
        to->count++;
        s->slots[at] = state;
        to->trace[state] = s->trace_count++;
        if (adli_grow(&s->traces, &s->trace_capacity, s->trace_count, sizeof *s->traces) != 0)
            return adli_fail_memory("states of a choice");
    }
    to->value[state] = value;
    s->traces[to->trace[state]] = (trace){parent, option};
    return ADL_OK;
}

/* Room for all that may come of the present states. */
static adl_status clear_slots(solver *s, size_t options)
{
    size_t need = 64;
    while (need < 2 * s->now.count * (options + 1))
        need *= 2;
    if (need > s->slot_count) {
        size_t *slots = adli_realloc(s->slots, need, sizeof *slots);
        if (!slots)
            return adli_fail_memory("states of a choice");
        s->slots = slots;
        s->slot_count = need;
    }
    memset(s->slots, 0xff, s->slot_count * sizeof *s->slots);
    return ADL_OK;
}

/* Nothing that comes of this state is worth more. */
static double potential(const solver *s, const int64_t *left, double value, double later)
{
    for (int r = 0; r < s->row_count; r++)
        value += s->price[r] * (double)left[r];
    return value + later;
}

typedef struct ranked {
    double potential;
    size_t state;
} ranked;

static int by_potential(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->potential != y->potential ? (x->potential > y->potential ? -1 : 1)
                                        : (x->state > y->state) - (x->state < y->state);
}

/* Too many: those with the highest potential stay. */
static adl_status thin_out(solver *s, double later, size_t most)
{
    states *to = &s->next;
    size_t rows = (size_t)s->row_count;
    if (to->count <= most)
        return ADL_OK;
    ranked *order = adli_calloc(to->count, sizeof *order);
    int64_t *left = adli_calloc(most * rows, sizeof *left);
    double *value = adli_calloc(most, sizeof *value);
    size_t *kept = adli_calloc(most, sizeof *kept);
    if (order && left && value && kept) {
        for (size_t i = 0; i < to->count; i++)
            order[i] = (ranked){potential(s, to->left + i * rows, to->value[i], later), i};
        qsort(order, to->count, sizeof *order, by_potential);
        for (size_t i = 0; i < most; i++) {
            memcpy(left + i * rows, to->left + order[i].state * rows, rows * sizeof *left);
            value[i] = to->value[order[i].state];
            kept[i] = to->trace[order[i].state];
        }
        memcpy(to->left, left, most * rows * sizeof *left);
        memcpy(to->value, value, most * sizeof *value);
        memcpy(to->trace, kept, most * sizeof *kept);
        to->count = most;
        s->exact = false;
    }
    bool enough = order && left && value && kept;
    free(kept);
    free(value);
    free(left);
    free(order);
    return enough ? ADL_OK : adli_fail_memory("states of a choice");
}

/* One job: every state with every option. later: what the jobs after it can add at best. */
static adl_status step(solver *s, int job, double later)
{
    size_t rows = (size_t)s->row_count;
    int64_t left[ROWS_MAX];
    adl_status status = clear_slots(s, s->first[job + 1] - s->first[job]);
    s->next.count = 0;
    for (size_t i = 0; i < s->now.count && status == ADL_OK; i++) {
        const int64_t *have = s->now.left + i * rows;
        for (size_t o = s->first[job]; o <= s->first[job + 1] && status == ADL_OK; o++) {
            bool none = o == s->first[job + 1], enough = true;
            if (none ? s->none_out[job] : s->out[o])
                continue;
            for (size_t r = 0; r < rows; r++) {
                left[r] = have[r] - (none ? 0 : (int64_t)use_of(s, o)[r]);
                enough &= left[r] >= 0;
            }
            double value = s->now.value[i] + (none ? 0 : s->problem->options[o].value);
            s->looked_at++;
            if (enough && potential(s, left, value, later) > s->value + tiny)
                status = add_state(s, left, value, s->now.trace[i], none ? -1 : (int)o);
        }
    }
    size_t most = s->problem->states_max ? s->problem->states_max : STATES_MAX;
    size_t bearable = LOOKS_MAX / (s->problem->option_count + 1);
    bearable = bearable > STATES_LEAST ? bearable : STATES_LEAST;
    most = most < bearable ? most : bearable;
    if (status == ADL_OK)
        status = thin_out(s, later, most);
    states was = s->now;
    s->now = s->next;
    s->next = was;
    return status;
}

/* Those with most to lose first: bounds bite early. */
static int sort_open(solver *s)
{
    int count = s->problem->job_count;
    for (int j = 0; j < count; j++)
        s->order[j] = j;
    qsort_r(s->order, (size_t)count, sizeof *s->order, by_best, s->best);
    return count;
}

static adl_status program(solver *s)
{
    int count = sort_open(s);
    int64_t left[ROWS_MAX];
    double later = 0;
    for (int j = 0; j < count; j++)
        later += s->best[j];
    for (int r = 0; r < s->row_count; r++)
        left[r] = (int64_t)s->rows[r].room;
    adl_status status = clear_slots(s, 1);
    if (status == ADL_OK)
        status = add_state(s, left, 0, SIZE_MAX, -1);
    states first = s->now;
    s->now = s->next;
    s->next = first;
    for (int i = 0; i < count && status == ADL_OK && s->now.count > 0; i++) {
        later -= s->best[s->order[i]];
        status = step(s, s->order[i], later);
    }
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < s->now.count && status == ADL_OK; i++)
        if (s->now.value[i] > s->value + tiny) {
            s->value = s->now.value[i];
            best = s->now.trace[i];
        }
    for (int j = 0; best != SIZE_MAX && j < count; j++)
        s->taken[j] = -1;
    for (; best != SIZE_MAX; best = s->traces[best].parent)
        if (s->traces[best].option >= 0)
            s->taken[s->problem->options[s->traces[best].option].job] = s->traces[best].option;
    return status;
}

/* ---- all of it ---- */

static adl_status set_up(solver *s)
{
    const adli_choice_problem *p = s->problem;
    size_t jobs = (size_t)p->job_count, rows = (size_t)p->pool_count * (size_t)p->resource_count;
    if (rows > ROWS_MAX)
        return adli_fail(ADL_EINVAL, "a choice among more than %d resources", ROWS_MAX);
    s->first = adli_calloc(jobs + 1, sizeof *s->first);
    s->rows = adli_calloc(rows, sizeof *s->rows);
    s->use = adli_calloc(p->option_count * rows, sizeof *s->use);
    s->reduced = adli_calloc(p->option_count, sizeof *s->reduced);
    s->best = adli_calloc(jobs, sizeof *s->best);
    s->out = adli_calloc(p->option_count + rows, sizeof *s->out);
    s->none_out = adli_calloc(jobs, sizeof *s->none_out);
    s->room = adli_calloc(rows, sizeof *s->room);
    s->order = adli_calloc(jobs, sizeof *s->order);
    s->trial = adli_calloc(jobs, sizeof *s->trial);
    s->price = adli_calloc(2 * rows, sizeof *s->price);
    if (!s->first || !s->rows || !s->use || !s->reduced || !s->best || !s->out || !s->none_out ||
        !s->room || !s->order || !s->trial || !s->price)
        return adli_fail_memory("a choice");
    size_t o = 0;
    for (size_t j = 0; j <= jobs; j++) {
        while (o < p->option_count && p->options[o].job < (int)j)
            o++;
        s->first[j] = o;
    }
    find_rows(s);
    fill_use(s);
    return ADL_OK;
}

static void tear_down(solver *s)
{
    states *both[] = {&s->now, &s->next};
    for (size_t i = 0; i < ADLI_COUNT(both); i++) {
        free(both[i]->left);
        free(both[i]->value);
        free(both[i]->trace);
    }
    free(s->slots);
    free(s->traces);
    free(s->price);
    free(s->trial);
    free(s->order);
    free(s->room);
    free(s->none_out);
    free(s->out);
    free(s->best);
    free(s->reduced);
    free(s->use);
    free(s->rows);
    free(s->first);
}

adl_status adli_choice_solve(const adli_choice_problem *problem, int *taken,
                             adli_choice_result *result)
{
    solver s = {.problem = problem, .taken = taken, .exact = true, .value = 0};
    for (int j = 0; j < problem->job_count; j++)
        taken[j] = -1;
    adl_status status = set_up(&s);
    if (status == ADL_OK) {
        descend(&s);
        leave_out(&s);
        status = program(&s);
    }
    *result = (adli_choice_result){.value = s.value,
                                   .bound = s.exact ? s.value : s.bound,
                                   .states = s.looked_at,
                                   .exact = s.exact};
    tear_down(&s);
    return status;
}
