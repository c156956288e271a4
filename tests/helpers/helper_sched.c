/* adaptdl-sched with a fault in its store: helper_sched KIND NTH [flags]. KIND: kill, torn. */
#include "base/status.h"
#include "daemon/daemon.h"
#include "daemon/flags.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void ready(void *user, const char *url, const char *dashboard)
{
    const adli_flags *flags = user;
    (void)dashboard;
    dprintf(flags->ready_fd, "ready %s\n", url);
    close(flags->ready_fd);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    adli_store_fault(strcmp(argv[1], "torn") == 0 ? ADLI_FAULT_TORN : ADLI_FAULT_KILL,
                     atoll(argv[2]), 1);
    adli_flags flags;
    adl_status status = adli_flags_read(argc - 2, argv + 2, &flags);
    if (status == ADL_OK) {
        adli_daemon_options options = {.state_dir = flags.state_dir,
                                       .config = &flags.config,
                                       .ready = ready,
                                       .ready_user = &flags};
        status = adli_daemon_run(&options);
    }
    if (status != ADL_OK)
        fprintf(stderr, "helper_sched: %s\n", adl_error());
    adli_flags_fini(&flags);
    return status == ADL_OK ? 0 : 1;
}
