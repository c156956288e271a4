/* adaptdl-keeper: what stands between the scheduler and one replica; src/backend/local/keeper.h. */
#include "backend/local/keeper.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* To the replica's own log, where whoever set ADAPTDL_LOG=debug for the job looks. */
static void print(void *user, adl_log_level level, const char *line)
{
    const adli_keeper *keeper = user;
    int fd = open(keeper->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return;
    dprintf(fd, "adaptdl-keeper: %s%s\n", adli_log_mark(level), line);
    close(fd);
}

int main(int argc, char **argv)
{
    adli_keeper keeper;
    if (adli_keeper_parse(argc, argv, &keeper) != ADL_OK) {
        fprintf(stderr, "%s\n", adl_error());
        return 2;
    }
    adl_log_level level;
    if (adli_log_level(0, &level) == ADL_OK)
        adli_log_start(print, &keeper, level);
    _exit(adli_keeper_run(&keeper)); /* at once: whoever saw the result expects it gone */
}
