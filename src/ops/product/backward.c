/* The gradients of a linear layer that sum over rows, and the way back through the activation. */
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "ops/product/product.h"

/* ---- y = x W^T + b:  dw = dy^T x, db = sum over rows of dy ----
 *
 * Rows are summed in segments of SEGMENT, segments in chunks of CHUNK; each chunk is one chain per element. All of that
 * depends on the number of rows alone. Tasks are blocks of dw, and segments where dw has few blocks. */

enum {
    CHUNK = 256,       /* rows */
    LINE = CHUNK + 16, /* padded, so that a tile's rows do not fall on the same lines of the cache */
    SEGMENT = 8 * CHUNK,
    SEGMENTS = 16,      /* at most; longer segments then */
    SMALL = 512 * 1024, /* elements of dw up to which segments are summed apart */
    BLOCK = 192,        /* rows and columns of a block of dw, at most, */
    LARGE_BLOCK = 256   /* and of a dw that is not small */
};

typedef struct weight_grad {
    const mhla_kernels *kernels;
    const float *dy, *x;
    float *dw, *db;
    int64_t rows, ldy, ldx, N, K;
    int accumulate;
    int pairs; /* multiplied in bfloat16 */
    int64_t segments, n_blocks, k_blocks;
    float *partial; /* [segments-1][N*K + N]: the first segment goes to dw, db themselves */
    char *scratch;  /* per worker: dy^T [block][LINE], x [CHUNK] panelled, the block of dw panelled; in bfloat16
                       dy^T [block][CHUNK], x [CHUNK/2] pairs of rows */
    size_t worker_bytes, dy_bytes, x_bytes;
} weight_grad;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Column sums of rows [r,r+n) of dy, columns [n0,n0+cols), added to or put into db. */
static void sum_columns(const weight_grad *g, float *db, int64_t r, int n, int64_t n0, int cols, int add) {
    float sums[LARGE_BLOCK] = {0};
    g->kernels->column_sums(sums, g->dy + r * g->ldy + n0, g->ldy, NULL, 0, n, cols);
    for (int j = 0; j < cols; j++) db[n0 + j] = add ? db[n0 + j] + sums[j] : sums[j];
}

/* A chunk on its way into a block of dw. */
typedef struct chunk {
    int64_t n0, k0;  /* of the block, */
    int nb, kb;      /* its sides */
    int64_t r, left; /* first row; rows of the next chunk, or 0 */
    int n;           /* rows */
    int add;         /* to the chunks before */
    void *dy, *x;    /* packed */
    float *sums;     /* of the block, panelled */
    mhla_panels panels;
} chunk;

static mhla_panels wide_panel(int n, int columns) {
    return (mhla_panels){.n = n, .unit = 16, .vectors = columns / 16, .count = 1, .base = columns / 16};
}

static void pack_chunk(const weight_grad *g, const chunk *c) {
    const mhla_rows dy = {(float *)g->dy + c->r * g->ldy + c->n0, NULL, g->ldy, MHLA_F32};
    const mhla_rows x = {(float *)g->x + c->r * g->ldx + c->k0, NULL, g->ldx, MHLA_F32};
    if (g->pairs) {
        g->kernels->narrow_columns(c->dy, CHUNK, dy.base, g->ldy, c->n, c->nb);
        g->kernels->zip_rows(c->x, &c->panels, &x, c->n);
        return;
    }
    /* dy^T as rows of k, [nb][LINE]: a tile then reads whole lines of it */
    const mhla_panels line = wide_panel(c->n, LINE);
    g->kernels->transpose(c->dy, &line, dy.base, g->ldy, c->nb);
    g->kernels->copy_panels(c->x, &c->panels, &x, c->n, NULL);
}

/* sums (=, +=) dy^T x of panel i of the chunk; a share of the next chunk's rows comes near meanwhile. */
static void multiply_chunk(const weight_grad *g, const chunk *c, int i) {
    const int64_t next = c->r + c->n, from = next + c->left * i / c->panels.count,
                  to = next + c->left * (i + 1) / c->panels.count;
    const mhla_prefetch near[2] = {
        {{(float *)g->dy + from * g->ldy + c->n0, NULL, g->ldy, MHLA_F32}, (int)(to - from), 4 * c->nb},
        {{(float *)g->x + from * g->ldx + c->k0, NULL, g->ldx, MHLA_F32}, (int)(to - from), 4 * c->kb},
    };
    const int begin = mhla_panel_begin(&c->panels, i), n_near = c->left > 0 ? 2 : 0, pairs = (c->n + 1) / 2;
    const mhla_panels one = mhla_one_panel(&c->panels, i);
    float *sums = c->sums + (int64_t)c->nb * begin;
    if (g->pairs) {
        g->kernels->gemm_bf16(&(mhla_gemm_bf16){.m = c->nb,
                                                .width = mhla_panels_width(&one),
                                                .pairs = pairs,
                                                .a = c->dy,
                                                .a_row = CHUNK,
                                                .b = (const uint16_t *)c->x + (int64_t)2 * pairs * begin,
                                                .c = sums,
                                                .c_row = mhla_panels_width(&one),
                                                .add = c->add,
                                                .prefetch = near,
                                                .n_prefetch = n_near});
        return;
    }
    const float *x = c->x;
    g->kernels->gemm(&(mhla_gemm){
        .m = c->nb,
        .n = one,
        .f = {.k = c->n, .a = c->dy, .a_row = LINE, .a_k = 1, .b = x + (int64_t)c->n * begin, .b_rows = c->n},
        .store = c->add ? MHLA_STORE_ADD : MHLA_STORE_SET,
        .c = sums,
        .c_rows = c->nb,
        .prefetch = near,
        .n_prefetch = n_near,
    });
}

