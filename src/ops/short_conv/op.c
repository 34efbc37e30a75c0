/* The short convolution, forward and backward. All rows are cut into blocks and all channels into stretches; a task takes both. In
 * a block, each piece of a sequence is convolved from a list of its rows and those before: earlier tokens, the cache, or zeros. */
#include "ops/short_conv/short_conv.h"
#include "ops/tensors.h"

enum {
    BLOCK = 64,    /* rows of a block */
    STRETCH = 512, /* channels of a stretch */
    TAPS = MHLA_WIDEST_TAPS,
    MOST_PARTS = 64 /* whose sums of the weight's gradient are kept apart */
};

/* What a thread needs. */
typedef struct scratch {
    float *w, *turned; /* [W][STRETCH] taps of a stretch, and back to front */
    float *past;       /* [TAPS][STRETCH] the rows of a cache */
    float *zeros;      /* [STRETCH] */
    float *dpre;       /* [BLOCK+TAPS][STRETCH] */
} scratch;

typedef struct job {
    const mhla_short_conv_run *run;
    scratch *scratch;
    int64_t blocks, stretches, parts;
    float *dw, *db; /* [parts][W][D], [parts][D] */
} job;

static scratch carve_scratch(mhla_carver *c, int W) {
    scratch z;
    z.w = mhla_carve_floats(c, (int64_t)W * STRETCH);
    z.turned = mhla_carve_floats(c, (int64_t)W * STRETCH);
    z.past = mhla_carve_floats(c, TAPS * STRETCH);
    z.zeros = mhla_carve_floats(c, STRETCH);
    z.dpre = mhla_carve_floats(c, (BLOCK + TAPS) * STRETCH);
    if (c->base) memset(z.zeros, 0, sizeof *z.zeros * STRETCH);
    return z;
}

static job carve_job(mhla_carver *c, const mhla_short_conv_run *run, int backward) {
    job j = {.run = run, .blocks = (run->rows + BLOCK - 1) / BLOCK, .stretches = (run->D + STRETCH - 1) / STRETCH};
    j.parts = backward && j.blocks > MOST_PARTS ? MOST_PARTS : j.blocks;
    if (backward) {
        j.dw = mhla_carve_floats(c, j.parts * run->W * run->D);
        j.db = mhla_carve_floats(c, j.parts * run->D);
    }
    j.scratch = mhla_carve(c, sizeof *j.scratch * (size_t)run->threads);
    for (int i = 0; i < run->threads; i++) {
        const scratch one = carve_scratch(c, run->W);
        if (j.scratch) j.scratch[i] = one;
    }
    return j;
}

/* Rows [a, b) of sequence s, channels [c, c + cols). */
typedef struct piece {
    int64_t s, a, b, c;
    int cols;
} piece;

/* The next piece of rows [a, end), of sequence *s or a later one. */
static piece next_piece(const mhla_short_conv_run *run, int64_t *s, int64_t a, int64_t end, int64_t stretch) {
    while (mhla_short_conv_end(&run->call, *s) <= a) (*s)++; /* empty ones too */
    const int64_t stop = mhla_short_conv_end(&run->call, *s), c = stretch * STRETCH;
    return (piece){*s, a, stop < end ? stop : end, c, run->D - c < STRETCH ? (int)(run->D - c) : STRETCH};
}

static void load_taps(const mhla_short_conv_run *run, scratch *z, int64_t c, int cols) {
    const int W = run->W;
    for (int i = 0; i < cols; i++)
        for (int j = 0; j < W; j++)
            z->w[j * STRETCH + i] = z->turned[(W - 1 - j) * STRETCH + i] = run->w[(c + i) * W + j];
}

/* The rows that rows [a, a + n) of a piece read: list [n + W - 1]. */
static void list_rows(const mhla_short_conv_run *run, scratch *z, const piece *p, int64_t n, const float **list) {
    const int W = run->W;
    const int64_t begin = mhla_short_conv_begin(&run->call, p->s);
    const float *cache = p->a - (W - 1) < begin ? mhla_short_conv_before(run, p->s) : NULL;
    const float *past = run->pasts ? run->pasts[p->s] : NULL;
    for (int64_t i = 0; i < n + W - 1; i++) {
        const int64_t r = p->a - (W - 1) + i;
        if (r >= begin) {
            list[i] = run->x + mhla_row_offset(&run->call, &run->call.x, r) + p->c;
        } else if (past) {
            list[i] = past + (W - 1 + r - begin) * run->D + p->c;
        } else if (cache == NULL) {
            list[i] = z->zeros;
        } else {
            float *row = z->past + (W + r - begin) * STRETCH; /* column W + r - begin, 1 or more */
            for (int e = 0; e < p->cols; e++) row[e] = cache[(p->c + e) * W + W + r - begin];
            list[i] = row;
        }
    }
}

