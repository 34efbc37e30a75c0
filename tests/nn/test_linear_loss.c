/* Cross entropy behind an output matrix, in pieces: loss, gradients and the rows' own losses against the definition in
 * double, over the border of pieces, for any number of threads to the bit; the published golden. */
#include "goldens.h"
#include "nn/nn.h"

typedef struct problem {
    int64_t rows, D, N;
    float *x, *w;
    int32_t *labels;
    float cap;
} problem;

static problem make(uint64_t seed, int64_t rows, int64_t D, int64_t N, int ignored) {
    rng r = {seed};
    problem p = {rows, D, N, new_random(&r, rows * D), new_random(&r, N * D), NULL, 0.0f};
    p.labels = new_bytes((size_t)rows * sizeof *p.labels);
    for (int64_t i = 0; i < rows; i++) p.labels[i] = ignored && rng_below(&r, 4) == 0 ? -100 : rng_below(&r, (int)N);
    return p;
}

static void unmake(problem *p) {
    free(p->x);
    free(p->w);
    free(p->labels);
}

/* What a run gives: poisoned, then filled. */
typedef struct result {
    float loss, *losses, *dx, *dw;
    size_t peak;
} result;

static result run(const problem *p, int threads, float scale) {
    mhla_context *context = new_context(threads);
    mhla_params *ps;
    mhla_tape *t;
    ASSERT_OK(mhla_params_create(&ps));
    ASSERT_OK(mhla_tape_create(&t, context));
    mhla_param *w = mhla_params_add(ps, "output", MHLA_SHAPE(p->N, p->D), 0, MHLA_ZERO);
    memcpy(w->data, p->w, sizeof(float) * (size_t)(p->N * p->D));
    mhla_param_touch(w);
    result r = {.losses = new_poisoned(p->rows), .dx = new_poisoned(p->rows * p->D), .dw = new_poisoned(p->N * p->D)};
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_variable(t, p->x, MHLA_SHAPE(1, p->rows, p->D));
    mhla_tensor *loss = mhla_nn_capped_cross_entropy(t, w, p->cap, x, p->labels, scale, r.losses);
    ASSERT_OK(mhla_tape_status(t));
    r.loss = loss->data[0];
    ASSERT_OK(mhla_tape_backward(t, loss, scale));
    memcpy(r.dx, mhla_tensor_grad(x), sizeof(float) * (size_t)(p->rows * p->D));
    memcpy(r.dw, w->grad, sizeof(float) * (size_t)(p->N * p->D));
    r.peak = mhla_tape_peak(t);
    /* inference gives the same loss and wants no gradients */
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    x = mhla_nn_input(t, p->x, MHLA_SHAPE(p->rows, p->D));
    loss = mhla_nn_capped_cross_entropy(t, w, p->cap, x, p->labels, 1.0f, NULL);
    assert_true(loss->data[0] == r.loss);
    mhla_tape_free(t);
    mhla_params_free(ps);
    mhla_context_free(context);
    return r;
}

static void drop(result *r) {
    free(r->losses);
    free(r->dx);
    free(r->dw);
}

