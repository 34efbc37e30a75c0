/* The tape: arenas, records, gradients.
 *
 * Three arenas: `meta` holds tensors and records and is real even in a dry run; `data` holds values and what backward
 * needs of them; `grads` holds gradients of tensors, which go back to a list of free ones as soon as the layer that made
 * the tensor has used them, so that all blocks of a model share a few.
 *
 * Views share their base's gradient. The first gradient that arrives at a tensor is written, later ones are added.
 * Where views cut the columns of their base exactly (q, k, v of a fused qkv), that holds for each of them; what has got
 * nothing by the time the base is asked is zeroed then. Any other view makes its base zero first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nn/op.h"

static float untouched; /* what a dry run has for memory, so that addresses can be reckoned with */

/* ---- Arenas ---- */

static size_t round_up(size_t bytes) { return (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN; }

static void arena_free(mhla_arena *a) {
    for (int i = 0; i < a->count; i++) mhla_free(a->blocks[i]);
    a->count = 0;
    a->at = (struct mhla_place){0, 0, 0};
}

static int arena_grow(mhla_arena *a, size_t bytes) {
    if (a->count == MHLA_BLOCKS) return 0;
    a->blocks[a->count] = mhla_alloc(bytes);
    a->sizes[a->count] = bytes;
    return a->blocks[a->count] ? ++a->count : 0;
}

/* Empty, and in one block as large as was ever needed. */
static void arena_reset(mhla_arena *a, int dry) {
    a->dry = dry;
    if (!dry && a->high > 0 && (a->count != 1 || a->sizes[0] < a->high)) {
        arena_free(a);
        arena_grow(a, a->high);
    }
    a->at = (struct mhla_place){0, 0, 0};
}

/* NULL without memory, and in a dry run. */
static void *arena_take(mhla_arena *a, size_t bytes) {
    bytes = round_up(bytes ? bytes : 1);
    if (!a->dry) {
        while (a->at.block < a->count && a->sizes[a->at.block] - a->at.used < bytes) {
            a->at.block++;
            a->at.used = 0;
        }
        size_t total = 0;
        for (int i = 0; i < a->count; i++) total += a->sizes[i];
        const size_t size = total / 2 > (1 << 16) ? total / 2 : 1 << 16;
        if (a->at.block == a->count && !arena_grow(a, bytes > size ? bytes : size)) return NULL;
    }
    void *p = a->dry ? NULL : a->blocks[a->at.block] + a->at.used;
    a->at.used += bytes;
    a->at.live += bytes;
    if (a->at.live > a->high) a->high = a->at.live;
    return p;
}

/* ---- The tape ---- */

mhla_status mhla_tape_create(mhla_tape **tape, const mhla_context *context) {
    mhla_tape *t = *tape = mhla_alloc_zero(sizeof *t);
    if (t == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a tape");
    t->context = context;
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    return MHLA_OK;
}

void mhla_tape_free(mhla_tape *t) {
    if (t == NULL) return;
    arena_free(&t->meta);
    arena_free(&t->data);
    arena_free(&t->grads);
    mhla_free(t->scratch);
    mhla_free(t);
}

void mhla_tape_begin(mhla_tape *t, unsigned mode) {
    const int dry = (mode & MHLA_TAPE_DRY) != 0;
    t->kernels = mhla_kernels_get();
    t->mode = mode;
    t->precision = MHLA_F32;
    t->recording = (mode & MHLA_TAPE_RECORD) != 0;
    t->status = MHLA_OK;
    t->place = MHLA_PLACE_LAYERS;
    t->serial = t->recompute = t->attended = 0;
    t->last = NULL;
    t->n_free = 0;
    arena_reset(&t->meta, 0);
    arena_reset(&t->data, dry);
    arena_reset(&t->grads, dry);
}

void mhla_tape_after(mhla_tape *t, void (*after)(void *arg), void *arg) {
    t->after = after;
    t->after_arg = arg;
}

void mhla_tape_set_precision(mhla_tape *t, mhla_dtype precision) { t->precision = precision; }

void mhla_tape_key(mhla_tape *t, uint64_t seed, uint64_t step, uint64_t first_sample) {
    t->seed = seed;
    t->step = step;
    t->first_sample = first_sample;
}

mhla_status mhla_tape_status(const mhla_tape *t) { return t->status; }
const mhla_context *mhla_tape_context(const mhla_tape *t) { return t->context; }
unsigned mhla_tape_mode(const mhla_tape *t) { return t->mode; }

mhla_tensor *mhla_tape_fail(mhla_tape *t, mhla_status status, const char *format, ...) {
    if (t->status != MHLA_OK) return NULL; /* the first failure counts */
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    t->status = mhla_fail(status, "%s", text);
    return NULL;
}

size_t mhla_tape_peak(const mhla_tape *t) { return t->meta.high + t->data.high + t->grads.high + t->scratch_high; }

mhla_mark mhla_tape_mark(const mhla_tape *t) { return (mhla_mark){t->meta.at, t->data.at}; }

enum { STRETCH = 16384, LEAST_STRETCH = 2048 }; /* elements of a task; at least, where threads would be idle */

static int64_t stretch_of(const mhla_tape *t, int64_t elements) {
    const int64_t share = elements / mhla_context_threads(t->context);
    return share >= STRETCH ? STRETCH : share > LEAST_STRETCH ? share : LEAST_STRETCH;
}

typedef struct copy {
    float *to;
    const float *from;
    int64_t n, cols, ld, rows; /* n rows, `rows` of them a task; `to` is contiguous */
} copy;

static void copy_task(void *arg, int64_t i, int worker) {
    const copy *c = arg;
    (void)worker;
    for (int64_t r = i * c->rows; r < (i + 1) * c->rows && r < c->n; r++)
        memmove(c->to + r * c->cols, c->from + r * c->ld, sizeof *c->to * (size_t)c->cols);
}

/* The new place lies below or at the old one, in the same or an earlier block: where they overlap, rows move one after the other. */
static void move_rows(mhla_tape *t, mhla_tensor *y, const mhla_tensor *old) {
    const uintptr_t to = (uintptr_t)y->data, from = (uintptr_t)old->data;
    const size_t bytes = sizeof *y->data * (size_t)(y->rows * y->cols);
    const int apart = from >= to + bytes || to >= from + sizeof *y->data * (size_t)(old->rows * old->ld);
    const int64_t stretch = stretch_of(t, y->rows * y->cols), rows = y->cols < stretch ? stretch / y->cols : 1;
    copy c = {y->data, old->data, y->rows, y->cols, old->ld, apart ? rows : y->rows};
    if (to != from || old->ld != y->ld) mhla_tape_run(t, (c.n + c.rows - 1) / c.rows, copy_task, &c);
}

mhla_tensor *mhla_tape_release(mhla_tape *t, mhla_mark mark, mhla_tensor *keep) {
    if (t->status != MHLA_OK || t->recording) return keep;
    mhla_tensor old = {0};
    if (keep) old = *keep;
    t->meta.at = mark.meta;
    t->data.at = mark.data;
    if (keep == NULL) return NULL;
    mhla_tensor *y = mhla_tape_tensor(t, old.shape, old.dims);
    if (y) move_rows(t, y, &old);
    return y;
}

/* ---- Tensors ---- */

void *mhla_tape_op(mhla_tape *t, size_t bytes) {
    if (t->status != MHLA_OK) return NULL;
    void *p = arena_take(&t->meta, bytes);
    if (p == NULL) return mhla_tape_fail(t, MHLA_ENOMEM, "no memory for a layer");
    return memset(p, 0, bytes);
}

float *mhla_tape_floats(mhla_tape *t, int64_t count) {
    if (t->status != MHLA_OK) return NULL;
    float *p = arena_take(&t->data, (size_t)count * sizeof *p);
    if (t->data.dry) return &untouched;
    if (p == NULL) mhla_tape_fail(t, MHLA_ENOMEM, "no memory for %lld numbers", (long long)count);
    return p;
}

static mhla_tensor *shaped(mhla_tape *t, const int64_t *shape, int dims) {
    MHLA_NEED(t, dims >= 1 && dims <= MHLA_MAX_DIMS, "a tensor of %d axes: expected 1 to %d", dims, MHLA_MAX_DIMS);
    mhla_tensor *x = mhla_tape_op(t, sizeof *x);
    if (x == NULL) return NULL;
    x->dims = dims;
    x->rows = 1;
    char text[96];
    for (int i = 0; i < dims; i++) {
        int64_t count;
        MHLA_NEED(t, shape[i] >= 1 && !__builtin_mul_overflow(x->rows, shape[i], &count) && count < INT64_MAX / 64,
                  "a tensor of shape %s", mhla_shape_text(text, shape, dims));
        x->shape[i] = shape[i];
        if (i < dims - 1) x->rows = count;
    }
    x->cols = x->ld = x->width = shape[dims - 1];
    x->serial = t->serial++;
    return x;
}

mhla_tensor *mhla_tape_tensor(mhla_tape *t, const int64_t *shape, int dims) {
    mhla_tensor *x = shaped(t, shape, dims);
    if (x == NULL) return NULL;
    x->data = mhla_tape_floats(t, x->rows * x->cols);
    return t->status == MHLA_OK ? x : NULL;
}

mhla_tensor *mhla_nn_input(mhla_tape *t, const float *data, const int64_t *shape, int dims) {
    if (t->status != MHLA_OK) return NULL;
    MHLA_NEED(t, data != NULL || mhla_tape_dry(t), "the data of an input is NULL");
    mhla_tensor *x = shaped(t, shape, dims);
    if (x) x->data = data ? (float *)data : &untouched;
    return x;
}

mhla_tensor *mhla_nn_variable(mhla_tape *t, const float *data, const int64_t *shape, int dims) {
    mhla_tensor *x = mhla_nn_input(t, data, shape, dims);
    if (x) x->needs_grad = 1;
    return x;
}

mhla_tensor *mhla_tape_view(mhla_tape *t, mhla_tensor *x, int64_t offset, int64_t width) {
    mhla_tensor *v = mhla_tape_op(t, sizeof *v);
    if (v == NULL) return NULL;
    mhla_tensor *base = x->base ? x->base : x;
    *v = *x;
    v->base = base;
    v->grad = NULL;
    v->has_grad = 0;
    v->views = v->next_view = NULL;
    v->serial = t->serial++;
    v->offset = x->base ? x->offset + offset : offset;
    v->data = base->data + v->offset;
    v->column = x->base ? x->column + offset : offset;
    v->width = x->base && x->width == 0 ? 0 : width;
    /* Not of a tensor that outlives this view: its list would end in memory that is given back. */
    if (base->serial < t->recompute) v->width = 0;
    if (t->recording && v->width) {
        v->next_view = base->views;
        base->views = v;
    }
    return v;
}

mhla_tensor *mhla_nn_slice(mhla_tape *t, mhla_tensor *x, int64_t first, int64_t count) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, first >= 0 && count >= 1 && first <= x->cols - count,
              "a slice of columns %lld to %lld: there are %lld", (long long)first, (long long)(first + count),
              (long long)x->cols);
    mhla_tensor *v = mhla_tape_view(t, x, first, x->width == x->cols ? count : 0); /* 0: of other rows than base's */
    if (v) v->shape[v->dims - 1] = v->cols = count;
    return v;
}

