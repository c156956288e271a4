/* The daemon's core with very many jobs: what a submission, a turn in which nothing happens, a report and a
 * removal cost beside N others. One line per step of the story, in microseconds of processor time; with
 * --quiet nothing, for tools that count instructions.
 *
 *     bench_core [--quiet] N [STEPS]     STEPS of: submit, idle, hints, list, round, delete */
#define CORE_WORLD_BENCH
#include "core_world.h"

#include "base/clock.h"

static bool quiet_run;
static double from_s;

static void begin(void)
{
    from_s = adli_thread_cpu_s();
}

static void end(const char *what, int jobs, int calls)
{
    if (!quiet_run)
        printf("%-34s %14.1f us\n", what, 1e6 * (adli_thread_cpu_s() - from_s) / calls);
    (void)jobs;
}

static void must(adl_status status)
{
    if (status == ADL_OK)
        return;
    fprintf(stderr, "bench_core: %s\n", adl_error());
    exit(1);
}

static void submit_all(world *w, int count)
{
    char name[32];
    begin();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        must(submit(w, name, ""));
        step(w, 1e-4);
    }
    end("a submission and its turn", count, count);
}

static void idle(world *w, int count)
{
    begin();
    for (int i = 0; i < 100; i++)
        step(w, 1e-4);
    end("a turn in which nothing happens", count, 100);
}

static void hints(world *w, int count)
{
    char name[32];
    begin();
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "job-%d", i % 4);
        must(adli_core_hints(w->core, "default", name, good_hints, strlen(good_hints)));
        step(w, 1e-4);
    }
    end("a report and its turn", count, 100);
}

static void list(world *w, int count)
{
    begin();
    for (int i = 0; i < 10; i++) {
        adli_buf_clear(&w->out);
        must(adli_core_cluster(w->core, &w->out));
    }
    end("the cluster as JSON", count, 10);
}

static void rounds(world *w, int count)
{
    begin();
    for (int i = 0; i < 3; i++)
        step(w, 61);
    end("a round of all jobs", count, 3);
}

static void delete_all(world *w, int count)
{
    char name[32];
    begin();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        adli_buf_clear(&w->out);
        must(adli_core_delete(w->core, "default", name, &w->out));
        step(w, 1e-4);
    }
    end("a removal and its turn", count, count);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(world *w, int count);
    } steps[] = {{"submit", submit_all}, {"idle", idle},    {"hints", hints},
                 {"list", list},         {"round", rounds}, {"delete", delete_all}};
    quiet_run = argc > 1 && strcmp(argv[1], "--quiet") == 0;
    argc -= quiet_run;
    argv += quiet_run;
    int count = argc > 1 ? atoi(argv[1]) : 10000;
    world w;
    must(open_world(&w, 2, 2));
    w.core->config.event_delay_s = 1;
    if (!quiet_run)
        printf("beside %d jobs, 4 of them running\n", count);
    for (size_t i = 0; i < ADLI_COUNT(steps); i++) {
        bool wanted = argc <= 2;
        for (int a = 2; a < argc; a++)
            wanted |= strcmp(argv[a], steps[i].name) == 0;
        if (wanted)
            steps[i].run(&w, count);
    }
    close_world(&w);
    return 0;
}
