/* A step of streaming: states fed one token or n at a time.
 *
 * It first finds everything that can go wrong and allocates everything it needs, then works in rounds: in each, a
 * state takes the tokens up to the end of its block, all (state, head) pairs in parallel. Long prompts go through the
 * parallel form, whole chunks at a time. */
#include "ops/causal/state.h"

#include <limits.h>

/* ---- A step ---- */

typedef struct seat { /* a state's part of the step */
    mhla_state *s;
    int64_t batch, begin, T, done; /* its tokens in the call; those done */
    int n;                         /* tokens of this round */
    int ends_block, ends_chunk;
} seat;

typedef struct step {
    mhla_run run;
    seat *seats;
    int64_t count;
    mhla_causal_scratch *scratch; /* [threads], for more than one token at a time */
    float **line;                 /* [threads] [block][Vw] */
    int cuts, per_panel;          /* of a round that threads share: of a head's columns; of them in a panel */
} step;

static mhla_rows rows_at(const step *p, const seat *x, const void *base, const mhla_strides *st, int64_t h) {
    const mhla_dtype dtype = p->run.plan->d.dtype;
    return (mhla_rows){(void *)(uintptr_t)mhla_at(base, dtype, st, x->batch, x->begin + x->done, h), NULL, st->token,
                       dtype};
}

static void pack_rows(const step *p, const seat *x, float *dst, float *plain, const void *base, const mhla_strides *st,
                      int64_t h, int n, int rope) {
    const mhla_plan_desc *d = &p->run.plan->d;
    const mhla_pack k = {.dst = dst,
                         .ld = x->s->Kp,
                         .src = rows_at(p, x, base, st, h),
                         .n = n,
                         .K = d->key_dim,
                         .feature = d->feature,
                         .eps = d->feature_eps,
                         .rope = rope ? d->rope : MHLA_ROPE_NONE,
                         .rope_dim = d->rope_dim,
                         .cos = p->run.call.rope_cos,
                         .sin = p->run.call.rope_sin,
                         .rope_row = x->s->tokens,
                         .plain = plain};
    x->s->kernels->pack(&k);
}

/* Rows of v [n][Vw] into the ring's panels from row `fill` on. */
static void ring_values(const mhla_state *s, int64_t g, const float *v, int n) {
    float *ring = s->ring_v + g * s->block * s->Vw;
    for (int i = 0; i < s->shape.n.count; i++) {
        const int begin = mhla_panel_begin(&s->shape.n, i), width = mhla_panel_begin(&s->shape.n, i + 1) - begin;
        for (int t = 0; t < n; t++)
            memcpy(ring + (int64_t)s->block * begin + (int64_t)(s->fill + t) * width, v + (int64_t)t * s->Vw + begin,
                   (size_t)width * sizeof *v);
    }
}

/* The scratch of a head for one token. */
typedef struct token_scratch {
    float *q, *q2; /* [R][Kp] */
    float *scores; /* [R][ld] */
    int64_t ld;
    float *v, *k2; /* [Vw], [Kp] */
    float *scale;  /* [R] */
} token_scratch;

static token_scratch scratch_of(const mhla_state *s, int64_t g) {
    token_scratch w = {.q = s->scratch + g * s->scratch_head, .ld = s->block + 16};
    w.q2 = w.q + s->ratio * s->Kp;
    w.scores = w.q2 + s->ratio * s->Kp;
    w.v = w.scores + s->ratio * w.ld;
    w.k2 = w.v + s->Vw;
    w.scale = w.k2 + s->Kp;
    return w;
}

