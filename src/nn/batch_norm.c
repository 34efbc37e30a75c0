/* Batch norm of rows x [...,C], channel by channel, with an activation behind it.
 *
 * Rows are cut into parts and parts into stretches that stay in a cache. Means and squares of a stretch are those of numbers
 * that its own mean was taken from; stretches and parts are joined in double, in their order (Chan's update), so that neither
 * a large mean nor many rows cost digits and the number of threads does not show. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

enum { STRETCH = 8192, LEAST_ROWS = 64 }; /* numbers of a stretch, about */

typedef struct batch_norm {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_batch_norm n;
    mhla_activation activation;
    int batch; /* statistics are the batch's */
    mhla_tensor *x, *y;
    int64_t parts, rows; /* rows of a stretch, at most */
    float *less, *rstd;  /* [C] -mean, 1 / sqrt(var + eps) */
    float *scale;        /* [C] w rstd */
    /* scratch */
    float *tiles;     /* [threads][2][rows][C] */
    float *some;      /* [threads][3][C] sums of a stretch */
    double *sums;     /* [parts][2][C]: mean and squares of a part; backward: sums of d and of d xhat */
    float *k1, *back; /* [C] of dx = scale d + k1 (x - mean) + back */
    mhla_slot dx;
} batch_norm;

static int64_t cols(const batch_norm *op) { return op->x->cols; }

/* The workspace, cut into its pieces; 0 without memory and in a dry run. */
static int carve(mhla_tape *t, batch_norm *op) {
    const int64_t C = cols(op), threads = mhla_context_threads(t->context);
    mhla_carver c = {0};
    for (int pass = 0; pass < 2; pass++) { /* counts, then cuts */
        c.used = 0;
        op->sums = (double *)(void *)mhla_carve_floats(&c, op->parts * 4 * C);
        op->tiles = mhla_carve_floats(&c, threads * 2 * op->rows * C);
        op->some = mhla_carve_floats(&c, threads * 3 * C);
        op->k1 = mhla_carve_floats(&c, C);
        op->back = mhla_carve_floats(&c, C);
        if (pass == 0) c.base = mhla_tape_scratch(t, c.used);
        if (c.base == NULL) return 0;
    }
    return !mhla_tape_dry(t);
}

/* Rows of a part, and the stretch of them that begins at row `at`. */
static void part_rows(const batch_norm *op, int64_t part, int64_t *first, int64_t *last) {
    *first = part * op->x->rows / op->parts;
    *last = (part + 1) * op->x->rows / op->parts;
}
static int64_t stretch(const batch_norm *op, int64_t at, int64_t last) {
    return last - at < op->rows ? last - at : op->rows;
}

/* Rows to [n][C] = x + add, one number for each column. */
static void shifted(const batch_norm *op, float *to, int64_t at, int64_t n, const float *add) {
    op->kernels->blend(&(mhla_blend){.n = n,
                                     .cols = cols(op),
                                     .y = to,
                                     .ldy = cols(op),
                                     .x = op->x->data + at * op->x->ld,
                                     .ldx = op->x->ld,
                                     .r = add,
                                     .alpha = 1.0f});
}

/* y = x scale + bias, column by column. */
static void scaled(const batch_norm *op, float *y, int64_t ldy, const float *x, int64_t n, const float *bias) {
    op->kernels->blend(&(mhla_blend){.n = n,
                                     .cols = cols(op),
                                     .y = y,
                                     .ldy = ldy,
                                     .x = x,
                                     .ldx = cols(op),
                                     .z = op->scale,
                                     .r = bias,
                                     .alpha = 1.0f});
}

/* ---- Forward ---- */

/* Mean and sum of squared distances of a part. */
static void moments_task(void *arg, int64_t part, int worker) {
    const batch_norm *op = arg;
    const int64_t C = cols(op);
    float *tile = op->tiles + (int64_t)worker * 2 * op->rows * C, *some = op->some + (int64_t)worker * 3 * C;
    double *mean = op->sums + part * 2 * C, *squares = mean + C;
    int64_t first, last;
    part_rows(op, part, &first, &last);
    memset(mean, 0, sizeof(double) * 2 * (size_t)C);
    for (int64_t at = first, n; at < last; at += n) {
        n = stretch(op, at, last);
        memset(some, 0, sizeof(float) * 3 * (size_t)C);
        op->kernels->column_sums(some, op->x->data + at * op->x->ld, op->x->ld, NULL, 0, n, C);
        for (int64_t c = 0; c < C; c++) some[c] = -some[c] / (float)n;
        shifted(op, tile, at, n, some);
        op->kernels->column_sums(some + C, tile, C, tile, C, n, C);
        op->kernels->column_sums(some + 2 * C, tile, C, NULL, 0, n, C); /* what rounding has left of it */
        const double before = (double)(at - first), rows = (double)n, all = before + rows;
        for (int64_t c = 0; c < C; c++) {
            const double rest = (double)some[2 * C + c] / rows, d = rest - (double)some[c] - mean[c];
            mean[c] += d * rows / all;
            squares[c] += (double)some[C + c] - rest * rest * rows + d * d * before * rows / all;
        }
    }
}

