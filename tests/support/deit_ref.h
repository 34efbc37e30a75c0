/* DeiT in double, written from its definition and slow: every attention as a whole matrix of weights. It reads a model's
 * parameters by name from a table that a test may change by as little as it likes, so that differences tell derivatives
 * to many digits, with next to no kink of relu between two points. */
#ifndef MHLA_TESTS_DEIT_REF_H
#define MHLA_TESTS_DEIT_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/vision/deit.h"

typedef struct deit_ref {
    const mhla_deit_config *c;
    const mhla_params *params;
    double **data; /* [params][count] */
    int H, W;      /* grid */
} deit_ref;

static double **ref_data(const mhla_params *params) {
    double **data = calloc((size_t)mhla_params_count(params), sizeof *data);
    for (int i = 0; i < mhla_params_count(params); i++) {
        const mhla_param *p = mhla_params_at(params, i);
        data[i] = malloc((size_t)p->count * sizeof **data);
        for (int64_t k = 0; k < p->count; k++) data[i][k] = (double)p->data[k];
    }
    return data;
}

static inline deit_ref deit_ref_of(const mhla_deit *m) {
    const mhla_deit_config *c = mhla_deit_config_of(m);
    return (deit_ref){c, mhla_deit_params(m), ref_data(mhla_deit_params(m)),
                      (c->image[0] + 2 * c->padding[0]) / c->patch, (c->image[1] + 2 * c->padding[1]) / c->patch};
}

static void deit_ref_free(deit_ref *r) {
    for (int i = 0; i < mhla_params_count(r->params); i++) free(r->data[i]);
    free(r->data);
}

/* A parameter by name, block >= 0: of that block; NULL where the model has none. */
static const double *ref_param(const deit_ref *r, int block, const char *suffix) {
    char name[96];
    if (block >= 0)
        snprintf(name, sizeof name, "blocks.%d.%s", block, suffix);
    else
        snprintf(name, sizeof name, "%s", suffix);
    for (int i = 0; i < mhla_params_count(r->params); i++)
        if (strcmp(mhla_params_at(r->params, i)->name, name) == 0) return r->data[i];
    return NULL;
}

static double *ref_zeros(int64_t n) { return calloc((size_t)n, sizeof(double)); }

/* y [T,N] = x [T,K] W^T + b */
static double *ref_linear(const deit_ref *r, int block, const char *layer, const double *x, int T, int K, int N) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", layer);
    const double *w = ref_param(r, block, name);
    snprintf(name, sizeof name, "%s.bias", layer);
    const double *b = ref_param(r, block, name);
    double *y = ref_zeros((int64_t)T * N);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) {
            double sum = b ? b[n] : 0.0;
            for (int k = 0; k < K; k++) sum += x[t * K + k] * w[n * K + k];
            y[t * N + n] = sum;
        }
    return y;
}

/* In place; rms: without mean and bias. */
static void ref_norm(const deit_ref *r, int block, const char *layer, double eps, int rms, double *x, int T) {
    char name[64];
    const int D = r->c->attn.dim;
    snprintf(name, sizeof name, "%s.weight", layer);
    const double *w = ref_param(r, block, name);
    snprintf(name, sizeof name, "%s.bias", layer);
    const double *b = ref_param(r, block, name);
    for (int t = 0; t < T; t++, x += D) {
        double mean = 0.0, square = 0.0;
        for (int d = 0; d < D && !rms; d++) mean += x[d] / D;
        for (int d = 0; d < D; d++) square += (x[d] - mean) * (x[d] - mean) / D;
        for (int d = 0; d < D; d++) x[d] = (x[d] - mean) / sqrt(square + eps) * w[d] + (b ? b[d] : 0.0);
    }
}

/* y += the depthwise convolution of the patches of x with w [n,k,k] and b [n] or NULL, channel d having filter d mod n; a class
 * token in front gets nothing. */
