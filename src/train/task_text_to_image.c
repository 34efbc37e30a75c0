/* The task `text-to-image`: a network learns pictures or clips that captions describe. Rows of text come from `mhla captions`; a share of the
 * pictures is trained with the empty text, which guidance then leads away from. Measured by the loss on pictures and captions that are held
 * out. A checkpoint has text.json, of what the rows were made and by what: a model is asked with rows by the same encoder. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/captions.h"
#include "data/latents.h"
#include "dist/dist.h"
#include "file/sha256.h"
#include "train/denoising.h"

static const mhla_recipe_row keys[] = {
    {"data.captions", MHLA_RECIPE_TEXT, "", 0, 0, NULL,
     "text-to-image: the encoded captions, a folder that mhla captions wrote"},
    {"train.caption_drop", MHLA_RECIPE_REAL, "0.1", 0, 1, NULL,
     "text-to-image: share of images trained with an empty caption"},
    {"sample.columns", MHLA_RECIPE_INT, "6", 0, 64, NULL, "images of each caption in the sample grid; 0: no grids"},
    {"sample.rows", MHLA_RECIPE_INT, "10", 1, 64, NULL, "captions in it: half from training, half held out"},
    MHLA_DENOISING_KEYS,
    {0},
};

typedef struct job {
    mhla_denoising d; /* first */
    mhla_captions captions;
    float *rows;      /* [d.rows,longest,width] of a part */
    int32_t *lengths; /* [d.rows] */
    char sum[65];     /* of all texts */
} job;

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

/* The captions of the pictures as they are now, where the pictures are: latents do without them. */
static mhla_status check_captions(const mhla_trainer *t, const job *j, const char *captions) {
    const mhla_latents_about *latents = mhla_dataset_latents(j->d.p.train);
    const mhla_captions_about *a = &j->captions.about;
    mhla_dataset *const sets[2] = {j->d.p.train, j->d.p.test};
    char folder[4096];
    struct stat info;
    if (a->train != mhla_dataset_count(sets[0]) || a->test != mhla_dataset_count(sets[1]))
        return mhla_fail(MHLA_EDATA, "%s has %lld and %lld encoded captions, and %s has %lld and %lld images", captions,
                         (long long)a->train, (long long)a->test, mhla_recipe_text(t->recipe, "data.source"),
                         (long long)mhla_dataset_count(sets[0]), (long long)mhla_dataset_count(sets[1]));
    if (latents && stat(latents->source, &info) != 0) return MHLA_OK;
    if (latents)
        snprintf(folder, sizeof folder, "%s", latents->source);
    else
        MHLA_TRY(mhla_data_locate(folder, sizeof folder, mhla_recipe_text(t->recipe, "data.source")));
    mhla_caption_list list = {0};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < 2 && status == MHLA_OK; i++) {
        mhla_dataset *pictures = NULL;
        if (latents) status = mhla_dataset_open(&pictures, folder, i ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN);
        if (status == MHLA_OK) status = mhla_captions_of(&list, pictures ? pictures : sets[i], folder);
        mhla_dataset_free(pictures);
    }
    if (status == MHLA_OK) status = mhla_captions_check(&j->captions, &list, captions);
    mhla_caption_list_free(&list);
    return status;
}

static void add_up(job *j) {
    mhla_sha256 sum;
    mhla_sha256_begin(&sum);
    for (int64_t i = 1; i < j->captions.texts; i++) {
        const char *text = mhla_captions_text(&j->captions, i);
        mhla_sha256_add(&sum, text, strlen(text) + 1);
    }
    mhla_sha256_end(&sum, j->sum);
}

static mhla_status open_captions(const mhla_trainer *t, job *j) {
    const char *path = mhla_recipe_text(t->recipe, "data.captions");
    if (*path == '\0')
        return mhla_fail(
            MHLA_EINVAL,
            "data.captions is missing: `mhla captions %s --encoder MODEL --out DIR` encodes the captions once",
            mhla_recipe_text(t->recipe, "data.source"));
    MHLA_TRY(mhla_captions_open(&j->captions, path));
    add_up(j);
    return check_captions(t, j, path);
}

