/* What a time, 0 to 1000, becomes before a network of noise reads it. */
#ifndef MHLA_MODELS_DENOISERS_TIMES_H
#define MHLA_MODELS_DENOISERS_TIMES_H

#include "nn/nn.h"

enum { MHLA_TIME_NUMBERS = 256 };

/* [B,MHLA_TIME_NUMBERS] of times [B]: cosines, then sines, of scale * time in as many frequencies. A time that is not finite fails
 * the tape. */
mhla_tensor *mhla_denoiser_times(mhla_tape *t, const float *times, double scale, int64_t B);

#endif
