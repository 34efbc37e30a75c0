/* Layers that treat each sample of x [B,T,D] as a whole: modulation, position embedding, class tokens, pooling, dropout
 * and drop path. Most of them are a blend (simd/kernels.h) whose arguments step from sample to sample. */
#include <string.h>

#include "nn/op.h"

typedef mhla_blends blends;
static void run_blends(mhla_tape *t, blends s, int64_t B) { mhla_tape_blends(t, &s, B); }

/* ---- Sums over the rows of each sample: dst[i] (=, +=) scale * sum over n rows of x z ---- */

typedef struct sums {
    const mhla_kernels *kernels;
    mhla_slot dst; /* row i for sample i */
    const float *x, *z;
    int64_t ldx, ldz, n, cols, x_step, z_step;
    float scale;
} sums;

static void sums_task(void *arg, int64_t i, int worker) {
    const sums *s = arg;
    (void)worker;
    float *dst = s->dst.data + i * s->dst.ld;
    if (!s->dst.add) memset(dst, 0, sizeof(float) * (size_t)s->cols);
    s->kernels->column_sums(dst, s->x + i * s->x_step, s->ldx, s->z ? s->z + i * s->z_step : NULL, s->ldz, s->n,
                            s->cols);
    if (s->scale != 1.0f)
        for (int64_t j = 0; j < s->cols; j++) dst[j] *= s->scale;
}

static void run_sums(mhla_tape *t, sums s, int64_t B) {
    s.kernels = t->kernels;
    if (s.scale == 0.0f) s.scale = 1.0f;
    mhla_tape_run(t, B, sums_task, &s);
}

/* dp [count] (=, +=) sum over samples of the first `count` numbers of each, in stretches of columns. */
typedef struct over_samples {
    const mhla_kernels *kernels;
    mhla_slot dp;
    const float *x;
    int64_t step, B, count;
} over_samples;

enum { STRETCH = 1024 };

static void over_samples_task(void *arg, int64_t i, int worker) {
    const over_samples *s = arg;
    (void)worker;
    const int64_t at = i * STRETCH, n = s->count - at < STRETCH ? s->count - at : STRETCH;
    if (!s->dp.add) memset(s->dp.data + at, 0, sizeof(float) * (size_t)n);
    s->kernels->column_sums(s->dp.data + at, s->x + at, s->step, NULL, 0, s->B, n);
}

static void sum_over_samples(mhla_tape *t, mhla_param *p, const float *x, int64_t step, int64_t B) {
    over_samples s = {t->kernels, mhla_tape_param_grad(t, p), x, step, B, p->count};
    if (s.dp.wanted) mhla_tape_run(t, (s.count + STRETCH - 1) / STRETCH, over_samples_task, &s);
}

/* ---- The layers ---- */

typedef struct layer {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *z, *v, *w, *y; /* x [B,T,D], z like it or another [B,T',D]; v, w [B,D] */
    mhla_param *p;
    int64_t first; /* token */
    float rate;
    const float *alpha;                /* [B] */
    uint64_t seed, step, first_sample; /* of dropout */
    uint32_t place;
    mhla_slot dx;
} layer;

static int is_tokens(mhla_tape *t, const mhla_tensor *x) {
    char text[96];
    if (x->dims == 3) return 1;
    mhla_tape_fail(t, MHLA_EINVAL, "a tensor of shape %s where [B, T, D] is expected",
                   mhla_shape_text(text, x->shape, x->dims));
    return 0;
}

static int is_vector(mhla_tape *t, const mhla_tensor *v, const mhla_tensor *x) {
    char text[96];
    if (v->cols == x->cols && v->rows == x->shape[0]) return 1;
    mhla_tape_fail(t, MHLA_EINVAL, "a tensor of shape %s where [%lld, %lld] is expected",
                   mhla_shape_text(text, v->shape, v->dims), (long long)x->shape[0], (long long)x->cols);
    return 0;
}

