/* The page of an analysis: one HTML file about one or several models, with everything it shows inside it, in the style of the
 * reports of training. Attention maps are kept as bytes, each row by its own largest weight, for as many samples, layers and
 * heads as a page of this size can hold. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/look.h"
#include "core/status.h"
#include "file/json.h"
#include "report/attention.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { MOST_BYTES = 3400000, TEXT_TOKENS = 192, POSITIONS = 64, MOST_MODELS = 16 };

typedef struct page {
    FILE *out;
    const mhla_analysis *const *list;
    const char *const *names;
    int count;
    int colours[MOST_MODELS]; /* for mhla_chart_class */
} page;

static void write_name(const page *p, int i) {
    char classes[MHLA_CHART_CLASS];
    fprintf(p->out, "<span class=\"key %s\"></span>", mhla_chart_class(classes, p->colours[i]));
    mhla_html_text(p->out, p->names[i]);
}

static int is_text(const mhla_analysis *a) { return a->text; }

/* ---- Means of layers and models ------------------------------------------------------------------------------------------ */

enum { RANK, EFFECTIVE, ENTROPY, CLIPPED, DEAD, OWN, NEAR, FAR, DISTANCE, BOUND, MEASURES };

static void measures_of(double m[MEASURES], const mhla_analysis *a, int layer, int head) {
    mhla_head_analysis x = {.size = sizeof x};
    (void)mhla_analysis_head(a, layer, head, &x); /* they are in range */
    const double all[MEASURES] = {x.rank, x.effective_rank, x.entropy, x.clipped,  x.dead,
                                  x.own,  x.near,           x.far,     x.distance, (double)x.bound};
    memcpy(m, all, sizeof all);
}

/* Mean over heads of a layer, or, layer -1, over all of them; of each measure over those that have it: a head of nothing but
 * zeros has no entropy. */
static void mean_of(double m[MEASURES], const mhla_analysis *a, int layer) {
    int n[MEASURES] = {0};
    memset(m, 0, MEASURES * sizeof *m);
    for (int l = layer < 0 ? 0 : layer; l < (layer < 0 ? a->layers : layer + 1); l++)
        for (int h = 0; h < a->layer[l].heads; h++) {
            double x[MEASURES];
            measures_of(x, a, l, h);
            for (int i = 0; i < MEASURES; i++)
                if (isfinite(x[i])) m[i] += x[i], n[i]++;
        }
    for (int i = 0; i < MEASURES; i++) m[i] = n[i] ? m[i] / n[i] : NAN;
}

/* Of rows that are even; a causal row t has t + 1 entries. */
static double most_entropy(const mhla_analysis *a) {
    double sum = 0.0;
    for (int64_t i = 0; i < a->rows; i++)
        sum += log((double)(a->layer[0].causal ? (a->which ? a->which[i] : i) + 1 : a->T));
    return sum / (double)a->rows;
}

/* ---- Summary -------------------------------------------------------------------------------------------------------------- */

static void cell(FILE *out, double x, const char *format) {
    fputs("<td>", out);
    if (isfinite(x))
        fprintf(out, format, x); /* NOLINT(clang-diagnostic-format-nonliteral): ours */
    else
        fputc('-', out);
    fputs("</td>", out);
}

