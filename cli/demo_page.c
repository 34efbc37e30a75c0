/* The verdict of the demo, each sentence made from figures of this run, and the page that holds all of it. */
#include <math.h>
#include <mhla/page.h>
#include <stdlib.h>

#include "demo.h"

/* ---- Sentences ---- */

static void say(demo *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(demo *d, const char *format, ...) {
    va_list args;
    if (d->verdicts == DEMO_VERDICTS) return;
    va_start(args, format);
    vsnprintf(d->verdict[d->verdicts++], sizeof d->verdict[0], format, args);
    va_end(args);
}

/* "240", "8.1", "0.56": how many times. */
static const char *times(char text[24], double x) {
    snprintf(text, 24, "%.*f", x < 1.0 ? 2 : x < 10.0 ? 1 : 0, x);
    return text;
}

static void judge_cost(demo *d) {
    const int last = d->lengths - 1;
    if (last < 1) return;
    char from[32], to[32], a[24], b[24], c[24], e[24];
    const double *mhla = d->seconds[0], *linear = d->seconds[1], *softmax = d->seconds[2];
    const double ratio = softmax[last] / mhla[last];
    text_count(from, sizeof from, (int64_t)d->tokens[0]);
    text_count(to, sizeof to, (int64_t)d->tokens[last]);
    say(d, "Cost: at %s tokens softmax takes %s times as long as MHLA%s, and linear attention %s times.", to,
        times(a, ratio), ratio > 1.0 ? "" : ", so MHLA is not faster here", times(b, linear[last] / mhla[last]));
    say(d,
        "Growth: from %s to %s tokens, %s times as many, the time grows by a factor of %s (MHLA), %s (linear) and %s "
        "(softmax).",
        from, to, times(a, d->tokens[last] / d->tokens[0]), times(b, mhla[last] / mhla[0]),
        times(c, linear[last] / linear[0]), times(e, softmax[last] / softmax[0]));
}

/* Twice the standard error of the difference of two shares of n. */
static double twice_error(double a, double b, double n) { return 2.0 * sqrt((a * (1.0 - a) + b * (1.0 - b)) / n); }

static void judge_learning(demo *d) {
    if (d->learned < DEMO_ARMS || d->test_images < 1) return;
    const double *p = d->accuracy, n = (double)d->test_images;
    say(d,
        "Learning: after %lld updates MHLA classifies %.1f %%, linear %.1f %% and softmax %.1f %% of %lld test images "
        "correctly.",
        (long long)d->steps, 100.0 * p[0], 100.0 * p[1], 100.0 * p[2], (long long)d->test_images);
    for (int arm = 1; arm < DEMO_ARMS; arm++) {
        const double difference = 100.0 * (p[0] - p[arm]), error = 100.0 * twice_error(p[0], p[arm], n);
        const char *which = fabs(difference) < 0.05 ? "apart" : difference > 0.0 ? "better" : "worse";
        if (fabs(difference) > error)
            say(d, "MHLA compared with %s: %.1f points %s. That is more than two standard errors, %.1f points.",
                demo_name[arm], fabs(difference), which, error);
        else
            say(d, "MHLA compared with %s: %.1f points %s, which is noise: two standard errors are %.1f points.",
                demo_name[arm], fabs(difference), which, error);
    }
    say(d,
        "This is one seed and %lld images, early in training. The experiment \"mhla reproduce length\" repeats it with "
        "several seeds and lengths.",
        (long long)(d->steps * d->batch));
}

static void judge_attention(demo *d) {
    if (d->looked < DEMO_ARMS) return;
    say(d, "Rank: of at most %lld, the attention matrices have rank %.0f (MHLA), %.0f (linear) and %.0f (softmax).",
        (long long)d->attention_tokens, d->rank[0], d->rank[1], d->rank[2]);
}

/* A part that got less of the time of its threads than this was disturbed. */
static const double quiet = 0.7;

static void judge_machine(demo *d) {
    const struct {
        const char *name;
        const demo_share *share;
    } parts[] = {{"the measurement of cost", &d->cost_share}, {"training", &d->learn_share}};
    char text[200] = "";
    int busy = 0, n = 0;
    for (int i = 0; i < 2; i++) {
        if (!(parts[i].share->wall > 0.0) || d->threads < 1) continue;
        const double share = parts[i].share->cpu / (parts[i].share->wall * d->threads);
        busy |= share < quiet;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s got %.0f %%", n ? " and " : "", parts[i].name,
                      100.0 * share);
    }
    if (n)
        say(d, "The machine was %s: %s of the time of %d thread%s.%s", busy ? "busy" : "quiet", text, d->threads,
            d->threads == 1 ? "" : "s",
            busy ? " The measured times are too long and may mislead; accuracies and ranks are not affected." : "");
}

