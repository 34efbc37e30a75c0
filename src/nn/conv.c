/* Convolutions of token grids [B,H*W,C], and padding of images.
 *
 * Depthwise: of grids with frames [B,F*H*W,C], too, as a sum over the frames of the kernel. A task copies a band of one sample, some channels wide, with its borders into a tile, and a kernel
 * (simd/kernels/layers.c) runs over it without asking where the borders are. Any other convolution gathers the field of
 * each output into a row and is a linear layer of those rows, by plain dot products where it has groups. */
#include <string.h>

#include "nn/op.h"

enum {
    CHANNELS = 64,           /* of a tile, at most; fewer where threads would be idle */
    TILE_BYTES = 256 * 1024, /* of a tile, about: half an L2 */
    LEAST_LINES = 4,         /* of a strip: k - 1 more are copied */
    WEIGHT_PARTS = 16        /* of the samples, for the gradient of the weight */
};

typedef struct depthwise {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *residual, *y;
    mhla_param *w, *b;
    mhla_tensor *own; /* [B,C*k*k] kernels of each sample instead of w, or NULL */
    int64_t filters;  /* of w and b: channel c has number c mod filters */
    int k, deep;      /* rows and columns of a kernel; its frames: 1, or k */
    int64_t F, H, W, C;
    int64_t T, alone;    /* tokens of a sample, and of those before the grid: 0 or 1 */
    int64_t blocks, ct;  /* of channels; channels of a tile, a multiple of 16 */
    int64_t bands, rows; /* of a frame; rows of a band, at most */
    int64_t strips;      /* of a frame: bands, or more of them where threads would be idle */
    /* scratch */
    size_t tile_floats;
    float *taps;    /* [deep][blocks][k*k][ct]; own: of each sample */
    float *bias;    /* [blocks][ct] */
    float *tiles;   /* [threads][tile_floats] */
    float *partial; /* [parts][blocks][deep*k*k+1][ct]: dw, db */
    int64_t parts;
    mhla_slot dx, dw, db;
} depthwise;

static int64_t taps_of(const depthwise *op) { return (int64_t)op->deep * op->k * op->k; }

static void lay_out(depthwise *op, int threads) {
    const int64_t B = op->x->shape[0], most = op->H / LEAST_LINES > 1 ? op->H / LEAST_LINES : 1; /* strips */
    int64_t channels = CHANNELS;
    while (channels > 16 && B * op->F * most * ((op->C + channels - 1) / channels) < threads) channels /= 2;
    op->blocks = (op->C + channels - 1) / channels;
    op->ct = ((op->C + op->blocks - 1) / op->blocks + 15) / 16 * 16;
    op->blocks = (op->C + op->ct - 1) / op->ct;
    const int64_t line = (op->W + op->k - 1) * op->ct * (int64_t)sizeof(float);
    int64_t rows = TILE_BYTES / line - (op->k - 1);
    if (rows < 4) rows = 4;
    if (rows > op->H) rows = op->H;
    op->bands = (op->H + rows - 1) / rows;
    op->rows = (op->H + op->bands - 1) / op->bands;
    op->tile_floats = (size_t)((op->rows + op->k - 1) * (op->W + op->k - 1) * op->ct);
    op->strips = op->bands;
    while (B * op->F * op->blocks * op->strips < 2 * (int64_t)threads && op->strips * 2 * LEAST_LINES <= op->H)
        op->strips *= 2;
    op->parts = B < WEIGHT_PARTS || op->own ? B : WEIGHT_PARTS;
}

