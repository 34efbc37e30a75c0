/* Channels to pixels and back, on token grids: what stands between a grid and one of fewer, larger pixels. */
#include "nn/op.h"

/* fine [B, fH*fW, C] and coarse [B, H*W, n], r = f*f*C / n: channel c, pixel (f i + a, f j + b) of the fine grid belongs to channel
 * (f*f c + f a + b) / r, pixel (i, j) of the coarse one. */
typedef struct shuffle {
    mhla_record r;
    mhla_tensor *x, *y;
    int64_t W; /* of the coarse grid */
    int f, up; /* up: from coarse to fine, a copy; else to the coarse one's mean of r numbers */
    mhla_slot dx;
} shuffle;

/* A row of pixels of the coarse grid. to_fine: fine (=, +=) factor * coarse; else coarse (=, +=) factor * the sum of fine. */
static void rows(const shuffle *op, int64_t row, int to_fine, float *to, int64_t ldto, const float *from,
                 int64_t ldfrom, float factor, int add) {
    const mhla_tensor *coarse = op->up ? op->x : op->y, *fine = op->up ? op->y : op->x;
    const int64_t f = op->f, C = fine->cols, r = f * f * C / coarse->cols, W = op->W;
    const int64_t step = f * f % r == 0
                             ? f * f / r
                             : 0; /* channels of the coarse grid from one of the fine one to the next; 0: a fraction */
    for (int64_t j = 0; j < W; j++) {
        const int64_t at = row * W + j, first = (row * f * W + j) * f; /* pixel of the coarse, the fine grid */
        if (!to_fine && !add)
            for (int64_t n = 0; n < coarse->cols; n++) to[at * ldto + n] = 0.0f;
        for (int64_t k = 0; k < f * f; k++) {
            const int64_t pixel = first + k / f * f * W + k % f;
            const float *x = from + (to_fine ? at : pixel) * ldfrom;
            float *y = to + (to_fine ? pixel : at) * ldto;
            if (to_fine && !add && step == 1)
                for (int64_t c = 0; c < C; c++) y[c] = factor * x[c];
            else if (to_fine)
                for (int64_t c = 0; c < C; c++)
                    y[c] = (add ? y[c] : 0.0f) + factor * x[step ? c * step + k / r : (f * f * c + k) / r];
            else
                for (int64_t c = 0; c < C; c++) y[step ? c * step + k / r : (f * f * c + k) / r] += factor * x[c];
        }
    }
}

static float share(const shuffle *op) {
    return op->up ? 1.0f : (float)op->y->cols / (float)((int64_t)op->f * op->f * op->x->cols);
}

static void forward_task(void *arg, int64_t row, int worker) {
    const shuffle *op = arg;
    (void)worker;
    rows(op, row, op->up, op->y->data, op->y->ld, op->x->data, op->x->ld, share(op), 0);
}

/* y = x in other places: dx is the sum of what each number became; a mean's is the other way round */
static void backward_task(void *arg, int64_t row, int worker) {
    const shuffle *op = arg;
    (void)worker;
    rows(op, row, !op->up, op->dx.data, op->dx.ld, mhla_tape_arrived(op->y), op->y->ld, share(op), op->dx.add);
}

static int64_t coarse_rows(const shuffle *op) { return (op->up ? op->x : op->y)->rows / op->W; }

static void shuffle_backward(mhla_tape *t, void *p) {
    shuffle *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, coarse_rows(op), backward_task, op);
}

static mhla_tensor *make(mhla_tape *t, int up, int f, int64_t H, int64_t W, int64_t channels, mhla_tensor *x) {
    char text[96];
    const int64_t square = (int64_t)f * f, from = up ? H * W : square * H * W, to = up ? square * H * W : H * W;
    MHLA_NEED(t, f >= 1 && H > 0 && W > 0 && x->dims == 3 && x->shape[1] == from,
              "a grid of %lld x %lld, %d pixels a side each, from tokens of shape %s", (long long)H, (long long)W, f,
              mhla_shape_text(text, x->shape, x->dims));
    const int64_t fine = up ? channels : x->cols, coarse = up ? x->cols : channels;
    MHLA_NEED(t, channels > 0 && square * fine % coarse == 0, "%lld channels from %lld, %d pixels a side",
              (long long)channels, (long long)x->cols, f);
    shuffle *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], to, channels)) : NULL;
    if (y == NULL) return NULL;
    *op = (shuffle){.x = x, .y = y, .W = W, .f = f, .up = up};
    mhla_tape_run(t, coarse_rows(op), forward_task, op);
    return mhla_tape_record(t, &op->r, shuffle_backward, y, x->needs_grad);
}

mhla_tensor *mhla_nn_pixel_shuffle(mhla_tape *t, int f, int64_t H, int64_t W, int64_t channels, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, 1, f, H, W, channels, x);
}

mhla_tensor *mhla_nn_pixel_unshuffle(mhla_tape *t, int f, int64_t H, int64_t W, int64_t channels, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, 0, f, H, W, channels, x);
}
