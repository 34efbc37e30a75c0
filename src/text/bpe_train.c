/* Training a byte-level BPE: words of the text are counted once, then the most frequent pair of neighbours becomes a piece,
 * again and again. Only the words that hold the pair are touched, so a step costs what it changes. Ties go to the pair
 * with the lower ids, as in the Python library, whose trainer makes the same file of the same text. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

typedef struct word {
    const char *text; /* in the documents */
    uint32_t bytes;
    uint32_t length; /* symbols left */
    size_t start;    /* of them in trainer.symbols */
    int64_t count;
} word;

typedef struct pair {
    uint64_t key; /* left << 32 | right; all ones: empty */
    int64_t count;
    uint32_t *words; /* [used] that held it when they were noted, malloc */
    uint32_t used, capacity;
} pair;

typedef struct candidate {
    int64_t count;
    uint64_t key;
} candidate;

typedef struct trainer {
    word *words;
    size_t word_count, word_capacity;
    uint32_t *word_slots; /* [word_mask + 1] index + 1, or 0 */
    size_t word_mask;
    int32_t *symbols;
    pair *pairs;
    size_t pair_mask, pair_used;
    candidate *heap;
    size_t heap_count, heap_capacity;
    mhla_vocabulary pieces; /* spelled as in the file */
    int32_t byte_id[256];
    json_t *merges;
    mhla_progress_fn progress;
    void *user;
} trainer;

enum {
    SCALE = 1000,       /* of progress: as much for counting as for merging */
    PIECE_BYTES = 4096, /* a longer piece is of no use: text of one letter only would make it */
};

static mhla_status no_memory(void) { return mhla_fail(MHLA_ENOMEM, "no memory to train a tokenizer"); }

/* ---- Words ---- */

static mhla_status words_rehash(trainer *t) {
    const size_t size = t->word_slots ? 2 * (t->word_mask + 1) : 1 << 16;
    uint32_t *slots = mhla_alloc_zero(size * sizeof *slots);
    if (slots == NULL) return no_memory();
    mhla_free(t->word_slots);
    t->word_slots = slots;
    t->word_mask = size - 1;
    for (size_t i = 0; i < t->word_count; i++) {
        size_t at = (size_t)mhla_bytes_hash(t->words[i].text, t->words[i].bytes) & t->word_mask;
        while (slots[at]) at = (at + 1) & t->word_mask;
        slots[at] = (uint32_t)i + 1;
    }
    return MHLA_OK;
}

static mhla_status count_word(trainer *t, const char *text, size_t bytes) {
    if (bytes > UINT32_MAX || t->word_count == UINT32_MAX - 1)
        return mhla_fail(MHLA_ERANGE, "a word of %zu bytes, or too many words", bytes);
    if (t->word_slots == NULL || 2 * t->word_count > t->word_mask) MHLA_TRY(words_rehash(t));
    size_t at = (size_t)mhla_bytes_hash(text, bytes) & t->word_mask;
    for (; t->word_slots[at]; at = (at + 1) & t->word_mask) {
        word *w = &t->words[t->word_slots[at] - 1];
        if (w->bytes == bytes && memcmp(w->text, text, bytes) == 0) {
            w->count++;
            return MHLA_OK;
        }
    }
    void *words = t->words;
    MHLA_TRY(mhla_list_grow(&words, &t->word_capacity, t->word_count + 1, sizeof *t->words));
    t->words = words;
    t->words[t->word_count++] = (word){.text = text, .bytes = (uint32_t)bytes, .count = 1};
    t->word_slots[at] = (uint32_t)t->word_count;
    return MHLA_OK;
}

/* The next special token in text, or its end. */
static size_t next_special(const mhla_tokenizer_training *how, const char *text, size_t bytes, size_t *length) {
    size_t first = bytes;
    *length = 0;
    for (int i = 0; i < how->specials; i++) {
        const size_t n = strlen(how->special[i]);
        const char *found = memmem(text, bytes, how->special[i], n);
        if (found && ((size_t)(found - text) < first || ((size_t)(found - text) == first && n > *length))) {
            first = (size_t)(found - text);
            *length = n;
        }
    }
    return first;
}

