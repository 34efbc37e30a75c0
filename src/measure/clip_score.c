/* The CLIP score: how well images fit the texts they were made for, 100 times the cosine of the vectors that a model makes of both. One
 * image and one text at a time, so that a pair's score depends on nothing else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/file.h"
#include "image/resize.h"
#include "measure/measure.h"
#include "models/model.h"

typedef struct job {
    mhla_clip_desc d;
    mhla_model *model;
    mhla_comparer_info info;
    mhla_tokenizer *tokenizer;
    mhla_gallery *images;
    mhla_file prompts;
    int64_t lines;
    float *pixels; /* [3,side,side] */
    int32_t *ids;  /* [tokens] */
    double *text;  /* [dims] */
} job;

/* ---- Prompts: a line for each image ---- */

/* Line i, from 0 on; NULL: there are no more. */
static const char *line_at(const job *j, int64_t i, size_t *bytes) {
    const char *at = (const char *)j->prompts.data, *end = at + j->prompts.size;
    for (; at < end; i--) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        if (i == 0) {
            *bytes = (size_t)(stop - at);
            if (*bytes > 0 && at[*bytes - 1] == '\r') --*bytes;
            return at;
        }
        at = stop < end ? stop + 1 : end;
    }
    return NULL;
}

/* The ids of a prompt, as many as the model takes, padded with zeros; more are cut, but for the last, which ends the text. */
static mhla_status read_prompt(job *j, int64_t i, int64_t *cut) {
    size_t bytes = 0;
    mhla_ids ids = {0};
    const char *line = line_at(j, i, &bytes);
    mhla_status status =
        mhla_tokenizer_encode(j->tokenizer, &ids, line, bytes, MHLA_ENCODE_SPECIAL | MHLA_ENCODE_PLAIN);
    if (status != MHLA_OK)
        status = mhla_fail(status, "%s: line %lld: %s", j->d.prompts, (long long)i + 1, mhla_message());
    const int64_t most = j->info.tokens, n = ids.count < most ? ids.count : most;
    memset(j->ids, 0, (size_t)most * sizeof *j->ids);
    if (status == MHLA_OK && n == 0)
        status = mhla_fail(MHLA_EINVAL, "%s: line %lld has no tokens", j->d.prompts, (long long)i + 1);
    for (int64_t k = 0; k < n && status == MHLA_OK; k++) {
        j->ids[k] = k + 1 == n ? ids.data[ids.count - 1] : ids.data[k];
        if (j->ids[k] < 0 || j->ids[k] >= j->info.vocabulary)
            status = mhla_fail(MHLA_EINVAL, "%s: line %lld has token %d, the model has %d: it is not its tokenizer",
                               j->d.prompts, (long long)i + 1, j->ids[k], j->info.vocabulary);
    }
    *cut += ids.count > most;
    mhla_ids_free(&ids);
    return status;
}

/* ---- Images ---- */

/* The shorter side becomes the model's, then the centre of it. Rows before columns, as all versions of Pillow did when these models were
 * made. */
static mhla_status prepare(float *pixels, const mhla_image *image, const mhla_comparer_info *info) {
    const int side = info->side, W = image->width, H = image->height, least = W < H ? W : H;
    const int width = (int)((int64_t)W * side / least), height = (int)((int64_t)H * side / least);
    mhla_image narrow = {0}, small = {0};
    mhla_status status = mhla_image_resize(&narrow, image, width, H, MHLA_FILTER_BICUBIC, NULL);
    if (status == MHLA_OK) status = mhla_image_resize(&small, &narrow, width, height, MHLA_FILTER_BICUBIC, NULL);
    mhla_image_free(&narrow);
    if (status != MHLA_OK) {
        mhla_image_free(&small);
        return status;
    }
    const int left = (int)lrint((width - side) / 2.0), top = (int)lrint((height - side) / 2.0); /* half to even */
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < side; y++)
            for (int x = 0; x < side; x++) {
                const size_t at = ((size_t)(top + y) * (size_t)width + (size_t)(left + x)) * (size_t)small.channels;
                const double v = (double)small.data[at + (small.channels == 3 ? (size_t)c : 0)] / 255.0;
                pixels[(c * side + y) * side + x] = (float)((v - info->mean[c]) / info->deviation[c]);
            }
    mhla_image_free(&small);
    return MHLA_OK;
}

/* ---- Scores ---- */

static double length_of(const mhla_tensor *x) {
    double squares = 0.0;
    for (int64_t i = 0; i < x->cols; i++) squares += (double)x->data[i] * (double)x->data[i];
    return sqrt(squares);
}

