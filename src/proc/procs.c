#include "proc/procs.h"

#include "base/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct process {
    pid_t id, parent, group;
    unsigned long long born; /* clock ticks since boot: with id the name of a process */
    int64_t resident_pages;
    unsigned long long ticks,
        dead_ticks; /* of processor time: its own, and of children that it has reaped */
    bool zombie, below;
    bool
        veiled; /* its environment cannot be seen: in the middle of exec, of its end, or not ours */
} process;

static ssize_t read_proc(pid_t id, const char *file, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)id, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0)
        length += (size_t)got;
    close(fd);
    text[length] = '\0';
    return (ssize_t)length;
}

/* A field of /proc/PID/stat; after: what follows the name, which is field 2 and may hold anything. */
static unsigned long long stat_field(const char *after, int number)
{
    for (int i = 2; after && i < number; i++)
        after = strchr(after + 1, ' ');
    return after ? strtoull(after, NULL, 10) : 0;
}

static bool read_process(pid_t id, process *out)
{
    enum {
        PARENT = 4,
        GROUP = 5,
        FLAGS = 9,
        USER = 14,
        SYSTEM = 15,
        DEAD_USER = 16,
        DEAD_SYSTEM = 17,
        BORN = 22,
        RESIDENT = 24,
        ENV_END = 51,
        KERNEL_THREAD = 0x200000
    };
    char text[1024];
    if (read_proc(id, "stat", text, sizeof text) <= 0)
        return false;
    const char *after = strrchr(text, ')');
    if (!after || after[1] != ' ')
        return false;
    *out = (process){.id = id,
                     .parent = (pid_t)stat_field(after, PARENT),
                     .group = (pid_t)stat_field(after, GROUP),
                     .born = stat_field(after, BORN),
                     .resident_pages = (int64_t)stat_field(after, RESIDENT),
                     .ticks = stat_field(after, USER) + stat_field(after, SYSTEM),
                     .dead_ticks = stat_field(after, DEAD_USER) + stat_field(after, DEAD_SYSTEM),
                     .zombie = after[2] == 'Z' || after[2] == 'X'};
    out->veiled = !(stat_field(after, FLAGS) & KERNEL_THREAD) && stat_field(after, ENV_END) == 0;
    return true;
}

/* All processes; *count of them; NULL without memory or /proc. */
static process *read_all(size_t *count)
{
    process *all = NULL;
    size_t capacity = 0;
    DIR *dir = opendir("/proc");
    *count = 0;
    if (!dir)
        return NULL;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (adli_grow(&all, &capacity, *count + 1, sizeof *all) != 0)
            break;
        if (read_process((pid_t)atol(entry->d_name), &all[*count]))
            ++*count;
    }
    closedir(dir);
    return all;
}

