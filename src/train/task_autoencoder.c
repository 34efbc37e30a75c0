/* The task `autoencoder`: a network learns to make images of few numbers, their latents. The loss is that of latent diffusion without
 * its discriminator and its perceptual part: the absolute error of the pixels, and the divergence of the latents from a standard
 * normal, times train.kl. Both are sums over an image, divided by its numbers. Where the network's latents are certain, not drawn, there is
 * no divergence.
 *
 * Measured by the loss of test images, whose latents are drawn with a noise of their own that stays the same. After an evaluation the
 * scale becomes 1 / deviation of these latents, so that a diffusion model sees a deviation of 1, and a grid shows test images above
 * what the model makes of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/status.h"
#include "dist/dist.h"
#include "train/pictures.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT

enum { PIECE = 1 << 16 }; /* pixels that go through the network at once in an evaluation */
#define USUAL_KL "1e-6"

static const mhla_recipe_row keys[] = {
    {"train.kl", REAL, USUAL_KL, 0, 1e6, NULL,
     "autoencoder: weight of the latents' divergence from a standard normal against the error of the pixels"},
    {"augment.crop", TEXT, "none", 0, 0, "none|centre|random|pad",
     "none: resized; centre: as it is, with black around; random: a resized part; pad: shifted"},
    {"sample.columns", INT, "8", 0, 64, NULL, "test images in a row of the grid of an evaluation; 0: no grids"},
    {"sample.rows", INT, "3", 1, 64, NULL, "rows of test images in it, with their reconstructions below"},
    {0},
};

/* What an evaluation sums up, in nats and pixels of -1 .. 1: of images, and of the numbers of latents: they, their squares. */
enum { SUM_IMAGES, SUM_L1, SUM_SQUARES, SUM_DIVERGENCE, SUM_FIRST, SUM_SECOND, SUMS };

typedef struct job {
    mhla_pictures p; /* first */
    mhla_autoencoder_info info;
    int64_t pixels, numbers; /* of an image, of a latent */
    int64_t rows;            /* room for this many */
    float *noise;            /* [rows,numbers]; not used where latents are certain */
    mhla_tape *measuring;
    float *shown; /* [images of a grid, in whole batches,pixels] */
} job;

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status check_model(const mhla_trainer *t, const job *j) {
    const mhla_autoencoder_info *a = &j->info;
    const int channels = mhla_dataset_channels(j->p.train);
    const char *source = mhla_recipe_text(t->recipe, "data.source");
    const double kl = mhla_recipe_real(t->recipe, "train.kl");
    MHLA_TRY(mhla_autoencoder_rescale(t->model, a->scale));     /* a kind that can be trained */
    if (a->certain && kl > 0.0 && kl != strtod(USUAL_KL, NULL)) /* the usual one may be in the recipe of any run */
        return mhla_fail(MHLA_EINVAL,
                         "train.kl is %g: the latents of this autoencoder are not drawn and have no divergence", kl);
    if (a->channels != channels || a->outputs != channels)
        return mhla_fail(MHLA_EINVAL, "model.in_channels is %d and model.out_channels %d: the images of %s have %d",
                         a->channels, a->outputs, source, channels);
    return MHLA_OK;
}

static mhla_status open_job(mhla_trainer *t) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    MHLA_TRY(mhla_pictures_open(&j->p, t->recipe, 0));
    MHLA_TRY(mhla_model_of_recipe(&t->model, MHLA_ROLE_AUTOENCODER, t->recipe, "model."));
    MHLA_TRY(mhla_autoencoder_query(t->model, &j->info));
    MHLA_TRY(check_model(t, j));
    MHLA_TRY(mhla_params_init(t->model->params, (uint64_t)mhla_recipe_int(t->recipe, "seed")));
    MHLA_TRY(
        mhla_pictures_load(&j->p, t, (mhla_loader_desc){.augment = mhla_model_augment(t->model), .no_targets = 1}));
    t->per_epoch = mhla_loader_batches(j->p.loader);

    const int64_t parts = mhla_recipe_int(t->recipe, "train.accumulate"),
                  batch = mhla_recipe_int(t->recipe, "train.batch"), area = (int64_t)j->info.side * j->info.side;
    j->pixels = j->info.channels * area;
    j->numbers = j->info.latents * area / ((int64_t)j->info.factor * j->info.factor);
    j->rows = (batch + parts - 1) / parts;
    if (j->rows < PIECE / area) j->rows = PIECE / area;
    j->noise = malloc((size_t)(j->rows * j->numbers) * sizeof *j->noise);
    return j->noise ? MHLA_OK
                    : mhla_fail(MHLA_ENOMEM, "no memory for %lld latents of %lld numbers", (long long)j->rows,
                                (long long)j->numbers);
}

