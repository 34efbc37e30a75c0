/* lm.h - language models on top of nn.h: tokens, sequences, generation, evaluation.
 *
 * This header is the manual. It goes from text to numbers and back:
 *
 *   1. tokenizers                          4. sampling
 *   2. language models                     5. generation: many sequences, one step at a time
 *   3. sequences: what a model remembers   6. chat templates
 *                                          7. evaluation
 *                                          8. text encoders
 *
 * The conventions are those of mhla.h and nn.h: statuses and mhla_message(), structs that begin with their size, zero is
 * the default, freeing NULL is legal. A model is an mhla_model of nn.h; mhla_model_open opens it. Only one thread at a time
 * may use a model and its sequences. A tokenizer is immutable, and threads may share it. */
#ifndef MHLA_LM_H
#define MHLA_LM_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Tokenizers ------------------------------------------------------------------------------------------------ */

typedef struct mhla_tokenizer mhla_tokenizer;

/* Growing lists. A zeroed struct is an empty list; calls append to it; _free frees the memory. Text is not zero-terminated. */
typedef struct mhla_ids {
    int32_t *data;
    int64_t count, capacity;
} mhla_ids;
typedef struct mhla_chars {
    char *data;
    size_t count, capacity;
} mhla_chars;
MHLA_API mhla_status mhla_ids_append(mhla_ids *ids, const int32_t *data, int64_t count);
MHLA_API mhla_status mhla_chars_append(mhla_chars *text, const char *data, size_t count);
MHLA_API void mhla_ids_free(mhla_ids *ids);
MHLA_API void mhla_chars_free(mhla_chars *text);

/* Opens a tokenizer.json, a tokenizer.model (SentencePiece, or Llama 3's of tiktoken), the vocabulary inside a .gguf, a
 * vocab.json with merges.txt beside it (GPT-2, CLIP), a .tiktoken file, CLIP's bpe_simple_vocab_16e6.txt.gz, or a folder: the
 * first of these that it has, in this order. MHLA_ENOTSUP names a part of the file that is not supported. */
MHLA_API mhla_status mhla_tokenizer_open(mhla_tokenizer **tokenizer, const char *path);
MHLA_API void mhla_tokenizer_free(mhla_tokenizer *tokenizer);

typedef struct mhla_tokenizer_info {
    size_t size;
    const char *kind;           /* "bpe, byte level"; this and other texts live as long as the tokenizer */
    int vocabulary;             /* ids are 0 .. vocabulary-1 */
    int32_t bos, eos, unk, pad; /* -1: there is none */
    int adds_bos, adds_eos;     /* by MHLA_ENCODE_SPECIAL */
    const char *chat_template;  /* Jinja, or NULL */
} mhla_tokenizer_info;
MHLA_API mhla_status mhla_tokenizer_query(const mhla_tokenizer *tokenizer, mhla_tokenizer_info *info);

/* The piece of an id as the file spells it ("\u2581the"), or NULL; and the id of a piece, or -1. */
MHLA_API const char *mhla_tokenizer_piece(const mhla_tokenizer *tokenizer, int32_t id);
MHLA_API int32_t mhla_tokenizer_id(const mhla_tokenizer *tokenizer, const char *piece);

enum {
    MHLA_ENCODE_SPECIAL = 1, /* adds the tokens of the post-processor (<s> in front) */
    MHLA_ENCODE_PLAIN =
        2, /* special tokens that are spelled out in the text are plain text; use it for untrusted text */
    MHLA_ENCODE_TRUNCATE =
        4 /* at most as many ids as the tokenizer's model takes (CLIP: 77); an end token stays last */
};
/* Appends the ids of `bytes` bytes of UTF-8. MHLA_EDATA names the byte where the text is not UTF-8. */
MHLA_API mhla_status mhla_tokenizer_encode(const mhla_tokenizer *tokenizer, mhla_ids *ids, const char *text,
                                           size_t bytes, unsigned flags);

enum { MHLA_DECODE_SKIP_SPECIAL = 1 };
/* Appends the text of ids, as the reference libraries print it. MHLA_EINVAL for an id out of range. */
MHLA_API mhla_status mhla_tokenizer_decode(const mhla_tokenizer *tokenizer, mhla_chars *text, const int32_t *ids,
                                           int64_t count, unsigned flags);

/* The same, one id at a time. A decoder appends text as soon as it is certain, and never part of a character. All calls of
 * _push and then _finish append the same text as one call of _decode. */
