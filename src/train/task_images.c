/* The task `images`: a classifier learns pictures with labels; measured by the part of the test pictures that it gets right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/pictures.h"
#include "train/train.h"

#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT

static const mhla_recipe_row keys[] = {
    {"train.smoothing", REAL, "0", 0, 0.99, NULL, "of labels"},
    {"train.drop_path", REAL, "0", 0, 0.99, NULL, "of branches, at the last block; grows from 0"},

    {"augment.crop", TEXT, "none", 0, 0, "none|random|pad",
     "random: a resized part; pad: shifted by at most augment.pad pixels"},
    {"augment.randaugment", TEXT, "none", 0, 0, NULL, "timm's words: rand-m9-mstd0.5-inc1"},
    {"augment.erasing", REAL, "0", 0, 1, NULL, "probability of random erasing"},
    {"augment.mixup", REAL, "0", 0, 100, NULL, "alpha of mixup"},
    {"augment.cutmix", REAL, "0", 0, 100, NULL, "alpha of cutmix"},
    {"augment.mix_prob", REAL, "1", 0, 1, NULL, "probability that a batch is mixed"},
    {0},
};

typedef struct job {
    mhla_pictures p; /* first */
} job;

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status make_model(mhla_trainer *t, const job *j) {
    char **names = NULL;
    MHLA_TRY(mhla_model_of_recipe(&t->model, MHLA_ROLE_CLASSIFIER, t->recipe, "model."));
    const int classes = mhla_model_classes(t->model);
    MHLA_TRY(mhla_pictures_names(&j->p, &names, classes));
    const mhla_status status = mhla_model_name_classes(t->model, names, classes);
    mhla_names_free(names, classes);
    MHLA_TRY(status);
    return mhla_params_init(t->model->params, (uint64_t)mhla_recipe_int(t->recipe, "seed"));
}

static mhla_status make_loader(mhla_trainer *t, job *j) {
    const mhla_recipe *r = t->recipe;
    mhla_loader_desc d = {
        .augment = mhla_model_augment(t->model),
        .mix = {.mixup = mhla_recipe_real(r, "augment.mixup"),
                .cutmix = mhla_recipe_real(r, "augment.cutmix"),
                .prob = mhla_recipe_real(r, "augment.mix_prob"),
                .smoothing = mhla_recipe_real(r, "train.smoothing")},
        .classes = mhla_model_classes(t->model),
    };
    d.augment.erase = (float)mhla_recipe_real(r, "augment.erasing");
    MHLA_TRY(mhla_augment_parse(&d.augment, mhla_recipe_text(r, "augment.randaugment")));
    if (d.mix.prob == 0.0) d.mix.mixup = d.mix.cutmix = 0.0;
    return mhla_pictures_load(&j->p, t, d);
}

static mhla_status open_job(mhla_trainer *t) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    MHLA_TRY(mhla_pictures_open(&j->p, t->recipe, 0));
    MHLA_TRY(make_model(t, j));
    MHLA_TRY(make_loader(t, j));
    t->per_epoch = mhla_loader_batches(j->p.loader);
    return MHLA_OK;
}

static void close_job(mhla_trainer *t) {
    job *j = t->job;
    if (j) mhla_pictures_close(&j->p);
    free(j);
}

/* ---- A step ------------------------------------------------------------------------------------------------------------ */