static void write_summary(const page *p) {
    FILE *out = p->out;
    fputs(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Summary\"><table class=\"summary figures\">\n"
        "<thead><tr><th scope=\"col\">model</th><th scope=\"col\">attention</th><th scope=\"col\">tokens</th>"
        "<th scope=\"col\">samples<br>(for ranks)</th><th scope=\"col\">rank</th><th scope=\"col\">at most</th>"
        "<th scope=\"col\">effective<br>rank</th><th scope=\"col\">entropy</th><th scope=\"col\">at most</th>"
        "<th scope=\"col\">negative<br>weight</th><th scope=\"col\">mean<br>distance</th>"
        "<th scope=\"col\">own, near, far blocks</th></tr></thead>\n<tbody>\n",
        out);
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        double m[MEASURES];
        mean_of(m, a, -1);
        for (int k = OWN; k <= FAR; k++)
            if (!isfinite(m[k])) m[k] = 0.0;
        fputs("<tr><th scope=\"row\">", out);
        write_name(p, i);
        fprintf(out, "</th><td>%s</td><td>%lld</td><td>%lld (%lld)</td>", mhla_attention_title(a->attention),
                (long long)a->T, (long long)a->samples, (long long)a->rank_samples);
        cell(out, m[RANK], "%.1f");
        cell(out, m[BOUND], "%.0f");
        cell(out, m[EFFECTIVE], "%.1f");
        cell(out, m[ENTROPY], "%.3f");
        cell(out, most_entropy(a), "%.3f");
        cell(out, 100.0 * m[CLIPPED], "%.1f&nbsp;%%");
        cell(out, m[DISTANCE], "%.2f");
        fprintf(out,
                "<td><div class=\"bars2\" title=\"own, near, far\"><i class=\"c0\" style=\"width:%.1f%%\"></i><i "
                "class=\"c2\" style=\"width:%.1f%%\"></i><i class=\"c1\" style=\"width:%.1f%%\"></i></div>"
                "%.0f, %.0f, %.0f&nbsp;%% ",
                100.0 * m[OWN], 100.0 * m[NEAR], 100.0 * m[FAR], 100.0 * m[OWN], 100.0 * m[NEAR], 100.0 * m[FAR]);
        if (a->chunk)
            fprintf(out, "(of %d tokens)</td></tr>\n", a->chunk);
        else
            fprintf(out, a->frames ? "(%d x %d x %d)</td></tr>\n" : "(%d x %d)</td></tr>\n",
                    a->frames ? a->frame_blocks : a->blocks[0], a->frames ? a->blocks[0] : a->blocks[1], a->blocks[1]);
    }
    fputs("</tbody></table></div>\n<p class=\"small\">Means over samples, layers and heads.", out);
    for (int i = 0; i < p->count; i++)
        if (p->list[i]->blocks[0] <= 2 && p->list[i]->blocks[1] <= 2 && p->list[i]->frame_blocks == 0) {
            fputs(" With 2 x 2 blocks or fewer, none is far.", out);
            break;
        }
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        if (!a->layer[0].causal) continue;
        fputs(
            " Rank of causal attention: that of its scores without the mask, which alone would make almost any matrix "
            "one of full rank (MHLA: chunks see those before them and themselves, as its mixing matrix has it).",
            out);
        break;
    }
    for (int i = 0; i < p->count; i++)
        if (p->list[i]->rows < p->list[i]->T) {
            fputs(" Of ", out);
            mhla_html_text(out, p->names[i]);
            fprintf(out, " %lld rows of %lld were formed.", (long long)p->list[i]->rows, (long long)p->list[i]->T);
        }
    fputs("</p>\n", out);
}

/* ---- Charts ----------------------------------------------------------------------------------------------------------------- */

typedef struct lines {
    mhla_series series[2 * MOST_MODELS];
    mhla_line line[2 * MOST_MODELS];
    int count;
} lines;

static void lines_free(lines *l) {
    for (int i = 0; i < l->count; i++) mhla_series_free(&l->series[i]);
    l->count = 0;
}

static mhla_status add_layers(lines *l, const page *p, int i, int measure, const char *note, int dashed) {
    mhla_series *s = &l->series[l->count];
    *s = (mhla_series){0};
    l->line[l->count++] = (mhla_line){p->names[i], note, s, p->colours[i], dashed};
    for (int layer = 0; layer < p->list[i]->layers; layer++) {
        double m[MEASURES];
        mean_of(m, p->list[i], layer);
        MHLA_TRY(mhla_series_add(s, layer, m[measure]));
    }
    return MHLA_OK;
}

static mhla_status write_by_layer(const page *p, const char *title, int measure, const char *note, int other,
                                  const char *other_note, int percent) {
    lines l = {.count = 0};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < p->count && status == MHLA_OK; i++) {
        status = add_layers(&l, p, i, measure, note, 0);
        if (status == MHLA_OK && other >= 0) status = add_layers(&l, p, i, other, other_note, 1);
    }
    const mhla_chart c = {.title = title,
                          .x_name = "layer",
                          .lines = l.line,
                          .count = l.count,
                          .percent = percent,
                          .whole_x = 1,
                          .from_zero = 1};
    if (status == MHLA_OK) status = mhla_chart_write(p->out, &c);
    lines_free(&l);
    return status;
}