/* Statistics of all rows into less and rstd; the running ones follow unless the rows were seen before. */
static void settle(mhla_tape *t, batch_norm *op) {
    const int64_t C = cols(op), rows = op->x->rows;
    double *mean = op->sums, *squares = mean + C;
    for (int64_t part = 1, first, last; part < op->parts; part++) {
        part_rows(op, part, &first, &last);
        const double before = (double)first, n = (double)(last - first);
        const double *m = op->sums + part * 2 * C;
        for (int64_t c = 0; c < C; c++) {
            const double d = m[c] - mean[c];
            mean[c] += d * n / (before + n);
            squares[c] += m[C + c] + d * d * before * n / (before + n);
        }
    }
    const int again = t->recompute > 0; /* a block that is computed a second time, for its backward */
    const double momentum = (double)op->n.momentum;
    for (int64_t c = 0; c < C; c++) {
        op->less[c] = (float)-mean[c];
        op->rstd[c] = (float)(1.0 / sqrt(squares[c] / (double)rows + (double)op->n.eps));
        if (again) continue;
        float *m = op->n.mean->data + c, *v = op->n.var->data + c;
        *m = (float)((1.0 - momentum) * (double)*m + momentum * mean[c]);
        *v = (float)((1.0 - momentum) * (double)*v + momentum * squares[c] / (double)(rows - 1));
    }
    if (again) return;
    op->n.batches->data[0] += 1.0f;
    mhla_param_touch(op->n.mean);
    mhla_param_touch(op->n.var);
    mhla_param_touch(op->n.batches);
}

static void normalise_task(void *arg, int64_t part, int worker) {
    const batch_norm *op = arg;
    const int64_t C = cols(op);
    float *tile = op->tiles + (int64_t)worker * 2 * op->rows * C;
    int64_t first, last;
    part_rows(op, part, &first, &last);
    for (int64_t at = first, n; at < last; at += n) {
        float *y = op->y->data + at * C;
        n = stretch(op, at, last);
        shifted(op, tile, at, n, op->less);
        scaled(op, y, C, tile, n, op->n.b->data);
        if (op->activation != MHLA_ACT_NONE)
            op->kernels->epilogue(&(mhla_epilogue){
                .src = y, .ld = C, .m = (int)n, .n = (int)C, .activation = op->activation, .y = y, .ldy = C});
    }
}

/* ---- Backward: y = activation(u), u = xhat w + b, xhat = (x - mean) rstd, d = dy activation'(u)
 *   dw += sum d xhat, db += sum d, dx += w rstd (d - mean d - xhat mean(d xhat)); with running statistics dx += w rstd d ---- */

/* dy becomes d; sums of d and of d (x - mean) of a part. */
static void sums_task(void *arg, int64_t part, int worker) {
    const batch_norm *op = arg;
    const int64_t C = cols(op);
    float *tile = op->tiles + (int64_t)worker * 2 * op->rows * C, *u = tile + op->rows * C;
    float *some = op->some + (int64_t)worker * 3 * C;
    double *sums = op->sums + part * 2 * C;
    int64_t first, last;
    part_rows(op, part, &first, &last);
    memset(sums, 0, sizeof(double) * 2 * (size_t)C);
    for (int64_t at = first, n; at < last; at += n) {
        float *d = mhla_tape_arrived(op->y) + at * C;
        n = stretch(op, at, last);
        shifted(op, tile, at, n, op->less);
        if (op->activation != MHLA_ACT_NONE) {
            scaled(op, u, C, tile, n, op->n.b->data);
            op->kernels->activation_backward(d, d, u, n * C, op->activation);
        }
        memset(some, 0, sizeof(float) * 2 * (size_t)C);
        op->kernels->column_sums(some, d, C, NULL, 0, n, C);
        op->kernels->column_sums(some + C, d, C, tile, C, n, C);
        for (int64_t c = 0; c < 2 * C; c++) sums[c] += (double)some[c];
    }
}