static mhla_status next(mhla_trainer *t) {
    job *j = t->job;
    return mhla_loader_next(j->p.loader, &j->p.batch);
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
    mhla_classifier_info c;
    if (mhla_classifier_query(t->model, &c) != MHLA_OK) return NULL;
    const mhla_network_run run = {.drop_path = (float)mhla_recipe_real(t->recipe, "train.drop_path"),
                                  .recompute = mhla_recipe_bool(t->recipe, "train.recompute")};
    const int64_t pixels = (int64_t)c.channels * c.height * c.width;
    const int dry = (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0;
    int64_t first;
    const int64_t rows = mhla_pictures_part(&j->p, t->recipe, dry, part, parts, &first, share);
    if (rows == 0) return NULL;
    mhla_tape_key(tape, (uint64_t)mhla_recipe_int(t->recipe, "seed"), (uint64_t)t->step, (uint64_t)first);
    mhla_tensor *x = mhla_nn_input(tape, dry ? NULL : j->p.batch->images + first * pixels,
                                   MHLA_SHAPE(rows, c.channels, c.height, c.width));
    mhla_tensor *logits = mhla_classifier_forward(tape, t->model, &run, x);
    mhla_tensor *mean =
        mhla_nn_cross_entropy(tape, logits, NULL, dry ? NULL : j->p.batch->targets + first * c.classes, 0.0f, NULL);
    if (mean && !dry) t->right += right_ones(logits, j->p.batch->labels + first);
    return mean;
}

static double count(mhla_trainer *t, mhla_train_event *e) {
    const job *j = t->job;
    const int mixed =
        mhla_recipe_real(t->recipe, "augment.mix_prob") > 0.0 &&
        (mhla_recipe_real(t->recipe, "augment.mixup") > 0.0 || mhla_recipe_real(t->recipe, "augment.cutmix") > 0.0);
    e->accuracy = mixed ? NAN : (double)t->right / j->p.batch->count;
    return j->p.batch->count;
}

static double data_bytes(const mhla_trainer *t) {
    const job *j = t->job;
    mhla_classifier_info c;
    if (mhla_classifier_query(t->model, &c) != MHLA_OK) return 0.0;
    return mhla_pictures_bytes(&j->p, t->recipe, (double)c.channels * c.height * c.width + c.classes);
}

/* ---- Evaluation ---------------------------------------------------------------------------------------------------------- */

static json_t *per_class(const mhla_evaluation *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->classes; i++)
        mhla_json_add(
            list, mhla_json_real(r->class_images[i] ? (double)r->class_right[i] / (double)r->class_images[i] : NAN));
    return list;
}

static mhla_status evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress, void *user) {
    const job *j = t->job;
    mhla_evaluation r = {.size = sizeof r};
    MHLA_TRY(mhla_evaluate(t->model, NULL, &r, j->p.test, (int)mhla_recipe_int(t->recipe, "data.workers"),
                           mhla_recipe_int(t->recipe, "eval.limit"), &t->stop, progress, user));
    const double images = (double)(r.images > 0 ? r.images : 1);
    *score = (mhla_score){.loss = r.loss, .value = (double)r.top1 / images, .seconds = r.seconds};
    mhla_json_put(row, "images", json_integer(r.images));
    mhla_json_put(row, "loss", mhla_json_real(r.loss));
    mhla_json_put(row, "accuracy", mhla_json_real(score->value));
    mhla_json_put(row, "top5", mhla_json_real((double)r.top5 / images));
    mhla_json_put(row, "classes", per_class(&r));
    mhla_evaluation_free(&r);
    return MHLA_OK;
}

static void tell(mhla_train_event *e, const mhla_score *plain, const mhla_score *average) {
    e->test_loss = plain->loss;
    e->test_accuracy = plain->value;
    if (average) e->ema_accuracy = average->value;
}

/* Of the weights that counted as best, as they lie on the disk. */
static mhla_status finish(mhla_trainer *t) {
    const job *j = t->job;
    mhla_model *best = NULL;
    if (j->p.test == NULL) return MHLA_OK;
    MHLA_TRY(mhla_model_open(&best, t->run));
    mhla_model_set_context(best, t->context);
    const mhla_status status = mhla_samples_take(t->run, t->best_step, best, j->p.test);
    mhla_model_free(best);
    return status;
}

const mhla_task mhla_task_images = {
    .name = "images",
    .role = MHLA_ROLE_CLASSIFIER,
    .rows = keys,
    .shared = mhla_picture_keys,
    .measure = "accuracy",
    .unit = "images",
    .open = open_job,
    .close = close_job,
    .seek = mhla_pictures_seek,
    .next = next,
    .loss = loss,
    .count = count,
    .data_bytes = data_bytes,
    .evaluate = evaluate,
    .tell = tell,
    .adopt = mhla_pictures_adopt,
    .complain = mhla_pictures_complain,
    .pictures = mhla_pictures_of,
    .finish = finish,
};
