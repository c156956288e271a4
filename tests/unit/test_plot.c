/* The SVG writer and the chart: text is escaped, ticks are round, odd data leave gaps. */
#include "harness.h"

#include "base/mem.h"
#include "plot/chart.h"

static const char *escaped(const char *text)
{
    static char copy[256];
    adli_buf buf;
    adli_buf_init(&buf, sizeof copy - 1);
    adli_svg_escape(&buf, text);
    snprintf(copy, sizeof copy, "%s", buf.data ? buf.data : "");
    adli_buf_fini(&buf);
    return copy;
}

TEST(text_cannot_break_the_document)
{
    CHECK_STR(escaped("a < b > c & \"d\""), "a &lt; b &gt; c &amp; &quot;d&quot;");
    CHECK_STR(escaped("\x01\x1f\x7f ok"), "??\x7f ok");
    CHECK_STR(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"),
              "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    CHECK_STR(escaped("\xff\xc3 x\xe2\x82"), "?? x??");  /* broken and cut off */
    CHECK_STR(escaped("\xc0\x80\xed\xa0\x80"), "?????"); /* overlong, surrogate */
    CHECK_STR(escaped("\xef\xbf\xbf\xf4\x90\x80\x80"), "???????");
}

static void check_ticks(double low, double high, bool logarithmic, size_t most,
                        const double *wanted, size_t count)
{
    double ticks[32];
    size_t got = adli_chart_ticks(low, high, logarithmic, ticks, most);
    CHECK_INT(got, count);
    for (size_t i = 0; i < got && i < count; i++)
        CHECK(fabs(ticks[i] - wanted[i]) <= 1e-9 * fabs(wanted[i]));
}

TEST(ticks_are_round)
{
    check_ticks(0, 10, false, 6, (double[]){0, 2, 4, 6, 8, 10}, 6);
    check_ticks(0, 1050, false, 8, (double[]){0, 200, 400, 600, 800, 1000}, 6);
    check_ticks(-0.35, 0.35, false, 4, (double[]){-0.2, 0, 0.2}, 3);
    check_ticks(100, 4096, true, 8, (double[]){100, 200, 500, 1000, 2000}, 5);
    check_ticks(1e-3, 1e6, true, 6, (double[]){1e-3, 1e-1, 1e1, 1e3, 1e5}, 5);
    check_ticks(1, 1, false, 6, NULL, 0);
    check_ticks(NAN, 1, false, 6, NULL, 0);
    check_ticks(0, INFINITY, false, 6, NULL, 0);
}

TEST(ticks_never_overflow_their_array)
{
    double ticks[32];
    for (double low = 1e-300; low < 1e290; low *= 1e7)
        for (double span = 1e-12; span < 1e12; span *= 31)
            for (size_t most = 1; most <= ADLI_COUNT(ticks); most++)
                for (int logarithmic = 0; logarithmic < 2; logarithmic++) {
                    size_t got = adli_chart_ticks(low, low * (1 + span), logarithmic, ticks, most);
                    CHECK(got <= most);
                    for (size_t i = 1; i < got; i++)
                        CHECK(ticks[i] > ticks[i - 1]);
                }
}

TEST(numbers_are_short)
{
    const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},           {0.25, "0.25"},  {200, "200"},     {20000, "20000"},
                 {500000, "500000"}, {1.5e6, "1.5M"}, {2e9, "2G"},      {-3e12, "-3T"},
                 {1e15, "1e+15"},    {2e-7, "2e-07"}, {0.1 * 3, "0.3"}, {123456, "123456"}};
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        char text[32];
        adli_chart_number(cases[i].value, text, sizeof text);
        CHECK_STR(text, cases[i].text);
    }
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        count++;
    return count;
}

TEST(a_chart_draws_lines_bars_marks_and_a_legend)
{
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1, 4, NAN, 2, 3}, mark[] = {2, 4};
    const adli_series series[] = {
        {.name = "one & two", .x = x, .y = y, .count = 5, .mark = mark},
        {.x = x, .y = x, .count = 5, .dashed = true, .colour = 9, .steps = true}};
    const adli_bar bars[] = {{1, 2, 0, 1, 3, "job <7>"}, {2, 5, 1, 2, 4, NULL}};
    const adli_chart chart = {.title = "t",
                              .width = 400,
                              .height = 300,
                              .x_axis = {.label = "time, s"},
                              .y_axis = {.label = "value"},
                              .series = series,
                              .series_count = 2,
                              .bars = bars,
                              .bar_count = 2};
    adli_buf out;
    adli_buf_init(&out, 1 << 20);
    adli_svg_open(&out, 400, 300, "document");
    adli_chart_draw(&out, &chart, 1);
    adli_svg_close(&out);
    REQUIRE_OK(adli_buf_check(&out));
    CHECK_INT(count_of(out.data, "<polyline"),
              2 + 1 + 1);                        /* the gap makes two; one is the legend's */
    CHECK_INT(count_of(out.data, "<circle"), 2); /* the mark, and in the legend */
    CHECK_INT(count_of(out.data, "job &lt;7&gt;"), 1);
    CHECK_INT(count_of(out.data, "one &amp; two"), 1);
    CHECK_INT(count_of(out.data, "nan"), 0);
    CHECK_INT(count_of(out.data, "<g "), count_of(out.data, "</g>"));
    adli_buf_fini(&out);
}

TEST(odd_data_are_drawn_without_nonsense)
{
    const double zero[] = {0, 0, 0}, odd[] = {NAN, INFINITY, -1}, huge[] = {1e300, 2e300, 3e300};
    const double *const sets[] = {zero, odd, huge};
    for (size_t i = 0; i < ADLI_COUNT(sets); i++) {
        for (size_t j = 0; j < ADLI_COUNT(sets); j++) {
            for (int logarithmic = 0; logarithmic < 4; logarithmic++) {
                const adli_series series = {
                    .name = "s", .x = sets[i], .y = sets[j], .count = 3, .dots = true};
                const adli_chart chart = {.width = 300,
                                          .height = 200,
                                          .x_axis = {.logarithmic = logarithmic & 1},
                                          .y_axis = {.logarithmic = logarithmic & 2},
                                          .series = &series,
                                          .series_count = 1};
                adli_buf out;
                adli_buf_init(&out, 1 << 20);
                adli_chart_draw(&out, &chart, 1);
                CHECK_OK(adli_buf_check(&out));
                CHECK_INT(count_of(out.data, "nan"), 0);
                CHECK_INT(count_of(out.data, "inf"), 0);
                adli_buf_fini(&out);
            }
        }
    }
}

TEST(long_series_are_drawn_whole)
{
    enum { COUNT = 1000 };
    static double x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = i;
    const adli_series series = {.x = x, .y = x, .count = COUNT, .steps = true};
    const adli_chart chart = {.width = 300, .height = 200, .series = &series, .series_count = 1};
    adli_buf out;
    adli_buf_init(&out, 1 << 20);
    adli_chart_draw(&out, &chart, 1);
    CHECK_OK(adli_buf_check(&out));
    size_t points = 0;
    for (const char *at = out.data; (at = strstr(at, "points=\"")); at++)
        for (const char *c = at + 8; *c != '"'; c++)
            points += *c == ',';
    CHECK(points >= 2 * COUNT - 1); /* a step is two points */
    adli_buf_fini(&out);
}
