/* Roles: who has them, and what the public header lets a caller do with a model by its role, batch by batch. */
#include "models/roles.h"

#include <mhla/diffusion.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/model.h"

enum { PIECE = 2048 }; /* tokens at a time for each thread: what lies between two layers stays in cache */

mhla_status mhla_model_need(const mhla_model *m, mhla_role role) {
    if (m == NULL) return mhla_fail(MHLA_EINVAL, "model is NULL");
    if (mhla_architecture_has(m->architecture, role)) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "the model is %s: this needs %s", m->architecture->what, mhla_role_name(role));
}

int mhla_model_has(const mhla_model *m, mhla_role role) {
    return m && (unsigned)role <= MHLA_ROLE_COMPARER && mhla_architecture_has(m->architecture, role);
}

/* Samples of so many tokens that go through a network at once. */
static int64_t piece_of(const mhla_model *m, int64_t tokens) {
    const int64_t most = (int64_t)PIECE * mhla_context_threads(m->context);
    return most > tokens ? most / tokens : 1;
}

static mhla_status ready_to_train(mhla_model *m, const mhla_optim_desc *how) {
    if (m->training == NULL) MHLA_TRY(mhla_tape_create(&m->training, m->context));
    if (m->optim == NULL) MHLA_TRY(mhla_optim_create(&m->optim, m->params, how));
    mhla_tape_begin(m->training, MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
    return MHLA_OK;
}

static mhla_status learn(mhla_model *m, float *loss, mhla_tensor *mean, double rate) {
    MHLA_TRY(mhla_tape_status(m->training));
    MHLA_TRY(mhla_tape_backward(m->training, mean, 1.0f));
    if (loss) *loss = *mean->data;
    return mhla_optim_step(m->optim, rate, m->context, NULL);
}

/* ---- Classifier -------------------------------------------------------------------------------------------------- */

mhla_status mhla_classifier_query(const mhla_model *m, mhla_classifier_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_CLASSIFIER));
    m->architecture->classifier->describe(m->net, info);
    return MHLA_OK;
}

mhla_tensor *mhla_classifier_forward(mhla_tape *t, const mhla_model *m, const mhla_network_run *run,
                                     mhla_tensor *images) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->classifier->forward(t, m->net, run, images);
}

mhla_status mhla_model_infer(mhla_model *m, float *logits, const float *images, int64_t n) {
    mhla_classifier_info c;
    MHLA_TRY(mhla_classifier_query(m, &c));
    const int64_t pixels = (int64_t)c.channels * c.height * c.width, piece = piece_of(m, c.tokens);
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    for (int64_t at = 0; at < n; at += piece) {
        const int64_t count = n - at < piece ? n - at : piece;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        mhla_tensor *x = mhla_nn_input(m->tape, images + at * pixels, MHLA_SHAPE(count, c.channels, c.height, c.width));
        const mhla_tensor *y = mhla_classifier_forward(m->tape, m, &(mhla_network_run){0}, x);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(logits + at * c.classes, y->data, (size_t)(count * c.classes) * sizeof *logits);
    }
    return MHLA_OK;
}

mhla_status mhla_model_forward(mhla_model *m, float *logits, const float *images, int64_t n) {
    if (m == NULL || logits == NULL || images == NULL || n < 0)
        return mhla_fail(MHLA_EINVAL, "%s",
                         m == NULL        ? "model is NULL"
                         : logits == NULL ? "logits is NULL"
                         : images == NULL ? "images is NULL"
                                          : "n is negative");
    return mhla_model_infer(m, logits, images, n);
}

