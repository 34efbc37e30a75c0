/* The network of AutoencoderKL. Everything between the ends is tokens [B,H*W,C].
 *
 *   resnet     x + conv2(silu(norm2(conv1(silu(norm1(x))))))
 *   middle     resnet, attention of one head over all pixels, resnet
 *   encode     conv_in; levels of resnets, each but the last with a convolution of stride 2; middle; norm, silu, conv_out
 *   decode     conv_in; middle; levels from the last to the first, each but the first doubled and convolved; the same end */
#include "models/autoencoders/sd.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/layers.h"
#include "nn/op.h"

enum { LAYERS = 18 }; /* residual blocks of a level, at most */
static const float norm_eps = 1e-6f;

typedef struct resnet {
    mhla_layer norm1, conv1, norm2, conv2, shortcut;
} resnet;

typedef struct attention {
    mhla_layer norm, q, k, v, out;
} attention;

typedef struct level {
    resnet resnets[LAYERS];
    int count;
    mhla_layer resample;
} level;

typedef struct half {
    mhla_layer conv_in, norm_out, conv_out;
    level levels[MHLA_SETTING_LIST_MOST];
    resnet middle[2];
    attention attention;
} half;

struct mhla_sd {
    mhla_sd_config config;
    mhla_params *params;
    half encoder, decoder;
    mhla_layer quant, post_quant;
    mhla_plan *plan; /* of the attention: the same for any number of pixels */
};

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

static const char *name_of(char text[160], const char *name, const char *part) {
    snprintf(text, 160, "%.80s.%.70s", name, part);
    return text;
}

static mhla_layer conv(mhla_params *ps, int64_t O, int64_t C, int64_t k, const char *name, const char *part) {
    char text[160];
    name_of(text, name, part);
    const mhla_initial initial = MHLA_TORCH(C * k * k);
    if (k == 1) return mhla_layer_pointwise(ps, O, C, 1, initial, text);
    return mhla_layer_conv(ps, O, C, k, initial, text);
}

static mhla_layer norm(mhla_params *ps, int64_t C, const char *name, const char *part) {
    char text[160];
    return mhla_layer_norm(ps, C, 1, name_of(text, name, part));
}

static resnet declare_resnet(mhla_params *ps, int64_t from, int64_t to, const char *name) {
    resnet r = {.norm1 = norm(ps, from, name, "norm1"),
                .conv1 = conv(ps, to, from, 3, name, "conv1"),
                .norm2 = norm(ps, to, name, "norm2"),
                .conv2 = conv(ps, to, to, 3, name, "conv2")};
    if (from != to) r.shortcut = conv(ps, to, from, 1, name, "conv_shortcut");
    return r;
}

static void declare_middle(half *h, mhla_params *ps, const mhla_sd_config *c, const char *name) {
    const int64_t C = c->widths[mhla_sd_levels(c) - 1];
    char text[160], part[160];
    h->middle[0] = declare_resnet(ps, C, C, name_of(text, name, "mid_block.resnets.0"));
    if (c->attention) {
        name_of(text, name, "mid_block.attentions.0");
        h->attention.norm = norm(ps, C, text, "group_norm");
        h->attention.q = mhla_layer_matrix(ps, C, C, 1, MHLA_TORCH(C), name_of(part, text, "to_q"));
        h->attention.k = mhla_layer_matrix(ps, C, C, 1, MHLA_TORCH(C), name_of(part, text, "to_k"));
        h->attention.v = mhla_layer_matrix(ps, C, C, 1, MHLA_TORCH(C), name_of(part, text, "to_v"));
        h->attention.out = mhla_layer_matrix(ps, C, C, 1, MHLA_TORCH(C), name_of(part, text, "to_out.0"));
    }
    h->middle[1] = declare_resnet(ps, C, C, name_of(text, name, "mid_block.resnets.1"));
}