/* The workspace, cut into its pieces; 0 without memory. */
static int carve(mhla_tape *t, depthwise *op, int weight) {
    const int64_t taps = taps_of(op), threads = mhla_context_threads(t->context);
    mhla_carver c = {0};
    for (int pass = 0; pass < 2; pass++) { /* counts, then cuts */
        c.used = 0;
        op->tiles = mhla_carve_floats(&c, (int64_t)op->tile_floats * threads);
        op->taps = mhla_carve_floats(&c, (op->own ? op->x->shape[0] : 1) * op->blocks * taps * op->ct);
        op->bias = mhla_carve_floats(&c, op->blocks * op->ct);
        op->partial = weight ? mhla_carve_floats(&c, op->parts * op->blocks * (taps + 1) * op->ct) : NULL;
        if (pass == 0) c.base = mhla_tape_scratch(t, c.used);
        if (c.base == NULL) return 0;
    }
    return !mhla_tape_dry(t);
}

/* Kernels w [filters,deep*k*k] as taps of a block of channels, turned by half a turn for the way back. */
static void fill_taps(const depthwise *op, float *taps, const float *w, int64_t block, int turned) {
    const int64_t k2 = (int64_t)op->k * op->k, all = taps_of(op), first = block * op->ct;
    const int64_t n = op->C - first < op->ct ? op->C - first : op->ct;
    for (int64_t frame = 0; frame < op->deep; frame++) {
        float *to = taps + (frame * op->blocks + block) * k2 * op->ct;
        if (n < op->ct) memset(to, 0, sizeof(float) * (size_t)(k2 * op->ct));
        for (int64_t c = 0; c < n; c++) {
            const float *from = w + (first + c) % op->filters * all + (turned ? all - 1 - frame * k2 : frame * k2);
            for (int64_t e = 0; e < k2; e++) to[e * op->ct + c] = from[turned ? -e : e];
        }
    }
}

/* Of one block, and its bias; of each sample where it has kernels of its own. */
static void taps_task(void *arg, int64_t task, int worker) {
    const depthwise *op = arg;
    (void)worker;
    const int64_t block = task % op->blocks, b = task / op->blocks, first = block * op->ct;
    if (op->own) {
        fill_taps(op, op->taps + b * op->blocks * op->k * op->k * op->ct, op->own->data + b * op->own->ld, block,
                  op->dx.wanted);
        return;
    }
    fill_taps(op, op->taps, op->w->data, block, op->dx.wanted);
    for (int64_t c = first; c < first + op->ct; c++)
        op->bias[c] = op->b && c < op->C ? op->b->data[c % op->filters] : 0.0f;
}

/* The kernels and the bias, for the convolution or (dx.wanted) the way back. */
static void prepare(mhla_tape *t, depthwise *op) {
    mhla_tape_run(t, (op->own ? op->x->shape[0] : 1) * op->blocks, taps_task, op);
}

/* The first token of a frame of sample b. */
static int64_t frame_at(const depthwise *op, int64_t b, int64_t f) { return b * op->T + op->alone + f * op->H * op->W; }

/* The band of a frame, whose tokens begin at `at`, with its borders: rows first-k/2 .. of channels c.., zeros outside the grid. */
static void fill_tile(const depthwise *op, float *tile, const float *x, int64_t ld, int64_t at, int64_t first,
                      int64_t rows, int64_t c) {
    const int64_t edge = op->k / 2, n = op->C - c < op->ct ? op->C - c : op->ct, width = op->W + op->k - 1;
    const size_t ct_bytes = sizeof(float) * (size_t)op->ct;
    for (int64_t h = first - edge; h < first + rows + edge; h++, tile += width * op->ct) {
        if (h < 0 || h >= op->H) {
            memset(tile, 0, ct_bytes * (size_t)width);
            continue;
        }
        memset(tile, 0, ct_bytes * (size_t)edge);
        memset(tile + (edge + op->W) * op->ct, 0, ct_bytes * (size_t)edge);
        const float *from = x + (at + h * op->W) * ld + c;
        float *to = tile + edge * op->ct;
        for (int64_t w = 0; w < op->W; w++, from += ld, to += op->ct) {
            memcpy(to, from, sizeof(float) * (size_t)n);
            for (int64_t e = n; e < op->ct; e++) to[e] = 0.0f;
        }
    }
}

