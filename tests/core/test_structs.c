/* Every call of mhla.h that takes or fills a struct with a size: see structs.h. */
#include "structs.h"

enum { B = 1, T = 8, H = 2, D = 4, M = 2, N = 6, ROWS = 3 };

static mhla_plan *plan;
static mhla_weight *weight;
static float q[T * H * D], k[T * H * D], v[T * H * D], o[T * H * D], mix[M * M], dq[T * H * D];
static float x[ROWS * D], y[ROWS * N], w[N * D], dw[N * D];

static const mhla_context_desc context_desc = {
    .size = sizeof context_desc, .backend = MHLA_BACKEND_PTHREADS, .threads = 1};
static const mhla_plan_desc plan_desc = {.size = sizeof plan_desc,
                                         .kind = MHLA_KIND_CAUSAL,
                                         .heads = H,
                                         .key_dim = D,
                                         .value_dim = D,
                                         .denominator = MHLA_DEN_NONE,
                                         .chunk = T / M,
                                         .chunks = M};
static const mhla_call call = {.size = sizeof call, .batch = B, .tokens = T};
static const mhla_grads grads = {.size = sizeof grads, .dq = dq};
static const mhla_linear_desc linear_desc = {.size = sizeof linear_desc, .rows = ROWS};

/* Of a call that returns bytes, 0 for a failure. */
static mhla_status of_bytes(size_t bytes) {
    return bytes ? MHLA_OK : strstr(mhla_message(), "does not know") ? MHLA_ENOTSUP : MHLA_EINVAL;
}

static mhla_status mhla_context_create__mhla_context_desc(void *given) {
    mhla_context *c = NULL;
    const mhla_status status = mhla_context_create(&c, given);
    mhla_context_free(c);
    return status;
}
static mhla_status mhla_plan_create__mhla_plan_desc(void *given) {
    mhla_plan *p = NULL;
    const mhla_status status = mhla_plan_create(&p, given);
    mhla_plan_free(p);
    return status;
}
static mhla_status mhla_forward_workspace__mhla_call(void *given) {
    return of_bytes(mhla_forward_workspace(plan, given));
}
static mhla_status mhla_backward_workspace__mhla_call(void *given) {
    return of_bytes(mhla_backward_workspace(plan, given));
}
static mhla_status mhla_forward__mhla_call(void *given) { return mhla_forward(plan, given, o, q, k, v, mix, NULL); }
static mhla_status mhla_forward_reference__mhla_call(void *given) {
    return mhla_forward_reference(plan, given, o, q, k, v, mix);
}
static mhla_status mhla_step__mhla_call(void *given) {
    mhla_state *s;
    ASSERT_OK(mhla_state_create(&s, plan, mix));
    const mhla_status status = mhla_step(plan, given, &s, 1, o, q, k, v, mix);
    mhla_state_free(s);
    return status;
}
static mhla_status mhla_backward__mhla_call(void *given) {
    return mhla_backward(plan, given, &grads, o, q, k, v, mix, NULL);
}
static mhla_status mhla_backward__mhla_grads(void *given) {
    return mhla_backward(plan, &call, given, o, q, k, v, mix, NULL);
}
static mhla_status mhla_backward_reference__mhla_call(void *given) {
    return mhla_backward_reference(plan, given, &grads, o, q, k, v, mix);
}
static mhla_status mhla_backward_reference__mhla_grads(void *given) {
    return mhla_backward_reference(plan, &call, given, o, q, k, v, mix);
}
static mhla_status mhla_linear_workspace__mhla_linear_desc(void *given) {
    return of_bytes(mhla_linear_workspace(given, N, D, MHLA_F32));
}
static mhla_status mhla_linear_forward__mhla_linear_desc(void *given) {
    return mhla_linear_forward(given, y, x, weight);
}
static mhla_status mhla_linear_forward_reference__mhla_linear_desc(void *given) {
    return mhla_linear_forward_reference(given, y, x, w, MHLA_F32, N, D, 0);
}
static mhla_status mhla_linear_backward_input__mhla_linear_desc(void *given) {
    return mhla_linear_backward_input(given, x, y, weight);
}
static mhla_status mhla_linear_backward_weight__mhla_linear_desc(void *given) {
    return mhla_linear_backward_weight(given, dw, NULL, y, x, N, D);
}
static mhla_status mhla_cpu_query__mhla_cpu_info(void *given) { return mhla_cpu_query(given); }

static void every_size(void **state) {
    (void)state;
    const struct_case rows[] = {
        TAKES(mhla_context_create, mhla_context_desc, .value = &context_desc),
        TAKES(mhla_plan_create, mhla_plan_desc, .value = &plan_desc),
        TAKES(mhla_forward_workspace, mhla_call, .value = &call),
        TAKES(mhla_backward_workspace, mhla_call, .value = &call),
        TAKES(mhla_forward, mhla_call, .value = &call),
        TAKES(mhla_forward_reference, mhla_call, .value = &call),
        TAKES(mhla_step, mhla_call, .value = &call),
        TAKES(mhla_backward, mhla_call, .value = &call),
        TAKES(mhla_backward, mhla_grads, .value = &grads),
        TAKES(mhla_backward_reference, mhla_call, .value = &call),
        TAKES(mhla_backward_reference, mhla_grads, .value = &grads),
        TAKES(mhla_linear_workspace, mhla_linear_desc, .value = &linear_desc),
        TAKES(mhla_linear_forward, mhla_linear_desc, .value = &linear_desc),
        TAKES(mhla_linear_forward_reference, mhla_linear_desc, .value = &linear_desc),
        TAKES(mhla_linear_backward_input, mhla_linear_desc, .value = &linear_desc),
        TAKES(mhla_linear_backward_weight, mhla_linear_desc, .value = &linear_desc),
        FILLS(mhla_cpu_query, mhla_cpu_info),
    };
    STRUCTS_TRY(rows);
}

static int set_up(void **state) {
    (void)state;
    rng r = {1};
    float *const all[] = {q, k, v, o};
    for (int a = 0; a < 4; a++)
        for (int i = 0; i < T * H * D; i++) all[a][i] = rng_signed(&r);
    for (int i = 0; i < N * D; i++) w[i] = rng_signed(&r);
    for (int i = 0; i < M * M; i++) mix[i] = 0.5f;
    ASSERT_OK(mhla_plan_create(&plan, &plan_desc));
    ASSERT_OK(mhla_weight_pack(&weight, w, MHLA_F32, N, D, 0));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    mhla_plan_free(plan);
    mhla_weight_free(weight);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
