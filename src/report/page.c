/* Pages of any content (mhla/page.h): pieces are appended to the file in the making; a chart is drawn when its last line is known. */
#include <math.h>
#include <mhla/page.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "report/attention.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { MOST_LINES = 16, SMALL = 400, LARGE = 4096 }; /* pixels: images below SMALL are enlarged, above LARGE refused */

/* What closes a row of charts and a row of maps: told apart by their addresses. */
static const char end_charts[] = "</div>\n", end_maps[] = "</div>\n";

struct mhla_page {
    mhla_writer writer;
    mhla_status status; /* the first failure; its message is kept here */
    char message[512];
    const char *open; /* what closes the row of charts or maps that is open, or NULL */
    /* the chart that waits for its lines; title NULL: none */
    char *title, *x_name, *names[MOST_LINES];
    mhla_series series[MOST_LINES];
    int colours[MOST_LINES];
    int lines, flags;
};

/* Keeps the first failure, with its message. */
static void note(mhla_page *p, mhla_status status) {
    if (status == MHLA_OK || p->status != MHLA_OK) return;
    p->status = status;
    snprintf(p->message, sizeof p->message, "%s", mhla_message());
}

static char *copy(mhla_page *p, const char *text) {
    char *own = strdup(text);
    if (own == NULL) note(p, mhla_fail(MHLA_ENOMEM, "no memory for a page"));
    return own;
}

static void forget_chart(mhla_page *p) {
    free(p->title);
    free(p->x_name);
    for (int i = 0; i < p->lines; i++) {
        free(p->names[i]);
        mhla_series_free(&p->series[i]);
    }
    p->title = p->x_name = NULL;
    p->lines = 0;
}

static void draw_chart(mhla_page *p) {
    if (p->title == NULL) return;
    mhla_line lines[MOST_LINES];
    for (int i = 0; i < p->lines; i++)
        lines[i] = (mhla_line){.name = p->names[i], .data = &p->series[i], .colour = p->colours[i]};
    const mhla_chart chart = {.title = p->title,
                              .x_name = p->x_name,
                              .lines = lines,
                              .count = p->lines,
                              .percent = p->flags & MHLA_PAGE_PERCENT ? 1 : 0,
                              .log_x = p->flags & MHLA_PAGE_LOG_X ? 1 : 0,
                              .log_y = p->flags & MHLA_PAGE_LOG_Y ? 1 : 0,
                              .smooth = p->flags & MHLA_PAGE_SMOOTH ? 1 : 0};
    if (p->status == MHLA_OK) note(p, mhla_chart_write(p->writer.stream, &chart));
    forget_chart(p);
}

/* Before each piece: the chart before it is drawn, and a row of others is closed. Returns the stream, NULL after a failure. */
static FILE *begin(mhla_page *p, const char *row, const char *close) {
    if (p == NULL) return NULL;
    draw_chart(p);
    if (p->status != MHLA_OK) return NULL;
    FILE *out = p->writer.stream;
    if (p->open && p->open != close) fputs(p->open, out);
    if (close && p->open != close) fputs(row, out);
    p->open = close;
    return out;
}

static void put(FILE *out, const char *before, const char *text, const char *after) {
    fputs(before, out);
    mhla_html_text(out, text);
    fputs(after, out);
}