/* The token before the grid, some channels: it gets the residual and gives nothing. */
static void alone_token(const depthwise *op, int64_t b, int64_t c, int64_t n) {
    if (op->dx.wanted) {
        if (!op->dx.add) memset(op->dx.data + b * op->T * op->dx.ld + c, 0, sizeof(float) * (size_t)n);
        return;
    }
    float *y = op->y->data + b * op->T * op->y->ld + c;
    if (op->residual)
        memcpy(y, op->residual->data + b * op->T * op->residual->ld + c, sizeof(float) * (size_t)n);
    else
        memset(y, 0, sizeof(float) * (size_t)n);
}

/* One strip of a frame, one block of channels, forward or (dx.wanted) back. */
static void depthwise_task(void *arg, int64_t task, int worker) {
    const depthwise *op = arg;
    const int64_t block = task % op->blocks, rest = task / op->blocks, strip = rest % op->strips;
    const int64_t f = rest / op->strips % op->F, b = rest / op->strips / op->F;
    const int64_t c = block * op->ct, first = strip * op->H / op->strips, last = (strip + 1) * op->H / op->strips;
    const int back = op->dx.wanted;
    float *tile = op->tiles + (size_t)worker * op->tile_floats;
    const float *x = back ? mhla_tape_arrived(op->y) : op->x->data;
    const int64_t ld = back ? op->dx.ld : op->y->ld, at = frame_at(op, b, f) + first * op->W;
    if (op->alone && strip == 0) alone_token(op, b, c, op->C - c < op->ct ? op->C - c : op->ct);
    mhla_depthwise d = {.k = op->k,
                        .rows = (int)(last - first),
                        .W = (int)op->W,
                        .C = op->C - c < op->ct ? op->C - c : op->ct,
                        .ct = op->ct,
                        .tile = tile,
                        .y = (back ? op->dx.data : op->y->data) + at * ld + c,
                        .y_row = op->W * ld,
                        .y_col = ld,
                        .add = back && op->dx.add};
    if (!back && op->b) d.bias = op->bias + c;
    if (!back && op->residual) {
        d.residual = op->residual->data + at * op->residual->ld + c;
        d.r_row = op->W * op->residual->ld;
        d.r_col = op->residual->ld;
    }
    for (int i = 0; i < op->deep; i++) { /* of the kernel's frames those that meet one of the clip */
        const int64_t from = f + i - op->deep / 2;
        if (from < 0 || from >= op->F) continue;
        fill_tile(op, tile, x, back ? op->y->ld : op->x->ld, frame_at(op, b, from), first, last - first, c);
        d.w = op->taps + ((op->own ? b : i) * op->blocks + block) * op->k * op->k * op->ct;
        op->kernels->depthwise(&d);
        d.bias = d.residual = NULL;
        d.add = 1;
    }
}

/* dw and db of a band of one frame of x, which meets each frame of the kernel in another frame of dy. */
static void depthwise_weight_band(const depthwise *op, float *dw, float *tile, int64_t b, int64_t f, int64_t band,
                                  int64_t block) {
    const int64_t c = block * op->ct, C = op->C - c < op->ct ? op->C - c : op->ct, k2 = (int64_t)op->k * op->k;
    const int64_t first = band * op->H / op->bands, last = (band + 1) * op->H / op->bands, ld = op->y->ld;
    fill_tile(op, tile, op->x->data, op->x->ld, frame_at(op, b, f), first, last - first, c);
    for (int i = 0; i < op->deep; i++) {
        const int64_t to = f - i + op->deep / 2;
        if (to < 0 || to >= op->F) continue;
        float *dy = mhla_tape_arrived(op->y) + (frame_at(op, b, to) + first * op->W) * ld + c;
        op->kernels->depthwise_weight(&(mhla_depthwise){.k = op->k,
                                                        .rows = (int)(last - first),
                                                        .W = (int)op->W,
                                                        .C = C,
                                                        .ct = op->ct,
                                                        .tile = tile,
                                                        .y = dy,
                                                        .y_row = op->W * ld,
                                                        .y_col = ld,
                                                        .dw = dw + i * k2 * op->ct});
        if (op->b && to == f)
            op->kernels->column_sums(dw + op->deep * k2 * op->ct, dy, ld, NULL, 0, (last - first) * op->W, C);
    }
}

