/* y = epilogue(x W^T), and dx = dy W on the same engine.
 *
 * The sum over K is cut into chunks that depend on K and the data type alone; inside a chunk each element of y is one
 * chain of fused multiply-adds. Of Q8_0 each block of 32 is a sum of integers, the row of x being narrowed to 16 bits;
 * blocks are added one after the other. Rows and columns are cut into tasks, which changes nothing of that: the result does
 * not depend on threads, on the number of rows, or on where a row stands. */
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/product/product.h"

enum {
    CHUNK = 768,         /* of K: the panel and the rows of x stay in L2 */
    CHUNK_WIDENED = 256, /* where a panel is widened first */
    ROWS = 96,           /* of a task: tiles of 6 and of 8 divide it */
    FEW_ROWS = 16,       /* up to here reading the weight is the work */
    AHEAD = 12,          /* rows of x that a task waits for; the others come while it works */
    COLUMNS = 256        /* of a task whose sums wait for another chunk, about */
};

/* Few rows of x, narrowed before the tasks begin, as the weight's type wants them */
typedef struct narrowed {
    uint16_t *pairs; /* [rows][K, made even] in bfloat16 */
    int16_t *bytes;  /* [rows][K] for Q8_0, */
    float *scales;   /* [rows][K/32] */
} narrowed;

typedef struct product {
    const mhla_weight *w;
    mhla_linear_desc d;
    float *y;
    const float *x;
    int pairs;   /* multiplied in bfloat16 */
    int bytes;   /* Q8_0, multiplied as integers */
    int widened; /* panels are, to float32, on the way */
    int direct;  /* tiles are stored into y at once; of bfloat16, those of whole panels */
    int64_t chunks;
    int rows;     /* of a task */
    int per_task; /* panels */
    int64_t row_blocks, column_blocks;
    int widest;    /* panel */
    char *scratch; /* per worker: sums [rows][columns of a task, or of a panel if there is one chunk]; the rows of x
                       narrowed, [rows][chunk] in bfloat16 or integers of 16 bits and their scales [rows][chunk/32]; a
                       widened panel [chunk][widest] */
    size_t sums_bytes, rows_bytes, worker_bytes;
    narrowed few;
} product;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Sizes that are positive, said so that an analyser sees it too. */
static int64_t positive(int64_t n) { return n > 0 ? n : 1; }
static int64_t even(int64_t n) { return (n + 1) / 2 * 2; }

/* First k of chunk c, such that no pair and no block is torn. */
static int64_t chunk_begin(const product *p, int64_t c) {
    const int64_t whole = p->bytes ? 32 : 2;
    return c == p->chunks ? p->w->K : c * p->w->K / p->chunks / whole * whole;
}

/* Few tasks: 33 of them keep 32 threads busy for as long as 64 would. The number of rows with which all are through earliest, where
 * a task costs a row more than it has, and the first one of a panel half as much again. */
static int64_t share_rows(int64_t rows, int64_t panels, int64_t block, int threads) {
    int64_t best = block, least = INT64_MAX;
    if (block > 24 || rows <= FEW_ROWS) return block;
    for (int64_t n = 6; n <= 24; n++) {
        const int64_t takes = 2 * ceil_div(ceil_div(rows, n) * panels, threads) * (n + 1) + n;
        if (takes < least) best = n, least = takes;
    }
    return best;
}

/* Rows of task times panels of task: as much of the weight as half an L2 holds, or, where a chunk of x is to serve
 * several panels, as many columns as their sums allow; then smaller until every thread has several tasks. */
static void cut(product *p, int threads) {
    const int64_t count = positive(p->w->panels.count), rows = p->d.rows, K = p->w->K;
    const int64_t panel_bytes = positive(mhla_storage_bytes(p->w->dtype, K, p->widest));
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
    if (panels == 1) block = share_rows(rows, count, block, threads);
    p->rows = (int)block;
    p->row_blocks = ceil_div(rows, block);
    p->column_blocks = ceil_div(count, panels);
    p->per_task = (int)ceil_div(count, p->column_blocks);
}

