/* Sampling inside libmhla-nn: the memory that drawing needs, kept from token to token, and log-probabilities. */
#ifndef MHLA_INFER_TOKEN_SAMPLER_H
#define MHLA_INFER_TOKEN_SAMPLER_H

#include <mhla/lm.h>

typedef struct mhla_pick {
    double logit;
    int32_t id;
} mhla_pick;

typedef struct mhla_token_sampler {
    int vocabulary;
    double *logits;  /* [vocabulary] after bias, penalties and, where it comes first, temperature */
    mhla_pick *pick; /* [vocabulary] those that may survive, best first after selection */
    int32_t *seen;   /* [vocabulary] zeros between calls */
    double top, low; /* the largest logit and the smallest finite one */
} mhla_token_sampler;

mhla_status mhla_token_sampler_init(mhla_token_sampler *s, int vocabulary);
void mhla_token_sampler_release(mhla_token_sampler *s); /* harmless when repeated */

/* MHLA_EINVAL names the setting that makes no sense; `to` is filled with defaults resolved. */
mhla_status mhla_sampling_check(mhla_sampling *to, const mhla_sampling *from, int vocabulary);

/* As mhla_sample, with checked settings. */
mhla_status mhla_token_sampler_draw(mhla_token_sampler *s, const mhla_sampling *p, const float *logits,
                                    const int32_t *recent, int64_t n, uint64_t draw, int32_t *id);

/* Natural logarithms at temperature 1: that of `id`, and the `tops` likeliest, best first. */
mhla_status mhla_token_sampler_logprobs(mhla_token_sampler *s, const float *logits, int32_t id, float *logprob,
                                        int tops, mhla_candidate *top);

#endif
