/* What forward and backward share: the cut of a call into chunks, scratch memory, decays inside a chunk, scores. */
#include "ops/gated/gated.h"

enum { USUAL_CHUNK = 64, LONGEST_CHUNK = 128 };

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A row stride that is an odd number of cache lines, so that the same column of many rows spreads over all sets. */
static int64_t odd_lines(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

/* ---- Geometry ---- */

static int64_t sequence_tokens(const mhla_call *c, int64_t s) { return mhla_seq_end(c, s) - mhla_seq_begin(c, s); }

void mhla_gated_make(mhla_gated *w, const mhla_run *run, mhla_carver *carver, int backward) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    *w = (mhla_gated){.run = run,
                      .channels = d->kind == MHLA_KIND_GLA,
                      .delta = d->kind == MHLA_KIND_GATED_DELTA,
                      .K = d->key_dim,
                      .V = d->value_dim,
                      .N = mhla_seq_count(c),
                      .H = d->heads,
                      .G = run->plan->k_heads};
    w->R = w->H / w->G;
    int64_t longest = 1;
    for (int64_t s = 0; s < w->N; s++)
        if (sequence_tokens(c, s) > longest) longest = sequence_tokens(c, s);
    w->C = d->chunk == 0 ? USUAL_CHUNK : d->chunk < LONGEST_CHUNK ? d->chunk : LONGEST_CHUNK;
    if (w->C > longest) w->C = (int)longest;
    run->kernels->panels(&w->pk, w->K);
    run->kernels->panels(&w->pv, w->V);
    w->ldk = odd_lines(w->K);
    w->ldv = odd_lines(w->V);
    w->ldc = odd_lines(w->C);
    w->E =
        round_up(w->delta ? (int64_t)w->K * mhla_panels_width(&w->pv) : (int64_t)w->V * mhla_panels_width(&w->pk), 16);
    w->first = mhla_carve(carver, (size_t)(w->N + 1) * sizeof *w->first);
    for (int64_t s = 0; s < w->N; s++) {
        if (w->first) w->first[s] = w->chunks;
        w->chunks += (sequence_tokens(c, s) + w->C - 1) / w->C;
    }
    if (w->first) w->first[w->N] = w->chunks;
    const int most = w->pv.vectors * w->pv.unit / 32; /* pieces of 32 columns or more */
    w->pieces = mhla_gated_pieces(w->N * w->H, most < w->pv.vectors ? most : w->pv.vectors, run->threads);
    w->fused = !backward && w->R == 1 && w->pieces == 1;
    if (!w->fused) w->scores = mhla_carve_floats(carver, w->chunks * (w->delta ? 2 * w->H : w->G) * w->C * w->ldc);
    if (d->qk_l2norm) w->norms = mhla_carve_floats(carver, w->chunks * w->G * 2 * w->C);
}

