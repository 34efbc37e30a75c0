/* The training loop: batch, forward, backward, update; now and then an evaluation, a line of metrics, a checkpoint. Step
 * s depends on the recipe, the parameters after step s-1 and s alone, so that a run may end anywhere and go on. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/status.h"
#include "dist/dist.h"
#include "file/file.h"
#include "train/train.h"

enum { PATH = MHLA_RUN_PATH };

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

/* What the recipe says of parameters whatever the task. */
static mhla_status mark_params(mhla_trainer *t) {
    mhla_params *ps = t->model->params;
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        if ((p->flags & MHLA_PARAM_MIX) && mhla_recipe_bool(t->recipe, "train.mix_renormalise"))
            p->flags |= MHLA_PARAM_RENORMALISE;
    }
    return mhla_params_freeze(ps, mhla_recipe_array(t->recipe, "train.freeze"));
}

static mhla_optim_desc optimizer_of(const mhla_recipe *r) {
    return (mhla_optim_desc){
        .kind = strcmp(mhla_recipe_text(r, "train.optimizer"), "sgd") == 0 ? MHLA_OPTIM_SGD : MHLA_OPTIM_ADAMW,
        .beta1 = fmax(mhla_recipe_real(r, "train.beta1"), 1e-300), /* the optimiser's 0 is a default */
        .beta2 = fmax(mhla_recipe_real(r, "train.beta2"), 1e-300),
        .eps = mhla_recipe_real(r, "train.eps"),
        .weight_decay = mhla_recipe_real(r, "train.weight_decay"),
        .momentum = mhla_recipe_real(r, "train.momentum"),
        .clip_norm = mhla_recipe_real(r, "train.clip"),
        .rank = mhla_dist_rank(),
        .ranks = mhla_dist_ranks(),
    };
}

static mhla_status make_optimizer(mhla_trainer *t) {
    static const char *const schedules[] = {"constant", "cosine", "cosine-after", "linear"};
    const mhla_recipe *r = t->recipe;
    mhla_params *ps = t->model->params;
    const mhla_optim_desc d = optimizer_of(r);
    MHLA_TRY(mhla_optim_create(&t->optim, ps, &d));
    if (t->parts > 1) MHLA_TRY(mhla_parts_create(&t->sums, ps, t->optim, t->parts));
    if (mhla_recipe_real(r, "train.ema") > 0.0)
        MHLA_TRY(mhla_ema_create(&t->ema, ps, mhla_recipe_real(r, "train.ema"), 1));
    t->steps = mhla_recipe_int(r, "train.steps");
    if (t->steps == 0) t->steps = (int64_t)ceil(mhla_recipe_real(r, "train.epochs") * (double)t->per_epoch - 1e-9);
    t->schedule = (mhla_schedule){
        .base = mhla_recipe_real(r, "train.rate"),
        .floor = mhla_recipe_real(r, "train.min_rate"),
        .warmup_from = mhla_recipe_real(r, "train.warmup_rate"),
        .warmup = mhla_recipe_int(r, "train.warmup_steps"),
        .total = t->steps,
    };
    if (t->schedule.warmup == 0)
        t->schedule.warmup = (int64_t)(mhla_recipe_real(r, "train.warmup_epochs") * (double)t->per_epoch);
    for (int i = 0; i < 4; i++)
        if (strcmp(mhla_recipe_text(r, "train.schedule"), schedules[i]) == 0) t->schedule.kind = (mhla_schedule_kind)i;
    return MHLA_OK;
}

/* Everything but the run's folder, from a recipe that is complete. */
static mhla_status build(mhla_trainer *t) {
    MHLA_TRY(t->task->open(t));
    if (strcmp(mhla_recipe_text(t->recipe, "train.dtype"), "bfloat16") == 0)
        mhla_params_set_precision(t->model->params, MHLA_BF16);
    MHLA_TRY(mark_params(t));
    MHLA_TRY(make_optimizer(t));
    t->evaluated = t->best_step = t->saved = -1;
    t->best = NAN;
    return MHLA_OK;
}

