/* The scaffold of four references: brings a batch entry into double, applies feature map and rotary, lets the operator's own
 * ref.c work on each head, and stores what it made. */
#include "ops/lowrank/reference.h"

void mhla_ref_summary(double *S, const double *w, const double *k, const double *v, int64_t T, int64_t K, int64_t V) {
    memset(S, 0, (size_t)(K * V) * sizeof *S);
    for (int64_t u = 0; u < T; u++)
        for (int64_t i = 0; i < K; i++) mhla_ref_add(S + i * V, (w ? w[u] : 1.0) * k[u * K + i], v + u * V, V);
}

void mhla_ref_summary_backward(double *dk, double *dv, double *dw, const double *dS, const double *w, const double *k,
                               const double *v, int64_t T, int64_t K, int64_t V) {
    for (int64_t u = 0; u < T; u++)
        for (int64_t i = 0; i < K; i++) {
            const double weight = w ? w[u] : 1.0, x = mhla_ref_dot(dS + i * V, v + u * V, V);
            dk[u * K + i] += weight * x;
            if (dw) dw[u] += k[u * K + i] * x;
            mhla_ref_add(dv + u * V, weight * k[u * K + i], dS + i * V, V);
        }
}

void mhla_ref_mean(double *mean, const double *x, int64_t T, int64_t n) {
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int64_t t = 0; t < T; t++) mhla_ref_add(mean, 1.0 / (double)T, x + t * n, n);
}

void mhla_ref_mean_backward(double *dx, const double *dmean, int64_t T, int64_t n) {
    for (int64_t t = 0; t < T; t++) mhla_ref_add(dx + t * n, 1.0 / (double)T, dmean, n);
}

/* All heads of a batch entry. */
typedef struct entry {
    mhla_ref_map m;
    double *q, *k, *qf, *kf, *qr, *kr;            /* [H,T,K] as given; features; turned */
    double *v, *o, *dO, *dv;                      /* [H,T,V] */
    double *dq, *dk, *dqf, *dkf, *dqr, *dkr;      /* [H,T,K] */
    double *focus, *dfocus;                       /* [H*K] */
    double *S, *dS, *qbar, *kbar, *dqbar, *dkbar; /* of one head */
    double *vbar, *dvbar, *a, *da;
} entry;

static entry make_entry(const mhla_run *run, mhla_carver *w) {
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t T = run->call.tokens, H = d->heads, K = d->key_dim, V = d->value_dim;
    entry e = {.m = {.run = run, .T = T, .H = H, .K = K}};
    double **keys[] = {&e.q, &e.k, &e.qf, &e.kf, &e.qr, &e.kr, &e.dq, &e.dk, &e.dqf, &e.dkf, &e.dqr, &e.dkr};
    double **values[] = {&e.v, &e.o, &e.dO, &e.dv};
    double **head_keys[] = {&e.qbar, &e.kbar, &e.dqbar, &e.dkbar};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) *keys[i] = mhla_carve(w, (size_t)(H * T * K) * 8);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) *values[i] = mhla_carve(w, (size_t)(H * T * V) * 8);
    for (size_t i = 0; i < 4; i++) *head_keys[i] = mhla_carve(w, (size_t)K * 8);
    e.focus = mhla_carve(w, (size_t)(H * K) * 8);
    e.dfocus = mhla_carve(w, (size_t)(H * K) * 8);
    e.S = mhla_carve(w, (size_t)(K * V) * 8);
    e.dS = mhla_carve(w, (size_t)(K * V) * 8);
    e.vbar = mhla_carve(w, (size_t)V * 8);
    e.dvbar = mhla_carve(w, (size_t)V * 8);
    e.a = mhla_carve(w, (size_t)T * 8);
    e.da = mhla_carve(w, (size_t)T * 8);
    e.m.row = mhla_carve(w, (size_t)(H * K) * 8);
    e.m.focus = e.focus;
    e.m.dfocus = e.dfocus;
    return e;
}

