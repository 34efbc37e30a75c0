#include "data/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/status.h"
#include "data/latents.h"

/* Batches are numbered from 0 through all epochs; in evaluation each epoch has one number more, its end. Batch n lives in
 * slot n % ahead. Workers take samples in order; whoever finishes the last one of a batch mixes it. */
typedef struct slot {
    mhla_batch batch;
    int taken, done; /* samples handed out, finished */
    int ready;
    mhla_status status;
    int failed; /* the first sample of it that failed */
    char message[512];
} slot;

struct mhla_loader {
    mhla_loader_desc desc;
    int64_t count, batches, length; /* pictures; batches of an epoch; numbers of an epoch */
    int channels, height, width, classes;
    slot *slots; /* [ahead] */

    pthread_mutex_t lock; /* of all that follows, and of slots but the pixels of samples under way */
    pthread_cond_t work, ready;
    int64_t first;  /* the batch in use, or to be used next: slots first .. first + ahead - 1 may be filled */
    int64_t cursor; /* the batch from which samples are handed out */
    int holding;    /* the caller has `first` */
    int active, paused, stop;
    int64_t *order; /* [count]: the permutation of epoch order_epoch; training */
    int64_t order_epoch;
    double waited;

    pthread_t *threads;
    int started;
    mhla_augment_scratch own; /* of `next` without workers */
    mhla_image own_image;
};

/* ---- What is in a batch ---- */

/* Fisher and Yates, by numbers of (seed, epoch) only. */
static void shuffle(mhla_loader *l, int64_t epoch) {
    if (l->order_epoch == epoch) return;
    mhla_rng rng = mhla_rng_make(l->desc.seed, (uint64_t)epoch, 0, MHLA_PLACE_SHUFFLE);
    for (int64_t i = 0; i < l->count; i++) l->order[i] = i;
    uint32_t w[4];
    uint64_t block = 0;
    int used = 4;
    for (int64_t i = l->count - 1; i > 0; i--) {
        if (used == 4) {
            rng.sample = (uint32_t)(block >> 32);
            mhla_rng_block(&rng, (uint32_t)block++, w);
            used = 0;
        }
        const uint64_t random = (uint64_t)w[used] << 32 | w[used + 1];
        const int64_t j = (int64_t)(((__uint128_t)random * (uint64_t)(i + 1)) >> 64), x = l->order[i];
        used += 2;
        l->order[i] = l->order[j];
        l->order[j] = x;
    }
    l->order_epoch = epoch;
}

static int64_t epoch_of(const mhla_loader *l, int64_t n) { return n / l->length; }
static int64_t batch_of(const mhla_loader *l, int64_t n) { return n % l->length; }
static int is_end(const mhla_loader *l, int64_t n) { return batch_of(l, n) == l->batches; }

/* Picture i of count, spread over all: a folder has class after class. */
static int64_t spread(const mhla_loader *l, int64_t i) {
    const int64_t all = mhla_dataset_count(l->desc.data);
    return l->count == all ? i : (int64_t)((double)i * (double)all / (double)l->count);
}

static void begin(mhla_loader *l, slot *s, int64_t n) {
    mhla_batch *b = &s->batch;
    b->epoch = epoch_of(l, n);
    b->batch = batch_of(l, n);
    const int64_t start = (b->batch * l->desc.ranks + l->desc.rank) * l->desc.batch, left = l->count - start;
    b->start = start;
    b->count = left < l->desc.batch ? (int)left : l->desc.batch;
    if (l->desc.train) shuffle(l, b->epoch);
    for (int i = 0; i < b->count; i++) b->index[i] = l->desc.train ? l->order[start + i] : spread(l, start + i);
    s->taken = s->done = s->ready = 0;
    s->status = MHLA_OK;
    s->failed = b->count;
}

static mhla_status get(mhla_loader *l, int64_t index, mhla_image *image, float *out, int *label, uint64_t epoch) {
    if (l->desc.latents)
        return mhla_dataset_draw(l->desc.data, index, out, label, l->desc.train ? (double)l->desc.augment.flip : 0.0,
                                 l->desc.seed, epoch);
    return mhla_dataset_get(l->desc.data, index, image, label);
}

/* A picture, or, of latents, what becomes of it at once. */
static mhla_status get_readable(mhla_loader *l, int64_t *index, mhla_image *image, float *out, int *label,
                                uint64_t epoch) {
    const int64_t wanted = *index, all = mhla_dataset_count(l->desc.data);
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < all; i++) {
        *index = (wanted + i) % all;
        status = get(l, *index, image, out, label, epoch);
        if (status == MHLA_OK || status == MHLA_ENOMEM || !l->desc.train) return status;
    }
    char last[300];
    snprintf(last, sizeof last, "%s", mhla_message());
    return mhla_fail(status, "none of the %lld images can be read; the last one: %s", (long long)all, last);
}

