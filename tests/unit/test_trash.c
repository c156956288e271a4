/* A deleted job's files, however many, go in the background: the controller goes on meanwhile, and what an ended scheduler
 * left is removed by the next one. */
#include "core_world.h"
#include "entries.h"

#include "backend/local/local.h"
#include "base/clock.h"
#include "base/dirs.h"
#include "base/thread.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { FILES = 2000, PATIENCE_S = 300 };

/* Where removals wait until they are let through. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool closed;
    int budget; /* files that may pass though it is closed */
    int passed;
    bool done; /* let_through is not needed any more */
} gate;

typedef struct site {
    world w;
    gate gate;
    adli_backend *local;
} site;

static void wait_at(void *user)
{
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (g->closed && g->budget == 0)
        pthread_cond_wait(&g->moved, &g->lock);
    g->budget -= g->budget > 0;
    g->passed++;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static void set_gate(gate *g, bool closed)
{
    pthread_mutex_lock(&g->lock);
    g->closed = closed;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static int passed(gate *g)
{
    pthread_mutex_lock(&g->lock);
    int count = g->passed;
    pthread_mutex_unlock(&g->lock);
    return count;
}

static adl_status open_site(site *s)
{
    adli_local_node node = {
        .name = "n", .resource_count = 1, .resource_names = {"pods"}, .resource_amounts = {2}};
    adli_local_options options = ADLI_LOCAL_OPTIONS_INIT;
    options.state_dir = s->w.dir;
    options.nodes = &node;
    options.node_count = 1;
    options.cgroups = ADLI_CGROUPS_NONE;
    options.removing = wait_at;
    options.removing_user = &s->gate;
    adl_status status = adli_local_new(&options, &s->local);
    adli_core_options core = {.state_dir = s->w.dir,
                              .backend = s->local,
                              .config = &s->w.config,
                              .supervisor_url = "http://127.0.0.1:1"};
    if (status == ADL_OK)
        status = adli_core_new(&core, &s->w.core);
    return status;
}

static void shut_site(site *s)
{
    adli_core_free(s->w.core);
    s->w.core = NULL;
    if (s->local)
        s->local->ops->free(s->local->self);
    s->local = NULL;
}

static void make_site(site *s)
{
    *s = (site){.w = {.dir = "/tmp/adl-trash-XXXXXX"},
                .gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER}};
    adli_buf_init(&s->w.out, 16 << 20);
    REQUIRE(mkdtemp(s->w.dir));
    REQUIRE_OK(adli_config_defaults(&s->w.config));
    s->w.config.event_delay_s = 0;
    REQUIRE_OK(open_site(s));
}

static void end_site(site *s)
{
    set_gate(&s->gate, false);
    shut_site(s);
    close_world(&s->w);
}

/* Steps the core, as things happen, until the job is so. */
static bool wait_for(site *s, const char *name, const char *phase)
{
    double end_s = adli_monotonic_s() + PATIENCE_S;
    while (adli_monotonic_s() < end_s) {
        struct pollfd events = {.fd = s->local->ops->event_fd(s->local->self), .events = POLLIN};
        adli_core_step(s->w.core);
        if (phase ? strcmp(text_of(&s->w, name, "phase"), phase) == 0 : !field(&s->w, name, "uid"))
            return true;
        poll(&events, 1, 50);
    }
    return false;
}

static int in_trash(const site *s)
{
    char path[128];
    snprintf(path, sizeof path, "%s/jobs/.trash", s->w.dir);
    return adlt_entries(path);
}

static bool wait_for_empty_trash(const site *s)
{
    for (int i = 0; i < PATIENCE_S * 100 && in_trash(s) > 0; i++)
        usleep(10000);
    return in_trash(s) == 0;
}

/* A job that is over, with many files. dir: its directory. */
static void submit_large(site *s, const char *name, char dir[200])
{
    char share[300], path[400];
    REQUIRE_OK(submit(&s->w, name, ""));
    snprintf(dir, 200, "%s/jobs/%s", s->w.dir, uid_of(&s->w, name));
    snprintf(share, sizeof share, "%s/share/deep", dir);
    REQUIRE_OK(adli_dirs_make(share, 0700));
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%d", share, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE(fd >= 0);
        close(fd);
    }
}