mhla_tensor *mhla_nn_reshape(mhla_tape *t, mhla_tensor *x, const int64_t *shape, int dims) {
    MHLA_GIVEN(t, x);
    char a[96], b[96];
    mhla_tensor *s = shaped(t, shape, dims);
    if (s == NULL) return NULL;
    MHLA_NEED(t, s->rows * s->cols == x->rows * x->cols, "a reshape of %s to %s", mhla_shape_text(a, x->shape, x->dims),
              mhla_shape_text(b, shape, dims));
    MHLA_NEED(t, x->ld == x->cols || s->cols == x->cols, "a reshape of rows that are not contiguous");
    const int whole = x->base == NULL || (x->width == x->base->cols && x->column == 0);
    mhla_tensor *v = mhla_tape_view(t, x, 0, whole || s->cols == x->cols ? x->width : 0);
    if (v == NULL) return NULL;
    v->dims = dims;
    memcpy(v->shape, s->shape, sizeof v->shape);
    v->rows = s->rows;
    v->cols = s->cols;
    v->ld = x->ld == x->cols ? s->cols : x->ld;
    return v;
}

const char *mhla_shape_text(char text[96], const int64_t *shape, int dims) {
    int at = 0;
    for (int i = 0; i < dims && at < 80; i++)
        at += snprintf(text + at, (size_t)(96 - at), "%s%lld", i ? ", " : "[", (long long)shape[i]);
    snprintf(text + at, (size_t)(96 - at), "]");
    return text;
}