/* dw and db of some samples and a block of channels. */
static void depthwise_weight_task(void *arg, int64_t task, int worker) {
    const depthwise *op = arg;
    const int64_t block = task % op->blocks, part = task / op->blocks, size = (taps_of(op) + 1) * op->ct;
    const int64_t B = op->x->shape[0];
    float *tile = op->tiles + (size_t)worker * op->tile_floats, *dw = op->partial + task * size;
    memset(dw, 0, sizeof(float) * (size_t)size);
    for (int64_t b = part * B / op->parts; b < (part + 1) * B / op->parts; b++)
        for (int64_t f = 0; f < op->F; f++)
            for (int64_t band = 0; band < op->bands; band++) depthwise_weight_band(op, dw, tile, b, f, band, block);
}

/* The parts in their order, into the first of them; one block of channels. */
static void add_parts_task(void *arg, int64_t block, int worker) {
    const depthwise *op = arg;
    (void)worker;
    const int64_t size = (taps_of(op) + 1) * op->ct;
    float *sum = op->partial + block * size;
    for (int64_t part = 1; part < op->parts; part++)
        op->kernels->axpy(sum, 1.0f, op->partial + (part * op->blocks + block) * size, size);
}

/* Some filters, each the sum over the channels that have it. */
static void filters_task(void *arg, int64_t task, int worker) {
    const depthwise *op = arg;
    (void)worker;
    const int64_t taps = taps_of(op), last = task * CHANNELS + CHANNELS;
    for (int64_t f = task * CHANNELS; f < last && f < op->filters; f++)
        for (int64_t e = 0; e <= taps; e++) {
            const mhla_slot *s = e < taps ? &op->dw : &op->db;
            if (!s->wanted) continue;
            float *dst = s->data + (e < taps ? f * taps + e : f), sum = s->add ? *dst : 0.0f;
            for (int64_t c = f; c < op->C; c += op->filters)
                sum += op->partial[(c / op->ct * (taps + 1) + e) * op->ct + c % op->ct];
            *dst = sum;
        }
}

/* One sample's own kernels. */
static void own_grad_task(void *arg, int64_t b, int worker) {
    const depthwise *op = arg;
    (void)worker;
    const int64_t k2 = (int64_t)op->k * op->k;
    const float *from = op->partial + b * op->blocks * (k2 + 1) * op->ct;
    float *to = op->dw.data + b * op->dw.ld;
    for (int64_t c = 0; c < op->C; c++)
        for (int64_t e = 0; e < k2; e++) {
            const float d = from[(c / op->ct * (k2 + 1) + e) * op->ct + c % op->ct];
            to[c * k2 + e] = op->dw.add ? to[c * k2 + e] + d : d;
        }
}

/* y[h,w] = b + residual[h,w] + sum over taps i, j of w[i,j] x[h+i-k/2, w+j-k/2]:
 *   dx: the same convolution of dy with w turned by half a turn, dw[i,j] += sum dy[h,w] x[h+i-k/2, w+j-k/2],
 *   db += sum dy, dresidual += dy */
