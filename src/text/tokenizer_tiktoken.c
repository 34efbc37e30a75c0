/* Files of tiktoken: lines of a piece in Base64 and its rank, which is its id. A file says neither how text is split nor what its
 * special tokens are: that is known of the encodings below. A word that is a piece is that piece; else any two neighbours that
 * make a piece may become it, the lowest rank first. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

static const char o200k[] = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+("
                            "?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                            "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*("
                            "?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                            "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* \s++$ comes before line breaks in this one: spaces at the end of a text are one word, breaks among them or not */
static const char cl100k[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "
                             "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++\\z|\\s*[\\r\\n]|"
                             "\\s+(?!\\S)|\\s";

typedef struct special {
    const char *piece;       /* with a %d: `count` of them, numbered from `from` */
    int32_t at, from, count; /* id of the first, from the number of ranks on */
} special;

static const struct encoding {
    const char *name, *pattern, *model; /* of the file's name; the model_type of a config.json beside it */
    int32_t ranks;
    int nfc, adds_bos;
    special specials[13];
} encodings[] = {
    {"llama3",
     mhla_pattern_llama3,
     "llama",
     128000,
     0,
     1,
     {{"<|begin_of_text|>", 0, 0, 1},
      {"<|end_of_text|>", 1, 0, 1},
      {"<|reserved_special_token_%d|>", 2, 0, 2},
      {"<|finetune_right_pad_id|>", 4, 0, 1},
      {"<|reserved_special_token_%d|>", 5, 2, 1},
      {"<|start_header_id|>", 6, 0, 1},
      {"<|end_header_id|>", 7, 0, 1},
      {"<|eom_id|>", 8, 0, 1},
      {"<|eot_id|>", 9, 0, 1},
      {"<|python_tag|>", 10, 0, 1},
      {"<|reserved_special_token_%d|>", 11, 3, 245}}},
    {"qwen",
     mhla_pattern_qwen2,
     "qwen",
     151643,
     1,
     0,
     {{"<|endoftext|>", 0, 0, 1}, {"<|im_start|>", 1, 0, 1}, {"<|im_end|>", 2, 0, 1}, {"<|extra_%d|>", 3, 0, 205}}},
    {"cl100k_base",
     cl100k,
     NULL,
     100256,
     0,
     0,
     {{"<|endoftext|>", 1, 0, 1},
      {"<|fim_prefix|>", 2, 0, 1},
      {"<|fim_middle|>", 3, 0, 1},
      {"<|fim_suffix|>", 4, 0, 1},
      {"<|endofprompt|>", 20, 0, 1}}},
    {"o200k_base", o200k, NULL, 199998, 0, 0, {{"<|endoftext|>", 1, 0, 1}, {"<|endofprompt|>", 20, 0, 1}}},
    {"r50k_base", mhla_pattern_gpt2, "gpt2", 50256, 0, 0, {{"<|endoftext|>", 0, 0, 1}}},
    {"p50k_base", mhla_pattern_gpt2, NULL, 50280, 0, 0, {{"<|endoftext|>", -24, 0, 1}}},
};
enum { ENCODINGS = sizeof encodings / sizeof *encodings };

/* ---- Lines ---- */

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* One line "IQ== 0": its bytes, to `raw`, and rank; returns how many bytes, or -1. */
static int64_t read_line(const char *line, size_t bytes, char *raw, int64_t *rank) {
    const char *space = memchr(line, ' ', bytes);
    const size_t letters = space ? (size_t)(space - line) : 0, digits = bytes - letters - 1;
    if (letters == 0 || letters % 4 || letters / 4 * 3 > MHLA_PIECE_BYTES || digits < 1 || digits > 9) return -1;
    int64_t n = 0;
    size_t padding = line[letters - 1] == '=' ? line[letters - 2] == '=' ? 2 : 1 : 0;
    uint32_t held = 0;
    int bits = 0;
    for (size_t i = 0; i < letters - padding; i++) {
        const int value = base64_value(line[i]);
        if (value < 0) return -1;
        held = held << 6 | (uint32_t)value, bits += 6;
        if (bits >= 8) raw[n++] = (char)(held >> (bits -= 8));
    }
    *rank = 0;
    for (size_t i = 0; i < digits; i++) {
        const char c = space[1 + i];
        if (c < '0' || c > '9') return -1;
        *rank = *rank * 10 + (c - '0');
    }
    return n;
}

int mhla_tiktoken_is(const unsigned char *text, size_t size) {
    const unsigned char *end = size ? memchr(text, '\n', size) : NULL;
    size_t bytes = end ? (size_t)(end - text) : size;
    char raw[256];
    int64_t rank;
    if (bytes && text[bytes - 1] == '\r') bytes--;
    return bytes < sizeof raw && read_line((const char *)text, bytes, raw, &rank) > 0;
}

/* A piece as bytes to `symbols`, and as characters that stand for them to `pieces`. */
static mhla_status add_piece(mhla_tokenizer *t, int32_t id, const char *raw, size_t bytes, mhla_chars *spelled,
                             const char *name) {
    spelled->count = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c[4];
        const int n = mhla_utf8_put(c, mhla_byte_level_char((unsigned char)raw[i]));
        MHLA_TRY(mhla_chars_append(spelled, (const char *)c, (size_t)n));
    }
    MHLA_TRY(mhla_vocabulary_set(&t->pieces, id, spelled->data, spelled->count, name));
    return mhla_vocabulary_set(&t->bpe.symbols, id, raw, bytes, name);
}