mhla_status mhla_page_open(mhla_page **page, const char *path, const char *title) {
    if (page == NULL || path == NULL || title == NULL) return mhla_fail(MHLA_EINVAL, "page, path or title is NULL");
    *page = calloc(1, sizeof **page);
    if (*page == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a page");
    const mhla_status status = mhla_writer_open(&(*page)->writer, path);
    if (status != MHLA_OK) {
        free(*page);
        *page = NULL;
        return status;
    }
    FILE *out = (*page)->writer.stream;
    mhla_report_begin(out);
    mhla_html_text(out, title);
    mhla_report_body(out);
    put(out, "", title, "</h1></header>\n<main>\n");
    return MHLA_OK;
}

void mhla_page_discard(mhla_page *page) {
    if (page == NULL) return;
    forget_chart(page);
    mhla_writer_discard(&page->writer);
    free(page);
}

mhla_status mhla_page_close(mhla_page *page) {
    if (page == NULL) return mhla_fail(MHLA_EINVAL, "page is NULL");
    FILE *out = begin(page, NULL, NULL);
    mhla_status status = page->status;
    if (out) {
        mhla_report_end(out);
        status = mhla_writer_commit(&page->writer);
    } else {
        status = mhla_fail(status, "%s", page->message);
    }
    mhla_page_discard(page);
    return status;
}

void mhla_page_section(mhla_page *page, const char *heading) {
    FILE *out = begin(page, NULL, NULL);
    if (out) put(out, "<h2>", heading, "</h2>\n");
}

void mhla_page_text(mhla_page *page, const char *text) {
    FILE *out = begin(page, NULL, NULL);
    if (out) put(out, "<p>", text, "</p>\n");
}

void mhla_page_verbatim(mhla_page *page, const char *text) {
    FILE *out = begin(page, NULL, NULL);
    if (out) put(out, "<pre tabindex=\"0\">", text, "</pre>\n");
}

void mhla_page_table(mhla_page *page, const char *const *cells, int rows, int columns) {
    FILE *out = begin(page, NULL, NULL);
    if (out == NULL) return;
    fputs("<div class=\"wide\" tabindex=\"0\"><table class=\"summary plain\">\n", out);
    for (int i = 0; i < rows; i++) {
        fputs(i == 0 ? "<thead><tr>" : "<tr>", out);
        for (int j = 0; j < columns; j++) {
            const char *text = cells[i * columns + j] ? cells[i * columns + j] : "";
            if (i == 0)
                put(out, "<th scope=\"col\">", text, "</th>");
            else
                put(out, j == 0 ? "<th scope=\"row\">" : "<td>", text, j == 0 ? "</th>" : "</td>");
        }
        fputs(i == 0 ? "</tr></thead>\n<tbody>\n" : "</tr>\n", out);
    }
    fputs(rows > 0 ? "</tbody></table></div>\n" : "</table></div>\n", out);
}

void mhla_page_chart(mhla_page *page, const char *title, const char *x_name, int flags) {
    if (begin(page, "<div class=\"charts\">\n", end_charts) == NULL) return;
    page->title = copy(page, title);
    page->x_name = copy(page, x_name);
    page->flags = flags;
    if (page->status != MHLA_OK) forget_chart(page);
}

void mhla_page_line(mhla_page *page, const char *name, int colour, const double *x, const double *y, int64_t count) {
    if (page == NULL || page->status != MHLA_OK) return;
    if (page->title == NULL || page->lines == MOST_LINES) {
        note(page,
             mhla_fail(MHLA_EINVAL, page->title ? "a chart has at most %d lines" : "a line needs a chart before it",
                       MOST_LINES));
        return;
    }
    const int i = page->lines;
    page->names[i] = copy(page, name);
    page->colours[i] = colour < 0 ? 0 : colour;
    page->lines++;
    for (int64_t k = 0; k < count && page->status == MHLA_OK; k++)
        note(page, mhla_series_add(&page->series[i], x[k], y[k]));
}

int mhla_page_colour(const char *attention) {
    const int colour = mhla_attention_colour(attention);
    return colour < 0 ? MHLA_CHART_COLOURS - 1 : colour;
}

void mhla_page_map(mhla_page *page, const char *title, const char *text, const float *values, int height, int width,
                   int mark) {
    FILE *out = begin(page, "<div class=\"maps\">\n", end_maps);
    if (out == NULL) return;
    if (height < 1 || width < 1 || height > LARGE || width > LARGE) {
        note(page, mhla_fail(MHLA_EINVAL, "a map of %d x %d cells: expected 1 to %d", height, width, LARGE));
        return;
    }
    mhla_image image = {0};
    double most = 0.0;
    const int64_t cells = (int64_t)height * width;
    for (int64_t i = 0; i < cells; i++)
        if (isfinite(values[i])) most = fmax(most, values[i]);
    mhla_status status = mhla_image_reserve(&image, width, height, 3);
    for (int64_t i = 0; i < cells && status == MHLA_OK; i++)
        mhla_report_shade(image.data + 3 * i, most > 0.0 ? values[i] / most : 0.0);
    if (status == MHLA_OK) {
        fputs("<figure class=\"map\"><div>", out);
        status = mhla_html_image(out, &image, 16 * width, 16 * height, title);
        if (mark >= 0 && mark < cells)
            fprintf(out, "<span class=\"cell\" style=\"left:%.3f%%;top:%.3f%%;width:%.3f%%;height:%.3f%%\"></span>",
                    100.0 * (mark % width) / width, 100.0 * (int)(mark / width) / height, 100.0 / width,
                    100.0 / height);
        put(out, "</div><figcaption>", title, "<br><span class=\"small\">");
        put(out, "", text, "</span></figcaption></figure>\n");
    }
    mhla_image_free(&image);
    note(page, status);
}

void mhla_page_image(mhla_page *page, const char *file, const char *alt) {
    FILE *out = begin(page, NULL, NULL);
    if (out == NULL) return;
    mhla_image image = {0};
    mhla_status status = mhla_image_read(&image, file, 0);
    if (status == MHLA_OK && (image.width > LARGE || image.height > LARGE))
        status = mhla_fail(MHLA_EINVAL, "%s: %d x %d pixels are too many for a page", file, image.width, image.height);
    if (status == MHLA_OK) {
        const int scale = image.width < SMALL && image.height < SMALL ? 2 : 1;
        fputs("<p class=\"shot\">", out);
        status = mhla_html_image(out, &image, scale * image.width, scale * image.height, alt);
        fputs("</p>\n", out);
    }
    mhla_image_free(&image);
    note(page, status);
}
