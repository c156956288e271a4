#include "plot/chart.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TICKS = 24, MARGIN_LEFT = 64, MARGIN_RIGHT = 16, MARGIN_TOP = 34, MARGIN_BOTTOM = 46 };

/* Where data go: the axes' ranges, resolved, and the rectangle in pixels. */
typedef struct frame {
    adli_axis x_axis, y_axis;
    double left, right, top, bottom;
} frame;

/* ---- numbers and ticks ---- */

void adli_chart_number(double value, char *out, size_t size)
{
    static const struct {
        double unit;
        const char *suffix;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, NULL}};
    double magnitude = fabs(value);
    for (int i = 0; magnitude < 1e15 && units[i].suffix; i++) {
        if (magnitude >= units[i].unit) {
            snprintf(out, size, "%.4g%s", value / units[i].unit, units[i].suffix);
            return;
        }
    }
    snprintf(out, size, magnitude >= 1e4 && magnitude < 1e6 ? "%.0f" : "%.4g", value);
}

/* The smallest of 1, 2, 5 times a power of ten that is not below value. */
static double round_step(double value)
{
    double power = pow(10, floor(log10(value))), lead = value / power;
    const double leads[] = {1, 2, 5, 10};
    for (size_t i = 0; i < ADLI_COUNT(leads); i++)
        if (lead <= leads[i] * (1 + 1e-9))
            return leads[i] * power;
    return 10 * power;
}

static size_t linear_ticks(double low, double high, double *ticks, size_t most)
{
    double step = round_step((high - low) / (double)most);
    size_t count = 0;
    for (double i = ceil(low / step - 1e-9); i <= high / step + 1e-9 && count < most; i++)
        ticks[count++] = i == 0 ? 0 : i * step;
    return count;
}

static size_t log_ticks(double low, double high, double *ticks, size_t most)
{
    int first = (int)floor(log10(low)), last = (int)ceil(log10(high));
    int decades = last - first, stride = 1 + decades / (int)most;
    bool fine = decades * 3 <= (int)most;
    size_t count = 0;
    for (int power = first; power <= last; power += stride) {
        const double leads[] = {1, 2, 5};
        for (size_t i = 0; i < (fine ? ADLI_COUNT(leads) : 1); i++) {
            double tick = leads[i] * pow(10, power);
            if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9) && count < most)
                ticks[count++] = tick;
        }
    }
    return count;
}

size_t adli_chart_ticks(double low, double high, bool logarithmic, double *ticks, size_t most)
{
    if (!(high > low) || !isfinite(low) || !isfinite(high) || most == 0)
        return 0;
    if (logarithmic && low > 0)
        return log_ticks(low, high, ticks, most);
    return linear_ticks(low, high, ticks, most);
}

/* ---- ranges ---- */

static bool drawable(const adli_axis *axis, double value)
{
    return isfinite(value) && (!axis->logarithmic || value > 0);
}

static void widen(adli_axis *axis, double value)
{
    if (!drawable(axis, value))
        return;
    axis->low = fmin(axis->low, value);
    axis->high = fmax(axis->high, value);
}

/* Data that are one value, or none, still need a range around them. */
static void settle(adli_axis *axis)
{
    if (!(axis->low <= axis->high))
        axis->low = axis->high = 1;
    if (axis->low == axis->high) {
        double by = axis->low == 0 ? 1 : fabs(axis->low) / 2;
        axis->low -= by;
        axis->high += by;
    }
}

static void resolve(const adli_chart *chart, frame *to)
{
    bool open_x = !(chart->x_axis.low < chart->x_axis.high);
    bool open_y = !(chart->y_axis.low < chart->y_axis.high);
    to->x_axis = chart->x_axis;
    to->y_axis = chart->y_axis;
    if (open_x)
        to->x_axis.low = INFINITY, to->x_axis.high = -INFINITY;
    if (open_y)
        to->y_axis.low = INFINITY, to->y_axis.high = -INFINITY;
    for (size_t i = 0; i < chart->series_count; i++) {
        const adli_series *series = &chart->series[i];
        for (size_t j = 0; j < series->count; j++) {
            if (open_x)
                widen(&to->x_axis, series->x[j]);
            if (open_y)
                widen(&to->y_axis, series->y[j]);
        }
    }
    for (size_t i = 0; i < chart->bar_count; i++) {
        const adli_bar *bar = &chart->bars[i];
        if (open_x)
            widen(&to->x_axis, bar->x0), widen(&to->x_axis, bar->x1);
        if (open_y)
            widen(&to->y_axis, bar->y0), widen(&to->y_axis, bar->y1);
    }
    /* lengths are compared from 0, and a little air keeps the highest line off the frame */
    if (open_y && !to->y_axis.logarithmic && chart->bar_count == 0) {
        widen(&to->y_axis, 0);
        if (to->y_axis.high > 0)
            to->y_axis.high *= 1.05;
    }
    settle(&to->x_axis);
    settle(&to->y_axis);
}

