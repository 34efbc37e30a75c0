/* Parts that are trained models. The run's folder is named by its settings and its data, so that experiments that train the
 * same share it, and one that was killed is found again. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "file/sha256.h"
#include "lab/lab.h"
#include "train/train.h"

enum { SETTINGS = 96 };

static void tell(void *user, const mhla_train_event *e) {
    const mhla_lab_part *part = user;
    const mhla_lab *lab = part->lab;
    const mhla_lab_event event = {.size = sizeof event,
                                  .kind = MHLA_LAB_STEP,
                                  .part = lab->part,
                                  .parts = lab->parts,
                                  .arm = lab->experiment->arms[part->arm].name,
                                  .seed = part->seed,
                                  .train = e,
                                  .text = ""};
    if (lab->report) lab->report(lab->user, &event);
}

static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Settings as the trainer takes them; `text` is cut into pieces. Of several for one key the last counts; those of the lab's own
 * ("lab.", "search.", "recall.") are left out; sorted, so that what means the same is the same. */
static int split(char *text, const char *settings[SETTINGS]) {
    int n = 0;
    char *rest = NULL;
    for (char *at = strtok_r(text, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
        const size_t key = strcspn(at, "=") + 1;
        int same = 0;
        if (strncmp(at, "lab.", 4) == 0 || strncmp(at, "search.", 7) == 0 || strncmp(at, "recall.", 7) == 0) continue;
        while (same < n && strncmp(settings[same], at, key) != 0) same++;
        if (same == SETTINGS - 2) break; /* two places are kept: for the data, for the weights it begins with */
        settings[same] = at;
        n += same == n;
    }
    qsort(settings, (size_t)n, sizeof *settings, by_key);
    return n;
}

/* A run is named by what its data holds, not by where it lies: that may have been moved since. */
static mhla_status name_source(const char *run, const char *source) {
    char path[MHLA_LAB_PATH + 16];
    json_t *tree = NULL;
    snprintf(path, sizeof path, "%s/recipe.json", run);
    MHLA_TRY(mhla_json_load(&tree, path));
    json_t *data = json_object_get(tree, "data");
    const char *was = json_string_value(json_object_get(data, "source"));
    mhla_status status = MHLA_OK;
    if (was && strcmp(was, source) != 0)
        status = json_object_set_new(data, "source", json_string(source)) == 0
                     ? mhla_json_save(tree, path)
                     : mhla_fail(MHLA_ENOMEM, "no memory for a recipe");
    json_decref(tree);
    return status;
}

static mhla_status begin(mhla_trainer **trainer, const mhla_lab_part *part, const char *run) {
    const mhla_lab *lab = part->lab;
    const char *settings[SETTINGS];
    char checkpoint[MHLA_RUN_PATH], source[MHLA_LAB_PATH + 16], weights[MHLA_LAB_PATH + 24], *text = NULL;
    const char *data = *part->source ? part->source : lab->source;
    if (access(run, F_OK) == 0) {
        if (mhla_checkpoint_find(checkpoint, sizeof checkpoint, run) == MHLA_OK) {
            if (*data) MHLA_TRY(name_source(run, data));
            return mhla_trainer_resume(trainer, run);
        }
        /* killed before its first checkpoint was complete: nothing is lost by beginning again */
        mhla_folder_remove(run);
    }
    if ((text = strdup(part->settings)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    int n = split(text, settings);
    if (*data) {
        snprintf(source, sizeof source, "data.source=%s", data);
        settings[n++] = source;
    }
    if (*part->init) {
        snprintf(weights, sizeof weights, "train.init=%s/last", part->init);
        settings[n++] = weights;
    }
    const mhla_status status = mhla_trainer_create(trainer, run, NULL, settings, n);
    free(text);
    return status;
}

static mhla_status count_parameters(mhla_lab_part *part, const char *run) {
    char path[MHLA_LAB_PATH + 16];
    mhla_model *model = NULL;
    mhla_model_info info = {.size = sizeof info};
    snprintf(path, sizeof path, "%s/last", run);
    MHLA_TRY(mhla_model_open_weights(&model, path, "raw"));
    mhla_status status = mhla_model_query(model, &info);
    if (status == MHLA_OK) status = mhla_part_put(part, "parameters", (double)info.parameters, NAN);
    mhla_model_free(model);
    return status;
}

/* Parts of several ranks may need one run: whoever comes later waits until it is there. *lock -1: none is needed, or told to stop. */
static mhla_status wait_for_run(const mhla_lab *lab, const char *folder, int *lock) {
    char path[MHLA_LAB_PATH + 32];
    *lock = -1;
    if (!lab->shared) return MHLA_OK;
    snprintf(path, sizeof path, "%s/runs", lab->work);
    MHLA_TRY(mhla_folder_make(path));
    snprintf(path, sizeof path, "%s.lock", folder);
    const int fd = open(path, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (fd >= 0 && !lab->stop) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            *lock = fd;
            return MHLA_OK;
        }
        if (errno != EWOULDBLOCK) break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    const mhla_status status = lab->stop ? MHLA_OK : mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return status;
}

mhla_status mhla_part_train(mhla_lab_part *part, char run[MHLA_LAB_PATH]) {
    mhla_lab *lab = part->lab;
    mhla_trainer *trainer = NULL;
    mhla_sha256 s;
    char sum[65], *text = strdup(part->settings);
    const char *settings[SETTINGS];
    int finished = 0;
    *run = '\0';
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    mhla_sha256_begin(&s);
    for (int i = 0, n = split(text, settings); i < n; i++) mhla_sha256_add(&s, settings[i], strlen(settings[i]) + 1);
    mhla_sha256_add(&s, lab->data_sum, strlen(lab->data_sum));
    if (*part->init) { /* its folder has the name of its settings */
        const char *name = strrchr(part->init, '/') + 1;
        mhla_sha256_add(&s, name, strlen(name));
    }
    mhla_sha256_end(&s, sum);
    free(text);
    char folder[MHLA_LAB_PATH];
    if (snprintf(folder, sizeof folder, "%s/runs/%.16s", lab->work, sum) >= (int)sizeof folder)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", lab->work);
    int lock;
    MHLA_TRY(wait_for_run(lab, folder, &lock));
    mhla_status status = begin(&trainer, part, folder);
    if (status == MHLA_OK) {
        if (lab->context) mhla_trainer_set_context(trainer, lab->context);
        lab->trainer = trainer;
        if (lab->stop) mhla_trainer_stop(trainer);
        status = mhla_trainer_run(trainer, tell, part, &finished);
        lab->trainer = NULL;
        mhla_trainer_free(trainer);
    }
    if (lock >= 0) close(lock);
    if (status != MHLA_OK || !finished) return status;
    MHLA_TRY(count_parameters(part, folder));
    snprintf(run, MHLA_LAB_PATH, "%s", folder);
    return MHLA_OK;
}

/* ---- What a run's log says of its end ---- */

typedef struct tests {
    json_t *last;
    double early; /* accuracy of the first of several evaluations; NaN: there is one */
    int count;
} tests;

static mhla_status take_test(void *user, const json_t *line) {
    tests *t = user;
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (kind == NULL || strcmp(kind, "test") != 0) return MHLA_OK;
    if (t->count++ == 1) t->early = json_number_value(json_object_get(t->last, "accuracy"));
    json_decref(t->last);
    t->last = json_deep_copy(line);
    return MHLA_OK;
}

/* The evaluation after the last step. Not the best one: that would choose by the test set. */
static mhla_status tests_of(const char *run, tests *t) {
    char path[4096];
    *t = (tests){.early = NAN};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    mhla_status status = mhla_jsonl_read(path, take_test, t);
    if (status == MHLA_OK && t->last == NULL) status = mhla_fail(MHLA_EDATA, "%s: no evaluation in it", path);
    if (status != MHLA_OK) json_decref(t->last);
    return status;
}

mhla_status mhla_part_accuracy(mhla_lab_part *part, const char *run) {
    tests t;
    MHLA_TRY(tests_of(run, &t));
    const double images = json_number_value(json_object_get(t.last, "images"));
    const double accuracy = json_number_value(json_object_get(t.last, "accuracy"));
    const double loss = json_number_value(json_object_get(t.last, "loss"));
    json_decref(t.last);
    if (!(images > 0.0)) return mhla_fail(MHLA_EDATA, "%s: no image was tested", run);
    if (!isnan(t.early)) MHLA_TRY(mhla_part_put(part, "early", t.early, sqrt(t.early * (1.0 - t.early) / images)));
    MHLA_TRY(mhla_part_put(part, "accuracy", accuracy, sqrt(accuracy * (1.0 - accuracy) / images)));
    return mhla_part_put(part, "loss", loss, NAN);
}

mhla_status mhla_part_images(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH];
    MHLA_TRY(mhla_part_train(part, run));
    return *run ? mhla_part_accuracy(part, run) : MHLA_OK;
}

mhla_status mhla_part_diffusion(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH];
    tests t;
    MHLA_TRY(mhla_part_train(part, run));
    if (*run == '\0') return MHLA_OK;
    MHLA_TRY(tests_of(run, &t));
    const double loss = json_number_value(json_object_get(t.last, "loss"));
    json_decref(t.last);
    return mhla_part_put(part, "loss", loss, NAN);
}
