/* The network and the memory of MHLA and linear attention (stream.h). */
#include "models/language/mixers/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/layers.h"
#include "nn/op.h"

enum { Q, K, V, GATE, PARTS };

/* ---- Settings ---- */

const char *mhla_stream_kind(const json_t *tree, const mhla_safetensors *file) {
    const json_t *value = json_object_get(tree, "attn_extends");
    const char *type = json_string_value(json_object_get(tree, "model_type")), *extends = json_string_value(value);
    if (type == NULL || strcmp(type, "gla") != 0) return NULL;
    if (value && !json_is_null(value) &&
        (extends == NULL || (strcmp(extends, "mhla") != 0 && strcmp(extends, "gla") != 0)))
        return "other";
    for (int i = 0; i < MHLA_LM_LAYERS && file; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.attn.mixing_matrix", i);
        if (mhla_safetensors_find(file, name)) return "mhla";
        snprintf(name, sizeof name, "model.layers.%d.attn.gk_proj.0.weight", i);
        if (mhla_safetensors_find(file, name)) return "gla";
    }
    return extends ? extends : "mhla"; /* without tensors */
}

void mhla_stream_write(json_t *tree, const mhla_stream_settings *s) {
    if (s->feature_map == MHLA_LM_IDENTITY) mhla_json_put(tree, "feature_map", json_null());
}

static mhla_status divide(int *each, double all, int heads, const char *what) {
    const double whole = floor(all + 1e-6); /* expand_k of 1/3 is not exact */
    if (heads < 1 || whole < heads || fmod(whole, heads) != 0.0)
        return mhla_fail(MHLA_EINVAL, "%s is %g in all, no multiple of %d heads", what, all, heads);
    *each = (int)(whole / heads);
    return MHLA_OK;
}

mhla_status mhla_stream_settle(mhla_stream_settings *s, const mhla_lm_config *c) {
    MHLA_TRY(divide(&s->key_dim, c->width * s->expand_k, s->num_heads, "hidden_size * expand_k"));
    MHLA_TRY(divide(&s->value_dim, c->width * s->expand_v, s->num_heads, "hidden_size * expand_v"));
    s->kv_heads = s->num_kv_heads ? s->num_kv_heads : s->num_heads;
    s->conv = s->use_short_conv ? s->conv_size : 0;
    if (s->num_heads % s->kv_heads != 0)
        return mhla_fail(MHLA_EINVAL, "num_heads %d is not a multiple of num_kv_heads %d", s->num_heads, s->kv_heads);
    const int features = s->key_dim > 1024 ? s->key_dim : mhla_feature_dims(s->feature_map, s->key_dim);
    if (features > 1024 || s->value_dim > 512)
        return mhla_fail(MHLA_EINVAL, "a head of %d dims of keys (%d with its features) and %d of values is too large",
                         s->key_dim, features, s->value_dim);
    return MHLA_OK;
}

static int64_t dims_of(const mhla_stream_settings *s, int part) {
    return part == Q   ? (int64_t)s->num_heads * s->key_dim
           : part == K ? (int64_t)s->kv_heads * s->key_dim
                       : (int64_t)s->kv_heads * s->value_dim;
}

int64_t mhla_stream_multiply_adds(const mhla_stream_settings *s, const mhla_lm_config *c, int gate) {
    const int64_t D = c->width, H = s->num_heads, G = s->kv_heads, k = s->key_dim, v = s->value_dim,
                  f = mhla_feature_dims(s->feature_map, s->key_dim),
                  parts = dims_of(s, Q) + dims_of(s, K) + dims_of(s, V);
    return D * (parts + (gate ? 2 : 1) * H * v) + s->conv * parts +
           mhla_feature_matrices(s->feature_map) * (H + G) * k * k + G * f * v + H * f * v;
}

int64_t mhla_stream_conv_bytes(const mhla_stream_settings *s) {
    const int64_t parts = dims_of(s, Q) + dims_of(s, K) + dims_of(s, V);
    return s->conv ? (s->conv - 1) * parts * (int64_t)sizeof(float) : 0;
}

int64_t mhla_stream_summary_bytes(const mhla_stream_settings *s, int normed) {
    return (int64_t)s->kv_heads * mhla_feature_dims(s->feature_map, s->key_dim) * (s->value_dim + (normed ? 1 : 0)) *
           (int64_t)sizeof(float);
}

/* ---- Network ---- */

