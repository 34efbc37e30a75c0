/* Latents of a dataset, made once (data/latents.h). Each file is a function of the images and the autoencoder, and has its name
 * once it is complete: a run that was killed leaves out what is there, and ends with the same bytes. */
#include <dirent.h>
#include <math.h>
#include <mhla/diffusion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "data/latents.h"
#include "dist/dist.h"
#include "file/file.h"
#include "file/safetensors.h"
#include "image/augment.h"
#include "models/model.h"

typedef struct making {
    mhla_model *vae;
    mhla_latents_desc d;
    mhla_latents_about about;
    mhla_latents_made made;
    mhla_coding coding;
    mhla_augment augment;
    mhla_dataset *data[2];
    mhla_image image;
    mhla_augment_scratch scratch;
    int64_t pixels, each;    /* numbers of an image or clip, of a latent */
    int latent_frames;       /* 0: images */
    float *images;           /* [2,pixels]: an image, and flipped */
    float *mean, *deviation; /* [MHLA_LATENTS_SHARD,2,each] */
    int32_t labels[MHLA_LATENTS_SHARD];
} making;

/* ---- What is to be made ---- */

static mhla_status open_data(making *m) {
    char folder[4096];
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, m->d.source));
    for (int i = 0; i < 2; i++) {
        MHLA_TRY(mhla_dataset_open(&m->data[i], folder, i ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN));
        if (mhla_dataset_latents(m->data[i]))
            return mhla_fail(MHLA_EINVAL, "%s holds latents already: expected images", m->d.source);
        int64_t left_out;
        (void)mhla_dataset_broken(m->data[i], &left_out, NULL, 0);
        m->made.unreadable += left_out;
    }
    return MHLA_OK;
}

/* Clips are encoded as they are: all frames, of their own size. */
static mhla_status follow_clips(making *m) {
    mhla_coding *c = &m->coding;
    const mhla_dataset *d = m->data[0], *test = m->data[1];
    const int frames = mhla_dataset_frames(d), height = mhla_dataset_height(d), width = mhla_dataset_width(d);
    if (frames == 0 && mhla_dataset_frames(test) == 0) return MHLA_OK;
    if (frames != mhla_dataset_frames(test) || height != mhla_dataset_height(test) || width != mhla_dataset_width(test))
        return mhla_fail(MHLA_EDATA, "%s: its clips for training and those for test are not of one size", m->d.source);
    if ((c->height && c->height != height) || (c->width && c->width != width))
        return mhla_fail(MHLA_EINVAL, "%s holds clips of %d x %d: they are not resized to %d x %d", m->d.source, width,
                         height, c->width, c->height);
    c->frames = frames;
    c->height = height;
    c->width = width;
    return MHLA_OK;
}

static mhla_status describe(making *m) {
    mhla_latents_about *a = &m->about;
    mhla_codec_info c = {.size = sizeof c};
    MHLA_TRY(mhla_codec_query(m->vae, &c));
    MHLA_TRY(open_data(m));
    m->coding = (mhla_coding){.size = sizeof m->coding, .height = m->d.height, .width = m->d.width};
    MHLA_TRY(follow_clips(m));
    MHLA_TRY(mhla_coding_settle(m->vae, &m->coding, 0));
    const int frames = m->coding.frames;
    if (mhla_dataset_frames(m->data[0])) m->latent_frames = c.frames ? 1 + (frames - 1) / c.frames : frames;
    *a = (mhla_latents_about){.scale = c.scale,
                              .shift = c.shift,
                              .channels = c.latents,
                              .factor = c.factor,
                              .frames = m->latent_frames ? frames : 0,
                              .latent_frames = m->latent_frames,
                              .height = m->coding.height,
                              .width = m->coding.width};
    m->augment = (mhla_augment){.height = a->height * (a->frames ? a->frames : 1), /* one below the other */
                                .width = a->width,
                                .channels = c.channels,
                                .crop = MHLA_CROP_EVAL,
                                .crop_pct = 1.0};
    for (int i = 0; i < 3; i++) m->augment.mean[i] = m->augment.std[i] = 0.5f;
    MHLA_TRY(mhla_augment_prepare(&m->augment));
    MHLA_TRY(mhla_model_hash(m->vae, a->vae));
    MHLA_TRY(mhla_data_locate(a->source, sizeof a->source, m->d.source));
    MHLA_TRY(mhla_data_whole_path(a->source, sizeof a->source));
    MHLA_TRY(mhla_data_sum(a->data, a->source));
    a->train = mhla_dataset_count(m->data[0]);
    a->test = mhla_dataset_count(m->data[1]);
    a->classes = mhla_dataset_classes(m->data[0]);
    if (mhla_dataset_classes(m->data[1]) > a->classes) a->classes = mhla_dataset_classes(m->data[1]);
    m->pixels = (int64_t)c.channels * (a->frames ? a->frames : 1) * a->height * a->width;
    m->each = (int64_t)c.latents * (a->frames ? a->latent_frames : 1) * (a->height / c.factor) * (a->width / c.factor);
    return MHLA_OK;
}