static layer *make(mhla_tape *t, mhla_tensor *x, int64_t tokens) {
    layer *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = NULL;
    if (op && tokens > 0) y = mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], tokens, x->cols));
    if (op && tokens == 0) y = mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], x->cols));
    if (y == NULL) return NULL;
    *op = (layer){.kernels = t->kernels, .x = x, .y = y};
    return op;
}

/* Rows of x to rows of y, n of each sample. */
static blends rows_to_rows(float *y, int64_t ldy, int64_t y_step, const float *x, int64_t ldx, int64_t x_step,
                           int64_t n, int64_t cols) {
    return (blends){.b = {.n = n, .cols = cols, .y = y, .ldy = ldy, .x = x, .ldx = ldx, .alpha = 1.0f},
                    .y_step = y_step,
                    .x_step = x_step};
}

static blends between(const mhla_tensor *y, const mhla_tensor *x) {
    const int64_t n = x->shape[1];
    return rows_to_rows(y->data, y->ld, n * y->ld, x->data, x->ld, n * x->ld, n, x->cols);
}

/* dx from dy of the same shape */
static blends back(const mhla_slot *dx, const mhla_tensor *y) {
    const int64_t n = y->shape[1];
    blends s = rows_to_rows(dx->data, dx->ld, n * dx->ld, mhla_tape_arrived(y), y->ld, n * y->ld, n, y->cols);
    s.b.add = dx->add;
    return s;
}

/* ---- y = x (1 + scale) + shift;  v = scale, w = shift ---- */

static void modulate_backward(mhla_tape *t, void *p) {
    layer *op = p;
    const mhla_tensor *x = op->x, *y = op->y;
    const int64_t B = x->shape[0], T = x->shape[1];
    sums s = {.x = mhla_tape_arrived(y), .ldx = y->ld, .x_step = T * y->ld, .n = T, .cols = y->cols};
    s.dst = mhla_tape_grad(t, op->w); /* dshift += sum dy */
    if (s.dst.wanted) run_sums(t, s, B);
    s.dst = mhla_tape_grad(t, op->v); /* dscale += sum dy x */
    s.z = x->data;
    s.ldz = x->ld;
    s.z_step = T * x->ld;
    if (s.dst.wanted) run_sums(t, s, B);
    const mhla_slot dx = mhla_tape_grad(t, op->x); /* dx += dy (1 + scale) */
    if (!dx.wanted) return;
    blends d = back(&dx, y);
    d.b.z = op->v->data;
    d.z_step = op->v->ld;
    d.b.beta = 1.0f;
    run_blends(t, d, B);
}

mhla_tensor *mhla_nn_modulate(mhla_tape *t, mhla_tensor *shift, mhla_tensor *scale, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, shift);
    MHLA_GIVEN(t, scale);
    if (!is_tokens(t, x) || !is_vector(t, shift, x) || !is_vector(t, scale, x)) return NULL;
    layer *op = make(t, x, x->shape[1]);
    if (op == NULL) return NULL;
    op->v = scale;
    op->w = shift;
    blends s = between(op->y, x);
    s.b.z = scale->data;
    s.z_step = scale->ld;
    s.b.beta = 1.0f;
    s.b.r = shift->data;
    s.r_step = shift->ld;
    run_blends(t, s, x->shape[0]);
    return mhla_tape_record(t, &op->r, modulate_backward, op->y,
                            x->needs_grad || scale->needs_grad || shift->needs_grad);
}

/* ---- y = x + gate z;  v = gate ---- */

