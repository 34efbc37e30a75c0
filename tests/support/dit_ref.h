/* DiT and DiG in double, written from their definition on the parts of deit_ref.h: what differs is told here. */
#ifndef MHLA_TESTS_DIT_REF_H
#define MHLA_TESTS_DIT_REF_H

#include "deit_ref.h"
#include "models/denoisers/dig.h"
#include "models/denoisers/dit.h"

typedef struct dit_ref {
    deit_ref r; /* parameters, and what attention needs of a config */
    mhla_deit_config like;
    const mhla_frame_config *c;
    int scan; /* literally: reversed after each block, transposed after every second one */
} dit_ref;

/* For images of another size than in training H and W change; the table of positions is made here. */
static dit_ref *dit_ref_of(const mhla_frame *m, int height, int width) {
    const mhla_frame_config *c = &m->config;
    dit_ref *d = calloc(1, sizeof *d);
    d->c = c;
    d->scan = c->scan == MHLA_SCAN_FOUR;
    d->like = (mhla_deit_config){.attn = c->attn};
    d->r =
        (deit_ref){&d->like, mhla_frame_params(m), ref_data(mhla_frame_params(m)), height / c->patch, width / c->patch};
    return d;
}

static void dit_ref_free(dit_ref *d) {
    deit_ref_free(&d->r);
    free(d);
}

static double ref_silu(double x) { return x / (1.0 + exp(-x)); }

/* x [T,D] (1 + scale) + shift, after a norm without weights */
static double *ref_modulated(const double *x, const double *shift, const double *scale, int T, int D) {
    double *y = ref_zeros((int64_t)T * D);
    for (int t = 0; t < T; t++) {
        double mean = 0.0, square = 0.0;
        for (int i = 0; i < D; i++) mean += x[t * D + i] / D;
        for (int i = 0; i < D; i++) square += (x[t * D + i] - mean) * (x[t * D + i] - mean) / D;
        for (int i = 0; i < D; i++)
            y[t * D + i] = (x[t * D + i] - mean) / sqrt(square + 1e-6) * (1.0 + scale[i]) + shift[i];
    }
    return y;
}

/* LiT's q and kv side by side, as others have them in one matrix. */
static double *dit_ref_joined(const deit_ref *r, int block, const double *h, int T) {
    const int D = r->c->attn.dim;
    double *q = ref_linear(r, block, "attn.q", h, T, D, D), *kv = ref_linear(r, block, "attn.kv", h, T, D, 2 * D),
           *all = ref_zeros((int64_t)3 * T * D);
    for (int i = 0; i < 3 * T * D; i++) {
        const int t = i / (3 * D), j = i % (3 * D);
        all[i] = j < D ? q[t * D + j] : kv[t * 2 * D + j - D];
    }
    free(q);
    free(kv);
    return all;
}

/* o [T,values] of head n: GLA's state walks over the tokens; MHLA weighs every token by the blocks of the two. */
static void dig_ref_head(const deit_ref *r, int block, int n, double *o, const double *q, const double *k,
                         const double *v, const double *decay, int T, int keys, int values) {
    const mhla_grid_settings *s = &r->c->attn;
    const int K = keys / s->heads, V = values / s->heads, M = s->blocks[0] * s->blocks[1];
    const double *m = ref_param(r, block, "attn.piece_attn.conv.weight");
    double *S = ref_zeros((int64_t)K * V);
    for (int t = 0; t < T; t++) {
        const double *qt = q + t * keys + n * K;
        double *ot = o + t * values + n * V, den = s->den_eps;
        for (int u = 0, place; u < T && m; u++) {
            double a = 0.0;
            for (int i = 0; i < K; i++)
                a += (fmax(qt[i], 0.0) + s->feature_eps) * (fmax(k[u * keys + n * K + i], 0.0) + s->feature_eps);
            a *= m[ref_block(r, t, &place) * M + ref_block(r, u, &place)];
            den += a;
            for (int j = 0; j < V; j++) ot[j] += a * v[u * values + n * V + j];
        }
        for (int j = 0; j < V && m; j++) ot[j] /= den;
        for (int i = 0; i < K * V && !m; i++) {
            const int at = t * keys + n * K + i / V;
            S[i] = exp(decay[at]) * S[i] + k[at] * v[t * values + n * V + i % V];
            ot[i % V] += q[at] * S[i] / sqrt(K);
        }
    }
    free(S);
}

