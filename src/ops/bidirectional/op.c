/* Bidirectional MHLA and linear attention, forward. One head at a time stays in a core's own cache: its summaries are
 * made block by block, mixed for a group of query blocks, and the group's outputs follow while the mixtures are hot.
 * Heads that do not fill all threads are split by blocks instead; the arithmetic, and so every bit, is the same. */
#include "ops/bidirectional/head.h"

enum {
    PIECE = 128,          /* tokens of a block that are packed at a time */
    LINEAR_BLOCK = 1024,  /* tokens of linear attention that are summed before they join the total */
    GROUP_BYTES = 400000, /* mixtures made at a time, see group_bytes */
    LARGE_L2 = 1 << 20,   /* larger than this */
    TEAM_BYTES = 2000000, /* summaries of the heads that go together */
    SLAB = 512            /* floats of a summary that are mixed at a time where threads share a head */
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A row stride that is an odd number of cache lines, so that the same column of many rows spreads over all sets. */
static int64_t odd_lines(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

/* Heads of one batch entry that a thread takes together, block by block: rows of one token lie on the same page, and
 * looking up a page costs as much as a row. As many as divide H, fit beside each other in L2 and leave no thread idle. */
static int choose_team(const mhla_run *run, const mhla_geometry *g) {
    const int H = run->plan->d.heads;
    const int64_t bytes = (g->linear ? 1 : g->k.M > g->q.M ? g->k.M : g->q.M) * g->ld * 4, heads = run->call.batch * H;
    /* with a large L2 comes a large table of pages, and looking up costs less than what a team's summaries drive out */
    const int64_t most = mhla_l2_bytes > LARGE_L2 ? mhla_l2_bytes / 4 : TEAM_BYTES;
    for (int team = H < MHLA_MAX_TEAM ? H : MHLA_MAX_TEAM; team > 1; team--)
        if (H % team == 0 && team * bytes <= most && heads / team % run->threads == 0) return team;
    return 1;
}

/* Mixtures made at a time: most of a small L2. Each time all summaries are read; where they are beyond a large L2 anyway, it is
 * the mixtures that have most of it, so that there are few such times. */
static int64_t group_bytes(int64_t summaries) {
    const int64_t most = mhla_l2_bytes / 5 * 4;
    return mhla_l2_bytes > LARGE_L2 && summaries + GROUP_BYTES > most ? most : GROUP_BYTES;
}

static mhla_side side_of(const mhla_layout *layout, int64_t T, const float *cos, const float *sin) {
    return (mhla_side){layout, T, layout ? layout->M : (T + LINEAR_BLOCK - 1) / LINEAR_BLOCK, cos, sin};
}

/* Tokens of its largest block. */
static int64_t largest(const mhla_side *side) {
    if (side->layout) return side->layout->max_block;
    return side->T < LINEAR_BLOCK ? side->T : LINEAR_BLOCK;
}

mhla_geometry mhla_bidirectional_geometry(const mhla_run *run, int backward) {
    const mhla_plan_desc *d = &run->plan->d;
    mhla_geometry g = {.K = d->key_dim, .V = d->value_dim, .linear = d->kind == MHLA_KIND_LINEAR};
    g.pairs = (run->pairs || (d->dtype == MHLA_BF16 && run->kernels->gemm_bf16)) && !backward;
    if (g.pairs)
        mhla_head_panels_bf16(&g.pv, g.V);
    else
        run->kernels->panels(&g.pv, g.V);
    run->kernels->panels(&g.pk, g.K);
    const mhla_call *c = &run->call;
    g.q = side_of(run->plan->queries, c->tokens, c->rope_cos, c->rope_sin);
    g.k = side_of(run->plan->keys, c->kv_tokens, c->key_rope_cos, c->key_rope_sin);
    g.rows = g.linear ? 1 : g.q.M;
    g.max_block = largest(&g.q) > largest(&g.k) ? largest(&g.q) : largest(&g.k);
    g.piece = g.max_block < PIECE ? (int)g.max_block : PIECE;
    g.ldn = odd_lines(g.max_block);
    g.ldk = odd_lines(g.K);
    g.ldv = odd_lines(g.V);
    const int64_t kv = (int64_t)g.K * mhla_panels_width(&g.pv), vk = (int64_t)g.V * mhla_panels_width(&g.pk);
    g.z = round_up(kv > vk ? kv : vk, 16);
    g.used = g.z + round_up(g.K, 16);
    g.ld = odd_lines(g.used);
    g.team = choose_team(run, &g);
    const int64_t mixtures = g.linear                    ? 1
                             : backward && g.k.M > g.q.M ? g.k.M
                                                         : g.q.M; /* the backward's are also of keys */
    g.group = group_bytes(g.team * g.k.M * g.ld * 4) / 4 / (g.team * g.ld) / 6 * 6;
    if (g.group < 6) g.group = 6;
    if (mixtures > 64 && g.group < 36) g.group = 36;
    if (g.group > mixtures) g.group = mixtures;
    g.groups = (g.rows + g.group - 1) / g.group;
    g.key_groups = (g.k.M + g.group - 1) / g.group;
    g.slabs = (g.used + SLAB - 1) / SLAB;
    g.normalised = d->denominator != MHLA_DEN_NONE;
    g.released = d->denominator == MHLA_DEN_RELEASED;
    return g;
}

/* ---- One block ---- */

mhla_rows mhla_head_rows(const mhla_head *x, const mhla_side *side, const void *base, mhla_dtype dtype,
                         const mhla_strides *s, int64_t at) {
    const int32_t *perm = side->layout ? side->layout->perm : NULL;
    return (mhla_rows){.base = (void *)(uintptr_t)mhla_at(base, dtype, s, x->b, perm ? 0 : at, x->h),
                       .idx = perm ? perm + at : NULL,
                       .stride = s->token,
                       .dtype = dtype};
}

int64_t mhla_head_begin(const mhla_side *side, int64_t block) {
    if (side->layout) return side->layout->offsets[block];
    const int64_t at = block * LINEAR_BLOCK;
    return at < side->T ? at : side->T;
}

mhla_pack mhla_head_pack(const mhla_head *x, const mhla_side *side, float *dst, const void *src, const mhla_strides *s,
                         int64_t at, int n, int rotate) {
    const mhla_plan_desc *d = &x->run->plan->d;
    return (mhla_pack){.dst = dst,
                       .ld = x->g->ldk,
                       .src = mhla_head_rows(x, side, src, d->dtype, s, at),
                       .n = n,
                       .K = x->g->K,
                       .feature = d->feature,
                       .eps = d->feature_eps,
                       .rope = rotate ? d->rope : MHLA_ROPE_NONE,
                       .rope_dim = d->rope_dim,
                       .cos = side->cos,
                       .sin = side->sin,
                       .rope_row = side->layout && side->layout->perm ? 0 : at};
}

/* k~ of n tokens into buf->k; their column sums are added to z where there is a denominator. */
void mhla_head_keys(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, float *z) {
    const mhla_call *c = &x->run->call;
    if (z && c->k2) {
        mhla_pack pair = mhla_head_pack(x, &x->g->k, buf->k, c->k2, &c->k2_strides, at, n, 0);
        pair.sum = z;
        x->run->kernels->pack(&pair);
        z = NULL;
    }
    mhla_pack p = mhla_head_pack(x, &x->g->k, buf->k, x->run->k, &c->k, at, n, 1);
    p.sum = z;
    x->run->kernels->pack(&p);
}

/* S_b = sum_t k~_t v_t^T and z_b = sum_t k~_t, into S [ld]. */
static void summarise(const mhla_head *x, const mhla_buffers *buf, int64_t block, float *S) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_call *c = &x->run->call;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const int64_t begin = mhla_head_begin(&g->k, block), end = mhla_head_begin(&g->k, block + 1);
    const int64_t pieces = (end - begin + g->piece - 1) / g->piece;
    memset(S + (int64_t)g->K * mhla_panels_width(&g->pv), 0,
           (size_t)(g->ld - (int64_t)g->K * mhla_panels_width(&g->pv)) * 4);
    for (int64_t p = 0; p < pieces; p++) {
        const int64_t at = begin + p * (end - begin) / pieces, next = begin + (p + 1) * (end - begin) / pieces;
        const int n = (int)(next - at);
        mhla_head_keys(x, buf, at, n, g->normalised ? S + g->z : NULL);
        const int ahead = (int)(g->k.T - next < n ? g->k.T - next : n);
        const int element = (int)mhla_dtype_size(dtype);
        const mhla_prefetch fetch[2] = {
            {mhla_head_rows(x, &g->k, x->run->k, dtype, &c->k, next), ahead, g->K * element},
            {mhla_head_rows(x, &g->k, x->run->v, dtype, &c->v, next), ahead, g->V * element},
        };
        if (g->pairs) {
            mhla_head_summarise_bf16(x, buf, at, n, S, p == 0, fetch, 2);
            continue;
        }
        const mhla_rows v = mhla_head_rows(x, &g->k, x->run->v, dtype, &c->v, at);
        const float *list[PIECE];
        const int direct = dtype == MHLA_F32 && g->V == mhla_panels_width(&g->pv);
        for (int i = 0; i < n && direct; i++) list[i] = (const float *)v.base + (v.idx ? v.idx[i] : i) * v.stride;
        if (!direct) kernels->copy_panels(buf->v, &g->pv, &v, n, NULL);
        kernels->gemm(&(mhla_gemm){.m = g->K,
                                   .n = g->pv,
                                   .f = {.k = n,
                                         .a = buf->k,
                                         .a_row = 1,
                                         .a_k = g->ldk,
                                         .b = buf->v,
                                         .b_rows = n,
                                         .b_list = direct ? list : NULL},
                                   .store = p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD,
                                   .c = S,
                                   .c_rows = g->K,
                                   .prefetch = fetch,
                                   .n_prefetch = 2});
    }
}

/* den_t without scale and eps for the tokens of one piece, q~ packed into buf->q on the way. zm = z' of the block. */
void mhla_head_queries(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, const float *zm) {
    const mhla_call *c = &x->run->call;
    const int eq4 = x->g->normalised && !x->g->released;
    if (eq4 && c->q2) {
        mhla_pack pair = mhla_head_pack(x, &x->g->q, buf->q, c->q2, &c->q2_strides, at, n, 0);
        pair.z = zm;
        pair.den = buf->den;
        x->run->kernels->pack(&pair);
    }
    mhla_pack p = mhla_head_pack(x, &x->g->q, buf->q, x->run->q, &c->q, at, n, 1);
    if (eq4 && !c->q2) {
        p.z = zm;
        p.den = buf->den;
    }
    x->run->kernels->pack(&p);
}

/* `released`: dots[b][w] = q~_{b,w} . z_b for all blocks, then den[i][w] = sum_b m[i,b] dots[b][w]. */
void mhla_head_released_dots(const mhla_head *x, const mhla_buffers *buf, int64_t block, const float *z) {
    const mhla_geometry *g = x->g;
    const mhla_call *c = &x->run->call;
    const int64_t begin = mhla_head_begin(&g->q, block);
    for (int64_t w = 0; w < g->max_block; w += g->piece) {
        const int n = (int)(g->max_block - w < g->piece ? g->max_block - w : g->piece);
        mhla_pack p = c->q2 ? mhla_head_pack(x, &x->g->q, buf->q, c->q2, &c->q2_strides, begin + w, n, 0)
                            : mhla_head_pack(x, &x->g->q, buf->q, x->run->q, &c->q, begin + w, n, 0);
        p.z = z;
        p.den = buf->dots + block * g->ldn + w;
        x->run->kernels->pack(&p);
    }
}

void mhla_head_released_mix(const mhla_head *x, const mhla_buffers *buf) {
    const mhla_geometry *g = x->g;
    mhla_panels pn;
    x->run->kernels->panels(&pn, (int)g->max_block);
    x->run->kernels->gemm(
        &(mhla_gemm){.m = (int)g->q.M,
                     .n = pn,
                     .f = {.k = (int)g->k.M, .a = x->mix, .a_row = g->k.M, .a_k = 1, .b = buf->dots, .b_k = g->ldn},
                     .store = MHLA_STORE_SET,
                     .c = buf->dens,
                     .c_row = g->ldn});
}

void mhla_head_released(const mhla_head *x, const mhla_buffers *buf, const float *S) {
    for (int64_t b = 0; b < x->g->k.M; b++) mhla_head_released_dots(x, buf, b, S + b * x->g->ld + x->g->z);
    mhla_head_released_mix(x, buf);
}

/* scale / den for n tokens; den is 1 without a denominator. */
void mhla_head_row_scale(const mhla_head *x, float *row_scale, const float *den, int n) {
    const mhla_plan_desc *d = &x->run->plan->d;
    for (int i = 0; i < n; i++) row_scale[i] = d->scale / (den ? d->scale * den[i] + d->den_eps : 1.0f);
}

/* o_t = (q~_t^T S'_i) / den_t for the tokens of block i; P = S'_i [ld]. */
static void outputs(const mhla_head *x, const mhla_buffers *buf, int64_t block, const float *P) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_call *c = &x->run->call;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const int64_t begin = mhla_head_begin(&g->q, block), end = mhla_head_begin(&g->q, block + 1);
    const int64_t pieces = (end - begin + g->piece - 1) / g->piece;
    if (g->pairs) mhla_head_round_mixture(x, buf, P);
    for (int64_t p = 0; p < pieces; p++) {
        const int64_t at = begin + p * (end - begin) / pieces, next = begin + (p + 1) * (end - begin) / pieces;
        const int n = (int)(next - at);
        mhla_head_queries(x, buf, at, n, P + g->z);
        const float *den = !g->normalised ? NULL : g->released ? buf->dens + block * g->ldn + (at - begin) : buf->den;
        mhla_head_row_scale(x, buf->row_scale, den, n);
        const int ahead = (int)(g->q.T - next < n ? g->q.T - next : n);
        const int element = (int)mhla_dtype_size(dtype);
        const mhla_prefetch fetch[2] = {
            {mhla_head_rows(x, &g->q, x->run->q, dtype, &c->q, next), ahead, g->K * element},
            {mhla_head_rows(x, &g->q, x->run->o, dtype, &c->o, next), ahead, g->V * element},
        };
        if (g->pairs) {
            mhla_head_outputs_bf16(x, buf, at, n, fetch, 2);
            continue;
        }
        kernels->gemm(&(mhla_gemm){.m = n,
                                   .n = g->pv,
                                   .f = {.k = g->K, .a = buf->q, .a_row = g->ldk, .a_k = 1, .b = P, .b_rows = g->K},
                                   .store = MHLA_STORE_ROWS,
                                   .out = mhla_head_rows(x, &g->q, x->run->o, dtype, &c->o, at),
                                   .row_scale = buf->row_scale,
                                   .accumulate = c->accumulate,
                                   .prefetch = fetch,
                                   .n_prefetch = 2});
    }
}

