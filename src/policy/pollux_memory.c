/* What one search leaves to the next: its population, by the names of jobs and nodes, because
 * between two decisions jobs end and arrive and nodes come and go. */
#include "policy/pollux.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void adli_pollux_memory_fini(adli_pollux_memory *memory)
{
    free(memory->cells);
    free(memory->starts);
    free(memory->names);
    *memory = (adli_pollux_memory){0};
}

/* ---- recall ---- */

/* A name and where it stands. */
typedef struct named {
    const char *name;
    int index;
} named;

static int by_name(const void *a, const void *b)
{
    const named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->index - y->index;
}

static const char *list_names(named *list, int count, const char *names)
{
    for (int i = 0; i < count; i++) {
        list[i] = (named){names, i};
        names += strlen(names) + 1;
    }
    qsort(list, (size_t)count, sizeof *list, by_name);
    return names;
}

static int find_name(const named *list, int count, const char *name)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(list[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && strcmp(list[low].name, name) == 0 ? list[low].index : -1;
}

typedef struct mapping {
    int *old_job;  /* [the search's job_count] the memory's index; -1: new */
    int *new_node; /* [node_count + virtual ones] the search's index; -1: gone */
    int virtual_count;
} mapping;

static void map_names(const adli_pollux_memory *memory, const adli_pollux_problem *problem,
                      named *list, mapping *map)
{
    const adl_snapshot *snapshot = problem->snapshot;
    const char *node_names = list_names(list, memory->job_count, memory->names);
    for (int job = 0; job < problem->job_count; job++)
        map->old_job[job] =
            find_name(list, memory->job_count, snapshot->jobs[problem->jobs[job].index].name);
    list_names(list, memory->node_count, node_names);
    for (int node = 0; node < memory->node_count + map->virtual_count; node++)
        map->new_node[node] =
            node < memory->node_count ? -1 : node - memory->node_count + problem->real_count;
    for (int node = 0; node < snapshot->node_count; node++) {
        int old = find_name(list, memory->node_count, snapshot->nodes[node].name);
        if (old >= 0)
            map->new_node[old] = problem->position[node];
    }
}

/* Keeps the row in order of nodes. */
static void insert(adli_cell *row, int count, adli_cell cell)
{
    for (; count > 0 && row[count - 1].node > cell.node; count--)
        row[count] = row[count - 1];
    row[count] = cell;
}

/* Writes the remembered solution's rows as the search's draft. */
static void translate(const adli_pollux_memory *memory, const mapping *map, int genome,
                      adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    const int *start = memory->starts + (size_t)genome * ((size_t)memory->job_count + 1);
    int at = 0;
    for (int job = 0; job < problem->job_count; job++) {
        int old = map->old_job[job],
            most = (int)adli_pollux_row_cells(problem, &problem->jobs[job]);
        search->draft_start[job] = at;
        for (int i = old < 0 ? 0 : start[old];
             old >= 0 && i < start[old + 1] && at - search->draft_start[job] < most; i++) {
            adli_cell cell = memory->cells[i];
            cell.node =
                cell.node < memory->node_count + map->virtual_count ? map->new_node[cell.node] : -1;
            if (cell.node >= 0)
                insert(search->draft + search->draft_start[job], at++ - search->draft_start[job],
                       cell);
        }
    }
    search->draft_start[problem->job_count] = at;
}

adl_status adli_pollux_recall(const adli_pollux_memory *memory, adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    mapping map = {.virtual_count = problem->node_count - problem->real_count};
    int longest = memory->job_count > memory->node_count ? memory->job_count : memory->node_count;
    named *list = adli_calloc((size_t)longest, sizeof *list);
    map.old_job = adli_calloc((size_t)problem->job_count, sizeof *map.old_job);
    map.new_node =
        adli_calloc((size_t)memory->node_count + (size_t)map.virtual_count, sizeof *map.new_node);
    adl_status status = ADL_OK;
    if (!list || !map.old_job || !map.new_node)
        status = adli_fail_memory("names of the last search");
    else if (memory->genome_count > 0) {
        map_names(memory, problem, list, &map);
        for (int genome = 0; genome < memory->genome_count; genome++) {
            translate(memory, &map, genome, search);
            adli_pollux_search_add(search);
        }
    }
    free(map.new_node);
    free(map.old_job);
    free(list);
    return status;
}

/* ---- remember ---- */

static char *copy_names(const adli_pollux_problem *problem)
{
    const adl_snapshot *snapshot = problem->snapshot;
    size_t length = 0;
    for (int job = 0; job < problem->job_count; job++)
        length += strlen(snapshot->jobs[problem->jobs[job].index].name) + 1;
    for (int node = 0; node < problem->real_count; node++)
        length += strlen(snapshot->nodes[problem->node_of[node]].name) + 1;
    char *names = adli_calloc(length, 1), *next = names;
    if (!names)
        return NULL;
    for (int job = 0; job < problem->job_count; job++)
        next = stpcpy(next, snapshot->jobs[problem->jobs[job].index].name) + 1;
    for (int node = 0; node < problem->real_count; node++)
        next = stpcpy(next, snapshot->nodes[problem->node_of[node]].name) + 1;
    return names;
}

adl_status adli_pollux_remember(adli_pollux_memory *memory, const adli_pollux_search *search)
{
    const adli_pollux_problem *problem = search->problem;
    size_t stride = (size_t)problem->job_count + 1, cells = 0;
    for (int i = 0; i < search->alive; i++)
        cells += (size_t)search->genomes[i].start[problem->job_count];
    adli_pollux_memory fresh = {
        .names = copy_names(problem),
        .job_count = problem->job_count,
        .node_count = problem->real_count,
        .genome_count = search->alive,
        .starts = adli_calloc((size_t)search->alive * stride, sizeof *fresh.starts),
        .cells = adli_calloc(cells, sizeof *fresh.cells),
    };
    if (!fresh.names || !fresh.starts || !fresh.cells) {
        adli_pollux_memory_fini(&fresh);
        return adli_fail_memory("result of the search");
    }
    int at = 0;
    for (int i = 0; i < search->alive; i++) {
        const adli_genome *genome = &search->genomes[i];
        int *start = fresh.starts + (size_t)i * stride;
        for (size_t job = 0; job < stride; job++)
            start[job] = at + genome->start[job];
        for (int k = 0; k < genome->start[problem->job_count]; k++)
            fresh.cells[at++] = genome->cells[k];
    }
    adli_pollux_memory_fini(memory);
    *memory = fresh;
    return ADL_OK;
}
