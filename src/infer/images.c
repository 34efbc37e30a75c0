/* Images from a diffusion model: batches of noise go through the network and the sampler step by step. An image is a function
 * of its seed, its class and the settings: noise is keyed by seed, step and place, the network treats every row alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/status.h"
#include "diffusion/diffusion.h"
#include "diffusion/steps.h"
#include "file/sha256.h"
#include "file/text.h"
#include "infer/identity.h"
#include "infer/images.h"
#include "infer/sample_state.h"
#include "models/model.h"

enum { PIECE = 8192, BATCH_MOST = 64 }; /* rows of the network at a time: so many tokens per batch, so many images */

typedef struct job {
    mhla_model *model;
    mhla_denoiser_info info;
    mhla_extent extent;
    mhla_sample_desc desc;
    int height, width, batch, guided, answers; /* answers: channels of the network's answer; guided: channels */
    int64_t pixels, each;                      /* of one image: height*width, channels*height*width */
    int apart;                                 /* with and without go through one after the other: both are large */
    int64_t first, count;                      /* the batch under way */
    int step;                                  /* whose noise is drawn: 0 the beginning */
    float *memory;
    float *x, *noise; /* [batch,each] */
    float *twice;     /* [2*batch,each]: x for the network, where it is asked with and without class */
    float *output;    /* [batch,answers*pixels] */
    const float *net; /* what came out of the network [batch or 2*batch,answers*pixels] */
    float *both;      /* room for that, where it comes one after the other */
    float *times;     /* [2*batch] */
    int32_t *labels;  /* [2*batch] classes, or which text */
    float *rows;      /* [2*batch,longest,text_width]: of text */
    int32_t *lengths; /* [2*batch] */
    int resumed;      /* the batch goes on from a state on the disk */
    char work[65];    /* what makes these images others than those, for a state on the disk */
} job;

/* ---- Settings ---- */

static mhla_status check_classes(const job *j) {
    const int classes = j->info.classes, null_label = j->info.null_label;
    for (int64_t i = 0; i < j->desc.images; i++) {
        const int c = j->desc.classes[i];
        if (c >= 0 && c < classes + (null_label != 0)) continue;
        if (c == classes)
            return mhla_fail(MHLA_EINVAL, "image %lld is to be of no class, and the model has no null label",
                             (long long)i);
        return mhla_fail(MHLA_EINVAL, "class %d of image %lld: the model has classes 0 to %d", c, (long long)i,
                         classes - 1);
    }
    return MHLA_OK;
}

static mhla_status check_texts(const job *j) {
    const mhla_sample_desc *d = &j->desc;
    if (j->info.text_width == 0)
        return d->rows ? mhla_fail(MHLA_EINVAL, "rows of text are given, and the model takes classes") : MHLA_OK;
    if (d->images == 0) return MHLA_OK;
    if (d->rows == NULL || d->texts < 1 || d->longest < 1)
        return mhla_fail(MHLA_EINVAL, "the model takes text: rows is %s, texts is %lld, longest is %lld",
                         d->rows ? "given" : "NULL", (long long)d->texts, (long long)d->longest);
    for (int64_t i = 0; i < d->texts && d->lengths; i++)
        if (d->lengths[i] < 0 || d->lengths[i] > d->longest)
            return mhla_fail(MHLA_EINVAL, "lengths[%lld] is %d: expected 0 to %lld", (long long)i, d->lengths[i],
                             (long long)d->longest);
    if (d->negative < 0 || d->negative >= d->texts)
        return mhla_fail(MHLA_EINVAL, "negative is %d: there are texts 0 to %lld", d->negative,
                         (long long)d->texts - 1);
    for (int64_t i = 0; i < d->images; i++)
        if (d->classes[i] < 0 || d->classes[i] >= d->texts)
            return mhla_fail(MHLA_EINVAL, "text %d of image %lld: there are texts 0 to %lld", d->classes[i],
                             (long long)i, (long long)d->texts - 1);
    return MHLA_OK;
}

