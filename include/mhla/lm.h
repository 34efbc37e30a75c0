/* lm.h - language models on top of nn.h: tokens, sequences, generation, evaluation. What a program or a server needs.
 *
 * This header is the manual. It goes from text to numbers and back:
 *
 *   1. tokenizers                          4. sampling
 *   2. language models                     5. generation: many sequences, one step at a time
 *   3. sequences: what a model remembers   6. chat templates
 *                                          7. evaluation
 *
 * Manners are those of mhla.h and nn.h: statuses and mhla_message(), structs that begin with their size, zero is the
 * default, freeing NULL is legal. A model is an mhla_model of nn.h (mhla_model_open opens both kinds); one thread at a
 * time may use it and the sequences made of it. A tokenizer is immutable and may be shared by threads. */
#ifndef MHLA_LM_H
#define MHLA_LM_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Tokenizers ------------------------------------------------------------------------------------------------ */

typedef struct mhla_tokenizer mhla_tokenizer;

/* Lists that grow: zero is the empty one, calls append, the memory is kept until _free. text is not ended by a zero. */
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
 * first of these that it has, in this order. MHLA_ENOTSUP names the part of the file that is of a kind not known here. */
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

/* The piece of an id as the file spells it ("\u2581the"), or NULL; and the way back, -1 for none. */
MHLA_API const char *mhla_tokenizer_piece(const mhla_tokenizer *tokenizer, int32_t id);
MHLA_API int32_t mhla_tokenizer_id(const mhla_tokenizer *tokenizer, const char *piece);

enum {
    MHLA_ENCODE_SPECIAL = 1, /* what the post-processor adds (<s> in front) */
    MHLA_ENCODE_PLAIN = 2,   /* special tokens that are spelled out in the text are text, for text of strangers */
    MHLA_ENCODE_TRUNCATE = 4 /* no more ids than the tokenizer's model takes (CLIP: 77); an end token stays the last */
};
/* Appends the ids of `bytes` bytes of UTF-8. MHLA_EDATA names the byte where the text is not UTF-8. */
MHLA_API mhla_status mhla_tokenizer_encode(const mhla_tokenizer *tokenizer, mhla_ids *ids, const char *text,
                                           size_t bytes, unsigned flags);

enum { MHLA_DECODE_SKIP_SPECIAL = 1 };
/* Appends the text of ids, as the reference libraries print it. MHLA_EINVAL for an id out of range. */
MHLA_API mhla_status mhla_tokenizer_decode(const mhla_tokenizer *tokenizer, mhla_chars *text, const int32_t *ids,
                                           int64_t count, unsigned flags);

/* The same one id at a time: a decoder hands out text as soon as it is certain, never part of a character. What _push
 * and _finish append, one after the other, is what _decode of all ids would. */
typedef struct mhla_decoder mhla_decoder;
MHLA_API mhla_status mhla_decoder_create(mhla_decoder **decoder, const mhla_tokenizer *tokenizer, unsigned flags);
MHLA_API void mhla_decoder_free(mhla_decoder *decoder);
MHLA_API mhla_status mhla_decoder_push(mhla_decoder *decoder, mhla_chars *text, int32_t id);
MHLA_API mhla_status mhla_decoder_finish(mhla_decoder *decoder, mhla_chars *text);

/* Trains a byte-level BPE on text files and writes a tokenizer.json that the Python library loads as well. */
typedef struct mhla_tokenizer_training {
    size_t size;
    int vocabulary;             /* pieces in all; 0 = 8192 */
    int min_count;              /* a pair seen less often is not merged; 0 = 2 */
    const char *const *special; /* [specials] special tokens, the first ids; NULL = "<|endoftext|>" */
    int specials;
    const mhla_context *context;
} mhla_tokenizer_training;
MHLA_API mhla_status mhla_tokenizer_train(const char *path, const char *const *files, int count,
                                          const mhla_tokenizer_training *training, mhla_progress_fn progress,
                                          void *user);

