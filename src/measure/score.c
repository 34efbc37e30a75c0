#include "measure/score.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "dist/dist.h"

enum { ALIVE = 8192 };

/* A continuation while it is read. */
typedef struct reading {
    mhla_continuation *of;
    int32_t *inputs;  /* [count] what is read beyond what its scoring has in common */
    int32_t *targets; /* [count], negative where nothing is asked */
    float *logprobs;  /* [count] */
    int32_t *best;    /* [count] */
    int64_t count;
    mhla_sequence *sequence;
} reading;

typedef struct readings {
    mhla_model *model;
    const mhla_sequence_desc *desc;
    mhla_sequence *
        *bases;       /* [scorings] has read the context but its last token; NULL: continuations begin on their own */
    mhla_feed *feeds; /* [count], or [scorings] where those are more */
    reading *list;    /* [count] all continuations, scoring by scoring */
    int count;
} readings;

mhla_status mhla_scoring_make(mhla_scoring *s, int count) {
    s->continuations = calloc((size_t)count, sizeof *s->continuations);
    s->count = s->continuations ? count : 0;
    return s->continuations ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d choices", count);
}

void mhla_scoring_release(mhla_scoring *s) {
    for (int i = 0; i < s->count; i++) mhla_ids_free(&s->continuations[i].ids);
    free(s->continuations);
    mhla_ids_free(&s->context);
    *s = (mhla_scoring){0};
}

/* What x reads, after `skip` tokens of the context: the rest of the context, then itself but for its last token. */
static mhla_status lay_out(reading *x, const mhla_ids *context, int64_t skip) {
    const mhla_ids *own = &x->of->ids;
    const int64_t rest = context->count - skip, n = rest + own->count - 1;
    x->count = n;
    x->inputs = malloc((size_t)n * sizeof *x->inputs);
    x->targets = malloc((size_t)n * sizeof *x->targets);
    x->logprobs = malloc((size_t)n * sizeof *x->logprobs);
    x->best = malloc((size_t)n * sizeof *x->best);
    if (!x->inputs || !x->targets || !x->logprobs || !x->best)
        return mhla_fail(MHLA_ENOMEM, "no memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        x->inputs[i] = i < rest ? context->data[skip + i] : own->data[i - rest];
        x->targets[i] = i < rest - 1 ? -1 : own->data[i - rest + 1];
    }
    return MHLA_OK;
}

/* A context that is too long for one continuation is cut for each by itself; else it is read once. */
static mhla_status lay_out_all(readings *r, int number, mhla_scoring *s, int64_t longest) {
    int64_t most = 0;
    for (int i = 0; i < s->count; i++)
        if (s->continuations[i].ids.count > most) most = s->continuations[i].ids.count;
    const int shared = s->context.count + most - 1 <= longest;
    for (int i = 0; i < s->count; i++) {
        reading *x = &r->list[r->count++];
        x->of = &s->continuations[i];
        const int64_t cut = s->context.count + x->of->ids.count - 1 - longest;
        MHLA_TRY(lay_out(x, &s->context, shared ? s->context.count - 1 : cut > 0 ? cut : 0));
    }
    return shared && s->context.count > 1 ? mhla_sequence_create(&r->bases[number], r->model, r->desc) : MHLA_OK;
}

static mhla_status read_contexts(readings *r, const mhla_scoring *scorings, int count) {
    int n = 0;
    for (int i = 0; i < count; i++)
        if (r->bases[i])
            r->feeds[n++] = (mhla_feed){.size = sizeof(mhla_feed),
                                        .sequence = r->bases[i],
                                        .ids = scorings[i].context.data,
                                        .count = scorings[i].context.count - 1};
    return n ? mhla_lm_feed(r->model, r->feeds, n) : MHLA_OK;
}

/* Reads those that wait, and forgets their sequences. */
static mhla_status flush(readings *r, int from, int to) {
    const mhla_status status = to > from ? mhla_lm_feed(r->model, r->feeds + from, to - from) : MHLA_OK;
    for (int i = from; i < to; i++) {
        mhla_sequence_free(r->list[i].sequence);
        r->list[i].sequence = NULL;
    }
    return status;
}

/* A fork may hold as much memory as its context: no more of them at once than ALIVE tokens allow. */
static mhla_status read_continuations(readings *r, const mhla_scoring *scorings, int count) {
    int n = 0, from = 0;
    int64_t alive = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < scorings[i].count; j++) {
            reading *x = &r->list[n];
            alive += scorings[i].context.count + x->of->ids.count;
            if (alive > ALIVE) {
                MHLA_TRY(flush(r, from, n));
                from = n;
                alive = scorings[i].context.count + x->of->ids.count;
            }
            if (r->bases[i] && j == scorings[i].count - 1) { /* the last one needs no copy */
                x->sequence = r->bases[i];
                r->bases[i] = NULL;
            } else
                MHLA_TRY(r->bases[i] ? mhla_sequence_fork(&x->sequence, r->bases[i])
                                     : mhla_sequence_create(&x->sequence, r->model, r->desc));
            r->feeds[n++] = (mhla_feed){.size = sizeof(mhla_feed),
                                        .sequence = x->sequence,
                                        .ids = x->inputs,
                                        .count = x->count,
                                        .targets = x->targets,
                                        .logprobs = x->logprobs,
                                        .best = x->best};
        }
    return flush(r, from, n);
}

