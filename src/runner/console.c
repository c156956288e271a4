/* What a person sees. On a terminal a bar for the loader in hand, drawn over itself; in a file a line for
 * each tenth of the data. When a loader or an epoch is over, one line with its metrics. */
#include "runner/runner.h"

#include "base/clock.h"

#include <string.h>
#include <unistd.h>

enum { BAR_CELLS = 20 };
static const double redraw_s = 0.1;

static FILE *console(const adl_runner *runner)
{
    return adl_rank(runner->ctx) == 0 ? runner->options.console : NULL;
}

void adli_console_line(adl_runner *runner, size_t table)
{
    FILE *to = console(runner);
    const adli_table *metrics = &runner->current[table];
    bool epoch = table == runner->loader_count;
    if (!to || metrics->count == 0)
        return;
    fprintf(to, "%s%s (%d/%d) ", epoch ? "* " : "", epoch ? "Epoch" : runner->loaders[table].key,
            runner->epoch, runner->options.epochs);
    for (size_t i = 0; i < metrics->count; i++)
        fprintf(to, "%s%s: %.6g", i ? " | " : "", metrics->entries[i].key,
                metrics->entries[i].value);
    fprintf(to, "\n");
    fflush(to);
}

void adli_console_top(adl_runner *runner)
{
    FILE *to = console(runner);
    const adli_kept_list *kept = &runner->state.kept;
    if (!to || !runner->logdir || kept->count == 0)
        return;
    fprintf(to, "Top models:\n");
    for (size_t i = 0; i < kept->count; i++)
        fprintf(to, "%s/checkpoints/model.%04d.adl\t%.4f\n", runner->logdir, kept->items[i].epoch,
                kept->items[i].metric);
    fflush(to);
}

/* Examples done in the pass that the loop is in, of so many. */
static uint64_t place(const adl_runner *runner, uint64_t *examples)
{
    const adl_batch *batch = runner->batch;
    uint64_t size = (uint64_t)batch->size * (uint64_t)adl_replicas(runner->ctx);
    *examples = adl_loader_examples(runner->loader->loader);
    uint64_t done = batch->done % *examples + size;
    return done < *examples ? done : *examples;
}

/* Examples a second since the loop began. */
static double rate(const adl_runner *runner, double now_s)
{
    double passed_s = now_s - runner->bar.start_s;
    uint64_t size = (uint64_t)runner->batch->size * (uint64_t)adl_replicas(runner->ctx);
    uint64_t done = runner->batch->done + size - runner->bar.start_done;
    return passed_s > 0 ? (double)done / passed_s : 0;
}

static void draw(adl_runner *runner, FILE *to, double now_s)
{
    uint64_t total, done = place(runner, &total);
    char cells[BAR_CELLS + 1];
    int filled = (int)(done * BAR_CELLS / total);
    memset(cells, ' ', BAR_CELLS);
    memset(cells, '#', (size_t)filled);
    cells[BAR_CELLS] = '\0';
    fprintf(to, "\r%s (%d/%d) %3d%%|%s| %llu/%llu [%.0f/s", runner->loader->key, runner->epoch,
            runner->options.epochs, (int)(100 * done / total), cells, (unsigned long long)done,
            (unsigned long long)total, rate(runner, now_s));
    if (!runner->loader->infer)
        fprintf(to, ", loss %.4f", runner->loss);
    fprintf(to, "]\033[K");
    fflush(to);
    runner->bar.shown = true;
    runner->bar.drawn_s = now_s;
}

static void write_tenth(adl_runner *runner, FILE *to)
{
    uint64_t total, done = place(runner, &total);
    uint64_t passes = runner->batch->done / total; /* more than one with adaptive batch sizes */
    uint64_t tenths = 10 * passes + 10 * done / total;
    if (tenths <= runner->bar.tenths)
        return;
    runner->bar.tenths = tenths;
    fprintf(to, "%s (%d/%d) %d%% %llu/%llu %.0f/s", runner->loader->key, runner->epoch,
            runner->options.epochs, (int)(100 * done / total), (unsigned long long)done,
            (unsigned long long)total, rate(runner, adli_monotonic_s()));
    if (!runner->loader->infer)
        fprintf(to, " loss: %.4f", runner->loss);
    fprintf(to, "\n");
    fflush(to);
}

void adli_bar_begin(adl_runner *runner)
{
    uint64_t examples = adl_loader_examples(runner->loader->loader);
    uint64_t done = runner->batch->done;
    runner->terminal = console(runner) && isatty(fileno(runner->options.console));
    runner->bar = (adli_bar){
        .start_s = adli_monotonic_s(), .start_done = done, .tenths = 10 * done / examples};
}

void adli_bar_batch(adl_runner *runner)
{
    FILE *to = runner->options.progress ? console(runner) : NULL;
    if (!to)
        return;
    if (!runner->terminal) {
        write_tenth(runner, to);
        return;
    }
    double now_s = adli_monotonic_s();
    if (now_s - runner->bar.drawn_s >= redraw_s)
        draw(runner, to, now_s);
}

void adli_bar_end(adl_runner *runner)
{
    FILE *to = console(runner);
    if (to && runner->bar.shown) {
        fprintf(to, "\r\033[K");
        fflush(to);
    }
    runner->bar.shown = false;
}
