/* Gradients of softmax attention. A tile of queries keeps its scores and their gradients for all keys that it sees, so
 * that each of the five products is done once and maximum, sum and mean of a row are known before they are needed:
 * memory is some floats per key and thread, nothing of size T*T, and nothing is needed from the forward pass.
 *
 * The sums over queries, dk and dv, are made per chunk of queries from zero and added chunk after chunk, whoever
 * makes them, so that they do not depend on the number of threads. */
#include <math.h>

#include "ops/softmax/softmax.h"

enum { ROWS = 64, CHUNK = 1024, MAX_CHUNKS = 4 };

/* Chunks of queries of a sequence. */
static int64_t chunk_count(int64_t Tq) { return mhla_soft_max(1, mhla_soft_min(Tq / CHUNK, MAX_CHUNKS)); }

/* What a chunk gives to the gradients of its key head, rotated as k is. */
typedef struct part {
    float *dk; /* [Tk][ldk] */
    float *dv; /* [Tk][ldv] */
} part;

/* The buffers of a thread. */
typedef struct slot {
    float *k;                        /* [Tk][ldk] keys */
    float *kt, *vt;                  /* per tile of keys: panelled [K][keys], [V][keys] */
    float *v;                        /* [keys][ldv] */
    float *q, *qn, *dq;              /* [ROWS][ldk] scale * q; that over the sum; gradient of scale * q times the sum */
    float *dO, *don;                 /* [ROWS][ldv] gradient of o; that over the sum */
    float *s, *ds;                   /* per tile of keys: [ROWS][lds] scores, then exp(score - max); gradients */
    float *slope;                    /* the same of a soft cap; NULL: there is none */
    float *max, *sum, *dot, *factor; /* [ROWS] */
} slot;

typedef struct backward {
    const mhla_run *run;
    mhla_soft_tiling tiles;
    int64_t heads;  /* (sequence, key head) pairs */
    int64_t chunks; /* most of a sequence */
    int split;      /* tasks are chunks, each with its own part; else whole heads, a part per thread */
    slot *slots;    /* [threads] */
    part *parts;    /* [heads * chunks] or [threads] */
} backward;

static slot carve_slot(mhla_carver *c, const backward *b, int64_t Tk) {
    const mhla_plan_desc *d = &b->run->plan->d;
    const mhla_soft_tiling *t = &b->tiles;
    const int64_t n = (Tk + t->keys - 1) / t->keys;
    /* a window is seen by ROWS queries and may begin and end inside a tile */
    const int64_t seen = d->window > 0 ? mhla_soft_min(n, (d->window + ROWS) / t->keys + 2) : n;
    slot s;
    s.k = mhla_carve_floats(c, n * t->keys * t->ldk);
    s.kt = mhla_carve_floats(c, n * t->keys * d->key_dim + 16);
    s.vt = mhla_carve_floats(c, n * t->keys * d->value_dim + 16);
    s.v = mhla_carve_floats(c, t->keys * t->ldv);
    s.q = mhla_carve_floats(c, ROWS * t->ldk);
    s.qn = mhla_carve_floats(c, ROWS * t->ldk);
    s.dq = mhla_carve_floats(c, ROWS * t->ldk);
    s.dO = mhla_carve_floats(c, ROWS * t->ldv);
    s.don = mhla_carve_floats(c, ROWS * t->ldv);
    s.s = mhla_carve_floats(c, seen * ROWS * t->lds);
    s.ds = mhla_carve_floats(c, seen * ROWS * t->lds);
    s.slope = d->softcap > 0.0 ? mhla_carve_floats(c, seen * ROWS * t->lds) : NULL;
    s.max = mhla_carve_floats(c, ROWS);
    s.sum = mhla_carve_floats(c, ROWS);
    s.dot = mhla_carve_floats(c, ROWS);
    s.factor = mhla_carve_floats(c, ROWS);
    return s;
}