static double place(const adli_axis *axis, double value, double from, double to)
{
    double low = axis->low, high = axis->high;
    if (axis->logarithmic)
        low = log(low), high = log(high), value = log(value);
    return from + (to - from) * (value - low) / (high - low);
}

static double place_x(const frame *at, double value)
{
    return place(&at->x_axis, value, at->left, at->right);
}

static double place_y(const frame *at, double value)
{
    return place(&at->y_axis, value, at->bottom, at->top);
}

/* ---- drawing ---- */

static void draw_axes(adli_buf *out, const frame *at)
{
    double ticks[MAX_TICKS];
    char text[32];
    size_t most = (size_t)fmin(fmax((at->right - at->left) / 56, 2), MAX_TICKS);
    size_t count = adli_chart_ticks(at->x_axis.low, at->x_axis.high, at->x_axis.logarithmic, ticks,
                                    at->x_axis.hide_ticks ? 0 : most);
    for (size_t i = 0; i < count; i++) {
        double x = place_x(at, ticks[i]);
        adli_svg_line(out, x, at->top, x, at->bottom, "grid");
        adli_chart_number(ticks[i], text, sizeof text);
        adli_svg_text(out, x, at->bottom + 16, ADLI_SVG_MIDDLE, ADLI_SVG_TICK, text);
    }
    most = (size_t)fmin(fmax((at->bottom - at->top) / 36, 2), MAX_TICKS);
    count = adli_chart_ticks(at->y_axis.low, at->y_axis.high, at->y_axis.logarithmic, ticks,
                             at->y_axis.hide_ticks ? 0 : most);
    for (size_t i = 0; i < count; i++) {
        double y = place_y(at, ticks[i]);
        adli_svg_line(out, at->left, y, at->right, y, "grid");
        adli_chart_number(ticks[i], text, sizeof text);
        adli_svg_text(out, at->left - 7, y + 4, ADLI_SVG_END, ADLI_SVG_TICK, text);
    }
    adli_svg_line(out, at->left, at->bottom, at->right, at->bottom, "axis");
    adli_svg_line(out, at->left, at->top, at->left, at->bottom, "axis");
}

static void draw_labels(adli_buf *out, const adli_chart *chart, const frame *at)
{
    if (chart->title)
        adli_svg_text(out, at->left, chart->y + 18, ADLI_SVG_START, ADLI_SVG_TITLE, chart->title);
    if (chart->x_axis.label)
        adli_svg_text(out, (at->left + at->right) / 2, at->bottom + 36, ADLI_SVG_MIDDLE,
                      ADLI_SVG_LABEL, chart->x_axis.label);
    if (chart->y_axis.label)
        adli_svg_text_upwards(out, chart->x + 14, (at->top + at->bottom) / 2, ADLI_SVG_LABEL,
                              chart->y_axis.label);
}

/* One stretch of points without a gap. Long series are drawn in pieces that join. */
static void draw_series(adli_buf *out, const adli_series *series, const frame *at)
{
    double xy[256][2];
    size_t held = 0;
    for (size_t i = 0; i <= series->count; i++) {
        bool ends = i == series->count || !drawable(&at->x_axis, series->x[i]) ||
                    !drawable(&at->y_axis, series->y[i]);
        if (ends || held + 2 > ADLI_COUNT(xy)) {
            if (held > 1)
                adli_svg_polyline(out, (const double(*)[2])xy, held, series->colour,
                                  series->dashed);
            if (held > 0 && !ends) {
                xy[0][0] = xy[held - 1][0];
                xy[0][1] = xy[held - 1][1];
            }
            held = held > 0 && !ends ? 1 : 0;
        }
        if (ends)
            continue;
        double x = place_x(at, series->x[i]), y = place_y(at, series->y[i]);
        if (series->steps && held > 0) {
            xy[held][0] = x;
            xy[held][1] = xy[held - 1][1];
            held++;
        }
        xy[held][0] = x;
        xy[held++][1] = y;
    }
}

