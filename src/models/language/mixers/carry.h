/* What a recurrent layer remembers of a sequence, however long: a state, and the last inputs of its convolutions. The state is an operator's
 * own (mhla_state), or plain numbers. All of it has one size, so that forking, marking, going back, saving and loading are copies. The
 * layer of a mixer that uses it begins with a mhla_carry_size. */
#ifndef MHLA_MODELS_CARRY_H
#define MHLA_MODELS_CARRY_H

#include "models/language/mixers/past.h"

enum { MHLA_CARRY_CONVS = 3 };

typedef struct mhla_carry_size {
    int index;                       /* of the layer */
    const mhla_plan *plan;           /* whose state it is; NULL: numbers */
    int64_t state;                   /* how many */
    int64_t width;                   /* of the convolutions; 0: none */
    int64_t convs[MHLA_CARRY_CONVS]; /* their channels; 0: none */
} mhla_carry_size;

/* The memory of such a layer. */
typedef struct mhla_carry {
    const mhla_carry_size *size;
    mhla_state *stream;               /* of size->plan, or NULL */
    int64_t at;                       /* tokens that the state has seen */
    float *state;                     /* [size->state] */
    mhla_past past[MHLA_CARRY_CONVS]; /* whose rows are behind the state */
    int64_t numbers;                  /* of all */
} mhla_carry;

/* The convolution of part `i`: of whole texts, or with the memories of a pass. w NULL: x as it is. */
mhla_tensor *mhla_carry_convolve(mhla_tape *t, const mhla_carry_size *size, const mhla_mixer_run *run, int i,
                                 mhla_param *w, mhla_param *b, mhla_tensor *x);

/* The operator of a group of layers, and its description. */
typedef struct mhla_carry_plan {
    mhla_plan_desc desc;
    mhla_plan *plan;
} mhla_carry_plan;

/* A recurrence with decay (mhla_nn_recurrence): of whole texts, or with the memories of a pass.
 * `fixed`: decays [H] that are the same for all tokens, where `decay` is NULL. */
typedef struct mhla_carried {
    mhla_tensor *q, *k, *v, *decay;
    mhla_tensor *beta; /* MHLA_KIND_GATED_DELTA, else NULL */
    const float *fixed;
} mhla_carried;
mhla_tensor *mhla_carry_recur(mhla_tape *t, const mhla_carry_size *size, const mhla_mixer_run *run,
                              const mhla_carry_plan *plan, mhla_carried in);

/* Rows of a mhla_mixer. Any number of tokens is the same to it: it has no policy. */
mhla_status mhla_carry_policy(void **to, void *shared, const mhla_terms *terms, int64_t *limit);
void mhla_carry_policy_free(void *of);
mhla_status mhla_carry_remember(void **to, void *layer, const void *policy);
void mhla_carry_forget(void *of);
mhla_status mhla_carry_fork(void **to, const void *of);
size_t mhla_carry_memory_bytes(const void *of);
size_t mhla_carry_step_bytes(const void *of, int64_t tokens);
int64_t mhla_carry_nearest(const void *of, int64_t tokens, int64_t mark);
mhla_status mhla_carry_back(void *of, int64_t place, const unsigned char *mark);
size_t mhla_carry_bytes(const void *of); /* of a mark, and saved */
void mhla_carry_mark(const void *of, unsigned char *to);
mhla_status mhla_carry_save(const void *of, mhla_sink *sink);
mhla_status mhla_carry_load(void *of, mhla_saved *in, int64_t tokens);

#define MHLA_CARRY_ROWS                                                                                                \
    .policy = mhla_carry_policy, .policy_free = mhla_carry_policy_free, .remember = mhla_carry_remember,               \
    .forget = mhla_carry_forget, .fork = mhla_carry_fork, .memory_bytes = mhla_carry_memory_bytes,                     \
    .step_bytes = mhla_carry_step_bytes, .nearest = mhla_carry_nearest, .back = mhla_carry_back,                       \
    .mark_bytes = mhla_carry_bytes, .mark = mhla_carry_mark, .saved_bytes = mhla_carry_bytes, .save = mhla_carry_save, \
    .load = mhla_carry_load

#endif