typedef struct layer {
    mhla_stream *shared;
    int index;
    mhla_param *mix; /* [M,M,1,1,1,1]: how much chunk i takes from chunk b */
    mhla_stream_parts parts;
} layer;

void mhla_stream_close(void *shared) {
    mhla_stream *x = shared;
    if (x == NULL) return;
    mhla_plan_free(x->plan);
    mhla_angles_free(&x->angles);
    free(x);
}

mhla_status mhla_stream_open(void **shared, const mhla_stream *given) {
    mhla_stream *x = calloc(1, sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *x = *given;
    const mhla_stream_settings *s = x->s;
    x->desc.size = sizeof x->desc;
    x->desc.heads = s->num_heads;
    x->desc.kv_heads = s->kv_heads;
    x->desc.key_dim = mhla_feature_dims(s->feature_map, s->key_dim);
    x->desc.value_dim = s->value_dim;
    x->desc.feature = x->norm_q || x->norm_k ? MHLA_FEATURE_IDENTITY : mhla_feature_of_plan(s->feature_map);
    const mhla_status status = mhla_plan_create(&x->plan, &x->desc);
    if (status != MHLA_OK) {
        mhla_stream_close(x);
        return status;
    }
    *shared = x;
    return MHLA_OK;
}

/* Row i of the mixing matrix weighs the i+1 chunks that it sees alike. */
static mhla_status fill_mix(mhla_param *p, const void *of) {
    (void)of;
    return mhla_mix_fill(p->data, MHLA_MIX_CAUSAL, 1, (const int[]){(int)p->shape[0]}, 0.0);
}

/* In the order of the published list. */
void mhla_stream_add(mhla_stream_parts *p, const mhla_stream *x, mhla_params *ps, const char *prefix) {
    const mhla_stream_settings *s = x->s;
    const int64_t D = x->width, values = (int64_t)s->num_heads * s->value_dim;
    const mhla_initial usual = MHLA_NORMAL(x->deviation);
    char name[128];
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", prefix, suffix), name)
    p->q = mhla_layer_matrix(ps, dims_of(s, Q), D, 0, usual, NAME("q_proj"));
    p->k = mhla_layer_matrix(ps, dims_of(s, K), D, 0, usual, NAME("k_proj"));
    p->v = mhla_layer_matrix(ps, dims_of(s, V), D, 0, usual, NAME("v_proj"));
    if (x->gate) p->g = mhla_layer_matrix(ps, values, D, 0, usual, NAME("g_proj"));
    p->o = mhla_layer_matrix(ps, D, values, 0, usual, NAME("o_proj"));
    for (int i = 0; i < 3 && s->conv; i++) {
        static const char *const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
        p->conv[i] =
            mhla_params_add(ps, NAME(names[i]), MHLA_SHAPE(dims_of(s, i), 1, s->conv), MHLA_PARAM_DECAY, usual);
    }
    p->norm = mhla_params_add(ps, NAME(x->norm), MHLA_SHAPE(s->value_dim), 0, MHLA_ONE);
    p->map_q = mhla_feature_map_add(ps, s->feature_map, s->key_dim, usual, NAME("feature_map_q"));
    p->map_k = mhla_feature_map_add(ps, s->feature_map, s->key_dim, usual, NAME("feature_map_k"));
#undef NAME
}

mhla_status mhla_stream_create(void **to, void *shared, mhla_params *ps, const char *prefix, int index) {
    mhla_stream *x = shared;
    layer *l = calloc(1, sizeof *l);
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    const int64_t M = x->mix;
    char name[128];
    *l = (layer){.shared = x, .index = index};
    if (M) {
        snprintf(name, sizeof name, "%s.mixing_matrix", prefix);
        l->mix = mhla_params_add(ps, name, MHLA_SHAPE(M, M, 1, 1, 1, 1),
                                 MHLA_PARAM_DECAY | MHLA_PARAM_MIX | MHLA_PARAM_CAUSAL,
                                 (mhla_initial){.kind = MHLA_INITIAL_CALL, .fill = fill_mix});
        if (l->mix) l->mix->mix_low = 1e-5f; /* the released code's range */
    }
    mhla_stream_add(&l->parts, x, ps, prefix);
    *to = l;
    return MHLA_OK;
}

typedef struct memory {
    const layer *layer;
    const struct policy *policy;
    mhla_state *stream;
    mhla_past past[3]; /* of the convolutions of q, k, v */
} memory;

static mhla_tensor *attend_memory(mhla_tape *t, const layer *l, const mhla_pass *pass, mhla_tensor *q, mhla_tensor *k,
                                  mhla_tensor *v);

/* The operator: of whole texts, or with the memory of sequences. */
static mhla_tensor *attend(mhla_tape *t, const layer *l, const mhla_mixer_run *run, mhla_tensor *q, mhla_tensor *k,
                           mhla_tensor *v) {
    if (q == NULL || k == NULL || v == NULL) return NULL;
    if (run->pass) return attend_memory(t, l, run->pass, q, k, v);
    mhla_call call = {.size = sizeof call, .cu_seqlens = run->cu_seqlens, .sequences = run->sequences};
    const mhla_status status =
        mhla_angles_table(&l->shared->angles, q->shape[1], &call.rope_cos, &call.rope_sin, &call.rope_rows);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    return mhla_nn_attention(t, l->shared->plan, &call, l->mix, q, k, v);
}

void mhla_stream_project(mhla_tape *t, mhla_tensor **y, const mhla_stream_parts *p, const mhla_stream *x,
                         const mhla_mixer_run *run, int index, size_t pasts, int whole, mhla_tensor *h) {
    const mhla_stream_settings *s = x->s;
    mhla_nn_linears(t, y, (const mhla_layer[PARTS]){p->q, p->k, p->v, p->g}, x->gate ? PARTS : GATE, h);
    for (int i = 0; i < GATE && s->conv; i++)
        y[i] = run->pass ? mhla_past_convolve(t, run->pass, index, pasts + (size_t)i * sizeof(mhla_past), p->conv[i],
                                              NULL, y[i])
                         : mhla_nn_short_conv(t, p->conv[i], NULL, run->cu_seqlens, run->sequences, y[i]);
    y[Q] = mhla_feature_map_apply(t, &p->map_q, s->feature_map, s->key_dim, whole, x->norm_q, y[Q]);
    y[K] = mhla_feature_map_apply(t, &p->map_k, s->feature_map, s->key_dim, whole, x->norm_k, y[K]);
}

mhla_tensor *mhla_stream_finish(mhla_tape *t, const mhla_stream_parts *p, const mhla_stream *x, mhla_tensor *residual,
                                mhla_tensor *o, mhla_tensor *gate) {
    const float eps = (float)x->norm_eps;
    o = x->gate ? mhla_nn_rms_norm_gated(t, p->norm, eps, x->s->value_dim, o, gate)
                : mhla_nn_rms_norm(t, p->norm, eps, x->s->value_dim, o);
    return mhla_nn_linear(t, p->o.w, NULL, MHLA_ACT_NONE, residual, o);
}

mhla_tensor *mhla_stream_forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual,
                                 mhla_tensor *h) {
    const layer *l = of;
    const mhla_stream *x = l->shared;
    const int whole = x->norm_q || x->norm_k; /* then the operator maps neither of them */
    mhla_tensor *y[PARTS] = {NULL};
    mhla_stream_project(t, y, &l->parts, x, run, l->index, offsetof(memory, past), whole, h);
    return mhla_stream_finish(t, &l->parts, x, residual, attend(t, l, run, y[Q], y[K], y[V]), y[GATE]);
}

