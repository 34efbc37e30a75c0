/* Softmax attention (Transformer++, Llama): its memory is the keys and values of every token, or of a window of them.
 *
 *   q, k, v = projections of h; q, k perhaps normalised by head, then rotated
 *   y = o_proj(softmax(q k^T / sqrt(K)) v)
 *
 * Gemma divides by another root than K's, may cap the scores softly, and scales the angles of some layers only. */
#include "models/language/mixers/softmax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "models/layers.h"
#include "nn/op.h"
#include "simd/kernels.h"

typedef mhla_softmax_settings settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of softmax attention");

enum {
    FEW = 16,        /* tokens of a sequence, at most, where sequences are shared out among threads */
    FIRST_ROOM = 256 /* tokens of a fresh cache, and that a windowed one keeps beyond its window to go back to */
};

/* ---- Settings ---- */

#define F(name, type, kind, member, least, most, help)                                                                 \
    { {name, MHLA_RECIPE_##type, NULL, least, most, NULL, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    F("num_heads", INT, INT, num_heads, 1, 256, "attention heads"),
    F("num_kv_heads", INT, OPTIONAL, num_kv_heads, 0, 256, "heads of keys and values, 0: as many"),
    F("head_dim", INT, OPTIONAL, head_dim, 0, 1024, "dims of a head, 0: hidden_size / num_heads"),
    F("qkv_bias", BOOL, BOOL, qkv_bias, 0, 0, "biases of q, k, v"),
    F("qk_norm", BOOL, BOOL, qk_norm, 0, 0, "RMS norm of each head of q and k"),
    F("window_size", INT, OPTIONAL, window_size, 0, 1 << 30, "tokens seen, 0: all"),
    F("rope_theta", REAL, REAL, rope_theta, 1, 1e12, "base of the rotary embedding"),
    F("rope_unscaled", BOOL, BOOL, unscaled, 0, 0, "rope_scaling is for other layers"),
    F("query_pre_attn_scalar", REAL, OPTIONAL_REAL, query_scalar, 0, 1e6, "scores are over its root, 0: head_dim"),
    F("attn_logit_softcapping", REAL, OPTIONAL_REAL, softcap, 0, 1e30, "soft cap of the scores, 0: none"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to =
        (settings){.num_heads = size ? size->narrow_heads : 32, .rope_theta = 10000.0, .qk_norm_eps = 1e-5};
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "transformer") == 0;
}

static mhla_status read_rope(void *to, mhla_lm_config *c, const json_t *tree, const char *path) {
    return mhla_rope_read(&c->scaling, &((settings *)to)->rope_theta, c->positions, tree, path);
}

/* Of this group's angles. */
static const mhla_scaling *scaling_of(const settings *s, const mhla_lm_config *c) {
    static const mhla_scaling none = {.kind = MHLA_SCALING_NONE};
    return s->unscaled ? &none : &c->scaling;
}

static void write_rope(json_t *tree, const void *of, const mhla_lm_config *c) {
    (void)of;
    if (c->scaling.kind) mhla_json_put(tree, "rope_scaling", mhla_rope_tree(&c->scaling));
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    settings *s = to;
    if (s->num_heads < 1 || (s->head_dim == 0 && (c->width < s->num_heads || c->width % s->num_heads != 0)))
        return mhla_fail(MHLA_EINVAL, "hidden_size is %d in all, no multiple of %d heads", c->width, s->num_heads);
    s->dim = s->head_dim ? s->head_dim : c->width / s->num_heads;
    s->kv_heads = s->num_kv_heads ? s->num_kv_heads : s->num_heads;
    if (s->num_heads % s->kv_heads != 0)
        return mhla_fail(MHLA_EINVAL, "num_heads %d is not a multiple of num_kv_heads %d", s->num_heads, s->kv_heads);
    if (s->dim > 1024) return mhla_fail(MHLA_EINVAL, "a head of %d dims is too large", s->dim);
    return mhla_rope_check(s->dim, s->dim, s->rope_theta, scaling_of(s, c));
}

static void describe(const void *of, mhla_mixer_facts *facts) {
    *facts = (mhla_mixer_facts){.heads = ((const settings *)of)->num_heads};
}

const mhla_softmax_settings *mhla_softmax_alone(const mhla_lm_config *c) {
    for (int i = 0; i < c->layers; i++)
        if (c->group_of[i] != c->group_of[0]) return NULL;
    const mhla_lm_group *g = mhla_lm_group_of(c, 0);
    return g->mixer == &mhla_mixer_softmax ? (const settings *)(const void *)&g->settings : NULL;
}

/* As version 0.1 made it, so that its saved sequences load. */
static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    const mhla_scaling *x = scaling_of(s, c);
    const uint64_t kind = 2;
    const double all[20] = {s->num_heads, s->kv_heads, s->dim,     s->dim, MHLA_ROPE_HALF, s->dim,        s->rope_theta,
                            s->qkv_bias,  s->out_bias, s->qk_norm, 0,      s->qk_norm_eps, s->window_size};
    h = mhla_hash_fold(mhla_hash_fold(h, &kind, sizeof kind), all, sizeof all);
    const double newer[] = {s->query_scalar, s->softcap};
    if (s->query_scalar != 0.0 || s->softcap != 0.0) h = mhla_hash_fold(h, newer, sizeof newer);
    if (x->kind == MHLA_SCALING_NONE) return h;
    const double scaling[] = {x->kind,      x->factor,    x->original, x->low,       x->high,
                              x->beta_fast, x->beta_slow, x->exact,    x->attention, x->count};
    return mhla_hash_fold(mhla_hash_fold(h, scaling, sizeof scaling), x->list, sizeof x->list);
}

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    const int64_t D = c->width, H = s->num_heads, G = s->kv_heads, K = s->dim;
    const int64_t w = s->window_size && s->window_size < tokens ? s->window_size : tokens;
    const int64_t seen = (w * (w + 1) / 2 + (tokens - w) * w) / (tokens > 0 ? tokens : 1);
    return D * (2 * H * K + 2 * G * K) + seen * H * 2 * K; /* projections; scores of what it sees, and their use */
}