static void close_job(mhla_trainer *t) {
    job *j = t->job;
    if (j == NULL) return;
    mhla_pictures_close(&j->p);
    mhla_tape_free(j->measuring);
    free(j->noise);
    free(j);
}

/* ---- Through the network ------------------------------------------------------------------------------------------------ */

typedef struct draws {
    job *j;
    uint64_t seed, step;
    int64_t first; /* number of the first image: noise is keyed by it */
    uint32_t place;
} draws;

static void noise_task(void *arg, int64_t i, int worker) {
    const draws *d = arg;
    (void)worker;
    const mhla_rng r = mhla_rng_make(d->seed, d->step, (uint64_t)(d->first + i), d->place);
    mhla_rng_normals(&r, d->j->noise + i * d->j->numbers, d->j->numbers);
}

static void draw_noise(const mhla_trainer *t, int64_t first, int64_t rows, int test) {
    draws d = {.j = t->job,
               .seed = (uint64_t)mhla_recipe_int(t->recipe, "seed"),
               .step = test ? 0 : (uint64_t)t->step,
               .first = first,
               .place = MHLA_PLACE_ENCODED + (test ? 1 : 0)};
    mhla_parallel(t->context, rows, noise_task, &d);
}

/* Of images [rows,channels,side,side]; noise is in j->noise. */
typedef struct passed {
    mhla_tensor *moments, *latents, *images;
} passed;

static passed pass(mhla_tape *tape, const mhla_trainer *t, const float *images, int64_t rows) {
    const job *j = t->job;
    const int side = j->info.side;
    passed r;
    r.moments = mhla_autoencoder_encode(tape, t->model,
                                        mhla_nn_input(tape, images, MHLA_SHAPE(rows, j->info.channels, side, side)));
    r.latents = j->info.certain ? r.moments : mhla_nn_posterior(tape, j->noise, r.moments);
    r.images = mhla_autoencoder_decode(tape, t->model, r.latents);
    return r;
}

/* ---- A step ------------------------------------------------------------------------------------------------------------ */

static double weight_of(const mhla_trainer *t) {
    const job *j = t->job;
    return mhla_recipe_real(t->recipe, "train.kl") / (double)j->pixels;
}