/* A key of the model's that the recipe leaves open; of some architectures it is none. */
static mhla_status leave_to(const mhla_trainer *t, const char *key, int64_t value) {
    char text[24];
    if (mhla_recipe_find(t->recipe, key) == NULL || mhla_recipe_given(t->recipe, key)) return MHLA_OK;
    snprintf(text, sizeof text, "%lld", (long long)value);
    return mhla_recipe_set(t->recipe, key, text);
}

/* What the recipe leaves open follows from the data. */
static mhla_status follow(const mhla_trainer *t, const job *j) {
    const mhla_latents_about *latents = mhla_dataset_latents(j->d.p.train);
    MHLA_TRY(leave_to(t, "model.caption_channels", j->captions.about.width));
    MHLA_TRY(leave_to(t, "model.text_width", j->captions.about.width));
    MHLA_TRY(leave_to(t, "model.text_length", j->captions.longest));
    if (mhla_recipe_find(t->recipe, "model.text_width")) /* instead of classes, whatever the data have */
        MHLA_TRY(mhla_recipe_set(t->recipe, "model.classes", "0"));
    if (latents == NULL || latents->height != latents->width) return MHLA_OK;
    return leave_to(t, "model.sample_size", latents->height / latents->factor);
}

static mhla_status make_model(mhla_trainer *t, job *j) {
    MHLA_TRY(follow(t, j));
    MHLA_TRY(mhla_model_of_recipe(&t->model, MHLA_ROLE_DENOISER, t->recipe, "model."));
    MHLA_TRY(mhla_denoiser_query(t->model, &j->d.info));
    const mhla_denoiser_info *c = &j->d.info;
    const char *name = mhla_recipe_text(t->recipe, "model.model");
    if (c->text_width == 0)
        return mhla_fail(MHLA_EINVAL, "model.model is %s: it takes classes, not text: task \"diffusion\"",
                         MHLA_QUOTE(name));
    if (c->text_width != j->captions.about.width)
        return mhla_fail(MHLA_EINVAL, "the model takes %d numbers per token, %s has %d", c->text_width,
                         mhla_recipe_text(t->recipe, "data.captions"), j->captions.about.width);
    if (c->channels != mhla_dataset_channels(j->d.p.train))
        return mhla_fail(MHLA_EINVAL, "the model takes %d channels, the data have %d", c->channels,
                         mhla_dataset_channels(j->d.p.train));
    if (c->answers != c->channels)
        return mhla_fail(MHLA_EINVAL, "the model reads %d channels and predicts %d: expected equal numbers",
                         c->channels, c->answers);
    MHLA_TRY(mhla_denoising_check_clips(t, &j->d));
    return mhla_params_init(t->model->params, (uint64_t)mhla_recipe_int(t->recipe, "seed"));
}

static int32_t label(const mhla_denoising *d, const mhla_batch *batch, int64_t i, int test) {
    const job *j = (const job *)d;
    return (int32_t)(1 + batch->index[i] + (test ? j->captions.about.train : 0));
}

/* Rows of a part: as many for each picture as the longest of its captions has, and zeros. */
static mhla_condition condition(mhla_denoising *d, int64_t rows, int dry) {
    job *j = (job *)d;
    const mhla_captions *c = &j->captions;
    int64_t longest = dry ? c->longest : 1;
    for (int64_t i = 0; i < rows && !dry; i++)
        if (c->lengths[d->labels[i]] > longest) longest = c->lengths[d->labels[i]];
    for (int64_t i = 0; i < rows && !dry; i++)
        j->lengths[i] = mhla_captions_get(c, j->rows + i * longest * c->about.width, longest, d->labels[i]);
    return (mhla_condition){.rows = j->rows, .lengths = j->lengths, .longest = longest};
}

