/* Local improvement for the genetic search: takes a few jobs out of a solution and lays them out anew
 * where that is worth more. Random variation finds which jobs belong together; this finds the
 * exact sizes and nodes, which it would take random steps thousands of tries to hit.
 *
 * Laying out is greedy with jumps: of all (job, larger size) pairs that fit, take the one with the
 * largest gain in value per share of the cluster, until nothing gains. Values only shrink in reach
 * as the nodes fill, so an offer once computed is an upper bound, and only the best one needs to
 * be looked at again. */
#include "policy/pollux.h"

#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What a job would take next. */
typedef struct adli_offer {
    double density; /* gain per share; <= 0: nothing */
    int replicas, type;
    unsigned changes; /* layout->changes when it was made */
    bool kept;        /* its present row */
} adli_offer;

/* Decides between rows of equal value, such as those of a job too young for its factor to be above
 * 0; too small to outweigh a value. */
static const double utility_weight = 1e-6;

enum { STEP_JOBS = 12 }; /* jobs taken out in one step at most */

adl_status adli_board_init(adli_board *board, const adli_pollux_problem *problem)
{
    size_t nodes = (size_t)problem->node_count;
    board->free = adli_calloc(nodes * (size_t)problem->resource_count, sizeof *board->free);
    board->distributed = adli_calloc(nodes, sizeof *board->distributed);
    return board->free && board->distributed ? ADL_OK : adli_fail_memory("board of the search");
}

void adli_board_fini(adli_board *board)
{
    free(board->distributed);
    free(board->free);
    *board = (adli_board){0};
}

void adli_board_clear(adli_board *board, const adli_pollux_problem *problem)
{
    size_t nodes = (size_t)problem->node_count;
    memcpy(board->free, problem->free,
           nodes * (size_t)problem->resource_count * sizeof *board->free);
    memcpy(board->distributed, problem->pinned, nodes * sizeof *board->distributed);
}

/* ---- rows on the board ---- */

static void clear(adli_layout *layout)
{
    adli_board_clear(&layout->board, layout->problem);
    for (int node = 0; node < layout->problem->node_count; node++)
        layout->versions[node]++;
}

/* Puts the job's row on the board (sign 1) or takes it off (sign -1). */
static void put(adli_layout *layout, int job, int sign)
{
    const adli_cell *row = layout->rows[job];
    int count = layout->counts[job], kind = layout->problem->jobs[job].kind;
    for (int i = 0; i < count; i++) {
        adli_board_take(&layout->board, layout->problem, kind, row[i].node, sign * row[i].count);
        layout->board.distributed[row[i].node] += count > 1 ? sign : 0;
        layout->versions[row[i].node]++;
    }
    layout->changes += count > 0;
}

static double score(adli_worth worth)
{
    return worth.value + utility_weight * worth.utility;
}

static void set_row(adli_layout *layout, int job, const adli_cell *row, int count)
{
    const adli_pollux_job *view = &layout->problem->jobs[job];
    int replicas = 0;
    for (int i = 0; i < count; i++)
        replicas += row[i].count;
    if (count > 0 && row != layout->rows[job])
        memcpy(layout->rows[job], row, (size_t)count * sizeof *row);
    layout->counts[job] = count;
    layout->replicas[job] = replicas;
    layout->worths[job] =
        adli_row_equal(row, count, view->base, view->base_count)
            ? view->kept
            : adli_pollux_moved(
                  layout->problem, view,
                  (adl_shape){count, replicas, adli_row_type(layout->problem, row, count)});
}

/* ---- what fits ---- */

/* How many more of a kind fit on a node, remembered until the node changes. */
static int fit_at(adli_layout *layout, int kind, int node)
{
    const adli_pollux_problem *problem = layout->problem;
    size_t at = (size_t)kind * (size_t)problem->node_count + (size_t)node;
    adli_fit *known = &layout->known[at];
    if (known->version != layout->versions[node])
        *known = (adli_fit){layout->versions[node], adli_board_fit(&layout->board, problem, kind,
                                                                   node, problem->capacity[at])};
    return known->fit;
}

/* Other jobs on the node that use other nodes too. */
static int rivals_at(const adli_layout *layout, int job, int node)
{
    bool own = false;
    for (int i = 0; layout->counts[job] > 1 && i < layout->counts[job]; i++)
        own |= layout->rows[job][i].node == node;
    return layout->board.distributed[node] - own;
}

/* What a device type would take of a job. */
typedef struct type_room {
    int single;    /* the best of its nodes */
    int64_t multi; /* all of those without rivals */
} type_room;

