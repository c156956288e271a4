/* `adaptdl wait`: until jobs are where one wants them. It looks again and again instead of
 * listening, so that it survives a restart of the scheduler. */
#include "cluster.h"
#include "commands.h"
#include "wait.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

enum { FOR = 256, TIMEOUT, ABSENT_S = 60 };

/* What a look at the job says: EXIT_DONE reached, EXIT_PROBLEM never will be, -1 not yet. */
static int judge(const json_t *job, const char *uid, wait_goal goal)
{
    bool gone = !job || (*uid && strcmp(text_of(job, "uid", ""), uid) != 0);
    const char *phase = text_of(job, "phase", "");
    if (goal == WAIT_DELETED)
        return gone ? EXIT_DONE : -1;
    if (gone)
        return EXIT_ABSENT;
    if (strcmp(phase, "Failed") == 0)
        return EXIT_PROBLEM;
    if (strcmp(phase, "Succeeded") == 0 || (goal == WAIT_RUNNING && strcmp(phase, "Running") == 0))
        return EXIT_DONE;
    return -1;
}

static int tell(const cluster *k, const job_name *job, int verdict, const json_t *answer, bool seen)
{
    const char *command = k->cli->command->name;
    char hint[HINT_TEXT];
    const char *why = text_of(answer, "message", text_of(answer, "reason", "it does not say why"));
    if (verdict == EXIT_PROBLEM)
        return problem(command, verdict, "job %s/%s failed: %.*s", job->ns, job->name,
                       (int)(seen ? strcspn(why, "\n") : strlen(why)), why);
    if (verdict == EXIT_ABSENT)
        return problem(command, verdict, "there is no job %s/%s (any more)%s", job->ns, job->name,
                       job_hint(k, job, hint));
    return verdict;
}

/* On Kubernetes it is the API server that says so: 502, 503 or 504. */
static bool absent(const cluster *k, adl_status status)
{
    return status == ADL_ENET || (status == ADL_OK && k->kube && k->code >= 502 && k->code <= 504);
}

int wait_for(cluster *k, const job_name *job, wait_goal goal, double deadline_s, bool seen)
{
    char path[PATH_TEXT], uid[80] = "";
    /* when the scheduler answered last; on Kubernetes somebody starts one that is not there */
    double seen_s = k->kube ? adli_monotonic_s() : -INFINITY;
    job_path(job, "", path);
    for (int pause = 50;; pause = pause < 500 ? pause * 2 : 500) {
        json_t *answer = NULL;
        double now_s = adli_monotonic_s();
        adl_status status = cluster_look(k, path, 60000);
        bool restarting = absent(k, status) && now_s < seen_s + ABSENT_S;
        if (!restarting) {
            if (status != ADL_OK || (k->code >= 400 && k->code != 404))
                return cluster_failed(k, status, k->code, &k->answer);
            if (k->code < 400 && cluster_parse(k, &answer) != EXIT_DONE)
                return EXIT_REFUSED;
            seen_s = now_s;
            int verdict = judge(answer, uid, goal);
            if (!*uid)
                snprintf(uid, sizeof uid, "%s", text_of(answer, "uid", ""));
            if (verdict >= 0)
                verdict = tell(k, job, verdict, answer, seen);
            json_decref(answer);
            if (verdict >= 0)
                return verdict;
        }
        if (now_s >= deadline_s)
            return problem(k->cli->command->name, EXIT_TIMEOUT, "job %s/%s: the time is up",
                           job->ns, job->name);
        double left_ms = 1000 * (deadline_s - now_s);
        pause_ms(left_ms < pause ? (int)left_ms + 1 : pause);
    }
}

static bool parse_goal(const char *text, wait_goal *goal)
{
    static const char *const names[] = {"Succeeded", "Running", "Deleted"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *goal = (wait_goal)i;
            return true;
        }
    }
    return false;
}

static int run_wait(cli *c)
{
    wait_goal goal = WAIT_SUCCEEDED;
    double timeout_s = INFINITY;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == FOR && !parse_goal(c->value, &goal))
            return usage_error("wait", "--for %s: must be Succeeded, Running or Deleted", c->value);
        if (option == TIMEOUT && !cli_number(c->value, 0, 1e9, &timeout_s))
            return usage_error("wait", "--timeout %s: must be a number of seconds", c->value);
    }
    if (cli_count(c) == 0)
        return usage_error("wait", "for which jobs?");
    double deadline_s = adli_monotonic_s() + timeout_s;
    int status = cluster_open(&k, c);
    for (int i = 0; i < cli_count(c) && status == EXIT_DONE; i++) {
        job_name job;
        status = cluster_job_name(&k, cli_argument(c, i), &job);
        if (status == EXIT_DONE)
            status = wait_for(&k, &job, goal, deadline_s, false);
    }
    cluster_close(&k);
    return status;
}

static const cli_option wait_options[] = {
    {FOR, "for", "GOAL", "Succeeded (default), Running or Deleted", "Succeeded Running Deleted"},
    {TIMEOUT, "timeout", "S", "give up after so many seconds (default: never)", NULL},
    {0},
};

const cli_command command_wait = {
    .name = "wait",
    .summary = "wait until jobs have succeeded, run or are gone",
    .usage = "[--for GOAL] [--timeout S] JOB...",
    .text =
        "Waits until every job has reached the goal. A job that has already gone past Running has "
        "reached it. A restart of the scheduler does not disturb.",
    .options = wait_options,
    .exits =
        "0 all reached it, 1 a job failed, 3 the time was up, 4 there is no such job (any more), "
        "5 no cluster answers.",
    .examples =
        "adaptdl wait --timeout 600 mnist-x7k2p && adaptdl cp mnist-x7k2p:/adaptdl/share/model .",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_wait,
};