static void depthwise_backward(mhla_tape *t, void *p) {
    depthwise *op = p;
    const int weight = op->own ? op->own->needs_grad : mhla_param_trains(op->w) || mhla_param_trains(op->b);
    const int run = carve(t, op, weight);
    op->dx = (mhla_slot){0};
    op->dw = op->own ? mhla_tape_grad(t, op->own) : mhla_tape_param_grad(t, op->w);
    op->db = mhla_tape_param_grad(t, op->b);
    if (weight) mhla_tape_run(t, op->parts * op->blocks, depthwise_weight_task, op);
    if (weight && op->own) {
        mhla_tape_run(t, op->parts, own_grad_task, op);
    } else if (weight) {
        mhla_tape_run(t, op->blocks, add_parts_task, op);
        mhla_tape_run(t, (op->filters + CHANNELS - 1) / CHANNELS, filters_task, op);
    }
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) {
        if (run) prepare(t, op);
        mhla_tape_run(t, op->x->shape[0] * op->F * op->strips * op->blocks, depthwise_task, op);
    }
    mhla_tape_pass_grad(t, op->residual, op->y);
}

/* The rest of all: `made` has w and b, or own; k, deep and filters; F, H and W. */
static mhla_tensor *convolve(mhla_tape *t, const depthwise *made, mhla_tensor *residual, mhla_tensor *x) {
    const mhla_param *w = made->w, *b = made->b;
    const int64_t F = made->F, H = made->H, W = made->W;
    const char *name = w ? w->name : "a kernel of each sample";
    char text[96];
    MHLA_NEED(t,
              x->dims == 3 && x->cols % made->filters == 0 && F > 0 && H > 0 && W > 0 &&
                  (x->shape[1] == F * H * W || (F == 1 && x->shape[1] == H * W + 1)),
              "%s convolves a grid of %lld x %lld x %lld of %lld channels: its input is %s", name, (long long)F,
              (long long)H, (long long)W, (long long)made->filters, mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, b == NULL || b->count == made->filters, "%s has %lld elements: expected %lld", b->name,
              (long long)b->count, (long long)made->filters);
    MHLA_NEED(t, residual == NULL || (residual->rows == x->rows && residual->cols == x->cols),
              "the residual of %s has another shape than its input", name);
    depthwise *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    const mhla_record r = op->r;
    *op = *made;
    op->r = r;
    op->kernels = t->kernels;
    op->x = x;
    op->residual = residual;
    op->y = y;
    op->C = x->cols;
    op->T = x->shape[1];
    op->alone = op->T - F * H * W;
    lay_out(op, mhla_context_threads(t->context));
    if (carve(t, op, 0)) prepare(t, op);
    mhla_tape_run(t, x->shape[0] * F * op->strips * op->blocks, depthwise_task, op);
    return mhla_tape_record(t, &op->r, depthwise_backward, y,
                            x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b) ||
                                (op->own != NULL && op->own->needs_grad) || (residual != NULL && residual->needs_grad));
}

mhla_tensor *mhla_nn_depthwise(mhla_tape *t, mhla_param *w, mhla_param *b, int64_t H, int64_t W, mhla_tensor *residual,
                               mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    MHLA_NEED(t,
              w->dims == 4 && w->shape[1] == 1 && w->shape[2] == w->shape[3] && w->shape[2] % 2 == 1 &&
                  w->shape[2] <= MHLA_WIDEST_DEPTHWISE,
              "%s is %s: expected [C, 1, k, k], k odd", w->name, mhla_shape_text(text, w->shape, w->dims));
    const depthwise op = {
        .w = w, .b = b, .filters = w->shape[0], .k = (int)w->shape[2], .deep = 1, .F = 1, .H = H, .W = W};
    return convolve(t, &op, residual, x);
}

mhla_tensor *mhla_nn_depthwise_clip(mhla_tape *t, mhla_param *w, mhla_param *b, const int64_t grid[3],
                                    mhla_tensor *residual, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    MHLA_NEED(t,
              w->dims == 5 && w->shape[1] == 1 && w->shape[2] == w->shape[3] && w->shape[3] == w->shape[4] &&
                  w->shape[2] % 2 == 1 && w->shape[2] <= MHLA_WIDEST_DEPTHWISE,
              "%s is %s: expected [C, 1, k, k, k], k odd", w->name, mhla_shape_text(text, w->shape, w->dims));
    const int k = (int)w->shape[2];
    const depthwise op = {
        .w = w, .b = b, .filters = w->shape[0], .k = k, .deep = k, .F = grid[0], .H = grid[1], .W = grid[2]};
    return convolve(t, &op, residual, x);
}

