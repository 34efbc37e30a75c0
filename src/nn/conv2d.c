/* Dense convolutions of token grids [B,H*W,C], one or several frames at once, on the packed product, without a matrix of fields.
 *
 * A task copies what a block of outputs reads into a tile, with its borders. In the tile the kw pixels that one row of the
 * kernel reads are one stretch of kw*C numbers, and that of the next output begins stride*C later: rows of a matrix
 * that overlap. So each row of the kernel is a product of the tile as it lies with panels of the weight, whose
 * numbers are in the order [depth,kh,kw,C]; frames come one after the other. Sums are cut into chunks that depend on kw and C alone.
 *
 * The way back to the input is the same: the outputs that read pixel h are those with (h + top - ky) divisible by the stride, so
 * that pixels of one remainder are the convolution of dy with every stride-th row of the kernel, turned round. */
#include <string.h>

#include "nn/conv2d.h"
#include "ops/product/product.h"

enum {
    CHUNK = 768, /* of a sum: as in src/ops/product/forward.c */
    CHUNK_WIDENED = 256,
    COLUMNS = 32,            /* of a block of outputs, */
    OUTPUTS = 192,           /* outputs, */
    TILE_BYTES = 384 * 1024, /* what they read, */
    SUMS_BYTES = 256 * 1024, /* and their sums: both in L2, at most */
    DEPTH = 256,             /* of the squares by which a weight is packed */
    PAGE = 4096
};

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return most(1, (a + b - 1) / b); } /* a, b: 1 or more */
static int64_t even(int64_t n) { return (n + 1) / 2 * 2; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void mhla_conv_fill(const mhla_conv_grid *g, void *tile, int pairs, int64_t ct, const mhla_conv_block *k) {
    const int64_t rows = mhla_conv_reach(g, k->rows, g->kh), cols = mhla_conv_reach(g, k->cols, g->kw);
    const int64_t h0 = k->i * g->stride - g->top, w0 = k->j * g->stride - g->left;
    const int64_t before = w0 < 0 ? least(-w0, cols) : 0;
    const int64_t behind = w0 + cols > g->W ? least(w0 + cols - g->W, cols - before) : 0,
                  inside = cols - before - behind;
    const size_t pixel = (size_t)ct * (pairs ? sizeof(uint16_t) : sizeof(float)); /* bytes */
    char *to = tile;
    for (int64_t h = h0; h < h0 + rows; h++, to += (size_t)cols * pixel) {
        if (h < 0 || h >= g->H || inside <= 0) {
            memset(to, 0, (size_t)cols * pixel);
            continue;
        }
        memset(to, 0, (size_t)before * pixel);
        memset(to + (size_t)(before + inside) * pixel, 0, (size_t)behind * pixel);
        const float *from = g->x[k->d] + ((k->b * g->H + h) * g->W + w0 + before) * g->ld + k->c;
        char *at = to + (size_t)before * pixel;
        if (pairs)
            g->kernels->narrow_rows((uint16_t *)at, ct, from, g->ld, (int)inside, (int)k->n);
        else
            g->kernels->copy_rows((float *)at, ct, &(mhla_rows){(float *)from, NULL, g->ld, MHLA_F32}, (int)inside,
                                  (int)k->n, NULL);
    }
}

/* ---- Packing: panels of a weight [N, kh, kw, C made even] out of a parameter; of several frames, kh has the rows of all ---- */

/* Number (n, a, b, c) of it is data[first + n*n_step + a*row_step + b*col_step + c*c_step]. */
typedef struct packing {
    mhla_weight *w;
    int64_t first_k; /* in the weight */
    const float *data;
    int64_t first, n_step, c_step, row_step, col_step, kh, kw, C;
    float *squares; /* per worker [64][DEPTH], [DEPTH][64] */
} packing;

static size_t packing_bytes(const mhla_tape *t) {
    return sizeof(float) * 2 * DEPTH * MHLA_WIDEST * (size_t)mhla_context_threads(t->context);
}

static void pack_task(void *arg, int64_t i, int worker) {
    const packing *p = arg;
    const mhla_weight *w = p->w;
    const int begin = mhla_panel_begin(&w->panels, (int)i);
    const mhla_panels one = mhla_one_panel(&w->panels, (int)i);
    const int width = mhla_panels_width(&one);
    const int64_t ct = even(p->C);
    float *rows = p->squares + (int64_t)worker * 2 * DEPTH * MHLA_WIDEST, *columns = rows + DEPTH * MHLA_WIDEST;
    char *panel = (char *)w->data + mhla_storage_bytes(w->dtype, w->K, begin);
    int64_t k = p->first_k;
    for (int64_t tap = 0; tap < p->kh * p->kw; tap++)
        for (int64_t c = 0; c < ct; c += DEPTH) {
            const int64_t depth = least(ct - c, DEPTH), some = least(p->C - c, depth);
            const float *from = p->data + p->first + begin * p->n_step + tap / p->kw * p->row_step +
                                tap % p->kw * p->col_step + c * p->c_step;
            for (int n = 0; n < one.n; n++) {
                for (int64_t e = 0; e < some; e++) rows[n * DEPTH + e] = from[n * p->n_step + e * p->c_step];
                if (some < depth) rows[n * DEPTH + some] = 0.0f;
            }
            char *to = panel + mhla_storage_bytes(w->dtype, k, width);
            w->kernels->transpose(w->dtype == MHLA_F32 ? (float *)to : columns, &one, rows, DEPTH, (int)depth);
            if (w->dtype == MHLA_BF16) w->kernels->narrow_pairs((uint16_t *)to, columns, (int)depth, width);
            k += depth;
        }
}

/* The packed copy of w [O,C,kh,kw] or [O,C,depth,kh,kw], made or renewed where it is old. NULL: nothing to compute with. */
static const mhla_weight *packed(mhla_tape *t, mhla_param *w) {
    const int64_t O = w->shape[0], C = w->shape[1], kw = w->shape[w->dims - 1], kh = w->count / (O * C * kw);
    packing p = {.data = w->data, .n_step = C * kh * kw, .c_step = kh * kw, .row_step = kw, .col_step = 1};
    p.kh = kh;
    p.kw = kw;
    p.C = C;
    p.squares = mhla_tape_scratch(t, packing_bytes(t));
    int old;
    p.w = mhla_param_place(t, w, O, kh * kw * even(C), 1, &old);
    if (p.w && old) mhla_tape_run(t, p.w->panels.count, pack_task, &p);
    return p.w;
}

/* ---- The product ---- */

typedef struct window {
    mhla_conv_grid g;
    int64_t ct; /* channels in the tile: even */
    const mhla_weight *w;
    int64_t first_k; /* in the weight */
    /* output (i,j) is pixel (row + i*step, column + j*step) of a grid of Hy x Wy */
    float *y;
    int64_t ldy, Hy, Wy, row, column, step;
    int add;
    const float *bias, *residual; /* or NULL */
    int64_t ldr;
    int pairs, widened;
    int64_t chunks;                 /* of kw*ct */
    int64_t row_blocks, col_blocks; /* of outputs, */
    int64_t panel_blocks;           /* panels */
    int64_t most;                   /* outputs of a block */
    char *scratch;                  /* per worker: tile; sums, panelled [most][width]; a widened panel */
    size_t tile_bytes, sums_bytes, worker_bytes;
} window;

static int64_t block_begin(int64_t n, int64_t blocks, int64_t i) { return i * n / blocks; }

/* What a weight of this type, N x K, needs to be known before there is one. */
static mhla_weight shape_of_weight(const mhla_tape *t, mhla_dtype dtype, int64_t N, int64_t K) {
    return (mhla_weight){
        .kernels = t->kernels, .dtype = dtype, .N = N, .K = K, .panels = mhla_product_panels(t->kernels, N, dtype)};
}

static void cut(window *v, const mhla_weight *w, int64_t B, int threads) {
    const mhla_conv_grid *g = &v->g;
    v->ct = even(g->C);
    v->pairs = w->dtype == MHLA_BF16 && w->kernels->gemm_bf16 != NULL;
    v->widened = w->dtype == MHLA_BF16 && !v->pairs;
    v->chunks = ceil_div(g->kw * v->ct, v->widened ? CHUNK_WIDENED : CHUNK);
    const int64_t pixel = v->ct * (v->pairs ? 2 : 4), width = mhla_panels_width(&w->panels);
    int64_t columns = COLUMNS, rows;
    for (;; columns /= 2) {
        v->col_blocks = ceil_div(g->Wo, columns);
        const int64_t cols = ceil_div(g->Wo, v->col_blocks), line = mhla_conv_reach(g, cols, g->kw) * pixel;
        rows = (TILE_BYTES / line - g->kh) / g->stride + 1;
        rows = least(rows, least(OUTPUTS, SUMS_BYTES / 4 / width) / cols);
        if (rows >= 2 || columns <= COLUMNS / 4) break;
    }
    rows = most(1, least(rows, g->Ho));
    v->panel_blocks = 1;
    for (;;) { /* until every thread has several tasks */
        v->row_blocks = ceil_div(g->Ho, rows);
        if (threads == 1 || B * v->row_blocks * v->col_blocks * v->panel_blocks >= 8 * (int64_t)threads) break;
        if (2 * v->panel_blocks <= w->panels.count)
            v->panel_blocks *= 2;
        else if (rows > 1)
            rows = ceil_div(rows, 2);
        else
            break;
    }
    const int64_t cols = ceil_div(g->Wo, v->col_blocks);
    rows = ceil_div(g->Ho, v->row_blocks);
    v->most = rows * cols;
    mhla_carver c = {0};
    mhla_carve(&c, (size_t)(mhla_conv_reach(g, rows, g->kh) * mhla_conv_reach(g, cols, g->kw) * pixel));
    v->tile_bytes = c.used;
    mhla_carve_floats(&c, v->most * (ceil_div(w->panels.count, v->panel_blocks) * mhla_panel_begin(&w->panels, 1)));
    v->sums_bytes = c.used - v->tile_bytes;
    if (v->widened) mhla_carve_floats(&c, (int64_t)CHUNK_WIDENED * MHLA_WIDEST);
    v->worker_bytes = c.used;
}

/* A panel's part of a chunk, and where it is multiplied. */
typedef struct step {
    const mhla_conv_block *block;
    int64_t tile_cols, ky, k; /* the chunk begins at number k of the stretch */
    int64_t row;              /* of the weight: ky after the rows of the frames before */
    int add;                  /* to what is there */
    int depth, q, next;
    const void *b;
    const char *tile;
    float *sums;
} step;

static const char *panel_at(const window *v, int q, int64_t k, int depth, int64_t *bytes) {
    const mhla_weight *w = v->w;
    const int64_t column = mhla_panel_begin(&w->panels, q), width = mhla_panel_begin(&w->panels, q + 1) - column;
    *bytes = mhla_storage_bytes(w->dtype, depth, width);
    return (const char *)w->data + mhla_storage_bytes(w->dtype, w->K, column) + mhla_storage_bytes(w->dtype, k, width);
}

/* sums (=, +=) stretches of the tile times the panel, a row of outputs at a time; the next panel comes near meanwhile. */
static void multiply(const window *v, const step *s) {
    const mhla_panels one = mhla_one_panel(&v->w->panels, s->q);
    const int width = mhla_panels_width(&one), m = (int)s->block->cols, add = s->add || s->k > 0;
    const int64_t stretch = v->g.kw * v->ct, rows = s->block->rows;
    int64_t bytes;
    const char *near = panel_at(v, s->next, v->first_k + s->row * stretch + s->k, s->depth, &bytes);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (r * v->g.stride + s->ky) * s->tile_cols * v->ct + s->k, pages = bytes / PAGE;
        const int64_t page = r * pages / rows;
        const mhla_prefetch fetch = {
            {(char *)near + page * PAGE, NULL, PAGE / 4, MHLA_F32}, (int)((r + 1) * pages / rows - page), PAGE};
        float *sums = s->sums + r * m * width;
        if (v->pairs)
            v->w->kernels->gemm_bf16(&(mhla_gemm_bf16){.m = m,
                                                       .width = width,
                                                       .pairs = s->depth / 2,
                                                       .a = (const uint16_t *)s->tile + at,
                                                       .a_row = v->g.stride * v->ct,
                                                       .b = s->b,
                                                       .c = sums,
                                                       .c_row = width,
                                                       .add = add,
                                                       .prefetch = &fetch,
                                                       .n_prefetch = s->next != s->q});
        else
            v->w->kernels->gemm(&(mhla_gemm){.m = m,
                                             .n = one,
                                             .f = {.k = s->depth,
                                                   .a = (const float *)s->tile + at,
                                                   .a_row = v->g.stride * v->ct,
                                                   .a_k = 1,
                                                   .b = s->b,
                                                   .b_rows = s->depth},
                                             .store = add ? MHLA_STORE_ADD : MHLA_STORE_SET,
                                             .c = sums,
                                             .c_row = width,
                                             .prefetch = &fetch,
                                             .n_prefetch = s->next != s->q});
    }
}

