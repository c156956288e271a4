/* Reading traces and workloads from CSV files; every error names file, line and field. */
#include "sim/trace.h"

#include "base/csv.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, TIME_MAX_S = 1000000000 };

/* What the OSDI'21 traces leave unsaid; used when the folder has no applications.csv. */
static const struct known {
    const char *name;
    int epochs, max_local, fixed_replicas, fixed_batch;
    double restart_s, resize_s, slowdown, speed;
} known_apps[] = {
    {.name = "bert", .epochs = 2},
    {.name = "cifar10", .epochs = 100},
    {.name = "ncf", .epochs = 10, .fixed_replicas = 1, .fixed_batch = 32768},
    {.name = "imagenet", .epochs = 90},
    {.name = "yolov3", .epochs = 50, .max_local = 8},
    {.name = "deepspeech2", .epochs = 80},
};

/* A row of either table of step times. */
typedef struct timing {
    char placement[16]; /* "" for scalability.csv */
    int nodes, replicas, local_bsz;
    double step_s, sync_s;
} timing;

typedef struct timings {
    timing *rows;
    size_t count, capacity;
} timings;

static adl_status join(char path[PATH_SIZE], const char *directory, const char *name)
{
    if (snprintf(path, PATH_SIZE, "%s/%s", directory, name) >= PATH_SIZE)
        return adli_fail(ADL_EINVAL, "%s/%s: the path is too long", directory, name);
    return ADL_OK;
}

static adl_status parse_placement(const adli_csv *csv, const char *text, timing *row)
{
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof row->placement)
        return adli_csv_fail(csv, 0, "\"%.40s\" is no placement (1 to 15 digits)", text);
    row->nodes = (int)length;
    row->replicas = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '1' || text[i] > '9')
            return adli_csv_fail(csv, 0, "\"%.40s\" is no placement (digits 1 to 9)", text);
        row->replicas += text[i] - '0';
    }
    strcpy(row->placement, text);
    return ADL_OK;
}

/* placements.csv: shape_columns = 1 (placement); scalability.csv: 2 (num_nodes, num_replicas). */
static adl_status read_timing(const adli_csv *csv, int shape_columns, timing *row)
{
    adl_status status;
    *row = (timing){0};
    if (shape_columns == 1) {
        status = parse_placement(csv, adli_csv_text(csv, 0), row);
    } else {
        status = adli_csv_int(csv, 0, 1, 100000, &row->nodes);
        if (status == ADL_OK)
            status = adli_csv_int(csv, 1, row->nodes, 1000000, &row->replicas);
    }
    if (status == ADL_OK)
        status = adli_csv_int(csv, shape_columns, 1, 100000000, &row->local_bsz);
    if (status == ADL_OK)
        status = adli_csv_double(csv, shape_columns + 1, 1e-9, TIME_MAX_S, &row->step_s);
    if (status == ADL_OK)
        status = adli_csv_double(csv, shape_columns + 2, 0, TIME_MAX_S, &row->sync_s);
    if (status == ADL_OK && row->sync_s >= row->step_s)
        status = adli_csv_fail(csv, shape_columns + 2, "%g is not less than the step time %g",
                               row->sync_s, row->step_s);
    return status;
}

static adl_status load_timings(const char *directory, const char *file, int shape_columns,
                               timings *out)
{
    static const char *const by_placement[] = {"placement", "local_bsz", "step_time", "sync_time"};
    static const char *const by_count[] = {"num_nodes", "num_replicas", "local_bsz", "step_time",
                                           "sync_time"};
    char path[PATH_SIZE];
    adli_csv csv = {0};
    bool more = false;
    adl_status status = join(path, directory, file);
    if (status == ADL_OK)
        status = adli_csv_open(&csv, path, shape_columns == 1 ? by_placement : by_count,
                               shape_columns + 3, shape_columns + 3);
    size_t before = out->count;
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more) {
        if (adli_grow(&out->rows, &out->capacity, out->count + 1, sizeof *out->rows) != 0)
            status = adli_fail_memory("step times");
        else
            status = read_timing(&csv, shape_columns, &out->rows[out->count++]);
    }
    if (status == ADL_OK && out->count == before)
        status = adli_fail(ADL_EINVAL, "%s: no rows below the header", path);
    adli_csv_close(&csv);
    return status;
}

static int by_shape(const void *a, const void *b)
{
    const timing *x = a, *y = b;
    if (x->nodes != y->nodes)
        return x->nodes < y->nodes ? -1 : 1;
    if (x->replicas != y->replicas)
        return x->replicas < y->replicas ? -1 : 1;
    return (x->local_bsz > y->local_bsz) - (x->local_bsz < y->local_bsz);
}

