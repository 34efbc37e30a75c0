/* Ids to text. There is one way, the streaming one; decoding a list is pushing all of it. What a piece turns into by itself
 * is prepared when the tokenizer is opened, so that a push only has to join. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */
static const char SPACE[] = "\xe2\x96\x81";       /* U+2581 */

/* ---- Reading "decoder" of a tokenizer.json ---- */

static mhla_status new_step(mhla_decoding *d, mhla_decoder_step **step) {
    void *list = d->steps;
    MHLA_TRY(mhla_list_grow(&list, &d->capacity, d->count + 1, sizeof *d->steps));
    d->steps = list;
    *step = &d->steps[d->count++];
    **step = (mhla_decoder_step){0};
    return MHLA_OK;
}

static mhla_status read_text(char **to, size_t *bytes, const json_t *part, const char *key, const char *name) {
    const char *text = NULL;
    MHLA_TRY(mhla_json_get_text(&text, part, key, name));
    if (text == NULL) return mhla_fail(MHLA_EDATA, "%s: \"%s\" of a decoder is missing", name, key);
    *bytes = strlen(text);
    return mhla_text_copy(to, text, *bytes);
}

static mhla_status read_replace(mhla_decoder_step *s, const json_t *part, const char *name) {
    s->kind = MHLA_DECODE_REPLACE;
    const json_t *pattern = NULL;
    MHLA_TRY(mhla_json_get_object(&pattern, part, "pattern", name));
    if (!json_is_string(json_object_get(pattern, "String")))
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: a decoder that replaces what a regular expression matches is not known here", name);
    MHLA_TRY(read_text(&s->from, &s->from_bytes, pattern, "String", name));
    return read_text(&s->to, &s->to_bytes, part, "content", name);
}

static mhla_status read_strip(mhla_decoder_step *s, const json_t *part, const char *name) {
    s->kind = MHLA_DECODE_STRIP;
    MHLA_TRY(read_text(&s->from, &s->from_bytes, part, "content", name));
    if (s->from_bytes == 0 || mhla_utf8_length((unsigned char *)s->from, s->from_bytes) != (int)s->from_bytes)
        return mhla_fail(MHLA_EDATA, "%s: \"content\" of a Strip is %s: expected one character", name,
                         MHLA_QUOTE(s->from));
    MHLA_TRY(mhla_json_get_int(&s->start, part, "start", 0, 1 << 20, name));
    return mhla_json_get_int(&s->stop, part, "stop", 0, 1 << 20, name);
}

static mhla_status read_metaspace(mhla_decoding *d, const json_t *part, const char *name) {
    const char *text = SPACE;
    MHLA_TRY(mhla_json_get_text(&text, part, "replacement", name));
    const size_t bytes = strlen(text);
    if (bytes == 0 || mhla_utf8_length((const unsigned char *)text, bytes) != (int)bytes)
        return mhla_fail(MHLA_EDATA, "%s: \"replacement\" of Metaspace is %s: expected one character", name,
                         MHLA_QUOTE(text));
    memcpy(d->mark, text, bytes);
    d->mark_bytes = bytes;
    static const char *const schemes[] = {"never", "first", "always", NULL};
    int scheme = 2, old = 1;
    MHLA_TRY(mhla_json_get_bool(&old, part, "add_prefix_space", name));
    if (!old) scheme = 0;
    MHLA_TRY(mhla_json_get_choice(&scheme, part, "prepend_scheme", schemes, name));
    d->metaspace = scheme == 0 ? 1 : 2;
    return MHLA_OK;
}

