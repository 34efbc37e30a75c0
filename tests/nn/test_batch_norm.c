/* Batch norm and layer scale against their definitions in double, outputs and gradients; running statistics, which training
 * moves once for each batch and nothing else does; large means; any number of threads. */
#include "core/rng.h"
#include "layer_case.h"
#include "nn/optim.h"
#include "ops/product/product.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

enum { MOST = 80 };
static const float eps = 1e-5f;

/* Buffers that no list owns. */
typedef struct buffers {
    float mean[MOST], var[MOST], batches[1];
    mhla_param m, v, n;
} buffers;

static void make_buffers(buffers *b, int64_t C) {
    for (int64_t i = 0; i < C; i++) {
        b->mean[i] = 0.1f * (float)i - 0.3f;
        b->var[i] = 0.5f + 0.03f * (float)i;
    }
    b->batches[0] = 7.0f;
    b->m = (mhla_param){.name = "running_mean", .count = C, .flags = MHLA_PARAM_BUFFER, .data = b->mean};
    b->v = (mhla_param){.name = "running_var", .count = C, .flags = MHLA_PARAM_BUFFER, .data = b->var};
    b->n = (mhla_param){.name = "num_batches_tracked", .count = 1, .flags = MHLA_PARAM_BUFFER, .data = b->batches};
}

typedef struct norm_arg {
    mhla_activation activation;
    int batch;
    buffers *b;
} norm_arg;

static mhla_tensor *norm_build(mhla_tape *t, const layer_case *c) {
    const norm_arg *a = c->arg;
    make_buffers(a->b, S(0, c->in[0].dims - 1));
    const mhla_batch_norm n = {P(1), P(2), &a->b->m, &a->b->v, &a->b->n, eps, 0.1f};
    return mhla_nn_batch_norm(t, &n, a->activation, X(0));
}

static void norm_reference(double *y, const layer_case *c) {
    const norm_arg *a = c->arg;
    const int64_t C = S(0, c->in[0].dims - 1), n = c->in[0].count / C;
    buffers fresh;
    make_buffers(&fresh, C);
    for (int64_t j = 0; j < C; j++) {
        double mean = 0.0, var = 0.0;
        for (int64_t i = 0; i < n; i++) mean += D(0)[i * C + j] / (double)n;
        for (int64_t i = 0; i < n; i++) var += (D(0)[i * C + j] - mean) * (D(0)[i * C + j] - mean) / (double)n;
        if (!a->batch) mean = (double)fresh.mean[j], var = (double)fresh.var[j];
        for (int64_t i = 0; i < n; i++) {
            const double u = (D(0)[i * C + j] - mean) / sqrt(var + (double)eps) * D(1)[j] + D(2)[j];
            y[i * C + j] = mhla_activation_value(a->activation, u);
        }
    }
}

static void layer(void **state) {
    (void)state;
    rng r = {1};
    static buffers b;
    const mhla_activation activations[] = {MHLA_ACT_NONE, MHLA_ACT_GELU_ERF, MHLA_ACT_SILU};
    const int64_t sizes[][2] = {{2, 3}, {5, 1}, {70, 17}, {3, 67}};
    for (int batch = 0; batch < 2; batch++)
        for (int a = 0; a < 3; a++)
            for (int s = 0; s < 4; s++) {
                const norm_arg arg = {activations[a], batch, &b};
                layer_case c = {.name = "batch norm",
                                .build = norm_build,
                                .reference = norm_reference,
                                .arg = &arg,
                                .tolerance = 1e-4,
                                .drop = batch ? MHLA_TAPE_DROP : 0};
                VARIABLE(&c, &r, 2, sizes[s][0], sizes[s][1]);
                PARAMETER(&c, &r, sizes[s][1]);
                PARAMETER(&c, &r, sizes[s][1]);
                check_case(&c);
            }
}

/* ---- Running statistics ---- */

typedef struct model {
    mhla_params *ps;
    mhla_batch_norm n;
    int seen; /* how often the block below has run */
} model;