/* loss = mean over rows that count of log sum exp(x W^T) - (x W^T)_label, and its gradients, as they are written. */
static result define(const problem *p, double scale) {
    double *dx = calloc((size_t)(p->rows * p->D), sizeof *dx), *dw = calloc((size_t)(p->N * p->D), sizeof *dw);
    double *y = new_bytes((size_t)p->N * sizeof *y), *slope = new_bytes((size_t)p->N * sizeof *slope), sum = 0.0;
    int64_t counted = 0;
    result r = {.losses = new_poisoned(p->rows), .dx = new_poisoned(p->rows * p->D), .dw = new_poisoned(p->N * p->D)};
    for (int64_t i = 0; i < p->rows; i++) counted += p->labels[i] >= 0;
    for (int64_t i = 0; i < p->rows; i++) {
        r.losses[i] = 0.0f;
        if (p->labels[i] < 0) continue;
        double total = 0.0;
        for (int64_t j = 0; j < p->N; j++) {
            y[j] = 0.0;
            for (int64_t d = 0; d < p->D; d++) y[j] += (double)p->x[i * p->D + d] * (double)p->w[j * p->D + d];
            slope[j] = 1.0;
            if (p->cap > 0.0f) {
                const double t = tanh(y[j] / (double)p->cap);
                y[j] = (double)p->cap * t;
                slope[j] = 1.0 - t * t;
            }
            total += exp(y[j]);
        }
        const double loss = log(total) - y[p->labels[i]];
        r.losses[i] = (float)loss;
        sum += loss;
        for (int64_t j = 0; j < p->N; j++) {
            const double g = slope[j] * scale * (exp(y[j]) / total - (j == p->labels[i])) / (double)counted;
            for (int64_t d = 0; d < p->D; d++) {
                dx[i * p->D + d] += g * (double)p->w[j * p->D + d];
                dw[j * p->D + d] += g * (double)p->x[i * p->D + d];
            }
        }
    }
    r.loss = (float)(sum / (double)(counted ? counted : 1));
    for (int64_t i = 0; i < p->rows * p->D; i++) r.dx[i] = (float)dx[i];
    for (int64_t i = 0; i < p->N * p->D; i++) r.dw[i] = (float)dw[i];
    free(dx);
    free(dw);
    free(y);
    free(slope);
    return r;
}

static void against_definition(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 2}, {7, 5, 3}, {64, 33, 50}, {130, 16, 257}, {200, 4, 150001}};
    for (int i = 0; i < 8; i++) {
        problem p = make((uint64_t)i, sizes[i % 5][0], sizes[i % 5][1], sizes[i % 5][2], i > 0);
        p.cap = i < 5 ? 0.0f : 0.7f;
        result want = define(&p, 0.7), got = run(&p, 2, 0.7f);
        assert_true(fabs((double)got.loss - (double)want.loss) < 1e-5 * (1.0 + fabs((double)want.loss)));
        assert_true(relative_error(got.losses, want.losses, p.rows) < 1e-5);
        assert_true(relative_error(got.dx, want.dx, p.rows * p.D) < 2e-5);
        assert_true(relative_error(got.dw, want.dw, p.N * p.D) < 2e-5);
        drop(&want);
        drop(&got);
        unmake(&p);
    }
}

/* Several pieces of rows: memory is that of one, threads do not show. */
static void pieces(void **state) {
    (void)state;
    problem p = make(9, 700, 8, 60000, 1);
    result one = run(&p, 1, 1.0f), three = run(&p, 3, 1.0f);
    assert_true(one.loss == three.loss);
    assert_memory_equal(one.losses, three.losses, sizeof(float) * (size_t)p.rows);
    assert_memory_equal(one.dx, three.dx, sizeof(float) * (size_t)(p.rows * p.D));
    assert_memory_equal(one.dw, three.dw, sizeof(float) * (size_t)(p.N * p.D));
    assert_true(one.peak < sizeof(float) * (size_t)(p.rows * p.N) / 2);
    drop(&one);
    drop(&three);
    unmake(&p);
}

static void nothing_counts(void **state) {
    (void)state;
    problem p = make(3, 5, 4, 6, 0);
    for (int i = 0; i < 5; i++) p.labels[i] = -1;
    result r = run(&p, 1, 1.0f);
    assert_true(r.loss == 0.0f);
    for (int i = 0; i < 20; i++) assert_true(r.dx[i] == 0.0f);
    for (int i = 0; i < 24; i++) assert_true(r.dw[i] == 0.0f);
    drop(&r);
    unmake(&p);
}

