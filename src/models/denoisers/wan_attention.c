/* The attentions of Wan: over the grid of tokens, each kind in its authors' form, and to the text.
 *
 *   q = norm(Wq h), k = norm(Wk h), v = Wv h                           RMS norms over all heads
 *   softmax   o = softmax(turn(q) turn(k)^T / sqrt(K)) v
 *   linear    q, k = relu(turn(q)), relu(turn(k)); one summary, its denominator + 1e-6
 *   mhla      q, k = relu(q) + 1e-6, turned in the product but not in the denominator, if there is one;
 *             o = norm of each head(MHLA), times silu(Wg h), plus LePE(v)
 *   result    Wo o
 *
 * turn: rotary embedding, neighbouring dims in pairs; of a head of K dims 2 floor(K/6) turn with the row, as many with the column,
 * the others with the frame. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/denoisers/wan.h"
#include "nn/op.h"

/* ---- Parameters ---- */

static mhla_status fill_mix(mhla_param *p, const void *of) {
    const mhla_wan_config *c = of;
    return mhla_mix_fill(p->data, (mhla_mix_init)c->mix, 3, c->blocks, 0.0);
}

static void declare_mhla(mhla_wan_attention *a, mhla_params *ps, const mhla_wan_config *c, const char *name) {
    if (c->gate) a->gate = mhla_layer_matrix(ps, c->dim, c->dim, 1, MHLA_XAVIER, mhla_grid_part(name, "g"));
    a->g_norm = mhla_layer_norm(ps, c->dim / c->heads, 0, mhla_grid_part(name, "g_norm")).w;
    if (!c->lepe) return;
    a->lepe.w = mhla_params_add(ps, mhla_grid_part(name, "lepe.weight"), MHLA_SHAPE(c->dim, 1, 3, 3, 3), 0, MHLA_ZERO);
    a->lepe.b = mhla_params_add(ps, mhla_grid_part(name, "lepe.bias"), MHLA_SHAPE(c->dim), 0, MHLA_ZERO);
}

static void declare_mix(mhla_wan_attention *a, mhla_params *ps, const mhla_wan_config *c, const char *name) {
    const mhla_initial initial = {.kind = MHLA_INITIAL_CALL, .fill = fill_mix, .of = c};
    const int64_t M = (int64_t)c->blocks[0] * c->blocks[1] * c->blocks[2];
    a->mix = mhla_params_add(ps, mhla_grid_part(name, "block_attn.conv.weight"), MHLA_SHAPE(M, M, 1, 1), MHLA_PARAM_MIX,
                             initial);
    if (a->mix == NULL) return;
    a->mix->mix_low = c->mix_clip ? 1e-6f : -INFINITY; /* the paper's is an open interval */
    a->mix->mix_high = c->mix_clip ? 1.0f : INFINITY;
}

void mhla_wan_declare_attention(mhla_wan_attention *a, mhla_params *ps, const mhla_wan_config *c, int kind,
                                const char *name) {
    const int64_t D = c->dim;
    *a = (mhla_wan_attention){.kind = kind};
    a->q = mhla_layer_matrix(ps, D, D, 1, MHLA_XAVIER, mhla_grid_part(name, "q"));
    a->k = mhla_layer_matrix(ps, D, D, 1, MHLA_XAVIER, mhla_grid_part(name, "k"));
    a->v = mhla_layer_matrix(ps, D, D, 1, MHLA_XAVIER, mhla_grid_part(name, "v"));
    if (kind == MHLA_GRID_MHLA) declare_mhla(a, ps, c, name);
    if (kind != MHLA_GRID_MHLA) a->o = mhla_layer_matrix(ps, D, D, 1, MHLA_XAVIER, mhla_grid_part(name, "o"));
    a->q_norm = mhla_layer_norm(ps, D, 0, mhla_grid_part(name, "norm_q")).w;
    a->k_norm = mhla_layer_norm(ps, D, 0, mhla_grid_part(name, "norm_k")).w;
    if (kind != MHLA_GRID_MHLA) return;
    declare_mix(a, ps, c, name);
    a->o = mhla_layer_matrix(ps, D, D, 1, MHLA_XAVIER, mhla_grid_part(name, "o"));
}

/* ---- A size ---- */

static mhla_status make_plan(mhla_plan **plan, const mhla_wan_config *c, int kind, const int grid[3]) {
    static const mhla_kind kinds[] = {
        [MHLA_GRID_MHLA] = MHLA_KIND_BIDIRECTIONAL,
        [MHLA_GRID_LINEAR] = MHLA_KIND_LINEAR,
        [MHLA_GRID_SOFTMAX] = MHLA_KIND_SOFTMAX,
    };
    mhla_plan_desc desc = {.size = sizeof desc,
                           .kind = kinds[kind],
                           .heads = c->heads,
                           .key_dim = c->dim / c->heads,
                           .value_dim = c->dim / c->heads};
    if (kind == MHLA_GRID_LINEAR) desc.den_eps = 1e-6f;
    if (kind != MHLA_GRID_LINEAR) desc.rope = MHLA_ROPE_INTERLEAVED; /* linear: before its features */
    if (kind == MHLA_GRID_MHLA) {
        desc.feature_eps = 1e-6f;
        desc.den_eps = 1e-6f;
        desc.denominator = (mhla_denominator)c->denominator;
        desc.axes = 3;
        for (int a = 0; a < 3; a++) {
            desc.grid[a] = grid[a];
            desc.blocks[a] = c->blocks[a] < grid[a] ? c->blocks[a] : grid[a];
        }
    }
    return mhla_plan_create(plan, &desc);
}