/* Loss by position: means of so many neighbours that the line can be seen. */
static mhla_status write_positions(const page *p) {
    lines l = {.count = 0};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < p->count && status == MHLA_OK; i++) {
        const mhla_analysis *a = p->list[i];
        if (!is_text(a)) continue;
        mhla_series *s = &l.series[l.count];
        l.line[l.count++] = (mhla_line){p->names[i], NULL, s, p->colours[i], 0};
        *s = (mhla_series){0};
        const int64_t wide = (a->T + POSITIONS - 1) / POSITIONS;
        for (int64_t t = 0; t < a->T && status == MHLA_OK; t += wide) {
            const int64_t n = t + wide < a->T ? wide : a->T - t;
            double sum = 0.0;
            for (int64_t u = t; u < t + n; u++) sum += a->position[u];
            status = mhla_series_add(s, (double)t + 0.5 * (double)(n - 1), sum / (double)n);
        }
    }
    const mhla_chart c = {
        .title = "Loss by position, nats per token", .x_name = "position", .lines = l.line, .count = l.count};
    if (status == MHLA_OK && l.count) status = mhla_chart_write(p->out, &c);
    lines_free(&l);
    return status;
}

static mhla_status write_charts(const page *p) {
    fputs("<section id=\"layers\"><h2>Layer by layer</h2>\n<p class=\"small\">Means over heads and samples.</p>\n"
          "<div class=\"charts\">\n",
          p->out);
    MHLA_TRY(write_by_layer(p, "Rank of the attention matrix", RANK, NULL, BOUND, "at most", 0));
    MHLA_TRY(write_by_layer(p, "Effective rank", EFFECTIVE, NULL, -1, NULL, 0));
    MHLA_TRY(write_by_layer(p, "Entropy of a row, nats", ENTROPY, NULL, -1, NULL, 0));
    MHLA_TRY(write_by_layer(p, "Weight on the query's own block, and on far ones", OWN, "own", FAR, "far", 1));
    MHLA_TRY(write_by_layer(p, "Mean distance of what is attended to", DISTANCE, NULL, -1, NULL, 0));
    MHLA_TRY(write_positions(p));
    fputs("</div></section>\n", p->out);
    return MHLA_OK;
}

/* ---- Mixing matrices, by the section of the reports of training --------------------------------------------------------------- */

static void write_mix_shares(const page *p, int i) {
    const mhla_analysis *a = p->list[i];
    fputs("<div class=\"wide\"><table class=\"numbers small\"><thead><tr><th scope=\"col\">weights of the mixing "
          "matrix on"
          "</th><th scope=\"col\">own block</th><th scope=\"col\">near</th><th scope=\"col\">far</th></tr></thead>"
          "<tbody>\n",
          p->out);
    for (int l = 0, first = 1; l < a->layers; l++) {
        const mhla_mix_analysis *x = &a->layer[l].mix;
        if (x->blocks == 0) continue;
        if (first)
            fprintf(p->out, "<tr><td>before training</td><td>%.1f %%</td><td>%.1f %%</td><td>%.1f %%</td></tr>\n",
                    100.0 * x->own[0], 100.0 * x->near[0], 100.0 * x->far[0]);
        fprintf(p->out, "<tr><td>layer %d</td><td>%.1f %%</td><td>%.1f %%</td><td>%.1f %%</td></tr>\n", l,
                100.0 * x->own[1], 100.0 * x->near[1], 100.0 * x->far[1]);
        first = 0;
    }
    fputs("</tbody></table></div>\n", p->out);
}