static mhla_status score_pair(job *j, int64_t i, double *score, int64_t *cut) {
    mhla_model *m = j->model;
    mhla_image image = {0};
    int label;
    mhla_status status = mhla_gallery_get(j->images, i, &image, &label);
    if (status == MHLA_OK) status = prepare(j->pixels, &image, &j->info);
    mhla_image_free(&image);
    MHLA_TRY(status);
    MHLA_TRY(read_prompt(j, mhla_gallery_index(j->images, i), cut));
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
    const mhla_tensor *x = mhla_comparer_texts(m->tape, m, j->ids, 1);
    MHLA_TRY(mhla_tape_status(m->tape));
    const double text = length_of(x);
    for (int64_t k = 0; k < x->cols; k++) j->text[k] = (double)x->data[k] / text;
    mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
    mhla_tensor *pixels = mhla_nn_input(m->tape, j->pixels, MHLA_SHAPE(1, 3, j->info.side, j->info.side));
    x = mhla_comparer_images(m->tape, m, pixels);
    MHLA_TRY(mhla_tape_status(m->tape));
    const double length = length_of(x);
    double cosine = 0.0;
    for (int64_t k = 0; k < x->cols; k++) cosine += j->text[k] * (double)x->data[k] / length;
    *score = 100.0 * cosine;
    if (isfinite(*score)) return MHLA_OK;
    return mhla_fail(MHLA_ERANGE, "%s: the score of image %lld is not finite", j->d.images, (long long)i + 1);
}

static mhla_status open_all(job *j) {
    char folder[4096];
    MHLA_TRY(mhla_model_open(&j->model, j->d.model));
    MHLA_TRY(mhla_comparer_query(j->model, &j->info));
    const char *weights = j->model->weights ? j->model->weights : j->d.model, *slash = strrchr(weights, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - weights) : 1, slash ? weights : ".");
    if (j->model->origin) snprintf(folder, sizeof folder, "%s", j->model->origin);
    MHLA_TRY(mhla_tokenizer_open(&j->tokenizer, j->d.tokenizer ? j->d.tokenizer : folder));
    MHLA_TRY(mhla_gallery_open(&j->images, j->d.images, NULL, j->d.limit));
    MHLA_TRY(mhla_file_map(&j->prompts, j->d.prompts));
    const char *data = (const char *)j->prompts.data;
    for (size_t i = 0; i < j->prompts.size; i++) j->lines += data[i] == '\n' || i + 1 == j->prompts.size;
    if (j->lines != mhla_gallery_all(j->images))
        return mhla_fail(MHLA_EINVAL, "%s has %lld lines, %s %lld images: expected one line for each", j->d.prompts,
                         (long long)j->lines, j->d.images, (long long)mhla_gallery_all(j->images));
    j->pixels = mhla_alloc(sizeof(float) * 3 * (size_t)j->info.side * (size_t)j->info.side);
    j->ids = mhla_alloc(sizeof *j->ids * (size_t)j->info.tokens);
    j->text = mhla_alloc(sizeof *j->text * (size_t)j->info.dims);
    return j->pixels && j->ids && j->text ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for images and texts");
}

static mhla_status run(job *j, mhla_clip_scores *r) {
    MHLA_TRY(open_all(j));
    const int64_t n = mhla_gallery_count(j->images);
    double sum = 0.0, squares = 0.0, score = 0.0;
    for (int64_t i = 0; i < n; i++) {
        MHLA_TRY(score_pair(j, i, &score, &r->cut));
        if (j->d.scores) j->d.scores[i] = (float)score;
        sum += score;
        squares += score * score;
        if (j->d.progress) j->d.progress(j->d.user, i + 1, n);
    }
    mhla_model_info info = {.size = sizeof info};
    MHLA_TRY(mhla_model_query(j->model, &info));
    snprintf(r->model, sizeof r->model, "%.40s, %s", info.name, j->d.model);
    r->pairs = n;
    r->side = j->info.side;
    r->score = sum / (double)n;
    r->error = n > 1 ? sqrt(fmax(squares / (double)n - r->score * r->score, 0.0) / (double)(n - 1)) : NAN;
    return MHLA_OK;
}

mhla_status mhla_clip_score(mhla_clip_scores *result, const mhla_clip_desc *desc) {
    job j = {0};
    mhla_clip_scores r = {.size = sizeof r};
    MHLA_TRY(mhla_struct_in(&j.d, sizeof j.d, desc, "mhla_clip_desc"));
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_clip_scores"));
    if (!j.d.model || !j.d.images || !j.d.prompts || j.d.limit < 0)
        return mhla_fail(MHLA_EINVAL, "%s",
                         !j.d.model     ? "model is NULL"
                         : !j.d.images  ? "images is NULL"
                         : !j.d.prompts ? "prompts is NULL"
                                        : "limit is negative");
    mhla_status status = run(&j, &r);
    if (status == MHLA_OK) status = mhla_struct_out(result, &r, sizeof r, "mhla_clip_scores");
    mhla_free(j.pixels);
    mhla_free(j.ids);
    mhla_free(j.text);
    mhla_file_unmap(&j.prompts);
    mhla_gallery_free(j.images);
    mhla_tokenizer_free(j.tokenizer);
    mhla_model_free(j.model);
    return status;
}