/* Gradients are added: twice the same is twice as much; a frozen matrix gets none. */
static void added(void **state) {
    (void)state;
    problem p = make(4, 40, 8, 30, 1);
    result once = run(&p, 1, 1.0f);
    mhla_params *ps;
    mhla_tape *t;
    ASSERT_OK(mhla_params_create(&ps));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_param *w = mhla_params_add(ps, "output", MHLA_SHAPE(p.N, p.D), 0, MHLA_ZERO);
    memcpy(w->data, p.w, sizeof(float) * (size_t)(p.N * p.D));
    mhla_param_touch(w);
    for (int i = 0; i < 2; i++) {
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *x = mhla_nn_variable(t, p.x, MHLA_SHAPE(p.rows, p.D));
        ASSERT_OK(mhla_tape_backward(t, mhla_nn_linear_cross_entropy(t, w, x, p.labels, 1.0f, NULL), 1.0f));
    }
    for (int64_t i = 0; i < p.N * p.D; i++) assert_true(fabs((double)w->grad[i] - 2.0 * (double)once.dw[i]) < 1e-6);
    mhla_params_clear_grads(ps);
    w->flags |= MHLA_PARAM_FROZEN;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_variable(t, p.x, MHLA_SHAPE(p.rows, p.D));
    ASSERT_OK(mhla_tape_backward(t, mhla_nn_linear_cross_entropy(t, w, x, p.labels, 1.0f, NULL), 1.0f));
    assert_int_equal(w->has_grad, 0);
    assert_memory_equal(mhla_tensor_grad(x), once.dx, sizeof(float) * (size_t)(p.rows * p.D));
    mhla_tape_free(t);
    mhla_params_free(ps);
    drop(&once);
    unmake(&p);
}

static void failures(void **state) {
    (void)state;
    problem p = make(5, 4, 8, 6, 0);
    mhla_params *ps;
    mhla_tape *t;
    ASSERT_OK(mhla_params_create(&ps));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_param *w = mhla_params_add(ps, "output", MHLA_SHAPE(p.N, p.D), 0, MHLA_ZERO);
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_variable(t, p.x, MHLA_SHAPE(4, 8));
    ASSERT_FAILS(mhla_tape_backward(t, mhla_nn_linear_cross_entropy(t, w, x, p.labels, 0.5f, NULL), 1.0f), MHLA_EINVAL,
                 "backward with 1, but the loss of output was made for 0.5");
    p.labels[2] = 6;
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_nn_linear_cross_entropy(t, w, mhla_nn_input(t, p.x, MHLA_SHAPE(4, 8)), p.labels, 1.0f, NULL));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "labels[2] is 6: output has 6 rows");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_nn_linear_cross_entropy(t, w, mhla_nn_input(t, p.x, MHLA_SHAPE(8, 4)), p.labels, 1.0f, NULL));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "output is [6, 8]: its input has rows of 4");
    mhla_tape_free(t);
    mhla_params_free(ps);
    unmake(&p);
}

/* The golden has logits; behind the identity they are the hidden states. */
static void check_published(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)path;
    const mhla_stored *stored, *labels;
    ASSERT_OK(mhla_safetensors_need(&stored, f, "in.logits"));
    ASSERT_OK(mhla_safetensors_need(&labels, f, "in.labels"));
    const int64_t n = stored->shape[stored->rank - 1], rows = stored->count / n,
                  ignored = json_integer_value(json_object_get(said, "ignore_index"));
    float *logits = golden(f, "in.", "logits"), *loss = golden(f, "out.", "loss"), *dout = golden(f, "dout.", "loss"),
          *grad = golden(f, "grad.", "logits");
    problem p = {rows, n, n, logits, calloc((size_t)(n * n), sizeof(float)), new_bytes((size_t)rows * sizeof(int32_t)),
                 0.0f};
    for (int64_t i = 0; i < n; i++) p.w[i * n + i] = 1.0f;
    for (int64_t i = 0; i < rows; i++) {
        int64_t label;
        memcpy(&label, labels->data + 8 * i, 8);
        p.labels[i] = label == ignored ? -1 : (int32_t)label;
    }
    result r = run(&p, 2, *dout);
    assert_true(fabsf(r.loss - *loss) < 1e-5f * fabsf(*loss));
    assert_true(relative_error(r.dx, grad, rows * n) < 1e-5);
    drop(&r);
    unmake(&p);
    free(loss);
    free(dout);
    free(grad);
}

static void published(void **state) {
    (void)state;
    each_golden("op", "cross_entropy", check_published);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_definition), cmocka_unit_test(pieces),
        cmocka_unit_test(nothing_counts),     cmocka_unit_test(added),
        cmocka_unit_test(failures),           cmocka_unit_test(published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
