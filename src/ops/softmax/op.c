/* Softmax attention, forward: tiles of keys go by once per task, each updating the running maximum, sum and output of
 * the task's queries. Memory is a few tiles per thread, whatever the length. */
#include <math.h>

#include "ops/softmax/softmax.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

/* ---- What softmax understands ---- */

static mhla_status check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    CHECK(d->feature == MHLA_FEATURE_RELU, "feature is %d: softmax has no feature map, leave it 0", (int)d->feature);
    CHECK(d->feature_eps == 0.0f, "feature_eps is %g: softmax has no feature map", (double)d->feature_eps);
    CHECK(d->denominator == MHLA_DEN_EQ4, "denominator is %d: softmax has its own, leave it 0", (int)d->denominator);
    CHECK(d->den_eps == 0.0f, "den_eps is %g: softmax has no such term", (double)d->den_eps);
    CHECK(d->axes == 0 && d->n_blocks == 0, "axes is %d and n_blocks %lld: softmax has no blocks", d->axes,
          (long long)d->n_blocks);
    for (int a = 0; a < 3; a++)
        CHECK(d->grid[a] == 0 && d->blocks[a] == 0, "grid[%d] is %d and blocks[%d] %d: softmax has no blocks", a,
              d->grid[a], a, d->blocks[a]);
    CHECK(d->n_tokens == 0, "n_tokens is %lld: softmax takes any number of tokens", (long long)d->n_tokens);
    CHECK(d->order == MHLA_ORDER_RASTER, "order is %d: softmax has no blocks", (int)d->order);
    CHECK(d->block_offsets == NULL && d->permutation == NULL,
          "block_offsets or permutation is given: softmax has no blocks");
    CHECK(d->mix_per_head == 0, "mix_per_head is %d: softmax has no mixing matrix", d->mix_per_head);
    CHECK(d->chunk == 0 && d->chunks == 0, "chunk is %d and chunks %lld: softmax has no chunks", d->chunk,
          (long long)d->chunks);
    CHECK(d->beyond == MHLA_BEYOND_ERROR, "beyond is %d: softmax has no chunks", (int)d->beyond);
    CHECK(d->max_tokens == 0, "max_tokens is %lld: softmax has no chunks", (long long)d->max_tokens);
    CHECK(d->causal == 0 || d->causal == 1, "causal is %d: expected 0 or 1", d->causal);
    CHECK(d->window >= 0, "window is %lld: expected 0 or more", (long long)d->window);
    CHECK(d->window == 0 || d->causal, "window is %lld but causal is 0: only causal softmax has a window",
          (long long)d->window);
    CHECK(d->softcap >= 0.0 && d->softcap <= 1e30, "softcap is %g: expected 0 or a positive number", d->softcap);
    if (d->scale == 0.0f) d->scale = (float)(1.0 / sqrt((double)d->key_dim));
    return MHLA_OK;
}

static mhla_status check_call(const mhla_run *run) {
    const mhla_call *c = &run->call;
    CHECK(c->cu_seqlens == NULL || c->kv_tokens == c->tokens,
          "kv_tokens is %lld: with cu_seqlens it must be tokens, %lld", (long long)c->kv_tokens, (long long)c->tokens);
    CHECK(run->plan->d.rope == MHLA_ROPE_NONE || run->plan->d.causal || c->tokens <= c->kv_tokens,
          "tokens is %lld, kv_tokens %lld: query 0 would have rotary position %lld", (long long)c->tokens,
          (long long)c->kv_tokens, (long long)(c->kv_tokens - c->tokens));
    return MHLA_OK;
}

/* ---- Tiles ---- */

/* Row strides are an odd number of cache lines, so that a column of a buffer meets every set of the cache. */
static int64_t row_stride(int64_t columns) {
    const int64_t lines = (columns + 15) / 16;
    return 16 * (lines <= 1 || lines % 2 ? lines : lines + 1);
}

