/* Solutions of the genetic search and how new ones are made of old ones.
 *
 * A child: rows before a random job from one parent, the others from another (in the seeds' form
 * without the nodes beyond a cluster size drawn between the parents'); then mutation; then repair, job
 * by job in the order in which they take resources. Matrices are kept as rows of non-zero cells and
 * a child is made in one pass over them, so its cost follows the number of replicas, not jobs x
 * nodes. This is where a decision spends its time. */
#include "policy/pollux.h"

/* Probabilities as 16-bit numbers, several of which come from one draw. */
enum { TENTH = 65536 / 10 };

static inline bool chance(uint64_t bits, uint32_t probability)
{
    return (bits & 0xffff) < probability;
}

/* ---- writing ---- */

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
    uint64_t hash = genome->hash;
    for (int i = 0; i < count; i++) {
        uint64_t word = (uint64_t)(job + 1) * 0xd1342543de82ef95u + (uint64_t)row[i].node;
        word = (word << 17 ^ word >> 23 ^ (uint64_t)row[i].count) * 0x9e3779b97f4a7c15u;
        hash += word ^ word >> 29;
        genome->cells[at + i] = row[i];
        replicas += row[i].count;
    }
    if (count > 0 && row[count - 1].node >= genome->size)
        genome->size = row[count - 1].node + 1;
    adli_worth worth =
        adli_row_equal(row, count, view->base, view->base_count)
            ? view->kept
            : adli_pollux_moved(problem, view,
                                (adl_shape){count, replicas, adli_row_type(problem, row, count)});
    genome->value += worth.value;
    genome->utility += worth.utility;
    genome->hash = hash;
    genome->start[job + 1] = at + count;
}

/* ---- repair ---- */

static inline int most_at(const adli_pollux_job *job, int node)
{
    return job->capacity[node] < job->max ? job->capacity[node] : job->max;
}

/* A job on several nodes leaves those where another such job is. When that is all of them, it stays
 * on the one where it has most. Returns the cells left. */
static int cut_interference(const adli_board *board, adli_cell *row, int count, int *replicas)
{
    int kept = 0, left = 0;
    adli_cell best = row[0];
    for (int i = 0; i < count; i++) {
        adli_cell cell = row[i];
        if (cell.count > best.count)
            best = cell;
        if (board->distributed[cell.node] > 0)
            continue;
        row[kept++] = cell;
        left += cell.count;
    }
    if (kept == 0) {
        row[kept++] = best;
        left = best.count;
    }
    *replicas = left;
    return kept;
}

/* A job keeps to the device type on which it has most, the first of equals. Returns the cells left. */
static int cut_types(const adli_pollux_problem *problem, adli_cell *row, int count, int *replicas)
{
    int on[ADL_MAX_TYPES] = {0}, best = 0, kept = 0;
    for (int i = 0; i < count; i++)
        on[problem->type_of[row[i].node]] += row[i].count;
    for (int t = 1; t < problem->type_count; t++)
        best = on[t] > on[best] ? t : best;
    for (int i = 0; i < count; i++)
        if (problem->type_of[row[i].node] == best)
            row[kept++] = row[i];
    *replicas = on[best];
    return kept;
}

/* Takes replicas from random cells until only max are left. Returns the cells left. */
static int cut_to_maximum(adli_rng *rng, adli_cell *row, int count, int replicas, int max)
{
    while (replicas > max) {
        int at = (int)adli_rng_below(rng, (uint32_t)count);
        int cut = row[at].count < replicas - max ? row[at].count : replicas - max;
        row[at].count -= cut;
        replicas -= cut;
        if (row[at].count > 0)
            continue;
        count--;
        for (; at < count; at++)
            row[at] = row[at + 1];
    }
    return count;
}