static mhla_status count_words(trainer *t, const mhla_documents *documents, const mhla_tokenizer_training *how) {
    const mhla_pattern pattern = {.kind = MHLA_PATTERN_GPT2};
    const int64_t count = mhla_documents_count(documents);
    for (int64_t i = 0; i < count; i++) {
        size_t bytes, length;
        const char *text = mhla_documents_text(documents, i, &bytes);
        while (bytes > 0) { /* special tokens are no text */
            const size_t part = next_special(how, text, bytes, &length);
            for (size_t at = 0, end; at < part; at = end) {
                end = mhla_pattern_end(&pattern, text, part, at);
                MHLA_TRY(count_word(t, text + at, end - at));
            }
            text += part + length;
            bytes -= part + length;
        }
        if (t->progress) t->progress(t->user, (i + 1) * SCALE / count, 2 * SCALE);
    }
    if (t->word_count == 0) return mhla_fail(MHLA_EDATA, "there is no text to train a tokenizer on");
    return MHLA_OK;
}

/* ---- Pairs ---- */

static inline size_t pair_slot(const trainer *t, uint64_t key) {
    return (size_t)((key * 0x9E3779B97F4A7C15u ^ key >> 29) * 0xBF58476D1CE4E5B9u >> 31) & t->pair_mask;
}

static mhla_status pairs_rehash(trainer *t) {
    const size_t size = t->pairs ? 2 * (t->pair_mask + 1) : 1 << 16, old_size = t->pairs ? t->pair_mask + 1 : 0;
    pair *pairs = mhla_alloc_zero(size * sizeof *pairs), *old = t->pairs;
    if (pairs == NULL) return no_memory();
    for (size_t i = 0; i < size; i++) pairs[i].key = UINT64_MAX;
    t->pairs = pairs;
    t->pair_mask = size - 1;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i].key == UINT64_MAX) continue;
        size_t at = pair_slot(t, old[i].key);
        while (pairs[at].key != UINT64_MAX) at = (at + 1) & t->pair_mask;
        pairs[at] = old[i];
    }
    mhla_free(old);
    return MHLA_OK;
}

/* The pair, made if it is new; valid until the next one is made. */
static mhla_status pair_get(trainer *t, pair **p, int32_t left, int32_t right) {
    if (t->pairs == NULL || 2 * t->pair_used > t->pair_mask) MHLA_TRY(pairs_rehash(t));
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = pair_slot(t, key);
    while (t->pairs[at].key != key && t->pairs[at].key != UINT64_MAX) at = (at + 1) & t->pair_mask;
    if (t->pairs[at].key == UINT64_MAX) {
        t->pairs[at].key = key;
        t->pair_used++;
    }
    *p = &t->pairs[at];
    return MHLA_OK;
}

/* Notes that word w holds the pair. */
static mhla_status pair_note(pair *p, uint32_t w) {
    if (p->used && p->words[p->used - 1] == w) return MHLA_OK;
    if (p->used == p->capacity) {
        const uint32_t capacity = p->capacity + p->capacity / 2 + 2;
        uint32_t *words = realloc(p->words, capacity * sizeof *words);
        if (words == NULL) return no_memory();
        p->words = words;
        p->capacity = capacity;
    }
    p->words[p->used++] = w;
    return MHLA_OK;
}

/* ---- The most frequent first ---- */

