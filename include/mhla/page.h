/* page.h - a self-contained HTML page: text, tables, line charts, maps and images, on top of mhla.h.
 *
 * Any browser shows the page offline, in light and dark mode, on wide and narrow screens. Charts are inline SVG. A small script
 * in the page shows the values under the pointer and follows the arrow keys.
 *
 *   mhla_page_open(&page, "report.html", "Time by length");
 *   mhla_page_section(page, "Cost");
 *   mhla_page_chart(page, "time, seconds", "tokens", MHLA_PAGE_LOG_X | MHLA_PAGE_LOG_Y);
 *   mhla_page_line(page, "MHLA", mhla_page_colour("mhla"), tokens, seconds, 5);
 *   status = mhla_page_close(page);
 *
 * The calls between open and close return nothing: mhla_page_close returns the first failure of all of them. All text is plain
 * UTF-8, and the page escapes it. You may free strings and arrays after the call. */
#ifndef MHLA_PAGE_H
#define MHLA_PAGE_H

#include <mhla/mhla.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mhla_page mhla_page;

/* Begins a page for the file `path`. The file keeps its old contents until mhla_page_close. */
MHLA_API mhla_status mhla_page_open(mhla_page **page, const char *path, const char *title);
/* Writes the file, whole or not at all, and frees the page in either case. */
MHLA_API mhla_status mhla_page_close(mhla_page *page);
/* Frees the page and writes nothing. NULL is legal. */
MHLA_API void mhla_page_discard(mhla_page *page);

MHLA_API void mhla_page_section(mhla_page *page, const char *heading);
MHLA_API void mhla_page_text(mhla_page *page, const char *text);     /* a paragraph */
MHLA_API void mhla_page_verbatim(mhla_page *page, const char *text); /* line breaks and spaces stay */

/* cells [rows, columns], row by row; the first row has the headings. NULL is an empty cell. */
MHLA_API void mhla_page_table(mhla_page *page, const char *const *cells, int rows, int columns);

enum { MHLA_PAGE_LOG_X = 1, MHLA_PAGE_LOG_Y = 2, MHLA_PAGE_PERCENT = 4, MHLA_PAGE_SMOOTH = 8 };

/* A chart; its lines follow. Consecutive charts are placed side by side if there is room. MHLA_PAGE_PERCENT: y is 0..1.
 * MHLA_PAGE_SMOOTH draws a running mean over noisy points. */
MHLA_API void mhla_page_chart(mhla_page *page, const char *title, const char *x_name, int flags);
/* x, y [count], x in ascending order; points that are not finite are left out. */
MHLA_API void mhla_page_line(mhla_page *page, const char *name, int colour, const double *x, const double *y,
                             int64_t count);
/* The colour of an attention ("mhla", "linear", "softmax", ...), the same on every page; any other name is grey. */
MHLA_API int mhla_page_colour(const char *attention);

/* values [height, width] as a heat map, from 0 (dark) to the largest (bright). The cell `mark` gets a frame, -1: none.
 * Consecutive maps are placed side by side. */
MHLA_API void mhla_page_map(mhla_page *page, const char *title, const char *note, const float *values, int height,
                            int width, int mark);

/* A PNG or JPEG file, embedded; alt describes it. */
MHLA_API void mhla_page_image(mhla_page *page, const char *file, const char *alt);

#ifdef __cplusplus
}
#endif
#endif
