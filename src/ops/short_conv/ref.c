/* The short convolution by definition, in double, one thread. */
#include "ops/product/product.h"
#include "ops/short_conv/short_conv.h"

/* Channel d of sequence s. */
typedef struct channel {
    const mhla_short_conv_run *run;
    int64_t s, d, begin, T;
} channel;

static channel channel_of(const mhla_short_conv_run *run, int64_t s, int64_t d) {
    const int64_t begin = mhla_short_conv_begin(&run->call, s);
    return (channel){run, s, d, begin, mhla_short_conv_end(&run->call, s) - begin};
}

static const float *token(const channel *k, const float *x, const mhla_strides *s, int64_t t) {
    return x + mhla_row_offset(&k->run->call, s, k->begin + t) + k->d;
}

/* Input t, which may be one of the cache: t >= -W. */
static double input(const channel *k, int64_t t) {
    const mhla_short_conv_run *run = k->run;
    if (t >= 0) return (double)*token(k, run->x, &run->call.x, t);
    const float *cache = mhla_short_conv_before(run, k->s);
    return cache ? (double)cache[k->d * run->W + run->W + t] : 0.0;
}

static double before_activation(const channel *k, int64_t t) {
    const mhla_short_conv_run *run = k->run;
    double sum = run->call.bias ? (double)run->call.bias[k->d] : 0.0;
    for (int j = 0; j < run->W; j++) sum += (double)run->w[k->d * run->W + j] * input(k, t - run->W + 1 + j);
    return sum;
}

static void put(float *to, double value, int add) { *to = (float)(value + (add ? (double)*to : 0.0)); }

mhla_status mhla_short_conv_forward_reference(const mhla_short_conv_call *call, float *y, const float *x,
                                              const float *w) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check_forward(&run, call, y, x, w));
    const mhla_short_conv_call *c = &run.call;
    const int W = run.W;
    for (int64_t s = 0; s < mhla_short_conv_sequences(c); s++)
        for (int64_t d = 0; d < run.D; d++) {
            const channel k = channel_of(&run, s, d);
            for (int64_t t = 0; t < k.T; t++)
                put((float *)token(&k, y, &c->y, t), mhla_activation_value(c->activation, before_activation(&k, t)),
                    c->accumulate);
            for (int j = 0; c->final_cache && j < W; j++)
                c->final_cache[(s * run.D + d) * W + j] = (float)input(&k, k.T - W + j);
        }
    return MHLA_OK;
}

/* dpre [T] of a channel, and its share of dw and dbias. */
static void weight_backward(const channel *k, double *dpre, double *dw, double *dbias) {
    const mhla_short_conv_run *run = k->run;
    for (int64_t t = 0; t < k->T; t++) {
        const double dy = (double)*token(k, run->dy, &run->call.y, t);
        dpre[t] = dy * mhla_activation_slope(run->call.activation, before_activation(k, t));
        *dbias += dpre[t];
        for (int j = 0; j < run->W; j++) dw[j] += dpre[t] * input(k, t - run->W + 1 + j);
    }
}

/* The gradient of input t >= -W. */
static double input_backward(const channel *k, const double *dpre, int64_t t) {
    const mhla_short_conv_run *run = k->run;
    const int W = run->W;
    double sum = 0.0;
    for (int j = 0; j < W; j++) {
        const int64_t to = t + W - 1 - j;
        if (to >= 0 && to < k->T) sum += (double)run->w[k->d * W + j] * dpre[to];
    }
    const int64_t j = t - (k->T - W); /* its place in the final cache */
    const float *dfinal = run->grads.dfinal_cache;
    return sum + (dfinal && j >= 0 ? (double)dfinal[(k->s * run->D + k->d) * W + j] : 0.0);
}

mhla_status mhla_short_conv_backward_reference(const mhla_short_conv_call *call, const mhla_short_conv_grads *grads,
                                               const float *dy, const float *x, const float *w) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check_backward(&run, call, grads, dy, x, w));
    const mhla_short_conv_grads *g = &run.grads;
    const int W = run.W;
    double *dpre = mhla_alloc(sizeof *dpre * (size_t)run.call.tokens);
    if (dpre == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    for (int64_t d = 0; d < run.D; d++) {
        double dw[MHLA_WIDEST_TAPS] = {0}, dbias = 0.0;
        for (int64_t s = 0; s < mhla_short_conv_sequences(&run.call); s++) {
            const channel k = channel_of(&run, s, d);
            weight_backward(&k, dpre, dw, &dbias);
            for (int64_t t = 0; g->dx && t < k.T; t++)
                put((float *)token(&k, g->dx, &g->dx_strides, t), input_backward(&k, dpre, t), g->accumulate);
            for (int j = 0; g->dinitial_cache && j < W; j++)
                put(g->dinitial_cache + (s * run.D + d) * W + j, input_backward(&k, dpre, j - W), g->accumulate);
        }
        for (int j = 0; g->dw && j < W; j++) put(g->dw + d * W + j, dw[j], g->accumulate);
        if (g->dbias) put(g->dbias + d, dbias, g->accumulate);
    }
    mhla_free(dpre);
    return MHLA_OK;
}
