/* The genetic policy's parts. pollux_problem.c states the problem that a snapshot poses,
 * pollux_genome.c its solutions, pollux_search.c the genetic algorithm over them, pollux_layout.c
 * their local improvement, pollux_memory.c what one search leaves to the next, and pollux.c is the
 * policy. */
#ifndef ADLI_POLLUX_H
#define ADLI_POLLUX_H

#include "base/rng.h"
#include "policy/nsga2.h"
#include "policy/policy.h"

#include <math.h>

typedef enum adli_pollux_form { ADLI_POLLUX_PAPER, ADLI_POLLUX_SEEDS } adli_pollux_form;

typedef struct adli_pollux_options {
    adli_pollux_form form;
    int population, generations;
    double local;          /* share of the children made by local improvement */
    double restart_cost_s; /* of jobs that do not say */
    double change_penalty; /* seeds' form: share of its speedup that a moved job loses */
    double low_utility, high_utility;
} adli_pollux_options;

/* Some replicas of a job on a node. A job's row of the jobs x nodes matrix is its cells with a count
 * above 0, by ascending node: most of the matrix is zero. */
typedef struct adli_cell {
    int node, count;
} adli_cell;

/* What a row is worth: the job's term of the first objective, and its speedup x share of the
 * cluster, whose sum is the cluster's utility. */
typedef struct adli_worth {
    double value, utility;
} adli_worth;

/* A job whose allocation is open. */
typedef struct adli_pollux_job {
    int index;           /* in the snapshot */
    int kind;            /* jobs of one kind ask for the same resources */
    int min, max;        /* replicas, when it has any; max is no more than the nodes hold */
    const int *capacity; /* [node_count] of its kind */
    double share;        /* dominant share of the cluster's resources of one replica */
    double factor;       /* multiplies its speedup when its allocation changes */
    adli_cell *base;     /* [base_count] its present row */
    int base_count;
    int base_replicas;
    bool base_legal; /* within the bounds that hold now */
    adli_worth kept; /* of the present row */
    adli_worth
        *worths; /* [type_count][2][max + 1] by type, N > 1 and R, of other rows; value NAN: not
                           asked yet */
} adli_pollux_job;

typedef struct adli_pollux_problem {
    const adl_snapshot *snapshot;
    adli_pollux_form form;
    int job_count, kind_count;
    int node_count; /* real, then virtual ones */
    int real_count;
    int resource_count; /* those that can be short */

    adli_pollux_job *jobs; /* [job_count] in the order in which they may take resources */
    int *node_of;          /* [node_count] snapshot's index; -1: virtual */
    int *position;         /* [snapshot's node_count] the inverse */
    int *type_of;          /* [node_count] device type; a job's row keeps to one */
    int type_count;
    int64_t *request; /* [kind_count][resource_count] of one replica */
    int64_t *free;    /* [node_count][resource_count] what pinned jobs leave */
    int *capacity;    /* [kind_count][node_count] replicas that fit when only pinned jobs run */
    int *pinned;      /* [node_count] pinned jobs there that use other nodes too */
    adli_cell *base_cells; /* behind jobs[].base */
    adli_worth *worths;    /* behind jobs[].worths */
    adli_worth fixed;      /* of the jobs that are not open */
    int fixed_count;
    int fixed_size;                   /* 1 + the last node that a pinned job uses */
    double totals[ADL_MAX_RESOURCES]; /* of all nodes, by the snapshot's resources */
    size_t row_cells;                 /* the cells of all rows at most, capacity aside */
    size_t genome_cells;              /* the same within the capacity */
} adli_pollux_problem;

ADL_MUST adl_status adli_pollux_problem_init(adli_pollux_problem *problem,
                                             const adl_snapshot *snapshot,
                                             const adli_pollux_options *options);
void adli_pollux_problem_fini(adli_pollux_problem *problem);

/* Room for any row that the job may have, or has. */
static inline size_t adli_pollux_row_cells(const adli_pollux_problem *problem,
                                           const adli_pollux_job *job)
{
    int most = job->max < problem->node_count ? job->max : problem->node_count;
    return (size_t)(most > job->base_count ? most : job->base_count);
}

/* Computes an entry of jobs[].worths. */
adli_worth adli_pollux_worth(const adli_pollux_problem *problem, const adli_pollux_job *job,
                             adl_shape shape);