static void weight_task(void *arg, int64_t task, int worker) {
    const weight_grad *g = arg;
    const int64_t s = task % g->segments, block = task / g->segments;
    const int64_t bn = block % g->n_blocks, bk = block / g->n_blocks;
    const int64_t n0 = bn * g->N / g->n_blocks, k0 = bk * g->K / g->k_blocks;
    const int nb = (int)((bn + 1) * g->N / g->n_blocks - n0), kb = (int)((bk + 1) * g->K / g->k_blocks - k0);
    float *dw = s == 0 ? g->dw : g->partial + (s - 1) * (g->N * g->K + g->N);
    float *db = s == 0 ? g->db : g->partial + (s - 1) * (g->N * g->K + g->N) + g->N * g->K;
    char *scratch = g->scratch ? g->scratch + (size_t)worker * g->worker_bytes : NULL;
    chunk p = {.n0 = n0, .k0 = k0, .nb = nb, .kb = kb};
    p.panels = mhla_product_panels(g->kernels, kb, g->pairs ? MHLA_BF16 : MHLA_F32);
    p.dy = scratch;
    p.x = scratch ? scratch + g->dy_bytes : NULL;
    p.sums = scratch ? (float *)(scratch + g->dy_bytes + g->x_bytes) : NULL;
    const int64_t chunks = ceil_div(g->rows, CHUNK), last = (s + 1) * chunks / g->segments;
    for (int64_t c = s * chunks / g->segments; c < last; c++) {
        p.r = c * CHUNK;
        p.n = g->rows - p.r < CHUNK ? (int)(g->rows - p.r) : CHUNK;
        p.add = c > s * chunks / g->segments;
        if (g->db && bk == 0) sum_columns(g, db, p.r, p.n, n0, nb, p.add || (s == 0 && g->accumulate));
        if (g->dw == NULL) continue;
        pack_chunk(g, &p);
        const int64_t next = p.r + p.n;
        p.left = c + 1 == last ? 0 : g->rows - next < CHUNK ? g->rows - next : CHUNK;
        for (int i = 0; i < p.panels.count; i++) multiply_chunk(g, &p, i);
    }
    for (int i = 0; i < p.panels.count && g->dw; i++) {
        const int begin = mhla_panel_begin(&p.panels, i);
        const mhla_panels one = mhla_one_panel(&p.panels, i);
        const mhla_epilogue out = {.src = p.sums + (int64_t)nb * begin,
                                   .ld = mhla_panels_width(&one),
                                   .m = nb,
                                   .n = one.n,
                                   .y = dw + n0 * g->K + k0 + begin,
                                   .ldy = g->K,
                                   .accumulate = s == 0 && g->accumulate};
        g->kernels->epilogue(&out);
    }
}

/* The segments in their order, one stretch of dw or db. */
static void add_task(void *arg, int64_t task, int worker) {
    const weight_grad *g = arg;
    (void)worker;
    const int64_t stretch = 16384, count = g->N * g->K, at = task * stretch;
    for (int64_t s = 1; s < g->segments; s++) {
        const float *partial = g->partial + (s - 1) * (count + g->N);
        if (g->dw && at < count)
            g->kernels->axpy(g->dw + at, 1.0f, partial + at, count - at < stretch ? count - at : stretch);
        if (g->db && task == 0) g->kernels->axpy(g->db, 1.0f, partial + count, g->N);
    }
}