/* Documents: the texts of files and folders, in the order given; a folder's files in the order of their names, folders
 * inside of it included. A .jsonl file has a document per line, its key "text"; any other file is plain UTF-8 text, in which
 * a line that holds a form feed (0x0C) and nothing else ends a document. Empty documents are left out. Files are mapped, not read.
 * MHLA_EDATA names file and byte or line where a text is not UTF-8. */
typedef struct mhla_documents mhla_documents;
MHLA_API mhla_status mhla_documents_open(mhla_documents **documents, const char *const *paths, int count);
MHLA_API void mhla_documents_free(mhla_documents *documents);
MHLA_API int64_t mhla_documents_count(const mhla_documents *documents);
/* Text i and its length; not ended by a zero, lives as long as the documents do. */
MHLA_API const char *mhla_documents_text(const mhla_documents *documents, int64_t i, size_t *bytes);

/* Tokenises documents into a shard, the file that training maps instead of text (`mhla tokenize`). `tokenizer` is a path
 * as mhla_tokenizer_open takes it, `paths` as mhla_documents_open does. The file appears when it is complete. info may
 * be NULL. */
typedef struct mhla_shard_info {
    size_t size;
    int64_t documents, tokens, bytes; /* of text */
    int vocabulary;
    double seconds;
} mhla_shard_info;
MHLA_API mhla_status mhla_shard_make(const char *path, const char *tokenizer, const char *const *paths, int count,
                                     const mhla_context *context, mhla_shard_info *info, mhla_progress_fn progress,
                                     void *user);
/* What a shard holds. */
MHLA_API mhla_status mhla_shard_query(const char *path, mhla_shard_info *info);

/* ---- 2. Language models -------------------------------------------------------------------------------------------
 *
 * On the disk: a folder with config.json, model.safetensors (or shards with their index) and the tokenizer's files, as the
 * Python world has them; or one .gguf file. mhla_model_open opens either; mhla_model_open_as says how weights are kept.
 * The rotary embedding of softmax layers may be scaled: config.json's rope_scaling or rope_parameters of the types linear,
 * llama3, yarn, and longrope with one list of factors; a GGUF's linear, yarn, and rope_freqs.weight. */

typedef struct mhla_lm_info {
    size_t size;
    int vocabulary, width, layers;
    int64_t context;  /* tokens it was trained for: M * chunk, or max_position_embeddings; 0 = no limit known */
    int32_t bos, eos; /* -1: none. Of the config, else of the tokenizer; eos is the first where there are several */
    const char *attention; /* "mhla", "softmax", "linear", or "mhla and softmax" of a hybrid */
    const char *storage;   /* of its matrices */
    size_t weight_bytes;   /* that one token reads */
    int64_t parameters;
    int64_t multiply_adds; /* of one token, mean over a text of `context` tokens */
    size_t state_bytes;    /* that a sequence of `context` tokens takes */
    const int32_t
        *ends;     /* [end_count] tokens that end a text when they are drawn, the model's: of generation_config.json, */
    int end_count; /* else of config.json (or the GGUF's keys of eos, eot, eom), else the tokenizer's eos */
    int chunk;     /* tokens of a block of its MHLA layers; 0 without such layers */
} mhla_lm_info;
/* MHLA_EINVAL if the model is no language model. */
MHLA_API mhla_status mhla_lm_query(const mhla_model *model, mhla_lm_info *info);

/* Writes a language model, whatever mhla_model_open opens, to one .gguf file: a Llama as llama.cpp has it, others under the
 * architecture "mhla", which this library opens again; the vocabulary goes along. Of `desc` (may be NULL) dtype counts, for the
 * matrices: also "q8_0", byte for byte what ggml's reference quantises. NULL: as mhla_model_open keeps them, float16 and
 * four bits as float32. What is too large for the type is MHLA_EDATA, and nothing is left of `out` then. */