/* ---- Forward ---- */

static void forward_task(void *arg, int64_t i, int worker) {
    const job *j = arg;
    const mhla_short_conv_run *run = j->run;
    const mhla_short_conv_call *c = &run->call;
    scratch *z = &j->scratch[worker];
    const int64_t stretch = i % j->stretches, first = i / j->stretches * BLOCK;
    const int64_t end = first + BLOCK < run->rows ? first + BLOCK : run->rows;
    int64_t s = mhla_short_conv_sequence(c, first);
    for (int64_t a = first; a < end;) {
        const piece p = next_piece(run, &s, a, end, stretch);
        const float *list[BLOCK + TAPS];
        if (a == first) load_taps(run, z, p.c, p.cols);
        list_rows(run, z, &p, p.b - p.a, list);
        const mhla_taps t = {.n = (int)(p.b - p.a),
                             .W = run->W,
                             .cols = p.cols,
                             .ld = STRETCH,
                             .rows = list,
                             .w = z->w,
                             .bias = c->bias ? c->bias + p.c : NULL,
                             .activation = c->activation,
                             .y = run->y + mhla_row_offset(c, &c->y, p.a) + p.c,
                             .ldy = c->y.token,
                             .accumulate = c->accumulate};
        run->kernels->taps(&t);
        a = p.b;
    }
}

/* The last W inputs of a sequence, when all rows have been read. The cache may be that of before: it is moved to the left. */
static void cache_task(void *arg, int64_t s, int worker) {
    (void)worker;
    const mhla_short_conv_run *run = ((const job *)arg)->run;
    const mhla_short_conv_call *c = &run->call;
    const int W = run->W;
    const int64_t begin = mhla_short_conv_begin(c, s), T = mhla_short_conv_end(c, s) - begin;
    const float *before = mhla_short_conv_before(run, s);
    float *after = c->final_cache + s * run->D * W;
    for (int j = 0; j < W; j++) {
        const int64_t t = T - W + j;
        const float *x = t >= 0 ? run->x + mhla_row_offset(c, &c->x, begin + t) : NULL;
        for (int64_t d = 0; d < run->D; d++) after[d * W + j] = x ? x[d] : before ? before[d * W + T + j] : 0.0f;
    }
}

/* The same of a stream, whose W - 1 inputs are rows. */
static void past_task(void *arg, int64_t s, int worker) {
    (void)worker;
    const mhla_short_conv_run *run = ((const job *)arg)->run;
    const mhla_short_conv_call *c = &run->call;
    const int64_t begin = mhla_short_conv_begin(c, s), T = mhla_short_conv_end(c, s) - begin, n = run->W - 1;
    const size_t row = sizeof(float) * (size_t)run->D;
    for (int64_t j = 0; j < n; j++) {
        const int64_t t = T - n + j;
        if (t >= 0)
            memcpy(run->pasts[s] + j * run->D, run->x + mhla_row_offset(c, &c->x, begin + t), row);
        else
            memmove(run->pasts[s] + j * run->D, run->pasts[s] + (T + j) * run->D, row);
    }
}

static size_t forward_bytes(const mhla_short_conv_run *run) {
    mhla_carver c = {0};
    carve_job(&c, run, 0);
    return c.used;
}

static mhla_status forward(mhla_short_conv_run *run, void *ws) {
    void *own;
    MHLA_TRY(take_workspace(&run->ws, &own, ws, forward_bytes(run)));
    mhla_carver c = {.base = run->ws};
    job j = carve_job(&c, run, 0);
    const int64_t sequences = mhla_short_conv_sequences(&run->call);
    mhla_parallel(run->call.context, j.blocks * j.stretches, forward_task, &j);
    if (run->pasts)
        mhla_parallel(run->call.context, sequences, past_task, &j);
    else if (run->call.final_cache)
        mhla_parallel(run->call.context, sequences, cache_task, &j);
    mhla_free(own);
    return MHLA_OK;
}

size_t mhla_short_conv_forward_workspace(const mhla_short_conv_call *call) {
    mhla_short_conv_run run;
    return mhla_short_conv_check(&run, call) == MHLA_OK ? forward_bytes(&run) : 0;
}

