/* The gradient of the causal operators. Two walks over a unit, on transposed summaries:
 *
 *   forward walk, group by group: S and P again, then per block dq, the block's own part of dk and dv, and
 *   D = dP; the products <D, S> give dmix.
 *   backward walk: dS of every chunk from the D after it, then the summaries' part of dk and dv, and the gradient of
 *   the initial state.
 *
 * Formulas are in README.md, with the names used here: a = scale * do / den, w = m_ii, e = scale * dden. */
#include <limits.h>

#include "ops/causal/backward.h"

/* Of a task of dmix: chunks of the group, where threads share it, and of the list; fewer where threads would be idle */
enum { ROWS = 12, COLUMNS = 32, FEW_ROWS = 6, FEW_COLUMNS = 8 };

typedef struct job {
    mhla_causal_work w;
    int units, workers;
    mhla_back_unit *unit;
    mhla_back_scratch *scratch; /* [workers] */
    int slots;                  /* units between two reductions of dmix */
    float *dmix;                /* [slots][mixes][M,M] or NULL */
    int64_t first;              /* unit number of task 0 */
    mhla_causal_crew crew;
    int64_t *starts;     /* [units + 1], of the crew */
    mhla_back_unit *now; /* [crew.units] */
} job;

/* ---- Workspace ---- */

static int64_t unit_count(const mhla_run *run) { return mhla_seq_count(&run->call) * run->plan->d.kv_heads; }

/* Blocks of `tokens` tokens after `past`. */
static int64_t count_blocks(const mhla_causal_work *w, int64_t tokens) {
    if (tokens == 0) return 0;
    if (w->C > INT_MAX) return (tokens - 1) / w->block + 1;
    const int64_t past = w->run->call.past, first = past / w->C, last = (past + tokens - 1) / w->C;
    if (!w->running) return last - first + 1;
    const int64_t per = (w->C - 1) / w->block + 1, head = w->C - past % w->C;
    if (tokens <= head) return (tokens - 1) / w->block + 1;
    const int64_t rest = tokens - head;
    return (head - 1) / w->block + 1 + rest / w->C * per + (rest % w->C + w->block - 1) / w->block;
}

static void carve_unit(mhla_carver *c, const mhla_causal_work *w, mhla_back_unit *u) {
    const int wants_dmix = w->run->grads.dmix != NULL || w->run->dO == NULL; /* asked for its size only: yes */
    mhla_causal_unit_carve(c, w, &u->u, wants_dmix && w->run->plan->d.kind != MHLA_KIND_LINEAR_CAUSAL);
    const int64_t most = count_blocks(w, w->longest) + 1;
    const int64_t chunks = w->running ? (w->C > INT_MAX ? 1 : (w->longest - 1) / w->C + 2) : 0;
    u->D = mhla_carve(c, (size_t)w->mixes * sizeof *u->D);
    u->Dc = mhla_carve(c, (size_t)w->mixes * sizeof *u->Dc);
    for (int r = 0; r < w->mixes; r++) {
        float *d = mhla_carve_floats(c, mhla_list_floats(&w->shape, most));
        float *dc = chunks ? mhla_carve_floats(c, mhla_list_floats(&w->shape, chunks)) : NULL;
        if (c->base == NULL) continue;
        u->D[r] = (mhla_summary_list){d, most};
        u->Dc[r] = (mhla_summary_list){dc, chunks};
    }
    u->diagonal = mhla_carve_floats(c, (int64_t)w->group * w->ratio);
    u->dots = mhla_carve_floats(c, w->running ? (int64_t)w->group * w->mixes : 0);
    u->products = mhla_carve_floats(c, (int64_t)w->mixes * (w->group + 1) * (w->cap > w->group ? w->cap : w->group));
    u->W = mhla_carve_floats(c, (int64_t)w->mixes * w->group * ((most > chunks ? most : chunks) + w->group));
    u->T = mhla_carve_floats(c, (w->group + 1) * w->P_row);
}

static void carve_scratch(mhla_carver *c, const mhla_causal_work *w, mhla_back_scratch *b) {
    mhla_causal_scratch_carve(c, w, &b->x);
    const int64_t n = w->block, keys = n * w->Kp + 16, values = n * w->Vw + 16;
    mhla_panels p = mhla_causal_score_panels(w->run->kernels, w->block);
    b->a = mhla_carve_floats(c, values);
    b->vT = mhla_carve_floats(c, (int64_t)w->Vw * mhla_panels_width(&p));
    b->ds = mhla_carve_floats(c, n * b->x.ld_scores);
    b->turned = mhla_carve_floats(c, n * b->x.ld_scores);
    b->dq = mhla_carve_floats(c, keys);
    b->dk = mhla_carve_floats(c, keys);
    b->plain = mhla_carve_floats(c, keys);
    b->dk2 = mhla_carve_floats(c, keys);
    b->dv = mhla_carve_floats(c, values);
    b->dS = mhla_carve_floats(c, (int64_t)w->shape.K * w->Vw);
}

