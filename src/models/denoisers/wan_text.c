/* The condition of Wan: rows of text, or classes; and what is kept of texts while clips are made. Keys and values of a text are the
 * same in every step, so that they are computed once and found again by the text itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/denoisers/wan.h"
#include "nn/op.h"

/* ---- Reading ---- */

/* Rows that cross attention has of a text of `length` rows: those, and one for all that are zero. */
static int64_t keys_of(const mhla_wan_config *c, int64_t length) {
    return length < c->text_length ? length + 1 : length;
}

/* What the last of them counts, as a term of its scores before they are scaled. */
static float count_of(const mhla_wan_config *c, int64_t length) {
    return (float)(log((double)(c->text_length - length)) * sqrt((double)c->dim / c->heads));
}

static mhla_status check_text(const mhla_tape *t, const mhla_wan_config *c, int64_t B, const mhla_condition *given) {
    const mhla_condition *x = given;
    if (mhla_tape_dry(t) && x) return MHLA_OK;
    if (x == NULL || x->rows == NULL || x->longest < 1)
        return mhla_fail(MHLA_EINVAL, "the model takes text, and none is given");
    for (int64_t b = 0; b < B; b++) {
        const int64_t n = x->lengths ? x->lengths[b] : x->longest;
        if (n < 0 || n > x->longest)
            return mhla_fail(MHLA_EINVAL, "lengths[%lld] is %lld: expected 0 to %lld", (long long)b, (long long)n,
                             (long long)x->longest);
        if (n > c->text_length)
            return mhla_fail(MHLA_EINVAL, "a text of %lld rows: the model takes at most %d", (long long)n,
                             c->text_length);
    }
    return MHLA_OK;
}

/* B texts from `rows` with `longest` rows each, embedded: S rows of each. */
static mhla_tensor *embed(mhla_tape *t, mhla_wan_text *text, const mhla_wan *m, const mhla_condition *given, int64_t B,
                          int64_t S) {
    const mhla_wan_config *c = &m->config;
    const int64_t W = c->text_width;
    float *rows = mhla_tape_floats(t, B * S * W), *counts = mhla_tape_floats(t, B * S);
    int32_t *lengths = mhla_tape_op(t, sizeof *lengths * (size_t)B);
    if (rows == NULL || counts == NULL || lengths == NULL) return NULL;
    for (int64_t b = 0; b < B && !mhla_tape_dry(t); b++) {
        const int64_t n = given->lengths ? given->lengths[b] : given->longest;
        lengths[b] = (int32_t)keys_of(c, n);
        memset(counts + b * S, 0, sizeof *counts * (size_t)S);
        memset(rows + b * S * W, 0, sizeof *rows * (size_t)(S * W));
        memcpy(rows + b * S * W, given->rows + b * given->longest * W, sizeof *rows * (size_t)(n * W));
        if (n < c->text_length) counts[b * S + n] = count_of(c, n);
    }
    *text = (mhla_wan_text){.lengths = lengths, .counted = 1, .counts = counts};
    mhla_tensor *x = mhla_nn_input(t, rows, MHLA_SHAPE(B, S, W));
    x = mhla_nn_linear(t, m->text0.w, m->text0.b, MHLA_ACT_GELU_TANH, NULL, x);
    return text->rows = mhla_nn_linear(t, m->text2.w, m->text2.b, MHLA_ACT_NONE, NULL, x);
}

static mhla_status read_labels(mhla_tape *t, mhla_wan_text *text, const mhla_wan *m, int64_t B,
                               const mhla_condition *given) {
    const int classes = m->config.classes, dry = mhla_tape_dry(t);
    if (!dry && (given == NULL || given->labels == NULL)) return mhla_fail(MHLA_EINVAL, "labels is NULL");
    for (int64_t b = 0; b < B && !dry; b++)
        if (given->labels[b] < 0 || given->labels[b] > classes)
            return mhla_fail(MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes and one label more for none",
                             (long long)b, given->labels[b], classes);
    *text = (mhla_wan_text){.rows = mhla_nn_embedding(t, m->labels, given ? given->labels : NULL, B, 1)};
    return mhla_tape_status(t);
}

