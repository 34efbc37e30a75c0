#include "text/bpe.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

enum { NONE = -1, NO_RANK = -1, SHORT = 40, SLOTS = 1 << 15, KEY = 30, CACHED = 8 };

/* Words seen before, by their hash; a newer one takes the place. 64 bytes each. */
typedef struct cached {
    unsigned char length, count; /* length 0: empty */
    char key[KEY];
    int32_t ids[CACHED];
} cached;

/* A symbol of a word: its neighbours, the bytes it stands for, and what it and the next one would become. */
typedef struct symbol {
    int32_t id, prev, next, merged;
    uint32_t rank; /* NO_RANK: no pair */
    uint32_t start, length;
} symbol;

struct mhla_bpe_work {
    cached *cache; /* [SLOTS] */
    symbol *symbols;
    size_t symbol_capacity;
    uint64_t *heap; /* rank << 32 | position */
    size_t heap_count, heap_capacity;
};

/* ---- Building ---- */

void mhla_bpe_free(mhla_bpe *b) {
    mhla_vocabulary_free(&b->symbols);
    mhla_free(b->pairs);
    b->pairs = NULL;
}

static inline size_t pair_slot(const mhla_bpe *b, uint64_t key) {
    return (size_t)((key * 0x9E3779B97F4A7C15u ^ key >> 29) * 0xBF58476D1CE4E5B9u >> 31) & b->mask;
}

static inline const struct mhla_bpe_pair *pair_find(const mhla_bpe *b, int32_t left, int32_t right) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t at = pair_slot(b, key);; at = (at + 1) & b->mask) {
        if (b->pairs[at].key == key) return &b->pairs[at];
        if (b->pairs[at].key == UINT64_MAX) return NULL;
    }
}

static mhla_status rehash(mhla_bpe *b) {
    const size_t size = b->pairs ? 2 * (b->mask + 1) : 1024, old_size = b->pairs ? b->mask + 1 : 0;
    struct mhla_bpe_pair *old = b->pairs, *pairs = mhla_alloc(size * sizeof *pairs);
    if (pairs == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu merges", b->used);
    for (size_t i = 0; i < size; i++) pairs[i].key = UINT64_MAX;
    b->pairs = pairs;
    b->mask = size - 1;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i].key == UINT64_MAX) continue;
        size_t at = pair_slot(b, old[i].key);
        while (pairs[at].key != UINT64_MAX) at = (at + 1) & b->mask;
        pairs[at] = old[i];
    }
    mhla_free(old);
    return MHLA_OK;
}

mhla_status mhla_bpe_merge_add(mhla_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    if (b->pairs == NULL || 2 * b->used > b->mask) MHLA_TRY(rehash(b));
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = pair_slot(b, key);
    while (b->pairs[at].key != UINT64_MAX && b->pairs[at].key != key) at = (at + 1) & b->mask;
    if (b->pairs[at].key == key && b->pairs[at].rank <= rank) return MHLA_OK;
    if (b->pairs[at].key != key) b->used++;
    b->pairs[at] = (struct mhla_bpe_pair){key, rank, id};
    return MHLA_OK;
}

static const char space[] = "\xe2\x96\x81"; /* U+2581 */

/* Where a piece that comes of merging holds U+2581 behind another character, a text must not be cut. */
static void forbid_cuts(mhla_bpe *b, int32_t id) {
    size_t n, before = 0;
    const char *piece = mhla_vocabulary_piece(&b->symbols, id, &n);
    for (size_t i = 0; piece && i < n;) {
        const int length = mhla_utf8_length((const unsigned char *)piece + i, n - i);
        if (length == 0) break;
        const unsigned char c = (unsigned char)piece[before];
        if (i > 0 && length == 3 && memcmp(piece + i, space, 3) == 0) {
            if (c < 128)
                b->cut[c] = 0;
            else if (memcmp(piece + before, space, 3) != 0)
                b->cut_other = 0;
        }
        before = i;
        i += (size_t)length;
    }
}