/* crew 0: for whole units */
static void carve(mhla_carver *c, job *j, const mhla_run *run, int64_t crew) {
    mhla_causal_work_make(&j->w, run, 1, crew);
    const mhla_causal_work *w = &j->w;
    const int64_t all = unit_count(run);
    j->workers = run->threads;
    j->units = crew ? (int)crew : j->workers;
    j->slots = crew ? (int)crew : (int)(all < 4 * j->workers ? all : 4 * j->workers);
    j->unit = mhla_carve(c, (size_t)j->units * sizeof *j->unit);
    j->scratch = mhla_carve(c, (size_t)j->workers * sizeof *j->scratch);
    j->starts = mhla_carve(c, (size_t)(j->units + 1) * sizeof *j->starts);
    j->dmix = run->plan->d.kind == MHLA_KIND_LINEAR_CAUSAL
                  ? NULL
                  : mhla_carve_floats(c, (int64_t)j->slots * w->mixes * w->M * w->M);
    mhla_back_unit unit;
    mhla_back_scratch scratch;
    for (int i = 0; i < j->units; i++) carve_unit(c, w, c->base ? &j->unit[i] : &unit);
    for (int i = 0; i < j->workers; i++) carve_scratch(c, w, c->base ? &j->scratch[i] : &scratch);
}

/* Whole units and crews have the same memory, one after the other. */
size_t mhla_causal_backward_workspace(const mhla_run *run) {
    const int64_t all = unit_count(run), whole = mhla_causal_whole_units(run);
    mhla_carver wholes = {0}, crews = {0};
    job j;
    if (whole > 0) carve(&wholes, &j, run, 0);
    if (whole < all) carve(&crews, &j, run, mhla_causal_crew_size(run, all - whole));
    return wholes.used > crews.used ? wholes.used : crews.used;
}

mhla_status mhla_causal_check_grads(const mhla_run *run) {
    const mhla_grads *g = &run->grads;
    const int normed = run->plan->d.denominator != MHLA_DEN_NONE;
    if (!normed && (g->dinitial_z || g->dfinal_z))
        return mhla_fail(MHLA_EINVAL, "dinitial_z or dfinal_z is given but there is no denominator");
    if (run->call.initial_state == NULL && (g->dinitial_state || g->dinitial_z))
        return mhla_fail(MHLA_EINVAL, "dinitial_state or dinitial_z is given but initial_state is NULL");
    return MHLA_OK;
}

/* ---- dmix ---- */

/* P_i = sum_b m[i,b] S_b: dm[i,b] = <D_i, S_b>. Products of `m` rows of x and `n` rows of y, both whole vectors. The
 * order of the sum is fixed by the shape alone. */
static void products(const mhla_causal_work *w, float *c, int64_t ldc, const mhla_summary_list *x, int64_t x_first,
                     int m, const mhla_summary_list *y, int64_t y_first, int n) {
    const mhla_summary_shape *s = &w->shape;
    const int batch = 16; /* pieces at once, so that the rows of both sides stay in the second cache */
    int add = 0;
    for (int i = 0; i < s->n.count + s->nz.count; i++) {
        const int z = i >= s->n.count, rows = z ? 1 : s->rows;
        for (int j = 0; j < rows; j += batch) {
            const mhla_piece p = mhla_summary_piece(s, z ? s->rows * s->n.count + i - s->n.count : i * s->rows + j);
            const int count = rows - j < batch ? rows - j : batch;
            w->run->kernels->dots_pieces(c, ldc, mhla_list_at(x, &p, x_first), p.width, (x->cap + 1) * p.width, m,
                                         mhla_list_at(y, &p, y_first), p.width, (y->cap + 1) * p.width, n, count,
                                         p.width, add);
            add = 1;
        }
    }
}

static void add_dmix(const mhla_back_unit *bu, int r, int64_t i, int64_t b, float value) {
    const int64_t M = bu->u.w->M, distance = i - b;
    float *m = bu->dmix + (int64_t)(bu->u.w->mixes > 1 ? r : 0) * M * M;
    m[i < M ? i * M + b : (M - 1) * M + (distance < M ? M - 1 - distance : 0)] += value;
}