static void read_tensor(double *to, const entry *e, const void *x, const mhla_strides *s, int64_t b, int64_t n) {
    for (int64_t h = 0; h < e->m.H; h++)
        for (int64_t t = 0; t < e->m.T; t++)
            for (int64_t j = 0; j < n; j++) *to++ = mhla_get(x, e->m.run->plan->d.dtype, s, b, t, h, j);
}

static void write_tensor(void *to, mhla_dtype dtype, const mhla_strides *s, const entry *e, const double *x, int64_t b,
                         int64_t n, int accumulate) {
    if (to == NULL) return;
    for (int64_t h = 0; h < e->m.H; h++)
        for (int64_t t = 0; t < e->m.T; t++)
            for (int64_t j = 0; j < n; j++) mhla_put(to, dtype, s, b, t, h, j, *x++, accumulate);
}

/* Each row of x [H,T,K] by the row of the table that its token has; sign -1 turns back. */
static void rotate(double *x, const entry *e, double sign) {
    const mhla_plan_desc *d = &e->m.run->plan->d;
    const mhla_call *c = &e->m.run->call;
    if (d->rope == MHLA_ROPE_NONE) return;
    for (int64_t i = 0; i < e->m.H * e->m.T; i++)
        mhla_rotate_row(x + i * e->m.K, d->rope, d->rope_dim, c->rope_cos, c->rope_sin, i % e->m.T, sign);
}

static void load_features(double *f, double *turned, const entry *e, const double *x, const mhla_ref_op *op) {
    const mhla_plan_desc *d = &e->m.run->plan->d;
    const int64_t n = e->m.H * e->m.T * e->m.K;
    if (op->map)
        op->map(f, x, &e->m);
    else
        for (int64_t i = 0; i < n; i++) f[i] = mhla_feature_value(d->feature, x[i], (double)d->feature_eps);
    memcpy(turned, f, (size_t)n * sizeof *f);
    rotate(turned, e, 1.0);
}

/* df += turned back; then through the map, into dx. */
static void feature_gradient(double *dx, double *df, double *turned, const entry *e, const double *x,
                             const mhla_ref_op *op) {
    const int64_t n = e->m.H * e->m.T * e->m.K;
    rotate(turned, e, -1.0);
    mhla_ref_add(df, 1.0, turned, n);
    if (op->map_backward)
        op->map_backward(dx, df, x, &e->m);
    else
        for (int64_t i = 0; i < n; i++) dx[i] = df[i] * mhla_feature_slope(e->m.run->plan->d.feature, x[i]);
}

static void load(entry *e, int64_t b, const mhla_ref_op *op) {
    const mhla_run *run = e->m.run;
    const mhla_call *c = &run->call;
    read_tensor(e->q, e, run->q, &c->q, b, e->m.K);
    read_tensor(e->k, e, run->k, &c->k, b, e->m.K);
    read_tensor(e->v, e, run->v, &c->v, b, run->plan->d.value_dim);
    for (int64_t i = 0; c->focus && i < e->m.H * e->m.K; i++) e->focus[i] = (double)c->focus[i];
    load_features(e->qf, e->qr, e, e->q, op);
    load_features(e->kf, e->kr, e, e->k, op);
}

static mhla_ref_head head_of(const entry *e, int64_t h) {
    const mhla_plan_desc *d = &e->m.run->plan->d;
    const int64_t T = e->m.T, V = d->value_dim, at = h * T * e->m.K, av = h * T * V;
    return (mhla_ref_head){.T = T,
                           .K = e->m.K,
                           .V = V,
                           .scale = (double)d->scale,
                           .eps = (double)d->den_eps,
                           .q = e->qf + at,
                           .k = e->kf + at,
                           .qr = e->qr + at,
                           .kr = e->kr + at,
                           .v = e->v + av,
                           .dO = e->dO + av,
                           .o = e->o + av,
                           .dq = e->dqf + at,
                           .dk = e->dkf + at,
                           .dqr = e->dqr + at,
                           .dkr = e->dkr + at,
                           .dv = e->dv + av,
                           .S = e->S,
                           .dS = e->dS,
                           .qbar = e->qbar,
                           .kbar = e->kbar,
                           .vbar = e->vbar,
                           .dqbar = e->dqbar,
                           .dkbar = e->dkbar,
                           .dvbar = e->dvbar,
                           .a = e->a,
                           .da = e->da};
}