static void ref_filter(const deit_ref *r, const double *w, const double *b, int n, int k, const double *x, double *y) {
    const int D = r->c->attn.dim, H = r->H, W = r->W, first = r->c->attn.class_token;
    for (int i = 0; i < H * W; i++)
        for (int d = 0; d < D; d++) {
            double sum = b ? b[d % n] : 0.0;
            for (int v = 0; v < k; v++)
                for (int u = 0; u < k; u++) {
                    const int row = i / W + v - k / 2, column = i % W + u - k / 2;
                    if (row < 0 || row >= H || column < 0 || column >= W) continue;
                    sum += w[(d % n * k + v) * k + u] * x[(first + row * W + column) * D + d];
                }
            y[(first + i) * D + d] += sum;
        }
}

static void ref_local(const deit_ref *r, int block, const char *layer, int k, const double *x, double *y) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", layer);
    const double *w = ref_param(r, block, name);
    snprintf(name, sizeof name, "%s.bias", layer);
    ref_filter(r, w, ref_param(r, block, name), r->c->attn.dim, k, x, y);
}

/* The block of token t, a class token's is 0, and its place inside. */
static int ref_block(const deit_ref *r, int t, int *place) {
    const mhla_deit_config *c = r->c;
    *place = 0;
    if (c->attn.class_token && t == 0) return 0;
    const int row = (t - c->attn.class_token) / r->W, column = (t - c->attn.class_token) % r->W;
    int i = 0, j = 0;
    while ((i + 1) * r->H / c->attn.blocks[0] <= row) i++;
    while ((j + 1) * r->W / c->attn.blocks[1] <= column) j++;
    const int x0 = j * r->W / c->attn.blocks[1], x1 = (j + 1) * r->W / c->attn.blocks[1];
    *place = (row - i * r->H / c->attn.blocks[0]) * (x1 - x0) + column - x0;
    return i * c->attn.blocks[1] + j + c->attn.class_token;
}

