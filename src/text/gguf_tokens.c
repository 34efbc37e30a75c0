#include "text/gguf_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE }; /* token_type */

void mhla_gguf_tokens_free(mhla_gguf_tokens *t) {
    mhla_gguf_close(t->file);
    json_decref(t->tree);
    mhla_tokenizer_free(t->own);
    free(t->tokens);
    free(t->merges);
    free(t->joined);
    free(t->pads);
    free(t->scores);
    free(t->types);
    *t = (mhla_gguf_tokens){0};
}

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory for its tokens", path); }

static void add(mhla_gguf_tokens *t, mhla_gguf_pair pair) { t->pairs[t->count++] = pair; }
static void add_text(mhla_gguf_tokens *t, const char *key, const char *text, int place) {
    t->texts[place] = (mhla_gguf_string){text, strlen(text)};
    add(t, (mhla_gguf_pair){key, MHLA_GGUF_STRING, 0, 1, NULL, &t->texts[place]});
}

/* ---- From another GGUF: every key of its tokenizer ---- */

static mhla_status from_gguf(mhla_gguf_tokens *t, const char *path) {
    MHLA_TRY(mhla_gguf_open(&t->file, path));
    for (int64_t i = 0; i < mhla_gguf_value_count(t->file); i++) {
        const mhla_gguf_value *v = mhla_gguf_value_at(t->file, i);
        if (strncmp(v->key, "tokenizer.", 10) != 0) continue;
        if (t->count == MHLA_GGUF_TOKEN_PAIRS)
            return mhla_fail(MHLA_ENOTSUP, "%s: more than %d keys of its tokenizer", path, MHLA_GGUF_TOKEN_PAIRS);
        add(t, (mhla_gguf_pair){v->key, v->kind, v->array, v->count, v->data, v->strings});
    }
    return MHLA_OK;
}

/* ---- From tokenizer.json ---- */

static mhla_status put_token(mhla_gguf_tokens *t, const char *text, size_t length, int64_t id, int type,
                             int64_t vocabulary, const char *path) {
    if (id < 0 || id >= vocabulary)
        return mhla_fail(MHLA_EDATA, "%s: token %lld, but the model has %lld", path, (long long)id,
                         (long long)vocabulary);
    t->tokens[id] = (mhla_gguf_string){text, length};
    t->types[id] = type;
    return MHLA_OK;
}

static int is_byte(const char *text) { /* <0x0A> */
    unsigned value;
    char end;
    return strlen(text) == 6 && sscanf(text, "<0x%2x%c", &value, &end) == 2 && end == '>';
}

static mhla_status put_vocabulary(mhla_gguf_tokens *t, const json_t *model, int64_t vocabulary, const char *path) {
    const json_t *vocab, *added, *row, *id;
    const char *text, *unk = NULL;
    size_t i;
    MHLA_TRY(mhla_json_get_object(&vocab, model, "vocab", path));
    MHLA_TRY(mhla_json_get_array(&added, t->tree, "added_tokens", path));
    if (!json_is_null(json_object_get(model, "unk_token")))
        MHLA_TRY(mhla_json_get_text(&unk, model, "unk_token", path));
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
        const int type = is_byte(text) ? BYTE : unk && strcmp(text, unk) == 0 ? UNKNOWN : NORMAL;
        MHLA_TRY(put_token(t, text, strlen(text), json_is_integer(id) ? json_integer_value(id) : -1, type, vocabulary,
                           path));
    }
    json_array_foreach(added, i, row) {
        int64_t n = -1;
        int special = 0;
        const char *content = "";
        MHLA_TRY(mhla_json_get_int(&n, row, "id", 0, vocabulary - 1, path));
        MHLA_TRY(mhla_json_get_bool(&special, row, "special", path));
        MHLA_TRY(mhla_json_get_text(&content, row, "content", path));
        MHLA_TRY(put_token(t, content, strlen(content), n,
                           unk && strcmp(content, unk) == 0 ? UNKNOWN
                           : special                        ? CONTROL
                                                            : USER,
                           vocabulary, path));
    }
    return MHLA_OK;
}

