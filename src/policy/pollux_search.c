/* The genetic algorithm of the pollux policy: NSGA-II over jobs x nodes matrices of replica counts.
 *
 * A child: rows before a random job from one parent, the others from another (in the seeds' form
 * without the nodes beyond a cluster size drawn between the parents'); then mutation; then repair, job
 * by job in the order in which they take resources. Matrices are kept as rows of non-zero cells and
 * children are made in one pass over them, so the cost of a child follows the number of replicas,
 * not jobs x nodes. Nothing is allocated after the start. */
#include "policy/pollux.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Probabilities as 16-bit numbers, several of which come from one draw. */
enum { TENTH = 65536 / 10 };

/* Local improvement of one child, in steps. */
enum { IMPROVE_STEPS = 8 };

static inline bool chance(uint64_t bits, int shift, uint32_t probability)
{
    return ((bits >> shift) & 0xffff) < probability;
}

/* ---- genomes ---- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

void adli_genome_begin(adli_genome *genome, const adli_pollux_problem *problem)
{
    genome->start[0] = 0;
    genome->hash = 0;
    genome->size = problem->fixed_size;
    genome->value = problem->fixed.value;
    genome->utility = problem->fixed.utility;
}

void adli_genome_append(adli_genome *genome, const adli_pollux_problem *problem, int job,
                        const adli_cell *row, int count)
{
    const adli_pollux_job *view = &problem->jobs[job];
    int at = genome->start[job], replicas = 0;
    uint64_t hash = mix(genome->hash, (uint64_t)job);
    for (int i = 0; i < count; i++) {
        genome->cells[at + i] = row[i];
        replicas += row[i].count;
        hash = mix(hash, (uint64_t)row[i].node << 32 | (uint32_t)row[i].count);
    }
    if (count > 0 && row[count - 1].node >= genome->size)
        genome->size = row[count - 1].node + 1;
    adli_worth worth = adli_row_equal(row, count, view->base, view->base_count)
                           ? view->kept
                           : adli_pollux_moved(problem, view, count, replicas);
    genome->value += worth.value;
    genome->utility += worth.utility;
    genome->hash = hash;
    genome->start[job + 1] = at + count;
}

static bool genome_equal(const adli_genome *a, const adli_genome *b, int jobs)
{
    return a->hash == b->hash &&
           memcmp(a->start, b->start, ((size_t)jobs + 1) * sizeof *a->start) == 0 &&
           memcmp(a->cells, b->cells, (size_t)a->start[jobs] * sizeof *a->cells) == 0;
}

/* Adds genomes[index] to the set of known ones; false when there is one like it. */
static bool enter(adli_pollux_search *search, int index)
{
    const adli_genome *genome = &search->genomes[index];
    uint32_t at = (uint32_t)genome->hash & search->bucket_mask;
    for (; search->buckets[at] >= 0; at = (at + 1) & search->bucket_mask)
        if (genome_equal(genome, &search->genomes[search->buckets[at]], search->problem->job_count))
            return false;
    search->buckets[at] = index;
    return true;
}

static void enter_all(adli_pollux_search *search)
{
    memset(search->buckets, 0xff, ((size_t)search->bucket_mask + 1) * sizeof *search->buckets);
    for (int i = 0; i < search->alive; i++)
        (void)enter(search, i);
}

static void score(adli_pollux_search *search, int index)
{
    const adli_genome *genome = &search->genomes[index];
    search->points[index] = (adli_nsga2_point){
        .first = adli_pollux_first(search->problem, genome->value),
        .second = search->problem->form == ADLI_POLLUX_PAPER ? genome->utility : -genome->size};
}

/* ---- repair ---- */

static int capacity_at(const adli_pollux_search *search, int job, int node)
{
    const adli_pollux_problem *problem = search->problem;
    const adli_pollux_job *view = &problem->jobs[job];
    int fit = problem->capacity[(size_t)view->kind * (size_t)problem->node_count + (size_t)node];
    return fit < view->max ? fit : view->max;
}

/* Cuts cells to what is left on their nodes. Returns the replicas left. */
static int cut_to_capacity(adli_pollux_search *search, int job)
{
    int kept = 0, total = 0, kind = search->problem->jobs[job].kind;
    for (int i = 0; i < search->row_count; i++) {
        adli_cell cell = search->row[i];
        int most = capacity_at(search, job, cell.node);
        cell.count = adli_board_fit(&search->board, search->problem, kind, cell.node,
                                    cell.count < most ? cell.count : most);
        if (cell.count > 0) {
            search->row[kept++] = cell;
            total += cell.count;
        }
    }
    search->row_count = kept;
    return total;
}

