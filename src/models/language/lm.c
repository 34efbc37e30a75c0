/* Decoders of text: tokens become rows of an embedding, a stack of layers lets each token look at those before it, and the
 * last norm's output, times the output matrix, says what comes next. With MHLA for attention this is the language model
 * of the paper; softmax (Transformer++, Llama) and linear attention stand in the same place, layer by layer.
 *
 *   x = embeddings[ids]
 *   x = x + attention(norm(x)),  x = x + down(silu(gate(norm(x))) up(norm(x)))      layers times
 *   logits = output(norm(x)) */
#include "models/language/lm.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/layers.h"

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

typedef mhla_layer layer; /* w, b; b NULL where there is no bias */

typedef struct feature_map {
    layer first, second; /* [K,K]; which of them there are depends on the map */
} feature_map;

typedef struct block {
    mhla_lm *lm;
    int index, kind;
    const mhla_lm_mixer *mixer;
    mhla_param *attn_norm, *mlp_norm; /* [D] */
    mhla_param *mix;                  /* [M,M,1,1,1,1]: how much chunk i takes from chunk b */
    layer q, k, v, g, o;              /* [H*K,D], [G*K,D], [G*V,D], [H*V,D], [D,H*V] */
    mhla_param *conv[3];              /* [.,1,W] of q, k, v */
    mhla_param *q_norm, *k_norm;      /* [K] */
    mhla_param *norm;                 /* [V] of what attention gives, each head */
    feature_map map_q, map_k;
    layer gate, up, down; /* [hidden,D] twice, [D,hidden] */
} block;

/* Rotary tables, the newest first; older ones stay because a tape may still point to them. */
typedef struct table {
    struct table *older;
    int64_t rows;
    float *cos, *sin; /* [rows, rope_dim/2] */
} table;

struct mhla_lm {
    mhla_lm_config config;
    mhla_params *params;
    mhla_plan *plans[3]; /* by kind */
    table *tables[3];
    mhla_param *embeddings, *norm, *output;
    block *blocks;   /* [layers] */
    mhla_lm_run run; /* of the present forward pass, and of its backward */
};

/* Matrices of K dims, applied to every head alike: small, and read as they are. */
static feature_map add_map(mhla_params *ps, int feature, int64_t K, mhla_initial usual, const char *name) {
    feature_map m = {0};
    char part[160];
    const int two = feature == MHLA_LM_ELEMENTWISE_PRODUCT, bias = feature != MHLA_LM_T2R;
    const mhla_initial start = feature == MHLA_LM_HEDGEHOG ? (mhla_initial){.kind = MHLA_INITIAL_IDENTITY} : usual;
    if (feature != MHLA_LM_HEDGEHOG && feature != MHLA_LM_T2R && !two) return m;
    for (int i = 0; i <= two; i++) {
        snprintf(part, sizeof part, two ? "%s.layer%d" : "%s.layer", name, i + 1);
        *(i ? &m.second : &m.first) = mhla_layer_linear(ps, K, K, bias, start, part);
    }
    return m;
}

/* Row i of the mixing matrix weighs the i+1 chunks that it sees alike. */
static mhla_status fill_mix(mhla_param *p, const void *of) {
    (void)of;
    return mhla_mix_fill(p->data, MHLA_MIX_CAUSAL, 1, (const int[]){(int)p->shape[0]}, 0.0);
}

