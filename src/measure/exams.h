/* Tasks of lm-evaluation-harness, inside: how a row of a dataset becomes a question, or a page. A task is a row of the table in
 * exams.c; strings follow the harness's task files (0.4.13), and tests/measure/tasks/requests.json holds what it makes of
 * the same rows.
 *
 * Templates: {key} is the text of that key, {a.b} of key b of the object a, {a.0} of the first item of the array a. A filter may
 * follow: {key|strip} without white space at the ends, {key|spaces} with spaces for underscores. */
#ifndef MHLA_MEASURE_EXAMS_H
#define MHLA_MEASURE_EXAMS_H

#include "measure/evaluate_lm.h"

enum { MHLA_EXAM_CHOICES = 4 };

typedef struct mhla_exam {
    const char *name, *source; /* the harness's name; the dataset on the hub */
    mhla_task_kind kind;
    int normalised; /* acc_norm is a measure of it, too */
    const char *
        context; /* a template; of MHLA_TASK_WORD and MHLA_TASK_PAGES the key of the text; of a gap: the sentence with _ */
    int gap;     /* what stands before _ with each choice is a context, what stands behind it follows */
    const char *choices[MHLA_EXAM_CHOICES + 1]; /* templates, or none: */
    const char *list, *labels;                  /* where the row has its choices, and their labels */
    const char *gold;                           /* key of the right choice: its number from 0, its label or its text */
    const char *other_gold;                     /* another key for the same, or NULL */
    const char *names[MHLA_EXAM_CHOICES + 1];   /* labels of `choices`; none: their texts */
} mhla_exam;

/* MHLA_EINVAL with the names of all tasks. */
mhla_status mhla_exam_find(const mhla_exam **task, const char *name);

/* What a row asks; not of MHLA_TASK_PAGES. MHLA_EDATA names the row and the key. */
mhla_status mhla_exam_read(const mhla_exam *task, mhla_question *question, const json_t *row, const char *name);

/* Appends the page as people write it: the spaces and marks of WikiText's tokens undone as the harness does it. */
mhla_status mhla_wikitext_plain(mhla_chars *plain, const char *page);

#endif