/* GLA, or MHLA with its projections. */
static double *dig_ref_attention(const dit_ref *d, int block, const double *h, int T) {
    const deit_ref *r = &d->r;
    const mhla_grid_settings *s = &d->c->attn;
    const int D = s->dim, keys = (int)(D * s->expand_k), values = (int)(D * s->expand_v), V = values / s->heads;
    double *q = ref_linear(r, block, "attn.q_proj", h, T, D, keys),
           *k = ref_linear(r, block, "attn.k_proj", h, T, D, keys),
           *v = ref_linear(r, block, "attn.v_proj", h, T, D, values), *o = ref_zeros((int64_t)T * values),
           *decay = NULL;
    if (s->rank) {
        double *low = ref_linear(r, block, "attn.gk_proj.0", h, T, D, s->rank);
        decay = ref_linear(r, block, "attn.gk_proj.1", low, T, s->rank, keys);
        for (int i = 0; i < T * keys; i++) decay[i] = -log(1.0 + exp(-decay[i])) / s->divisor;
        free(low);
    }
    for (int n = 0; n < s->heads; n++) dig_ref_head(r, block, n, o, q, k, v, decay, T, keys, values);
    double *g = s->gate ? ref_linear(r, block, "attn.g_proj", h, T, D, values) : NULL;
    const double *w = ref_param(r, block, s->gate ? "attn.g_norm_swish_gate.weight" : "attn.g_norm.weight");
    for (int at = 0; at < T * values; at += V) {
        double square = 0.0;
        for (int i = 0; i < V; i++) square += o[at + i] * o[at + i] / V;
        for (int i = 0; i < V; i++) o[at + i] *= (g ? ref_silu(g[at + i]) : 1.0) * w[i] / sqrt(square + 1e-6);
    }
    double *y = ref_linear(r, block, "attn.o_proj", o, T, values, D);
    free(q), free(k), free(v), free(o), free(decay), free(g);
    return y;
}

static double *dit_ref_attention(const dit_ref *d, int block, double *h, int T) {
    const mhla_frame_config *c = d->c;
    const deit_ref *r = &d->r;
    const int D = c->attn.dim, K = D / c->attn.heads, softmax = c->attn.attention == MHLA_GRID_SOFTMAX;
    if (c->attn.expand_k > 0.0) return dig_ref_attention(d, block, h, T);
    if (c->attn.inner_norm) ref_norm(r, block, "attn.norm", 1e-5, 0, h, T);
    const int lit = c->attn.attention == MHLA_GRID_LIT;
    double *qkv = lit ? dit_ref_joined(r, block, h, T)
                      : ref_linear(r, block, softmax ? "attn.qkv" : "attn.to_qkv", h, T, D, 3 * D);
    double *part[3], *o = ref_zeros((int64_t)T * D);
    for (int p = 0; p < 3; p++) {
        part[p] = ref_zeros((int64_t)T * D);
        for (int i = 0; i < T * D; i++) part[p][i] = qkv[i / D * 3 * D + p * D + i % D];
        if (p < 2 && c->attn.qk_norm)
            ref_norm(r, block, p ? "attn.k_norm" : "attn.q_norm", c->attn.qk_norm_eps, 1, part[p], T);
        for (int i = 0; i < T * D && p < 2 && !softmax; i++) part[p][i] = fmax(part[p][i], 0.0) + c->attn.feature_eps;
    }
    for (int head = 0; head < c->attn.heads; head++)
        if (lit)
            ref_baseline(r, head * K, o, part[0], part[1], part[2], T);
        else
            ref_head(r, block, head * K, o, part[0], part[1], part[2], T);
    if (c->attn.gate) { /* each head normed, times silu of the gate */
        double *g = ref_linear(r, block, "attn.g", h, T, D, D);
        const double *w = ref_param(r, block, "attn.g_norm.weight");
        for (int at = 0; at < T * D; at += K) {
            double square = 0.0;
            for (int i = 0; i < K; i++) square += o[at + i] * o[at + i] / K;
            for (int i = 0; i < K; i++) o[at + i] *= ref_silu(g[at + i]) * (w ? w[i] / sqrt(square + 1e-6) : 1.0);
        }
        free(g);
    }
    if (c->attn.lepe && lit)
        ref_filter(r, ref_param(r, block, "attn.dwc.weight"), ref_param(r, block, "attn.dwc.bias"), K, c->attn.lepe,
                   part[2], o);
    if (c->attn.lepe && !lit) ref_local(r, block, "attn.lepe", c->attn.lepe, part[2], o);
    double *y = ref_linear(r, block, softmax || lit ? "attn.proj" : "attn.to_out.0", o, T, D, D);
    for (int p = 0; p < 3; p++) free(part[p]);
    free(qkv);
    free(o);
    return y;
}

