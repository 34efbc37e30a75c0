/* Figures of the results as SVG documents that stand alone: every seed a dot, with mean and deviation; lines over a size. Colours are
 * those of the pages (palette.css), for light and dark screens; a description tells the numbers to who cannot see the picture. */
#include <math.h>
#include <string.h>

#include "lab/lab.h"
#include "report/attention.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { WIDTH = 720, LEFT = 235, RIGHT = 24 };

/* Classes of each arm: those of its attention where its name begins with one. */
typedef struct looks {
    char classes[MHLA_LAB_ARMS][MHLA_CHART_CLASS];
} looks;

static looks looks_of(const mhla_experiment *e) {
    const char *names[MHLA_LAB_ARMS] = {0};
    int colours[MHLA_LAB_ARMS] = {0}, n = 0;
    looks l = {0};
    int attentions = 0;
    for (; n < MHLA_LAB_ARMS && e->arms[n].name; n++) {
        names[n] = e->arms[n].name;
        attentions += mhla_attention_colour(names[n]) >= 0;
    }
    if (attentions) mhla_attention_colours(colours, names, n); /* without: all arms are MHLA, in its colour */
    for (int i = 0; i < n; i++) mhla_chart_class(l.classes[i], colours[i]);
    return l;
}

static const char style[] =
    "svg{background:var(--bg)}text{fill:var(--fg)}line,polyline{fill:none;stroke:var(--c)}circle{fill:var(--c)}\n"
    "line.g{stroke:var(--line)}\n"
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}\n"
    ".c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}\n"
    ".c8{--c:var(--c8)}.c9{--c:var(--c9)}.c10{--c:var(--c10)}.c11{--c:var(--c11)}.c12{--c:var(--dim)}\n"
    ".line.d1{stroke-dasharray:6 4}.line.d2{stroke-dasharray:2 4}.line.d3{stroke-dasharray:9 3 2 3}\n";

/* The description comes from `tell`, which writes the numbers as a sentence for each arm. */
static void begin(FILE *out, int height, const char *title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "aria-labelledby=\"title description\" font-family=\"sans-serif\" font-size=\"13\">\n<title id=\"title\">",
            WIDTH, height, WIDTH, height);
    mhla_html_text(out, title);
    fputs("</title>\n<desc id=\"description\">", out);
}

static void begin_drawing(FILE *out, int height, const char *title) {
    fprintf(out,
            "</desc>\n<style>%s%s</style>\n<rect width=\"%d\" height=\"%d\" style=\"fill:var(--bg)\"/>\n"
            "<text x=\"12\" y=\"22\" font-size=\"15\">",
            mhla_palette_css, style, WIDTH, height);
    mhla_html_text(out, title);
    fputs("</text>\n", out);
}

static void put_text(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    mhla_html_text(out, text);
    fputs("</text>\n", out);
}

static void rule(FILE *out, double x1, double y1, double x2, double y2, const char *classes, double width) {
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke-width=\"%g\"/>\n", classes,
            x1, y1, x2, y2, width);
}

/* A number as short as it can be told: 0.05, 12, 1e-05. */
static const char *short_number(char text[32], double x) {
    snprintf(text, 32, "%.6g", x);
    return text;
}

/* ---- An axis ---- */

typedef struct axis {
    double from, to;   /* of values, or of their logarithms */
    double start, end; /* in the picture */
    int log;
} axis;

static double place(const axis *a, double value) {
    const double v = a->log ? log10(value) : value;
    return a->start + (v - a->from) / (a->to - a->from) * (a->end - a->start);
}

static void widen(axis *a, double value) {
    const double v = a->log ? log10(value) : value;
    if (!isfinite(v)) return;
    if (v < a->from) a->from = v;
    if (v > a->to) a->to = v;
}

static void settle(axis *a) {
    if (!(a->from <= a->to)) a->from = 0.0, a->to = 1.0;
    const double margin = a->to > a->from ? 0.06 * (a->to - a->from) : a->log ? 0.5 : fabs(a->to) * 0.05 + 1e-3;
    a->from -= margin;
    a->to += margin;
}

