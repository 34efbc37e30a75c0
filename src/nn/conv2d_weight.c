/* The gradient of a dense convolution's weight: for each row of the kernel, of each frame, a product of dy, turned round, with the tile
 * that the outputs read, in which what belongs to one output is a stretch of kw*C numbers (conv2d.c).
 *
 * Tasks are blocks of dw and, where dw is small, segments of the outputs, which are added in their order. Both depend on
 * sizes alone. */
#include <string.h>

#include "nn/conv2d.h"
#include "ops/product/product.h"

enum {
    OUTPUTS = 128, /* channels of a block of dw: those of dy, */
    INPUTS = 64,   /* and those of x */
    COLUMNS = 64,  /* of a unit of outputs, */
    PIXELS = 256,  /* and how many they are, about */
    SEGMENTS = 16,
    UNITS = 4,         /* of a segment, at least */
    SMALL = 512 * 1024 /* numbers of dw up to which there are segments */
};

typedef struct weight_grad {
    const mhla_conv_grid *g;
    const float *dy;
    float *dw;
    int64_t lddy, O;
    int add, pairs;
    int64_t o_blocks, c_blocks, row_blocks, col_blocks, units, segments;
    int64_t line;   /* floats of a row of dy, turned round */
    float *partial; /* [segments-1][O*C*taps]: the first segment goes to dw itself */
    char *
        scratch; /* per worker: tile; dy^T [block][line]; sums, for each row of the kernel [block][kw*channels] panelled */
    size_t tile_bytes, dy_bytes, worker_bytes;
} weight_grad;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Everything but the memory; returns the bytes of scratch. */
static size_t lay_out(weight_grad *v, int64_t B, int threads) {
    const mhla_conv_grid *g = v->g;
    const int64_t count = v->O * g->C * g->depth * g->kh * g->kw;
    v->o_blocks = ceil_div(v->O, OUTPUTS);
    v->c_blocks = ceil_div(g->C, INPUTS);
    v->col_blocks = ceil_div(g->Wo, COLUMNS);
    const int64_t cols = ceil_div(g->Wo, v->col_blocks);
    v->row_blocks = ceil_div(g->Ho, cols < PIXELS ? PIXELS / cols : 1);
    v->units = B * v->row_blocks * v->col_blocks;
    v->segments = count > SMALL ? 1 : ceil_div(v->units, UNITS);
    if (v->segments > SEGMENTS) v->segments = SEGMENTS;
    v->line = (cols + 15) / 16 * 16 + 16; /* padded, so that a tile's rows do not fall on the same lines of the cache */
    const int64_t rows = ceil_div(g->Ho, v->row_blocks), channels = ceil_div(g->C, v->c_blocks);
    const int64_t nb = ceil_div(v->O, v->o_blocks);
    mhla_carver c = {0};
    mhla_carve_floats(&c, mhla_conv_reach(g, rows, g->kh) * mhla_conv_reach(g, cols, g->kw) * channels + MHLA_WIDEST);
    v->tile_bytes = c.used;
    mhla_carve_floats(&c, nb * v->line);
    v->dy_bytes = c.used - v->tile_bytes;
    mhla_carve_floats(&c, g->depth * g->kh * nb * (g->kw * channels + MHLA_WIDEST));
    v->worker_bytes = c.used;
    c.used *= (size_t)threads;
    mhla_carve_floats(&c, (v->segments - 1) * count);
    return c.used;
}

/* A block of dw on its way. */
typedef struct block {
    int64_t o, c;
    int nb, nc; /* its sides */
    mhla_panels panels;
    float *tile, *dy, *sums;
} block;

/* sums of one frame (=, +=) what row r of the unit k of outputs adds. */
static void add_row(const weight_grad *v, const block *p, const mhla_conv_block *k, int64_t r, float *sums, int add) {
    const mhla_conv_grid *g = v->g;
    const int64_t cols = mhla_conv_reach(g, k->cols, g->kw);
    const mhla_panels line = {
        .n = (int)k->cols, .unit = 16, .count = 1, .vectors = (int)v->line / 16, .base = (int)v->line / 16};
    const float *dy = v->dy + ((k->b * g->Ho + k->i + r) * g->Wo + k->j) * v->lddy + p->o;
    g->kernels->transpose(p->dy, &line, dy, v->lddy, p->nb);
    for (int64_t ky = 0; ky < g->kh; ky++) {
        const mhla_gemm product = {.m = p->nb,
                                   .n = p->panels,
                                   .f = {.k = (int)k->cols,
                                         .a = p->dy,
                                         .a_row = v->line,
                                         .a_k = 1,
                                         .b = p->tile + (r * g->stride + ky) * cols * p->nc,
                                         .b_k = g->stride * p->nc},
                                   .store = add || r > 0 ? MHLA_STORE_ADD : MHLA_STORE_SET,
                                   .c = sums + ky * p->nb * mhla_panels_width(&p->panels),
                                   .c_rows = p->nb};
        if (v->pairs)
            mhla_gemm_narrowed(g->kernels, &product);
        else
            g->kernels->gemm(&product);
    }
}

