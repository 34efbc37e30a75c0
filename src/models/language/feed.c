/* Reading tokens: many sequences in one go. A feed is cut into passes of at most MHLA_PASS rows, a row being a token of some
 * sequence; all that is linear in a layer sees one matrix of rows, so that a weight is read once for all of them, and
 * attention is handed q, k, v by the model (`attend`, `convolve` of models/lm.h) and brings in the states.
 *
 * Everything that can be wrong is found before the first pass. What can still happen is that memory runs out: then all
 * layers go back to a place that they have, and the next feed reads from there (sequence.h). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "models/language/sequence.h"
#include "models/model.h"
#include "nn/op.h"

enum {
    FEW = 16,         /* tokens of a sequence, at most, where sequences are shared out among threads */
    LOGITS = 1 << 22, /* floats of logits at once, */
    LOGIT_ROWS = 256  /* and rows */
};

/* One feed at work: first what a rollback or a failure left unread, then the new tokens. */
typedef struct job {
    mhla_feed f;
    int64_t pending, done; /* of pending + f.count */
} job;

/* Rows row .. row+n-1 of a pass are tokens at .. at+n-1 of a sequence. */
typedef struct segment {
    mhla_sequence *s;
    job *j;
    int64_t row, n, at;
} segment;

typedef struct wanted {
    job *j;
    int64_t i; /* which of its new tokens */
} wanted;

typedef struct mhla_pass {
    mhla_reader *r;
    mhla_context *alone; /* one thread: of tasks that run side by side */
    job *jobs;
    int64_t n_jobs, capacity;
    int64_t rows;
    int n;
    segment segments[MHLA_PASS];
    int32_t ids[MHLA_PASS];
    int64_t cu[MHLA_PASS + 1];
    mhla_state *states[MHLA_PASS];
    int n_wanted;
    int32_t wanted_rows[MHLA_PASS], targets[MHLA_PASS], best[MHLA_PASS];
    float logprobs[MHLA_PASS];
    wanted wanted[MHLA_PASS];
} mhla_pass;

void mhla_pass_free(mhla_pass *p) {
    if (p == NULL) return;
    mhla_context_free(p->alone);
    mhla_free(p->jobs);
    mhla_free(p);
}

/* ---- Attention with states ---- */

/* MHLA and linear: one step for all sequences that have the same rules; segments are in that order. */
static void attend_streams(mhla_pass *p, mhla_tape *t, const mhla_lm_attend *a, mhla_tensor *o, const float *q,
                           int64_t ldq, const float *k, int64_t ldk) {
    const mhla_lm_mixer *m = &p->r->config->mixer[a->kind];
    const int64_t H = m->heads, G = m->kv_heads;
    for (int i = 0, end; i < p->n && t->status == MHLA_OK; i = end) {
        const mhla_rules *rules = p->segments[i].s->rules;
        const int64_t first = p->segments[i].row;
        for (end = i; end < p->n && p->segments[end].s->rules == rules; end++) {
            p->cu[end - i] = p->segments[end].row - first;
            p->states[end - i] = p->segments[end].s->layers[a->layer].stream;
        }
        const int64_t rows = p->segments[end - 1].row + p->segments[end - 1].n - first;
        p->cu[end - i] = rows;
        const mhla_call call = {.size = sizeof call,
                                .context = t->context,
                                .batch = 1,
                                .tokens = rows,
                                .q = {rows * ldq, ldq, a->q->cols / H},
                                .k = {rows * ldk, ldk, a->k->cols / G},
                                .v = {rows * a->v->ld, a->v->ld, a->v->cols / G},
                                .o = {rows * o->ld, o->ld, o->cols / H},
                                .cu_seqlens = p->cu,
                                .sequences = end - i};
        const mhla_status status =
            mhla_step(rules->plans[a->kind], &call, p->states, end - i, o->data + first * o->ld, q + first * ldq,
                      k + first * ldk, a->v->data + first * a->v->ld, a->mix ? a->mix->data : NULL);
        if (status != MHLA_OK) mhla_tape_fail(t, status, "layer %d: %s", a->layer, mhla_message());
    }
}