static int by_curve(const void *a, const void *b)
{
    const timing *x = a, *y = b;
    int order = strcmp(x->placement, y->placement);
    return order ? order : (x->local_bsz > y->local_bsz) - (x->local_bsz < y->local_bsz);
}

static adl_status add_curve(adli_app *app, const timing *rows, int count, const char *directory)
{
    adli_curve *curve = &app->curves[app->curve_count++];
    strcpy(curve->placement, rows[0].placement);
    curve->count = count;
    curve->local_bsz = adli_calloc((size_t)count, sizeof(double));
    curve->step_s = adli_calloc((size_t)count, sizeof(double));
    curve->sync_s = adli_calloc((size_t)count, sizeof(double));
    if (!curve->local_bsz || !curve->step_s || !curve->sync_s)
        return adli_fail_memory("step times");
    for (int i = 0; i < count; i++) {
        if (i > 0 && rows[i].local_bsz == rows[i - 1].local_bsz)
            return adli_fail(ADL_EINVAL,
                             "%s/placements.csv: placement %s, local_bsz %d appears twice",
                             directory, rows[i].placement, rows[i].local_bsz);
        curve->local_bsz[i] = rows[i].local_bsz;
        curve->step_s[i] = rows[i].step_s;
        curve->sync_s[i] = rows[i].sync_s;
    }
    return ADL_OK;
}

static adl_status make_curves(adli_app *app, timing *rows, int count, const char *directory)
{
    qsort(rows, (size_t)count, sizeof *rows, by_curve);
    int curves = 0;
    for (int i = 0; i < count; i++)
        curves += i == 0 || strcmp(rows[i].placement, rows[i - 1].placement) != 0;
    app->curves = adli_calloc((size_t)curves, sizeof *app->curves);
    if (!app->curves)
        return adli_fail_memory("step times");
    adl_status status = ADL_OK;
    for (int first = 0, next; status == ADL_OK && first < count; first = next) {
        for (next = first + 1;
             next < count && strcmp(rows[next].placement, rows[first].placement) == 0;)
            next++;
        status = add_curve(app, rows + first, next - first, directory);
    }
    return status;
}

/* The mesh's points: the mean over placements of one (nodes, replicas, local_bsz), in ascending
 * order, then the scalability rows as they stand. */
static adl_status make_mesh(adli_app *app, timing *rows, int placed, int count)
{
    double *points = adli_calloc((size_t)count, ADLI_MESH_DIM * sizeof *points);
    double *values = adli_calloc((size_t)count, ADLI_MESH_VALUES * sizeof *values);
    adl_status status = points && values ? ADL_OK : adli_fail_memory("step times");
    if (status != ADL_OK)
        goto out;
    qsort(rows, (size_t)placed, sizeof *rows, by_shape);
    int used = 0;
    for (int first = 0, next; first < count; first = next, used++) {
        double step = 0, sync = 0;
        for (next = first;
             next == first || (next < placed && by_shape(&rows[first], &rows[next]) == 0); next++) {
            step += rows[next].step_s;
            sync += rows[next].sync_s;
        }
        double *point = points + used * ADLI_MESH_DIM;
        point[0] = rows[first].nodes;
        point[1] = rows[first].replicas;
        point[2] = rows[first].local_bsz;
        values[used * ADLI_MESH_VALUES] = step / (next - first);
        values[used * ADLI_MESH_VALUES + 1] = sync / (next - first);
    }
    status = adli_mesh_new(points, values, used, &app->mesh);
out:
    free(values);
    free(points);
    return status;
}

static adl_status load_step_times(adli_app *app, const char *directory)
{
    timings all = {0};
    adl_status status = load_timings(directory, "placements.csv", 1, &all);
    int placed = (int)all.count;
    if (status == ADL_OK)
        status = load_timings(directory, "scalability.csv", 2, &all);
    if (status == ADL_OK) {
        app->min_local = INT_MAX;
        for (int i = 0; i < placed; i++) {
            if (all.rows[i].local_bsz < app->min_local)
                app->min_local = all.rows[i].local_bsz;
            if (all.rows[i].local_bsz > app->max_local)
                app->max_local = all.rows[i].local_bsz;
        }
        status = make_curves(app, all.rows, placed, directory);
    }
    if (status == ADL_OK && (status = make_mesh(app, all.rows, placed, (int)all.count)) != ADL_OK)
        adli_wrap(status, "%s: placements.csv and scalability.csv", directory);
    free(all.rows);
    return status;
}

