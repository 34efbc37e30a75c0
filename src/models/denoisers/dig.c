/* DiG: a DiT whose attention is GLA, which reads tokens one after the other. So that every token is reached from all sides, each
 * block reads the grid in another direction: after a block the tokens are reversed, after every second one the grid is also
 * transposed. With MHLA in the place of GLA the direction does not matter, because blocks of tokens are read at once. frame.h has
 * the model; here are its choices, its MLP, the directions and the convolution that ends a block.
 *
 *   mlp(h) = down_proj (silu(a) b),  [a, b] = gate_proj h
 *   x = depthwise(x), on the grid in its present order */
#include "models/denoisers/dig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* ---- Presets -------------------------------------------------------------------------------------------------- */

#define PRESETS "dig_nano|dig_micro|dig_s|dig_b|dig_l|dig_xl"

/* The published sizes, all of patch 2, see latents of 32 x 32 x 4, images of 256 x 256; the small ones see pixels. */
static const mhla_frame_size sizes[] = {
    {"dig_nano", 32, 3, 2, 192, 8, 3, 10, 4},   {"dig_micro", 32, 3, 2, 96, 4, 3, 10, 4},
    {"dig_s", 32, 4, 2, 384, 12, 6, 1000, 4},   {"dig_b", 32, 4, 2, 768, 12, 12, 1000, 4},
    {"dig_l", 32, 4, 2, 1024, 24, 16, 1000, 4}, {"dig_xl", 32, 4, 2, 1152, 28, 18, 1000, 4},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static const int grid_kinds[] = {MHLA_GRID_GLA, MHLA_GRID_GLA_MHLA, MHLA_GRID_MHLA};

mhla_status mhla_dig_preset(mhla_frame_config *c, const char *model, int attention, int process) {
    MHLA_TRY(mhla_frame_preset(c, sizes, SIZES, "dig_nano, dig_micro and dig_{s,b,l,xl}", model, process));
    c->attention = attention;
    c->attn.attention = grid_kinds[attention];
    c->cpe = MHLA_CPE_GRID;
    c->scan = attention == MHLA_DIG_GLA ? MHLA_SCAN_FOUR : MHLA_SCAN_RASTER;
    if (attention != MHLA_DIG_MHLA_DIT) {
        mhla_grid_preset(&c->attn);
        c->attn.weights.number = exp2(-2.5); /* as flash-linear-attention starts the layer */
        return MHLA_OK;
    }
    c->dropout = 0.1;
    c->attn.inner_norm = c->attn.qkv_bias = 1;
    c->attn.lepe = 3;
    c->attn.denominator = MHLA_DEN_RELEASED;
    c->attn.mix = MHLA_MIX_RELEASED_LINEAR;
    c->attn.mix_low = 0.0;
    return MHLA_OK;
}

static mhla_status preset(mhla_frame_config *c, const mhla_frame_config *chosen) {
    return mhla_dig_preset(c, chosen->model, chosen->attention, chosen->process);
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

#define F MHLA_FRAME_FIELD
static const mhla_setting fields[] = {
    F("model", TEXT, TEXT, model, 0, 0, PRESETS, "the preset that sizes come from"),
    F("attention", TEXT, CHOICE, attention, 0, 0, "gla|mhla|mhla-dit",
      "GLA; MHLA with GLA's projections and gate; or the attention of MHLA's released DiT"),
    MHLA_FRAME_SIZES(F),
    F("mlp_hidden", INT, INT, mlp_hidden, 0, 1 << 20, NULL,
      "hidden width of the MLP, 0 two thirds of 4 dim, up to a multiple of 256"),
    MHLA_FRAME_ANSWER(F),
    F("scan", TEXT, CHOICE, scan, 0, 0, "raster|four",
      "GLA: each block reads rows forward, or blocks alternate with rows backward and columns"),
    F("cpe", TEXT, CHOICE, cpe, 0, 0, "none|grid", "3x3 convolution at the end of each block"),
    F("gate", BOOL, BOOL, attn.gate, 0, 0, NULL, "the normed output of the attention times silu of a projection"),
    F("expand_k", REAL, REAL, attn.expand_k, 0, 16, NULL, "width of keys over dim (0.5; mhla-dit none: 0)"),
    F("expand_v", REAL, REAL, attn.expand_v, 0, 16, NULL, "width of values over dim (1; mhla-dit none: 0)"),
    F("gate_low_rank_dim", INT, INT, attn.rank, 0, 4096, NULL, "GLA: rank of the matrices of the decays (16)"),
    F("gate_logit_normalizer", REAL, REAL, attn.divisor, 0, 1e6, NULL, "GLA: log-decays are divided by this (16)"),
    F("lepe", INT, INT, attn.lepe, 0, 31, NULL, "mhla-dit: kernel of the convolution of v added to the attention (3)"),
    MHLA_FRAME_MHLA(F),
};
#undef F
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_frame_config, channels)};

