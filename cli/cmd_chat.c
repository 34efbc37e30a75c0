/* mhla chat: a conversation by the model's own template. What was said stays in the sequence's state, on the disk if wanted;
 * a turn reads only what is new. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "speak.h"

static const char *system_text, *state;

static const cli_option options[] = {
    {"system", CLI_TEXT, &system_text, "TEXT", "the system prompt"},
    {"state", CLI_TEXT, &state, "FILE", "resume the conversation in FILE if it exists, and write it at the end"},
    SPEAK_OPTIONS,
    {0},
};
static const cli_usage usage = {
    .verb = "chat",
    .arguments = "",
    .options = options,
    .text = "Answers each line of standard input. /reset starts over, /exit or end of input quits; Ctrl-C stops\n"
            "an answer.\n",
};

typedef struct talk {
    mhla_message_desc *messages; /* contents are ours */
    int count, capacity;
    mhla_sequence *sequence;
    int32_t end;  /* token that ends a turn besides the model's own, or -1 */
    int told;     /* what went wrong stands on standard error already */
    char *system; /* of --system or of --state, or NULL; /reset keeps it */
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

/* ---- The conversation as a note of the sequence: "user 5\nHello\n" for each message ---- */

static const char heading[] = "mhla chat\n";

static mhla_status write_note(const talk *t) {
    mhla_chars text = {0};
    mhla_status status = mhla_chars_append(&text, heading, sizeof heading - 1);
    for (int i = 0; i < t->count && status == MHLA_OK; i++) {
        char line[64];
        const size_t size = strlen(t->messages[i].content);
        const int n = snprintf(line, sizeof line, "%s %zu\n", t->messages[i].role, size);
        status = mhla_chars_append(&text, line, (size_t)n);
        if (status == MHLA_OK) status = mhla_chars_append(&text, t->messages[i].content, size);
        if (status == MHLA_OK) status = mhla_chars_append(&text, "\n", 1);
    }
    if (status == MHLA_OK) status = mhla_chars_append(&text, "", 1); /* the zero at its end */
    if (status == MHLA_OK) status = mhla_sequence_set_note(t->sequence, text.data);
    mhla_chars_free(&text);
    return status;
}

