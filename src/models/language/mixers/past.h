/* What a short causal convolution remembers of a sequence: its last inputs. */
#ifndef MHLA_MODELS_PAST_H
#define MHLA_MODELS_PAST_H

#include "models/language/mixer.h"

typedef struct mhla_past {
    float *rows;    /* [W-1, D], the newest last; NULL: nothing to remember */
    int64_t floats; /* (W-1) * D */
    int64_t at;     /* tokens that it has seen */
} mhla_past;

mhla_status mhla_past_make(mhla_past *past, int64_t width, int64_t D); /* zeros; width 0 or 1: nothing */
void mhla_past_copy(mhla_past *to, const mhla_past *from);             /* of the same size */
static inline size_t mhla_past_bytes(const mhla_past *past) { return sizeof(float) * (size_t)past->floats; }

/* The segments of a pass as packed sequences. */
void mhla_pass_sequences(const mhla_pass *pass, int64_t cu_seqlens[MHLA_PASS + 1]);

/* With memory: y_t = silu(sum_j w[d,0,j] x_{t-W+1+j} + b[d]), x [1,rows,D], w [D,1,W], b [D] or NULL; before a sequence's first token are
 * zeros. The memory of layer `layer` of each segment has its mhla_past at `offset`. */
mhla_tensor *mhla_past_convolve(mhla_tape *t, const mhla_pass *pass, int layer, size_t offset, const mhla_param *w,
                                const mhla_param *b, mhla_tensor *x);

#endif
