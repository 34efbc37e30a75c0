/* Softmax attention with a learned number for the distance of each pair, as T5 has it. A task is a block of queries of one head; keys
 * come in tiles, whose scores are summed online (simd/kernels/softmax.c). */
#include <math.h>
#include <string.h>

#include "nn/op.h"

enum { QUERIES = 32, KEYS = 512 };

int mhla_position_bucket(int64_t relative, int buckets, int distance) {
    const int half = buckets / 2, exact = half / 2;
    const int64_t away = relative < 0 ? -relative : relative;
    int place = (int)away;
    if (away >= exact) { /* in float32, as it was trained */
        const float ratio = logf((float)away / (float)exact) / (float)log((double)distance / exact);
        const float far = (float)exact + ratio * (float)(half - exact);
        place = far < (float)(half - 1) ? (int)far : half - 1;
    }
    return place + (relative > 0 ? half : 0);
}

typedef struct attention {
    const mhla_kernels *kernels;
    const mhla_tensor *q, *k, *v, *o;
    const float *distances; /* [H][2T-1], from that of the first key and the last query on */
    int64_t T, H, K, blocks;
    int64_t ldv, lds; /* of values, of scores */
    char *scratch;    /* per worker */
    size_t bytes;
} attention;

/* What a worker has. */
typedef struct slot {
    float *kt, *v, *s, *o, *max, *sum;
} slot;