static adl_status load_validation(const char *path, int batch_size, adli_validation *run,
                                  int *epochs)
{
    static const char *const columns[] = {"progress", "iteration", "grad_sqr", "grad_var"};
    adli_csv csv = {0};
    bool more = false;
    size_t capacity[4] = {0}, count = 0;
    double **series[4] = {&run->progress, &run->iteration, &run->sqr, &run->var};
    run->batch_size = batch_size;
    adl_status status = adli_csv_open(&csv, path, columns, 4, 4);
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more) {
        for (int c = 0; c < 4 && status == ADL_OK; c++) {
            if (adli_grow(series[c], &capacity[c], count + 1, sizeof(double)) != 0)
                status = adli_fail_memory("validation");
            else
                status = adli_csv_double(&csv, c, 0, 1e300, &(*series[c])[count]);
        }
        if (status == ADL_OK && count > 0 && run->progress[count] <= run->progress[count - 1])
            status = adli_csv_fail(&csv, 0, "%g is not more than in the epoch before",
                                   run->progress[count]);
        count++;
    }
    if (status == ADL_OK && count == 0)
        status = adli_fail(ADL_EINVAL, "%s: no rows below the header", path);
    adli_csv_close(&csv);
    *epochs = (int)count;
    return status;
}

static int by_batch_size(const void *a, const void *b)
{
    const adli_validation *x = a, *y = b;
    return (x->batch_size > y->batch_size) - (x->batch_size < y->batch_size);
}

/* The batch size of "validation-<batch>.csv"; 0 for another name. */
static int validated_batch(const char *file)
{
    int batch = 0, end = 0;
    if (sscanf(file, "validation-%9d.csv%n", &batch, &end) != 1 || file[end] != '\0' || end == 0)
        return 0;
    return batch > 0 ? batch : 0;
}

static adl_status add_validation(adli_app *app, const char *directory, const char *file,
                                 size_t *capacity, int *epochs)
{
    char path[PATH_SIZE];
    int batch = validated_batch(file), rows = 0;
    if (batch == 0)
        return ADL_OK;
    size_t count = (size_t)app->validation_count;
    if (adli_grow(&app->validations, capacity, count + 1, sizeof *app->validations) != 0)
        return adli_fail_memory("validations");
    app->validations[count] = (adli_validation){0};
    app->validation_count++;
    adl_status status = join(path, directory, file);
    if (status == ADL_OK)
        status = load_validation(path, batch, &app->validations[count], &rows);
    if (rows < *epochs)
        *epochs = rows;
    return status;
}

static adl_status load_validations(adli_app *app, const char *directory)
{
    int epochs = INT_MAX;
    size_t capacity = 0;
    adl_status status = ADL_OK;
    DIR *dir = opendir(directory);
    if (!dir)
        return adli_fail(ADL_EIO, "%s: %s", directory, strerror(errno));
    for (struct dirent *entry; status == ADL_OK && (entry = readdir(dir));)
        status = add_validation(app, directory, entry->d_name, &capacity, &epochs);
    closedir(dir);
    if (status != ADL_OK)
        return status;
    if (app->validation_count == 0)
        return adli_fail(ADL_ENOENT, "%s: no validation-<batch size>.csv", directory);
    qsort(app->validations, (size_t)app->validation_count, sizeof *app->validations, by_batch_size);
    app->init_batch = app->validations[0].batch_size;
    app->max_batch = app->validations[app->validation_count - 1].batch_size;
    app->epochs = epochs;
    return ADL_OK;
}

static adl_status apply_known(adli_app *app, const char *root, const struct known *known)
{
    if (known->epochs > app->epochs)
        return adli_fail(ADL_EINVAL, "%s/%s: %d epochs are wanted, the validations hold %d", root,
                         app->name, known->epochs, app->epochs);
    if (known->epochs > 0)
        app->epochs = known->epochs;
    if (known->max_local > 0)
        app->max_local = known->max_local;
    app->fixed_replicas = known->fixed_replicas;
    app->fixed_batch = known->fixed_batch;
    app->restart_s = known->restart_s;
    app->resize_s = known->resize_s;
    app->slowdown = known->slowdown > 0 ? known->slowdown : 1;
    app->speed = known->speed;
    return ADL_OK;
}