static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    (void)c;
    const int64_t seen = s->window_size && s->window_size < tokens ? s->window_size : tokens;
    return seen * s->kv_heads * 2 * s->dim * (int64_t)sizeof(float);
}

/* ---- Network ---- */

typedef struct shared {
    const settings *s;
    double deviation; /* of fresh weights */
    int64_t width;
    int plus_one; /* norms multiply by 1 + w */
    mhla_plan_desc desc;
    mhla_plan *plan;
    mhla_angles angles;
} shared;

typedef struct layer {
    shared *shared;
    int index;
    mhla_layer q, k, v, o;       /* [H*K,D], [G*K,D] twice, [D,H*K] */
    mhla_param *q_norm, *k_norm; /* [K] */
} layer;

static void close_shared(void *of) {
    shared *x = of;
    if (x == NULL) return;
    mhla_plan_free(x->plan);
    mhla_angles_free(&x->angles);
    free(x);
}

static mhla_status open_shared(void **to, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    shared *x = calloc(1, sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *x = (shared){.s = s,
                  .deviation = c->deviation,
                  .width = c->width,
                  .plus_one = mhla_lm_names_of[c->naming].plus_one,
                  .desc = {.size = sizeof x->desc,
                           .kind = MHLA_KIND_SOFTMAX,
                           .heads = s->num_heads,
                           .kv_heads = s->kv_heads,
                           .key_dim = s->dim,
                           .value_dim = s->dim,
                           .rope = MHLA_ROPE_HALF,
                           .rope_dim = s->dim,
                           .scale = s->query_scalar != 0.0 ? (float)(1.0 / sqrt(s->query_scalar)) : 0.0f,
                           .softcap = s->softcap,
                           .causal = 1,
                           .window = s->window_size},
                  .angles = {.dims = s->dim, .theta = s->rope_theta, .scaling = scaling_of(s, c)}};
    const mhla_status status = mhla_plan_create(&x->plan, &x->desc);
    if (status != MHLA_OK) {
        close_shared(x);
        return status;
    }
    *to = x;
    return MHLA_OK;
}

static mhla_status create(void **to, void *of, mhla_params *ps, const char *prefix, int index) {
    shared *x = of;
    const settings *s = x->s;
    layer *l = calloc(1, sizeof *l);
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    const int64_t D = x->width, H = s->num_heads, G = s->kv_heads, K = s->dim;
    const mhla_initial usual = MHLA_NORMAL(x->deviation);
    char name[128];
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", prefix, suffix), name)
    *l = (layer){.shared = x, .index = index};
    l->q = mhla_layer_matrix(ps, H * K, D, s->qkv_bias, usual, NAME("q_proj"));
    l->k = mhla_layer_matrix(ps, G * K, D, s->qkv_bias, usual, NAME("k_proj"));
    l->v = mhla_layer_matrix(ps, G * K, D, s->qkv_bias, usual, NAME("v_proj"));
    l->o = mhla_layer_matrix(ps, D, H * K, s->out_bias, usual, NAME("o_proj"));
    if (s->qk_norm) {
        const mhla_initial neutral = x->plus_one ? MHLA_ZERO : MHLA_ONE;
        l->q_norm = mhla_params_add(ps, NAME("q_norm.weight"), MHLA_SHAPE(K), 0, neutral);
        l->k_norm = mhla_params_add(ps, NAME("k_norm.weight"), MHLA_SHAPE(K), 0, neutral);
    }
#undef NAME
    *to = l;
    return MHLA_OK;
}

static mhla_tensor *attend_memory(mhla_tape *t, const layer *l, const mhla_pass *pass, mhla_tensor *q, mhla_tensor *k,
                                  mhla_tensor *v);

/* Each head of q or k. */
static mhla_tensor *head_norm(mhla_tape *t, const shared *x, mhla_param *w, mhla_tensor *q) {
    const float eps = (float)x->s->qk_norm_eps;
    return x->plus_one ? mhla_nn_rms_norm_plus_one(t, w, eps, x->s->dim, q) : mhla_nn_rms_norm(t, w, eps, x->s->dim, q);
}

static mhla_tensor *forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual, mhla_tensor *h) {
    const layer *l = of;
    const settings *s = l->shared->s;
    mhla_tensor *y[3], *o;
    mhla_nn_linears(t, y, (const mhla_layer[]){l->q, l->k, l->v}, 3, h);
    mhla_tensor *q = y[0], *k = y[1], *v = y[2];
    if (s->qk_norm) {
        q = head_norm(t, l->shared, l->q_norm, q);
        k = head_norm(t, l->shared, l->k_norm, k);
    }
    if (q == NULL || k == NULL || v == NULL) return NULL;
    if (run->pass) {
        o = attend_memory(t, l, run->pass, q, k, v);
    } else {
        mhla_call call = {.size = sizeof call, .cu_seqlens = run->cu_seqlens, .sequences = run->sequences};
        const mhla_status status =
            mhla_angles_table(&l->shared->angles, q->shape[1], &call.rope_cos, &call.rope_sin, &call.rope_rows);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
        o = mhla_nn_attention(t, l->shared->plan, &call, NULL, q, k, v);
    }
    return mhla_nn_linear(t, l->o.w, l->o.b, MHLA_ACT_NONE, residual, o);
}