/* S'_i = sum_b m[i,b] S_b for rows i0..i1-1, z' with it. Meanwhile the first rows of q and o come near. */
void mhla_head_mix(const mhla_head *x, const mhla_buffers *buf, const float *S, int64_t i0, int64_t i1) {
    const mhla_geometry *g = x->g;
    const mhla_call *c = &x->run->call;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const int element = (int)mhla_dtype_size(dtype);
    const int first = g->q.T < g->piece ? (int)g->q.T : g->piece;
    const mhla_prefetch fetch[2] = {
        {mhla_head_rows(x, &g->q, x->run->q, dtype, &c->q, 0), first, g->K * element},
        {mhla_head_rows(x, &g->q, x->run->o, dtype, &c->o, 0), first, g->V * element},
    };
    mhla_panels flat;
    x->run->kernels->panels(&flat, (int)g->used);
    x->run->kernels->gemm(&(mhla_gemm){
        .m = (int)(i1 - i0),
        .n = flat,
        .f = {.k = (int)g->k.M, .a = x->mix + i0 * g->k.M, .a_row = g->k.M, .a_k = 1, .b = S, .b_k = g->ld},
        .store = MHLA_STORE_SET,
        .c = buf->P,
        .c_row = g->ld,
        .prefetch = fetch,
        .n_prefetch = i0 == 0 ? 2 : 0});
}