/* One part of a chain: changes of pieces, then ByteFallback, then Fuse, then one Strip of the whole. */
static mhla_status read_part(mhla_decoding *d, int *state, const json_t *part, const char *name) {
    enum { PIECES, BYTES, FUSED, STRIPPED };
    const char *type = NULL;
    if (json_is_object(part)) MHLA_TRY(mhla_json_get_text(&type, part, "type", name));
    if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: a decoder without a \"type\"", name);
    const int steps = d->count || d->metaspace || d->byte_fallback || *state != PIECES;
    mhla_decoder_step *step;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = NULL;
        MHLA_TRY(mhla_json_get_array(&list, part, "decoders", name));
        for (size_t i = 0; list && i < json_array_size(list); i++)
            MHLA_TRY(read_part(d, state, json_array_get(list, i), name));
        return MHLA_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        if (*state < FUSED) *state = FUSED;
        return MHLA_OK;
    }
    if (strcmp(type, "ByteLevel") == 0 && !steps) {
        d->kind = MHLA_DECODER_BYTE_LEVEL;
        *state = STRIPPED;
        return MHLA_OK;
    }
    if (strcmp(type, "Metaspace") == 0 && !steps) return read_metaspace(d, part, name);
    if (strcmp(type, "ByteFallback") == 0 && *state == PIECES) {
        d->byte_fallback = 1;
        *state = BYTES;
        return MHLA_OK;
    }
    if (strcmp(type, "Replace") == 0 && *state == PIECES && d->metaspace == 0) {
        MHLA_TRY(new_step(d, &step));
        return read_replace(step, part, name);
    }
    if (strcmp(type, "Strip") == 0 && *state == PIECES && d->metaspace == 0) {
        MHLA_TRY(new_step(d, &step));
        return read_strip(step, part, name);
    }
    if (strcmp(type, "Strip") == 0 && *state == FUSED) {
        *state = STRIPPED;
        return read_strip(&d->whole, part, name);
    }
    return mhla_fail(MHLA_ENOTSUP, "%s: a decoder of type %s, or at this place of a Sequence, is not known here", name,
                     MHLA_QUOTE(type));
}

mhla_status mhla_decoding_read(mhla_tokenizer *t, const json_t *decoder, const char *name) {
    t->decoding.kind = MHLA_DECODER_SPACED;
    if (decoder == NULL || json_is_null(decoder)) return MHLA_OK;
    t->decoding.kind = MHLA_DECODER_PIECES;
    int state = 0;
    return read_part(&t->decoding, &state, decoder, name);
}

static void step_free(mhla_decoder_step *s) {
    mhla_free(s->from);
    mhla_free(s->to);
}

void mhla_decoding_free(mhla_decoding *d) {
    for (size_t i = 0; i < d->count; i++) step_free(&d->steps[i]);
    mhla_free(d->steps);
    step_free(&d->whole);
}

/* ---- What each piece turns into ---- */

static mhla_status replace_all(mhla_chars *out, const char *text, size_t bytes, const char *from, size_t from_bytes,
                               const char *to, size_t to_bytes) {
    size_t at = 0;
    while (from_bytes > 0 && at < bytes) {
        const char *found = memmem(text + at, bytes - at, from, from_bytes);
        if (found == NULL) break;
        MHLA_TRY(mhla_chars_append(out, text + at, (size_t)(found - text) - at));
        MHLA_TRY(mhla_chars_append(out, to, to_bytes));
        at = (size_t)(found - text) + from_bytes;
    }
    return mhla_chars_append(out, text + at, bytes - at);
}

/* How many bytes of `text` a Strip takes from its start, and from its end. */
static void strip_ends(const mhla_decoder_step *s, const char *text, size_t bytes, size_t *front, size_t *back) {
    const size_t n = s->from_bytes;
    *front = *back = 0;
    for (int64_t i = 0; i < s->start && *front + n <= bytes && memcmp(text + *front, s->from, n) == 0; i++) *front += n;
    for (int64_t i = 0; i < s->stop && *front + *back + n <= bytes && memcmp(text + bytes - *back - n, s->from, n) == 0;
         i++)
        *back += n;
}