static mhla_tensor *loss(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share) {
    job *j = t->job;
    const int dry = (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0;
    int64_t first;
    const int64_t rows = mhla_pictures_part(&j->p, t->recipe, dry, part, parts, &first, share);
    if (rows == 0) return NULL;
    const float *images = dry ? NULL : j->p.batch->images + first * j->pixels;
    if (!dry && !j->info.certain) draw_noise(t, first, rows, 0);
    const passed r = pass(tape, t, images, rows);
    mhla_tensor *error = mhla_nn_l1(tape, r.images, images);
    if (j->info.certain) return error;
    mhla_tensor *divergence = mhla_nn_scale(tape, (float)weight_of(t), mhla_nn_divergence(tape, r.moments));
    return mhla_nn_add(tape, error, divergence);
}

static double data_bytes(const mhla_trainer *t) {
    const job *j = t->job;
    return mhla_pictures_bytes(&j->p, t->recipe, (double)j->pixels) +
           sizeof(float) * (double)j->rows * (double)j->numbers;
}

/* ---- Evaluation ---------------------------------------------------------------------------------------------------------- */

static mhla_status measure_some(const mhla_trainer *t, job *j, const float *images, int64_t first, int64_t rows,
                                double *s) {
    mhla_tape *tape = j->measuring;
    if (!j->info.certain) draw_noise(t, first, rows, 1);
    mhla_tape_begin(tape, MHLA_TAPE_INFER);
    const passed r = pass(tape, t, images, rows);
    const mhla_tensor *error = mhla_nn_l1(tape, r.images, images), *square = mhla_nn_mse(tape, r.images, images),
                      *divergence = j->info.certain ? NULL : mhla_nn_divergence(tape, r.moments);
    MHLA_TRY(mhla_tape_status(tape));
    s[SUM_IMAGES] += (double)rows;
    s[SUM_L1] += (double)rows * (double)error->data[0];
    s[SUM_SQUARES] += (double)rows * (double)square->data[0];
    if (divergence) s[SUM_DIVERGENCE] += (double)rows * (double)divergence->data[0];
    for (int64_t i = 0; i < rows * j->numbers; i++) {
        const double z = (double)r.latents->data[i];
        s[SUM_FIRST] += z;
        s[SUM_SECOND] += z * z;
    }
    return MHLA_OK;
}

/* In pieces, without the files that could not be read. */
static mhla_status measure_batch(mhla_trainer *t, const mhla_batch *batch, int64_t first, double *s) {
    job *j = t->job;
    const int64_t area = (int64_t)j->info.side * j->info.side, most = PIECE / area > 0 ? PIECE / area : 1;
    for (int64_t i = 0, n; i < batch->count; i += n) {
        for (n = 0; n < most && i + n < batch->count && batch->labels[i + n] >= 0;) n++;
        if (n > 0)
            MHLA_TRY(measure_some(t, j, batch->images + i * j->pixels, first + i, n, s));
        else
            n = 1;
    }
    return MHLA_OK;
}

static mhla_status evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress, void *user) {
    job *j = t->job;
    const double begin = mhla_seconds();
    const int64_t limit = mhla_recipe_int(t->recipe, "eval.limit");
    double s[SUMS];
    if (j->measuring == NULL) MHLA_TRY(mhla_tape_create(&j->measuring, t->context));
    MHLA_TRY(mhla_pictures_each(t, &j->p, limit, measure_batch, s, SUMS, progress, user));
    MHLA_TRY(mhla_ranks_stop(t));
    if (s[SUM_IMAGES] == 0.0 && !t->stopping)
        return mhla_fail(MHLA_EDATA, "none of %lld images could be read",
                         (long long)mhla_pictures_tested(&j->p, limit));
    const double n = fmax(s[SUM_IMAGES], 1.0), all = n * (double)j->numbers, mean = s[SUM_FIRST] / all;
    const double whole = s[SUM_L1] / n + weight_of(t) * s[SUM_DIVERGENCE] / n;
    *score = (mhla_score){whole, whole, mhla_seconds() - begin, sqrt(fmax(s[SUM_SECOND] / all - mean * mean, 0.0))};
    mhla_json_put(row, "images", json_integer((json_int_t)s[SUM_IMAGES]));
    mhla_json_put(row, "loss", mhla_json_real(whole));
    mhla_json_put(row, "l1", mhla_json_real(s[SUM_L1] / n));
    mhla_json_put(row, "psnr", mhla_json_real(10.0 * log10(4.0 * n / s[SUM_SQUARES])));
    if (!j->info.certain) mhla_json_put(row, "divergence", mhla_json_real(s[SUM_DIVERGENCE] / n));
    mhla_json_put(row, "latent_mean", mhla_json_real(mean));
    mhla_json_put(row, "latent_deviation", mhla_json_real(score->deviation));
    return MHLA_OK;
}

/* ---- The scale ----------------------------------------------------------------------------------------------------------- */

static const double least_scale = 1e-6, most_scale = 1e6; /* what config.json may say */

static mhla_status settle(mhla_trainer *t, const mhla_score *score) {
    return mhla_autoencoder_rescale(t->model, fmin(fmax(1.0 / score->deviation, least_scale), most_scale));
}

/* That of the last evaluation before the checkpoint. */
static mhla_status load(mhla_trainer *t, const char *folder) {
    char path[2 * MHLA_RUN_PATH];
    json_t *tree = NULL;
    snprintf(path, sizeof path, "%s/config.json", folder);
    MHLA_TRY(mhla_json_load(&tree, path));
    const json_t *scale = json_object_get(tree, "scaling_factor");
    const double value = json_is_number(scale) ? json_number_value(scale) : 0.0;
    json_decref(tree);
    if (!(value >= least_scale && value <= most_scale))
        return mhla_fail(MHLA_EDATA, "%s: scaling_factor is missing, or not from %g to %g", path, least_scale,
                         most_scale);
    return mhla_autoencoder_rescale(t->model, value);
}

/* ---- Pictures ------------------------------------------------------------------------------------------------------------ */

