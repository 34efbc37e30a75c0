/* mhla generate: text that a language model continues a prompt with; several continuations at once, states that are kept. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "speak.h"

static const char *prompt, *file, *state;
static int64_t count = 1, logprobs;
static int json, append, ignore_eos, plain;
static int told; /* what went wrong stands on standard error already */

static const cli_option options[] = {
    {"prompt,p", CLI_TEXT, &prompt, "TEXT", "the prompt; default: --file, or standard input"},
    {"file,f", CLI_TEXT, &file, "FILE",
     "read the prompt from a file (- is standard input); a newline at its end is removed"},
    {"count,n", CLI_INT, &count, "N", "generate N continuations, reading the prompt once"},
    {"state", CLI_TEXT, &state, "FILE", "resume from FILE if it exists, and write it at the end"},
    {"append", CLI_FLAG, &append, NULL, "--state: append the prompt to the saved text, even if both begin alike"},
    {"plain", CLI_FLAG, &plain, NULL, "treat special tokens in the prompt as text, and add none"},
    {"ignore-eos", CLI_FLAG, &ignore_eos, NULL, "never generate the model's end token"},
    {"logprobs", CLI_COUNT, &logprobs, "N", "--json: the N most likely tokens at each position"},
    {"json", CLI_FLAG, &json, NULL, "one line of JSON for each token, each continuation and the statistics"},
    SPEAK_OPTIONS,
    {0},
};
static const cli_usage usage = {
    .verb = "generate",
    .arguments = "",
    .options = options,
    .text = "Continues a prompt and prints the text as it is generated. Ctrl-C stops.\n",
};

typedef struct continuation {
    mhla_sequence *sequence;
    mhla_generation *generation;
    mhla_chars text; /* where it cannot be written as it comes, or a state is kept */
    int64_t drawn;
    int32_t last; /* drawn and not read, -1: none */
    const char *stopped_by;
} continuation;

/* ---- JSON lines ---- */

static void put_text(const char *text, size_t size) { json_put_quoted(stdout, text, size); }

static void put_token(const speaker *s, int32_t id, float logprob) {
    const char *piece = mhla_tokenizer_piece(s->tokenizer, id);
    printf("{\"id\": %d, \"token\": ", (int)id);
    put_text(piece ? piece : "", piece ? strlen(piece) : 0);
    printf(", \"logprob\": %.7g}", (double)logprob);
}

static void json_piece(const speaker *s, int64_t index, const mhla_piece *piece) {
    if (piece->id < 0) return;
    printf("{\"index\": %lld, \"id\": %d, \"text\": ", (long long)index, (int)piece->id);
    put_text(piece->text, piece->bytes);
    printf(", \"logprob\": %.7g", (double)piece->logprob);
    if (piece->tops > 0) printf(", \"top\": [");
    for (int i = 0; i < piece->tops; i++) {
        if (i > 0) printf(", ");
        put_token(s, piece->top[i].id, piece->top[i].probability);
    }
    printf("%s}\n", piece->tops > 0 ? "]" : "");
}

static void json_end(int64_t index, const continuation *c) {
    static const char *const names[] = {"interrupted", "eos", "stop", "length"};
    printf("{\"index\": %lld, \"finish\": \"%s\"", (long long)index, names[mhla_generation_finish(c->generation)]);
    if (c->stopped_by) {
        printf(", \"stop\": ");
        put_text(c->stopped_by, strlen(c->stopped_by));
    }
    printf(", \"tokens\": %lld, \"text\": ", (long long)c->drawn);
    put_text(c->text.data, c->text.count);
    printf("}\n");
}

static void json_figures(const speaker *s, const mhla_sequence *sequence, int64_t taken) {
    printf(
        "{\"seed\": %llu, \"taken_over\": %lld, \"read\": %lld, \"read_seconds\": %.6g, \"first_token_seconds\": %.6g, "
        "\"drawn\": %lld, \"draw_seconds\": %.6g, \"state_bytes\": %zu}\n",
        (unsigned long long)s->seed, (long long)taken, (long long)s->read, s->read_seconds, s->first_seconds,
        (long long)s->drawn, s->draw_seconds, mhla_sequence_bytes(sequence));
}

