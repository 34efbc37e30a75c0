/* The network of AutoencoderDC. Everything between the ends is tokens [B,H*W,C], norm is an RMS norm with a bias.
 *
 *   residual    x + norm(conv2(silu(conv1(x))))
 *   attentive   x + norm(out(attention(x))), then x + norm(glumb(x))
 *   attention   of relu features, linear in the pixels, of p = [q, k, v] and of p after a depthwise and a grouped convolution; of all these
 *               channels each three heads that follow one another are query, key and value of one head
 *   down, up    a convolution on half or twice the sides, plus the pixels' own numbers, which become channels or come from them
 *   encode      conv_in; stages of blocks, each but the last with its way down; conv_out plus the mean of neighbouring channels
 *   decode      conv_in plus every channel repeated; stages from the last to the first, each but the last after its way up;
 *               norm, relu, conv_out */
#include "models/autoencoders/dc.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/glumb.h"
#include "nn/op.h"

static const float norm_eps = 1e-5f;
enum { EXPANSION = 4 }; /* of the gated convolution */

typedef struct near {
    mhla_layer depth, mix; /* [3C,1,k,k], [3C,head_dim,1,1] */
} near;

typedef struct attention {
    mhla_layer q, k, v, out, norm;
    near scales[MHLA_DC_SCALES];
    int count; /* of scales */
} attention;

/* A residual block, or an attentive one. */
typedef struct block {
    mhla_layer conv1, conv2, norm;
    attention attention; /* no q: a residual block */
    mhla_glumb mlp;
} block;

typedef struct stage {
    block *blocks; /* [count] */
    int count;
    mhla_layer resample; /* on the way to the next stage, or from it; none: the last stage */
} stage;

typedef struct half {
    mhla_layer conv_in, norm_out, conv_out;
    stage stages[MHLA_DC_STAGES];
    mhla_plan *plans[MHLA_DC_STAGES];
} half;

struct mhla_dc {
    mhla_dc_config config;
    mhla_params *params;
    half encoder, decoder;
};

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

static mhla_layer conv(mhla_params *ps, int64_t O, int64_t C, const char *name) {
    return mhla_layer_conv(ps, O, C, 3, MHLA_TORCH(9 * C), name);
}

static mhla_layer bare_conv(mhla_params *ps, const int64_t *shape, int dims, int64_t fan_in, const char *name) {
    return (mhla_layer){.w =
                            mhla_params_addf(ps, shape, dims, MHLA_PARAM_DECAY, MHLA_TORCH(fan_in), "%s.weight", name)};
}

static void declare_attention(attention *a, mhla_params *ps, int64_t C, int64_t head_dim, const int *scales,
                              const char *name) {
    char text[160];
#define NAME(...) (snprintf(text, sizeof text, __VA_ARGS__), text)
    a->q = mhla_layer_matrix(ps, C, C, 0, MHLA_TORCH(C), NAME("%s.to_q", name));
    a->k = mhla_layer_matrix(ps, C, C, 0, MHLA_TORCH(C), NAME("%s.to_k", name));
    a->v = mhla_layer_matrix(ps, C, C, 0, MHLA_TORCH(C), NAME("%s.to_v", name));
    for (int i = 0; i < MHLA_DC_SCALES && scales[i]; i++, a->count++) {
        const int64_t k = scales[i];
        a->scales[i].depth =
            bare_conv(ps, MHLA_SHAPE(3 * C, 1, k, k), k * k, NAME("%s.to_qkv_multiscale.%d.proj_in", name, i));
        a->scales[i].mix = bare_conv(ps, MHLA_SHAPE(3 * C, head_dim, 1, 1), head_dim,
                                     NAME("%s.to_qkv_multiscale.%d.proj_out", name, i));
    }
    const int64_t all = (1 + a->count) * C;
    a->out = mhla_layer_matrix(ps, C, all, 0, MHLA_TORCH(all), NAME("%s.to_out", name));
    a->norm = mhla_layer_norm(ps, C, 1, NAME("%s.norm_out", name));
}

