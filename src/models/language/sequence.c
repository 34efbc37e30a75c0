/* Sequences: making, forking, going back. sequence.h says how `ready` makes any of it safe.
 *
 * Going back: MHLA layers have the beginnings of their chunks, softmax layers every token (windowed ones the last few),
 * linear layers and convolutions nothing but the present. For the latter marks are kept, at distances that grow with
 * their age. */
#include "models/language/sequence.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"

enum {
    FIRST_ROOM = 256, /* tokens of a fresh cache, and that a windowed one keeps beyond its window to go back to */
    MAX_TOKENS = INT32_MAX
};

static const mhla_lm_mixer *mixer_of(const mhla_sequence *s, int layer) {
    return &s->reader->config->mixer[s->reader->config->kind[layer]];
}
static int has_stream(const mhla_sequence *s, int layer) {
    return s->reader->config->kind[layer] != MHLA_ATTENTION_SOFTMAX;
}
static const float *mix_of(const mhla_sequence *s, int layer) {
    const mhla_param *mix = mhla_lm_mix(s->reader->lm, layer);
    return mix ? mix->data : NULL;
}
static const mhla_plan *plan_of(const mhla_sequence *s, int layer) {
    return s->rules->plans[s->reader->config->kind[layer]];
}

/* ---- Making ---- */

static void free_layer(mhla_layer_memory *l) {
    mhla_state_free(l->stream);
    mhla_free(l->cache.k);
    mhla_free(l->cache.v);
    for (int w = 0; w < 3; w++) mhla_free(l->conv[w]);
}

static void drop_mark(mhla_mark_at *m) {
    if (m && --m->refs == 0) mhla_free(m);
}

void mhla_sequence_free(mhla_sequence *s) {
    if (s == NULL) return;
    for (int i = 0; s->layers && i < s->reader->config->layers; i++) free_layer(&s->layers[i]);
    for (int i = 0; i < s->n_marks; i++) drop_mark(s->marks[i]);
    mhla_free(s->layers);
    mhla_free(s->ids);
    mhla_free(s->note);
    mhla_rules_drop(s->reader, s->rules);
    s->reader->sequences--;
    mhla_free(s);
}

mhla_status mhla_sequence_make(mhla_sequence **sequence, mhla_reader *r, mhla_beyond beyond, int64_t max_tokens) {
    mhla_rules *rules;
    *sequence = NULL;
    MHLA_TRY(mhla_rules_get(&rules, r, beyond, max_tokens));
    mhla_sequence *s = mhla_alloc_zero(sizeof *s);
    mhla_layer_memory *layers = mhla_alloc_zero(sizeof *layers * (size_t)r->config->layers);
    if (s == NULL || layers == NULL) {
        mhla_free(s);
        mhla_free(layers);
        mhla_rules_drop(r, rules);
        mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
        return MHLA_ENOMEM;
    }
    *s = (mhla_sequence){.reader = r, .rules = rules, .max_tokens = max_tokens, .layers = layers};
    r->sequences++;
    *sequence = s;
    return MHLA_OK;
}

