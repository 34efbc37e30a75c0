/* Pixels to latents and back by an autoencoder. One image or clip at a time goes through the network, whole or, where memory is bounded,
 * in tiles that overlap, each with all frames: their results are blended by weights that rise along the overlap. */
#include <math.h>
#include <mhla/diffusion.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/model.h"

enum {
    LEAST = 8,   /* side of the smallest tile, in latents */
    SHARE = 4,   /* a tile over its overlap */
    PLANNED = 64 /* threads that memory is planned for */
};
enum { MOST = 1 << 20 }; /* pixels of a side */

mhla_status mhla_codec_query(const mhla_model *m, mhla_codec_info *info) {
    mhla_autoencoder_info a;
    MHLA_TRY(mhla_autoencoder_query(m, &a));
    const mhla_codec_info full = {.size = sizeof full,
                                  .channels = a.channels,
                                  .outputs = a.outputs,
                                  .latents = a.latents,
                                  .factor = a.factor,
                                  .scale = a.scale,
                                  .shift = a.shift,
                                  .encodes = a.encodes,
                                  .decodes = a.decodes,
                                  .frames = a.frames,
                                  .mean = a.mean,
                                  .deviation = a.deviation};
    return mhla_struct_out(info, &full, sizeof full, "mhla_codec_info");
}

/* ---- What it takes ---- */

typedef struct job {
    mhla_model *m;
    mhla_autoencoder_info a;
    mhla_coding d;
    int decode;
    int64_t from, to;     /* channels that go in, that come out */
    int64_t grow, shrink; /* a number per side that goes in becomes grow / shrink */
    int64_t frames[2];    /* that go in, that come out; 1 of an image */
    int64_t single;       /* frames of a clip that an autoencoder of images takes one by one; else 1 */
    int64_t size[2];      /* sides of what goes in */
    int64_t tile[2], overlap;
    int64_t count[2]; /* tiles on each axis */
    char *memory;
    float *in, *out;   /* a tile that goes in; all of what comes out, where tiles are blended */
    float *weights[2]; /* [count][tile on the way out] */
} job;

static mhla_tensor *apply(const job *j, mhla_tape *t, const float *x, int64_t height, int64_t width) {
    mhla_tensor *in = j->a.frames ? mhla_nn_input(t, x, MHLA_SHAPE(1, j->from, j->frames[0], height, width))
                                  : mhla_nn_input(t, x, MHLA_SHAPE(1, j->from, height, width));
    return j->decode ? mhla_autoencoder_decode(t, j->m, in) : mhla_autoencoder_encode(t, j->m, in);
}

/* A dry pass computes nothing, so this is never called. */
static void no_loop(void *user, int64_t n, mhla_task_fn task, void *arg) { (void)user, (void)n, (void)task, (void)arg; }

/* Bytes of the network and of one tile on its way, as with PLANNED threads: the same limit gives the same tiles, and so the same
 * pixels, for any number of threads. */
static mhla_status peak_of(const job *j, int64_t side, size_t *bytes) {
    const mhla_context_desc desc = {
        .size = sizeof desc, .backend = MHLA_BACKEND_CUSTOM, .threads = PLANNED, .parallel = no_loop};
    mhla_context *planned = NULL;
    mhla_tape *t = NULL;
    mhla_status status = mhla_context_create(&planned, &desc);
    if (status == MHLA_OK) status = mhla_tape_create(&t, planned);
    if (status == MHLA_OK) {
        mhla_tape_begin(t, MHLA_TAPE_INFER | MHLA_TAPE_DRY);
        apply(j, t, NULL, side < j->size[0] ? side : j->size[0], side < j->size[1] ? side : j->size[1]);
        status = mhla_tape_status(t);
        *bytes = mhla_tape_peak(t) + mhla_params_bytes(j->m->params, 0);
    }
    mhla_tape_free(t);
    mhla_context_free(planned);
    return status;
}

/* The largest tile that memory allows. */
static mhla_status choose(job *j) {
    const int64_t unit = j->decode ? 1 : j->a.factor, longest = j->size[0] > j->size[1] ? j->size[0] : j->size[1];
    int64_t good = longest, low = LEAST, high = longest / unit; /* of units: low fits, more than high does not */
    size_t bytes;
    MHLA_TRY(peak_of(j, good, &bytes));
    if (j->d.memory && bytes > j->d.memory) {
        good = low * unit;
        MHLA_TRY(peak_of(j, good, &bytes));
        if (bytes > j->d.memory || low >= high)
            return mhla_fail(MHLA_ENOMEM, "memory of %zu bytes: the smallest tile, %lld pixels a side, takes %zu",
                             j->d.memory, (long long)(low * j->a.factor), bytes);
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            MHLA_TRY(peak_of(j, middle * unit, &bytes));
            if (bytes <= j->d.memory)
                low = middle;
            else
                high = middle;
        }
        good = low * unit;
    }
    j->d.tile = (int)(j->decode ? good * j->a.factor : good);
    if (j->d.tile < LEAST * j->a.factor) j->d.tile = LEAST * j->a.factor; /* a smaller image is whole in it */
    return MHLA_OK;
}