typedef struct mhla_decoder mhla_decoder;
MHLA_API mhla_status mhla_decoder_create(mhla_decoder **decoder, const mhla_tokenizer *tokenizer, unsigned flags);
MHLA_API void mhla_decoder_free(mhla_decoder *decoder);
MHLA_API mhla_status mhla_decoder_push(mhla_decoder *decoder, mhla_chars *text, int32_t id);
MHLA_API mhla_status mhla_decoder_finish(mhla_decoder *decoder, mhla_chars *text);

/* Trains a byte-level BPE on text files and writes a tokenizer.json that the Python library loads as well. */
typedef struct mhla_tokenizer_training {
    size_t size;
    int vocabulary;             /* pieces in all; 0 = 8192 */
    int min_count;              /* pairs that occur less often are not merged; 0 = 2 */
    const char *const *special; /* [specials] special tokens, which get the first ids; NULL = "<|endoftext|>" */
    int specials;
    const mhla_context *context;
} mhla_tokenizer_training;
MHLA_API mhla_status mhla_tokenizer_train(const char *path, const char *const *files, int count,
                                          const mhla_tokenizer_training *training, mhla_progress_fn progress,
                                          void *user);

/* Documents: the texts of files and folders, in the given order. Files in a folder and its subfolders are sorted by name. A
 * .jsonl file has one document per line, under the key "text". Any other file is plain UTF-8 text, in which a line with a
 * form feed (0x0C) and nothing else ends a document. Empty documents are skipped. Files are mapped, not read. If a text is
 * not UTF-8, MHLA_EDATA names the file and the byte or line. */
typedef struct mhla_documents mhla_documents;
MHLA_API mhla_status mhla_documents_open(mhla_documents **documents, const char *const *paths, int count);
MHLA_API void mhla_documents_free(mhla_documents *documents);
MHLA_API int64_t mhla_documents_count(const mhla_documents *documents);
/* Text i and its length. It is not zero-terminated, and valid until mhla_documents_free. */
MHLA_API const char *mhla_documents_text(const mhla_documents *documents, int64_t i, size_t *bytes);

/* Tokenises documents into a shard, a file of token ids for training (`mhla tokenize`). `tokenizer` is a path for
 * mhla_tokenizer_open, `paths` are for mhla_documents_open. The file appears when it is complete. info may be NULL. */
typedef struct mhla_shard_info {
    size_t size;
    int64_t documents, tokens, bytes; /* of text */
    int vocabulary;
    double seconds;
} mhla_shard_info;
MHLA_API mhla_status mhla_shard_make(const char *path, const char *tokenizer, const char *const *paths, int count,
                                     const mhla_context *context, mhla_shard_info *info, mhla_progress_fn progress,
                                     void *user);
/* The sizes of a shard. */
MHLA_API mhla_status mhla_shard_query(const char *path, mhla_shard_info *info);

/* ---- 2. Language models -------------------------------------------------------------------------------------------
 *
 * On disk a language model is a folder with config.json, model.safetensors (or shards with their index) and the
 * tokenizer's files, as transformers writes it, or one .gguf file. mhla_model_open opens either; mhla_model_open_as also
 * chooses the type of the weights. The rotary embedding of softmax layers may be scaled: by rope_scaling or
 * rope_parameters in config.json with the types linear, llama3, yarn, and longrope with one list of factors; in a GGUF by
 * linear, yarn, and rope_freqs.weight. */

typedef struct mhla_lm_info {
    size_t size;
    int vocabulary, width, layers;
    int64_t context; /* trained length in tokens: M * chunk, or max_position_embeddings; 0 = not known */
    int32_t bos,
        eos; /* from the config, otherwise from the tokenizer; eos is the first if there are several; -1: none */
    const char *attention; /* "mhla", "softmax", "linear", ...; for hybrids "mhla and softmax" */
    const char *storage;   /* type of its matrices */
    size_t weight_bytes;   /* that one token reads */
    int64_t parameters;
    int64_t multiply_adds; /* of one token, mean over a text of `context` tokens */
    size_t state_bytes;    /* of a sequence of `context` tokens */
    const int32_t
        *ends; /* [end_count] tokens that end a text when they are drawn: from generation_config.json, otherwise from */
    int end_count; /* config.json (a GGUF: its keys for eos, eot, eom), otherwise the tokenizer's eos */
    int chunk;     /* tokens in a block of its MHLA layers; 0 without such layers */
} mhla_lm_info;
/* MHLA_EINVAL if the model is not a language model. */
MHLA_API mhla_status mhla_lm_query(const mhla_model *model, mhla_lm_info *info);

