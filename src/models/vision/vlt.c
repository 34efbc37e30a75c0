/* VLT: convolutions make a grid of tokens a quarter of the image's side, four stages of transformer blocks work on it, and
 * between them it shrinks by two. Attention is global in every stage; in the first two, where tokens are many, it is linear.
 * vlt_config.c has the choices. x is [B,H*W,C] throughout.
 *
 *   x = stem(image)
 *   x = x + pos(x)                                   depthwise 3x3
 *   x = x + gamma_1 attention(norm1(x))
 *   x = x + gamma_2 ffn(norm2(x))                    ffn: fc2(u + dwconv(u)), u = gelu(fc1(x))
 *   x = batch_norm(reduction(x))                     between stages, stride 2
 *   logits = head(mean(silu(batch_norm(proj(x))))) */
#include "models/vision/vlt.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"

enum { STEM = 4, STAGES = MHLA_VLT_STAGES };

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

/* A 3x3 convolution, padding 1, with a batch norm behind it. */
typedef struct reduction {
    mhla_layer conv;
    mhla_batch_norm norm;
    int stride;
} reduction;

typedef struct stage stage;

typedef struct block {
    const stage *stage;
    float drop_path;
    mhla_param *gamma_1, *gamma_2; /* [1,C,1,1]; NULL without layer scale */
    mhla_layer norm1, norm2;       /* [C] */
    mhla_grid_attention attn;
    mhla_layer fc1, fc2, dwconv, pos; /* [F,C,1,1], [C,F,1,1], [F,1,3,3], [C,1,3,3] */
} block;

struct stage {
    mhla_grid_settings settings;
    mhla_grid_place place;
    block *blocks;
    reduction downsample; /* not of the last */
};

struct mhla_vlt {
    mhla_vlt_config config;
    mhla_params *params;
    reduction stem[STEM];
    stage stages[STAGES];
    mhla_layer proj, head;
    mhla_batch_norm norm;
    int depth; /* blocks in all */
};

static const mhla_initial usual = {.kind = MHLA_INITIAL_TRUNC_NORMAL, .number = 0.02};

static int hidden(const mhla_vlt_config *c, int s) { return (int)(c->mlp_ratios[s] * c->dims[s]); }

/* Each frequency twice, for the pair that it turns. */
static mhla_status fill_angle(mhla_param *p, const void *of) {
    const mhla_grid_settings *s = of;
    for (int64_t i = 0; i < p->count; i++) p->data[i] = (float)mhla_grid_frequency(s->dim / s->heads, (int)(i / 2));
    return MHLA_OK;
}

static mhla_param *add_gamma(mhla_params *ps, const mhla_vlt_config *c, int s, const char *name) {
    const mhla_initial start = {.kind = MHLA_INITIAL_CONSTANT, .number = c->layer_scale[s]};
    if (c->layer_scale[s] == 0.0) return NULL;
    return mhla_params_add(ps, name, MHLA_SHAPE(1, c->dims[s], 1, 1), MHLA_PARAM_DECAY, start);
}

/* In the order of the published lists. */
static void add_block(mhla_vlt *m, int s, int i) {
    const mhla_vlt_config *c = &m->config;
    mhla_params *ps = m->params;
    block *b = &m->stages[s].blocks[i];
    const int64_t C = c->dims[s], F = hidden(c, s);
    char name[80];
#define NAME(suffix) (snprintf(name, sizeof name, "layers.%d.blocks.%d.%s", s, i, suffix), name)
    b->gamma_1 = add_gamma(ps, c, s, NAME("gamma_1"));
    b->gamma_2 = add_gamma(ps, c, s, NAME("gamma_2"));
    b->norm1 = mhla_layer_norm(ps, C, 1, NAME("norm1.norm"));
    mhla_grid_declare(&b->attn, ps, &m->stages[s].settings, NAME("attn"));
    b->norm2 = mhla_layer_norm(ps, C, 1, NAME("norm2.norm"));
    b->fc1 = mhla_layer_pointwise(ps, F, C, 1, usual, NAME("ffn.fc1"));
    b->fc2 = mhla_layer_pointwise(ps, C, F, 1, usual, NAME("ffn.fc2"));
    b->dwconv = mhla_layer_depthwise(ps, F, 3, usual, NAME("ffn.dwconv"));
    b->pos = mhla_layer_depthwise(ps, C, 3, usual, NAME("pos"));
#undef NAME
}