static const mhla_recipe_row *rows(void) { return mhla_settings_rows(&table); }

static void settle(mhla_frame_config *c) {
    if (c->mlp_hidden == 0) c->mlp_hidden = (8 * c->attn.dim / 3 + 255) / 256 * 256;
}

static mhla_status check(const mhla_frame_config *c, int64_t H, int64_t W) {
    const mhla_grid_settings *s = &c->attn;
    const int gla = c->attention == MHLA_DIG_GLA, own = c->attention != MHLA_DIG_MHLA_DIT;
    (void)H, (void)W;
    if (c->mlp_hidden < 1) return mhla_fail(MHLA_EINVAL, "mlp_hidden is %d: expected 1 or more", c->mlp_hidden);
    if (own && s->lepe) return mhla_fail(MHLA_EINVAL, "lepe is %d: only the attention mhla-dit has one", s->lepe);
    if (!own && (s->expand_k != 0.0 || s->expand_v != 0.0))
        return mhla_fail(MHLA_EINVAL, "%s is not 0: keys and values of mhla-dit are as wide as dim",
                         s->expand_k != 0.0 ? "expand_k" : "expand_v");
    if (gla ? s->rank < 1 || !(s->divisor > 0.0) : s->rank || s->divisor != 0.0)
        return mhla_fail(MHLA_EINVAL, "gate_low_rank_dim is %d and gate_logit_normalizer %g: %s", s->rank, s->divisor,
                         gla ? "GLA needs both above 0" : "MHLA has no decays, expected 0 and 0");
    return MHLA_OK;
}

/* ---- Directions ---- */

enum { DIRECTIONS = 4 };

/* Rows forward, rows backward, columns forward, columns backward: the token of an H x W grid that comes t-th, and its turn. */
static int token_at(int t, int direction, int H, int W) {
    const int at = direction % 2 ? H * W - 1 - t : t;
    return direction < 2 ? at : at % H * W + at / H;
}
static int turn_of(int token, int direction, int H, int W) {
    const int at = direction < 2 ? token : token % W * H + token / W;
    return direction % 2 ? H * W - 1 - at : at;
}

/* [4][T] the tokens in each direction, then [4][T] where they stood before the change to the next one. */
static int orders(const mhla_frame_config *c) { return c->scan == MHLA_SCAN_FOUR ? 2 * DIRECTIONS : 0; }
static void fill_order(int32_t *order, const mhla_frame_config *c, int H, int W) {
    const int T = H * W;
    (void)c;
    for (int d = 0; d < DIRECTIONS; d++)
        for (int t = 0; t < T; t++) {
            order[d * T + t] = token_at(t, d, H, W);
            order[(DIRECTIONS + d) * T + t] = turn_of(token_at(t, (d + 1) % DIRECTIONS, H, W), d, H, W);
        }
}

static mhla_tensor *arrange(mhla_tape *t, const mhla_frame_grid *g, const mhla_frame_config *c, int i, mhla_tensor *x) {
    const int T = g->place.H * g->place.W, d = (i - 1) % DIRECTIONS; /* of the block before */
    return c->scan == MHLA_SCAN_FOUR ? mhla_nn_reorder(t, g->order + (DIRECTIONS + d) * T, x) : x;
}

static void view(const mhla_frame *m, mhla_token_view *v) {
    const mhla_frame_grid *g = m->grids;
    while (g && (g->place.H != v->grid[0] || g->place.W != v->grid[1])) g = g->next;
    if (g == NULL || m->config.scan != MHLA_SCAN_FOUR) return;
    v->orders = g->order;
    v->cycle = DIRECTIONS;
}

/* ---- Network ---- */

static int64_t mlp_weights(const mhla_frame_config *c) { return 3 * (int64_t)c->attn.dim * c->mlp_hidden; }

static void declare_mlp(mhla_frame_block *b, mhla_params *ps, const mhla_frame_config *c, const char *name) {
    char full[80];
    snprintf(full, sizeof full, "%s.gate_proj", name);
    b->up = mhla_layer_matrix(ps, 2 * (int64_t)c->mlp_hidden, c->attn.dim, 0, MHLA_XAVIER, full);
    snprintf(full, sizeof full, "%s.down_proj", name);
    b->down = mhla_layer_matrix(ps, c->attn.dim, c->mlp_hidden, 0, MHLA_XAVIER, full);
}