/* w S_open is part of the first block's P: dw += <D, S_open>. */
static void open_products(const mhla_back_unit *bu) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const mhla_call *c = &w->run->call;
    const int64_t i = u->grp.chunk0, e = u->entries0 - 1, N0 = mhla_state_chunks(w->run->plan, c->past);
    const int64_t at = ((u->s * N0 + e) * w->run->plan->d.kv_heads + u->g) * w->shape.K;
    for (int r = 0; r < w->mixes; r++) {
        float sum = 0.0f;
        for (int j = 0; j < w->shape.pieces; j++) {
            const mhla_piece p = mhla_summary_piece(&w->shape, j);
            float open[64], dot;
            mhla_piece_load(&w->shape, &p, open, c->initial_state + at * w->shape.V,
                            c->initial_z ? c->initial_z + at : NULL);
            w->run->kernels->row_dots(&dot, open, 0, mhla_list_at(&bu->D[r], &p, bu->blocks - 1), 0, 1, p.width);
            sum += dot;
        }
        add_dmix(bu, r, i, i, sum);
    }
}

/* Direct: chunks of the group against rows of the list. Row x of the result is block n-1-x. Each pair of chunks has an element of
 * dmix to itself, unless chunks leave the window: those are added later, in order. */
typedef struct product_cut {
    int rows, columns; /* of a task */
    int64_t down, across;
} product_cut;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static product_cut cut_products(const job *j, const mhla_causal_unit *u) {
    product_cut c = {j->crew.split ? ROWS : u->grp.n, COLUMNS, 0, 0};
    const int64_t tasks = ceil_div(u->grp.n, ROWS) * ceil_div(u->count - 1, COLUMNS) * j->crew.units;
    if (j->crew.split && tasks < 4 * (int64_t)j->workers) c.rows = FEW_ROWS, c.columns = FEW_COLUMNS;
    c.down = ceil_div(u->grp.n, c.rows);
    c.across = ceil_div(u->count - 1, c.columns);
    return c;
}
static int64_t count_products(const void *arg, int unit) {
    const job *j = arg;
    const mhla_causal_unit *u = &j->now[unit].u;
    if (!u->live) return 0;
    const product_cut c = cut_products(j, u);
    return c.down * c.across;
}
static void store_products(mhla_back_unit *bu, int x0, int x1, int64_t y0, int64_t y1) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    for (int r = 0; r < w->mixes; r++)
        for (int x = x0; x < x1; x++) {
            const int64_t i = u->grp.chunk0 + x;
            const float *row = bu->products + ((int64_t)r * (w->group + 1) + u->grp.n - 1 - x) * w->cap;
            for (int64_t y = y0; y < y1 && u->base + y < i; y++) add_dmix(bu, r, i, u->base + y, row[y]);
        }
}
static void products_task(void *arg, int unit, int64_t task, int worker) {
    (void)worker;
    job *j = arg;
    mhla_back_unit *bu = &j->now[unit];
    const mhla_causal_work *w = &j->w;
    const mhla_causal_unit *u = &bu->u;
    const product_cut cut = cut_products(j, u);
    const int n = u->grp.n, x0 = (int)(task / cut.across) * cut.rows, x1 = x0 + cut.rows < n ? x0 + cut.rows : n;
    const int64_t first = bu->blocks - (bu->done + n), y0 = task % cut.across * cut.columns;
    const int64_t last = u->grp.chunk0 + n - 1 - x0 - u->base; /* of the rows that chunk n-1-x0 reads */
    int64_t y1 = y0 + cut.columns < u->count - 1 ? y0 + cut.columns : u->count - 1;
    if (y1 > last) y1 = last;
    if (y1 <= y0) return;
    for (int r = 0; r < w->mixes; r++)
        products(w, bu->products + ((int64_t)r * (w->group + 1) + x0) * w->cap + y0, w->cap, &bu->D[r], first + x0,
                 x1 - x0, &u->S, y0, (int)(y1 - y0));
    if (!w->clamp) store_products(bu, n - x1, n - x0, y0, y1);
}

/* Running: P_x = ... + w R_x: dw += <D_x, R_x>, a block to a task, into products; where the chunk ends, its row of dmix. */
static int64_t count_prefixes(const void *arg, int unit) {
    const mhla_causal_unit *u = &((const job *)arg)->now[unit].u;
    return u->live ? u->grp.n + u->grp.ends : 0;
}
static void prefixes_task(void *arg, int unit, int64_t x, int worker) {
    (void)worker;
    job *j = arg;
    mhla_back_unit *bu = &j->now[unit];
    const mhla_causal_work *w = &j->w;
    const mhla_causal_unit *u = &bu->u;
    const int n = u->grp.n;
    const int64_t i = u->grp.chunk0;
    for (int r = 0; r < w->mixes; r++) {
        if (x < n) {
            products(w, &bu->dots[r * w->group + x], 1, &bu->D[r], bu->blocks - (bu->done + n) + n - 1 - x, 1, &u->R, x,
                     1);
        } else if (i > u->base) {
            float *row = bu->products;
            products(w, row, w->cap, &bu->Dc[r], bu->chunk_hi - 1 - i, 1, &u->S, 0, (int)(i - u->base));
            for (int64_t b = u->base; b < i; b++) add_dmix(bu, r, i, b, row[b - u->base]);
        }
    }
}

