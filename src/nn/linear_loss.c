/* Cross entropy behind the output matrix of a language model: logits [rows,N] would be the largest thing in memory, so rows
 * go through in pieces, forward and backward while a piece is there. The cut depends on N alone and sums are in the
 * order of rows, so that threads do not show. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

enum {
    PIECE = 1 << 24, /* logits of a piece, about: 64 MiB */
    LEAST = 64,      /* rows of it, */
    MOST = 2048,
    LANES = 16
};

typedef struct output_loss {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *y; /* [rows,D], the loss */
    mhla_param *w;      /* [N,D] */
    const int32_t *labels;
    float scale;
    float *dx; /* [rows,D], NULL where it is not wanted */
    /* of the piece at work */
    float *logits;  /* [piece,N]; becomes their gradient */
    double *losses; /* [piece] */
    float cap;      /* soft cap of the logits, 0: none; */
    float *slopes;  /* and [threads,N] slopes of a row */
    int64_t first;
    int grad;
    float factor; /* scale / rows that count */
} output_loss;

static int64_t piece_rows(int64_t rows, int64_t N) {
    int64_t n = PIECE / N / LEAST * LEAST;
    n = n < LEAST ? LEAST : n > MOST ? MOST : n;
    return n < rows ? n : rows;
}

static float row_most(const float *x, int64_t n) {
    float lanes[LANES], most = x[0];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) lanes[j] = most;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int j = 0; j < LANES; j++) most = lanes[j] > most ? lanes[j] : most;
    return most;
}