int64_t mhla_sample_batch(int *apart, const mhla_model *m, mhla_extent extent, int guided, int64_t asked,
                          int64_t images) {
    const int64_t tokens = mhla_denoiser_tokens(m, extent);
    const int64_t fits = PIECE * (int64_t)mhla_context_threads(m->context) / tokens / (guided ? 2 : 1);
    const int64_t batch = asked ? asked : fits > BATCH_MOST ? BATCH_MOST : fits > 1 ? fits : 1;
    *apart = guided && tokens > PIECE;
    return batch < images ? batch : images > 0 ? images : 1;
}

static mhla_status check(job *j) {
    mhla_sample_desc *d = &j->desc;
    const mhla_denoiser_info *c = &j->info;
    if (d->images < 0) return mhla_fail(MHLA_EINVAL, "%lld images", (long long)d->images);
    if (d->images > 0 && (d->classes == NULL || d->seeds == NULL))
        return mhla_fail(MHLA_EINVAL, "%s is NULL", d->classes ? "seeds" : "classes");
    if (d->guidance == 0.0) d->guidance = 1.0;
    if (!(d->guidance > 0.0 && d->guidance <= 1e6))
        return mhla_fail(MHLA_EINVAL, "guidance %g: expected a number above 0", d->guidance);
    if (d->guidance != 1.0 && !c->null_label && !c->text_width)
        return mhla_fail(MHLA_EINVAL,
                         "guidance %g needs a null label: the model was trained without one, and knows no "
                         "image of no class",
                         d->guidance);
    if (d->guided_channels < 0 || d->guided_channels > c->channels)
        return mhla_fail(MHLA_EINVAL, "guidance on %d channels: the model has %d", d->guided_channels, c->channels);
    if (d->height < 0 || d->width < 0 || d->batch < 0 || d->frames < 0)
        return mhla_fail(MHLA_EINVAL, "height %d, width %d, batch %d, frames %d: one is negative", d->height, d->width,
                         d->batch, d->frames);
    MHLA_TRY(check_texts(j));
    if (!c->text_width) MHLA_TRY(check_classes(j));
    j->height = d->height ? d->height : (int)c->extent.height;
    j->width = d->width ? d->width : (int)c->extent.width;
    j->extent = (mhla_extent){d->frames ? d->frames : c->extent.frames, j->height, j->width};
    MHLA_TRY(mhla_denoiser_check(j->model, j->extent));
    j->guided = d->guidance == 1.0 ? 0 : d->guided_channels ? d->guided_channels : c->channels;
    j->answers = c->answers;
    j->pixels = mhla_extent_pixels(j->extent);
    j->each = c->channels * j->pixels;
    j->batch = (int)mhla_sample_batch(&j->apart, j->model, j->extent, j->guided, d->batch, d->images);
    return MHLA_OK;
}

static mhla_status make_room(job *j) {
    mhla_carver c = {0};
    for (int pass = 0; pass < 2; pass++) {
        j->x = mhla_carve_floats(&c, j->batch * j->each);
        j->noise = mhla_carve_floats(&c, j->batch * j->each);
        j->twice = mhla_carve_floats(&c, j->guided && !j->apart ? 2 * j->each * j->batch : 0);
        j->both = mhla_carve_floats(&c, j->apart ? 2 * j->answers * j->pixels * j->batch : 0);
        j->output = mhla_carve_floats(&c, j->answers * j->pixels * j->batch);
        j->times = mhla_carve_floats(&c, 2 * (int64_t)j->batch);
        j->labels = mhla_carve(&c, 2 * (size_t)j->batch * sizeof *j->labels);
        j->rows = mhla_carve_floats(&c, 2 * j->batch * (j->info.text_width ? j->desc.longest * j->info.text_width : 0));
        j->lengths = mhla_carve(&c, 2 * (size_t)j->batch * sizeof *j->lengths);
        if (pass == 0 && (j->memory = mhla_alloc(c.used)) == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for %d images of %d x %d at a time", j->batch, j->width,
                             j->height);
        c = (mhla_carver){.base = (char *)j->memory};
    }
    return MHLA_OK;
}

/* ---- A step ---- */

static void fill_noise(float *noise, int64_t count, uint64_t seed, int step) {
    const mhla_rng r = mhla_rng_make(seed, (uint64_t)step, 0, MHLA_PLACE_IMAGES);
    mhla_rng_normals(&r, noise, count);
}