MHLA_API mhla_status mhla_lm_convert(const char *out, const char *in, const mhla_convert_desc *desc,
                                     mhla_convert_result *result);

/* The tokenizer beside the model's weights; the model's. NULL and a message if there is none. */
MHLA_API const mhla_tokenizer *mhla_lm_tokenizer(const mhla_model *model);

/* mhla_model_store (nn.h) of a language model. */
MHLA_API mhla_status mhla_lm_store(mhla_model *model, const char *storage);

/* One step of training on ids [B,T], for measuring and for loops of one's own: *loss (may be NULL) is the mean cross entropy
 * of each token after those before it; then gradients, clipped to norm 1, and AdamW with this rate, betas .9 and .95,
 * decay .01. The model keeps the optimiser's state for the next step. */
MHLA_API mhla_status mhla_lm_train_step(mhla_model *model, float *loss, const int32_t *ids, int64_t B, int64_t T,
                                        double rate);

/* ---- 3. Sequences -------------------------------------------------------------------------------------------------
 *
 * A sequence is what a model remembers of some tokens: summaries of MHLA layers, keys and values of softmax layers, sums
 * of linear ones, and the tokens themselves. Reading uses the parallel form for many tokens and the recurrent one for
 * few; results are the same to rounding in any split. A sequence belongs to its model and must be freed before it. */

typedef struct mhla_sequence mhla_sequence;

typedef struct mhla_sequence_desc {
    size_t size;
    mhla_beyond
        beyond; /* past the trained length (mhla_lm_info.context): an error, or it goes on, where MHLA layers weigh
                            by distance (clamp) or have longer chunks; softmax and linear layers go on as they are */
    int64_t max_tokens; /* MHLA_BEYOND_CHUNK: the longest sequence to come. Others: 0, or a limit of one's own */
    const char
        *cache; /* keys and values of softmax layers as "float32" or "bfloat16", which takes half the memory and is read
                           twice as fast; NULL: bfloat16 where the matrices are kept as bfloat16 or q8_0 */
} mhla_sequence_desc;

MHLA_API mhla_status mhla_sequence_create(mhla_sequence **sequence, mhla_model *model, const mhla_sequence_desc *desc);
MHLA_API void mhla_sequence_free(mhla_sequence *sequence);
/* What it was made with, which a file keeps: one that was loaded goes on by the policy that it began with. */
MHLA_API mhla_status mhla_sequence_query(const mhla_sequence *sequence, mhla_sequence_desc *desc);

MHLA_API int64_t mhla_sequence_tokens(const mhla_sequence *sequence); /* read so far */
MHLA_API int64_t mhla_sequence_room(const mhla_sequence *sequence);   /* tokens that its policy still lets it read */
MHLA_API const int32_t *mhla_sequence_ids(const mhla_sequence *sequence); /* which; valid until it changes */
MHLA_API size_t mhla_sequence_bytes(const mhla_sequence *sequence);       /* of memory, shared parts included */

/* A second sequence that goes its own way from here. Finished summaries are shared. */
MHLA_API mhla_status mhla_sequence_fork(mhla_sequence **copy, const mhla_sequence *sequence);

/* Back to the first `tokens` tokens, any number from 0 to what it has: layers go back to the nearest place that all of
 * them still have, and the next feed reads the tokens from there on again, with its own. The results are as if the rest
 * had never been read. */
MHLA_API mhla_status mhla_sequence_rollback(mhla_sequence *sequence, int64_t tokens);

/* A text of the caller's that goes with a sequence, to its forks, its file and back: who said what in a conversation, say.
 * NULL or "" takes it away; it is copied. The other call gives it, "" where there is none; valid until it changes. */
MHLA_API mhla_status mhla_sequence_set_note(mhla_sequence *sequence, const char *note);
MHLA_API const char *mhla_sequence_note(const mhla_sequence *sequence);