/* ---- Policies: the plan past the trained length. Where features are rotated, they are mapped and rotated before the plan sees them,
 * each by its own position. ---- */

typedef struct policy {
    mhla_plan *plan;
} policy;

mhla_status mhla_stream_policy(void **to, void *shared, const mhla_terms *terms, int64_t *limit) {
    const mhla_stream *x = shared;
    mhla_plan_desc d = x->desc;
    if (d.rope != MHLA_ROPE_NONE) {
        if (d.denominator != MHLA_DEN_NONE)
            return mhla_fail(MHLA_ENOTSUP,
                             "a layer has both a rotary embedding and a denominator: its sequences cannot be kept");
        d.rope = MHLA_ROPE_NONE;
        d.rope_dim = 0;
        d.feature = MHLA_FEATURE_IDENTITY;
        d.feature_eps = 0.0f;
    }
    if (x->mix) { /* it needs weights for chunks that it was not trained for */
        const int64_t trained = d.chunks * d.chunk;
        d.beyond =
            terms->beyond == MHLA_BEYOND_CHUNK && terms->max_tokens <= trained ? MHLA_BEYOND_ERROR : terms->beyond;
        if (d.beyond == MHLA_BEYOND_CHUNK) { /* which chooses C */
            d.max_tokens = terms->max_tokens;
            d.chunk = 0;
        }
        const int64_t most = d.beyond == MHLA_BEYOND_CLAMP   ? INT64_MAX
                             : d.beyond == MHLA_BEYOND_CHUNK ? d.max_tokens
                                                             : trained;
        if (most < *limit) *limit = most;
    }
    policy *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the plans of a sequence");
    const mhla_status status = mhla_plan_create(&p->plan, &d);
    if (status != MHLA_OK) {
        mhla_stream_policy_free(p);
        return status;
    }
    *to = p;
    return MHLA_OK;
}