/* One panel of one chunk, for the rows of a task. */
typedef struct step {
    int64_t row; /* first of the task's m rows */
    int m;
    int64_t k; /* first of the chunk's `depth` */
    int depth;
    int q, next; /* the panel, and the one that comes next (or q) */
    int first_panel, last_chunk;
    float *sums;   /* [m][width] */
    void *narrow;  /* [m][CHUNK] of x, of 16 bits each */
    float *scales; /* [m][CHUNK/32] of them, for Q8_0 */
    const void *b; /* the panel's part, widened if need be */
} step;

/* Where the chunk's part of panel q lies in the weight; *bytes is how much it is. */
static const char *panel_at(const product *p, int q, int64_t k, int depth, int64_t *bytes) {
    const mhla_weight *w = p->w;
    const int64_t column = mhla_panel_begin(&w->panels, q), width = mhla_panel_begin(&w->panels, q + 1) - column;
    *bytes = mhla_storage_bytes(w->dtype, depth, width);
    return (const char *)w->data + mhla_storage_bytes(w->dtype, w->K, column) + mhla_storage_bytes(w->dtype, k, width);
}

enum { NEAR = 5, PAGE = 4096 };

static mhla_prefetch rows_of(const float *base, int64_t row, int64_t ld, int n, int bytes) {
    return (mhla_prefetch){{(float *)base + row * ld, NULL, ld, MHLA_F32}, n, bytes};
}

/* What comes near while a step is multiplied, in the order of need: the later rows of x, if this panel is the first
 * to read them; all that the epilogue touches; the next panel. */
static int prefetches(mhla_prefetch f[NEAR], const product *p, const step *s) {
    const mhla_linear_desc *d = &p->d;
    const int64_t N = p->w->N;
    const mhla_panels one = mhla_one_panel(&p->w->panels, s->q);
    const int column = mhla_panel_begin(&p->w->panels, s->q), bytes = 4 * one.n;
    int count = 0;
    if (s->first_panel && !p->pairs && !p->bytes && s->m > AHEAD)
        f[count++] = rows_of(p->x + s->k, s->row + AHEAD, d->ldx, s->m - AHEAD, 4 * s->depth);
    if (s->last_chunk) {
        f[count++] = rows_of(p->y + column, s->row, d->ldy, s->m, bytes);
        if (d->residual && d->residual != p->y) f[count++] = rows_of(d->residual + column, s->row, d->ldr, s->m, bytes);
        if (d->pre_activation) f[count++] = rows_of(d->pre_activation + column, s->row, N, s->m, bytes);
    }
    if (s->next != s->q && p->chunks > 1) { /* else the task's panels are in L2 as they are */
        int64_t panel_bytes;
        const char *next = panel_at(p, s->next, s->k, s->depth, &panel_bytes);
        f[count++] = (mhla_prefetch){{(char *)next, NULL, PAGE / 4, MHLA_F32}, (int)(panel_bytes / PAGE), PAGE};
    }
    return count;
}

/* Is nothing left to be done on the sums of panel q? */
static int is_direct(const product *p, int q) {
    const mhla_panels one = mhla_one_panel(&p->w->panels, q);
    return p->direct && (!p->pairs || one.n == mhla_panels_width(&one));
}

/* sums [m][width] (=, +=) the rows of the step times its panel; or into y at once. */
static void multiply(const product *p, const step *s) {
    const mhla_weight *w = p->w;
    const mhla_panels one = mhla_one_panel(&w->panels, s->q);
    const int width = mhla_panels_width(&one), column = mhla_panel_begin(&w->panels, s->q);
    mhla_prefetch near[NEAR];
    const int n_near = prefetches(near, p, s);
    if (p->pairs) {
        const int direct = is_direct(p, s->q);
        const mhla_gemm_bf16 g = {
            .m = s->m,
            .width = width,
            .pairs = (s->depth + 1) / 2,
            .a = s->narrow,
            .a_row = CHUNK,
            .b = s->b,
            .c = direct ? p->y + s->row * p->d.ldy + column : s->sums,
            .c_row = direct ? p->d.ldy : width,
            .add = direct ? p->d.accumulate : s->k > 0,
            .prefetch = near,
            .n_prefetch = n_near,
        };
        w->kernels->gemm_bf16(&g);
        return;
    }
    if (p->bytes) {
        const mhla_gemm_q8 g = {
            .m = s->m,
            .width = width,
            .k = s->depth,
            .a = s->narrow,
            .a_row = CHUNK,
            .scale = s->scales,
            .b = s->b,
            .c = s->sums,
            .c_row = width,
            .add = s->k > 0,
            .prefetch = near,
            .n_prefetch = n_near,
        };
        w->kernels->gemm_q8(&g);
        return;
    }
    const mhla_gemm g = {
        .m = s->m,
        .n = one,
        .f = {.k = s->depth,
              .a = p->x + s->row * p->d.ldx + s->k,
              .a_row = p->d.ldx,
              .a_k = 1,
              .b = s->b,
              .b_rows = s->depth},
        .store = p->direct  ? MHLA_STORE_ROWS
                 : s->k > 0 ? MHLA_STORE_ADD
                            : MHLA_STORE_SET,
        .c = s->sums,
        .c_row = width,
        .out = {p->y + s->row * p->d.ldy + column, NULL, p->d.ldy, MHLA_F32},
        .accumulate = p->d.accumulate,
        .prefetch = near,
        .n_prefetch = n_near,
    };
    w->kernels->gemm(&g);
}