/* A level, of which `from` channels come; `resample`: its convolution behind, or NULL. */
static void declare_level(level *l, mhla_params *ps, int64_t from, int64_t to, int count, const char *resample,
                          const char *name) {
    char text[160], part[160];
    l->count = count;
    for (int i = 0; i < count; i++) {
        snprintf(part, sizeof part, "resnets.%d", i);
        l->resnets[i] = declare_resnet(ps, i ? to : from, to, name_of(text, name, part));
    }
    if (resample) l->resample = conv(ps, to, to, 3, name, resample);
}

static void declare_encoder(mhla_sd *m) {
    const mhla_sd_config *c = &m->config;
    const int levels = mhla_sd_levels(c);
    half *h = &m->encoder;
    char text[160];
    h->conv_in = conv(m->params, c->widths[0], c->in_channels, 3, "encoder", "conv_in");
    for (int i = 0; i < levels; i++) {
        snprintf(text, sizeof text, "encoder.down_blocks.%d", i);
        declare_level(&h->levels[i], m->params, c->widths[i ? i - 1 : 0], c->widths[i], c->layers,
                      i + 1 < levels ? "downsamplers.0.conv" : NULL, text);
    }
    declare_middle(h, m->params, c, "encoder");
    h->norm_out = norm(m->params, c->widths[levels - 1], "encoder", "conv_norm_out");
    h->conv_out = conv(m->params, (int64_t)2 * c->latent_channels, c->widths[levels - 1], 3, "encoder", "conv_out");
    if (c->quant)
        m->quant = mhla_layer_pointwise(m->params, (int64_t)2 * c->latent_channels, (int64_t)2 * c->latent_channels, 1,
                                        MHLA_TORCH(2 * c->latent_channels), "quant_conv");
}

static void declare_decoder(mhla_sd *m) {
    const mhla_sd_config *c = &m->config;
    const int levels = mhla_sd_levels(c);
    half *h = &m->decoder;
    char text[160];
    if (c->post_quant)
        m->post_quant = mhla_layer_pointwise(m->params, c->latent_channels, c->latent_channels, 1,
                                             MHLA_TORCH(c->latent_channels), "post_quant_conv");
    h->conv_in = conv(m->params, c->widths[levels - 1], c->latent_channels, 3, "decoder", "conv_in");
    declare_middle(h, m->params, c, "decoder");
    for (int i = 0; i < levels; i++) {
        const int width = c->widths[levels - 1 - i];
        snprintf(text, sizeof text, "decoder.up_blocks.%d", i);
        declare_level(&h->levels[i], m->params, i ? c->widths[levels - i] : width, width, c->layers + 1,
                      i + 1 < levels ? "upsamplers.0.conv" : NULL, text);
    }
    h->norm_out = norm(m->params, c->widths[0], "decoder", "conv_norm_out");
    h->conv_out = conv(m->params, c->out_channels, c->widths[0], 3, "decoder", "conv_out");
}

void mhla_sd_free(mhla_sd *m) {
    if (m == NULL) return;
    mhla_params_free(m->params);
    mhla_plan_free(m->plan);
    free(m);
}

mhla_status mhla_sd_create(mhla_sd **model, const mhla_sd_config *config) {
    mhla_sd *m = calloc(1, sizeof *m);
    *model = NULL;
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    m->config = *config;
    const int width = config->widths[mhla_sd_levels(config) - 1];
    const mhla_plan_desc desc = {
        .size = sizeof desc, .kind = MHLA_KIND_SOFTMAX, .heads = 1, .key_dim = width, .value_dim = width};
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK && config->attention) status = mhla_plan_create(&m->plan, &desc);
    if (status == MHLA_OK) {
        if (config->encoder) declare_encoder(m);
        if (config->decoder) declare_decoder(m);
        status = mhla_params_status(m->params);
    }
    if (status != MHLA_OK) {
        mhla_sd_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

const mhla_sd_config *mhla_sd_config_of(const mhla_sd *m) { return &m->config; }
mhla_params *mhla_sd_params(const mhla_sd *m) { return m->params; }
void mhla_sd_rescale(mhla_sd *m, double scale) { m->config.scale = scale; }

/* ---- Forward ------------------------------------------------------------------------------------------------------------ */

/* A pass over one half; mark: where what a block leaves behind begins. */
typedef struct pass {
    const mhla_sd *m;
    int64_t H, W;
    mhla_mark mark;
} pass;

static mhla_tensor *normed(mhla_tape *t, const pass *p, const mhla_layer *l, mhla_activation a, mhla_tensor *x) {
    return mhla_nn_group_norm(t, l->w, l->b, p->m->config.groups, norm_eps, a, x);
}

static mhla_tensor *convolved(mhla_tape *t, const pass *p, const mhla_layer *l, mhla_tensor *residual, mhla_tensor *x) {
    return mhla_nn_conv2d(t, l->w, l->b, (mhla_conv){.H = p->H, .W = p->W, .pad = 1}, residual, x);
}

/* A residual block at its place: what computing it again takes. */
typedef struct block {
    pass p;
    const resnet *r;
} block;

static mhla_tensor *run_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const pass *p = &b->p;
    const resnet *r = b->r;
    mhla_tensor *h = convolved(t, p, &r->conv1, NULL, normed(t, p, &r->norm1, MHLA_ACT_SILU, x));
    h = normed(t, p, &r->norm2, MHLA_ACT_SILU, h);
    if (r->shortcut.w) x = mhla_nn_linear(t, r->shortcut.w, r->shortcut.b, MHLA_ACT_NONE, NULL, x);
    return convolved(t, p, &r->conv2, x, h);
}