/* Writes any language model that mhla_model_open opens to one .gguf file, with its vocabulary. Llama, Mamba and Mamba2 models
 * are written for llama.cpp, others under the architecture "mhla", which this library opens. Of `desc` (may be NULL) only
 * dtype is used, for the matrices: also "q8_0", byte for byte like ggml's reference. NULL: the type that mhla_model_open
 * uses; float16 and 4-bit weights become float32. MHLA_EDATA for a number that is too large for the type; `out` is then not
 * written. */
MHLA_API mhla_status mhla_lm_convert(const char *out, const char *in, const mhla_convert_desc *desc,
                                     mhla_convert_result *result);

/* The tokenizer beside the weights of a language model or text encoder (of a pipeline's component: in the folder
 * ../tokenizer). The model owns it. NULL and a message if there is none. */
MHLA_API const mhla_tokenizer *mhla_lm_tokenizer(const mhla_model *model);

/* mhla_model_store (nn.h) for a language model. */
MHLA_API mhla_status mhla_lm_store(mhla_model *model, const char *storage);

/* One training step on ids [B,T], for measurements and your own loops. *loss (may be NULL) is the mean cross entropy of each
 * token given those before it. The step computes gradients, clips them to norm 1 and applies AdamW with this rate, betas .9
 * and .95, decay .01. The model keeps the optimiser's state for the next step. */
MHLA_API mhla_status mhla_lm_train_step(mhla_model *model, float *loss, const int32_t *ids, int64_t B, int64_t T,
                                        double rate);

/* ---- 3. Sequences -------------------------------------------------------------------------------------------------
 *
 * A sequence is the model's memory of the tokens that it has read: summaries of MHLA layers, keys and values of softmax
 * layers, states of linear ones, and the tokens themselves. Many tokens are read by the parallel form, few by the recurrent
 * form. The results of any split are the same to rounding. Free a sequence before its model. */

typedef struct mhla_sequence mhla_sequence;

typedef struct mhla_sequence_desc {
    size_t size;
    mhla_beyond
        beyond; /* past the trained length (mhla_lm_info.context): ERROR stops. With CLAMP the MHLA layers weigh by distance;
                            with CHUNK they have longer chunks. Softmax and linear layers are the same in both */
    int64_t max_tokens; /* MHLA_BEYOND_CHUNK: the length of the longest sequence. Others: 0, or your own limit */
    const char
        *cache; /* type of keys and values of softmax layers: "float32", or "bfloat16" with half the memory and time to
                           read; NULL: bfloat16 if the matrices are stored as bfloat16 or q8_0, otherwise float32 */
} mhla_sequence_desc;

MHLA_API mhla_status mhla_sequence_create(mhla_sequence **sequence, mhla_model *model, const mhla_sequence_desc *desc);
MHLA_API void mhla_sequence_free(mhla_sequence *sequence);
/* The settings that it was created with. A saved sequence keeps them. */
MHLA_API mhla_status mhla_sequence_query(const mhla_sequence *sequence, mhla_sequence_desc *desc);

MHLA_API int64_t mhla_sequence_tokens(const mhla_sequence *sequence);     /* read so far */
MHLA_API int64_t mhla_sequence_room(const mhla_sequence *sequence);       /* tokens that its policy still allows */
MHLA_API const int32_t *mhla_sequence_ids(const mhla_sequence *sequence); /* their ids; valid until it changes */
MHLA_API size_t mhla_sequence_bytes(const mhla_sequence *sequence);       /* of memory, shared parts included */
/* Bytes of it that the next token reads and writes: all keys and values of softmax layers, the state of a recurrence twice, the
 * mixture and the open chunk of MHLA layers (mean over the tokens of a chunk). Weights (mhla_lm_info) come to it. */
MHLA_API size_t mhla_sequence_step_bytes(const mhla_sequence *sequence);

/* An independent copy. The two share finished summaries. */
MHLA_API mhla_status mhla_sequence_fork(mhla_sequence **copy, const mhla_sequence *sequence);