mhla_gated_scratch mhla_gated_carve(mhla_carver *c, const mhla_gated *w, int backward) {
    mhla_gated_scratch z = {0};
    const int64_t keys = w->C * w->ldk, values = w->C * w->ldv, square = w->C * w->ldc;
    const int64_t wide = w->ldk > w->ldv ? w->ldk : w->ldv, width = round_up(w->C, 16);
    float **of_keys[] = {&z.q, &z.k, &z.qd, &z.kd, &z.dq, &z.dk, &z.x, &z.y};
    for (size_t i = 0; i < sizeof of_keys / sizeof *of_keys; i++)
        if (backward || i < 4) *of_keys[i] = mhla_carve_floats(c, keys);
    float **of_gla[] = {&z.g, &z.eb, &z.ek, &z.qs, &z.F, &z.X, &z.ec, &z.minus, &z.db};
    for (size_t i = 0; i < sizeof of_gla / sizeof *of_gla; i++)
        *of_gla[i] = mhla_carve_floats(c, w->channels ? keys : w->C);
    float **of_square[] = {&z.turned, &z.A, &z.L, &z.dA, &z.M};
    for (size_t i = 0; i < sizeof of_square / sizeof *of_square; i++) *of_square[i] = mhla_carve_floats(c, square);
    z.vp = mhla_carve_floats(c, values);
    if (backward) {
        z.v = mhla_carve_floats(c, values);
        z.a = mhla_carve_floats(c, values);
    }
    z.T = mhla_carve_floats(c, wide * width);
    z.S = mhla_carve_floats(c, (int64_t)w->K * round_up(mhla_panels_width(&w->pv), 16));
    z.total = mhla_carve_floats(c, w->ldk);
    float **of_tokens[] = {&z.scale, &z.early, &z.late};
    for (size_t i = 0; i < sizeof of_tokens / sizeof *of_tokens; i++) *of_tokens[i] = mhla_carve_floats(c, w->C);
    z.sums = mhla_carve_floats(c, w->ldk > w->ldc ? w->ldk : w->ldc);
    z.ones = mhla_carve_floats(c, w->ldc);
    for (int64_t i = 0; c->base && i < w->ldc; i++) z.ones[i] = 1.0f;
    if (w->fused) z.own = mhla_carve_floats(c, (w->delta ? 2 : 1) * square);
    if (!w->delta) return z;
    z.beta = mhla_carve_floats(c, w->ldc);
    z.kb = mhla_carve_floats(c, keys);
    z.yp = mhla_carve_floats(c, values);
    z.kk = mhla_carve_floats(c, square);
    z.N = mhla_carve_floats(c, square);
    z.LB = mhla_carve_floats(c, square);
    if (!backward) return z;
    z.turned_state = mhla_carve_floats(c, (int64_t)w->V * round_up(mhla_panels_width(&w->pk), 16));
    z.dN = mhla_carve_floats(c, square);
    z.W = mhla_carve_floats(c, square);
    z.w = mhla_carve_floats(c, keys);
    z.du = mhla_carve_floats(c, values);
    return z;
}

mhla_gated_chunk mhla_gated_at(const mhla_gated *w, int64_t x) {
    int64_t low = 0,
            high = w->N - 1; /* the last sequence that begins at x or before; empty ones begin where the next does */
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (w->first[middle] <= x)
            low = middle;
        else
            high = middle - 1;
    }
    const mhla_call *c = &w->run->call;
    const int64_t t = (x - w->first[low]) * w->C, left = sequence_tokens(c, low) - t;
    return (mhla_gated_chunk){x, low, mhla_seq_batch(c, low), mhla_seq_begin(c, low) + t,
                              (int)(left < w->C ? left : w->C)};
}

mhla_rows mhla_gated_rows(const mhla_gated_chunk *c, const void *x, mhla_dtype dtype, const mhla_strides *s,
                          int64_t head) {
    return (mhla_rows){(void *)(uintptr_t)mhla_at(x, dtype, s, c->b, c->t, head), NULL, s->token, dtype};
}

/* ---- Element by element ---- */

void mhla_gated_times(const mhla_gated *w, float *y, const float *x, const float *e, int64_t lde, int n, float alpha,
                      int add) {
    const mhla_blend p = {.n = n,
                          .cols = round_up(w->K, 16),
                          .y = y,
                          .x = x,
                          .z = e,
                          .ldy = w->ldk,
                          .ldx = w->ldk,
                          .ldz = lde,
                          .alpha = alpha,
                          .add = add};
    w->run->kernels->blend(&p);
}

/* row = x + y */
static void add_rows(const mhla_gated *w, float *row, const float *x, const float *y) {
    const mhla_blend p = {.n = 1, .cols = w->ldk, .y = row, .x = x, .r = y, .alpha = 1.0f};
    w->run->kernels->blend(&p);
}

/* Sums are of numbers of one sign, from where they begin: no difference of large sums, and -inf is never subtracted. */
static void channels_from_begin(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    memcpy(z->eb, z->g, (size_t)w->ldk * sizeof(float));
    for (int t = 1; t < n; t++) add_rows(w, z->eb + t * w->ldk, z->eb + (t - 1) * w->ldk, z->g + t * w->ldk);
    w->run->kernels->vexp(z->eb, z->eb, n * w->ldk);
}

