/* y = epilogue(x W^T), and dx = dy W on the same engine.
 *
 * The sum over K is cut into chunks that depend on K and the data type alone; inside a chunk each element of y is one chain of
 * fused multiply-adds. Rows and columns are cut into tasks, which changes nothing of that: the result does not depend
 * on threads, on the number of rows, or on where a row stands. */
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/product/product.h"

enum {
    CHUNK = 768,         /* of K: the panel and the rows of x stay in L2 */
    CHUNK_WIDENED = 256, /* where a bfloat16 panel is widened first */
    ROWS = 96,           /* of a task: tiles of 6 and of 8 divide it */
    FEW_ROWS = 16,       /* up to here reading the weight is the work */
    AHEAD = 18,          /* rows between a tile and the prefetch of x */
    COLUMNS = 256        /* of a task whose sums wait for another chunk, about */
};

typedef struct product {
    const mhla_weight *w;
    mhla_linear_desc d;
    float *y;
    const float *x;
    int pairs;  /* multiplied in bfloat16 */
    int direct; /* tiles are stored into y at once */
    int64_t chunks;
    int rows;     /* of a task */
    int per_task; /* panels */
    int64_t row_blocks, column_blocks;
    int widest;    /* panel */
    char *scratch; /* per worker: sums [rows][columns of a task, or of a panel if there is one chunk]; the rows of x in
                       bfloat16 [rows][chunk]; a widened panel [chunk][widest] */
    size_t sums_bytes, rows_bytes, worker_bytes;
} product;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* First k of chunk c; even, so that no pair is torn. */
static int64_t chunk_begin(const product *p, int64_t c) {
    return c == p->chunks ? p->w->K : c * p->w->K / p->chunks / 2 * 2;
}

/* Rows of task times panels of task: as much of the weight as half an L2 holds, or, where a chunk of x is to serve
 * several panels, as many columns as their sums allow; then smaller until every thread has several tasks. */
static void cut(product *p, int threads) {
    const int64_t count = p->w->panels.count, rows = p->d.rows, K = p->w->K;
    const int64_t panel_bytes = (int64_t)p->widest * K * (p->w->dtype == MHLA_F32 ? 4 : 2);
    int64_t block = ceil_div(rows, ceil_div(rows, ROWS));
    int64_t panels = (rows <= FEW_ROWS ? 128 << 10 : 512 << 10) / panel_bytes;
    if (rows > FEW_ROWS && p->chunks > 1) panels = COLUMNS / p->widest;
    if (panels < 1) panels = 1;
    if (panels > count) panels = count;
    if ((double)rows * (double)p->w->N * (double)K < 1e5) { /* not worth waking a thread */
        panels = count;
        block = rows < ROWS ? rows : ROWS;
        threads = 1;
    }
    while (threads > 1 && ceil_div(rows, block) * ceil_div(count, panels) < 8 * (int64_t)threads) {
        if (panels > 1)
            panels = (panels + 1) / 2;
        else if (block > 24)
            block = ceil_div(block, 2);
        else
            break;
    }
    block = rows <= ROWS && block == rows ? rows : ceil_div(block, 6) * 6;
    p->rows = (int)block;
    p->row_blocks = ceil_div(rows, block);
    p->column_blocks = ceil_div(count, panels);
    p->per_task = (int)ceil_div(count, p->column_blocks);
}

/* What comes near while panel q of a chunk is multiplied: the next rows of x, the rows that the epilogue touches, and
 * the panel that is next (`ahead`, of `ahead_bytes`). */
enum { NEAR = 5, PAGE = 4096 };