/* Makes the row in search->row legal after those before it, takes its resources, appends it. */
static void settle(adli_pollux_search *search, adli_genome *genome, int job, int cells)
{
    const adli_pollux_problem *problem = search->problem;
    const adli_pollux_job *view = &problem->jobs[job];
    adli_cell *row = search->row;
    int count = 0, replicas = 0;
    for (int i = 0; i < cells; i++) {
        adli_cell cell = row[i];
        int most = most_at(view, cell.node);
        cell.count = adli_board_fit(&search->board, problem, view->kind, cell.node,
                                    cell.count < most ? cell.count : most);
        if (cell.count == 0)
            continue;
        row[count++] = cell;
        replicas += cell.count;
    }
    if (count > 1 && problem->type_count > 1)
        count = cut_types(problem, row, count, &replicas);
    if (count > 1)
        count = cut_interference(&search->board, row, count, &replicas);
    if (replicas > view->max) {
        count = cut_to_maximum(&search->rng, row, count, replicas, view->max);
        replicas = view->max;
    }
    if (replicas < view->min)
        count = 0;
    for (int i = 0; i < count; i++) {
        adli_board_take(&search->board, problem, view->kind, row[i].node, row[i].count);
        search->board.distributed[row[i].node] += count > 1;
    }
    adli_genome_append(genome, problem, job, row, count);
}

/* ---- mutation ---- */

/* Sets the row's cell on a node; 0 may stay in the row until the repair. Returns the cells. */
static inline int set_cell(adli_cell *row, int count, int node, int replicas)
{
    int at = count;
    while (at > 0 && row[at - 1].node >= node)
        at--;
    if (at == count || row[at].node != node) {
        for (int i = count; i > at; i--)
            row[i] = row[i - 1];
        count++;
    }
    row[at] = (adli_cell){node, replicas};
    return count;
}

static inline int get_cell(const adli_cell *row, int count, int node)
{
    for (int i = 0; i < count; i++)
        if (row[i].node == node)
            return row[i].count;
    return 0;
}

/* How many of many cells are picked when each is with probability 1 / their number: Poisson. */
static inline int about_one(uint64_t bits, int choices)
{
    uint32_t draw = bits & 0xffff;
    return choices < 2 ? choices : (draw >= 24109) + (draw >= 48218) + (draw >= 60273);
}

/* Where one more replica fits, the cell becomes a number between the present one and the most that
 * the node takes. Returns the cells. */
static inline int raise_cell(adli_pollux_search *search, const adli_pollux_job *job, int count,
                             int node)
{
    int most = most_at(job, node), present = get_cell(search->row, count, node);
    if (present >= most || adli_board_fit(&search->room, search->problem, job->kind, node, 1) == 0)
        return count;
    int value = adli_rng_range(&search->rng, present, most);
    return value > present ? set_cell(search->row, count, node, value) : count;
}

/* Paper's form: about one of the cells where more fits, and about one of those in use, grow. */
static int grow(adli_pollux_search *search, const adli_pollux_job *job, int count)
{
    uint64_t bits = adli_rng_u64(&search->rng);
    int picks = about_one(bits, search->roomy_count);
    int used = count > 0 ? search->row[((bits >> 16 & 0xffff) * (uint64_t)count) >> 16].node : -1;
    for (int i = 0; i < picks; i++)
        count =
            raise_cell(search, job, count,
                       search->roomy[adli_rng_below(&search->rng, (uint32_t)search->roomy_count)]);
    return used >= 0 ? raise_cell(search, job, count, used) : count;
}

/* Seeds' form: about one of the cells that are zero and about one of the others become any number
 * that the node takes. Half of the time only within `limit`, so that small clusters are searched
 * as well as large ones. */
static int redraw(adli_pollux_search *search, const adli_pollux_job *job, int count, int limit)
{
    uint64_t bits = adli_rng_u64(&search->rng);
    int range = bits >> 63 && limit > 0 ? limit : search->problem->node_count;
    int picks = about_one(bits, range);
    int used = count > 0 ? search->row[((bits >> 16 & 0xffff) * (uint64_t)count) >> 16].node : -1;
    for (int i = 0; i < picks; i++) {
        int node = (int)adli_rng_below(&search->rng, (uint32_t)range);
        int value = adli_rng_range(&search->rng, 0, most_at(job, node));
        if (get_cell(search->row, count, node) == 0)
            count = set_cell(search->row, count, node, value);
    }
    if (used < 0)
        return count;
    return set_cell(search->row, count, used, adli_rng_range(&search->rng, 0, most_at(job, used)));
}

