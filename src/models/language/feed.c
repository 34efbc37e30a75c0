/* Reading tokens: many sequences in one go. A feed is cut into passes of at most MHLA_PASS rows, a row being a token of some
 * sequence; all that is linear in a layer sees one matrix of rows, so that a weight is read once for all of them, and
 * its mixer brings in the memories of the sequences.
 *
 * Everything that can be wrong is found before the first pass. What can still happen is that memory runs out: then all
 * layers go back to a place that they have, and the next feed reads from there (sequence.h). */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/language/sequence.h"
#include "models/model.h"
#include "nn/op.h"

enum {
    LOGITS = 1 << 22, /* floats of logits at once, */
    LOGIT_ROWS = 256  /* and rows */
};

/* One feed at work: first what a rollback or a failure left unread, then the new tokens. */
typedef struct job {
    mhla_feed f;
    int64_t pending, done; /* of pending + f.count */
} job;

typedef struct wanted {
    job *j;
    int64_t i; /* which of its new tokens */
} wanted;

typedef struct mhla_reading {
    mhla_reader *r;
    mhla_context *alone; /* one thread: of tasks that run side by side */
    job *jobs;
    int64_t n_jobs, capacity;
    int64_t rows;
    int n;
    mhla_segment segments[MHLA_PASS];
    job *job_of[MHLA_PASS]; /* of each segment */
    int32_t ids[MHLA_PASS];
    int n_wanted;
    int32_t wanted_rows[MHLA_PASS], targets[MHLA_PASS], best[MHLA_PASS];
    float logprobs[MHLA_PASS];
    wanted wanted[MHLA_PASS];
} mhla_reading;

void mhla_reading_free(mhla_reading *p) {
    if (p == NULL) return;
    mhla_context_free(p->alone);
    mhla_free(p->jobs);
    mhla_free(p);
}

/* ---- What is wanted of the predictions ---- */

static int wants_all(const mhla_feed *f) { return f->all_logits || f->targets || f->best; }

static void list_wanted(mhla_reading *p) {
    p->n_wanted = 0;
    for (int s = 0; s < p->n; s++) {
        const mhla_segment *g = &p->segments[s];
        job *j = p->job_of[s];
        for (int64_t k = 0; k < g->n; k++) {
            const int64_t i = j->done + k - j->pending;
            if (i < 0 || (!wants_all(&j->f) && (j->f.logits == NULL || i != j->f.count - 1))) continue;
            p->targets[p->n_wanted] = j->f.targets ? j->f.targets[i] : -1;
            p->wanted[p->n_wanted] = (wanted){j, i};
            p->wanted_rows[p->n_wanted++] = (int32_t)(g->row + k);
        }
    }
}

static void predict(mhla_reading *p, mhla_tape *t, mhla_tensor *hidden) {
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
static void next_pass(mhla_reading *p) {
    const int64_t grid = p->r->grid;
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
            p->job_of[p->n] = j;
            p->segments[p->n++] = (mhla_segment){s->memory, p->rows, n, s->ready};
            for (int64_t k = 0; k < n; k++) {
                const int64_t at = j->done + k;
                p->ids[p->rows++] = at < j->pending ? s->ids[s->ready + k] : j->f.ids[at - j->pending];
            }
        }
}

static mhla_status run_pass(mhla_reading *p) {
    mhla_reader *r = p->r;
    mhla_tape *t = r->tape;
    const mhla_pass pass = {p->segments, p->n, p->rows, p->alone};
    const mhla_lm_config *c = r->config;
    unsigned char begun[MHLA_LM_LAYERS + 1] = {0};
    for (int i = 0; i < c->layers; i++) {
        const mhla_mixer *m = mhla_lm_group_of(c, i)->mixer;
        if (m->begin && !begun[c->group_of[i]]++) MHLA_TRY(m->begin(mhla_lm_shared(r->lm, i), &pass));
    }
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *hidden = mhla_lm_forward(t, r->lm, &(mhla_lm_run){.mixer = {.pass = &pass}}, p->ids, 1, p->rows);
    if (hidden) predict(p, t, hidden);
    MHLA_TRY(mhla_tape_status(t));
    for (int i = 0; i < p->n; i++) {
        job *j = p->job_of[i];
        j->done += p->segments[i].n;
        j->f.sequence->ready += p->segments[i].n;
        mhla_sequence_mark(j->f.sequence);
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
    if (r->reading == NULL) {
        mhla_reading *p = mhla_alloc_zero(sizeof *p);
        if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to read tokens");
        p->r = r;
        const mhla_status status = mhla_context_create(
            &p->alone,
            &(mhla_context_desc){.size = sizeof(mhla_context_desc), .backend = MHLA_BACKEND_PTHREADS, .threads = 1});
        if (status != MHLA_OK) {
            mhla_reading_free(p);
            return status;
        }
        r->reading = p;
    }
    mhla_reading *p = r->reading;
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
    mhla_reading *p = r->reading;
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
            mhla_sequence_return(s, mhla_sequence_nearest(s, s->tokens));
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
