/* mhla chat: a conversation by the model's own template. What was said stays in the sequence's state; a turn reads only
 * what is new. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "speak.h"

static const char *system_text;

static const cli_option options[] = {
    {"system", CLI_TEXT, &system_text, "TEXT", "what the model is told about itself before anything else"},
    SPEAK_OPTIONS,
    {0},
};
static const cli_usage usage = {
    .verb = "chat",
    .arguments = "",
    .options = options,
    .text =
        "Answers each line of standard input. /reset begins anew, /exit or the end of the input ends it; Ctrl-C ends\n"
        "an answer.\n",
};

typedef struct talk {
    mhla_message_desc *messages; /* contents are ours */
    int count, capacity;
    mhla_sequence *sequence;
    int32_t end; /* token that ends a turn besides the model's own, or -1 */
} talk;

static mhla_status say(talk *t, const char *role, const char *text, size_t size) {
    if (t->count == t->capacity) {
        mhla_message_desc *more = realloc(t->messages, sizeof *more * (size_t)(2 * t->capacity + 8));
        if (more == NULL) return MHLA_ENOMEM;
        t->messages = more;
        t->capacity = 2 * t->capacity + 8;
    }
    char *copy = malloc(size + 1);
    if (copy == NULL) return MHLA_ENOMEM;
    if (size > 0) memcpy(copy, text, size);
    copy[size] = '\0';
    t->messages[t->count++] = (mhla_message_desc){role, copy};
    return MHLA_OK;
}

static void forget(talk *t, int keep) {
    while (t->count > keep) free((char *)t->messages[--t->count].content);
}

/* The token that the template puts behind an answer, if it is a special one: models whose config names another end. */
static mhla_status find_end(const speaker *s, talk *t) {
    static const char mark[] = "ANSWER";
    const mhla_message_desc two[] = {{"user", "question"}, {"assistant", mark}};
    mhla_chars text = {0}, shown = {0};
    mhla_ids ids = {0};
    t->end = -1;
    mhla_status status = mhla_chat_render(s->tokenizer, &text, two, 2, 0);
    const char *at = status == MHLA_OK && text.count ? memmem(text.data, text.count, mark, sizeof mark - 1) : NULL;
    if (at) {
        at += sizeof mark - 1;
        const size_t rest = text.count - (size_t)(at - text.data);
        if (mhla_tokenizer_encode(s->tokenizer, &ids, at, rest, 0) == MHLA_OK && ids.count > 0 &&
            mhla_tokenizer_decode(s->tokenizer, &shown, ids.data, 1, MHLA_DECODE_SKIP_SPECIAL) == MHLA_OK &&
            shown.count == 0)
            t->end = ids.data[0];
    }
    mhla_chars_free(&text);
    mhla_chars_free(&shown);
    mhla_ids_free(&ids);
    return status;
}

/* The conversation as the template writes it, with the beginning of an answer; what the sequence has of it stays. */
static mhla_status read_turn(speaker *s, talk *t, int32_t *last) {
    mhla_chars text = {0};
    mhla_ids ids = {0};
    mhla_status status = mhla_chat_render(s->tokenizer, &text, t->messages, t->count, 1);
    if (status == MHLA_OK) status = mhla_tokenizer_encode(s->tokenizer, &ids, text.data, text.count, 0);
    if (status == MHLA_OK && ids.count == 0) {
        fprintf(stderr, "mhla %s: the template makes nothing of this conversation\n", usage.verb);
        status = MHLA_EDATA;
    }
    if (status == MHLA_OK) {
        const int32_t *have = mhla_sequence_ids(t->sequence);
        int64_t n = 0;
        while (n < mhla_sequence_tokens(t->sequence) && n < ids.count - 1 && have[n] == ids.data[n]) n++;
        *last = ids.data[ids.count - 1];
        status = mhla_sequence_rollback(t->sequence, n);
        if (status == MHLA_OK) status = speak_read(s, t->sequence, ids.data + n, ids.count - 1 - n);
        s->read++;
    }
    mhla_chars_free(&text);
    mhla_ids_free(&ids);
    return status;
}

