#include "base/json_patch.h"

#include "base/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 256 };

static const char *member(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

adl_status adli_json_patch_check(const json_t *patch)
{
    size_t i;
    const json_t *item;
    if (!json_is_array(patch))
        return adli_fail(ADL_EINVAL, "expected a list of operations (JSON Patch)");
    json_array_foreach(patch, i, item)
    {
        const char *op = member(item, "op"), *path = member(item, "path");
        bool removes = strcmp(op, "remove") == 0;
        if (!removes && strcmp(op, "add") != 0 && strcmp(op, "replace") != 0 &&
            strcmp(op, "test") != 0)
            return adli_fail(ADL_EINVAL,
                             "operation %zu: op \"%.40s\": expected add, replace, remove or test",
                             i, op);
        if (path[0] != '/')
            return adli_fail(ADL_EINVAL,
                             "operation %zu: path \"%.100s\": expected one with / first", i, path);
        if (!removes && !json_object_get(item, "value"))
            return adli_fail(ADL_EINVAL, "operation %zu: value is missing", i);
    }
    return ADL_OK;
}

/* The next part of a path, "~1" and "~0" turned back; what is left. NULL: it is too long. */
static const char *next_key(const char *path, char out[KEY_MAX])
{
    size_t length = 0;
    for (path++; *path && *path != '/'; path++) {
        if (length + 1 >= KEY_MAX)
            return NULL;
        if (path[0] == '~' && (path[1] == '0' || path[1] == '1'))
            out[length++] = *++path == '0' ? '~' : '/';
        else
            out[length++] = *path;
    }
    out[length] = '\0';
    return path;
}

/* A place in a list; "-": behind its end. false: no number, or not there. */
static bool read_index(const json_t *list, const char *key, bool adds, size_t *out)
{
    size_t size = json_array_size(list);
    char *end;
    if (adds && strcmp(key, "-") == 0) {
        *out = size;
        return true;
    }
    if (key[0] < '0' || key[0] > '9' || (key[0] == '0' && key[1]))
        return false;
    *out = strtoul(key, &end, 10);
    return *end == '\0' && (adds ? *out <= size : *out < size);
}

static json_t *step(const json_t *from, const char *key)
{
    size_t index;
    if (json_is_object(from))
        return json_object_get(from, key);
    return json_is_array(from) && read_index(from, key, false, &index) ? json_array_get(from, index)
                                                                       : NULL;
}

/* Whatever the path names but for its last part, which is put into key. NULL: there is no such place. */
static json_t *find_parent(json_t *document, const char *path, char key[KEY_MAX])
{
    json_t *at = document;
    for (;;) {
        path = next_key(path, key);
        if (!path || *path == '\0')
            return path ? at : NULL;
        at = step(at, key);
        if (!at)
            return NULL;
    }
}

static bool change_list(json_t *list, const char *key, const char *op, json_t *value)
{
    size_t index;
    bool adds = strcmp(op, "add") == 0;
    if (!read_index(list, key, adds, &index))
        return false;
    if (adds)
        return json_array_insert(list, index, value) == 0;
    return strcmp(op, "remove") == 0 ? json_array_remove(list, index) == 0
                                     : json_array_set(list, index, value) == 0;
}

static bool change(json_t *parent, const char *key, const char *op, json_t *value)
{
    if (strcmp(op, "test") == 0)
        return json_equal(step(parent, key), value);
    if (json_is_array(parent))
        return change_list(parent, key, op, value);
    if (!json_is_object(parent))
        return false;
    if (strcmp(op, "add") != 0 && !json_object_get(parent, key))
        return false;
    return strcmp(op, "remove") == 0 ? json_object_del(parent, key) == 0
                                     : json_object_set(parent, key, value) == 0;
}

adl_status adli_json_patch(json_t *document, const json_t *patch)
{
    size_t i;
    const json_t *item;
    adl_status status = adli_json_patch_check(patch);
    if (status != ADL_OK)
        return status;
    json_array_foreach(patch, i, item)
    {
        const char *op = member(item, "op"), *path = member(item, "path");
        char key[KEY_MAX];
        json_t *parent = find_parent(document, path, key);
        json_t *value = json_deep_copy(json_object_get(item, "value"));
        bool done = parent && change(parent, key, op, value);
        json_decref(value);
        if (!done)
            return adli_fail(ADL_EINVAL, "operation %zu: %s %.200s: %s", i, op, path,
                             strcmp(op, "test") == 0 ? "is something else" : "is no such place");
    }
    return ADL_OK;
}
