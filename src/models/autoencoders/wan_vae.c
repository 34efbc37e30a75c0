/* The network of AutoencoderKLWan. A clip goes through frame by frame, as tokens [B,H*W,C]. Convolutions are causal in time: each
 * remembers the two frames that it has read last.
 *
 *   resnet     x + conv2(silu(norm2(conv1(silu(norm1(x))))))
 *   middle     resnet, attention of one head over the pixels of a frame, resnet
 *   encode     conv_in; levels of resnets, each but the last with a convolution of stride 2 and, where it halves the frames, one over
 *              the last three of them behind every second frame but the first, which it leaves alone; middle; norm, silu, conv_out
 *   decode     conv_in; middle; levels from the last to the first, each but the last made with, where it doubles the frames, a
 *              convolution over time that makes two of each frame but the first, which it never sees; then doubled in space; the end */
#include "models/autoencoders/wan_vae.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/layers.h"

enum { LAYERS = 17, PAST = 2, CAUSAL = 2 * (LAYERS + 1) * MHLA_SETTING_LIST_MOST };
static const float norm_eps = 1e-26f; /* of a mean of squares: x / max(|x|, 1e-12) in all but name */

/* A convolution that is causal in time, number `id` of its half, on a grid of the sides >> level. */
typedef struct causal {
    mhla_layer l;
    int id, pad;
} causal;

typedef struct resnet {
    mhla_layer norm1, norm2, shortcut;
    causal conv1, conv2;
} resnet;

typedef struct stage {
    resnet resnets[LAYERS];
    int count;
    mhla_layer resample; /* in space, behind the resnets */
    causal time;         /* with it */
} stage;

/* What a causal convolution remembers: frames of so many channels, of the clip's sides >> shift. */
typedef struct memory {
    int64_t channels;
    int shift;
} memory;

typedef struct half {
    causal conv_in, conv_out;
    mhla_layer norm_out;
    stage levels[MHLA_SETTING_LIST_MOST];
    resnet middle[2];
    mhla_layer attention_norm, qkv, proj;
    memory memories[CAUSAL];
    int count; /* of them */
} half;

struct mhla_wan_vae {
    mhla_wan_vae_config config;
    mhla_params *params;
    half encoder, decoder;
    mhla_layer quant, post_quant;
    mhla_plan *plan; /* of the attention */
};

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

/* The list and the half that layers are added to. */
typedef struct maker {
    mhla_params *ps;
    half *h;
    const char *name; /* before those of the layers */
} maker;

static mhla_layer weight_of(const maker *m, const int64_t *shape, int dims, unsigned flags, const char *part) {
    int64_t fan = 1;
    for (int i = 1; i < dims; i++) fan *= shape[i];
    return (mhla_layer){
        mhla_params_addf(m->ps, shape, dims, MHLA_PARAM_DECAY | flags, MHLA_TORCH(fan), "%s%s.weight", m->name, part),
        mhla_params_addf(m->ps, MHLA_SHAPE(shape[0]), 0, MHLA_TORCH(fan), "%s%s.bias", m->name, part)};
}

static causal declare_causal(const maker *m, int64_t O, int64_t C, int k, int shift, const char *part) {
    causal c = {.l = weight_of(m, MHLA_SHAPE(O, C, 3, k, k), 0, part), .id = m->h->count++, .pad = k / 2};
    m->h->memories[c.id] = (memory){C, shift};
    return c;
}

static mhla_layer declare_norm(const maker *m, int64_t C, int dims, const char *part) {
    const int64_t shape[] = {C, 1, 1, 1};
    return (mhla_layer){.w = mhla_params_addf(m->ps, shape, dims, 0, MHLA_ONE, "%s%s.gamma", m->name, part)};
}

static resnet declare_resnet(const maker *m, int64_t from, int64_t to, int shift, const char *part) {
    char text[128];
    snprintf(text, sizeof text, "%s%s.", m->name, part);
    const maker own = {m->ps, m->h, text};
    resnet r = {.norm1 = declare_norm(&own, from, 4, "norm1"),
                .conv1 = declare_causal(&own, to, from, 3, shift, "conv1"),
                .norm2 = declare_norm(&own, to, 4, "norm2"),
                .conv2 = declare_causal(&own, to, to, 3, shift, "conv2")};
    if (from != to) r.shortcut = weight_of(&own, MHLA_SHAPE(to, from, 1, 1, 1), MHLA_PARAM_MATRIX, "conv_shortcut");
    return r;
}