/* 0: it is no such note. */
static int read_note(talk *t, const char *note) {
    static const char *const roles[] = {"system", "user", "assistant"};
    if (strncmp(note, heading, sizeof heading - 1) != 0) return 0;
    for (const char *at = note + sizeof heading - 1; *at;) {
        const size_t left = strlen(at), word = strcspn(at, " ");
        const char *role = NULL;
        char *end;
        for (int i = 0; i < 3; i++)
            if (strlen(roles[i]) == word && strncmp(at, roles[i], word) == 0) role = roles[i];
        if (role == NULL) return 0;
        const unsigned long long size = strtoull(at + word, &end, 10);
        if (*end != '\n' || size >= left || (size_t)(end + 1 - at) + size + 1 > left || end[1 + size] != '\n') return 0;
        if (say(t, role, end + 1, (size_t)size) != MHLA_OK) return 0;
        at = end + 2 + size;
    }
    return 1;
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

/* How many of ids, `most` at most, the sequence has read. */
static int64_t in_common(const talk *t, const mhla_ids *ids, int64_t most) {
    const int32_t *have = mhla_sequence_ids(t->sequence);
    int64_t n = 0;
    while (n < mhla_sequence_tokens(t->sequence) && n < most && have[n] == ids->data[n]) n++;
    return n;
}

/* The conversation as the template writes it, with the beginning of an answer; what the sequence has of it stays. */
static mhla_status read_turn(speaker *s, talk *t, int32_t *last) {
    mhla_chars text = {0};
    mhla_ids ids = {0};
    mhla_status status = mhla_chat_render(s->tokenizer, &text, t->messages, t->count, 1);
    if (status == MHLA_OK) status = mhla_tokenizer_encode(s->tokenizer, &ids, text.data, text.count, 0);
    if (status == MHLA_OK && ids.count == 0) {
        fprintf(stderr, "mhla %s: the template produces no text for this conversation\n", usage.verb);
        t->told = 1;
        status = MHLA_EDATA;
    }
    if (status == MHLA_OK) {
        const int64_t n = in_common(t, &ids, ids.count - 1);
        *last = ids.data[ids.count - 1];
        status = mhla_sequence_rollback(t->sequence, n);
        t->told = status == MHLA_OK && !speak_fits(usage.verb, "the conversation", t->sequence, ids.count - n);
        if (t->told) status = MHLA_ERANGE;
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
        mhla_sampling sampling;
        mhla_generation_desc desc = speak_generation(s, &sampling);
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
        text_write(piece.text, piece.bytes);
        fflush(stdout);
    }
    s->draw_seconds = first > 0.0 ? now_seconds() - first : 0.0;
    if (first > 0.0) printf("\n");
    fflush(stdout); /* before what standard error says of it */
    if (status == MHLA_OK && mhla_generation_finish(g) == MHLA_FINISH_LENGTH &&
        (speak_given.tokens == 0 || s->drawn < speak_given.tokens))
        fprintf(stderr, "mhla %s: the conversation is full after %lld tokens; /reset starts over (see --beyond)\n",
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
    if (status == MHLA_OK && t->system) status = say(t, "system", t->system, strlen(t->system));
    return status;
}

/* Goes on with the conversation of --state. 0, or the code to exit with. */
static int take_over(speaker *s, talk *t) {
    char tokens[32];
    const mhla_status status = mhla_sequence_load(&t->sequence, s->model, state);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (!speak_agrees(usage.verb, state, t->sequence)) return CLI_FAILED;
    if (!read_note(t, mhla_sequence_note(t->sequence))) {
        fprintf(stderr, "mhla %s: %s: no conversation in it: it may come from mhla generate\n", usage.verb, state);
        return CLI_FAILED;
    }
    const int has = t->count > 0 && strcmp(t->messages[0].role, "system") == 0;
    if (system_text && (!has || strcmp(t->messages[0].content, system_text) != 0)) {
        fprintf(stderr, "mhla %s: %s: the conversation in it began %s: leave out --system to resume it\n", usage.verb,
                state, has ? "with another --system" : "without --system");
        return CLI_FAILED;
    }
    if (has && (t->system = strdup(t->messages[0].content)) == NULL) return cli_failed(usage.verb, MHLA_ENOMEM);
    fprintf(stderr, "mhla %s: %s: %d messages, %s tokens reused\n", usage.verb, state, t->count,
            text_count(tokens, sizeof tokens, mhla_sequence_tokens(t->sequence)));
    return 0;
}

/* Before it is written, the sequence reads what was said as the template writes it: an answer may have been drawn in other
 * tokens than those of its text, and the next turn would have to go back. What cannot be read so is left as it is. */
static mhla_status keep(speaker *s, talk *t) {
    mhla_chars text = {0};
    mhla_ids ids = {0};
    if (t->count > 0 && !speak_interrupted &&
        mhla_chat_render(s->tokenizer, &text, t->messages, t->count, 0) == MHLA_OK &&
        mhla_tokenizer_encode(s->tokenizer, &ids, text.data, text.count, 0) == MHLA_OK) {
        const int64_t n = in_common(t, &ids, ids.count);
        if (mhla_sequence_rollback(t->sequence, n) == MHLA_OK) speak_read(s, t->sequence, ids.data + n, ids.count - n);
    }
    mhla_chars_free(&text);
    mhla_ids_free(&ids);
    const mhla_status status = write_note(t);
    return status == MHLA_OK ? mhla_sequence_save(t->sequence, state) : status;
}

/* Can the model read it? A line that it cannot is reported by its own bytes, not those of the whole conversation; messages end
 * at a zero byte, so that none may be in one. */
static int is_text(const speaker *s, const char *line, size_t size, int64_t number) {
    const char *zero = memchr(line, '\0', size);
    mhla_ids ids = {0};
    const mhla_status status = mhla_tokenizer_encode(s->tokenizer, &ids, line, size, MHLA_ENCODE_PLAIN);
    mhla_ids_free(&ids);
    if (zero)
        fprintf(stderr, "mhla %s: line %lld: byte %zu is zero: the line is skipped\n", usage.verb, (long long)number,
                (size_t)(zero - line));
    else if (status != MHLA_OK)
        fprintf(stderr, "mhla %s: line %lld: %s: the line is skipped\n", usage.verb, (long long)number, mhla_message());
    return zero == NULL && status == MHLA_OK;
}

/* Lines until the end. A turn that fails is told and taken back; the conversation goes on where there is someone. */
static mhla_status converse(speaker *s, talk *t) {
    const int person = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0, refused = 0; /* lines */
    mhla_status result = MHLA_OK, status;
    if (person) fprintf(stderr, "%s. /reset starts over, /exit quits.\n", speak_given.model);
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
        const int whole = strlen(line) == (size_t)n; /* no zero byte in it */
        if (whole && (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)) break;
        if (whole && strcmp(line, "/reset") == 0) {
            result = begin_anew(s, t);
            if (result != MHLA_OK) break;
            continue;
        }
        if (!is_text(s, line, (size_t)n, number)) {
            refused++;
            continue;
        }
        const int before = t->count;
        status = say(t, "user", line, (size_t)n);
        if (status == MHLA_OK) status = answer(s, t);
        if (person) printf("\n");
        if (status != MHLA_OK) {
            if (!t->told) cli_failed(usage.verb, status);
            t->told = 0;
            forget(t, before);
            result = status;
            if (!person) break;
            if (status == MHLA_ERANGE) fprintf(stderr, "The conversation does not fit; /reset starts over.\n");
            result = MHLA_OK;
        }
        if (speak_interrupted && (!person || interrupt_signal() != SIGINT)) break;
        speak_interrupted = 0;
    }
    free(line);
    return result == MHLA_OK && refused > 0 && !person ? MHLA_EDATA : result; /* reported already */
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
    code = speak_biases(usage.verb, &s);
    if (code >= 0) {
        speak_close(&s);
        return code;
    }
    mhla_ids ids = {0};
    if (system_text && mhla_tokenizer_encode(s.tokenizer, &ids, system_text, strlen(system_text), 0) != MHLA_OK) {
        speak_close(&s);
        return cli_wrong(usage.verb, "--system: %s", mhla_message());
    }
    mhla_ids_free(&ids);
    status = find_end(&s, &t);
    const int more = state && access(state, F_OK) == 0;
    if (status == MHLA_OK && !more && system_text && (t.system = strdup(system_text)) == NULL) status = MHLA_ENOMEM;
    if (status == MHLA_OK && !more) status = begin_anew(&s, &t);
    if (status == MHLA_OK && !more && state) status = keep(&s, &t); /* who cannot write it is told before he talks */
    code = status != MHLA_OK ? cli_failed(usage.verb, status) : more ? take_over(&s, &t) : 0;
    if (code == 0) {
        status = converse(&s, &t);
        code = status == MHLA_OK ? CLI_OK : CLI_FAILED;
        if (code == CLI_OK && interrupt_signal() && interrupt_signal() != SIGINT) code = interrupt_code();
        status = state && t.sequence ? keep(&s, &t) : MHLA_OK; /* also what was said before a turn that failed */
        if (status != MHLA_OK) code = cli_failed(usage.verb, status);
    }
    forget(&t, 0);
    free(t.messages);
    free(t.system);
    mhla_sequence_free(t.sequence);
    speak_close(&s);
    return code;
}
