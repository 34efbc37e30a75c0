/* The selective scan by definition, in double, one thread. */
#include <math.h>

#include "ops/product/product.h"
#include "ops/scan/scan.h"

static double softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }

/* One channel of one sequence. */
typedef struct channel {
    const mhla_scan_run *run;
    mhla_span span;
    int64_t s, i, group;
    double D, bias;
    const float *A; /* [N] */
} channel;

static channel channel_of(const mhla_scan_run *run, int64_t s, int64_t i) {
    const mhla_scan_call *c = &run->call;
    return (channel){.run = run,
                     .span = mhla_scan_span(c, s),
                     .s = s,
                     .i = i,
                     .group = i / (c->channels / run->G),
                     .D = c->D ? (double)c->D[i] : 0.0,
                     .bias = c->delta_bias ? (double)c->delta_bias[i] : 0.0,
                     .A = run->A + i * run->N};
}

static double at(const channel *k, const float *x, const mhla_strides *s, int64_t t) {
    return mhla_get(x, MHLA_F32, s, k->span.batch, k->span.begin + t, 0, k->i);
}
static double state_at(const channel *k, const float *x, const mhla_strides *s, int64_t t, int64_t n) {
    return mhla_get(x, MHLA_F32, s, k->span.batch, k->span.begin + t, k->group, n);
}
static void put(const channel *k, float *x, const mhla_strides *s, int64_t t, double value, int add) {
    if (x) mhla_put(x, MHLA_F32, s, k->span.batch, k->span.begin + t, 0, k->i, value, add);
}

/* h [tokens+1][N], sums [tokens] = h_t C_t, d [tokens] */
static void walk(const channel *k, double *h, double *sums, double *d) {
    const mhla_scan_run *run = k->run;
    const mhla_scan_call *c = &run->call;
    const int64_t N = run->N;
    for (int64_t n = 0; n < N; n++)
        h[n] = c->initial_state ? (double)c->initial_state[(k->s * c->channels + k->i) * N + n] : 0.0;
    for (int64_t t = 0; t < k->span.tokens; t++) {
        const double u = at(k, run->u, &c->u, t), v = at(k, run->delta, &c->delta, t) + k->bias;
        d[t] = c->delta_softplus ? softplus(v) : v;
        sums[t] = 0.0;
        for (int64_t n = 0; n < N; n++) {
            double *now = h + (t + 1) * N + n;
            *now = exp(d[t] * (double)k->A[n]) * h[t * N + n] + d[t] * u * state_at(k, run->B, &c->B, t, n);
            sums[t] += *now * state_at(k, run->C, &c->C, t, n);
        }
    }
}

/* Memory of a walk: h, sums, d, and of its way back. */
typedef struct memory {
    double *h, *sums, *d, *g;
} memory;

static mhla_status allocate(memory *m, const mhla_scan_run *run) {
    const size_t T = (size_t)run->call.tokens, N = (size_t)run->N;
    m->h = mhla_alloc(sizeof(double) * ((T + 1) * N + 2 * T + N));
    if (m->h == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    m->sums = m->h + (T + 1) * N;
    m->d = m->sums + T;
    m->g = m->d + T;
    return MHLA_OK;
}

mhla_status mhla_scan_forward_reference(const mhla_scan_call *call, float *y, const float *u, const float *delta,
                                        const float *A, const float *B, const float *C) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check_forward(&run, call, y, u, delta, A, B, C));
    const mhla_scan_call *c = &run.call;
    memory m = {0};
    MHLA_TRY(allocate(&m, &run));
    for (int64_t s = 0; s < mhla_scan_sequences(c); s++)
        for (int64_t i = 0; i < c->channels; i++) {
            const channel k = channel_of(&run, s, i);
            walk(&k, m.h, m.sums, m.d);
            for (int64_t t = 0; t < k.span.tokens; t++) {
                double o = m.sums[t] + k.D * at(&k, u, &c->u, t);
                if (c->z) o *= mhla_activation_value(MHLA_ACT_SILU, at(&k, c->z, &c->z_strides, t));
                put(&k, y, &c->y, t, o, c->accumulate);
            }
            for (int64_t n = 0; c->final_state && n < run.N; n++)
                c->final_state[(s * c->channels + i) * run.N + n] = (float)m.h[k.span.tokens * run.N + n];
        }
    mhla_free(m.h);
    return MHLA_OK;
}

/* Sums that several channels or sequences add to, in double. */
typedef struct sums {
    double *A, *D, *bias, *B, *C;
} sums;