/* A job on several nodes leaves those where another such job is. When that is all of them, it stays
 * on the one where it has most. */
static int cut_interference(adli_pollux_search *search, int total)
{
    int kept = 0, left = 0;
    adli_cell best = {0, 0};
    if (search->row_count < 2)
        return total;
    for (int i = 0; i < search->row_count; i++) {
        adli_cell cell = search->row[i];
        if (cell.count > best.count)
            best = cell;
        if (search->board.distributed[cell.node] > 0)
            continue;
        search->row[kept++] = cell;
        left += cell.count;
    }
    if (kept == 0) {
        search->row[kept++] = best;
        left = best.count;
    }
    search->row_count = kept;
    return left;
}

/* Takes replicas from random cells until no more than max are left. */
static void cut_to_maximum(adli_pollux_search *search, int total, int max)
{
    while (total > max) {
        int at = (int)adli_rng_below(&search->rng, (uint32_t)search->row_count);
        adli_cell *cell = &search->row[at];
        int cut = cell->count < total - max ? cell->count : total - max;
        cell->count -= cut;
        total -= cut;
        if (cell->count == 0) {
            search->row_count--;
            memmove(cell, cell + 1, (size_t)(search->row_count - at) * sizeof *cell);
        }
    }
}

/* Makes the row legal after those before it, takes its resources and appends it. */
static void settle(adli_pollux_search *search, adli_genome *genome, int job)
{
    const adli_pollux_problem *problem = search->problem;
    const adli_pollux_job *view = &problem->jobs[job];
    int total = cut_to_capacity(search, job);
    total = cut_interference(search, total);
    if (total > view->max)
        cut_to_maximum(search, total, view->max);
    if (total < view->min)
        search->row_count = 0;
    for (int i = 0; i < search->row_count; i++) {
        adli_cell cell = search->row[i];
        adli_board_take(&search->board, problem, view->kind, cell.node, cell.count);
        search->board.distributed[cell.node] += search->row_count > 1;
    }
    adli_genome_append(genome, problem, job, search->row, search->row_count);
}

/* ---- mutation ---- */

static void row_read(adli_pollux_search *search, const adli_cell *cells, int count)
{
    search->row_count = 0;
    for (int i = 0; i < count; i++) {
        int at = search->row_count++;
        for (; at > 0 && search->row[at - 1].node > cells[i].node; at--)
            search->row[at] = search->row[at - 1];
        search->row[at] = cells[i];
    }
}

/* The row's cell on the node, made (with 0 replicas) when there is none. */
static adli_cell *row_cell(adli_pollux_search *search, int node)
{
    int at = 0;
    while (at < search->row_count && search->row[at].node < node)
        at++;
    adli_cell *cell = &search->row[at];
    if (at == search->row_count || cell->node != node) {
        memmove(cell + 1, cell, (size_t)(search->row_count - at) * sizeof *cell);
        *cell = (adli_cell){node, 0};
        search->row_count++;
    }
    return cell;
}

/* How many of many cells are picked when each is with probability 1 / their number: Poisson. */
static int about_one(uint64_t bits, int choices)
{
    uint32_t draw = bits & 0xffff;
    if (choices < 2)
        return choices;
    return (draw >= 24109) + (draw >= 48218) + (draw >= 60273);
}

static void raise_cell(adli_pollux_search *search, int job, int node)
{
    int most = capacity_at(search, job, node);
    if (adli_board_fit(&search->room, search->problem, search->problem->jobs[job].kind, node,
                       most > 0) < 1)
        return;
    adli_cell *cell = row_cell(search, node);
    if (cell->count < most)
        cell->count = adli_rng_range(&search->rng, cell->count, most);
}

/* Paper's form: about one of the cells where more fits, and about one of those in use, become a
 * number between the present one and the most that the node takes. */