static slot carve(const attention *a, char *base, size_t *bytes) {
    mhla_carver c = {.base = base};
    slot w = {.kt = mhla_carve_floats(&c, a->K * a->lds + 16),
              .v = mhla_carve_floats(&c, KEYS * a->ldv),
              .s = mhla_carve_floats(&c, QUERIES * a->lds),
              .o = mhla_carve_floats(&c, QUERIES * a->ldv),
              .max = mhla_carve_floats(&c, QUERIES),
              .sum = mhla_carve_floats(&c, QUERIES)};
    *bytes = c.used;
    return w;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Queries i0 .. i0+m-1 of a head over keys j0 .. j0+n-1. */
static void attend(const attention *a, const slot *w, int64_t b, int64_t h, int64_t i0, int m, int64_t j0, int n) {
    const mhla_kernels *kernels = a->kernels;
    const float *k = a->k->data + (b * a->T + j0) * a->k->ld + h * a->K;
    mhla_panels keys, values;
    kernels->panels(&keys, n);
    kernels->panels(&values, (int)a->K);
    kernels->transpose(w->kt, &keys, k, a->k->ld, (int)a->K);
    kernels->copy_rows(w->v, a->ldv,
                       &(mhla_rows){a->v->data + (b * a->T + j0) * a->v->ld + h * a->K, NULL, a->v->ld, MHLA_F32}, n,
                       (int)a->K, NULL);
    kernels->gemm(&(mhla_gemm){.m = m,
                               .n = keys,
                               .f = {.k = (int)a->K,
                                     .a = a->q->data + (b * a->T + i0) * a->q->ld + h * a->K,
                                     .a_row = a->q->ld,
                                     .a_k = 1,
                                     .b = w->kt,
                                     .b_rows = a->K},
                               .store = MHLA_STORE_SET,
                               .c = w->s,
                               .c_row = a->lds});
    for (int i = 0; i < m; i++)
        kernels->axpy(w->s + i * a->lds, 1.0f, a->distances + h * (2 * a->T - 1) + a->T - 1 + j0 - i0 - i, n);
    kernels->scores_online(&(mhla_scores){
        .s = w->s, .ld = a->lds, .m = m, .n = n, .max = w->max, .sum = w->sum, .o = w->o, .ldo = a->ldv});
    kernels->gemm(&(mhla_gemm){.m = m,
                               .n = values,
                               .f = {.k = n, .a = w->s, .a_row = a->lds, .a_k = 1, .b = w->v, .b_k = a->ldv},
                               .store = MHLA_STORE_ADD,
                               .c = w->o,
                               .c_row = a->ldv});
}

static void attend_task(void *arg, int64_t task, int worker) {
    const attention *a = arg;
    const int64_t block = task % a->blocks, h = task / a->blocks % a->H, b = task / a->blocks / a->H;
    const int64_t i0 = block * QUERIES;
    const int m = (int)least(QUERIES, a->T - i0);
    size_t bytes;
    const slot w = carve(a, a->scratch + (size_t)worker * a->bytes, &bytes);
    memset(w.o, 0, sizeof(float) * (size_t)(m * a->ldv));
    for (int i = 0; i < m; i++) {
        w.max[i] = -INFINITY;
        w.sum[i] = 0.0f;
    }
    for (int64_t j0 = 0; j0 < a->T; j0 += KEYS) attend(a, &w, b, h, i0, m, j0, (int)least(KEYS, a->T - j0));
    for (int i = 0; i < m; i++) w.sum[i] = 1.0f / w.sum[i];
    float *to = a->o->data + (b * a->T + i0) * a->o->ld + h * a->K;
    a->kernels->scores_out(&(mhla_rows){to, NULL, a->o->ld, MHLA_F32}, w.o, a->ldv, m, (int)a->K, w.sum, 0);
}

static int is_token_row(const mhla_tensor *x, const mhla_tensor *like) {
    return x->dims == 3 && x->cols == like->cols && x->rows == like->rows && x->shape[1] == like->shape[1];
}

mhla_tensor *mhla_nn_position_attention(mhla_tape *t, mhla_param *w, int distance, mhla_tensor *q, mhla_tensor *k,
                                        mhla_tensor *v) {
    MHLA_GIVEN(t, w);
    MHLA_GIVEN(t, q);
    MHLA_GIVEN(t, k);
    MHLA_GIVEN(t, v);
    char text[96];
    MHLA_NEED(t, w->dims == 2 && w->data && w->shape[0] >= 4 && w->shape[0] % 2 == 0 && distance > w->shape[0] / 4,
              "%s is %s: expected [buckets, heads] up to a distance of %d", w->name,
              mhla_shape_text(text, w->shape, w->dims), distance);
    const int64_t H = w->shape[1], T = q->dims == 3 ? q->shape[1] : 0;
    MHLA_NEED(t,
              is_token_row(q, q) && is_token_row(k, q) && is_token_row(v, q) && q->cols % H == 0 && T < INT32_MAX / 4,
              "attention of %lld heads over %s", (long long)H, mhla_shape_text(text, q->shape, q->dims));
    MHLA_NEED(t, !mhla_tape_keeps(t, q->needs_grad || k->needs_grad || v->needs_grad || mhla_param_trains(w)),
              "%s: attention over distances cannot be trained here", w->name);
    mhla_tensor *o = mhla_tape_tensor(t, q->shape, q->dims);
    float *distances = o ? mhla_tape_floats(t, H * (2 * T - 1)) : NULL;
    if (distances == NULL) return NULL;
    attention a = {t->kernels, q, k, v, o, distances, T, H, .K = q->cols / H, .blocks = (T + QUERIES - 1) / QUERIES};
    mhla_panels keys;
    t->kernels->panels(&keys, (int)least(KEYS, T));
    a.lds = (mhla_panels_width(&keys) + 15) / 16 * 16;
    a.ldv = (a.K + 15) / 16 * 16;
    carve(&a, NULL, &a.bytes);
    for (int64_t h = 0; h < H && !mhla_tape_dry(t); h++)
        for (int64_t r = 1 - T; r < T; r++)
            distances[h * (2 * T - 1) + r + T - 1] =
                w->data[mhla_position_bucket(r, (int)w->shape[0], distance) * H + h];
    a.scratch = mhla_tape_scratch(t, a.bytes * (size_t)mhla_context_threads(t->context));
    if (a.scratch) mhla_tape_run(t, q->shape[0] * H * a.blocks, attend_task, &a);
    return t->status == MHLA_OK ? o : NULL;
}
