/* Chat templates: a conversation becomes the text that the model was trained on, by the Jinja that came with it. */
#include <string.h>

#include "core/status.h"
#include "text/jinja.h"

static jinja_value text_of(const char *s) { return mhla_jinja_text((jinja_text){s ? s : "", s ? strlen(s) : 0}); }

static void set(jinja *j, jinja_value dict, const char *key, jinja_value v) {
    mhla_jinja_put(j, dict.dict, text_of(key), v);
}

static void render(jinja *j, const char *source, const mhla_message_desc *messages, int count, int prompt,
                   const char *bos, const char *eos) {
    const jinja_tokens tokens = mhla_jinja_lex(j, source, strlen(source));
    const jinja_nodes nodes = mhla_jinja_parse(j, &tokens);
    const jinja_value variables = mhla_jinja_dict(j), list = mhla_jinja_list(j);
    for (int i = 0; i < count; i++) {
        const jinja_value message = mhla_jinja_dict(j);
        set(j, message, "role", text_of(messages[i].role));
        set(j, message, "content", text_of(messages[i].content));
        mhla_jinja_append(j, list.list, message);
    }
    set(j, variables, "messages", list);
    set(j, variables, "add_generation_prompt", mhla_jinja_bool(prompt));
    set(j, variables, "bos_token", text_of(bos));
    set(j, variables, "eos_token", text_of(eos));
    set(j, variables, "tools", (jinja_value){.kind = JINJA_NONE});
    set(j, variables, "documents", (jinja_value){.kind = JINJA_NONE});
    mhla_jinja_run(j, &nodes, variables.dict);
}

/* What a failure leaves changed is the caller's, so that the jump finds it. */
static mhla_status try_render(jinja *j, const char *source, const mhla_message_desc *messages, int count, int prompt,
                              const char *bos, const char *eos) {
    if (setjmp(j->entry) == 0) render(j, source, messages, count, prompt, bos, eos);
    return j->status;
}

mhla_status mhla_template_render(const char *source, mhla_chars *text, const mhla_message_desc *messages, int count,
                                 int prompt, const char *bos, const char *eos) {
    if (source == NULL || text == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", source ? "text" : "source");
    if (count < 0 || (count > 0 && messages == NULL))
        return mhla_fail(MHLA_EINVAL, "count is %d and messages is %s", count, messages ? "given" : "NULL");
    for (int i = 0; i < count; i++)
        if (messages[i].role == NULL || messages[i].content == NULL)
            return mhla_fail(MHLA_EINVAL, "message %d has no %s", i, messages[i].role ? "content" : "role");
    const size_t before = text->count;
    jinja j = {.out = text, .line = 1};
    const mhla_status status = try_render(&j, source, messages, count, prompt, bos, eos);
    mhla_jinja_release(&j);
    if (status != MHLA_OK) text->count = before;
    return status;
}

mhla_status mhla_chat_render(const mhla_tokenizer *tokenizer, mhla_chars *text, const mhla_message_desc *messages,
                             int count, int prompt) {
    mhla_tokenizer_info info = {.size = sizeof info};
    MHLA_TRY(mhla_tokenizer_query(tokenizer, &info));
    if (info.chat_template == NULL)
        return mhla_fail(MHLA_ENOTSUP, "the tokenizer has no chat template: this is not a chat model");
    return mhla_template_render(info.chat_template, text, messages, count, prompt,
                                info.bos >= 0 ? mhla_tokenizer_piece(tokenizer, info.bos) : NULL,
                                info.eos >= 0 ? mhla_tokenizer_piece(tokenizer, info.eos) : NULL);
}
