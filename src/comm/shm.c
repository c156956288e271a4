#include "comm/shm.h"

#include "comm/auth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "adaptdl-allreduce-", directory[] = "/dev/shm";

/* Unlinks one name if nobody holds its lock. */
static int sweep_one(const char *entry)
{
    char name[ADLI_SHM_NAME];
    if (snprintf(name, sizeof name, "/%s", entry) >= (int)sizeof name)
        return 0;
    int fd = shm_open(name, O_RDWR | O_NOFOLLOW, 0), removed = 0;
    if (fd < 0)
        return 0; /* gone, or another user's */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        removed = shm_unlink(name) == 0;
    close(fd);
    return removed;
}

int adli_shm_sweep(void)
{
    int removed = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0)
            removed += sweep_one(entry->d_name);
    }
    if (dir)
        closedir(dir);
    return removed;
}

static adl_status fail_system(const char *what, int error)
{
    return adli_fail(ADL_EIO, "shared memory: %s: %s", what, strerror(error));
}

/* A new name whose lock is ours. A sweeper may have come between creating and locking: then the file
 * has no name any more, and we try another. */
static adl_status create_locked(adli_shm *shm)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t random;
        struct stat info;
        adl_status status = adli_random(&random, sizeof random);
        if (status != ADL_OK)
            return status;
        snprintf(shm->name, sizeof shm->name, "/%s%d-%016" PRIx64, prefix, (int)getpid(), random);
        shm->fd = shm_open(shm->name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (shm->fd < 0 && errno == EEXIST)
            continue;
        if (shm->fd < 0) {
            shm->name[0] = '\0';
            return fail_system("shm_open", errno);
        }
        if (flock(shm->fd, LOCK_EX | LOCK_NB) == 0 && fstat(shm->fd, &info) == 0 &&
            info.st_nlink > 0)
            return ADL_OK;
        close(shm->fd);
        shm->fd = -1;
    }
    shm->name[0] = '\0';
    return fail_system("no name to be had", EEXIST);
}

static adl_status map(adli_shm *shm, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shm->fd, 0);
    if (base == MAP_FAILED)
        return fail_system("mmap", errno);
    shm->base = base;
    shm->bytes = bytes;
    return ADL_OK;
}

adl_status adli_shm_create(size_t bytes, adli_shm *out)
{
    *out = (adli_shm){.fd = -1};
    adli_shm_sweep();
    adl_status status = create_locked(out);
    if (status != ADL_OK)
        return status;
    int error = posix_fallocate(out->fd, 0, (off_t)bytes);
    if (error != 0)
        status = fail_system("posix_fallocate", error);
    else
        status = map(out, bytes);
    if (status != ADL_OK)
        adli_shm_fini(out);
    return status;
}

adl_status adli_shm_open(const char *name, size_t bytes, adli_shm *out)
{
    *out = (adli_shm){.fd = -1};
    out->fd = shm_open(name, O_RDWR | O_NOFOLLOW, 0);
    if (out->fd < 0)
        return fail_system("shm_open", errno);
    struct stat info;
    adl_status status = ADL_OK;
    if (fstat(out->fd, &info) != 0 || info.st_size != (off_t)bytes)
        status = adli_fail(ADL_EIO, "shared memory: %s is not of %zu bytes", name, bytes);
    else
        status = map(out, bytes);
    if (status != ADL_OK)
        adli_shm_fini(out);
    return status;
}

void adli_shm_unlink(adli_shm *shm)
{
    if (shm->name[0])
        shm_unlink(shm->name);
    shm->name[0] = '\0';
    if (shm->fd >= 0) /* the lock goes with it, after the name */
        close(shm->fd);
    shm->fd = -1;
}

void adli_shm_fini(adli_shm *shm)
{
    adli_shm_unlink(shm);
    if (shm->base)
        munmap(shm->base, shm->bytes);
    shm->base = NULL;
}
