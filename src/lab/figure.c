/* Figures of the results as SVG documents that stand alone: every seed a dot, with mean and deviation; lines over a size. */
#include <math.h>
#include <string.h>

#include "lab/lab.h"
#include "report/html.h"

static const char *const colours[] = {"#0b6e99", "#c4492a", "#2e7d32", "#7b4aa8",
                                      "#b8860b", "#d0408f", "#4a5568", "#00897b"};
enum { COLOURS = sizeof colours / sizeof *colours, WIDTH = 720, LEFT = 190, RIGHT = 24 };

static const char *colour_of(int arm) { return colours[arm % COLOURS]; }

static void begin(FILE *out, int width, int height, const char *title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n<title>",
            width, height, width, height);
    mhla_html_text(out, title);
    fprintf(out,
            "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"12\" y=\"22\" font-size=\"15\">",
            width, height);
    mhla_html_text(out, title);
    fputs("</text>\n", out);
}

static void put_text(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    mhla_html_text(out, text);
    fputs("</text>\n", out);
}

static void rule(FILE *out, double x1, double y1, double x2, double y2, const char *colour, double width) {
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\"/>\n", x1, y1,
            x2, y2, colour, width);
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
             lab->seeds > 1 ? "deviation between seeds" : "error of the test");
}

void mhla_figure_dots(FILE *out, const mhla_lab *lab, const mhla_lab_column *column) {
    const mhla_experiment *e = lab->experiment;
    const double k = column->scale == 0.0 ? 1.0 : column->scale;
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
    begin(out, WIDTH, height, title);
    for (int i = 0, n = ticks(&x, marks); i < n; i++) {
        rule(out, place(&x, marks[i]), 36, place(&x, marks[i]), height - 32, "#ddd", 1);
        put_text(out, place(&x, marks[i]), height - 14, "middle", short_number(text, marks[i]));
    }
    for (int arm = 0, row = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const int n = mhla_results_take(lab, arm, column->measure, values, errors);
        if (n == 0) continue;
        const double y = 54 + 30.0 * row++;
        const mhla_seeds s = mhla_seeds_of(values, errors, n);
        const double bar = bar_of(&s);
        put_text(out, LEFT - 12, y + 4, "end", e->arms[arm].title);
        rule(out, place(&x, k * (s.mean - bar)), y, place(&x, k * (s.mean + bar)), y, colour_of(arm), 2);
        rule(out, place(&x, k * s.mean), y - 9, place(&x, k * s.mean), y + 9, colour_of(arm), 2.5);
        for (int i = 0; i < n; i++)
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" fill-opacity=\"0.6\"/>\n",
                    place(&x, k * values[i]), y, colour_of(arm));
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
    for (int i = 0, n = ticks(y, marks); i < n; i++) {
        rule(out, x->start, place(y, marks[i]), x->end, place(y, marks[i]), "#ddd", 1);
        put_text(out, x->start - 8, place(y, marks[i]) + 4, "end", short_number(text, marks[i]));
    }
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
        rule(out, place(x, places[i]), y->end, place(x, places[i]), y->start, "#eee", 1);
        put_text(out, place(x, places[i]), y->start + 18, "middle", short_number(text, places[i]));
    }
    put_text(out, 0.5 * (x->start + x->end), y->start + 40, "middle", l->x_name);
    put_text(out, 12, 44, "start", l->y_name);
}

int mhla_figure_lines(FILE *out, const mhla_lab *lab, const mhla_lab_lines *l) {
    const mhla_experiment *e = lab->experiment;
    const double *places = lab->quick && l->x_quick[0] > 0.0 ? l->x_quick : l->x;
    enum { HEIGHT = 440, LEGEND = 170 };
    axis x = {.from = INFINITY, .to = -INFINITY, .start = 70, .end = WIDTH - LEGEND, .log = l->log_x};
    axis y = {.from = INFINITY, .to = -INFINITY, .start = HEIGHT - 56, .end = 60, .log = l->log_y};
    char title[200];
    point p;
    int drawn = 0, row = 0;
    for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++)
        for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
            if (!point_at(&p, lab, l, arm, places[i])) continue;
            widen(&x, places[i]);
            widen(&y, p.low);
            widen(&y, p.high);
            drawn++;
        }
    if (drawn == 0) return 0;
    settle(&x);
    settle(&y);
    put_title(title, sizeof title, lab, l->title);
    begin(out, WIDTH, HEIGHT, title);
    draw_axes(out, &x, &y, l, places);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        int points = 0;
        for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
            if (!point_at(&p, lab, l, arm, places[i])) continue;
            fprintf(out, points ? " %.1f,%.1f" : "<polyline points=\"%.1f,%.1f", place(&x, places[i]),
                    place(&y, p.mean));
            points++;
        }
        if (points == 0) continue;
        fprintf(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", colour_of(arm));
        for (int i = 0; i < MHLA_LAB_LINES && places[i] > 0.0; i++) {
            if (!point_at(&p, lab, l, arm, places[i])) continue;
            rule(out, place(&x, places[i]), place(&y, p.low), place(&x, places[i]), place(&y, p.high), colour_of(arm),
                 1.5);
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", place(&x, places[i]),
                    place(&y, p.mean), colour_of(arm));
        }
        const double at = 70 + 22.0 * row++;
        rule(out, WIDTH - LEGEND + 14, at, WIDTH - LEGEND + 34, at, colour_of(arm), 3);
        put_text(out, WIDTH - LEGEND + 42, at + 4, "start", e->arms[arm].title);
    }
    fputs("</svg>\n", out);
    return 1;
}