/* To a file, written atomically, and back. Loading refuses with MHLA_EDATA what is truncated, altered, or of another
 * model: a state knows a fingerprint of the weights. */
MHLA_API mhla_status mhla_sequence_save(const mhla_sequence *sequence, const char *path);
MHLA_API mhla_status mhla_sequence_load(mhla_sequence **sequence, mhla_model *model, const char *path);

/* Tokens for one sequence, and what is wanted of the predictions after each of them. */
typedef struct mhla_feed {
    size_t size;
    mhla_sequence *sequence;
    const int32_t *ids; /* [count], count >= 1 */
    int64_t count;
    float *logits;          /* [vocabulary] after the last of them, or NULL */
    float *all_logits;      /* [count, vocabulary] after each, or NULL */
    const int32_t *targets; /* [count] or NULL: whose log-probability after each token is wanted; negative: none */
    float *logprobs;        /* [count], of targets: natural logarithms at temperature 1 */
    int32_t *best;          /* [count] the likeliest token after each, or NULL */
} mhla_feed;

/* Reads the tokens of all feeds in one go; sequences differ from each other, lengths are free. MHLA_ERANGE: a sequence
 * would go beyond what its policy permits. No sequence has changed if it fails. */
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
    double temperature;       /* 0: the likeliest, always */
    int top_k;                /* 0 = off */
    double top_p;             /* 0 or 1 = off; more than 1 is refused */
    double min_p;             /* 0 = off */
    double repeat_penalty;    /* 0 or 1 = off */
    int repeat_last;          /* how many tokens back; 0 = 64, -1 = all */
    double presence_penalty;  /* subtracted once from the logit of each of those tokens, */
    double frequency_penalty; /* and once for each time that it is among them; 0 = off */
    const mhla_bias *bias;    /* [biases], added to logits before everything else */
    int biases;
    mhla_sampling_order order;
    uint64_t seed; /* what is drawn after n tokens is a function of (seed, n) and the logits */
    int min_keep;  /* so many survive each stage at least; 0 = 1 */
} mhla_sampling;

typedef struct mhla_candidate {
    int32_t id;
    float probability;
} mhla_candidate;

/* What survives of logits [vocabulary], best first (ties: lower id first), with their probabilities; recent [n] are the
 * tokens before. candidates [vocabulary]; *count is how many survive. */
MHLA_API mhla_status mhla_sample_candidates(const mhla_sampling *sampling, const float *logits, int vocabulary,
                                            const int32_t *recent, int64_t n, mhla_candidate *candidates, int *count);
/* One of them, by draw `draw` of the seed. */
MHLA_API mhla_status mhla_sample(const mhla_sampling *sampling, const float *logits, int vocabulary,
                                 const int32_t *recent, int64_t n, uint64_t draw, int32_t *id);

/* ---- 5. Generation --------------------------------------------------------------------------------------------------
 *
 * A generation continues one sequence: it feeds a prompt, draws tokens, decodes them, watches for stop strings and the end.
 * One step advances any number of them at once; they may come and go between steps. */

typedef struct mhla_generation mhla_generation;

typedef struct mhla_generation_desc {
    size_t size;
    const mhla_sampling *sampling; /* NULL: the likeliest token, always */
    int64_t max_tokens;            /* 0 = until something else ends it */
    const char *const *stop;       /* [stops] texts that end it and are not part of the result */
    int stops;
    const int32_t *stop_ids; /* [stop_id_count] tokens that end it, besides the model's own */
    int stop_id_count;
    int ignore_eos; /* the model's own tokens for the end are never drawn */
    int logprobs;   /* so many likeliest tokens with each piece */
} mhla_generation_desc;

typedef enum mhla_finish { MHLA_FINISH_NONE = 0, MHLA_FINISH_EOS, MHLA_FINISH_STOP, MHLA_FINISH_LENGTH } mhla_finish;