/* ---- The prompt and what was read before ---- */

static int64_t common(const mhla_ids *ids, const mhla_sequence *sequence) {
    const int64_t have = mhla_sequence_tokens(sequence);
    const int32_t *before = mhla_sequence_ids(sequence);
    int64_t n = 0;
    while (n < ids->count && n < have && ids->data[n] == before[n]) n++;
    return n;
}

/* What is to be read: of the prompt, or of nothing at all the model's token for the beginning. */
typedef struct reading {
    mhla_ids whole, after; /* the prompt at the beginning of a text, and after something */
    int32_t begin;
    const int32_t *ids; /* [count] of one of them */
    int64_t count, taken;
} reading;

static mhla_status encode(const speaker *s, reading *r) {
    size_t size = prompt ? strlen(prompt) : 0;
    char *own = NULL;
    if (prompt == NULL) {
        own = cli_read_all(usage.verb, file ? file : "-", &size);
        told = own == NULL;
        if (own == NULL) return MHLA_EIO;
        if (size > 0 && own[size - 1] == '\n') size--;
    }
    const char *text = prompt ? prompt : own;
    mhla_status status =
        mhla_tokenizer_encode(s->tokenizer, &r->whole, text, size, plain ? MHLA_ENCODE_PLAIN : MHLA_ENCODE_SPECIAL);
    if (status == MHLA_OK)
        status = mhla_tokenizer_encode(s->tokenizer, &r->after, text, size, plain ? MHLA_ENCODE_PLAIN : 0);
    if (status != MHLA_OK) {
        fprintf(stderr, "mhla %s: %s: %s\n", usage.verb,
                prompt ? "the prompt"
                : file ? file
                       : "standard input",
                mhla_message());
        told = 1;
    }
    free(own);
    return status;
}

/* The state of --state, and what is still to be read: a prompt that begins as the state does is the same one again, of
 * which only the rest is new; any other one comes after what the state holds. */
static mhla_status take_over(speaker *s, mhla_sequence **sequence, reading *r) {
    enum { ALIKE = 16 };
    if (state == NULL || access(state, F_OK) != 0) {
        const mhla_sequence_desc desc = speak_sequence();
        r->ids = r->whole.data;
        r->count = r->whole.count;
        r->begin = s->info.bos >= 0 ? s->info.bos : s->info.eos;
        if (r->count == 0 && r->begin < 0) {
            fprintf(stderr, "mhla %s: the prompt is empty, and the model has no token to begin with\n", usage.verb);
            told = 1;
            return MHLA_EINVAL;
        }
        if (r->count == 0) {
            r->ids = &r->begin;
            r->count = 1;
        }
        return mhla_sequence_create(sequence, s->model, &desc);
    }
    mhla_status status = mhla_sequence_load(sequence, s->model, state);
    if (status != MHLA_OK) return status;
    if (!speak_agrees(usage.verb, state, *sequence)) {
        told = 1;
        return MHLA_EINVAL;
    }
    const int64_t have = mhla_sequence_tokens(*sequence), alike = common(&r->whole, *sequence);
    r->ids = r->after.data;
    r->count = r->after.count;
    if (!append && r->count > 0 && alike > 0 && (alike >= ALIKE || alike == r->whole.count || alike == have)) {
        const int64_t keep = alike == r->whole.count ? alike - 1 : alike; /* the last one again, for what follows it */
        r->ids = r->whole.data + keep;
        r->count = r->whole.count - keep;
        status = mhla_sequence_rollback(*sequence, keep);
    }
    r->taken = mhla_sequence_tokens(*sequence);
    return status;
}

/* ---- Generation ---- */

