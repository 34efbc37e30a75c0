/* The vocabulary inside a GGUF: "gpt2" is a byte-level BPE with merges and the name of its split pattern, "llama" a
 * SentencePiece BPE with scores. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/gguf.h"
#include "file/text.h"
#include "text/tokenizer.h"

/* ---- Patterns by the names that llama.cpp gave them ---- */

static const struct pre {
    const char *name;
    const char *patterns[4]; /* one after the other; NULL: no more */
    int single_digits;       /* before them */
    int ignore_merges, adds_bos;
} pres[] = {
    {"gpt-2", {mhla_pattern_gpt2}, 0, 0, 0},
    {"phi-2", {mhla_pattern_gpt2}, 0, 0, 0},
    {"mpt", {mhla_pattern_gpt2}, 0, 0, 0},
    {"olmo", {mhla_pattern_gpt2}, 0, 0, 0},
    {"roberta-bpe", {mhla_pattern_gpt2}, 0, 0, 0},
    {"smollm", {mhla_pattern_gpt2}, 1, 0, 0},
    {"starcoder", {mhla_pattern_gpt2}, 1, 0, 0},
    {"refact", {mhla_pattern_gpt2}, 1, 0, 0},
    {"command-r", {mhla_pattern_gpt2}, 1, 0, 0},
    {"codeshell", {mhla_pattern_gpt2}, 1, 0, 0},
    {"exaone", {mhla_pattern_gpt2}, 1, 0, 0},
    {"llama3", {mhla_pattern_llama3}, 0, 1, 1},
    {"llama-v3", {mhla_pattern_llama3}, 0, 1, 1},
    {"llama-bpe", {mhla_pattern_llama3}, 0, 1, 1},
    {"dbrx", {mhla_pattern_llama3}, 0, 0, 0},
    {"smaug-bpe", {mhla_pattern_llama3}, 0, 0, 0},
    {"qwen2", {mhla_pattern_qwen2}, 0, 0, 0},
    {"deepseek-r1-qwen", {mhla_pattern_qwen2}, 0, 0, 0},
    {"stablelm2", {mhla_pattern_qwen2}, 0, 0, 0},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", mhla_pattern_gpt2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0, 0, 0},
};

static mhla_status read_pre(mhla_tokenizer *t, const char *name, int *adds_bos, const char *path) {
    const struct pre *pre = NULL;
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strcmp(name, pres[i].name) == 0) pre = &pres[i];
    if (pre == NULL)
        return mhla_fail(MHLA_ENOTSUP, "%s: tokenizer.ggml.pre is %s, a way to split text that is not known here", path,
                         MHLA_QUOTE(name));
    mhla_splitter *s;
    if (pre->single_digits) {
        MHLA_TRY(mhla_tokenizer_new_splitter(t, &s));
        s->splits = 1;
        s->pattern.kind = MHLA_PATTERN_CLASS;
        s->pattern.classes = MHLA_CHAR_NUMBER;
    }
    for (int i = 0; i < 4 && pre->patterns[i]; i++) {
        MHLA_TRY(mhla_tokenizer_new_splitter(t, &s));
        s->splits = 1;
        MHLA_TRY(mhla_pattern_regex(&s->pattern, pre->patterns[i], strlen(pre->patterns[i]), 0, path));
    }
    t->bpe.ignore_merges = pre->ignore_merges;
    *adds_bos = pre->adds_bos;
    return MHLA_OK;
}

/* ---- Lists ---- */