static void sum_up(const reading *x) {
    x->of->loglikelihood = 0.0;
    x->of->greedy = 1;
    for (int64_t i = x->count - x->of->ids.count; i < x->count; i++) {
        x->of->loglikelihood += (double)x->logprobs[i];
        x->of->greedy &= x->best[i] == x->targets[i];
    }
}

static void release(readings *r, int scorings) {
    for (int i = 0; i < r->count; i++) {
        free(r->list[i].inputs);
        free(r->list[i].targets);
        free(r->list[i].logprobs);
        free(r->list[i].best);
        mhla_sequence_free(r->list[i].sequence);
    }
    for (int i = 0; r->bases && i < scorings; i++) mhla_sequence_free(r->bases[i]);
    free(r->bases);
    free(r->feeds);
    free(r->list);
}

static mhla_status score(mhla_model *model, mhla_scoring *scorings, int count, int64_t longest,
                         const mhla_sequence_desc *desc) {
    readings r = {.model = model, .desc = desc};
    int all = 0;
    for (int i = 0; i < count; i++) all += scorings[i].count;
    if (all == 0) return MHLA_OK;
    r.bases = calloc((size_t)count, sizeof(mhla_sequence *));
    r.feeds = malloc((size_t)(all > count ? all : count) * sizeof *r.feeds);
    r.list = calloc((size_t)all, sizeof *r.list);
    mhla_status status =
        r.bases && r.feeds && r.list ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d choices", all);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = lay_out_all(&r, i, &scorings[i], longest);
    if (status == MHLA_OK) status = read_contexts(&r, scorings, count);
    if (status == MHLA_OK) status = read_continuations(&r, scorings, count);
    for (int i = 0; i < r.count && status == MHLA_OK; i++) sum_up(&r.list[i]);
    release(&r, count);
    return status;
}

/* ---- Several processes: the scorings are dealt out ---- */

typedef struct answer {
    double loglikelihood;
    int64_t greedy;
} answer;

/* Answers of a rank's scorings, one after the other; 0: from the list, 1: into it. */
static void pass_answers(mhla_scoring *scorings, int count, int rank, answer *list, int into) {
    for (int i = rank; i < count; i += mhla_dist_ranks())
        for (int j = 0; j < scorings[i].count; j++, list++) {
            mhla_continuation *c = &scorings[i].continuations[j];
            if (into)
                *list = (answer){c->loglikelihood, c->greedy};
            else
                c->loglikelihood = list->loglikelihood, c->greedy = (int)list->greedy;
        }
}

/* A number for the questions: ranks that were given others do not share them. */
static uint64_t hash_of(const mhla_scoring *scorings, int count) {
    uint64_t h = 0xcbf29ce484222325u + (uint64_t)count;
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < scorings[i].context.count; k++)
            h = (h ^ (uint32_t)scorings[i].context.data[k]) * 0x100000001b3u;
        for (int j = 0; j < scorings[i].count; j++) {
            const mhla_ids *ids = &scorings[i].continuations[j].ids;
            for (int64_t k = -1; k < ids->count; k++) h = (h ^ (k < 0 ? 77u : (uint32_t)ids->data[k])) * 0x100000001b3u;
        }
    }
    return h;
}

mhla_status mhla_lm_score(mhla_model *model, mhla_scoring *scorings, int count, int64_t longest,
                          const mhla_sequence_desc *desc) {
    const int ranks = mhla_dist_ranks(), rank = mhla_dist_rank();
    if (ranks == 1 || count == 0) return score(model, scorings, count, longest, desc);
    char text[24];
    int own = 0;
    size_t most = 0;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash_of(scorings, count));
    MHLA_TRY(mhla_dist_same("a number made of the questions", text));
    for (int r = 0; r < ranks; r++) {
        size_t n = 0;
        for (int i = r; i < count; i += ranks) n += (size_t)scorings[i].count;
        if (n > most) most = n;
    }
    mhla_scoring *mine = malloc((size_t)count * sizeof *mine); /* their lists are shared */
    answer *out = calloc(most + 1, sizeof *out), *all = calloc((size_t)ranks * most + 1, sizeof *all);
    mhla_status status = mine && out && all ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d questions", count);
    for (int i = rank; i < count && mine; i += ranks) mine[own++] = scorings[i];
    if (status == MHLA_OK) status = score(model, mine, own, longest, desc);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) pass_answers(scorings, count, rank, out, 1);
    if (status == MHLA_OK) status = mhla_dist_gather_all(all, out, most * sizeof *all);
    for (int r = 0; r < ranks && status == MHLA_OK; r++) pass_answers(scorings, count, r, all + (size_t)r * most, 0);
    free(mine);
    free(out);
    free(all);
    return status;
}