void demo_judge(demo *d) {
    judge_cost(d);
    judge_machine(d);
    judge_learning(d);
    judge_attention(d);
    printf("\nVerdict\n\n");
    for (int i = 0; i < d->verdicts; i++) printf("* %s\n", d->verdict[i]);
}

/* ---- The page ---- */

static void page_models(mhla_page *page, const demo *d) {
    if (d->sentence.data == NULL && *d->image == '\0') return;
    char text[200], time[32];
    mhla_page_section(page, "Shipped models");
    if (d->sentence.data) {
        snprintf(text, sizeof text, "lm-small, a language model, continued \"In the beginning\" in %s:",
                 text_time(time, sizeof time, d->sentence_seconds));
        mhla_page_text(page, text);
        mhla_page_verbatim(page, d->sentence.data);
    }
    if (*d->image) {
        snprintf(text, sizeof text,
                 "dit-fashion, a diffusion model, drew one image of each class in %s. deit-fashion, a classifier, "
                 "recognises %d of %d:",
                 text_time(time, sizeof time, d->image_seconds), d->image_right, d->image_all);
        mhla_page_text(page, text);
        mhla_page_image(page, d->image, "ten generated images of clothes, one of each class");
    }
}

static void page_cost(mhla_page *page, const demo *d) {
    mhla_page_section(page, "Time and memory by length");
    mhla_page_text(page, "One layer of 6 heads of 64 in float32. Both axes are logarithmic.");
    mhla_page_chart(page, "time of a forward pass, seconds", "tokens", MHLA_PAGE_LOG_X | MHLA_PAGE_LOG_Y);
    for (int arm = 0; arm < DEMO_ARMS; arm++)
        mhla_page_line(page, demo_name[arm], mhla_page_colour(demo_attention[arm]), d->tokens, d->seconds[arm],
                       d->lengths);
    double mib[DEMO_ARMS + 1][DEMO_LENGTHS];
    for (int i = 0; i < d->lengths; i++) {
        for (int arm = 0; arm < DEMO_ARMS; arm++) mib[arm][i] = d->bytes[arm][i] / 1048576.0;
        mib[DEMO_ARMS][i] = d->matrix[i] / 1048576.0;
    }
    mhla_page_chart(page, "workspace, MiB", "tokens", MHLA_PAGE_LOG_X | MHLA_PAGE_LOG_Y);
    for (int arm = 0; arm < DEMO_ARMS; arm++)
        mhla_page_line(page, demo_name[arm], mhla_page_colour(demo_attention[arm]), d->tokens, mib[arm], d->lengths);
    mhla_page_line(page, "all T x T scores (not stored)", mhla_page_colour(""), d->tokens, mib[DEMO_ARMS], d->lengths);
}

/* The first column names the arms; `write` fills the others of a row. */
enum { COLUMNS = 6, CELL = 48 };

static void page_table(mhla_page *page, const demo *d, const char *const heads[COLUMNS], int columns,
                       void (*write)(char cells[COLUMNS][CELL], const demo *d, int arm)) {
    char text[DEMO_ARMS][COLUMNS][CELL] = {{{0}}};
    const char *cells[(DEMO_ARMS + 1) * COLUMNS];
    for (int j = 0; j < columns; j++) cells[j] = heads[j];
    for (int arm = 0; arm < DEMO_ARMS; arm++) {
        snprintf(text[arm][0], CELL, "%s", demo_name[arm]);
        write(text[arm], d, arm);
        for (int j = 0; j < columns; j++) cells[(arm + 1) * columns + j] = text[arm][j];
    }
    mhla_page_table(page, cells, DEMO_ARMS + 1, columns);
}

