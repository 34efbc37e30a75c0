/* Training of denoisers; see denoising.h. */
#include "train/denoising.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/status.h"
#include "data/latents.h"
#include "dist/dist.h"

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status make_room(const mhla_trainer *t, mhla_denoising *j) {
    const mhla_denoiser_info *c = &j->info;
    const int64_t parts = mhla_recipe_int(t->recipe, "train.accumulate"),
                  batch = mhla_recipe_int(t->recipe, "train.batch");
    j->rows = (batch + parts - 1) / parts;
    if (j->rows < MHLA_EVALUATE_BATCH) j->rows = MHLA_EVALUATE_BATCH;
    j->pixels = c->channels * mhla_extent_pixels(c->extent);
    j->answers = c->answers * mhla_extent_pixels(c->extent);
    const size_t rows = (size_t)j->rows;
    j->noise = malloc(rows * (size_t)j->pixels * sizeof *j->noise);
    j->noisy = malloc(rows * (size_t)j->pixels * sizeof *j->noisy);
    j->gradient = malloc(rows * (size_t)j->answers * sizeof *j->gradient);
    j->times = calloc(rows, sizeof *j->times);
    j->labels = calloc(rows, sizeof *j->labels);
    j->losses = calloc(rows, sizeof *j->losses);
    if (!j->noise || !j->noisy || !j->gradient || !j->times || !j->labels || !j->losses)
        return mhla_fail(MHLA_ENOMEM, "no memory for %lld images of %lld numbers", (long long)j->rows,
                         (long long)j->pixels);
    return mhla_noising_create(&j->noising, c->process, c->answers > c->channels,
                               mhla_recipe_bool(t->recipe, "train.logit_normal"),
                               mhla_recipe_real(t->recipe, "train.shift"));
}

static mhla_status check_sampling(const mhla_trainer *t);

mhla_status mhla_denoising_open_latents(const mhla_trainer *t, mhla_denoising *j) {
    const mhla_latents_about *about = mhla_dataset_latents(j->p.train);
    const char *path = mhla_recipe_text(t->recipe, "sample.vae"), *crop = mhla_recipe_text(t->recipe, "augment.crop"),
               *source = mhla_recipe_text(t->recipe, "data.source");
    mhla_codec_info c = {.size = sizeof c};
    char hash[65];
    if (about == NULL)
        return *path ? mhla_fail(MHLA_EINVAL, "sample.vae is %s, but the data are images, not latents", path) : MHLA_OK;
    if (strcmp(crop, "none") != 0)
        return mhla_fail(MHLA_EINVAL, "augment.crop is %s, but the data are latents, which can only be flipped", crop);
    MHLA_TRY(mhla_latents_check_source(about, source));
    if (*path == '\0') return MHLA_OK;
    MHLA_TRY(mhla_model_open(&j->vae, path));
    MHLA_TRY(mhla_codec_query(j->vae, &c));
    MHLA_TRY(mhla_model_hash(j->vae, hash));
    if (strcmp(hash, about->vae) != 0 || c.scale != about->scale || c.shift != about->shift)
        return mhla_fail(MHLA_EINVAL,
                         "%s: its latents were made with another autoencoder than %s: SHA-256 %.12s, not %.12s", source,
                         path, about->vae, hash);
    if (!c.decodes || (c.outputs != 1 && c.outputs != 3))
        return mhla_fail(MHLA_EINVAL, "%s does not decode to images", path);
    return MHLA_OK;
}

/* Can this model be sampled as the recipe says? Asked before anything is trained. */
static mhla_status check_sampling(const mhla_trainer *t) {
    const mhla_denoising *j = t->job;
    mhla_sampler *s = NULL;
    const mhla_status status =
        mhla_sampler_create(&s, &(mhla_sampler_desc){.size = sizeof(mhla_sampler_desc),
                                                     .process = mhla_process_names[j->info.process],
                                                     .method = mhla_recipe_text(t->recipe, "sample.sampler"),
                                                     .steps = (int)mhla_recipe_int(t->recipe, "sample.steps"),
                                                     .batch = 1,
                                                     .channels = 1,
                                                     .pixels = 1});
    mhla_sampler_free(s);
    return status;
}

