/* What stands around the model in a tokenizer.json: normalizer, pre_tokenizer, post_processor. Every part is a JSON object
 * with a "type"; a Sequence holds others. */
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

enum { PARTS = 64 };

/* "type" of a part; NULL is MHLA_OK with *type NULL. */
static mhla_status part_type(const char **type, const json_t *part, const char *what, const char *name) {
    *type = NULL;
    if (part == NULL || json_is_null(part)) return MHLA_OK;
    if (!json_is_object(part))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s: expected an object", name, what, mhla_json_type_text(part));
    MHLA_TRY(mhla_json_get_text(type, part, "type", name));
    return *type ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: \"%s\" lacks its \"type\"", name, what);
}

static mhla_status unknown_part(const char *what, const char *type, const char *name) {
    return mhla_fail(MHLA_ENOTSUP, "%s: a %s of type %s is not known here", name, what, MHLA_QUOTE(type));
}

static mhla_status need_text(const char **text, size_t *bytes, const json_t *part, const char *key, const char *name) {
    *text = NULL;
    *bytes = 0;
    MHLA_TRY(mhla_json_get_text(text, part, key, name));
    if (*text == NULL) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is missing", name, key);
    *bytes = strlen(*text);
    return MHLA_OK;
}

/* "pattern": {"String": ..} or {"Regex": ..} */
static mhla_status read_pattern(mhla_pattern *p, const json_t *part, const char *name) {
    const json_t *pattern = NULL;
    MHLA_TRY(mhla_json_get_object(&pattern, part, "pattern", name));
    const json_t *text = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    if (json_is_string(text)) return mhla_pattern_literal(p, json_string_value(text), json_string_length(text));
    if (json_is_string(regex))
        return mhla_pattern_regex(p, json_string_value(regex), json_string_length(regex), 0, name);
    return mhla_fail(MHLA_EDATA, "%s: a \"pattern\" has neither \"String\" nor \"Regex\"", name);
}

/* ---- Normalizers ---- */

