/* Checkpoints: RUN/checkpoints/step-NNNNNNNN/ with
 *
 *   config.json, model.safetensors   the model; any program that reads safetensors reads it
 *   ema.safetensors                  its average, under the same names
 *   optimizer.safetensors            exp_avg.NAME, exp_avg_sq.NAME, updates
 *   state.json                       where training stands, which of the two did better when they were tested;
 *                                    randomness needs no state, it is keyed by the step
 *
 * A checkpoint is filled under the name .tmp-step-..., each file flushed to the disk, then renamed: a folder that is
 * called step-NNNNNNNN is complete. Nothing of time or place is in it, so that equal training makes equal bytes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "dist/dist.h"
#include "file/file.h"
#include "train/train.h"

enum { PATH = MHLA_RUN_PATH };

/* ---- Folders ------------------------------------------------------------------------------------------------------- */

static mhla_status flush_folder(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    const int bad = fsync(fd) != 0 && errno != EINVAL; /* some file systems cannot */
    const int why = errno;
    close(fd);
    return bad ? mhla_fail(MHLA_EIO, "%s: %s", path, strerror(why)) : MHLA_OK;
}

static mhla_status point(const char *run, const char *name, int64_t step) {
    char target[64], path[PATH], temporary[PATH];
    snprintf(target, sizeof target, "checkpoints/step-%08lld", (long long)step);
    snprintf(path, sizeof path, "%s/%s", run, name);
    snprintf(temporary, sizeof temporary, "%s/.tmp-%s", run, name);
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    return flush_folder(run);
}

/* "step-00001200" -> 1200, anything else -1. */
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0) return -1;
    char *end;
    const long long n = strtoll(name + 5, &end, 10);
    return *end == '\0' && end - (name + 5) >= 8 && n >= 0 ? n : -1;
}

/* Removes checkpoints that are neither `last` nor `best`, and what a killed writer left behind. A folder first loses its
 * name, so that half a checkpoint never looks whole. */
static void clean(const char *run, int64_t last, int64_t best) {
    char folder[PATH], path[2 * PATH], trash[2 * PATH];
    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const int64_t step = step_of(e->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strncmp(e->d_name, ".tmp-", 5) == 0 || strncmp(e->d_name, ".old-", 5) == 0 ||
            strncmp(e->d_name, "prev-", 5) == 0) {
            mhla_folder_remove(path);
        } else if (step >= 0 && step != last && step != best) {
            snprintf(trash, sizeof trash, "%s/.old-%s", folder, e->d_name);
            if (rename(path, trash) == 0) mhla_folder_remove(trash);
        }
    }
    closedir(dir);
}

mhla_status mhla_checkpoint_find(char *folder, size_t size, const char *run) {
    char path[PATH];
    int64_t newest = -1;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    DIR *dir = opendir(path);
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s: this is not a run that can be resumed", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const int64_t step = step_of(strncmp(e->d_name, "prev-", 5) == 0 ? e->d_name + 5 : e->d_name);
        if (step > newest) newest = step;
    }
    closedir(dir);
    if (newest < 0) return mhla_fail(MHLA_EDATA, "%s: no checkpoint has been written yet; start the run again", run);
    if (snprintf(folder, size, "%s/step-%08lld", path, (long long)newest) >= (int)size)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", run);
    struct stat info;
    if (stat(folder, &info) != 0) { /* killed while one took the place of another, see mhla_checkpoint_write */
        char previous[PATH + 64];
        snprintf(previous, sizeof previous, "%s/prev-step-%08lld", path, (long long)newest);
        if (rename(previous, folder) != 0) return mhla_fail(MHLA_EIO, "%s: %s", previous, strerror(errno));
    }
    return MHLA_OK;
}

/* ---- Writing ---------------------------------------------------------------------------------------------------------- */

static const float *averaged(void *user, int i) { return mhla_ema_data(user, i); }

/* ---- The optimiser's state may be shared out over ranks. The writer asks for one tensor after the other; the other ranks send what they
 * have of it, until there is no more to ask for. ---- */

enum { TAG_STATE = 3 };

