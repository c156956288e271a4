/* The files of an image while it is being put together: which file of the user's directory goes
 * where. A later file replaces an earlier one of the same name, as the layers of an image do. */
#ifndef ADLI_IMAGE_TREE_H
#define ADLI_IMAGE_TREE_H

#include "base/status.h"
#include "image/ignore.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct adli_file {
    char *path;   /* in the image, without a leading "/"; a directory ends with "/" */
    char *source; /* on this machine; NULL: a directory */
    int64_t size;
    mode_t mode;
    size_t order; /* of adding */
} adli_file;

/* Start with {0}, then adli_tree_open. */
typedef struct adli_tree {
    char *root; /* the user's directory, without links */
    adli_ignore ignore;
    adli_file *files;
    size_t count, capacity;
    int64_t bytes;
    int left_out;        /* links out of the directory, sockets ... */
    char left_name[256]; /* the first of them */
} adli_tree;

ADL_MUST adl_status adli_tree_open(adli_tree *tree, const char *directory);
void adli_tree_fini(adli_tree *tree);

/* A pattern of files relative to the directory ("src", "*.py", "." for all) -> names of files
 * and directories that match, sorted, those of .dockerignore left out. ".." is refused; ENOENT
 * when there is none. */
ADL_MUST adl_status adli_tree_glob(const adli_tree *tree, const char *pattern, adli_words *out);

/* Copies source (a name from adli_tree_glob): a directory's contents into dest, or a file to
 * dest, or into dest when into is true or dest is a directory already. mode -1: as it is. */
ADL_MUST adl_status adli_tree_copy(adli_tree *tree, const char *source, const char *dest, bool into,
                                   int mode);
ADL_MUST adl_status adli_tree_mkdir(adli_tree *tree, const char *path);

/* Sorts by name, drops what was replaced, and refuses a file where others need a directory. */
ADL_MUST adl_status adli_tree_finish(adli_tree *tree);

/* "/a/./b/../c/" -> "a/c" against the absolute working directory (NULL: "/"). Result on the
 * heap; NULL: no memory. */
char *adli_tree_resolve(const char *workdir, const char *path);

#endif
