/* Features of pictures: by the Inception network where the file has its weights, else by an image classifier, whose features are
 * the rows that its head reads. Pictures are read and brought to size by all threads, a batch at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "measure/evaluate.h"
#include "measure/inception.h"
#include "measure/measure.h"

enum { BATCH = 64 }; /* pictures at a time, at most */

struct mhla_extractor {
    mhla_inception *inception; /* one of these two */
    mhla_model *model;
    mhla_inception_resize resize;
    mhla_augment augment;
    int features; /* of the classifier */ /* the classifier's */
    mhla_tape *tape;
    char name[160];
};

/* ---- Opening ------------------------------------------------------------------------------------------------------------- */

static mhla_status open_inception(mhla_extractor *e, const mhla_safetensors *file) {
    MHLA_TRY(mhla_inception_open(&e->inception, file, NULL));
    snprintf(e->name, sizeof e->name, "Inception 2015 (%d features, %s)", MHLA_INCEPTION_FEATURES,
             e->resize == MHLA_INCEPTION_TF1 ? "resized as TensorFlow 1" : "resized as pytorch-fid");
    return MHLA_OK;
}

static mhla_status open_classifier(mhla_extractor *e, const char *path) {
    MHLA_TRY(mhla_model_open(&e->model, path));
    mhla_classifier_info c;
    MHLA_TRY(mhla_classifier_query(e->model, &c));
    MHLA_TRY(mhla_tape_create(&e->tape, NULL));
    e->augment = mhla_model_augment(e->model);
    MHLA_TRY(mhla_augment_prepare(&e->augment));
    mhla_model_info info = {.size = sizeof info};
    MHLA_TRY(mhla_model_query(e->model, &info));
    snprintf(e->name, sizeof e->name, "%s (%d features) of %.110s", info.name, c.features, path);
    e->features = c.features;
    return MHLA_OK;
}