/* Base64, as JSON has bytes. An empty one has no rules. */
static mhla_status read_charsmap(mhla_charsmap *map, const char *text, size_t bytes, const char *name) {
    static const char letters[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    uint32_t held = 0;
    int bits = 0;
    if (bytes == 0) return MHLA_OK;
    unsigned char *raw = mhla_alloc(bytes);
    if (raw == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its rules of normalisation", name);
    mhla_status status = MHLA_OK;
    for (size_t i = 0; i < bytes && text[i] != '=' && status == MHLA_OK; i++) {
        const char *letter = text[i] ? strchr(letters, text[i]) : NULL;
        if (letter == NULL)
            status = mhla_fail(MHLA_EDATA, "%s: \"precompiled_charsmap\" is not Base64 at byte %zu", name, i);
        else
            held = held << 6 | (uint32_t)(letter - letters), bits += 6;
        if (bits >= 8) raw[n++] = (unsigned char)(held >> (bits -= 8));
    }
    if (status == MHLA_OK) status = mhla_charsmap_read(map, raw, n, name);
    mhla_free(raw);
    return status;
}

static mhla_status read_normalizer(mhla_tokenizer *t, const json_t *part, const char *name) {
    const char *type, *text;
    size_t bytes;
    MHLA_TRY(part_type(&type, part, "normalizer", name));
    if (type == NULL) return MHLA_OK;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = NULL;
        MHLA_TRY(mhla_json_get_array(&list, part, "normalizers", name));
        for (size_t i = 0; list && i < json_array_size(list); i++)
            MHLA_TRY(read_normalizer(t, json_array_get(list, i), name));
        return MHLA_OK;
    }
    if (t->normalizer_count == PARTS) return mhla_fail(MHLA_EDATA, "%s: more than %d normalizers", name, PARTS);
    mhla_normalizer *n;
    MHLA_TRY(mhla_tokenizer_new_normalizer(t, &n));
    static const struct {
        const char *type;
        mhla_normalizer_kind kind;
        int compose, compatible;
    } plain[] = {{"NFC", MHLA_NORMALIZE_FORM, 1, 0},
                 {"NFD", MHLA_NORMALIZE_FORM, 0, 0},
                 {"NFKC", MHLA_NORMALIZE_FORM, 1, 1},
                 {"NFKD", MHLA_NORMALIZE_FORM, 0, 1},
                 {"Lowercase", MHLA_NORMALIZE_LOWERCASE, 0, 0},
                 {"StripAccents", MHLA_NORMALIZE_STRIP_ACCENTS, 0, 0}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0) {
            n->kind = plain[i].kind;
            n->compose = plain[i].compose;
            n->compatible = plain[i].compatible;
            return MHLA_OK;
        }
    if (strcmp(type, "Prepend") == 0) {
        n->kind = MHLA_NORMALIZE_PREPEND;
        MHLA_TRY(need_text(&text, &n->bytes, part, "prepend", name));
        return mhla_text_copy(&n->content, text, n->bytes);
    }
    if (strcmp(type, "Replace") == 0) {
        n->kind = MHLA_NORMALIZE_REPLACE;
        MHLA_TRY(need_text(&text, &bytes, part, "content", name));
        MHLA_TRY(mhla_text_copy(&n->content, text, bytes));
        n->bytes = bytes;
        return read_pattern(&n->pattern, part, name);
    }
    if (strcmp(type, "Strip") == 0) {
        n->kind = MHLA_NORMALIZE_STRIP;
        n->left = n->right = 1;
        MHLA_TRY(mhla_json_get_bool(&n->left, part, "strip_left", name));
        return mhla_json_get_bool(&n->right, part, "strip_right", name);
    }
    if (strcmp(type, "Precompiled") == 0) {
        n->kind = MHLA_NORMALIZE_PRECOMPILED;
        MHLA_TRY(need_text(&text, &bytes, part, "precompiled_charsmap", name));
        return read_charsmap(&n->map, text, bytes, name);
    }
    return unknown_part("normalizer", type, name);
}

/* ---- Pre-tokenizers ---- */

static const char *const behaviors[] = {"Isolated",           "Removed",        "Contiguous",
                                        "MergedWithPrevious", "MergedWithNext", NULL};

static mhla_status read_metaspace(mhla_splitter *s, const json_t *part, const char *name) {
    const char *text = "\xe2\x96\x81";
    MHLA_TRY(mhla_json_get_text(&text, part, "replacement", name));
    const size_t bytes = strlen(text);
    if (bytes == 0 || mhla_utf8_length((const unsigned char *)text, bytes) != (int)bytes)
        return mhla_fail(MHLA_EDATA, "%s: \"replacement\" of Metaspace is %s: expected one character", name,
                         MHLA_QUOTE(text));
    memcpy(s->mark, text, bytes);
    s->mark_bytes = bytes;
    s->mark_spaces = 1;
    static const char *const schemes[] = {"never", "first", "always", NULL}; /* in the order of the enumeration */
    int scheme = MHLA_PREFIX_ALWAYS, split = 1, old = 1;
    MHLA_TRY(mhla_json_get_bool(&old, part, "add_prefix_space", name)); /* how older files say it */
    if (!old) scheme = MHLA_PREFIX_NEVER;
    MHLA_TRY(mhla_json_get_choice(&scheme, part, "prepend_scheme", schemes, name));
    MHLA_TRY(mhla_json_get_bool(&split, part, "split", name));
    s->prefix = scheme;
    s->splits = split;
    s->behavior = MHLA_SPLIT_WITH_NEXT;
    return mhla_pattern_literal(&s->pattern, s->mark, s->mark_bytes);
}

static mhla_status read_byte_level(mhla_tokenizer *t, mhla_splitter *s, const json_t *part, const char *name) {
    int prefix = 1, regex = 1;
    MHLA_TRY(mhla_json_get_bool(&prefix, part, "add_prefix_space", name));
    MHLA_TRY(mhla_json_get_bool(&regex, part, "use_regex", name));
    s->prefix = prefix ? MHLA_PREFIX_ALWAYS : MHLA_PREFIX_NEVER;
    s->mark[0] = ' ';
    s->mark_bytes = 1;
    s->splits = regex;
    t->bpe.byte_level = 1;
    return mhla_pattern_regex(&s->pattern, mhla_pattern_gpt2, strlen(mhla_pattern_gpt2), 0, name);
}

static mhla_status read_splitter(mhla_tokenizer *t, const json_t *part, const char *name) {
    const char *type;
    MHLA_TRY(part_type(&type, part, "pre_tokenizer", name));
    if (type == NULL) return MHLA_OK;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = NULL;
        MHLA_TRY(mhla_json_get_array(&list, part, "pretokenizers", name));
        for (size_t i = 0; list && i < json_array_size(list); i++)
            MHLA_TRY(read_splitter(t, json_array_get(list, i), name));
        return MHLA_OK;
    }
    if (t->bpe.byte_level)
        return mhla_fail(MHLA_ENOTSUP, "%s: a pre_tokenizer of type %s after ByteLevel is not known here", name,
                         MHLA_QUOTE(type));
    if (t->splitter_count == PARTS) return mhla_fail(MHLA_EDATA, "%s: more than %d pre_tokenizers", name, PARTS);
    mhla_splitter *s;
    MHLA_TRY(mhla_tokenizer_new_splitter(t, &s));
    s->splits = 1;
    s->pattern.kind = MHLA_PATTERN_CLASS;
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(t, s, part, name);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(s, part, name);
    if (strcmp(type, "Split") == 0) {
        int behavior = MHLA_SPLIT_ISOLATED;
        MHLA_TRY(mhla_json_get_choice(&behavior, part, "behavior", behaviors, name));
        s->behavior = behavior;
        MHLA_TRY(mhla_json_get_bool(&s->invert, part, "invert", name));
        return read_pattern(&s->pattern, part, name);
    }
    if (strcmp(type, "Digits") == 0) {
        int individual = 0;
        MHLA_TRY(mhla_json_get_bool(&individual, part, "individual_digits", name));
        s->pattern.classes = MHLA_CHAR_NUMBER;
        s->behavior = individual ? MHLA_SPLIT_ISOLATED : MHLA_SPLIT_CONTIGUOUS;
        return MHLA_OK;
    }
    if (strcmp(type, "Punctuation") == 0) {
        int behavior = MHLA_SPLIT_ISOLATED;
        MHLA_TRY(mhla_json_get_choice(&behavior, part, "behavior", behaviors, name));
        s->pattern.classes = MHLA_CHAR_PUNCTUATION;
        s->behavior = behavior;
        return MHLA_OK;
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        s->pattern.classes = MHLA_CHAR_SPACE;
        s->behavior = MHLA_SPLIT_REMOVED;
        return MHLA_OK;
    }
    if (strcmp(type, "Whitespace") == 0) {
        s->pattern.kind = MHLA_PATTERN_WORDS;
        s->behavior = MHLA_SPLIT_REMOVED;
        s->invert = 1;
        return MHLA_OK;
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const char *text;
        size_t bytes;
        MHLA_TRY(need_text(&text, &bytes, part, "delimiter", name));
        s->behavior = MHLA_SPLIT_REMOVED;
        return mhla_pattern_literal(&s->pattern, text, bytes);
    }
    return unknown_part("pre_tokenizer", type, name);
}

