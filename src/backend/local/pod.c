/* How a pod template becomes a process: its command and environment with the paths of the job file mapped to
 * where they are on this machine, and the limits to keep.
 *
 * Mapped, wherever a path begins in a text (at its start, or after one of  = : , ; " ' ( or a blank):
 *   /adaptdl/checkpoint, /adaptdl/share    the job's own directories
 *   any absolute path that exists below the job's source directory, its "image" */
#include "backend/local/impl.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "jobspec/pod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_SIZE = 4096, TEXT_MAX = 1 << 20 };

typedef struct mapping {
    char checkpoint[PATH_SIZE], share[PATH_SIZE], source[PATH_SIZE];
} mapping;

static bool ends_path(char c)
{
    return c == 0 || strchr(" \t\n=:,;\"'()<>|&`", c) != NULL;
}

/* Is dir the path of that length, or above it? */
static bool below(const char *path, size_t length, const char *dir)
{
    size_t own = strlen(dir);
    return length >= own && memcmp(path, dir, own) == 0 && (length == own || path[own] == '/');
}

static bool in_source(const mapping *map, const char *path, size_t length)
{
    char full[2 * PATH_SIZE];
    struct stat info;
    if (length < 2 || path[1] == '/' || length >= PATH_SIZE || memmem(path, length, "/..", 3))
        return false;
    snprintf(full, sizeof full, "%s%.*s", map->source, (int)length, path);
    return stat(full, &info) == 0;
}

/* Appends text with its paths mapped. */
static void map_text(const mapping *map, const char *text, adli_buf *out)
{
    for (const char *at = text; *at;) {
        bool begins = *at == '/' && (at == text || ends_path(at[-1]));
        size_t length = 1;
        if (begins) {
            while (!ends_path(at[length]))
                length++;
            const char *dir = NULL;
            size_t skip = 0;
            if (below(at, length, "/adaptdl/checkpoint")) {
                dir = map->checkpoint;
                skip = strlen("/adaptdl/checkpoint");
            } else if (below(at, length, "/adaptdl/share")) {
                dir = map->share;
                skip = strlen("/adaptdl/share");
            } else if (in_source(map, at, length))
                dir = map->source;
            if (dir) {
                adli_buf_puts(out, dir);
                at += skip;
                length -= skip;
            }
        }
        adli_buf_append(out, at, length);
        at += length;
    }
}

/* ---- lists of texts ---- */

/* Takes the buffer's text. */
static adl_status add(char ***items, size_t *count, size_t *capacity, adli_buf *text)
{
    adl_status status = adli_buf_check(text);
    if (status == ADL_OK && adli_grow(items, capacity, *count + 2, sizeof **items) != 0)
        status = adli_fail_memory("arguments of a replica");
    if (status != ADL_OK) {
        adli_buf_fini(text);
        return status;
    }
    (*items)[(*count)++] = text->data;
    (*items)[*count] = NULL;
    return ADL_OK;
}

static adl_status add_argument(run *out, const mapping *map, const char *text)
{
    adli_buf buf;
    adli_buf_init(&buf, TEXT_MAX);
    adli_buf_puts(&buf, "");
    map_text(map, text, &buf);
    return add(&out->argv, &out->argc, &out->argv_capacity, &buf);
}

/* map NULL: the value as it is. */
static adl_status add_variable(run *out, const mapping *map, const char *name, const char *value)
{
    adli_buf buf;
    adli_buf_init(&buf, TEXT_MAX);
    adli_buf_printf(&buf, "%s=", name);
    if (map)
        map_text(map, value, &buf);
    else
        adli_buf_puts(&buf, value);
    return add(&out->env, &out->env_count, &out->env_capacity, &buf);
}

/* "NAME=value" or "NAME". */
static bool sets(const adli_jobfile *spec, const char *entry)
{
    size_t length = strcspn(entry, "=");
    for (size_t i = 0; i < spec->env.count; i++)
        if (strncmp(spec->env.items[i].name, entry, length) == 0 &&
            !spec->env.items[i].name[length])
            return true;
    return false;
}

static adl_status add_entries(run *out, const adli_jobfile *unless, const char *const *entries)
{
    adl_status status = ADL_OK;
    for (int i = 0; status == ADL_OK && entries && entries[i]; i++) {
        adli_buf buf;
        if (unless && sets(unless, entries[i]))
            continue;
        adli_buf_init(&buf, TEXT_MAX);
        adli_buf_puts(&buf, entries[i]);
        status = add(&out->env, &out->env_count, &out->env_capacity, &buf);
    }
    return status;
}

