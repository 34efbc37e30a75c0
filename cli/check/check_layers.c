/* The check's linear layers: y = activation(x W^T + bias) + residual and its backward products against plain loops in
 * double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

static const struct layer_case {
    int64_t rows, N, K;
    mhla_activation activation;
    int bias, residual;
} cases[] = {
    {65, 192, 64, MHLA_ACT_GELU_ERF, 1, 0}, {37, 100, 60, MHLA_ACT_NONE, 1, 1},      {1, 1, 1, MHLA_ACT_NONE, 0, 0},
    {1, 256, 128, MHLA_ACT_SILU, 0, 1},     {130, 7, 300, MHLA_ACT_GELU_TANH, 1, 1}, {8, 70, 513, MHLA_ACT_SILU, 1, 0},
    {200, 65, 1, MHLA_ACT_NONE, 1, 0},
};
enum { CASES = sizeof cases / sizeof *cases, BRIEF = 2 };

static const double pi = 3.14159265358979323846;

static double activate(mhla_activation a, double x) {
    switch (a) {
    case MHLA_ACT_GELU_ERF: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case MHLA_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)));
    case MHLA_ACT_SILU: return x / (1.0 + exp(-x));
    case MHLA_ACT_NONE: break;
    }
    return x;
}

static double activation_slope(mhla_activation a, double x) { /* central difference: exact to 1e-9 here */
    const double h = 1e-5;
    return (activate(a, x + h) - activate(a, x - h)) / (2.0 * h);
}

typedef struct layer {
    int64_t rows, N, K;
    void *w; /* [N,K] as stored */
    float *x, *y, *dy, *bias, *residual, *pre, *dx, *dw, *db, *dpre;
    double *wd; /* [N,K] */
    double *want_y, *want_pre, *want_dx, *want_dw, *want_db, *want_dpre;
    void *owned[24];
    int count;
} layer;

static void *own(layer *l, int64_t count, size_t element) {
    void *p = aligned_new((size_t)count * element);
    if (p) {
        memset(p, 0xff, (size_t)count * element);
        l->owned[l->count++] = p;
    }
    return p;
}

static float *own_random(layer *l, int64_t count, uint64_t *seed) {
    float *p = own(l, count, sizeof *p);
    if (p) random_fill(p, MHLA_F32, count, seed);
    return p;
}

static int layer_make(layer *l, const struct layer_case *c, mhla_dtype dtype, uint64_t seed) {
    *l = (layer){.rows = c->rows, .N = c->N, .K = c->K};
    const int64_t xs = c->rows * c->K, ys = c->rows * c->N, ws = c->N * c->K;
    const size_t d = sizeof(double), f = sizeof(float);
    if (!(l->w = own(l, ws, dtype == MHLA_F32 ? 4 : 2)) || !(l->wd = own(l, ws, d))) return 0;
    if (!(l->x = own_random(l, xs, &seed)) || !(l->dy = own_random(l, ys, &seed))) return 0;
    if (!(l->bias = own_random(l, c->N, &seed)) || !(l->residual = own_random(l, ys, &seed))) return 0;
    if (!(l->y = own(l, ys, f)) || !(l->pre = own(l, ys, f)) || !(l->dpre = own(l, ys, f))) return 0;
    if (!(l->dx = own(l, xs, f)) || !(l->dw = own(l, ws, f)) || !(l->db = own(l, c->N, f))) return 0;
    if (!(l->want_y = own(l, ys, d)) || !(l->want_pre = own(l, ys, d)) || !(l->want_dpre = own(l, ys, d))) return 0;
    if (!(l->want_dx = own(l, xs, d)) || !(l->want_dw = own(l, ws, d)) || !(l->want_db = own(l, c->N, d))) return 0;
    random_fill(l->w, dtype, ws, &seed);
    for (int64_t i = 0; i < ws; i++) {
        const uint32_t bits = dtype == MHLA_F32 ? ((const uint32_t *)l->w)[i] : (uint32_t)((uint16_t *)l->w)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        l->wd[i] = (double)value;
    }
    return 1;
}