void mhla_head_mix_slab(const mhla_head *x, float *P, const float *S, int64_t slab, int turned) {
    const mhla_geometry *g = x->g;
    const int64_t at = slab * SLAB, M = g->k.M;
    mhla_panels flat;
    x->run->kernels->panels(&flat, (int)(g->used - at < SLAB ? g->used - at : SLAB));
    x->run->kernels->gemm(&(mhla_gemm){.m = (int)(turned ? M : g->q.M),
                                       .n = flat,
                                       .f = {.k = (int)(turned ? g->q.M : M),
                                             .a = x->mix,
                                             .a_row = turned ? 1 : M,
                                             .a_k = turned ? M : 1,
                                             .b = S + at,
                                             .b_k = g->ld},
                                       .store = MHLA_STORE_SET,
                                       .c = P + at,
                                       .c_row = g->ld});
}

/* The outputs of one group of query blocks, for the heads of a team: x, buf [team], S [team][k.M][ld]. Each head's
 * mixtures lie in its part of P. */
static void output_group(const mhla_geometry *g, const mhla_head *x, const mhla_buffers *buf, const float *S,
                         int64_t group) {
    const int team = g->team;
    const int64_t i0 = group * g->rows / g->groups, i1 = (group + 1) * g->rows / g->groups;
    for (int j = 0; j < team; j++) mhla_head_mix(&x[j], &buf[j], S + j * g->k.M * g->ld, i0, i1);
    for (int64_t i = i0; i < i1; i++)
        for (int j = 0; j < team; j++) outputs(&x[j], &buf[j], i, buf[j].P + (i - i0) * g->ld);
}