static void make_model(model *m, int64_t C) {
    *m = (model){0};
    ASSERT_OK(mhla_params_create(&m->ps));
    m->n = (mhla_batch_norm){
        .w = mhla_params_add(m->ps, "w", MHLA_SHAPE(C), 0, MHLA_ONE),
        .b = mhla_params_add(m->ps, "b", MHLA_SHAPE(C), 0, MHLA_ZERO),
        .mean = mhla_params_add(m->ps, "mean", MHLA_SHAPE(C), MHLA_PARAM_BUFFER, MHLA_ZERO),
        .var = mhla_params_add(m->ps, "var", MHLA_SHAPE(C), MHLA_PARAM_BUFFER, MHLA_ONE),
        .batches = mhla_params_add(m->ps, "batches", MHLA_SHAPE(1), MHLA_PARAM_BUFFER | MHLA_PARAM_COUNTER, MHLA_ZERO),
        .eps = eps,
        .momentum = 0.1f};
    ASSERT_OK(mhla_params_status(m->ps));
    ASSERT_OK(mhla_params_init(m->ps, 0));
}

static mhla_tensor *norm_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    model *m = (model *)(uintptr_t)arg;
    m->seen++;
    return mhla_nn_batch_norm(t, &m->n, MHLA_ACT_GELU_ERF, x);
}

/* Values around a mean that is large beside their deviation. */
static float *samples(int64_t rows, int64_t C, float centre) {
    rng r = {3};
    float *x = new_random(&r, rows * C);
    for (int64_t i = 0; i < rows * C; i++) x[i] += centre;
    return x;
}