static mhla_status write_about(const making *m) {
    const mhla_latents_about *a = &m->about;
    char path[4096];
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *names = json_array();
    for (int i = 0; i < a->classes; i++) mhla_json_add(names, json_string(mhla_dataset_class_name(m->data[0], i)));
    mhla_json_put(tree, "source", json_string(a->source));
    mhla_json_put(tree, "data_sha256", json_string(a->data));
    mhla_json_put(tree, "vae_sha256", json_string(a->vae));
    mhla_json_put(tree, "scale", mhla_json_real(a->scale));
    mhla_json_put(tree, "shift", mhla_json_real(a->shift));
    mhla_json_put(tree, "channels", json_integer(a->channels));
    mhla_json_put(tree, "factor", json_integer(a->factor));
    if (a->frames) mhla_json_put(tree, "frames", json_integer(a->frames));
    if (a->frames) mhla_json_put(tree, "latent_frames", json_integer(a->latent_frames));
    mhla_json_put(tree, "height", json_integer(a->height));
    mhla_json_put(tree, "width", json_integer(a->width));
    mhla_json_put(tree, "train", json_integer(a->train));
    mhla_json_put(tree, "test", json_integer(a->test));
    mhla_json_put(tree, "classes", names);
    mhla_status status = MHLA_OK;
    if (tree == NULL || mhla_json_lost() != lost)
        status = mhla_fail(MHLA_EDATA, "%s: its path or a name of a class is not UTF-8", a->source);
    if (status == MHLA_OK) status = mhla_folder_make(m->d.out);
    if (status == MHLA_OK && snprintf(path, sizeof path, "%s/latents.json", m->d.out) >= (int)sizeof path)
        status = mhla_fail(MHLA_EIO, "%.60s...: the path is too long", m->d.out);
    if (status == MHLA_OK) status = mhla_json_save(tree, path);
    json_decref(tree);
    return status;
}

/* A folder that has been begun must have been begun with the same images, autoencoder and size. */
static mhla_status begin_or_resume(const making *m) {
    mhla_latents_about was;
    const mhla_latents_about *a = &m->about;
    if (!mhla_latents_there(m->d.out)) {
        DIR *folder = opendir(m->d.out);
        const struct dirent *entry;
        int other = 0;
        while (folder && (entry = readdir(folder)) != NULL) other |= entry->d_name[0] != '.';
        if (folder) closedir(folder);
        if (other) return mhla_fail(MHLA_EINVAL, "%s is not empty, and its files are not latents", m->d.out);
        return write_about(m);
    }
    MHLA_TRY(mhla_latents_read(&was, NULL, m->d.out));
    if (strcmp(was.vae, a->vae) != 0 || was.scale != a->scale || was.shift != a->shift)
        return mhla_fail(MHLA_EINVAL, "%s has latents made with another autoencoder: SHA-256 %.12s, this one has %.12s",
                         m->d.out, was.vae, a->vae);
    if (was.height != a->height || was.width != a->width || was.frames != a->frames)
        return mhla_fail(MHLA_EINVAL, "%s has latents of images of %d x %d, not %d x %d", m->d.out, was.width,
                         was.height, a->width, a->height);
    if (strcmp(was.data, a->data) != 0)
        return mhla_fail(MHLA_EINVAL, "%s has latents of other images: those of %s, or %s has changed since", m->d.out,
                         was.source, a->source);
    return MHLA_OK;
}

