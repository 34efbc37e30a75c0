/* SentencePiece's tokenizer.model: a protocol buffer, read by hand as hostile input, BPE or unigram. A BPE model has scores
 * and no list of merges; any two neighbours whose text together is a piece may become it, the highest score first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

/* ---- Protocol buffers ---- */

typedef struct message {
    const unsigned char *base; /* of the file, for messages */
    const unsigned char *at, *end;
} message;

typedef struct field {
    uint32_t number;
    int wire; /* 0 varint, 1 eight bytes, 2 bytes, 5 four bytes */
    uint64_t value;
    message bytes; /* wire 2 */
} field;

static int read_varint(message *m, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 70 && m->at < m->end; shift += 7) {
        const unsigned char c = *m->at++;
        if (shift < 64) *value |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) return 1;
    }
    return 0;
}

/* The next field: 1, 0 at the end, -1 if the bytes are none. */
static int read_field(message *m, field *f) {
    if (m->at == m->end) return 0;
    uint64_t tag, length;
    if (!read_varint(m, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return -1;
    *f = (field){.number = (uint32_t)(tag >> 3), .wire = (int)(tag & 7)};
    const size_t left = (size_t)(m->end - m->at), fixed = f->wire == 1 ? 8 : 4;
    switch (f->wire) {
    case 0: return read_varint(m, &f->value) ? 1 : -1;
    case 1:
    case 5:
        if (left < fixed) return -1;
        for (size_t i = 0; i < fixed; i++) f->value |= (uint64_t)m->at[i] << (8 * i);
        m->at += fixed;
        return 1;
    case 2:
        if (!read_varint(m, &length) || length > (uint64_t)(m->end - m->at)) return -1;
        f->bytes = (message){m->base, m->at, m->at + length};
        m->at += length;
        return 1;
    default: return -1;
    }
}

static mhla_status not_a_model(const message *m, const char *name) {
    return mhla_fail(MHLA_EDATA, "%s: byte %zu is not a field of a SentencePiece model", name,
                     (size_t)(m->at - m->base));
}

/* ---- Scores ---- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

enum { SCORED_BYTES = 256 }; /* of a piece that is merged: all ways to cut it are tried */

/* Characters inside of pieces that are no pieces themselves: symbols behind the vocabulary. */
static mhla_status add_characters(mhla_tokenizer *t, const char *piece, size_t bytes, const char *file) {
    for (size_t i = 0, n; i < bytes; i += n) {
        n = (size_t)mhla_utf8_length((const unsigned char *)piece + i, bytes - i);
        if (n == bytes || mhla_vocabulary_find(&t->bpe.symbols, piece + i, n) >= 0) continue;
        const size_t next = t->bpe.symbols.count > t->pieces.count ? t->bpe.symbols.count : t->pieces.count;
        MHLA_TRY(mhla_vocabulary_set(&t->bpe.symbols, (int32_t)next, piece + i, n, file));
    }
    return MHLA_OK;
}

mhla_status mhla_scores_merges(mhla_tokenizer *t, const float *scores, const unsigned char *types, const char *file) {
    const size_t count = t->pieces.count;
    scored *list = mhla_alloc((count + 1) * sizeof *list);
    if (list == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu scores", file, count);
    size_t used = 0;
    mhla_status status = MHLA_OK;
    for (size_t id = 0; id < count && status == MHLA_OK; id++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        if (piece == NULL || n == 0 || types[id] != MHLA_TYPE_NORMAL) continue;
        if (isnan(scores[id]) || n > SCORED_BYTES)
            status = mhla_fail(MHLA_EDATA, "%s: piece %zu has %s", file, id,
                               n > SCORED_BYTES ? "more than 256 bytes" : "no number as its score");
        else
            status = mhla_vocabulary_set(&t->bpe.symbols, (int32_t)id, piece, n, file);
        list[used++] = (scored){scores[id], (int32_t)id};
    }
    for (size_t i = 0; i < used && status == MHLA_OK; i++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, list[i].id, &n);
        status = add_characters(t, piece, n, file);
    }
    qsort(list, used, sizeof *list, by_score);
    uint32_t rank = 0; /* equal scores have equal ranks: the leftmost of them is first */
    for (size_t i = 0; i < used && status == MHLA_OK; i++) {
        if (i > 0 && list[i].score != list[i - 1].score) rank++;
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, list[i].id, &n);
        for (size_t cut = 1; cut < n && status == MHLA_OK; cut++) {
            if (((unsigned char)piece[cut] & 0xc0) == 0x80) continue;
            const int32_t left = mhla_vocabulary_find(&t->bpe.symbols, piece, cut);
            const int32_t right = left < 0 ? -1 : mhla_vocabulary_find(&t->bpe.symbols, piece + cut, n - cut);
            if (right >= 0) status = mhla_bpe_merge_add(&t->bpe, left, right, rank, list[i].id);
        }
    }
    mhla_free(list);
    t->bpe.late = 1;
    t->bpe.fuse_unk = 1;
    return status;
}

mhla_status mhla_sentencepiece_around(mhla_tokenizer *t, int dummy_prefix, int escape) {
    static const char mark[] = "\xe2\x96\x81";
    mhla_normalizer *n;
    if (dummy_prefix) {
        MHLA_TRY(mhla_tokenizer_new_normalizer(t, &n));
        n->kind = MHLA_NORMALIZE_PREPEND;
        n->bytes = escape ? 3 : 1;
        MHLA_TRY(mhla_text_copy(&n->content, escape ? mark : " ", n->bytes));
    }
    if (escape) {
        MHLA_TRY(mhla_tokenizer_new_normalizer(t, &n));
        n->kind = MHLA_NORMALIZE_REPLACE;
        n->bytes = 3;
        MHLA_TRY(mhla_text_copy(&n->content, mark, 3));
        MHLA_TRY(mhla_pattern_literal(&n->pattern, " ", 1));
    }
    t->decoding.kind = MHLA_DECODER_SENTENCEPIECE;
    t->decoding.dummy_prefix = dummy_prefix;
    return MHLA_OK;
}

/* ---- The file ---- */

typedef struct model {
    float *scores;
    size_t score_capacity, type_capacity;
    int64_t type, bos, eos, pad, suffix;
    int64_t dummy_prefix, squeeze, escape;
    int64_t unused; /* a piece of that type, -1 */
    message charsmap;
} model;

static mhla_status read_piece(mhla_tokenizer *t, model *m, message bytes, const char *name) {
    field f;
    const char *piece = NULL;
    size_t length = 0;
    uint32_t score = 0;
    uint64_t type = MHLA_TYPE_NORMAL;
    int got;
    while ((got = read_field(&bytes, &f)) > 0) {
        if (f.number == 1 && f.wire == 2) piece = (const char *)f.bytes.at, length = (size_t)(f.bytes.end - f.bytes.at);
        if (f.number == 2 && f.wire == 5) score = (uint32_t)f.value;
        if (f.number == 3 && f.wire == 0) type = f.value;
    }
    const int32_t id = (int32_t)t->pieces.count;
    if (got < 0 || piece == NULL) return not_a_model(&bytes, name);
    if (mhla_utf8_broken((const unsigned char *)piece, length) < length)
        return mhla_fail(MHLA_EDATA, "%s: piece %d is not UTF-8", name, id);
    if (type < MHLA_TYPE_NORMAL || type > MHLA_TYPE_BYTE)
        return mhla_fail(MHLA_EDATA, "%s: piece %d is of type %llu", name, id, (unsigned long long)type);
    if (type == MHLA_TYPE_UNUSED) m->unused = id;
    void *scores = m->scores, *types = t->types;
    MHLA_TRY(mhla_list_grow(&scores, &m->score_capacity, (size_t)id + 1, sizeof *m->scores));
    m->scores = scores;
    MHLA_TRY(mhla_list_grow(&types, &m->type_capacity, (size_t)id + 1, 1));
    t->types = types;
    MHLA_TRY(mhla_vocabulary_set(&t->pieces, id, piece, length, name));
    memcpy(&m->scores[id], &score, sizeof score);
    t->types[id] = (unsigned char)type;
    return MHLA_OK;
}

/* Numbers of fields of TrainerSpec and NormalizerSpec, and where they go. */
static mhla_status read_spec(model *m, message bytes, int trainer, const char *name) {
    field f;
    int got;
    while ((got = read_field(&bytes, &f)) > 0) {
        if (!trainer && f.number == 2 && f.wire == 2) m->charsmap = f.bytes;
        if (f.wire != 0) continue;
        const int32_t value = (int32_t)(uint32_t)f.value; /* ids are int32, -1 for none */
        if (trainer && f.number == 3) m->type = value;
        if (trainer && f.number == 24) m->suffix = value;
        if (trainer && f.number == 41) m->bos = value;
        if (trainer && f.number == 42) m->eos = value;
        if (trainer && f.number == 43) m->pad = value;
        if (!trainer && f.number == 3) m->dummy_prefix = value;
        if (!trainer && f.number == 4) m->squeeze = value;
        if (!trainer && f.number == 5) m->escape = value;
    }
    return got < 0 ? not_a_model(&bytes, name) : MHLA_OK;
}

static int32_t checked_id(const mhla_tokenizer *t, int64_t id) {
    return id >= 0 && id < (int64_t)t->pieces.count && t->types[id] == MHLA_TYPE_CONTROL ? (int32_t)id : -1;
}

/* Pieces of the user are found in the normalised text and never merged; the byte and the unknown one are noted. */
static mhla_status note_types(mhla_tokenizer *t, const char *name) {
    for (size_t id = 0; id < t->pieces.count; id++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        if (t->types[id] == MHLA_TYPE_UNKNOWN) t->bpe.unk = (int32_t)id;
        if (t->types[id] == MHLA_TYPE_USER && t->unigram.scores == NULL) {
            const mhla_added a = {.id = (int32_t)id, .content = (char *)piece, .bytes = n, .normalized = 2};
            MHLA_TRY(mhla_tokenizer_add(t, &a, name));
        }
        if (t->types[id] == MHLA_TYPE_BYTE) {
            char *end = NULL;
            const unsigned long byte = n == 6 ? strtoul(piece + 3, &end, 16) : 256;
            if (byte > 255 || memcmp(piece, "<0x", 3) != 0 || end != piece + 5 || *end != '>')
                return mhla_fail(MHLA_EDATA, "%s: piece %zu is %s: expected a byte such as <0x0A>", name, id,
                                 mhla_quote_bytes(piece, n).text);
            t->bpe.spare[byte] = (int32_t)id;
        }
    }
    return MHLA_OK;
}

/* Normal pieces have scores, those of the user are to win, those of other types are not found in text. */
static mhla_status add_scores(mhla_tokenizer *t, const model *m, const char *name) {
    mhla_unigram *u = &t->unigram;
    size_t n, all = 0;
    for (size_t id = 0; id < t->pieces.count; id++) {
        mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        all += n;
    }
    MHLA_TRY(mhla_unigram_create(u, t->pieces.count, all, name));
    u->sentencepiece = 1;
    for (size_t id = 0; id < t->pieces.count; id++) {
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        const float score = m->scores[id];
        if (t->types[id] != MHLA_TYPE_NORMAL && t->types[id] != MHLA_TYPE_USER) continue;
        if (isnan(score)) return mhla_fail(MHLA_EDATA, "%s: piece %zu has no number as its score", name, id);
        u->scores[id] = (double)score;
        u->user[id] = t->types[id] == MHLA_TYPE_USER;
        if (!u->user[id] && u->scores[id] < u->least) u->least = u->scores[id];
        MHLA_TRY(mhla_unigram_add(u, (int32_t)id, piece, n, name));
    }
    return MHLA_OK;
}

/* The rules, and all that is done to spaces, in one go. SentencePiece takes pieces of the user as they are: where a rule would
 * change one, that is not known here. */
static mhla_status add_rules(mhla_tokenizer *t, const model *m, const char *name) {
    mhla_normalizer *n;
    MHLA_TRY(mhla_tokenizer_new_normalizer(t, &n));
    n->kind = MHLA_NORMALIZE_SENTENCEPIECE;
    n->squeeze = m->squeeze != 0;
    n->prefix = m->dummy_prefix != 0;
    n->escape = m->escape != 0;
    if (m->charsmap.at != m->charsmap.end)
        MHLA_TRY(mhla_charsmap_read(&n->map, m->charsmap.at, (size_t)(m->charsmap.end - m->charsmap.at), name));
    for (size_t id = 0; id < t->pieces.count; id++) {
        size_t bytes, length;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &bytes);
        for (size_t i = 0; i < bytes && t->types[id] == MHLA_TYPE_USER; i++)
            if (mhla_charsmap_find(&n->map, piece + i, bytes - i, 0, &length))
                return mhla_fail(MHLA_ENOTSUP,
                                 "%s: rules of normalisation that change a piece of the user, %s, are not known "
                                 "here",
                                 name, mhla_quote_bytes(piece, bytes).text);
    }
    t->decoding.kind = MHLA_DECODER_SENTENCEPIECE;
    t->decoding.dummy_prefix = n->prefix;
    t->decoding.squeeze = n->squeeze;
    return MHLA_OK;
}