static adl_status make_needed(adli_app *app)
{
    app->needed = adli_calloc((size_t)app->epochs + 1, sizeof *app->needed);
    if (!app->needed)
        return adli_fail_memory("epochs");
    for (int e = 1; e <= app->epochs; e++) {
        app->needed[e] = app->validations[0].progress[e - 1];
        for (int i = 1; i < app->validation_count; i++)
            app->needed[e] = fmin(app->needed[e], app->validations[i].progress[e - 1]);
    }
    return ADL_OK;
}

static adl_status load_app(const char *root, const char *name, adli_app *app)
{
    char directory[PATH_SIZE];
    adl_status status = join(directory, root, name);
    if (status != ADL_OK)
        return status;
    app->name = adli_strdup(name);
    if (!app->name)
        return adli_fail_memory("application");
    status = load_step_times(app, directory);
    if (status == ADL_OK)
        status = load_validations(app, directory);
    return status;
}

static adl_status apply_built_in(const char *root, adli_traces *traces)
{
    adl_status status = ADL_OK;
    for (int a = 0; a < traces->count; a++)
        for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(known_apps); i++)
            if (strcmp(known_apps[i].name, traces->apps[a].name) == 0)
                status = apply_known(&traces->apps[a], root, &known_apps[i]);
    return status;
}

/* applications.csv: application, and any of epochs, max_local_bsz, fixed_replicas, fixed_batch_size,
 * restart_s, resize_s, slowdown, speed_of_one (0: leave as it is). */
static adl_status load_overrides(const char *root, adli_traces *traces)
{
    static const char *const columns[] = {"application",    "epochs",           "max_local_bsz",
                                          "fixed_replicas", "fixed_batch_size", "restart_s",
                                          "resize_s",       "slowdown",         "speed_of_one"};
    char path[PATH_SIZE];
    struct stat info;
    adli_csv csv = {0};
    bool more = false;
    adl_status status = join(path, root, "applications.csv");
    if (status != ADL_OK)
        return status;
    if (stat(path, &info) != 0)
        return apply_built_in(root, traces);
    status = adli_csv_open(&csv, path, columns, ADLI_COUNT(columns), 1);
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more) {
        struct known own = {.name = adli_csv_text(&csv, 0)};
        int *numbers[] = {NULL, &own.epochs, &own.max_local, &own.fixed_replicas, &own.fixed_batch};
        for (int c = 1; c < 5 && status == ADL_OK; c++)
            if (adli_csv_text(&csv, c))
                status = adli_csv_int(&csv, c, 0, 1000000000, numbers[c]);
        double *amounts[] = {&own.restart_s, &own.resize_s, &own.slowdown, &own.speed};
        for (int c = 5; c < 9 && status == ADL_OK; c++)
            if (adli_csv_text(&csv, c))
                status = adli_csv_double(&csv, c, 0, 1e9, amounts[c - 5]);
        for (int i = 0; i < traces->count && status == ADL_OK; i++)
            if (strcmp(traces->apps[i].name, own.name) == 0)
                status = apply_known(&traces->apps[i], root, &own);
    }
    adli_csv_close(&csv);
    return status;
}

static adl_status add_limit(adli_app *app, const adli_csv *csv)
{
    size_t capacity = (size_t)app->limit_count;
    struct adli_limit limit;
    adl_status status = adli_csv_int(csv, 1, 1, 1000000, &limit.replicas);
    if (status == ADL_OK)
        status = adli_csv_int(csv, 2, 1, 100000000, &limit.max_local);
    if (status == ADL_OK && app->limit_count > 0 &&
        app->limits[app->limit_count - 1].replicas >= limit.replicas)
        status = adli_csv_fail(csv, 1, "%d is not more than in the row before", limit.replicas);
    if (status != ADL_OK)
        return status;
    if (adli_grow(&app->limits, &capacity, (size_t)app->limit_count + 1, sizeof limit) != 0)
        return adli_fail_memory("limits");
    app->limits[app->limit_count++] = limit;
    return ADL_OK;
}

/* limits.csv (optional): application, replicas, max_local_bsz, by ascending replicas. */
static adl_status load_limits(const char *root, adli_traces *traces)
{
    static const char *const columns[] = {"application", "replicas", "max_local_bsz"};
    char path[PATH_SIZE];
    struct stat info;
    adli_csv csv = {0};
    bool more = false;
    adl_status status = join(path, root, "limits.csv");
    if (status != ADL_OK || stat(path, &info) != 0)
        return status;
    status = adli_csv_open(&csv, path, columns, 3, 3);
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more)
        for (int i = 0; i < traces->count && status == ADL_OK; i++)
            if (strcmp(traces->apps[i].name, adli_csv_text(&csv, 0)) == 0)
                status = add_limit(&traces->apps[i], &csv);
    adli_csv_close(&csv);
    return status;
}