/* Goes back to the first `tokens` tokens, any number from 0 to the present one. Layers go back to the nearest earlier
 * position that all of them still have, and the next feed reads the tokens after it again. The results are as if the later
 * tokens had never been read. */
MHLA_API mhla_status mhla_sequence_rollback(mhla_sequence *sequence, int64_t tokens);

/* A text of yours that forks and files of the sequence keep, for example the turns of a conversation. It is copied; NULL or
 * "" removes it. The second call returns it, or "" if there is none; it is valid until it changes. */
MHLA_API mhla_status mhla_sequence_set_note(mhla_sequence *sequence, const char *note);
MHLA_API const char *mhla_sequence_note(const mhla_sequence *sequence);

/* Saves to a file, atomically, and loads it. MHLA_EDATA for a file that is truncated, altered, or of another model: it has a
 * fingerprint of the weights. */
MHLA_API mhla_status mhla_sequence_save(const mhla_sequence *sequence, const char *path);
MHLA_API mhla_status mhla_sequence_load(mhla_sequence **sequence, mhla_model *model, const char *path);

/* Tokens for one sequence, and where the predictions go. */
typedef struct mhla_feed {
    size_t size;
    mhla_sequence *sequence;
    const int32_t *ids; /* [count], count >= 1 */
    int64_t count;
    float *logits;          /* [vocabulary] after the last token, or NULL */
    float *all_logits;      /* [count, vocabulary] after each token, or NULL */
    const int32_t *targets; /* [count] or NULL: a token to score after each token; negative: none */
    float *logprobs;        /* [count], of targets: natural logarithms at temperature 1 */
    int32_t *best;          /* [count] the likeliest token after each, or NULL */
} mhla_feed;

/* Reads the tokens of all feeds together. Each sequence may occur once; lengths may differ. MHLA_ERANGE if a sequence would
 * become longer than its policy allows. If the call fails, no sequence has changed. */
MHLA_API mhla_status mhla_lm_feed(mhla_model *model, const mhla_feed *feeds, int64_t count);

/* ---- 4. Sampling --------------------------------------------------------------------------------------------------- */

typedef enum mhla_sampling_order {
    MHLA_SAMPLING_LLAMA = 0, /* penalties, top k, top p, min p, temperature */
    MHLA_SAMPLING_HF         /* penalties, temperature, top k, top p, min p */
} mhla_sampling_order;

typedef struct mhla_bias {
    int32_t id;
    float bias; /* -INFINITY: never */
} mhla_bias;

typedef struct mhla_sampling {
    size_t size;
    double temperature;       /* 0: always the likeliest */
    int top_k;                /* 0 = off */
    double top_p;             /* 0 or 1 = off; more than 1 is refused */
    double min_p;             /* 0 = off */
    double repeat_penalty;    /* 0 or 1 = off */
    int repeat_last;          /* number of last tokens that penalties count; 0 = 64, -1 = all */
    double presence_penalty;  /* subtracted once from the logit of each of these tokens; 0 = off */
    double frequency_penalty; /* subtracted for each occurrence of a token among them; 0 = off */
    const mhla_bias *bias;    /* [biases], added to logits before everything else */
    int biases;
    mhla_sampling_order order;
    uint64_t seed; /* the draw after n tokens is a function of (seed, n) and the logits */
    int min_keep;  /* smallest number of candidates that each stage keeps; 0 = 1 */
} mhla_sampling;

typedef struct mhla_candidate {
    int32_t id;
    float probability;
} mhla_candidate;

/* The candidates that remain of logits [vocabulary], best first (ties: lower id first), with their probabilities. recent [n]
 * are the tokens before. candidates has room for [vocabulary]; *count is the number that remain. */
MHLA_API mhla_status mhla_sample_candidates(const mhla_sampling *sampling, const float *logits, int vocabulary,
                                            const int32_t *recent, int64_t n, mhla_candidate *candidates, int *count);
/* Draws one of them, with draw number `draw` of the seed. */
MHLA_API mhla_status mhla_sample(const mhla_sampling *sampling, const float *logits, int vocabulary,
                                 const int32_t *recent, int64_t n, uint64_t draw, int32_t *id);

/* ---- 5. Generation --------------------------------------------------------------------------------------------------
 *
 * A generation continues one sequence: it feeds a prompt, draws tokens, decodes them, and ends at a stop string or an end
 * token. One step advances any number of generations. You may add and remove generations between steps. */

typedef struct mhla_generation mhla_generation;