mhla_status mhla_denoising_check_clips(const mhla_trainer *t, const mhla_denoising *j) {
    const char *crop = mhla_recipe_text(t->recipe, "augment.crop"),
               *source = mhla_recipe_text(t->recipe, "data.source");
    const mhla_extent *e = &j->info.extent;
    const int frames = mhla_dataset_frames(j->p.train);
    if (e->frames == 0 && frames)
        return mhla_fail(MHLA_EINVAL,
                         "%s holds clips, and the model makes single images: model.model names one of clips", source);
    if (e->frames && frames == 0)
        return mhla_fail(MHLA_EINVAL,
                         "%s holds images, and the model makes clips of %lld frames; for folders of frames, clips.json "
                         "says so",
                         source, (long long)e->frames);
    for (int i = 0; frames && i < 2; i++) {
        const mhla_dataset *d = i ? j->p.test : j->p.train;
        if (e->frames != frames || e->height != mhla_dataset_height(d) || e->width != mhla_dataset_width(d))
            return mhla_fail(MHLA_EINVAL,
                             "%s holds clips of %d frames of %d x %d, and the model makes %lld of %lld x %lld", source,
                             frames, mhla_dataset_width(d), mhla_dataset_height(d), (long long)e->frames,
                             (long long)e->width, (long long)e->height);
    }
    if (frames && strcmp(crop, "none") != 0)
        return mhla_fail(MHLA_EINVAL, "augment.crop is %s, but the data are clips, which can only be flipped", crop);
    return MHLA_OK;
}

mhla_status mhla_denoising_prepare(mhla_trainer *t, mhla_denoising *j) {
    MHLA_TRY(mhla_pictures_load(&j->p, t,
                                (mhla_loader_desc){.augment = mhla_model_augment(t->model),
                                                   .classes = j->info.classes,
                                                   .no_targets = 1,
                                                   .latents = mhla_dataset_latents(j->p.train) != NULL}));
    t->per_epoch = mhla_loader_batches(j->p.loader);
    const mhla_latents_about *about = mhla_dataset_latents(j->p.train);
    if (about) MHLA_TRY(mhla_model_name_vae(t->model, about->vae));
    MHLA_TRY(check_sampling(t));
    return make_room(t, j);
}

void mhla_denoising_close(mhla_denoising *j) {
    mhla_pictures_close(&j->p);
    mhla_noising_free(j->noising);
    mhla_model_free(j->vae);
    mhla_tape_free(j->measuring);
    free(j->noise);
    free(j->noisy);
    free(j->gradient);
    free(j->times);
    free(j->labels);
    free(j->losses);
}

/* ---- Noise in, judgement out ------------------------------------------------------------------------------------------------ */

/* Pictures that get their times, labels and noise, or whose answers are judged. */
typedef struct work {
    mhla_denoising *j;
    const mhla_batch *batch;
    int64_t from;        /* of the batch: its first */
    const float *images; /* [n,pixels] */
    const float *output; /* [n,answers] */
    int64_t first;       /* number of the first one: random numbers are keyed by it */
    int64_t n;
    uint64_t seed, step;
    int test, logit_normal;
} work;

static void noise_task(void *arg, int64_t i, int worker) {
    const work *w = arg;
    const mhla_denoising *j = w->j;
    (void)worker;
    const uint64_t sample = (uint64_t)(w->first + i);
    mhla_rng time = mhla_rng_make(w->seed, w->step, sample, w->test ? MHLA_PLACE_TEST_TIME : MHLA_PLACE_TIME);
    const mhla_rng noise = mhla_rng_make(w->seed, w->step, sample, w->test ? MHLA_PLACE_TEST_NOISE : MHLA_PLACE_NOISE);
    const double draw = w->logit_normal ? mhla_rng_normal(&time) : ((double)mhla_rng_next(&time) + 0.5) * 0x1p-32;
    const double at = mhla_noising_time(j->noising, draw);
    j->times[i] = (float)at;
    j->labels[i] = j->label(j, w->batch, w->from + i, w->test);
    if (!w->test && j->drop > 0.0) {
        mhla_rng drop = mhla_rng_make(w->seed, w->step, sample, MHLA_PLACE_DROP);
        if (mhla_rng_uniform(&drop) < j->drop) j->labels[i] = j->none;
    }
    mhla_rng_normals(&noise, j->noise + i * j->pixels, j->pixels);
    mhla_noising_apply(j->noising, j->noisy + i * j->pixels, w->images + i * j->pixels, j->noise + i * j->pixels, at,
                       j->pixels);
}