/* The convolution that ends a block, on the grid or on the blocks' list folded into a square. */
static void dit_ref_cpe(const dit_ref *d, int block, double *x, int T) {
    const int D = d->c->attn.dim;
    deit_ref r = d->r;
    double *in = ref_zeros((int64_t)T * D), *out = ref_zeros((int64_t)T * D);
    int *order = calloc((size_t)T, sizeof *order), n = 0; /* place t of the list is token order[t] */
    const int blocks = d->c->attn.blocks[0] * d->c->attn.blocks[1];
    for (int b = 0; b < blocks && d->c->cpe == MHLA_CPE_FOLDED; b++)
        for (int t = 0, place; t < T; t++)
            if (ref_block(&d->r, t, &place) == b) order[n++] = t;
    for (int t = 0; t < T && n == 0; t++) order[t] = t;
    if (n) r.H = r.W = (int)(sqrt(T) + 0.5);
    for (int t = 0; t < T; t++) memcpy(in + t * D, x + order[t] * D, (size_t)D * sizeof *x);
    ref_local(&r, block, "dw_conv", 3, in, out);
    for (int t = 0; t < T; t++) memcpy(x + order[t] * D, out + t * D, (size_t)D * sizeof *x);
    free(order);
    free(in);
    free(out);
}

static void ref_gated_add(double *x, const double *gate, double *y, int T, int D) {
    for (int i = 0; i < T * D; i++) x[i] += gate[i % D] * y[i];
    free(y);
}

static void dit_ref_block(const dit_ref *d, int block, const double *cond, double *x, int T) {
    const int D = d->c->attn.dim;
    double *ada = ref_linear(&d->r, block, "adaLN_modulation.1", cond, 1, D, 6 * D);
    double *h = ref_modulated(x, ada, ada + D, T, D);
    ref_gated_add(x, ada + 2 * D, dit_ref_attention(d, block, h, T), T, D);
    free(h);
    h = ref_modulated(x, ada + 3 * D, ada + 4 * D, T, D);
    const int gated = d->c->mlp_hidden, hidden = gated ? gated : (int)(D * d->c->mlp_ratio);
    double *wide = ref_linear(&d->r, block, gated ? "mlp.gate_proj" : "mlp.fc1", h, T, D, gated ? 2 * hidden : hidden);
    for (int i = 0; i < T * hidden && gated; i++) /* in place: what is read lies behind what is written */
        wide[i] =
            ref_silu(wide[i / hidden * 2 * hidden + i % hidden]) * wide[(i / hidden * 2 + 1) * hidden + i % hidden];
    for (int i = 0; i < T * hidden && !gated; i++)
        wide[i] *= 0.5 * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (wide[i] + 0.044715 * wide[i] * wide[i] * wide[i])));
    ref_gated_add(x, ada + 5 * D, ref_linear(&d->r, block, gated ? "mlp.down_proj" : "mlp.fc2", wide, T, hidden, D), T,
                  D);
    if (d->c->cpe) dit_ref_cpe(d, block, x, T);
    free(wide);
    free(h);
    free(ada);
}