/* What several blocks add to one element, block by block, so that the size of groups does not show. */
static void finish_dmix(mhla_back_unit *bu) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    for (int x = 0; x < u->grp.n; x++) {
        const int64_t i = mhla_causal_chunk(u, x);
        for (int r = 0; r < w->ratio; r++) add_dmix(bu, r, i, i, bu->diagonal[x * w->ratio + r]);
        for (int r = 0; r < w->mixes && w->running; r++) add_dmix(bu, r, i, i, bu->dots[r * w->group + x]);
        if (x == 0 && bu->done == 0 && u->open && !w->running) open_products(bu);
    }
    if (w->clamp && !w->running) store_products(bu, 0, u->grp.n, 0, u->count - 1);
}

static void group_dmix(job *j) {
    if (j->w.running)
        mhla_causal_crew_run(&j->crew, count_prefixes, prefixes_task, j);
    else
        mhla_causal_crew_run(&j->crew, count_products, products_task, j);
    for (int i = 0; i < j->crew.units; i++)
        if (j->now[i].u.live) finish_dmix(&j->now[i]);
}

/* ---- Tasks of the forward walk ---- */

static int64_t count_group(const void *arg, int unit) {
    const mhla_causal_unit *u = &((const job *)arg)->now[unit].u;
    return u->live ? u->grp.n : 0;
}
static int64_t count_pieces(const void *arg, int unit) {
    const job *j = arg;
    return j->now[unit].u.live ? mhla_causal_piece_tasks(&j->w) : 0;
}
static int64_t all_pieces(const void *arg, int unit) {
    (void)unit;
    return mhla_causal_piece_tasks(&((const job *)arg)->w);
}
static int64_t one_each(const void *arg, int unit) {
    (void)arg;
    (void)unit;
    return 1;
}

/* Pieces of task i: from *p on. */
static int64_t piece_range(const mhla_causal_work *w, int64_t i, int64_t *p) {
    *p = i * MHLA_CAUSAL_PIECES;
    return *p + MHLA_CAUSAL_PIECES < w->shape.pieces ? *p + MHLA_CAUSAL_PIECES : w->shape.pieces;
}

static void load_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    job *j = arg;
    int64_t p;
    for (const int64_t end = piece_range(&j->w, i, &p); p < end; p++) mhla_causal_load(&j->now[unit].u, (int)p);
}

static void summarise_task(void *arg, int unit, int64_t i, int worker) {
    job *j = arg;
    mhla_causal_summarise(&j->now[unit].u, (int)i, &j->scratch[worker].x);
}

static void mix_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    job *j = arg;
    int64_t p;
    for (const int64_t end = piece_range(&j->w, i, &p); p < end; p++) mhla_causal_mix(&j->now[unit].u, (int)p);
}

static void block_task(void *arg, int unit, int64_t i, int worker) {
    job *j = arg;
    mhla_causal_block_backward(&j->now[unit], &j->scratch[worker], (int)i);
}

/* Running: D of the chunk is the sum over its blocks. */
static void collect_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    job *j = arg;
    mhla_back_unit *bu = &j->now[unit];
    const mhla_causal_work *w = &j->w;
    const mhla_causal_group *g = &bu->u.grp;
    const int64_t row = bu->chunk_hi - 1 - g->chunk0;
    int64_t k;
    for (const int64_t end = piece_range(w, i, &k); k < end; k++) {
        const mhla_piece p = mhla_summary_piece(&w->shape, (int)k);
        for (int r = 0; r < w->mixes; r++) {
            float *sum = mhla_list_at(&bu->Dc[r], &p, row);
            if (g->starts) memset(sum, 0, (size_t)p.width * sizeof *sum);
            for (int x = 0; x < g->n; x++)
                w->run->kernels->axpy(sum, 1.0f, mhla_list_at(&bu->D[r], &p, bu->blocks - 1 - bu->done - x), p.width);
        }
    }
}

/* ---- Backward walk: dS_b = sum_{i>b} m[i,b] dP_i + dfinal ---- */

static void add_final(const mhla_back_unit *bu, const mhla_piece *p, float *to, int64_t b) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_run *run = u->w->run;
    const mhla_grads *gr = &run->grads;
    if (gr->dfinal_state == NULL && gr->dfinal_z == NULL) return;
    int64_t entries, first;
    mhla_causal_list(run->plan, run->call.past + u->T, &entries, &first);
    if (u->w->C > INT_MAX) first = b;
    const int64_t N1 = mhla_state_chunks(run->plan, run->call.past + run->call.tokens), e = b > first ? b - first : 0;
    const int64_t at = ((u->s * N1 + e) * run->plan->d.kv_heads + u->g) * u->w->shape.K;
    float d[64];
    mhla_piece_load(&u->w->shape, p, d, gr->dfinal_state ? gr->dfinal_state + at * u->w->shape.V : NULL,
                    gr->dfinal_z ? gr->dfinal_z + at : NULL);
    run->kernels->axpy(to, 1.0f, d, p->width);
}