static void running(void **state) {
    (void)state;
    enum { ROWS = 1000, C = 5 };
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    float *x = samples(ROWS, C, 300.0f), *dy = samples(ROWS, C, 0.0f);
    float first[2 * C] = {0};
    for (int recompute = 0; recompute < 2; recompute++) {
        model m;
        make_model(&m, C);
        for (int step = 0; step < 2; step++) {
            mhla_tape_begin(t, MHLA_TAPE_DRY | MHLA_TAPE_RECORD | MHLA_TAPE_DROP); /* shapes alone move nothing */
            ASSERT_OK(
                mhla_tape_backward_from(t, norm_block(t, &m, mhla_nn_variable(t, NULL, MHLA_SHAPE(1, ROWS, C))), dy));
            mhla_tape_begin(t, MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
            mhla_tensor *in = mhla_nn_variable(t, x, MHLA_SHAPE(1, ROWS, C));
            mhla_tensor *y = recompute ? mhla_nn_checkpoint(t, norm_block, &m, in) : norm_block(t, &m, in);
            ASSERT_OK(mhla_tape_backward_from(t, y, dy));
        }
        assert_int_equal(m.seen, recompute ? 6 : 4);
        assert_true(m.n.batches->data[0] == 2.0f);
        for (int64_t c = 0; c < C; c++) {
            double mean = 0.0, squares = 0.0;
            for (int64_t i = 0; i < ROWS; i++) mean += (double)x[i * C + c] / ROWS;
            for (int64_t i = 0; i < ROWS; i++) squares += ((double)x[i * C + c] - mean) * ((double)x[i * C + c] - mean);
            const double var = squares / (ROWS - 1); /* two updates of momentum 0.1 from 0 and 1 */
            assert_true(fabs((double)m.n.mean->data[c] - 0.19 * mean) < 1e-4);
            assert_true(fabs((double)m.n.var->data[c] - (0.81 + 0.19 * var)) < 1e-6);
            if (recompute == 0) {
                first[c] = m.n.w->grad[c];
                first[C + c] = m.n.b->grad[c];
            }
            assert_true(m.n.w->grad[c] == first[c] && m.n.b->grad[c] == first[C + c]);
        }
        /* what is not training moves nothing, also where it records */
        const float mean = m.n.mean->data[0];
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        ASSERT_OK(mhla_tape_backward_from(t, norm_block(t, &m, mhla_nn_variable(t, x, MHLA_SHAPE(1, ROWS, C))), dy));
        assert_true(m.n.mean->data[0] == mean && m.n.batches->data[0] == 2.0f);
        /* no optimiser and no decay touches them, they are no parameters */
        mhla_optim *optim;
        const mhla_optim_desc desc = {.weight_decay = 0.5};
        ASSERT_OK(mhla_optim_create(&optim, m.ps, &desc));
        ASSERT_OK(mhla_optim_step(optim, 0.1, NULL, NULL));
        assert_true(m.n.mean->data[0] == mean && m.n.batches->data[0] == 2.0f);
        assert_int_equal(mhla_params_elements(m.ps), 2 * C);
        mhla_optim_free(optim);
        mhla_params_free(m.ps);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
}

/* An average takes part of running statistics, as timm's does, and all of the count. */
static void averaged(void **state) {
    (void)state;
    model m;
    mhla_ema *ema;
    make_model(&m, 3);
    ASSERT_OK(mhla_ema_create(&ema, m.ps, 0.75, 0));
    for (int i = 0; i < 3; i++) m.n.mean->data[i] = 4.0f;
    m.n.batches->data[0] = 9.0f;
    mhla_ema_update(ema, NULL);
    assert_true(mhla_ema_data(ema, 2)[1] == 1.0f);
    assert_true(mhla_ema_data(ema, 4)[0] == 9.0f);
    mhla_ema_free(ema);
    mhla_params_free(m.ps);
}

static void one_value(void **state) {
    (void)state;
    model m;
    mhla_tape *t;
    const float x[2] = {1.0f, 2.0f};
    make_model(&m, 2);
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int dry = 0; dry < 2; dry++) {
        mhla_tape_begin(t, MHLA_TAPE_RECORD | MHLA_TAPE_DROP | (dry ? MHLA_TAPE_DRY : 0));
        assert_null(norm_block(t, &m, mhla_nn_input(t, x, MHLA_SHAPE(1, 1, 2))));
        assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
        assert_non_null(strstr(mhla_message(), "one value per channel"));
    }
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_non_null(norm_block(t, &m, mhla_nn_input(t, x, MHLA_SHAPE(1, 1, 2))));
    mhla_tape_free(t);
    mhla_params_free(m.ps);
}

/* Everything that comes out, whatever the number of threads. */
static void threads(void **state) {
    (void)state;
    enum { ROWS = 3000, C = 9 };
    float *x = samples(ROWS, C, 1.0f), *dy = samples(ROWS, C, 0.0f), *first = new_poisoned((2 * ROWS + 4) * C);
    for (int n = 1; n < 5; n++) {
        mhla_context *context = new_context(n);
        mhla_tape *t;
        model m;
        make_model(&m, C);
        ASSERT_OK(mhla_tape_create(&t, context));
        mhla_tape_begin(t, MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
        mhla_tensor *in = mhla_nn_variable(t, x, MHLA_SHAPE(1, ROWS, C)), *y = norm_block(t, &m, in);
        ASSERT_OK(mhla_tape_status(t));
        float *all = new_poisoned((2 * ROWS + 4) * C);
        memcpy(all, y->data, sizeof(float) * ROWS * C);
        ASSERT_OK(mhla_tape_backward_from(t, y, dy));
        memcpy(all + ROWS * C, mhla_tensor_grad(in), sizeof(float) * ROWS * C);
        const float *const rest[] = {m.n.w->grad, m.n.b->grad, m.n.mean->data, m.n.var->data};
        for (int i = 0; i < 4; i++) memcpy(all + (2 * ROWS + i) * C, rest[i], sizeof(float) * C);
        if (n == 1) memcpy(first, all, sizeof(float) * (2 * ROWS + 4) * C);
        assert_memory_equal(first, all, sizeof(float) * (2 * ROWS + 4) * C);
        free(all);
        mhla_tape_free(t);
        mhla_params_free(m.ps);
        mhla_context_free(context);
    }
    free(x);
    free(dy);
    free(first);
}

/* ---- Layer scale ---- */

static mhla_tensor *scale_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_scaled_add(t, *(const float *)c->arg, P(2), X(0), X(1));
}
static void scale_reference(double *y, const layer_case *c) {
    const float rate = *(const float *)c->arg;
    const int64_t C = S(0, 2), sample = S(0, 1) * C;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const mhla_rng g = mhla_rng_make(7, 3, 10 + (uint64_t)(i / sample), 65536);
        uint32_t words[4];
        mhla_rng_block(&g, 0, words);
        const double kept = rate == 0.0f ? 1.0 : mhla_rng_unit(words[0]) < rate ? 0.0 : 1.0 / (double)(1.0f - rate);
        y[i] = D(0)[i] + kept * D(2)[i % C] * D(1)[i];
    }
}
static void layer_scale(void **state) {
    (void)state;
    rng r = {2};
    const float rates[] = {0.0f, 0.4f};
    for (int i = 0; i < 2; i++)
        for (int64_t C = 5; C < 70; C += 60) {
            layer_case c = {.name = "layer scale",
                            .build = scale_build,
                            .reference = scale_reference,
                            .arg = &rates[i],
                            .drop = MHLA_TAPE_DROP};
            VARIABLE(&c, &r, 5, 3, C);
            VARIABLE(&c, &r, 5, 3, C);
            PARAMETER(&c, &r, 1, C, 1, 1);
            check_case(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer),     cmocka_unit_test(running), cmocka_unit_test(averaged),
        cmocka_unit_test(one_value), cmocka_unit_test(threads), cmocka_unit_test(layer_scale),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