/* The tokens in the opposite order; and, where `turn` says so, the grid of that, H x W, transposed, which makes it W x H. */
static void dig_ref_turn(dit_ref *d, double *x, int turn) {
    const int D = d->c->attn.dim, H = d->r.H, W = d->r.W, T = H * W;
    double *old = ref_copy(x, (int64_t)T * D);
    for (int i = 0; i < H; i++)
        for (int j = 0; j < W; j++)
            memcpy(x + (turn ? j * H + i : i * W + j) * D, old + (T - 1 - (i * W + j)) * D, (size_t)D * sizeof *x);
    if (turn) d->r.H = W;
    if (turn) d->r.W = H;
    free(old);
}

/* The answer [out channels, height, width] to one sample. */
static double *dit_ref_answer(const dit_ref *d, const float *image, double time, int label) {
    const mhla_frame_config *c = d->c;
    const deit_ref *r = &d->r;
    const int D = c->attn.dim, P = c->patch, C = c->channels, out = c->learn_sigma ? 2 * C : C;
    const int T = r->H * r->W, height = r->H * P, width = r->W * P;
    const double *w = ref_param(r, -1, "x_embedder.proj.weight"), *b = ref_param(r, -1, "x_embedder.proj.bias");
    double *x = ref_zeros((int64_t)T * D), numbers[256];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            double sum = b[i];
            for (int e = 0; e < C * P * P; e++) {
                const int row = t / r->W * P + e / P % P, column = t % r->W * P + e % P;
                sum += w[i * C * P * P + e] * (double)image[(e / (P * P) * height + row) * width + column];
            }
            const int part = i / (D / 4), place = part < 2 ? t % r->W : t / r->W; /* column first */
            const double angle = place / pow(10000.0, (double)(i % (D / 4)) / (D / 4.0));
            x[t * D + i] = sum + (part % 2 ? cos(angle) : sin(angle));
        }
    for (int i = 0; i < 128; i++) {
        numbers[i] = cos(time / pow(10000.0, i / 128.0));
        numbers[128 + i] = sin(time / pow(10000.0, i / 128.0));
    }
    double *hidden = ref_linear(r, -1, "t_embedder.mlp.0", numbers, 1, 256, D);
    for (int i = 0; i < D; i++) hidden[i] = ref_silu(hidden[i]);
    double *cond = ref_linear(r, -1, "t_embedder.mlp.2", hidden, 1, D, D);
    for (int i = 0; i < D; i++)
        cond[i] = ref_silu(cond[i] + ref_param(r, -1, "y_embedder.embedding_table.weight")[label * D + i]);
    dit_ref now = *d; /* whose grid turns */
    for (int i = 0; i < c->depth; i++) {
        dit_ref_block(&now, i, cond, x, T);
        if (d->scan) dig_ref_turn(&now, x, i % 2);
    }
    double *ada = ref_linear(r, -1, "final_layer.adaLN_modulation.1", cond, 1, D, 2 * D);
    double *h = ref_modulated(x, ada, ada + D, T, D);
    double *tokens = ref_linear(r, -1, "final_layer.linear", h, T, D, P * P * out);
    double *y = ref_zeros((int64_t)out * height * width);
    for (int i = 0; i < out * height * width; i++) {
        const int column = i % width, row = i / width % height, channel = i / (width * height);
        y[i] = tokens[((row / P * r->W + column / P) * P * P + row % P * P + column % P) * out + channel];
    }
    free(tokens);
    free(h);
    free(ada);
    free(cond);
    free(hidden);
    free(x);
    return y;
}

#endif