static mhla_tensor *mlp(mhla_tape *t, const mhla_frame_block *b, mhla_tensor *h) {
    const int64_t hidden = b->down.w->shape[1];
    h = mhla_nn_linear(t, b->up.w, NULL, MHLA_ACT_NONE, NULL, h);
    h = mhla_nn_swiglu(t, mhla_nn_slice(t, h, 0, hidden), mhla_nn_slice(t, h, hidden, hidden));
    return mhla_nn_linear(t, b->down.w, NULL, MHLA_ACT_NONE, NULL, h);
}

static mhla_tensor *convolve(mhla_tape *t, const mhla_frame_call *a, mhla_tensor *x) {
    const int H = a->g->place.H, W = a->g->place.W;
    const int columns = a->model->config.scan == MHLA_SCAN_FOUR && a->index % DIRECTIONS >= 2;
    return mhla_nn_depthwise(t, a->b->cpe.w, a->b->cpe.b, columns ? W : H, columns ? H : W, NULL, x);
}

/* ---- Files ---- */

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

/* DiG comes as a bare file. Its heads are 64 wide where no norm of a head tells. */
static mhla_status guess(mhla_frame_config *c, const mhla_safetensors *file) {
    static const char *const presets[] = {"dig_s", "dig_b", "dig_l", "dig_xl"};
    const int attention = has(file, "blocks.0.attn.to_qkv.weight")            ? MHLA_DIG_MHLA_DIT
                          : has(file, "blocks.0.attn.piece_attn.conv.weight") ? MHLA_DIG_MHLA
                                                                              : MHLA_DIG_GLA;
    const int dim = c->attn.dim;
    const mhla_stored *part;
    mhla_grid_settings *s = &c->attn;
    int size = 0;
    for (; size < 4; size++) {
        MHLA_TRY(mhla_dig_preset(c, presets[size], attention, MHLA_PROCESS_LINEAR));
        if (s->dim == dim) break;
    }
    if (size == 4) {
        MHLA_TRY(mhla_dig_preset(c, presets[0], attention, MHLA_PROCESS_LINEAR));
        s->dim = dim;
        s->heads = dim < 64 ? 1 : dim / 64;
    }
    MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.mlp.down_proj.weight", 2));
    c->mlp_hidden = (int)part->shape[1];
    c->cpe = has(file, "blocks.0.dw_conv.weight") ? MHLA_CPE_GRID : MHLA_CPE_NONE;
    if (attention == MHLA_DIG_MHLA_DIT) {
        s->gate = has(file, "blocks.0.attn.g.weight");
        s->lepe = 0;
        if (!has(file, "blocks.0.attn.lepe.weight")) return MHLA_OK;
        MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.lepe.weight", 4));
        s->lepe = (int)part->shape[2];
        return MHLA_OK;
    }
    MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.q_proj.weight", 2));
    s->expand_k = (double)part->shape[0] / dim;
    MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.v_proj.weight", 2));
    s->expand_v = (double)part->shape[0] / dim;
    s->gate = has(file, "blocks.0.attn.g_proj.weight");
    const int64_t values = part->shape[0];
    MHLA_TRY(mhla_frame_need(&part, file,
                             s->gate ? "blocks.0.attn.g_norm_swish_gate.weight" : "blocks.0.attn.g_norm.weight", 1));
    if (values % part->shape[0] == 0) s->heads = (int)(values / part->shape[0]);
    if (attention != MHLA_DIG_GLA) return MHLA_OK;
    MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.gk_proj.0.weight", 2));
    if (part->shape[0] <= 4096) s->rank = (int)part->shape[0];
    return MHLA_OK;
}

const mhla_frame_kind mhla_dig_kind = {
    .name = "DiG",
    .model_type = "mhla_dig",
    .standard = "dig_nano",
    .table = &table,
    .first = 3,
    .preset = preset,
    .settle = settle,
    .check = check,
    .guess = guess,
    .orders = orders,
    .order = fill_order,
    .mlp_weights = mlp_weights,
    .declare_mlp = declare_mlp,
    .mlp = mlp,
    .convolve = convolve,
    .arrange = arrange,
    .view = view,
};

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_frame_config c = {0};
    MHLA_TRY(mhla_frame_from_recipe(&c, &mhla_dig_kind, given, prefix));
    if (c.scan == MHLA_SCAN_FOUR && c.attention != MHLA_DIG_GLA)
        return mhla_fail(MHLA_EINVAL,
                         "scan is four: MHLA reads blocks of the grid at once, scan raster. Weights that were "
                         "trained with four scans are converted to raster when they are opened");
    return mhla_frame_create((mhla_frame **)net, &mhla_dig_kind, &c);
}