static void draw_dots(adli_buf *out, const adli_series *series, const frame *at)
{
    for (size_t i = 0; series->dots && i < series->count; i++)
        if (drawable(&at->x_axis, series->x[i]) && drawable(&at->y_axis, series->y[i]))
            adli_svg_dot(out, place_x(at, series->x[i]), place_y(at, series->y[i]), 3,
                         series->colour);
    if (series->mark && drawable(&at->x_axis, series->mark[0]) &&
        drawable(&at->y_axis, series->mark[1]))
        adli_svg_dot(out, place_x(at, series->mark[0]), place_y(at, series->mark[1]), 5,
                     series->colour);
}

static void draw_bar(adli_buf *out, const adli_bar *bar, const frame *at)
{
    if (!drawable(&at->x_axis, bar->x0) || !drawable(&at->x_axis, bar->x1) ||
        !drawable(&at->y_axis, bar->y0) || !drawable(&at->y_axis, bar->y1))
        return;
    double x0 = place_x(at, bar->x0), x1 = place_x(at, bar->x1);
    double y0 = place_y(at, bar->y0), y1 = place_y(at, bar->y1);
    adli_svg_rect(out, fmin(x0, x1), fmin(y0, y1), fmax(fabs(x1 - x0), 0.5),
                  fmax(fabs(y1 - y0), 0.5), bar->colour, bar->hint);
}

/* To the right of the frame, in the order of the series. */
static void draw_legend(adli_buf *out, const adli_chart *chart, const frame *at)
{
    double x = at->right + 14, y = at->top + 10;
    for (size_t i = 0; i < chart->series_count; i++) {
        const adli_series *series = &chart->series[i];
        if (!series->name)
            continue;
        double sample[2][2] = {{x, y}, {x + 20, y}};
        adli_svg_polyline(out, (const double(*)[2])sample, 2, series->colour, series->dashed);
        if (series->mark || series->dots)
            adli_svg_dot(out, x + 10, y, series->mark ? 5 : 3, series->colour);
        adli_svg_text(out, x + 27, y + 4, ADLI_SVG_START, ADLI_SVG_LABEL, series->name);
        y += 19;
    }
}

/* Characters of the longest name: the legend's room, at about 6.5 pixels each. */
static double legend_width(const adli_chart *chart)
{
    size_t longest = 0;
    for (size_t i = 0; i < chart->series_count; i++) {
        size_t length = 0;
        for (const char *at = chart->series[i].name; at && *at; at++)
            length += (*at & 0xc0) != 0x80; /* UTF-8: not the continuation bytes */
        longest = length > longest ? length : longest;
    }
    return longest > 0 ? 41 + 6.5 * (double)longest : 0;
}

void adli_chart_draw(adli_buf *out, const adli_chart *chart, int id)
{
    frame at;
    resolve(chart, &at);
    at.left = chart->x + MARGIN_LEFT;
    at.right = chart->x + chart->width - MARGIN_RIGHT - legend_width(chart);
    at.top = chart->y + MARGIN_TOP;
    at.bottom = chart->y + chart->height - MARGIN_BOTTOM;
    draw_axes(out, &at);
    draw_labels(out, chart, &at);
    /* dots may reach over the frame by their radius */
    adli_svg_clip(out, id, at.left - 6, at.top - 6, at.right - at.left + 12,
                  at.bottom - at.top + 12);
    for (size_t i = 0; i < chart->bar_count; i++)
        draw_bar(out, &chart->bars[i], &at);
    for (size_t i = 0; i < chart->series_count; i++)
        draw_series(out, &chart->series[i], &at);
    for (size_t i = 0; i < chart->series_count; i++)
        draw_dots(out, &chart->series[i], &at);
    adli_svg_unclip(out);
    draw_legend(out, chart, &at);
}