static void gate_backward(mhla_tape *t, void *p) {
    layer *op = p;
    const mhla_tensor *y = op->y, *z = op->z;
    const int64_t B = y->shape[0], T = y->shape[1];
    const mhla_slot dz = mhla_tape_grad(t, op->z); /* dz += dy gate */
    if (dz.wanted) {
        blends d = back(&dz, y);
        d.b.z = op->v->data;
        d.z_step = op->v->ld;
        run_blends(t, d, B);
    }
    sums s = {.x = mhla_tape_arrived(y),
              .ldx = y->ld,
              .x_step = T * y->ld,
              .z = z->data,
              .ldz = z->ld,
              .z_step = T * z->ld,
              .n = T,
              .cols = y->cols};
    s.dst = mhla_tape_grad(t, op->v); /* dgate += sum dy z */
    if (s.dst.wanted) run_sums(t, s, B);
    mhla_tape_pass_grad(t, op->x, op->y);
}

mhla_tensor *mhla_nn_gate_add(mhla_tape *t, mhla_tensor *x, mhla_tensor *gate, mhla_tensor *z) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, gate);
    MHLA_GIVEN(t, z);
    if (!is_tokens(t, x) || !is_vector(t, gate, x)) return NULL;
    MHLA_NEED(t, mhla_same_shape(x, z), "a gated sum of two shapes");
    layer *op = make(t, x, x->shape[1]);
    if (op == NULL) return NULL;
    op->z = z;
    op->v = gate;
    blends s = between(op->y, z);
    s.b.z = gate->data;
    s.z_step = gate->ld;
    s.b.r = x->data;
    s.b.ldr = x->ld;
    s.r_step = x->shape[1] * x->ld;
    run_blends(t, s, x->shape[0]);
    return mhla_tape_record(t, &op->r, gate_backward, op->y, x->needs_grad || gate->needs_grad || z->needs_grad);
}

/* ---- y[b,t] = x[b,t] + p[t] ---- */

static void position_backward(mhla_tape *t, void *arg) {
    layer *op = arg;
    const mhla_tensor *y = op->y;
    sum_over_samples(t, op->p, mhla_tape_arrived(y), y->shape[1] * y->ld, y->shape[0]);
    mhla_tape_pass_grad(t, op->x, op->y);
}

mhla_tensor *mhla_nn_add_position(mhla_tape *t, mhla_param *p, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, p);
    char text[96];
    if (!is_tokens(t, x)) return NULL;
    MHLA_NEED(t, p->count == x->shape[1] * x->cols, "%s is %s: there are %lld tokens of %lld", p->name,
              mhla_shape_text(text, p->shape, p->dims), (long long)x->shape[1], (long long)x->cols);
    layer *op = make(t, x, x->shape[1]);
    if (op == NULL) return NULL;
    op->p = p;
    blends s = between(op->y, x);
    s.b.r = p->data;
    s.b.ldr = x->cols;
    run_blends(t, s, x->shape[0]);
    return mhla_tape_record(t, &op->r, position_backward, op->y, x->needs_grad || mhla_param_trains(p));
}

/* ---- Tokens side by side: y = [p or z, x] ---- */

/* The gradient of the part of y from token `first` on goes to x. */
static void part_backward(mhla_tape *t, const mhla_tensor *y, int64_t first, mhla_tensor *x) {
    const mhla_slot dx = mhla_tape_grad(t, x);
    if (!dx.wanted) return;
    const int64_t n = x->shape[1];
    blends s = rows_to_rows(dx.data, dx.ld, n * dx.ld, mhla_tape_arrived(y) + first * y->ld, y->ld, y->shape[1] * y->ld,
                            n, x->cols);
    s.b.add = dx.add;
    run_blends(t, s, y->shape[0]);
}

static void put_part(mhla_tape *t, const mhla_tensor *y, int64_t first, const mhla_tensor *x) {
    const int64_t n = x->shape[1];
    run_blends(t,
               rows_to_rows(y->data + first * y->ld, y->ld, y->shape[1] * y->ld, x->data, x->ld, n * x->ld, n, x->cols),
               y->shape[0]);
}

static void concat_backward(mhla_tape *t, void *arg) {
    layer *op = arg;
    const mhla_tensor *y = op->y;
    if (op->p) sum_over_samples(t, op->p, mhla_tape_arrived(y), y->shape[1] * y->ld, y->shape[0]);
    if (op->z) part_backward(t, y, 0, op->z);
    part_backward(t, y, op->first, op->x);
}

