/* A layer against its definition: the forward in double, and gradients against central differences of that forward. Each
 * case is run three times: plain, on every instruction set; with a second consumer of every input, so that gradients are
 * added; and with inputs that are slices of wider rows. */
#ifndef MHLA_TESTS_LAYER_CASE_H
#define MHLA_TESTS_LAYER_CASE_H

#include "nn/nn.h"
#include "support.h"

enum { MAX_INPUTS = 6, WIDER = 5, SHIFT = 2 };

/* The library's memory full of NaN: what is read before it is written shows. */
static inline void *poisoned_alloc(size_t n) {
    void *p = malloc(n);
    if (p) memset(p, 0xff, n);
    return p;
}
static inline int poison(void **state) {
    (void)state;
    mhla_set_allocator(poisoned_alloc, free);
    return 0;
}

typedef struct input {
    int is_param, dims;
    int64_t shape[MHLA_MAX_DIMS], count;
    double *d; /* values, exact in float32 */
    mhla_tensor *x, *whole;
    mhla_param *p;
    float *f;     /* memory of x or of the wider rows */
    double *grad; /* of sum y dy, by differences; the same in all modes */
} input;

typedef struct layer_case layer_case;
struct layer_case {
    const char *name;
    int n;
    input in[MAX_INPUTS];
    mhla_tensor *(*build)(mhla_tape *t, const layer_case *c);
    void (*reference)(double *y, const layer_case *c);
    const void *arg;
    double tolerance; /* 0 = 2e-5 */
    unsigned drop;    /* MHLA_TAPE_DROP */
    int no_slices;    /* the layer wants contiguous inputs */
    mhla_params *params;
};

static inline void add_input(layer_case *c, rng *r, int is_param, const int64_t *shape, int dims) {
    input *in = &c->in[c->n++];
    *in = (input){.is_param = is_param, .dims = dims, .count = 1};
    for (int i = 0; i < dims; i++) in->count *= in->shape[i] = shape[i];
    in->d = new_bytes(sizeof(double) * (size_t)in->count);
    for (int64_t i = 0; i < in->count; i++) in->d[i] = (double)rng_signed(r);
    if (!is_param) return;
    char name[16];
    snprintf(name, sizeof name, "p%d", c->n);
    if (c->params == NULL) ASSERT_OK(mhla_params_create(&c->params));
    in->p = mhla_params_add(c->params, name, shape, dims, 0, MHLA_ZERO);
    assert_non_null(in->p);
    for (int64_t i = 0; i < in->count; i++) in->p->data[i] = (float)in->d[i];
    mhla_param_touch(in->p);
}
#define VARIABLE(c, r, ...) add_input((c), (r), 0, MHLA_SHAPE(__VA_ARGS__))
#define PARAMETER(c, r, ...) add_input((c), (r), 1, MHLA_SHAPE(__VA_ARGS__))

/* Tensors of the inputs, whole or sliced. */
static inline void place_inputs(mhla_tape *t, layer_case *c, int sliced) {
    for (int i = 0; i < c->n; i++) {
        input *in = &c->in[i];
        if (in->is_param) continue;
        const int64_t cols = in->shape[in->dims - 1], ld = sliced ? cols + WIDER : cols, rows = in->count / cols;
        int64_t shape[MHLA_MAX_DIMS];
        memcpy(shape, in->shape, sizeof shape);
        shape[in->dims - 1] = ld;
        free(in->f);
        in->f = new_poisoned(rows * ld);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++) in->f[r * ld + (sliced ? SHIFT : 0) + j] = (float)in->d[r * cols + j];
        in->whole = mhla_nn_variable(t, in->f, shape, in->dims);
        in->x = sliced ? mhla_nn_slice(t, in->whole, SHIFT, cols) : in->whole;
    }
}

/* y beside 0.5 x of every input, as one column of numbers. */
static inline mhla_tensor *with_second_consumers(mhla_tape *t, const layer_case *c, mhla_tensor *y) {
    y = mhla_nn_reshape(t, y, MHLA_SHAPE(1, y->rows * y->cols, 1));
    for (int i = 0; i < c->n; i++)
        if (!c->in[i].is_param) {
            mhla_tensor *x = mhla_nn_scale(t, 0.5f, c->in[i].x);
            y = mhla_nn_concat_tokens(t, y, mhla_nn_reshape(t, x, MHLA_SHAPE(1, c->in[i].count, 1)));
        }
    return y;
}

static inline double largest(const double *x, int64_t n) {
    double m = 1e-30;
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) > m) m = fabs(x[i]);
    return m;
}