/* ---- Post-processors ---- */

/* One item of a template: what it adds goes to `before` or, once $A has been seen, to `after`. */
static mhla_status template_item(const json_t *item, const json_t *tokens, mhla_ids *before, mhla_ids *after, int *seen,
                                 const char *name) {
    const json_t *sequence = json_object_get(item, "Sequence"), *special = json_object_get(item, "SpecialToken");
    if (json_is_object(sequence)) {
        const char *id = "A";
        MHLA_TRY(mhla_json_get_text(&id, sequence, "id", name));
        if (strcmp(id, "A") != 0 || *seen)
            return mhla_fail(MHLA_ENOTSUP, "%s: a template for one text that holds another, or it twice", name);
        *seen = 1;
        return MHLA_OK;
    }
    const char *id = NULL;
    if (json_is_object(special)) MHLA_TRY(mhla_json_get_text(&id, special, "id", name));
    if (id == NULL)
        return mhla_fail(MHLA_EDATA, "%s: an item of a template is neither \"Sequence\" nor \"SpecialToken\"", name);
    const json_t *ids = json_object_get(json_object_get(tokens, id), "ids");
    if (!json_is_array(ids))
        return mhla_fail(MHLA_EDATA, "%s: \"special_tokens\" of the template lacks %s", name, MHLA_QUOTE(id));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *value = json_array_get(ids, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= MHLA_VOCABULARY_IDS)
            return mhla_fail(MHLA_EDATA, "%s: the ids of the template's %s are not ids", name, MHLA_QUOTE(id));
        const int32_t n = (int32_t)json_integer_value(value);
        MHLA_TRY(mhla_ids_append(*seen ? after : before, &n, 1));
    }
    return MHLA_OK;
}

