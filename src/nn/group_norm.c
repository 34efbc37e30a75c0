/* Group norm of tokens [B,T,C], and an activation behind it: statistics over all tokens of a sample and C/groups channels.
 *
 * Rows go in chunks that stay near. A chunk's mean and squares about that mean are taken per channel in float32; chunks
 * and parts are joined in double, in an order that depends on sizes alone. */
#include "nn/group_norm.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 8192, LEAST_ROWS = 64 }; /* floats of a chunk, about; rows of a part */

typedef struct moments {
    double mean, square; /* of the group; the sum of squares about it */
    int64_t count;
} moments;

static void join(moments *a, double mean, double square, int64_t count) {
    const double all = (double)(a->count + count), d = mean - a->mean;
    a->mean += d * (double)count / all;
    a->square += square + d * d * (double)a->count * (double)count / all;
    a->count += count;
}

typedef struct group_norm {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_group_stats s;
    mhla_activation activation;
    mhla_tensor *y;
    int64_t T, C, parts, chunk; /* of a sample's rows; rows of a chunk */
    moments *found;             /* [B][parts][groups] */
    float *rows;                /* per worker 3 * [chunk*C] + 2 * [C] */
    float *sums;                /* [B][parts][2][C]: of g, and of g (x - mean) */
    float *centre;              /* [B,C] -mean */
    mhla_slot dx;
} group_norm;

static void lay_out(group_norm *op, const mhla_group_stats *s) {
    op->s = *s;
    op->T = s->x->shape[1];
    op->C = s->x->cols;
    op->parts = mhla_row_parts(op->T, LEAST_ROWS);
    op->chunk = CHUNK / op->C > 0 ? CHUNK / op->C : 1;
}

static size_t worker_floats(const group_norm *op) { return (size_t)(3 * op->chunk * op->C + 2 * op->C); }

/* Cuts the scratch; 0 without memory. */
static int carve(mhla_tape *t, group_norm *op) {
    const int64_t B = op->s.x->shape[0], threads = mhla_context_threads(t->context);
    mhla_carver c = {0};
    for (int pass = 0; pass < 2; pass++) {
        c.used = 0;
        op->found = mhla_carve(&c, sizeof *op->found * (size_t)(B * op->parts * op->s.groups));
        op->rows = mhla_carve_floats(&c, (int64_t)worker_floats(op) * threads);
        op->sums = mhla_carve_floats(&c, B * op->parts * 2 * op->C);
        op->centre = mhla_carve_floats(&c, B * op->C);
        if (pass == 0) c.base = mhla_tape_scratch(t, c.used);
        if (c.base == NULL) return 0;
    }
    return !mhla_tape_dry(t);
}

/* A chunk of rows of one sample. */
typedef struct piece {
    int64_t b, part, row, n; /* row: of all samples' */
    const float *x;
    int64_t ld;
} piece;

static piece piece_of(const group_norm *op, int64_t task) {
    piece p = {.b = task / op->parts, .part = task % op->parts, .ld = op->s.x->ld};
    p.row = p.b * op->T + p.part * op->T / op->parts;
    return p;
}

/* The next chunk of the part; 0: there is none. */
static int next(const group_norm *op, piece *p) {
    p->row += p->n;
    const int64_t end = p->b * op->T + (p->part + 1) * op->T / op->parts;
    p->n = end - p->row < op->chunk ? end - p->row : op->chunk;
    p->x = op->s.x->data + p->row * p->ld;
    return p->n > 0;
}

/* to [n][C] = x scale + shift, one number of each for a channel; NULL: 1, 0 */
static void affine(const group_norm *op, float *to, const float *x, int64_t ldx, int64_t n, const float *scale,
                   const float *shift) {
    op->kernels->blend(&(mhla_blend){
        .n = n, .cols = op->C, .y = to, .ldy = op->C, .x = x, .ldx = ldx, .z = scale, .r = shift, .alpha = 1.0f});
}

static void moments_task(void *arg, int64_t task, int worker) {
    const group_norm *op = arg;
    const int64_t C = op->C, per = C / op->s.groups;
    float *rows = op->rows + (size_t)worker * worker_floats(op), *sum = rows + 3 * op->chunk * C, *square = sum + C;
    moments *found = op->found + task * op->s.groups;
    memset(found, 0, sizeof *found * (size_t)op->s.groups);
    piece p = piece_of(op, task);
    while (next(op, &p)) {
        memset(sum, 0, sizeof(float) * 2 * (size_t)C);
        op->kernels->column_sums(sum, p.x, p.ld, NULL, 0, p.n, C);
        for (int64_t c = 0; c < C; c++) sum[c] /= -(float)p.n;
        affine(op, rows, p.x, p.ld, p.n, NULL, sum);
        op->kernels->column_sums(square, rows, C, rows, C, p.n, C);
        for (int64_t c = 0; c < C; c++) join(&found[c / per], -(double)sum[c], (double)square[c], p.n);
    }
}