static mhla_status make_convs(mhla_sequence *s, int layer) {
    for (int w = 0; w < 3; w++) {
        const int64_t n = mhla_conv_floats(mixer_of(s, layer), w);
        if (n == 0) continue;
        s->layers[layer].conv[w] = mhla_alloc_zero(sizeof(float) * (size_t)n);
        if (s->layers[layer].conv[w] == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    }
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
    mhla_sequence *s;
    MHLA_TRY(mhla_sequence_make(&s, r, d.beyond, d.max_tokens));
    mhla_status status = MHLA_OK;
    for (int i = 0; i < r->config->layers && status == MHLA_OK; i++) {
        if (has_stream(s, i)) status = mhla_state_create(&s->layers[i].stream, plan_of(s, i), mix_of(s, i));
        if (status == MHLA_OK) status = make_convs(s, i);
    }
    if (status != MHLA_OK) {
        mhla_sequence_free(s);
        return status;
    }
    *sequence = s;
    return MHLA_OK;
}

mhla_status mhla_sequence_query(const mhla_sequence *s, mhla_sequence_desc *desc) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    const mhla_sequence_desc d = {.size = sizeof d, .beyond = s->rules->beyond, .max_tokens = s->max_tokens};
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
    size_t bytes = sizeof *s + sizeof *s->ids * (size_t)s->capacity + strlen(mhla_sequence_note(s));
    for (int i = 0; i < s->reader->config->layers; i++) {
        const mhla_lm_mixer *m = mixer_of(s, i);
        const mhla_layer_memory *l = &s->layers[i];
        bytes += sizeof *l + mhla_state_bytes(l->stream);
        bytes += sizeof(float) * (size_t)(l->cache.capacity * m->kv_heads * (m->key_dim + m->value_dim));
        for (int w = 0; w < 3; w++) bytes += sizeof(float) * (size_t)mhla_conv_floats(m, w);
    }
    for (int i = 0; i < s->n_marks; i++) bytes += s->marks[i]->bytes;
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

static mhla_status cache_resize(mhla_cache *c, const mhla_lm_mixer *m, int64_t capacity) {
    const int64_t K = (int64_t)m->kv_heads * m->key_dim, V = (int64_t)m->kv_heads * m->value_dim;
    float *k = mhla_alloc(sizeof *k * (size_t)(capacity * K)), *v = mhla_alloc(sizeof *v * (size_t)(capacity * V));
    if (k == NULL || v == NULL) {
        mhla_free(k);
        mhla_free(v);
        return mhla_fail(MHLA_ENOMEM, "no memory for the keys and values of %lld tokens", (long long)capacity);
    }
    if (c->count > 0) {
        memcpy(k, c->k, sizeof *k * (size_t)(c->count * K));
        memcpy(v, c->v, sizeof *v * (size_t)(c->count * V));
    }
    mhla_free(c->k);
    mhla_free(c->v);
    c->k = k;
    c->v = v;
    c->capacity = capacity;
    return MHLA_OK;
}

/* A window needs `window - 1` tokens before the next one. */
mhla_status mhla_cache_reserve(mhla_cache *c, const mhla_lm_mixer *m, int64_t n) {
    if (c->count + n <= c->capacity) return MHLA_OK;
    const int64_t keep = m->window - 1 + FIRST_ROOM;
    if (m->window > 0 && c->count >= 2 * keep) {
        const int64_t K = (int64_t)m->kv_heads * m->key_dim, V = (int64_t)m->kv_heads * m->value_dim;
        const int64_t gone = c->count - keep;
        memmove(c->k, c->k + gone * K, sizeof *c->k * (size_t)(keep * K));
        memmove(c->v, c->v + gone * V, sizeof *c->v * (size_t)(keep * V));
        c->first += gone;
        c->count = keep;
        if (c->count + n <= c->capacity) return MHLA_OK;
    }
    int64_t size = c->capacity + c->capacity / 2;
    if (size < FIRST_ROOM) size = FIRST_ROOM;
    if (size < c->count + n) size = c->count + n;
    return cache_resize(c, m, size);
}

/* ---- Forking ---- */

static mhla_status fork_layer(mhla_sequence *t, const mhla_sequence *s, int i) {
    const mhla_layer_memory *from = &s->layers[i];
    mhla_layer_memory *to = &t->layers[i];
    if (from->stream) return mhla_state_fork(&to->stream, from->stream);
    to->cache.first = from->cache.first;
    if (from->cache.count == 0) return MHLA_OK;
    const mhla_lm_mixer *m = mixer_of(s, i);
    MHLA_TRY(cache_resize(&to->cache, m, from->cache.count + FIRST_ROOM));
    to->cache.count = from->cache.count;
    const size_t tokens = (size_t)from->cache.count * (size_t)m->kv_heads;
    memcpy(to->cache.k, from->cache.k, sizeof(float) * tokens * (size_t)m->key_dim);
    memcpy(to->cache.v, from->cache.v, sizeof(float) * tokens * (size_t)m->value_dim);
    return MHLA_OK;
}

mhla_status mhla_sequence_fork(mhla_sequence **copy, const mhla_sequence *s) {
    if (copy == NULL) return mhla_fail(MHLA_EINVAL, "copy is NULL");
    *copy = NULL;
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    mhla_sequence *t;
    MHLA_TRY(mhla_sequence_make(&t, s->reader, s->rules->beyond, s->max_tokens));
    mhla_status status = mhla_sequence_reserve(t, s->tokens);
    if (status == MHLA_OK) status = mhla_sequence_set_note(t, s->note);
    for (int i = 0; i < s->reader->config->layers && status == MHLA_OK; i++) {
        status = fork_layer(t, s, i);
        if (status == MHLA_OK) status = make_convs(t, i);
        for (int w = 0; w < 3 && status == MHLA_OK; w++) {
            const int64_t n = mhla_conv_floats(mixer_of(s, i), w);
            if (n > 0) memcpy(t->layers[i].conv[w], s->layers[i].conv[w], sizeof(float) * (size_t)n);
            t->layers[i].conv_at[w] = s->layers[i].conv_at[w];
        }
    }
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

static size_t round8(size_t n) { return (n + 7) / 8 * 8; }

/* Bytes of a mark, or, with `to`, the bytes themselves: the state of linear layers, what convolutions remember. */
static size_t write_mark(const mhla_sequence *s, unsigned char *to) {
    size_t at = 0;
    for (int i = 0; i < s->reader->config->layers; i++) {
        const mhla_layer_memory *l = &s->layers[i];
        if (s->reader->config->kind[i] == MHLA_ATTENTION_LINEAR) {
            const size_t size = mhla_state_save_size(l->stream);
            if (to) memcpy(to + at, &size, sizeof size);
            if (to) mhla_state_save(l->stream, to + at + 8, size);
            at += 8 + round8(size);
        }
        for (int w = 0; w < 3; w++) {
            const size_t size = sizeof(float) * (size_t)mhla_conv_floats(mixer_of(s, i), w);
            if (to && size > 0) memcpy(to + at, l->conv[w], size);
            at += round8(size);
        }
    }
    return at;
}

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
    if (!s->reader->marking || s->ready == 0 || s->ready % s->reader->interval != 0) return;
    if (s->n_marks > 0 && s->marks[s->n_marks - 1]->tokens >= s->ready) return;
    const size_t bytes = write_mark(s, NULL);
    mhla_mark_at *m = mhla_alloc(sizeof *m + bytes);
    if (m == NULL) return; /* one can do without */
    *m = (mhla_mark_at){.refs = 1, .tokens = s->ready, .bytes = bytes};
    write_mark(s, m->data);
    s->marks[s->n_marks++] = m;
    thin_marks(s);
}

static const mhla_mark_at *mark_at(const mhla_sequence *s, int64_t tokens) {
    for (int i = 0; i < s->n_marks; i++)
        if (s->marks[i]->tokens == tokens) return s->marks[i];
    return NULL;
}

/* ---- Going back ---- */

/* Where something at `at` that cannot go back by itself can be, at most `tokens`. */
static int64_t nearest_mark(const mhla_sequence *s, int64_t at, int64_t tokens) {
    if (at <= tokens) return at;
    int64_t found = 0;
    for (int i = 0; i < s->n_marks; i++)
        if (s->marks[i]->tokens <= tokens) found = s->marks[i]->tokens;
    return found;
}

static int64_t nearest_cached(const mhla_cache *c, const mhla_lm_mixer *m, int64_t tokens) {
    if (c->first + c->count <= tokens) return c->first + c->count;
    return c->first == 0 || tokens - (m->window - 1) >= c->first ? tokens : 0;
}

int64_t mhla_sequence_nearest(const mhla_sequence *s, int64_t tokens) {
    const mhla_lm_config *c = s->reader->config;
    for (int64_t before = -1; before != tokens;) { /* until all agree */
        before = tokens;
        for (int i = 0; i < c->layers; i++) {
            const mhla_layer_memory *l = &s->layers[i];
            if (c->kind[i] == MHLA_ATTENTION_SOFTMAX) tokens = nearest_cached(&l->cache, mixer_of(s, i), tokens);
            if (c->kind[i] == MHLA_ATTENTION_MHLA) tokens = mhla_state_nearest(l->stream, tokens);
            if (c->kind[i] == MHLA_ATTENTION_LINEAR) tokens = nearest_mark(s, mhla_state_tokens(l->stream), tokens);
            for (int w = 0; w < 3; w++)
                if (l->conv[w]) tokens = nearest_mark(s, l->conv_at[w], tokens);
        }
    }
    return tokens;
}

/* Streams of linear layers as a mark has them, made before anything changes. */
static mhla_status load_streams(mhla_sequence *s, const mhla_mark_at *m, mhla_state **streams) {
    size_t at = 0;
    for (int i = 0; i < s->reader->config->layers; i++) {
        if (s->reader->config->kind[i] == MHLA_ATTENTION_LINEAR) {
            size_t size;
            memcpy(&size, m->data + at, sizeof size);
            MHLA_TRY(mhla_state_load(&streams[i], m->data + at + 8, size, plan_of(s, i), NULL));
            at += 8 + round8(size);
        }
        for (int w = 0; w < 3; w++) at += round8(sizeof(float) * (size_t)mhla_conv_floats(mixer_of(s, i), w));
    }
    return MHLA_OK;
}

static void restore_convs(mhla_sequence *s, const mhla_mark_at *m, int64_t place) {
    size_t at = 0;
    for (int i = 0; i < s->reader->config->layers; i++) {
        if (m && s->reader->config->kind[i] == MHLA_ATTENTION_LINEAR) {
            size_t size;
            memcpy(&size, m->data + at, sizeof size);
            at += 8 + round8(size);
        }
        for (int w = 0; w < 3; w++) {
            const size_t size = sizeof(float) * (size_t)mhla_conv_floats(mixer_of(s, i), w);
            mhla_layer_memory *l = &s->layers[i];
            if (size > 0 && m) memcpy(l->conv[w], m->data + at, size);
            if (size > 0 && place == 0) memset(l->conv[w], 0, size);
            if (m) at += round8(size);
            l->conv_at[w] = place;
        }
    }
}

mhla_status mhla_sequence_return(mhla_sequence *s, int64_t place, int must) {
    const mhla_lm_config *c = s->reader->config;
    int stands = 1; /* nothing of what needs a mark has moved */
    for (int i = 0; i < c->layers; i++) {
        stands &= c->kind[i] != MHLA_ATTENTION_LINEAR || mhla_state_tokens(s->layers[i].stream) == place;
        for (int w = 0; w < 3; w++) stands &= s->layers[i].conv[w] == NULL || s->layers[i].conv_at[w] == place;
    }
    const mhla_mark_at *m = stands || place == 0 ? NULL : mark_at(s, place);
    mhla_state *streams[MHLA_LM_LAYERS] = {0};
    mhla_status status = m ? load_streams(s, m, streams) : MHLA_OK;
    if (status != MHLA_OK) {
        for (int i = 0; i < c->layers; i++) mhla_state_free(streams[i]);
        if (!must) return status;
        return mhla_sequence_return(s, 0, 1);
    }
    for (int i = 0; i < c->layers; i++) {
        mhla_layer_memory *l = &s->layers[i];
        if (streams[i]) {
            mhla_state_free(l->stream);
            l->stream = streams[i];
        } else if (l->stream) { /* it can: mhla_sequence_nearest said so. Other weights are all that could be wrong */
            const mhla_status other = mhla_state_rollback(l->stream, place, plan_of(s, i), mix_of(s, i));
            if (other != MHLA_OK) status = other;
        } else {
            l->cache.count = place > l->cache.first ? place - l->cache.first : 0;
            if (place == 0) l->cache.first = 0;
        }
    }
    if (!stands) restore_convs(s, m, place);
    while (s->n_marks > 0 && s->marks[s->n_marks - 1]->tokens > place) drop_mark(s->marks[--s->n_marks]);
    s->ready = place;
    return status;
}

mhla_status mhla_sequence_rollback(mhla_sequence *s, int64_t tokens) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    if (tokens < 0 || tokens > s->tokens)
        return mhla_fail(MHLA_ERANGE, "tokens is %lld: the sequence has %lld", (long long)tokens, (long long)s->tokens);
    if (tokens < s->ready) MHLA_TRY(mhla_sequence_return(s, mhla_sequence_nearest(s, tokens), 0));
    s->tokens = tokens;
    return MHLA_OK;
}