/* Writes to fits how many replicas of the job each node would take if its row were off the board, and to
 * room how many each type. */
static void find_fits(adli_layout *layout, int job, int limit, type_room *room)
{
    const int *type_of = layout->problem->type_of;
    int kind = layout->problem->jobs[job].kind, count = layout->counts[job];
    for (int t = 0; t < layout->problem->type_count; t++)
        room[t] = (type_room){0, 0};
    for (int node = 0; node < limit; node++) {
        int fit = fit_at(layout, kind, node);
        type_room *on = &room[type_of[node]];
        layout->fits[node] = fit;
        on->single = fit > on->single ? fit : on->single;
        on->multi += layout->board.distributed[node] == 0 ? fit : 0;
    }
    for (int i = 0; i < count; i++) {
        adli_cell cell = layout->rows[job][i];
        bool free_before = layout->board.distributed[cell.node] == 0;
        int fit = layout->fits[cell.node] += cell.count;
        type_room *on = &room[type_of[cell.node]];
        on->single = fit > on->single ? fit : on->single;
        if (free_before)
            on->multi += cell.count;
        else if (rivals_at(layout, job, cell.node) == 0)
            on->multi += fit;
    }
    layout->fits_of = job;
}

/* Would the job's present row fit, given its fits? */
static bool base_fits(const adli_layout *layout, int job, int limit)
{
    const adli_pollux_job *view = &layout->problem->jobs[job];
    bool fits = view->base_legal && view->base_count > 0;
    for (int i = 0; fits && i < view->base_count; i++) {
        int node = view->base[i].node;
        fits = node < limit && layout->fits[node] >= view->base[i].count &&
               !(view->base_count > 1 && rivals_at(layout, job, node) > 0);
    }
    return fits;
}

/* ---- sizes ---- */

/* The best thing that the job could have more of. */
static adli_offer best_offer(adli_layout *layout, int job, int limit)
{
    const adli_pollux_problem *problem = layout->problem;
    const adli_pollux_job *view = &problem->jobs[job];
    int now = layout->replicas[job];
    double have = score(layout->worths[job]);
    adli_offer best = {.changes = layout->changes};
    type_room room[ADL_MAX_TYPES];
    find_fits(layout, job, limit, room);
    for (int t = 0; t < problem->type_count; t++) {
        int64_t most = room[t].single > room[t].multi ? room[t].single : room[t].multi;
        if (most > view->max)
            most = view->max;
        for (int replicas = now < view->min ? view->min : now + 1; replicas <= most; replicas++) {
            adl_shape shape = {replicas <= room[t].single ? 1 : 2, replicas, t};
            adli_worth worth = adli_pollux_moved(problem, view, shape);
            double density = (score(worth) - have) / ((replicas - now) * view->share);
            if (density > best.density) {
                best.density = density;
                best.replicas = replicas;
                best.type = t;
            }
        }
    }
    if (view->base_replicas >= now && score(view->kept) > have && base_fits(layout, job, limit)) {
        int more = view->base_replicas - now;
        double density = more > 0 ? (score(view->kept) - have) / (more * view->share) : HUGE_VAL;
        if (density >= best.density)
            best = (adli_offer){density, view->base_replicas,
                                adli_row_type(problem, view->base, view->base_count),
                                layout->changes, true};
    }
    return best;
}

/* The node where the fewest are left over of those that take all of `wanted`, or when shaken any of
 * them; -1: none. */
static int tightest(const adli_layout *layout, int limit, int wanted, bool alone)
{
    int best = -1;
    uint32_t seen = 0;
    for (int node = 0; node < limit; node++) {
        if (layout->fits[node] < wanted || (alone && layout->board.distributed[node] > 0))
            continue;
        bool better = best < 0 || layout->fits[node] < layout->fits[best];
        if (layout->shaken)
            better = adli_rng_below(layout->shaken, ++seen) == 0;
        if (better)
            best = node;
    }
    return best;
}

static int roomiest(const adli_layout *layout, int limit)
{
    int best = -1;
    for (int node = 0; node < limit; node++)
        if (layout->fits[node] > 0 && layout->board.distributed[node] == 0 &&
            (best < 0 || layout->fits[node] > layout->fits[best]))
            best = node;
    return best;
}

static void insert_cell(adli_cell *row, int *count, int node, int replicas)
{
    int at = (*count)++;
    for (; at > 0 && row[at - 1].node > node; at--)
        row[at] = row[at - 1];
    row[at] = (adli_cell){node, replicas};
}