static int prefetches(mhla_prefetch f[NEAR], const product *p, int64_t row, int m, int64_t k, int depth, int column,
                      int columns, int first_panel) {
    const mhla_linear_desc *d = &p->d;
    const int64_t N = p->w->N;
    int n = 0;
    if (first_panel && !p->pairs && m > AHEAD)
        f[n++] = (mhla_prefetch){
            {(float *)p->x + (row + AHEAD) * d->ldx + k, NULL, d->ldx, MHLA_F32}, m - AHEAD, 4 * depth};
    if (k + depth < p->w->K) return n;
    f[n++] = (mhla_prefetch){{p->y + row * d->ldy + column, NULL, d->ldy, MHLA_F32}, m, 4 * columns};
    if (d->residual && d->residual != p->y)
        f[n++] = (mhla_prefetch){{(float *)d->residual + row * d->ldr + column, NULL, d->ldr, MHLA_F32}, m, 4 * columns};
    if (d->pre_activation)
        f[n++] = (mhla_prefetch){{d->pre_activation + row * N + column, NULL, N, MHLA_F32}, m, 4 * columns};
    return n;
}

/* Where depth rows of panel q, from k on, lie in the weight; *bytes is how many they take. */
static const char *panel_at(const product *p, int q, int64_t k, int depth, int64_t *bytes) {
    const mhla_weight *w = p->w;
    const int64_t column = mhla_panel_begin(&w->panels, q), width = mhla_panel_begin(&w->panels, q + 1) - column;
    const int64_t even = w->dtype == MHLA_F32 ? w->K : (w->K + 1) / 2 * 2, size = w->dtype == MHLA_F32 ? 4 : 2;
    *bytes = (int64_t)depth * width * size;
    return (const char *)w->data + (even * column + k * width) * size;
}

/* sums [m][width] (=, +=) x[row.., k..k+depth) times panel q; or into y at once. q2 is the panel that comes next. */
static void multiply(const product *p, int q, int q2, int64_t row, int m, int64_t k, int depth, float *sums,
                     const uint16_t *narrow, float *wide, int first_panel) {
    const mhla_weight *w = p->w;
    const mhla_panels one = mhla_one_panel(&w->panels, q);
    const int width = mhla_panels_width(&one), column = mhla_panel_begin(&w->panels, q);
    mhla_prefetch near[NEAR];
    int n_near = prefetches(near, p, row, m, k, depth, column, one.n, first_panel);
    int64_t bytes;
    if (q2 > q) {
        const char *next = panel_at(p, q2, k, depth, &bytes);
        near[n_near++] = (mhla_prefetch){{(void *)next, NULL, PAGE / 4, MHLA_F32}, (int)(bytes / PAGE), PAGE};
    }
    const void *b = panel_at(p, q, k, depth, &bytes);
    if (p->pairs) {
        const mhla_gemm_bf16 g = {m, width, (depth + 1) / 2, narrow, b, CHUNK, sums, width, k > 0, near, n_near};
        w->kernels->gemm_bf16(&g);
        return;
    }
    if (w->dtype == MHLA_BF16) {
        w->kernels->widen_pairs(wide, b, depth, width);
        b = wide;
    }
    const mhla_gemm g = {
        .m = m,
        .n = one,
        .f = {depth, p->x + row * p->d.ldx + k, p->d.ldx, 1, b, depth, 0},
        .store = p->direct ? MHLA_STORE_ROWS
                 : k > 0   ? MHLA_STORE_ADD
                           : MHLA_STORE_SET,
        .c = sums,
        .c_row = width,
        .out = {p->y + row * p->d.ldy + column, NULL, p->d.ldy, MHLA_F32},
        .accumulate = p->d.accumulate,
        .prefetch = near,
        .n_prefetch = n_near,
    };
    w->kernels->gemm(&g);
}

static void finish(const product *p, int q, int64_t row, int m, const float *sums) {
    const mhla_linear_desc *d = &p->d;
    const mhla_panels one = mhla_one_panel(&p->w->panels, q);
    const int column = mhla_panel_begin(&p->w->panels, q);
    const mhla_epilogue e = {
        .src = sums,
        .ld = mhla_panels_width(&one),
        .m = m,
        .n = one.n,
        .bias = d->bias ? d->bias + column : NULL,
        .activation = d->activation,
        .y = p->y + row * d->ldy + column,
        .ldy = d->ldy,
        .residual = d->residual ? d->residual + row * d->ldr + column : NULL,
        .ldr = d->ldr,
        .pre = d->pre_activation ? d->pre_activation + row * p->w->N + column : NULL,
        .ldpre = p->w->N,
        .accumulate = d->accumulate,
    };
    p->w->kernels->epilogue(&e);
}

