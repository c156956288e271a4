/* `adaptdl top`: the cluster as it is now, on the whole terminal, with nothing but ANSI
 * sequences. */
#include "cluster.h"
#include "commands.h"
#include "term.h"
#include "top_view.h"

#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { ONCE = 256, INTERVAL };

/* ---- the terminal ---- */

static volatile sig_atomic_t resized;

static void note_resize(int number)
{
    (void)number;
    resized = 1;
}

typedef struct screen {
    struct termios before;
    bool raw;
} screen;

static void screen_open(screen *s)
{
    struct sigaction action = {.sa_handler = note_resize, .sa_flags = SA_RESTART};
    struct termios raw;
    sigaction(SIGWINCH, &action, NULL);
    s->raw = isatty(0) && tcgetattr(0, &s->before) == 0;
    if (s->raw) { /* keys at once and unseen; CTRL-C stays a signal */
        raw = s->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(0, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout); /* another screen, no cursor */
}

static void screen_close(screen *s)
{
    fputs("\033[0m\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (s->raw)
        tcsetattr(0, TCSANOW, &s->before);
}

static top_size measure(bool once)
{
    int lines = 0, columns = term_columns(stdout, &lines);
    return (top_size){.width = columns >= 20 ? columns
                               : columns     ? 20
                                             : 110,
                      .height = once        ? 0
                                : lines > 0 ? lines
                                            : 24,
                      .colours = term_colours(stdout)};
}

/* Sleeps until the time is up, a key was pressed or the window changed. False: q. */
static bool await_key(double until_s)
{
    while (!interrupted() && !resized) {
        struct pollfd wait = {0, POLLIN, 0};
        double left_s = until_s - adli_monotonic_s();
        if (left_s <= 0)
            return true;
        int ready = poll(&wait, isatty(0), (int)(left_s * 1000) + 1);
        char key = 0;
        if (ready > 0 && (read(0, &key, 1) != 1 || key == 'q' || key == 'Q'))
            return false;
    }
    resized = 0;
    return true;
}

/* ---- the picture ---- */

/* What of a job is shown. */
#define TOP_FIELDS                                                                                 \
    "namespace,name,uid,phase,reason,message,created,started,completed,replicas,readyReplicas,"    \
    "restarts,failures,allocation,train,metrics,use,deviceSeconds"

/* Draws it into out. EXIT_DONE, or what the scheduler said is in adl_error() or was shown. */
static int draw(cluster *k, const top_size *size, bool quiet, top_letters *letters, adli_buf *out)
{
    json_t *state = NULL, *jobs = NULL;
    int status = EXIT_NO_CLUSTER;
    if (quiet && cluster_look(k, "/api/v1/cluster", 10000) != ADL_OK)
        return status;
    status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &state);
    if (status == EXIT_DONE)
        status = cluster_list(k, "fields=" TOP_FIELDS, &jobs);
    if (status == EXIT_DONE)
        top_draw(out, state, jobs, size, letters);
    json_decref(jobs);
    json_decref(state);
    return status;
}

/* One picture over the last, without a flicker: each line clears its own rest. */
static void show(const adli_buf *picture, const top_size *size)
{
    const char *p = picture->data ? picture->data : "";
    fputs("\033[H", stdout);
    for (int line = 1; *p && line < size->height; line++) {
        size_t length = strcspn(p, "\n");
        printf("%.*s\033[K\r\n", (int)length, p);
        p += length + (p[length] == '\n');
    }
    fputs("\033[J", stdout);
    printf("\033[%d;1H%sq: quit%s", size->height, term_code(DIM, size->colours),
           term_code(PLAIN, size->colours));
    fflush(stdout);
}

static int live(cluster *k, double interval_s)
{
    adli_buf picture;
    top_letters letters = {0};
    screen s;
    top_size size = measure(false);
    adli_buf_init(&picture, 16 << 20);
    int status =
        draw(k, &size, false, &letters, &picture); /* a first failure is told on the usual screen */
    if (status != EXIT_DONE) {
        top_letters_fini(&letters);
        adli_buf_fini(&picture);
        return status;
    }
    catch_interrupts();
    screen_open(&s);
    do {
        size = measure(false);
        adli_buf_clear(&picture);
        if (draw(k, &size, true, &letters, &picture) != EXIT_DONE)
            adli_buf_puts(&picture, "the scheduler does not answer; trying again ...\n");
        if (interrupted())
            break;
        show(&picture, &size);
    } while (await_key(adli_monotonic_s() + interval_s) && !interrupted());
    screen_close(&s);
    top_letters_fini(&letters);
    adli_buf_fini(&picture);
    return EXIT_DONE;
}

static int once(cluster *k)
{
    adli_buf picture;
    top_letters letters = {0};
    top_size size = measure(true);
    adli_buf_init(&picture, 16 << 20);
    int status = draw(k, &size, false, &letters, &picture);
    if (status == EXIT_DONE)
        fwrite(picture.data, 1, picture.length, stdout);
    top_letters_fini(&letters);
    adli_buf_fini(&picture);
    return status;
}

static int run_top(cli *c)
{
    bool one = false;
    double interval_s = 1;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == ONCE)
            one = true;
        else if (!cli_number(c->value, 0.1, 3600, &interval_s))
            return usage_error("top", "--interval %s: must be from 0.1 to 3600 seconds", c->value);
    }
    if (cli_count(c) > 0)
        return usage_error("top", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = one || !isatty(1) ? once(&k) : live(&k, interval_s);
    cluster_close(&k);
    return status;
}

static const cli_option top_options[] = {
    {ONCE, "once", NULL, "one picture, then end (also when the output is no terminal)", NULL},
    {INTERVAL, "interval", "S", "seconds between pictures (default 1)", NULL},
    {0},
};

const cli_command command_top = {
    .name = "top",
    .summary = "show nodes and jobs live",
    .usage = "[--once]",
    .text =
        "Shows every node with its slots, a letter for each replica, and every job with its batch "
        "size, examples per second, statistical efficiency, goodput, progress and expected time "
        "left, as many of these as the terminal is wide enough for. A job keeps its letter. q "
        "ends it.",
    .options = top_options,
    .flags = CLI_CLUSTER,
    .run = run_top,
};
