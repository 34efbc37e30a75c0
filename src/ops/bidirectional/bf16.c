/* The two token-sized products of the forward in bfloat16 pairs, for CPUs that multiply them: S_b = k~^T v with pairs of
 * tokens, o = q~ S'_i with pairs of features. Summaries are summed and mixed in float32; S'_i is rounded once before
 * it is multiplied. */
#include "ops/bidirectional/head.h"

void mhla_head_panels_bf16(mhla_panels *p, int n) {
    const int vectors = (n + 15) / 16, count = (vectors + 3) / 4;
    *p = (mhla_panels){n, 16, vectors, count, vectors / count, vectors % count};
}

/* S_b += over one piece, the keys of which are in buf->k; `set` starts the sum. */
void mhla_head_summarise_bf16(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, float *S, int set,
                              const mhla_prefetch *fetch, int n_fetch) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const int pairs = (n + 1) / 2;
    kernels->narrow_columns(buf->a16, (int64_t)2 * pairs, buf->k, g->ldk, n, g->K);
    const mhla_rows v = mhla_head_rows(x, &g->k, x->run->v, x->run->plan->d.dtype, &x->run->call.v, at);
    kernels->zip_rows(buf->b16, &g->pv, &v, n);
    for (int p = 0; p < g->pv.count; p++) {
        const int begin = mhla_panel_begin(&g->pv, p), width = mhla_panel_begin(&g->pv, p + 1) - begin;
        kernels->gemm_bf16(&(mhla_gemm_bf16){.m = g->K,
                                             .width = width,
                                             .pairs = pairs,
                                             .a = buf->a16,
                                             .a_row = (int64_t)2 * pairs,
                                             .b = buf->b16 + (int64_t)2 * pairs * begin,
                                             .c = S + (int64_t)g->K * begin,
                                             .c_row = width,
                                             .add = !set,
                                             .prefetch = fetch,
                                             .n_prefetch = p == 0 ? n_fetch : 0});
    }
}

/* S'_i, rounded and paired, into buf->p16. */
void mhla_head_round_mixture(const mhla_head *x, const mhla_buffers *buf, const float *P) {
    const mhla_geometry *g = x->g;
    for (int p = 0; p < g->pv.count; p++) {
        const int begin = mhla_panel_begin(&g->pv, p), width = mhla_panel_begin(&g->pv, p + 1) - begin;
        x->run->kernels->narrow_pairs(buf->p16 + (int64_t)2 * ((g->K + 1) / 2) * begin, P + (int64_t)g->K * begin, g->K,
                                      width);
    }
}

/* o of one piece, the queries of which are in buf->q and whose rows are scaled by buf->row_scale. */
void mhla_head_outputs_bf16(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, const mhla_prefetch *fetch,
                            int n_fetch) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    mhla_rows o = mhla_head_rows(x, &g->q, x->run->o, x->run->plan->d.dtype, &x->run->call.o, at);
    const int64_t size = (int64_t)mhla_dtype_size(o.dtype);
    const int pairs = (g->K + 1) / 2;
    kernels->narrow_rows(buf->a16, g->ldk, buf->q, g->ldk, n, g->K);
    for (int p = 0; p < g->pv.count; p++) {
        const int begin = mhla_panel_begin(&g->pv, p), width = mhla_panel_begin(&g->pv, p + 1) - begin;
        kernels->gemm_bf16(&(mhla_gemm_bf16){.m = n,
                                             .width = width,
                                             .pairs = pairs,
                                             .a = buf->a16,
                                             .a_row = g->ldk,
                                             .b = buf->p16 + (int64_t)2 * pairs * begin,
                                             .c = buf->v,
                                             .c_row = width,
                                             .prefetch = fetch,
                                             .n_prefetch = p == 0 ? n_fetch : 0});
        kernels->scores_out(&o, buf->v, width, n, g->V - begin < width ? g->V - begin : width, buf->row_scale,
                            x->run->call.accumulate);
        o.base = (char *)o.base + width * size;
    }
}