/* y (=, +=) sums + bias + residual, one panel. */
static void finish(const window *v, const mhla_conv_block *k, int q, const float *sums) {
    const mhla_panels one = mhla_one_panel(&v->w->panels, q);
    const int column = mhla_panel_begin(&v->w->panels, q), width = mhla_panels_width(&one);
    for (int64_t r = 0; r < k->rows; r++) {
        const int64_t pixel = (k->b * v->Hy + v->row + (k->i + r) * v->step) * v->Wy + v->column + k->j * v->step;
        v->w->kernels->epilogue(&(mhla_epilogue){.src = sums + r * k->cols * width,
                                                 .ld = width,
                                                 .m = (int)k->cols,
                                                 .n = one.n,
                                                 .bias = v->bias ? v->bias + column : NULL,
                                                 .y = v->y + pixel * v->ldy + column,
                                                 .ldy = v->step * v->ldy,
                                                 .residual = v->residual ? v->residual + pixel * v->ldr + column : NULL,
                                                 .ldr = v->step * v->ldr,
                                                 .accumulate = v->add});
    }
}

/* sums (=, +=) a row of the kernel, chunk by chunk, for panels q0 .. q1-1. */
static void multiply_row(const window *v, step *s, int q0, int q1, float *sums, float *wide) {
    const mhla_panels *panels = &v->w->panels;
    const int64_t stretch = v->g.kw * v->ct;
    for (int64_t c = 0; c < v->chunks; c++) {
        s->k = c * stretch / v->chunks / 2 * 2;
        s->depth = (int)((c + 1 == v->chunks ? stretch : (c + 1) * stretch / v->chunks / 2 * 2) - s->k);
        for (s->q = q0; s->q < q1; s->q++) {
            int64_t bytes;
            s->next = s->q + 1 < q1 ? s->q + 1 : s->q;
            s->sums = sums + (mhla_panel_begin(panels, s->q) - mhla_panel_begin(panels, q0)) * v->most;
            s->b = panel_at(v, s->q, v->first_k + s->row * stretch + s->k, s->depth, &bytes);
            if (v->widened) {
                const mhla_panels one = mhla_one_panel(panels, s->q);
                v->w->kernels->widen_pairs(wide, s->b, s->depth, mhla_panels_width(&one));
                s->b = wide;
            }
            multiply(v, s);
        }
    }
}