static void store_initial(const mhla_back_unit *bu, const mhla_piece *p, const float *from, int64_t b) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_run *run = u->w->run;
    const mhla_grads *gr = &run->grads;
    const int64_t N0 = mhla_state_chunks(run->plan, run->call.past);
    const int64_t at = ((u->s * N0 + b - u->first0) * run->plan->d.kv_heads + u->g) * u->w->shape.K;
    mhla_piece_store(&u->w->shape, p, from, gr->dinitial_state ? gr->dinitial_state + at * u->w->shape.V : NULL,
                     gr->dinitial_z ? gr->dinitial_z + at : NULL, gr->accumulate);
}

/* Rows of D (direct) or Dc (running) that chunks [.., top] read densely: those of chunks > top. */
static int64_t later_rows(const mhla_back_unit *bu) {
    const int64_t all = bu->blocks == 0 ? 0 : bu->chunk_hi - bu->first_chunk, later = bu->chunk_hi - 1 - bu->top;
    return later < all ? later : all;
}

/* Those of row x of T. */
static void back_weights_task(void *arg, int unit, int64_t x, int worker) {
    (void)worker;
    const mhla_back_unit *bu = &((const job *)arg)->now[unit];
    const mhla_causal_unit *u = &bu->u;
    const int64_t later = later_rows(bu), ld = later + bu->rows - bu->tail;
    for (int r = 0; r < u->w->mixes; r++) {
        float *row = bu->W + (int64_t)r * bu->rows * ld + x * ld;
        for (int64_t k = bu->tail; k < later + x; k++) {
            const int64_t i = bu->chunk_hi - 1 - k; /* chunk of row k */
            if (i < bu->first_chunk) break;
            row[k - bu->tail] = mhla_causal_unit_weight(u, r, i, bu->top - x);
        }
    }
}
static int64_t count_back_rows(const void *arg, int unit) {
    const mhla_back_unit *bu = &((const job *)arg)->now[unit];
    return bu->u.live && (bu->starts || !bu->u.w->running) ? bu->rows : 0;
}

/* dS of `rows` chunks top, top-1, ... into T rows 0.. (running: one chunk, into the carried row) */
static void back_mix(const mhla_back_unit *bu, const mhla_piece *p) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const int64_t later = later_rows(bu), all = bu->blocks == 0 ? 0 : bu->chunk_hi - bu->first_chunk;
    const int64_t ld = later + bu->rows - bu->tail;
    const int inside = (int)(all - later < bu->rows - 1 ? all - later : bu->rows - 1);
    float *T = bu->T + (w->running ? w->group : 0) * w->P_row + p->at;
    for (int r = 0; r < w->mixes; r++) {
        const mhla_summary_list *D = w->running ? &bu->Dc[r] : &bu->D[r];
        const float *W = bu->W + (int64_t)r * bu->rows * ld;
        mhla_gemm g = {.m = bu->rows,
                       .n = p->n,
                       .store = r ? MHLA_STORE_ADD : MHLA_STORE_SET,
                       .c = T,
                       .c_row = w->P_row,
                       .f2_lower = 1,
                       .f2_lead = 0};
        g.f = (mhla_factor){.k = (int)(later - bu->tail),
                            .a = W,
                            .a_row = ld,
                            .a_k = 1,
                            .b = mhla_list_at(D, p, bu->tail),
                            .b_k = p->width};
        g.f2 = (mhla_factor){.k = inside,
                             .a = W + later - bu->tail,
                             .a_row = ld,
                             .a_k = 1,
                             .b = mhla_list_at(D, p, later),
                             .b_k = p->width};
        w->run->kernels->gemm(&g);
    }
    for (int x = 0; x < bu->rows; x++) add_final(bu, p, T + x * w->P_row, bu->top - x);
}

static void back_direct(const mhla_back_unit *bu, const mhla_piece *p) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    back_mix(bu, p);
    for (int x = 0; x < bu->rows; x++) {
        const int64_t b = bu->top - x;
        if (b >= u->first0 + u->entries0) continue;
        float d[64]; /* the open chunk's earlier tokens are read by the later ones with w: + w D_b */
        memcpy(d, bu->T + x * w->P_row + p->at, (size_t)p->width * sizeof *d);
        for (int r = 0; r < w->mixes && u->open && b == bu->first_chunk && bu->blocks; r++)
            w->run->kernels->axpy(d, mhla_causal_unit_weight(u, r, b, b), mhla_list_at(&bu->D[r], p, bu->blocks - 1),
                                  p->width);
        store_initial(bu, p, d, b);
    }
}