/* Rows of the model's matrix that no token needs, under the names that llama.cpp's converter gives to them. */
static mhla_status put_pads(mhla_gguf_tokens *t, int64_t vocabulary, const char *path) {
    enum { ROOM = 32 };
    int64_t missing = 0;
    for (int64_t i = 0; i < vocabulary; i++) missing += t->tokens[i].data == NULL;
    char *to = t->pads = malloc((size_t)missing * ROOM + 1);
    if (to == NULL) return no_memory(path);
    for (int64_t i = 0; i < vocabulary; i++) {
        if (t->tokens[i].data) continue;
        const int length = snprintf(to, ROOM, "[PAD%lld]", (long long)i);
        t->tokens[i] = (mhla_gguf_string){to, (size_t)length};
        t->types[i] = UNUSED;
        to += ROOM;
    }
    return MHLA_OK;
}

/* "a b" or ["a", "b"], as one text each in t->joined. */
static mhla_status put_merges(mhla_gguf_tokens *t, const json_t *list, const char *path) {
    const size_t n = json_array_size(list);
    size_t bytes = 1, i;
    const json_t *row;
    json_array_foreach(list, i, row) {
        const char *a = json_string_value(json_is_array(row) ? json_array_get(row, 0) : row);
        const char *b = json_is_array(row) ? json_string_value(json_array_get(row, 1)) : "";
        if (a == NULL || b == NULL) return mhla_fail(MHLA_EDATA, "%s: merge %zu is not a pair of texts", path, i);
        bytes += strlen(a) + strlen(b) + 2;
    }
    t->merges = calloc(n + 1, sizeof *t->merges);
    char *to = t->joined = malloc(bytes);
    if (t->merges == NULL || to == NULL) return no_memory(path);
    json_array_foreach(list, i, row) {
        const char *a = json_string_value(json_is_array(row) ? json_array_get(row, 0) : row);
        const int length = json_is_array(row) ? sprintf(to, "%s %s", a, json_string_value(json_array_get(row, 1)))
                                              : sprintf(to, "%s", a);
        t->merges[i] = (mhla_gguf_string){to, (size_t)length};
        to += length + 1;
    }
    return MHLA_OK;
}

/* Merging by score is merging by rank: the earlier a merge, the higher its piece. */
static mhla_status put_scores(mhla_gguf_tokens *t, const json_t *model, int64_t vocabulary, size_t merges,
                              const char *path) {
    const json_t *vocab = json_object_get(model, "vocab");
    t->scores = calloc((size_t)vocabulary, sizeof *t->scores);
    if (t->scores == NULL) return no_memory(path);
    for (size_t i = merges; i-- > 0;) {
        char piece[1024];
        const char *space = memchr(t->merges[i].data, ' ', t->merges[i].length);
        if (space == NULL || t->merges[i].length >= sizeof piece) continue;
        snprintf(piece, sizeof piece, "%.*s%s", (int)(space - t->merges[i].data), t->merges[i].data, space + 1);
        const json_t *id = json_object_get(vocab, piece);
        if (id) t->scores[json_integer_value(id)] = -(float)(i + 1);
    }
    return MHLA_OK;
}

/* Does a text stand anywhere in a tree? */
static int mentions(const json_t *tree, const char *text) {
    char *dumped = tree ? mhla_json_text(tree, 0) : NULL;
    const int found = dumped && strstr(dumped, text);
    free(dumped);
    return found;
}

/* The name that llama.cpp gave to the pattern. */
static const char *pattern_name(const json_t *tree) {
    const json_t *pre = json_object_get(tree, "pre_tokenizer");
    if (mentions(pre, "Digits")) return "smollm";
    return mentions(pre, "{1,3}") ? "llama-bpe" : mentions(pre, "\\\\p{N}|") ? "qwen2" : "gpt-2";
}

static void add_flag(mhla_gguf_tokens *t, const char *key, int place, int value) {
    t->flags[place] = (uint8_t)(value != 0);
    add(t, (mhla_gguf_pair){key, MHLA_GGUF_BOOL, 0, 1, &t->flags[place], NULL});
}

/* What stands in front of a text that begins with no space. */
static mhla_status adds_space(const mhla_tokenizer *own, int *adds) {
    mhla_ids ids = {0};
    const mhla_status status = mhla_tokenizer_encode(own, &ids, "x", 1, 0);
    const char *piece = ids.count > 0 ? mhla_tokenizer_piece(own, ids.data[0]) : NULL;
    *adds = piece && strncmp(piece, "\xe2\x96\x81", 3) == 0;
    mhla_ids_free(&ids);
    return status;
}