static void declare_middle(const maker *m, int64_t C, int shift) {
    half *h = m->h;
    h->middle[0] = declare_resnet(m, C, C, shift, "mid_block.resnets.0");
    h->attention_norm = declare_norm(m, C, 3, "mid_block.attentions.0.norm");
    h->qkv = weight_of(m, MHLA_SHAPE(3 * C, C, 1, 1), MHLA_PARAM_MATRIX, "mid_block.attentions.0.to_qkv");
    h->proj = weight_of(m, MHLA_SHAPE(C, C, 1, 1), MHLA_PARAM_MATRIX, "mid_block.attentions.0.proj");
    h->middle[1] = declare_resnet(m, C, C, shift, "mid_block.resnets.1");
}

/* Blocks are counted through: those of a level, then what makes it smaller. */
static void declare_encoder(mhla_wan_vae *v) {
    const mhla_wan_vae_config *c = &v->config;
    const maker m = {v->params, &v->encoder, "encoder."};
    const int levels = mhla_wan_vae_levels(c);
    int64_t width = c->base;
    int block = 0;
    char part[64];
    m.h->conv_in = declare_causal(&m, width, c->in_channels, 3, 0, "conv_in");
    for (int i = 0; i < levels; i++) {
        stage *l = &m.h->levels[i];
        const int64_t to = (int64_t)c->base * c->widths[i];
        for (l->count = 0; l->count < c->layers; l->count++, width = to) {
            snprintf(part, sizeof part, "down_blocks.%d", block++);
            l->resnets[l->count] = declare_resnet(&m, width, to, i, part);
        }
        if (i + 1 == levels) break;
        snprintf(part, sizeof part, "down_blocks.%d.resample.1", block);
        l->resample = weight_of(&m, MHLA_SHAPE(to, to, 3, 3), 0, part);
        snprintf(part, sizeof part, "down_blocks.%d.time_conv", block++);
        if (c->time[i]) l->time = declare_causal(&m, to, to, 1, i + 1, part);
    }
    declare_middle(&m, width, levels - 1);
    m.h->norm_out = declare_norm(&m, width, 4, "norm_out");
    m.h->conv_out = declare_causal(&m, (int64_t)2 * c->latents, width, 3, levels - 1, "conv_out");
    const maker whole = {v->params, &v->encoder, ""};
    v->quant = weight_of(&whole, MHLA_SHAPE(2 * c->latents, 2 * c->latents, 1, 1, 1), MHLA_PARAM_MATRIX, "quant_conv");
}

static void declare_decoder(mhla_wan_vae *v) {
    const mhla_wan_vae_config *c = &v->config;
    const maker whole = {v->params, &v->decoder, ""}, m = {v->params, &v->decoder, "decoder."};
    const int levels = mhla_wan_vae_levels(c);
    int64_t width = (int64_t)c->base * c->widths[levels - 1];
    char part[64];
    v->post_quant =
        weight_of(&whole, MHLA_SHAPE(c->latents, c->latents, 1, 1, 1), MHLA_PARAM_MATRIX, "post_quant_conv");
    m.h->conv_in = declare_causal(&m, width, c->latents, 3, levels - 1, "conv_in");
    declare_middle(&m, width, levels - 1);
    for (int i = 0; i < levels; i++) {
        stage *l = &m.h->levels[i];
        const int64_t to = (int64_t)c->base * c->widths[levels - 1 - i];
        const int shift = levels - 1 - i;
        for (l->count = 0; l->count <= c->layers; l->count++, width = to) {
            snprintf(part, sizeof part, "up_blocks.%d.resnets.%d", i, l->count);
            l->resnets[l->count] = declare_resnet(&m, width, to, shift, part);
        }
        if (i + 1 == levels) break;
        snprintf(part, sizeof part, "up_blocks.%d.upsamplers.0.resample.1", i);
        width = to / 2;
        l->resample = weight_of(&m, MHLA_SHAPE(width, to, 3, 3), 0, part);
        snprintf(part, sizeof part, "up_blocks.%d.upsamplers.0.time_conv", i);
        if (c->time[levels - 2 - i]) l->time = declare_causal(&m, 2 * to, to, 1, shift, part);
    }
    m.h->norm_out = declare_norm(&m, width, 4, "norm_out");
    m.h->conv_out = declare_causal(&m, c->out_channels, width, 3, 0, "conv_out");
}