/* One token: o = scale/den (q~ P + m_ii sum over the open block of (q~ . k~_u) v_u). First its scores and scales. */
static void begin_token(const step *p, const seat *x, int64_t g, const float *mix) {
    mhla_state *s = x->s;
    const mhla_call *c = &p->run.call;
    const mhla_plan_desc *d = &p->run.plan->d;
    const mhla_kernels *kernels = s->kernels;
    const int R = s->ratio, n = s->fill + 1;
    const token_scratch w = scratch_of(s, g);
    const int64_t ld = w.ld;
    float *q = w.q, *q2 = w.q2, *scores = w.scores, *v = w.v, *k2 = w.k2, *scale = w.scale;
    float *ring_k = s->ring_k + g * s->block * s->Kp;
    const int64_t i = mhla_state_position_chunk(s);
    pack_rows(p, x, ring_k + s->fill * s->Kp, s->normed && !c->k2 ? k2 : NULL, p->run.k, &c->k, g, 1, 1);
    if (c->k2) pack_rows(p, x, k2, NULL, c->k2, &c->k2_strides, g, 1, 0);
    if (s->normed) kernels->axpy(s->z + g * s->Kp, 1.0f, k2, s->Kp);
    const mhla_rows values = rows_at(p, x, p->run.v, &c->v, g);
    kernels->copy_rows(v, s->Vw, &values, 1, s->V, NULL);
    ring_values(s, g, v, 1);
    for (int r = 0; r < R; r++) {
        pack_rows(p, x, q + r * s->Kp, s->normed && !c->q2 ? q2 + r * s->Kp : NULL, p->run.q, &c->q, g * R + r, 1, 1);
        if (c->q2) pack_rows(p, x, q2 + r * s->Kp, NULL, c->q2, &c->q2_strides, g * R + r, 1, 0);
    }
    kernels->dots_pieces(scores, ld, q, s->Kp, 0, R, ring_k, s->Kp, 0, n, 1, s->Kp, 0);
    for (int r = 0; r < R; r++) {
        const float m = mhla_state_weight(s, mix, g, r, i, i);
        const float *z = s->P + (g * s->mixes + (s->mixes > 1 ? r : 0)) * s->shape.E + s->shape.F;
        for (int u = 0; u < n; u++) scores[(int64_t)r * ld + u] *= m;
        scale[r] = d->scale;
        if (!s->normed) continue;
        float past, own;
        kernels->row_dots(&past, q2 + r * s->Kp, 0, z, 0, 1, s->K);
        kernels->row_dots(&own, q2 + r * s->Kp, 0, s->z + g * s->Kp, 0, 1, s->K);
        scale[r] = d->scale / (d->scale * (past + m * own) + d->den_eps);
    }
}

/* Some columns of the output: all, or of one panel. */
typedef struct token_columns {
    mhla_panels n;
    int first, panel, width; /* first column; the panel's, and its width, or 0: all */
} token_columns;

static void token_output(const step *p, const seat *x, int64_t g, const token_columns *t) {
    const mhla_state *s = x->s;
    const mhla_call *c = &p->run.call;
    const int R = s->ratio, inside = t->first - t->panel;
    const token_scratch w = scratch_of(s, g);
    for (int r = 0; r < s->mixes; r++) {
        mhla_gemm o = {.m = s->mixes > 1 ? 1 : R,
                       .n = t->n,
                       .store = MHLA_STORE_ROWS,
                       .out = rows_at(p, x, p->run.o, &c->o, g * R + r),
                       .row_scale = w.scale + r,
                       .accumulate = c->accumulate};
        o.out.stride = c->o.head; /* rows are the heads */
        o.out.base = (char *)o.out.base + t->first * (int64_t)mhla_dtype_size(o.out.dtype);
        if (s->tokens > s->fill) /* something before the block */
            o.f = (mhla_factor){.k = s->K,
                                .a = w.q + r * s->Kp,
                                .a_row = s->Kp,
                                .a_k = 1,
                                .b = s->P + (g * s->mixes + r) * s->shape.E + (int64_t)s->K * t->panel + inside,
                                .b_rows = s->K,
                                .b_k = t->width};
        o.f2 = (mhla_factor){.k = s->fill + 1,
                             .a = w.scores + r * w.ld,
                             .a_row = w.ld,
                             .a_k = 1,
                             .b = s->ring_v + (g * s->Vw + t->panel) * s->block + inside,
                             .b_rows = s->block,
                             .b_k = t->width};
        s->kernels->gemm(&o);
    }
}

