#include "report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "report/html.h"

/* In units of the SVG, which is scaled to its place: letters of 13 stay readable on a phone. */
enum { WIDE = 440, HIGH = 260, LEFT = 56, RIGHT = 14, TOP = 10, BOTTOM = 42 };
enum { BUCKETS = 400 };    /* more points than twice this are thinned out: a screen shows no more */
enum { SMOOTH_FROM = 24 }; /* fewer points are shown as they are */
enum { MARKS = 40 };       /* up to so many points have a mark each */

/* Beyond this a number counts as infinite: the arithmetic of axes stays finite. */
#define FAR 1e100

/* ---- Series ---- */

mhla_status mhla_series_add(mhla_series *s, double x, double y) {
    if (!(fabs(x) < FAR)) return MHLA_OK;
    while (s->count > 0 && s->x[s->count - 1] >= x) s->count--;
    if (!(fabs(y) < FAR)) return MHLA_OK;
    if (s->count == s->capacity) {
        const int64_t more = s->capacity ? 2 * s->capacity : 256;
        double *xs = realloc(s->x, (size_t)more * sizeof *xs);
        if (xs) s->x = xs;
        double *ys = realloc(s->y, (size_t)more * sizeof *ys);
        if (ys) s->y = ys;
        if (xs == NULL || ys == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld points", (long long)more);
        s->capacity = more;
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
    return MHLA_OK;
}

void mhla_series_free(mhla_series *s) {
    free(s->x);
    free(s->y);
    *s = (mhla_series){0};
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double mhla_series_median(const mhla_series *s) {
    if (s->count == 0) return NAN;
    double *sorted = malloc((size_t)s->count * sizeof *sorted);
    if (sorted == NULL) return NAN;
    memcpy(sorted, s->y, (size_t)s->count * sizeof *sorted);
    qsort(sorted, (size_t)s->count, sizeof *sorted, by_size);
    const double middle = sorted[s->count / 2];
    free(sorted);
    return middle;
}

/* ---- What is drawn of a line: measured points, thinned out, and the running mean at each ---- */

typedef struct drawn {
    double *x, *y, *mean; /* [count]; mean NULL: not smoothed */
    int64_t count, width; /* width: points that the mean goes over */
} drawn;

static void drawn_free(drawn *d) {
    free(d->x);
    free(d->y);
    free(d->mean);
}

/* Of the `width` points around each, as many as there are: a mean that looks back only would lag behind. */
static void running_mean(double *mean, const double *y, int64_t count, int64_t width) {
    const int64_t half = width / 2;
    int64_t from = 0, to = 0; /* summed up: from .. to-1 */
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        while (to < count && to <= i + half) sum += y[to++];
        while (from < i - half) sum -= y[from++];
        mean[i] = sum / (double)(to - from);
    }
}

static void keep_point(drawn *d, const mhla_series *s, const double *mean, int64_t i) {
    d->x[d->count] = s->x[i];
    d->y[d->count] = s->y[i];
    if (d->mean) d->mean[d->count] = mean[i];
    d->count++;
}

/* Of each bucket its lowest and its highest point, in their order: no spike is lost, every point was measured. The last
 * point always stays. */
static void thin(drawn *d, const mhla_series *s, const double *mean) {
    if (s->count <= 2 * BUCKETS) {
        for (int64_t i = 0; i < s->count; i++) keep_point(d, s, mean, i);
        return;
    }
    for (int64_t b = 0; b < BUCKETS; b++) {
        const int64_t from = b * (s->count - 1) / BUCKETS, to = (b + 1) * (s->count - 1) / BUCKETS;
        int64_t low = from, high = from;
        for (int64_t i = from; i < to; i++) {
            if (s->y[i] < s->y[low]) low = i;
            if (s->y[i] > s->y[high]) high = i;
        }
        keep_point(d, s, mean, low < high ? low : high);
        if (low != high) keep_point(d, s, mean, low < high ? high : low);
    }
    keep_point(d, s, mean, s->count - 1);
}

static mhla_status draw(drawn *d, const mhla_series *s, int smooth) {
    const size_t most = s->count <= 2 * BUCKETS ? (size_t)s->count : 2 * BUCKETS + 1;
    double *mean = NULL;
    *d = (drawn){0};
    if (s->count == 0) return MHLA_OK;
    d->x = malloc(most * sizeof *d->x);
    d->y = malloc(most * sizeof *d->y);
    smooth = smooth && s->count >= SMOOTH_FROM;
    if (smooth) {
        d->mean = malloc(most * sizeof *d->mean);
        mean = malloc((size_t)s->count * sizeof *mean);
    }
    if (d->x == NULL || d->y == NULL || (smooth && (d->mean == NULL || mean == NULL))) {
        free(mean);
        drawn_free(d);
        *d = (drawn){0};
        return mhla_fail(MHLA_ENOMEM, "no memory for a chart of %lld points", (long long)s->count);
    }
    if (smooth) {
        d->width = s->count / 100 * 2 + 5;
        running_mean(mean, s->y, s->count, d->width);
    }
    thin(d, s, mean);
    free(mean);
    return MHLA_OK;
}

/* ---- Axes ---- */

typedef struct axes {
    double x0, x1, y0, y1; /* after the logarithm, where the axis has one */
    int log_x, log_y;
    double only; /* the value of all points, to the digits that an axis shows; NaN: they differ */
} axes;

static double place_x(const axes *a, double x) {
    return LEFT + ((a->log_x ? log2(x) : x) - a->x0) / (a->x1 - a->x0) * (WIDE - LEFT - RIGHT);
}
static double place_y(const axes *a, double y) {
    return HIGH - BOTTOM - ((a->log_y ? log10(y) : y) - a->y0) / (a->y1 - a->y0) * (HIGH - TOP - BOTTOM);
}

static int shown(const axes *a, double y) { return !a->log_y || y > 0.0; }

static axes find_axes(const drawn *lines, const mhla_chart *c) {
    axes a = {.y0 = c->from_zero ? 0.0 : INFINITY, .y1 = -INFINITY, .log_x = c->log_x, .log_y = c->log_y, .only = NAN};
    if (a.log_x) a.x0 = INFINITY, a.x1 = -INFINITY;
    for (int k = 0; k < c->count; k++)
        for (int64_t i = 0; i < lines[k].count; i++) {
            const double x = a.log_x ? log2(lines[k].x[i]) : lines[k].x[i];
            a.x0 = fmin(a.x0, x);
            a.x1 = fmax(a.x1, x);
            if (!shown(&a, lines[k].y[i])) continue;
            const double y = a.log_y ? log10(lines[k].y[i]) : lines[k].y[i];
            a.y0 = fmin(a.y0, y);
            a.y1 = fmax(a.y1, y);
        }
    if (!(a.x1 > a.x0)) a.x1 = a.x0 + 1.0;
    if (!(a.y1 >= a.y0)) a.y0 = a.y1 = 0.0; /* nothing but zeros on a logarithmic axis */
    if (a.y1 - a.y0 <=
        (a.log_y ? 4e-5 : 1e-4 * fmax(fabs(a.y0), fabs(a.y1)))) /* five times the same number otherwise */
        a.only = a.log_y ? pow(10.0, a.y0) : a.y0;
    /* A line that never moves still needs a height; the second term keeps it more than rounding. */
    const double margin = fmax(0.06 * (a.y1 - a.y0), fmax(1e-12, 1e-6 * fmax(fabs(a.y0), fabs(a.y1))));
    const double low = a.y0, high = a.y1;
    a.y0 -= margin;
    a.y1 += margin;
    if (c->percent && low >= 0.0 && high <= 1.0) { /* no room for what cannot be */
        a.y0 = fmax(a.y0, 0.0);
        a.y1 = fmin(a.y1, 1.0);
    } else if (!a.log_y && low >= 0.0) {
        a.y0 = fmax(a.y0, 0.0);
    }
    if (!(a.y1 > a.y0)) a.y1 = a.y0 + 1e-12;
    return a;
}

/* 1, 2 or 5 times a power of ten: about `parts` of them between low and high. */
static double tick_step(double low, double high, double parts) {
    const double raw = (high - low) / parts, power = pow(10.0, floor(log10(raw))), part = raw / power;
    return power * (part < 1.5 ? 1.0 : part < 3.5 ? 2.0 : part < 7.5 ? 5.0 : 10.0);
}

static void tick_x(FILE *out, const axes *a, double x, double step) {
    const double at = place_x(a, x), value = fabs(x) < 1e-9 * step ? 0.0 : x;
    const int edge = at + 4.0 * snprintf(NULL, 0, "%.6g", value) > WIDE; /* its second half would be cut off */
    fprintf(out, "<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%.6g</text>\n", edge ? WIDE - 1.0 : at,
            HIGH - BOTTOM + 17, edge ? "end" : "middle", value);
}

/* With as many digits as there is room for on the left; step 0: a number that stands alone, or is round. */
static void tick_y(FILE *out, const axes *a, double y, double step, int percent) {
    const double at = place_y(a, y), value = fabs(y) < 1e-9 * step ? 0.0 : percent ? 100.0 * y : y;
    char text[32];
    for (int digits = step > 0.0 || fabs(value) >= 1e4 ? 6 : 4;
         snprintf(text, sizeof text, "%.*g%s", digits, value, percent ? "%" : "") > 7 && digits > 1;)
        digits--;
    fprintf(out,
            "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"t\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            LEFT, WIDE - RIGHT, at, at, LEFT - 6, at + 4.5, text);
}

/* Whole decades, or 1, 2 and 5 of each where there are few. */
static void ticks_log(FILE *out, const axes *a) {
    static const double parts[] = {1.0, 2.0, 5.0};
    const int few = a->y1 - a->y0 < 3.0;
    const int stride = few ? 1 : (int)ceil((a->y1 - a->y0) / 6.0);
    for (int decade = (int)floor(a->y0); decade <= a->y1; decade += stride)
        for (int i = 0; i < (few ? 3 : 1); i++) {
            const double y = parts[i] * pow(10.0, decade);
            if (log10(y) >= a->y0 && log10(y) <= a->y1) tick_y(out, a, y, 0.0, 0);
        }
}

static void write_axes(FILE *out, const axes *a, const mhla_chart *c) {
    /* a piece of a decade has round numbers like any other axis, only not at even distances */
    const double y0 = a->log_y ? pow(10.0, a->y0) : a->y0, y1 = a->log_y ? pow(10.0, a->y1) : a->y1;
    const double step = tick_step(a->x0, a->x1, 6.0), dx = c->whole_x ? fmax(step, 1.0) : step,
                 dy = tick_step(y0, y1, 5.0);
    /* Counted, not added up: with a step too small to move a double the loop would not end. */
    const double first_x = ceil(a->x0 / dx - 1e-9), first_y = ceil(y0 / dy - 1e-9);
    if (c->log_x)
        for (int power = 2 * (int)ceil(a->x0 / 2.0); power <= a->x1; power += 2) tick_x(out, a, exp2(power), 0.0);
    else
        for (int i = 0; i < 20 && (first_x + i) * dx <= a->x1 + 1e-9 * dx; i++) tick_x(out, a, (first_x + i) * dx, dx);
    if (!isnan(a->only))
        tick_y(out, a, a->only, 0.0, c->percent);
    else if (a->log_y && a->y1 - a->y0 > 0.5)
        ticks_log(out, a);
    else
        for (int i = 0; i < 20 && (first_y + i) * dy <= y1 + 1e-9 * dy; i++)
            tick_y(out, a, (first_y + i) * dy, dy, c->percent);
    fprintf(out, "<line class=\"a\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT, WIDE - RIGHT, HIGH - BOTTOM,
            HIGH - BOTTOM);
    fprintf(out, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (WIDE + LEFT - RIGHT) / 2, HIGH - 6);
    mhla_html_text(out, c->x_name);
    fputs("</text>\n", out);
}

/* ---- Lines ---- */

const char *mhla_chart_class(char text[MHLA_CHART_CLASS], int colour) {
    const int round = colour / MHLA_CHART_COLOURS;
    if (round == 0)
        snprintf(text, MHLA_CHART_CLASS, "c%d", colour % MHLA_CHART_COLOURS);
    else
        snprintf(text, MHLA_CHART_CLASS, "c%d d%d", colour % MHLA_CHART_COLOURS, 1 + (round - 1) % 3);
    return text;
}

static void write_points(FILE *out, const axes *a, const drawn *d, const double *y, const char *classes) {
    fprintf(out, "<polyline class=\"%s\" points=\"", classes);
    for (int64_t i = 0; i < d->count; i++)
        if (shown(a, y[i])) fprintf(out, "%s%.1f,%.1f", i ? " " : "", place_x(a, d->x[i]), place_y(a, y[i]));
    fputs("\"/>\n", out);
}

static void write_line(FILE *out, const axes *a, const drawn *d, const mhla_line *line) {
    char colour[MHLA_CHART_CLASS], classes[MHLA_CHART_CLASS + 16];
    mhla_chart_class(colour, line->colour);
    if (d->mean) {
        snprintf(classes, sizeof classes, "raw %s", colour);
        write_points(out, a, d, d->y, classes);
    }
    snprintf(classes, sizeof classes, "line %s%s", colour, line->dashed ? " d1" : "");
    write_points(out, a, d, d->mean ? d->mean : d->y, classes);
    if (d->mean == NULL && d->count <= MARKS)
        for (int64_t i = 0; i < d->count; i++)
            if (shown(a, d->y[i]))
                fprintf(out, "<circle class=\"mark %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>\n", colour,
                        place_x(a, d->x[i]), place_y(a, d->y[i]), d->count > 1 ? "2.6" : "4");
}

/* Four digits, and "22710" rather than "2.271e+04": as report.js writes them. */
static void write_value(FILE *out, double y, int percent) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", y);
    if (percent)
        fprintf(out, "%.2f %%", 100.0 * y);
    else
        fprintf(out, "%.15g", strtod(text, NULL));
}

/* The legend tells the last values until the script puts those under the pointer there. */
static void write_legend(FILE *out, const drawn *lines, const mhla_chart *c) {
    fputs("<p class=\"legend\" aria-live=\"polite\">", out);
    fputs("<span class=\"at\" data-name=\"", out);
    mhla_html_text(out, c->x_name);
    fputs("\">at the end</span>", out);
    for (int k = 0; k < c->count; k++) {
        const drawn *d = &lines[k];
        char colour[MHLA_CHART_CLASS];
        if (d->count == 0) continue;
        fprintf(out, " <span class=\"entry\"><span class=\"key %s%s\"></span><span>",
                mhla_chart_class(colour, c->lines[k].colour), c->lines[k].dashed ? " d1" : "");
        mhla_html_text(out, c->lines[k].name);
        if (c->lines[k].note) {
            fputs(" (", out);
            mhla_html_text(out, c->lines[k].note);
            fputc(')', out);
        }
        fputs("</span> <b>", out);
        write_value(out, d->y[d->count - 1], c->percent);
        if (d->mean) {
            fputs("</b> <span class=\"small\">mean</span> <b>", out);
            write_value(out, d->mean[d->count - 1], c->percent);
        }
        fputs("</b></span>", out);
    }
    fputs("</p>\n", out);
}

static void write_numbers(FILE *out, const char *key, const double *values, int64_t count) {
    fprintf(out, "\"%s\":[", key);
    for (int64_t i = 0; i < count; i++) fprintf(out, "%s%.7g", i ? "," : "", values[i]);
    fputc(']', out);
}

/* What the script needs to find values and places again; numbers only, so that nothing in it can be a tag. */
static void write_data(FILE *out, const axes *a, const drawn *lines, const mhla_chart *c) {
    fprintf(out,
            "<script type=\"application/json\">{\"box\":[%d,%d,%d,%d],\"x\":[%.9g,%.9g],\"y\":[%.9g,%.9g],\"logx\":%d,"
            "\"log\":%d,\"percent\":%d,\"lines\":[",
            LEFT, WIDE - RIGHT, TOP, HIGH - BOTTOM, a->x0, a->x1, a->y0, a->y1, a->log_x, a->log_y, c->percent);
    int written = 0;
    for (int k = 0; k < c->count; k++) {
        if (lines[k].count == 0) continue;
        fputs(written++ ? ",{" : "{", out);
        write_numbers(out, "x", lines[k].x, lines[k].count);
        fputc(',', out);
        write_numbers(out, "y", lines[k].y, lines[k].count);
        if (lines[k].mean) {
            fputc(',', out);
            write_numbers(out, "m", lines[k].mean, lines[k].count);
        }
        fputc('}', out);
    }
    fputs("]}</script>\n", out);
}

/* What was done to the points, said below them. */
static void write_remark(FILE *out, const drawn *lines, const mhla_chart *c) {
    int64_t least = INT64_MAX, most = 0, all = 0, left = 0;
    for (int k = 0; k < c->count; k++) {
        if (lines[k].mean && lines[k].width > most) most = lines[k].width;
        if (lines[k].mean && lines[k].width < least) least = lines[k].width;
        all += c->lines[k].data->count;
        left += lines[k].count;
    }
    if (most == 0 && all == left) return;
    fputs("<p class=\"small\">", out);
    if (most && least < most)
        fprintf(out, "Faint: measured. Bold: mean of %lld to %lld neighbours.", (long long)least, (long long)most);
    else if (most)
        fprintf(out, "Faint: measured. Bold: mean of %lld neighbours.", (long long)most);
    if (all != left)
        fprintf(out, " %lld of %lld points are drawn, all peaks among them.", (long long)left, (long long)all);
    fputs("</p>\n", out);
}

static void write_figure(FILE *out, const drawn *lines, const mhla_chart *c) {
    const axes a = find_axes(lines, c);
    char colour[MHLA_CHART_CLASS];
    fputs("<figure class=\"chart\"><figcaption>", out);
    mhla_html_text(out, c->title);
    fprintf(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" tabindex=\"0\" aria-label=\"", WIDE, HIGH);
    mhla_html_text(out, c->title);
    fputs(" by ", out);
    mhla_html_text(out, c->x_name);
    fputs("; the arrow keys walk along the lines\">\n", out);
    write_axes(out, &a, c);
    for (int k = 0; k < c->count; k++)
        if (lines[k].count) write_line(out, &a, &lines[k], &c->lines[k]);
    fprintf(out, "<g class=\"cursor\"><line x1=\"0\" x2=\"0\" y1=\"%d\" y2=\"%d\"/>", TOP, HIGH - BOTTOM);
    for (int k = 0; k < c->count; k++)
        if (lines[k].count)
            fprintf(out, "<circle class=\"%s\" r=\"4\"/>", mhla_chart_class(colour, c->lines[k].colour));
    fputs("</g>\n</svg>\n", out);
    write_legend(out, lines, c);
    write_remark(out, lines, c);
    write_data(out, &a, lines, c);
    fputs("</figure>\n", out);
}

mhla_status mhla_chart_write(FILE *out, const mhla_chart *c) {
    int64_t points = 0;
    for (int k = 0; k < c->count; k++) points += c->lines[k].data->count;
    if (points == 0) return MHLA_OK;
    drawn *lines = calloc((size_t)c->count, sizeof *lines);
    mhla_status status = lines ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a chart of %d lines", c->count);
    for (int k = 0; k < c->count && status == MHLA_OK; k++) status = draw(&lines[k], c->lines[k].data, c->smooth);
    if (status == MHLA_OK) write_figure(out, lines, c);
    for (int k = 0; lines && k < c->count; k++) drawn_free(&lines[k]);
    free(lines);
    return status;
}