static mhla_tensor *apply_resnet(mhla_tape *t, const pass *p, const resnet *r, mhla_tensor *x) {
    block *b = mhla_tape_op(t, sizeof *b);
    if (b == NULL) return NULL;
    *b = (block){*p, r};
    if (mhla_tape_mode(t) & MHLA_TAPE_RECOMPUTE) return mhla_nn_checkpoint(t, run_block, b, x);
    return mhla_tape_release(t, p->mark, run_block(t, b, x));
}

static mhla_tensor *apply_attention(mhla_tape *t, const pass *p, const attention *a, mhla_tensor *x) {
    mhla_tensor *qkv[3];
    mhla_nn_linears(t, qkv, (const mhla_layer[]){a->q, a->k, a->v}, 3, normed(t, p, &a->norm, MHLA_ACT_NONE, x));
    mhla_tensor *o = mhla_nn_attention(t, p->m->plan, NULL, NULL, qkv[0], qkv[1], qkv[2]);
    return mhla_tape_release(t, p->mark, mhla_nn_linear(t, a->out.w, a->out.b, MHLA_ACT_NONE, x, o));
}

static mhla_tensor *apply_middle(mhla_tape *t, const pass *p, const half *h, mhla_tensor *x) {
    x = apply_resnet(t, p, &h->middle[0], x);
    if (p->m->config.attention) x = apply_attention(t, p, &h->attention, x);
    return apply_resnet(t, p, &h->middle[1], x);
}

static mhla_tensor *finish(mhla_tape *t, const pass *p, const half *h, mhla_tensor *x) {
    return convolved(t, p, &h->conv_out, NULL, normed(t, p, &h->norm_out, MHLA_ACT_SILU, x));
}

mhla_tensor *mhla_sd_encode(mhla_tape *t, mhla_sd *m, mhla_tensor *images) {
    const mhla_sd_config *c = &m->config;
    const half *h = &m->encoder;
    const int levels = mhla_sd_levels(c), f = mhla_sd_factor(c);
    if (images == NULL) return NULL;
    if (!c->encoder) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no encoder");
    if (images->dims != 4 || images->shape[1] != c->in_channels || images->shape[2] % f || images->shape[3] % f)
        return mhla_tape_fail(
            t, MHLA_EINVAL, "images of %lld channels, %lld x %lld: expected %d, sides a multiple of %d",
            (long long)images->shape[1], (long long)images->shape[2], (long long)images->shape[3], c->in_channels, f);
    pass p = {.m = m, .H = images->shape[2], .W = images->shape[3]};
    p.mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_tape_release(t, p.mark, convolved(t, &p, &h->conv_in, NULL, mhla_nn_patches(t, 1, images)));
    for (int i = 0; i < levels; i++) {
        const level *l = &h->levels[i];
        for (int r = 0; r < l->count; r++) x = apply_resnet(t, &p, &l->resnets[r], x);
        if (l->resample.w == NULL) continue;
        x = mhla_nn_conv2d(t, l->resample.w, l->resample.b, (mhla_conv){.H = p.H, .W = p.W, .stride = 2, .after = 1},
                           NULL, x);
        x = mhla_tape_release(t, p.mark, x);
        p.H /= 2;
        p.W /= 2;
    }
    x = finish(t, &p, h, apply_middle(t, &p, h, x));
    if (c->quant) x = mhla_nn_linear(t, m->quant.w, m->quant.b, MHLA_ACT_NONE, NULL, x);
    return mhla_nn_unpatch(t, 1, p.H, p.W, x);
}