static void channels_to_end(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    const size_t row = (size_t)w->ldk * sizeof(float);
    memset(z->ek + (n - 1) * w->ldk, 0, row);
    for (int t = n - 2; t >= 0; t--) add_rows(w, z->ek + t * w->ldk, z->ek + (t + 1) * w->ldk, z->g + (t + 1) * w->ldk);
    w->run->kernels->vexp(z->ek, z->ek, n * w->ldk);
    memcpy(z->total, z->eb + (n - 1) * w->ldk, row);
}

static void swap(float **a, float **b) {
    float *t = *a;
    *a = *b;
    *b = t;
}

void mhla_gated_decays_left(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    if (z->whole) {
        swap(&z->eb, &z->ec);
        swap(&z->qd, &z->qs);
    } else {
        channels_from_begin(w, z, n);
        mhla_gated_times(w, z->qd, z->q, z->eb, w->ldk, n, 1.0f, 0);
    }
    channels_to_end(w, z, n);
}

void mhla_gated_decays(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h) {
    const mhla_call *call = &w->run->call;
    const int n = c->n;
    const mhla_rows rows = mhla_gated_rows(c, call->decay, MHLA_F32, &call->decay_strides, h);
    if (w->channels) {
        w->run->kernels->copy_rows(z->g, w->ldk, &rows, n, w->K, NULL);
        channels_from_begin(w, z, n);
        channels_to_end(w, z, n);
        return;
    }
    for (int t = 0; t < n; t++) z->g[t] = ((const float *)rows.base)[t * rows.stride];
    z->eb[0] = z->g[0];
    for (int t = 1; t < n; t++) z->eb[t] = z->eb[t - 1] + z->g[t];
    z->ek[n - 1] = 0.0f;
    for (int t = n - 2; t >= 0; t--) z->ek[t] = z->ek[t + 1] + z->g[t + 1];
    w->run->kernels->vexp(z->eb, z->eb, n);
    w->run->kernels->vexp(z->ek, z->ek, n);
    for (int64_t j = 0; j < w->ldk; j++) z->total[j] = z->eb[n - 1];
}

void mhla_gated_decayed(const mhla_gated *w, mhla_gated_scratch *z, float *dst, const mhla_rows *rows, int n,
                        const float *e, float factor) {
    if (w->channels) {
        w->run->kernels->copy_rows(dst, w->ldk, rows, n, w->K, NULL);
        mhla_gated_times(w, dst, dst, e, w->ldk, n, factor, 0);
        return;
    }
    for (int t = 0; t < n; t++) z->scale[t] = factor * e[t];
    w->run->kernels->copy_rows(dst, w->ldk, rows, n, w->K, z->scale);
}

void mhla_gated_mask(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    for (int t = 0; t < n; t++) {
        float *row = z->L + t * w->ldc;
        for (int u = 0; u + 1 < t; u++) row[u] = row[u - w->ldc] + z->g[t];
        if (t > 0) row[t - 1] = z->g[t];
        row[t] = 0.0f;
    }
    for (int t = 0; t < n; t++) w->run->kernels->vexp(z->L + t * w->ldc, z->L + t * w->ldc, t + 1);
}

/* ---- Triangles ---- */

mhla_panels mhla_gated_score_panels(const mhla_kernels *kernels, int n) {
    mhla_panels p;
    kernels->panels(&p, n);
    p.count = (p.vectors + 1) / 2;
    p.base = p.vectors / p.count;
    p.extra = p.vectors % p.count;
    return p;
}