static mhla_status start(speaker *s, continuation *list, mhla_sequence *base, const int32_t *ids, int64_t rest) {
    mhla_sampling sampling;
    mhla_generation_desc desc = speak_generation(s, &sampling);
    desc.ignore_eos = ignore_eos;
    desc.logprobs = json ? (int)logprobs : 0;
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) {
        sampling.seed = s->seed + (uint64_t)i;
        list[i].last = -1;
        if (count > 1)
            status = mhla_sequence_fork(&list[i].sequence, base);
        else
            list[i].sequence = base;
        if (status == MHLA_OK) status = mhla_generation_create(&list[i].generation, list[i].sequence, ids, rest, &desc);
    }
    return status;
}

static mhla_status take_piece(speaker *s, continuation *c, int64_t index) {
    mhla_piece piece = {.size = sizeof piece};
    mhla_generation_piece(c->generation, &piece);
    if (piece.id >= 0) {
        c->drawn++;
        s->drawn++;
        c->last = piece.finish == MHLA_FINISH_EOS ? -1 : piece.id;
    }
    if (piece.stopped_by) c->stopped_by = piece.stopped_by;
    if (json) json_piece(s, index, &piece);
    if (!json && count == 1) text_write(piece.text, piece.bytes);
    return json || count > 1 || state ? mhla_chars_append(&c->text, piece.text, piece.bytes) : MHLA_OK;
}

static mhla_status run(speaker *s, continuation *list, double begin) {
    mhla_generation **live = malloc(sizeof *live * (size_t)count);
    double first = 0.0;
    int64_t shown = 0;
    mhla_status status = live ? MHLA_OK : MHLA_ENOMEM;
    while (status == MHLA_OK && !speak_interrupted) {
        int64_t n = 0;
        for (int64_t i = 0; i < count; i++)
            if (mhla_generation_finish(list[i].generation) == MHLA_FINISH_NONE) live[n++] = list[i].generation;
        if (n == 0) break;
        status = mhla_generation_step(s->model, live, n);
        for (int64_t i = 0, k = 0; i < count && k < n && status == MHLA_OK; i++)
            if (list[i].generation == live[k] && k++ < n) status = take_piece(s, &list[i], i);
        if (first == 0.0) {
            first = now_seconds();
            s->first_seconds = first - begin;
        }
        /* several: each as a whole, in order, as soon as it may be */
        while (!json && count > 1 && shown < count && mhla_generation_finish(list[shown].generation)) {
            printf(shown ? "\n[%lld] " : "[%lld] ", (long long)shown + 1);
            text_write(list[shown].text.data, list[shown].text.count);
            printf("\n");
            shown++;
        }
        if (fflush(stdout) != 0) speak_interrupted = 1; /* it goes nowhere: the program ends by saying so */
    }
    s->draw_seconds = first > 0.0 ? now_seconds() - first : 0.0;
    int64_t full = 0;
    for (int64_t i = 0; i < count && status == MHLA_OK; i++)
        full += mhla_generation_finish(list[i].generation) == MHLA_FINISH_LENGTH &&
                (speak_given.tokens == 0 || list[i].drawn < speak_given.tokens);
    for (; !json && count > 1 && shown < count && status == MHLA_OK; shown++) { /* interrupted */
        printf(shown ? "\n[%lld] " : "[%lld] ", (long long)shown + 1);
        text_write(list[shown].text.data, list[shown].text.count);
        printf("\n");
    }
    if (!json && count == 1) putchar('\n');
    fflush(stdout);
    if (full > 0)
        fprintf(stderr,
                "mhla %s: ended after %lld tokens: the sequence may not be longer (see --beyond, --max-tokens)\n",
                usage.verb, (long long)mhla_sequence_tokens(list[0].sequence));
    for (int64_t i = 0; json && i < count && status == MHLA_OK; i++) json_end(i, &list[i]);
    free(live);
    return status;
}

