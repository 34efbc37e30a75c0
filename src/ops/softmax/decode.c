/* Softmax attention of few queries over many keys: decoding. Reading keys and values once, from memory, is all that
 * counts, so a task takes all heads (whose rows lie side by side) of a range of keys, and uses the rows where they
 * lie. Ranges depend on the number of keys only; their partial results are merged in order. */
#include <math.h>

#include "ops/softmax/softmax.h"

enum { KEYS = 64, RANGE = 64, MAX_RANGES = 64 };

/* The buffers of a thread. */
typedef struct slot {
    float *q; /* [H*Tq][ldk] scale * q, heads of a key head side by side */
    float *s; /* [SOFT_FEW][lds] scores, then weights, of one key head */
    float *k; /* [KEYS][ldk] turned keys */
} slot;

/* What a range of keys gives: rows as in slot.q. */
typedef struct partial {
    float *max, *sum; /* [H*Tq] */
    float *o;         /* [H*Tq][ldv] */
} partial;

typedef struct decode {
    const mhla_run *run;
    mhla_soft_tiling tiles;
    mhla_soft_sequence s; /* of batch entry 0 */
    int64_t ranges;
    int64_t first, last; /* keys that some query sees */
    int64_t rows;        /* H * Tq */
    slot *slots;         /* [threads] */
    partial *partials;   /* [batch][ranges] */
} decode;

int mhla_soft_is_decode(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    return run->call.cu_seqlens == NULL && run->call.tokens <= SOFT_FEW / (d->heads / d->kv_heads);
}

/* Lays out the workspace; with run->ws NULL it only counts. */
static size_t plan_decode(decode *p, const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *call = &run->call;
    *p = (decode){.run = run, .tiles = mhla_soft_tiles(d), .s = mhla_soft_sequence_at(call, 0)};
    p->tiles.lds = KEYS + 16;
    p->first = mhla_soft_max(0, mhla_soft_first(d, &p->s, 0));
    p->last = mhla_soft_min(p->s.Tk, mhla_soft_last(d, &p->s, p->s.Tq - 1));
    p->ranges = mhla_soft_max(1, mhla_soft_min((p->last - p->first) / RANGE, MAX_RANGES));
    p->rows = d->heads * call->tokens;
    mhla_carver c = {run->ws, 0};
    p->slots = mhla_carve(&c, (size_t)run->threads * sizeof *p->slots);
    p->partials = mhla_carve(&c, (size_t)(call->batch * p->ranges) * sizeof *p->partials);
    for (int i = 0; i < run->threads; i++) {
        slot s;
        s.q = mhla_carve_floats(&c, p->rows * p->tiles.ldk);
        s.s = mhla_carve_floats(&c, SOFT_FEW * p->tiles.lds);
        s.k = mhla_carve_floats(&c, KEYS * p->tiles.ldk);
        if (run->ws) p->slots[i] = s;
    }
    for (int64_t i = 0; i < call->batch * p->ranges; i++) {
        partial x;
        x.max = mhla_carve_floats(&c, p->rows);
        x.sum = mhla_carve_floats(&c, p->rows);
        x.o = mhla_carve_floats(&c, p->rows * p->tiles.ldv);
        if (run->ws) p->partials[i] = x;
    }
    return c.used;
}

size_t mhla_soft_decode_workspace(const mhla_run *run) {
    decode p;
    mhla_run count = *run;
    count.ws = NULL;
    return plan_decode(&p, &count);
}

/* All queries of key head g over keys k0 .. k0+n-1. Meanwhile what comes next is fetched: the next head's rows, which the
 * hardware does not foresee, behind the last head the next keys of the first. */
