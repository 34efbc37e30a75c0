/* Line charts for a page: inline SVG that shows without scripts, with the numbers beside it for the page's script, which
 * tells the values under the pointer or the arrow keys. */
#ifndef MHLA_REPORT_CHART_H
#define MHLA_REPORT_CHART_H

#include <mhla/mhla.h>
#include <stdint.h>
#include <stdio.h>

/* Points in order of time. Start from (mhla_series){0}. */
typedef struct mhla_series {
    double *x, *y; /* [count], finite */
    int64_t count, capacity;
} mhla_series;

/* Appends; a point that is not finite is left out. One that goes back in x takes back what it goes over: a run that went
 * on from an earlier step. */
mhla_status mhla_series_add(mhla_series *s, double x, double y);
void mhla_series_free(mhla_series *s);           /* harmless when repeated */
double mhla_series_median(const mhla_series *s); /* of y; NaN if it is empty or there is no memory */

typedef struct mhla_line {
    const char *name, *note; /* of the legend; foreign text. note follows in brackets, or is NULL */
    const mhla_series *data;
    int colour; /* 0, 1, ..: of the page's palette, see mhla_chart_class */
    int dashed;
} mhla_line;

typedef struct mhla_chart {
    const char *title, *x_name;
    const mhla_line *lines;
    int count;
    int percent;   /* y is 0..1, shown as percent */
    int log_x;     /* x is above 0; ticks at powers of four: for numbers of tokens */
    int log_y;     /* points of 0 and less are left out */
    int smooth;    /* noisy: a running mean is drawn over the measured points */
    int whole_x;   /* x counts: no ticks between whole numbers */
    int from_zero; /* y begins at 0 */
} mhla_chart;

/* The last colour is grey: of what is no attention. */
enum { MHLA_CHART_COLOURS = 13, MHLA_CHART_CLASS = 16 };

/* "c3", or "c3 d1" where colours come round again: the classes of line i. */
const char *mhla_chart_class(char text[MHLA_CHART_CLASS], int colour);

/* A <figure>; nothing at all where there is no point. */
mhla_status mhla_chart_write(FILE *out, const mhla_chart *chart);

#endif
