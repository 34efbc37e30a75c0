/* The work of a pipeline: prompts to rows of text, noise to latents, latents to pixels, one component after the other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "diffusion/steps.h"
#include "infer/images.h"
#include "infer/pipeline.h"

enum { SIDE_MOST = 1 << 16, IMAGES_MOST = 1000000 };

/* ---- Settings ---- */

static mhla_status check_lists(const mhla_make_desc *d) {
    if (d->images < 1 || d->images > IMAGES_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld images: expected 1 to %d", (long long)d->images, IMAGES_MOST);
    if (d->prompts == NULL || d->seeds == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", d->prompts ? "seeds" : "prompts");
    for (int64_t i = 0; i < d->images; i++)
        if (d->prompts[i] == NULL) return mhla_fail(MHLA_EINVAL, "prompts[%lld] is NULL", (long long)i);
    return MHLA_OK;
}

static int nearest_multiple(int n, int unit) { return n < unit ? unit : (n + unit / 2) / unit * unit; }

/* "800 x 480" of an image, "480 x 800" of a clip, whose height is said first. */
static const char *size_text(char text[32], const mhla_pipeline *p, int64_t height, int64_t width) {
    const int clip = p->autoencoder.frames > 0;
    snprintf(text, 32, "%lld x %lld", (long long)(clip ? height : width), (long long)(clip ? width : height));
    return text;
}

static mhla_status settle_size(const mhla_pipeline *p, mhla_make_desc *d) {
    char text[2][32];
    const mhla_autoencoder_info *a = &p->autoencoder;
    const mhla_extent *usual = &p->denoiser.extent;
    const int f = a->factor, unit = f * (p->denoiser.patch ? p->denoiser.patch : 1);
    if (d->height == 0) d->height = (int)usual->height * f;
    if (d->width == 0) d->width = (int)usual->width * f;
    if (d->height < 1 || d->width < 1 || d->height > SIDE_MOST || d->width > SIDE_MOST)
        return mhla_fail(MHLA_EINVAL, "%s pixels: expected sides of 1 to %d",
                         size_text(text[0], p, d->height, d->width), SIDE_MOST);
    if (d->height % unit || d->width % unit)
        return mhla_fail(MHLA_EINVAL, "%s pixels: each side must be a multiple of %d; the nearest is %s",
                         size_text(text[0], p, d->height, d->width), unit,
                         size_text(text[1], p, nearest_multiple(d->height, unit), nearest_multiple(d->width, unit)));
    d->made_height = d->height;
    d->made_width = d->width;
    if (!d->exact && p->kind->bin) (void)p->kind->bin(&d->made_height, &d->made_width, (int)usual->height * f);
    if (a->frames == 0) {
        if (d->frames > 1) return mhla_fail(MHLA_EINVAL, "%d frames: %s makes images", d->frames, p->kind->name);
        d->frames = 0;
        return MHLA_OK;
    }
    if (d->frames == 0) d->frames = 1 + ((int)usual->frames - 1) * a->frames;
    if (d->frames < 1 || d->frames > SIDE_MOST || (d->frames - 1) % a->frames)
        return mhla_fail(MHLA_EINVAL, "%d frames: expected 1 plus a multiple of %d, such as %d or %d", d->frames,
                         a->frames, d->frames < 1 ? 1 : 1 + (d->frames - 1) / a->frames * a->frames,
                         d->frames < 1 ? 1 + a->frames : 1 + ((d->frames - 1) / a->frames + 1) * a->frames);
    return MHLA_OK;
}

mhla_extent mhla_make_extent(const mhla_pipeline *p, const mhla_make_desc *d) {
    const int f = p->autoencoder.factor;
    const int frames = p->autoencoder.frames ? 1 + (d->frames - 1) / p->autoencoder.frames : 0;
    return (mhla_extent){frames, d->made_height / f, d->made_width / f};
}

mhla_coding mhla_make_coding(const mhla_make_desc *d) {
    return (mhla_coding){.size = sizeof(mhla_coding),
                         .height = d->made_height,
                         .width = d->made_width,
                         .memory = d->memory,
                         .frames = d->frames};
}

/* Can the sampler and the transformer do this? */
static mhla_status check_work(const mhla_pipeline *p, const mhla_make_desc *d) {
    char text[32];
    mhla_sampler *sampler;
    mhla_model *m;
    const mhla_sampler_desc how = {.size = sizeof how,
                                   .process = "flow",
                                   .method = d->method,
                                   .steps = d->steps,
                                   .shift = d->shift,
                                   .batch = 1,
                                   .channels = 1,
                                   .pixels = 1};
    MHLA_TRY(mhla_sampler_create(&sampler, &how));
    mhla_sampler_free(sampler);
    MHLA_TRY(mhla_pipeline_part(&m, p, MHLA_TRANSFORMER, 1));
    const mhla_status status = mhla_denoiser_check(m, mhla_make_extent(p, d));
    mhla_model_free(m);
    if (status == MHLA_OK) return status;
    return mhla_fail(status, "%s pixels: of latents, %s", size_text(text, p, d->made_height, d->made_width),
                     mhla_message());
}

/* How it is decoded; where memory is bounded that may be impossible, which is better said before the work than after it. */
static mhla_status settle_decoding(const mhla_pipeline *p, mhla_make_desc *d) {
    mhla_model *m;
    mhla_coding coding = mhla_make_coding(d);
    d->tiles = 1;
    d->tile = 0;
    if (d->memory == 0 || p->parts[MHLA_PART_VAE] == NULL) return MHLA_OK;
    MHLA_TRY(mhla_pipeline_part(&m, p, MHLA_VAE, 1));
    const mhla_status status = mhla_coding_settle(m, &coding, 1);
    mhla_model_free(m);
    d->tiles = coding.tiles;
    d->tile = coding.tiles > 1 ? coding.tile : 0;
    return status;
}

mhla_status mhla_make_settle(const mhla_pipeline *p, mhla_make_desc *d, const mhla_make_desc *given) {
    const mhla_pipeline_kind *kind = p->kind;
    MHLA_TRY(mhla_struct_in(d, sizeof *d, given, "mhla_make_desc"));
    MHLA_TRY(check_lists(d));
    if (d->negative == NULL) d->negative = kind->negative;
    if (d->instruction == NULL) d->instruction = kind->instruction;
    if (d->rows == 0) d->rows = kind->rows;
    if (p->denoiser.text_rows && d->rows > p->denoiser.text_rows) d->rows = p->denoiser.text_rows;
    if (d->guidance == 0.0) d->guidance = kind->guidance;
    if (!(d->guidance > 0.0 && d->guidance <= 1e6))
        return mhla_fail(MHLA_EINVAL, "guidance %g: expected a number above 0", d->guidance);
    if (d->method == NULL) d->method = p->schedule.method;
    if (d->steps == 0) d->steps = kind->steps;
    if (d->shift == 0.0) d->shift = p->schedule.shift;
    if (d->batch < 0 || d->preview < 0)
        return mhla_fail(MHLA_EINVAL, "%s is negative", d->batch < 0 ? "batch" : "preview");
    MHLA_TRY(settle_size(p, d));
    MHLA_TRY(settle_decoding(p, d));
    return check_work(p, d);
}

mhla_status mhla_pipeline_settle(mhla_pipeline *p, mhla_make_desc *desc) {
    mhla_make_desc d;
    MHLA_TRY(mhla_make_settle(p, &d, desc));
    return mhla_struct_out(desc, &d, sizeof d, "mhla_make_desc");
}

/* ---- The work ---- */

typedef struct job {
    mhla_pipeline *p;
    mhla_make_desc d;
    mhla_extent extent;
    int64_t each; /* numbers of a latent */
    int stopped;
    mhla_status status;  /* of what a report had to do */
    float *latents;      /* [images,each] */
    float *made, *sized; /* an image as it is made, and as it was asked for */
    int64_t image;       /* that is decoded */
    float *pixels;       /* the caller's */
} job;

static void tell(job *j, const mhla_make_state *state) {
    if (j->d.report && j->d.report(j->d.user, state)) j->stopped = 1;
}

static void note(job *j, mhla_component component, const char *text) {
    tell(j, &(mhla_make_state){.size = sizeof(mhla_make_state), .component = component, .note = text});
}

/* [channels,frames,made_height,made_width] to height x width: so large that both are covered, between pixel centres, then cropped. */
static const float *resized(const job *j, int64_t planes) {
    const mhla_make_desc *d = &j->d;
    const int h = d->made_height, w = d->made_width, H = d->height, W = d->width;
    if (h == H && w == W) return j->made;
    const double ratio = fmax((double)H / h, (double)W / w);
    const int all[2] = {(int)(h * ratio), (int)(w * ratio)};
    const int top = (all[0] - H) / 2, left = (all[1] - W) / 2;
    const double step[2] = {(double)h / all[0], (double)w / all[1]};
    for (int64_t i = 0; i < planes * H * W; i++) {
        const int64_t y = i / W % H, x = i % W;
        const double v = fmax(((double)(y + top) + 0.5) * step[0] - 0.5, 0.0);
        const double u = fmax(((double)(x + left) + 0.5) * step[1] - 0.5, 0.0);
        const int y0 = (int)v, x0 = (int)u, y1 = y0 + (y0 + 1 < h), x1 = x0 + (x0 + 1 < w);
        const float *from = j->made + i / ((int64_t)H * W) * h * w;
        const double b = v - y0, a = u - x0;
        const double above = (1.0 - a) * (double)from[(int64_t)y0 * w + x0] + a * (double)from[(int64_t)y0 * w + x1];
        const double below = (1.0 - a) * (double)from[(int64_t)y1 * w + x0] + a * (double)from[(int64_t)y1 * w + x1];
        j->sized[i] = (float)((1.0 - b) * above + b * below);
    }
    return j->sized;
}

/* ---- Latents ---- */

/* A model of pixels has no autoencoder: *vae is NULL, and its latents are pixels. */
static mhla_status open_vae(mhla_model **vae, const job *j) {
    return j->p->parts[MHLA_PART_VAE] ? mhla_pipeline_part(vae, j->p, MHLA_VAE, 0) : MHLA_OK;
}

static mhla_status decode_one(job *j, mhla_model *vae, const float *latents, const mhla_coding *coding) {
    if (vae) {
        const int64_t frames = coding->frames ? coding->frames : 1;
        char broken[MHLA_BROKEN];
        MHLA_TRY(mhla_model_decode(vae, j->made, latents, 1, coding));
        if (j->stopped || mhla_all_finite(j->made, j->p->autoencoder.outputs * frames * coding->height * coding->width))
            return MHLA_OK;
        return mhla_fail(MHLA_ERANGE, "the autoencoder's pixels have a number that is not finite%s",
                         mhla_model_broken(broken, vae));
    }
    memcpy(j->made, latents, (size_t)j->each * sizeof *latents);
    return MHLA_OK;
}

/* The first frame of what image `image` may become. */
static mhla_status preview(job *j, const float *predicted, int64_t image, const mhla_make_state *state) {
    const int64_t plane = j->extent.height * j->extent.width, frames = j->extent.frames ? j->extent.frames : 1;
    mhla_model *vae = NULL;
    mhla_coding coding = mhla_make_coding(&j->d);
    coding.frames = j->extent.frames ? 1 : 0;
    MHLA_TRY(open_vae(&vae, j));
    float *first = malloc((size_t)(j->p->denoiser.channels * plane) * sizeof *first);
    mhla_status status = first ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a preview");
    for (int c = 0; c < j->p->denoiser.channels && first; c++)
        memcpy(first + c * plane, predicted + c * frames * plane, (size_t)plane * sizeof *first);
    if (status == MHLA_OK) status = decode_one(j, vae, first, &coding);
    if (status == MHLA_OK) {
        mhla_make_state s = *state;
        s.image = image;
        s.pixels = resized(j, j->p->autoencoder.outputs);
        s.preview = 1;
        tell(j, &s);
    }
    free(first);
    mhla_model_free(vae);
    return status;
}

static int on_step(void *user, const mhla_sample_state *s) {
    job *j = user;
    const mhla_make_state state = {.size = sizeof state,
                                   .component = MHLA_TRANSFORMER,
                                   .done = s->done,
                                   .all = s->all,
                                   .step = s->step,
                                   .steps = s->steps,
                                   .latents = s->x};
    tell(j, &state);
    if (j->d.preview && s->step % j->d.preview == 0 && s->step < s->steps && !j->stopped)
        j->status = preview(j, s->predicted, s->first, &state);
    return j->stopped || j->status != MHLA_OK;
}

/* Other sizes than in training are allowed, and said. */
static void note_size(job *j) {
    char text[256], sizes[2][32];
    const mhla_extent *usual = &j->p->denoiser.extent, *e = &j->extent;
    const int f = j->p->autoencoder.factor;
    if (usual->frames == 0 || (usual->frames == e->frames && usual->height == e->height && usual->width == e->width))
        return;
    snprintf(text, sizeof text,
             "the model was trained on clips of %lld frames of %s pixels: %d frames of %s may look worse",
             (long long)(1 + (usual->frames - 1) * j->p->autoencoder.frames),
             size_text(sizes[0], j->p, usual->height * f, usual->width * f), j->d.frames,
             size_text(sizes[1], j->p, j->d.height, j->d.width));
    note(j, MHLA_TRANSFORMER, text);
}

static mhla_status make_latents(job *j, const mhla_text_rows *rows, const int32_t *prompts, int32_t negative) {
    mhla_model *m;
    mhla_model_info info = {.size = sizeof info};
    const mhla_make_desc *d = &j->d;
    MHLA_TRY(mhla_pipeline_part(&m, j->p, MHLA_TRANSFORMER, 0));
    mhla_status status = mhla_model_query(m, &info);
    if (status == MHLA_OK && info.note) note(j, MHLA_TRANSFORMER, info.note);
    note_size(j);
    tell(j, &(mhla_make_state){.size = sizeof(mhla_make_state),
                               .component = MHLA_TRANSFORMER,
                               .all = d->images * d->steps,
                               .steps = d->steps});
    const mhla_sample_desc desc = {.size = sizeof desc,
                                   .images = d->images,
                                   .seeds = d->seeds,
                                   .guidance = d->guidance,
                                   .method = d->method,
                                   .steps = d->steps,
                                   .shift = d->shift,
                                   .clip = j->p->parts[MHLA_PART_VAE] == NULL, /* pixels have a range */
                                   .frames = (int)j->extent.frames,
                                   .height = (int)j->extent.height,
                                   .width = (int)j->extent.width,
                                   .batch = d->batch,
                                   .classes = prompts,
                                   .rows = rows->rows,
                                   .lengths = rows->lengths,
                                   .texts = rows->texts,
                                   .longest = rows->longest,
                                   .negative = negative,
                                   .state = d->state,
                                   .start = d->start,
                                   .report = on_step,
                                   .user = j};
    int stopped = 0;
    if (status == MHLA_OK && !j->stopped) status = mhla_model_sample(m, j->latents, &desc, &stopped);
    mhla_model_free(m);
    return status == MHLA_OK ? j->status : status;
}

/* ---- Pixels ---- */

static void on_tile(void *user, int64_t done, int64_t all) {
    job *j = user;
    tell(j, &(mhla_make_state){.size = sizeof(mhla_make_state),
                               .component = MHLA_VAE,
                               .done = j->image * all + done,
                               .all = j->d.images * all});
}

static mhla_status decode(job *j) {
    mhla_model *vae = NULL;
    const int64_t planes = (int64_t)j->p->autoencoder.outputs * (j->d.frames ? j->d.frames : 1);
    const int64_t each = planes * j->d.height * j->d.width;
    mhla_coding coding = mhla_make_coding(&j->d);
    coding.progress = on_tile;
    coding.user = j;
    MHLA_TRY(open_vae(&vae, j));
    mhla_status status = MHLA_OK;
    tell(j, &(mhla_make_state){.size = sizeof(mhla_make_state), .component = MHLA_VAE, .all = j->d.images});
    for (j->image = 0; j->image < j->d.images && status == MHLA_OK && !j->stopped; j->image++) {
        status = decode_one(j, vae, j->latents + j->image * j->each, &coding);
        if (status != MHLA_OK) break;
        const float *pixels = resized(j, planes);
        if (j->pixels) memcpy(j->pixels + j->image * each, pixels, (size_t)each * sizeof *pixels);
        tell(j, &(mhla_make_state){
                    .size = sizeof(mhla_make_state), .component = MHLA_VAE, .image = j->image, .pixels = pixels});
    }
    mhla_model_free(vae);
    return status;
}

static mhla_status make_room(job *j) {
    const int64_t planes = (int64_t)j->p->autoencoder.outputs * (j->d.frames ? j->d.frames : 1);
    const int64_t made = planes * j->d.made_height * j->d.made_width, sized = planes * j->d.height * j->d.width;
    j->latents = mhla_alloc((size_t)(j->d.images * j->each) * sizeof(float));
    j->made = mhla_alloc((size_t)made * sizeof(float));
    if (j->d.made_height != j->d.height || j->d.made_width != j->d.width)
        j->sized = mhla_alloc((size_t)sized * sizeof(float));
    if (j->latents && j->made && (j->sized || made == sized)) return MHLA_OK;
    return mhla_fail(MHLA_ENOMEM, "no memory for %lld latents and an image of %d x %d", (long long)j->d.images,
                     j->d.width, j->d.height);
}

mhla_status mhla_pipeline_make(mhla_pipeline *p, float *pixels, const mhla_make_desc *desc, int *stopped) {
    job j = {.p = p, .pixels = pixels};
    mhla_text_rows rows = {.size = sizeof rows};
    if (stopped) *stopped = 0;
    MHLA_TRY(mhla_make_settle(p, &j.d, desc));
    j.extent = mhla_make_extent(p, &j.d);
    j.each = p->denoiser.channels * mhla_extent_pixels(j.extent);
    int32_t *numbers = calloc((size_t)j.d.images, sizeof *numbers), negative = 0;
    mhla_status status = numbers ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)j.d.images);
    if (status == MHLA_OK) status = mhla_pipeline_texts(p, &rows, numbers, &negative, &j.d, &j.stopped);
    if (status == MHLA_OK) status = make_room(&j);
    if (status == MHLA_OK && !j.stopped) status = make_latents(&j, &rows, numbers, negative);
    mhla_text_rows_free(&rows);
    if (status == MHLA_OK && !j.stopped) status = decode(&j);
    mhla_free(j.latents);
    mhla_free(j.made);
    mhla_free(j.sized);
    free(numbers);
    if (stopped && status == MHLA_OK) *stopped = j.stopped;
    return status;
}