int mhla_same_shape(const mhla_tensor *a, const mhla_tensor *b) {
    return a->dims == b->dims && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->dims) == 0;
}

void *mhla_tape_scratch(mhla_tape *t, size_t bytes) {
    if (bytes > t->scratch_high) t->scratch_high = bytes;
    if (t->status != MHLA_OK) return NULL;
    if (mhla_tape_dry(t)) return &untouched;
    if (t->scratch_bytes < bytes) { /* as much as a dry run has seen */
        mhla_free(t->scratch);
        t->scratch = mhla_alloc(t->scratch_high);
        t->scratch_bytes = t->scratch ? t->scratch_high : 0;
        if (t->scratch == NULL) mhla_tape_fail(t, MHLA_ENOMEM, "no memory for a workspace of %zu bytes", bytes);
    }
    return t->scratch;
}

mhla_tensor *mhla_tape_record(mhla_tape *t, mhla_record *r, void (*backward)(mhla_tape *t, void *op), mhla_tensor *y,
                              int needs) {
    if (t->status != MHLA_OK) return NULL;
    y->needs_grad = needs;
    if (!mhla_tape_keeps(t, needs)) return y;
    r->backward = backward;
    r->out = y;
    r->previous = t->last;
    t->last = r;
    return y;
}

/* ---- Gradients ---- */

