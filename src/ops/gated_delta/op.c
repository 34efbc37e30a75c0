/* The gated delta rule: the forward pass, on the engine of ../gated. */
#include "ops/gated_delta/gated_delta.h"

/* X = v - e^b k S, Y = (I + N)^-1 X, o = q' S + P Y, S = total S + k'^T Y */
static void walk_chunk(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                       const mhla_gated_columns *cols, int fresh) {
    const mhla_run *run = w->run;
    const mhla_plan_desc *d = &run->plan->d;
    const int n = c->n;
    const size_t before = (size_t)cols->begin * mhla_dtype_size(d->dtype);
    if (!w->fused) { /* else the scores have left them */
        mhla_gated_decays(w, z, c, h);
        mhla_delta_betas(w, z, c, h);
    }
    mhla_delta_factors(w, z, c, h);
    mhla_rows v = mhla_gated_rows(c, run->v, d->dtype, &run->call.v, h);
    mhla_rows o = mhla_gated_rows(c, run->o, d->dtype, &run->call.o, h);
    v.base = (char *)v.base + before;
    o.base = (char *)o.base + before;
    run->kernels->copy_panels(z->vp, &cols->p, &v, n, NULL);
    if (!fresh) {
        mhla_gemm rest = {.m = n, .n = cols->p, .store = MHLA_STORE_ADD, .c = z->vp, .c_rows = n};
        rest.f = (mhla_factor){.k = w->K, .a = z->kb, .a_row = w->ldk, .a_k = 1, .b = z->S, .b_rows = w->K};
        mhla_multiply(run, &rest);
    }
    mhla_gemm solve = {
        .m = n, .n = cols->p, .f2_lower = 1, .f2_lead = 1, .store = MHLA_STORE_SET, .c = z->yp, .c_rows = n};
    solve.f2 = (mhla_factor){
        .k = n, .a = mhla_delta_inverse(w, z, c->x, h), .a_row = w->ldc, .a_k = 1, .b = z->vp, .b_rows = n};
    run->kernels->gemm(&solve);
    mhla_gemm out = {.m = n,
                     .n = cols->p,
                     .f2_lower = 1,
                     .f2_lead = 1,
                     .store = MHLA_STORE_ROWS,
                     .out = o,
                     .accumulate = run->call.accumulate};
    if (!fresh) out.f = (mhla_factor){.k = w->K, .a = z->qd, .a_row = w->ldk, .a_k = 1, .b = z->S, .b_rows = w->K};
    out.f2 = (mhla_factor){
        .k = n, .a = mhla_delta_scores(w, z, c->x, h), .a_row = w->ldc, .a_k = 1, .b = z->yp, .b_rows = n};
    if (fresh)
        run->kernels->gemm(&out);
    else
        mhla_multiply(run, &out);
    mhla_gated_next_state(w, z, c, h, z->yp, cols, fresh);
}

static mhla_status delta_forward(const mhla_run *run) {
    return mhla_gated_run_forward(run, mhla_delta_score, walk_chunk);
}

const mhla_op mhla_op_gated_delta = {
    .name = "the gated delta rule",
    .check_plan = mhla_gated_check_plan,
    .check_call = mhla_gated_check_call,
    .workspace = mhla_gated_workspace,
    .forward = delta_forward,
    .backward = mhla_delta_backward,
    .forward_reference = mhla_delta_forward_reference,
    .backward_reference = mhla_delta_backward_reference,
};