/* The pod's own variables, then ours, which win: the later of two counts. */
static adl_status make_env(const adli_start *start, const adli_jobfile *spec, const mapping *map,
                           run *out)
{
    adl_status status = ADL_OK;
    char number[32];
    for (size_t i = 0; status == ADL_OK && i < spec->env.count; i++)
        status = add_variable(out, map, spec->env.items[i].name, spec->env.items[i].value);
    /* Without these every replica would use all processors, and wait for the others by spinning. */
    int64_t cpu = adli_amounts_get(&spec->requests, "cpu");
    snprintf(number, sizeof number, "%lld", (long long)((cpu + 999) / 1000));
    if (status == ADL_OK && cpu > 0 && !sets(spec, "OMP_NUM_THREADS"))
        status = add_variable(out, NULL, "OMP_NUM_THREADS", number);
    if (status == ADL_OK && !sets(spec, "OMP_WAIT_POLICY"))
        status = add_variable(out, NULL, "OMP_WAIT_POLICY", "passive");
    if (status == ADL_OK)
        status = add_entries(out, spec, start->defaults);
    if (status == ADL_OK)
        status = add_entries(out, NULL, start->env);
    if (status == ADL_OK)
        status = add_variable(out, NULL, "ADAPTDL_CHECKPOINT_PATH", map->checkpoint);
    if (status == ADL_OK)
        status = add_variable(out, NULL, "ADAPTDL_SHARE_PATH", map->share);
    return status;
}

/* workingDir as in an image: mapped; one that exists nowhere is made below the source. Without one the
 * job starts in its source. */
static adl_status make_workdir(const adli_jobfile *spec, const mapping *map, run *out)
{
    const char *dir = spec->working_dir;
    struct stat info;
    adli_buf path;
    adli_buf_init(&path, 2 * PATH_SIZE);
    if (*dir)
        map_text(map, dir, &path);
    else
        adli_buf_puts(&path, map->source);
    adl_status status = adli_buf_check(&path);
    if (status == ADL_OK && *dir && strcmp(path.data, dir) == 0 && stat(dir, &info) != 0) {
        adli_buf_clear(&path);
        adli_buf_printf(&path, "%s%s", map->source, dir);
        status = strstr(dir, "/..")
                     ? adli_fail(ADL_EINVAL, "workingDir %s: must not contain \"..\"", dir)
                     : adli_buf_check(&path);
        if (status == ADL_OK)
            status = adli_dirs_make(path.data, 0755);
    }
    if (status != ADL_OK) {
        adli_buf_fini(&path);
        return status;
    }
    out->workdir = path.data;
    return ADL_OK;
}

static adl_status make_mapping(const local *self, const char *uid, mapping *map)
{
    adl_status status =
        adli_local_job_dir(self, uid, "checkpoint", map->checkpoint, sizeof map->checkpoint);
    if (status == ADL_OK)
        status = adli_local_job_dir(self, uid, "share", map->share, sizeof map->share);
    if (status == ADL_OK)
        status = adli_local_job_dir(self, uid, "source", map->source, sizeof map->source);
    return status;
}

adl_status adli_local_run(const local *self, const adli_start *start, run *out)
{
    adli_jobfile spec = {0};
    const char *pod = start->pod ? start->pod : "";
    adl_status status = adli_pod_parse("pod template", pod, strlen(pod), &spec);
    mapping *map = status == ADL_OK ? adli_calloc(1, sizeof *map) : NULL;
    if (status == ADL_OK)
        status = map ? make_mapping(self, start->uid, map) : adli_fail_memory("paths");
    for (int i = 0; status == ADL_OK && i < spec.argc; i++)
        status = add_argument(out, map, spec.argv[i]);
    if (status == ADL_OK)
        status = make_env(start, &spec, map, out);
    if (status == ADL_OK)
        status = make_workdir(&spec, map, out);
    if (status == ADL_OK) {
        out->cpu_milli = adli_amounts_get(&spec.limits, "cpu");
        out->memory_bytes = adli_amounts_get(&spec.limits, "memory");
        out->devices = (int)adli_amounts_get(&spec.requests, "nvidia.com/gpu");
    }
    free(map);
    adli_jobfile_fini(&spec);
    return status;
}

void adli_local_run_fini(run *what)
{
    for (size_t i = 0; i < what->argc; i++)
        free(what->argv[i]);
    for (size_t i = 0; i < what->env_count; i++)
        free(what->env[i]);
    free(what->argv);
    free(what->env);
    free(what->workdir);
    *what = (run){0};
}
