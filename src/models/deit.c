/* DeiT: an image is cut into patches, a stack of transformer blocks lets them look at each other, the mean of all of them
 * (or a class token) says what the image shows. With MHLA for attention this is the classifier of the paper; the attentions
 * of its comparison stand in the same place. One file, from the parameters to the logits; config.c has the choices.
 *
 *   x = patches + position
 *   x = x + attention(norm(x)),  x = x + mlp(norm(x))      depth times
 *   logits = head(norm(mean(x))) */
#include "models/deit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/parts.h"

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

typedef struct norm {
    mhla_param *w, *b; /* b NULL for RMS norms */
} norm;

typedef mhla_part layer;

typedef struct block {
    const mhla_deit *model;
    float drop_path;
    layer cpe;                /* [D,1,3,3] */
    norm norm1, inner, norm2; /* inner: the attention's own */
    layer qkv, out;           /* [3D,D] ([4D,D,1,1] with a gate), [D,D] */
    mhla_param *q_norm, *k_norm;
    layer lepe;           /* [D,1,5,5]; Focused LA: [K,1,5,5], the same for all heads */
    layer squeeze, widen; /* InLine: [D,K,1], [9D,K,1], from the mean token of a head to its kernels */
    mhla_param *position; /* Focused LA: [1,T,D], of keys */
    mhla_param *mix;      /* [M,M,1,1]: how much query block i takes from block b; a class token is block 0.
                             Focused LA: [1,1,D], the scale of its features */
    layer fc1, fc2;       /* [4D,D], [D,4D] */
} block;

struct mhla_deit {
    mhla_deit_config config;
    mhla_params *params;
    mhla_plan *plan;  /* of the attention */
    float *cos, *sin; /* [T,K/2] one allocation; rotary embedding, NULL without */
    int grid[2];      /* patches per axis, padding counted */
    mhla_param *cls_token, *pos_embed;
    layer patch, head;
    norm norm;
    block *blocks; /* [depth] */
};

static norm add_norm(mhla_params *ps, int kind, int64_t D, const char *name) {
    norm n = {.w = mhla_params_addf(ps, MHLA_SHAPE(D), 0, "%s.weight", name)};
    if (kind == MHLA_NORM_LAYER) n.b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, "%s.bias", name);
    return n;
}

/* MHLA's blocks: pieces of the grid; a class token, which has no place in the image, is one of its own before them. */
static int64_t blocks_of(const mhla_deit_config *c) { return (int64_t)c->blocks[0] * c->blocks[1] + c->class_token; }

/* The attention's own layers, under the names of its authors: MHLA's release for MHLA and linear attention, timm's for the
 * others, of which some have 1x1 convolutions for linear layers. */
static void add_attention(block *b, mhla_params *ps, const mhla_deit_config *c, int i) {
    char name[64];
    const int ours = c->attention == MHLA_ATTENTION_MHLA || c->attention == MHLA_ATTENTION_LINEAR;
    const int pointwise = c->attention == MHLA_ATTENTION_MALA || c->attention == MHLA_ATTENTION_RALA;
    const int focused = c->attention == MHLA_ATTENTION_FOCUSED, own = c->attention == MHLA_ATTENTION_INLINE;
    const int64_t D = c->dim, K = D / c->heads, T = mhla_deit_tokens(c), M = blocks_of(c);
#define NAME(suffix) (snprintf(name, sizeof name, "blocks.%d.attn.%s", i, suffix), name)
    if (c->inner_norm) b->inner = add_norm(ps, MHLA_NORM_LAYER, D, NAME("norm"));
    if (focused) {
        b->mix = mhla_params_add(ps, NAME("scale"), MHLA_SHAPE(1, 1, D), MHLA_PARAM_DECAY);
        b->position = mhla_params_add(ps, NAME("positional_encoding"), MHLA_SHAPE(1, T, D), MHLA_PARAM_DECAY);
    }
    if (pointwise)
        b->qkv = mhla_part_pointwise(ps, (c->gate ? 4 : 3) * D, D, c->qkv_bias, c->gate ? NAME("qkvo") : NAME("qkv"));
    else
        b->qkv = mhla_part_linear(ps, 3 * D, D, c->qkv_bias, ours ? NAME("to_qkv") : NAME("qkv"));
    if (c->qk_norm) {
        b->q_norm = mhla_params_add(ps, NAME("q_norm.weight"), MHLA_SHAPE(D), 0);
        b->k_norm = mhla_params_add(ps, NAME("k_norm.weight"), MHLA_SHAPE(D), 0);
    }
    if (c->lepe && own) {
        const int64_t k2 = (int64_t)c->lepe * c->lepe;
        b->squeeze = mhla_part_grouped(ps, D, K, NAME("residual.0"));
        b->widen = mhla_part_grouped(ps, k2 * D, K, NAME("residual.2"));
    } else if (c->lepe) {
        b->lepe = mhla_part_depthwise(ps, focused ? K : D, c->lepe, focused ? NAME("dwc") : NAME("lepe"));
    }
    if (c->attention == MHLA_ATTENTION_MHLA)
        b->mix = mhla_part_mix(ps, M, c->structure, NAME("piece_attn.conv.weight"));
    if (pointwise)
        b->out = mhla_part_pointwise(ps, D, D, 1, NAME("proj"));
    else
        b->out = mhla_part_linear(ps, D, D, 1, ours ? NAME("to_out.0") : NAME("proj"));
#undef NAME
}

