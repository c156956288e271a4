/* A chart: axes with readable ticks, lines, bars and a legend, drawn at a place of an SVG document.
 * Data are borrowed for the call. Points that cannot be drawn (not finite, not positive on a
 * logarithmic axis) leave a gap. */
#ifndef ADLI_CHART_H
#define ADLI_CHART_H

#include "plot/svg.h"

typedef struct adli_axis {
    const char *label;
    double low, high; /* low >= high: from the data */
    bool logarithmic;
    bool hide_ticks;
} adli_axis;

typedef struct adli_series {
    const char *name; /* NULL: not in the legend */
    const double *x, *y;
    size_t count;
    int colour;
    bool dashed;
    bool steps;         /* a value holds until the next x */
    bool dots;          /* a dot on every point */
    const double *mark; /* [2]: one point to make stand out, or NULL */
} adli_series;

/* A rectangle in data coordinates: a job's time on a row of a timeline. */
typedef struct adli_bar {
    double x0, x1, y0, y1;
    int colour;
    const char *hint; /* or NULL */
} adli_bar;

typedef struct adli_chart {
    const char *title;
    double x, y, width, height; /* of the whole, labels included */
    adli_axis x_axis, y_axis;
    const adli_series *series;
    size_t series_count;
    const adli_bar *bars;
    size_t bar_count;
} adli_chart;

/* id: different for each chart of a document. */
void adli_chart_draw(adli_buf *out, const adli_chart *chart, int id);

/* At most `most` round numbers that divide low .. high well, ascending, into ticks. Linear: steps
 * of 1, 2 or 5 times a power of ten. Logarithmic: 1, 2, 5 within each decade, or decades when there
 * are many. Returns how many. */
size_t adli_chart_ticks(double low, double high, bool logarithmic, double *ticks, size_t most);

/* "0.25", "2000", "1.5M", "2e-07": short, and exact for ticks. */
void adli_chart_number(double value, char *out, size_t size);

#endif