static size_t grad_bytes(const mhla_tensor *x) { return round_up((size_t)(x->rows * x->cols) * sizeof(float)); }

static float *grad_take(mhla_tape *t, size_t bytes) {
    for (int i = 0; i < t->n_free; i++)
        if (t->free[i].bytes == bytes) {
            float *p = t->free[i].memory;
            t->free[i] = t->free[--t->n_free];
            return p;
        }
    float *p = arena_take(&t->grads, bytes);
    if (t->grads.dry) return &untouched;
    if (p == NULL) mhla_tape_fail(t, MHLA_ENOMEM, "no memory for a gradient of %zu bytes", bytes);
    return p;
}

float *mhla_tape_borrow(mhla_tape *t, const mhla_tensor *y) { return grad_take(t, grad_bytes(y)); }

void mhla_tape_return(mhla_tape *t, const mhla_tensor *y, float *memory) {
    if (memory == NULL || t->n_free == MHLA_FREE_GRADS) return;
    t->free[t->n_free].memory = memory;
    t->free[t->n_free++].bytes = grad_bytes(y);
}

static void grad_give(mhla_tape *t, mhla_tensor *x) {
    mhla_tape_return(t, x, x->grad);
    x->grad = NULL;
    x->has_grad = 0;
}

static void zero_columns(mhla_tensor *base, int64_t column, int64_t width) {
    if (base->grad == &untouched) return;
    if (width == base->cols)
        memset(base->grad, 0, (size_t)(base->rows * width) * sizeof(float));
    else
        for (int64_t r = 0; r < base->rows; r++)
            memset(base->grad + r * base->cols + column, 0, (size_t)width * sizeof(float));
}

