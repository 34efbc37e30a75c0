/* Evaluation of language models, inside: the windows of a long text, words as the harness counts them, questions with
 * several answers. Conventions are those of lm-evaluation-harness 0.4; nothing here needs a model but the last call. */
#ifndef MHLA_MEASURE_EVALUATE_LM_H
#define MHLA_MEASURE_EVALUATE_LM_H

#include <mhla/lm.h>

#include "file/json.h"

/* ---- Rolling windows ----
 *
 * Of a list v = [prefix, t0, t1, .. t(n-1)]: a window reads v[begin .. begin+inputs-1] and scores what follows each of its
 * last `scored` inputs. Every token is scored once; the last window reaches back so that it is full, too. */
typedef struct mhla_window {
    int64_t begin, inputs, scored;
} mhla_window;

/* The window after *w (all zero: the first) of n tokens, at most m inputs each; 0 when there is none. */
int mhla_window_next(mhla_window *w, int64_t n, int64_t m);

/* ---- Text as Python sees it ---- */

/* Pieces of re.split(r"\s+", text): one more than there are runs of white space. text is UTF-8. */
int64_t mhla_text_words(const char *text, size_t bytes);
/* Length of text.rstrip() in bytes; of what text.lstrip() takes away; of the text in characters. */
size_t mhla_text_stripped(const char *text, size_t bytes);
size_t mhla_text_leading(const char *text, size_t bytes);
int64_t mhla_text_characters(const char *text, size_t bytes);

/* ---- Rows of data files ---- */

/* What is done with a row, whose `name`, file and line, is for messages. *stop: set it and no other row is read. */
typedef mhla_status (*mhla_row_fn)(void *user, json_t *row, const char *name, int *stop);

/* Hands each line of a file of JSON lines to `take`, empty ones apart, until one is not MHLA_OK. bigbench: a file that ends with
 * .json is one document {"examples": [...]}, as BIG-bench has them, with a row each. MHLA_EDATA names file and line. */
mhla_status mhla_rows_read(const char *path, int bigbench, mhla_row_fn take, void *user);

/* ---- Multiple choice ---- */

enum { MHLA_CHOICES_MOST = 256 };

typedef struct mhla_question {
    const char *context, *delimiter; /* all texts live as long as the JSON that they come from */
    const char *ending;              /* NULL; else the choices are contexts, and this follows each of them */
    const char **choices;            /* [count] */
    int count, gold;                 /* gold -1: unknown */
    json_t *made;                    /* of texts that stand nowhere in the row as they are */
} mhla_question;

/* What a row of a data file asks. `name` is for messages: file and line. */
mhla_status mhla_question_read(mhla_question *question, const json_t *row, const char *name);
/* Room for `count` choices; and the check of one of them. */
mhla_status mhla_question_room(mhla_question *question, size_t count, const char *name);
mhla_status mhla_question_check(const char *choice, int i, const char *name);
/* Makes contexts of the choices: what stands before the gap, _, of the sentence, with each choice; what stands behind the gap
 * is the ending. question->made is an array. */
mhla_status mhla_question_gap(mhla_question *question, const char *sentence, const char *name);
void mhla_question_release(mhla_question *question);

/* Ids of a context and of what follows, as the harness makes them: white space at the end of the context moves to the
 * continuation, and the continuation is what encoding both together adds to the context alone. Without a context: the
 * prefix token. Ids are appended to lists that are empty. MHLA_EDATA where nothing is left for the continuation. */
mhla_status mhla_pair_encode(const mhla_tokenizer *tokenizer, int32_t prefix, mhla_ids *context, mhla_ids *continuation,
                             const char *before, const char *after);

/* The token in front of a text: BOS, or else EOS; MHLA_EINVAL where there is neither. */
mhla_status mhla_lm_prefix(const mhla_lm_info *info, int32_t *prefix);

#endif
