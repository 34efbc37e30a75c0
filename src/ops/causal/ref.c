/* The causal operators by definition, in double: every token u <= t counts for token t with the weight that t's chunk
 * gives to u's chunk. Forward, and its gradient directly below. Everything fast is tested against this file. */
#include "ops/causal/causal.h"
#include "ops/features.h"

/* One sequence and query head, as doubles. Rows are tokens of the sequence. */
typedef struct view {
    const mhla_run *run;
    int64_t s, b, begin, T;                     /* sequence, its batch entry and tokens */
    int64_t h, g;                               /* query head, key/value head */
    int64_t entries0, first0, entries1, first1; /* initial and final lists, and the chunk of their entry 0 */
    double *q, *k, *q2, *k2;                    /* [T][K] features: numerator (rotated), denominator (not) */
    double *v, *dO;                             /* [T][V] */
    double *o;                                  /* [V] of one token, times den */
    double *dq, *dk, *dv, *dq2, *dk2;           /* gradients of the features */
    void *memory;
} view;

static const float *head_mix(const view *x) {
    const mhla_plan *p = x->run->plan;
    return x->run->mix ? x->run->mix + (p->d.mix_per_head ? x->h * p->M * p->M : 0) : NULL;
}

static double weight(const view *x, int64_t i, int64_t b) {
    return x->run->mix ? (double)mhla_causal_weight(head_mix(x), x->run->plan->M, i, b) : 1.0;
}

static int64_t chunk_of(const view *x, int64_t t) { return (x->run->call.past + t) / x->run->plan->d.chunk; }

/* Entry of the final list that chunk b belongs to: entry 0 holds everything up to first1. */
static int64_t final_entry(const view *x, int64_t b) { return b <= x->first1 ? 0 : b - x->first1; }

static void read_rows(const view *x, double *dst, const void *src, const mhla_strides *st, int64_t head, int cols,
                      int feature, int rope) {
    const mhla_run *run = x->run;
    const mhla_plan_desc *d = &run->plan->d;
    for (int64_t t = 0; t < x->T; t++) {
        double *row = dst + t * cols;
        for (int j = 0; j < cols; j++) {
            const double value = mhla_get(src, d->dtype, st, x->b, x->begin + t, head, j);
            row[j] = feature ? mhla_feature_value(d->feature, value, (double)d->feature_eps) : value;
        }
        if (rope && d->rope != MHLA_ROPE_NONE)
            mhla_rotate_row(row, d->rope, d->rope_dim, run->call.rope_cos, run->call.rope_sin, run->call.past + t, 1.0);
    }
}

static mhla_status open_view(view *x, const mhla_run *run, int64_t s, int64_t h) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const int K = d->key_dim, V = d->value_dim;
    *x = (view){.run = run,
                .s = s,
                .h = h,
                .g = h / (d->heads / d->kv_heads),
                .b = mhla_seq_batch(c, s),
                .begin = mhla_seq_begin(c, s),
                .T = mhla_seq_end(c, s) - mhla_seq_begin(c, s)};
    mhla_causal_list(run->plan, c->past, &x->entries0, &x->first0);
    mhla_causal_list(run->plan, c->past + x->T, &x->entries1, &x->first1);
    if (c->initial_state == NULL) x->entries0 = 0;
    const int64_t rows = x->T > 0 ? x->T : 1;
    double *m = x->memory = mhla_alloc_zero((size_t)(rows * (8 * K + 3 * V) + V) * sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    double **const parts[] = {&x->q, &x->k, &x->q2, &x->k2, &x->dq, &x->dk, &x->dq2, &x->dk2};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, m += rows * K) *parts[i] = m;
    x->v = m;
    x->dO = m + rows * V;
    x->dv = m + 2 * rows * V;
    x->o = m + 3 * rows * V;
    read_rows(x, x->q, run->q, &c->q, h, K, 1, 1);
    read_rows(x, x->k, run->k, &c->k, x->g, K, 1, 1);
    read_rows(x, x->v, run->v, &c->v, x->g, V, 0, 0);
    read_rows(x, x->q2, c->q2 ? c->q2 : run->q, c->q2 ? &c->q2_strides : &c->q, h, K, 1, 0);
    read_rows(x, x->k2, c->k2 ? c->k2 : run->k, c->k2 ? &c->k2_strides : &c->k, x->g, K, 1, 0);
    if (run->dO) read_rows(x, x->dO, run->dO, &c->o, h, V, 0, 0);
    return MHLA_OK;
}

static double dot(const double *a, const double *b, int n) {
    double s = 0.0;
    for (int j = 0; j < n; j++) s += a[j] * b[j];
    return s;
}

