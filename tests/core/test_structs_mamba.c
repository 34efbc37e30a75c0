/* Every call of mhla.h, section 9, that takes a struct with a size: see structs.h. */
#include "structs.h"

enum { T = 3, I = 4, N = 2, W = 2 };

static float u[T * I], delta[T * I], A[I * N], Bs[T * N], Cs[T * N], y[T * I], dy[T * I], du[T * I], w[I * W],
    dw[I * W];

static const mhla_scan_call scan_call = {.size = sizeof scan_call, .batch = 1, .tokens = T, .channels = I, .states = N};
static const mhla_scan_grads scan_grads = {.size = sizeof scan_grads, .du = du};
static const mhla_short_conv_call conv_call = {
    .size = sizeof conv_call, .batch = 1, .tokens = T, .channels = I, .width = W};
static const mhla_short_conv_grads conv_grads = {.size = sizeof conv_grads, .dw = dw};

/* Of a call that returns bytes, 0 for a failure. */
static mhla_status of_bytes(size_t bytes) {
    return bytes ? MHLA_OK : strstr(mhla_message(), "does not know") ? MHLA_ENOTSUP : MHLA_EINVAL;
}

static mhla_status mhla_scan_forward_workspace__mhla_scan_call(void *given) {
    return of_bytes(mhla_scan_forward_workspace(given));
}
static mhla_status mhla_scan_backward_workspace__mhla_scan_call(void *given) {
    return of_bytes(mhla_scan_backward_workspace(given));
}
static mhla_status mhla_scan_forward__mhla_scan_call(void *given) {
    return mhla_scan_forward(given, y, u, delta, A, Bs, Cs, NULL);
}
static mhla_status mhla_scan_forward_reference__mhla_scan_call(void *given) {
    return mhla_scan_forward_reference(given, y, u, delta, A, Bs, Cs);
}
static mhla_status mhla_scan_backward__mhla_scan_call(void *given) {
    return mhla_scan_backward(given, &scan_grads, dy, u, delta, A, Bs, Cs, NULL);
}
static mhla_status mhla_scan_backward__mhla_scan_grads(void *given) {
    return mhla_scan_backward(&scan_call, given, dy, u, delta, A, Bs, Cs, NULL);
}
static mhla_status mhla_scan_backward_reference__mhla_scan_call(void *given) {
    return mhla_scan_backward_reference(given, &scan_grads, dy, u, delta, A, Bs, Cs);
}
static mhla_status mhla_scan_backward_reference__mhla_scan_grads(void *given) {
    return mhla_scan_backward_reference(&scan_call, given, dy, u, delta, A, Bs, Cs);
}
static mhla_status mhla_scan_step__mhla_scan_call(void *given) {
    mhla_channel_state *s;
    ASSERT_OK(mhla_scan_state_create(&s, I, N));
    const mhla_status status = mhla_scan_step(given, &s, 1, y, u, delta, A, Bs, Cs);
    mhla_channel_state_free(s);
    return status;
}
static mhla_status mhla_short_conv_forward_workspace__mhla_short_conv_call(void *given) {
    return of_bytes(mhla_short_conv_forward_workspace(given));
}
static mhla_status mhla_short_conv_backward_workspace__mhla_short_conv_call(void *given) {
    return of_bytes(mhla_short_conv_backward_workspace(given));
}
static mhla_status mhla_short_conv_forward__mhla_short_conv_call(void *given) {
    return mhla_short_conv_forward(given, y, u, w, NULL);
}
static mhla_status mhla_short_conv_forward_reference__mhla_short_conv_call(void *given) {
    return mhla_short_conv_forward_reference(given, y, u, w);
}
static mhla_status mhla_short_conv_backward__mhla_short_conv_call(void *given) {
    return mhla_short_conv_backward(given, &conv_grads, dy, u, w, NULL);
}
static mhla_status mhla_short_conv_backward__mhla_short_conv_grads(void *given) {
    return mhla_short_conv_backward(&conv_call, given, dy, u, w, NULL);
}
static mhla_status mhla_short_conv_backward_reference__mhla_short_conv_call(void *given) {
    return mhla_short_conv_backward_reference(given, &conv_grads, dy, u, w);
}
static mhla_status mhla_short_conv_backward_reference__mhla_short_conv_grads(void *given) {
    return mhla_short_conv_backward_reference(&conv_call, given, dy, u, w);
}
static mhla_status mhla_short_conv_step__mhla_short_conv_call(void *given) {
    mhla_channel_state *s;
    ASSERT_OK(mhla_short_conv_state_create(&s, I, W));
    const mhla_status status = mhla_short_conv_step(given, &s, 1, y, u, w);
    mhla_channel_state_free(s);
    return status;
}

static void structs(void **state) {
    (void)state;
    const struct_case rows[] = {
        TAKES(mhla_scan_forward_workspace, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_backward_workspace, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_forward, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_forward_reference, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_backward, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_backward, mhla_scan_grads, .value = &scan_grads),
        TAKES(mhla_scan_backward_reference, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_scan_backward_reference, mhla_scan_grads, .value = &scan_grads),
        TAKES(mhla_scan_step, mhla_scan_call, .value = &scan_call),
        TAKES(mhla_short_conv_forward_workspace, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_backward_workspace, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_forward, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_forward_reference, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_backward, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_backward, mhla_short_conv_grads, .value = &conv_grads),
        TAKES(mhla_short_conv_backward_reference, mhla_short_conv_call, .value = &conv_call),
        TAKES(mhla_short_conv_backward_reference, mhla_short_conv_grads, .value = &conv_grads),
        TAKES(mhla_short_conv_step, mhla_short_conv_call, .value = &conv_call),
    };
    STRUCTS_TRY(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(structs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