mhla_status mhla_wan_read_text(mhla_tape *t, mhla_wan_text *text, mhla_wan *m, int64_t B,
                               const mhla_condition *condition) {
    if (m->config.classes) return read_labels(t, text, m, B, condition);
    MHLA_TRY(check_text(t, &m->config, B, condition));
    const int64_t S = condition->longest < m->config.text_length ? condition->longest + 1 : m->config.text_length;
    (void)embed(t, text, m, condition, B, S);
    return mhla_tape_status(t);
}

/* ---- Kept texts ---- */

enum { LEAST_KEPT = 16 };                   /* texts, at least ... */
static const size_t KEPT = (size_t)1 << 29; /* ... of all, in bytes */

struct mhla_wan_prompt {
    mhla_wan_prompt *next; /* used before this one */
    uint64_t version;      /* of the parameters */
    int64_t length, keys;  /* rows of the text; rows of keys and values */
    float *rows;           /* [length, text_width] */
    float *kv;             /* of each block: keys [keys, D + heads], values [keys, D] */
};

static int64_t key_width(const mhla_wan_config *c) { return c->dim + c->heads; }

static size_t prompt_bytes(const mhla_wan_config *c, int64_t length, int64_t keys) {
    return sizeof(float) * (size_t)(length * c->text_width + c->depth * keys * (key_width(c) + c->dim));
}

static void prompt_free(mhla_wan_prompt *p) {
    if (p == NULL) return;
    mhla_free(p->rows);
    mhla_free(p->kv);
    free(p);
}

void mhla_wan_prompts_free(mhla_wan *m) {
    while (m->prompts) {
        mhla_wan_prompt *p = m->prompts;
        m->prompts = p->next;
        prompt_free(p);
    }
}

/* Changes with every change of a parameter. */
static uint64_t version_of(const mhla_wan *m) {
    uint64_t sum = 0;
    for (int i = 0; i < mhla_params_count(m->params); i++) sum += mhla_params_at(m->params, i)->version;
    return sum;
}

/* Drops what was used longest ago until `bytes` more may be kept; the first `used` of the list are this batch's. */
static void make_room(mhla_wan *m, int64_t used, size_t bytes) {
    size_t all = bytes;
    int64_t n = 0;
    for (mhla_wan_prompt **at = &m->prompts; *at; n++) {
        mhla_wan_prompt *p = *at;
        all += prompt_bytes(&m->config, p->length, p->keys);
        if (n >= used && (n >= LEAST_KEPT || all > KEPT)) {
            *at = p->next;
            all -= prompt_bytes(&m->config, p->length, p->keys);
            prompt_free(p);
            continue;
        }
        at = &p->next;
    }
}

/* Finds a text and puts it first. */
static mhla_wan_prompt *find(mhla_wan *m, uint64_t version, const float *rows, int64_t n) {
    const size_t bytes = sizeof *rows * (size_t)(n * m->config.text_width);
    for (mhla_wan_prompt **at = &m->prompts; *at; at = &(*at)->next) {
        mhla_wan_prompt *p = *at;
        if (p->version != version || p->length != n || (n && memcmp(p->rows, rows, bytes) != 0)) continue;
        *at = p->next;
        p->next = m->prompts;
        return m->prompts = p;
    }
    return NULL;
}

static mhla_status fill(mhla_tape *t, mhla_wan_prompt *p, const mhla_wan *m) {
    const mhla_wan_config *c = &m->config;
    const int32_t length = (int32_t)p->length;
    const mhla_condition one = {.rows = p->rows, .lengths = &length, .longest = p->length};
    mhla_wan_text text;
    float *to = p->kv;
    if (embed(t, &text, m, &one, 1, p->keys) == NULL) return mhla_tape_status(t);
    const mhla_mark mark = mhla_tape_mark(t);
    for (int i = 0; i < c->depth; i++) {
        mhla_tensor *kv[2];
        mhla_wan_keys(t, kv, &m->blocks[i].cross, c, &text);
        MHLA_TRY(mhla_tape_status(t));
        for (int j = 0; j < 2; j++) {
            memcpy(to, kv[j]->data, sizeof *to * (size_t)(kv[j]->rows * kv[j]->cols));
            to += kv[j]->rows * kv[j]->cols;
        }
        mhla_tape_release(t, mark, NULL);
    }
    return MHLA_OK;
}

