/* Texts to rows that a model of images or videos is conditioned on, by a text encoder: their tokens, and which of the rows are
 * kept. */
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/model.h"

mhla_status mhla_text_encoder_query(const mhla_model *m, mhla_text_encoder_info *info) {
    mhla_encoder_info e;
    MHLA_TRY(mhla_encoder_query(m, &e));
    const mhla_text_encoder_info full = {
        .size = sizeof full, .vocabulary = e.vocabulary, .width = e.width, .longest = e.longest};
    return mhla_struct_out(info, &full, sizeof full, "mhla_text_encoder_info");
}

/* ---- Tokens ---- */

static mhla_status check_ids(const mhla_encoder_info *e, const int32_t *ids, const int32_t *lengths, int64_t B,
                             int64_t T) {
    if (e->longest && T > e->longest)
        return mhla_fail(MHLA_ERANGE, "texts of %lld tokens: the model takes %lld", (long long)T,
                         (long long)e->longest);
    for (int64_t b = 0; b < B; b++) {
        const int64_t n = lengths ? lengths[b] : T;
        if (n < 0 || n > T)
            return mhla_fail(MHLA_EINVAL, "lengths[%lld] is %lld: expected 0 to %lld", (long long)b, (long long)n,
                             (long long)T);
        for (int64_t i = 0; i < n; i++)
            if (ids[b * T + i] < 0 || ids[b * T + i] >= e->vocabulary)
                return mhla_fail(MHLA_EINVAL, "ids[%lld] of text %lld is %d: the model has %d tokens", (long long)i,
                                 (long long)b, ids[b * T + i], e->vocabulary);
    }
    return MHLA_OK;
}

mhla_status mhla_text_encode_ids(mhla_model *m, float *rows, const int32_t *ids, const int32_t *lengths, int64_t B,
                                 int64_t T) {
    mhla_encoder_info e;
    MHLA_TRY(mhla_encoder_query(m, &e));
    if (rows == NULL || ids == NULL || B < 0 || T < 1 || T > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "%s",
                         rows == NULL  ? "rows is NULL"
                         : ids == NULL ? "ids is NULL"
                         : B < 0       ? "B is negative"
                                       : "T is not a number of tokens");
    MHLA_TRY(check_ids(&e, ids, lengths, B, T));
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    if (e.together && B > 0) {
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        const mhla_tensor *y = mhla_encoder_forward(m->tape, m, ids, lengths, B, T);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(rows, y->data, (size_t)(B * T * e.width) * sizeof *rows);
        return MHLA_OK;
    }
    /* One text at a time: products of few rows round otherwise than those of many, and rows must not depend on other texts. */
    for (int64_t b = 0; b < B; b++) {
        const int32_t n = lengths ? lengths[b] : (int32_t)T;
        float *to = rows + b * T * e.width;
        memset(to + n * e.width, 0, (size_t)((T - n) * e.width) * sizeof *to);
        if (n == 0) continue;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        const mhla_tensor *y = mhla_encoder_forward(m->tape, m, ids + b * T, &n, 1, n);
        MHLA_TRY(mhla_tape_status(m->tape));
        for (int64_t i = 0; i < n; i++) memcpy(to + i * e.width, y->data + i * y->ld, (size_t)e.width * sizeof *to);
    }
    return MHLA_OK;
}

/* ---- Texts ---- */

typedef struct job {
    mhla_model *m;
    mhla_encoder_desc d;
    mhla_encoder_info e;
    int ends;           /* the tokenizer puts a token behind each text */
    int64_t skip;       /* rows behind the first that are left out: of the instruction */
    int64_t limit;      /* tokens of a text that the model reads; 0: any number */
    mhla_ids *ids;      /* [texts] */
    mhla_text_rows out; /* what becomes the caller's */
} job;