mhla_tensor *mhla_nn_prepend(mhla_tape *t, mhla_param *p, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, p);
    if (!is_tokens(t, x)) return NULL;
    MHLA_NEED(t, p->count % x->cols == 0, "%s has %lld elements: not rows of %lld", p->name, (long long)p->count,
              (long long)x->cols);
    const int64_t n = p->count / x->cols;
    layer *op = make(t, x, n + x->shape[1]);
    if (op == NULL) return NULL;
    op->p = p;
    op->first = n;
    mhla_tensor *y = op->y;
    run_blends(t, rows_to_rows(y->data, y->ld, y->shape[1] * y->ld, p->data, x->cols, 0, n, x->cols), y->shape[0]);
    put_part(t, y, n, x);
    return mhla_tape_record(t, &op->r, concat_backward, y, x->needs_grad || mhla_param_trains(p));
}

mhla_tensor *mhla_nn_concat_tokens(mhla_tape *t, mhla_tensor *a, mhla_tensor *b) {
    MHLA_GIVEN(t, a);
    MHLA_GIVEN(t, b);
    if (!is_tokens(t, a) || !is_tokens(t, b)) return NULL;
    MHLA_NEED(t, a->shape[0] == b->shape[0] && a->cols == b->cols, "tokens of %lld x %lld beside %lld x %lld",
              (long long)a->shape[0], (long long)a->cols, (long long)b->shape[0], (long long)b->cols);
    layer *op = make(t, b, a->shape[1] + b->shape[1]);
    if (op == NULL) return NULL;
    op->z = a;
    op->first = a->shape[1];
    put_part(t, op->y, 0, a);
    put_part(t, op->y, op->first, b);
    return mhla_tape_record(t, &op->r, concat_backward, op->y, a->needs_grad || b->needs_grad);
}

/* ---- y[b] = x[b], and zeros behind ---- */

typedef struct stacked {
    mhla_record r;
    mhla_tensor *y, **x;
} stacked;

static void stack_backward(mhla_tape *t, void *arg) {
    const stacked *op = arg;
    for (int64_t b = 0; b < op->y->shape[0]; b++) {
        const mhla_slot dx = mhla_tape_grad(t, op->x[b]);
        const float *dy = mhla_tape_arrived(op->y) + b * op->y->shape[1] * op->y->ld;
        if (dx.wanted)
            mhla_tape_blend(t, &(mhla_blend){.n = op->x[b]->rows,
                                             .cols = op->y->cols,
                                             .y = dx.data,
                                             .ldy = dx.ld,
                                             .x = dy,
                                             .ldx = op->y->ld,
                                             .alpha = 1.0f,
                                             .add = dx.add});
    }
}

mhla_tensor *mhla_nn_stack(mhla_tape *t, mhla_tensor *const *x, int64_t B, int64_t T, int64_t D) {
    stacked *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor **list = op ? mhla_tape_op(t, (size_t)B * sizeof *list) : NULL;
    mhla_tensor *y = list ? mhla_tape_tensor(t, MHLA_SHAPE(B, T, D)) : NULL;
    if (y == NULL) return NULL;
    *op = (stacked){.y = y, .x = list};
    int needs = 0;
    for (int64_t b = 0; b < B; b++) {
        list[b] = x[b];
        const int64_t n = x[b] ? x[b]->rows : 0;
        MHLA_NEED(t, x[b] == NULL || (n <= T && x[b]->cols == D), "sample %lld has %lld rows: there is room for %lld",
                  (long long)b, (long long)n, (long long)T);
        needs |= x[b] && x[b]->needs_grad;
        if (mhla_tape_dry(t)) continue;
        float *to = y->data + b * T * D;
        for (int64_t i = 0; i < n; i++) memcpy(to + i * D, x[b]->data + i * x[b]->ld, sizeof(float) * (size_t)D);
        memset(to + n * D, 0, sizeof(float) * (size_t)((T - n) * D));
    }
    return mhla_tape_record(t, &op->r, stack_backward, y, needs);
}

