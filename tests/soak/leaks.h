/* What a cluster may leave behind, and what its daemon holds: processes, descriptors, memory, files, control
 * groups, ports, and a database that must be whole. */
#ifndef ADLT_LEAKS_H
#define ADLT_LEAKS_H

#include "cluster.h"
#include "entries.h"

#include "backend/local/record.h"

#include <sqlite3.h>
#include <sys/syscall.h>

/* ---- processes: all that this run started carry its mark in their environment ---- */

typedef enum process_kind { KIND_REPLICA, KIND_KEEPER, KIND_OTHER } process_kind;

static inline bool process_has(long pid, const char *file, const char *text)
{
    static char bytes[262144];
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = 0;
    while (fd >= 0 && length < sizeof bytes &&
           (got = read(fd, bytes + length, sizeof bytes - length)) > 0)
        length += (size_t)got;
    if (fd >= 0)
        close(fd);
    return memmem(bytes, length, text, strlen(text)) != NULL;
}

/* A replica leads a process group in its keeper's session; what it starts here has a session of its own. */
static inline process_kind process_kind_of(long pid)
{
    char path[64], program[512];
    snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    const char *name = strrchr(program, '/');
    if (name && strcmp(name, "/adaptdl-keeper") == 0)
        return KIND_KEEPER;
    bool trains = name && strcmp(name, "/helper_train") == 0;
    return trains && getsid((pid_t)pid) != (pid_t)pid ? KIND_REPLICA : KIND_OTHER;
}

/* Calls each(user, pid, pidfd) for every process with the mark, but for ourselves and the daemon. The
 * descriptor stands for the process that was looked at, whoever gets its number later. Returns how
 * many. */
static inline int processes_marked(const cluster *c, const char *mark,
                                   void (*each)(void *user, long pid, int pidfd), void *user)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || pid == getpid() || pid == c->daemon)
            continue;
        int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
        if (pidfd < 0)
            continue;
        if (process_has(pid, "environ", mark)) {
            count++;
            if (each)
                each(user, pid, pidfd);
        }
        close(pidfd);
    }
    if (proc)
        closedir(proc);
    return count;
}

/* ---- what the daemon holds ---- */

typedef struct holdings {
    int files, threads;
    long memory_kib;
} holdings;

static inline holdings holdings_of(pid_t pid)
{
    char path[64];
    holdings now = {0};
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
    now.files = adlt_entries(path);
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    now.threads = adlt_entries(path);
    snprintf(path, sizeof path, "/proc/%ld/statm", (long)pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d %ld", &pages) == 1)
        now.memory_kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
    if (file)
        fclose(file);
    return now;
}

/* The least seen within two seconds: connections take a moment to be closed. */
static inline holdings holdings_settled(pid_t pid)
{
    holdings least = holdings_of(pid);
    for (int i = 0; i < 20; i++) {
        usleep(100000);
        holdings now = holdings_of(pid);
        least.files = now.files < least.files ? now.files : least.files;
        least.threads = now.threads < least.threads ? now.threads : least.threads;
        least.memory_kib = now.memory_kib; /* the last */
    }
    return least;
}

/* ---- control groups of this state directory ---- */

static char leaks_cgroup_prefix[32];
static int leaks_cgroups;

static inline int leaks_cgroup_entry(const char *path, const struct stat *info, int kind,
                                     struct FTW *where)
{
    (void)info;
    leaks_cgroups += kind == FTW_D && strncmp(path + where->base, leaks_cgroup_prefix,
                                              strlen(leaks_cgroup_prefix)) == 0;
    return 0;
}

static inline int cgroups_of(const cluster *c)
{
    char *full = realpath(c->state, NULL);
    snprintf(leaks_cgroup_prefix, sizeof leaks_cgroup_prefix, "adaptdl-%08x-",
             full ? (unsigned)adli_record_sum(full, strlen(full)) : 0);
    free(full);
    leaks_cgroups = 0;
    nftw("/sys/fs/cgroup", leaks_cgroup_entry, 16, FTW_PHYS);
    return leaks_cgroups;
}

/* ---- the database ---- */

/* The first column of the first row, or "(what went wrong)". Static. */
static inline const char *database_ask(const cluster *c, const char *query)
{
    static char answer[256];
    char path[128];
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    snprintf(path, sizeof path, "%s/jobs.sqlite", c->state);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, query, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        snprintf(answer, sizeof answer, "%s", (const char *)sqlite3_column_text(statement, 0));
    else
        snprintf(answer, sizeof answer, "(%s)", sqlite3_errmsg(db));
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return answer;
}

#endif