static void judge_task(void *arg, int64_t i, int worker) {
    const work *w = arg;
    const mhla_denoising *j = w->j;
    (void)worker;
    j->losses[i] = mhla_noising_judge(j->noising, w->test ? NULL : j->gradient + i * j->answers, 1.0 / (double)w->n,
                                      w->output + i * j->answers, j->noisy + i * j->pixels, w->images + i * j->pixels,
                                      j->noise + i * j->pixels, (double)j->times[i], j->pixels);
}

static mhla_tensor *answers(mhla_tape *tape, const mhla_trainer *t, mhla_denoising *j, int64_t rows, int recompute) {
    const mhla_condition condition = j->condition(j, rows, (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0);
    mhla_tensor *x = mhla_denoiser_input(tape, j->noisy, rows, j->info.channels, j->info.extent);
    return mhla_denoiser_forward(tape, t->model, &(mhla_network_run){.recompute = recompute}, x, j->times, &condition);
}

static work work_of(const mhla_trainer *t, const mhla_batch *batch, int64_t first, int64_t n) {
    mhla_denoising *j = t->job;
    return (work){.j = j,
                  .batch = batch,
                  .from = first,
                  .images = batch ? batch->images + first * j->pixels : NULL,
                  .first = first,
                  .n = n,
                  .seed = (uint64_t)mhla_recipe_int(t->recipe, "seed"),
                  .step = (uint64_t)t->step,
                  .logit_normal = mhla_recipe_bool(t->recipe, "train.logit_normal")}; /* of flows alone */
}

/* ---- A step ------------------------------------------------------------------------------------------------------------ */

mhla_tensor *mhla_denoising_loss(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share) {
    mhla_denoising *j = t->job;
    const int dry = (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0;
    int64_t first;
    const int64_t rows = mhla_pictures_part(&j->p, t->recipe, dry, part, parts, &first, share);
    if (rows == 0) return NULL;
    work w = work_of(t, dry ? NULL : j->p.batch, first, rows);
    if (!dry) mhla_parallel(t->context, rows, noise_task, &w);
    mhla_tape_key(tape, w.seed, w.step, (uint64_t)first);
    mhla_tensor *y = answers(tape, t, j, rows, mhla_recipe_bool(t->recipe, "train.recompute"));
    double mean = 0.0;
    if (y && !dry) {
        w.output = y->data;
        mhla_parallel(t->context, rows, judge_task, &w);
        for (int64_t i = 0; i < rows; i++) mean += j->losses[i].loss / (double)rows;
    }
    return y ? mhla_nn_judged(tape, (float)mean, j->gradient, y) : NULL;
}

double mhla_denoising_data_bytes(const mhla_trainer *t) {
    const mhla_denoising *j = t->job;
    return mhla_pictures_bytes(&j->p, t->recipe, (double)j->pixels) +
           sizeof(float) * (double)j->rows * (double)(2 * j->pixels + j->answers);
}

/* ---- Evaluation ---------------------------------------------------------------------------------------------------------- */

enum { SUM_MSE, SUM_VB, SUM_LOSS, SUM_COUNT, SUMS };

static mhla_status measure_batch(mhla_trainer *t, const mhla_batch *batch, int64_t first, double *sums) {
    mhla_denoising *j = t->job;
    const int64_t rows = batch->count;
    work w = work_of(t, batch, 0, rows);
    w.first = first;
    w.test = 1;
    w.step = 0;
    mhla_parallel(t->context, rows, noise_task, &w);
    mhla_tape_begin(j->measuring, MHLA_TAPE_INFER);
    const mhla_tensor *y = answers(j->measuring, t, j, rows, 0);
    MHLA_TRY(mhla_tape_status(j->measuring));
    w.output = y->data;
    mhla_parallel(t->context, rows, judge_task, &w);
    for (int64_t i = 0; i < rows; i++) {
        if (batch->labels[i] < 0) continue; /* a file that could not be read */
        sums[SUM_MSE] += j->losses[i].mse;
        sums[SUM_VB] += j->losses[i].vb;
        sums[SUM_LOSS] += j->losses[i].loss;
        sums[SUM_COUNT] += 1.0;
    }
    return MHLA_OK;
}

mhla_status mhla_denoising_evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress,
                                    void *user) {
    mhla_denoising *j = t->job;
    const mhla_denoiser_info *c = &j->info;
    const double begin = mhla_seconds();
    const int64_t limit = mhla_recipe_int(t->recipe, "eval.limit");
    double sums[SUMS];
    if (j->measuring == NULL) MHLA_TRY(mhla_tape_create(&j->measuring, t->context));
    MHLA_TRY(mhla_pictures_each(t, &j->p, limit, measure_batch, sums, SUMS, progress, user));
    MHLA_TRY(mhla_ranks_stop(t));
    if (sums[SUM_COUNT] == 0.0 && !t->stopping)
        return mhla_fail(MHLA_EDATA, "none of %lld images could be read",
                         (long long)mhla_pictures_tested(&j->p, limit));
    const double n = fmax(sums[SUM_COUNT], 1.0), loss = sums[SUM_LOSS] / n;
    *score = (mhla_score){loss, loss, mhla_seconds() - begin, 0.0};
    mhla_json_put(row, "images", json_integer((json_int_t)sums[SUM_COUNT]));
    mhla_json_put(row, "loss", mhla_json_real(loss));
    mhla_json_put(row, "noise_mse", mhla_json_real(sums[SUM_MSE] / n));
    if (c->answers > c->channels) mhla_json_put(row, "variance_bits", mhla_json_real(sums[SUM_VB] / n));
    return MHLA_OK;
}

/* ---- Pictures ------------------------------------------------------------------------------------------------------------ */

static int told_to_stop(void *user, const mhla_sample_state *state) {
    const mhla_trainer *t = user;
    (void)state;
    return t->stop != 0;
}

/* Frames of pixels that a clip has; 0: images. Of latents the data say it. */
static int shown_frames(const mhla_denoising *j) {
    const mhla_latents_about *about = mhla_dataset_latents(j->p.train);
    return about ? about->frames : (int)j->info.extent.frames;
}

/* Frame f of n clips [channels,frames,height,width] as one grid. */
static mhla_status tile_frame(mhla_picture *grid, const float *clips, int64_t n, int64_t channels, mhla_extent e,
                              int columns, int64_t f) {
    const int64_t pixels = e.height * e.width;
    float *frame = malloc((size_t)(n * channels * pixels) * sizeof *frame);
    if (frame == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)n);
    for (int64_t i = 0; i < n * channels; i++)
        memcpy(frame + i * pixels, clips + (i * e.frames + f) * pixels, (size_t)pixels * sizeof *frame);
    const mhla_status status = mhla_picture_tile(grid, frame, n, (int)channels, (int)e.height, (int)e.width, columns);
    free(frame);
    return status;
}

