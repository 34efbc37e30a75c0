/* DiT: a noisy image is cut into patches, a stack of transformer blocks, told how noisy it is and what it shows, lets them
 * look at each other, and each patch answers with the noise in it (or the velocity). With MHLA for attention this is the
 * generator of the paper; linear, softmax and LiT's attention stand in the same place. frame.h has the model; here are its
 * choices, its MLP and the convolution that may end a block.
 *
 *   mlp(h) = fc2 gelu(fc1 h) */
#include "models/denoisers/dit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

/* ---- Presets -------------------------------------------------------------------------------------------------- */

#define PRESETS                                                                                                        \
    "dit_nano|dit_micro|dit_s_2|dit_s_4|dit_s_8|dit_b_2|dit_b_4|dit_b_8|dit_l_2|dit_l_4|dit_l_8|dit_xl_2|dit_xl_4|"    \
    "dit_xl_8"

/* The published sizes see latents of 32 x 32 x 4, images of 256 x 256; the small ones see pixels. Blocks keep to the paper's
 * rule for a linear cost, M * M <= T. */
static const mhla_frame_size sizes[] = {
    {"dit_nano", 32, 3, 2, 192, 6, 3, 10, 4},      {"dit_micro", 32, 3, 2, 96, 4, 3, 10, 4},
    {"dit_s_2", 32, 4, 2, 384, 12, 6, 1000, 4},    {"dit_s_4", 32, 4, 4, 384, 12, 6, 1000, 2},
    {"dit_s_8", 32, 4, 8, 384, 12, 6, 1000, 2},    {"dit_b_2", 32, 4, 2, 768, 12, 12, 1000, 4},
    {"dit_b_4", 32, 4, 4, 768, 12, 12, 1000, 2},   {"dit_b_8", 32, 4, 8, 768, 12, 12, 1000, 2},
    {"dit_l_2", 32, 4, 2, 1024, 24, 16, 1000, 4},  {"dit_l_4", 32, 4, 4, 1024, 24, 16, 1000, 2},
    {"dit_l_8", 32, 4, 8, 1024, 24, 16, 1000, 2},  {"dit_xl_2", 32, 4, 2, 1152, 28, 16, 1000, 4},
    {"dit_xl_4", 32, 4, 4, 1152, 28, 16, 1000, 2}, {"dit_xl_8", 32, 4, 8, 1152, 28, 16, 1000, 2},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

mhla_status mhla_dit_preset(mhla_frame_config *c, const char *model, int structure, int attention, int process) {
    const int released = structure == MHLA_STRUCTURE_RELEASED, lit = attention == MHLA_GRID_LIT;
    MHLA_TRY(mhla_frame_preset(c, sizes, SIZES, "dit_nano, dit_micro and dit_{s,b,l,xl}_{2,4,8}", model, process));
    /* Equal surroundings: whatever can be had with every attention is, so that only the attention differs. */
    c->structure = structure;
    c->mlp_ratio = 4.0;
    c->attn.attention = attention;
    c->attn.lepe = 3;
    c->attn.qkv_bias = 1;
    if (released) c->attn.mix_low = 0.0;
    if (lit) mhla_grid_preset(&c->attn);
    if (!released || lit) return MHLA_OK;
    if (attention == MHLA_GRID_SOFTMAX) { /* facebookresearch's DiT */
        c->attn.lepe = 0;
        return MHLA_OK;
    }
    c->dropout = 0.1;
    c->attn.inner_norm = 1;
    c->attn.qk_norm_eps = 1.1920928955078125e-07;
    c->attn.denominator = MHLA_DEN_RELEASED;
    c->attn.mix = MHLA_MIX_RELEASED_LINEAR;
    return MHLA_OK;
}

static mhla_status preset(mhla_frame_config *c, const mhla_frame_config *chosen) {
    return mhla_dit_preset(c, chosen->model, chosen->structure, chosen->attn.attention, chosen->process);
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

#define F MHLA_FRAME_FIELD
static const mhla_setting fields[] = {
    F("model", TEXT, TEXT, model, 0, 0, PRESETS, "the preset that sizes come from"),
    F("structure", TEXT, CHOICE, structure, 0, 0, "equal|released",
      "equal: everything but the attention is the same; released: as published"),
    F("attention", TEXT, GRID, attn.attention, 0, 0, "mhla|linear|softmax|lit", "which attention"),
    MHLA_FRAME_SIZES(F),
    F("mlp_ratio", REAL, REAL, mlp_ratio, 0.01, 64, NULL, "hidden width of the MLP over dim"),
    MHLA_FRAME_ANSWER(F),
    F("cpe", TEXT, CHOICE, cpe, 0, 0, "none|grid|folded",
      "3x3 convolution at the end of each block: on the grid, or as released on the list of tokens folded into a "
      "square"),
    F("lepe", INT, INT, attn.lepe, 0, 31, NULL,
      "kernel of the convolution of v added to the attention (3, lit 5), 0 none"),
    F("gate", BOOL, BOOL, attn.gate, 0, 0, NULL, "the attention's result times silu of a projection"),
    F("gate_norm", BOOL, BOOL, attn.gate_norm, 0, 0, NULL, "an RMS norm of each head before the gate"),
    F("inner_norm", BOOL, BOOL, attn.inner_norm, 0, 0, NULL, "a second LayerNorm right before the attention"),
    F("qkv_bias", BOOL, BOOL, attn.qkv_bias, 0, 0, NULL, "biases of q, k, v"),
    F("qk_norm", BOOL, BOOL, attn.qk_norm, 0, 0, NULL, "RMS norm of q and k over all heads"),
    F("qk_norm_eps", REAL, REAL, attn.qk_norm_eps, 0, 1, NULL, "its eps"),
    MHLA_FRAME_MHLA(F),
};
#undef F
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_frame_config, channels)};