static mhla_status answer(speaker *s, talk *t) {
    mhla_generation *g = NULL;
    mhla_piece piece = {.size = sizeof piece};
    mhla_chars text = {0};
    int32_t last;
    double first = 0.0;
    const double begin = now_seconds();
    s->read = s->drawn = 0;
    s->read_seconds = 0.0;
    mhla_status status = read_turn(s, t, &last);
    if (status == MHLA_OK) {
        mhla_generation_desc desc = speak_generation(s);
        desc.stop_ids = &t->end;
        desc.stop_id_count = t->end >= 0;
        status = mhla_generation_create(&g, t->sequence, &last, 1, &desc);
    }
    while (status == MHLA_OK && !speak_interrupted && mhla_generation_finish(g) == MHLA_FINISH_NONE) {
        status = mhla_generation_step(s->model, &g, 1);
        if (status != MHLA_OK) break;
        mhla_generation_piece(g, &piece);
        if (first == 0.0) s->first_seconds = (first = now_seconds()) - begin;
        s->drawn += piece.id >= 0;
        status = mhla_chars_append(&text, piece.text, piece.bytes);
        fwrite(piece.text, 1, piece.bytes, stdout);
        fflush(stdout);
    }
    s->draw_seconds = first > 0.0 ? now_seconds() - first : 0.0;
    if (first > 0.0) printf("\n");
    if (status == MHLA_OK && mhla_generation_finish(g) == MHLA_FINISH_LENGTH &&
        (speak_given.tokens == 0 || s->drawn < speak_given.tokens))
        fprintf(stderr, "mhla %s: the conversation is full after %lld tokens; /reset begins anew (see --beyond)\n",
                usage.verb, (long long)mhla_sequence_tokens(t->sequence));
    if (status == MHLA_OK) status = say(t, "assistant", text.data, text.count);
    if (status == MHLA_OK && speak_given.stats) speak_stats(usage.verb, s, t->sequence, 1);
    mhla_generation_free(g);
    mhla_chars_free(&text);
    return status;
}

static mhla_status begin_anew(speaker *s, talk *t) {
    const mhla_sequence_desc desc = speak_sequence();
    forget(t, 0);
    mhla_sequence_free(t->sequence);
    t->sequence = NULL;
    mhla_status status = mhla_sequence_create(&t->sequence, s->model, &desc);
    if (status == MHLA_OK && system_text) status = say(t, "system", system_text, strlen(system_text));
    return status;
}

/* Lines until the end. A turn that fails is told and taken back; the conversation goes on where there is someone. */
static mhla_status converse(speaker *s, talk *t) {
    const int person = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0;
    mhla_status result = MHLA_OK, status;
    if (person) fprintf(stderr, "%s. /reset begins anew, /exit ends it.\n", speak_given.model);
    for (;;) {
        speak_watch();
        if (person) {
            printf("> ");
            fflush(stdout);
        }
        ssize_t n = getline(&line, &room, stdin);
        if (n < 0 || speak_interrupted) break;
        number++;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        line[n] = '\0';
        if (n == 0) continue;
        if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0) break;
        if (strcmp(line, "/reset") == 0) {
            result = begin_anew(s, t);
            if (result != MHLA_OK) break;
            continue;
        }
        mhla_ids ids = {0};
        status = mhla_tokenizer_encode(s->tokenizer, &ids, line, (size_t)n, MHLA_ENCODE_PLAIN);
        mhla_ids_free(&ids);
        if (status != MHLA_OK) { /* by its own bytes, not those of the whole conversation */
            fprintf(stderr, "mhla %s: line %lld: %s\n", usage.verb, (long long)number, mhla_message());
            if (person) continue;
            result = status;
            break;
        }
        const int before = t->count;
        status = say(t, "user", line, (size_t)n);
        if (status == MHLA_OK) status = answer(s, t);
        if (person) printf("\n");
        if (status != MHLA_OK) {
            cli_failed(usage.verb, status);
            forget(t, before);
            result = status;
            if (!person) break;
            if (status == MHLA_ERANGE) fprintf(stderr, "The conversation does not fit; /reset begins anew.\n");
            result = MHLA_OK;
        }
        if (speak_interrupted && !person) break;
        speak_interrupted = 0;
    }
    free(line);
    return result;
}

int cmd_chat(int argc, char **argv) {
    speak_given.tokens = 1024;
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    code = speak_check(usage.verb);
    if (code >= 0) return code;
    speaker s;
    talk t = {0};
    mhla_status status = speak_open(&s);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    status = find_end(&s, &t);
    if (status == MHLA_OK) status = begin_anew(&s, &t);
    if (status != MHLA_OK)
        cli_failed(usage.verb, status);
    else
        status = converse(&s, &t);
    forget(&t, 0);
    free(t.messages);
    mhla_sequence_free(t.sequence);
    speak_close(&s);
    return status == MHLA_OK ? CLI_OK : CLI_FAILED;
}
