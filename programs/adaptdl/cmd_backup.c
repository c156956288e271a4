/* `adaptdl backup` and `adaptdl restore`: the scheduler's memory as one file. */
#include "cluster.h"
#include "commands.h"
#include "local.h"

#include "base/mem.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { FORCE = 'f' };

static int failure(const cli *c, adl_status status)
{
    return problem(c->command->name, status == ADL_ENOENT ? EXIT_ABSENT : EXIT_PROBLEM, "%s",
                   adl_error());
}

/* The one argument, and the database of --state; an exit status. *database is NULL when there is nothing more to
 * do: a mistake, or --help. */
static int prepare(cli *c, bool *force, const char **file, char **database)
{
    cluster k;
    char *state = NULL;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option != FORCE)
            return cli_result(option);
        *force = true;
    }
    *file = cli_argument(c, 0);
    if (!*file || cli_count(c) > 1)
        return usage_error(c->command->name, "one file is wanted");
    int status = local_open(&k, c, &state);
    if (status == EXIT_DONE) {
        size_t size = strlen(state) + sizeof "/jobs.sqlite";
        *database = adli_calloc(size, 1);
        if (*database)
            snprintf(*database, size, "%s/jobs.sqlite", state);
        else
            status = problem(c->command->name, EXIT_REFUSED, "out of memory");
    }
    free(state);
    cluster_close(&k);
    return status;
}

static int run_backup(cli *c)
{
    bool force = false;
    const char *to;
    char *database = NULL;
    int status = prepare(c, &force, &to, &database);
    if (!database)
        return status;
    adl_status done = adli_store_backup(database, to, force);
    status = done == ADL_OK ? EXIT_DONE : failure(c, done);
    if (status == EXIT_DONE)
        printf("%s: the jobs of %s; their files (images, checkpoints) are not in it\n", to,
               database);
    free(database);
    return status;
}

/* Whoever holds this lock is the scheduler. EXIT_DONE: nobody did. */
static int lock_out(const cli *c, const char *database, int *fd)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/adaptdl-sched.pid", (int)(strrchr(database, '/') - database),
             database);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return problem(c->command->name, EXIT_PROBLEM, "%s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0)
        return problem(c->command->name, EXIT_REFUSED,
                       "a scheduler uses %s: stop it first (adaptdl down)", database);
    return EXIT_DONE;
}

static int run_restore(cli *c)
{
    bool force = false;
    const char *from;
    char *database = NULL;
    int status = prepare(c, &force, &from, &database);
    if (!database)
        return status;
    bool there = access(database, F_OK) == 0;
    int lock;
    status = lock_out(c, database, &lock);
    if (status == EXIT_DONE) {
        adl_status done = adli_store_restore(from, database);
        status = done == ADL_OK ? EXIT_DONE : failure(c, done);
    }
    if (status == EXIT_DONE)
        printf("%s: restored from %s%s%s%s\n", database, from, there ? "; what was there is " : "",
               there ? database : "", there ? ".before-restore" : "");
    if (lock >= 0)
        close(lock);
    free(database);
    return status;
}

static const cli_option backup_options[] = {
    {FORCE, "force", NULL, "replace FILE if it exists", NULL},
    {0},
};

const cli_command command_backup = {
    .name = "backup",
    .summary = "save the scheduler's memory of its jobs to a file",
    .usage = "[-f] FILE",
    .text = "Copies the database of the local scheduler, which may go on meanwhile. The files of "
            "jobs (images, "
            "checkpoints, logs) are directories below the state directory and are not in the copy.",
    .options = backup_options,
    .examples = "adaptdl backup jobs-$(date +%F).sqlite",
    .arguments = COMPLETE_FILE,
    .flags = CLI_CLUSTER,
    .run = run_backup,
};

static const cli_option restore_options[] = {{0}};

const cli_command command_restore = {
    .name = "restore",
    .summary = "bring back what backup saved",
    .usage = "FILE",
    .text =
        "Puts the copy in the place of the scheduler's database, while no scheduler runs. A "
        "damaged or foreign "
        "file is refused. What was there before stays beside it, as jobs.sqlite.before-restore.",
    .options = restore_options,
    .examples = "adaptdl down && adaptdl restore jobs-2026-11-17.sqlite && adaptdl up",
    .arguments = COMPLETE_FILE,
    .flags = CLI_CLUSTER,
    .run = run_restore,
};