mhla_status mhla_sample_noise(float *noise, int64_t count, uint64_t seed, int step) {
    if (count < 0 || step < 0 || (noise == NULL && count > 0))
        return mhla_fail(MHLA_EINVAL, "noise is %s, count is %lld, step is %d", noise ? "given" : "NULL",
                         (long long)count, step);
    fill_noise(noise, count, seed, step);
    return MHLA_OK;
}

/* The noise of step j->step, 0 the beginning: the caller's, or drawn. */
static void draw(void *arg, int64_t b, int worker) {
    const job *j = arg;
    (void)worker;
    float *to = (j->step == 0 ? j->x : j->noise) + b * j->each;
    const float *given = j->step == 0 ? j->desc.start : j->desc.noise;
    if (given) {
        const int64_t at = (j->step ? j->step - 1 : 0) * j->desc.images + j->first + b;
        memcpy(to, given + at * j->each, (size_t)j->each * sizeof *to);
        return;
    }
    fill_noise(to, j->each, j->desc.seeds[j->first + b], j->step);
}

/* The answer of an image: away from that of no class on the guided channels, that of its class on all others. */
static void guide(void *arg, int64_t b, int worker) {
    const job *j = arg;
    (void)worker;
    const int64_t n = j->answers * j->pixels, guided = j->guided * j->pixels;
    const float scale = (float)j->desc.guidance, *with = j->net + b * n, *without = j->net + (j->count + b) * n;
    float *out = j->output + b * n;
    for (int64_t i = 0; i < guided; i++) out[i] = without[i] + scale * (with[i] - without[i]);
    memcpy(out + guided, with + guided, (size_t)(n - guided) * sizeof *out);
}

/* What samples first .. first+rows-1 of the batch are of: their classes, or their texts, no longer than the longest among them. */
static mhla_condition condition_of(const job *j, int64_t first, int64_t rows) {
    const mhla_sample_desc *d = &j->desc;
    const size_t width = (size_t)j->info.text_width;
    const int32_t *labels = j->labels + first;
    if (width == 0) return (mhla_condition){.labels = labels};
    int64_t longest = 1;
    for (int64_t b = 0; b < rows; b++) {
        j->lengths[b] = d->lengths ? d->lengths[labels[b]] : (int32_t)d->longest;
        if (j->lengths[b] > longest) longest = j->lengths[b];
    }
    for (int64_t b = 0; b < rows; b++)
        memcpy(j->rows + (size_t)(b * longest) * width, d->rows + (size_t)(labels[b] * d->longest) * width,
               (size_t)longest * width * sizeof *j->rows);
    return (mhla_condition){.rows = j->rows, .lengths = j->lengths, .longest = longest};
}

/* Asks the network for samples first .. first+rows-1 of the batch. */
static const float *ask_rows(job *j, const float *x, int64_t first, int64_t rows) {
    mhla_model *m = j->model;
    const mhla_condition condition = condition_of(j, first, rows);
    mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
    mhla_tensor *in = mhla_denoiser_input(m->tape, x, rows, j->info.channels, j->extent);
    const mhla_tensor *y = mhla_denoiser_forward(m->tape, m, &(mhla_network_run){0}, in, j->times + first, &condition);
    return mhla_tape_status(m->tape) == MHLA_OK ? y->data : NULL;
}

static mhla_status ask(job *j, double time) {
    const int64_t rows = j->guided ? 2 * j->count : j->count, n = j->count * j->answers * j->pixels;
    const int32_t without = j->info.text_width ? j->desc.negative : j->info.classes;
    for (int64_t b = 0; b < rows; b++) {
        j->times[b] = (float)time;
        j->labels[b] = b < j->count ? j->desc.classes[j->first + b] : without;
    }
    const float *x = j->x;
    if (j->guided && !j->apart) {
        const size_t bytes = (size_t)(j->count * j->each) * sizeof *x;
        memcpy(j->twice, j->x, bytes);
        memcpy(j->twice + j->count * j->each, j->x, bytes);
        x = j->twice;
    }
    for (int part = 0; part < (j->apart ? 2 : 1); part++) {
        j->net = ask_rows(j, x, part * j->count, j->apart ? j->count : rows);
        if (j->net == NULL) return mhla_tape_status(j->model->tape);
        if (j->apart) memcpy(j->both + part * n, j->net, (size_t)n * sizeof *j->both);
    }
    if (j->apart) j->net = j->both;
    if (j->guided) mhla_parallel(j->model->context, j->count, guide, j);
    return MHLA_OK;
}

