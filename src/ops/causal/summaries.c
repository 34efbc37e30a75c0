/* Summaries and mixtures of one sequence and key/value head: the walk over groups of blocks that forward and backward
 * share. See causal.h for the layout and README.md for the mathematics. */
#include <limits.h>

#include "ops/causal/causal.h"

enum {
    LONGEST_BLOCK = 128, /* longer chunks are cut: a block's scores are block x block */
    CUT_BLOCK = 64,
    MOST_BLOCKS = 32, /* of a group */
    TASKS = 4,        /* of a loop, for each thread that shares in it */
    FEW_CHUNKS = 64,
    FEW_BYTES = 800 << 10, /* of a group's mixtures. Few chunks: they stay in the second cache ... */
    LARGE_L2 = 1 << 20,    /* (in most of it, if it is larger than this) */
    MANY_BYTES = 8 << 20   /* ... many: reading all summaries once per group costs more, so the last cache must do */
};

/* ---- Shape and pieces ---- */

void mhla_summary_shape_make(mhla_summary_shape *s, const mhla_plan *plan, const mhla_kernels *kernels,
                             int transposed) {
    const int K = plan->d.key_dim, V = plan->d.value_dim;
    *s = (mhla_summary_shape){.K = K, .V = V, .transposed = transposed, .rows = transposed ? V : K};
    kernels->panels(&s->n, transposed ? K : V);
    if (plan->d.denominator != MHLA_DEN_NONE) kernels->panels(&s->nz, K);
    s->F = (int64_t)s->rows * mhla_panels_width(&s->n);
    s->E = s->F + mhla_panels_width(&s->nz);
    s->pieces = s->rows * s->n.count + s->nz.count;
}

mhla_piece mhla_summary_piece(const mhla_summary_shape *s, int j) {
    const int z = j >= s->rows * s->n.count;
    const mhla_panels *n = z ? &s->nz : &s->n;
    const int panel = z ? j - s->rows * s->n.count : j / s->rows, row = z ? 0 : j % s->rows;
    const int begin = mhla_panel_begin(n, panel), width = mhla_panel_begin(n, panel + 1) - begin;
    const int64_t at = z ? s->F + begin : (int64_t)s->rows * begin + (int64_t)row * width;
    return (mhla_piece){at, width, {width, n->unit, width / n->unit, 1, width / n->unit, 0}, row, begin, z};
}

/* Columns of the piece that mean something. */
static int piece_columns(const mhla_summary_shape *s, const mhla_piece *p) {
    const int left = (p->z ? s->nz.n : s->n.n) - p->column;
    return left < p->width ? left : p->width;
}

void mhla_piece_load(const mhla_summary_shape *s, const mhla_piece *p, float *dst, const float *S, const float *z) {
    const int cols = piece_columns(s, p);
    memset(dst, 0, (size_t)p->width * sizeof *dst);
    if (p->z) {
        if (z) memcpy(dst, z + p->column, (size_t)cols * sizeof *dst);
    } else if (S && !s->transposed) {
        memcpy(dst, S + (int64_t)p->row * s->V + p->column, (size_t)cols * sizeof *dst);
    } else if (S) {
        for (int j = 0; j < cols; j++) dst[j] = S[(int64_t)(p->column + j) * s->V + p->row];
    }
}

void mhla_piece_store(const mhla_summary_shape *s, const mhla_piece *p, const float *src, float *S, float *z, int add) {
    const int cols = piece_columns(s, p);
    float *to = p->z ? z : S;
    if (to == NULL) return;
    const int64_t step = p->z || !s->transposed ? 1 : s->V;
    to += p->z ? p->column : s->transposed ? (int64_t)p->column * s->V + p->row : (int64_t)p->row * s->V + p->column;
    for (int j = 0; j < cols; j++) to[j * step] = add ? to[j * step] + src[j] : src[j];
}

/* ---- How a call is worked on ---- */

static int64_t longest_sequence(const mhla_call *c) {
    int64_t longest = 0;
    for (int64_t s = 0; s < mhla_seq_count(c); s++) {
        const int64_t n = mhla_seq_end(c, s) - mhla_seq_begin(c, s);
        if (n > longest) longest = n;
        if (c->cu_seqlens == NULL) break;
    }
    return longest;
}