mhla_soft_tiling mhla_soft_tiles(const mhla_plan_desc *d) {
    const int K = d->key_dim, V = d->value_dim;
    mhla_soft_tiling t = {.keys = 64, .rows = 48, .ldk = row_stride(K), .ldv = row_stride(V)};
    if (t.ldk + t.ldv <= 480) t.keys = 128;
    if (t.ldk + t.ldv <= 160) t.keys = 256;
    t.lds = t.keys + 16;
    const int64_t fit = 65536 / (t.ldk + t.ldv) / t.rows * t.rows; /* 256 KiB of queries and outputs */
    t.task = (int)(fit < t.rows ? t.rows : fit > 480 ? 480 : fit);
    return t;
}

void mhla_soft_pack(const mhla_run *run, float *dst, int64_t ld, mhla_rows src, int n, int64_t rope_row, float factor) {
    const mhla_plan_desc *d = &run->plan->d;
    if (d->rope == MHLA_ROPE_NONE) {
        run->kernels->scores_in(dst, ld, &src, n, d->key_dim, factor, NULL);
        return;
    }
    const mhla_pack pack = {
        .dst = dst,
        .ld = ld,
        .src = src,
        .n = n,
        .K = d->key_dim,
        .feature = MHLA_FEATURE_IDENTITY,
        .rope = d->rope,
        .rope_dim = d->rope_dim,
        .cos = run->call.rope_cos,
        .sin = run->call.rope_sin,
        .rope_row = rope_row,
    };
    run->kernels->pack(&pack);
    if (factor != 1.0f)
        for (int64_t j = 0; j < n * ld; j++) dst[j] *= factor;
}

static int clip(int64_t x) { /* far from any tile is as good as farther */
    return (int)mhla_soft_max(-(1 << 28), mhla_soft_min(x, 1 << 28));
}

void mhla_soft_mask(mhla_scores *tile, const mhla_plan_desc *d, const mhla_soft_sequence *s, int64_t t, int64_t k0) {
    const int64_t last = mhla_soft_last(d, s, t) - k0, first = mhla_soft_first(d, s, t + tile->m - 1) - k0;
    tile->windowed = d->window > 0 && first > 0;
    tile->masked = (d->causal && last < tile->n) || tile->windowed;
    tile->first = clip(mhla_soft_first(d, s, t) - k0);
    tile->last = clip(d->causal ? last : (int64_t)1 << 28);
}

void mhla_soft_product(const mhla_run *run, const mhla_scores *t, const float *a, float *c, int64_t ldc, const float *b,
                       int64_t ldb, int cols) {
    mhla_gemm g = {
        .m = t->m,
        .f = {.k = t->n, .a = a, .a_row = t->ld, .a_k = 1, .b = b, .b_k = ldb},
        .store = MHLA_STORE_ADD,
        .c = c,
        .c_row = ldc,
    };
    run->kernels->panels(&g.n, cols);
    if (!t->masked) {
        mhla_multiply(run, &g);
        return;
    }
    /* Strips of rows: the columns that all of a strip see go through the product, the rest row by row. Nothing else
     * is read, not even to be multiplied by 0. */
    for (int i = 0; i < t->m; i += SOFT_STRIP) {
        const int end = i + SOFT_STRIP < t->m ? i + SOFT_STRIP : t->m;
        const int first = mhla_soft_row_span(t, end - 1).first, last = mhla_soft_row_span(t, i).last;
        const int shared = first < last;
        if (shared) {
            g.m = end - i;
            g.f.k = last - first;
            g.f.a = a + i * t->ld + first;
            g.f.b = b + first * ldb;
            g.c = c + i * ldc;
            mhla_multiply(run, &g);
        }
        for (int r = i; r < end; r++) {
            const mhla_soft_span s = mhla_soft_row_span(t, r);
            for (int u = s.first; u < s.last; u++) {
                if (shared && u == first) u = last;
                if (u < s.last) run->kernels->axpy(c + r * ldc, a[r * t->ld + u], b + u * ldb, cols);
            }
        }
    }
}

/* ---- Forward ---- */

