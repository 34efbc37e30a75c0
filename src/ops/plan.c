/* Plans, and the public entry points of the attention operators: everything that a caller can get wrong is found
 * here, once, before an operator runs. */
#include "ops/op.h"
#include "ops/tensors.h"

static const mhla_op *const ops[] = {
    [MHLA_KIND_BIDIRECTIONAL] = &mhla_op_bidirectional,
    [MHLA_KIND_CAUSAL] = &mhla_op_causal,
    [MHLA_KIND_LINEAR] = &mhla_op_bidirectional,
    [MHLA_KIND_LINEAR_CAUSAL] = &mhla_op_causal,
    [MHLA_KIND_SOFTMAX] = &mhla_op_softmax,
    [MHLA_KIND_FOCUSED] = &mhla_op_focused,
    [MHLA_KIND_INLINE] = &mhla_op_inline,
    [MHLA_KIND_MALA] = &mhla_op_mala,
    [MHLA_KIND_RALA] = &mhla_op_rala,
    [MHLA_KIND_SIMPLE_GLA] = &mhla_op_simple_gla,
    [MHLA_KIND_GLA] = &mhla_op_gla,
    [MHLA_KIND_GATED_DELTA] = &mhla_op_gated_delta,
};

/* ---- Plans ---- */

static mhla_status check_desc(mhla_plan_desc *d) {
    CHECK((size_t)d->kind < sizeof ops / sizeof *ops, "kind is %d: no such operator", (int)d->kind);
    CHECK((unsigned)d->dtype <= MHLA_BF16, "dtype is %d: expected MHLA_F32 or MHLA_BF16", (int)d->dtype);
    CHECK(d->kv_bfloat16 == 0 || (d->kv_bfloat16 == 1 && d->kind == MHLA_KIND_SOFTMAX),
          "kv_bfloat16 is %d: expected 0, or 1 of softmax", d->kv_bfloat16);
    CHECK((unsigned)d->feature <= MHLA_FEATURE_IDENTITY, "feature is %d: no such feature map", (int)d->feature);
    CHECK((unsigned)d->denominator <= MHLA_DEN_NONE, "denominator is %d: no such denominator", (int)d->denominator);
    CHECK((unsigned)d->order <= MHLA_ORDER_BLOCKS, "order is %d: no such order", (int)d->order);
    CHECK((unsigned)d->rope <= MHLA_ROPE_INTERLEAVED, "rope is %d: no such rotary embedding", (int)d->rope);
    CHECK((unsigned)d->beyond <= MHLA_BEYOND_CHUNK, "beyond is %d: no such policy", (int)d->beyond);
    const int soft = d->kind == MHLA_KIND_SOFTMAX;
    const int most_v = soft ? 1024 : 512;
    CHECK(d->heads >= 1 && d->heads <= 65536, "heads is %d: expected 1 to 65536", d->heads);
    CHECK(d->key_dim >= 1 && d->key_dim <= 1024, "key_dim is %d: expected 1 to 1024", d->key_dim);
    CHECK(d->value_dim >= 1 && d->value_dim <= most_v, "value_dim is %d: expected 1 to %d", d->value_dim, most_v);
    CHECK(d->kv_heads >= 0, "kv_heads is %d", d->kv_heads);
    if (d->kv_heads == 0) d->kv_heads = d->heads;
    CHECK(d->heads % d->kv_heads == 0, "heads is %d: not a multiple of kv_heads %d", d->heads, d->kv_heads);
    CHECK(d->feature_eps == d->feature_eps && d->den_eps == d->den_eps && d->scale == d->scale,
          "feature_eps, den_eps or scale is NaN");
    if (d->rope != MHLA_ROPE_NONE) {
        if (d->rope_dim == 0) d->rope_dim = d->key_dim;
        CHECK(d->rope_dim > 0 && d->rope_dim <= d->key_dim && d->rope_dim % 2 == 0,
              "rope_dim is %d: expected an even number up to key_dim %d", d->rope_dim, d->key_dim);
    } else {
        CHECK(d->rope_dim == 0, "rope_dim is %d but rope is MHLA_ROPE_NONE", d->rope_dim);
    }
    CHECK(d->denominator != MHLA_DEN_RELEASED || d->kind == MHLA_KIND_BIDIRECTIONAL,
          "denominator is MHLA_DEN_RELEASED: only bidirectional MHLA has it");
    CHECK(d->focus_power == 0 || d->kind == MHLA_KIND_FOCUSED, "focus_power is %d: only Focused LA has one",
          d->focus_power);
    CHECK(d->key_heads == 0 || mhla_shares_keys(d->kind),
          "key_heads is %d: only simple GLA and the gated delta rule have fewer of them", d->key_heads);
    CHECK(d->key_heads >= 0, "key_heads is %d", d->key_heads);
    if (d->key_heads == 0) d->key_heads = d->heads;
    CHECK(d->heads % d->key_heads == 0, "heads is %d: not a multiple of key_heads %d", d->heads, d->key_heads);
    CHECK(d->qk_l2norm == 0 || (d->qk_l2norm == 1 && d->kind == MHLA_KIND_GATED_DELTA),
          "qk_l2norm is %d: expected 0, or 1 of the gated delta rule", d->qk_l2norm);
    CHECK(d->kind == MHLA_KIND_BIDIRECTIONAL || !mhla_has_key_layout(d),
          "key_axes, key_n_blocks, key_n_tokens, key_block_offsets or key_permutation is set: only bidirectional MHLA "
          "has a layout of keys");
    CHECK(d->softcap == 0.0 || soft, "softcap is %g: only softmax has one", d->softcap);
    CHECK(d->mix_per_head == 0 || d->mix_per_head == 1, "mix_per_head is %d: expected 0 or 1", d->mix_per_head);
    return MHLA_OK;
}

