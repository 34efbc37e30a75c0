/* Each operator as a matrix, by its definition: A[t,u] is the weight with which token u counts for token t, before anything
 * that follows attention. In double from the model's own q and k: from float32 scores even linear attention would seem to
 * have full rank. The formulas are those of the READMEs in src/ops. */
#include "analysis/matrix.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "ops/features.h"
#include "ops/op.h"

/* One head of one sample, in double. */
typedef struct head {
    const mhla_attended *a;
    const mhla_plan *plan;
    int64_t b, h, T, K;
    int64_t at_q, at_k; /* heads of q and k that head h reads */
    double *q, *k;      /* [T,K] features, turned */
    double *qn, *kn;    /* [T,K] features as they are: for denominators */
    double *kt;         /* [K,T] k transposed */
    double *mean, *z;   /* [K], [max(M,1),K] */
    double *mixture;    /* [K]; what is left of a query, of recurrences with decay */
    double *weight;     /* [T] RALA's, of the keys */
    int32_t *block;     /* [T] of bidirectional MHLA */
    int64_t *position;  /* [T] of a token in the order of blocks */
} head;

const char *mhla_matrix_name(const mhla_plan *plan) {
    switch (plan->d.kind) {
    case MHLA_KIND_BIDIRECTIONAL:
    case MHLA_KIND_CAUSAL: return "mhla";
    case MHLA_KIND_LINEAR:
    case MHLA_KIND_LINEAR_CAUSAL: return "linear";
    case MHLA_KIND_SOFTMAX: return "softmax";
    case MHLA_KIND_FOCUSED: return "focused";
    case MHLA_KIND_INLINE: return "inline";
    case MHLA_KIND_MALA: return "mala";
    case MHLA_KIND_RALA: return "rala";
    case MHLA_KIND_SIMPLE_GLA: return "simple_gla";
    case MHLA_KIND_GLA: return "gla";
    case MHLA_KIND_GATED_DELTA: return "gated_delta";
    }
    return NULL;
}