typedef struct mhla_generation_desc {
    size_t size;
    const mhla_sampling *sampling; /* NULL: always the likeliest token */
    int64_t max_tokens;            /* 0 = no limit */
    const char *const *stop;       /* [stops] texts that end it; they are not part of the result */
    int stops;
    const int32_t *stop_ids; /* [stop_id_count] tokens that end it, besides the model's end tokens */
    int stop_id_count;
    int ignore_eos; /* never draw the model's end tokens */
    int logprobs;   /* number of likeliest tokens in each piece */
} mhla_generation_desc;

typedef enum mhla_finish { MHLA_FINISH_NONE = 0, MHLA_FINISH_EOS, MHLA_FINISH_STOP, MHLA_FINISH_LENGTH } mhla_finish;

typedef struct mhla_piece {
    size_t size;
    const char *text; /* [bytes] whole characters that became certain in this step; valid until the next step. It
                                  continues the prompt's text, with the space before its first word */
    size_t bytes;
    int32_t id;                /* the token that was drawn; -1: none in this step */
    float logprob;             /* of this token, at temperature 1, before penalties, biases and cuts */
    const mhla_candidate *top; /* [tops] the likeliest tokens; `probability` has log-probabilities */
    int tops;
    mhla_finish finish;     /* not MHLA_FINISH_NONE: this is the last piece */
    const char *stopped_by; /* MHLA_FINISH_STOP: which text */
} mhla_piece;

/* Continues `sequence` (the caller's, which must outlive it) with prompt [count], count >= 1 unless the sequence has
 * tokens already. The description is copied. */
MHLA_API mhla_status mhla_generation_create(mhla_generation **generation, mhla_sequence *sequence,
                                            const int32_t *prompt, int64_t count, const mhla_generation_desc *desc);
MHLA_API void mhla_generation_free(mhla_generation *generation);

/* Draws one token for each generation that is not finished, after reading the pending tokens of all of them together. If a
 * sequence's policy allows no more tokens, its generation ends with MHLA_FINISH_LENGTH. MHLA_ERANGE: a prompt does not fit.
 * MHLA_EDATA: no token can be drawn (logits are NaN, or all are forbidden); the other generations have advanced, and the
 * piece of this one has no token and is not finished. */
MHLA_API mhla_status mhla_generation_step(mhla_model *model, mhla_generation *const *generations, int64_t n);
/* The result of the last step. MHLA_EINVAL if piece->size is wrong. */
MHLA_API mhla_status mhla_generation_piece(const mhla_generation *generation, mhla_piece *piece);
MHLA_API mhla_finish mhla_generation_finish(const mhla_generation *generation);

/* ---- 6. Chat templates ----------------------------------------------------------------------------------------------- */

typedef struct mhla_message_desc {
    const char *role, *content; /* "system", "user", "assistant" */
} mhla_message_desc;

/* Appends a conversation formatted by the tokenizer's chat template. Encode it without MHLA_ENCODE_SPECIAL. `prompt` adds the
 * opening of the assistant's turn. MHLA_ENOTSUP if the template uses a construct that is not supported, which the message
 * names, or if there is no template. */
MHLA_API mhla_status mhla_chat_render(const mhla_tokenizer *tokenizer, mhla_chars *text,
                                      const mhla_message_desc *messages, int count, int prompt);
/* The same with a template that you pass, for tests and other tokenizers. */
MHLA_API mhla_status mhla_template_render(const char *source, mhla_chars *text, const mhla_message_desc *messages,
                                          int count, int prompt, const char *bos, const char *eos);

/* ---- 7. Evaluation ------------------------------------------------------------------------------------------------------
 *
 * By the conventions of lm-evaluation-harness. */

typedef struct mhla_perplexity {
    size_t size;
    int64_t documents, tokens, words, bytes;
    double loglikelihood; /* sum over all tokens */
    double word_perplexity, byte_perplexity, bits_per_byte, token_perplexity;
    int64_t bucket; /* positions in a bucket */
    int buckets;
    double *bucket_bits;    /* [buckets] bits per token at that distance from the start of a window */
    int64_t *bucket_tokens; /* free both with mhla_perplexity_free */
    double seconds;
} mhla_perplexity;

