/* How a job's file becomes processes: its command and environment with the paths of the job file mapped
 * to where they are on this machine, and what the training runtime expects to find in its environment.
 *
 * Mapped, wherever a path begins in a text (at its start, or after one of  = : , ; " ' ( or a blank):
 *   /adaptdl/checkpoint, /adaptdl/share    the job's own directories
 *   any absolute path that exists below the job's source directory, its "image" */
#include "daemon/core_impl.h"

#include "adli_version.h"
#include "base/dirs.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
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

/* Texts for a start: a NULL-terminated list that grows. */
typedef struct texts {
    char **items;
    size_t count, capacity;
    adl_status status;
} texts;

/* Takes text. */
static void add(texts *list, char *text)
{
    if (!text ||
        adli_grow(&list->items, &list->capacity, list->count + 2, sizeof *list->items) != 0) {
        free(text);
        list->status = adli_fail_memory("arguments of a replica");
        return;
    }
    list->items[list->count++] = text;
    list->items[list->count] = NULL;
}

static void free_texts(texts *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
}

static void add_mapped(texts *list, const mapping *map, const char *prefix, const char *text)
{
    adli_buf buf;
    adli_buf_init(&buf, TEXT_MAX);
    adli_buf_puts(&buf, prefix);
    map_text(map, text, &buf);
    if (adli_buf_check(&buf) != ADL_OK) {
        list->status = buf.status;
        adli_buf_fini(&buf);
        return;
    }
    add(list, buf.data ? buf.data : adli_strdup(""));
}

static void add_variable(texts *list, const char *name, const char *value)
{
    char *text = NULL;
    if (asprintf(&text, "%s=%s", name, value) < 0)
        text = NULL;
    add(list, text);
}

static bool sets(const adli_jobspec *spec, const char *name)
{
    for (size_t i = 0; i < spec->env.count; i++)
        if (strcmp(spec->env.items[i].name, name) == 0)
            return true;
    return false;
}

/* "http://HOST" as "http://job:TOKEN@HOST". */
static void supervisor_url(adli_core *core, const adli_kept_job *job, char *out, size_t size)
{
    pthread_mutex_lock(&core->lock);
    const char *url = core->supervisor, *host = strstr(url, "://");
    if (host)
        snprintf(out, size, "%.*sjob:%s@%s", (int)(host + 3 - url), url, job->token, host + 3);
    else
        *out = 0;
    pthread_mutex_unlock(&core->lock);
}

/* ours: set after the job's own, so that they win. */
static void make_env(adli_core *core, const adli_kept_job *job, const mapping *map, int group,
                     texts *env)
{
    const adli_jobspec *spec = &job->spec;
    for (size_t i = 0; i < spec->env.count; i++) {
        char *prefix = NULL;
        if (asprintf(&prefix, "%s=", spec->env.items[i].name) < 0) {
            env->status = adli_fail_memory("environment of a replica");
            return;
        }
        add_mapped(env, map, prefix, spec->env.items[i].value);
        free(prefix);
    }
    char number[32], url[1024];
    int64_t cpu = adli_amounts_get(&spec->requests, "cpu");
    if (cpu > 0 && !sets(spec, "OMP_NUM_THREADS")) {
        snprintf(number, sizeof number, "%lld", (long long)((cpu + 999) / 1000));
        add_variable(env, "OMP_NUM_THREADS", number);
    }
    if (!sets(spec, "OMP_WAIT_POLICY"))
        add_variable(env, "OMP_WAIT_POLICY", "passive");
    supervisor_url(core, job, url, sizeof url);
    if (*url)
        add_variable(env, "ADAPTDL_SUPERVISOR_URL", url);
    snprintf(number, sizeof number, "%d", group - 1);
    add_variable(env, "ADAPTDL_NUM_RESTARTS", number);
    add_variable(env, "ADAPTDL_JOB_ID", job->id);
    add_variable(env, "ADAPTDL_JOB_SECRET", job->secret);
    add_variable(env, "ADAPTDL_SCHED_VERSION", ADLI_VERSION);
    if (!sets(spec, "ADAPTDL_HINTS_INTERVAL")) {
        /* Twice in a round, so that a round never decides on what the last one knew. */
        double hints_s = fmin(fmax(core->config.interval_s / 2, 1), 30);
        snprintf(number, sizeof number, "%d", (int)hints_s);
        add_variable(env, "ADAPTDL_HINTS_INTERVAL", number);
    }
    add_variable(env, "ADAPTDL_CHECKPOINT_PATH", map->checkpoint);
    add_variable(env, "ADAPTDL_SHARE_PATH", map->share);
}

