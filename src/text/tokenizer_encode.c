/* Text to ids: added tokens are cut out, the rest is normalised, split into words, and every word encoded. The text goes
 * down through the splitters by recursion; nothing is kept but the ids. */
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

typedef struct mhla_encode_work {
    struct mhla_encode_work *next;
    mhla_bpe_work *bpe;
    mhla_unigram_work unigram;
    mhla_matcher matcher;
    mhla_chars normal[2]; /* what normalizers write, in turns */
    mhla_chars *marked;   /* [splitters] what a splitter with a mark writes */
} encode_work;

typedef struct run {
    const mhla_tokenizer *t;
    encode_work *w;
    mhla_ids *ids;
    unsigned flags;
} run;

/* ---- Workspaces ---- */

static void work_free(encode_work *w, size_t splitters) {
    if (w == NULL) return;
    mhla_bpe_work_free(w->bpe);
    mhla_unigram_work_free(&w->unigram);
    mhla_matcher_free(&w->matcher);
    for (int i = 0; i < 2; i++) mhla_chars_free(&w->normal[i]);
    for (size_t i = 0; w->marked && i < splitters; i++) mhla_chars_free(&w->marked[i]);
    mhla_free(w->marked);
    mhla_free(w);
}

void mhla_tokenizer_idle_free(mhla_tokenizer *t) {
    for (encode_work *w = t->idle, *next; w; w = next) {
        next = w->next;
        work_free(w, t->splitter_count);
    }
    t->idle = NULL;
}

static mhla_status work_take(encode_work **work, const mhla_tokenizer *t) {
    mhla_tokenizer *shared = (mhla_tokenizer *)t; /* the list of idle ones is all that ever changes */
    pthread_mutex_lock(&shared->lock);
    encode_work *w = shared->idle;
    if (w) shared->idle = w->next;
    pthread_mutex_unlock(&shared->lock);
    if (w == NULL) {
        w = mhla_alloc_zero(sizeof *w);
        if (w) w->marked = mhla_alloc_zero((t->splitter_count + 1) * sizeof *w->marked);
        if (w == NULL || w->marked == NULL) {
            mhla_free(w);
            return mhla_fail(MHLA_ENOMEM, "no memory to tokenize");
        }
        const mhla_status status = mhla_bpe_work_create(&w->bpe);
        if (status != MHLA_OK) {
            work_free(w, t->splitter_count);
            return status;
        }
    }
    *work = w;
    return MHLA_OK;
}

static void work_return(encode_work *w, const mhla_tokenizer *t) {
    mhla_tokenizer *shared = (mhla_tokenizer *)t;
    pthread_mutex_lock(&shared->lock);
    w->next = shared->idle;
    shared->idle = w;
    pthread_mutex_unlock(&shared->lock);
}

/* ---- Words ---- */

/* `first` throughout: how many bytes in front of a part count as the text's beginning. 1: it begins there; 0: it does not;
 * what was put before the beginning makes it more. */
static mhla_status split(run *r, size_t stage, const char *text, size_t bytes, size_t first);

static inline size_t first_behind(size_t first, size_t bytes) { return first > bytes ? first - bytes : 0; }

/* `text` with the marks of a Metaspace or ByteLevel in w->marked[stage]. */
static mhla_status mark(run *r, size_t stage, const char **text, size_t *bytes, size_t *first) {
    const mhla_splitter *s = &r->t->splitters[stage];
    mhla_chars *out = &r->w->marked[stage];
    out->count = 0;
    const char *from = *text;
    const size_t n = *bytes;
    const int there = (n >= s->mark_bytes && memcmp(from, s->mark, s->mark_bytes) == 0) ||
                      (s->mark_spaces && n > 0 && from[0] == ' ');
    const int prefix = !there && (s->prefix == MHLA_PREFIX_ALWAYS || (s->prefix == MHLA_PREFIX_FIRST && *first));
    if (!prefix && !s->mark_spaces) return MHLA_OK;
    if (prefix) MHLA_TRY(mhla_chars_append(out, s->mark, s->mark_bytes));
    if (prefix && *first) *first += s->mark_bytes;
    for (size_t at = 0; at < n;) {
        const char *space = s->mark_spaces ? memchr(from + at, ' ', n - at) : NULL;
        const size_t end = space ? (size_t)(space - from) : n;
        MHLA_TRY(mhla_chars_append(out, from + at, end - at));
        if (space) MHLA_TRY(mhla_chars_append(out, s->mark, s->mark_bytes));
        at = end + (space != NULL);
    }
    *text = out->data;
    *bytes = out->count;
    return MHLA_OK;
}