/* ---- Memory: keys (rotated) and values ---- */

typedef struct memory {
    const layer *layer;
    const mhla_plan *plan;          /* of keys that are rotated already */
    mhla_dtype dtype;               /* of keys and values */
    char *k, *v;                    /* [capacity, G*K] */
    int64_t first, count, capacity; /* tokens first .. first+count-1 */
} memory;

typedef struct policy {
    mhla_plan *plan;
    mhla_dtype cache;
} policy;

static void policy_free(void *of) {
    policy *p = of;
    if (p) mhla_plan_free(p->plan);
    mhla_free(p);
}

/* Any number of tokens is the same to it. */
static mhla_status make_policy(void **to, void *of, const mhla_terms *terms, int64_t *limit) {
    mhla_plan_desc d = ((const shared *)of)->desc;
    policy *p = mhla_alloc_zero(sizeof *p);
    (void)limit;
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the plans of a sequence");
    p->cache = terms->cache;
    d.rope = MHLA_ROPE_NONE;
    d.rope_dim = 0;
    d.kv_bfloat16 = p->cache == MHLA_BF16;
    const mhla_status status = mhla_plan_create(&p->plan, &d);
    if (status != MHLA_OK) {
        policy_free(p);
        return status;
    }
    *to = p;
    return MHLA_OK;
}

static mhla_status begin(void *of, const mhla_pass *pass) { return mhla_angles_begin(&((shared *)of)->angles, pass); }