/* The text of ids [n] after the first of them. */
static mhla_status text_after(const speaker *s, mhla_chars *text, const int32_t *ids, int64_t n) {
    mhla_chars first = {0};
    mhla_status status = mhla_tokenizer_decode(s->tokenizer, &first, ids, 1, MHLA_DECODE_SKIP_SPECIAL);
    if (status == MHLA_OK) status = mhla_tokenizer_decode(s->tokenizer, text, ids, n, MHLA_DECODE_SKIP_SPECIAL);
    if (status == MHLA_OK && text->count >= first.count) {
        text->count -= first.count;
        if (first.count) memmove(text->data, text->data + first.count, text->count);
    }
    mhla_chars_free(&first);
    return status;
}

static int begins(const mhla_chars *text, const mhla_chars *with) {
    return with->count <= text->count && (with->count == 0 || memcmp(text->data, with->data, with->count) == 0);
}

/* A stop text is not part of the result, but the tokens that began it have been read. The sequence goes back to the last one
 * whose text was written, and reads what was written beyond it, part of a token, as text of its own: without a space in front
 * where the tokenizer puts one there, and from an earlier token on where it puts one that was not written. */
static mhla_status leave_stop(const speaker *s, const continuation *c, mhla_sequence *sequence) {
    const int64_t read = c->drawn - 1, begin = mhla_sequence_tokens(sequence) - read; /* the last drawn was not read */
    mhla_chars text = {0};
    mhla_ids ids = {0};
    mhla_status status = MHLA_OK;
    int64_t keep = read, whole = 0; /* whole: as far as all of the tokens' text was written */
    int found = 0;
    for (int bare = 0; keep >= 0 && status == MHLA_OK; keep -= bare, bare = !bare) {
        ids.count = 0;
        text.count = 0;
        status = mhla_ids_append(&ids, mhla_sequence_ids(sequence) + begin - 1, keep + 1);
        if (status != MHLA_OK || text_after(s, &text, ids.data, ids.count) != MHLA_OK || !begins(&c->text, &text))
            continue;
        if (keep > whole) whole = keep;
        const char *rest = c->text.data + text.count;
        const size_t bytes = c->text.count - text.count;
        if (bare && (bytes == 0 || *rest != ' ')) continue;
        if (bytes > 0)
            status = mhla_tokenizer_encode(s->tokenizer, &ids, rest + bare, bytes - (size_t)bare, MHLA_ENCODE_PLAIN);
        text.count = 0;
        found = status == MHLA_OK && text_after(s, &text, ids.data, ids.count) == MHLA_OK &&
                text.count == c->text.count && begins(&c->text, &text);
        if (found) break;
    }
    if (!found) keep = whole;
    if (status == MHLA_OK && keep < read) status = mhla_sequence_rollback(sequence, begin + keep);
    if (found && status == MHLA_OK && ids.count > keep + 1) {
        const mhla_feed feed = {
            .size = sizeof feed, .sequence = sequence, .ids = ids.data + keep + 1, .count = ids.count - keep - 1};
        status = mhla_lm_feed(s->model, &feed, 1);
    }
    mhla_chars_free(&text);
    mhla_ids_free(&ids);
    return status;
}

/* The state at the end: of one continuation all of it, of several the prompt that they share. */
static mhla_status save(speaker *s, continuation *list, mhla_sequence *base, const int32_t *ids, int64_t rest) {
    mhla_status status = MHLA_OK;
    if (count > 1 && rest > 0) {
        status = speak_read(s, base, ids, rest);
    } else if (count == 1 && mhla_generation_finish(list[0].generation) == MHLA_FINISH_STOP) {
        status = leave_stop(s, &list[0], base);
        if (status == MHLA_ERANGE) status = MHLA_OK;
    } else if (count == 1 && list[0].last >= 0) {
        const mhla_feed feed = {.size = sizeof feed, .sequence = base, .ids = &list[0].last, .count = 1};
        status = mhla_lm_feed(s->model, &feed, 1);
        if (status == MHLA_ERANGE) status = MHLA_OK; /* it ended because the sequence is full */
    }
    return status == MHLA_OK ? mhla_sequence_save(base, state) : status;
}