void mhla_bpe_finish(mhla_bpe *b) {
    for (int c = 0; c < 256; c++) {
        const char byte = (char)c;
        b->first[c] = c < 128 || b->byte_level ? mhla_vocabulary_find(&b->symbols, &byte, 1) : NONE;
    }
    const int32_t mark = mhla_vocabulary_find(&b->symbols, space, 3);
    b->cuts = !b->byte_level && b->suffix_bytes == 0 && mark >= 0 &&
              mark < b->limit;    /* an unknown one would be fused with those before it */
    for (int c = 0; c < 256; c++) /* unknown characters that leave nothing make neighbours of any two others */
        if (b->spare[c] < 0 && b->unk < 0 && !b->late) b->cuts = 0;
    b->cut_other = 1;
    memset(b->cut, 1, sizeof b->cut);
    for (size_t i = 0; b->cuts && b->pairs && i <= b->mask; i++) {
        const uint64_t key = b->pairs[i].key;
        if (key == UINT64_MAX) continue;
        forbid_cuts(b, b->pairs[i].id);
        for (int c = 0; c < 256; c++) /* merges of bytes: their pieces do not show what text they stand for */
            if (b->spare[c] >= 0 && ((uint32_t)b->spare[c] == key >> 32 || (uint32_t)b->spare[c] == (uint32_t)key))
                b->cuts = 0;
    }
}

/* ---- Work ---- */

mhla_status mhla_bpe_work_create(mhla_bpe_work **work) {
    mhla_bpe_work *w = mhla_alloc_zero(sizeof *w);
    if (w) w->cache = mhla_alloc_zero(SLOTS * sizeof *w->cache);
    if (w == NULL || w->cache == NULL) {
        mhla_free(w);
        return mhla_fail(MHLA_ENOMEM, "no memory for a tokenizer's cache");
    }
    *work = w;
    return MHLA_OK;
}

void mhla_bpe_work_free(mhla_bpe_work *w) {
    if (w == NULL) return;
    mhla_free(w->cache);
    mhla_free(w->symbols);
    mhla_free(w->heap);
    mhla_free(w);
}

/* ---- A word as symbols ---- */

static inline void put_symbol(mhla_bpe_work *w, int32_t *count, int32_t id, size_t start, size_t length) {
    w->symbols[*count] = (symbol){.id = id, .start = (uint32_t)start, .length = (uint32_t)length};
    ++*count;
}

/* The bytes of an unknown character as tokens; 0 if one of them has none. */
static int has_spares(const mhla_bpe *b, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (b->spare[(unsigned char)bytes[i]] < 0) return 0;
    return 1;
}

/* The symbol of the last character of a word, -1. */
static int32_t last_symbol(const mhla_bpe *b, const char *bytes, size_t n) {
    char text[4 + sizeof b->suffix];
    memcpy(text, bytes, n);
    memcpy(text + n, b->suffix, b->suffix_bytes);
    return mhla_vocabulary_find(&b->symbols, text, n + b->suffix_bytes);
}

/* Fills work->symbols, which has room for all bytes of the word; returns how many there are. An unknown character that is
 * to be looked at later is NONE. The order is the reference's: an unknown token stands behind the bytes that follow it. */
static int32_t begin_word(const mhla_bpe *b, mhla_bpe_work *w, const char *word, size_t bytes) {
    int32_t count = 0;
    size_t unk_start = 0, unk_length = 0; /* not yet written */
    for (size_t i = 0, n; i < bytes; i += n) {
        n = 1;
        int32_t id = b->first[(unsigned char)word[i]];
        if (!b->byte_level && (unsigned char)word[i] >= 128) {
            n = (unsigned char)word[i] >= 0xf0 ? 4 : (unsigned char)word[i] >= 0xe0 ? 3 : 2;
            id = mhla_vocabulary_find(&b->symbols, word + i, n);
        }
        if (b->suffix_bytes && i + n == bytes) id = last_symbol(b, word + i, n);
        if (id >= 0 || b->late) {
            if (unk_length) put_symbol(w, &count, b->unk, unk_start, unk_length);
            unk_length = 0;
            put_symbol(w, &count, id, i, n);
        } else if (has_spares(b, word + i, n)) {
            for (size_t k = 0; k < n; k++) put_symbol(w, &count, b->spare[(unsigned char)word[i + k]], i + k, 1);
        } else if (b->unk >= 0) {
            if (unk_length && !b->fuse_unk) {
                put_symbol(w, &count, b->unk, unk_start, unk_length);
                unk_length = 0;
            }
            if (unk_length == 0) unk_start = i;
            unk_length += n;
        }
    }
    if (unk_length) put_symbol(w, &count, b->unk, unk_start, unk_length);
    return count;
}