typedef struct mhla_piece {
    size_t size;
    const char *text; /* [bytes] whole characters that became certain by this step; valid until the next step. It
                                  is text that follows the prompt's: the space before its first word is there */
    size_t bytes;
    int32_t id;                /* the token that was drawn; -1: none in this step */
    float logprob;             /* its own, at temperature 1, before any sampling change */
    const mhla_candidate *top; /* [tops] the likeliest, `probability` holding log-probabilities */
    int tops;
    mhla_finish finish;     /* after this piece; then nothing follows */
    const char *stopped_by; /* MHLA_FINISH_STOP: which text */
} mhla_piece;

/* Continues `sequence` (the caller's, which must outlive it) with prompt [count], count >= 1 unless the sequence has
 * tokens already. The description is copied. */
MHLA_API mhla_status mhla_generation_create(mhla_generation **generation, mhla_sequence *sequence,
                                            const int32_t *prompt, int64_t count, const mhla_generation_desc *desc);
MHLA_API void mhla_generation_free(mhla_generation *generation);

/* One token for each generation that is not finished: pending tokens of all are read together, then each draws. A sequence
 * that its policy lets grow no further ends its generation by MHLA_FINISH_LENGTH. MHLA_ERANGE: a prompt does not fit;
 * MHLA_EDATA: no token can be drawn (logits that are no numbers, or all of them forbidden). The other generations have
 * advanced then; the piece of that one, which is not finished, has no token. */
MHLA_API mhla_status mhla_generation_step(mhla_model *model, mhla_generation *const *generations, int64_t n);
/* What the last step gave. MHLA_EINVAL where piece->size is wrong. */
MHLA_API mhla_status mhla_generation_piece(const mhla_generation *generation, mhla_piece *piece);
MHLA_API mhla_finish mhla_generation_finish(const mhla_generation *generation);

/* ---- 6. Chat templates ----------------------------------------------------------------------------------------------- */

typedef struct mhla_message_desc {
    const char *role, *content; /* "system", "user", "assistant" */
} mhla_message_desc;

/* Appends the text that the template of the tokenizer makes of a conversation, ready for _encode without
 * MHLA_ENCODE_SPECIAL; `prompt`: with the opening of the assistant's turn. MHLA_ENOTSUP names what a template uses that is
 * not known here, and says so where there is no template. */
MHLA_API mhla_status mhla_chat_render(const mhla_tokenizer *tokenizer, mhla_chars *text,
                                      const mhla_message_desc *messages, int count, int prompt);
/* The same of a template in hand, for tests and other tokenizers. */
MHLA_API mhla_status mhla_template_render(const char *source, mhla_chars *text, const mhla_message_desc *messages,
                                          int count, int prompt, const char *bos, const char *eos);

/* ---- 7. Evaluation ------------------------------------------------------------------------------------------------------
 *
 * By the conventions of lm-evaluation-harness. */

typedef struct mhla_perplexity {
    size_t size;
    int64_t documents, tokens, words, bytes;
    double loglikelihood; /* the sum over all */
    double word_perplexity, byte_perplexity, bits_per_byte, token_perplexity;
    int64_t bucket; /* tokens of a bucket of positions */
    int buckets;
    double *bucket_bits;    /* [buckets] bits per token at that distance from the start of a window */
    int64_t *bucket_tokens; /* free both with mhla_perplexity_free */
    double seconds;
} mhla_perplexity;

typedef struct mhla_perplexity_desc {
    size_t size;
    int64_t window;     /* tokens of a window (max_length); 0 = the model's context */
    int64_t bucket;     /* 0 = window / 16 */
    mhla_beyond beyond; /* for windows past the trained length */
    int64_t limit;      /* at most so many tokens; 0 = all */
    int batch;          /* windows at once, 64 at most; 0 = as many as make 4096 tokens */
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
    int64_t greedy;       /* questions whose right choice is what the model itself would write */
    double loglikelihood; /* of the right choices: the sum, */
    double deviation;     /* and their standard deviation, over questions - 1 */
} mhla_choices;

