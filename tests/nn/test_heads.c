/* Heads of several tensors as one: each third of them, all of them, from tensors of different widths, and gradients that add up where a
 * tensor is read more than once. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

typedef struct heads_arg {
    int K, first, every, twice; /* twice: what all heads are is added */
} heads_arg;

static mhla_tensor *build(mhla_tape *t, const layer_case *c) {
    const heads_arg *a = c->arg;
    mhla_tensor *x[3] = {X(0), X(1), X(2)};
    mhla_tensor *y = mhla_nn_heads(t, a->K, a->first, a->every, x, 3);
    return a->twice ? mhla_nn_add(t, y, mhla_nn_heads(t, a->K, a->first + 1, a->every, x, 3)) : y;
}

static void reference(double *y, const layer_case *c) {
    const heads_arg *a = c->arg;
    const int64_t rows = S(0, 0) * S(0, 1);
    for (int64_t r = 0; r < rows; r++)
        for (int plus = 0; plus <= a->twice; plus++) {
            double all[64];
            int64_t n = 0, heads = 0;
            for (int i = 0; i < 3; i++)
                for (int64_t j = 0; j < S(i, 2); j++) all[n++] = D(i)[r * S(i, 2) + j];
            for (int64_t h = a->first; h < n / a->K; h += a->every) heads++;
            for (int64_t h = 0; h < heads; h++)
                for (int64_t k = 0; k < a->K; k++) {
                    double *to = &y[(r * heads + h) * a->K + k];
                    *to = (plus ? *to : 0.0) + all[(a->first + plus + h * a->every) * a->K + k];
                }
        }
}

static void heads(void **state) {
    (void)state;
    rng r = {21};
    static const heads_arg cases[] = {{2, 0, 1, 0}, {2, 0, 3, 0}, {2, 1, 3, 1},
                                      {1, 2, 5, 0}, {2, 7, 8, 0}, {2, 0, 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layer_case c = {.name = "heads", .build = build, .reference = reference, .arg = &cases[i]};
        VARIABLE(&c, &r, 2, 3, 6);
        VARIABLE(&c, &r, 2, 3, 2);
        VARIABLE(&c, &r, 2, 3, 10);
        check_case(&c);
    }
}

static void refused(void **state) {
    (void)state;
    mhla_tape *t;
    const float numbers[12] = {0};
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int i = 0; i < 4; i++) {
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_tensor *x[] = {mhla_nn_input(t, numbers, MHLA_SHAPE(1, 2, 6)),
                            mhla_nn_input(t, numbers, MHLA_SHAPE(1, 3, 4))};
        assert_null(mhla_nn_heads(t, i == 0 ? 4 : 2, i == 1 ? 3 : 0, 3, x, i == 2 ? 2 : i == 3 ? 9 : 1));
        assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
    }
    mhla_tape_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, poison, NULL);
}