/* Blocks of a group. Where a worker has a unit to itself they are as many as its cache holds; where threads share units, as many as
 * give each thread some, for what another core made is not in the cache anyway. */
static int64_t choose_group(const mhla_causal_work *w, int64_t chunks, int64_t crew) {
    /* chunks that leave the window are merged group by group: there the group shows in the result */
    const int free = !w->clamp || chunks <= w->M;
    const int64_t few = free && mhla_l2_bytes > LARGE_L2 ? mhla_l2_bytes / 5 * 4 : FEW_BYTES;
    int64_t group = (chunks > FEW_CHUNKS ? MANY_BYTES : few) / (w->shape.E * (int64_t)sizeof(float) * w->mixes);
    const int64_t shared = crew ? (TASKS * (int64_t)w->run->threads + crew - 1) / crew : 0;
    if (group < shared && free) group = shared;
    if (group > MOST_BLOCKS) group = MOST_BLOCKS;
    if (w->clamp && !w->running && group > w->M) group = w->M; /* the work per chunk is its window and the group */
    return group < 4 ? 4 : group;
}

void mhla_causal_work_make(mhla_causal_work *w, const mhla_run *run, int transposed, int64_t crew) {
    const mhla_plan *plan = run->plan;
    const mhla_plan_desc *d = &plan->d;
    memset(w, 0, sizeof *w);
    w->run = run;
    mhla_summary_shape_make(&w->shape, plan, run->kernels, transposed);
    const int endless = d->kind == MHLA_KIND_LINEAR_CAUSAL || (d->beyond == MHLA_BEYOND_CLAMP && plan->M == 1);
    w->M = plan->M;
    w->C = endless ? INT64_MAX / 8 : d->chunk;
    w->running = endless || d->chunk > LONGEST_BLOCK;
    w->block = d->chunk <= LONGEST_BLOCK ? d->chunk : CUT_BLOCK;
    w->clamp = !endless && d->beyond == MHLA_BEYOND_CLAMP;
    w->ratio = d->heads / d->kv_heads;
    w->mixes = d->mix_per_head ? w->ratio : 1;
    w->normed = d->denominator != MHLA_DEN_NONE;
    w->longest = longest_sequence(&run->call);
    w->Kp = (d->key_dim + 15) / 16 * 16;
    mhla_panels pv;
    run->kernels->panels(&pv, d->value_dim);
    w->Vw = mhla_panels_width(&pv);
    int64_t entries0, first0;
    mhla_causal_list(plan, run->call.past, &entries0, &first0);
    const int64_t chunks = endless ? 1 : (run->call.past + w->longest + d->chunk - 1) / d->chunk - first0;
    const int64_t group = choose_group(w, chunks, crew);
    const int64_t blocks = (w->longest + w->block - 1) / w->block + 1;
    w->group = (int)(group < blocks ? group : blocks);
    w->cap = w->clamp && chunks > w->M + 2 * w->group ? w->M + 2 * w->group : chunks;
    if (w->cap < 1) w->cap = 1;
    w->P_row = w->shape.E + 16; /* odd number of cache lines */
}

/* ---- Crews ---- */

int64_t mhla_causal_whole_units(const mhla_run *run) {
    const int64_t n = mhla_seq_count(&run->call) * run->plan->d.kv_heads;
    const int64_t block = run->plan->d.chunk <= LONGEST_BLOCK ? run->plan->d.chunk : CUT_BLOCK;
    return longest_sequence(&run->call) < 4 * block ? n : n / run->threads * run->threads;
}

int64_t mhla_causal_crew_size(const mhla_run *run, int64_t left) {
    if (left <= 1) return left;
    const int64_t block = run->plan->d.chunk <= LONGEST_BLOCK ? run->plan->d.chunk : CUT_BLOCK;
    int64_t blocks = longest_sequence(&run->call) / block;
    if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
    if (blocks < 1) blocks = 1;
    const int64_t wanted = (TASKS * (int64_t)run->threads + blocks - 1) / blocks;
    const int64_t crews = (left + wanted - 1) / wanted;
    return (left + crews - 1) / crews;
}