static int by_id(const void *a, const void *b)
{
    const process *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

static int by_owned_id(const void *a, const void *b)
{
    const adli_procs_owner *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

/* Marks what is below root. A pass finds at least one generation; a child has mostly a greater number
 * than its parent, so that few do. */
static process *read_below(pid_t root, size_t *count)
{
    process *all = read_all(count);
    if (all)
        qsort(all, *count, sizeof *all, by_id);
    for (bool found = true; found;) {
        found = false;
        for (size_t i = 0; i < *count; i++) {
            process key = {.id = all[i].parent};
            process *parent = bsearch(&key, all, *count, sizeof *all, by_id);
            if (all[i].below || (key.id != root && !(parent && parent->below)))
                continue;
            all[i].below = found = true;
        }
    }
    return all;
}

/* SIGKILL, unless the number belongs to another process by now. */
static void kill_process(const process *target)
{
    process now;
    int fd = (int)syscall(SYS_pidfd_open, target->id, 0);
    if (fd < 0 && errno != ENOSYS)
        return;
    if (read_process(target->id, &now) && now.born == target->born) {
        if (fd >= 0)
            syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
        else
            kill(target->id, SIGKILL);
    }
    if (fd >= 0)
        close(fd);
}

int adli_procs_kill_below(pid_t root)
{
    size_t count;
    int alive = 0;
    process *all = read_below(root, &count);
    for (size_t i = 0; i < count; i++) {
        if (!all[i].below || all[i].zombie)
            continue;
        kill_process(&all[i]);
        alive++;
    }
    free(all);
    return alive;
}

pid_t *adli_procs_children(pid_t parent, pid_t group, size_t *count)
{
    size_t all_count, capacity = 0;
    pid_t *out = NULL;
    *count = 0;
    process *all = read_all(&all_count);
    for (size_t i = 0; i < all_count; i++)
        if (all[i].parent == parent && all[i].group == group && !all[i].zombie &&
            adli_grow(&out, &capacity, *count + 1, sizeof *out) == 0)
            out[(*count)++] = all[i].id;
    free(all);
    return out;
}

/* Proportional set size without file pages, which the kernel can drop. */
static int64_t exact_memory(pid_t id)
{
    char text[4096];
    int64_t total = 0;
    if (read_proc(id, "smaps_rollup", text, sizeof text) <= 0)
        return 0;
    static const char *const fields[] = {"\nPss_Anon:", "\nPss_Shmem:"};
    for (size_t i = 0; i < ADLI_COUNT(fields); i++) {
        const char *field = strstr(text, fields[i]);
        if (field)
            total += 1024 * strtoll(field + strlen(fields[i]), NULL, 10);
    }
    return total;
}

int64_t adli_procs_memory_below(pid_t root, int64_t enough)
{
    size_t count;
    int64_t bound = 0, exact = 0;
    process *all = read_below(root, &count);
    for (size_t i = 0; i < count; i++)
        if (all[i].below)
            bound += all[i].resident_pages * sysconf(_SC_PAGESIZE);
    for (size_t i = 0; bound > enough && i < count; i++)
        if (all[i].below && !all[i].zombie)
            exact += exact_memory(all[i].id);
    free(all);
    return bound > enough ? exact : bound;
}

/* The number of the root above a process; SIZE_MAX: none. roots: by id. */
static size_t root_above(const process *all, size_t all_count, const adli_procs_owner *roots,
                         size_t count, const process *from)
{
    enum {
        GENERATIONS = 1000
    }; /* the look is not of one instant: parents may go round in a ring */
    for (int i = 0; from && i < GENERATIONS; i++) {
        adli_procs_owner wanted = {.id = from->parent};
        const adli_procs_owner *root = bsearch(&wanted, roots, count, sizeof *roots, by_owned_id);
        if (root)
            return root->use;
        process key = {.id = from->parent};
        from = bsearch(&key, all, all_count, sizeof *all, by_id);
    }
    return SIZE_MAX;
}

/* The roots that are there, by id. */
static adli_procs_owner *sort_roots(const process *all, size_t all_count, adli_procs_use *uses,
                                    size_t count, size_t *found)
{
    adli_procs_owner *roots = adli_calloc(count ? count : 1, sizeof *roots);
    double ticks_in_s = (double)sysconf(_SC_CLK_TCK);
    *found = 0;
    for (size_t i = 0; roots && i < count; i++) {
        process key = {.id = uses[i].root};
        const process *root = bsearch(&key, all, all_count, sizeof *all, by_id);
        if (!root || root->born != uses[i].born)
            continue;
        uses[i].cpu_s = (double)root->dead_ticks / ticks_in_s;
        uses[i].memory_bytes = uses[i].weigh ? 0 : -1;
        roots[(*found)++] = (adli_procs_owner){root->id, i};
    }
    if (roots)
        qsort(roots, *found, sizeof *roots, by_owned_id);
    return roots;
}

void adli_procs_use_below(adli_procs_use *uses, size_t count, adli_procs_owner **owners,
                          size_t *owner_count)
{
    size_t all_count, root_count, capacity = 0;
    double ticks_in_s = (double)sysconf(_SC_CLK_TCK);
    *owners = NULL;
    *owner_count = 0;
    for (size_t i = 0; i < count; i++) {
        uses[i].cpu_s = NAN;
        uses[i].memory_bytes = -1;
    }
    process *all = read_all(&all_count);
    if (all)
        qsort(all, all_count, sizeof *all, by_id);
    adli_procs_owner *roots = sort_roots(all, all_count, uses, count, &root_count);
    for (size_t i = 0; root_count > 0 && i < all_count; i++) {
        size_t use = root_above(all, all_count, roots, root_count, &all[i]);
        if (use == SIZE_MAX)
            continue;
        uses[use].cpu_s += (double)(all[i].ticks + all[i].dead_ticks) / ticks_in_s;
        if (uses[use].weigh && !all[i].zombie)
            uses[use].memory_bytes += exact_memory(all[i].id);
        if (adli_grow(owners, &capacity, *owner_count + 1, sizeof **owners) == 0)
            (*owners)[(*owner_count)++] = (adli_procs_owner){all[i].id, use};
    }
    free(roots);
    free(all);
}

static bool has_mark(pid_t id, const char *mark, char *text, size_t size)
{
    ssize_t length = read_proc(id, "environ", text, size);
    size_t name = strlen(ADLI_REPLICA_MARK);
    for (const char *at = text; length > 0 && at < text + length; at += strlen(at) + 1)
        if (strncmp(at, ADLI_REPLICA_MARK, name) == 0 && at[name] == '=' &&
            strcmp(at + name + 1, mark) == 0)
            return true;
    return false;
}

/* Processes of other users are none of ours. */
static bool foreign(pid_t id)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%ld", (long)id);
    return geteuid() != 0 && stat(path, &info) == 0 && info.st_uid != geteuid();
}

unsigned long long adli_procs_born(pid_t id)
{
    process item;
    return read_process(id, &item) ? item.born : 0;
}

int adli_procs_kill_marked(const char *mark, unsigned long long since, int *unsure)
{
    enum { ENVIRON_BYTES = 2 << 20 }; /* what exec allows */
    size_t count;
    int alive = 0;
    process *all = read_all(&count);
    char *text = adli_calloc(ENVIRON_BYTES, 1);
    *unsure = !text;
    for (size_t i = 0; text && i < count; i++) {
        process now = all[i];
        if (now.zombie || now.id == getpid() || now.born < since)
            continue;
        if (has_mark(now.id, mark, text, ENVIRON_BYTES)) {
            kill_process(&now);
            alive++;
        } else if (read_process(now.id, &now) && !now.zombie && now.veiled && !foreign(now.id))
            ++*unsure;
    }
    free(text);
    free(all);
    return alive;
}