static void ask_delete(site *s, const char *name)
{
    adli_buf_clear(&s->w.out);
    CHECK_OK(adli_core_delete(s->w.core, "default", name, &s->w.out));
}

TEST(rounds_go_on_while_a_large_job_is_removed)
{
    site s;
    char dir[200];
    make_site(&s);
    submit_large(&s, "large", dir);
    set_gate(&s.gate, true);
    ask_delete(&s, "large");
    CHECK(wait_for(&s, "large", NULL)); /* nothing of it is known any more ... */
    CHECK(access(dir, F_OK) != 0);
    CHECK_INT(in_trash(&s), 1); /* ... and all of its files are there */
    CHECK_OK(submit(&s.w, "next", ""));
    CHECK(wait_for(&s, "next", "Succeeded"));
    submit_large(&s, "large", dir); /* its name is free */
    ask_delete(&s, "large");
    CHECK(wait_for(&s, "large", NULL));
    CHECK_INT(passed(&s.gate), 0);
    CHECK_INT(in_trash(&s), 2);
    set_gate(&s.gate, false);
    CHECK(wait_for_empty_trash(&s));
    CHECK(passed(&s.gate) >= FILES);
    end_site(&s);
}

static void *let_through(void *user)
{
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (!g->done) {
        g->budget++;
        pthread_cond_broadcast(&g->moved);
        pthread_mutex_unlock(&g->lock);
        usleep(20000);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* All files would take 40 s. */
TEST(a_scheduler_ends_without_waiting_for_files_and_the_next_one_goes_on)
{
    site s;
    char dir[200];
    pthread_t slowly;
    make_site(&s);
    submit_large(&s, "large", dir);
    set_gate(&s.gate, true);
    ask_delete(&s, "large");
    CHECK(wait_for(&s, "large", NULL));
    REQUIRE_OK(adli_thread_start(&slowly, "slowly", let_through, &s.gate));
    shut_site(&s);
    pthread_mutex_lock(&s.gate.lock);
    s.gate.done = true;
    pthread_mutex_unlock(&s.gate.lock);
    pthread_join(slowly, NULL);
    CHECK(passed(&s.gate) < FILES);
    CHECK_INT(in_trash(&s), 1);
    set_gate(&s.gate, false);
    REQUIRE_OK(open_site(&s));
    CHECK(wait_for_empty_trash(&s));
    end_site(&s);
}

static void be_killed_while_removing(site *s)
{
    char dir[200];
    REQUIRE_OK(open_site(s));
    submit_large(s, "large", dir);
    set_gate(&s->gate, true);
    ask_delete(s, "large");
    CHECK(wait_for(s, "large", NULL));
    pthread_mutex_lock(&s->gate.lock);
    s->gate.budget = FILES / 2;
    pthread_cond_broadcast(&s->gate.moved);
    while (s->gate.passed < FILES / 2)
        pthread_cond_wait(&s->gate.moved, &s->gate.lock);
    if (!adlt_failed)
        kill(getpid(), SIGKILL);
}

TEST(what_a_killed_scheduler_had_not_removed_is_removed)
{
    site s;
    char path[128];
    int status;
    make_site(&s);
    shut_site(&s);
    pid_t child = fork();
    if (child == 0) {
        be_killed_while_removing(&s);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK_INT(in_trash(&s), 1);
    snprintf(path, sizeof path, "%s/jobs/gone.older", s.w.dir); /* as earlier versions had it */
    CHECK(mkdir(path, 0700) == 0);
    REQUIRE_OK(open_site(&s));
    CHECK(!field(&s.w, "large", "uid"));
    CHECK(wait_for_empty_trash(&s));
    CHECK(access(path, F_OK) != 0);
    end_site(&s);
}