static void learning_row(char cells[COLUMNS][CELL], const demo *d, int arm) {
    text_count(cells[1], CELL, d->parameters[arm]);
    snprintf(cells[2], CELL, "%.1f %%", 100.0 * d->accuracy[arm]);
    text_time(cells[3], CELL, d->learn_seconds[arm]);
}

static void attention_row(char cells[COLUMNS][CELL], const demo *d, int arm) {
    snprintf(cells[1], CELL, "%.1f", d->rank[arm]);
    snprintf(cells[2], CELL, "%lld", (long long)d->bound[arm]);
    snprintf(cells[3], CELL, "%.1f", d->effective[arm]);
    snprintf(cells[4], CELL, "%.2f", d->entropy[arm]);
    snprintf(cells[5], CELL, "%.1f %%", 100.0 * d->own[arm]);
}

static void page_learning(mhla_page *page, const demo *d) {
    if (d->learned < DEMO_ARMS) return;
    static const char *const heads[COLUMNS] = {"attention", "parameters", "test accuracy", "time"};
    char text[300];
    mhla_page_section(page, "Learning at 1,024 tokens");
    snprintf(text, sizeof text,
             "Three vision transformers of two layers differ only in the attention. They read Fashion-MNIST with one "
             "token for each pixel: %lld updates of %lld images, the same seed and order; tested on %lld images.",
             (long long)d->steps, (long long)d->batch, (long long)d->test_images);
    mhla_page_text(page, text);
    page_table(page, d, heads, 4, learning_row);
    mhla_page_chart(page, "training loss", "update", MHLA_PAGE_SMOOTH);
    for (int arm = 0; arm < DEMO_ARMS; arm++)
        mhla_page_line(page, demo_name[arm], mhla_page_colour(demo_attention[arm]), d->step, d->loss[arm], d->steps);
}

static void page_attention(mhla_page *page, const demo *d) {
    if (d->looked < DEMO_ARMS) return;
    static const char *const heads[COLUMNS] = {"attention",      "rank",    "at most",
                                               "effective rank", "entropy", "own block"};
    char text[300];
    mhla_page_section(page, "What one query attends to");
    mhla_page_text(page,
                   "The attention matrices of these three models for one test image; means over layers and heads.");
    page_table(page, d, heads, COLUMNS, attention_row);
    snprintf(
        text, sizeof text,
        "Below: the weights of the framed query, in the middle of the image, on each of %d x %d tokens in the last "
        "layer, first head. Brighter means more weight; each map has a separate scale.",
        d->grid[0], d->grid[1]);
    mhla_page_text(page, text);
    for (int arm = 0; arm < DEMO_ARMS; arm++) {
        float most = 0.0f;
        for (int i = 0; i < d->grid[0] * d->grid[1]; i++)
            if (d->map[arm][i] > most) most = d->map[arm][i];
        snprintf(text, sizeof text, "largest weight %.2g; equal weights: %.2g", (double)most,
                 1.0 / (d->grid[0] * d->grid[1]));
        mhla_page_map(page, demo_name[arm], text, d->map[arm], d->grid[0], d->grid[1], d->query);
    }
    mhla_page_text(page, "The image:");
    mhla_page_image(page, d->seen, "the test image");
}

mhla_status demo_page(const demo *d, const char *path) {
    mhla_page *page = NULL;
    mhla_cpu_info info = {.size = sizeof info};
    char text[400];
    mhla_status status = mhla_page_open(&page, path, "MHLA compared with linear and softmax attention");
    if (status != MHLA_OK) return status;
    status = mhla_cpu_query(&info);
    if (status == MHLA_OK) {
        snprintf(text, sizeof text, "Measured by mhla %s on %s with %d thread%s and %s kernels.", mhla_version(),
                 info.model, info.threads, info.threads == 1 ? "" : "s", info.isa);
        mhla_page_text(page, text);
    }
    mhla_page_section(page, "Verdict");
    for (int i = 0; i < d->verdicts; i++) mhla_page_text(page, d->verdict[i]);
    page_models(page, d);
    page_cost(page, d);
    page_learning(page, d);
    page_attention(page, d);
    return mhla_page_close(page);
}