/* n tokens inside the block: the same, with the triangle among themselves. Rows `fill`.. are theirs. */
static void some_tokens(const step *p, const seat *x, int64_t g, const float *mix, mhla_causal_scratch *w,
                        float *line) {
    mhla_state *s = x->s;
    const mhla_call *c = &p->run.call;
    const mhla_plan_desc *d = &p->run.plan->d;
    const mhla_kernels *kernels = s->kernels;
    const int R = s->ratio, n = x->n, f = s->fill;
    const int64_t i = mhla_state_position_chunk(s);
    float *ring_k = s->ring_k + g * s->block * s->Kp;
    pack_rows(p, x, ring_k + f * s->Kp, s->normed && !c->k2 ? w->k2 : NULL, p->run.k, &c->k, g, n, 1);
    if (c->k2) pack_rows(p, x, w->k2, NULL, c->k2, &c->k2_strides, g, n, 0);
    for (int t = 0; s->normed && t < n; t++) {
        kernels->axpy(s->z + g * s->Kp, 1.0f, w->k2 + (int64_t)t * s->Kp, s->Kp);
        memcpy(w->cs + (int64_t)t * s->Kp, s->z + g * s->Kp, (size_t)s->Kp * sizeof(float));
    }
    const mhla_rows values = rows_at(p, x, p->run.v, &c->v, g);
    kernels->copy_rows(line, s->Vw, &values, n, s->V, NULL);
    ring_values(s, g, line, n);
    const mhla_panels all = mhla_causal_score_panels(kernels, f + n);
    kernels->transpose(w->kT, &all, ring_k, s->Kp, s->K);
    for (int r = 0; r < R; r++) {
        const int64_t h = g * R + r;
        const float m = mhla_state_weight(s, mix, g, r, i, i);
        const float *P = s->P + (g * s->mixes + (s->mixes > 1 ? r : 0)) * s->shape.E;
        pack_rows(p, x, w->q, s->normed && !c->q2 ? w->q2 : NULL, p->run.q, &c->q, h, n, 1);
        if (c->q2) pack_rows(p, x, w->q2, NULL, c->q2, &c->q2_strides, h, n, 0);
        for (int t = 0; t < n; t++) w->scale[t] = d->scale, w->diagonal[t] = m;
        if (s->normed) {
            kernels->row_dots(w->den, w->q2, s->Kp, P + s->shape.F, 0, n, s->K);
            kernels->row_dots(w->dots, w->q2, s->Kp, w->cs, s->Kp, n, s->K);
            for (int t = 0; t < n; t++) w->scale[t] = d->scale / (d->scale * (w->den[t] + m * w->dots[t]) + d->den_eps);
        }
        mhla_gemm sc = {.m = n,
                        .n = all,
                        .store = MHLA_STORE_ROWS,
                        .out = {w->scores, NULL, w->ld_scores, MHLA_F32},
                        .row_scale = w->diagonal};
        sc.n.n = mhla_panels_width(&all);
        sc.f = (mhla_factor){.k = s->K, .a = w->q, .a_row = s->Kp, .a_k = 1, .b = w->kT, .b_rows = s->K};
        kernels->gemm(&sc);
        /* q~ P and the block's earlier rows, then the triangle */
        mhla_gemm o = {.m = n, .n = s->shape.n, .store = MHLA_STORE_SET, .c = line, .c_row = s->Vw};
        if (s->tokens > f) o.f = (mhla_factor){.k = s->K, .a = w->q, .a_row = s->Kp, .a_k = 1, .b = P, .b_rows = s->K};
        o.f2 = (mhla_factor){.k = f,
                             .a = w->scores,
                             .a_row = w->ld_scores,
                             .a_k = 1,
                             .b = s->ring_v + g * s->block * s->Vw,
                             .b_rows = s->block};
        kernels->gemm(&o);
        for (int pi = 0; pi < s->shape.n.count; pi++) { /* panel by panel: the ring's rows begin at `fill` */
            const int begin = mhla_panel_begin(&s->shape.n, pi), width = mhla_panel_begin(&s->shape.n, pi + 1) - begin;
            mhla_gemm tri = {.m = n,
                             .n = mhla_panels_cut(width, s->shape.n.unit, width / s->shape.n.unit, 1),
                             .store = MHLA_STORE_ADD,
                             .c = line + begin,
                             .c_row = s->Vw,
                             .f2_lower = 1,
                             .f2_lead = 1};
            tri.f2 =
                (mhla_factor){.k = n,
                              .a = w->scores + f,
                              .a_row = w->ld_scores,
                              .a_k = 1,
                              .b = s->ring_v + g * s->block * s->Vw + (int64_t)s->block * begin + (int64_t)f * width,
                              .b_k = width};
            kernels->gemm(&tri);
        }
        for (int t = 0; t < n; t++)
            for (int v = 0; v < s->V; v++) line[(int64_t)t * s->Vw + v] *= w->scale[t];
        const mhla_rows out = rows_at(p, x, p->run.o, &c->o, h);
        kernels->store_rows(&out, line, s->Vw, n, s->V, c->accumulate);
    }
}