/* Special tokens and the template, as the tokenizer itself has them. */
static mhla_status put_special(mhla_gguf_tokens *t, int64_t vocabulary, int fallback) {
    mhla_tokenizer_info info = {.size = sizeof info};
    MHLA_TRY(mhla_tokenizer_query(t->own, &info));
    const struct {
        const char *key;
        int32_t id;
    } ids[4] = {{"tokenizer.ggml.bos_token_id", info.bos},
                {"tokenizer.ggml.eos_token_id", info.eos},
                {"tokenizer.ggml.unknown_token_id", info.unk},
                {"tokenizer.ggml.padding_token_id", info.pad}};
    for (int k = 0; k < 4; k++) {
        if (ids[k].id < 0 || ids[k].id >= vocabulary) continue;
        t->ids[k] = (uint32_t)ids[k].id;
        add(t, (mhla_gguf_pair){ids[k].key, MHLA_GGUF_UINT32, 0, 1, &t->ids[k], NULL});
    }
    add_flag(t, "tokenizer.ggml.add_bos_token", 0, info.adds_bos);
    if (info.adds_eos) add_flag(t, "tokenizer.ggml.add_eos_token", 2, 1);
    if (fallback) {
        int space = 1;
        MHLA_TRY(adds_space(t->own, &space));
        add_flag(t, "tokenizer.ggml.add_space_prefix", 1, space);
    }
    if (info.chat_template) add_text(t, "tokenizer.chat_template", info.chat_template, 2);
    return MHLA_OK;
}

static mhla_status from_json(mhla_gguf_tokens *t, const char *path, int64_t vocabulary) {
    const json_t *model, *merges;
    const char *kind = "";
    MHLA_TRY(mhla_json_get_object(&model, t->tree, "model", path));
    if (model == NULL) return mhla_fail(MHLA_EDATA, "%s: \"model\" is missing", path);
    MHLA_TRY(mhla_json_get_text(&kind, model, "type", path));
    if (*kind && strcmp(kind, "BPE") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: a model of type %s cannot go into a GGUF", path, MHLA_QUOTE(kind));
    MHLA_TRY(mhla_json_get_array(&merges, model, "merges", path));
    t->tokens = calloc((size_t)vocabulary, sizeof *t->tokens);
    t->types = calloc((size_t)vocabulary, sizeof *t->types);
    if (t->tokens == NULL || t->types == NULL) return no_memory(path);
    MHLA_TRY(put_vocabulary(t, model, vocabulary, path));
    MHLA_TRY(put_merges(t, merges, path));
    MHLA_TRY(put_pads(t, vocabulary, path));
    const size_t count = json_array_size(merges);
    const int fallback = json_is_true(json_object_get(model, "byte_fallback"));
    add_text(t, "tokenizer.ggml.model", fallback ? "llama" : "gpt2", 0);
    if (!fallback) add_text(t, "tokenizer.ggml.pre", pattern_name(t->tree), 1);
    add(t, (mhla_gguf_pair){"tokenizer.ggml.tokens", MHLA_GGUF_STRING, 1, vocabulary, NULL, t->tokens});
    add(t, (mhla_gguf_pair){"tokenizer.ggml.token_type", MHLA_GGUF_INT32, 1, vocabulary, t->types, NULL});
    if (fallback) {
        MHLA_TRY(put_scores(t, model, vocabulary, count, path));
        add(t, (mhla_gguf_pair){"tokenizer.ggml.scores", MHLA_GGUF_FLOAT32, 1, vocabulary, t->scores, NULL});
    } else {
        add(t, (mhla_gguf_pair){"tokenizer.ggml.merges", MHLA_GGUF_STRING, 1, (int64_t)count, NULL, t->merges});
    }
    return put_special(t, vocabulary, fallback);
}

mhla_status mhla_gguf_tokens_make(mhla_gguf_tokens *t, const char *path, int64_t vocabulary) {
    char file[4096];
    *t = (mhla_gguf_tokens){0};
    const size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) return from_gguf(t, path);
    if (snprintf(file, sizeof file, "%s/tokenizer.json", path) >= (int)sizeof file || access(file, R_OK) != 0)
        return MHLA_OK;
    MHLA_TRY(mhla_tokenizer_open(&t->own, path));
    MHLA_TRY(mhla_json_load(&t->tree, file));
    return from_json(t, file, vocabulary);
}