void mhla_stream_policy_free(void *of) {
    policy *p = of;
    if (p == NULL) return;
    mhla_plan_free(p->plan);
    mhla_free(p);
}

mhla_status mhla_stream_begin(void *shared, const mhla_pass *pass) {
    return mhla_angles_begin(&((mhla_stream *)shared)->angles, pass);
}

/* ---- The operator with memory ---- */

/* Heads of x, mapped and rotated as the plan would do it: rows [rows, cols] of the tape's. */
static const float *turn(mhla_tape *t, const mhla_stream *x, int heads, const mhla_tensor *of, int64_t rows) {
    float *to = mhla_tape_floats(t, rows * of->cols);
    const mhla_turn a = {.heads = heads,
                         .head_dim = x->desc.key_dim,
                         .feature = x->desc.feature,
                         .eps = x->desc.feature_eps,
                         .rope = x->desc.rope,
                         .rope_dim = x->angles.dims,
                         .cos = x->angles.cos,
                         .sin = x->angles.sin};
    if (to) mhla_nn_turn(t->context, &a, to, of->cols, of->data, of->ld, rows);
    return to;
}

/* One step for all sequences that have the same policy: they are neighbours. */
static mhla_tensor *attend_memory(mhla_tape *t, const layer *l, const mhla_pass *pass, mhla_tensor *q, mhla_tensor *k,
                                  mhla_tensor *v) {
    const mhla_stream *x = l->shared;
    const int64_t H = x->s->num_heads, G = x->s->kv_heads;
    mhla_tensor *o = mhla_tape_tensor(t, MHLA_SHAPE(1, pass->rows, H * x->s->value_dim));
    int64_t cu[MHLA_PASS + 1];
    mhla_state *states[MHLA_PASS];
    if (o == NULL) return NULL;
    const float *from_q = q->data, *from_k = k->data;
    int64_t ldq = q->ld, ldk = k->ld;
    if (x->angles.dims) {
        from_q = turn(t, x, (int)H, q, pass->rows);
        from_k = turn(t, x, (int)G, k, pass->rows);
        if (from_q == NULL || from_k == NULL) return NULL;
        ldq = q->cols;
        ldk = k->cols;
    }
    for (int i = 0, end; i < pass->n; i = end) {
        const policy *p = ((const memory *)pass->segments[i].memory[l->index])->policy;
        const int64_t first = pass->segments[i].row;
        int64_t rows = 0;
        for (end = i; end < pass->n; end++) {
            const mhla_segment *g = &pass->segments[end];
            const memory *m = g->memory[l->index];
            if (m->policy != p) break;
            cu[end - i] = rows;
            states[end - i] = m->stream;
            rows += g->n;
        }
        cu[end - i] = rows;
        const mhla_call call = {.size = sizeof call,
                                .context = t->context,
                                .batch = 1,
                                .tokens = rows,
                                .q = {rows * ldq, ldq, q->cols / H},
                                .k = {rows * ldk, ldk, k->cols / G},
                                .v = {rows * v->ld, v->ld, v->cols / G},
                                .o = {rows * o->ld, o->ld, o->cols / H},
                                .cu_seqlens = cu,
                                .sequences = end - i};
        const mhla_status status =
            mhla_step(p->plan, &call, states, end - i, o->data + first * o->ld, from_q + first * ldq,
                      from_k + first * ldk, v->data + first * v->ld, l->mix ? l->mix->data : NULL);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "layer %d: %s", l->index, mhla_message());
    }
    return o;
}

/* ---- Memory: the operator's state, and what the convolutions remember ---- */

static const float *mix_of(const memory *m) { return m->layer->mix ? m->layer->mix->data : NULL; }

