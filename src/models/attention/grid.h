/* Attention over a grid of tokens, as a module that image models share: what can be chosen about it (settings), its parameters
 * by name (attention), what belongs to a size of grid (place). One file for each author's variant, one row for each in the
 * list below.
 *
 *   declare       mhla_grid_declare(&a, params, &settings, "blocks.0.attn")
 *   a size        mhla_grid_place_make(&place, &settings, H, W)
 *   forward       out(mhla_grid_forward(t, &a, &place, h)): the output layer is the caller's to apply, who knows whether a
 *                 residual is added or a branch is dropped */
#ifndef MHLA_MODELS_ATTENTION_GRID_H
#define MHLA_MODELS_ATTENTION_GRID_H

#include <mhla/mhla.h>

#include "models/layers.h"

/* The variants; config: attention. Their numbers are in config.json as names only. */
#define MHLA_GRID_LIST(X)                                                                                              \
    X(MHLA, mhla, "mhla")                                                                                              \
    X(LINEAR, linear, "linear")                                                                                        \
    X(SOFTMAX, softmax, "softmax")                                                                                     \
    X(FOCUSED, focused, "focused")                                                                                     \
    X(INLINE, inline, "inline")                                                                                        \
    X(MALA, mala, "mala")                                                                                              \
    X(RALA, rala, "rala")                                                                                              \
    X(LIT, lit, "lit")                                                                                                 \
    X(GLA, gla, "gla")                                                                                                 \
    X(GLA_MHLA, gla_mhla, "gla-mhla")
enum {
#define X(NAME, name, text) MHLA_GRID_##NAME,
    MHLA_GRID_LIST(X)
#undef X
        MHLA_GRID_KINDS
};

/* A field that does not concern the variant is 0. */
typedef struct mhla_grid_settings {
    int attention; /* MHLA_GRID_* */
    int dim, heads;
    int inner_norm; /* a LayerNorm of its own, eps 1e-5, before the projections, as released */
    int qkv_bias;
    int apart; /* MHLA, linear: q, k and v are matrices of their own under diffusers' names: to_q, to_k, to_v, norm_q, norm_k */
    int qk_norm; /* RMS norm of q and k over all heads */
    double qk_norm_eps;
    int lepe; /* kernel of the depthwise convolution of v that is added to the result, 0 = none. Focused LA: its filters
                      are shared by heads (dwc), LiT's too; InLine: each image predicts its own (residual) */
    int pointwise; /* MHLA, softmax: as MALA and RALA are, around their own operator: names, 1x1 convolutions, gate, rope */
    int gate; /* the result is multiplied: MALA, RALA, pointwise: by a fourth part of the projection; others: by silu(W_g x + b_g),
                      before LePE is added ... */
    int gate_norm;               /* ... after an RMS norm of each head */
    int rope;                    /* MALA, RALA, pointwise: axial rotary embedding, a class token stays unturned */
    int power;                   /* Focused LA: of its features */
    int elu;                     /* MHLA: phi(x) = elu(x) + 1 */
    double feature_eps, den_eps; /* else phi(x) = relu(x) + eps; all but softmax */
    int blocks[2];               /* MHLA: pieces per axis of the grid */
    int denominator;             /* MHLA: mhla_denominator */
    int mix;                     /* MHLA: mhla_mix_init */
    double mix_low;              /* MHLA: after each update the matrix is clipped to [mix_low, 1] */
    double expand_k, expand_v;   /* GLA, GLA_MHLA: widths of keys and values over dim */
    int rank;                    /* GLA: of the matrices of the log-decays ... */
    double divisor;              /* ... which are divided by this */
    int mix_constant;            /* MHLA: no weight decay on it */
    int class_token;             /* 1: a token in front of the grid; MHLA: it is a block of its own */
    int64_t tokens; /* of the grid that parameters belong to, class token counted; Focused LA's positions */
    mhla_initial weights, filters; /* of linear layers, of depthwise convolutions */
} mhla_grid_settings;

enum { MHLA_GRID_OWN = 6, MHLA_GRID_INLINE_HEAD = 32 }; /* the size of a head of InLine */

typedef struct mhla_grid_attention {
    const mhla_grid_settings *settings;
    mhla_layer norm;     /* the attention's own */
    mhla_layer qkv, out; /* [3D,D] ([4D,D,1,1] with a pointwise gate), [D,D] */
    mhla_layer apart[3]; /* instead of qkv: [D,D] each */
    mhla_param *q_norm, *k_norm;
    mhla_layer lepe;       /* [D,1,k,k]; Focused LA: [K,1,k,k] */
    mhla_layer gate;       /* [D,D] */
    mhla_param *gate_norm; /* [K] */
    mhla_param *mix;       /* MHLA: [M,M,1,1], how much query block i takes from block b; a class token is block 0 */
    mhla_param *own[MHLA_GRID_OWN]; /* what only one variant has: its file says what */
} mhla_grid_attention;