/* Entry e of a caller's list: state [.,N,G,K,V], z [.,N,G,K]. */
static int64_t entry_at(const view *x, int64_t N, int64_t e) {
    return ((x->s * N + e) * x->run->plan->d.kv_heads + x->g) * x->run->plan->d.key_dim;
}

/* x->o = numerator of token t; returns its denominator. */
static double token_forward(const view *x, int64_t t) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const int K = d->key_dim, V = d->value_dim;
    const double scale = (double)d->scale;
    const int64_t i = chunk_of(x, t);
    double den = 0.0;
    for (int j = 0; j < V; j++) x->o[j] = 0.0;
    for (int64_t e = 0; e < x->entries0; e++) { /* what came before: m[i,b] q~ . S_b */
        const double m = weight(x, i, x->first0 + e);
        const int64_t at = entry_at(x, mhla_state_chunks(x->run->plan, c->past), e);
        for (int a = 0; a < K; a++)
            for (int j = 0; j < V; j++)
                x->o[j] += m * scale * x->q[t * K + a] * (double)c->initial_state[(at + a) * V + j];
        if (d->denominator != MHLA_DEN_NONE)
            for (int a = 0; a < K; a++) den += m * scale * x->q2[t * K + a] * (double)c->initial_z[at + a];
    }
    for (int64_t u = 0; u <= t; u++) { /* m[i,b(u)] (q~_t . k~_u) v_u */
        const double m = weight(x, i, chunk_of(x, u));
        const double s = m * scale * dot(x->q + t * K, x->k + u * K, K);
        for (int j = 0; j < V; j++) x->o[j] += s * x->v[u * V + j];
        den += m * scale * dot(x->q2 + t * K, x->k2 + u * K, K);
    }
    return d->denominator == MHLA_DEN_NONE ? 1.0 : den + (double)d->den_eps;
}

static void final_lists(const view *x) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const int K = d->key_dim, V = d->value_dim;
    const int64_t N0 = mhla_state_chunks(x->run->plan, c->past),
                  N1 = mhla_state_chunks(x->run->plan, c->past + c->tokens);
    for (int64_t e = 0; e < N1; e++) {
        const int64_t at = entry_at(x, N1, e);
        for (int a = 0; a < K; a++)
            for (int j = -1; j < V; j++) { /* column -1 stands for z */
                double sum = 0.0;
                for (int64_t i = 0; i < x->entries0; i++) {
                    const int64_t from = entry_at(x, N0, i) + a;
                    if (final_entry(x, x->first0 + i) == e && (j >= 0 || c->initial_z))
                        sum += j < 0 ? (double)c->initial_z[from] : (double)c->initial_state[from * V + j];
                }
                for (int64_t u = 0; u < x->T; u++)
                    if (final_entry(x, chunk_of(x, u)) == e)
                        sum += j < 0 ? x->k2[u * K + a] : x->k[u * K + a] * x->v[u * V + j];
                if (j < 0 && c->final_z) c->final_z[at + a] = (float)sum;
                if (j >= 0 && c->final_state) c->final_state[(at + a) * V + j] = (float)sum;
            }
    }
}

mhla_status mhla_causal_forward_reference(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    for (int64_t s = 0; s < mhla_seq_count(c); s++)
        for (int64_t h = 0; h < d->heads; h++) {
            view x;
            MHLA_TRY(open_view(&x, run, s, h));
            for (int64_t t = 0; t < x.T; t++) {
                const double den = token_forward(&x, t);
                for (int j = 0; j < d->value_dim; j++)
                    mhla_put(run->o, d->dtype, &c->o, x.b, x.begin + t, h, j, x.o[j] / den, c->accumulate);
            }
            if ((c->final_state || c->final_z) && h % (d->heads / d->kv_heads) == 0) final_lists(&x);
            mhla_free(x.memory);
        }
    return MHLA_OK;
}

/* ---- Backward ---- */

/* Sums over heads and sequences, in double. */
typedef struct totals {
    double *dmix;          /* [H or 1][M,M] or NULL */
    double *dk, *dv, *dk2; /* [T][.] of one key/value head and sequence: a group of query heads adds up */
    double *dS, *dz;       /* [entries0][K,V], [entries0][K] likewise */
} totals;

static void add_dmix(const view *x, totals *sum, int64_t i, int64_t b, double value) {
    const int64_t M = x->run->plan->M;
    if (sum->dmix == NULL) return;
    double *m = sum->dmix + (x->run->plan->d.mix_per_head ? x->h * M * M : 0);
    const int64_t distance = i - b;
    m[i < M ? i * M + b : (M - 1) * M + (distance < M ? M - 1 - distance : 0)] += value;
}