/* Without a stream. */
static mhla_status make(memory **to, const layer *l, const policy *p) {
    const mhla_stream_settings *s = l->shared->s;
    memory *m = mhla_alloc_zero(sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    m->layer = l;
    m->policy = p;
    mhla_status status = MHLA_OK;
    for (int i = 0; i < 3 && status == MHLA_OK; i++) status = mhla_past_make(&m->past[i], s->conv, dims_of(s, i));
    if (status != MHLA_OK) {
        mhla_stream_forget(m);
        return status;
    }
    *to = m;
    return MHLA_OK;
}

mhla_status mhla_stream_remember(void **to, void *of, const void *p) {
    memory *m = NULL;
    MHLA_TRY(make(&m, of, p));
    const mhla_status status = mhla_state_create(&m->stream, m->policy->plan, mix_of(m));
    if (status != MHLA_OK) {
        mhla_stream_forget(m);
        return status;
    }
    *to = m;
    return MHLA_OK;
}

void mhla_stream_forget(void *of) {
    memory *m = of;
    if (m == NULL) return;
    mhla_state_free(m->stream);
    for (int i = 0; i < 3; i++) mhla_free(m->past[i].rows);
    mhla_free(m);
}

mhla_status mhla_stream_fork(void **to, const void *of) {
    const memory *from = of;
    memory *m = NULL;
    MHLA_TRY(make(&m, from->layer, from->policy));
    const mhla_status status = mhla_state_fork(&m->stream, from->stream);
    if (status != MHLA_OK) {
        mhla_stream_forget(m);
        return status;
    }
    for (int i = 0; i < 3; i++) mhla_past_copy(&m->past[i], &from->past[i]);
    *to = m;
    return MHLA_OK;
}

size_t mhla_stream_memory_bytes(const void *of) {
    const memory *m = of;
    size_t bytes = sizeof *m + mhla_state_bytes(m->stream);
    for (int i = 0; i < 3; i++) bytes += mhla_past_bytes(&m->past[i]);
    return bytes;
}

/* The mixture of the past and, on average, half a chunk of keys and values, a row of which is new. All summaries are read once for
 * every four chunks; a chunk's end writes one. */
size_t mhla_stream_step_bytes(const void *of, int64_t tokens) {
    enum { USUAL_CHUNK = 64, LOOKAHEAD = 4 };
    const memory *m = of;
    const mhla_stream *x = m->layer->shared;
    const mhla_stream_settings *s = x->s;
    const int64_t chunk = x->desc.chunk ? x->desc.chunk : USUAL_CHUNK;
    const int64_t row = (int64_t)s->kv_heads * (mhla_feature_dims(s->feature_map, s->key_dim) + s->value_dim);
    const int64_t summary = mhla_stream_summary_bytes(s, x->desc.denominator != MHLA_DEN_NONE);
    const int64_t chunks = m->layer->mix ? tokens / chunk : 1;
    size_t bytes = (size_t)(summary + (chunk / 2 + 1) * row * (int64_t)sizeof(float));
    bytes += (size_t)(summary * (chunks + 2 * LOOKAHEAD) / (LOOKAHEAD * chunk));
    for (int i = 0; i < 3; i++) bytes += 2 * mhla_past_bytes(&m->past[i]);
    return bytes;
}

/* ---- Going back: MHLA's state has the beginnings of its chunks. Linear attention and convolutions have nothing but the present: they
 * need marks. ---- */

static int marks_stream(const memory *m) { return m->layer->mix == NULL; }

int64_t mhla_stream_nearest(const void *of, int64_t tokens, int64_t mark) {
    const memory *m = of;
    const int64_t at = mhla_state_tokens(m->stream);
    int64_t place = marks_stream(m) ? (at <= tokens ? at : mark) : mhla_state_nearest(m->stream, tokens);
    for (int i = 0; i < 3; i++)
        if (m->past[i].rows && m->past[i].at != place) {
            const int64_t past = m->past[i].at <= tokens ? m->past[i].at : mark;
            if (past < place) place = past;
        }
    return place;
}

size_t mhla_stream_mark_bytes(const void *of) {
    const memory *m = of;
    size_t bytes = marks_stream(m) ? 8 + mhla_saved_size(mhla_state_save_size(m->stream)) : 0;
    for (int i = 0; i < 3; i++) bytes += mhla_saved_size(mhla_past_bytes(&m->past[i]));
    return bytes;
}

void mhla_stream_mark(const void *of, unsigned char *to) {
    const memory *m = of;
    if (marks_stream(m)) {
        const size_t size = mhla_state_save_size(m->stream);
        memcpy(to, &size, sizeof size);
        mhla_state_save(m->stream, to + 8, size);
        to += 8 + mhla_saved_size(size);
    }
    for (int i = 0; i < 3; i++) {
        if (m->past[i].rows) memcpy(to, m->past[i].rows, mhla_past_bytes(&m->past[i]));
        to += mhla_saved_size(mhla_past_bytes(&m->past[i]));
    }
}

mhla_status mhla_stream_back(void *of, int64_t place, const unsigned char *mark) {
    memory *m = of;
    if (mark && marks_stream(m)) {
        size_t size;
        memcpy(&size, mark, sizeof size);
        if (mhla_state_tokens(m->stream) != place) {
            mhla_state *other;
            MHLA_TRY(mhla_state_load(&other, mark + 8, size, m->policy->plan, NULL));
            mhla_state_free(m->stream);
            m->stream = other;
        }
        mark += 8 + mhla_saved_size(size);
    } else { /* it can: nearest said so. Other weights are all that could be wrong */
        MHLA_TRY(mhla_state_rollback(m->stream, place, m->policy->plan, mix_of(m)));
    }
    for (int i = 0; i < 3; i++) {
        mhla_past *p = &m->past[i];
        if (p->rows && p->at != place) {
            if (mark)
                memcpy(p->rows, mark, mhla_past_bytes(p));
            else
                memset(p->rows, 0, mhla_past_bytes(p)); /* to the beginning */
        }
        p->at = place;
        if (mark) mark += mhla_saved_size(mhla_past_bytes(p));
    }
    return MHLA_OK;
}

/* ---- Saving: the state as mhla_state_save makes it, then the convolutions ---- */

size_t mhla_stream_saved_bytes(const void *of) {
    const memory *m = of;
    size_t bytes = mhla_saved_size(mhla_state_save_size(m->stream));
    for (int i = 0; i < 3; i++) bytes += mhla_saved_size(mhla_past_bytes(&m->past[i]));
    return bytes;
}

mhla_status mhla_stream_save(const void *of, mhla_sink *sink) {
    const memory *m = of;
    const size_t size = mhla_state_save_size(m->stream);
    void *bytes = mhla_alloc(size);
    if (bytes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes of a layer", size);
    const mhla_status status = mhla_state_save(m->stream, bytes, size);
    if (status == MHLA_OK) mhla_sink_put(sink, bytes, size);
    mhla_free(bytes);
    for (int i = 0; i < 3 && status == MHLA_OK; i++) mhla_sink_put(sink, m->past[i].rows, mhla_past_bytes(&m->past[i]));
    return status;
}

mhla_status mhla_stream_load(void *of, mhla_saved *in, int64_t tokens) {
    enum { AT_SIZE = 56, HEADER = 72 }; /* of a saved state, which says its size itself, without the padding */
    memory *m = of;
    mhla_state *stream;
    size_t convs = 0, padded = in->end - in->at;
    uint64_t size = 0;
    for (int i = 0; i < 3; i++) convs += mhla_saved_size(mhla_past_bytes(&m->past[i]));
    if (convs > padded) return mhla_fail(MHLA_EDATA, "its convolutions are missing");
    padded -= convs;
    if (padded >= HEADER) memcpy(&size, in->data + in->at + AT_SIZE, sizeof size);
    if (size == 0 || size > padded || mhla_saved_size((size_t)size) != padded)
        return mhla_fail(MHLA_EDATA, "byte %zu: no stream of %zu bytes", in->at, padded);
    const mhla_status status =
        mhla_state_load(&stream, mhla_saved_take(in, size), (size_t)size, m->policy->plan, mix_of(m));
    if (status != MHLA_OK) return status == MHLA_ENOMEM ? status : mhla_fail(MHLA_EDATA, "%s", mhla_message());
    mhla_state_free(m->stream);
    m->stream = stream;
    if (mhla_state_tokens(stream) != tokens)
        return mhla_fail(MHLA_EDATA, "it has read %lld tokens: expected %lld", (long long)mhla_state_tokens(stream),
                         (long long)tokens);
    for (int i = 0; i < 3; i++) {
        const size_t bytes = mhla_past_bytes(&m->past[i]);
        if (bytes > 0) memcpy(m->past[i].rows, mhla_saved_take(in, bytes), bytes);
        m->past[i].at = tokens;
    }
    return MHLA_OK;
}