int mhla_matrix_causal(const mhla_plan *plan) {
    return plan->d.kind == MHLA_KIND_CAUSAL || plan->d.kind == MHLA_KIND_LINEAR_CAUSAL || mhla_decays(plan->d.kind) ||
           (plan->d.kind == MHLA_KIND_SOFTMAX && plan->d.causal);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t mhla_matrix_bound(const mhla_plan *plan, int64_t T, int64_t count) {
    const int64_t K = plan->d.key_dim, C = plan->d.chunk;
    int64_t bound = T;
    switch (plan->d.kind) {
    case MHLA_KIND_SOFTMAX: break;
    case MHLA_KIND_BIDIRECTIONAL: /* the columns of a block lie in the span of its keys */
        bound = 0;
        for (int64_t i = 0; i < plan->M; i++)
            bound += least(plan->queries->offsets[i + 1] - plan->queries->offsets[i], K);
        break;
    case MHLA_KIND_CAUSAL: bound = T / C * least(C, K) + least(T % C, K); break;
    case MHLA_KIND_LINEAR:
    case MHLA_KIND_LINEAR_CAUSAL:
    case MHLA_KIND_FOCUSED:
    case MHLA_KIND_RALA: bound = K; break;
    case MHLA_KIND_INLINE:
    case MHLA_KIND_MALA: bound = K + 1; break; /* one constant column direction more */
    case MHLA_KIND_SIMPLE_GLA:
    case MHLA_KIND_GLA:
    case MHLA_KIND_GATED_DELTA: break; /* with its mask, which they cannot be without: any */
    }
    return least(least(bound, T), count);
}

mhla_status mhla_matrix_check(const mhla_attended *a) {
    const mhla_call *c = a->call;
    if (mhla_matrix_name(a->plan) == NULL)
        return mhla_fail(MHLA_ENOTSUP, "attention %d: its kind (%d) has no explicit matrix here", (int)a->index,
                         (int)a->plan->d.kind);
    if (c->cu_seqlens || c->q2 || c->past || (c->kv_tokens && c->kv_tokens != c->tokens) || c->key_rope_cos ||
        a->plan->keys != a->plan->queries || a->plan->d.dtype != MHLA_F32)
        return mhla_fail(MHLA_ENOTSUP,
                         "attention %d: its matrix cannot be computed: sequences are packed, or there is a past, a "
                         "second pair for the "
                         "denominator, or queries and keys in different places",
                         (int)a->index);
    return MHLA_OK;
}

/* ---- Features ---- */

static double softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

static mhla_feature feature_of(const mhla_plan_desc *d) {
    switch (d->kind) {
    case MHLA_KIND_SOFTMAX:
    case MHLA_KIND_INLINE: return MHLA_FEATURE_IDENTITY;
    case MHLA_KIND_MALA:
    case MHLA_KIND_RALA: return MHLA_FEATURE_ELU;
    default: return d->feature;
    }
}

/* f(a) = a^p |a| / |a^p| with a = (max(x,0) + eps) / softplus(focus), norms over all heads. f is homogeneous: the row is
 * divided by its largest number meanwhile. */
static void focus(double *out, const head *x, const float *row) {
    const mhla_plan_desc *d = &x->plan->d;
    const int64_t C = (int64_t)d->heads * x->K, first = x->h * x->K;
    const float *scale = x->a->call->focus;
    const int p = d->focus_power ? d->focus_power : 3;
    double most = 0.0, sum = 0.0, sum_p = 0.0;
    for (int64_t c = 0; c < C; c++) { /* rows of all heads lie one after the other: nn gives them so */
        const double v = mhla_feature_value(MHLA_FEATURE_RELU, (double)row[c], (double)d->feature_eps);
        most = fmax(most, v / softplus((double)scale[c]));
    }
    for (int64_t c = 0; c < C; c++) {
        const double v = mhla_feature_value(MHLA_FEATURE_RELU, (double)row[c], (double)d->feature_eps);
        const double a = most > 0.0 ? v / softplus((double)scale[c]) / most : 0.0, power = pow(a, p);
        sum += a * a;
        sum_p += power * power;
        if (c >= first && c < first + x->K) out[c - first] = power;
    }
    const double factor = sum_p > 0.0 ? most * sqrt(sum) / sqrt(sum_p) : 0.0;
    for (int64_t j = 0; j < x->K; j++) out[j] *= factor;
}

/* To length 1, as the delta rule has it. */
static void normalise(double *row, int64_t K) {
    double sum = 1e-6;
    for (int64_t j = 0; j < K; j++) sum += row[j] * row[j];
    for (int64_t j = 0; j < K; j++) row[j] /= sqrt(sum);
}

static void load(double *out, double *plain, const head *x, const float *from, const mhla_strides *s, int64_t at) {
    const mhla_plan_desc *d = &x->plan->d;
    const mhla_call *c = x->a->call;
    const mhla_feature feature = feature_of(d);
    for (int64_t t = 0; t < x->T; t++) {
        double *row = out + t * x->K;
        const float *token = from + x->b * s->batch + t * s->token;
        if (d->kind == MHLA_KIND_FOCUSED)
            focus(row, x, token);
        else
            for (int64_t j = 0; j < x->K; j++)
                row[j] = mhla_feature_value(feature, (double)token[at * s->head + j], (double)d->feature_eps);
        if (d->qk_l2norm) normalise(row, x->K);
        memcpy(plain + t * x->K, row, (size_t)x->K * sizeof *row);
        if (d->rope != MHLA_ROPE_NONE) mhla_rotate_row(row, d->rope, d->rope_dim, c->rope_cos, c->rope_sin, t, 1.0);
    }
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) sum += a[j] * b[j];
    return sum;
}

static void add(double *y, double factor, const double *x, int64_t n) {
    for (int64_t j = 0; j < n; j++) y[j] += factor * x[j];
}

/* row [T] = q_t . k_u for every u: columns of k one after the other, so that it is fast. */
static void scores(double *row, const head *x, int64_t t) {
    memset(row, 0, (size_t)x->T * sizeof *row);
    for (int64_t j = 0; j < x->K; j++) add(row, x->q[t * x->K + j], x->kt + j * x->T, x->T);
}