/* Token x of an axis of n tokens in m blocks, more than n: the block that has it. */
static int block_with(int x, int n, int m) { return ((x + 1) * m + n - 1) / n - 1; }

/* On a small grid some blocks have no token: their sums are 0, and the mixing matrix is as good without them. */
static mhla_status keep_blocks(mhla_wan_place *p, const mhla_wan_config *c) {
    const int *n = p->grid, *m = c->blocks;
    int own[3], i = 0;
    for (int a = 0; a < 3; a++) own[a] = m[a] < n[a] ? m[a] : n[a];
    if (own[0] == m[0] && own[1] == m[1] && own[2] == m[2]) return MHLA_OK;
    p->kept_count = own[0] * own[1] * own[2];
    p->kept = malloc((size_t)p->kept_count * sizeof *p->kept);
    if (p->kept == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d blocks", p->kept_count);
    for (int f = 0; f < own[0]; f++)
        for (int y = 0; y < own[1]; y++)
            for (int x = 0; x < own[2]; x++) {
                const int at[3] = {f, y, x};
                int block = 0;
                for (int a = 0; a < 3; a++)
                    block = block * m[a] + (own[a] < m[a] ? block_with(at[a], n[a], m[a]) : at[a]);
                p->kept[i++] = block;
            }
    return MHLA_OK;
}

/* The rows and columns of the blocks that have tokens. */
static mhla_param *kept_mix(mhla_tape *t, mhla_param *mix, const mhla_wan_place *p) {
    const int64_t n = p->kept_count, M = mix->shape[0];
    if (p->kept == NULL) return mix;
    if ((mhla_tape_mode(t) & MHLA_TAPE_RECORD) && mhla_param_trains(mix)) {
        (void)mhla_tape_fail(t, MHLA_EINVAL, "%d x %d x %d tokens are too few to learn of: some blocks have none",
                             p->grid[0], p->grid[1], p->grid[2]);
        return NULL;
    }
    mhla_param *few = mhla_tape_op(t, sizeof *few);
    float *data = mhla_tape_floats(t, n * n);
    if (few == NULL || data == NULL) return NULL;
    for (int64_t i = 0; i < n * n && !mhla_tape_dry(t); i++) data[i] = mix->data[p->kept[i / n] * M + p->kept[i % n]];
    *few = (mhla_param){.name = mix->name, .dims = 2, .shape = {n, n}, .count = n * n, .data = data};
    return few;
}

mhla_status mhla_wan_place_make(mhla_wan_place *p, const mhla_wan_config *c, const int grid[3]) {
    const int K = c->dim / c->heads, side = 2 * (K / 6), dims[3] = {K - 2 * side, side, side};
    const int64_t T = (int64_t)grid[0] * grid[1] * grid[2], half = K / 2;
    mhla_status status = MHLA_OK;
    *p = (mhla_wan_place){.grid = {grid[0], grid[1], grid[2]}};
    for (int i = 0; i < c->depth && status == MHLA_OK; i++)
        if (p->plans[c->kinds[i]] == NULL) status = make_plan(&p->plans[c->kinds[i]], c, c->kinds[i], grid);
    if (status == MHLA_OK && p->plans[MHLA_GRID_MHLA]) status = keep_blocks(p, c);
    if (status == MHLA_OK) {
        p->cos = mhla_alloc((size_t)(2 * T * half) * sizeof *p->cos);
        if (p->cos == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory for a rotary table of %lld rows", (long long)T);
    }
    if (status == MHLA_OK) {
        p->sin = p->cos + T * half;
        status = mhla_rope_table(p->cos, p->sin, 3, grid, dims, 10000.0);
    }
    if (status != MHLA_OK) mhla_wan_place_free(p);
    return status;
}

void mhla_wan_place_free(mhla_wan_place *p) {
    for (int i = 0; i < 3; i++) mhla_plan_free(p->plans[i]);
    mhla_free(p->cos);
    free(p->kept);
    *p = (mhla_wan_place){0};
}

mhla_status mhla_wan_cross_plan(mhla_plan **plan, const mhla_wan_config *c, int counted) {
    const int K = c->dim / c->heads;
    const mhla_plan_desc desc = {.size = sizeof desc,
                                 .kind = MHLA_KIND_SOFTMAX,
                                 .heads = c->heads,
                                 .key_dim = K + counted,
                                 .value_dim = K,
                                 .scale = (float)(1.0 / sqrt(K))};
    return mhla_plan_create(plan, &desc);
}

/* ---- Forward ---- */

static mhla_tensor *linear(mhla_tape *t, mhla_layer l, mhla_tensor *residual, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, MHLA_ACT_NONE, residual, x);
}

mhla_tensor *mhla_wan_attend(mhla_tape *t, const mhla_wan_attention *a, const mhla_wan_config *c,
                             const mhla_wan_place *place, mhla_tensor *h) {
    const float eps = (float)c->eps;
    const int K = c->dim / c->heads, mhla = a->kind == MHLA_GRID_MHLA;
    const int64_t T = (int64_t)place->grid[0] * place->grid[1] * place->grid[2];
    const mhla_call rope = {.rope_cos = place->cos, .rope_sin = place->sin, .rope_rows = T};
    const int64_t grid[3] = {place->grid[0], place->grid[1], place->grid[2]};
    mhla_tensor *made[4] = {NULL, NULL, NULL, NULL}; /* q, k, v, gate */
    mhla_nn_linears(t, made, (const mhla_layer[]){a->q, a->k, a->v, a->gate}, a->gate.w ? 4 : 3, h);
    mhla_tensor *q = mhla_nn_rms_norm(t, a->q_norm, eps, 0, made[0]);
    mhla_tensor *k = mhla_nn_rms_norm(t, a->k_norm, eps, 0, made[1]), *o;
    if (a->kind == MHLA_GRID_LINEAR) {
        const mhla_rotary turn = {MHLA_ROPE_INTERLEAVED, K, 0, place->cos, place->sin};
        q = mhla_nn_rotary(t, turn, q);
        k = mhla_nn_rotary(t, turn, k);
        o = mhla_nn_attention(t, place->plans[a->kind], NULL, NULL, q, k, made[2]);
    } else {
        mhla_param *mix = mhla ? kept_mix(t, a->mix, place) : NULL;
        o = mhla_nn_attention(t, place->plans[a->kind], &rope, mix, q, k, made[2]);
    }
    if (mhla)
        o = made[3] ? mhla_nn_rms_norm_gated(t, a->g_norm, eps, K, o, made[3])
                    : mhla_nn_rms_norm(t, a->g_norm, eps, K, o);
    if (a->lepe.w) o = mhla_nn_depthwise_clip(t, a->lepe.w, a->lepe.b, grid, o, made[2]);
    return linear(t, a->o, NULL, o);
}

void mhla_wan_keys(mhla_tape *t, mhla_tensor *kv[2], const mhla_wan_attention *a, const mhla_wan_config *c,
                   const mhla_wan_text *text) {
    mhla_nn_linears(t, kv, (const mhla_layer[]){a->k, a->v}, 2, text->rows);
    kv[0] = mhla_nn_rms_norm(t, a->k_norm, (float)c->eps, 0, kv[0]);
    if (text->counted) kv[0] = mhla_nn_append_dim(t, c->dim / c->heads, text->counts, kv[0]);
}

mhla_tensor *mhla_wan_cross(mhla_tape *t, const mhla_wan_attention *a, const mhla_wan_config *c, const mhla_plan *plan,
                            const mhla_wan_text *text, mhla_tensor *const kv[2], mhla_tensor *residual,
                            mhla_tensor *h) {
    mhla_tensor *q = mhla_nn_rms_norm(t, a->q_norm, (float)c->eps, 0, linear(t, a->q, NULL, h));
    if (text->counted) q = mhla_nn_append_dim(t, c->dim / c->heads, NULL, q);
    return linear(t, a->o, residual, mhla_nn_cross_attention(t, plan, text->lengths, q, kv[0], kv[1]));
}

/* ---- Costs ---- */

int64_t mhla_wan_attention_cost(const mhla_wan_config *c, int kind, int64_t T, int as_paper) {
    const int64_t D = c->dim, K = c->dim / c->heads, M = (int64_t)c->blocks[0] * c->blocks[1] * c->blocks[2];
    const int mhla = kind == MHLA_GRID_MHLA;
    const int64_t layers = (mhla && c->gate ? 5 : 4) * T * D * D + (mhla && c->lepe ? 27 * T * D : 0);
    if (as_paper) return layers;
    if (kind == MHLA_GRID_SOFTMAX) return layers + 2 * T * T * D;
    if (kind == MHLA_GRID_LINEAR) return layers + 2 * T * D * K + T * D;
    int64_t all = layers + (2 * T + M * M) * D * K;                   /* S = sum k v, S' = m S, q S' */
    if (c->denominator != MHLA_DEN_NONE) all += T * D;                /* q z' */
    if (c->denominator == MHLA_DEN_EQ4) all += M * M * D;             /* z' = m z */
    if (c->denominator == MHLA_DEN_RELEASED) all += M * T * c->heads; /* of the products */
    return all;
}