/* Statistics of one sample out of those of its parts. */
static void finish_task(void *arg, int64_t b, int worker) {
    const group_norm *op = arg;
    (void)worker;
    const mhla_group_stats *s = &op->s;
    const int64_t per = op->C / s->groups;
    for (int64_t g = 0; g < s->groups; g++) {
        moments all = {0};
        for (int64_t part = 0; part < op->parts; part++) {
            const moments *m = &op->found[(b * op->parts + part) * s->groups + g];
            join(&all, m->mean, m->square, m->count);
        }
        const double rstd = 1.0 / sqrt(all.square / (double)all.count + (double)s->eps);
        s->mean[b * s->groups + g] = (float)all.mean;
        s->rstd[b * s->groups + g] = (float)rstd;
        for (int64_t c = g * per; c < (g + 1) * per; c++) {
            const double scale = s->w ? rstd * (double)s->w->data[c] : rstd;
            s->scale[b * op->C + c] = (float)scale;
            s->shift[b * op->C + c] = (float)((s->b ? (double)s->b->data[c] : 0.0) - all.mean * scale);
        }
    }
}

int mhla_group_stats_make(mhla_tape *t, mhla_group_stats *s) {
    const int64_t B = s->x->shape[0], C = s->x->cols;
    s->mean = mhla_tape_floats(t, B * s->groups);
    s->rstd = mhla_tape_floats(t, B * s->groups);
    s->scale = mhla_tape_floats(t, B * C);
    s->shift = mhla_tape_floats(t, B * C);
    group_norm op = {.kernels = t->kernels};
    lay_out(&op, s);
    if (carve(t, &op)) {
        mhla_tape_run(t, B * op.parts, moments_task, &op);
        mhla_tape_run(t, B, finish_task, &op);
    }
    return t->status == MHLA_OK;
}

static void forward_task(void *arg, int64_t task, int worker) {
    const group_norm *op = arg;
    float *rows = op->rows + (size_t)worker * worker_floats(op);
    piece p = piece_of(op, task);
    const float *scale = op->s.scale + p.b * op->C, *shift = op->s.shift + p.b * op->C;
    while (next(op, &p)) {
        float *y = op->y->data + p.row * op->y->ld;
        affine(op, op->activation == MHLA_ACT_NONE ? y : rows, p.x, p.ld, p.n, scale, shift);
        if (op->activation != MHLA_ACT_NONE)
            op->kernels->epilogue(&(mhla_epilogue){.src = rows,
                                                   .ld = op->C,
                                                   .m = (int)p.n,
                                                   .n = (int)op->C,
                                                   .activation = op->activation,
                                                   .y = y,
                                                   .ldy = op->y->ld});
    }
}

/* g = dy activation'(x scale + shift) and x - mean of the chunk, [n][C] each. */
static const float *arrived(const group_norm *op, const piece *p, float *g, float *centred) {
    const float *dy = mhla_tape_arrived(op->y) + p->row * op->y->ld;
    affine(op, centred, p->x, p->ld, p->n, NULL, op->centre + p->b * op->C);
    if (op->activation == MHLA_ACT_NONE) return dy;
    affine(op, g, p->x, p->ld, p->n, op->s.scale + p->b * op->C, op->s.shift + p->b * op->C);
    op->kernels->activation_backward(g, dy, g, p->n * op->C, op->activation);
    return g;
}

static void sums_task(void *arg, int64_t task, int worker) {
    const group_norm *op = arg;
    const int64_t C = op->C;
    float *g = op->rows + (size_t)worker * worker_floats(op), *centred = g + op->chunk * C;
    float *sums = op->sums + task * 2 * C;
    memset(sums, 0, sizeof(float) * 2 * (size_t)C);
    piece p = piece_of(op, task);
    while (next(op, &p)) {
        const float *from = arrived(op, &p, g, centred);
        op->kernels->column_sums(sums, from, C, NULL, 0, p.n, C);
        op->kernels->column_sums(sums + C, from, C, centred, C, p.n, C);
    }
}

/* The sums of a sample into those of its first part. */
static void join_task(void *arg, int64_t b, int worker) {
    const group_norm *op = arg;
    (void)worker;
    float *sums = op->sums + b * op->parts * 2 * op->C;
    for (int64_t part = 1; part < op->parts; part++) op->kernels->axpy(sums, 1.0f, sums + part * 2 * op->C, 2 * op->C);
}

