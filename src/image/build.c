/* A Dockerfile, carried out as far as it can be without a base image: COPY and ADD choose the
 * files, ENV, WORKDIR, ENTRYPOINT and CMD say how to run them. What changes the base image (RUN)
 * or describes a container (EXPOSE, USER ...) is noted once. Of several stages the last one
 * counts, with the stages it is FROM. */
#include "image/image.h"

#include "base/file.h"
#include "base/mem.h"
#include "image/dockerfile.h"
#include "image/image_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { STAGES_MAX = 256, VARIABLES_MAX = 1000 };

typedef struct building {
    adli_image *image;
    adli_dockerfile file;
    adli_words variables; /* ARG and ENV, for ${...} */
    adli_words done;      /* keywords that are noted already */
    bool wanted[STAGES_MAX];
    char *workdir; /* absolute */
} building;

static const char *const ignored[] = {"RUN",     "EXPOSE",    "VOLUME",      "USER",
                                      "LABEL",   "SHELL",     "HEALTHCHECK", "STOPSIGNAL",
                                      "ONBUILD", "MAINTAINER"};

static adl_status add_note(adli_image *image, const char *text)
{
    return adli_words_add(&image->notes, text, strlen(text));
}

/* ---- stages ---- */

static bool is(const adli_instruction *at, const char *name)
{
    return strcmp(at->name, name) == 0;
}

/* "FROM [--platform=x] base [AS name]"; base and name are borrowed from words. */
static adl_status parse_from(const building *b, const adli_instruction *at, adli_words *words,
                             const char **base, const char **name)
{
    adl_status status = adli_dockerfile_words(&b->file, at, at->arguments, &b->variables, words);
    size_t first = 0;
    *base = *name = "";
    if (status != ADL_OK)
        return status;
    while (first < words->count && strncmp(words->list[first], "--", 2) == 0)
        first++;
    size_t left = words->count - first;
    if (left != 1 && !(left == 3 && strcasecmp(words->list[first + 1], "AS") == 0))
        return adli_dockerfile_fail(&b->file, at, "expected: FROM image [AS name]");
    *base = words->list[first];
    if (left == 3)
        *name = words->list[first + 2];
    return ADL_OK;
}

/* Which stages the last one is made of. */
static adl_status choose_stages(building *b)
{
    adli_words words[STAGES_MAX] = {0};
    int parent[STAGES_MAX], count = 0;
    const char *names[STAGES_MAX], *base;
    adl_status status = ADL_OK;
    for (size_t i = 0; i < b->file.count && status == ADL_OK; i++) {
        const adli_instruction *at = &b->file.list[i];
        if (!is(at, "FROM")) {
            if (count == 0 && !is(at, "ARG"))
                status = adli_dockerfile_fail(&b->file, at, "%s before the first FROM", at->name);
            continue;
        }
        if (count == STAGES_MAX) {
            status = adli_dockerfile_fail(&b->file, at, "more than %d stages", STAGES_MAX);
            break;
        }
        status = parse_from(b, at, &words[count], &base, &names[count]);
        parent[count] = -1;
        for (int s = 0; s < count; s++)
            if (*names[s] && strcasecmp(names[s], base) == 0)
                parent[count] = s;
        count++;
    }
    if (status == ADL_OK && count == 0)
        status = adli_fail(ADL_EINVAL, "%s:1: there is no FROM", b->file.path);
    for (int s = count - 1; status == ADL_OK && s >= 0; s = parent[s])
        b->wanted[s] = true;
    for (int s = 0; s < STAGES_MAX; s++)
        adli_words_fini(&words[s]);
    return status;
}

/* ---- instructions ---- */

static adl_status set_variable(building *b, const adli_instruction *at, adli_words *list,
                               const char *name, const char *value)
{
    size_t length = strlen(name);
    if (length == 0 ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != length)
        return adli_dockerfile_fail(&b->file, at, "\"%.60s\" is not the name of a variable", name);
    if (list->count >= VARIABLES_MAX)
        return adli_dockerfile_fail(&b->file, at, "more than %d variables", VARIABLES_MAX);
    return adli_words_set(list, name, value);
}