mhla_status mhla_plan_create(mhla_plan **plan, const mhla_plan_desc *desc) {
    CHECK(plan != NULL, "plan is NULL");
    *plan = NULL;
    mhla_plan_desc d;
    MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_plan_desc"));
    MHLA_TRY(check_desc(&d));
    mhla_plan *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a plan");
    p->d = d;
    p->op = ops[d.kind];
    p->q_heads = mhla_shares_keys(d.kind) ? d.key_heads : d.heads;
    p->k_heads = mhla_shares_keys(d.kind) ? d.key_heads : d.kv_heads;
    p->v_heads = d.kv_heads;
    const mhla_status status = p->op->check_plan(p);
    p->d.block_offsets = NULL; /* the caller's; ours are copies */
    p->d.permutation = NULL;
    p->d.key_block_offsets = NULL;
    p->d.key_permutation = NULL;
    if (status != MHLA_OK) {
        mhla_plan_free(p);
        return status;
    }
    *plan = p;
    return MHLA_OK;
}

void mhla_plan_free(mhla_plan *plan) {
    if (plan == NULL) return;
    for (int i = 0; i < 2; i++) {
        mhla_free(plan->layouts[i].offsets);
        mhla_free(plan->layouts[i].perm);
    }
    mhla_free(plan);
}

int64_t mhla_plan_blocks(const mhla_plan *plan) { return plan ? plan->M : 0; }
int64_t mhla_plan_tokens(const mhla_plan *plan) { return plan ? plan->T : 0; }
int64_t mhla_plan_key_blocks(const mhla_plan *plan) { return plan ? plan->Mk : 0; }
int64_t mhla_plan_key_tokens(const mhla_plan *plan) { return plan ? plan->Tk : 0; }
int mhla_plan_chunk(const mhla_plan *plan) { return plan ? plan->d.chunk : 0; }

/* ---- Calls ---- */