mhla_tensor *mhla_sd_decode(mhla_tape *t, mhla_sd *m, mhla_tensor **trace, mhla_tensor *latents) {
    const mhla_sd_config *c = &m->config;
    const half *h = &m->decoder;
    const int levels = mhla_sd_levels(c);
    if (latents == NULL) return NULL;
    if (!c->decoder) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no decoder");
    if (latents->dims != 4 || latents->shape[1] != c->latent_channels)
        return mhla_tape_fail(t, MHLA_EINVAL, "latents of %lld channels: expected %d", (long long)latents->shape[1],
                              c->latent_channels);
    pass p = {.m = m, .H = latents->shape[2], .W = latents->shape[3]};
    p.mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_patches(t, 1, latents);
    if (c->post_quant) x = mhla_nn_linear(t, m->post_quant.w, m->post_quant.b, MHLA_ACT_NONE, NULL, x);
    if (trace) *trace++ = x;
    x = mhla_tape_release(t, p.mark, convolved(t, &p, &h->conv_in, NULL, x));
    if (trace) *trace++ = x;
    x = apply_middle(t, &p, h, x);
    if (trace) *trace++ = x;
    for (int i = 0; i < levels; i++) {
        const level *l = &h->levels[i];
        for (int r = 0; r < l->count; r++) x = apply_resnet(t, &p, &l->resnets[r], x);
        if (l->resample.w) {
            x = mhla_nn_upsample(t, p.H, p.W, x);
            p.H *= 2;
            p.W *= 2;
            x = mhla_tape_release(t, p.mark, convolved(t, &p, &l->resample, NULL, x));
        }
        if (trace) *trace++ = x;
    }
    return mhla_nn_unpatch(t, 1, p.H, p.W, finish(t, &p, h, x));
}

/* ---- Cost --------------------------------------------------------------------------------------------------------------- */

static int64_t resnet_cost(int64_t from, int64_t to) { return 9 * to * (from + to) + (from != to ? from * to : 0); }

int64_t mhla_sd_multiply_adds(const mhla_sd_config *c, int64_t H, int64_t W, int decode) {
    const int levels = mhla_sd_levels(c), f = mhla_sd_factor(c);
    const int64_t last = c->widths[levels - 1], latents = c->latent_channels, T = H / f * (W / f);
    const int64_t inner = (int64_t)(decode ? 1 : 2) * latents; /* channels at the small end */
    int64_t sum = T * (2 * resnet_cost(last, last) + 9 * last * inner);
    if (c->attention) sum += T * (4 * last * last + 2 * T * last);
    if (decode ? c->post_quant : c->quant) sum += T * inner * inner;
    sum += H * W * 9 * c->widths[0] * (decode ? c->out_channels : c->in_channels);
    for (int i = 0; i < levels; i++) { /* level i has pixels of H/2^i */
        const int64_t pixels = (H >> i) * (W >> i), width = c->widths[i];
        const int64_t from = decode ? (i + 1 < levels ? c->widths[i + 1] : width) : c->widths[i ? i - 1 : 0];
        const int count = decode ? c->layers + 1 : c->layers;
        sum += pixels * (resnet_cost(from, width) + (count - 1) * resnet_cost(width, width));
        if (decode && i > 0) sum += 4 * pixels * 9 * width * width; /* its result is of the level below */
        if (!decode && i + 1 < levels) sum += pixels / 4 * 9 * width * width;
    }
    return sum;
}