/* y = activation(sums + bias) + residual for the rows of the step. */
static void finish(const product *p, const step *s) {
    const mhla_linear_desc *d = &p->d;
    const mhla_panels one = mhla_one_panel(&p->w->panels, s->q);
    const int column = mhla_panel_begin(&p->w->panels, s->q);
    const mhla_epilogue e = {
        .src = s->sums,
        .ld = mhla_panels_width(&one),
        .m = s->m,
        .n = one.n,
        .bias = d->bias ? d->bias + column : NULL,
        .activation = d->activation,
        .y = p->y + s->row * d->ldy + column,
        .ldy = d->ldy,
        .residual = d->residual ? d->residual + s->row * d->ldr + column : NULL,
        .ldr = d->ldr,
        .pre = d->pre_activation ? d->pre_activation + s->row * p->w->N + column : NULL,
        .ldpre = p->w->N,
        .accumulate = d->accumulate,
    };
    p->w->kernels->epilogue(&e);
}

static void task(void *arg, int64_t index, int worker) {
    const product *p = arg;
    const mhla_weight *w = p->w;
    step s = {.row = index % p->row_blocks * p->rows};
    s.m = p->d.rows - s.row < p->rows ? (int)(p->d.rows - s.row) : p->rows;
    const int q0 = (int)(index / p->row_blocks) * p->per_task;
    const int q1 = q0 + p->per_task < w->panels.count ? q0 + p->per_task : w->panels.count;
    char *scratch = p->scratch ? p->scratch + (size_t)worker * p->worker_bytes : NULL;
    float *wide = scratch ? (float *)(scratch + p->sums_bytes + p->rows_bytes) : NULL;
    s.narrow = scratch ? scratch + p->sums_bytes : NULL;
    s.scales = scratch ? (float *)((uint16_t *)s.narrow + (int64_t)p->rows * CHUNK) : NULL;
    for (int64_t c = 0; c < p->chunks; c++) {
        s.k = chunk_begin(p, c);
        s.depth = (int)(chunk_begin(p, c + 1) - s.k);
        s.last_chunk = c == p->chunks - 1;
        const float *x = p->x + s.row * p->d.ldx + s.k;
        if (p->pairs) w->kernels->narrow_rows(s.narrow, CHUNK, x, p->d.ldx, s.m, s.depth);
        if (p->bytes) w->kernels->narrow_q8(s.narrow, s.scales, CHUNK, x, p->d.ldx, s.m, s.depth);
        for (s.q = q0; s.q < q1; s.q++) {
            const int64_t at = mhla_panel_begin(&w->panels, s.q) - mhla_panel_begin(&w->panels, q0);
            int64_t bytes;
            s.sums = p->chunks == 1 ? (float *)scratch : (float *)scratch + at * p->rows;
            s.next = s.q + 1 < q1 ? s.q + 1 : s.q;
            s.first_panel = s.q == q0;
            s.b = panel_at(p, s.q, s.k, s.depth, &bytes);
            if (p->widened) {
                const mhla_panels one = mhla_one_panel(&w->panels, s.q);
                w->kernels->widen_pairs(wide, s.b, s.depth, mhla_panels_width(&one));
                s.b = wide;
            }
            multiply(p, &s);
            if (s.last_chunk && !is_direct(p, s.q)) finish(p, &s);
        }
    }
}

