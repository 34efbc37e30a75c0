/* What `generate` and `chat` share. */
#include "speak.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

speak_options speak_given = {
    .tokens = 256, .top_k = 40, .seed = -1, .temperature = 0.8, .top_p = 0.95, .min_p = 0.05, .repeat_penalty = 1.0};
volatile sig_atomic_t speak_interrupted;

static void on_signal(int number) {
    (void)number;
    speak_interrupted = 1;
}

void speak_watch(void) { interrupt_watch(on_signal); }

static const char *const policies[] = {"error", "clamp", "chunk"}; /* as mhla_beyond counts them */

static int beyond_of(const char *name) {
    for (int i = 0; i < 3; i++)
        if (name == NULL || strcmp(name, policies[i]) == 0) return i;
    return -1;
}

int speak_check(const char *verb) {
    const speak_options *o = &speak_given;
    if (o->model == NULL) return cli_wrong(verb, "--model is missing");
    if (o->threads > 1024) return cli_wrong(verb, "--threads is %lld: expected 1 to 1024", (long long)o->threads);
    if (o->top_k > 1 << 30) return cli_wrong(verb, "--top-k is %lld: too large", (long long)o->top_k);
    if (o->top_p > 1.0) return cli_wrong(verb, "--top-p is %g: expected 0 to 1", o->top_p);
    if (o->min_p > 1.0) return cli_wrong(verb, "--min-p is %g: expected 0 to 1", o->min_p);
    if (beyond_of(o->beyond) < 0)
        return cli_wrong(verb, "--beyond is \"%s\": expected error, clamp or chunk", o->beyond);
    if (beyond_of(o->beyond) == MHLA_BEYOND_CHUNK && o->max_tokens == 0)
        return cli_wrong(verb, "--beyond chunk needs --max-tokens");
    if (o->cache && strcmp(o->cache, "float32") != 0 && strcmp(o->cache, "bfloat16") != 0)
        return cli_wrong(verb, "--cache is \"%s\": expected float32 or bfloat16", o->cache);
    for (int i = 0; i < o->stop.count; i++)
        if (o->stop.text[i][0] == '\0') return cli_wrong(verb, "--stop is empty");
    return -1;
}

