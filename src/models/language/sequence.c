/* Sequences: making, forking, going back. sequence.h says how `ready` makes any of it safe.
 *
 * Going back: a mixer's memory knows how far it can go back by itself. For what cannot, marks are kept, at distances that grow with
 * their age. */
#include "models/language/sequence.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

enum {
    FIRST_ROOM = 256, /* ids */
    MAX_TOKENS = INT32_MAX
};

static const mhla_mixer *mixer_of(const mhla_sequence *s, int layer) {
    return mhla_lm_group_of(s->reader->config, layer)->mixer;
}

/* ---- Making ---- */

static void drop_mark(mhla_mark_at *m) {
    if (m && --m->refs == 0) mhla_free(m);
}

void mhla_sequence_free(mhla_sequence *s) {
    if (s == NULL) return;
    for (int i = 0; i < s->reader->config->layers; i++) mixer_of(s, i)->forget(s->memory[i]);
    for (int i = 0; i < s->n_marks; i++) drop_mark(s->marks[i]);
    mhla_free(s->memory);
    mhla_free(s->ids);
    mhla_free(s->note);
    mhla_rules_drop(s->reader, s->rules);
    s->reader->sequences--;
    mhla_free(s);
}

/* Without memories. */
static mhla_status make_empty(mhla_sequence **sequence, mhla_reader *r, const mhla_terms *terms) {
    mhla_rules *rules;
    *sequence = NULL;
    MHLA_TRY(mhla_rules_get(&rules, r, terms));
    mhla_sequence *s = mhla_alloc_zero(sizeof *s);
    void **memory = mhla_alloc_zero(sizeof *memory * (size_t)r->config->layers);
    if (s == NULL || memory == NULL) {
        mhla_free(s);
        mhla_free(memory);
        mhla_rules_drop(r, rules);
        return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    }
    *s = (mhla_sequence){.reader = r, .rules = rules, .max_tokens = terms->max_tokens, .memory = memory};
    r->sequences++;
    *sequence = s;
    return MHLA_OK;
}

mhla_status mhla_sequence_make(mhla_sequence **sequence, mhla_reader *r, const mhla_terms *terms) {
    mhla_sequence *s;
    mhla_status status = make_empty(&s, r, terms);
    for (int i = 0; i < r->config->layers && status == MHLA_OK; i++)
        status = mixer_of(s, i)->remember(&s->memory[i], mhla_lm_layer(r->lm, i),
                                          s->rules->policies[r->config->group_of[i]]);
    if (status != MHLA_OK) {
        mhla_sequence_free(s);
        return status;
    }
    *sequence = s;
    return MHLA_OK;
}

mhla_status mhla_sequence_create(mhla_sequence **sequence, mhla_model *model, const mhla_sequence_desc *given) {
    if (sequence == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    *sequence = NULL;
    mhla_sequence_desc d = {.size = sizeof d};
    if (given) MHLA_TRY(mhla_struct_in(&d, sizeof d, given, "mhla_sequence_desc"));
    mhla_reader *r;
    MHLA_TRY(mhla_model_reader(&r, model));
    if ((unsigned)d.beyond > MHLA_BEYOND_CHUNK)
        return mhla_fail(MHLA_EINVAL, "beyond is %d: no such policy", (int)d.beyond);
    if (d.max_tokens < 0 || d.max_tokens > MAX_TOKENS)
        return mhla_fail(MHLA_EINVAL, "max_tokens is %lld: expected 0 to %d", (long long)d.max_tokens, MAX_TOKENS);
    if (d.beyond == MHLA_BEYOND_CHUNK && d.max_tokens == 0)
        return mhla_fail(MHLA_EINVAL, "max_tokens is 0: longer chunks need to know how long the sequence will be");
    /* weights that are rounded themselves gain nothing from keys and values that are not */
    mhla_terms terms = {d.beyond, d.max_tokens, mhla_lm_output(r->lm)->dtype == MHLA_F32 ? MHLA_F32 : MHLA_BF16};
    if (d.cache) {
        terms.cache = strcmp(d.cache, "bfloat16") == 0 ? MHLA_BF16 : MHLA_F32;
        if (terms.cache == MHLA_F32 && strcmp(d.cache, "float32") != 0)
            return mhla_fail(MHLA_EINVAL, "cache is %s: expected float32 or bfloat16", MHLA_QUOTE(d.cache));
    }
    return mhla_sequence_make(sequence, r, &terms);
}

mhla_status mhla_sequence_query(const mhla_sequence *s, mhla_sequence_desc *desc) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    const mhla_sequence_desc d = {.size = sizeof d,
                                  .beyond = s->rules->terms.beyond,
                                  .max_tokens = s->max_tokens,
                                  .cache = s->rules->terms.cache == MHLA_F32 ? "float32" : "bfloat16"};
    return mhla_struct_out(desc, &d, sizeof d, "mhla_sequence_desc");
}

