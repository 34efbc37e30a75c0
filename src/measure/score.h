/* Log-likelihoods of continuations: how likely a model finds each of several token lists after a context. Multiple choice,
 * last words and needles all ask this. The context is read once; each continuation goes on from a fork of it. */
#ifndef MHLA_MEASURE_SCORE_H
#define MHLA_MEASURE_SCORE_H

#include <mhla/lm.h>

typedef struct mhla_continuation {
    mhla_ids ids;         /* one or more */
    double loglikelihood; /* the sum over its tokens */
    int greedy;           /* each of them is the likeliest */
} mhla_continuation;

typedef struct mhla_scoring {
    mhla_ids context; /* one or more */
    mhla_continuation *continuations;
    int count;
} mhla_scoring;

/* Room for `count` continuations; MHLA_ENOMEM. And its end, harmless when repeated. */
mhla_status mhla_scoring_make(mhla_scoring *scoring, int count);
void mhla_scoring_release(mhla_scoring *scoring);

/* Fills in loglikelihood and greedy of all continuations of scorings [count], which are read together. A context that is too
 * long loses its beginning: a sequence reads `longest` tokens at most, and no continuation is longer than that. */
mhla_status mhla_lm_score(mhla_model *model, mhla_scoring *scorings, int count, int64_t longest,
                          const mhla_sequence_desc *desc);

#endif
