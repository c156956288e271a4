/* The genetic algorithm of the pollux policy: NSGA-II, generation by generation. Nothing is allocated
 * after the start. */
#include "policy/pollux.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Local improvement of one child, in steps. */
enum { IMPROVE_STEPS = 8 };

/* After so many fruitless improvements of the best solution in a row, they become this much rarer:
 * most decisions find little to do, since the last one's result is where they start. */
enum { PATIENCE = 24, RESTING = 8 };

/* ---- who is there ---- */

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

/* ---- generations ---- */

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
    adli_genome_breed(child, search, a, b);
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
    if (from == &search->genomes[search->best])
        search->fruitless = child->value > from->value ? 0 : search->fruitless + 1;
}

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
        adli_genome_repair(&search->genomes[search->alive], search);
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
            uint32_t share = search->fruitless < PATIENCE ? local : local / RESTING;
            if (adli_rng_below(&search->rng, 65536) < share)
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