static void reference(layer *l, const struct layer_case *c) {
    const int64_t N = l->N, K = l->K;
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double sum = c->bias ? (double)l->bias[n] : 0.0;
            for (int64_t k = 0; k < K; k++) sum += (double)l->x[r * K + k] * l->wd[n * K + k];
            l->want_pre[r * N + n] = sum;
            l->want_y[r * N + n] = activate(c->activation, sum) + (c->residual ? (double)l->residual[r * N + n] : 0.0);
            l->want_dpre[r * N + n] = (double)l->dy[r * N + n] * activation_slope(c->activation, sum);
        }
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t k = 0; k < K; k++) {
            double sum = 0.0;
            for (int64_t n = 0; n < N; n++) sum += (double)l->dy[r * N + n] * l->wd[n * K + k];
            l->want_dx[r * K + k] = sum;
        }
    for (int64_t n = 0; n < N; n++) {
        l->want_db[n] = 0.0;
        for (int64_t r = 0; r < l->rows; r++) l->want_db[n] += (double)l->dy[r * N + n];
        for (int64_t k = 0; k < K; k++) {
            double sum = 0.0;
            for (int64_t r = 0; r < l->rows; r++) sum += (double)l->dy[r * N + n] * (double)l->x[r * K + k];
            l->want_dw[n * K + k] = sum;
        }
    }
}

static mhla_status run(layer *l, const struct layer_case *c, mhla_dtype dtype) {
    mhla_weight *weight = NULL;
    const mhla_linear_desc backward = {.size = sizeof backward, .rows = l->rows};
    mhla_linear_desc forward = backward;
    forward.bias = c->bias ? l->bias : NULL;
    forward.residual = c->residual ? l->residual : NULL;
    forward.activation = c->activation;
    forward.pre_activation = l->pre;
    float *const outputs[] = {l->y, l->pre, l->dpre, l->dx, l->dw, l->db};
    const int64_t sizes[] = {l->rows * l->N, l->rows * l->N, l->rows * l->N, l->rows * l->K, l->N * l->K, l->N};
    for (int i = 0; i < 6; i++) memset(outputs[i], 0xff, (size_t)sizes[i] * sizeof(float)); /* NaN */
    mhla_status status = mhla_weight_pack(&weight, l->w, dtype, l->N, l->K, 0);
    if (status == MHLA_OK) status = mhla_linear_forward(&forward, l->y, l->x, weight);
    if (status == MHLA_OK) status = mhla_linear_backward_input(&backward, l->dx, l->dy, weight);
    if (status == MHLA_OK) status = mhla_linear_backward_weight(&backward, l->dw, l->db, l->dy, l->x, l->N, l->K);
    if (status == MHLA_OK)
        status = mhla_activation_backward(l->dpre, l->dy, l->pre, l->rows * l->N, c->activation, NULL);
    mhla_weight_free(weight);
    return status;
}

mhla_status check_layers(check_row *row, const check_isas *isas, int brief) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < (brief ? BRIEF : CASES) && status == MHLA_OK; i++) {
        const struct layer_case *c = &cases[i];
        layer l;
        char name[64];
        snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)c->rows, (long long)c->N, (long long)c->K);
        if (layer_make(&l, c, row->dtype, (uint64_t)i + 200))
            reference(&l, c);
        else
            status = MHLA_ENOMEM;
        for (int isa = 0; isa < isas->count && status == MHLA_OK; isa++) {
            status = mhla_set_isa(isas->name[isa]);
            if (status == MHLA_OK) status = run(&l, c, row->dtype);
            if (status != MHLA_OK) break;
            check_compare(row, isa, "y", name, l.y, MHLA_F32, l.want_y, l.rows * l.N);
            check_compare(row, isa, "pre", name, l.pre, MHLA_F32, l.want_pre, l.rows * l.N);
            check_compare(row, isa, "dpre", name, l.dpre, MHLA_F32, l.want_dpre, l.rows * l.N);
            check_compare(row, isa, "dx", name, l.dx, MHLA_F32, l.want_dx, l.rows * l.K);
            check_compare(row, isa, "dw", name, l.dw, MHLA_F32, l.want_dw, l.N * l.K);
            check_compare(row, isa, "db", name, l.db, MHLA_F32, l.want_db, l.N);
        }
        row->cases++;
        for (int j = 0; j < l.count; j++) free(l.owned[j]);
    }
    return status;
}