/* Which tensor of which slot; an index below 0: no more. */
typedef struct state_tensor {
    int32_t index, slot;
} state_tensor;

/* Those of a file: tensor i of the list is states[i]. */
typedef struct state_file {
    mhla_trainer *t;
    const mhla_storable *list;
    const state_tensor *states;
} state_file;

static mhla_status fetch_state(void *user, const mhla_storable *tensor, float *all) {
    const state_file *file = user;
    const state_tensor *w = &file->states[tensor - file->list];
    mhla_optim *o = file->t->optim;
    const int ranks = mhla_dist_ranks();
    state_tensor asked = *w;
    MHLA_TRY(mhla_dist_spread(&asked, sizeof asked, 0));
    mhla_optim_join(o, w->index, 0, all, mhla_optim_slot(o, w->index, w->slot));
    for (int r = 1; r < ranks; r++) {
        const int64_t n = mhla_optim_owned(o, w->index, r);
        mhla_message_t m;
        float *part = malloc((size_t)(n + 1) * sizeof *part);
        mhla_status status =
            part ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the optimiser's state of rank %d", r);
        if (status == MHLA_OK) status = mhla_dist_receive(&m, part, (size_t)n * sizeof *part, r, TAG_STATE);
        if (status == MHLA_OK) status = mhla_dist_wait(&m, 1);
        if (status == MHLA_OK) mhla_optim_join(o, w->index, r, all, part);
        free(part);
        MHLA_TRY(status);
    }
    return MHLA_OK;
}

static mhla_status serve_state(mhla_trainer *t) {
    for (;;) {
        state_tensor asked;
        mhla_message_t m;
        MHLA_TRY(mhla_dist_spread(&asked, sizeof asked, 0));
        if (asked.index < 0) return MHLA_OK;
        const int64_t n = mhla_optim_owned(t->optim, asked.index, mhla_dist_rank());
        MHLA_TRY(mhla_dist_send(&m, mhla_optim_slot(t->optim, asked.index, asked.slot), (size_t)n * sizeof(float), 0,
                                TAG_STATE));
        MHLA_TRY(mhla_dist_wait(&m, 1));
    }
}

static mhla_status write_optimizer(mhla_trainer *t, const char *path) {
    const mhla_params *ps = t->model->params;
    const int n = mhla_params_count(ps), slots = mhla_optim_slots(t->optim), alone = mhla_dist_ranks() == 1;
    int stored = 0;
    mhla_storable *list = calloc((size_t)(n * slots + 1), sizeof *list);
    char(*names)[160] = calloc((size_t)(n * slots), sizeof *names);
    int64_t *updates = calloc((size_t)n, sizeof *updates);
    state_tensor *states = calloc((size_t)(n * slots + 1), sizeof *states);
    const int64_t shape = n;
    mhla_status status =
        list && names && updates && states ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of tensors");
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        updates[i] = *mhla_optim_updates(t->optim, i);
        for (int s = 0; s < slots && !(p->flags & MHLA_PARAM_BUFFER); s++) { /* a buffer has no moments */
            char *name = names[stored];
            snprintf(name, sizeof *names, "%s.%s", mhla_optim_slot_name(t->optim, s), p->name);
            states[stored] = (state_tensor){i, s};
            list[stored++] = (mhla_storable){
                name, p->dims, p->shape, alone ? mhla_optim_slot(t->optim, i, s) : NULL, MHLA_IO_F32, MHLA_IO_F32};
        }
    }
    if (status == MHLA_OK) {
        list[stored++] = (mhla_storable){"updates", 1, &shape, updates, MHLA_IO_I64, MHLA_IO_I64};
        status = mhla_safetensors_write_fetched(path, list, stored, fetch_state, &(state_file){t, list, states});
    }
    free(list);
    free(names);
    free(updates);
    free(states);
    return status;
}