static int fits(const mhla_evidence *e) {
    return mhla_frame_fits(e, "mhla_dig") && (e->config || has(e->file, "blocks.0.mlp.gate_proj.weight"));
}

/* ---- MHLA that was trained with four scans ----
 *
 * A block of tokens is a sum, so that its order does not count: to read the grid in another direction is to permute the blocks,
 * rows and columns of the mixing matrix, and to turn the kernels of convolutions. Weights that were trained so are changed once
 * instead, and the model then reads by rows. */

/* Blocks must lie on blocks, and the last one must leave the tokens by rows. */
static mhla_status check_turns(const mhla_frame_config *c) {
    const int H = c->image[0] / c->patch, W = c->image[1] / c->patch, *blocks = c->attn.blocks;
    if (H == W && blocks[0] == blocks[1] && H % blocks[0] == 0 && c->depth % DIRECTIONS == 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL,
                     "scan is four, and attention MHLA: these weights can be converted only for a square grid, equal "
                     "blocks, the same number on each axis, and a depth that is a multiple of 4; here are %d x %d "
                     "patches, %d x %d blocks, "
                     "depth %d",
                     H, W, blocks[0], blocks[1], c->depth);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    (void)desc; /* storage is load's */
    MHLA_TRY(mhla_frame_read(net, &mhla_dig_kind, e));
    mhla_frame *m = *net;
    if (m->config.attention == MHLA_DIG_GLA || m->config.scan == MHLA_SCAN_RASTER) return MHLA_OK;
    const mhla_status status = mhla_blame(check_turns(&m->config), e->config_path ? e->config_path : e->path);
    if (status != MHLA_OK) {
        mhla_frame_free(m);
        *net = NULL;
        return status;
    }
    m->config.scan = MHLA_SCAN_RASTER; /* what the model is once load has changed its weights */
    m->turned = 1;
    return MHLA_OK;
}

/* Squares [count][n][n] of numbers, each read in a direction, become the same squares read by rows. */
static void turn_squares(float *squares, float *room, int64_t count, int n, int direction) {
    for (int64_t i = 0; i < count; i++) {
        float *square = squares + i * n * n;
        memcpy(room, square, sizeof *room * (size_t)(n * n));
        for (int e = 0; e < n * n; e++) square[token_at(e, direction, n, n)] = room[e];
    }
}

static mhla_status turn(mhla_frame *m) {
    const int n = m->config.attn.blocks[0], M = n * n, widest = 31 * 31;
    float *room = malloc(sizeof *room * (size_t)(M * M > widest ? M * M : widest));
    if (room == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to change a mixing matrix of %d blocks", M);
    for (int i = 0; i < m->config.depth; i++) {
        const mhla_frame_block *b = &m->blocks[i];
        mhla_param *const kernels[] = {b->cpe.w, b->attn.lepe.w}, *mix = b->attn.mix;
        const int direction = i % DIRECTIONS;
        for (int k = 0; k < 2; k++) {
            if (kernels[k] == NULL) continue;
            turn_squares(kernels[k]->data, room, kernels[k]->shape[0], (int)kernels[k]->shape[3], direction);
            mhla_param_touch(kernels[k]);
        }
        if (mix == NULL) continue; /* GLA */
        memcpy(room, mix->data, sizeof *room * (size_t)(M * M));
        for (int p = 0; p < M; p++)
            for (int q = 0; q < M; q++)
                mix->data[token_at(p, direction, n, n) * M + token_at(q, direction, n, n)] = room[p * M + q];
        mhla_param_touch(mix);
    }
    free(room);
    return MHLA_OK;
}

static mhla_status load(mhla_model *model, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_frame *m = model->net;
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    MHLA_TRY(mhla_params_load(m->params, e->file));
    return m->turned ? turn(m) : MHLA_OK;
}

/* From GLA to MHLA, or back: the kernels look into the directions of the blocks, and each turn undoes itself. */
static mhla_status adapt(mhla_model *from, const mhla_model *to) {
    mhla_frame *m = from->net;
    return m->config.scan != ((const mhla_frame *)to->net)->config.scan ? turn(m) : MHLA_OK;
}

const mhla_architecture mhla_architecture_dig = {
    .name = "dig",
    .known = "config.json with \"model_type\": \"mhla_dig\", or a bare file with x_embedder and mlp.gate_proj tensors",
    .presets = PRESETS,
    .rows = rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .adapt = adapt,
    MHLA_FRAME_ROWS,
};
