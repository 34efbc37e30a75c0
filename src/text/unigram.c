#include "text/unigram.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

enum { NODES = 1 << 24 };
static const double UNKNOWN_PENALTY = 10.0;

/* ---- Building ---- */

mhla_status mhla_unigram_create(mhla_unigram *u, size_t count, size_t bytes, const char *file) {
    size_t slots = 1024;
    *u = (mhla_unigram){.count = count, .least = INFINITY};
    if (bytes >= NODES) return mhla_fail(MHLA_EDATA, "%s: pieces of %zu bytes in all are too many", file, bytes);
    while (slots < 2 * bytes) slots *= 2;
    u->mask = slots - 1;
    u->scores = mhla_alloc_zero((count + 1) * sizeof *u->scores);
    u->user = mhla_alloc_zero(count + 1);
    u->slots = mhla_alloc_zero(slots * sizeof *u->slots);
    u->node_capacity = bytes + 1;
    u->ids = mhla_alloc(u->node_capacity * sizeof *u->ids);
    if (!u->scores || !u->user || !u->slots || !u->ids)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu pieces", file, count);
    u->ids[0] = -1;
    u->nodes = 1;
    return MHLA_OK;
}

void mhla_unigram_free(mhla_unigram *u) {
    mhla_free(u->scores);
    mhla_free(u->user);
    mhla_free(u->slots);
    mhla_free(u->ids);
    *u = (mhla_unigram){0};
}

/* The slot of a node's child, taken or the empty one where it would be. */
static inline uint64_t *slot_of(const mhla_unigram *u, uint32_t node, unsigned char byte) {
    const uint32_t key = node << 8 | byte;
    size_t at = (size_t)(key * 0x9E3779B97F4A7C15u >> 24) & u->mask;
    while (u->slots[at] && (uint32_t)(u->slots[at] >> 32) != key) at = (at + 1) & u->mask;
    return &u->slots[at];
}

mhla_status mhla_unigram_add(mhla_unigram *u, int32_t id, const char *piece, size_t bytes, const char *file) {
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t *slot = slot_of(u, node, (unsigned char)piece[i]);
        if (*slot == 0) {
            if (u->nodes == u->node_capacity) return mhla_fail(MHLA_EDATA, "%s: its pieces are too many", file);
            u->ids[u->nodes] = -1;
            *slot = (uint64_t)(node << 8 | (unsigned char)piece[i]) << 32 | (uint32_t)u->nodes++;
        }
        node = (uint32_t)*slot;
    }
    if (bytes) u->ids[node] = id;
    if (bytes > u->longest) u->longest = bytes;
    return MHLA_OK;
}

/* ---- The best way ---- */

typedef struct mhla_unigram_step {
    double score; /* of all pieces up to here */
    int32_t start, id;
} step;

void mhla_unigram_work_free(mhla_unigram_work *work) {
    mhla_free(work->steps);
    *work = (mhla_unigram_work){0};
}

static inline void offer(step *to, double score, size_t start, int32_t id) {
    if (to->start >= 0 && !(score > to->score)) return;
    *to = (step){score, (int32_t)start, id};
}

/* SentencePiece: a sum that has come this far from 0 begins anew there, and those that were reached from before it with it, so
 * that float32 stays exact enough in a long text. */
static const double FARTHEST = 100000.0;

static void begin_anew(const mhla_unigram *u, step *steps, size_t at, size_t bytes) {
    const double fallen = steps[at].score;
    for (size_t i = at; i <= bytes && i <= at + u->longest; i++)
        if (steps[i].start >= 0) steps[i].score = (double)(float)(steps[i].score - fallen);
}