static adl_status set_env(building *b, const adli_instruction *at, const char *name,
                          const char *value)
{
    adl_status status = set_variable(b, at, &b->image->env, name, value);
    return status == ADL_OK ? set_variable(b, at, &b->variables, name, value) : status;
}

/* "ENV a=b c=d", or the old "ENV a all the rest". */
static adl_status do_env(building *b, const adli_instruction *at)
{
    adli_words words = {0};
    size_t first = strcspn(at->arguments, " \t=");
    bool pairs = at->arguments[first] == '=';
    adl_status status;
    if (!pairs) {
        char *name = strndup(at->arguments, first);
        const char *rest = at->arguments + first + strspn(at->arguments + first, " \t");
        if (!name)
            status = adli_fail_memory("variable");
        else if (!*rest)
            status = adli_dockerfile_fail(&b->file, at, "ENV %.60s: no value", name);
        else
            status = adli_dockerfile_word(&b->file, at, rest, &b->variables, &words);
        if (status == ADL_OK)
            status = set_env(b, at, name, words.list[0]);
        free(name);
    } else {
        status = adli_dockerfile_words(&b->file, at, at->arguments, &b->variables, &words);
        for (size_t i = 0; i < words.count && status == ADL_OK; i++) {
            char *equals = strchr(words.list[i], '=');
            if (!equals) {
                status = adli_dockerfile_fail(&b->file, at, "\"%.60s\": expected NAME=value",
                                              words.list[i]);
                break;
            }
            *equals = '\0';
            status = set_env(b, at, words.list[i], equals + 1);
        }
    }
    adli_words_fini(&words);
    return status;
}

static adl_status do_arg(building *b, const adli_instruction *at)
{
    adli_words words = {0};
    adl_status status = adli_dockerfile_words(&b->file, at, at->arguments, &b->variables, &words);
    for (size_t i = 0; i < words.count && status == ADL_OK; i++) {
        char *equals = strchr(words.list[i], '=');
        if (!equals)
            continue; /* its value would come from the command line of a builder */
        *equals = '\0';
        if (!adli_words_get(&b->image->env, words.list[i], strlen(words.list[i])))
            status = set_variable(b, at, &b->variables, words.list[i], equals + 1);
    }
    adli_words_fini(&words);
    return status;
}

static adl_status do_workdir(building *b, const adli_instruction *at)
{
    adli_words words = {0};
    char *path = NULL, *absolute = NULL;
    adl_status status = adli_dockerfile_word(&b->file, at, at->arguments, &b->variables, &words);
    if (status != ADL_OK)
        goto out;
    path = adli_tree_resolve(b->workdir, words.list[0]);
    absolute = path ? adli_calloc(strlen(path) + 2, 1) : NULL;
    if (!absolute) {
        status = adli_fail_memory("path");
        goto out;
    }
    absolute[0] = '/';
    strcpy(absolute + 1, path);
    status = adli_tree_mkdir(&b->image->tree, path);
    if (status == ADL_EINVAL)
        status = adli_dockerfile_fail(&b->file, at, "%s", adl_error());
    if (status != ADL_OK)
        goto out;
    free(b->workdir);
    b->workdir = absolute;
    absolute = NULL;
out:
    free(absolute);
    free(path);
    adli_words_fini(&words);
    return status;
}

/* CMD and ENTRYPOINT: a JSON list, or a line for the shell. */
static adl_status do_command(building *b, const adli_instruction *at, adli_words *command)
{
    bool is_list;
    (void)b;
    adli_words_clear(command);
    adl_status status = adli_dockerfile_list(at->arguments, command, &is_list);
    if (status != ADL_OK || is_list)
        return status;
    const char *const words[] = {"/bin/sh", "-c", at->arguments};
    for (size_t i = 0; i < ADLI_COUNT(words) && status == ADL_OK && *at->arguments; i++)
        status = adli_words_add(command, words[i], strlen(words[i]));
    return status;
}