/* Whether the views of base cover each of its columns once. */
static int tiled(const mhla_tensor *base) {
    int64_t covered = 0;
    for (const mhla_tensor *a = base->views; a; a = a->next_view) {
        covered += a->width;
        for (const mhla_tensor *b = a->next_view; b; b = b->next_view)
            if (a->column < b->column + b->width && b->column < a->column + a->width) return 0;
    }
    return covered == base->cols;
}

/* All of base's gradient is there from now on: what no view has got is zeroed. */
static void complete(mhla_tensor *base) {
    if (base->has_grad) return;
    for (mhla_tensor *v = base->views; v; v = v->next_view)
        if (!v->has_grad) zero_columns(base, v->column, v->width);
    base->has_grad = 1;
}

static int any_view(const mhla_tensor *base) {
    for (const mhla_tensor *v = base->views; v; v = v->next_view)
        if (v->has_grad) return 1;
    return 0;
}

mhla_slot mhla_tape_grad(mhla_tape *t, mhla_tensor *x) {
    if (x == NULL || !x->needs_grad || t->status != MHLA_OK) return (mhla_slot){0};
    mhla_tensor *base = x->base ? x->base : x;
    if (base->grad == NULL) {
        base->grad = grad_take(t, grad_bytes(base));
        if (base->grad == NULL) return (mhla_slot){0};
        base->has_grad = 0;
        for (mhla_tensor *v = base->views; v; v = v->next_view) v->has_grad = 0;
        if (x != base && (x->width == 0 || !tiled(base))) {
            zero_columns(base, 0, base->cols);
            base->has_grad = 1;
        }
    }
    mhla_slot s = {.wanted = 1, .ld = x->ld};
    if (x == base || x->width == 0) {
        const int partly = any_view(base);
        s.add = base->has_grad || partly;
        if (partly) complete(base);
        base->has_grad = 1;
    } else {
        s.add = base->has_grad || x->has_grad;
        x->has_grad = 1;
    }
    s.data = base->grad + (x->base ? x->offset : 0);
    return s;
}

float *mhla_tape_arrived(const mhla_tensor *y) {
    const mhla_tensor *base = y->base ? y->base : y;
    return base->grad + (y->base ? y->offset : 0);
}

const float *mhla_tensor_grad(mhla_tensor *x) {
    if (x == NULL || x->base || x->grad == NULL || x->grad == &untouched) return NULL;
    complete(x);
    return x->grad;
}

mhla_slot mhla_tape_param_grad(mhla_tape *t, mhla_param *p) {
    if (!mhla_param_trains(p) || t->status != MHLA_OK) return (mhla_slot){0};
    if (mhla_tape_dry(t)) return (mhla_slot){.wanted = 1, .data = &untouched, .ld = p->count};
    if (p->grad == NULL) {
        p->grad = mhla_alloc((size_t)p->count * sizeof(float));
        if (p->grad == NULL) {
            mhla_tape_fail(t, MHLA_ENOMEM, "no memory for the gradient of %s", p->name);
            return (mhla_slot){0};
        }
        p->has_grad = 0;
    }
    const mhla_slot s = {1, p->has_grad, p->grad, p->count};
    p->has_grad = 1;
    p->touched++;
    return s;
}

int mhla_tape_join(const mhla_tape *t, const mhla_slot *s, mhla_tensor *const *x, int n) {
    int add = 0;
    for (int i = 0; i < n; i++) add |= s[i].wanted && s[i].add;
    for (int i = 0; add && !mhla_tape_dry(t) && t->status == MHLA_OK && i < n; i++)
        for (int64_t r = 0; s[i].wanted && !s[i].add && r < x[i]->rows; r++)
            memset(s[i].data + r * s[i].ld, 0, sizeof(float) * (size_t)x[i]->cols);
    return add;
}

