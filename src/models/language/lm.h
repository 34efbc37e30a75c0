/* Decoders of text: what a model of this family is (its config), its parameters by name, its forward pass. Attention is
 * chosen per layer: MHLA, softmax (Transformer++, Llama) or linear. lm.c is the paper; lm_config.c has what can be chosen,
 * lm_config_file.c reads and writes it.
 *
 *   training      hidden = mhla_lm_forward(t, lm, &run, ids, B, T); loss from hidden and mhla_lm_output(lm), in pieces
 *   inference     the same, with `attend` (and `convolve`) of the run set: whoever keeps states of sequences is handed
 *                 q, k, v of each layer and returns what attention makes of them */
#ifndef MHLA_MODELS_LM_H
#define MHLA_MODELS_LM_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/language/rope.h"
#include "nn/nn.h"

enum { MHLA_LM_LAYERS = 256, MHLA_LM_ENDS = 32 }; /* at most */

/* How a layer attends. */
enum { MHLA_ATTENTION_MHLA, MHLA_ATTENTION_LINEAR, MHLA_ATTENTION_SOFTMAX };

/* Under which names the parameters go: flash-linear-attention's, or Hugging Face's Llama. The same network. */
enum { MHLA_LM_NAMES_FLA, MHLA_LM_NAMES_HF };

/* Feature maps of q and k, config: feature_map. The last four are computed here, the operator then takes them as they
 * are; hedgehog makes 2K of K dims, dpfp 8K. */
enum {
    MHLA_LM_RELU,
    MHLA_LM_ELU,
    MHLA_LM_IDENTITY,
    MHLA_LM_HEDGEHOG,            /* softmax([2(Wx+b), -2(Wx+b)]) */
    MHLA_LM_T2R,                 /* relu(Wx) */
    MHLA_LM_DPFP,                /* as released: products of [relu(x), -relu(x)] with itself, rolled by 1..4 */
    MHLA_LM_ELEMENTWISE_PRODUCT, /* (W1x+b1)(W2x+b2) */
    MHLA_LM_DPFP_PAPER           /* relu(-x) where the release has -relu(x) */
};

/* How one kind of layer attends. A field that does not concern the kind is 0. */
typedef struct mhla_lm_mixer {
    int heads, kv_heads;    /* H, G */
    int key_dim, value_dim; /* K, V of a head; K before the feature map */
    mhla_rope rope;         /* softmax: of q and k; MHLA: of the features */
    int rope_dim;           /* how many dims turn */
    double rope_theta;
    mhla_scaling scaling; /* softmax */
    int qkv_bias, out_bias;
    int qk_norm; /* softmax: RMS norm of each head of q and k */
    double qk_norm_eps;
    int64_t window;                    /* softmax: tokens seen; 0 = all */
    int feature;                       /* MHLA, linear */
    int chunk, blocks;                 /* MHLA: C, M */
    int gate;                          /* MHLA: the per-head norm is multiplied by silu(g x) */
    int conv;                          /* width of the causal convolution (and silu) of q, k, v; 0 = none */
    int norm_q, norm_k, norm_features; /* linear: features over their sum; a denominator */
} mhla_lm_mixer;

typedef struct mhla_lm_config {
    char model[32]; /* the preset that the sizes come from, or the model_type of the file */
    int naming;
    int layers;
    unsigned char kind[MHLA_LM_LAYERS]; /* MHLA_ATTENTION_*, of each layer */
    mhla_lm_mixer mixer[3];             /* by kind; those that occur are filled */
    int vocabulary, width, hidden;      /* hidden: of the SwiGLU MLP */
    double norm_eps;
    int mlp_bias;
    int tied;                   /* the output matrix is the embedding */
    int64_t positions;          /* max_position_embeddings, 0 = unknown */
    int32_t bos, eos;           /* -1: none */
    int32_t ends[MHLA_LM_ENDS]; /* [end_count] all that end a text, eos perhaps among them; none: eos alone does */
    int end_count;
    double deviation; /* of fresh weights */
} mhla_lm_config;

/* The sizes of a preset ("lm_nano", "lm_340m", ...) with one attention (MHLA_ATTENTION_*) in all layers. */
mhla_status mhla_lm_preset(mhla_lm_config *c, const char *model, int attention);

/* The keys of `key=value`: rows as a recipe wants them, without values of their own (presets give those), ended by an
 * empty one. Preset, then what `given`, a recipe of these rows with `prefix` before their names, was given. */
const mhla_recipe_row *mhla_lm_rows(void);
mhla_status mhla_lm_from_recipe(mhla_lm_config *c, const mhla_recipe *given, const char *prefix);

/* config.json and back. Reading takes fla's model types (gla with MHLA in it, mhla, transformer, linear_attn, hybrids)
 * and Hugging Face's Llama; what the tensors of `file` (may be NULL) say counts more than the keys. MHLA_ENOTSUP names
 * the part that is not known here. `path` is for messages. Writing makes an object with every key, a new reference, NULL
 * without memory; who re-saves an opened model keeps the keys of its file instead. */
mhla_status mhla_lm_config_read(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path);
json_t *mhla_lm_config_tree(const mhla_lm_config *c);
/* Tokens that end a text: `key` of an object, a number or a list of them. Nothing changes where it is absent. */
mhla_status mhla_lm_ends_read(mhla_lm_config *c, const json_t *tree, const char *key, const char *path);
/* Is this the config.json of a language model? By its model_type. */
int mhla_lm_config_fits(const json_t *tree);
#define MHLA_LM_TYPES "gla with MHLA in it, mhla, transformer, linear_attn, llama, mistral, qwen2, qwen3"

