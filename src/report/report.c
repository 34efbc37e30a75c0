/* The page: one HTML file about one or several runs, with everything it shows inside it. It asks for nothing from
 * anywhere (its Content-Security-Policy says so to the browser), and depends on the runs alone, not on time or place. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "report/attention.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { MOST_RUNS = 64, MOST_CLASSES = 60 }; /* of more classes only the lowest and the highest are shown */

typedef mhla_report_run run;

static void write_name(FILE *out, const run *r) {
    char classes[MHLA_CHART_CLASS];
    fprintf(out, "<span class=\"key %s\"></span>", mhla_chart_class(classes, r->colour));
    mhla_html_text(out, r->name);
}

void mhla_report_write_keys(FILE *out, const run *runs, int count) {
    if (count < 2) return;
    fputs("<p class=\"legend\">", out);
    for (int i = 0; i < count; i++) {
        fputs("<span class=\"entry\">", out);
        write_name(out, &runs[i]);
        fputs("</span> ", out);
    }
    fputs("</p>\n", out);
}

/* ---- Summary ---- */

static void write_cell(FILE *out, const char *text) {
    fputs("<td>", out);
    mhla_html_text(out, *text ? text : "-");
    fputs("</td>", out);
}

/* 31500 -> 31,500; "-" for less than 0. */
static void write_count(FILE *out, int64_t n) {
    char digits[32];
    if (n < 0) {
        fputs("-", out);
        return;
    }
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) fputc(',', out);
        fputc(digits[i], out);
    }
}

/* "81.20 %", or "1.9021", bits per byte or a loss */
static void write_measure(FILE *out, const run *r, double x) {
    if (r->text || r->by_loss)
        fprintf(out, "%.4f", x);
    else
        fprintf(out, "%.2f&nbsp;%%", 100.0 * x);
}

static void write_accuracies(FILE *out, const run *r) {
    const mhla_series *test = r->text ? &r->test_bits : r->by_loss ? &r->test_loss : &r->test_accuracy;
    if (isfinite(r->best)) {
        fputs("<td><b>", out);
        write_measure(out, r, r->best);
        fprintf(out, "</b>%s <span class=\"small\">epoch&nbsp;%.4g</span></td>", r->best_is_average ? "*" : "",
                r->best_epoch);
    } else {
        fputs("<td>-</td>", out);
    }
    fputs("<td>", out);
    if (test->count)
        write_measure(out, r, test->y[test->count - 1]);
    else
        fputs("-", out);
    fputs("</td><td>", out);
    write_count(out, r->test_images);
    fputs("</td>", out);
}

static void write_row(FILE *out, const run *r) {
    fputs("<tr><th scope=\"row\">", out);
    write_name(out, r);
    fputs("</th>", out);
    write_accuracies(out, r);
    if (isfinite(r->epochs))
        fprintf(out, "<td>%.4g</td><td>", r->epochs);
    else
        fputs("<td>-</td><td>", out);
    write_count(out, isfinite(r->epochs) ? r->steps : -1);
    fputs("</td><td>", out);
    write_count(out, r->speed.count ? llround(fmin(fmax(mhla_series_median(&r->speed), 0.0), 1e15)) : -1);
    fputs("</td><td>", out);
    write_count(out, r->parameters);
    fputs("</td>", out);
    write_cell(out, mhla_attention_title(mhla_report_text(r->config, "attention")));
    write_cell(out, mhla_report_text(r->config, "model"));
    write_cell(out, mhla_report_text(r->recipe, "data.source"));
    fputs("</tr>\n", out);
}