/* ---- Heads to threads ---- */

mhla_buffers mhla_bidirectional_buffers(mhla_carver *w, const mhla_geometry *g, int backward) {
    mhla_buffers b = {0};
    const int64_t n = round_up(g->piece, 16);
    b.P = mhla_carve_floats(w, g->team * g->group * g->ld + 16);
    b.k = mhla_carve_floats(w, n * g->ldk);
    b.q = mhla_carve_floats(w, n * g->ldk);
    b.v = mhla_carve_floats(w, n * (g->ldv > mhla_panels_width(&g->pv) ? g->ldv : mhla_panels_width(&g->pv)));
    b.den = mhla_carve_floats(w, n);
    b.row_scale = mhla_carve_floats(w, n);
    if (g->pairs) {
        b.a16 = mhla_carve(w, (size_t)((n + 1) * g->ldk) * sizeof *b.a16);
        b.b16 = mhla_carve(w, (size_t)((n + 1) * mhla_panels_width(&g->pv)) * sizeof *b.b16);
        b.p16 = mhla_carve(w, (size_t)((int64_t)(g->K + 1) * mhla_panels_width(&g->pv)) * sizeof *b.p16);
    }
    if (backward) {
        b.h = mhla_carve_floats(w, n * g->ldk);
        b.g = mhla_carve_floats(w, n * g->ldv);
        b.t = mhla_carve_floats(w, g->ld);
    }
    return b;
}