/* In the order of the published list. */
static void add_block(block *b, mhla_params *ps, const mhla_lm_config *c) {
    const mhla_lm_mixer *m = b->mixer;
    const int hf = c->naming == MHLA_LM_NAMES_HF;
    const int64_t D = c->width, H = m->heads, G = m->kv_heads, K = m->key_dim, V = m->value_dim, M = m->blocks;
    const mhla_initial usual = MHLA_NORMAL(c->deviation);
    char start[64], attn[80], name[128];
    snprintf(start, sizeof start, "model.layers.%d", b->index);
    snprintf(attn, sizeof attn, "%s.%s", start, hf ? "self_attn" : "attn");
#define ATTN(suffix) (snprintf(name, sizeof name, "%s.%s", attn, suffix), name)
#define MLP(suffix) (snprintf(name, sizeof name, "%s.mlp.%s", start, suffix), name)
    b->attn_norm =
        mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ONE, "%s.%s.weight", start, hf ? "input_layernorm" : "attn_norm");
    if (b->kind == MHLA_ATTENTION_MHLA) {
        b->mix = mhla_params_add(ps, ATTN("mixing_matrix"), MHLA_SHAPE(M, M, 1, 1, 1, 1),
                                 MHLA_PARAM_DECAY | MHLA_PARAM_MIX | MHLA_PARAM_CAUSAL,
                                 (mhla_initial){.kind = MHLA_INITIAL_CALL, .fill = fill_mix});
        if (b->mix) b->mix->mix_low = 1e-5f; /* the released code's range */
    }
    b->q = mhla_layer_matrix(ps, H * K, D, m->qkv_bias, usual, ATTN("q_proj"));
    b->k = mhla_layer_matrix(ps, G * K, D, m->qkv_bias, usual, ATTN("k_proj"));
    b->v = mhla_layer_matrix(ps, G * V, D, m->qkv_bias, usual, ATTN("v_proj"));
    if (m->gate) b->g = mhla_layer_matrix(ps, H * V, D, 0, usual, ATTN("g_proj"));
    b->o = mhla_layer_matrix(ps, D, H * V, m->out_bias, usual, ATTN("o_proj"));
    if (m->conv) {
        static const char *const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
        const int64_t dims[] = {H * K, G * K, G * V};
        for (int i = 0; i < 3; i++)
            b->conv[i] = mhla_params_add(ps, ATTN(names[i]), MHLA_SHAPE(dims[i], 1, m->conv), MHLA_PARAM_DECAY, usual);
    }
    if (m->qk_norm) {
        b->q_norm = mhla_params_add(ps, ATTN("q_norm.weight"), MHLA_SHAPE(K), 0, MHLA_ONE);
        b->k_norm = mhla_params_add(ps, ATTN("k_norm.weight"), MHLA_SHAPE(K), 0, MHLA_ONE);
    }
    if (b->kind == MHLA_ATTENTION_MHLA)
        b->norm = mhla_params_add(ps, ATTN(m->gate ? "g_norm_swish_gate.weight" : "g_norm.weight"), MHLA_SHAPE(V), 0,
                                  MHLA_ONE);
    if (b->kind == MHLA_ATTENTION_LINEAR)
        b->norm = mhla_params_add(ps, ATTN("norm.weight"), MHLA_SHAPE(V), 0, MHLA_ONE);
    if (b->kind != MHLA_ATTENTION_SOFTMAX) {
        b->map_q = add_map(ps, m->feature, K, usual, ATTN("feature_map_q"));
        b->map_k = add_map(ps, m->feature, K, usual, ATTN("feature_map_k"));
    }
    b->mlp_norm = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ONE, "%s.%s.weight", start,
                                   hf ? "post_attention_layernorm" : "mlp_norm");
    b->gate = mhla_layer_matrix(ps, c->hidden, D, c->mlp_bias, usual, MLP("gate_proj"));
    b->up = mhla_layer_matrix(ps, c->hidden, D, c->mlp_bias, usual, MLP("up_proj"));
    b->down = mhla_layer_matrix(ps, D, c->hidden, c->mlp_bias, usual, MLP("down_proj"));
#undef ATTN
#undef MLP
}

/* Dims of a head after the feature map. */
static int feature_dims(const mhla_lm_mixer *m) {
    switch (m->feature) {
    case MHLA_LM_HEDGEHOG: return 2 * m->key_dim;
    case MHLA_LM_DPFP:
    case MHLA_LM_DPFP_PAPER: return 8 * m->key_dim;
    default: return m->key_dim;
    }
}