static mhla_status take(mhla_trainer *t, const mhla_batch *batch, int64_t first, double *sums) {
    job *j = t->job;
    (void)sums;
    memcpy(j->shown + first * j->pixels, batch->images, (size_t)(batch->count * j->pixels) * sizeof *j->shown);
    return MHLA_OK;
}

/* Rows of `columns` images, below each the row of what comes of their mean latents. */
static mhla_status draw(mhla_trainer *t, mhla_picture *grid, int64_t rows, int64_t columns, float *all) {
    job *j = t->job;
    const mhla_autoencoder_info *a = &j->info;
    const mhla_coding coding = {.size = sizeof coding, .height = a->side, .width = a->side};
    const int64_t n = rows * columns;
    float *latent = malloc((size_t)j->numbers * sizeof *latent), *made = calloc((size_t)(n * j->pixels), sizeof *made);
    mhla_status status = latent && made ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a grid of images");
    for (int64_t i = mhla_dist_rank(); i < n && status == MHLA_OK && !t->stop; i += mhla_dist_ranks()) {
        status = mhla_model_encode(t->model, latent, NULL, j->shown + i * j->pixels, 1, &coding);
        if (status == MHLA_OK) status = mhla_model_decode(t->model, made + i * j->pixels, latent, 1, &coding);
    }
    free(latent);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_merge(made, n, (size_t)j->pixels * sizeof *made);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        float *to = all + (2 * (i / columns) * columns + i % columns) * j->pixels;
        memcpy(to, j->shown + i * j->pixels, (size_t)j->pixels * sizeof *to);
        memcpy(to + columns * j->pixels, made + i * j->pixels, (size_t)j->pixels * sizeof *to);
    }
    free(made);
    if (status == MHLA_OK) status = mhla_ranks_stop(t);
    if (status == MHLA_OK && !t->stopping)
        status = mhla_picture_tile(grid, all, 2 * n, a->outputs, a->side, a->side, (int)columns);
    return status;
}

static mhla_status show(mhla_trainer *t) {
    job *j = t->job;
    const int64_t all = mhla_dataset_count(j->p.test), most = mhla_recipe_int(t->recipe, "sample.columns"),
                  columns = most < all ? most : all;
    if (columns == 0) return MHLA_OK;
    const int64_t wanted = mhla_recipe_int(t->recipe, "sample.rows"),
                  rows = wanted < all / columns ? wanted : all / columns;
    const size_t n = (size_t)(rows * columns * j->pixels);
    mhla_picture grid = {.size = sizeof grid};
    const int64_t batches = (rows * columns + MHLA_EVALUATE_BATCH - 1) / MHLA_EVALUATE_BATCH;
    const size_t batch = (size_t)(MHLA_EVALUATE_BATCH * j->pixels);
    float *images = malloc(2 * n * sizeof *images);
    j->shown = malloc((size_t)batches * batch * sizeof *j->shown);
    mhla_status status = images && j->shown ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a grid of images");
    if (status == MHLA_OK) status = mhla_pictures_each(t, &j->p, rows * columns, take, NULL, 0, NULL, NULL);
    if (status == MHLA_OK) status = mhla_dist_merge(j->shown, batches, batch * sizeof *j->shown);
    if (status == MHLA_OK) status = draw(t, &grid, rows, columns, images);
    if (status == MHLA_OK && grid.pixels) status = mhla_pictures_save(t, &grid, 1);
    mhla_picture_free(&grid);
    free(images);
    free(j->shown);
    j->shown = NULL;
    return status;
}

const mhla_task mhla_task_autoencoder = {
    .name = "autoencoder",
    .role = MHLA_ROLE_AUTOENCODER,
    .rows = keys,
    .shared = mhla_picture_keys,
    .measure = "loss",
    .lower = 1,
    .unit = "images",
    .open = open_job,
    .close = close_job,
    .seek = mhla_pictures_seek,
    .next = mhla_pictures_next,
    .loss = loss,
    .count = mhla_pictures_count,
    .data_bytes = data_bytes,
    .evaluate = evaluate,
    .settle = settle,
    .show = show,
    .tell = mhla_pictures_tell_loss,
    .adopt = mhla_pictures_adopt,
    .load = load,
    .complain = mhla_pictures_complain,
    .pictures = mhla_pictures_of,
};