/* What the matrices of clips say of frames, rows and columns alone: small matrices, side by side for all layers. */
static mhla_status write_along(const page *p, int i) {
    static const char *const names[MHLA_MIX_AXES] = {"frames", "rows", "columns"};
    const mhla_analysis *a = p->list[i];
    mhla_status status = MHLA_OK;
    for (int axis = 0; axis < MHLA_MIX_AXES && status == MHLA_OK; axis++) {
        char name[128];
        mhla_report_run run = {.name = name, .colour = p->colours[i]};
        run.mixes = calloc((size_t)a->layers, sizeof *run.mixes);
        if (run.mixes == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory for mixing matrices");
        snprintf(name, sizeof name, "%.80s, over %s", p->names[i], names[axis]);
        for (int l = 0; l < a->layers && status == MHLA_OK; l++) {
            const mhla_mix_analysis *x = &a->layer[l].mix;
            if (x->blocks == 0) continue;
            mhla_report_mix *m = &run.mixes[run.mix_count++];
            const int n = mhla_mix_places(x, axis);
            const size_t bytes = (size_t)n * (size_t)n * sizeof *m->mix;
            snprintf(m->name, sizeof m->name, "layer %d", l);
            m->M = n;
            m->mix = malloc(bytes);
            if (run.before == NULL) run.before = malloc(bytes);
            run.before_M = n;
            if (m->mix == NULL || run.before == NULL) {
                status = mhla_fail(MHLA_ENOMEM, "no memory for mixing matrices");
                break;
            }
            mhla_mix_along(m->mix, x->after, x, axis);
            mhla_mix_along(run.before, x->before, x, axis);
        }
        if (status == MHLA_OK) status = mhla_report_write_mixing(p->out, &run);
        for (int k = 0; run.mixes && k < run.mix_count; k++) free(run.mixes[k].mix);
        free(run.mixes);
        free(run.before);
    }
    return status;
}

static mhla_status write_mixing(const page *p) {
    int any = 0;
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        mhla_report_run run = {.name = (char *)p->names[i], .colour = p->colours[i]};
        run.mixes = calloc((size_t)a->layers, sizeof *run.mixes);
        if (run.mixes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for mixing matrices");
        for (int l = 0; l < a->layers; l++) {
            const mhla_mix_analysis *x = &a->layer[l].mix;
            if (x->blocks == 0) continue;
            mhla_report_mix *m = &run.mixes[run.mix_count++];
            snprintf(m->name, sizeof m->name, "layer %d", l);
            m->M = (int)x->blocks;
            m->mix = (float *)x->after;
            run.before = (float *)x->before;
            run.before_M = (int)x->blocks;
            const int flat = x->first || is_text(a) || x->frames;
            run.grid[0] = flat ? 0 : x->grid[0];
            run.grid[1] = flat ? 0 : x->grid[1];
        }
        mhla_status status = MHLA_OK;
        if (run.mix_count) {
            if (any++ == 0)
                fputs("<section id=\"mixing\"><h2>Mixing matrices</h2>\n<p>What each query block takes from each "
                      "block. On a "
                      "grid, the small image at a block's place is its row of the matrix, laid out over the blocks "
                      "of the image: before training a block takes most from itself and its neighbours. Blocks of "
                      "clips come by frames, rows, columns; <i>over frames</i> is what a block takes from all blocks "
                      "of each stretch of frames, mean over the blocks of its own; so of rows and columns.</p>\n",
                      p->out);
            status = mhla_report_write_mixing(p->out, &run);
            if (status == MHLA_OK && a->frames) status = write_along(p, i);
            if (status == MHLA_OK) write_mix_shares(p, i);
        }
        free(run.mixes);
        MHLA_TRY(status);
    }
    if (any) fputs("</section>\n", p->out);
    return MHLA_OK;
}

/* ---- Attention maps --------------------------------------------------------------------------------------------------------------- */

/* How much of each model's maps the page keeps. */
typedef struct budget {
    int64_t samples;
    int layers, heads; /* at most; 0 layers: none */
} budget;

static int shown_maps(const mhla_analysis *a) { return a->maps > 0 && a->rows == a->T; }
/* What a causal model's token sees is before it: the first tokens alone lose nothing. */
static int64_t shown_tokens(const mhla_analysis *a) {
    return is_text(a) && a->layer[0].causal && a->T > TEXT_TOKENS ? TEXT_TOKENS : a->T;
}
static int at_most(int a, int b) { return a < b ? a : b; }

static double bytes_of(const page *p, const budget *b) {
    double sum = 0.0;
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        const double T = (double)shown_tokens(a), each = T * T * 4.0 / 3.0;
        if (shown_maps(a))
            sum += (double)(b->samples < a->maps ? b->samples : a->maps) * at_most(b->layers, a->layers) *
                   at_most(b->heads, a->heads) * each;
    }
    return sum;
}