static void mean_of(double *mean, const double *x, int64_t T, int64_t K) {
    memset(mean, 0, (size_t)K * sizeof *mean);
    for (int64_t t = 0; t < T; t++) add(mean, 1.0 / (double)T, x + t * K, K);
}

/* ---- Rows, one function per operator: row [T] of token t ---- */

static const float *mix_of(const head *x) {
    const mhla_plan *p = x->plan;
    return x->a->mix ? x->a->mix->data + (p->d.mix_per_head ? x->h * p->M * p->M : 0) : NULL;
}

/* m[b(t),b(u)] q~.k~ / (q~ . z' + eps), or the released denominator; linear attention is one block. */
static void row_bidirectional(double *row, head *x, int64_t t) {
    const mhla_plan_desc *d = &x->plan->d;
    const int64_t M = x->plan->queries ? x->plan->M : 1, i = x->block[t], K = x->K;
    const float *mix = mix_of(x);
    double den = 1.0;
    if (d->denominator == MHLA_DEN_EQ4) {
        memset(x->mixture, 0, (size_t)K * sizeof(double));
        for (int64_t b = 0; b < M; b++) add(x->mixture, mix ? (double)mix[i * M + b] : 1.0, x->z + b * K, K);
        den = (double)d->scale * dot(x->qn + t * K, x->mixture, K) + (double)d->den_eps;
    } else if (d->denominator == MHLA_DEN_RELEASED) { /* queries at t's place in every block */
        const int64_t w = x->position[t] - x->plan->queries->offsets[i];
        den = 0.0;
        for (int64_t b = 0; b < M; b++) {
            const int64_t p = x->plan->queries->offsets[b] + w,
                          u = x->plan->queries && x->plan->queries->perm ? x->plan->queries->perm[p] : p;
            den += (double)mix[i * M + b] * dot(x->qn + u * K, x->z + b * K, K);
        }
        den = (double)d->scale * den + (double)d->den_eps;
    }
    scores(row, x, t);
    for (int64_t u = 0; u < x->T; u++)
        row[u] *= (double)d->scale * (mix ? (double)mix[i * M + x->block[u]] : 1.0) / den;
    if (den == 0.0) memset(row, 0, (size_t)x->T * sizeof *row);
}

/* s m[chunk(t),chunk(u)] q~.k~, u <= t; over its own sum of un-turned features where there is a denominator. */
static void row_causal(double *row, head *x, int64_t t, int masked) {
    const mhla_plan *p = x->plan;
    const int64_t C = p->d.kind == MHLA_KIND_CAUSAL ? p->d.chunk : x->T, i = t / C;
    const float *mix = mix_of(x);
    double den = 1.0;
    scores(row, x, t);
    if (p->d.denominator == MHLA_DEN_EQ4) den = (double)p->d.den_eps;
    for (int64_t u = 0; u < x->T; u++) {
        const double m = u / C > i ? 0.0 : mix ? (double)mhla_causal_weight(mix, p->M, i, u / C) : 1.0;
        if (p->d.denominator == MHLA_DEN_EQ4 && u <= t)
            den += (double)p->d.scale * m * dot(x->qn + t * x->K, x->kn + u * x->K, x->K);
        row[u] = masked && u > t ? 0.0 : (double)p->d.scale * m * row[u];
    }
    for (int64_t u = 0; u < x->T; u++) row[u] = den != 0.0 ? row[u] / den : 0.0;
}

static void row_softmax(double *row, head *x, int64_t t, int masked) {
    const mhla_plan_desc *d = &x->plan->d;
    const int64_t last = masked && d->causal ? t + 1 : x->T,
                  first = masked && d->window && last > d->window ? last - d->window : 0;
    double most = -INFINITY, sum = 0.0;
    scores(row, x, t);
    for (int64_t u = first; u < last; u++) {
        row[u] *= (double)d->scale;
        if (d->softcap > 0.0) row[u] = d->softcap * tanh(row[u] / d->softcap);
        most = fmax(most, row[u]);
    }
    for (int64_t u = 0; u < x->T; u++) {
        row[u] = u >= first && u < last ? exp(row[u] - most) : 0.0;
        sum += row[u];
    }
    for (int64_t u = 0; u < x->T; u++) row[u] /= sum;
}