static void write_summary(FILE *out, const run *runs, int n) {
    int average = 0, texts = 0, losses = 0;
    for (int i = 0; i < n; i++) texts += runs[i].text, losses += runs[i].by_loss;
    const char *unit = texts == n ? "tokens" : texts ? "images or tokens" : "images";
    fputs("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Summary\"><table class=\"summary\">\n"
          "<thead><tr><th scope=\"col\">run</th>",
          out);
    fprintf(out,
            "<th scope=\"col\">best %s</th><th scope=\"col\">last</th><th scope=\"col\">test %s</th>"
            "<th scope=\"col\">epochs</th><th scope=\"col\">steps</th><th scope=\"col\">%s/s</th>",
            texts == n        ? "bits per byte"
            : losses == n     ? "test loss"
            : texts || losses ? "test"
                              : "test accuracy",
            unit, unit);
    fputs("<th scope=\"col\">parameters</th><th scope=\"col\">attention</th>"
          "<th scope=\"col\">model</th><th scope=\"col\">data</th></tr></thead>\n<tbody>\n",
          out);
    for (int i = 0; i < n; i++) {
        write_row(out, &runs[i]);
        average |= isfinite(runs[i].best) && runs[i].best_is_average;
    }
    fputs("</tbody></table></div>\n", out);
    fprintf(out, "<p class=\"small\">%s%s/s: the median of training, without evaluation.</p>\n",
            average ? "* of the averaged weights (EMA). " : "", unit);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < runs[i].remark_count; k++) {
            fputs("<p class=\"remark\">", out);
            mhla_html_text(out, runs[i].remarks[k]);
            fputs("</p>\n", out);
        }
}

/* ---- Curves ---- */

static void set_line(mhla_line *line, const run *r, size_t series) {
    *line = (mhla_line){.name = r->name, .colour = r->colour};
    line->data = (const mhla_series *)(const void *)((const char *)r + series);
}

static mhla_status write_curves(FILE *out, const run *runs, int n) {
    static const struct {
        const char *title;
        size_t series;
        int percent, log_y, smooth;
        size_t average; /* the same of averaged weights, 0: not told */
    } charts[] = {
        {"Bits per byte of validation text", offsetof(run, test_bits), 0, 0, 0, offsetof(run, ema_bits)},
        {"Test accuracy", offsetof(run, test_accuracy), 1, 0, 0, offsetof(run, ema_accuracy)},
        {"Training loss", offsetof(run, loss), 0, 0, 1, 0},
        {"Test loss", offsetof(run, test_loss), 0, 0, 0, offsetof(run, ema_loss)},
        {"Reconstructions, PSNR in dB", offsetof(run, psnr), 0, 0, 0, 0},
        {"Training accuracy, of batches", offsetof(run, accuracy), 1, 0, 1, 0},
        {"Learning rate", offsetof(run, rate), 0, 0, 0, 0},
        {"Norm of the gradient", offsetof(run, norm), 0, 1, 1, 0},
        {"Images or tokens per second in training", offsetof(run, speed), 0, 0, 1, 0},
    };
    mhla_line lines[2 * MOST_RUNS];
    fputs("<section id=\"curves\"><h2>Curves</h2>\n<div class=\"charts\">\n", out);
    for (size_t c = 0; c < sizeof charts / sizeof *charts; c++) {
        int count = 0;
        for (int i = 0; i < n; i++) set_line(&lines[count++], &runs[i], charts[c].series);
        for (int i = 0; i < n && charts[c].average; i++) {
            set_line(&lines[count], &runs[i], charts[c].average);
            lines[count].note = "average";
            lines[count++].dashed = 1;
        }
        const mhla_chart chart = {.title = charts[c].title,
                                  .x_name = "epoch",
                                  .lines = lines,
                                  .count = count,
                                  .percent = charts[c].percent,
                                  .log_y = charts[c].log_y,
                                  .smooth = charts[c].smooth};
        MHLA_TRY(mhla_chart_write(out, &chart));
    }
    fputs("</div></section>\n", out);
    return MHLA_OK;
}

/* ---- Classes ---- */

static double class_accuracy(const run *r, size_t k) {
    const json_t *x = json_array_get(r->classes, k);
    const double v = json_is_number(x) ? json_number_value(x) : NAN;
    return v >= 0.0 && v <= 1.0 ? v : NAN;
}

/* Classes of the same number are compared only where they have the same name. */
static int same_class(const run *a, const run *b, size_t k) {
    const char *x = mhla_report_class(a, (int)k), *y = mhla_report_class(b, (int)k);
    return x == NULL || y == NULL || strcmp(x, y) == 0;
}

typedef struct ranked {
    size_t number;
    double mean; /* over the runs that know it */
} ranked;