/* Lays out the workspace; with run->ws NULL it only counts. */
static size_t plan_backward(backward *b, const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *call = &run->call;
    *b = (backward){.run = run, .tiles = mhla_soft_tiles(d), .heads = mhla_seq_count(call) * d->kv_heads};
    int64_t Tq = 0, Tk = 0;
    for (int64_t i = 0; i < mhla_seq_count(call); i++) {
        const mhla_soft_sequence s = mhla_soft_sequence_at(call, i);
        Tq = mhla_soft_max(Tq, s.Tq);
        Tk = mhla_soft_max(Tk, s.Tk);
    }
    b->chunks = chunk_count(Tq);
    b->split = b->chunks > 1 && b->heads < 2 * (int64_t)run->threads && run->threads > 1;
    const int64_t parts = b->split ? b->heads * b->chunks : run->threads;
    mhla_carver c = {run->ws, 0};
    b->slots = mhla_carve(&c, (size_t)run->threads * sizeof *b->slots);
    b->parts = mhla_carve(&c, (size_t)parts * sizeof *b->parts);
    for (int i = 0; i < run->threads; i++) {
        const slot s = carve_slot(&c, b, Tk);
        if (run->ws) b->slots[i] = s;
    }
    for (int64_t i = 0; i < parts; i++) {
        part p;
        p.dk = mhla_carve_floats(&c, Tk * b->tiles.ldk);
        p.dv = mhla_carve_floats(&c, Tk * b->tiles.ldv);
        if (run->ws) b->parts[i] = p;
    }
    return c.used;
}

size_t mhla_soft_backward_workspace(const mhla_run *run) {
    backward b;
    mhla_run count = *run;
    count.ws = NULL;
    return plan_backward(&b, &count);
}

/* Queries begin..end-1 of a sequence and the keys kb..ke-1 that they see, kb on the border of a tile. */
typedef struct chunk {
    mhla_soft_sequence s;
    int64_t begin, end, kb, ke;
} chunk;

static chunk chunk_at(const backward *b, const mhla_soft_sequence *s, int64_t i) {
    const mhla_plan_desc *d = &b->run->plan->d;
    const int64_t n = chunk_count(s->Tq);
    chunk c = {.s = *s, .begin = s->Tq * i / n, .end = s->Tq * (i + 1) / n};
    if (c.begin == c.end) return c;
    c.kb = mhla_soft_max(0, mhla_soft_first(d, s, mhla_soft_max(c.begin, mhla_soft_start(d, s)))) / b->tiles.keys *
           b->tiles.keys;
    c.ke = mhla_soft_max(c.kb, mhla_soft_min(s->Tk, mhla_soft_last(d, s, c.end - 1)));
    return c;
}

/* Keys of tile j of a chunk. */
static int tile_keys(const backward *b, const chunk *c, int64_t j) {
    return (int)mhla_soft_min(b->tiles.keys, c->ke - c->kb - j * b->tiles.keys);
}

static void load_keys(const backward *b, const slot *w, const chunk *c, int64_t g) {
    const mhla_run *run = b->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_soft_tiling *t = &b->tiles;
    for (int64_t j = 0, k0 = c->kb; k0 < c->ke; j++, k0 += t->keys) {
        const int n = tile_keys(b, c, j);
        float *k = w->k + j * t->keys * t->ldk;
        mhla_panels p;
        run->kernels->panels(&p, n);
        mhla_soft_pack(run, k, t->ldk,
                       mhla_soft_rows(run->k, mhla_soft_kv(d), &run->call.k, c->s.batch, c->s.k_begin + k0, g), n, k0,
                       1.0f);
        run->kernels->transpose(w->kt + j * t->keys * d->key_dim, &p, k, t->ldk, d->key_dim);
        const mhla_rows v = mhla_soft_rows(run->v, mhla_soft_kv(d), &run->call.v, c->s.batch, c->s.k_begin + k0, g);
        run->kernels->scores_in(w->v, t->ldv, &v, n, d->value_dim, 1.0f, NULL);
        run->kernels->transpose(w->vt + j * t->keys * d->value_dim, &p, w->v, t->ldv, d->value_dim);
    }
}

/* out [m][lds] = x [m][ldx] y^T, y^T panelled [size][n], where some row of t sees it. */
static void scores(const backward *b, const mhla_scores *t, float *out, const float *x, int64_t ldx, const float *yt,
                   int size) {
    const mhla_gemm g = {
        .m = t->m,
        .n = mhla_soft_panels(b->run, t),
        .f = {.k = size, .a = x, .a_row = ldx, .a_k = 1, .b = yt, .b_rows = size},
        .store = MHLA_STORE_SET,
        .c = out,
        .c_row = t->ld,
    };
    mhla_multiply(b->run, &g);
}

