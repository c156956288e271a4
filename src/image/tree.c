#include "image/tree.h"

#include "base/buf.h"
#include "base/mem.h"
#include "image/names.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 1000000, DEPTH_MAX = ADLI_PATH_DEPTH_MAX - 4 };

adl_status adli_tree_open(adli_tree *tree, const char *directory)
{
    struct stat seen;
    tree->root = realpath(directory, NULL);
    if (!tree->root || stat(tree->root, &seen) != 0)
        return adli_fail(errno == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", directory,
                         strerror(errno));
    if (!S_ISDIR(seen.st_mode))
        return adli_fail(ADL_EINVAL, "%s: not a directory", directory);
    return ADL_OK;
}

void adli_tree_fini(adli_tree *tree)
{
    for (size_t i = 0; i < tree->count; i++) {
        free(tree->files[i].path);
        free(tree->files[i].source);
    }
    free(tree->files);
    adli_ignore_fini(&tree->ignore);
    free(tree->root);
    *tree = (adli_tree){0};
}

char *adli_tree_resolve(const char *workdir, const char *path)
{
    size_t room = (workdir ? strlen(workdir) : 0) + strlen(path) + 3;
    char *whole = adli_calloc(room, 1), *out = adli_calloc(room, 1);
    size_t used = 0;
    if (!whole || !out) {
        free(whole);
        free(out);
        return NULL;
    }
    snprintf(whole, room, "%s/%s", path[0] == '/' || !workdir ? "" : workdir, path);
    for (const char *p = whole; *p; p += strspn(p, "/")) {
        size_t length = strcspn(p, "/");
        if (length == 2 && p[0] == '.' && p[1] == '.') {
            while (used > 0 && out[used - 1] != '/')
                used--;
            used -= used > 0;
        } else if (length > 0 && !(length == 1 && p[0] == '.')) {
            if (used > 0)
                out[used++] = '/';
            memcpy(out + used, p, length);
            used += length;
        }
        p += length;
    }
    out[used] = '\0';
    free(whole);
    return out;
}

static char *join(const char *left, const char *right)
{
    size_t room = strlen(left) + strlen(right) + 2;
    char *text = adli_calloc(room, 1);
    if (text)
        snprintf(text, room, "%s%s%s", left, *left && *right ? "/" : "", right);
    return text;
}

/* Sorted names of a directory, without "." and "..". */
static adl_status list_directory(const char *path, struct dirent ***out, int *count)
{
    *count = scandir(path, out, NULL, alphasort);
    if (*count < 0)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        if (strcmp((*out)[i]->d_name, ".") == 0 || strcmp((*out)[i]->d_name, "..") == 0)
            free((*out)[i]);
        else
            (*out)[kept++] = (*out)[i];
    }
    *count = kept;
    return ADL_OK;
}