mhla_status mhla_model_step(mhla_model *m, float *loss, const float *images, const int32_t *labels, int64_t n,
                            double rate) {
    static const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW, .weight_decay = 0.05};
    mhla_classifier_info c;
    if (m == NULL || images == NULL || labels == NULL || n < 1)
        return mhla_fail(MHLA_EINVAL, "%s",
                         m == NULL        ? "model is NULL"
                         : images == NULL ? "images is NULL"
                         : labels == NULL ? "labels is NULL"
                                          : "n is not positive");
    MHLA_TRY(mhla_classifier_query(m, &c));
    for (int64_t i = 0; i < n; i++)
        if (labels[i] < 0 || labels[i] >= c.classes)
            return mhla_fail(MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes", (long long)i, labels[i],
                             c.classes);
    MHLA_TRY(ready_to_train(m, &adamw));
    mhla_tensor *x = mhla_nn_input(m->training, images, MHLA_SHAPE(n, c.channels, c.height, c.width));
    mhla_tensor *y = mhla_classifier_forward(m->training, m, &(mhla_network_run){0}, x);
    return learn(m, loss, mhla_nn_cross_entropy(m->training, y, labels, NULL, 0.0f, NULL), rate);
}

/* ---- Denoiser ---------------------------------------------------------------------------------------------------- */

mhla_status mhla_denoiser_query(const mhla_model *m, mhla_denoiser_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DENOISER));
    m->architecture->denoiser->describe(m->net, info);
    return MHLA_OK;
}

mhla_status mhla_denoiser_check(const mhla_model *m, mhla_extent extent) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DENOISER));
    return m->architecture->denoiser->check(m->net, extent);
}

int64_t mhla_denoiser_tokens(const mhla_model *m, mhla_extent extent) {
    return m->architecture->denoiser->tokens(m->net, extent);
}

int64_t mhla_denoiser_cost(const mhla_model *m, mhla_extent extent, int as_paper) {
    return m->architecture->denoiser->cost(m->net, extent, as_paper);
}

mhla_tensor *mhla_denoiser_forward(mhla_tape *t, const mhla_model *m, const mhla_network_run *run, mhla_tensor *x,
                                   const float *times, const mhla_condition *condition) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->denoiser->forward(t, m->net, run, x, times, condition);
}

mhla_tensor *mhla_denoiser_input(mhla_tape *t, const float *x, int64_t n, int channels, mhla_extent e) {
    return e.frames ? mhla_nn_input(t, x, MHLA_SHAPE(n, channels, e.frames, e.height, e.width))
                    : mhla_nn_input(t, x, MHLA_SHAPE(n, channels, e.height, e.width));
}

mhla_status mhla_model_denoise_cost(const mhla_model *m, int64_t *multiply_adds, int64_t *tokens, int height,
                                    int width) {
    mhla_denoiser_info info;
    MHLA_TRY(mhla_denoiser_query(m, &info));
    const mhla_extent extent = {info.extent.frames, height, width};
    MHLA_TRY(mhla_denoiser_check(m, extent));
    if (multiply_adds) *multiply_adds = mhla_denoiser_cost(m, extent, 0);
    if (tokens) *tokens = mhla_denoiser_tokens(m, extent);
    return MHLA_OK;
}

/* A caller's request, completed and checked. */
typedef struct request {
    mhla_denoise d;
    mhla_denoiser_info info;
    mhla_extent extent;
} request;

static mhla_status check_labels(const request *r) {
    const mhla_denoiser_info *c = &r->info;
    if (c->classes == 0)
        return r->d.labels ? mhla_fail(MHLA_EINVAL, "labels are given: the model takes no classes") : MHLA_OK;
    if (r->d.labels == NULL) return mhla_fail(MHLA_EINVAL, "labels is NULL");
    for (int64_t i = 0; i < r->d.count; i++)
        if (r->d.labels[i] < 0 || r->d.labels[i] >= c->classes + c->null_label)
            return mhla_fail(MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes%s", (long long)i,
                             r->d.labels[i], c->classes,
                             c->null_label ? " and one label more for none" : " and no label for none");
    return MHLA_OK;
}

static mhla_status check_text(const request *r) {
    const mhla_denoise *d = &r->d;
    if (r->info.text_width == 0)
        return d->rows ? mhla_fail(MHLA_EINVAL, "rows are given: the model takes no text") : MHLA_OK;
    if (d->rows == NULL) return mhla_fail(MHLA_EINVAL, "rows is NULL: the model takes text");
    if (d->longest < 1) return mhla_fail(MHLA_EINVAL, "longest is %lld: expected at least 1", (long long)d->longest);
    for (int64_t i = 0; d->lengths && i < d->count; i++)
        if (d->lengths[i] < 0 || d->lengths[i] > d->longest)
            return mhla_fail(MHLA_EINVAL, "lengths[%lld] is %d: expected 0 to %lld", (long long)i, d->lengths[i],
                             (long long)d->longest);
    return MHLA_OK;
}