static const mhla_recipe_row *rows(void) { return mhla_settings_rows(&table); }

static mhla_status check(const mhla_frame_config *c, int64_t H, int64_t W) {
    const int64_t grid[2] = {H, W};
    for (int a = 0; a < 2 && c->cpe == MHLA_CPE_FOLDED; a++)
        if (c->attn.blocks[a] > grid[a])
            return mhla_fail(MHLA_EINVAL, "blocks is %d on an axis of %lld patches: at most one block per patch",
                             c->attn.blocks[a], (long long)grid[a]);
    int64_t root = 1;
    while (root * root < H * W) root++;
    if (c->cpe == MHLA_CPE_FOLDED && root * root != H * W)
        return mhla_fail(MHLA_EINVAL, "cpe \"folded\" makes a square of the tokens: %lld are none; \"grid\" takes any",
                         (long long)(H * W));
    return MHLA_OK;
}

/* ---- Network ---- */

/* The tokens block after block, as the released code has them, and the way back: [2][T]. */
static int orders(const mhla_frame_config *c) { return c->cpe == MHLA_CPE_FOLDED ? 2 : 0; }
static void fill_order(int32_t *order, const mhla_frame_config *c, int H, int W) {
    const int *blocks = c->attn.blocks;
    int32_t n = 0, T = H * W;
    for (int i = 0; i < blocks[0]; i++)
        for (int j = 0; j < blocks[1]; j++)
            for (int y = i * H / blocks[0]; y < (i + 1) * H / blocks[0]; y++)
                for (int x = j * W / blocks[1]; x < (j + 1) * W / blocks[1]; x++) {
                    order[T + y * W + x] = n;
                    order[n++] = y * W + x;
                }
}

static int64_t hidden(const mhla_frame_config *c) { return (int64_t)(c->attn.dim * c->mlp_ratio); }
static int64_t mlp_weights(const mhla_frame_config *c) { return 2 * c->attn.dim * hidden(c); }

static void declare_mlp(mhla_frame_block *b, mhla_params *ps, const mhla_frame_config *c, const char *name) {
    char full[80];
    snprintf(full, sizeof full, "%s.fc1", name);
    b->up = mhla_layer_matrix(ps, hidden(c), c->attn.dim, 1, MHLA_XAVIER, full);
    snprintf(full, sizeof full, "%s.fc2", name);
    b->down = mhla_layer_matrix(ps, c->attn.dim, hidden(c), 1, MHLA_XAVIER, full);
}

static mhla_tensor *mlp(mhla_tape *t, const mhla_frame_block *b, mhla_tensor *h) {
    h = mhla_nn_linear(t, b->up.w, b->up.b, MHLA_ACT_GELU_TANH, NULL, h);
    return mhla_nn_linear(t, b->down.w, b->down.b, MHLA_ACT_NONE, NULL, h);
}

static mhla_tensor *convolve(mhla_tape *t, const mhla_frame_call *a, mhla_tensor *x) {
    const int64_t H = a->g->place.H, W = a->g->place.W, T = H * W, side = (int64_t)(sqrt((double)T) + 0.5);
    const mhla_layer l = a->b->cpe;
    if (a->model->config.cpe == MHLA_CPE_GRID) return mhla_nn_depthwise(t, l.w, l.b, H, W, NULL, x);
    x = mhla_nn_depthwise(t, l.w, l.b, side, side, NULL, mhla_nn_reorder(t, a->g->order, x));
    return mhla_nn_reorder(t, a->g->order + T, x);
}

/* ---- Files: facebookresearch's DiT comes as a bare file ---- */

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

