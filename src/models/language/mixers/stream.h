/* What MHLA and linear attention have in common: q, k and v of every token, perhaps convolved, features of q and k, a causal operator whose
 * memory is a sum (mhla_state), a norm of its heads, perhaps a gate. The two fill in a mhla_stream and share the rest.
 *
 *   q, k, v = convolve(projections of h);  q, k = features(q), features(k)
 *   y = o_proj(rms(operator(q, k, v)) * silu(g))
 *
 * Their settings begin with mhla_stream_settings. GLA and RetNet have the same around another operator (decayed.h). */
#ifndef MHLA_MODELS_MIXER_STREAM_H
#define MHLA_MODELS_MIXER_STREAM_H

#include "models/language/lm.h"
#include "models/language/mixers/angles.h"
#include "models/language/mixers/features.h"
#include "models/language/mixers/past.h"

typedef struct mhla_stream_settings {
    int num_heads, num_kv_heads; /* 0: as many */
    double expand_k, expand_v;   /* keys and values of all heads over hidden_size */
    int feature_map;             /* mhla_lm_feature */
    int use_short_conv, conv_size;
    /* settled */
    int kv_heads, key_dim, value_dim; /* G, K, V of a head; K before the feature map */
    int conv;                         /* width of the convolutions; 0: none */
} mhla_stream_settings;

/* Its rows of a table of settings; F is the table's macro. */
#define MHLA_STREAM_FIELDS(F)                                                                                          \
    F("num_heads", INT, INT, s.num_heads, 1, 256, NULL, "attention heads"),                                            \
        F("num_kv_heads", INT, OPTIONAL, s.num_kv_heads, 0, 256, NULL, "heads of keys and values, 0: as many"),        \
        F("expand_k", REAL, REAL, s.expand_k, 0.001, 16, NULL, "keys of all heads over hidden_size"),                  \
        F("expand_v", REAL, REAL, s.expand_v, 0.001, 16, NULL, "values of all heads over hidden_size"),                \
        F("feature_map", TEXT, CHOICE, s.feature_map, 0, 0, MHLA_LM_FEATURES, "features of q and k"),                  \
        F("use_short_conv", BOOL, BOOL, s.use_short_conv, 0, 0, NULL, "a short convolution of q, k, v"),               \
        F("conv_size", INT, INT, s.conv_size, 1, 64, NULL, "its width")

/* What fla's model_type "gla" stands for, "mhla", "gla" or, where attn_extends is neither of them, "other": by the tensors, then by
 * attn_extends, which is "mhla" if absent. NULL: it is another model_type. */
const char *mhla_stream_kind(const json_t *tree, const mhla_safetensors *file);

/* Behind the keys of MHLA_STREAM_FIELDS in a config.json of fla's GLA or RetNet, where no feature map is null. */
void mhla_stream_write(json_t *tree, const mhla_stream_settings *s);

mhla_status mhla_stream_settle(mhla_stream_settings *s, const mhla_lm_config *c);

/* What the layers of a group share. */
typedef struct mhla_stream {
    const mhla_stream_settings *s;
    int64_t width;
    double norm_eps, deviation;
    int gate;           /* the norm is multiplied by silu(g_proj h) */
    int mix;            /* M: there is a mixing matrix; 0: none */
    int norm_q, norm_k; /* features over their sum */
    const char *norm;   /* name of the norm's weight */
    mhla_plan_desc desc;
    mhla_plan *plan;
    mhla_angles angles;
} mhla_stream;

/* The projections around the operator. */
typedef struct mhla_stream_parts {
    mhla_layer q, k, v, g, o; /* [H*K,D], [G*K,D], [G*V,D], [H*V,D], [D,H*V] */
    mhla_param *conv[3];      /* [.,1,W] of q, k, v */
    mhla_param *norm;         /* [V] of what the operator gives, each head */
    mhla_feature_map map_q, map_k;
} mhla_stream_parts;

void mhla_stream_add(mhla_stream_parts *p, const mhla_stream *x, mhla_params *ps, const char *prefix);
/* y[0..2]: q, k and v of h, convolved, with their features (whole: of any map, mhla_feature_map_apply); y[3]: the gate, if there is one.
 * The memory of layer `index` has its three mhla_past at `pasts`. */
void mhla_stream_project(mhla_tape *t, mhla_tensor **y, const mhla_stream_parts *p, const mhla_stream *x,
                         const mhla_mixer_run *run, int index, size_t pasts, int whole, mhla_tensor *h);
/* residual + o_proj(rms(o) * silu(gate)) */
mhla_tensor *mhla_stream_finish(mhla_tape *t, const mhla_stream_parts *p, const mhla_stream *x, mhla_tensor *residual,
                                mhla_tensor *o, mhla_tensor *gate);

/* Takes `given` over, makes its plan. heads, dims and features of the description follow from the settings. */
mhla_status mhla_stream_open(void **shared, const mhla_stream *given);
void mhla_stream_close(void *shared);

/* Costs that both have: projections, convolutions, feature maps, S += k v^T and q S; bytes of convolutions and of one summary. */
int64_t mhla_stream_multiply_adds(const mhla_stream_settings *s, const mhla_lm_config *c, int gate);
int64_t mhla_stream_conv_bytes(const mhla_stream_settings *s);
int64_t mhla_stream_summary_bytes(const mhla_stream_settings *s, int normed);

/* The network and the memory, as rows of a mhla_mixer. */
mhla_status mhla_stream_create(void **to, void *shared, mhla_params *ps, const char *prefix, int index);
mhla_tensor *mhla_stream_forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual,
                                 mhla_tensor *h);
mhla_status mhla_stream_policy(void **to, void *shared, const mhla_terms *terms, int64_t *limit);
void mhla_stream_policy_free(void *of);
mhla_status mhla_stream_begin(void *shared, const mhla_pass *pass);
mhla_status mhla_stream_remember(void **to, void *of, const void *p);
void mhla_stream_forget(void *of);
mhla_status mhla_stream_fork(void **to, const void *of);
size_t mhla_stream_memory_bytes(const void *of);
size_t mhla_stream_step_bytes(const void *of, int64_t tokens);
int64_t mhla_stream_nearest(const void *of, int64_t tokens, int64_t mark);
mhla_status mhla_stream_back(void *of, int64_t place, const unsigned char *mark);
size_t mhla_stream_mark_bytes(const void *of);
void mhla_stream_mark(const void *of, unsigned char *to);
size_t mhla_stream_saved_bytes(const void *of);
mhla_status mhla_stream_save(const void *of, mhla_sink *sink);
mhla_status mhla_stream_load(void *of, mhla_saved *in, int64_t tokens);

#define MHLA_STREAM_ROWS                                                                                               \
    .close = mhla_stream_close, .create = mhla_stream_create, .free = free, .forward = mhla_stream_forward,            \
    .policy = mhla_stream_policy, .policy_free = mhla_stream_policy_free, .begin = mhla_stream_begin,                  \
    .remember = mhla_stream_remember, .forget = mhla_stream_forget, .fork = mhla_stream_fork,                          \
    .memory_bytes = mhla_stream_memory_bytes, .step_bytes = mhla_stream_step_bytes, .nearest = mhla_stream_nearest,    \
    .back = mhla_stream_back, .mark_bytes = mhla_stream_mark_bytes, .mark = mhla_stream_mark,                          \
    .saved_bytes = mhla_stream_saved_bytes, .save = mhla_stream_save, .load = mhla_stream_load

#endif
