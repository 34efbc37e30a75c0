/* LongBench, inside: scores of an answer, 0 to 1, and prompts. Definitions are LongBench's own, but for Chinese, which it cuts into
 * words by a dictionary; here each character is a word. */
#ifndef MHLA_MEASURE_LONGBENCH_H
#define MHLA_MEASURE_LONGBENCH_H

#include "measure/evaluate_lm.h"

/* F1 of the words of two texts, as bags: lower case, without punctuation, English articles and, in Chinese, white space. */
double mhla_score_f1(const char *answer, const char *wanted, int chinese);
/* ROUGE-L of two texts as the Python package `rouge` has it: sentences end with a dot, words count once. */
double mhla_score_rouge(const char *answer, const char *wanted, int chinese);
/* Similarity of the first line of code of an answer: twice the longest common subsequence of characters over all characters of both,
 * rounded to percent. */
double mhla_score_code(const char *answer, const char *wanted);
/* The share of an answer's numbers that are the one which follows `mark` in `wanted`; mark "": that are `wanted`. */
double mhla_score_number(const char *answer, const char *wanted, const char *mark);
/* 1 over the number of classes that an answer names, if the right one is among them. */
double mhla_score_class(const char *answer, const char *wanted, const char *const *classes, int count);

/* Appends `template` with {key} replaced by the row's text of that key; {{ and }} are braces. `name` is for messages. */
mhla_status mhla_prompt_fill(mhla_chars *text, const char *template, const json_t *row, const char *name);

/* Of ids that are more than `most`: the first and the last half of so many, the middle goes. */
void mhla_ids_cut_middle(mhla_ids *ids, int64_t most);

#endif