static mhla_plan_desc describe(const mhla_lm_config *c, int kind) {
    const mhla_lm_mixer *m = &c->mixer[kind];
    mhla_plan_desc d = {
        .size = sizeof d,
        .kind = MHLA_KIND_SOFTMAX,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .key_dim = m->key_dim,
        .value_dim = m->value_dim,
        .rope = m->rope,
        .rope_dim = m->rope == MHLA_ROPE_NONE ? 0 : m->rope_dim,
    };
    if (kind == MHLA_ATTENTION_SOFTMAX) {
        d.causal = 1;
        d.window = m->window;
        return d;
    }
    d.kind = MHLA_KIND_LINEAR_CAUSAL;
    d.key_dim = feature_dims(m);
    d.feature = MHLA_FEATURE_IDENTITY; /* of features that are computed before the operator */
    if (m->feature == MHLA_LM_RELU || m->feature == MHLA_LM_T2R) d.feature = MHLA_FEATURE_RELU;
    if (m->feature == MHLA_LM_ELU) d.feature = MHLA_FEATURE_ELU;
    if (m->norm_q || m->norm_k) d.feature = MHLA_FEATURE_IDENTITY;
    d.denominator = m->norm_features ? MHLA_DEN_EQ4 : MHLA_DEN_NONE;
    d.den_eps = m->norm_features ? 1e-10f : 0.0f;
    if (kind == MHLA_ATTENTION_MHLA) {
        d.kind = MHLA_KIND_CAUSAL;
        d.chunk = m->chunk;
        d.chunks = m->blocks;
    }
    return d;
}

mhla_status mhla_lm_create(mhla_lm **lm, const mhla_lm_config *config) {
    return mhla_lm_create_as(lm, config, MHLA_F32);
}

mhla_status mhla_lm_create_as(mhla_lm **lm, const mhla_lm_config *config, mhla_dtype storage) {
    *lm = NULL;
    MHLA_TRY(mhla_lm_config_check(config));
    mhla_lm *m = calloc(1, sizeof *m);
    block *blocks = calloc((size_t)config->layers, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d layers", config->layers);
    }
    m->config = *config;
    m->blocks = blocks;
    const mhla_lm_config *c = &m->config;
    const int hf = c->naming == MHLA_LM_NAMES_HF;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) {
        mhla_params *ps = m->params;
        const unsigned matrix = MHLA_PARAM_DECAY | MHLA_PARAM_MATRIX;
        mhla_params_set_storage(ps, storage);
        m->embeddings = mhla_params_add(ps, hf ? "model.embed_tokens.weight" : "model.embeddings.weight",
                                        MHLA_SHAPE(c->vocabulary, c->width), matrix, MHLA_NORMAL(c->deviation));
        for (int i = 0; i < c->layers; i++) {
            block *b = &m->blocks[i];
            *b = (block){.lm = m, .index = i, .kind = c->kind[i], .mixer = &c->mixer[c->kind[i]]};
            add_block(b, ps, c);
        }
        m->norm = mhla_params_add(ps, "model.norm.weight", MHLA_SHAPE(c->width), 0, MHLA_ONE);
        m->output = c->tied ? m->embeddings
                            : mhla_params_add(ps, "lm_head.weight", MHLA_SHAPE(c->vocabulary, c->width), matrix,
                                              MHLA_NORMAL(c->deviation));
        status = mhla_params_status(ps);
    }
    for (int i = 0; i < c->layers && status == MHLA_OK; i++) {
        const int kind = c->kind[i];
        const mhla_plan_desc desc = describe(c, kind);
        if (m->plans[kind] == NULL) status = mhla_plan_create(&m->plans[kind], &desc);
    }
    if (status != MHLA_OK) {
        mhla_lm_free(m);
        return status;
    }
    *lm = m;
    return MHLA_OK;
}