/* c [n][ldc] += a^T x, where a [m][t->ld] has the mask of t and x is [m][ldc]. */
static void product_transposed(const backward *b, const mhla_scores *t, const float *a, float *c, int64_t ldc,
                               const float *x, int cols) {
    const mhla_kernels *kernels = b->run->kernels;
    mhla_gemm g = {
        .m = t->n,
        .f = {.k = t->m, .a = a, .a_row = 1, .a_k = t->ld, .b = x, .b_k = ldc},
        .store = MHLA_STORE_ADD,
        .c = c,
        .c_row = ldc,
    };
    kernels->panels(&g.n, cols);
    if (!t->masked) {
        mhla_multiply(b->run, &g);
        return;
    }
    for (int i = 0; i < t->m; i += SOFT_STRIP) { /* strips of queries, as in mhla_soft_product */
        const int end = i + SOFT_STRIP < t->m ? i + SOFT_STRIP : t->m;
        const int first = mhla_soft_row_span(t, end - 1).first, last = mhla_soft_row_span(t, i).last;
        const int shared = first < last;
        if (shared) {
            g.m = last - first;
            g.f.k = end - i;
            g.f.a = a + i * t->ld + first;
            g.f.b = x + i * ldc;
            g.c = c + first * ldc;
            mhla_multiply(b->run, &g);
        }
        for (int r = i; r < end; r++) {
            const mhla_soft_span s = mhla_soft_row_span(t, r);
            for (int u = s.first; u < s.last; u++) {
                if (shared && u == first) u = last;
                if (u < s.last) kernels->axpy(c + u * ldc, a[r * t->ld + u], x + r * ldc, cols);
            }
        }
    }
}

/* dq rows (=, +=) factor * dq [m][ldk], turned back; table row of the first is `at`. */
static void store_dq(const backward *b, float *dq, const float *factor, int m, const mhla_soft_sequence *s, int64_t t,
                     int64_t h) {
    const mhla_run *run = b->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_rows out = mhla_soft_rows(run->grads.dq, MHLA_F32, &run->grads.dq_strides, s->batch, s->q_begin + t, h);
    if (d->rope == MHLA_ROPE_NONE) {
        run->kernels->scores_out(&out, dq, b->tiles.ldk, m, d->key_dim, factor, run->grads.accumulate);
        return;
    }
    const mhla_rows rows = {dq, NULL, b->tiles.ldk, MHLA_F32};
    run->kernels->copy_rows(dq, b->tiles.ldk, &rows, m, d->key_dim, factor);
    const mhla_unpack back = {
        .dx = out,
        .x = rows,
        .n = m,
        .K = d->key_dim,
        .ld = b->tiles.ldk,
        .feature = MHLA_FEATURE_IDENTITY,
        .rope = d->rope,
        .rope_dim = d->rope_dim,
        .cos = run->call.rope_cos,
        .sin = run->call.rope_sin,
        .rope_row = t + s->Tk - s->Tq,
        .d = dq,
        .accumulate = run->grads.accumulate,
    };
    run->kernels->unpack(&back);
}

/* Tile j of a chunk, as the queries t .. t+m-1 see it; `at` says which of their score tiles it is. */
static mhla_scores score_tile(const backward *b, const slot *w, const chunk *c, int64_t j, int64_t at, int m,
                              int64_t t) {
    const int64_t size = ROWS * b->tiles.lds;
    mhla_scores tile = {
        .s = w->s + at * size,
        .ld = b->tiles.lds,
        .m = m,
        .n = tile_keys(b, c, j),
        .max = w->max,
        .sum = w->sum,
        .ds = w->ds + at * size,
        .dot = w->dot,
        .slope = w->slope ? w->slope + at * size : NULL,
    };
    mhla_soft_mask(&tile, &b->run->plan->d, &c->s, t, c->kb + j * b->tiles.keys);
    return tile;
}