mhla_tensor *mhla_nn_depthwise_own(mhla_tape *t, mhla_tensor *w, int k, int64_t H, int64_t W, mhla_tensor *residual,
                                   mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    MHLA_NEED(t, k > 0 && k % 2 == 1 && k <= MHLA_WIDEST_DEPTHWISE, "kernels of %d x %d: k must be odd", k, k);
    MHLA_NEED(t, w->rows == x->shape[0] && w->cols == x->cols * k * k, "kernels are %s: expected [%lld, %lld]",
              mhla_shape_text(text, w->shape, w->dims), (long long)x->shape[0], (long long)(x->cols * k * k));
    const depthwise op = {.own = w, .filters = x->cols, .k = k, .deep = 1, .F = 1, .H = H, .W = W};
    return convolve(t, &op, residual, x);
}

/* ---- Any other convolution ---- */

typedef struct fields {
    mhla_record r;
    mhla_tensor *x, *y;
    mhla_conv c;
    int64_t kh, kw, Ho, Wo;
    mhla_slot dx;
} fields;

/* One sample: y[output][i][ky][kx] = x[its field], 0 outside; or dx += the same places of dy. */
static void fields_task(void *arg, int64_t b, int worker) {
    const fields *op = arg;
    (void)worker;
    const int64_t H = op->c.H, W = op->c.W, I = op->x->cols, back = op->dx.wanted;
    float *y = (back ? mhla_tape_arrived(op->y) : op->y->data) + b * op->Ho * op->Wo * op->y->ld;
    if (back && !op->dx.add)
        for (int64_t r = 0; r < H * W; r++)
            memset(op->dx.data + (b * H * W + r) * op->dx.ld, 0, sizeof(float) * (size_t)I);
    for (int64_t o = 0; o < op->Ho * op->Wo; o++, y += op->y->ld)
        for (int64_t ky = 0; ky < op->kh; ky++)
            for (int64_t kx = 0; kx < op->kw; kx++) {
                const int64_t h = o / op->Wo * op->c.stride + ky - op->c.pad;
                const int64_t w = o % op->Wo * op->c.stride + kx - op->c.pad;
                const int inside = h >= 0 && h < H && w >= 0 && w < W;
                const int64_t row = (b * H + h) * W + w, tap = ky * op->kw + kx, step = op->kh * op->kw;
                if (back && inside)
                    for (int64_t i = 0; i < I; i++) op->dx.data[row * op->dx.ld + i] += y[i * step + tap];
                else if (!back)
                    for (int64_t i = 0; i < I; i++)
                        y[i * step + tap] = inside ? op->x->data[row * op->x->ld + i] : 0.0f;
            }
}

static void fields_backward(mhla_tape *t, void *p) {
    fields *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->shape[0], fields_task, op);
}

/* ---- Groups: y[r,o] = b[o] + w[o] . the columns of x[r] that belong to o's group ---- */

typedef struct grouped {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *y; /* [.., groups*n], [.., O] */
    mhla_param *w, *b;  /* [O,n], [O] or NULL */
    int64_t n, outs;    /* columns and outputs of a group */
    mhla_slot dx, dw;
} grouped;

static void grouped_task(void *arg, int64_t r, int worker) {
    const grouped *op = arg;
    (void)worker;
    float *y = op->y->data + r * op->y->ld;
    const float *x = op->x->data + r * op->x->ld;
    for (int64_t o = 0; o < op->y->cols; o += op->outs, x += op->n) /* the same x for all outputs of a group */
        op->kernels->row_dots(y + o, x, 0, op->w->data + o * op->n, op->n, (int)op->outs, (int)op->n);
    if (op->b) op->kernels->axpy(y, 1.0f, op->b->data, op->y->cols);
}

