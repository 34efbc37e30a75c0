/* Sample predictions: a card for each picture, with what each run takes it for. Runs on the same data share the picture. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { MOST = 96, SIDE = 112, SHOWN_ALONE = 3 };

static int64_t whole(const json_t *row, const char *key) { return json_integer_value(json_object_get(row, key)); }

/* A row that can be shown: its picture is harmless text, its size and its first guess are there. */
static const char *picture(const json_t *row) {
    const char *png = json_string_value(json_object_get(row, "png"));
    const json_t *top = json_object_get(row, "top");
    const int64_t width = whole(row, "width"), height = whole(row, "height");
    const int fine = png && mhla_base64_valid(png) && json_is_integer(json_object_get(row, "label")) &&
                     json_array_size(top) > 0 && width > 0 && width <= 4096 && height > 0 && height <= 4096;
    return fine ? png : NULL;
}

static const json_t *rows_of(const mhla_report_run *r) { return json_object_get(r->samples, "samples"); }

/* The same picture, at the same place of the data, among a run's samples. */
static const json_t *find(const mhla_report_run *r, const json_t *row) {
    const char *png = picture(row);
    for (size_t i = 0; i < json_array_size(rows_of(r)); i++) {
        const json_t *other = json_array_get(rows_of(r), i);
        const char *text = whole(other, "index") == whole(row, "index") ? picture(other) : NULL;
        if (text && strcmp(text, png) == 0 && whole(other, "label") == whole(row, "label")) return other;
    }
    return NULL;
}

static void write_class(FILE *out, const mhla_report_run *r, int64_t label) {
    const char *name = label >= 0 && label < 1 << 30 ? mhla_report_class(r, (int)label) : NULL;
    if (name && *name)
        mhla_html_text(out, name);
    else
        fprintf(out, "class %lld", (long long)label);
}

static void write_guesses(FILE *out, const mhla_report_run *r, const json_t *row, size_t most) {
    const json_t *top = json_object_get(row, "top");
    char classes[MHLA_CHART_CLASS];
    for (size_t i = 0; i < json_array_size(top) && i < most; i++) {
        const json_t *guess = json_array_get(top, i);
        const int right = whole(guess, "class") == whole(row, "label");
        double p = json_number_value(json_object_get(guess, "probability"));
        p = p >= 0.0 && p <= 1.0 ? p : 0.0;
        fprintf(out, "<li class=\"%s%s\"><span class=\"sign\">%s</span><span>", mhla_chart_class(classes, r->colour),
                i == 0 ? (right ? " right" : " wrong") : "",
                right    ? "&#10003;"
                : i == 0 ? "&#10007;"
                         : "");
        write_class(out, r, whole(guess, "class"));
        fprintf(out, "</span><b>%.1f&nbsp;%%</b><i style=\"width:%.1f%%\"></i></li>", 100.0 * p, 100.0 * p);
    }
}

static void write_card(FILE *out, const mhla_report_run *runs, int count, int first, const json_t *row) {
    const double width = (double)whole(row, "width"), height = (double)whole(row, "height");
    const double scale = SIDE / (width > height ? width : height);
    fprintf(out, "<li class=\"card\"><img%s width=\"%.0f\" height=\"%.0f\" alt=\"test image %lld: ",
            width < SIDE ? " class=\"pixels\"" : "", width * scale, height * scale, (long long)whole(row, "index"));
    write_class(out, &runs[first], whole(row, "label"));
    fprintf(out, "\" src=\"data:image/png;base64,%s\"><p>", picture(row));
    write_class(out, &runs[first], whole(row, "label"));
    fputs("</p><ul>", out);
    for (int k = first; k < count; k++) {
        const json_t *same = find(&runs[k], row);
        if (same) write_guesses(out, &runs[k], same, count == 1 ? SHOWN_ALONE : 1);
    }
    fputs("</ul></li>\n", out);
}

static void write_opening(FILE *out, const mhla_report_run *runs, int count) {
    fprintf(out,
            "<section id=\"predictions\"><h2>Predictions</h2>\n<p>Images of the test split, their classes, and "
            "%s. &#10003; right, &#10007; wrong.</p>\n",
            count == 1 ? "the predictions of the best checkpoint, with probabilities"
                       : "the prediction of each run's best checkpoint, with its probability");
    mhla_report_write_keys(out, runs, count);
    fputs("<ul class=\"cards\">\n", out);
}

void mhla_report_write_samples(FILE *out, const mhla_report_run *runs, int count) {
    int written = 0;
    for (int k = 0; k < count; k++)
        for (size_t i = 0; i < json_array_size(rows_of(&runs[k])) && written < MOST; i++) {
            const json_t *row = json_array_get(rows_of(&runs[k]), i);
            int done = picture(row) == NULL;
            for (int j = 0; j < k && !done; j++) done = find(&runs[j], row) != NULL;
            if (done) continue;
            if (written++ == 0) write_opening(out, runs, count);
            write_card(out, runs, count, k, row);
        }
    if (written) fputs("</ul></section>\n", out);
}