/* Queries t .. t+m-1 of head h: their dq, and what they give to dk and dv. All of them see a key. */
static void backward_rows(const backward *b, const slot *w, const part *p, const chunk *c, int64_t t, int m,
                          int64_t h) {
    const mhla_run *run = b->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_kernels *kernels = run->kernels;
    const int64_t ldk = b->tiles.ldk, ldv = b->tiles.ldv, keys = b->tiles.keys;
    const int K = d->key_dim, V = d->value_dim;
    const int64_t first = (mhla_soft_max(0, mhla_soft_first(d, &c->s, t)) - c->kb) / keys;
    const int64_t last = (mhla_soft_min(c->ke, mhla_soft_last(d, &c->s, t + m - 1)) - c->kb + keys - 1) / keys;
    mhla_soft_pack(run, w->q, ldk, mhla_soft_rows(run->q, d->dtype, &run->call.q, c->s.batch, c->s.q_begin + t, h), m,
                   t + c->s.Tk - c->s.Tq, d->scale);
    const mhla_rows dO = mhla_soft_rows(run->dO, d->dtype, &run->call.o, c->s.batch, c->s.q_begin + t, h);
    kernels->scores_in(w->dO, ldv, &dO, m, V, 1.0f, NULL);
    for (int i = 0; i < m; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = w->dot[i] = 0.0f;
    }
    for (int64_t j = first; j < last; j++) { /* s = scale q k^T;  o = p v: dp = do v^T */
        const mhla_scores tile = score_tile(b, w, c, j, j - first, m, t);
        scores(b, &tile, tile.s, w->q, ldk, w->kt + j * keys * K, K);
        mhla_soft_cap(run, &tile, w->slope ? w->slope + (j - first) * ROWS * b->tiles.lds : NULL);
        scores(b, &tile, tile.ds, w->dO, ldv, w->vt + j * keys * V, V);
        kernels->scores_max(&tile);
    }
    for (int64_t j = first; j < last; j++) { /* e = exp(s - max), sum of e, sum of e dp */
        const mhla_scores tile = score_tile(b, w, c, j, j - first, m, t);
        kernels->scores_weights(&tile);
    }
    for (int i = 0; i < m; i++) {
        w->factor[i] = 1.0f / w->sum[i];
        w->dot[i] *= w->factor[i]; /* sum of p dp */
    }
    /* p = e / sum: the division is done once on the rows that p and ds are multiplied with */
    kernels->scores_in(w->qn, ldk, &(mhla_rows){w->q, NULL, ldk, MHLA_F32}, m, K, 1.0f, w->factor);
    kernels->scores_in(w->don, ldv, &(mhla_rows){w->dO, NULL, ldv, MHLA_F32}, m, V, 1.0f, w->factor);
    memset(w->dq, 0, (size_t)(m * ldk) * sizeof *w->dq);
    for (int64_t j = first; j < last; j++) {
        const mhla_scores tile = score_tile(b, w, c, j, j - first, m, t);
        const int64_t k0 = c->kb + j * keys;
        if (run->grads.dv) product_transposed(b, &tile, tile.s, p->dv + k0 * ldv, ldv, w->don, V); /* o = p v */
        if (!run->grads.dq && !run->grads.dk) continue;
        kernels->scores_grad(&tile); /* p = softmax(s): ds = p (dp - sum of p dp), times the slope of the cap */
        if (run->grads.dk) product_transposed(b, &tile, tile.ds, p->dk + k0 * ldk, ldk, w->qn, K); /* s = scale q k^T */
        if (run->grads.dq) mhla_soft_product(run, &tile, tile.ds, w->dq, ldk, w->k + j * keys * ldk, ldk, K);
    }
    for (int i = 0; i < m; i++) w->factor[i] *= d->scale;
    if (run->grads.dq) store_dq(b, w->dq, w->factor, m, &c->s, t, h);
}

/* All queries of a chunk that read key head g: their dq, and the chunk's part of dk and dv. */
static void backward_chunk(const backward *b, const slot *w, const part *p, const chunk *c, int64_t g) {
    const mhla_plan_desc *d = &b->run->plan->d;
    const int64_t ratio = d->heads / d->kv_heads,
                  seeing = mhla_soft_min(c->end, mhla_soft_max(c->begin, mhla_soft_start(d, &c->s)));
    memset(p->dk, 0, (size_t)(c->s.Tk * b->tiles.ldk) * sizeof(float));
    memset(p->dv, 0, (size_t)(c->s.Tk * b->tiles.ldv) * sizeof(float));
    load_keys(b, w, c, g);
    const int64_t n = (c->end - seeing + ROWS - 1) / ROWS;
    for (int64_t h = g * ratio; h < (g + 1) * ratio; h++) {
        const float zero = 0.0f;
        memset(w->dq, 0, (size_t)b->tiles.ldk * sizeof(float));
        for (int64_t t = c->begin; t < seeing && b->run->grads.dq; t++) {
            const mhla_grads *out = &b->run->grads;
            const mhla_rows row = mhla_soft_rows(out->dq, MHLA_F32, &out->dq_strides, c->s.batch, c->s.q_begin + t, h);
            b->run->kernels->scores_out(&row, w->dq, b->tiles.ldk, 1, d->key_dim, &zero, out->accumulate);
        }
        for (int64_t i = 0; i < n; i++) {
            const int64_t t = seeing + (c->end - seeing) * i / n, end = seeing + (c->end - seeing) * (i + 1) / n;
            backward_rows(b, w, p, c, t, (int)(end - t), h);
        }
    }
}