static inline void assert_near(const layer_case *c, const char *what, int i, const float *got, int64_t ld, int64_t cols,
                               const double *want, int64_t n, double tolerance) {
    const double size = largest(want, n);
    for (int64_t e = 0; e < n; e++) {
        const double error = fabs((double)got[e / cols * ld + e % cols] - want[e]) / size;
        if (!(error <= tolerance)) {
            print_error("%s, %s %d: element %lld is %.9g, expected %.9g (%.2g of the largest)\n", c->name, what, i,
                        (long long)e, (double)got[e / cols * ld + e % cols], want[e], error);
            fail();
        }
    }
}

/* The derivative of sum y dy by each element of an input, by differences in double. */
static inline double *differences(const layer_case *c, input *in, const float *dy, double *y, int64_t n) {
    double *grad = new_bytes(sizeof(double) * (size_t)in->count);
    for (int64_t e = 0; e < in->count; e++) {
        const double h = 1e-5, x = in->d[e];
        double sum = 0.0;
        in->d[e] = x + h;
        c->reference(y, c);
        for (int64_t j = 0; j < n; j++) sum += y[j] * (double)dy[j];
        in->d[e] = x - h;
        c->reference(y, c);
        for (int64_t j = 0; j < n; j++) sum -= y[j] * (double)dy[j];
        in->d[e] = x;
        grad[e] = sum / (2.0 * h);
    }
    return grad;
}

static inline void check_mode(layer_case *c, mhla_tape *t, int mode) {
    const double tolerance = c->tolerance > 0.0 ? c->tolerance : 2e-5;
    rng r = {99};
    if (c->params) { /* what an earlier instruction set has packed is not used */
        mhla_params_set_precision(c->params, MHLA_BF16);
        mhla_params_set_precision(c->params, MHLA_F32);
    }
    mhla_tape_begin(t, MHLA_TAPE_RECORD | c->drop);
    mhla_tape_key(t, 7, 3, 10);
    place_inputs(t, c, mode == 2);
    mhla_tensor *y = c->build(t, c);
    ASSERT_OK(mhla_tape_status(t));
    const int64_t n = y->rows * y->cols;
    double *want = new_bytes(sizeof(double) * (size_t)n), *a = new_bytes(sizeof(double) * (size_t)n);
    c->reference(want, c);
    assert_near(c, "output of mode", mode, y->data, y->ld, y->cols, want, n, tolerance / 4);

    mhla_tensor *out = mode == 1 ? with_second_consumers(t, c, y) : y;
    float *dy = new_random(&r, out->rows * out->cols);
    ASSERT_OK(mhla_tape_backward_from(t, out, dy));
    int64_t second = n;
    for (int i = 0; i < c->n; i++) {
        input *in = &c->in[i];
        if (in->grad == NULL) in->grad = differences(c, in, dy, a, n);
        double *grad = new_bytes(sizeof(double) * (size_t)in->count);
        for (int64_t e = 0; e < in->count; e++)
            grad[e] = in->grad[e] + (mode == 1 && !in->is_param ? 0.5 * (double)dy[second++] : 0.0);
        const int64_t cols = in->shape[in->dims - 1];
        if (in->is_param) {
            assert_true(in->p->has_grad);
            assert_near(c, "gradient of parameter", i, in->p->grad, cols, cols, grad, in->count, tolerance);
        } else {
            const float *dx = mhla_tensor_grad(in->whole);
            assert_non_null(dx);
            assert_near(c, "gradient of input", i, dx + (mode == 2 ? SHIFT : 0), in->whole->cols, cols, grad, in->count,
                        tolerance);
            for (int64_t e = 0; mode == 2 && e < in->whole->rows; e++) assert_true(dx[e * in->whole->cols] == 0.0f);
        }
        free(grad);
    }
    if (c->params) mhla_params_clear_grads(c->params);
    free(want);
    free(a);
    free(dy);
}

static inline void check_case(layer_case *c) {
    mhla_context *context = new_context(2);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, context));
    for (int mode = 0; mode < (c->no_slices ? 2 : 3); mode++) check_mode(c, t, mode);
    const char *isas[8];
    for (int i = isa_names(isas, 8) - 2; i >= 0; i--) { /* the best one is done */
        ASSERT_OK(mhla_set_isa(isas[i]));
        check_mode(c, t, 0);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    for (int i = 0; i < c->n; i++) {
        free(c->in[i].d);
        free(c->in[i].f);
        free(c->in[i].grad);
    }
    mhla_params_free(c->params);
    mhla_tape_free(t);
    mhla_context_free(context);
}

#endif