/* Puts `front` in front of a list, or `back` behind it. */
static mhla_status surround(mhla_tokenizer *t, mhla_ids *front, const mhla_ids *back) {
    MHLA_TRY(mhla_ids_append(front, t->before.data, t->before.count));
    t->before.count = 0;
    MHLA_TRY(mhla_ids_append(&t->before, front->data, front->count));
    return mhla_ids_append(&t->after, back->data, back->count);
}

static mhla_status read_template(mhla_tokenizer *t, const json_t *part, const char *name) {
    const json_t *single = NULL, *tokens = NULL;
    MHLA_TRY(mhla_json_get_array(&single, part, "single", name));
    MHLA_TRY(mhla_json_get_object(&tokens, part, "special_tokens", name));
    mhla_ids before = {0}, after = {0};
    mhla_status status = MHLA_OK;
    int seen = 0;
    for (size_t i = 0; i < json_array_size(single) && status == MHLA_OK; i++)
        status = template_item(json_array_get(single, i), tokens, &before, &after, &seen, name);
    if (status == MHLA_OK && !seen) status = mhla_fail(MHLA_EDATA, "%s: a template without \"Sequence\"", name);
    if (status == MHLA_OK) status = surround(t, &before, &after);
    mhla_ids_free(&before);
    mhla_ids_free(&after);
    return status;
}

/* "cls": ["<s>", 0] */
static mhla_status read_pair(int32_t *id, const json_t *part, const char *key, const char *name) {
    const json_t *value = json_array_get(json_object_get(part, key), 1);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= MHLA_VOCABULARY_IDS)
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" of the post_processor is not a token with its id", name, key);
    *id = (int32_t)json_integer_value(value);
    return MHLA_OK;
}

static mhla_status read_post(mhla_tokenizer *t, const json_t *part, const char *name) {
    const char *type;
    MHLA_TRY(part_type(&type, part, "post_processor", name));
    if (type == NULL || strcmp(type, "ByteLevel") == 0) return MHLA_OK; /* which changes offsets only */
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = NULL;
        MHLA_TRY(mhla_json_get_array(&list, part, "processors", name));
        for (size_t i = 0; list && i < json_array_size(list); i++)
            MHLA_TRY(read_post(t, json_array_get(list, i), name));
        return MHLA_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, part, name);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        int32_t cls, sep;
        MHLA_TRY(read_pair(&cls, part, "cls", name));
        MHLA_TRY(read_pair(&sep, part, "sep", name));
        mhla_ids before = {0};
        const mhla_ids after = {.data = &sep, .count = 1, .capacity = 1};
        mhla_status status = mhla_ids_append(&before, &cls, 1);
        if (status == MHLA_OK) status = surround(t, &before, &after);
        mhla_ids_free(&before);
        return status;
    }
    return unknown_part("post_processor", type, name);
}

/* ---- All of it ---- */

mhla_status mhla_pipeline_read(mhla_tokenizer *t, const json_t *tree, const char *name) {
    MHLA_TRY(read_normalizer(t, json_object_get(tree, "normalizer"), name));
    MHLA_TRY(read_splitter(t, json_object_get(tree, "pre_tokenizer"), name));
    MHLA_TRY(read_post(t, json_object_get(tree, "post_processor"), name));
    return mhla_decoding_read(t, json_object_get(tree, "decoder"),
                              name); /* "truncation", "padding": the caller's business */
}
