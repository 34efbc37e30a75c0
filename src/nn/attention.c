/* Every attention of libmhla as a layer, and rotary embedding alone. q, k and v may be slices of one fused tensor: they
 * and their gradients go to the operator as strides. */
#include <string.h>

#include "nn/op.h"
#include "ops/op.h"

/* What has gradients, besides the mixing matrix. */
enum { Q, K, V, DECAY, BETA, INPUTS };

typedef struct attention {
    mhla_record r;
    const mhla_plan *plan;
    mhla_call call;
    mhla_param *mix;
    mhla_tensor *in[INPUTS], *o; /* no decay, no beta: NULL */
} attention;

static mhla_strides strides(int64_t tokens, int64_t ld, int dim) { return (mhla_strides){tokens * ld, ld, dim}; }
static int decay_dim(const mhla_plan *plan) { return mhla_decays(plan->d.kind) ? (int)mhla_decay_dim(plan) : 0; }

/* What the operator takes as its mixing matrix; the parameter may also be the scale of Focused LA, which is in the call. */
static const float *mix_of(const attention *op) { return op->mix && !op->call.focus ? op->mix->data : NULL; }

/* o = attention(q, k, v, mix) [+ what was there]: libmhla's own backward, from the inputs alone. Gradients are all
 * written or all added by one flag: where they differ, the ones to be written start from 0. */
