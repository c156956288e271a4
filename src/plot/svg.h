/* Writes SVG into a buffer: the few shapes that charts need, with text escaped and a style sheet
 * that follows the viewer's light or dark scheme. Failures (a full buffer) are remembered by the
 * buffer. */
#ifndef ADLI_SVG_H
#define ADLI_SVG_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Data colours repeat after this many; they are told apart on white and on near-black. */
enum { ADLI_SVG_COLOURS = 8 };

typedef enum adli_svg_anchor {
    ADLI_SVG_START,
    ADLI_SVG_MIDDLE,
    ADLI_SVG_END,
} adli_svg_anchor;

/* Kinds of text, each with its size and weight. */
typedef enum adli_svg_text_kind {
    ADLI_SVG_TITLE,
    ADLI_SVG_LABEL, /* axes, legends */
    ADLI_SVG_TICK,  /* numbers along an axis */
} adli_svg_text_kind;

/* The document of this size in pixels; title is what a screen reader says. Ends with
 * adli_svg_close. */
void adli_svg_open(adli_buf *out, double width, double height, const char *title);
void adli_svg_close(adli_buf *out);

/* text as XML character data: markup escaped, control characters and broken UTF-8 replaced. */
void adli_svg_escape(adli_buf *out, const char *text);

/* A class of the style sheet: "axis", "grid". */
void adli_svg_line(adli_buf *out, double x1, double y1, double x2, double y2, const char *klass);
void adli_svg_text(adli_buf *out, double x, double y, adli_svg_anchor anchor,
                   adli_svg_text_kind kind, const char *text);
/* Reads from bottom to top around (x, y). */
void adli_svg_text_upwards(adli_buf *out, double x, double y, adli_svg_text_kind kind,
                           const char *text);
/* xy: [count][2]. dashed lines are for references and estimates. */
void adli_svg_polyline(adli_buf *out, const double (*xy)[2], size_t count, int colour, bool dashed);
void adli_svg_dot(adli_buf *out, double x, double y, double radius, int colour);
/* A filled rectangle; hint (may be NULL) is shown when the pointer rests on it. */
void adli_svg_rect(adli_buf *out, double x, double y, double width, double height, int colour,
                   const char *hint);
/* Everything until adli_svg_unclip is cut off outside this rectangle. id must be unique in the
 * document. */
void adli_svg_clip(adli_buf *out, int id, double x, double y, double width, double height);
void adli_svg_unclip(adli_buf *out);

#endif
