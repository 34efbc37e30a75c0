/* tokenizer.json, as the Python library writes it: the model and its added tokens here, what stands around the model in
 * tokenizer_pipeline.c. */
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

static mhla_status read_vocabulary(mhla_tokenizer *t, const json_t *model, const char *name) {
    const json_t *vocabulary = NULL;
    MHLA_TRY(mhla_json_get_object(&vocabulary, model, "vocab", name));
    if (vocabulary == NULL) return mhla_fail(MHLA_EDATA, "%s: \"model\" lacks \"vocab\"", name);
    const char *piece;
    json_t *value;
    json_object_foreach((json_t *)vocabulary, piece, value) {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= MHLA_VOCABULARY_IDS)
            return mhla_fail(MHLA_EDATA, "%s: \"vocab\": the id of %s is %s: expected 0 to %d", name, MHLA_QUOTE(piece),
                             json_is_integer(value) ? "out of range" : mhla_json_type_text(value),
                             MHLA_VOCABULARY_IDS - 1);
        MHLA_TRY(mhla_vocabulary_set(&t->pieces, (int32_t)json_integer_value(value), piece, strlen(piece), name));
    }
    return MHLA_OK;
}

/* An item of "merges": "a b", or ["a", "b"]. */
static mhla_status merge_parts(const json_t *item, size_t index, const char *part[2], size_t bytes[2],
                               const char *name) {
    if (json_is_array(item) && json_array_size(item) == 2 && json_is_string(json_array_get(item, 0)) &&
        json_is_string(json_array_get(item, 1))) {
        for (size_t k = 0; k < 2; k++) {
            part[k] = json_string_value(json_array_get(item, k));
            bytes[k] = json_string_length(json_array_get(item, k));
        }
        return MHLA_OK;
    }
    const char *text = json_is_string(item) ? json_string_value(item) : NULL;
    const char *space = text ? strchr(text, ' ') : NULL;
    if (space == NULL || strchr(space + 1, ' '))
        return mhla_fail(MHLA_EDATA, "%s: \"merges\": number %zu is %s: expected two pieces", name, index,
                         text ? MHLA_QUOTE(text) : mhla_json_type_text(item));
    part[0] = text;
    bytes[0] = (size_t)(space - text);
    part[1] = space + 1;
    bytes[1] = strlen(space + 1);
    return MHLA_OK;
}

static mhla_status read_merges(mhla_tokenizer *t, const json_t *model, const char *name) {
    const json_t *merges = NULL;
    MHLA_TRY(mhla_json_get_array(&merges, model, "merges", name));
    if (merges == NULL) return mhla_fail(MHLA_EDATA, "%s: \"model\" lacks \"merges\"", name);
    mhla_chars joined = {0};
    mhla_status status = MHLA_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == MHLA_OK; i++) {
        const char *part[2] = {NULL, NULL};
        size_t bytes[2] = {0, 0};
        int32_t ids[3];
        status = merge_parts(json_array_get(merges, i), i, part, bytes, name);
        joined.count = 0;
        for (int k = 0; k < 2 && status == MHLA_OK; k++) status = mhla_chars_append(&joined, part[k], bytes[k]);
        if (status != MHLA_OK) break;
        ids[0] = mhla_vocabulary_find(&t->pieces, part[0], bytes[0]);
        ids[1] = mhla_vocabulary_find(&t->pieces, part[1], bytes[1]);
        ids[2] = joined.count ? mhla_vocabulary_find(&t->pieces, joined.data, joined.count) : -1;
        for (int k = 0; k < 3 && status == MHLA_OK; k++)
            if (ids[k] < 0)
                status = mhla_fail(MHLA_EDATA, "%s: \"merges\": number %zu: %s is not in the vocabulary", name, i,
                                   k < 2 ? mhla_quote_bytes(part[k], bytes[k]).text
                                         : mhla_quote_bytes(joined.data, joined.count).text);
        if (status == MHLA_OK && (bytes[0] == 0 || bytes[1] == 0))
            status = mhla_fail(MHLA_EDATA, "%s: \"merges\": number %zu joins nothing", name, i);
        if (status == MHLA_OK) status = mhla_bpe_merge_add(&t->bpe, ids[0], ids[1], (uint32_t)i, ids[2]);
    }
    mhla_chars_free(&joined);
    return status;
}

static void find_bytes(mhla_tokenizer *t) {
    for (int c = 0; c < 256; c++) {
        static const char hex[] = "0123456789ABCDEF";
        const char piece[] = {'<', '0', 'x', hex[c >> 4], hex[c & 15], '>'};
        t->bpe.spare[c] = mhla_vocabulary_find(&t->pieces, piece, sizeof piece);
    }
}

