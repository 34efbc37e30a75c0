/* What GLA and RetNet have in common: the projections of stream.h around a recurrence that forgets.
 *
 *   S_t = decay_t S_{t-1} + k_t v_t^T,  o_t = K^-1/2 q_t^T S_t
 *
 * GLA learns a decay for each key channel, RetNet has one for each head. The two fill in a mhla_decayed and share the rest. Their settings
 * begin with mhla_stream_settings. */
#ifndef MHLA_MODELS_MIXER_DECAYED_H
#define MHLA_MODELS_MIXER_DECAYED_H

#include "models/language/mixers/carry.h"
#include "models/language/mixers/stream.h"

/* What the layers of a group share. */
typedef struct mhla_decayed {
    mhla_stream x;  /* its plan is not used; with angles q and k are rotated */
    int rank;       /* of gk_proj, the matrices of the log-decays; 0: decays are fixed */
    double divisor; /* of their logsigmoid */
    double least;   /* at least this; above 0: no bound */
    mhla_carry_plan plan;
    float *fixed; /* [H] log-decays */
} mhla_decayed;

/* Keys and values of a head must have the dims that its decays have. */
mhla_status mhla_decayed_settle(mhla_stream_settings *s, const mhla_lm_config *c);
/* Takes `given` over, makes its plan. */
mhla_status mhla_decayed_open(void **shared, const mhla_decayed *given);
void mhla_decayed_close(void *shared);
int64_t mhla_decayed_multiply_adds(const mhla_stream_settings *s, const mhla_lm_config *c, int gate, int rank);
int64_t mhla_decayed_state_bytes(const void *settings, const mhla_lm_config *c, int64_t tokens);
void mhla_decayed_describe(const void *settings, mhla_mixer_facts *facts);

mhla_status mhla_decayed_create(void **to, void *shared, mhla_params *ps, const char *prefix, int index);
mhla_tensor *mhla_decayed_forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual,
                                  mhla_tensor *h);
mhla_status mhla_decayed_begin(void *shared, const mhla_pass *pass);

#define MHLA_DECAYED_ROWS                                                                                              \
    .describe = mhla_decayed_describe, .state_bytes = mhla_decayed_state_bytes, .close = mhla_decayed_close,           \
    .create = mhla_decayed_create, .free = free, .forward = mhla_decayed_forward, .begin = mhla_decayed_begin,         \
    MHLA_CARRY_ROWS

#endif
