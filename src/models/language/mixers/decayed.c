/* The network of GLA and RetNet (decayed.h). */
#include "models/language/mixers/decayed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/layers.h"
#include "nn/op.h"

enum { Q, K, V, GATE, PARTS };

typedef struct layer {
    mhla_carry_size size;
    mhla_decayed *shared;
    mhla_stream_parts parts;
    mhla_layer low, high; /* gk_proj.0 [R,D], gk_proj.1 [G*K,R] */
} layer;

mhla_status mhla_decayed_settle(mhla_stream_settings *s, const mhla_lm_config *c) {
    MHLA_TRY(mhla_stream_settle(s, c));
    if (mhla_feature_dims(s->feature_map, s->key_dim) != s->key_dim || mhla_feature_matrices(s->feature_map))
        return mhla_fail(MHLA_EINVAL, "feature_map is not a function of single numbers: with decays it must be");
    return MHLA_OK;
}

int64_t mhla_decayed_multiply_adds(const mhla_stream_settings *s, const mhla_lm_config *c, int gate, int rank) {
    const int64_t H = s->num_heads, G = s->kv_heads, k = s->key_dim, v = s->value_dim;
    return mhla_stream_multiply_adds(s, c, gate) + (H - G) * k * v + H * k * v /* the decay of the state */ +
           rank * (c->width + G * k);
}

int64_t mhla_decayed_state_bytes(const void *settings, const mhla_lm_config *c, int64_t tokens) {
    const mhla_stream_settings *s = settings;
    (void)c, (void)tokens;
    return mhla_stream_conv_bytes(s) + (int64_t)s->num_heads * s->key_dim * s->value_dim * (int64_t)sizeof(float);
}

void mhla_decayed_describe(const void *settings, mhla_mixer_facts *facts) {
    *facts = (mhla_mixer_facts){.heads = ((const mhla_stream_settings *)settings)->num_heads, .marks = 1};
}

void mhla_decayed_close(void *shared) {
    mhla_decayed *x = shared;
    if (x == NULL) return;
    mhla_plan_free(x->plan.plan);
    mhla_angles_free(&x->x.angles);
    free(x->fixed);
    free(x);
}