void mhla_lm_free(mhla_lm *m) {
    if (m == NULL) return;
    for (int kind = 0; kind < 3; kind++) {
        mhla_plan_free(m->plans[kind]);
        for (table *t = m->tables[kind], *older; t; t = older) {
            older = t->older;
            mhla_free(t->cos);
            mhla_free(t->sin);
            free(t);
        }
    }
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

const mhla_lm_config *mhla_lm_config_of(const mhla_lm *m) { return &m->config; }
mhla_params *mhla_lm_params(const mhla_lm *m) { return m->params; }
mhla_param *mhla_lm_output(const mhla_lm *m) { return m->output; }
const mhla_plan *mhla_lm_plan(const mhla_lm *m, int i) { return m->plans[m->blocks[i].kind]; }
mhla_param *mhla_lm_mix(const mhla_lm *m, int i) { return m->blocks[i].mix; }
void mhla_lm_plan_desc(const mhla_lm *m, int i, mhla_plan_desc *desc) {
    *desc = describe(&m->config, m->blocks[i].kind);
}

/* ---- Rotary tables: pair j of position t turns by t theta^(-2j/dims), or less (rope.h) --------------------------------------------------- */

mhla_status mhla_lm_rope(mhla_lm *m, int i, int64_t rows, const float **cos, const float **sin, int64_t *have) {
    const int kind = m->blocks[i].kind;
    const mhla_lm_mixer *x = &m->config.mixer[kind];
    *cos = *sin = NULL;
    *have = 0;
    if (x->rope == MHLA_ROPE_NONE) return MHLA_OK;
    if (m->tables[kind] == NULL || m->tables[kind]->rows < rows) {
        const int64_t older = m->tables[kind] ? 2 * m->tables[kind]->rows : 256, n = rows > older ? rows : older;
        if (n > INT32_MAX) return mhla_fail(MHLA_ERANGE, "a rotary table of %lld positions", (long long)n);
        const size_t bytes = (size_t)n * (size_t)(x->rope_dim / 2) * sizeof(float);
        table *t = calloc(1, sizeof *t);
        float *c = mhla_alloc(bytes), *s = mhla_alloc(bytes);
        mhla_status status = t && c && s ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a rotary table");
        if (status == MHLA_OK && x->scaling.kind)
            mhla_scaling_rows(c, s, &x->scaling, x->rope_theta, x->rope_dim, 0, n);
        else if (status == MHLA_OK)
            status = mhla_rope_table(c, s, 1, (const int[]){(int)n}, (const int[]){x->rope_dim}, x->rope_theta);
        if (status != MHLA_OK) {
            free(t);
            mhla_free(c);
            mhla_free(s);
            return status;
        }
        *t = (table){m->tables[kind], n, c, s};
        m->tables[kind] = t;
    }
    *cos = m->tables[kind]->cos;
    *sin = m->tables[kind]->sin;
    *have = m->tables[kind]->rows;
    return MHLA_OK;
}

void mhla_lm_rope_rows(const mhla_lm *m, int i, float *cosine, float *sine, int64_t first, int64_t n) {
    const mhla_lm_mixer *x = m->blocks[i].mixer;
    if (x->rope == MHLA_ROPE_NONE) return;
    mhla_scaling_rows(cosine, sine, &x->scaling, x->rope_theta, x->rope_dim, first, n);
}

/* ---- Forward: x is [B,T,D] throughout ---------------------------------------------------------------------------------- */

static mhla_tensor *linear(mhla_tape *t, layer l, mhla_tensor *residual, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, MHLA_ACT_NONE, residual, x);
}

/* Each head of x [B,T,heads*K] -> [B,T,heads*F], as far as the operator does not do it itself (describe, above). */
static mhla_tensor *features(mhla_tape *t, const block *b, const feature_map *map, int norm, mhla_tensor *x) {
    const mhla_lm_mixer *m = b->mixer;
    if (x == NULL || b->kind == MHLA_ATTENTION_SOFTMAX) return x;
    const int64_t B = x->shape[0], T = x->shape[1], K = m->key_dim, heads = x->cols / K;
    if (map->first.w) x = mhla_nn_reshape(t, x, MHLA_SHAPE(B, T, heads, K));
    mhla_tensor *y = map->first.w ? linear(t, map->first, NULL, x) : x;
    if (map->second.w) y = mhla_nn_mul(t, y, linear(t, map->second, NULL, x));
    if (map->first.w) y = mhla_nn_reshape(t, y, MHLA_SHAPE(B, T, heads * K));
    if (m->feature == MHLA_LM_HEDGEHOG) y = mhla_nn_hedgehog(t, K, y);
    if (m->feature == MHLA_LM_DPFP || m->feature == MHLA_LM_DPFP_PAPER)
        y = mhla_nn_dpfp(t, K, m->feature == MHLA_LM_DPFP, y);
    if (m->norm_q || m->norm_k) { /* then the operator maps neither of them */
        const mhla_feature phi = m->feature == MHLA_LM_ELU                                 ? MHLA_FEATURE_ELU
                                 : m->feature == MHLA_LM_RELU || m->feature == MHLA_LM_T2R ? MHLA_FEATURE_RELU
                                                                                           : MHLA_FEATURE_IDENTITY;
        y = mhla_nn_feature(t, phi, feature_dims(m), norm, y);
    }
    return y;
}

