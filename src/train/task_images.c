/* The task `images`: a classifier learns pictures with labels; measured by the part of the test pictures that it gets right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/loader.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT

static const mhla_recipe_row keys[] = {
    {"data.source", TEXT, "fashion-mnist", 0, 0, NULL,
     "a folder, or what mhla data fetched: fashion-mnist, cifar10-test, text"},
    {"data.workers", INT, "1", 0, 256, NULL, "threads that read and augment"},

    {"train.smoothing", REAL, "0", 0, 0.99, NULL, "of labels"},
    {"train.drop_path", REAL, "0", 0, 0.99, NULL, "of branches, at the last block; grows from 0"},

    {"augment.crop", TEXT, "none", 0, 0, "none|random|pad",
     "random: a resized part; pad: shifted by at most augment.pad pixels"},
    {"augment.scale", MHLA_RECIPE_REALS, "0.08,1", 0, 1, NULL, "random crop: part of the area, from, to"},
    {"augment.pad", INT, "4", 0, 256, NULL, "pad: black pixels around"},
    {"augment.flip", REAL, "0", 0, 1, NULL, "probability of a horizontal flip"},
    {"augment.randaugment", TEXT, "none", 0, 0, NULL, "timm's words: rand-m9-mstd0.5-inc1"},
    {"augment.erasing", REAL, "0", 0, 1, NULL, "probability of random erasing"},
    {"augment.mixup", REAL, "0", 0, 100, NULL, "alpha of mixup"},
    {"augment.cutmix", REAL, "0", 0, 100, NULL, "alpha of cutmix"},
    {"augment.mix_prob", REAL, "1", 0, 1, NULL, "probability that a batch is mixed"},
    {0},
};

typedef struct job {
    mhla_dataset *train, *test;
    mhla_loader *loader;
    const mhla_batch *batch; /* of the present update */
    int64_t right;           /* of its pictures */
    int64_t told[2];         /* broken files of the training and test data that were told */
} job;

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status open_data(mhla_trainer *t, job *j) {
    const char *source = mhla_recipe_text(t->recipe, "data.source");
    char folder[MHLA_RUN_PATH];
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
    MHLA_TRY(mhla_dataset_open(&j->train, folder, MHLA_SPLIT_TRAIN));
    return mhla_dataset_open(&j->test, folder, MHLA_SPLIT_TEST);
}

/* What the recipe leaves open about the model follows from the data, and is kept in the run's recipe. */
static mhla_status make_model(mhla_trainer *t, const job *j) {
    const struct {
        const char *key;
        int value;
    } follow[] = {{"model.classes", mhla_dataset_classes(j->train)},
                  {"model.channels", mhla_dataset_channels(j->train)}};
    for (int i = 0; i < 2; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", follow[i].value);
        if (!mhla_recipe_has(t->recipe, follow[i].key)) MHLA_TRY(mhla_recipe_set(t->recipe, follow[i].key, text));
    }
    mhla_deit_config c;
    MHLA_TRY(mhla_deit_from_recipe(&c, t->recipe, "model."));
    if (c.classes < mhla_dataset_classes(j->train))
        return mhla_fail(MHLA_EINVAL, "model.classes is %d, but the data has %d classes", c.classes,
                         mhla_dataset_classes(j->train));
    char **names = calloc((size_t)c.classes, sizeof *names);
    for (int i = 0; names && i < c.classes; i++) {
        char number[16];
        const char *name = i < mhla_dataset_classes(j->train) ? mhla_dataset_class_name(j->train, i) : "";
        snprintf(number, sizeof number, "%d", i);
        if ((names[i] = strdup(*name ? name : number)) == NULL) {
            mhla_names_free(names, c.classes);
            names = NULL;
        }
    }
    if (names == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d names", c.classes);
    MHLA_TRY(mhla_model_of_deit(&t->model, &c, names));
    return mhla_deit_init(t->model->deit, (uint64_t)mhla_recipe_int(t->recipe, "seed"));
}

static mhla_status make_loader(mhla_trainer *t, job *j) {
    static const char *const crops[] = {"none", "random", "pad"};
    static const mhla_crop kinds[] = {MHLA_CROP_EVAL, MHLA_CROP_RANDOM, MHLA_CROP_PAD};
    const mhla_recipe *r = t->recipe;
    mhla_loader_desc d = {
        .data = j->train,
        .batch = (int)mhla_recipe_int(r, "train.batch"),
        .train = 1,
        .workers = (int)mhla_recipe_int(r, "data.workers"),
        .ahead = MHLA_TRAIN_AHEAD,
        .seed = (uint64_t)mhla_recipe_int(r, "seed"),
        .augment = mhla_model_augment(t->model),
        .mix = {.mixup = mhla_recipe_real(r, "augment.mixup"),
                .cutmix = mhla_recipe_real(r, "augment.cutmix"),
                .prob = mhla_recipe_real(r, "augment.mix_prob"),
                .smoothing = mhla_recipe_real(r, "train.smoothing")},
        .classes = mhla_deit_config_of(t->model->deit)->classes,
    };
    for (int i = 0; i < 3; i++)
        if (strcmp(mhla_recipe_text(r, "augment.crop"), crops[i]) == 0) d.augment.crop = kinds[i];
    const json_t *scale = mhla_recipe_array(r, "augment.scale");
    if (json_array_size(scale) != 2)
        return mhla_fail(MHLA_EINVAL, "augment.scale has %zu numbers: expected 2", json_array_size(scale));
    for (int i = 0; i < 2; i++) d.augment.scale[i] = json_number_value(json_array_get(scale, (size_t)i));
    d.augment.pad = (int)mhla_recipe_int(r, "augment.pad");
    d.augment.flip = (float)mhla_recipe_real(r, "augment.flip");
    d.augment.erase = (float)mhla_recipe_real(r, "augment.erasing");
    MHLA_TRY(mhla_augment_parse(&d.augment, mhla_recipe_text(r, "augment.randaugment")));
    if (d.mix.prob == 0.0) d.mix.mixup = d.mix.cutmix = 0.0;
    if (d.batch > mhla_dataset_count(j->train))
        return mhla_fail(MHLA_EINVAL, "train.batch is %d, more than the %lld images of the data", d.batch,
                         (long long)mhla_dataset_count(j->train));
    return mhla_loader_create(&j->loader, &d);
}

static mhla_status open_job(mhla_trainer *t) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    MHLA_TRY(open_data(t, j));
    MHLA_TRY(make_model(t, j));
    MHLA_TRY(make_loader(t, j));
    t->per_epoch = mhla_loader_batches(j->loader);
    return MHLA_OK;
}