/* Everything about a call but the addresses of its tensors. */
static mhla_status check_sizes(mhla_run *run, const mhla_plan *plan, const mhla_call *given) {
    CHECK(plan != NULL, "plan is NULL");
    memset(run, 0, sizeof *run);
    run->plan = plan;
    MHLA_TRY(mhla_struct_in(&run->call, sizeof run->call, given, "mhla_call"));
    mhla_call *c = &run->call;
    const mhla_plan_desc *d = &plan->d;
    const int H = d->heads, K = d->key_dim, V = d->value_dim;
    const int causal = mhla_has_state(d->kind), decays = mhla_decays(d->kind);
    const int soft = d->kind == MHLA_KIND_SOFTMAX;
    CHECK(c->batch >= 1, "batch is %lld: expected 1 or more", (long long)c->batch);
    CHECK(c->tokens >= 1, "tokens is %lld: expected 1 or more", (long long)c->tokens);
    CHECK(c->kv_tokens >= 0, "kv_tokens is %lld", (long long)c->kv_tokens);
    CHECK(soft || plan->T || d->kind == MHLA_KIND_LINEAR || c->kv_tokens == 0 || c->kv_tokens == c->tokens,
          "kv_tokens is %lld: this operator's keys are as many as its queries, %lld", (long long)c->kv_tokens,
          (long long)c->tokens);
    if (c->kv_tokens == 0) c->kv_tokens = plan->Tk ? plan->Tk : c->tokens;
    CHECK(plan->T == 0 || c->tokens == plan->T, "tokens is %lld: the plan's grid has %lld", (long long)c->tokens,
          (long long)plan->T);
    CHECK(plan->Tk == 0 || c->kv_tokens == plan->Tk, "kv_tokens is %lld: the plan's keys are %lld",
          (long long)c->kv_tokens, (long long)plan->Tk);
    CHECK(c->cu_seqlens == NULL || causal || soft, "cu_seqlens is given: bidirectional operators have one sequence");
    MHLA_TRY(check_sequences(c->batch, c->tokens, c->cu_seqlens, c->sequences));
    CHECK(c->past >= 0 && c->past <= INT64_MAX / 4, "past is %lld", (long long)c->past);
    CHECK(causal || (c->past == 0 && !c->initial_state && !c->initial_z && !c->final_state && !c->final_z),
          "past or a state is given: only causal operators have one");
    MHLA_TRY(fill_strides(&c->q, "q", c->batch, c->tokens, plan->q_heads, K));
    MHLA_TRY(fill_strides(&c->k, "k", c->batch, c->kv_tokens, plan->k_heads, K));
    MHLA_TRY(fill_strides(&c->v, "v", c->batch, c->kv_tokens, plan->v_heads, V));
    MHLA_TRY(fill_strides(&c->o, "o", c->batch, c->tokens, H, V));
    CHECK((c->q2 == NULL) == (c->k2 == NULL), "one of q2 and k2 is NULL");
    CHECK(c->q2 == NULL || (!soft && d->denominator != MHLA_DEN_NONE),
          "q2 and k2 are given but there is no denominator");
    MHLA_TRY(fill_strides(&c->q2_strides, "q2", c->batch, c->tokens, plan->q_heads, K));
    MHLA_TRY(fill_strides(&c->k2_strides, "k2", c->batch, c->kv_tokens, plan->k_heads, K));
    CHECK(decays || c->decay == NULL, "decay is given: this operator has none");
    if (decays) MHLA_TRY(fill_strides(&c->decay_strides, "decay", c->batch, c->tokens, H, mhla_decay_dim(plan)));
    const int delta = d->kind == MHLA_KIND_GATED_DELTA;
    CHECK(delta || c->beta == NULL, "beta is given: only the gated delta rule has one");
    if (delta) MHLA_TRY(fill_strides(&c->beta_strides, "beta", c->batch, c->tokens, H, 1));
    if (d->rope != MHLA_ROPE_NONE) {
        CHECK(c->rope_cos && c->rope_sin, "rope_cos or rope_sin is NULL");
        int64_t longest = c->kv_tokens > c->tokens && !c->key_rope_cos ? c->kv_tokens : c->tokens;
        if (c->cu_seqlens) {
            longest = 0;
            for (int64_t s = 0; s < c->sequences; s++)
                if (c->cu_seqlens[s + 1] - c->cu_seqlens[s] > longest)
                    longest = c->cu_seqlens[s + 1] - c->cu_seqlens[s];
        }
        CHECK(c->rope_rows >= longest + c->past, "rope_rows is %lld: the sequence has %lld positions",
              (long long)c->rope_rows, (long long)(longest + c->past));
    }
    if (c->key_rope_cos || c->key_rope_sin) {
        CHECK(
            d->kind == MHLA_KIND_BIDIRECTIONAL || d->kind == MHLA_KIND_LINEAR,
            "key_rope_cos or key_rope_sin is given: only bidirectional MHLA and linear attention have a table of keys");
        CHECK(d->rope != MHLA_ROPE_NONE, "key_rope_cos or key_rope_sin is given but the plan's rope is MHLA_ROPE_NONE");
        CHECK(c->key_rope_cos && c->key_rope_sin, "one of key_rope_cos and key_rope_sin is NULL");
        CHECK(c->key_rope_rows >= c->kv_tokens, "key_rope_rows is %lld: there are %lld keys",
              (long long)c->key_rope_rows, (long long)c->kv_tokens);
    } else if (d->kind == MHLA_KIND_BIDIRECTIONAL || d->kind == MHLA_KIND_LINEAR) {
        c->key_rope_cos = c->rope_cos;
        c->key_rope_sin = c->rope_sin;
    }
    CHECK((unsigned)c->precision <= MHLA_BF16, "precision is %d: expected float32 or bfloat16", (int)c->precision);
    run->kernels = mhla_kernels_get();
    run->pairs = c->precision == MHLA_BF16 && run->kernels->gemm_bf16 != NULL;
    run->threads = mhla_context_threads(c->context);
    return plan->op->check_call ? plan->op->check_call(run) : MHLA_OK;
}