static int by_mean(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->mean != y->mean) return x->mean < y->mean ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void write_class(FILE *out, const run *runs, int n, int first, size_t k) {
    const char *name = mhla_report_class(&runs[first], (int)k);
    fputs("<tr><th scope=\"row\">", out);
    if (name && *name)
        mhla_html_text(out, name);
    else
        fprintf(out, "class %zu", k);
    fputs("</th><td>", out);
    for (int i = first; i < n; i++) {
        const double v = class_accuracy(&runs[i], k);
        char classes[MHLA_CHART_CLASS];
        if (!isfinite(v) || !same_class(&runs[first], &runs[i], k)) continue;
        fprintf(out, "<div class=\"bar %s\"><i style=\"width:%.2f%%\"></i><b>%.1f&nbsp;%%</b></div>",
                mhla_chart_class(classes, runs[i].colour), 100.0 * v, 100.0 * v);
    }
    fputs("</td></tr>\n", out);
}

/* The table of the classes that run `first` knows, with those of later runs that share their names. */
static mhla_status write_class_table(FILE *out, const run *runs, int n, int first) {
    const size_t count = json_array_size(runs[first].classes);
    ranked *list = malloc((count ? count : 1) * sizeof *list);
    size_t known = 0;
    if (list == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu classes", count);
    for (size_t k = 0; k < count; k++) {
        double sum = 0.0;
        int of = 0;
        for (int i = first; i < n; i++) {
            const double v = class_accuracy(&runs[i], k);
            if (isfinite(v) && same_class(&runs[first], &runs[i], k)) sum += v, of++;
        }
        if (of) list[known++] = (ranked){k, sum / of};
    }
    const int cut = known > MOST_CLASSES;
    if (cut) {
        qsort(list, known, sizeof *list, by_mean);
        fprintf(out, "<p>The %d lowest and the %d highest of %zu classes.</p>\n", MOST_CLASSES / 2, MOST_CLASSES / 2,
                known);
    }
    fputs("<table class=\"bars\"><colgroup><col class=\"names\"><col></colgroup><thead class=\"hidden\"><tr><th "
          "scope=\"col\">class</th><th scope=\"col\">accuracy</th>"
          "</tr></thead>\n<tbody>\n",
          out);
    for (size_t k = 0; k < known; k++) {
        if (cut && k >= MOST_CLASSES / 2 && k < known - MOST_CLASSES / 2) continue;
        if (cut && k == known - MOST_CLASSES / 2) fputs("<tr><th>&#8942;</th><td></td></tr>\n", out);
        write_class(out, runs, n, first, list[k].number);
    }
    fputs("</tbody></table>\n", out);
    free(list);
    return MHLA_OK;
}

/* Runs on other data than all before them have a table of their own. */
static mhla_status write_classes(FILE *out, const run *runs, int n) {
    int any = 0;
    for (int i = 0; i < n; i++) {
        const size_t count = json_array_size(runs[i].classes);
        int shown = count == 0;
        for (int j = 0; j < i && !shown; j++) {
            shown = json_array_size(runs[j].classes) == count;
            for (size_t k = 0; k < count && shown; k++) shown = same_class(&runs[j], &runs[i], k);
        }
        if (shown) continue;
        if (any++ == 0) {
            int average = 0;
            for (int j = 0; j < n; j++) average |= runs[j].ema_accuracy.count > 0;
            fprintf(
                out,
                "<section id=\"classes\"><h2>Accuracy by class</h2>\n<p>At the last evaluation of each run%s.</p>\n",
                average
                    ? "; with an average of the weights, of whichever scored better, the raw weights or their average"
                    : "");
            mhla_report_write_keys(out, runs, n);
        }
        MHLA_TRY(write_class_table(out, runs, n, i));
    }
    if (any) fputs("</section>\n", out);
    return MHLA_OK;
}

/* ---- Matrices, recipes ---- */

static mhla_status write_mixing(FILE *out, const run *runs, int n) {
    int any = 0;
    for (int i = 0; i < n; i++) {
        if (runs[i].mix_count && any++ == 0)
            fputs("<section id=\"mixing\"><h2>Mixing matrices</h2>\n"
                  "<p>MHLA divides the image into blocks. Each block of queries reads its own mixture of the summaries "
                  "of all "
                  "blocks, with learned weights. A map shows the whole grid of query blocks; inside each of them, "
                  "in small, its weights for every block of the image. Point at a cell, or focus a map "
                  "and use the arrow keys, to read a weight.</p>\n",
                  out);
        MHLA_TRY(mhla_report_write_mixing(out, &runs[i]));
    }
    if (any) fputs("</section>\n", out);
    return MHLA_OK;
}

static mhla_status write_recipes(FILE *out, const run *runs, int n) {
    int any = 0;
    for (int i = 0; i < n; i++) {
        if (runs[i].recipe == NULL) continue;
        if (any++ == 0) fputs("<section id=\"recipes\"><h2>Recipes</h2>\n", out);
        char *text = mhla_json_text(runs[i].recipe, JSON_INDENT(2));
        if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a recipe");
        fputs("<details><summary>", out);
        write_name(out, &runs[i]);
        fputs("</summary><pre tabindex=\"0\">", out);
        mhla_html_text(out, text);
        fputs("</pre></details>\n", out);
        free(text);
    }
    if (any) fputs("</section>\n", out);
    return MHLA_OK;
}

/* ---- The page ---- */

void mhla_report_begin(FILE *out) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>mhla: ",
          out);
}