/* ---- Few rows of a weight in fewer bits: a panel's whole depth at a time, straight from its storage ---- */

/* Panels of one shape, together where one alone has too few chains to keep the multipliers busy. */
static int panels_together(const product *p, int q, int end) {
    const int base = p->w->panels.base;
    if (p->d.rows > 1 || base > 2 || q + 1 >= end) return 1;
    return base + (q < p->w->panels.extra) == base + (q + 1 < p->w->panels.extra) &&
                   base + (q < p->w->panels.extra) <= 2
               ? 2
               : 1;
}

/* sums [m][width] of panel q of Q8_0. */
static void few_bytes(const product *p, int q, float *sums, int width) {
    const int K = (int)p->w->K;
    int64_t bytes;
    const mhla_gemm_q8 g = {.m = (int)p->d.rows,
                            .width = width,
                            .k = K,
                            .a = p->few.bytes,
                            .a_row = K,
                            .scale = p->few.scales,
                            .b = panel_at(p, q, 0, K, &bytes),
                            .c = sums,
                            .c_row = width};
    p->w->kernels->gemm_q8(&g);
}

/* The same of bfloat16 where the CPU multiplies pairs. */
static void few_pairs(const product *p, int q, float *sums, int width) {
    mhla_gemm_bf16 g = {.m = (int)p->d.rows, .width = width, .a_row = even(p->w->K), .c = sums, .c_row = width};
    for (int64_t c = 0; c < p->chunks; c++) {
        const int64_t k = chunk_begin(p, c);
        const int depth = (int)(chunk_begin(p, c + 1) - k);
        int64_t bytes;
        g.pairs = (depth + 1) / 2;
        g.a = p->few.pairs + k;
        g.b = (const uint16_t *)panel_at(p, q, k, depth, &bytes);
        g.add = c > 0;
        p->w->kernels->gemm_bf16(&g);
    }
}

/* The same of bfloat16 elsewhere, of `together` panels from q on. */
static void few_widened(const product *p, int q, int together, float sums[][MHLA_FEW_ROWS * MHLA_WIDEST]) {
    const mhla_panels one = mhla_one_panel(&p->w->panels, q);
    mhla_few g = {.m = (int)p->d.rows,
                  .vectors = one.vectors,
                  .panels = together,
                  .a_row = p->d.ldx,
                  .c = {sums[0], sums[1]},
                  .c_row = mhla_panels_width(&one)};
    for (int64_t c = 0; c < p->chunks; c++) {
        const int64_t k = chunk_begin(p, c);
        int64_t bytes;
        g.k = (int)(chunk_begin(p, c + 1) - k);
        g.a = p->x + k;
        g.add = c > 0;
        for (int i = 0; i < together; i++) g.b[i] = panel_at(p, q + i, k, g.k, &bytes);
        p->w->kernels->few(&g);
    }
}

static void few_task(void *arg, int64_t index, int worker) {
    (void)worker;
    const product *p = arg;
    float sums[MHLA_FEW_PANELS][MHLA_FEW_ROWS * MHLA_WIDEST];
    const int q0 = (int)index * p->per_task;
    const int q1 = q0 + p->per_task < p->w->panels.count ? q0 + p->per_task : p->w->panels.count;
    for (int q = q0, together; q < q1; q += together) {
        const mhla_panels one = mhla_one_panel(&p->w->panels, q);
        together = p->widened ? panels_together(p, q, q1) : 1;
        if (p->widened)
            few_widened(p, q, together, sums);
        else
            (p->bytes ? few_bytes : few_pairs)(p, q, sums[0], mhla_panels_width(&one));
        for (int i = 0; i < together; i++) finish(p, &(step){.m = (int)p->d.rows, .q = q + i, .sums = sums[i]});
    }
}