enum { MAX_TENSORS = 28 };

/* The inputs of a run, for overlap tests; returns how many. */
static int list_inputs(const mhla_run *run, tensor *t) {
    const mhla_call *c = &run->call;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_plan *plan = run->plan;
    const int64_t N = mhla_seq_count(c), G = plan->v_heads, K = d->key_dim;
    int n = 0;
    t[n++] = make_tensor("q", run->q, d->dtype, &c->q, c->batch, c->tokens, plan->q_heads, K);
    const mhla_dtype kv = d->kv_bfloat16 ? MHLA_BF16 : d->dtype;
    t[n++] = make_tensor("k", run->k, kv, &c->k, c->batch, c->kv_tokens, plan->k_heads, K);
    t[n++] = make_tensor("v", run->v, kv, &c->v, c->batch, c->kv_tokens, G, d->value_dim);
    if (run->mix) t[n++] = make_flat("mix", run->mix, mhla_mix_size(plan));
    if (c->focus) t[n++] = make_flat("focus", c->focus, d->heads * K);
    if (c->q2) t[n++] = make_tensor("q2", c->q2, d->dtype, &c->q2_strides, c->batch, c->tokens, d->heads, K);
    if (c->k2) t[n++] = make_tensor("k2", c->k2, d->dtype, &c->k2_strides, c->batch, c->kv_tokens, G, K);
    if (c->decay)
        t[n++] = make_tensor("decay", c->decay, MHLA_F32, &c->decay_strides, c->batch, c->tokens, d->heads,
                             mhla_decay_dim(plan));
    if (c->beta) t[n++] = make_tensor("beta", c->beta, MHLA_F32, &c->beta_strides, c->batch, c->tokens, d->heads, 1);
    if (c->initial_state)
        t[n++] = make_flat("initial_state", c->initial_state,
                           N * mhla_state_chunks(run->plan, c->past) * G * K * d->value_dim);
    if (c->initial_z) t[n++] = make_flat("initial_z", c->initial_z, N * mhla_state_chunks(run->plan, c->past) * G * K);
    return n;
}