int64_t mhla_sequence_tokens(const mhla_sequence *s) { return s ? s->tokens : 0; }
int64_t mhla_sequence_room(const mhla_sequence *s) {
    if (s == NULL) return 0;
    const int64_t limit = s->rules->limit < INT32_MAX ? s->rules->limit : INT32_MAX;
    return (s->max_tokens > 0 && s->max_tokens < limit ? s->max_tokens : limit) - s->tokens;
}
const int32_t *mhla_sequence_ids(const mhla_sequence *s) { return s ? s->ids : NULL; }

size_t mhla_sequence_bytes(const mhla_sequence *s) {
    if (s == NULL) return 0;
    const int layers = s->reader->config->layers;
    size_t bytes = sizeof *s + sizeof *s->ids * (size_t)s->capacity + strlen(mhla_sequence_note(s)) +
                   sizeof *s->memory * (size_t)layers;
    for (int i = 0; i < layers; i++) bytes += mixer_of(s, i)->memory_bytes(s->memory[i]);
    for (int i = 0; i < s->n_marks; i++) bytes += s->marks[i]->bytes;
    return bytes;
}

size_t mhla_sequence_step_bytes(const mhla_sequence *s) {
    size_t bytes = 0;
    for (int i = 0; s && i < s->reader->config->layers; i++) {
        const mhla_mixer *mixer = mixer_of(s, i);
        bytes += mixer->step_bytes ? mixer->step_bytes(s->memory[i], s->tokens) : 2 * mixer->mark_bytes(s->memory[i]);
    }
    return bytes;
}

mhla_status mhla_sequence_set_note(mhla_sequence *s, const char *note) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    const size_t size = note ? strlen(note) + 1 : 0;
    char *copy = size > 1 ? mhla_alloc(size) : NULL;
    if (size > 1 && copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a note of %zu bytes", size);
    if (copy) memcpy(copy, note, size);
    mhla_free(s->note);
    s->note = copy;
    return MHLA_OK;
}

const char *mhla_sequence_note(const mhla_sequence *s) { return s && s->note ? s->note : ""; }

/* ---- Room ---- */