static void input_task(void *arg, int64_t part, int worker) {
    const batch_norm *op = arg;
    const int64_t C = cols(op);
    float *tile = op->tiles + (int64_t)worker * 2 * op->rows * C;
    int64_t first, last;
    part_rows(op, part, &first, &last);
    for (int64_t at = first, n; at < last; at += n) {
        float *dx = op->dx.data + at * op->dx.ld;
        n = stretch(op, at, last);
        mhla_blend b = {.n = n,
                        .cols = C,
                        .y = dx,
                        .ldy = op->dx.ld,
                        .x = mhla_tape_arrived(op->y) + at * C,
                        .ldx = C,
                        .z = op->scale,
                        .r = op->batch ? op->back : NULL,
                        .alpha = 1.0f,
                        .add = op->dx.add};
        op->kernels->blend(&b);
        if (!op->batch) continue;
        shifted(op, tile, at, n, op->less);
        b.x = tile;
        b.z = op->k1;
        b.r = NULL;
        b.add = 1;
        op->kernels->blend(&b);
    }
}

static void batch_norm_backward(mhla_tape *t, void *p) {
    batch_norm *op = p;
    const int64_t C = cols(op);
    const int run = carve(t, op);
    mhla_tape_run(t, op->parts, sums_task, op);
    const mhla_slot dw = mhla_tape_param_grad(t, op->n.w), db = mhla_tape_param_grad(t, op->n.b);
    const double rows = (double)op->x->rows;
    for (int64_t c = 0; run && c < C; c++) {
        double d = 0.0, dx = 0.0;
        for (int64_t part = 0; part < op->parts; part++) {
            d += op->sums[part * 2 * C + c];
            dx += op->sums[part * 2 * C + C + c];
        }
        const double rstd = (double)op->rstd[c], scale = (double)op->scale[c];
        if (dw.wanted) dw.data[c] = (dw.add ? dw.data[c] : 0.0f) + (float)(dx * rstd);
        if (db.wanted) db.data[c] = (db.add ? db.data[c] : 0.0f) + (float)d;
        op->back[c] = (float)(-scale * d / rows);
        op->k1[c] = (float)(-scale * rstd * rstd * dx / rows);
    }
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->parts, input_task, op);
}

mhla_tensor *mhla_nn_batch_norm(mhla_tape *t, const mhla_batch_norm *n, mhla_activation activation, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    const mhla_param *const all[] = {n->w, n->b, n->mean, n->var};
    for (int i = 0; i < 4; i++) {
        MHLA_NEED(t, all[i] && n->batches, "a batch norm without all of its parameters");
        MHLA_NEED(t, all[i]->count == x->cols, "%s has %lld elements: expected %lld", all[i]->name,
                  (long long)all[i]->count, (long long)x->cols);
    }
    const int batch = (t->mode & MHLA_TAPE_DROP) != 0;
    MHLA_NEED(
        t, !batch || x->rows > 1,
        "%s: one value per channel has no variance: a batch norm trains on more images at once, or on larger ones",
        n->w->name);
    batch_norm *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    op->kernels = t->kernels;
    op->n = *n;
    op->activation = activation;
    op->batch = batch;
    op->x = x;
    op->y = y;
    op->parts = mhla_row_parts(x->rows, LEAST_ROWS);
    op->rows = x->cols < STRETCH ? STRETCH / x->cols : 1;
    op->less = mhla_tape_floats(t, x->cols);
    op->rstd = mhla_tape_floats(t, x->cols);
    op->scale = mhla_tape_floats(t, x->cols);
    const int run = carve(t, op);
    if (batch) mhla_tape_run(t, op->parts, moments_task, op);
    if (run && batch) settle(t, op);
    for (int64_t c = 0; run && c < x->cols; c++) {
        if (!batch) {
            op->less[c] = -n->mean->data[c];
            op->rstd[c] = (float)(1.0 / sqrt((double)n->var->data[c] + (double)n->eps));
        }
        op->scale[c] = n->w->data[c] * op->rstd[c];
    }
    mhla_tape_run(t, op->parts, normalise_task, op);
    return mhla_tape_record(t, &op->r, batch_norm_backward, y,
                            x->needs_grad || mhla_param_trains(n->w) || mhla_param_trains(n->b));
}