static mhla_status check_inputs(mhla_run *run, const void *q, const void *k, const void *v, const float *mix) {
    const int kind = (int)run->plan->d.kind;
    CHECK(q != NULL, "q is NULL");
    CHECK(k != NULL, "k is NULL");
    CHECK(v != NULL, "v is NULL");
    const int mixes = kind == MHLA_KIND_BIDIRECTIONAL || kind == MHLA_KIND_CAUSAL;
    CHECK(mixes || mix == NULL, "mix is given: this operator has none");
    CHECK(!mixes || mix != NULL, "mix is NULL");
    const int focused = kind == MHLA_KIND_FOCUSED;
    CHECK(focused || run->call.focus == NULL, "focus is given: only Focused LA has one");
    CHECK(!focused || run->call.focus != NULL, "focus is NULL");
    CHECK(!mhla_decays((mhla_kind)kind) || run->call.decay != NULL, "decay is NULL");
    CHECK(kind != MHLA_KIND_GATED_DELTA || run->call.beta != NULL, "beta is NULL");
    run->q = q;
    run->k = k;
    run->v = v;
    run->mix = mix;
    return MHLA_OK;
}

mhla_status mhla_run_check(mhla_run *run, const mhla_plan *plan, const mhla_call *call, void *o, const void *q,
                           const void *k, const void *v, const float *mix) {
    MHLA_TRY(check_sizes(run, plan, call));
    CHECK(o != NULL, "o is NULL");
    MHLA_TRY(check_inputs(run, q, k, v, mix));
    run->o = o;
    const mhla_call *c = &run->call;
    const mhla_plan_desc *d = &plan->d;
    tensor in[MAX_TENSORS];
    int n = list_inputs(run, in);
    const tensor out = make_tensor("o", o, d->dtype, &c->o, c->batch, c->tokens, d->heads, d->value_dim);
    MHLA_TRY(check_output(&out, in, n));
    in[n++] = out;
    const int64_t kept = mhla_seq_count(c) *
                         (c->final_state || c->final_z ? mhla_state_chunks(plan, c->past + c->tokens) : 0) *
                         d->kv_heads * d->key_dim;
    const tensor state = make_flat("final_state", c->final_state, kept * d->value_dim);
    const tensor z = make_flat("final_z", c->final_z, kept);
    if (c->final_state) {
        MHLA_TRY(check_output(&state, in, n));
        in[n++] = state;
    }
    if (c->final_z) MHLA_TRY(check_output(&z, in, n));
    return MHLA_OK;
}