/* The most that any model has: it is not one model that has most of everything. */
static budget all_maps(const page *p) {
    budget b = {0};
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        if (!shown_maps(a)) continue;
        if (a->maps > b.samples) b.samples = a->maps;
        if (a->layers > b.layers) b.layers = a->layers;
        if (a->heads > b.heads) b.heads = a->heads;
    }
    return b;
}

/* All of it if that fits; else fewer samples, then fewer layers, then one head. */
static budget find_budget(const page *p) {
    budget b = all_maps(p);
    while (b.samples > 1 && bytes_of(p, &b) > MOST_BYTES) b.samples--;
    while (b.layers > 2 && bytes_of(p, &b) > MOST_BYTES) b.layers--;
    while (b.heads > 1 && bytes_of(p, &b) > MOST_BYTES) b.heads--;
    while (b.layers > 1 && bytes_of(p, &b) > MOST_BYTES) b.layers--;
    if (bytes_of(p, &b) > MOST_BYTES) b.layers = 0;
    return b;
}

/* The k-th of n kept layers, the first and the last among them. */
static int layer_at(int k, int n, int layers) { return n > 1 ? k * (layers - 1) / (n - 1) : layers - 1; }

/* "base64" of bytes [T,T]: 255 is the largest weight of a row, negative ones are 0. */
static mhla_status write_map(FILE *out, const float *map, int64_t stride, int64_t T) {
    unsigned char *bytes = malloc((size_t)(T * T));
    char *text = NULL;
    for (int64_t t = 0; bytes && t < T; t++) {
        const float *row = map + t * stride;
        float most = 0.0f;
        for (int64_t u = 0; u < T; u++) most = fmaxf(most, row[u]);
        for (int64_t u = 0; u < T; u++)
            bytes[t * T + u] = row[u] > 0.0f ? (unsigned char)lrintf(255.0f * row[u] / most) : 0;
    }
    if (bytes) text = mhla_base64(bytes, (size_t)(T * T));
    free(bytes);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a map of %lld tokens", (long long)T);
    fprintf(out, "\"%s\"", text);
    free(text);
    return MHLA_OK;
}

