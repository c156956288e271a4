#include "plot/svg.h"

#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* Chosen for equal lightness, so that each reads on white and on near-black alike. */
static const char *const colours[ADLI_SVG_COLOURS] = {
    "#3b7dd8", "#e0672b", "#2f9e60", "#c2417f", "#8a63d2", "#a8820a", "#1c9aa8", "#8b8f98",
};

static const char style[] =
    "<style>\n"
    "text { font-family: system-ui, 'Helvetica Neue', Arial, sans-serif; fill: #24292f; }\n"
    ".title { font-size: 15px; font-weight: 600; }\n"
    ".label { font-size: 12px; }\n"
    ".tick { font-size: 11px; fill: #57606a; }\n"
    ".page { fill: #ffffff; }\n"
    ".axis { stroke: #8c959f; stroke-width: 1; }\n"
    ".grid { stroke: #d8dee4; stroke-width: 1; }\n"
    ".data { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".dash { stroke-dasharray: 5 5; stroke-width: 1.5; }\n"
    ".dot { stroke: #ffffff; stroke-width: 1.5; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6edf3; } .tick { fill: #9ba5b0; } .page { fill: #0d1117; }\n"
    ".axis { stroke: #6e7681; } .grid { stroke: #272e37; } .dot { stroke: #0d1117; }\n"
    "}\n"
    "</style>\n";

static const char *colour_of(int colour)
{
    return colours[(unsigned)colour % ADLI_SVG_COLOURS];
}

/* A coordinate: two decimals are finer than any screen, and keep files small and byte-identical. */
static void put(adli_buf *out, const char *name, double value)
{
    if (!isfinite(value))
        value = 0;
    value = fmin(fmax(value, -1e6), 1e6);
    double rounded = round(value * 100) / 100;
    adli_buf_printf(out, " %s=\"%.7g\"", name, rounded == 0 ? 0.0 : rounded); /* never "-0" */
}

void adli_svg_open(adli_buf *out, double width, double height, const char *title)
{
    adli_buf_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
                    "height=\"%g\" role=\"img\">\n<title>",
                    width, height, width, height);
    adli_svg_escape(out, title);
    adli_buf_puts(out, "</title>\n");
    adli_buf_puts(out, style);
    adli_buf_printf(out, "<rect class=\"page\" width=\"%g\" height=\"%g\"/>\n", width, height);
}

void adli_svg_close(adli_buf *out)
{
    adli_buf_puts(out, "</svg>\n");
}

/* ---- text ---- */

/* Length of the UTF-8 character at `at`, 0 when it is broken or not allowed in XML. */
static size_t character(const char *at)
{
    uint32_t code = 0;
    size_t length = adli_utf8_decode(at, 4, &code);
    bool allowed = code >= 0x20 || code == '\t' || code == '\n';
    return length > 0 && allowed && code != 0xfffe && code != 0xffff ? length : 0;
}

void adli_svg_escape(adli_buf *out, const char *text)
{
    const char *at = text;
    while (*at) {
        size_t length = character(at);
        if (length == 0)
            adli_buf_puts(out, "?");
        else if (*at == '&')
            adli_buf_puts(out, "&amp;");
        else if (*at == '<')
            adli_buf_puts(out, "&lt;");
        else if (*at == '>')
            adli_buf_puts(out, "&gt;");
        else if (*at == '"')
            adli_buf_puts(out, "&quot;");
        else
            adli_buf_append(out, at, length);
        at += length ? length : 1;
    }
}

static const char *const text_classes[] = {
    [ADLI_SVG_TITLE] = "title", [ADLI_SVG_LABEL] = "label", [ADLI_SVG_TICK] = "tick"};

void adli_svg_text(adli_buf *out, double x, double y, adli_svg_anchor anchor,
                   adli_svg_text_kind kind, const char *text)
{
    static const char *const anchors[] = {
        [ADLI_SVG_START] = "start", [ADLI_SVG_MIDDLE] = "middle", [ADLI_SVG_END] = "end"};
    adli_buf_printf(out, "<text class=\"%s\" text-anchor=\"%s\"", text_classes[kind],
                    anchors[anchor]);
    put(out, "x", x);
    put(out, "y", y);
    adli_buf_puts(out, ">");
    adli_svg_escape(out, text);
    adli_buf_puts(out, "</text>\n");
}

void adli_svg_text_upwards(adli_buf *out, double x, double y, adli_svg_text_kind kind,
                           const char *text)
{
    adli_buf_printf(out,
                    "<text class=\"%s\" text-anchor=\"middle\" transform=\"translate(%.6g %.6g) "
                    "rotate(-90)\">",
                    text_classes[kind], x, y);
    adli_svg_escape(out, text);
    adli_buf_puts(out, "</text>\n");
}

/* ---- shapes ---- */

void adli_svg_line(adli_buf *out, double x1, double y1, double x2, double y2, const char *klass)
{
    adli_buf_printf(out, "<line class=\"%s\"", klass);
    put(out, "x1", x1);
    put(out, "y1", y1);
    put(out, "x2", x2);
    put(out, "y2", y2);
    adli_buf_puts(out, "/>\n");
}

void adli_svg_polyline(adli_buf *out, const double (*xy)[2], size_t count, int colour, bool dashed)
{
    adli_buf_printf(out, "<polyline class=\"data%s\" stroke=\"%s\" points=\"",
                    dashed ? " dash" : "", colour_of(colour));
    for (size_t i = 0; i < count; i++)
        adli_buf_printf(out, "%s%.2f,%.2f", i ? " " : "", xy[i][0], xy[i][1]);
    adli_buf_puts(out, "\"/>\n");
}

void adli_svg_dot(adli_buf *out, double x, double y, double radius, int colour)
{
    adli_buf_printf(out, "<circle class=\"dot\" fill=\"%s\"", colour_of(colour));
    put(out, "cx", x);
    put(out, "cy", y);
    put(out, "r", radius);
    adli_buf_puts(out, "/>\n");
}

void adli_svg_rect(adli_buf *out, double x, double y, double width, double height, int colour,
                   const char *hint)
{
    adli_buf_printf(out, "<rect fill=\"%s\"", colour_of(colour));
    put(out, "x", x);
    put(out, "y", y);
    put(out, "width", fmax(width, 0));
    put(out, "height", fmax(height, 0));
    if (!hint) {
        adli_buf_puts(out, "/>\n");
        return;
    }
    adli_buf_puts(out, "><title>");
    adli_svg_escape(out, hint);
    adli_buf_puts(out, "</title></rect>\n");
}

void adli_svg_clip(adli_buf *out, int id, double x, double y, double width, double height)
{
    adli_buf_printf(out, "<clipPath id=\"clip%d\"><rect", id);
    put(out, "x", x);
    put(out, "y", y);
    put(out, "width", width);
    put(out, "height", height);
    adli_buf_printf(out, "/></clipPath>\n<g clip-path=\"url(#clip%d)\">\n", id);
}

void adli_svg_unclip(adli_buf *out)
{
    adli_buf_puts(out, "</g>\n");
}