/* Of a row of that shape that differs from the present one. The models tell one
 * node from several and nothing else about their number (see adl_network_time). */
static inline adli_worth adli_pollux_moved(const adli_pollux_problem *problem,
                                           const adli_pollux_job *job, adl_shape shape)
{
    int table = 2 * shape.type + (shape.nodes > 1);
    adli_worth *entry =
        &job->worths[(size_t)table * ((size_t)job->max + 1) + (size_t)shape.replicas];
    if (isnan(entry->value))
        *entry = adli_pollux_worth(problem, job, shape);
    return *entry;
}

/* The device type of a row. */
static inline int adli_row_type(const adli_pollux_problem *problem, const adli_cell *row, int count)
{
    return count > 0 ? problem->type_of[row[0].node] : 0;
}

static inline bool adli_row_equal(const adli_cell *a, int a_count, const adli_cell *b, int b_count)
{
    bool equal = a_count == b_count;
    for (int i = 0; equal && i < a_count; i++)
        equal = a[i].node == b[i].node && a[i].count == b[i].count;
    return equal;
}

/* The first objective of a sum of values: the harmonic mean over all jobs, or the sum itself. */
static inline double adli_pollux_first(const adli_pollux_problem *problem, double value)
{
    int jobs = problem->job_count + problem->fixed_count;
    return problem->form == ADLI_POLLUX_SEEDS || jobs == 0 ? value : -jobs / value;
}

/* ---- what is free while rows are laid out ---- */

typedef struct adli_board {
    int64_t *free;    /* [node_count][resource_count] */
    int *distributed; /* [node_count] jobs there that use other nodes too */
} adli_board;

ADL_MUST adl_status adli_board_init(adli_board *board, const adli_pollux_problem *problem);
void adli_board_fini(adli_board *board);
void adli_board_clear(adli_board *board, const adli_pollux_problem *problem);

/* How many more replicas of this kind fit, at most `wanted` (which the empty node must hold). One
 * resource is the usual case, and kept apart for speed. */
static inline int adli_board_fit(const adli_board *board, const adli_pollux_problem *problem,
                                 int kind, int node, int wanted)
{
    int resources = problem->resource_count;
    if (resources == 1 && problem->request[kind] * wanted <= board->free[node])
        return wanted;
    const int64_t *free = board->free + (size_t)node * (size_t)resources;
    const int64_t *request = problem->request + (size_t)kind * (size_t)resources;
    int64_t fit = wanted;
    for (int r = 0; r < resources; r++)
        if (request[r] * fit > free[r])
            fit = free[r] < request[r] ? 0 : free[r] / request[r];
    return (int)fit;
}

/* Takes (count > 0) or gives back (count < 0). */
static inline void adli_board_take(adli_board *board, const adli_pollux_problem *problem, int kind,
                                   int node, int count)
{
    int resources = problem->resource_count;
    if (resources == 1) {
        board->free[node] -= problem->request[kind] * count;
        return;
    }
    int64_t *free = board->free + (size_t)node * (size_t)resources;
    const int64_t *request = problem->request + (size_t)kind * (size_t)resources;
    for (int r = 0; r < resources; r++)
        free[r] -= request[r] * count;
}

/* ---- solutions ---- */

/* One solution. Rows of all jobs, one after the other. */
typedef struct adli_genome {
    adli_cell *cells; /* [start[job_count]] of genome_cells */
    int *start;       /* [job_count + 1] where each job's row begins */
    uint64_t hash;    /* of the cells */
    int size;         /* nodes used: 1 + the last one */
    double value, utility;
} adli_genome;

/* Writing a genome: begin, then every job's row in order. */
void adli_genome_begin(adli_genome *genome, const adli_pollux_problem *problem);
void adli_genome_append(adli_genome *genome, const adli_pollux_problem *problem, int job,
                        const adli_cell *row, int count);

/* How many replicas fit on a node, as of a version of it. */
typedef struct adli_fit {
    unsigned version;
    int fit;
} adli_fit;