void mhla_tape_pass_grad(mhla_tape *t, mhla_tensor *x, mhla_tensor *y) {
    if (x == NULL || !x->needs_grad || t->status != MHLA_OK) return;
    if (!x->base && !x->views && !x->grad && !y->base && y->grad && x->rows * x->cols == y->rows * y->cols) {
        x->grad = y->grad;
        x->has_grad = 1;
        y->grad = NULL;
        return;
    }
    const mhla_slot dx = mhla_tape_grad(t, x);
    mhla_tape_blend(t, &(mhla_blend){.n = x->rows,
                                     .cols = x->cols,
                                     .y = dx.data,
                                     .ldy = dx.ld,
                                     .x = mhla_tape_arrived(y),
                                     .ldx = y->ld,
                                     .alpha = 1.0f,
                                     .add = dx.add});
}

/* ---- Backward ---- */

static void walk(mhla_tape *t) {
    for (mhla_record *r = t->last; r && t->status == MHLA_OK; r = t->last) {
        t->last = r->previous;
        mhla_tensor *y = r->out, *base = y->base ? y->base : y;
        if (base->grad == NULL) continue; /* the loss does not depend on it */
        if (y == base)
            complete(base);
        else if (!base->has_grad && !y->has_grad)
            continue;
        r->backward(t, r);
        if (y == base) grad_give(t, y);
        if (t->after) t->after(t->after_arg);
    }
}

static mhla_status start_backward(mhla_tape *t, mhla_tensor *y, const float *dy, float scale) {
    if (t->status != MHLA_OK) return t->status;
    if (y == NULL || !t->recording) {
        mhla_tape_fail(t, MHLA_EINVAL,
                       y ? "backward of a tape that has not recorded" : "backward of a loss that is NULL");
        return t->status;
    }
    if (!y->needs_grad) return MHLA_OK; /* everything is frozen */
    const mhla_slot d = mhla_tape_grad(t, y);
    if (t->status == MHLA_OK && !mhla_tape_dry(t))
        for (int64_t r = 0; r < y->rows; r++)
            for (int64_t c = 0; c < y->cols; c++) d.data[r * d.ld + c] = dy ? dy[r * y->cols + c] : scale;
    walk(t);
    return t->status;
}

mhla_status mhla_tape_backward(mhla_tape *t, mhla_tensor *loss, float scale) {
    if (t->status == MHLA_OK && loss && loss->rows * loss->cols != 1)
        mhla_tape_fail(t, MHLA_EINVAL, "backward of a loss of %lld elements", (long long)(loss->rows * loss->cols));
    return start_backward(t, loss, NULL, scale);
}

mhla_status mhla_tape_backward_from(mhla_tape *t, mhla_tensor *y, const float *dy) {
    return start_backward(t, y, dy, 1.0f);
}

/* ---- Recomputation ---- */

typedef struct checkpoint {
    mhla_record r;
    mhla_block_fn block;
    const void *arg;
    mhla_tensor *x;
    uint32_t place;
} checkpoint;

/* y = block(x), run again and recorded: what is inside lives until its backward is done. */
static void checkpoint_backward(mhla_tape *t, void *p) {
    checkpoint *op = p;
    mhla_tensor *dy = op->r.out;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_record *rest = t->last;
    const int64_t recompute = t->recompute;
    const uint32_t place = t->place;
    t->last = NULL;
    t->recompute = t->serial;
    t->place = op->place;
    mhla_tensor *y = op->block(t, op->arg, op->x);
    if (y) {
        mhla_tape_pass_grad(t, y, dy);
        walk(t);
    }
    t->last = rest;
    t->recompute = recompute;
    t->place = place;
    t->meta.at = mark.meta;
    t->data.at = mark.data;
}