static void close_job(mhla_trainer *t) {
    job *j = t->job;
    if (j == NULL) return;
    mhla_loader_free(j->loader);
    mhla_dataset_free(j->train);
    mhla_dataset_free(j->test);
    free(j);
}

static mhla_status seek(mhla_trainer *t, int64_t epoch, int64_t batch) {
    const job *j = t->job;
    return mhla_loader_seek(j->loader, epoch, batch);
}

/* ---- A step ------------------------------------------------------------------------------------------------------------ */

static mhla_status next(mhla_trainer *t) {
    job *j = t->job;
    j->right = 0;
    return mhla_loader_next(j->loader, &j->batch);
}

static int64_t right_ones(const mhla_tensor *logits, const int *labels) {
    int64_t right = 0;
    for (int64_t b = 0; b < logits->rows; b++) {
        const float *y = logits->data + b * logits->ld;
        int best = 0;
        for (int i = 1; i < (int)logits->cols; i++)
            if (y[i] > y[best]) best = i;
        right += best == labels[b];
    }
    return right;
}

static mhla_tensor *loss(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share) {
    job *j = t->job;
    const mhla_deit_config *c = mhla_deit_config_of(t->model->deit);
    const mhla_deit_run run = {.drop_path = (float)mhla_recipe_real(t->recipe, "train.drop_path"),
                               .recompute = mhla_recipe_bool(t->recipe, "train.recompute")};
    const int64_t pixels = (int64_t)c->channels * c->image[0] * c->image[1];
    const int dry = (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0;
    const int64_t all = dry ? mhla_recipe_int(t->recipe, "train.batch") : j->batch->count;
    const int64_t first = dry ? 0 : part * all / parts; /* a dry run counts the largest part */
    const int64_t rows = dry ? (all + parts - 1) / parts : (part + 1) * all / parts - first;
    *share = (double)rows / (double)all;
    if (rows == 0) return NULL;
    mhla_tape_key(tape, (uint64_t)mhla_recipe_int(t->recipe, "seed"), (uint64_t)t->step, (uint64_t)first);
    mhla_tensor *x = mhla_nn_input(tape, dry ? NULL : j->batch->images + first * pixels,
                                   MHLA_SHAPE(rows, c->channels, c->image[0], c->image[1]));
    mhla_tensor *logits = mhla_deit_forward(tape, t->model->deit, &run, x);
    mhla_tensor *mean =
        mhla_nn_cross_entropy(tape, logits, NULL, dry ? NULL : j->batch->targets + first * c->classes, 0.0f, NULL);
    if (mean && !dry) j->right += right_ones(logits, j->batch->labels + first);
    return mean;
}

static double count(mhla_trainer *t, mhla_train_event *e) {
    const job *j = t->job;
    const int mixed =
        mhla_recipe_real(t->recipe, "augment.mixup") > 0.0 || mhla_recipe_real(t->recipe, "augment.cutmix") > 0.0;
    e->accuracy = mixed ? NAN : (double)j->right / j->batch->count;
    return j->batch->count;
}

/* Pictures that are kept: those of a set whose pictures have one size, and the batches ahead of training and of
 * evaluation. */
static double data_bytes(const mhla_trainer *t) {
    const job *j = t->job;
    const mhla_deit_config *c = mhla_deit_config_of(t->model->deit);
    const double pixels = (double)c->channels * c->image[0] * c->image[1];
    double bytes =
        sizeof(float) * (pixels + c->classes) * MHLA_TRAIN_AHEAD * (double)mhla_recipe_int(t->recipe, "train.batch");
    bytes += sizeof(float) * pixels * MHLA_EVALUATE_AHEAD * MHLA_EVALUATE_BATCH;
    const mhla_dataset *const sets[] = {j->train, j->test};
    for (int i = 0; i < 2; i++)
        if (sets[i])
            bytes += (double)mhla_dataset_count(sets[i]) * mhla_dataset_width(sets[i]) * mhla_dataset_height(sets[i]) *
                     mhla_dataset_channels(sets[i]);
    return bytes;
}

/* ---- Evaluation ---------------------------------------------------------------------------------------------------------- */

static json_t *per_class(const mhla_evaluation *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->classes; i++)
        json_array_append_new(
            list, mhla_json_real(r->class_images[i] ? (double)r->class_right[i] / (double)r->class_images[i] : NAN));
    return list;
}