typedef struct mhla_perplexity_desc {
    size_t size;
    int64_t window;     /* tokens in a window (max_length); 0 = the model's context */
    int64_t bucket;     /* 0 = window / 16 */
    mhla_beyond beyond; /* for windows past the trained length */
    int64_t limit;      /* largest number of tokens; 0 = all */
    int batch;          /* windows in a batch, at most 64; 0 = 4096 tokens in all */
} mhla_perplexity_desc;

/* Rolling windows over documents [count] of bytes[i] bytes of UTF-8. */
MHLA_API mhla_status mhla_lm_perplexity(mhla_model *model, mhla_perplexity *result, const char *const *documents,
                                        const size_t *bytes, int64_t count, const mhla_perplexity_desc *desc,
                                        mhla_progress_fn progress, void *user);
MHLA_API void mhla_perplexity_free(mhla_perplexity *result);

typedef struct mhla_choices {
    size_t size;
    int64_t questions, right, right_norm; /* by summed log-likelihood (acc), and divided by characters (acc_norm) */
    double seconds;
    int64_t greedy;       /* questions whose right choice is the model's greedy continuation */
    double loglikelihood; /* sum over the right choices */
    double deviation;     /* their standard deviation, over questions - 1 */
} mhla_choices;

/* The result of one question, for mhla_choice_fn. */
typedef struct mhla_choice_event {
    size_t size;
    int64_t question;
    int choices, gold;           /* gold -1: unknown */
    const double *loglikelihood; /* [choices] */
    const double *normalised;    /* [choices] divided by the characters of the choice */
    const int *greedy;           /* [choices] 1: every token of the choice is the likeliest */
    int best, best_normalised;   /* the model's answers, by acc and by acc_norm; -1: another word (MHLA_TASK_WORD) */
    const char *context;         /* the question; NULL if the choices are contexts, each followed by `ending` */
    const char *const *texts;    /* [choices] */
    const char *ending;          /* NULL unless the choices are contexts */
} mhla_choice_event;
typedef void (*mhla_choice_fn)(void *user, const mhla_choice_event *event);

/* Multiple choice from JSON lines: {"context": "...", "choices": ["...", ...], "gold": 0, "target_delimiter": " "}. Other
 * names of data files work as well ("query", "question", "answer", "label": see docs/evaluation.md). So do contexts with one
 * ending, {"contexts": ["...", ...], "ending": "...", "gold": 0}, and WinoGrande's sentences with a gap. limit: 0 = all. */
MHLA_API mhla_status mhla_lm_choices(mhla_model *model, mhla_choices *result, const char *path, int64_t limit,
                                     mhla_choice_fn report, void *user);

/* Tasks by their names in lm-evaluation-harness: piqa, arc_easy, arc_challenge, openbookqa, boolq, winogrande, mmlu,
 * lambada_openai, wikitext. Their files are JSON lines as published on the Hugging Face hub (see docs/evaluation.md). */
typedef enum mhla_task_kind {
    MHLA_TASK_CHOICES = 0, /* questions with choices: acc, for some tasks acc_norm */
    MHLA_TASK_WORD, /* the last word of a text is the only choice: perplexity is exp(-loglikelihood / questions), acc is
                              greedy / questions */
    MHLA_TASK_PAGES /* perplexity of whole pages */
} mhla_task_kind;

typedef struct mhla_task_info {
    size_t size;
    const char *name, *source; /* source: the dataset on the hub */
    mhla_task_kind kind;
    int normalised; /* acc_norm is one of its measures */
} mhla_task_info;
/* MHLA_EINVAL for an unknown task; the message lists all tasks. */
MHLA_API mhla_status mhla_task_query(const char *task, mhla_task_info *info);

/* A task with questions: paths [count], the first `limit` questions of all files (0 = all). Every row is checked before the
 * first question is evaluated: MHLA_EDATA names file, line and key. */
MHLA_API mhla_status mhla_lm_task(mhla_model *model, mhla_choices *result, const char *task, const char *const *paths,
                                  int count, int64_t limit, mhla_choice_fn report, void *user);
/* A task with pages. desc->limit counts pages; a window of 0 is one token more than the model's context, which is then read
 * whole. Words and bytes are those of the file's text; the model reads it detokenised. */
MHLA_API mhla_status mhla_lm_task_pages(mhla_model *model, mhla_perplexity *result, const char *task,
                                        const char *const *paths, int count, const mhla_perplexity_desc *desc,
                                        mhla_progress_fn progress, void *user);