static double ref_dot(const double *a, const double *b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* o [T,D] += attention of one head, whose columns begin at `at`. q, k [T,D]: features already, but for softmax. */
static void ref_head(const deit_ref *r, int block, int at, double *o, const double *q, const double *k, const double *v,
                     int T) {
    const mhla_deit_config *c = r->c;
    const int D = c->attn.dim, K = D / c->attn.heads, M = c->attn.blocks[0] * c->attn.blocks[1] + c->attn.class_token;
    const double *m = ref_param(r, block, "attn.piece_attn.conv.weight");
    for (int t = 0; t < T; t++) {
        int place, other;
        const int i = m ? ref_block(r, t, &place) : 0;
        double den = 0.0;
        for (int u = 0; u < T; u++) {
            double a = ref_dot(q + t * D + at, k + u * D + at, K);
            if (c->attn.attention == MHLA_GRID_SOFTMAX) a = exp(a / sqrt(K));
            if (m) a *= m[i * M + ref_block(r, u, &other)];
            den += a;
            for (int d = 0; d < K; d++) o[t * D + at + d] += a * v[u * D + at + d];
        }
        if (m && c->attn.denominator == MHLA_DEN_RELEASED) { /* the queries at the same place of every block */
            den = 0.0;
            for (int s = 0; s < T; s++)
                for (int u = 0; u < T; u++) {
                    int s_place, u_place;
                    const int b = ref_block(r, s, &s_place);
                    if (s_place == place && ref_block(r, u, &u_place) == b)
                        den += m[i * M + b] * ref_dot(q + s * D + at, k + u * D + at, K);
                }
        }
        if (c->attn.attention != MHLA_GRID_SOFTMAX) den += c->attn.den_eps;
        if (m && c->attn.denominator == MHLA_DEN_NONE) den = 1.0;
        for (int d = 0; d < K; d++) o[t * D + at + d] /= den;
    }
}

/* Focused LA: rows of x become a^p |a| / |a^p|, a = (relu(x) + eps) / softplus(scale). */
static void ref_focus(const deit_ref *r, int block, double *x, int T) {
    const double *scale = ref_param(r, block, "attn.scale");
    const int D = r->c->attn.dim;
    for (int t = 0; t < T; t++, x += D) {
        double a = 0.0, sharp = 0.0;
        for (int d = 0; d < D; d++) {
            x[d] = (fmax(x[d], 0.0) + r->c->attn.feature_eps) / log(1.0 + exp(scale[d]));
            a += x[d] * x[d];
            sharp += pow(x[d], 2 * r->c->attn.power);
        }
        for (int d = 0; d < D; d++) x[d] = pow(x[d], r->c->attn.power) * sqrt(a / sharp);
    }
}

/* x [T,D] of one head turned: pair j by row or column times its frequency; y [T,K]. */
static void ref_turn(const deit_ref *r, double *y, const double *x, int at, int T) {
    const int D = r->c->attn.dim, K = D / r->c->attn.heads, n = K / 4, first = r->c->attn.class_token;
    for (int t = 0; t < T; t++)
        for (int j = 0; j < K / 2; j++) {
            const double place = t < first ? 0.0 : j < n ? (t - first) / r->W : (t - first) % r->W;
            const double angle = r->c->attn.rope ? place * (n > 1 ? pow(10000.0, -(j % n) / (n - 1.0)) : 1.0) : 0.0;
            const double a = x[t * D + at + 2 * j], b = x[t * D + at + 2 * j + 1];
            y[t * K + 2 * j] = a * cos(angle) - b * sin(angle);
            y[t * K + 2 * j + 1] = b * cos(angle) + a * sin(angle);
        }
}

/* o [T,D] of one head of Focused LA, InLine, MALA or RALA, by its matrix A; q and k are features already. */
static void ref_baseline(const deit_ref *r, int at, double *o, const double *q, const double *k, const double *v,
                         int T) {
    const mhla_deit_config *c = r->c;
    const int D = c->attn.dim, K = D / c->attn.heads, kind = c->attn.attention;
    const int turns = kind == MHLA_GRID_MALA || kind == MHLA_GRID_RALA;
    const double s = 1.0 / sqrt(K);
    double *q0 = ref_zeros(K), *k0 = ref_zeros(K), *weight = ref_zeros(T), sum = 0.0;
    double *qr = ref_zeros((int64_t)T * K), *kr = ref_zeros((int64_t)T * K);
    if (turns) ref_turn(r, qr, q, at, T);
    if (turns) ref_turn(r, kr, k, at, T);
    for (int i = 0; i < T * K; i++) q0[i % K] += q[i / K * D + at + i % K] / T;
    for (int u = 0; u < T; u++) { /* a_u of RALA; 1/T of the others */
        weight[u] = kind == MHLA_GRID_RALA ? exp(s * ref_dot(q0, k + u * D + at, K)) : 1.0;
        sum += weight[u];
    }
    for (int i = 0; i < T * K; i++) k0[i % K] += weight[i / K] / sum * k[i / K * D + at + i % K];
    for (int t = 0; t < T; t++) {
        const double z = ref_dot(q + t * D + at, k0, K);
        for (int u = 0; u < T; u++) {
            const double plain = ref_dot(q + t * D + at, k + u * D + at, K),
                         turned = ref_dot(qr + t * K, kr + u * K, K);
            double a = plain / T / (z + c->attn.den_eps);
            if (kind == MHLA_GRID_INLINE) a = (s * plain - s * z + 1.0) / T;
            if (kind == MHLA_GRID_MALA) a = (s * turned * (1.0 + 1.0 / (s * z + c->attn.den_eps)) - s * z) / T;
            if (kind == MHLA_GRID_RALA) a = weight[u] / sum * turned / (z + c->attn.den_eps);
            for (int d = 0; d < K; d++) o[t * D + at + d] += a * v[u * D + at + d];
        }
    }
    free(q0), free(k0), free(weight), free(qr), free(kr);
}

/* o += the convolution of v with kernels that the mean of all tokens of h tells. */
static void ref_residual(const deit_ref *r, int block, const double *h, const double *v, double *o, int T) {
    const int D = r->c->attn.dim, K = D / r->c->attn.heads, k2 = r->c->attn.lepe * r->c->attn.lepe;
    const double *w0 = ref_param(r, block, "attn.residual.0.weight"), *b0 = ref_param(r, block, "attn.residual.0.bias"),
                 *w2 = ref_param(r, block, "attn.residual.2.weight"), *b2 = ref_param(r, block, "attn.residual.2.bias");
    double *g = ref_zeros(D), *u = ref_zeros(D), *w = ref_zeros((int64_t)k2 * D);
    for (int i = 0; i < T * D; i++) g[i % D] += h[i] / T;
    for (int i = 0; i < D; i++) {
        u[i] = b0[i] + ref_dot(w0 + i * K, g + i / K * K, K);
        u[i] *= 0.5 * (1.0 + erf(u[i] / sqrt(2.0)));
    }
    for (int i = 0; i < k2 * D; i++) w[i] = b2[i] + ref_dot(w2 + i * K, u + i / k2 / K * K, K);
    ref_filter(r, w, NULL, D, r->c->attn.lepe, v, o);
    free(g), free(u), free(w);
}

static double ref_feature(const mhla_deit_config *c, double x) {
    switch (c->attn.attention) {
    case MHLA_GRID_MHLA:
    case MHLA_GRID_LINEAR: return fmax(x, 0.0) + c->attn.feature_eps;
    case MHLA_GRID_MALA:
    case MHLA_GRID_RALA: return x > 0.0 ? x + 1.0 : exp(x);
    default: return x;
    }
}

static double *ref_attention(const deit_ref *r, int block, double *h, int T) {
    const mhla_deit_config *c = r->c;
    const int D = c->attn.dim, parts = c->attn.gate ? 4 : 3, ours = c->attn.attention <= MHLA_GRID_LINEAR;
    const int focused = c->attn.attention == MHLA_GRID_FOCUSED;
    if (c->attn.inner_norm) ref_norm(r, block, "attn.norm", 1e-5, 0, h, T);
    double *qkv = ref_linear(r, block,
                             ours           ? "attn.to_qkv"
                             : c->attn.gate ? "attn.qkvo"
                                            : "attn.qkv",
                             h, T, D, parts * D);
    double *part[4] = {0}, *o = ref_zeros((int64_t)T * D);
    for (int p = 0; p < parts; p++) {
        part[p] = ref_zeros((int64_t)T * D);
        for (int i = 0; i < T * D; i++) part[p][i] = qkv[i / D * parts * D + p * D + i % D];
        if (p >= 2) continue;
        if (c->attn.qk_norm) ref_norm(r, block, p ? "attn.k_norm" : "attn.q_norm", c->attn.qk_norm_eps, 1, part[p], T);
        const double *position = p ? ref_param(r, block, "attn.positional_encoding") : NULL;
        for (int i = 0; i < T * D; i++) part[p][i] = ref_feature(c, part[p][i] + (position ? position[i] : 0.0));
        if (focused) ref_focus(r, block, part[p], T);
    }
    for (int at = 0; at < D; at += D / c->attn.heads)
        if (c->attn.attention < MHLA_GRID_FOCUSED)
            ref_head(r, block, at, o, part[0], part[1], part[2], T);
        else
            ref_baseline(r, at, o, part[0], part[1], part[2], T);
    if (c->attn.lepe && c->attn.attention == MHLA_GRID_INLINE)
        ref_residual(r, block, h, part[2], o, T);
    else if (c->attn.lepe && focused)
        ref_filter(r, ref_param(r, block, "attn.dwc.weight"), ref_param(r, block, "attn.dwc.bias"), D / c->attn.heads,
                   c->attn.lepe, part[2], o);
    else if (c->attn.lepe)
        ref_local(r, block, "attn.lepe", c->attn.lepe, part[2], o);
    for (int i = 0; i < T * D && c->attn.gate; i++) o[i] *= part[3][i];
    double *y = ref_linear(r, block, ours ? "attn.to_out.0" : "attn.proj", o, T, D, D);
    for (int p = 0; p < 4; p++) free(part[p]);
    free(qkv);
    free(o);
    return y;
}

static double *ref_copy(const double *x, int64_t n) {
    double *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static void ref_add(double *x, double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
    free(y);
}

static void ref_transformer_block(const deit_ref *r, int block, double *x, int T) {
    const mhla_deit_config *c = r->c;
    const int D = c->attn.dim, hidden = (int)(c->attn.dim * c->mlp_ratio), rms = c->norm == MHLA_NORM_RMS;
    const int64_t n = (int64_t)T * D;
    if (c->cpe) {
        double *y = ref_zeros(n);
        ref_local(r, block, "cpe", c->cpe, x, y);
        ref_add(x, y, n);
    }
    double *h = ref_copy(x, n);
    ref_norm(r, block, "norm1", c->norm_eps, rms, h, T);
    ref_add(x, ref_attention(r, block, h, T), n);
    memcpy(h, x, (size_t)n * sizeof *h);
    ref_norm(r, block, "norm2", c->norm_eps, rms, h, T);
    double *wide = ref_linear(r, block, "mlp.fc1", h, T, D, hidden);
    for (int64_t i = 0; i < (int64_t)T * hidden; i++) wide[i] *= 0.5 * (1.0 + erf(wide[i] / sqrt(2.0)));
    ref_add(x, ref_linear(r, block, "mlp.fc2", wide, T, hidden, D), n);
    free(wide);
    free(h);
}

/* logits [classes] of one image [channels,height,width]. */
static double *deit_ref_logits(const deit_ref *r, const float *image) {
    const mhla_deit_config *c = r->c;
    const int D = c->attn.dim, P = c->patch, first = c->attn.class_token, T = first + r->H * r->W;
    const double *w = ref_param(r, -1, "patch_embed.proj.weight"), *b = ref_param(r, -1, "patch_embed.proj.bias"),
                 *position = ref_param(r, -1, "pos_embed"), *token = ref_param(r, -1, "cls_token");
    double *x = ref_zeros((int64_t)T * D);
    for (int t = 0; t < T; t++)
        for (int d = 0; d < D; d++) {
            double sum = t < first ? token[d] : b[d];
            for (int i = 0; t >= first && i < c->channels * P * P; i++) {
                const int channel = i / (P * P), row = (t - first) / r->W * P + i / P % P - c->padding[0],
                          column = (t - first) % r->W * P + i % P - c->padding[1];
                if (row < 0 || row >= c->image[0] || column < 0 || column >= c->image[1]) continue;
                sum += w[d * c->channels * P * P + i] *
                       (double)image[((int64_t)channel * c->image[0] + row) * c->image[1] + column];
            }
            x[t * D + d] = sum + position[t * D + d];
        }
    for (int i = 0; i < c->depth; i++) ref_transformer_block(r, i, x, T);
    if (!first) { /* the mean of all tokens in the place of the first */
        for (int t = 1; t < T; t++)
            for (int d = 0; d < D; d++) x[d] += x[t * D + d];
        for (int d = 0; d < D; d++) x[d] /= T;
    }
    ref_norm(r, -1, first ? "norm" : "fc_norm", c->norm_eps, c->norm == MHLA_NORM_RMS, x, 1);
    double *logits = ref_linear(r, -1, "head", x, 1, D, c->classes);
    free(x);
    return logits;
}

/* The mean cross entropy of B images with smoothed labels. */
static inline double deit_ref_loss(const deit_ref *r, const float *images, const int32_t *labels, int B,
                                   double smoothing) {
    const mhla_deit_config *c = r->c;
    const int64_t pixels = (int64_t)c->channels * c->image[0] * c->image[1];
    double loss = 0.0;
    for (int i = 0; i < B; i++) {
        double *y = deit_ref_logits(r, images + i * pixels), sum = 0.0, wanted = 0.0;
        for (int k = 0; k < c->classes; k++) {
            sum += exp(y[k]);
            wanted += y[k] * (smoothing / c->classes + (k == labels[i] ? 1.0 - smoothing : 0.0));
        }
        loss += (log(sum) - wanted) / B;
        free(y);
    }
    return loss;
}

#endif