void mhla_report_body(FILE *out) {
    fprintf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<header><h1>", mhla_palette_css, mhla_report_css);
}

void mhla_report_end(FILE *out) {
    fprintf(out, "</main>\n<footer class=\"small\">mhla %s</footer>\n<script>\n%s</script>\n</body>\n</html>\n",
            mhla_version(), mhla_report_js);
}

static void write_head(FILE *out, const run *runs, int n) {
    mhla_report_begin(out);
    for (int i = 0; i < n; i++) {
        if (i) fputs(", ", out);
        mhla_html_text(out, runs[i].name);
    }
    mhla_report_body(out);
    if (n == 1)
        mhla_html_text(out, runs[0].name);
    else
        fprintf(out, "%d runs side by side", n);
    fputs("</h1></header>\n<main>\n", out);
}

static mhla_status write_page(FILE *out, const run *runs, int n) {
    write_head(out, runs, n);
    write_summary(out, runs, n);
    MHLA_TRY(write_curves(out, runs, n));
    MHLA_TRY(write_classes(out, runs, n));
    mhla_report_write_samples(out, runs, n);
    mhla_report_write_grids(out, runs, n);
    MHLA_TRY(write_mixing(out, runs, n));
    MHLA_TRY(write_recipes(out, runs, n));
    mhla_report_end(out);
    return MHLA_OK;
}

/* Runs of the same name are called by their whole path. */
static mhla_status tell_apart(run *runs, int n) {
    int twice[MOST_RUNS] = {0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) twice[i] |= j != i && strcmp(runs[i].name, runs[j].name) == 0;
    for (int i = 0; i < n; i++) {
        char *name = twice[i] ? strdup(runs[i].folder) : NULL;
        if (name == NULL && twice[i]) return mhla_fail(MHLA_ENOMEM, "no memory for a name");
        if (name == NULL) continue;
        free(runs[i].name);
        runs[i].name = name;
    }
    return MHLA_OK;
}

static void choose_colours(run *runs, int n) {
    const char *names[MOST_RUNS];
    int colours[MOST_RUNS];
    for (int i = 0; i < n; i++) names[i] = mhla_report_text(runs[i].config, "attention");
    mhla_attention_colours(colours, names, n);
    for (int i = 0; i < n; i++) runs[i].colour = colours[i];
}

mhla_status mhla_report_make(const char *path, const char *const *folders, int count, mhla_remark_fn remark,
                             void *user) {
    if (count < 1 || count > MOST_RUNS) return mhla_fail(MHLA_EINVAL, "%d runs: expected 1 to %d", count, MOST_RUNS);
    run *runs = calloc((size_t)count, sizeof *runs);
    mhla_status status = runs ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d runs", count);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = mhla_report_read(&runs[i], folders[i]);
    if (status == MHLA_OK) status = tell_apart(runs, count);
    if (status == MHLA_OK) choose_colours(runs, count);
    mhla_writer w = {0};
    if (status == MHLA_OK) status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        status = write_page(w.stream, runs, count);
        if (status == MHLA_OK)
            status = mhla_writer_commit(&w);
        else
            mhla_writer_discard(&w);
    }
    for (int i = 0; remark && status == MHLA_OK && i < count; i++)
        for (int k = 0; k < runs[i].remark_count; k++) remark(user, runs[i].remarks[k]);
    for (int i = 0; runs && i < count; i++) mhla_report_run_free(&runs[i]);
    free(runs);
    return status;
}

mhla_status mhla_report_write(const char *path, const char *const *runs, int count) {
    return mhla_report_make(path, runs, count, NULL, NULL);
}