/* Everything about a product but its memory. */
static product lay_out(const mhla_linear_desc *desc, const mhla_weight *weight) {
    product p = {.w = weight, .d = *desc};
    p.pairs = weight->dtype == MHLA_BF16 && weight->kernels->gemm_bf16 != NULL;
    p.bytes = weight->dtype == MHLA_Q8_0;
    p.widened = weight->dtype == MHLA_BF16 && !p.pairs;
    p.chunks = ceil_div(weight->K, p.widened ? CHUNK_WIDENED : CHUNK);
    p.widest = (int)positive(mhla_panel_begin(&weight->panels, 1)); /* the first is */
    p.direct = (weight->dtype == MHLA_F32 || p.pairs) && p.chunks == 1 && !desc->bias && !desc->residual &&
               !desc->pre_activation && desc->activation == MHLA_ACT_NONE;
    cut(&p, mhla_context_threads(desc->context));
    mhla_carver c = {0};
    mhla_carve_floats(&c, (int64_t)p.rows * p.widest * (p.chunks == 1 ? 1 : p.per_task));
    p.sums_bytes = c.used;
    if (p.pairs || p.bytes) mhla_carve(&c, (size_t)p.rows * CHUNK * sizeof(uint16_t));
    if (p.bytes) mhla_carve_floats(&c, (int64_t)p.rows * (CHUNK / 32));
    p.rows_bytes = c.used - p.sums_bytes;
    if (p.widened) mhla_carve_floats(&c, (int64_t)CHUNK_WIDENED * p.widest);
    p.worker_bytes = c.used;
    return p;
}

/* ---- Running: the tasks of several products are one loop, so that threads wait once for all of them ---- */

typedef struct products {
    product p[MHLA_PRODUCTS];
    int64_t first[MHLA_PRODUCTS + 1]; /* task of each */
    int count;
} products;

static int is_few(const product *p) { return p->w->dtype != MHLA_F32 && p->d.rows <= MHLA_FEW_ROWS; }

/* Room for few rows of K numbers, narrowed; the same whatever the weight's type, so that what suffices for one weight
 * suffices beside others. */
static size_t narrowed_bytes(narrowed *n, char *base, int64_t rows, int64_t K) {
    mhla_carver c = {base, 0};
    if (rows > MHLA_FEW_ROWS) return 0;
    n->pairs = mhla_carve(&c, (size_t)(rows * even(K)) * sizeof *n->pairs);
    n->bytes = mhla_carve(&c, (size_t)(rows * K) * sizeof *n->bytes);
    n->scales = mhla_carve_floats(&c, rows * (K / 32));
    return c.used;
}

static void products_task(void *arg, int64_t index, int worker) {
    products *all = arg;
    int i = 0;
    while (index >= all->first[i + 1]) i++;
    (is_few(&all->p[i]) ? few_task : task)(&all->p[i], index - all->first[i], worker);
}