/* Accepts the job's offer; fits is as best_offer left it. */
static void accept_offer(adli_layout *layout, int job, int limit, const adli_offer *offer)
{
    const adli_pollux_job *view = &layout->problem->jobs[job];
    adli_cell *row = layout->rows[job];
    int count = 0, left = offer->replicas;
    put(layout, job, -1);
    if (offer->kept) {
        set_row(layout, job, view->base, view->base_count);
        put(layout, job, 1);
        return;
    }
    for (int n = 0; layout->problem->type_count > 1 && n < limit; n++)
        if (layout->problem->type_of[n] != offer->type)
            layout->fits[n] = 0;
    int node = tightest(layout, limit, left, false);
    if (node >= 0) {
        insert_cell(row, &count, node, left);
        left = 0;
    }
    while (left > 0) {
        node = tightest(layout, limit, left, true);
        if (node < 0)
            node = roomiest(layout, limit);
        int taken = layout->fits[node] < left ? layout->fits[node] : left;
        insert_cell(row, &count, node, taken);
        layout->fits[node] = 0;
        left -= taken;
    }
    set_row(layout, job, row, count);
    put(layout, job, 1);
}

/* Who takes next; -1: nobody gains. */
static int best_placed(const adli_layout *layout, int chosen)
{
    int best = -1;
    double most = 0;
    for (int i = 0; i < chosen; i++) {
        double density = layout->offers[i].density * layout->weights[i];
        if (density > most) {
            best = i;
            most = density;
        }
    }
    return best;
}

/* Gives the chosen jobs, whose rows are empty, what they gain most by. Shaken: with some of them
 * preferred at random, and on any nodes, because always the same greedy choice leads always to the
 * same place. */
static void lay_out(adli_layout *layout, int chosen, int limit, adli_rng *shaken)
{
    layout->shaken = shaken;
    for (int i = 0; i < chosen; i++) {
        layout->weights[i] = shaken ? ldexp(1, adli_rng_range(shaken, -3, 3)) : 1;
        layout->offers[i] = best_offer(layout, layout->chosen[i], limit);
    }
    for (;;) {
        int best = best_placed(layout, chosen);
        if (best < 0)
            return;
        int job = layout->chosen[best];
        adli_offer offer = layout->offers[best];
        if (offer.changes != layout->changes || layout->fits_of != job) {
            double bound = offer.density;
            offer = layout->offers[best] = best_offer(layout, job, limit);
            if (offer.density < bound)
                continue;
        }
        accept_offer(layout, job, limit, &offer);
        layout->offers[best] = best_offer(layout, job, limit);
    }
}

void adli_layout_construct(adli_layout *layout, int limit)
{
    clear(layout);
    for (int job = 0; job < layout->problem->job_count; job++) {
        set_row(layout, job, NULL, 0);
        layout->chosen[job] = job;
    }
    lay_out(layout, layout->problem->job_count, limit, NULL);
}

/* ---- steps ---- */

static int choose(adli_layout *layout, int chosen, int job)
{
    for (int i = 0; i < chosen; i++)
        if (layout->chosen[i] == job)
            return chosen;
    layout->chosen[chosen] = job;
    return chosen + 1;
}

static int choose_on_node(adli_layout *layout, int chosen, int node)
{
    for (int job = 0; job < layout->problem->job_count && chosen < STEP_JOBS; job++)
        for (int i = 0; i < layout->counts[job]; i++)
            if (layout->rows[job][i].node == node && chosen < STEP_JOBS)
                chosen = choose(layout, chosen, job);
    return chosen;
}

/* The jobs of a step: those on one or two nodes and one more, or a few at random. */
static int choose_some(adli_layout *layout, int limit, adli_rng *rng)
{
    uint32_t jobs = (uint32_t)layout->problem->job_count;
    int chosen = 0, nodes = adli_rng_range(rng, 0, 2), others = nodes > 0 ? 1 : 3;
    for (int i = 0; i < nodes; i++)
        chosen = choose_on_node(layout, chosen, (int)adli_rng_below(rng, (uint32_t)limit));
    for (int i = 0; i < others && chosen < STEP_JOBS; i++)
        chosen = choose(layout, chosen, (int)adli_rng_below(rng, jobs));
    return chosen;
}

static adli_worth total(const adli_layout *layout, int chosen)
{
    adli_worth sum = {0};
    for (int i = 0; i < chosen; i++) {
        sum.value += layout->worths[layout->chosen[i]].value;
        sum.utility += layout->worths[layout->chosen[i]].utility;
    }
    return sum;
}