static mhla_status take(request *r, const mhla_model *m, const mhla_denoise *given) {
    mhla_denoise *d = &r->d;
    MHLA_TRY(mhla_struct_in(d, sizeof *d, given, "mhla_denoise"));
    MHLA_TRY(mhla_denoiser_query(m, &r->info));
    const mhla_extent *usual = &r->info.extent;
    r->extent = (mhla_extent){d->frames ? d->frames : usual->frames, d->height ? d->height : usual->height,
                              d->width ? d->width : usual->width};
    if (d->x == NULL || d->times == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", d->x == NULL ? "x" : "times");
    if (d->count < 1) return mhla_fail(MHLA_EINVAL, "count is %lld: expected at least 1", (long long)d->count);
    MHLA_TRY(mhla_denoiser_check(m, r->extent));
    MHLA_TRY(check_labels(r));
    return check_text(r);
}

/* The condition of samples `first` and on. */
static mhla_condition condition_of(const request *r, int64_t first) {
    const mhla_denoise *d = &r->d;
    return (mhla_condition){.labels = d->labels ? d->labels + first : NULL,
                            .rows = d->rows ? d->rows + first * d->longest * r->info.text_width : NULL,
                            .lengths = d->lengths ? d->lengths + first : NULL,
                            .longest = d->longest};
}

mhla_status mhla_model_denoise(mhla_model *m, float *output, const mhla_denoise *desc) {
    request r;
    MHLA_TRY(take(&r, m, desc));
    if (output == NULL) return mhla_fail(MHLA_EINVAL, "output is NULL");
    const int64_t pixels = mhla_extent_pixels(r.extent), in = r.info.channels * pixels, out = r.info.answers * pixels;
    const int64_t piece = piece_of(m, mhla_denoiser_tokens(m, r.extent));
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    for (int64_t at = 0; at < r.d.count; at += piece) {
        const int64_t n = r.d.count - at < piece ? r.d.count - at : piece;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        mhla_tensor *x = mhla_denoiser_input(m->tape, r.d.x + at * in, n, r.info.channels, r.extent);
        const mhla_condition condition = condition_of(&r, at);
        const mhla_tensor *y = mhla_denoiser_forward(m->tape, m, &(mhla_network_run){0}, x, r.d.times + at, &condition);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(output + at * out, y->data, (size_t)(n * out) * sizeof *output);
    }
    return MHLA_OK;
}

mhla_status mhla_model_denoise_step(mhla_model *m, float *loss, const mhla_denoise *desc, const float *target,
                                    double rate) {
    static const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW};
    request r;
    MHLA_TRY(take(&r, m, desc));
    if (target == NULL) return mhla_fail(MHLA_EINVAL, "target is NULL");
    MHLA_TRY(ready_to_train(m, &adamw));
    mhla_tensor *x = mhla_denoiser_input(m->training, r.d.x, r.d.count, r.info.channels, r.extent);
    const mhla_condition condition = condition_of(&r, 0);
    mhla_tensor *y = mhla_denoiser_forward(m->training, m, &(mhla_network_run){0}, x, r.d.times, &condition);
    return learn(m, loss, mhla_nn_mse(m->training, y, target), rate);
}

/* ---- Text decoder ------------------------------------------------------------------------------------------------ */

mhla_status mhla_text_query(const mhla_model *m, mhla_text_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DECODER));
    m->architecture->decoder->describe(m->net, info);
    return MHLA_OK;
}

mhla_tensor *mhla_text_forward(mhla_tape *t, const mhla_model *m, const mhla_text_run *run, const int32_t *ids,
                               int64_t B, int64_t T) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->decoder->forward(t, m->net, run, ids, B, T);
}