static void clear_gradients(entry *e) {
    const int64_t n = e->m.H * e->m.T;
    double *keys[] = {e->dqf, e->dkf, e->dqr, e->dkr};
    for (size_t i = 0; i < 4; i++) memset(keys[i], 0, (size_t)(n * e->m.K) * sizeof(double));
    memset(e->dv, 0, (size_t)(n * e->m.run->plan->d.value_dim) * sizeof(double));
}

static void clear_head(mhla_ref_head *x) {
    memset(x->dS, 0, (size_t)(x->K * x->V) * sizeof(double));
    memset(x->dqbar, 0, (size_t)x->K * sizeof(double));
    memset(x->dkbar, 0, (size_t)x->K * sizeof(double));
    memset(x->dvbar, 0, (size_t)x->V * sizeof(double));
    memset(x->da, 0, (size_t)x->T * sizeof(double));
}

static void backward_entry(entry *e, int64_t b, const mhla_ref_op *op) {
    const mhla_run *run = e->m.run;
    const mhla_grads *g = &run->grads;
    const int64_t V = run->plan->d.value_dim;
    read_tensor(e->dO, e, run->dO, &run->call.o, b, V);
    clear_gradients(e);
    for (int64_t h = 0; h < e->m.H; h++) {
        mhla_ref_head x = head_of(e, h);
        clear_head(&x);
        op->forward(&x);
        op->backward(&x);
    }
    feature_gradient(e->dq, e->dqf, e->dqr, e, e->q, op);
    feature_gradient(e->dk, e->dkf, e->dkr, e, e->k, op);
    write_tensor(g->dq, MHLA_F32, &g->dq_strides, e, e->dq, b, e->m.K, g->accumulate);
    write_tensor(g->dk, MHLA_F32, &g->dk_strides, e, e->dk, b, e->m.K, g->accumulate);
    write_tensor(g->dv, MHLA_F32, &g->dv_strides, e, e->dv, b, V, g->accumulate);
}

static mhla_status all_entries(const mhla_run *run, const mhla_ref_op *op, int backward) {
    mhla_carver w = {0};
    make_entry(run, &w);
    void *memory = mhla_alloc(w.used);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reference of %zu bytes", w.used);
    w = (mhla_carver){.base = memory};
    entry e = make_entry(run, &w);
    const int64_t channels = e.m.H * e.m.K;
    memset(e.dfocus, 0, (size_t)channels * sizeof(double));
    for (int64_t b = 0; b < run->call.batch; b++) {
        load(&e, b, op);
        if (backward) {
            backward_entry(&e, b, op);
            continue;
        }
        for (int64_t h = 0; h < e.m.H; h++) {
            mhla_ref_head x = head_of(&e, h);
            op->forward(&x);
        }
        write_tensor(run->o, run->plan->d.dtype, &run->call.o, &e, e.o, b, run->plan->d.value_dim,
                     run->call.accumulate);
    }
    float *dfocus = backward ? run->grads.dfocus : NULL;
    for (int64_t i = 0; dfocus && i < channels; i++)
        dfocus[i] = (float)(e.dfocus[i] + (run->grads.accumulate ? (double)dfocus[i] : 0.0));
    mhla_free(memory);
    return MHLA_OK;
}

mhla_status mhla_reference_forward(const mhla_run *run, const mhla_ref_op *op) { return all_entries(run, op, 0); }
mhla_status mhla_reference_backward(const mhla_run *run, const mhla_ref_op *op) { return all_entries(run, op, 1); }