/* dx[r] += dy[r,o] w[o] */
static void grouped_input_task(void *arg, int64_t r, int worker) {
    const grouped *op = arg;
    (void)worker;
    if (!op->dx.add) memset(op->dx.data + r * op->dx.ld, 0, sizeof(float) * (size_t)op->x->cols);
    for (int64_t o = 0; o < op->y->cols; o++)
        op->kernels->axpy(op->dx.data + r * op->dx.ld + o / op->outs * op->n,
                          mhla_tape_arrived(op->y)[r * op->y->ld + o], op->w->data + o * op->n, op->n);
}

/* dw[o] += dy[r,o] x[r]; one output, all rows in their order */
static void grouped_weight_task(void *arg, int64_t o, int worker) {
    const grouped *op = arg;
    (void)worker;
    float *dw = op->dw.data + o * op->n;
    if (!op->dw.add) memset(dw, 0, sizeof(float) * (size_t)op->n);
    for (int64_t r = 0; r < op->y->rows; r++)
        op->kernels->axpy(dw, mhla_tape_arrived(op->y)[r * op->y->ld + o],
                          op->x->data + r * op->x->ld + o / op->outs * op->n, op->n);
}

static void grouped_backward(mhla_tape *t, void *p) {
    grouped *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->rows, grouped_input_task, op);
    op->dw = mhla_tape_param_grad(t, op->w);
    if (op->dw.wanted) mhla_tape_run(t, op->y->cols, grouped_weight_task, op);
    const mhla_slot db = mhla_tape_param_grad(t, op->b);
    if (!db.wanted || mhla_tape_dry(t)) return;
    if (!db.add) memset(db.data, 0, sizeof(float) * (size_t)op->b->count);
    t->kernels->column_sums(db.data, mhla_tape_arrived(op->y), op->y->ld, NULL, 0, op->y->rows, op->y->cols);
}

mhla_tensor *mhla_nn_grouped_linear(mhla_tape *t, mhla_param *w, mhla_param *b, int groups, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    const int64_t O = w->shape[0];
    char text[96];
    MHLA_NEED(t, groups > 0 && O % groups == 0 && x->cols == w->count / O * groups,
              "%s is %s: it takes rows of %lld in %d groups, not of %lld", w->name,
              mhla_shape_text(text, w->shape, w->dims), (long long)(w->count / O * groups), groups, (long long)x->cols);
    MHLA_NEED(t, b == NULL || b->count == O, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)O);
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = O;
    grouped *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (grouped){.kernels = t->kernels, .x = x, .y = y, .w = w, .b = b, .n = w->count / O, .outs = O / groups};
    mhla_tape_run(t, x->rows, grouped_task, op);
    return mhla_tape_record(t, &op->r, grouped_backward, y,
                            x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b));
}