static void token_backward(const view *x, totals *sum, int64_t t) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const int K = d->key_dim, V = d->value_dim, normed = d->denominator != MHLA_DEN_NONE;
    const double scale = (double)d->scale, den = token_forward(x, t);
    const int64_t i = chunk_of(x, t), N0 = mhla_state_chunks(x->run->plan, c->past);
    double *g = x->dO + t * V; /* o = n / den: g = dn = do / den, dden = -(do . o) / den */
    double dden = 0.0;
    for (int j = 0; j < V; j++) g[j] /= den;
    if (normed)
        for (int j = 0; j < V; j++) dden -= g[j] * x->o[j] / den;
    const double *q = x->q + t * K, *q2 = x->q2 + t * K;
    for (int64_t e = 0; e < x->entries0; e++) { /* n += m[i,b] s q~ . S_b,  den += m[i,b] s q2~ . z_b */
        const int64_t at = entry_at(x, N0, e);
        const double m = weight(x, i, x->first0 + e);
        double dm = 0.0;
        for (int a = 0; a < K; a++) {
            double Sg = 0.0;
            for (int j = 0; j < V; j++) {
                Sg += (double)c->initial_state[(at + a) * V + j] * g[j];
                sum->dS[(e * K + a) * V + j] += m * scale * q[a] * g[j];
            }
            x->dq[t * K + a] += m * scale * Sg;
            dm += scale * q[a] * Sg;
            if (!normed) continue;
            const double z = (double)c->initial_z[at + a];
            x->dq2[t * K + a] += dden * m * scale * z;
            sum->dz[e * K + a] += dden * m * scale * q2[a];
            dm += dden * scale * q2[a] * z;
        }
        add_dmix(x, sum, i, x->first0 + e, dm);
    }
    for (int64_t u = 0; u <= t; u++) { /* n += m[i,b(u)] s (q~_t . k~_u) v_u,  den += m[i,b(u)] s q2~_t . k2~_u */
        const double m = weight(x, i, chunk_of(x, u)), *k = x->k + u * K, *k2 = x->k2 + u * K;
        const double score = scale * dot(q, k, K), gv = dot(g, x->v + u * V, V);
        double dm = score * gv;
        for (int j = 0; j < V; j++) sum->dv[u * V + j] += m * score * g[j];
        for (int a = 0; a < K; a++) {
            x->dq[t * K + a] += m * scale * gv * k[a];
            sum->dk[u * K + a] += m * scale * gv * q[a];
        }
        if (normed) {
            dm += dden * scale * dot(q2, k2, K);
            for (int a = 0; a < K; a++) {
                x->dq2[t * K + a] += dden * m * scale * k2[a];
                sum->dk2[u * K + a] += dden * m * scale * q2[a];
            }
        }
        add_dmix(x, sum, i, chunk_of(x, u), dm);
    }
}

/* final S_e = sum k~ v^T, final z_e = sum k2~ (and what was there before) */
static void final_backward(const view *x, totals *sum) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_grads *gr = &x->run->grads;
    const int K = d->key_dim, V = d->value_dim;
    const int64_t N1 = mhla_state_chunks(x->run->plan, x->run->call.past + x->run->call.tokens);
    for (int64_t u = 0; u < x->T; u++) {
        const int64_t at = entry_at(x, N1, final_entry(x, chunk_of(x, u)));
        for (int a = 0; a < K; a++) {
            for (int j = 0; gr->dfinal_state && j < V; j++) {
                const double f = (double)gr->dfinal_state[(at + a) * V + j];
                sum->dk[u * K + a] += f * x->v[u * V + j];
                sum->dv[u * V + j] += f * x->k[u * K + a];
            }
            if (gr->dfinal_z) sum->dk2[u * K + a] += (double)gr->dfinal_z[at + a];
        }
    }
    for (int64_t e = 0; e < x->entries0; e++) {
        const int64_t at = entry_at(x, N1, final_entry(x, x->first0 + e));
        for (int a = 0; a < K; a++) {
            for (int j = 0; gr->dfinal_state && j < V; j++)
                sum->dS[(e * K + a) * V + j] += (double)gr->dfinal_state[(at + a) * V + j];
            if (gr->dfinal_z) sum->dz[e * K + a] += (double)gr->dfinal_z[at + a];
        }
    }
}

/* Through rotary and feature map into the caller's gradient: rotated part `d`, un-rotated part `plain`. */
static void write_rows(const view *x, float *dst, const mhla_strides *st, const double *d, const double *plain,
                       const void *src, const mhla_strides *src_st, int64_t head) {
    const mhla_plan_desc *desc = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const int K = desc->key_dim;
    double row[1024];
    if (dst == NULL) return;
    for (int64_t t = 0; t < x->T; t++) {
        for (int j = 0; j < K; j++) row[j] = d ? d[t * K + j] : 0.0;
        if (d && desc->rope != MHLA_ROPE_NONE)
            mhla_rotate_row(row, desc->rope, desc->rope_dim, c->rope_cos, c->rope_sin, c->past + t, -1.0);
        for (int j = 0; j < K; j++) {
            const double in = mhla_get(src, desc->dtype, src_st, x->b, x->begin + t, head, j);
            const double all = row[j] + (plain ? plain[t * K + j] : 0.0);
            const double slope = mhla_feature_slope(desc->feature, in);
            mhla_put(dst, MHLA_F32, st, x->b, x->begin + t, head, j, slope == 0.0 ? 0.0 : slope * all,
                     x->run->grads.accumulate);
        }
    }
}