/* A part of what a splitter cut, on its way down; empty ones are dropped. */
static inline mhla_status down(run *r, size_t stage, const char *text, size_t start, size_t end, size_t first) {
    return start < end ? split(r, stage + 1, text + start, end - start, first_behind(first, start)) : MHLA_OK;
}

/* Matches and what lies between them, joined as the behaviour says; `subject` is the text as the pattern sees it. */
static mhla_status split_matches(run *r, size_t stage, const char *text, const char *subject, size_t bytes,
                                 size_t first) {
    const mhla_splitter *s = &r->t->splitters[stage];
    size_t at = 0, held = 0, held_end = 0; /* a part that is not yet handed down: [held, held_end) */
    int held_match = 0, holds = 0;
    while (at < bytes) {
        size_t start, end;
        MHLA_TRY(mhla_pattern_next(&s->pattern, &r->w->matcher, subject, bytes, at, &start, &end));
        if (end == 0) start = end = bytes;
        for (int k = 0; k < 2; k++) { /* what lies before the match, the match */
            const size_t from = k ? start : at, to = k ? end : start;
            if (from == to) continue;
            const int match = k != s->invert;
            int join = 0;
            switch (s->behavior) {
            case MHLA_SPLIT_ISOLATED: break;
            case MHLA_SPLIT_REMOVED:
                if (match) continue;
                break;
            case MHLA_SPLIT_CONTIGUOUS: join = holds && match == held_match; break;
            case MHLA_SPLIT_WITH_PREVIOUS: join = holds && match && !held_match; break;
            case MHLA_SPLIT_WITH_NEXT: join = holds && !match && held_match; break;
            }
            if (join) {
                held_end = to;
            } else {
                if (holds) MHLA_TRY(down(r, stage, text, held, held_end, first));
                held = from;
                held_end = to;
                holds = 1;
            }
            held_match = match;
        }
        at = end;
    }
    return holds ? down(r, stage, text, held, held_end, first) : MHLA_OK;
}

static mhla_status split_pattern(run *r, size_t stage, const char *text, size_t bytes, size_t first) {
    char *copy;
    MHLA_TRY(mhla_pattern_subject(&r->t->splitters[stage].pattern, &copy, text, bytes));
    const mhla_status status = split_matches(r, stage, text, copy ? copy : text, bytes, first);
    mhla_free(copy);
    return status;
}

static inline mhla_status encode_word(run *r, const char *text, size_t bytes) {
    const mhla_tokenizer *t = r->t;
    if (t->unigram.scores == NULL) return mhla_bpe_encode(&t->bpe, r->w->bpe, r->ids, text, bytes);
    return mhla_unigram_encode(&t->unigram, &r->w->unigram, &t->pieces, t->bpe.unk, t->bpe.spare, r->ids, text, bytes);
}