static void window_task(void *arg, int64_t task, int worker) {
    const window *v = arg;
    const mhla_panels *panels = &v->w->panels;
    const int64_t part = task % v->panel_blocks, place = task / v->panel_blocks;
    const int64_t jb = place % v->col_blocks, ib = place / v->col_blocks % v->row_blocks;
    mhla_conv_block k = {.b = place / v->col_blocks / v->row_blocks,
                         .i = block_begin(v->g.Ho, v->row_blocks, ib),
                         .j = block_begin(v->g.Wo, v->col_blocks, jb),
                         .n = v->g.C};
    k.rows = block_begin(v->g.Ho, v->row_blocks, ib + 1) - k.i;
    k.cols = block_begin(v->g.Wo, v->col_blocks, jb + 1) - k.j;
    const int q0 = (int)block_begin(panels->count, v->panel_blocks, part);
    const int q1 = (int)block_begin(panels->count, v->panel_blocks, part + 1);
    char *tile = v->scratch + (size_t)worker * v->worker_bytes;
    float *sums = (float *)(tile + v->tile_bytes), *wide = (float *)(tile + v->tile_bytes + v->sums_bytes);
    step s = {.block = &k, .tile = tile, .tile_cols = mhla_conv_reach(&v->g, k.cols, v->g.kw)};
    for (k.d = 0; k.d < v->g.depth; k.d++) {
        if (v->g.x[k.d] == NULL) continue;
        mhla_conv_fill(&v->g, tile, v->pairs, v->ct, &k);
        for (s.ky = 0; s.ky < v->g.kh; s.ky++, s.add = 1) {
            s.row = k.d * v->g.kh + s.ky;
            multiply_row(v, &s, q0, q1, sums, wide);
        }
    }
    for (int q = q0; q < q1; q++)
        finish(v, &k, q, sums + (mhla_panel_begin(panels, q) - mhla_panel_begin(panels, q0)) * v->most);
}