/* Softmax: keys and values go into the cache, then attention is over all of it. */
typedef struct cached {
    mhla_pass *p;
    const mhla_lm_attend *a;
    const mhla_context *context;
    mhla_tensor *o;
    const float *q;
    int64_t ldq;
    char *ws;
    size_t ws_bytes; /* of a segment */
} cached;

static mhla_call cached_call(const cached *x, const segment *g, int64_t keys) {
    const mhla_lm_mixer *m = &x->p->r->config->mixer[x->a->kind];
    const int64_t H = m->heads, K = m->key_dim, V = m->value_dim, ldk = m->kv_heads * K, ldv = m->kv_heads * V;
    return (mhla_call){.size = sizeof(mhla_call),
                       .context = x->context,
                       .batch = 1,
                       .tokens = g->n,
                       .kv_tokens = keys,
                       .q = {g->n * x->ldq, x->ldq, K},
                       .k = {keys * ldk, ldk, K},
                       .v = {keys * ldv, ldv, V},
                       .o = {g->n * x->o->ld, x->o->ld, x->o->cols / H}};
}

static void cached_task(void *arg, int64_t i, int worker) {
    const cached *x = arg;
    (void)worker;
    const segment *g = &x->p->segments[i];
    const mhla_lm_mixer *m = &x->p->r->config->mixer[x->a->kind];
    const mhla_entry *e = &x->p->r->entry[x->a->kind];
    mhla_cache *c = &g->s->layers[x->a->layer].cache;
    const int64_t ldk = (int64_t)m->kv_heads * m->key_dim, ldv = (int64_t)m->kv_heads * m->value_dim;
    const mhla_tensor *k = x->a->k, *v = x->a->v;
    float *to_k = c->k + c->count * ldk, *to_v = c->v + c->count * ldv;
    if (e->turned) {
        mhla_turn turn = e->turn;
        turn.heads = m->kv_heads;
        turn.cos += g->row * (turn.rope_dim / 2);
        turn.sin += g->row * (turn.rope_dim / 2);
        mhla_nn_turn(x->context, &turn, to_k, ldk, k->data + g->row * k->ld, k->ld, g->n);
    }
    for (int64_t t = 0; t < g->n; t++) {
        if (!e->turned) memcpy(to_k + t * ldk, k->data + (g->row + t) * k->ld, sizeof(float) * (size_t)ldk);
        memcpy(to_v + t * ldv, v->data + (g->row + t) * v->ld, sizeof(float) * (size_t)ldv);
    }
    c->count += g->n;
    const mhla_call call = cached_call(x, g, c->count);
    /* cannot fail: the workspace was made for this call */
    mhla_forward(g->s->rules->plans[x->a->kind], &call, x->o->data + g->row * x->o->ld, x->q + g->row * x->ldq, c->k,
                 c->v, NULL, x->ws + x->ws_bytes * (size_t)i);
}

