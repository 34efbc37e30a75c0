/* What the callers of a short convolution may get wrong, found before anything is written. */
#include "ops/short_conv/short_conv.h"
#include "ops/tensors.h"

enum { MOST_TENSORS = 12 };

int64_t mhla_short_conv_sequence(const mhla_short_conv_call *c, int64_t row) {
    if (c->cu_seqlens == NULL) return row / c->tokens;
    int64_t low = 0, high = c->sequences; /* cu[low] <= row < cu[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (c->cu_seqlens[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

mhla_status mhla_short_conv_check(mhla_short_conv_run *run, const mhla_short_conv_call *call) {
    memset(run, 0, sizeof *run);
    MHLA_TRY(mhla_struct_in(&run->call, sizeof run->call, call, "mhla_short_conv_call"));
    mhla_short_conv_call *c = &run->call;
    CHECK(c->batch >= 1, "batch is %lld: expected 1 or more", (long long)c->batch);
    CHECK(c->tokens >= 1, "tokens is %lld: expected 1 or more", (long long)c->tokens);
    CHECK(c->channels >= 1 && c->channels <= INT32_MAX, "channels is %lld: expected 1 or more", (long long)c->channels);
    CHECK(c->width >= 1 && c->width <= MHLA_WIDEST_TAPS, "width is %d: expected 1 to %d", c->width, MHLA_WIDEST_TAPS);
    CHECK((unsigned)c->activation <= MHLA_ACT_SILU, "activation is %d: no such activation", (int)c->activation);
    MHLA_TRY(check_sequences(c->batch, c->tokens, c->cu_seqlens, c->sequences));
    MHLA_TRY(fill_strides(&c->x, "x", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&c->y, "y", c->batch, c->tokens, 1, c->channels));
    int64_t floats;
    CHECK(!__builtin_mul_overflow(mhla_short_conv_sequences(c), c->channels * c->width, &floats) &&
              floats < INT64_MAX / 64,
          "caches of %lld sequences are too many", (long long)mhla_short_conv_sequences(c));
    run->kernels = mhla_kernels_get();
    run->threads = mhla_context_threads(c->context);
    run->W = c->width;
    run->D = c->channels;
    run->rows = c->batch * c->tokens;
    return MHLA_OK;
}

static tensor of_tokens(const mhla_short_conv_call *c, const char *name, const float *data, const mhla_strides *s) {
    return make_tensor(name, data, MHLA_F32, s, c->batch, c->tokens, 1, c->channels);
}

static int64_t cache_floats(const mhla_short_conv_call *c) {
    return mhla_short_conv_sequences(c) * c->channels * c->width;
}

static int list_inputs(const mhla_short_conv_run *run, tensor *t) {
    const mhla_short_conv_call *c = &run->call;
    int n = 0;
    t[n++] = of_tokens(c, "x", run->x, &c->x);
    t[n++] = make_flat("w", run->w, c->channels * c->width);
    t[n++] = make_flat("bias", c->bias, c->channels);
    t[n++] = make_flat("initial_cache", c->initial_cache, cache_floats(c));
    return n;
}

mhla_status mhla_short_conv_check_forward(mhla_short_conv_run *run, const mhla_short_conv_call *call, float *y,
                                          const float *x, const float *w) {
    MHLA_TRY(mhla_short_conv_check(run, call));
    const mhla_short_conv_call *c = &run->call;
    CHECK(y != NULL, "y is NULL");
    CHECK(x != NULL, "x is NULL");
    CHECK(w != NULL, "w is NULL");
    run->y = y;
    run->x = x;
    run->w = w;
    tensor t[MOST_TENSORS];
    int n = list_inputs(run, t);
    const tensor out = of_tokens(c, "y", y, &c->y);
    MHLA_TRY(check_output(&out, t, n));
    if (c->final_cache == NULL) return MHLA_OK;
    const tensor cache = make_flat("final_cache", c->final_cache, cache_floats(c));
    if (c->final_cache == c->initial_cache) n--; /* the last of the list */
    t[n++] = out;
    return check_output(&cache, t, n);
}

mhla_status mhla_short_conv_check_backward(mhla_short_conv_run *run, const mhla_short_conv_call *call,
                                           const mhla_short_conv_grads *grads, const float *dy, const float *x,
                                           const float *w) {
    MHLA_TRY(mhla_short_conv_check(run, call));
    const mhla_short_conv_call *c = &run->call;
    CHECK(dy != NULL, "dy is NULL");
    CHECK(x != NULL, "x is NULL");
    CHECK(w != NULL, "w is NULL");
    run->dy = dy;
    run->x = x;
    run->w = w;
    MHLA_TRY(mhla_struct_in(&run->grads, sizeof run->grads, grads, "mhla_short_conv_grads"));
    mhla_short_conv_grads *g = &run->grads;
    CHECK(c->bias != NULL || g->dbias == NULL, "dbias is given without bias");
    MHLA_TRY(fill_strides(&g->dx_strides, "dx", c->batch, c->tokens, 1, c->channels));
    tensor t[MOST_TENSORS];
    int n = list_inputs(run, t);
    t[n++] = of_tokens(c, "dy", dy, &c->y);
    t[n++] = make_flat("dfinal_cache", g->dfinal_cache, cache_floats(c));
    const tensor out[] = {
        of_tokens(c, "dx", g->dx, &g->dx_strides),
        make_flat("dw", g->dw, c->channels * c->width),
        make_flat("dbias", g->dbias, c->channels),
        make_flat("dinitial_cache", g->dinitial_cache, cache_floats(c)),
    };
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (out[i].data) {
            MHLA_TRY(check_output(&out[i], t, n));
            t[n++] = out[i];
        }
    return MHLA_OK;
}
