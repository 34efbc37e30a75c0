/* Single steps of the samplers, on one sample of n values: x in place, and `data`, what is seen behind the noise. They trust
 * their caller. */
#ifndef MHLA_DIFFUSION_STEPS_H
#define MHLA_DIFFUSION_STEPS_H

#include <stdint.h>

#include "diffusion/levels.h"

/* The log variance of an ancestral step where the network answers v, about -1 .. 1: between the least and the most that any
 * data allows. */
double mhla_level_log_variance(const mhla_level *level, double v);

/* DDPM. variance [n]: the network's answer, or NULL: beta. noise [n], or NULL: the mean. */
void mhla_ddpm_step(float *x, float *data, const float *output, const float *variance, const float *noise, int64_t n,
                    const mhla_level *level, int clip);
/* DDIM; noise may be NULL where eta is 0. */
void mhla_ddim_step(float *x, float *data, const float *output, const float *noise, int64_t n, const mhla_level *level,
                    double eta, int clip);
/* DDIM backwards in time: to the level with more noise. */
void mhla_ddim_reverse(float *x, float *data, const float *output, int64_t n, const mhla_level *level, int clip);

/* ---- Solvers of several steps. A path is alpha, sigma and lambda = ln(alpha/sigma) of all levels [steps+1], the last one
 * (1, 0, inf); lambda of the first may be -inf. ---- */

typedef struct mhla_path {
    int steps;
    const double *alpha, *sigma, *lambda;
} mhla_path;

/* seen[k] [n]: the data that step i-k saw. DPM-Solver++ 2M, midpoint. */
void mhla_dpm_step(float *x, const float *const seen[2], int64_t n, const mhla_path *path, int i);
/* UniPC of order 2, B(h) = e^{-h} - 1. `corrected` [n] keeps the corrected sample from one step to the next. */
void mhla_unipc_step(float *x, float *corrected, const float *const seen[3], int64_t n, const mhla_path *path, int i);

int mhla_all_finite(const float *x, int64_t n);

#endif