static void write_kv(const view *x, const totals *sum) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const mhla_grads *g = &x->run->grads;
    const int K = d->key_dim, V = d->value_dim;
    write_rows(x, g->dk, &g->dk_strides, sum->dk, c->k2 ? NULL : sum->dk2, x->run->k, &c->k, x->g);
    if (c->k2) write_rows(x, g->dk2, &g->dk2_strides, NULL, sum->dk2, c->k2, &c->k2_strides, x->g);
    for (int64_t t = 0; g->dv && t < x->T; t++)
        for (int j = 0; j < V; j++)
            mhla_put(g->dv, MHLA_F32, &g->dv_strides, x->b, x->begin + t, x->g, j, sum->dv[t * V + j], g->accumulate);
    const int64_t N0 = mhla_state_chunks(x->run->plan, c->past);
    for (int64_t e = 0; e < x->entries0; e++) {
        const int64_t at = entry_at(x, N0, e);
        for (int64_t j = 0; g->dinitial_state && j < (int64_t)K * V; j++)
            g->dinitial_state[at * V + j] =
                (float)(sum->dS[e * K * V + j] + (g->accumulate ? (double)g->dinitial_state[at * V + j] : 0.0));
        for (int64_t j = 0; g->dinitial_z && j < K; j++)
            g->dinitial_z[at + j] = (float)(sum->dz[e * K + j] + (g->accumulate ? (double)g->dinitial_z[at + j] : 0.0));
    }
}

/* All query heads of one key/value head of one sequence. */
static mhla_status group_backward(const mhla_run *run, totals *sum, int64_t s, int64_t g) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_grads *gr = &run->grads;
    const int64_t K = d->key_dim, V = d->value_dim, T = mhla_seq_end(c, s) - mhla_seq_begin(c, s) + 1;
    const int64_t entries = mhla_state_chunks(run->plan, c->past) + 1;
    double *memory = mhla_alloc_zero((size_t)(T * (2 * K + V) + entries * K * (V + 1)) * sizeof *memory);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    sum->dk = memory;
    sum->dk2 = sum->dk + T * K;
    sum->dv = sum->dk2 + T * K;
    sum->dS = sum->dv + T * V;
    sum->dz = sum->dS + entries * K * V;
    mhla_status status = MHLA_OK;
    const int64_t R = d->heads / d->kv_heads;
    for (int64_t h = g * R; h < (g + 1) * R && status == MHLA_OK; h++) {
        view x;
        status = open_view(&x, run, s, h);
        if (status != MHLA_OK) break;
        for (int64_t t = 0; t < x.T; t++) token_backward(&x, sum, t);
        write_rows(&x, gr->dq, &gr->dq_strides, x.dq, c->q2 ? NULL : x.dq2, run->q, &c->q, h);
        if (c->q2) write_rows(&x, gr->dq2, &gr->dq2_strides, NULL, x.dq2, c->q2, &c->q2_strides, h);
        if (h == (g + 1) * R - 1) {
            final_backward(&x, sum);
            write_kv(&x, sum);
        }
        mhla_free(x.memory);
    }
    mhla_free(memory);
    return status;
}

mhla_status mhla_causal_backward_reference(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_grads *gr = &run->grads;
    MHLA_TRY(mhla_causal_check_grads(run));
    const int64_t mixes = run->plan->M * run->plan->M * (d->mix_per_head ? d->heads : 1);
    totals sum = {0};
    if (gr->dmix) {
        sum.dmix = mhla_alloc_zero((size_t)mixes * sizeof *sum.dmix);
        if (sum.dmix == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    }
    mhla_status status = MHLA_OK;
    for (int64_t s = 0; s < mhla_seq_count(&run->call) && status == MHLA_OK; s++)
        for (int64_t g = 0; g < d->kv_heads && status == MHLA_OK; g++) status = group_backward(run, &sum, s, g);
    if (status == MHLA_OK && gr->dmix)
        for (int64_t i = 0; i < mixes; i++)
            gr->dmix[i] = (float)(sum.dmix[i] + (gr->accumulate ? (double)gr->dmix[i] : 0.0));
    mhla_free(sum.dmix);
    return status;
}