static void attend_cached(mhla_pass *p, mhla_tape *t, const mhla_lm_attend *a, mhla_tensor *o, const float *q,
                          int64_t ldq) {
    const mhla_lm_mixer *m = &p->r->config->mixer[a->kind];
    int side = p->n > 1; /* sequences side by side, or one after the other, each by all threads */
    for (int i = 0; i < p->n; i++) {
        const segment *g = &p->segments[i];
        side &= g->n <= FEW;
        const mhla_status status = mhla_cache_reserve(&g->s->layers[a->layer].cache, m, g->n);
        if (status != MHLA_OK) {
            mhla_tape_fail(t, status, "layer %d: %s", a->layer, mhla_message());
            return;
        }
    }
    cached x = {.p = p, .a = a, .context = side ? p->alone : t->context, .o = o, .q = q, .ldq = ldq};
    for (int i = 0; i < p->n; i++) {
        const segment *g = &p->segments[i];
        const mhla_call call = cached_call(&x, g, g->s->layers[a->layer].cache.count + g->n);
        const size_t bytes = mhla_forward_workspace(g->s->rules->plans[a->kind], &call);
        if (bytes == 0) {
            mhla_tape_fail(t, MHLA_EINVAL, "layer %d: %s", a->layer, mhla_message());
            return;
        }
        if (bytes > x.ws_bytes) x.ws_bytes = (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    }
    x.ws = mhla_tape_scratch(t, side ? x.ws_bytes * (size_t)p->n : x.ws_bytes);
    if (t->status != MHLA_OK) return;
    if (side) {
        mhla_parallel(t->context, p->n, cached_task, &x);
        return;
    }
    x.ws_bytes = 0; /* one for all */
    for (int i = 0; i < p->n; i++) cached_task(&x, i, 0);
}

static mhla_tensor *attend(void *user, mhla_tape *t, const mhla_lm_attend *a) {
    mhla_pass *p = user;
    const mhla_entry *e = &p->r->entry[a->kind];
    const mhla_lm_mixer *m = &p->r->config->mixer[a->kind];
    const int cache = a->kind == MHLA_ATTENTION_SOFTMAX;
    MHLA_GIVEN(t, a->q);
    MHLA_GIVEN(t, a->k);
    MHLA_GIVEN(t, a->v);
    mhla_tensor *o = mhla_tape_tensor(t, MHLA_SHAPE(1, p->rows, a->v->cols / m->kv_heads * m->heads));
    if (o == NULL) return NULL;
    const float *q = a->q->data, *k = a->k->data;
    int64_t ldq = a->q->ld, ldk = a->k->ld;
    if (e->turned) {
        mhla_turn turn = e->turn;
        float *to = mhla_tape_floats(t, p->rows * (a->q->cols + (cache ? 0 : a->k->cols)));
        if (to == NULL) return NULL;
        turn.heads = m->heads;
        mhla_nn_turn(t->context, &turn, to, a->q->cols, q, ldq, p->rows);
        q = to;
        ldq = a->q->cols;
        to += p->rows * ldq;
        turn.heads = m->kv_heads;
        if (!cache) {
            mhla_nn_turn(t->context, &turn, to, a->k->cols, k, ldk, p->rows);
            k = to;
            ldk = a->k->cols;
        }
    }
    if (cache)
        attend_cached(p, t, a, o, q, ldq);
    else
        attend_streams(p, t, a, o, q, ldq, k, ldk);
    return t->status == MHLA_OK ? o : NULL;
}

/* ---- Convolutions with states ---- */

typedef struct convolution {
    const mhla_pass *p;
    const mhla_lm_convolve *c;
    mhla_tensor *y;
    int W;
} convolution;

/* y_t = silu(sum_j w[d,0,j] x_{t-W+1+j}); what lies before the segment is remembered. */
static void convolve_task(void *arg, int64_t i, int worker) {
    const convolution *x = arg;
    (void)worker;
    const segment *g = &x->p->segments[i];
    mhla_layer_memory *l = &g->s->layers[x->c->layer];
    const int64_t D = x->c->x->cols, past = x->W - 1;
    float *before = l->conv[x->c->which]; /* [W-1][D] */
    const float *w = x->c->w->data;
    for (int64_t t = 0; t < g->n; t++) {
        float *y = x->y->data + (g->row + t) * x->y->ld;
        memset(y, 0, sizeof *y * (size_t)D);
        for (int64_t j = 0; j < x->W; j++) {
            const int64_t u = t - past + j;
            const float *in = u < 0 ? before + (u + past) * D : x->c->x->data + (g->row + u) * x->c->x->ld;
            for (int64_t d = 0; d < D; d++) y[d] += w[d * x->W + j] * in[d];
        }
        for (int64_t d = 0; d < D; d++) y[d] = y[d] / (1.0f + expf(-y[d]));
    }
    const int64_t fresh = g->n < past ? g->n : past;
    memmove(before, before + fresh * D, sizeof *before * (size_t)((past - fresh) * D));
    for (int64_t t = 0; t < fresh; t++)
        memcpy(before + (past - fresh + t) * D, x->c->x->data + (g->row + g->n - fresh + t) * x->c->x->ld,
               sizeof *before * (size_t)D);
    l->conv_at[x->c->which] += g->n;
}

static mhla_tensor *convolve(void *user, mhla_tape *t, const mhla_lm_convolve *c) {
    mhla_pass *p = user;
    MHLA_GIVEN(t, c->x);
    convolution x = {.p = p, .c = c, .y = mhla_tape_tensor(t, c->x->shape, c->x->dims)};
    if (x.y == NULL) return NULL;
    x.W = (int)(c->w->count / c->x->cols);
    mhla_parallel(t->context, p->n, convolve_task, &x);
    return x.y;
}

/* ---- What is wanted of the predictions ---- */

static int wants_all(const mhla_feed *f) { return f->all_logits || f->targets || f->best; }

static void list_wanted(mhla_pass *p) {
    p->n_wanted = 0;
    for (int s = 0; s < p->n; s++) {
        const segment *g = &p->segments[s];
        job *j = g->j;
        for (int64_t k = 0; k < g->n; k++) {
            const int64_t i = j->done + k - j->pending;
            if (i < 0 || (!wants_all(&j->f) && (j->f.logits == NULL || i != j->f.count - 1))) continue;
            p->targets[p->n_wanted] = j->f.targets ? j->f.targets[i] : -1;
            p->wanted[p->n_wanted] = (wanted){j, i};
            p->wanted_rows[p->n_wanted++] = (int32_t)(g->row + k);
        }
    }
}

static void predict(mhla_pass *p, mhla_tape *t, mhla_tensor *hidden) {
    const int64_t N = p->r->config->vocabulary;
    int64_t most = LOGITS / N > 0 ? LOGITS / N : 1;
    if (most > LOGIT_ROWS) most = LOGIT_ROWS;
    list_wanted(p);
    const mhla_mark mark = mhla_tape_mark(t);
    for (int64_t first = 0, n; first < p->n_wanted && t->status == MHLA_OK; first += n) {
        n = p->n_wanted - first < most ? p->n_wanted - first : most;
        const mhla_tensor *y = mhla_lm_logits(t, p->r->lm, mhla_nn_take_rows(t, p->wanted_rows + first, n, hidden));
        if (y == NULL) return;
        int targets = 0, best = 0;
        for (int64_t i = first; i < first + n; i++) {
            const mhla_feed *f = &p->wanted[i].j->f;
            const int64_t at = p->wanted[i].i;
            const float *row = y->data + (i - first) * y->ld;
            if (f->logits && at == f->count - 1) memcpy(f->logits, row, sizeof *row * (size_t)N);
            if (f->all_logits) memcpy(f->all_logits + at * N, row, sizeof *row * (size_t)N);
            targets |= p->targets[i] >= 0;
            best |= f->best != NULL;
        }
        mhla_nn_likelihoods(t->context, p->logprobs + first, best ? p->best + first : NULL, y->data,
                            targets ? p->targets + first : NULL, targets || best ? n : 0, N);
        for (int64_t i = first; i < first + n; i++) {
            const wanted *w = &p->wanted[i];
            if (w->j->f.targets) w->j->f.logprobs[w->i] = p->targets[i] >= 0 ? p->logprobs[i] : 0.0f;
            if (w->j->f.best) w->j->f.best[w->i] = p->best[i];
        }
        mhla_tape_release(t, mark, NULL);
    }
}

/* ---- Passes ---- */

/* The next rows: of each job in turn what there is room for. A part of a prompt ends where a mark or a chunk does. */
static void next_pass(mhla_pass *p) {
    const int64_t grid = p->r->marking ? p->r->interval : p->r->C > 1 && p->r->C <= MHLA_PASS ? p->r->C : 64;
    p->n = 0;
    p->rows = 0;
    for (const mhla_rules *rules = p->r->rules; rules; rules = rules->next)
        for (int64_t i = 0; i < p->n_jobs && p->rows < MHLA_PASS; i++) {
            job *j = &p->jobs[i];
            mhla_sequence *s = j->f.sequence;
            const int64_t left = j->pending + j->f.count - j->done;
            if (s->rules != rules || left == 0) continue;
            int64_t n = left < MHLA_PASS - p->rows ? left : MHLA_PASS - p->rows;
            if (n < left && (s->ready + n) / grid * grid > s->ready) n = (s->ready + n) / grid * grid - s->ready;
            p->segments[p->n++] = (segment){s, j, p->rows, n, s->ready};
            for (int64_t k = 0; k < n; k++) {
                const int64_t at = j->done + k;
                p->ids[p->rows++] = at < j->pending ? s->ids[s->ready + k] : j->f.ids[at - j->pending];
            }
        }
}

static mhla_status run_pass(mhla_pass *p) {
    mhla_reader *r = p->r;
    mhla_tape *t = r->tape;
    for (int i = 0; i < p->n; i++)
        MHLA_TRY(mhla_reader_positions(r, p->segments[i].row, p->segments[i].at, p->segments[i].n));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_lm_run run = {.attend = attend, .convolve = convolve, .user = p};
    mhla_tensor *hidden = mhla_lm_forward(t, r->lm, &run, p->ids, 1, p->rows);
    if (hidden) predict(p, t, hidden);
    MHLA_TRY(mhla_tape_status(t));
    for (int i = 0; i < p->n; i++) {
        segment *g = &p->segments[i];
        g->j->done += g->n;
        g->s->ready += g->n;
        mhla_sequence_mark(g->s);
    }
    return MHLA_OK;
}

/* ---- The entry point ---- */

static mhla_status check_feed(const mhla_reader *r, const mhla_feed *f, int64_t index, int64_t count) {
    char which[64] = ""; /* one alone needs no number */
    if (count > 1) snprintf(which, sizeof which, "sequence %lld of %lld: ", (long long)index + 1, (long long)count);
    const int vocabulary = r->config->vocabulary;
    const mhla_sequence *s = f->sequence;
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "%ssequence is NULL", which);
    if (s->reader != r) return mhla_fail(MHLA_EINVAL, "%sthe sequence is of another model", which);
    if (s->fed) return mhla_fail(MHLA_EINVAL, "%sit is in the list twice", which);
    if (f->ids == NULL) return mhla_fail(MHLA_EINVAL, "%sids is NULL", which);
    if (f->count < 1 || f->count > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "%scount is %lld: expected at least 1", which, (long long)f->count);
    if (f->targets && f->logprobs == NULL)
        return mhla_fail(MHLA_EINVAL, "%stargets without logprobs to put the result", which);
    for (int64_t k = 0; k < f->count; k++) {
        if (f->ids[k] < 0 || f->ids[k] >= vocabulary)
            return mhla_fail(MHLA_EINVAL, "%sids[%lld] is %d: the vocabulary has %d", which, (long long)k, f->ids[k],
                             vocabulary);
        if (f->targets && f->targets[k] >= vocabulary)
            return mhla_fail(MHLA_EINVAL, "%stargets[%lld] is %d: the vocabulary has %d", which, (long long)k,
                             f->targets[k], vocabulary);
    }
    if (s->max_tokens > 0 && f->count > s->max_tokens - s->tokens)
        return mhla_fail(MHLA_ERANGE, "%sthe sequence has %lld tokens and would get %lld more: it was made for %lld",
                         which, (long long)s->tokens, (long long)f->count, (long long)s->max_tokens);
    if (f->count > s->rules->limit - s->tokens)
        return mhla_fail(MHLA_ERANGE,
                         "%sthe sequence has %lld tokens and would get %lld more: the model was trained for %lld, "
                         "and no policy (clamp, chunk) says what to do beyond",
                         which, (long long)s->tokens, (long long)f->count, (long long)s->rules->limit);
    return s->tokens + f->count > INT32_MAX
               ? mhla_fail(MHLA_ERANGE, "%sa sequence has at most %d tokens", which, INT32_MAX)
               : MHLA_OK;
}