static void add_stage(mhla_vlt *m, int s) {
    const mhla_vlt_config *c = &m->config;
    mhla_params *ps = m->params;
    stage *g = &m->stages[s];
    const mhla_initial angle = {.kind = MHLA_INITIAL_CALL, .fill = fill_angle, .of = &g->settings};
    char name[80];
    for (int i = 0; i < c->depths[s]; i++) {
        g->blocks[i].stage = g;
        add_block(m, s, i);
    }
    if (c->rope)
        mhla_params_addf(ps, MHLA_SHAPE(c->dims[s] / c->heads[s] / 2), MHLA_PARAM_BUFFER | MHLA_PARAM_FROZEN, angle,
                         "layers.%d.RoPE.angle", s);
    if (s == STAGES - 1) return;
    snprintf(name, sizeof name, "layers.%d.downsample.reduction", s);
    g->downsample.conv = mhla_layer_conv(ps, c->dims[s + 1], c->dims[s], 3, usual, name);
    snprintf(name, sizeof name, "layers.%d.downsample.norm", s);
    g->downsample.norm = mhla_layer_batch_norm(ps, c->dims[s + 1], name);
    g->downsample.stride = 2;
}

static void add_all(mhla_vlt *m) {
    const mhla_vlt_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t half = c->dims[0] / 2;
    char name[80];
    for (int i = 0; i < STEM; i++) {
        reduction *r = &m->stem[i];
        snprintf(name, sizeof name, "patch_embed.proj.%d", 3 * i);
        r->conv = mhla_layer_conv(ps, i < STEM - 1 ? half : c->dims[0], i ? half : c->channels, 3, usual, name);
        snprintf(name, sizeof name, "patch_embed.proj.%d", 3 * i + 1);
        r->norm = mhla_layer_batch_norm(ps, i < STEM - 1 ? half : c->dims[0], name);
        r->stride = i == 0 || i == STEM - 1 ? 2 : 1;
    }
    for (int s = 0; s < STAGES; s++) add_stage(m, s);
    m->proj = mhla_layer_pointwise(ps, c->projection, c->dims[STAGES - 1], 1, usual, "proj");
    m->norm = mhla_layer_batch_norm(ps, c->projection, "norm");
    m->head = mhla_layer_pointwise(ps, c->classes, c->projection, 1, usual, "head");
}