/* ---- Making ---- */

/* Image `index` and the same image flipped into place `at` of the file. */
static mhla_status encode(making *m, mhla_dataset *data, int64_t index, int64_t at) {
    float *mean = m->mean + 2 * at * m->each, *deviation = m->deviation + 2 * at * m->each;
    int label = -1;
    mhla_status status = mhla_dataset_get(data, index, &m->image, &label);
    m->labels[at] = label;
    if (status != MHLA_OK && status != MHLA_ENOMEM) { /* training takes another one in its place */
        m->labels[at] = -1;
        memset(mean, 0, (size_t)(2 * m->each) * sizeof *mean);
        memset(deviation, 0, (size_t)(2 * m->each) * sizeof *deviation);
        return MHLA_OK;
    }
    if (status == MHLA_OK) status = mhla_augment_apply(m->images, &m->image, &m->augment, &m->scratch, 0, 0, 0);
    MHLA_TRY(status);
    const int64_t width = m->about.width;
    for (int64_t row = 0; row < m->pixels; row += width)
        for (int64_t x = 0; x < width; x++) m->images[m->pixels + row + x] = m->images[row + width - 1 - x];
    MHLA_TRY(mhla_model_encode(m->vae, mean, deviation, m->images, 2, &m->coding));
    for (int64_t i = 0; i < 2 * m->each; i++)
        if (!isfinite(mean[i]) || !isfinite(deviation[i]))
            return mhla_fail(MHLA_EDATA, "image %lld %s: the autoencoder's latent is not finite", (long long)index,
                             mhla_dataset_file(data, index));
    return MHLA_OK;
}

static mhla_status make_file(making *m, int test, int64_t number, int64_t images) {
    char path[4096];
    const mhla_latents_about *a = &m->about;
    const int64_t h = a->height / a->factor, w = a->width / a->factor, pictures[] = {images, 2, a->channels, h, w},
                  clips[] = {images, 2, a->channels, a->latent_frames, h, w}, *shape = a->frames ? clips : pictures;
    const int rank = a->frames ? 6 : 5;
    const mhla_storable tensors[] = {{"mean", rank, shape, m->mean, MHLA_IO_F32, MHLA_IO_F32},
                                     {"deviation", rank, shape, m->deviation, MHLA_IO_F32, MHLA_IO_F32},
                                     {"labels", 1, shape, m->labels, MHLA_IO_I32, MHLA_IO_I32}};
    mhla_latents_path(path, m->d.out, test ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN, number);
    const int64_t before = test ? a->train : 0, first = number * MHLA_LATENTS_SHARD;
    const int there = access(path, F_OK) == 0;
    if (there) m->made.kept += images;
    for (int64_t i = 0; i < images && !there; i++) {
        MHLA_TRY(encode(m, m->data[test], first + i, i));
        if (m->d.progress) m->d.progress(m->d.user, before + first + i + 1, a->train + a->test);
    }
    return there ? MHLA_OK : mhla_safetensors_write(path, tensors, 3, NULL, 0);
}