void mhla_wan_vae_free(mhla_wan_vae *v) {
    if (v == NULL) return;
    mhla_params_free(v->params);
    mhla_plan_free(v->plan);
    free(v);
}

mhla_status mhla_wan_vae_create(mhla_wan_vae **model, const mhla_wan_vae_config *config) {
    mhla_wan_vae *v = calloc(1, sizeof *v);
    *model = NULL;
    if (v == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    v->config = *config;
    const int width = config->base * config->widths[mhla_wan_vae_levels(config) - 1];
    const mhla_plan_desc desc = {
        .size = sizeof desc, .kind = MHLA_KIND_SOFTMAX, .heads = 1, .key_dim = width, .value_dim = width};
    mhla_status status = mhla_params_create(&v->params);
    if (status == MHLA_OK) status = mhla_plan_create(&v->plan, &desc);
    if (status == MHLA_OK) {
        if (config->encoder) declare_encoder(v);
        if (config->decoder) declare_decoder(v);
        status = mhla_params_status(v->params);
    }
    if (status != MHLA_OK) {
        mhla_wan_vae_free(v);
        return status;
    }
    *model = v;
    return MHLA_OK;
}

const mhla_wan_vae_config *mhla_wan_vae_config_of(const mhla_wan_vae *v) { return &v->config; }
mhla_params *mhla_wan_vae_params(const mhla_wan_vae *v) { return v->params; }

/* ---- Forward ------------------------------------------------------------------------------------------------------------ */

/* What one convolution has read: frames, the newest last, and how many in all. */
typedef struct past {
    mhla_tensor *frames[PAST];
    int64_t seen;
} past;

/* A pass of a clip over one half. H, W: of the clip's pixels. */
typedef struct pass {
    mhla_tape *t;
    const mhla_wan_vae *v;
    const half *h;
    const mhla_wan_vae_watch *watch;
    int64_t H, W;
    past *pasts; /* [h->count] */
    mhla_nn_clip *out;
} pass;

static void show(const pass *p, const char *name, int level, const mhla_tensor *x, int shift) {
    if (p->watch && x) p->watch->fn(p->watch->user, name, level, x, p->H >> shift, p->W >> shift);
}

/* Room for what convolutions remember, before everything that is given back. */
static mhla_status begin(pass *p, int64_t B) {
    p->pasts = calloc(CAUSAL, sizeof *p->pasts);
    if (p->pasts == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a clip");
    for (int i = 0; i < p->h->count; i++)
        for (int f = 0; f < PAST; f++) {
            const memory *m = &p->h->memories[i];
            p->pasts[i].frames[f] =
                mhla_tape_room(p->t, MHLA_SHAPE(B, (p->H >> m->shift) * (p->W >> m->shift), m->channels));
        }
    return MHLA_OK;
}

static void remember(const pass *p, const causal *c, mhla_tensor *x) {
    past *m = &p->pasts[c->id];
    mhla_tensor *kept = mhla_tape_keep(p->t, m->frames[0], x);
    m->frames[0] = m->frames[1];
    m->frames[1] = kept;
    m->seen++;
}

/* y = b + residual + the convolution of x and the frames before it. */
static mhla_tensor *convolve(const pass *p, const causal *c, mhla_tensor *residual, mhla_tensor *x) {
    const past *m = &p->pasts[c->id];
    const int shift = p->h->memories[c->id].shift;
    mhla_tensor *const frames[] = {m->seen > 1 ? m->frames[0] : NULL, m->seen > 0 ? m->frames[1] : NULL, x};
    const mhla_conv grid = {.H = p->H >> shift, .W = p->W >> shift, .pad = c->pad};
    mhla_tensor *y = mhla_nn_conv3d(p->t, c->l.w, c->l.b, grid, residual, frames);
    remember(p, c, x);
    return y;
}

static mhla_tensor *normed(const pass *p, const mhla_layer *l, mhla_activation a, mhla_tensor *x) {
    return mhla_nn_rms_norm_act(p->t, l->w, norm_eps, 0, a, x);
}

static mhla_tensor *apply_resnet(const pass *p, const resnet *r, mhla_tensor *x) {
    mhla_tape *t = p->t;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *h = convolve(p, &r->conv1, NULL, normed(p, &r->norm1, MHLA_ACT_SILU, x));
    h = mhla_tape_release(t, mark, h);
    h = normed(p, &r->norm2, MHLA_ACT_SILU, h);
    if (r->shortcut.w) x = mhla_nn_linear(t, r->shortcut.w, r->shortcut.b, MHLA_ACT_NONE, NULL, x);
    return mhla_tape_release(t, mark, convolve(p, &r->conv2, x, h));
}

static mhla_tensor *apply_middle(const pass *p, mhla_tensor *x) {
    mhla_tape *t = p->t;
    const half *h = p->h;
    const int shift = mhla_wan_vae_levels(&p->v->config) - 1;
    x = apply_resnet(p, &h->middle[0], x);
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *qkv =
        mhla_nn_linear(t, h->qkv.w, h->qkv.b, MHLA_ACT_NONE, NULL, normed(p, &h->attention_norm, MHLA_ACT_NONE, x));
    const int64_t C = x ? x->cols : 0;
    mhla_tensor *o = mhla_nn_attention(t, p->v->plan, NULL, NULL, mhla_nn_slice(t, qkv, 0, C),
                                       mhla_nn_slice(t, qkv, C, C), mhla_nn_slice(t, qkv, 2 * C, C));
    x = mhla_tape_release(t, mark, mhla_nn_linear(t, h->proj.w, h->proj.b, MHLA_ACT_NONE, x, o));
    show(p, "mid_attention", -1, x, shift);
    x = apply_resnet(p, &h->middle[1], x);
    show(p, "mid_block", -1, x, shift);
    return x;
}

static mhla_tensor *finish(const pass *p, mhla_tensor *x) {
    return convolve(p, &p->h->conv_out, NULL, normed(p, &p->h->norm_out, MHLA_ACT_SILU, x));
}

/* ---- Encoder: levels from the first to the last; a frame may end in what a level remembers ---- */

/* NULL: nothing comes of this frame. z_0 = y_0, z_j = b + W_0 y_(2j-2) + W_1 y_(2j-1) + W_2 y_2j */
static mhla_tensor *fewer_frames(const pass *p, const causal *c, mhla_tensor *y) {
    const int64_t seen = p->pasts[c->id].seen;
    if (seen > 0 && seen % 2 == 0) return convolve(p, c, NULL, y);
    remember(p, c, y);
    return seen == 0 ? y : NULL;
}

static void encode_frame(const pass *p, mhla_tensor *x) {
    mhla_tape *t = p->t;
    const mhla_wan_vae_config *c = &p->v->config;
    const int levels = mhla_wan_vae_levels(c);
    const mhla_mark mark = mhla_tape_mark(t);
    int block = 0;
    x = convolve(p, &p->h->conv_in, NULL, x);
    show(p, "conv_in", -1, x, 0);
    for (int i = 0; i < levels; i++) {
        const stage *l = &p->h->levels[i];
        for (int r = 0; r < l->count; r++) {
            x = apply_resnet(p, &l->resnets[r], x);
            show(p, "down_blocks", block++, x, i);
        }
        if (l->resample.w) {
            const mhla_conv grid = {.H = p->H >> i, .W = p->W >> i, .stride = 2, .after = 1};
            x = mhla_tape_release(t, mark, mhla_nn_conv2d(t, l->resample.w, l->resample.b, grid, NULL, x));
            if (l->time.l.w) x = fewer_frames(p, &l->time, x);
            if (x == NULL) break; /* or the tape has failed */
            show(p, "down_blocks", block++, x, i + 1);
        }
    }
    if (x) {
        x = finish(p, apply_middle(p, x));
        show(p, "encoder", -1, x, levels - 1);
        x = mhla_nn_linear(t, p->v->quant.w, p->v->quant.b, MHLA_ACT_NONE, NULL, x);
        mhla_nn_clip_put(t, p->out, x);
    }
    mhla_tape_release(t, mark, NULL);
}

static mhla_tensor *ended(pass *p) {
    mhla_tensor *y = mhla_nn_clip_end(p->t, p->out);
    free(p->pasts);
    return y;
}

mhla_tensor *mhla_wan_vae_encode(mhla_tape *t, mhla_wan_vae *v, const mhla_wan_vae_watch *watch, mhla_tensor *clip) {
    const mhla_wan_vae_config *c = &v->config;
    const int f = mhla_wan_vae_factor(c), n = mhla_wan_vae_frames(c);
    if (clip == NULL) return NULL;
    if (!c->encoder) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no encoder");
    const int64_t *s = clip->shape;
    if (clip->dims != 5 || s[1] != c->in_channels || s[3] % f || s[4] % f || (s[2] - 1) % n)
        return mhla_tape_fail(t, MHLA_EINVAL,
                              "clips of %lld channels, %lld frames, %lld x %lld: expected %d, 1 and a multiple of %d "
                              "frames, sides a multiple of %d",
                              (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4], c->in_channels, n, f);
    pass p = {.t = t, .v = v, .h = &v->encoder, .watch = watch, .H = s[3], .W = s[4]};
    p.out = mhla_nn_clip_begin(t, s[0], (int64_t)2 * c->latents, 1 + (s[2] - 1) / n, s[3] / f, s[4] / f);
    const mhla_status status = begin(&p, s[0]);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "no memory for a clip");
    const mhla_mark mark = mhla_tape_mark(t);
    for (int64_t i = 0; i < s[2]; i++) {
        encode_frame(&p, mhla_nn_frame(t, i, clip));
        mhla_tape_release(t, mark, NULL);
    }
    return ended(&p);
}

/* ---- Decoder: a frame becomes two wherever a level doubles their number, and each goes on alone ---- */

static void decode_level(const pass *p, int i, int first, mhla_tensor *x);

/* Twice the sides, then on to the next level. */
static void enlarge(const pass *p, int i, int first, mhla_tensor *x) {
    mhla_tape *t = p->t;
    const stage *l = &p->h->levels[i];
    const int shift = mhla_wan_vae_levels(&p->v->config) - 1 - i;
    const mhla_mark mark = mhla_tape_mark(t);
    x = mhla_nn_upsample(t, p->H >> shift, p->W >> shift, x);
    const mhla_conv grid = {.H = p->H >> (shift - 1), .W = p->W >> (shift - 1), .pad = 1};
    x = mhla_tape_release(t, mark, mhla_nn_conv2d(t, l->resample.w, l->resample.b, grid, NULL, x));
    decode_level(p, i + 1, first, x);
    mhla_tape_release(t, mark, NULL);
}

static void decode_level(const pass *p, int i, int first, mhla_tensor *x) {
    mhla_tape *t = p->t;
    const stage *l = &p->h->levels[i];
    const mhla_mark mark = mhla_tape_mark(t);
    for (int r = 0; r < l->count; r++) x = mhla_tape_release(t, mark, apply_resnet(p, &l->resnets[r], x));
    if (l->resample.w == NULL) {
        mhla_nn_clip_put(t, p->out, finish(p, x));
    } else if (l->time.l.w && !first) {
        mhla_tensor *two = mhla_tape_release(t, mark, convolve(p, &l->time, NULL, x));
        for (int k = 0; k < 2 && two; k++) enlarge(p, i, 0, mhla_nn_slice(t, two, k * two->cols / 2, two->cols / 2));
    } else {
        enlarge(p, i, first, x);
    }
    mhla_tape_release(t, mark, NULL);
}

mhla_tensor *mhla_wan_vae_decode(mhla_tape *t, mhla_wan_vae *v, const mhla_wan_vae_watch *watch, mhla_tensor *latents) {
    const mhla_wan_vae_config *c = &v->config;
    const int f = mhla_wan_vae_factor(c), n = mhla_wan_vae_frames(c), shift = mhla_wan_vae_levels(c) - 1;
    if (latents == NULL) return NULL;
    if (!c->decoder) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no decoder");
    const int64_t *s = latents->shape;
    if (latents->dims != 5 || s[1] != c->latents)
        return mhla_tape_fail(t, MHLA_EINVAL, "latents of %lld channels and %d axes: expected %d and 5",
                              (long long)s[1], latents->dims, c->latents);
    pass p = {.t = t, .v = v, .h = &v->decoder, .watch = watch, .H = s[3] * f, .W = s[4] * f};
    p.out = mhla_nn_clip_begin(t, s[0], c->out_channels, 1 + (s[2] - 1) * n, p.H, p.W);
    const mhla_status status = begin(&p, s[0]);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "no memory for a clip");
    const mhla_mark mark = mhla_tape_mark(t);
    for (int64_t i = 0; i < s[2]; i++) {
        mhla_tensor *x = mhla_nn_frame(t, i, latents);
        x = mhla_nn_linear(t, v->post_quant.w, v->post_quant.b, MHLA_ACT_NONE, NULL, x);
        show(&p, "post_quant_conv", -1, x, shift);
        x = mhla_tape_release(t, mark, convolve(&p, &v->decoder.conv_in, NULL, x));
        decode_level(&p, 0, i == 0, apply_middle(&p, x));
        mhla_tape_release(t, mark, NULL);
    }
    return ended(&p);
}