static mhla_status write_state(const mhla_trainer *t, const char *path) {
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object();
    mhla_json_put(tree, "step", json_integer(t->step));
    mhla_json_put(tree, "steps", json_integer(t->steps));
    mhla_json_put(tree, "epoch", json_integer(t->step / t->per_epoch));
    mhla_json_put(tree, "batch", json_integer(t->step % t->per_epoch));
    mhla_json_put(tree, "evaluated_step", json_integer(t->evaluated));
    mhla_json_put(tree, "weights", json_string(t->average_counts ? "ema" : "raw")); /* which did better there */
    mhla_json_put(tree, "best_step", json_integer(t->best_step));
    char best[64];
    snprintf(best, sizeof best, "best_%s", t->task->measure);
    mhla_json_put(tree, best, mhla_json_real(t->best));
    mhla_json_put(tree, "ema_updates", json_integer(t->ema ? *mhla_ema_updates(t->ema) : 0));
    const mhla_status status = mhla_json_lost() == lost ? mhla_json_save(tree, path)
                                                        : mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    json_decref(tree);
    return status;
}

static mhla_status fill(mhla_trainer *t, const char *folder) {
    char path[2 * PATH];
    if (mkdir(folder, 0777) != 0) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    MHLA_TRY(mhla_model_save(t->model, folder));
    if (t->task->save) MHLA_TRY(t->task->save(t, folder));
    if (t->ema) {
        snprintf(path, sizeof path, "%s/ema.safetensors", folder);
        MHLA_TRY(mhla_params_save(t->model->params, path, averaged, t->ema));
    }
    snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
    MHLA_TRY(write_optimizer(t, path));
    snprintf(path, sizeof path, "%s/state.json", folder);
    MHLA_TRY(write_state(t, path));
    return flush_folder(folder);
}

static mhla_status write_checkpoint(mhla_trainer *t) {
    char all[PATH], temporary[PATH + 64], final[PATH + 64], old[PATH + 64];
    snprintf(all, sizeof all, "%s/checkpoints", t->run);
    snprintf(temporary, sizeof temporary, "%s/.tmp-step-%08lld", all, (long long)t->step);
    snprintf(final, sizeof final, "%s/step-%08lld", all, (long long)t->step);
    snprintf(old, sizeof old, "%s/prev-step-%08lld", all, (long long)t->step);
    mhla_folder_remove(temporary);
    mhla_status status = fill(t, temporary);
    if (mhla_dist_ranks() > 1) { /* also where it failed before it asked for anything */
        state_tensor last = {-1, -1};
        const mhla_status told = mhla_dist_spread(&last, sizeof last, 0);
        if (status == MHLA_OK) status = told;
    }
    /* One of the same step is there only where an evaluation was interrupted; it is the same but for that. */
    if (status == MHLA_OK && t->saved == t->step) rename(final, old);
    if (status == MHLA_OK && rename(temporary, final) != 0)
        status = mhla_fail(MHLA_EIO, "%s: %s", final, strerror(errno));
    if (status == MHLA_OK) status = flush_folder(all);
    if (status != MHLA_OK) {
        mhla_folder_remove(temporary);
        return status;
    }
    t->saved = t->step;
    if (mhla_dist_rank() > 0) return MHLA_OK;
    MHLA_TRY(point(t->run, "last", t->step));
    if (t->best_step >= 0) MHLA_TRY(point(t->run, "best", t->best_step));
    clean(t->run, t->step, t->best_step);
    return MHLA_OK;
}