static void attention_backward(mhla_tape *t, void *p) {
    attention *op = p;
    const mhla_plan_desc *d = &op->plan->d;
    const int64_t T = op->call.tokens, Tk = op->call.kv_tokens;
    const int dry = mhla_tape_dry(t);
    mhla_tensor *const *in = op->in;
    mhla_slot s[INPUTS];
    int wanted = 0;
    for (int i = 0; i < INPUTS; i++) {
        s[i] = mhla_tape_grad(t, in[i]);
        for (int j = 0; j < i; j++) /* the same tensor twice: what the first request will write is not there yet */
            if (in[j] == in[i] && s[i].wanted) {
                mhla_tape_fail(t, MHLA_EINVAL, "q, k and v of an attention that is trained must differ");
                return;
            }
        wanted |= s[i].wanted;
    }
    const int added = mhla_tape_join(t, s, in, INPUTS);
    const mhla_slot dmix = mhla_tape_param_grad(t, op->mix);
    const size_t mix_bytes =
        dmix.wanted ? ((size_t)op->mix->count * sizeof(float) + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN : 0;
    char *ws = mhla_tape_scratch(t, mix_bytes + mhla_backward_workspace(op->plan, &op->call));
    if (dry || t->status != MHLA_OK) return;
    if (added && mix_bytes) memset(ws, 0, mix_bytes);
    const mhla_grads grads = {.size = sizeof grads,
                              .dq = s[Q].data,
                              .dk = s[K].data,
                              .dv = s[V].data,
                              .ddecay = s[DECAY].data,
                              .dbeta = s[BETA].data,
                              .dq_strides = strides(T, s[Q].ld, d->key_dim),
                              .dk_strides = strides(Tk, s[K].ld, d->key_dim),
                              .dv_strides = strides(Tk, s[V].ld, d->value_dim),
                              .ddecay_strides = strides(T, s[DECAY].ld, decay_dim(op->plan)),
                              .dbeta_strides = strides(T, s[BETA].ld, 1),
                              .dmix = mix_bytes && !op->call.focus ? (float *)ws : NULL,
                              .dfocus = mix_bytes && op->call.focus ? (float *)ws : NULL,
                              .accumulate = added};
    if (!wanted && !mix_bytes) return;
    const mhla_status status = mhla_backward(op->plan, &op->call, &grads, mhla_tape_arrived(op->o), in[Q]->data,
                                             in[K]->data, in[V]->data, mix_of(op), ws + mix_bytes);
    if (status != MHLA_OK) {
        mhla_tape_fail(t, status, "attention: %s", mhla_message());
        return;
    }
    if (mix_bytes) mhla_tape_reduce(t, dmix.data, dmix.add, (float *)ws, 1, 0, op->mix->count);
}

void mhla_tape_watch(mhla_tape *t, mhla_attended_fn fn, void *user) {
    t->watch = fn;
    t->watcher = user;
}

/* Tells whoever looks on. What is added to something is computed alone first. */
static void show(mhla_tape *t, attention *op, void *ws) {
    mhla_call call = op->call;
    float *o = op->o->data;
    if (call.accumulate) {
        call.accumulate = 0;
        o = mhla_tape_floats(t, op->o->rows * op->o->cols);
        if (o == NULL) return;
        const mhla_status status =
            mhla_forward(op->plan, &call, o, op->in[Q]->data, op->in[K]->data, op->in[V]->data, mix_of(op), ws);
        if (status != MHLA_OK) {
            mhla_tape_fail(t, status, "attention: %s", mhla_message());
            return;
        }
    }
    t->watch(t->watcher, &(mhla_attended){.index = t->attended++,
                                          .plan = op->plan,
                                          .call = &call,
                                          .mix = mix_of(op) ? op->mix : NULL,
                                          .q = op->in[Q]->data,
                                          .k = op->in[K]->data,
                                          .v = op->in[V]->data,
                                          .o = o});
}

static mhla_tensor *attend(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_param *mix,
                           mhla_tensor *onto, mhla_tensor *const in[INPUTS]) {
    mhla_tensor *q = in[Q], *k = in[K], *v = in[V], *decay = in[DECAY], *beta = in[BETA];
    const mhla_plan_desc *d = &plan->d;
    const int64_t H = d->heads, keys = (int64_t)plan->k_heads * d->key_dim,
                  values = (int64_t)plan->v_heads * d->value_dim, outputs = H * d->value_dim;
    char text[96];
    MHLA_NEED(t, d->dtype == MHLA_F32, "the plan of an attention layer is not of float32");
    MHLA_NEED(t, q->dims == 3 && q->cols == (int64_t)plan->q_heads * d->key_dim, "q is %s: expected [B, T, %lld]",
              mhla_shape_text(text, q->shape, q->dims), (long long)plan->q_heads * d->key_dim);
    MHLA_NEED(t, k->dims == 3 && k->cols == keys && k->shape[0] == q->shape[0], "k is %s: expected [%lld, T, %lld]",
              mhla_shape_text(text, k->shape, k->dims), (long long)q->shape[0], (long long)keys);
    MHLA_NEED(t, v->dims == 3 && v->cols == values && v->rows == k->rows && v->shape[0] == k->shape[0],
              "v is %s: expected [%lld, %lld, %lld]", mhla_shape_text(text, v->shape, v->dims), (long long)k->shape[0],
              (long long)k->shape[1], (long long)values);
    MHLA_NEED(t, decay == NULL || (decay->dims == 3 && decay->cols == H * decay_dim(plan) && decay->rows == q->rows),
              "the decay is %s: expected [%lld, %lld, %lld]", mhla_shape_text(text, decay->shape, decay->dims),
              (long long)q->shape[0], (long long)q->shape[1], (long long)H * decay_dim(plan));
    MHLA_NEED(t, beta == NULL || (beta->dims == 3 && beta->cols == H && beta->rows == q->rows),
              "beta is %s: expected [%lld, %lld, %lld]", mhla_shape_text(text, beta->shape, beta->dims),
              (long long)q->shape[0], (long long)q->shape[1], (long long)H);
    const int focused = d->kind == MHLA_KIND_FOCUSED;
    const int64_t entries = focused ? H * d->key_dim : mhla_mix_size(plan);
    MHLA_NEED(t, mix == NULL || mix->count == entries, "%s has %lld elements: expected %lld", mix->name,
              (long long)mix->count, (long long)entries);
    MHLA_NEED(t, onto == NULL || (onto->rows == q->rows && onto->cols == outputs && onto->ld == onto->cols),
              "what attention is added to is %s: expected [%lld, %lld, %lld]",
              mhla_shape_text(text, onto->shape, onto->dims), (long long)q->shape[0], (long long)q->shape[1],
              (long long)outputs);
    attention *op = mhla_tape_op(t, sizeof *op);
    if (op == NULL) return NULL;
    /* onto keeps the memory and the gradient: d(onto + a) = d onto = d a */
    mhla_tensor *o = onto ? mhla_nn_reshape(t, onto, onto->shape, onto->dims)
                          : mhla_tape_tensor(t, MHLA_SHAPE(q->shape[0], q->shape[1], outputs));
    if (o == NULL) return NULL;
    *op = (attention){.plan = plan, .mix = mix, .in = {q, k, v, decay, beta}, .o = o};
    op->call = (mhla_call){.size = sizeof op->call,
                           .context = t->context,
                           .batch = q->shape[0],
                           .tokens = q->shape[1],
                           .kv_tokens = k->shape[1],
                           .q = strides(q->shape[1], q->ld, d->key_dim),
                           .k = strides(k->shape[1], k->ld, d->key_dim),
                           .v = strides(v->shape[1], v->ld, d->value_dim),
                           .o = strides(o->shape[1], o->ld, d->value_dim),
                           .accumulate = onto != NULL,
                           .focus = focused && mix ? mix->data : NULL,
                           .precision = t->precision};
    if (call) {
        op->call.rope_cos = call->rope_cos;
        op->call.rope_sin = call->rope_sin;
        op->call.rope_rows = call->rope_rows;
        op->call.key_rope_cos = call->key_rope_cos;
        op->call.key_rope_sin = call->key_rope_sin;
        op->call.key_rope_rows = call->key_rope_rows;
        op->call.cu_seqlens = call->cu_seqlens;
        op->call.sequences = call->sequences;
        op->call.decay = call->decay;
        op->call.decay_strides = call->decay_strides;
    }
    if (decay) {
        op->call.decay = decay->data;
        op->call.decay_strides = strides(q->shape[1], decay->ld, decay_dim(plan));
    }
    if (beta) {
        op->call.beta = beta->data;
        op->call.beta_strides = strides(q->shape[1], beta->ld, 1);
    }
    const size_t bytes = mhla_forward_workspace(plan, &op->call);
    if (bytes == 0) return mhla_tape_fail(t, MHLA_EINVAL, "attention: %s", mhla_message());
    void *ws = mhla_tape_scratch(t, bytes);
    if (t->status == MHLA_OK && !mhla_tape_dry(t)) {
        const mhla_status status = mhla_forward(plan, &op->call, o->data, q->data, k->data, v->data, mix_of(op), ws);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "attention: %s", mhla_message());
        if (t->watch) show(t, op, ws);
    }
    op->call.accumulate = 0;
    const int needs = q->needs_grad || k->needs_grad || v->needs_grad || mhla_param_trains(mix) ||
                      (decay != NULL && decay->needs_grad) || (beta != NULL && beta->needs_grad) ||
                      (onto != NULL && onto->needs_grad);
    if (onto && needs) (onto->base ? onto->base : onto)->needs_grad = 1; /* they share it */
    return mhla_tape_record(t, &op->r, attention_backward, o, needs);
}