/* How many frames go in and come out. */
static mhla_status count_frames(job *j) {
    const int n = j->a.frames;
    if (j->d.frames < 0 || j->d.frames > MOST)
        return mhla_fail(MHLA_EINVAL, "frames is %d: not a number of frames", j->d.frames);
    if (n && j->d.frames == 0) j->d.frames = 1;
    j->single = n == 0 && j->d.frames > 1 ? j->d.frames : 1;
    if (n && (j->d.frames - 1) % n != 0)
        return mhla_fail(MHLA_EINVAL, "%d frames: expected 1 plus a multiple of %d", j->d.frames, n);
    const int64_t pixels = n ? j->d.frames : 1, latents = n ? 1 + (pixels - 1) / n : 1;
    j->frames[0] = j->decode ? latents : pixels;
    j->frames[1] = j->decode ? pixels : latents;
    return MHLA_OK;
}

static mhla_status prepare(job *j, mhla_model *m, const mhla_coding *given, int decode) {
    *j = (job){.m = m, .decode = decode, .grow = 1, .shrink = 1};
    MHLA_TRY(mhla_autoencoder_query(m, &j->a));
    MHLA_TRY(mhla_struct_in(&j->d, sizeof j->d, given, "mhla_coding"));
    mhla_coding *d = &j->d;
    const int f = j->a.factor;
    if (!(decode ? j->a.decodes : j->a.encodes))
        return mhla_fail(MHLA_EINVAL, "the autoencoder has no %s", decode ? "decoder" : "encoder");
    if (d->height == 0 && d->width == 0) d->height = d->width = j->a.side;
    if (d->height < 1 || d->width < 1 || d->height > MOST || d->width > MOST || d->height % f || d->width % f)
        return mhla_fail(MHLA_EINVAL, "%d x %d pixels: each side must be a multiple of %d", d->width, d->height, f);
    if (d->tile < 0 || d->tile % f || (d->tile && d->tile < LEAST * f))
        return mhla_fail(MHLA_EINVAL, "tile is %d: expected 0, or a multiple of %d from %d on", d->tile, f, LEAST * f);
    MHLA_TRY(count_frames(j));
    *(decode ? &j->grow : &j->shrink) = f;
    j->from = decode ? j->a.latents : j->a.channels;
    j->to = decode ? j->a.outputs : (int64_t)(j->a.certain ? 1 : 2) * j->a.latents;
    j->size[0] = decode ? d->height / f : d->height;
    j->size[1] = decode ? d->width / f : d->width;
    if (d->tile == 0) MHLA_TRY(choose(j));
    const int64_t side = decode ? d->tile / f : d->tile;
    MHLA_TRY(peak_of(j, side, &d->peak));
    d->tiles = 1;
    d->multiply_adds = 0;
    j->overlap = decode ? side / SHARE : side / f / SHARE * f;
    for (int a = 0; a < 2; a++) {
        const int64_t n = j->size[a], t = j->tile[a] = side < n ? side : n, step = t - j->overlap;
        j->count[a] = t == n || step < 1 ? 1 : (n - j->overlap + step - 1) / step; /* it is: tiles are longer */
        d->tiles *= (int)j->count[a];
    }
    const int64_t up = decode ? f : 1;
    const mhla_extent extent = {d->frames, j->tile[0] * up, j->tile[1] * up};
    d->multiply_adds = d->tiles * mhla_autoencoder_cost(m, extent, decode);
    return MHLA_OK;
}

mhla_status mhla_coding_settle(mhla_model *m, mhla_coding *coding, int decode) {
    job j;
    MHLA_TRY(prepare(&j, m, coding, decode));
    return mhla_struct_out(coding, &j.d, sizeof j.d, "mhla_coding");
}

/* ---- Tiles ---- */

/* Where tile i of an axis begins: on latents, spread evenly. */
static int64_t begin_of(const job *j, int a, int64_t i) {
    if (j->count[a] == 1) return 0;
    const int64_t unit = j->decode ? 1 : j->a.factor;
    return i * ((j->size[a] - j->tile[a]) / unit) / (j->count[a] - 1) * unit;
}

