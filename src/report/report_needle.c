/* The page of a needle test: a heat map of the share that was found, by length and depth, and the numbers under it. */
#include <math.h>
#include <mhla/lm.h>

#include "core/status.h"
#include "file/file.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { CELL_W = 84, CELL_H = 40, LEFT = 96, TOP = 28, STEPS = 11 };

static double found(const mhla_needle_cell *c) { return (double)c->right / (double)c->asked; }

static const mhla_needle_cell *cell_of(const mhla_needle_result *r, int length, int depth) {
    return &r->cells[length * r->depth_count + depth];
}

/* From pale (nothing is found) to dark blue: one hue, so that it can be printed. */
static void put_colour(FILE *out, double share) {
    static const double pale[3] = {233, 240, 247}, dark[3] = {8, 61, 119};
    for (int i = 0; i < 3; i++) fprintf(out, "%s%.0f", i ? "," : "rgb(", pale[i] + share * (dark[i] - pale[i]));
    fputc(')', out);
}

static void write_map(FILE *out, const mhla_needle_result *r) {
    const int width = LEFT + CELL_W * r->length_count + 8, height = TOP + CELL_H * r->depth_count + 30;
    fprintf(out,
            "<figure class=\"chart\"><svg viewBox=\"0 0 %d %d\" style=\"max-width:%dpx;cursor:auto\" role=\"img\" "
            "aria-label=\"Share of needles found, by length and depth\">\n",
            width, height, width);
    fprintf(out, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"end\">depth</text>\n", LEFT - 10, TOP - 10);
    for (int d = 0; d < r->depth_count; d++) {
        fprintf(out, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%g %%</text>\n", LEFT - 10,
                TOP + CELL_H * d + CELL_H / 2 + 5, cell_of(r, 0, d)->depth);
        for (int l = 0; l < r->length_count; l++) {
            const mhla_needle_cell *c = cell_of(r, l, d);
            const int x = LEFT + CELL_W * l, y = TOP + CELL_H * d;
            fprintf(out, "<g><title>%lld tokens, depth %g %%: %lld of %lld found</title>", (long long)c->length,
                    c->depth, (long long)c->right, (long long)c->asked);
            fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=\"", x + 1, y + 1,
                    CELL_W - 2, CELL_H - 2);
            put_colour(out, found(c));
            fprintf(
                out,
                "\"/><text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"14\" fill=\"%s\">%.0f %%</text></g>\n",
                x + CELL_W / 2, y + CELL_H / 2 + 5, found(c) > 0.5 ? "#fff" : "#1c2126", 100.0 * found(c));
        }
    }
    for (int l = 0; l < r->length_count; l++)
        fprintf(out, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%lld</text>\n",
                LEFT + CELL_W * l + CELL_W / 2, TOP + CELL_H * r->depth_count + 20,
                (long long)cell_of(r, l, 0)->length);
    fprintf(out, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"end\">tokens</text>\n</svg>\n", LEFT - 10,
            TOP + CELL_H * r->depth_count + 20);
    fputs("<p class=\"scale\"><span>found: 0 %</span><i style=\"background:linear-gradient(90deg", out);
    for (int i = 0; i < STEPS; i++) {
        fputc(',', out);
        put_colour(out, (double)i / (STEPS - 1));
    }
    fputs(")\"></i><span>100 %; chance is 10 %</span></p></figure>\n", out);
}

static void write_table(FILE *out, const mhla_needle_result *r) {
    fputs(
        "<details><summary>All numbers</summary><div class=\"wide\"><table class=\"summary\">\n<thead><tr><th "
        "scope=\"col\">tokens</th><th scope=\"col\">depth</th><th scope=\"col\">asked</th><th scope=\"col\">found</th>"
        "<th scope=\"col\">share of the right number</th></tr></thead>\n<tbody>\n",
        out);
    for (int i = 0; i < r->length_count * r->depth_count; i++) {
        const mhla_needle_cell *c = &r->cells[i];
        fprintf(
            out,
            "<tr><th scope=\"row\">%lld</th><td>%g&nbsp;%%</td><td>%lld</td><td>%.1f&nbsp;%%</td><td>%.3f</td></tr>\n",
            (long long)c->length, c->depth, (long long)c->asked, 100.0 * found(c), c->probability);
    }
    fputs("</tbody></table></div></details>\n", out);
}

static void write_page(FILE *out, const mhla_needle_result *r, const char *title) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>mhla: needle in a haystack, ",
          out);
    mhla_html_text(out, title);
    fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>Needle in a haystack: ", mhla_report_css);
    mhla_html_text(out, title);
    fprintf(
        out,
        "</h1></header>\n<main>\n<p>%s at some depth of a long text, which ends with the beginning of this sentence. "
        "It is found if the right %s is the likeliest of ten. %lld texts for each length and depth.</p>\n",
        r->ids ? "Three token ids stand" : "There is a sentence with a number", r->ids ? "id" : "number",
        (long long)r->cells[0].asked);
    write_map(out, r);
    write_table(out, r);
    fprintf(out, "</main>\n<footer class=\"small\">mhla %s</footer>\n</body>\n</html>\n", mhla_version());
}

mhla_status mhla_needle_page(const char *path, const mhla_needle_result *result, const char *title) {
    mhla_needle_result r = {.size = sizeof r};
    mhla_writer w = {0};
    if (path == NULL || result == NULL || title == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", path == NULL ? "path" : result ? "title" : "result");
    MHLA_TRY(mhla_struct_in(&r, sizeof r, result, "mhla_needle_result"));
    if (r.cells == NULL || r.length_count < 1 || r.depth_count < 1)
        return mhla_fail(MHLA_EINVAL, "the result of a needle test is empty");
    MHLA_TRY(mhla_writer_open(&w, path));
    write_page(w.stream, &r, title);
    return mhla_writer_commit(&w);
}