/* In the order of the published lists. */
static void add_block(block *b, mhla_params *ps, const mhla_deit_config *c, int i) {
    char name[64];
    const int64_t D = c->dim, hidden = (int64_t)(c->dim * c->mlp_ratio);
#define NAME(suffix) (snprintf(name, sizeof name, "blocks.%d.%s", i, suffix), name)
    if (c->cpe) b->cpe = mhla_part_depthwise(ps, D, c->cpe, NAME("cpe"));
    b->norm1 = add_norm(ps, c->norm, D, NAME("norm1"));
    add_attention(b, ps, c, i);
    b->norm2 = add_norm(ps, c->norm, D, NAME("norm2"));
    b->fc1 = mhla_part_linear(ps, hidden, D, 1, NAME("mlp.fc1"));
    b->fc2 = mhla_part_linear(ps, D, hidden, 1, NAME("mlp.fc2"));
#undef NAME
}

/* Token 0 is block 0; the grid behind it is cut at floor(i g / b) on each axis, as a plan with a grid is. */
static mhla_status plan_with_class(mhla_plan **plan, mhla_plan_desc *desc, const int grid[2], const int blocks[2]) {
    const int H = grid[0], W = grid[1], T = 1 + H * W;
    int64_t *offsets = malloc((size_t)(blocks[0] * blocks[1] + 2) * sizeof *offsets);
    int32_t *order = malloc((size_t)T * sizeof *order);
    mhla_status status = offsets && order ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of %d tokens", T);
    if (status == MHLA_OK) {
        int64_t M = 0, n = 0;
        offsets[M++] = 0;
        order[n++] = 0;
        for (int i = 0; i < blocks[0]; i++)
            for (int j = 0; j < blocks[1]; j++) {
                offsets[M++] = n;
                for (int y = i * H / blocks[0]; y < (i + 1) * H / blocks[0]; y++)
                    for (int x = j * W / blocks[1]; x < (j + 1) * W / blocks[1]; x++) order[n++] = 1 + y * W + x;
            }
        offsets[M] = T;
        desc->n_blocks = M;
        desc->n_tokens = T;
        desc->block_offsets = offsets;
        desc->permutation = order;
        status = mhla_plan_create(plan, desc);
    }
    free(offsets);
    free(order);
    return status;
}

static mhla_grid_attention attention_of(const mhla_deit_config *c) {
    return (mhla_grid_attention){c->attention, c->dim,         c->heads, c->feature_eps,
                                 c->den_eps,   c->denominator, c->rope,  c->power};
}

static mhla_status make_plan(mhla_deit *m) {
    const mhla_deit_config *c = &m->config;
    const mhla_grid_attention kind = attention_of(c);
    mhla_plan_desc desc = mhla_grid_attention_plan(&kind);
    if (c->attention == MHLA_ATTENTION_MHLA) {
        if (c->class_token) return plan_with_class(&m->plan, &desc, m->grid, c->blocks);
        desc.axes = 2;
        for (int a = 0; a < 2; a++) {
            desc.grid[a] = m->grid[a];
            desc.blocks[a] = c->blocks[a];
        }
    }
    return mhla_plan_create(&m->plan, &desc);
}

/* n = K/4 frequencies of 10000^(-i/(n-1)) for rows and as many for columns: the last is 1/10000 itself, so that the usual
 * base^(-i/n) has another base. A class token, which has no place in the image, does not turn. */
