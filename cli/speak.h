/* speak.h - what `generate` and `chat` share: opening a model to speak with, how tokens are chosen, reading a prompt in
 * parts that Ctrl-C can come between, and the figures at the end. */
#ifndef MHLA_CLI_SPEAK_H
#define MHLA_CLI_SPEAK_H

#include <mhla/lm.h>
#include <signal.h>

#include "cli.h"

typedef struct speak_options {
    const char *model, *storage, *beyond, *cache;
    int64_t threads, max_tokens; /* max_tokens: of a sequence, for --beyond */
    int64_t tokens;              /* to be drawn */
    int64_t top_k, seed;
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    cli_texts stop, bias;
    int stats, hf;
} speak_options;

extern speak_options speak_given;

/* Rows for a verb's table of options. */
#define SPEAK_OPTIONS                                                                                                  \
    {"model,m", CLI_TEXT, &speak_given.model, "MODEL", "a folder, a run, a .gguf file or a shipped model; required"},  \
        {"tokens", CLI_COUNT, &speak_given.tokens, "N",                                                                \
         "at most N new tokens; default 256, in chat 1024; 0: no limit"},                                              \
        {"temperature", CLI_AMOUNT, &speak_given.temperature, "X", "0: always the most likely token; default 0.8"},    \
        {"top-k", CLI_COUNT, &speak_given.top_k, "N", "only the N most likely tokens; default 40, 0: all"},            \
        {"top-p", CLI_AMOUNT, &speak_given.top_p, "X",                                                                 \
         "only the most likely tokens with total probability X; default 0.95, 1: all"},                                \
        {"min-p", CLI_AMOUNT, &speak_given.min_p, "X",                                                                 \
         "only tokens with at least X times the highest probability; default 0.05"},                                   \
        {"repeat-penalty", CLI_REAL, &speak_given.repeat_penalty, "X",                                                 \
         "penalty on the last 64 tokens; default 1: none"},                                                            \
        {"presence-penalty", CLI_SIGNED, &speak_given.presence_penalty, "X",                                           \
         "subtracted once from the logit of each of the last 64 tokens; default 0"},                                   \
        {"frequency-penalty", CLI_SIGNED, &speak_given.frequency_penalty, "X",                                         \
         "subtracted for each occurrence among the last 64 tokens; default 0"},                                        \
        {"logit-bias", CLI_TEXTS, &speak_given.bias, "TOKEN=X",                                                        \
         "adds X to the logit of a token, an id or text that is one token; may be repeated"},                          \
        {"temper-first", CLI_FLAG, &speak_given.hf, NULL,                                                              \
         "apply the temperature before top-k, top-p and min-p, not after"},                                            \
        {"seed", CLI_COUNT, &speak_given.seed, "N", "the same seed gives the same text; default: random"},             \
        {"stop", CLI_TEXTS, &speak_given.stop, "TEXT", "stop before TEXT; may be repeated"},                           \
        {"beyond", CLI_TEXT, &speak_given.beyond, "HOW", "past the trained length: error (default), clamp, chunk"},    \
        {"max-tokens", CLI_INT, &speak_given.max_tokens, "N",                                                          \
         "at most N tokens of prompt and answer together; --beyond chunk needs it"},                                   \
        {"dtype", CLI_TEXT, &speak_given.storage, "TYPE",                                                              \
         "weights as float32, bfloat16 or q8_0; default: as in the file"},                                             \
        {"cache", CLI_TEXT, &speak_given.cache, "TYPE",                                                                \
         "keys and values of softmax layers as float32 or bfloat16; default: float32 if the weights are"},             \
        {"storage", CLI_TEXT, &speak_given.storage, "TYPE", NULL},                                                     \
        {"threads", CLI_INT, &speak_given.threads, "N", "default: OpenMP's"}, {                                        \
        "stats", CLI_FLAG, &speak_given.stats, NULL, "print statistics on standard error, as on a terminal"            \
    }

typedef struct speaker {
    mhla_model *model;
    mhla_context *context;
    const mhla_tokenizer *tokenizer;
    mhla_lm_info info;
    mhla_tokenizer_info tokens;
    uint64_t seed;
    mhla_bias bias[64];
    int biases;
    /* figures */
    double read_seconds, first_seconds, draw_seconds;
    int64_t read, drawn;
} speaker;

/* Checks the options (-1 or the code to exit with), then opens the model; then finds the tokens of --logit-bias (-1 or the code). */
int speak_check(const char *verb);
mhla_status speak_open(speaker *s);
int speak_biases(const char *verb, speaker *s);
void speak_close(speaker *s);

mhla_sequence_desc speak_sequence(void);
/* 0 and a message where the sequence of a file was begun with another policy than is asked for: it cannot be changed. */
int speak_agrees(const char *verb, const char *file, const mhla_sequence *sequence);
mhla_generation_desc speak_generation(const speaker *s, mhla_sampling *sampling);

/* 0 and a message with both numbers where the sequence cannot read `count` tokens more; `what` they are. */
int speak_fits(const char *verb, const char *what, const mhla_sequence *sequence, int64_t count);
/* Reads ids into the sequence; MHLA_OK with fewer read if Ctrl-C came. */
mhla_status speak_read(speaker *s, mhla_sequence *sequence, const int32_t *ids, int64_t count);
/* Ctrl-C, SIGTERM and SIGHUP set this; a second one ends the program. */
extern volatile sig_atomic_t speak_interrupted;
void speak_watch(void);

void speak_stats(const char *verb, const speaker *s, const mhla_sequence *sequence, int at_once);

#endif
