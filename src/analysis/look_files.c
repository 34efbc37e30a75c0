/* An analysis as files: JSON with all figures, CSV with a line per layer and head, a page. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/look.h"
#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/text.h"

/* For free. Names of files may hold any bytes, a text may not: what is no UTF-8 becomes U+FFFD. NULL: no memory. */
static char *clean(const char *text) {
    size_t left = strlen(text);
    char *whole = malloc(3 * left + 1), *to = whole;
    for (int n; whole && left; text += n, left -= (size_t)n) {
        const int length = mhla_utf8_length((const unsigned char *)text, left);
        n = length ? length : 1;
        memcpy(to, length ? text : "\xef\xbf\xbd", (size_t)(length ? length : 3));
        to += length ? length : 3;
    }
    if (whole) *to = '\0';
    return whole;
}

/* ---- JSON: what is lost without memory is counted, and nothing is written then ---- */

static json_t *ints(const int *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) mhla_json_add(list, json_integer(x[i]));
    return list;
}

static json_t *square(const float *x, int64_t M) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < M; i++) {
        json_t *row = json_array();
        for (int64_t b = 0; b < M; b++) mhla_json_add(row, mhla_json_float(x[i * M + b]));
        mhla_json_add(rows, row);
    }
    return rows;
}

static json_t *words(const char *text) {
    char *whole = clean(text);
    json_t *string = whole ? json_string(whole) : NULL;
    free(whole);
    return string;
}

typedef struct figure {
    const char *name;
    size_t at;
} figure;

static const figure figures[] = {
    {"rank", offsetof(mhla_head_analysis, rank)},
    {"rank_deviation", offsetof(mhla_head_analysis, rank_deviation)},
    {"effective_rank", offsetof(mhla_head_analysis, effective_rank)},
    {"effective_rank_deviation", offsetof(mhla_head_analysis, effective_rank_deviation)},
    {"entropy", offsetof(mhla_head_analysis, entropy)},
    {"entropy_deviation", offsetof(mhla_head_analysis, entropy_deviation)},
    {"clipped", offsetof(mhla_head_analysis, clipped)},
    {"dead", offsetof(mhla_head_analysis, dead)},
    {"own", offsetof(mhla_head_analysis, own)},
    {"near", offsetof(mhla_head_analysis, near)},
    {"far", offsetof(mhla_head_analysis, far)},
    {"distance", offsetof(mhla_head_analysis, distance)},
};
enum { FIGURES = sizeof figures / sizeof *figures };

static double figure_of(const mhla_head_analysis *x, int i) {
    double value;
    memcpy(&value, (const char *)x + figures[i].at, sizeof value);
    return value;
}

static json_t *heads_of(const mhla_analysis *a) {
    json_t *list = json_array();
    for (int layer = 0; layer < a->layers; layer++)
        for (int head = 0; head < a->layer[layer].heads; head++) {
            mhla_head_analysis x = {.size = sizeof x};
            if (mhla_analysis_head(a, layer, head, &x) != MHLA_OK) continue;
            json_t *row = json_object();
            mhla_json_put(row, "layer", json_integer(layer));
            mhla_json_put(row, "head", json_integer(head));
            mhla_json_put(row, "attention", json_string(x.attention));
            mhla_json_put(row, "bound", json_integer(x.bound));
            for (int i = 0; i < FIGURES; i++) mhla_json_put(row, figures[i].name, mhla_json_real(figure_of(&x, i)));
            mhla_json_add(list, row);
        }
    return list;
}

static json_t *shares(const mhla_mix_analysis *x, int which) {
    json_t *row = json_object();
    mhla_json_put(row, "own", mhla_json_real(x->own[which]));
    mhla_json_put(row, "near", mhla_json_real(x->near[which]));
    mhla_json_put(row, "far", mhla_json_real(x->far[which]));
    return row;
}