/* The tiles of a thread. */
typedef struct slot {
    float *q;         /* [task][ldk] scale * q */
    float *o;         /* [task][ldv] weights * v */
    float *max, *sum; /* [task] */
    float *k;         /* [keys][ldk] */
    float *kt;        /* panelled [K][keys] */
    float *v;         /* [keys][ldv] */
    float *s;         /* [rows][lds] scores, then weights */
} slot;

typedef struct forward {
    const mhla_run *run;
    mhla_soft_tiling tiles;
    int heads;       /* of the queries that a task treats: those of one key head, or some of them */
    int groups;      /* tasks that share a block of queries: kv_heads * ceil(ratio / heads) */
    int64_t *blocks; /* [sequences+1] blocks of queries before each sequence */
    int64_t most;    /* queries of a block */
    slot *slots;     /* [threads] */
} forward;

static slot carve_slot(mhla_carver *c, const mhla_soft_tiling *t, const mhla_plan_desc *d) {
    slot s;
    s.q = mhla_carve_floats(c, t->task * t->ldk);
    s.o = mhla_carve_floats(c, t->task * t->ldv);
    s.max = mhla_carve_floats(c, t->task);
    s.sum = mhla_carve_floats(c, t->task);
    s.k = mhla_carve_floats(c, t->keys * t->ldk);
    s.kt = mhla_carve_floats(c, (int64_t)t->keys * d->key_dim + 16);
    s.v = mhla_carve_floats(c, t->keys * t->ldv);
    s.s = mhla_carve_floats(c, t->rows * t->lds);
    return s;
}

enum { TASKS = 2, SHORTEST = 24, LEAST_ROWS = 16 }; /* for each thread; queries of a block */
static int64_t positive(int64_t n) { return n > 0 ? n : 1; }

/* Lays out the workspace and cuts the call into tasks; with run->ws NULL it only counts. */
static size_t plan_forward(forward *f, const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t n = mhla_seq_count(&run->call), ratio = d->heads / d->kv_heads;
    *f = (forward){.run = run, .tiles = mhla_soft_tiles(d)};
    /* Few queries: as many heads of a group as fit share the tiles of their keys. */
    f->most = mhla_soft_min(run->call.tokens, f->tiles.task);
    f->heads = (int)mhla_soft_min(ratio, f->tiles.task / f->most);
    f->groups = d->kv_heads * (int)((ratio + f->heads - 1) / f->heads);
    /* Still too few tasks: shorter blocks, where all queries see all keys, so that a row does not feel its neighbours. */
    const int64_t wanted = (TASKS * (int64_t)run->threads + n * f->groups - 1) / positive(n * f->groups);
    const int64_t shorter = mhla_soft_max(SHORTEST, (run->call.tokens + wanted - 1) / positive(wanted));
    if (!d->causal && d->window == 0 && shorter < f->most) f->most = shorter;
    mhla_carver c = {run->ws, 0};
    f->blocks = mhla_carve(&c, (size_t)(n + 1) * sizeof *f->blocks);
    f->slots = mhla_carve(&c, (size_t)run->threads * sizeof *f->slots);
    for (int i = 0; i < run->threads; i++) {
        const slot s = carve_slot(&c, &f->tiles, d);
        if (run->ws) f->slots[i] = s;
    }
    if (run->ws == NULL) return c.used;
    f->blocks[0] = 0;
    for (int64_t s = 0; s < n; s++) {
        const int64_t Tq = mhla_soft_sequence_at(&run->call, s).Tq, cut = (Tq + f->most - 1) / f->most;
        const int64_t most = Tq / LEAST_ROWS; /* fewer rows would be multiplied in float32 */
        f->blocks[s + 1] = f->blocks[s] + (f->most < f->tiles.task && cut > most && Tq > 0 ? positive(most) : cut);
    }
    return c.used;
}

/* Queries begin..end-1 of sequence s. */
typedef struct block {
    mhla_soft_sequence s;
    int64_t begin, end;
} block;