static size_t window_bytes(const mhla_tape *t, const window *v) {
    return v->worker_bytes * (size_t)mhla_context_threads(t->context);
}

static void run(mhla_tape *t, window *v, int64_t B, const mhla_weight *w, char *scratch) {
    v->w = w;
    v->scratch = scratch;
    mhla_tape_run(t, B * v->row_blocks * v->col_blocks * v->panel_blocks, window_task, v);
}

/* ---- The layer ---- */

typedef struct conv {
    mhla_record r;
    mhla_tensor *x[MHLA_CONV_DEPTH], *residual, *y; /* the last x is there */
    mhla_param *w, *b;
    mhla_conv_grid g;
} conv;

/* The pixels with h = i*stride + row of dx, and the same of columns: which taps reach them, and where from. */
typedef struct phase {
    int64_t tap, taps; /* the last of `taps` ones, stride apart; none: the gradient is 0 */
    int64_t first, count, shift;
} phase;

static phase phase_of(int64_t i, int64_t stride, int64_t pad, int64_t k, int64_t n) {
    const int64_t tap = i % stride; /* (first + pad) mod stride */
    phase p = {.first = ((tap - pad) % stride + stride) % stride, .taps = tap < k ? ceil_div(k - tap, stride) : 0};
    p.tap = tap + (p.taps - 1) * stride;
    p.count = p.first < n ? ceil_div(n - p.first, stride) : 0;
    p.shift = p.taps - 1 - (p.first + pad - tap) / stride;
    return p;
}