static mhla_status add(mhla_tape *t, mhla_wan *m, uint64_t version, const float *rows, int64_t n) {
    const mhla_wan_config *c = &m->config;
    const int64_t keys = keys_of(c, n);
    mhla_wan_prompt *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a text");
    *p = (mhla_wan_prompt){.version = version, .length = n, .keys = keys};
    p->rows = mhla_alloc(sizeof(float) * (size_t)(n * c->text_width + 1));
    p->kv = mhla_alloc(sizeof(float) * (size_t)(c->depth * keys * (key_width(c) + c->dim)));
    mhla_status status =
        p->rows && p->kv ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a text of %lld rows", (long long)n);
    if (status == MHLA_OK) {
        memcpy(p->rows, rows, sizeof *rows * (size_t)(n * c->text_width));
        const mhla_mark mark = mhla_tape_mark(t);
        status = fill(t, p, m);
        mhla_tape_release(t, mark, NULL);
    }
    if (status != MHLA_OK) {
        prompt_free(p);
        return status;
    }
    p->next = m->prompts;
    m->prompts = p;
    return MHLA_OK;
}

mhla_status mhla_wan_find_prompts(mhla_tape *t, mhla_wan_prompt **list, mhla_wan *m, int64_t B,
                                  const mhla_condition *condition) {
    const mhla_wan_config *c = &m->config;
    const uint64_t version = version_of(m);
    MHLA_TRY(check_text(t, c, B, condition));
    for (int64_t b = 0; b < B; b++) {
        const float *rows = condition->rows + b * condition->longest * c->text_width;
        const int64_t n = condition->lengths ? condition->lengths[b] : condition->longest;
        if (find(m, version, rows, n) == NULL) {
            make_room(m, b, prompt_bytes(c, n, keys_of(c, n)));
            MHLA_TRY(add(t, m, version, rows, n));
        }
        list[b] = m->prompts;
    }
    return MHLA_OK;
}

void mhla_wan_prompt_keys(mhla_tape *t, mhla_tensor *kv[2], mhla_wan_text *text, const mhla_wan *m, int i,
                          mhla_wan_prompt *const *list, int64_t B) {
    const int64_t widths[2] = {key_width(&m->config), m->config.dim};
    int64_t S = 1;
    for (int64_t b = 0; b < B; b++)
        if (list[b]->keys > S) S = list[b]->keys;
    int32_t *lengths = mhla_tape_op(t, sizeof *lengths * (size_t)B);
    kv[0] = kv[1] = NULL;
    if (lengths == NULL) return;
    for (int64_t b = 0; b < B; b++) lengths[b] = (int32_t)list[b]->keys;
    for (int j = 0; j < 2; j++) {
        float *all = B > 1 ? mhla_tape_floats(t, B * S * widths[j]) : NULL;
        if (B > 1 && all == NULL) return;
        for (int64_t b = 0; b < B; b++) {
            const int64_t keys = list[b]->keys;
            const float *from = list[b]->kv + i * keys * (widths[0] + widths[1]) + j * keys * widths[0];
            if (B == 1) kv[j] = mhla_nn_input(t, from, MHLA_SHAPE(1, S, widths[j]));
            if (B > 1) memcpy(all + b * S * widths[j], from, sizeof *all * (size_t)(keys * widths[j]));
        }
        if (B > 1) kv[j] = mhla_nn_input(t, all, MHLA_SHAPE(B, S, widths[j]));
    }
    *text = (mhla_wan_text){.lengths = lengths, .counted = 1};
}