static void attend(const decode *p, const slot *w, const partial *x, int64_t batch, int64_t g, int64_t k0, int n) {
    const mhla_run *run = p->run;
    const mhla_plan_desc *d = &run->plan->d;
    const int Tq = (int)p->s.Tq, ratio = d->heads / d->kv_heads, V = d->value_dim;
    const int64_t ldk = p->tiles.ldk, ldv = p->tiles.ldv, lds = p->tiles.lds, row = g * ratio * Tq;
    mhla_rows k = mhla_soft_rows(run->k, mhla_soft_kv(d), &run->call.k, batch, k0, g);
    const mhla_rows v = mhla_soft_rows(run->v, mhla_soft_kv(d), &run->call.v, batch, k0, g);
    const int64_t then = g + 1 < d->kv_heads ? k0 : k0 + n, g1 = g + 1 < d->kv_heads ? g + 1 : 0;
    const mhla_rows next_k = mhla_soft_rows(run->k, mhla_soft_kv(d), &run->call.k, batch, then, g1);
    const mhla_rows next_v = mhla_soft_rows(run->v, mhla_soft_kv(d), &run->call.v, batch, then, g1);
    if (d->rope != MHLA_ROPE_NONE) {
        mhla_soft_pack(run, w->k, ldk, k, n, k0, 1.0f);
        k = (mhla_rows){w->k, NULL, ldk, MHLA_F32};
    }
    run->kernels->few_scores(w->s, lds, w->q + row * ldk, ldk, ratio * Tq, &k, n, d->key_dim, &next_k);
    for (int h = 0; h < ratio; h++) {
        float *o = x->o + (row + h * Tq) * ldv;
        mhla_scores tile = {
            .s = w->s + h * Tq * lds,
            .ld = lds,
            .m = Tq,
            .n = n,
            .max = x->max + row + h * Tq,
            .sum = x->sum + row + h * Tq,
            .o = o,
            .ldo = ldv,
        };
        mhla_soft_mask(&tile, d, &p->s, 0, k0);
        mhla_soft_cap(run, &tile, NULL);
        run->kernels->scores_online(&tile);
        for (int r = 0; r < Tq && tile.masked; r++) {
            const mhla_soft_span see = mhla_soft_row_span(&tile, r);
            const mhla_rows seen = mhla_soft_rows(run->v, mhla_soft_kv(d), &run->call.v, batch, k0 + see.first, g);
            if (see.first < see.last)
                run->kernels->few_sums(o + r * ldv, ldv, tile.s + r * lds + see.first, lds, 1, &seen,
                                       see.last - see.first, V, NULL);
        }
        if (!tile.masked) run->kernels->few_sums(o, ldv, tile.s, lds, Tq, &v, n, V, h == 0 ? &next_v : NULL);
    }
}

static void range_task(void *arg, int64_t i, int worker) {
    const decode *p = arg;
    const mhla_run *run = p->run;
    const mhla_plan_desc *d = &run->plan->d;
    const slot *w = &p->slots[worker];
    const partial *x = &p->partials[i];
    const int64_t batch = i / p->ranges, at = i % p->ranges, n = p->last - p->first;
    const int64_t begin = p->first + n * at / p->ranges, end = p->first + n * (at + 1) / p->ranges;
    const int64_t Tq = p->s.Tq, blind = mhla_soft_start(d, &p->s);
    memset(x->o, 0, (size_t)(p->rows * p->tiles.ldv) * sizeof(float));
    for (int64_t r = 0; r < p->rows; r++) {
        x->max[r] = -INFINITY;
        x->sum[r] = 0.0f;
    }
    for (int64_t h = 0; h < d->heads; h++) {
        float *q = w->q + h * Tq * p->tiles.ldk;
        memset(q, 0, (size_t)(blind * p->tiles.ldk) * sizeof *q);
        mhla_soft_pack(run, q + blind * p->tiles.ldk, p->tiles.ldk,
                       mhla_soft_rows(run->q, d->dtype, &run->call.q, batch, blind, h), (int)(Tq - blind),
                       blind + p->s.Tk - Tq, d->scale);
    }
    for (int64_t k0 = begin; k0 < end; k0 += KEYS)
        for (int64_t g = 0; g < d->kv_heads; g++) attend(p, w, x, batch, g, k0, (int)mhla_soft_min(KEYS, end - k0));
}

/* The partial results of a batch entry, all brought to the largest maximum, into the first one; then out. */
static void merge_task(void *arg, int64_t batch, int worker) {
    const decode *p = arg;
    const mhla_run *run = p->run;
    const mhla_plan_desc *d = &run->plan->d;
    const partial *x = &p->partials[batch * p->ranges];
    const int64_t ldv = p->tiles.ldv, Tq = p->s.Tq;
    (void)worker;
    for (int64_t r = 0; r < p->rows; r++) {
        float max = x->max[r];
        for (int64_t i = 1; i < p->ranges; i++)
            if (x[i].max[r] > max) max = x[i].max[r];
        for (int64_t i = 0; i < p->ranges; i++) {
            const float shrink = expf(x[i].max[r] - (max == -INFINITY ? 0.0f : max));
            x[i].sum[r] *= shrink;
            if (i == 0)
                for (int64_t j = 0; j < ldv; j++) x->o[r * ldv + j] *= shrink;
            else
                run->kernels->axpy(x->o + r * ldv, shrink, x[i].o + r * ldv, ldv);
            if (i > 0) x->sum[r] += x[i].sum[r];
        }
        x->sum[r] = r % Tq < mhla_soft_start(d, &p->s) ? 0.0f : 1.0f / x->sum[r];
    }
    for (int64_t h = 0; h < d->heads; h++) {
        const mhla_rows out = mhla_soft_rows(run->o, d->dtype, &run->call.o, batch, 0, h);
        run->kernels->scores_out(&out, x->o + h * Tq * ldv, ldv, (int)Tq, d->value_dim, x->sum + h * Tq,
                                 run->call.accumulate);
    }
}

mhla_status mhla_soft_decode(const mhla_run *run) {
    decode p;
    plan_decode(&p, run);
    mhla_parallel_stretches(run->call.context, run->call.batch * p.ranges, range_task, &p);
    mhla_parallel(run->call.context, run->call.batch, merge_task, &p);
    return MHLA_OK;
}