/* Everything but the memory; returns the bytes of scratch. */
static size_t lay_out(weight_grad *g, const mhla_linear_desc *d, int dw, int64_t N, int64_t K) {
    *g = (weight_grad){.kernels = mhla_kernels_get(),
                       .rows = d->rows,
                       .ldy = d->ldy,
                       .ldx = d->ldx,
                       .N = N,
                       .K = K,
                       .accumulate = d->accumulate,
                       .segments = 1};
    g->pairs = d->precision == MHLA_BF16 && g->kernels->gemm_bf16 != NULL;
    const int small = !dw || N * K <= SMALL;
    g->n_blocks = ceil_div(N, small ? BLOCK : LARGE_BLOCK);
    g->k_blocks = dw ? ceil_div(K, small ? BLOCK : LARGE_BLOCK) : 1;
    if (small) {
        g->segments = ceil_div(d->rows, SEGMENT);
        if (g->segments > SEGMENTS) g->segments = SEGMENTS;
    }
    mhla_carver c = {0};
    if (dw) {
        const int64_t side = ceil_div(N, g->n_blocks);
        mhla_carve_floats(&c, side * (g->pairs ? CHUNK / 2 : LINE));
        g->dy_bytes = c.used;
        const int64_t columns = ceil_div(K, g->k_blocks) + MHLA_WIDEST;
        mhla_carve_floats(&c, CHUNK * columns);
        g->x_bytes = c.used - g->dy_bytes;
        mhla_carve_floats(&c, ceil_div(N, g->n_blocks) * columns);
    }
    g->worker_bytes = c.used;
    c.used *= (size_t)mhla_context_threads(d->context);
    mhla_carve_floats(&c, (g->segments - 1) * (N * K + N));
    return c.used;
}

size_t mhla_weight_grad_workspace(const mhla_linear_desc *desc, int dw, int64_t N, int64_t K) {
    weight_grad g;
    return lay_out(&g, desc, dw, N, K);
}

mhla_status mhla_linear_backward_weight(const mhla_linear_desc *desc, float *dw, float *db, const float *dy,
                                        const float *x, int64_t N, int64_t K) {
    CHECK(dw != NULL || db != NULL, "dw and db are both NULL");
    CHECK(dy != NULL, "dy is NULL");
    CHECK(x != NULL || dw == NULL, "x is NULL");
    mhla_linear_desc d;
    MHLA_TRY(mhla_linear_check(&d, desc, N, K));
    CHECK(N <= INT64_MAX / 64 / SEGMENTS / K, "N is %lld and K %lld: more than memory can hold", (long long)N,
          (long long)K);
    const mhla_view view_dw = {"dw", dw, N, K, K}, view_db = {"db", db, 1, N, N};
    const mhla_view view_dy = {"dy", dy, d.rows, N, d.ldy}, view_x = {"x", dw ? x : NULL, d.rows, K, d.ldx};
    MHLA_TRY(mhla_product_overlap(view_dw, view_dy));
    MHLA_TRY(mhla_product_overlap(view_dw, view_x));
    MHLA_TRY(mhla_product_overlap(view_dw, view_db));
    MHLA_TRY(mhla_product_overlap(view_db, view_dy));
    MHLA_TRY(mhla_product_overlap(view_db, view_x));

    weight_grad g;
    const size_t bytes = lay_out(&g, &d, dw != NULL, N, K);
    g.dy = dy;
    g.x = x;
    g.dw = dw;
    g.db = db;
    char *own = NULL;
    if (bytes) {
        g.scratch = d.workspace ? d.workspace : (own = mhla_alloc(bytes));
        if (g.scratch == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to sum the gradient of a weight");
        g.partial = (float *)(g.scratch + g.worker_bytes * (size_t)mhla_context_threads(d.context));
    }
    mhla_parallel(d.context, g.segments * g.n_blocks * g.k_blocks, weight_task, &g);
    if (g.segments > 1) mhla_parallel(d.context, ceil_div(dw ? N * K : 1, 16384), add_task, &g);
    mhla_free(own);
    return MHLA_OK;
}

/* ---- y = activation(pre):  dpre = dy * activation'(pre) ---- */

enum { STRETCH = 16384 };

typedef struct activation_grad {
    const mhla_kernels *kernels;
    float *dpre;
    const float *dy, *pre;
    int64_t count;
    mhla_activation activation;
} activation_grad;

static void activation_task(void *arg, int64_t i, int worker) {
    const activation_grad *g = arg;
    (void)worker;
    const int64_t at = i * STRETCH, n = g->count - at < STRETCH ? g->count - at : STRETCH;
    g->kernels->activation_backward(g->dpre + at, g->dy + at, g->pre + at, n, g->activation);
}

mhla_status mhla_activation_backward(float *dpre, const float *dy, const float *pre, int64_t count,
                                     mhla_activation activation, const mhla_context *context) {
    CHECK(dpre != NULL, "dpre is NULL");
    CHECK(dy != NULL, "dy is NULL");
    CHECK(pre != NULL, "pre is NULL");
    CHECK(count >= 1 && count <= INT64_MAX / 64, "count is %lld: expected 1 or more", (long long)count);
    CHECK((unsigned)activation <= MHLA_ACT_SILU, "activation is %d: no such activation", (int)activation);
    const mhla_view out = {"dpre", dpre, 1, count, count};
    if (dpre != dy) MHLA_TRY(mhla_product_overlap(out, (mhla_view){"dy", dy, 1, count, count}));
    if (dpre != pre) MHLA_TRY(mhla_product_overlap(out, (mhla_view){"pre", pre, 1, count, count}));
    activation_grad g = {mhla_kernels_get(), dpre, dy, pre, count, activation};
    mhla_parallel(context, ceil_div(count, STRETCH), activation_task, &g);
    return MHLA_OK;
}