/* ---- COPY and ADD ---- */

typedef struct copying {
    int mode; /* -1: as it is */
    bool from;
    const char *rest; /* after the flags */
} copying;

static adl_status parse_flags(const building *b, const adli_instruction *at, copying *c)
{
    *c = (copying){.mode = -1, .rest = at->arguments};
    while (strncmp(c->rest, "--", 2) == 0) {
        const char *flag = c->rest + 2;
        size_t length = strcspn(flag, " \t");
        if (strncmp(flag, "from=", 5) == 0) {
            c->from = true;
        } else if (strncmp(flag, "chmod=", 6) == 0) {
            char *end;
            long mode = strtol(flag + 6, &end, 8);
            if (end != flag + length || end == flag + 6 || mode < 0 || mode > 07777)
                return adli_dockerfile_fail(&b->file, at, "--%.*s: expected an octal mode",
                                            (int)(length < 60 ? length : 60), flag);
            c->mode = (int)mode;
        } else if (strncmp(flag, "chown=", 6) != 0 && strncmp(flag, "link", 4) != 0 &&
                   strncmp(flag, "checksum=", 9) != 0) {
            return adli_dockerfile_fail(&b->file, at, "--%.*s is not supported",
                                        (int)(length < 60 ? length : 60), flag);
        }
        c->rest = flag + length + strspn(flag + length, " \t");
    }
    return ADL_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t m = strlen(text), n = strlen(end);
    return m >= n && strcmp(text + m - n, end) == 0;
}