/* "vocab": [["piece", score], ...], ids in their order. */
static mhla_status read_unigram(mhla_tokenizer *t, const json_t *model, const char *name) {
    const json_t *list = NULL, *row;
    size_t i, all = 0;
    int fallback = 0;
    int64_t unk = -1;
    MHLA_TRY(mhla_json_get_array(&list, model, "vocab", name));
    const size_t count = json_array_size(list);
    if (count == 0 || count > MHLA_VOCABULARY_IDS)
        return mhla_fail(MHLA_EDATA, "%s: \"vocab\" of a unigram model is not a list of pieces with their scores",
                         name);
    json_array_foreach(list, i, row) {
        const char *piece = json_string_value(json_array_get(row, 0));
        const json_t *score = json_array_get(row, 1);
        if (piece == NULL || !json_is_number(score))
            return mhla_fail(MHLA_EDATA, "%s: \"vocab\": number %zu is not a piece with its score", name, i);
        MHLA_TRY(mhla_vocabulary_set(&t->pieces, (int32_t)i, piece, strlen(piece), name));
        all += strlen(piece);
    }
    MHLA_TRY(mhla_unigram_create(&t->unigram, count, all, name));
    json_array_foreach(list, i, row) {
        const char *piece = json_string_value(json_array_get(row, 0));
        const double score = t->unigram.scores[i] = json_number_value(json_array_get(row, 1));
        if (score < t->unigram.least) t->unigram.least = score;
        MHLA_TRY(mhla_unigram_add(&t->unigram, (int32_t)i, piece, strlen(piece), name));
    }
    if (!json_is_null(json_object_get(model, "unk_id")))
        MHLA_TRY(mhla_json_get_int(&unk, model, "unk_id", 0, (int64_t)count - 1, name));
    t->bpe.unk = (int32_t)unk;
    MHLA_TRY(mhla_json_get_bool(&fallback, model, "byte_fallback", name));
    if (fallback) find_bytes(t);
    return MHLA_OK;
}

/* "</w>", as CLIP has it. */
static mhla_status read_suffix(mhla_tokenizer *t, const json_t *model, const char *name) {
    const char *text = NULL;
    const json_t *value = json_object_get(model, "end_of_word_suffix");
    if (value && !json_is_null(value)) MHLA_TRY(mhla_json_get_text(&text, model, "end_of_word_suffix", name));
    if (text == NULL || *text == '\0') return MHLA_OK;
    t->bpe.suffix_bytes = strlen(text);
    if (t->bpe.suffix_bytes > sizeof t->bpe.suffix)
        return mhla_fail(MHLA_ENOTSUP, "%s: \"end_of_word_suffix\" is %s: more than %zu bytes are not known here", name,
                         MHLA_QUOTE(text), sizeof t->bpe.suffix);
    memcpy(t->bpe.suffix, text, t->bpe.suffix_bytes);
    return MHLA_OK;
}

static mhla_status read_model(mhla_tokenizer *t, const json_t *tree, const char *name) {
    const json_t *model = NULL;
    MHLA_TRY(mhla_json_get_object(&model, tree, "model", name));
    if (model == NULL) return mhla_fail(MHLA_EDATA, "%s: \"model\" is missing: is this a tokenizer.json?", name);
    const char *type = "BPE"; /* old files do not say */
    MHLA_TRY(mhla_json_get_text(&type, model, "type", name));
    if (strcmp(type, "Unigram") == 0) return read_unigram(t, model, name);
    if (strcmp(type, "BPE") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: a model of type %s: only BPE and Unigram are known", name,
                         MHLA_QUOTE(type));
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
    if (prefix && !json_is_null(prefix) && !(json_is_string(prefix) && json_string_length(prefix) == 0))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"continuing_subword_prefix\" of a BPE model is not known here", name);
    MHLA_TRY(read_suffix(t, model, name));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"dropout\" of a BPE model is not known here", name);
    MHLA_TRY(read_vocabulary(t, model, name));
    MHLA_TRY(read_merges(t, model, name));
    int fallback = 0;
    MHLA_TRY(mhla_json_get_bool(&fallback, model, "byte_fallback", name));
    MHLA_TRY(mhla_json_get_bool(&t->bpe.fuse_unk, model, "fuse_unk", name));
    MHLA_TRY(mhla_json_get_bool(&t->bpe.ignore_merges, model, "ignore_merges", name));
    const json_t *unk = json_object_get(model, "unk_token");
    if (unk && !json_is_null(unk)) {
        const char *text = NULL;
        MHLA_TRY(mhla_json_get_text(&text, model, "unk_token", name));
        t->bpe.unk = mhla_vocabulary_find(&t->pieces, text, strlen(text));
        if (t->bpe.unk < 0)
            return mhla_fail(MHLA_EDATA, "%s: \"unk_token\" %s is not in the vocabulary", name, MHLA_QUOTE(text));
    }
    if (fallback) find_bytes(t);
    return MHLA_OK;
}