mhla_status speak_open(speaker *s) {
    const speak_options *o = &speak_given;
    const mhla_open_desc desc = {.size = sizeof desc, .storage = o->storage};
    *s = (speaker){.info = {.size = sizeof s->info}, .tokens = {.size = sizeof s->tokens}};
    s->seed = o->seed >= 0 ? (uint64_t)o->seed : ((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid()) & 0xffffffff;
    mhla_status status = mhla_model_open_as(&s->model, model_path(o->model), &desc);
    if (status == MHLA_OK && o->threads) {
        const mhla_context_desc threads = {.size = sizeof threads, .threads = (int)o->threads};
        status = mhla_context_create(&s->context, &threads);
        if (status == MHLA_OK) mhla_model_set_context(s->model, s->context);
    }
    if (status == MHLA_OK) status = mhla_lm_query(s->model, &s->info);
    if (status == MHLA_OK) {
        s->tokenizer = mhla_lm_tokenizer(s->model);
        status = s->tokenizer ? mhla_tokenizer_query(s->tokenizer, &s->tokens) : MHLA_EDATA;
    }
    if (status != MHLA_OK) speak_close(s);
    return status;
}

void speak_close(speaker *s) {
    mhla_model_free(s->model);
    mhla_context_free(s->context);
    s->model = NULL;
    s->context = NULL;
}

mhla_sequence_desc speak_sequence(void) {
    return (mhla_sequence_desc){.size = sizeof(mhla_sequence_desc),
                                .beyond = (mhla_beyond)beyond_of(speak_given.beyond),
                                .max_tokens = speak_given.max_tokens,
                                .cache = speak_given.cache};
}

int speak_agrees(const char *verb, const char *file, const mhla_sequence *sequence) {
    const speak_options *o = &speak_given;
    mhla_sequence_desc d = {.size = sizeof d};
    if (mhla_sequence_query(sequence, &d) != MHLA_OK || (unsigned)d.beyond > MHLA_BEYOND_CHUNK) return 1;
    if ((o->beyond == NULL || beyond_of(o->beyond) == (int)d.beyond) &&
        (o->max_tokens == 0 || o->max_tokens == d.max_tokens) && (o->cache == NULL || strcmp(o->cache, d.cache) == 0))
        return 1;
    fprintf(stderr, "mhla %s: %s: the state was made with --beyond %s", verb, file, policies[d.beyond]);
    if (d.max_tokens > 0) fprintf(stderr, " --max-tokens %lld", (long long)d.max_tokens);
    fprintf(stderr, " --cache %s", d.cache);
    fprintf(stderr, ": leave these options out, or start another state\n");
    return 0;
}

mhla_generation_desc speak_generation(const speaker *s, mhla_sampling *sampling) {
    const speak_options *o = &speak_given;
    *sampling = (mhla_sampling){.size = sizeof *sampling,
                                .temperature = o->temperature,
                                .top_k = (int)o->top_k,
                                .top_p = o->top_p > 0.0 ? o->top_p : 1e-300, /* the library's 0 is "all" */
                                .min_p = o->min_p,
                                .repeat_penalty = o->repeat_penalty,
                                .presence_penalty = o->presence_penalty,
                                .frequency_penalty = o->frequency_penalty,
                                .bias = s->bias,
                                .biases = s->biases,
                                .order = o->hf ? MHLA_SAMPLING_HF : MHLA_SAMPLING_LLAMA,
                                .seed = s->seed};
    return (mhla_generation_desc){.size = sizeof(mhla_generation_desc),
                                  .sampling = sampling,
                                  .max_tokens = o->tokens,
                                  .stop = o->stop.text,
                                  .stops = o->stop.count};
}

/* "TOKEN=X", an id or a text that is one token, and a number or -inf. */
int speak_biases(const char *verb, speaker *s) {
    const cli_texts *given = &speak_given.bias;
    for (int i = 0; i < given->count; i++) {
        const char *text = given->text[i], *equals = strrchr(text, '=');
        if (equals == NULL || equals == text)
            return cli_wrong(verb, "--logit-bias is \"%s\": expected TOKEN=X, such as 42=-5", text);
        const size_t size = (size_t)(equals - text);
        char *end;
        const double value = strtod(equals + 1, &end);
        if (end == equals + 1 || *end || !(value < 1e6) || (value < -1e6 && value != -HUGE_VAL))
            return cli_wrong(verb, "--logit-bias is \"%s\": \"%s\" is not a number or -inf", text, equals + 1);
        mhla_ids ids = {0};
        int64_t id = -1, tokens = 1;
        if (strspn(text, "0123456789") == size) {
            id = strtoll(text, NULL, 10);
        } else if (mhla_tokenizer_encode(s->tokenizer, &ids, text, size, 0) == MHLA_OK) {
            tokens = ids.count;
            if (tokens > 0) id = ids.data[0];
        }
        mhla_ids_free(&ids);
        if (tokens != 1)
            return cli_wrong(verb, "--logit-bias is \"%s\": the text is %lld tokens, not one", text, (long long)tokens);
        if (id < 0 || id >= s->info.vocabulary)
            return cli_wrong(verb, "--logit-bias is \"%s\": the model has tokens 0 to %d", text,
                             s->info.vocabulary - 1);
        s->bias[s->biases++] = (mhla_bias){(int32_t)id, (float)value};
    }
    return -1;
}

int speak_fits(const char *verb, const char *what, const mhla_sequence *sequence, int64_t count) {
    const int64_t room = mhla_sequence_room(sequence), before = mhla_sequence_tokens(sequence);
    char a[32], b[32], c[32];
    if (count <= room) return 1;
    fprintf(stderr, "mhla %s: %s has %s tokens", verb, what, text_count(a, sizeof a, count));
    if (before > 0) fprintf(stderr, ", after %s that were read before", text_count(b, sizeof b, before));
    fprintf(stderr, ": at most %s fit (see --beyond and --max-tokens)\n", text_count(c, sizeof c, before + room));
    return 0;
}

mhla_status speak_read(speaker *s, mhla_sequence *sequence, const int32_t *ids, int64_t count) {
    enum { PART = 1024 };
    const double begin = now_seconds();
    const int bar = isatty(STDERR_FILENO) && count > PART;
    mhla_status status = MHLA_OK;
    for (int64_t at = 0; at < count && status == MHLA_OK && !speak_interrupted;) {
        const int64_t n = count - at < PART ? count - at : PART;
        const mhla_feed feed = {.size = sizeof feed, .sequence = sequence, .ids = ids + at, .count = n};
        status = mhla_lm_feed(s->model, &feed, 1);
        at += n;
        if (status == MHLA_OK) s->read += n;
        if (bar) fprintf(stderr, "\rreading: %lld of %lld tokens ", (long long)at, (long long)count);
    }
    if (bar) fprintf(stderr, "\r\033[K");
    s->read_seconds += now_seconds() - begin;
    return status;
}

void speak_stats(const char *verb, const speaker *s, const mhla_sequence *sequence, int at_once) {
    char first[32], bytes[32];
    fprintf(stderr, "mhla %s: %lld tokens read", verb, (long long)s->read);
    if (s->read > 1 && s->read_seconds > 0.0) fprintf(stderr, " (%.1f/s)", (double)s->read / s->read_seconds);
    fprintf(stderr, ", %lld drawn", (long long)s->drawn);
    if (s->drawn > at_once && s->draw_seconds > 0.0)
        fprintf(stderr, " (%.1f/s)", (double)(s->drawn - at_once) / s->draw_seconds);
    fprintf(stderr, "; first token after %s, state %s, seed %llu\n", text_time(first, sizeof first, s->first_seconds),
            text_bytes(bytes, sizeof bytes, (double)mhla_sequence_bytes(sequence)), (unsigned long long)s->seed);
}