static mhla_status split(run *r, size_t stage, const char *text, size_t bytes, size_t first) {
    const mhla_tokenizer *t = r->t;
    if (stage == t->splitter_count) return encode_word(r, text, bytes);
    const mhla_splitter *s = &t->splitters[stage];
    if (s->prefix != MHLA_PREFIX_NEVER || s->mark_spaces) MHLA_TRY(mark(r, stage, &text, &bytes, &first));
    if (!s->splits) return split(r, stage + 1, text, bytes, first);
    const mhla_pattern_kind kind = s->pattern.kind;
    if ((kind != MHLA_PATTERN_GPT2 && kind != MHLA_PATTERN_LLAMA3) || s->behavior != MHLA_SPLIT_ISOLATED)
        return split_pattern(r, stage, text, bytes, first);
    const int last = stage + 1 == t->splitter_count; /* the usual case */
    for (size_t at = 0, end; at < bytes; at = end) {
        end = mhla_pattern_end(&s->pattern, text, bytes, at);
        if (last)
            MHLA_TRY(encode_word(r, text + at, end - at));
        else
            MHLA_TRY(down(r, stage, text, at, end, first));
    }
    return MHLA_OK;
}

/* ---- Added tokens ---- */

static mhla_status node_new(mhla_added_tree *tree, unsigned char byte, int32_t *index) {
    void *nodes = tree->nodes;
    MHLA_TRY(mhla_list_grow(&nodes, &tree->capacity, tree->count + 1, sizeof *tree->nodes));
    tree->nodes = nodes;
    *index = (int32_t)tree->count;
    tree->nodes[tree->count++] = (struct mhla_added_node){-1, -1, -1, byte};
    return MHLA_OK;
}

static int32_t child_of(const mhla_added_tree *tree, int32_t node, unsigned char byte) {
    int32_t at = tree->nodes[node].child;
    while (at >= 0 && tree->nodes[at].byte != byte) at = tree->nodes[at].sibling;
    return at;
}

mhla_status mhla_added_tree_add(mhla_added_tree *tree, const char *content, size_t bytes, int32_t token) {
    int32_t node = 0, unused;
    if (bytes == 0) return MHLA_OK;
    if (tree->count == 0) MHLA_TRY(node_new(tree, 0, &unused));
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)content[i];
        int32_t next = child_of(tree, node, byte);
        if (next < 0) {
            MHLA_TRY(node_new(tree, byte, &next));
            tree->nodes[next].sibling = tree->nodes[node].child;
            tree->nodes[node].child = next;
        }
        node = next;
    }
    tree->first[(unsigned char)content[0]] = 1;
    tree->nodes[node].token = token;
    return MHLA_OK;
}

/* The longest token at text, -1 if there is none. */
static int32_t longest(const mhla_added_tree *tree, const char *text, size_t bytes) {
    int32_t node = 0, found = -1;
    for (size_t i = 0; i < bytes; i++) {
        node = child_of(tree, node, (unsigned char)text[i]);
        if (node < 0) break;
        if (tree->nodes[node].token >= 0) found = tree->nodes[node].token;
    }
    return found;
}

static unsigned class_before(const char *text, size_t at, size_t *start) {
    do at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    size_t n;
    *start = at;
    return mhla_char_class(mhla_char_read(text + at, &n));
}

static int is_single_word(const char *text, size_t bytes, size_t start, size_t end) {
    size_t n;
    if (start > 0 && (class_before(text, start, &n) & MHLA_CHAR_WORD)) return 0;
    return end == bytes || (mhla_char_class(mhla_char_read(text + end, &n)) & MHLA_CHAR_WORD) == 0;
}

typedef mhla_status part_fn(run *r, const char *text, size_t bytes, size_t first);

/* Hands the parts between added tokens to `part`, and writes the tokens' ids. */
static mhla_status cut_added(run *r, const mhla_added_tree *tree, const char *text, size_t bytes, size_t first,
                             part_fn *part) {
    if (tree->count == 0) return part(r, text, bytes, first);
    size_t done = 0;
    for (size_t at = 0; at < bytes;) {
        const int32_t found = tree->first[(unsigned char)text[at]] ? longest(tree, text + at, bytes - at) : -1;
        if (found < 0) {
            at++;
            continue;
        }
        const mhla_added *token = &r->t->added[found];
        size_t start = at, end = at + token->bytes;
        at = end; /* also where it does not count, its text is not looked at again */
        if (token->special && (r->flags & MHLA_ENCODE_PLAIN)) continue;
        if (token->single_word && !is_single_word(text, bytes, start, end)) continue;
        if (token->lstrip)
            for (size_t before; start > done && (class_before(text, start, &before) & MHLA_CHAR_SPACE);) start = before;
        if (token->rstrip)
            for (size_t n; end < bytes && (mhla_char_class(mhla_char_read(text + end, &n)) & MHLA_CHAR_SPACE);)
                end += n;
        if (start > done) MHLA_TRY(part(r, text + done, start - done, first_behind(first, done)));
        MHLA_TRY(mhla_ids_append(r->ids, &token->id, 1));
        done = end;
    }
    return done < bytes ? part(r, text + done, bytes - done, first_behind(first, done)) : MHLA_OK;
}