static inline void look_up(const mhla_bpe *b, symbol *s, int32_t right) {
    const struct mhla_bpe_pair *p = s->id >= 0 && right >= 0 ? pair_find(b, s->id, right) : NULL;
    s->rank = p ? p->rank : (uint32_t)NO_RANK;
    s->merged = p ? p->id : NONE;
}

/* Few symbols: look at all of them for each merge, and close the gap. Returns how many are left. */
static int32_t merge_short(const mhla_bpe *b, symbol *s, int32_t count) {
    for (int32_t i = 0; i + 1 < count; i++) look_up(b, &s[i], s[i + 1].id);
    while (count > 1) {
        int32_t best = 0;
        uint32_t rank = s[0].rank;
        for (int32_t i = 1; i + 1 < count; i++)
            if (s[i].rank < rank) rank = s[i].rank, best = i;
        if (rank == (uint32_t)NO_RANK) break;
        s[best].id = s[best].merged;
        s[best].length += s[best + 1].length;
        memmove(s + best + 1, s + best + 2, (size_t)(count - best - 2) * sizeof *s);
        count--;
        if (best + 1 < count) look_up(b, &s[best], s[best + 1].id);
        if (best > 0) look_up(b, &s[best - 1], s[best].id);
    }
    return count;
}

static mhla_status heap_push(mhla_bpe_work *w, uint64_t item) {
    void *heap = w->heap;
    MHLA_TRY(mhla_list_grow(&heap, &w->heap_capacity, w->heap_count + 1, sizeof *w->heap));
    w->heap = heap;
    size_t at = w->heap_count++;
    for (; at > 0 && w->heap[(at - 1) / 2] > item; at = (at - 1) / 2) w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = item;
    return MHLA_OK;
}