/* The block is full: S = k~^T v. It is the chunk's summary, or a part of it; then the next P. */
static void close_block(const seat *x, int64_t g, const float *mix) {
    mhla_state *s = x->s;
    const int64_t E = s->shape.E;
    const int rows = s->fill + x->n;
    float *S = s->grown ? s->grown + g * E : s->spare[s->spares - 1]->data + g * E;
    mhla_gemm k = {
        .m = s->K, .n = s->shape.n, .store = s->grown ? MHLA_STORE_ADD : MHLA_STORE_SET, .c = S, .c_rows = s->K};
    k.f = (mhla_factor){.k = rows,
                        .a = s->ring_k + g * s->block * s->Kp,
                        .a_row = 1,
                        .a_k = s->Kp,
                        .b = s->ring_v + g * s->block * s->Vw,
                        .b_rows = s->block};
    s->kernels->gemm(&k);
    for (int64_t j = 0; s->normed && j < E - s->shape.F; j++)
        S[s->shape.F + j] = (s->grown ? S[s->shape.F + j] : 0.0f) + (j < s->K ? s->z[g * s->Kp + j] : 0.0f);
    if (s->normed) memset(s->z + g * s->Kp, 0, (size_t)s->Kp * sizeof(float));
    if (!x->ends_chunk) {
        mhla_state_block_P(s, mix, g);
        return;
    }
    mhla_summary *made = s->spare[s->spares - 1];
    if (s->grown) {
        memcpy(made->data + g * E, S, (size_t)E * sizeof *S);
        memset(S, 0, (size_t)E * sizeof *S);
    }
    if (s->clamp || s->ahead_at + 1 >= s->ahead_end) {
        mhla_state_mix_all(s, mix, g, made); /* reads tail and list as they are */
        mhla_state_merge_head(s, g);
        if (s->P_own)
            for (int r = 0; r < s->mixes; r++)
                memcpy(s->P_own + (g * s->mixes + r) * E, mhla_state_ahead(s, 0, g, r), (size_t)E * sizeof *S);
        return;
    }
    for (int j = s->ahead_at + 1; j < s->ahead_end; j++)
        for (int r = 0; r < s->mixes; r++)
            s->kernels->axpy(mhla_state_ahead(s, j, g, r),
                             mhla_state_weight(s, mix, g, r, s->n + j - s->ahead_at, s->n), made->data + g * E, E);
    if (s->P_own)
        for (int r = 0; r < s->mixes; r++)
            memcpy(s->P_own + (g * s->mixes + r) * E, mhla_state_ahead(s, s->ahead_at + 1, g, r),
                   (size_t)E * sizeof *S);
}

static void round_task(void *arg, int64_t task, int worker) {
    const step *p = arg;
    const int64_t G = p->run.plan->d.kv_heads, g = task % G;
    const seat *x = &p->seats[task / G];
    if (x->n == 0) return;
    if (x->n == 1) {
        begin_token(p, x, g, p->run.mix);
        token_output(p, x, g, &(token_columns){.n = x->s->shape.n});
    } else {
        some_tokens(p, x, g, p->run.mix, &p->scratch[worker], p->line[worker]);
    }
    if (x->ends_block) close_block(x, g, p->run.mix);
}

/* ---- A token of few heads for many threads: these share the columns of each ---- */

/* Of a head's P, at least: where it is smaller, waiting once more takes longer than reading it. */
enum { SHARED_BYTES = 32 << 10 };

static void begin_task(void *arg, int64_t task, int worker) {
    const step *p = arg;
    const int64_t G = p->run.plan->d.kv_heads;
    (void)worker;
    if (p->seats[task / G].n) begin_token(p, &p->seats[task / G], task % G, p->run.mix);
}