static int64_t out_of(const job *j, int64_t n) { return n * j->grow / j->shrink; }

/* Weights of each tile along an axis: they rise over the overlap, but not at the image's borders, and add up to 1. */
static void fill_weights(const job *j, int a) {
    const int64_t t = out_of(j, j->tile[a]), n = out_of(j, j->size[a]), ramp = out_of(j, j->overlap);
    for (int64_t i = 0; i < j->count[a]; i++)
        for (int64_t x = 0; x < t; x++) {
            const int64_t place = out_of(j, begin_of(j, a, i)) + x;
            double own = 0.0, all = 0.0;
            for (int64_t k = 0; k < j->count[a]; k++) {
                const int64_t begin = out_of(j, begin_of(j, a, k)), end = begin + t;
                if (place < begin || place >= end) continue;
                double w = 1.0;
                if (begin > 0) w = fmin(w, ((double)(place - begin) + 0.5) / (double)ramp);
                if (end < n) w = fmin(w, ((double)(end - place) - 0.5) / (double)ramp);
                all += w;
                if (k == i) own = w;
            }
            j->weights[a][i * t + x] = (float)(own / all);
        }
}

static mhla_status make_room(job *j) {
    mhla_carver c = {0};
    for (int pass = 0; pass < 2; pass++) {
        j->in = mhla_carve_floats(&c, j->from * j->frames[0] * j->tile[0] * j->tile[1]);
        j->out = mhla_carve_floats(&c, j->to * j->frames[1] * out_of(j, j->size[0]) * out_of(j, j->size[1]));
        for (int a = 0; a < 2; a++) j->weights[a] = mhla_carve_floats(&c, j->count[a] * out_of(j, j->tile[a]));
        if (pass == 0 && (j->memory = mhla_alloc(c.used)) == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for an image of %d x %d", j->d.width, j->d.height);
        c = (mhla_carver){.base = j->memory};
    }
    for (int a = 0; a < 2; a++) fill_weights(j, a);
    return MHLA_OK;
}

/* Channel c of what the network makes: (z - *shift) * *scale of it is what a diffusion sees. */
static void scale_of(const job *j, int64_t c, double *scale, double *shift) {
    *scale = j->a.deviation ? 1.0 / (double)j->a.deviation[c] : j->a.scale;
    *shift = j->a.mean ? (double)j->a.mean[c] : j->a.shift;
}

/* A tile out of x [from,frames,height,width], scaled as the network wants it. */
static void take_tile(const job *j, const float *x, int64_t top, int64_t left) {
    float *to = j->in;
    for (int64_t p = 0; p < j->from * j->frames[0]; p++) {
        double scale = 1.0, shift = 0.0;
        if (j->decode) scale_of(j, p / j->frames[0], &scale, &shift);
        for (int64_t h = 0; h < j->tile[0]; h++) {
            const float *row = x + (p * j->size[0] + top + h) * j->size[1] + left;
            for (int64_t w = 0; w < j->tile[1]; w++) *to++ = (float)((double)row[w] * (1.0 / scale) + shift);
        }
    }
}

/* What came of it, weighted, onto all of it. */
static void put_tile(const job *j, const float *y, int64_t ty, int64_t tx) {
    const int64_t H = out_of(j, j->size[0]), W = out_of(j, j->size[1]);
    const int64_t th = out_of(j, j->tile[0]), tw = out_of(j, j->tile[1]);
    const int64_t top = out_of(j, begin_of(j, 0, ty)), left = out_of(j, begin_of(j, 1, tx));
    const float *wy = j->weights[0] + ty * th, *wx = j->weights[1] + tx * tw;
    for (int64_t p = 0; p < j->to * j->frames[1]; p++)
        for (int64_t h = 0; h < th; h++) {
            float *to = j->out + (p * H + top + h) * W + left;
            const float *from = y + (p * th + h) * tw;
            for (int64_t w = 0; w < tw; w++) to[w] += wy[h] * wx[w] * from[w];
        }
}

/* All tiles of one image into j->out. */
static mhla_status run_image(job *j, const float *x, int64_t image, int64_t images) {
    mhla_model *m = j->m;
    const int64_t n = j->to * j->frames[1] * out_of(j, j->size[0]) * out_of(j, j->size[1]);
    memset(j->out, 0, (size_t)n * sizeof *j->out);
    for (int64_t ty = 0; ty < j->count[0]; ty++)
        for (int64_t tx = 0; tx < j->count[1]; tx++) {
            take_tile(j, x, begin_of(j, 0, ty), begin_of(j, 1, tx));
            mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
            const mhla_tensor *y = apply(j, m->tape, j->in, j->tile[0], j->tile[1]);
            MHLA_TRY(mhla_tape_status(m->tape));
            if (j->d.tiles == 1)
                memcpy(j->out, y->data, (size_t)n * sizeof *j->out);
            else
                put_tile(j, y->data, ty, tx);
            const int64_t done = image * j->d.tiles + ty * j->count[1] + tx + 1;
            if (j->d.progress) j->d.progress(j->d.user, done, images * j->d.tiles);
        }
    return MHLA_OK;
}

/* Frame f of what goes in, [from,single,...]: into `own` where there are several. */
static const float *frame_of(const job *j, const float *x, int64_t f, float *own) {
    const int64_t plane = j->frames[0] * j->size[0] * j->size[1];
    if (j->single == 1) return x;
    for (int64_t c = 0; c < j->from; c++)
        memcpy(own + c * plane, x + (c * j->single + f) * plane, (size_t)plane * sizeof *own);
    return own;
}

/* Images 0 .. n-1 of x, and of each its frames where they go one by one, handed to `take`. */
static mhla_status run(job *j, const float *x, int64_t n, void (*take)(const job *j, int64_t i, int64_t f, void *to),
                       void *to) {
    if (n < 0 || (n > 0 && x == NULL))
        return mhla_fail(MHLA_EINVAL, n < 0 ? "n is negative" : "%s is NULL", j->decode ? "latents" : "images");
    const int64_t each = j->from * j->frames[0] * j->size[0] * j->size[1];
    float *own = j->single > 1 ? mhla_alloc((size_t)each * sizeof *own) : NULL;
    mhla_status status = j->single > 1 && own == NULL ? mhla_fail(MHLA_ENOMEM, "no memory for a frame") : make_room(j);
    if (status == MHLA_OK && j->m->tape == NULL) status = mhla_tape_create(&j->m->tape, j->m->context);
    for (int64_t i = 0; i < n * j->single && status == MHLA_OK; i++) {
        const float *clip = x + i / j->single * j->single * each;
        status = run_image(j, frame_of(j, clip, i % j->single, own), i, n * j->single);
        if (status == MHLA_OK) take(j, i / j->single, i % j->single, to);
    }
    mhla_free(own);
    mhla_free(j->memory);
    return status;
}

typedef struct moments {
    float *mean, *deviation;
} moments;

/* Where channel c of frame f of the i-th begins, of so many channels. */
static int64_t place_of(const job *j, int64_t i, int64_t f, int64_t c, int64_t channels, int64_t plane) {
    return ((i * channels + c) * j->single + f) * plane;
}

static void take_moments(const job *j, int64_t i, int64_t f, void *to) {
    const moments *m = to;
    const int64_t plane = j->frames[1] * out_of(j, j->size[0]) * out_of(j, j->size[1]), n = j->a.latents * plane;
    for (int64_t e = 0; e < n; e++) {
        double scale, shift;
        const int64_t at = place_of(j, i, f, e / plane, j->a.latents, plane) + e % plane;
        scale_of(j, e / plane, &scale, &shift);
        m->mean[at] = (float)(((double)j->out[e] - shift) * scale);
        if (m->deviation && j->a.certain)
            m->deviation[at] = 0.0f;
        else if (m->deviation)
            m->deviation[at] = (float)(exp(0.5 * fmin(fmax((double)j->out[n + e], -30.0), 20.0)) * scale);
    }
}

static void take_images(const job *j, int64_t i, int64_t f, void *to) {
    const int64_t plane = j->frames[1] * out_of(j, j->size[0]) * out_of(j, j->size[1]);
    for (int64_t c = 0; c < j->to; c++)
        memcpy((float *)to + place_of(j, i, f, c, j->to, plane), j->out + c * plane, (size_t)plane * sizeof(float));
}

mhla_status mhla_model_encode(mhla_model *m, float *mean, float *deviation, const float *images, int64_t n,
                              const mhla_coding *coding) {
    job j;
    MHLA_TRY(prepare(&j, m, coding, 0));
    if (mean == NULL && n > 0) return mhla_fail(MHLA_EINVAL, "mean is NULL");
    return run(&j, images, n, take_moments, &(moments){mean, deviation});
}

mhla_status mhla_model_decode(mhla_model *m, float *images, const float *latents, int64_t n,
                              const mhla_coding *coding) {
    job j;
    MHLA_TRY(prepare(&j, m, coding, 1));
    if (images == NULL && n > 0) return mhla_fail(MHLA_EINVAL, "images is NULL");
    return run(&j, latents, n, take_images, images);
}