static mhla_status tokens_of(const job *j, mhla_ids *ids, const char *first, const char *text) {
    const size_t n = strlen(first), k = strlen(text);
    char *whole = mhla_alloc(n + k + 1);
    if (whole == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a text of %zu bytes", n + k);
    snprintf(whole, n + k + 1, "%s%s", first, text);
    const mhla_status status = mhla_tokenizer_encode(j->d.tokenizer, ids, whole, n + k, MHLA_ENCODE_SPECIAL);
    mhla_free(whole);
    return status;
}

static mhla_status prepare(job *j, int64_t texts) {
    mhla_tokenizer_info t = {.size = sizeof t};
    mhla_ids instruction = {0};
    if (j->d.longest < 0 || (j->d.longest && j->d.longest < 2))
        return mhla_fail(MHLA_EINVAL, "longest is %lld: expected 0, or 2 or more", (long long)j->d.longest);
    if (j->d.tokenizer == NULL && (j->d.tokenizer = mhla_lm_tokenizer(j->m)) == NULL) return MHLA_EINVAL;
    MHLA_TRY(mhla_tokenizer_query(j->d.tokenizer, &t));
    j->ends = t.adds_eos;
    if (j->d.instruction) {
        MHLA_TRY(tokens_of(j, &instruction, j->d.instruction, ""));
        const int64_t n = instruction.count - j->ends;
        j->skip = n > 2 ? n - 2 : 0;
        mhla_ids_free(&instruction);
    }
    j->limit = j->d.longest ? j->d.longest + j->skip : j->e.longest;
    if (j->e.longest && j->limit > j->e.longest) j->limit = j->e.longest;
    if (j->e.longest && j->skip + 2 > j->e.longest)
        return mhla_fail(MHLA_ERANGE, "the instruction has %lld tokens: the model takes %lld", (long long)j->skip + 2,
                         (long long)j->e.longest);
    j->ids = calloc((size_t)texts + 1, sizeof *j->ids);
    j->out.lengths = calloc((size_t)texts + 1, sizeof *j->out.lengths);
    j->out.cut = calloc((size_t)texts + 1, sizeof *j->out.cut);
    if (j->ids && j->out.lengths && j->out.cut) return MHLA_OK;
    return mhla_fail(MHLA_ENOMEM, "no memory for %lld texts", (long long)texts);
}

/* The tokens of text i, not too many; how many rows it will have. */
static mhla_status read_text(job *j, int64_t i, const char *text) {
    mhla_ids *ids = &j->ids[i];
    if (text == NULL) return mhla_fail(MHLA_EINVAL, "texts[%lld] is NULL", (long long)i);
    const mhla_status status = tokens_of(j, ids, j->d.instruction ? j->d.instruction : "", text);
    if (status != MHLA_OK) return mhla_fail(status, "text %lld: %s", (long long)i, mhla_message());
    for (int64_t k = 0; k < ids->count; k++)
        if (ids->data[k] < 0 || ids->data[k] >= j->e.vocabulary)
            return mhla_fail(MHLA_EINVAL, "text %lld has token %d, the model has %d: it is not its tokenizer",
                             (long long)i, ids->data[k], j->e.vocabulary);
    if (j->limit && ids->count > j->limit) {
        const int32_t last = ids->data[ids->count - 1];
        j->out.cut[i] = ids->count - j->limit;
        ids->count = j->limit;
        if (j->ends) ids->data[ids->count - 1] = last;
    }
    if (ids->count > INT32_MAX) return mhla_fail(MHLA_ERANGE, "text %lld is too long", (long long)i);
    j->out.lengths[i] = (int32_t)(ids->count > j->skip ? ids->count - j->skip : ids->count);
    if (j->out.lengths[i] > j->out.longest) j->out.longest = j->out.lengths[i];
    return MHLA_OK;
}

enum { GROUP = 16 }; /* texts that are encoded at once */

/* All rows of texts first .. first+n-1, of which those of the instruction are then left out. */
static mhla_status encode_group(const job *j, int64_t first, int64_t n) {
    const int64_t width = j->e.width;
    int64_t longest = 0;
    int32_t lengths[GROUP];
    for (int64_t i = 0; i < n; i++) {
        lengths[i] = (int32_t)j->ids[first + i].count;
        if (lengths[i] > longest) longest = lengths[i];
    }
    if (longest == 0) return MHLA_OK;
    int32_t *ids = mhla_alloc_zero((size_t)(n * longest) * sizeof *ids);
    float *rows = mhla_alloc((size_t)(n * longest * width) * sizeof *rows);
    mhla_status status =
        ids && rows ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld rows", (long long)(n * longest));
    for (int64_t i = 0; i < n && status == MHLA_OK; i++)
        memcpy(ids + i * longest, j->ids[first + i].data, (size_t)lengths[i] * sizeof *ids);
    if (status == MHLA_OK) status = mhla_text_encode_ids(j->m, rows, ids, lengths, n, longest);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        const int64_t kept = j->out.lengths[first + i], skip = lengths[i] - kept, head = skip ? 1 : 0;
        float *to = j->out.rows + (first + i) * j->out.longest * width;
        const float *from = rows + i * longest * width;
        if (head) memcpy(to, from, (size_t)width * sizeof *to);
        memcpy(to + head * width, from + (head + skip) * width, (size_t)((kept - head) * width) * sizeof *to);
    }
    mhla_free(ids);
    mhla_free(rows);
    return status;
}

static mhla_status encode_all(job *j, const char *const *texts, int64_t count) {
    MHLA_TRY(prepare(j, count));
    for (int64_t i = 0; i < count; i++) MHLA_TRY(read_text(j, i, texts[i]));
    j->out.texts = count;
    j->out.width = j->e.width;
    j->out.rows = calloc((size_t)(count * j->out.longest * j->e.width) + 1, sizeof *j->out.rows);
    if (j->out.rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the rows of %lld texts", (long long)count);
    for (int64_t i = 0; i < count; i += GROUP) MHLA_TRY(encode_group(j, i, count - i < GROUP ? count - i : GROUP));
    return MHLA_OK;
}

mhla_status mhla_text_encode(mhla_model *m, mhla_text_rows *rows, const char *const *texts, int64_t count,
                             const mhla_encoder_desc *desc) {
    job j = {.m = m, .d = {.size = sizeof j.d}, .out = {.size = sizeof j.out}};
    MHLA_TRY(mhla_encoder_query(m, &j.e));
    MHLA_TRY(mhla_struct_check(rows, MHLA_UP_TO(mhla_text_rows, cut), "mhla_text_rows"));
    if (desc) MHLA_TRY(mhla_struct_in(&j.d, sizeof j.d, desc, "mhla_encoder_desc"));
    if (texts == NULL || count < 0)
        return mhla_fail(MHLA_EINVAL, "%s", texts == NULL ? "texts is NULL" : "count is negative");
    mhla_status status = encode_all(&j, texts, count);
    for (int64_t i = 0; i < count && j.ids; i++) mhla_ids_free(&j.ids[i]);
    free(j.ids);
    if (status == MHLA_OK) status = mhla_struct_out(rows, &j.out, sizeof j.out, "mhla_text_rows");
    if (status != MHLA_OK) mhla_text_rows_free(&j.out);
    return status;
}

void mhla_text_rows_free(mhla_text_rows *rows) {
    if (!mhla_struct_holds(rows, MHLA_UP_TO(mhla_text_rows, cut))) return;
    free(rows->rows);
    free(rows->lengths);
    free(rows->cut);
    rows->rows = NULL;
    rows->lengths = NULL;
    rows->cut = NULL;
}