static void free_list(struct dirent **list, int count)
{
    for (int i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

/* ---- patterns ---- */

static adl_status glob_below(const adli_tree *tree, const char *prefix, const char *pattern,
                             adli_words *out);

/* One more component is settled: goes on below, or the name is found. */
static adl_status glob_found(const adli_tree *tree, const char *prefix, const char *name,
                             const char *rest, adli_words *out)
{
    char *path = join(prefix, name), *real = path ? join(tree->root, path) : NULL;
    adl_status status = real ? ADL_OK : adli_fail_memory("path");
    struct stat seen;
    if (status == ADL_OK && lstat(real, &seen) == 0) {
        if (*rest && stat(real, &seen) == 0 && S_ISDIR(seen.st_mode))
            status = glob_below(tree, path, rest, out);
        else if (!*rest && (!adli_ignore_match(&tree->ignore, path) ||
                            (tree->ignore.exceptions && S_ISDIR(seen.st_mode))))
            status = adli_words_add(out, path, strlen(path));
    }
    free(real);
    free(path);
    return status;
}

static adl_status glob_below(const adli_tree *tree, const char *prefix, const char *pattern,
                             adli_words *out)
{
    char part[ADLI_PATH_PART_MAX + 1];
    size_t length = strcspn(pattern, "/");
    if (length > ADLI_PATH_PART_MAX)
        return ADL_OK; /* no file has such a name */
    memcpy(part, pattern, length);
    part[length] = '\0';
    const char *rest = pattern + length + strspn(pattern + length, "/");
    if (!strpbrk(part, "*?[\\"))
        return glob_found(tree, prefix, part, rest, out);
    char *real = join(tree->root, prefix);
    struct dirent **list = NULL;
    int count = 0;
    adl_status status = real ? list_directory(real, &list, &count) : adli_fail_memory("path");
    for (int i = 0; i < count && status == ADL_OK; i++)
        if (fnmatch(part, list[i]->d_name, 0) == 0)
            status = glob_found(tree, prefix, list[i]->d_name, rest, out);
    if (list)
        free_list(list, count);
    free(real);
    return status;
}

adl_status adli_tree_glob(const adli_tree *tree, const char *pattern, adli_words *out)
{
    size_t before = out->count;
    for (const char *p = pattern; *p; p += strspn(p, "/")) {
        size_t length = strcspn(p, "/");
        if (length == 2 && p[0] == '.' && p[1] == '.')
            return adli_fail(ADL_EINVAL, "\"%s\" leads out of the directory", pattern);
        p += length;
    }
    char *clean = adli_tree_resolve(NULL, pattern);
    if (!clean)
        return adli_fail_memory("pattern");
    adl_status status = *clean ? glob_below(tree, "", clean, out) : adli_words_add(out, "", 0);
    if (status == ADL_OK && out->count == before)
        status = adli_fail(ADL_ENOENT, "\"%s\": no such file in the directory%s", pattern,
                           tree->ignore.patterns.count ? " (or .dockerignore leaves it out)" : "");
    free(clean);
    return status;
}

/* ---- copying ---- */

static adl_status add(adli_tree *tree, const char *path, const char *source, int64_t size,
                      mode_t mode)
{
    adl_status status = adli_image_name_check(path);
    if (status != ADL_OK)
        return status;
    if (tree->count == FILES_MAX)
        return adli_fail(ADL_EINVAL, "%s: more than %d files", tree->root, FILES_MAX);
    if (adli_grow(&tree->files, &tree->capacity, tree->count + 1, sizeof *tree->files) != 0)
        return adli_fail_memory("list of files");
    adli_file *file = &tree->files[tree->count];
    *file = (adli_file){adli_strdup(path), source ? adli_strdup(source) : NULL, size, mode,
                        tree->count};
    if (!file->path || (source && !file->source)) {
        free(file->path);
        free(file->source);
        return adli_fail_memory("list of files");
    }
    tree->count++;
    return ADL_OK;
}

adl_status adli_tree_mkdir(adli_tree *tree, const char *path)
{
    if (!*path)
        return ADL_OK;
    size_t room = strlen(path) + 2;
    char *name = adli_calloc(room, 1);
    if (!name)
        return adli_fail_memory("path");
    snprintf(name, room, "%s/", path);
    adl_status status = add(tree, name, NULL, 0, 0755);
    free(name);
    return status;
}

/* The directories that lead to the present one, so that links cannot lead round and round. */
typedef struct ancestor {
    dev_t device;
    ino_t inode;
    int depth;
    const struct ancestor *above;
} ancestor;

static void leave_out(adli_tree *tree, const char *name)
{
    if (tree->left_out++ == 0)
        snprintf(tree->left_name, sizeof tree->left_name, "%s", name);
}

static bool inside(const adli_tree *tree, const char *real)
{
    size_t length = strlen(tree->root);
    return strncmp(real, tree->root, length) == 0 &&
           (real[length] == '/' || real[length] == '\0' || tree->root[length - 1] == '/');
}

static adl_status copy_any(adli_tree *tree, const char *name, const char *dest, int mode,
                           const ancestor *above);

static adl_status copy_directory(adli_tree *tree, const char *name, const char *real,
                                 const char *dest, int mode, const ancestor *here)
{
    struct dirent **list = NULL;
    int count = 0;
    adl_status status = adli_tree_mkdir(tree, dest);
    if (status == ADL_OK)
        status = list_directory(real, &list, &count);
    for (int i = 0; i < count && status == ADL_OK; i++) {
        char *child = join(name, list[i]->d_name), *to = join(dest, list[i]->d_name);
        status = child && to ? copy_any(tree, child, to, mode, here) : adli_fail_memory("path");
        free(child);
        free(to);
    }
    if (list)
        free_list(list, count);
    return status;
}

/* One file or directory, unless .dockerignore leaves it out. */
static adl_status copy_any(adli_tree *tree, const char *name, const char *dest, int mode,
                           const ancestor *above)
{
    bool ignored = *name && adli_ignore_match(&tree->ignore, name);
    if (ignored && !tree->ignore.exceptions)
        return ADL_OK;
    adl_status status = ADL_OK;
    char *path = join(tree->root, name), *real = path ? realpath(path, NULL) : NULL;
    struct stat seen;
    if (!path) {
        status = adli_fail_memory("path");
        goto out;
    }
    if (!real || !inside(tree, real) || stat(real, &seen) != 0 ||
        (!S_ISREG(seen.st_mode) && !S_ISDIR(seen.st_mode))) {
        if (!ignored)
            leave_out(tree, name);
        goto out;
    }
    if (S_ISREG(seen.st_mode)) {
        if (!ignored)
            status = add(tree, dest, real, seen.st_size,
                         mode >= 0 ? (mode_t)mode : seen.st_mode & 07777);
        goto out;
    }
    for (const ancestor *a = above; a; a = a->above) {
        if (a->device == seen.st_dev && a->inode == seen.st_ino) {
            leave_out(tree, name);
            goto out;
        }
    }
    ancestor here = {seen.st_dev, seen.st_ino, above ? above->depth + 1 : 1, above};
    if (here.depth > DEPTH_MAX)
        status = adli_fail(ADL_EINVAL, "%s: more than %d directories deep", name, DEPTH_MAX);
    else
        status = copy_directory(tree, name, real, dest, mode, &here);
out:
    free(real);
    free(path);
    return status;
}

static bool has_directory(const adli_tree *tree, const char *path)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < tree->count; i++)
        if (strncmp(tree->files[i].path, path, length) == 0 && tree->files[i].path[length] == '/')
            return true;
    return length == 0;
}