static mhla_status read_added(mhla_tokenizer *t, const json_t *tree, const char *name) {
    const json_t *list = NULL;
    MHLA_TRY(mhla_json_get_array(&list, tree, "added_tokens", name));
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_object(item))
            return mhla_fail(MHLA_EDATA, "%s: \"added_tokens\": number %zu is %s: expected an object", name, i,
                             mhla_json_type_text(item));
        mhla_added a = {.normalized = 1};
        int64_t id = -1;
        const char *content = NULL;
        MHLA_TRY(mhla_json_get_int(&id, item, "id", 0, MHLA_VOCABULARY_IDS - 1, name));
        MHLA_TRY(mhla_json_get_text(&content, item, "content", name));
        MHLA_TRY(mhla_json_get_bool(&a.lstrip, item, "lstrip", name));
        MHLA_TRY(mhla_json_get_bool(&a.rstrip, item, "rstrip", name));
        MHLA_TRY(mhla_json_get_bool(&a.single_word, item, "single_word", name));
        MHLA_TRY(mhla_json_get_bool(&a.special, item, "special", name));
        a.normalized = !a.special;
        MHLA_TRY(mhla_json_get_bool(&a.normalized, item, "normalized", name));
        if (id < 0 || content == NULL)
            return mhla_fail(MHLA_EDATA, "%s: \"added_tokens\": number %zu lacks \"id\" or \"content\"", name, i);
        a.bytes = strlen(content);
        a.content = (char *)content;
        a.id = mhla_vocabulary_find(&t->pieces, content, a.bytes); /* the model's own id comes first */
        if (a.id < 0) {
            a.id = (int32_t)id;
            MHLA_TRY(mhla_vocabulary_set(&t->pieces, a.id, content, a.bytes, name));
        }
        MHLA_TRY(mhla_tokenizer_add(t, &a, name));
    }
    return MHLA_OK;
}

static mhla_status copy_symbols(mhla_tokenizer *t, const char *name) {
    for (size_t id = 0; id < t->pieces.count; id++) {
        size_t n;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        if (piece) MHLA_TRY(mhla_vocabulary_set(&t->bpe.symbols, (int32_t)id, piece, n, name));
    }
    return MHLA_OK;
}

static mhla_status read_all(mhla_tokenizer *t, const json_t *tree, const char *name) {
    if (!json_is_object(tree)) return mhla_fail(MHLA_EDATA, "%s: expected an object of JSON", name);
    MHLA_TRY(read_model(t, tree, name));
    MHLA_TRY(mhla_pipeline_read(t, tree, name));
    const int unigram = t->unigram.scores != NULL, fallback = t->bpe.spare[0] >= 0;
    if (unigram && t->bpe.byte_level)
        return mhla_fail(MHLA_ENOTSUP, "%s: a unigram model after ByteLevel is not known here", name);
    t->kind = unigram             ? fallback ? "unigram, byte fallback" : "unigram"
              : t->bpe.byte_level ? "bpe, byte level"
              : fallback          ? "bpe, byte fallback"
                                  : "bpe";
    if (!unigram) MHLA_TRY(t->bpe.byte_level ? mhla_byte_level_symbols(t, name) : copy_symbols(t, name));
    MHLA_TRY(read_added(t, tree, name)); /* words are not made of these */
    return mhla_tokenizer_finish(t, name);
}

mhla_status mhla_tokenizer_parse_json(mhla_tokenizer **tokenizer, const char *text, size_t size, const char *name) {
    *tokenizer = NULL;
    json_t *tree;
    MHLA_TRY(mhla_json_parse(&tree, text, size, name));
    const mhla_status status = mhla_tokenizer_parse_tree(tokenizer, tree, name);
    json_decref(tree);
    return status;
}

mhla_status mhla_tokenizer_parse_tree(mhla_tokenizer **tokenizer, const json_t *tree, const char *name) {
    mhla_tokenizer *t = NULL;
    *tokenizer = NULL;
    mhla_status status = mhla_tokenizer_new(&t);
    if (status == MHLA_OK) status = read_all(t, tree, name);
    if (status != MHLA_OK)
        mhla_tokenizer_free(t);
    else
        *tokenizer = t;
    return status;
}