/* Mixing takes row i and row B-1-i. */
static int wanted(const mhla_loader *l, int i, int count) {
    const int other = l->desc.mix.mixup > 0.0 || l->desc.mix.cutmix > 0.0 ? count - 1 - i : i;
    return l->desc.last == 0 || (i >= l->desc.first && i < l->desc.last) ||
           (other >= l->desc.first && other < l->desc.last);
}

/* Sample i of the batch: read, augmented, its label. */
static mhla_status fill(mhla_loader *l, slot *s, int i, mhla_image *image, mhla_augment_scratch *scratch) {
    mhla_batch *b = &s->batch;
    if (l->desc.train && !wanted(l, i, b->count)) {
        b->labels[i] = 0;
        return MHLA_OK;
    }
    const size_t n = (size_t)l->channels * (size_t)l->height * (size_t)l->width;
    float *out = b->images + (size_t)i * n;
    const uint64_t key = (uint64_t)b->index[i]; /* also of a picture that stands in for a broken one */
    const uint64_t epoch = l->desc.train ? (uint64_t)b->epoch : 0;
    const mhla_status status = get_readable(l, &b->index[i], image, out, &b->labels[i], epoch);
    if (status != MHLA_OK) {
        if (status == MHLA_ENOMEM || l->desc.train) return status;
        memset(out, 0, n * sizeof *out);
        b->labels[i] = -1;
        return MHLA_OK;
    }
    if (b->labels[i] < 0 || b->labels[i] >= l->classes)
        return mhla_fail(MHLA_EDATA, "image %lld%s%s has label %d: expected 0 to %d", (long long)b->index[i],
                         *mhla_dataset_file(l->desc.data, b->index[i]) ? " " : "",
                         mhla_dataset_file(l->desc.data, b->index[i]), b->labels[i], l->classes - 1);
    if (l->desc.latents) return MHLA_OK;
    return mhla_augment_apply(out, image, &l->desc.augment, scratch, l->desc.seed, epoch, key);
}

/* Targets, mixed or not, once all samples are there. */
static void finish(mhla_loader *l, slot *s) {
    mhla_batch *b = &s->batch;
    if (b->targets == NULL || s->status != MHLA_OK) return;
    static const mhla_mix none = {0};
    mhla_mix_batch(b->images, b->targets, b->labels, b->count, l->channels, l->height, l->width, l->classes,
                   l->desc.train ? &l->desc.mix : &none, l->desc.seed, (uint64_t)(b->epoch * l->batches + b->batch));
}

/* ---- Workers ---- */

static void keep_failure(slot *s, int sample, mhla_status status) {
    if (sample >= s->failed) return; /* the first one of the batch counts, whoever comes first in time */
    s->failed = sample;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", mhla_message());
}

/* Up to this many samples at once: small pictures take less time than a lock. */
enum { CHUNK = 4 };