static mhla_status read_tokens(mhla_tokenizer *t, const mhla_gguf *file, const char *path) {
    const mhla_gguf_value *tokens = NULL, *types = NULL;
    MHLA_TRY(mhla_gguf_get_strings(&tokens, file, "tokenizer.ggml.tokens"));
    MHLA_TRY(mhla_gguf_get_numbers(&types, file, "tokenizer.ggml.token_type"));
    if (tokens == NULL || tokens->count == 0)
        return mhla_fail(MHLA_EDATA, "%s: tokenizer.ggml.tokens is missing", path);
    if (types && types->count != tokens->count)
        return mhla_fail(MHLA_EDATA, "%s: %lld types of %lld tokens", path, (long long)types->count,
                         (long long)tokens->count);
    t->types = mhla_alloc((size_t)tokens->count);
    if (t->types == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its tokens", path);
    for (int64_t id = 0; id < tokens->count; id++) {
        const mhla_gguf_string *s = &tokens->strings[id];
        const int64_t type = types ? mhla_gguf_int_at(types, id) : MHLA_TYPE_NORMAL;
        if (id >= MHLA_VOCABULARY_IDS || type < MHLA_TYPE_NORMAL || type > MHLA_TYPE_BYTE)
            return mhla_fail(MHLA_EDATA, "%s: token %lld is of type %lld, or one too many", path, (long long)id,
                             (long long)type);
        if (mhla_utf8_broken((const unsigned char *)s->data, s->length) < s->length)
            return mhla_fail(MHLA_EDATA, "%s: token %lld is not UTF-8", path, (long long)id);
        MHLA_TRY(mhla_vocabulary_set(&t->pieces, (int32_t)id, s->data, s->length, path));
        t->types[id] = (unsigned char)type;
    }
    return MHLA_OK;
}

static mhla_status read_merges(mhla_tokenizer *t, const mhla_gguf *file, const char *path) {
    const mhla_gguf_value *merges = NULL;
    MHLA_TRY(mhla_gguf_get_strings(&merges, file, "tokenizer.ggml.merges"));
    if (merges == NULL) return mhla_fail(MHLA_EDATA, "%s: tokenizer.ggml.merges is missing", path);
    mhla_chars joined = {0};
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < merges->count && status == MHLA_OK; i++) {
        const mhla_gguf_string *s = &merges->strings[i];
        const char *space = s->length > 1 ? memchr(s->data + 1, ' ', s->length - 1) : NULL;
        const size_t n = space ? (size_t)(space - s->data) : 0;
        if (n == 0 || n + 1 == s->length) {
            status = mhla_fail(MHLA_EDATA, "%s: merge %lld is %s: expected two pieces", path, (long long)i,
                               mhla_quote_bytes(s->data, s->length).text);
            break;
        }
        joined.count = 0;
        status = mhla_chars_append(&joined, s->data, n);
        if (status == MHLA_OK) status = mhla_chars_append(&joined, space + 1, s->length - n - 1);
        if (status != MHLA_OK) break;
        const int32_t left = mhla_vocabulary_find(&t->pieces, s->data, n);
        const int32_t right = mhla_vocabulary_find(&t->pieces, space + 1, s->length - n - 1);
        const int32_t both = mhla_vocabulary_find(&t->pieces, joined.data, joined.count);
        if (left < 0 || right < 0 || both < 0)
            status = mhla_fail(MHLA_EDATA, "%s: merge %lld, %s, is of pieces that are not in the vocabulary", path,
                               (long long)i, mhla_quote_bytes(s->data, s->length).text);
        else
            status = mhla_bpe_merge_add(&t->bpe, left, right, (uint32_t)i, both);
    }
    mhla_chars_free(&joined);
    return status;
}