static mhla_status make(mhla_vlt *m) {
    const mhla_vlt_config *c = &m->config;
    MHLA_TRY(mhla_params_create(&m->params));
    for (int s = 0; s < STAGES; s++) {
        stage *g = &m->stages[s];
        g->settings = mhla_vlt_attention_of(c, s);
        g->blocks = calloc((size_t)c->depths[s], sizeof *g->blocks);
        if (g->blocks == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", c->depths[s]);
        m->depth += c->depths[s];
    }
    add_all(m);
    MHLA_TRY(mhla_params_status(m->params));
    for (int s = 0; s < STAGES; s++) {
        int grid[2];
        mhla_vlt_grid(grid, c, s);
        MHLA_TRY(mhla_grid_place_make(&m->stages[s].place, &m->stages[s].settings, grid[0], grid[1]));
    }
    return MHLA_OK;
}

mhla_status mhla_vlt_create(mhla_vlt **model, const mhla_vlt_config *config) {
    *model = NULL;
    MHLA_TRY(mhla_vlt_config_check(config));
    mhla_vlt *m = calloc(1, sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    m->config = *config;
    const mhla_status status = make(m);
    if (status != MHLA_OK) {
        mhla_vlt_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_vlt_free(mhla_vlt *m) {
    if (m == NULL) return;
    for (int s = 0; s < STAGES; s++) {
        mhla_grid_place_free(&m->stages[s].place);
        free(m->stages[s].blocks);
    }
    mhla_params_free(m->params);
    free(m);
}

const mhla_vlt_config *mhla_vlt_config_of(const mhla_vlt *m) { return &m->config; }
mhla_params *mhla_vlt_params(const mhla_vlt *m) { return m->params; }

/* ---- Forward ------------------------------------------------------------------------------------------------------- */

/* *H and *W become those of the result. */
static mhla_tensor *reduce(mhla_tape *t, const reduction *r, mhla_activation activation, int grid[2], mhla_tensor *x) {
    x = mhla_nn_conv(t, r->conv.w, r->conv.b, (mhla_conv){.H = grid[0], .W = grid[1], .stride = r->stride, .pad = 1},
                     x);
    for (int a = 0; a < 2; a++) grid[a] = (grid[a] + r->stride - 1) / r->stride;
    return mhla_nn_batch_norm(t, &r->norm, activation, x);
}

/* x + gamma times the last linear layer of a branch; in training the branch may be dropped for a sample. */
static mhla_tensor *join(mhla_tape *t, const block *b, mhla_param *gamma, mhla_layer l, mhla_tensor *x,
                         mhla_tensor *branch) {
    if (gamma == NULL) return mhla_nn_linear_drop(t, b->drop_path, l.w, l.b, x, branch);
    return mhla_nn_scaled_add(t, b->drop_path, gamma, x, mhla_nn_linear(t, l.w, l.b, MHLA_ACT_NONE, NULL, branch));
}

static mhla_tensor *ffn(mhla_tape *t, const block *b, const mhla_grid_place *g, mhla_tensor *h) {
    mhla_tensor *u = mhla_nn_linear(t, b->fc1.w, b->fc1.b, MHLA_ACT_GELU_ERF, NULL, h);
    return mhla_nn_depthwise(t, b->dwconv.w, b->dwconv.b, g->H, g->W, u, u);
}

static mhla_tensor *transformer_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const mhla_grid_place *g = &b->stage->place;
    x = mhla_nn_depthwise(t, b->pos.w, b->pos.b, g->H, g->W, x, x);
    mhla_tensor *h = mhla_nn_layer_norm(t, b->norm1.w, b->norm1.b, 1e-6f, x);
    x = join(t, b, b->gamma_1, b->attn.out, x, mhla_grid_forward(t, &b->attn, g, h));
    h = mhla_nn_layer_norm(t, b->norm2.w, b->norm2.b, 1e-6f, x);
    return join(t, b, b->gamma_2, b->fc2, x, ffn(t, b, g, h));
}

mhla_tensor *mhla_vlt_forward(mhla_tape *t, mhla_vlt *m, const mhla_network_run *run, mhla_tensor *images) {
    const mhla_vlt_config *c = &m->config;
    const mhla_mark mark = mhla_tape_mark(t);
    int grid[2] = {c->image[0], c->image[1]}, n = 0;
    mhla_tensor *x = mhla_nn_patches(t, 1, images); /* channels last */
    for (int i = 0; i < STEM; i++) {
        x = reduce(t, &m->stem[i], i < STEM - 1 ? MHLA_ACT_GELU_ERF : MHLA_ACT_NONE, grid, x);
        if (!run->trace) x = mhla_tape_release(t, mark, x);
    }
    for (int s = 0; s < STAGES; s++) {
        stage *g = &m->stages[s];
        for (int i = 0; i < c->depths[s]; i++, n++) {
            block *b = &g->blocks[i];
            b->drop_path = m->depth > 1 ? run->drop_path * (float)n / (float)(m->depth - 1) : 0.0f;
            x = run->recompute ? mhla_nn_checkpoint(t, transformer_block, b, x) : transformer_block(t, b, x);
            if (run->trace)
                run->trace[n] = x;
            else
                x = mhla_tape_release(t, mark, x);
        }
        if (s < STAGES - 1) x = reduce(t, &g->downsample, MHLA_ACT_NONE, grid, x);
    }
    x = mhla_nn_linear(t, m->proj.w, m->proj.b, MHLA_ACT_NONE, NULL, x);
    x = mhla_nn_batch_norm(t, &m->norm, MHLA_ACT_SILU, x);
    if (run->trace) run->trace[n] = x;
    x = mhla_nn_mean_tokens(t, x);
    if (run->features) *run->features = x;
    return mhla_nn_linear(t, m->head.w, m->head.b, MHLA_ACT_NONE, NULL, x);
}

/* ---- What one image costs ---------------------------------------------------------------------------------------------- */

int64_t mhla_vlt_multiply_adds(const mhla_vlt_config *c, int as_paper) {
    const int64_t half = c->dims[0] / 2;
    int grid[2];
    mhla_vlt_grid(grid, c, -1);
    int64_t all = 9 * half * (c->channels + 2 * half) * grid[0] * grid[1];
    for (int s = 0; s < STAGES; s++) {
        const mhla_grid_settings a = mhla_vlt_attention_of(c, s);
        const int64_t C = c->dims[s], F = hidden(c, s), before = s ? c->dims[s - 1] : half;
        mhla_vlt_grid(grid, c, s);
        const int64_t T = (int64_t)grid[0] * grid[1];
        all += 9 * before * C * T; /* the convolution that makes the grid */
        all += c->depths[s] * (mhla_grid_cost(&a, T, T, as_paper) + T * (9 * C + 2 * C * F + 9 * F));
    }
    return all + (int64_t)grid[0] * grid[1] * c->dims[STAGES - 1] * c->projection + (int64_t)c->projection * c->classes;
}