/* What is told about each question, if the caller wants to know. */
typedef struct mhla_choice_event {
    size_t size;
    int64_t question;
    int choices, gold;           /* gold -1: unknown */
    const double *loglikelihood; /* [choices] */
    const double *normalised;    /* [choices] divided by the characters of the choice */
    const int *greedy;           /* [choices] every token the likeliest */
    int best, best_normalised;   /* the model's answers, by acc and by acc_norm; -1: another word (MHLA_TASK_WORD) */
    const char *context;         /* the question; NULL where each choice is a context and `ending` follows it */
    const char *const *texts;    /* [choices] */
    const char *ending;          /* NULL but there */
} mhla_choice_event;
typedef void (*mhla_choice_fn)(void *user, const mhla_choice_event *event);

/* Multiple choice from JSON lines: {"context": "...", "choices": ["...", ...], "gold": 0, "target_delimiter": " "}; also
 * the names that data files use ("query", "question", "answer", "label": see docs/evaluation.md); or contexts that one ending
 * follows: {"contexts": ["...", ...], "ending": "...", "gold": 0}, WinoGrande's sentences with a gap. limit: 0 = all. */
MHLA_API mhla_status mhla_lm_choices(mhla_model *model, mhla_choices *result, const char *path, int64_t limit,
                                     mhla_choice_fn report, void *user);

/* Tasks by their names in lm-evaluation-harness, from files as the Hugging Face hub publishes them, JSON lines (docs/evaluation.md
 * lists them): piqa, arc_easy, arc_challenge, openbookqa, boolq, winogrande, mmlu, lambada_openai, wikitext. */
typedef enum mhla_task_kind {
    MHLA_TASK_CHOICES = 0, /* questions with choices: acc, for some tasks acc_norm */
    MHLA_TASK_WORD, /* the last word of a text, the only choice: perplexity is exp(-loglikelihood / questions), acc is
                              greedy / questions */
    MHLA_TASK_PAGES /* perplexity of whole pages */
} mhla_task_kind;

typedef struct mhla_task_info {
    size_t size;
    const char *name, *source; /* source: the dataset on the hub */
    mhla_task_kind kind;
    int normalised; /* acc_norm is one of its measures */
} mhla_task_info;
/* MHLA_EINVAL with the names of all tasks for one that is not known. */
MHLA_API mhla_status mhla_task_query(const char *task, mhla_task_info *info);

/* A task with questions: files [count], the first `limit` questions of all (0 = every one). Every row is checked before the first
 * question is asked: MHLA_EDATA names file, line and key. */
MHLA_API mhla_status mhla_lm_task(mhla_model *model, mhla_choices *result, const char *task, const char *const *paths,
                                  int count, int64_t limit, mhla_choice_fn report, void *user);
/* A task with pages. desc->limit counts pages. Words and bytes are those of the file's text; the model reads it detokenised. */
MHLA_API mhla_status mhla_lm_task_pages(mhla_model *model, mhla_perplexity *result, const char *task,
                                        const char *const *paths, int count, const mhla_perplexity_desc *desc,
                                        mhla_progress_fn progress, void *user);

/* LongBench: a folder with its data (TASK.jsonl, or data/TASK.jsonl) and its dataset2prompt.json and dataset2maxlen.json. A prompt that
 * is too long loses its middle; answers are greedy, of the length that the task has; scores are LongBench's (docs/evaluation.md
 * says where they differ). */
enum { MHLA_LONGBENCH_TASKS = 21 };

typedef struct mhla_longbench_row {
    const char *task, *group, *metric; /* "qasper", "single-document QA", "F1": static texts */
    int paper;                         /* one of the 14 tasks that the paper averages */
    int64_t questions, cut;            /* cut: prompts that lost their middle */
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
    mhla_beyond beyond; /* where that is past the trained length */
    int64_t limit;      /* questions of each task; 0 = all */
} mhla_longbench_desc;