adl_status adli_tree_copy(adli_tree *tree, const char *source, const char *dest, bool into,
                          int mode)
{
    struct stat seen;
    char *path = join(tree->root, source), *real = path ? realpath(path, NULL) : NULL, *to = NULL;
    adl_status status = ADL_OK;
    if (!path)
        status = adli_fail_memory("path");
    else if (!real || stat(real, &seen) != 0)
        status = adli_fail(ADL_ENOENT, "\"%s\": %s", source, strerror(errno));
    else if (!inside(tree, real))
        status = adli_fail(ADL_EINVAL, "\"%s\" leads out of the directory", source);
    if (status == ADL_OK && !S_ISDIR(seen.st_mode) && (into || has_directory(tree, dest))) {
        const char *slash = strrchr(source, '/');
        to = join(dest, slash ? slash + 1 : source);
    } else if (status == ADL_OK) {
        to = adli_strdup(dest);
    }
    if (status == ADL_OK)
        status = to ? copy_any(tree, source, to, mode, NULL) : adli_fail_memory("path");
    free(to);
    free(real);
    free(path);
    return status;
}

/* ---- the end ---- */

/* "a/" and "a" are the same name; the later first. */
static int compare(const void *left, const void *right)
{
    const adli_file *a = left, *b = right;
    size_t m = strlen(a->path), n = strlen(b->path);
    m -= a->path[m - 1] == '/';
    n -= b->path[n - 1] == '/';
    int order = memcmp(a->path, b->path, m < n ? m : n);
    if (order == 0 && m != n)
        order = m < n ? -1 : 1;
    return order ? order : a->order < b->order ? 1 : -1;
}

static bool same_name(const adli_file *a, const adli_file *b)
{
    size_t m = strlen(a->path), n = strlen(b->path);
    m -= a->path[m - 1] == '/';
    n -= b->path[n - 1] == '/';
    return m == n && memcmp(a->path, b->path, m) == 0;
}

static const adli_file *find_file(const adli_tree *tree, const char *path)
{
    adli_file key = {.path = (char *)path};
    size_t low = 0, high = tree->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (same_name(&tree->files[middle], &key))
            return &tree->files[middle];
        if (compare(&tree->files[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

adl_status adli_tree_finish(adli_tree *tree)
{
    size_t kept = 0;
    char parent[ADLI_PATH_MAX + 1];
    if (tree->count)
        qsort(tree->files, tree->count, sizeof *tree->files, compare);
    for (size_t i = 0; i < tree->count; i++) {
        if (kept > 0 && same_name(&tree->files[kept - 1], &tree->files[i])) {
            free(tree->files[i].path);
            free(tree->files[i].source);
        } else {
            tree->files[kept++] = tree->files[i];
        }
    }
    tree->count = kept;
    tree->bytes = 0;
    for (size_t i = 0; i < tree->count; i++) {
        const char *path = tree->files[i].path;
        tree->bytes += tree->files[i].size;
        for (const char *slash = path; (slash = strchr(slash, '/')) && slash[1]; slash++) {
            memcpy(parent, path, (size_t)(slash - path));
            parent[slash - path] = '\0';
            const adli_file *above = find_file(tree, parent);
            if (above && above->source)
                return adli_fail(ADL_EINVAL, "/%s is a file, and /%s needs it to be a directory",
                                 parent, path);
        }
    }
    return ADL_OK;
}