static mhla_status read_model(mhla_tokenizer *t, model *m, message bytes, const char *name) {
    field f;
    int got;
    while ((got = read_field(&bytes, &f)) > 0) {
        if (f.wire == 2 && f.number == 1) MHLA_TRY(read_piece(t, m, f.bytes, name));
        if (f.wire == 2 && (f.number == 2 || f.number == 3)) MHLA_TRY(read_spec(m, f.bytes, f.number == 2, name));
    }
    if (got < 0) return not_a_model(&bytes, name);
    if (t->pieces.count == 0) return mhla_fail(MHLA_EDATA, "%s: no pieces: is this a SentencePiece model?", name);
    static const char *const types[] = {"", "unigram", "BPE", "word", "character"};
    const int unigram = m->type == 1, rules = m->charsmap.at != m->charsmap.end;
    if (m->type != 2 && !unigram)
        return mhla_fail(MHLA_ENOTSUP, "%s: a SentencePiece model of type %s: only unigram and BPE are known", name,
                         m->type >= 1 && m->type <= 4 ? types[m->type] : "unknown");
    if (m->unused >= 0 && !unigram)
        return mhla_fail(MHLA_ENOTSUP, "%s: piece %lld is marked as unused, which is not known of BPE", name,
                         (long long)m->unused);
    if (m->suffix) return mhla_fail(MHLA_ENOTSUP, "%s: spaces as suffixes are not known here", name);
    if (unigram) MHLA_TRY(add_scores(t, m, name));
    MHLA_TRY(note_types(t, name));
    if (!unigram) MHLA_TRY(mhla_scores_merges(t, m->scores, t->types, name));
    if (!unigram && !rules && !m->squeeze) /* the usual ones, in less time */
        MHLA_TRY(mhla_sentencepiece_around(t, m->dummy_prefix != 0, m->escape != 0));
    else
        MHLA_TRY(add_rules(t, m, name));
    const int fallback = t->bpe.spare[0] >= 0;
    t->kind = unigram    ? fallback ? "SentencePiece unigram, byte fallback" : "SentencePiece unigram"
              : fallback ? "SentencePiece bpe, byte fallback"
                         : "SentencePiece bpe";
    t->bos = checked_id(t, m->bos);
    t->eos = checked_id(t, m->eos);
    t->pad = checked_id(t, m->pad);
    if (t->bos >= 0) MHLA_TRY(mhla_ids_append(&t->before, &t->bos, 1)); /* as those do who use such files alone */
    MHLA_TRY(mhla_tokenizer_finish(t, name));
    for (size_t id = 0; id < t->pieces.count; id++) t->special[id] |= t->types[id] == MHLA_TYPE_CONTROL;
    return MHLA_OK;
}

mhla_status mhla_tokenizer_parse_model(mhla_tokenizer **tokenizer, const unsigned char *bytes, size_t size,
                                       const char *name) {
    *tokenizer = NULL;
    if (size == 0) return mhla_fail(MHLA_EDATA, "%s: empty, expected a tokenizer", name);
    mhla_tokenizer *t = NULL;
    MHLA_TRY(mhla_tokenizer_new(&t));
    model m = {.type = 1, .unused = -1, .bos = 1, .eos = 2, .pad = -1, .dummy_prefix = 1, .squeeze = 1, .escape = 1};
    const mhla_status status = read_model(t, &m, (message){bytes, bytes, bytes + size}, name);
    mhla_free(m.scores);
    if (status != MHLA_OK)
        mhla_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}