static mhla_status read_lines(mhla_tokenizer *t, const char *text, size_t size, const char *name) {
    char *raw = mhla_alloc(MHLA_PIECE_BYTES);
    mhla_chars spelled = {0};
    mhla_status status = raw ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its pieces", name);
    size_t number = 0;
    for (size_t at = 0, next; at < size && status == MHLA_OK; at = next) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        size_t bytes = end ? (size_t)(end - line) : size - at;
        int64_t rank = 0, n;
        next = at + bytes + (end != NULL);
        number++;
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (bytes == 0) continue;
        n = read_line(line, bytes, raw, &rank);
        if (n <= 0 || rank >= MHLA_VOCABULARY_IDS)
            status = mhla_fail(MHLA_EDATA, "%s:%zu: %s: expected a piece in Base64 and its rank", name, number,
                               mhla_quote_bytes(line, bytes).text);
        else
            status = add_piece(t, (int32_t)rank, raw, (size_t)n, &spelled, name);
    }
    mhla_chars_free(&spelled);
    mhla_free(raw);
    return status;
}

/* ---- What the ranks mean ---- */

enum { CUT_BYTES = 1024 }; /* of a piece that is merged: all ways to cut it are tried */

static mhla_status add_merges(mhla_tokenizer *t, const char *name) {
    for (size_t id = 0; id < t->bpe.symbols.count; id++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->bpe.symbols, (int32_t)id, &n);
        if (n > CUT_BYTES) return mhla_fail(MHLA_EDATA, "%s: piece %zu has more than %d bytes", name, id, CUT_BYTES);
        for (size_t cut = 1; piece && cut < n; cut++) {
            const int32_t left = mhla_vocabulary_find(&t->bpe.symbols, piece, cut);
            const int32_t right = left < 0 ? -1 : mhla_vocabulary_find(&t->bpe.symbols, piece + cut, n - cut);
            if (right >= 0) MHLA_TRY(mhla_bpe_merge_add(&t->bpe, left, right, (uint32_t)id, (int32_t)id));
        }
    }
    return MHLA_OK;
}

static mhla_status add_specials(mhla_tokenizer *t, const struct encoding *e, const char *name) {
    const int32_t ranks = (int32_t)t->bpe.symbols.count;
    for (const special *s = e->specials; s->piece; s++)
        for (int32_t i = 0; i < s->count; i++) {
            char piece[64];
            const char *number = strstr(s->piece, "%d");
            if (number)
                snprintf(piece, sizeof piece, "%.*s%d%s", (int)(number - s->piece), s->piece, (int)(s->from + i),
                         number + 2);
            else
                snprintf(piece, sizeof piece, "%s", s->piece);
            const mhla_added a = {.id = ranks + s->at + i, .content = piece, .bytes = strlen(piece), .special = 1};
            MHLA_TRY(mhla_vocabulary_set(&t->pieces, a.id, piece, a.bytes, name));
            MHLA_TRY(mhla_tokenizer_add(t, &a, name));
        }
    return MHLA_OK;
}

/* By the number of ranks; the model beside the file; the file's name. */
static mhla_status find_encoding(const struct encoding **found, int64_t ranks, const char *model, const char *name) {
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    *found = NULL;
    for (int i = 0; i < ENCODINGS && *found == NULL; i++)
        if (encodings[i].ranks == ranks) *found = &encodings[i];
    for (int i = 0; i < ENCODINGS && *found == NULL; i++)
        if (model && encodings[i].model && strcmp(model, encodings[i].model) == 0) *found = &encodings[i];
    for (int i = 0; i < ENCODINGS && *found == NULL; i++)
        if (strncmp(file, encodings[i].name, strlen(encodings[i].name)) == 0) *found = &encodings[i];
    if (*found) return MHLA_OK;
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < ENCODINGS; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s (%d)", i ? ", " : "", encodings[i].name,
                                 (int)encodings[i].ranks);
    return mhla_fail(
        MHLA_ENOTSUP,
        "%s: %lld ranks of tiktoken: neither their number, the \"model_type\" of a config.json beside the file "
        "(llama, qwen, gpt2) nor its name says which encoding this is; known are %s",
        name, (long long)ranks, known);
}

static mhla_status read_all(mhla_tokenizer *t, const char *text, size_t size, const char *model, const char *name) {
    const struct encoding *e;
    mhla_normalizer *n;
    mhla_splitter *s;
    MHLA_TRY(read_lines(t, text, size, name));
    MHLA_TRY(find_encoding(&e, (int64_t)t->bpe.symbols.count, model, name));
    if (e->nfc) {
        MHLA_TRY(mhla_tokenizer_new_normalizer(t, &n));
        n->kind = MHLA_NORMALIZE_FORM;
        n->compose = 1;
    }
    MHLA_TRY(mhla_tokenizer_new_splitter(t, &s));
    s->splits = 1;
    MHLA_TRY(mhla_pattern_regex(&s->pattern, e->pattern, strlen(e->pattern), 0, name));
    t->bpe.byte_level = t->bpe.ignore_merges = 1;
    t->decoding.kind = MHLA_DECODER_BYTE_LEVEL;
    t->kind = "bpe, byte level, of tiktoken";
    MHLA_TRY(add_merges(t, name));
    MHLA_TRY(add_specials(t, e, name));
    if (e->adds_bos) {
        t->bos = mhla_vocabulary_find(&t->pieces, e->specials[0].piece, strlen(e->specials[0].piece));
        MHLA_TRY(mhla_ids_append(&t->before, &t->bos, 1));
    }
    return mhla_tokenizer_finish(t, name);
}

mhla_status mhla_tokenizer_parse_tiktoken(mhla_tokenizer **tokenizer, const char *text, size_t size, const char *model,
                                          const char *name) {
    *tokenizer = NULL;
    mhla_tokenizer *t = NULL;
    mhla_status status = mhla_tokenizer_new(&t);
    if (status == MHLA_OK) status = read_all(t, text, size, model, name);
    if (status != MHLA_OK)
        mhla_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}