static void step(adli_layout *layout, int limit, adli_rng *rng)
{
    int chosen = choose_some(layout, limit, rng);
    adli_worth before = total(layout, chosen);
    adli_cell *saved = layout->saved;
    for (int i = 0; i < chosen; i++) {
        int job = layout->chosen[i];
        memcpy(saved, layout->rows[job], (size_t)layout->counts[job] * sizeof *saved);
        layout->saved_counts[i] = layout->counts[job];
        saved += layout->counts[job];
        put(layout, job, -1);
        set_row(layout, job, NULL, 0);
    }
    lay_out(layout, chosen, limit, adli_rng_below(rng, 2) ? rng : NULL);
    if (score(total(layout, chosen)) >= score(before))
        return;
    for (int i = 0; i < chosen; i++)
        put(layout, layout->chosen[i], -1);
    saved = layout->saved;
    for (int i = 0; i < chosen; i++) {
        set_row(layout, layout->chosen[i], saved, layout->saved_counts[i]);
        saved += layout->saved_counts[i];
        put(layout, layout->chosen[i], 1);
    }
}

void adli_layout_improve(adli_layout *layout, int limit, int steps, adli_rng *rng)
{
    for (int i = 0; i < steps && limit > 0 && layout->problem->job_count > 0; i++)
        step(layout, limit, rng);
}

/* ---- storage ---- */

adl_status adli_layout_init(adli_layout *layout, const adli_pollux_problem *problem)
{
    size_t jobs = (size_t)problem->job_count, nodes = (size_t)problem->node_count;
    layout->problem = problem;
    layout->rows = adli_calloc(jobs, sizeof *layout->rows);
    layout->counts = adli_calloc(jobs, sizeof *layout->counts);
    layout->replicas = adli_calloc(jobs, sizeof *layout->replicas);
    layout->worths = adli_calloc(jobs, sizeof *layout->worths);
    layout->cells = adli_calloc(problem->row_cells, sizeof *layout->cells);
    layout->saved = adli_calloc(problem->row_cells, sizeof *layout->saved);
    layout->saved_counts = adli_calloc(STEP_JOBS, sizeof *layout->saved_counts);
    layout->chosen = adli_calloc(jobs + STEP_JOBS, sizeof *layout->chosen);
    layout->offers = adli_calloc(jobs + STEP_JOBS, sizeof *layout->offers);
    layout->weights = adli_calloc(jobs + STEP_JOBS, sizeof *layout->weights);
    layout->fits = adli_calloc(nodes, sizeof *layout->fits);
    layout->versions = adli_calloc(nodes, sizeof *layout->versions);
    layout->known = adli_calloc(nodes, (size_t)problem->kind_count * sizeof *layout->known);
    if (!layout->rows || !layout->counts || !layout->replicas || !layout->worths ||
        !layout->cells || !layout->saved || !layout->saved_counts || !layout->chosen ||
        !layout->offers || !layout->weights || !layout->fits || !layout->versions || !layout->known)
        return adli_fail_memory("local improvement of the search");
    adli_cell *next = layout->cells;
    for (size_t job = 0; job < jobs; job++) {
        layout->rows[job] = next;
        next += adli_pollux_row_cells(problem, &problem->jobs[job]);
    }
    return adli_board_init(&layout->board, problem);
}

void adli_layout_fini(adli_layout *layout)
{
    adli_board_fini(&layout->board);
    free(layout->known);
    free(layout->versions);
    free(layout->fits);
    free(layout->weights);
    free(layout->offers);
    free(layout->chosen);
    free(layout->saved_counts);
    free(layout->saved);
    free(layout->cells);
    free(layout->worths);
    free(layout->replicas);
    free(layout->counts);
    free(layout->rows);
    *layout = (adli_layout){0};
}

void adli_layout_load(adli_layout *layout, const adli_genome *genome)
{
    clear(layout);
    for (int job = 0; job < layout->problem->job_count; job++) {
        set_row(layout, job, genome->cells + genome->start[job],
                genome->start[job + 1] - genome->start[job]);
        put(layout, job, 1);
    }
}

void adli_layout_store(const adli_layout *layout, adli_genome *genome)
{
    adli_genome_begin(genome, layout->problem);
    for (int job = 0; job < layout->problem->job_count; job++)
        adli_genome_append(genome, layout->problem, job, layout->rows[job], layout->counts[job]);
}