/* n images as one grid, or clips as one for each of their frames. */
static mhla_status tile(mhla_picture *grids, const float *x, int64_t n, int64_t channels, mhla_extent e, int columns) {
    mhla_status status = MHLA_OK;
    if (e.frames == 0) return mhla_picture_tile(grids, x, n, (int)channels, (int)e.height, (int)e.width, columns);
    for (int64_t f = 0; f < e.frames && status == MHLA_OK; f++)
        status = tile_frame(&grids[f], x, n, channels, e, columns, f);
    return status;
}

/* Latents as pictures; told to stop meanwhile, none. */
static mhla_status decode(const mhla_trainer *t, mhla_picture *grids, const float *latents, int64_t n, int columns) {
    const mhla_denoising *j = t->job;
    mhla_codec_info c = {.size = sizeof c};
    MHLA_TRY(mhla_codec_query(j->vae, &c));
    const mhla_coding coding = {.size = sizeof coding,
                                .height = (int)j->info.extent.height * c.factor,
                                .width = (int)j->info.extent.width * c.factor,
                                .frames = shown_frames(j)};
    const mhla_extent extent = {coding.frames, coding.height, coding.width};
    const int64_t each = c.outputs * mhla_extent_pixels(extent);
    float *images = malloc((size_t)(n * each) * sizeof *images);
    mhla_status status = images ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)n);
    mhla_model_set_context(j->vae, t->context);
    for (int64_t i = mhla_dist_rank(); i < n && status == MHLA_OK && !t->stop; i += mhla_dist_ranks())
        status = mhla_model_decode(j->vae, images + i * each, latents + i * j->pixels, 1, &coding);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_merge(images, n, (size_t)each * sizeof *images);
    if (status == MHLA_OK && !t->stop) status = tile(grids, images, n, c.outputs, extent, columns);
    free(images);
    return status;
}