static uint64_t heap_pop(mhla_bpe_work *w) {
    const uint64_t top = w->heap[0], last = w->heap[--w->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < w->heap_count; at = child) {
        if (child + 1 < w->heap_count && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = last;
    return top;
}

static mhla_status look_up_push(const mhla_bpe *b, mhla_bpe_work *w, int32_t at) {
    symbol *s = &w->symbols[at];
    s->rank = (uint32_t)NO_RANK;
    if (s->next < 0) return MHLA_OK;
    look_up(b, s, w->symbols[s->next].id);
    return s->rank == (uint32_t)NO_RANK ? MHLA_OK : heap_push(w, (uint64_t)s->rank << 32 | (uint32_t)at);
}

/* Many: a heap of pairs by rank and place. An item whose pair has changed since is passed over. */
static mhla_status merge_long(const mhla_bpe *b, mhla_bpe_work *w, int32_t *count) {
    symbol *s = w->symbols;
    w->heap_count = 0;
    for (int32_t i = 0; i < *count; i++) {
        s[i].prev = i - 1;
        s[i].next = i + 1 < *count ? i + 1 : NONE;
    }
    for (int32_t i = 0; i < *count; i++) MHLA_TRY(look_up_push(b, w, i));
    while (w->heap_count) {
        const uint64_t item = heap_pop(w);
        const int32_t at = (int32_t)(uint32_t)item;
        if (s[at].rank != item >> 32) continue;
        const int32_t right = s[at].next;
        s[at].id = s[at].merged;
        s[at].length += s[right].length;
        s[at].next = s[right].next;
        s[right].rank = (uint32_t)NO_RANK;
        if (s[at].next >= 0) s[s[at].next].prev = at;
        MHLA_TRY(look_up_push(b, w, at));
        if (s[at].prev >= 0) MHLA_TRY(look_up_push(b, w, s[at].prev));
    }
    int32_t kept = 0;
    for (int32_t i = 0; i >= 0;) { /* `kept` never runs ahead of i */
        const int32_t next = s[i].next;
        s[kept++] = s[i];
        i = next;
    }
    *count = kept;
    return MHLA_OK;
}

/* Ids of symbols; unknown characters that nothing was merged with are written here if that is `late`. */
static mhla_status write_ids(const mhla_bpe *b, const mhla_bpe_work *w, mhla_ids *ids, const char *word,
                             int32_t count) {
    int unknown = 0; /* the one before was */
    for (int32_t i = 0; i < count; i++) {
        const symbol *s = &w->symbols[i];
        if (s->id >= 0 && s->id < b->limit) {
            MHLA_TRY(mhla_ids_append(ids, &s->id, 1));
            unknown = 0;
            continue;
        }
        if (has_spares(b, word + s->start, s->length)) {
            for (uint32_t k = 0; k < s->length; k++)
                MHLA_TRY(mhla_ids_append(ids, &b->spare[(unsigned char)word[s->start + k]], 1));
            unknown = 0;
        } else if (b->unk >= 0) {
            if (!unknown || !b->fuse_unk) MHLA_TRY(mhla_ids_append(ids, &b->unk, 1));
            unknown = 1;
        }
    }
    return MHLA_OK;
}

static mhla_status encode_word(const mhla_bpe *b, mhla_bpe_work *w, mhla_ids *ids, const char *word, size_t bytes,
                               int whole) {
    if (whole && b->ignore_merges) {
        const int32_t id = mhla_vocabulary_find(&b->symbols, word, bytes);
        if (id >= 0 && id < b->limit) return mhla_ids_append(ids, &id, 1);
    }
    if (bytes > INT32_MAX) return mhla_fail(MHLA_ERANGE, "a word of %zu bytes, more than %d", bytes, INT32_MAX);
    void *symbols = w->symbols;
    MHLA_TRY(mhla_list_grow(&symbols, &w->symbol_capacity, bytes, sizeof *w->symbols));
    w->symbols = symbols;
    int32_t count = begin_word(b, w, word, bytes);
    if (b->pairs == NULL)
        ;
    else if (count <= SHORT)
        count = merge_short(b, w->symbols, count);
    else
        MHLA_TRY(merge_long(b, w, &count));
    return write_ids(b, w, ids, word, count);
}

static mhla_status encode_cached(const mhla_bpe *b, mhla_bpe_work *w, mhla_ids *ids, const char *word, size_t bytes,
                                 int whole) {
    if (bytes > KEY) return encode_word(b, w, ids, word, bytes, whole);
    cached *c = &w->cache[mhla_bytes_hash(word, bytes) & (SLOTS - 1)];
    if (c->length == bytes && memcmp(c->key, word, bytes) == 0) return mhla_ids_append(ids, c->ids, c->count);
    const int64_t before = ids->count;
    MHLA_TRY(encode_word(b, w, ids, word, bytes, whole));
    if (ids->count - before > CACHED) return MHLA_OK;
    c->length = (unsigned char)bytes;
    c->count = (unsigned char)(ids->count - before);
    memcpy(c->key, word, bytes);
    if (c->count) memcpy(c->ids, ids->data + before, c->count * sizeof *c->ids);
    return MHLA_OK;
}

/* Up to the next place where the text may be cut. */
static size_t next_cut(const mhla_bpe *b, const char *text, size_t bytes) {
    for (size_t at = 1; at + 3 <= bytes; at++) {
        const char *found = memchr(text + at, space[0], bytes - at - 2);
        if (found == NULL) break;
        at = (size_t)(found - text);
        if (memcmp(found, space, 3) != 0) continue;
        const unsigned char before = (unsigned char)text[at - 1];
        if (before < 128 ? b->cut[before] : b->cut_other && (at < 3 || memcmp(found - 3, space, 3) != 0)) return at;
    }
    return bytes;
}

mhla_status mhla_bpe_encode(const mhla_bpe *b, mhla_bpe_work *work, mhla_ids *ids, const char *word, size_t bytes) {
    if (bytes == 0) return MHLA_OK;
    if (!b->cuts || b->ignore_merges) return encode_cached(b, work, ids, word, bytes, 1);
    for (size_t n; bytes > 0; word += n, bytes -= n) {
        n = next_cut(b, word, bytes);
        MHLA_TRY(encode_cached(b, work, ids, word, n, 0));
    }
    return MHLA_OK;
}