/* The way back of one channel, from the last token to the first. */
static void walk_back(const channel *k, const memory *m, const sums *out) {
    const mhla_scan_run *run = k->run;
    const mhla_scan_call *c = &run->call;
    const mhla_scan_grads *gr = &run->grads;
    const int64_t N = run->N, state = (k->s * c->channels + k->i) * N;
    for (int64_t n = 0; n < N; n++) m->g[n] = gr->dfinal_state ? (double)gr->dfinal_state[state + n] : 0.0;
    for (int64_t t = k->span.tokens - 1; t >= 0; t--) {
        const double u = at(k, run->u, &c->u, t), d = m->d[t];
        double dy = at(k, run->dy, &c->y, t), dx = 0.0, dd = 0.0;
        if (c->z) { /* y = (sum + D u) silu(z) */
            const double z = at(k, c->z, &c->z_strides, t);
            put(k, gr->dz, &gr->dz_strides, t, dy * (m->sums[t] + k->D * u) * mhla_activation_slope(MHLA_ACT_SILU, z),
                gr->accumulate);
            dy *= mhla_activation_value(MHLA_ACT_SILU, z);
        }
        const int64_t row = ((k->span.batch * c->tokens + k->span.begin + t) * run->G + k->group) * N;
        for (int64_t n = 0; n < N; n++) {
            const double b = state_at(k, run->B, &c->B, t, n), a = (double)k->A[n];
            m->g[n] += dy * state_at(k, run->C, &c->C, t, n); /* sum = h_t C */
            out->C[row + n] += dy * m->h[(t + 1) * N + n];
            out->B[row + n] += m->g[n] * d * u; /* h_t = exp(d A) h_{t-1} + d u B */
            dx += m->g[n] * b;
            m->g[n] *= exp(d * a);
            const double r = m->g[n] * m->h[t * N + n];
            dd += r * a;
            out->A[k->i * N + n] += r * d;
        }
        out->D[k->i] += dy * u;
        put(k, gr->du, &gr->du_strides, t, dx * d + dy * k->D, gr->accumulate);
        dd += dx * u;
        if (c->delta_softplus) dd *= logistic(at(k, run->delta, &c->delta, t) + k->bias);
        put(k, gr->ddelta, &gr->ddelta_strides, t, dd, gr->accumulate);
        out->bias[k->i] += dd;
    }
    for (int64_t n = 0; gr->dinitial_state && n < N; n++)
        gr->dinitial_state[state + n] =
            (float)(m->g[n] + (gr->accumulate ? (double)gr->dinitial_state[state + n] : 0.0));
}

static void round_to(float *to, const double *from, int64_t n, int add) {
    for (int64_t i = 0; to && i < n; i++) to[i] = (float)(from[i] + (add ? (double)to[i] : 0.0));
}

/* dB or dC, whose strides are the caller's. */
static void round_groups(const mhla_scan_run *run, float *to, const mhla_strides *s, const double *from) {
    const mhla_scan_call *c = &run->call;
    for (int64_t row = 0; to && row < c->batch * c->tokens; row++)
        for (int64_t g = 0; g < run->G; g++)
            for (int64_t n = 0; n < run->N; n++)
                mhla_put(to, MHLA_F32, s, row / c->tokens, row % c->tokens, g, n, from[(row * run->G + g) * run->N + n],
                         run->grads.accumulate);
}

mhla_status mhla_scan_backward_reference(const mhla_scan_call *call, const mhla_scan_grads *grads, const float *dy,
                                         const float *u, const float *delta, const float *A, const float *B,
                                         const float *C) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check_backward(&run, call, grads, dy, u, delta, A, B, C));
    const mhla_scan_call *c = &run.call;
    const int64_t I = c->channels, N = run.N, rows = c->batch * c->tokens * run.G * N;
    memory m = {0};
    MHLA_TRY(allocate(&m, &run));
    double *all = mhla_alloc_zero(sizeof(double) * (size_t)(I * N + 2 * I + 2 * rows));
    if (all == NULL) {
        mhla_free(m.h);
        return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    }
    const sums out = {all, all + I * N, all + I * N + I, all + I * N + 2 * I, all + I * N + 2 * I + rows};
    for (int64_t s = 0; s < mhla_scan_sequences(c); s++)
        for (int64_t i = 0; i < I; i++) {
            const channel k = channel_of(&run, s, i);
            walk(&k, m.h, m.sums, m.d);
            walk_back(&k, &m, &out);
        }
    const mhla_scan_grads *g = &run.grads;
    round_to(g->dA, out.A, I * N, g->accumulate);
    round_to(g->dD, out.D, I, g->accumulate);
    round_to(g->ddelta_bias, out.bias, I, g->accumulate);
    round_groups(&run, g->dB, &g->dB_strides, out.B);
    round_groups(&run, g->dC, &g->dC_strides, out.C);
    mhla_free(all);
    mhla_free(m.h);
    return MHLA_OK;
}