mhla_status mhla_extractor_open(mhla_extractor **extractor, const char *path, const char *resize) {
    char place[MHLA_RUN_PATH];
    mhla_safetensors *file = NULL;
    *extractor = NULL;
    if (resize && strcmp(resize, "torch") != 0 && strcmp(resize, "tf1") != 0)
        return mhla_fail(MHLA_EINVAL, "resize is \"%s\": expected torch or tf1", resize);
    mhla_data_info info = {.size = sizeof info};
    snprintf(place, sizeof place, "%s", path);
    for (int i = 0; mhla_data_query(i, &info) == MHLA_OK; i++) /* "inception" is where `mhla data` puts it */
        if (strcmp(path, info.name) == 0) MHLA_TRY(mhla_data_locate(place, sizeof place, path));
    mhla_extractor *e = calloc(1, sizeof *e);
    if (e == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for features");
    e->resize = resize && strcmp(resize, "tf1") == 0 ? MHLA_INCEPTION_TF1 : MHLA_INCEPTION_TORCH;
    /* what is no file of tensors at all may still be a run; what is neither is told as a model that cannot be opened */
    const int tensors = mhla_safetensors_open(&file, place) == MHLA_OK;
    mhla_status status = tensors && mhla_inception_fits(file) ? open_inception(e, file) : open_classifier(e, place);
    mhla_safetensors_close(file);
    if (status != MHLA_OK) {
        mhla_extractor_free(e);
        return status;
    }
    *extractor = e;
    return MHLA_OK;
}

void mhla_extractor_free(mhla_extractor *e) {
    if (e == NULL) return;
    mhla_inception_free(e->inception);
    mhla_tape_free(e->tape);
    mhla_model_free(e->model);
    free(e);
}

const char *mhla_extractor_name(const mhla_extractor *e) { return e->name; }
int mhla_extractor_inception(const mhla_extractor *e) { return e->inception != NULL; }
int mhla_extractor_dims(const mhla_extractor *e) { return e->inception ? MHLA_INCEPTION_FEATURES : e->features; }
int mhla_extractor_classes(const mhla_extractor *e) {
    return e->inception ? mhla_inception_classes(e->inception) : mhla_model_classes(e->model);
}
const char *mhla_extractor_class_name(const mhla_extractor *e, int i) {
    return e->model ? mhla_model_class_name(e->model, i) : NULL;
}

/* ---- Running -------------------------------------------------------------------------------------------------------------- */

typedef struct batch {
    mhla_extractor *e;
    mhla_gallery *pictures;
    int64_t first;
    int64_t floats; /* of a picture */
    float *x;       /* [batch, floats] */
    int *labels;
    mhla_status status[BATCH];
    char messages[BATCH][300];
} batch;

static void read_task(void *arg, int64_t i, int worker) {
    batch *b = arg;
    (void)worker;
    mhla_image image = {0};
    mhla_augment_scratch scratch = {0};
    float *x = b->x + i * b->floats;
    mhla_status status = mhla_gallery_get(b->pictures, b->first + i, &image, &b->labels[b->first + i]);
    if (status == MHLA_OK)
        status = b->e->inception ? mhla_inception_input(x, &image, b->e->resize)
                                 : mhla_augment_apply(x, &image, &b->e->augment, &scratch, 0, 0, 0);
    b->status[i] = status;
    if (status != MHLA_OK) snprintf(b->messages[i], sizeof b->messages[i], "%s", mhla_message()); /* is the thread's */
    mhla_augment_scratch_free(&scratch);
    mhla_image_free(&image);
}

/* Logits become probabilities. */
static void softmax(float *p, int64_t n) {
    double most = p[0], sum = 0.0;
    for (int64_t i = 1; i < n; i++) most = fmax(most, p[i]);
    for (int64_t i = 0; i < n; i++) sum += exp(p[i] - most);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(exp(p[i] - most) / sum);
}

static mhla_status run_classifier(mhla_extractor *e, float *features, float *logits, const float *x, int64_t n) {
    mhla_classifier_info c;
    MHLA_TRY(mhla_classifier_query(e->model, &c));
    mhla_tensor *rows = NULL;
    mhla_tape_begin(e->tape, MHLA_TAPE_INFER);
    mhla_tensor *in = mhla_nn_input(e->tape, x, MHLA_SHAPE(n, c.channels, c.height, c.width));
    const mhla_tensor *y = mhla_classifier_forward(e->tape, e->model, &(mhla_network_run){.features = &rows}, in);
    MHLA_TRY(mhla_tape_status(e->tape));
    for (int64_t b = 0; b < n; b++) {
        memcpy(features + b * c.features, rows->data + b * rows->ld, (size_t)c.features * sizeof *features);
        memcpy(logits + b * c.classes, y->data + b * y->ld, (size_t)c.classes * sizeof *logits);
    }
    return MHLA_OK;
}

mhla_status mhla_extractor_run(mhla_extractor *e, const mhla_features *out, mhla_gallery *pictures,
                               const mhla_watch *watch) {
    /* each thread takes a picture of Inception's, and they are large */
    const int threads = mhla_context_threads(NULL);
    const int64_t n = mhla_gallery_count(pictures);
    const int64_t size = e->inception && threads < BATCH / 4 ? 4 * (int64_t)threads : BATCH;
    const int64_t dims = mhla_extractor_dims(e), classes = mhla_extractor_classes(e);
    batch *b = calloc(1, sizeof *b);
    if (b == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for images");
    b->e = e;
    b->pictures = pictures;
    b->labels = out->labels;
    b->floats = e->inception ? (int64_t)MHLA_INCEPTION_SIZE * MHLA_INCEPTION_SIZE * 3
                             : (int64_t)e->augment.channels * e->augment.height * e->augment.width;
    b->x = mhla_alloc((size_t)(size * b->floats) * sizeof *b->x);
    mhla_status status = b->x ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for images");
    for (; b->first < n && status == MHLA_OK; b->first += size) {
        const int64_t count = n - b->first < size ? n - b->first : size;
        mhla_parallel(NULL, count, read_task, b);
        for (int64_t i = 0; i < count && status == MHLA_OK; i++)
            if (b->status[i] != MHLA_OK) status = mhla_fail(b->status[i], "%s", b->messages[i]);
        if (status != MHLA_OK) break;
        float *features = out->x + b->first * dims;
        float *probabilities = classes ? out->probabilities + b->first * classes : NULL;
        float *spatial = out->spatial ? out->spatial + b->first * MHLA_INCEPTION_SPATIAL : NULL;
        status = e->inception ? mhla_inception_run(e->inception, features, spatial, probabilities, b->x, count)
                              : run_classifier(e, features, probabilities, b->x, count);
        for (int64_t i = 0; i < count && classes && status == MHLA_OK; i++)
            softmax(probabilities + i * classes, classes);
        if (watch->progress) watch->progress(watch->user, watch->done + b->first + count, watch->all);
    }
    mhla_free(b->x);
    free(b);
    return status;
}