/* What a matrix of clips says of frames, of rows and of columns alone. */
static json_t *along(const mhla_mix_analysis *x, const float *m) {
    static const char *const names[MHLA_MIX_AXES] = {"frames", "rows", "columns"};
    json_t *o = json_object();
    for (int axis = 0; axis < MHLA_MIX_AXES; axis++) {
        const int n = mhla_mix_places(x, axis);
        float *share = malloc((size_t)n * (size_t)n * sizeof *share);
        if (share) mhla_mix_along(share, m, x, axis);
        mhla_json_put(o, names[axis], share ? square(share, n) : NULL);
        free(share);
    }
    return o;
}

static json_t *mixing_of(const mhla_analysis *a) {
    json_t *list = json_array();
    for (int layer = 0; layer < a->layers; layer++) {
        const mhla_mix_analysis *x = &a->layer[layer].mix;
        if (x->blocks == 0) continue;
        json_t *row = json_object();
        mhla_json_put(row, "layer", json_integer(layer));
        mhla_json_put(row, "blocks", json_integer(x->blocks));
        if (x->frames) mhla_json_put(row, "frames", json_integer(x->frames));
        mhla_json_put(row, "grid", ints(x->grid, 2));
        if (x->frames) {
            mhla_json_put(row, "along_before", along(x, x->before));
            mhla_json_put(row, "along_after", along(x, x->after));
        }
        mhla_json_put(row, "class_token_blocks", json_integer(x->first));
        mhla_json_put(row, "shares_before", shares(x, 0));
        mhla_json_put(row, "shares_after", shares(x, 1));
        mhla_json_put(row, "before", square(x->before, x->blocks));
        mhla_json_put(row, "after", square(x->after, x->blocks));
        mhla_json_add(list, row);
    }
    return list;
}

/* Rows of A, as the model has them; of tokens that were asked for and are among the rows. */
static json_t *maps_of(const mhla_analysis *a) {
    json_t *list = json_array();
    float *w = malloc((size_t)a->T * sizeof *w);
    for (int64_t s = 0; w && s < a->maps; s++)
        for (int layer = 0; layer < a->layers; layer++)
            for (int head = 0; head < a->layer[layer].heads; head++)
                for (int i = 0; i < a->token_count; i++) {
                    if (mhla_analysis_map(a, w, s, layer, head, a->tokens[i]) != MHLA_OK) continue;
                    json_t *row = json_object(), *weights = json_array();
                    mhla_json_put(row, "sample", json_integer(s));
                    mhla_json_put(row, "layer", json_integer(layer));
                    mhla_json_put(row, "head", json_integer(head));
                    mhla_json_put(row, "token", json_integer(a->tokens[i]));
                    for (int64_t u = 0; u < a->T; u++) mhla_json_add(weights, mhla_json_float(w[u]));
                    mhla_json_put(row, "weights", weights);
                    mhla_json_add(list, row);
                }
    free(w);
    return list;
}

static json_t *model_of(const mhla_analysis *a, const char *name) {
    json_t *o = json_object();
    mhla_json_put(o, "name", words(name));
    mhla_json_put(o, "model", json_string(a->model));
    mhla_json_put(o, "kind", json_string(a->kind));
    mhla_json_put(o, "attention", json_string(a->attention));
    mhla_json_put(o, "data", words(a->data));
    mhla_json_put(o, "layers", json_integer(a->layers));
    mhla_json_put(o, "heads", json_integer(a->heads));
    mhla_json_put(o, "tokens", json_integer(a->T));
    mhla_json_put(o, "rows", json_integer(a->rows));
    if (a->frames) mhla_json_put(o, "frames", json_integer(a->frames));
    if (a->frames) mhla_json_put(o, "frame_blocks", json_integer(a->frame_blocks));
    mhla_json_put(o, "grid", ints(a->grid, 2));
    mhla_json_put(o, "class_tokens", json_integer(a->first));
    mhla_json_put(o, "blocks", ints(a->blocks, 2));
    if (a->chunk) mhla_json_put(o, "chunk", json_integer(a->chunk));
    mhla_json_put(o, "samples", json_integer(a->samples));
    mhla_json_put(o, "rank_samples", json_integer(a->rank_samples));
    mhla_json_put(o, "rank_of",
                  json_string(a->layer[0].causal ? "scores without the causal mask" : "the attention matrix"));
    mhla_json_put(o, "seconds", mhla_json_real(a->seconds));
    mhla_json_put(o, "svd_seconds", mhla_json_real(a->svd_seconds));
    if (a->text) {
        json_t *list = json_array();
        for (int64_t t = 0; t < a->T; t++) mhla_json_add(list, mhla_json_real(a->position[t]));
        mhla_json_put(o, "loss", mhla_json_real(a->loss));
        mhla_json_put(o, "loss_by_position", list);
    }
    mhla_json_put(o, "by_head", heads_of(a));
    mhla_json_put(o, "mixing", mixing_of(a));
    if (a->token_count) mhla_json_put(o, "maps", maps_of(a));
    return o;
}

