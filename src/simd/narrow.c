/* gemm with its first pair of factors rounded to bfloat16 on the way in: what the operators multiply with where bfloat16 is asked
 * for. Factors are narrowed into a few tiles on the stack, a panel of B at a time. The second pair, which has few numbers
 * or a triangle whose other half must not be touched, stays float32, and so do products too small to be worth it. How the work
 * is cut depends on the sizes alone. */
#include "simd/kernels.h"

enum {
    LEAST_ROWS = 16, /* fewer rows than this do not pay for narrowing B, */
    LEAST_DEPTH = 16,
    ROWS = 128,     /* of a block of A, */
    A_MOST = 32768, /* its numbers */
    DEEPEST = 1024, /* k: all of it is in a block of A */
    DEPTH = 256,    /* of a tile of B */
    WIDEST = 64
};

typedef struct tiles {
    uint16_t a[A_MOST], b[DEPTH * WIDEST]; /* [rows][k]; [k/2][width][2] */
    float c[ROWS * WIDEST];
} __attribute__((aligned(64))) tiles;

static int up(int n, int to) { return (n + to - 1) / to * to; }

static mhla_panels panel_of(int n) {
    const int vectors = (n + 15) / 16;
    return (mhla_panels){.n = n, .unit = 16, .vectors = vectors, .count = 1, .base = vectors};
}

/* One panel of C, rows row .. row+m-1, on its way. */
typedef struct panel {
    int row, m;
    int column, width; /* whole vectors of gemm's own, which may be half as long as those of bfloat16 */
    int64_t a_row;
    float *c; /* where its sums go */
    int64_t c_row;
    int add;
} panel;

/* c (=, +=) A B of the panel, tile by tile of B. */
static void multiply(const mhla_kernels *kernels, const mhla_gemm *g, const panel *p, tiles *t, int fetch) {
    const mhla_factor *f = &g->f;
    const mhla_panels cut = panel_of(p->width);
    const int64_t stride = f->b_k ? f->b_k : p->width;
    const float *b = f->b + (f->b_k ? p->column : f->b_rows * p->column);
    for (int k = 0; k < f->k; k += DEPTH) {
        const int depth = f->k - k < DEPTH ? f->k - k : DEPTH;
        const mhla_rows rows = {(float *)b + k * stride, NULL, stride, MHLA_F32};
        kernels->zip_rows(t->b, &cut, &rows, depth);
        kernels->gemm_bf16(&(mhla_gemm_bf16){.m = p->m,
                                             .width = mhla_panels_width(&cut),
                                             .pairs = (depth + 1) / 2,
                                             .a = t->a + k,
                                             .a_row = p->a_row,
                                             .b = t->b,
                                             .c = p->c,
                                             .c_row = p->c_row,
                                             .add = p->add || k > 0,
                                             .prefetch = g->prefetch,
                                             .n_prefetch = fetch && k == 0 ? g->n_prefetch : 0});
    }
}

/* The sums of a panel, in t->c, into the caller's rows, what the second pair of factors adds included. */
static void store_rows(const mhla_kernels *kernels, const mhla_gemm *g, const panel *p, tiles *t) {
    const int cols = g->n.n - p->column < p->width ? g->n.n - p->column : p->width;
    if (g->f2.k > 0) {
        mhla_gemm rest = {.m = p->m,
                          .n = {.n = p->width, .unit = g->n.unit, .count = 1},
                          .f2 = g->f2,
                          .f2_lower = g->f2_lower,
                          .f2_lead = g->f2_lead,
                          .store = MHLA_STORE_ADD,
                          .c = t->c,
                          .c_row = WIDEST};
        rest.n.vectors = rest.n.base = p->width / g->n.unit;
        rest.f2.b += g->f2.b_k ? p->column : g->f2.b_rows * p->column;
        kernels->gemm(&rest);
    }
    mhla_rows out = g->out;
    const int64_t size = out.dtype == MHLA_F32 ? 4 : 2, first = out.idx ? 0 : p->row * out.stride;
    out.base = (char *)out.base + (first + p->column) * size;
    if (out.idx) out.idx += p->row;
    kernels->scores_out(&out, t->c, WIDEST, p->m, cols, g->row_scale ? g->row_scale + p->row : NULL, g->accumulate);
}

/* A panel that is no whole number of 16 columns: by way of t->c. */
static void store_part(const mhla_kernels *kernels, const mhla_gemm *g, const panel *p, const float *from, float *to,
                       int64_t to_row) {
    const mhla_epilogue e = {.src = from,
                             .ld = WIDEST,
                             .m = p->m,
                             .n = p->width,
                             .y = to,
                             .ldy = to_row,
                             .accumulate = g->store == MHLA_STORE_ADD};
    kernels->epilogue(&e);
}

static void run_block(const mhla_kernels *kernels, const mhla_gemm *g, tiles *t, int row, int m, int fetch) {
    const mhla_factor *f = &g->f;
    panel p = {.row = row, .m = m, .a_row = up(f->k, 2)};
    if (f->a_k == 1)
        kernels->narrow_rows(t->a, p.a_row, f->a + row * f->a_row, f->a_row, m, f->k);
    else
        kernels->narrow_columns(t->a, p.a_row, f->a + row, f->a_k, f->k, m);
    for (int i = 0; i < g->n.count; i++) {
        p.column = mhla_panel_begin(&g->n, i);
        p.width = mhla_panel_begin(&g->n, i + 1) - p.column;
        float *c = g->c; /* NULL where the store is of rows */
        if (c) c += g->c_row ? row * g->c_row + p.column : g->c_rows * p.column + (int64_t)row * p.width;
        const int64_t c_row = g->c_row ? g->c_row : p.width;
        const int direct = g->store != MHLA_STORE_ROWS && p.width % 16 == 0;
        p.c = direct ? c : t->c;
        p.c_row = direct ? c_row : WIDEST;
        p.add = direct && g->store == MHLA_STORE_ADD;
        multiply(kernels, g, &p, t, fetch && i == 0);
        if (g->store == MHLA_STORE_ROWS)
            store_rows(kernels, g, &p, t);
        else if (!direct)
            store_part(kernels, g, &p, t->c, c, c_row);
    }
}

void mhla_gemm_narrowed(const mhla_kernels *kernels, const mhla_gemm *g) {
    const int k = g->f.k, m = g->m;
    if (m < LEAST_ROWS || k < LEAST_DEPTH || k > DEEPEST || g->f.b_list) {
        kernels->gemm(g);
        return;
    }
    tiles t;
    int rows = A_MOST / up(k, 2) / 16 * 16;
    if (rows > ROWS) rows = ROWS;
    const int blocks = (m + rows - 1) / rows, most = up((m + blocks - 1) / blocks, 16);
    if (g->f2.k > 0 && g->store == MHLA_STORE_ROWS && m > most) { /* its rows are counted from the first of the block */
        kernels->gemm(g);
        return;
    }
    for (int row = 0; row < m; row += most) run_block(kernels, g, &t, row, m - row < most ? m - row : most, row == 0);
    if (g->f2.k > 0 && g->store != MHLA_STORE_ROWS) { /* what the second pair adds */
        mhla_gemm rest = *g;
        rest.f.k = 0;
        rest.store = MHLA_STORE_ADD;
        rest.n_prefetch = 0;
        kernels->gemm(&rest);
    }
}