/* Steps of 1, 2 or 5 times a power of ten; decades of a logarithmic axis, or 1, 2, 5 in them where there are few. */
static int ticks(const axis *a, double values[24]) {
    int n = 0;
    if (a->log) {
        static const double marks[] = {1.0, 2.0, 5.0};
        const int all = a->to - a->from < 2.5;
        for (int decade = (int)floor(a->from); decade <= a->to; decade++)
            for (int i = 0; i < (all ? 3 : 1); i++) {
                const double v = decade + log10(marks[i]);
                if (v >= a->from && v <= a->to && n < 24) values[n++] = pow(10.0, v);
            }
        return n;
    }
    const double rough = (a->to - a->from) / 5.0, power = pow(10.0, floor(log10(rough))), unit = rough / power;
    const double step = power * (unit < 1.5 ? 1.0 : unit < 3.5 ? 2.0 : unit < 7.5 ? 5.0 : 10.0);
    const double first = ceil(a->from / step);
    for (; (first + n) * step <= a->to && n < 24; n++) values[n] = (first + n) * step;
    return n;
}

/* ---- Dots ---- */

/* Half the length of the bar around the mean: between seeds, or of a single one the error of the test. */
static double bar_of(const mhla_seeds *s) {
    if (s->count > 1) return s->deviation;
    return isnan(s->error) ? 0.0 : s->error;
}

static void put_title(char *text, size_t size, const mhla_lab *lab, const char *what) {
    snprintf(text, size, "%s: %s (bars: %s)", lab->name, what,
             lab->seeds > 1 ? "deviation between seeds" : "error of the test set");
}

void mhla_figure_dots(FILE *out, const mhla_lab *lab, const mhla_lab_column *column) {
    const mhla_experiment *e = lab->experiment;
    const double k = column->scale == 0.0 ? 1.0 : column->scale;
    const looks look = looks_of(e);
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS], marks[24];
    int rows = 0;
    char title[200], text[32];
    axis x = {.from = INFINITY, .to = -INFINITY, .start = LEFT, .end = WIDTH - RIGHT};
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const int n = mhla_results_take(lab, arm, column->measure, values, errors);
        if (n == 0) continue;
        const mhla_seeds s = mhla_seeds_of(values, errors, n);
        rows++;
        for (int i = 0; i < n; i++) widen(&x, k * values[i]);
        widen(&x, k * (s.mean - bar_of(&s)));
        widen(&x, k * (s.mean + bar_of(&s)));
    }
    settle(&x);
    const int height = 76 + 30 * rows;
    put_title(title, sizeof title, lab, column->title);
    begin(out, height, title);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const mhla_seeds s =
            mhla_seeds_of(values, errors, mhla_results_take(lab, arm, column->measure, values, errors));
        if (s.count == 0) continue;
        mhla_html_text(out, e->arms[arm].title);
        fprintf(out, ": %.*f. ", column->digits, k * s.mean);
    }
    begin_drawing(out, height, title);
    for (int i = 0, n = ticks(&x, marks); i < n; i++) {
        rule(out, place(&x, marks[i]), 36, place(&x, marks[i]), height - 32, "g", 1);
        put_text(out, place(&x, marks[i]), height - 14, "middle", short_number(text, marks[i]));
    }
    for (int arm = 0, row = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const int n = mhla_results_take(lab, arm, column->measure, values, errors);
        if (n == 0) continue;
        const double y = 54 + 30.0 * row++;
        const mhla_seeds s = mhla_seeds_of(values, errors, n);
        const double bar = bar_of(&s);
        put_text(out, LEFT - 12, y + 4, "end", e->arms[arm].title);
        rule(out, place(&x, k * (s.mean - bar)), y, place(&x, k * (s.mean + bar)), y, look.classes[arm], 2);
        rule(out, place(&x, k * s.mean), y - 9, place(&x, k * s.mean), y + 9, look.classes[arm], 2.5);
        for (int i = 0; i < n; i++)
            fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill-opacity=\"0.6\"/>\n",
                    look.classes[arm], place(&x, k * values[i]), y);
    }
    fputs("</svg>\n", out);
}

/* ---- Lines ---- */

typedef struct point {
    double mean, low, high; /* the ends of its bar */
} point;

/* An arm's measure PREFIX<at>; 0 if there is none that the axis can show. */
static int point_at(point *p, const mhla_lab *lab, const mhla_lab_lines *l, int arm, double at) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    char measure[64];
    snprintf(measure, sizeof measure, "%.40s%.0f", l->prefix, at);
    const int n = mhla_results_take(lab, arm, measure, values, errors);
    if (n == 0) return 0;
    const mhla_seeds s = mhla_seeds_of(values, errors, n);
    const double k = l->scale == 0.0 ? 1.0 : l->scale;
    *p = (point){k * s.mean, k * (s.mean - bar_of(&s)), k * (s.mean + bar_of(&s))};
    if (l->log_y && p->low <= 0.0) p->low = p->mean;
    return !l->log_y || p->mean > 0.0;
}