/* q~.k~ / (T (q~ . mean k~ + eps)) */
static void row_focused(double *row, head *x, int64_t t) {
    const double den = (double)x->T * (dot(x->q + t * x->K, x->mean, x->K) + (double)x->plan->d.den_eps);
    scores(row, x, t);
    for (int64_t u = 0; u < x->T; u++) row[u] = (double)x->plan->d.scale * row[u] / den;
}

/* (1 + s q.(k - mean k)) / T */
static void row_inline(double *row, head *x, int64_t t) {
    const double s = (double)x->plan->d.scale, middle = dot(x->q + t * x->K, x->mean, x->K);
    scores(row, x, t);
    for (int64_t u = 0; u < x->T; u++) row[u] = (1.0 + s * (row[u] - middle)) / (double)x->T;
}

/* (s/T) (1 + 1/(z_t + eps)) rot(q~).rot(k~) - z_t/T, z_t = s q~ . mean k~ */
static void row_mala(double *row, head *x, int64_t t) {
    const double s = (double)x->plan->d.scale, T = (double)x->T, z = s * dot(x->qn + t * x->K, x->mean, x->K);
    scores(row, x, t);
    for (int64_t u = 0; u < x->T; u++) row[u] = s / T * (1.0 + 1.0 / (z + (double)x->plan->d.den_eps)) * row[u] - z / T;
}

/* a_u rot(q~).rot(k~) / (q~ . sum_u a_u k~_u + eps) */
static void row_rala(double *row, head *x, int64_t t) {
    const double den = dot(x->qn + t * x->K, x->mean, x->K) + (double)x->plan->d.den_eps;
    scores(row, x, t);
    for (int64_t u = 0; u < x->T; u++) row[u] *= x->weight[u] / den;
}

/* Numbers of token t of the head, of a tensor [B,T,H,dims] of the call. */
static const float *numbers_at(const head *x, const float *from, mhla_strides s, int dims, int64_t t) {
    const int64_t H = x->plan->d.heads;
    if (s.batch == 0 && s.token == 0 && s.head == 0) s = (mhla_strides){x->T * H * dims, H * dims, dims};
    return from + x->b * s.batch + t * s.token + x->h * s.head;
}

/* From token t back: what reaches k_u of q_t has passed the decays of u+1 .. t, which are never divided by. The delta rule takes out
 * of it, before each decay, what that token's key replaced. */
static void row_decayed(double *row, head *x, int64_t t) {
    const mhla_call *c = x->a->call;
    const int dims = mhla_decay_dim(x->plan), delta = x->plan->d.kind == MHLA_KIND_GATED_DELTA;
    double *left = x->mixture;
    memset(row, 0, (size_t)x->T * sizeof *row);
    memcpy(left, x->q + t * x->K, (size_t)x->K * sizeof *left);
    for (int64_t u = t; u >= 0; u--) {
        const double *k = x->k + u * x->K, score = dot(left, k, x->K);
        const double beta = delta ? (double)*numbers_at(x, c->beta, c->beta_strides, 1, u) : 1.0;
        const float *decay = numbers_at(x, c->decay, c->decay_strides, dims, u);
        row[u] = (double)x->plan->d.scale * beta * score;
        if (delta) add(left, -beta * score, k, x->K);
        for (int64_t j = 0; j < x->K; j++) left[j] *= exp((double)decay[dims > 1 ? j : 0]);
    }
}

/* ---- What rows share ---- */

/* a_u = softmax_u(s mean q~ . k~_u), and the mean of keys under it. */
static void weigh_keys(head *x) {
    double most = -INFINITY, sum = 0.0;
    mean_of(x->mixture, x->qn, x->T, x->K);
    for (int64_t u = 0; u < x->T; u++) {
        x->weight[u] = (double)x->plan->d.scale * dot(x->mixture, x->kn + u * x->K, x->K);
        most = fmax(most, x->weight[u]);
    }
    for (int64_t u = 0; u < x->T; u++) sum += x->weight[u] = exp(x->weight[u] - most);
    memset(x->mean, 0, (size_t)x->K * sizeof *x->mean);
    for (int64_t u = 0; u < x->T; u++) {
        x->weight[u] /= sum;
        add(x->mean, x->weight[u], x->kn + u * x->K, x->K);
    }
}