static void search(const mhla_unigram *u, step *steps, int32_t unk, const char *text, size_t bytes) {
    const int spm = u->sentencepiece;
    const double unknown = spm ? (double)((float)u->least - (float)UNKNOWN_PENALTY) : u->least - UNKNOWN_PENALTY;
    steps[0] = (step){0.0, 0, -1};
    for (size_t i = 1; i <= bytes; i++) steps[i].start = -1;
    for (size_t at = 0, length; at < bytes; at += length) {
        if (spm && fabs(steps[at].score) > FARTHEST) begin_anew(u, steps, at, bytes);
        const double here = steps[at].score;
        int single = 0;
        uint32_t node = 0;
        length = (size_t)mhla_utf8_length((const unsigned char *)text + at, bytes - at);
        for (size_t end = at; end < bytes;) {
            const uint64_t slot = *slot_of(u, node, (unsigned char)text[end]);
            if (slot == 0) break;
            node = (uint32_t)slot;
            end++;
            const int32_t id = u->ids[node];
            if (id < 0) continue;
            /* scores are logarithms of probabilities: a piece of the user's is above all of them, a longer one more so */
            const double own = u->user[id] ? 0.1 * (double)(end - at - 1) : u->scores[id];
            offer(&steps[end], spm ? (double)((float)own + (float)here) : own + here, at, id);
            single |= end - at == length;
        }
        if (!single) {
            const double score = spm ? (double)((float)unknown + (float)here) : unknown + here;
            offer(&steps[at + length], score, at, unk);
        }
    }
}

static int all_spare(const int32_t spare[256], const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (spare[(unsigned char)text[i]] < 0) return 0;
    return 1;
}

/* Unknown characters that stand together: what they are as one piece, their bytes, or one token for all of them. */
static mhla_status put_unknown(const mhla_unigram *u, const mhla_vocabulary *pieces, int32_t unk,
                               const int32_t spare[256], mhla_ids *ids, const char *text, size_t bytes) {
    const int32_t whole = u->sentencepiece ? -1 : mhla_vocabulary_find(pieces, text, bytes);
    if (whole >= 0 && (size_t)whole < u->count) return mhla_ids_append(ids, &whole, 1);
    if (all_spare(spare, text, bytes)) {
        for (size_t i = 0; i < bytes; i++) MHLA_TRY(mhla_ids_append(ids, &spare[(unsigned char)text[i]], 1));
        return MHLA_OK;
    }
    if (unk < 0)
        return mhla_fail(MHLA_EDATA, "%s is not a piece, and the tokenizer has no token for what it does not know",
                         mhla_quote_bytes(text, bytes).text);
    return mhla_ids_append(ids, &unk, 1);
}

mhla_status mhla_unigram_encode(const mhla_unigram *u, mhla_unigram_work *work, const mhla_vocabulary *pieces,
                                int32_t unk, const int32_t spare[256], mhla_ids *ids, const char *text, size_t bytes) {
    void *list = work->steps;
    if (bytes == 0) return MHLA_OK;
    if (bytes >= INT32_MAX) return mhla_fail(MHLA_ERANGE, "a text of %zu bytes is too long", bytes);
    MHLA_TRY(mhla_list_grow(&list, &work->capacity, bytes + 1, sizeof *work->steps));
    step *steps = work->steps = list;
    search(u, steps, unk, text, bytes);
    size_t next = bytes; /* the way back, turned round: from where a piece begins to where it ends */
    for (size_t end = bytes; end > 0;) {
        const size_t start = (size_t)steps[end].start;
        steps[end].start = (int32_t)next; /* where the piece behind it ends */
        next = end;
        end = start;
        if (start == 0) steps[0].start = (int32_t)next;
    }
    for (size_t at = 0, end; at < bytes; at = end) {
        end = (size_t)steps[at].start;
        const int32_t id = steps[end].id;
        if (id != unk) {
            MHLA_TRY(mhla_ids_append(ids, &id, 1));
            continue;
        }
        while (end < bytes && steps[(size_t)steps[end].start].id == unk) end = (size_t)steps[end].start;
        MHLA_TRY(put_unknown(u, pieces, unk, spare, ids, text + at, end - at));
    }
    return MHLA_OK;
}