static mhla_status open_job(mhla_trainer *t) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    MHLA_TRY(mhla_pictures_open(&j->d.p, t->recipe, 1));
    MHLA_TRY(mhla_denoising_open_latents(t, &j->d));
    MHLA_TRY(open_captions(t, j));
    MHLA_TRY(make_model(t, j));
    j->d.drop = mhla_recipe_real(t->recipe, "train.caption_drop");
    j->d.none = 0;
    j->d.label = label;
    j->d.condition = condition;
    MHLA_TRY(mhla_denoising_prepare(t, &j->d));
    j->rows = calloc((size_t)(j->d.rows * j->captions.longest * j->captions.about.width), sizeof *j->rows);
    j->lengths = calloc((size_t)j->d.rows, sizeof *j->lengths);
    return j->rows && j->lengths ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for rows of text");
}

static void close_job(mhla_trainer *t) {
    job *j = t->job;
    if (j == NULL) return;
    mhla_denoising_close(&j->d);
    mhla_captions_free(&j->captions);
    free(j->rows);
    free(j->lengths);
    free(j);
}

static double data_bytes(const mhla_trainer *t) {
    const job *j = t->job;
    return mhla_denoising_data_bytes(t) +
           sizeof(float) * (double)(j->d.rows * j->captions.longest * j->captions.about.width);
}

/* ---- Pictures: captions of the training, then as many that are held out, each spread over all ------------------------ */

/* The text of row i of `rows`. */
static int64_t text_of(const job *j, int i, int rows) {
    const mhla_captions_about *a = &j->captions.about;
    const int held = rows / 2, seen = rows - held;
    return i < seen ? 1 + i * a->train / seen : 1 + a->train + (i - seen) * a->test / held;
}

/* RUN/samples/rows.json: what is beside each row of the grids, for the report. */
static mhla_status write_names(const mhla_trainer *t, const job *j, int rows) {
    char path[MHLA_RUN_PATH];
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *names = json_array(), *held = json_array();
    for (int i = 0; i < rows; i++) {
        const int64_t text = text_of(j, i, rows);
        mhla_json_add(names, json_string(mhla_captions_text(&j->captions, text)));
        mhla_json_add(held, json_boolean(text > j->captions.about.train));
    }
    mhla_json_put(tree, "rows", names);
    mhla_json_put(tree, "held_out", held);
    snprintf(path, sizeof path, "%s/samples/rows.json", t->run);
    const mhla_status status = mhla_json_lost() == lost ? mhla_json_save(tree, path)
                                                        : mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    json_decref(tree);
    return status;
}

static mhla_status show(mhla_trainer *t) {
    const job *j = t->job;
    const mhla_captions *c = &j->captions;
    const int columns = (int)mhla_recipe_int(t->recipe, "sample.columns");
    int64_t fewer = c->about.train < c->about.test ? c->about.train : c->about.test;
    int rows = (int)mhla_recipe_int(t->recipe, "sample.rows");
    if (rows > 2 * fewer) rows = (int)(2 * fewer);
    if (rows * columns == 0 || !mhla_denoising_shows(&j->d)) return MHLA_OK;
    const int64_t each = c->longest * c->about.width;
    float *text = calloc((size_t)((rows + 1) * each), sizeof *text);
    int32_t *lengths = calloc((size_t)rows + 1, sizeof *lengths), *which = calloc((size_t)rows, sizeof *which);
    mhla_status status =
        text && lengths && which ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for rows of %d texts", rows);
    for (int i = 0; i <= rows && status == MHLA_OK; i++) { /* the empty text is the first */
        lengths[i] = mhla_captions_get(c, text + i * each, c->longest, i ? text_of(j, i - 1, rows) : 0);
        if (i) which[i - 1] = i;
    }
    const mhla_sample_desc d = {.size = sizeof d,
                                .guidance = mhla_recipe_real(t->recipe, "sample.guidance"),
                                .rows = text,
                                .lengths = lengths,
                                .texts = rows + 1,
                                .longest = c->longest};
    if (status == MHLA_OK) status = mhla_denoising_show(t, &d, which, rows, columns);
    if (status == MHLA_OK && !t->stop && mhla_dist_rank() == 0) status = write_names(t, j, rows);
    free(text);
    free(lengths);
    free(which);
    return status;
}