mhla_status mhla_decayed_open(void **shared, const mhla_decayed *given) {
    const mhla_stream_settings *s = given->x.s;
    mhla_decayed *x = calloc(1, sizeof *x);
    float *fixed = calloc((size_t)s->num_heads, sizeof *fixed);
    if (x == NULL || fixed == NULL) {
        free(x);
        free(fixed);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    *x = *given;
    x->fixed = fixed;
    for (int h = 0; h < s->num_heads; h++) fixed[h] = (float)log1p(-exp2(-5.0 - h)); /* of head h: 1 - 2^(-5-h) */
    x->plan.desc = (mhla_plan_desc){.size = sizeof x->plan.desc,
                                    .kind = x->rank ? MHLA_KIND_GLA : MHLA_KIND_SIMPLE_GLA,
                                    .heads = s->num_heads,
                                    .key_dim = s->key_dim,
                                    .value_dim = s->value_dim};
    const mhla_status status = mhla_plan_create(&x->plan.plan, &x->plan.desc);
    if (status != MHLA_OK) {
        mhla_decayed_close(x);
        return status;
    }
    *shared = x;
    return MHLA_OK;
}

mhla_status mhla_decayed_create(void **to, void *shared, mhla_params *ps, const char *prefix, int index) {
    mhla_decayed *x = shared;
    const mhla_stream_settings *s = x->x.s;
    const int64_t keys = (int64_t)s->kv_heads * s->key_dim, values = (int64_t)s->kv_heads * s->value_dim;
    const mhla_initial usual = MHLA_NORMAL(x->x.deviation);
    layer *l = calloc(1, sizeof *l);
    char name[128];
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *l = (layer){.size = {.index = index,
                          .plan = x->plan.plan,
                          .width = s->conv,
                          .convs = {(int64_t)s->num_heads * s->key_dim, keys, values}},
                 .shared = x};
    mhla_stream_add(&l->parts, &x->x, ps, prefix);
    if (x->rank) {
        snprintf(name, sizeof name, "%s.gk_proj.0", prefix);
        l->low = mhla_layer_matrix(ps, x->rank, x->x.width, 0, usual, name);
        snprintf(name, sizeof name, "%s.gk_proj.1", prefix);
        l->high = mhla_layer_matrix(ps, keys, x->rank, 1, usual, name);
    }
    *to = l;
    return MHLA_OK;
}

/* Of packed texts each begins anew: rows of the table [T, dims/2], twice. */
static mhla_status packed_angles(mhla_tape *t, mhla_rotary *a, const mhla_mixer_run *run, int64_t T) {
    const int64_t half = a->rope_dim / 2;
    float *cos = mhla_tape_floats(t, T * half), *sin = mhla_tape_floats(t, T * half);
    if (cos == NULL || sin == NULL || mhla_tape_dry(t)) return mhla_tape_status(t);
    for (int64_t s = 0; s < run->sequences; s++) {
        const int64_t at = run->cu_seqlens[s] * half, n = (run->cu_seqlens[s + 1] - run->cu_seqlens[s]) * half;
        memcpy(cos + at, a->cos, sizeof *cos * (size_t)n);
        memcpy(sin + at, a->sin, sizeof *sin * (size_t)n);
    }
    a->cos = cos;
    a->sin = sin;
    return MHLA_OK;
}

/* q and k, rotated by their positions. */
static void rotate(mhla_tape *t, mhla_angles *angles, const mhla_mixer_run *run, int K_dims, mhla_tensor **y) {
    int64_t rows;
    mhla_rotary a = {.rope = MHLA_ROPE_HALF, .head_dim = K_dims, .rope_dim = angles->dims};
    if (angles->dims == 0 || y[Q] == NULL || y[K] == NULL) return;
    if (run->pass) { /* where every row has its own */
        a.cos = angles->cos;
        a.sin = angles->sin;
    } else {
        mhla_status status = mhla_angles_table(angles, y[Q]->shape[1], &a.cos, &a.sin, &rows);
        if (status == MHLA_OK && run->cu_seqlens) status = packed_angles(t, &a, run, y[Q]->shape[1]);
        if (status != MHLA_OK) {
            mhla_tape_fail(t, status, "%s", mhla_message());
            return;
        }
    }
    y[Q] = mhla_nn_rotary(t, a, y[Q]);
    y[K] = mhla_nn_rotary(t, a, y[K]);
}

mhla_tensor *mhla_decayed_forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual,
                                  mhla_tensor *h) {
    const layer *l = of;
    mhla_decayed *x = l->shared;
    const mhla_stream_settings *s = x->x.s;
    const int copies = s->num_heads / s->kv_heads;
    mhla_tensor *y[PARTS] = {NULL}, *decay = NULL;
    mhla_stream_project(t, y, &l->parts, &x->x, run, l->size.index, offsetof(mhla_carry, past), 1, h);
    rotate(t, &x->x.angles, run, s->key_dim, y);
    if (x->rank) {
        decay = mhla_nn_linear(t, l->low.w, NULL, MHLA_ACT_NONE, NULL, h);
        decay = mhla_nn_linear(t, l->high.w, l->high.b, MHLA_ACT_NONE, NULL, decay);
        decay = mhla_nn_log_sigmoid(t, (float)x->divisor, x->least > 0.0 ? -INFINITY : (float)x->least, decay);
        decay = mhla_nn_repeat_heads(t, s->key_dim, copies, decay);
    }
    y[K] = mhla_nn_repeat_heads(t, s->key_dim, copies, y[K]);
    y[V] = mhla_nn_repeat_heads(t, s->value_dim, copies, y[V]);
    mhla_tensor *o = mhla_carry_recur(
        t, &l->size, run, &x->plan,
        (mhla_carried){.q = y[Q], .k = y[K], .v = y[V], .decay = decay, .fixed = x->rank ? NULL : x->fixed});
    return mhla_stream_finish(t, &l->parts, &x->x, residual, o, y[GATE]);
}

mhla_status mhla_decayed_begin(void *shared, const mhla_pass *pass) {
    return mhla_angles_begin(&((mhla_decayed *)shared)->x.angles, pass);
}