static mhla_status generate(speaker *s, mhla_sequence **base, continuation *list, reading *r) {
    char a[32], b[32];
    mhla_status status = encode(s, r);
    if (status == MHLA_OK) status = take_over(s, base, r);
    if (status != MHLA_OK) return status;
    if (r->taken > 0)
        fprintf(stderr, "mhla %s: %s: %s tokens reused, %s to read\n", usage.verb, state,
                text_count(a, sizeof a, r->taken), text_count(b, sizeof b, r->count));
    told = !speak_fits(usage.verb, "the prompt", *base, r->count);
    if (told) return MHLA_ERANGE;
    const double begin = now_seconds();
    /* all but the last are read once; the last gives each continuation what it draws its first token from */
    if (r->count > 1) status = speak_read(s, *base, r->ids, r->count - 1);
    if (status == MHLA_OK && speak_interrupted) return state ? mhla_sequence_save(*base, state) : MHLA_OK;
    const int64_t some = r->count > 0;
    const int32_t *last = some ? r->ids + r->count - 1 : NULL;
    s->read += some;
    if (status == MHLA_OK) status = start(s, list, *base, last, some);
    if (status == MHLA_OK) status = run(s, list, begin);
    if (status == MHLA_OK && state) status = save(s, list, *base, last, some);
    if (status == MHLA_OK && json) json_figures(s, count > 1 ? list[0].sequence : *base, r->taken);
    if (status == MHLA_OK && (speak_given.stats || (isatty(STDERR_FILENO) && isatty(STDOUT_FILENO))))
        speak_stats(usage.verb, s, count > 1 ? list[0].sequence : *base, (int)count);
    return status;
}

int cmd_generate(int argc, char **argv) {
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    code = speak_check(usage.verb);
    if (code >= 0) return code;
    if (prompt && file) return cli_wrong(usage.verb, "--prompt and --file are both given");
    if (append && state == NULL) return cli_wrong(usage.verb, "--append is for --state");
    if (logprobs > 0 && !json) return cli_wrong(usage.verb, "--logprobs is for --json");
    if (count > 4096) return cli_wrong(usage.verb, "--count is %lld: expected 1 to 4096", (long long)count);
    if (logprobs > 1000) return cli_wrong(usage.verb, "--logprobs is %lld: expected 0 to 1000", (long long)logprobs);
    if (prompt == NULL && file == NULL && isatty(STDIN_FILENO)) {
        if (state == NULL || access(state, F_OK) != 0) return cli_wrong(usage.verb, "no prompt is given");
        prompt = ""; /* goes on where the state ends */
        append = 1;
    }
    if (state && !cli_writable(state)) {
        fprintf(stderr, "mhla %s: %s: cannot be written: %s\n", usage.verb, state, strerror(errno));
        return CLI_FAILED;
    }
    speaker s;
    speak_watch();
    mhla_status status = speak_open(&s);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    code = speak_biases(usage.verb, &s);
    if (code >= 0) {
        speak_close(&s);
        return code;
    }
    mhla_sequence *base = NULL;
    reading r = {0};
    continuation *list = calloc((size_t)count, sizeof *list);
    status = list ? generate(&s, &base, list, &r) : MHLA_ENOMEM;
    if (status != MHLA_OK && !told) cli_failed(usage.verb, status);
    for (int64_t i = 0; list && i < count; i++) {
        mhla_generation_free(list[i].generation);
        if (list[i].sequence != base) mhla_sequence_free(list[i].sequence);
        mhla_chars_free(&list[i].text);
    }
    free(list);
    mhla_sequence_free(base);
    mhla_ids_free(&r.whole);
    mhla_ids_free(&r.after);
    speak_close(&s);
    if (status == MHLA_OK && interrupt_signal() && interrupt_signal() != SIGINT) return interrupt_code();
    return status == MHLA_OK ? CLI_OK : CLI_FAILED; /* Ctrl-C is the usual way to end a long text */
}