/* ---- text.json of a checkpoint ----------------------------------------------------------------------------------------- */

static mhla_status save(const mhla_trainer *t, const char *folder) {
    const job *j = t->job;
    const mhla_captions_about *a = &j->captions.about;
    char path[MHLA_RUN_PATH + 64];
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object();
    mhla_json_put(tree, "encoder", json_string(a->encoder));
    mhla_json_put(tree, "encoder_sha256", json_string(a->encoder_hash));
    mhla_json_put(tree, "instruction", json_string(a->instruction));
    mhla_json_put(tree, "longest", json_integer(a->limit));
    mhla_json_put(tree, "width", json_integer(a->width));
    mhla_json_put(tree, "captions_sha256", json_string(j->sum));
    mhla_json_put(tree, "sampler", json_string(mhla_recipe_text(t->recipe, "sample.sampler")));
    mhla_json_put(tree, "steps", json_integer(mhla_recipe_int(t->recipe, "sample.steps")));
    mhla_json_put(tree, "guidance", mhla_json_real(mhla_recipe_real(t->recipe, "sample.guidance")));
    snprintf(path, sizeof path, "%s/text.json", folder);
    const mhla_status status = mhla_json_lost() == lost ? mhla_json_save(tree, path)
                                                        : mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    json_decref(tree);
    return status;
}

/* A run goes on with the rows that it began with. */
static mhla_status load(mhla_trainer *t, const char *folder) {
    const job *j = t->job;
    const mhla_captions_about *a = &j->captions.about;
    char path[MHLA_RUN_PATH + 64];
    const char *encoder = "", *instruction = "", *captions = "";
    int64_t longest = 0;
    json_t *tree = NULL;
    snprintf(path, sizeof path, "%s/text.json", folder);
    MHLA_TRY(mhla_json_load(&tree, path));
    mhla_status status = mhla_json_get_text(&encoder, tree, "encoder_sha256", path);
    if (status == MHLA_OK) status = mhla_json_get_text(&instruction, tree, "instruction", path);
    if (status == MHLA_OK) status = mhla_json_get_text(&captions, tree, "captions_sha256", path);
    if (status == MHLA_OK) status = mhla_json_get_int(&longest, tree, "longest", 0, INT32_MAX, path);
    const char *source = mhla_recipe_text(t->recipe, "data.captions");
    if (status == MHLA_OK &&
        (strcmp(encoder, a->encoder_hash) != 0 || strcmp(instruction, a->instruction) != 0 || longest != a->limit))
        status = mhla_fail(
            MHLA_EDATA,
            "%s: encoded by another encoder, or with another instruction or limit, than at the start of the run",
            source);
    if (status == MHLA_OK && strcmp(captions, j->sum) != 0)
        status = mhla_fail(MHLA_EDATA, "%s: its captions differ from those at the start of the run", source);
    json_decref(tree);
    return status;
}

const mhla_task mhla_task_text_to_image = {
    .name = "text-to-image",
    .role = MHLA_ROLE_DENOISER,
    .rows = keys,
    .shared = mhla_picture_keys,
    .measure = "loss",
    .lower = 1,
    .unit = "images",
    .open = open_job,
    .close = close_job,
    .seek = mhla_pictures_seek,
    .next = mhla_pictures_next,
    .loss = mhla_denoising_loss,
    .count = mhla_pictures_count,
    .data_bytes = data_bytes,
    .evaluate = mhla_denoising_evaluate,
    .show = show,
    .tell = mhla_pictures_tell_loss,
    .adopt = mhla_pictures_adopt,
    .save = save,
    .load = load,
    .complain = mhla_pictures_complain,
    .pictures = mhla_pictures_of,
};