static mhla_status make_rope(mhla_deit *m) {
    const mhla_deit_config *c = &m->config;
    const int K = c->dim / c->heads, dims[2] = {K / 2, K / 2}, n = K / 4;
    const int64_t T = mhla_deit_tokens(c), half = K / 2, first = c->class_token * half;
    m->cos = mhla_alloc((size_t)(2 * T * half) * sizeof *m->cos);
    if (m->cos == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a rotary table of %lld rows", (long long)T);
    m->sin = m->cos + T * half;
    for (int64_t j = 0; j < first; j++) {
        m->cos[j] = 1.0f;
        m->sin[j] = 0.0f;
    }
    return mhla_rope_table(m->cos + first, m->sin + first, 2, m->grid, dims,
                           n > 1 ? pow(10000.0, (double)n / (n - 1)) : 10000.0);
}

mhla_status mhla_deit_create(mhla_deit **model, const mhla_deit_config *config) {
    *model = NULL;
    MHLA_TRY(mhla_deit_config_check(config));
    mhla_deit *m = calloc(1, sizeof *m);
    block *blocks = calloc((size_t)config->depth, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", config->depth);
    }
    m->config = *config;
    m->blocks = blocks;
    const mhla_deit_config *c = &m->config;
    const int64_t D = c->dim, p = c->patch;
    for (int a = 0; a < 2; a++) m->grid[a] = (c->image[a] + 2 * c->padding[a]) / c->patch;
    const int64_t T = mhla_deit_tokens(c);
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) {
        mhla_params *ps = m->params;
        if (c->class_token) m->cls_token = mhla_params_add(ps, "cls_token", MHLA_SHAPE(1, 1, D), 0);
        m->pos_embed = mhla_params_add(ps, "pos_embed", MHLA_SHAPE(1, T, D), 0);
        m->patch.w = mhla_params_add(ps, "patch_embed.proj.weight", MHLA_SHAPE(D, c->channels, p, p), MHLA_PARAM_DECAY);
        m->patch.b = mhla_params_add(ps, "patch_embed.proj.bias", MHLA_SHAPE(D), 0);
        for (int i = 0; i < c->depth; i++) {
            m->blocks[i].model = m;
            add_block(&m->blocks[i], ps, c, i);
        }
        m->norm = add_norm(ps, c->norm, D, c->class_token ? "norm" : "fc_norm");
        m->head = mhla_part_linear(ps, c->classes, D, 1, "head");
        status = mhla_params_status(ps);
    }
    if (status == MHLA_OK) status = make_plan(m);
    if (status == MHLA_OK && c->rope) status = make_rope(m);
    if (status != MHLA_OK) {
        mhla_deit_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_deit_free(mhla_deit *m) {
    if (m == NULL) return;
    mhla_plan_free(m->plan);
    mhla_free(m->cos);
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

const mhla_deit_config *mhla_deit_config_of(const mhla_deit *m) { return &m->config; }
mhla_params *mhla_deit_params(const mhla_deit *m) { return m->params; }

/* The mixing matrix by distance between blocks. A class token is near to all of them: it takes from each alike, and a
 * block takes from it with the weight that it has for itself, its row summing up as before. */
static mhla_status init_mix(mhla_param *p, const mhla_deit_config *c) {
    const int64_t M = blocks_of(c), first = c->class_token;
    MHLA_TRY(mhla_mix_fill(p->data, (mhla_mix_init)c->mix, 2, c->blocks, 0.0));
    /* [M-1,M-1] grows to [M,M], from its end, because both are in the same place */
    for (int64_t i = M - 1; first && i > 0; i--) {
        const float *old = p->data + (i - 1) * (M - 1);
        float *row = p->data + i * M;
        double sum = 0.0;
        for (int64_t b = 0; b < M - 1; b++) sum += (double)old[b];
        const double own = (double)old[i - 1], scale = sum / (sum + own);
        for (int64_t b = M - 1; b > 0; b--) row[b] = (float)(scale * (double)old[b - 1]);
        row[0] = (float)(scale * own);
    }
    for (int64_t b = 0; first && b < M; b++) p->data[b] = (float)(1.0 / (double)M);
    mhla_param_touch(p);
    return MHLA_OK;
}

/* Linear layers and embeddings: truncated normal 0.02; convolutions: PyTorch's default, but normal 0.02 in the attention of
 * MALA and RALA; norms 1, biases 0, and so what Focused LA adds to its keys and scales by. */
mhla_status mhla_deit_init_param(mhla_deit *m, mhla_param *p, uint64_t seed) {
    const mhla_deit_config *c = &m->config;
    const size_t n = strlen(p->name);
    const int bias = n > 5 && strcmp(p->name + n - 5, ".bias") == 0;
    const int64_t patch_fan = (int64_t)c->channels * c->patch * c->patch;
    if (p->flags & MHLA_PARAM_MIX) {
        return init_mix(p, c);
    } else if (strncmp(p->name, "patch_embed.", 12) == 0) {
        mhla_init_torch(p, seed, patch_fan);
    } else if (strstr(p->name, ".attn.scale") || strstr(p->name, ".positional_encoding")) {
        mhla_init_constant(p, 0.0f);
    } else if (strstr(p->name, ".residual.")) {
        mhla_init_torch(p, seed, c->dim / c->heads);
    } else if (strstr(p->name, ".dwc.") || (strstr(p->name, ".lepe.") && c->attention < MHLA_ATTENTION_FOCUSED)) {
        mhla_init_torch(p, seed, (int64_t)c->lepe * c->lepe);
    } else if (strstr(p->name, ".cpe.")) {
        mhla_init_torch(p, seed, (int64_t)c->cpe * c->cpe);
    } else if (p->dims == 1) {
        mhla_init_constant(p, bias ? 0.0f : 1.0f);
    } else {
        mhla_init_trunc_normal(p, seed, 0.02);
    }
    return MHLA_OK;
}

mhla_status mhla_deit_init(mhla_deit *m, uint64_t seed) {
    for (int i = 0; i < mhla_params_count(m->params); i++)
        MHLA_TRY(mhla_deit_init_param(m, mhla_params_at(m->params, i), seed));
    return MHLA_OK;
}

/* ---- Forward: x is [B,T,D] throughout ------------------------------------------------------------------------------ */

static mhla_tensor *normalise(mhla_tape *t, const mhla_deit_config *c, norm n, mhla_tensor *x) {
    return c->norm == MHLA_NORM_RMS ? mhla_nn_rms_norm(t, n.w, (float)c->norm_eps, 0, x)
                                    : mhla_nn_layer_norm(t, n.w, n.b, (float)c->norm_eps, x);
}

/* residual (NULL: 0) + the depthwise convolution of x on the grid of patches, by l or, with kernels [B,k*k*D] of their own, by
 * each image's; a class token in front stays out of it. */
static mhla_tensor *local(mhla_tape *t, const mhla_deit *m, layer l, mhla_tensor *own, mhla_tensor *residual,
                          mhla_tensor *x) {
    const int64_t H = m->grid[0], W = m->grid[1];
    return own ? mhla_nn_depthwise_own(t, own, m->config.lepe, H, W, residual, x)
               : mhla_nn_depthwise(t, l.w, l.b, H, W, residual, x);
}

/* x + the last linear layer of a branch; in training the branch may be dropped for a sample. */
static mhla_tensor *join(mhla_tape *t, const block *b, layer l, mhla_tensor *x, mhla_tensor *branch) {
    return mhla_nn_linear_drop(t, b->drop_path, l.w, l.b, x, branch);
}

/* InLine: the kernels of each image, from the mean of its tokens, each head for itself. */
static mhla_tensor *predict_kernels(mhla_tape *t, const block *b, mhla_tensor *h) {
    const int heads = b->model->config.heads;
    mhla_tensor *u = mhla_nn_grouped_linear(t, b->squeeze.w, b->squeeze.b, heads, mhla_nn_mean_tokens(t, h));
    return mhla_nn_grouped_linear(t, b->widen.w, b->widen.b, heads, mhla_nn_activation(t, MHLA_ACT_GELU_ERF, u));
}

/* q, k, v of every token; q and k normalised; the operator, added onto what a convolution makes of v; times the gate. */
static mhla_tensor *attention(mhla_tape *t, const block *b, mhla_tensor *h) {
    const mhla_deit_config *c = &b->model->config;
    const int64_t D = c->dim;
    if (c->inner_norm) h = mhla_nn_layer_norm(t, b->inner.w, b->inner.b, 1e-5f, h);
    mhla_tensor *qkv = mhla_nn_linear(t, b->qkv.w, b->qkv.b, MHLA_ACT_NONE, NULL, h);
    mhla_tensor *q = mhla_nn_slice(t, qkv, 0, D), *k = mhla_nn_slice(t, qkv, D, D),
                *v = mhla_nn_slice(t, qkv, 2 * D, D);
    if (c->qk_norm) {
        q = mhla_nn_rms_norm(t, b->q_norm, (float)c->qk_norm_eps, 0, q);
        k = mhla_nn_rms_norm(t, b->k_norm, (float)c->qk_norm_eps, 0, k);
    }
    if (b->position) k = mhla_nn_add_position(t, b->position, k);
    mhla_tensor *own = b->widen.w ? predict_kernels(t, b, h) : NULL;
    mhla_tensor *lepe = c->lepe ? local(t, b->model, b->lepe, own, NULL, v) : NULL;
    const mhla_call rope = {.rope_cos = b->model->cos, .rope_sin = b->model->sin, .rope_rows = q ? q->shape[1] : 0};
    mhla_tensor *o = mhla_nn_attention_onto(t, b->model->plan, c->rope ? &rope : NULL, b->mix, lepe, q, k, v);
    return c->gate ? mhla_nn_mul(t, o, mhla_nn_slice(t, qkv, 3 * D, D)) : o;
}

mhla_tensor *mhla_deit_attention(mhla_tape *t, const mhla_deit *m, int i, mhla_tensor *x) {
    const block *b = &m->blocks[i];
    return mhla_nn_linear(t, b->out.w, b->out.b, MHLA_ACT_NONE, NULL, attention(t, b, x));
}

static mhla_tensor *mlp(mhla_tape *t, const block *b, mhla_tensor *x, mhla_tensor *h) {
    return join(t, b, b->fc2, x, mhla_nn_linear(t, b->fc1.w, b->fc1.b, MHLA_ACT_GELU_ERF, NULL, h));
}

static mhla_tensor *transformer_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const mhla_deit_config *c = &b->model->config;
    if (c->cpe) x = local(t, b->model, b->cpe, NULL, x, x);
    x = join(t, b, b->out, x, attention(t, b, normalise(t, c, b->norm1, x)));
    x = mlp(t, b, x, normalise(t, c, b->norm2, x));
    return x;
}

mhla_tensor *mhla_deit_forward(mhla_tape *t, mhla_deit *m, const mhla_deit_run *run, mhla_tensor *images) {
    const mhla_deit_config *c = &m->config;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = images;
    if (c->padding[0] || c->padding[1])
        x = mhla_nn_pad_image(t, c->padding[0], c->padding[0], c->padding[1], c->padding[1], x);
    x = mhla_nn_patch_embed(t, m->patch.w, m->patch.b, x);
    if (c->class_token) x = mhla_nn_prepend(t, m->cls_token, x);
    x = mhla_nn_add_position(t, m->pos_embed, x);
    for (int i = 0; i < c->depth; i++) {
        block *b = &m->blocks[i];
        b->drop_path = c->depth > 1 ? run->drop_path * (float)i / (float)(c->depth - 1) : 0.0f;
        x = run->recompute ? mhla_nn_checkpoint(t, transformer_block, b, x) : transformer_block(t, b, x);
        if (run->trace)
            run->trace[i] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    if (c->class_token) x = normalise(t, c, m->norm, x);
    if (run->trace) run->trace[c->depth] = x;
    if (c->class_token)
        x = mhla_nn_reshape(t, mhla_nn_slice_tokens(t, x, 0, 1), MHLA_SHAPE(images->shape[0], c->dim));
    else
        x = normalise(t, c, m->norm, mhla_nn_mean_tokens(t, x));
    if (run->features) *run->features = x;
    return mhla_nn_linear(t, m->head.w, m->head.b, MHLA_ACT_NONE, NULL, x);
}

/* ---- What one image costs ---------------------------------------------------------------------------------------------- */

static int64_t tokens(const mhla_deit_config *c, int padded) {
    int64_t T = 1;
    for (int a = 0; a < 2; a++) T *= (c->image[a] + (padded ? 2 * c->padding[a] : 0)) / c->patch;
    return T + c->class_token;
}

int64_t mhla_deit_tokens(const mhla_deit_config *c) { return tokens(c, 1); }

int64_t mhla_deit_multiply_adds(const mhla_deit_config *c, int as_paper) {
    const int64_t T = tokens(c, !as_paper), D = c->dim, hidden = (int64_t)(D * c->mlp_ratio);
    const int64_t M = blocks_of(c), patches = T - c->class_token;
    const int64_t lepe = (int64_t)c->lepe * c->lepe;
    int64_t each = T * D * ((c->gate ? 4 : 3) * D + D + 2 * hidden); /* qkv and gate, out, fc1, fc2 */
    each += patches * D * (lepe + (int64_t)c->cpe * c->cpe);
    if (c->attention == MHLA_ATTENTION_INLINE && lepe) each += D * (D / c->heads) * (1 + lepe); /* the kernels */
    const mhla_grid_attention kind = attention_of(c);
    if (!as_paper) each += mhla_grid_attention_cost(&kind, T, M) + (c->gate ? T * D : 0);
    return patches * c->channels * c->patch * c->patch * D + c->depth * each + D * c->classes;
}
