/* The training loop: batch, forward, backward, update; now and then an evaluation, a line of metrics, a checkpoint. Step
 * s depends on the recipe, the parameters after step s-1 and s alone, so that a run may end anywhere and go on. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/status.h"
#include "io/file.h"
#include "train/train.h"

enum { PATH = MHLA_RUN_PATH };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status open_data(mhla_trainer *t) {
    const char *source = mhla_recipe_text(t->recipe, "data.source");
    char folder[PATH];
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
    MHLA_TRY(mhla_dataset_open(&t->train, folder, MHLA_SPLIT_TRAIN));
    return mhla_dataset_open(&t->test, folder, MHLA_SPLIT_TEST);
}

/* What the recipe leaves open about the model follows from the data, and is kept in the run's recipe. */
static mhla_status make_model(mhla_trainer *t) {
    const struct {
        const char *key;
        int value;
    } follow[] = {{"model.classes", mhla_dataset_classes(t->train)},
                  {"model.channels", mhla_dataset_channels(t->train)}};
    for (int i = 0; i < 2; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", follow[i].value);
        if (!mhla_recipe_has(t->recipe, follow[i].key)) MHLA_TRY(mhla_recipe_set(t->recipe, follow[i].key, text));
    }
    mhla_deit_config c;
    MHLA_TRY(mhla_deit_from_recipe(&c, t->recipe, "model."));
    if (c.classes < mhla_dataset_classes(t->train))
        return mhla_fail(MHLA_EINVAL, "model.classes is %d, but the data has %d classes", c.classes,
                         mhla_dataset_classes(t->train));
    if (c.image[0] != c.image[1])
        return mhla_fail(MHLA_ENOTSUP, "model.image is %d x %d: pictures are made square", c.image[0], c.image[1]);
    char **names = calloc((size_t)c.classes, sizeof *names);
    for (int i = 0; names && i < c.classes; i++) {
        char number[16];
        const char *name = i < mhla_dataset_classes(t->train) ? mhla_dataset_class_name(t->train, i) : "";
        snprintf(number, sizeof number, "%d", i);
        if ((names[i] = strdup(*name ? name : number)) == NULL) {
            mhla_names_free(names, c.classes);
            names = NULL;
        }
    }
    if (names == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d names", c.classes);
    MHLA_TRY(mhla_model_of_deit(&t->model, &c, names));
    MHLA_TRY(mhla_deit_init(t->model->deit, (uint64_t)mhla_recipe_int(t->recipe, "seed")));
    mhla_params *ps = t->model->params;
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        if ((p->flags & MHLA_PARAM_MIX) && mhla_recipe_bool(t->recipe, "train.mix_renormalise"))
            p->flags |= MHLA_PARAM_RENORMALISE;
    }
    return mhla_params_freeze(ps, mhla_recipe_array(t->recipe, "train.freeze"));
}