/* ---- y = tokens first .. first+count-1 of x ---- */

static void slice_backward(mhla_tape *t, void *arg) {
    layer *op = arg;
    const mhla_tensor *x = op->x, *y = op->y;
    const int64_t n = y->shape[1], T = x->shape[1];
    const mhla_slot dx = mhla_tape_grad(t, op->x);
    if (!dx.wanted) return;
    if (!dx.add && !mhla_tape_dry(t)) /* what lies outside gets nothing from here */
        for (int64_t r = 0; r < x->rows; r++)
            if (r % T < op->first || r % T >= op->first + n)
                memset(dx.data + r * dx.ld, 0, sizeof(float) * (size_t)x->cols);
    blends s =
        rows_to_rows(dx.data + op->first * dx.ld, dx.ld, T * dx.ld, mhla_tape_arrived(y), y->ld, n * y->ld, n, x->cols);
    s.b.add = dx.add;
    run_blends(t, s, x->shape[0]);
}

mhla_tensor *mhla_nn_slice_tokens(mhla_tape *t, mhla_tensor *x, int64_t first, int64_t count) {
    MHLA_GIVEN(t, x);
    if (!is_tokens(t, x)) return NULL;
    MHLA_NEED(t, first >= 0 && count >= 1 && first <= x->shape[1] - count, "tokens %lld to %lld of %lld",
              (long long)first, (long long)(first + count), (long long)x->shape[1]);
    layer *op = make(t, x, count);
    if (op == NULL) return NULL;
    op->first = first;
    const mhla_tensor *y = op->y;
    run_blends(t,
               rows_to_rows(y->data, y->ld, count * y->ld, x->data + first * x->ld, x->ld, x->shape[1] * x->ld, count,
                            x->cols),
               x->shape[0]);
    return mhla_tape_record(t, &op->r, slice_backward, op->y, x->needs_grad);
}

/* ---- y = rows `rows` of x ---- */

typedef struct taken {
    mhla_record r;
    mhla_tensor *x, *y; /* [...,D], [n,D] */
    const int32_t *rows;
} taken;

static void take_backward(mhla_tape *t, void *arg) {
    const taken *op = arg;
    const mhla_tensor *x = op->x, *y = op->y;
    const mhla_slot dx = mhla_tape_grad(t, op->x); /* dx[rows[i]] += dy[i] */
    if (!dx.wanted || mhla_tape_dry(t)) return;
    const float *dy = mhla_tape_arrived(y);
    for (int64_t r = 0; r < x->rows && !dx.add; r++) memset(dx.data + r * dx.ld, 0, sizeof(float) * (size_t)x->cols);
    for (int64_t i = 0; i < y->rows; i++) {
        float *to = dx.data + op->rows[i] * dx.ld;
        for (int64_t j = 0; j < x->cols; j++) to[j] += dy[i * y->ld + j];
    }
}

mhla_tensor *mhla_nn_take_rows(mhla_tape *t, const int32_t *rows, int64_t n, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, rows);
    MHLA_NEED(t, n >= 1, "%lld rows are taken", (long long)n);
    for (int64_t i = 0; i < n; i++)
        MHLA_NEED(t, rows[i] >= 0 && rows[i] < x->rows, "row %d of %lld", rows[i], (long long)x->rows);
    taken *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(n, x->cols)) : NULL;
    if (y == NULL) return NULL;
    *op = (taken){.x = x, .y = y, .rows = rows};
    for (int64_t i = 0; i < n && !mhla_tape_dry(t); i++)
        memcpy(y->data + i * y->ld, x->data + rows[i] * x->ld, sizeof(float) * (size_t)x->cols);
    return mhla_tape_record(t, &op->r, take_backward, y, x->needs_grad);
}

