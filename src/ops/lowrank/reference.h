/* What the references of Focused LA, InLine, MALA and RALA share: one batch entry in double, its features, and the way in and
 * out. The definitions themselves stand in the ref.c of each. */
#ifndef MHLA_OPS_LOWRANK_REFERENCE_H
#define MHLA_OPS_LOWRANK_REFERENCE_H

#include "ops/features.h"
#include "ops/op.h"

/* One head in double. Gradients are zero before backward, which adds to them and finds what forward left in S to a. */
typedef struct mhla_ref_head {
    int64_t T, K, V;
    double scale, eps;
    const double *q, *k;              /* [T,K] q~, k~ */
    const double *qr, *kr;            /* [T,K] rot(q~), rot(k~); without a table the same */
    const double *v, *dO;             /* [T,V] */
    double *o;                        /* [T,V] */
    double *dq, *dk, *dqr, *dkr, *dv; /* gradients; both parts of q~ are added in the end */
    double *S, *dS;                   /* [K,V] */
    double *qbar, *kbar, *vbar;       /* [K], [K], [V] */
    double *dqbar, *dkbar, *dvbar;
    double *a, *da; /* [T] */
} mhla_ref_head;

/* The full width of a token, for a map that needs all heads: element (h, t, j) of x [H,T,K]. */
typedef struct mhla_ref_map {
    const mhla_run *run;
    int64_t T, H, K;
    const double *focus; /* [H*K] */
    double *dfocus;
    double *row; /* [H*K] scratch */
} mhla_ref_map;

typedef struct mhla_ref_op {
    void (*forward)(mhla_ref_head *x);
    void (*backward)(mhla_ref_head *x);
    /* NULL: the feature map of the plan, element by element. f, x, df, dx [H,T,K] */
    void (*map)(double *f, const double *x, const mhla_ref_map *m);
    void (*map_backward)(double *dx, const double *df, const double *x, const mhla_ref_map *m);
} mhla_ref_op;

mhla_status mhla_reference_forward(const mhla_run *run, const mhla_ref_op *op);
mhla_status mhla_reference_backward(const mhla_run *run, const mhla_ref_op *op);

/* S = sum_u w[u] k_u v_u^T (w NULL = 1); and, from dS: dk_u += w[u] dS v_u, dv_u += w[u] dS^T k_u, dw[u] += k_u^T dS v_u. */
void mhla_ref_summary(double *S, const double *w, const double *k, const double *v, int64_t T, int64_t K, int64_t V);
void mhla_ref_summary_backward(double *dk, double *dv, double *dw, const double *dS, const double *w, const double *k,
                               const double *v, int64_t T, int64_t K, int64_t V);

/* mean [n] of the rows of x [T,n]; and dx_t += dmean / T. */
void mhla_ref_mean(double *mean, const double *x, int64_t T, int64_t n);
void mhla_ref_mean_backward(double *dx, const double *dmean, int64_t T, int64_t n);

static inline double mhla_ref_dot(const double *x, const double *y, int64_t n) {
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) sum += x[j] * y[j];
    return sum;
}

static inline void mhla_ref_add(double *y, double a, const double *x, int64_t n) {
    for (int64_t j = 0; j < n; j++) y[j] += a * x[j];
}

#endif