/* A solution under local improvement: rows of their own and the board they leave. */
typedef struct adli_layout {
    const adli_pollux_problem *problem;
    adli_board board;
    adli_cell **rows;   /* [job_count] each with room for every row the job may have */
    int *counts;        /* [job_count] cells */
    int *replicas;      /* [job_count] */
    adli_worth *worths; /* [job_count] */
    adli_cell *cells;   /* behind rows */
    adli_cell *saved;   /* the chosen jobs' rows before a step */
    int *saved_counts;
    int *chosen;               /* the jobs of a step */
    struct adli_offer *offers; /* what each of them would take next */
    double *weights;           /* of their offers */
    adli_rng *shaken;          /* where random choices come from; NULL: there are none */
    int *fits;                 /* [node_count] replicas of job fits_of that each node would take */
    int fits_of;
    unsigned changes;   /* of the board so far */
    unsigned *versions; /* [node_count] changes of each node */
    adli_fit *known;    /* [kind_count][node_count] */
} adli_layout;

ADL_MUST adl_status adli_layout_init(adli_layout *layout, const adli_pollux_problem *problem);
void adli_layout_fini(adli_layout *layout);
void adli_layout_load(adli_layout *layout, const adli_genome *genome);
void adli_layout_store(const adli_layout *layout, adli_genome *genome);

/* Empties it and gives resources to whoever gains most by them, on the first `limit` nodes. */
void adli_layout_construct(adli_layout *layout, int limit);

/* Takes a few jobs out and lays them out anew, `steps` times; keeps what is better. */
void adli_layout_improve(adli_layout *layout, int limit, int steps, adli_rng *rng);

/* ---- the search ---- */

/* The genetic algorithm. It starts from the present allocation, a greedy solution and whatever is
 * added; after the run the survivors are in genomes and points, best fronts first. */
typedef struct adli_pollux_search {
    const adli_pollux_problem *problem;
    const adli_pollux_options *options;
    adli_rng rng;
    adli_genome *genomes;     /* [2 * population]: alive, then children */
    adli_nsga2_point *points; /* [2 * population] */
    int alive;                /* at most population */
    int best;                 /* who of them has the best first objective */
    adli_cell *draft;         /* rows before repair */
    int *draft_start;         /* [job_count + 1] */

    adli_layout layout;
    int fruitless;    /* local improvements of the best in a row that improved nothing */
    adli_board board; /* of the rows repaired so far */
    adli_board room;  /* of the whole draft */
    adli_cell *cells; /* behind genomes */
    int *starts;
    adli_cell *row; /* [node_count] the row under repair */
    int *roomy;     /* [node_count] nodes where something still fits */
    int roomy_count;
    int64_t *least;         /* [resource_count] the least that any kind asks for */
    adli_nsga2_rank *ranks; /* [4 * population] */
    int *survivors;         /* [population] */
    adli_genome *spare;     /* [2 * population] */
    adli_nsga2_point *spare_points;
    int *buckets; /* [bucket_mask + 1] genomes by hash; -1: none */
    uint32_t bucket_mask;
} adli_pollux_search;

ADL_MUST adl_status adli_pollux_search_init(adli_pollux_search *search,
                                            const adli_pollux_problem *problem,
                                            const adli_pollux_options *options, uint64_t seed);
void adli_pollux_search_fini(adli_pollux_search *search);

/* A genome from the draft, repaired; and a child, see pollux_genome.c. */
void adli_genome_repair(adli_genome *genome, adli_pollux_search *search);
void adli_genome_breed(adli_genome *genome, adli_pollux_search *search, const adli_genome *a,
                       const adli_genome *b);

/* Repairs the draft and adds it to those alive, unless there are enough or one is the same. */
void adli_pollux_search_add(adli_pollux_search *search);

void adli_pollux_search_run(adli_pollux_search *search);

/* ---- from one search to the next ---- */

/* The last population, by the names of its jobs and nodes. Zeroed: none. */
typedef struct adli_pollux_memory {
    char *names; /* of jobs, then real nodes, one after the other with their NULs */
    int job_count, node_count, genome_count;
    int *starts;      /* [genome_count][job_count + 1] */
    adli_cell *cells; /* of all genomes; nodes from node_count on are virtual ones */
} adli_pollux_memory;

void adli_pollux_memory_fini(adli_pollux_memory *memory);

/* Adds what is remembered to the search: rows of jobs and nodes that are still there. */
ADL_MUST adl_status adli_pollux_recall(const adli_pollux_memory *memory,
                                       adli_pollux_search *search);

/* Replaces the memory by the search's result; unchanged when there is no memory for it. */
ADL_MUST adl_status adli_pollux_remember(adli_pollux_memory *memory,
                                         const adli_pollux_search *search);

#endif
