/* tokenizer_config.json, which stands beside a tokenizer: which pieces begin and end a text, and the chat template. */
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

/* "bos_token": "<s>", or {"content": "<s>", ..}, or null. */
static void read_token(int32_t *id, const mhla_tokenizer *t, const json_t *tree, const char *key) {
    const json_t *value = json_object_get(tree, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!json_is_string(value)) return;
    const int32_t found = mhla_vocabulary_find(&t->pieces, json_string_value(value), json_string_length(value));
    if (found >= 0) *id = found;
}

/* One template, or a list of named ones: the default is meant. */
static const json_t *find_template(const json_t *tree) {
    const json_t *value = json_object_get(tree, "chat_template");
    if (!json_is_array(value)) return value;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i), *name = json_object_get(item, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0)
            return json_object_get(item, "template");
    }
    return NULL;
}

/* What a tokenizer.model does not know: tokens that are found in the text. */
static mhla_status read_added(mhla_tokenizer *t, const json_t *tree, const char *name) {
    const json_t *list = NULL;
    MHLA_TRY(mhla_json_get_object(&list, tree, "added_tokens_decoder", name));
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)list, key, item) {
        mhla_added a = {0};
        const char *content = NULL;
        if (!json_is_object(item)) continue;
        MHLA_TRY(mhla_json_get_text(&content, item, "content", name));
        MHLA_TRY(mhla_json_get_bool(&a.lstrip, item, "lstrip", name));
        MHLA_TRY(mhla_json_get_bool(&a.rstrip, item, "rstrip", name));
        MHLA_TRY(mhla_json_get_bool(&a.single_word, item, "single_word", name));
        MHLA_TRY(mhla_json_get_bool(&a.special, item, "special", name));
        if (content == NULL) continue;
        a.bytes = strlen(content);
        a.content = (char *)content;
        a.id = mhla_vocabulary_find(&t->pieces, content, a.bytes);
        if (a.id < 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: %s is not in the vocabulary of the tokenizer.model", name,
                             MHLA_QUOTE(content));
        if (t->types[a.id] == MHLA_TYPE_USER) continue; /* found already */
        MHLA_TRY(mhla_tokenizer_add(t, &a, name));
        if (a.special) t->special[a.id] = 1;
    }
    return MHLA_OK;
}

/* add_bos_token, add_eos_token: of a tokenizer.model, and of the classes that overrule the tokenizer.json by them. */
static mhla_status read_adds(mhla_tokenizer *t, const json_t *tree, int model, const char *name) {
    const json_t *kind = json_object_get(tree, "tokenizer_class");
    const int llama = json_is_string(kind) && strncmp(json_string_value(kind), "Llama", 5) == 0;
    if (!model && !llama) return MHLA_OK;
    int bos = t->before.count > 0, eos = t->after.count > 0;
    const json_t *adds_bos = json_object_get(tree, "add_bos_token"), *adds_eos = json_object_get(tree, "add_eos_token");
    if (adds_bos && !json_is_null(adds_bos)) MHLA_TRY(mhla_json_get_bool(&bos, tree, "add_bos_token", name));
    if (adds_eos && !json_is_null(adds_eos)) MHLA_TRY(mhla_json_get_bool(&eos, tree, "add_eos_token", name));
    t->before.count = bos ? t->before.count : 0;
    t->after.count = eos ? t->after.count : 0;
    if (bos && t->before.count == 0 && t->bos >= 0) MHLA_TRY(mhla_ids_append(&t->before, &t->bos, 1));
    if (eos && t->after.count == 0 && t->eos >= 0) MHLA_TRY(mhla_ids_append(&t->after, &t->eos, 1));
    return MHLA_OK;
}

mhla_status mhla_tokenizer_parse_config(mhla_tokenizer *t, const json_t *tree, int model, const char *name) {
    if (!json_is_object(tree)) return mhla_fail(MHLA_EDATA, "%s: expected an object of JSON", name);
    read_token(&t->bos, t, tree, "bos_token");
    read_token(&t->eos, t, tree, "eos_token");
    read_token(&t->unk, t, tree, "unk_token");
    read_token(&t->pad, t, tree, "pad_token");
    const json_t *longest = json_object_get(tree, "model_max_length"); /* a huge one says that there is none */
    if (json_is_integer(longest) && json_integer_value(longest) > 0) t->longest = json_integer_value(longest);
    if (model) MHLA_TRY(read_added(t, tree, name));
    MHLA_TRY(read_adds(t, tree, model, name));
    const json_t *chat = find_template(tree);
    return json_is_string(chat) ? mhla_text_copy(&t->chat_template, json_string_value(chat), json_string_length(chat))
                                : MHLA_OK;
}