static void grow(adli_pollux_search *search, int job)
{
    if (search->roomy_count == 0)
        return;
    int picks = about_one(adli_rng_u64(&search->rng), search->roomy_count);
    int used = search->row_count > 0
                   ? search->row[adli_rng_below(&search->rng, (uint32_t)search->row_count)].node
                   : -1;
    for (int i = 0; i < picks; i++)
        raise_cell(search, job,
                   search->roomy[adli_rng_below(&search->rng, (uint32_t)search->roomy_count)]);
    if (used >= 0)
        raise_cell(search, job, used);
}

/* Seeds' form: about one of the cells that are zero and about one of the others become any number
 * that the node takes. Half of the time only within `limit`, so that small clusters are searched
 * as well as large ones. */
static void redraw(adli_pollux_search *search, int job, int limit)
{
    uint64_t bits = adli_rng_u64(&search->rng);
    int nodes = search->problem->node_count, before = search->row_count;
    int range = (bits >> 20) & 1 && limit > 0 ? limit : nodes;
    int picks = about_one(bits, range);
    int used = before > 0 ? search->row[adli_rng_below(&search->rng, (uint32_t)before)].node : -1;
    for (int i = 0; i < picks; i++) {
        int node = (int)adli_rng_below(&search->rng, (uint32_t)range);
        adli_cell *cell = row_cell(search, node);
        if (cell->count == 0)
            cell->count = adli_rng_range(&search->rng, 0, capacity_at(search, job, node));
    }
    if (used >= 0)
        row_cell(search, used)->count =
            adli_rng_range(&search->rng, 0, capacity_at(search, job, used));
}

/* ---- children ---- */

/* Copies a row without the nodes from limit on, and without a tenth of the rest when thin. */
static int copy_row(adli_pollux_search *search, adli_cell *to, const adli_cell *from, int count,
                    int limit, bool thin)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (from[i].node < limit && !(thin && chance(adli_rng_u64(&search->rng), 0, TENTH)))
            to[kept++] = from[i];
    return kept;
}

/* Crossover, and the part of the mutation that takes away: the draft. */
static void cross(adli_pollux_search *search, const adli_genome *a, const adli_genome *b, int limit)
{
    const adli_pollux_problem *problem = search->problem;
    bool paper = problem->form == ADLI_POLLUX_PAPER;
    int jobs = problem->job_count, point = (int)adli_rng_below(&search->rng, (uint32_t)jobs + 1);
    int at = 0;
    for (int job = 0; job < jobs; job++) {
        const adli_genome *from = job < point ? a : b;
        const adli_pollux_job *view = &problem->jobs[job];
        const adli_cell *row = from->cells + from->start[job];
        int count = from->start[job + 1] - from->start[job];
        uint64_t bits = paper ? adli_rng_u64(&search->rng) : UINT64_MAX;
        if (chance(bits, 0, TENTH)) {
            row = view->base;
            count = view->base_count;
        }
        search->draft_start[job] = at;
        at += copy_row(search, search->draft + at, row, count, limit, chance(bits, 16, TENTH));
    }
    search->draft_start[jobs] = at;
}

/* Finds the nodes that the draft leaves room on. */
static void find_room(adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    int resources = problem->resource_count;
    adli_board_clear(&search->room, problem);
    for (int job = 0; job < problem->job_count; job++)
        for (int i = search->draft_start[job]; i < search->draft_start[job + 1]; i++)
            adli_board_take(&search->room, problem, problem->jobs[job].kind, search->draft[i].node,
                            search->draft[i].count);
    search->roomy_count = 0;
    for (int node = 0; node < problem->node_count; node++) {
        const int64_t *free = search->room.free + (size_t)node * (size_t)resources;
        bool roomy = true;
        for (int r = 0; roomy && r < resources; r++)
            roomy = free[r] >= search->least[r];
        if (roomy)
            search->roomy[search->roomy_count++] = node;
    }
}

/* Repairs the draft into the genome, with growth on the way when there is a mutation. */
static void repair(adli_pollux_search *search, adli_genome *genome, bool mutate, int limit)
{
    const adli_pollux_problem *problem = search->problem;
    bool paper = problem->form == ADLI_POLLUX_PAPER;
    if (mutate && paper)
        find_room(search);
    adli_board_clear(&search->board, problem);
    adli_genome_begin(genome, problem);
    for (int job = 0; job < problem->job_count; job++) {
        int start = search->draft_start[job];
        row_read(search, search->draft + start, search->draft_start[job + 1] - start);
        if (mutate && paper)
            grow(search, job);
        else if (mutate)
            redraw(search, job, limit);
        settle(search, genome, job);
    }
}