/* Along a chunk, from its end: ds_x = carried, carried += w D_x. */
static void back_running(const mhla_back_unit *bu, const mhla_piece *p) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const int64_t b = u->grp.chunk0;
    float *carried = bu->T + w->group * w->P_row + p->at;
    if (bu->starts) back_mix(bu, p);
    for (int x = u->grp.n - 1; x >= 0; x--) {
        memcpy(bu->T + x * w->P_row + p->at, carried, (size_t)p->width * sizeof *carried);
        for (int r = 0; r < w->mixes; r++)
            w->run->kernels->axpy(carried, mhla_causal_unit_weight(u, r, b, b),
                                  mhla_list_at(&bu->D[r], p, bu->blocks - 1 - bu->done - x), p->width);
    }
    if (u->grp.starts && b < u->first0 + u->entries0) store_initial(bu, p, carried, b);
}

static void back_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    job *j = arg;
    int64_t k;
    for (const int64_t end = piece_range(&j->w, i, &k); k < end; k++) {
        const mhla_piece p = mhla_summary_piece(&j->w.shape, (int)k);
        if (j->w.running)
            back_running(&j->now[unit], &p);
        else
            back_direct(&j->now[unit], &p);
    }
}

/* S += k~^T v, z += sum k2~: dk~ = v dS^T, dv = k~ dS, dk2 += dz. The block's own part is there already. */
static void state_task(void *arg, int unit, int64_t i, int worker) {
    job *j = arg;
    const mhla_back_unit *bu = &j->now[unit];
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = &j->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_grads *gr = &run->grads;
    mhla_back_scratch *b = &j->scratch[worker];
    const int K = w->shape.K, V = w->shape.V, second = c->k2 != NULL;
    int64_t t;
    const int n = mhla_causal_block(u, (int)i, &t);
    const float *dS = bu->T + (w->running ? i : bu->top - mhla_causal_chunk(u, (int)i)) * w->P_row,
                *dz = dS + w->shape.F;
    if (gr->dk) {
        const mhla_rows values = mhla_causal_rows(u, run->v, run->plan->d.dtype, &c->v, u->g, t);
        run->kernels->copy_rows(b->x.v, w->Vw, &values, n, V, NULL);
        const mhla_prefetch next[] = {mhla_causal_next_rows(u, run->k, run->plan->d.dtype, &c->k, u->g, t, n, K),
                                      mhla_causal_next_rows(u, gr->dk, MHLA_F32, &gr->dk_strides, u->g, t, n, K),
                                      mhla_causal_next_rows(u, run->v, run->plan->d.dtype, &c->v, u->g, t, n, V)};
        mhla_gemm g = {.m = n,
                       .n = w->shape.n,
                       .store = MHLA_STORE_SET,
                       .c = b->dk,
                       .c_row = w->Kp,
                       .prefetch = next,
                       .n_prefetch = 3};
        g.f = (mhla_factor){.k = V, .a = b->x.v, .a_row = w->Vw, .a_k = 1, .b = dS, .b_rows = V};
        mhla_multiply(run, &g);
        mhla_causal_unpack(u, gr->dk, &gr->dk_strides, run->k, &c->k, u->g, t, n, b->dk, NULL,
                           w->normed && !second ? dz : NULL, 1);
    }
    if (second) mhla_causal_unpack(u, gr->dk2, &gr->dk2_strides, c->k2, &c->k2_strides, u->g, t, n, NULL, NULL, dz, 1);
    if (gr->dv) {
        mhla_panels pv;
        run->kernels->panels(&pv, V);
        mhla_causal_pack(u, b->x.k, NULL, run->k, &c->k, u->g, t, n, 1);
        run->kernels->transpose_panels(b->dS, &pv, dS, &w->shape.n);
        const mhla_prefetch next = mhla_causal_next_rows(u, gr->dv, MHLA_F32, &gr->dv_strides, u->g, t, n, V);
        mhla_gemm g = {.m = n,
                       .n = pv,
                       .store = MHLA_STORE_ROWS,
                       .accumulate = 1,
                       .prefetch = &next,
                       .n_prefetch = 1,
                       .out = mhla_causal_rows(u, gr->dv, MHLA_F32, &gr->dv_strides, u->g, t)};
        g.f = (mhla_factor){.k = K, .a = b->x.k, .a_row = w->Kp, .a_k = 1, .b = b->dS, .b_rows = K};
        mhla_multiply(run, &g);
    }
}

