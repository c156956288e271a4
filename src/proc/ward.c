#include "proc/ward.h"

#include "base/mem.h"
#include "proc/procs.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void adli_ward_fini(adli_ward *ward)
{
    free(ward->told);
    ward->told = NULL;
    ward->told_count = ward->told_capacity = 0;
}

void adli_ward_ask(adli_ward *ward)
{
    if (ward->id <= 0 || ward->ended)
        return;
    ward->asked = true;
    kill(ward->id, SIGTERM);
}

void adli_ward_kill(adli_ward *ward)
{
    if (ward->id <= 0 || adli_ward_over(ward))
        return;
    ward->killed = true;
    kill(-ward->id, SIGKILL);
}

static bool was_told(const adli_ward *ward, pid_t id)
{
    for (size_t i = 0; i < ward->told_count; i++)
        if (ward->told[i] == id)
            return true;
    return false;
}

static void pass_on(adli_ward *ward)
{
    size_t count;
    pid_t *children = adli_procs_children(getpid(), ward->id, &count);
    for (size_t i = 0; i < count; i++) {
        if (children[i] == ward->id || was_told(ward, children[i]))
            continue;
        /* one that cannot be remembered may be told twice, which is better than not at all */
        if (adli_grow(&ward->told, &ward->told_capacity, ward->told_count + 1,
                      sizeof *ward->told) == 0)
            ward->told[ward->told_count++] = children[i];
        kill(children[i], SIGTERM);
    }
    free(children);
}

void adli_ward_note(adli_ward *ward, pid_t id, int status, double now_s)
{
    bool own = id == ward->id && !ward->ended;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        if (own || was_told(ward, id))
            ward->stopped = WIFSTOPPED(status);
        return;
    }
    if (own) {
        ward->ended = true;
        ward->status = status;
        ward->ended_s = now_s;
    }
    bool of_the_request = WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    if (of_the_request && ward->asked && !ward->killed && (own || was_told(ward, id)))
        pass_on(ward);
}

bool adli_ward_is_silent(adli_ward *ward)
{
    if (!ward->stopped || !ward->asked || ward->killed || ward->silent)
        return false;
    return ward->silent = true;
}

bool adli_ward_over(const adli_ward *ward)
{
    bool stopped = ward->asked && WIFSIGNALED(ward->status) && WTERMSIG(ward->status) == SIGTERM;
    return ward->ended && (!stopped || ward->killed || kill(-ward->id, 0) != 0);
}

int adli_ward_code(const adli_ward *ward)
{
    return WIFSIGNALED(ward->status) ? 128 + WTERMSIG(ward->status) : WEXITSTATUS(ward->status);
}