/* LongBench: a folder with its data (TASK.jsonl, or data/TASK.jsonl) and its dataset2prompt.json and dataset2maxlen.json. The
 * middle of a prompt that is too long is cut out. Answers are greedy and at most as long as the task's limit. Scores are
 * LongBench's; docs/evaluation.md lists the differences. */
enum { MHLA_LONGBENCH_TASKS = 21 };

typedef struct mhla_longbench_row {
    const char *task, *group, *metric; /* "qasper", "single-document QA", "F1": static texts */
    int paper;                         /* 1: one of the 14 tasks that the paper averages */
    int64_t questions, cut;            /* cut: number of prompts that were cut */
    double score;                      /* mean, 0 to 100 */
    double error;                      /* its standard error */
} mhla_longbench_row;

typedef struct mhla_longbench_result {
    size_t size;
    mhla_longbench_row rows[MHLA_LONGBENCH_TASKS]; /* [count] in the order of LongBench's table */
    int count;
    double seconds;
} mhla_longbench_result;

typedef struct mhla_longbench_desc {
    size_t size;
    int64_t context;    /* tokens of a prompt and its answer; 0 = the model's context */
    mhla_beyond beyond; /* if that is past the trained length */
    int64_t limit;      /* questions of each task; 0 = all */
} mhla_longbench_desc;

typedef struct mhla_longbench_event {
    size_t size;
    const char *task;
    int64_t question, questions; /* its number, from 0; all of this task */
    const char *prompt;          /* as the model reads it */
    const char *answer;          /* the model's answer, as it is scored */
    const char *const *wanted;   /* [wanteds] right answers */
    int wanteds;
    double score; /* 0 to 1 */
} mhla_longbench_event;
typedef void (*mhla_longbench_fn)(void *user, const mhla_longbench_event *event);

/* Every row of every file is checked before the first prompt is read: MHLA_EDATA names file, line and key. */
MHLA_API mhla_status mhla_lm_longbench(mhla_model *model, mhla_longbench_result *result, const char *folder,
                                       const mhla_longbench_desc *desc, mhla_longbench_fn report, void *user);

/* Needle in a haystack. A long text, made from the seed, has a sentence with a number at some depth, and ends with the
 * beginning of this sentence. The model finds the needle if the right number has the largest log-likelihood of ten; chance
 * is 10 %. A model without a tokenizer gets the same task in token ids: two ids and a third that follows them. Zero is the
 * default of every field. */
typedef struct mhla_needle_desc {
    size_t size;
    const int64_t
        *lengths;         /* [length_count] tokens of a text with its question; NULL: a quarter, half and all of the */
    int length_count;     /* model's context, or 512, 1024 and 2048 if it has none */
    const double *depths; /* [depth_count] percent of the text before the needle; NULL: 0, 25, 50, 75, 100 */
    int depth_count;
    int samples; /* texts for each length and depth; 0 = 10. All depths of a length have the same texts and numbers */
    uint64_t seed;
    mhla_beyond beyond; /* for lengths past the trained one */
} mhla_needle_desc;

typedef struct mhla_needle_cell {
    int64_t length;
    double depth;
    int64_t asked, right;
    double probability; /* mean probability of the right number, normalised over the ten */
} mhla_needle_cell;

typedef struct mhla_needle_result {
    size_t size;
    mhla_needle_cell *cells; /* [length_count, depth_count]; free with mhla_needle_free */
    int length_count, depth_count;
    int ids; /* the model has no tokenizer: token ids instead of text */
    double seconds;
} mhla_needle_result;

/* MHLA_ERANGE names a length that is too short for the needle and its question, or too long for the model. */
MHLA_API mhla_status mhla_lm_needle(mhla_model *model, mhla_needle_result *result, const mhla_needle_desc *desc,
                                    mhla_progress_fn progress, void *user);
MHLA_API void mhla_needle_free(mhla_needle_result *result);
/* Writes a page of HTML with the heat map and its numbers; `title` names the model. */
MHLA_API mhla_status mhla_needle_page(const char *path, const mhla_needle_result *result, const char *title);

/* Multi-query associative recall (MQAR) by the recipe of zoology, at one width: a small decoder learns to output the value
 * that followed a key earlier in the same sequence (docs/mqar.md). All data is made from the seed. Training alternates
 * between the lengths. Zero is the default of every field; the comments give the defaults. */