/* A text as JSON that no tag can hide in. */
static mhla_status write_string(FILE *out, const char *text) {
    json_t *s = json_string(text);
    if (s == NULL) s = json_string("\xEF\xBF\xBD"); /* part of a character */
    char *quoted = s ? mhla_json_text(s, JSON_ENSURE_ASCII) : NULL;
    json_decref(s);
    if (quoted == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a text");
    for (const char *at = quoted; *at; at++)
        if (*at == '<')
            fputs("\\u003c", out);
        else
            fputc(*at, out);
    free(quoted);
    return MHLA_OK;
}

static mhla_status write_picture(FILE *out, const mhla_image *image) {
    uint8_t *bytes = NULL;
    size_t size = 0;
    MHLA_TRY(mhla_image_encode_png(&bytes, &size, image, NULL, 0));
    char *text = mhla_base64(bytes, size);
    free(bytes);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an image");
    fprintf(out, "\"data:image/png;base64,%s\"", text);
    free(text);
    return MHLA_OK;
}

static mhla_status write_model_maps(const page *p, int i, const budget *b) {
    FILE *out = p->out;
    const mhla_analysis *a = p->list[i];
    const int64_t T = shown_tokens(a), samples = b->samples < a->maps ? b->samples : a->maps;
    const int layers = at_most(b->layers, a->layers);
    const int grid[2] = {is_text(a) ? (int)T : a->grid[0], a->grid[1]}, frames = a->frames ? a->frames : 1;
    fprintf(out,
            "{\"T\":%lld,\"first\":%d,\"frames\":%d,\"across\":%d,\"grid\":[%d,%d],\"blocks\":[%d,%d],\"text\":%s,"
            "\"layers\":[",
            (long long)T, a->first, frames, mhla_frames_across(frames), grid[0], grid[1], a->blocks[0], a->blocks[1],
            is_text(a) ? "true" : "false");
    for (int k = 0; k < layers; k++) fprintf(out, "%s%d", k ? "," : "", layer_at(k, layers, a->layers));
    fprintf(out, "],\n\"%s\":[", is_text(a) ? "pieces" : "pictures");
    for (int64_t s = 0; s < samples; s++) {
        if (s) fputc(',', out);
        if (!is_text(a)) {
            MHLA_TRY(write_picture(out, &a->pictures[s]));
            continue;
        }
        for (int64_t t = 0; t < T; t++) {
            fputc(t ? ',' : '[', out);
            MHLA_TRY(write_string(out, a->pieces[s * a->T + t] ? a->pieces[s * a->T + t] : ""));
        }
        fputc(']', out);
    }
    fputs("],\n\"maps\":[", out);
    for (int64_t s = 0; s < samples; s++)
        for (int k = 0; k < layers; k++) {
            const int layer = layer_at(k, layers, a->layers), heads = at_most(b->heads, a->layer[layer].heads);
            fputs(k ? ",[" : s ? ",[[" : "[[", out);
            for (int h = 0; h < heads; h++) {
                if (h) fputs(",\n", out);
                MHLA_TRY(write_map(out, mhla_map_at(a, s, layer, h), a->T, T));
            }
            fputs(k == layers - 1 ? "]]" : "]", out);
        }
    fputs("]}", out);
    return MHLA_OK;
}

static void write_select(FILE *out, const char *id, const char *label, int count, const int *values,
                         char *const *names) {
    fprintf(out, "<label>%s <select id=\"choose-%s\">", label, id);
    for (int i = 0; i < count; i++) {
        fprintf(out, "<option value=\"%d\">", values ? values[i] : i);
        if (names && names[i])
            mhla_html_text(out, names[i]);
        else
            fprintf(out, "%d", values ? values[i] : i);
        fputs("</option>", out);
    }
    fputs("</select></label>\n", out);
}

static mhla_status write_controls(const page *p, const budget *b, const budget *all) {
    char *const *titles = NULL;
    int *layers = malloc((size_t)b->layers * sizeof *layers), text = 0, pictures = 0, class_token = 0;
    if (layers == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d layers", b->layers);
    for (int k = 0; k < b->layers; k++) layers[k] = layer_at(k, b->layers, all->layers);
    for (int i = 0; i < p->count; i++) {
        text |= is_text(p->list[i]);
        pictures |= !is_text(p->list[i]);
        class_token |= p->list[i]->first;
        if (shown_maps(p->list[i]) && p->list[i]->maps == all->samples) titles = p->list[i]->titles;
    }
    FILE *out = p->out;
    fprintf(
        out,
        "<p>Point at a %s, or select a map with the Tab key and use the arrow keys. Bright is what it attends to, in "
        "all models at once. <kbd>PageUp</kbd> <kbd>PageDown</kbd> change the layer, <kbd>+</kbd> <kbd>-</kbd> the "
        "head, <kbd>n</kbd> <kbd>p</kbd> the sample%s. Weights are shares of their row, to 1/255 of the "
        "largest; negative ones are shown as 0.</p>\n<div class=\"controls\">\n",
        text && pictures ? "patch or token"
        : text           ? "token"
                         : "patch",
        class_token ? ", <kbd>c</kbd> asks the class token" : "");
    write_select(out, "sample", text && !pictures ? "text" : "image", (int)b->samples, NULL, titles);
    write_select(out, "layer", "layer", b->layers, layers, NULL);
    write_select(out, "head", "head", b->heads, NULL, NULL);
    fprintf(out,
            "<label%s><input type=\"checkbox\" id=\"choose-under\" checked> the image under the map</label>\n"
            "<label><input type=\"checkbox\" id=\"choose-same\"> one scale for all models</label>\n"
            "<span class=\"small\">0 <span class=\"ramp\"></span> largest weight</span>\n</div>\n",
            pictures ? "" : " hidden");
    free(layers);
    return MHLA_OK;
}

static mhla_status write_maps(const page *p) {
    FILE *out = p->out;
    const budget b = find_budget(p), all = all_maps(p);
    int text = 0;
    fputs("<section id=\"look\"><h2>What a token attends to</h2>\n", out);
    if (b.layers == 0) {
        fputs(
            "<p class=\"remark\">No maps: no sample kept one, only some rows were formed, or they are too large for a "
            "page.</p>\n<script type=\"application/json\" id=\"maps\">{\"models\":[]}</script>\n</section>\n",
            out);
        return MHLA_OK;
    }
    MHLA_TRY(write_controls(p, &b, &all));
    fputs("<noscript><p class=\"remark\">The maps need JavaScript.</p></noscript>\n", out);
    for (int i = 0; i < p->count; i++) text |= is_text(p->list[i]);
    fprintf(out, "<div class=\"looks%s\">\n", text ? " texts" : "");
    for (int i = 0, k = 0; i < p->count; i++) {
        if (!shown_maps(p->list[i])) continue;
        fprintf(out, "<figure class=\"look\" id=\"look-%d\"><figcaption>", k);
        write_name(p, i);
        fprintf(out,
                " <span class=\"small\">%s, <span class=\"where\"></span></span></figcaption>\n<%s class=\"face\" "
                "tabindex=\"0\" role=\"img\" aria-describedby=\"note-%d\" aria-label=\"What a token attends to in ",
                mhla_attention_title(p->list[i]->attention),
                is_text(p->list[i]) ? "div" : "canvas width=\"384\" height=\"384\"", k);
        mhla_html_text(out, p->names[i]);
        fprintf(out,
                "; the arrow keys move the token\"></%s>\n<p class=\"note small\" id=\"note-%d\"%s></p></figure>\n",
                is_text(p->list[i]) ? "div" : "canvas", k, k == 0 ? " aria-live=\"polite\"" : "");
        k++;
    }
    fputs("</div>\n", out);
    if (b.layers < all.layers || b.heads < all.heads || b.samples < all.samples)
        fprintf(
            out,
            "<p class=\"small\">So that the page stays small it has %lld %s, %d of %d layers, %d of %d heads.</p>\n",
            (long long)b.samples, b.samples == 1 ? "sample" : "samples", b.layers, all.layers, b.heads, all.heads);
    for (int i = 0; i < p->count; i++)
        if (shown_maps(p->list[i]) && shown_tokens(p->list[i]) < p->list[i]->T) {
            fprintf(out, "<p class=\"small\">The first %lld tokens of %lld; they see no others.</p>\n",
                    (long long)shown_tokens(p->list[i]), (long long)p->list[i]->T);
            break;
        }
    fputs("<script type=\"application/json\" id=\"maps\">{\"models\":[", out);
    for (int i = 0, k = 0; i < p->count; i++) {
        if (!shown_maps(p->list[i])) continue;
        if (k++) fputs(",\n", out);
        MHLA_TRY(write_model_maps(p, i, &b));
    }
    fputs("]}</script>\n</section>\n", out);
    return MHLA_OK;
}

/* ---- All figures ---------------------------------------------------------------------------------------------------------------- */

static void write_numbers(const page *p) {
    FILE *out = p->out;
    fputs("<section id=\"numbers\"><h2>Every head</h2>\n", out);
    for (int i = 0; i < p->count; i++) {
        const mhla_analysis *a = p->list[i];
        fputs("<details><summary>", out);
        write_name(p, i);
        fputs(
            "</summary><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of every head\"><table "
            "class=\"numbers small\"><thead><tr><th scope=\"col\">layer, head</th><th scope=\"col\">rank</th><th "
            "scope=\"col\">at most</th><th scope=\"col\">effective rank</th><th scope=\"col\">entropy</th><th "
            "scope=\"col\">negative</th><th scope=\"col\">dead rows</th><th scope=\"col\">own</th><th "
            "scope=\"col\">near</th><th scope=\"col\">far</th><th scope=\"col\">distance</th></tr></thead><tbody>\n",
            out);
        for (int l = 0; l < a->layers; l++)
            for (int h = 0; h < a->layer[l].heads; h++) {
                mhla_head_analysis x = {.size = sizeof x};
                (void)mhla_analysis_head(a, l, h, &x);
                fprintf(out, "<tr><th scope=\"row\">%d, %d</th>", l, h);
                if (isfinite(x.rank))
                    fprintf(out, "<td>%.1f &#177; %.1f</td>", x.rank, x.rank_deviation);
                else
                    fputs("<td>-</td>", out);
                fprintf(out, "<td>%lld</td>", (long long)x.bound);
                if (isfinite(x.effective_rank))
                    fprintf(out, "<td>%.2f &#177; %.2f</td>", x.effective_rank, x.effective_rank_deviation);
                else
                    fputs("<td>-</td>", out);
                fprintf(out, "<td>%.3f &#177; %.3f</td>", x.entropy, x.entropy_deviation);
                const double shares[] = {x.clipped, x.dead, x.own, x.near, x.far};
                for (int k = 0; k < 5; k++) cell(out, 100.0 * shares[k], "%.1f&nbsp;%%");
                cell(out, x.distance, "%.2f");
                fputs("</tr>\n", out);
            }
        fputs("</tbody></table></div></details>\n", out);
    }
    fputs("</section>\n", out);
}

static const char how[] =
    "<section id=\"how\"><h2>How it is measured</h2>\n"
    "<p>The attention of a layer and head is computed as the matrix A that the model uses: A times the values v is "
    "the output of the attention, before convolutions, gates and projections. A is computed and decomposed in double "
    "precision.</p>\n"
    "<p><b>Rank</b>: singular values above max(rows, columns) &#183; 2<sup>-52</sup> times the largest. <b>At "
    "most</b>: "
    "softmax the number of tokens T; linear attention (and Focused LA, RALA) the size K of a head's keys, however many "
    "tokens there are; InLine and MALA K + 1; MHLA min(T, sum over blocks of min(tokens of the block, K)).<br>"
    "<b>Effective rank</b>: exp of the entropy of the singular values over their sum: how many directions matter.<br>"
    "<b>Entropy</b> of a row, made to sum to 1: 0 where all weight is on one token, ln T where it is even. Negative "
    "weights "
    "count as 0 there; <b>negative weight</b> is their share of all absolute weight. Rows without any weight are dead "
    "and "
    "count for no mean.<br>"
    "<b>Own, near, far</b>: shares of weight on the query's block, on the blocks around it (centres up to 1.5 blocks "
    "away), on "
    "all others. <b>Distance</b>: mean distance of what is attended to, in patches or tokens.</p></section>\n";

static void write_head(const page *p) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>mhla: attention of ",
          p->out);
    for (int i = 0; i < p->count; i++) {
        if (i) fputs(", ", p->out);
        mhla_html_text(p->out, p->names[i]);
    }
    fprintf(p->out, "</title>\n<style>\n%s%s%s</style>\n</head>\n<body>\n<header><h1>Attention inside models: ",
            mhla_palette_css, mhla_report_css, mhla_page_css);
    for (int i = 0; i < p->count; i++) {
        if (i) fputs(", ", p->out);
        mhla_html_text(p->out, p->names[i]);
    }
    fputs("</h1></header>\n<main>\n", p->out);
}

mhla_status mhla_analysis_page(FILE *out, const mhla_analysis *const *list, const char *const *names, int count) {
    page p = {.out = out, .list = list, .names = names, .count = count};
    const char *attentions[MOST_MODELS];
    if (count > MOST_MODELS) return mhla_fail(MHLA_EINVAL, "%d models: a page shows %d at most", count, MOST_MODELS);
    for (int i = 0; i < count; i++) attentions[i] = list[i]->attention;
    mhla_attention_colours(p.colours, attentions, count);
    write_head(&p);
    write_summary(&p);
    MHLA_TRY(write_maps(&p));
    MHLA_TRY(write_charts(&p));
    MHLA_TRY(write_mixing(&p));
    write_numbers(&p);
    fputs(how, out);
    fprintf(out, "</main>\n<footer class=\"small\">mhla %s</footer>\n<script>\n%s%s</script>\n</body>\n</html>\n",
            mhla_version(), mhla_report_js, mhla_page_js);
    return MHLA_OK;
}