/* CLAMP: D rows of chunks so late that all of the group reads them alike become one. */
static void merge_tail(mhla_back_unit *bu) {
    const mhla_causal_work *w = bu->u.w;
    const int64_t row = bu->chunk_hi - 1 - (bu->top + w->M - 1);
    if (!w->clamp || row <= bu->tail || bu->blocks == 0) return;
    const int64_t last = bu->chunk_hi - bu->first_chunk - 1, to = row < last ? row : last;
    for (int r = 0; r < w->mixes; r++)
        for (int k = 0; k < w->shape.pieces; k++) {
            const mhla_piece p = mhla_summary_piece(&w->shape, k);
            for (int64_t i = bu->tail; i < to; i++)
                w->run->kernels->axpy(mhla_list_at(w->running ? &bu->Dc[r] : &bu->D[r], &p, i + 1), 1.0f,
                                      mhla_list_at(w->running ? &bu->Dc[r] : &bu->D[r], &p, i), p.width);
        }
    bu->tail = to;
}

/* The next group on the way back, its blocks with tokens in u.grp; 0: there is none. Direct: up to `group` chunks. */
static int back_direct_group(mhla_back_unit *bu) {
    const int64_t end = bu->top + 1 - bu->rows, group = bu->u.w->group;
    if (end <= bu->chunk_lo) return 0;
    bu->rows = (int)(end - bu->chunk_lo < group ? end - bu->chunk_lo : group);
    bu->top = end - 1;
    merge_tail(bu);
    const int64_t chunk0 = end - bu->rows > bu->first_chunk ? end - bu->rows : bu->first_chunk;
    bu->u.grp = (mhla_causal_group){.chunk0 = chunk0, .n = bu->blocks && end > chunk0 ? (int)(end - chunk0) : 0};
    return 1;
}

/* Running: blocks of one chunk, from its end; a chunk without tokens here is one group without blocks. */
static int back_running_group(mhla_back_unit *bu) {
    const mhla_causal_work *w = bu->u.w;
    const int endless = w->C > INT_MAX;
    bu->starts = bu->inside == 0;
    bu->top -= bu->starts;
    if (bu->top < bu->chunk_lo) return 0;
    int64_t begin = endless ? 0 : bu->top * w->C - w->run->call.past, stop = endless ? bu->u.T : begin + w->C;
    if (begin < 0) begin = 0;
    if (stop > bu->u.T) stop = bu->u.T;
    if (bu->starts) {
        bu->rows = 1;
        merge_tail(bu);
        bu->inside = stop > begin ? (stop - begin - 1) / w->block + 1 : 0;
        bu->left -= bu->inside;
    }
    const int64_t n = bu->inside < w->group ? bu->inside : w->group;
    bu->inside -= n;
    bu->u.grp = (mhla_causal_group){
        .chunk0 = bu->top, .n = (int)n, .token0 = begin + bu->inside * w->block, .starts = bu->inside == 0};
    bu->done = bu->left + bu->inside;
    return 1;
}

static void back_group_task(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    mhla_back_unit *bu = &((job *)arg)->now[unit];
    bu->u.live = (bu->u.w->running ? back_running_group : back_direct_group)(bu);
}

static void walk_back(job *j) {
    for (int i = 0; i < j->crew.units; i++) {
        mhla_back_unit *bu = &j->now[i];
        bu->top = j->w.running ? bu->chunk_hi : bu->chunk_hi - 1;
        bu->rows = 0;
        bu->inside = 0;
        bu->left = bu->blocks;
    }
    for (;;) {
        int live = 0;
        if (j->w.clamp) /* merging is work */
            mhla_causal_crew_run(&j->crew, one_each, back_group_task, j);
        else
            for (int i = 0; i < j->crew.units; i++) back_group_task(j, i, 0, 0);
        for (int i = 0; i < j->crew.units; i++) live += j->now[i].u.live;
        if (live == 0) return;
        mhla_causal_crew_run(&j->crew, count_back_rows, back_weights_task, j);
        mhla_causal_crew_run(&j->crew, count_pieces, back_task, j);
        mhla_causal_crew_run(&j->crew, count_group, state_task, j);
    }
}

/* ---- Units ---- */

static void begin_unit(mhla_back_unit *bu, const mhla_causal_work *w, int64_t number) {
    const int64_t G = w->run->plan->d.kv_heads, past = w->run->call.past;
    const int endless = w->C > INT_MAX;
    mhla_causal_begin(&bu->u, w, number / G, number % G);
    bu->blocks = count_blocks(w, bu->u.T);
    bu->first_chunk = endless ? 0 : past / w->C;
    bu->chunk_hi = endless ? 1 : (past + bu->u.T + w->C - 1) / w->C;
    bu->chunk_lo = bu->u.entries0 > 0 ? bu->u.first0 : bu->first_chunk;
    bu->done = 0;
    bu->tail = 0;
}

static void clear_dmix(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    job *j = arg;
    memset(j->now[unit].dmix, 0, (size_t)(j->w.mixes * j->w.M * j->w.M) * sizeof(float));
}

static void next_task(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    mhla_causal_next_group(&((job *)arg)->now[unit].u);
}