mhla_status mhla_short_conv_forward(const mhla_short_conv_call *call, float *y, const float *x, const float *w,
                                    void *ws) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check_forward(&run, call, y, x, w));
    return forward(&run, ws);
}

mhla_status mhla_short_conv_continue(const mhla_short_conv_call *call, float *const *pasts, float *y, const float *x,
                                     const float *w, void *ws) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check_forward(&run, call, y, x, w));
    run.pasts = pasts;
    return forward(&run, ws);
}

/* ---- Backward ----
 *
 * y_t = activation(pre_t), pre_t = bias + sum_j w_j x_{t-W+1+j}:  dpre = dy activation'(pre), dw_j += sum_t dpre_t x_{t-W+1+j},
 * dx_r = sum_j w_j dpre_{r+W-1-j}: a convolution with the taps back to front. A final cache hands dfinal_j to input T-W+j. */

/* out [n][ldy] (=, +=) the gradient of inputs from row `from` of the sequence's rows [begin, end) on; dpre holds rows from
 * `known` on. Rows before the begin are those of the cache. */
static void inputs_backward(const mhla_short_conv_run *run, const scratch *z, const piece *p, int64_t from, int n,
                            float *out, int64_t ldy, int add) {
    const int64_t begin = mhla_short_conv_begin(&run->call, p->s), end = mhla_short_conv_end(&run->call, p->s);
    const float *list[BLOCK + TAPS];
    for (int i = 0; i < n + run->W - 1; i++) {
        const int64_t r = from + i;
        list[i] = r >= begin && r < end ? z->dpre + (r - p->a) * STRETCH : z->zeros;
    }
    const mhla_taps t = {.n = n,
                         .W = run->W,
                         .cols = p->cols,
                         .ld = STRETCH,
                         .rows = list,
                         .w = z->turned,
                         .y = out,
                         .ldy = ldy,
                         .accumulate = add};
    run->kernels->taps(&t);
}

/* What the final cache hands to rows [a, b). */
static void final_backward(const mhla_short_conv_run *run, const piece *p) {
    const mhla_short_conv_grads *g = &run->grads;
    const int W = run->W;
    const int64_t end = mhla_short_conv_end(&run->call, p->s);
    if (g->dfinal_cache == NULL) return;
    for (int64_t r = end - W > p->a ? end - W : p->a; r < p->b; r++) {
        float *dx = g->dx + mhla_row_offset(&run->call, &g->dx_strides, r) + p->c;
        const float *d = g->dfinal_cache + (p->s * run->D + p->c) * W + (r - (end - W));
        for (int e = 0; e < p->cols; e++) dx[e] += d[(int64_t)e * W];
    }
}

/* Adds to the gradient of the cache what the convolution hands to it; z->past is free by now. */
static void cache_backward(const mhla_short_conv_run *run, const scratch *z, const piece *p) {
    const int W = run->W;
    if (run->grads.dinitial_cache == NULL || W == 1) return;
    inputs_backward(run, z, p, p->a - (W - 1), W - 1, z->past, STRETCH, 0);
    for (int j = 1; j < W; j++)
        for (int e = 0; e < p->cols; e++)
            run->grads.dinitial_cache[(p->s * run->D + p->c + e) * W + j] += z->past[(j - 1) * STRETCH + e];
}

static void back_piece(const job *j, scratch *z, const piece *p, float *dw, float *db) {
    const mhla_short_conv_run *run = j->run;
    const mhla_short_conv_call *c = &run->call;
    const int64_t end = mhla_short_conv_end(c, p->s), n = p->b - p->a;
    const int64_t reach = end - p->b < run->W - 1 ? end - p->b : run->W - 1; /* rows after the piece that read it */
    const float *list[BLOCK + 2 * TAPS];
    list_rows(run, z, p, n + reach, list);
    mhla_taps t = {.n = (int)(n + reach),
                   .W = run->W,
                   .cols = p->cols,
                   .ld = STRETCH,
                   .rows = list,
                   .w = z->w,
                   .bias = c->bias ? c->bias + p->c : NULL,
                   .activation = c->activation,
                   .y = z->dpre,
                   .ldy = STRETCH,
                   .dy = run->dy + mhla_row_offset(c, &c->y, p->a) + p->c,
                   .lddy = c->y.token};
    run->kernels->taps(&t);
    t.n = (int)n;
    t.dw = dw;
    t.dbias = db;
    t.ld = run->D;
    run->kernels->taps_weight(&t);
    if (run->grads.dx) {
        inputs_backward(run, z, p, p->a, (int)n,
                        run->grads.dx + mhla_row_offset(c, &run->grads.dx_strides, p->a) + p->c,
                        run->grads.dx_strides.token, run->grads.accumulate);
        final_backward(run, p);
    }
    if (p->a == mhla_short_conv_begin(c, p->s)) cache_backward(run, z, p);
}