static void *worker(void *arg) {
    mhla_loader *l = arg;
    mhla_image image = {0};
    mhla_augment_scratch scratch = {0};
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (is_end(l, l->cursor)) {
            l->cursor++;
            continue;
        }
        if (l->paused || l->cursor >= l->first + l->desc.ahead) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        slot *s = &l->slots[l->cursor % l->desc.ahead];
        if (s->taken < 0) begin(l, s, l->cursor);
        const int from = s->taken, to = from + CHUNK < s->batch.count ? from + CHUNK : s->batch.count;
        s->taken = to;
        if (to == s->batch.count) l->cursor++;
        l->active++;
        pthread_mutex_unlock(&l->lock);

        for (int i = from; i < to; i++) {
            const mhla_status status = fill(l, s, i, &image, &scratch);
            if (status == MHLA_OK) continue;
            pthread_mutex_lock(&l->lock);
            keep_failure(s, i, status);
            pthread_mutex_unlock(&l->lock);
        }

        pthread_mutex_lock(&l->lock);
        s->done += to - from;
        if (s->done == s->batch.count) {
            pthread_mutex_unlock(&l->lock);
            finish(l, s);
            pthread_mutex_lock(&l->lock);
            s->ready = 1;
            pthread_cond_broadcast(&l->ready);
        }
        l->active--;
        if (l->paused && l->active == 0) pthread_cond_broadcast(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    mhla_image_free(&image);
    mhla_augment_scratch_free(&scratch);
    return NULL;
}

static void work_here(mhla_loader *l, slot *s, int64_t n) {
    begin(l, s, n);
    for (int i = 0; i < s->batch.count; i++) {
        const mhla_status status = fill(l, s, i, &l->own_image, &l->own);
        if (status != MHLA_OK) keep_failure(s, i, status);
    }
    finish(l, s);
    s->ready = 1;
}

mhla_status mhla_loader_next(mhla_loader *l, const mhla_batch **batch) {
    *batch = NULL;
    pthread_mutex_lock(&l->lock);
    if (l->holding) {
        if (!is_end(l, l->first)) {
            l->slots[l->first % l->desc.ahead].ready = 0;
            l->slots[l->first % l->desc.ahead].taken = -1;
        }
        l->first++;
        l->holding = 0;
        pthread_cond_broadcast(&l->work);
    }
    slot *s = &l->slots[l->first % l->desc.ahead];
    mhla_status status = MHLA_OK;
    if (is_end(l, l->first)) {
        s = &l->slots[l->desc.ahead]; /* one more than the ring has, for the end */
        s->batch = (mhla_batch){.epoch = epoch_of(l, l->first), .batch = l->batches};
    } else if (l->started == 0) {
        if (!s->ready) work_here(l, s, l->first);
        status = s->status;
    } else {
        const double start = mhla_seconds();
        while (!s->ready) pthread_cond_wait(&l->ready, &l->lock);
        l->waited += mhla_seconds() - start;
        status = s->status;
    }
    if (status == MHLA_OK) {
        l->holding = 1;
        *batch = &s->batch;
    }
    pthread_mutex_unlock(&l->lock);
    return status == MHLA_OK ? MHLA_OK : mhla_fail(status, "%s", s->message);
}

mhla_status mhla_loader_seek(mhla_loader *l, int64_t epoch, int64_t batch) {
    if (epoch < 0 || batch < 0 || batch > l->batches || epoch > INT64_MAX / (l->length + 1) - 1)
        return mhla_fail(MHLA_EINVAL, "batch %lld of epoch %lld: an epoch has %lld", (long long)batch, (long long)epoch,
                         (long long)l->batches);
    if (batch == l->batches) {
        epoch++;
        batch = 0;
    }
    pthread_mutex_lock(&l->lock);
    l->paused = 1;
    while (l->active > 0) pthread_cond_wait(&l->ready, &l->lock);
    l->first = l->cursor = epoch * l->length + batch;
    l->holding = 0;
    for (int i = 0; i < l->desc.ahead; i++) {
        l->slots[i].ready = 0;
        l->slots[i].taken = -1;
    }
    l->paused = 0;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    return MHLA_OK;
}

/* ---- Making and ending ---- */

static mhla_status make_slots(mhla_loader *l) {
    const size_t B = (size_t)l->desc.batch, pixels = (size_t)l->channels * (size_t)l->height * (size_t)l->width;
    l->slots = calloc((size_t)l->desc.ahead + 1, sizeof *l->slots);
    if (l->slots == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a loader");
    for (int i = 0; i < l->desc.ahead; i++) {
        mhla_batch *b = &l->slots[i].batch;
        l->slots[i].taken = -1;
        b->images =
            mhla_alloc_zero(B * pixels * sizeof *b->images); /* zeros: rows that nobody wants are mixed as well */
        if (!l->desc.no_targets) b->targets = mhla_alloc(B * (size_t)l->classes * sizeof *b->targets);
        b->labels = malloc(B * sizeof *b->labels);
        b->index = malloc(B * sizeof *b->index);
        if (b->images == NULL || b->labels == NULL || b->index == NULL || (b->targets == NULL && !l->desc.no_targets))
            return mhla_fail(MHLA_ENOMEM, "no memory for %d batches of %d images of %d x %d", l->desc.ahead,
                             l->desc.batch, l->height, l->width);
    }
    if (l->desc.train) {
        l->order = malloc((size_t)l->count * sizeof *l->order);
        if (l->order == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for the order of %lld images", (long long)l->count);
    }
    return MHLA_OK;
}

static mhla_status start_workers(mhla_loader *l) {
    l->threads = calloc((size_t)l->desc.workers + 1, sizeof *l->threads);
    if (l->threads == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a loader");
    sigset_t all, before; /* signals are the business of the program's own threads */
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a fault of its own: blocked, it would end the process at once (mhla_files_watch) */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = 0;
    for (int i = 0; i < l->desc.workers && code == 0; i++) {
        code = pthread_create(&l->threads[i], NULL, worker, l);
        if (code == 0) l->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) return MHLA_OK;
    return mhla_fail(MHLA_ENOMEM, "worker %d of %d could not be started: %s", l->started + 1, l->desc.workers,
                     strerror(code));
}

static mhla_status check(const mhla_loader_desc *d, int64_t count) {
    if (d->batch < 1 || d->batch > 1 << 20)
        return mhla_fail(MHLA_EINVAL, "a batch of %d images: expected 1 or more", d->batch);
    if (d->workers < 0 || d->workers > 1024)
        return mhla_fail(MHLA_EINVAL, "%d workers: expected 0 to 1024", d->workers);
    if (d->ahead < 0 || d->ahead > 1024)
        return mhla_fail(MHLA_EINVAL, "%d batches ahead: expected 1 to 1024", d->ahead);
    if (d->train && count < d->batch)
        return mhla_fail(MHLA_EINVAL, "a batch of %d images, but the data has only %lld", d->batch, (long long)count);
    if (d->mix.smoothing < 0.0 || d->mix.smoothing >= 1.0 || d->mix.mixup < 0.0 || d->mix.cutmix < 0.0)
        return mhla_fail(MHLA_EINVAL, "smoothing %g, mixup %g, cutmix %g: expected 0 or more, smoothing below 1",
                         d->mix.smoothing, d->mix.mixup, d->mix.cutmix);
    if (d->no_targets && d->train && (d->mix.mixup > 0.0 || d->mix.cutmix > 0.0))
        return mhla_fail(MHLA_EINVAL, "mixup and cutmix need targets");
    return MHLA_OK;
}

static mhla_status check_latents(const mhla_loader_desc *d) {
    const mhla_latents_about *about = mhla_dataset_latents(d->data);
    if (about == NULL && !d->latents) return MHLA_OK;
    if (about == NULL) return mhla_fail(MHLA_EINVAL, "the data are images, not latents");
    const int frames = about->frames ? about->latent_frames : 1; /* one below the other */
    const int height = frames * (about->height / about->factor), width = about->width / about->factor;
    if (!d->latents)
        return mhla_fail(MHLA_EINVAL, "the data are latents of %d channels: only a diffusion model learns them",
                         about->channels);
    if (d->augment.channels != about->channels || d->augment.height != height || d->augment.width != width)
        return mhla_fail(MHLA_EINVAL, "the data are latents of %d x %d x %d, the model takes %d x %d x %d",
                         about->channels, height, width, d->augment.channels, d->augment.height, d->augment.width);
    return MHLA_OK;
}

mhla_status mhla_loader_create(mhla_loader **loader, const mhla_loader_desc *desc) {
    *loader = NULL;
    const int64_t count = mhla_dataset_count(desc->data);
    MHLA_TRY(check(desc, count));
    MHLA_TRY(check_latents(desc));
    mhla_loader *l = calloc(1, sizeof *l);
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a loader");
    l->desc = *desc;
    if (l->desc.ahead == 0) l->desc.ahead = 3;
    if (desc->train || desc->ranks < 2) l->desc.ranks = 1, l->desc.rank = 0;
    l->count = !desc->train && desc->limit > 0 && desc->limit < count ? desc->limit : count;
    l->batches = desc->train ? l->count / desc->batch : (l->count + desc->batch - 1) / desc->batch;
    if (!desc->train) l->batches = (l->batches - l->desc.rank + l->desc.ranks - 1) / l->desc.ranks;
    l->length = l->batches + !desc->train;
    if (l->batches == 0) l->desc.workers = 0; /* they would look for work for ever */
    l->classes = desc->classes > 0 ? desc->classes : mhla_dataset_classes(desc->data);
    l->order_epoch = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, NULL);
    mhla_status status = desc->latents ? MHLA_OK : mhla_augment_prepare(&l->desc.augment);
    l->channels = l->desc.augment.channels;
    l->height = l->desc.augment.height;
    l->width = l->desc.augment.width;
    if (status == MHLA_OK) status = make_slots(l);
    if (status == MHLA_OK) status = start_workers(l);
    if (status != MHLA_OK) {
        mhla_loader_free(l);
        return status;
    }
    *loader = l;
    return MHLA_OK;
}

void mhla_loader_free(mhla_loader *l) {
    if (l == NULL) return;
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->started; i++) pthread_join(l->threads[i], NULL);
    for (int i = 0; l->slots && i < l->desc.ahead; i++) {
        mhla_free(l->slots[i].batch.images);
        mhla_free(l->slots[i].batch.targets);
        free(l->slots[i].batch.labels);
        free(l->slots[i].batch.index);
    }
    free(l->slots);
    free(l->order);
    free(l->threads);
    mhla_image_free(&l->own_image);
    mhla_augment_scratch_free(&l->own);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int64_t mhla_loader_batches(const mhla_loader *l) { return l->batches; }

double mhla_loader_waited(const mhla_loader *l) { return l->waited; }