const char *mhla_model_broken(char text[MHLA_BROKEN], const mhla_model *m) {
    *text = '\0';
    for (int i = 0; i < mhla_params_count(m->params) && *text == '\0'; i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (p->data && !mhla_all_finite(p->data, p->count))
            snprintf(text, MHLA_BROKEN, ", as has tensor %s%s%s", p->name, m->weights ? " of " : "",
                     m->weights ? m->weights : "");
    }
    return text;
}

static mhla_status check_finite(const job *j, const float *x, int64_t each, int step, int steps) {
    for (int64_t b = 0; b < j->count; b++) {
        if (mhla_all_finite(x + b * each, each)) continue;
        char broken[MHLA_BROKEN];
        const int64_t i = j->first + b;
        return mhla_fail(MHLA_ERANGE, "step %d of %d: image %lld (%s %d, seed %llu) has a number that is not finite%s",
                         step, steps, (long long)i, j->info.text_width ? "text" : "class", (int)j->desc.classes[i],
                         (unsigned long long)j->desc.seeds[i], mhla_model_broken(broken, j->model));
    }
    return MHLA_OK;
}

/* ---- A batch, all batches ---- */

static mhla_status run_batch(job *j, mhla_sampler *sampler, float *images, int *stopped) {
    const int steps = mhla_sampler_steps(sampler);
    const mhla_context *context = j->model->context;
    mhla_sample_place place = {.first = j->first, .count = j->count, .step = 0, .each = j->each};
    j->step = 0;
    if (j->resumed)
        MHLA_TRY(mhla_sample_state_read(&place, j->desc.state, j->work, sampler, NULL, j->x));
    else
        mhla_parallel(context, j->count, draw, j);
    j->resumed = 0;
    for (int i = place.step; i < steps && !*stopped; i++) {
        MHLA_TRY(ask(j, mhla_sampler_time(sampler, i)));
        const float *answer = j->guided ? j->output : j->net;
        MHLA_TRY(check_finite(j, answer, j->answers * j->pixels, i + 1, steps));
        const int noisy = mhla_sampler_wants_noise(sampler, i);
        j->step = i + 1;
        if (noisy) mhla_parallel(context, j->count, draw, j);
        MHLA_TRY(mhla_sampler_step(sampler, i, j->x, answer, noisy ? j->noise : NULL));
        MHLA_TRY(check_finite(j, j->x, j->each, i + 1, steps));
        place.step = i + 1;
        if (j->desc.state) MHLA_TRY(mhla_sample_state_write(&place, j->desc.state, j->work, sampler, images, j->x));
        const mhla_sample_state state = {.size = sizeof state,
                                         .step = i + 1,
                                         .steps = steps,
                                         .first = j->first,
                                         .count = j->count,
                                         .done = j->first * steps + j->count * (i + 1),
                                         .all = j->desc.images * steps,
                                         .x = j->x,
                                         .predicted = mhla_sampler_predicted(sampler)};
        if (j->desc.report) *stopped = j->desc.report(j->desc.user, &state) != 0;
    }
    memcpy(images + j->first * j->each, j->x, (size_t)(j->count * j->each) * sizeof *images);
    return MHLA_OK;
}

