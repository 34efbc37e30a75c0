/* Noise levels of a diffusion: betas, what follows from them, and choosing some of them for sampling (respacing), as the
 * public code of guided diffusion and DiT has it. Everything in double. */
#ifndef MHLA_DIFFUSION_LEVELS_H
#define MHLA_DIFFUSION_LEVELS_H

#include <mhla/mhla.h>

typedef struct mhla_level {
    int time;                       /* the original level: what the network is told */
    double beta, kept;              /* kept: alpha-bar, the share of data's variance that is left */
    double kept_before, kept_after; /* of the level with less noise (1 at the first), and of that with more (0) */
    double variance, log_variance;  /* of q(x_{t-1} | x_t, x_0); the logarithm of the first is that of the second */
    double mean_data, mean_noisy;   /* its mean is mean_data x_0 + mean_noisy x_t */
} mhla_level;

typedef struct mhla_levels {
    int count;
    mhla_level *levels; /* [count], from the least noise to the most */
} mhla_levels;

/* `process` MHLA_PROCESS_LINEAR or _COSINE with `original` levels, of which `respacing` keeps some: NULL or "" all of them,
 * "250" so many evenly with both ends, "10,15,20" so many of each of three equal sections, "ddim50" every 20th of 1000,
 * "solver25" so many evenly without the first, for solvers that go from there to no noise at all in one step. MHLA_EINVAL
 * where that cannot be. */
mhla_status mhla_levels_create(mhla_levels *levels, int process, int original, const char *respacing);
void mhla_levels_free(mhla_levels *levels); /* harmless when repeated */

#endif