/* Images rank, rank + ranks, .. of what d describes, into their places of [d->images]; then those of the other ranks. */
static mhla_status sample_own(mhla_trainer *t, float *images, const mhla_sample_desc *d, int *stopped) {
    const mhla_denoising *j = t->job;
    const int rank = mhla_dist_rank(), ranks = mhla_dist_ranks();
    mhla_sample_desc own = *d;
    own.images = (d->images - rank + ranks - 1) / ranks;
    *stopped = 0;
    if (ranks == 1) return mhla_model_sample(t->model, images, d, stopped);
    int32_t *classes = calloc((size_t)own.images + 1, sizeof *classes);
    uint64_t *seeds = calloc((size_t)own.images + 1, sizeof *seeds);
    float *some = malloc((size_t)(own.images * j->pixels + 1) * sizeof *some);
    mhla_status status =
        classes && seeds && some ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)own.images);
    for (int64_t k = 0; status == MHLA_OK && k < own.images; k++) {
        classes[k] = d->classes[k * ranks + rank];
        seeds[k] = d->seeds[k * ranks + rank];
    }
    own.classes = classes;
    own.seeds = seeds;
    if (status == MHLA_OK && own.images) status = mhla_model_sample(t->model, some, &own, stopped);
    for (int64_t k = 0; status == MHLA_OK && !*stopped && k < own.images; k++)
        memcpy(images + (k * ranks + rank) * j->pixels, some + k * j->pixels, (size_t)j->pixels * sizeof *images);
    free(classes);
    free(seeds);
    free(some);
    MHLA_TRY(mhla_dist_agree(status));
    return mhla_dist_merge(images, d->images, (size_t)j->pixels * sizeof *images);
}

static mhla_status draw(mhla_trainer *t, mhla_picture *grids, const mhla_sample_desc *desc, int columns,
                        float *images) {
    int stopped;
    const mhla_denoising *j = t->job;
    const mhla_denoiser_info *c = &j->info;
    mhla_sample_desc d = *desc;
    d.method = mhla_recipe_text(t->recipe, "sample.sampler");
    d.steps = (int)mhla_recipe_int(t->recipe, "sample.steps");
    d.clip = j->vae == NULL; /* latents have no range */
    d.report = told_to_stop;
    d.user = t;
    MHLA_TRY(sample_own(t, images, &d, &stopped));
    MHLA_TRY(mhla_ranks_stop(t));
    if (t->stopping || stopped) return MHLA_OK;
    if (j->vae) return decode(t, grids, images, d.images, columns);
    return tile(grids, images, d.images, c->channels, c->extent, columns);
}

int mhla_denoising_shows(const mhla_denoising *j) { return mhla_dataset_latents(j->p.train) == NULL || j->vae; }

mhla_status mhla_denoising_show(mhla_trainer *t, const mhla_sample_desc *desc, const int32_t *classes, int rows,
                                int columns) {
    const mhla_denoising *j = t->job;
    const int64_t frames = shown_frames(j) ? shown_frames(j) : 1;
    const size_t n = (size_t)rows * (size_t)columns;
    mhla_picture *grids = calloc((size_t)frames, sizeof *grids);
    float *images = malloc(n * (size_t)j->pixels * sizeof *images);
    int32_t *all = calloc(n, sizeof *all);
    uint64_t *seeds = calloc(n, sizeof *seeds);
    mhla_status status =
        grids && images && all && seeds ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %zu images", n);
    for (int64_t f = 0; grids && f < frames; f++) grids[f].size = sizeof *grids;
    for (size_t i = 0; i < n && status == MHLA_OK; i++) {
        all[i] = classes[i / (size_t)columns];
        seeds[i] = i % (size_t)columns;
    }
    mhla_sample_desc d = *desc;
    d.images = (int64_t)n;
    d.classes = all;
    d.seeds = seeds;
    if (status == MHLA_OK) status = draw(t, grids, &d, columns, images);
    if (status == MHLA_OK && grids->pixels) status = mhla_pictures_save(t, grids, frames);
    for (int64_t f = 0; grids && f < frames; f++) mhla_picture_free(&grids[f]);
    free(grids);
    free(images);
    free(all);
    free(seeds);
    return status;
}
