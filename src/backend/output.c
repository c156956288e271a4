#include "backend/output.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static const char NOTICE[] = "\n[what was written before this was removed: limits.maxLogBytes]\n";

static int64_t on_disk(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 ? (int64_t)info.st_blocks * 512 : 0;
}

/* The notice stands at the end of the hole's last block, which therefore is none. */
static void notice(int fd, int64_t end)
{
    const int64_t length = sizeof NOTICE - 1;
    ssize_t ignored = pwrite(fd, NOTICE, (size_t)length, (off_t)(end - length));
    (void)ignored; /* a full disk: the hole is what counts */
}

int64_t adli_output_trim(int fd, int64_t max)
{
    struct stat info;
    int64_t used = on_disk(fd);
    if (max <= 0 || used <= max || fstat(fd, &info) != 0)
        return used;
    int64_t end = ((int64_t)info.st_size - max / 2) / BLOCK * BLOCK;
    if (end < BLOCK)
        return used;
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)end) == 0)
        notice(fd, end);
    else if (ftruncate(fd, 0) == 0) /* who appends goes on at the beginning */
        notice(fd, sizeof NOTICE - 1);
    return on_disk(fd);
}

int64_t adli_output_begin(int fd)
{
    char block[BLOCK];
    off_t at = lseek(fd, 0, SEEK_DATA);
    if (at <= 0)
        return 0;
    ssize_t got = pread(fd, block, sizeof block, at), skip = 0;
    while (skip < got && block[skip] == '\0')
        skip++;
    return (int64_t)at + (skip < got ? skip : 0);
}