static mhla_status write_json(const char *path, const mhla_analysis *const *list, const char *const *names, int count) {
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *models = json_array();
    for (int i = 0; i < count; i++) mhla_json_add(models, model_of(list[i], names[i]));
    mhla_json_put(tree, "version", json_string(mhla_version()));
    mhla_json_put(tree, "models", models);
    const mhla_status status = mhla_json_lost() == lost
                                   ? mhla_json_save(tree, path)
                                   : mhla_fail(MHLA_ENOMEM, "%s: no memory: nothing is written", path);
    json_decref(tree);
    return status;
}

/* ---- CSV ---- */

static void csv_text(FILE *out, const char *text) {
    char *whole = clean(text);
    const int quoted = whole && strpbrk(whole, ",\"\r\n") != NULL;
    if (quoted) fputc('"', out);
    for (const char *at = whole; at && *at; at++) {
        if (*at == '"') fputc('"', out);
        if ((unsigned char)*at < 0x20 || *at == 0x7f) /* tables are looked at on terminals */
            fputs("\xEF\xBF\xBD", out);
        else
            fputc(*at, out);
    }
    if (quoted) fputc('"', out);
    free(whole);
}

static void write_csv(FILE *out, const mhla_analysis *const *list, const char *const *names, int count) {
    fputs("name,model,attention,tokens,samples,rank_samples,layer,head,bound", out);
    for (int i = 0; i < FIGURES; i++) fprintf(out, ",%s", figures[i].name);
    fputc('\n', out);
    for (int k = 0; k < count; k++) {
        const mhla_analysis *a = list[k];
        for (int layer = 0; layer < a->layers; layer++)
            for (int head = 0; head < a->layer[layer].heads; head++) {
                mhla_head_analysis x = {.size = sizeof x};
                if (mhla_analysis_head(a, layer, head, &x) != MHLA_OK) continue;
                csv_text(out, names[k]);
                fputc(',', out);
                csv_text(out, a->model);
                fprintf(out, ",%s,%lld,%lld,%lld,%d,%d,%lld", x.attention, (long long)a->T, (long long)a->samples,
                        (long long)a->rank_samples, layer, head, (long long)x.bound);
                for (int i = 0; i < FIGURES; i++) {
                    const double value = figure_of(&x, i);
                    fputc(',', out);
                    if (isfinite(value)) fprintf(out, "%.9g", value);
                }
                fputc('\n', out);
            }
    }
}

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

mhla_status mhla_analysis_write(const char *path, const mhla_analysis *const *analyses, const char *const *names,
                                int count) {
    if (path == NULL || analyses == NULL || names == NULL || count < 1)
        return mhla_fail(MHLA_EINVAL, "%s",
                         path == NULL       ? "path is NULL"
                         : analyses == NULL ? "analyses is NULL"
                         : names == NULL    ? "names is NULL"
                                            : "count is not positive");
    if (ends_with(path, ".json")) return write_json(path, analyses, names, count);
    const int page = ends_with(path, ".html");
    if (!page && !ends_with(path, ".csv"))
        return mhla_fail(MHLA_EINVAL, "%s: the name ends with none of .json, .csv, .html", path);
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    mhla_status status = MHLA_OK;
    if (page)
        status = mhla_analysis_page(w.stream, analyses, names, count);
    else
        write_csv(w.stream, analyses, names, count);
    if (status == MHLA_OK) return mhla_writer_commit(&w);
    mhla_writer_discard(&w);
    return status;
}