static mhla_status part_words(run *r, const char *text, size_t bytes, size_t first) {
    return split(r, 0, text, bytes, first);
}

mhla_status mhla_normalizers_run(const mhla_tokenizer *t, mhla_matcher *m, mhla_chars buffers[2], const char **text,
                                 size_t *bytes, size_t *first) {
    int turn = 0;
    for (size_t i = 0; i < t->normalizer_count; i++) {
        int same;
        const mhla_normalizer *x = &t->normalizers[i];
        *first = mhla_normalize_first(x, *text, *bytes, *first);
        MHLA_TRY(mhla_normalize(x, m, &buffers[turn], *text, *bytes, &same));
        if (same) continue;
        *text = buffers[turn].data ? buffers[turn].data : "";
        *bytes = buffers[turn].count;
        turn = !turn;
    }
    return MHLA_OK;
}

static mhla_status part_raw(run *r, const char *text, size_t bytes, size_t first) {
    MHLA_TRY(mhla_normalizers_run(r->t, &r->w->matcher, r->w->normal, &text, &bytes, &first));
    return bytes ? cut_added(r, &r->t->normal, text, bytes, first, part_words) : MHLA_OK;
}

/* ---- The call ---- */

mhla_status mhla_tokenizer_encode(const mhla_tokenizer *tokenizer, mhla_ids *ids, const char *text, size_t bytes,
                                  unsigned flags) {
    if (tokenizer == NULL || ids == NULL || (text == NULL && bytes > 0))
        return mhla_fail(MHLA_EINVAL, "tokenizer, ids or text is NULL");
    if (flags & ~(unsigned)(MHLA_ENCODE_SPECIAL | MHLA_ENCODE_PLAIN | MHLA_ENCODE_TRUNCATE))
        return mhla_fail(MHLA_EINVAL, "flags are %#x: only MHLA_ENCODE_SPECIAL, _PLAIN and _TRUNCATE are known", flags);
    const size_t valid = mhla_utf8_broken((const unsigned char *)text, bytes);
    if (valid < bytes)
        return mhla_fail(MHLA_EDATA, "the text is not UTF-8: byte %zu is 0x%02x", valid, (unsigned char)text[valid]);
    run r = {.t = tokenizer, .ids = ids, .flags = flags};
    MHLA_TRY(work_take(&r.w, tokenizer));
    const int64_t before = ids->count;
    const int special = (flags & MHLA_ENCODE_SPECIAL) != 0;
    mhla_status status = mhla_ids_reserve(ids, (int64_t)(bytes / 3) + 8);
    if (status == MHLA_OK && special) status = mhla_ids_append(ids, tokenizer->before.data, tokenizer->before.count);
    if (status == MHLA_OK && bytes > 0) status = cut_added(&r, &tokenizer->raw, text, bytes, 1, part_raw);
    const int64_t after = special ? tokenizer->after.count : 0, longest = tokenizer->longest;
    if ((flags & MHLA_ENCODE_TRUNCATE) && longest > after && ids->count - before > longest - after)
        ids->count = before + longest - after;
    if (status == MHLA_OK && special) status = mhla_ids_append(ids, tokenizer->after.data, tokenizer->after.count);
    if (status != MHLA_OK) ids->count = before;
    work_return(r.w, tokenizer);
    return status;
}