static mhla_status check_backward(mhla_run *run, const mhla_plan *plan, const mhla_call *call, const mhla_grads *grads,
                                  const void *dO, const void *q, const void *k, const void *v, const float *mix) {
    MHLA_TRY(check_sizes(run, plan, call));
    CHECK(dO != NULL, "dO is NULL");
    MHLA_TRY(check_inputs(run, q, k, v, mix));
    run->dO = dO;
    MHLA_TRY(mhla_struct_in(&run->grads, sizeof run->grads, grads, "mhla_grads"));
    const mhla_call *c = &run->call;
    const mhla_plan_desc *d = &plan->d;
    mhla_grads *g = &run->grads;
    const int64_t B = c->batch, T = c->tokens, Tk = c->kv_tokens, H = d->heads, Hq = plan->q_heads, Hk = plan->k_heads,
                  G = plan->v_heads, K = d->key_dim, V = d->value_dim, N = mhla_seq_count(c);
    const int64_t D = mhla_decay_dim(plan);
    MHLA_TRY(fill_strides(&g->dq_strides, "dq", B, T, Hq, K));
    MHLA_TRY(fill_strides(&g->dk_strides, "dk", B, Tk, Hk, K));
    MHLA_TRY(fill_strides(&g->dv_strides, "dv", B, Tk, G, V));
    MHLA_TRY(fill_strides(&g->dq2_strides, "dq2", B, T, Hq, K));
    MHLA_TRY(fill_strides(&g->dk2_strides, "dk2", B, Tk, Hk, K));
    MHLA_TRY(fill_strides(&g->ddecay_strides, "ddecay", B, T, H, D));
    MHLA_TRY(fill_strides(&g->dbeta_strides, "dbeta", B, T, H, 1));
    CHECK(c->q2 != NULL || (g->dq2 == NULL && g->dk2 == NULL), "dq2 or dk2 is given without q2 and k2");
    CHECK(mix != NULL || g->dmix == NULL, "dmix is given: this operator has no mix");
    CHECK(c->focus != NULL || g->dfocus == NULL, "dfocus is given: only Focused LA has one");
    CHECK(c->decay != NULL || g->ddecay == NULL, "ddecay is given: this operator has no decay");
    CHECK(c->beta != NULL || g->dbeta == NULL, "dbeta is given: only the gated delta rule has a beta");
    const int causal = mhla_has_state(d->kind);
    CHECK(causal || !(g->dinitial_state || g->dinitial_z || g->dfinal_state || g->dfinal_z),
          "a state's gradient is given: only causal operators have one");
    tensor t[MAX_TENSORS];
    int n = list_inputs(run, t);
    t[n++] = make_tensor("dO", dO, d->dtype, &c->o, B, T, H, V);
    const int64_t n0 = N * (causal ? mhla_state_chunks(plan, c->past) : 0) * G * K;
    const tensor out[] = {
        make_tensor("dq", g->dq, MHLA_F32, &g->dq_strides, B, T, Hq, K),
        make_tensor("dk", g->dk, MHLA_F32, &g->dk_strides, B, Tk, Hk, K),
        make_tensor("dv", g->dv, MHLA_F32, &g->dv_strides, B, Tk, G, V),
        make_tensor("dq2", g->dq2, MHLA_F32, &g->dq2_strides, B, T, Hq, K),
        make_tensor("dk2", g->dk2, MHLA_F32, &g->dk2_strides, B, Tk, Hk, K),
        make_flat("dmix", g->dmix, mhla_mix_size(plan)),
        make_flat("dinitial_state", g->dinitial_state, n0 * V),
        make_flat("dinitial_z", g->dinitial_z, n0),
        make_flat("dfocus", g->dfocus, H * K),
        make_tensor("ddecay", g->ddecay, MHLA_F32, &g->ddecay_strides, B, T, H, D),
        make_tensor("dbeta", g->dbeta, MHLA_F32, &g->dbeta_strides, B, T, H, 1),
    };
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (out[i].data) {
            MHLA_TRY(check_output(&out[i], t, n));
            t[n++] = out[i];
        }
    return MHLA_OK;
}

/* ---- Entry points ---- */

static size_t workspace(const mhla_plan *plan, const mhla_call *call, int backward) {
    mhla_run run;
    if (check_sizes(&run, plan, call) != MHLA_OK) return 0;
    return plan->op->workspace(&run, backward);
}

size_t mhla_forward_workspace(const mhla_plan *plan, const mhla_call *call) { return workspace(plan, call, 0); }
size_t mhla_backward_workspace(const mhla_plan *plan, const mhla_call *call) { return workspace(plan, call, 1); }

/* Runs with the caller's workspace, or with one of our own. */
static mhla_status with_workspace(mhla_run *run, void *ws, int backward) {
    void *own;
    MHLA_TRY(take_workspace(&run->ws, &own, ws, ws ? 0 : run->plan->op->workspace(run, backward)));
    const mhla_status status = backward ? run->plan->op->backward(run) : run->plan->op->forward(run);
    mhla_free(own);
    return status;
}

mhla_status mhla_forward(const mhla_plan *plan, const mhla_call *call, void *o, const void *q, const void *k,
                         const void *v, const float *mix, void *ws) {
    mhla_run run;
    MHLA_TRY(mhla_run_check(&run, plan, call, o, q, k, v, mix));
    return with_workspace(&run, ws, 0);
}