static void columns_task(void *arg, int64_t task, int worker) {
    const step *p = arg;
    const int64_t G = p->run.plan->d.kv_heads, head = task / p->cuts;
    const seat *x = &p->seats[head / G];
    const mhla_panels *all = &x->s->shape.n;
    (void)worker;
    if (x->n == 0) return;
    const int i = (int)(task % p->cuts) / p->per_panel, part = (int)(task % p->cuts) % p->per_panel;
    const int panel = mhla_panel_begin(all, i), vectors = all->base + (i < all->extra), unit = all->unit;
    const int from = vectors * part / p->per_panel, to = vectors * (part + 1) / p->per_panel;
    const int first = panel + from * unit, left = all->n - first, width = (to - from) * unit;
    if (width == 0 || left <= 0) return;
    token_output(p, x, head % G,
                 &(token_columns){.n = mhla_panels_cut(left < width ? left : width, unit, to - from, 1),
                                  .first = first,
                                  .panel = panel,
                                  .width = vectors * unit});
}

static void close_task(void *arg, int64_t task, int worker) {
    const step *p = arg;
    const int64_t G = p->run.plan->d.kv_heads;
    (void)worker;
    if (p->seats[task / G].ends_block) close_block(&p->seats[task / G], task % G, p->run.mix);
}

/* Runs the round if it is one token of few heads; the same arithmetic. */
static int shared_round(step *p) {
    const mhla_state *s = p->seats[0].s;
    const int64_t heads = p->count * p->run.plan->d.kv_heads;
    int ends = 0;
    for (int64_t i = 0; i < p->count; i++) {
        if (p->seats[i].n > 1 || p->seats[i].s->kernels != s->kernels) return 0;
        ends |= p->seats[i].ends_block;
    }
    if (2 * heads > p->run.threads || s->shape.F * (int64_t)sizeof(float) < SHARED_BYTES) return 0;
    const int64_t wanted = p->run.threads / (heads * s->shape.n.count);
    p->per_panel = wanted < 1 ? 1 : wanted < s->shape.n.base ? (int)wanted : s->shape.n.base;
    p->cuts = p->per_panel * s->shape.n.count;
    mhla_parallel(p->run.call.context, heads, begin_task, p);
    mhla_parallel(p->run.call.context, heads * p->cuts, columns_task, p);
    if (ends) mhla_parallel(p->run.call.context, heads, close_task, p);
    return 1;
}

/* What a state takes in the next round: tokens up to the end of its block. */
static int next_round(step *p) {
    int any = 0;
    for (int64_t i = 0; i < p->count; i++) {
        seat *x = &p->seats[i];
        mhla_state *s = x->s;
        const int64_t in_chunk = s->tokens % s->C, left = s->C - in_chunk;
        int64_t n = s->block - s->fill;
        if (n > left) n = left;
        if (n > x->T - x->done) n = x->T - x->done;
        x->n = (int)n;
        x->ends_chunk = n > 0 && n == left;
        x->ends_block = x->ends_chunk || (n > 0 && s->fill + n == s->block);
        any |= n > 0;
    }
    return any;
}

/* After a round: what the heads did together. */
static void settle(step *p) {
    for (int64_t i = 0; i < p->count; i++) {
        seat *x = &p->seats[i];
        mhla_state *s = x->s;
        if (x->n == 0) continue;
        s->tokens += x->n;
        x->done += x->n;
        s->fill = x->ends_block ? 0 : s->fill + x->n;
        if (!x->ends_chunk) continue;
        if (s->clamp || s->ahead_at + 1 >= s->ahead_end) {
            const int64_t next = s->n + 1, room = s->M - next;
            s->ahead_at = 0;
            s->ahead_end = s->clamp ? 1 : room < 1 ? 1 : room < MHLA_LOOKAHEAD ? (int)room : MHLA_LOOKAHEAD;
        } else {
            s->ahead_at++;
        }
        if (s->P_own == NULL) s->P = mhla_state_ahead(s, s->ahead_at, 0, 0);
        mhla_state_push(s);
    }
}

/* ---- Prompts: whole chunks by the parallel form ---- */

/* Whole chunks that a state at a chunk's beginning may take at once; 0: too few to be worth it. */
static int64_t prompt_tokens(const mhla_state *s, int64_t tokens) {
    const int64_t chunks = tokens / s->C;
    return s->tokens % s->C == 0 && chunks * s->C >= 4 * (int64_t)s->block && chunks > 0 ? chunks * s->C : 0;
}