static void task(void *arg, int64_t i, int worker) {
    const product *p = arg;
    const mhla_weight *w = p->w;
    const int64_t row = i % p->row_blocks * p->rows;
    const int m = p->d.rows - row < p->rows ? (int)(p->d.rows - row) : p->rows;
    const int q0 = (int)(i / p->row_blocks) * p->per_task;
    const int q1 = q0 + p->per_task < w->panels.count ? q0 + p->per_task : w->panels.count;
    char *scratch = p->scratch ? p->scratch + (size_t)worker * p->worker_bytes : NULL;
    float *sums = (float *)scratch;
    uint16_t *narrow = scratch ? (uint16_t *)(scratch + p->sums_bytes) : NULL;
    float *wide = scratch ? (float *)(scratch + p->sums_bytes + p->rows_bytes) : NULL;
    for (int64_t c = 0; c < p->chunks; c++) {
        const int64_t k = chunk_begin(p, c);
        const int depth = (int)(chunk_begin(p, c + 1) - k);
        if (p->pairs) w->kernels->narrow_rows(narrow, CHUNK, p->x + row * p->d.ldx + k, p->d.ldx, m, depth);
        for (int q = q0; q < q1; q++) {
            const int64_t at = mhla_panel_begin(&w->panels, q) - mhla_panel_begin(&w->panels, q0);
            float *own = p->chunks == 1 ? sums : sums + at * p->rows;
            multiply(p, q, q + 1 < q1 ? q + 1 : q0, row, m, k, depth, own, narrow, wide, q == q0);
            if (!p->direct && c == p->chunks - 1) finish(p, q, row, m, own);
        }
    }
}