static mhla_tensor *convolve(mhla_tape *t, const block *b, int which, mhla_tensor *x) {
    const mhla_lm_run *run = &b->lm->run;
    if (b->conv[which] == NULL || x == NULL) return x;
    if (run->attend == NULL) return mhla_nn_short_conv(t, b->conv[which], run->cu_seqlens, run->sequences, x);
    if (run->convolve == NULL) return mhla_tape_fail(t, MHLA_ENOTSUP, "short convolutions are not kept by this state");
    return run->convolve(run->user, t, &(mhla_lm_convolve){b->index, which, b->conv[which], x});
}

/* The operator: of the whole text, or of whoever keeps the states of sequences. */
static mhla_tensor *attend(mhla_tape *t, const block *b, mhla_tensor *q, mhla_tensor *k, mhla_tensor *v) {
    const mhla_lm_run *run = &b->lm->run;
    const mhla_plan *plan = b->lm->plans[b->kind];
    mhla_call call = {.size = sizeof call, .cu_seqlens = run->cu_seqlens, .sequences = run->sequences};
    if (q == NULL || k == NULL || v == NULL) return NULL;
    if (run->attend)
        return run->attend(run->user, t, &(mhla_lm_attend){b->index, b->kind, plan, &call, b->mix, q, k, v});
    const mhla_status status =
        mhla_lm_rope(b->lm, b->index, q->shape[1], &call.rope_cos, &call.rope_sin, &call.rope_rows);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    return mhla_nn_attention(t, plan, &call, b->mix, q, k, v);
}

/* x + attention(h): q, k, v and the gate of every token; the operator; its heads normalised and gated. */
static mhla_tensor *attention(mhla_tape *t, const block *b, mhla_tensor *x, mhla_tensor *h) {
    const mhla_lm_mixer *m = b->mixer;
    const float eps = (float)b->lm->config.norm_eps;
    enum { Q, K, V, GATE, PARTS };
    mhla_tensor *y[PARTS];
    mhla_nn_linears(t, y, (const layer[PARTS]){b->q, b->k, b->v, b->g}, m->gate ? PARTS : GATE, h);
    mhla_tensor *q = convolve(t, b, 0, y[Q]), *k = convolve(t, b, 1, y[K]), *v = convolve(t, b, 2, y[V]);
    if (m->qk_norm) {
        q = mhla_nn_rms_norm(t, b->q_norm, (float)m->qk_norm_eps, m->key_dim, q);
        k = mhla_nn_rms_norm(t, b->k_norm, (float)m->qk_norm_eps, m->key_dim, k);
    }
    q = features(t, b, &b->map_q, m->norm_q, q);
    k = features(t, b, &b->map_k, m->norm_k, k);
    mhla_tensor *o = attend(t, b, q, k, v);
    if (m->gate)
        o = mhla_nn_rms_norm_gated(t, b->norm, eps, m->value_dim, o, y[GATE]);
    else if (b->norm)
        o = mhla_nn_rms_norm(t, b->norm, eps, m->value_dim, o);
    return linear(t, b->o, x, o);
}

static mhla_tensor *mlp(mhla_tape *t, const block *b, mhla_tensor *x, mhla_tensor *h) {
    mhla_tensor *y[2];
    mhla_nn_linears(t, y, (const layer[]){b->gate, b->up}, 2, h);
    return linear(t, b->down, x, mhla_nn_swiglu(t, y[0], y[1]));
}

static mhla_tensor *decoder_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const float eps = (float)b->lm->config.norm_eps;
    x = attention(t, b, x, mhla_nn_rms_norm(t, b->attn_norm, eps, 0, x));
    x = mlp(t, b, x, mhla_nn_rms_norm(t, b->mlp_norm, eps, 0, x));
    return x;
}

/* MHLA's matrix says what M chunks are to each other, and nothing of more. */
static int fits(mhla_tape *t, const mhla_lm *m, int64_t T) {
    const mhla_lm_run *run = &m->run;
    const mhla_lm_mixer *x = &m->config.mixer[MHLA_ATTENTION_MHLA];
    if (m->plans[MHLA_ATTENTION_MHLA] == NULL || run->attend) return 1;
    int64_t longest = run->cu_seqlens ? 0 : T;
    for (int64_t s = 0; run->cu_seqlens && s < run->sequences; s++) {
        const int64_t n = run->cu_seqlens[s + 1] - run->cu_seqlens[s];
        if (n > longest) longest = n;
    }
    if (longest <= (int64_t)x->blocks * x->chunk) return 1;
    mhla_tape_fail(t, MHLA_ERANGE, "%lld tokens: the model was made for %d blocks of %d", (long long)longest, x->blocks,
                   x->chunk);
    return 0;
}