static mhla_status read_scores(mhla_tokenizer *t, const mhla_gguf *file, const char *path) {
    const mhla_gguf_value *value = NULL;
    MHLA_TRY(mhla_gguf_get_numbers(&value, file, "tokenizer.ggml.scores"));
    const size_t count = t->pieces.count;
    if (value == NULL || (size_t)value->count != count)
        return mhla_fail(MHLA_EDATA, "%s: tokenizer.ggml.scores: expected one for each of %zu tokens", path, count);
    float *scores = mhla_alloc(count * sizeof *scores);
    if (scores == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its scores", path);
    for (size_t id = 0; id < count; id++) scores[id] = (float)mhla_gguf_real_at(value, (int64_t)id);
    const mhla_status status = mhla_scores_merges(t, scores, t->types, path);
    mhla_free(scores);
    return status;
}

/* ---- All of it ---- */

static mhla_status read_id(int32_t *to, const mhla_tokenizer *t, const mhla_gguf *file, const char *key) {
    int64_t id = -1;
    MHLA_TRY(mhla_gguf_get_int(&id, file, key, 0, (int64_t)t->pieces.count - 1));
    if (id >= 0) *to = (int32_t)id;
    return MHLA_OK;
}

/* Control tokens are found in text, as are those of the user; bytes stand for what is unknown. */
static mhla_status note_types(mhla_tokenizer *t, int bytes, const char *path) {
    for (size_t id = 0; id < t->pieces.count; id++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        const int control = t->types[id] == MHLA_TYPE_CONTROL || t->types[id] == MHLA_TYPE_UNKNOWN;
        if (control || t->types[id] == MHLA_TYPE_USER) {
            const mhla_added a = {.id = (int32_t)id, .content = (char *)piece, .bytes = n, .special = control};
            MHLA_TRY(mhla_tokenizer_add(t, &a, path));
        }
        if (t->types[id] == MHLA_TYPE_UNKNOWN) t->unk = (int32_t)id;
        char *end = NULL;
        if (bytes && t->types[id] == MHLA_TYPE_BYTE && n == 6 && memcmp(piece, "<0x", 3) == 0) {
            const unsigned long byte = strtoul(piece + 3, &end, 16);
            if (end == piece + 5 && *end == '>') t->bpe.spare[byte & 255] = (int32_t)id;
        }
    }
    return MHLA_OK;
}

static mhla_status read_special(mhla_tokenizer *t, const mhla_gguf *file, int64_t adds_bos) {
    int64_t adds_eos = 0;
    MHLA_TRY(read_id(&t->bos, t, file, "tokenizer.ggml.bos_token_id"));
    MHLA_TRY(read_id(&t->eos, t, file, "tokenizer.ggml.eos_token_id"));
    MHLA_TRY(read_id(&t->unk, t, file, "tokenizer.ggml.unknown_token_id"));
    MHLA_TRY(read_id(&t->pad, t, file, "tokenizer.ggml.padding_token_id"));
    MHLA_TRY(mhla_gguf_get_int(&adds_bos, file, "tokenizer.ggml.add_bos_token", 0, 1));
    MHLA_TRY(mhla_gguf_get_int(&adds_eos, file, "tokenizer.ggml.add_eos_token", 0, 1));
    if (adds_bos && t->bos >= 0) MHLA_TRY(mhla_ids_append(&t->before, &t->bos, 1));
    if (adds_eos && t->eos >= 0) MHLA_TRY(mhla_ids_append(&t->after, &t->eos, 1));
    char *chat = NULL;
    MHLA_TRY(mhla_gguf_get_text(&chat, file, "tokenizer.chat_template"));
    const mhla_status status = chat ? mhla_text_copy(&t->chat_template, chat, strlen(chat)) : MHLA_OK;
    free(chat);
    return status;
}

static mhla_status read_gguf(mhla_tokenizer *t, const mhla_gguf *file, const char *model, const char *pre,
                             const char *path) {
    const int llama = strcmp(model, "llama") == 0;
    int adds_bos = llama;
    int64_t prefix = 1;
    if (!llama && strcmp(model, "gpt2") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: tokenizer.ggml.model is %s: only gpt2 and llama are known", path,
                         MHLA_QUOTE(model));
    MHLA_TRY(read_tokens(t, file, path));
    if (llama) {
        t->kind = "SentencePiece bpe, of a GGUF";
        MHLA_TRY(mhla_gguf_get_int(&prefix, file, "tokenizer.ggml.add_space_prefix", 0, 1));
        MHLA_TRY(mhla_sentencepiece_around(t, (int)prefix, 1));
        MHLA_TRY(read_scores(t, file, path));
    } else {
        t->kind = "bpe, byte level, of a GGUF";
        t->bpe.byte_level = 1;
        t->decoding.kind = MHLA_DECODER_BYTE_LEVEL;
        MHLA_TRY(mhla_byte_level_symbols(t, path));
        MHLA_TRY(read_pre(t, pre, &adds_bos, path));
        MHLA_TRY(read_merges(t, file, path));
    }
    MHLA_TRY(note_types(t, llama, path));
    MHLA_TRY(read_special(t, file, adds_bos));
    if (llama) t->bpe.unk = t->unk;
    return mhla_tokenizer_finish(t, path);
}

mhla_status mhla_tokenizer_parse_gguf(mhla_tokenizer **tokenizer, const char *path) {
    *tokenizer = NULL;
    mhla_gguf *file = NULL;
    mhla_tokenizer *t = NULL;
    char *model = NULL, *pre = NULL;
    MHLA_TRY(mhla_gguf_open(&file, path));
    mhla_status status = mhla_tokenizer_new(&t);
    if (status == MHLA_OK) status = mhla_gguf_get_text(&model, file, "tokenizer.ggml.model");
    if (status == MHLA_OK) status = mhla_gguf_get_text(&pre, file, "tokenizer.ggml.pre");
    if (status == MHLA_OK && model == NULL)
        status = mhla_fail(MHLA_EDATA, "%s: no vocabulary inside: tokenizer.ggml.model is missing", path);
    if (status == MHLA_OK) status = read_gguf(t, file, model, pre ? pre : "default", path);
    free(model);
    free(pre);
    mhla_gguf_close(file);
    if (status != MHLA_OK)
        mhla_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}