static mhla_status make_loader(mhla_trainer *t) {
    static const char *const crops[] = {"none", "random", "pad"};
    static const mhla_crop kinds[] = {MHLA_CROP_EVAL, MHLA_CROP_RANDOM, MHLA_CROP_PAD};
    const mhla_recipe *r = t->recipe;
    mhla_loader_desc d = {
        .data = t->train,
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
    if (d.batch > mhla_dataset_count(t->train))
        return mhla_fail(MHLA_EINVAL, "train.batch is %d, more than the %lld images of the data", d.batch,
                         (long long)mhla_dataset_count(t->train));
    return mhla_loader_create(&t->loader, &d);
}

static mhla_status make_optimizer(mhla_trainer *t) {
    static const char *const schedules[] = {"constant", "cosine", "cosine-after", "linear"};
    const mhla_recipe *r = t->recipe;
    mhla_params *ps = t->model->params;
    const mhla_optim_desc d = {
        .kind = strcmp(mhla_recipe_text(r, "train.optimizer"), "sgd") == 0 ? MHLA_OPTIM_SGD : MHLA_OPTIM_ADAMW,
        .beta1 = mhla_recipe_real(r, "train.beta1"),
        .beta2 = mhla_recipe_real(r, "train.beta2"),
        .eps = mhla_recipe_real(r, "train.eps"),
        .weight_decay = mhla_recipe_real(r, "train.weight_decay"),
        .momentum = mhla_recipe_real(r, "train.momentum"),
        .clip_norm = mhla_recipe_real(r, "train.clip"),
    };
    MHLA_TRY(mhla_optim_create(&t->optim, ps, &d));
    if (mhla_recipe_real(r, "train.ema") > 0.0)
        MHLA_TRY(mhla_ema_create(&t->ema, ps, mhla_recipe_real(r, "train.ema"), 1));
    t->per_epoch = mhla_loader_batches(t->loader);
    t->steps = mhla_recipe_int(r, "train.steps");
    if (t->steps == 0) t->steps = (int64_t)ceil(mhla_recipe_real(r, "train.epochs") * (double)t->per_epoch - 1e-9);
    t->schedule = (mhla_schedule){
        .base = mhla_recipe_real(r, "train.rate"),
        .floor = mhla_recipe_real(r, "train.min_rate"),
        .warmup_from = mhla_recipe_real(r, "train.warmup_rate"),
        .warmup = (int64_t)(mhla_recipe_real(r, "train.warmup_epochs") * (double)t->per_epoch),
        .total = t->steps,
    };
    for (int i = 0; i < 4; i++)
        if (strcmp(mhla_recipe_text(r, "train.schedule"), schedules[i]) == 0) t->schedule.kind = (mhla_schedule_kind)i;
    return MHLA_OK;
}

/* Everything but the run's folder, from a recipe that is complete. */
static mhla_status build(mhla_trainer *t) {
    MHLA_TRY(open_data(t));
    MHLA_TRY(make_model(t));
    MHLA_TRY(make_loader(t));
    MHLA_TRY(make_optimizer(t));
    t->evaluated = t->best_step = t->saved = -1;
    t->best_accuracy = NAN;
    return MHLA_OK;
}

static mhla_status start(mhla_trainer **trainer, const char *run) {
    mhla_trainer *t = calloc(1, sizeof *t);
    if (t == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->log.fd = -1;
    *trainer = t;
    if (snprintf(t->run, sizeof t->run, "%s", run) >= (int)sizeof t->run)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", run);
    return mhla_recipe_create(&t->recipe, mhla_train_rows());
}

/* Folders on the way are made, too. */
static mhla_status make_folders(const char *path) {
    char part[PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        const char end = *at;
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return mhla_fail(MHLA_EIO, "%s: %s", part, strerror(errno));
        if (end == '\0') return MHLA_OK;
        *at = end;
    }
}

static mhla_status make_run(mhla_trainer *t) {
    char path[PATH];
    MHLA_TRY(make_folders(t->run));
    snprintf(path, sizeof path, "%s/checkpoints", t->run);
    if (mkdir(path, 0777) != 0) {
        if (errno == EEXIST)
            return mhla_fail(MHLA_EINVAL,
                             "%s: a run is there already; go on with it by --resume, or choose another folder", t->run);
        return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/recipe.json", t->run);
    json_t *tree = mhla_recipe_tree(t->recipe);
    const mhla_status status = tree ? mhla_json_save(tree, path) : mhla_fail(MHLA_ENOMEM, "no memory");
    json_decref(tree);
    return status;
}

static void keep_note(void *user, const char *text) {
    mhla_trainer *t = user;
    char *joined = NULL;
    if (asprintf(&joined, "%s%s%s", t->notes ? t->notes : "", t->notes ? "\n" : "", text) < 0) return;
    free(t->notes);
    t->notes = joined;
}

mhla_status mhla_trainer_create(mhla_trainer **trainer, const char *run, const char *recipe,
                                const char *const *settings, int count) {
    *trainer = NULL;
    mhla_trainer *t = NULL;
    mhla_status status = start(&t, run);
    if (status == MHLA_OK && recipe) status = mhla_recipe_load(t->recipe, recipe);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = mhla_recipe_assign(t->recipe, settings[i]);
    if (status == MHLA_OK) status = build(t);
    if (status == MHLA_OK && *mhla_recipe_text(t->recipe, "train.init")) {
        status = mhla_model_adopt(t->model, mhla_recipe_text(t->recipe, "train.init"), keep_note, t);
        if (status == MHLA_OK && t->ema) { /* the average begins where the model does */
            mhla_ema_free(t->ema);
            t->ema = NULL;
            status = mhla_ema_create(&t->ema, t->model->params, mhla_recipe_real(t->recipe, "train.ema"), 1);
        }
    }
    if (status == MHLA_OK) status = make_run(t);
    /* Something to go back to from the first moment on. */
    if (status == MHLA_OK) status = mhla_checkpoint_write(t);
    if (status != MHLA_OK) {
        mhla_trainer_free(t);
        return status;
    }
    *trainer = t;
    return MHLA_OK;
}

/* Lines of the steps to come, written before the run was stopped, are cut off. */
typedef struct kept_lines {
    FILE *out;
    int64_t step;
} kept_lines;

static mhla_status keep_line(void *user, const json_t *value) {
    const kept_lines *k = user;
    if (json_integer_value(json_object_get(value, "step")) > k->step) return MHLA_OK;
    char *text = json_dumps(value, JSON_COMPACT);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
    fprintf(k->out, "%s\n", text);
    free(text);
    return MHLA_OK;
}

static mhla_status cut_log(const mhla_trainer *t) {
    char path[PATH];
    mhla_writer w;
    snprintf(path, sizeof path, "%s/metrics.jsonl", t->run);
    if (access(path, F_OK) != 0) return MHLA_OK;
    MHLA_TRY(mhla_writer_open(&w, path));
    const mhla_status status = mhla_jsonl_read(path, keep_line, &(kept_lines){w.stream, t->step});
    if (status != MHLA_OK) {
        mhla_writer_discard(&w);
        return status;
    }
    return mhla_writer_commit(&w);
}

mhla_status mhla_trainer_resume(mhla_trainer **trainer, const char *run) {
    *trainer = NULL;
    mhla_trainer *t = NULL;
    char folder[PATH], path[PATH];
    snprintf(path, sizeof path, "%.*s/recipe.json", PATH - 32, run);
    mhla_status status = start(&t, run);
    if (status == MHLA_OK) status = mhla_checkpoint_find(folder, sizeof folder, run);
    if (status == MHLA_OK) status = mhla_recipe_load(t->recipe, path);
    if (status == MHLA_OK) status = build(t);
    if (status == MHLA_OK) status = mhla_checkpoint_read(t, folder);
    if (status == MHLA_OK) status = cut_log(t);
    if (status == MHLA_OK) status = mhla_loader_seek(t->loader, t->step / t->per_epoch, t->step % t->per_epoch);
    if (status != MHLA_OK) {
        mhla_trainer_free(t);
        return status;
    }
    *trainer = t;
    return MHLA_OK;
}

void mhla_trainer_free(mhla_trainer *t) {
    if (t == NULL) return;
    if (t->log.fd >= 0) mhla_jsonl_close(&t->log);
    mhla_loader_free(t->loader);
    mhla_tape_free(t->tape);
    mhla_optim_free(t->optim);
    mhla_ema_free(t->ema);
    mhla_model_free(t->model);
    mhla_dataset_free(t->train);
    mhla_dataset_free(t->test);
    mhla_recipe_free(t->recipe);
    free(t->notes);
    free(t);
}

void mhla_trainer_set_context(mhla_trainer *t, const mhla_context *context) {
    mhla_tape_free(t->tape);
    t->tape = NULL;
    t->context = context;
    mhla_model_set_context(t->model, context);
}

void mhla_trainer_stop(mhla_trainer *t) { t->stop = 1; }

mhla_model *mhla_trainer_model(mhla_trainer *t) { return t->model; }

/* ---- Running ----------------------------------------------------------------------------------------------------------- */

static mhla_train_event event(const mhla_trainer *t, mhla_train_kind kind) {
    return (mhla_train_event){
        .size = sizeof(mhla_train_event),
        .kind = kind,
        .step = t->step,
        .steps = t->steps,
        .epoch = (double)t->step / (double)t->per_epoch,
        .epochs = (double)t->steps / (double)t->per_epoch,
        .loss = NAN,
        .accuracy = NAN,
        .rate = NAN,
        .gradient_norm = NAN,
        .images_per_second = NAN,
        .seconds_left = NAN,
        .test_loss = NAN,
        .test_accuracy = NAN,
        .ema_accuracy = NAN,
        .text = "",
    };
}

__attribute__((format(printf, 2, 3))) static void note(const mhla_trainer *t, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mhla_train_event e = event(t, MHLA_TRAIN_NOTE);
    e.text = text;
    if (t->report) t->report(t->user, &e);
}

/* Forward of `rows` samples of a batch, from `first` on; *loss is their mean. */
static mhla_tensor *forward(mhla_trainer *t, mhla_tape *tape, const float *images, const float *targets, int64_t rows,
                            mhla_tensor **logits) {
    const mhla_deit_config *c = mhla_deit_config_of(t->model->deit);
    const mhla_deit_run run = {.drop_path = (float)mhla_recipe_real(t->recipe, "train.drop_path"),
                               .recompute = mhla_recipe_bool(t->recipe, "train.recompute")};
    mhla_tensor *x = mhla_nn_input(tape, images, MHLA_SHAPE(rows, c->channels, c->image[0], c->image[1]));
    *logits = mhla_deit_forward(tape, t->model->deit, &run, x);
    return mhla_nn_cross_entropy(tape, *logits, NULL, targets, 0.0f, NULL);
}

/* Pictures that are kept: those of a set whose pictures have one size, and the batches ahead of training and of
 * evaluation. */
static double data_bytes(const mhla_trainer *t) {
    const mhla_deit_config *c = mhla_deit_config_of(t->model->deit);
    const double pixels = (double)c->channels * c->image[0] * c->image[1];
    double bytes =
        sizeof(float) * (pixels + c->classes) * MHLA_TRAIN_AHEAD * (double)mhla_recipe_int(t->recipe, "train.batch");
    bytes += sizeof(float) * pixels * MHLA_EVALUATE_AHEAD * MHLA_EVALUATE_BATCH;
    const mhla_dataset *const sets[] = {t->train, t->test};
    for (int i = 0; i < 2; i++)
        if (sets[i])
            bytes += (double)mhla_dataset_count(sets[i]) * mhla_dataset_width(sets[i]) * mhla_dataset_height(sets[i]) *
                     mhla_dataset_channels(sets[i]);
    return bytes;
}

/* What training will take, from shapes alone, before it begins; the tape then takes it at once. */
static mhla_status tell_memory(mhla_trainer *t, int64_t rows) {
    const mhla_params *ps = t->model->params;
    mhla_tape *dry = t->tape;
    mhla_tensor *logits;
    mhla_tape_begin(dry, MHLA_TAPE_DRY | MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
    mhla_tensor *loss = forward(t, dry, NULL, NULL, rows, &logits);
    mhla_status status = mhla_tape_backward(dry, loss, 1.0f);
    if (status == MHLA_OK) {
        const mhla_optim_desc d = {.kind = strcmp(mhla_recipe_text(t->recipe, "train.optimizer"), "sgd") == 0
                                               ? MHLA_OPTIM_SGD
                                               : MHLA_OPTIM_ADAMW};
        const double tape = (double)mhla_tape_peak(dry), weights = (double)mhla_params_bytes(ps, 1);
        const double state = (double)mhla_optim_bytes(ps, &d) + (t->ema ? (double)mhla_ema_bytes(ps) : 0.0);
        const double data = data_bytes(t);
        note(t, "memory: %.1f MiB (%.1f activations, %.1f parameters and gradients, %.1f optimiser, %.1f data)",
             (tape + weights + state + data) / 0x1p20, tape / 0x1p20, weights / 0x1p20, state / 0x1p20, data / 0x1p20);
    }
    return status;
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

static mhla_status not_finite(const mhla_trainer *t, const char *what) {
    return mhla_fail(MHLA_ERANGE,
                     "%s is not finite at step %lld; the checkpoint of step %lld is kept. Try a lower train.rate, a "
                     "longer train.warmup_epochs, or train.clip=1",
                     what, (long long)t->step + 1, (long long)t->saved);
}

/* One update. The batch may be taken in parts, whose gradients add up to those of the whole. */
static mhla_status step(mhla_trainer *t, mhla_train_event *e) {
    const mhla_deit_config *c = mhla_deit_config_of(t->model->deit);
    const int64_t pixels = (int64_t)c->channels * c->image[0] * c->image[1];
    const int64_t parts = mhla_recipe_int(t->recipe, "train.accumulate");
    const int mixed =
        mhla_recipe_real(t->recipe, "augment.mixup") > 0.0 || mhla_recipe_real(t->recipe, "augment.cutmix") > 0.0;
    const mhla_batch *batch;
    int64_t right = 0;
    MHLA_TRY(mhla_loader_next(t->loader, &batch));
    e->loss = 0.0;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = part * batch->count / parts, rows = (part + 1) * batch->count / parts - first;
        if (rows == 0) continue;
        mhla_tensor *logits;
        mhla_tape_begin(t->tape, MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
        mhla_tape_key(t->tape, (uint64_t)mhla_recipe_int(t->recipe, "seed"), (uint64_t)t->step, (uint64_t)first);
        mhla_tensor *loss =
            forward(t, t->tape, batch->images + first * pixels, batch->targets + first * c->classes, rows, &logits);
        MHLA_TRY(mhla_tape_status(t->tape));
        const double share = (double)rows / batch->count;
        e->loss += share * (double)loss->data[0];
        right += right_ones(logits, batch->labels + first);
        if (!isfinite(e->loss)) return not_finite(t, "the loss");
        MHLA_TRY(mhla_tape_backward(t->tape, loss, (float)share));
    }
    e->rate = mhla_schedule_at(&t->schedule, t->step);
    const mhla_status status = mhla_optim_step(t->optim, e->rate, t->context, &e->gradient_norm);
    if (status == MHLA_ERANGE) return not_finite(t, "the gradient");
    MHLA_TRY(status);
    if (t->ema) mhla_ema_update(t->ema, t->context);
    e->accuracy = mixed ? NAN : (double)right / batch->count;
    t->step++;
    e->step = t->step;
    e->epoch = (double)t->step / (double)t->per_epoch;
    return MHLA_OK;
}

static mhla_status log_step(mhla_trainer *t, const mhla_train_event *e) {
    json_t *row = json_object();
    json_object_set_new(row, "kind", json_string("step"));
    json_object_set_new(row, "step", json_integer(e->step));
    json_object_set_new(row, "epoch", mhla_json_real(e->epoch));
    json_object_set_new(row, "loss", mhla_json_real(e->loss));
    json_object_set_new(row, "accuracy", mhla_json_real(e->accuracy));
    json_object_set_new(row, "rate", mhla_json_real(e->rate));
    json_object_set_new(row, "gradient_norm", mhla_json_real(e->gradient_norm));
    json_object_set_new(row, "images_per_second", mhla_json_real(e->images_per_second));
    return mhla_jsonl_write(&t->log, row);
}

/* ---- Evaluation ---- */

static void evaluating(void *user, int64_t done, int64_t all) {
    const mhla_trainer *t = user;
    mhla_train_event e = event(t, MHLA_TRAIN_EVALUATING);
    e.done = done;
    e.all = all;
    if (t->report) t->report(t->user, &e);
}

static int evaluation_due(const mhla_trainer *t) {
    if (t->step == t->steps) return 1;
    const double every = mhla_recipe_real(t->recipe, "eval.epochs") * (double)t->per_epoch;
    if (every < 1.0 || t->step == 0) return 0;
    return floor((double)t->step / every + 1e-9) > floor((double)(t->step - 1) / every + 1e-9);
}

static json_t *per_class(const mhla_evaluation *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->classes; i++)
        json_array_append_new(
            list, mhla_json_real(r->class_images[i] ? (double)r->class_right[i] / (double)r->class_images[i] : NAN));
    return list;
}

/* Sets `best` and, unless it was told to stop meanwhile, `evaluated`. */
static mhla_status evaluate(mhla_trainer *t) {
    const int workers = (int)mhla_recipe_int(t->recipe, "data.workers");
    const int64_t limit = mhla_recipe_int(t->recipe, "eval.limit");
    mhla_evaluation plain = {.size = sizeof plain}, ema = {.size = sizeof ema};
    mhla_status status = mhla_evaluate(t->model, &plain, t->test, workers, limit, &t->stop, evaluating, t);
    if (status == MHLA_OK && t->ema && !t->stop) {
        mhla_ema_swap(t->ema);
        status = mhla_evaluate(t->model, &ema, t->test, workers, limit, &t->stop, evaluating, t);
        mhla_ema_swap(t->ema);
    }
    if (status == MHLA_OK && !t->stop) {
        mhla_train_event e = event(t, MHLA_TRAIN_EVALUATED);
        e.test_loss = plain.loss;
        e.test_accuracy = (double)plain.top1 / (double)plain.images;
        if (t->ema) e.ema_accuracy = (double)ema.top1 / (double)ema.images;
        const double reached = t->ema ? fmax(e.test_accuracy, e.ema_accuracy) : e.test_accuracy;
        e.best = !(reached <= t->best_accuracy);
        if (e.best) {
            t->best_accuracy = reached;
            t->best_step = t->step;
        }
        t->evaluated = t->step;
        json_t *row = json_object();
        json_object_set_new(row, "kind", json_string("test"));
        json_object_set_new(row, "step", json_integer(e.step));
        json_object_set_new(row, "epoch", mhla_json_real(e.epoch));
        json_object_set_new(row, "images", json_integer(plain.images));
        json_object_set_new(row, "loss", mhla_json_real(e.test_loss));
        json_object_set_new(row, "accuracy", mhla_json_real(e.test_accuracy));
        json_object_set_new(row, "top5", mhla_json_real((double)plain.top5 / (double)plain.images));
        if (t->ema) json_object_set_new(row, "ema_accuracy", mhla_json_real(e.ema_accuracy));
        json_object_set_new(row, "classes", per_class(&plain));
        json_object_set_new(row, "seconds", mhla_json_real(plain.seconds + ema.seconds));
        status = mhla_jsonl_write(&t->log, row);
        if (t->report) t->report(t->user, &e);
    }
    mhla_evaluation_free(&plain);
    mhla_evaluation_free(&ema);
    return status;
}

static mhla_status save(mhla_trainer *t) {
    char path[PATH];
    MHLA_TRY(mhla_checkpoint_write(t));
    mhla_train_event e = event(t, MHLA_TRAIN_CHECKPOINT);
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", t->run, (long long)t->step);
    e.text = path;
    if (t->report) t->report(t->user, &e);
    return MHLA_OK;
}

/* Files that could not be read, of either part of the data, and were not told yet: some show only when they are decoded. */
static void tell_broken(mhla_trainer *t) {
    enum { MOST = 5 };
    mhla_dataset *const parts[2] = {t->train, t->test};
    for (int i = 0; i < 2 && parts[i]; i++) {
        int64_t count = 0;
        const char *sentences[100];
        const int64_t kept = mhla_dataset_broken(parts[i], &count, sentences, 100), from = t->told[i];
        if (count == from) continue;
        const int64_t to = kept < from + MOST ? kept : from + MOST;
        note(t, "%lld%s file%s of the %s data could not be read:", (long long)(count - from), from ? " more" : "",
             count - from == 1 ? "" : "s", i ? "test" : "training");
        for (int64_t k = from; k < to; k++) note(t, "  %s", sentences[k]);
        if (count > to) note(t, "  ...");
        t->told[i] = count;
    }
}

static mhla_status loop(mhla_trainer *t) {
    const double minutes = mhla_recipe_real(t->recipe, "checkpoint.minutes");
    const int64_t every = mhla_recipe_int(t->recipe, "checkpoint.steps"),
                  lines = mhla_recipe_int(t->recipe, "log.steps");
    const double batch = (double)mhla_recipe_int(t->recipe, "train.batch");
    double pace = 0.0, saved = seconds(); /* pace: seconds of a step, averaged */
    while (!t->stop) {
        /* Due evaluations come first, also when a run goes on: one may have been interrupted. */
        const int due = evaluation_due(t) && t->evaluated != t->step;
        if (due) {
            MHLA_TRY(evaluate(t));
            tell_broken(t);
        }
        if (due && !t->stop) {
            MHLA_TRY(save(t));
            saved = seconds();
        }
        if (t->stop || t->step == t->steps) break;
        mhla_train_event e = event(t, MHLA_TRAIN_STEP);
        const double begin = seconds();
        MHLA_TRY(step(t, &e));
        const double now = seconds();
        pace = pace == 0.0 ? now - begin : 0.95 * pace + 0.05 * (now - begin);
        e.images_per_second = batch / pace;
        e.seconds_left = pace * (double)(t->steps - t->step);
        if (t->step % lines == 0 || t->step == t->steps) MHLA_TRY(log_step(t, &e));
        if (t->report) t->report(t->user, &e);
        if (evaluation_due(t)) continue; /* it ends with a checkpoint */
        if ((every > 0 && t->step % every == 0) || (minutes > 0.0 && now - saved > 60.0 * minutes)) {
            MHLA_TRY(save(t));
            saved = seconds();
        }
    }
    return t->saved == t->step ? MHLA_OK : save(t);
}

mhla_status mhla_trainer_run(mhla_trainer *t, mhla_train_fn report, void *user, int *finished) {
    char path[PATH];
    *finished = 0;
    t->report = report;
    t->user = user;
    snprintf(path, sizeof path, "%s/metrics.jsonl", t->run);
    if (t->log.fd < 0) MHLA_TRY(mhla_jsonl_open(&t->log, path));
    const int64_t batch = mhla_recipe_int(t->recipe, "train.batch"),
                  parts = mhla_recipe_int(t->recipe, "train.accumulate");
    tell_broken(t);
    for (char *line = t->notes, *rest; line && *line; line = rest) {
        rest = strchrnul(line, '\n');
        const char end = *rest;
        *rest = '\0';
        note(t, "%s", line);
        if (end) *rest++ = end;
    }
    if (t->tape == NULL) MHLA_TRY(mhla_tape_create(&t->tape, t->context));
    MHLA_TRY(tell_memory(t, (batch + parts - 1) / parts));
    const mhla_status status = loop(t);
    *finished = status == MHLA_OK && t->step == t->steps && t->evaluated == t->step;
    /* For the report; the run is complete without. */
    if (*finished && t->test && mhla_samples_take(t->run, t->step, t->model, t->test) != MHLA_OK)
        note(t, "no sample predictions: %s", mhla_message());
    return status;
}