mhla_tensor *mhla_nn_conv(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    if (c.stride == 0) c.stride = 1;
    if (c.groups == 0) c.groups = 1;
    if (c.groups == 1) return mhla_nn_conv2d(t, w, b, c, NULL, x);
    MHLA_NEED(t, c.after == 0, "%s: padding that is not the same on all sides, and %d groups", w->name, c.groups);
    MHLA_NEED(t, w->dims == 4, "%s is %s: expected [O, I, kh, kw]", w->name, mhla_shape_text(text, w->shape, w->dims));
    const int64_t O = w->shape[0], kh = w->shape[2], kw = w->shape[3];
    MHLA_NEED(t,
              c.stride > 0 && c.pad >= 0 && c.groups > 0 && O % c.groups == 0 && c.H + 2 * c.pad >= kh &&
                  c.W + 2 * c.pad >= kw && c.H > 0 && c.W > 0,
              "%s: stride %d, padding %d, %d groups on a grid of %lld x %lld", w->name, c.stride, c.pad, c.groups,
              (long long)c.H, (long long)c.W);
    MHLA_NEED(t, x->dims == 3 && x->shape[1] == c.H * c.W && x->cols == w->shape[1] * c.groups,
              "%s convolves a grid of %lld x %lld of %lld channels: its input is %s", w->name, (long long)c.H,
              (long long)c.W, (long long)(w->shape[1] * c.groups), mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, b == NULL || b->count == O, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)O);
    if (c.groups == x->cols && O == x->cols && c.stride == 1 && kh == kw && kh % 2 == 1 && c.pad == kh / 2 &&
        kh <= MHLA_WIDEST_DEPTHWISE)
        return mhla_nn_depthwise(t, w, b, c.H, c.W, NULL, x);
    const int64_t Ho = (c.H + 2 * c.pad - kh) / c.stride + 1, Wo = (c.W + 2 * c.pad - kw) / c.stride + 1;
    fields *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], Ho * Wo, x->cols * kh * kw)) : NULL;
    if (y == NULL) return NULL;
    *op = (fields){.x = x, .y = y, .c = c, .kh = kh, .kw = kw, .Ho = Ho, .Wo = Wo};
    mhla_tape_run(t, x->shape[0], fields_task, op);
    y = mhla_tape_record(t, &op->r, fields_backward, y, x->needs_grad);
    return mhla_nn_grouped_linear(t, w, b, c.groups, y);
}

/* ---- Images with zeros around them ---- */

typedef struct padding {
    mhla_record r;
    mhla_tensor *x, *y;
    int top, left;
    mhla_slot dx;
} padding;

enum { LINES = 16 }; /* of a task */
static int64_t padding_bands(const padding *op) { return (op->y->shape[2] + LINES - 1) / LINES; }

/* Some lines of one channel of one image, borders among them. */
static void padding_task(void *arg, int64_t task, int worker) {
    const padding *op = arg;
    (void)worker;
    const int64_t H = op->x->shape[2], W = op->x->shape[3], Hy = op->y->shape[2], Wy = op->y->shape[3];
    const int64_t i = task / padding_bands(op), first = task % padding_bands(op) * LINES;
    for (int64_t at = first; at < first + LINES && at < Hy; at++) {
        const int64_t h = at - op->top;
        float *y = (op->dx.wanted ? mhla_tape_arrived(op->y) : op->y->data) + (i * Hy + at) * Wy;
        if (!op->dx.wanted) memset(y, 0, sizeof(float) * (size_t)Wy);
        if (h < 0 || h >= H) continue;
        if (!op->dx.wanted)
            memcpy(y + op->left, op->x->data + (i * H + h) * W, sizeof(float) * (size_t)W);
        else
            for (int64_t w = 0; w < W; w++) {
                float *d = op->dx.data + (i * H + h) * W + w;
                *d = op->dx.add ? *d + y[op->left + w] : y[op->left + w];
            }
    }
}

static void padding_backward(mhla_tape *t, void *p) {
    padding *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->shape[0] * op->x->shape[1] * padding_bands(op), padding_task, op);
}

mhla_tensor *mhla_nn_pad_image(mhla_tape *t, int top, int bottom, int left, int right, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, x->dims == 4 && x->ld == x->cols, "images are %s: expected [B, C, H, W]",
              mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, top >= 0 && bottom >= 0 && left >= 0 && right >= 0, "negative padding");
    if (top + bottom + left + right == 0) return x;
    padding *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], x->shape[1], x->shape[2] + top + bottom,
                                                         x->shape[3] + left + right))
                        : NULL;
    if (y == NULL) return NULL;
    *op = (padding){.x = x, .y = y, .top = top, .left = left};
    mhla_tape_run(t, x->shape[0] * x->shape[1] * padding_bands(op), padding_task, op);
    return mhla_tape_record(t, &op->r, padding_backward, y, x->needs_grad);
}