/* ---- Cost --------------------------------------------------------------------------------------------------------------- */

static int64_t resnet_cost(int64_t from, int64_t to) { return 27 * to * (from + to) + (from != to ? from * to : 0); }

/* Frames that level i of the encoder, or that of the decoder with pixels of this size, works on. */
static int64_t frames_at(const mhla_wan_vae_config *c, int i, int64_t frames) {
    for (int k = 0; k < i; k++)
        if (c->time[k]) frames = 1 + (frames - 1) / 2;
    return frames;
}

int64_t mhla_wan_vae_multiply_adds(const mhla_wan_vae_config *c, mhla_extent e, int decode) {
    const int levels = mhla_wan_vae_levels(c);
    const int64_t F = e.frames ? e.frames : 1, pixels = e.height * e.width,
                  last = (int64_t)c->base * c->widths[levels - 1];
    const int64_t inner = (int64_t)(decode ? 1 : 2) * c->latents, small = pixels >> (2 * (levels - 1));
    int64_t sum =
        frames_at(c, levels - 1, F) * small *
        (2 * resnet_cost(last, last) + 27 * last * inner + inner * inner + 4 * last * last + 2 * small * last);
    sum += F * pixels * 27 * c->base * (decode ? c->widths[0] * c->out_channels : c->in_channels);
    for (int i = 0; i < levels; i++) {
        const int64_t at = pixels >> (2 * i), frames = frames_at(c, i, F), to = (int64_t)c->base * c->widths[i];
        int64_t from = (int64_t)c->base * (i ? c->widths[i - 1] : 1); /* what comes into its first block */
        if (decode) from = i + 1 < levels ? (int64_t)c->base * c->widths[i + 1] / 2 : to;
        sum += frames * at * (resnet_cost(from, to) + (int64_t)(c->layers - !decode) * resnet_cost(to, to));
        if (decode && i > 0) { /* its result is of the level below */
            const int64_t out = frames_at(c, i - 1, F);
            sum += out * 4 * at * 9 * to * (to / 2);
            if (c->time[i - 1]) sum += (frames - 1) * at * 6 * to * to;
        } else if (!decode && i + 1 < levels) {
            sum += frames * at / 4 * 9 * to * to;
            if (c->time[i]) sum += (frames_at(c, i + 1, F) - 1) * at / 4 * 3 * to * to;
        }
    }
    return sum;
}