void mhla_gated_lower(const mhla_gated *w, float *c, const float *a, int64_t lda, const float *bT, int cols, int n) {
    const mhla_panels all = mhla_gated_score_panels(w->run->kernels, n);
    for (int i = 0; i < all.count; i++) {
        const int begin = mhla_panel_begin(&all, i), width = mhla_panel_begin(&all, i + 1) - begin;
        const int vectors = width / all.unit;
        mhla_gemm g = {.m = n - begin,
                       .n = {width, all.unit, vectors, 1, vectors, 0},
                       .store = MHLA_STORE_SET,
                       .c = c + begin * w->ldc + begin,
                       .c_row = w->ldc};
        g.f = (mhla_factor){
            .k = cols, .a = a + begin * lda, .a_row = lda, .a_k = 1, .b = bT + (int64_t)cols * begin, .b_rows = cols};
        mhla_multiply(w->run, &g);
    }
}

void mhla_gated_turn(float *out, const float *in, int64_t ld, int n) {
    for (int u = 0; u < n; u++) {
        float *row = out + (int64_t)(n - 1 - u) * ld;
        for (int t = u; t < n; t++) row[n - 1 - t] = in[t * ld + u];
    }
}

void mhla_gated_times_lower(const mhla_gated *w, float *C, const float *A, const float *B, int n, int lead) {
    mhla_gemm g = {
        .m = n, .n = w->pk, .f2_lower = 1, .f2_lead = lead, .store = MHLA_STORE_ADD, .c = C, .c_row = w->ldk};
    g.f2 = (mhla_factor){.k = n, .a = A, .a_row = w->ldc, .a_k = 1, .b = B, .b_k = w->ldk};
    w->run->kernels->gemm(&g);
}

void mhla_gated_times_turned(const mhla_gated *w, mhla_gated_scratch *z, float *C, const float *A, const float *B,
                             int n, int lead, int add) {
    mhla_gated_turn(z->turned, A, w->ldc, n);
    mhla_gemm g = {.m = n,
                   .n = w->pk,
                   .f2_lower = 1,
                   .f2_lead = lead,
                   .store = add ? MHLA_STORE_ADD : MHLA_STORE_SET,
                   .c = C + (n - 1) * w->ldk,
                   .c_row = -w->ldk};
    g.f2 = (mhla_factor){.k = n, .a = z->turned, .a_row = w->ldc, .a_k = 1, .b = B + (n - 1) * w->ldk, .b_k = -w->ldk};
    w->run->kernels->gemm(&g);
}

/* ---- Scores ---- */

void mhla_gated_score(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t key_head) {
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    const mhla_rows q = mhla_gated_rows(c, run->q, dtype, &run->call.q, key_head);
    const mhla_rows k = mhla_gated_rows(c, run->k, dtype, &run->call.k, key_head);
    run->kernels->copy_rows(z->q, w->ldk, &q, c->n, w->K, NULL);
    run->kernels->copy_rows(z->k, w->ldk, &k, c->n, w->K, NULL);
    float *scores = mhla_gated_scores_at(w, z, c->x, key_head);
    if (w->channels) {
        const mhla_rows g = mhla_gated_rows(c, run->call.decay, MHLA_F32, &run->call.decay_strides, key_head);
        run->kernels->copy_rows(z->g, w->ldk, &g, c->n, w->K, NULL);
        z->whole = mhla_gla_scores(w, z, scores, c->n);
        return;
    }
    const mhla_panels p = mhla_gated_score_panels(run->kernels, c->n);
    run->kernels->transpose(z->T, &p, z->k, w->ldk, w->K);
    mhla_gated_lower(w, scores, z->q, w->ldk, z->T, w->K, c->n);
}

typedef struct score_job {
    const mhla_gated *w;
    mhla_gated_scratch *scratch;
    mhla_gated_score_fn *score;
} score_job;

static void score_chunk(void *arg, int64_t i, int worker) {
    const score_job *job = arg;
    const mhla_gated_chunk c = mhla_gated_at(job->w, i / job->w->G);
    job->score(job->w, &job->scratch[worker], &c, i % job->w->G);
}

void mhla_gated_score_all(const mhla_gated *w, mhla_gated_scratch *scratch, mhla_gated_score_fn *score) {
    score_job job = {w, scratch, score};
    mhla_parallel(w->run->call.context, w->chunks * w->G, score_chunk, &job);
}