/* sums (=, +=) what a unit of outputs adds to the block. */
static void add_unit(const weight_grad *v, const block *p, int64_t unit, int add) {
    const mhla_conv_grid *g = v->g;
    const int64_t jb = unit % v->col_blocks, ib = unit / v->col_blocks % v->row_blocks;
    mhla_conv_block k = {.b = unit / v->col_blocks / v->row_blocks, .c = p->c, .n = p->nc};
    k.i = ib * g->Ho / v->row_blocks;
    k.j = jb * g->Wo / v->col_blocks;
    k.rows = (ib + 1) * g->Ho / v->row_blocks - k.i;
    k.cols = (jb + 1) * g->Wo / v->col_blocks - k.j;
    for (k.d = 0; k.d < g->depth; k.d++) {
        float *sums = p->sums + k.d * g->kh * p->nb * mhla_panels_width(&p->panels);
        if (g->x[k.d] == NULL) { /* nothing adds to these */
            if (!add) memset(sums, 0, sizeof(float) * (size_t)(g->kh * p->nb * mhla_panels_width(&p->panels)));
            continue;
        }
        mhla_conv_fill(g, p->tile, 0, p->nc, &k);
        for (int64_t r = 0; r < k.rows; r++) add_row(v, p, &k, r, sums, add);
    }
}

/* The block into dw [O,C,depth,kh,kw]. */
static void put_block(const weight_grad *v, const block *p, float *dw, int add) {
    const mhla_conv_grid *g = v->g;
    const int64_t rows = g->depth * g->kh, taps = rows * g->kw;
    for (int64_t ky = 0; ky < rows; ky++)
        for (int q = 0; q < p->panels.count; q++) {
            const mhla_panels one = mhla_one_panel(&p->panels, q);
            const int begin = mhla_panel_begin(&p->panels, q), width = mhla_panels_width(&one);
            const float *sums = p->sums + p->nb * (ky * mhla_panels_width(&p->panels) + begin);
            for (int o = 0; o < p->nb; o++)
                for (int e = 0; e < one.n; e++) {
                    const int64_t kx = (begin + e) / p->nc, c = (begin + e) % p->nc;
                    float *to = dw + ((p->o + o) * g->C + p->c + c) * taps + ky * g->kw + kx;
                    *to = add ? *to + sums[o * width + e] : sums[o * width + e];
                }
        }
}

static void weight_task(void *arg, int64_t task, int worker) {
    const weight_grad *v = arg;
    const mhla_conv_grid *g = v->g;
    const int64_t s = task % v->segments, ob = task / v->segments % v->o_blocks, cb = task / v->segments / v->o_blocks;
    block p = {.o = ob * v->O / v->o_blocks, .c = cb * g->C / v->c_blocks};
    p.nb = (int)((ob + 1) * v->O / v->o_blocks - p.o);
    p.nc = (int)((cb + 1) * g->C / v->c_blocks - p.c);
    p.panels = mhla_product_panels(g->kernels, g->kw * p.nc, v->pairs ? MHLA_BF16 : MHLA_F32);
    char *scratch = v->scratch + (size_t)worker * v->worker_bytes;
    p.tile = (float *)scratch;
    p.dy = (float *)(scratch + v->tile_bytes);
    p.sums = (float *)(scratch + v->tile_bytes + v->dy_bytes);
    const int64_t first = s * v->units / v->segments, last = (s + 1) * v->units / v->segments;
    for (int64_t unit = first; unit < last; unit++) add_unit(v, &p, unit, unit > first);
    put_block(v, &p, s == 0 ? v->dw : v->partial + (s - 1) * v->O * g->C * g->depth * g->kh * g->kw, s == 0 && v->add);
}

void mhla_conv_weight_grad(mhla_tape *t, const mhla_conv_grid *g, int64_t B, const mhla_param *w, const float *dy,
                           int64_t lddy, const mhla_slot *dw) {
    weight_grad v = {.g = g, .dy = dy, .dw = dw->data, .lddy = lddy, .O = w->shape[0], .add = dw->add};
    v.pairs = t->precision == MHLA_BF16 && t->kernels->gemm_bf16 != NULL;
    const int threads = mhla_context_threads(t->context);
    v.scratch = mhla_tape_scratch(t, lay_out(&v, B, threads));
    if (v.scratch == NULL || mhla_tape_dry(t)) return;
    v.partial = (float *)(v.scratch + v.worker_bytes * (size_t)threads);
    mhla_tape_run(t, v.segments * v.o_blocks * v.c_blocks, weight_task, &v);
    if (v.segments > 1) mhla_tape_reduce(t, dw->data, 1, v.partial, v.segments - 1, w->count, w->count);
}