mhla_head mhla_bidirectional_head(const mhla_run *run, const mhla_geometry *g, int64_t index) {
    const mhla_plan_desc *d = &run->plan->d;
    mhla_head x = {.run = run, .g = g, .b = index / d->heads, .h = index % d->heads};
    x.mix = g->linear ? NULL : run->mix + (d->mix_per_head ? x.h * g->q.M * g->k.M : 0);
    return x;
}

typedef struct forward_job {
    const mhla_run *run;
    mhla_geometry g;
    int64_t first; /* head of task 0 */
    int64_t left;  /* heads that are split among threads; linear attention then needs its blocks one by one */
    char *parts;   /* [threads] of part_bytes, see part_of */
    size_t part_bytes;
    float *P; /* [left][P_floats]: the mixtures of heads that are split, [q.M][ld]; linear attention has none */
    int64_t P_floats;
} forward_job;

/* The memory of a thread. Summaries and denominators of the i-th head that is split are in part i. */
typedef struct part {
    mhla_buffers own;
    float *S;           /* summaries of the team that a thread works on; [team][k.M][ld] */
    float *dots, *dens; /* `released`: [team][k.M][ldn], [team][q.M][ldn] */
} part;

static part carve_part(mhla_carver *w, const forward_job *job) {
    const mhla_geometry *g = &job->g;
    part p = {.own = mhla_bidirectional_buffers(w, g, 0)};
    p.S = mhla_carve_floats(w, g->team * (g->linear && job->left == 0 ? 1 : g->k.M) * g->ld + 16);
    p.dots = mhla_carve_floats(w, g->released ? g->team * g->k.M * g->ldn : 0);
    p.dens = mhla_carve_floats(w, g->released ? g->team * g->q.M * g->ldn : 0);
    return p;
}