/* ---- y[b,t] = x[b,order[t]] ---- */

typedef struct reordered {
    mhla_record r;
    mhla_tensor *x, *y; /* [B,T,D] */
    const int32_t *order;
    mhla_slot dx; /* wanted in backward */
} reordered;

/* order is a permutation: rows of dx are written by one task each */
static void reorder_task(void *arg, int64_t row, int worker) {
    const reordered *op = arg;
    const int64_t T = op->y->shape[1], D = op->y->cols, other = row / T * T + op->order[row % T];
    (void)worker;
    if (!op->dx.wanted) {
        memcpy(op->y->data + row * op->y->ld, op->x->data + other * op->x->ld, sizeof(float) * (size_t)D);
        return;
    }
    const float *dy = mhla_tape_arrived(op->y) + row * op->y->ld;
    float *dx = op->dx.data + other * op->dx.ld; /* dx[b,order[t]] += dy[b,t] */
    for (int64_t j = 0; j < D; j++) dx[j] = (op->dx.add ? dx[j] : 0.0f) + dy[j];
}

static void reorder_backward(mhla_tape *t, void *arg) {
    reordered *op = arg;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->y->rows, reorder_task, op);
}

mhla_tensor *mhla_nn_reorder(mhla_tape *t, const int32_t *order, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, order);
    if (!is_tokens(t, x)) return NULL;
    reordered *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (reordered){.x = x, .y = y, .order = order};
    mhla_tape_run(t, y->rows, reorder_task, op);
    return mhla_tape_record(t, &op->r, reorder_backward, y, x->needs_grad);
}

/* ---- y = mean over tokens of x ---- */

static void mean_backward(mhla_tape *t, void *arg) {
    layer *op = arg;
    const int64_t T = op->x->shape[1];
    const mhla_slot dx = mhla_tape_grad(t, op->x); /* dx += dy / T */
    if (!dx.wanted) return;
    blends s = rows_to_rows(dx.data, dx.ld, T * dx.ld, mhla_tape_arrived(op->y), 0, op->y->ld, T, op->x->cols);
    s.b.alpha = 1.0f / (float)T;
    s.b.add = dx.add;
    run_blends(t, s, op->x->shape[0]);
}

mhla_tensor *mhla_nn_mean_tokens(mhla_tape *t, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    if (!is_tokens(t, x)) return NULL;
    layer *op = make(t, x, 0);
    if (op == NULL) return NULL;
    const int64_t T = x->shape[1];
    run_sums(t,
             (sums){.dst = {1, 0, op->y->data, op->y->ld},
                    .x = x->data,
                    .ldx = x->ld,
                    .x_step = T * x->ld,
                    .n = T,
                    .cols = x->cols,
                    .scale = 1.0f / (float)T},
             x->shape[0]);
    return mhla_tape_record(t, &op->r, mean_backward, op->y, x->needs_grad);
}

/* ---- Dropout: each row of a sample has its own words; drawn again in backward ---- */

static void dropout_task(void *arg, int64_t row, int worker) {
    const layer *op = arg;
    (void)worker;
    const mhla_tensor *x = op->x, *y = op->y;
    const int64_t per_sample = x->rows / x->shape[0], blocks = (x->cols + 3) / 4;
    const mhla_rng rng = mhla_rng_make(op->seed, op->step, op->first_sample + (uint64_t)(row / per_sample), op->place);
    const uint32_t block = (uint32_t)(row % per_sample * blocks);
    if (op->dx.wanted)
        op->kernels->dropout(op->dx.data + row * op->dx.ld, mhla_tape_arrived(y) + row * y->ld, x->cols, &rng, block,
                             op->rate, op->dx.add);
    else
        op->kernels->dropout(y->data + row * y->ld, x->data + row * x->ld, x->cols, &rng, block, op->rate, 0);
}

/* y = x mask / (1 - rate):  dx += dy mask / (1 - rate) */
static void dropout_backward(mhla_tape *t, void *p) {
    layer *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->rows, dropout_task, op);
}