static void declare_block(block *b, mhla_params *ps, const mhla_dc_config *c, const mhla_dc_stages *s, int i,
                          const char *name) {
    char text[128];
    const int64_t C = s->widths[i];
    if (s->attends[i]) {
        declare_attention(&b->attention, ps, C, c->head_dim, s->scales[i], NAME("%s.attn", name));
        b->mlp = mhla_glumb_declare(ps, C, EXPANSION * C, NAME("%s.conv_out", name));
        b->norm = mhla_layer_norm(ps, C, 1, NAME("%s.conv_out.norm", name));
        return;
    }
    b->conv1 = conv(ps, C, C, NAME("%s.conv1", name));
    b->conv2 = bare_conv(ps, MHLA_SHAPE(C, C, 3, 3), 9 * C, NAME("%s.conv2", name));
    b->norm = mhla_layer_norm(ps, C, 1, NAME("%s.norm", name));
}

static mhla_status declare_stages(half *h, mhla_params *ps, const mhla_dc_config *c, const mhla_dc_stages *s,
                                  int decode) {
    char text[96];
    const int count = mhla_dc_count(s);
    for (int i = 0; i < count; i++) {
        stage *g = &h->stages[i];
        const int64_t C = s->widths[i], next = s->widths[i + 1 < count ? i + 1 : i];
        const char *list = decode ? "decoder.up_blocks" : "encoder.down_blocks";
        const int before = decode && i + 1 < count; /* the way up is in front of the blocks */
        g->blocks = calloc((size_t)s->layers[i], sizeof *g->blocks);
        if (g->blocks == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
        g->count = s->layers[i];
        if (before) g->resample = conv(ps, c->shuffle ? 4 * C : C, next, NAME("%s.%d.0.conv", list, i));
        for (int k = 0; k < g->count; k++)
            declare_block(&g->blocks[k], ps, c, s, i, NAME("%s.%d.%d", list, i, k + before));
        if (!decode && i + 1 < count)
            g->resample = conv(ps, c->unshuffle ? next / 4 : next, C, NAME("%s.%d.%d.conv", list, i, g->count));
        const int64_t heads = C / c->head_dim;
        if (!s->attends[i]) continue;
        MHLA_TRY(
            mhla_plan_create(&h->plans[i], &(mhla_plan_desc){.size = sizeof(mhla_plan_desc),
                                                             .kind = MHLA_KIND_LINEAR,
                                                             .heads = (int)heads * (1 + g->blocks->attention.count),
                                                             .key_dim = c->head_dim,
                                                             .value_dim = c->head_dim,
                                                             .feature = MHLA_FEATURE_RELU,
                                                             .den_eps = 1e-15f}));
    }
    return MHLA_OK;
}
#undef NAME

static mhla_status declare_all(mhla_dc *m) {
    const mhla_dc_config *c = &m->config;
    mhla_params *ps = m->params;
    const int last = mhla_dc_count(&c->encoder) - 1;
    if (c->encodes) {
        half *h = &m->encoder;
        h->conv_in = conv(ps, c->encoder.widths[0], c->channels, "encoder.conv_in");
        MHLA_TRY(declare_stages(h, ps, c, &c->encoder, 0));
        h->conv_out = conv(ps, c->latents, c->encoder.widths[last], "encoder.conv_out");
    }
    if (c->decodes) {
        half *h = &m->decoder;
        h->conv_in = conv(ps, c->decoder.widths[last], c->latents, "decoder.conv_in");
        MHLA_TRY(declare_stages(h, ps, c, &c->decoder, 1));
        h->norm_out = mhla_layer_norm(ps, c->decoder.widths[0], 1, "decoder.norm_out");
        h->conv_out = conv(ps, c->channels, c->decoder.widths[0], "decoder.conv_out");
    }
    return mhla_params_status(ps);
}

void mhla_dc_free(mhla_dc *m) {
    if (m == NULL) return;
    for (int i = 0; i < MHLA_DC_STAGES; i++) {
        free(m->encoder.stages[i].blocks);
        free(m->decoder.stages[i].blocks);
        mhla_plan_free(m->encoder.plans[i]);
        mhla_plan_free(m->decoder.plans[i]);
    }
    mhla_params_free(m->params);
    free(m);
}

mhla_status mhla_dc_create(mhla_dc **model, const mhla_dc_config *config) {
    mhla_dc *m = calloc(1, sizeof *m);
    *model = NULL;
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    m->config = *config;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) status = declare_all(m);
    if (status != MHLA_OK) {
        mhla_dc_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

const mhla_dc_config *mhla_dc_config_of(const mhla_dc *m) { return &m->config; }
mhla_params *mhla_dc_params(const mhla_dc *m) { return m->params; }
void mhla_dc_rescale(mhla_dc *m, double scale) { m->config.scale = scale; }

/* ---- Forward ------------------------------------------------------------------------------------------------------------ */

/* A pass over one half; mark: where what a block leaves behind begins. */
typedef struct pass {
    const mhla_dc *m;
    int64_t H, W;
    mhla_mark mark;
} pass;

static mhla_tensor *convolved(mhla_tape *t, const pass *p, mhla_layer l, int stride, mhla_tensor *residual,
                              mhla_tensor *x) {
    return mhla_nn_conv2d(t, l.w, l.b, (mhla_conv){.H = p->H, .W = p->W, .pad = 1, .stride = stride}, residual, x);
}

/* x + norm(h) */
static mhla_tensor *add_normed(mhla_tape *t, mhla_layer norm, mhla_tensor *x, mhla_tensor *h) {
    return mhla_nn_add(t, x, mhla_nn_rms_norm_bias(t, norm.w, norm.b, norm_eps, h));
}

static mhla_tensor *attended(mhla_tape *t, const pass *p, const attention *a, const mhla_plan *plan, mhla_tensor *x) {
    const int K = p->m->config.head_dim, heads = (int)(a->q.w->shape[0] / K);
    mhla_tensor *qkv[3], *all[1 + MHLA_DC_SCALES];
    mhla_nn_linears(t, qkv, (const mhla_layer[]){a->q, a->k, a->v}, 3, x);
    all[0] = mhla_nn_heads(t, K, 0, 1, qkv, 3);
    for (int i = 0; i < a->count; i++) {
        mhla_tensor *h = mhla_nn_depthwise(t, a->scales[i].depth.w, NULL, p->H, p->W, NULL, all[0]);
        all[1 + i] = mhla_nn_grouped_linear(t, a->scales[i].mix.w, NULL, 3 * heads, h);
    }
    for (int i = 0; i < 3; i++) qkv[i] = mhla_nn_heads(t, K, i, 3, all, 1 + a->count);
    mhla_tensor *o = mhla_nn_attention(t, plan, NULL, NULL, qkv[0], qkv[1], qkv[2]);
    return mhla_nn_linear(t, a->out.w, NULL, MHLA_ACT_NONE, NULL, o);
}

/* A block at its place: what computing it again takes. */
typedef struct placed {
    pass p;
    const block *b;
    const mhla_plan *plan;
    mhla_tensor **trace; /* gets what the attention adds to; NULL: nobody asks */
} placed;

static mhla_tensor *run_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const placed *at = arg;
    const pass *p = &at->p;
    const block *b = at->b;
    const mhla_mark mark = mhla_tape_mark(t); /* few maps of full size at once */
    if (b->attention.q.w) {
        mhla_tensor *h = mhla_tape_release(t, mark, attended(t, p, &b->attention, at->plan, x));
        x = mhla_tape_release(t, mark, add_normed(t, b->attention.norm, x, h));
        if (at->trace) *at->trace = x;
        const mhla_mark behind = mhla_tape_mark(t);
        h = mhla_tape_release(t, behind, mhla_glumb_forward(t, &b->mlp, p->H, p->W, x));
        return add_normed(t, b->norm, x, h);
    }
    mhla_tensor *h = mhla_tape_release(t, mark, convolved(t, p, b->conv1, 1, NULL, x));
    h = mhla_tape_release(t, mark, mhla_nn_activation(t, MHLA_ACT_SILU, h));
    h = mhla_tape_release(t, mark, convolved(t, p, b->conv2, 1, NULL, h));
    return add_normed(t, b->norm, x, h);
}

static mhla_tensor *apply_block(mhla_tape *t, const pass *p, const block *b, const mhla_plan *plan, mhla_tensor **trace,
                                mhla_tensor *x) {
    placed *at = mhla_tape_op(t, sizeof *at);
    if (at == NULL) return NULL;
    *at = (placed){*p, b, plan, trace};
    if (mhla_tape_mode(t) & MHLA_TAPE_RECOMPUTE) return mhla_nn_checkpoint(t, run_block, at, x);
    return mhla_tape_release(t, p->mark, run_block(t, at, x));
}

/* Half the sides, C channels; p is moved there. */
static mhla_tensor *down(mhla_tape *t, pass *p, mhla_layer l, int64_t C, mhla_tensor *x) {
    const int shuffle = p->m->config.unshuffle;
    mhla_tensor *own = mhla_nn_pixel_unshuffle(t, 2, p->H / 2, p->W / 2, C, x), *y;
    if (shuffle)
        y = mhla_nn_add(t, own, mhla_nn_pixel_unshuffle(t, 2, p->H / 2, p->W / 2, C, convolved(t, p, l, 1, NULL, x)));
    else
        y = convolved(t, p, l, 2, own, x);
    p->H /= 2;
    p->W /= 2;
    return mhla_tape_release(t, p->mark, y);
}

static mhla_tensor *up(mhla_tape *t, pass *p, mhla_layer l, int64_t C, mhla_tensor *x) {
    const int64_t H = p->H, W = p->W;
    mhla_tensor *own = mhla_nn_pixel_shuffle(t, 2, H, W, C, x), *y;
    if (p->m->config.shuffle) {
        y = mhla_nn_add(t, own, mhla_nn_pixel_shuffle(t, 2, H, W, C, convolved(t, p, l, 1, NULL, x)));
        p->H *= 2, p->W *= 2;
    } else {
        x = mhla_nn_upsample(t, H, W, x);
        p->H *= 2, p->W *= 2;
        y = convolved(t, p, l, 1, own, x);
    }
    return mhla_tape_release(t, p->mark, y);
}

mhla_tensor *mhla_dc_encode(mhla_tape *t, mhla_dc *m, mhla_tensor *images) {
    const mhla_dc_config *c = &m->config;
    const half *h = &m->encoder;
    const int count = mhla_dc_count(&c->encoder), f = mhla_dc_factor(c);
    if (images == NULL) return NULL;
    if (!c->encodes) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no encoder");
    if (images->dims != 4 || images->shape[1] != c->channels || images->shape[2] % f || images->shape[3] % f)
        return mhla_tape_fail(
            t, MHLA_EINVAL, "images of %lld channels, %lld x %lld: expected %d, sides a multiple of %d",
            (long long)images->shape[1], (long long)images->shape[2], (long long)images->shape[3], c->channels, f);
    pass p = {.m = m, .H = images->shape[2], .W = images->shape[3]};
    p.mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_tape_release(t, p.mark, convolved(t, &p, h->conv_in, 1, NULL, mhla_nn_patches(t, 1, images)));
    for (int i = 0; i < count; i++) {
        const stage *g = &h->stages[i];
        for (int k = 0; k < g->count; k++) x = apply_block(t, &p, &g->blocks[k], h->plans[i], NULL, x);
        if (i + 1 < count) x = down(t, &p, g->resample, c->encoder.widths[i + 1], x);
    }
    mhla_tensor *own = c->out_shortcut ? mhla_nn_pixel_unshuffle(t, 1, p.H, p.W, c->latents, x) : NULL;
    return mhla_nn_unpatch(t, 1, p.H, p.W, convolved(t, &p, h->conv_out, 1, own, x));
}

mhla_tensor *mhla_dc_decode(mhla_tape *t, mhla_dc *m, mhla_tensor **trace, mhla_tensor *latents) {
    const mhla_dc_config *c = &m->config;
    const half *h = &m->decoder;
    const int count = mhla_dc_count(&c->decoder);
    if (latents == NULL) return NULL;
    if (!c->decodes) return mhla_tape_fail(t, MHLA_EINVAL, "the autoencoder has no decoder");
    if (latents->dims != 4 || latents->shape[1] != c->latents)
        return mhla_tape_fail(t, MHLA_EINVAL, "latents of %lld channels: expected %d", (long long)latents->shape[1],
                              c->latents);
    pass p = {.m = m, .H = latents->shape[2], .W = latents->shape[3]};
    p.mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_patches(t, 1, latents);
    mhla_tensor *own = c->in_shortcut ? mhla_nn_pixel_shuffle(t, 1, p.H, p.W, c->decoder.widths[count - 1], x) : NULL;
    x = convolved(t, &p, h->conv_in, 1, NULL, x);
    if (trace) *trace++ = x;
    x = mhla_tape_release(t, p.mark, own ? mhla_nn_add(t, x, own) : x);
    mhla_tensor **first = trace ? trace++ : NULL; /* the attention of the first block */
    for (int i = count - 1; i >= 0; i--) {
        const stage *g = &h->stages[i];
        if (i + 1 < count) x = up(t, &p, g->resample, c->decoder.widths[i], x);
        for (int k = 0; k < g->count; k++, first = NULL) x = apply_block(t, &p, &g->blocks[k], h->plans[i], first, x);
        if (trace) *trace++ = x;
    }
    x = mhla_nn_rms_norm_bias(t, h->norm_out.w, h->norm_out.b, norm_eps, x);
    const int64_t width = c->decoder.widths[0]; /* a feature map has at most 1024 dims at once */
    x = c->end ? mhla_nn_activation(t, MHLA_ACT_SILU, x)
               : mhla_nn_feature(t, MHLA_FEATURE_RELU, width <= 1024 ? width : 1, 0, x);
    x = mhla_tape_release(t, p.mark, x);
    return mhla_nn_unpatch(t, 1, p.H, p.W, convolved(t, &p, h->conv_out, 1, NULL, x));
}

/* ---- Cost --------------------------------------------------------------------------------------------------------------- */

/* Of a pixel in a block of stage i; linear attention multiplies keys with values, and queries with the sum of both. */
static int64_t block_cost(const mhla_dc_config *c, const mhla_dc_stages *s, int i) {
    const int64_t C = s->widths[i], K = c->head_dim;
    int64_t all = C, sum = 3 * C * C;
    if (!s->attends[i]) return 2 * 9 * C * C;
    for (int k = 0; k < MHLA_DC_SCALES && s->scales[i][k]; k++, all += C)
        sum += 3 * C * ((int64_t)s->scales[i][k] * s->scales[i][k] + K);
    return sum + all * (2 * K + 1) + all * C + mhla_glumb_cost(C, EXPANSION * C);
}

int64_t mhla_dc_multiply_adds(const mhla_dc_config *c, int64_t H, int64_t W, int decode) {
    const mhla_dc_stages *s = decode ? &c->decoder : &c->encoder;
    const int count = mhla_dc_count(s);
    int64_t sum = H * W * 9 * c->channels * s->widths[0];
    for (int i = 0; i < count; i++) { /* stage i has pixels of H/2^i */
        const int64_t pixels = (H >> i) * (W >> i), width = s->widths[i];
        sum += pixels * s->layers[i] * block_cost(c, s, i);
        if (i + 1 == count)
            sum += pixels * 9 * c->latents * width;
        else /* up to all of these pixels, or down to a quarter of them: shuffled numbers are as many */
            sum += (decode ? pixels : pixels / 4) * 9 * width * s->widths[i + 1];
    }
    return sum;
}