/* Finds the nodes where one more replica of some job may fit. */
static void find_roomy(adli_pollux_search *search)
{
    int resources = search->problem->resource_count, count = 0;
    const int64_t *free = search->room.free;
    for (int node = 0; node < search->problem->node_count; node++, free += resources) {
        bool roomy = free[0] >= search->least[0];
        for (int r = 1; roomy && r < resources; r++)
            roomy = free[r] >= search->least[r];
        search->roomy[count] = node;
        count += roomy;
    }
    search->roomy_count = count;
}

/* ---- children ---- */

/* Copies a row to the draft without the nodes from limit on and, when thin, without a tenth of the
 * rest. Returns the draft's new length. */
static inline int draft_row(adli_pollux_search *search, int at, const adli_cell *row, int count,
                            int kind, int limit, bool thin)
{
    for (int i = 0; i < count; i++) {
        adli_cell cell = row[i];
        if (cell.node >= limit || (thin && chance(adli_rng_u64(&search->rng), TENTH)))
            continue;
        search->draft[at++] = cell;
        adli_board_take(&search->room, search->problem, kind, cell.node, cell.count);
    }
    return at;
}

/* Crossover, and the part of the mutation that takes away: in the paper's form a tenth of the jobs
 * goes back to its present row, and a tenth loses a tenth of its cells. */
static void cross(adli_pollux_search *search, const adli_genome *a, const adli_genome *b, int limit)
{
    const adli_pollux_problem *problem = search->problem;
    bool paper = problem->form == ADLI_POLLUX_PAPER;
    int jobs = problem->job_count, point = (int)adli_rng_below(&search->rng, (uint32_t)jobs + 1);
    int at = 0;
    adli_board_clear(&search->room, problem);
    for (int job = 0; job < jobs; job++) {
        const adli_genome *from = job < point ? a : b;
        const adli_pollux_job *view = &problem->jobs[job];
        const adli_cell *row = from->cells + from->start[job];
        int count = from->start[job + 1] - from->start[job];
        uint64_t bits = paper ? adli_rng_u64(&search->rng) : UINT64_MAX;
        if (chance(bits, TENTH)) {
            row = view->base;
            count = view->base_count;
        }
        search->draft_start[job] = at;
        at = draft_row(search, at, row, count, view->kind, limit, chance(bits >> 16, TENTH));
    }
    search->draft_start[jobs] = at;
}

void adli_genome_repair(adli_genome *genome, adli_pollux_search *search)
{
    adli_board_clear(&search->board, search->problem);
    adli_genome_begin(genome, search->problem);
    for (int job = 0; job < search->problem->job_count; job++) {
        int start = search->draft_start[job], count = search->draft_start[job + 1] - start;
        for (int i = 0; i < count; i++)
            search->row[i] = search->draft[start + i];
        settle(search, genome, job, count);
    }
}

void adli_genome_breed(adli_genome *genome, adli_pollux_search *search, const adli_genome *a,
                       const adli_genome *b)
{
    const adli_pollux_problem *problem = search->problem;
    bool paper = problem->form == ADLI_POLLUX_PAPER;
    int limit = problem->node_count;
    if (!paper)
        limit = a->size < b->size ? adli_rng_range(&search->rng, a->size, b->size)
                                  : adli_rng_range(&search->rng, b->size, a->size);
    cross(search, a, b, limit);
    if (paper)
        find_roomy(search);
    adli_board_clear(&search->board, problem);
    adli_genome_begin(genome, problem);
    for (int job = 0; job < problem->job_count; job++) {
        const adli_pollux_job *view = &problem->jobs[job];
        int start = search->draft_start[job], count = search->draft_start[job + 1] - start;
        for (int i = 0; i < count; i++)
            search->row[i] = search->draft[start + i];
        if (!paper)
            count = redraw(search, view, count, limit);
        else if (search->roomy_count > 0)
            count = grow(search, view, count);
        settle(search, genome, job, count);
    }
}
