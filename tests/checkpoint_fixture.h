/* What the checkpoint tests share: a temporary directory, a state made of bytes, a log that is
 * remembered, and small file helpers. Include after harness.h. */
#ifndef ADLI_CHECKPOINT_FIXTURE_H
#define ADLI_CHECKPOINT_FIXTURE_H

#include "adaptdl/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

/* A state that is a block of bytes. */
typedef struct blob {
    unsigned char *data;
    size_t length;
    int saves, loads, syncs;
    adl_status fail_save, fail_load, fail_sync;
} blob;

static inline adl_status blob_save(void *user, adl_sink *sink)
{
    blob *b = user;
    b->saves++;
    if (b->fail_save != ADL_OK)
        return adli_fail(b->fail_save, "told to fail");
    return adl_sink_write(sink, b->data, b->length);
}

static inline adl_status blob_load(void *user, adl_source *source)
{
    blob *b = user;
    b->loads++;
    if (b->fail_load != ADL_OK)
        return adli_fail(b->fail_load, "told to fail");
    size_t length = adl_source_remaining(source);
    unsigned char *data = malloc(length + 1);
    if (!data || adl_source_read(source, data, length) != ADL_OK) {
        free(data);
        return adli_fail(ADL_ENOMEM, "blob");
    }
    free(b->data);
    b->data = data;
    b->length = length;
    return ADL_OK;
}

static inline adl_status blob_sync(void *user)
{
    blob *b = user;
    b->syncs++;
    return b->fail_sync == ADL_OK ? ADL_OK : adli_fail(b->fail_sync, "told to fail");
}

static const adl_checkpoint_functions blob_functions = {sizeof blob_functions, blob_save, blob_load,
                                                        blob_sync};

/* length bytes that depend on seed and compress somewhat. */
static inline blob blob_of(size_t length, unsigned seed)
{
    blob b = {.data = malloc(length + 1), .length = length};
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525u + 1013904223u;
        b.data[i] = (unsigned char)(x >> 28) + (unsigned char)seed;
    }
    return b;
}

static inline bool blob_is(const blob *b, size_t length, unsigned seed)
{
    blob wanted = blob_of(length, seed);
    bool same = b->length == length && memcmp(b->data, wanted.data, length) == 0;
    free(wanted.data);
    return same;
}

static inline void blob_set(blob *b, size_t length, unsigned seed)
{
    free(b->data);
    blob fresh = blob_of(length, seed);
    b->data = fresh.data;
    b->length = length;
}

typedef struct log_lines {
    int count;
    char text[8192]; /* all lines, each with its newline, as far as they fit */
} log_lines;

static inline void log_line(void *user, const char *line)
{
    log_lines *lines = user;
    size_t used = strlen(lines->text);
    snprintf(lines->text + used, sizeof lines->text - used, "%s\n", line);
    lines->count++;
}

static inline int fixture_remove(const char *path, const struct stat *info, int type,
                                 struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static inline void remove_tree(const char *path)
{
    nftw(path, fixture_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new directory's path (static storage). Memory-backed where there is one: these tests are about
 * order and content, and thousands of real fsyncs would only wear out the disk. */
static inline const char *fresh_directory(void)
{
    static char path[256];
    const char *root = getenv("TMPDIR");
    if (!root)
        root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, sizeof path, "%s/adl-ckpt-XXXXXX", root);
    if (!mkdtemp(path)) {
        perror(path);
        exit(1);
    }
    return path;
}

static inline bool exists(const char *directory, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static inline int count_entries(const char *directory, const char *prefix)
{
    DIR *entries = opendir(directory);
    int count = 0;
    struct dirent *entry;
    while (entries && (entry = readdir(entries)))
        count += entry->d_name[0] != '\0' && strcmp(entry->d_name, ".") != 0 &&
                 strcmp(entry->d_name, "..") != 0 &&
                 strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (entries)
        closedir(entries);
    return count;
}

static inline unsigned char *slurp(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    *length = 0;
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size >= 0 && (data = malloc((size_t)size + 1)))
        *length = fread(data, 1, (size_t)size, file);
    fclose(file);
    return data;
}

static inline void spill(const char *path, const void *data, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, length) != (ssize_t)length) {
        perror(path);
        exit(1);
    }
    close(fd);
}

#endif
