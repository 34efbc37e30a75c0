/* Parameters that keep bfloat16 or Q8_0 alone: rows in and out, look-up, the linear layer; who needs float32 says so.
 * Models written as GGUF are read again bit by bit, and Q8_0 on the disk is Q8_0 made on loading. */
#include <mhla/lm.h>

#include "core/numbers.h"
#include "files.h"
#include "goldens.h"
#include "models/language/lm.h"
#include "models/model.h"
#include "nn/nn.h"
#include "nn/optim.h"

enum { N = 70, K = 64, T = 3 };

static void test_layers(void **state) {
    (void)state;
    static const mhla_dtype types[] = {MHLA_BF16, MHLA_Q8_0};
    rng r = {7};
    float *w = new_random(&r, N * K), *x = new_random(&r, T * K), rows[N * K];
    const int32_t ids[T] = {69, 0, 33};
    for (int i = 0; i < T * K; i++) x[i] = from_bf16(to_bf16(x[i]));
    for (int k = 0; k < 2; k++) {
        mhla_params *ps;
        mhla_tape *t;
        ASSERT_OK(mhla_params_create(&ps));
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_params_set_storage(ps, types[k]);
        mhla_param *p = mhla_params_add(ps, "w", MHLA_SHAPE(N, K), MHLA_PARAM_MATRIX, MHLA_ZERO);
        mhla_param *odd = mhla_params_add(ps, "odd", MHLA_SHAPE(N, 5), MHLA_PARAM_MATRIX, MHLA_ZERO);
        mhla_param *vector = mhla_params_add(ps, "v", MHLA_SHAPE(N, K), 0, MHLA_ZERO);
        mhla_params_set_storage(ps, MHLA_F32);
        mhla_param *wide = mhla_params_add(ps, "wide", MHLA_SHAPE(N, K), MHLA_PARAM_MATRIX, MHLA_ZERO);
        ASSERT_OK(mhla_params_status(ps));
        assert_null(p->data);
        assert_int_equal(p->dtype, types[k]);
        assert_int_equal(odd->dtype, k ? MHLA_F32 : MHLA_BF16);
        assert_non_null(vector->data);
        ASSERT_OK(mhla_param_set_rows(p, 0, 10, w, MHLA_F32));
        ASSERT_OK(mhla_param_set_rows(p, 10, N - 10, w + 10 * K, MHLA_F32));
        ASSERT_OK(mhla_param_get_rows(rows, p, 0, N));
        ASSERT_OK(mhla_param_set_rows(wide, 0, N, rows, MHLA_F32)); /* the same numbers in float32 */
        mhla_tape_begin(t, 0);
        mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(T, K));
        const mhla_tensor *a = mhla_nn_linear(t, p, NULL, MHLA_ACT_NONE, NULL, in),
                          *b = mhla_nn_linear(t, wide, NULL, MHLA_ACT_NONE, NULL, in),
                          *c = mhla_nn_embedding(t, p, ids, 1, T), *d = mhla_nn_embedding(t, wide, ids, 1, T);
        ASSERT_OK(mhla_tape_status(t));
        ASSERT_CLOSE(a->data, b->data, T * N, k ? 4e-5 : 3e-6, "linear, type %d", (int)types[k]); /* rows of 16 bits */
        assert_memory_equal(c->data, d->data, sizeof(float) * T * K);
        /* The same storage by changing it, and back. */
        ASSERT_OK(mhla_param_set_rows(wide, 0, N, w, MHLA_F32));
        ASSERT_OK(mhla_param_store(wide, types[k]));
        assert_null(wide->data);
        float again[N * K];
        ASSERT_OK(mhla_param_get_rows(again, wide, 0, N));
        assert_memory_equal(again, rows, sizeof rows);
        ASSERT_OK(mhla_param_store(wide, MHLA_F32));
        assert_memory_equal(wide->data, rows, sizeof rows);
        ASSERT_FAILS(mhla_param_store(vector, types[k]), MHLA_EINVAL, "not a matrix");
        if (k) ASSERT_FAILS(mhla_param_store(odd, MHLA_Q8_0), MHLA_EINVAL, "multiple of 32");
        ASSERT_FAILS(mhla_param_set_rows(p, N, 1, w, MHLA_F32), MHLA_EINVAL, "no rows 70 to 70");
        /* Training needs float32. */
        mhla_optim *optim;
        mhla_ema *ema;
        const mhla_optim_desc desc = {0};
        ASSERT_FAILS(mhla_optim_create(&optim, ps, &desc), MHLA_EINVAL, "cannot be trained");
        ASSERT_FAILS(mhla_ema_create(&ema, ps, 0.9, 0), MHLA_EINVAL, "cannot be averaged");
        mhla_tape_free(t);
        mhla_params_free(ps);
    }
    free(w), free(x);
}

/* Every parameter of both, in the order of a's. */
static void same_values(const mhla_model *a, const mhla_model *b) {
    assert_int_equal(mhla_params_count(a->params), mhla_params_count(b->params));
    for (int i = 0; i < mhla_params_count(a->params); i++) {
        const mhla_param *p = mhla_params_at(a->params, i), *q = mhla_params_find(b->params, p->name);
        assert_non_null(q);
        float *x = new_bytes(sizeof *x * (size_t)p->count), *y = new_bytes(sizeof *y * (size_t)p->count);
        ASSERT_OK(mhla_param_get_rows(x, p, 0, p->shape[0]));
        ASSERT_OK(mhla_param_get_rows(y, q, 0, q->shape[0]));
        if (memcmp(x, y, sizeof *x * (size_t)p->count) != 0) fail_msg("%s differs", p->name);
        assert_int_equal(p->dtype, q->dtype);
        free(x), free(y);
    }
}

static void convert(const char *name) {
    char path[512], golden[256];
    mhla_model *from, *back;
    snprintf(golden, sizeof golden, "lm/models/%s", name);
    golden_path(path, golden);
    const char *out = in_folder("model.gguf");
    ASSERT_OK(mhla_lm_convert(out, path, NULL, NULL));
    ASSERT_OK(mhla_model_open(&from, path));
    ASSERT_OK(mhla_model_open(&back, out));
    same_values(from, back);
    mhla_model_free(from);
    mhla_model_free(back);
    const mhla_convert_desc d = {.size = sizeof d, .dtype = "q8_0"};
    const mhla_open_desc q8 = {.size = sizeof q8, .storage = "q8_0"};
    ASSERT_OK(mhla_lm_convert(out, path, &d, NULL));
    ASSERT_OK(mhla_model_open_as(&from, path, &q8));
    ASSERT_OK(mhla_model_open(&back, out));
    same_values(from, back);
    mhla_model_free(from);
    mhla_model_free(back);
}

static void test_convert_llama(void **state) {
    (void)state;
    convert("llama-hf");
}
static void test_convert_mhla(void **state) {
    (void)state;
    convert("mhla");
}
static void test_convert_linear(void **state) {
    (void)state;
    convert("linear_attn");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_convert_llama),
        cmocka_unit_test(test_convert_mhla),
        cmocka_unit_test(test_convert_linear),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