mhla_status mhla_forward_reference(const mhla_plan *plan, const mhla_call *call, void *o, const void *q, const void *k,
                                   const void *v, const float *mix) {
    mhla_run run;
    MHLA_TRY(mhla_run_check(&run, plan, call, o, q, k, v, mix));
    return plan->op->forward_reference(&run);
}

mhla_status mhla_backward(const mhla_plan *plan, const mhla_call *call, const mhla_grads *grads, const void *dO,
                          const void *q, const void *k, const void *v, const float *mix, void *ws) {
    mhla_run run;
    MHLA_TRY(check_backward(&run, plan, call, grads, dO, q, k, v, mix));
    return with_workspace(&run, ws, 1);
}

mhla_status mhla_backward_reference(const mhla_plan *plan, const mhla_call *call, const mhla_grads *grads,
                                    const void *dO, const void *q, const void *k, const void *v, const float *mix) {
    mhla_run run;
    MHLA_TRY(check_backward(&run, plan, call, grads, dO, q, k, v, mix));
    return plan->op->backward_reference(&run);
}

/* ---- One-shot calls ---- */

static mhla_status one_shot(const mhla_plan_desc *desc, float *o, const float *q, const float *k, const float *v,
                            const float *mix, int64_t B, int64_t T, int64_t Tk) {
    mhla_plan *plan;
    MHLA_TRY(mhla_plan_create(&plan, desc));
    const mhla_call call = {.size = sizeof call, .batch = B, .tokens = T, .kv_tokens = Tk};
    const mhla_status status = mhla_forward(plan, &call, o, q, k, v, mix, NULL);
    mhla_plan_free(plan);
    return status;
}

mhla_status mhla_cross_attention(float *o, const float *q, const float *k, const float *v, const float *mix, int64_t B,
                                 int64_t Tq, int64_t Tk, int H, int K, int V, int axes, const int *grid,
                                 const int *blocks, int key_axes, const int *key_grid, const int *key_blocks) {
    mhla_plan_desc d = {
        .size = sizeof d, .heads = H, .key_dim = K, .value_dim = V, .feature_eps = 1e-6f, .den_eps = 1e-6f};
    CHECK(axes >= 1 && axes <= 3, "axes is %d: expected 1, 2 or 3", axes);
    CHECK(grid != NULL && blocks != NULL, "grid or blocks is NULL");
    CHECK(key_axes >= 1 && key_axes <= 3, "key_axes is %d: expected 1, 2 or 3", key_axes);
    CHECK(key_grid != NULL && key_blocks != NULL, "key_grid or key_blocks is NULL");
    d.axes = axes;
    memcpy(d.grid, grid, (size_t)axes * sizeof *grid);
    memcpy(d.blocks, blocks, (size_t)axes * sizeof *blocks);
    d.key_axes = key_axes;
    memcpy(d.key_grid, key_grid, (size_t)key_axes * sizeof *key_grid);
    memcpy(d.key_blocks, key_blocks, (size_t)key_axes * sizeof *key_blocks);
    return one_shot(&d, o, q, k, v, mix, B, Tq, Tk);
}

mhla_status mhla_attention(float *o, const float *q, const float *k, const float *v, const float *mix, int64_t B,
                           int64_t T, int H, int K, int V, int axes, const int *grid, const int *blocks) {
    return mhla_cross_attention(o, q, k, v, mix, B, T, T, H, K, V, axes, grid, blocks, axes, grid, blocks);
}

mhla_status mhla_causal_attention(float *o, const float *q, const float *k, const float *v, const float *mix, int64_t B,
                                  int64_t T, int H, int K, int V, int chunk, int M) {
    const mhla_plan_desc d = {.size = sizeof d,
                              .kind = MHLA_KIND_CAUSAL,
                              .heads = H,
                              .key_dim = K,
                              .value_dim = V,
                              .denominator = MHLA_DEN_NONE,
                              .chunk = chunk,
                              .chunks = M};
    return one_shot(&d, o, q, k, v, mix, B, T, T);
}