mhla_status mhla_sequence_reserve(mhla_sequence *s, int64_t n) {
    if (s->tokens + n <= s->capacity) return MHLA_OK;
    int64_t size = s->capacity * 2 > FIRST_ROOM ? s->capacity * 2 : FIRST_ROOM;
    if (size < s->tokens + n) size = s->tokens + n;
    int32_t *bigger = mhla_alloc(sizeof *bigger * (size_t)size);
    if (bigger == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence of %lld tokens", (long long)size);
    if (s->tokens > 0) memcpy(bigger, s->ids, sizeof *bigger * (size_t)s->tokens);
    mhla_free(s->ids);
    s->ids = bigger;
    s->capacity = size;
    return MHLA_OK;
}

/* ---- Forking ---- */

mhla_status mhla_sequence_fork(mhla_sequence **copy, const mhla_sequence *s) {
    if (copy == NULL) return mhla_fail(MHLA_EINVAL, "copy is NULL");
    *copy = NULL;
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    mhla_sequence *t;
    mhla_terms terms = s->rules->terms;
    terms.max_tokens = s->max_tokens;
    MHLA_TRY(make_empty(&t, s->reader, &terms));
    mhla_status status = mhla_sequence_reserve(t, s->tokens);
    if (status == MHLA_OK) status = mhla_sequence_set_note(t, s->note);
    for (int i = 0; i < s->reader->config->layers && status == MHLA_OK; i++)
        status = mixer_of(s, i)->fork(&t->memory[i], s->memory[i]);
    if (status != MHLA_OK) {
        mhla_sequence_free(t);
        return status;
    }
    if (s->tokens > 0) memcpy(t->ids, s->ids, sizeof *t->ids * (size_t)s->tokens);
    t->tokens = s->tokens;
    t->ready = s->ready;
    t->n_marks = s->n_marks;
    for (int i = 0; i < s->n_marks; i++) {
        t->marks[i] = s->marks[i];
        t->marks[i]->refs++;
    }
    *copy = t;
    return MHLA_OK;
}

/* ---- Marks ---- */

/* Of three in a row the middle one goes where the outer ones do as well: distances from here grow by a factor. */
static void thin_marks(mhla_sequence *s) {
    const int64_t here = s->marks[s->n_marks - 1]->tokens;
    for (int i = s->n_marks - 2; i > 0; i--) {
        const int64_t older = here - s->marks[i - 1]->tokens, newer = here - s->marks[i + 1]->tokens;
        if (older > 3 * newer && s->n_marks < MHLA_MARKS) continue;
        drop_mark(s->marks[i]);
        memmove(s->marks + i, s->marks + i + 1, sizeof *s->marks * (size_t)(s->n_marks - i - 1));
        s->n_marks--;
    }
    if (s->n_marks < MHLA_MARKS) return;
    drop_mark(s->marks[0]);
    memmove(s->marks, s->marks + 1, sizeof *s->marks * (size_t)--s->n_marks);
}

void mhla_sequence_mark(mhla_sequence *s) {
    const int layers = s->reader->config->layers;
    if (!s->reader->marking || s->ready == 0 || s->ready % s->reader->grid != 0) return;
    if (s->n_marks > 0 && s->marks[s->n_marks - 1]->tokens >= s->ready) return;
    size_t bytes = 0; /* for each layer: how many, and the mark */
    for (int i = 0; i < layers; i++) bytes += sizeof bytes + mixer_of(s, i)->mark_bytes(s->memory[i]);
    mhla_mark_at *m = mhla_alloc(sizeof *m + bytes);
    if (m == NULL) return; /* one can do without */
    *m = (mhla_mark_at){.refs = 1, .tokens = s->ready, .bytes = bytes};
    unsigned char *to = m->data;
    for (int i = 0; i < layers; i++) {
        const mhla_mixer *x = mixer_of(s, i);
        const size_t size = x->mark_bytes(s->memory[i]);
        memcpy(to, &size, sizeof size);
        if (size > 0) x->mark(s->memory[i], to + sizeof size);
        to += sizeof size + size;
    }
    s->marks[s->n_marks++] = m;
    thin_marks(s);
}

static const mhla_mark_at *mark_at(const mhla_sequence *s, int64_t tokens) {
    for (int i = 0; i < s->n_marks; i++)
        if (s->marks[i]->tokens == tokens) return s->marks[i];
    return NULL;
}

/* ---- Going back ---- */

/* Where the newest mark is, at most at `tokens`; 0: there is none. */
static int64_t nearest_mark(const mhla_sequence *s, int64_t tokens) {
    int64_t found = 0;
    for (int i = 0; i < s->n_marks; i++)
        if (s->marks[i]->tokens <= tokens) found = s->marks[i]->tokens;
    return found;
}

int64_t mhla_sequence_nearest(const mhla_sequence *s, int64_t tokens) {
    for (int64_t before = -1; before != tokens;) { /* until all agree */
        before = tokens;
        for (int i = 0; i < s->reader->config->layers; i++)
            tokens = mixer_of(s, i)->nearest(s->memory[i], tokens, nearest_mark(s, tokens));
    }
    return tokens;
}

mhla_status mhla_sequence_return(mhla_sequence *s, int64_t place) {
    const mhla_mark_at *m = mark_at(s, place);
    const unsigned char *mark = m ? m->data : NULL;
    mhla_status status = MHLA_OK;
    for (int i = 0; i < s->reader->config->layers; i++) {
        size_t size = 0;
        if (mark) memcpy(&size, mark, sizeof size);
        const mhla_status one = mixer_of(s, i)->back(s->memory[i], place, size > 0 ? mark + sizeof size : NULL);
        if (one == MHLA_ENOMEM && place > 0) return mhla_sequence_return(s, 0);
        if (one != MHLA_OK) status = one;
        if (mark) mark += sizeof size + size;
    }
    while (s->n_marks > 0 && s->marks[s->n_marks - 1]->tokens > place) drop_mark(s->marks[--s->n_marks]);
    s->ready = place;
    return status;
}

mhla_status mhla_sequence_rollback(mhla_sequence *s, int64_t tokens) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    if (tokens < 0 || tokens > s->tokens)
        return mhla_fail(MHLA_ERANGE, "tokens is %lld: the sequence has %lld", (long long)tokens, (long long)s->tokens);
    if (tokens < s->ready) MHLA_TRY(mhla_sequence_return(s, mhla_sequence_nearest(s, tokens)));
    s->tokens = tokens;
    return MHLA_OK;
}
