/* What models of images share: layers by name, attention over a grid of patches, and what that costs. */
#include "models/parts.h"

mhla_part mhla_part_linear(mhla_params *params, int64_t N, int64_t K, int bias, const char *name) {
    mhla_part l = {.w = mhla_params_addf(params, MHLA_SHAPE(N, K), MHLA_PARAM_DECAY, "%s.weight", name)};
    if (bias) l.b = mhla_params_addf(params, MHLA_SHAPE(N), 0, "%s.bias", name);
    return l;
}

mhla_part mhla_part_depthwise(mhla_params *params, int64_t D, int k, const char *name) {
    return (mhla_part){mhla_params_addf(params, MHLA_SHAPE(D, 1, k, k), MHLA_PARAM_DECAY, "%s.weight", name),
                       mhla_params_addf(params, MHLA_SHAPE(D), 0, "%s.bias", name)};
}

mhla_part mhla_part_pointwise(mhla_params *params, int64_t N, int64_t K, int bias, const char *name) {
    mhla_part l = {.w = mhla_params_addf(params, MHLA_SHAPE(N, K, 1, 1), MHLA_PARAM_DECAY, "%s.weight", name)};
    if (bias) l.b = mhla_params_addf(params, MHLA_SHAPE(N), 0, "%s.bias", name);
    return l;
}

mhla_part mhla_part_grouped(mhla_params *params, int64_t N, int64_t K, const char *name) {
    return (mhla_part){mhla_params_addf(params, MHLA_SHAPE(N, K, 1), MHLA_PARAM_DECAY, "%s.weight", name),
                       mhla_params_addf(params, MHLA_SHAPE(N), 0, "%s.bias", name)};
}

mhla_param *mhla_part_mix(mhla_params *params, int64_t M, int structure, const char *name) {
    mhla_param *mix = mhla_params_add(params, name, MHLA_SHAPE(M, M, 1, 1), MHLA_PARAM_DECAY | MHLA_PARAM_MIX);
    if (mix == NULL) return NULL;
    mix->mix_low = structure == MHLA_STRUCTURE_RELEASED ? 0.0f : 1e-6f;
    mix->mix_high = 1.0f;
    return mix;
}

mhla_plan_desc mhla_grid_attention_plan(const mhla_grid_attention *a) {
    static const mhla_kind kinds[MHLA_ATTENTIONS] = {
        [MHLA_ATTENTION_MHLA] = MHLA_KIND_BIDIRECTIONAL, [MHLA_ATTENTION_LINEAR] = MHLA_KIND_LINEAR,
        [MHLA_ATTENTION_SOFTMAX] = MHLA_KIND_SOFTMAX,    [MHLA_ATTENTION_FOCUSED] = MHLA_KIND_FOCUSED,
        [MHLA_ATTENTION_INLINE] = MHLA_KIND_INLINE,      [MHLA_ATTENTION_MALA] = MHLA_KIND_MALA,
        [MHLA_ATTENTION_RALA] = MHLA_KIND_RALA,
    };
    mhla_plan_desc desc = {
        .size = sizeof desc,
        .kind = kinds[a->attention],
        .heads = a->heads,
        .key_dim = a->dim / a->heads,
        .value_dim = a->dim / a->heads,
    };
    switch (a->attention) {
    case MHLA_ATTENTION_MHLA: desc.denominator = (mhla_denominator)a->denominator; /* fall through */
    case MHLA_ATTENTION_LINEAR:
    case MHLA_ATTENTION_FOCUSED: desc.feature_eps = (float)a->feature_eps; /* fall through */
    case MHLA_ATTENTION_MALA:
    case MHLA_ATTENTION_RALA: desc.den_eps = (float)a->den_eps; break;
    default: break;
    }
    desc.focus_power = a->power;
    if (a->rope) desc.rope = MHLA_ROPE_INTERLEAVED;
    return desc;
}

int64_t mhla_grid_attention_cost(const mhla_grid_attention *a, int64_t T, int64_t M) {
    const int64_t D = a->dim, K = a->dim / a->heads;
    if (a->attention == MHLA_ATTENTION_SOFTMAX) return 2 * T * T * D; /* scores, their use */
    int64_t cost = 2 * T * D * K + T * D;                             /* S, q S, q z */
    if (a->attention == MHLA_ATTENTION_LINEAR || a->attention == MHLA_ATTENTION_FOCUSED) return cost;
    if (a->attention != MHLA_ATTENTION_MHLA) return cost + T * D;      /* times the mean of v; RALA: mean of q, keys */
    cost += M * M * D * K;                                             /* S' = m S */
    if (a->denominator == MHLA_DEN_EQ4) cost += M * M * D;             /* z' = m z */
    if (a->denominator == MHLA_DEN_RELEASED) cost += M * T * a->heads; /* of the products */
    if (a->denominator == MHLA_DEN_NONE) cost -= T * D;
    return cost;
}