/* workingDir as in an image: mapped; one that exists nowhere is made below the source. Without one the
 * job starts in its source. */
static adl_status make_workdir(const adli_kept_job *job, const mapping *map, adli_buf *out)
{
    const char *dir = job->spec.working_dir;
    struct stat info;
    if (!*dir) {
        adli_buf_puts(out, map->source);
        return adli_buf_check(out);
    }
    map_text(map, dir, out);
    adl_status status = adli_buf_check(out);
    if (status != ADL_OK || strcmp(out->data, dir) != 0 || stat(dir, &info) == 0)
        return status;
    if (strstr(dir, "/.."))
        return adli_fail(ADL_EINVAL, "workingDir %s: must not contain \"..\"", dir);
    adli_buf_clear(out);
    adli_buf_printf(out, "%s%s", map->source, dir);
    status = adli_buf_check(out);
    return status == ADL_OK ? adli_dirs_make(out->data, 0755) : status;
}

static adl_status make_mapping(adli_core *core, const adli_kept_job *job, mapping *map)
{
    const adli_backend_ops *ops = core->backend->ops;
    void *self = core->backend->self;
    adl_status status =
        ops->job_path(self, job->uid, "checkpoint", map->checkpoint, sizeof map->checkpoint);
    if (status == ADL_OK)
        status = ops->job_path(self, job->uid, "share", map->share, sizeof map->share);
    if (status == ADL_OK)
        status = ops->job_path(self, job->uid, "source", map->source, sizeof map->source);
    return status;
}

static adl_status call_start(adli_core *core, const adli_kept_job *job, int group, const int *nodes,
                             int replicas, const texts *argv, const texts *env, const char *workdir)
{
    const char **names = adli_calloc((size_t)(replicas ? replicas : 1), sizeof *names);
    if (!names)
        return adli_fail_memory("names of nodes");
    for (int i = 0; i < replicas; i++)
        names[i] = core->nodes[nodes[i]].name;
    adli_group_spec spec = {.uid = job->uid,
                            .group = group,
                            .replicas = replicas,
                            .nodes = names,
                            .argv = (const char *const *)argv->items,
                            .env = (const char *const *)env->items,
                            .workdir = workdir,
                            .cpu_milli = adli_amounts_get(&job->spec.limits, "cpu"),
                            .memory_bytes = adli_amounts_get(&job->spec.limits, "memory"),
                            .devices =
                                (int)adli_amounts_get(&job->spec.requests, "nvidia.com/gpu")};
    adl_status status = core->backend->ops->start(core->backend->self, &spec);
    free(names);
    return status;
}

adl_status adli_core_start_group(adli_core *core, adli_kept_job *job, int group, const int *nodes,
                                 int replicas)
{
    texts argv = {0}, env = {0};
    adli_buf workdir;
    adli_buf_init(&workdir, 2 * PATH_SIZE);
    mapping *map = adli_calloc(1, sizeof *map);
    adl_status status = map ? make_mapping(core, job, map) : adli_fail_memory("paths");
    if (status == ADL_OK)
        status = make_workdir(job, map, &workdir);
    if (status == ADL_OK) {
        for (int i = 0; i < job->spec.argc; i++)
            add_mapped(&argv, map, "", job->spec.argv[i]);
        make_env(core, job, map, group, &env);
        status = argv.status != ADL_OK ? argv.status : env.status;
    }
    if (status == ADL_OK)
        status = call_start(core, job, group, nodes, replicas, &argv, &env, workdir.data);
    free_texts(&env);
    free_texts(&argv);
    adli_buf_fini(&workdir);
    free(map);
    return status;
}