/* dx = scale g + along (x - mean) + apart, numbers of each channel */
static void input_task(void *arg, int64_t task, int worker) {
    const group_norm *op = arg;
    const int64_t C = op->C, per = C / op->s.groups;
    float *g = op->rows + (size_t)worker * worker_floats(op), *centred = g + op->chunk * C,
          *part = centred + op->chunk * C;
    float *along = part + op->chunk * C, *apart = along + C;
    piece p = piece_of(op, task);
    const float *sums = op->sums + p.b * op->parts * 2 * C;
    for (int64_t c0 = 0; c0 < C; c0 += per) {
        double sum = 0.0, with = 0.0; /* of g w, of g w (x - mean) */
        for (int64_t c = c0; c < c0 + per; c++) {
            const double w = op->s.w ? (double)op->s.w->data[c] : 1.0;
            sum += w * (double)sums[c];
            with += w * (double)sums[C + c];
        }
        const double rstd = (double)op->s.rstd[p.b * op->s.groups + c0 / per], n = (double)(per * op->T);
        for (int64_t c = c0; c < c0 + per; c++) {
            apart[c] = (float)(-rstd * sum / n);
            along[c] = (float)(-rstd * rstd * rstd * with / n);
        }
    }
    while (next(op, &p)) {
        const float *from = arrived(op, &p, g, centred);
        affine(op, part, from, C, p.n, op->s.scale + p.b * C, apart);
        op->kernels->blend(&(mhla_blend){.n = p.n,
                                         .cols = C,
                                         .y = op->dx.data + p.row * op->dx.ld,
                                         .ldy = op->dx.ld,
                                         .x = centred,
                                         .ldx = C,
                                         .z = along,
                                         .r = part,
                                         .ldr = C,
                                         .alpha = 1.0f,
                                         .add = op->dx.add});
    }
}

/* y = a(xh w + b), xh = (x - mean) rstd, g = dy a'(..), means over a group's channels and tokens:
 *   dx = rstd (g w - mean(g w) - xh mean(g w xh)), dw = sum g xh, db = sum g */
static void group_norm_backward(mhla_tape *t, void *record) {
    group_norm *op = record;
    const mhla_group_stats *s = &op->s;
    const int64_t B = s->x->shape[0], C = op->C, per = C / s->groups;
    const int run = carve(t, op);
    for (int64_t i = 0; run && i < B * C; i++) op->centre[i] = -s->mean[i / C * s->groups + i % C / per];
    mhla_tape_run(t, B * op->parts, sums_task, op);
    mhla_tape_run(t, B, join_task, op);
    const mhla_slot dw = mhla_tape_param_grad(t, s->w), db = mhla_tape_param_grad(t, s->b);
    for (int64_t c = 0; run && c < C; c++) {
        double sum = 0.0, with = 0.0;
        for (int64_t b = 0; b < B; b++) {
            const float *sums = op->sums + b * op->parts * 2 * C;
            sum += (double)sums[c];
            with += (double)sums[C + c] * (double)s->rstd[b * s->groups + c / per];
        }
        if (dw.wanted) dw.data[c] = dw.add ? dw.data[c] + (float)with : (float)with;
        if (db.wanted) db.data[c] = db.add ? db.data[c] + (float)sum : (float)sum;
    }
    op->dx = mhla_tape_grad(t, s->x);
    if (op->dx.wanted) mhla_tape_run(t, B * op->parts, input_task, op);
}

mhla_tensor *mhla_nn_group_norm(mhla_tape *t, mhla_param *w, mhla_param *b, int groups, float eps,
                                mhla_activation activation, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, x->dims == 3 && groups > 0 && x->cols % groups == 0, "%d groups of channels of %s", groups,
              mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, w == NULL || w->count == x->cols, "%s has %lld elements: expected %lld", w->name, (long long)w->count,
              (long long)x->cols);
    MHLA_NEED(t, b == NULL || b->count == x->cols, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)x->cols);
    mhla_group_stats s = {.x = x, .w = w, .b = b, .groups = groups, .eps = eps};
    group_norm *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL || !mhla_group_stats_make(t, &s)) return NULL;
    op->kernels = t->kernels;
    op->activation = activation;
    op->y = y;
    lay_out(op, &s);
    carve(t, op);
    mhla_tape_run(t, x->shape[0] * op->parts, forward_task, op);
    return mhla_tape_record(t, &op->r, group_norm_backward, y,
                            x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b));
}