mhla_status mhla_trainer_start(mhla_trainer **trainer, const char *run, const char *recipe, const char *const *settings,
                               int count) {
    mhla_trainer *t = calloc(1, sizeof *t);
    if (t == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->log.fd = t->lock = -1;
    *trainer = t;
    if (snprintf(t->run, sizeof t->run, "%s", run) >= (int)sizeof t->run)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", run);
    const mhla_architecture *arch;
    MHLA_TRY(mhla_task_find(&t->task, &arch, recipe, settings, count));
    const mhla_recipe_row *rows = mhla_train_rows(t->task, arch);
    if (rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the keys of a recipe");
    MHLA_TRY(mhla_recipe_create(&t->recipe, rows));
    MHLA_TRY(mhla_recipe_set(t->recipe, "task", t->task->name));
    if (recipe) MHLA_TRY(mhla_recipe_load(t->recipe, recipe));
    for (int i = 0; i < count; i++) MHLA_TRY(mhla_recipe_assign(t->recipe, settings[i]));
    return MHLA_OK;
}

/* Two that train in one folder would take each other's checkpoints away. The lock goes with the process, however it ends; a
 * file system that knows no locks is trusted. */
static mhla_status lock_run(int *lock, const char *run) {
    char path[PATH];
    snprintf(path, sizeof path, "%.*s/checkpoints", PATH - 32, run);
    *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return MHLA_OK;
    close(*lock);
    *lock = -1;
    return mhla_fail(MHLA_EIO, "%s: another process is training there", run);
}

static mhla_status make_run(mhla_trainer *t) {
    char path[PATH], found[PATH];
    MHLA_TRY(mhla_folder_make(t->run));
    snprintf(path, sizeof path, "%s/checkpoints", t->run);
    if (mkdir(path, 0777) != 0) {
        if (errno != EEXIST) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
        MHLA_TRY(lock_run(&t->lock, t->run));
        /* One that was killed before its first checkpoint is begun again. */
        if (mhla_checkpoint_find(found, sizeof found, t->run) != MHLA_EDATA)
            return mhla_fail(MHLA_EIO, "%s: there is already a run; resume it with --resume, or choose another folder",
                             t->run);
    }
    if (t->lock < 0) MHLA_TRY(lock_run(&t->lock, t->run));
    snprintf(path, sizeof path, "%s/recipe.json", t->run);
    json_t *tree = mhla_recipe_tree(t->recipe);
    const mhla_status status = tree ? mhla_json_save(tree, path) : mhla_fail(MHLA_ENOMEM, "no memory");
    json_decref(tree);
    return status;
}

static unsigned mode_of(const mhla_trainer *t) {
    return MHLA_TAPE_RECORD | MHLA_TAPE_DROP |
           (mhla_recipe_bool(t->recipe, "train.recompute") ? MHLA_TAPE_RECOMPUTE : 0u);
}

/* A piece of a batch forward and backward, of shapes alone. */
static mhla_status try_piece(mhla_trainer *t, int64_t piece) {
    if (t->tape == NULL) MHLA_TRY(mhla_tape_create(&t->tape, t->context));
    double share;
    mhla_tape_begin(t->tape, MHLA_TAPE_DRY | mode_of(t));
    mhla_tensor *loss = t->task->loss(t, t->tape, piece, t->parts * t->pieces, &share);
    MHLA_TRY(mhla_tape_status(t->tape));
    return loss ? mhla_tape_backward(t->tape, loss, (float)share) : MHLA_OK;
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
    mhla_status status = mhla_trainer_start(&t, run, recipe, settings, count);
    if (status == MHLA_OK) status = mhla_ranks_cut(t, 0);
    if (status == MHLA_OK) status = build(t);
    if (status == MHLA_OK && *mhla_recipe_text(t->recipe, "train.init")) {
        status = t->task->adopt(t, mhla_recipe_text(t->recipe, "train.init"), keep_note, t);
        if (status == MHLA_OK && t->ema) { /* the average begins where the model does */
            mhla_ema_free(t->ema);
            t->ema = NULL;
            status = mhla_ema_create(&t->ema, t->model->params, mhla_recipe_real(t->recipe, "train.ema"), 1);
        }
    }
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_ranks_compare(t);
    /* A batch that cannot be trained leaves no folder. Pieces differ: the smallest, then the largest. */
    if (status == MHLA_OK) status = try_piece(t, t->parts * t->pieces - 1);
    if (status == MHLA_OK) status = try_piece(t, 0);
    if (status == MHLA_OK && mhla_dist_rank() == 0) status = make_run(t);
    status = mhla_dist_agree(status);
    /* Something to go back to from the first moment on. */
    if (status == MHLA_OK) status = mhla_checkpoint_write(t);
    if (status != MHLA_OK) {
        mhla_trainer_free(t);
        return status;
    }
    *trainer = t;
    return MHLA_OK;
}

/* Lines written after the checkpoint belong to what is done again: later steps, and the result of an evaluation that the
 * checkpoint does not know of. They are the last ones of the file. */
static int known(const void *trainer, const json_t *line) {
    const mhla_trainer *t = trainer;
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const int test = kind && strcmp(kind, "test") == 0;
    return json_integer_value(json_object_get(line, "step")) <= (test ? t->evaluated : t->step);
}

static mhla_status cut_log(const mhla_trainer *t) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/metrics.jsonl", t->run);
    return access(path, F_OK) == 0 ? mhla_jsonl_cut(path, known, t) : MHLA_OK;
}

mhla_status mhla_trainer_resume(mhla_trainer **trainer, const char *run) {
    *trainer = NULL;
    mhla_trainer *t = NULL;
    char folder[PATH], path[PATH];
    snprintf(path, sizeof path, "%.*s/recipe.json", PATH - 32, run);
    int lock = -1;
    mhla_status status = MHLA_OK;
    if (mhla_dist_rank() == 0) {
        status = lock_run(&lock, run);
        if (status == MHLA_OK) status = mhla_checkpoint_find(folder, sizeof folder, run); /* may rename */
    }
    status = mhla_dist_agree(status);
    if (status != MHLA_OK) {
        if (lock >= 0) close(lock);
        return status;
    }
    if (mhla_dist_rank() > 0) status = mhla_checkpoint_find(folder, sizeof folder, run);
    if (status == MHLA_OK) status = mhla_trainer_start(&t, run, path, NULL, 0);
    if (t)
        t->lock = lock;
    else if (lock >= 0)
        close(lock);
    if (status == MHLA_OK) status = mhla_ranks_cut(t, 1);
    if (status == MHLA_OK) status = build(t);
    if (status == MHLA_OK) status = mhla_checkpoint_read(t, folder);
    if (status == MHLA_OK && mhla_dist_rank() == 0) status = cut_log(t);
    if (status == MHLA_OK) status = t->task->seek(t, t->step / t->per_epoch, t->step % t->per_epoch);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_ranks_compare(t);
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
    if (t->lock >= 0) close(t->lock);
    if (t->task) t->task->close(t);
    mhla_tape_free(t->tape);
    mhla_parts_free(t->sums);
    mhla_optim_free(t->optim);
    mhla_ema_free(t->ema);
    mhla_model_free(t->model);
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
        .task = t->task->name,
        .tokens_per_second = NAN,
        .test_bits_per_byte = NAN,
        .ema_bits_per_byte = NAN,
        .ema_loss = NAN,
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

/* What training will take, from shapes alone, before it begins; the tape then takes it at once. */
static mhla_status tell_memory(mhla_trainer *t) {
    const mhla_params *ps = t->model->params;
    const mhla_status status = try_piece(t, 0);
    if (status == MHLA_OK) {
        const mhla_optim_desc d = optimizer_of(t->recipe);
        const double tape = (double)mhla_tape_peak(t->tape), weights = (double)mhla_params_bytes(ps, 1);
        const double state = (double)mhla_optim_bytes(ps, &d) + (t->ema ? (double)mhla_ema_bytes(ps) : 0.0);
        const double data = t->task->data_bytes(t);
        const double sums = t->sums ? (double)mhla_parts_bytes(ps, t->parts, mhla_dist_ranks()) : 0.0;
        char more[48] = "";
        if (t->sums) snprintf(more, sizeof more, ", %.1f sums of parts", sums / 0x1p20);
        note(t, "memory%s: %.1f MiB (%.1f activations, %.1f parameters and gradients, %.1f optimiser%s, %.1f data)",
             mhla_dist_ranks() > 1 ? " of a rank" : "", (tape + weights + state + sums + data) / 0x1p20, tape / 0x1p20,
             weights / 0x1p20, state / 0x1p20, more, data / 0x1p20);
    }
    return status;
}

static mhla_status not_finite(const mhla_trainer *t, const char *what) {
    return mhla_fail(MHLA_ERANGE,
                     "%s is not finite at step %lld; the checkpoint of step %lld is kept. Try a lower train.rate, a "
                     "longer train.warmup_epochs, or train.clip=1",
                     what, (long long)t->step + 1, (long long)t->saved);
}

/* Forward and backward of one part, in pieces; *loss: its share of the batch's. */
static mhla_status take_part(mhla_trainer *t, int64_t part, double *loss, int64_t *passes) {
    int64_t first, last;
    mhla_parts_own(t->parts, mhla_dist_rank(), mhla_dist_ranks(), &first, &last);
    *loss = 0.0;
    *passes = 0;
    for (int64_t piece = 0; piece < t->pieces; piece++) {
        double share;
        if (t->sums && part == last - 1 && piece == t->pieces - 1) mhla_parts_overlap(t->sums, t->tape, t->context);
        mhla_tape_begin(t->tape, mode_of(t));
        mhla_tensor *mean = t->task->loss(t, t->tape, part * t->pieces + piece, t->parts * t->pieces, &share);
        MHLA_TRY(mhla_tape_status(t->tape));
        if (mean == NULL) continue;
        *loss += share * (double)mean->data[0];
        if (!isfinite(*loss)) return not_finite(t, "the loss");
        MHLA_TRY(mhla_tape_backward(t->tape, mean, (float)share));
        ++*passes;
    }
    mhla_tape_after(t->tape, NULL, NULL);
    return MHLA_OK;
}

/* Those of this rank. losses: [own parts]. */
static mhla_status take_parts(mhla_trainer *t, double *losses) {
    int64_t first, last, passes;
    mhla_parts_own(t->parts, mhla_dist_rank(), mhla_dist_ranks(), &first, &last);
    MHLA_TRY(t->task->next(t));
    t->right = 0;
    for (int64_t part = first; part < last; part++) {
        if (t->sums) mhla_parts_begin(t->sums);
        MHLA_TRY(take_part(t, part, &losses[part - first], &passes));
        if (t->sums) MHLA_TRY(mhla_parts_end(t->sums, part, passes, t->context));
    }
    return MHLA_OK;
}

/* One update. The parts of a batch may be on several processes; their gradients add up to those of the whole. *seen: images or
 * tokens. */
static mhla_status step(mhla_trainer *t, mhla_train_event *e, double *seen) {
    double *losses = calloc((size_t)t->parts, sizeof *losses);
    mhla_status status = losses ? take_parts(t, losses) : mhla_fail(MHLA_ENOMEM, "no memory for the losses of a batch");
    if (t->sums)
        status = mhla_ranks_meet(t, status, losses, &e->loss);
    else if (losses)
        e->loss = losses[0];
    free(losses);
    MHLA_TRY(status);
    if (t->sums)
        MHLA_TRY(mhla_parts_reduce(t->sums, t->context));
    else
        (void)mhla_optim_measure(t->optim, t->context);
    e->rate = mhla_schedule_at(&t->schedule, t->step);
    status = mhla_optim_update(t->optim, e->rate, t->context, &e->gradient_norm);
    if (status == MHLA_ERANGE) return mhla_dist_agree(not_finite(t, "the gradient"));
    MHLA_TRY(status);
    if (t->sums) MHLA_TRY(mhla_parts_share(t->sums));
    MHLA_TRY(mhla_optim_finish(t->optim, t->context));
    if (t->ema) mhla_ema_update(t->ema, t->context);
    *seen = t->task->count(t, e);
    t->step++;
    e->step = t->step;
    e->epoch = (double)t->step / (double)t->per_epoch;
    return MHLA_OK;
}

static mhla_status log_step(mhla_trainer *t, const mhla_train_event *e) {
    if (mhla_dist_rank() > 0) return MHLA_OK;
    const unsigned lost = mhla_json_lost();
    json_t *row = json_object();
    mhla_json_put(row, "kind", json_string("step"));
    mhla_json_put(row, "step", json_integer(e->step));
    mhla_json_put(row, "epoch", mhla_json_real(e->epoch));
    mhla_json_put(row, "loss", mhla_json_real(e->loss));
    if (isfinite(e->images_per_second)) mhla_json_put(row, "accuracy", mhla_json_real(e->accuracy));
    mhla_json_put(row, "rate", mhla_json_real(e->rate));
    mhla_json_put(row, "gradient_norm", mhla_json_real(e->gradient_norm));
    if (isfinite(e->images_per_second)) mhla_json_put(row, "images_per_second", mhla_json_real(e->images_per_second));
    if (isfinite(e->tokens_per_second)) mhla_json_put(row, "tokens_per_second", mhla_json_real(e->tokens_per_second));
    if (mhla_json_lost() == lost) return mhla_jsonl_write(&t->log, row);
    json_decref(row);
    return mhla_fail(MHLA_ENOMEM, "%s: no memory for a line", t->log.path);
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
    const int64_t steps = mhla_recipe_int(t->recipe, "eval.steps");
    if (steps > 0) return t->step > 0 && t->step % steps == 0;
    const double every = mhla_recipe_real(t->recipe, "eval.epochs") * (double)t->per_epoch;
    if (every < 1.0 || t->step == 0) return 0;
    return floor((double)t->step / every + 1e-9) > floor((double)(t->step - 1) / every + 1e-9);
}

/* By the weights that did better, they themselves or their average. */
static mhla_status show(mhla_trainer *t) {
    if (t->average_counts) mhla_ema_swap(t->ema);
    const mhla_status status = t->task->show(t);
    if (t->average_counts) mhla_ema_swap(t->ema);
    if (status != MHLA_ERANGE) return status;
    note(t, "no preview after this step: %s", mhla_message()); /* early weights may overflow in sampling */
    return MHLA_OK;
}

/* After something that all ranks did and that ends early where one of them is told to stop. */
static mhla_status meet(mhla_trainer *t, mhla_status mine) {
    MHLA_TRY(mhla_dist_agree(mine));
    return mhla_ranks_stop(t);
}

/* Sets `best` and, unless it was told to stop meanwhile, `evaluated`. */
static mhla_status evaluate(mhla_trainer *t) {
    const mhla_task *task = t->task;
    const unsigned lost = mhla_json_lost();
    mhla_score plain = {0}, average = {0};
    json_t *row = json_object(), *other = json_object();
    mhla_json_put(row, "kind", json_string("test"));
    mhla_json_put(row, "step", json_integer(t->step));
    mhla_json_put(row, "epoch", mhla_json_real((double)t->step / (double)t->per_epoch));
    mhla_status status =
        row && other ? task->evaluate(t, &plain, row, evaluating, t) : mhla_fail(MHLA_ENOMEM, "no memory");
    status = meet(t, status);
    if (status == MHLA_OK && t->ema && !t->stopping) {
        mhla_ema_swap(t->ema);
        status = meet(t, task->evaluate(t, &average, other, evaluating, t));
        mhla_ema_swap(t->ema);
    }
    if (status == MHLA_OK && !t->stopping) {
        t->average_counts = t->ema && (task->lower ? average.value < plain.value : average.value > plain.value);
        if (task->settle) status = task->settle(t, t->average_counts ? &average : &plain);
        if (status == MHLA_OK && task->show) status = show(t);
        status = meet(t, status);
    }
    if (status == MHLA_OK && !t->stopping) {
        char name[64];
        mhla_train_event e = event(t, MHLA_TRAIN_EVALUATED);
        task->tell(&e, &plain, t->ema ? &average : NULL);
        const double reached = t->average_counts ? average.value : plain.value;
        e.best = !(task->lower ? reached >= t->best : reached <= t->best);
        if (e.best) {
            t->best = reached;
            t->best_step = t->step;
        }
        t->evaluated = t->step;
        if (t->ema) {
            snprintf(name, sizeof name, "ema_%s", task->measure);
            mhla_json_put(row, name, mhla_json_real(average.value));
            mhla_json_put(row, "ema_loss", mhla_json_real(average.loss));
            mhla_json_put(row, "weights", json_string(t->average_counts ? "ema" : "raw"));
            json_t *classes = json_object_get(other, "classes");
            if (t->average_counts && classes) mhla_json_put(row, "classes", json_incref(classes));
        }
        mhla_json_put(row, "seconds", mhla_json_real(plain.seconds + average.seconds));
        if (mhla_dist_rank() == 0)
            status = mhla_json_lost() == lost ? mhla_jsonl_write(&t->log, json_incref(row))
                                              : mhla_fail(MHLA_ENOMEM, "%s: no memory for a line", t->log.path);
        if (t->report) t->report(t->user, &e);
    }
    json_decref(row);
    json_decref(other);
    return mhla_dist_agree(status);
}

static mhla_status save(mhla_trainer *t) {
    char path[PATH];
    /* before the checkpoint that stands for its lines: see cut_log */
    MHLA_TRY(mhla_dist_agree(mhla_dist_rank() == 0 ? mhla_jsonl_flush(&t->log) : MHLA_OK));
    MHLA_TRY(mhla_checkpoint_write(t));
    mhla_train_event e = event(t, MHLA_TRAIN_CHECKPOINT);
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", t->run, (long long)t->step);
    e.text = path;
    if (t->report) t->report(t->user, &e);
    return MHLA_OK;
}

static void note_line(mhla_trainer *t, const char *text) { note(t, "%s", text); }

static void complain(mhla_trainer *t) {
    if (t->task->complain) t->task->complain(t, note_line);
}

static mhla_status loop(mhla_trainer *t) {
    const double minutes = mhla_recipe_real(t->recipe, "checkpoint.minutes");
    const int64_t every = mhla_recipe_int(t->recipe, "checkpoint.steps"),
                  lines = mhla_recipe_int(t->recipe, "log.steps");
    const int images = strcmp(t->task->unit, "images") == 0;
    double pace = 0.0, saved = mhla_seconds(); /* pace: seconds of a step, averaged */
    MHLA_TRY(mhla_ranks_stop(t));
    while (!t->stopping) {
        /* Due evaluations come first, also when a run goes on: one may have been interrupted. */
        const int due = evaluation_due(t) && t->evaluated != t->step;
        if (due) {
            MHLA_TRY(evaluate(t));
            complain(t);
        }
        if (due && !t->stopping) {
            MHLA_TRY(save(t));
            saved = mhla_seconds();
        }
        if (t->stopping || t->step == t->steps) break;
        mhla_train_event e = event(t, MHLA_TRAIN_STEP);
        const double begin = mhla_seconds();
        double seen = 0.0;
        t->save_due = minutes > 0.0 && begin - saved > 60.0 * minutes;
        MHLA_TRY(step(t, &e, &seen));
        if (t->sums == NULL) t->stopping = t->stop;
        const double now = mhla_seconds();
        pace = pace == 0.0 ? now - begin : 0.95 * pace + 0.05 * (now - begin);
        *(images ? &e.images_per_second : &e.tokens_per_second) = seen / pace;
        e.seconds_left = pace * (double)(t->steps - t->step);
        if (t->step % lines == 0 || t->step == t->steps) MHLA_TRY(log_step(t, &e));
        if (t->report) t->report(t->user, &e);
        if (evaluation_due(t)) continue; /* it ends with a checkpoint */
        if ((every > 0 && t->step % every == 0) || t->save_due) {
            MHLA_TRY(save(t));
            saved = mhla_seconds();
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
    if (mhla_dist_rank() == 0) {
        const mhla_status opened = t->log.fd < 0 ? mhla_jsonl_open(&t->log, path) : MHLA_OK;
        MHLA_TRY(mhla_dist_agree(opened));
    } else {
        MHLA_TRY(mhla_dist_agree(MHLA_OK));
    }
    complain(t);
    if (mhla_dist_ranks() > 1) {
        char text[512];
        mhla_ranks_describe(t, text, sizeof text);
        note(t, "%s", text);
    }
    for (char *line = t->notes, *rest; line && *line; line = rest) {
        rest = strchrnul(line, '\n');
        const char end = *rest;
        *rest = '\0';
        note(t, "%s", line);
        if (end) *rest++ = end;
    }
    MHLA_TRY(tell_memory(t));
    const mhla_status status = loop(t);
    *finished = status == MHLA_OK && t->step == t->steps && t->evaluated == t->step;
    /* For the report; the run is complete without. */
    if (*finished && mhla_dist_rank() == 0 && t->task->finish && t->task->finish(t) != MHLA_OK)
        note(t, "no samples for the report: %s", mhla_message());
    return status;
}
