/* Group norm as other layers use it: statistics first, then rows x * scale + shift, activated. */
#ifndef MHLA_NN_GROUP_NORM_H
#define MHLA_NN_GROUP_NORM_H

#include "nn/op.h"

typedef struct mhla_group_stats {
    mhla_tensor *x; /* [B,T,C] */
    mhla_param *w, *b;
    int groups;
    float eps;
    float *mean, *rstd;   /* [B,groups] */
    float *scale, *shift; /* [B,C] */
} mhla_group_stats;

/* Fills in the arrays, which live as long as tensors do. 0: the tape has failed. Uses the scratch. */
int mhla_group_stats_make(mhla_tape *t, mhla_group_stats *s);

#endif