mhla_tensor *mhla_nn_dropout(mhla_tape *t, float rate, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, rate >= 0.0f && rate < 1.0f, "a dropout rate of %g: expected 0 to 1", (double)rate);
    const uint32_t place = t->place++; /* counted in any mode */
    if (rate == 0.0f || !(t->mode & MHLA_TAPE_DROP)) return x;
    layer *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (layer){.kernels = t->kernels,
                  .x = x,
                  .y = y,
                  .rate = rate,
                  .seed = t->seed,
                  .step = t->step,
                  .first_sample = t->first_sample,
                  .place = place};
    mhla_tape_run(t, x->rows, dropout_task, op);
    return mhla_tape_record(t, &op->r, dropout_backward, y, x->needs_grad);
}

/* ---- Drop path: y = alpha_b z [+ x], alpha_b = 0 or 1 / (1 - rate) ---- */

static void drop_path_backward(mhla_tape *t, void *p) {
    layer *op = p;
    const mhla_slot dz = mhla_tape_grad(t, op->z); /* dz += alpha_b dy */
    if (dz.wanted) {
        blends s = back(&dz, op->y);
        s.alpha = op->alpha;
        run_blends(t, s, op->y->shape[0]);
    }
    mhla_tape_pass_grad(t, op->x, op->y);
}

int mhla_tape_drop_path(mhla_tape *t, float rate, int64_t B, float **factors) {
    *factors = NULL;
    const uint32_t place = t->place++; /* counted in any mode */
    if (!(rate >= 0.0f && rate < 1.0f))
        mhla_tape_fail(t, MHLA_EINVAL, "a drop path rate of %g: expected 0 to 1", (double)rate);
    if (t->status != MHLA_OK || rate == 0.0f || !(t->mode & MHLA_TAPE_DROP)) return t->status == MHLA_OK;
    *factors = mhla_tape_op(t, sizeof(float) * (size_t)B);
    for (int64_t b = 0; *factors && b < B; b++) {
        mhla_rng rng = mhla_rng_make(t->seed, t->step, t->first_sample + (uint64_t)b, place);
        (*factors)[b] = mhla_rng_uniform(&rng) < rate ? 0.0f : 1.0f / (1.0f - rate);
    }
    return *factors != NULL;
}

/* y = alpha_b z + x, or without x */
static mhla_tensor *drop_path(mhla_tape *t, const float *alpha, mhla_tensor *x, mhla_tensor *z) {
    if (!is_tokens(t, z)) return NULL;
    MHLA_NEED(t, x == NULL || mhla_same_shape(x, z), "a residual of another shape than its branch");
    layer *op = make(t, z, z->shape[1]);
    if (op == NULL) return NULL;
    op->x = x;
    op->z = z;
    op->alpha = alpha;
    blends s = between(op->y, z);
    s.alpha = op->alpha;
    if (x) {
        s.b.r = x->data;
        s.b.ldr = x->ld;
        s.r_step = x->shape[1] * x->ld;
    }
    run_blends(t, s, z->shape[0]);
    return mhla_tape_record(t, &op->r, drop_path_backward, op->y, z->needs_grad || (x != NULL && x->needs_grad));
}

mhla_tensor *mhla_nn_drop_path(mhla_tape *t, float rate, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    float *alpha;
    if (!mhla_tape_drop_path(t, rate, x->shape[0], &alpha)) return NULL;
    return alpha ? drop_path(t, alpha, NULL, x) : x;
}

mhla_tensor *mhla_nn_drop_path_add(mhla_tape *t, float rate, mhla_tensor *x, mhla_tensor *branch) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, branch);
    float *alpha;
    if (!mhla_tape_drop_path(t, rate, x->shape[0], &alpha)) return NULL;
    return alpha ? drop_path(t, alpha, x, branch) : mhla_nn_add(t, x, branch);
}