static mhla_status remember(void **to, void *of, const void *by) {
    const policy *p = by;
    memory *m = mhla_alloc_zero(sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    m->layer = of;
    m->plan = p->plan;
    m->dtype = p->cache;
    *to = m;
    return MHLA_OK;
}

static void forget(void *of) {
    memory *m = of;
    if (m == NULL) return;
    mhla_free(m->k);
    mhla_free(m->v);
    mhla_free(m);
}

/* Numbers of a token's keys, or of its values. */
static int64_t row_of(const memory *m) {
    const settings *s = m->layer->shared->s;
    return (int64_t)s->kv_heads * s->dim;
}
static size_t row_bytes(const memory *m, int64_t tokens) {
    return (m->dtype == MHLA_F32 ? sizeof(float) : sizeof(uint16_t)) * (size_t)(tokens * row_of(m));
}

static mhla_status resize(memory *m, int64_t capacity) {
    char *k = mhla_alloc(row_bytes(m, capacity)), *v = mhla_alloc(row_bytes(m, capacity));
    if (k == NULL || v == NULL) {
        mhla_free(k);
        mhla_free(v);
        return mhla_fail(MHLA_ENOMEM, "no memory for the keys and values of %lld tokens", (long long)capacity);
    }
    if (m->count > 0) {
        memcpy(k, m->k, row_bytes(m, m->count));
        memcpy(v, m->v, row_bytes(m, m->count));
    }
    mhla_free(m->k);
    mhla_free(m->v);
    m->k = k;
    m->v = v;
    m->capacity = capacity;
    return MHLA_OK;
}

/* Room for n more. A window needs `window - 1` tokens before the next one. */
static mhla_status reserve(memory *m, int64_t n) {
    const int64_t window = m->layer->shared->s->window_size, keep = window - 1 + FIRST_ROOM;
    if (m->count + n <= m->capacity) return MHLA_OK;
    if (window > 0 && m->count >= 2 * keep) {
        const int64_t gone = m->count - keep;
        memmove(m->k, m->k + row_bytes(m, gone), row_bytes(m, keep));
        memmove(m->v, m->v + row_bytes(m, gone), row_bytes(m, keep));
        m->first += gone;
        m->count = keep;
        if (m->count + n <= m->capacity) return MHLA_OK;
    }
    int64_t size = m->capacity + m->capacity / 2;
    if (size < FIRST_ROOM) size = FIRST_ROOM;
    if (size < m->count + n) size = m->count + n;
    return resize(m, size);
}

/* Keys and values go into the cache, then attention is over all of it. */
typedef struct cached {
    const layer *l;
    const mhla_pass *pass;
    const mhla_context *context;
    const mhla_tensor *q, *k, *v;
    mhla_tensor *o;
    const float *turned; /* q, rotated [rows, H*K] */
    float *turned_k;     /* [rows, G*K] on their way into a cache of bfloat16 */
    const mhla_kernels *kernels;
    char *ws;
    size_t ws_bytes; /* of a segment */
} cached;

static mhla_call call_of(const cached *x, const mhla_segment *g, int64_t keys) {
    const settings *s = x->l->shared->s;
    const int64_t K = s->dim, ld = s->kv_heads * K, ldq = s->num_heads * K;
    return (mhla_call){.size = sizeof(mhla_call),
                       .context = x->context,
                       .batch = 1,
                       .tokens = g->n,
                       .kv_tokens = keys,
                       .q = {g->n * ldq, ldq, K},
                       .k = {keys * ld, ld, K},
                       .v = {keys * ld, ld, K},
                       .o = {g->n * x->o->ld, x->o->ld, K}};
}

static mhla_turn turn_of(const shared *x, int heads, int64_t row) {
    const int64_t half = x->angles.dims / 2;
    return (mhla_turn){.heads = heads,
                       .head_dim = x->s->dim,
                       .feature = MHLA_FEATURE_IDENTITY,
                       .rope = x->desc.rope,
                       .rope_dim = x->angles.dims,
                       .cos = x->angles.cos + row * half,
                       .sin = x->angles.sin + row * half};
}

/* Rows of a segment behind those of the cache. */
static void append(const cached *x, const mhla_segment *g, memory *m) {
    const settings *s = x->l->shared->s;
    const int64_t row = row_of(m);
    const mhla_turn turn = turn_of(x->l->shared, s->kv_heads, g->row);
    char *to_k = m->k + row_bytes(m, m->count), *to_v = m->v + row_bytes(m, m->count);
    const float *k = x->k->data + g->row * x->k->ld, *v = x->v->data + g->row * x->v->ld;
    if (m->dtype == MHLA_F32) {
        mhla_nn_turn(x->context, &turn, (float *)(void *)to_k, row, k, x->k->ld, g->n);
        for (int64_t t = 0; t < g->n; t++) memcpy(to_v + row_bytes(m, t), v + t * x->v->ld, row_bytes(m, 1));
        return;
    }
    float *turned = x->turned_k + g->row * row;
    mhla_nn_turn(x->context, &turn, turned, row, k, x->k->ld, g->n);
    x->kernels->narrow_rows((uint16_t *)(void *)to_k, row, turned, row, (int)g->n, (int)row);
    x->kernels->narrow_rows((uint16_t *)(void *)to_v, row, v, x->v->ld, (int)g->n, (int)row);
}

static void cached_task(void *arg, int64_t i, int worker) {
    const cached *x = arg;
    (void)worker;
    const mhla_segment *g = &x->pass->segments[i];
    const settings *s = x->l->shared->s;
    memory *m = g->memory[x->l->index];
    append(x, g, m);
    m->count += g->n;
    const mhla_call call = call_of(x, g, m->count);
    /* cannot fail: the workspace was made for this call */
    mhla_forward(m->plan, &call, x->o->data + g->row * x->o->ld, x->turned + g->row * s->num_heads * s->dim, m->k, m->v,
                 NULL, x->ws + x->ws_bytes * (size_t)i);
}

static mhla_tensor *attend_memory(mhla_tape *t, const layer *l, const mhla_pass *pass, mhla_tensor *q, mhla_tensor *k,
                                  mhla_tensor *v) {
    const settings *s = l->shared->s;
    const int64_t cols = (int64_t)s->num_heads * s->dim;
    cached x = {
        .l = l, .pass = pass, .q = q, .k = k, .v = v, .o = mhla_tape_tensor(t, MHLA_SHAPE(1, pass->rows, cols))};
    float *turned = mhla_tape_floats(t, pass->rows * cols);
    if (x.o == NULL || turned == NULL) return NULL;
    const mhla_turn turn = turn_of(l->shared, s->num_heads, 0);
    mhla_nn_turn(t->context, &turn, turned, cols, q->data, q->ld, pass->rows);
    x.turned = turned;
    x.kernels = mhla_kernels_get();
    x.turned_k = mhla_tape_floats(t, pass->rows * s->kv_heads * s->dim);
    if (x.turned_k == NULL) return NULL;
    int side = pass->n > 1; /* sequences side by side, or one after the other, each by all threads */
    for (int i = 0; i < pass->n; i++) side &= pass->segments[i].n <= FEW;
    x.context = side ? pass->alone : t->context;
    for (int i = 0; i < pass->n; i++) {
        const mhla_segment *g = &pass->segments[i];
        memory *m = g->memory[l->index];
        const mhla_status status = reserve(m, g->n);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "layer %d: %s", l->index, mhla_message());
        const mhla_call call = call_of(&x, g, m->count + g->n);
        const size_t bytes = mhla_forward_workspace(m->plan, &call);
        if (bytes == 0) return mhla_tape_fail(t, MHLA_EINVAL, "layer %d: %s", l->index, mhla_message());
        if (bytes > x.ws_bytes) x.ws_bytes = (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    }
    x.ws = mhla_tape_scratch(t, side ? x.ws_bytes * (size_t)pass->n : x.ws_bytes);
    if (t->status != MHLA_OK) return NULL;
    if (side) {
        mhla_parallel(t->context, pass->n, cached_task, &x);
        return x.o;
    }
    x.ws_bytes = 0; /* one for all */
    for (int i = 0; i < pass->n; i++) cached_task(&x, i, 0);
    return x.o;
}

static mhla_status fork_memory(void **to, const void *of) {
    const memory *from = of;
    memory *m = NULL;
    MHLA_TRY(remember((void **)&m, (void *)(uintptr_t)from->layer,
                      &(policy){(mhla_plan *)(uintptr_t)from->plan, from->dtype}));
    m->first = from->first;
    if (from->count > 0) {
        const mhla_status status = resize(m, from->count + FIRST_ROOM);
        if (status != MHLA_OK) {
            forget(m);
            return status;
        }
        m->count = from->count;
        memcpy(m->k, from->k, row_bytes(m, m->count));
        memcpy(m->v, from->v, row_bytes(m, m->count));
    }
    *to = m;
    return MHLA_OK;
}

static size_t memory_bytes(const void *of) {
    const memory *m = of;
    return sizeof *m + 2 * row_bytes(m, m->capacity);
}

/* All that it sees, and a row more. */
static size_t step_bytes(const void *of, int64_t tokens) {
    const memory *m = of;
    const int64_t window = m->layer->shared->s->window_size;
    return 2 * row_bytes(m, (window && window < tokens ? window : tokens) + 1);
}

static int64_t nearest(const void *of, int64_t tokens, int64_t mark) {
    const memory *m = of;
    (void)mark;
    if (m->first + m->count <= tokens) return m->first + m->count;
    return m->first == 0 || tokens - (m->layer->shared->s->window_size - 1) >= m->first ? tokens : 0;
}

static mhla_status back(void *of, int64_t place, const unsigned char *mark) {
    memory *m = of;
    (void)mark;
    m->count = place > m->first ? place - m->first : 0;
    if (place == 0) m->first = 0;
    return MHLA_OK;
}

static size_t mark_bytes(const void *of) {
    (void)of;
    return 0;
}

/* The first token that the cache has, how many, keys, values. */
static size_t saved_bytes(const void *of) {
    const memory *m = of;
    return 16 + 2 * mhla_saved_size(row_bytes(m, m->count));
}

static mhla_status save(const void *of, mhla_sink *sink) {
    const memory *m = of;
    const uint64_t numbers[] = {(uint64_t)m->first, (uint64_t)m->count};
    mhla_sink_put(sink, numbers, sizeof numbers);
    mhla_sink_put(sink, m->k, row_bytes(m, m->count));
    mhla_sink_put(sink, m->v, row_bytes(m, m->count));
    return MHLA_OK;
}

static mhla_status load(void *of, mhla_saved *in, int64_t tokens) {
    memory *m = of;
    const int64_t window = m->layer->shared->s->window_size;
    uint64_t numbers[2] = {1, 0};
    const unsigned char *p = mhla_saved_take(in, sizeof numbers);
    if (p) memcpy(numbers, p, sizeof numbers);
    const uint64_t first = numbers[0], count = numbers[1];
    if (p == NULL || count > (uint64_t)tokens || first != (uint64_t)tokens - count ||
        (first > 0 && (window == 0 || count + 1 < (uint64_t)window)))
        return mhla_fail(MHLA_EDATA, "keys of %llu tokens from %llu on: not possible after %lld",
                         (unsigned long long)count, (unsigned long long)first, (long long)tokens);
    const size_t bytes = row_bytes(m, (int64_t)count);
    const unsigned char *k = mhla_saved_take(in, bytes), *v = k ? mhla_saved_take(in, bytes) : NULL;
    if (v == NULL)
        return mhla_fail(MHLA_EDATA, "keys and values of %llu tokens do not fit into it", (unsigned long long)count);
    MHLA_TRY(reserve(m, (int64_t)count));
    if (bytes > 0) memcpy(m->k, k, bytes);
    if (bytes > 0) memcpy(m->v, v, bytes);
    m->first = (int64_t)first;
    m->count = (int64_t)count;
    return MHLA_OK;
}

const mhla_mixer mhla_mixer_softmax = {
    .name = "softmax",
    .type = "transformer",
    .group = "attn",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .claims = claims,
    .read = read_rope,
    .write = write_rope,
    .settle = settle,
    .describe = describe,
    .print = print,
    .multiply_adds = multiply_adds,
    .state_bytes = state_bytes,
    .open = open_shared,
    .close = close_shared,
    .create = create,
    .free = free,
    .forward = forward,
    .policy = make_policy,
    .policy_free = policy_free,
    .begin = begin,
    .remember = remember,
    .forget = forget,
    .fork = fork_memory,
    .memory_bytes = memory_bytes,
    .step_bytes = step_bytes,
    .nearest = nearest,
    .back = back,
    .mark_bytes = mark_bytes,
    .saved_bytes = saved_bytes,
    .save = save,
    .load = load,
};