static void crew_task(void *arg, int64_t task, int worker) {
    const mhla_causal_crew *c = arg;
    int low = 0, high = c->units; /* first[low] <= task < first[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (c->first[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    c->task(c->arg, low, task - c->first[low], worker);
}

void mhla_causal_crew_run(mhla_causal_crew *c, int64_t (*count)(const void *arg, int unit),
                          void (*task)(void *arg, int unit, int64_t i, int worker), void *arg) {
    if (!c->split) {
        const int64_t n = count(arg, 0);
        for (int64_t i = 0; i < n; i++) task(arg, 0, i, c->worker);
        return;
    }
    c->task = task;
    c->arg = arg;
    c->first[0] = 0;
    for (int u = 0; u < c->units; u++) c->first[u + 1] = c->first[u] + count(arg, u);
    mhla_parallel(c->context, c->first[c->units], crew_task, c);
}

/* ---- Memory ---- */

void mhla_causal_unit_carve(mhla_carver *c, const mhla_causal_work *w, mhla_causal_unit *u, int keep_prefix) {
    memset(u, 0, sizeof *u);
    u->S = (mhla_summary_list){mhla_carve_floats(c, mhla_list_floats(&w->shape, w->cap)), w->cap};
    if (w->running)
        u->parts = (mhla_summary_list){mhla_carve_floats(c, mhla_list_floats(&w->shape, w->group)), w->group};
    if (w->running && keep_prefix)
        u->R = (mhla_summary_list){mhla_carve_floats(c, mhla_list_floats(&w->shape, w->group)), w->group};
    u->P = mhla_carve_floats(c, w->mixes * (w->group + 1) * w->P_row);
    u->W = mhla_carve_floats(c, w->mixes * w->group * w->cap);
}

void mhla_causal_scratch_carve(mhla_carver *c, const mhla_causal_work *w, mhla_causal_scratch *x) {
    memset(x, 0, sizeof *x);
    const int64_t n = w->block, rows = n * w->Kp;
    const mhla_panels p = mhla_causal_score_panels(w->run->kernels, w->block);
    x->ld_scores = mhla_panels_width(&p) + 16;
    x->q = mhla_carve_floats(c, rows + 16);
    x->k = mhla_carve_floats(c, rows + 16);
    x->kT = mhla_carve_floats(c, (int64_t)w->Kp * mhla_panels_width(&p));
    if (w->normed) {
        x->q2 = mhla_carve_floats(c, rows);
        x->k2 = mhla_carve_floats(c, rows);
        x->cs = mhla_carve_floats(c, rows);
    }
    x->v = mhla_carve_floats(c, n * w->Vw + 16);
    x->scores = mhla_carve_floats(c, n * x->ld_scores);
    x->den = mhla_carve_floats(c, n);
    x->dots = mhla_carve_floats(c, n);
    x->scale = mhla_carve_floats(c, n);
    x->diagonal = mhla_carve_floats(c, n);
    x->z = mhla_carve_floats(c, w->Kp);
}

/* ---- The walk ---- */

float mhla_causal_unit_weight(const mhla_causal_unit *u, int r, int64_t i, int64_t b) {
    const mhla_run *run = u->w->run;
    if (run->mix == NULL) return 1.0f;
    const int64_t M = u->w->M, h = u->g * u->w->ratio + r;
    return mhla_causal_weight(run->mix + (run->plan->d.mix_per_head ? h * M * M : 0), M, i, b);
}

/* Entry e of the initial lists: offset of [K] rows. */
static int64_t initial_at(const mhla_causal_unit *u, int64_t e) {
    const mhla_run *run = u->w->run;
    const int64_t N0 = mhla_state_chunks(run->plan, run->call.past);
    return ((u->s * N0 + e) * run->plan->d.kv_heads + u->g) * run->plan->d.key_dim;
}

static void load_initial(const mhla_causal_unit *u, const mhla_piece *p, float *dst, int64_t e) {
    const mhla_call *c = &u->w->run->call;
    const int64_t at = initial_at(u, e);
    mhla_piece_load(&u->w->shape, p, dst, c->initial_state + at * u->w->shape.V,
                    c->initial_z ? c->initial_z + at : NULL);
}

void mhla_causal_begin(mhla_causal_unit *u, const mhla_causal_work *w, int64_t s, int64_t g) {
    const mhla_call *c = &w->run->call;
    u->w = w;
    u->s = s;
    u->g = g;
    u->batch = mhla_seq_batch(c, s);
    u->begin = mhla_seq_begin(c, s);
    u->T = mhla_seq_end(c, s) - u->begin;
    mhla_causal_list(w->run->plan, c->past, &u->entries0, &u->first0);
    if (c->initial_state == NULL) u->entries0 = 0;
    const int endless = w->C > INT_MAX;
    if (endless) u->first0 = 0;
    u->open = u->entries0 > 0 && (endless || c->past % w->C != 0);
    u->base = u->first0;
    u->count = u->entries0;
    u->grp = (mhla_causal_group){0};
    u->live = 0;
}

void mhla_causal_load(mhla_causal_unit *u, int piece) {
    const mhla_piece p = mhla_summary_piece(&u->w->shape, piece);
    for (int64_t e = 0; e < u->entries0; e++) load_initial(u, &p, mhla_list_at(&u->S, &p, e), e);
}

int mhla_causal_block(const mhla_causal_unit *u, int x, int64_t *t) {
    const mhla_causal_work *w = u->w;
    const int64_t past = w->run->call.past;
    int64_t begin, end;
    if (w->running) {
        const int64_t stop = w->C > INT_MAX ? u->T : (u->grp.chunk0 + 1) * w->C - past; /* of the chunk */
        begin = u->grp.token0 + (int64_t)x * w->block;
        end = begin + w->block < stop ? begin + w->block : stop;
    } else {
        begin = (u->grp.chunk0 + x) * w->C - past;
        end = begin + w->C;
        if (begin < 0) begin = 0;
    }
    if (end > u->T) end = u->T;
    *t = begin;
    return (int)(end - begin);
}

int mhla_causal_has_past(const mhla_causal_unit *u, int x) {
    if (u->w->running) return u->grp.chunk0 > u->base || u->open || !u->grp.starts || x > 0;
    return u->grp.chunk0 + x > u->base || (u->open && u->grp.chunk0 + x == u->w->run->call.past / u->w->C);
}

/* Is the chunk at hand the one that had tokens before the call? */
static int in_open_chunk(const mhla_causal_unit *u) {
    return u->open && (u->w->C > INT_MAX || u->grp.chunk0 == u->w->run->call.past / u->w->C);
}

/* CLAMP, list full: rows 0..lo-base become one tail, the rest moves down. */
static void compact(mhla_causal_unit *u, int64_t lo) {
    const int64_t merge = lo - u->base;
    for (int j = 0; j < u->w->shape.pieces; j++) {
        const mhla_piece p = mhla_summary_piece(&u->w->shape, j);
        float *first = mhla_list_at(&u->S, &p, 0);
        for (int64_t r = 1; r <= merge; r++) u->w->run->kernels->axpy(first, 1.0f, first + r * p.width, p.width);
        memmove(first + p.width, first + (merge + 1) * p.width,
                (size_t)((u->count - merge - 1) * p.width) * sizeof *first);
    }
    u->base = lo;
    u->count -= merge;
}

/* W[x][row]: weight of the group's chunk x for the list's row, rows of earlier chunks only. */
static void fill_weights(const mhla_causal_unit *u, int x) {
    const mhla_causal_work *w = u->w;
    const int64_t i = u->grp.chunk0 + x;
    if (w->running && (x > 0 || !u->grp.starts)) return; /* one chunk, whose weights are there */
    for (int r = 0; r < w->mixes; r++) {
        float *row = u->W + ((int64_t)r * w->group + x) * w->cap;
        for (int64_t b = u->base; b < i; b++) row[b - u->base] = mhla_causal_unit_weight(u, r, i, b);
    }
}

int mhla_causal_next_group(mhla_causal_unit *u) {
    const mhla_causal_work *w = u->w;
    const int64_t past = w->run->call.past;
    mhla_causal_group *g = &u->grp;
    const int fresh = g->n == 0;
    int64_t next = 0; /* first token of the new group */
    if (!fresh) {
        const int n = mhla_causal_block(u, g->n - 1, &next);
        next += n;
    }
    u->live = next < u->T;
    if (!u->live) return 0;
    const int64_t position = w->C > INT_MAX ? next : past + next;
    g->token0 = next;
    if (w->running) {
        const int64_t before = g->chunk0;
        g->chunk0 = w->C > INT_MAX ? 0 : position / w->C;
        g->starts = fresh || g->chunk0 != before;
        int64_t stop = w->C > INT_MAX ? u->T : (g->chunk0 + 1) * w->C - past;
        if (stop > u->T) stop = u->T;
        const int64_t blocks = (stop - next + w->block - 1) / w->block;
        g->n = (int)(blocks < w->group ? blocks : w->group);
        g->ends = blocks <= w->group;
    } else {
        g->chunk0 = position / w->C;
        const int64_t chunks = (past + u->T + w->C - 1) / w->C - g->chunk0;
        g->n = (int)(chunks < w->group ? chunks : w->group);
        g->starts = g->ends = 1;
    }
    if (u->count == 0) u->base = g->chunk0;
    const int64_t last = w->running ? g->chunk0 : g->chunk0 + g->n - 1;
    const int64_t lo = g->chunk0 - w->M + 1;
    if (w->clamp && last - u->base >= w->cap && lo > u->base) compact(u, lo);
    u->count = last - u->base + 1;
    return 1;
}

/* ---- Packing ---- */

mhla_rows mhla_causal_rows(const mhla_causal_unit *u, const void *x, mhla_dtype dtype, const mhla_strides *st,
                           int64_t head, int64_t t) {
    return (mhla_rows){(void *)(uintptr_t)mhla_at(x, dtype, st, u->batch, u->begin + t, head), NULL, st->token, dtype};
}

void mhla_causal_pack(const mhla_causal_unit *u, float *dst, float *plain, const void *x, const mhla_strides *st,
                      int64_t head, int64_t t, int n, int rope) {
    const mhla_run *run = u->w->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_pack p = {.dst = dst,
                         .ld = u->w->Kp,
                         .src = mhla_causal_rows(u, x, d->dtype, st, head, t),
                         .n = n,
                         .K = d->key_dim,
                         .feature = d->feature,
                         .eps = d->feature_eps,
                         .rope = rope ? d->rope : MHLA_ROPE_NONE,
                         .rope_dim = d->rope_dim,
                         .cos = run->call.rope_cos,
                         .sin = run->call.rope_sin,
                         .rope_row = run->call.past + t,
                         .plain = plain};
    run->kernels->pack(&p);
}

void mhla_causal_pack_values(const mhla_causal_unit *u, float *dst, int64_t t, int n) {
    const mhla_run *run = u->w->run;
    const mhla_rows rows = mhla_causal_rows(u, run->v, run->plan->d.dtype, &run->call.v, u->g, t);
    mhla_panels p;
    run->kernels->panels(&p, run->plan->d.value_dim);
    run->kernels->copy_panels(dst, &p, &rows, n, NULL);
}

void mhla_causal_running_keys(const mhla_causal_unit *u, mhla_causal_scratch *x, int64_t t, int n) {
    const mhla_call *c = &u->w->run->call;
    const int64_t ld = u->w->Kp;
    if (c->k2) mhla_causal_pack(u, x->k2, NULL, c->k2, &c->k2_strides, u->g, t, n, 0);
    for (int i = 0; i < n; i++) {
        memcpy(x->cs + i * ld, x->k2 + i * ld, (size_t)ld * sizeof(float));
        if (i > 0) u->w->run->kernels->axpy(x->cs + i * ld, 1.0f, x->cs + (i - 1) * ld, ld);
    }
}

void mhla_causal_denominators(const mhla_causal_unit *u, mhla_causal_scratch *x, int r, int block, int n) {
    const mhla_causal_work *w = u->w;
    const mhla_plan_desc *d = &w->run->plan->d;
    const int64_t i = mhla_causal_chunk(u, block);
    const float m = mhla_causal_unit_weight(u, r, i, i);
    const float *z = mhla_causal_P(u, r, block) + w->shape.F;
    w->run->kernels->row_dots(x->dots, x->q2, w->Kp, x->cs, w->Kp, n, d->key_dim);
    for (int t = 0; t < n; t++) x->den[t] = m * x->dots[t];
    if (mhla_causal_has_past(u, block)) {
        w->run->kernels->row_dots(x->dots, x->q2, w->Kp, z, 0, n, d->key_dim);
        for (int t = 0; t < n; t++) x->den[t] += x->dots[t];
    }
    for (int t = 0; t < n; t++) x->den[t] = d->scale * x->den[t] + d->den_eps;
}

/* Rows that will be packed after this block's: the block after it has the same number, or fewer. */
mhla_prefetch mhla_causal_next_rows(const mhla_causal_unit *u, const void *x, mhla_dtype dtype, const mhla_strides *st,
                                    int64_t head, int64_t t, int n, int cols) {
    const int64_t left = u->T - (t + n);
    return (mhla_prefetch){mhla_causal_rows(u, x, dtype, st, head, t + n), (int)(left < n ? left : n),
                           cols * (int)mhla_dtype_size(dtype)};
}

mhla_prefetch mhla_prefetch_share(mhla_prefetch all, int i, int parts) {
    const int first = (int)((int64_t)all.n * i / parts), last = (int)((int64_t)all.n * (i + 1) / parts);
    all.rows.base = (char *)all.rows.base + first * all.rows.stride * (int64_t)mhla_dtype_size(all.rows.dtype);
    all.n = last - first;
    return all;
}

/* ---- Loop 1: S = k~^T v of a block (transposed: v^T k~), z = sum k2~ ---- */

static void summary_product(const mhla_causal_unit *u, const mhla_causal_scratch *x, const mhla_summary_list *to,
                            int64_t row, int64_t t, int n, mhla_store store) {
    const mhla_causal_work *w = u->w;
    const mhla_summary_shape *s = &w->shape;
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    const mhla_prefetch v = mhla_causal_next_rows(u, run->v, dtype, &run->call.v, u->g, t, n, s->V);
    const mhla_prefetch k = mhla_causal_next_rows(u, run->k, dtype, &run->call.k, u->g, t, n, s->K);
    for (int i = 0; i < s->n.count; i++) {
        const mhla_piece p = mhla_summary_piece(s, i * s->rows);
        float *c = mhla_list_at(to, &p, row);
        const int64_t c_row = (to->cap + 1) * p.width;
        const mhla_prefetch next[] = {/* during each panel its share of the next block, and where its summary goes */
                                      {{c + p.width, NULL, c_row, MHLA_F32}, s->rows, p.width * 4},
                                      mhla_prefetch_share(v, i, s->n.count),
                                      mhla_prefetch_share(k, i, s->n.count)};
        mhla_gemm g = {
            .m = s->rows, .n = p.n, .store = store, .c = c, .c_row = c_row, .prefetch = next, .n_prefetch = 3};
        if (s->transposed) /* v is row-major here */
            g.f = (mhla_factor){.k = n, .a = x->v, .a_row = 1, .a_k = w->Vw, .b = x->k + p.column, .b_k = w->Kp};
        else
            g.f = (mhla_factor){
                .k = n, .a = x->k, .a_row = 1, .a_k = w->Kp, .b = x->v + (int64_t)n * p.column, .b_rows = n};
        mhla_multiply(run, &g);
    }
}

void mhla_causal_summarise(mhla_causal_unit *u, int block, mhla_causal_scratch *x) {
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_summary_shape *s = &w->shape;
    int64_t t;
    const int n = mhla_causal_block(u, block, &t);
    const int second = run->call.k2 != NULL;
    fill_weights(u, block);
    mhla_causal_pack(u, x->k, w->normed && !second ? x->k2 : NULL, run->k, &run->call.k, u->g, t, n, 1);
    if (s->transposed) {
        const mhla_rows rows = mhla_causal_rows(u, run->v, run->plan->d.dtype, &run->call.v, u->g, t);
        run->kernels->copy_rows(x->v, w->Vw, &rows, n, s->V, NULL);
    } else {
        mhla_causal_pack_values(u, x->v, t, n);
    }
    const int adds = !w->running && u->open && u->grp.chunk0 + block == run->call.past / w->C;
    const mhla_summary_list *to = w->running ? &u->parts : &u->S;
    const int64_t row = w->running ? block : u->grp.chunk0 + block - u->base;
    summary_product(u, x, to, row, t, n, adds ? MHLA_STORE_ADD : MHLA_STORE_SET);
    if (!w->normed) return;
    mhla_causal_running_keys(u, x, t, n);
    for (int j = s->rows * s->n.count; j < s->pieces; j++) {
        const mhla_piece p = mhla_summary_piece(s, j);
        const float *z = x->cs + (int64_t)(n - 1) * w->Kp + p.column;
        float *dst = mhla_list_at(to, &p, row);
        const int cols = piece_columns(s, &p);
        for (int k = 0; k < p.width; k++) dst[k] = (adds ? dst[k] : 0.0f) + (k < cols ? z[k] : 0.0f);
    }
}

/* ---- Loop 2: P of the group's blocks, one piece ---- */

/* P_x = sum over rows b < row(x) of W[x][b] S_b, for the group's n chunks */
static void mix_direct(const mhla_causal_unit *u, const mhla_piece *p, int r) {
    const mhla_causal_work *w = u->w;
    const int64_t before = u->grp.chunk0 - u->base;
    const float *W = u->W + (int64_t)r * w->group * w->cap;
    /* the next piece follows in both: its part of the list, and of the P rows, which no prefetcher would see coming */
    const int more = p->at + p->width < w->shape.E;
    float *P = mhla_causal_P(u, r, 0) + p->at;
    const mhla_prefetch next = {
        {mhla_list_at(&u->S, p, u->S.cap + 1), NULL, p->width, MHLA_F32}, more ? (int)before : 0, p->width * 4};
    for (int x = 0; more && x < u->grp.n; x++)
        for (int e = 0; e < p->width; e += 16) __builtin_prefetch(P + x * w->P_row + p->width + e, 1, 2);
    mhla_gemm g = {.m = u->grp.n,
                   .n = p->n,
                   .store = MHLA_STORE_SET,
                   .c = P,
                   .c_row = w->P_row,
                   .f2_lower = 1,
                   .f2_lead = 0,
                   .prefetch = &next,
                   .n_prefetch = u->grp.n > 8}; /* one tile is over too soon */
    g.f = (mhla_factor){
        .k = (int)before, .a = W, .a_row = w->cap, .a_k = 1, .b = mhla_list_at(&u->S, p, 0), .b_k = p->width};
    g.f2 = (mhla_factor){.k = u->grp.n - 1,
                         .a = W + before,
                         .a_row = w->cap,
                         .a_k = 1,
                         .b = mhla_list_at(&u->S, p, before),
                         .b_k = p->width};
    w->run->kernels->gemm(&g);
}

/* Along a chunk: P_0 = mixture of earlier chunks + m_ii * what the chunk already has, P_{x+1} = P_x + m_ii s_x. */
static void mix_running(const mhla_causal_unit *u, const mhla_piece *p, int r) {
    const mhla_causal_work *w = u->w;
    const mhla_kernels *kernels = w->run->kernels;
    const int64_t row = u->grp.chunk0 - u->base;
    const float m = mhla_causal_unit_weight(u, r, u->grp.chunk0, u->grp.chunk0);
    float *P = mhla_causal_P(u, r, 0) + p->at;
    if (u->grp.starts) {
        mhla_gemm g = {.m = 1, .n = p->n, .store = MHLA_STORE_SET, .c = P, .c_row = w->P_row};
        g.f = (mhla_factor){.k = (int)row,
                            .a = u->W + (int64_t)r * w->group * w->cap,
                            .a_row = w->cap,
                            .a_k = 1,
                            .b = mhla_list_at(&u->S, p, 0),
                            .b_k = p->width};
        kernels->gemm(&g);
        if (in_open_chunk(u)) kernels->axpy(P, m, mhla_list_at(&u->S, p, row), p->width);
    } else {
        memcpy(P, P + w->group * w->P_row, (size_t)p->width * sizeof *P);
    }
    for (int x = 0; x < u->grp.n; x++) {
        const int to = x + 1 < u->grp.n ? x + 1 : w->group; /* the last one waits for the next group */
        memcpy(P + to * w->P_row, P + x * w->P_row, (size_t)p->width * sizeof *P);
        kernels->axpy(P + to * w->P_row, m, mhla_list_at(&u->parts, p, x), p->width);
    }
}

/* The chunk's own summary grows by its blocks. */
static void grow_chunk(const mhla_causal_unit *u, const mhla_piece *p) {
    const int64_t row = u->grp.chunk0 - u->base;
    float *S = mhla_list_at(&u->S, p, row);
    if (u->grp.starts && !in_open_chunk(u)) memset(S, 0, (size_t)p->width * sizeof *S);
    for (int x = 0; x < u->grp.n; x++) {
        if (u->R.data) memcpy(mhla_list_at(&u->R, p, x), S, (size_t)p->width * sizeof *S);
        u->w->run->kernels->axpy(S, 1.0f, mhla_list_at(&u->parts, p, x), p->width);
    }
}

void mhla_causal_mix(mhla_causal_unit *u, int piece) {
    const mhla_causal_work *w = u->w;
    const mhla_piece p = mhla_summary_piece(&w->shape, piece);
    if (w->running) {
        for (int r = 0; r < w->mixes; r++) mix_running(u, &p, r);
        grow_chunk(u, &p);
        return;
    }
    for (int r = 0; r < w->mixes; r++) mix_direct(u, &p, r);
    const int64_t first = w->run->call.past / w->C;
    if (!u->open || u->grp.chunk0 != first) return;
    /* the chunk that was open: P_i + m_ii S_open, from the caller's list, for the row has grown already */
    float open[64];
    load_initial(u, &p, open, u->entries0 - 1);
    for (int r = 0; r < w->mixes; r++)
        w->run->kernels->axpy(mhla_causal_P(u, r, 0) + p.at, mhla_causal_unit_weight(u, r, first, first), open,
                              p.width);
}

/* ---- The final state ---- */

void mhla_causal_final(mhla_causal_unit *u, int piece) {
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_piece p = mhla_summary_piece(&w->shape, piece);
    int64_t entries, first;
    mhla_causal_list(run->plan, c->past + u->T, &entries, &first);
    if (first > u->base + u->count - 1) first = u->base + u->count - 1; /* endless */
    const int64_t N1 = mhla_state_chunks(run->plan, c->past + c->tokens);
    float sum[64];
    for (int64_t r = 0; r < u->count; r++) {
        const float *S = mhla_list_at(&u->S, &p, r);
        const int64_t b = u->base + r;
        if (b <= first && r > 0)
            run->kernels->axpy(sum, 1.0f, S, p.width);
        else
            memcpy(sum, S, (size_t)p.width * sizeof *sum);
        if (b < first) continue;
        const int64_t at = ((u->s * N1 + (b > first ? b - first : 0)) * run->plan->d.kv_heads + u->g) * w->shape.K;
        mhla_piece_store(&w->shape, &p, sum, c->final_state ? c->final_state + at * w->shape.V : NULL,
                         c->final_z ? c->final_z + at : NULL, 0);
    }
}

void mhla_causal_final_fill(mhla_causal_unit *u) {
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const int64_t N1 = mhla_state_chunks(run->plan, c->past + c->tokens), K = w->shape.K, V = w->shape.V;
    int64_t entries, first;
    mhla_causal_list(run->plan, c->past + u->T, &entries, &first);
    if (u->count == 0) entries = 0; /* linear, no token at all */
    for (int64_t e = entries; e < N1; e++) {
        const int64_t at = ((u->s * N1 + e) * run->plan->d.kv_heads + u->g) * K;
        if (c->final_state) memset(c->final_state + at * V, 0, (size_t)(K * V) * sizeof(float));
        if (c->final_z) memset(c->final_z + at, 0, (size_t)K * sizeof(float));
    }
}

/* ---- Scores ---- */

/* Panels of two vectors at most: what lies above the diagonal is then mostly left out. */
mhla_panels mhla_causal_score_panels(const mhla_kernels *kernels, int n) {
    mhla_panels p;
    kernels->panels(&p, n);
    return mhla_panels_cut(p.n, p.unit, p.vectors, (p.vectors + 1) / 2);
}

void mhla_causal_scores(const mhla_run *run, mhla_causal_scratch *x, float *scores, const float *a, int64_t lda,
                        const float *bT, int cols, int n, float factor) {
    const mhla_panels all = mhla_causal_score_panels(run->kernels, n);
    for (int i = 0; i < n; i++) x->diagonal[i] = factor;
    for (int i = 0; i < all.count; i++) {
        const int begin = mhla_panel_begin(&all, i), width = mhla_panel_begin(&all, i + 1) - begin;
        mhla_gemm g = {.m = n - begin,
                       .n = mhla_panels_cut(width, all.unit, width / all.unit, 1),
                       .store = MHLA_STORE_ROWS,
                       .out = {scores + begin * x->ld_scores + begin, NULL, x->ld_scores, MHLA_F32},
                       .row_scale = x->diagonal};
        g.f = (mhla_factor){
            .k = cols, .a = a + begin * lda, .a_row = lda, .a_k = 1, .b = bT + (int64_t)cols * begin, .b_rows = cols};
        mhla_multiply(run, &g);
    }
}