/* What belongs to a size of grid. */
typedef struct mhla_grid_place {
    int H, W, first; /* first: tokens in front of the grid */
    mhla_plan *plan;
    float *cos, *sin; /* [first + H*W, K/2] one allocation; NULL without rotary embedding */
} mhla_grid_place;

/* dim times `expand`, which may be a quotient that was rounded. */
static inline int64_t mhla_grid_width(const mhla_grid_settings *s, double expand) {
    return (int64_t)(s->dim * expand + 1e-6);
}

const char *mhla_grid_name(int attention);
int mhla_grid_named(const char *name); /* -1: none */
/* What belongs to a variant as its authors wrote it, whatever surrounds it. */
void mhla_grid_preset(mhla_grid_settings *s);
/* Do the settings fit together, and a grid of this size? Everything else trusts checked settings. */
mhla_status mhla_grid_check(const mhla_grid_settings *s, int64_t H, int64_t W);
/* The settings live as long as the parameters. */
void mhla_grid_declare(mhla_grid_attention *a, mhla_params *ps, const mhla_grid_settings *s, const char *name);
mhla_status mhla_grid_place_make(mhla_grid_place *g, const mhla_grid_settings *s, int H, int W);
void mhla_grid_place_free(mhla_grid_place *g);
/* What the attention makes of h [B,T,dim], the output layer left out. */
mhla_tensor *mhla_grid_forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h);
/* Multiply-adds of T tokens, `patches` of which are the grid, projections included: every product; or, as the paper counts,
 * the linear layers and convolutions alone. */
int64_t mhla_grid_cost(const mhla_grid_settings *s, int64_t T, int64_t patches, int as_paper);
/* MHLA's blocks, a class token's counted. */
int64_t mhla_grid_blocks(const mhla_grid_settings *s);

/* ---- For the variants ---- */

typedef struct mhla_grid_kind {
    mhla_kind op;
    void (*preset)(mhla_grid_settings *s); /* NULL: nothing is its own */
    void (*declare)(mhla_grid_attention *a, mhla_params *ps, const char *name);
    /* Adds to sizes and kind what T tokens need; NULL: nothing. */
    void (*plan)(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T);
    mhla_tensor *(*forward)(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h);
    int64_t (*cost)(const mhla_grid_settings *s, int64_t T, int as_paper); /* beyond the projections and LePE */
    int64_t (*projections)(
        const mhla_grid_settings *s); /* multiply-adds of a token; NULL: q, k, v, gate, output of dim */
} mhla_grid_kind;

#define X(NAME, name, text) extern const mhla_grid_kind mhla_grid_##name;
MHLA_GRID_LIST(X)
#undef X

/* The parameters that most variants have, in the order of the published lists: norm (unless it is there already), q/k/v,
 * norms of q and k; LePE; the mixing matrix; the gate and the output layer. */
void mhla_grid_declare_inputs(mhla_grid_attention *a, mhla_params *ps, const char *name, const char *qkv);
/* MHLA's matrix. */
void mhla_grid_declare_mix(mhla_grid_attention *a, mhla_params *ps, const char *name);
void mhla_grid_declare_lepe(mhla_grid_attention *a, mhla_params *ps, const char *name);
void mhla_grid_declare_outputs(mhla_grid_attention *a, mhla_params *ps, const char *name, const char *out);
/* NAME of a part: the text of the last call on this thread lives until the next. */
const char *mhla_grid_part(const char *name, const char *part);

/* h after its own norm, then q, k and v of every token, q and k normalised; `rest` is what a projection has beyond, or
 * the gate. */
typedef struct mhla_grid_parts {
    mhla_tensor *h, *q, *k, *v, *rest;
} mhla_grid_parts;
mhla_grid_parts mhla_grid_project(mhla_tape *t, const mhla_grid_attention *a, mhla_tensor *h);
/* residual (NULL: 0) + LePE of x on the grid. */
mhla_tensor *mhla_grid_lepe(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *residual,
                            mhla_tensor *x);
/* Forward of a variant that has nothing of its own but the operator: q, k, v; the operator, added onto LePE; a gate. */
mhla_tensor *mhla_grid_plain(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h);
/* What MHLA does between its projections, with keys and values of these widths. */
int64_t mhla_grid_mhla_cost(const mhla_grid_settings *s, int64_t T, int64_t keys, int64_t values);
/* Declaration and forward of MALA and RALA, and of what is `pointwise`. */
void mhla_grid_declare_pointwise(mhla_grid_attention *a, mhla_params *ps, const char *name);
mhla_tensor *mhla_grid_pointwise(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h);
/* The n = K/4 frequencies of a rotary embedding of heads of K, one axis: 10000^(-i/(n-1)). */
double mhla_grid_frequency(int K, int i);
/* Linear attention: S = sum k v, q S, q z. */
int64_t mhla_grid_linear_cost(const mhla_grid_settings *s, int64_t T);

#endif