static block find_block(const forward *f, int64_t i) {
    int64_t low = 0, high = mhla_seq_count(&f->run->call); /* blocks[low] <= i < blocks[high] */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (f->blocks[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    const mhla_soft_sequence s = mhla_soft_sequence_at(&f->run->call, low);
    const int64_t n = f->blocks[low + 1] - f->blocks[low], at = i - f->blocks[low];
    return (block){s, s.Tq * at / n, s.Tq * (at + 1) / n};
}

/* Keys k0 .. k0+n-1 and their values into the slot, as the products want them. */
static void load_keys(const forward *f, const slot *w, const mhla_soft_sequence *s, int64_t g, int64_t k0, int n) {
    const mhla_run *run = f->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_rows k = mhla_soft_rows(run->k, mhla_soft_kv(d), &run->call.k, s->batch, s->k_begin + k0, g);
    const mhla_rows v = mhla_soft_rows(run->v, mhla_soft_kv(d), &run->call.v, s->batch, s->k_begin + k0, g);
    mhla_panels p;
    run->kernels->panels(&p, n);
    if (mhla_soft_kv(d) == MHLA_F32 && d->rope == MHLA_ROPE_NONE) {
        run->kernels->transpose(w->kt, &p, k.base, k.stride, d->key_dim);
    } else {
        mhla_soft_pack(run, w->k, f->tiles.ldk, k, n, k0, 1.0f);
        run->kernels->transpose(w->kt, &p, w->k, f->tiles.ldk, d->key_dim);
    }
    run->kernels->scores_in(w->v, f->tiles.ldv, &v, n, d->value_dim, 1.0f, NULL);
}

static mhla_scores score_tile(const forward *f, const slot *w, int row, int m, int n) {
    return (mhla_scores){
        .s = w->s,
        .ld = f->tiles.lds,
        .m = m,
        .n = n,
        .max = w->max + row,
        .sum = w->sum + row,
        .o = w->o + row * f->tiles.ldv,
        .ldo = f->tiles.ldv,
    };
}

/* Rows row .. row+m-1 of the task over the keys in the slot, k0 .. k0+n-1. Where some of them do not see all of these,
 * they are the queries t .. of one head, of sequence s; else s is NULL. */
static void attend(const forward *f, const slot *w, int64_t k0, int n, int row, int m, const mhla_soft_sequence *s,
                   int64_t t) {
    const mhla_run *run = f->run;
    const mhla_plan_desc *d = &run->plan->d;
    mhla_scores tile = score_tile(f, w, row, m, n);
    if (s) mhla_soft_mask(&tile, d, s, t, k0);
    const mhla_gemm g = {
        /* s = q k^T */
        .m = m,
        .n = mhla_soft_panels(run, &tile),
        .f = {.k = d->key_dim,
              .a = w->q + row * f->tiles.ldk,
              .a_row = f->tiles.ldk,
              .a_k = 1,
              .b = w->kt,
              .b_rows = d->key_dim},
        .store = MHLA_STORE_SET,
        .c = w->s,
        .c_row = f->tiles.lds,
    };
    mhla_multiply(run, &g);
    mhla_soft_cap(run, &tile, NULL);
    run->kernels->scores_online(&tile);
    mhla_soft_product(run, &tile, w->s, tile.o, tile.ldo, w->v, f->tiles.ldv, d->value_dim);
}

/* The queries of a block, of `heads` heads that share key head g, over all that they see. */
static void attend_all(const forward *f, const slot *w, const block *b, int64_t g, int heads) {
    const mhla_plan_desc *d = &f->run->plan->d;
    const mhla_soft_sequence *s = &b->s;
    const int size = (int)(b->end - b->begin);
    const int64_t first = mhla_soft_max(0, mhla_soft_first(d, s, b->begin)),
                  last = mhla_soft_min(s->Tk, mhla_soft_last(d, s, b->end - 1));
    for (int64_t k0 = first / f->tiles.keys * f->tiles.keys; k0 < last; k0 += f->tiles.keys) {
        const int n = (int)mhla_soft_min(f->tiles.keys, last - k0);
        const int all = k0 + n <= mhla_soft_last(d, s, b->begin) && mhla_soft_first(d, s, b->end - 1) <= k0;
        load_keys(f, w, s, g, k0, n);
        const int runs = all ? 1 : heads, rows = all ? size * heads : size; /* unmasked, heads are not told apart */
        const int tiles = (rows + f->tiles.rows - 1) / f->tiles.rows;
        for (int h = 0; h < runs; h++)
            for (int i = 0; i < tiles; i++) {
                const int row = (int)((int64_t)rows * i / tiles), end = (int)((int64_t)rows * (i + 1) / tiles);
                const int64_t t = b->begin + row;
                if (all)
                    attend(f, w, k0, n, row, end - row, NULL, 0);
                else if (k0 < mhla_soft_last(d, s, b->begin + end - 1) && mhla_soft_first(d, s, t) < k0 + n)
                    attend(f, w, k0, n, h * size + row, end - row, s, t);
            }
    }
}

static void forward_task(void *arg, int64_t i, int worker) {
    const forward *f = arg;
    const mhla_run *run = f->run;
    const mhla_plan_desc *d = &run->plan->d;
    const slot *w = &f->slots[worker];
    const int64_t task = f->blocks[mhla_seq_count(&run->call)] * f->groups - 1 - i; /* the longest first */
    const block b = find_block(f, task / f->groups);
    const int64_t per_key = f->groups / d->kv_heads, ratio = d->heads / d->kv_heads;
    const int64_t g = task % f->groups / per_key, h = g * ratio + task % per_key * f->heads;
    const int heads = (int)mhla_soft_min(f->heads, (g + 1) * ratio - h), n = (int)(b.end - b.begin), rows = heads * n;
    const int64_t ldk = f->tiles.ldk, ldv = f->tiles.ldv;
    const int blind =
        (int)mhla_soft_min(n, mhla_soft_max(0, mhla_soft_start(d, &b.s) - b.begin)); /* queries that see nothing */
    for (int j = 0; j < heads; j++) {
        float *q = w->q + (int64_t)j * n * ldk;
        memset(q, 0, (size_t)(blind * ldk) * sizeof *q);
        if (blind < n)
            mhla_soft_pack(
                run, q + blind * ldk, ldk,
                mhla_soft_rows(run->q, d->dtype, &run->call.q, b.s.batch, b.s.q_begin + b.begin + blind, h + j),
                n - blind, b.begin + blind + b.s.Tk - b.s.Tq, d->scale);
    }
    memset(w->o, 0, (size_t)(rows * ldv) * sizeof *w->o);
    for (int r = 0; r < rows; r++) {
        w->max[r] = -INFINITY;
        w->sum[r] = 0.0f;
    }
    attend_all(f, w, &b, g, heads);
    for (int j = 0; j < heads; j++) {
        float *sum = w->sum + (int64_t)j * n;
        for (int r = 0; r < n; r++) sum[r] = r < blind ? 0.0f : 1.0f / sum[r]; /* o = sum of p v / sum of p */
        const mhla_rows out = mhla_soft_rows(run->o, d->dtype, &run->call.o, b.s.batch, b.s.q_begin + b.begin, h + j);
        run->kernels->scores_out(&out, w->o + (int64_t)j * n * ldv, ldv, n, d->value_dim, sum, run->call.accumulate);
    }
}

static size_t workspace(const mhla_run *run, int backward) {
    if (backward) return mhla_soft_backward_workspace(run);
    if (mhla_soft_is_decode(run)) return mhla_soft_decode_workspace(run);
    forward f;
    mhla_run count = *run;
    count.ws = NULL;
    return plan_forward(&f, &count);
}

static mhla_status forward_run(const mhla_run *run) {
    if (mhla_soft_is_decode(run)) return mhla_soft_decode(run);
    forward f;
    plan_forward(&f, run);
    mhla_parallel(run->call.context, f.blocks[mhla_seq_count(&run->call)] * f.groups, forward_task, &f);
    return MHLA_OK;
}

const mhla_op mhla_op_softmax = {
    .name = "softmax",
    .check_plan = check_plan,
    .check_call = check_call,
    .workspace = workspace,
    .forward = forward_run,
    .backward = mhla_soft_backward,
    .forward_reference = mhla_soft_forward_reference,
    .backward_reference = mhla_soft_backward_reference,
};