/* Tasks cut their part themselves: a list of all would be work that no other thread does. */
static part part_of(const forward_job *job, int64_t i) {
    return carve_part(&(mhla_carver){.base = job->parts + (size_t)i * job->part_bytes}, job);
}

/* A thread's buffers with the denominators of head j of a part. */
static mhla_buffers buffers_of(const part *own, const part *dens, const mhla_geometry *g, int j) {
    mhla_buffers b = own->own;
    b.dots = dens->dots + j * g->k.M * g->ldn;
    b.dens = dens->dens + j * g->q.M * g->ldn;
    return b;
}

/* Linear attention: the total of all blocks, each summed on its own first. */
static void add_block(const mhla_head *x, const mhla_buffers *buf, int64_t block, float *S) {
    summarise(x, buf, block, block == 0 ? S : buf->P);
    if (block > 0) x->run->kernels->axpy(S, 1.0f, buf->P, x->g->used);
}

static void whole_team(void *arg, int64_t task, int worker) {
    const forward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const int team = g->team;
    mhla_head x[MHLA_MAX_TEAM];
    mhla_buffers buf[MHLA_MAX_TEAM];
    const part own = part_of(job, worker);
    float *S = own.S;
    for (int j = 0; j < team; j++) {
        x[j] = mhla_bidirectional_head(job->run, g, task * team + j);
        buf[j] = buffers_of(&own, &own, g, j);
        buf[j].P += j * g->group * g->ld;
    }
    if (g->linear) {
        for (int64_t b = 0; b < g->k.M; b++)
            for (int j = 0; j < team; j++) add_block(&x[j], &buf[j], b, S + j * g->ld);
        for (int64_t b = 0; b < g->q.M; b++)
            for (int j = 0; j < team; j++) outputs(&x[j], &buf[j], b, S + j * g->ld);
        return;
    }
    for (int64_t b = 0; b < g->k.M; b++)
        for (int j = 0; j < team; j++) summarise(&x[j], &buf[j], b, S + (j * g->k.M + b) * g->ld);
    for (int j = 0; j < team && g->released; j++) mhla_head_released(&x[j], &buf[j], S + j * g->k.M * g->ld);
    for (int64_t group = 0; group < g->groups; group++) output_group(g, x, buf, S, group);
}