/* The way back for pixels of one remainder. */
static window way_back(const conv *op, const phase *i, const phase *j, const mhla_slot *dx) {
    const mhla_conv_grid *g = &op->g;
    window v = {.g = *g, .y = dx->data, .ldy = dx->ld, .Hy = g->H, .Wy = g->W, .step = g->stride, .add = dx->add};
    v.g.x[0] = mhla_tape_arrived(op->y);
    v.g.depth = 1;
    v.g.ld = op->y->ld;
    v.g.H = g->Ho;
    v.g.W = g->Wo;
    v.g.C = op->y->cols;
    v.g.stride = 1;
    v.g.kh = i->taps;
    v.g.kw = j->taps;
    v.g.top = i->shift;
    v.g.left = j->shift;
    v.g.Ho = i->count;
    v.g.Wo = j->count;
    v.row = i->first;
    v.column = j->first;
    return v;
}

/* Pixels that no output reads. */
static void zero_pixels(const conv *op, const phase *i, const phase *j, const mhla_slot *dx) {
    const mhla_conv_grid *g = &op->g;
    for (int64_t b = 0; b < op->y->shape[0]; b++)
        for (int64_t h = i->first; h < g->H; h += g->stride)
            for (int64_t w = j->first; w < g->W; w += g->stride)
                memset(dx->data + ((b * g->H + h) * g->W + w) * dx->ld, 0, sizeof(float) * (size_t)g->C);
}

/* dx[h,w] of frame d (=, +=) the sum over taps and outputs of dy[(h + top - ky)/stride, (w + left - kx)/stride] w[:,:,d,ky,kx] */
static void input_grad(mhla_tape *t, conv *op, int d, const mhla_slot *dx) {
    const int64_t s = op->g.stride, C = op->g.C, O = op->y->cols, taps = op->g.kh * op->g.kw, B = op->y->shape[0];
    const int64_t all = taps * op->g.depth;
    mhla_dtype dtype = t->precision == MHLA_BF16 && t->kernels->gemm_bf16 ? MHLA_BF16 : MHLA_F32;
    mhla_weight turned = shape_of_weight(t, dtype, C, taps * even(O));
    size_t most = packing_bytes(t);
    for (int64_t at = 0; at < s * s; at++) { /* how much scratch */
        const phase i = phase_of(at / s, s, op->g.top, op->g.kh, op->g.H);
        const phase j = phase_of(at % s, s, op->g.left, op->g.kw, op->g.W);
        if (i.taps == 0 || j.taps == 0 || i.count == 0 || j.count == 0) continue;
        window v = way_back(op, &i, &j, dx);
        cut(&v, &turned, B, mhla_context_threads(t->context));
        if (window_bytes(t, &v) > most) most = window_bytes(t, &v);
    }
    mhla_carver c = {0};
    mhla_carve(&c, (size_t)mhla_storage_bytes(dtype, turned.K, mhla_panels_width(&turned.panels)));
    const size_t weight_bytes = c.used;
    char *memory = mhla_tape_scratch(t, weight_bytes + most);
    if (memory == NULL || mhla_tape_dry(t)) return;
    turned.data = memory;
    int64_t first_k = 0;
    for (int64_t at = 0; at < s * s; at++) {
        const phase i = phase_of(at / s, s, op->g.top, op->g.kh, op->g.H);
        const phase j = phase_of(at % s, s, op->g.left, op->g.kw, op->g.W);
        if (i.count == 0 || j.count == 0) continue;
        if (i.taps == 0 || j.taps == 0) {
            if (!dx->add) zero_pixels(op, &i, &j, dx);
            continue;
        }
        packing p = {.w = &turned,
                     .first_k = first_k,
                     .data = op->w->data,
                     .first = d * taps + i.tap * op->g.kw + j.tap,
                     .n_step = all,
                     .c_step = C * all,
                     .row_step = -s * op->g.kw,
                     .col_step = -s,
                     .kh = i.taps,
                     .kw = j.taps,
                     .C = O,
                     .squares = (float *)(memory + weight_bytes)};
        mhla_tape_run(t, turned.panels.count, pack_task, &p);
        window v = way_back(op, &i, &j, dx);
        cut(&v, &turned, B, mhla_context_threads(t->context));
        v.first_k = first_k;
        run(t, &v, B, &turned, memory + weight_bytes);
        first_k += i.taps * j.taps * even(O);
    }
}