static const adli_genome *parent(adli_pollux_search *search)
{
    uint32_t a = adli_rng_below(&search->rng, (uint32_t)search->alive);
    uint32_t b = adli_rng_below(&search->rng, (uint32_t)search->alive);
    const adli_nsga2_point *x = &search->points[a], *y = &search->points[b];
    return &search->genomes[adli_nsga2_wins(y, x) ? b : a];
}

static void breed(adli_pollux_search *search, adli_genome *child)
{
    const adli_genome *a = parent(search), *b = parent(search);
    int limit = search->problem->node_count;
    if (search->problem->form == ADLI_POLLUX_SEEDS)
        limit = a->size < b->size ? adli_rng_range(&search->rng, a->size, b->size)
                                  : adli_rng_range(&search->rng, b->size, a->size);
    cross(search, a, b, limit);
    repair(search, child, true, limit);
}

/* A better version of one that is alive: of the best by the first objective half of the time in the
 * paper's form, where that one will be the answer. */
static void refine(adli_pollux_search *search, adli_genome *child)
{
    bool paper = search->problem->form == ADLI_POLLUX_PAPER;
    const adli_genome *from = parent(search);
    if (paper && adli_rng_below(&search->rng, 2) == 0)
        from = &search->genomes[search->best];
    adli_layout_load(&search->layout, from);
    adli_layout_improve(&search->layout, paper ? search->problem->node_count : from->size,
                        IMPROVE_STEPS, &search->rng);
    adli_layout_store(&search->layout, child);
}

/* ---- generations ---- */

static void select_survivors(adli_pollux_search *search, int count)
{
    int keep = count < search->options->population ? count : search->options->population;
    adli_nsga2_survive(search->points, count, search->ranks, keep, search->survivors);
    size_t all = 2 * (size_t)search->options->population;
    memcpy(search->spare, search->genomes, all * sizeof *search->spare);
    memcpy(search->spare_points, search->points, (size_t)count * sizeof *search->spare_points);
    for (int i = 0; i < keep; i++) {
        search->genomes[i] = search->spare[search->survivors[i]];
        search->points[i] = search->spare_points[search->survivors[i]];
        search->spare[search->survivors[i]].cells = NULL;
    }
    size_t next = (size_t)keep; /* the others' storage is used again */
    for (size_t i = 0; i < all; i++)
        if (search->spare[i].cells)
            search->genomes[next++] = search->spare[i];
    search->alive = keep;
    search->best = 0;
    for (int i = 1; i < keep; i++)
        if (search->points[i].first > search->points[search->best].first)
            search->best = i;
    enter_all(search);
}

/* Makes genomes[count] known when it is a new one. Returns how many there are then. */
static int admit(adli_pollux_search *search, int count)
{
    if (!enter(search, count))
        return count;
    score(search, count);
    return count + 1;
}

void adli_pollux_search_add(adli_pollux_search *search)
{
    if (search->alive < search->options->population) {
        repair(search, &search->genomes[search->alive], false, 0);
        search->alive = admit(search, search->alive);
    }
}

static void add_layout(adli_pollux_search *search)
{
    if (search->alive < search->options->population) {
        adli_layout_store(&search->layout, &search->genomes[search->alive]);
        search->alive = admit(search, search->alive);
    }
}

/* Adds the present allocation and what the greedy rule makes of an empty cluster (in the seeds' form:
 * of clusters of several sizes). */
static void add_starts(adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    int nodes = problem->node_count, at = 0;
    for (int job = 0; job < problem->job_count; job++) {
        const adli_pollux_job *view = &problem->jobs[job];
        search->draft_start[job] = at;
        for (int i = 0; i < view->base_count; i++)
            search->draft[at++] = view->base[i];
    }
    search->draft_start[problem->job_count] = at;
    adli_pollux_search_add(search);
    if (search->options->local <= 0)
        return;
    int sizes = problem->form == ADLI_POLLUX_PAPER ? 1 : nodes < 8 ? nodes : 8;
    for (int i = 1; i <= sizes; i++) {
        int limit = (int)((int64_t)nodes * i / sizes);
        adli_layout_construct(&search->layout,
                              limit > problem->fixed_size ? limit : problem->fixed_size);
        add_layout(search);
    }
}