/* Heads that would leave threads idle (then there are no teams): task = (head, block), then (head, slab of the summaries), and a
 * task for the denominators, then (head, block) again. Slabs have all rows of the mixture, so that a product has many. */
static void split_summaries(void *arg, int64_t task, int worker) {
    const forward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const int64_t i = task / g->k.M, block = task % g->k.M;
    const mhla_head x = mhla_bidirectional_head(job->run, g, job->first + i);
    const part own = part_of(job, worker), head = part_of(job, i);
    const mhla_buffers buf = buffers_of(&own, &head, g, 0);
    float *S = head.S + block * g->ld;
    summarise(&x, &buf, block, S);
    if (g->released) mhla_head_released_dots(&x, &buf, block, S + g->z);
}

static void split_mix(void *arg, int64_t task, int worker) {
    const forward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const int64_t tasks = g->slabs + g->released, i = task / tasks, slab = task % tasks;
    const mhla_head x = mhla_bidirectional_head(job->run, g, job->first + i);
    const part own = part_of(job, worker), head = part_of(job, i);
    const mhla_buffers buf = buffers_of(&own, &head, g, 0);
    if (slab == g->slabs) {
        mhla_head_released_mix(&x, &buf);
    } else if (g->linear) {
        const int64_t at = slab * SLAB, n = g->used - at < SLAB ? g->used - at : SLAB;
        for (int64_t b = 1; b < g->k.M; b++) job->run->kernels->axpy(head.S + at, 1.0f, head.S + b * g->ld + at, n);
    } else {
        mhla_head_mix_slab(&x, job->P + i * job->P_floats, head.S, slab, 0);
    }
}

static void split_outputs(void *arg, int64_t task, int worker) {
    const forward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const int64_t i = task / g->q.M, block = task % g->q.M;
    const mhla_head x = mhla_bidirectional_head(job->run, g, job->first + i);
    const part own = part_of(job, worker), head = part_of(job, i);
    const mhla_buffers buf = buffers_of(&own, &head, g, 0);
    outputs(&x, &buf, block, g->linear ? head.S : job->P + i * job->P_floats + block * g->ld);
}

/* Carves everything; with a counting carver this is the size of the workspace. */
static forward_job make_forward(const mhla_run *run, mhla_carver *w) {
    forward_job job = {.run = run, .g = mhla_bidirectional_geometry(run, 0)};
    job.left = run->call.batch * run->plan->d.heads % run->threads;
    mhla_carver one = {0};
    carve_part(&one, &job);
    job.part_bytes = one.used;
    job.parts = mhla_carve(w, (size_t)run->threads * job.part_bytes);
    job.P_floats = job.g.linear ? 0 : job.g.q.M * job.g.ld + 16;
    job.P = mhla_carve_floats(w, job.left * job.P_floats);
    return job;
}

size_t mhla_bidirectional_forward_workspace(const mhla_run *run) {
    mhla_carver w = {0};
    make_forward(run, &w);
    return w.used;
}

mhla_status mhla_bidirectional_forward(const mhla_run *run) {
    mhla_carver w = {.base = run->ws};
    forward_job job = make_forward(run, &w);
    const mhla_context *context = run->call.context;
    const int64_t heads = run->call.batch * run->plan->d.heads, whole = heads - heads % run->threads;
    mhla_parallel(context, whole / job.g.team, whole_team, &job);
    job.first = whole;
    const int64_t left = heads - whole;
    if (left == 0) return MHLA_OK;
    const mhla_geometry *g = &job.g;
    mhla_parallel(context, left * g->k.M, split_summaries, &job);
    mhla_parallel(context, left * (g->slabs + g->released), split_mix, &job);
    mhla_parallel(context, left * g->q.M, split_outputs, &job);
    return MHLA_OK;
}