static int app_folder(const char *root, const char *name)
{
    char path[PATH_SIZE];
    struct stat info;
    int length = snprintf(path, sizeof path, "%s/%s/placements.csv", root, name);
    return name[0] != '.' && length < PATH_SIZE && stat(path, &info) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

adl_status adli_traces_load(const char *directory, adli_traces *traces)
{
    struct dirent **entries = NULL;
    *traces = (adli_traces){0};
    int found = scandir(directory, &entries, NULL, by_name);
    if (found < 0)
        return adli_fail(ADL_ENOENT, "%s: %s", directory, strerror(errno));
    adl_status status = ADL_OK;
    traces->apps = adli_calloc((size_t)found, sizeof *traces->apps);
    if (!traces->apps)
        status = adli_fail_memory("applications");
    for (int i = 0; i < found; i++) {
        if (status == ADL_OK && app_folder(directory, entries[i]->d_name))
            status = load_app(directory, entries[i]->d_name, &traces->apps[traces->count++]);
        free(entries[i]);
    }
    free(entries);
    if (status == ADL_OK && traces->count == 0)
        status = adli_fail(ADL_ENOENT, "%s: no folder in it has a placements.csv", directory);
    if (status == ADL_OK)
        status = load_overrides(directory, traces);
    if (status == ADL_OK)
        status = load_limits(directory, traces);
    for (int i = 0; i < traces->count && status == ADL_OK; i++)
        status = make_needed(&traces->apps[i]);
    if (status != ADL_OK)
        adli_traces_fini(traces);
    return status;
}

/* Lets every application of the first type know itself on the others. */
static adl_status link_types(const char *directory, const char *const *types, adli_traces *traces)
{
    int type_count = traces->other_count + 1;
    traces->on = adli_calloc((size_t)(traces->count * type_count), sizeof *traces->on);
    if (!traces->on)
        return adli_fail_memory("applications");
    for (int a = 0; a < traces->count; a++) {
        const adli_app **on = traces->on + a * type_count;
        on[0] = &traces->apps[a];
        traces->apps[a].on = on;
        for (int t = 1; t < type_count; t++) {
            adli_traces *other = &traces->others[t - 1];
            if (a >= other->count || strcmp(other->apps[a].name, on[0]->name) != 0)
                return adli_fail(ADL_ENOENT, "%s/%s: the applications are not those of %s/%s",
                                 directory, types[t], directory, types[0]);
            on[t] = &other->apps[a];
            other->apps[a].on = on;
        }
    }
    return ADL_OK;
}

adl_status adli_traces_load_types(const char *directory, const char *const *types, int type_count,
                                  adli_traces *traces)
{
    char path[PATH_SIZE];
    *traces = (adli_traces){0};
    adl_status status = join(path, directory, types[0]);
    if (status == ADL_OK)
        status = adli_traces_load(path, traces);
    if (status == ADL_OK && !(traces->others = adli_calloc((size_t)type_count, sizeof *traces)))
        status = adli_fail_memory("applications");
    for (int t = 1; t < type_count && status == ADL_OK; t++) {
        status = join(path, directory, types[t]);
        if (status == ADL_OK)
            status = adli_traces_load(path, &traces->others[traces->other_count]);
        traces->other_count += status == ADL_OK;
    }
    if (status == ADL_OK)
        status = link_types(directory, types, traces);
    if (status != ADL_OK)
        adli_traces_fini(traces);
    return status;
}

static void app_fini(adli_app *app)
{
    for (int i = 0; i < app->validation_count; i++) {
        free(app->validations[i].progress);
        free(app->validations[i].iteration);
        free(app->validations[i].sqr);
        free(app->validations[i].var);
    }
    for (int i = 0; i < app->curve_count; i++) {
        free(app->curves[i].local_bsz);
        free(app->curves[i].step_s);
        free(app->curves[i].sync_s);
    }
    free(app->validations);
    free(app->curves);
    free(app->needed);
    free(app->limits);
    adli_mesh_free(app->mesh);
    free(app->name);
}

void adli_traces_fini(adli_traces *traces)
{
    for (int i = 0; i < traces->count; i++)
        app_fini(&traces->apps[i]);
    for (int i = 0; i < traces->other_count; i++)
        adli_traces_fini(&traces->others[i]);
    free(traces->others);
    free(traces->on);
    free(traces->apps);
    *traces = (adli_traces){0};
}