static bool is_archive(const char *name)
{
    static const char *const ends[] = {".tar",     ".tar.gz", ".tgz",
                                       ".tar.bz2", ".tar.xz", ".tar.zst"};
    for (size_t i = 0; i < ADLI_COUNT(ends); i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static adl_status note_line(building *b, const adli_instruction *at, const char *what)
{
    char text[400];
    snprintf(text, sizeof text, "%.200s:%d: %s", b->file.path, at->line, what);
    return add_note(b->image, text);
}

/* words: sources, then the destination. */
static adl_status copy_words(building *b, const adli_instruction *at, const copying *c,
                             adli_words *words)
{
    const char *last = words->list[words->count - 1];
    adli_words sources = {0};
    char *dest = adli_tree_resolve(b->workdir, last);
    adl_status status = dest ? ADL_OK : adli_fail_memory("path");
    bool url = false;
    for (size_t i = 0; i + 1 < words->count && status == ADL_OK; i++) {
        if (is(at, "ADD") && strstr(words->list[i], "://"))
            url = true;
        else
            status = adli_tree_glob(&b->image->tree, words->list[i], &sources);
    }
    bool into = ends_with(last, "/") || strcmp(last, ".") == 0 || ends_with(last, "/.") ||
                sources.count > 1;
    for (size_t i = 0; i < sources.count && status == ADL_OK; i++) {
        if (is(at, "ADD") && is_archive(sources.list[i]))
            status = adli_fail(ADL_EINVAL, "ADD does not unpack \"%s\" here: unpack it beforehand",
                               sources.list[i]);
        else
            status = adli_tree_copy(&b->image->tree, sources.list[i], dest, into, c->mode);
    }
    if (status != ADL_OK && status != ADL_ENOMEM)
        status = adli_dockerfile_fail(&b->file, at, "%s", adl_error());
    adli_words_fini(&sources);
    free(dest);
    if (status == ADL_OK && url)
        status = note_line(b, at, "ADD of an address is left out: download it beforehand");
    return status;
}

static adl_status do_copy(building *b, const adli_instruction *at)
{
    adli_words words = {0};
    copying c;
    bool is_list;
    adl_status status = parse_flags(b, at, &c);
    if (status != ADL_OK)
        return status;
    if (c.from)
        return note_line(b, at,
                         "COPY --from is left out: only files of the directory can be copied");
    if (at->document)
        return adli_dockerfile_fail(&b->file, at, "%s <<... is not supported: use a file",
                                    at->name);
    status = adli_dockerfile_list(c.rest, &words, &is_list);
    if (status == ADL_OK && is_list) {
        adli_words plain = words;
        words = (adli_words){0};
        for (size_t i = 0; i < plain.count && status == ADL_OK; i++)
            status = adli_dockerfile_word(&b->file, at, plain.list[i], &b->variables, &words);
        adli_words_fini(&plain);
    } else if (status == ADL_OK) {
        status = adli_dockerfile_words(&b->file, at, c.rest, &b->variables, &words);
    }
    if (status == ADL_OK && words.count < 2)
        status =
            adli_dockerfile_fail(&b->file, at, "%s needs a source and a destination", at->name);
    if (status == ADL_OK)
        status = copy_words(b, at, &c, &words);
    adli_words_fini(&words);
    return status;
}

static adl_status do_ignored(building *b, const adli_instruction *at)
{
    for (size_t i = 0; i < ADLI_COUNT(ignored); i++) {
        if (!is(at, ignored[i]))
            continue;
        for (size_t k = 0; k < b->done.count; k++)
            if (is(at, b->done.list[k]))
                return ADL_OK;
        return adli_words_add(&b->done, at->name, strlen(at->name));
    }
    return adli_dockerfile_fail(&b->file, at, "unknown instruction %s", at->name);
}

static adl_status carry_out(building *b, const adli_instruction *at)
{
    if (is(at, "ENV"))
        return do_env(b, at);
    if (is(at, "ARG"))
        return do_arg(b, at);
    if (is(at, "WORKDIR"))
        return do_workdir(b, at);
    if (is(at, "COPY") || is(at, "ADD"))
        return do_copy(b, at);
    if (is(at, "CMD"))
        return do_command(b, at, &b->image->cmd);
    if (is(at, "ENTRYPOINT"))
        return do_command(b, at, &b->image->entrypoint);
    return do_ignored(b, at);
}

static adl_status add_ignored_note(building *b)
{
    adli_buf text;
    adli_buf_init(&text, 4096);
    adli_buf_printf(&text, "%.200s: FROM", b->file.path);
    for (size_t i = 0; i < b->done.count; i++)
        adli_buf_printf(&text, ", %s", b->done.list[i]);
    adli_buf_puts(&text, " ignored: a local cluster uses what is installed on this machine");
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = add_note(b->image, text.data);
    adli_buf_fini(&text);
    return status;
}

static adl_status run_dockerfile(building *b, const char *path)
{
    adli_buf text;
    int stage = -1;
    adli_buf_init(&text, ADLI_DOCKERFILE_MAX_BYTES);
    adl_status status = adli_file_read(path, &text);
    if (status == ADL_OK)
        status = adli_dockerfile_parse(&b->file, path, text.data, text.length);
    if (status == ADL_OK)
        status = choose_stages(b);
    /* ENV PATH=/opt/bin:$PATH means the machine's here; a base image's is not known. */
    const char *path_variable = getenv("PATH");
    if (status == ADL_OK && path_variable)
        status = adli_words_set(&b->variables, "PATH", path_variable);
    for (size_t i = 0; i < b->file.count && status == ADL_OK; i++) {
        const adli_instruction *at = &b->file.list[i];
        if (is(at, "FROM"))
            stage++;
        else if (stage < 0 || b->wanted[stage])
            status = carry_out(b, at);
    }
    if (status == ADL_OK)
        status = add_ignored_note(b);
    adli_buf_fini(&text);
    return status;
}

/* ---- the whole ---- */

/* DOCKERFILE.dockerignore, else .dockerignore, else nothing but .git is left out. */
static adl_status read_ignore(adli_image *image, const char *directory, const char *dockerfile)
{
    adli_buf path, text;
    adli_buf_init(&path, 1 << 16);
    adli_buf_init(&text, 1 << 20);
    adli_buf_printf(&path, "%s.dockerignore", dockerfile ? dockerfile : "");
    adl_status status = adli_buf_check(&path);
    if (status == ADL_OK && (!dockerfile || access(path.data, R_OK) != 0)) {
        adli_buf_clear(&path);
        adli_buf_printf(&path, "%s/.dockerignore", directory);
        status = adli_buf_check(&path);
    }
    if (status == ADL_OK) {
        status = adli_file_read(path.data, &text);
        if (status == ADL_OK)
            status = adli_ignore_parse(&image->tree.ignore, text.data, text.length);
        else if (status == ADL_ENOENT)
            status = adli_ignore_parse(&image->tree.ignore, ".git", 4);
    }
    adli_buf_fini(&text);
    adli_buf_fini(&path);
    return status;
}

static adl_status copy_all(building *b)
{
    b->workdir = adli_strdup("/workspace");
    if (!b->workdir)
        return adli_fail_memory("path");
    return adli_tree_copy(&b->image->tree, "", "workspace", false, -1);
}

static adl_status finish(building *b)
{
    adli_image *image = b->image;
    adl_status status = adli_tree_finish(&image->tree);
    if (status == ADL_OK && image->tree.left_out) {
        char text[400];
        snprintf(text, sizeof text,
                 "%d left out that %s not plain files or lead out of the directory (first: %s)",
                 image->tree.left_out, image->tree.left_out == 1 ? "is" : "are",
                 image->tree.left_name);
        status = add_note(image, text);
    }
    image->workdir = b->workdir;
    b->workdir = NULL;
    image->config = (adli_image_config){
        .env = (const char *const *)image->env.list,
        .workdir = image->workdir,
        .entrypoint = image->entrypoint.count ? (const char *const *)image->entrypoint.list : NULL,
        .cmd = image->cmd.count ? (const char *const *)image->cmd.list : NULL,
    };
    static const char *const none[] = {NULL};
    if (!image->config.env)
        image->config.env = none;
    return status;
}

adl_status adli_image_build(const char *directory, const char *dockerfile, adli_image **out)
{
    *out = NULL;
    adli_image *image = adli_calloc(1, sizeof *image);
    if (!image)
        return adli_fail_memory("image");
    building b = {.image = image};
    adl_status status = adli_tree_open(&image->tree, directory);
    if (status == ADL_OK)
        status = read_ignore(image, directory, dockerfile);
    if (status == ADL_OK)
        status = dockerfile ? run_dockerfile(&b, dockerfile) : copy_all(&b);
    if (status == ADL_OK)
        status = finish(&b);
    adli_dockerfile_fini(&b.file);
    adli_words_fini(&b.variables);
    adli_words_fini(&b.done);
    free(b.workdir);
    if (status == ADL_OK)
        *out = image;
    else
        adli_image_free(image);
    return status;
}

void adli_image_free(adli_image *image)
{
    if (!image)
        return;
    adli_tree_fini(&image->tree);
    adli_words_fini(&image->env);
    adli_words_fini(&image->entrypoint);
    adli_words_fini(&image->cmd);
    adli_words_fini(&image->notes);
    free(image->workdir);
    free(image);
}

const adli_image_config *adli_image_get_config(const adli_image *image)
{
    return &image->config;
}

const char *adli_image_note(const adli_image *image, int index)
{
    return (size_t)index < image->notes.count ? image->notes.list[index] : NULL;
}

int64_t adli_image_bytes(const adli_image *image)
{
    return image->tree.bytes;
}

int adli_image_files(const adli_image *image)
{
    return (int)image->tree.count;
}

int64_t adli_image_size(const adli_image *image, int index)
{
    return (size_t)index < image->tree.count ? image->tree.files[index].size : 0;
}

const char *adli_image_path(const adli_image *image, int index)
{
    return (size_t)index < image->tree.count ? image->tree.files[index].path : NULL;
}