mhla_status mhla_checkpoint_write(mhla_trainer *t) {
    const mhla_status status = mhla_dist_agree(mhla_dist_rank() == 0 ? write_checkpoint(t) : serve_state(t));
    if (status == MHLA_OK) t->saved = t->step;
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

static mhla_status read_optimizer(mhla_trainer *t, const char *path) {
    const mhla_params *ps = t->model->params;
    const int n = mhla_params_count(ps);
    const int64_t shape = n;
    mhla_safetensors *file = NULL;
    MHLA_TRY(mhla_safetensors_open(&file, path));
    const mhla_stored *updates = NULL;
    mhla_status status = mhla_safetensors_need(&updates, file, "updates");
    if (status == MHLA_OK) status = mhla_stored_check(updates, 1, &shape);
    if (status == MHLA_OK && updates->dtype != MHLA_IO_I64)
        status =
            mhla_fail(MHLA_EDATA, "%s: tensor updates is %s, expected I64", path, mhla_io_dtype_text(updates->dtype));
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        const int slots = p->flags & MHLA_PARAM_BUFFER ? 0 : mhla_optim_slots(t->optim);
        memcpy(mhla_optim_updates(t->optim, i), updates->data + 8 * (size_t)i, 8);
        for (int s = 0; s < slots && status == MHLA_OK; s++) {
            char name[160];
            snprintf(name, sizeof name, "%s.%s", mhla_optim_slot_name(t->optim, s), p->name);
            float *all =
                mhla_dist_ranks() == 1 ? mhla_optim_slot(t->optim, i, s) : malloc((size_t)p->count * sizeof *all);
            status = all ? mhla_safetensors_load(all, file, name, p->dims, p->shape)
                         : mhla_fail(MHLA_ENOMEM, "no memory for %s", name);
            if (mhla_dist_ranks() == 1) continue;
            if (status == MHLA_OK)
                mhla_optim_split(t->optim, i, mhla_dist_rank(), mhla_optim_slot(t->optim, i, s), all);
            free(all);
        }
    }
    mhla_safetensors_close(file);
    return status;
}

static mhla_status read_ema(mhla_trainer *t, const char *path) {
    mhla_safetensors *file = NULL;
    MHLA_TRY(mhla_safetensors_open(&file, path));
    mhla_ema_swap(t->ema);
    const mhla_status status = mhla_params_load(t->model->params, file);
    mhla_ema_swap(t->ema);
    mhla_safetensors_close(file);
    return status;
}

static mhla_status read_state(mhla_trainer *t, const char *path) {
    json_t *tree = NULL;
    MHLA_TRY(mhla_json_load(&tree, path));
    int64_t steps = -1, updates = 0;
    t->step = t->evaluated = t->best_step = -1;
    t->best = NAN;
    const char *weights = json_string_value(json_object_get(tree, "weights"));
    t->average_counts = weights && strcmp(weights, "ema") == 0;
    char name[64];
    snprintf(name, sizeof name, "best_%s", t->task->measure);
    const json_t *best = json_object_get(tree, name);
    if (json_is_number(best)) t->best = json_number_value(best);
    mhla_status status = mhla_json_get_int(&t->step, tree, "step", 0, INT64_MAX, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&steps, tree, "steps", 1, INT64_MAX, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&t->evaluated, tree, "evaluated_step", -1, INT64_MAX, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&t->best_step, tree, "best_step", -1, INT64_MAX, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&updates, tree, "ema_updates", 0, INT64_MAX, path);
    if (status == MHLA_OK && (steps != t->steps || t->step < 0 || t->step > steps))
        status = mhla_fail(MHLA_EDATA, "%s: step %lld of %lld, but the recipe makes %lld steps: has the data changed?",
                           path, (long long)t->step, (long long)steps, (long long)t->steps);
    if (status == MHLA_OK && t->ema) *mhla_ema_updates(t->ema) = updates;
    json_decref(tree);
    return status;
}

mhla_status mhla_checkpoint_read(mhla_trainer *t, const char *folder) {
    char path[2 * PATH];
    mhla_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/state.json", folder);
    MHLA_TRY(read_state(t, path));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    mhla_status status = mhla_safetensors_open(&file, path);
    if (status == MHLA_OK) status = mhla_params_load(t->model->params, file);
    mhla_safetensors_close(file);
    snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
    if (status == MHLA_OK) status = read_optimizer(t, path);
    snprintf(path, sizeof path, "%s/ema.safetensors", folder);
    if (status == MHLA_OK && t->ema) status = read_ema(t, path);
    if (status == MHLA_OK && t->task->load) status = t->task->load(t, folder);
    if (status != MHLA_OK) return status;
    t->saved = t->step;
    if (mhla_dist_rank() > 0) return MHLA_OK;
    MHLA_TRY(point(t->run, "last", t->step));
    if (t->best_step >= 0) MHLA_TRY(point(t->run, "best", t->best_step));
    clean(t->run, t->step, t->best_step);
    return MHLA_OK;
}