mhla_param *mhla_text_output(const mhla_model *m) { return m->architecture->decoder->output(m->net); }

mhla_tensor *mhla_text_loss(mhla_tape *t, const mhla_model *m, mhla_tensor *hidden, const int32_t *labels, float scale,
                            float *losses) {
    mhla_text_info info;
    m->architecture->decoder->describe(m->net, &info);
    return mhla_nn_capped_cross_entropy(t, mhla_text_output(m), (float)info.softcap, hidden, labels, scale, losses);
}

mhla_status mhla_lm_train_step(mhla_model *m, float *loss, const int32_t *ids, int64_t B, int64_t T, double rate) {
    static const mhla_optim_desc adamw = {
        .kind = MHLA_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.01, .clip_norm = 1.0};
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DECODER));
    if (ids == NULL || B < 1 || T < 2)
        return mhla_fail(MHLA_EINVAL, "%s", ids == NULL ? "ids is NULL" : "sequences of 2 tokens or more are expected");
    int32_t *labels = mhla_alloc((size_t)(B * T) * sizeof *labels); /* the token after each; none after the last */
    if (labels == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld labels", (long long)(B * T));
    for (int64_t i = 0; i < B * T; i++) labels[i] = (i + 1) % T ? ids[i + 1] : -1;
    mhla_status status = ready_to_train(m, &adamw);
    if (status == MHLA_OK) {
        mhla_tensor *x = mhla_text_forward(m->training, m, &(mhla_text_run){0}, ids, B, T);
        status = learn(m, loss, mhla_text_loss(m->training, m, x, labels, 1.0f, NULL), rate);
    }
    mhla_free(labels);
    return status;
}

/* ---- Text encoder, autoencoder ------------------------------------------------------------------------------------- */

mhla_status mhla_encoder_query(const mhla_model *m, mhla_encoder_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_ENCODER));
    m->architecture->encoder->describe(m->net, info);
    return MHLA_OK;
}

mhla_tensor *mhla_encoder_forward(mhla_tape *t, const mhla_model *m, const int32_t *ids, const int32_t *lengths,
                                  int64_t B, int64_t T) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->encoder->forward(t, m->net, ids, lengths, B, T);
}

mhla_status mhla_autoencoder_query(const mhla_model *m, mhla_autoencoder_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_AUTOENCODER));
    m->architecture->autoencoder->describe(m->net, info);
    return MHLA_OK;
}

int64_t mhla_autoencoder_cost(const mhla_model *m, mhla_extent extent, int decode) {
    return m->architecture->autoencoder->cost(m->net, extent, decode);
}

mhla_tensor *mhla_autoencoder_encode(mhla_tape *t, const mhla_model *m, mhla_tensor *pixels) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->autoencoder->encode(t, m->net, pixels);
}

mhla_tensor *mhla_autoencoder_decode(mhla_tape *t, const mhla_model *m, mhla_tensor *latents) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->autoencoder->decode(t, m->net, latents);
}

mhla_status mhla_autoencoder_rescale(mhla_model *m, double scale) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_AUTOENCODER));
    if (m->architecture->autoencoder->rescale == NULL)
        return mhla_fail(MHLA_ENOTSUP, "autoencoders of the kind %s cannot be trained", m->architecture->name);
    m->architecture->autoencoder->rescale(m->net, scale);
    return mhla_model_name_classes(m, NULL, 0); /* writes the text of config.json anew */
}

/* ---- Comparer ------------------------------------------------------------------------------------------------------- */

mhla_status mhla_comparer_query(const mhla_model *m, mhla_comparer_info *info) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_COMPARER));
    m->architecture->comparer->describe(m->net, info);
    return MHLA_OK;
}

mhla_tensor *mhla_comparer_texts(mhla_tape *t, const mhla_model *m, const int32_t *ids, int64_t B) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->comparer->texts(t, m->net, ids, B);
}

mhla_tensor *mhla_comparer_images(mhla_tape *t, const mhla_model *m, mhla_tensor *pixels) {
    mhla_tape_set_precision(t, mhla_params_precision(m->params));
    return m->architecture->comparer->images(t, m->net, pixels);
}