static inline int before(const candidate *a, const candidate *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static mhla_status heap_push(trainer *t, candidate c) {
    void *heap = t->heap;
    MHLA_TRY(mhla_list_grow(&heap, &t->heap_capacity, t->heap_count + 1, sizeof *t->heap));
    t->heap = heap;
    size_t at = t->heap_count++;
    for (; at > 0 && before(&c, &t->heap[(at - 1) / 2]); at = (at - 1) / 2) t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
    return MHLA_OK;
}

static candidate heap_pop(trainer *t) {
    const candidate top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->heap_count; at = child) {
        if (child + 1 < t->heap_count && before(&t->heap[child + 1], &t->heap[child])) child++;
        if (!before(&t->heap[child], &last)) break;
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return top;
}

/* ---- Merging ---- */

static mhla_status change(trainer *t, int32_t left, int32_t right, int64_t by, uint32_t w, uint64_t *grown,
                          size_t *grown_count) {
    pair *p;
    MHLA_TRY(pair_get(t, &p, left, right));
    p->count += by;
    if (by < 0) return MHLA_OK;
    MHLA_TRY(pair_note(p, w));
    grown[(*grown_count)++] = p->key;
    return MHLA_OK;
}

/* Replaces left, right by id in a word, and counts its pairs anew. grown [2 * length] gets those that there are more of. */
static mhla_status merge_word(trainer *t, uint32_t index, int32_t left, int32_t right, int32_t id, uint64_t *grown,
                              size_t *grown_count) {
    word *w = &t->words[index];
    int32_t *s = t->symbols + w->start;
    uint32_t to = 0;
    for (uint32_t i = 0; i < w->length; to++) {
        if (s[i] != left || i + 1 == w->length || s[i + 1] != right) {
            s[to] = s[i++];
            continue;
        }
        if (to > 0) {
            MHLA_TRY(change(t, s[to - 1], left, -w->count, index, grown, grown_count));
            MHLA_TRY(change(t, s[to - 1], id, w->count, index, grown, grown_count));
        }
        i += 2;
        if (i < w->length) {
            MHLA_TRY(change(t, right, s[i], -w->count, index, grown, grown_count));
            MHLA_TRY(change(t, id, s[i], w->count, index, grown, grown_count));
        }
        s[to] = id;
    }
    w->length = to;
    return MHLA_OK;
}

static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* One merge: the pair's piece, and every word that holds the pair. */
static mhla_status merge(trainer *t, uint64_t key) {
    const int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key;
    size_t left_bytes, right_bytes;
    const char *a = mhla_vocabulary_piece(&t->pieces, left, &left_bytes);
    const char *b = mhla_vocabulary_piece(&t->pieces, right, &right_bytes);
    mhla_chars piece = {0};
    uint64_t *grown = NULL;
    size_t grown_capacity = 0, grown_count = 0;
    mhla_status status = mhla_chars_append(&piece, a, left_bytes);
    if (status == MHLA_OK) status = mhla_chars_append(&piece, b, right_bytes);
    if (status == MHLA_OK &&
        json_array_append_new(t->merges, json_pack("[s#, s#]", a, (int)left_bytes, b, (int)right_bytes)) != 0)
        status = no_memory();
    int32_t id = status == MHLA_OK ? mhla_vocabulary_find(&t->pieces, piece.data, piece.count) : 0;
    if (status == MHLA_OK && id < 0) {
        id = (int32_t)t->pieces.count;
        status = mhla_vocabulary_set(&t->pieces, id, piece.data, piece.count, "the new tokenizer");
    }
    pair *p = NULL;
    if (status == MHLA_OK) status = pair_get(t, &p, left, right);
    if (status == MHLA_OK) {
        uint32_t *words = p->words;
        const uint32_t used = p->used;
        *p = (pair){.key = p->key};
        for (uint32_t i = 0; i < used && status == MHLA_OK; i++) {
            void *list = grown;
            status = mhla_list_grow(&list, &grown_capacity, grown_count + 2 * (size_t)t->words[words[i]].length,
                                    sizeof *grown);
            grown = list;
            if (status == MHLA_OK) status = merge_word(t, words[i], left, right, id, grown, &grown_count);
        }
        free(words);
    }
    if (status == MHLA_OK && grown_count) qsort(grown, grown_count, sizeof *grown, by_key);
    for (size_t i = 0; i < grown_count && status == MHLA_OK; i++) {
        if (i > 0 && grown[i] == grown[i - 1]) continue;
        status = pair_get(t, &p, (int32_t)(grown[i] >> 32), (int32_t)(uint32_t)grown[i]);
        if (status == MHLA_OK && p->count > 0) status = heap_push(t, (candidate){p->count, p->key});
    }
    mhla_free(grown);
    mhla_chars_free(&piece);
    return status;
}

static mhla_status make_symbols(trainer *t) {
    size_t all = 0;
    for (size_t i = 0; i < t->word_count; i++) all += t->words[i].bytes;
    t->symbols = mhla_alloc(all * sizeof *t->symbols);
    if (t->symbols == NULL) return no_memory();
    size_t at = 0;
    for (size_t i = 0; i < t->word_count; i++) {
        word *w = &t->words[i];
        w->start = at;
        w->length = w->bytes;
        for (uint32_t k = 0; k < w->bytes; k++) t->symbols[at++] = t->byte_id[(unsigned char)w->text[k]];
        for (uint32_t k = 0; k + 1 < w->bytes; k++) {
            pair *p;
            MHLA_TRY(pair_get(t, &p, t->symbols[w->start + k], t->symbols[w->start + k + 1]));
            p->count += w->count;
            MHLA_TRY(pair_note(p, (uint32_t)i));
        }
    }
    for (size_t i = 0; t->pairs && i <= t->pair_mask; i++)
        if (t->pairs[i].key != UINT64_MAX) MHLA_TRY(heap_push(t, (candidate){t->pairs[i].count, t->pairs[i].key}));
    return MHLA_OK;
}

static mhla_status merge_all(trainer *t, size_t vocabulary, int64_t min_count) {
    const size_t begun = t->pieces.count;
    while (t->pieces.count < vocabulary && t->heap_count) {
        const candidate c = heap_pop(t);
        pair *p;
        MHLA_TRY(pair_get(t, &p, (int32_t)(c.key >> 32), (int32_t)(uint32_t)c.key));
        if (p->count != c.count) { /* it has become rarer since */
            if (p->count > 0) MHLA_TRY(heap_push(t, (candidate){p->count, c.key}));
            continue;
        }
        if (c.count < min_count) break;
        size_t left, right;
        (void)mhla_vocabulary_piece(&t->pieces, (int32_t)(c.key >> 32), &left);
        (void)mhla_vocabulary_piece(&t->pieces, (int32_t)(uint32_t)c.key, &right);
        if (left + right > PIECE_BYTES) continue;
        MHLA_TRY(merge(t, c.key));
        if (t->progress && t->pieces.count % 64 == 0)
            t->progress(t->user, SCALE + (int64_t)((t->pieces.count - begun) * SCALE / (vocabulary - begun)),
                        2 * SCALE);
    }
    if (t->progress) t->progress(t->user, (int64_t)2 * SCALE, (int64_t)2 * SCALE);
    return MHLA_OK;
}

/* ---- The first pieces, and the file ---- */

static mhla_status first_pieces(trainer *t, const mhla_tokenizer_training *how) {
    for (int i = 0; i < how->specials; i++) {
        const size_t n = strlen(how->special[i]);
        if (n == 0 || n > 1024 || mhla_utf8_broken((const unsigned char *)how->special[i], n) < n)
            return mhla_fail(MHLA_EINVAL, "special token %d is %s: expected 1 to 1024 bytes of UTF-8", i,
                             mhla_quote_bytes(how->special[i], n).text);
        if (mhla_vocabulary_find(&t->pieces, how->special[i], n) >= 0)
            return mhla_fail(MHLA_EINVAL, "the special token %s is given twice", MHLA_QUOTE(how->special[i]));
        MHLA_TRY(mhla_vocabulary_set(&t->pieces, i, how->special[i], n, "the new tokenizer"));
    }
    for (uint32_t c = 0; c < 256 + 68; c++) { /* bytes in the order of their characters */
        unsigned char text[4];
        const size_t n = (size_t)mhla_utf8_put(text, c);
        char byte;
        size_t count;
        if (!mhla_byte_level_bytes((const char *)text, n, &byte, &count)) continue;
        int32_t id = mhla_vocabulary_find(&t->pieces, (const char *)text, n);
        if (id < 0) {
            id = (int32_t)t->pieces.count;
            MHLA_TRY(mhla_vocabulary_set(&t->pieces, id, (const char *)text, n, "the new tokenizer"));
        }
        t->byte_id[(unsigned char)byte] = id;
    }
    return MHLA_OK;
}

static mhla_status write_json(trainer *t, const char *path, const mhla_tokenizer_training *how) {
    const unsigned lost = mhla_json_lost();
    json_t *added = json_array(), *vocabulary = json_object();
    for (int i = 0; i < how->specials; i++)
        mhla_json_add(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i, "content", how->special[i],
                                       "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    for (size_t id = 0; id < t->pieces.count; id++) {
        size_t n;
        mhla_json_put(vocabulary, mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n), json_integer((json_int_t)id));
    }
    json_t *tree =
        json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b}, "
                  "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:O}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                  "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor",
                  "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 0, "use_regex", 1, "decoder", "type",
                  "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE",
                  "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges", t->merges);
    if (tree == NULL || mhla_json_lost() != lost) {
        json_decref(tree);
        return no_memory();
    }
    const mhla_status status = mhla_json_save(tree, path);
    json_decref(tree);
    return status;
}