/* Those of the crew that have another group. With a window this may move the list. */
static int next_groups(job *j) {
    int live = 0;
    if (j->w.clamp) mhla_causal_crew_run(&j->crew, one_each, next_task, j);
    for (int i = 0; i < j->crew.units; i++)
        live += j->w.clamp ? j->now[i].u.live : mhla_causal_next_group(&j->now[i].u);
    return live;
}

/* Units `number` and those after it; dmix [crew.units][mixes][M,M] or NULL. */
static void backward_crew(job *j, int64_t number, float *dmix) {
    const mhla_causal_work *w = &j->w;
    const mhla_grads *gr = &w->run->grads;
    mhla_causal_crew *crew = &j->crew;
    for (int i = 0; i < crew->units; i++) {
        begin_unit(&j->now[i], w, number + i);
        j->now[i].dmix = gr->dmix ? dmix + i * w->mixes * w->M * w->M : NULL;
    }
    if (w->run->call.initial_state) mhla_causal_crew_run(crew, all_pieces, load_task, j);
    if (gr->dmix) mhla_causal_crew_run(crew, one_each, clear_dmix, j);
    while (next_groups(j)) {
        mhla_causal_crew_run(crew, count_group, summarise_task, j);
        mhla_causal_crew_run(crew, count_pieces, mix_task, j);
        mhla_causal_crew_run(crew, count_group, block_task, j);
        if (w->running) mhla_causal_crew_run(crew, count_pieces, collect_task, j);
        if (gr->dmix) group_dmix(j);
        for (int i = 0; i < crew->units; i++) j->now[i].done += j->now[i].u.live ? j->now[i].u.grp.n : 0;
    }
    if (gr->dk || gr->dv || gr->dk2 || gr->dinitial_state || gr->dinitial_z) walk_back(j);
}

static void unit_task(void *arg, int64_t i, int worker) {
    job j = *(job *)arg; /* a crew of this worker's own */
    j.crew = (mhla_causal_crew){.worker = worker, .units = 1};
    j.now = &j.unit[worker];
    backward_crew(&j, j.first + i, j.dmix ? j.dmix + i * j.w.mixes * j.w.M * j.w.M : NULL);
}

/* dmix += the units' parts, in the order of the units. */
enum { SLICE = 16384 };
typedef struct reduction {
    const job *j;
    int64_t units;
} reduction;
static void reduce_task(void *arg, int64_t i, int worker) {
    (void)worker;
    const reduction *d = arg;
    const job *j = d->j;
    const mhla_causal_work *w = &j->w;
    const int64_t size = w->M * w->M, G = w->run->plan->d.kv_heads, at = i * SLICE;
    const int64_t n = size - at < SLICE ? size - at : SLICE;
    for (int64_t u = 0; u < d->units; u++)
        for (int r = 0; r < w->mixes; r++) {
            const int64_t h = (j->first + u) % G * w->ratio + r;
            w->run->kernels->axpy(w->run->grads.dmix + (w->run->plan->d.mix_per_head ? h * size : 0) + at, 1.0f,
                                  j->dmix + (u * w->mixes + r) * size + at, n);
        }
}
static void reduce_dmix(const job *j, int64_t units) {
    const int64_t size = j->w.M * j->w.M;
    reduction d = {j, units};
    mhla_parallel(j->w.run->call.context, (size + SLICE - 1) / SLICE, reduce_task, &d);
}

mhla_status mhla_causal_backward(const mhla_run *run) {
    MHLA_TRY(mhla_causal_check_grads(run));
    const int64_t whole = mhla_causal_whole_units(run), all = unit_count(run), M = run->plan->M;
    const int64_t size = mhla_causal_crew_size(run, all - whole);
    job j = {.first = 0};
    float *dmix = run->grads.dmix;
    if (dmix && !run->grads.accumulate)
        memset(dmix, 0, (size_t)(M * M * (run->plan->d.mix_per_head ? run->plan->d.heads : 1)) * sizeof *dmix);
    if (whole > 0) carve(&(mhla_carver){run->ws, 0}, &j, run, 0);
    for (; j.first < whole; j.first += j.slots) {
        const int64_t n = whole - j.first < j.slots ? whole - j.first : j.slots;
        mhla_parallel(run->call.context, n, unit_task, &j);
        if (dmix) reduce_dmix(&j, n);
    }
    if (whole < all) carve(&(mhla_carver){run->ws, 0}, &j, run, size);
    j.now = j.unit;
    for (j.first = whole; j.first < all; j.first += size) {
        j.crew = (mhla_causal_crew){.context = run->call.context,
                                    .split = 1,
                                    .units = (int)(all - j.first < size ? all - j.first : size),
                                    .first = j.starts};
        backward_crew(&j, j.first, j.dmix);
        if (dmix) reduce_dmix(&j, j.crew.units);
    }
    return MHLA_OK;
}