static double row_sum(const float *x, int64_t n) {
    double lanes[LANES] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)x[i + j];
    for (; i < n; i++) sum += (double)x[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

/* loss_i = log sum exp x - x_label, loss = mean over the rows that count:  dx_j = (softmax(x)_j - [j = label]) / rows, times the slope
 * of a soft cap.
 * A NaN among the logits makes the sum NaN, and so the loss. */
static void row_task(void *arg, int64_t i, int worker) {
    const output_loss *op = arg;
    const int64_t N = op->w->shape[0];
    const int32_t label = op->labels[op->first + i];
    float *x = op->logits + i * N;
    op->losses[i] = 0.0;
    if (label < 0) {
        if (op->grad) memset(x, 0, sizeof(float) * (size_t)N);
        return;
    }
    float *slope = op->slopes + worker * N;
    if (op->cap > 0.0f) op->kernels->softcap(x, slope, x, N, op->cap);
    const float most = row_most(x, N), own = x[label];
    for (int64_t j = 0; j < N; j++) x[j] -= most;
    op->kernels->vexp(x, x, N);
    const double sum = row_sum(x, N);
    op->losses[i] = log(sum) + (double)most - (double)own;
    if (!op->grad) return;
    const float factor = (float)((double)op->factor / sum);
    for (int64_t j = 0; j < N; j++) x[j] *= factor;
    x[label] -= op->factor;
    for (int64_t j = 0; op->cap > 0.0f && j < N; j++) x[j] *= slope[j];
}

/* The gradients were made on the way in; what is left is to hand on that of x. */
static void output_loss_backward(mhla_tape *t, void *arg) {
    output_loss *op = arg;
    if (!mhla_tape_dry(t) && mhla_tape_arrived(op->y)[0] != op->scale) {
        mhla_tape_fail(t, MHLA_EINVAL, "backward with %g, but the loss of %s was made for %g",
                       (double)mhla_tape_arrived(op->y)[0], op->w->name, (double)op->scale);
        return;
    }
    const mhla_slot dx = mhla_tape_grad(t, op->x);
    if (!dx.wanted) return;
    mhla_tape_blend(t, &(mhla_blend){.n = op->x->rows,
                                     .cols = op->x->cols,
                                     .y = dx.data,
                                     .ldy = dx.ld,
                                     .x = op->dx,
                                     .ldx = op->x->cols,
                                     .alpha = 1.0f,
                                     .add = dx.add});
}

/* Rows first .. first+n-1: logits, losses, and what is wanted of gradients. */
static mhla_status piece(output_loss *op, const mhla_tape *t, mhla_linear_desc d, int64_t n, const mhla_weight *packed,
                         mhla_slot *dw) {
    const int64_t N = op->w->shape[0], D = op->x->cols;
    const float *x = op->x->data + op->first * op->x->ld;
    d.rows = n;
    MHLA_TRY(mhla_linear_forward(&d, op->logits, x, packed));
    mhla_parallel(t->context, n, row_task, op);
    if (dw->wanted) {
        d.accumulate = dw->add;
        MHLA_TRY(mhla_linear_backward_weight(&d, dw->data, NULL, op->logits, x, N, D));
        dw->add = 1;
    }
    if (op->dx) {
        d.accumulate = 0;
        d.ldx = D;
        MHLA_TRY(mhla_linear_backward_input(&d, op->dx + op->first * D, op->logits, packed));
    }
    return MHLA_OK;
}

mhla_tensor *mhla_nn_linear_cross_entropy(mhla_tape *t, mhla_param *w, mhla_tensor *x, const int32_t *labels,
                                          float scale, float *losses) {
    return mhla_nn_capped_cross_entropy(t, w, 0.0f, x, labels, scale, losses);
}

mhla_tensor *mhla_nn_capped_cross_entropy(mhla_tape *t, mhla_param *w, float cap, mhla_tensor *x, const int32_t *labels,
                                          float scale, float *losses) {
    MHLA_GIVEN(t, w);
    MHLA_GIVEN(t, x);
    const int dry = mhla_tape_dry(t);
    char text[96];
    const int64_t N = w->shape[0], D = x->cols, rows = x->rows;
    MHLA_NEED(t, w->count == N * D, "%s is %s: its input has rows of %lld", w->name,
              mhla_shape_text(text, w->shape, w->dims), (long long)D);
    MHLA_NEED(t, labels != NULL || dry, "labels is NULL");
    int64_t counted = rows;
    for (int64_t i = 0; i < rows && !dry; i++) {
        MHLA_NEED(t, labels[i] < N, "labels[%lld] is %d: %s has %lld rows", (long long)i, labels[i], w->name,
                  (long long)N);
        counted -= labels[i] < 0;
    }
    const int needs = x->needs_grad || mhla_param_trains(w);
    const int64_t most = piece_rows(rows, N);
    output_loss *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(1)) : NULL;
    if (y == NULL) return NULL;
    *op = (output_loss){.kernels = t->kernels, .x = x, .y = y, .w = w, .labels = labels, .scale = scale, .cap = cap};
    op->grad = mhla_tape_keeps(t, needs);
    op->factor = scale / (float)(counted > 0 ? counted : 1);
    if (op->grad && x->needs_grad) op->dx = mhla_tape_floats(t, rows * D);
    mhla_slot dw = {0};
    if (op->grad) dw = mhla_tape_param_grad(t, w);
    const mhla_weight *packed = mhla_param_pack(t, w);
    const mhla_dtype dtype = w->packs_as;
    mhla_linear_desc d = {.size = sizeof d,
                          .context = t->context,
                          .rows = most,
                          .ldx = x->ld > D ? x->ld : D,
                          .ldy = N,
                          .precision = t->precision};
    size_t workspace = mhla_linear_workspace(&d, N, D, dtype);
    d.rows = rows % most ? rows % most : most; /* the last piece is cut in another way, which may take more */
    const size_t last = mhla_linear_workspace(&d, N, D, dtype);
    if (last > workspace) workspace = last;
    mhla_carver count = {0};
    mhla_carve_floats(&count, most * N);
    mhla_carve(&count, sizeof(double) * (size_t)most);
    mhla_carve(&count, workspace);
    const int64_t slopes = cap > 0.0f ? mhla_context_threads(t->context) * N : 0;
    mhla_carve_floats(&count, slopes);
    mhla_carver c = {mhla_tape_scratch(t, count.used), 0};
    if (t->status != MHLA_OK) return NULL;
    op->logits = mhla_carve_floats(&c, most * N);
    op->losses = mhla_carve(&c, sizeof(double) * (size_t)most);
    d.workspace = mhla_carve(&c, workspace);
    op->slopes = mhla_carve_floats(&c, slopes);
    d.ldx = x->ld;
    double sum = 0.0;
    for (; op->first < rows && !dry && packed; op->first += most) {
        const int64_t n = rows - op->first < most ? rows - op->first : most;
        const mhla_status status = piece(op, t, d, n, packed, &dw);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s: %s", w->name, mhla_message());
        for (int64_t i = 0; i < n; i++) {
            sum += op->losses[i];
            if (losses) losses[op->first + i] = (float)op->losses[i];
        }
    }
    if (!dry) y->data[0] = (float)(sum / (double)(counted > 0 ? counted : 1));
    return mhla_tape_record(t, &op->r, output_loss_backward, y, needs);
}