/* The block of every token, and the sum of keys of each block. */
static void find_blocks(head *x) {
    const int64_t M = x->plan->queries ? x->plan->M : 1;
    memset(x->z, 0, (size_t)(M * x->K) * sizeof *x->z);
    for (int64_t i = 0; i < M; i++)
        for (int64_t p = x->plan->queries ? x->plan->queries->offsets[i] : 0;
             p < (x->plan->queries ? x->plan->queries->offsets[i + 1] : x->T); p++) {
            const int64_t t = x->plan->queries && x->plan->queries->perm ? x->plan->queries->perm[p] : p;
            x->block[t] = (int32_t)i;
            x->position[t] = p;
            add(x->z + i * x->K, 1.0, x->kn + t * x->K, x->K);
        }
}

static void prepare(head *x) {
    const mhla_attended *a = x->a;
    load(x->q, x->qn, x, a->q, &a->call->q, x->at_q);
    load(x->k, x->kn, x, a->k, &a->call->k, x->at_k);
    for (int64_t t = 0; t < x->T; t++)
        for (int64_t j = 0; j < x->K; j++) x->kt[j * x->T + t] = x->k[t * x->K + j];
    if (x->plan->d.kind == MHLA_KIND_BIDIRECTIONAL || x->plan->d.kind == MHLA_KIND_LINEAR)
        find_blocks(x);
    else if (x->plan->d.kind == MHLA_KIND_RALA)
        weigh_keys(x);
    else
        mean_of(x->mean, x->kn, x->T, x->K);
}

static void make_row(double *row, head *x, int64_t t, int masked) {
    switch (x->plan->d.kind) {
    case MHLA_KIND_BIDIRECTIONAL:
    case MHLA_KIND_LINEAR: row_bidirectional(row, x, t); break;
    case MHLA_KIND_CAUSAL:
    case MHLA_KIND_LINEAR_CAUSAL: row_causal(row, x, t, masked); break;
    case MHLA_KIND_SOFTMAX: row_softmax(row, x, t, masked); break;
    case MHLA_KIND_FOCUSED: row_focused(row, x, t); break;
    case MHLA_KIND_INLINE: row_inline(row, x, t); break;
    case MHLA_KIND_MALA: row_mala(row, x, t); break;
    case MHLA_KIND_RALA: row_rala(row, x, t); break;
    case MHLA_KIND_SIMPLE_GLA:
    case MHLA_KIND_GLA:
    case MHLA_KIND_GATED_DELTA: row_decayed(row, x, t); break;
    }
}

mhla_status mhla_matrix_form(double *A, const mhla_attended *a, int64_t b, int h, const int64_t *rows, int64_t count,
                             int masked) {
    const mhla_plan *p = a->plan;
    const int64_t T = a->call->tokens, K = p->d.key_dim, M = p->M > 0 ? p->M : 1;
    head x = {.a = a, .plan = p, .b = b, .h = h, .T = T, .K = K};
    x.at_q = h / (p->d.heads / p->q_heads);
    x.at_k = h / (p->d.heads / p->k_heads);
    mhla_carver w = {0};
    for (int pass = 0; pass < 2; pass++) {
        double **const parts[] = {&x.q, &x.k, &x.qn, &x.kn, &x.kt, &x.mean, &x.mixture, &x.z, &x.weight};
        const int64_t sizes[] = {T * K, T * K, T * K, T * K, T * K, K, K, M * K, T};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            *parts[i] = mhla_carve(&w, (size_t)sizes[i] * sizeof(double));
        x.block = mhla_carve(&w, (size_t)T * sizeof *x.block);
        x.position = mhla_carve(&w, (size_t)T * sizeof *x.position);
        if (pass) break;
        char *memory = mhla_alloc(w.used);
        if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a head of %lld tokens", (long long)T);
        w = (mhla_carver){.base = memory};
    }
    prepare(&x);
    for (int64_t i = 0; i < count; i++) make_row(A + i * T, &x, rows ? rows[i] : i, masked);
    mhla_free(w.base);
    return MHLA_OK;
}