mhla_tensor *mhla_nn_checkpoint(mhla_tape *t, mhla_block_fn block, const void *arg, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    const int recording = t->recording;
    checkpoint *op = mhla_tape_op(t, sizeof *op);
    if (op == NULL) return NULL;
    *op = (checkpoint){.block = block, .arg = arg, .x = x, .place = t->place};
    const mhla_mark mark = mhla_tape_mark(t);
    t->recording = 0;
    mhla_tensor *y = block(t, arg, x);
    const int needs = y && y->needs_grad;
    y = mhla_tape_release(t, mark, y);
    t->recording = recording;
    if (y == NULL) return NULL;
    return mhla_tape_record(t, &op->r, checkpoint_backward, y, needs);
}

/* ---- Work on rows ---- */

typedef struct blend_work {
    const mhla_kernels *kernels;
    mhla_blend b;
    int64_t rows;
} blend_work;

static void blend_task(void *arg, int64_t i, int worker) {
    const blend_work *w = arg;
    (void)worker;
    mhla_blend b = w->b;
    const int64_t first = i * w->rows;
    b.n = b.n - first < w->rows ? b.n - first : w->rows;
    b.y += first * b.ldy;
    b.x += first * b.ldx;
    if (b.z) b.z += first * b.ldz;
    if (b.r) b.r += first * b.ldr;
    w->kernels->blend(&b);
}

void mhla_tape_blend(mhla_tape *t, const mhla_blend *b) {
    const int64_t stretch = stretch_of(t, b->n * b->cols), rows = b->cols < stretch ? stretch / b->cols : 1;
    blend_work w = {t->kernels, *b, rows};
    mhla_tape_run(t, (b->n + rows - 1) / rows, blend_task, &w);
}

typedef struct blends_work {
    const mhla_kernels *kernels;
    mhla_blends s;
    int64_t parts; /* of a sample's rows */
} blends_work;

static void blends_task(void *arg, int64_t task, int worker) {
    const blends_work *w = arg;
    (void)worker;
    const mhla_blends *s = &w->s;
    mhla_blend b = s->b;
    const int64_t i = task / w->parts, part = task % w->parts;
    const int64_t first = part * b.n / w->parts, last = (part + 1) * b.n / w->parts;
    b.n = last - first;
    b.y += i * s->y_step + first * b.ldy;
    b.x += i * s->x_step + first * b.ldx;
    if (b.z) b.z += i * s->z_step + first * b.ldz;
    if (b.r) b.r += i * s->r_step + first * b.ldr;
    if (s->alpha) b.alpha = s->alpha[i];
    w->kernels->blend(&b);
}

void mhla_tape_blends(mhla_tape *t, const mhla_blends *s, int64_t B) {
    const int64_t each = s->b.n * s->b.cols, stretch = stretch_of(t, B * each);
    blends_work w = {t->kernels, *s, (each + stretch - 1) / stretch};
    if (w.parts > s->b.n) w.parts = s->b.n;
    mhla_tape_run(t, B * w.parts, blends_task, &w);
}

typedef struct reduce_work {
    const mhla_kernels *kernels;
    float *dst;
    int add;
    const float *parts;
    int64_t n, stride, count;
} reduce_work;

static void reduce_task(void *arg, int64_t i, int worker) {
    const reduce_work *w = arg;
    (void)worker;
    const int64_t at = i * STRETCH, count = w->count - at < STRETCH ? w->count - at : STRETCH;
    if (!w->add) memcpy(w->dst + at, w->parts + at, (size_t)count * sizeof(float));
    for (int64_t p = w->add ? 0 : 1; p < w->n; p++)
        w->kernels->axpy(w->dst + at, 1.0f, w->parts + p * w->stride + at, count);
}

void mhla_tape_reduce(mhla_tape *t, float *dst, int add, const float *parts, int64_t n, int64_t stride, int64_t count) {
    reduce_work w = {t->kernels, dst, add, parts, n, stride, count};
    mhla_tape_run(t, (count + STRETCH - 1) / STRETCH, reduce_task, &w);
}