/* "<0x0A>" */
static int byte_token(const char *piece, size_t bytes) {
    if (bytes != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const char c = piece[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

static int is_valid(const char *text, size_t bytes) {
    return mhla_utf8_broken((const unsigned char *)text, bytes) == bytes;
}

/* Writes what the piece is by itself to `out`; scratch[2] are the caller's. */
static mhla_status prepare_piece(const mhla_decoding *d, mhla_chars *out, mhla_chars scratch[2], const char *piece,
                                 size_t bytes) {
    if (d->kind == MHLA_DECODER_BYTE_LEVEL) {
        MHLA_TRY(mhla_chars_reserve(out, bytes));
        size_t count;
        if (!mhla_byte_level_bytes(piece, bytes, out->data + out->count, &count))
            return mhla_chars_append(out, piece, bytes);
        out->count += count;
        return MHLA_OK;
    }
    if (d->kind == MHLA_DECODER_SENTENCEPIECE) return replace_all(out, piece, bytes, SPACE, 3, " ", 1);
    if (d->metaspace) return replace_all(out, piece, bytes, d->mark, d->mark_bytes, " ", 1);
    int turn = 0;
    for (size_t i = 0; i < d->count; i++) {
        const mhla_decoder_step *s = &d->steps[i];
        mhla_chars *to = &scratch[turn];
        to->count = 0;
        if (s->kind == MHLA_DECODE_REPLACE) {
            MHLA_TRY(replace_all(to, piece, bytes, s->from, s->from_bytes, s->to, s->to_bytes));
        } else {
            size_t front, back;
            strip_ends(s, piece, bytes, &front, &back);
            MHLA_TRY(mhla_chars_append(to, piece + front, bytes - front - back));
        }
        piece = to->data ? to->data : "";
        bytes = to->count;
        turn = !turn;
    }
    return mhla_chars_append(out, piece, bytes);
}

mhla_status mhla_decoding_prepare(mhla_tokenizer *t) {
    const mhla_decoding *d = &t->decoding;
    t->decoded = mhla_alloc_zero(t->pieces.count * sizeof *t->decoded);
    if (t->decoded == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to decode %zu pieces", t->pieces.count);
    mhla_chars scratch[2] = {{0}};
    mhla_status status = MHLA_OK;
    for (size_t id = 0; id < t->pieces.count && status == MHLA_OK; id++) {
        mhla_decoded *p = &t->decoded[id];
        size_t bytes;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &bytes);
        p->length = p->byte = -1;
        p->type = t->types ? t->types[id] : MHLA_TYPE_NORMAL;
        if (piece == NULL) continue;
        const mhla_bpe *b = &t->bpe;
        if (d->kind == MHLA_DECODER_BYTE_LEVEL && b->suffix_bytes && bytes >= b->suffix_bytes &&
            memcmp(piece + bytes - b->suffix_bytes, b->suffix, b->suffix_bytes) == 0)
            bytes -= b->suffix_bytes, p->ends = 1;
        const size_t start = t->decoded_text.count;
        status = prepare_piece(d, &t->decoded_text, scratch, piece, bytes);
        p->start = (uint32_t)start;
        p->length = (int32_t)(t->decoded_text.count - start);
        if (t->decoded_text.count > UINT32_MAX)
            status = mhla_fail(MHLA_EDATA, "the tokenizer's decoder makes more than 4 GiB of its pieces");
        if (t->decoded_text.count == start) continue;
        p->whole = (unsigned char)is_valid(t->decoded_text.data + start, (size_t)p->length);
        if (d->byte_fallback) p->byte = (int16_t)byte_token(t->decoded_text.data + start, (size_t)p->length);
        if (p->type == MHLA_TYPE_BYTE) p->byte = (int16_t)byte_token(piece, bytes);
    }
    for (int i = 0; i < 2; i++) mhla_chars_free(&scratch[i]);
    return status;
}

/* ---- Streaming ---- */

struct mhla_decoder {
    const mhla_tokenizer *t;
    unsigned flags;
    int64_t pieces;     /* pushed so far, but those left out */
    mhla_chars held;    /* bytes that are not yet characters */
    int64_t stripped;   /* characters taken from the start of the whole */
    int64_t back;       /* characters held back, because the end of the whole may have to lose them */
    int begun;          /* something that is not stripped has come */
    int gap;            /* a word has ended: a space before what follows */
    int sp_text, sp_ws; /* SentencePiece: text has come; the last piece has given its mark away */
};

mhla_status mhla_decoder_create(mhla_decoder **decoder, const mhla_tokenizer *tokenizer, unsigned flags) {
    if (decoder == NULL || tokenizer == NULL) return mhla_fail(MHLA_EINVAL, "decoder or tokenizer is NULL");
    *decoder = NULL;
    if (flags & ~(unsigned)MHLA_DECODE_SKIP_SPECIAL)
        return mhla_fail(MHLA_EINVAL, "flags are %#x: only MHLA_DECODE_SKIP_SPECIAL is known", flags);
    mhla_decoder *d = mhla_alloc_zero(sizeof *d);
    if (d == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a decoder");
    d->t = tokenizer;
    d->flags = flags;
    *decoder = d;
    return MHLA_OK;
}

void mhla_decoder_free(mhla_decoder *d) {
    if (d == NULL) return;
    mhla_chars_free(&d->held);
    mhla_free(d);
}

/* Appends text to the whole, which loses characters at its ends if a Strip says so. */
static mhla_status emit(mhla_decoder *d, mhla_chars *out, const char *text, size_t bytes) {
    const mhla_decoder_step *s = &d->t->decoding.whole;
    const size_t n = s->from_bytes;
    if (n == 0) return mhla_chars_append(out, text, bytes);
    while (!d->begun && bytes > 0) {
        if (d->stripped == s->start || bytes < n || memcmp(text, s->from, n) != 0) {
            d->begun = 1;
            break;
        }
        text += n, bytes -= n;
        d->stripped++;
    }
    if (s->stop == 0) return mhla_chars_append(out, text, bytes);
    size_t front, back;
    strip_ends(&(mhla_decoder_step){.from = s->from, .from_bytes = n, .stop = s->stop}, text, bytes, &front, &back);
    if (bytes > back) { /* something else came: what was held back stays */
        for (; d->back > 0; d->back--) MHLA_TRY(mhla_chars_append(out, s->from, n));
        MHLA_TRY(mhla_chars_append(out, text, bytes - back));
    }
    d->back += (int64_t)(back / n);
    for (; d->back > s->stop; d->back--) MHLA_TRY(mhla_chars_append(out, s->from, n));
    return MHLA_OK;
}

/* Bytes at the start that are, or could become, one character: 0 if the first begins none. */
static size_t character_prefix(const unsigned char *at, size_t size) {
    if (size == 0 || (at[0] >= 0x80 && at[0] < 0xc2) || at[0] > 0xf4) return 0;
    const size_t length = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    size_t n = 1;
    for (; n < length && n < size; n++) {
        const unsigned char low = n > 1 ? 0x80 : at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
        const unsigned char high = n > 1 ? 0xbf : at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
        if (at[n] < low || at[n] > high) break;
    }
    return n;
}

/* Hands out the characters that are complete in d->held. Bytes that are none become U+FFFD: one for as many as could have
 * begun a character (`maximal`), or one for each. At the `end` nothing is waited for. */
static mhla_status emit_held(mhla_decoder *d, mhla_chars *out, int maximal, int end) {
    const unsigned char *bytes = (const unsigned char *)d->held.data;
    size_t at = 0, from = 0; /* what is valid from `from` to `at` is not yet written */
    const size_t size = d->held.count;
    if (size == 0) return MHLA_OK;
    mhla_status status = MHLA_OK;
    while (at < size && status == MHLA_OK) {
        const size_t n = (size_t)mhla_utf8_length(bytes + at, size - at);
        if (n) {
            at += n;
            continue;
        }
        const size_t prefix = character_prefix(bytes + at, size - at);
        if (prefix == size - at && !end) break;
        status = emit(d, out, d->held.data + from, at - from);
        if (status == MHLA_OK) status = emit(d, out, REPLACEMENT, 3);
        at += maximal && prefix ? prefix : 1;
        from = at;
    }
    if (status == MHLA_OK) status = emit(d, out, d->held.data + from, at - from);
    if (at > 0) memmove(d->held.data, d->held.data + at, size - at);
    d->held.count = size - at;
    return status;
}

/* ByteFallback: a run of byte tokens is its text if all of it is valid, else each byte is a U+FFFD. */
static mhla_status emit_run(mhla_decoder *d, mhla_chars *out) {
    const size_t count = d->held.count;
    if (count == 0) return MHLA_OK;
    d->held.count = 0;
    if (is_valid(d->held.data, count)) return emit(d, out, d->held.data, count);
    for (size_t i = 0; i < count; i++) MHLA_TRY(emit(d, out, REPLACEMENT, 3));
    return MHLA_OK;
}

static mhla_status push_sentencepiece(mhla_decoder *d, mhla_chars *out, const mhla_decoded *p, int32_t id) {
    const mhla_decoding *how = &d->t->decoding;
    const size_t before = out->count;
    if (p->byte >= 0) {
        const char byte = (char)p->byte;
        MHLA_TRY(mhla_chars_append(&d->held, &byte, 1));
        MHLA_TRY(emit_held(d, out, 0, 0));
        d->sp_text |= out->count > before;
        return MHLA_OK;
    }
    MHLA_TRY(emit_held(d, out, 0, 1));
    d->sp_text |= out->count > before;
    d->begun |= d->sp_text || d->sp_ws;
    const int first = !d->begun;
    d->sp_ws = 0;
    if (p->type == MHLA_TYPE_CONTROL) return MHLA_OK;
    if (p->type == MHLA_TYPE_UNKNOWN) {
        d->sp_text = 1;
        return mhla_chars_append(out, " \xe2\x81\x87 ", 5);
    }
    const char *text = d->t->decoded_text.data + p->start;
    size_t bytes = (size_t)p->length;
    size_t raw_bytes = 0;
    const char *raw = mhla_vocabulary_piece(&d->t->pieces, id, &raw_bytes);
    if (first && (how->dummy_prefix || how->squeeze) && raw_bytes >= 3 && memcmp(raw, SPACE, 3) == 0) {
        text++, bytes--;
        d->sp_ws = !how->squeeze;
    }
    d->sp_text |= bytes > 0;
    return mhla_chars_append(out, text, bytes);
}

mhla_status mhla_decoder_push(mhla_decoder *d, mhla_chars *out, int32_t id) {
    if (d == NULL || out == NULL) return mhla_fail(MHLA_EINVAL, "decoder or text is NULL");
    const mhla_tokenizer *t = d->t;
    if (id < 0 || (size_t)id >= t->pieces.count)
        return mhla_fail(MHLA_EINVAL, "the id %d is out of range: the vocabulary has %zu pieces", id, t->pieces.count);
    const mhla_decoded *p = &t->decoded[id];
    if (p->length < 0 || ((d->flags & MHLA_DECODE_SKIP_SPECIAL) && t->special[id])) return MHLA_OK;
    const char *text = t->decoded_text.data + p->start;
    const size_t bytes = (size_t)p->length;
    const int64_t place = d->pieces++;
    switch (t->decoding.kind) {
    case MHLA_DECODER_SPACED:
        if (place > 0) MHLA_TRY(mhla_chars_append(out, " ", 1));
        return mhla_chars_append(out, text, bytes);
    case MHLA_DECODER_BYTE_LEVEL:
        if (d->gap) MHLA_TRY(mhla_chars_append(d->held.count ? &d->held : out, " ", 1));
        d->gap = p->ends;
        if (d->held.count == 0 && p->whole) return mhla_chars_append(out, text, bytes);
        MHLA_TRY(mhla_chars_append(&d->held, text, bytes));
        return emit_held(d, out, 1, 0);
    case MHLA_DECODER_SENTENCEPIECE: return push_sentencepiece(d, out, p, id);
    case MHLA_DECODER_PIECES: break;
    }
    if (p->byte >= 0) {
        const char byte = (char)p->byte;
        return mhla_chars_append(&d->held, &byte, 1);
    }
    MHLA_TRY(emit_run(d, out));
    if (place == 0 && t->decoding.metaspace == 2) { /* no marks in the first piece */
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, id, &n);
        mhla_chars bare = {0};
        mhla_status status = replace_all(&bare, piece, n, t->decoding.mark, t->decoding.mark_bytes, "", 0);
        if (status == MHLA_OK && bare.count) status = emit(d, out, bare.data, bare.count);
        mhla_chars_free(&bare);
        return status;
    }
    return emit(d, out, text, bytes);
}

mhla_status mhla_decoder_finish(mhla_decoder *d, mhla_chars *out) {
    if (d == NULL || out == NULL) return mhla_fail(MHLA_EINVAL, "decoder or text is NULL");
    mhla_status status;
    if (d->t->decoding.kind == MHLA_DECODER_PIECES)
        status = emit_run(d, out);
    else
        status = emit_held(d, out, d->t->decoding.kind == MHLA_DECODER_BYTE_LEVEL, 1);
    d->back = 0; /* these are stripped */
    return status;
}

mhla_status mhla_tokenizer_decode(const mhla_tokenizer *tokenizer, mhla_chars *text, const int32_t *ids, int64_t count,
                                  unsigned flags) {
    if (text == NULL || (ids == NULL && count > 0)) return mhla_fail(MHLA_EINVAL, "text or ids is NULL");
    mhla_decoder *d = NULL;
    MHLA_TRY(mhla_decoder_create(&d, tokenizer, flags));
    const size_t before = text->count;
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) status = mhla_decoder_push(d, text, ids[i]);
    if (status == MHLA_OK) status = mhla_decoder_finish(d, text);
    if (status != MHLA_OK) text->count = before;
    mhla_decoder_free(d);
    return status;
}