/* Everything is checked; what remains can fail only for want of memory, or in the network. */
static mhla_status prepare(job *j, mhla_sampler_desc *how, mhla_model *model, const mhla_sample_desc *desc) {
    *j = (job){.model = model};
    MHLA_TRY(mhla_denoiser_query(model, &j->info));
    MHLA_TRY(mhla_struct_in(&j->desc, sizeof j->desc, desc, "mhla_sample_desc"));
    MHLA_TRY(check(j));
    *how = (mhla_sampler_desc){.size = sizeof *how,
                               .process = mhla_process_names[j->info.process],
                               .method = j->desc.method,
                               .steps = j->desc.steps,
                               .eta = j->desc.eta,
                               .shift = j->desc.shift,
                               .clip = j->desc.clip,
                               .learned_sigma = j->info.answers > j->info.channels,
                               .batch = j->batch,
                               .channels = j->info.channels,
                               .pixels = j->pixels};
    return MHLA_OK;
}

mhla_status mhla_model_sample_settle(mhla_model *model, mhla_sample_desc *desc) {
    job j;
    mhla_sampler_desc how;
    mhla_sampler *sampler;
    MHLA_TRY(prepare(&j, &how, model, desc));
    how.batch = how.channels = how.pixels = 1;
    MHLA_TRY(mhla_sampler_create(&sampler, &how));
    mhla_sample_desc *d = &j.desc;
    d->method = mhla_sampler_method(sampler);
    d->steps = mhla_sampler_steps(sampler);
    d->guided_channels = d->guided_channels ? d->guided_channels : j.info.channels;
    if (d->shift == 0.0) d->shift = 1.0;
    d->height = j.height;
    d->width = j.width;
    d->frames = (int)j.extent.frames;
    d->batch = j.batch;
    mhla_sampler_free(sampler);
    return mhla_struct_out(desc, d, sizeof *d, "mhla_sample_desc");
}

/* Settings, seeds, texts and weights: whatever changes a bit of the images, or of how they are divided. */
static mhla_status name_work(job *j, const mhla_sampler_desc *how) {
    const mhla_sample_desc *d = &j->desc;
    char weights[65];
    const double numbers[] = {d->guidance, d->eta, d->shift};
    const int64_t sizes[] = {d->images,        how->steps,       j->guided,      d->clip,
                             j->extent.frames, j->extent.height, j->extent.width};
    mhla_sha256 h;
    MHLA_TRY(mhla_model_fingerprint(j->model, weights));
    mhla_sha256_begin(&h);
    mhla_sha256_add(&h, weights, sizeof weights);
    mhla_sha256_add(&h, numbers, sizeof numbers);
    mhla_sha256_add(&h, sizes, sizeof sizes);
    if (d->method) mhla_sha256_add(&h, d->method, strlen(d->method));
    mhla_sha256_add(&h, d->seeds, (size_t)d->images * sizeof *d->seeds);
    if (j->info.text_width == 0) mhla_sha256_add(&h, d->classes, (size_t)d->images * sizeof *d->classes);
    for (int64_t i = j->guided ? -1 : 0; j->info.text_width && i < d->images; i++) {
        const int32_t at = i < 0 ? d->negative : d->classes[i];
        const size_t each = (size_t)d->longest * (size_t)j->info.text_width,
                     length = (size_t)(d->lengths ? d->lengths[at] : d->longest);
        mhla_sha256_add(&h, &length, sizeof length);
        mhla_sha256_add(&h, d->rows + (size_t)at * each, length * (size_t)j->info.text_width * sizeof *d->rows);
    }
    if (d->start) mhla_sha256_add(&h, d->start, (size_t)(d->images * j->each) * sizeof *d->start);
    mhla_sha256_end(&h, j->work);
    return MHLA_OK;
}

/* Where a killed run left off: images that are done, and the batch that was under way. */
static mhla_status find_state(job *j, float *images) {
    mhla_sample_place place = {.each = j->each};
    int found;
    MHLA_TRY(mhla_sample_state_find(&found, &place, j->desc.state, j->work, j->desc.images));
    if (!found) return MHLA_OK;
    if (place.count > j->batch) { /* another batch was asked for then: its room is needed once more */
        mhla_free(j->memory);
        j->batch = (int)place.count;
        j->memory = NULL;
        MHLA_TRY(make_room(j));
    }
    j->first = place.first;
    j->count = place.count;
    j->resumed = 1;
    return mhla_sample_state_read(&place, j->desc.state, j->work, NULL, images, NULL);
}