static mhla_run prompt_run(const step *p, const seat *x, int64_t tokens) {
    mhla_run run = p->run;
    const mhla_dtype dtype = run.plan->d.dtype;
    mhla_call *c = &run.call;
    const int64_t t = x->begin + x->done;
    run.q = mhla_at(run.q, dtype, &c->q, x->batch, t, 0);
    run.k = mhla_at(run.k, dtype, &c->k, x->batch, t, 0);
    run.v = mhla_at(run.v, dtype, &c->v, x->batch, t, 0);
    run.o = (void *)(uintptr_t)mhla_at(run.o, dtype, &c->o, x->batch, t, 0);
    if (c->q2) c->q2 = mhla_at(c->q2, dtype, &c->q2_strides, x->batch, t, 0);
    if (c->k2) c->k2 = mhla_at(c->k2, dtype, &c->k2_strides, x->batch, t, 0);
    c->batch = 1;
    c->tokens = c->kv_tokens = tokens;
    c->cu_seqlens = NULL;
    c->sequences = 0;
    c->past = x->s->tokens;
    run.kernels = x->s->kernels;
    return run;
}

typedef struct prompt {
    mhla_state *s;
    int64_t end, lo; /* chunks finished after it, and the first of them that is kept one by one */
} prompt;

static void copy_row(const mhla_causal_unit *u, int64_t row, float *flat, int load) {
    const mhla_summary_shape *shape = &u->w->shape;
    for (int j = 0; j < shape->pieces; j++) {
        const mhla_piece p = mhla_summary_piece(shape, j);
        float *at = mhla_list_at(&u->S, &p, row);
        memcpy(load ? at : flat + p.at, load ? flat + p.at : at, (size_t)p.width * sizeof *at);
    }
}

/* The state's list as the walk wants it: the window's entries, row 0 with everything before. Then what will leave the
 * list goes into the tail, in the order in which pushing would have done it. */
static void prompt_begin(void *arg, mhla_causal_unit *u) {
    const prompt *x = arg;
    mhla_state *s = x->s;
    const int64_t E = s->shape.E, g = u->g;
    if (u->w->C > INT_MAX) { /* endless: one row, all of it open */
        if (s->tokens == 0) return;
        copy_row(u, 0, s->tail + g * E, 1);
        u->first0 = u->base = 0;
        u->entries0 = u->count = 1;
        u->open = 1;
        return;
    }
    int64_t entries, first;
    mhla_causal_list(u->w->run->plan, s->tokens, &entries, &first);
    if (s->clamp && first < s->lo - 1) { /* far back: the tail reaches to where no chunk to come tells chunks apart */
        first = s->lo - 1;
        entries = s->n - first;
    }
    u->base = u->first0 = first;
    u->entries0 = u->count = entries;
    for (int j = 0; j < s->shape.pieces; j++) {
        const mhla_piece p = mhla_summary_piece(&s->shape, j);
        int64_t b = s->lo;
        if (s->clamp && entries > 0 && first >= 0 && (first > 0 || s->lo > 0)) {
            float *row = mhla_list_at(&u->S, &p, 0);
            memcpy(row, s->tail + g * E + p.at, (size_t)p.width * sizeof *row);
            for (; b <= first; b++) s->kernels->axpy(row, 1.0f, s->list[b - s->lo]->data + g * E + p.at, p.width);
        }
        for (; b < s->n; b++)
            memcpy(mhla_list_at(&u->S, &p, b - first), s->list[b - s->lo]->data + g * E + p.at,
                   (size_t)p.width * sizeof(float));
    }
    for (int64_t b = s->lo; s->clamp && b < s->n && b < x->lo; b++)
        s->kernels->axpy(s->tail + g * E, 1.0f, s->list[b - s->lo]->data + g * E, E);
}