mhla_status mhla_product_run(const mhla_linear_desc *desc, float *y, const float *x, const mhla_weight *weight) {
    product p = {.w = weight, .d = *desc, .y = y, .x = x};
    const int threads = mhla_context_threads(desc->context);
    p.pairs = weight->dtype == MHLA_BF16 && weight->kernels->gemm_bf16 != NULL;
    const int widened = weight->dtype == MHLA_BF16 && !p.pairs;
    p.chunks = ceil_div(weight->K, widened ? CHUNK_WIDENED : CHUNK);
    p.widest = mhla_panel_begin(&weight->panels, 1); /* the first is */
    p.direct = weight->dtype == MHLA_F32 && p.chunks == 1 && !desc->bias && !desc->residual && !desc->pre_activation &&
               desc->activation == MHLA_ACT_NONE;
    cut(&p, threads);
    if (!p.direct) {
        mhla_carver c = {0};
        mhla_carve_floats(&c, (int64_t)p.rows * p.widest * (p.chunks == 1 ? 1 : p.per_task));
        p.sums_bytes = c.used;
        if (p.pairs) mhla_carve(&c, (size_t)p.rows * CHUNK * sizeof(uint16_t));
        p.rows_bytes = c.used - p.sums_bytes;
        if (widened) mhla_carve_floats(&c, (int64_t)CHUNK_WIDENED * p.widest);
        p.worker_bytes = c.used;
        p.scratch = mhla_alloc(p.worker_bytes * (size_t)threads);
        if (p.scratch == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the tiles of %d threads", threads);
    }
    mhla_parallel(desc->context, p.row_blocks * p.column_blocks, task, &p);
    mhla_free(p.scratch);
    return MHLA_OK;
}

mhla_status mhla_linear_forward(const mhla_linear_desc *desc, float *y, const float *x, const mhla_weight *weight) {
    CHECK(weight != NULL, "weight is NULL");
    mhla_linear_desc d;
    MHLA_TRY(mhla_linear_check_forward(&d, desc, y, x, weight->N, weight->K));
    return mhla_product_run(&d, y, x, weight);
}

/* ---- y = x W^T:  dx = dy W, the same product with W turned round ---- */

typedef struct turning {
    const mhla_weight *w;
    mhla_weight turned; /* [K,N] as a weight: columns k, sums over n */
    float *wide;        /* per worker [MHLA_WIDEST][MHLA_WIDEST], bfloat16 only */
} turning;

/* Panel q of W, [K][width], becomes rows n of each panel of the turned one, [N][width of K]. */
static void turn_panel(void *arg, int64_t q, int worker) {
    turning *t = arg;
    const mhla_weight *w = t->w;
    const int n0 = mhla_panel_begin(&w->panels, (int)q);
    const mhla_panels from = mhla_one_panel(&w->panels, (int)q);
    const int width = mhla_panels_width(&from);
    float *wide = t->wide ? t->wide + (int64_t)worker * MHLA_WIDEST * MHLA_WIDEST : NULL;
    for (int i = 0; i < t->turned.panels.count; i++) {
        const mhla_panels to = mhla_one_panel(&t->turned.panels, i);
        const int k0 = mhla_panel_begin(&t->turned.panels, i), to_width = mhla_panels_width(&to);
        float *dst = (float *)t->turned.data + w->N * k0 + (int64_t)n0 * to_width;
        const float *src = (const float *)w->data + w->K * n0 + (int64_t)k0 * width;
        if (w->dtype == MHLA_BF16) { /* panels begin at even k */
            const uint16_t *pairs = (const uint16_t *)w->data + (w->K + 1) / 2 * 2 * n0 + (int64_t)k0 * width;
            w->kernels->widen_pairs(wide, pairs, to.n, width);
            src = wide;
        }
        w->kernels->transpose(dst, &to, src, width, from.n);
    }
}

mhla_status mhla_linear_backward_input(const mhla_linear_desc *desc, float *dx, const float *dy,
                                       const mhla_weight *weight) {
    CHECK(dx != NULL, "dx is NULL");
    CHECK(dy != NULL, "dy is NULL");
    CHECK(weight != NULL, "weight is NULL");
    mhla_linear_desc d;
    MHLA_TRY(mhla_linear_check(&d, desc, weight->N, weight->K));
    MHLA_TRY(mhla_product_overlap((mhla_view){"dx", dx, d.rows, weight->K, d.ldx},
                                  (mhla_view){"dy", dy, d.rows, weight->N, d.ldy}));
    turning t = {.w = weight, .turned = {weight->kernels, MHLA_F32, weight->K, weight->N, {0}, NULL}};
    t.turned.panels = mhla_product_panels(weight->kernels, weight->K, MHLA_F32);
    mhla_carver c = {0};
    mhla_carve_floats(&c, weight->N * (int64_t)mhla_panels_width(&t.turned.panels));
    const size_t wide_at = c.used;
    if (weight->dtype == MHLA_BF16)
        mhla_carve_floats(&c, (int64_t)mhla_context_threads(d.context) * MHLA_WIDEST * MHLA_WIDEST);
    char *memory = mhla_alloc(c.used);
    if (memory == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for a turned copy of the weight of %lld x %lld", (long long)weight->N,
                         (long long)weight->K);
    t.turned.data = memory;
    t.wide = weight->dtype == MHLA_BF16 ? (float *)(memory + wide_at) : NULL;
    mhla_parallel(d.context, weight->panels.count, turn_panel, &t);
    const mhla_linear_desc turned = {.size = sizeof turned,
                                     .context = d.context,
                                     .rows = d.rows,
                                     .ldx = d.ldy,
                                     .ldy = d.ldx,
                                     .accumulate = d.accumulate};
    const mhla_status status = mhla_product_run(&turned, dx, dy, &t.turned);
    mhla_free(memory);
    return status;
}