/* dk (=, +=) rows of a part from key u on, turned back. */
static void add_dk(const backward *b, float *dk, const mhla_soft_sequence *s, int64_t u, int n, int64_t g,
                   int accumulate) {
    const mhla_run *run = b->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_rows out = mhla_soft_rows(run->grads.dk, MHLA_F32, &run->grads.dk_strides, s->batch, s->k_begin + u, g);
    if (d->rope == MHLA_ROPE_NONE) {
        run->kernels->scores_out(&out, dk, b->tiles.ldk, n, d->key_dim, NULL, accumulate);
        return;
    }
    const mhla_unpack back = {
        .dx = out,
        .x = {dk, NULL, b->tiles.ldk, MHLA_F32},
        .n = n,
        .K = d->key_dim,
        .ld = b->tiles.ldk,
        .feature = MHLA_FEATURE_IDENTITY,
        .rope = d->rope,
        .rope_dim = d->rope_dim,
        .cos = run->call.rope_cos,
        .sin = run->call.rope_sin,
        .rope_row = u,
        .d = dk,
        .accumulate = accumulate,
    };
    run->kernels->unpack(&back);
}

/* dk, dv (=, +=) a part. */
static void add_part(const backward *b, const part *p, const mhla_soft_sequence *s, int64_t g, int accumulate) {
    const mhla_grads *out = &b->run->grads;
    const int64_t keys = b->tiles.keys, ldk = b->tiles.ldk, ldv = b->tiles.ldv;
    for (int64_t u = 0; u < s->Tk; u += keys) {
        const int n = (int)mhla_soft_min(keys, s->Tk - u);
        if (out->dk) add_dk(b, p->dk + u * ldk, s, u, n, g, accumulate);
        if (out->dv == NULL) continue;
        const mhla_rows dv = mhla_soft_rows(out->dv, MHLA_F32, &out->dv_strides, s->batch, s->k_begin + u, g);
        b->run->kernels->scores_out(&dv, p->dv + u * ldv, ldv, n, b->run->plan->d.value_dim, NULL, accumulate);
    }
}

static void add_parts_task(void *arg, int64_t i, int worker) {
    const backward *b = arg;
    (void)worker;
    const int64_t G = b->run->plan->d.kv_heads;
    const mhla_soft_sequence s = mhla_soft_sequence_at(&b->run->call, i / G);
    for (int64_t j = 0; j < chunk_count(s.Tq); j++)
        add_part(b, &b->parts[i * b->chunks + j], &s, i % G, b->run->grads.accumulate || j > 0);
}

static void chunk_task(void *arg, int64_t i, int worker) {
    const backward *b = arg;
    const int64_t task = b->heads * b->chunks - 1 - i, head = task / b->chunks, G = b->run->plan->d.kv_heads;
    const mhla_soft_sequence s = mhla_soft_sequence_at(&b->run->call, head / G);
    if (task % b->chunks >= chunk_count(s.Tq)) return;
    const chunk c = chunk_at(b, &s, task % b->chunks);
    backward_chunk(b, &b->slots[worker], &b->parts[task], &c, head % G);
}

static void head_task(void *arg, int64_t i, int worker) {
    const backward *b = arg;
    const int64_t G = b->run->plan->d.kv_heads;
    const mhla_soft_sequence s = mhla_soft_sequence_at(&b->run->call, i / G);
    for (int64_t j = 0; j < chunk_count(s.Tq); j++) {
        const chunk c = chunk_at(b, &s, j);
        backward_chunk(b, &b->slots[worker], &b->parts[worker], &c, i % G);
        add_part(b, &b->parts[worker], &s, i % G, b->run->grads.accumulate || j > 0);
    }
}

mhla_status mhla_soft_backward(const mhla_run *run) {
    backward b;
    plan_backward(&b, run);
    if (b.split) {
        mhla_parallel(run->call.context, b.heads * b.chunks, chunk_task, &b);
        mhla_parallel(run->call.context, b.heads, add_parts_task, &b);
    } else {
        mhla_parallel(run->call.context, b.heads, head_task, &b);
    }
    return MHLA_OK;
}