static int attention_of(const mhla_safetensors *file) {
    if (has(file, "blocks.0.attn.kv.weight")) return MHLA_GRID_LIT;
    if (has(file, "blocks.0.attn.piece_attn.conv.weight")) return MHLA_GRID_MHLA;
    return has(file, "blocks.0.attn.to_qkv.weight") ? MHLA_GRID_LINEAR : MHLA_GRID_SOFTMAX;
}

static mhla_status guess(mhla_frame_config *c, const mhla_safetensors *file) {
    static const char *const presets[] = {"dit_s_2", "dit_b_2", "dit_l_2", "dit_xl_2"};
    static const char *const letters[] = {"s", "b", "l", "xl"};
    const int attention = attention_of(file), dim = c->attn.dim;
    const mhla_stored *patch, *fc1, *part;
    MHLA_TRY(mhla_frame_need(&patch, file, "x_embedder.proj.weight", 4));
    MHLA_TRY(mhla_frame_need(&fc1, file, "blocks.0.mlp.fc1.weight", 2));
    int size = 0;
    for (; size < 4; size++) {
        MHLA_TRY(mhla_dit_preset(c, presets[size], MHLA_STRUCTURE_RELEASED, attention, MHLA_PROCESS_LINEAR));
        if (c->attn.dim == dim) break;
    }
    if (size == 4)
        return mhla_fail(MHLA_EDATA,
                         "%s: a DiT of width %d, and no config.json beside it: the number of heads is known only "
                         "for widths of 384, 768, 1024 and 1152",
                         mhla_safetensors_path(file), dim);
    const int64_t p = patch->shape[2];
    if (p == 2 || p == 4 || p == 8) snprintf(c->model, sizeof c->model, "dit_%s_%d", letters[size], (int)p);
    if (p != 2 && p != 4 && p != 8) snprintf(c->model, sizeof c->model, "%s", presets[0]);
    c->mlp_ratio = (double)fc1->shape[0] / (double)dim;
    if (has(file, "blocks.0.dw_conv.weight")) c->cpe = MHLA_CPE_FOLDED;
    if (attention == MHLA_GRID_LIT) { /* filters are as many as a head has dims */
        c->attn.qkv_bias = has(file, "blocks.0.attn.kv.bias");
        c->attn.lepe = 0;
        if (!has(file, "blocks.0.attn.dwc.weight")) return MHLA_OK;
        MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.dwc.weight", 4));
        c->attn.lepe = (int)part->shape[2];
        if (dim % part->shape[0] == 0) c->attn.heads = (int)(dim / part->shape[0]);
        return MHLA_OK;
    }
    c->attn.qkv_bias =
        has(file, attention == MHLA_GRID_SOFTMAX ? "blocks.0.attn.qkv.bias" : "blocks.0.attn.to_qkv.bias");
    c->attn.qk_norm = has(file, "blocks.0.attn.q_norm.weight");
    c->attn.inner_norm = has(file, "blocks.0.attn.norm.weight");
    c->attn.gate = has(file, "blocks.0.attn.g.weight");
    if (c->attn.gate) c->attn.gate_norm = has(file, "blocks.0.attn.g_norm.weight");
    c->attn.lepe = 0;
    if (has(file, "blocks.0.attn.lepe.weight")) {
        MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.lepe.weight", 4));
        c->attn.lepe = (int)part->shape[2];
    }
    if (c->attn.gate && c->attn.gate_norm) { /* it is as wide as a head */
        MHLA_TRY(mhla_frame_need(&part, file, "blocks.0.attn.g_norm.weight", 1));
        if (dim % part->shape[0] == 0) c->attn.heads = (int)(dim / part->shape[0]);
    }
    return MHLA_OK;
}

const mhla_frame_kind mhla_dit_kind = {
    .name = "DiT",
    .model_type = "mhla_dit",
    .standard = "dit_nano",
    .table = &table,
    .first = 4,
    .preset = preset,
    .check = check,
    .guess = guess,
    .orders = orders,
    .order = fill_order,
    .mlp_weights = mlp_weights,
    .declare_mlp = declare_mlp,
    .mlp = mlp,
    .convolve = convolve,
};

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    return mhla_frame_create_net(net, &mhla_dit_kind, given, prefix);
}

/* Of bare files those that are no DiG. */
static int fits(const mhla_evidence *e) {
    return mhla_frame_fits(e, "mhla_dit") && (e->config || !has(e->file, "blocks.0.mlp.gate_proj.weight"));
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    (void)desc; /* storage is the opener's */
    return mhla_frame_read(net, &mhla_dit_kind, e);
}

const mhla_architecture mhla_architecture_dit = {
    .name = "dit",
    .known =
        "config.json with \"model_type\": \"mhla_dit\", or a bare file with x_embedder and adaLN_modulation tensors",
    .presets = PRESETS,
    .rows = rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    MHLA_FRAME_ROWS,
};