/* y = b + residual + the convolution: dw in conv2d_weight.c, db = sum dy, dx above, dresidual = dy */
static void conv_backward(mhla_tape *t, void *p) {
    conv *op = p;
    const mhla_tensor *y = op->y;
    const float *dy = mhla_tape_arrived(y);
    const mhla_slot dw = mhla_tape_param_grad(t, op->w);
    if (dw.wanted) mhla_conv_weight_grad(t, &op->g, y->shape[0], op->w, dy, y->ld, &dw);
    const mhla_slot db = mhla_tape_param_grad(t, op->b);
    if (db.wanted) {
        mhla_linear_desc d = {.size = sizeof d, .context = t->context, .rows = y->rows, .ldy = y->ld};
        d.workspace = mhla_tape_scratch(t, mhla_weight_grad_workspace(&d, 0, y->cols, 1));
        d.accumulate = db.add;
        if (!mhla_tape_dry(t) && t->status == MHLA_OK &&
            mhla_linear_backward_weight(&d, NULL, db.data, dy, NULL, y->cols, 1) != MHLA_OK)
            mhla_tape_fail(t, MHLA_EINVAL, "%s: %s", op->b->name, mhla_message());
    }
    for (int d = 0; d < op->g.depth; d++) {
        const mhla_slot dx = mhla_tape_grad(t, op->x[d]);
        if (dx.wanted) input_grad(t, op, d, &dx);
    }
    mhla_tape_pass_grad(t, op->residual, op->y);
}

/* The last input's sizes and those of the kernel fit; *Ho, *Wo of the result. NULL if the tape fails. */
static mhla_tensor *check(mhla_tape *t, const mhla_param *w, const mhla_param *b, const mhla_conv *c, mhla_tensor *x,
                          int64_t *Ho, int64_t *Wo) {
    char text[96];
    const int64_t O = w->shape[0], C = w->shape[1], kh = w->shape[w->dims - 2], kw = w->shape[w->dims - 1];
    const int64_t around = 2 * (int64_t)c->pad + c->after;
    MHLA_NEED(t,
              c->stride > 0 && c->pad >= 0 && c->pad + c->after >= 0 && c->groups <= 1 && c->H > 0 && c->W > 0 &&
                  c->H + around >= kh && c->W + around >= kw,
              "%s: stride %d, padding %d and %d more, %d groups on a grid of %lld x %lld", w->name, c->stride, c->pad,
              c->after, c->groups, (long long)c->H, (long long)c->W);
    MHLA_NEED(t, x->dims == 3 && x->shape[1] == c->H * c->W && x->cols == C,
              "%s convolves a grid of %lld x %lld of %lld channels: its input is %s", w->name, (long long)c->H,
              (long long)c->W, (long long)C, mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, b == NULL || b->count == O, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)O);
    *Ho = (c->H + around - kh) / c->stride + 1;
    *Wo = (c->W + around - kw) / c->stride + 1;
    return x;
}

