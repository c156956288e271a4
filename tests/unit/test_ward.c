/* Programs that are watched: what a shell leaves behind when it is asked to stop is asked as well, however many they
 * are. */
#include "harness.h"

#include "base/clock.h"
#include "proc/ward.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t start(const char *script)
{
    pid_t id = fork();
    if (id == 0) {
        setpgid(0, 0);
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    setpgid(id, id);
    return id;
}

TEST(all_that_a_shell_leaves_is_asked_to_stop)
{
    enum { LEFT = 40, LIMIT_S = 120 };
    int ready[2], asked = 0, other = 0;
    char byte;
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 && pipe(ready) == 0);
    REQUIRE(dup2(ready[1], 9) == 9);
    adli_ward ward = {.id = start("i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i + 1)); done;"
                                  " printf x >&9; wait")};
    REQUIRE(ward.id > 0 && read(ready[0], &byte, 1) == 1);
    adli_ward_ask(&ward);
    double until_s = adli_monotonic_s() + LIMIT_S;
    while (!adli_ward_over(&ward) && adli_monotonic_s() < until_s) {
        int status;
        pid_t id = waitpid(-1, &status, WUNTRACED | WCONTINUED | WNOHANG);
        if (id > 0) {
            adli_ward_note(&ward, id, status, adli_monotonic_s());
            if (id != ward.id && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM)
                asked++;
            else if (id != ward.id)
                other++;
        } else if (id < 0 && errno == ECHILD)
            break;
        else
            usleep(1000);
    }
    CHECK(adli_ward_over(&ward));
    CHECK_INT(asked, LEFT);
    CHECK_INT(other, 0);
    CHECK_INT(adli_ward_code(&ward), 128 + SIGTERM);
    kill(-ward.id, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    adli_ward_fini(&ward);
    close(ready[0]);
    close(ready[1]);
    close(9);
}
