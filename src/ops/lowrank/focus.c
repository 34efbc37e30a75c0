/* The focusing map around the engine: norms before the heads, and, because they are norms over all heads of a token, what
 * is left of the gradient after them. src/ops/focused/README.md has the formulas. */
#include <math.h>

#include "ops/lowrank/head.h"

static double softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

void mhla_low_focus_inverse(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus) {
    const int H = run->plan->d.heads;
    memset(focus->inverse, 0, (size_t)(H * g->ldk) * sizeof(float));
    for (int h = 0; h < H; h++)
        for (int j = 0; j < g->K; j++)
            focus->inverse[h * g->ldk + j] = (float)(1.0 / softplus((double)run->call.focus[h * g->K + j]));
}

/* Rows of q (which = 0) or k of head h, and their norms, from token `at` of batch entry b. */
static mhla_focus rows_of(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, int which,
                          int64_t b, int64_t at, int64_t h, int n) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_strides *s = which ? &run->call.k : &run->call.q;
    const void *x = mhla_at(which ? run->k : run->q, d->dtype, s, b, at, h);
    return (mhla_focus){.x = {.base = (void *)(uintptr_t)x, .stride = s->token, .dtype = d->dtype},
                        .n = n,
                        .K = g->K,
                        .heads = d->heads,
                        .head = s->head,
                        .ld = g->ldk,
                        .inverse = focus->inverse + h * g->ldk,
                        .eps = d->feature_eps,
                        .power = d->focus_power,
                        .reach = focus->reach[which] + b * g->T + at,
                        .gain = focus->gain[which] + b * g->T + at,
                        .unit = focus->unit[which] + b * g->T + at};
}

void mhla_low_focus_norms(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, int64_t b,
                          int64_t block) {
    const int64_t at = mhla_low_begin(g, block);
    for (int which = 0; which < 2; which++) {
        const mhla_focus p = rows_of(run, g, focus, which, b, at, 0, (int)(mhla_low_begin(g, block + 1) - at));
        run->kernels->focus_norms(&p);
    }
}

void mhla_low_focus_features(const mhla_low_head *x, int which, int64_t at, int n, float *f) {
    mhla_focus p = rows_of(x->run, x->g, x->focus, which, x->b, at, x->h, n);
    p.f = f;
    x->run->kernels->focus_pack(&p);
}

/* ---- Backward ---- */

/* Keeps the gradient of n features and its product with them until all heads of the token are there. */
void mhla_low_focus_keep(const mhla_low_head *x, int which, int64_t at, int n, const float *f, const mhla_unpack *u) {
    const mhla_low_geometry *g = x->g;
    const int64_t row = ((x->b - x->focus->first) * x->run->plan->d.heads + x->h) * g->T + at;
    float *df = x->focus->df[which] + row * g->ldk;
    mhla_unpack keep = *u;
    keep.dx = keep.x = (mhla_rows){.base = df, .stride = g->ldk, .dtype = MHLA_F32};
    keep.feature = MHLA_FEATURE_IDENTITY;
    keep.accumulate = 0;
    x->run->kernels->unpack(&keep);
    x->run->kernels->row_dots(x->focus->along[which] + row, f, g->ldk, df, g->ldk, n, g->K);
}

/* dq and dk of a block of tokens, all heads, and their sums for dfocus. along is scratch for a block. */
void mhla_low_focus_finish(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, float *along,
                           int64_t b, int64_t block) {
    const mhla_grads *out = &run->grads;
    const int64_t H = run->plan->d.heads, at = mhla_low_begin(g, block), entry = b - focus->first;
    const int n = (int)(mhla_low_begin(g, block + 1) - at);
    float *sums = focus->sums + (entry * g->blocks + block) * H * g->ldk;
    memset(sums, 0, (size_t)(H * g->ldk) * sizeof *sums);
    for (int which = 0; which < 2; which++) {
        float *dx = which ? out->dk : out->dq;
        const mhla_strides *s = which ? &out->dk_strides : &out->dq_strides;
        for (int i = 0; i < n; i++) { /* df . f / |a|^2 over all heads */
            along[i] = 0.0f;
            for (int64_t h = 0; h < H; h++) along[i] += focus->along[which][(entry * H + h) * g->T + at + i];
            along[i] *= focus->unit[which][b * g->T + at + i];
        }
        for (int64_t h = 0; h < H; h++) {
            mhla_focus p = rows_of(run, g, focus, which, b, at, h, n);
            p.df = focus->df[which] + ((entry * H + h) * g->T + at) * g->ldk;
            p.along = along;
            p.dx = (mhla_rows){.stride = s->token, .dtype = MHLA_F32};
            if (dx) p.dx.base = dx + b * s->batch + at * s->token + h * s->head;
            p.accumulate = out->accumulate;
            p.sum = sums + h * g->ldk;
            run->kernels->focus_unpack(&p);
        }
    }
}

/* The sums of so many batch entries, one after the other, whoever made them. */
void mhla_low_focus_add(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, int64_t entries) {
    const int64_t size = run->plan->d.heads * g->ldk;
    if (focus->first == 0) memset(focus->total, 0, (size_t)size * sizeof(float));
    for (int64_t i = 0; i < entries * g->blocks; i++)
        run->kernels->axpy(focus->total, 1.0f, focus->sums + i * size, size);
}

/* a = (...) / softplus(focus): dfocus = -sum(a da) softplus'(focus) / softplus(focus) */
void mhla_low_focus_store(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus) {
    float *dfocus = run->grads.dfocus;
    for (int64_t c = 0; dfocus && c < (int64_t)run->plan->d.heads * g->K; c++) {
        const double x = (double)run->call.focus[c], total = (double)focus->total[c / g->K * g->ldk + c % g->K];
        const double value = -total / (softplus(x) * (1.0 + exp(-x)));
        dfocus[c] = (float)(value + (run->grads.accumulate ? (double)dfocus[c] : 0.0));
    }
}
