/* samples.json: pictures of the test split with what the trained model takes them for; the pictures are inside. */
#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "file/json.h"
#include "image/resize.h"
#include "report/html.h"
#include "report/report.h"
#include "train/train.h"

enum { LARGEST = 160 }; /* pixels on a side that are kept */

/* The picture as it is, or smaller where it is large. */
static mhla_status shrink(mhla_image *room, const mhla_image **image) {
    const int width = (*image)->width, height = (*image)->height, most = width > height ? width : height;
    if (most <= LARGEST) return MHLA_OK;
    const int w = (int)lround((double)width * LARGEST / most), h = (int)lround((double)height * LARGEST / most);
    MHLA_TRY(mhla_image_resize(room, *image, w > 0 ? w : 1, h > 0 ? h : 1, MHLA_FILTER_BICUBIC, NULL));
    *image = room;
    return MHLA_OK;
}

static mhla_status encode(json_t *row, const mhla_image *image) {
    mhla_image room = {0};
    uint8_t *bytes = NULL;
    size_t size = 0;
    mhla_status status = shrink(&room, &image);
    if (status == MHLA_OK) status = mhla_image_encode_png(&bytes, &size, image, NULL, 0);
    if (status == MHLA_OK) {
        char *text = mhla_base64(bytes, size);
        mhla_json_put(row, "width", json_integer(image->width));
        mhla_json_put(row, "height", json_integer(image->height));
        if (json_object_set_new(row, "png", text ? json_string(text) : NULL) != 0)
            status = mhla_fail(MHLA_ENOMEM, "no memory for an image of %zu bytes", size);
        free(text);
    }
    free(bytes);
    mhla_image_free(&room);
    return status;
}

/* [{"class":3,"probability":0.9},..], the most probable first. */
static json_t *first_few(const float *p, int classes) {
    json_t *list = json_array();
    int taken[MHLA_SAMPLE_TOP];
    for (int n = 0; n < MHLA_SAMPLE_TOP && n < classes; n++) {
        int best = -1;
        for (int i = 0; i < classes; i++) {
            int free_ = 1;
            for (int k = 0; k < n; k++) free_ &= taken[k] != i;
            if (free_ && isfinite(p[i]) && (best < 0 || p[i] > p[best])) best = i;
        }
        if (best < 0) break;
        taken[n] = best;
        mhla_json_add(list, json_pack("{s:i,s:o}", "class", best, "probability", mhla_json_float(p[best])));
    }
    return list;
}

static mhla_status add(json_t *list, const mhla_sampled *s, int classes) {
    json_t *row = json_object();
    mhla_json_put(row, "index", json_integer(s->index));
    mhla_json_put(row, "label", json_integer(s->label));
    mhla_json_put(row, "top", first_few(s->probabilities, classes));
    const mhla_status status = encode(row, s->image);
    mhla_json_add(list, row);
    return status;
}

mhla_status mhla_samples_write(const char *run, int64_t step, const mhla_sampled *samples, int count, int classes,
                               const char *const *class_names) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/samples.json", run) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", run);
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *list = json_array();
    mhla_json_put(tree, "step", json_integer(step));
    if (class_names) {
        json_t *names = json_array();
        for (int i = 0; i < classes; i++) {
            json_t *name = json_string(class_names[i] ? class_names[i] : "");
            mhla_json_add(names, name ? name : json_string("")); /* what is no UTF-8 has no name */
        }
        mhla_json_put(tree, "classes", names);
    }
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count && status == MHLA_OK; i++) status = add(list, &samples[i], classes);
    mhla_json_put(tree, "samples", list);
    if (mhla_json_lost() != lost && status == MHLA_OK) status = mhla_fail(MHLA_ENOMEM, "no memory for samples");
    if (status == MHLA_OK) status = mhla_json_save(tree, path);
    json_decref(tree);
    return status;
}

/* ---- Taken from a model and its data ---- */

/* Room for `count` samples; the pictures stay small, whatever they were. */
typedef struct taken {
    mhla_sampled samples[MHLA_SAMPLES];
    mhla_image images[MHLA_SAMPLES];
    float *probabilities; /* [MHLA_SAMPLES,classes] */
    int count;
} taken;

static mhla_status take(taken *t, mhla_model *model, mhla_dataset *data, int64_t index) {
    const int classes = mhla_model_classes(model);
    mhla_image image = {0}, room = {0};
    mhla_sampled *s = &t->samples[t->count];
    *s = (mhla_sampled){index, &t->images[t->count], -1, t->probabilities + (size_t)t->count * (size_t)classes};
    mhla_status status = mhla_dataset_get(data, index, &image, &s->label);
    if (status == MHLA_EDATA || status == MHLA_EIO) { /* a broken file, which the dataset tells about */
        mhla_image_free(&image);
        return MHLA_OK;
    }
    const mhla_image *small = &image;
    if (status == MHLA_OK)
        status = mhla_model_classify_image(model, t->probabilities + (size_t)t->count * (size_t)classes, &image);
    if (status == MHLA_OK) status = shrink(&room, &small);
    if (status == MHLA_OK) {
        t->images[t->count++] = *small; /* one of the two moves there, the other is freed */
        if (small == &image)
            image = (mhla_image){0};
        else
            room = (mhla_image){0};
    }
    mhla_image_free(&image);
    mhla_image_free(&room);
    return status;
}

mhla_status mhla_samples_take(const char *run, int64_t step, mhla_model *model, mhla_dataset *data) {
    const int classes = mhla_model_classes(model);
    const int64_t all = mhla_dataset_count(data), wanted = all < MHLA_SAMPLES ? all : MHLA_SAMPLES;
    taken t = {.probabilities = malloc((size_t)MHLA_SAMPLES * (size_t)classes * sizeof *t.probabilities)};
    mhla_status status = t.probabilities ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d classes", classes);
    for (int64_t i = 0; i < wanted && status == MHLA_OK; i++) status = take(&t, model, data, i * all / wanted);
    if (status == MHLA_OK)
        status = mhla_samples_write(run, step, t.samples, t.count, classes, (const char *const *)model->class_names);
    for (int i = 0; i < MHLA_SAMPLES; i++) mhla_image_free(&t.images[i]);
    free(t.probabilities);
    return status;
}