static mhla_status make(making *m) {
    const size_t numbers = (size_t)(MHLA_LATENTS_SHARD * 2 * m->each);
    m->images = malloc((size_t)(2 * m->pixels) * sizeof *m->images);
    m->mean = malloc(numbers * sizeof *m->mean);
    m->deviation = malloc(numbers * sizeof *m->deviation);
    if (m->images == NULL || m->mean == NULL || m->deviation == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for latents of %d images", MHLA_LATENTS_SHARD);
    int64_t file = 0; /* dealt out to the ranks */
    for (int test = 0; test < 2; test++) {
        const int64_t all = mhla_dataset_count(m->data[test]);
        for (int64_t at = 0; at < all; at += MHLA_LATENTS_SHARD)
            if (file++ % mhla_dist_ranks() == mhla_dist_rank())
                MHLA_TRY(make_file(m, test, at / MHLA_LATENTS_SHARD,
                                   all - at < MHLA_LATENTS_SHARD ? all - at : MHLA_LATENTS_SHARD));
    }
    return MHLA_OK;
}

/* Several ranks begin only if they have the same images and autoencoder. */
static mhla_status compare_ranks(const making *m) {
    const mhla_latents_about *a = &m->about;
    char size[64];
    snprintf(size, sizeof size, "%d x %d x %d", a->frames, a->height, a->width);
    MHLA_TRY(mhla_dist_same("SHA-256 of the autoencoder", a->vae));
    MHLA_TRY(mhla_dist_same("SHA-256 of the data", a->data));
    return mhla_dist_same("the size of the images", size);
}

static mhla_status count_kept(making *m) {
    const int ranks = mhla_dist_ranks();
    int64_t *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the results of %d ranks", ranks);
    const mhla_status status = mhla_dist_gather_all(all, &m->made.kept, sizeof *all);
    m->made.kept = 0;
    for (int r = 0; r < ranks; r++) m->made.kept += all[r];
    free(all);
    return status;
}

/* What the folder then holds, as a training will see it. */
static mhla_status look(making *m) {
    m->made.channels = m->about.channels;
    m->made.height = m->about.height / m->about.factor;
    m->made.width = m->about.width / m->about.factor;
    m->made.train = m->about.train;
    m->made.test = m->about.test;
    for (int test = 0; test < 2; test++) {
        mhla_dataset *data = NULL;
        MHLA_TRY(mhla_dataset_open(&data, m->d.out, test ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN));
        for (int64_t i = 0; i < mhla_dataset_count(data); i++) m->made.unreadable += mhla_dataset_label(data, i) < 0;
        mhla_dataset_free(data);
    }
    return MHLA_OK;
}

mhla_status mhla_latents_make(mhla_model *vae, const mhla_latents_desc *desc, mhla_latents_made *made) {
    making m = {.vae = vae, .made = {.size = sizeof m.made}};
    MHLA_TRY(mhla_struct_in(&m.d, sizeof m.d, desc, "mhla_latents_desc"));
    if (made) MHLA_TRY(mhla_struct_check(made, 0, "mhla_latents_made"));
    if (m.d.source == NULL || m.d.out == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", m.d.source ? "out" : "source");
    mhla_status status = mhla_dist_agree(describe(&m));
    if (status == MHLA_OK) status = compare_ranks(&m);
    if (status == MHLA_OK) status = mhla_dist_agree(mhla_dist_rank() == 0 ? begin_or_resume(&m) : MHLA_OK);
    if (status == MHLA_OK && mhla_dist_rank() > 0 && !mhla_latents_there(m.d.out))
        status = mhla_fail(MHLA_EIO, "%s is not the folder of rank 0: all ranks need to reach the same one", m.d.out);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_agree(make(&m));
    if (status == MHLA_OK) status = count_kept(&m);
    if (status == MHLA_OK) status = mhla_dist_agree(look(&m));
    mhla_dataset_free(m.data[0]);
    mhla_dataset_free(m.data[1]);
    mhla_image_free(&m.image);
    mhla_augment_scratch_free(&m.scratch);
    free(m.images);
    free(m.mean);
    free(m.deviation);
    return status == MHLA_OK && made ? mhla_struct_out(made, &m.made, sizeof m.made, "mhla_latents_made") : status;
}
