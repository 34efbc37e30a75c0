/* What a model is looked at with: pictures for classifiers and diffusion models, windows of text for language models, evenly
 * spread over what there is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "analysis/look.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/status.h"
#include "data/corpus.h"
#include "diffusion/diffusion.h"
#include "file/text.h"
#include "measure/evaluate.h"
#include "measure/measure.h"

enum { BATCH = 64, BYTES_OF_TOKEN = 16, TITLE = 64 };

struct mhla_inputs {
    mhla_model *model;
    int64_t count;
    /* pictures */
    mhla_gallery *pictures;
    mhla_augment augment;
    mhla_noising *noising;
    mhla_denoiser_info denoiser;
    double time;
    int padding[2];
    float *x;       /* [BATCH, floats] */
    int64_t floats; /* of a picture */
    int labels[BATCH];
    mhla_status status[BATCH];
    char messages[BATCH][300];
    /* text */
    mhla_file text;
    const mhla_tokenizer *tokenizer; /* NULL: bytes */
    int32_t bos;                     /* -1: none */
    int vocabulary;
    int32_t *ids, *targets; /* [BATCH, T] */
    float *losses;          /* [BATCH, T] */
};

/* ---- Opening ---------------------------------------------------------------------------------------------------------- */

static mhla_status open_pictures(mhla_inputs *in, const mhla_analysis_desc *d, const char *source) {
    mhla_model *m = in->model;
    mhla_classifier_info classifier = {0};
    const int denoises = m->architecture->denoiser != NULL;
    MHLA_TRY(denoises ? mhla_denoiser_query(m, &in->denoiser) : mhla_classifier_query(m, &classifier));
    if (in->denoiser.channels > 3)
        return mhla_fail(MHLA_ENOTSUP, "the model works on latents of %d channels, and images are not latents",
                         in->denoiser.channels);
    in->augment = mhla_model_augment(m);
    MHLA_TRY(mhla_augment_prepare(&in->augment));
    const mhla_extent *clip = &in->denoiser.extent;
    MHLA_TRY(clip->frames ? mhla_gallery_open_clips(&in->pictures, source, d->split, d->samples, *clip)
                          : mhla_gallery_open(&in->pictures, source, d->split, d->samples));
    in->count = mhla_gallery_count(in->pictures);
    if (in->count == 0) return mhla_fail(MHLA_EDATA, "%s: no image in it", source);
    in->floats = (int64_t)in->augment.channels * in->augment.height * in->augment.width;
    in->x = mhla_alloc((size_t)(BATCH * in->floats) * sizeof *in->x);
    if (in->x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for images");
    for (int i = 0; i < 2; i++) in->padding[i] = classifier.padding[i];
    if (!denoises) return MHLA_OK;
    in->time = d->time > 0.0 ? fmin(d->time, 999.0) : 500.0;
    return mhla_noising_create(&in->noising, in->denoiser.process, in->denoiser.answers > in->denoiser.channels, 0,
                               0.0);
}

static mhla_status open_text(mhla_inputs *in, const mhla_analysis_desc *d, const char *source, int64_t T) {
    char folder[MHLA_RUN_PATH], path[MHLA_RUN_PATH];
    struct stat info;
    mhla_lm_info lm = {.size = sizeof lm};
    const char *file = source;
    MHLA_TRY(mhla_lm_query(in->model, &lm));
    if (stat(source, &info) != 0 || S_ISDIR(info.st_mode)) {
        MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
        if (!mhla_corpus_part(path, sizeof path, folder, "validation"))
            return mhla_fail(MHLA_EIO, "%s: no validation.txt in it; name a file of text", folder);
        file = path;
    }
    MHLA_TRY(mhla_file_map(&in->text, file));
    const size_t broken = mhla_utf8_broken(in->text.data, in->text.size);
    if (in->text.size < 2 || broken < in->text.size)
        return mhla_fail(MHLA_EDATA, "%s: %s", file,
                         in->text.size < 2 ? "no text" : "not UTF-8: text is needed, not shards or images");
    in->tokenizer = in->model->origin ? mhla_lm_tokenizer(in->model) : NULL;
    if (in->tokenizer == NULL && in->model->origin) return MHLA_EINVAL; /* with its message */
    in->bos = in->tokenizer ? lm.bos : -1;
    in->vocabulary = lm.vocabulary;
    if (in->tokenizer == NULL && lm.vocabulary < 256)
        return mhla_fail(MHLA_EINVAL, "a fresh model reads bytes: its vocabulary of %d is too small", lm.vocabulary);
    in->count = d->samples;
    const size_t cells = (size_t)(BATCH * T);
    in->ids = mhla_alloc(cells * sizeof *in->ids);
    in->targets = mhla_alloc(cells * sizeof *in->targets);
    in->losses = mhla_alloc(cells * sizeof *in->losses);
    if (!in->ids || !in->targets || !in->losses)
        return mhla_fail(MHLA_ENOMEM, "no memory for windows of %lld tokens", (long long)T);
    return MHLA_OK;
}

mhla_status mhla_inputs_open(mhla_inputs **inputs, mhla_model *model, const mhla_analysis_desc *d, mhla_analysis *a) {
    char source[MHLA_RUN_PATH];
    *inputs = NULL;
    const char *data = d->data;
    if (data == NULL) {
        MHLA_TRY(mhla_data_of_run(source, sizeof source, model));
        data = source;
    }
    snprintf(a->data, sizeof a->data, "%.255s", data);
    mhla_inputs *in = calloc(1, sizeof *in);
    if (in == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for samples");
    in->model = model;
    const mhla_status status = a->text ? open_text(in, d, data, a->T) : open_pictures(in, d, data);
    if (status != MHLA_OK) {
        mhla_inputs_free(in);
        return status;
    }
    *inputs = in;
    return MHLA_OK;
}

void mhla_inputs_free(mhla_inputs *in) {
    if (in == NULL) return;
    mhla_gallery_free(in->pictures);
    mhla_noising_free(in->noising);
    mhla_free(in->x);
    mhla_file_unmap(&in->text);
    mhla_free(in->ids);
    mhla_free(in->targets);
    mhla_free(in->losses);
    free(in);
}

int64_t mhla_inputs_count(const mhla_inputs *in) { return in->count; }

/* ---- Pictures ------------------------------------------------------------------------------------------------------------ */

typedef struct reading {
    mhla_inputs *in;
    int64_t first;
} reading;

static void read_task(void *arg, int64_t i, int worker) {
    const reading *r = arg;
    mhla_inputs *in = r->in;
    (void)worker;
    mhla_image image = {0};
    mhla_augment_scratch scratch = {0};
    mhla_status status = mhla_gallery_get(in->pictures, r->first + i, &image, &in->labels[i]);
    if (status == MHLA_OK) status = mhla_augment_apply(in->x + i * in->floats, &image, &in->augment, &scratch, 0, 0, 0);
    in->status[i] = status;
    if (status != MHLA_OK) snprintf(in->messages[i], sizeof in->messages[i], "%s", mhla_message());
    mhla_augment_scratch_free(&scratch);
    mhla_image_free(&image);
}

/* Frames beside each other on a page, out of all of them: as many rows of them as fill a square, or nearly. */
int mhla_frames_across(int frames) {
    int across = 1;
    while (across * across < frames || frames % across) across++;
    return across;
}

/* The frames of a clip, which lie one below the other, in rows of `across`. */
static mhla_status lay_out(mhla_image *image, int frames, int across) {
    mhla_image wide = {0};
    const int height = image->height / frames, width = image->width, C = image->channels;
    MHLA_TRY(mhla_image_reserve(&wide, across * width, frames / across * height, C));
    for (int y = 0; y < image->height; y++) {
        const int f = y / height, row = f / across * height + y % height;
        memcpy(wide.data + ((size_t)row * (size_t)wide.width + (size_t)(f % across * width)) * (size_t)C,
               image->data + (size_t)y * (size_t)width * (size_t)C, (size_t)width * (size_t)C);
    }
    mhla_image_free(image);
    *image = wide;
    return MHLA_OK;
}

/* The picture as the model sees it, padding as the colour that zero stands for; and its class. */
static mhla_status keep_picture(const mhla_inputs *in, mhla_analysis *a, int64_t sample, int64_t i) {
    const mhla_augment *g = &in->augment;
    mhla_image *image = &a->pictures[sample];
    const int C = g->channels, H = g->height, W = g->width, top = in->padding[0], left = in->padding[1];
    MHLA_TRY(mhla_image_reserve(image, W + 2 * left, H + 2 * top, C));
    for (int y = 0; y < H + 2 * top; y++)
        for (int x = 0; x < W + 2 * left; x++)
            for (int c = 0; c < C; c++) {
                const int v = y - top, u = x - left, inside = v >= 0 && v < H && u >= 0 && u < W;
                const float value = inside ? in->x[i * in->floats + ((int64_t)c * H + v) * W + u] : 0.0f;
                const double level = 255.0 * ((double)value * (double)g->std[c] + (double)g->mean[c]);
                image->data[((int64_t)y * image->width + x) * C + c] = (uint8_t)lround(fmin(fmax(level, 0.0), 255.0));
            }
    if (a->frames) MHLA_TRY(lay_out(image, a->frames, mhla_frames_across(a->frames)));
    const int label = in->labels[i];
    const char *name =
        label >= 0 && label < mhla_gallery_classes(in->pictures) ? mhla_gallery_class_name(in->pictures, label) : "";
    char title[TITLE + 32];
    snprintf(title, sizeof title, *name ? "%lld: %.*s" : "%lld", (long long)sample, TITLE, name);
    a->titles[sample] = strdup(title);
    return a->titles[sample] ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the name of a class");
}

static mhla_status run_denoiser(mhla_inputs *in, mhla_tape *tape, int64_t first, int64_t count) {
    const mhla_denoiser_info *c = &in->denoiser;
    float times[BATCH], *noise = mhla_alloc((size_t)in->floats * sizeof *noise);
    int32_t labels[BATCH];
    if (noise == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for noise");
    for (int64_t i = 0; i < count; i++) {
        const mhla_rng rng = mhla_rng_make(0, 0, (uint64_t)(first + i), MHLA_PLACE_ANALYSIS);
        mhla_rng_normals(&rng, noise, in->floats);
        float *x = in->x + i * in->floats;
        mhla_noising_apply(in->noising, x, x, noise, in->time, in->floats);
        times[i] = (float)in->time;
        labels[i] = in->labels[i] >= 0 && in->labels[i] < c->classes ? in->labels[i] : c->null_label ? c->classes : 0;
    }
    mhla_free(noise);
    mhla_tensor *x = mhla_denoiser_input(tape, in->x, count, c->channels, c->extent);
    mhla_denoiser_forward(tape, in->model, &(mhla_network_run){0}, x, times, &(mhla_condition){.labels = labels});
    return mhla_tape_status(tape);
}

static mhla_status run_pictures(mhla_inputs *in, mhla_tape *tape, mhla_analysis *a, int64_t first, int64_t count) {
    mhla_parallel(in->model->context, count, read_task, &(reading){in, first});
    for (int64_t i = 0; i < count; i++) {
        if (in->status[i] != MHLA_OK) return mhla_fail(in->status[i], "%s", in->messages[i]);
        if (first + i < a->maps) MHLA_TRY(keep_picture(in, a, first + i, i));
    }
    if (in->noising) return run_denoiser(in, tape, first, count);
    const mhla_augment *g = &in->augment;
    mhla_tensor *x = mhla_nn_input(tape, in->x, MHLA_SHAPE(count, g->channels, g->height, g->width));
    mhla_classifier_forward(tape, in->model, &(mhla_network_run){0}, x);
    return mhla_tape_status(tape);
}

/* ---- Text ------------------------------------------------------------------------------------------------------------------ */

/* ids [T+1] of the text that begins at the first line after its place; from the start again where it ends too early. */
static mhla_status read_window(const mhla_inputs *in, int32_t *ids, int64_t sample, int64_t T) {
    const unsigned char *text = in->text.data;
    const size_t size = in->text.size, begin = (size_t)((double)size * (double)sample / (double)in->count);
    size_t at = begin;
    while (at > 0 && at < size && text[at - 1] != '\n') at++;
    if (at >= size)
        for (at = begin; at > 0 && (text[at] & 0xc0) == 0x80;) at--; /* no line ends after it */
    mhla_ids list = {0};
    mhla_status status = MHLA_OK;
    if (in->bos >= 0) status = mhla_ids_append(&list, &in->bos, 1);
    for (int tries = 0; list.count < T + 1 && status == MHLA_OK; at = 0, tries++) {
        size_t bytes = (size_t)(T + 1 - list.count) * BYTES_OF_TOKEN;
        if (bytes > size - at) bytes = size - at;
        while (at + bytes < size && (text[at + bytes] & 0xc0) == 0x80) bytes--;
        const int64_t had = list.count;
        if (in->tokenizer)
            status = mhla_tokenizer_encode(in->tokenizer, &list, (const char *)text + at, bytes, MHLA_ENCODE_PLAIN);
        for (size_t i = 0; i < bytes && in->tokenizer == NULL && status == MHLA_OK && list.count < T + 1; i++)
            status = mhla_ids_append(&list, &(int32_t){text[at + i]}, 1);
        if (status == MHLA_OK && list.count == had && at == 0)
            status = mhla_fail(MHLA_EDATA, "the text holds no tokens");
    }
    if (status == MHLA_OK) memcpy(ids, list.data, (size_t)(T + 1) * sizeof *ids);
    mhla_ids_free(&list);
    return status;
}

/* What the page shows of a token. */
static mhla_status keep_pieces(const mhla_inputs *in, mhla_analysis *a, int64_t sample, const int32_t *ids) {
    mhla_chars text = {0};
    mhla_status status = MHLA_OK;
    for (int64_t t = 0; t < a->T && status == MHLA_OK; t++) {
        text.count = 0;
        const char byte = (char)ids[t];
        status = in->tokenizer ? mhla_tokenizer_decode(in->tokenizer, &text, &ids[t], 1, 0)
                               : mhla_chars_append(&text, &byte, 1);
        char *piece = status == MHLA_OK ? malloc(text.count + 1) : NULL;
        if (piece == NULL) break;
        if (text.count) memcpy(piece, text.data, text.count);
        piece[text.count] = '\0';
        a->pieces[sample * a->T + t] = piece;
    }
    mhla_chars_free(&text);
    char title[48];
    snprintf(title, sizeof title, "window %lld", (long long)sample);
    a->titles[sample] = strdup(title);
    if (status == MHLA_OK && (a->titles[sample] == NULL || a->pieces[sample * a->T + a->T - 1] == NULL))
        return mhla_fail(MHLA_ENOMEM, "no memory for the text of a window");
    return status;
}

static mhla_status run_text(mhla_inputs *in, mhla_tape *tape, mhla_analysis *a, int64_t first, int64_t count) {
    const int64_t T = a->T;
    int32_t *window = malloc((size_t)(T + 1) * sizeof *window);
    mhla_status status = window ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a window");
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) {
        status = read_window(in, window, first + i, T);
        if (status != MHLA_OK) break;
        memcpy(in->ids + i * T, window, (size_t)T * sizeof *window);
        memcpy(in->targets + i * T, window + 1, (size_t)T * sizeof *window);
        if (first + i < a->maps) status = keep_pieces(in, a, first + i, window);
    }
    free(window);
    MHLA_TRY(status);
    mhla_tensor *hidden = mhla_text_forward(tape, in->model, &(mhla_text_run){0}, in->ids, count, T);
    mhla_text_loss(tape, in->model, hidden, in->targets, 1.0f, in->losses);
    MHLA_TRY(mhla_tape_status(tape));
    for (int64_t i = 0; i < count * T; i++) a->position[i % T] += (double)in->losses[i];
    return MHLA_OK;
}

mhla_status mhla_inputs_run(mhla_inputs *in, mhla_tape *tape, mhla_analysis *a, int64_t first, int64_t count) {
    mhla_tape_begin(tape, MHLA_TAPE_INFER);
    return a->text ? run_text(in, tape, a, first, count) : run_pictures(in, tape, a, first, count);
}