mhla_tensor *mhla_lm_forward(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, const int32_t *ids, int64_t B,
                             int64_t T) {
    m->run = *run;
    if (!fits(t, m, T)) return NULL;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_embedding(t, m->embeddings, ids, B, T);
    if (run->trace) run->trace[0] = x;
    for (int i = 0; i < m->config.layers; i++) {
        const block *b = &m->blocks[i];
        x = run->recompute ? mhla_nn_checkpoint(t, decoder_block, b, x) : decoder_block(t, b, x);
        if (run->trace)
            run->trace[i + 1] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    return mhla_nn_rms_norm(t, m->norm, (float)m->config.norm_eps, 0, x);
}

mhla_tensor *mhla_lm_attention(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, int i, mhla_tensor *residual,
                               mhla_tensor *h) {
    m->run = *run;
    return attention(t, &m->blocks[i], residual, h);
}

mhla_tensor *mhla_lm_logits(mhla_tape *t, mhla_lm *m, mhla_tensor *hidden) {
    return mhla_nn_linear(t, m->output, NULL, MHLA_ACT_NONE, NULL, hidden);
}

/* ---- What a token costs ------------------------------------------------------------------------------------------------ */

int64_t mhla_lm_multiply_adds(const mhla_lm_config *c, int64_t tokens) {
    int64_t all = (int64_t)c->vocabulary * c->width;
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_mixer *m = &c->mixer[c->kind[i]];
        const int64_t D = c->width, H = m->heads, G = m->kv_heads, K = m->key_dim, V = m->value_dim,
                      F = feature_dims(m);
        all += D * (H * K + G * K + G * V + (m->gate ? 2 : 1) * H * V) + 3 * D * c->hidden;
        all += (int64_t)m->conv * (H * K + G * K + G * V);
        if (c->kind[i] == MHLA_ATTENTION_SOFTMAX) { /* scores of what it sees, and their use */
            const int64_t w = m->window && m->window < tokens ? m->window : tokens;
            const int64_t seen = (w * (w + 1) / 2 + (tokens - w) * w) / (tokens > 0 ? tokens : 1);
            all += seen * H * (K + V);
            continue;
        }
        const int maps = m->feature == MHLA_LM_ELEMENTWISE_PRODUCT                     ? 2
                         : m->feature == MHLA_LM_HEDGEHOG || m->feature == MHLA_LM_T2R ? 1
                                                                                       : 0;
        all += (int64_t)maps * (H + G) * K * K;
        all += G * F * V + H * F * V; /* S += k v^T, q S */
        if (c->kind[i] == MHLA_ATTENTION_MHLA) {
            int64_t chunks = (tokens + m->chunk - 1) / m->chunk;
            if (chunks > m->blocks) chunks = m->blocks;
            all += G * F * V + (chunks - 1) * G * F * V / 2 / m->chunk; /* m[i,i] S + P; P, once per chunk */
        }
    }
    return all;
}

int64_t mhla_lm_state_bytes(const mhla_lm_config *c, int64_t tokens) {
    int64_t floats = 0;
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_mixer *m = &c->mixer[c->kind[i]];
        const int64_t H = m->heads, G = m->kv_heads, K = m->key_dim, V = m->value_dim, F = feature_dims(m);
        if (m->conv) floats += (m->conv - 1) * (H * K + G * K + G * V);
        if (c->kind[i] == MHLA_ATTENTION_SOFTMAX) {
            floats += (m->window && m->window < tokens ? m->window : tokens) * G * (K + V);
        } else {
            int64_t summaries = 1;
            if (c->kind[i] == MHLA_ATTENTION_MHLA) { /* one per chunk, the open one's, the mixture that it reads */
                summaries = (tokens + m->chunk - 1) / m->chunk;
                if (summaries > m->blocks) summaries = m->blocks;
                summaries += 2;
            }
            floats += summaries * G * F * (V + (m->norm_features ? 1 : 0));
        }
    }
    return floats * (int64_t)sizeof(float);
}