/* Finished chunks of the group: into their summaries, or into the tail. */
static void prompt_group(void *arg, mhla_causal_unit *u) {
    const prompt *x = arg;
    mhla_state *s = x->s;
    const int64_t E = s->shape.E, g = u->g;
    if (u->w->C > INT_MAX) {
        copy_row(u, 0, s->tail + g * E, 0);
        return;
    }
    if (!u->grp.ends) return;
    const int chunks = u->w->running ? 1 : u->grp.n;
    for (int c = 0; c < chunks; c++) {
        const int64_t b = u->grp.chunk0 + c, kept = x->lo > s->n ? x->lo : s->n;
        if (b >= kept) {
            copy_row(u, b - u->base, s->spare[s->spares - 1 - (b - kept)]->data + g * E, 0);
            continue;
        }
        for (int j = 0; j < s->shape.pieces; j++) {
            const mhla_piece p = mhla_summary_piece(&s->shape, j);
            s->kernels->axpy(s->tail + g * E + p.at, 1.0f, mhla_list_at(&u->S, &p, b - u->base), p.width);
        }
    }
}

static void read_prompt(const step *p, seat *x, int64_t tokens, void *ws) {
    mhla_state *s = x->s;
    mhla_run run = prompt_run(p, x, tokens);
    run.ws = ws;
    const int64_t chunks = tokens / s->C, keep = mhla_state_keep(s);
    prompt y = {.s = s, .end = s->n + chunks, .lo = s->lo};
    if (s->clamp && y.end - y.lo > keep) y.lo = y.end - keep;
    const mhla_causal_hook hook = {prompt_begin, prompt_group, &y};
    mhla_causal_walk(&run, &hook);
    int64_t left = 0; /* of the old list */
    for (int64_t b = s->lo; b < s->n; b++) {
        mhla_summary *old = s->list[b - s->lo];
        if (b >= y.lo)
            s->list[left++] = old;
        else
            mhla_summary_drop(old);
    }
    for (int64_t b = y.lo > s->n ? y.lo : s->n; b < y.end; b++) s->list[left++] = s->spare[--s->spares];
    s->lo = y.lo;
    s->n = y.end;
    s->tokens += tokens;
    x->done += tokens;
    mhla_state_remix(s, p->run.mix, p->run.call.context);
}

/* ---- The entry point ---- */

static mhla_status check_seat(const step *p, const seat *x, int64_t index) {
    const mhla_plan *plan = p->run.plan;
    const mhla_state *s = x->s;
    const int64_t after = s->tokens + x->T;
    if (!s->clamp && after > s->M * s->C)
        return mhla_fail(MHLA_ERANGE,
                         "state %lld has %lld tokens and would get %lld more: mix covers %lld chunks of %lld",
                         (long long)index, (long long)s->tokens, (long long)x->T, (long long)s->M, (long long)s->C);
    if (plan->d.rope != MHLA_ROPE_NONE && p->run.call.rope_rows < after)
        return mhla_fail(MHLA_EINVAL, "rope_rows is %lld: state %lld reaches position %lld",
                         (long long)p->run.call.rope_rows, (long long)index, (long long)after);
    const int64_t last = (after > 0 ? after - 1 : 0) / s->C + (s->clamp ? 1 : MHLA_LOOKAHEAD);
    return mhla_state_check(s, plan, p->run.mix, s->tokens / s->C, !s->clamp && last >= s->M ? s->M - 1 : last);
}

static mhla_status fill_seats(step *p, mhla_state *const *states) {
    const mhla_call *c = &p->run.call;
    mhla_status status = MHLA_OK;
    int64_t seated = 0;
    for (; seated < p->count && status == MHLA_OK; seated++) {
        mhla_state *s = states[seated];
        if (s == NULL) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] is NULL", (long long)seated);
            break;
        }
        if (s->marked) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] is in the list twice", (long long)seated);
            break;
        }
        s->marked = 1;
        p->seats[seated] = (seat){.s = s,
                                  .batch = mhla_seq_batch(c, seated),
                                  .begin = mhla_seq_begin(c, seated),
                                  .T = mhla_seq_end(c, seated) - mhla_seq_begin(c, seated)};
        status = check_seat(p, &p->seats[seated], seated);
    }
    for (int64_t i = 0; i < seated; i++) states[i]->marked = 0;
    return status;
}

