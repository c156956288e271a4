/* Dockerfiles from arbitrary bytes, over a small directory: an image whose names are all below
 * its root, or an error. The part after a NUL is a .dockerignore. */
#include "image/ignore.h"
#include "image/image.h"

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char base[64], file[128];

static void put(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", base, name);
    FILE *out = fopen(path, "w");
    if (!out || (size > 0 && fwrite(data, 1, size, out) != size) || fclose(out) != 0)
        abort();
}

static void make_directory(void)
{
    char sub[80];
    snprintf(base, sizeof base, "%s/adl-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(base))
        abort();
    snprintf(file, sizeof file, "%s/Dockerfile", base);
    snprintf(sub, sizeof sub, "%s/src", base);
    mkdir(sub, 0755);
    put("a.py", "a", 1);
    put("src/b.c", "b", 1);
    put("src/c.c", "c", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!*base)
        make_directory();
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t first = nul ? (size_t)(nul - data) : size;
    put("Dockerfile", data, first);
    put(".dockerignore", nul ? nul + 1 : data, nul ? size - first - 1 : 0);
    adli_image *image;
    if (adli_image_build(base, file, &image) == ADL_OK) {
        const char *path;
        for (int i = 0; (path = adli_image_path(image, i)); i++)
            if (path[0] == '/' || strstr(path, "//") || strcmp(path, "..") == 0 ||
                strncmp(path, "../", 3) == 0 || strstr(path, "/../"))
                abort();
        if (!adli_image_note(image, 0))
            abort();
        adli_image_free(image);
    } else if (image || adl_error()[0] == '\0') {
        abort();
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *seen, int type, struct FTW *where)
{
    (void)seen, (void)type, (void)where;
    return remove(path);
}

__attribute__((destructor)) static void end(void)
{
    if (*base)
        nftw(base, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