static mhla_status run(products *all, const mhla_context *context, void *workspace) {
    const int threads = mhla_context_threads(context);
    size_t worker_bytes = 0, shared = 0;
    void *own = NULL;
    const product *pairs = NULL, *bytes = NULL; /* of each kind one; x is the same for all */
    narrowed few;
    for (int i = 0; i < all->count; i++) {
        const product *p = &all->p[i];
        all->first[i + 1] = all->first[i] + (is_few(p) ? 1 : p->row_blocks) * p->column_blocks;
        if (!is_few(p) && (!p->direct || p->pairs) && p->worker_bytes > worker_bytes) worker_bytes = p->worker_bytes;
        if (is_few(p) && p->pairs) pairs = p;
        if (is_few(p) && p->bytes) bytes = p;
    }
    const product *any = pairs ? pairs : bytes;
    if (any) shared = narrowed_bytes(&few, NULL, any->d.rows, any->w->K);
    if (worker_bytes + shared > 0) {
        char *scratch = workspace ? workspace : (own = mhla_alloc(shared + worker_bytes * (size_t)threads));
        if (scratch == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the tiles of %d threads", threads);
        if (any) {
            const int m = (int)any->d.rows, K = (int)any->w->K;
            const mhla_kernels *kernels = any->w->kernels;
            narrowed_bytes(&few, scratch, m, K);
            if (pairs) kernels->narrow_rows(few.pairs, even(K), any->x, any->d.ldx, m, K);
            if (bytes) kernels->narrow_q8(few.bytes, few.scales, K, any->x, any->d.ldx, m, K);
        }
        for (int i = 0; i < all->count; i++) {
            all->p[i].scratch = scratch + shared;
            all->p[i].worker_bytes = worker_bytes;
            if (any) all->p[i].few = few;
        }
    }
    const int few_rows = all->p[0].d.rows <= FEW_ROWS;
    (few_rows ? mhla_parallel_stretches : mhla_parallel)(context, all->first[all->count], products_task, all);
    mhla_free(own);
    return MHLA_OK;
}

mhla_status mhla_product_run(const mhla_linear_desc *desc, float *y, const float *x, const mhla_weight *weight) {
    products all = {.count = 1};
    all.p[0] = lay_out(desc, weight);
    all.p[0].y = y;
    all.p[0].x = x;
    return run(&all, desc->context, desc->workspace);
}

mhla_status mhla_linear_forward(const mhla_linear_desc *desc, float *y, const float *x, const mhla_weight *weight) {
    mhla_product_call call = {.y = y, .weight = weight};
    MHLA_TRY(mhla_struct_in(&call.desc, sizeof call.desc, desc, "mhla_linear_desc"));
    return mhla_linears_forward(&call, 1, x);
}

mhla_status mhla_linears_forward(const mhla_product_call *calls, int count, const float *x) {
    products all = {.count = count};
    for (int i = 0; i < count; i++) {
        const mhla_weight *w = calls[i].weight;
        CHECK(w != NULL, "weight is NULL");
        mhla_linear_desc d;
        MHLA_TRY(mhla_linear_check_forward(&d, &calls[i].desc, calls[i].y, x, w->N, w->K));
        all.p[i] = lay_out(&d, w);
        all.p[i].y = calls[i].y;
        all.p[i].x = x;
    }
    return run(&all, all.p[0].d.context, all.p[0].d.workspace);
}

/* ---- y = x W^T:  dx = dy W, the same product with W turned round ---- */

typedef struct turning {
    const mhla_weight *w;
    mhla_weight turned; /* [K,N] as a weight: columns k, sums over n */
    float *squares;     /* per worker 2 * [MHLA_WIDEST][MHLA_WIDEST]: from bfloat16, and to it */
} turning;

enum { SQUARE = MHLA_WIDEST * MHLA_WIDEST };

/* Panel q of W, [K][width], becomes rows n of each panel of the turned one, [N][width of K]. Panels of bfloat16 begin at even
 * k and n, so that no pair is torn. */
static void turn_panel(void *arg, int64_t q, int worker) {
    turning *t = arg;
    const mhla_weight *w = t->w;
    const int n0 = mhla_panel_begin(&w->panels, (int)q);
    const mhla_panels from = mhla_one_panel(&w->panels, (int)q);
    const int width = mhla_panels_width(&from);
    float *wide = t->squares ? t->squares + (int64_t)worker * 2 * SQUARE : NULL, *square = wide ? wide + SQUARE : NULL;
    for (int i = 0; i < t->turned.panels.count; i++) {
        const mhla_panels to = mhla_one_panel(&t->turned.panels, i);
        const int k0 = mhla_panel_begin(&t->turned.panels, i), to_width = mhla_panels_width(&to);
        const int64_t N = t->turned.dtype == MHLA_BF16 ? even(w->N) : w->N, at = N * k0 + (int64_t)n0 * to_width;
        float *dst = t->turned.dtype == MHLA_BF16 ? square : (float *)t->turned.data + at;
        const float *src = (const float *)w->data + w->K * n0 + (int64_t)k0 * width;
        if (w->dtype == MHLA_BF16) {
            const uint16_t *pairs = (const uint16_t *)w->data + even(w->K) * n0 + (int64_t)k0 * width;
            w->kernels->widen_pairs(wide, pairs, to.n, width);
            src = wide;
        }
        w->kernels->transpose(dst, &to, src, width, from.n);
        if (t->turned.dtype == MHLA_BF16)
            w->kernels->narrow_pairs((uint16_t *)t->turned.data + at, square, from.n, to_width);
    }
}

/* Fills in the shape of the turned weight; bytes of its memory and, from *squares_at on, of the squares. */
static size_t turning_bytes(turning *t, const mhla_linear_desc *d, size_t *squares_at) {
    const mhla_weight *w = t->w;
    const mhla_dtype dtype = d->precision == MHLA_BF16 && w->kernels->gemm_bf16 ? MHLA_BF16 : MHLA_F32;
    t->turned = (mhla_weight){.kernels = w->kernels, .dtype = dtype, .N = w->K, .K = w->N};
    t->turned.panels = mhla_product_panels(w->kernels, w->K, dtype);
    mhla_carver c = {0};
    mhla_carve(&c, (size_t)mhla_storage_bytes(dtype, w->N, mhla_panels_width(&t->turned.panels)));
    *squares_at = c.used;
    if (w->dtype == MHLA_BF16 || dtype == MHLA_BF16)
        mhla_carve_floats(&c, (int64_t)mhla_context_threads(d->context) * 2 * SQUARE);
    return c.used;
}

mhla_status mhla_linear_backward_input(const mhla_linear_desc *desc, float *dx, const float *dy,
                                       const mhla_weight *weight) {
    CHECK(dx != NULL, "dx is NULL");
    CHECK(dy != NULL, "dy is NULL");
    CHECK(weight != NULL, "weight is NULL");
    if (weight->dtype == MHLA_Q8_0)
        return mhla_fail(MHLA_ENOTSUP, "a weight of Q8_0 passes no gradient on: use bfloat16 or float32");
    mhla_linear_desc d;
    MHLA_TRY(mhla_linear_check(&d, desc, weight->N, weight->K));
    MHLA_TRY(mhla_product_overlap((mhla_view){"dx", dx, d.rows, weight->K, d.ldx},
                                  (mhla_view){"dy", dy, d.rows, weight->N, d.ldy}));
    turning t = {.w = weight};
    size_t squares_at;
    const size_t bytes = turning_bytes(&t, &d, &squares_at);
    void *own = NULL;
    char *memory = d.workspace ? d.workspace : (own = mhla_alloc(bytes));
    if (memory == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for a turned copy of the weight of %lld x %lld", (long long)weight->N,
                         (long long)weight->K);
    t.turned.data = memory;
    t.squares = bytes > squares_at ? (float *)(memory + squares_at) : NULL;
    mhla_parallel(d.context, weight->panels.count, turn_panel, &t);
    const mhla_linear_desc turned = {.size = sizeof turned,
                                     .context = d.context,
                                     .rows = d.rows,
                                     .ldx = d.ldy,
                                     .ldy = d.ldx,
                                     .accumulate = d.accumulate,
                                     .workspace = d.workspace ? memory + bytes : NULL};
    const mhla_status status = mhla_product_run(&turned, dx, dy, &t.turned);
    mhla_free(own);
    return status;
}

size_t mhla_linears_workspace(const mhla_linear_desc *desc, int64_t N, int64_t K, mhla_dtype dtype) {
    mhla_linear_desc d;
    if (mhla_linear_check(&d, desc, N, K) != MHLA_OK) return 0;
    mhla_weight w = {.kernels = mhla_kernels_get(), .dtype = dtype, .N = N, .K = K};
    w.panels = mhla_product_panels(w.kernels, N, dtype);
    return lay_out(&d, &w).worker_bytes * (size_t)mhla_context_threads(d.context) +
           narrowed_bytes(&(narrowed){0}, NULL, d.rows, K);
}

size_t mhla_linear_workspace(const mhla_linear_desc *desc, int64_t N, int64_t K, mhla_dtype dtype) {
    size_t squares_at, most = mhla_linears_workspace(desc, N, K, dtype);
    mhla_linear_desc d;
    if (dtype == MHLA_Q8_0 || mhla_linear_check(&d, desc, N, K) != MHLA_OK) return most;
    const size_t threads = (size_t)mhla_context_threads(d.context);
    mhla_weight w = {.kernels = mhla_kernels_get(), .dtype = dtype, .N = N, .K = K};
    w.panels = mhla_product_panels(w.kernels, N, dtype);
    turning t = {.w = &w};
    size_t bytes = turning_bytes(&t, &d, &squares_at);
    bytes += lay_out(&d, &t.turned).worker_bytes * threads + narrowed_bytes(&(narrowed){0}, NULL, d.rows, N);
    if (bytes > most) most = bytes;
    bytes = mhla_weight_grad_workspace(&d, 1, N, K);
    return bytes > most ? bytes : most;
}