static void draw_axes(FILE *out, const axis *x, const axis *y, const mhla_lab_lines *l, const double *places) {
    double marks[24];
    char text[32];
    double last = -INFINITY; /* label */
    for (int i = 0, n = ticks(y, marks); i < n; i++) {
        rule(out, x->start, place(y, marks[i]), x->end, place(y, marks[i]), "g", 1);
        put_text(out, x->start - 8, place(y, marks[i]) + 4, "end", short_number(text, marks[i]));
    }
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
        rule(out, place(x, places[i]), y->end, place(x, places[i]), y->start, "g", 1);
        if (place(x, places[i]) - last < 28.0) continue; /* too close to be read */
        last = place(x, places[i]);
        put_text(out, last, y->start + 18, "middle", short_number(text, places[i]));
    }
    put_text(out, 0.5 * (x->start + x->end), y->start + 40, "middle", l->x_name);
    put_text(out, 12, 44, "start", l->y_name);
}

/* Widens the axes by all points; how many there are. */
static int measure_lines(const mhla_lab *lab, const mhla_lab_lines *l, const double *places, axis *x, axis *y) {
    const mhla_experiment *e = lab->experiment;
    point p;
    int drawn = 0;
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++)
        for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
            if (!point_at(&p, lab, l, arm, places[i])) continue;
            widen(x, places[i]);
            widen(y, p.low);
            widen(y, p.high);
            drawn++;
        }
    settle(x);
    settle(y);
    return drawn;
}

/* "MHLA: 60.3 at 64, 58.1 at 256. " */
static void tell_line(FILE *out, const mhla_lab *lab, const mhla_lab_lines *l, const double *places, int arm) {
    point p;
    int n = 0;
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
        if (!point_at(&p, lab, l, arm, places[i])) continue;
        if (n == 0) mhla_html_text(out, lab->experiment->arms[arm].title);
        fprintf(out, "%s %.4g at %.6g", n++ ? "," : ":", p.mean, places[i]);
    }
    if (n) fputs(". ", out);
}

/* An arm's line, bars and marks; 0: it has none. */
static int draw_line(FILE *out, const mhla_lab *lab, const mhla_lab_lines *l, const double *places, int arm,
                     const axis *x, const axis *y, const char *classes) {
    point p;
    int points = 0;
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
        if (!point_at(&p, lab, l, arm, places[i])) continue;
        if (points++ == 0) fprintf(out, "<polyline class=\"line %s\" stroke-width=\"2\" points=\"", classes);
        fprintf(out, "%s%.1f,%.1f", points > 1 ? " " : "", place(x, places[i]), place(y, p.mean));
    }
    if (points == 0) return 0;
    fputs("\"/>\n", out);
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
        if (!point_at(&p, lab, l, arm, places[i])) continue;
        rule(out, place(x, places[i]), place(y, p.low), place(x, places[i]), place(y, p.high), classes, 1.5);
        fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", classes, place(x, places[i]),
                place(y, p.mean));
    }
    return 1;
}

int mhla_figure_lines(FILE *out, const mhla_lab *lab, const mhla_lab_lines *l) {
    const mhla_experiment *e = lab->experiment;
    const double *places = lab->quick && l->x_quick[0] > 0.0 ? l->x_quick : l->x;
    enum { HEIGHT = 440, LEGEND = 210 };
    axis x = {.from = INFINITY, .to = -INFINITY, .start = 70, .end = WIDTH - LEGEND, .log = l->log_x};
    axis y = {.from = INFINITY, .to = -INFINITY, .start = HEIGHT - 56, .end = 60, .log = l->log_y};
    const looks look = looks_of(e);
    char title[200], classes[MHLA_CHART_CLASS + 8];
    int row = 0;
    if (measure_lines(lab, l, places, &x, &y) == 0) return 0;
    put_title(title, sizeof title, lab, l->title);
    begin(out, HEIGHT, title);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) tell_line(out, lab, l, places, arm);
    begin_drawing(out, HEIGHT, title);
    draw_axes(out, &x, &y, l, places);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        if (!draw_line(out, lab, l, places, arm, &x, &y, look.classes[arm])) continue;
        const double at = 70 + 22.0 * row++;
        snprintf(classes, sizeof classes, "line %s", look.classes[arm]);
        rule(out, WIDTH - LEGEND + 8, at, WIDTH - LEGEND + 34, at, classes, 3);
        put_text(out, WIDTH - LEGEND + 42, at + 4, "start", e->arms[arm].title);
    }
    fputs("</svg>\n", out);
    return 1;
}
