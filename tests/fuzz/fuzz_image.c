/* Archives from arbitrary bytes: whatever they say, only plain files and directories appear, and
 * only inside the directory. */
#include "image/image.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char base[64], out[80], tar[32];

static int check_and_remove(const char *path, const struct stat *seen, int type, struct FTW *where)
{
    (void)type;
    bool plain = S_ISDIR(seen->st_mode) || (S_ISREG(seen->st_mode) && seen->st_nlink == 1);
    if (!plain || (where->level == 1 && strcmp(path, out) != 0))
        abort();
    return where->level <= 1 ? 0 : remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0) {
        snprintf(base, sizeof base, "%s/adl-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(base) || (fd = memfd_create("tar", 0)) < 0)
            abort();
        snprintf(out, sizeof out, "%s/out", base);
        snprintf(tar, sizeof tar, "/proc/self/fd/%d", fd);
        if (mkdir(out, 0755) != 0)
            abort();
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    adli_buf job;
    bool yaml;
    adli_image_limits limits = {.max_bytes = 1 << 20, .max_entries = 100};
    adli_buf_init(&job, ADLI_IMAGE_JOB_MAX_BYTES);
    if (adli_image_read_job(tar, &job, &yaml) != ADL_OK && adl_error()[0] == '\0')
        abort();
    if (adli_image_unpack(tar, out, &limits) != ADL_OK && adl_error()[0] == '\0')
        abort();
    adli_buf_fini(&job);
    if (nftw(base, check_and_remove, 16, FTW_DEPTH | FTW_PHYS) != 0)
        abort();
    return 0;
}

__attribute__((destructor)) static void end(void)
{
    rmdir(out);
    rmdir(base);
}