mhla_tensor *mhla_nn_attention_onto(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_param *mix,
                                    mhla_tensor *onto, mhla_tensor *q, mhla_tensor *k, mhla_tensor *v) {
    MHLA_GIVEN(t, plan);
    MHLA_GIVEN(t, q);
    MHLA_GIVEN(t, k);
    MHLA_GIVEN(t, v);
    return attend(t, plan, call, mix, onto, (mhla_tensor *const[INPUTS]){q, k, v});
}

mhla_tensor *mhla_nn_recurrence(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_tensor *q,
                                mhla_tensor *k, mhla_tensor *v, mhla_tensor *decay, mhla_tensor *beta) {
    MHLA_GIVEN(t, plan);
    MHLA_GIVEN(t, q);
    MHLA_GIVEN(t, k);
    MHLA_GIVEN(t, v);
    return attend(t, plan, call, NULL, NULL, (mhla_tensor *const[INPUTS]){q, k, v, decay, beta});
}

mhla_tensor *mhla_nn_attention(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_param *mix,
                               mhla_tensor *q, mhla_tensor *k, mhla_tensor *v) {
    return mhla_nn_attention_onto(t, plan, call, mix, NULL, q, k, v);
}

/* ---- Rotary embedding alone ---- */

typedef struct rotary {
    mhla_record r;
    mhla_rotary a;
    mhla_tensor *x, *y;
    mhla_slot dx;
} rotary;

/* (a, b) -> (a c - b s, b c + a s); back: the same with -s */
static void rotary_task(void *arg, int64_t row, int worker) {
    const rotary *op = arg;
    (void)worker;
    const int back = op->dx.wanted, dim = op->a.head_dim, half = op->a.rope_dim / 2;
    const int pair = op->a.rope == MHLA_ROPE_HALF ? half : 1, step = op->a.rope == MHLA_ROPE_HALF ? 1 : 2;
    const int64_t at = row % op->x->shape[1] * half;
    const float *cos = op->a.cos + at, *sin = op->a.sin + at, sign = back ? -1.0f : 1.0f;
    const float *in = back ? mhla_tape_arrived(op->y) + row * op->y->ld : op->x->data + row * op->x->ld;
    float *out = back ? op->dx.data + row * op->dx.ld : op->y->data + row * op->y->ld;
    const int add = back && op->dx.add;
    for (int64_t h = 0; h < op->x->cols; h += dim, in += dim, out += dim) {
        for (int j = 0; j < half; j++) {
            const float a = in[j * step], b = in[j * step + pair], c = cos[j], s = sign * sin[j];
            out[j * step] = (add ? out[j * step] : 0.0f) + (a * c - b * s);
            out[j * step + pair] = (add ? out[j * step + pair] : 0.0f) + (b * c + a * s);
        }
        for (int j = 2 * half; j < dim; j++) out[j] = add ? out[j] + in[j] : in[j];
    }
}

static void rotary_backward(mhla_tape *t, void *p) {
    rotary *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->rows, rotary_task, op);
}

mhla_tensor *mhla_nn_rotary(mhla_tape *t, mhla_rotary a, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    if (a.rope_dim == 0) a.rope_dim = a.head_dim;
    MHLA_NEED(t,
              x->dims == 3 && a.head_dim > 0 && x->cols % a.head_dim == 0 && a.rope_dim > 0 && a.rope_dim % 2 == 0 &&
                  a.rope_dim <= a.head_dim && (a.rope == MHLA_ROPE_HALF || a.rope == MHLA_ROPE_INTERLEAVED),
              "rotary of %d of %d dims in rows of %lld", a.rope_dim, a.head_dim, (long long)x->cols);
    MHLA_NEED(t, mhla_tape_dry(t) || (a.cos && a.sin), "the rotary table is NULL");
    rotary *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (rotary){.a = a, .x = x, .y = y};
    mhla_tape_run(t, x->rows, rotary_task, op);
    return mhla_tape_record(t, &op->r, rotary_backward, y, x->needs_grad);
}