/* What is made once, or again when the model has other threads. */
static mhla_status prepare(mhla_reader *r, int64_t count) {
    const mhla_context *context = r->model->context;
    if (r->tape && mhla_tape_context(r->tape) != context) {
        mhla_tape_free(r->tape);
        r->tape = NULL;
    }
    if (r->tape == NULL) MHLA_TRY(mhla_tape_create(&r->tape, context));
    if (r->pass == NULL) {
        mhla_pass *p = mhla_alloc_zero(sizeof *p);
        if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to read tokens");
        p->r = r;
        const mhla_status status = mhla_context_create(
            &p->alone,
            &(mhla_context_desc){.size = sizeof(mhla_context_desc), .backend = MHLA_BACKEND_PTHREADS, .threads = 1});
        if (status != MHLA_OK) {
            mhla_pass_free(p);
            return status;
        }
        r->pass = p;
    }
    mhla_pass *p = r->pass;
    if (p->capacity >= count) return MHLA_OK;
    job *jobs = mhla_alloc(sizeof *jobs * (size_t)count);
    if (jobs == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld feeds", (long long)count);
    mhla_free(p->jobs);
    p->jobs = jobs;
    p->capacity = count;
    return MHLA_OK;
}

mhla_status mhla_lm_feed(mhla_model *model, const mhla_feed *feeds, int64_t count) {
    mhla_reader *r;
    MHLA_TRY(mhla_model_reader(&r, model));
    if (count < 0 || (count > 0 && feeds == NULL))
        return mhla_fail(MHLA_EINVAL, "feeds is %s, count is %lld", feeds ? "given" : "NULL", (long long)count);
    if (count == 0) return MHLA_OK;
    MHLA_TRY(prepare(r, count));
    mhla_pass *p = r->pass;
    mhla_status status = MHLA_OK;
    for (p->n_jobs = 0; p->n_jobs < count && status == MHLA_OK;) {
        job *j = &p->jobs[p->n_jobs];
        *j = (job){.done = 0};
        status = mhla_struct_in_at(&j->f, sizeof j->f, feeds, p->n_jobs, "mhla_feed");
        if (status == MHLA_OK) status = check_feed(r, &j->f, p->n_jobs, count);
        if (status != MHLA_OK) break;
        j->pending = j->f.sequence->tokens - j->f.sequence->ready;
        j->f.sequence->fed = 1;
        p->n_jobs++;
    }
    for (int64_t i = 0; i < p->n_jobs; i++) p->jobs[i].f.sequence->fed = 0;
    for (int64_t i = 0; i < p->n_jobs && status == MHLA_OK; i++)
        status = mhla_sequence_reserve(p->jobs[i].f.sequence, p->jobs[i].f.count);
    if (status != MHLA_OK) return status;
    for (next_pass(p); p->n > 0 && status == MHLA_OK; next_pass(p)) status = run_pass(p);
    if (status != MHLA_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", mhla_message());
        for (int64_t i = 0; i < p->n_jobs; i++) {
            mhla_sequence *s = p->jobs[i].f.sequence;
            mhla_sequence_return(s, mhla_sequence_nearest(s, s->tokens), 1);
        }
        return mhla_fail(status, "%s", why);
    }
    for (int64_t i = 0; i < p->n_jobs; i++) {
        const mhla_feed *f = &p->jobs[i].f;
        mhla_sequence *s = f->sequence;
        memcpy(s->ids + s->tokens, f->ids, sizeof *s->ids * (size_t)f->count);
        s->tokens += f->count;
    }
    return MHLA_OK;
}