typedef struct mhla_longbench_event {
    size_t size;
    const char *task;
    int64_t question, questions; /* from 0; of this task */
    const char *prompt;          /* as the model reads it */
    const char *answer;          /* the model's, as it is scored */
    const char *const *wanted;   /* [wanteds] right answers */
    int wanteds;
    double score; /* 0 to 1 */
} mhla_longbench_event;
typedef void (*mhla_longbench_fn)(void *user, const mhla_longbench_event *event);

/* Every row of every file is checked before the first prompt is read: MHLA_EDATA names file, line and key. */
MHLA_API mhla_status mhla_lm_longbench(mhla_model *model, mhla_longbench_result *result, const char *folder,
                                       const mhla_longbench_desc *desc, mhla_longbench_fn report, void *user);

/* Needle in a haystack: a sentence with a number stands at some depth of a long text, made from the seed, and is begun again at the
 * end. The right number is found where its log-likelihood is the largest of ten; chance is 10 %. A model without a tokenizer
 * is asked the same in token ids: two ids and a third that follows them. Zero is the default of every field. */
typedef struct mhla_needle_desc {
    size_t size;
    const int64_t
        *lengths;         /* [length_count] tokens of a text with its question; NULL: a quarter, half and all of the */
    int length_count;     /* model's context, or 512, 1024 and 2048 where it has none */
    const double *depths; /* [depth_count] percent of the text before the needle; NULL: 0, 25, 50, 75, 100 */
    int depth_count;
    int samples; /* texts of each length and depth: 10. All depths of a length have the same texts and numbers */
    uint64_t seed;
    mhla_beyond beyond; /* for lengths past the trained one */
} mhla_needle_desc;

typedef struct mhla_needle_cell {
    int64_t length;
    double depth;
    int64_t asked, right;
    double probability; /* mean share of the right number among the ten, as their log-likelihoods have it */
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

/* Multi-query associative recall (MQAR) by the recipe of zoology, at one width: a small decoder learns to say the value
 * that followed a key earlier in the same sequence, all data made from the seed (docs/mqar.md). Zero is the default of
 * every field; training goes through all lengths in turn. */
typedef struct mhla_mqar_desc {
    size_t size;
    const char *attention;    /* "mhla" (NULL), "softmax", "linear", "gla", .. */
    int vocabulary;           /* 8192 */
    int width, layers, heads; /* 64, 2, 2 */
    int chunk;                /* of MHLA layers: 16 tokens; as many blocks as the longest sequence needs */
    int conv;                 /* width of a causal convolution of q, k, v; 0 = none. Softmax has none */
    int64_t steps;            /* updates, at most: 4000 */
    int64_t tokens;           /* of a batch, about: 8192 */
    double rate;              /* at its highest: 0.005; falls to 0 along a cosine */
    int64_t tests;            /* sequences of each kind that are tested: 250 */
    uint64_t seed;
    const mhla_context *context;
    const char *const *settings; /* [setting_count] keys of the model besides, "state_size=16"; the last of a key counts */
    int setting_count;
    int dense; /* sequences as short as the pairs allow, almost without filler: 64 tokens for 4, 8 and 16 pairs, 256 for 64 */
} mhla_mqar_desc;

typedef struct mhla_mqar_row {
    int length, pairs;    /* tokens of a sequence, keys and values in it */
    int64_t asked, right; /* queries, and those whose value is the likeliest of all tokens */
} mhla_mqar_row;

enum { MHLA_MQAR_ROWS = 4 };

typedef struct mhla_mqar_result {
    size_t size;
    mhla_mqar_row rows[MHLA_MQAR_ROWS];
    int64_t parameters, steps; /* steps: fewer than wanted where all rows were right before */
    double loss, seconds;      /* of the last steps' mean */
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

#ifdef __cplusplus
}
#endif
#endif