static void back_task(void *arg, int64_t i, int worker) {
    const job *j = arg;
    const mhla_short_conv_run *run = j->run;
    scratch *z = &j->scratch[worker];
    const int64_t stretch = i % j->stretches, part = i / j->stretches, column = stretch * STRETCH;
    const int cols = run->D - column < STRETCH ? (int)(run->D - column) : STRETCH;
    float *dw = j->dw + part * run->W * run->D + column, *db = j->db + part * run->D + column;
    load_taps(run, z, column, cols);
    memset(db, 0, sizeof *db * (size_t)cols);
    for (int k = 0; k < run->W; k++) memset(dw + k * run->D, 0, sizeof *dw * (size_t)cols);
    for (int64_t block = part * j->blocks / j->parts; block < (part + 1) * j->blocks / j->parts; block++) {
        const int64_t first = block * BLOCK, end = first + BLOCK < run->rows ? first + BLOCK : run->rows;
        int64_t s = mhla_short_conv_sequence(&run->call, first);
        for (int64_t a = first; a < end;) {
            const piece p = next_piece(run, &s, a, end, stretch);
            back_piece(j, z, &p, dw, db);
            a = p.b;
        }
    }
}

/* dw and dbias of a stretch: the parts in their order. */
static void sum_task(void *arg, int64_t stretch, int worker) {
    (void)worker;
    const job *j = arg;
    const mhla_short_conv_run *run = j->run;
    const mhla_short_conv_grads *g = &run->grads;
    const int64_t W = run->W, D = run->D;
    for (int64_t d = stretch * STRETCH; d < D && d < (stretch + 1) * STRETCH; d++) {
        for (int64_t k = 0; k <= W; k++) { /* the last is the bias */
            float *to = k < W ? g->dw : g->dbias, sum = 0.0f;
            if (to == NULL) continue;
            to += k < W ? d * W + k : d;
            for (int64_t part = 0; part < j->parts; part++)
                sum += k < W ? j->dw[(part * W + k) * D + d] : j->db[part * D + d];
            *to = g->accumulate ? *to + sum : sum;
        }
    }
}

/* The gradient of the cache before: what the final cache hands through; the pieces add the rest. */
static void begin_cache(void *arg, int64_t s, int worker) {
    (void)worker;
    const mhla_short_conv_run *run = ((const job *)arg)->run;
    const mhla_short_conv_grads *g = &run->grads;
    const int W = run->W;
    const int64_t T = mhla_short_conv_end(&run->call, s) - mhla_short_conv_begin(&run->call, s);
    for (int64_t d = s * run->D; d < (s + 1) * run->D; d++)
        for (int j = 0; j < W; j++) {
            float *to = g->dinitial_cache + d * W + j;
            const float through = g->dfinal_cache && j >= T ? g->dfinal_cache[d * W + j - T] : 0.0f;
            *to = g->accumulate ? *to + through : through;
        }
}

static size_t backward_bytes(const mhla_short_conv_run *run) {
    mhla_carver c = {0};
    carve_job(&c, run, 1);
    return c.used;
}

size_t mhla_short_conv_backward_workspace(const mhla_short_conv_call *call) {
    mhla_short_conv_run run;
    return mhla_short_conv_check(&run, call) == MHLA_OK ? backward_bytes(&run) : 0;
}

mhla_status mhla_short_conv_backward(const mhla_short_conv_call *call, const mhla_short_conv_grads *grads,
                                     const float *dy, const float *x, const float *w, void *ws) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check_backward(&run, call, grads, dy, x, w));
    void *own;
    MHLA_TRY(take_workspace(&run.ws, &own, ws, backward_bytes(&run)));
    mhla_carver c = {.base = run.ws};
    job j = carve_job(&c, &run, 1);
    const mhla_context *context = run.call.context;
    if (run.grads.dinitial_cache) mhla_parallel(context, mhla_short_conv_sequences(&run.call), begin_cache, &j);
    mhla_parallel(context, j.parts * j.stretches, back_task, &j);
    mhla_parallel(context, j.stretches, sum_task, &j);
    mhla_free(own);
    return MHLA_OK;
}