typedef struct mhla_mqar_desc {
    size_t size;
    const char *attention;    /* "mhla" (NULL), "softmax", "linear", "gla", .. */
    int vocabulary;           /* 8192 */
    int width, layers, heads; /* 64, 2, 2 */
    int chunk;                /* of MHLA layers: 16 tokens; the longest sequence decides the number of blocks */
    int conv;                 /* width of a causal convolution of q, k, v; 0 = none. Softmax attention has none */
    int64_t steps;            /* largest number of updates: 4000 */
    int64_t tokens;           /* in a batch, approximately: 8192 */
    double rate;              /* peak learning rate: 0.005; it falls to 0 along a cosine */
    int64_t tests;            /* test sequences of each length: 250 */
    uint64_t seed;
    const mhla_context *context;
    const char *const
        *settings; /* [setting_count] more config keys, "state_size=16"; if a key is repeated, the last value counts */
    int setting_count;
    int dense; /* sequences as short as the pairs allow, almost without filler: 64 tokens for 4, 8 and 16 pairs, 256 for 64 */
} mhla_mqar_desc;

typedef struct mhla_mqar_row {
    int length, pairs;    /* tokens in a sequence, pairs of key and value in it */
    int64_t asked, right; /* queries; those whose value is the likeliest of all tokens */
} mhla_mqar_row;

enum { MHLA_MQAR_ROWS = 4 };

typedef struct mhla_mqar_result {
    size_t size;
    mhla_mqar_row rows[MHLA_MQAR_ROWS];
    int64_t parameters, steps; /* steps: fewer than the limit if all rows were right earlier */
    double loss, seconds;      /* loss: mean of the last steps */
} mhla_mqar_result;

typedef struct mhla_mqar_event {
    size_t size;
    int64_t step, steps;
    double loss;       /* of this step's batch */
    int length, pairs; /* of its sequences */
} mhla_mqar_event;
typedef void (*mhla_mqar_fn)(void *user, const mhla_mqar_event *event);

/* Trains and tests. report may be NULL. */
MHLA_API mhla_status mhla_mqar_run(mhla_mqar_result *result, const mhla_mqar_desc *desc, mhla_mqar_fn report,
                                   void *user);

/* ---- 8. Text encoders -----------------------------------------------------------------------------------------------
 *
 * A text encoder turns each token of a text into a row of numbers, on which an image or video model is conditioned. Every
 * language model is one: its rows are the hidden states after the last norm. Rows of a text do not depend on the other texts
 * of a call, nor on the number of threads. */

typedef struct mhla_encoder_desc {
    size_t size;
    const mhla_tokenizer *tokenizer; /* NULL: mhla_lm_tokenizer(model) */
    int64_t longest; /* largest number of rows per text; 0: the model's limit. Longer texts are truncated */
    const char *
        instruction; /* put in front of every text, or NULL. As in SANA, the model reads it, but the rows of all its tokens
                                except the first and the last are left out */
} mhla_encoder_desc;

typedef struct mhla_text_rows {
    size_t size;
    int64_t texts, longest, width; /* longest: the largest of lengths */
    float *rows;                   /* [texts,longest,width], zeros after each text */
    int32_t *lengths;              /* [texts] rows of each text */
    int64_t *cut;                  /* [texts] tokens that did not fit; free all three with mhla_text_rows_free */
} mhla_text_rows;

/* Rows of texts [count], in UTF-8. desc may be NULL. MHLA_EINVAL if the model is not a text encoder. */
MHLA_API mhla_status mhla_text_encode(mhla_model *model, mhla_text_rows *rows, const char *const *texts, int64_t count,
                                      const mhla_encoder_desc *desc);
MHLA_API void mhla_text_rows_free(mhla_text_rows *rows);
/* The same for tokens: rows [B,T,width] of ids [B,T], of which the first lengths [B] count (NULL: all), zeros after them. */
MHLA_API mhla_status mhla_text_encode_ids(mhla_model *model, float *rows, const int32_t *ids, const int32_t *lengths,
                                          int64_t B, int64_t T);

typedef struct mhla_text_encoder_info {
    size_t size;
    int vocabulary, width; /* width: numbers in a row */
    int64_t longest;       /* largest number of tokens in a text; 0: any number */
} mhla_text_encoder_info;
MHLA_API mhla_status mhla_text_encoder_query(const mhla_model *model, mhla_text_encoder_info *info);

#ifdef __cplusplus
}
#endif
#endif