static void trainer_free(trainer *t) {
    for (size_t i = 0; t->pairs && i <= t->pair_mask; i++) free(t->pairs[i].words);
    mhla_free(t->pairs);
    mhla_free(t->words);
    mhla_free(t->word_slots);
    mhla_free(t->symbols);
    mhla_free(t->heap);
    mhla_vocabulary_free(&t->pieces);
    json_decref(t->merges);
}

mhla_status mhla_tokenizer_train(const char *path, const char *const *files, int count,
                                 const mhla_tokenizer_training *training, mhla_progress_fn progress, void *user) {
    static const char *const end_of_text[] = {"<|endoftext|>"};
    mhla_tokenizer_training how = {.size = sizeof how};
    if (path == NULL || files == NULL || count < 1) return mhla_fail(MHLA_EINVAL, "path or files is missing");
    if (training) MHLA_TRY(mhla_struct_in(&how, sizeof how, training, "mhla_tokenizer_training"));
    if (how.special == NULL) how.special = end_of_text, how.specials = 1;
    if (how.vocabulary == 0) how.vocabulary = 8192;
    if (how.min_count == 0) how.min_count = 2;
    if (how.specials < 0 || how.vocabulary < 256 + how.specials || how.vocabulary > MHLA_VOCABULARY_IDS)
        return mhla_fail(MHLA_EINVAL, "a vocabulary of %d pieces: expected %d (bytes and special tokens) to %d",
                         how.vocabulary, 256 + how.specials, MHLA_VOCABULARY_IDS);
    if (how.min_count < 1) return mhla_fail(MHLA_EINVAL, "min_count is %d: expected 1 or more", how.min_count);
    trainer t = {.progress = progress, .user = user, .merges = json_array()};
    mhla_documents *documents = NULL;
    mhla_status status = t.merges ? first_pieces(&t, &how) : no_memory();
    if (status == MHLA_OK) status = mhla_documents_open(&documents, files, count);
    if (status == MHLA_OK) status = count_words(&t, documents, &how);
    if (status == MHLA_OK) status = make_symbols(&t);
    if (status == MHLA_OK) status = merge_all(&t, (size_t)how.vocabulary, how.min_count);
    if (status == MHLA_OK) status = write_json(&t, path, &how);
    mhla_documents_free(documents);
    trainer_free(&t);
    return status;
}