/* Everything that the step will need: summaries to come, and one block of memory for prompts and scratch. */
static mhla_status provide(step *p, void **memory, void **ws) {
    size_t prompt_bytes = 0;
    int several = 0;
    for (int64_t i = 0; i < p->count; i++) {
        seat *x = &p->seats[i];
        mhla_state *s = x->s;
        MHLA_TRY(mhla_state_reserve(s, (s->tokens + x->T) / s->C - s->tokens / s->C));
        several |= x->T > 1;
        seat later = *x; /* as it will be when its open chunk is full */
        mhla_state at = *s;
        const int64_t head = (s->C - s->tokens % s->C) % s->C;
        if (x->T <= head) continue;
        later.s = &at;
        later.done = head;
        at.tokens += head;
        const int64_t tokens = prompt_tokens(&at, x->T - head);
        if (tokens == 0) continue;
        const mhla_run run = prompt_run(p, &later, tokens);
        const size_t bytes = mhla_causal_walk_workspace(&run);
        if (bytes > prompt_bytes) prompt_bytes = bytes;
    }
    if (!several) return MHLA_OK;
    const int threads = p->run.threads;
    mhla_run run = p->run;
    run.kernels = p->seats[0].s->kernels;
    mhla_causal_work w;
    mhla_causal_work_make(&w, &run, 0, 0);
    for (int pass = 0; pass < 2; pass++) { /* count, then cut */
        mhla_carver c = {*memory, 0};
        *ws = mhla_carve(&c, prompt_bytes);
        p->scratch = mhla_carve(&c, (size_t)threads * sizeof *p->scratch);
        p->line = mhla_carve(&c, (size_t)threads * sizeof *p->line);
        mhla_causal_scratch none;
        for (int i = 0; i < threads; i++) {
            mhla_causal_scratch_carve(&c, &w, c.base ? &p->scratch[i] : &none);
            float *line = mhla_carve_floats(&c, (int64_t)w.block * w.Vw);
            if (c.base) p->line[i] = line;
        }
        if (pass == 1) break;
        *memory = mhla_alloc(c.used);
        if (*memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes of scratch", c.used);
    }
    return MHLA_OK;
}

mhla_status mhla_step(const mhla_plan *plan, const mhla_call *call, mhla_state *const *states, int64_t n, void *o,
                      const void *q, const void *k, const void *v, const float *mix) {
    enum { FEW = 64 };
    seat few[FEW] = {{0}};
    step p = {.count = n};
    if (plan != NULL && !mhla_has_state(plan->d.kind))
        return mhla_fail(MHLA_EINVAL, "kind of the plan is %d: only causal operators stream", (int)plan->d.kind);
    MHLA_TRY(mhla_run_check(&p.run, plan, call, o, q, k, v, mix));
    const mhla_call *c = &p.run.call;
    if (states == NULL) return mhla_fail(MHLA_EINVAL, "states is NULL");
    if (n != mhla_seq_count(c))
        return mhla_fail(MHLA_EINVAL, "n is %lld: the call has %lld sequences", (long long)n,
                         (long long)mhla_seq_count(c));
    if (c->past != 0 || c->initial_state || c->initial_z || c->final_state || c->final_z)
        return mhla_fail(MHLA_EINVAL, "past, or an initial or final state is given: a step has its states");
    p.seats = n <= FEW ? few : mhla_alloc((size_t)n * sizeof *p.seats);
    if (p.seats == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld states", (long long)n);
    void *memory = NULL, *ws = NULL;
    mhla_status status = fill_seats(&p, states);
    const int recurrent = mhla_decays(plan->d.kind);
    if (status == MHLA_OK) status = recurrent ? mhla_gated_step(&p.run, states) : provide(&p, &memory, &ws);
    if (status == MHLA_OK && !recurrent)
        for (;;) {
            for (int64_t i = 0; i < n; i++) {
                seat *x = &p.seats[i];
                const int64_t tokens = prompt_tokens(x->s, x->T - x->done);
                if (tokens > 0) read_prompt(&p, x, tokens, ws);
            }
            if (!next_round(&p)) break;
            if (!shared_round(&p)) mhla_parallel(c->context, n * plan->d.kv_heads, round_task, &p);
            settle(&p);
        }
    for (int64_t i = 0; i < n && status == MHLA_ENOMEM; i++) mhla_state_drop_spares(states[i]);
    mhla_free(memory);
    if (p.seats != few) mhla_free(p.seats);
    return status;
}