mhla_status mhla_model_sample(mhla_model *model, float *images, const mhla_sample_desc *desc, int *stopped) {
    int end = 0;
    job j;
    mhla_sampler_desc how;
    if (stopped) *stopped = 0;
    MHLA_TRY(prepare(&j, &how, model, desc));
    if (images == NULL && j.desc.images > 0) return mhla_fail(MHLA_EINVAL, "images is NULL");
    mhla_sampler *sampler = NULL;
    mhla_status status = mhla_sampler_create(&sampler, &how);
    if (status == MHLA_OK) status = make_room(&j);
    if (status == MHLA_OK && j.desc.state) status = name_work(&j, &how);
    if (status == MHLA_OK && model->tape == NULL) status = mhla_tape_create(&model->tape, model->context);
    if (status == MHLA_OK && j.desc.state) status = find_state(&j, images);
    for (; status == MHLA_OK && !end && j.first < j.desc.images; j.first += j.count) {
        const int64_t left = j.desc.images - j.first;
        if (!j.resumed) j.count = left < j.batch ? left : j.batch;
        if (j.count != how.batch) { /* the last ones */
            how.batch = j.count;
            mhla_sampler_free(sampler);
            status = mhla_sampler_create(&sampler, &how);
        }
        if (status == MHLA_OK) status = run_batch(&j, sampler, images, &end);
    }
    mhla_sampler_free(sampler);
    mhla_free(j.memory);
    if (stopped && status == MHLA_OK) *stopped = end;
    return status;
}

/* ---- Which class ---- */

/* Letters of either size are the same, and so are their two ways of carrying accents. malloc'ed; what is no UTF-8 stays. */
static char *folded(const char *text) {
    utf8proc_uint8_t *to = NULL;
    const utf8proc_option_t how = UTF8PROC_NULLTERM | UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_CASEFOLD;
    return utf8proc_map((const utf8proc_uint8_t *)text, 0, &to, how) >= 0 ? (char *)to : strdup(text);
}

/* The class of this name, or -1; *near: the one that may be meant, or -1. */
static mhla_status find_name(const mhla_model *model, const char *name, int classes, int *found, int *near) {
    *found = *near = -1;
    char *asked = folded(name);
    if (asked == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a name");
    mhla_nearest nearest = mhla_nearest_begin(asked);
    for (int i = 0; i < classes && model->class_names && *found < 0; i++) {
        char *known = folded(model->class_names[i] ? model->class_names[i] : "");
        const int before = nearest.distance;
        if (known && strcmp(known, asked) == 0) *found = i;
        if (known) mhla_nearest_offer(&nearest, known);
        if (nearest.distance < before) *near = i;
        free(known);
    }
    free(asked);
    return MHLA_OK;
}

mhla_status mhla_model_class_find(const mhla_model *model, const char *name, int *class_) {
    mhla_denoiser_info c;
    MHLA_TRY(mhla_denoiser_query(model, &c));
    if (name == NULL || class_ == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", name ? "class_" : "name");
    int found, near;
    MHLA_TRY(find_name(model, name, c.classes, &found, &near));
    if (found >= 0) {
        *class_ = found;
        return MHLA_OK;
    }
    const size_t digits = strspn(name, "0123456789");
    if (*name && name[digits] == '\0') {
        *class_ = digits < 10 ? atoi(name) : INT32_MAX;
        if (*class_ < c.classes) return MHLA_OK;
        return mhla_fail(MHLA_EINVAL, "class %.20s: the model has classes 0 to %d", name, c.classes - 1);
    }
    if (strcasecmp(name, "none") == 0) {
        *class_ = c.classes;
        if (c.null_label) return MHLA_OK;
        return mhla_fail(MHLA_EINVAL, "class none: the model has no null label");
    }
    const mhla_quoted asked = mhla_quote(name);
    if (near >= 0)
        return mhla_fail(MHLA_EINVAL, "no class is called %s: is it \"%.80s\"?", asked.text, model->class_names[near]);
    return mhla_fail(MHLA_EINVAL, "no class is called %s: %s 0 to %d", asked.text,
                     model->class_names ? "the model has classes" : "the model's classes have no names, they are",
                     c.classes - 1);
}