/* w, b and c are checked. */
static mhla_tensor *convolve(mhla_tape *t, mhla_param *w, mhla_param *b, const mhla_conv *c, mhla_tensor *residual,
                             mhla_tensor *const *x, int depth, int64_t Ho, int64_t Wo) {
    char text[96], other[96];
    const int64_t O = w->shape[0], C = w->shape[1], kh = w->shape[w->dims - 2], kw = w->shape[w->dims - 1];
    const mhla_tensor *last = x[depth - 1];
    MHLA_NEED(t, w->data, "%s is not kept as float32", w->name);
    conv *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(last->shape[0], Ho * Wo, O)) : NULL;
    if (y == NULL) return NULL;
    MHLA_NEED(t, residual == NULL || (residual->rows == y->rows && residual->cols == O),
              "the residual of %s is %s: expected %s", w->name, mhla_shape_text(text, residual->shape, residual->dims),
              mhla_shape_text(other, y->shape, y->dims));
    *op = (conv){.residual = residual, .y = y, .w = w, .b = b};
    op->g = (mhla_conv_grid){.kernels = t->kernels, .depth = depth, .ld = last->ld, .H = c->H, .W = c->W, .C = C};
    op->g.kh = kh;
    op->g.kw = kw;
    op->g.stride = c->stride;
    op->g.top = op->g.left = c->pad;
    op->g.Ho = Ho;
    op->g.Wo = Wo;
    int needs = mhla_param_trains(w) || mhla_param_trains(b) || (residual != NULL && residual->needs_grad);
    for (int d = 0; d < depth; d++) {
        op->x[d] = x[d];
        op->g.x[d] = x[d] ? x[d]->data : NULL;
        needs |= x[d] && x[d]->needs_grad;
    }
    window v = {.g = op->g, .y = y->data, .ldy = y->ld, .Hy = Ho, .Wy = Wo, .step = 1, .bias = b ? b->data : NULL};
    if (residual) {
        v.residual = residual->data;
        v.ldr = residual->ld;
    }
    const mhla_weight *weight = packed(t, w);
    const mhla_weight shape = shape_of_weight(t, w->packs_as, O, depth * kh * kw * even(C));
    cut(&v, weight ? weight : &shape, last->shape[0], mhla_context_threads(t->context));
    char *scratch = mhla_tape_scratch(t, window_bytes(t, &v));
    if (weight && scratch) run(t, &v, last->shape[0], weight, scratch);
    return mhla_tape_record(t, &op->r, conv_backward, y, needs);
}

mhla_tensor *mhla_nn_conv2d(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *residual,
                            mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    int64_t Ho = 0, Wo = 0;
    if (c.stride == 0) c.stride = 1;
    MHLA_NEED(t, w->dims == 4, "%s is %s: expected [O, C, kh, kw]", w->name, mhla_shape_text(text, w->shape, w->dims));
    if (check(t, w, b, &c, x, &Ho, &Wo) == NULL) return NULL;
    if (w->shape[2] == 1 && w->shape[3] == 1 && c.stride == 1 && c.pad == 0 && c.after == 0)
        return mhla_nn_linear(t, w, b, MHLA_ACT_NONE, residual, x);
    return convolve(t, w, b, &c, residual, &x, 1, Ho, Wo);
}

mhla_tensor *mhla_nn_conv3d(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *residual,
                            mhla_tensor *const *x) {
    MHLA_GIVEN(t, w);
    char text[96], other[96];
    int64_t Ho = 0, Wo = 0;
    if (c.stride == 0) c.stride = 1;
    MHLA_NEED(t, w->dims == 5 && w->shape[2] <= MHLA_CONV_DEPTH, "%s is %s: expected [O, C, 1 to %d, kh, kw]", w->name,
              mhla_shape_text(text, w->shape, w->dims), MHLA_CONV_DEPTH);
    const int depth = (int)w->shape[2];
    mhla_tensor *last = x[depth - 1];
    MHLA_GIVEN(t, last);
    if (check(t, w, b, &c, last, &Ho, &Wo) == NULL) return NULL;
    for (int d = 0; d < depth; d++)
        MHLA_NEED(t, x[d] == NULL || (mhla_same_shape(x[d], last) && x[d]->ld == last->ld),
                  "frames of %s are %s and %s", w->name, mhla_shape_text(text, x[d]->shape, x[d]->dims),
                  mhla_shape_text(other, last->shape, last->dims));
    return convolve(t, w, b, &c, residual, x, depth, Ho, Wo);
}