/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_lm_config_check(const mhla_lm_config *c);

/* Tokens that it was made for: M * chunk of MHLA layers, else positions; 0 = no limit known. */
int64_t mhla_lm_context(const mhla_lm_config *c);

/* ---- The model ---- */

typedef struct mhla_lm mhla_lm;

/* All parameters zero; mhla_params_init or a file fills them. */
mhla_status mhla_lm_create(mhla_lm **lm, const mhla_lm_config *config);
/* The same with its matrices kept as bfloat16 or Q8_0: to infer, not to train (nn.h, storage). */
mhla_status mhla_lm_create_as(mhla_lm **lm, const mhla_lm_config *config, mhla_dtype storage);
void mhla_lm_free(mhla_lm *lm); /* NULL is legal */
const mhla_lm_config *mhla_lm_config_of(const mhla_lm *lm);
mhla_params *mhla_lm_params(const mhla_lm *lm);
/* The matrix of the output [vocabulary, width]: the embedding where tied. logits = hidden x its transpose. */
mhla_param *mhla_lm_output(const mhla_lm *lm);

/* Of layer i: the plan of its attention (MHLA_BEYOND_ERROR), its description to make others of (another policy, no rotary
 * because keys are kept rotated), and its mixing matrix (NULL but for MHLA). The model's. */
const mhla_plan *mhla_lm_plan(const mhla_lm *lm, int i);
void mhla_lm_plan_desc(const mhla_lm *lm, int i, mhla_plan_desc *desc);
mhla_param *mhla_lm_mix(const mhla_lm *lm, int i);

/* The rotary table of layer i with at least `rows` rows [rows, rope_dim/2], and how many it has; grows by doubling, older
 * tables stay valid. All NULL and 0 where the layer has no rotary. Or rows first .. first+n-1 into the caller's memory,
 * for positions so large that a table would be a waste. */
mhla_status mhla_lm_rope(mhla_lm *lm, int i, int64_t rows, const float **cos, const float **sin, int64_t *have);
void mhla_lm_rope_rows(const mhla_lm *lm, int i, float *cosine, float *sine, int64_t first, int64_t n);

/* What a layer hands to whoever computes its attention: q [B,T,H*F], k [B,T,G*F], v [B,T,G*V] (perhaps slices: mind ld),
 * after projections, norms of q and k, convolutions and the maps that are no part of the plan; not yet rotated. F is the
 * key_dim of the plan. The result is [B,T,H*V]. */
typedef struct mhla_lm_attend {
    int layer, kind; /* MHLA_ATTENTION_* */
    const mhla_plan *plan;
    const mhla_call *call; /* rotary table of T rows, cu_seqlens of the run */
    mhla_param *mix;
    mhla_tensor *q, *k, *v;
} mhla_lm_attend;

/* A causal depthwise convolution of one of them, with silu: y_t = silu(sum_j w[d,0,j] x_{t-W+1+j}), x [B,T,D], w [D,1,W];
 * before the first token are zeros, or the last inputs of the sequence. which: 0 q, 1 k, 2 v. */
typedef struct mhla_lm_convolve {
    int layer, which;
    mhla_param *w;
    mhla_tensor *x;
} mhla_lm_convolve;

/* What a forward pass may be told. Zero: none of these. */
typedef struct mhla_lm_run {
    int recompute; /* layers are computed again in the backward pass instead of kept */
    const int64_t
        *cu_seqlens;     /* packed: B = 1, sequence s is tokens cu_seqlens[s] .. [s+1]-1; none sees another. Lives */
    int64_t sequences;   /* until backward */
    mhla_tensor **trace; /* [layers + 1] gets the embedding and what comes out of each layer */
    /* With states: called instead of the operator. Both or, where no layer has a convolution, attend alone; tapes that
     * do not record only. T tokens are then whatever the callee makes of them: several sequences one after the other, at
     * any positions. No table of T rows is made: call has no rotary. */
    mhla_tensor *(*attend)(void *user, mhla_tape *t, const mhla_lm_attend *a);
    mhla_tensor *(*convolve)(void *user, mhla_tape *t, const mhla_lm_convolve *c);
    void *user;
} mhla_lm_run;

/* Hidden states [B,T,width] after the last norm, of ids [B*T], which live until backward. An id out of range fails the
 * tape with MHLA_EINVAL. */
mhla_tensor *mhla_lm_forward(mhla_tape *t, mhla_lm *lm, const mhla_lm_run *run, const int32_t *ids, int64_t B,
                             int64_t T);
/* residual (or NULL) + the attention of one layer, of its normed input h [B,T,width]: for tests, for looking into a model. */
mhla_tensor *mhla_lm_attention(mhla_tape *t, mhla_lm *lm, const mhla_lm_run *run, int i, mhla_tensor *residual,
                               mhla_tensor *h);
/* hidden [...,width] -> logits [...,vocabulary], all at once: for few rows. */
mhla_tensor *mhla_lm_logits(mhla_tape *t, mhla_lm *lm, mhla_tensor *hidden);

/* Multiply-adds of one token, the output matrix included, where `tokens` are seen (mean over them, for the parallel form);
 * bytes of the state of one sequence after so many tokens. */
int64_t mhla_lm_multiply_adds(const mhla_lm_config *c, int64_t tokens);
int64_t mhla_lm_state_bytes(const mhla_lm_config *c, int64_t tokens);

#endif