static mhla_status evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress, void *user) {
    const job *j = t->job;
    mhla_evaluation r = {.size = sizeof r};
    MHLA_TRY(mhla_evaluate(t->model, &r, j->test, (int)mhla_recipe_int(t->recipe, "data.workers"),
                           mhla_recipe_int(t->recipe, "eval.limit"), &t->stop, progress, user));
    const double images = (double)(r.images > 0 ? r.images : 1);
    *score = (mhla_score){r.loss, (double)r.top1 / images, r.seconds};
    json_object_set_new(row, "images", json_integer(r.images));
    json_object_set_new(row, "loss", mhla_json_real(r.loss));
    json_object_set_new(row, "accuracy", mhla_json_real(score->value));
    json_object_set_new(row, "top5", mhla_json_real((double)r.top5 / images));
    json_object_set_new(row, "classes", per_class(&r));
    mhla_evaluation_free(&r);
    return MHLA_OK;
}

static void tell(mhla_train_event *e, const mhla_score *plain, const mhla_score *average) {
    e->test_loss = plain->loss;
    e->test_accuracy = plain->value;
    if (average) e->ema_accuracy = average->value;
}

static mhla_status adopt(mhla_trainer *t, const char *path, void (*note)(void *user, const char *text), void *user) {
    return mhla_model_adopt(t->model, path, note, user);
}

/* Files that could not be read, of either part of the data, and were not told yet: some show only when they are decoded. */
static void complain(mhla_trainer *t, void (*note)(mhla_trainer *t, const char *text)) {
    enum { MOST = 5 };
    job *j = t->job;
    mhla_dataset *const parts[2] = {j->train, j->test};
    for (int i = 0; i < 2 && parts[i]; i++) {
        int64_t count = 0;
        const char *sentences[100];
        char text[600];
        const int64_t kept = mhla_dataset_broken(parts[i], &count, sentences, 100), from = j->told[i];
        if (count == from) continue;
        const int64_t to = kept < from + MOST ? kept : from + MOST;
        snprintf(text, sizeof text, "%lld%s file%s of the %s data could not be read:", (long long)(count - from),
                 from ? " more" : "", count - from == 1 ? "" : "s", i ? "test" : "training");
        note(t, text);
        for (int64_t k = from; k < to; k++) {
            snprintf(text, sizeof text, "  %s", sentences[k]);
            note(t, text);
        }
        if (count > to) note(t, "  ...");
        j->told[i] = count;
    }
}

/* Of the weights that counted as best, as they lie on the disk. */
static mhla_status finish(mhla_trainer *t) {
    const job *j = t->job;
    mhla_model *best = NULL;
    if (j->test == NULL) return MHLA_OK;
    MHLA_TRY(mhla_model_open(&best, t->run));
    mhla_model_set_context(best, t->context);
    const mhla_status status = mhla_samples_take(t->run, t->best_step, best, j->test);
    mhla_model_free(best);
    return status;
}

const mhla_task mhla_task_images = {
    .name = "images",
    .family = &mhla_family_deit,
    .rows = keys,
    .measure = "accuracy",
    .unit = "images",
    .open = open_job,
    .close = close_job,
    .seek = seek,
    .next = next,
    .loss = loss,
    .count = count,
    .data_bytes = data_bytes,
    .evaluate = evaluate,
    .tell = tell,
    .adopt = adopt,
    .complain = complain,
    .finish = finish,
};