void adli_pollux_search_run(adli_pollux_search *search)
{
    int population = search->options->population, tries;
    select_survivors(search, search->alive);
    int count = search->alive;
    for (tries = 0; count < population && tries < 2 * population; tries++) {
        breed(search, &search->genomes[count]);
        count = admit(search, count);
    }
    select_survivors(search, count);
    uint32_t local = (uint32_t)(search->options->local * 65536);
    for (int generation = 0; generation < search->options->generations; generation++) {
        count = search->alive;
        for (tries = 0; count < 2 * population && tries < 2 * population; tries++) {
            if (chance(adli_rng_u64(&search->rng), 0, local))
                refine(search, &search->genomes[count]);
            else
                breed(search, &search->genomes[count]);
            count = admit(search, count);
        }
        select_survivors(search, count);
    }
}

/* ---- storage ---- */

static void assign_storage(adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    for (size_t i = 0; i < 2 * (size_t)search->options->population; i++) {
        search->genomes[i].cells = search->cells + i * problem->genome_cells;
        search->genomes[i].start = search->starts + i * ((size_t)problem->job_count + 1);
    }
    for (int r = 0; r < problem->resource_count; r++) {
        search->least[r] = INT64_MAX;
        for (int kind = 0; kind < problem->kind_count; kind++) {
            int64_t amount = problem->request[kind * problem->resource_count + r];
            if (amount < search->least[r])
                search->least[r] = amount;
        }
    }
    enter_all(search);
}

adl_status adli_pollux_search_init(adli_pollux_search *search, const adli_pollux_problem *problem,
                                   const adli_pollux_options *options, uint64_t seed)
{
    size_t all = 2 * (size_t)options->population, jobs = (size_t)problem->job_count;
    size_t nodes = (size_t)problem->node_count, buckets = 16;
    while (buckets < 2 * all)
        buckets *= 2;
    *search = (adli_pollux_search){
        .problem = problem,
        .options = options,
        .bucket_mask = (uint32_t)(buckets - 1),
        .genomes = adli_calloc(all, sizeof *search->genomes),
        .points = adli_calloc(all, sizeof *search->points),
        .cells = adli_calloc(all, problem->genome_cells * sizeof *search->cells),
        .starts = adli_calloc(all, (jobs + 1) * sizeof *search->starts),
        .draft = adli_calloc(problem->row_cells, sizeof *search->draft),
        .draft_start = adli_calloc(jobs + 1, sizeof *search->draft_start),
        .row = adli_calloc(nodes, sizeof *search->row),
        .roomy = adli_calloc(nodes, sizeof *search->roomy),
        .least = adli_calloc((size_t)problem->resource_count, sizeof *search->least),
        .ranks = adli_calloc(2 * all, sizeof *search->ranks),
        .survivors = adli_calloc(all, sizeof *search->survivors),
        .spare = adli_calloc(all, sizeof *search->spare),
        .spare_points = adli_calloc(all, sizeof *search->spare_points),
        .buckets = adli_calloc(buckets, sizeof *search->buckets),
    };
    adli_rng_init(&search->rng, seed);
    adl_status status = ADL_OK;
    if (!search->genomes || !search->points || !search->cells || !search->starts ||
        !search->draft || !search->draft_start || !search->row || !search->roomy ||
        !search->least || !search->ranks || !search->survivors || !search->spare ||
        !search->spare_points || !search->buckets)
        status = adli_fail_memory("population of the search");
    if (status == ADL_OK)
        status = adli_board_init(&search->board, problem);
    if (status == ADL_OK)
        status = adli_board_init(&search->room, problem);
    if (status == ADL_OK)
        status = adli_layout_init(&search->layout, problem);
    if (status != ADL_OK) {
        adli_pollux_search_fini(search);
        return status;
    }
    assign_storage(search);
    add_starts(search);
    return ADL_OK;
}

void adli_pollux_search_fini(adli_pollux_search *search)
{
    adli_layout_fini(&search->layout);
    adli_board_fini(&search->room);
    adli_board_fini(&search->board);
    free(search->buckets);
    free(search->spare_points);
    free(search->spare);
    free(search->survivors);
    free(search->ranks);
    free(search->least);
    free(search->roomy);
    free(search->row);
    free(search->draft_start);
    free(search->draft);
    free(search->starts);
    free(search->cells);
    free(search->points);
    free(search->genomes);
    *search = (adli_pollux_search){0};
}
